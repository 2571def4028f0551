//! Pid records: which process serves a space, and how far to believe it (LIF-11).
//!
//! The `.pid` file holds the bare number, so `kill $(cat …)` works. Beside it stand the moment at
//! which its process started, the lock under which records change, and the lock that the process
//! itself holds for as long as it lives ([`crate::identity`]). A record is disbelieved only on
//! proof; whatever cannot be read proves nothing. A process whose record is missing or damaged is
//! found by its lock.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use cotal_wire::Space;

use crate::files::{self, FileError, Privacy};
use crate::identity;
use crate::lock::{FileLock, LockError};
use crate::process::{self, Birth};

/// Why a record could not be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The guard could not be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Which long-running command a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// `cotal deliver`.
    Delivery,
    /// `cotal manage`.
    Manager,
}

impl Component {
    /// The subcommand that the component's command line names.
    #[must_use]
    pub fn subcommand(self) -> &'static str {
        match self {
            Self::Delivery => "deliver",
            Self::Manager => "manage",
        }
    }
}

/// What a record is worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordState {
    /// There is no record.
    Absent,
    /// The process lives and nothing speaks against it being the component.
    Live {
        /// Its number.
        pid: u32,
    },
    /// The record is provably not of a living component: clear it, signal nobody.
    Stale(Stale),
}

/// The proof that a record is stale.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// The file does not hold a process number.
    #[error("the record holds no process number")]
    Garbled,
    /// No such process runs.
    #[error("process {0} is gone")]
    Gone(u32),
    /// A process that started at another moment has the number now.
    #[error("process {0} started after the record was written")]
    Reused(u32),
    /// The process is another program, or the component of another space.
    #[error("process {0} is another program")]
    OtherProgram(u32),
    /// The process is the component of another root: the record was copied.
    #[error("process {0} runs on another root")]
    OtherRoot(u32),
}

/// The pid record of one component of one space.
#[derive(Debug, Clone)]
pub struct PidFile {
    path: PathBuf,
    component: Component,
    space: Space,
}

