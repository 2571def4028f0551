//! Every answer of a real broker lands in its own class.

use std::time::{Duration, Instant};

use super::common::{Broker, bucket, stream};
use cotal_nats::js::{ConsumerAction, Deleted, Get};
use cotal_nats::{
    Bytes, ConnEvent, ConnectError, ConnectOptions, Connection, CredsSource, Fence, NatsError,
    Operation,
};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

const RESTRICTED: &str = r#"{
    publish: { allow: ["ok.>", "$JS.API.INFO"] }, subscribe: { deny: ["no.>"] }
}"#;

#[tokio::test]
async fn a_denied_request_says_so_at_once() {
    let broker = Broker::restricted(RESTRICTED);
    let connection = broker.connect().await;
    let mut events = connection.events();
    let begin = Instant::now();
    let error = connection.request("no.way", None, Bytes::new(), None).await.unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(2), "not by a timeout: {error}");
    let NatsError::Denied { operation: Operation::Publish, subject } = error else {
        panic!("{error:?}")
    };
    assert_eq!(subject, "no.way");
    loop {
        if let ConnEvent::Denied(denial) = events.recv().await.expect("an event") {
            assert_eq!(denial.subject, "no.way");
            break;
        }
    }
}

#[tokio::test]
async fn a_denied_confirmed_publish_and_a_denied_api_call_say_so() {
    let broker = Broker::restricted(RESTRICTED);
    let connection = broker.connect().await;
    let publish = connection.publish_confirmed("no.s", None, Bytes::new(), Some("id")).await;
    assert!(publish.unwrap_err().is_denied());
    let NatsError::Denied { subject, .. } = connection.stream_info("S").await.unwrap_err() else {
        panic!("not denied")
    };
    assert_eq!(subject, "$JS.API.STREAM.INFO.S");
}

#[tokio::test]
async fn a_denied_subscription_fails_and_an_allowed_one_works() {
    let broker = Broker::restricted(RESTRICTED);
    let connection = broker.connect().await;
    for queue in [None, Some("q")] {
        let error = connection.subscribe("no.>", queue).await.unwrap_err();
        let NatsError::Denied { operation: Operation::Subscribe, subject } = error else {
            panic!("{error:?}")
        };
        assert_eq!(subject, "no.>");
    }
    let mut subscription = connection.subscribe("ok.a", None).await.expect("allowed");
    connection.publish("ok.a", None, "hello".into()).await.expect("allowed");
    assert_eq!(subscription.next().await.expect("a message").payload, "hello");
}

#[tokio::test]
async fn silence_and_absence_of_a_responder_are_two_things() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    let within = Some(Duration::from_millis(200));
    let error = connection.request("nobody", None, Bytes::new(), within).await.unwrap_err();
    assert!(matches!(error, NatsError::NoResponders { .. }), "{error:?}");
    let error = connection.publish_confirmed("no.stream", None, Bytes::new(), None).await;
    let error = error.unwrap_err();
    assert!(matches!(error, NatsError::NoResponders { .. }), "{error:?}");
    let _mute = connection.subscribe("mute", None).await.expect("a subscription");
    let error = connection.request("mute", None, Bytes::new(), within).await.unwrap_err();
    assert!(matches!(error, NatsError::Timeout { .. }), "{error:?}");
}

#[tokio::test]
async fn a_request_that_is_cut_is_rejected_and_not_left_to_its_timeout() {
    let mut broker = Broker::open();
    let connection = broker.connect().await;
    let mut mute = connection.subscribe("mute", None).await.expect("a subscription");
    let asking = connection.clone();
    let asked = tokio::spawn(async move {
        asking.request("mute", None, Bytes::new(), Some(Duration::from_secs(60))).await
    });
    mute.next().await.expect("the request is under way");
    broker.kill();
    let error = asked.await.expect("no panic").unwrap_err();
    assert!(matches!(error, NatsError::Disconnected { .. }), "{error:?}");
    let error = connection.request("mute", None, Bytes::new(), None).await.unwrap_err();
    assert!(matches!(error, NatsError::Disconnected { .. }), "{error:?}");
}

