//! Standard output and error of a process follow its log when it rotates.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::Command;

use cotal_workspace::RotatingLog;

/// Names the log to the process below.
const LOG: &str = "COTAL_TEST_LOG";

#[test]
fn lif_7_what_is_written_to_stderr_after_a_rotation_stands_in_the_current_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("delivery.main.log");
    let redirected = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_whose_output_is_its_log", "--ignored", "--nocapture"])
        .env(LOG, &path)
        .stdout(redirected())
        .stderr(redirected())
        .status()
        .unwrap();
    assert!(status.success());
    let rotated = fs::read_to_string(dir.path().join("delivery.main.log.1")).unwrap();
    let current = fs::read_to_string(&path).unwrap();
    assert!(rotated.contains("before") && !rotated.contains("late"), "{rotated}");
    for wanted in ["after\n", "late on stdout\n", "late on stderr\n"] {
        assert!(current.contains(wanted), "{wanted:?} is not in {current:?}");
    }
}

#[test]
#[ignore = "the process that the test above starts"]
fn a_process_whose_output_is_its_log() {
    let mut log = RotatingLog::open(std::env::var_os(LOG).unwrap(), 200).unwrap();
    log.write_all(format!("before {}\n", "x".repeat(190)).as_bytes()).unwrap();
    log.write_all(b"after\n").unwrap();
    std::io::stdout().write_all(b"late on stdout\n").unwrap();
    std::io::stderr().write_all(b"late on stderr\n").unwrap();
}
