//! `up`, `down` and the spaces of a root.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;

use crate::site::{Run, Site, is_alive, signal, wait_until};

/// Every file that says what a mesh is, with its content; what merely runs is left out, and so is
/// what a stop takes away and the next start mints anew (LIF-10), or revokes.
fn identity(site: &Site) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut visit = vec![site.path("auth"), site.path("main"), site.path("mesh.json")];
    while let Some(path) = visit.pop() {
        if ["delivery.creds", "delivery.seed", "renewals.json"].iter().any(|f| path.ends_with(f)) {
            continue;
        }
        if path.is_dir() {
            visit.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            let text = std::fs::read_to_string(&path).unwrap();
            // A start revokes and evicts what an earlier manager was issued (ADM-6).
            let kept = text.split("\"issuedAt\"").next().unwrap();
            let text = kept.split("\"ledger\"").next().unwrap().to_owned();
            files.insert(path.display().to_string(), text);
        }
    }
    files
}

#[test]
fn lif_15_a_detached_up_leaves_a_mesh_that_a_second_up_does_not_touch_and_down_takes_away() {
    let site = Site::new();
    let up = site.run(&["up", "--detach", "--server-port", "0"]).ok();
    let url = up.out.trim();
    assert!(url.starts_with("nats://127.0.0.1:") && up.out.lines().count() == 1, "{up:?}");
    let status = site.json(&["status", "--json"]);
    assert_eq!(status["broker"]["server"], json!(url));
    assert_eq!(status["spaces"][0]["delivery"], "bound");

    let (before, broker, daemon) = (identity(&site), site.broker(), site.daemon());
    let again = site.run(&["up", "--detach"]).ok().says("is complete, nothing was created");
    assert_eq!(again.out, up.out);
    assert!(!again.err.contains("repaired") && !again.err.contains("minted"), "{again:?}");
    assert_eq!((identity(&site), site.broker(), site.daemon()), (before.clone(), broker, daemon));

    site.run(&["down"]).ok();
    assert!(!is_alive(broker) && !is_alive(daemon));
    site.run(&["down"]).ok().says("was not running");
    site.run(&["status"]).ends(9);
    let back = site.run(&["up", "--detach"]).ok();
    assert_eq!(back.out, up.out, "the mesh comes back where it was");
    assert_eq!(identity(&site), before);
}

#[test]
fn crd_7_and_lif_10_down_takes_the_daemons_credential_and_up_gives_it_back_under_its_key() {
    let site = Site::up();
    let seed = |site: &Site| {
        let creds = site.read("main/delivery.creds");
        creds.lines().find(|line| line.starts_with("SU")).unwrap().to_owned()
    };
    let before = seed(&site);
    site.run(&["down"]).ok();
    assert!(!site.path("main/delivery.creds").exists());
    site.run(&["up", "--detach"]).ok().says("delivery credential minted");
    assert_eq!(seed(&site), before);
}

#[test]
fn secrets_are_their_owners_alone_and_the_registry_knows_the_mesh() {
    use std::os::unix::fs::PermissionsExt;
    let site = Site::up();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    for secret in [
        "auth/operator.seed",
        "auth/system.json",
        "auth/main/account.json",
        "main/delivery.creds",
        "main/membership-rw.creds",
        "main/membership-observer.creds",
        "main/connection-evictor.creds",
    ] {
        let path = site.path(secret);
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700), "{secret}");
    }
    let findings = site.json(&["doctor", "--json"]);
    let findings = findings.as_array().unwrap();
    assert!(findings.iter().all(|f| f["verdict"] != "broken"), "{findings:?}");
    let registry = findings.iter().find(|f| f["check"] == "registry of main").unwrap();
    assert_eq!(registry["verdict"], "ok");
}

#[test]
fn a_space_is_added_while_the_mesh_runs_and_comes_back_with_it() {
    let site = Site::up();
    let daemon = site.daemon();
    site.run(&["space", "add", "my research"]).ok().says("delivery daemon serving");
    let spaces = site.json(&["space", "list", "--json"]);
    let names: Vec<_> = spaces.as_array().unwrap().iter().map(|s| s["space"].clone()).collect();
    assert_eq!(names, ["main", "my_research"]);
    assert_eq!(site.daemon(), daemon, "the other space was left alone");
    site.run(&["agent", "add", "bob", "--read", "a", "--space", "my_research"]).ok();
    assert_eq!(site.json(&["agent", "list", "--json"]), json!([]));
    site.run(&["down"]).ok();
    site.run(&["up", "--detach"]).ok();
    let status = site.json(&["status", "--json"]);
    let serving = |n: usize| status["spaces"][n]["delivery"].clone();
    assert_eq!((serving(0), serving(1)), (json!("bound"), json!("bound")));
}

