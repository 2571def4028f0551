//! Control requests and their five ways to fail.

use std::time::Duration;

use cotal_client::{ControlError, Endpoint, Liveness};
use cotal_nats::Subscription;
use cotal_testkit::{Mesh, Proxy};
use cotal_wire::names::DELIVERY;
use cotal_wire::profile::Profile;
use tokio::time::{Instant, timeout};

use crate::support::{QUIET, SOON, notice, options, sender, stopped};

/// A rail that hears requests and answers none.
async fn silent_rail(mesh: &Mesh) -> (Subscription, Subscription) {
    let daemon = mesh.connect(&mesh.creds(Profile::Delivery)).await;
    let control = daemon.subscribe(mesh.space().ctl_all(DELIVERY), Some(DELIVERY)).await;
    let probe = daemon.subscribe(mesh.space().live_all(DELIVERY), Some(DELIVERY)).await;
    (control.expect("a rail"), probe.expect("a rail"))
}

#[tokio::test]
async fn adm_3_nobody_silence_and_a_daemon_are_told_apart() {
    let mesh = Mesh::start().await;
    let creds = mesh.add_agent("bob", &[], &[], None).await;
    let options = options(mesh.url(), &creds).send_only();
    let bob = Endpoint::connect(options.request_timeout(Duration::from_millis(300))).await.unwrap();
    let nobody = bob.memberships().await;
    assert!(matches!(nobody, Err(ControlError::NoResponders { .. })), "{nobody:?}");
    assert_eq!(bob.liveness().await.unwrap(), Liveness::Unbound);
    let rail = silent_rail(&mesh).await;
    let silence = bob.memberships().await;
    assert!(matches!(silence, Err(ControlError::Timeout { .. })), "{silence:?}");
    drop(rail);
    let daemon = mesh.lane().await;
    let bob = sender(&mesh, &creds).await;
    assert_eq!(bob.memberships().await.unwrap(), []);
    assert_eq!(bob.liveness().await.unwrap(), Liveness::Bound);
    stopped(daemon).await;
}

#[tokio::test]
async fn adm_3_pending_requests_reject_when_the_connection_closes_and_are_not_replayed() {
    let mesh = Mesh::start().await;
    let creds = mesh.add_agent("bob", &[], &[], None).await;
    let (mut control, _probe) = silent_rail(&mesh).await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let bob = Endpoint::connect(options(&proxy.url(), &creds).send_only()).await.unwrap();
    let (pending, probing) = (bob.clone(), bob.clone());
    let pending = tokio::spawn(async move { pending.memberships().await });
    let probing = tokio::spawn(async move { probing.liveness().await });
    timeout(SOON, control.next()).await.unwrap().expect("the request");
    let asked = Instant::now();
    proxy.cut();
    let rejected = pending.await.unwrap();
    assert!(matches!(rejected, Err(ControlError::ConnectionLost)), "{rejected:?}");
    assert_eq!(probing.await.unwrap().unwrap(), Liveness::Unknown);
    assert!(asked.elapsed() < Duration::from_secs(4), "it waited for its timeout");
    let rejected = bob.memberships().await;
    assert!(matches!(rejected, Err(ControlError::ConnectionLost)), "{rejected:?}");
    proxy.heal();
    notice(&bob, |n| matches!(n, cotal_client::Notice::Reconnected)).await;
    let replayed = timeout(QUIET, control.next()).await;
    assert!(replayed.is_err(), "a request was replayed: {replayed:?}");
}

#[tokio::test]
async fn adm_3_pending_requests_reject_when_the_endpoint_stops() {
    let mesh = Mesh::start().await;
    let creds = mesh.add_agent("bob", &[], &[], None).await;
    let (mut control, _probe) = silent_rail(&mesh).await;
    let bob = sender(&mesh, &creds).await;
    let pending = bob.clone();
    let pending = tokio::spawn(async move { pending.memberships().await });
    timeout(SOON, control.next()).await.unwrap().expect("the request");
    bob.close().await;
    let rejected = pending.await.unwrap();
    assert!(matches!(rejected, Err(ControlError::Stopped)), "{rejected:?}");
    assert!(bob.next().await.is_none());
}
