//! A retirement or a narrowing that dies anywhere is finished by running it again (INV-5, INV-6).
//!
//! A run dies by being dropped: after a recorded step, after a step whose record was lost, and,
//! behind a proxy, with a request sent and its answer never read.

use std::path::PathBuf;

use cotal_manager::{AgentName, Agents, BrokerAddress, Done, ManagerError, NewAgent};
use cotal_nats::{ConnectError, ConnectOptions, Connection, Creds, CredsSource, NatsError};
use cotal_testkit::{God, Mesh, Peer, Proxy, eventually};
use cotal_wire::accounts::Account;
use cotal_wire::names::{Bucket, DELIVERY, FANOUT};
use cotal_wire::{ChannelPattern, Lifecycle};
use cotal_workspace::Segment;
use serde_json::json;

use super::{SECRET, TEAM, agents, name, start};

/// An agent that has joined, and its credential's text.
struct Victim {
    name: AgentName,
    peer: Peer,
    creds: String,
}

impl Victim {
    async fn join(mesh: &Mesh, who: &str) -> Self {
        let creds = mesh.add_agent(who, &["team.>"], &["team.>"], None).await;
        let peer = Peer::connect(mesh.url(), &creds).await;
        peer.join(TEAM).await;
        Self { name: name(who), peer, creds }
    }

    fn lifecycle(&self) -> &Lifecycle {
        &self.peer.lifecycle
    }

    fn file(&self, mesh: &Mesh, ending: &str) -> PathBuf {
        let dir = mesh.root().agents_dir(&Segment::from(mesh.space()));
        dir.join(format!("{}.{ending}", self.name.principal()))
    }

    fn anew(&self) -> NewAgent {
        NewAgent { name: self.name.clone(), read: Vec::new(), post: Vec::new(), role: None }
    }

    async fn is_held(&self, agents: &Agents) {
        let held = agents.add(&self.anew()).await.expect_err("the name is held");
        assert!(matches!(held, ManagerError::Retiring(_)), "{held}");
    }
}

async fn connects(mesh: &Mesh, creds: &str) -> bool {
    let source = CredsSource::new(Creds::parse(creds).expect("a credential"));
    let connected = Connection::connect(ConnectOptions::new(mesh.url(), "late", source)).await;
    match connected {
        Ok(_) => true,
        Err(NatsError::Connect(ConnectError::Rejected { .. })) => false,
        Err(other) => panic!("neither taken nor refused: {other}"),
    }
}

/// Only the tombstone is left of the agent, and its successor begins with nothing.
async fn is_gone(mesh: &Mesh, god: &God, victim: &Victim) -> Lifecycle {
    let member = victim.lifecycle();
    assert!(god.acl(member).await.retired, "no tombstone");
    assert!(god.member(TEAM, member).await.is_none(), "a member row is left");
    let uid = member.uid.to_string();
    let left: Vec<_> = god.consumers().await.into_iter().filter(|n| n.contains(&uid)).collect();
    assert!(left.is_empty(), "{left:?}");
    for ending in ["creds", "nkey", "pending", "retiring"] {
        assert!(!victim.file(mesh, ending).exists(), "the {ending} file is left");
    }
    assert!(!connects(mesh, &victim.creds).await, "the credential still works");
    let dlv = mesh.space().dlv(member);
    let copies = || god.stored("DLV_main", &dlv);
    eventually("its copies are recalled", copies, Vec::is_empty).await;

    let who = victim.name.display();
    let heir = mesh.peer(who, &["team.>"], &[]).await;
    assert_ne!(heir.lifecycle.uid, member.uid);
    let list = heir.control(DELIVERY, "listMemberships", json!({})).await.expect("an answer");
    assert_eq!(list.data.expect("data")["memberships"], json!([]), "{who}");
    heir.lifecycle
}

/// No new post is copied to any of `lifecycles`.
async fn inherits_nothing(alice: &Peer, god: &God, lifecycles: &[Lifecycle]) {
    alice.post(TEAM, "afterwards", &[]).await;
    god.wait_until_settled(FANOUT).await;
    for lifecycle in lifecycles {
        // INBOX keeps read entries until its cap discards them.
        let mut entries = god.entries(lifecycle).await.into_iter();
        let late = entries.any(|entry| entry.payload.windows(10).any(|ten| ten == b"afterwards"));
        assert!(!late, "{}", lifecycle.principal);
    }
}

