//! `cotal completions`: a script for a shell.

use std::io::{self, Write};

use clap_complete::Shell;

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

/// Prints the script for the command tree `of`.
pub fn run(args: &Args, of: &mut clap::Command) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, of, "cotal", &mut script);
    io::stdout().write_all(&script)?;
    Ok(Exit::Ok)
}
