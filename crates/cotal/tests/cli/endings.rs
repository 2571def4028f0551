//! `agent retire` and `agent narrow` on the command line.

use rustix::process::Signal;
use serde_json::json;

use crate::site::{Site, is_alive, signal, wait_until};

const BOB: [&str; 7] = ["agent", "add", "Bob", "--read", "team.>", "--post", "team.>"];

#[test]
fn a_retirement_tells_what_it_ended_and_frees_the_name() {
    let site = Site::up();
    site.run(&["agent", "retire", "bob"]).ends(4).says("not a live agent of this space");
    site.run(&["agent", "retire", "bad-name"]).ends(2).says("cannot be an agent's name");
    site.run(&BOB).ok();
    site.run(&["join", "team.a", "--as", "bob"]).ok();
    let creds = site.path("main/agents/local.bob.creds");
    let before = std::fs::read_to_string(&creds).unwrap();

    let run = site.run(&["agent", "retire", "BOB", "--json"]).ok();
    let told: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(told, json!({ "principal": "local.bob", "channels": ["team.a"], "kicked": 0 }));
    let run = run.says("local.bob is retired: no connection of it remains");
    let uid = cotal_wire::creds::Creds::parse(&before).unwrap().claims.lifecycle().unwrap().uid;
    assert!(!run.out.contains(uid.as_str()) && !run.err.contains(uid.as_str()));
    assert!(!creds.exists());
    assert_eq!(site.json(&["agent", "list", "--json"]), json!([]));
    assert_eq!(site.json(&["members", "team.a", "--all", "--json"]), json!([]));
    site.run(&["post", "team.a", "hello", "--as", "bob"]).ends(4);
    site.run(&["agent", "retire", "bob"]).ends(4);

    site.run(&BOB).ok().says("is provisioned");
    let plain = site.run(&["agent", "retire", "bob"]).ok().says("is retired");
    assert_eq!(plain.out, "", "what was done is said on standard error");
}

/// The command is killed while it waits for a daemon that is not there.
#[test]
fn a_retirement_that_is_killed_holds_the_name_until_it_is_run_again() {
    let site = Site::up();
    site.run(&BOB).ok();
    let daemon = site.daemon();
    signal(daemon, Signal::TERM);
    wait_until("the daemon's end", || !is_alive(daemon));
    let mut retiring = site.command(&["agent", "retire", "bob"]).spawn().unwrap();
    let record = "main/agents/local.bob.retiring";
    wait_until("the key is revoked", || site.read(record).contains("refused"));
    retiring.kill().unwrap();
    retiring.wait().unwrap();
    site.run(&BOB).ends(8).says("finish it with `cotal agent retire`");
    site.run(&["agent", "narrow", "bob", "--read-nothing"]).ends(8).says("is being retired");
    site.run(&["up", "--detach"]).ok();
    site.run(&["agent", "retire", "bob"]).ok();
    assert!(!site.path(record).exists());
    site.run(&BOB).ok();
}

#[test]
fn a_narrowing_takes_channels_away_and_never_gives_any() {
    let site = Site::up();
    site.run(&["agent", "narrow", "bob", "--read", "team.a"]).ends(4).says("not a live agent");
    site.run(&["agent", "narrow", "bob", "--read", "a..b"]).ends(2);
    site.run(&BOB).ok();
    let creds = site.path("main/agents/local.bob.creds");
    let before = std::fs::read_to_string(&creds).unwrap();
    let wider = site.run(&["agent", "narrow", "bob", "--read", "ops"]).ends(2);
    assert!(wider.says("local.bob may not read ops now").out.is_empty());
    assert_eq!(std::fs::read_to_string(&creds).unwrap(), before, "nothing was changed");

    let run = site.run(&["agent", "narrow", "bob", "--read", "team.a", "team.b"]).ok();
    assert_eq!(run.out.trim(), creds.to_str().unwrap());
    run.says("local.bob is narrowed; its credential file is replaced");
    assert_ne!(std::fs::read_to_string(&creds).unwrap(), before);
    let read = |site: &Site| site.json(&["agent", "list", "--json"])[0]["read"].clone();
    assert_eq!(read(&site), json!(["team.a", "team.b"]));
    site.run(&["join", "team.c", "--as", "bob"]).ends(3);
    site.run(&["post", "team.c", "hello", "--as", "bob"]).ok();

    let told = site.json(&["agent", "narrow", "bob", "--read-nothing", "--json"]);
    assert_eq!(told, json!({ "principal": "local.bob", "read": [], "creds": creds }));
    assert_eq!(read(&site), json!([]));
}

