//! The end of a lifecycle.
//!
//! Order: revoke its key, so that the broker drops it and it cannot come back; narrow the ACL row,
//! so that the daemon refuses its joins and reads; read its inventory; evict it, verified; delete
//! what it left; bury it under a tombstone. The revocation comes first because it needs no stream:
//! whoever filled the disk is gone by it, whatever else the full broker refuses. Each step is
//! recorded before the next, so that a crash anywhere is continued by running it again, and the
//! name is held until all is proven.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cotal_nats::NatsError;
use cotal_rules::cadence::RETIREMENT_WAIT;
use cotal_wire::accounts::Account;
use cotal_wire::control::{Eviction, Inventory, op};
use cotal_wire::names::{Bucket, member_key};
use cotal_wire::{Channel, ConnId, Lifecycle, Principal};
use cotal_workspace::files::{self, Privacy};
use cotal_workspace::{Reservation, SecretStore as _, Segment};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{AgentName, Agents, known_key, provisioning};
use crate::clock::unix_seconds;
use crate::error::{Doing, ManagerError};
use crate::rows::bucket;

/// Longest list of channels in a record, in bytes: a file beyond a few MiB is not read back.
const RECORDED: usize = 1024 * 1024;
/// Between two evictions of somebody who is still seen.
const EVICTION_RETRY_AFTER: Duration = Duration::from_millis(200);

/// How far a retirement has come; the next step is not begun before this is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Done {
    /// It is recorded, and the name is held. A record of before the revocation came first may say
    /// `narrowed`: there it has not been revoked.
    #[serde(alias = "narrowed")]
    Nothing,
    /// The broker refuses the key.
    Refused,
    /// The ACL row reads nothing, either.
    #[serde(rename = "refused-and-narrowed", alias = "revoked")]
    Narrowed,
    /// The member rows are known.
    Inventoried,
    /// No connection is left, as a scan proved.
    Evicted,
    /// Member rows, consumers and the credential are deleted.
    Deleted,
    /// A tombstone stands and the name is free.
    #[serde(alias = "buried")]
    Tombstoned,
}

/// The record of a retirement that has begun. It holds the uid, so it is as private as a
/// credential.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Retiring {
    lifecycle: String,
    /// Empty when it is not known.
    nkey: String,
    /// When the credential was issued.
    issued: i64,
    channels: Vec<Channel>,
    /// The channels are too many to be recorded; whoever goes on from here asks for them again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unlisted: bool,
    done: Done,
}

/// What a retirement ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retired {
    /// Who.
    pub principal: Principal,
    /// The channels that it was a durable member of, or had been.
    pub channels: Vec<Channel>,
    /// Connections that were kicked by this run; the revocation ends most before that.
    pub kicked: u64,
}

/// A retirement under way. Dropping it between two steps, or within one, is a crash there: the next
/// one goes on.
#[derive(Debug)]
pub struct Retirement<'a> {
    agents: &'a Agents,
    lifecycle: Lifecycle,
    record: Retiring,
    path: PathBuf,
    kicked: u64,
    _held: Reservation,
}

impl Retirement<'_> {
    /// How far it has come.
    #[must_use]
    pub fn done(&self) -> Done {
        self.record.done
    }

    /// Does the next step and records it; every step may be repeated.
    ///
    /// # Errors
    /// When it cannot be done or proven; the name stays held.
    pub async fn step(&mut self) -> Result<Done, ManagerError> {
        let (agents, lifecycle) = (self.agents, &self.lifecycle);
        let done = match self.record.done {
            Done::Nothing => {
                agents.revoke(&self.record, &self.path).await?;
                Done::Refused
            }
            Done::Refused => {
                agents.rewrite_acl(lifecycle, true, |row| row.allow_subscribe.clear()).await?;
                Done::Narrowed
            }
            Done::Narrowed => {
                self.record.channels = agents.inventory(lifecycle).await?;
                let size: usize = self.record.channels.iter().map(|c| c.as_str().len() + 3).sum();
                self.record.unlisted = size > RECORDED;
                Done::Inventoried
            }
            Done::Inventoried => {
                self.kicked += agents.evict(&lifecycle.principal).await?;
                Done::Evicted
            }
            Done::Evicted => {
                if self.record.unlisted && self.record.channels.is_empty() {
                    self.record.channels = agents.inventory(lifecycle).await?;
                }
                agents.delete_traces(lifecycle, &self.record.channels).await?;
                Done::Deleted
            }
            Done::Deleted => {
                agents.write_tombstone(lifecycle).await?;
                provisioning::forget(agents, &lifecycle.principal)?;
                files::remove(&self.path)?;
                self.record.done = Done::Tombstoned;
                return Ok(Done::Tombstoned);
            }
            Done::Tombstoned => return Ok(Done::Tombstoned),
        };
        self.record.done = done;
        self.record.save(&self.path)?;
        Ok(done)
    }
}

