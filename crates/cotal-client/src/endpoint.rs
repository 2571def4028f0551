//! The endpoint: one connection of one agent, its tasks and its queue.
//!
//! Invariant: every task ends with the endpoint. Closing gives back what was not acked before
//! anything else ends, so that the agent's next endpoint gets it at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{ConnectOptions, Connection, CredsError, CredsSource, NatsError};
use cotal_wire::creds::CredsError as TagError;
use cotal_wire::posts::MissedPosts;
use cotal_wire::{Channel, Principal, Space};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::connection_watch::Keeper;
use crate::control::ControlError;
use crate::daemon_rails::DaemonRails;
use crate::identity::Identity;
use crate::incoming::{Event, Incoming, locked};
use crate::missed::{MissedPlane, MissedWatch};
use crate::notice::Notice;
use crate::options::EndpointOptions;
use crate::pending_joins::{Establisher, PendingJoins};
use crate::presence::Presence;
use crate::pump::{Durable, Pump};
use crate::recent::RecentSends;
use crate::sink::{NOTICES, QUEUE, Queued, Sink, answered};

/// A durable copy follows its live one within milliseconds where a daemon serves.
const CLOSE_WAITS_FOR_DURABLE: Duration = Duration::from_secs(1);

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The credential cannot be read.
    #[error("the credential cannot be used")]
    Creds(#[from] CredsError),
    /// The credential is not an agent's.
    #[error("the credential is not an agent's")]
    Identity(#[from] TagError),
    /// The credential is anonymous.
    #[error("an endpoint needs a credential: its tags say which agent and which space it is")]
    Anonymous,
    /// There is no Tokio runtime to run on.
    #[error(
        "an endpoint needs a Tokio runtime: await it inside one, such as `#[tokio::main]` makes"
    )]
    NoRuntime,
    /// The broker was not reached, or refused.
    #[error("the endpoint could not connect")]
    Connect(#[source] NatsError),
}

/// What waits for an agent at the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Copies and direct messages that no endpoint of the agent was handed yet.
    pub undelivered: u64,
    /// Those that an endpoint was handed and has not acked; they come again within 60 s if it is
    /// gone.
    pub unacked: u64,
}

/// An agent on a space. Clones share it; it ends with [`close`](Self::close), or untidily with the
/// last clone.
#[derive(Debug, Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    identity: Identity,
    connection: Connection,
    options: EndpointOptions,
    sink: Sink,
    messages: Mutex<mpsc::Receiver<Queued>>,
    notices: Mutex<mpsc::Receiver<Notice>>,
    /// Whether somebody reads the notices for themselves.
    listened: watch::Sender<bool>,
    plane: DaemonRails,
    pending_joins: PendingJoins,
    missed: MissedPlane,
    recent: RecentSends,
    live: Mutex<HashMap<Channel, CancellationToken>>,
    history: Arc<Mutex<()>>,
    status: watch::Sender<String>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Ends the tasks when the last clone goes without a close.
    _stop_on_drop: DropGuard,
}

impl Endpoint {
    /// Connects and begins to read. A plane without a daemon is told as a [`Notice`], and is no
    /// error (AGT-1).
    ///
    /// # Errors
    /// When the credential is not an agent's, or the broker does not accept it or is not there.
    pub async fn connect(options: EndpointOptions) -> Result<Self, ConnectError> {
        if Handle::try_current().is_err() {
            return Err(ConnectError::NoRuntime);
        }
        let source = options.credential.clone().into_source()?;
        let creds = source.current()?.ok_or(ConnectError::Anonymous)?;
        let identity = Identity::of(&creds, options.name.clone())?;
        let connection = dial(&options, &identity, source).await?;
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let (messages_in, messages) = mpsc::channel(QUEUE);
        let (notices_in, notices) = mpsc::channel(NOTICES);
        let own = identity.lifecycle.principal.clone();
        let sink = Sink::new(own, messages_in, notices_in, stop.clone());
        let within = options.request_timeout;
        let plane = DaemonRails::new(&connection, &identity, within, &stop);
        let inner = Inner {
            missed: MissedPlane::new(&plane),
            recent: RecentSends::default(),
            plane,
            pending_joins: PendingJoins::default(),
            messages: Mutex::new(messages),
            notices: Mutex::new(notices),
            listened: watch::channel(false).0,
            live: Mutex::default(),
            history: Arc::default(),
            status: watch::channel("idle".to_owned()).0,
            _stop_on_drop: stop.clone().drop_guard(),
            identity,
            connection,
            options,
            sink,
            tasks,
            stop,
        };
        let endpoint = Self { inner: Arc::new(inner) };
        endpoint.start();
        Ok(endpoint)
    }

