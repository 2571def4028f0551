//! `cargo xtask demo`: the main job, played with real processes and told in plain words.
//!
//! Invariant: nothing is told that was not seen, nothing is waited for without an end, and whatever
//! happens nothing of the demo is left running.

mod bounded;
mod janitor;
mod mesh;
mod processes;
pub(crate) mod soak;
mod story;

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::dist;

use self::mesh::Mesh;

/// A release build from nothing takes minutes on two cores.
const BUILT_WITHIN: Duration = Duration::from_secs(45 * 60);

/// What to play with.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Play with this binary instead of building the release binary.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Plays the main job.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut clock = Clock::default();
    let played = play(args, &mut clock);
    clock.tell();
    played?;
    println!("\nEverything went as promised.");
    Ok(())
}

fn play(args: &Args, clock: &mut Clock) -> anyhow::Result<()> {
    let cotal = match &args.binary {
        Some(path) => std::path::absolute(path)?,
        None => clock.act("The release binary is built", build)?,
    };
    let mut mesh = Mesh::new(&cotal)?;
    let told = story::tell(&mut mesh, clock);
    if told.is_err() {
        mesh.tell_logs();
    }
    told
}

/// The build runs beside this thread, so that even a compiler that hangs ends the demo.
fn build() -> anyhow::Result<PathBuf> {
    let (tell, built) = mpsc::channel();
    thread::spawn(move || tell.send(dist::build()));
    match built.recv_timeout(BUILT_WITHIN) {
        Ok(built) => built,
        Err(_) => bail!("expected a release binary within {BUILT_WITHIN:?}, saw none"),
    }
}

/// The acts so far and how long each took.
#[derive(Debug, Default)]
struct Clock {
    acts: Vec<(&'static str, Duration)>,
}

impl Clock {
    /// Plays one act; the first that fails is the last.
    fn act<T>(
        &mut self,
        title: &'static str,
        action: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        println!("\n== {title}");
        let start = Instant::now();
        let outcome = action();
        self.acts.push((title, start.elapsed()));
        outcome.with_context(|| format!("failed at {title:?}"))
    }

    /// Says how long each act took.
    fn tell(&self) {
        println!("\nTime of each step:");
        for (title, took) in &self.acts {
            println!("{:>8.1} s  {title}", took.as_secs_f64());
        }
        let total: Duration = self.acts.iter().map(|(_, took)| *took).sum();
        println!("{:>8.1} s  in total", total.as_secs_f64());
    }
}

/// One line of the story.
fn say(line: impl std::fmt::Display) {
    println!("   {line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_act_is_named_and_timed() {
        let mut clock = Clock::default();
        assert_eq!(clock.act("works", || Ok(7)).unwrap(), 7);
        let failed: anyhow::Result<()> = clock.act("breaks", || bail!("expected a, saw b"));
        let message = format!("{:#}", failed.unwrap_err());
        assert_eq!(message, "failed at \"breaks\": expected a, saw b");
        assert_eq!(clock.acts.len(), 2);
    }
}
