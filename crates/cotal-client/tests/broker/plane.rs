//! The plane that an endpoint reached: what it says of it, and what it reads there all the same.

use cotal_client::{Backstop, LeaseCondition, Notice, Shortfall, Source};
use cotal_nats::Bytes;
use cotal_testkit::{God, Mesh, Supervisor, eventually};
use cotal_wire::names::{Bucket, LEASE_KEY};
use cotal_wire::rows::{LeaseRow, MemberRow, MemberState};

use crate::support::{channel, endpoint, lifecycle, message, notice, sender, stopped};

/// A copy that an earlier daemon left comes through the durable although none serves.
#[tokio::test]
async fn agt_1_the_durable_is_read_while_no_lease_is_ready() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let bob = mesh.add_agent("bob", &["team.>"], &[], None).await;
    let body = r#"{"id":"x","from":{"id":"local.alice"},"channel":"team.a","parts":[]}"#;
    let subject = mesh.space().dlv(&lifecycle(&bob));
    let body = Bytes::from_static(body.as_bytes());
    god.connection.publish_confirmed(subject, None, body, None).await.unwrap();
    let reader = endpoint(&mesh, &bob).await;
    let incoming = message(&reader).await;
    assert_eq!((incoming.message.id.as_str(), incoming.source), ("x", Source::Durable));
    incoming.ack().await.unwrap();
}

/// Held and not ready, garbled, missing: each is told as what it is.
#[tokio::test]
async fn agt_1_the_warning_names_the_condition_of_the_lease() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let bob = mesh.add_agent("bob", &["team.>"], &[], None).await;
    let row = LeaseRow {
        holder: cotal_client::Principal::new("local", "daemon").unwrap(),
        incarnation: "x".into(),
        since: 1,
        ready: false,
    };
    let starting = serde_json::to_string(&row).unwrap();
    // A daemon that died leaves a row that says `ready` until it expires; nobody answers for it.
    let dead = serde_json::to_string(&LeaseRow { ready: true, ..row }).unwrap();
    let table = [
        (Some(dead.as_str()), LeaseCondition::NotServing),
        (Some(starting.as_str()), LeaseCondition::NotReady),
        (Some(r#"{"stream":"CHAT_main","seq":1}"#), LeaseCondition::Garbled),
        (None, LeaseCondition::Missing),
    ];
    for (row, wanted) in table {
        match row {
            Some(row) => {
                let value = Bytes::copy_from_slice(row.as_bytes());
                god.kv(Bucket::Delivery).put(LEASE_KEY, value).await.unwrap();
            }
            None => god.free_lease().await,
        }
        // Agents read a mirror of the lease, which follows.
        let told = || async {
            let reader = endpoint(&mesh, &bob).await;
            let told = notice(&reader, |n| matches!(n, Notice::NoReadyLease { .. })).await;
            reader.close().await;
            let Notice::NoReadyLease { condition, .. } = told else { unreachable!() };
            condition
        };
        eventually("the condition is told", told, |condition| *condition == wanted).await;
    }
}

/// A plane that is reached anew is judged anew, although nothing changed on it; once a daemon
/// serves there, the durable delivers.
#[tokio::test]
async fn agt_1_a_reconnect_warns_again_until_the_plane_serves() {
    let mut mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.>"], None).await,
        mesh.add_agent("bob", &["team.>"], &[], None).await,
    );
    let reader = endpoint(&mesh, &bob).await;
    let missing =
        |n: &Notice| matches!(n, Notice::NoReadyLease { condition: LeaseCondition::Missing, .. });
    notice(&reader, missing).await;
    mesh.kill_broker().await;
    mesh.restart_broker().await;
    notice(&reader, |n| *n == Notice::Reconnected).await;
    notice(&reader, missing).await;

    let daemon = mesh.lane().await;
    let on = channel("team.a");
    let joined = sender(&mesh, &bob).await.join(&on).await;
    assert_eq!(joined.backstop, Backstop::Durable { generation: 1 });
    sender(&mesh, &alice).await.post(&on, "at last").await.unwrap();
    let incoming = message(&reader).await;
    assert_eq!((incoming.text().as_str(), incoming.source), ("at last", Source::Durable));
    incoming.ack().await.unwrap();
    stopped(daemon).await;
}

/// The daemon reports a shortfall with a generation in the same reply; that is no durable join.
#[tokio::test]
async fn mem_7_and_mem_8_a_window_that_retention_cut_is_no_durable_join() {
    let mesh = Mesh::start().await;
    let god = God::of(&mesh).await;
    let daemon = mesh.lane().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.add_agent("bob", &["team.>"], &[], None).await;
    let on = channel("team.a");
    god.cap_subjects("CHAT_main", 1_000).await;
    alice.post_many(on.as_str(), "m", 1_010).await;
    let own = lifecycle(&bob);
    let row = MemberRow {
        channel: on.clone(),
        owner: own.principal,
        lifecycle_uid: own.uid,
        state: MemberState::LiveConfirmed,
        join_cursor: 5,
        leave_cursor: None,
        generation: 1,
        activated: false,
        // Another's row the daemon would finish at once, before anybody asks.
        writer_identity: Supervisor::of(&mesh).await.status().await.incarnation,
        updated_at: 1,
    };
    god.put_member(&row).await;
    let joined = sender(&mesh, &bob).await.join(&on).await;
    assert_eq!(joined.backstop, Backstop::Unestablished(Shortfall::Evicted), "{joined}");
    let said = joined.to_string();
    assert!(said.contains("joined live with the durable backstop unestablished"), "{said}");
    stopped(daemon).await;
}

/// Notices need not go to the log: a task of its own reads them beside the one that reads messages.
#[tokio::test]
async fn notices_are_read_beside_messages() {
    let mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &[], None).await,
        mesh.add_agent("bob", &[], &[], None).await,
    );
    let bob = endpoint(&mesh, &bob).await;
    let reader = bob.clone();
    let reading = tokio::spawn(async move { reader.next_message().await.expect("a message") });
    let told = tokio::time::timeout(crate::support::SOON, bob.next_notice()).await;
    let told = told.expect("a notice in time").expect("an open endpoint");
    assert!(matches!(told, Notice::NoReadyLease { .. }), "{told}");
    sender(&mesh, &alice).await.dm(bob.principal(), "hello").await.unwrap();
    assert_eq!(reading.await.unwrap().text(), "hello");
    bob.close().await;
    assert_eq!(bob.next_notice().await, None);
}
