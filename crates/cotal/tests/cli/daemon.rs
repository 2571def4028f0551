//! `deliver`, and what `up` says about it.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::TcpListener;
use std::process::Stdio;

use rustix::process::Signal;

use crate::site::{Run, Site, free_lease, free_lease_of, is_alive, signal, wait_until};

fn stop_daemon(site: &Site) {
    let daemon = site.daemon();
    signal(daemon, Signal::TERM);
    wait_until("the daemon's end", || !is_alive(daemon));
}

#[test]
fn lif_6_up_says_what_a_daemon_without_the_lease_said_and_ends_otherwise() {
    let site = Site::up();
    // A holder that nothing records any more: nobody can know whether it lives.
    let holder = site.daemon();
    signal(holder, Signal::STOP);
    for known in ["delivery.main.pid", "delivery.main.run.lock"] {
        std::fs::remove_file(site.path(known)).unwrap();
    }
    let up = site.run(&["up", "--detach"]).ends(7);
    signal(holder, Signal::KILL);
    assert!(up.err.contains("the delivery daemon exited") && up.err.contains("lease"), "{up:?}");
    assert!(!up.err.contains("serves"), "{up:?}");
    site.run(&["status"]).ends(7);
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_6_up_waits_for_the_lease_of_a_daemon_that_provably_died() {
    let site = Site::new();
    let server = site.run(&["up", "--detach", "--server-port", "0"]).ok().out;
    let crashed = site.daemon();
    signal(crashed, Signal::KILL);
    wait_until("the daemon's end", || !is_alive(crashed));
    let mut up = site.command(&["up", "--detach"]);
    let mut up = up.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(up.stderr.take().unwrap()).lines();
    let waits = format!("delivery daemon {crashed} died and its lease still stands");
    assert!(lines.any(|line| line.unwrap().contains(&waits)), "it did not wait");
    free_lease(&site, server.trim()).await;
    let said: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(up.wait().unwrap().success(), "{said:?}");
    assert!(said.iter().any(|line| line.contains("delivery daemon serving")), "{said:?}");
    site.run(&["status"]).ok();
}

/// A daemon whose broker is gone ends by itself, and cannot release its lease.
#[tokio::test(flavor = "multi_thread")]
async fn lif_6_up_waits_for_each_lease_that_a_lost_broker_left_behind() {
    let site = Site::new();
    let window = ("COTAL_DELIVERY_BROKER_GONE_MS", "200");
    let begin =
        |args: &[&str]| Run::of(site.command(args).env(window.0, window.1).output().unwrap()).ok();
    let server = begin(&["up", "--detach", "--server-port", "0"]).out;
    begin(&["space", "add", "other"]);
    let spaces = ["main", "other"];
    let ended = spaces.map(|space| (space, site.pid(&format!("delivery.{space}.pid"))));
    signal(site.broker(), Signal::KILL);
    for (_, daemon) in ended {
        wait_until("the daemon's end", || !is_alive(daemon));
    }
    let mut up = site.command(&["up", "--detach"]);
    let mut up = up.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(up.stderr.take().unwrap()).lines().map_while(Result::ok);
    for (space, daemon) in ended {
        let waits = format!("{space}: delivery daemon {daemon} died and its lease still stands");
        assert!(lines.any(|line| line.contains(&waits)), "it did not wait in {space}");
        // The record of a daemon that ended is nobody to a monitor, here with the broker back.
        site.run(&["status", "--components", "--space", space]).ends(1);
        free_lease_of(&site, server.trim(), space).await;
    }
    let said: Vec<String> = lines.collect();
    assert!(up.wait().unwrap().success(), "{said:?}");
    for (space, daemon) in ended {
        assert_ne!(site.pid(&format!("delivery.{space}.pid")), daemon);
    }
    site.run(&["status", "--components"]).ok();
}

#[test]
fn lif_11_what_a_lost_broker_left_behind_is_nobody_to_down() {
    let site = Site::new();
    let mut up = site.command(&["up", "--detach", "--server-port", "0"]);
    Run::of(up.env("COTAL_DELIVERY_BROKER_GONE_MS", "200").output().unwrap()).ok();
    let daemon = site.daemon();
    signal(site.broker(), Signal::KILL);
    wait_until("the daemon's end", || !is_alive(daemon));
    assert_eq!(site.daemon(), daemon, "it is what is known of the lease that stands");
    site.run(&["down"]).ok().says("delivery daemon was not running");
    assert_eq!(site.daemon(), daemon);
}

/// A daemon that is stopped while its broker is away cannot release its lease, whoever stops it.
#[tokio::test(flavor = "multi_thread")]
async fn lif_6_up_waits_for_the_lease_of_a_daemon_that_was_stopped_without_its_broker() {
    let site = Site::new();
    let server = site.run(&["up", "--detach", "--server-port", "0"]).ok().out;
    let stopped = site.daemon();
    signal(site.broker(), Signal::KILL);
    site.run(&["down"]).ok().says("delivery daemon stopped");
    waits_for_the_lease_of(stopped, &site, server.trim()).await;
    site.run(&["down"]).ok();

    let mut up = site.command(&["up"]);
    let up = up.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("a mesh", || site.run(&["status"]).code == 0);
    let stopped = site.daemon();
    signal(site.broker(), Signal::KILL);
    Run::of(up.wait_with_output().unwrap()).ends(1).says("delivery daemon stopped");
    waits_for_the_lease_of(stopped, &site, server.trim()).await;
}

async fn waits_for_the_lease_of(died: u32, site: &Site, server: &str) {
    let mut up = site.command(&["up", "--detach"]);
    let mut up = up.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(up.stderr.take().unwrap()).lines().map_while(Result::ok);
    let waits = format!("delivery daemon {died} died and its lease still stands");
    assert!(lines.any(|line| line.contains(&waits)), "it did not wait");
    free_lease(site, server).await;
    let said: Vec<String> = lines.collect();
    assert!(up.wait().unwrap().success(), "{said:?}");
}

#[test]
fn lif_6_up_waits_for_a_daemon_that_finds_its_broker_again() {
    let site = Site::up();
    let daemon = site.daemon();
    // A paused one takes as long to be back as the test wants.
    signal(daemon, Signal::STOP);
    let broker = site.broker();
    signal(broker, Signal::KILL);
    wait_until("the broker's end", || !is_alive(broker));
    let mut up = site.command(&["up", "--detach"]);
    let mut up = up.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(up.stderr.take().unwrap()).lines().map_while(Result::ok);
    let waits = format!("delivery daemon {daemon} runs, and does not serve yet");
    let waited = lines.any(|line| line.contains(&waits));
    signal(daemon, Signal::CONT);
    assert!(waited, "it did not wait");
    let said: Vec<String> = lines.collect();
    assert!(up.wait().unwrap().success(), "{said:?}");
    assert_eq!(site.daemon(), daemon);
    site.run(&["status"]).ok();
}

#[test]
fn lif_6_up_replaces_a_daemon_that_ends_while_it_is_waited_for() {
    let site = Site::up();
    let daemon = site.daemon();
    signal(daemon, Signal::STOP);
    let mut up = site.command(&["up", "--detach"]);
    let mut up = up.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(up.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("does not serve yet")), "it did not wait");
    // The one that is asked to end releases its lease once it runs again.
    signal(daemon, Signal::TERM);
    signal(daemon, Signal::CONT);
    let said: Vec<String> = lines.collect();
    assert!(up.wait().unwrap().success(), "{said:?}");
    assert_ne!(site.daemon(), daemon);
}

