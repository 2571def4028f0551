//! Timers and the membership feed on the command line.

use std::os::unix::fs::PermissionsExt as _;

use cotal_nats::{Bucket, ConnectOptions, Connection, Creds, CredsSource};
use cotal_wire::names::{self, FEED_KEY};
use cotal_wire::{ChannelPattern, Space};
use rustix::process::Signal;
use serde_json::json;

use crate::site::{Site, is_alive, signal, wait_until};

const T1: &str = "wf.run-7.1.t1";
const T2: &str = "wf.run-7.1.t2";

fn stop_daemon(site: &Site) {
    let daemon = site.daemon();
    signal(daemon, Signal::TERM);
    wait_until("the daemon's end", || !is_alive(daemon));
}

#[test]
fn tmr_1_a_timer_is_set_listed_awaited_and_cancelled() {
    let site = Site::up();
    let set = site.run(&["timer", "set", T1, "--in", "1s"]).ok();
    assert!(set.out.starts_with(&format!("{T1} is armed for ")), "{set:?}");
    assert_eq!(site.run(&["timer", "wait", T1, "--within", "30s"]).ok().out, "fired\n");
    let fired = site.json(&["timer", "list", "--fired", "--json"]);
    assert_eq!((&fired[0]["timer"], &fired[0]["generation"]), (&json!(T1), &json!(1)));
    site.run(&["timer", "cancel", T1]).ends(8).says("has fired already");

    site.run(&["timer", "set", T2, "--in", "1h"]).ok();
    site.run(&["timer", "set", T2, "--in", "1s", "--generation", "1"]).ends(8);
    site.run(&["timer", "wait", T2, "--within", "300ms"]).ends(5);
    assert_eq!(site.run(&["timer", "cancel", T2]).ok().out, "cancelled\n");
    let listed = site.json(&["timer", "list", "--endpoint", "wf", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "what has fired is not armed: {listed}");
    assert_eq!((&listed[0]["state"], &listed[0]["generation"]), (&json!("cancelled"), &json!(2)));
    let status = site.run(&["status"]).ok();
    assert!(status.out.contains("timers    3 armed, 0 requests refused"), "{status:?}");

    site.run(&["timer", "wait", "wf.run-7.1.unknown"]).ends(4);
    site.run(&["timer", "set", "wf.t", "--in", "1s"]).ends(2).says("is not a timer");
    site.run(&["timer", "set", T1, "--at", "2300-01-01T00:00:00Z"]).ends(2).says("cannot be armed");
    assert_eq!(site.json(&["timer", "list", "--endpoint", "other", "--json"]), json!([]));
}

#[test]
fn tmr_1_without_a_daemon_a_timer_is_stored_and_not_called_armed() {
    let site = Site::up();
    stop_daemon(&site);
    site.run(&["timer", "set", T1, "--in", "1h"]).ends(7).says("stored and not armed");
    assert_eq!(site.json(&["timer", "list", "--json"]), json!([]));
    site.run(&["up", "--detach", "--server-port", "0"]).ok();
    let armed = || site.json(&["timer", "list", "--json"])[0]["timer"] == json!(T1);
    wait_until("the timer is armed", armed);
}

#[test]
fn an_endpoints_credential_is_its_owners_alone_and_no_file_is_written_over() {
    let site = Site::up();
    site.run(&["timer", "creds", "wf", "--out", "wf.creds"]).ok();
    let file = site.root().join("wf.creds");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    let claims = cotal_wire::creds::Creds::parse(&text).unwrap().claims;
    assert_eq!(claims.endpoint().unwrap().as_str(), "wf");
    let again = site.run(&["timer", "creds", "wf", "--out", "wf.creds"]);
    assert_ne!(again.code, 0, "{again:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

async fn connect(site: &Site, creds: &str) -> Connection {
    let text = std::fs::read_to_string(site.path(creds)).unwrap();
    let mesh: serde_json::Value = serde_json::from_str(&site.read("mesh.json")).unwrap();
    let source = CredsSource::new(Creds::parse(&text).unwrap());
    let server = mesh["server"].as_str().unwrap();
    Connection::connect(ConnectOptions::new(server, "test", source)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn fed_1_who_shows_live_readers_and_durable_members_and_says_when_it_is_stale() {
    let site = Site::up();
    for name in ["bob", "carol"] {
        site.run(&["agent", "add", name, "--read", "team.>", "--post", "team.>"]).ok();
    }
    site.run(&["join", "team.a", "--as", "bob"]).ok();
    let space = Space::parse("main").unwrap();
    let carol = connect(&site, "main/agents/local.carol.creds").await;
    let reads = space.chat_channel(&ChannelPattern::parse("team.>").unwrap());
    let _live = carol.subscribe(reads, None).await.unwrap();
    let is_shown = || {
        let who = site.json(&["who", "--json"]);
        let row = |n: usize| who["rows"][n].clone();
        who["stale"] == json!(false)
            && (&row(0)["name"], &row(0)["durable"]) == (&json!("bob"), &json!(["team.a"]))
            && (&row(1)["name"], &row(1)["live"]) == (&json!("carol"), &json!(["team.>"]))
    };
    wait_until("both are shown", is_shown);
    let members = site.json(&["members", "team.a", "--json"]);
    assert_eq!((&members[0]["name"], &members[0]["live"]), (&json!("bob"), &json!(false)));
    assert_eq!((&members[1]["name"], &members[1]["state"]), (&json!("carol"), &json!("live only")));
    assert_eq!(members.as_array().unwrap().len(), 2);

    stop_daemon(&site);
    let writer = connect(&site, "main/membership-rw.creds").await;
    let feed = Bucket::new(&writer, &space.bucket(names::Bucket::Membership));
    feed.put(FEED_KEY, "{\"observedAt\":1000,\"freshUntil\":2000}".into()).await.unwrap();
    site.run(&["who"]).ok().says("stale");
    assert_eq!(site.json(&["who", "--json"])["stale"], json!(true));
    let members = site.json(&["members", "team.a", "--json"]);
    assert_eq!(members[0]["live"], json!(null), "nobody is called live by a stale feed");
    assert_eq!(members.as_array().unwrap().len(), 1);
    feed.delete(FEED_KEY, None).await.unwrap();
    site.run(&["who"]).ok().says("no daemon has listed it yet");
}
