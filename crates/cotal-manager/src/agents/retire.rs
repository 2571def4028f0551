//! The end of a lifecycle, and the narrowing of one that goes on.
//!
//! Order: narrow the ACL row, so that the daemon refuses its joins and reads; revoke its key, so that
//! it cannot come back; read its inventory; evict it, verified; delete what it left; bury it under a
//! tombstone. Each step is recorded before the next, so that a crash anywhere is continued by running
//! it again, and the name is held until all is proven.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cotal_nats::{Bytes, NatsError};
use cotal_rules::cadence::{Cadence, Next, RETIREMENT_WAIT_MS};
use cotal_trust::{UserKey, mint_profile};
use cotal_wire::control::{Eviction, Inventory, op};
use cotal_wire::creds::Creds;
use cotal_wire::names::{Bucket, member_key};
use cotal_wire::profile::{AgentGrant, Profile};
use cotal_wire::rows::AclRow;
use cotal_wire::{Channel, ChannelPattern, ConnId, Lifecycle, Principal};
use cotal_workspace::files::{self, Privacy};
use cotal_workspace::{Secret, SecretStore as _, Segment};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{AgentName, Agents, posts, provisioning};
use crate::clock::{unix_millis, unix_seconds};
use crate::error::{Doing, ManagerError};
use crate::rows::bucket;

/// Rounds of compare-and-set on an ACL row before somebody else is said to be faster.
const ROUNDS: usize = 8;

/// How far a retirement has come; the next step is not begun before this is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Done {
    Nothing,
    Narrowed,
    Revoked,
    Evicted,
    Deleted,
}

/// The record of a retirement that has begun. It holds the uid, so it is as private as a credential.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Retiring {
    lifecycle: String,
    nkey: String,
    done: Done,
}

/// What a retirement ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retired {
    /// Who.
    pub principal: Principal,
    /// The channels whose member rows were deleted by this run.
    pub channels: Vec<Channel>,
    /// Connections that were kicked by this run; the revocation ends most before that.
    pub kicked: u64,
}

impl Agents {
    /// Ends the live lifecycle of an agent, for good.
    ///
    /// # Errors
    /// When a step cannot be done or proven; the name stays held, and running it again continues.
    pub async fn retire(&self, name: &AgentName) -> Result<Retired, ManagerError> {
        let principal = name.principal().clone();
        let _held = provisioning::reserve(self, &principal)?;
        let path = self.retiring_path(&principal);
        let (mut record, lifecycle) = self.retirement(&principal, &path).await?;
        let mut retired = Retired { principal, channels: Vec::new(), kicked: 0 };
        if record.done < Done::Narrowed {
            self.rewrite_acl(&lifecycle, |row| row.allow_subscribe.clear()).await?;
            record.advance(Done::Narrowed, &path)?;
        }
        if record.done < Done::Revoked {
            self.revoke(&record.nkey).await?;
            record.advance(Done::Revoked, &path)?;
        }
        if record.done < Done::Deleted {
            retired.channels = self.inventory(&lifecycle).await?;
            if record.done < Done::Evicted {
                retired.kicked = self.evict(&lifecycle.principal).await?;
                record.advance(Done::Evicted, &path)?;
            }
            self.delete_traces(&lifecycle, &retired.channels).await?;
            record.advance(Done::Deleted, &path)?;
        }
        self.rewrite_acl(&lifecycle, |row| {
            row.allow_subscribe.clear();
            row.retired = true;
        })
        .await?;
        provisioning::forget(self, &lifecycle.principal)?;
        files::remove(&path)?;
        Ok(retired)
    }

