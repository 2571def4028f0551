//! Agents, channels and members on the command line.

use serde_json::json;

use crate::site::Site;

#[test]
fn an_agent_is_added_once_and_listed() {
    let site = Site::up();
    let add = ["agent", "add", "Bob", "--read", "team.>", "ops.*", "--post", "team.backend"];
    let run = site.run(&add).ok();
    let creds = site.path("main/agents/local.bob.creds");
    assert_eq!(run.out.trim(), creds.to_str().unwrap());
    site.run(&add).ok().says("already");
    site.run(&["agent", "add", "BOB", "--read", "team.>"]).ends(8).says("nothing was changed");
    let wanted = json!([{
        "principal": "local.bob", "name": "Bob", "present": false, "role": null,
        "read": ["team.>", "ops.*"], "post": ["team.backend"],
        "unfinished": [],
    }]);
    assert_eq!(site.json(&["agent", "list", "--json"]), wanted);
    let table = site.run(&["agent", "list"]).ok();
    assert_eq!(table.out.lines().count(), 2, "{table:?}");
}

#[test]
fn channels_are_set_by_setting_and_listed_with_their_class() {
    let site = Site::up();
    site.run(&["channel", "set", "team.a", "--description", "Work"]).ok();
    site.run(&["channel", "set", "team.a", "--class", "live"]).ok();
    site.run(&["channel", "set", "team.b", "--replay", "true"]).ok();
    let list = site.json(&["channel", "list", "--json"]);
    assert_eq!(list["channels"][0]["config"]["description"], "Work");
    assert_eq!(list["channels"][0]["class"], "live");
    assert_eq!(list["channels"][1]["class"], "durable");
    site.run(&["channel", "set", "--defaults", "--class", "live"]).ok();
    let list = site.json(&["channel", "list", "--json"]);
    assert_eq!(list["channels"][1]["class"], "live");
    site.run(&["channel", "set", "team.a"]).ends(2);
    site.run(&["channel", "set", "a.>", "--class", "live"]).ends(2);
}

#[test]
fn members_are_listed_by_name_and_never_by_incarnation() {
    let site = Site::up();
    site.run(&["agent", "add", "Bob", "--read", "team.>", "--post", "team.>"]).ok();
    assert_eq!(site.json(&["members", "team.a", "--json"]), json!([]));
    site.run(&["join", "team.a", "--as", "bob"]).ok();
    let members = site.json(&["members", "team.a", "--json"]);
    let bob = &members[0];
    assert_eq!((&bob["name"], &bob["principal"]), (&json!("Bob"), &json!("local.bob")));
    assert_eq!((&bob["activated"], &bob["leaveCursor"]), (&json!(true), &json!(null)));
    let creds = std::fs::read_to_string(site.path("main/agents/local.bob.creds")).unwrap();
    let uid = cotal_wire::creds::Creds::parse(&creds).unwrap().claims.lifecycle().unwrap().uid;
    for args in [&["members", "team.a", "--json"][..], &["agent", "list", "--json"], &["status"]] {
        assert!(!site.run(args).out.contains(uid.as_str()), "{args:?} shows a uid");
    }
    site.run(&["leave", "team.a", "--as", "bob"]).ok();
    assert_eq!(site.json(&["members", "team.a", "--json"]), json!([]));
    let all = site.json(&["members", "team.a", "--all", "--json"]);
    assert_eq!(all.as_array().unwrap().len(), 1);
}

#[test]
fn a_post_bears_the_display_name_however_its_agent_is_typed() {
    let site = Site::up();
    site.run(&["agent", "add", "Bob", "--read", "team.>", "--post", "team.>"]).ok();
    site.run(&["agent", "add", "carol", "--read", "team.>"]).ok();
    site.run(&["join", "team.a", "--as", "carol"]).ok();
    for typed in ["BOB", "local.bob"] {
        site.run(&["post", "team.a", "hello", "--as", typed]).ok();
        let inbox = site.json(&["inbox", "--as", "carol", "--count", "1", "--json"]);
        assert!(inbox.to_string().contains("\"name\":\"Bob\""), "{inbox}");
    }
}

#[test]
fn an_agent_is_granted_more_shown_and_given_a_new_key() {
    let site = Site::up();
    site.run(&["agent", "add", "bob", "--read", "team.a"]).ok();
    site.run(&["join", "team.a", "--as", "bob"]).ok();
    site.run(&["agent", "grant", "bob"]).ends(2).says("nothing to grant");
    site.run(&["agent", "grant", "nobody", "--read", "x"]).ends(4);
    site.run(&["agent", "grant", "bob", "--read", "ops", "--post", "ops", "--role", "cook"]).ok();
    let shown = site.json(&["agent", "show", "bob", "--json"]);
    assert_eq!(shown["read"], serde_json::json!(["team.a", "ops"]));
    assert_eq!((&shown["post"][0], &shown["role"]), (&"ops".into(), &"cook".into()));
    assert!(site.run(&["agent", "show", "bob"]).ok().out.contains("read      team.a,ops"));
    site.run(&["agent", "show", "nobody"]).ends(4);
    site.run(&["post", "ops", "hello", "--as", "bob"]).ok();

    let file = shown["creds"].as_str().expect("a file");
    let leaked = std::fs::read_to_string(file).unwrap();
    site.run(&["agent", "rekey", "bob"]).ok().says("the old one is refused");
    assert_ne!(std::fs::read_to_string(file).unwrap(), leaked);
    let members = site.json(&["members", "team.a", "--json"]);
    assert!(members.to_string().contains("local.bob"), "{members}");
    site.run(&["post", "ops", "again", "--as", "bob"]).ok();
}

#[test]
fn what_was_begun_or_is_damaged_is_told_by_list_status_and_doctor() {
    let site = Site::up();
    for name in ["alice", "bob", "carol"] {
        site.run(&["agent", "add", name, "--read", "a"]).ok();
    }
    std::fs::write(site.path("main/agents/local.alice.creds"), "damaged").unwrap();
    std::fs::write(site.path("main/agents/local.bob.retiring"), "{}").unwrap();
    let wanted = [
        ("local.alice", "its credential is damaged"),
        ("local.alice", "`cotal agent retire alice` ends it"),
        ("local.bob", "its retirement has begun"),
        ("local.bob", "`cotal agent retire bob` finishes it"),
    ];
    let list = site.run(&["agent", "list"]).ok();
    for name in ["alice", "bob", "carol"] {
        assert!(list.out.contains(&format!("local.{name}")), "{list:?}");
    }
    let status = site.run(&["status"]);
    let doctor = site.run(&["doctor"]).ends(1);
    for (agent, told) in wanted {
        let tells = |text: &str| text.lines().any(|l| l.contains(agent) && l.contains(told));
        assert!(tells(&list.err), "{agent}: {told}: {list:?}");
        assert!(tells(&status.err), "{agent}: {told}: {status:?}");
    }
    assert!(doctor.out.contains("its retirement has begun"), "{doctor:?}");
    // The remedy that is named works.
    site.run(&["agent", "retire", "alice"]).ok();
    site.run(&["agent", "add", "alice", "--read", "a"]).ok();
}
