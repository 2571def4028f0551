//! The limit: the same broker doing the same work with no product code.
//!
//! One thread writes every entry into INBOX by fast ingest. Another pulls them from `reader`,
//! writes the copies into DLV by fast ingest, and acks an entry once its copy is confirmed. Both
//! overlap, as the product's stages may. Nothing is decided and nothing is allocated per message.
//! Both are under the daemon's own rights (CRD-1), so that the broker checks the same permissions
//! on both sides.

use std::collections::VecDeque;

use anyhow::{Context as _, bail};
use cotal_wire::names::{READER, SEQ_HEADER};
use cotal_wire::{Lifecycle, Space};

use crate::raw::{Out, Raw, after, parse_number, push_number};

/// How often a fast batch reports.
const FLOW: u64 = 512;
/// Entries on the wire to INBOX and not yet confirmed.
const WINDOW: u64 = 4_096;
/// Entries asked for and not yet delivered.
const PULL: u64 = 4_096;

/// What one round writes.
#[derive(Debug)]
pub(crate) struct Work {
    space: Space,
    members: Vec<Member>,
    posts: Vec<Post>,
}

#[derive(Debug)]
struct Member {
    subject: String,
    /// The part of a deduplication key after the sender.
    key: String,
}

/// A post as both stages need it.
#[derive(Debug)]
pub(crate) struct Post {
    /// `<id>:<sender>`.
    pub(crate) stem: String,
    /// The body of its entries.
    pub(crate) entry: Vec<u8>,
    /// How long the post's own bytes are.
    pub(crate) len: usize,
}

impl Work {
    /// Every post to every member.
    pub(crate) fn new(space: &Space, members: &[Lifecycle], posts: Vec<Post>) -> Self {
        let members = members.iter().map(|member| Member {
            subject: space.dinbox(member),
            key: format!(":{}:1", member.dotted()),
        });
        Self { space: space.clone(), members: members.collect(), posts }
    }

    fn copies(&self) -> u64 {
        (self.members.len() * self.posts.len()) as u64
    }
}

/// Does the work; returns when the last copy stands in DLV and every entry is acked.
pub(crate) fn run(
    work: &Work,
    first: &mut Raw,
    second: &mut Raw,
    round: usize,
) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let filling = scope.spawn(|| fill(work, first, round));
        let handed = hand_on(work, second, round);
        filling.join().map_err(|_| anyhow::anyhow!("the first stage panicked"))??;
        handed
    })
}

/// The reply subjects of one fast batch and what the broker has confirmed of it.
struct Batch {
    prefix: Vec<u8>,
    sent: u64,
    stored: u64,
    reply: Vec<u8>,
}

impl Batch {
    fn new(raw: &mut Raw, name: &str) -> Self {
        let prefix = format!("{}.{name}.{FLOW}.fail.", raw.inbox());
        raw.subscribe(&format!("{}.{name}.>", raw.inbox()));
        Self { prefix: prefix.into_bytes(), sent: 0, stored: 0, reply: Vec::with_capacity(128) }
    }

    /// The reply subject of the next message of `total`.
    fn next(&mut self, total: u64) -> &[u8] {
        self.sent += 1;
        self.reply.clear();
        self.reply.extend_from_slice(&self.prefix);
        push_number(&mut self.reply, self.sent);
        let op: &[u8] = match self.sent {
            last if last == total => b".2.$FI",
            1 => b".0.$FI",
            _ => b".1.$FI",
        };
        self.reply.extend_from_slice(op);
        &self.reply
    }

    /// Reads a report.
    fn on_report(&mut self, payload: &[u8]) -> anyhow::Result<()> {
        let field = |name: &[u8]| after(payload, name).and_then(|at| parse_number(&payload[at..]));
        let stored = if after(payload, b"\"type\":\"ack\"").is_some() {
            field(b"\"seq\":")
        } else if after(payload, b"error").is_none() {
            field(b"\"count\":")
        } else {
            None
        };
        let said = || format!("fast ingest failed: {}", String::from_utf8_lossy(payload));
        self.stored = self.stored.max(stored.with_context(said)?);
        Ok(())
    }
}

fn fill(work: &Work, raw: &mut Raw, round: usize) -> anyhow::Result<()> {
    let mut batch = Batch::new(raw, &format!("i{round}"));
    let total = work.copies();
    let mut headers = Vec::with_capacity(256);
    for post in &work.posts {
        for member in &work.members {
            while batch.sent - batch.stored >= WINDOW {
                settle(raw, &mut batch)?;
            }
            headers.clear();
            headers.extend_from_slice(b"Nats-Msg-Id: ");
            headers.extend_from_slice(post.stem.as_bytes());
            headers.extend_from_slice(member.key.as_bytes());
            headers.extend_from_slice(b"\r\n");
            let reply = batch.next(total);
            raw.publish_with(member.subject.as_bytes(), reply, &headers, &post.entry);
            raw.flush_if_full()?;
        }
    }
    while batch.stored < total {
        settle(raw, &mut batch)?;
    }
    Ok(())
}

