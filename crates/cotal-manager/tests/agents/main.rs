//! Agents and the manager against a real broker: every crash is repeated to completion.
#![allow(clippy::unwrap_used, reason = "a helper of a test may panic as the test may")]

mod isolate;
mod manager;
mod restart;
mod room;
mod soak;
mod support;
mod widen;

use cotal_manager::rows::AclRows;
use cotal_manager::{Added, AgentName, Agents, Begun, ManagerError, NewAgent, write_back_rows};
use cotal_nats::{Bytes, NatsError};
use cotal_testkit::Mesh;
use cotal_trust::MintError;
use cotal_wire::creds::Creds;
use cotal_wire::names::Bucket;
use cotal_wire::rows::AclRow;
use cotal_wire::{ChannelPattern, Lifecycle, Principal, Role};
use cotal_workspace::{FileStore, SecretKey, SecretKind, SecretStore, Segment};

fn agent(name: &str, read: &[&str], post: &[&str], role: Option<&str>) -> NewAgent {
    let patterns = |texts: &[&str]| {
        let parse = |text: &&str| ChannelPattern::parse(text).unwrap();
        texts.iter().map(parse).collect()
    };
    NewAgent {
        name: AgentName::parse(name).unwrap(),
        read: patterns(read),
        post: patterns(post),
        role: role.map(|role| Role::parse(role).unwrap()),
    }
}

async fn supervisor(mesh: &Mesh) -> Agents {
    let connected = Agents::connect(mesh.root(), mesh.space(), &mesh.address()).await;
    connected.unwrap()
}

fn key(mesh: &Mesh, principal: &str) -> SecretKey {
    let principal = Principal::parse(principal).unwrap();
    SecretKey::new(mesh.space(), SecretKind::Agent(principal))
}

fn stored(mesh: &Mesh, principal: &str) -> Creds {
    let store = FileStore::new(mesh.root().clone());
    let secret = store.get(&key(mesh, principal)).unwrap().unwrap();
    Creds::parse(secret.expose()).unwrap()
}

async fn rows(mesh: &Mesh) -> AclRows {
    AclRows::read(&mesh.operator().await, mesh.space()).await.unwrap()
}

/// The one live incarnation, complete in every part.
async fn complete(mesh: &Mesh, principal: &str) -> Lifecycle {
    let rows = rows(mesh).await;
    let principal = Principal::parse(principal).unwrap();
    let live: Vec<_> = rows.live_of(&principal).collect();
    let [(lifecycle, _)] = live[..] else {
        panic!("{live:?}");
    };
    let creds = stored(mesh, principal.as_str());
    assert_eq!(creds.claims.lifecycle().unwrap(), *lifecycle);
    let (god, space) = (mesh.god().await, mesh.space());
    for (stream, consumer) in [
        (space.dm_stream(), space.dm_consumer(lifecycle)),
        (space.dlv_stream(), space.dlv_consumer(lifecycle)),
    ] {
        god.consumer_info(&stream, &consumer).await.unwrap();
    }
    lifecycle.clone()
}

#[tokio::test]
async fn an_agent_is_complete_and_a_second_run_reports_it_as_it_is() {
    let mesh = Mesh::start().await;
    let agents = supervisor(&mesh).await;
    let bob = agent("Bob", &["team.>"], &["team.backend"], Some("reviewer"));
    let principal = bob.name.principal().clone();
    assert_eq!(agents.add(&bob).await.unwrap(), Added::Created(principal.clone()));
    let lifecycle = complete(&mesh, "local.bob").await;
    let row = rows(&mesh).await.rows.remove(&lifecycle).unwrap();
    assert_eq!((row.name.as_deref(), row.revision), (Some("Bob"), 1));
    assert_eq!(row.allow_subscribe, bob.read);
    assert_eq!(stored(&mesh, "local.bob").claims.role().unwrap().as_str(), "reviewer");
    let god = mesh.god().await;
    let svc = god.consumer_info(&mesh.space().task_stream(), "svc_reviewer").await.unwrap();
    assert_eq!(svc.config.ack_policy, "explicit");

    assert_eq!(agents.add(&bob).await.unwrap(), Added::Existing(principal.clone()));
    let narrower = agent("Bob", &["team.backend"], &["team.backend"], Some("reviewer"));
    assert_eq!(agents.add(&narrower).await.unwrap(), Added::Different(principal));
    assert_eq!(complete(&mesh, "local.bob").await, lifecycle);

    let listed = agents.list().await.unwrap();
    let [listed] = &listed[..] else {
        panic!("{listed:?}");
    };
    assert_eq!((listed.name.as_deref(), listed.present), (Some("Bob"), false));
    assert_eq!(listed.post.as_ref(), Some(&bob.post));
    assert_eq!(listed.role, bob.role);
}

