//! `cotal inbox`: what has arrived.

use std::time::Duration;

use cotal_client::{
    Channel, ControlError, Destination, Endpoint, Event, Incoming, Live, MissedPosts, Notice,
    Source,
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::format_description;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::args::{JsonArg, duration};
use crate::commands::as_agent::{AgentArgs, channel};
use crate::commands::credential_watch::{CredentialWatch, Lost};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{plain, told_after};

/// Prints what has arrived, and acks each message once it is printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --follow it prints what waits and ends. What is printed is acked and does not come again;
what is not printed waits for the next call. Posts that were lost before they could be read, because
over 1,000 waited, are told first, once: with --json as an object whose 'notice' is 'posts-missed'.
Without a delivery daemon no post can arrive: that is said, and ends with 7, or with 10 when
something was printed. An agent that is retired or narrowed while --follow runs ends it with 3; a
credential file that was replaced meanwhile is read again.

Examples:
  cotal inbox --as bob
  cotal inbox --as bob --timeout 30s
  cotal inbox --as bob --peek --ids
  cotal inbox --as bob --follow
  cotal inbox --as bob --follow --count 1 --json
  cotal inbox --as bob --follow --channel team.chat")]
pub struct Args {
    #[command(flatten)]
    agent: AgentArgs,
    /// Stay and print what arrives, on joined channels also live.
    #[arg(long)]
    follow: bool,
    /// End after this many messages.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// With --follow: listen on this channel too, joined or not.
    #[arg(long, value_name = "CHANNEL", value_parser = channel, requires = "follow")]
    channel: Vec<Channel>,
    /// Without --follow: how long nothing may arrive before the inbox counts as read, in
    /// milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 500)]
    settle: u64,
    /// Without --follow: wait this long for a first message, and end with 5 when none comes; a
    /// number and ms, s, m, h or d.
    #[arg(long, value_name = "SPAN", value_parser = duration, conflicts_with = "follow")]
    timeout: Option<Duration>,
    /// Acknowledge nothing: what is printed comes again.
    #[arg(long, conflicts_with = "follow")]
    peek: bool,
    /// Print each message's id as well.
    #[arg(long)]
    ids: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs the command.
pub async fn run(args: Args, ctx: &Context) -> anyhow::Result<Exit> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut printed = 0;
    loop {
        let seat = args.agent.seat(ctx)?;
        let watch = CredentialWatch::of(&seat);
        let endpoint = seat.connect(|options| options).await?;
        let mut reader = Reader {
            endpoint: &endpoint,
            args: &args,
            ctx,
            watch,
            printed,
            peeked: Vec::new(),
            began: Instant::now(),
        };
        let read = tokio::select! {
            read = reader.read() => read,
            () = signalled(&mut interrupt, &mut terminate) => Ok(Read::Done(Exit::Ok)),
        };
        printed = reader.printed;
        endpoint.close().await;
        match read? {
            Read::Done(exit) => return Ok(exit),
            Read::Replaced => {
                ctx.out.note("the credential's file was replaced: connecting with it");
            }
        }
    }
}

/// How reading ended.
enum Read {
    Done(Exit),
    /// The agent has another key by now.
    Replaced,
}

async fn signalled(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

struct Reader<'a> {
    endpoint: &'a Endpoint,
    args: &'a Args,
    ctx: &'a Context,
    watch: CredentialWatch,
    printed: u64,
    /// What is shown and not acknowledged; closing the endpoint gives it back. The broker hands out
    /// 1,000 at most.
    peeked: Vec<Incoming>,
    began: Instant,
}

impl Reader<'_> {
    async fn read(&mut self) -> anyhow::Result<Read> {
        if self.args.follow {
            self.listen().await;
        }
        let silent = self.missed().await?;
        while self.args.count.is_none_or(|count| self.printed < count) {
            let event = tokio::select! {
                biased;
                event = self.next() => event?,
                lost = self.watch.lost() => match lost {
                    Lost::Replaced => return Ok(Read::Replaced),
                    Lost::Over(why) => return Err(why),
                },
            };
            match event {
                None => return Ok(Read::Done(self.at_the_end(silent))),
                Some(Event::Message(incoming)) => {
                    if let Err(unprinted) = self.print(&incoming) {
                        incoming.release().await?;
                        return Err(unprinted);
                    }
                    if self.args.peek {
                        self.peeked.push(*incoming);
                    } else {
                        incoming.ack_confirmed().await?;
                    }
                    self.printed += 1;
                }
                Some(Event::Notice(Notice::PostsMissed(episode))) => self.print_missed(&episode)?,
                Some(Event::Notice(notice)) => self.on_notice(&notice).await,
            }
        }
        Ok(Read::Done(Exit::Ok))
    }

    /// What an inbox that is read to its end amounts to: without a daemon it says nothing about
    /// what was posted.
    fn at_the_end(&self, silent: Option<ControlError>) -> Exit {
        let nothing = self.printed == 0;
        match silent {
            None if nothing && self.args.timeout.is_some() => {
                self.ctx.out.note("nothing has arrived in time");
                return Exit::TimedOut;
            }
            None if nothing && !self.args.json.json => self.ctx.out.note("nothing has arrived"),
            None => {}
            Some(why) => {
                let space = self.endpoint.space();
                let arrived = if nothing { "nothing has arrived" } else { "that is all for now" };
                self.ctx.out.warn(format_args!(
                    "{arrived}, and no post on a durable channel can arrive: {}; posts wait until a \
                     daemon serves space {space}: `cotal status` shows it, `cotal up` starts one",
                    why_silent(&why)
                ));
                return if nothing { Exit::NotServing } else { Exit::Partial };
            }
        }
        Exit::Ok
    }

    /// Says first what is not there to be read any more; gives why no daemon could be asked.
    async fn missed(&self) -> anyhow::Result<Option<ControlError>> {
        let episodes = match self.endpoint.missed_posts().await {
            Ok(episodes) => episodes,
            Err(why @ (ControlError::NoResponders { .. } | ControlError::Timeout { .. })) => {
                return Ok(Some(why));
            }
            Err(_) => return Ok(None),
        };
        for episode in episodes {
            self.print_missed(&episode)?;
            self.endpoint.missed_shown(&episode).await;
        }
        Ok(None)
    }

    fn print_missed(&self, episode: &MissedPosts) -> anyhow::Result<()> {
        if self.args.json.json {
            return self.ctx.out.json(&json!({
                "notice": "posts-missed",
                "missed": episode.missed,
                "from": episode.from,
                "to": episode.to,
                "since": episode.since,
                "until": episode.until,
            }));
        }
        self.ctx.out.warn(Notice::PostsMissed(episode.clone()));
        Ok(())
    }

    /// The next event; `None` when the inbox is read to its end.
    async fn next(&self) -> anyhow::Result<Option<Event>> {
        if self.args.follow {
            return Ok(self.endpoint.next().await);
        }
        let settle = Duration::from_millis(self.args.settle);
        loop {
            if let Ok(event) = tokio::time::timeout(settle, self.endpoint.next()).await {
                return Ok(event);
            }
            if self.printed == 0
                && self.args.timeout.is_some_and(|most| self.began.elapsed() < most)
            {
                continue;
            }
            let waiting = self.endpoint.waiting().await?;
            if waiting.undelivered > 0 {
                continue;
            }
            if waiting.unacked > self.peeked.len() as u64 {
                self.ctx.out.note(format_args!(
                    "{} more are in the hands of another reader of this agent, and come back within \
                     60 s unless it acks them",
                    waiting.unacked - self.peeked.len() as u64
                ));
            }
            return Ok(None);
        }
    }

    async fn on_notice(&mut self, notice: &Notice) {
        self.watch.heard(notice);
        match notice {
            Notice::LeaseReady { .. }
            | Notice::BackstopEstablished { .. }
            | Notice::Reconnected => self.ctx.out.note(notice),
            _ => self.ctx.out.warn(notice),
        }
        // A daemon that came up knows the memberships that nobody could tell before.
        if self.args.follow && matches!(notice, Notice::LeaseReady { .. }) {
            self.listen().await;
        }
    }

    /// Subscribes the channels that were named and those that are joined.
    async fn listen(&self) {
        let mut channels = self.args.channel.clone();
        match self.endpoint.memberships().await {
            Ok(memberships) => channels.extend(memberships.into_iter().map(|m| m.channel)),
            Err(error) => self.ctx.out.warn(format_args!(
                "joined channels are read through the durable only, not live: {error}"
            )),
        }
        for channel in channels {
            if let Live::Refused(error) = self.endpoint.listen(&channel).await {
                self.ctx.out.warn(format_args!("{channel} is not heard live: {error}"));
            }
        }
    }

    fn print(&self, incoming: &Incoming) -> anyhow::Result<()> {
        print((incoming, self.args.ids), self.args.json, self.ctx)
    }
}

