//! Whether a directory takes writes, and how much more it takes.

use std::io::{self, Write as _};
use std::path::Path;

/// More than a block of any usual file system, so that room left in one proves nothing.
const PROOF_BYTES: usize = 64 * 1024;

/// Room on the disk of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What this user may still write.
    pub free: u64,
    /// What the disk holds in all.
    pub total: u64,
}

/// Proves that `dir` takes writes: by one that is on the disk when this returns, and then gone.
///
/// # Errors
/// Why it does not: a full disk, a read-only one, a missing permission.
pub fn prove_writable(dir: &Path) -> io::Result<()> {
    let proof = || {
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(dir)?;
        file.write_all(&[0; PROOF_BYTES])?;
        file.as_file().sync_all()?;
        file.close()
    };
    // The name of the temporary file helps nobody.
    proof().map_err(|error| error.kind().into())
}

/// How much room there is on the disk of `dir`.
///
/// # Errors
/// When the system does not tell.
pub fn room(dir: &Path) -> io::Result<Room> {
    let stat = rustix::fs::statvfs(dir)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(Room { free: bytes(stat.f_bavail), total: bytes(stat.f_blocks) })
}

/// The bytes that the files below `dir` hold; what cannot be read counts nothing.
#[must_use]
pub fn used_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => used_below(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_takes_writes_is_proven_and_left_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        prove_writable(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let room = room(dir.path()).unwrap();
        assert!(room.free > 0 && room.free <= room.total);
        assert!(prove_writable(&dir.path().join("missing")).is_err());
    }

    #[test]
    fn what_lies_below_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("deep")).unwrap();
        std::fs::write(dir.path().join("deep/one"), [0; 100]).unwrap();
        std::fs::write(dir.path().join("two"), [0; 11]).unwrap();
        assert_eq!(used_below(dir.path()), 111);
    }
}
