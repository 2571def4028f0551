//! The version-1 manifest of a multi-space host: which spaces it serves (HST-1).

use std::path::{Path, PathBuf};

use cotal_wire::Space;
use serde::Deserialize;

use crate::files::{self, FileError};
use crate::strict;

/// Why a manifest refuses the whole start.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// There is no file at the path.
    #[error("no host manifest at {path}", path = .0.display())]
    Absent(PathBuf),
    /// The file is not a manifest of version 1.
    #[error(
        "{path} is not a host manifest: {problem}; write {{\"version\": 1, \"spaces\": [\"<space>\", …]}}",
        path = path.display()
    )]
    Malformed {
        /// The manifest's path.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
}

/// The spaces a host serves, each named once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostManifest {
    spaces: Vec<Space>,
}

#[derive(Deserialize)]
struct Version {
    version: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Version1 {
    #[serde(rename = "version")]
    _version: u64,
    spaces: Vec<Space>,
}

impl HostManifest {
    /// Reads the manifest at `path`.
    ///
    /// # Errors
    /// When it is absent, unreadable or anything but a well-formed manifest of version 1.
    pub fn load(path: &Path) -> Result<Self, ManifestError> {
        let text = files::read(path)?.ok_or_else(|| ManifestError::Absent(path.to_owned()))?;
        Self::parse(&text)
            .map_err(|problem| ManifestError::Malformed { path: path.to_owned(), problem })
    }

    /// Parses a manifest; `Err` says what is wrong with it.
    ///
    /// # Errors
    /// When the version is unknown, a field is unknown, missing or repeated, a space is malformed
    /// or named twice, or no space is named.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Version { version } = strict::object(text)?;
        if version.as_u64() != Some(1) {
            return Err(format!("version {version} is unknown, this host reads version 1"));
        }
        let Version1 { spaces, .. } = strict::object(text)?;
        strict::distinct(&spaces)?;
        if spaces.is_empty() {
            return Err("it names no space".to_owned());
        }
        Ok(Self { spaces })
    }

    /// The spaces, in the manifest's order.
    #[must_use]
    pub fn spaces(&self) -> &[Space] {
        &self.spaces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hst_1_a_version_1_manifest_names_its_spaces() {
        let manifest = HostManifest::parse(r#"{"version": 1, "spaces": ["alpha", "beta"]}"#);
        let names: Vec<_> = manifest.unwrap().spaces().iter().map(Space::to_string).collect();
        assert_eq!(names, ["alpha", "beta"]);
    }

    #[test]
    fn hst_1_a_malformed_manifest_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "not a JSON object"),
            ("[1, [\"a\"]]", "not a JSON object"),
            ("{\"version\": 1, \"spaces\": [\"a\"]", "EOF"),
            ("{\"version\": 1, \"spaces\": [\"a\"]} x", "trailing"),
            ("{\"spaces\": [\"a\"]}", "missing field `version`"),
            ("{\"version\": 2, \"spaces\": [\"a\"]}", "version 2 is unknown"),
            ("{\"version\": \"1\", \"spaces\": [\"a\"]}", "version \"1\" is unknown"),
            ("{\"version\": 1, \"version\": 1, \"spaces\": [\"a\"]}", "duplicate field `version`"),
            ("{\"version\": 1}", "missing field `spaces`"),
            ("{\"version\": 1, \"spaces\": []}", "names no space"),
            ("{\"version\": 1, \"spaces\": [\"a\"], \"root\": 1}", "unknown field `root`"),
            ("{\"version\": 1, \"spaces\": [\"a\", \"a\"]}", "named twice"),
            ("{\"version\": 1, \"spaces\": [\"a.b\"]}", "not a space"),
            ("{\"version\": 1, \"spaces\": [\"\"]}", "not a space"),
            ("{\"version\": 1, \"spaces\": [7]}", "expected a"),
        ] {
            let problem = HostManifest::parse(text).unwrap_err();
            assert!(problem.contains(reason), "{text}: {problem}");
        }
    }

    #[test]
    fn the_error_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.json");
        assert!(matches!(HostManifest::load(&path), Err(ManifestError::Absent(_))));
        std::fs::write(&path, "{}").unwrap();
        let message = HostManifest::load(&path).unwrap_err().to_string();
        assert!(message.contains("host.json") && message.contains("\"version\": 1"), "{message}");
    }
}
