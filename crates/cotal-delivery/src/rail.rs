//! The control rails: `ctl.delivery`, `ctl.delivery-admin` and the liveness probe.
//!
//! Invariant: the caller is the principal of the subject, never what a body says, and a reply goes
//! only below the request's own subject (ADM-5).

use std::sync::Arc;

use cotal_nats::{Bytes, Connection, Message, NatsError, Subscription};
use cotal_wire::control::{Code, JoinArgs, LeaveArgs, Plane, PlaneReply, Reply, Request, op};
use cotal_wire::names::{DELIVERY, DELIVERY_ADMIN, is_own_reply};
use cotal_wire::{Principal, Space};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::counters::Counters;
use crate::gate::Gate;
use crate::registry::{Registry, RegistryError};
use crate::view::View;

/// Requests of agents that are worked on at once; more wait in the subscription.
const AT_ONCE: usize = 64;

/// Everything the rails need.
pub(crate) struct Rails {
    pub(crate) space: Space,
    pub(crate) connection: Connection,
    pub(crate) gate: Gate,
    pub(crate) view: Arc<View>,
    pub(crate) registry: Registry,
    pub(crate) counters: Arc<Counters>,
    pub(crate) incarnation: String,
    pub(crate) since: i64,
}

/// The subscriptions of a lane; to have them is to be bound.
pub(crate) struct Bound {
    agents: Subscription,
    admin: Subscription,
    probe: Subscription,
}

impl Rails {
    /// Subscribes to every rail; the broker has confirmed each when this returns.
    pub(crate) async fn bind(&self) -> Result<Bound, NatsError> {
        let subscribe =
            |subject: String, queue: &'static str| self.connection.subscribe(subject, Some(queue));
        Ok(Bound {
            agents: subscribe(self.space.ctl_all(DELIVERY), DELIVERY).await?,
            admin: subscribe(self.space.ctl_all(DELIVERY_ADMIN), DELIVERY_ADMIN).await?,
            probe: subscribe(self.space.live_all(DELIVERY), DELIVERY).await?,
        })
    }

