//! `status --components`: each state with its own exit code, each found by a probe.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::site::{Site, is_alive, signal, wait_until};

const ASK: [&str; 3] = ["status", "--components", "--json"];

/// The states of broker and daemon, and the exit code.
fn asked(site: &Site) -> (Value, Value, i32) {
    let run = site.run(&ASK);
    let report: Value = serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    let state = |n: usize| report["components"][n]["state"].clone();
    assert_eq!(report["components"][1]["space"], "main");
    assert_eq!(site.run(&ASK[..2]).code, run.code, "the table ends as the JSON does");
    (state(0), state(1), run.code)
}

#[test]
fn a_serving_a_paused_and_a_stopped_daemon_are_three_states() {
    let site = Site::up();
    assert_eq!(asked(&site), (json!("serving"), json!("serving"), 0));
    let daemon = site.daemon();
    signal(daemon, Signal::STOP);
    assert_eq!(asked(&site), (json!("serving"), json!("not-serving"), 2));
    signal(daemon, Signal::CONT);
    signal(daemon, Signal::TERM);
    wait_until("the daemon's end", || !is_alive(daemon));
    assert_eq!(asked(&site), (json!("serving"), json!("absent"), 1));
    site.run(&["down"]).ok();
    assert_eq!(asked(&site), (json!("absent"), json!("absent"), 1));
}

#[test]
fn what_cannot_be_asked_is_none_of_the_states() {
    let site = Site::new();
    site.run(&ASK).ends(4).says("cotal up");
    let site = Site::up();
    site.run(&["status", "--components", "--space", "other"]).ends(4).says("no space other");
    let mesh = site.read("mesh.json");
    std::fs::write(site.path("mesh.json"), "garbage").unwrap();
    let run = site.run(&ASK);
    // Whoever takes the site down needs it again.
    std::fs::write(site.path("mesh.json"), mesh).unwrap();
    run.ends(4).says("mesh.json");
}

#[test]
fn an_open_mesh_is_its_broker() {
    let site = Site::new();
    site.run(&["up", "--open", "--detach", "--server-port", "0"]).ok();
    let report = site.json(&ASK);
    assert_eq!(report["components"].as_array().unwrap().len(), 1);
    assert_eq!(report["state"], "serving");
}

/// What a daemon says of itself is no proof: what its consumers show is told by all three.
#[test]
fn a_daemon_that_is_robbed_of_its_posts_is_not_called_serving() {
    let site = Site::up();
    let server = site.json(&["status", "--json"])["broker"]["server"].as_str().unwrap().to_owned();
    let tokio = tokio::runtime::Runtime::new().unwrap();
    tokio.block_on(take_fanout(&site, &server));
    let probed = site.run(&["status", "--components"]).ends(2);
    let said = "is filtered by cotal.main.chat.*.*.nothing";
    assert!(probed.out.contains(said), "{probed:?}");
    assert!(site.run(&["status"]).err.contains(said));
    assert!(site.run(&["doctor"]).ends(1).out.contains(said));
}

/// Lets `fanout` give the daemon nothing that is posted.
async fn take_fanout(site: &Site, server: &str) {
    let creds = cotal_nats::Creds::parse(&site.read("main/delivery.creds")).unwrap();
    let source = cotal_nats::CredsSource::new(creds);
    let options = cotal_nats::ConnectOptions::new(server, "test", source);
    let connection = cotal_nats::Connection::connect(options).await.unwrap();
    let mut config = connection.consumer_info("CHAT_main", "fanout").await.unwrap().config;
    config.filter_subject = Some("cotal.main.chat.*.*.nothing".to_owned());
    let filter = config.filter_subject.clone();
    let action = cotal_nats::js::ConsumerAction::CreateOrUpdate;
    let made =
        connection.create_consumer("CHAT_main", "fanout", filter.as_deref(), &config, action).await;
    made.unwrap();
}
