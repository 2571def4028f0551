//! The one owner of a lane's census: whoever wants to know who is connected asks it.
//!
//! Invariant: at most one census of the lane's accounts is under way and at most one observer
//! connection stands. Whoever asks while one is under way gets the next one, together with everyone
//! else who waits, because the one under way may have passed what they ask about.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cotal_nats::{ConnectOptions, Connection, CredsSource, TlsMode};
use cotal_wire::Space;
use cotal_workspace::{SecretKind, SecretStore};
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::connz::{self, ANSWER_WITHIN, Detail, Taken};
use super::error::ScanError;
use crate::credentials;

/// How long the observer's connection is kept for the next census: for longer than the feed waits
/// while agents are connected.
const KEPT_FOR: Duration = Duration::from_secs(12);
/// Bytes that the observer reads at once.
const READ_BUFFER: u16 = 16_384;
/// What the observer is called, in errors and in the broker's list.
const OBSERVER: &str = "observer credential";

/// Takes the censuses of one lane.
pub(crate) struct CensusOwner {
    pub(super) space: Space,
    /// The accounts that the space's users live in.
    pub(super) accounts: Vec<String>,
    pub(super) store: Arc<dyn SecretStore>,
    server: String,
    tls: TlsMode,
    /// Whose turn it is, with what the last one left.
    turn: Mutex<Held>,
    /// Who waits and wants subscriptions: the next census serves them, whoever takes it.
    wanting_subscriptions: AtomicUsize,
    used: Notify,
}

#[derive(Default)]
struct Held {
    observer: Option<Connection>,
    last: Option<Arc<Taken>>,
}

impl CensusOwner {
    /// Of these accounts; nothing is dialled yet.
    pub(super) fn new(
        space: Space,
        accounts: Vec<String>,
        store: Arc<dyn SecretStore>,
        server: String,
        tls: TlsMode,
    ) -> Self {
        let (turn, used) = (Mutex::default(), Notify::new());
        let wanting_subscriptions = AtomicUsize::new(0);
        Self { space, accounts, store, server, tls, turn, wanting_subscriptions, used }
    }

    /// A census that began after the call.
    pub(crate) async fn take(&self, detail: Detail) -> Result<Arc<Taken>, ScanError> {
        let asked = Instant::now();
        let _wants = Wants::new(&self.wanting_subscriptions, detail);
        let mut held = self.turn.lock().await;
        let shared = held.last.as_ref().filter(|last| last.began >= asked && last.detail >= detail);
        if let Some(taken) = shared {
            return Ok(Arc::clone(taken));
        }
        held.last = None;
        let observer = self.observer(&mut held).await?;
        let detail = match self.wanting_subscriptions.load(Ordering::Relaxed) {
            0 => Detail::Who,
            _ => Detail::Subscriptions,
        };
        self.used.notify_one();
        let taken = connz::take(&observer, &self.accounts, detail).await;
        let taken = Arc::new(taken.map_err(|source| ScanError::Broker { what: OBSERVER, source })?);
        held.last = Some(Arc::clone(&taken));
        Ok(taken)
    }

    /// Closes the observer's connection, because whoever asked last needs none for long.
    pub(crate) async fn rest(&self) {
        let mut held = self.turn.lock().await;
        held.last = None;
        if let Some(observer) = held.observer.take() {
            observer.close(ANSWER_WITHIN).await;
        }
    }

    /// The observer's connection. The store is read each time: what was replaced there is presented
    /// from now on, and what was taken away or torn is not used any more (EVC-1).
    async fn observer(&self, held: &mut Held) -> Result<Connection, ScanError> {
        let source = self.stored(&SecretKind::MembershipObserver).await?;
        if let Some(standing) = held.observer.take() {
            if standing.is_connected() && presents_the_same(&standing, &source) {
                held.observer = Some(standing.clone());
                return Ok(standing);
            }
            standing.close(ANSWER_WITHIN).await;
        }
        let name = format!("cotal-delivery {} {OBSERVER}", self.space);
        let observer = self.dial(name, source, OBSERVER).await?;
        held.observer = Some(observer.clone());
        Ok(observer)
    }

    pub(super) async fn stored(&self, kind: &SecretKind) -> Result<CredsSource, ScanError> {
        let (kind, accounts) = (kind.clone(), self.accounts.clone());
        let source = credentials::ask_store(&self.store, &self.space, move |store, space| {
            credentials::system(store, space, &kind, &accounts)
        });
        Ok(source.await?)
    }

    pub(super) async fn dial(
        &self,
        name: String,
        source: CredsSource,
        what: &'static str,
    ) -> Result<Connection, ScanError> {
        let options = ConnectOptions {
            read_buffer: READ_BUFFER,
            ..ConnectOptions::new(self.server.as_str(), name, source).tls(self.tls.clone())
        };
        Connection::connect(options).await.map_err(|source| ScanError::Broker { what, source })
    }

    /// Closes the observer's connection once nobody has asked for a while, and at the end.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(self.used.notified()).await.is_some() {
            let idle = async { while timeout(KEPT_FOR, self.used.notified()).await.is_ok() {} };
            stop.run_until_cancelled(idle).await;
            self.rest().await;
        }
    }
}

fn presents_the_same(standing: &Connection, source: &CredsSource) -> bool {
    let jwt = |source: &CredsSource| source.current().ok().flatten().map(|c| c.jwt().to_owned());
    jwt(standing.creds()) == jwt(source)
}

/// Whoever wants subscriptions, for as long as it waits.
struct Wants<'a>(Option<&'a AtomicUsize>);

impl<'a> Wants<'a> {
    fn new(count: &'a AtomicUsize, detail: Detail) -> Self {
        let counted = (detail == Detail::Subscriptions).then_some(count);
        if let Some(count) = counted {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Self(counted)
    }
}

impl Drop for Wants<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
