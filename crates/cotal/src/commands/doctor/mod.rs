//! `cotal doctor`: what is wrong with this machine or root, and what to do about it.

mod auth;
mod certificate;
mod checks;
mod deliveries;
mod disk;
mod finding;
mod listener;

pub(in crate::commands) use certificate::Certificate;
pub(in crate::commands) use disk::Disk;
pub use disk::problem as disk_problem;
pub(in crate::commands) use listener::Listener;

use crate::args::JsonArg;
use crate::context::Context;
use crate::exit::Exit;

use self::finding::{CheckOutcome, Finding};

/// Checks the broker, the files and the credentials of this root.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ends with 0 when nothing is broken; warnings do not count.

Examples:
  cotal doctor
  cotal doctor --json
  cotal doctor auth --fix")]
pub struct Args {
    /// The nats-server to look at; else the one that `up` would run.
    #[arg(long, value_name = "PATH", env = "COTAL_NATS_SERVER")]
    nats_server: Option<std::path::PathBuf>,
    #[command(flatten)]
    output: JsonArg,
    #[command(subcommand)]
    what: Option<What>,
}

/// What is looked at more closely.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// Show each credential with its owner, its end and its last adoption.
    Auth(auth::Args),
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    if let Some(What::Auth(args)) = args.what {
        return auth::run(args, ctx).await;
    }
    let mut findings = vec![checks::program(ctx, args.nats_server.clone()).await];
    match ctx.root() {
        Ok(root) => findings.extend(Box::pin(checks::root(ctx, &root)).await),
        Err(error) => findings.push(Finding::new("root", CheckOutcome::Warning, error.to_string())),
    }
    if args.output.json {
        ctx.out.json(&findings)?;
    } else {
        for finding in &findings {
            let mark = match finding.verdict {
                CheckOutcome::Ok => "ok      ",
                CheckOutcome::Warning => "warning ",
                CheckOutcome::Broken => "broken  ",
            };
            ctx.out.data(format_args!("{mark}  {}: {}", finding.check, finding.detail))?;
        }
    }
    let broken = findings.iter().any(|f| f.verdict == CheckOutcome::Broken);
    Ok(if broken { Exit::Failure } else { Exit::Ok })
}
