//! What people do every day.

use serde_json::{Value, json};

use crate::site::Site;

/// One mesh for all of it: each part says what it is about.
#[test]
fn what_people_do_every_day() {
    let site = Site::up();
    site.run(&["agent", "add", "alice", "--read", "team.>", "--post", "team.>"]).ok();
    site.run(&["agent", "add", "bob", "--read", "team.a", "--post", "team.a"]).ok();
    site.run(&["join", "team.a", "--as", "bob"]).ok();
    inbox(&site);
    history(&site);
    channels(&site);
    logs(&site);
}

fn inbox(site: &Site) {
    let unread = || site.json(&["unread", "--as", "bob", "--json"])["unread"].clone();
    assert_eq!(unread(), json!(0));
    site.run(&["inbox", "--as", "bob", "--timeout", "600ms"]).ends(5).says("in time");
    let first = site.json(&["post", "team.a", "question", "--as", "alice", "--json"]);
    let id = first["id"].as_str().unwrap();
    let peek = site.run(&["inbox", "--as", "bob", "--peek", "--ids", "--timeout", "20s"]).ok();
    assert!(peek.out.starts_with(id) && peek.out.ends_with(": question\n"), "{peek:?}");
    assert!(!peek.err.contains("another reader"), "{peek:?}");
    assert_eq!(unread(), json!(1));
    assert_eq!(site.run(&["unread", "--as", "bob"]).ok().out, "1\n");
    site.run(&["post", "team.a", "answer", "--as", "bob", "--reply-to", id]).ok();
    let read = site.run(&["inbox", "--as", "bob", "--timeout", "20s"]).ok();
    assert!(read.out.ends_with(": question\n"), "{read:?}");
    assert_eq!(unread(), json!(0));
}

fn history(site: &Site) {
    let run = site.run(&["history", "team.a", "--as", "alice"]).ok();
    let lines: Vec<_> = run.out.lines().collect();
    assert!(lines.len() == 2 && lines[1].ends_with("local.bob (history): answer"), "{run:?}");
    let run = site.run(&["history", "team.a", "--as", "alice", "--json"]).ok();
    let posts: Vec<Value> = run.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(posts[1]["message"]["replyTo"], posts[0]["id"]);
    std::thread::sleep(std::time::Duration::from_millis(20));
    let none = site.run(&["history", "team.a", "--as", "alice", "--since", "1ms"]).ok();
    assert!(none.out.is_empty() && none.err.contains("no posts of team.a"), "{none:?}");
    let denied = site.run(&["history", "team.b", "--as", "bob"]).ends(3);
    assert!(denied.err.contains("`cotal agent grant bob --read team.b`"), "{denied:?}");
}

fn channels(site: &Site) {
    site.run(&["channel", "show", "team.z"]).ends(4).says("no settings and no posts");
    site.run(&["channel", "remove", "team.a"]).ends(4).says("no settings of its own");
    let set = ["channel", "set", "team.a", "--class", "live", "--replay", "true"];
    site.run(&[&set[..], &["--instructions", "Be brief."]].concat()).ok();
    let shown = site.json(&["channel", "show", "team.a", "--json"]);
    let of = |key: &str| shown[key].clone();
    assert_eq!((of("class"), of("posts"), of("replay")), (json!("live"), json!(2), json!(true)));
    let shown = site.run(&["channel", "show", "team.a"]).ok();
    assert!(shown.out.contains("joiners are shown  all history"), "{shown:?}");
    assert!(shown.out.contains("Be brief."), "{shown:?}");
    site.run(&["channel", "remove", "team.a"]).ok();
    assert_eq!(site.json(&["channel", "show", "team.a", "--json"])["class"], "durable");
}

fn logs(site: &Site) {
    for whose in ["delivery", "manager", "broker"] {
        let run = site.run(&["logs", whose, "--lines", "3"]).ok();
        assert!((1..=3).contains(&run.out.lines().count()), "{run:?}");
    }
    site.run(&["logs", "--space", "other"]).ends(4);
}
