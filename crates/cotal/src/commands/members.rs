//! `cotal members`: who is durably on a channel.

use std::collections::BTreeMap;

use cotal_manager::rows::{AclRows, bucket, read_all};
use cotal_wire::names::{self, parse_member_key};
use cotal_wire::rows::{MemberRow, MemberState};
use cotal_wire::{Lifecycle, Principal};
use serde_json::json;

use crate::args::{JsonArg, MeshArgs};
use crate::context::Context;
use crate::exit::Exit;

/// Lists the durable members of a channel.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Only durable memberships are listed: who is subscribed live is known to the broker alone.

Example:
  cotal members team.backend --json")]
pub struct Args {
    /// The channel.
    channel: String,
    /// List those who left as well.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let channel = super::channel::required(&args.channel)?;
    let target = ctx.target(&args.mesh)?;
    target.demand_authenticated("durable members")?;
    let (_, connection) = target.operator().await?;
    let rows = read_all(&bucket(&connection, &target.space, names::Bucket::Members)).await?;
    let acl = AclRows::read(&connection, &target.space).await?;
    let mut members = BTreeMap::new();
    for (key, raw) in rows {
        let Some((on, member)) = parse_member_key(&key) else {
            continue;
        };
        if on != channel {
            continue;
        }
        match MemberRow::parse(&raw.value, &on, &member) {
            Ok(row) if args.all || row.leave_cursor.is_none() => {
                members.insert(member, row);
            }
            Ok(_) => {}
            Err(error) => {
                let principal = &member.principal;
                ctx.out.warn(format!("a member row of {principal} is garbled: {error}"));
            }
        }
    }
    print(&args, ctx, &members, &acl)
}

/// Incarnation uids are capabilities, so no listing shows one.
fn print(
    args: &Args,
    ctx: &Context,
    members: &BTreeMap<Lifecycle, MemberRow>,
    acl: &AclRows,
) -> anyhow::Result<Exit> {
    let name = |member| acl.rows.get(member).and_then(|row| row.name.clone());
    if args.output.json {
        let rows: Vec<_> = members
            .iter()
            .map(|(member, row)| {
                json!({
                    "principal": member.principal, "name": name(member), "state": row.state,
                    "generation": row.generation, "activated": row.activated,
                    "joinCursor": row.join_cursor, "leaveCursor": row.leave_cursor,
                })
            })
            .collect();
        ctx.out.json(&rows)?;
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> =
        members.iter().map(|(member, row)| as_row(&member.principal, name(member), row)).collect();
    let heading = ["NAME", "PRINCIPAL", "STATE", "JOINED AFTER", "LEFT AFTER"];
    ctx.out.table(&heading, &rows, "no durable members")?;
    Ok(Exit::Ok)
}

fn as_row(principal: &Principal, name: Option<String>, row: &MemberRow) -> Vec<String> {
    let state = match (row.leave_cursor, row.state, row.activated) {
        (Some(_), _, _) => "left",
        (None, MemberState::LiveConfirmed, _) => "live only",
        (None, MemberState::DurableActive, true) => "durable",
        (None, MemberState::DurableActive, false) => "catching up",
    };
    let left = row.leave_cursor.map_or("-".to_owned(), |seq| seq.to_string());
    vec![
        name.unwrap_or_else(|| "-".to_owned()),
        principal.to_string(),
        state.to_owned(),
        row.join_cursor.to_string(),
        left,
    ]
}
