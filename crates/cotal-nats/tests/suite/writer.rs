//! Writes are confirmed once, in order, whatever happens to the broker meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::common::{Broker, stream};
use cotal_nats::js::Get;
use cotal_nats::{Connection, Engine, NatsError, Outgoing, Subscription, Writer, WriterOptions};
use serde_json::{Value, json};

const ENGINES: [Engine; 2] = [Engine::FastIngest, Engine::Pipelined];

/// Messages that may go onto the wire between two looks whether they may.
const PER_LOOK: usize = 16;

fn batch(range: std::ops::Range<usize>) -> Vec<Outgoing> {
    range
        .map(|n| {
            Outgoing::new(format!("s.m{}", n % 50), Some(format!("id-{n}")), n.to_string().into())
        })
        .collect()
}

async fn bodies(connection: &Connection) -> Vec<usize> {
    let mut all = Vec::new();
    loop {
        let from = all.last().map_or(1, |(seq, _)| seq + 1);
        let page = connection.direct_next("S", from, "s.>", 500).await.expect("a page");
        if page.messages.is_empty() {
            return all.into_iter().map(|(_, body)| body).collect();
        }
        for message in page.messages {
            let text = std::str::from_utf8(&message.payload).expect("text");
            all.push((message.seq, text.parse().expect("a number")));
        }
    }
}

/// What the broker says of fast batches.
async fn reports(connection: &Connection) -> Subscription {
    let replies = format!("{}.*.*.*.*.*.*.$FI", connection.inbox_prefix());
    connection.subscribe(replies, None).await.expect("an ear")
}

/// All that it has said until now: of which batch, and what.
async fn told(connection: &Connection, reports: &mut Subscription) -> Vec<(String, Value)> {
    let marker = format!("{}.test.end.1.1.1.1.$FI", connection.inbox_prefix());
    connection.publish(marker, None, "end".into()).await.expect("published");
    let mut told = Vec::new();
    loop {
        let report = reports.next().await.expect("a report");
        if report.payload == "end" {
            return told;
        }
        let id = report.subject.split('.').nth(2).expect("an id").to_owned();
        told.push((id, serde_json::from_slice(&report.payload).expect("JSON")));
    }
}

async fn setup(broker: &Broker) -> Connection {
    let connection = broker.connect().await;
    stream(&connection, json!({ "allow_batched": true, "allow_direct": true })).await;
    connection
}

#[tokio::test]
async fn everything_is_stored_once_in_order_and_a_repeat_stores_nothing() {
    for engine in ENGINES {
        let broker = Broker::open();
        let connection = setup(&broker).await;
        let (writer, task) =
            Writer::start(&connection, WriterOptions::new(engine)).await.expect("a writer");
        let first = writer.submit(batch(0..3_000)).await.expect("submitted");
        let second = writer.submit(batch(3_000..3_010)).await.expect("submitted");
        let third = writer.submit(batch(3_010..6_000)).await.expect("submitted");
        for ticket in [first, second, third] {
            ticket.await.expect("confirmed");
        }
        assert_eq!(bodies(&connection).await, (0..6_000).collect::<Vec<_>>(), "{engine:?}");
        writer.write(batch(2_000..4_000)).await.expect("a repeat is confirmed");
        assert_eq!(connection.last_seq("S").await.expect("an answer"), 6_000, "{engine:?}");
        drop(writer);
        task.await.expect("the task ends with its handles");
    }
}

#[tokio::test]
async fn fast_ingest_is_what_serves_a_burst() {
    let broker = Broker::open();
    let connection = setup(&broker).await;
    assert_eq!(Engine::best(&connection, true), Engine::FastIngest);
    assert_eq!(Engine::best(&connection, false), Engine::Pipelined);
    let mut reports = reports(&connection).await;
    let options = WriterOptions::new(Engine::FastIngest);
    let (writer, _task) = Writer::start(&connection, options).await.expect("a writer");
    writer.write(batch(0..500)).await.expect("confirmed");
    let report = reports.next().await.expect("a report of the broker");
    assert!(report.payload.starts_with(b"{\"type\":\"ack\""), "{report:?}");
}

/// A batch that is over is not the one behind it, which is still open: nothing of that one is sent
/// again, and no batch is left open at the broker, which divides its reports among those.
#[tokio::test]
async fn the_end_of_a_fast_batch_leaves_the_next_one_alone() {
    let broker = Broker::open();
    let connection = setup(&broker).await;
    let mut wire = connection.subscribe("s.>", None).await.expect("an ear");
    let mut reports = reports(&connection).await;
    connection.flush().await.expect("both ears are known");
    let options = WriterOptions { max_in_flight: 100, ..WriterOptions::new(Engine::FastIngest) };
    let (writer, task) = Writer::start(&connection, options).await.expect("a writer");
    let mut sent = 0;
    for _ in 0..20 {
        // The first is a batch of its own; of the second only a part may go onto the wire.
        let first = writer.submit(batch(sent..sent + 90)).await.expect("submitted");
        tokio::task::yield_now().await;
        let second = writer.submit(batch(sent + 90..sent + 180)).await.expect("submitted");
        first.await.expect("confirmed");
        second.await.expect("confirmed");
        sent += 180;
    }
    drop(writer);
    task.await.expect("the task ends with its handles");
    connection.publish("s.end", None, "end".into()).await.expect("published");
    let mut seen = 0;
    while wire.next().await.expect("a message").payload != "end" {
        seen += 1;
    }
    assert_eq!(seen, sent, "messages went onto the wire more often than once");
    let told = told(&connection, &mut reports).await;
    let shares: Vec<_> = told.iter().filter_map(|(_, report)| report["msgs"].as_u64()).collect();
    assert!(!shares.is_empty() && shares.iter().all(|share| *share == shares[0]), "{shares:?}");
}