impl Agents {
    /// Ends the live lifecycle of an agent, for good; each, where damage left several.
    ///
    /// # Errors
    /// When a step cannot be done or proven; the name stays held, and running it again continues.
    pub async fn retire(&self, name: &AgentName) -> Result<Retired, ManagerError> {
        let mut all = self.finish(self.begin_retirement(name).await?, name).await?;
        while self.rows().await?.live_of(name.principal()).next().is_some() {
            let next = self.finish(self.begin_retirement(name).await?, name).await?;
            all.channels.extend(next.channels);
            all.kicked += next.kicked;
        }
        Ok(all)
    }

    /// The same for an agent whose key this root does not know, without revoking it: for one that
    /// was revoked before, as after the rows were restored from an older backup. That no connection
    /// of the agent remains is proven all the same.
    ///
    /// # Errors
    /// As [`retire`](Self::retire).
    pub async fn retire_unrevoked(&self, name: &AgentName) -> Result<Retired, ManagerError> {
        let principal = name.principal();
        let held = provisioning::reserve(self, principal)?;
        let path = self.retiring_path(principal);
        let (record, lifecycle) = match self.retirement(principal, &path).await {
            Err(ManagerError::KeyUnknown(_)) => {
                let lifecycle = self.the_live_one(principal, true).await?;
                let record = Retiring::new(&lifecycle, String::new(), 0);
                record.save(&path)?;
                (record, lifecycle)
            }
            begun => begun?,
        };
        let retirement =
            Retirement { agents: self, lifecycle, record, path, kicked: 0, _held: held };
        self.finish(retirement, name).await
    }

    async fn finish(
        &self,
        mut retirement: Retirement<'_>,
        name: &AgentName,
    ) -> Result<Retired, ManagerError> {
        while retirement.step().await? != Done::Tombstoned {}
        Ok(Retired {
            principal: name.principal().clone(),
            channels: retirement.record.channels,
            kicked: retirement.kicked,
        })
    }

