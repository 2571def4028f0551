//! Joins whose write, or second ACL read, the broker does not answer, and joins that are refused
//! after a membership (MEM-3, MEM-6).
//!
//! The daemon is behind a proxy that stalls the connection at the critical moment.

use std::time::Duration;

use cotal_delivery::Lane;
use cotal_nats::NatsError;
use cotal_testkit::{God, Mesh, Peer, Proxy, eventually, serving};
use cotal_wire::Channel;
use cotal_wire::control::{Code, Reply};
use cotal_wire::names::{DELIVERY, member_key};
use serde_json::json;

const TEAM: &str = "team.backend";

struct Stage {
    mesh: Mesh,
    _lane: Lane,
    proxy: Proxy,
    god: God,
    bob: Peer,
}

impl Stage {
    /// A lane behind a proxy, whose lease lives for `lease` seconds.
    async fn start(lease: i64) -> Self {
        let mesh = Mesh::start().await;
        let god = God::of(&mesh).await;
        god.shorten_lease(lease).await;
        let proxy = Proxy::to(&mesh.host_port()).await;
        let mut options = mesh.lane_options();
        options.server = proxy.url();
        let lane = serving(Lane::start(options)).await;
        let bob = mesh.peer("bob", &["team.>"], &[]).await;
        Self { mesh, _lane: lane, proxy, god, bob }
    }

    /// The subject that the daemon writes bob's row on.
    fn write(&self) -> String {
        let key = member_key(&Channel::parse(TEAM).expect("a channel"), &self.bob.lifecycle);
        format!("HPUB $KV.cotal_members_main.{key} ")
    }

    async fn ask_to_join(&self) -> Result<Reply, NatsError> {
        self.bob.control(DELIVERY, "durableJoin", json!({ "channel": TEAM })).await
    }

    async fn has_no_row(&self, what: &str) {
        let row = || self.god.member(TEAM, &self.bob.lifecycle);
        eventually(what, row, Option::is_none).await;
    }

    async fn has_row(&self) {
        let row = || self.god.member(TEAM, &self.bob.lifecycle);
        eventually("bob's row", row, Option::is_some).await;
    }
}

/// The row was stored, but the daemon got no answer: it must still make its second ACL read.
#[tokio::test(flavor = "multi_thread")]
async fn mem_3_a_row_whose_write_was_not_answered_gets_its_second_look() {
    let stage = Stage::start(30).await;
    stage.proxy.deafen_at(&stage.write());
    let asked = stage.ask_to_join();
    let held = async {
        stage.proxy.deafened().await;
        stage.has_row().await;
        stage.god.set_acl(&stage.bob.lifecycle, &[]).await;
        // The write times out after 5 s; then the daemon reads the row.
        let heard = tokio::time::timeout(Duration::from_secs(7), std::future::pending::<()>());
        assert!(heard.await.is_err());
        stage.proxy.heal();
    };
    let (reply, ()) = tokio::join!(asked, held);
    stage.has_no_row("no row that no ACL covers").await;
    if let Ok(reply) = reply {
        assert_eq!(reply.code, Some(Code::Denied), "{reply:?}");
    }
}

/// The lease is lost while the write is in flight, and another daemon serves. Its start is over, so
/// it does not check a row that comes later.
#[tokio::test(flavor = "multi_thread")]
async fn mem_3_a_row_that_arrives_when_the_lane_has_stopped_serving_is_taken_back() {
    let stage = Stage::start(3).await;
    stage.proxy.stall_at(&stage.write());
    let asked = stage.ask_to_join();
    let held = async {
        stage.proxy.stalled().await;
        stage.god.wait_for_a_free_lease().await;
        let next = stage.mesh.lane().await;
        stage.god.set_acl(&stage.bob.lifecycle, &[]).await;
        let subject = "$KV.cotal_members_main.>";
        let mut rows = stage.god.connection.subscribe(subject, None).await.expect("a subscription");
        stage.proxy.heal();
        rows.next().await.expect("the row that was on its way");
        next
    };
    let (_, _next) = tokio::join!(asked, held);
    stage.has_no_row("no row that no inventory saw").await;
}

/// The daemon's messages get through, the answers do not: so the second ACL read fails, and the
/// deletion arrives.
#[tokio::test(flavor = "multi_thread")]
async fn mem_3_after_a_failed_second_look_the_row_is_taken_back() {
    let stage = Stage::start(30).await;
    stage.proxy.stall_at(&stage.write());
    let asked = stage.ask_to_join();
    let held = async {
        stage.proxy.stalled().await;
        stage.proxy.deafen_at("$JS.API.STREAM.MSG.GET.KV_cotal_acl_main");
        stage.proxy.heal();
        stage.proxy.deafened().await;
        stage.has_row().await;
        stage.has_no_row("no row without a second look").await;
        stage.proxy.heal();
    };
    let (reply, ()) = tokio::join!(asked, held);
    if let Ok(reply) = reply {
        assert!(!reply.ok, "{reply:?}");
    }
}

/// Generations continue after a refused rejoin, so a late leave of the first membership cannot
/// close the second.
#[tokio::test(flavor = "multi_thread")]
async fn mem_6_a_refused_rejoin_leaves_the_closed_row_and_its_generation() {
    let stage = Stage::start(30).await;
    let bob = &stage.bob;
    assert_eq!(bob.join(TEAM).await.generation, 1);
    bob.leave(TEAM, 1).await;
    let (left, _) = stage.god.member(TEAM, &bob.lifecycle).await.expect("a closed row");
    stage.proxy.stall_at(&stage.write());
    let asked = stage.ask_to_join();
    let held = async {
        stage.proxy.stalled().await;
        stage.god.set_acl(&bob.lifecycle, &[]).await;
        stage.proxy.heal();
    };
    let (reply, ()) = tokio::join!(asked, held);
    assert_eq!(reply.expect("a reply").code, Some(Code::Denied));
    let (row, _) = stage.god.member(TEAM, &bob.lifecycle).await.expect("the closed row");
    let interval = |row: &cotal_wire::rows::MemberRow| {
        (row.generation, row.join_cursor, row.leave_cursor, row.activated)
    };
    assert_eq!(interval(&row), interval(&left));
    stage.god.set_acl(&bob.lifecycle, &["team.>"]).await;
    assert_eq!(bob.join(TEAM).await.generation, 2);
    let args = json!({ "channel": TEAM, "generation": 1 });
    let stale = bob.control(DELIVERY, "durableLeave", args).await.expect("a reply");
    assert_eq!(stale.code, Some(Code::StaleGeneration));
}
