//! The connections of the space's accounts, as the `$SYS` observer sees them, and kicks (EVC-1 to
//! EVC-6).
//!
//! Invariant: the connections to kick come from the observer's own complete census, never from a
//! caller. A principal is reported as gone only after a complete census that followed the kicks saw
//! no connection of it. The kick credential is opened only for a kick.

pub(crate) mod kick_authority;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{ConnectOptions, Connection, CredsSource, Message, NatsError, TlsMode};
use cotal_rules::eviction::{self, Census, PAGE, Page, SeenConnection};
use cotal_wire::control::{Eviction, LiveState, PrincipalLiveness};
use cotal_wire::names::{SYS_PING, sys};
use cotal_wire::{Principal, Role, Space};
use cotal_workspace::{Secret, SecretKind, SecretStore};
use serde::Deserialize;
use serde_json::json;
use tracing::{info, warn};

use crate::credentials::{self, CredentialError};
use crate::lane::options::LaneOptions;
use kick_authority::{KickAuthority, Kicks};

/// How long servers may take to answer a request.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long they may take for a page: it has up to a thousand connections, each with its whole JWT.
const PAGE_WITHIN: Duration = Duration::from_secs(5);
/// How long a kicked connection may take to leave the census.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// How long a kicked client may take to reconnect: a scan before that would not see it.
const BACK_WITHIN: Duration = Duration::from_millis(500);
/// Between two scans that wait for kicked connections to leave.
const RESCAN_EVERY: Duration = Duration::from_millis(100);
/// Scans in a row, if connections opened or closed during one.
const MAX_SCANS: usize = 3;
/// Most connections that one census reads.
const MAX_CONNECTIONS: usize = 1_000_000;

/// Why a census or a kick was not possible.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScanError {
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("the {what} cannot be used: {source}")]
    Broker { what: &'static str, source: NatsError },
    #[error(
        "{stay} connections are left, and this daemon may not kick them: the broker hosts several \
         spaces, so only a host (`cotal deliver --spaces`) kicks, on a root that retained the \
         system account's seed"
    )]
    NobodyKicks { stay: usize },
    #[error("the host cannot sign the credential for a kick: {0}")]
    NotSigned(String),
    #[error(
        "the host kicks no connection, because its own census of the account is incomplete: {0}"
    )]
    HostCensus(String),
}

/// The result of one scan.
struct Scan {
    seen: Vec<SeenConnection>,
    /// Why the scan proves nobody gone; `None` if it does.
    incomplete: Option<String>,
}

/// Scans and kicks for one lane.
#[derive(Clone)]
pub(crate) struct Scanner {
    pub(crate) space: Space,
    /// The accounts that the space's users are in.
    accounts: Vec<String>,
    server: String,
    tls: TlsMode,
    pub(crate) store: Arc<dyn SecretStore>,
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

#[derive(Deserialize)]
struct Pong {
    server: ServerId,
    statsz: Stats,
}

#[derive(Deserialize)]
struct ServerId {
    id: String,
}

#[derive(Deserialize)]
struct Stats {
    #[serde(default)]
    active_servers: u64,
}

#[derive(Deserialize)]
struct Connz {
    server: ServerId,
    data: ConnzData,
}

#[derive(Deserialize)]
struct ConnzData {
    total: u64,
    offset: u64,
    #[serde(default)]
    connections: Vec<ConnInfo>,
}

#[derive(Deserialize)]
struct ConnInfo {
    cid: u64,
    authorized_user: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    /// Only if they were requested.
    #[serde(default)]
    subscriptions_list: Vec<String>,
}

/// One live connection and its subscriptions.
pub(crate) struct Reader {
    pub(crate) principal: Principal,
    /// Whether it uses an agent's credential.
    pub(crate) is_agent: bool,
    pub(crate) subscriptions: Vec<String>,
}

impl Scanner {
    /// A scanner of these accounts, with connections of its own.
    pub(crate) fn new(options: &LaneOptions, accounts: &[String]) -> Self {
        let LaneOptions { space, server, tls, store, kicks, .. } = options.clone();
        Self { space, accounts: accounts.to_vec(), server, tls, store, kicks }
    }

