//! The one task of a writer: it owns every message between submission and settlement.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::message::OutboundMessage;
use async_nats::{Message, StatusCode, Subject, Subscriber};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::flight::{Entry, FastBatch, Flow, Singles, push_number};
use super::options::{Engine, WriterOptions};
use super::outgoing::Outgoing;
use super::tickets::{BatchError, Refusal, Tickets};
use crate::broadcast::Listener;
use crate::connection::Connection;
use crate::error::{Denial, NatsError};
use crate::event::ConnState;
use crate::js::{PubAck, parse_reply};
use crate::request::is_publish;

/// A burst at least this long pays for a fast batch's own start and end.
const FAST_MIN: usize = 32;
/// A fast batch ends here at the latest, so that the broker's state for it stays small.
const FAST_MAX: u64 = 50_000;
/// The broker's code for a batch that it does not know (any more).
const BATCH_UNKNOWN: u32 = 10_208;
/// How often timeouts are looked for.
const TICK: Duration = Duration::from_millis(250);
/// A broker that has just come back may not serve its streams yet.
const HOLD: Duration = Duration::from_millis(250);
/// How long nobody may serve the subject before that is believed.
const NO_RESPONDERS_PATIENCE: Duration = Duration::from_secs(5);
/// Messages that go onto the wire between two questions whether they still may. A process can be
/// paused between any two, and each question costs a look at a lock and at the clock.
const ASK_EVERY: usize = 16;
/// Answers handled between two looks at the queue.
const DRAIN: usize = 512;

#[derive(Debug)]
pub(super) struct Submission {
    pub(super) messages: Vec<Outgoing>,
    pub(super) tell: oneshot::Sender<Result<(), BatchError>>,
    pub(super) permit: OwnedSemaphorePermit,
}

/// Everything the task can be woken by.
enum Event {
    Submitted(Option<Submission>),
    Ack(Option<Message>),
    Flow(Option<Message>),
    Denied(Option<Denial>),
    StateChanged,
    Tick,
}

/// Whether messages may go onto the wire.
pub(super) type MayWrite = Box<dyn Fn() -> bool + Send>;

pub(super) struct Actor {
    connection: Connection,
    options: WriterOptions,
    may_write: MayWrite,
    submissions: mpsc::Receiver<Submission>,
    open: bool,
    acks: Subscriber,
    /// Where everything comes that the broker says of this writer's messages, with a final dot.
    inbox: String,
    flows: Subscriber,
    denials: Listener<Denial>,
    state: watch::Receiver<ConnState>,
    drops: u64,
    ticks: Interval,
    tickets: Tickets,
    queue: VecDeque<Entry>,
    singles: Singles,
    fast: VecDeque<FastBatch>,
    fast_count: u64,
    next_order: u64,
    hold_until: Option<Instant>,
}

impl Actor {
    pub(super) async fn new(
        connection: &Connection,
        options: WriterOptions,
        may_write: MayWrite,
        submissions: mpsc::Receiver<Submission>,
        refusal: Refusal,
    ) -> Result<Self, NatsError> {
        let inbox = connection.new_inbox();
        let acks = connection.raw_subscribe(format!("{inbox}.*")).await?;
        // Deeper than the answers to single messages, and each with the id of its batch.
        let flow_subject = format!("{inbox}.*.*.*.*.*.$FI");
        let flows = connection.raw_subscribe(flow_subject).await?;
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let state = connection.state();
        let drops = connection.drops();
        Ok(Self {
            connection: connection.clone(),
            options,
            may_write,
            submissions,
            open: true,
            acks,
            inbox: format!("{inbox}."),
            flows,
            denials: connection.denials(),
            state,
            drops,
            ticks,
            tickets: Tickets::new(refusal),
            queue: VecDeque::new(),
            singles: Singles::default(),
            fast: VecDeque::new(),
            fast_count: 0,
            next_order: 0,
            hold_until: None,
        })
    }

    pub(super) async fn run(mut self) {
        while self.open || !self.tickets.is_empty() {
            if self.pump().await.is_err() {
                break;
            }
            match self.wake().await {
                Event::Submitted(Some(submission)) => self.take_submissions(submission),
                Event::Submitted(None) => self.open = false,
                Event::Ack(Some(ack)) => self.on_acks(&ack),
                Event::Flow(Some(flow)) => self.on_flows(&flow),
                Event::Ack(None) | Event::Flow(None) => break,
                Event::Denied(Some(denial)) => self.on_denial(&denial),
                Event::Denied(None) => {}
                Event::StateChanged => self.on_state(),
                Event::Tick => self.on_tick(),
            }
            if self.state.borrow().phase == crate::event::Phase::Closed {
                break;
            }
        }
        // Tickets that are still open resolve as closed when their senders drop here.
    }

