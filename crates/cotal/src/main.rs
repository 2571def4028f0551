//! The `cotal` binary.
//!
//! Purpose: the one place that prints, reads the environment and decides exit codes. Invariant:
//! standard output carries data only, so that it can be piped; everything said to a person goes to
//! standard error.

#![allow(
    unreachable_pub,
    reason = "a binary has no outside: `pub` says what a module offers to the others"
)]

mod args;
mod cli;
mod commands;
mod complete;
mod context;
mod dispatch;
mod exit;
mod logging;
mod notify;
mod output;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{ColorChoice, FromArgMatches as _};
use clap_complete::CompleteEnv;
use mimalloc::MiMalloc;

use crate::cli::Cli;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Output;

/// Gives freed pages back sooner than the system's allocator: an idle daemon stays small.
#[global_allocator]
static GLOBAL: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // Only where a shell asks for completions; it ends the process.
    CompleteEnv::with_factory(|| complete::with_names(cli::command())).complete();
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let ctx = match logging::check().and_then(|()| Context::from_process(&cli.global)) {
        Ok(ctx) => ctx,
        Err(error) => {
            Output::from_process().error(&error);
            return Exit::of(&error).into();
        }
    };
    let needs_mesh = cli.command.needs_mesh();
    match run(cli, &ctx) {
        Ok(exit) => exit.into(),
        Err(error) => {
            let exit = Exit::of(&error);
            if exit != Exit::Ok {
                ctx.out.error(&error);
            }
            let full =
                may_be_the_disk(exit).then(|| commands::doctor::disk_problem(&ctx)).flatten();
            let step = next_step(exit).filter(|_| needs_mesh && !names_a_step(&error));
            if let Some(step) = full.as_deref().or(step) {
                ctx.out.note(format_args!("  {step}"));
            }
            exit.into()
        }
    }
}

fn run(cli: Cli, ctx: &Context) -> anyhow::Result<Exit> {
    if !cli.command.logs_for_itself() {
        logging::to_stderr(cli.global.log_format);
    }
    // The broker is the bottleneck by far. A second worker adds nothing to the daemon's rate and
    // costs a fifth more time per copy, for moving work between the two.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let exit = runtime.block_on(Box::pin(dispatch::run(cli.command, ctx)));
    // A thread that still reads standard input must not keep a finished command alive.
    runtime.shutdown_background();
    exit
}

/// What a person can do about a failure whose message does not say it.
fn next_step(exit: Exit) -> Option<&'static str> {
    match exit {
        Exit::Unreachable => {
            Some("`cotal up` starts the mesh of a root; `cotal status` tells what runs")
        }
        Exit::NotServing => {
            Some("`cotal status` tells what runs; `cotal up` starts a daemon that is missing")
        }
        Exit::TimedOut => Some("`cotal status` and `cotal doctor` tell what runs and what hangs"),
        _ => None,
    }
}

/// A broker that cannot store refuses, or does not answer at all.
fn may_be_the_disk(exit: Exit) -> bool {
    matches!(exit, Exit::TimedOut | Exit::Refused | Exit::Failure | Exit::NotServing)
}

fn names_a_step(error: &anyhow::Error) -> bool {
    output::told(error).contains("`cotal ")
}

/// Colours are for terminals alone, whatever the environment wants to force.
fn parse() -> Result<Cli, clap::Error> {
    let matches = cli::command().color(colours()).try_get_matches()?;
    Cli::from_arg_matches(&matches)
}

fn colours() -> ColorChoice {
    let terminals = io::stdout().is_terminal() && io::stderr().is_terminal();
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if terminals && wanted { ColorChoice::Auto } else { ColorChoice::Never }
}

/// What the language says of a number that does not parse names its own types.
fn in_words(told: &str) -> String {
    let number = "a whole number is expected";
    told.replace("invalid digit found in string", number)
        .replace("cannot parse integer from empty string", number)
        .replace("number too large to fit in target type", "the number is too large")
        .replace("number too small to fit in target type", "the number is too small")
}

/// Help and version are answers, not mistakes; clap knows which stream each belongs to.
fn usage(error: &clap::Error) -> ExitCode {
    let told = error.render();
    let (told, coloured) = (in_words(&told.to_string()), in_words(&told.ansi().to_string()));
    let _ = match (error.use_stderr(), colours()) {
        (true, ColorChoice::Never) => write!(io::stderr(), "{told}"),
        (true, _) => write!(io::stderr(), "{coloured}"),
        (false, ColorChoice::Never) => write!(io::stdout(), "{told}"),
        (false, _) => write!(io::stdout(), "{coloured}"),
    };
    let exit = if error.use_stderr() { Exit::Usage } else { Exit::Ok };
    exit.into()
}
