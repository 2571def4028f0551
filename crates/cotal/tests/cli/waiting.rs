//! `pending`, `dead` and `redeliver` on the command line.

use std::process::{Command, Stdio};

use cotal_testkit::{God, Mesh, Peer, Supervisor, eventually};
use cotal_wire::names::{Bucket, dead_key};
use cotal_wire::rows::{DeadReason, DeadRow, DeadState};
use cotal_wire::{Channel, Lifecycle};
use serde_json::{Value, json};

use crate::site::Run;

const TEAM: &str = "team.a";

fn run(mesh: &Mesh, args: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cotal"));
    command
        .args(args)
        .current_dir(mesh.dir())
        .env_remove("COTAL_SPACE")
        .env("XDG_CONFIG_HOME", mesh.dir().join("config"))
        .stdin(Stdio::null());
    Run::of(command.output().unwrap())
}

fn listed(mesh: &Mesh, args: &[&str]) -> Value {
    let run = run(mesh, args).ok();
    assert_eq!(run.out.lines().count(), 1, "{run:?}");
    serde_json::from_str(&run.out).unwrap()
}

async fn start() -> (Mesh, cotal_delivery::Lane, God, Peer, Peer) {
    let mesh = Mesh::start().await;
    let lane = mesh.lane().await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    (mesh, lane, god, alice, bob)
}

