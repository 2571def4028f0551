//! The feed and the scans of the admin rail ask one owner of the census.

use std::collections::BTreeSet;

use cotal_manager::clock::unix_seconds;
use cotal_nats::Subscription;
use cotal_testkit::{Mesh, Supervisor};
use cotal_trust::{UserKey, UserSpec, mint_user};
use cotal_wire::control::op;
use cotal_wire::permissions::Permissions;
use serde_json::{Value, json};

use super::support::Feed;

/// Every page that a census asks for, whoever takes it.
async fn pages(mesh: &Mesh) -> Subscription {
    let (key, now) = (UserKey::generate(), unix_seconds());
    let allow = |subject: &str| vec![subject.to_owned()];
    let spec = UserSpec {
        name: "a test",
        key: &key,
        tags: Vec::new(),
        permissions: Permissions {
            pub_allow: allow("$SYS.REQ.>"),
            sub_allow: allow(">"),
            ..Permissions::default()
        },
        issued_at: now,
        expires_at: Some(now + 600),
    };
    let minted = mint_user(mesh.authority().trust().system(), &spec).expect("a credential");
    let connection = mesh.connect(minted.creds.expose()).await;
    connection.subscribe("$SYS.REQ.ACCOUNT.*.CONNZ", None).await.expect("a subscription")
}

#[tokio::test(flavor = "multi_thread")]
async fn fed_1_the_feed_and_every_scan_share_one_observer_connection() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let _alice = mesh.peer("alice", &["ops"], &["ops"]).await;
    // An idle space keeps no observer.
    Feed::of(&mesh).await.shows("alice", |rows| rows.contains_key("local.alice")).await;
    let manager = Supervisor::of(&mesh).await;
    let mut pages = pages(&mesh).await;
    let (mut observers, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    let ask = async {
        loop {
            let args = json!({ "principal": "local.alice" });
            let reply = manager.request(op::PRINCIPAL_LIVENESS, args).await.expect("an answer");
            assert!(reply.ok, "{reply:?}");
        }
    };
    let listen = async {
        // A census of the feed, and the scans before it.
        while kinds.len() < 2 {
            let page = pages.next().await.expect("a page");
            let body: Value = serde_json::from_slice(&page.payload).expect("JSON");
            let reply = page.reply.expect("a reply subject");
            // A connection's inboxes begin with a token of its own.
            let (observer, _) = reply.rsplit_once('-').expect("an inbox");
            observers.insert(observer.to_owned());
            kinds.insert(body["subscriptions"] == json!(true));
        }
    };
    tokio::select! {
        () = ask => {}
        () = listen => {}
    }
    assert_eq!(observers.len(), 1, "{observers:?}");
}