/// How far a run comes before it dies.
#[derive(Debug, Clone, Copy)]
enum Died {
    Recorded,
    Consumers,
    Credential,
}

async fn die(agents: &Agents, agent: &NewAgent, died: Died) {
    let Begun::Open(provisioning) = agents.begin(agent).await.unwrap() else {
        panic!("it exists");
    };
    if matches!(died, Died::Recorded) {
        return;
    }
    provisioning.consumers().await.unwrap();
    if matches!(died, Died::Credential) {
        provisioning.credential().unwrap();
    }
}

#[tokio::test]
async fn a_crash_at_any_step_is_completed_under_the_same_incarnation() {
    let mesh = Mesh::start().await;
    let agents = supervisor(&mesh).await;
    for (n, died) in [Died::Recorded, Died::Consumers, Died::Credential].into_iter().enumerate() {
        let bob = agent(&format!("bob{n}"), &["a"], &["a"], Some("r"));
        let principal = bob.name.principal().clone();
        die(&agents, &bob, died).await;
        assert_eq!(rows(&mesh).await.live_of(&principal).count(), 0, "{died:?}");
        die(&agents, &bob, died).await;
        // What the sequence numbers are by then must not change what the incarnation asks for.
        let peer = mesh.peer(&format!("other{n}"), &["a"], &["a"]).await;
        peer.post("a", "between", &[]).await;
        let added = agents.add(&bob).await.unwrap();
        assert_eq!(added, Added::Completed(principal.clone()), "{died:?}");
        complete(&mesh, principal.as_str()).await;
        let agents_dir = mesh.root().agents_dir(&Segment::from(mesh.space()));
        assert!(!agents_dir.join(format!("{principal}.pending")).exists());
        assert_eq!(agents.add(&bob).await.unwrap(), Added::Existing(principal));
    }
}

#[tokio::test]
async fn a_continued_provisioning_keeps_the_key_it_had_stored() {
    let mesh = Mesh::start().await;
    let agents = supervisor(&mesh).await;
    let bob = agent("bob", &["a"], &["a"], None);
    die(&agents, &bob, Died::Credential).await;
    let before = stored(&mesh, "local.bob").claims.subject;
    // Asked for anew with other channels: the incarnation is not live, so the new wish holds.
    let wider = agent("bob", &["b.>"], &["b.c"], None);
    assert!(matches!(agents.add(&wider).await.unwrap(), Added::Completed(_)));
    assert_eq!(stored(&mesh, "local.bob").claims.subject, before);
    let lifecycle = complete(&mesh, "local.bob").await;
    assert_eq!(rows(&mesh).await.rows[&lifecycle].allow_subscribe, wider.read);
}

#[tokio::test]
async fn nothing_older_than_the_activation_belongs_to_an_agent() {
    let mesh = Mesh::start().await;
    let alice = mesh.peer("alice", &["a"], &["a"]).await;
    let god = mesh.god().await;
    let bob = Principal::parse("local.bob").unwrap();
    let dm = mesh.space().inst(&bob, alice.principal());
    for id in ["old-1", "old-2"] {
        let body = Bytes::from_static(b"{}");
        god.publish_confirmed(dm.as_str(), None, body, Some(id)).await.unwrap();
    }
    alice.post("a", "old", &[]).await;
    mesh.add_agent("bob", &["a"], &["a"], None).await;
    let lifecycle = complete(&mesh, "local.bob").await;
    let row = rows(&mesh).await.rows.remove(&lifecycle).unwrap();
    let activated = row.activated.unwrap();
    assert_eq!((activated.chat, activated.dm, activated.task), (1, 2, 0));
    let consumer = mesh.space().dm_consumer(&lifecycle);
    let info = god.consumer_info(&mesh.space().dm_stream(), &consumer).await.unwrap();
    assert_eq!((info.num_pending, info.config.opt_start_seq), (0, Some(3)));
}

