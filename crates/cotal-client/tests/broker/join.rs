//! The two halves of a join, and a plane without a daemon.

use std::time::Duration;

use cotal_client::{
    Backstop, Departure, Draft, Endpoint, LeaseCondition, Live, Notice, Shortfall, Source,
};
use cotal_testkit::Mesh;
use cotal_wire::names::{DEFAULTS_KEY, DELIVERY};

use crate::support::{
    channel, configure, endpoint, lifecycle, message, nothing, notice, options, post_raw, sender,
    stopped,
};

#[tokio::test]
async fn mem_8_without_a_daemon_a_join_is_live_with_the_backstop_unestablished() {
    let mesh = Mesh::start().await;
    let bob = mesh.add_agent("bob", &["team.>"], &[], None).await;
    let bob = endpoint(&mesh, &bob).await;
    let joined = bob.join(&channel("team.a")).await;
    assert!(matches!(joined.live, Live::Active), "{joined}");
    assert_eq!(joined.backstop, Backstop::Unestablished(Shortfall::NoDaemon));
    let said = joined.to_string();
    assert!(said.contains("joined live with the durable backstop unestablished"), "{said}");
    let left = bob.leave(&channel("team.a")).await;
    assert!(left.was_live);
    assert_eq!(left.durable, Departure::Standing(Shortfall::NoDaemon));
}

#[tokio::test]
async fn agt_2_live_delivery_never_depends_on_the_daemon() {
    let mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.>"], None).await,
        mesh.add_agent("bob", &["team.>"], &["team.>"], None).await,
    );
    let (alice, bob) = (sender(&mesh, &alice).await, endpoint(&mesh, &bob).await);
    bob.join(&channel("team.a")).await;
    bob.post(&channel("team.a"), "my own").await.unwrap();
    alice.post(&channel("team.b"), "elsewhere").await.unwrap();
    alice.post(&channel("team.a"), "hello").await.unwrap();
    let incoming = message(&bob).await;
    assert_eq!((incoming.text().as_str(), incoming.source), ("hello", Source::Live));
    incoming.ack().await.unwrap();
    bob.leave(&channel("team.a")).await;
    alice.post(&channel("team.a"), "after the leave").await.unwrap();
    nothing(&bob).await;
}

/// Somebody listens on the rail and never replies: the live half stands before the durable half is
/// even asked for, and a backstop that nobody confirmed is none.
#[tokio::test]
async fn agt_2_and_mem_8_a_silent_daemon_holds_up_no_live_join_and_is_no_backstop() {
    let mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.>"], None).await,
        mesh.add_agent("bob", &["team.>"], &[], None).await,
    );
    let silent = mesh.god().await;
    let rail = mesh.space().ctl_all(DELIVERY);
    let mut requests = silent.subscribe(rail, None).await.unwrap();
    let alice = sender(&mesh, &alice).await;
    let options = options(mesh.url(), &bob).request_timeout(Duration::from_secs(3));
    let bob = Endpoint::connect(options).await.unwrap();
    let on = channel("team.a");
    let heard = async {
        requests.next().await.unwrap();
        alice.post(&on, "meanwhile").await.unwrap();
        message(&bob).await
    };
    let (joined, incoming) = tokio::join!(bob.join(&on), heard);
    assert_eq!((incoming.text().as_str(), incoming.source), ("meanwhile", Source::Live));
    let silence = Shortfall::Silent { after: Duration::from_secs(3) };
    assert_eq!(joined.backstop, Backstop::Unestablished(silence));
}

