//! Two daemons of one space: the holder is paused, its lease runs out and goes to the other, and it
//! wakes up late. Whatever it was in the middle of, it must not write, release or acknowledge
//! anything.
//!
//! The holder is a process of its own behind a proxy that keeps what it says after it woke up.

use std::collections::BTreeMap;
use std::time::Duration;

use cotal_delivery::Lane;
use cotal_manager::{AgentName, Agents};
use cotal_nats::js::ConsumerInfo;
use cotal_testkit::{DaemonProcess, God, Mesh, Peer, Proxy, Supervisor, eventually};
use cotal_wire::control::Inventory;
use cotal_wire::names::{Bucket, DELIVERY, FANOUT, LEASE_KEY, READER, member_key};
use cotal_wire::rows::LeaseRow;
use cotal_wire::{Channel, ChannelPattern, Lifecycle};
use rustix::process::Signal;
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_cotal");
const TEAM: &str = "team.backend";
const SECRET: &str = "team.secret";
/// Requests go to either daemon while both are subscribed; the paused one never answers.
const PATIENCE: Duration = Duration::from_secs(1);

struct Stage {
    mesh: Mesh,
    god: God,
    proxy: Proxy,
    holder: DaemonProcess,
    alice: Peer,
}

impl Stage {
    /// A holder that serves, under a lease of a few seconds.
    async fn start() -> Self {
        let mesh = Mesh::start().await;
        let god = God::of(&mesh).await;
        god.shorten_lease(4).await;
        let proxy = Proxy::to(&mesh.host_port()).await;
        let mut holder = DaemonProcess::start_at(BINARY, &mesh, &proxy.url(), &[]);
        holder.serves().await;
        let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
        Self { mesh, god, proxy, holder, alice }
    }

    async fn member(&self, name: &str) -> Peer {
        let peer = self.mesh.peer(name, &["team.>"], &[]).await;
        assert!(peer.join(TEAM).await.durable);
        peer
    }

    /// Pauses the holder with the answer to what it just said on its way to it.
    async fn pause_after_it_said(&self, text: &str, provoke: impl Future<Output = ()>) {
        self.proxy.deafen_at(text);
        provoke.await;
        self.proxy.deafened().await;
        self.holder.signal(Signal::STOP);
        self.proxy.heal();
    }

    /// Waits until the holder's lease has run out, and starts the daemon that serves next. From
    /// then on what the holder has pulled comes again after a second, also when its pulls take it
    /// once more.
    async fn succeed(&self) -> Lane {
        self.god.wait_for_a_free_lease().await;
        let space = self.mesh.space();
        let consumers = [(space.chat_stream(), FANOUT), (space.inbox_stream(), READER)];
        let mut taken = Vec::new();
        for (stream, consumer) in consumers {
            let info = self.god.connection.consumer_info(&stream, consumer).await;
            if info.expect("a consumer").num_ack_pending > 0 {
                taken.push((stream, consumer));
            }
        }
        let lane = self.mesh.lane().await;
        // The successor does so by itself at its start, and takes it back.
        for seconds in [1, 60] {
            for (stream, consumer) in &taken {
                let look = || self.god.connection.consumer_info(stream, consumer);
                let waits = |info: &Result<ConsumerInfo, _>| {
                    info.as_ref().is_ok_and(|i| i.config.ack_wait == seconds * 1_000_000_000)
                };
                eventually("the ack wait of a start", look, waits).await.expect("a consumer");
            }
        }
        self.god.hasten_daemon().await;
        lane
    }

    async fn settled(&self) {
        self.god.wait_until_settled(FANOUT).await;
        self.god.wait_until_settled(READER).await;
    }

    /// What is stored, and who serves.
    async fn stored(&self) -> BTreeMap<String, String> {
        let space = self.mesh.space();
        let mut streams = vec![space.chat_stream(), space.inbox_stream(), space.dlv_stream()];
        let buckets = [Bucket::Members, Bucket::Acl, Bucket::Channels, Bucket::Dead];
        streams.extend(buckets.map(|bucket| space.kv_stream(bucket)));
        let mut stored = BTreeMap::new();
        for stream in streams {
            let state = self.god.connection.stream_state(&stream).await.expect("a stream");
            stored.insert(stream, format!("{} up to {}", state.messages, state.last_seq));
        }
        let lease = self.god.kv(Bucket::Delivery).get(LEASE_KEY).await.expect("the lease bucket");
        let lease = lease.expect("a lease");
        let row = LeaseRow::parse(lease.live().expect("a lease")).expect("a lease");
        stored.insert("lease".into(), row.incarnation);
        stored
    }

