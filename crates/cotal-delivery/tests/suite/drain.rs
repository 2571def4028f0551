//! A backlog is processed while daemons die, connections drop, and pulls of a paused process are
//! open: INBOX's cap never discards an entry that was not judged (RDR-3, FAN-1).
//!
//! DLV has no cap here, so only INBOX could lose a copy.

use cotal_delivery::Lane;
use cotal_nats::{PullConsumer, PullOptions};
use cotal_testkit::{God, Mesh, Peer, Proxy, eventually};
use cotal_wire::names::READER;

const TEAM: &str = "team.backend";
const MEMBERS: usize = 10;
const SENDERS: usize = 5;
/// As many as CHAT keeps per sender and channel once they are routed.
const POSTS_EACH: usize = 1_000;
const POSTS: u64 = (SENDERS * POSTS_EACH) as u64;

struct Drain {
    mesh: Mesh,
    god: God,
    senders: Vec<Peer>,
}

impl Drain {
    /// A space with members that read nothing, and no daemon.
    async fn new() -> Self {
        let mesh = Mesh::start().await;
        let god = God::of(&mesh).await;
        let mut lane = mesh.lane().await;
        for n in 0..MEMBERS {
            let member = mesh.peer(&format!("m{n}"), &["team.>"], &[]).await;
            assert!(member.join(TEAM).await.durable);
        }
        let mut senders = Vec::new();
        for n in 0..SENDERS {
            senders.push(mesh.peer(&format!("s{n}"), &["team.>"], &["team.>"]).await);
        }
        lane.stop();
        lane.ended().await.expect("a clean end");
        god.lift_cap("DLV_main").await;
        // Lower than in a real space, and still above the 600 posts of the admission window.
        god.cap_subjects("INBOX_main", 650).await;
        Self { mesh, god, senders }
    }

    async fn post_all(&self) {
        for (n, sender) in self.senders.iter().enumerate() {
            sender.post_many(TEAM, &format!("s{n}-"), POSTS_EACH).await;
        }
    }

    /// Waits until each member has every copy.
    async fn loses_nothing(&self) {
        let held = || async {
            let page = self.god.connection.stream_info_subjects("DLV_main", "cotal.main.dlv.>", 0);
            let subjects = page.await.expect("DLV").subjects;
            subjects.into_iter().map(|(_, count)| count).collect::<Vec<u64>>()
        };
        self.god.wait_until_settled(cotal_wire::names::FANOUT).await;
        self.god.wait_until_settled(READER).await;
        eventually("everything is handed off", held, |held| {
            held.len() == MEMBERS && held.iter().all(|count| *count == POSTS)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_a_connection_that_drops_in_a_drain_loses_nothing() {
    let drain = Drain::new().await;
    drain.post_all().await;
    let proxy = Proxy::to(&drain.mesh.host_port()).await;
    let mut options = drain.mesh.lane_options();
    options.server = proxy.url();
    let _lane = drain.mesh.serve(options).await;
    for entries in [4_000, 20_000] {
        drain.god.wait_for_entries(entries).await;
        // From now on the broker's messages are lost with the connection.
        proxy.stall();
        drain.god.wait_until_given(READER).await;
        proxy.cut();
        proxy.heal();
    }
    drain.loses_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_a_daemon_that_dies_in_a_drain_loses_nothing() {
    let drain = Drain::new().await;
    drain.post_all().await;
    let mut lane = Lane::start(drain.mesh.lane_options());
    for entries in [4_000, 15_000, 30_000] {
        drain.god.wait_for_entries(entries).await;
        drop(lane);
        drain.god.free_lease().await;
        lane = drain.mesh.lane().await;
    }
    drain.loses_nothing().await;
}

/// A paused process has pulls at the broker, which are served long after another daemon has taken
/// over.
#[tokio::test(flavor = "multi_thread")]
async fn rdr_3_the_pulls_of_a_paused_daemon_lose_nothing() {
    let drain = Drain::new().await;
    drain.post_all().await;
    let options = PullOptions { batch: 2_000, ..PullOptions::default() };
    let connection = &drain.god.connection;
    let mut paused = PullConsumer::open(connection, "INBOX_main", READER, options)
        .await
        .expect("the reader's consumer");
    let pulling = async {
        // A consumer client that never answers, like a paused one.
        let taken = paused.next_batch(1, std::time::Duration::from_secs(60)).await;
        assert!(!taken.expect("a pull").is_empty(), "nothing was taken from the daemon");
    };
    let serving = async {
        eventually("a pull that stands", || async { waiting_pulls(&drain.god).await }, |n| *n > 0)
            .await;
        let lane = drain.mesh.lane().await;
        drain.god.wait_for_entries(20_000).await;
        lane
    };
    let (_lane, ()) = tokio::join!(serving, pulling);
    drain.loses_nothing().await;
}

async fn waiting_pulls(god: &God) -> u64 {
    let info = god.connection.consumer_info("INBOX_main", READER).await;
    info.expect("the reader's consumer").num_waiting
}
