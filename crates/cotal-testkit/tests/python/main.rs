//! A client of another language on the real mesh, with nothing but a creds file and the broker's
//! URL.
//!
//! nats-py is fetched with pip into the target directory. Where pip cannot fetch it the test fails
//! and says so; `COTAL_OFFLINE=1` is how a person without a network says that it shall be left out.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use cotal_testkit::Mesh;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::{Duration, timeout};

const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python");
const STEP_WITHIN: Duration = Duration::from_secs(60);

/// The directory that holds nats-py; an unfinished one is never used.
async fn nats_py() -> Result<PathBuf, String> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nats-py-2.16.0");
    if dir.is_dir() {
        return Ok(dir);
    }
    let fresh = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let pip = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
        .arg(fresh.path())
        .args(["--requirement", &format!("{HERE}/requirements.txt")])
        .output()
        .await
        .map_err(|e| format!("python3 cannot be run: {e}"))?;
    if !pip.status.success() {
        return Err(String::from_utf8_lossy(&pip.stderr).into_owned());
    }
    match std::fs::rename(fresh.keep(), &dir) {
        Err(error) if !dir.is_dir() => Err(format!("{} cannot be made: {error}", dir.display())),
        _ => Ok(dir),
    }
}

struct Script {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Script {
    fn start(packages: &Path, args: [&str; 3]) -> Self {
        let mut child = Command::new("python3")
            .arg(format!("{HERE}/peer.py"))
            .args(args)
            .env("PYTHONPATH", packages)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a running script");
        let stdout = child.stdout.take().expect("a pipe");
        Self { child, lines: BufReader::new(stdout).lines() }
    }

    /// What the script says about the step that comes next, which must be `step`.
    async fn says(&mut self, step: &str) -> Value {
        let line = timeout(STEP_WITHIN, self.lines.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("{step} took too long")).expect("a line");
        let line = line.unwrap_or_else(|| panic!("the script ended before {step}"));
        let said: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(said["step"], step, "{said}");
        said
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_client_needs_a_creds_file_and_the_wire_and_nothing_else() {
    let packages = match nats_py().await {
        Ok(packages) => packages,
        Err(why) if std::env::var_os("COTAL_OFFLINE").is_some() => {
            eprintln!("SKIPPED: no Python client was tried, pip cannot fetch nats-py: {why}");
            return;
        }
        Err(why) => panic!("pip cannot fetch nats-py (COTAL_OFFLINE=1 leaves this out): {why}"),
    };
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let creds = mesh.add_agent("pia", &["team.>"], &["team.>"], None).await;
    let file = mesh.dir().join("pia.creds");
    std::fs::write(&file, creds).expect("a creds file");

    let mut pia =
        Script::start(&packages, [mesh.url(), file.to_str().expect("a path"), "team.backend"]);
    assert_eq!(pia.says("present").await["name"], "pia");
    let channels = pia.says("channels").await;
    assert_eq!(channels["found"]["=defaults"], json!({ "deliveryClass": "durable" }));
    assert_eq!(pia.says("lease").await["ready"], true);
    assert_eq!(pia.says("joined").await["durable"], true);
    assert_eq!(pia.says("posted").await["seq"], 1);
    assert_eq!(pia.says("heard").await["subject"], "cotal.main.chat.local.pia.team.backend");
    pia.says("ready").await;
    let ack = alice.post("team.backend", "from-rust", &[]).await;
    let delivered = pia.says("delivered").await;
    let wanted = json!({
        "step": "delivered", "id": "from-rust", "sender": "local.alice", "seq": ack.seq,
    });
    assert_eq!(delivered, wanted);
    assert_eq!(pia.says("history").await["texts"], json!(["from python", "from-rust"]));
    assert_eq!(pia.says("left").await["channel"], "team.backend");
    let denied = pia.says("denied").await;
    assert!(
        denied["error"].as_str().is_some_and(|e| e.contains("permissions violation")),
        "{denied}"
    );
    let status = timeout(STEP_WITHIN, pia.child.wait()).await.expect("an end").expect("a status");
    assert!(status.success());
}
