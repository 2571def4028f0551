//! What people type, taken as they mean it.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::site::{Run, Site};

fn with(mut command: Command, variables: &[(&str, &str)]) -> Run {
    Run::of(command.envs(variables.iter().copied()).output().unwrap())
}

/// One mesh for all of it: each part says what it is about.
#[test]
fn what_people_type_is_taken_as_they_mean_it() {
    let site = Site::up();
    site.run(&["agent", "add", "alice", "--read", "team.>", "--post", "team.>"]).ok();
    site.run(&["agent", "add", "Bob", "--read", "team.>", "--role", "reviewer"]).ok();
    site.run(&["join", "team.a", "--as", "bob"]).ok();
    texts(&site);
    sent_again(&site);
    environment(&site);
    names(&site);
    numbers(&site);
    completed(&site);
}

fn next(site: &Site) -> String {
    site.run(&["inbox", "--as", "bob", "--follow", "--count", "1"]).ok().out
}

fn texts(site: &Site) {
    site.run(&["post", "team.a", "- a bullet", "--as", "alice"]).ok();
    assert!(next(site).ends_with("local.alice: - a bullet\n"));
    site.run(&["post", "--as", "alice", "team.a", "--not-an-option"]).ok();
    assert!(next(site).ends_with(": --not-an-option\n"));
    site.run(&["post", "team.a", "one\n\ttwo\n", "--as", "alice"]).ok();
    assert!(next(site).ends_with(": one\n    \ttwo\n"));
    site.run(&["dm", "bob", "-1", "--as", "alice"]).ok();
    assert!(next(site).ends_with("direct local.alice: -1\n"));
    for empty in ["", " \n\t"] {
        site.run(&["post", "team.a", empty, "--as", "alice"]).ends(2).says("the text is empty");
        site.run(&["dm", "bob", empty, "--as", "alice"]).ends(2).says("the text is empty");
        site.run(&["ask", "reviewer", empty, "--as", "alice"]).ends(2).says("is empty");
    }
    let long = "long ".repeat(20_000);
    site.run(&["channel", "set", "team.a", "--description", &long]).ok();
    site.run(&["channel", "set", "team.b", "--description", "- short"]).ok();
    let list = site.run(&["channel", "list"]).ok().out;
    assert!(
        list.lines().any(|line| line.starts_with("team.b") && line.len() < 200),
        "{}",
        list.len()
    );
}

fn sent_again(site: &Site) {
    let posted = site.json(&["post", "team.a", "once", "--as", "alice", "--id", "my-id", "--json"]);
    assert_eq!(posted["id"], "my-id");
    let again = site.json(&["post", "team.a", "once", "--as", "alice", "--id", "my-id", "--json"]);
    assert_eq!(again, posted);
    assert!(next(site).ends_with(": once\n"));
    site.run(&["inbox", "--as", "bob"]).ok().says("nothing has arrived");
    site.run(&["post", "team.a", "x", "--as", "alice", "--id", "two words"]).ends(2);
}

fn environment(site: &Site) {
    let post = ["post", "team.a", "from the environment"];
    with(site.command(&post), &[("COTAL_AS", "alice"), ("COTAL_SPACE", ""), ("COTAL_LOG", "")])
        .ok();
    assert!(next(site).ends_with(": from the environment\n"));
    let empty = [("COTAL_AS", ""), ("COTAL_CREDS", ""), ("COTAL_SERVER", "")];
    with(site.command(&post), &empty).ends(2).says("COTAL_AS");
    let as_bob = ["post", "team.a", "x", "--as", "bob"];
    with(site.command(&as_bob), &[("COTAL_AS", "alice")])
        .ends(3)
        .says("`cotal agent grant bob --post team.a`");

    // Away from the root, a file and an address are all that is needed.
    let elsewhere = tempfile::tempdir().unwrap();
    let creds = site.path("main/agents/local.alice.creds");
    let mesh: Value = serde_json::from_str(&site.read("mesh.json")).unwrap();
    let away = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = site.command(args);
        command.current_dir(elsewhere.path()).env("XDG_CONFIG_HOME", elsewhere.path());
        with(command, variables)
    };
    let file = ("COTAL_CREDS", creds.to_str().unwrap());
    away(&post, &[file]).ends(4).says("COTAL_SERVER");
    let server = ("COTAL_SERVER", mesh["server"].as_str().unwrap());
    away(&post, &[file, server]).ok();
    assert!(next(site).ends_with(": from the environment\n"));
    away(&["post", "team.a", "x", "--ca", "nowhere.pem"], &[file, server])
        .ends(4)
        .says("nowhere.pem");
    let tls = away(&["post", "team.a", "x", "--ca", creds.to_str().unwrap()], &[file, server]);
    assert_ne!(tls.code, 0, "an authority demands TLS: {tls:?}");
}

