//! Locks between processes, held by the kernel and so freed by any death.
//!
//! A lock file is never removed: removing it would let two processes hold two different files of
//! the same name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::files;

/// Why a lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the reservation.
    #[error(
        "{path} is held by {who}, which is working on the same thing: wait for it to finish",
        path = path.display(),
        who = holder.map_or("another process".to_owned(), |pid| format!("process {pid}"))
    )]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The process that holds it, as far as it has said so.
        holder: Option<u32>,
    },
    /// A process that runs holds the lock for as long as it lives.
    #[error(
        "{who} runs on this root already, and holds {path}: `cotal down` stops what runs here",
        who = holder.map_or(
            "a process that cannot be seen from here (another container's, or another user's)"
                .to_owned(),
            |pid| format!("process {pid}")
        ),
        path = path.display()
    )]
    Runs {
        /// The lock file.
        path: PathBuf,
        /// The process, where it can be seen.
        holder: Option<u32>,
    },
    /// The operating system refused.
    #[error("cannot lock {path}: {source}", path = path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
}

/// A lock for the length of one short change to a file; waits for its turn.
#[derive(Debug)]
pub struct FileLock {
    _file: File,
}

impl FileLock {
    /// Waits until no other process holds `path`. Blocks the calling thread.
    ///
    /// # Errors
    /// When the lock file cannot be opened or locked.
    pub fn exclusive(path: &Path) -> Result<Self, LockError> {
        let file = open(path)?;
        file.lock().map_err(|source| LockError::Io { path: path.to_owned(), source })?;
        Ok(Self { _file: file })
    }
}

/// The exclusive right to an operation that takes a while, such as stopping a daemon (LIF-10).
///
/// It is freed when dropped and by the death of the process.
#[derive(Debug)]
pub struct Reservation {
    _file: File,
}

impl Reservation {
    /// Takes the reservation, or says who holds it.
    ///
    /// # Errors
    /// [`LockError::Held`] when another process (or another handle of this one) has it.
    pub fn try_acquire(path: &Path) -> Result<Self, LockError> {
        let mut file = open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Self::claimed(file)),
            Err(TryLockError::WouldBlock) => {
                Err(LockError::Held { path: path.to_owned(), holder: holder(&mut file) })
            }
            Err(TryLockError::Error(source)) => {
                Err(LockError::Io { path: path.to_owned(), source })
            }
        }
    }

    /// Whether a process holds the reservation, and which, as far as it has said so. A look never
    /// keeps anybody from taking it: where the file is free, it is let go within microseconds.
    ///
    /// # Errors
    /// When the lock file cannot be opened or asked.
    pub fn held(path: &Path) -> Result<Option<Option<u32>>, LockError> {
        if !path.exists() {
            return Ok(None);
        }
        let mut file = open(path)?;
        match file.try_lock_shared() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => Ok(Some(holder(&mut file))),
            Err(TryLockError::Error(source)) => {
                Err(LockError::Io { path: path.to_owned(), source })
            }
        }
    }

    /// Takes the reservation once its holder is done. Blocks the calling thread.
    ///
    /// # Errors
    /// When the lock file cannot be opened or locked.
    pub fn wait(path: &Path) -> Result<Self, LockError> {
        let file = open(path)?;
        file.lock().map_err(|source| LockError::Io { path: path.to_owned(), source })?;
        Ok(Self::claimed(file))
    }

    /// The number is for whoever is refused: on a full disk the lock holds without it.
    fn claimed(mut file: File) -> Self {
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Self { _file: file }
    }
}

/// A disk that takes no writes must not keep a process from holding a lock: to be locked, a file
/// that is there need not be writable.
pub(crate) fn open(path: &Path) -> Result<File, LockError> {
    let opened = std::fs::create_dir_all(files::parent(path)).and_then(|()| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        match files::open_nofollow(&mut options, path) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                files::open_nofollow(OpenOptions::new().read(true), path)
            }
            opened => opened,
        }
    });
    opened.map_err(|source| LockError::Io { path: path.to_owned(), source })
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lif_10_one_reservation_at_a_time_and_the_refusal_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("delivery.main.stop.lock");
        let held = Reservation::try_acquire(&path).unwrap();
        let refused = Reservation::try_acquire(&path).unwrap_err();
        let me = format!("process {}", std::process::id());
        assert!(refused.to_string().contains(&me), "{refused}");
        assert_eq!(Reservation::held(&path).unwrap(), Some(Some(std::process::id())));
        drop(held);
        assert_eq!(Reservation::held(&path).unwrap(), None);
        Reservation::try_acquire(&path).unwrap();
    }

    #[test]
    fn lif_10_a_waiter_gets_it_only_after_its_holder_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stop.lock");
        let held = Reservation::try_acquire(&path).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let _turn = Reservation::wait(&path).unwrap();
                done.load(std::sync::atomic::Ordering::SeqCst)
            });
            done.store(true, std::sync::atomic::Ordering::SeqCst);
            drop(held);
            assert!(waiter.join().unwrap());
        });
    }

    #[test]
    fn a_holder_that_is_killed_frees_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stop.lock");
        std::fs::write(&path, "").unwrap();
        let script = "exec 9<>\"$0\"; flock 9; echo held; exec sleep 60 >/dev/null";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script, path.to_str().unwrap()])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "held\n");
        assert!(matches!(
            Reservation::try_acquire(&path),
            Err(LockError::Held { holder: None, .. })
        ));
        child.kill().unwrap();
        child.wait().unwrap();
        Reservation::try_acquire(&path).unwrap();
    }
}
