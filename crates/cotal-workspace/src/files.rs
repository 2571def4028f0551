//! Writes by rename and the permissions of private directories.
//!
//! Invariant: after a crash a path holds its old content or its new content, in full, and the
//! content is on the disk before the name points to it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::{getegid, geteuid};
use tempfile::NamedTempFile;

/// No file of a root is larger; a larger one is not ours, so it is not read into memory.
const MAX_FILE: u64 = 4 * 1024 * 1024;

/// In a directory with this bit nobody may rename or remove what is another's.
const STICKY: u32 = 0o1000;

/// Why a file of the root could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused an operation.
    #[error("cannot {operation} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The path is a symbolic link, which could lead a secret out of the root.
    #[error("{path} is a symbolic link: replace it with a plain file or directory", path = .0.display())]
    Symlink(PathBuf),
    /// Another user owns it, and so could change what is trusted here.
    #[error(
        "{path} belongs to user {owner}, who could change what this mesh trusts: run this as that \
         user, or use a root whose directories and files are yours",
        path = path.display()
    )]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Other users may write it.
    #[error(
        "{path} may be written by other users, who could change what this mesh trusts: run `chmod \
         go-w` on it, or use a root elsewhere",
        path = .0.display()
    )]
    WritableByOthers(PathBuf),
    /// A directory was expected.
    #[error("{path} is not a directory: move it away", path = .0.display())]
    NotADirectory(PathBuf),
    /// The file exists and the write was to create it.
    #[error("{path} exists already and is not overwritten", path = .0.display())]
    Exists(PathBuf),
    /// The file is larger than any file of a root.
    #[error("{path} is larger than 4 MiB, so it is not a file of a workspace root", path = .0.display())]
    TooLarge(PathBuf),
}

impl FileError {
    pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { operation, path, source }
    }
}

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privacy {
    /// Mode `0600`; the parent directory is made `0700`.
    Secret,
    /// Mode `0644`; the parent directory is created when missing and otherwise left alone.
    Public,
}

impl Privacy {
    fn file_mode(self) -> u32 {
        match self {
            Self::Secret => 0o600,
            Self::Public => 0o644,
        }
    }
}

/// Replaces the file at `path`, or creates it.
///
/// # Errors
/// When `path` or its parent is a symbolic link, or the system refuses.
pub fn replace(path: &Path, content: &[u8], privacy: Privacy) -> Result<(), FileError> {
    refuse_symlink(path)?;
    let temp = staged(path, content, privacy)?;
    temp.persist(path).map_err(|e| FileError::io("rename a new file onto", path)(e.error))?;
    sync_dir(parent(path))
}

/// Creates the file at `path` and never overwrites one, also when two processes try at once.
///
/// # Errors
/// [`FileError::Exists`] when there is one; otherwise as [`replace`].
pub fn create(path: &Path, content: &[u8], privacy: Privacy) -> Result<(), FileError> {
    refuse_symlink(path)?;
    let temp = staged(path, content, privacy)?;
    temp.persist_noclobber(path).map_err(|e| match e.error.kind() {
        io::ErrorKind::AlreadyExists => FileError::Exists(path.to_owned()),
        _ => FileError::io("rename a new file onto", path)(e.error),
    })?;
    sync_dir(parent(path))
}

/// Reads a whole file without following a symbolic link; `None` when there is none.
///
/// # Errors
/// When it is a link, too large, not UTF-8 or unreadable.
pub fn read(path: &Path) -> Result<Option<String>, FileError> {
    refuse_symlink(path)?;
    let file = match open_nofollow(OpenOptions::new().read(true), path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(FileError::io("open", path)(e)),
    };
    let meta = file.metadata().map_err(FileError::io("inspect", path))?;
    refuse_foreign(path, &meta)?;
    let mut text = String::new();
    let length =
        file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(FileError::io("read", path))?;
    if length as u64 > MAX_FILE {
        return Err(FileError::TooLarge(path.to_owned()));
    }
    Ok(Some(text))
}

