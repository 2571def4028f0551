//! More for an agent that goes on, and a new key for it.

use cotal_manager::MoreGrants;
use cotal_nats::NatsError;
use cotal_testkit::{Mesh, Peer};
use cotal_wire::{ChannelPattern, Role};
use cotal_workspace::SecretStore as _;

use super::{agent, complete, key, stored, supervisor};

fn patterns(texts: &[&str]) -> Vec<ChannelPattern> {
    texts.iter().map(|text| ChannelPattern::parse(text).unwrap()).collect()
}

fn text(mesh: &Mesh) -> String {
    let store = cotal_workspace::FileStore::new(mesh.root().clone());
    store.get(&key(mesh, "local.bob")).unwrap().unwrap().expose().to_owned()
}

#[tokio::test]
async fn a_grant_widens_the_same_lifecycle_and_what_it_had_stays() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let agents = supervisor(&mesh).await;
    let bob = agent("Bob", &["team.a"], &["team.a"], None);
    agents.add(&bob).await.unwrap();
    let lifecycle = complete(&mesh, "local.bob").await;
    let peer = Peer::connect(mesh.url(), &text(&mesh)).await;
    assert!(peer.join("team.a").await.durable);
    let alice = mesh.peer("alice", &[], &["team.>", "ops"]).await;
    alice.post("team.a", "kept", &[]).await;

    let role = Role::parse("reviewer").unwrap();
    let more = MoreGrants {
        read: patterns(&["team.>", "ops"]),
        post: patterns(&["ops"]),
        role: Some(role.clone()),
    };
    for _ in 0..2 {
        let grant = agents.widen(&bob.name, &more).await.unwrap();
        assert_eq!((grant.lifecycle.clone(), grant.role), (lifecycle.clone(), Some(role.clone())));
        assert_eq!(grant.read, patterns(&["team.>", "ops"]));
        assert_eq!(grant.post, patterns(&["team.a", "ops"]));
    }
    assert_eq!(complete(&mesh, "local.bob").await, lifecycle);
    let wider = Peer::connect(mesh.url(), &text(&mesh)).await;
    assert!(wider.join("ops").await.durable);
    alice.post("ops", "new", &[]).await;
    wider.post("ops", "own", &[]).await;
    let got = wider.receive(2).await;
    assert_eq!((got[0].as_str(), got[1].as_str()), ("kept", "new"));
    let god = mesh.god().await;
    god.consumer_info("TASK_main", &mesh.space().svc_consumer(&role)).await.unwrap();
    let listed = agents.list().await.unwrap();
    let bob = listed.iter().find(|agent| agent.principal.actor() == "bob").unwrap();
    assert_eq!((bob.role.as_ref(), bob.read.len()), (Some(&role), 2));
}

#[tokio::test]
async fn a_leaked_key_is_refused_after_a_rekey_and_the_inbox_stays() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let agents = supervisor(&mesh).await;
    let bob = agent("Bob", &["team.a"], &[], None);
    agents.add(&bob).await.unwrap();
    let lifecycle = complete(&mesh, "local.bob").await;
    let leaked = text(&mesh);
    let thief = Peer::connect(mesh.url(), &leaked).await;
    assert!(thief.join("team.a").await.durable);
    mesh.peer("alice", &[], &["team.a"]).await.post("team.a", "kept", &[]).await;

    let old = stored(&mesh, "local.bob").claims.subject;
    agents.rekey(&bob.name).await.unwrap();
    assert_ne!(stored(&mesh, "local.bob").claims.subject, old);
    assert_eq!(complete(&mesh, "local.bob").await, lifecycle);
    let look = || async { thief.connection.is_connected() };
    cotal_testkit::eventually("the thief is out", look, |connected| !connected).await;
    let creds = cotal_nats::Creds::parse(&leaked).unwrap();
    let options = cotal_nats::ConnectOptions::new(mesh.url(), "thief", creds.into());
    let refused = cotal_nats::Connection::connect(options).await.unwrap_err();
    assert!(matches!(refused, NatsError::Connect(_)), "{refused}");
    let peer = Peer::connect(mesh.url(), &text(&mesh)).await;
    assert_eq!(peer.receive(1).await, ["kept"]);
}
