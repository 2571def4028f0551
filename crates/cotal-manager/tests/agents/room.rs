//! What agents send is bounded, shown, and freed; whoever fills the disk is retired all the same.

use cotal_manager::{AgentName, Done, ManagerError, free, usage};
use cotal_nats::NatsError;
use cotal_testkit::{Mesh, MeshOptions, Peer};
use cotal_wire::Principal;
use cotal_wire::limits::{CHAT_BYTES, DM_BYTES, EPT_REQ_BYTES, TASK_BYTES};

use crate::supervisor;

/// Sends direct messages to `to` until the broker refuses one.
async fn flood(peer: &Peer, to: &Principal, size: usize) -> String {
    let subject = format!("cotal.main.inst.{to}.{}", peer.principal());
    for _ in 0..1_000 {
        let body = vec![b' '; size].into();
        match peer.connection.publish_confirmed(subject.clone(), None, body, None).await {
            Ok(_) => {}
            Err(NatsError::Refused { description, .. }) => return description,
            Err(other) => panic!("not refused for its size: {other}"),
        }
    }
    panic!("nothing bounds what is sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_agents_write_is_capped_and_pushes_out_nothing_of_anothers() {
    let mesh = Mesh::start().await;
    let (god, authority) = (mesh.god().await, mesh.authority());
    let shown = usage(&authority, &mesh.address()).await.unwrap();
    for (stream, cap) in [
        ("CHAT_main", CHAT_BYTES),
        ("DM_main", DM_BYTES),
        ("TASK_main", TASK_BYTES),
        ("EPT_REQ_main", EPT_REQ_BYTES),
    ] {
        let found = shown.streams.iter().find(|of| of.stream == stream).unwrap();
        assert_eq!(found.cap, Some(cap.unsigned_abs()), "{stream}");
    }
    let mut config = god.stream_info("DM_main").await.unwrap().config;
    config.rest.insert("max_bytes".to_owned(), (64 * 1024).into());
    god.update_stream("DM_main", &config).await.unwrap();
    let alice = mesh.peer("alice", &[], &[]).await;
    let bob = mesh.peer("bob", &[], &[]).await;
    let mallory = mesh.peer("mallory", &[], &[]).await;
    let said = format!("cotal.main.inst.{}.{}", bob.principal(), alice.principal());
    alice.connection.publish_confirmed(said.clone(), None, "kept".into(), None).await.unwrap();
    let refused = flood(&mallory, bob.principal(), 1_024).await;
    assert!(refused.contains("maximum bytes"), "{refused}");
    let state = god.stream_state("DM_main").await.unwrap();
    assert_eq!(state.first_seq, 1, "what alice sent still stands");
    assert!(
        cotal_manager::provision(&authority, &mesh.address()).await.unwrap().repaired.is_empty()
    );

    let shown = usage(&authority, &mesh.address()).await.unwrap();
    let used = &shown.agents[mallory.principal()];
    assert!(used.direct_messages > 40 && used.about_bytes > 40 * 1_024, "{used:?}");
    assert_eq!(shown.agents[alice.principal()].direct_messages, 1);
    let freed = free(&authority, &mesh.address(), mallory.principal()).await.unwrap();
    assert_eq!(freed.direct_messages, used.direct_messages);
    alice.connection.publish_confirmed(said, None, "again".into(), None).await.unwrap();
    assert_eq!(god.stream_state("DM_main").await.unwrap().messages, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_filled_the_disk_is_revoked_at_once_and_gone_once_it_is_freed() {
    let options = MeshOptions { max_file_store: Some(66 << 20), ..MeshOptions::default() };
    let mesh = Mesh::with(options).await;
    let _lane = mesh.lane().await;
    let bob = mesh.peer("bob", &["team"], &["team"]).await;
    let mallory = mesh.peer("mallory", &["team"], &["team"]).await;
    flood(&mallory, bob.principal(), 1_000_000).await;
    let agents = supervisor(&mesh).await;
    let name = AgentName::parse("mallory").unwrap();
    let mut retirement = agents.begin_retirement(&name).await.unwrap();
    assert_eq!(retirement.step().await.unwrap(), Done::Refused, "it is revoked before any write");
    let refused = retirement.step().await.expect_err("the disk is full");
    assert!(matches!(refused, ManagerError::Broker { .. }), "{refused}");
    drop(retirement);
    let freed = free(&mesh.authority(), &mesh.address(), mallory.principal()).await.unwrap();
    assert!(freed.direct_messages > 40, "{freed:?}");
    agents.retire(&name).await.unwrap();
}