impl PidFile {
    /// The record at `path`; nothing is touched yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, component: Component, space: &Space) -> Self {
        Self { path: path.into(), component, space: space.clone() }
    }

    /// The record's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lock that the component's process holds for as long as it lives.
    #[must_use]
    pub fn run_lock(&self) -> PathBuf {
        self.path.with_extension("run.lock")
    }

    /// The component's processes on this root: the recorded one first, if it is believed, then
    /// every other one that holds the lock.
    ///
    /// # Errors
    /// When the record cannot be read and no process holds the lock.
    pub fn processes(&self) -> Result<Vec<u32>, RecordError> {
        let holders = identity::holders(&self.run_lock());
        let recorded = match self.verify() {
            Ok(RecordState::Live { pid }) => Some(pid),
            Ok(_) => None,
            Err(_) if !holders.is_empty() => None,
            Err(error) => return Err(error),
        };
        let others = holders.into_iter().filter(|pid| Some(*pid) != recorded);
        Ok(recorded.into_iter().chain(others).collect())
    }

    /// Records `pid`; a daemon does this about itself once it holds the lease.
    ///
    /// # Errors
    /// When the files cannot be locked or written.
    pub fn write(&self, pid: u32) -> Result<(), RecordError> {
        let _held = FileLock::exclusive(&self.lock_path())?;
        match process::birth(pid) {
            Some(birth) => {
                let text = format!("{pid} {} {}\n", birth.ticks, birth.boot);
                files::replace(&self.birth_path(), text.as_bytes(), Privacy::Public)?;
            }
            None => drop(files::remove(&self.birth_path())?),
        }
        Ok(files::replace(&self.path, format!("{pid}\n").as_bytes(), Privacy::Public)?)
    }

    /// Removes the record if it still names `pid`; tells whether it did. A successor's stays.
    ///
    /// # Errors
    /// When the files cannot be locked, read or removed.
    pub fn remove_if(&self, pid: u32) -> Result<bool, RecordError> {
        let _held = FileLock::exclusive(&self.lock_path())?;
        match self.recorded()? {
            Some(Some(recorded)) if recorded == pid => self.clear().map(|()| true),
            _ => Ok(false),
        }
    }

    /// Removes the record if it is stale, judged again under the lock; tells whether it was.
    ///
    /// # Errors
    /// When the files cannot be locked, read or removed.
    pub fn remove_if_stale(&self) -> Result<bool, RecordError> {
        let _held = FileLock::exclusive(&self.lock_path())?;
        match self.verify()? {
            RecordState::Stale(_) => self.clear().map(|()| true),
            RecordState::Absent | RecordState::Live { .. } => Ok(false),
        }
    }

    /// Removes the record if it provably names no process of the component and never did, judged
    /// again under the lock; tells whether it was. One whose process is gone stays: it is what is
    /// known of that process.
    ///
    /// # Errors
    /// When the files cannot be locked, read or removed.
    pub fn remove_if_foreign(&self) -> Result<bool, RecordError> {
        let _held = FileLock::exclusive(&self.lock_path())?;
        match self.verify()? {
            RecordState::Stale(Stale::Garbled | Stale::OtherProgram(_) | Stale::OtherRoot(_)) => {
                self.clear().map(|()| true)
            }
            RecordState::Stale(Stale::Gone(_) | Stale::Reused(_))
            | RecordState::Absent
            | RecordState::Live { .. } => Ok(false),
        }
    }

    /// Judges the record.
    ///
    /// # Errors
    /// When the record exists and cannot be read.
    pub fn verify(&self) -> Result<RecordState, RecordError> {
        let pid = match self.recorded()? {
            None => return Ok(RecordState::Absent),
            Some(None) => return Ok(RecordState::Stale(Stale::Garbled)),
            Some(Some(pid)) => pid,
        };
        if !process::is_alive(pid) {
            return Ok(RecordState::Stale(Stale::Gone(pid)));
        }
        if let (Some(then), Some(now)) = (self.recorded_birth(pid), process::birth(pid))
            && then != now
        {
            return Ok(RecordState::Stale(Stale::Reused(pid)));
        }
        let Some(args) = process::command_line(pid) else {
            return Ok(RecordState::Live { pid });
        };
        if !names(&args, self.component, &self.space) {
            return Ok(RecordState::Stale(Stale::OtherProgram(pid)));
        }
        if self.is_of_another_root(pid, &args) {
            return Ok(RecordState::Stale(Stale::OtherRoot(pid)));
        }
        Ok(RecordState::Live { pid })
    }

    /// Whether a process of the component provably runs on another root than this record's: it
    /// holds the lock of another one, or it holds none and its command line names another root.
    fn is_of_another_root(&self, pid: u32, args: &[String]) -> bool {
        if identity::holds(pid, &self.run_lock()) == Some(true) {
            return false;
        }
        if identity::held_by(pid).is_some() {
            return true;
        }
        let own = self.path.parent().and_then(Path::parent).map(Path::canonicalize);
        // A path that leads nowhere, or is relative to a place that nobody knows, proves nothing.
        let named = named(args, "--root").map(Path::new).filter(|path| path.is_absolute());
        match (own, named.map(Path::canonicalize)) {
            (Some(Ok(own)), Some(Ok(named))) => own != named,
            _ => false,
        }
    }

    /// `None`: no record; `Some(None)`: a record without a number.
    fn recorded(&self) -> Result<Option<Option<u32>>, FileError> {
        match files::read(&self.path) {
            Ok(text) => Ok(text.map(|t| t.trim().parse().ok().filter(|pid| *pid != 0))),
            // What is no text holds no number either.
            Err(FileError::Io { source, .. }) if source.kind() == ErrorKind::InvalidData => {
                Ok(Some(None))
            }
            Err(error) => Err(error),
        }
    }

    /// The birth written with this record; that of another number says nothing about this one.
    fn recorded_birth(&self, pid: u32) -> Option<Birth> {
        let text = files::read(&self.birth_path()).ok()??;
        let mut fields = text.split_ascii_whitespace();
        let of: u32 = fields.next()?.parse().ok()?;
        let ticks = fields.next()?.parse().ok()?;
        let boot = fields.next()?.to_owned();
        (of == pid && fields.next().is_none()).then_some(Birth { boot, ticks })
    }

    /// The number goes first: a birth without a number is nothing, the reverse would be believed.
    fn clear(&self) -> Result<(), RecordError> {
        files::remove(&self.path)?;
        files::remove(&self.birth_path())?;
        Ok(())
    }

    fn birth_path(&self) -> PathBuf {
        self.path.with_extension("pid.birth")
    }

    fn lock_path(&self) -> PathBuf {
        self.path.with_extension("pid.lock")
    }
}

