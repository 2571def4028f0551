//! `cotal completions`: a script for a shell.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::context::Context;
use crate::exit::Exit;

/// Prints completions for a shell.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  cotal completions bash > ~/.local/share/bash-completion/completions/cotal"
)]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args, _ctx: &Context) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "cotal", &mut script);
    io::stdout().write_all(&script)?;
    Ok(Exit::Ok)
}
