//! `cotal who`: who is there, and what each reads.

use std::collections::BTreeMap;

use cotal_manager::clock::unix_millis;
use cotal_manager::rows::{AclRows, bucket, read_all};
use cotal_nats::Connection;
use cotal_wire::names::{self, FEED_KEY};
use cotal_wire::rows::{FeedBeat, FeedRow};
use cotal_wire::{Principal, Space};
use serde_json::json;

use crate::args::{JsonArg, MeshArgs};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::age;

/// Lists who is online and which channels each reads.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The daemon keeps this list up to date from the broker's own list of connections; it is for display.
LIVE is what somebody is subscribed to now, > being every channel of the space. DURABLE is what is
kept for somebody who is away. A list that the daemon does not keep up to date is called stale.

Example:
  cotal who --json")]
pub struct Args {
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// The membership feed, as its bucket shows it.
pub struct MembershipView {
    /// Its rows.
    pub rows: BTreeMap<Principal, FeedRow>,
    /// When it was last brought up to date, and how long that holds.
    pub beat: Option<FeedBeat>,
}

impl MembershipView {
    /// Reads it; values that are no rows are left out.
    pub async fn read(connection: &Connection, space: &Space) -> anyhow::Result<Self> {
        let mut view = Self { rows: BTreeMap::new(), beat: None };
        for (key, raw) in read_all(&bucket(connection, space, names::Bucket::Membership)).await? {
            if key == FEED_KEY {
                view.beat = FeedBeat::parse(&raw.value).ok();
            } else if let (Ok(principal), Ok(row)) =
                (Principal::parse(&key), FeedRow::parse(&raw.value))
            {
                view.rows.insert(principal, row);
            }
        }
        Ok(view)
    }

    /// Why it is not to be relied on, if it is stale.
    pub fn stale(&self) -> Option<String> {
        match self.beat {
            None => Some("who is live is not known: no daemon has listed it yet".to_owned()),
            Some(beat) if unix_millis() > beat.fresh_until => Some(format!(
                "who is live is stale, as of {} ago: `cotal status` shows the daemon and its feed",
                age(beat.observed_at)
            )),
            Some(_) => None,
        }
    }
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let target = ctx.target(&args.mesh)?;
    target.demand_authenticated("membership feed")?;
    let (_, connection) = target.operator().await?;
    let view = MembershipView::read(&connection, &target.space).await?;
    let acl = AclRows::read(&connection, &target.space).await?;
    let name = |principal: &Principal| {
        let mut live = acl.live_of(principal);
        live.next().and_then(|(_, row)| row.name.clone())
    };
    let stale = view.stale();
    if let Some(why) = &stale {
        ctx.out.warn(why);
    }
    if args.output.json {
        let row = |(principal, row): (&Principal, &FeedRow)| {
            json!({
                "principal": principal, "name": name(principal), "live": row.live,
                "more": row.more, "durable": row.durable, "observedAt": row.observed_at,
            })
        };
        let rows: Vec<_> = view.rows.iter().map(row).collect();
        let observed_at = view.beat.map(|beat| beat.observed_at);
        ctx.out
            .json(&json!({ "observedAt": observed_at, "stale": stale.is_some(), "rows": rows }))?;
        return Ok(Exit::Ok);
    }
    let row = |(principal, row): (&Principal, &FeedRow)| {
        let name = name(principal).unwrap_or_else(|| "-".to_owned());
        vec![name, principal.to_string(), live(row), listed(&row.durable)]
    };
    let rows: Vec<_> = view.rows.iter().map(row).collect();
    ctx.out.table(&["NAME", "PRINCIPAL", "LIVE", "DURABLE"], &rows, "nobody is online")?;
    Ok(Exit::Ok)
}

fn live(row: &FeedRow) -> String {
    match row.more {
        0 => listed(&row.live),
        more => format!("{} and {more} more", listed(&row.live)),
    }
}

fn listed(items: &[impl ToString]) -> String {
    if items.is_empty() {
        return "-".to_owned();
    }
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