#[test]
fn lif_6_of_a_daemon_that_stays_paused_up_says_what_to_do() {
    let site = Site::up();
    let daemon = site.daemon();
    signal(daemon, Signal::STOP);
    let mut up = site.command(&["up", "--detach"]);
    let up = up.env("COTAL_SERVING_WITHIN_MS", "100").output().unwrap();
    let up = Run::of(up).ends(7).says(&format!("`kill -CONT {daemon}` wakes one"));
    up.says("`cotal down`, then `cotal up`, replaces it");
    signal(daemon, Signal::CONT);
    site.run(&["up", "--detach"]).ok();
}

#[test]
fn lif_15_a_bare_up_relaunches_a_daemon_that_stopped() {
    let site = Site::up();
    let (before, broker) = (site.daemon(), site.broker());
    stop_daemon(&site);
    site.run(&["status"]).ends(7);
    site.run(&["up"]).ok().says("delivery daemon serving");
    assert_ne!(site.daemon(), before);
    assert_eq!(site.broker(), broker);
}

#[test]
fn lif_7_and_8_the_daemons_own_log_says_why_it_ended() {
    let site = Site::up();
    assert!(site.read("delivery.main.log").contains("serving"));
    stop_daemon(&site);
    let log = site.read("delivery.main.log");
    assert!(log.contains("received SIGTERM, exiting"), "{log}");
    std::fs::write(site.path("main/delivery.creds"), "garbage").unwrap();
    let run = site.run(&["deliver", "--space", "main"]).ends(3);
    let log = site.read("delivery.main.log");
    assert!(log.contains("✗ delivery: ") && log.contains("cannot be parsed"), "{log}");
    assert!(
        run.err.contains("cannot be parsed"),
        "by hand it is on standard error as well: {run:?}"
    );
    assert_eq!(run.out, "");
}

