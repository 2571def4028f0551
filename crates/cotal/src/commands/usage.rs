//! `cotal space usage`: who uses how much, and how it is freed.

use cotal_manager::{Authority, Freed, Usage};
use serde_json::json;

use crate::args::{JsonArg, MeshArgs};
use crate::context::Context;
use crate::exit::Exit;

/// A stream that is fuller than this many percent is told.
const NEARLY_FULL: u64 = 80;

/// Which space, and what of it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Removes the posts, direct messages and role requests that this agent sent.
    #[arg(long, value_name = "AGENT")]
    free: Option<String>,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    output: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let target = ctx.target(&args.mesh)?;
    target.demand_authenticated("what agents use")?;
    let authority = Authority::open(&target.root, &target.space)?;
    let broker = target.address();
    if let Some(name) = &args.free {
        let agent = crate::context::principal(name)?;
        let freed = cotal_manager::free(&authority, &broker, &agent).await?;
        if args.output.json {
            ctx.out.json(&json!({ "agent": agent, "freed": freed }))?;
        } else {
            let Freed { posts, direct_messages, requests } = freed;
            ctx.out.proven(format!(
                "{posts} posts, {direct_messages} direct messages and {requests} role requests \
                 that {agent} sent are removed"
            ));
        }
        return Ok(Exit::Ok);
    }
    let usage = cotal_manager::usage(&authority, &broker).await?;
    if args.output.json {
        ctx.out.json(&usage)?;
    } else {
        show(&usage, ctx)?;
    }
    Ok(Exit::Ok)
}

fn show(usage: &Usage, ctx: &Context) -> anyhow::Result<()> {
    let streams = usage.streams.iter().map(|stream| {
        let full = stream.cap.and_then(|cap| (stream.bytes * 100).checked_div(cap));
        vec![
            stream.stream.clone(),
            stream.messages.to_string(),
            size(stream.bytes),
            stream.cap.map_or("-".to_owned(), size),
            full.map_or("-".to_owned(), |percent| format!("{percent} %")),
            stream.consumers.to_string(),
        ]
    });
    let streams: Vec<_> = streams.collect();
    let heading = ["STREAM", "MESSAGES", "BYTES", "CAP", "FULL", "CONSUMERS"];
    ctx.out.table(&heading, &streams, "no streams: `cotal up` makes them")?;
    let mut agents: Vec<_> = usage.agents.iter().collect();
    agents.sort_by_key(|(_, used)| std::cmp::Reverse(used.about_bytes));
    let agents = agents.into_iter().map(|(agent, used)| {
        vec![
            agent.to_string(),
            used.posts.to_string(),
            used.direct_messages.to_string(),
            used.requests.to_string(),
            used.routed.to_string(),
            used.delivered.to_string(),
            format!("~{}", size(used.about_bytes)),
        ]
    });
    let agents: Vec<_> = agents.collect();
    let heading = ["AGENT", "POSTS", "DMS", "REQUESTS", "INBOX", "DLV", "BYTES"];
    ctx.out.table(&heading, &agents, "no agent uses anything")?;
    for stream in &usage.streams {
        let cap = stream.cap.filter(|cap| stream.bytes * 100 >= cap * NEARLY_FULL);
        if let Some(cap) = cap {
            ctx.out.warn(format!(
                "{} holds {} of {}: beyond that it refuses what is sent. `cotal space usage --free \
                 AGENT` removes what an agent sent",
                stream.stream,
                size(stream.bytes),
                size(cap)
            ));
        }
    }
    Ok(())
}

/// Bytes as people read them.
fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = UNITS.iter().find(|(_, unit)| bytes >= *unit);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(name, unit)| {
            let tenths = bytes * 10 / unit;
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        },
    )
}