    /// Takes channels from what an agent may read; it never adds any. The row goes first, so that
    /// the daemon releases nothing more and recalls what it had handed off; then the credential is
    /// minted anew under the same key, and the old one revoked, which ends its live subscriptions.
    ///
    /// # Errors
    /// When the agent does not live, `read` covers more than before, or a step fails; running it
    /// again continues.
    pub async fn narrow(
        &self,
        name: &AgentName,
        read: &[ChannelPattern],
    ) -> Result<Principal, ManagerError> {
        let principal = name.principal().clone();
        let _held = provisioning::reserve(self, &principal)?;
        let lifecycle = self.the_live_one(&principal).await?;
        let creds = self.creds_of(&lifecycle)?;
        let creds = creds.ok_or_else(|| ManagerError::KeyUnknown(principal.clone()))?;
        let rows = self.rows().await?;
        let before = rows.rows.get(&lifecycle).map(|row| row.allow_subscribe.clone());
        let before = before.unwrap_or_default();
        if let Some(wider) = read.iter().find(|r| !before.iter().any(|b| b.covers_all_of(r))) {
            return Err(ManagerError::Wider { principal, pattern: wider.clone() });
        }
        self.rewrite_acl(&lifecycle, |row| row.allow_subscribe = read.to_vec()).await?;
        self.replace_credential(&lifecycle, read, &creds).await?;
        Ok(principal)
    }

    async fn replace_credential(
        &self,
        lifecycle: &Lifecycle,
        read: &[ChannelPattern],
        old: &Creds,
    ) -> Result<(), ManagerError> {
        let revoked_at = unix_seconds().max(old.claims.issued_at);
        let profile = Profile::Agent(AgentGrant {
            lifecycle: lifecycle.clone(),
            read: read.to_vec(),
            post: posts(self.space(), &lifecycle.principal, old),
            role: old.claims.role(),
        });
        let key = UserKey::from_seed(&Secret::new(old.seed.clone()))?;
        // What was issued up to the revocation is refused; this one is issued after it.
        let minted = mint_profile(self.account(), &key, &profile, revoked_at + 1, None)?;
        self.store.put(&self.key(&lifecycle.principal), &minted.creds)?;
        self.authority.revoke(&self.broker, &old.claims.subject, revoked_at).await
    }

    fn retiring_path(&self, principal: &Principal) -> PathBuf {
        let dir = self.root.agents_dir(&Segment::from(self.space()));
        dir.join(format!("{principal}.retiring"))
    }

    /// Whether a retirement of `principal` has begun and is not complete.
    pub(super) fn is_retiring(&self, principal: &Principal) -> bool {
        self.retiring_path(principal).exists()
    }

    async fn the_live_one(&self, principal: &Principal) -> Result<Lifecycle, ManagerError> {
        let rows = self.rows().await?;
        let live: Vec<_> =
            rows.live_of(principal).map(|(lifecycle, _)| lifecycle.clone()).collect();
        match &live[..] {
            [one] => Ok(one.clone()),
            [] => Err(ManagerError::NoSuchAgent(principal.clone())),
            all => Err(ManagerError::Ambiguous { principal: principal.clone(), count: all.len() }),
        }
    }

    /// The retirement that a crash left, or a new one.
    async fn retirement(
        &self,
        principal: &Principal,
        path: &std::path::Path,
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
        let lifecycle = self.the_live_one(principal).await?;
        let creds = self.creds_of(&lifecycle)?;
        let creds = creds.ok_or_else(|| ManagerError::KeyUnknown(principal.clone()))?;
        let record = Retiring {
            lifecycle: lifecycle.dotted(),
            nkey: creds.claims.subject.to_string(),
            done: Done::Nothing,
        };
        record.save(path)?;
        Ok((record, lifecycle))
    }