/// Removes a file; tells whether there was one.
///
/// # Errors
/// When the system refuses.
pub fn remove(path: &Path) -> Result<bool, FileError> {
    match fs::remove_file(path) {
        Ok(()) => sync_dir(parent(path)).map(|()| true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(FileError::io("remove", path)(e)),
    }
}

/// Makes `dir` and its missing ancestors with mode `0700`, and takes group and other out of an
/// existing `dir`.
///
/// # Errors
/// When it is a symbolic link or another kind of file, or the system refuses.
pub fn private_dir(dir: &Path) -> Result<(), FileError> {
    make_dir(dir, 0o700)?;
    let meta = fs::metadata(dir).map_err(FileError::io("inspect", dir))?;
    refuse_owner(dir, &meta)?;
    if meta.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(dir, Permissions::from_mode(0o700))
            .map_err(FileError::io("restrict the mode of", dir))?;
    }
    Ok(())
}

/// Refuses a directory that somebody else could change: itself, or by renaming one above it. One
/// that everybody may write is safe only where nobody may rename what is another's (`/tmp`).
pub(crate) fn refuse_foreign_path(dir: &Path) -> Result<(), FileError> {
    for dir in dir.ancestors() {
        let meta = fs::symlink_metadata(dir).map_err(FileError::io("inspect", dir))?;
        refuse_owner(dir, &meta)?;
        if meta.permissions().mode() & STICKY == 0 {
            refuse_writable(dir, &meta)?;
        }
    }
    Ok(())
}

/// Refuses links, and directories that somebody else owns or may write, at and below `dir`; `depth`
/// levels of it. Whatever lies in a directory that is one's own alone was put there by oneself.
pub(crate) fn refuse_foreign_tree(dir: &Path, depth: usize) -> Result<(), FileError> {
    refuse_symlink(dir)?;
    let meta = fs::symlink_metadata(dir).map_err(FileError::io("inspect", dir))?;
    refuse_foreign(dir, &meta)?;
    for entry in fs::read_dir(dir).map_err(FileError::io("list", dir))? {
        let entry = entry.map_err(FileError::io("list", dir))?;
        let kind = match entry.file_type() {
            Ok(kind) => kind,
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(FileError::io("inspect", &entry.path())(error)),
        };
        if kind.is_symlink() {
            return Err(FileError::Symlink(entry.path()));
        }
        if kind.is_dir() && depth > 0 {
            refuse_foreign_tree(&entry.path(), depth - 1)?;
        }
    }
    Ok(())
}

fn refuse_foreign(path: &Path, meta: &fs::Metadata) -> Result<(), FileError> {
    refuse_owner(path, meta)?;
    refuse_writable(path, meta)
}

/// The superuser can change everything anyway, so what is theirs is no more foreign than the
/// kernel.
fn refuse_owner(path: &Path, meta: &fs::Metadata) -> Result<(), FileError> {
    let owner = meta.uid();
    if owner == 0 || owner == geteuid().as_raw() {
        return Ok(());
    }
    Err(FileError::Foreign { path: path.to_owned(), owner })
}

/// A group of one's own is oneself, as most systems set users up.
fn refuse_writable(path: &Path, meta: &fs::Metadata) -> Result<(), FileError> {
    let mode = meta.permissions().mode();
    let own_group = meta.gid() == 0 || meta.gid() == getegid().as_raw();
    if mode & 0o002 != 0 || (mode & 0o020 != 0 && !own_group) {
        return Err(FileError::WritableByOthers(path.to_owned()));
    }
    Ok(())
}

pub(crate) fn refuse_symlink(path: &Path) -> Result<(), FileError> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_symlink() => Err(FileError::Symlink(path.to_owned())),
        Ok(_) => Ok(()),
        // A file in a parent's place is not a link either; whoever goes on will trip over it.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(())
        }
        Err(e) => Err(FileError::io("inspect", path)(e)),
    }
}

