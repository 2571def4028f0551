//! `up` in the foreground, whose daemon dies, is stopped or is not there yet.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cotal_workspace::identity::holders;
use rustix::process::Signal;

use crate::site::{Site, is_alive, signal, wait_until};

const DIED: &str =
    "delivery daemon exited (signal SIGKILL) while nats-server is running - restarting it";

const RELEASED: &str = "the lease is released";

/// A running `cotal up` and what it has said.
pub struct Foreground {
    child: Child,
    said: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Foreground {
    pub fn up(site: &Site) -> Self {
        let up = Self::start(site);
        up.says("The mesh is up");
        up
    }

    fn start(site: &Site) -> Self {
        Self::start_with(site, &[])
    }

    fn start_with(site: &Site, env: &[(&str, &str)]) -> Self {
        let mut command = site.command(&["up", "--server-port", "0"]);
        Self::run(command.envs(env.iter().copied()))
    }

    fn run(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&said);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                sink.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self { child, said, reader: Some(reader) }
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits for a text. A replacement has to wait for the lease of its predecessor, 30 s.
    #[track_caller]
    pub fn says(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.said().contains(text) {
            assert!(Instant::now() < deadline, "{text:?} is not in:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its exit code, once all that it said was read.
    fn ended(&mut self) -> i32 {
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        code
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        // A test that failed must not leave it behind; one that ended has been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kill_daemon(site: &Site) -> u32 {
    let daemon = site.daemon();
    signal(daemon, Signal::KILL);
    wait_until("the daemon's end", || !is_alive(daemon));
    daemon
}

#[test]
fn lif_9_a_daemon_that_died_is_restarted_after_the_lease_of_its_predecessor() {
    let site = Site::new();
    let mut up = Foreground::up(&site);
    let died = kill_daemon(&site);
    up.says(DIED);
    up.says("the delivery daemon could not be restarted: it exited (code 8); trying again");
    up.says("delivery daemon running again");
    assert_ne!(site.daemon(), died);
    site.run(&["status"]).ok();
    signal(up.child.id(), Signal::INT);
    assert_eq!(up.ended(), 0);
    assert!(!site.path("main/delivery.creds").exists());
}

#[test]
fn lif_9_a_daemon_that_was_asked_to_end_stays_stopped() {
    for wish in [Signal::TERM, Signal::INT] {
        let site = Site::new();
        let up = Foreground::up(&site);
        signal(site.daemon(), wish);
        up.says("the delivery daemon was stopped and is not restarted");
        assert!(!up.said().contains("restarting it"), "{}", up.said());
        site.run(&["status"]).ends(7);
    }
}

#[test]
fn lif_9_a_stop_between_two_attempts_is_final() {
    let site = Site::new();
    let mut up = Foreground::up(&site);
    let broker = site.broker();
    kill_daemon(&site);
    up.says("trying again");
    site.run(&["down"]).ok();
    assert_eq!(up.ended(), 1);
    assert_eq!(up.said().matches("restarting it").count(), 1, "{}", up.said());
    assert!(!is_alive(broker) && !site.path("main/delivery.creds").exists());
    site.run(&["down"]).ok().says("was not running");
}

#[test]
fn lif_9_a_replacement_that_is_still_starting_is_stopped_for_good() {
    let site = Site::new();
    let mut up = Foreground::up(&site);
    // A broker that does not answer keeps the replacement at its dial.
    signal(site.broker(), Signal::STOP);
    kill_daemon(&site);
    up.says(DIED);
    let lock = site.path("delivery.main.run.lock");
    wait_until("the replacement", || !holders(&lock).is_empty());
    let replacement = holders(&lock)[0];
    let down = site.run(&["down"]).ok().says("delivery daemon stopped");
    assert!(!is_alive(replacement), "{down:?}");
    assert_eq!(up.ended(), 1);
    assert_eq!(up.said().matches("restarting it").count(), 1, "{}", up.said());
    assert!(holders(&lock).is_empty() && !site.path("main/delivery.creds").exists());
}

#[test]
fn lif_9_a_replacement_that_does_not_bind_gets_the_warning_of_the_start() {
    let site = Site::new();
    let mut up = Foreground::start_with(&site, &[("COTAL_SERVING_WITHIN_MS", "5000")]);
    up.says("The mesh is up");
    // A broker that does not answer keeps the replacement at its dial until it is paused itself.
    signal(site.broker(), Signal::STOP);
    let died = kill_daemon(&site);
    let lock = site.path("delivery.main.run.lock");
    let replacement = || holders(&lock).into_iter().find(|pid| *pid != died);
    wait_until("the replacement", || replacement().is_some());
    let replacement = replacement().unwrap();
    signal(replacement, Signal::STOP);
    signal(site.broker(), Signal::CONT);
    up.says("the delivery daemon runs, and does not serve (its responder is not bound)");
    assert!(!up.said().contains("running again"), "{}", up.said());
    signal(up.child.id(), Signal::INT);
    assert_eq!(up.ended(), 0);
    assert!(!is_alive(replacement));
}

#[test]
fn lif_10_a_broker_that_exits_while_the_stop_runs_does_not_cut_it_short() {
    let site = Site::new();
    let mut up = Foreground::up(&site);
    let (broker, daemon) = (site.broker(), site.daemon());
    signal(broker, Signal::STOP);
    signal(up.child.id(), Signal::INT);
    wait_until("the stop", || site.read("delivery.main.log").contains("received SIGTERM"));
    signal(broker, Signal::KILL);
    assert_eq!(up.ended(), 0);
    assert!(!is_alive(daemon) && !site.path("main/delivery.creds").exists());
    assert!(up.said().contains("delivery daemon stopped"), "{}", up.said());
}

/// Slow (15 s): a daemon that never gets to run is killed when its grace is over.
#[test]
fn lif_9_a_daemon_too_starved_to_exit_is_killed_by_down_and_stays_stopped() {
    let site = Site::new();
    let mut up = Foreground::up(&site);
    let daemon = site.daemon();
    let mut down = site.command(&["down"]);
    let mut down = down.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // Whoever resumes it is beaten to it again and again.
    while is_alive(daemon) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(daemon).unwrap()).unwrap();
        let _ = rustix::process::kill_process(pid, Signal::STOP);
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut said = String::new();
    std::io::Read::read_to_string(&mut down.stderr.take().unwrap(), &mut said).unwrap();
    assert!(down.wait().unwrap().success(), "{said}");
    assert!(said.contains("delivery daemon did not stop and was killed"), "{said}");
    assert_eq!(up.ended(), 1);
    assert!(!site.path("main/delivery.creds").exists());
    let seen = up.said();
    assert!(!seen.contains("running again"), "{seen}");
    assert!(holders(&site.path("delivery.main.run.lock")).is_empty(), "a replacement was started");
}

#[test]
fn lif_10_up_and_down_share_one_reservation_and_up_waits_for_a_stop_that_runs() {
    let site = Site::new();
    let mut up = Foreground::up(&site);
    let (broker, daemon) = (site.broker(), site.daemon());
    let held = cotal_workspace::Reservation::try_acquire(&site.path("up.lock")).unwrap();
    signal(up.child.id(), Signal::TERM);
    up.says("this command waits for it");
    assert!(is_alive(broker) && is_alive(daemon));
    drop(held);
    assert_eq!(up.ended(), 0);
    assert!(!is_alive(broker) && !is_alive(daemon));
}

#[test]
fn lif_10_a_space_that_was_added_meanwhile_is_taken_down_too() {
    let site = Site::new();
    let mut up = Foreground::up(&site);
    site.run(&["space", "add", "other"]).ok();
    let added = ["delivery.other.pid", "manager.other.pid"].map(|record| site.pid(record));
    signal(up.child.id(), Signal::INT);
    assert_eq!(up.ended(), 0);
    assert!(added.iter().all(|&pid| !is_alive(pid)), "{}", up.said());
}

#[test]
fn lif_10_under_nohup_a_closed_terminal_takes_nothing_down() {
    let site = Site::new();
    let plain = site.command(&["up", "--server-port", "0"]);
    let mut command = Command::new("nohup");
    command.arg(plain.get_program()).args(plain.get_args()).current_dir(site.root());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut up = Foreground::run(command.stdin(Stdio::null()));
    up.says("The mesh is up");
    let status = std::fs::read_to_string(format!("/proc/{}/status", up.child.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    assert_eq!(ignored & 1, 1, "SIGHUP is not ignored any more:\n{status}");
    signal(up.child.id(), Signal::HUP);
    site.run(&["status"]).ok();
    signal(up.child.id(), Signal::TERM);
    assert_eq!(up.ended(), 0);
}

#[test]
fn lif_10_a_signal_while_the_mesh_still_starts_leaves_nothing_behind() {
    let site = Site::up();
    kill_daemon(&site);
    signal(site.broker(), Signal::KILL);
    // The lease of the daemon that died keeps the start waiting.
    let mut up = Foreground::start(&site);
    up.says("died and its lease still stands");
    let broker = site.broker();
    signal(up.child.id(), Signal::INT);
    assert_eq!(up.ended(), 0);
    assert!(!is_alive(broker) && !site.path("main/delivery.creds").exists());
}

#[test]
fn lif_10_while_up_stops_the_daemon_a_down_is_refused() {
    let site = Site::new();
    let mut up = Foreground::up(&site);
    let daemon = site.daemon();
    // A broker that does not answer makes the daemon's release take its time.
    signal(site.broker(), Signal::STOP);
    signal(up.child.id(), Signal::INT);
    wait_until("the stop", || site.read("delivery.main.log").contains("received SIGTERM"));
    if is_alive(daemon) {
        site.run(&["down"]).ends(8).says("working on the same thing");
    }
    assert_eq!(up.ended(), 0);
    assert!(!is_alive(daemon));
}

#[test]
fn lif_11_two_downs_at_once_stop_everything_and_neither_harms_the_other() {
    let site = Site::up();
    let (broker, daemon) = (site.broker(), site.daemon());
    let start = || {
        let mut command = site.command(&["down"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let downs = [start(), start()];
    let codes = downs.map(|mut down| down.wait().unwrap().code().unwrap());
    assert!(codes.contains(&0) && codes.iter().all(|code| [0, 8].contains(code)), "{codes:?}");
    assert!(!is_alive(broker) && !is_alive(daemon));
}

#[test]
fn lif_11_down_believes_a_record_whose_command_line_cannot_be_read() {
    let site = Site::up();
    let daemon = site.daemon();
    signal(daemon, Signal::TERM);
    wait_until("the daemon's end", || !is_alive(daemon));
    // A program that was given an empty name shows an empty command line.
    let mut unreadable = Command::new("cat");
    let unreadable = std::os::unix::process::CommandExt::arg0(&mut unreadable, "");
    let mut unreadable = unreadable.stdin(Stdio::piped()).spawn().unwrap();
    let pid = unreadable.id();
    wait_until("its start", || std::fs::read(format!("/proc/{pid}/cmdline")).unwrap() == [0]);
    std::fs::write(site.path("delivery.main.pid"), format!("{pid}\n")).unwrap();
    site.run(&["down"]).ok().says("delivery daemon stopped");
    let ended = unreadable.wait().unwrap();
    assert!(!ended.success(), "it was not signalled: {ended}");
    site.run(&["down"]).ok().says("delivery daemon was not running");
}

#[test]
fn lif_11_down_signals_no_other_program_and_clears_its_record() {
    let site = Site::up();
    let daemon = site.daemon();
    let mut other = Command::new("sleep").arg("600").spawn().unwrap();
    std::fs::write(site.path("delivery.main.pid"), format!("{}\n", other.id())).unwrap();
    // The daemon is known by its lock, whatever the record says.
    site.run(&["down"]).ok().says("delivery daemon stopped");
    assert!(is_alive(other.id()) && !is_alive(daemon));
    assert!(!site.path("delivery.main.pid").exists());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn crd_2_a_manager_that_dies_under_a_foreground_up_is_started_again() {
    let site = Site::new();
    let mut up = Foreground::up(&site);
    up.says("it renews the daemon's credentials");
    let manager = site.pid("manager.main.pid");
    signal(manager, Signal::KILL);
    let again =
        || site.read("manager.main.pid").trim().parse().is_ok_and(|pid: u32| pid != manager);
    wait_until("another manager", again);
    let manager = site.pid("manager.main.pid");
    signal(up.child.id(), Signal::INT);
    assert_eq!(up.ended(), 0);
    assert!(!is_alive(manager), "the manager outlives its mesh");
}

/// A log that is a folder is enough to keep a daemon from being started.
#[test]
fn lif_10_an_up_whose_second_space_fails_takes_down_what_it_started_for_the_first() {
    let site = Site::up();
    site.run(&["space", "add", "other"]).ok();
    site.run(&["down"]).ok();
    let log = site.path("delivery.other.log");
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap();
    let before = site.read("delivery.main.log").matches(RELEASED).count();
    let run = site.run(&["up"]).ends(1);
    for lock in ["broker/nats-server.run.lock", "delivery.main.run.lock"] {
        assert!(holders(&site.path(lock)).is_empty(), "{lock}: {run:?}");
    }
    assert!(!site.path("main/delivery.creds").exists(), "{run:?}");
    assert_eq!(site.read("delivery.main.log").matches(RELEASED).count(), before + 1);
    assert!(site.read("broker/nats-server.log").contains("Initiating Shutdown"), "{run:?}");
}