/// What the daemon does not log itself, such as a panic, is in its log as well.
#[cfg(target_os = "linux")]
#[test]
fn lif_7_a_detached_up_leads_both_streams_into_the_log() {
    let site = Site::up();
    let log = site.path("delivery.main.log").canonicalize().unwrap();
    for stream in [1, 2] {
        let leads_to = std::fs::read_link(format!("/proc/{}/fd/{stream}", site.daemon())).unwrap();
        assert_eq!(leads_to, log, "stream {stream}");
    }
}

/// The launcher redirected the daemon's streams onto the log that moves.
#[test]
fn lif_7_the_log_of_a_detached_daemon_rotates_by_its_size() {
    let site = Site::up();
    let (log, moved) = (site.path("delivery.main.log"), site.path("delivery.main.log.1"));
    let mut file = std::fs::File::options().append(true).open(&log).unwrap();
    let filler = [b'x'; 1 << 20];
    for _ in 0..16 {
        file.write_all(&filler).unwrap();
    }
    assert!(!moved.exists());
    stop_daemon(&site);
    assert!(moved.metadata().unwrap().len() >= 16 << 20);
    let log = site.read("delivery.main.log");
    assert!(log.contains("received SIGTERM, exiting") && log.len() < 1 << 20, "{}", log.len());
}

#[test]
fn lif_7_json_logs_name_the_space_in_each_line() {
    let site = Site::new();
    let up = ["--log-format", "json", "up", "--detach", "--server-port", "0"];
    site.run(&up).ok();
    let log = site.read("delivery.main.log");
    assert!(!log.is_empty());
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line.to_string().contains("\"main\""), "{line}");
    }
}

#[test]
fn lif_11_the_daemon_records_itself_and_takes_its_record_away() {
    let site = Site::up();
    let daemon = site.daemon();
    assert!(is_alive(daemon));
    // One that is refused the lease never touches the holder's record.
    site.run(&["deliver", "--space", "main"]).ends(8);
    assert_eq!(site.daemon(), daemon);
    stop_daemon(&site);
    assert!(!site.path("delivery.main.pid").exists());
}

#[test]
fn lse_1_a_second_daemon_names_the_holder_and_ends() {
    let site = Site::up();
    let run = site.run(&["deliver", "--space", "main"]).ends(8);
    assert!(run.err.contains("lease"), "{run:?}");
    site.run(&["status"]).ok();
}

#[test]
fn lif_12_without_a_root_it_names_where_it_searched() {
    let site = Site::new();
    let here = site.root();
    site.run(&["deliver", "--space", "main"]).ends(4).says(here.to_str().unwrap());
    assert_eq!(std::fs::read_dir(&here).unwrap().count(), 0);
}

#[test]
fn lif_12_the_nearest_root_above_is_served() {
    let site = Site::up();
    let below = site.root().join("a/b");
    std::fs::create_dir_all(&below).unwrap();
    let status = site.command(&["status"]).current_dir(&below).output().unwrap();
    Run::of(status).ok();
}

#[test]
fn lif_13_another_broker_than_the_recorded_one_is_refused_before_any_dial() {
    let site = Site::up();
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let url = format!("nats://{}", elsewhere.local_addr().unwrap());
    let args = ["deliver", "--space", "main", "--server", &url];
    site.run(&args).ends(8).says("the mesh registry records");
    assert_eq!(elsewhere.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    // With no record for the space, the one that was named is dialled.
    std::fs::write(site.registry(), r#"{"meshes": {}}"#).unwrap();
    elsewhere.set_nonblocking(false).unwrap();
    let mut daemon = site.command(&args).spawn().unwrap();
    elsewhere.accept().unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