    /// Holds the name and records the retirement, or takes up the one that a crash left.
    ///
    /// # Errors
    /// When there is no such agent, its key is not known here, or another process works on it.
    pub async fn begin_retirement(&self, name: &AgentName) -> Result<Retirement<'_>, ManagerError> {
        let principal = name.principal();
        let held = provisioning::reserve(self, principal)?;
        let path = self.retiring_path(principal);
        let (record, lifecycle) = self.retirement(principal, &path).await?;
        Ok(Retirement { agents: self, lifecycle, record, path, kicked: 0, _held: held })
    }

    fn retiring_path(&self, principal: &Principal) -> PathBuf {
        let dir = self.root.agents_dir(&Segment::from(self.space()));
        dir.join(format!("{principal}.retiring"))
    }

    /// Whether a retirement of `principal` has begun and is not complete.
    pub(super) fn is_retiring(&self, principal: &Principal) -> bool {
        self.retiring_path(principal).exists()
    }

    /// The one incarnation that lives. One whose row is garbled beyond its history may live, so it
    /// counts where it is to be ended.
    pub(super) async fn the_live_one(
        &self,
        principal: &Principal,
        garbled_too: bool,
    ) -> Result<Lifecycle, ManagerError> {
        let rows = self.rows().await?;
        let garbled = rows.garbled.iter().filter(|l| garbled_too && l.principal == *principal);
        let live = rows.live_of(principal).map(|(lifecycle, _)| lifecycle);
        let live: Vec<_> = live.chain(garbled).cloned().collect();
        match &live[..] {
            [one] => Ok(one.clone()),
            // Each is to be ended, one after the other.
            [one, ..] if garbled_too => Ok(one.clone()),
            [] => Err(ManagerError::NoSuchAgent(principal.clone())),
            all => Err(ManagerError::Ambiguous { principal: principal.clone(), count: all.len() }),
        }
    }

    /// The retirement that a crash left, or a new one.
    async fn retirement(
        &self,
        principal: &Principal,
        path: &Path,
    ) -> Result<(Retiring, Lifecycle), ManagerError> {
        let malformed =
            |problem: String| ManagerError::PendingRecord { path: path.to_owned(), problem };
        if let Some(text) = files::read(path)? {
            let record: Retiring =
                serde_json::from_str(&text).map_err(|e| malformed(e.to_string()))?;
            let lifecycle =
                Lifecycle::parse(&record.lifecycle).map_err(|e| malformed(e.to_string()))?;
            return Ok((record, lifecycle));
        }
        let lifecycle = self.the_live_one(principal, true).await?;
        let known = known_key::of(self, &lifecycle)?;
        let record = Retiring::new(&lifecycle, known.nkey, known.issued);
        record.save(path)?;
        Ok((record, lifecycle))
    }

    /// Without this a kick would be undone by the client's next dial.
    async fn revoke(&self, record: &Retiring, path: &Path) -> Result<(), ManagerError> {
        if record.nkey.is_empty() {
            return Ok(());
        }
        let nkey = ConnId::parse(&record.nkey).map_err(|e| ManagerError::PendingRecord {
            path: path.to_owned(),
            problem: e.to_string(),
        })?;
        let until = unix_seconds().max(record.issued);
        self.authority.revoke(&self.broker, Account::Agents, &nkey, until).await
    }

    /// Page by page, because an agent decides how much it joins. The row reads nothing by now and
    /// every page is read behind the fence, so no row can come where the pages have passed (INV-4).
    async fn inventory(&self, lifecycle: &Lifecycle) -> Result<Vec<Channel>, ManagerError> {
        let Lifecycle { principal, uid } = lifecycle;
        let (mut channels, mut after) = (Vec::new(), String::new());
        loop {
            let args = json!({ "principal": principal, "lifecycleUid": uid, "after": after });
            let data = self.ask_patiently(op::LIFECYCLE_MEMBERSHIPS, args, Instant::now()).await?;
            let page: Inventory = serde_json::from_value(data)?;
            channels.extend(page.channels);
            // A daemon that knows no pages has given all.
            let Some(next) = page.next else { return Ok(channels) };
            if next.as_str() <= after.as_str() {
                let what = op::LIFECYCLE_MEMBERSHIPS.to_owned();
                let detail = format!("a page continues at {next}, before its own start");
                return Err(NatsError::Malformed { what, detail })
                    .doing(|| format!("list the member rows of {principal}"));
            }
            after = next.to_string();
        }
    }

    /// Evicts and demands the proof; a connection that a scan still sees is asked about again until
    /// the wait is over.
    async fn evict(&self, principal: &Principal) -> Result<u64, ManagerError> {
        let started = Instant::now();
        let mut kicked = 0;
        loop {
            let args = json!({ "principal": principal });
            let data = self.ask_patiently(op::EVICT_PRINCIPAL, args, started).await?;
            let eviction: Eviction = serde_json::from_value(data)?;
            kicked += eviction.kicked;
            let gone = eviction.proves_gone(principal).map_err(|detail| NatsError::Malformed {
                what: op::EVICT_PRINCIPAL.to_owned(),
                detail,
            });
            if gone.doing(|| format!("prove that {principal} is gone"))? {
                return Ok(kicked);
            }
            tokio::time::sleep(EVICTION_RETRY_AFTER).await;
            if started.elapsed() >= RETIREMENT_WAIT {
                return Err(ManagerError::NotGone {
                    principal: principal.clone(),
                    remaining: eviction.remaining,
                    note: eviction.note.unwrap_or_default(),
                });
            }
        }
    }

    /// Asks the daemon; only silence is asked again, within 15 s of `started` (INV-6).
    async fn ask_patiently(
        &self,
        op: &str,
        args: serde_json::Value,
        started: Instant,
    ) -> Result<serde_json::Value, ManagerError> {
        self.rail().admin_within(op, args, started, RETIREMENT_WAIT).await
    }

    async fn delete_traces(
        &self,
        lifecycle: &Lifecycle,
        channels: &[Channel],
    ) -> Result<(), ManagerError> {
        let space = self.space();
        let members = bucket(&self.connection, space, Bucket::Members);
        for channel in channels {
            let deleted = members.delete(&member_key(channel, lifecycle), None).await;
            deleted.doing(|| format!("delete a member row of {}", lifecycle.principal))?;
        }
        let consumers = [
            (space.dlv_stream(), space.dlv_consumer(lifecycle)),
            (space.dm_stream(), space.dm_consumer(lifecycle)),
        ];
        for (stream, consumer) in consumers {
            match self.connection.delete_consumer(&stream, &consumer).await {
                Ok(()) | Err(NatsError::Absent { .. }) => {}
                Err(error) => return Err(error).doing(|| format!("delete {consumer}")),
            }
        }
        self.end_history_read(lifecycle).await?;
        let own = self.creds_of(lifecycle);
        if matches!(own, Ok(Some(_)) | Err(ManagerError::DamagedCreds { .. })) {
            self.store.delete(&self.key(&lifecycle.principal))?;
        }
        known_key::forget(self, &lifecycle.principal)
    }
}

impl Retiring {
    fn new(lifecycle: &Lifecycle, nkey: String, issued: i64) -> Self {
        let lifecycle = lifecycle.dotted();
        let (channels, unlisted, done) = (Vec::new(), false, Done::Nothing);
        Self { lifecycle, nkey, issued, channels, unlisted, done }
    }

    fn save(&self, path: &Path) -> Result<(), ManagerError> {
        let unlisted = Self { channels: Vec::new(), ..self.clone() };
        let text = serde_json::to_string(if self.unlisted { &unlisted } else { self })?;
        Ok(files::replace(path, text.as_bytes(), Privacy::Secret)?)
    }
}
