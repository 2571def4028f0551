//! `cargo xtask demo`: the main job, played with real processes and told in plain words.
//!
//! Invariant: nothing is told that was not seen, nothing is waited for without an end, and whatever
//! happens nothing of the demo is left running.

mod bounded;
mod janitor;
mod mesh;
mod processes;
pub(crate) mod soak;
mod stage;
mod story;

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::bail;

use crate::build;

use self::mesh::Mesh;
use self::stage::Clock;

/// A build from nothing takes minutes on two cores.
const BUILT_WITHIN: Duration = Duration::from_secs(45 * 60);

/// What to play with.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Play with this binary instead of building one.
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
        None => clock.act("The program is built", built)?,
    };
    let mut mesh = Mesh::new(&cotal)?;
    let told = story::tell(&mut mesh, clock);
    if told.is_err() {
        mesh.tell_logs();
    }
    told
}

/// The build runs beside this thread, so that even a compiler that hangs ends the demo.
fn built() -> anyhow::Result<PathBuf> {
    let (tell, built) = mpsc::channel();
    thread::spawn(move || tell.send(build::for_tests()));
    match built.recv_timeout(BUILT_WITHIN) {
        Ok(built) => built,
        Err(_) => bail!("expected a build within {BUILT_WITHIN:?}, saw none"),
    }
}
