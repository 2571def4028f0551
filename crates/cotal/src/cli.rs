//! The command tree. What a command does is in its own file below `commands`.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use cotal_wire::Space;

use crate::commands;
use crate::exit::Exit;

/// Cotal: a mesh in which a post reaches the members who were away.
#[derive(Debug, Parser)]
#[command(
    name = "cotal",
    version,
    after_help = after_help(),
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

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
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
}

/// How long credentials live that are minted or renewed; for drills and tests.
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

/// Reads a space; other characters map to `_`, as in every Cotal client.
pub fn space(text: &str) -> Result<Space, String> {
    Space::from_name(text).map_err(|e| e.to_string())
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring the mesh of this root up, or complete what is missing of it.
    Up(commands::up::Args),
    /// Stop the daemon and the broker of this root.
    Down(commands::down::Args),
    /// Run the delivery daemon of a space.
    Deliver(commands::deliver::Args),
    /// Run the manager of a space: it renews what the daemon runs on.
    Manage(commands::manage::Args),
    /// Show what runs, who is there and what was missed.
    Status(commands::status::Args),
    /// Check the broker, the files and the credentials of this root.
    Doctor(commands::doctor::Args),
    /// Print or install a systemd unit.
    Service(commands::service::Args),
    /// Add or list the spaces of this root.
    Space(commands::space::Args),
    /// Provision, narrow, retire or list agents.
    Agent(commands::agent::Args),
    /// Configure or list channels.
    Channel(commands::channel::Args),
    /// List the durable members of a channel.
    Members(commands::members::Args),
    /// List what waits, for whom, how old, and why.
    Pending(commands::pending::Args),
    /// List entries that are parked or were given up.
    Dead(commands::dead::Args),
    /// Put a dead entry back.
    Redeliver(commands::redeliver::Args),
    /// Post on a channel.
    Post(commands::post::Args),
    /// Send a direct message.
    Dm(commands::dm::Args),
    /// Ask whoever holds a role.
    Ask(commands::ask::Args),
    /// List the role requests of an agent.
    Requests(commands::requests::Args),
    /// Show where a role request stands, or take it back.
    Request(commands::request::Args),
    /// Work off the requests of a role.
    Serve(commands::serve::Args),
    /// Join a channel.
    Join(commands::join::Args),
    /// Leave a channel.
    Leave(commands::leave::Args),
    /// Read what has arrived.
    Inbox(commands::inbox::Args),
    /// Print completions for a shell.
    Completions(commands::completions::Args),
}

impl Command {
    /// A daemon logs to its own file as well, which it finds only once it knows its root.
    pub fn logs_for_itself(&self) -> bool {
        matches!(self, Self::Deliver(_) | Self::Manage(_))
    }

    /// Whether it only works on a mesh that others have started.
    pub fn needs_mesh(&self) -> bool {
        !self.logs_for_itself() && !matches!(self, Self::Up(_) | Self::Status(_))
    }
}

fn after_help() -> String {
    format!(
        "Examples:\n  \
         cotal up --detach\n  \
         cotal agent add alice --read 'team.>' --post 'team.>'\n  \
         cotal agent add bob --read 'team.>' --post team.backend\n  \
         cotal join team.backend --as bob\n  \
         cotal post team.backend 'The build is green' --as alice\n  \
         cotal inbox --as bob\n  \
         cotal down\n\n\
         Exit codes:\n{}",
        Exit::table()
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_tree_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }

    #[test]
    fn exit_codes_are_numbered_without_a_gap_and_all_in_the_help() {
        let help = Cli::command().render_long_help().to_string();
        for (n, exit) in Exit::ALL.into_iter().enumerate() {
            assert_eq!(exit as usize, n);
            assert!(help.contains(&format!("{n:>2}  {}", exit.meaning())), "{help}");
        }
    }
}
