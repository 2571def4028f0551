//! The rails: what every control service and the liveness probe have in common.
//!
//! Invariant: the caller is the principal of the subject, whatever a body says. A reply goes only
//! below the request's own subject (ADM-5), or back through the broker to another account, where it
//! cannot reach anything that is stored.

use std::collections::HashMap;
use std::sync::Arc;

use cotal_nats::{Bytes, Connection, Message, NatsError, Subject, Subscription, to_json};
use cotal_wire::accounts::Topology;
use cotal_wire::control::{Code, Plane, PlaneReply, Reply, Request};
use cotal_wire::names::{DELIVERY, is_forwarded_reply, is_own_reply};
use cotal_wire::{Principal, Space};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::control::fair_queue::FairQueue;
use crate::credentials::adoption::settled;
use crate::lane::context::LaneContext;
use crate::lane::error::{LaneError, broker};
use crate::lease::gate::Gate;
use crate::loop_progress::LoopReporter;

/// Requests of one service that are processed at once; further ones wait.
const CALLS_AT_ONCE: usize = 64;

/// What a service needs to parse requests and answer them; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Rail {
    pub(crate) space: Space,
    pub(crate) topology: Topology,
    pub(crate) connection: Connection,
    pub(crate) gate: Gate,
    /// Whether the connection is about to reconnect; replies wait for that (ADM-8).
    moving: watch::Receiver<bool>,
}

/// A request of an authenticated caller. Its subject is parsed, its body is not yet.
pub(crate) struct Call {
    pub(crate) caller: Principal,
    pub(crate) reply_to: Subject,
    body: Bytes,
}

impl Call {
    /// Parses the body; returns the refusal if it is not acceptable.
    pub(crate) fn request(&self) -> Result<Request, Reply> {
        let request = Request::parse(&self.body).map_err(|e| Reply::refused(Code::Invalid, e))?;
        if request.from.id != self.caller.as_str() {
            let caller = &self.caller;
            let why = format!("the body names another sender than {caller}, who sent the request");
            return Err(Reply::refused(Code::Denied, why));
        }
        Ok(request)
    }
}

/// A control service: what it performs for an authenticated caller.
pub(crate) trait Service: Send + Sync + 'static {
    /// Its name in subjects.
    const NAME: &'static str;

    fn rail(&self) -> &Rail;

    fn perform(&self, caller: &Principal, request: Request) -> impl Future<Output = Reply> + Send;
}

/// Performs a call and replies.
async fn answer<S: Service>(service: Arc<S>, call: Call) {
    let rail = service.rail();
    let reply = match call.request().and_then(|request| rail.while_serving(request)) {
        Ok(request) => service.perform(&call.caller, request).await,
        Err(refusal) => refusal,
    };
    rail.send(&call.reply_to, &reply).await;
}

impl Rail {
    /// The rail of a lane; `moving` tells when its connection is about to reconnect.
    pub(crate) fn new(context: &LaneContext, moving: watch::Receiver<bool>) -> Self {
        let LaneContext { space, topology, connection, gate, .. } = context.clone();
        Self { space, topology, connection, gate, moving }
    }

    /// Subscribes to a service; the broker has confirmed the subscription when this returns.
    pub(crate) async fn bind(
        &self,
        context: &LaneContext,
        subjects: String,
        service: &'static str,
    ) -> Result<Subscription, LaneError> {
        let bind = || self.connection.subscribe(subjects.clone(), Some(service));
        context.ask("cannot bind the control rails", bind).await
    }

    /// A request with its authenticated caller, whom `parse` reads from the subject. Any other
    /// request is dropped without a reply, because a reply could be aimed at somebody else.
    fn read(
        &self,
        message: Message,
        parse: impl Fn(&Space, &str) -> Option<Principal>,
    ) -> Option<Call> {
        let subject = message.subject.as_str();
        let caller = parse(&self.space, subject).filter(Principal::has_real_owner);
        match (caller, message.reply) {
            (Some(caller), Some(reply_to)) if self.may_answer(subject, &reply_to) => {
                Some(Call { caller, reply_to, body: message.payload })
            }
            (_, reply) => {
                debug!(
                    space = %self.space, subject, reply = reply.as_deref(),
                    "dropped a request whose reply subject is not below its own"
                );
                None
            }
        }
    }

    /// A request to a service.
    pub(crate) fn call(&self, message: Message, service: &str) -> Option<Call> {
        self.read(message, |space, subject| space.parse_ctl(service, subject))
    }

    fn may_answer(&self, subject: &str, reply: &str) -> bool {
        let forwarded = self.topology == Topology::Three && is_forwarded_reply(reply);
        forwarded || is_own_reply(subject, reply)
    }

    /// The request, while the daemon serves; otherwise the refusal.
    pub(crate) fn while_serving(&self, request: Request) -> Result<Request, Reply> {
        if self.gate.is_open() {
            return Ok(request);
        }
        let why = "the daemon does not serve at the moment; try again";
        Err(Reply::refused(Code::NotReady, why))
    }

