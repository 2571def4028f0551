//! A mesh in a temporary root, and the `cotal` commands that are run on it.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tempfile::TempDir;

use super::bounded::{self, Ended, until};
use super::janitor::Janitor;
use super::processes;

/// Longer than any command takes that does not fetch the broker.
const COMMAND: Duration = Duration::from_secs(60);
/// Fetching the broker downloads some megabytes.
const FETCH: Duration = Duration::from_secs(10 * 60);
/// How long what was asked to end may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);
const OUTPUT_POLL_EVERY: Duration = Duration::from_millis(100);
/// What of the caller's environment would make the demo another one.
const FOREIGN: [&str; 6] = [
    "COTAL_SPACE",
    "COTAL_LOG",
    "COTAL_LOG_FORMAT",
    "COTAL_CREDENTIAL_LIFETIME",
    "COTAL_DELIVERY_BROKER_GONE_MS",
    "COTAL_DELIVERY_BROKER_GONE_BACKSTOP_MS",
];
/// Lines of a log that are shown when something failed.
const TAIL: usize = 15;

/// A message as `cotal inbox --json` prints it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Message {
    pub(super) channel: String,
    pub(super) text: String,
}

/// The mesh. Dropping it takes down whatever of it still runs.
#[derive(Debug)]
pub(super) struct Mesh {
    cotal: PathBuf,
    dir: TempDir,
    root: PathBuf,
    env: Vec<(&'static str, String)>,
    janitor: Janitor,
}

impl Mesh {
    /// A root without a mesh.
    pub(super) fn new(cotal: &Path) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("cotal-demo-").tempdir()?;
        // Command lines name the root without links, and processes are found by it.
        let base = dir.path().canonicalize()?;
        let root = base.join("root");
        fs::create_dir(&root)?;
        fs::create_dir(base.join("output"))?;
        let janitor = Janitor::start(cotal, &root, &base)?;
        Ok(Self { cotal: cotal.to_owned(), dir, root, env: Vec::new(), janitor })
    }

    /// Sets a variable of every command from now on.
    pub(super) fn set_env(&mut self, name: &'static str, value: &str) {
        self.env.push((name, value.to_owned()));
    }