    async fn wake(&mut self) -> Event {
        let room = self.queue.len() < self.options.max_pending;
        let waiting = !self.tickets.is_empty();
        tokio::select! {
            biased;
            ack = self.acks.next() => Event::Ack(ack),
            flow = self.flows.next() => Event::Flow(flow),
            denial = self.denials.recv() => Event::Denied(denial.ok()),
            _ = self.state.changed() => Event::StateChanged,
            submission = self.submissions.recv(), if self.open && room => {
                Event::Submitted(submission)
            }
            _ = self.ticks.tick(), if waiting => Event::Tick,
        }
    }

    fn take_submissions(&mut self, first: Submission) {
        self.enqueue(first);
        while self.queue.len() < self.options.max_pending {
            let Ok(next) = self.submissions.try_recv() else {
                return;
            };
            self.enqueue(next);
        }
    }

    fn enqueue(&mut self, submission: Submission) {
        let Submission { messages, tell, permit } = submission;
        let ticket = self.tickets.open(messages.len(), tell, permit);
        let now = Instant::now();
        let max = self.connection.max_payload();
        for (index, message) in messages.into_iter().enumerate() {
            let size = message.wire_size();
            if size > max {
                let what = format!("a message to {}", message.subject);
                let error = NatsError::TooLarge { what, size, max };
                self.tickets.settle(ticket, index, Err(error));
                continue;
            }
            let order = self.next_order;
            self.next_order += 1;
            self.queue.push_back(Entry {
                message,
                ticket,
                index,
                order,
                submitted: now,
                sent: now,
                setback: None,
            });
        }
    }

    /// Puts on the wire what there is room for. Fails only when the connection is closed.
    async fn pump(&mut self) -> Result<(), NatsError> {
        if !self.state.borrow().is_connected() || self.is_held() {
            return Ok(());
        }
        if !self.queue.is_empty() && !(self.may_write)() {
            self.withhold();
            return Ok(());
        }
        let now = Instant::now();
        let mut in_flight = self.in_flight();
        // A few messages are worth little alone: they wait for what is in flight, and go together
        // with whatever joins them meanwhile.
        if in_flight > 0 && self.is_trickle() {
            return Ok(());
        }
        let mut unasked = 0;
        while !self.queue.is_empty() && in_flight < self.options.max_in_flight {
            if unasked == ASK_EVERY {
                if !(self.may_write)() {
                    self.withhold();
                    return Ok(());
                }
                unasked = 0;
            }
            unasked += 1;
            let fast = self.use_fast();
            let Some(mut entry) = self.queue.pop_front() else {
                return Ok(());
            };
            entry.sent = now;
            let reply = if fast { self.fast_reply() } else { self.single_reply() };
            let outbound = OutboundMessage {
                subject: entry.message.subject.clone(),
                reply: Some(reply),
                payload: entry.message.payload.clone(),
                headers: entry.message.header_map(),
            };
            let (ticket, index) = (entry.ticket, entry.index);
            if let Err(error) = self.connection.send_checked(outbound).await {
                if matches!(error, NatsError::Closed) {
                    return Err(error);
                }
                self.tickets.settle(ticket, index, Err(error));
                continue;
            }
            self.on_wire(entry, fast);
            in_flight += 1;
        }
        Ok(())
    }

    /// Fails what is queued. It is not kept, because what it was decided on grows old.
    fn withhold(&mut self) {
        for entry in std::mem::take(&mut self.queue) {
            let what = format!("the write to {}", entry.message.subject);
            let error = NatsError::Withheld { what };
            self.tickets.settle(entry.ticket, entry.index, Err(error));
        }
    }

    /// Whether what is queued neither goes on with a fast batch nor is worth one.
    fn is_trickle(&self) -> bool {
        self.options.engine == Engine::FastIngest
            && self.queue.len() < FAST_MIN
            && self.fast.back().is_none_or(|batch| batch.committed)
    }

    fn is_held(&mut self) -> bool {
        let held = self.hold_until.is_some_and(|until| Instant::now() < until);
        if !held {
            self.hold_until = None;
        }
        held
    }

    fn in_flight(&self) -> usize {
        self.singles.len() + self.fast.iter().map(FastBatch::unconfirmed).sum::<usize>()
    }

