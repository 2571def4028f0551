//! The processes that belong to one root, as the system lists them.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Every process whose command line names `root`. One that has ended and was not yet collected by
/// its parent has no command line any more.
pub(super) fn naming(root: &Path) -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("the system lists no processes in /proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if names(pid, root) {
            found.push(pid);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Whether the process lives and its command line names `root`.
pub(super) fn names(pid: u32, root: &Path) -> bool {
    let root = root.as_os_str().as_encoded_bytes();
    // A process that ended in between is none.
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    !root.is_empty() && line.windows(root.len()).any(|part| part == root)
}

/// Ends a process of `root` without a warning; refuses any other.
pub(super) fn kill(pid: u32, root: &Path) -> anyhow::Result<()> {
    signal(pid, root, Signal::KILL)
}

/// Signals a process of `root`; refuses any other.
pub(super) fn signal(pid: u32, root: &Path, signal: Signal) -> anyhow::Result<()> {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw).filter(|_| names(pid, root))
    else {
        bail!("process {pid} is none of {}", root.display());
    };
    kill_process(raw, signal).with_context(|| format!("cannot signal process {pid}"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_found_by_the_root_it_names_and_only_such_a_one_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let marker = dir.path().join("root");
        let mut child = Command::new("sh")
            .args(["-c", "read _"])
            .arg(&marker)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        while !names(child.id(), &marker) {
            std::thread::yield_now();
        }
        assert_eq!(naming(&marker).unwrap(), [child.id()]);
        assert!(kill(child.id(), &dir.path().join("other")).is_err());
        assert!(kill(std::process::id(), &marker).is_err());
        kill(child.id(), &marker).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(naming(&marker).unwrap().is_empty());
    }
}
