//! The acts: what is done, what must be seen, and the words for both.

use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::bounded::until;
use super::mesh::{Mesh, Message};
use super::processes;
use super::stage::{Clock, say};

const TEAM: &str = "team.backend";
const CHAT: &str = "team.chat";
/// A crashed holder's lease runs out after 30 s.
const LEASE_GONE_WITHIN: Duration = Duration::from_secs(60);
const DAEMON: &str = "/spaces/0/pid";

/// Plays every act, in order.
pub(super) fn tell(mesh: &mut Mesh, clock: &mut Clock) -> anyhow::Result<()> {
    clock.act("A broker is found", || {
        say(format_args!("nats-server: {}", mesh.find_broker()?));
        Ok(())
    })?;
    clock.act("An authenticated mesh comes up", || comes_up(mesh))?;
    clock.act("Alice, Bob and Carol are provisioned", || provisioned(mesh))?;
    clock.act("Bob joins a durable channel and disconnects", || joins(mesh, 1))?;
    clock.act("Alice posts while Bob is away", || posts_to_absent(mesh))?;
    clock.act("Bob comes back and gets the post, once", || {
        expect(mesh, "Bob", &[(TEAM, "The build is green")])
    })?;
    clock.act("Bob leaves, Alice posts again, Bob gets nothing", || leaves(mesh))?;
    clock.act("On a live channel only a mention is kept", || mentioned(mesh))?;
    clock.act("The daemon is killed between post and read", || killed(mesh))?;
    clock.act("The space frees itself and a new daemon serves", || serves_again(mesh))?;
    clock.act("Bob reads, and nothing is lost", || {
        let expected = [(TEAM, "Posted before the crash"), (TEAM, "Posted after the crash")];
        expect(mesh, "Bob", &expected)
    })?;
    clock.act("Everything is taken down", || taken_down(mesh))
}

fn comes_up(mesh: &Mesh) -> anyhow::Result<()> {
    mesh.cotal(&["up", "--detach", "--server-port", "0"])?;
    let (broker, daemon) = (mesh.number("/broker/pid")?, mesh.number(DAEMON)?);
    say(format_args!("The root is {}.", mesh.root().display()));
    say(format_args!("The broker is process {broker}, at {}.", mesh.address()?));
    say(format_args!("The delivery daemon is process {daemon}, and answered that it serves."));
    Ok(())
}

fn provisioned(mesh: &Mesh) -> anyhow::Result<()> {
    for name in ["Alice", "Bob", "Carol"] {
        let added = mesh.cotal(&["agent", "add", name, "--read", "team.>", "--post", "team.>"])?;
        say(format_args!("{name} has a credential: {}", added.stdout.trim()));
    }
    Ok(())
}

fn joins(mesh: &Mesh, generation: u64) -> anyhow::Result<()> {
    let joined = mesh.cotal(&["join", TEAM, "--as", "Bob", "--json"])?;
    let state: Value = serde_json::from_str(&joined.stdout).context("the join's answer")?;
    if state["durable"] != true || state["generation"] != generation {
        bail!("expected a durable join of generation {generation}, saw {state}");
    }
    say(format_args!("Bob is a durable member of {TEAM}, generation {generation}."));
    say("His process has ended: he is away.");
    Ok(())
}

fn posts_to_absent(mesh: &Mesh) -> anyhow::Result<()> {
    post(mesh, TEAM, "The build is green", None)?;
    mesh.routed(1)
}

fn leaves(mesh: &Mesh) -> anyhow::Result<()> {
    mesh.cotal(&["leave", TEAM, "--as", "Bob"])?;
    say(format_args!("Bob has left {TEAM}."));
    post(mesh, TEAM, "Not for Bob any more", None)?;
    mesh.routed(2)?;
    say("The daemon has routed it.");
    expect(mesh, "Bob", &[])
}

