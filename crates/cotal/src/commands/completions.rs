//! `cotal completions`: a script for a shell.

use std::io::{self, Write};

use anyhow::Context as _;
use clap::ValueEnum;
use clap_complete::env::Shells;

use crate::exit::Exit;

/// Prints completions for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The script has the shell ask `cotal`, so that the names of agents, channels, roles and spaces of the
mesh that runs are completed as well.

Examples:
  cotal completions bash > ~/.local/share/bash-completion/completions/cotal
  cotal completions zsh > ~/.zfunc/_cotal")]
pub struct Args {
    /// The shell.
    shell: Shell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

/// The variable by which the script asks the binary.
const VARIABLE: &str = "COMPLETE";

/// Prints the script.
pub fn run(args: &Args) -> anyhow::Result<Exit> {
    let name = match args.shell {
        Shell::Bash => "bash",
        Shell::Elvish => "elvish",
        Shell::Fish => "fish",
        Shell::Powershell => "powershell",
        Shell::Zsh => "zsh",
    };
    let shell = Shells::builtins();
    let shell = shell.completer(name).context("this shell is not known")?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "cotal", "cotal", "cotal", &mut script)?;
    io::stdout().write_all(&script)?;
    Ok(Exit::Ok)
}
