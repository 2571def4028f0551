//! The writer's own connection, its restarts and its end (TMR-2 to TMR-4).

use std::time::{Duration, Instant};

use cotal_manager::{Office, Shape, provision_space};
use cotal_nats::Connection;
use cotal_testkit::{Mesh, Supervisor, eventually, logged};
use cotal_wire::names::{Bucket, TIMER_WRITER, sys};
use cotal_wire::rows::DeliveryClass;
use cotal_workspace::{FileStore, SecretKey, SecretKind, SecretStore as _};
use serde_json::{Value, json};

use super::support::{Endpoint, fired, soon};
use crate::credentials::support::{Host, jwt, reload};

/// The writer's connections and their credentials, as the broker lists them.
async fn writers(observer: &Connection, account: &str, state: u8) -> Vec<Value> {
    let body = json!({ "auth": true, "state": state }).to_string();
    let reply = observer.request(sys::connz(account), None, body.into(), None).await;
    let reply: Value = serde_json::from_slice(&reply.expect("a census").payload).expect("JSON");
    let list = reply["data"]["connections"].as_array().cloned().unwrap_or_default();
    list.into_iter().filter(|c| c["name"] == "cotal-timers main").collect()
}

async fn observer(mesh: &Mesh) -> (Connection, String) {
    let key = SecretKey::new(mesh.space(), SecretKind::MembershipObserver);
    let store = FileStore::new(mesh.root().clone());
    let creds = store.get(&key).expect("the store").expect("the observer");
    (mesh.connect(creds.expose()).await, mesh.authority().account().public_key())
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_2_the_writer_moves_onto_each_adopted_credential() {
    let mesh = Mesh::start().await;
    let (observer, account) = observer(&mesh).await;
    let host = Host::with_life(&mesh, 0, 600).await;
    let _lane = host.lane().await;
    let manager = Supervisor::of(&mesh).await;
    let wf = Endpoint::of(&mesh, "wf").await;
    let mut fires = wf.fires().await;
    for (generation, left) in [(1_u64, 700), (2, 800), (3, 900)] {
        let new = host.mint(0, left);
        host.put(&new);
        // Requested at the moment of the adoption, and due during it.
        let (reply, ()) =
            tokio::join!(reload(&manager, Some(&new)), wf.ask("t", generation, soon(300)));
        assert!(reply.ok, "{reply:?}");
        let presented = || async {
            let all = writers(&observer, &account, 0).await;
            all.iter().map(|c| c["jwt"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        let wanted = [jwt(&new)];
        eventually("the writer on the new credential", presented, |seen| *seen == wanted).await;
        let (body, late) = fired(&mut fires).await;
        assert_eq!(body.generation, generation);
        assert!(late < 7_000, "{late} ms late across an adoption");
        // The rail is away while the resident connection reconnects.
        host.runs_on(&new).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_2_the_writer_never_presents_an_expired_credential_and_is_back_with_a_renewed_one() {
    let mesh = Mesh::start().await;
    let (observer, account) = observer(&mesh).await;
    // 6 s left of a day: the renewal is overdue and comes late.
    let host = Host::with_life(&mesh, 86_000, 6).await;
    let _lane = host.lane().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    wf.ask("t", 1, soon(600_000)).await;
    wf.is_armed("t", 1).await;
    let down = || async { logged(&["a component is down", "credential has expired"]) };
    eventually("the writer says that it is down", down, |lines| !lines.is_empty()).await;
    assert_eq!(writers(&observer, &account, 0).await, Vec::<Value>::new());
    let dialled = writers(&observer, &account, 1).await.len();
    wf.ask("t", 2, soon(600_000)).await;
    let new = host.mint(0, 600);
    host.put(&new);
    wf.is_armed("t", 2).await;
    let closed = writers(&observer, &account, 1).await;
    assert_eq!(closed.len(), dialled, "dialled with what had expired: {closed:?}");
    let presented = writers(&observer, &account, 0).await;
    assert_eq!(presented[0]["jwt"], jwt(&new).as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_3_the_writer_restarts_with_backoff_and_delivery_goes_on_without_it() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    let supervisor = Supervisor::of(&mesh).await;
    mesh.set_class("ops", DeliveryClass::Durable).await;
    let (alice, bob) =
        (mesh.peer("alice", &["ops"], &["ops"]).await, mesh.peer("bob", &["ops"], &["ops"]).await);
    bob.join("ops").await;
    let god = mesh.god().await;
    let delete = async |stream: String| {
        let call = format!("$JS.API.STREAM.DELETE.{stream}");
        god.js_call::<Value>(&call, &json!({}), None).await.expect("deleted");
    };
    delete(wf.space.ept_req_stream()).await;
    delete(wf.space.ept_stream()).await;
    let down = || async { supervisor.status().await.down };
    let is_down = |down: &Vec<cotal_wire::control::Down>| {
        down.iter().any(|d| d.component == "the timer writer")
    };
    eventually("the status shows it down", down, is_down).await;
    let again = |wait: &str| logged(&["the timer writer", &format!("again={wait}")]).len();
    let backoff = || async { (again("500ms"), again("1s"), again("2s")) };
    eventually("a growing backoff", backoff, |&(a, b, c)| a > 0 && b > 0 && c > 0).await;
    alice.post("ops", "meanwhile", &[]).await;
    assert_eq!(bob.receive(1).await, ["meanwhile"]);
    let (_, provisioner) =
        mesh.authority().connect(Office::Provisioner, &mesh.address()).await.expect("provisioner");
    provision_space(&provisioner, mesh.space(), Shape::Durable).await.expect("provisioned");
    wf.ask("t", 1, soon(600_000)).await;
    wf.is_armed("t", 1).await;
    eventually("the status shows it up", down, |down| !is_down(down)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tmr_4_stopping_ends_the_pending_fetch_and_wakes_a_backoff() {
    let mesh = Mesh::start().await;
    let wf = Endpoint::of(&mesh, "wf").await;
    let god = mesh.god().await;
    let stream = wf.space.ept_req_stream();
    let mut lane = mesh.lane().await;
    let waits = || async {
        god.consumer_info(&stream, TIMER_WRITER).await.map_or(0, |info| info.num_waiting)
    };
    eventually("a pending fetch", waits, |&waits| waits > 0).await;
    stops_at_once(&mut lane).await;
    assert_eq!(waits().await, 0, "the fetch is left behind");

    let call = format!("$JS.API.STREAM.DELETE.{}", wf.space.ept_stream());
    god.js_call::<Value>(&call, &json!({}), None).await.expect("deleted");
    let mut lane = mesh.lane().await;
    let asleep = || async { logged(&["the timer writer", "again=4s"]).len() };
    eventually("a long backoff", asleep, |&lines| lines > 0).await;
    stops_at_once(&mut lane).await;
    let held = cotal_nats::Bucket::new(&god, &wf.space.bucket(Bucket::Delivery));
    let row = held.get(cotal_wire::names::LEASE_KEY).await.expect("the lease");
    assert!(row.is_none_or(|row| row.live().is_none()), "released in order");
}

/// Well below anything that the writer could wait for: an ack wait, a pull or a backoff.
async fn stops_at_once(lane: &mut cotal_delivery::Lane) {
    let asked = Instant::now();
    lane.stop();
    lane.ended().await.expect("a clean stop");
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(2), "stopping took {took:?}");
}