    /// Whether the next message belongs to a fast batch; opens one when a burst begins.
    fn use_fast(&mut self) -> bool {
        if self.options.engine != Engine::FastIngest {
            return false;
        }
        if self.fast.back().is_some_and(|batch| !batch.committed) {
            return true;
        }
        if self.queue.len() < FAST_MIN {
            return false;
        }
        self.fast_count += 1;
        // The broker knows a batch by its id alone, whoever writes it: an id that another writer of
        // the stream may have left open would mix the two.
        let run = self.inbox.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
        let id = format!("{run}-{:x}", self.fast_count);
        self.fast.push_back(FastBatch::new(&self.inbox, id));
        true
    }

    /// A batch ends with the queue, so that its tail is confirmed at once.
    fn ends_batch(&self, batch: &FastBatch) -> bool {
        self.queue.is_empty() || batch.sent() + 1 >= FAST_MAX
    }

    fn fast_reply(&self) -> Subject {
        self.fast.back().map_or_else(
            || Subject::from_static(""),
            |batch| batch.next_reply(self.ends_batch(batch)),
        )
    }

    fn single_reply(&self) -> Subject {
        let mut reply = String::with_capacity(self.inbox.len() + 20);
        reply.push_str(&self.inbox);
        push_number(&mut reply, self.singles.next_number());
        reply.into()
    }

    fn on_wire(&mut self, entry: Entry, fast: bool) {
        if !fast {
            self.singles.push(entry);
            return;
        }
        let last = self.fast.back().is_some_and(|batch| self.ends_batch(batch));
        if let Some(batch) = self.fast.back_mut() {
            batch.push(entry, last);
        }
    }

    fn on_acks(&mut self, first: &Message) {
        self.on_ack(first);
        for _ in 0..DRAIN {
            let Some(Some(ack)) = self.acks.next().now_or_never() else {
                return;
            };
            self.on_ack(&ack);
        }
    }

    fn on_ack(&mut self, ack: &Message) {
        let number = ack.subject.rsplit('.').next().and_then(|tail| tail.parse().ok());
        let Some(entry) = number.and_then(|number| self.singles.take(number)) else {
            return;
        };
        if ack.status == Some(StatusCode::NO_RESPONDERS) {
            let subject = entry.message.subject.to_string();
            self.hold(vec![entry], &NatsError::NoResponders { subject });
            return;
        }
        let outcome = if ack.payload.starts_with(b"{\"stream\"") {
            Ok(())
        } else {
            parse_reply::<PubAck>(&entry.message.subject, &ack.payload).map(drop)
        };
        self.tickets.settle(entry.ticket, entry.index, outcome);
    }

    fn on_flows(&mut self, first: &Message) {
        self.on_flow(first);
        for _ in 0..DRAIN {
            let Some(Some(flow)) = self.flows.next().now_or_never() else {
                return;
            };
            self.on_flow(&flow);
        }
    }

    fn on_flow(&mut self, flow: &Message) {
        let tail = flow.subject.strip_prefix(&self.inbox);
        let Some(id) = tail.and_then(|tail| tail.split('.').next()) else {
            return;
        };
        // A report on a batch that was given up.
        let Some(slot) = self.fast.iter().position(|batch| batch.id == id) else {
            return;
        };
        if flow.status == Some(StatusCode::NO_RESPONDERS) {
            let error = NatsError::NoResponders { subject: "the stream".to_owned() };
            let mut entries = Vec::new();
            self.abandon(slot, &mut entries);
            self.hold(entries, &error);
            return;
        }
        match Flow::parse(&flow.payload) {
            Some(Flow::Ack(number)) => self.on_report(slot, number),
            Some(Flow::Final(count)) => self.on_final(slot, count),
            Some(Flow::Failed(number, error)) => self.on_failed(slot, number, error),
            None => tracing::debug!(id, "unreadable report on a fast batch"),
        }
    }

    fn confirm(&mut self, slot: usize, number: u64) {
        let Some(batch) = self.fast.get_mut(slot) else {
            return;
        };
        while let Some(entry) = batch.pop_confirmed(number) {
            self.tickets.settle(entry.ticket, entry.index, Ok(()));
        }
    }

    fn on_report(&mut self, slot: usize, number: u64) {
        self.confirm(slot, number);
        // Its last message is confirmed, so nothing more is said of it.
        if self.fast.get(slot).is_some_and(|batch| batch.committed && batch.unconfirmed() == 0) {
            self.fast.remove(slot);
        }
    }