/// The space's defaults count where the channel's own config is silent, as for the daemon.
#[tokio::test]
async fn fan_7_a_join_resolves_the_class_from_the_channel_and_then_the_defaults() {
    let mesh = Mesh::start().await;
    configure(&mesh, DEFAULTS_KEY, r#"{"deliveryClass":"live"}"#).await;
    configure(&mesh, "team.kept", r#"{"deliveryClass":"durable"}"#).await;
    let bob = mesh.add_agent("bob", &["team.>"], &[], None).await;
    let bob = sender(&mesh, &bob).await;
    let joined = bob.join(&channel("team.a")).await;
    assert_eq!(joined.backstop, Backstop::NotDurable);
    let joined = bob.join(&channel("team.kept")).await;
    assert_eq!(joined.backstop, Backstop::Unestablished(Shortfall::NoDaemon));
}

#[tokio::test]
async fn agt_2_a_channel_that_the_credential_may_not_read_is_refused_by_the_broker() {
    let mesh = Mesh::start().await;
    let bob = mesh.add_agent("bob", &["team.a"], &[], None).await;
    let bob = endpoint(&mesh, &bob).await;
    let joined = bob.join(&channel("team.b")).await;
    assert!(matches!(&joined.live, Live::Refused(e) if e.is_denied()), "{joined}");
    assert!(!joined.to_string().contains("joined live"), "{joined}");
}

#[tokio::test]
async fn agt_1_the_durable_is_bound_without_a_ready_lease_and_a_later_daemon_delivers_through_it() {
    let mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.>"], None).await,
        mesh.add_agent("bob", &["team.>"], &[], None).await,
    );
    let reader = endpoint(&mesh, &bob).await;
    let warned = notice(&reader, |n| matches!(n, Notice::NoReadyLease { .. })).await;
    let durable = mesh.space().dlv_consumer(&lifecycle(&bob));
    let expected = Notice::NoReadyLease {
        durable: durable.clone(),
        space: mesh.space().clone(),
        condition: LeaseCondition::Missing,
    };
    assert_eq!(warned, expected);
    let said = warned.to_string();
    for part in [durable.as_str(), "space main", "no delivery daemon", "another plane"] {
        assert!(said.contains(part), "{part} is missing: {said}");
    }

    let daemon = mesh.lane().await;
    let joiner = sender(&mesh, &bob).await;
    let joined = joiner.join(&channel("team.a")).await;
    assert_eq!(joined.backstop, Backstop::Durable { generation: 1 });
    sender(&mesh, &alice).await.post(&channel("team.a"), "at last").await.unwrap();
    let incoming = message(&reader).await;
    assert_eq!((incoming.text().as_str(), incoming.source), ("at last", Source::Durable));
    incoming.ack().await.unwrap();
    stopped(daemon).await;
}

#[tokio::test]
async fn a_live_channel_has_no_backstop_and_none_is_asked_for() {
    let mesh = Mesh::start().await;
    configure(&mesh, "team.chat", r#"{"deliveryClass":"live"}"#).await;
    let bob = mesh.add_agent("bob", &["team.>"], &[], None).await;
    let bob = sender(&mesh, &bob).await;
    let joined = bob.join(&channel("team.chat")).await;
    assert_eq!(joined.backstop, Backstop::NotDurable);
    configure(&mesh, "team.chat", r#"{"stream":"KV","seq":7}"#).await;
    let joined = bob.join(&channel("team.chat")).await;
    assert_eq!(joined.backstop, Backstop::NotDurable, "a garbled row changes nothing");
}

#[tokio::test]
async fn a_daemon_joins_lists_and_leaves_by_generation() {
    let mesh = Mesh::start().await;
    let daemon = mesh.lane().await;
    let bob = mesh.add_agent("bob", &["team.a"], &[], None).await;
    let bob = sender(&mesh, &bob).await;
    let on = channel("team.a");
    assert_eq!(bob.join(&on).await.backstop, Backstop::Durable { generation: 1 });
    assert_eq!(bob.join(&on).await.backstop, Backstop::Durable { generation: 1 });
    let listed = bob.memberships().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].channel.as_str(), listed[0].generation), ("team.a", 1));
    assert_eq!(bob.leave(&on).await.durable, Departure::Durable { generation: 1 });
    assert_eq!(bob.leave(&on).await.durable, Departure::NotMember);
    assert_eq!(bob.join(&on).await.backstop, Backstop::Durable { generation: 2 });
    let denied = bob.join(&channel("team.b")).await.backstop;
    assert!(matches!(denied, Backstop::Unestablished(Shortfall::Refused { .. })), "{denied:?}");
    stopped(daemon).await;
}

#[tokio::test]
async fn agt_3_history_is_backfilled_once_and_only_as_far_as_the_config_says() {
    let mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.>"], None).await,
        mesh.add_agent("bob", &["team.>"], &["team.>"], None).await,
    );
    let writer = sender(&mesh, &alice).await;
    for on in ["team.shown", "team.hidden", "team.recent"] {
        writer.post(&channel(on), Draft::text(format!("old {on}"))).await.unwrap();
    }
    configure(&mesh, "team.shown", r#"{"replay":true}"#).await;
    configure(&mesh, "team.recent", r#"{"replay":true,"replayWindow":"0s"}"#).await;
    let raw = mesh.connect(&alice).await;
    let forged = r#"{"id":"f","from":{"id":"local.bob"},"channel":"team.shown","parts":[]}"#;
    post_raw(&raw, &mesh, "alice", "team.shown", forged).await;

    let bob: Endpoint = endpoint(&mesh, &bob).await;
    for on in ["team.hidden", "team.recent", "team.shown"] {
        bob.join(&channel(on)).await;
    }
    let incoming = message(&bob).await;
    assert_eq!((incoming.text().as_str(), incoming.source), ("old team.shown", Source::Backfilled));
    incoming.ack().await.unwrap();
    nothing(&bob).await;
    bob.leave(&channel("team.shown")).await;
    bob.join(&channel("team.shown")).await;
    nothing(&bob).await;
}

#[tokio::test]
async fn two_processes_of_an_agent_take_turns_with_history() {
    let mesh = Mesh::start().await;
    let (alice, bob) = (
        mesh.add_agent("alice", &[], &["team.>"], None).await,
        mesh.add_agent("bob", &["team.>"], &[], None).await,
    );
    let writer = sender(&mesh, &alice).await;
    for on in ["team.a", "team.b"] {
        configure(&mesh, on, r#"{"replay":true,"replayWindow":"1h"}"#).await;
        writer.post(&channel(on), on).await.unwrap();
    }
    let open = || async {
        let options = options(mesh.url(), &bob).send_only();
        Endpoint::connect(options).await.unwrap()
    };
    let (one, two) = (open().await, open().await);
    let (a, b) = (channel("team.a"), channel("team.b"));
    tokio::join!(one.join(&a), two.join(&b));
    assert_eq!(message(&one).await.text(), "team.a");
    assert_eq!(message(&two).await.text(), "team.b");
}
