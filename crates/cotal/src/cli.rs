//! The command tree. What a command does is in its own file below `commands`.

use std::ffi::OsStr;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::args::Global;
use crate::commands;
use crate::exit::Exit;

/// Cotal: a mesh in which a post also reaches members that were offline.
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
    /// Start the mesh of this root, or whatever of it is missing.
    Up(commands::up::Args),
    /// Stop the daemon and the broker of this root.
    Down(commands::down::Args),
    /// Run the delivery daemon of a space.
    Deliver(commands::deliver::Args),
    /// Provision the root of a delivery host, such as a standby.
    Host(commands::host::Args),
    /// Mint one credential that a delivery host runs on.
    Mint(commands::mint::Args),
    /// Run the manager of a space, which renews the daemon's credentials.
    Manage(commands::manage::Args),
    /// Show what runs, who is present and what was missed.
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
    /// List who is online and which channels each reads.
    Who(commands::who::Args),
    /// Try, as an agent, what the broker must refuse it; nothing is changed.
    Audit(commands::audit::Args),
    /// List what is waiting, for whom, how long, and why.
    Pending(commands::pending::Args),
    /// List entries that are parked or were given up.
    Dead(commands::dead::Args),
    /// Retry an entry that was given up.
    Redeliver(commands::redeliver::Args),
    /// Post on a channel.
    Post(commands::post::Args),
    /// Send a direct message.
    Dm(commands::dm::Args),
    /// Ask whoever holds a role.
    Ask(commands::ask::Args),
    /// List the role requests of an agent.
    Requests(commands::requests::Args),
    /// Show the state of a role request, or cancel it.
    Request(commands::request::Args),
    /// Process the requests of a role.
    Serve(commands::serve::Args),
    /// Set, list, cancel and await timers of workflow endpoints.
    Timer(commands::timer::Args),
    /// Join a channel.
    Join(commands::join::Args),
    /// Leave a channel.
    Leave(commands::leave::Args),
    /// Read what has arrived.
    Inbox(commands::inbox::Args),
    /// Show how many messages wait in an inbox.
    Unread(commands::unread::Args),
    /// Show what was posted on a channel.
    History(commands::history::Args),
    /// Show the log of the daemon, the manager or the broker.
    Logs(commands::logs::Args),
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

/// The command tree as the process's environment completes it: a variable that is empty is one that
/// is not set.
pub fn command() -> clap::Command {
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    // A daemon and a manager belong to a root: what a shell speaks to is not what they serve.
    let of_root = |command: clap::Command| command.mut_arg("server", |arg| arg.env(None::<&str>));
    let command = Cli::command().mut_subcommand("deliver", of_root);
    without_variables(command.mut_subcommand("manage", of_root), &is_empty)
}

fn without_variables(command: clap::Command, is_empty: &dyn Fn(&OsStr) -> bool) -> clap::Command {
    let command = command.mut_args(|arg| match arg.get_env() {
        Some(name) if is_empty(name) => arg.env(None::<&'static str>),
        _ => arg,
    });
    command.mut_subcommands(|command| without_variables(command, is_empty))
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
    use clap::FromArgMatches as _;

    use super::*;

    #[test]
    fn the_command_tree_is_sound() {
        Cli::command().debug_assert();
    }

    const NASTY: &[&str] = &[
        "",
        " ",
        "-",
        "--",
        "---",
        "-x",
        "- a bullet",
        "--as",
        "--as=",
        "--json=1",
        "--help",
        "-h",
        "=",
        "0",
        "-1",
        "1",
        "18446744073709551615",
        "18446744073709551616",
        "1e309",
        "NaN",
        "a",
        "A.B",
        "a.b",
        "a.>",
        ">",
        "*",
        "a..b",
        ".a",
        "a.",
        "..",
        "../x",
        "/",
        "\\",
        "a b",
        "a\nb",
        "\t",
        "\0",
        "\u{1b}[2J",
        "\u{202e}abc",
        "grüße",
        "日本語",
        "🦀",
        "\u{feff}",
        "é",
        "%s",
        "$(id)",
        "'",
        "\"",
        "{",
        "[]",
        "null",
        "nats://",
        "tls://h",
        "nats://[::1]:4222",
        "://",
        "99999999999999999999d",
        "1h",
        "-5s",
        "0s",
        "2026-12-01T08:00:00Z",
        "9999-99-99T99:99:99Z",
        "local.alice",
        "local.",
        ".alice",
        "LOCAL.Alice",
        "wf.run.1.step",
        "wf.run.99999999999999999999.s",
        "durable",
        "live",
        "true",
        "bash",
        "human",
        "json",
    ];

    /// A small generator: the same numbers in every run.
    struct Draws(u64);

    impl Draws {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(self.0 >> 33).unwrap() % bound
        }
    }

    /// Every way to a command that does something, with the names of its options.
    fn ways(command: &clap::Command, way: &[String]) -> Vec<(Vec<String>, Vec<String>)> {
        let mut found = Vec::new();
        let mut options: Vec<String> = command
            .get_arguments()
            .filter_map(|arg| arg.get_long().map(|long| format!("--{long}")))
            .collect();
        options.push("--root".to_owned());
        found.push((way.to_vec(), options));
        for sub in command.get_subcommands() {
            let way: Vec<_> = way.iter().cloned().chain([sub.get_name().to_owned()]).collect();
            found.extend(ways(sub, &way));
        }
        found
    }

    /// Whatever is typed is parsed, or refused with a message; nothing panics.
    #[test]
    fn no_command_line_panics() {
        let mut draws = Draws(0x00c0_7a10);
        let (mut taken, mut refused) = (0, 0);
        let mut command = command();
        command.build();
        for (way, options) in ways(&command, &["cotal".to_owned()]) {
            for _ in 0..12 {
                let mut line = way.clone();
                for _ in 0..draws.below(7) {
                    let word = match draws.below(5) {
                        0 | 1 => options[draws.below(options.len())].clone(),
                        2 => "x".repeat(draws.below(3_000)),
                        _ => NASTY[draws.below(NASTY.len())].to_owned(),
                    };
                    line.push(word);
                }
                match command.try_get_matches_from_mut(&line) {
                    Ok(matches) => {
                        taken += usize::from(Cli::from_arg_matches(&matches).is_ok());
                    }
                    Err(error) => {
                        assert!(!error.render().to_string().is_empty(), "{line:?}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(taken > 5 && refused > 100, "{taken} taken, {refused} refused");
    }

    #[test]
    fn an_empty_variable_is_not_set() {
        let space = |command: clap::Command| {
            let post = command.find_subcommand("members").unwrap().clone();
            let space = post.get_arguments().find(|arg| arg.get_id() == "space").unwrap().clone();
            space.get_env().is_some()
        };
        assert!(space(without_variables(Cli::command(), &|_| false)));
        assert!(!space(without_variables(Cli::command(), &|name| name == "COTAL_SPACE")));
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
