//! `cotal logs`: what the daemon, the manager and the broker of a root have said.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use cotal_workspace::Segment;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::args::MeshArgs;
use crate::commands::served_space::signalled;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::plain_lines;

/// Between two looks at a log that is followed.
const LOG_POLL_EVERY: Duration = Duration::from_millis(250);
/// How much of a log's end is read: logs are rotated at 16 MiB.
const TAIL: u64 = 1024 * 1024;

/// Prints the log of the daemon, the manager or the broker.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cotal logs
  cotal logs manager --lines 200
  cotal logs broker --follow")]
pub struct Args {
    /// The process whose log is shown.
    #[arg(default_value = "delivery", value_name = "WHOSE")]
    whose: Whose,
    /// How many lines of its end.
    #[arg(long, value_name = "N", default_value_t = 50)]
    lines: usize,
    /// Stay and print what is written; Ctrl-C ends it.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    mesh: MeshArgs,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Whose {
    /// The delivery daemon.
    Delivery,
    /// The manager.
    Manager,
    /// The broker.
    Broker,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let target = ctx.target(&args.mesh)?;
    let space = Segment::from(&target.space);
    let path = match args.whose {
        Whose::Delivery => target.root.delivery_log(&space),
        Whose::Manager => target.root.manager_log(&space),
        Whose::Broker => target.root.broker_log(),
    };
    let mut log = Log::open(path)?;
    let tail = log.rest()?;
    let lines: Vec<_> = tail.lines().collect();
    for line in &lines[lines.len().saturating_sub(args.lines)..] {
        ctx.out.data(plain_lines(line))?;
    }
    if !args.follow {
        return Ok(Exit::Ok);
    }
    loop {
        tokio::select! {
            () = sleep(LOG_POLL_EVERY) => {}
            _ = signalled(&mut interrupt, &mut terminate) => return Ok(Exit::Ok),
        }
        for line in log.rest()?.lines() {
            ctx.out.data(plain_lines(line))?;
        }
    }
}

/// A log and how far it was read.
struct Log {
    path: PathBuf,
    read: u64,
}

impl Log {
    fn open(path: PathBuf) -> anyhow::Result<Self> {
        let length = size(&path)?.ok_or_else(|| {
            let message = format!("{} does not exist: nothing was logged yet", path.display());
            Failure::new(Exit::Absent, message)
        })?;
        Ok(Self { path, read: length.saturating_sub(TAIL) })
    }

    /// What was written since, up to its last whole line; from the beginning of one that was
    /// rotated.
    fn rest(&mut self) -> anyhow::Result<String> {
        // A rotation leaves no file for a moment.
        let Some(length) = size(&self.path)? else { return Ok(String::new()) };
        if length < self.read {
            self.read = 0;
        }
        let path = self.path.display();
        let mut file = File::open(&self.path).with_context(|| format!("{path} cannot be read"))?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        bytes.truncate(whole);
        self.read += whole as u64;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn size(path: &Path) -> anyhow::Result<Option<u64>> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some(found.len())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
    }
}
