//! `deliver`, and what `up` says about it.

use std::io::ErrorKind;
use std::net::TcpListener;

use rustix::process::Signal;

use crate::site::{Run, Site, is_alive, signal, wait_until};

fn stop_daemon(site: &Site) {
    let daemon = site.daemon();
    signal(daemon, Signal::TERM);
    wait_until("the daemon's end", || !is_alive(daemon));
}

#[test]
fn lif_6_up_says_what_a_daemon_without_the_lease_said_and_ends_otherwise() {
    let site = Site::up();
    let crashed = site.daemon();
    signal(crashed, Signal::KILL);
    wait_until("the daemon's end", || !is_alive(crashed));
    // The crashed holder's lease stands for its 30 s, so the replacement is refused.
    let up = site.run(&["up", "--detach"]).ends(7);
    assert!(up.err.contains("the delivery daemon exited") && up.err.contains("lease"), "{up:?}");
    assert!(!up.err.contains("serves"), "{up:?}");
    site.run(&["status"]).ends(7);
}

#[test]
fn lif_15_a_bare_up_relaunches_a_daemon_that_stopped() {
    let site = Site::up();
    let (before, broker) = (site.daemon(), site.broker());
    stop_daemon(&site);
    site.run(&["status"]).ends(7);
    site.run(&["up"]).ok().says("answered that it serves");
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
    assert!(log.contains("✗ delivery: ") && log.contains("does not read"), "{log}");
    assert!(run.err.contains("does not read"), "by hand it is on standard error as well: {run:?}");
    assert_eq!(run.out, "");
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
    let registry = site.root().join("../config/cotal/meshes.json");
    std::fs::write(registry, r#"{"meshes": {}}"#).unwrap();
    elsewhere.set_nonblocking(false).unwrap();
    let mut daemon = site.command(&args).spawn().unwrap();
    elsewhere.accept().unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
