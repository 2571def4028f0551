//! Nothing is said that is not so.

use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::site::{Run, Site, is_alive, signal, wait_until};

fn site() -> Site {
    let site = Site::up();
    site.run(&["agent", "add", "alice", "--read", "team.>", "--post", "team.>"]).ok();
    site.run(&["agent", "add", "Bob", "--read", "team.>", "--role", "reviewer"]).ok();
    site
}

/// One mesh for all of it: each part says what it is about.
#[test]
fn nothing_is_said_that_is_not_so() {
    let site = site();
    nowhere(&site);
    given_back(&site);
    joined(&site);
    present_and_left(&site);
    refused_for_good(&site);
    remedies(&site);
    nothing_can_arrive(&site);
}

/// What would reach nobody is refused, or said to wait.
fn nowhere(site: &Site) {
    site.run(&["dm", "nobody", "x", "--as", "alice"]).ends(4).says("local.nobody does not exist");
    site.run(&["dm", "local.Bob", "x", "--as", "alice"]).ends(4).says("did you mean local.bob?");
    site.run(&["dm", "BOB", "x", "--as", "alice"]).ok();
    let post = ["post", "team.a", "x", "--as", "alice", "--mention"];
    site.run(&[&post[..], &["nobody"]].concat()).ends(4).says("is called \"nobody\"");
    site.run(&[&post[..], &["@BOB"]].concat()).ok();
    site.run(&["agent", "add", "deaf"]).ok();
    site.run(&[&post[..], &["deaf"]].concat()).ok().says("local.deaf may not read team.a");
    site.run(&["ask", "Reviewer", "x", "--as", "alice"]).ends(4).says("did you mean reviewer?");
    let waits = site.run(&["ask", "cook", "x", "--as", "alice"]).ok();
    assert!(waits.err.contains("nobody has ever held the role cook"), "{waits:?}");
    site.run(&["request", "cancel", waits.out.trim(), "--as", "alice"]).ok();
    site.run(&["ask", "reviewer", "wait", "--as", "alice"]).ok();
    let only = site.json(&["inbox", "--as", "bob", "--json"]);
    assert_eq!(only["channel"], json!(null), "only the direct message reached anybody: {only}");
}

/// A request that nobody has any more is its sender's again.
fn given_back(site: &Site) {
    let serve = ["serve", "reviewer", "--as", "bob", "--count", "1", "--exec", "exit 7"];
    site.run(&serve).ok().says("is given back");
    let requests = site.json(&["requests", "--as", "alice", "--json"]);
    let last = requests.as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["state"], "queued", "{requests}");
    let seq = last["seq"].to_string();
    let status = site.run(&["request", "status", &seq, "--as", "alice"]).ok();
    assert!(status.out.starts_with("given back by local.bob"), "{status:?}");
    site.run(&["request", "cancel", &seq, "--as", "alice"]).ok();

    let asked = site.run(&["ask", "reviewer", "to one who is retired", "--as", "alice"]).ok();
    let seq = asked.out.trim().to_owned();
    site.run(&["agent", "add", "carol", "--role", "reviewer"]).ok();
    let mut held = spawn(site, &["serve", "reviewer", "--as", "carol", "--exec", "sleep 600"]);
    let state =
        || site.json(&["request", "status", &seq, "--as", "alice", "--json"])["state"].clone();
    wait_until("carol has it", || state() == "taken");
    signal(held.id(), Signal::KILL);
    held.wait().unwrap();
    assert_eq!(state(), "taken");
    site.run(&["agent", "retire", "carol"]).ok();
    assert_eq!(state(), "queued");
    site.run(&["request", "cancel", &seq, "--as", "alice"]).ok();
    assert_eq!(state(), "cancelled");
}

/// What a channel's settings say has an effect.
fn joined(site: &Site) {
    let set =
        ["channel", "set", "team.past", "--replay", "true", "--instructions", "Be brief.\nAlways."];
    site.run(&set).ok();
    for text in ["first", "second"] {
        site.run(&["post", "team.past", text, "--as", "alice"]).ok();
    }
    let run = site.run(&["join", "team.past", "--as", "bob"]).ok();
    assert!(run.err.contains("members are asked: Be brief.\n    Always."), "{run:?}");
    let history: Vec<_> = run.out.lines().skip(1).collect();
    assert!(
        matches!(history[..], [one, two] if one.ends_with("team.past local.alice (history): first")
            && two.ends_with("(history): second")),
        "{run:?}"
    );
    let again = site.json(&["join", "team.past", "--as", "bob", "--json"]);
    assert_eq!(again["instructions"], "Be brief.\nAlways.");
    let texts: Vec<_> =
        again["history"].as_array().unwrap().iter().map(|m| m["text"].clone()).collect();
    assert_eq!(texts, ["first", "second"]);
    assert_eq!(again["history"][0]["source"], "backfilled");
    let plain = site.run(&["join", "team.a", "--as", "bob"]).ok();
    assert!(plain.out.lines().count() == 1 && plain.err.is_empty(), "{plain:?}");
}

