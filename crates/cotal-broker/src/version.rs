//! The version of a server, in the order in which versions are newer than each other.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A semantic version, as `nats-server --version` and the INFO line spell it.
///
/// A pre-release sorts below its release, so `2.12.0-RC.1` does not satisfy a minimum of `2.12.0`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version {
    /// Breaking changes.
    pub major: u32,
    /// Features.
    pub minor: u32,
    /// Fixes.
    pub patch: u32,
    /// What follows the `-`, when this is not a release.
    pub pre: Option<String>,
}

/// The text is not `major.minor.patch[-pre]`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a version of the form major.minor.patch")]
pub struct BadVersion(pub String);

impl Version {
    /// A release.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch, pre: None }
    }

    fn release(&self) -> (u32, u32, u32) {
        (self.major, self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = BadVersion;

    fn from_str(text: &str) -> Result<Self, BadVersion> {
        let bad = || BadVersion(text.to_owned());
        let bare = text.strip_prefix('v').unwrap_or(text);
        // Build metadata says nothing about order.
        let bare = bare.split_once('+').map_or(bare, |(version, _)| version);
        let (release, pre) = match bare.split_once('-') {
            Some((release, pre)) => (release, Some(pre.to_owned())),
            None => (bare, None),
        };
        let mut parts = release.split('.').map(str::parse::<u32>);
        let mut next = || parts.next().and_then(Result::ok).ok_or_else(bad);
        let (major, minor, patch) = (next()?, next()?, next()?);
        if parts.next().is_some() || pre.as_deref() == Some("") {
            return Err(bad());
        }
        Ok(Self { major, minor, patch, pre })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        match &self.pre {
            Some(pre) => write!(f, "-{pre}"),
            None => Ok(()),
        }
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.release().cmp(&other.release()).then_with(|| match (&self.pre, &other.pre) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(mine), Some(theirs)) => mine.cmp(theirs),
        })
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn order_is_by_number_and_a_pre_release_is_older() {
        let ascending = ["2.9.25", "2.12.0-RC.1", "2.12.0", "2.12.7", "2.14.0-preview.2", "2.14.0"];
        for pair in ascending.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
        }
        assert_eq!(version("v2.15.1"), version("2.15.1+build.7"));
    }

    #[test]
    fn what_is_not_a_version_is_refused() {
        for text in ["", "2", "2.12", "2.12.x", "2.12.1.4", "2.12.1-", "latest"] {
            assert_eq!(text.parse::<Version>(), Err(BadVersion(text.to_owned())));
        }
    }

    #[test]
    fn display_is_what_was_parsed() {
        for text in ["2.15.1", "2.12.0-RC.1"] {
            assert_eq!(version(text).to_string(), text);
        }
    }
}
