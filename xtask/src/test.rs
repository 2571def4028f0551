//! `cargo xtask test`: every check and every test, as continuous integration runs them.
//!
//! One profile is used throughout, so that nothing is compiled twice. The tests run last: the last
//! lines of a run are the test runner's own verdict and one line about the steps.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::contracts;
use crate::step::{self, Steps};
use crate::{repo, tools};

/// What to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the tests alone, without format, lints, dependency and contract checks.
    #[arg(long)]
    quick: bool,
    /// Arguments for the test runner, such as a part of a test's name.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    runner: Vec<OsString>,
}

/// Runs the checks and the tests.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut steps = Steps::default();
    let broker = steps.step("broker", || {
        let broker = tools::broker()?;
        eprintln!(
            "nats-server {} {}: {}",
            broker.version,
            broker.source,
            broker.path.display()
        );
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
    steps.step("format", || {
        step::run(repo::cargo().args(["fmt", "--all", "--check"]))
    });
    steps.step("lints", || {
        let clippy = [
            "clippy",
            "--locked",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ];
        step::run(repo::cargo().args(clippy))
    });
    steps.step("dependencies", || {
        let deny = tools::cargo_tool(&tools::DENY)?;
        let check = [
            "--locked",
            "check",
            "--hide-inclusion-graph",
            "licenses",
            "bans",
            "sources",
        ];
        step::run(Command::new(deny).current_dir(repo::root()).args(check))
    });
    steps.step("contracts", contracts::check_kept);
}

fn tests(steps: &mut Steps, broker: &Path, nextest: &Path, args: &Args) {
    // Tests of several crates run the binary itself, which only its own package's tests would build.
    let build = ["build", "--locked", "--workspace", "--bins"];
    if steps
        .step("build", || step::run(repo::cargo().args(build)))
        .is_none()
    {
        return;
    }
    if !args.quick {
        steps.step("doc tests", || {
            let doc = ["test", "--locked", "--quiet", "--workspace", "--doc"];
            step::run(repo::cargo().args(doc).env("COTAL_NATS_SERVER", broker))
        });
    }
    steps.step("tests", || {
        let run = ["nextest", "run", "--locked", "--workspace"];
        let mut command = Command::new(nextest);
        command
            .current_dir(repo::root())
            .args(run)
            .args(&args.runner);
        // Every test uses the server that was found here, so no test goes to the network for it.
        step::run(command.env("COTAL_NATS_SERVER", broker))
    });
}
