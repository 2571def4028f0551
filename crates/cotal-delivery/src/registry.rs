//! The membership registry: durable joins and leaves, ordered by stream sequence.
//!
//! Invariant: only this writes member rows, by compare-and-set, and a join is reported durable only
//! when every post since its cursor has been copied (`docs/wire.md` §5, *Join*).

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{Bytes, Connection, Entry, NatsError, StoredMessage, Writer};
use cotal_rules::directory::{Acl, Membership, Resolved};
use cotal_rules::fanout::{Copy, Plan};
use cotal_rules::membership::{
    self as rules, ActivateStep, AfterWrite, Change, CloseStep, Expect, JoinStep, LeaveStep,
    Refusal, SubjectFill, Write,
};
use cotal_wire::control::{Code, JoinShortfall, Joined, Left, MembershipItem, Memberships, Reply};
use cotal_wire::envelope::{self, Reason};
use cotal_wire::names::member_key;
use cotal_wire::rows::{AclRow, DeliveryClass, MemberRow};
use cotal_wire::{Channel, Lifecycle, LifecycleUid, Principal, Space};
use tokio::sync::{Mutex, oneshot, watch};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::clock::now_ms;
use crate::counters::{Counters, add};
use crate::fanout::make_copies;
use crate::reader::ReaderProgress;
use crate::view::{Feed, Seen, View};

/// Rounds of compare-and-set before a caller is told that others are faster.
const ROUNDS: usize = 8;
/// Posts read at once by catch-up, and copies put before the reader at once.
const CATCH_UP: usize = 200;
/// How long the view may take to apply a row just written, or the reader to take a chunk.
const SEEN_WITHIN: Duration = Duration::from_secs(10);
/// Locks by key; a collision only makes two joins wait for each other.
const LOCKS: usize = 256;

/// Joins, leaves and listings of one lane.
pub(crate) struct Registry {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) view: Arc<View>,
    pub(crate) writer: Writer,
    pub(crate) counters: Arc<Counters>,
    pub(crate) reader: watch::Receiver<ReaderProgress>,
    pub(crate) writer_identity: String,
    pub(crate) locks: [Mutex<()>; LOCKS],
}

/// A refusal, or a broker that did not let the operation be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    #[error("{}", .0.reason)]
    Refused(Refusal),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

impl RegistryError {
    fn refused<T: Into<String>>(code: Code, reason: T) -> Self {
        Self::Refused(Refusal {
            code,
            reason: reason.into(),
        })
    }

    /// The reply that tells the caller.
    pub(crate) fn reply(&self) -> Reply {
        match self {
            Self::Refused(refusal) => Reply::refused(refusal.code, refusal.reason.clone()),
            Self::Nats(error) => Reply::refused(
                Code::Unavailable,
                format!("the daemon could not finish it: {error}; try again"),
            ),
        }
    }
}

/// A fresh set of locks.
pub(crate) fn locks() -> [Mutex<()>; LOCKS] {
    std::array::from_fn(|_| Mutex::new(()))
}

impl Registry {
    /// Serves `durableJoin`.
    pub(crate) async fn join(
        &self,
        caller: &Principal,
        channel: &Channel,
        uid: Option<LifecycleUid>,
    ) -> Result<Joined, RegistryError> {
        self.view.fresh(&[Feed::Acl, Feed::Channels]).await?;
        let member = self.lifecycle(caller, uid)?;
        if self.view.directory().class(channel) == DeliveryClass::Live {
            let why = format!("{channel} is a live channel: it has no durable backstop to join");
            return Err(RegistryError::refused(Code::Invalid, why));
        }
        let key = member_key(channel, &member);
        let _turn = self.lock(&key).lock().await;
        for _ in 0..ROUNDS {
            match self.join_once(&key, channel, &member).await {
                Err(RegistryError::Nats(error)) if error.is_conflict() => {}
                other => return other,
            }
        }
        Err(RegistryError::refused(
            Code::Conflict,
            "the row keeps changing; try again",
        ))
    }

