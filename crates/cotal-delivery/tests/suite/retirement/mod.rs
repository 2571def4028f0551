//! The end of a lifecycle while everything else runs (RDR-4 to RDR-7, INV-1 to INV-6, recall).

mod crashes;
mod narrowing;
mod pages;
mod races;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use cotal_delivery::Lane;
use cotal_manager::{AgentName, Agents, ManagerError};
use cotal_testkit::{God, Mesh, Peer, Proxy, Supervisor, eventually, serving};
use cotal_trust::{UserKey, UserSpec, mint_user};
use cotal_wire::control::{Code, Eviction, Inventory};
use cotal_wire::names::{Bucket, DELIVERY, READER, member_key};
use cotal_wire::profile::Profile;
use cotal_wire::{Channel, ChannelPattern, Lifecycle};
use cotal_workspace::{FileStore, MemoryStore, Secret, SecretKey, SecretKind, SecretStore};
use serde_json::json;

use super::setup::start;

const TEAM: &str = "team.backend";
const SECRET: &str = "team.secret";

async fn write_tombstone(god: &God, member: &Lifecycle) {
    let mut row = god.acl(member).await;
    row.allow_subscribe.clear();
    row.retired = true;
    row.revision += 1;
    god.put_acl(member, &row).await;
}

/// A lane behind a proxy, and bob, whose lifecycle has ended while an entry of it waits for the
/// paused reader.
async fn retired_with_an_entry() -> (Mesh, Proxy, Lane, God, Peer) {
    let mesh = Mesh::start().await;
    let proxy = Proxy::to(&mesh.host_port()).await;
    let mut options = mesh.lane_options();
    options.server = proxy.url();
    let lane = mesh.serve(options).await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &[">"], &[">"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    god.pause(READER).await;
    alice.post(TEAM, "late", &[]).await;
    god.wait_for_entries(1).await;
    write_tombstone(&god, &bob.lifecycle).await;
    (mesh, proxy, lane, god, bob)
}

fn name(text: &str) -> AgentName {
    AgentName::parse(text).expect("a name")
}

async fn agents(mesh: &Mesh) -> Agents {
    Agents::connect(mesh.root(), mesh.space(), &mesh.address()).await.expect("the supervisor")
}

async fn inventory(manager: &Supervisor, member: &Lifecycle) -> Vec<Channel> {
    let args = json!({ "principal": member.principal, "lifecycleUid": member.uid });
    let reply = manager.request("lifecycleMemberships", args).await.expect("an answer");
    assert!(reply.ok, "refused: {reply:?}");
    let inventory: Inventory =
        serde_json::from_value(reply.data.expect("data")).expect("an inventory");
    inventory.channels
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_7_the_stray_row_goes_with_the_entry_and_nothing_is_copied_any_more() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    god.pause(READER).await;
    alice.post(TEAM, "late", &[]).await;
    god.wait_for_entries(1).await;
    write_tombstone(&god, &bob.lifecycle).await;
    god.resume(READER).await;
    god.wait_until_settled(READER).await;
    assert!(god.entries(&bob.lifecycle).await.is_empty(), "the entry is out of the store");
    let row = || god.member(TEAM, &bob.lifecycle);
    eventually("the stray row goes", row, Option::is_none).await;

    // Nothing is copied to it any more.
    alice.post(TEAM, "later", &[]).await;
    god.wait_until_settled("fanout").await;
    assert!(god.entries(&bob.lifecycle).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_4_a_live_mention_of_a_retired_lifecycle_is_removed_too() {
    let (mesh, _lane, alice, god) = start().await;
    mesh.set_class("ops", cotal_wire::rows::DeliveryClass::Live).await;
    let bob = mesh.peer("bob", &["ops"], &[]).await;
    god.pause(READER).await;
    alice.post("ops", "hey", &["bob"]).await;
    god.wait_for_entries(1).await;
    write_tombstone(&god, &bob.lifecycle).await;
    god.resume(READER).await;
    god.wait_until_settled(READER).await;
    assert!(god.entries(&bob.lifecycle).await.is_empty());
}

/// A delivery credential that may not delete from INBOX, in a store of its own.
fn store_without_delete(mesh: &Mesh) -> Arc<dyn SecretStore> {
    let files = FileStore::new(mesh.root().clone());
    let memory = MemoryStore::new("a test");
    let key = |kind| SecretKey::new(mesh.space(), kind);
    for kind in [SecretKind::MembershipObserver, SecretKind::ConnectionEvictor] {
        let secret = files.get(&key(kind.clone())).expect("the store").expect("a credential");
        memory.put(&key(kind), &secret).expect("stored");
    }
    let own = files.get(&key(SecretKind::Delivery)).expect("the store").expect("a credential");
    let creds = cotal_wire::creds::Creds::parse(own.expose()).expect("a credential");
    let user = UserKey::from_seed(&Secret::new(creds.seed)).expect("a key");
    let profile = Profile::Delivery(user.principal().expect("a principal"));
    let topology = mesh.authority().account().topology();
    let mut permissions = profile.permissions(mesh.space(), &creds.claims.subject, topology);
    let delete = format!("$JS.API.STREAM.MSG.DELETE.{}", mesh.space().inbox_stream());
    permissions.pub_allow.retain(|subject| *subject != delete);
    let spec = UserSpec {
        name: "delivery",
        key: &user,
        tags: creds.claims.tags.clone(),
        permissions,
        issued_at: creds.claims.issued_at,
        expires_at: creds.claims.expires_at,
    };
    let minted = mint_user(mesh.authority().account().keys(), &spec).expect("a credential");
    memory.put(&key(SecretKind::Delivery), &minted.creds).expect("stored");
    Arc::new(memory)
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_5_a_failed_delete_leaves_the_entry_pending_and_it_is_retried() {
    let mesh = Mesh::start().await;
    let mut options = mesh.lane_options();
    options.store = store_without_delete(&mesh);
    let mut weak = serving(Lane::start(options)).await;
    let god = God::of(&mesh).await;
    let alice = mesh.peer("alice", &[">"], &[">"]).await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    write_tombstone(&god, &bob.lifecycle).await;
    alice.post(TEAM, "late", &[]).await;

    let manager = Supervisor::of(&mesh).await;
    let waiting = || manager.status();
    eventually("the entry waits", waiting, |status| status.waiting == 1).await;
    let inbox = mesh.space().inbox_stream();
    let info = god.connection.consumer_info(&inbox, READER).await.expect("the reader");
    assert_eq!(info.num_ack_pending, 1, "a failed delete is not acked");
    assert_eq!(god.entries(&bob.lifecycle).await.len(), 1);
    weak.stop();
    weak.ended().await.expect("a clean end");

    // The daemon that serves next may delete, and gets the entry again.
    god.hasten_daemon().await;
    let _lane = mesh.lane().await;
    god.wait_until_settled(READER).await;
    assert!(god.entries(&bob.lifecycle).await.is_empty());
}

/// The entry is already gone when the daemon deletes it.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_5_an_entry_that_the_stream_no_longer_holds_counts_as_removed() {
    let (mesh, proxy, _lane, god, bob) = retired_with_an_entry().await;
    proxy.stall_at("$JS.API.STREAM.MSG.DELETE.INBOX_main");
    god.resume(READER).await;
    proxy.stalled().await;
    let entry = god.entries(&bob.lifecycle).await.remove(0);
    let deleted = god.connection.delete_message(&mesh.space().inbox_stream(), entry.seq).await;
    deleted.expect("a deleted entry");
    proxy.heal();
    let manager = Supervisor::of(&mesh).await;
    let ended = |status: &cotal_wire::control::DeliveryStatus| status.denied == 1;
    let status = eventually("it is ended", || manager.status(), ended).await;
    assert_eq!(status.waiting, 0, "it waits for a delete that was done already");
}

/// The broker has deleted the entry, but its answer is lost.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_5_a_delete_whose_answer_is_lost_is_no_miss() {
    let (mesh, proxy, _lane, god, bob) = retired_with_an_entry().await;
    proxy.deafen_at("STREAM.MSG.DELETE.INBOX_main");
    god.resume(READER).await;
    proxy.deafened().await;
    let told = || async { cotal_testkit::logged(&["could not be removed and is retried"]).len() };
    eventually("a delete without an answer", told, |lines| *lines > 0).await;
    assert!(god.entries(&bob.lifecycle).await.is_empty(), "the broker has deleted it");
    proxy.heal();
    let manager = Supervisor::of(&mesh).await;
    let ended = |status: &cotal_wire::control::DeliveryStatus| {
        status.denied >= 1 && (status.waiting, status.parked) == (0, 0)
    };
    let status = eventually("it is found to be gone", || manager.status(), ended).await;
    assert_eq!(status.missed, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_6_a_delete_in_flight_when_serving_stops_is_left_to_the_next_daemon() {
    let (mesh, proxy, cut_off, god, bob) = retired_with_an_entry().await;
    proxy.stall();
    god.resume(READER).await;
    drop(cut_off);
    let inbox = mesh.space().inbox_stream();
    assert_eq!(god.entries(&bob.lifecycle).await.len(), 1, "nothing was removed");

    god.free_lease().await;
    god.hasten_daemon().await;
    let _lane = mesh.lane().await;
    god.wait_until_settled(READER).await;
    assert!(god.entries(&bob.lifecycle).await.is_empty());
    let info = god.connection.consumer_info(&inbox, READER).await.expect("the reader");
    assert_eq!(info.num_ack_pending, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_1_an_inventory_does_not_wait_for_an_eviction() {
    let (mesh, _lane, _alice, _god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    let manager = Supervisor::of(&mesh).await;
    let other = Supervisor::of(&mesh).await;
    // Bob reconnects, so this eviction keeps scanning for seconds.
    let eviction = async {
        let reply = manager.request("evictPrincipal", json!({ "principal": "local.bob" })).await;
        let data = reply.expect("an answer").data.expect("an eviction");
        serde_json::from_value::<Eviction>(data).expect("an eviction")
    };
    tokio::pin!(eviction);
    tokio::select! {
        biased;
        early = &mut eviction => panic!("the eviction was over before the inventory: {early:?}"),
        channels = inventory(&other, &bob.lifecycle) => {
            assert_eq!(channels, [Channel::parse(TEAM).expect("a channel")]);
        }
    }
    assert!(!eviction.await.verified_gone);
}

#[tokio::test(flavor = "multi_thread")]
async fn adm_1_other_requests_are_answered_in_the_order_they_arrive() {
    let (mesh, _lane, _alice, god) = start().await;
    let rail = mesh.space().ctl_all("delivery-admin");
    let mut asked = god.connection.subscribe(rail, None).await.expect("a subscription");
    let _bob = mesh.peer("bob", &["team.>"], &[]).await;
    let manager = Supervisor::of(&mesh).await;
    let answers = format!("{}.reply.*", mesh.space().ctl_all("delivery-admin"));
    let mut answers = god.connection.subscribe(answers, None).await.expect("a subscription");
    let first = manager.request("evictPrincipal", json!({ "principal": "local.bob" }));
    let second = async {
        asked.next().await.expect("the first request is on the rail");
        manager.request("deliveryStatus", json!({})).await.expect("an answer");
    };
    let (evicted, ()) = tokio::join!(first, second);
    evicted.expect("an answer");
    for field in ["kicked", "incarnation"] {
        let answer = answers.next().await.expect("an answer on the rail");
        let answer = String::from_utf8_lossy(&answer.payload).into_owned();
        assert!(answer.contains(field), "{field} is not in {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_2_inventories_that_arrive_together_share_a_read() {
    let (mesh, _lane, _alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    let manager = Supervisor::of(&mesh).await;
    let members = mesh.space().kv_stream(Bucket::Members);
    let reads = format!("$JS.API.STREAM.MSG.GET.{members}");
    let mut reads = god.connection.subscribe(reads, None).await.expect("a subscription");
    let all = (0..40).map(|_| inventory(&manager, &bob.lifecycle));
    for channels in futures_util::future::join_all(all).await {
        assert_eq!(channels.len(), 1);
    }
    let mut count = 0;
    while tokio::time::timeout(Duration::from_millis(300), reads.next()).await.is_ok() {
        count += 1;
    }
    assert!((1..30).contains(&count), "{count} reads for 40 inventories");
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_4_an_inventory_fences_a_lifecycle_whose_row_still_allows_reads() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let generation = bob.join(TEAM).await.generation;
    let manager = Supervisor::of(&mesh).await;
    inventory(&manager, &bob.lifecycle).await;
    let join = bob.control(DELIVERY, "durableJoin", json!({ "channel": SECRET })).await;
    assert_eq!(join.expect("an answer").code, Some(Code::Retired));
    let args = json!({ "channel": TEAM, "generation": generation });
    let leave = bob.control(DELIVERY, "durableLeave", args).await.expect("an answer");
    assert_eq!(leave.code, Some(Code::Retired));
    assert!(god.member(SECRET, &bob.lifecycle).await.is_none());
    // Another lifecycle is not affected.
    assert!(alice.join(SECRET).await.durable);
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_3_a_narrowed_row_refuses_by_itself_and_leaves_no_mark() {
    let (mesh, _lane, _alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    let manager = Supervisor::of(&mesh).await;
    god.set_acl(&bob.lifecycle, &[]).await;
    assert_eq!(inventory(&manager, &bob.lifecycle).await.len(), 1);
    let refused = bob.control(DELIVERY, "durableJoin", json!({ "channel": SECRET })).await;
    assert_eq!(refused.expect("an answer").code, Some(Code::Denied));
    god.set_acl(&bob.lifecycle, &["team.>"]).await;
    assert!(bob.join(SECRET).await.durable, "no mark was left");
}

#[tokio::test(flavor = "multi_thread")]
async fn mem_3_a_join_that_races_a_narrowing_is_refused_or_its_row_is_in_the_inventory() {
    let (mesh, _lane, _alice, god) = start().await;
    let manager = Supervisor::of(&mesh).await;
    for round in 0..12 {
        let bob = mesh.peer(&format!("bob{round}"), &["team.>"], &[]).await;
        let join = bob.control(DELIVERY, "durableJoin", json!({ "channel": TEAM }));
        let narrow = async {
            for _ in 0..round * 20 {
                tokio::task::yield_now().await;
            }
            god.set_acl(&bob.lifecycle, &[]).await;
            inventory(&manager, &bob.lifecycle).await
        };
        let (joined, listed) = tokio::join!(join, narrow);
        let stands = god.member(TEAM, &bob.lifecycle).await.is_some();
        assert!(!stands || !listed.is_empty(), "a row that no inventory showed, {round}");
        if !joined.expect("an answer").ok {
            assert!(!stands, "a refused join left its row, {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mem_4_a_leave_does_not_bring_a_deleted_row_back() {
    let (mesh, _lane, _alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let generation = bob.join(TEAM).await.generation;
    let key = member_key(&Channel::parse(TEAM).expect("a channel"), &bob.lifecycle);
    god.kv(Bucket::Members).delete(&key, None).await.expect("a deleted row");
    let left = bob.leave(TEAM, generation).await;
    assert_eq!(left.already_left, Some(true));
    assert!(god.member(TEAM, &bob.lifecycle).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_5_a_retired_agent_is_gone_for_good_and_its_successor_inherits_nothing() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &["team.>"]).await;
    bob.join(TEAM).await;
    alice.post(TEAM, "unread", &[]).await;
    let retired = agents(&mesh).await.retire(&name("bob")).await.expect("a retirement");
    assert_eq!(retired.channels, [Channel::parse(TEAM).expect("a channel")]);
    assert!(god.acl(&bob.lifecycle).await.retired, "a tombstone stands");
    assert!(god.member(TEAM, &bob.lifecycle).await.is_none());
    let mut state = bob.connection.state();
    let dropped = state.wait_for(|s| !s.is_connected());
    tokio::time::timeout(Duration::from_secs(10), dropped).await.expect("dropped").expect("state");

    let heir = mesh.peer("bob", &["team.>"], &[]).await;
    assert_ne!(heir.lifecycle.uid, bob.lifecycle.uid);
    heir.receives_nothing().await;
    let list = heir.control(DELIVERY, "listMemberships", json!({})).await.expect("an answer");
    assert_eq!(list.data.expect("data")["memberships"], json!([]));
    heir.join(TEAM).await;
    alice.post(TEAM, "new", &[]).await;
    assert_eq!(heir.receive(1).await, ["new"]);

    // Not even a later row revives it.
    let row = god.acl(&heir.lifecycle).await;
    god.put_acl(&bob.lifecycle, &row).await;
    let args = json!({ "channel": TEAM, "lifecycleUid": bob.lifecycle.uid });
    let back = heir.control(DELIVERY, "durableJoin", args).await.expect("an answer");
    assert_eq!(back.code, Some(Code::Retired), "{back:?}");
    assert!(god.member(TEAM, &bob.lifecycle).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_6_without_a_daemon_a_retirement_holds_the_name_and_goes_on_later() {
    let mesh = Mesh::start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let agents = agents(&mesh).await;
    let silent = agents.retire(&name("bob")).await.expect_err("nobody to ask");
    assert!(silent.is_silence() || matches!(silent, ManagerError::RailSilent { .. }), "{silent}");
    let again = cotal_manager::NewAgent {
        name: name("bob"),
        read: Vec::new(),
        post: Vec::new(),
        role: None,
    };
    let held = agents.add(&again).await.expect_err("the name is held");
    assert!(matches!(held, ManagerError::Retiring(_)), "{held}");

    let _lane = mesh.lane().await;
    agents.retire(&name("bob")).await.expect("it goes on");
    assert!(God::of(&mesh).await.acl(&bob.lifecycle).await.retired);
    agents.add(&again).await.expect("the name is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn recall_takes_back_what_an_absent_agent_may_no_longer_read() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    bob.join(SECRET).await;
    alice.post(TEAM, "open", &[]).await;
    alice.post(SECRET, "secret", &[]).await;
    let dlv = mesh.space().dlv_stream();
    let subject = mesh.space().dlv(&bob.lifecycle);
    let copies = || god.stored(&dlv, &subject);
    eventually("both are handed off", copies, |copies| copies.len() == 2).await;

    let read = [ChannelPattern::parse(TEAM).expect("a pattern")];
    agents(&mesh).await.narrow(&name("bob"), &read).await.expect("a narrowing");
    eventually("the secret is recalled", copies, |copies| copies.len() == 1).await;
    let creds =
        mesh.root().agent_creds(&cotal_workspace::Segment::from(mesh.space()), bob.principal());
    let text = std::fs::read_to_string(creds).expect("the new credential");
    let bob = Peer::connect(mesh.url(), &text).await;
    assert_eq!(bob.receive(1).await, ["open"]);
    bob.receives_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recall_happens_also_when_the_daemon_was_away_and_never_for_a_leave() {
    let (mesh, mut lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    let generation = bob.join(TEAM).await.generation;
    bob.join(SECRET).await;
    alice.post(TEAM, "open", &[]).await;
    alice.post(SECRET, "secret", &[]).await;
    let dlv = mesh.space().dlv_stream();
    let subject = mesh.space().dlv(&bob.lifecycle);
    let copies = || god.stored(&dlv, &subject);
    eventually("both are handed off", copies, |copies| copies.len() == 2).await;
    bob.leave(TEAM, generation).await;
    lane.stop();
    lane.ended().await.expect("a clean end");
    god.set_acl(&bob.lifecycle, &[TEAM]).await;

    let _next = mesh.lane().await;
    eventually("the secret is recalled", copies, |copies| copies.len() == 1).await;
    assert_eq!(bob.receive(1).await, ["open"], "a leave takes nothing back");
}

/// An entry as the fan-out writer makes it, for a member that only the test knows.
async fn put_entry(god: &God, space: &cotal_wire::Space, member: &Lifecycle, id: &str, seq: u64) {
    use cotal_wire::envelope::{Reason, write_entry};
    let channel = Channel::parse(TEAM).expect("a channel");
    let msg = json!({ "id": id, "from": { "id": "local.alice" }, "channel": TEAM }).to_string();
    let entry = write_entry(msg.as_bytes(), &channel, seq, Reason::LiveMention, 0);
    let key = format!("{id}:local.alice:{}:0", member.dotted());
    let stored = god.connection.publish_confirmed(space.dinbox(member), None, entry, Some(&key));
    stored.await.expect("an entry");
}

fn stranger(n: u8) -> Lifecycle {
    let uid = cotal_wire::LifecycleUid::from_random([n; 26]);
    Lifecycle::new(
        cotal_wire::Principal::parse(&format!("local.ghost{n}")).expect("a principal"),
        uid,
    )
}

/// The reader gets a tenth of the slots of a real space, so that the waiting entries alone could
/// take them all.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_8_five_thousand_waiting_entries_hold_nobody_up() {
    let (mesh, _lane, alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    bob.join(TEAM).await;
    god.limit(&mesh.space().inbox_stream(), READER, 1_000).await;
    for n in 0..25 {
        let ghost = stranger(n % 5);
        let entries = (0..200).map(|i| {
            let (god, space, ghost) = (&god, mesh.space(), &ghost);
            async move { put_entry(god, space, ghost, &format!("g{n}-{i}"), 1).await }
        });
        futures_util::future::join_all(entries).await;
    }
    alice.post(TEAM, "prompt", &[]).await;
    assert_eq!(bob.receive(1).await, ["prompt"]);
    let manager = Supervisor::of(&mesh).await;
    let all =
        |status: &cotal_wire::control::DeliveryStatus| status.waiting + status.parked >= 5_000;
    let status = eventually("all 5,000 are accounted for", || manager.status(), all).await;
    assert_eq!(status.waiting, 500, "a hundred of an owner wait in the reader: {status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_entry_that_is_put_back_is_delivered_under_a_key_of_its_own() {
    use cotal_wire::names::dead_key;
    use cotal_wire::rows::{DeadReason, DeadRow, DeadState};
    let (mesh, _lane, _alice, god) = start().await;
    let bob = mesh.peer("bob", &["team.>"], &[]).await;
    god.pause(READER).await;
    put_entry(&god, mesh.space(), &bob.lifecycle, "lost", 1).await;
    let entry = god.entries(&bob.lifecycle).await.remove(0);
    let row = DeadRow {
        seq: entry.seq,
        owner: bob.principal().clone(),
        lifecycle_uid: bob.lifecycle.uid,
        channel: Channel::parse(TEAM).expect("a channel"),
        chat_seq: 1,
        state: DeadState::Parked,
        reason: DeadReason::NoAclRow,
        attempts: 11,
        first_at: 0,
        next_at: 1,
    };
    let value = serde_json::to_vec(&row).expect("JSON");
    god.kv(Bucket::Dead).put(&dead_key(entry.seq), value.into()).await.expect("a dead row");
    let dlv = mesh.space().dlv_stream();
    let subject = mesh.space().dlv(&bob.lifecycle);
    let copies = || god.stored(&dlv, &subject);
    let copy = eventually("it is delivered", copies, |copies| copies.len() == 1).await.remove(0);
    let id = copy.headers.as_ref().and_then(|h| h.get("Nats-Msg-Id")).expect("a key");
    assert!(id.as_str().ends_with(":0:r1"), "{}", id.as_str());
    let gone = || async { god.kv(Bucket::Dead).get(&dead_key(entry.seq)).await.ok().flatten() };
    let deleted = |row: &Option<cotal_nats::Entry>| row.as_ref().is_none_or(|r| r.live().is_none());
    eventually("the row is closed", gone, deleted).await;
}
