//! What a shell completes: commands and options from the tree, and the names of agents, channels,
//! roles and spaces from the mesh that runs.
//!
//! Invariant: a shell that waits for an answer gets one at once. What cannot be asked within a
//! moment is not completed, and nothing is said about it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use cotal_manager::Agents;
use cotal_wire::Principal;
use tokio::time::timeout;

use crate::args::{self, Global, LogFormat, MeshArgs};
use crate::commands::channel;
use crate::context::{Context, Target};

/// A person notices a longer pause; a mesh on this machine answers in a tenth of it.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// The names that an argument takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Agents,
    Channels,
    Roles,
    Spaces,
}

/// The tree, with the names of the mesh where an argument takes one.
pub fn with_names(command: Command) -> Command {
    let adds = command.get_name() == "add";
    let command = command.mut_args(|arg| match names_of(&arg, adds) {
        Some(names) => {
            arg.add(ArgValueCompleter::new(move |typed: &OsStr| candidates(names, typed)))
        }
        None => arg,
    });
    command.mut_subcommands(with_names)
}

/// Arguments of one meaning have one id in the whole tree.
fn names_of(arg: &Arg, adds: bool) -> Option<Names> {
    match arg.get_id().as_str() {
        "channel" | "read" | "post" => Some(Names::Channels),
        "name" if arg.get_long() == Some("as") => Some(Names::Agents),
        // The name of what is added is a new one.
        "name" if !adds && arg.is_positional() => Some(Names::Agents),
        "to" | "mention" | "member" => Some(Names::Agents),
        "role" => Some(Names::Roles),
        "space" => Some(Names::Spaces),
        _ => None,
    }
}

fn candidates(names: Names, typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_str().unwrap_or_default();
    let found = found(names).unwrap_or_default().into_iter();
    found.filter(|name| name.starts_with(typed)).map(CompletionCandidate::new).collect()
}

fn found(names: Names) -> Option<BTreeSet<String>> {
    let line: Vec<OsString> = std::env::args_os().collect();
    let root = option(&line, "--root").map(Into::into);
    let ctx = Context::from_process(&Global { root, log_format: LogFormat::Human }).ok()?;
    if names == Names::Spaces {
        let mesh = ctx.mesh(&ctx.root().ok()?).ok()?;
        return Some(mesh.spaces.iter().map(ToString::to_string).collect());
    }
    let space = option(&line, "--space").or_else(|| std::env::var_os("COTAL_SPACE"));
    let space = space.and_then(|space| args::space(space.to_str()?).ok());
    let target = ctx.target(&MeshArgs { space, server: None }).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let asked = runtime.block_on(async { timeout(ANSWERED_WITHIN, ask(names, &target)).await });
    runtime.shutdown_background();
    asked.ok()?.ok()
}

/// The value of an option on the line that is being completed.
fn option(line: &[OsString], name: &str) -> Option<OsString> {
    let mut words = line.iter();
    while let Some(word) = words.next() {
        if word == name {
            return words.next().cloned();
        }
        let given = word.to_str().and_then(|word| word.strip_prefix(name)?.strip_prefix('='));
        if let Some(value) = given {
            return Some(value.into());
        }
    }
    None
}

async fn ask(names: Names, target: &Target) -> anyhow::Result<BTreeSet<String>> {
    if names == Names::Channels {
        let (_, connection) = target.operator().await?;
        let known = channel::known(&connection, &target.space).await?;
        return Ok(known.iter().map(ToString::to_string).collect());
    }
    let agents = Agents::connect(&target.root, &target.space, &target.address()).await?;
    let rows = agents.acl_rows().await?;
    if names == Names::Roles {
        return Ok(agents.roles_held(&rows).iter().map(ToString::to_string).collect());
    }
    let typed = |principal: &Principal| match principal.owner() {
        "local" => principal.actor().to_owned(),
        _ => principal.to_string(),
    };
    Ok(rows.live().map(|(lifecycle, _)| typed(&lifecycle.principal)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_in_either_spelling() {
        let line = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let root = |words: &[&str]| option(&line(words), "--root");
        assert_eq!(root(&["cotal", "--root", "/r", "x"]), Some("/r".into()));
        assert_eq!(root(&["cotal", "--root=/r"]), Some("/r".into()));
        assert_eq!(root(&["cotal", "--root"]), None);
        assert_eq!(root(&["cotal", "--rooted=/r"]), None);
    }
}