fn names(site: &Site) {
    site.run(&["agent", "narrow", "bob"]).ends(2).says("--read");
    assert_eq!(site.json(&["agent", "show", "bob", "--json"])["read"], json!(["team.>"]));
    for path in ["../x", "/tmp", ".", "..", "a/b", "a\\b", "", "---"] {
        site.run(&["space", "add", path]).ends(2);
    }
    assert_eq!(site.json(&["space", "list", "--json"]).as_array().unwrap().len(), 1);
    assert!(!Path::new(&site.path("../x")).exists());
}

/// Numbers at the end of their kind are waited for, or refused; no clock overflows.
fn numbers(site: &Site) {
    let most = u64::MAX.to_string();
    site.run(&["ask", "reviewer", "x", "--as", "alice", &format!("--wait={most}")]).ends(2);
    site.run(&["post", "team.a", "x", "--as", "alice"]).ok();
    site.run(&["inbox", "--as", "bob", "--count", "1", "--settle", &most]).ok();
    site.run(&["request", "status", &most, "--as", "alice"]).ends(4);
    site.run(&["request", "cancel", &most, "--as", "alice"]).ends(4);
    site.run(&["redeliver", &most]).ends(4);
    site.run(&["redeliver", "one"]).ends(2).says("a whole number is expected");
    site.run(&["redeliver", "99999999999999999999"]).ends(2).says("the number is too large");
    site.run(&["redeliver", ""]).ends(2).says("a whole number is expected");
    for span in ["99999999999999999999d", "18446744073709551615d", "106751991167300d"] {
        let run = site.run(&["timer", "set", "wf.r.1.s", "--in", span]);
        assert!((1..=10).contains(&run.code) && !run.err.contains("panicked"), "{run:?}");
        let args = ["timer", "wait", "wf.r.1.s", "--within", span];
        let mut wait = site.command(&args).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let _ = wait.kill();
        let run = Run::of(wait.wait_with_output().unwrap());
        assert!(!run.err.contains("panicked"), "{run:?}");
    }
}

/// The shell asks the binary; what runs answers, and what does not run says nothing.
fn completed(site: &Site) {
    let complete = |words: &[&str]| {
        let mut command = site.command(&[&["--", "cotal"], words].concat());
        let index = words.len().to_string();
        let run = with(
            command_with(&mut command),
            &[("COMPLETE", "bash"), ("_CLAP_COMPLETE_INDEX", &index), ("_CLAP_IFS", "\n")],
        );
        assert_eq!((run.code, run.err.as_str()), (0, ""), "{run:?}");
        run.out
            .split('\n')
            .map(str::trim)
            .filter(|word| !word.starts_with('-'))
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(complete(&["dm", ""]), "alice bob");
    assert_eq!(complete(&["post", "team."]), "team.a team.b");
    assert_eq!(complete(&["ask", "rev"]), "reviewer");
    assert_eq!(complete(&["inbox", "--as", "al"]), "alice");
    assert_eq!(complete(&["agent", "show", "b"]), "bob");
    assert_eq!(complete(&["agent", "add", "b"]), "");
    assert_eq!(complete(&["members", "team.a", "--space", ""]), "main");
    assert!(site.run(&["completions", "bash"]).ok().out.contains("COMPLETE=\"bash\""));
    site.run(&["down"]).ok();
    assert_eq!(complete(&["dm", ""]), "");
}

fn command_with(command: &mut Command) -> Command {
    std::mem::replace(command, Command::new("true"))
}