/// A member that has one unread copy of a channel, and the daemon that handed it off.
fn with_an_unread_copy() -> (Site, u32) {
    let site = Site::up();
    site.run(&BOB).ok();
    site.run(&["agent", "add", "alice", "--post", "team.>"]).ok();
    site.run(&["join", "team.a", "--as", "bob"]).ok();
    site.run(&["post", "team.a", "secret", "--as", "alice"]).ok();
    wait_until("the copy", || {
        site.json(&["status", "--json"]).to_string().contains("\"delivered\":1")
    });
    let daemon = site.daemon();
    (site, daemon)
}

const NARROW: [&str; 5] = ["agent", "narrow", "bob", "--read", "team.b"];

/// What stands at once is that nobody can read as the agent; the credential comes with the recall.
#[test]
fn rdr_12_a_narrowing_without_a_daemon_ends_with_7_and_the_same_command_finishes_it() {
    let (site, daemon) = with_an_unread_copy();
    signal(daemon, Signal::TERM);
    wait_until("the daemon's end", || !is_alive(daemon));
    let creds = "main/agents/local.bob.creds";
    let before = site.read(creds);
    let run = site.run(&NARROW).ends(7).says("No new credential is published yet");
    run.says("run the same command again");
    assert_eq!(site.read(creds), before);
    assert_eq!(site.json(&["agent", "list", "--json"])[1]["read"], json!(["team.b"]));
    site.run(&["inbox", "--as", "bob"]).ends(3);

    site.run(&["up", "--detach"]).ok();
    site.run(&NARROW).ok().says("local.bob is narrowed");
    assert_ne!(site.read(creds), before);
    assert_eq!(site.run(&["inbox", "--as", "bob"]).ok().out, "");
}

#[test]
fn a_narrowing_that_the_daemon_does_not_answer_ends_with_5() {
    let (site, daemon) = with_an_unread_copy();
    signal(daemon, Signal::STOP);
    let run = site.run(&NARROW);
    signal(daemon, Signal::CONT);
    run.ends(5).says("run the same command again");
    site.run(&NARROW).ok();
    assert_eq!(site.run(&["inbox", "--as", "bob"]).ok().out, "");
}

#[test]
fn up_puts_a_garbled_channel_row_back() {
    let site = Site::up();
    site.run(&["channel", "set", "team.a", "--class", "live"]).ok();
    let listed = site.json(&["channel", "list", "--json"]);
    // A running manager would put them back first.
    let manager = site.pid("manager.main.pid");
    signal(manager, Signal::KILL);
    wait_until("the manager's end", || !is_alive(manager));
    garble(&site, "team.a");
    garble(&site, "=defaults");
    let up = site.run(&["up", "--detach"]).ok();
    let up = up.says("the config of channel team.a was garbled; the last valid one is put back");
    up.says("the config of channel =defaults was garbled; the last valid one is put back");
    assert_eq!(site.json(&["channel", "list", "--json"]), listed);
    let again = site.run(&["up", "--detach"]).ok();
    assert!(!again.err.contains("garbled"), "{again:?}");
}

/// Writes over a channel's row what a broker's answer would leave there.
fn garble(site: &Site, key: &str) {
    let root = cotal_workspace::Root::find(site.root()).unwrap();
    let space = cotal_wire::Space::parse("main").unwrap();
    let authority = cotal_manager::Authority::open(&root, &space).unwrap();
    let server = site.json(&["status", "--json"])["broker"]["server"].as_str().unwrap().to_owned();
    let address = cotal_manager::BrokerAddress { url: server, tls: cotal_nats::TlsMode::Plain };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let office = cotal_manager::Office::Operator;
        let (_, connection) = authority.connect(office, &address).await.unwrap();
        let name = space.bucket(cotal_wire::names::Bucket::Channels);
        let kv = cotal_nats::Bucket::new(&connection, &name);
        let garbage = r#"{"stream":"CHAT_main","seq":1}"#;
        kv.put(key, garbage.into()).await.unwrap();
    });
}