    /// Wakes the holder up. It ends by itself, and by then it has changed nothing.
    async fn wake(&mut self) {
        self.settled().await;
        let before = self.stored().await;
        self.proxy.record();
        self.holder.signal(Signal::CONT);
        assert_eq!(self.holder.ended().await, Some(8), "{}", self.holder.log());
        let log = self.holder.log();
        assert!(log.contains("another daemon has taken the shard"), "{log}");
        for (subject, body) in self.proxy.published() {
            assert!(changes_nothing(&subject, &body), "it said {subject}: {body}");
        }
        assert_eq!(self.stored().await, before);
    }

    /// The other daemon serves on: what is posted now arrives once.
    async fn goes_on(&self, members: &[&Peer]) {
        self.alice.post(TEAM, "afterwards", &[]).await;
        for member in members {
            assert_eq!(member.receive(1).await, ["afterwards"]);
        }
        self.settled().await;
        for member in members {
            assert!(waits(&self.god, member).await == 0, "{}", member.principal());
        }
    }
}

/// Copies of a member that it has not acknowledged.
async fn waits(god: &God, member: &Peer) -> u64 {
    let consumer = member.space.dlv_consumer(&member.lifecycle);
    let info = god.connection.consumer_info("DLV_main", &consumer).await.expect("the consumer");
    info.num_pending + info.num_ack_pending
}

/// Reads, pulls and the consumers of watches, of the own account and of the shared one; refusals,
/// and that it does not serve.
fn changes_nothing(subject: &str, body: &str) -> bool {
    let reads = [
        "STREAM.MSG.GET.",
        "STREAM.INFO.",
        "CONSUMER.INFO.",
        "CONSUMER.MSG.NEXT.",
        "CONSUMER.CREATE.KV_",
        "CONSUMER.DELETE.KV_",
        "DIRECT.GET.",
    ];
    let apis = ["$JS.API.", "cotal.main.shared.API."];
    let call = apis.iter().find_map(|api| subject.strip_prefix(api));
    let is_reply = subject.contains(".reply.") || subject.starts_with("_R_.");
    let refuses = body.contains("\"ok\":false") || body.contains("\"unbound\"");
    call.is_some_and(|call| reads.iter().any(|read| call.starts_with(read)))
        || (is_reply && refuses)
}

/// Asks again until the daemon that is awake was asked.
async fn ask(peer: &Peer, op: &str, args: Value) -> Value {
    let subject = peer.space.ctl(DELIVERY, peer.principal());
    let from = json!({ "id": peer.principal(), "name": peer.principal().actor() });
    let body = json!({ "op": op, "args": args, "from": from }).to_string();
    let asked = || peer.ask(subject.clone(), body.clone().into(), PATIENCE);
    let reply = eventually("an answer", asked, Result::is_ok).await.expect("an answer");
    serde_json::from_slice(&reply).expect("a reply")
}

/// Asks to join, and listens to no answer.
async fn begin_join(peer: &Peer) {
    let subject = peer.space.ctl(DELIVERY, peer.principal());
    let from = json!({ "id": peer.principal(), "name": peer.principal().actor() });
    let body = json!({ "op": "durableJoin", "args": { "channel": TEAM }, "from": from });
    let reply = format!("{subject}.reply.0123456789abcdef");
    let body = body.to_string().into();
    let sent = peer.connection.publish_with_reply(subject, reply, None, body).await;
    sent.expect("a request");
}

async fn inventory(mesh: &Mesh, member: &Lifecycle) -> Vec<Channel> {
    let manager = Supervisor::of(mesh).await;
    let args = json!({ "principal": member.principal, "lifecycleUid": member.uid });
    let asked = || {
        let asked = manager.request("lifecycleMemberships", args.clone());
        async { tokio::time::timeout(PATIENCE, asked).await.ok().and_then(Result::ok) }
    };
    let reply = eventually("an inventory", asked, Option::is_some).await.expect("an answer");
    let inventory: Inventory = serde_json::from_value(reply.data.expect("data")).expect("one");
    inventory.channels
}

async fn agents(mesh: &Mesh) -> Agents {
    Agents::connect(mesh.root(), mesh.space(), &mesh.address()).await.expect("the supervisor")
}

/// Every run that met the paused daemon is given up and continued by the next.
async fn retire(mesh: &Mesh, who: &str) {
    let (agents, name) = (agents(mesh).await, AgentName::parse(who).expect("a name"));
    let run = || async {
        let retired = tokio::time::timeout(3 * PATIENCE, agents.retire(&name)).await;
        retired.map(|retired| retired.map_err(|error| error.to_string()))
    };
    let retired = eventually("a retirement", run, |run| matches!(run, Ok(Ok(_)))).await;
    retired.expect("in time").expect("a retirement");
}

