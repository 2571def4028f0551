//! Arguments that several commands share.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use cotal_wire::Space;

/// Options of every command.
#[derive(Debug, clap::Args)]
pub struct Global {
    /// The workspace root; else the nearest directory with .cotal/ at or above this one.
    #[arg(long, global = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// How logs are written to standard error.
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "human",
        env = "COTAL_LOG_FORMAT"
    )]
    pub log_format: LogFormat,
}

/// How logs look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Human,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// The option's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Human => "human",
            Self::Json => "json",
        }
    }
}

/// Which mesh a command speaks to.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct MeshArgs {
    /// The space; else the first one of the root.
    #[arg(long, value_name = "SPACE", env = "COTAL_SPACE", value_parser = space)]
    pub space: Option<Space>,
    /// The broker's URL; else the one recorded for the space.
    #[arg(long, value_name = "URL", env = "COTAL_SERVER")]
    pub server: Option<String>,
}

/// How long minted and renewed credentials live; for trying renewal out, and for tests.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct LifetimeArg {
    /// Seconds that the daemon's and the manager's credentials live, instead of a day.
    #[arg(
        long,
        hide = true,
        value_name = "SECONDS",
        env = "COTAL_CREDENTIAL_LIFETIME",
        value_parser = clap::value_parser!(i64).range(4..)
    )]
    pub credential_lifetime: Option<i64>,
}

/// Whether a command answers in JSON.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct JsonArg {
    /// Print JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// Reads a span such as `24h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text} is not a duration: give a number and ms, s, m, h or d");
    cotal_wire::rows::span(text).ok_or_else(wrong)
}

/// Reads a space; other characters map to `_`, as in every Cotal client. What looks like a path is
/// no name that somebody means.
pub fn space(text: &str) -> Result<Space, String> {
    let is_path = text.contains(['/', '\\']) || text.starts_with('.');
    if is_path || !text.contains(|c: char| c.is_ascii_alphanumeric()) {
        return Err("a space's name has letters, digits, _ and - only".to_owned());
    }
    Space::from_name(text).map_err(|e| e.to_string())
}
