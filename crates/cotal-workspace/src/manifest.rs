//! The version-1 manifest of a multi-space host: which spaces it serves (HST-1).

use std::path::{Path, PathBuf};

use cotal_wire::Space;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::files::{self, FileError};

/// Why a manifest refuses the whole start.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// There is no file at the path.
    #[error("no host manifest at {path}", path = .0.display())]
    Absent(PathBuf),
    /// The file is not a manifest of version 1.
    #[error(
        "{path} is not a host manifest: line {line}: {reason}; write {{\"version\": 1, \"spaces\": \
         [\"<space>\", …]}}",
        path = path.display(),
        line = problem.line,
        reason = problem.reason
    )]
    Malformed {
        /// The manifest's path.
        path: PathBuf,
        /// What is wrong with it.
        problem: Problem,
    },
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What is wrong with a manifest, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line, from 1 on.
    pub line: usize,
    /// What is wrong there.
    pub reason: String,
}

/// The spaces a host serves, each named once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostManifest {
    spaces: Vec<Space>,
}

#[derive(Deserialize)]
struct Version<'a> {
    #[serde(borrow)]
    version: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Version1<'a> {
    #[serde(rename = "version")]
    _version: u64,
    /// Kept as they stand, so that each is found again in the text.
    #[serde(borrow)]
    spaces: Vec<&'a RawValue>,
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

    /// A manifest that names `spaces`.
    ///
    /// # Errors
    /// When a space is named twice, or none is.
    pub fn new(spaces: Vec<Space>) -> Result<Self, String> {
        let text = Self { spaces }.render();
        Self::parse(&text).map_err(|problem| problem.reason)
    }

    /// The manifest's text, one space a line.
    #[must_use]
    pub fn render(&self) -> String {
        let names: Vec<_> = self.spaces.iter().map(|space| format!("    \"{space}\"")).collect();
        format!("{{\n  \"version\": 1,\n  \"spaces\": [\n{}\n  ]\n}}\n", names.join(",\n"))
    }

    /// Parses a manifest.
    ///
    /// # Errors
    /// When the version is unknown, a field is unknown, missing or repeated, a space is malformed
    /// or named twice, or no space is named.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let at = |part: &str| line_of(text, part);
        // Serde would take an array for a struct.
        if !text.trim_start().starts_with('{') {
            return Err(Problem {
                line: at(text.trim()),
                reason: "it is not a JSON object".into(),
            });
        }
        let Version { version } = read(text)?;
        if version.get() != "1" {
            let reason = format!("version {version} is unknown, this host reads version 1");
            return Err(Problem { line: at(version.get()), reason });
        }
        let named = read::<Version1>(text)?.spaces;
        let mut spaces = Vec::with_capacity(named.len());
        for raw in named {
            let wrong = |reason| Problem { line: at(raw.get()), reason };
            let space: Space =
                serde_json::from_str(raw.get()).map_err(|error| wrong(reason(&error)))?;
            if spaces.contains(&space) {
                return Err(wrong(format!("space {:?} is named twice", space.as_str())));
            }
            spaces.push(space);
        }
        if spaces.is_empty() {
            return Err(Problem { line: 1, reason: "it names no space".to_owned() });
        }
        Ok(Self { spaces })
    }

    /// The spaces, in the manifest's order.
    #[must_use]
    pub fn spaces(&self) -> &[Space] {
        &self.spaces
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Problem> {
    serde_json::from_str(text)
        .map_err(|error| Problem { line: error.line().max(1), reason: reason(&error) })
}

/// What serde says, without the place, which is told beside it.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

/// The line of `text` on which its part `part` begins.
fn line_of(text: &str, part: &str) -> usize {
    let at = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count()
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
            assert!(problem.reason.contains(reason), "{text}: {problem:?}");
            assert_eq!(problem.line, 1, "{text}");
        }
    }

    #[test]
    fn hst_1_the_line_of_a_problem_is_named() {
        for (line, text) in [
            (3, "{\n\"version\":\n2, \"spaces\": [\"a\"]}"),
            (4, "{\n\"version\": 1,\n\"spaces\": [\"a\",\n\"a\"]}"),
            (3, "{\"version\": 1,\n\"spaces\": [\n\"a.b\",\n\"c\"]}"),
            (2, "{\"version\": 1,\n\"root\": 1, \"spaces\": [\"a\"]}"),
            (3, "{\"version\": 1,\n\"spaces\": [\"a\"]\nx}"),
            (2, "\n[1]"),
        ] {
            assert_eq!(HostManifest::parse(text).unwrap_err().line, line, "{text}");
        }
    }

    #[test]
    fn a_manifest_that_was_rendered_reads_back() {
        let spaces = vec![Space::parse("alpha").unwrap(), Space::parse("beta").unwrap()];
        let manifest = HostManifest::new(spaces).unwrap();
        assert_eq!(HostManifest::parse(&manifest.render()).unwrap(), manifest);
        assert!(HostManifest::new(Vec::new()).is_err());
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
