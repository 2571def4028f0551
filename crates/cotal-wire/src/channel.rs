//! Channels and the patterns of an ACL (`wire.md` §2).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::serde_as_text;
use crate::limits::MAX_CHANNEL;

/// Why a text is not a channel or a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// Not a concrete channel.
    #[error("{0:?} is not a channel: use dotted segments of letters, digits, _ and -")]
    Channel(String),
    /// Not an ACL pattern.
    #[error(
        "{0:?} is not a channel pattern: like a channel, where a whole segment may be * and the last may be >"
    )]
    Pattern(String),
}

fn is_segment(segment: &str) -> bool {
    !segment.is_empty()
        && segment.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// A concrete channel: what a post, a join and a member row name. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel(Arc<str>);

impl Channel {
    /// Reads a channel.
    ///
    /// # Errors
    /// When a segment is empty or holds a foreign character, or the whole is over 4,096 bytes.
    pub fn parse(text: &str) -> Result<Self, ChannelError> {
        if text.len() <= MAX_CHANNEL && text.split('.').all(is_segment) {
            Ok(Self(text.into()))
        } else {
            Err(ChannelError::Channel(text.chars().take(64).collect()))
        }
    }

    /// The channel's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A channel pattern of an ACL: `*` is one whole segment, a last `>` is one or more.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelPattern(Arc<str>);

impl ChannelPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// When a segment is neither a channel segment nor `*`, or `>` stands anywhere but last.
    pub fn parse(text: &str) -> Result<Self, ChannelError> {
        let last = text.split('.').count().saturating_sub(1);
        let ok = text.len() <= MAX_CHANNEL
            && text
                .split('.')
                .enumerate()
                .all(|(i, s)| is_segment(s) || s == "*" || (s == ">" && i == last));
        if ok {
            Ok(Self(text.into()))
        } else {
            Err(ChannelError::Pattern(text.chars().take(64).collect()))
        }
    }

    /// The pattern's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this pattern covers `channel`: `a.>` covers `a.b` and `a.b.c`, never `a`.
    #[must_use]
    pub fn covers(&self, channel: &Channel) -> bool {
        let mut segments = channel.as_str().split('.');
        for want in self.0.split('.') {
            match (want, segments.next()) {
                (">", Some(_)) => return true,
                ("*", Some(_)) => {}
                (want, Some(have)) if want == have => {}
                _ => return false,
            }
        }
        segments.next().is_none()
    }

    /// Whether every channel that `other` covers is covered by this pattern.
    #[must_use]
    pub fn covers_all_of(&self, other: &Self) -> bool {
        let mut segments = other.0.split('.');
        for want in self.0.split('.') {
            match (want, segments.next()) {
                (">", Some(_)) => return true,
                ("*", Some(have)) if have != ">" => {}
                (want, Some(have)) if want == have => {}
                _ => return false,
            }
        }
        segments.next().is_none()
    }

    /// Whether the pattern names exactly one channel.
    #[must_use]
    pub fn as_concrete(&self) -> Option<Channel> {
        Channel::parse(&self.0).ok()
    }
}

impl From<&Channel> for ChannelPattern {
    fn from(channel: &Channel) -> Self {
        Self(channel.0.clone())
    }
}

/// Whether any pattern of an ACL covers `channel`; an empty list covers nothing.
#[must_use]
pub fn any_covers(patterns: &[ChannelPattern], channel: &Channel) -> bool {
    patterns.iter().any(|pattern| pattern.covers(channel))
}

macro_rules! show_text {
    ($ty:ty) => {
        impl fmt::Display for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

show_text!(Channel);
show_text!(ChannelPattern);
serde_as_text!(Channel);
serde_as_text!(ChannelPattern);

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(pattern: &str, channel: &str) -> bool {
        ChannelPattern::parse(pattern).unwrap().covers(&Channel::parse(channel).unwrap())
    }

    #[test]
    fn matcher_table() {
        let table = [
            ("a", "a", true),
            ("a", "a.b", false),
            ("a.b", "a", false),
            ("a.>", "a", false),
            ("a.>", "a.b", true),
            ("a.>", "a.b.c", true),
            ("a.>", "ab.c", false),
            ("*", "a", true),
            ("*", "a.b", false),
            ("*.b", "a.b", true),
            ("*.b", "a.c", false),
            ("a.*.c", "a.b.c", true),
            ("a.*.c", "a.b.d", false),
            ("a.*", "a", false),
            (">", "a", true),
            (">", "a.b.c", true),
            ("*.>", "a", false),
            ("*.>", "a.b", true),
            ("A", "a", false),
        ];
        for (pattern, channel, want) in table {
            assert_eq!(covers(pattern, channel), want, "{pattern} over {channel}");
        }
    }

    #[test]
    fn subset_table() {
        let table = [
            (">", "a.>", true),
            ("a.>", "a.>", true),
            ("a.>", "a.*", true),
            ("a.>", "a", false),
            ("a.*", "a.>", false),
            ("a.*", "a.b", true),
            ("a.*", "a.*", true),
            ("a.*", "a.b.c", false),
            ("a.b", "a.*", false),
            ("*.b", "a.b", true),
            ("*", ">", false),
        ];
        for (wide, narrow, want) in table {
            let pattern = |text| ChannelPattern::parse(text).unwrap();
            assert_eq!(pattern(wide).covers_all_of(&pattern(narrow)), want, "{wide} {narrow}");
        }
    }

    #[test]
    fn channel_grammar() {
        for good in ["a", "team.backend", "A-b_9.c"] {
            assert!(Channel::parse(good).is_ok(), "{good}");
        }
        let long = "a".repeat(MAX_CHANNEL + 1);
        for bad in ["", ".", "a.", ".a", "a..b", "*", "a.>", "a b", "a/b", "=defaults", "ü", &long]
        {
            assert!(Channel::parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "a.>.b", "a*", ">a", "a.**", "a. "] {
            assert!(ChannelPattern::parse(bad).is_err(), "{bad}");
        }
    }
}