#[tokio::test(flavor = "multi_thread")]
async fn inv_3_a_daemon_that_wakes_up_after_its_lease_went_to_another_changes_nothing() {
    let mut stage = Stage::start().await;
    let (bob, dave) = (stage.member("bob").await, stage.member("dave").await);
    let (erin, frank) = (stage.member("erin").await, stage.member("frank").await);
    erin.join(SECRET).await;
    stage.alice.post(TEAM, "before", &[]).await;
    for member in [&bob, &dave, &erin, &frank] {
        assert_eq!(member.receive(1).await, ["before"]);
    }
    stage.settled().await;

    stage.holder.signal(Signal::STOP);
    let _successor = stage.succeed().await;
    // The paused one still has pulls and subscriptions, so all of this comes to it as well.
    let carol = stage.mesh.peer("carol", &["team.>"], &[]).await;
    let joined = ask(&carol, "durableJoin", json!({ "channel": TEAM })).await;
    assert_eq!(joined["data"]["durable"], true, "{joined}");
    let left = ask(&dave, "durableLeave", json!({ "channel": TEAM, "generation": 1 })).await;
    assert_eq!(left["ok"], true, "{left}");
    let read = [ChannelPattern::parse(SECRET).expect("a pattern")];
    let name = AgentName::parse("erin").expect("a name");
    agents(&stage.mesh).await.narrow(&name, &read).await.expect("a narrowing");
    let listed = inventory(&stage.mesh, &erin.lifecycle).await;
    assert_eq!(listed.len(), 2, "a narrowing removes no row: {listed:?}");
    retire(&stage.mesh, "frank").await;
    assert!(stage.god.member(TEAM, &frank.lifecycle).await.is_none());
    for n in 0..4 {
        stage.alice.post(TEAM, &format!("m{n}"), &[]).await;
        stage.alice.post(SECRET, &format!("s{n}"), &[]).await;
    }
    let forged = stage.alice.space.chat(stage.alice.principal(), &Channel::parse(TEAM).unwrap());
    stage.god.connection.publish(forged, None, "no post".into()).await.expect("sent");
    let key = member_key(&Channel::parse(TEAM).unwrap(), &bob.lifecycle);
    stage.god.kv(Bucket::Members).put(&key, "no row".into()).await.expect("garbage");
    let repaired = || stage.god.member(TEAM, &bob.lifecycle);
    eventually("the row is put back", repaired, Option::is_some).await;

    stage.wake().await;
    let ids = |prefix: &str| (0..4).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
    for member in [&bob, &carol] {
        let mut got = member.receive(4).await;
        got.sort();
        assert_eq!(got, ids("m"), "{}", member.principal());
    }
    let creds = stage.mesh.dir().join(".cotal/main/agents/local.erin.creds");
    let creds = std::fs::read_to_string(creds).expect("the narrowed credential");
    let erin = Peer::connect(stage.mesh.url(), &creds).await;
    let mut got = erin.receive(4).await;
    got.sort();
    assert_eq!(got, ids("s"), "nothing of what was taken away");
    assert_eq!(waits(&stage.god, &dave).await, 0, "dave had left");
    assert!(stage.god.acl(&frank.lifecycle).await.retired);
    stage.goes_on(&[&bob, &carol]).await;
}

/// It had read an ACL that allowed the join. Meanwhile the lifecycle was retired, and nobody would
/// ever look for the row again.
#[tokio::test(flavor = "multi_thread")]
async fn inv_3_a_join_that_was_about_to_write_its_row_writes_none_for_a_retired_lifecycle() {
    let mut stage = Stage::start().await;
    let bob = stage.mesh.peer("bob", &["team.>"], &[]).await;
    let reads_acl = format!("{{\"last_by_subj\":\"$KV.cotal_acl_main.{}", bob.lifecycle.dotted());
    stage.pause_after_it_said(&reads_acl, begin_join(&bob)).await;
    let _successor = stage.succeed().await;
    retire(&stage.mesh, "bob").await;
    stage.wake().await;
    assert!(stage.god.member(TEAM, &bob.lifecycle).await.is_none());
    stage.goes_on(&[]).await;
}

