//! `cotal dm`: a direct message.

use cotal_client::EndpointOptions;

use crate::args::JsonArg;
use crate::commands::as_agent::{AgentArgs, not_sent};
use crate::commands::reach::Reach;
use crate::commands::{message, post};
use crate::context::{Context, principal};
use crate::exit::Exit;

/// Sends a direct message and prints its id and number.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal dm bob 'Are you there?' --as alice
  cotal dm local.bob - --as alice < report.txt")]
pub struct Args {
    /// The recipient: NAME, or <owner>.<actor>.
    #[arg(value_name = "TO")]
    to: String,
    #[command(flatten)]
    text: message::TextArgs,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let to = principal(&args.to)?;
    let draft = args.text.draft().await?;
    let seat = args.agent.seat(ctx)?;
    if let Some(reach) = Reach::of(&seat).await {
        reach.agent(&to)?;
    }
    let endpoint = seat.connect(EndpointOptions::send_only).await?;
    let posted = endpoint.dm(&to, draft).await;
    endpoint.close().await;
    post::print(&posted.map_err(not_sent)?, args.json, ctx)
}
