//! What the lane knows of its space: members, ACLs, channels and presence, in memory, kept current
//! by watches.
//!
//! Invariant: before deciding about a message, the caller awaits [`View::fresh`], after the message
//! has arrived. Then the decision is as current as a read of the buckets at that moment
//! (`docs/wire.md` §5, *Current*). If a watch lags, stalls or is rebuilt, `fresh` waits or fails,
//! and nothing is decided.

mod foreign_joins;
mod fresh;
mod presence;
mod stirs;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use cotal_nats::{Bucket as Kv, Connection, Entry, NatsError, Watch, WatchEvent, revisions};
use cotal_rules::directory::{Acl, Applied, Directory};
use cotal_rules::fanout::{self, Plan, Post};
use cotal_wire::envelope::InboxEntry;
use cotal_wire::names::{Bucket, member_key};
use cotal_wire::rows::{AclRow, LastValid};
use cotal_wire::{Channel, Lifecycle, Space};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, timeout};
use tracing::{debug, error, warn};

use crate::clock::now_ms;
use crate::lease::gate::Gate;
use crate::state::acl_changes::Changes;
use crate::state::bucket_watch::{WATCH_RETRY_AFTER, watch_all, watch_history};
use crate::state::kept_rows::KeptRows;

/// How long entries wait for a leave. A leave needs a few round trips.
const LEAVE_WAIT: Duration = Duration::from_secs(1);

/// The kept form of a tombstone: all that a retired lifecycle's row still says.
const TOMBSTONE: &[u8] = br#"{"allowSubscribe":[],"revision":0,"updatedAt":0,"retired":true}"#;

/// A bucket that the view watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Feed {
    Members,
    Acl,
    Channels,
    Presence,
}

impl Feed {
    pub(crate) const ALL: [Self; 4] = [Self::Members, Self::Acl, Self::Channels, Self::Presence];

    fn bucket(self) -> Bucket {
        match self {
            Self::Members => Bucket::Members,
            Self::Acl => Bucket::Acl,
            Self::Channels => Bucket::Channels,
            Self::Presence => Bucket::Presence,
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// Why the view can no longer be kept current.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The broker refuses the watch for good.
    #[error(transparent)]
    Nats(#[from] NatsError),
    /// The bucket is gone.
    #[error(
        "{stream} was deleted while the daemon served it; exiting, `cotal up` creates it again"
    )]
    Gone {
        /// The stream behind it.
        stream: String,
    },
    /// The bucket was replaced, so nothing in memory can be trusted.
    #[error("bucket {bucket} was deleted and created again; restart the daemon")]
    Recreated {
        /// The bucket.
        bucket: String,
    },
}

impl ViewError {
    /// The reason why the watch of a bucket ended.
    pub(crate) fn of_watch(error: NatsError, kv: &Kv) -> Self {
        if error.is_absent() {
            return Self::Gone { stream: kv.stream().to_owned() };
        }
        Self::Nats(error)
    }

    /// Whether the bucket is gone, or was replaced.
    fn is_of_another_bucket(&self) -> bool {
        matches!(
            self,
            Self::Recreated { .. } | Self::Gone { .. } | Self::Nats(NatsError::Absent { .. })
        )
    }
}

/// Up to which revision one bucket has been applied.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    applied: u64,
    scanned: bool,
}

#[derive(Debug)]
struct Followed {
    kv: Kv,
    progress: watch::Sender<Progress>,
    /// Told when the bucket was seen to hold more than the watch tells.
    behind: Notify,
}

/// The directory, and the watches that keep it current.
#[derive(Debug)]
pub(crate) struct View {
    space: Space,
    writer_identity: String,
    gate: Gate,
    changes: Changes,
    state: RwLock<State>,
    feeds: [Followed; 4],
    awaited: Mutex<HashMap<String, Vec<oneshot::Sender<RowSeen>>>>,
    /// Counts changes of member rows, and of leaves in progress.
    members_changed: watch::Sender<u64>,
    /// Rows that garbage must not push out.
    kept: KeptRows,
    /// Joins that another daemon left half done while this one served.
    foreign: Mutex<HashSet<(Channel, Lifecycle)>>,
}