/// The record of INBOX's entry `seq`.
async fn record(god: &God, member: &Lifecycle, seq: u64, state: DeadState) {
    let given_up = state == DeadState::GivenUp;
    let row = DeadRow {
        seq,
        owner: member.principal.clone(),
        lifecycle_uid: member.uid,
        channel: Channel::parse(TEAM).unwrap(),
        chat_seq: seq,
        state,
        reason: DeadReason::NoAclRow,
        attempts: if given_up { 11 } else { 3 },
        first_at: 1_700_000_000_000,
        next_at: if given_up { 0 } else { 4_000_000_000_000 },
    };
    let value = serde_json::to_vec(&row).unwrap();
    god.kv(Bucket::Dead).put(&dead_key(seq), value.into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_tells_what_waits_for_whom_how_long_and_why() {
    let (mesh, _lane, god, alice, bob) = start().await;
    assert_eq!(listed(&mesh, &["pending", "--json"]), json!([]));
    run(&mesh, &["pending"]).ok().says("nothing is waiting");
    let carol = mesh.peer("carol", &["team.>"], &[]).await;
    carol.join(TEAM).await;
    let acl = god.acl(&bob.lifecycle).await;
    god.kv(Bucket::Acl).delete(&bob.lifecycle.dotted(), None).await.unwrap();
    alice.post(TEAM, "m", &[]).await;
    let manager = Supervisor::of(&mesh).await;
    eventually("the entry waits", || manager.status(), |status| status.waiting == 1).await;
    record(&god, &bob.lifecycle, 77, DeadState::Parked).await;
    record(&god, &bob.lifecycle, 78, DeadState::GivenUp).await;

    let seen = || async { listed(&mesh, &["pending", "--json"]) };
    let all = |seen: &Value| seen.as_array().is_some_and(|all| all.len() == 3);
    let all = eventually("carol's copy is unread", seen, all).await;
    let of = |state: &str| {
        let all = all.as_array().unwrap();
        all.iter().find(|row| row["state"] == state).unwrap_or_else(|| panic!("{state}")).clone()
    };
    let waiting = of("waiting");
    assert_eq!((&waiting["member"], &waiting["channel"]), (&json!("local.bob"), &json!(TEAM)));
    assert_eq!(waiting["reason"], "its owner has no ACL row");
    assert!(waiting["seq"].is_u64() && waiting["attempts"].as_u64() >= Some(1));
    assert!(waiting["since"].as_i64().unwrap() > 1_700_000_000_000);
    let parked = of("parked");
    assert_eq!((&parked["seq"], &parked["attempts"]), (&json!(77), &json!(3)));
    let unread = of("unread");
    assert_eq!((&unread["member"], &unread["count"]), (&json!("local.carol"), &json!(1)));
    assert_eq!(unread["seq"], json!(null));
    assert_eq!(all[0], parked, "the oldest first");

    let of_carol = listed(&mesh, &["pending", "--member", "Carol", "--json"]);
    assert_eq!(of_carol, json!([unread]));
    let table = run(&mesh, &["pending", "--member", "bob"]).ok();
    assert_eq!(table.out.lines().count(), 3, "{table:?}");
    for word in ["STATE", "waiting", "parked", "local.bob", "its owner has no ACL row", TEAM] {
        assert!(table.out.contains(word), "{word} is not in {table:?}");
    }
    run(&mesh, &["pending", "--member", "a-b"]).ends(2);
    for args in [&["pending", "--json"][..], &["pending"], &["dead", "--json"], &["dead"]] {
        let run = run(&mesh, args).ok();
        assert!(!run.out.contains(bob.lifecycle.uid.as_str()), "{args:?} shows a uid");
    }
    god.put_acl(&bob.lifecycle, &acl).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_entry_is_listed_and_put_back_once() {
    let (mesh, _lane, god, alice, bob) = start().await;
    assert_eq!(listed(&mesh, &["dead", "--json"]), json!([]));
    run(&mesh, &["dead"]).ok().says("no dead entries");
    alice.post(TEAM, "m", &[]).await;
    assert_eq!(bob.receive(1).await, ["m"]);
    let seq = god.entries(&bob.lifecycle).await[0].seq;
    record(&god, &bob.lifecycle, seq, DeadState::GivenUp).await;
    let entry = seq.to_string();
    let row = json!([{
        "seq": seq, "state": "given-up", "member": "local.bob", "channel": TEAM, "chatSeq": seq,
        "reason": "no-acl-row", "attempts": 11, "firstAt": 1_700_000_000_000_i64, "nextAt": 0,
    }]);
    assert_eq!(listed(&mesh, &["dead", "--json"]), row);
    let table = run(&mesh, &["dead"]).ok();
    for word in ["ENTRY", &entry, "given up", "local.bob", "its owner has no ACL row", "11"] {
        assert!(table.out.contains(word), "{word} is not in {table:?}");
    }

    run(&mesh, &["redeliver", "999"]).ends(4).says("there is no dead entry 999: `cotal dead`");
    run(&mesh, &["redeliver", "x"]).ends(2);
    let back = run(&mesh, &["redeliver", &entry]).ok();
    let back = back.says(&format!("entry {entry} of local.bob is put back"));
    assert_eq!(back.out, "");
    assert_eq!(bob.receive(1).await, ["m"], "it comes once more");
    let gone = || async { listed(&mesh, &["dead", "--json"]) };
    eventually("its row is closed", gone, |rows| *rows == json!([])).await;
    run(&mesh, &["redeliver", &entry]).ends(4);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_daemon_pending_says_so_and_dead_lists_all_the_same() {
    let (mesh, mut lane, god, _alice, bob) = start().await;
    record(&god, &bob.lifecycle, 5, DeadState::GivenUp).await;
    lane.stop();
    lane.ended().await.unwrap();
    run(&mesh, &["pending"]).ends(7);
    assert_eq!(listed(&mesh, &["dead", "--json"]).as_array().unwrap().len(), 1);
    run(&mesh, &["redeliver", "5"]).ok();
    assert_eq!(listed(&mesh, &["dead", "--json"])[0]["state"], "parked");
    god.kv(Bucket::Dead).put(&dead_key(999), "{}".into()).await.unwrap();
    run(&mesh, &["redeliver", "999"]).ends(1).says("the row of entry 999 is garbled");
    run(&mesh, &["dead"]).ok().says("the row of entry 999 is garbled");
}
