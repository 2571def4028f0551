//! One read of a channel's history, for whoever just joined it.
//!
//! A plain pull consumer of the lifecycle's one history name, deleted after the read. The live
//! subscription stands before it begins, so nothing falls between the two, and the ledger makes
//! what both bring one.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cotal_nats::js::ConsumerAction;
use cotal_nats::{Connection, NatsError, PullConsumer, PullError, PullOptions};
use cotal_wire::streams::ConsumerConfig;
use cotal_wire::{Channel, Lifecycle, Space};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::copy::{self, Copy};
use crate::destination::Source;
use crate::incoming::Incoming;
use crate::notice::Notice;
use crate::settings::Replay;
use crate::sink::Sink;

/// The broker's heartbeats come more often; silence of this length ends the read.
const READ_STALLED_AFTER: Duration = Duration::from_secs(10);
const PAGE_MESSAGES: usize = 200;
/// The bytes of a page; one message at least must fit.
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// Another process of the agent may be reading; the broker forgets a read after 30 s without pulls.
const OTHER_READER_ATTEMPTS: usize = 35;
const OTHER_READER_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why a history read ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The channel's replay window cannot be parsed.
    #[error("the replay window {0:?} is not one: write for example 24h")]
    Window(String),
    /// The broker stopped answering.
    #[error("nothing came for {READ_STALLED_AFTER:?}")]
    Stalled,
    /// The read was cut off.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The broker refused, or was not reached.
    #[error(transparent)]
    Nats(#[from] NatsError),
}

/// The task that reads one channel's history.
#[derive(Debug)]
pub(crate) struct HistoryRead {
    pub(crate) channel: Channel,
    pub(crate) replay: Replay,
    pub(crate) connection: Connection,
    pub(crate) space: Space,
    pub(crate) own: Lifecycle,
    pub(crate) sink: Sink,
    pub(crate) token: CancellationToken,
    /// One read at a time: they share the consumer's name.
    pub(crate) turn: Arc<Mutex<()>>,
}

impl HistoryRead {
    pub(crate) async fn run(self) {
        let turn = Arc::clone(&self.turn);
        let _turn = turn.lock().await;
        let read = tokio::select! {
            biased;
            () = self.token.cancelled() => Ok(()),
            read = self.read() => read,
        };
        let name = self.space.chathist_consumer(&self.own);
        let _ = self.connection.delete_consumer(&self.space.chat_stream(), &name).await;
        if let Err(error) = read {
            self.sink.notify(Notice::HistoryUnread {
                channel: self.channel.clone(),
                reason: error.to_string(),
            });
        }
    }

    async fn read(&self) -> Result<(), HistoryError> {
        let Some(mut consumer) = self.open().await? else {
            return Ok(());
        };
        loop {
            let (copies, done) = self.page(&mut consumer).await?;
            for copy in copies {
                self.sink.backfilled(copy).await;
            }
            if done {
                consumer.close().await;
                return Ok(());
            }
        }
    }

    /// Hands every post to `each`, the oldest first, also those of the agent itself.
    pub(crate) async fn tell(self, mut each: impl FnMut(Incoming)) -> Result<(), HistoryError> {
        let turn = Arc::clone(&self.turn);
        let _turn = turn.lock().await;
        let told = async {
            let Some(mut consumer) = self.open().await? else {
                return Ok(());
            };
            loop {
                let (copies, done) = self.page(&mut consumer).await?;
                for copy in copies {
                    each(Incoming::new(copy, Source::Backfilled, false, None));
                }
                if done {
                    consumer.close().await;
                    return Ok(());
                }
            }
        };
        let told = told.await;
        let name = self.space.chathist_consumer(&self.own);
        let _ = self.connection.delete_consumer(&self.space.chat_stream(), &name).await;
        told
    }

    /// The consumer of the read; `None` when there is nothing to read.
    async fn open(&self) -> Result<Option<PullConsumer>, HistoryError> {
        let Some(config) = self.config()? else {
            return Ok(None);
        };
        let chat = self.space.chat_stream();
        if self.create(&chat, &config).await? == 0 {
            return Ok(None);
        }
        let max_bytes = PAGE_BYTES.max(self.connection.max_payload() * 2);
        let options = PullOptions { batch: PAGE_MESSAGES, max_bytes, ..PullOptions::default() };
        Ok(Some(PullConsumer::open(&self.connection, &chat, &config.name, options).await?))
    }

    /// The next posts, and whether they are the last.
    async fn page(&self, consumer: &mut PullConsumer) -> Result<(Vec<Copy>, bool), HistoryError> {
        let page = consumer.next_batch(PAGE_MESSAGES, READ_STALLED_AFTER).await?;
        if page.is_empty() {
            return Err(HistoryError::Stalled);
        }
        let (mut copies, mut done) = (Vec::new(), false);
        for post in page {
            let found = self.space.parse_chat(&post.subject);
            if found.is_none_or(|(_, channel)| channel != self.channel) {
                continue;
            }
            done = post.pending == 0;
            let seq = Some(post.stream_seq);
            // A forged or garbled post in the stream is nobody's history.
            copies.extend(copy::post(&self.space, &post.subject, post.payload, seq).ok());
        }
        Ok((copies, done))
    }

    /// Creates the consumer, or waits for the turn of another process; returns how much it holds.
    async fn create(&self, chat: &str, config: &ConsumerConfig) -> Result<u64, NatsError> {
        let filter = config.filter_subject.as_deref();
        let mut turn = 0;
        loop {
            let created = self
                .connection
                .create_consumer(chat, &config.name, filter, config, ConsumerAction::Create)
                .await;
            match created {
                Err(error) if error.is_conflict() && turn < OTHER_READER_ATTEMPTS => turn += 1,
                outcome => return outcome.map(|info| info.num_pending),
            }
            tokio::time::sleep(OTHER_READER_RETRY_AFTER).await;
        }
    }

    fn config(&self) -> Result<Option<ConsumerConfig>, HistoryError> {
        let all = || self.space.chathist_config(&self.own, &self.channel, None);
        match &self.replay {
            Replay::Off => Ok(None),
            Replay::All => Ok(Some(all())),
            Replay::Unreadable(text) => Err(HistoryError::Window(text.clone())),
            Replay::Last(window) => {
                let since = SystemTime::now().checked_sub(*window).map(OffsetDateTime::from);
                let since = since.and_then(|since| since.format(&Rfc3339).ok());
                // A window that reaches beyond the calendar is everything.
                Ok(Some(match since {
                    Some(since) => self.space.chathist_since(&self.own, &self.channel, since),
                    None => all(),
                }))
            }
        }
    }
}