#[test]
fn other_settings_are_refused_while_the_broker_runs_and_taken_after_down() {
    let site = Site::up();
    let strict = ["up", "--detach", "--durability", "strict"];
    site.run(&strict).ends(8).says("cotal down");
    site.run(&["up", "--detach", "--server-port", "1"]).ends(8);
    site.run(&["up", "--detach", "--open"]).ends(8);
    site.run(&["down"]).ok();
    site.run(&strict).ok();
    assert!(site.read("broker/server.conf").contains("sync_interval: always"));
    let findings = site.json(&["doctor", "--json"]);
    let findings = findings.as_array().unwrap();
    let durability = findings.iter().find(|f| f["check"] == "durability").unwrap();
    assert_eq!(durability["verdict"], "ok");
}

#[test]
fn a_port_that_somebody_else_has_is_named_and_nothing_is_left_running() {
    let site = Site::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    site.run(&["up", "--detach", "--server-port", &port]).ends(8).says("in use");
    let pid: Option<u32> = site.read("broker/nats-server.pid").trim().parse().ok();
    assert!(pid.is_none_or(|pid| !is_alive(pid)));
}

#[test]
fn a_new_mesh_takes_the_next_free_port_when_the_default_is_taken_and_keeps_it() {
    let site = Site::new();
    // Whoever has it already takes it as well as this test does.
    let taken = std::net::TcpListener::bind("127.0.0.1:4222");
    let up = site.run(&["up", "--detach"]).ok().says("the default port is taken");
    drop(taken);
    let port: u16 = up.out.trim().rsplit_once(':').unwrap().1.parse().unwrap();
    assert!(port > 4222, "{up:?}");
    site.run(&["down"]).ok();
    assert_eq!(site.run(&["up", "--detach"]).ok().out, up.out);
}

#[test]
fn lif_10_a_foreground_up_takes_everything_down_with_it() {
    for stop in [Signal::TERM, Signal::INT, Signal::HUP] {
        let site = Site::new();
        let mut command = site.command(&["up", "--server-port", "0"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("a mesh", || site.run(&["status"]).code == 0);
        let (broker, daemon) = (site.broker(), site.daemon());
        signal(child.id(), stop);
        let run = Run::of(child.wait_with_output().unwrap()).ok();
        assert!(run.err.contains("delivery daemon stopped"), "{run:?}");
        assert!(!is_alive(broker) && !is_alive(daemon));
        assert!(site.read("delivery.main.log").contains("received SIGTERM, exiting"));
    }
}

#[test]
fn lif_10_a_broker_that_exits_under_a_foreground_up_takes_the_daemon_with_it() {
    let site = Site::new();
    let mut command = site.command(&["up", "--server-port", "0"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("a mesh", || site.run(&["status"]).code == 0);
    let (broker, daemon) = (site.broker(), site.daemon());
    signal(broker, Signal::KILL);
    Run::of(child.wait_with_output().unwrap()).ends(1).says("the broker ended");
    assert!(!is_alive(daemon));
}

#[test]
fn lif_14_an_open_mesh_has_no_daemon_and_no_agents_and_says_what_it_is() {
    let site = Site::new();
    let open = site.run(&["up", "--open", "--detach", "--server-port", "0"]).ok();
    assert!(open.err.contains("live-only"), "{open:?}");
    assert!(!site.path("delivery.main.pid").exists() && !site.path("auth").exists());
    let status = site.json(&["status", "--json"]);
    assert_eq!((&status["mode"], &status["spaces"][0]["delivery"]), (&json!("open"), &json!(null)));
    site.run(&["status"]).ok();
    site.run(&["agent", "add", "bob", "--read", "a"]).ends(6).says("open");
    site.run(&["deliver"]).ends(6).says("✗ delivery: this mesh is open");
    site.run(&["manage"]).ends(6).says("✗ manager: this mesh is open");
    site.run(&["channel", "set", "a", "--class", "durable"]).ends(6).says("open");
    for speaks in [&["post", "a", "hello", "--as", "bob"][..], &["join", "a", "--as", "bob"]] {
        site.run(speaks).ends(6).says("this mesh is open, so it has no agents");
    }
    let channels = site.json(&["channel", "list", "--json"]);
    assert_eq!(channels["defaults"], json!({"deliveryClass": "live"}));
    // A bare `up` completes what the root is, and never turns it into something else.
    site.run(&["up", "--detach"]).ok();
    assert!(!site.path("auth").exists());
    let down = site.run(&["down"]).ok().says("it has no delivery daemon");
    assert!(down.err.contains("broker stopped") && !down.err.contains("not running"), "{down:?}");
}
