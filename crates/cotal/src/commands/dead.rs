//! `cotal dead`: entries that are parked or were given up.

use cotal_manager::rows::{bucket, read_all};
use cotal_nats::Connection;
use cotal_wire::Space;
use cotal_wire::names::{self, parse_dead_key};
use cotal_wire::rows::{DeadReason, DeadRow, DeadState};

use crate::args::{JsonArg, MeshArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::age;

/// Lists entries that are parked or were given up.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A parked entry is still tried; one that was given up stays in the store until `cotal redeliver`
puts it back, or the store's cap takes it.

Example:
  cotal dead --json")]
pub struct Args {
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let target = ctx.target(&args.mesh)?;
    target.demand_authenticated("dead entries")?;
    let (_, operator) = target.operator().await?;
    let Dead { rows, garbled } = read(&operator, &target.space).await?;
    for seq in garbled {
        ctx.out.warn(format!("the row of entry {seq} is garbled: its state is not known"));
    }
    if args.output.json {
        // The uid is a capability, so no listing shows it.
        let shown: Vec<_> = rows.iter().map(|(row, _)| as_json(row)).collect();
        ctx.out.json(&shown)?;
        return Ok(Exit::Ok);
    }
    let heading = ["ENTRY", "STATE", "MEMBER", "CHANNEL", "POST", "WHY", "ATTEMPTS", "AGE"];
    let shown: Vec<_> = rows.iter().map(|(row, _)| as_row(row)).collect();
    ctx.out.table(&heading, &shown, "no dead entries")?;
    Ok(Exit::Ok)
}

/// What the dead bucket holds, by sequence.
pub struct Dead {
    /// Its rows, each with its revision.
    pub rows: Vec<(DeadRow, u64)>,
    /// Entries whose row is none.
    pub garbled: Vec<u64>,
}

/// Reads the dead bucket.
pub async fn read(connection: &Connection, space: &Space) -> anyhow::Result<Dead> {
    let mut dead = Dead { rows: Vec::new(), garbled: Vec::new() };
    for (key, raw) in read_all(&bucket(connection, space, names::Bucket::Dead)).await? {
        let Some(seq) = parse_dead_key(&key) else { continue };
        match DeadRow::parse(&raw.value, seq) {
            Ok(row) => dead.rows.push((row, raw.revision)),
            Err(_) => dead.garbled.push(seq),
        }
    }
    dead.rows.sort_by_key(|(row, _)| row.seq);
    dead.garbled.sort_unstable();
    Ok(dead)
}

/// Why an entry is not delivered, for people.
pub fn reason_text(reason: DeadReason) -> &'static str {
    match reason {
        DeadReason::NoAclRow => "its owner has no ACL row",
        DeadReason::DeleteFailed => "its removal failed",
        DeadReason::HandoffFailed => "its copy could not be written",
        DeadReason::TooLarge => "it is too large",
    }
}

fn state_text(state: DeadState) -> &'static str {
    match state {
        DeadState::Parked => "parked",
        DeadState::GivenUp => "given up",
    }
}

fn as_json(row: &DeadRow) -> serde_json::Value {
    serde_json::json!({
        "seq": row.seq, "state": row.state, "member": row.owner, "channel": row.channel,
        "chatSeq": row.chat_seq, "reason": row.reason, "attempts": row.attempts,
        "firstAt": row.first_at, "nextAt": row.next_at,
    })
}

fn as_row(row: &DeadRow) -> Vec<String> {
    vec![
        row.seq.to_string(),
        state_text(row.state).to_owned(),
        row.owner.to_string(),
        row.channel.to_string(),
        row.chat_seq.to_string(),
        reason_text(row.reason).to_owned(),
        row.attempts.to_string(),
        age(row.first_at),
    ]
}
