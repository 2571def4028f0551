//! The derived membership feed: who reads which channels, for display (FED-1, FED-2).
//!
//! Invariant: the heartbeat is written only after a complete census, and after every row that it
//! changed. So a fresh heartbeat means that the rows are current as of its time. Nothing is decided
//! by the feed, and a fault of it never affects delivery.

pub(crate) mod credential;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{Bucket as Kv, Connection, NatsError, WatchEvent, to_json};
use cotal_rules::feed::{Picture, RowChange};
use cotal_wire::Space;
use cotal_wire::names::{Bucket, FEED_KEY};
use cotal_wire::rows::{FeedBeat, FeedRow};
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::census::{Detail, ScanError, Scanner};
use crate::clock::now_ms;
use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;
use crate::sidecar::{Health, Sidecar, contained};
use crate::state::view::View;
use credential::FeedCredential;

/// Between two censuses: the feed shows a change at most this late.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// The longest time between two censuses, however long one takes.
const LONGEST_SWEEP_GAP: Duration = Duration::from_secs(20);
/// How much later than planned the next heartbeat may come before readers call the feed stale: a
/// census may take its time, and begins anew when connections come or go.
const LATE_BY: Duration = Duration::from_secs(25);
/// How long whoever came is given to subscribe before the census that its coming caused.
const SETTLED_WITHIN: Duration = Duration::from_millis(500);
/// Rows written at once.
const WRITE_AT_ONCE: usize = 64;

/// The name of the component, in the log and the status.
const COMPONENT: &str = "the membership feed";

/// Why one run of the feed ended.
#[derive(Debug, thiserror::Error)]
enum FeedFault {
    #[error("its bucket cannot be read or written: {0}")]
    Bucket(#[from] NatsError),
}

/// Why there is no picture of who reads what.
#[derive(Debug, thiserror::Error)]
enum NoPicture {
    #[error(transparent)]
    Scan(#[from] ScanError),
    #[error("the census is incomplete: {0}")]
    Incomplete(String),
}

/// The running feed, for other components.
#[derive(Clone)]
pub(crate) struct FeedHandle {
    pub(crate) credential: Arc<FeedCredential>,
    pub(crate) health: Health,
}

/// Starts the feed; it runs once there is a credential.
pub(crate) fn spawn(context: &LaneContext, scanner: &Scanner, idle_every: Duration) -> FeedHandle {
    let health = Health::new(COMPONENT);
    let feed = MembershipFeed {
        space: context.space.clone(),
        gate: context.gate.clone(),
        view: Arc::clone(&context.view),
        scanner: scanner.clone(),
        idle_every,
    };
    let credential = FeedCredential::new(context, scanner, health.clone());
    let handle = FeedHandle { credential: Arc::clone(&credential), health: health.clone() };
    let renewing = Arc::clone(&credential).run(context.stop.clone());
    let feeding = feed.run(credential, health, context.stop.clone());
    let work = async move {
        tokio::join!(renewing, feeding);
    };
    let (space, stop) = (context.space.clone(), context.stop.clone());
    context.spawn(COMPONENT, contained(space, handle.health.clone(), stop, Box::pin(work)));
    handle
}

/// What the feed needs of its lane.
#[derive(Clone)]
struct MembershipFeed {
    space: Space,
    gate: Gate,
    view: Arc<View>,
    scanner: Scanner,
    /// Between two censuses while nobody is connected.
    idle_every: Duration,
}

impl MembershipFeed {
    async fn run(self, credential: Arc<FeedCredential>, health: Health, stop: CancellationToken) {
        let Some(connect) = stop.run_until_cancelled(credential.connect()).await else { return };
        let sidecar = Sidecar {
            space: self.space.clone(),
            connect,
            health: health.clone(),
            meanwhile: "the list of who reads what is not updated; delivery is not affected",
        };
        let follow = |connection, stop| self.clone().follow(connection, health.clone(), stop);
        sidecar.run(stop, follow).await;
    }

    async fn follow(
        self,
        connection: Connection,
        health: Health,
        stop: CancellationToken,
    ) -> Result<(), FeedFault> {
        let kv = Kv::new(&connection, &self.space.bucket(Bucket::Membership));
        let mut held =
            FeedRows { watch: kv.watch_all().await?, rows: BTreeMap::new(), scanned: false };
        let mut stirs = self.view.stirs();
        let (mut due, mut idle) = (Instant::now(), false);
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                told = held.told() => told?,
                // Somebody came into an idle space; a moment later its subscriptions stand, too.
                () = stirs.next(), if idle => {
                    idle = false;
                    due = due.min(Instant::now() + SETTLED_WITHIN);
                }
                () = tokio::time::sleep_until(due), if held.scanned => {
                    let begun = Instant::now();
                    let sweep = Box::pin(self.sweep(&kv, &held.rows, &health));
                    let Some(swept) = stop.run_until_cancelled(sweep).await else { return Ok(()) };
                    let every = swept?;
                    idle = every > SWEEP_EVERY;
                    due = Instant::now() + every.max(rest_after(begun.elapsed()));
                }
            }
        }
    }