    /// Evicts every connection of each principal: one census, the kicks, and one census that proves
    /// all of them gone.
    pub(crate) async fn evict(&self, principals: &[Principal]) -> Result<Vec<Eviction>, ScanError> {
        let kicker = self.kicker().await?;
        let observer = self.open(&SecretKind::MembershipObserver, "observer credential").await?;
        let before = self.scan(&observer).await?;
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
            false => self.verify(&observer, &wanted).await?,
        };
        observer.close(ANSWER_WITHIN).await;
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
            Kicks::Own if credentials::kicks_are_the_hosts(&*self.store, &self.space)? => {
                Ok(Kicker::Nobody)
            }
            Kicks::Own => {
                let evictor = self.open(&SecretKind::ConnectionEvictor, "kick credential").await?;
                Ok(Kicker::Own(evictor))
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
        let accounts = self.accounts.clone();
        let observer = self
            .signed(authority, "host census", move |by, space| by.observer(space, &accounts))
            .await?;
        let listed = self.scan(&observer).await;
        observer.close(ANSWER_WITHIN).await;
        let listed = listed?;
        if let Some(why) = listed.incomplete {
            return Err(ScanError::HostCensus(why));
        }
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

    /// A connection with a credential that is signed now, on a blocking thread.
    async fn signed(
        &self,
        authority: &Arc<dyn KickAuthority>,
        what: &'static str,
        sign: impl FnOnce(&dyn KickAuthority, &Space) -> Result<Secret, String> + Send + 'static,
    ) -> Result<Connection, ScanError> {
        let (authority, space) = (Arc::clone(authority), self.space.clone());
        let signed = tokio::task::spawn_blocking(move || sign(&*authority, &space)).await;
        let secret = signed.unwrap_or_else(|error| Err(error.to_string()));
        let source = secret.and_then(|secret| credentials::signed_for_now(&secret));
        let name = format!("cotal-delivery {} {what}", self.space);
        self.dial(name, source.map_err(ScanError::NotSigned)?, what).await
    }

    fn judge(&self, principal: &Principal, kicked: u64, after: &Scan) -> Eviction {
        let remaining = count(after.seen.iter(), principal);
        let scan_complete = after.incomplete.is_none();
        let verified_gone = scan_complete && remaining == 0;
        info!(space = %self.space, %principal, kicked, remaining, verified_gone, "eviction");
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
        let observer = self.open(&SecretKind::MembershipObserver, "observer credential").await?;
        let scan = self.scan(&observer).await?;
        observer.close(ANSWER_WITHIN).await;
        let scan_complete = scan.incomplete.is_none();
        let state: LiveState = eviction::liveness(principal, &scan.seen, scan_complete);
        Ok(PrincipalLiveness { principal: principal.clone(), state, scan_complete })
    }

    /// The roles in the tags of live connections, by principal.
    pub(crate) async fn roles(&self) -> Result<HashMap<Principal, BTreeSet<Role>>, ScanError> {
        let what = "observer credential";
        let observer = self.open(&SecretKind::MembershipObserver, what).await?;
        let mut roles: HashMap<Principal, BTreeSet<Role>> = HashMap::new();
        let mut note = |info: &mut ConnInfo| {
            let who = eviction::attribute(&info.tags, info.authorized_user.as_deref());
            let role = info.tags.iter().find_map(|tag| tag.strip_prefix("role:"));
            if let (Some(who), Some(Ok(role))) = (who, role.map(Role::parse)) {
                roles.entry(who).or_default().insert(role);
            }
        };
        let mut taken = Ok(());
        for account in &self.accounts {
            taken = taken.and(self.census(&observer, account, false, &mut note).await.map(drop));
        }
        observer.close(ANSWER_WITHIN).await;
        taken.map_err(|source| ScanError::Broker { what, source })?;
        Ok(roles)
    }

    /// The accounts that are scanned.
    pub(crate) fn accounts(&self) -> &[String] {
        &self.accounts
    }

    /// Who is connected and subscribed to what, or why the census is incomplete.
    pub(crate) async fn readers(&self) -> Result<Result<Vec<Reader>, String>, ScanError> {
        let what = "observer credential";
        let observer = self.open(&SecretKind::MembershipObserver, what).await?;
        let mut readers = Vec::new();
        let mut note = |info: &mut ConnInfo| {
            let principal = eviction::attribute(&info.tags, info.authorized_user.as_deref());
            readers.extend(principal.map(|principal| Reader {
                principal,
                is_agent: info.tags.iter().any(|tag| tag.starts_with("lifecycle:")),
                subscriptions: std::mem::take(&mut info.subscriptions_list),
            }));
        };
        let (mut incomplete, mut failed) = (None, None);
        for account in &self.accounts {
            match self.census(&observer, account, true, &mut note).await {
                Ok(taken) => incomplete = incomplete.or(taken.complete().err()),
                Err(source) => failed = failed.or(Some(ScanError::Broker { what, source })),
            }
        }
        observer.close(ANSWER_WITHIN).await;
        match failed {
            Some(error) => Err(error),
            None => Ok(incomplete.map_or(Ok(readers), |why| Err(why.to_string()))),
        }
    }

    async fn open(&self, kind: &SecretKind, what: &'static str) -> Result<Connection, ScanError> {
        let (kind, accounts) = (kind.clone(), self.accounts.clone());
        let source = credentials::ask_store(&self.store, &self.space, move |store, space| {
            credentials::system(store, space, &kind, &accounts)
        });
        let source = source.await?;
        let name = format!("cotal-delivery {} {what}", self.space);
        self.dial(name, source, what).await
    }

    async fn dial(
        &self,
        name: String,
        source: CredsSource,
        what: &'static str,
    ) -> Result<Connection, ScanError> {
        let options = ConnectOptions::new(self.server.as_str(), name, source).tls(self.tls.clone());
        Connection::connect(options).await.map_err(|source| ScanError::Broker { what, source })
    }

    /// Waits until none of the kicked connections is left, or the deadline has passed; returns the
    /// last scan.
    async fn verify(
        &self,
        observer: &Connection,
        wanted: &BTreeSet<&Principal>,
    ) -> Result<Scan, ScanError> {
        let deadline = tokio::time::Instant::now() + GONE_WITHIN;
        tokio::time::sleep(BACK_WITHIN).await;
        loop {
            let scan = self.scan(observer).await?;
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
            warn!(space = %self.space, %error, cid = target.cid, "a connection could not be kicked");
        }
    }

    /// One scan of every account; it proves an absence only if the scan of each account was
    /// complete.
    async fn scan(&self, observer: &Connection) -> Result<Scan, ScanError> {
        let mut all = Scan { seen: Vec::new(), incomplete: None };
        for account in &self.accounts {
            let scan = self.scan_one(observer, account).await?;
            all.seen.extend(scan.seen);
            all.incomplete = all.incomplete.or(scan.incomplete);
        }
        Ok(all)
    }

    /// One scan of an account, repeated if connections opened or closed during it.
    async fn scan_one(&self, observer: &Connection, account: &str) -> Result<Scan, ScanError> {
        let broken = |source| ScanError::Broker { what: "observer credential", source };
        let mut scan = Scan { seen: Vec::new(), incomplete: Some("not scanned".to_owned()) };
        for _ in 0..MAX_SCANS {
            let census = self.census(observer, account, false, |_| {}).await.map_err(broken)?;
            match census.complete() {
                Ok(seen) => return Ok(Scan { seen, incomplete: None }),
                Err(why) => {
                    warn!(space = %self.space, %why, "the census is incomplete");
                    scan =
                        Scan { seen: census.seen().collect(), incomplete: Some(why.to_string()) };
                }
            }
        }
        Ok(scan)
    }

    async fn census(
        &self,
        observer: &Connection,
        account: &str,
        subscriptions: bool,
        mut note: impl FnMut(&mut ConnInfo),
    ) -> Result<Census, NatsError> {
        let pongs =
            observer.request_many(SYS_PING, Default::default(), ANSWER_WITHIN, all_pongs).await?;
        let pongs: Vec<Pong> = pongs.iter().filter_map(parse).collect();
        let active = pongs.iter().map(|pong| pong.statsz.active_servers).max().unwrap_or_default();
        let mut census = Census::new(pongs.into_iter().map(|pong| pong.server.id), active);
        let mut seen = 0;
        while let Some((offset, owing)) = census.wanted() {
            let before = census.wanted();
            let body = json!({
                "auth": true, "subscriptions": subscriptions, "sort": "cid", "offset": offset,
                "limit": PAGE,
            });
            let answered = |replies: &[Message]| {
                let pages = replies.iter().filter_map(parse::<Connz>);
                let servers: BTreeSet<String> = pages.map(|page| page.server.id).collect();
                owing.is_subset(&servers)
            };
            let subject = sys::connz(account);
            let body = body.to_string().into();
            let pages = observer.request_many(subject, body, PAGE_WITHIN, answered).await?;
            for mut page in pages.iter().filter_map(parse::<Connz>) {
                page.data.connections.iter_mut().for_each(&mut note);
                let page = self.page(page);
                seen += page.connections.len();
                census.page(page);
            }
            if census.wanted() == before || seen > MAX_CONNECTIONS {
                break;
            }
        }
        Ok(census)
    }

    fn page(&self, page: Connz) -> Page {
        let server = page.server.id;
        let seen = |info: ConnInfo| SeenConnection {
            server: server.clone(),
            cid: info.cid,
            principal: eviction::attribute(&info.tags, info.authorized_user.as_deref()),
        };
        let connections = page.data.connections.into_iter().map(seen).collect();
        Page {
            offset: page.data.offset,
            total: page.data.total,
            connections,
            server: server.clone(),
        }
    }
}

fn is_of(seen: &SeenConnection, wanted: &BTreeSet<&Principal>) -> bool {
    seen.principal.as_ref().is_some_and(|principal| wanted.contains(principal))
}

fn count<'a>(seen: impl Iterator<Item = &'a SeenConnection>, principal: &Principal) -> u64 {
    seen.filter(|seen| seen.principal.as_ref() == Some(principal)).count() as u64
}

fn parse<T: for<'a> Deserialize<'a>>(message: &Message) -> Option<T> {
    serde_json::from_slice(&message.payload).ok()
}

/// Whether as many servers have answered as the mesh shows as active.
fn all_pongs(replies: &[Message]) -> bool {
    let pongs: Vec<Pong> = replies.iter().filter_map(parse).collect();
    let active = pongs.iter().map(|pong| pong.statsz.active_servers).max();
    active.is_some_and(|active| active > 0 && pongs.len() as u64 >= active)
}
