//! A disk that is full, or takes no writes at all.

use std::process::{Command, Stdio};

use crate::site::{Run, Site};

/// Runs a script in the root in a world of its own, where it may mount; `None` where the kernel
/// lets nobody do that.
fn in_own_mounts(site: &Site, script: &str) -> Option<Run> {
    let flags = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
    if !Command::new("unshare").args([flags, "true"]).status().ok()?.success() {
        return None;
    }
    let cotal = site.command(&[]);
    let mut command = Command::new("unshare");
    for (name, value) in cotal.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args([flags, "sh", "-c", script, cotal.get_program().to_str().unwrap()]);
    let run = command.current_dir(site.root()).stdin(Stdio::null()).output().unwrap();
    Some(Run::of(run))
}

#[test]
fn a_full_disk_is_no_healthy_one_a_refused_write_names_it_and_down_ends_what_runs() {
    let site = Site::new();
    let script = r#"
        mount -t tmpfs -o size=192m tmpfs . && cd "$PWD" || exit 99
        "$0" up --detach --server-port 0 >/dev/null || exit 98
        "$0" status >/dev/null; echo "status $?"
        "$0" agent add alice --post a >/dev/null
        dd if=/dev/zero of=fill bs=64k 2>/dev/null; cat /dev/zero >fill2 2>/dev/null
        for n in 1 2; do "$0" post a "$(head -c 5000 /dev/zero | tr '\\0' x)" --as alice; done
        "$0" status; echo "status $?"
        "$0" status --components; echo "components $?"
        "$0" doctor; echo "doctor $?"
        "$0" down; echo "down $?"
        rm fill fill2
        "$0" up --detach >/dev/null; echo "up $?"
        "$0" down; echo "down $?"
    "#;
    let Some(run) = in_own_mounts(&site, script) else { return };
    let ends = |wanted: &str| assert!(run.out.contains(wanted), "{wanted:?} is not in {run:?}");
    ends("status 0\n");
    ends("status 7\n");
    ends("components 2\n");
    ends("doctor 1\n");
    ends("takes no writes: no storage space");
    assert!(run.err.contains("nothing is stored until it does: free some room"), "{run:?}");
    assert_eq!(run.out.matches("down 0\n").count(), 2, "{run:?}");
    assert_eq!(run.err.matches("broker stopped").count(), 2, "{run:?}");
    ends("up 0\n");
}

#[test]
fn down_ends_what_runs_on_a_disk_that_takes_no_writes_and_tells_what_it_left_behind() {
    let site = Site::new();
    let script = r#"
        "$0" up --detach --server-port 0 >/dev/null || exit 98
        mount --bind . . && cd "$PWD" && mount -o remount,bind,ro . || exit 99
        "$0" status --components; echo "components $?"
        "$0" down; echo "down $?"
        "$0" down; echo "down $?"
    "#;
    let Some(run) = in_own_mounts(&site, script) else { return };
    let ends = |wanted: &str| assert!(run.out.contains(wanted), "{wanted:?} is not in {run:?}");
    ends("components 2\n");
    ends("takes no writes: read-only filesystem");
    ends("down 10\n");
    for stopped in ["manager stopped", "delivery daemon stopped", "broker stopped"] {
        assert!(run.err.contains(stopped), "{stopped:?} is not in {run:?}");
    }
    assert!(run.err.contains("a file of it was left behind"), "{run:?}");
    assert!(run.err.contains("broker was not running"), "{run:?}");
}
