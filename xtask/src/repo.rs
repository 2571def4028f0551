//! Where things are: the repository's root, its source files, the project's cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// The root of the repository that this program was built from.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// The cargo that runs this program, started in the repository.
///
/// It is not told what cargo tells this program about its own package: build scripts of
/// dependencies look at these variables, and would run again after each build by hand.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let of_this_package = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if of_this_package.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// The cache that the product and the repository's tools share.
pub(crate) fn cache_dir() -> anyhow::Result<PathBuf> {
    cotal_broker::cache_dir(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
        .context("neither XDG_CACHE_HOME nor HOME is set, so there is no cache directory")
}

/// Every Rust file below `dir`, in a stable order; build output and hidden directories are not
/// entered.
pub(crate) fn rust_files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        let entries =
            fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read {}", dir.display()))?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    pending.push(path);
                }
            } else if name.ends_with(".rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}
