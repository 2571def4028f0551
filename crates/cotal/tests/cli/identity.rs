//! Which processes are a root's, whatever its records say, and what they inherit.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use cotal_workspace::identity::holders;
use rustix::process::Signal;
use serde_json::json;

use crate::site::{Run, Site, free_lease, is_alive, signal, wait_until};

const BROKER_LOCK: &str = "broker/nats-server.run.lock";

/// A broker's program that waits at a gate before it becomes the broker, so that it can be caught
/// while it starts; whoever opens the gate for reading lets it go on.
fn slow_broker(site: &Site) -> (PathBuf, PathBuf) {
    let real = cotal_testkit::broker_binary().path;
    let (path, gate) = (site.root().join("slow-nats-server"), site.root().join("gate"));
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec {0} --version\n: >{1}\nexec {0} \"$@\"\n",
        real.display(),
        gate.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    (path, gate)
}

/// Starts an `up` that is killed while its broker starts; tells the broker's process and the gate
/// that it waits at.
fn killed_while_the_broker_starts(site: &Site) -> (u32, PathBuf) {
    let (slow, gate) = slow_broker(site);
    let mut up = site.command(&["up", "--nats-server", slow.to_str().unwrap()]);
    let mut up = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let lock = site.path(BROKER_LOCK);
    wait_until("a broker that starts", || !holders(&lock).is_empty());
    up.kill().unwrap();
    up.wait().unwrap();
    (holders(&lock)[0], gate)
}

fn background(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn an_up_after_one_that_was_killed_takes_its_broker_over_and_starts_no_second_on_the_store() {
    let site = Site::up();
    site.run(&["down"]).ok();
    let (first, gate) = killed_while_the_broker_starts(&site);
    let up = background(site.command(&["up", "--detach"]));
    // A second server would be there at once, and the first one is still held back.
    let url = || cotal_broker::listens_at(&site.path("broker/server.conf"), first);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(holders(&site.path(BROKER_LOCK)), [first]);
    drop(File::open(gate).unwrap());
    let up = Run::of(up.wait_with_output().unwrap()).ok();
    assert_eq!(url().as_deref(), Some(up.out.trim()), "{up:?}");
    assert_eq!(holders(&site.path(BROKER_LOCK)), [first]);
    assert_eq!(site.broker(), first);
    site.run(&["down"]).ok().says("broker stopped");
    assert!(!is_alive(first));
}

#[test]
fn lif_10_down_ends_a_broker_that_an_up_left_behind_while_it_started() {
    let site = Site::up();
    site.run(&["down"]).ok();
    let (broker, _) = killed_while_the_broker_starts(&site);
    site.run(&["down"]).ok().says("broker stopped");
    assert!(!is_alive(broker));
}

#[test]
fn lif_11_processes_are_found_by_their_locks_when_records_are_emptied_missing_or_garbled() {
    let site = Site::up();
    let records = ["broker/nats-server.pid", "delivery.main.pid", "manager.main.pid"];
    let pids = records.map(|record| site.pid(record));
    for damage in [Some(&b""[..]), Some(b"\xff\xfe"), Some(b"1"), None] {
        for record in records {
            match damage {
                Some(content) => std::fs::write(site.path(record), content).unwrap(),
                None => std::fs::remove_file(site.path(record)).unwrap(),
            }
        }
        let status = site.json(&["status", "--json"]);
        let space = &status["spaces"][0];
        let seen = json!([status["broker"]["pid"], space["pid"], space["manager"]]);
        assert_eq!(seen, json!(pids), "{damage:?}");
    }
    let down = site.run(&["down"]).ok().says("broker stopped").says("delivery daemon stopped");
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "{down:?}");
}