#[derive(Debug, Default)]
struct State {
    directory: Directory,
    /// The highest post planned so far; it changes only while the directory cannot.
    routed: AtomicU64,
    /// When expired presence was last removed.
    presence_expired: Option<Instant>,
}

/// The moment when a member row became visible to planning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowSeen {
    /// The row's revision.
    pub(crate) revision: u64,
    /// The highest post planned without it; every later one is planned with it.
    pub(crate) routed: u64,
}

impl View {
    /// A view that knows nothing yet; rows that it writes back carry `writer_identity`.
    pub(crate) fn new(
        connection: &Connection,
        space: &Space,
        writer_identity: &str,
        gate: Gate,
        changes: Changes,
    ) -> Arc<Self> {
        let followed = |feed: Feed| Followed {
            kv: Kv::new(connection, &space.bucket(feed.bucket())),
            progress: watch::Sender::new(Progress::default()),
            behind: Notify::new(),
        };
        let dead = Kv::new(connection, &space.bucket(Bucket::Dead));
        let kept = KeptRows::new(dead, gate.clone());
        Arc::new(Self {
            space: space.clone(),
            writer_identity: writer_identity.to_owned(),
            gate,
            changes,
            state: RwLock::default(),
            feeds: Feed::ALL.map(followed),
            awaited: Mutex::default(),
            members_changed: watch::Sender::default(),
            kept,
            foreign: Mutex::default(),
        })
    }

    /// The bucket of a feed, for reads and compare-and-set writes.
    pub(crate) fn kv(&self, feed: Feed) -> &Kv {
        &self.feeds[feed.index()].kv
    }

    /// The directory, for a decision without awaits.
    pub(crate) fn directory(&self) -> DirectoryRef<'_> {
        DirectoryRef(self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Plans a post, and notes that it was planned with the rows as they are now.
    pub(crate) fn plan(&self, post: &Post<'_>) -> Plan {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.routed.fetch_max(post.seq, Ordering::SeqCst);
        fanout::plan(*post, &state.directory, now_ms())
    }

    /// Announces a leave that is about to read its cursor. Every post that was judged before this
    /// returns was stored earlier, so it is at or below the cursor.
    pub(crate) fn begin_leave(
        self: &Arc<Self>,
        channel: &Channel,
        member: &Lifecycle,
    ) -> LeaveInProgress {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.directory.begin_leave(channel, member);
        let (view, written) = (Arc::clone(self), None);
        LeaveInProgress { view, channel: channel.clone(), member: member.clone(), written }
    }

    /// Waits until no leave in progress may exclude any of `entries` and the rows are current
    /// again. If that takes too long, those entries are judged as undecided.
    pub(crate) async fn leaves_passed<'a>(
        &self,
        entries: impl Iterator<Item = (&'a Lifecycle, &'a InboxEntry)> + Clone,
    ) -> Result<(), NatsError> {
        let mut changes = self.members_changed.subscribe();
        let is_leaving = || {
            let directory = self.directory();
            entries.clone().any(|(member, it)| directory.is_leaving(&it.channel, member, it.seq))
        };
        if !is_leaving() {
            return Ok(());
        }
        let _ = timeout(LEAVE_WAIT, changes.wait_for(|_| !is_leaving())).await;
        self.fresh(&[Feed::Members, Feed::Acl]).await
    }

    /// Lowers every lifecycle frontier that is beyond the end of CHAT to `last`; returns the
    /// lifecycles.
    pub(crate) fn lower_frontiers(&self, last: u64) -> Vec<Lifecycle> {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.directory.lower_frontiers(last)
    }

