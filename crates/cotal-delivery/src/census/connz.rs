//! One census: every connection of some accounts, asked of every server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cotal_nats::{Connection, Message, NatsError};
use cotal_rules::eviction::{self, Census, Incomplete, PAGE, Page, SeenConnection};
use cotal_wire::names::{SYS_PING, sys};
use cotal_wire::{Principal, Role};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

/// How long servers may take to answer one question.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long they may take for a page: a thousand connections come with their whole JWTs.
const PAGE_WITHIN: Duration = Duration::from_secs(5);
/// Most connections that one census reads.
const MAX_CONNECTIONS: usize = 1_000_000;

/// What a census tells about each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Detail {
    /// Whose it is.
    Who,
    /// That, and what it is subscribed to.
    Subscriptions,
}

/// A census that was taken.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Before its first question was asked: whoever is absent was absent at some moment since.
    pub(super) began: Instant,
    pub(super) detail: Detail,
    pub(super) connected: Vec<Connected>,
    /// Why it proves no absence.
    pub(super) incomplete: Option<Incomplete>,
}

impl Taken {
    /// Why it proves no absence.
    pub(crate) fn incomplete(&self) -> Option<&Incomplete> {
        self.incomplete.as_ref()
    }

    /// The connections that it saw.
    pub(crate) fn connected(&self) -> &[Connected] {
        &self.connected
    }
}

/// One live connection.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(super) seen: SeenConnection,
    /// The role that its credential names.
    pub(super) role: Option<Role>,
    /// Whether an agent's credential made it.
    pub(crate) is_agent: bool,
    /// Empty where they were not asked for.
    pub(crate) subscriptions: Vec<String>,
}

impl Connected {
    /// Whose it is, when it says so.
    pub(crate) fn principal(&self) -> Option<&Principal> {
        self.seen.principal.as_ref()
    }
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
    #[serde(default)]
    subscriptions_list: Vec<String>,
}

impl ConnInfo {
    fn read(self, server: &str) -> Connected {
        let role = self.tags.iter().find_map(|tag| tag.strip_prefix("role:"));
        Connected {
            seen: SeenConnection {
                server: server.to_owned(),
                cid: self.cid,
                principal: eviction::attribute(&self.tags, self.authorized_user.as_deref()),
            },
            role: role.and_then(|role| Role::parse(role).ok()),
            is_agent: self.tags.iter().any(|tag| tag.starts_with("lifecycle:")),
            subscriptions: self.subscriptions_list,
        }
    }
}

/// Takes one census of all of `accounts`; it proves an absence only where each was complete.
///
/// # Errors
/// When the broker cannot be asked.
pub(super) async fn take(
    observer: &Connection,
    accounts: &[String],
    detail: Detail,
) -> Result<Taken, NatsError> {
    let began = Instant::now();
    let mut connected = BTreeMap::new();
    let mut incomplete = None;
    let (servers, active) = servers(observer).await?;
    for account in accounts {
        let census = Census::new(servers.iter().cloned(), active);
        let census = pages(observer, account, detail, census, &mut connected).await?;
        incomplete = incomplete.or(census.complete().err());
    }
    let connected = connected.into_values().collect();
    Ok(Taken { began, detail, connected, incomplete })
}

/// The servers that answer, and how many the mesh shows active.
async fn servers(observer: &Connection) -> Result<(Vec<String>, u64), NatsError> {
    let pongs =
        observer.request_many(SYS_PING, Default::default(), ANSWER_WITHIN, all_pongs).await?;
    let pongs: Vec<Pong> = pongs.iter().filter_map(parse).collect();
    let active = pongs.iter().map(|pong| pong.statsz.active_servers).max().unwrap_or_default();
    Ok((pongs.into_iter().map(|pong| pong.server.id).collect(), active))
}

/// Asks for page after page until none is wanted.
async fn pages(
    observer: &Connection,
    account: &str,
    detail: Detail,
    mut census: Census,
    connected: &mut BTreeMap<(String, u64), Connected>,
) -> Result<Census, NatsError> {
    let mut seen = 0;
    while let Some((offset, owing)) = census.wanted() {
        let body = json!({
            "auth": true, "subscriptions": detail == Detail::Subscriptions, "sort": "cid",
            "offset": offset, "limit": PAGE,
        });
        let answered = |replies: &[Message]| {
            let pages = replies.iter().filter_map(parse::<Answered>);
            let servers: BTreeSet<String> = pages.map(|page| page.server.id).collect();
            owing.is_subset(&servers)
        };
        let (subject, body) = (sys::connz(account), body.to_string().into());
        let replies = observer.request_many(subject, body, PAGE_WITHIN, answered).await?;
        for page in replies.iter().filter_map(parse::<Connz>) {
            let (page, read) = split(page);
            seen += read.len();
            census.page(page);
            connected.extend(read.into_iter().map(|c| ((c.seen.server.clone(), c.seen.cid), c)));
        }
        if census.wanted() == Some((offset, owing)) || seen > MAX_CONNECTIONS {
            break;
        }
    }
    Ok(census)
}

/// Whose answer a page is; the rest of it is read once.
#[derive(Deserialize)]
struct Answered {
    server: ServerId,
}

fn split(page: Connz) -> (Page, Vec<Connected>) {
    let server = page.server.id;
    let read = page.data.connections.into_iter().map(|info| info.read(&server));
    let read: Vec<Connected> = read.collect();
    let connections = read.iter().map(|connected| connected.seen.clone()).collect();
    let (offset, total) = (page.data.offset, page.data.total);
    (Page { server, offset, total, connections }, read)
}

fn parse<T: for<'a> Deserialize<'a>>(message: &Message) -> Option<T> {
    serde_json::from_slice(&message.payload).ok()
}

/// Whether as many servers have answered as the mesh shows active.
fn all_pongs(replies: &[Message]) -> bool {
    let pongs: Vec<Pong> = replies.iter().filter_map(parse).collect();
    let active = pongs.iter().map(|pong| pong.statsz.active_servers).max();
    active.is_some_and(|active| active > 0 && pongs.len() as u64 >= active)
}