#[tokio::test]
async fn names_are_unique_whatever_their_case_and_owner() {
    let mesh = Mesh::start().await;
    let agents = supervisor(&mesh).await;
    // Another provisioner's agent, of another owner, bears the name.
    let owner = format!("u_{}", "a".repeat(26));
    let theirs = Lifecycle::parse(&format!("{owner}.x.{}", "x".repeat(26))).unwrap();
    let row = AclRow {
        allow_subscribe: Vec::new(),
        revision: 1,
        updated_at: 0,
        name: Some("ALICE".to_owned()),
        activated: None,
        retired: false,
    };
    write(&mesh, &theirs, &serde_json::to_vec(&row).unwrap()).await;
    let alice = agent("alice", &["a"], &["a"], None);
    let error = agents.add(&alice).await.unwrap_err();
    assert!(
        matches!(&error, ManagerError::NameTaken { holder, .. } if *holder == theirs.principal)
    );
    let retired = AclRow { retired: true, ..row };
    write(&mesh, &theirs, &serde_json::to_vec(&retired).unwrap()).await;
    assert!(matches!(agents.add(&alice).await.unwrap(), Added::Created(_)));
}

async fn write(mesh: &Mesh, lifecycle: &Lifecycle, value: &[u8]) {
    let bucket = cotal_nats::Bucket::new(&mesh.god().await, &mesh.space().bucket(Bucket::Acl));
    let value = Bytes::copy_from_slice(value);
    bucket.put(&lifecycle.dotted(), value).await.unwrap();
}