    /// Finds every tombstone that the ACL bucket still holds, even under a later row. A tombstone
    /// is final, and the watch shows only the newest row of a key (INV-5).
    async fn find_tombstones(&self) -> Result<(), NatsError> {
        let mut watch = watch_history(self.kv(Feed::Acl)).await?;
        loop {
            match watch.next().await? {
                WatchEvent::Put { key, value, revision }
                    if AclRow::parse(&value).is_ok_and(|row| row.retired) =>
                {
                    let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
                    state.directory.recover_acl(&key, &value, revision);
                }
                WatchEvent::InitialDone => return Ok(()),
                _ => {}
            }
        }
    }

    /// Reads the rows that earlier daemons kept outside the buckets. Tombstones among them apply at
    /// once.
    async fn load_kept(&self) -> Result<(), NatsError> {
        self.kept.load().await?;
        for key in self.kept.keys(Bucket::Acl) {
            if let Some((value, revision)) = self.kept.row(Bucket::Acl, &key) {
                let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
                state.directory.recover_acl(&key, &value, revision);
            }
        }
        Ok(())
    }

    /// Keeps rows that garbage must not push out: every channel row, and a tombstone that is
    /// overwritten.
    async fn keep(&self, feed: Feed, key: &str, value: &[u8], revision: u64, applied: &Applied) {
        match (feed, applied) {
            (Feed::Channels, Applied::Applied) => {
                self.kept.keep(Bucket::Channels, key, value, revision).await;
            }
            (Feed::Acl, Applied::Garbled(_)) => {
                let tombstone = {
                    let directory = self.directory();
                    let member = Lifecycle::parse(key).ok();
                    member
                        .filter(|it| matches!(directory.acl(it), Acl::Retired))
                        .and_then(|it| directory.acl_revision(&it))
                };
                if let Some(revision) = tombstone {
                    self.kept.keep(Bucket::Acl, key, TOMBSTONE, revision).await;
                }
            }
            _ => {}
        }
    }

    /// Watches one bucket until the watch ends for good.
    pub(crate) async fn follow(self: Arc<Self>, feed: Feed) -> Result<(), ViewError> {
        loop {
            let Err(ended) = self.watch(feed).await;
            if feed != Feed::Presence || !ended.is_of_another_bucket() {
                return Err(ended);
            }
            self.forget_presence(&ended);
            tokio::time::sleep(WATCH_RETRY_AFTER).await;
        }
    }

    async fn watch(&self, feed: Feed) -> Result<Infallible, ViewError> {
        match feed {
            Feed::Acl => self.find_tombstones().await?,
            Feed::Channels => self.load_kept().await?,
            Feed::Members | Feed::Presence => {}
        }
        let mut watch = watch_all(self.kv(feed)).await?;
        loop {
            self.step(feed, &mut watch).await?;
        }
    }

    async fn step(&self, feed: Feed, watch: &mut Watch) -> Result<(), ViewError> {
        let Followed { progress, behind, .. } = &self.feeds[feed.index()];
        let event = tokio::select! {
            event = watch.next() => event,
            () = behind.notified() => {
                watch.begin_anew().await;
                return Ok(());
            }
        };
        match event.map_err(|error| ViewError::of_watch(error, self.kv(feed)))? {
            WatchEvent::Put { key, value, revision } => {
                let applied = self.apply(feed, &key, Some(&value), revision);
                if let Applied::Garbled(why) = &applied {
                    self.recover(feed, &key, revision, why).await;
                }
                self.keep(feed, &key, &value, revision, &applied).await;
                progress.send_modify(|p| p.applied = p.applied.max(revision));
                if feed == Feed::Members {
                    self.note_foreign_join(&key, &value);
                }
                self.tell_change(feed, &key).await;
            }
            WatchEvent::Delete { key, revision, .. } => {
                self.apply(feed, &key, None, revision);
                if feed == Feed::Channels {
                    self.kept.forget(Bucket::Channels, &key).await;
                }
                progress.send_modify(|p| p.applied = p.applied.max(revision));
            }
            WatchEvent::Foreign { revision } => {
                progress.send_modify(|p| p.applied = p.applied.max(revision));
            }
            WatchEvent::InitialDone => progress.send_modify(|p| p.scanned = true),
            WatchEvent::Reset { bucket_recreated: false } => {
                debug!(space = %self.space, ?feed, "the watch was rebuilt");
            }
            WatchEvent::Reset { bucket_recreated: true } => {
                return Err(ViewError::Recreated { bucket: self.space.bucket(feed.bucket()) });
            }
        }
        Ok(())
    }

