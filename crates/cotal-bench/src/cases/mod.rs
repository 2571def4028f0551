//! The cases.

pub(crate) mod fanout;
pub(crate) mod feed;
pub(crate) mod growth;
pub(crate) mod lanes;
pub(crate) mod latency;
pub(crate) mod start;

use anyhow::Context as _;
use cotal_wire::envelope::{self, Reason};
use cotal_wire::{Channel, Lifecycle, Principal};

use crate::limit::{self, Work};
use crate::mesh::{Ground, post_body, unix_nanos};
use crate::raw::Raw;

/// Size of a post.
const POST: usize = 256;
/// Who posts.
const POSTER: &str = "local.poster";

/// How many times as many rounds are run of cases whose round is over in a second, because a
/// neighbour on the machine can spoil as much.
pub(crate) const SHORT: usize = 3;

/// One round of the limit: copies a second.
async fn limit_round(
    ground: &Ground,
    (first, second): &mut (Raw, Raw),
    channel: &Channel,
    members: &[Lifecycle],
    posts: usize,
    round: usize,
) -> anyhow::Result<f64> {
    let sender = Principal::parse(POSTER)?;
    let posts = (0..posts).map(|n| {
        let id = post_id(round, n);
        let body = post_body(&ground.space, POSTER, channel, &id, POST);
        let seq = 100_000 + n as u64;
        Ok(limit::Post {
            stem: envelope::dedup_stem(&id, &sender).context("an empty id")?,
            entry: envelope::write_entry(&body, channel, seq, Reason::DurableChannel, 1).to_vec(),
            len: body.len(),
        })
    });
    let posts = posts.collect::<anyhow::Result<Vec<_>>>()?;
    let copies = (posts.len() * members.len()) as u64;
    let work = Work::new(&ground.space, members, posts);
    let before = ground.delivered().await?;
    let begin = unix_nanos();
    tokio::task::block_in_place(|| limit::run(&work, first, second, round))?;
    let end = ground.reaches(before + copies).await?;
    ground.settled().await?;
    Ok(rate(copies, begin, end))
}

/// One round of the product: copies a second.
async fn product_round(
    ground: &Ground,
    raw: &mut Raw,
    channel: &Channel,
    members: &[Lifecycle],
    posts: usize,
    round: usize,
) -> anyhow::Result<f64> {
    let copies = (posts * members.len()) as u64;
    let subject = ground.space.chat(&Principal::parse(POSTER)?, channel);
    let bodies: Vec<(String, Vec<u8>)> = (0..posts)
        .map(|n| {
            let id = post_id(round, n);
            let body = post_body(&ground.space, POSTER, channel, &id, POST);
            (format!("Nats-Msg-Id: {id}\r\n"), body)
        })
        .collect();
    let before = ground.delivered().await?;
    let begin = unix_nanos();
    for (header, body) in &bodies {
        raw.publish_with(subject.as_bytes(), b"", header.as_bytes(), body);
        raw.flush_if_full()?;
    }
    raw.flush()?;
    let end = ground.reaches(before + copies).await?;
    ground.settled().await?;
    Ok(rate(copies, begin, end))
}

/// As long as an id of 128 random bits.
fn post_id(round: usize, n: usize) -> String {
    format!("bench-{round:06}-{n:013}")
}

fn rate(copies: u64, begin: u128, end: u128) -> f64 {
    let nanos = end.saturating_sub(begin).max(1);
    copies as f64 * 1e9 / nanos as f64
}
