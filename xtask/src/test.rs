//! `cargo xtask test`: every check and every test, as continuous integration runs them.
//!
//! One profile is used throughout, so that nothing is compiled twice. The tests run last: the last
//! lines of a run are the test runner's own verdict and one line about the steps.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::contracts;
use crate::step::{self, Steps};
use crate::{build, repo, tools};

/// What to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the tests alone, without format, lints, dependency and contract checks.
    #[arg(long)]
    quick: bool,
    /// Test this crate alone, and do not build the binary first.
    #[arg(long, short, value_name = "CRATE")]
    package: Vec<String>,
    /// Arguments for the test runner, such as a part of a test's name.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    runner: Vec<OsString>,
}

impl Args {
    fn scope(&self) -> Vec<&str> {
        if self.package.is_empty() {
            return vec!["--workspace"];
        }
        self.package.iter().flat_map(|name| ["--package", name]).collect()
    }
}

/// Runs the checks and the tests.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut steps = Steps::default();
    let broker = steps.step("broker", || {
        let broker = tools::broker()?;
        eprintln!("nats-server {} {}: {}", broker.version, broker.source, broker.path.display());
        Ok(broker)
    });
    let nextest = steps.step("runner", || tools::cargo_tool(&tools::NEXTEST));
    if !args.quick {
        checks(&mut steps);
    }
    if let (Some(broker), Some(nextest)) = (broker, nextest) {
        tests(&mut steps, &broker.path, &nextest, args);
    }
    steps.finish()
}

fn checks(steps: &mut Steps) {
    steps.step("format", || step::run(repo::cargo().args(["fmt", "--all", "--check"])));
    steps.step("lints", || {
        let clippy = ["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"];
        step::run(repo::cargo().args(clippy))
    });
    steps.step("dependencies", || {
        let deny = tools::cargo_tool(&tools::DENY)?;
        let check = ["--locked", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
        step::run(Command::new(deny).current_dir(repo::root()).args(check))
    });
    steps.step("contracts", contracts::check_kept);
}

fn tests(steps: &mut Steps, broker: &Path, nextest: &Path, args: &Args) {
    let scope = args.scope();
    // Tests of several crates run the binary itself, which only its own package's tests would
    // build.
    if args.package.is_empty() && steps.step("build", build::for_tests).is_none() {
        return;
    }
    // Every test uses the server that was found here, so no test goes to the network for it.
    if !args.quick {
        let mut doc = repo::cargo();
        doc.args(["test", "--locked", "--quiet", "--doc"]).args(&scope);
        steps.step("doc tests", || step::run(doc.env("COTAL_NATS_SERVER", broker)));
    }
    let mut tests = Command::new(nextest);
    tests.current_dir(repo::root()).args(["nextest", "run", "--locked"]).args(&scope);
    tests.args(&args.runner);
    steps.step("tests", || step::run(tests.env("COTAL_NATS_SERVER", broker)));
}
