//! A short soak: credentials that live for seconds, under traffic, while everything restarts. The
//! long one is `cargo xtask soak`.

use std::time::Duration;

use cotal_manager::ensure_daemon_credentials;
use cotal_testkit::{Mesh, logged};
use cotal_workspace::{FileStore, SecretKey, SecretKind, SecretStore as _};
use tokio::time::Instant;

use super::support::{Running, options_of};

/// Half of it leaves a manager that restarts with its broker the time to renew.
const LIFETIME: i64 = 10;
const TEAM: &str = "team.soak";

/// Longer than a lifetime, so every credential has been replaced.
#[tokio::test(flavor = "multi_thread")]
async fn crd_2_nothing_is_lost_or_refused_while_short_credentials_are_renewed_and_all_restarts() {
    let mut mesh = Mesh::start().await;
    let authority = |mesh: &Mesh| mesh.authority().with_lifetime(Some(LIFETIME));
    let store = FileStore::new(mesh.root().clone());
    for kind in [SecretKind::Delivery, SecretKind::MembershipRw] {
        store.delete(&SecretKey::new(mesh.space(), kind)).unwrap();
    }
    ensure_daemon_credentials(&authority(&mesh), &store).unwrap();
    let mut lane = mesh.lane().await;
    let mut manager = Running::start(options_of(&mesh, authority(&mesh))).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;

    let began = Instant::now();
    let mut sent = Vec::new();
    let mut step = 0;
    while began.elapsed() < Duration::from_secs(15) {
        for _ in 0..10 {
            let id = format!("m{}", sent.len());
            alice.post(TEAM, &id, &[]).await;
            sent.push(id);
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        step += 1;
        match step {
            8 => {
                lane.stop();
                lane.ended().await.unwrap();
                lane = mesh.lane().await;
            }
            16 => {
                manager.stop().await;
                manager = Running::start(options_of(&mesh, authority(&mesh))).await;
            }
            24 => {
                mesh.kill_broker().await;
                mesh.restart_broker().await;
                alice.connection.connected(Duration::from_secs(30)).await.unwrap();
                bob.connection.connected(Duration::from_secs(30)).await.unwrap();
            }
            _ => {}
        }
    }
    let mut got = bob.receive(sent.len()).await;
    got.sort_unstable();
    got.dedup();
    sent.sort_unstable();
    assert_eq!(got, sent);
    assert_eq!(logged(&["credential expired"]), Vec::<String>::new());
    assert!(logged(&["not adopted", "Refused"]).is_empty());
    manager.stop().await;
    drop(lane);
}