#[tokio::test]
async fn absent_conflict_and_refused_are_told_apart() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    assert!(connection.stream_info("S").await.unwrap_err().is_absent());
    stream(&connection, json!({ "allow_direct": true })).await;
    assert!(connection.consumer_info("S", "c").await.unwrap_err().is_absent());
    assert!(connection.get_message("S", Get::Seq(1)).await.expect("an answer").is_none());
    assert!(connection.direct_get("S", Get::Seq(1)).await.expect("an answer").is_none());

    let taken = json!({ "name": "T", "subjects": ["s.a"] });
    let NatsError::Refused { err_code, description, .. } =
        connection.create_stream("T", &taken).await.unwrap_err()
    else {
        panic!("not refused")
    };
    assert_eq!(
        (err_code, description.as_str()),
        (10_065, "subjects overlap with an existing stream")
    );

    let other = json!({ "name": "S", "subjects": ["other"] });
    assert!(connection.create_stream("S", &other).await.unwrap_err().is_conflict());

    let create = json!({ "name": "c", "durable_name": "c", "ack_policy": "explicit" });
    let action = ConsumerAction::Create;
    connection.create_consumer("S", "c", None, &create, action).await.expect("a consumer");
    let other = json!({ "name": "c", "durable_name": "c", "ack_policy": "none" });
    let error = connection.create_consumer("S", "c", None, &other, action).await.unwrap_err();
    assert!(error.is_conflict(), "{error:?}");
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_before_it_is_sent() {
    let broker = Broker::with("max_payload: 1024\n");
    let connection = broker.connect().await;
    let body = Bytes::from(vec![0; 2_000]);
    let error = connection.request("x", None, body, None).await.unwrap_err();
    assert!(matches!(error, NatsError::TooLarge { size: 2_000, max: 1_024, .. }), "{error:?}");
    assert!(connection.is_connected());
}

#[tokio::test]
async fn stored_messages_are_read_and_deleted_twice() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    stream(&connection, json!({ "allow_direct": true })).await;
    for (subject, body) in [("s.a", "1"), ("s.b", "2"), ("s.a", "3")] {
        let id = Some(body);
        connection.publish_confirmed(subject, None, body.into(), id).await.expect("stored");
    }
    let again = connection.publish_confirmed("s.a", None, "3".into(), Some("3")).await;
    assert!(again.expect("an answer").duplicate);
    assert_eq!(connection.last_seq("S").await.expect("an answer"), 3);

    let next = Get::NextBySubject { seq: 2, subject: "s.a" };
    for found in [connection.get_message("S", next).await, connection.direct_get("S", next).await] {
        let found = found.expect("an answer").expect("a message");
        assert_eq!((found.seq, &found.payload[..]), (3, &b"3"[..]));
        let id = cotal_nats::headers::get(found.headers.as_ref(), cotal_nats::headers::MSG_ID);
        assert_eq!(id, Some("3"));
    }
    let batch = connection.direct_next("S", 1, "s.>", 2).await.expect("a batch");
    let seqs: Vec<_> = batch.messages.iter().map(|message| message.seq).collect();
    assert_eq!((seqs, batch.pending), (vec![1, 2], 1));
    let last = connection.direct_multi_last("S", &["s.*".into()], 10).await.expect("a batch");
    assert_eq!(last.messages.iter().map(|m| m.seq).collect::<Vec<_>>(), [2, 3]);

    let page = connection.stream_info_subjects("S", "s.>", 0).await.expect("a page");
    assert_eq!(page.subjects, [("s.a".to_owned(), 2), ("s.b".to_owned(), 1)]);
    assert_eq!(connection.delete_message("S", 3).await.expect("an answer"), Deleted::Deleted);
    assert_eq!(connection.delete_message("S", 3).await.expect("an answer"), Deleted::AlreadyGone);
    assert_eq!(connection.purge_stream("S", Some("s.a")).await.expect("an answer"), 1);
}

#[tokio::test]
async fn many_replies_are_collected_until_enough_or_over() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    let mut servers = Vec::new();
    for n in 0..3 {
        let server = connection.clone();
        let mut asked = connection.subscribe("census", None).await.expect("a subscription");
        servers.push(tokio::spawn(async move {
            while let Ok(message) = asked.next().await {
                let reply = message.reply.expect("a reply subject");
                server.publish(reply, None, format!("{n}").into()).await.expect("sent");
            }
        }));
    }
    let long = Duration::from_secs(30);
    let all = connection.request_many("census", Bytes::new(), long, |got| got.len() == 3).await;
    assert_eq!(all.expect("replies").len(), 3);
    let short = Duration::from_millis(300);
    let all = connection.request_many("census", Bytes::new(), short, |_| false).await;
    assert_eq!(all.expect("what came until then").len(), 3);
    for server in servers {
        server.abort();
    }
}

