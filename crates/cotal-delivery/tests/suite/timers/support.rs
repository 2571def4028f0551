//! A workflow endpoint as a plain protocol client, and what EPT holds.

use std::time::Duration;

use cotal_manager::clock::unix_millis;
use cotal_nats::{
    Connection, Delivery, Get, HeaderMap, NatsError, PubAck, PullConsumer, PullOptions,
    StoredMessage,
};
use cotal_testkit::{Mesh, eventually};
use cotal_wire::timers::TimerBody;
use cotal_wire::{EndpointName, Space, Timer};

/// Long enough for a wrong firing to happen even on a busy machine.
pub(crate) const QUIET: Duration = Duration::from_millis(900);

/// A workflow endpoint.
pub(crate) struct Endpoint {
    pub(crate) connection: Connection,
    pub(crate) space: Space,
    name: EndpointName,
    /// A connection without restrictions, to read EPT.
    god: Connection,
}

impl Endpoint {
    /// Provisions an endpoint of the first space and connects as it.
    pub(crate) async fn of(mesh: &Mesh, name: &str) -> Self {
        let creds = mesh.add_endpoint(name).await;
        let (name, space) = (EndpointName::parse(name).expect("an endpoint"), mesh.space().clone());
        Self { connection: mesh.connect(&creds).await, space, name, god: mesh.god().await }
    }

    /// A timer of this endpoint.
    pub(crate) fn timer(&self, id: &str) -> Timer {
        Timer::parse(&format!("{}.i1.1.{id}", self.name)).expect("a timer")
    }

    /// Requests a timer, as any client does.
    pub(crate) async fn ask(&self, id: &str, generation: u64, deadline: i64) {
        let timer = self.timer(id);
        let body = serde_json::to_vec(&TimerBody::new(&timer, generation, deadline)).expect("JSON");
        self.ask_raw(id, None, body).await.expect("a stored request");
    }

    pub(crate) async fn ask_raw(
        &self,
        id: &str,
        headers: Option<HeaderMap>,
        body: Vec<u8>,
    ) -> Result<PubAck, NatsError> {
        let subject = self.space.ept_schedule(&self.timer(id));
        self.connection.publish_confirmed(subject, headers, body.into(), None).await
    }

    /// The armed schedule of a timer.
    pub(crate) async fn armed(&self, id: &str) -> Option<TimerBody> {
        let subject = self.space.ept_armed(&self.timer(id));
        self.last(&subject).await.map(|m| TimerBody::parse(&m.payload).expect("a body"))
    }

    /// The newest message of a subject of EPT.
    pub(crate) async fn last(&self, subject: &str) -> Option<StoredMessage> {
        let stream = self.space.ept_stream();
        self.god.get_message(&stream, Get::LastBySubject(subject)).await.expect("EPT")
    }

    pub(crate) async fn is_armed(&self, id: &str, generation: u64) {
        let stands = |armed: &Option<TimerBody>| {
            armed.as_ref().is_some_and(|armed| armed.generation == generation)
        };
        eventually("the armed timer", || self.armed(id), stands).await;
    }

    /// How many messages EPT holds under subjects of one kind.
    pub(crate) async fn count(&self, kind: &str) -> usize {
        let (stream, filter) = (self.space.ept_stream(), self.space.ept_all(kind));
        let mut subjects = 0;
        loop {
            let page = self.god.stream_info_subjects(&stream, &filter, subjects).await;
            let page = page.expect("EPT");
            subjects += page.subjects.len() as u64;
            if page.subjects.is_empty() || subjects >= page.total {
                return usize::try_from(subjects).expect("a count");
            }
        }
    }

    /// The endpoint's own consumer of fired timers.
    pub(crate) async fn fires(&self) -> PullConsumer {
        let (stream, name) = (self.space.ept_stream(), self.space.ept_consumer(&self.name));
        let options = PullOptions { batch: 1, ..PullOptions::default() };
        PullConsumer::open(&self.connection, &stream, &name, options).await.expect("a consumer")
    }
}

/// The next timer that fires, acked: its body and how long after its deadline it was stored, in ms.
pub(crate) async fn fired(fires: &mut PullConsumer) -> (TimerBody, i64) {
    let next = fires.next_one(Duration::from_secs(30)).await.expect("a pull");
    let next = next.expect("a fired timer");
    let body = TimerBody::parse(&next.payload).expect("a body");
    let late = stored_at(&next) - body.deadline;
    next.ack_confirmed().await.expect("an ack");
    (body, late)
}

fn stored_at(delivery: &Delivery) -> i64 {
    i64::try_from(delivery.timestamp_ns / 1_000_000).expect("a time")
}

/// Checks that nothing fires.
pub(crate) async fn nothing_fires(fires: &mut PullConsumer) {
    let next = fires.next_one(QUIET).await.expect("a pull");
    assert!(next.is_none(), "fired: {next:?}");
}

/// The time in so many milliseconds from now.
pub(crate) fn soon(ms: i64) -> i64 {
    unix_millis() + ms
}
