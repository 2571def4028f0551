//! The command tree. What a command does is in its own file below `commands`.

use clap::{Parser, Subcommand};

use crate::args::Global;
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

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Bring the mesh of this root up, or complete what is missing of it.
    Up(commands::up::Args),
    /// Stop the daemon and the broker of this root.
    Down(commands::down::Args),
    /// Run the delivery daemon of a space.
    Deliver(commands::deliver::Args),
    /// Provision the root of a delivery host, such as a standby.
    Host(commands::host::Args),
    /// Mint one credential that a delivery host runs on.
    Mint(commands::mint::Args),
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
    /// List the durable members of a channel and who reads it live.
    Members(commands::members::Args),
    /// List who is there and which channels each reads.
    Who(commands::who::Args),
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
    /// Set, list, cancel and await timers of workflow endpoints.
    Timer(commands::timer::Args),
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

    /// The lease is the only arbiter between hosts.
    #[test]
    fn stb_3_there_is_no_election_placement_or_failover_command() {
        let mut open = vec![Cli::command()];
        let mut seen = 0;
        while let Some(command) = open.pop() {
            let name = command.get_name().to_owned();
            for word in ["elect", "fail", "place", "promote", "demote", "takeover", "switch"] {
                assert!(!name.contains(word), "`{name}` decides who serves");
            }
            seen += 1;
            open.extend(command.get_subcommands().cloned());
        }
        assert!(seen > 20, "the commands were not found");
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
