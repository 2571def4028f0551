//! A lane that is stopped in the middle of its work hands over in order: the next daemon gets what
//! it had pulled before anything newer (`wire.md` §3).

use cotal_delivery::Lane;
use cotal_testkit::{God, Mesh, Peer};
use cotal_wire::names::{FANOUT, READER};
use serde_json::Value;

const TEAM: &str = "team.backend";
const MEMBERS: usize = 12;
/// Fewer than the admission window and than the cap of DLV.
const POSTS: usize = 550;
const STOPS: usize = 6;

struct Stage {
    mesh: Mesh,
    god: God,
    members: Vec<Peer>,
}

impl Stage {
    /// Every post waits at `held`, one of the daemon's consumers, and no daemon serves.
    async fn with_backlog_before(held: &str) -> Self {
        let mesh = Mesh::start().await;
        let god = God::of(&mesh).await;
        let mut lane = mesh.lane().await;
        let alice = mesh.peer("alice", &["team.>"], &["team.>"]).await;
        let mut members = Vec::new();
        for n in 0..MEMBERS {
            let member = mesh.peer(&format!("m{n}"), &["team.>"], &[]).await;
            assert!(member.join(TEAM).await.durable);
            members.push(member);
        }
        god.pause(held).await;
        alice.post_many(TEAM, "p", POSTS).await;
        if held == READER {
            god.wait_for_entries((MEMBERS * POSTS) as u64).await;
        }
        lane.stop();
        lane.ended().await.expect("a clean end");
        god.resume(held).await;
        Self { mesh, god, members }
    }

    /// Starts a lane and stops it once it has written `count` messages below `subjects`.
    async fn serve_until(&self, subjects: &str, count: usize) {
        let connection = &self.god.connection;
        let mut written = connection.subscribe(subjects.to_owned(), None).await.expect("an ear");
        let mut lane = Lane::start(self.mesh.lane_options());
        for _ in 0..count {
            written.next().await.expect("a copy");
        }
        lane.stop();
        lane.ended().await.expect("a clean end");
    }

    /// The messages that `consumer` has not answered.
    async fn left(&self, stream: &str, consumer: &str) -> u64 {
        let info = self.god.connection.consumer_info(stream, consumer).await.expect("a consumer");
        info.num_pending + info.num_ack_pending as u64
    }

    /// Each member's copies, in the order in which they were handed off.
    async fn each_got_everything_in_order(&self) {
        self.god.wait_until_settled(FANOUT).await;
        self.god.wait_until_settled(READER).await;
        let all: Vec<_> = (0..POSTS).map(|n| format!("p{n}")).collect();
        for member in &self.members {
            let subject = member.space.dlv(&member.lifecycle);
            let copies = self.god.stored("DLV_main", &subject).await;
            let ids: Vec<_> = copies.iter().map(|copy| id_of(&copy.payload)).collect();
            let wrong = ids.iter().zip(&all).position(|(got, wanted)| got != wanted);
            let about = |at: usize| &ids[at.saturating_sub(2)..(at + 3).min(ids.len())];
            assert_eq!(wrong, None, "{}: {:?}", member.principal(), wrong.map(about));
            assert_eq!(ids.len(), all.len(), "{}", member.principal());
        }
    }
}

fn id_of(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).expect("a message");
    value["id"].as_str().expect("an id").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_a_reader_that_is_stopped_in_its_work_hands_over_in_order() {
    let stage = Stage::with_backlog_before(READER).await;
    let mut stops = 0;
    while stops < STOPS && stage.left("INBOX_main", READER).await > 1_000 {
        stage.serve_until("cotal.main.dlv.>", 1 + 100 * stops).await;
        stops += 1;
    }
    assert!(stops > 1, "it was never stopped in its work");
    let _next = stage.mesh.lane().await;
    stage.each_got_everything_in_order().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fan_5_a_fan_out_that_is_stopped_in_its_work_hands_over_in_order() {
    let stage = Stage::with_backlog_before(FANOUT).await;
    let mut stops = 0;
    while stops < STOPS && stage.left("CHAT_main", FANOUT).await > 100 {
        stage.serve_until("cotal.main.dinbox.>", 1 + 50 * stops).await;
        stops += 1;
    }
    assert!(stops > 1, "it was never stopped in its work");
    let _next = stage.mesh.lane().await;
    stage.each_got_everything_in_order().await;
}
