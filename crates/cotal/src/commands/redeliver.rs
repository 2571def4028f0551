//! `cotal redeliver`: put a dead entry back.

use anyhow::bail;
use cotal_manager::clock::unix_millis;
use cotal_manager::rows::bucket;
use cotal_wire::names::{self, dead_key};
use cotal_wire::rows::{DeadRow, DeadState};

use crate::args::MeshArgs;
use crate::context::Context;
use crate::exit::Exit;

/// Retries a parked or given-up entry at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The daemon judges the entry anew: a member that may not read it now does not get it. `cotal dead`
lists the entries.

Example:
  cotal redeliver 901")]
pub struct Args {
    /// The entry, as `cotal dead` names it.
    entry: u64,
    #[command(flatten)]
    mesh: MeshArgs,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let target = ctx.target(&args.mesh)?;
    target.demand_authenticated("dead entries")?;
    let (_, operator) = target.operator().await?;
    let dead = bucket(&operator, &target.space, names::Bucket::Dead);
    let key = dead_key(args.entry);
    let entry = dead.get(&key).await?;
    let Some((value, revision)) =
        entry.as_ref().and_then(|entry| Some((entry.live()?, entry.revision)))
    else {
        ctx.out.warn(format!("there is no dead entry {}: `cotal dead` lists them", args.entry));
        return Ok(Exit::Absent);
    };
    let Ok(mut row) = DeadRow::parse(value, args.entry) else {
        bail!("the row of entry {} is garbled", args.entry);
    };
    row.state = DeadState::Parked;
    row.next_at = unix_millis();
    dead.update(&key, serde_json::to_vec(&row)?.into(), revision).await?;
    ctx.out.proven(format!("entry {} of {} is put back", row.seq, row.owner));
    Ok(Exit::Ok)
}
