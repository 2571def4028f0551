//! The connections of the space's accounts, as the `$SYS` observer sees them, and kicks (EVC-1 to
//! EVC-6).
//!
//! Invariant: the connections to kick come from the observer's own complete census, never from a
//! caller. A principal is reported as gone only after a complete census that followed the kicks saw
//! no connection of it. The kick credential is opened only for a kick.

mod connz;
mod error;
pub(crate) mod kick_authority;
mod owner;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cotal_nats::Connection;
use cotal_rules::eviction::{self, SeenConnection};
use cotal_wire::control::{Eviction, LiveState, PrincipalLiveness};
use cotal_wire::names::sys;
use cotal_wire::{Principal, Role, Space};
use cotal_workspace::{Secret, SecretKind, SecretStore};
use serde_json::json;
use tracing::{info, warn};

use crate::credentials;
use crate::lane::context::LaneContext;
use crate::lane::options::LaneOptions;
use connz::ANSWER_WITHIN;
pub(crate) use connz::{Detail, Taken};
pub(crate) use error::ScanError;
use kick_authority::{KickAuthority, Kicks};
use owner::CensusOwner;

/// How long a kicked connection may take to leave the census.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// How long a kicked client may take to reconnect: a scan before that would not see it.
const BACK_WITHIN: Duration = Duration::from_millis(500);
/// Between two scans that wait for kicked connections to leave.
const RESCAN_EVERY: Duration = Duration::from_millis(100);
/// Scans in a row, if connections opened or closed during one.
const MAX_SCANS: usize = 3;

/// The result of one scan.
struct Scan {
    seen: Vec<SeenConnection>,
    /// Why the scan proves nobody gone; `None` if it does.
    incomplete: Option<String>,
}

impl Scan {
    fn of(taken: &Taken) -> Self {
        let seen = taken.connected.iter().map(|connected| connected.seen.clone()).collect();
        Self { seen, incomplete: taken.incomplete.as_ref().map(ToString::to_string) }
    }
}

/// Scans and kicks for one lane; cheap to clone.
#[derive(Clone)]
pub(crate) struct Scanner {
    owner: Arc<CensusOwner>,
    kicks: Kicks,
}

/// How one eviction kicks.
enum Kicker {
    /// The lane's own kick credential.
    Own(Connection),
    /// With credentials that the host signs.
    Host(Arc<dyn KickAuthority>),
    /// Not at all: whatever connects with a revoked credential is closed by the broker, nothing
    /// else is.
    Nobody,
}

impl Scanner {
    /// Starts the owner of the census of these accounts; every scan asks that one.
    pub(crate) fn spawn(context: &LaneContext, options: &LaneOptions, accounts: &[String]) -> Self {
        let LaneOptions { space, server, tls, store, kicks, .. } = options.clone();
        let owner = Arc::new(CensusOwner::new(space, accounts.to_vec(), store, server, tls));
        context.spawn("the census", Arc::clone(&owner).run(context.stop.clone()));
        Self { owner, kicks }
    }

    /// Whose connections are scanned.
    pub(crate) fn space(&self) -> &Space {
        &self.owner.space
    }

    /// The accounts that are scanned.
    pub(crate) fn accounts(&self) -> &[String] {
        &self.owner.accounts
    }

    /// Where the space's credentials are kept.
    pub(crate) fn store(&self) -> &Arc<dyn SecretStore> {
        &self.owner.store
    }

    /// Says that no census is wanted for a while, so that no connection stands for it.
    pub(crate) async fn rest(&self) {
        self.owner.rest().await;
    }

    /// A census that began after the call, shared by all who wait for one.
    pub(crate) async fn census(&self, detail: Detail) -> Result<Arc<Taken>, ScanError> {
        self.owner.take(detail).await
    }