fn mentioned(mesh: &Mesh) -> anyhow::Result<()> {
    mesh.cotal(&["channel", "set", CHAT, "--class", "live"])?;
    say(format_args!("{CHAT} is a live channel, and nobody has joined it."));
    post(mesh, CHAT, "Said to whoever listens", None)?;
    post(mesh, CHAT, "Please have a look", Some("Carol"))?;
    mesh.routed(4)?;
    expect(mesh, "Carol", &[(CHAT, "Please have a look")])?;
    expect(mesh, "Bob", &[])
}

fn killed(mesh: &Mesh) -> anyhow::Result<()> {
    joins(mesh, 2)?;
    let daemon = u32::try_from(mesh.number(DAEMON)?)?;
    post(mesh, TEAM, "Posted before the crash", None)?;
    processes::kill(daemon, mesh.root())?;
    let gone = until(Duration::from_secs(10), Duration::from_millis(10), || {
        Ok((!processes::names(daemon, mesh.root())).then_some(()))
    })?;
    if gone.is_none() {
        bail!("expected process {daemon} to be gone after SIGKILL, saw it running");
    }
    say(format_args!("The delivery daemon, process {daemon}, is gone by SIGKILL."));
    post(mesh, TEAM, "Posted after the crash", None)
}

fn serves_again(mesh: &Mesh) -> anyhow::Result<()> {
    say("The dead daemon's lease runs out within 30 s, without anyone's help.");
    let mut last = Value::Null;
    let free = until(LEASE_GONE_WITHIN, Duration::from_millis(500), || {
        last = mesh.status()?["spaces"][0].take();
        // The lease is asked for before the agents: without them it is unknown, not absent.
        Ok((!last["agents"].is_null() && last["lease"].is_null()).then_some(()))
    })?;
    if free.is_none() {
        bail!("expected the lease to run out within {LEASE_GONE_WITHIN:?}, saw {last}");
    }
    mesh.cotal(&["up", "--detach"])?;
    let daemon = mesh.number(DAEMON)?;
    say(format_args!("`cotal up` started a new one, process {daemon}, and it serves."));
    Ok(())
}

fn taken_down(mesh: &mut Mesh) -> anyhow::Result<()> {
    mesh.down()?;
    say(format_args!("No process of {} is left, and its port is closed.", mesh.root().display()));
    Ok(())
}

fn post(mesh: &Mesh, channel: &str, text: &str, mention: Option<&str>) -> anyhow::Result<()> {
    let mut args = vec!["post", channel, text, "--as", "Alice"];
    if let Some(name) = mention {
        args.extend(["--mention", name]);
    }
    mesh.cotal(&args)?;
    let at = mention.map_or(String::new(), |name| format!(", mentioning {name}"));
    say(format_args!("Alice posts on {channel}{at}: {text:?}"));
    Ok(())
}

/// Reads an inbox twice: what is expected must come, and nothing must come again.
fn expect(mesh: &Mesh, who: &str, expected: &[(&str, &str)]) -> anyhow::Result<()> {
    let mut seen = mesh.inbox(who, expected.len())?;
    for message in &seen {
        say(format_args!("{who} gets, on {}: {:?}", message.channel, message.text));
    }
    let mut expected: Vec<Message> = expected
        .iter()
        .map(|&(channel, text)| Message { channel: channel.to_owned(), text: text.to_owned() })
        .collect();
    // After a crash a redelivered message may follow a newer one, so order is not promised.
    seen.sort();
    expected.sort();
    if seen != expected {
        bail!("expected {who} to get {}, saw {}", listed(&expected), listed(&seen));
    }
    say(format_args!("{who} gets nothing {}.", if seen.is_empty() { "at all" } else { "more" }));
    Ok(())
}

fn listed(messages: &[Message]) -> String {
    let one = |message: &Message| format!("{:?} on {}", message.text, message.channel);
    match messages {
        [] => "nothing".to_owned(),
        some => some.iter().map(one).collect::<Vec<_>>().join(" and "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_expected_and_seen_is_said_in_words() {
        let message = Message { channel: "c".to_owned(), text: "x".to_owned() };
        assert_eq!(listed(&[]), "nothing");
        assert_eq!(listed(&[message.clone(), message]), "\"x\" on c and \"x\" on c");
    }
}