    async fn join_once(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
    ) -> Result<Joined, RegistryError> {
        let (current, tombstone) = self.read_row(key, channel, member).await?;
        let cursor = self.connection.last_seq(&self.space.chat_stream()).await?;
        let acl = self.read_acl(member).await?;
        match rules::join(
            current.as_ref(),
            as_acl(acl.as_ref()),
            self.change(channel, member, cursor),
        ) {
            JoinStep::Refused(refusal) => Err(RegistryError::Refused(refusal)),
            JoinStep::AlreadyJoined { membership } if membership.activated => Ok(Joined {
                durable: true,
                generation: membership.generation,
                reason: None,
            }),
            JoinStep::AlreadyJoined { membership } => {
                let routed = u64::MAX;
                let seen = Seen {
                    revision: membership.revision,
                    routed,
                };
                self.activate(key, channel, member, membership, seen).await
            }
            JoinStep::Write(write) => {
                let seen = self.view.expect_member(key);
                let revision = self.write(key, &write, tombstone).await?;
                self.confirm(key, channel, member, revision).await?;
                let seen = self.seen(seen, revision).await?;
                let membership = Membership::of(&write.row, revision);
                self.activate(key, channel, member, membership, seen).await
            }
        }
    }

    /// Reads the ACL once more after the write; a row that it no longer covers goes again (MEM-3).
    async fn confirm(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
        revision: u64,
    ) -> Result<(), RegistryError> {
        let acl = self.read_acl(member).await;
        let verdict = acl.map(|acl| rules::after_write(as_acl(acl.as_ref()), channel));
        match verdict {
            Ok(AfterWrite::Keep) => Ok(()),
            Ok(AfterWrite::Remove(refusal)) => {
                self.remove(key, revision).await;
                Err(RegistryError::Refused(refusal))
            }
            Err(error) => {
                self.remove(key, revision).await;
                Err(error)
            }
        }
    }

    async fn remove(&self, key: &str, revision: u64) {
        match self
            .view
            .kv(Feed::Members)
            .delete(key, Some(revision))
            .await
        {
            Ok(_) => {}
            Err(error) if error.is_conflict() => {}
            Err(error) => {
                warn!(space = %self.space, %error, "a refused join's row stays until it is read")
            }
        }
    }

    async fn seen(
        &self,
        seen: oneshot::Receiver<Seen>,
        revision: u64,
    ) -> Result<Seen, RegistryError> {
        let late = || NatsError::Timeout {
            what: "the view to apply a member row".to_owned(),
            after: SEEN_WITHIN,
        };
        let seen = timeout(SEEN_WITHIN, seen)
            .await
            .map_err(|_| late())?
            .map_err(|_| late())?;
        if seen.revision < revision {
            // An older change of the row was told first; the barrier brings ours in.
            self.view.fresh(&[Feed::Members]).await?;
            return Ok(Seen {
                revision,
                routed: u64::MAX,
            });
        }
        Ok(seen)
    }

    /// Copies what was posted between the join and the moment fan-out began to see the row, then
    /// marks the row as activated.
    async fn activate(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
        membership: Membership,
        seen: Seen,
    ) -> Result<Joined, RegistryError> {
        let state = self
            .connection
            .stream_state(&self.space.chat_stream())
            .await?;
        let fence = state.last_seq;
        let generation = membership.generation;
        let join = membership.join_cursor;
        let until = fence.min(seen.routed);
        self.catch_up(channel, member, generation, join, until)
            .await?;
        if self
            .window_evicted(channel, join, fence, state.first_seq)
            .await?
        {
            self.close_evicted(key, channel, member, &membership)
                .await?;
            let reason = Some(JoinShortfall::Evicted);
            return Ok(Joined {
                durable: false,
                generation,
                reason,
            });
        }
        let change = self.change(channel, member, fence);
        match rules::activate(Some(&membership), generation, change) {
            ActivateStep::AlreadyActive => {}
            ActivateStep::Superseded => return Ok(superseded(generation)),
            ActivateStep::Write(write) => match self.write(key, &write, None).await {
                Ok(_) => {}
                Err(error) if error.is_conflict() => {
                    return self.after_conflict(key, channel, member, generation).await;
                }
                Err(error) => return Err(error.into()),
            },
        }
        info!(space = %self.space, %member.principal, %channel, generation, "durable join");
        Ok(Joined {
            durable: true,
            generation,
            reason: None,
        })
    }

