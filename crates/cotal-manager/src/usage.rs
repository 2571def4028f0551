//! Who uses how much of a space's streams, and how it is freed.

use std::collections::BTreeMap;
use std::time::Duration;

use cotal_nats::{Connection, NatsError};
use cotal_wire::{ChannelPattern, Principal, Space};
use serde::Serialize;
use serde_json::Value;

use crate::authority::{Authority, BrokerAddress, Office};
use crate::error::{Doing, ManagerError};

/// How long a connection may take to close.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// How full a stream is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamUsage {
    /// Its name.
    pub stream: String,
    /// Messages stored.
    pub messages: u64,
    /// Bytes stored.
    pub bytes: u64,
    /// The most bytes that it takes; `None` for whatever the disk holds.
    pub cap: Option<u64>,
    /// Consumers bound.
    pub consumers: u64,
}

/// Messages of one agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentUsage {
    /// Posts that it sent and CHAT holds.
    pub posts: u64,
    /// Direct messages that it sent and DM holds.
    pub direct_messages: u64,
    /// Role requests that it sent and TASK holds.
    pub requests: u64,
    /// Entries that INBOX holds for it.
    pub routed: u64,
    /// Copies that DLV holds for it.
    pub delivered: u64,
    /// Bytes of all these, as far as messages of a stream are of one size: the broker counts bytes
    /// by stream alone.
    pub about_bytes: u64,
}

/// What a space uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// The streams.
    pub streams: Vec<StreamUsage>,
    /// Whoever has anything in them.
    pub agents: BTreeMap<Principal, AgentUsage>,
}

/// What was freed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Freed {
    /// Posts.
    pub posts: u64,
    /// Direct messages.
    pub direct_messages: u64,
    /// Role requests.
    pub requests: u64,
}

/// Whom a subject of a stream counts for.
type Whose = fn(&Space, &str) -> Option<Principal>;
/// What it counts as.
type As = fn(&mut AgentUsage) -> &mut u64;

/// How the subjects of a stream are counted.
struct Counted {
    stream: String,
    filter: String,
    whose: Whose,
    what: As,
}

/// Reads who uses how much.
///
/// # Errors
/// When the broker cannot be reached or does not say.
pub async fn usage(authority: &Authority, broker: &BrokerAddress) -> Result<Usage, ManagerError> {
    let (_, connection) = authority.connect(Office::Operator, broker).await?;
    let space = authority.space();
    let read = read(&connection, space).await;
    connection.close(CLOSE_WITHIN).await;
    read.doing(|| format!("read what space {space} uses"))
}

async fn read(connection: &Connection, space: &Space) -> Result<Usage, NatsError> {
    let mut usage = Usage::default();
    let counted = counted(space);
    for config in space.stream_configs(0, false) {
        let name = config.name;
        let info = match connection.stream_info(&name).await {
            Ok(info) => info,
            Err(NatsError::Absent { .. }) => continue,
            Err(error) => return Err(error),
        };
        let cap = info.config.rest.get("max_bytes").and_then(Value::as_u64).filter(|&cap| cap > 0);
        let (messages, bytes) = (info.state.messages, info.state.bytes);
        let consumers = info.state.consumer_count;
        let each = bytes.checked_div(messages).unwrap_or(0);
        if let Some(of) = counted.iter().find(|of| of.stream == name) {
            count(connection, space, of, each, &mut usage.agents).await?;
        }
        usage.streams.push(StreamUsage { stream: name, messages, bytes, cap, consumers });
    }
    Ok(usage)
}

fn counted(space: &Space) -> [Counted; 5] {
    let one = |stream, filter, whose, what| Counted { stream, filter, whose, what };
    [
        one(
            space.chat_stream(),
            space.chat_all(),
            |space, subject| space.parse_chat(subject).map(|(sender, _)| sender),
            |agent| &mut agent.posts,
        ),
        one(
            space.dm_stream(),
            space.inst_all(),
            |space, subject| space.parse_inst(subject).map(|(_, sender)| sender),
            |agent| &mut agent.direct_messages,
        ),
        one(
            space.task_stream(),
            space.svc_all(),
            |space, subject| space.parse_svc(subject).map(|(_, sender)| sender),
            |agent| &mut agent.requests,
        ),
        one(
            space.inbox_stream(),
            space.dinbox_all(),
            |space, subject| space.parse_dinbox(subject).map(|of| of.principal),
            |agent| &mut agent.routed,
        ),
        one(
            space.dlv_stream(),
            space.dlv_all(),
            |space, subject| space.parse_dlv(subject).map(|of| of.principal),
            |agent| &mut agent.delivered,
        ),
    ]
}

async fn count(
    connection: &Connection,
    space: &Space,
    of: &Counted,
    each: u64,
    agents: &mut BTreeMap<Principal, AgentUsage>,
) -> Result<(), NatsError> {
    let mut offset = 0;
    loop {
        let page = connection.stream_info_subjects(&of.stream, &of.filter, offset).await?;
        let got = page.subjects.len() as u64;
        for (subject, messages) in page.subjects {
            if let Some(agent) = (of.whose)(space, &subject) {
                let usage = agents.entry(agent).or_default();
                *(of.what)(usage) += messages;
                usage.about_bytes += messages * each;
            }
        }
        offset += got;
        if got == 0 || offset >= page.total {
            return Ok(());
        }
    }
}

/// Removes what an agent sent from CHAT, DM and TASK, whoever has not read it yet. It needs no room
/// in any stream, so it works on a broker that is full.
///
/// # Errors
/// When the broker cannot be reached or does not do it; running it again continues.
pub async fn free(
    authority: &Authority,
    broker: &BrokerAddress,
    agent: &Principal,
) -> Result<Freed, ManagerError> {
    let (_, connection) = authority.connect(Office::Janitor, broker).await?;
    let freed = purge(&connection, authority.space(), agent).await;
    connection.close(CLOSE_WITHIN).await;
    freed.doing(|| format!("remove what {agent} sent"))
}

async fn purge(
    connection: &Connection,
    space: &Space,
    agent: &Principal,
) -> Result<Freed, NatsError> {
    let all = |stream: String, filter: String| async move {
        connection.purge_stream(&stream, Some(&filter)).await
    };
    let mut freed = Freed::default();
    if let Ok(everywhere) = ChannelPattern::parse(">") {
        freed.posts = all(space.chat_stream(), space.chat_posts(agent, &everywhere)).await?;
    }
    freed.direct_messages = all(space.dm_stream(), space.inst_from(agent)).await?;
    freed.requests = all(space.task_stream(), space.svc_from(agent)).await?;
    Ok(freed)
}
