//! `cargo xtask bench`: the product against the limit of the broker, alternating in one run.
//!
//! What is measured, and how, is `cotal-bench`'s; this builds it and the product as they ship.

use std::process::Command;

use crate::{build, step};

/// What to measure and how to report it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these: fanout, growth, latency, start, lanes.
    #[arg(long, value_name = "CASE")]
    case: Vec<String>,
    /// Print `{bench, cases: [{name, limit, product, ratio}]}`.
    #[arg(long)]
    json: bool,
    /// Exit 1 when a case is below its goal.
    #[arg(long)]
    check: bool,
    /// Fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// Only these numbers of lanes, in the case `lanes`.
    #[arg(long, value_name = "N")]
    lanes: Vec<u16>,
    /// Rounds of each case, at least three.
    #[arg(long, value_name = "N")]
    rounds: Option<u16>,
}

/// Runs the measurements.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let built = build::optimised()?;
    let mut bench = Command::new(built.join("cotal-bench"));
    bench.arg("run").arg("--cotal").arg(built.join("cotal"));
    for case in &args.case {
        bench.args(["--case", case]);
    }
    for (wanted, flag) in [(args.json, "--json"), (args.check, "--check"), (args.quick, "--quick")]
    {
        if wanted {
            bench.arg(flag);
        }
    }
    for lanes in &args.lanes {
        bench.args(["--lanes", &lanes.to_string()]);
    }
    if let Some(rounds) = args.rounds {
        bench.args(["--rounds", &rounds.to_string()]);
    }
    step::run(&mut bench)
}