    /// The batch is over. Whatever its count does not cover is sent again.
    fn on_final(&mut self, slot: usize, count: u64) {
        self.confirm(slot, count);
        let mut entries = Vec::new();
        self.abandon(slot, &mut entries);
        self.requeue(entries);
    }

    fn on_failed(&mut self, slot: usize, number: Option<u64>, error: Option<crate::ApiError>) {
        let mut entries = Vec::new();
        let culprit = number.and_then(|number| self.fast.get_mut(slot)?.take(number));
        self.abandon(slot, &mut entries);
        match (culprit, error) {
            (Some(entry), Some(error)) => {
                let error = error.classify(entry.message.subject.as_str());
                self.tickets.settle(entry.ticket, entry.index, Err(error));
            }
            (Some(entry), None) => entries.push(entry),
            // The broker has forgotten it, as it does with one that stays open; a new one will do.
            (None, Some(error)) if error.err_code == BATCH_UNKNOWN => {}
            // The stream takes no fast batches after all: one by one it tells why, or works.
            (None, Some(error)) => {
                tracing::debug!(?error, "fast ingest refused, writing one by one");
                self.options.engine = Engine::Pipelined;
            }
            (None, None) => {}
        }
        self.requeue(entries);
    }

    fn abandon(&mut self, slot: usize, into: &mut Vec<Entry>) {
        if let Some(batch) = self.fast.remove(slot) {
            batch.drain(into);
        }
    }

    fn on_denial(&mut self, denial: &Denial) {
        if !is_publish(denial) {
            return;
        }
        let mut denied = Vec::new();
        self.singles.take_subject(&denial.subject, &mut denied);
        let mut others = Vec::new();
        while let Some(slot) = self.fast.iter().position(|batch| batch.holds(&denial.subject)) {
            // The broker never saw the denied message, so the batch has a gap and is over.
            self.abandon(slot, &mut others);
            let (mine, rest) = others
                .drain(..)
                .partition(|entry: &Entry| entry.message.subject.as_str() == denial.subject);
            denied.extend::<Vec<_>>(mine);
            self.requeue(rest);
        }
        for entry in denied {
            let error = NatsError::denied(denial.clone());
            self.tickets.settle(entry.ticket, entry.index, Err(error));
        }
    }

    fn on_state(&mut self) {
        let state = *self.state.borrow_and_update();
        if state.drops != self.drops {
            self.drops = state.drops;
            let entries = self.all_in_flight();
            self.requeue(entries);
        }
    }

    fn all_in_flight(&mut self) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.singles.drain(&mut entries);
        for batch in self.fast.drain(..) {
            batch.drain(&mut entries);
        }
        entries
    }

    /// Puts messages back, to be sent again in the order of their submission.
    fn requeue(&mut self, mut entries: Vec<Entry>) {
        if entries.is_empty() {
            return;
        }
        entries.extend(self.queue.drain(..));
        entries.sort_by_key(|entry| entry.order);
        self.queue = entries.into();
    }

    fn hold(&mut self, mut entries: Vec<Entry>, why: &NatsError) {
        for entry in &mut entries {
            entry.setback = Some(Box::new(why.clone()));
        }
        self.hold_until = Some(Instant::now() + HOLD);
        self.requeue(entries);
    }

    fn on_tick(&mut self) {
        let now = Instant::now();
        let overdue = now.checked_sub(self.options.ack_timeout);
        let singles = self.singles.oldest().is_some_and(|sent| Some(sent) < overdue);
        let fast = self.fast.iter().any(|b| b.oldest().is_some_and(|sent| Some(sent) < overdue));
        if singles || fast {
            tracing::debug!("writes unanswered, sending them again");
            let entries = self.all_in_flight();
            self.requeue(entries);
        }
        self.give_up(now);
    }

    fn give_up(&mut self, now: Instant) {
        let limit = self.options.give_up_after;
        let expired = |entry: &Entry| {
            let patience = if entry.setback.is_some() { NO_RESPONDERS_PATIENCE } else { limit };
            now.duration_since(entry.submitted) > patience.min(limit)
        };
        if !self.queue.iter().any(expired) {
            return;
        }
        let connected = self.state.borrow().is_connected();
        let (old, young): (Vec<_>, Vec<_>) = self.queue.drain(..).partition(expired);
        self.queue = young.into();
        for entry in old {
            let what = format!("the write to {}", entry.message.subject);
            let error = match entry.setback {
                Some(error) => *error,
                None if connected => NatsError::Timeout { what, after: limit },
                None => NatsError::disconnected(what),
            };
            self.tickets.settle(entry.ticket, entry.index, Err(error));
        }
    }
}