    /// Evicts every connection of each principal: one census, the kicks, and one census that proves
    /// all of them gone.
    pub(crate) async fn evict(&self, principals: &[Principal]) -> Result<Vec<Eviction>, ScanError> {
        let kicker = self.kicker().await?;
        let before = self.scan().await?;
        let wanted: BTreeSet<_> = principals.iter().collect();
        let is_target = |seen: &&SeenConnection| is_of(seen, &wanted);
        let targets: Vec<SeenConnection> = before.seen.iter().filter(is_target).cloned().collect();
        let kicked = match &kicker {
            Kicker::Own(evictor) => {
                for target in &targets {
                    self.kick(evictor, target).await;
                }
                targets.clone()
            }
            Kicker::Host(authority) if !targets.is_empty() => {
                self.kick_by_host(authority, &targets).await?
            }
            Kicker::Host(_) | Kicker::Nobody => Vec::new(),
        };
        let after = match targets.is_empty() {
            true => before,
            false => self.verify(&wanted).await?,
        };
        let stay = after.seen.iter().filter(is_target).count();
        match kicker {
            Kicker::Own(evictor) => evictor.close(ANSWER_WITHIN).await,
            Kicker::Nobody if stay > 0 => return Err(ScanError::NobodyKicks { stay }),
            Kicker::Host(_) | Kicker::Nobody => {}
        }
        let result =
            |principal: &Principal| self.judge(principal, count(kicked.iter(), principal), &after);
        Ok(principals.iter().map(result).collect())
    }

    async fn kicker(&self) -> Result<Kicker, ScanError> {
        match &self.kicks {
            Kicks::Host(Some(authority)) => Ok(Kicker::Host(Arc::clone(authority))),
            Kicks::Host(None) => Ok(Kicker::Nobody),
            Kicks::Own if credentials::kicks_are_the_hosts(&**self.store(), self.space())? => {
                Ok(Kicker::Nobody)
            }
            Kicks::Own => {
                let what = "kick credential";
                let source = self.owner.stored(&SecretKind::ConnectionEvictor).await?;
                let name = format!("cotal-delivery {} {what}", self.space());
                Ok(Kicker::Own(self.owner.dial(name, source, what).await?))
            }
        }
    }

    /// Kicks on behalf of the lane. The host's own complete census of the account decides which of
    /// the lane's targets are kicked, each with a credential that was signed for that kick (EVC-5).
    /// Returns the kicked ones.
    async fn kick_by_host(
        &self,
        authority: &Arc<dyn KickAuthority>,
        targets: &[SeenConnection],
    ) -> Result<Vec<SeenConnection>, ScanError> {
        let listed = self.census_by_host(authority).await?;
        let listed: BTreeSet<SeenConnection> = listed.seen.into_iter().collect();
        let mut kicked = Vec::new();
        for target in targets.iter().filter(|target| listed.contains(target)) {
            let server = target.server.clone();
            let evictor = self
                .signed(authority, "host kick", move |by, space| by.kick_only(space, &server))
                .await?;
            self.kick(&evictor, target).await;
            evictor.close(ANSWER_WITHIN).await;
            kicked.push(target.clone());
        }
        Ok(kicked)
    }

    /// The host's own census, by an observer that is signed for it; complete, or an error.
    async fn census_by_host(&self, authority: &Arc<dyn KickAuthority>) -> Result<Scan, ScanError> {
        let (what, accounts) = ("host census", self.accounts().to_vec());
        let sign = move |by: &dyn KickAuthority, space: &Space| by.observer(space, &accounts);
        let observer = self.signed(authority, what, sign).await?;
        let take = || async {
            let taken = connz::take(&observer, self.accounts(), Detail::Who).await;
            let taken = taken.map_err(|source| ScanError::Broker { what, source })?;
            Ok(Scan::of(&taken))
        };
        let listed = self.complete(take).await;
        observer.close(ANSWER_WITHIN).await;
        match listed? {
            Scan { incomplete: Some(why), .. } => Err(ScanError::HostCensus(why)),
            listed => Ok(listed),
        }
    }

    /// A connection with a credential that is signed now, on a blocking thread.
    async fn signed(
        &self,
        authority: &Arc<dyn KickAuthority>,
        what: &'static str,
        sign: impl FnOnce(&dyn KickAuthority, &Space) -> Result<Secret, String> + Send + 'static,
    ) -> Result<Connection, ScanError> {
        let (authority, space) = (Arc::clone(authority), self.space().clone());
        let signed = tokio::task::spawn_blocking(move || sign(&*authority, &space)).await;
        let secret = signed.unwrap_or_else(|error| Err(error.to_string()));
        let source = secret.and_then(|secret| credentials::signed_for_now(&secret));
        let name = format!("cotal-delivery {} {what}", self.space());
        self.owner.dial(name, source.map_err(ScanError::NotSigned)?, what).await
    }

