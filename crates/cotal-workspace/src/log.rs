//! A log file that rotates by size.
//!
//! Several processes may append to one log: the daemon, a second one that is refused, and a
//! launcher that redirected their standard output. So the path is looked at before every write:
//! whoever finds the file too large moves it to `.1`, and whoever finds it moved opens the new
//! one. A write is never split over two files.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::files;

/// The size at which a daemon's log rotates.
pub const DEFAULT_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Appends to a file and moves it to `<path>.1` before it would exceed its limit.
#[derive(Debug)]
pub struct RotatingLog {
    path: PathBuf,
    max_bytes: u64,
    file: File,
}

impl RotatingLog {
    /// Opens the log for appending; its directory must exist.
    ///
    /// # Errors
    /// When it cannot be opened, or is a symbolic link.
    pub fn open(path: impl Into<PathBuf>, max_bytes: u64) -> io::Result<Self> {
        let path = path.into();
        let file = open(&path)?;
        Ok(Self { path, max_bytes, file })
    }

    /// Where the log's previous part is kept.
    #[must_use]
    pub fn rotated_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".1");
        path.into()
    }

    /// Makes `self.file` the file at the path, with room for `incoming` more bytes.
    fn prepare(&mut self, incoming: usize) -> io::Result<()> {
        let Some(at_path) = self.current()? else {
            return self.reopen();
        };
        if at_path.len() == 0 || at_path.len() + incoming as u64 <= self.max_bytes {
            return Ok(());
        }
        self.file.lock()?;
        // The lock decides who moves the file; whoever waited for it finds it moved.
        if self.current()?.is_some() {
            fs::rename(&self.path, self.rotated_path())?;
        }
        self.reopen()
    }

    /// The file's metadata while the path still leads to it.
    fn current(&self) -> io::Result<Option<Metadata>> {
        let ours = self.file.metadata()?;
        match fs::symlink_metadata(&self.path) {
            Ok(meta) if is_same(&meta, &ours) => Ok(Some(meta)),
            Ok(_) => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Standard output and error follow when they were redirected to the file that moved, so
    /// that a panic's message stands in the current log.
    fn reopen(&mut self) -> io::Result<()> {
        let old = std::mem::replace(&mut self.file, open(&self.path)?);
        // A child may have inherited the old file, and with it a lock that nobody else would free.
        old.unlock()?;
        let moved = old.metadata()?;
        let leads_there = |fd: io::Result<File>| {
            fd.and_then(|f| f.metadata()).is_ok_and(|meta| is_same(&meta, &moved))
        };
        if leads_there(duplicate(io::stdout())) {
            rustix::stdio::dup2_stdout(&self.file)?;
        }
        if leads_there(duplicate(io::stderr())) {
            rustix::stdio::dup2_stderr(&self.file)?;
        }
        Ok(())
    }
}

impl Write for RotatingLog {
    /// Writes the whole buffer to one file.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.prepare(buf.len())?;
        self.file.write_all(buf)?;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn open(path: &Path) -> io::Result<File> {
    files::open_nofollow(OpenOptions::new().append(true).create(true).mode(0o600), path)
}

fn duplicate(stream: impl std::os::fd::AsFd) -> io::Result<File> {
    Ok(File::from(stream.as_fd().try_clone_to_owned()?))
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn lif_7_it_rotates_at_its_size_and_keeps_the_previous_part() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("delivery.main.log");
        let mut log = RotatingLog::open(&path, 10).unwrap();
        for line in ["one\n", "two\n", "three\n", "four\n", "a line over the limit\n", "end\n"] {
            log.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(
            (text(&path).as_str(), text(&log.rotated_path()).as_str()),
            ("end\n", "a line over the limit\n")
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn it_continues_an_existing_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        fs::write(&path, "before\n").unwrap();
        let mut log = RotatingLog::open(&path, 100).unwrap();
        log.write_all(b"after\n").unwrap();
        assert_eq!(text(&path), "before\nafter\n");
    }

    #[test]
    fn writers_follow_each_others_rotation_and_lose_no_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let mut first = RotatingLog::open(&path, 8).unwrap();
        let mut second = RotatingLog::open(&path, 8).unwrap();
        first.write_all(b"aaaaaa\n").unwrap();
        second.write_all(b"bbbbbb\n").unwrap();
        assert_eq!(
            (text(&path).as_str(), text(&first.rotated_path()).as_str()),
            ("bbbbbb\n", "aaaaaa\n")
        );
        first.write_all(b"c").unwrap();
        assert_eq!(text(&path), "bbbbbb\nc");
    }

    #[test]
    fn a_removed_log_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let mut log = RotatingLog::open(&path, 100).unwrap();
        fs::remove_file(&path).unwrap();
        log.write_all(b"x\n").unwrap();
        assert_eq!(text(&path), "x\n");
    }

    #[test]
    fn concurrent_writers_keep_every_line_of_the_last_two_parts_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let log = RotatingLog::open(&path, 4096).unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let mut log = RotatingLog::open(&path, 4096).unwrap();
                scope.spawn(move || {
                    for n in 0..500 {
                        log.write_all(format!("writer {writer} line {n:04}\n").as_bytes()).unwrap();
                    }
                });
            }
        });
        let both = text(&log.rotated_path()) + &text(&path);
        assert!(both.lines().all(|l| l.len() == "writer 0 line 0000".len()), "{both}");
        assert!(text(&log.rotated_path()).len() > 3000, "a part is moved only when it is full");
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &path).unwrap();
        assert!(RotatingLog::open(&path, 10).is_err());
    }
}
