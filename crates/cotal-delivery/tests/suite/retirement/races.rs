//! Races on one member row, stopped at the critical moment: the daemon is behind a proxy that holds
//! the broker's answer back while rows change (MEM-3, MEM-4).

use cotal_delivery::Lane;
use cotal_testkit::{God, Mesh, Peer, Proxy, eventually, serving};
use cotal_wire::Channel;
use cotal_wire::control::{Code, Reply};
use cotal_wire::names::{Bucket, DELIVERY, member_key};
use serde_json::{Value, json};

use super::TEAM;

struct Stage {
    _mesh: Mesh,
    _lane: Lane,
    proxy: Proxy,
    god: God,
    bob: Peer,
}

impl Stage {
    async fn start() -> Self {
        let mesh = Mesh::start().await;
        let proxy = Proxy::to(&mesh.host_port()).await;
        let mut options = mesh.lane_options();
        options.server = proxy.url();
        let lane = serving(Lane::start(options)).await;
        let god = God::of(&mesh).await;
        let bob = mesh.peer("bob", &["team.>"], &[]).await;
        Self { _mesh: mesh, _lane: lane, proxy, god, bob }
    }

    /// Bob asks. Once the daemon has sent `text`, `meanwhile` runs before the daemon gets the
    /// answer.
    async fn ask(
        &self,
        op: &str,
        args: Value,
        text: &str,
        meanwhile: impl Future<Output = ()>,
    ) -> Reply {
        self.proxy.deafen_at(text);
        let asked = self.bob.control(DELIVERY, op, args);
        let held = async {
            self.proxy.deafened().await;
            meanwhile.await;
            self.proxy.heal();
        };
        tokio::join!(Box::pin(asked), Box::pin(held)).0.expect("an answer")
    }

    /// Waits for the row first, because the daemon's write may still be in the proxy.
    async fn delete_row(&self) {
        let row = || self.god.member(TEAM, &self.bob.lifecycle);
        eventually("a row to delete", row, Option::is_some).await;
        let key = member_key(&Channel::parse(TEAM).expect("a channel"), &self.bob.lifecycle);
        self.god.kv(Bucket::Members).delete(&key, None).await.expect("a deleted row");
    }

    async fn has_row(&self) -> bool {
        self.god.member(TEAM, &self.bob.lifecycle).await.is_some()
    }
}

const WRITES: &str = "HPUB $KV.cotal_members_main.";

#[tokio::test(flavor = "multi_thread")]
async fn mem_3_a_row_that_was_written_before_the_acl_was_narrowed_is_removed_and_the_join_refused()
{
    let stage = Stage::start().await;
    let narrowed = stage.god.set_acl(&stage.bob.lifecycle, &[]);
    let reply = stage.ask("durableJoin", json!({ "channel": TEAM }), WRITES, narrowed).await;
    assert_eq!(reply.code, Some(Code::Denied), "{reply:?}");
    assert!(!stage.has_row().await, "the row of a refused join stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn mem_3_a_refused_joins_row_goes_also_when_a_leave_has_closed_it_meanwhile() {
    let stage = Stage::start().await;
    let meanwhile = async {
        stage.god.set_acl(&stage.bob.lifecycle, &[]).await;
        let row = || stage.god.member(TEAM, &stage.bob.lifecycle);
        let (mut row, _) = eventually("a row", row, Option::is_some).await.expect("a row");
        row.leave_cursor = Some(row.join_cursor);
        stage.god.put_member(&row).await;
    };
    let reply = stage.ask("durableJoin", json!({ "channel": TEAM }), WRITES, meanwhile).await;
    assert_eq!(reply.code, Some(Code::Denied), "{reply:?}");
    assert!(!stage.has_row().await, "a row that no inventory showed stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn mem_3_a_join_of_a_channel_that_is_not_allowed_writes_nothing() {
    let stage = Stage::start().await;
    let rows = "$KV.cotal_members_main.>";
    let mut rows = stage.god.connection.subscribe(rows, None).await.expect("a subscription");
    let args = json!({ "channel": "ops" });
    let reply = stage.bob.control(DELIVERY, "durableJoin", args).await.expect("an answer");
    assert_eq!(reply.code, Some(Code::Denied), "{reply:?}");
    // An earlier row would have come before the row of this join.
    assert!(stage.bob.join(TEAM).await.durable);
    let first = rows.next().await.expect("a row");
    assert!(first.subject.contains(TEAM), "written: {}", first.subject);
}

#[tokio::test(flavor = "multi_thread")]
async fn mem_4_an_activation_does_not_bring_a_deleted_row_back() {
    let stage = Stage::start().await;
    let deleted = stage.delete_row();
    let reply = stage.ask("durableJoin", json!({ "channel": TEAM }), WRITES, deleted).await;
    let data = reply.data.expect("data");
    assert_eq!((&data["durable"], &data["reason"]), (&json!(false), &json!("superseded")));
    assert!(!stage.has_row().await, "the row is back");
}

/// The leave had already read the row that it was about to close.
#[tokio::test(flavor = "multi_thread")]
async fn mem_4_a_leave_that_had_read_the_row_does_not_bring_it_back() {
    let stage = Stage::start().await;
    let generation = stage.bob.join(TEAM).await.generation;
    let args = json!({ "channel": TEAM, "generation": generation });
    let reads = "{\"last_by_subj\":\"$KV.cotal_members_main.";
    let reply = stage.ask("durableLeave", args, reads, stage.delete_row()).await;
    assert_eq!(reply.data.expect("data")["alreadyLeft"], true);
    assert!(!stage.has_row().await, "the row is back");
}