    /// Somebody changed the row during catch-up: it is still this join's, or it is superseded.
    async fn after_conflict(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
        generation: u64,
    ) -> Result<Joined, RegistryError> {
        let (row, _) = self.read_row(key, channel, member).await?;
        match row.filter(|row| row.generation == generation && row.is_open()) {
            Some(row) if row.activated => Ok(Joined {
                durable: true,
                generation,
                reason: None,
            }),
            _ => Ok(superseded(generation)),
        }
    }

    async fn catch_up(
        &self,
        channel: &Channel,
        member: &Lifecycle,
        generation: u64,
        after: u64,
        until: u64,
    ) -> Result<(), RegistryError> {
        let chat = self.space.chat_stream();
        let filter = self.space.chat_channel(&channel.into());
        let mut next = after + 1;
        while next <= until {
            let page = self
                .connection
                .direct_next(&chat, next, &filter, CATCH_UP)
                .await?;
            let Some(last) = page.messages.last().map(|m| m.seq) else {
                return Ok(());
            };
            let posts = page.messages.iter().filter(|m| m.seq <= until);
            self.copy_posts(posts, channel, member, generation).await?;
            next = last + 1;
        }
        Ok(())
    }

    async fn copy_posts<'a>(
        &self,
        posts: impl Iterator<Item = &'a StoredMessage>,
        channel: &Channel,
        member: &Lifecycle,
        generation: u64,
    ) -> Result<(), RegistryError> {
        let mut copies = Vec::new();
        for post in posts {
            let Some((sender, found)) = self.space.parse_chat(&post.subject) else {
                continue;
            };
            if found != *channel || sender == member.principal || !sender.has_real_owner() {
                continue;
            }
            let Ok(head) = envelope::parse_post(&post.payload, &sender, channel) else {
                continue;
            };
            let reason = Reason::DurableChannel;
            let copy = Copy {
                member: member.clone(),
                generation,
                reason,
            };
            let plan = Plan {
                class: DeliveryClass::Durable,
                copies: vec![copy],
                unsure: Vec::new(),
            };
            let payload: &Bytes = &post.payload;
            let made = make_copies(
                &self.space,
                payload,
                post.seq,
                channel,
                &sender,
                &head,
                &plan,
            );
            copies.extend(made);
        }
        if copies.is_empty() {
            return Ok(());
        }
        let count = copies.len() as u64;
        let written = self.writer.submit(copies).await?.await;
        written.map_err(|error| match error.failed.into_iter().next() {
            Some((_, error)) => error,
            None => NatsError::Closed,
        })?;
        add(&self.counters.copies, count);
        self.reader_took().await
    }

    /// Waits until the reader has taken what INBOX holds, so that one member's catch-up never
    /// reaches the store's cap.
    async fn reader_took(&self) -> Result<(), RegistryError> {
        let mark = self.connection.last_seq(&self.space.inbox_stream()).await?;
        let mut reader = self.reader.clone();
        let reached = timeout(SEEN_WITHIN, reader.wait_for(|r| r.reached(mark))).await;
        match reached {
            Ok(Ok(_)) => Ok(()),
            _ => Err(NatsError::Timeout {
                what: "the trusted reader to take a catch-up".to_owned(),
                after: SEEN_WITHIN,
            }
            .into()),
        }
    }

    /// Whether retention may have taken a post of the window. A window shorter than what one
    /// subject holds cannot have lost any.
    async fn window_evicted(
        &self,
        channel: &Channel,
        join: u64,
        fence: u64,
        first: u64,
    ) -> Result<bool, RegistryError> {
        if first <= join + 1 && fence.saturating_sub(join) < cotal_wire::limits::PER_SUBJECT {
            return Ok(false);
        }
        let fills = self.fills(channel).await?;
        Ok(rules::window_evicted(join, first, &fills))
    }

    async fn fills(&self, channel: &Channel) -> Result<Vec<SubjectFill>, RegistryError> {
        let chat = self.space.chat_stream();
        let filter = self.space.chat_channel(&channel.into());
        let mut fills = Vec::new();
        let mut offset = 0;
        loop {
            let page = self
                .connection
                .stream_info_subjects(&chat, &filter, offset)
                .await?;
            let got = page.subjects.len() as u64;
            for (subject, count) in page.subjects {
                if count < cotal_wire::limits::PER_SUBJECT {
                    continue;
                }
                let oldest = self.connection.direct_next(&chat, 1, &subject, 1).await?;
                if let Some(oldest) = oldest.messages.first() {
                    fills.push(SubjectFill {
                        count,
                        oldest: oldest.seq,
                    });
                }
            }
            offset += got;
            if got == 0 || offset >= page.total {
                return Ok(fills);
            }
        }
    }

    async fn close_evicted(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
        membership: &Membership,
    ) -> Result<(), RegistryError> {
        let change = self.change(channel, member, membership.join_cursor);
        match rules::close_evicted(Some(membership), membership.generation, change) {
            CloseStep::Write(write) => match self.write(key, &write, None).await {
                Err(error) if !error.is_conflict() => Err(error.into()),
                _ => Ok(()),
            },
            CloseStep::Superseded => Ok(()),
        }
    }

    /// Serves `durableLeave`.
    pub(crate) async fn leave(
        &self,
        caller: &Principal,
        channel: &Channel,
        generation: u64,
        uid: Option<LifecycleUid>,
    ) -> Result<Left, RegistryError> {
        self.view.fresh(&[Feed::Acl]).await?;
        let member = self.lifecycle(caller, uid)?;
        let key = member_key(channel, &member);
        let _turn = self.lock(&key).lock().await;
        for _ in 0..ROUNDS {
            let (current, _) = self.read_row(&key, channel, &member).await?;
            let cursor = self.connection.last_seq(&self.space.chat_stream()).await?;
            let change = self.change(channel, &member, cursor);
            let write = match rules::leave(current.as_ref(), generation, change) {
                LeaveStep::Refused(refusal) => return Err(RegistryError::Refused(refusal)),
                LeaveStep::AlreadyLeft => {
                    return Ok(Left {
                        channel: channel.clone(),
                        already_left: Some(true),
                    });
                }
                LeaveStep::Write(write) => write,
            };
            match self.write(&key, &write, None).await {
                Ok(_) => {
                    info!(space = %self.space, %member.principal, %channel, generation, "durable leave");
                    return Ok(Left {
                        channel: channel.clone(),
                        already_left: None,
                    });
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(RegistryError::refused(
            Code::Conflict,
            "the row keeps changing; try again",
        ))
    }

    /// Serves `listMemberships`: the open memberships of the caller's live lifecycles.
    pub(crate) async fn list(&self, caller: &Principal) -> Result<Memberships, RegistryError> {
        self.view.fresh(&[Feed::Acl, Feed::Members]).await?;
        let member = self.lifecycle(caller, None)?;
        let directory = self.view.directory();
        let mut memberships: Vec<_> = directory
            .memberships_of(&member)
            .into_iter()
            .filter(|(_, m)| m.is_open())
            .map(|(channel, m)| MembershipItem {
                channel,
                generation: m.generation,
                activated: m.activated,
            })
            .collect();
        memberships.sort_by(|a, b| a.channel.cmp(&b.channel));
        Ok(Memberships { memberships })
    }

    /// Finishes the joins that a daemon before this one left half done.
    pub(crate) async fn resume(
        &self,
        channel: &Channel,
        member: &Lifecycle,
    ) -> Result<(), RegistryError> {
        let key = member_key(channel, member);
        let _turn = self.lock(&key).lock().await;
        let (row, _) = self.read_row(&key, channel, member).await?;
        let Some(row) = row.filter(|row| row.is_open() && !row.activated) else {
            return Ok(());
        };
        let seen = Seen {
            revision: row.revision,
            routed: u64::MAX,
        };
        self.activate(&key, channel, member, row, seen)
            .await
            .map(drop)
    }

    /// Which lifecycle of the caller is meant.
    fn lifecycle(
        &self,
        caller: &Principal,
        uid: Option<LifecycleUid>,
    ) -> Result<Lifecycle, RegistryError> {
        let directory = self.view.directory();
        let refused = RegistryError::refused::<String>;
        if let Some(uid) = uid {
            let member = Lifecycle::new(caller.clone(), uid);
            return match directory.acl(&member) {
                Acl::Row(_) => Ok(member),
                Acl::Retired => Err(refused(
                    Code::Retired,
                    "this lifecycle is retired".to_owned(),
                )),
                Acl::Absent => Err(refused(
                    Code::NotProvisioned,
                    format!("{caller} has no such lifecycle here; provision it first"),
                )),
            };
        }
        match directory.live_lifecycle(caller) {
            Resolved::One(member) => Ok(member),
            Resolved::None => Err(refused(
                Code::NotProvisioned,
                format!("{caller} has no read-ACL row here; provision it first"),
            )),
            Resolved::Several => Err(refused(
                Code::Ambiguous,
                format!("{caller} has several live lifecycles; name one with lifecycleUid"),
            )),
        }
    }

    fn lock(&self, key: &str) -> &Mutex<()> {
        use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        &self.locks[usize::try_from(hash % LOCKS as u64).unwrap_or_default()]
    }

    fn change<'a>(
        &'a self,
        channel: &'a Channel,
        member: &'a Lifecycle,
        cursor: u64,
    ) -> Change<'a> {
        Change {
            channel,
            member,
            cursor,
            now_ms: now_ms(),
            writer: &self.writer_identity,
        }
    }

    /// The row as the leader has it, and the revision of whatever stands in its place. A garbled
    /// value is no row and no absence: the last valid one stands.
    async fn read_row(
        &self,
        key: &str,
        channel: &Channel,
        member: &Lifecycle,
    ) -> Result<(Option<Membership>, Option<u64>), RegistryError> {
        let Some(entry) = self.view.kv(Feed::Members).get(key).await? else {
            return Ok((None, None));
        };
        let Some(value) = entry.live() else {
            return Ok((None, Some(entry.revision)));
        };
        if let Ok(row) = MemberRow::parse(value, channel, member) {
            return Ok((Some(Membership::of(&row, entry.revision)), None));
        }
        self.view.fresh(&[Feed::Members]).await?;
        let mut standing = self.view.directory().membership(channel, member).cloned();
        if let Some(row) = &mut standing {
            row.revision = entry.revision;
        }
        Ok((standing, Some(entry.revision)))
    }

    /// The ACL row as the leader has it now.
    async fn read_acl(&self, member: &Lifecycle) -> Result<Option<AclRow>, RegistryError> {
        let entry: Option<Entry> = self.view.kv(Feed::Acl).get(&member.dotted()).await?;
        let Some(value) = entry.as_ref().and_then(Entry::live) else {
            return Ok(None);
        };
        if let Ok(row) = AclRow::parse(value) {
            return Ok(Some(row));
        }
        self.view.fresh(&[Feed::Acl]).await?;
        match self.view.directory().acl(member) {
            Acl::Row(row) => Ok(Some(row.clone())),
            Acl::Retired => Err(RegistryError::refused(
                Code::Retired,
                "this lifecycle is retired",
            )),
            Acl::Absent => Ok(None),
        }
    }

    async fn write(
        &self,
        key: &str,
        write: &Write,
        tombstone: Option<u64>,
    ) -> Result<u64, NatsError> {
        let value: Bytes = serde_json::to_vec(&write.row).unwrap_or_default().into();
        let kv = self.view.kv(Feed::Members);
        match (write.expect, tombstone) {
            (Expect::Revision(revision), _) => kv.update(key, value, revision).await,
            (Expect::Absent, Some(revision)) => kv.update(key, value, revision).await,
            (Expect::Absent, None) => kv.create(key, value).await,
        }
    }
}

fn superseded(generation: u64) -> Joined {
    Joined {
        durable: false,
        generation,
        reason: Some(JoinShortfall::Superseded),
    }
}

fn as_acl(row: Option<&AclRow>) -> Acl<'_> {
    match row {
        None => Acl::Absent,
        Some(row) if row.retired => Acl::Retired,
        Some(row) => Acl::Row(row),
    }
}
