//! What stands where the root's broker was recorded, as `status` and `doctor` tell it: only the
//! root's own broker is ever called that.

use std::io::Write as _;
use std::net::TcpListener;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::site::{Run, Site, is_alive, signal, wait_until};

const COMPONENTS: [&str; 3] = ["status", "--components", "--json"];

/// A mesh whose daemon waits for its broker for longer than any test takes, and the port of it.
fn patient_site() -> (Site, String) {
    let site = Site::new();
    let mut up = site.command(&["up", "--detach", "--server-port", "0"]);
    let up = Run::of(up.env("COTAL_DELIVERY_BROKER_GONE_MS", "600000").output().unwrap()).ok();
    let port = port_of(&up);
    (site, port)
}

fn port_of(up: &Run) -> String {
    up.out.trim().rsplit_once(':').unwrap().1.to_owned()
}

/// A mesh that was taken down, with the port that it had.
fn left_site(mode: &[&str]) -> (Site, String) {
    let site = Site::new();
    let up = [&["up", "--detach", "--server-port", "0"], mode].concat();
    let port = port_of(&site.run(&up).ok());
    site.run(&["down"]).ok();
    (site, port)
}

/// The states of the broker and, on an authenticated mesh, of the daemon; and the exit code.
fn components(site: &Site) -> (Value, Value, i32) {
    let run = site.run(&COMPONENTS);
    let report: Value = serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    let state = |n: usize| report["components"][n]["state"].clone();
    (state(0), state(1), run.code)
}

/// What `doctor` finds of the broker, with its verdict and the exit code.
fn doctor(site: &Site) -> (String, String, i32) {
    let run = site.run(&["doctor", "--json"]);
    let findings: Value = serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    let findings = findings.as_array().unwrap();
    let broker = findings.iter().find(|finding| finding["check"] == "broker").unwrap();
    let text = |field: &str| broker[field].as_str().unwrap().to_owned();
    (text("detail"), text("verdict"), run.code)
}

/// Nothing in the root's status may come from a broker that is not the root's.
#[track_caller]
fn is_not_taken_for_the_roots(site: &Site, says: &str) {
    let (found, verdict, code) = doctor(site);
    assert_eq!((verdict.as_str(), code), ("broken", 1), "{found}");
    assert!(found.contains("is not this root's broker") && found.contains(says), "{found}");
    assert!(found.contains("`cotal up --server-port PORT`"), "{found}");
    let status = site.run(&["status"]).ends(9);
    assert!(status.out.contains("broker    not reached: what answers at "), "{status:?}");
    assert!(status.out.contains(says), "{status:?}");
    let status = site.json(&["status", "--json"]);
    assert_eq!(status["broker"]["version"], json!(null));
    assert_ne!(status["spaces"][0]["delivery"], "bound");
    assert_ne!(status["spaces"][0]["delivery"], "unbound");
}

#[test]
fn an_open_broker_is_not_taken_for_that_of_an_authenticated_root() {
    let (site, port) = left_site(&[]);
    let other = Site::new();
    other.run(&["up", "--open", "--detach", "--server-port", &port]).ok();
    is_not_taken_for_the_roots(&site, "its authentication differs");
    assert_eq!(components(&site), (json!("not-serving"), json!("unknown"), 2));
}

#[test]
fn another_roots_broker_is_not_taken_for_that_of_a_root_like_it() {
    let (site, port) = left_site(&[]);
    let other = Site::new();
    other.run(&["up", "--detach", "--server-port", &port]).ok();
    is_not_taken_for_the_roots(&site, "rejects the credential");
    assert_eq!(components(&site), (json!("refused"), json!("unknown"), 3));
    assert_eq!(components(&other), (json!("serving"), json!("serving"), 0));
    other.run(&["down"]).ok();

    let (site, port) = left_site(&["--open"]);
    let other = Site::new();
    other.run(&["up", "--open", "--detach", "--server-port", &port]).ok();
    is_not_taken_for_the_roots(&site, "this root's broker does not run");
    assert_eq!(components(&site), (json!("not-serving"), json!(null), 2));
    assert_eq!(components(&other), (json!("serving"), json!(null), 0));
}

#[test]
fn a_broker_that_demands_tls_is_not_that_of_a_root_without_it() {
    let (site, port) = left_site(&[]);
    let other = Site::new();
    other.run(&["up", "--tls", "--detach", "--server-port", &port]).ok();
    is_not_taken_for_the_roots(&site, "its demand for TLS differs");
    assert_eq!(components(&site), (json!("not-serving"), json!("unknown"), 2));
}

#[test]
fn a_listener_that_is_no_broker_is_broken_and_the_daemon_behind_it_unknown() {
    let (site, port) = left_site(&[]);
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            // Whoever has heard enough has hung up.
            let _ = client.unwrap().write_all(b"SSH-2.0-somebody\r\n");
        }
    });
    is_not_taken_for_the_roots(&site, "it is not a NATS server");
    assert_eq!(components(&site), (json!("not-serving"), json!("unknown"), 2));
}

/// The kernel accepts in the name of a program that never does.
#[test]
fn a_silent_listener_is_not_the_roots_broker_when_that_does_not_run() {
    let (site, port) = left_site(&[]);
    let _silent = TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    assert_eq!(components(&site), (json!("not-serving"), json!("unknown"), 2));
    let (found, verdict, code) = doctor(&site);
    assert_eq!((verdict.as_str(), code), ("broken", 1), "{found}");
    assert!(found.contains("said nothing"), "{found}");
}

#[test]
fn a_daemon_that_runs_on_without_its_broker_is_there_and_does_not_serve() {
    let (site, _) = patient_site();
    let (broker, daemon) = (site.broker(), site.daemon());
    signal(broker, Signal::KILL);
    wait_until("the broker's end", || !is_alive(broker));
    assert_eq!(components(&site), (json!("absent"), json!("not-serving"), 2));
    let status = site.run(&["status"]).ends(9);
    assert!(status.out.contains(&format!("delivery  unknown, pid {daemon}")), "{status:?}");
    assert!(status.out.contains("`cotal up` starts this root's"), "{status:?}");
    let (found, verdict, code) = doctor(&site);
    assert_eq!((verdict.as_str(), code), ("warning", 0), "{found}");
    assert!(found.contains("`cotal up` starts this root's"), "{found}");
    assert!(is_alive(daemon));
}

#[test]
fn a_broker_that_runs_and_does_not_answer_is_broken_and_named() {
    let (site, _) = patient_site();
    let broker = site.broker();
    signal(broker, Signal::STOP);
    let (found, verdict, code) = doctor(&site);
    let states = components(&site);
    let status = site.run(&["status"]);
    signal(broker, Signal::CONT);
    assert_eq!((verdict.as_str(), code), ("broken", 1), "{found}");
    for found in [&found, &status.out] {
        let step =
            format!("`kill -CONT {broker}` wakes one that was paused, else run `cotal down`");
        assert!(found.contains(&step), "{found}");
    }
    assert_eq!(states, (json!("not-serving"), json!("not-serving"), 2));
    status.ends(9);
    wait_until("it serves again", || components(&site).2 == 0);
    assert_eq!(doctor(&site).1, "ok");
}