    /// Reports a changed ACL, because copies that were handed off may have to be recalled. Rows of
    /// the first scan are not changes. Neither is a row as it was provisioned, because nothing was
    /// released before it.
    async fn tell_change(&self, feed: Feed, key: &str) {
        if feed != Feed::Acl || !self.feeds[feed.index()].progress.borrow().scanned {
            return;
        }
        let Ok(member) = Lifecycle::parse(key) else { return };
        if self.directory().is_changed_acl(&member) {
            // The recall ends with the lane; then nobody receives.
            let _ = self.changes.send(member).await;
        }
    }

    fn apply(&self, feed: Feed, key: &str, value: Option<&[u8]>, revision: u64) -> Applied {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let applied = match feed {
            Feed::Members => state.directory.apply_member(key, value, revision),
            Feed::Acl => state.directory.apply_acl(key, value, revision),
            Feed::Channels => state.directory.apply_channel(key, value, revision),
            Feed::Presence => {
                state.expire_presence();
                state.directory.apply_presence(key, value, revision)
            }
        };
        if feed == Feed::Members {
            let routed = state.routed.load(Ordering::SeqCst);
            self.notify(key, RowSeen { revision, routed });
            drop(state);
            self.members_changed.send_modify(|changes| *changes += 1);
        }
        applied
    }

    /// A value that cannot be parsed is neither a row nor a deletion: the last valid row stays in
    /// force. If memory has none, the bucket's history may have one.
    async fn recover(&self, feed: Feed, key: &str, revision: u64, why: &str) {
        error!(space = %self.space, ?feed, revision, why, "a row is garbled; the last valid one stays in force");
        if feed == Feed::Presence {
            return;
        }
        match self.kv(feed).history(key).await {
            Ok(entries) => self.recover_from(feed, key, &entries, revision),
            Err(error) => {
                // The row before the garbage is not known, so nothing is written over the garbage.
                warn!(space = %self.space, ?feed, %error, "cannot read the history of a row");
                return;
            }
        }
        if feed == Feed::Members {
            self.write_back(key, revision).await;
        }
    }