/// Opens with `O_NOFOLLOW`, so a link put there after [`refuse_symlink`] is refused as well.
///
/// # Errors
/// When it is a link, or the system refuses.
pub fn open_nofollow(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn make_dir(dir: &Path, mode: u32) -> Result<(), FileError> {
    refuse_symlink(dir)?;
    DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => FileError::NotADirectory(dir.to_owned()),
        _ => FileError::io("create the directory", dir)(e),
    })
}

/// A complete, synced temporary file beside `path`.
fn staged(path: &Path, content: &[u8], privacy: Privacy) -> Result<NamedTempFile, FileError> {
    let dir = parent(path);
    match privacy {
        Privacy::Secret => private_dir(dir)?,
        Privacy::Public => make_dir(dir, 0o755)?,
    }
    let mut temp = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(Permissions::from_mode(privacy.file_mode()))
        .tempfile_in(dir)
        .map_err(FileError::io("create a temporary file in", dir))?;
    temp.write_all(content)
        .and_then(|()| temp.as_file().sync_all())
        .map_err(FileError::io("write", temp.path()))?;
    Ok(temp)
}

fn sync_dir(dir: &Path) -> Result<(), FileError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(FileError::io("sync the directory", dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_secret_is_0600_inside_0700_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("auth/operator.seed");
        replace(&path, b"one", Privacy::Secret).unwrap();
        replace(&path, b"two", Privacy::Secret).unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("two"));
        assert_eq!((mode(&path), mode(parent(&path))), (0o600, 0o700));
        assert_eq!(fs::read_dir(parent(&path)).unwrap().count(), 1);
    }

    #[test]
    fn a_loose_directory_and_a_loose_file_are_tightened_by_a_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("seg/x.creds");
        fs::create_dir(parent(&path)).unwrap();
        fs::set_permissions(parent(&path), Permissions::from_mode(0o755)).unwrap();
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        replace(&path, b"new", Privacy::Secret).unwrap();
        assert_eq!((mode(&path), mode(parent(&path))), (0o600, 0o700));
    }

    #[test]
    fn links_are_refused_for_reading_writing_and_as_the_parent() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        fs::write(&target, "precious").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(matches!(replace(&link, b"x", Privacy::Secret), Err(FileError::Symlink(_))));
        assert!(matches!(create(&link, b"x", Privacy::Public), Err(FileError::Symlink(_))));
        assert!(matches!(read(&link), Err(FileError::Symlink(_))));
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");

        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        let linked_dir = dir.path().join("auth");
        std::os::unix::fs::symlink(&elsewhere, &linked_dir).unwrap();
        let inside = linked_dir.join("operator.seed");
        assert!(matches!(replace(&inside, b"x", Privacy::Secret), Err(FileError::Symlink(_))));
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn create_never_overwrites() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        create(&path, b"first", Privacy::Public).unwrap();
        assert!(matches!(create(&path, b"second", Privacy::Public), Err(FileError::Exists(_))));
        assert_eq!(read(&path).unwrap().as_deref(), Some("first"));
    }

    #[test]
    fn what_others_may_write_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        replace(&path, b"x", Privacy::Public).unwrap();
        for (mode, wanted) in [(0o666, false), (0o644, true)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path).is_ok(), wanted, "{mode:o}");
        }
    }

    #[test]
    fn absent_is_none_and_removal_says_what_it_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        assert_eq!(read(&path).unwrap(), None);
        assert!(!remove(&path).unwrap());
        replace(&path, b"", Privacy::Public).unwrap();
        assert!(remove(&path).unwrap());
    }

    #[test]
    fn a_file_where_a_directory_should_be_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("auth"), "").unwrap();
        let error = replace(&dir.path().join("auth/x"), b"", Privacy::Secret).unwrap_err();
        assert!(error.to_string().contains("is not a directory"), "{error}");
    }
}
