//! Building the programs of the workspace.
//!
//! The demo, the soak and the tests run one build, with one profile and one set of features, so
//! that a newcomer who runs all three compiles everything once.

use std::path::PathBuf;

use crate::{repo, step};

/// Builds every program of the workspace as the tests run them, and returns the path of `cotal`.
///
/// # Errors
/// When the build fails.
pub(crate) fn for_tests() -> anyhow::Result<PathBuf> {
    step::run(repo::cargo().args(["build", "--locked", "--bins", "--workspace"]))?;
    Ok(target_dir().join("debug").join("cotal"))
}

/// Builds the product and the benchmark optimised, and returns the folder that holds both.
///
/// # Errors
/// When the build fails.
pub(crate) fn optimised() -> anyhow::Result<PathBuf> {
    let packages = ["build", "--locked", "--release", "-p", "cotal", "-p", "cotal-bench"];
    step::run(repo::cargo().args(packages))?;
    Ok(target_dir().join("release"))
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    named.unwrap_or_else(|| repo::root().join("target"))
}
