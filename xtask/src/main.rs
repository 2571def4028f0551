//! The commands of the repository itself: `cargo xtask <command>`.
//!
//! Everything that a person or a machine does with this repository beyond `cargo build` is one of
//! these, so that nobody has to know a second tool, and so that a machine's check is a command a
//! person can run.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this program talks to a person on a terminal"
)]

mod attack;
mod bench;
mod build;
mod contracts;
mod demo;
mod dist;
#[cfg(test)]
mod imports;
mod messages;
mod repo;
mod standby;
mod step;
mod test;
#[cfg(test)]
mod tidy;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The commands of the repository itself.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run every check and every test, fetching the tools they need.
    Test(test::Args),
    /// List the contracts that no test names.
    Contracts(contracts::Args),
    /// Try every attack of docs/security.md against a real broker.
    Attack(attack::Args),
    /// Play the main job with real processes and say what happens.
    Demo(demo::Args),
    /// Renew credentials that live for seconds under traffic, while everything restarts.
    Soak(demo::soak::Args),
    /// Play two delivery hosts against each other and print the takeover times.
    Standby(standby::Args),
    /// Measure the product against the limit of the broker.
    Bench(bench::Args),
    /// List every text that a person can see, in docs/messages.md.
    Messages(messages::Args),
    /// Build the static release binary.
    #[command(visible_alias = "build-release")]
    Dist(dist::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Test(args) => test::run(&args),
        Command::Contracts(args) => contracts::run(&args),
        Command::Attack(args) => attack::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Soak(args) => demo::soak::run(&args),
        Command::Standby(args) => standby::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Messages(args) => messages::run(&args),
        Command::Dist(args) => dist::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