/// A batch can stay open when what would have ended it was withheld, until the broker forgets it.
#[tokio::test]
async fn a_batch_that_the_broker_forgot_is_begun_anew_and_as_fast() {
    let broker = Broker::open();
    let connection = setup(&broker).await;
    let mut reports = reports(&connection).await;
    let mut ends = connection.subscribe("ends.>", None).await.expect("an ear");
    connection.flush().await.expect("both ears are known");
    // The first looks let messages go: 256 of them, as many as the broker reports at once.
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&looks);
    let may_write = move || counted.fetch_add(1, Ordering::SeqCst) != 256 / PER_LOOK;
    let options = WriterOptions { max_in_flight: 256, ..WriterOptions::new(Engine::FastIngest) };
    let (writer, _task) =
        Writer::start_while(&connection, options, may_write).await.expect("a writer");
    let ticket = writer.submit(batch(0..300)).await.expect("submitted");
    assert_eq!(ticket.await.expect_err("withheld").failed.len(), 44);
    let first = reports.next().await.expect("a report");
    let open = first.subject.split('.').nth(2).expect("an id").to_owned();

    let gap = format!("ends.{open}.256.fail.999.1.$FI");
    connection.publish_with_reply("s.gap", gap, None, "".into()).await.expect("published");
    while ends.next().await.expect("a report").payload.starts_with(b"{\"type\"") {}

    writer.write(batch(300..600)).await.expect("confirmed");
    let told = told(&connection, &mut reports).await;
    let is_end = |report: &Value| report["count"].is_number();
    let ended: Vec<_> = told.iter().filter(|(_, report)| is_end(report)).collect();
    assert!(ended.iter().any(|(id, _)| *id != open), "written one by one since: {ended:?}");
    let all: Vec<_> = (0..256).chain(300..600).collect();
    assert_eq!(bodies(&connection).await, all);
}

#[tokio::test]
async fn a_lone_message_is_confirmed_at_once() {
    for engine in ENGINES {
        let broker = Broker::open();
        let connection = setup(&broker).await;
        let (writer, _task) =
            Writer::start(&connection, WriterOptions::new(engine)).await.expect("a writer");
        for range in [0..1, 1..3, 3..103] {
            let begin = Instant::now();
            writer.write(batch(range)).await.expect("confirmed");
            assert!(begin.elapsed() < Duration::from_secs(1), "{engine:?} {:?}", begin.elapsed());
        }
    }
}

#[tokio::test]
async fn a_crash_in_the_middle_loses_nothing_that_was_confirmed_and_confirms_all_in_the_end() {
    for engine in ENGINES {
        let mut broker = Broker::open();
        let connection = setup(&broker).await;
        let mut options = WriterOptions::new(engine);
        options.max_in_flight = 256;
        let (writer, task) = Writer::start(&connection, options).await.expect("a writer");
        let feeder = tokio::spawn(async move {
            let mut tickets = Vec::new();
            for start in (0..40_000).step_by(500) {
                tickets.push(writer.submit(batch(start..start + 500)).await.expect("submitted"));
            }
            tickets
        });
        while connection.last_seq("S").await.expect("an answer") < 3_000 {
            tokio::task::yield_now().await;
        }
        broker.kill();
        broker.start();
        for ticket in feeder.await.expect("no panic") {
            ticket.await.expect("confirmed in the end");
        }
        task.await.expect("the task ends");
        let stored = bodies(&connection).await;
        let mut sorted = stored.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..40_000).collect::<Vec<_>>(), "{engine:?}: each exactly once");
        // What the client itself had queued when the connection broke may overtake what is sent
        // again.
        let early = stored.iter().enumerate().map(|(place, n)| n.saturating_sub(place)).max();
        assert!(early < Some(256), "{engine:?}: {early:?} places before its turn");
    }
}