fn settle(raw: &mut Raw, batch: &mut Batch) -> anyhow::Result<()> {
    raw.flush()?;
    raw.read()?;
    let mut outcome = Ok(());
    raw.drain(|_, frame| {
        if let Err(error) = batch.on_report(frame.payload) {
            outcome = Err(error);
        }
    })?;
    outcome
}

/// The second stage's state.
struct Relay<'a> {
    batch: Batch,
    total: u64,
    /// The subjects of `DLV` up to the member.
    prefix: Vec<u8>,
    /// How much of an entry's subject the prefix replaces.
    skip: usize,
    post_len: usize,
    received: u64,
    asked: u64,
    /// Acks that are due once a copy is confirmed.
    due: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    inbox: &'a [u8],
}

fn hand_on(work: &Work, raw: &mut Raw, round: usize) -> anyhow::Result<()> {
    let total = work.copies();
    let name = format!("d{round}");
    let batch = Batch::new(raw, &name);
    let inbox = format!("{}.p{round}", raw.inbox());
    raw.subscribe(&inbox);
    let wild = |subject: String| subject.trim_end_matches('>').len();
    let dlv = work.space.dlv_all();
    let mut relay = Relay {
        batch,
        total,
        prefix: dlv.trim_end_matches('>').as_bytes().to_vec(),
        skip: wild(work.space.dinbox_all()),
        post_len: work.posts.first().context("no posts")?.len,
        received: 0,
        asked: 0,
        due: VecDeque::new(),
        spare: Vec::new(),
        inbox: inbox.as_bytes(),
    };
    let next = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{READER}", work.space.inbox_stream());
    loop {
        let wanted = (relay.received + PULL).min(total);
        if wanted - relay.asked >= PULL / 4 || (wanted == total && relay.asked < total) {
            let ask = wanted - relay.asked;
            let body = format!("{{\"batch\":{ask},\"expires\":30000000000}}");
            raw.publish(next.as_bytes(), relay.inbox, body.as_bytes());
            relay.asked = wanted;
        }
        let confirmed = relay.received - relay.due.len() as u64;
        for _ in confirmed..relay.batch.stored {
            let ack = relay.due.pop_front().context("more confirmed than sent")?;
            raw.publish(&ack, b"", b"+ACK");
            relay.spare.push(ack);
        }
        raw.flush()?;
        if relay.received == total && relay.due.is_empty() {
            return Ok(());
        }
        raw.read()?;
        let mut outcome = Ok(());
        raw.drain(|out, frame| {
            let handled = if frame.reply.starts_with(b"$JS.ACK.") {
                relay.entry(out, frame)
            } else {
                relay.batch.on_report(frame.payload)
            };
            if let Err(error) = handled {
                outcome = Err(error);
            }
        })?;
        outcome?;
    }
}

impl Relay<'_> {
    fn entry(&mut self, out: &mut Out<'_>, frame: crate::raw::Frame<'_>) -> anyhow::Result<()> {
        const MSG: usize = br#"{"msg":"#.len();
        let post = frame.payload.get(MSG..MSG + self.post_len).context("a short entry")?;
        let tail = &frame.payload[MSG + self.post_len..];
        let seq = after(tail, b"\"seq\":").context("no sequence")?;
        let seq_len = tail[seq..].iter().take_while(|b| b.is_ascii_digit()).count();
        let first = frame.headers.iter().position(|b| *b == b'\n').context("no headers")? + 1;
        let id = &frame.headers[first..frame.headers.len() - 2];
        if !id.starts_with(b"Nats-Msg-Id:") {
            bail!("an entry without an id");
        }
        let headers: [&[u8]; 5] =
            [id, SEQ_HEADER.as_bytes(), b": ", &tail[seq..seq + seq_len], b"\r\n"];
        let subject: [&[u8]; 2] = [&self.prefix, &frame.subject[self.skip..]];
        let reply = self.batch.next(self.total);
        out.publish_parts(&subject, reply, &headers, post);
        let mut ack = self.spare.pop().unwrap_or_default();
        ack.clear();
        ack.extend_from_slice(frame.reply);
        self.due.push_back(ack);
        self.received += 1;
        Ok(())
    }
}
