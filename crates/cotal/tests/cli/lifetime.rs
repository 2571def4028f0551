//! The daemon's process under signals, and behind a broker that is slow, silent or gone.

use std::time::Duration;

use cotal_testkit::{DaemonProcess, Mesh, Proxy};
use cotal_wire::names::Bucket;
use rustix::process::Signal;

const BINARY: &str = env!("CARGO_BIN_EXE_cotal");
const RELEASED: &str = "the lease is released";
const UNREACHABLE: &str = "✗ delivery: broker connection unavailable (broker unreachable), exiting \
                           (coupled to the broker)";
const PAST_BACKSTOP: &str = "✗ delivery: broker connection unavailable past backstop (broker \
                             unreachable), exiting (coupled to the broker)";

/// Windows that a test can wait for.
const SHORT: [(&str, &str); 2] =
    [("COTAL_DELIVERY_BROKER_GONE_MS", "2000"), ("COTAL_DELIVERY_BROKER_GONE_BACKSTOP_MS", "8000")];

fn through(mesh: &Mesh, proxy: &Proxy) -> DaemonProcess {
    DaemonProcess::start_at(BINARY, mesh, &proxy.url(), &[])
}

/// It ended as it was told, and the space is free at once.
async fn stopped_and_free(mut daemon: DaemonProcess, mesh: &Mesh, signal: &str) {
    assert_eq!(daemon.ended().await, Some(0), "{}", daemon.log());
    let log = daemon.log();
    assert!(log.contains(&format!("received {signal}, exiting")), "{log}");
    let mut next = DaemonProcess::start(BINARY, mesh);
    next.serves().await;
    next.signal(Signal::TERM);
    assert_eq!(next.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_7_and_lif_8_a_serving_daemon_frees_the_space_on_either_signal() {
    let mesh = Mesh::start().await;
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let mut daemon = DaemonProcess::start(BINARY, &mesh);
        daemon.serves().await;
        daemon.signal(signal);
        daemon.says(&format!("received {name}, exiting")).await;
        daemon.says(RELEASED).await;
        stopped_and_free(daemon, &mesh, name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_7_before_the_claim_a_signal_ends_it_at_once() {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    proxy.stall();
    let daemon = through(&mesh, &proxy);
    // Its signals are caught before it dials, and it dials before anything is said.
    proxy.dialled().await;
    daemon.signal(Signal::TERM);
    stopped_and_free(daemon, &mesh, "SIGTERM").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_7_a_claim_in_flight_is_waited_for_and_a_win_is_released() {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    proxy.deafen_at(&format!("$KV.{}.", mesh.space().bucket(Bucket::Delivery)));
    let mut daemon = through(&mesh, &proxy);
    proxy.deafened().await;
    daemon.signal(Signal::TERM);
    daemon.says("received SIGTERM, exiting").await;
    proxy.heal();
    stopped_and_free(daemon, &mesh, "SIGTERM").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_7_between_claim_and_ready_the_lease_is_released() {
    let mesh = Mesh::start().await;
    let mut daemon = DaemonProcess::start(BINARY, &mesh);
    daemon.says("the lease is held").await;
    daemon.signal(Signal::TERM);
    daemon.says(RELEASED).await;
    stopped_and_free(daemon, &mesh, "SIGTERM").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lse_7_during_a_redial_the_release_waits_for_the_connection() {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let mut daemon = through(&mesh, &proxy);
    daemon.serves().await;
    proxy.cut();
    daemon.says("the broker connection dropped; redialling").await;
    daemon.signal(Signal::TERM);
    daemon.says("received SIGTERM, exiting").await;
    proxy.heal();
    daemon.says(RELEASED).await;
    stopped_and_free(daemon, &mesh, "SIGTERM").await;
}

/// The daemon's own log.
fn own_log(mesh: &Mesh) -> String {
    let log = mesh.root().delivery_log(&cotal_workspace::Segment::from(mesh.space()));
    std::fs::read_to_string(log).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_8_the_signal_stands_in_the_own_log_before_the_release() {
    let mesh = Mesh::start().await;
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let mut daemon = DaemonProcess::start(BINARY, &mesh);
        daemon.serves().await;
        daemon.signal(signal);
        assert_eq!(daemon.ended().await, Some(0));
        let log = own_log(&mesh);
        let received = log.find(&format!("received {name}, exiting"));
        let released = log.rfind(RELEASED);
        assert!(received.is_some() && received < released, "{log}");
        assert!(!log.contains("until the lease is proven"), "a stop is no loss:\n{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_2_only_the_resident_connection_watches_the_broker() {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let window = [("COTAL_DELIVERY_BROKER_GONE_MS", "200")];
    let mut daemon = DaemonProcess::start_at(BINARY, &mesh, &proxy.url(), &window);
    daemon.serves().await;
    // The timer writer and the membership feed have connections of their own, made at the start.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let dials = proxy.dials();
    // Whoever asked the broker would do so several times in five windows.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(proxy.dials(), dials, "{}", daemon.log());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await, Some(0));
    assert_eq!(proxy.dials(), dials, "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_3_a_broker_that_is_gone_ends_the_daemon_after_the_window() {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let mut daemon = DaemonProcess::start_at(BINARY, &mesh, &proxy.url(), &SHORT);
    daemon.serves().await;
    proxy.cut();
    daemon.says(UNREACHABLE).await;
    assert_eq!(daemon.ended().await, Some(9), "the broker cannot be reached");
    assert!(own_log(&mesh).contains(UNREACHABLE));
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_3_a_broker_that_comes_back_in_time_stops_the_clock() {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let window = [("COTAL_DELIVERY_BROKER_GONE_MS", "3000")];
    let mut daemon = DaemonProcess::start_at(BINARY, &mesh, &proxy.url(), &window);
    daemon.serves().await;
    proxy.cut();
    daemon.says("the broker connection dropped; redialling").await;
    proxy.heal();
    daemon.says("the broker connection is back").await;
    // Longer than the window since the drop: time is what is tested here.
    tokio::time::sleep(Duration::from_secs(4)).await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await, Some(0), "{}", daemon.log());
}

/// The window is over by the wall clock when it wakes up, and the broker is back.
#[tokio::test(flavor = "multi_thread")]
async fn lif_3_time_in_which_the_daemon_itself_was_stopped_is_taken_off() {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let windows = [
        ("COTAL_DELIVERY_BROKER_GONE_MS", "3000"),
        ("COTAL_DELIVERY_BROKER_GONE_BACKSTOP_MS", "600000"),
    ];
    let mut daemon = DaemonProcess::start_at(BINARY, &mesh, &proxy.url(), &windows);
    daemon.serves().await;
    proxy.cut();
    daemon.says("the broker connection dropped; redialling").await;
    daemon.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_secs(4)).await;
    proxy.heal();
    daemon.signal(Signal::CONT);
    daemon.says("the broker connection is back").await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await, Some(0), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_4_past_the_backstop_it_ends_however_long_it_was_stalled() {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let windows = [
        ("COTAL_DELIVERY_BROKER_GONE_MS", "4000"),
        ("COTAL_DELIVERY_BROKER_GONE_BACKSTOP_MS", "4000"),
    ];
    let mut daemon = DaemonProcess::start_at(BINARY, &mesh, &proxy.url(), &windows);
    daemon.serves().await;
    proxy.cut();
    daemon.says("the broker connection dropped; redialling").await;
    daemon.signal(Signal::STOP);
    tokio::time::sleep(Duration::from_secs(5)).await;
    daemon.signal(Signal::CONT);
    daemon.says(PAST_BACKSTOP).await;
    assert_eq!(daemon.ended().await, Some(9), "the broker cannot be reached");
    assert!(own_log(&mesh).contains(PAST_BACKSTOP));
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_5_a_broker_that_is_paused_counts_as_gone() {
    let mut mesh = Mesh::start().await;
    let mut daemon = DaemonProcess::start_at(BINARY, &mesh, mesh.url(), &SHORT);
    daemon.serves().await;
    mesh.broker().pause().unwrap();
    // Its socket stays open, so only the unanswered pings can tell.
    daemon.says("the broker connection dropped; redialling").await;
    daemon.says(UNREACHABLE).await;
    assert_eq!(daemon.ended().await, Some(9), "the broker cannot be reached");
    mesh.broker().resume().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lif_5_a_daemon_that_was_paused_does_not_blame_the_broker() {
    let mesh = Mesh::start().await;
    let mut daemon = DaemonProcess::start_at(BINARY, &mesh, mesh.url(), &SHORT);
    daemon.serves().await;
    daemon.signal(Signal::STOP);
    // Longer than the window, and the lease of 30 s stands: time is what is tested here.
    tokio::time::sleep(Duration::from_secs(5)).await;
    daemon.signal(Signal::CONT);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!daemon.log().contains("broker unreachable"), "{}", daemon.log());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await, Some(0), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_6_an_expiry_and_its_end_are_said_to_the_letter() {
    let mesh = Mesh::start().await;
    mesh.set_delivery_life(0, 6);
    let env = [
        ("COTAL_DELIVERY_BROKER_GONE_MS", "500"),
        ("COTAL_DELIVERY_BROKER_GONE_BACKSTOP_MS", "1500"),
    ];
    let mut daemon = DaemonProcess::start_at(BINARY, &mesh, mesh.url(), &env);
    daemon.serves().await;
    daemon.says("! delivery: credential expired, awaiting proved renewal").await;
    daemon.says("✗ delivery: credential expired without renewal").await;
    assert_ne!(daemon.ended().await, Some(0));
}
