//! Exit codes, streams and colours.

use crate::site::Site;

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
    site.run(&["post", "b", "hello", "--as", "alice"]).ends(3).says("cotal agent retire");
    site.run(&["join", "b", "--as", "alice"]).ends(3).says("cotal agent retire");
    site.run(&["post", "a", "hello", "--as", "alice"]).ok();
    let creds = site.path("main/agents/local.alice.creds");
    let creds = creds.to_str().unwrap();
    site.run(&["post", "a", "hello", "--as", "Alice", "--creds", creds]).ok();
    site.run(&["post", "a", "hello", "--as", "bob", "--creds", creds])
        .ends(2)
        .says("the credential of local.alice, not of local.bob");
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
    for run in [up, list, broken] {
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
