//! `cotal members`: who is durably on a channel, and who reads it live.

use std::collections::{BTreeMap, BTreeSet};

use cotal_manager::rows::{AclRows, bucket, read_all};
use cotal_wire::channel::any_covers;
use cotal_wire::names::{self, parse_member_key};
use cotal_wire::rows::{FeedRow, MemberRow, MemberState};
use cotal_wire::{Lifecycle, Principal};
use serde_json::json;

use crate::args::{JsonArg, MeshArgs};
use crate::commands::who::MembershipView;
use crate::context::Context;
use crate::exit::Exit;

/// Lists the durable members of a channel and who reads it live.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
LIVE says whether somebody is subscribed now, as the daemon's list of connections shows it; ? stands
where that list is stale. `cotal who` shows the whole list.

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
    let view = MembershipView::read(&connection, &target.space).await?;
    let stale = view.stale();
    if let Some(why) = &stale {
        ctx.out.warn(why);
    }
    let covers = |row: &FeedRow| any_covers(&row.live, &channel);
    let live = view.rows.iter().filter(|(_, row)| covers(row)).map(|(who, _)| who.clone());
    let live = stale.is_none().then(|| live.collect());
    print(&args, ctx, &Readers { members, live }, &acl)
}

/// Who reads a channel.
struct Readers {
    members: BTreeMap<Lifecycle, MemberRow>,
    /// Who is subscribed to it; `None` when that is not known.
    live: Option<BTreeSet<Principal>>,
}

impl Readers {
    fn is_live(&self, who: &Principal) -> Option<bool> {
        self.live.as_ref().map(|live| live.contains(who))
    }

    /// Those who are subscribed and no durable members.
    fn only_live(&self) -> impl Iterator<Item = &Principal> {
        let is_member = |who: &Principal| {
            self.members.iter().any(|(m, row)| m.principal == *who && row.leave_cursor.is_none())
        };
        self.live.iter().flatten().filter(move |who| !is_member(who))
    }
}

/// Incarnation uids are capabilities, so no listing shows one.
fn print(args: &Args, ctx: &Context, readers: &Readers, acl: &AclRows) -> anyhow::Result<Exit> {
    let name = |member| acl.rows.get(member).and_then(|row| row.name.clone());
    let name_of = |who: &Principal| acl.live_of(who).next().and_then(|(_, row)| row.name.clone());
    if args.output.json {
        let durable = readers.members.iter().map(|(member, row)| {
            json!({
                "principal": member.principal, "name": name(member), "state": state_of(row),
                "live": readers.is_live(&member.principal),
                "generation": row.generation, "activated": row.activated,
                "joinCursor": row.join_cursor, "leaveCursor": row.leave_cursor,
            })
        });
        let live = readers.only_live().map(
            |who| json!({ "principal": who, "name": name_of(who), "state": "live only", "live": true }),
        );
        let rows: Vec<_> = durable.chain(live).collect();
        ctx.out.json(&rows)?;
        return Ok(Exit::Ok);
    }
    let durable = readers.members.iter().map(|(member, row)| {
        as_row(&member.principal, name(member), row, readers.is_live(&member.principal))
    });
    let live = readers.only_live().map(|who| {
        let name = name_of(who).unwrap_or_else(|| "-".to_owned());
        let [state, live, none] = ["live only", "yes", "-"].map(str::to_owned);
        vec![name, who.to_string(), state, live, none.clone(), none]
    });
    let rows: Vec<_> = durable.chain(live).collect();
    let heading = ["NAME", "PRINCIPAL", "STATE", "LIVE", "JOINED AFTER", "LEFT AFTER"];
    ctx.out.table(&heading, &rows, "no members")?;
    Ok(Exit::Ok)
}

/// The word for a membership, for people and programs alike.
fn state_of(row: &MemberRow) -> &'static str {
    match (row.leave_cursor, row.state, row.activated) {
        (Some(_), _, _) => "left",
        (None, MemberState::LiveConfirmed, _) => "live only",
        (None, MemberState::DurableActive, true) => "durable",
        (None, MemberState::DurableActive, false) => "catching up",
    }
}

fn as_row(
    principal: &Principal,
    name: Option<String>,
    row: &MemberRow,
    is_live: Option<bool>,
) -> Vec<String> {
    let live = match is_live {
        Some(true) => "yes",
        Some(false) => "no",
        None => "?",
    };
    let left = row.leave_cursor.map_or("-".to_owned(), |seq| seq.to_string());
    vec![
        name.unwrap_or_else(|| "-".to_owned()),
        principal.to_string(),
        state_of(row).to_owned(),
        live.to_owned(),
        row.join_cursor.to_string(),
        left,
    ]
}
