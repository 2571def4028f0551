//! What agents are told on the command line: the answer to a request, and what they missed.

use std::process::Stdio;

use cotal_client::{Channel, Endpoint, EndpointOptions};
use serde_json::{Value, json};

use crate::site::{Run, Site};

fn site() -> Site {
    let site = Site::up();
    site.run(&["agent", "add", "alice", "--post", "team.>"]).ok();
    site.run(&["agent", "add", "bob", "--role", "reviewer", "--read", "team.>"]).ok();
    site
}

/// Asks and waits, while a holder runs `command` over the request.
fn asked_while(site: &Site, command: &str, flags: &[&str]) -> Run {
    let args = [&["ask", "reviewer", "3 + 4", "--as", "alice", "--wait=60"], flags].concat();
    let mut ask = site.command(&args);
    let ask = ask.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    site.run(&["serve", "reviewer", "--as", "bob", "--count", "1", "--exec", command]).ok();
    Run::of(ask.wait_with_output().unwrap())
}

#[test]
fn what_serve_prints_is_what_ask_waits_for() {
    let site = site();
    let answered = asked_while(&site, "echo \"seen: $(cat)\"; echo said >&2", &[]);
    assert_eq!(answered.ok().out, "seen: 3 + 4\n");
    let status = site.run(&["request", "status", "1", "--as", "alice"]).ok();
    assert_eq!(status.out, "done by local.bob\nseen: 3 + 4\n");
    let status = site.json(&["request", "status", "1", "--as", "alice", "--json"]);
    assert_eq!((&status["state"], &status["text"]), (&json!("done"), &json!("seen: 3 + 4")));

    let failed = asked_while(&site, "echo no such sum; exit 100", &["--json"]).ends(1);
    let answer: Value = serde_json::from_str(failed.out.trim()).unwrap();
    assert_eq!((&answer["outcome"], &answer["text"]), (&json!("failed"), &json!("no such sum")));
    assert!(failed.err.contains("local.bob"), "{failed:?}");
    let listed = site.json(&["requests", "--as", "alice", "--json"]);
    let states: Vec<_> = listed.as_array().unwrap().iter().map(|r| r["state"].clone()).collect();
    assert_eq!(states, [json!("done"), json!("failed")]);

    let asked = site.run(&["ask", "reviewer", "x", "--as", "alice", "--wait=0"]).ends(5);
    assert!(asked.err.contains("request status 3"), "{asked:?}");
}

#[test]
fn an_inbox_says_once_which_posts_were_lost() {
    let site = site();
    site.run(&["join", "team.a", "--as", "bob"]).ok();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mesh: Value = serde_json::from_str(&site.read("mesh.json")).unwrap();
        let server = mesh["server"].as_str().expect("a server").to_owned();
        let creds = site.path("main/agents/local.alice.creds");
        let options = EndpointOptions::from_file(server, creds).send_only();
        let alice = Endpoint::connect(options).await.unwrap();
        let on = Channel::parse("team.a").unwrap();
        for n in 0..1_100 {
            alice.post(&on, format!("{n}")).await.unwrap();
        }
        alice.close().await;
    });
    let inbox = || {
        let run = site.run(&["inbox", "--as", "bob", "--json", "--settle", "1500"]).ok();
        let lines = run.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.collect::<Vec<_>>()
    };
    crate::site::wait_until("the losses are counted", || {
        let status = site.json(&["status", "--json"]);
        status["spaces"][0]["counters"]["missed"][0]["missed"].as_u64().is_some_and(|n| n > 0)
    });
    // Full members are looked at every second; two looks find nothing more.
    std::thread::sleep(std::time::Duration::from_secs(3));
    let status = site.json(&["status", "--json"]);
    let counted = status["spaces"][0]["counters"]["missed"][0]["missed"].as_u64().unwrap();
    assert!((1..=100).contains(&counted), "{counted} of 100");
    let lines = inbox();
    let (notices, messages): (Vec<_>, Vec<_>) =
        lines.iter().partition(|line| line.get("notice").is_some());
    let missed: u64 = notices.iter().map(|line| line["missed"].as_u64().unwrap()).sum();
    assert_eq!((missed, messages.len()), (counted, 1_000));
    assert_eq!((&notices[0]["notice"], &notices[0]["to"]), (&json!("posts-missed"), &json!(100)));
    assert_eq!(lines[0], *notices[0], "it is said first");
    assert_eq!(messages[0]["text"], "100");
    assert!(inbox().is_empty(), "it is said once");
}
