//! `cotal-bench`: the product against the limit of the broker.
//!
//! Purpose: numbers that can be believed. Invariant: limit and product alternate in one run, on one
//! broker, with the same bytes into streams of the same settings; every load is bounded; what is
//! told is the median of the rounds.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this program talks to a person on a terminal"
)]

mod cases;
mod daemon;
mod lane;
mod limit;
mod mesh;
mod procfs;
mod raw;
mod report;
mod setup;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand, ValueEnum};
use cotal_broker::{LocateOptions, cache_dir, locate};
use mimalloc::MiMalloc;
use tokio::signal::unix::{SignalKind, signal};

use crate::report::Report;
use crate::setup::Setup;

/// As in the `cotal` binary.
#[global_allocator]
static GLOBAL: MiMalloc = MiMalloc;

/// The product against the limit of the broker.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure.
    Run(RunArgs),
    /// Serve one space, as `cotal deliver` does.
    Deliver {
        /// The space.
        #[arg(long)]
        space: String,
        /// The root.
        #[arg(long)]
        root: PathBuf,
        /// The broker.
        #[arg(long)]
        server: String,
    },
}

/// What to measure.
#[derive(Debug, clap::Args)]
struct RunArgs {
    /// Only these cases.
    #[arg(long, value_enum)]
    case: Vec<Name>,
    /// Print `{bench, cases}` as JSON.
    #[arg(long)]
    json: bool,
    /// Exit 1 when a case is below its goal.
    #[arg(long)]
    check: bool,
    /// Fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// Only these numbers of members, in the case `fanout`.
    #[arg(long, value_name = "N")]
    members: Vec<usize>,
    /// Only these numbers of lanes, in the case `lanes`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=2_000))]
    lanes: Vec<u16>,
    /// Tell how far INBOX and DLV have come every few milliseconds.
    #[arg(long)]
    trace: bool,
    /// Rounds of each case.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(3..=100))]
    rounds: Option<u16>,
    /// The `cotal` binary whose `deliver` is measured; this program's own lane when absent.
    #[arg(long, value_name = "PATH")]
    cotal: Option<PathBuf>,
    /// The broker; as everywhere, `PATH`, the cache and a download come next.
    #[arg(long, value_name = "PATH", env = "COTAL_NATS_SERVER")]
    nats_server: Option<PathBuf>,
}

/// A group of cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Posts to 10, 100 and 1,000 members until every copy stands in DLV.
    Fanout,
    /// Cost per copy with 100, 10,000 and 100,000 member rows.
    Growth,
    /// From a post until a member has it.
    Latency,
    /// From the start until the daemon serves, and its memory.
    Start,
    /// What showing who reads what costs the daemon.
    Feed,
    /// What an idle lane of a multi-space host costs, with 10 and 100 of them.
    Lanes,
}

fn main() -> ExitCode {
    measure().unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn measure() -> anyhow::Result<ExitCode> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match Cli::parse().command {
        Command::Run(args) => runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            // Whatever ends the measurement drops it, and with it every process that it started.
            tokio::select! {
                done = run(args) => done,
                _ = tokio::signal::ctrl_c() => bail!("interrupted"),
                _ = terminate.recv() => bail!("terminated"),
            }
        }),
        Command::Deliver { space, root, server } => {
            runtime.block_on(Box::pin(lane::run(&space, &root, &server)))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let env = std::env::var_os;
    let setup = Setup {
        broker: locate(&LocateOptions {
            explicit: args.nats_server,
            path_env: env("PATH"),
            cache_dir: cache_dir(env("XDG_CACHE_HOME"), env("HOME"))
                .context("no cache directory")?,
            allow_fetch: true,
        })?,
        daemon: match args.cotal {
            Some(path) => path,
            None => std::env::current_exe()?,
        },
        rounds: args.rounds.map_or(if args.quick { 3 } else { 5 }, usize::from),
        quick: args.quick,
        members: args.members,
        lanes: args.lanes.into_iter().map(usize::from).collect(),
        trace: args.trace,
    };
    let wanted = |name| args.case.is_empty() || args.case.contains(&name);
    let mut report = Report::new();
    if wanted(Name::Fanout) {
        Box::pin(cases::fanout::run(&setup, &mut report)).await?;
    }
    if wanted(Name::Growth) {
        Box::pin(cases::growth::run(&setup, &mut report)).await?;
    }
    if wanted(Name::Latency) {
        Box::pin(cases::latency::run(&setup, &mut report)).await?;
    }
    if wanted(Name::Start) {
        Box::pin(cases::start::run(&setup, &mut report)).await?;
    }
    if wanted(Name::Feed) {
        Box::pin(cases::feed::run(&setup, &mut report)).await?;
    }
    if wanted(Name::Lanes) {
        Box::pin(cases::lanes::run(&setup, &mut report)).await?;
    }
    if args.json {
        println!("{}", report.json()?);
    } else {
        println!("{}", report.table());
    }
    let missed = report.missed();
    if args.check && !missed.is_empty() {
        eprintln!("below the goal: {}", missed.join(", "));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