    fn start(&self) {
        let Inner { connection, identity, sink, options, status, tasks, stop, .. } = &*self.inner;
        let (plane, pending_joins) = (self.inner.plane.clone(), self.inner.pending_joins.clone());
        let missed = self.inner.missed.clone();
        let waiting = (pending_joins.clone(), missed.clone());
        let keeper = Keeper::new(connection, &plane, sink.clone(), waiting, options.receive);
        tasks.spawn(keeper.run(stop.clone()));
        let establisher = Establisher { pending_joins, plane, sink: sink.clone() };
        tasks.spawn(establisher.run(stop.clone()));
        if options.presence {
            let presence = Presence::new(connection, identity, status.subscribe(), sink.clone());
            tasks.spawn(presence.run(stop.clone()));
        }
        if options.receive {
            let watch = MissedWatch { missed: missed.clone(), sink: sink.clone() };
            tasks.spawn(watch.run(stop.clone()));
            for durable in [Durable::Delivery, Durable::Direct] {
                let pump = Pump {
                    durable,
                    connection: connection.clone(),
                    space: identity.space.clone(),
                    own: identity.lifecycle.clone(),
                    sink: sink.clone(),
                    missed: missed.clone(),
                    stop: stop.clone(),
                    prefetch: options.prefetch,
                };
                tasks.spawn(pump.run());
            }
        }
    }

    /// The next message or notice; `None` once the endpoint is closed. Cancel-safe.
    pub async fn next(&self) -> Option<Event> {
        let mut messages = self.inner.messages.lock().await;
        let mut notices = self.inner.notices.lock().await;
        let event = tokio::select! {
            biased;
            () = self.inner.stop.cancelled() => None,
            Some(notice) = notices.recv() => Some(Event::Notice(notice)),
            notice = self.inner.sink.overruns.next() => Some(Event::Notice(notice)),
            Some(queued) = messages.recv() => Some(Event::Message(Box::new(queued.incoming))),
            else => None,
        };
        if let Some(Event::Notice(notice)) = &event {
            self.given(notice).await;
        }
        event
    }

    /// The caller has the notice in its hands now.
    async fn given(&self, notice: &Notice) {
        if let Notice::PostsMissed(episode) = notice {
            self.inner.missed.shown(episode).await;
        }
    }

    /// The posts that were lost to the cap of the agent's store and that nobody of the agent was
    /// told of. What is told as [`Notice::PostsMissed`] is not returned here, and the other way
    /// round. Whoever shows what this returns says so with [`missed_shown`](Self::missed_shown);
    /// otherwise the agent's next endpoint is told again.
    ///
    /// # Errors
    /// When the daemon does not answer, or refuses.
    pub async fn missed_posts(&self) -> Result<Vec<MissedPosts>, ControlError> {
        let mut missed = Vec::new();
        self.inner
            .missed
            .ask(|episode| {
                missed.push(episode);
                true
            })
            .await?;
        Ok(missed)
    }

    /// Says that the agent has been shown an episode of [`missed_posts`](Self::missed_posts).
    pub async fn missed_shown(&self, episode: &MissedPosts) {
        self.inner.missed.shown(episode).await;
    }

    /// The next message; `None` once the endpoint is closed. Cancel-safe. Notices go to the log,
    /// unless somebody calls [`next_notice`](Self::next_notice).
    pub async fn next_message(&self) -> Option<Incoming> {
        let Inner { sink, stop, listened, .. } = &*self.inner;
        let mut listened = listened.subscribe();
        loop {
            let mut messages = self.inner.messages.lock().await;
            let notice = async {
                if *listened.borrow_and_update() {
                    return std::future::pending().await;
                }
                let mut notices = self.inner.notices.lock().await;
                tokio::select! {
                    biased;
                    _ = listened.changed() => None,
                    Some(notice) = notices.recv() => Some(notice),
                    notice = sink.overruns.next() => Some(notice),
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                notice = notice => if let Some(notice) = notice {
                    tracing::warn!(space = %self.space(), "{notice}");
                    self.given(&notice).await;
                },
                Some(queued) = messages.recv() => return Some(queued.incoming),
                else => return None,
            }
        }
    }

    /// The next notice; `None` once the endpoint is closed. Cancel-safe. From the first call on,
    /// [`next_message`](Self::next_message) leaves notices to whoever calls this: for a task of its
    /// own, beside the one that reads messages.
    pub async fn next_notice(&self) -> Option<Notice> {
        let Inner { sink, stop, listened, .. } = &*self.inner;
        listened.send_replace(true);
        let mut notices = self.inner.notices.lock().await;
        let notice = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            Some(notice) = notices.recv() => notice,
            notice = sink.overruns.next() => notice,
            else => return None,
        };
        self.given(&notice).await;
        Some(notice)
    }