#[tokio::test]
async fn a_garbled_row_is_neither_a_row_nor_an_absence() {
    let mesh = Mesh::start().await;
    let agents = supervisor(&mesh).await;
    let bob = agent("bob", &["a"], &["a"], None);
    agents.add(&bob).await.unwrap();
    let lifecycle = complete(&mesh, "local.bob").await;
    write(&mesh, &lifecycle, br#"{"stream":"CHAT_main","seq":7}"#).await;
    assert!(matches!(agents.add(&bob).await.unwrap(), Added::Existing(_)));
    assert_eq!(rows(&mesh).await.rows[&lifecycle].allow_subscribe, bob.read);
    // Beyond the bucket's history nothing valid is left, and a second bob is still not made.
    for n in 0..8 {
        write(&mesh, &lifecycle, format!("garbage {n}").as_bytes()).await;
    }
    assert_eq!(rows(&mesh).await.garbled, [lifecycle]);
    assert!(matches!(agents.add(&bob).await, Err(ManagerError::GarbledRow(_))));
}

/// The manager's rows: the last valid one is put back by revision, and what is right is not
/// touched.
#[tokio::test]
async fn garbled_acl_rows_are_put_back_as_the_last_valid_ones() {
    let mesh = Mesh::start().await;
    let agents = supervisor(&mesh).await;
    let bucket = cotal_nats::Bucket::new(&mesh.god().await, &mesh.space().bucket(Bucket::Acl));
    let mut lifecycles = Vec::new();
    for name in ["right", "garbled", "retired", "deleted", "lost"] {
        agents.add(&agent(name, &["a"], &["a"], None)).await.unwrap();
        lifecycles.push(complete(&mesh, &format!("local.{name}")).await);
    }
    let [right, garbled, retired, deleted, lost] = &lifecycles[..] else { panic!() };
    let before = rows(&mesh).await.rows;
    let last = async |of: &Lifecycle| bucket.get(&of.dotted()).await.unwrap().unwrap();
    let untouched = last(right).await.revision;
    let garbage = br#"{"stream":"KV_cotal_acl_main","seq":7}"#;
    write(&mesh, garbled, garbage).await;
    write(&mesh, garbled, b"").await;
    let tombstone =
        AclRow { retired: true, allow_subscribe: Vec::new(), ..before[retired].clone() };
    write(&mesh, retired, &serde_json::to_vec(&tombstone).unwrap()).await;
    // Neither a later row nor garbage brings a retired lifecycle back.
    write(&mesh, retired, &serde_json::to_vec(&before[retired]).unwrap()).await;
    write(&mesh, retired, garbage).await;
    bucket.delete(&deleted.dotted(), None).await.unwrap();
    write(&mesh, deleted, garbage).await;
    for _ in 0..8 {
        write(&mesh, lost, garbage).await;
    }
    write(&mesh, &Lifecycle::parse(&format!("nobody.x.{}", "x".repeat(26))).unwrap(), garbage)
        .await;

    let mut done = write_back_rows(&mesh.authority(), &mesh.address()).await.unwrap();
    done.sort_by(|a, b| a.row.cmp(&b.row));
    let told: Vec<_> = done.iter().map(|done| (done.row.as_str(), done.restored)).collect();
    let wanted = [
        ("the ACL row of local.deleted", true),
        ("the ACL row of local.garbled", true),
        ("the ACL row of local.lost", false),
        ("the ACL row of local.retired", true),
    ];
    assert_eq!(told, wanted);
    assert_eq!(last(right).await.revision, untouched);
    let row = |entry: cotal_nats::Entry| AclRow::parse(entry.live().unwrap()).unwrap();
    assert_eq!(row(last(garbled).await), before[garbled]);
    assert_eq!(row(last(retired).await), tombstone);
    assert!(last(deleted).await.live().is_none());
    let again = write_back_rows(&mesh.authority(), &mesh.address()).await.unwrap();
    assert_eq!(again.len(), 1, "only what is lost is told again: {again:?}");
}

#[tokio::test]
async fn a_lost_credential_and_two_incarnations_are_said_not_guessed() {
    let mesh = Mesh::start().await;
    let agents = supervisor(&mesh).await;
    let bob = agent("bob", &["a"], &["a"], None);
    agents.add(&bob).await.unwrap();
    FileStore::new(mesh.root().clone()).delete(&key(&mesh, "local.bob")).unwrap();
    assert!(matches!(agents.add(&bob).await, Err(ManagerError::CredentialLost(_))));
    let narrowed = agents.narrow(&bob.name, &[]).await;
    assert!(matches!(narrowed, Err(ManagerError::CredentialLost(_))));
    let second = Lifecycle::parse(&format!("local.bob.{}", "b".repeat(26))).unwrap();
    let row = br#"{"allowSubscribe":[],"revision":1,"updatedAt":0}"#;
    write(&mesh, &second, row).await;
    let ambiguous = agents.add(&bob).await.unwrap_err();
    assert!(matches!(ambiguous, ManagerError::Ambiguous { count: 2, .. }));
    assert!(ambiguous.to_string().contains("`cotal agent retire`"), "{ambiguous}");
}

#[tokio::test]
async fn too_many_channels_are_refused_before_anything_is_made() {
    let mesh = Mesh::start().await;
    let agents = supervisor(&mesh).await;
    let many: Vec<String> = (0..2_000).map(|n| format!("a.very.long.channel.name.{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let bob = agent("bob", &many, &["a"], None);
    let error = agents.add(&bob).await.unwrap_err();
    assert!(matches!(error, ManagerError::Mint(MintError::TooLarge { .. })), "{error}");
    assert!(rows(&mesh).await.rows.is_empty());
    let dm = mesh.operator().await.stream_state(&mesh.space().dm_stream()).await.unwrap();
    assert_eq!(dm.consumer_count, 0);
    let dir = mesh.root().agents_dir(&Segment::from(mesh.space()));
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["local.bob.lock"]);
}

#[tokio::test]
async fn one_process_at_a_time_provisions_an_agent() {
    let mesh = Mesh::start().await;
    let agents = supervisor(&mesh).await;
    let bob = agent("bob", &["a"], &["a"], None);
    let begun = agents.begin(&bob).await.unwrap();
    assert!(matches!(agents.add(&bob).await, Err(ManagerError::Lock(_))));
    drop(begun);
    assert!(matches!(agents.add(&bob).await.unwrap(), Added::Completed(_)));
}

#[tokio::test]
async fn a_broker_that_is_gone_is_named_as_the_cause() {
    let mut mesh = Mesh::start().await;
    let agents = supervisor(&mesh).await;
    mesh.kill_broker().await;
    let bob = agent("bob", &["a"], &["a"], None);
    let error = agents.add(&bob).await.unwrap_err();
    let ManagerError::Broker { source, .. } = error else {
        panic!("{error}");
    };
    assert!(
        matches!(source, NatsError::Disconnected { .. } | NatsError::Timeout { .. }),
        "{source}"
    );
    mesh.restart_broker().await;
    let added = supervisor(&mesh).await.add(&bob).await.unwrap();
    assert!(matches!(added, Added::Created(_) | Added::Completed(_)));
}
