//! `docs/standby.md`, followed to the letter. Only `ssh` stays on this machine.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cotal_testkit::{broker_binary, eventually};
use cotal_workspace::{HostFile, Root};
use rustix::process::{Pid, Signal, kill_process};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/standby.md");

/// Every `sh` block of the page, in order.
fn blocks() -> Vec<String> {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let after = page.split("```sh\n").skip(1);
    after.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// The signing machine, and the two others as directories that `ssh` enters.
struct Machines {
    dir: tempfile::TempDir,
    port: u16,
}

impl Machines {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        for made in [&bin, &dir.path().join("home/east"), &dir.path().join("home/west")] {
            std::fs::create_dir_all(made).unwrap();
        }
        std::os::unix::fs::symlink(super::BINARY, bin.join("cotal")).unwrap();
        let ssh = bin.join("ssh");
        let script = "#!/bin/sh\ncd \"$MACHINES/$1\" || exit 1\nshift\nexec sh -c \"$*\"\n";
        std::fs::write(&ssh, script).unwrap();
        std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o700)).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = port.local_addr().unwrap().port();
        Self { dir, port }
    }

    fn at(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Runs blocks in one shell, as the page says.
    fn run(&self, blocks: &[String]) -> Output {
        let path = std::env::var_os("PATH").unwrap();
        let own = std::iter::once(self.at("bin")).chain(std::env::split_paths(&path));
        Command::new("sh")
            .args(["-euc", &blocks.concat()])
            .env("PATH", std::env::join_paths(own).unwrap())
            .env("MACHINES", self.at("home"))
            .env("MESH", self.at("mesh"))
            .env("STAGE", self.at("stage"))
            .env("PORT", self.port.to_string())
            .env("BROKER", format!("nats://127.0.0.1:{}", self.port))
            .env("XDG_CONFIG_HOME", self.at("config"))
            .env("COTAL_NATS_SERVER", broker_binary().path)
            .env("COTAL_CREDENTIAL_LIFETIME", "40")
            .env_remove("COTAL_SPACE")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    #[track_caller]
    fn done(&self, blocks: &[String]) -> String {
        let output = self.run(blocks);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{blocks:?}: {said}");
        said + &String::from_utf8_lossy(&output.stdout)
    }

    /// What the host of a machine says of itself.
    fn host(&self, name: &str) -> Option<HostFile> {
        let root = Root::at(self.at("home").join(name).join("delivery")).ok()?;
        HostFile::load(&root).ok()?.flatten()
    }

    fn jwt(&self, path: &str) -> String {
        std::fs::read_to_string(self.at(path)).unwrap()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // A test that failed must not leave processes behind.
        for name in ["east", "west"] {
            if let Some(host) = self.host(name) {
                end(host.pid, Signal::KILL);
            }
        }
        let _ = Command::new(super::BINARY)
            .args(["down", "--root"])
            .arg(self.at("mesh"))
            .env("XDG_CONFIG_HOME", self.at("config"))
            .output();
    }
}

fn end(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = kill_process(pid, signal);
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn stb_1_the_page_on_standby_hosts_holds_to_the_letter() {
    let blocks = blocks();
    let [names, up, provision, start, look, renew] = &blocks[..] else {
        panic!("the page has other steps than this test knows: {blocks:?}");
    };
    let machines = Machines::new();
    let with_names = |block: &String| vec![names.clone(), block.clone()];
    machines.done(&[names.clone(), up.clone(), provision.clone()]);
    for host in ["east", "west"] {
        let creds = machines.at(&format!("home/{host}/delivery/.cotal/main/delivery.creds"));
        assert_eq!(mode(&creds), 0o600);
        let keys = machines.at(&format!("home/{host}/delivery/.cotal/auth"));
        assert!(!keys.exists(), "a signing key left the machine");
    }
    machines.done(&with_names(start));

    let show = || async { machines.run(&with_names(look)) };
    let shown = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout);
        let lane = |state: &str| text.contains(&format!("lane      main {state} for"));
        lane("serving") && lane("standby")
    };
    eventually("one serves and the other stands by", show, shown).await;

    // The renewal reaches each host's own store, and the holder moves onto it.
    let mut in_mesh = with_names(renew);
    in_mesh.insert(1, "cd \"$MESH\"\n".to_owned());
    let path = "home/east/delivery/.cotal/main/delivery.creds";
    let before = machines.jwt(path);
    // They were minted one after the other, so one run may find the first past half its life and
    // not the second.
    let minted = std::cell::Cell::new(0);
    let again = || async {
        let said = machines.done(&in_mesh);
        minted.set(minted.get() + said.matches("delivery credential minted").count());
        minted.get()
    };
    eventually("both are past half their lives", again, |&minted| minted >= 2).await;
    assert_ne!(machines.jwt(path), before);

    let state = |name: &str| Some(machines.host(name)?.lanes.first()?.state.clone());
    let (holder, other) = match state("east").as_deref() {
        Some("serving") => ("east", "west"),
        _ => ("west", "east"),
    };
    let log = machines.at(&format!("home/{holder}/delivery/.cotal/host.log"));
    let said = || async { std::fs::read_to_string(&log).unwrap() };
    let moved = |log: &String| log.contains("reconnected with a renewed credential");
    eventually("the holder moves onto the renewed credential", said, moved).await;

    end(machines.host(holder).unwrap().pid, Signal::TERM);
    let serves = || async { state(other) };
    eventually("the other one serves", serves, |state| state.as_deref() == Some("serving")).await;
    end(machines.host(other).unwrap().pid, Signal::TERM);
    eventually("both hosts end", || async { machines.host(other) }, Option::is_none).await;
}