    /// Where it lives.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Runs `cotal` and says how it ended.
    pub(super) fn run(&self, args: &[&str], within: Duration) -> anyhow::Result<Ended> {
        let mut command = Command::new(&self.cotal);
        command.arg("--root").arg(&self.root).args(args).current_dir(&self.root);
        // The registry of the user who runs the demo is none of the demo's business.
        command.env("XDG_CONFIG_HOME", self.dir.path().join("config")).env("NO_COLOR", "1");
        for name in FOREIGN {
            command.env_remove(name);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        bounded::run(&mut command, within, &self.dir.path().join("output"))
    }

    /// Runs a command that must succeed, and returns what it printed.
    pub(super) fn cotal(&self, args: &[&str]) -> anyhow::Result<Ended> {
        let ended = self.run(args, COMMAND)?;
        if ended.code() != Some(0) {
            let (shown, how, said) = (args.join(" "), ended.how(), ended.stderr.trim());
            bail!("expected `cotal {shown}` to succeed, saw {how}: {said}");
        }
        Ok(ended)
    }

    /// The broker's program, found or fetched as the product does it.
    pub(super) fn find_broker(&self) -> anyhow::Result<String> {
        let ended = self.run(&["doctor", "--json"], FETCH)?;
        let findings: Value = serde_json::from_str(&ended.stdout)
            .with_context(|| format!("expected findings, saw {}: {}", ended.how(), ended.stderr))?;
        let broker = &findings[0];
        let detail = broker["detail"].as_str().unwrap_or_default().to_owned();
        if broker["check"] != "nats-server" || broker["verdict"] == "broken" {
            bail!("expected a usable nats-server, saw: {detail}");
        }
        Ok(detail)
    }

    /// What `cotal status` knows, whatever it thinks of it.
    pub(super) fn status(&self) -> anyhow::Result<Value> {
        let ended = self.run(&["status", "--json"], COMMAND)?;
        serde_json::from_str(&ended.stdout).with_context(|| {
            format!("expected a status, saw {}: {}", ended.how(), ended.stderr.trim())
        })
    }

    /// A number of the status, under a JSON pointer.
    pub(super) fn number(&self, pointer: &str) -> anyhow::Result<u64> {
        let status = self.status()?;
        let number = status.pointer(pointer).and_then(Value::as_u64);
        number
            .with_context(|| format!("expected a number at {pointer} of the status, saw {status}"))
    }

    /// Where the broker listens.
    pub(super) fn address(&self) -> anyhow::Result<SocketAddr> {
        let status = self.status()?;
        let server = status.pointer("/broker/server").and_then(Value::as_str).unwrap_or_default();
        let address = server.strip_prefix("nats://").and_then(|text| text.parse().ok());
        address.with_context(|| format!("expected the broker's address, saw {server:?}"))
    }

    /// Waits until the daemon has routed this many posts since it started.
    pub(super) fn routed(&self, posts: u64) -> anyhow::Result<()> {
        let mut last = Value::Null;
        let routed = until(COMMAND, OUTPUT_POLL_EVERY, || {
            last = self.status()?["spaces"][0]["counters"].take();
            Ok(last["posts"].as_u64().filter(|n| *n >= posts))
        })?;
        match routed {
            Some(_) => Ok(()),
            None => bail!("expected {posts} posts to be routed within {COMMAND:?}, saw {last}"),
        }
    }

    /// Reads the inbox of `who` until `expected` messages have come, then whatever else is there.
    pub(super) fn inbox(&self, who: &str, expected: usize) -> anyhow::Result<Vec<Message>> {
        let mut seen = Vec::new();
        if expected > 0 {
            let count = expected.to_string();
            let follow = ["inbox", "--as", who, "--follow", "--json", "--count", &count];
            // What came before the time was over counts as seen.
            seen = messages(&self.run(&follow, COMMAND)?.stdout)?;
        }
        let rest = self.cotal(&["inbox", "--as", who, "--json"])?;
        seen.extend(messages(&rest.stdout)?);
        Ok(seen)
    }

    /// Takes everything down and proves that nothing is left.
    pub(super) fn down(&mut self) -> anyhow::Result<()> {
        let address = self.address()?;
        self.cotal(&["down"])?;
        let mut left = Vec::new();
        let gone = until(GONE_WITHIN, OUTPUT_POLL_EVERY, || {
            left = processes::naming(&self.root)?;
            Ok(left.is_empty().then_some(()))
        })?;
        if gone.is_none() {
            bail!("expected no process of {} to be left, saw {left:?}", self.root.display());
        }
        if TcpStream::connect_timeout(&address, Duration::from_secs(2)).is_ok() {
            bail!("expected nobody to listen at {address}, saw a listener");
        }
        self.janitor.dismiss()
    }

    /// Shows the ends of the logs, for whoever has to find out what failed.
    pub(super) fn tell_logs(&self) {
        let dot = self.root.join(".cotal");
        for name in ["delivery.main.log", "manager.main.log", "broker/nats-server.log"] {
            let Ok(text) = fs::read_to_string(dot.join(name)) else { continue };
            eprintln!("\nthe end of {name}:");
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(TAIL)..] {
                eprintln!("  {line}");
            }
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let Ok(left) = processes::naming(&self.root) else { return };
        if !left.is_empty() {
            // What does not end when it is asked to is ended all the same.
            let asked = self.run(&["down"], COMMAND);
            for pid in processes::naming(&self.root).unwrap_or_default() {
                if let Err(error) = processes::kill(pid, &self.root) {
                    eprintln!("process {pid} may be left running: {error:#}; {asked:?}");
                }
            }
        }
        if let Err(error) = self.janitor.dismiss() {
            eprintln!("{error:#}");
        }
    }
}

fn messages(lines: &str) -> anyhow::Result<Vec<Message>> {
    let read = |line: &str| {
        let message: Value = serde_json::from_str(line)
            .with_context(|| format!("expected a message as JSON, saw {line:?}"))?;
        let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
        Ok(Message { channel: text("channel"), text: text("text") })
    };
    lines.lines().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inbox_lines_are_read_and_anything_else_is_no_message() {
        let lines = "{\"channel\":\"a\",\"text\":\"x\"}\n{\"channel\":null,\"text\":\"y\"}\n";
        let read = messages(lines).unwrap();
        let message = |channel: &str, text: &str| Message {
            channel: channel.to_owned(),
            text: text.to_owned(),
        };
        assert_eq!(read, [message("a", "x"), message("", "y")]);
        assert!(messages("nothing has arrived\n").is_err());
    }
}
