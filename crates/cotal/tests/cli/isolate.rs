//! `cotal space isolate`: a space of one account is moved to three.

use cotal_manager::Authority;
use cotal_wire::Space;
use cotal_wire::accounts::{Account, Topology};
use cotal_workspace::Root;
use serde_json::Value;

use crate::site::Site;

/// What `doctor` says of the accounts of `main`.
fn accounts(site: &Site) -> (String, String) {
    let findings = site.json(&["doctor", "--json"]);
    let findings = findings.as_array().unwrap();
    let found = findings.iter().find(|f| f["check"] == "accounts of main").unwrap();
    let text = |field: &str| found[field].as_str().unwrap().to_owned();
    (text("verdict"), text("detail"))
}

fn creds(site: &Site, agent: &str) -> String {
    site.read(&format!("main/agents/local.{agent}.creds"))
}

/// An agent whose credential lets it hear and call anything is found by an audit.
fn too_wide(site: &Site, space: &Space, creds: &str) {
    let root = Root::init(site.root()).unwrap();
    let authority = Authority::open(&root, space).unwrap();
    let claims = cotal_wire::creds::Creds::parse(creds).unwrap().claims;
    let key = cotal_trust::UserKey::generate();
    let inbox = format!("_INBOX_{}.>", key.public_key());
    let all = vec!["cotal.>".to_owned(), inbox, "$JS.API.>".to_owned()];
    let spec = cotal_trust::UserSpec {
        name: "wide",
        key: &key,
        tags: claims.tags,
        permissions: cotal_wire::permissions::Permissions {
            pub_allow: all.clone(),
            sub_allow: all,
            ..Default::default()
        },
        issued_at: cotal_manager::clock::unix_seconds(),
        expires_at: None,
    };
    let keys = authority.account().keys_of(Account::Agents);
    let minted = cotal_trust::mint_user(keys, &spec).unwrap();
    let file = site.root().join("wide.creds");
    std::fs::write(&file, minted.creds.expose()).unwrap();
    let audit = site.run(&["audit", "--creds", file.to_str().unwrap()]).ends(1);
    assert!(audit.err.contains("subscribe to cotal.main.chat.>"), "{audit:?}");
    assert!(audit.err.contains("attempts are not refused"), "{audit:?}");
}

#[test]
fn a_space_of_one_account_is_moved_with_its_agents_their_posts_and_memberships() {
    let site = Site::new();
    let root = Root::init(site.root()).unwrap();
    let space = Space::parse("main").unwrap();
    Authority::create_as(&root, &space, Topology::One).unwrap();
    site.run(&["space", "isolate", "main"]).ends(4);
    site.run(&["up", "--detach", "--server-port", "0"]).ok();
    assert_eq!(accounts(&site).0, "warning");
    site.run(&["space", "isolate", "other"]).ends(1).says("not of this root");
    for name in ["alice", "bob"] {
        site.run(&["agent", "add", name, "--read", "team", "--post", "team"]).ok();
    }
    site.run(&["join", "team", "--as", "bob"]).ok();
    site.run(&["post", "team", "before the move", "--as", "alice"]).ok();
    site.run(&["audit", "--as", "bob"]).ok().says("the broker refuses all");
    let before = ["alice", "bob"].map(|name| creds(&site, name));
    let uid = |text: &str| {
        let claims = cotal_wire::creds::Creds::parse(text).unwrap().claims;
        claims.lifecycle().unwrap().uid
    };

    let moved = site.run(&["space", "isolate", "main"]).ok().says("2 agents' credentials");
    assert!(moved.err.contains("delivery daemon serving"), "{moved:?}");
    assert_eq!(accounts(&site).0, "ok");
    let after = ["alice", "bob"].map(|name| creds(&site, name));
    for (old, new) in before.iter().zip(&after) {
        assert!(old != new && uid(old) == uid(new));
    }
    site.run(&["post", "team", "after the move", "--as", "alice"]).ok();
    let inbox = site.run(&["inbox", "--as", "bob", "--count", "2", "--json"]).ok();
    for text in ["before the move", "after the move"] {
        assert!(inbox.out.contains(text), "{text}: {inbox:?}");
    }
    site.run(&["audit", "--as", "bob"]).ok().says("the broker refuses all");
    too_wide(&site, &space, &after[1]);
    let usage: Value = site.json(&["space", "usage", "--json"]);
    assert_eq!(usage["agents"]["local.alice"]["posts"], 2, "{usage}");
    site.run(&["space", "usage", "--free", "alice"]).ok().says("2 posts");
    let status: Value = site.json(&["status", "--json"]);
    assert_eq!(status["spaces"][0]["delivery"], "bound");
    site.run(&["space", "isolate", "main"]).ok().says("has three accounts");
    site.run(&["down"]).ok();
    site.run(&["space", "isolate", "main"]).ends(1).says("does not run");
}
