//! A space of one account is moved to three, and a move that dies anywhere is continued.

use cotal_manager::{Move, Moved, ensure_daemon_credentials, isolate};
use cotal_nats::{ConnectOptions, Connection, Creds, CredsSource};
use cotal_testkit::{Mesh, Peer};
use cotal_wire::accounts::{Account, Topology};
use cotal_workspace::{FileStore, SecretStore as _};

use crate::{agent, key, supervisor};

fn text(mesh: &Mesh, principal: &str) -> String {
    let store = FileStore::new(mesh.root().clone());
    store.get(&key(mesh, principal)).unwrap().unwrap().expose().to_owned()
}

async fn is_refused(mesh: &Mesh, creds: &str) -> bool {
    let source = CredsSource::new(Creds::parse(creds).unwrap());
    let options = ConnectOptions::new(mesh.url(), "left behind", source);
    Connection::connect(options).await.is_err()
}

/// Begins the move anew and dies after `steps` of it.
async fn die_after(mesh: &Mesh, steps: usize) -> Moved {
    let begun = Move::begin(mesh.root(), mesh.space(), &mesh.address()).unwrap();
    let mut moving = begun.expect("a move");
    let mut done = Moved::Nothing;
    for _ in 0..steps {
        done = moving.step().await.unwrap();
    }
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_three_accounts_loses_nothing_wherever_it_dies() {
    let mesh = Mesh::of_one_account().await;
    let mut lane = mesh.lane().await;
    let alice = mesh.peer("alice", &["team"], &["team"]).await;
    let bob = mesh.peer("bob", &["team"], &["team"]).await;
    assert!(bob.join("team").await.durable);
    for id in ["unread-1", "unread-2"] {
        alice.post("team", id, &[]).await;
    }
    assert_eq!(bob.receive(1).await, ["unread-1"]);
    lane.stop();
    lane.ended().await.unwrap();
    alice.post("team", "while nobody serves", &[]).await;
    let before = ["local.alice", "local.bob"].map(|principal| text(&mesh, principal));
    let agents = supervisor(&mesh).await;
    agents.add(&agent("carol", &["team"], &[], None)).await.unwrap();
    std::fs::write(mesh.dir().join(".cotal/main/agents/local.carol.creds"), "damaged").unwrap();

    for steps in 0..=6 {
        let done = die_after(&mesh, steps).await;
        if done == Moved::Finished {
            break;
        }
        assert!(mesh.authority().account().is_moving() || steps == 0, "{done:?}");
    }
    let account = mesh.authority();
    let account = account.account();
    assert!(account.topology() == Topology::Three && !account.is_moving());
    assert!(isolate(mesh.root(), mesh.space(), &mesh.address()).await.unwrap().is_none());
    for creds in &before {
        assert!(is_refused(&mesh, creds).await, "an old credential is still taken");
    }

    let store = FileStore::new(mesh.root().clone());
    ensure_daemon_credentials(&mesh.authority(), &store).unwrap();
    let _lane = mesh.lane().await;
    let moved = Peer::connect(mesh.url(), &text(&mesh, "local.bob")).await;
    assert_eq!(moved.lifecycle, bob.lifecycle);
    let poster = Peer::connect(mesh.url(), &text(&mesh, "local.alice")).await;
    poster.post("team", "after", &[]).await;
    // The membership stands, what was unread still comes, and what was read does not come again.
    let mut received = moved.receive(3).await;
    received.sort();
    assert_eq!(received, ["after", "unread-2", "while nobody serves"]);
    let home = account.keys_of(Account::Agents).public_key();
    assert_eq!(Creds::parse(&text(&mesh, "local.bob")).unwrap().claims().account, home);
}
