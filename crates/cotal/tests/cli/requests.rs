//! Role requests on the command line.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::json;

use crate::site::{Run, Site, signal, wait_until};

fn site() -> Site {
    let site = Site::up();
    site.run(&["agent", "add", "alice"]).ok();
    site.run(&["agent", "add", "bob", "--role", "reviewer"]).ok();
    site
}

fn ask(site: &Site, text: &str) -> String {
    let asked = site.run(&["ask", "reviewer", text, "--as", "alice"]).ok();
    asked.out.trim().parse::<u64>().expect("a number alone").to_string()
}

/// A holder that does not outlive a test which failed.
struct Holder(Option<Child>);

impl Holder {
    fn start(mut command: Command) -> Self {
        Self(Some(command.spawn().unwrap()))
    }

    /// Stops it, and says how it ended.
    fn stopped(mut self) -> Run {
        let child = self.0.take().unwrap();
        signal(child.id(), Signal::TERM);
        Run::of(child.wait_with_output().unwrap())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn any_4_a_request_is_asked_followed_worked_off_and_listed() {
    let site = site();
    let seq = ask(&site, "look at this");
    let follow = |code| site.run(&["request", "status", &seq, "--as", "alice"]).ends(code);
    assert_eq!(follow(0).out, "queued: nobody has it yet\n");
    site.run(&["request", "status", &seq, "--as", "bob"]).ends(4).says("has no request");
    site.run(&["request", "status", "0", "--as", "alice"]).ends(4);
    let status = site.run(&["status"]).ok();
    let line = format!("request   {seq} to reviewer from local.alice: ");
    assert!(
        status.out.contains(&line) && status.out.contains("no holder has taken it"),
        "{status:?}"
    );

    let worked = site.run(&["serve", "reviewer", "--as", "bob", "--count", "1"]).ok();
    assert_eq!(worked.out, format!("{seq} local.alice: look at this\n"));
    assert_eq!(follow(0).out, "done by local.bob\n");
    site.run(&["request", "cancel", &seq, "--as", "alice"]).ends(8).says("local.bob");
    let told = site.run(&["inbox", "--as", "alice"]).ok();
    assert!(told.out.contains("local.bob has taken your request"), "{told:?}");

    let back = ask(&site, "never mind");
    let cancel = ["request", "cancel", &back, "--as", "alice", "--json"];
    assert_eq!(site.json(&cancel)["cancelled"], true);
    let listed = site.json(&["requests", "--as", "alice", "--json"]);
    let states: Vec<_> = listed.as_array().unwrap().iter().map(|r| r["state"].clone()).collect();
    assert_eq!(states, [json!("done"), json!("cancelled")]);
    assert_eq!(site.run(&["requests", "--as", "alice"]).ok().out.lines().count(), 3);
    assert_eq!(site.json(&["requests", "--as", "bob", "--json"]), json!([]));
    assert_eq!(site.json(&["status", "--json"])["spaces"][0]["requests"], json!([]));
}

/// Exit code 0 is the ack; any other gives the request back, and it comes again.
#[test]
fn the_exit_code_of_a_command_decides_ack_or_nak() {
    let site = site();
    let seq = ask(&site, "one line\nand another");
    let command = "cat > got.txt; env | grep ^COTAL_REQUEST | sort > env.txt; \
                   [ \"$COTAL_REQUEST_DELIVERY\" -gt 1 ]";
    let serve = ["serve", "reviewer", "--as", "bob", "--count", "1", "--exec", command];
    site.run(&serve).ok().says("is given back");
    site.run(&serve).ok().says("is done");
    let read = |name| std::fs::read_to_string(site.root().join(name)).unwrap();
    assert_eq!(read("got.txt"), "one line\nand another");
    let wanted = format!(
        "COTAL_REQUEST_DELIVERY=2\nCOTAL_REQUEST_ROLE=reviewer\n\
         COTAL_REQUEST_SENDER=local.alice\nCOTAL_REQUEST_SEQ={seq}\n"
    );
    assert_eq!(read("env.txt"), wanted);
    let listed = site.json(&["requests", "--as", "alice", "--json"]);
    assert_eq!((&listed[0]["state"], &listed[0]["delivery"]), (&json!("done"), &json!(2)));
}

/// A signal ends the command, and the request goes back at once.
#[test]
fn a_holder_that_is_stopped_gives_its_request_back() {
    let site = site();
    let seq = ask(&site, "work");
    let serve = ["serve", "reviewer", "--as", "bob", "--exec", "touch started; exec sleep 600"];
    let mut command = site.command(&serve);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let holder = Holder::start(command);
    wait_until("the command runs", || site.root().join("started").exists());
    let status = site.run(&["status"]).ok();
    assert!(status.out.contains("last taken by local.bob"), "{status:?}");
    holder.stopped().ok().says("given back unfinished");
    let again = site.run(&["serve", "reviewer", "--as", "bob", "--count", "1", "--json"]).ok();
    let again: serde_json::Value = serde_json::from_str(&again.out).unwrap();
    assert_eq!((&again["seq"].to_string(), &again["delivery"]), (&seq, &json!(2)));
    assert_eq!(again["text"], "work");
}

#[test]
fn any_8_what_cannot_be_asked_or_held_has_its_own_code() {
    let site = site();
    site.run(&["serve", "reviewer", "--as", "alice"]).ends(3).says("has no role");
    site.run(&["serve", "cook", "--as", "bob"]).ends(3).says("reviewer");
    site.run(&["ask", "no role", "text", "--as", "alice"]).ends(2);
    site.run(&["request", "status", "x", "--as", "alice"]).ends(2);
    let seq = ask(&site, "work");
    let daemon = site.daemon();
    signal(daemon, Signal::TERM);
    wait_until("the daemon is gone", || !crate::site::is_alive(daemon));
    site.run(&["request", "status", &seq, "--as", "alice"]).ends(7).says("cotal up");
    site.run(&["requests", "--as", "alice"]).ends(7);
    // Asking needs no daemon; holding says what is missing and waits.
    ask(&site, "more work");
    let mut command = site.command(&["serve", "reviewer", "--as", "bob"]);
    let file = site.root().join("said");
    let said = std::fs::File::create(&file).unwrap();
    command.stdout(Stdio::null()).stderr(said);
    let holder = Holder::start(command);
    let reads = || std::fs::read_to_string(&file).unwrap();
    wait_until("the holder says so", || reads().contains("no delivery daemon is answering"));
    holder.stopped().ok();
}

/// What only the daemon can tell is neither zero nor nothing when it cannot be asked.
#[test]
fn what_a_daemon_that_is_down_would_tell_is_unknown() {
    let site = site();
    ask(&site, "work");
    assert_eq!(site.json(&["status", "--json"])["spaces"][0]["requests"][0]["role"], "reviewer");
    let daemon = site.daemon();
    signal(daemon, Signal::TERM);
    wait_until("the daemon is gone", || !crate::site::is_alive(daemon));
    let status = site.run(&["status"]).ends(7);
    for line in ["counted   unknown", "requests  unknown", "lease     nobody", "agents    2\n"] {
        assert!(status.out.contains(line), "{line}: {status:?}");
    }
    let asked = || site.json(&["status", "--json"])["spaces"][0].clone();
    let space = asked();
    for field in ["requests", "counters"] {
        assert_eq!(space.get(field), Some(&json!(null)), "{field}");
    }
    assert!(!space["streams"].as_array().unwrap().is_empty());

    site.run(&["down"]).ok();
    let status = site.run(&["status"]).ends(9);
    for line in ["lease", "agents", "streams", "counted", "requests"] {
        let line = format!("{line:<10}unknown: the ");
        assert!(status.out.contains(&line), "{line}: {status:?}");
    }
    let space = asked();
    for field in ["lease", "agents", "streams", "counters", "requests"] {
        assert_eq!(space.get(field), Some(&json!(null)), "{field}");
    }
}
