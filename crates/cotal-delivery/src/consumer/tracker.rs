//! How far the lane has provably come with one of its consumers: the rules of [`Progress`], fed
//! with arriving deliveries and the broker's consumer info.

use std::pin::Pin;
use std::time::Duration;

use cotal_nats::js::ConsumerInfo;
use cotal_nats::{Connection, Delivery, NatsError};
use cotal_rules::progress::{ConsumerLook, LookTicket, Progress};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::debug;

/// Between two consumer infos while deliveries that went elsewhere hold up progress.
const UNPROVEN_POLL_EVERY: Duration = Duration::from_millis(100);
/// Between two consumer infos while somebody waits for a sequence that was not processed yet.
const AWAITED_POLL_EVERY: Duration = Duration::from_secs(1);

/// A consumer info, with the state when it was requested.
struct ConsumerState {
    ticket: LookTicket,
    last: u64,
    answer: Result<ConsumerInfo, NatsError>,
}

/// The progress of one consumer.
pub(crate) struct Tracker {
    connection: Connection,
    stream: String,
    consumer: String,
    progress: Progress,
    looking: Option<Pin<Box<dyn Future<Output = ConsumerState> + Send>>>,
    next_look: Instant,
    is_proven: watch::Sender<bool>,
}

impl Tracker {
    /// Starts at the consumer's position. `info` must have been requested after `last` was read as
    /// the last sequence of the stream.
    pub(crate) fn new(connection: &Connection, info: &ConsumerInfo, last: u64) -> Self {
        let progress = Progress::start(look_of(info), last);
        let is_proven = watch::Sender::new(progress.is_proven());
        Self {
            connection: connection.clone(),
            stream: info.stream_name.clone(),
            consumer: info.name.clone(),
            progress,
            looking: None,
            next_look: Instant::now(),
            is_proven,
        }
    }

    /// Whether no delivery that went elsewhere is still unacknowledged; the receiver also tells
    /// when that changes.
    pub(crate) fn is_proven_watch(&self) -> watch::Receiver<bool> {
        self.is_proven.subscribe()
    }

    /// The same, as of now.
    pub(crate) fn is_proven(&self) -> bool {
        self.progress.is_proven()
    }

    /// Every message up to this sequence has been processed at least once.
    pub(crate) fn done(&self) -> u64 {
        self.progress.done()
    }

    /// Every message up to this sequence was delivered, here or elsewhere.
    pub(crate) fn delivered(&self) -> u64 {
        self.progress.delivered()
    }

    /// Notes deliveries, in the order in which they arrived.
    pub(crate) fn arrived(&mut self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            self.progress.arrived(delivery.consumer_seq, delivery.stream_seq);
        }
        self.tell();
    }

    /// Notes that the message at `seq` has been processed.
    pub(crate) fn dealt_with(&mut self, seq: u64) {
        self.progress.dealt_with(seq);
    }

    /// Notes that the consumer was re-created and begins at `first`.
    pub(crate) fn recreated(&mut self, first: u64) {
        self.progress.recreated(first);
        self.tell();
    }

    /// Requests consumer info if it could prove more progress; pends otherwise. `awaited` is a
    /// sequence that the stream has given out and that somebody waits for. Cancel-safe.
    pub(crate) async fn look(&mut self, awaited: u64) {
        let pause = if !self.progress.is_proven() {
            UNPROVEN_POLL_EVERY
        } else if awaited > self.progress.done() {
            AWAITED_POLL_EVERY
        } else {
            return std::future::pending().await;
        };
        if self.looking.is_none() {
            sleep_until(self.next_look).await;
            self.looking = Some(Box::pin(self.ask(awaited)));
        }
        let Some(looking) = &mut self.looking else { return };
        let ConsumerState { ticket, last, answer } = looking.await;
        self.looking = None;
        self.next_look = Instant::now() + pause;
        match answer {
            Ok(info) => self.progress.looked(ticket, look_of(&info), last),
            Err(error) => {
                debug!(stream = self.stream, %error, "the consumer's progress could not be read");
            }
        }
        self.tell();
    }

    fn ask(&self, last: u64) -> impl Future<Output = ConsumerState> + Send + use<> {
        let ticket = self.progress.ticket();
        let connection = self.connection.clone();
        let (stream, consumer) = (self.stream.clone(), self.consumer.clone());
        async move {
            let answer = connection.consumer_info(&stream, &consumer).await;
            ConsumerState { ticket, last, answer }
        }
    }

    fn tell(&self) {
        let is_proven = self.progress.is_proven();
        self.is_proven.send_if_modified(|told| std::mem::replace(told, is_proven) != is_proven);
    }
}

fn look_of(info: &ConsumerInfo) -> ConsumerLook {
    ConsumerLook {
        deliveries: info.delivered.consumer_seq,
        delivered: info.delivered.stream_seq,
        ack_floor: info.ack_floor.stream_seq,
        unacked: info.num_ack_pending,
        pending: info.num_pending,
    }
}