    /// Changes an ACL row by revision; a tombstone is final and stays as it is.
    async fn rewrite_acl(
        &self,
        lifecycle: &Lifecycle,
        change: impl Fn(&mut AclRow),
    ) -> Result<(), ManagerError> {
        let acl = bucket(&self.connection, self.space(), Bucket::Acl);
        let key = lifecycle.dotted();
        let principal = &lifecycle.principal;
        let doing = || format!("change the ACL row of {principal}");
        for _ in 0..ROUNDS {
            let entry = acl.get(&key).await.doing(doing)?;
            let standing = self.rows().await?.rows.remove(lifecycle);
            let (Some(entry), Some(mut row)) = (entry, standing) else {
                return Err(ManagerError::NoSuchAgent(principal.clone()));
            };
            if row.retired {
                return Ok(());
            }
            change(&mut row);
            row.revision += 1;
            row.updated_at = unix_millis();
            let value: Bytes = serde_json::to_vec(&row)?.into();
            match acl.update(&key, value, entry.revision).await {
                Ok(_) => return Ok(()),
                Err(NatsError::Conflict { .. }) => {}
                Err(error) => return Err(error).doing(doing),
            }
        }
        Err(ManagerError::Busy(principal.clone()))
    }

    /// Without this a kick would be undone by the client's next dial.
    async fn revoke(&self, nkey: &str) -> Result<(), ManagerError> {
        let nkey = ConnId::parse(nkey).map_err(|e| ManagerError::PendingRecord {
            path: PathBuf::from("the retirement record"),
            problem: e.to_string(),
        })?;
        self.authority.revoke(&self.broker, &nkey, unix_seconds()).await
    }

    async fn inventory(&self, lifecycle: &Lifecycle) -> Result<Vec<Channel>, ManagerError> {
        let args = json!({ "principal": lifecycle.principal, "lifecycleUid": lifecycle.uid });
        let data = self.ask_patiently(op::LIFECYCLE_MEMBERSHIPS, args).await?;
        let inventory: Inventory = serde_json::from_value(data)?;
        Ok(inventory.channels)
    }

    /// Evicts and demands the proof; a connection that a scan still sees is asked about again until
    /// the wait is over.
    async fn evict(&self, principal: &Principal) -> Result<u64, ManagerError> {
        let started = Instant::now();
        let mut kicked = 0;
        loop {
            let args = json!({ "principal": principal });
            let data = self.ask_patiently(op::EVICT_PRINCIPAL, args).await?;
            let eviction: Eviction = serde_json::from_value(data)?;
            kicked += eviction.kicked;
            if eviction.verified_gone {
                return Ok(kicked);
            }
            if started.elapsed() >= Duration::from_millis(RETIREMENT_WAIT_MS.unsigned_abs()) {
                return Err(ManagerError::NotGone {
                    principal: principal.clone(),
                    remaining: eviction.remaining,
                    note: eviction.note.unwrap_or_default(),
                });
            }
        }
    }

    /// Asks the daemon; only silence is asked again, within 15 s in total (INV-6).
    async fn ask_patiently(
        &self,
        op: &str,
        args: serde_json::Value,
    ) -> Result<serde_json::Value, ManagerError> {
        let started = Instant::now();
        let now = || i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX);
        let mut cadence = Cadence::new(0, RETIREMENT_WAIT_MS);
        let mut last = None;
        let rail = self.rail();
        while let Next::Send { at, until } = cadence.next(now()) {
            let wait = |ms: i64| Duration::from_millis(ms.max(0).unsigned_abs());
            tokio::time::sleep(wait(at - now())).await;
            let asked = rail.admin(op, args.clone());
            match tokio::time::timeout(wait(until - now()), asked).await {
                Ok(Err(error)) if error.is_silence() => last = Some(error),
                Ok(answer) => return answer,
                Err(_) => break,
            }
        }
        Err(last.unwrap_or_else(|| ManagerError::RailSilent {
            space: self.space().clone(),
            op: op.to_owned(),
        }))
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
        if self.creds_of(lifecycle)?.is_some() {
            self.store.delete(&self.key(&lifecycle.principal))?;
        }
        Ok(())
    }
}

impl Retiring {
    fn save(&self, path: &std::path::Path) -> Result<(), ManagerError> {
        let text = serde_json::to_string(self)?;
        Ok(files::replace(path, text.as_bytes(), Privacy::Secret)?)
    }

    fn advance(&mut self, done: Done, path: &std::path::Path) -> Result<(), ManagerError> {
        self.done = done;
        self.save(path)
    }
}