/// Prints one message, with its id where `ids` asks for it.
pub fn print(
    (incoming, ids): (&Incoming, bool),
    json: JsonArg,
    ctx: &Context,
) -> anyhow::Result<()> {
    if json.json {
        return ctx.out.json(&as_json(incoming));
    }
    let id = if ids { format!("{} ", plain(&incoming.message.id)) } else { String::new() };
    Ok(ctx.out.data(format_args!("{id}{}", line(incoming)))?)
}

/// Why no daemon answered, for a person.
fn why_silent(why: &ControlError) -> &'static str {
    match why {
        ControlError::NoResponders { .. } => "no delivery daemon runs",
        _ => "the delivery daemon does not answer",
    }
}

/// One message, for a person; of a channel's history it is said that it is.
pub fn line(incoming: &Incoming) -> String {
    let at = clock(incoming.message.ts);
    let mark = if incoming.source == Source::Backfilled { " (history)" } else { "" };
    let place = match &incoming.place {
        Destination::Channel { channel, .. } => channel.to_string(),
        Destination::Direct => "direct".to_owned(),
    };
    told_after(format_args!("{at} {place} {}{mark}:", incoming.sender), &incoming.text())
}

/// The sender's own clock, as it wrote it.
fn clock(ts: i64) -> String {
    let instant = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ts) * 1_000_000);
    let shape = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");
    let text = instant.ok().and_then(|instant| instant.format(&shape).ok());
    text.unwrap_or_else(|| "(no time)".to_owned())
}

/// One message, for a program.
pub fn as_json(incoming: &Incoming) -> Value {
    let (channel, seq) = match &incoming.place {
        Destination::Channel { channel, seq } => (Some(channel), *seq),
        Destination::Direct => (None, None),
    };
    let message: Value = serde_json::from_slice(&incoming.body).unwrap_or_default();
    json!({
        "id": incoming.message.id,
        "sender": incoming.sender,
        "channel": channel,
        "seq": seq,
        "source": incoming.source.as_str(),
        "again": incoming.again,
        "text": incoming.text(),
        "message": message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_and_a_wild_one_is_no_failure() {
        assert_eq!(clock(1_700_000_000_123), "2023-11-14T22:13:20Z");
        assert_eq!(clock(i64::MAX), "(no time)");
    }
}