    /// Gives the directory the row before `garbled`: the one in the history, or the one kept
    /// outside the bucket if that is newer.
    fn recover_from(&self, feed: Feed, key: &str, entries: &[Entry], garbled: u64) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let directory = &mut state.directory;
        let mut give = |value: &[u8], revision: u64| {
            let applied = match feed {
                Feed::Members => directory.recover_member(key, value, revision),
                Feed::Acl => directory.recover_acl(key, value, revision),
                Feed::Channels => directory.recover_channel(key, value, revision),
                Feed::Presence => Applied::Ignored,
            };
            (applied == Applied::Applied).then_some(())
        };
        let stands = LastValid::behind(garbled, revisions(entries), &mut give);
        let kept = self.kept.row(feed.bucket(), key).filter(|(_, revision)| *revision < garbled);
        let newer = kept.as_ref().map(|(_, revision)| ((), *revision));
        if let (LastValid::Row((), revision), Some((value, kept))) = (stands.or_newer(newer), &kept)
            && revision == *kept
        {
            give(value, *kept);
        }
    }

    /// Reads the intervals of earlier generations from the bucket's history, once per key and run,
    /// because a row states only its newest interval.
    ///
    /// # Errors
    /// If the broker does not return the history; then the caller must not decide.
    pub(crate) async fn learn(
        &self,
        channel: &Channel,
        member: &Lifecycle,
    ) -> Result<(), NatsError> {
        let key = member_key(channel, member);
        let entries = self.kv(Feed::Members).history(&key).await?;
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        for entry in entries.iter().rev() {
            let Some(value) = entry.live() else { break };
            state.directory.recover_member(&key, value, entry.revision);
        }
        state.directory.history_read(channel, member);
        Ok(())
    }

    /// Only the daemon writes member rows, so it writes the last valid one back, unless somebody
    /// was faster. While this lane does not serve, the daemon that serves does it.
    async fn write_back(&self, key: &str, garbled: u64) {
        if !self.gate.is_open() {
            return;
        }
        let last = self.directory().last_valid_member(key);
        let Some(last) = last.filter(|last| last.garbled_revision == garbled) else {
            return;
        };
        let written = match last.membership {
            Some(membership) => {
                let row = membership.to_row(&last.channel, &last.member, &self.writer_identity);
                let Ok(row) = serde_json::to_vec(&row) else {
                    return;
                };
                self.kv(Feed::Members).update(key, row.into(), garbled).await
            }
            None => self.kv(Feed::Members).delete(key, Some(garbled)).await,
        };
        match written {
            Ok(revision) => {
                warn!(space = %self.space, revision, "a garbled member row was repaired");
            }
            Err(error) if error.is_conflict() => {}
            Err(error) => {
                warn!(space = %self.space, %error, "could not repair a garbled member row");
            }
        }
    }

    /// Waits until every watch has made its first scan.
    pub(crate) async fn scanned(&self) {
        for feed in &self.feeds {
            let mut progress = feed.progress.subscribe();
            if progress.wait_for(|p| p.scanned).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Announces that the caller is about to write the member row `key`. The receiver tells when
    /// planning began to see the row.
    pub(crate) fn expect_member(&self, key: &str) -> oneshot::Receiver<RowSeen> {
        let (sender, receiver) = oneshot::channel();
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.entry(key.to_owned()).or_default().push(sender);
        receiver
    }

    fn notify(&self, key: &str, seen: RowSeen) {
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        for sender in awaited.remove(key).into_iter().flatten() {
            // The registry may have given up the join; then nobody listens.
            let _ = sender.send(seen);
        }
    }
}

/// A leave in progress: the reader releases nothing that it may exclude, until this is dropped and
/// the closed row is applied.
#[derive(Debug)]
pub(crate) struct LeaveInProgress {
    view: Arc<View>,
    channel: Channel,
    member: Lifecycle,
    written: Option<u64>,
}

impl LeaveInProgress {
    /// The leave may write this cursor from now on.
    pub(crate) fn set_cursor(&self, cursor: u64) {
        let mut state = self.view.state.write().unwrap_or_else(PoisonError::into_inner);
        state.directory.set_leave_cursor(&self.channel, &self.member, cursor);
        drop(state);
        self.view.members_changed.send_modify(|changes| *changes += 1);
    }

    /// Notes that the closed row was stored at `revision`.
    pub(crate) fn written(&mut self, revision: u64) {
        self.written = Some(revision);
    }
}

impl Drop for LeaveInProgress {
    fn drop(&mut self) {
        let mut state = self.view.state.write().unwrap_or_else(PoisonError::into_inner);
        state.directory.end_leave(&self.channel, &self.member, self.written);
        drop(state);
        self.view.members_changed.send_modify(|changes| *changes += 1);
    }
}

/// A read lock on the directory.
pub(crate) struct DirectoryRef<'a>(RwLockReadGuard<'a, State>);

impl std::ops::Deref for DirectoryRef<'_> {
    type Target = Directory;

    fn deref(&self) -> &Directory {
        &self.0.directory
    }
}
