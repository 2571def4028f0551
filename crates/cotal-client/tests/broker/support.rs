//! Endpoints of a test's mesh, and waiting for what they tell.

use std::time::Duration;

use cotal_client::{Channel, Endpoint, EndpointOptions, Event, Incoming, Notice, Waiting};
use cotal_delivery::Lane;
use cotal_nats::js::StreamState;
use cotal_nats::{Bucket, Bytes, Connection};
use cotal_testkit::{Mesh, eventually};
use cotal_wire::Lifecycle;
use cotal_wire::creds::Creds;
use cotal_wire::names::Bucket as Name;
use cotal_wire::profile::Profile;
use tokio::time::timeout;

/// Generous, because machines are busy; nothing that works takes so long.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// How long nothing must come where nothing may come.
pub(crate) const QUIET: Duration = Duration::from_millis(500);

pub(crate) fn channel(text: &str) -> Channel {
    Channel::parse(text).expect("a channel")
}

pub(crate) fn options(url: &str, creds: &str) -> EndpointOptions {
    EndpointOptions::from_text(url, creds)
}

/// An endpoint that reads and is present.
pub(crate) async fn endpoint(mesh: &Mesh, creds: &str) -> Endpoint {
    Endpoint::connect(options(mesh.url(), creds)).await.expect("an endpoint")
}

/// An endpoint that leaves the agent's durables alone.
pub(crate) async fn sender(mesh: &Mesh, creds: &str) -> Endpoint {
    let options = options(mesh.url(), creds).send_only();
    Endpoint::connect(options).await.expect("an endpoint")
}

/// The next message.
pub(crate) async fn message(endpoint: &Endpoint) -> Incoming {
    message_within(endpoint, SOON).await
}

/// The next message, for which a redelivery may have to be waited for.
pub(crate) async fn message_within(endpoint: &Endpoint, patience: Duration) -> Incoming {
    let next = timeout(patience, endpoint.next_message()).await;
    next.expect("a message in time").expect("an open endpoint")
}

/// The next `count` messages, acked, as texts.
pub(crate) async fn texts(endpoint: &Endpoint, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.len() < count {
        let incoming = message(endpoint).await;
        texts.push(incoming.text());
        incoming.ack_confirmed().await.expect("an ack");
    }
    texts
}

/// Checks that no message comes.
pub(crate) async fn nothing(endpoint: &Endpoint) {
    let surprise = timeout(QUIET, endpoint.next_message()).await;
    if let Ok(surprise) = surprise {
        panic!("unexpected: {surprise:?}");
    }
}

/// The next notice that `wanted` knows; messages and other notices are passed over.
pub(crate) async fn notice(endpoint: &Endpoint, wanted: impl Fn(&Notice) -> bool) -> Notice {
    let found = timeout(SOON, async {
        loop {
            match endpoint.next().await.expect("an open endpoint") {
                Event::Notice(notice) if wanted(&notice) => break notice,
                _ => {}
            }
        }
    });
    found.await.expect("the notice in time")
}

/// Writes a channel's config as the operator does.
pub(crate) async fn configure(mesh: &Mesh, channel: &str, config: &str) {
    let operator = mesh.operator().await;
    let bucket = Bucket::new(&operator, &mesh.space().bucket(Name::Channels));
    let value = Bytes::copy_from_slice(config.as_bytes());
    let revision = bucket.put(channel, value).await.expect("a written config");
    // Agents read a mirror, which follows.
    let seen_by = mesh.connect(&mesh.creds(Profile::Observer)).await;
    let mirror = Bucket::new(&seen_by, &mesh.space().bucket(Name::Channels));
    let mirrored = || async { mirror.get(channel).await.ok().flatten().map(|row| row.revision) };
    eventually("the mirror has the config", mirrored, |at| *at == Some(revision)).await;
}

/// Publishes any body as an agent on its own chat subject, as no honest client would.
pub(crate) async fn post_raw(
    connection: &Connection,
    mesh: &Mesh,
    from: &str,
    on: &str,
    body: &str,
) {
    let from = cotal_client::Principal::new("local", from).expect("a principal");
    let subject = mesh.space().chat(&from, &channel(on));
    let body = Bytes::copy_from_slice(body.as_bytes());
    let stored = connection.publish_confirmed(subject, None, body, None).await;
    stored.expect("a stored post");
}

/// Stops a daemon as a signal would.
pub(crate) async fn stopped(mut lane: Lane) {
    lane.stop();
    lane.ended().await.expect("a clean end");
}

/// The state of the channel stream.
pub(crate) async fn chat(mesh: &Mesh) -> StreamState {
    let state = mesh.operator().await.stream_state(&mesh.space().chat_stream()).await;
    state.expect("a stream state")
}

/// The incarnation behind a credential.
pub(crate) fn lifecycle(creds: &str) -> Lifecycle {
    let creds = Creds::parse(creds).expect("a credential");
    creds.claims.lifecycle().expect("an agent's credential")
}

/// Waits until the broker holds nothing that the agent has not acked.
pub(crate) async fn nothing_waits_for(endpoint: &Endpoint) {
    let look = || async { endpoint.waiting().await.expect("an answer") };
    eventually("an agent with nothing waiting", look, |w| *w == Waiting::default()).await;
}
