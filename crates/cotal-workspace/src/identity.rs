//! Which process is the broker, the daemon or the manager of a root, as the kernel tells it.
//!
//! Each of them holds a lock on a file of its root, and holds it as its standard input: a launcher
//! takes the lock and hands the descriptor to the program it starts, so even a program that knows
//! nothing of locks (the broker) holds its own from its first moment to its last. Nobody has to
//! write anything for the lock to be true, no failed start can overwrite it, a copy of the root has
//! another file, and a root that was moved still has the same one.
//!
//! Invariant: a lock file is never removed, and its content means nothing.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::stdio::{dup2_stdin, stdin};

use crate::lock::{self, LockError};

/// How a lock file of this module is named, whatever the component.
const SUFFIX: &str = ".run.lock";

/// How many processes of a kind may run on a root at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// One: the broker, because a store has one writer, and the manager.
    Alone,
    /// Several: one daemon serves, and another may still start or be paused. The lease decides.
    Together,
}

/// The lock by which a process is known, held and not yet handed over.
#[derive(Debug)]
pub struct Identity {
    file: File,
}

impl Identity {
    /// Takes the lock at `path` for a process that is to be started.
    ///
    /// # Errors
    /// [`LockError::Runs`] when a process holds it alone, and whatever the system refuses.
    pub fn take(path: &Path, share: Share) -> Result<Self, LockError> {
        let file = lock::open(path)?;
        let taken = match share {
            Share::Alone => file.try_lock(),
            Share::Together => file.try_lock_shared(),
        };
        match taken {
            Ok(()) => Ok(Self { file }),
            Err(TryLockError::WouldBlock) => Err(runs(path)),
            Err(TryLockError::Error(source)) => Err(failed(path)(source)),
        }
    }

    /// The descriptor that the started process gets as its standard input. The lock is free once
    /// the last copy of it is closed, so the caller keeps none.
    #[must_use]
    pub fn into_stdin(self) -> File {
        self.file
    }

    /// Makes this process hold the lock at `path`, whoever started it and whatever its standard
    /// input was.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn adopt(path: &Path, share: Share) -> Result<(), LockError> {
        if !is_stdin(path) {
            let held = Self::take(path, share)?;
            return dup2_stdin(&held.file).map_err(|errno| failed(path)(errno.into()));
        }
        // It is this very descriptor that a launcher has locked, or that nobody has.
        let operation = match share {
            Share::Alone => FlockOperation::NonBlockingLockExclusive,
            Share::Together => FlockOperation::NonBlockingLockShared,
        };
        match flock(stdin(), operation) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(runs(path)),
            Err(errno) => Err(failed(path)(errno.into())),
        }
    }
}

/// The processes that hold the lock at `path`, as far as this user may look at them.
#[must_use]
pub fn holders(path: &Path) -> Vec<u32> {
    let Some(wanted) = inode(path) else { return Vec::new() };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| holds_inode(*pid, wanted) == Some(true)).collect()
}

/// Whether a process holds the lock at `path`; `None` where that cannot be told, because there is
/// no such file or the process may not be looked at.
#[must_use]
pub fn holds(pid: u32, path: &Path) -> Option<bool> {
    holds_inode(pid, inode(path)?)
}

/// The lock file of whatever root by which a process is known; `None` when it has none.
#[must_use]
pub fn held_by(pid: u32) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/{pid}/fd/0")).ok()?;
    let is_identity = path.to_str()?.trim_end_matches(" (deleted)").ends_with(SUFFIX);
    (is_identity && is_locked(pid)).then_some(path)
}

fn holds_inode(pid: u32, wanted: (u64, u64)) -> Option<bool> {
    let stdin = fs::metadata(format!("/proc/{pid}/fd/0")).ok()?;
    Some((stdin.dev(), stdin.ino()) == wanted && is_locked(pid))
}

/// Whether there is a lock on the standard input of a process: to have the file open is not enough.
fn is_locked(pid: u32) -> bool {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/0")).unwrap_or_default();
    info.lines().any(|line| line.starts_with("lock:") && line.contains("FLOCK"))
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let meta = fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

fn is_stdin(path: &Path) -> bool {
    let Ok(stat) = fstat(stdin().as_fd()) else { return false };
    inode(path) == Some((stat.st_dev, stat.st_ino))
}

fn runs(path: &Path) -> LockError {
    LockError::Runs { path: path.to_owned(), holder: holders(path).first().copied() }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> LockError {
    let path = path.to_owned();
    move |source| LockError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Child, Command, Stdio};

    use super::*;

    struct Running(Child);

    impl Running {
        fn with_stdin(stdin: impl Into<Stdio>) -> Self {
            let mut command = Command::new("sh");
            // It says so once it runs: before, its descriptors are those of this process.
            command.args(["-c", "echo up; exec sleep 600 >/dev/null"]);
            let mut child = command.stdin(stdin).stdout(Stdio::piped()).spawn().unwrap();
            let mut said = String::new();
            child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            Self(child)
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn lock() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.run.lock");
        (dir, path)
    }

    #[test]
    fn the_lock_lives_exactly_as_long_as_the_process_it_was_handed_to() {
        let (_dir, path) = lock();
        assert!(holders(&path).is_empty());
        let running =
            Running::with_stdin(Identity::take(&path, Share::Alone).unwrap().into_stdin());
        let pid = running.0.id();
        assert_eq!((holders(&path), holds(pid, &path)), (vec![pid], Some(true)));
        assert_eq!(held_by(pid), Some(path.canonicalize().unwrap()));
        match Identity::take(&path, Share::Alone).unwrap_err() {
            LockError::Runs { holder, .. } => assert_eq!(holder, Some(pid)),
            other => panic!("{other}"),
        }
        drop(running);
        assert!(holders(&path).is_empty());
        Identity::take(&path, Share::Alone).unwrap();
    }

    #[test]
    fn who_only_has_the_file_open_holds_no_lock() {
        let (_dir, path) = lock();
        drop(Identity::take(&path, Share::Alone).unwrap());
        let reader = Running::with_stdin(File::open(&path).unwrap());
        assert_eq!((holders(&path), held_by(reader.0.id())), (Vec::new(), None));
        Identity::take(&path, Share::Alone).unwrap();
    }

    #[test]
    fn a_moved_file_is_the_same_lock_and_a_copy_is_another() {
        let (dir, path) = lock();
        let held = Identity::take(&path, Share::Together).unwrap().into_stdin();
        let running = Running::with_stdin(held);
        let pid = running.0.id();
        let (moved, copy) = (dir.path().join("moved.run.lock"), dir.path().join("copy.run.lock"));
        fs::copy(&path, &copy).unwrap();
        fs::rename(&path, &moved).unwrap();
        assert_eq!((holders(&moved), holders(&copy)), (vec![pid], Vec::new()));
        assert_eq!(holds(pid, &copy), Some(false));
        assert_eq!(holds(pid, &path), None, "there is no such file any more");
    }

    #[test]
    fn daemons_share_theirs() {
        let (_dir, path) = lock();
        let take = || Identity::take(&path, Share::Together).unwrap().into_stdin();
        let (one, two) = (Running::with_stdin(take()), Running::with_stdin(take()));
        let mut both = holders(&path);
        both.sort_unstable();
        let mut wanted = [one.0.id(), two.0.id()];
        wanted.sort_unstable();
        assert_eq!(both, wanted);
    }
}