/// Its row had met another's marker, and it was about to write over that. The pause is shorter than
/// the patience of its requests, so that it does get its answer when it wakes up.
#[tokio::test(flavor = "multi_thread")]
async fn inv_3_a_join_that_met_a_marker_does_not_write_over_it_after_its_lease() {
    let mut stage = Stage::start().await;
    let bob = stage.mesh.peer("bob", &["team.>"], &[]).await;
    let key = member_key(&Channel::parse(TEAM).unwrap(), &bob.lifecycle);
    let reads_acl = format!("{{\"last_by_subj\":\"$KV.cotal_acl_main.{}", bob.lifecycle.dotted());
    stage.proxy.deafen_at(&reads_acl);
    begin_join(&bob).await;
    stage.proxy.deafened().await;
    // It has found no row, and its own is refused because of this marker.
    stage.god.kv(Bucket::Members).delete(&key, None).await.expect("a marker");
    let leases = stage.god.kv(Bucket::Delivery);
    let lease = leases.get(LEASE_KEY).await.expect("the lease bucket").expect("a lease");
    let mut row = LeaseRow::parse(lease.live().expect("a lease")).expect("a lease");
    row.incarnation.push_str("-next");
    let looks_again = format!("{{\"last_by_subj\":\"$KV.cotal_members_main.{key}");
    stage.pause_after_it_said(&looks_again, async { stage.proxy.heal() }).await;
    stage.god.wait_for_a_free_lease().await;
    let row = serde_json::to_vec(&row).expect("JSON");
    leases.put(LEASE_KEY, row.into()).await.expect("the next one's lease");
    stage.proxy.record();
    stage.holder.signal(Signal::CONT);
    assert_eq!(stage.holder.ended().await, Some(8), "{}", stage.holder.log());
    for (subject, body) in stage.proxy.published() {
        assert!(changes_nothing(&subject, &body), "it said {subject}: {body}");
    }
    assert!(stage.god.member(TEAM, &bob.lifecycle).await.is_none());
}

/// Between the row and the second look at the ACL: the successor takes that look, before it goes on
/// with the join.
#[tokio::test(flavor = "multi_thread")]
async fn mem_3_a_join_that_had_written_its_row_is_finished_by_the_successor_or_removed() {
    for narrowed in [false, true] {
        let mut stage = Stage::start().await;
        let bob = stage.mesh.peer("bob", &["team.>"], &[]).await;
        let joining = async {
            let args = json!({ "channel": TEAM });
            let asked = bob.control(DELIVERY, "durableJoin", args);
            let _ = tokio::time::timeout(PATIENCE, asked).await;
        };
        stage.pause_after_it_said("HPUB $KV.cotal_members_main.", joining).await;
        if narrowed {
            stage.god.set_acl(&bob.lifecycle, &[SECRET]).await;
        }
        let _successor = stage.succeed().await;
        let row = || stage.god.member(TEAM, &bob.lifecycle);
        eventually("the successor has looked", row, |row| match row {
            Some((row, _)) => !narrowed && row.activated,
            None => narrowed,
        })
        .await;
        let before = row().await;
        stage.settled().await;
        stage.holder.signal(Signal::CONT);
        assert_eq!(stage.holder.ended().await, Some(8), "{}", stage.holder.log());
        assert_eq!(row().await, before, "it was changed by a daemon that does not serve");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_5_a_post_whose_copies_it_had_written_is_routed_again_and_arrives_once() {
    let mut stage = Stage::start().await;
    let bob = stage.member("bob").await;
    stage.god.pause(READER).await;
    let posting = async {
        stage.alice.post(TEAM, "m", &[]).await;
    };
    stage.pause_after_it_said("HPUB cotal.main.dinbox.", posting).await;
    let _successor = stage.succeed().await;
    stage.god.resume(READER).await;
    stage.wake().await;
    assert_eq!(bob.receive(1).await, ["m"]);
    stage.goes_on(&[&bob]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_an_entry_whose_copy_it_had_written_is_handed_off_again_and_arrives_once() {
    let mut stage = Stage::start().await;
    let bob = stage.member("bob").await;
    let posting = async {
        stage.alice.post(TEAM, "m", &[]).await;
    };
    stage.pause_after_it_said("HPUB cotal.main.dlv.", posting).await;
    let _successor = stage.succeed().await;
    stage.wake().await;
    assert_eq!(bob.receive(1).await, ["m"]);
    stage.goes_on(&[&bob]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_6_an_entry_whose_removal_it_had_asked_for_is_left_to_the_daemon_that_serves_next() {
    let mut stage = Stage::start().await;
    let (bob, carol) = (stage.member("bob").await, stage.member("carol").await);
    stage.god.pause(READER).await;
    stage.alice.post(TEAM, "m", &[]).await;
    stage.god.wait_for_entries(2).await;
    let mut row = stage.god.acl(&bob.lifecycle).await;
    row.allow_subscribe.clear();
    row.retired = true;
    stage.god.put_acl(&bob.lifecycle, &row).await;
    let reading = stage.god.resume(READER);
    stage.pause_after_it_said("$JS.API.STREAM.MSG.DELETE.INBOX_main", reading).await;
    let _successor = stage.succeed().await;
    stage.wake().await;
    assert!(stage.god.entries(&bob.lifecycle).await.is_empty());
    assert_eq!(carol.receive(1).await, ["m"]);
    stage.goes_on(&[&carol]).await;
}