#[test]
fn lif_11_down_in_a_copy_of_a_running_root_leaves_the_original_alone() {
    let site = Site::up();
    let copy = site.beside("copy");
    let mut cp = Command::new("cp");
    cp.arg("-a").arg(site.path("")).arg(copy.root());
    assert!(cp.status().unwrap().success());
    let records = ["broker/nats-server.pid", "delivery.main.pid", "manager.main.pid"];
    let pids = records.map(|record| site.pid(record));
    let status = copy.json(&["status", "--json"]);
    assert_eq!(status["broker"]["pid"], json!(null));
    assert_eq!(status["spaces"][0]["pid"], json!(null));
    copy.run(&["down"]).ok().says("delivery daemon was not running").says("broker was not running");
    assert!(pids.into_iter().all(is_alive));
    site.run(&["status"]).ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_6_a_daemon_that_does_not_serve_is_not_called_serving_because_another_answers() {
    let site = Site::new();
    let server = site.run(&["up", "--detach", "--server-port", "0"]).ok().out;
    let other = site.beside("other");
    let mut cp = Command::new("cp");
    assert!(cp.arg("-a").arg(site.path("")).arg(other.root()).status().unwrap().success());
    let paused = site.daemon();
    signal(paused, Signal::STOP);
    free_lease(&site, server.trim()).await;
    let mut serving = background(other.command(&["deliver", "--space", "main"]));
    let told = format!("delivery daemon {paused} runs on this root and does not serve");
    // The broker gives each question to one of the two that listen, and the paused one is silent.
    wait_until("the answer of another daemon", || {
        let status = site.json(&["status", "--json"]);
        let space = &status["spaces"][0];
        let errors = space["errors"].as_array().unwrap();
        space["delivery"] == "bound"
            && errors.iter().any(|error| error.as_str().unwrap().contains(&told))
    });
    let mut up = site.command(&["up", "--detach"]);
    let up = Run::of(up.env("COTAL_SERVING_WITHIN_MS", "1000").output().unwrap());
    signal(paused, Signal::CONT);
    let up = up.ends(7).says("and does not serve (");
    assert!(!up.err.contains("daemon serving"), "{up:?}");
    signal(serving.id(), Signal::TERM);
    serving.wait().unwrap();
}

#[test]
fn a_root_that_was_moved_while_its_mesh_is_up_is_told_and_taken_down_where_it_is_now() {
    let site = Site::up();
    let records = ["broker/nats-server.pid", "delivery.main.pid", "manager.main.pid"];
    let pids = records.map(|record| site.pid(record));
    let (then, moved) = (site.root(), site.beside("moved"));
    std::fs::rename(&then, moved.root()).unwrap();
    std::fs::create_dir(&then).unwrap();
    let told = format!("moved from {}", then.display());
    moved.run(&["up", "--detach"]).ends(8).says(&told);
    let doctor = moved.run(&["doctor"]).ends(1);
    assert!(doctor.out.contains(&told), "{doctor:?}");
    moved.run(&["down"]).ok().says("broker stopped").says("delivery daemon stopped");
    assert!(pids.into_iter().all(|pid| !is_alive(pid)));
    moved.run(&["up", "--detach"]).ok();
}

#[test]
fn a_store_that_another_process_has_open_gets_no_broker() {
    let site = Site::up();
    site.run(&["down"]).ok();
    let file = File::create(site.path("broker/jetstream/in-use")).unwrap();
    let mut other = Command::new("sleep").arg("600").stdin(file).spawn().unwrap();
    let named = format!("process {} has files of", other.id());
    site.run(&["up", "--detach"]).ends(8).says(&named);
    other.kill().unwrap();
    other.wait().unwrap();
    site.run(&["up", "--detach"]).ok();
}

#[test]
fn what_up_leaves_running_keeps_no_pipe_and_no_lock_of_its_caller() {
    let site = Site::new();
    let lock = site.root().join("callers.lock");
    let script = "exec 9>\"$1\"; flock 9; \"$2\" up --detach --server-port 0 3>&1 7>&2 | cat";
    let command = site.command(&[]);
    let (program, env) = (command.get_program().to_owned(), command.get_envs());
    let mut shell = Command::new("sh");
    for (name, value) in env {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.args(["-c", script, "sh"]).arg(&lock).arg(program).current_dir(site.root());
    let caller = background(shell);
    let out = std::thread::spawn(move || Run::of(caller.wait_with_output().unwrap()));
    wait_until("the end of its output", || out.is_finished());
    out.join().unwrap().ok();
    File::open(&lock).unwrap().try_lock().expect("nobody keeps the caller's lock");
    for record in ["broker/nats-server.pid", "delivery.main.pid", "manager.main.pid"] {
        assert!(is_alive(site.pid(record)), "{record}");
    }
}