    /// Makes the bucket show a complete census and the member rows; returns when to do it next.
    /// Without a complete census no heartbeat is written, and readers see that the feed is stale.
    async fn sweep(
        &self,
        kv: &Kv,
        held: &BTreeMap<String, Option<FeedRow>>,
        health: &Health,
    ) -> Result<Duration, FeedFault> {
        if !self.gate.is_open() {
            return Ok(SWEEP_EVERY);
        }
        let mut picture = match self.connected().await {
            Ok(picture) => picture,
            Err(error) => {
                let why = error.to_string();
                if health.reason().as_ref() != Some(&why) {
                    warn!(space = %self.space, why, "the membership feed is stale");
                    health.fails(why);
                }
                return Ok(SWEEP_EVERY);
            }
        };
        let mut every = SWEEP_EVERY;
        if picture.is_empty() {
            every = self.idle_every;
            self.scanner.rest().await;
        }
        for (channel, member) in self.view.directory().durable_members() {
            picture.member(member.principal.clone(), channel.clone());
        }
        let now = now_ms();
        let changes = futures_util::stream::iter(picture.changes(held, now));
        let written = changes.map(|change| write(kv, change)).buffer_unordered(WRITE_AT_ONCE);
        written.try_collect::<()>().await?;
        let fresh_for = i64::try_from((every + LATE_BY).as_millis()).unwrap_or(i64::MAX);
        let beat = FeedBeat { observed_at: now, fresh_until: now.saturating_add(fresh_for) };
        kv.put(FEED_KEY, to_json(&beat)?).await?;
        health.runs();
        Ok(every)
    }

    /// Who is connected and reads what, as the one owner of the lane's census sees it.
    async fn connected(&self) -> Result<Picture, NoPicture> {
        let census = self.scanner.census(Detail::Subscriptions).await?;
        if let Some(why) = census.incomplete() {
            return Err(NoPicture::Incomplete(why.to_string()));
        }
        let mut picture = Picture::default();
        for connected in census.connected() {
            let Some(principal) = connected.principal() else { continue };
            let live = connected.subscriptions.iter().filter_map(|s| self.space.chat_read(s));
            picture.connected(principal.clone(), connected.is_agent, live);
        }
        Ok(picture)
    }
}

/// A census of thousands of connections keeps the broker and the daemon busy for a while. It may
/// take about a tenth of the time, as long as the feed does not become stale.
fn rest_after(sweep: Duration) -> Duration {
    (sweep * 9).min(LONGEST_SWEEP_GAP)
}

async fn write(kv: &Kv, change: RowChange) -> Result<(), NatsError> {
    match change {
        RowChange::Put(principal, row) => {
            kv.put(principal.as_str(), to_json(&row)?).await.map(drop)
        }
        RowChange::Remove(key) => kv.purge(&key, None).await.map(drop),
    }
}

/// The rows of the bucket, as its watch shows them, so that rows written by somebody else are
/// noticed and overwritten.
struct FeedRows {
    watch: cotal_nats::Watch,
    /// By key; `None` for a value that cannot be parsed.
    rows: BTreeMap<String, Option<FeedRow>>,
    scanned: bool,
}

impl FeedRows {
    /// Handles the next event. Cancel-safe.
    async fn told(&mut self) -> Result<(), NatsError> {
        match self.watch.next().await? {
            WatchEvent::Put { key, .. } | WatchEvent::Delete { key, .. }
                if key.as_str() == FEED_KEY => {}
            WatchEvent::Put { key, value, .. } => {
                self.rows.insert(key.as_str().to_owned(), FeedRow::parse(&value).ok());
            }
            WatchEvent::Delete { key, .. } => drop(self.rows.remove(key.as_str())),
            WatchEvent::Reset { bucket_recreated } => {
                self.scanned = false;
                if bucket_recreated {
                    self.rows.clear();
                }
            }
            WatchEvent::InitialDone => self.scanned = true,
            WatchEvent::Foreign { .. } => {}
        }
        Ok(())
    }
}
