//! `cotal pending`: what waits, for whom, how old, and why.

use std::collections::BTreeSet;

use cotal_manager::rows::AclRows;
use cotal_manager::{Authority, Office, Rail};
use cotal_nats::{Connection, Get};
use cotal_wire::control::{WaitingArgs, WaitingEntries, op};
use cotal_wire::rows::DeadState;
use cotal_wire::{Lifecycle, Principal, Space};
use serde::Serialize;

use super::dead::{self, reason_text};
use crate::args::{JsonArg, MeshArgs};
use crate::context::{Context, Target};
use crate::exit::{Exit, Failure};
use crate::output::age;

/// Lists what is waiting.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
waiting  in the trusted reader, which tries it again by itself
parked   recorded outside the reader's slots, and tried again from there
unread   handed off; the member has not acknowledged it (one line a member)

Examples:
  cotal pending
  cotal pending --member bob --json")]
pub struct Args {
    /// Only this agent's.
    #[arg(long, value_name = "NAME")]
    member: Option<String>,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// One line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pending {
    state: &'static str,
    member: Principal,
    /// INBOX sequence of an entry; absent for unread copies, which are counted.
    seq: Option<u64>,
    channel: Option<String>,
    count: u64,
    reason: &'static str,
    attempts: u64,
    /// Since when, Unix milliseconds.
    since: i64,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let member = args.member.as_deref().map(crate::context::principal).transpose()?;
    let target = ctx.target(&args.mesh)?;
    target.demand_authenticated("waiting entries")?;
    let mut all = waiting(&target, member.as_ref()).await?;
    let (_, operator) = target.operator().await?;
    all.extend(parked(&operator, &target.space, member.as_ref()).await?);
    let (unread, agents) = unread(&target, &operator, member.as_ref()).await?;
    all.extend(unread);
    if let Some(member) = member.filter(|member| all.is_empty() && !agents.contains(member)) {
        let message = format!(
            "{member} was never an agent of space {}: `cotal agent list` shows who is",
            target.space
        );
        return Err(Failure::new(Exit::Absent, message).into());
    }
    all.sort_by_key(|pending| pending.since);
    if args.output.json {
        ctx.out.json(&all)?;
        return Ok(Exit::Ok);
    }
    let heading = ["STATE", "MEMBER", "COUNT", "CHANNEL", "AGE", "WHY", "ATTEMPTS", "ENTRY"];
    let rows: Vec<_> = all.iter().map(as_row).collect();
    ctx.out.table(&heading, &rows, "nothing is waiting")?;
    Ok(Exit::Ok)
}

fn as_row(pending: &Pending) -> Vec<String> {
    vec![
        pending.state.to_owned(),
        pending.member.to_string(),
        pending.count.to_string(),
        pending.channel.clone().unwrap_or_else(|| "-".to_owned()),
        age(pending.since),
        pending.reason.to_owned(),
        pending.attempts.to_string(),
        pending.seq.map_or("-".to_owned(), |seq| seq.to_string()),
    ]
}

/// What waits in the daemon's reader: only the daemon knows.
async fn waiting(target: &Target, member: Option<&Principal>) -> anyhow::Result<Vec<Pending>> {
    let authority = Authority::open(&target.root, &target.space)?;
    let (own, connection) = authority.connect(Office::Supervisor, &target.address()).await?;
    let rail = Rail::new(&connection, &target.space, &own);
    let mut all = Vec::new();
    let mut args = WaitingArgs { member: member.cloned(), after: 0 };
    loop {
        let page = rail.admin(op::WAITING_ENTRIES, serde_json::to_value(&args)?).await?;
        let page: WaitingEntries = serde_json::from_value(page)?;
        args.after = page.entries.last().map_or(args.after, |last| last.seq);
        all.extend(page.entries.into_iter().map(|entry| Pending {
            state: "waiting",
            member: entry.member,
            seq: Some(entry.seq),
            channel: Some(entry.channel.to_string()),
            count: 1,
            reason: reason_text(entry.reason),
            attempts: entry.attempts,
            since: entry.first_at,
        }));
        if !page.more {
            return Ok(all);
        }
    }
}

async fn parked(
    operator: &Connection,
    space: &Space,
    member: Option<&Principal>,
) -> anyhow::Result<Vec<Pending>> {
    let dead = dead::read(operator, space).await?;
    let mine = dead.rows.into_iter().filter(|(row, _)| {
        row.state == DeadState::Parked && member.is_none_or(|member| *member == row.owner)
    });
    Ok(mine
        .map(|(row, _)| Pending {
            state: "parked",
            reason: reason_text(row.reason),
            seq: Some(row.seq),
            channel: Some(row.channel.to_string()),
            count: 1,
            attempts: row.attempts,
            since: row.first_at,
            member: row.owner,
        })
        .collect())
}

/// Copies that were handed off and are not acknowledged, by member; and who was ever provisioned.
async fn unread(
    target: &Target,
    operator: &Connection,
    member: Option<&Principal>,
) -> anyhow::Result<(Vec<Pending>, BTreeSet<Principal>)> {
    let authority = Authority::open(&target.root, &target.space)?;
    let (_, supervisor) = authority.connect(Office::Supervisor, &target.address()).await?;
    let acl = AclRows::read(&supervisor, &target.space).await?;
    let mut all = Vec::new();
    for (lifecycle, _) in acl.live() {
        if member.is_none_or(|member| *member == lifecycle.principal) {
            all.extend(unread_of(lifecycle, &target.space, &supervisor, operator).await?);
        }
    }
    let agents = acl.rows.keys().chain(&acl.garbled);
    Ok((all, agents.map(|lifecycle| lifecycle.principal.clone()).collect()))
}

async fn unread_of(
    lifecycle: &Lifecycle,
    space: &Space,
    supervisor: &Connection,
    operator: &Connection,
) -> anyhow::Result<Option<Pending>> {
    let stream = space.dlv_stream();
    let info = match supervisor.consumer_info(&stream, &space.dlv_consumer(lifecycle)).await {
        Ok(info) => info,
        Err(error) if error.is_absent() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let count = info.num_pending + info.num_ack_pending;
    if count == 0 {
        return Ok(None);
    }
    let subject = space.dlv(lifecycle);
    let oldest = Get::NextBySubject { seq: info.ack_floor.stream_seq + 1, subject: &subject };
    let Some(oldest) = operator.get_message(&stream, oldest).await? else { return Ok(None) };
    let since = oldest.time.unix_timestamp_nanos() / 1_000_000;
    Ok(Some(Pending {
        state: "unread",
        member: lifecycle.principal.clone(),
        seq: None,
        channel: None,
        count,
        reason: "not acknowledged by the member",
        attempts: 0,
        since: i64::try_from(since).unwrap_or_default(),
    }))
}
