//! The manager's process: started by `up`, stopped by `down`, and what `doctor auth` says of its
//! work.

use cotal_manager::Gate;
use cotal_workspace::Root;
use rustix::process::Signal;
use serde_json::Value;

use crate::site::{Run, Site, is_alive, signal, wait_until};

const RECORD: &str = "manager.main.pid";

fn auth(site: &Site) -> (i32, Value) {
    let run = site.run(&["doctor", "auth", "--json"]);
    let found: Value = serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    (run.code, found[0].clone())
}

fn state(found: &Value, credential: &str) -> String {
    let all = found["credentials"].as_array().unwrap();
    let one = all.iter().find(|one| one["credential"] == credential).unwrap();
    one["state"].as_str().unwrap().to_owned()
}

#[test]
fn adm_7_up_starts_one_manager_and_a_killed_one_again_under_its_identity() {
    let site = Site::up();
    let manager = site.pid(RECORD);
    assert!(is_alive(manager));
    let status = site.json(&["status", "--json"]);
    assert_eq!(status["spaces"][0]["manager"], manager);
    site.run(&["manage"]).ends(8);
    assert_eq!(site.pid(RECORD), manager, "a refused one leaves the record alone");
    let keys = |site: &Site| {
        let family: Value = serde_json::from_str(&site.read("auth/main/family.json")).unwrap();
        let holders = family["ledger"]["holders"].as_array().unwrap().len();
        (family["seeds"].clone(), holders)
    };
    let before = keys(&site);
    signal(manager, Signal::KILL);
    wait_until("the end of the manager", || !is_alive(manager));
    site.run(&["up", "--detach"]).ok().says("it renews the daemon's credentials");
    assert_ne!(site.pid(RECORD), manager);
    assert_eq!(keys(&site), before);

    let manager = site.pid(RECORD);
    site.run(&["down"]).ok().says("manager stopped");
    assert!(!is_alive(manager) && !site.path(RECORD).exists());
}

/// A gate that an earlier run left frozen is opened by the next manager, and by nobody else.
#[test]
fn adm_6_while_the_gate_is_frozen_nobody_is_provisioned_and_status_says_why() {
    let site = Site::up();
    let manager = site.pid(RECORD);
    signal(manager, Signal::TERM);
    wait_until("the end of the manager", || !is_alive(manager));
    let space = cotal_wire::Space::parse("main").unwrap();
    let gate = Gate::of(&Root::at(site.root()).unwrap(), &space);
    gate.freeze("holders of the predecessor are left").unwrap();
    let add = |site: &Site| site.run(&["agent", "add", "Bob", "--read", "team.>"]);
    add(&site).ends(8).says("holders of the predecessor are left");
    let shown = site.run(&["status"]).ok();
    assert!(shown.out.contains("frozen: holders of the predecessor are left"), "{shown:?}");
    assert_eq!(auth(&site).0, 1);
    let fixed: Run = site.run(&["doctor", "auth", "--fix"]).ends(1);
    assert!(fixed.out.contains("cotal up"), "{fixed:?}");

    site.run(&["up", "--detach"]).ok();
    assert_eq!(gate.frozen().unwrap(), None);
    add(&site).ok();
}

/// Credentials of eight seconds, and nobody to renew them.
#[test]
fn crd_2_doctor_auth_shows_a_missed_renewal_and_repairs_it() {
    let site = Site::new();
    let mut up = site.command(&["up", "--detach", "--server-port", "0"]);
    up.env("COTAL_CREDENTIAL_LIFETIME", "8");
    Run::of(up.output().unwrap()).ok();
    let is_adopted =
        || auth(&site).1["credentials"][0]["adoption"]["outcome"]["state"] == "adopted";
    wait_until("an adoption", is_adopted);
    let (daemon, manager) = (site.daemon(), site.pid(RECORD));
    signal(manager, Signal::KILL);
    wait_until("the missed renewal", || state(&auth(&site).1, "delivery") == "missed");
    assert_eq!(auth(&site).0, 1);

    // The repair signs for a day; the lease of the manager that was killed runs out first.
    let repaired = || {
        site.run(&["doctor", "auth", "--fix"]);
        auth(&site).0 == 0 && is_adopted()
    };
    wait_until("the repair", repaired);
    let (_, found) = auth(&site);
    assert_eq!(state(&found, "delivery"), "good");
    assert_eq!(state(&found, "membership-rw"), "good");
    assert!(is_alive(daemon) && site.daemon() == daemon, "the daemon runs on");
    site.run(&["status"]).ok();
}

/// Changes one character of the header of the JWT in a `.creds` file.
fn damage(site: &Site, below: &str) {
    let text = site.read(below);
    let at = text.find("\neyJ").unwrap() + 10;
    let other = if &text[at..=at] == "A" { "B" } else { "A" };
    let damaged = format!("{}{other}{}", &text[..at], &text[at + 1..]);
    std::fs::write(site.path(below), damaged).unwrap();
}

fn finding(site: &Site, check: &str) -> Option<Value> {
    let findings = site.json(&["doctor", "--json"]);
    let found = findings.as_array().unwrap().iter().find(|f| f["check"] == check);
    found.cloned()
}

/// Whatever of a JWT was damaged, the broker refuses it; the mesh must know that before it asks.
#[test]
fn crd_7_a_delivery_credential_with_a_damaged_header_is_named_and_minted_anew_for_its_key() {
    const CREDS: &str = "main/delivery.creds";
    let site = Site::up();
    let identity = |site: &Site| auth(site).1["credentials"][0]["identity"].clone();
    let before = identity(&site);
    assert!(before.is_string());
    for repair in [&["up", "--detach"][..], &["doctor", "auth", "--fix"][..]] {
        let (manager, daemon) = (site.pid(RECORD), site.daemon());
        for pid in [manager, daemon, site.broker()] {
            signal(pid, Signal::TERM);
            wait_until("its end", || !is_alive(pid));
        }
        damage(&site, CREDS);
        let found = finding(&site, "main/delivery").unwrap();
        assert_eq!(found["verdict"], "broken", "{found}");
        let (code, found) = auth(&site);
        assert_eq!((code, state(&found, "delivery").as_str()), (1, "damaged"));

        site.run(repair).ok();
        let (_, found) = auth(&site);
        assert_eq!(state(&found, "delivery"), "good");
        assert_eq!(identity(&site), before, "{repair:?}");
        site.run(&["up", "--detach"]).ok();
        site.run(&["status"]).ok();
    }
}

#[test]
fn doctor_names_an_agents_damaged_credential_with_what_to_do() {
    let site = Site::up();
    site.run(&["agent", "add", "Bob", "--read", "team.>"]).ok();
    let named = |site: &Site| finding(site, "main/agents/local.bob");
    assert_eq!(named(&site), None, "one in order is not listed");
    damage(&site, "main/agents/local.bob.creds");
    let found = named(&site).unwrap();
    assert_eq!(found["verdict"], "broken");
    assert!(found["detail"].as_str().unwrap().contains("cotal agent retire"), "{found}");
    site.run(&["agent", "retire", "bob", "--space", "main"]).ok();
    site.run(&["agent", "add", "Bob", "--read", "team.>"]).ok();
    assert_eq!(named(&site), None);
}
