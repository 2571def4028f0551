//! Pulls go on across whatever the broker does, and typed errors tell what cannot go on.

use std::time::Duration;

use super::common::{Broker, SOON, ack_all, consumer, stream};
use cotal_nats::{
    Connection, Engine, Outgoing, PullConsumer, PullError, PullOptions, Writer, WriterOptions,
};
use serde_json::json;

async fn fill(connection: &Connection, count: usize) {
    let options = WriterOptions::new(Engine::Pipelined);
    let (writer, _task) = Writer::start(connection, options).await.expect("a writer");
    let messages =
        (0..count).map(|n| Outgoing::new("s.x", Some(format!("i{n}")), n.to_string().into()));
    writer.write(messages.collect()).await.expect("stored");
}

fn quick() -> PullOptions {
    PullOptions { batch: 100, idle_heartbeat: Duration::from_millis(500), ..PullOptions::default() }
}

async fn drain(consumer: &mut PullConsumer, count: usize) -> Vec<u64> {
    let mut seqs = Vec::new();
    while seqs.len() < count {
        let batch = consumer.next_batch(64, SOON).await.expect("messages");
        assert!(!batch.is_empty(), "only {} of {count} came", seqs.len());
        assert!(batch.len() <= 64);
        seqs.extend(ack_all(batch).await);
    }
    seqs
}

#[tokio::test]
async fn all_come_in_order_and_acks_count() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    stream(&connection, json!({})).await;
    fill(&connection, 1_000).await;
    let mut pull = consumer(&connection, quick()).await;
    assert_eq!(drain(&mut pull, 1_000).await, (1..=1_000).collect::<Vec<_>>());
    let empty = pull.next_batch(10, Duration::from_millis(50)).await.expect("no error");
    assert!(empty.is_empty());
    connection.round_trip().await.expect("an answer");
    let info = connection.consumer_info("S", "c").await.expect("an answer");
    assert_eq!((info.num_ack_pending, info.ack_floor.stream_seq), (0, 1_000));
}

/// The broker would hand the first of them to the pull that was left, and put it behind all others.
#[tokio::test]
async fn what_is_given_back_at_the_end_comes_again_in_its_order() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    stream(&connection, json!({})).await;
    fill(&connection, 8).await;
    for read in 1..=8 {
        let mut pull = consumer(&connection, quick()).await;
        let mut batch = pull.next_batch(64, SOON).await.expect("messages").into_iter();
        let first = batch.next().expect("a message");
        assert_eq!(first.stream_seq, read);
        first.ack_confirmed().await.expect("acked");
        let left = pull.end().await;
        for delivery in batch.chain(left) {
            delivery.nak(None).await.expect("given back");
        }
    }
}

/// More was given back than the next reader takes, and it leaves while the rest streams in.
#[tokio::test]
async fn whoever_leaves_gives_back_in_order_what_others_gave_back_before() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    stream(&connection, json!({})).await;
    fill(&connection, 2_000).await;
    let mut read = 0;
    for batch in [1_000, 100, 500, 10, 2_000] {
        let mut pull = consumer(&connection, PullOptions { batch, ..quick() }).await;
        let taken = pull.next_batch(8, SOON).await.expect("messages");
        let mut left = pull.leave(|| true).await;
        let mut taken = taken.into_iter();
        let first = taken.next().expect("a message");
        read += 1;
        assert_eq!(first.stream_seq, read);
        first.ack_confirmed().await.expect("acked");
        left.add(taken);
        left.give_back(|| true).await.expect("given back");
    }
    let mut pull = consumer(&connection, quick()).await;
    let rest = usize::try_from(2_000 - read).expect("a count");
    assert_eq!(drain(&mut pull, rest).await, (read + 1..=2_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_idle_pull_outlives_its_requests_and_hears_heartbeats() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    stream(&connection, json!({})).await;
    let options = PullOptions { expires: Duration::from_millis(1_100), ..quick() };
    let mut pull = consumer(&connection, options).await;
    let idle = pull.next_batch(1, Duration::from_secs(3)).await.expect("heartbeats keep it quiet");
    assert!(idle.is_empty());
    fill(&connection, 1).await;
    assert_eq!(drain(&mut pull, 1).await, [1]);
}

#[tokio::test]
async fn verdicts_redeliver_or_end() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    stream(&connection, json!({})).await;
    fill(&connection, 2).await;
    let mut pull = consumer(&connection, quick()).await;
    let mut batch = pull.next_batch(1, SOON).await.expect("messages");
    let first = batch.pop().expect("one");
    assert_eq!((first.delivered, first.msg_id(), first.pending), (1, Some("i0"), 1));
    first.progress().await.expect("sent");
    first.nak(None).await.expect("sent");
    let mut seen = Vec::new();
    while seen.len() < 2 {
        for delivery in pull.next_batch(10, SOON).await.expect("messages") {
            seen.push((delivery.stream_seq, delivery.delivered));
            match delivery.stream_seq {
                1 => delivery.term().await.expect("sent"),
                _ => delivery.ack_confirmed().await.expect("confirmed"),
            }
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [(1, 2), (2, 1)]);
    connection.round_trip().await.expect("an answer");
    let info = connection.consumer_info("S", "c").await.expect("an answer");
    assert_eq!((info.num_ack_pending, info.num_pending), (0, 0));
}

#[tokio::test]
async fn a_pull_goes_on_after_a_crash_and_a_forced_reconnect() {
    let mut broker = Broker::open();
    let connection = broker.connect().await;
    stream(&connection, json!({})).await;
    fill(&connection, 300).await;
    let mut pull = consumer(&connection, quick()).await;
    let mut seen = drain(&mut pull, 100).await;
    broker.kill();
    broker.start();
    while seen.len() < 300 {
        let batch = pull.next_batch(64, SOON).await.expect("messages after the crash");
        assert!(!batch.is_empty(), "only {seen:?}");
        seen.extend(ack_all(batch).await);
        seen.sort_unstable();
        seen.dedup();
    }
    assert_eq!(seen, (1..=300).collect::<Vec<_>>());
    connection.force_reconnect().await.expect("asked");
    fill(&connection, 301).await;
    while seen.last() != Some(&301) {
        seen.extend(ack_all(pull.next_batch(64, SOON).await.expect("messages")).await);
        seen.sort_unstable();
    }
}

#[tokio::test]
async fn a_deleted_and_an_absent_consumer_are_typed() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    stream(&connection, json!({})).await;
    let mut pull = consumer(&connection, quick()).await;
    assert!(pull.next_batch(1, Duration::from_millis(50)).await.expect("no error").is_empty());
    connection.delete_consumer("S", "c").await.expect("deleted");
    let error = pull.next_batch(1, SOON).await.unwrap_err();
    assert!(matches!(error, PullError::ConsumerDeleted { .. }), "{error:?}");
    assert!(error.is_fatal());
    let error = pull.next_batch(1, SOON).await.unwrap_err();
    assert!(matches!(error, PullError::NoSuchConsumer { .. }), "{error:?}");
}

#[tokio::test]
async fn a_denied_pull_is_typed() {
    let broker = Broker::restricted(r#"{ publish: { deny: ["$JS.API.CONSUMER.MSG.NEXT.S.c"] } }"#);
    let connection = broker.connect().await;
    stream(&connection, json!({})).await;
    let mut pull = consumer(&connection, quick()).await;
    let error = pull.next_batch(1, SOON).await.unwrap_err();
    assert!(matches!(&error, PullError::Nats(e) if e.is_denied()), "{error:?}");
}