    fn judge(&self, principal: &Principal, kicked: u64, after: &Scan) -> Eviction {
        let remaining = count(after.seen.iter(), principal);
        let scan_complete = after.incomplete.is_none();
        let verified_gone = scan_complete && remaining == 0;
        info!(space = %self.space(), %principal, kicked, remaining, verified_gone, "eviction");
        Eviction {
            principal: principal.clone(),
            kicked,
            remaining,
            verified_gone,
            scan_complete,
            note: after.incomplete.clone(),
        }
    }

    /// Whether a principal has a live connection. The kick credential is not opened.
    pub(crate) async fn liveness(
        &self,
        principal: &Principal,
    ) -> Result<PrincipalLiveness, ScanError> {
        let scan = self.scan().await?;
        let scan_complete = scan.incomplete.is_none();
        let state: LiveState = eviction::liveness(principal, &scan.seen, scan_complete);
        Ok(PrincipalLiveness { principal: principal.clone(), state, scan_complete })
    }

    /// The roles in the tags of live connections, by principal.
    pub(crate) async fn roles(&self) -> Result<HashMap<Principal, BTreeSet<Role>>, ScanError> {
        let taken = self.census(Detail::Who).await?;
        let mut roles: HashMap<Principal, BTreeSet<Role>> = HashMap::new();
        for connected in &taken.connected {
            if let (Some(who), Some(role)) = (connected.principal(), &connected.role) {
                roles.entry(who.clone()).or_default().insert(role.clone());
            }
        }
        Ok(roles)
    }

    /// Waits until none of the kicked connections is left, or the deadline has passed; returns the
    /// last scan.
    async fn verify(&self, wanted: &BTreeSet<&Principal>) -> Result<Scan, ScanError> {
        let deadline = tokio::time::Instant::now() + GONE_WITHIN;
        tokio::time::sleep(BACK_WITHIN).await;
        loop {
            let scan = self.scan().await?;
            let stay = scan.seen.iter().any(|seen| is_of(seen, wanted));
            let proven = !stay && scan.incomplete.is_none();
            if proven || tokio::time::Instant::now() >= deadline {
                return Ok(scan);
            }
            tokio::time::sleep(RESCAN_EVERY).await;
        }
    }

    /// The broker ignores a kick without a reply subject. The reply proves nothing, so nobody waits
    /// for it.
    async fn kick(&self, evictor: &Connection, target: &SeenConnection) {
        let body = json!({ "cid": target.cid }).to_string();
        let reply = format!("{}.kick", evictor.inbox_prefix());
        let subject = sys::kick(&target.server);
        let kicked = evictor.publish_with_reply(subject, reply, None, body.into()).await;
        let flushed = evictor.flush().await;
        if let Err(error) = kicked.and(flushed) {
            warn!(space = %self.space(), %error, cid = target.cid, "a connection could not be kicked");
        }
    }

    async fn scan(&self) -> Result<Scan, ScanError> {
        let take = || async { Ok(Scan::of(&*self.census(Detail::Who).await?)) };
        self.complete(take).await
    }

    /// Takes a scan, repeated if connections opened or closed during it.
    async fn complete<F>(&self, take: impl Fn() -> F) -> Result<Scan, ScanError>
    where
        F: Future<Output = Result<Scan, ScanError>>,
    {
        let mut scan = take().await?;
        for _ in 1..MAX_SCANS {
            let Some(why) = &scan.incomplete else { break };
            warn!(space = %self.space(), %why, "the census is incomplete");
            scan = take().await?;
        }
        Ok(scan)
    }
}

fn is_of(seen: &SeenConnection, wanted: &BTreeSet<&Principal>) -> bool {
    seen.principal.as_ref().is_some_and(|principal| wanted.contains(principal))
}

fn count<'a>(seen: impl Iterator<Item = &'a SeenConnection>, principal: &Principal) -> u64 {
    seen.filter(|seen| seen.principal.as_ref() == Some(principal)).count() as u64
}
