//! Logs of a test run: shown for failing tests, and kept for tests of what a daemon says.

use std::io;
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::{MakeWriter, TestWriter};

static KEPT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Logs of a test run, shown for failing tests; `RUST_LOG` chooses what.
pub fn init_logs() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    // A second test of the same process finds the subscriber installed already.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(Tee)
        .try_init();
}

/// The lines logged so far, by every test of this process, that contain all of `parts`.
#[must_use]
pub fn logged(parts: &[&str]) -> Vec<String> {
    let kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let text = String::from_utf8_lossy(&kept);
    let lines = text.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
    lines.map(str::to_owned).collect()
}

struct Tee;

impl io::Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        TestWriter::new().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        TestWriter::new().flush()
    }
}

impl<'a> MakeWriter<'a> for Tee {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        Self
    }
}
