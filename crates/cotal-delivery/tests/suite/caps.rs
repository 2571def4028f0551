//! The stream's cap: an unread copy that it discards is counted as missed (`wire.md` §3).

use cotal_manager::{AgentName, Agents};
use cotal_testkit::{God, Mesh, Supervisor, eventually, logged};
use cotal_wire::ChannelPattern;
use cotal_wire::control::DeliveryStatus;
use cotal_wire::names::{FANOUT, READER};

const TEAM: &str = "team.backend";
const SECRET: &str = "team.secret";

async fn missed_by(supervisor: &Supervisor, name: &str, count: u64) {
    let of = |status: &DeliveryStatus| {
        let found = status.missed.iter().find(|m| m.member.actor() == name);
        found.map_or(0, |m| m.missed)
    };
    let what = format!("{count} misses of {name}");
    eventually(&what, || supervisor.status(), |status| of(status) >= count).await;
    // The count must stay the same from now on.
    let mut last = 0;
    for _ in 0..3 {
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
        last = of(&supervisor.status().await);
    }
    assert_eq!(last, count, "misses of {name}");
}

/// Unread copies of a member that is away are counted exactly, however the checks fall between
/// them, and reported once per episode. A member that reads misses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_cap_counts_each_unread_copy_it_takes_and_tells_once_an_episode() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let (god, supervisor) = (God::of(&mesh).await, Supervisor::of(&mesh).await);
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let away = mesh.peer("away", &["team.>"], &[]).await;
    let reads = mesh.peer("reads", &["team.>"], &[]).await;
    away.join(TEAM).await;
    reads.join(TEAM).await;
    let lost = ["discarded unread copies of a member", "local.away"];

    alice.post_many(TEAM, "a", 700).await;
    assert_eq!(reads.receive(700).await.len(), 700);
    alice.post_many(TEAM, "b", 450).await;
    assert_eq!(reads.receive(450).await.len(), 450);
    missed_by(&supervisor, "away", 150).await;
    assert_eq!(logged(&lost).len(), 1, "{:?}", logged(&lost));
    alice.post_many(TEAM, "c", 50).await;
    missed_by(&supervisor, "away", 200).await;
    assert_eq!(logged(&lost).len(), 1, "one episode: {:?}", logged(&lost));
    missed_by(&supervisor, "reads", 0).await;

    let got = away.receive(1_000).await;
    assert_eq!((got[0].as_str(), got[999].as_str()), ("a200", "c49"));
    alice.post_many(TEAM, "d", 1).await;
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
    missed_by(&supervisor, "away", 200).await;
}

/// For a member that reads nothing, a recall does not count as missed either.
#[tokio::test(flavor = "multi_thread")]
async fn the_cap_counts_nothing_that_a_recall_took() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let (god, supervisor) = (God::of(&mesh).await, Supervisor::of(&mesh).await);
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let away = mesh.peer("away", &["team.>"], &[]).await;
    for channel in [TEAM, SECRET] {
        away.join(channel).await;
    }
    alice.post_many(SECRET, "s", 800).await;
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
    let agents = Agents::connect(mesh.root(), mesh.space(), &mesh.address()).await;
    let (who, read) = (AgentName::parse("away"), ChannelPattern::parse(TEAM));
    let narrowed = agents.expect("the supervisor").narrow(&who.unwrap(), &[read.unwrap()]).await;
    narrowed.expect("a narrowing");

    alice.post_many(TEAM, "t", 1_050).await;
    missed_by(&supervisor, "away", 50).await;
}

/// A burst that is already over at the first check.
#[tokio::test(flavor = "multi_thread")]
async fn the_cap_counts_a_burst_before_the_first_look() {
    let mesh = Mesh::start().await;
    let mut lane = mesh.lane().await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let away = mesh.peer("away", &["team.>"], &[]).await;
    away.join(TEAM).await;
    alice.post_many(TEAM, "a", 990).await;
    god.wait_until_settled(READER).await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    alice.post_many(TEAM, "b", 40).await;
    let _next = mesh.lane().await;
    missed_by(&Supervisor::of(&mesh).await, "away", 30).await;
}

/// Copies that a member read before a burst are not missed, however late the first check comes.
#[tokio::test(flavor = "multi_thread")]
async fn the_cap_accuses_nobody_of_what_was_read_before_a_burst() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let (god, supervisor) = (God::of(&mesh).await, Supervisor::of(&mesh).await);
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let reads = mesh.peer("reads", &["team.>"], &[]).await;
    let full = mesh.peer("full", &["team.>"], &[]).await;
    reads.join(TEAM).await;
    full.join("team.full").await;
    alice.post_many(TEAM, "a", 900).await;
    assert_eq!(reads.receive(900).await.len(), 900);
    // A check of another member delays the next check, so the burst is over by then.
    alice.post_many("team.full", "f", 1_000).await;
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
    alice.post_many(TEAM, "b", 1_100).await;
    missed_by(&supervisor, "reads", 100).await;
    missed_by(&supervisor, "full", 0).await;
}

/// INBOX's cap: entries that wait for a missing ACL row and are discarded are misses too, and free
/// their slots.
#[tokio::test(flavor = "multi_thread")]
async fn the_cap_counts_waiting_and_parked_entries_that_it_takes() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let (god, supervisor) = (God::of(&mesh).await, Supervisor::of(&mesh).await);
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let away = mesh.peer("away", &["team.>"], &[]).await;
    away.join(TEAM).await;
    let kv = god.kv(cotal_wire::names::Bucket::Acl);
    kv.delete(&away.lifecycle.dotted(), None).await.expect("a deleted row");
    alice.post_many(TEAM, "a", 1_150).await;
    missed_by(&supervisor, "away", 150).await;
    let status = supervisor.status().await;
    assert_eq!((status.waiting, status.parked), (0, 1_000), "the first 100 waited, 50 were parked");
    for kind in ["discarded waiting entries", "discarded parked entries"] {
        assert_eq!(logged(&[kind, "local.away"]).len(), 1, "{kind}");
    }
}

/// One sender's mentions push out its own oldest alone, whatever stood before them; the miss is
/// counted, and tells whom it hit and who filled the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_one_sender_pushes_out_nothing_that_another_sent() {
    let mesh = Mesh::start().await;
    let _lane = mesh.lane().await;
    let (god, supervisor) = (God::of(&mesh).await, Supervisor::of(&mesh).await);
    let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
    let mallory = mesh.peer("mallory", &["team.>"], &["team.>"]).await;
    let away = mesh.peer("away", &["team.>"], &[]).await;
    away.join(TEAM).await;
    alice.post_many(TEAM, "early", 20).await;
    god.wait_until_settled(READER).await;
    mallory.post_many(TEAM, "flood", 1_100).await;
    god.wait_until_settled(FANOUT).await;
    god.wait_until_settled(READER).await;
    alice.post_many(TEAM, "late", 5).await;
    missed_by(&supervisor, "away", 125).await;
    let named = logged(&["a sender fills the store of a member", "local.away", "local.mallory"]);
    assert_eq!(named.len(), 1, "{named:?}");
    assert!(logged(&["a sender fills", "sender=local.alice"]).is_empty());

    let got = away.receive(1_000).await;
    let of = |prefix: &str| got.iter().filter(|id| id.starts_with(prefix)).count();
    assert_eq!((of("early"), of("late"), of("flood")), (20, 5, 975));
    assert!(got.contains(&"flood125".to_owned()) && !got.contains(&"flood124".to_owned()));
}
