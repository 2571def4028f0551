//! Exit codes, streams and colours.

use rustix::process::Signal;

use crate::site::{Run, Site, is_alive, signal, wait_until};

#[test]
fn each_kind_of_failure_has_its_own_code_and_says_what_to_do() {
    let site = Site::new();
    site.run(&["nonsense"]).ends(2);
    site.run(&["agent", "add", "bob", "--read", "a..b"]).ends(2);
    site.run(&["status"]).ends(4).says("cotal up");
    let site = Site::up();
    site.run(&["agent", "add", "bad-name"]).ends(2);
    site.run(&["post", "a", "hello", "--as", "nobody"]).ends(4).says("cotal agent add");
    site.run(&["members", "a", "--space", "other"]).ends(4).says("cotal space add");
    site.run(&["agent", "add", "alice", "--read", "a", "--post", "a"]).ok();
    site.run(&["post", "b", "hello", "--as", "alice"]).ends(3).says("cotal agent grant");
    site.run(&["join", "b", "--as", "alice"]).ends(3).says("cotal agent grant");
    site.run(&["post", "a", "hello", "--as", "alice"]).ok();
    let creds = site.path("main/agents/local.alice.creds");
    let creds = creds.to_str().unwrap();
    site.run(&["post", "a", "hello", "--as", "Alice", "--creds", creds]).ok();
    site.run(&["post", "a", "hello", "--as", "bob", "--creds", creds])
        .ends(2)
        .says("the credential of local.alice, not of local.bob");
    site.run(&["post", "a", "hello", "--as", "local.nobody"])
        .ends(4)
        .says("agent add nobody --space main");
    let elsewhere = ["post", "a", "b", "--as", "alice", "--server", "nats://nowhere.invalid:4222"];
    site.run(&elsewhere).ends(9);
    site.run(&["pending", "--member", "nobody"]).ends(4).says("cotal agent list");
    site.run(&["agent", "retire", "alice"]).ok();
    let gone = site.run(&["post", "a", "hello", "--as", "Alice", "--creds", creds]);
    gone.ends(4).says("No such file");
    site.run(&["agent", "add", "alice", "--read", "a", "--post", "a"]).ok();
    site.run(&["down"]).ok();
    site.run(&["post", "a", "hello", "--as", "alice"]).ends(9).says("`cotal up` starts");
    site.run(&["agent", "list"]).ends(9).says("`cotal up` starts");
}

#[test]
fn every_listing_is_json_on_request_and_alone_on_standard_output() {
    let site = Site::up();
    for args in [
        &["agent", "list", "--json"][..],
        &["channel", "list", "--json"],
        &["space", "list", "--json"],
        &["members", "a", "--json"],
        &["status", "--json"],
        &["doctor", "--json"],
    ] {
        let run = site.run(args).ok();
        assert_eq!(run.out.lines().count(), 1, "{args:?}: {run:?}");
        assert_eq!(run.err, "", "{args:?}");
        site.json(args);
    }
}

#[test]
fn a_pipe_gets_no_colours_and_an_empty_listing_nothing_at_all() {
    let site = Site::new();
    let up = site.run(&["up", "--detach", "--server-port", "0"]).ok();
    let list = site.run(&["agent", "list"]).ok();
    let broken = site.run(&["members", "a", "--space", "other"]).ends(4);
    assert_eq!(list.out, "");
    let forced =
        |args: &[&str]| Run::of(site.command(args).env("CLICOLOR_FORCE", "1").output().unwrap());
    for run in [up, list, broken, forced(&["--help"]), forced(&["post"])] {
        assert!(!run.out.contains('\x1b') && !run.err.contains('\x1b'), "{run:?}");
    }
}

#[test]
fn help_is_an_answer_and_shows_the_codes() {
    let site = Site::new();
    let help = site.run(&["--help"]).ok();
    assert!(help.out.contains("Exit codes:") && help.err.is_empty(), "{help:?}");
    site.run(&["--version"]).ok();
    for shell in ["bash", "zsh", "fish"] {
        let script = site.run(&["completions", shell]).ok();
        assert!(script.out.contains("cotal"));
    }
}

/// Where the mesh is to be recorded is no directory: nothing is begun.
#[test]
fn up_that_cannot_record_the_mesh_starts_nothing() {
    let site = Site::new();
    std::fs::write(site.root().join("../config"), "").unwrap();
    site.run(&["up", "--detach", "--server-port", "0"]).ends(1).says("Not a directory");
    assert!(!site.path("").exists());
}

#[test]
fn a_variable_that_does_not_read_is_refused_and_not_ignored() {
    let site = Site::new();
    for (name, value) in [("COTAL_SERVING_WITHIN_MS", "soon"), ("COTAL_LOG", "!!!")] {
        let run = Run::of(site.command(&["status"]).env(name, value).output().unwrap());
        run.ends(2).says(name);
    }
}

/// What was sent is sent, whether or not its number can be printed; and what is no text is not
/// sent.
#[test]
fn a_message_is_told_apart_from_its_printing_and_its_reading() {
    let site = Site::up();
    site.run(&["agent", "add", "alice", "--read", "a", "--post", "a"]).ok();
    let mut post = site.command(&["post", "a", "hello", "--as", "alice"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    Run::of(post.stdout(full).output().unwrap()).ends(1).says("it was sent (id ");
    let stdin = |path: &std::path::Path| {
        let file = std::fs::File::open(path).unwrap();
        let mut post = site.command(&["post", "a", "-", "--as", "alice"]);
        Run::of(post.stdin(file).output().unwrap())
    };
    stdin(&site.root()).ends(1).says("standard input cannot be read");
    let binary = site.root().join("binary");
    std::fs::write(&binary, [0xff, 0xfe]).unwrap();
    stdin(&binary).ends(2).says("is not UTF-8 text");
}

/// A line of a log is a line of a log, also when no log could be opened.
#[test]
fn a_daemon_that_finds_no_place_says_so_in_the_format_of_its_log() {
    let site = Site::up();
    let args = ["deliver", "--server", "nats://127.0.0.1:1", "--log-format", "json"];
    let run = site.run(&args).ends(8);
    let line: serde_json::Value = serde_json::from_str(run.err.trim()).unwrap();
    assert!(
        line["message"].as_str().unwrap().starts_with("✗ delivery: the mesh registry"),
        "{line}"
    );
}

/// A paused daemon listens and does not answer; a missing one does not listen.
#[test]
fn silence_and_absence_of_the_daemon_end_with_their_own_codes() {
    let site = Site::up();
    site.run(&["agent", "add", "alice", "--read", "a", "--post", "a"]).ok();
    let daemon = site.daemon();
    signal(daemon, Signal::STOP);
    site.run(&["pending"]).ends(5);
    signal(daemon, Signal::KILL);
    signal(daemon, Signal::CONT);
    wait_until("the daemon's end", || !is_alive(daemon));
    site.run(&["pending"]).ends(7).says("`cotal up` starts");
}