fn present_and_left(site: &Site) {
    let serving = spawn(site, &["serve", "reviewer", "--as", "bob"]);
    let is_present = || site.json(&["agent", "show", "bob", "--json"])["present"] == json!(true);
    wait_until("whoever serves is present", is_present);
    ended(serving, Some(Signal::TERM)).ok();
    site.run(&["leave", "team.a", "--as", "bob"]).ok();
    let all = site.json(&["members", "team.a", "--all", "--json"]);
    assert_eq!(all[0]["state"], "left", "{all}");
}

/// A credential that is over is told once, with the code of a missing permission; one that is
/// replaced goes on.
fn refused_for_good(site: &Site) {
    let mut inbox = spawn(site, &["inbox", "--as", "bob", "--follow", "--json"]);
    let mut serving = spawn(site, &["serve", "reviewer", "--as", "bob"]);
    let is_present = || site.json(&["agent", "show", "bob", "--json"])["present"] == json!(true);
    wait_until("bob is there", is_present);
    site.run(&["agent", "narrow", "bob", "--read", "team.a", "team.past"]).ok();
    site.run(&["dm", "bob", "after the narrowing", "--as", "alice"]).ok();
    let arrived = || {
        let waiting = site.run(&["inbox", "--as", "bob", "--json", "--settle", "300"]);
        waiting.out.is_empty() && waiting.code == 0
    };
    wait_until("the narrowed agent reads on", arrived);
    assert!(inbox.try_wait().unwrap().is_none() && serving.try_wait().unwrap().is_none());
    site.run(&["agent", "retire", "bob"]).ok();
    for child in [inbox, serving] {
        let run = ended(child, None).ends(3);
        assert_eq!(run.err.matches("does not accept the credential").count(), 3, "{run:?}");
        assert!(run.err.contains("retired") && run.err.lines().count() < 15, "{run:?}");
    }
    site.run(&["dm", "bob", "x", "--as", "alice"]).ends(4).says("is retired");
}

/// What a message says to do works.
fn remedies(site: &Site) {
    site.run(&["agent", "add", "dave", "--read", "team.>"]).ok();
    for file in ["creds", "nkey"] {
        std::fs::remove_file(site.path(&format!("main/agents/local.dave.{file}"))).unwrap();
    }
    let remedy = "`cotal agent retire dave --key-unknown`";
    for args in [
        &["agent", "add", "dave", "--read", "team.>"][..],
        &["agent", "narrow", "dave", "--read", "team.a"],
        &["agent", "retire", "dave"],
    ] {
        site.run(args).ends(4).says(remedy);
    }
    site.run(&["agent", "retire", "dave", "--key-unknown"]).ok().says("is retired");
    site.run(&["agent", "add", "dave", "--read", "team.>"]).ok().says("is provisioned");
}

/// Without a daemon an empty inbox says nothing about what was posted.
fn nothing_can_arrive(site: &Site) {
    site.run(&["join", "team.a", "--as", "alice"]).ok();
    site.run(&["inbox", "--as", "alice", "--json"]).ok();
    let daemon = site.daemon();
    signal(daemon, Signal::KILL);
    wait_until("the daemon's end", || !is_alive(daemon));
    let run = site.run(&["inbox", "--as", "alice"]).ends(7);
    let said =
        "nothing has arrived, and no post on a durable channel can arrive: no delivery daemon runs";
    assert!(run.err.contains(said) && run.err.contains("`cotal up`"), "{run:?}");
    site.run(&["inbox", "--as", "alice", "--json"]).ends(7).says("can arrive");
}

fn spawn(site: &Site, args: &[&str]) -> Child {
    site.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(child: Child, by: Option<Signal>) -> Run {
    if let Some(by) = by {
        signal(child.id(), by);
    }
    Run::of(child.wait_with_output().unwrap())
}

/// Somebody else's broker on the port is no reason to doubt the agent.
#[test]
fn a_foreign_broker_is_told_apart_from_a_retired_agent() {
    let site = site();
    let other = site.beside("other");
    let mesh: Value = serde_json::from_str(&site.read("mesh.json")).unwrap();
    let port = mesh["server"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
    site.run(&["down"]).ok();
    other.run(&["up", "--detach", "--server-port", &port, "--space", "elsewhere"]).ok();
    let run = site.run(&["post", "team.a", "x", "--as", "alice"]);
    assert!(run.code != 0 && run.err.contains("is not this root's broker"), "{run:?}");
    assert!(!run.err.contains("retirement"), "{run:?}");
}
