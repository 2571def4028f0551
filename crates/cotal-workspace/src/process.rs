//! What can be known about another process without its help.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// A moment that tells one process from a later one with the same number.
///
/// The clock ticks count from the boot that `boot` names, so no change of the wall clock and no
/// restart of the machine makes two different processes look alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Birth {
    /// The kernel's id of this boot.
    pub boot: String,
    /// Clock ticks between that boot and the start of the process.
    pub ticks: u64,
}

/// Whether a process with this number runs; one that has died and waits to be reaped does not.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    match test_kill_process(raw) {
        Ok(()) | Err(Errno::PERM) => !matches!(stat(pid), Some((b'Z' | b'X', _))),
        Err(_) => false,
    }
}

/// When the process started; `None` where the system does not tell.
#[must_use]
pub fn birth(pid: u32) -> Option<Birth> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let (_, ticks) = stat(pid)?;
    Some(Birth { boot: boot.trim().to_owned(), ticks })
}

/// The process's arguments, its program first; `None` where they cannot be read.
///
/// An empty command line counts as unreadable: a process is briefly without one while it starts.
#[must_use]
pub fn command_line(pid: u32) -> Option<Vec<String>> {
    let raw = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = raw.strip_suffix(b"\0").unwrap_or(&raw);
    if text.is_empty() {
        return None;
    }
    Some(text.split(|b| *b == 0).map(|arg| String::from_utf8_lossy(arg).into_owned()).collect())
}

/// A process that has a file below `dir` open, as far as this user may look at the others.
#[must_use]
pub fn with_open_file_below(dir: &Path) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(|pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|file| file.starts_with(dir))
    })
}

/// State and start time of `/proc/<pid>/stat`. The program's name stands in parentheses and may
/// itself hold spaces and parentheses, so fields are counted from the last one.
fn stat(pid: u32) -> Option<(u8, u64)> {
    const START_AFTER_STATE: usize = 19;
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    Some((state, fields.nth(START_AFTER_STATE - 1)?.parse().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    /// A spawned process may have no command line for the first moments of its life.
    pub(crate) fn wait_for_command_line(pid: u32) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match command_line(pid) {
                Some(args) => return args,
                None => assert!(Instant::now() < deadline, "process {pid} has no command line"),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_running_process_has_a_birth_and_a_command_line() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        assert!(is_alive(pid));
        assert_eq!(wait_for_command_line(pid).last().unwrap(), "60");
        let (mine, theirs) = (birth(std::process::id()).unwrap(), birth(pid).unwrap());
        assert_eq!(mine.boot, theirs.boot);
        assert!(mine.ticks <= theirs.ticks && mine.ticks > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_alive(pid));
        assert_eq!(birth(pid), None);
    }

    #[test]
    fn a_process_that_waits_to_be_reaped_is_dead() {
        let mut child = Command::new("true").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_alive(pid) && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(!is_alive(pid));
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn who_has_a_file_below_a_directory_open_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().canonicalize().unwrap().join("jetstream");
        fs::create_dir(&below).unwrap();
        assert_eq!(with_open_file_below(&below), None);
        let file = fs::File::create(below.join("1.blk")).unwrap();
        assert_eq!(with_open_file_below(&below), Some(std::process::id()));
        drop(file);
        assert_eq!(with_open_file_below(&below), None);
    }

    #[test]
    fn no_number_outside_the_range_is_a_process() {
        assert!(!is_alive(0));
        assert!(!is_alive(u32::MAX));
    }
}