    /// Sends a reply. If the broker would not accept it, sends a refusal with its size (ADM-2).
    pub(crate) async fn send(&self, to: &str, reply: &impl Serialize) {
        settled(&mut self.moving.clone()).await;
        let sent = match self.publish(to, reply).await {
            Err(NatsError::TooLarge { size, max, .. }) => {
                let why =
                    format!("the reply has {size} bytes, but the broker accepts at most {max}");
                self.publish(to, &Reply::refused(Code::TooLarge, why)).await
            }
            other => other,
        };
        if let Err(error) = sent {
            warn!(space = %self.space, %error, "a reply could not be sent");
        }
    }

    async fn publish(&self, to: &str, reply: &impl Serialize) -> Result<(), NatsError> {
        self.connection.publish(to.to_owned(), None, to_json(reply)?).await
    }

    /// Answers liveness probes until told to stop.
    pub(crate) async fn answer_probes(
        self,
        mut probes: Subscription,
        mut reporter: LoopReporter,
        stop: CancellationToken,
    ) -> Result<(), NatsError> {
        loop {
            let probe = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = reporter.answered() => continue,
                probe = probes.next() => probe?,
            };
            let parse = |space: &Space, subject: &str| space.parse_live(DELIVERY, subject);
            if let Some(call) = self.read(probe, parse) {
                let state = if self.gate.is_open() { Plane::Bound } else { Plane::Unbound };
                self.send(&call.reply_to, &PlaneReply { state }).await;
            }
        }
    }
}

/// Names the rail as the cause of the failure.
pub(crate) async fn failed(
    served: impl Future<Output = Result<(), NatsError>>,
) -> Result<(), LaneError> {
    served.await.map_err(broker("a control rail failed"))
}

/// Answers requests until told to stop, then finishes the requests in progress.
pub(crate) async fn serve<S: Service>(
    service: Arc<S>,
    mut requests: Subscription,
    mut reporter: LoopReporter,
    stop: CancellationToken,
) -> Result<(), NatsError> {
    let room = Arc::new(Semaphore::new(CALLS_AT_ONCE));
    let mut working = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = reporter.answered() => {}
            Some(_) = working.join_next(), if !working.is_empty() => {}
            taken = next_with_room(&mut requests, &room) => {
                let (message, permit) = taken?;
                if let Some(call) = service.rail().call(message, S::NAME) {
                    let answered = answer(Arc::clone(&service), call);
                    working.spawn(async move {
                        answered.await;
                        drop(permit);
                    });
                }
            }
        }
    }
    while working.join_next().await.is_some() {}
    Ok(())
}

/// Like [`serve`], but each caller's requests are processed one at a time, in the order in which
/// they arrived, so a leave after a join ends that join. A caller takes only one of the
/// [`CALLS_AT_ONCE`] places, however many requests it has queued.
pub(crate) async fn serve_in_order<S: Service>(
    service: Arc<S>,
    mut requests: Subscription,
    mut reporter: LoopReporter,
    stop: CancellationToken,
) -> Result<(), NatsError> {
    let mut queues = FairQueue::default();
    let mut working = JoinSet::new();
    let mut callers = HashMap::new();
    let mut dropping = false;
    loop {
        while working.len() < CALLS_AT_ONCE
            && let Some((caller, call)) = queues.next()
        {
            callers.insert(working.spawn(answer(Arc::clone(&service), call)).id(), caller);
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = reporter.answered() => {}
            Some(ended) = working.join_next_with_id(), if !working.is_empty() => {
                let task = ended.map_or_else(|error| error.id(), |(task, ())| task);
                if let Some(caller) = callers.remove(&task) {
                    queues.done(caller);
                }
            }
            request = requests.next() => {
                if let Some(call) = service.rail().call(request?, S::NAME) {
                    let (caller, size) = (call.caller.clone(), call.body.len());
                    dropping &= !queues.is_empty();
                    if queues.push(caller, call, size) > 0 && !dropping {
                        dropping = true;
                        warn!("too many requests wait; dropping the newest of the caller with the most");
                    }
                }
            }
        }
    }
    while working.join_next().await.is_some() {}
    Ok(())
}

async fn next_with_room(
    requests: &mut Subscription,
    room: &Arc<Semaphore>,
) -> Result<(Message, OwnedSemaphorePermit), NatsError> {
    let permit = Arc::clone(room).acquire_owned().await.map_err(|_| NatsError::Closed)?;
    Ok((requests.next().await?, permit))
}

/// Parses an operation's arguments.
pub(crate) fn args<T: DeserializeOwned>(args: Value) -> Result<T, Reply> {
    serde_json::from_value(args)
        .map_err(|e| Reply::refused(Code::Invalid, format!("the arguments cannot be parsed: {e}")))
}

/// The reply of a success.
pub(crate) fn done(result: &impl Serialize) -> Reply {
    match serde_json::to_value(result) {
        Ok(result) => Reply::done(result),
        Err(e) => Reply::refused(Code::Unavailable, format!("the result has no JSON form: {e}")),
    }
}

/// The refusal of an operation that a service does not have.
pub(crate) fn unknown(op: &str, service: &str) -> Reply {
    let op: String = op.chars().take(64).collect();
    Reply::refused(Code::UnknownOp, format!("{service} has no operation {op:?}"))
}