const STEPS: [Done; 6] =
    [Done::Nothing, Done::Refused, Done::Narrowed, Done::Inventoried, Done::Evicted, Done::Deleted];

#[tokio::test(flavor = "multi_thread")]
async fn inv_6_a_retirement_that_dies_after_any_recorded_step_is_finished_by_the_next_run() {
    let (mesh, _lane, alice, god) = start().await;
    let agents = agents(&mesh).await;
    let mut all = Vec::new();
    for (n, last) in STEPS.into_iter().enumerate() {
        let bob = Victim::join(&mesh, &format!("bob{n}")).await;
        alice.post(TEAM, &format!("unread-{n}"), &[]).await;
        let mut retirement = agents.begin_retirement(&bob.name).await.expect("a retirement");
        while retirement.done() != last {
            retirement.step().await.expect("a step");
        }
        drop(retirement);
        bob.is_held(&agents).await;
        let taken_up = agents.begin_retirement(&bob.name).await.expect("a retirement");
        assert_eq!(taken_up.done(), last, "what was done is on disk");
        drop(taken_up);
        let narrow = agents.narrow(&bob.name, &[]).await.expect_err("it is being retired");
        assert!(matches!(narrow, ManagerError::Retiring(_)), "{last:?}: {narrow}");
        agents.retire(&bob.name).await.unwrap_or_else(|e| panic!("after {last:?}: {e}"));
        all.extend([bob.lifecycle().clone(), is_gone(&mesh, &god, &bob).await]);
    }
    inherits_nothing(&alice, &god, &all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_6_a_step_that_was_done_and_not_recorded_is_done_again() {
    let (mesh, _lane, alice, god) = start().await;
    let agents = agents(&mesh).await;
    let mut all = Vec::new();
    for (n, last) in STEPS.into_iter().enumerate() {
        let bob = Victim::join(&mesh, &format!("bob{n}")).await;
        let mut retirement = agents.begin_retirement(&bob.name).await.expect("a retirement");
        while retirement.done() != last {
            retirement.step().await.expect("a step");
        }
        let record = bob.file(&mesh, "retiring");
        let before = std::fs::read(&record).expect("the record");
        retirement.step().await.expect("a step");
        drop(retirement);
        std::fs::write(&record, before).expect("the record");
        bob.is_held(&agents).await;
        agents.retire(&bob.name).await.unwrap_or_else(|e| panic!("again after {last:?}: {e}"));
        all.extend([bob.lifecycle().clone(), is_gone(&mesh, &god, &bob).await]);
    }
    inherits_nothing(&alice, &god, &all).await;
}

/// A supervisor that dies when it sends `text`: its request is sent, the answer is never read.
pub(super) async fn mortal(mesh: &Mesh, text: &str) -> (Proxy, Agents) {
    let proxy = Proxy::to(&mesh.host_port()).await;
    let address = BrokerAddress { url: proxy.url(), ..mesh.address() };
    let agents = Agents::connect(mesh.root(), mesh.space(), &address).await;
    proxy.deafen_at(text);
    (proxy, agents.expect("the supervisor"))
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_6_a_retirement_that_dies_within_a_step_is_finished_by_the_next_run() {
    let (mesh, _lane, alice, god) = start().await;
    let agents = agents(&mesh).await;
    let mut all = Vec::new();
    for (n, text) in [
        "HPUB $KV.cotal_acl_main.",
        "$SYS.REQ.CLAIMS.UPDATE",
        "\"lifecycleMemberships\"",
        "\"evictPrincipal\"",
        "HPUB $KV.cotal_members_main.",
        "$JS.API.CONSUMER.DELETE.DLV_main.",
        "$JS.API.CONSUMER.DELETE.DM_main.",
        "\"retired\":true",
    ]
    .into_iter()
    .enumerate()
    {
        let bob = Victim::join(&mesh, &format!("bob{n}")).await;
        let (proxy, dying) = mortal(&mesh, text).await;
        tokio::select! {
            ended = dying.retire(&bob.name) => panic!("{text} was never said: {ended:?}"),
            () = proxy.deafened() => {}
        }
        drop((dying, proxy));
        bob.is_held(&agents).await;
        agents.retire(&bob.name).await.unwrap_or_else(|e| panic!("after {text}: {e}"));
        all.extend([bob.lifecycle().clone(), is_gone(&mesh, &god, &bob).await]);
    }
    inherits_nothing(&alice, &god, &all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_narrowing_that_dies_within_a_step_is_finished_by_the_next_run() {
    let (mesh, _lane, alice, god) = start().await;
    let agents = agents(&mesh).await;
    let read = [ChannelPattern::parse(TEAM).expect("a pattern")];
    for (n, text) in [
        "HPUB $KV.cotal_acl_main.",
        "cotal claims-pusher",
        "$SYS.REQ.CLAIMS.UPDATE",
        "\"recallNarrowed\"",
    ]
    .into_iter()
    .enumerate()
    {
        let bob = Victim::join(&mesh, &format!("bob{n}")).await;
        bob.peer.join(SECRET).await;
        let (proxy, dying) = mortal(&mesh, text).await;
        tokio::select! {
            ended = dying.narrow(&bob.name, &read) => panic!("{text} was never said: {ended:?}"),
            () = proxy.deafened() => {}
        }
        drop((dying, proxy));
        agents.narrow(&bob.name, &read).await.unwrap_or_else(|e| panic!("after {text}: {e}"));
        assert_eq!(god.acl(bob.lifecycle()).await.allow_subscribe, read);
        assert!(!connects(&mesh, &bob.creds).await, "{text}: the old credential still works");
        let creds = std::fs::read_to_string(bob.file(&mesh, "creds")).expect("the new credential");
        let claims = |text: &str| cotal_wire::creds::Creds::parse(text).expect("creds").claims;
        assert_eq!(claims(&creds).name, claims(&bob.creds).name, "it keeps its display name");
        let narrowed = Peer::connect(mesh.url(), &creds).await;
        assert_eq!(narrowed.lifecycle, bob.peer.lifecycle, "it is the same incarnation");
        alice.post(TEAM, &format!("open-{n}"), &[]).await;
        alice.post(SECRET, &format!("secret-{n}"), &[]).await;
        god.wait_until_settled(FANOUT).await;
        assert_eq!(narrowed.receive(1).await, [format!("open-{n}")]);

        // A narrowing issues its credentials a second ahead; a retirement right after it ends those
        // too.
        agents.retire(&bob.name).await.expect("a retirement");
        assert!(!connects(&mesh, &creds).await, "{text}: the new credential outlives the agent");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_acl_row_is_garbled_beyond_its_history_can_be_retired() {
    let (mesh, _lane, _alice, god) = start().await;
    let agents = agents(&mesh).await;
    let bob = Victim::join(&mesh, "bob").await;
    for n in 0..8 {
        let garbage = format!("garbage {n}").into();
        god.kv(Bucket::Acl).put(&bob.lifecycle().dotted(), garbage).await.expect("garbage");
    }
    let refused = agents.add(&bob.anew()).await.expect_err("it may live");
    assert!(matches!(refused, ManagerError::GarbledRow(_)), "{refused}");
    agents.retire(&bob.name).await.expect("a retirement");
    is_gone(&mesh, &god, &bob).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_6_a_daemon_that_comes_within_the_wait_is_asked_again() {
    let mesh = Mesh::start().await;
    mesh.add_agent("bob", &["team.>"], &[], None).await;
    let agents = agents(&mesh).await;
    let mut retirement = agents.begin_retirement(&name("bob")).await.expect("a retirement");
    while retirement.done() != Done::Narrowed {
        retirement.step().await.expect("a step without the daemon");
    }
    drop(retirement);
    let bob = name("bob");
    let (retired, _lane) = tokio::join!(agents.retire(&bob), mesh.lane());
    retired.expect("it was asked again");
}

/// Somebody else claims to be bob, with a key that the retirement does not know.
async fn twin(mesh: &Mesh) -> Connection {
    let key = cotal_trust::UserKey::generate();
    let now = cotal_manager::clock::unix_seconds();
    let spec = cotal_trust::UserSpec {
        name: "twin",
        key: &key,
        tags: vec!["principal:local.bob".to_owned()],
        permissions: cotal_wire::permissions::Permissions {
            pub_allow: vec!["x".to_owned()],
            sub_allow: vec!["x".to_owned()],
            ..Default::default()
        },
        issued_at: now,
        expires_at: Some(now + 600),
    };
    let minted = cotal_trust::mint_user(mesh.authority().account().keys_of(Account::Agents), &spec);
    mesh.connect(minted.expect("a credential").creds.expose()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_6_the_name_stays_held_until_the_eviction_is_verified() {
    let (mesh, _lane, _alice, god) = start().await;
    let agents = agents(&mesh).await;
    let bob = Victim::join(&mesh, "bob").await;
    let twin = twin(&mesh).await;
    let mut retirement = agents.begin_retirement(&bob.name).await.expect("a retirement");
    while retirement.done() != Done::Inventoried {
        retirement.step().await.expect("a step");
    }
    let rail = mesh.space().ctl_all("delivery-admin");
    let mut asked = god.connection.subscribe(rail, None).await.expect("a subscription");
    let twice = async {
        for _ in 0..2 {
            let request = asked.next().await.expect("a request");
            assert!(String::from_utf8_lossy(&request.payload).contains("evictPrincipal"));
        }
    };
    tokio::select! {
        done = retirement.step() => panic!("a connection remains, and yet: {done:?}"),
        // It asks again, because the first answer proved nothing.
        () = twice => {}
    }
    drop(retirement);
    bob.is_held(&agents).await;
    twin.close(std::time::Duration::from_secs(5)).await;
    agents.retire(&bob.name).await.expect("it goes on");
    is_gone(&mesh, &god, &bob).await;
}

/// As the error messages recommend.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_credential_is_lost_or_damaged_is_retired_all_the_same() {
    let (mesh, _lane, _alice, god) = start().await;
    let agents = agents(&mesh).await;
    for (n, left) in [None, Some("no credential")].into_iter().enumerate() {
        let bob = Victim::join(&mesh, &format!("bob{n}")).await;
        let file = bob.file(&mesh, "creds");
        match left {
            None => std::fs::remove_file(&file).expect("a lost credential"),
            Some(text) => std::fs::write(&file, text).expect("a damaged credential"),
        }
        let refused = agents.add(&bob.anew()).await.expect_err("it lives");
        assert!(refused.to_string().contains("add it again"), "{refused}");
        agents.retire(&bob.name).await.expect("a retirement");
        is_gone(&mesh, &god, &bob).await;
    }
}

/// A daemon without the kick credential refuses. A refusal is an answer, so it is not repeated.
#[tokio::test(flavor = "multi_thread")]
async fn inv_6_a_refusal_fails_at_once_and_the_name_stays_held() {
    let mesh = Mesh::start().await;
    let evictor = mesh.root().dir().join(".cotal/main/connection-evictor.creds");
    let kept = std::fs::read(&evictor).expect("the kick credential");
    std::fs::remove_file(&evictor).expect("removed");
    let _lane = mesh.lane().await;
    let god = God::of(&mesh).await;
    let rail = mesh.space().ctl_all("delivery-admin");
    let mut asked = god.connection.subscribe(rail, None).await.expect("a subscription");
    let bob = Victim::join(&mesh, "bob").await;
    let agents = agents(&mesh).await;
    let refused = agents.retire(&bob.name).await.expect_err("no kick credential");
    assert!(matches!(refused, ManagerError::Refused { .. }), "{refused}");
    bob.is_held(&agents).await;
    god.connection.round_trip().await.expect("a round trip");
    let mut evictions = 0;
    let moment = std::time::Duration::from_millis(200);
    while let Ok(message) = tokio::time::timeout(moment, asked.next()).await {
        let body = String::from_utf8_lossy(&message.expect("a request").payload).into_owned();
        evictions += usize::from(body.contains("evictPrincipal"));
    }
    assert_eq!(evictions, 1);
    std::fs::write(&evictor, kept).expect("put back");
    agents.retire(&bob.name).await.expect("it goes on");
    is_gone(&mesh, &god, &bob).await;
}