    /// Answers until told to stop; what is being worked on is finished.
    pub(crate) async fn run(self, bound: Bound, stop: CancellationToken) -> Result<(), NatsError> {
        let Bound {
            mut agents,
            mut admin,
            mut probe,
        } = bound;
        let rails = Arc::new(self);
        let resuming = tokio::spawn(Arc::clone(&rails).resume_joins(stop.clone()));
        let room = Arc::new(Semaphore::new(AT_ONCE));
        let mut working = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                request = probe.next() => rails.answer_probe(&request?).await,
                request = admin.next() => rails.answer_admin(&request?).await,
                Some(_) = working.join_next(), if !working.is_empty() => {}
                taken = next_with_room(&mut agents, &room) => {
                    let (request, permit) = taken?;
                    let rails = Arc::clone(&rails);
                    working.spawn(async move {
                        rails.answer_agent(&request).await;
                        drop(permit);
                    });
                }
            }
        }
        while working.join_next().await.is_some() {}
        if let Err(error) = resuming.await {
            warn!(space = %rails.space, %error, "resuming half-done joins failed");
        }
        Ok(())
    }

    /// Finishes the joins that a daemon before this one left half done.
    async fn resume_joins(self: Arc<Self>, stop: CancellationToken) {
        let half_joined = self.view.directory().half_joined();
        for (channel, member) in half_joined {
            let resumed = tokio::select! {
                () = stop.cancelled() => return,
                resumed = self.registry.resume(&channel, &member) => resumed,
            };
            if let Err(error) = resumed {
                warn!(space = %self.space, %error, "a half-done join waits for the member to join again");
            }
        }
    }

    async fn answer_probe(&self, request: &Message) {
        let Some((_, reply_to)) = self.caller(request, |s| self.space.parse_live(DELIVERY, s))
        else {
            return;
        };
        let state = if self.gate.is_open() {
            Plane::Bound
        } else {
            Plane::Unbound
        };
        self.send(reply_to, &PlaneReply { state }).await;
    }

    async fn answer_agent(&self, message: &Message) {
        let Some((caller, reply_to)) = self.caller(message, |s| self.space.parse_ctl(DELIVERY, s))
        else {
            return;
        };
        let reply = match self.read(message, &caller) {
            Ok(request) => self.perform(&caller, request).await,
            Err(refusal) => refusal,
        };
        self.send(reply_to, &reply).await;
    }

    async fn answer_admin(&self, message: &Message) {
        let Some((caller, reply_to)) =
            self.caller(message, |s| self.space.parse_ctl(DELIVERY_ADMIN, s))
        else {
            return;
        };
        let reply = match self.read(message, &caller) {
            Err(refusal) => refusal,
            Ok(request) if request.op == op::DELIVERY_STATUS => self.status(),
            Ok(request) => unknown(&request.op, DELIVERY_ADMIN),
        };
        self.send(reply_to, &reply).await;
    }

    fn status(&self) -> Reply {
        let garbled = self.view.directory().garbled();
        done(&self.counters.status(&self.incarnation, self.since, garbled))
    }

    /// The authenticated caller and where it listens; anything else is dropped without a word,
    /// because a reply could be aimed at somebody else.
    fn caller<'a>(
        &self,
        message: &'a Message,
        parse: impl Fn(&str) -> Option<Principal>,
    ) -> Option<(Principal, &'a str)> {
        let subject = message.subject.as_str();
        let caller = parse(subject).filter(Principal::has_real_owner);
        let reply = message.reply.as_ref().map(|reply| reply.as_str());
        match (caller, reply) {
            (Some(caller), Some(reply)) if is_own_reply(subject, reply) => Some((caller, reply)),
            _ => {
                debug!(space = %self.space, subject, reply, "a request without an own reply is dropped");
                None
            }
        }
    }

    fn read(&self, message: &Message, caller: &Principal) -> Result<Request, Reply> {
        let request =
            Request::parse(&message.payload).map_err(|e| Reply::refused(Code::Invalid, e))?;
        if request.from.id != caller.as_str() {
            let why = format!("the body says it is from another than {caller}, who sent it");
            return Err(Reply::refused(Code::Denied, why));
        }
        if self.gate.is_open() {
            Ok(request)
        } else {
            let why = "the daemon does not serve at the moment; try again";
            Err(Reply::refused(Code::NotReady, why))
        }
    }

    async fn perform(&self, caller: &Principal, request: Request) -> Reply {
        match request.op.as_str() {
            op::DURABLE_JOIN => match args::<JoinArgs>(request.args) {
                Ok(a) => reply(
                    self.registry
                        .join(caller, &a.channel, a.lifecycle_uid)
                        .await,
                ),
                Err(refusal) => refusal,
            },
            op::DURABLE_LEAVE => match args::<LeaveArgs>(request.args) {
                Ok(a) => {
                    let left =
                        self.registry
                            .leave(caller, &a.channel, a.generation, a.lifecycle_uid);
                    reply(left.await)
                }
                Err(refusal) => refusal,
            },
            op::LIST_MEMBERSHIPS => reply(self.registry.list(caller).await),
            other => unknown(other, DELIVERY),
        }
    }

    /// Sends a reply, or a refusal that gives its size when the broker would not take it (ADM-2).
    async fn send(&self, to: &str, reply: &impl Serialize) {
        let body = serde_json::to_vec(reply).unwrap_or_default();
        let size = body.len();
        let sent = self
            .connection
            .publish(to.to_owned(), None, Bytes::from(body))
            .await;
        let sent = match sent {
            Err(NatsError::TooLarge { max, .. }) => {
                let why = format!("the reply has {size} bytes, the broker takes at most {max}");
                let refusal = Reply::refused(Code::TooLarge, why);
                let body = serde_json::to_vec(&refusal).unwrap_or_default();
                self.connection
                    .publish(to.to_owned(), None, Bytes::from(body))
                    .await
            }
            other => other,
        };
        if let Err(error) = sent {
            warn!(space = %self.space, %error, "a reply could not be sent");
        }
    }
}

async fn next_with_room(
    agents: &mut Subscription,
    room: &Arc<Semaphore>,
) -> Result<(Message, tokio::sync::OwnedSemaphorePermit), NatsError> {
    let permit = Arc::clone(room)
        .acquire_owned()
        .await
        .map_err(|_| NatsError::Closed)?;
    Ok((agents.next().await?, permit))
}

fn args<T: DeserializeOwned>(args: Value) -> Result<T, Reply> {
    serde_json::from_value(args)
        .map_err(|e| Reply::refused(Code::Invalid, format!("the arguments do not read: {e}")))
}

fn done(result: &impl Serialize) -> Reply {
    Reply::done(serde_json::to_value(result).unwrap_or_default())
}

fn reply<T: Serialize>(outcome: Result<T, RegistryError>) -> Reply {
    match outcome {
        Ok(result) => done(&result),
        Err(error) => error.reply(),
    }
}

fn unknown(op: &str, service: &str) -> Reply {
    let op: String = op.chars().take(64).collect();
    Reply::refused(
        Code::UnknownOp,
        format!("{service} has no operation {op:?}"),
    )
}
