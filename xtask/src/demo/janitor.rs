//! Whoever cleans up when the demo cannot: it was interrupted, or killed.
//!
//! The janitor waits at a pipe that this process holds. The pipe closes with this process, however
//! that ends; then the janitor takes the mesh down and removes its directory.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::Context as _;

/// Paths come through the environment, so that the janitor is not itself a process that names them.
const SCRIPT: &str =
    r#"read -r done || { "$DEMO_COTAL" --root "$DEMO_ROOT" down; rm -rf "$DEMO_DIR"; }"#;

/// A janitor at work.
#[derive(Debug)]
pub(super) struct Janitor {
    child: Child,
    pipe: Option<ChildStdin>,
}

impl Janitor {
    /// Starts a janitor for the mesh at `root`, which lies in the temporary directory `dir`.
    pub(super) fn start(cotal: &Path, root: &Path, dir: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT])
            .env("DEMO_COTAL", cotal)
            .env("DEMO_ROOT", root)
            .env("DEMO_DIR", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt from the terminal is for the demo, not for who cleans up after it.
            .process_group(0)
            .spawn()
            .context("cannot run sh")?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Tells it that there is nothing to clean up.
    pub(super) fn dismiss(&mut self) -> anyhow::Result<()> {
        if let Some(mut pipe) = self.pipe.take() {
            pipe.write_all(b"done\n").context("the janitor is gone")?;
        }
        self.child.wait().context("the janitor does not end")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;

    /// A stand-in for the binary that leaves a note of how it was called.
    fn stand_in(dir: &Path) -> (PathBuf, PathBuf) {
        let (program, note) = (dir.join("cotal"), dir.join("note"));
        fs::write(&program, format!("#!/bin/sh\necho \"$@\" > {}\n", note.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        (program, note)
    }

    #[test]
    fn a_demo_that_dies_is_cleaned_up_after() {
        let dir = tempfile::tempdir().unwrap();
        let (program, note) = stand_in(dir.path());
        let scratch = dir.path().join("demo");
        fs::create_dir(&scratch).unwrap();
        let mut janitor = Janitor::start(&program, Path::new("/r"), &scratch).unwrap();
        drop(janitor.pipe.take());
        janitor.child.wait().unwrap();
        assert_eq!(fs::read_to_string(note).unwrap(), "--root /r down\n");
        assert!(!scratch.exists());
    }

    #[test]
    fn a_demo_that_cleaned_up_itself_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (program, note) = stand_in(dir.path());
        let mut janitor = Janitor::start(&program, Path::new("/r"), dir.path()).unwrap();
        janitor.dismiss().unwrap();
        assert!(!note.exists() && dir.path().exists());
    }
}