#[tokio::test]
async fn one_denied_message_does_not_hold_up_its_neighbours() {
    for engine in ENGINES {
        let broker = Broker::restricted(r#"{ publish: { deny: ["s.m7"] } }"#);
        let connection = setup(&broker).await;
        let (writer, _task) =
            Writer::start(&connection, WriterOptions::new(engine)).await.expect("a writer");
        let ticket = writer.submit(batch(0..500)).await.expect("submitted");
        let error = ticket.await.expect_err("ten are denied");
        let denied: Vec<_> = error.failed.iter().map(|(index, _)| *index).collect();
        assert_eq!(denied, (7..500).step_by(50).collect::<Vec<_>>(), "{engine:?}");
        assert!(error.failed.iter().all(|(_, e)| e.is_denied()), "{engine:?} {error}");
        let expected: Vec<_> = (0..500).filter(|n| n % 50 != 7).collect();
        assert_eq!(bodies(&connection).await, expected, "{engine:?}");
    }
}

#[tokio::test]
async fn a_refused_message_is_quoted_and_its_neighbours_are_stored() {
    for engine in ENGINES {
        let broker = Broker::open();
        let connection = broker.connect().await;
        let settings = json!({ "allow_batched": true, "allow_direct": true, "max_msg_size": 200 });
        stream(&connection, settings).await;
        let (writer, _task) =
            Writer::start(&connection, WriterOptions::new(engine)).await.expect("a writer");
        let mut messages = batch(0..300);
        messages[150].payload = vec![b'x'; 400].into();
        let error = writer.submit(messages).await.expect("submitted").await.expect_err("one fails");
        let [(150, NatsError::Refused { err_code: 10_054, .. })] = &error.failed[..] else {
            panic!("{engine:?} {error:?}")
        };
        let expected: Vec<_> = (0..300).filter(|n| *n != 150).collect();
        assert_eq!(bodies(&connection).await, expected, "{engine:?}");
    }
}

#[tokio::test]
async fn a_stream_that_takes_no_fast_batches_is_written_one_by_one() {
    let broker = Broker::open();
    let connection = broker.connect().await;
    stream(&connection, json!({ "allow_direct": true })).await;
    let options = WriterOptions::new(Engine::FastIngest);
    let (writer, _task) = Writer::start(&connection, options).await.expect("a writer");
    writer.write(batch(0..500)).await.expect("confirmed");
    assert_eq!(bodies(&connection).await, (0..500).collect::<Vec<_>>());
}

#[tokio::test]
async fn nobody_serving_the_subject_and_too_large_are_typed() {
    for engine in ENGINES {
        let broker = Broker::with("max_payload: 4096\n");
        let connection = broker.connect().await;
        let mut options = WriterOptions::new(engine);
        options.give_up_after = Duration::from_secs(1);
        let (writer, _task) = Writer::start(&connection, options).await.expect("a writer");
        let error =
            writer.submit(batch(0..100)).await.expect("submitted").await.expect_err("no stream");
        assert_eq!(error.failed.len(), 100, "{engine:?}");
        assert!(
            error.failed.iter().all(|(_, e)| matches!(e, NatsError::NoResponders { .. })),
            "{error}"
        );
        let large = vec![Outgoing::new("s.x", None, vec![0; 5_000].into())];
        let error = writer.submit(large).await.expect("submitted").await.expect_err("too large");
        assert!(matches!(error.failed[0].1, NatsError::TooLarge { max: 4_096, .. }), "{error}");
        assert!(connection.get_message("S", Get::Seq(1)).await.unwrap_err().is_absent());
    }
}

/// It fails at once, instead of going out later on what was decided long before.
#[tokio::test]
async fn what_may_not_be_written_any_more_is_withheld() {
    for engine in ENGINES {
        let broker = Broker::open();
        let connection = setup(&broker).await;
        let may = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&may);
        let may_write = move || asked.load(Ordering::SeqCst);
        let started = Writer::start_while(&connection, WriterOptions::new(engine), may_write);
        let (writer, _task) = started.await.expect("a writer");
        writer.write(batch(0..100)).await.expect("confirmed");
        may.store(false, Ordering::SeqCst);
        let ticket = writer.submit(batch(100..200)).await.expect("submitted");
        let failed = ticket.await.expect_err("withheld").failed;
        assert_eq!(failed.len(), 100);
        assert!(failed.iter().all(|(_, why)| matches!(why, NatsError::Withheld { .. })));
        may.store(true, Ordering::SeqCst);
        writer.write(batch(200..300)).await.expect("confirmed");
        let all: Vec<_> = (0..100).chain(200..300).collect();
        assert_eq!(bodies(&connection).await, all, "{engine:?}");
    }
}

/// A process that is paused while a burst goes out finds its lease gone when it wakes up: the rest
/// of the burst stays.
#[tokio::test]
async fn a_burst_ends_where_it_may_not_be_written_any_more() {
    for engine in ENGINES {
        let broker = Broker::open();
        let connection = setup(&broker).await;
        let looks = AtomicUsize::new(0);
        let may_write = move || looks.fetch_add(1, Ordering::SeqCst) < 3;
        let options =
            WriterOptions { ack_timeout: Duration::from_millis(300), ..WriterOptions::new(engine) };
        let started = Writer::start_while(&connection, options, may_write).await;
        let (writer, _task) = started.expect("a writer");
        let ticket = writer.submit(batch(0..1_000)).await.expect("submitted");
        let failed = ticket.await.expect_err("withheld").failed;
        let written = 3 * PER_LOOK;
        assert!(
            failed.len() >= 1_000 - written,
            "{engine:?}: {} of the burst stayed",
            failed.len()
        );
        assert_eq!(bodies(&connection).await, (0..written).collect::<Vec<_>>(), "{engine:?}");
    }
}