    /// What waits for the agent at the broker.
    ///
    /// # Errors
    /// When the broker does not answer for one of the agent's durables.
    pub async fn waiting(&self) -> Result<Waiting, NatsError> {
        let mut waiting = Waiting::default();
        for durable in [Durable::Delivery, Durable::Direct] {
            let stream = durable.stream(self.space());
            let consumer = durable.consumer(self.space(), &self.identity().lifecycle);
            let info = self.connection().consumer_info(&stream, &consumer).await?;
            waiting.undelivered += info.num_pending;
            waiting.unacked += info.num_ack_pending;
        }
        Ok(waiting)
    }

    /// What others see this agent doing, such as `idle` or `busy`.
    pub fn set_status(&self, status: impl Into<String>) {
        self.inner.status.send_replace(status.into());
    }

    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// Whose messages it sends and reads.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.inner.identity.lifecycle.principal
    }

    /// The space it is on.
    #[must_use]
    pub fn space(&self) -> &Space {
        &self.inner.identity.space
    }

    /// Ends it: waits a moment for the durable copies of what was acked before they came, so that
    /// these are acked too and not surfaced again elsewhere; gives back what was not acked, ends
    /// every task, removes the presence, flushes the acks and closes the connection. A second call
    /// finds nothing to do.
    pub async fn close(&self) {
        let grace = self.inner.options.grace;
        if self.inner.options.receive && self.connection().is_connected() {
            let _ = timeout(CLOSE_WAITS_FOR_DURABLE, self.inner.sink.caught_up()).await;
        }
        if self.connection().is_connected() {
            let _ = timeout(CLOSE_WAITS_FOR_DURABLE, self.inner.missed.flush()).await;
        }
        // Then the ledger, so that a copy which a task drops in the next moment is given back too.
        locked(&self.inner.sink.ledger).shut();
        self.inner.stop.cancel();
        self.inner.tasks.close();
        if timeout(grace, self.inner.tasks.wait()).await.is_err() {
            tracing::warn!(space = %self.space(), "tasks of the endpoint outlive its grace period");
        }
        // Given back while a pull still stood, it would come straight back to this endpoint.
        let returned = locked(&self.inner.sink.ledger).take_returned();
        for delivery in returned {
            answered(delivery.nak(None).await);
        }
        self.inner.connection.close(grace).await;
    }

    pub(crate) async fn control<T: DeserializeOwned>(
        &self,
        op: &str,
        args: &impl Serialize,
    ) -> Result<T, ControlError> {
        self.plane().control(op, args).await
    }

    pub(crate) fn plane(&self) -> &DaemonRails {
        &self.inner.plane
    }

    pub(crate) fn recent(&self) -> &RecentSends {
        &self.inner.recent
    }

    pub(crate) fn pending_joins(&self) -> &PendingJoins {
        &self.inner.pending_joins
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    pub(crate) fn sink(&self) -> &Sink {
        &self.inner.sink
    }

    pub(crate) fn live(&self) -> &Mutex<HashMap<Channel, CancellationToken>> {
        &self.inner.live
    }

    /// Whether a join hands out history.
    pub(crate) fn backfills(&self) -> bool {
        self.inner.options.backfill
    }

    pub(crate) fn history_turn(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.inner.history)
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.inner.tasks
    }

    pub(crate) fn stop_token(&self) -> &CancellationToken {
        &self.inner.stop
    }
}

async fn dial(
    options: &EndpointOptions,
    identity: &Identity,
    source: CredsSource,
) -> Result<Connection, ConnectError> {
    let name = format!("cotal agent {}", identity.lifecycle.principal);
    let connect = ConnectOptions::new(&options.server, name, source).tls(options.tls.clone());
    Connection::connect(connect).await.map_err(ConnectError::Connect)
}
