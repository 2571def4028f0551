//! Measures what this crate reaches against a broker that is already running, bounded in size.
//!
//! `cargo run --release -p cotal-nats --example rates -- nats://127.0.0.1:4222 100000`

use std::time::{Duration, Instant};

use cotal_nats::{
    Bucket, ConnectOptions, Connection, CredsSource, Engine, Outgoing, PullConsumer, PullOptions,
    WatchEvent, Writer, WriterOptions, js::ConsumerAction,
};
use serde_json::json;

type AnyError = Box<dyn std::error::Error>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), AnyError> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "nats://127.0.0.1:4222".into());
    let count: usize = args.next().map_or(Ok(100_000), |n| n.parse())?;
    let options = ConnectOptions::new(url, "rates", CredsSource::anonymous());
    let connection = Connection::connect(options).await?;
    for (name, engine, burst) in [
        ("pipelined", Engine::Pipelined, 1_000),
        ("fast ingest", Engine::FastIngest, 1_000),
        ("fast ingest, bursts of 100", Engine::FastIngest, 100),
    ] {
        let seconds = write(&connection, engine, burst, count).await?;
        report(name, count, seconds);
    }
    latency(&connection).await?;
    report("fetch + ack", count, pull(&connection, count).await?);
    report("watch, initial scan", count, watch(&connection, count).await?);
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example reports to whoever runs it")]
fn report(name: &str, count: usize, took: Duration) {
    let rate = count as f64 / took.as_secs_f64();
    println!("{name:30} {count} in {took:?}: {rate:.0}/s");
}

async fn recreate(connection: &Connection) -> Result<(), AnyError> {
    let _ = connection.delete_stream("RATES").await;
    let config = json!({
        "name": "RATES", "subjects": ["rates.>"], "storage": "file", "allow_batched": true,
        "retention": "limits", "discard": "old", "max_msgs_per_subject": 1000,
    });
    connection.create_stream("RATES", &config).await?;
    Ok(())
}

async fn write(
    connection: &Connection,
    engine: Engine,
    burst: usize,
    count: usize,
) -> Result<Duration, AnyError> {
    recreate(connection).await?;
    let (writer, task) = Writer::start(connection, WriterOptions::new(engine)).await?;
    let payload = bytes::Bytes::from(vec![b'x'; 256]);
    let begin = Instant::now();
    let mut tickets = Vec::new();
    for start in (0..count).step_by(burst) {
        let batch = (start..start + burst)
            .map(|n| {
                let subject = format!("rates.local.m{}.abcdefghijklmnopqrstuvwxyz", n % 1_000);
                Outgoing::new(subject, Some(format!("id-{n}")), payload.clone())
            })
            .collect();
        tickets.push(writer.submit(batch).await?);
    }
    for ticket in tickets {
        ticket.await?;
    }
    let took = begin.elapsed();
    let stored = connection.stream_state("RATES").await?.messages;
    assert_eq!(stored, count as u64, "every confirmed message is stored once");
    drop(writer);
    task.await?;
    Ok(took)
}

async fn latency(connection: &Connection) -> Result<(), AnyError> {
    let options = WriterOptions::new(Engine::FastIngest);
    let (writer, task) = Writer::start(connection, options).await?;
    let begin = Instant::now();
    for _ in 0..1_000 {
        writer.write(vec![Outgoing::new("rates.one", None, "x".into())]).await?;
    }
    report("one at a time", 1_000, begin.elapsed());
    drop(writer);
    Ok(task.await?)
}

async fn pull(connection: &Connection, count: usize) -> Result<Duration, AnyError> {
    let config = json!({
        "name": "r", "durable_name": "r", "ack_policy": "explicit", "max_ack_pending": 10000,
        "deliver_policy": "all",
    });
    connection.create_consumer("RATES", "r", None, &config, ConsumerAction::Create).await?;
    let mut consumer = PullConsumer::open(connection, "RATES", "r", PullOptions::default()).await?;
    let begin = Instant::now();
    let mut seen = 0;
    while seen < count {
        let batch = consumer.next_batch(1_000, Duration::from_secs(5)).await?;
        assert!(!batch.is_empty(), "the stream holds {count} messages, {seen} came");
        for delivery in batch {
            delivery.ack().await?;
            seen += 1;
        }
    }
    connection.round_trip().await?;
    Ok(begin.elapsed())
}

async fn watch(connection: &Connection, count: usize) -> Result<Duration, AnyError> {
    let _ = connection.delete_stream("KV_rates").await;
    let config = json!({
        "name": "KV_rates", "subjects": ["$KV.rates.>"], "storage": "file", "allow_batched": true,
        "max_msgs_per_subject": 1,
    });
    connection.create_stream("KV_rates", &config).await?;
    let (writer, task) = Writer::start(connection, WriterOptions::new(Engine::FastIngest)).await?;
    for start in (0..count).step_by(1_000) {
        let rows = (start..start + 1_000).map(|n| {
            Outgoing::new(format!("$KV.rates.team.backend/local.m{n}"), None, "{}".into())
        });
        writer.submit(rows.collect()).await?.await?;
    }
    drop(writer);
    task.await?;
    let begin = Instant::now();
    let mut watch = Bucket::new(connection, "rates").watch_all().await?;
    let mut rows = 0;
    loop {
        match watch.next().await? {
            WatchEvent::Put { .. } => rows += 1,
            WatchEvent::InitialDone => break,
            other => return Err(format!("unexpected {other:?}").into()),
        }
    }
    assert_eq!(rows, count, "every row is told once");
    Ok(begin.elapsed())
}