#[tokio::test]
async fn compare_and_set_decides_at_the_broker() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    let bucket = bucket(&connection, json!({})).await;
    assert!(bucket.get("k").await.expect("an answer").is_none());
    let first = bucket.create("k", "1".into()).await.expect("created");
    assert!(bucket.create("k", "2".into()).await.unwrap_err().is_conflict());
    let second = bucket.update("k", "2".into(), first).await.expect("updated");
    assert!(bucket.update("k", "3".into(), first).await.unwrap_err().is_conflict());
    assert!(bucket.delete("k", Some(first)).await.unwrap_err().is_conflict());
    let third = bucket.delete("k", Some(second)).await.expect("deleted");
    let entry = bucket.get("k").await.expect("an answer").expect("a marker");
    assert_eq!((entry.revision, entry.live()), (third, None));
    let fourth = bucket.create("k", "4".into()).await.expect("created over a marker");
    let history = bucket.history("k").await.expect("history");
    assert_eq!(
        history.iter().map(|e| e.revision).collect::<Vec<_>>(),
        [first, second, third, fourth]
    );
    bucket.put("team.a/x", "5".into()).await.expect("put");
    assert_eq!(bucket.keys().await.expect("keys"), ["k", "team.a/x"]);
    assert_eq!(bucket.next_after(fourth).await.expect("an answer"), Some(fourth + 1));
    assert_eq!(bucket.next_after(fourth + 1).await.expect("an answer"), None);
    bucket.purge("k", None).await.expect("purged");
    assert_eq!(bucket.history("k").await.expect("history").len(), 1);
}

/// A busy broker pings a connection that it has not judged yet, and then rejects it.
#[tokio::test]
async fn a_rejection_that_comes_after_a_ping_is_a_rejection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("nats://{}", listener.local_addr().expect("an address"));
    let rejecting = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let (reader, mut writer) = stream.into_split();
            let info = "INFO {\"server_id\":\"S\",\"version\":\"2.15.1\",\"headers\":true,\
                        \"max_payload\":1048576,\"auth_required\":true,\"proto\":1}\r\n";
            writer.write_all(info.as_bytes()).await.expect("an INFO");
            let mut lines = BufReader::new(reader).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if line.starts_with("PING") {
                    let answer = b"PING\r\n-ERR 'Authorization Violation'\r\n";
                    writer.write_all(answer).await.expect("an answer");
                    break;
                }
            }
        }
    });
    let options = ConnectOptions::new(url, "test", CredsSource::anonymous());
    let error = Connection::connect(options).await.expect_err("a rejection");
    assert!(matches!(error, NatsError::Connect(ConnectError::Rejected { .. })), "{error:?}");
    rejecting.abort();
}

#[tokio::test]
async fn what_a_fence_withholds_is_not_stored_and_not_removed() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    let rows = bucket(&connection, json!({})).await;
    let open = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asked = std::sync::Arc::clone(&open);
    let fence = Fence::new(move || asked.load(std::sync::atomic::Ordering::SeqCst));
    let fenced = connection.fenced(fence);
    let kv = cotal_nats::Bucket::new(&fenced, rows.name());
    let withheld = |outcome: Result<u64, NatsError>| {
        assert!(matches!(outcome, Err(NatsError::Withheld { .. })), "{outcome:?}");
    };
    let revision = rows.put("a", "1".into()).await.expect("put");
    withheld(kv.create("b", "1".into()).await);
    withheld(kv.update("a", "2".into(), revision).await);
    withheld(kv.delete("a", Some(revision)).await);
    let removed = fenced.delete_message(rows.stream(), revision).await;
    assert!(matches!(removed, Err(NatsError::Withheld { .. })), "{removed:?}");
    let entry = kv.get("a").await.expect("reads pass").expect("the row");
    assert_eq!((entry.revision, entry.value.as_ref()), (revision, b"1".as_slice()));
    assert!(kv.get("b").await.expect("an answer").is_none());
    kv.beyond_the_fence().update("a", "own".into(), revision).await.expect("its own");
    open.store(true, std::sync::atomic::Ordering::SeqCst);
    kv.create("b", "1".into()).await.expect("created");
}