/// Whether a command line is that of the component, for this space as far as it names one.
///
/// A multi-space host (`--spaces`) is nobody's daemon here: stopping it would stop other spaces.
fn names(args: &[String], component: Component, space: &Space) -> bool {
    let Some(program) = args.iter().position(|arg| is_cotal(arg)) else {
        return false;
    };
    let after = &args[program + 1..];
    if !after.iter().any(|arg| arg == component.subcommand()) {
        return false;
    }
    if after.iter().any(|arg| arg == "--spaces" || arg.starts_with("--spaces=")) {
        return false;
    }
    named(after, "--space").is_none_or(|named| Space::from_name(named).as_ref() == Ok(space))
}

fn is_cotal(arg: &str) -> bool {
    Path::new(arg).file_name().is_some_and(|name| name.to_string_lossy().starts_with("cotal"))
}

/// The value of an option on a command line.
fn named<'a>(args: &'a [String], option: &str) -> Option<&'a str> {
    let at = args.iter().position(|arg| arg == option);
    let next = at.and_then(|i| args.get(i + 1)).map(String::as_str);
    let joined = |arg: &'a String| arg.strip_prefix(option)?.strip_prefix('=');
    next.or_else(|| args.iter().find_map(joined))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use super::*;
    use crate::{Identity, Share};

    struct Running(Child);

    impl Running {
        /// A process whose command line is exactly `args`; it only sleeps.
        fn with(args: &[&str]) -> Self {
            let mut command = Command::new("sh");
            command.arg0(args[0]).args(["-c", "read _"]).args(&args[1..]);
            let stdin = std::process::Stdio::piped();
            let running = Self(command.stdin(stdin).spawn().unwrap());
            process::tests::wait_for_command_line(running.pid());
            running
        }

        /// The same, with a lock on its standard input.
        fn locked(args: &[&str], stdin: std::fs::File) -> Self {
            let mut command = Command::new("sh");
            command.arg0(args[0]).args(["-c", "kill -STOP $$"]).args(&args[1..]);
            let running = Self(command.stdin(stdin).spawn().unwrap());
            process::tests::wait_for_command_line(running.pid());
            running
        }

        fn pid(&self) -> u32 {
            self.0.id()
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn record() -> (tempfile::TempDir, PidFile) {
        let dir = tempfile::tempdir().unwrap();
        let space = Space::parse("main").unwrap();
        let file = PidFile::new(dir.path().join("delivery.main.pid"), Component::Delivery, &space);
        (dir, file)
    }

    #[test]
    fn lif_11_a_living_daemon_is_believed_and_the_file_is_its_bare_number() {
        let (_dir, file) = record();
        assert_eq!(file.verify().unwrap(), RecordState::Absent);
        let daemon = Running::with(&["cotal", "deliver", "--space", "main"]);
        file.write(daemon.pid()).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), format!("{}\n", daemon.pid()));
        assert_eq!(file.verify().unwrap(), RecordState::Live { pid: daemon.pid() });
        assert!(!file.remove_if_stale().unwrap());
    }

    #[test]
    fn lif_11_a_dead_process_makes_the_record_stale_and_it_is_cleared() {
        let (dir, file) = record();
        let daemon = Running::with(&["cotal", "deliver"]);
        let pid = daemon.pid();
        file.write(pid).unwrap();
        drop(daemon);
        assert_eq!(file.verify().unwrap(), RecordState::Stale(Stale::Gone(pid)));
        assert!(file.remove_if_stale().unwrap());
        assert_eq!(file.verify().unwrap(), RecordState::Absent);
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "only the lock stays: {left:?}");
    }

    #[test]
    fn lif_11_only_what_never_was_a_daemons_is_foreign() {
        let (_dir, file) = record();
        let daemon = Running::with(&["cotal", "deliver"]);
        let pid = daemon.pid();
        file.write(pid).unwrap();
        assert!(!file.remove_if_foreign().unwrap());
        drop(daemon);
        assert!(!file.remove_if_foreign().unwrap());
        assert_eq!(file.verify().unwrap(), RecordState::Stale(Stale::Gone(pid)));

        let other = Running::with(&["vim", "notes"]);
        file.write(other.pid()).unwrap();
        assert!(file.remove_if_foreign().unwrap());
        std::fs::write(file.path(), "garbage").unwrap();
        assert!(file.remove_if_foreign().unwrap());
        assert_eq!(file.verify().unwrap(), RecordState::Absent);
    }

    #[test]
    fn lif_11_another_program_is_never_taken_for_the_daemon() {
        for args in [
            &["vim", "notes"][..],
            &["cotal", "up", "--space", "main"],
            &["cotal", "deliver", "--spaces", "host.json"],
            &["cotal", "deliver", "--space", "other"],
            &["cotal", "deliver", "--space=other"],
            &["deliver", "main"],
        ] {
            let (_dir, file) = record();
            let other = Running::with(args);
            file.write(other.pid()).unwrap();
            let wanted = RecordState::Stale(Stale::OtherProgram(other.pid()));
            assert_eq!(file.verify().unwrap(), wanted, "{args:?}");
        }
    }

    #[test]
    fn lif_11_a_reused_number_is_seen_even_when_the_new_process_is_a_daemon() {
        let (_dir, file) = record();
        let daemon = Running::with(&["cotal", "deliver", "--space", "main"]);
        let pid = daemon.pid();
        file.write(pid).unwrap();
        let mut birth = process::birth(pid).unwrap();
        birth.ticks -= 1;
        let text = format!("{pid} {} {}\n", birth.ticks, birth.boot);
        std::fs::write(file.birth_path(), text).unwrap();
        assert_eq!(file.verify().unwrap(), RecordState::Stale(Stale::Reused(pid)));
    }

    #[test]
    fn lif_11_what_cannot_be_read_proves_nothing() {
        let (_dir, file) = record();
        let daemon = Running::with(&["cotal", "deliver"]);
        let live = RecordState::Live { pid: daemon.pid() };
        std::fs::write(file.path(), daemon.pid().to_string()).unwrap();
        assert_eq!(file.verify().unwrap(), live, "a record written by hand");
        for text in ["", "garbage", "1 2 3", &format!("{} x y", daemon.pid())] {
            std::fs::write(file.birth_path(), text).unwrap();
            assert_eq!(file.verify().unwrap(), live, "{text:?}");
        }
    }

    #[test]
    fn lif_11_an_unreadable_command_line_is_believed() {
        let (_dir, file) = record();
        let mut command = Command::new("cat");
        command.arg0("").stdin(std::process::Stdio::piped());
        let nameless = Running(command.spawn().unwrap());
        let line = format!("/proc/{}/cmdline", nameless.pid());
        while std::fs::read(&line).unwrap() != [0] {
            std::thread::yield_now();
        }
        file.write(nameless.pid()).unwrap();
        assert_eq!(file.verify().unwrap(), RecordState::Live { pid: nameless.pid() });
    }

    #[test]
    fn lif_11_a_process_of_another_root_is_not_believed_and_the_own_one_is_found_without_a_record()
    {
        let (dir, file) = record();
        let other = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().parent().unwrap(), other.path());
        for (root, wanted) in [(here, true), (there, false), (Path::new("/nowhere/at/all"), true)] {
            let root = root.to_str().unwrap();
            let daemon = Running::with(&["cotal", "deliver", "--root", root]);
            file.write(daemon.pid()).unwrap();
            let live = file.verify().unwrap() == RecordState::Live { pid: daemon.pid() };
            assert_eq!(live, wanted, "{root}");
        }
        let lock = |path: &Path| Identity::take(path, Share::Together).unwrap().into_stdin();
        let copied = other.path().join("delivery.main.run.lock");
        let copied = Running::locked(&["cotal", "deliver"], lock(&copied));
        file.write(copied.pid()).unwrap();
        let wanted = RecordState::Stale(Stale::OtherRoot(copied.pid()));
        assert_eq!(file.verify().unwrap(), wanted);
        assert!(file.processes().unwrap().is_empty());
        let own = Running::locked(&["cotal", "deliver"], lock(&file.run_lock()));
        assert_eq!(file.processes().unwrap(), [own.pid()]);
        file.write(own.pid()).unwrap();
        assert_eq!(file.processes().unwrap(), [own.pid()]);
    }

    #[test]
    fn lif_11_a_record_without_a_number_is_stale() {
        for text in ["", "x", "0", "-1", "1 2"] {
            let (_dir, file) = record();
            std::fs::write(file.path(), text).unwrap();
            assert_eq!(file.verify().unwrap(), RecordState::Stale(Stale::Garbled), "{text:?}");
        }
    }

    #[test]
    fn lif_11_only_the_own_record_is_removed() {
        let (_dir, file) = record();
        let (old, new) =
            (Running::with(&["cotal", "deliver"]), Running::with(&["cotal", "deliver"]));
        file.write(old.pid()).unwrap();
        file.write(new.pid()).unwrap();
        assert!(!file.remove_if(old.pid()).unwrap());
        assert_eq!(file.verify().unwrap(), RecordState::Live { pid: new.pid() });
        assert!(file.remove_if(new.pid()).unwrap());
        assert!(!file.remove_if(new.pid()).unwrap());
    }
}
