//! A watch tells every row once, notices when it is stale, and says when it began anew.

use std::time::Duration;

use super::common::{Broker, SOON, bucket};
use cotal_nats::{RemovalReason, Watch, WatchEvent};
use serde_json::json;
use tokio::time::timeout;

/// An event in a form that compares.
async fn next(watch: &mut Watch) -> String {
    let event = timeout(SOON, watch.next()).await.expect("an event in time").expect("no error");
    match event {
        WatchEvent::Put { key, value, revision } => {
            format!("put {key}={} @{revision}", String::from_utf8_lossy(&value))
        }
        WatchEvent::Delete { key, revision, reason } => format!("{reason:?} {key} @{revision}"),
        WatchEvent::Foreign { revision } => format!("foreign @{revision}"),
        WatchEvent::InitialDone => "done".to_owned(),
        WatchEvent::Reset { bucket_recreated } => format!("reset {bucket_recreated}"),
    }
}

#[tokio::test]
async fn the_initial_rows_then_every_change() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    let bucket = bucket(&connection, json!({})).await;
    let mut watch = bucket.watch_all().await.expect("a watch");
    assert_eq!(next(&mut watch).await, "done", "an empty bucket is told at once");
    bucket.put("a/x", "1".into()).await.expect("put");
    bucket.put("a/x", "2".into()).await.expect("put");
    bucket.put("b.c", "3".into()).await.expect("put");
    for expected in ["put a/x=1 @1", "put a/x=2 @2", "put b.c=3 @3"] {
        assert_eq!(next(&mut watch).await, expected);
    }
    let mut late = bucket.watch_all().await.expect("a watch");
    assert_eq!(next(&mut late).await, "put a/x=2 @2");
    assert_eq!(next(&mut late).await, "put b.c=3 @3");
    assert_eq!(next(&mut late).await, "done");
    bucket.delete("a/x", None).await.expect("deleted");
    bucket.purge("b.c", None).await.expect("purged");
    for watch in [&mut watch, &mut late] {
        assert_eq!(next(watch).await, "Deleted a/x @4");
        assert_eq!(next(watch).await, "Purged b.c @5");
        assert_eq!(watch.applied(), 5);
    }
    assert_eq!(bucket.next_after(watch.applied()).await.expect("an answer"), None);
}

#[tokio::test]
async fn an_expiry_arrives_with_its_reason() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    let settings = json!({
        "max_age": 1_000_000_000_u64, "allow_msg_ttl": true,
        "subject_delete_marker_ttl": 1_000_000_000_u64, "max_msgs_per_subject": 1,
        "duplicate_window": 1_000_000_000_u64,
    });
    let bucket = bucket(&connection, settings).await;
    let mut watch = bucket.watch_all().await.expect("a watch");
    assert_eq!(next(&mut watch).await, "done");
    bucket.create("lease.0", "me".into()).await.expect("created");
    assert_eq!(next(&mut watch).await, "put lease.0=me @1");
    let event = timeout(SOON, watch.next()).await.expect("in time").expect("no error");
    let WatchEvent::Delete { key, reason: RemovalReason::Expired, revision } = event else {
        panic!("{event:?}")
    };
    assert_eq!((key.as_str(), revision), ("lease.0", 2));
    bucket.create("lease.0", "again".into()).await.expect("created over the marker");
    assert!(next(&mut watch).await.starts_with("put lease.0=again"));
}

#[tokio::test]
async fn a_vanished_consumer_is_replaced_right_after_the_last_row() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    let bucket = bucket(&connection, json!({})).await;
    bucket.put("a", "1".into()).await.expect("put");
    let mut watch = bucket.watch_all().await.expect("a watch");
    assert_eq!(next(&mut watch).await, "put a=1 @1");
    assert_eq!(next(&mut watch).await, "done");
    let names = connection
        .js_call::<serde_json::Value>("$JS.API.CONSUMER.NAMES.KV_b", &json!({}), None)
        .await
        .expect("an answer");
    let name = names["consumers"][0].as_str().expect("a name");
    connection.delete_consumer("KV_b", name).await.expect("deleted");
    bucket.put("b", "2".into()).await.expect("put");
    assert_eq!(next(&mut watch).await, "reset false");
    assert_eq!(next(&mut watch).await, "put b=2 @2");
    assert_eq!(next(&mut watch).await, "done");
}

#[tokio::test]
async fn a_watch_comes_back_with_the_broker() {
    let mut broker = Broker::open();
    let connection = broker.connect().await;
    let bucket = bucket(&connection, json!({})).await;
    bucket.put("a", "1".into()).await.expect("put");
    let mut watch = bucket.watch_all().await.expect("a watch");
    assert_eq!(next(&mut watch).await, "put a=1 @1");
    assert_eq!(next(&mut watch).await, "done");
    broker.kill();
    broker.start();
    let mut events = Vec::new();
    connection.connected(SOON).await.expect("back");
    let mut written = false;
    while events.last().is_none_or(|event: &String| !event.starts_with("put b=2")) {
        if !written {
            written = bucket.put("b", "2".into()).await.is_ok();
            continue;
        }
        events.push(next(&mut watch).await);
    }
    assert!(events.contains(&"reset false".to_owned()), "{events:?}");
    assert!(!events.iter().any(|event| event.starts_with("put a")), "told once: {events:?}");
}

#[tokio::test]
async fn a_recreated_bucket_is_told_from_the_start() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    let first = bucket(&connection, json!({})).await;
    first.put("old", "1".into()).await.expect("put");
    let mut watch = first.watch_all().await.expect("a watch");
    assert_eq!(next(&mut watch).await, "put old=1 @1");
    assert_eq!(next(&mut watch).await, "done");
    connection.delete_stream("KV_b").await.expect("deleted");
    let second = bucket(&connection, json!({})).await;
    second.put("new", "1".into()).await.expect("put");
    assert_eq!(next(&mut watch).await, "reset true");
    assert_eq!(next(&mut watch).await, "put new=1 @1");
    assert_eq!(next(&mut watch).await, "done");
}

#[tokio::test]
async fn a_denied_or_absent_bucket_fails_at_once() {
    let broker = Broker::restricted(r#"{ publish: { deny: ["$JS.API.CONSUMER.CREATE.KV_b.>"] } }"#);
    let connection = broker.connect().await;
    let absent = cotal_nats::Bucket::new(&connection, "none").watch_all().await.unwrap_err();
    assert!(absent.is_absent(), "{absent:?}");
    let bucket = bucket(&connection, json!({})).await;
    let denied = timeout(Duration::from_secs(2), bucket.watch_all()).await.expect("at once");
    assert!(denied.unwrap_err().is_denied());
}

#[tokio::test]
async fn a_large_bucket_is_told_whole_and_in_order() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    let bucket = bucket(&connection, json!({})).await;
    let options = cotal_nats::WriterOptions::new(cotal_nats::Engine::Pipelined);
    let (writer, _task) = cotal_nats::Writer::start(&connection, options).await.expect("a writer");
    let rows = (0..20_000)
        .map(|n| cotal_nats::Outgoing::new(format!("$KV.b.k{n}"), None, n.to_string().into()));
    writer.write(rows.collect()).await.expect("stored");
    let mut watch = bucket.watch_all().await.expect("a watch");
    for n in 0..20_000 {
        let event = timeout(SOON, watch.next()).await.expect("in time").expect("no error");
        let WatchEvent::Put { key, revision, .. } = event else { panic!("{event:?}") };
        assert_eq!((key.as_str(), revision), (format!("k{n}").as_str(), n + 1));
    }
    assert_eq!(next(&mut watch).await, "done");
}
