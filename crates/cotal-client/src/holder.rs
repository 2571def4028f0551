//! Working off the requests of a role (ANY-1, ANY-5, ANY-8).
//!
//! Invariants: a request is shown only after the daemon recorded its take under the creation time
//! of the stream that its copy came from; a copy of a stream that is gone is given back; and a copy
//! whose take was refused is forgotten without an answer, because it may be another holder's by
//! now.

use std::time::Duration;

use cotal_nats::{Bytes, Delivery, NatsError, PullConsumer, PullError, PullOptions};
use cotal_wire::anycast::{Created, NotTaken, TakeArgs, TakeRefusal};
use cotal_wire::control::Code;
use cotal_wire::envelope::Message;
use cotal_wire::{Principal, Role};

use crate::control::{ControlError, Liveness};
use crate::copy::{self, Rejected};
use crate::daemon_rails::DaemonRails;
use crate::endpoint::Endpoint;
use crate::incoming::AckError;
use crate::notice::{NoTakes, Notice};
use crate::sink::answered;

/// Only bounds how long an idle pull keeps one future.
const PULL_WAIT: Duration = Duration::from_secs(30);
/// Between attempts while takes cannot be recorded.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The credential has no role, so there are no requests to hold.
#[derive(Debug, thiserror::Error)]
#[error("{0} has no role: provision an agent with one to process requests")]
pub struct NoRole(pub Principal);

/// A request that this agent has taken. It ends with an answer for its sender
/// ([`complete`](Self::complete), [`fail`](Self::fail), [`give_back_with`](Self::give_back_with)),
/// or without ([`ack`](Self::ack), [`give_back`](Self::give_back)); dropped, it comes again to some
/// holder after the broker's ack wait of 60 s.
#[derive(Debug)]
pub struct RoleRequest {
    /// Its number on the task stream.
    pub seq: u64,
    /// Who asks, proven.
    pub sender: Principal,
    /// The role asked.
    pub role: Role,
    /// Which delivery of it this is, from 1.
    pub delivery: u64,
    /// The request.
    pub message: Message,
    /// Its own bytes.
    pub body: Bytes,
    copy: Delivery,
    /// The creation time of the stream that it was taken from.
    pub(crate) created: String,
    pub(crate) plane: DaemonRails,
}

impl RoleRequest {
    /// The text parts, one a line.
    #[must_use]
    pub fn text(&self) -> String {
        self.message.text()
    }

    /// Still at it: the ack wait begins anew, so that the request does not move to another holder.
    /// Say so well within 60 s.
    ///
    /// # Errors
    /// When the connection did not take it.
    pub async fn progress(&self) -> Result<(), AckError> {
        self.copy.progress().await.map_err(AckError::Nats)
    }

    /// Done: the request leaves the queue, and the broker has confirmed so.
    ///
    /// # Errors
    /// When the broker did not confirm; the request may come again.
    pub async fn ack(self) -> Result<(), AckError> {
        self.copy.ack_confirmed().await.map_err(AckError::Nats)
    }

    /// Not done: some holder gets it again, at once or after `delay`.
    ///
    /// # Errors
    /// When the connection did not take it; the request comes again after the ack wait.
    pub async fn give_back(self, delay: Option<Duration>) -> Result<(), AckError> {
        self.copy.nak(delay).await.map_err(AckError::Nats)
    }
}

/// Binds the role's consumer, and hands out its requests one by one.
#[derive(Debug)]
pub struct Holder {
    endpoint: Endpoint,
    role: Role,
    bound: Option<Bound>,
    /// A copy whose take is under way; kept here so that a cancelled call loses nothing.
    copy: Option<Delivery>,
    /// What was last found in the way of takes, and told.
    told: Option<NoTakes>,
    /// Whether the last copy was given back because its stream was created anew.
    recreated: bool,
}

/// A consumer of one incarnation of the task stream. The creation time is read before anything is
/// pulled: read later, it could be that of a stream which the copy is not from.
#[derive(Debug)]
struct Bound {
    pull: PullConsumer,
    created: String,
}

/// What is to be done with a copy.
#[derive(Debug)]
enum Readiness {
    Show(Box<(Principal, Message)>),
    /// It is no request; nobody takes it.
    Garbage(Rejected),
    /// Its stream is gone: the broker is to deliver what it has now.
    Recreated,
    /// It is somebody else's, or nobody's any more.
    Forget,
    /// No take can be recorded at the moment.
    Wait(NoTakes),
    /// The connection is down; what becomes of the copy shows when it is back.
    Again,
    Stopped,
}

impl Endpoint {
    /// The holder of this agent's role. What keeps it from taking requests is told as
    /// [`Notice::RequestsWait`], which [`next`](Self::next) hands out.
    ///
    /// # Errors
    /// When the credential has no role.
    pub fn holder(&self) -> Result<Holder, NoRole> {
        let role = self.identity().role.clone();
        let role = role.ok_or_else(|| NoRole(self.principal().clone()))?;
        Ok(Holder {
            endpoint: self.clone(),
            role,
            bound: None,
            copy: None,
            told: None,
            recreated: false,
        })
    }
}

impl Holder {
    /// The role.
    #[must_use]
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// The next request, taken; `None` once the endpoint is closed. Nothing is pulled ahead, so a
    /// request that this holder is not ready for stays free for others. Cancel-safe.
    pub async fn next(&mut self) -> Option<RoleRequest> {
        let stop = self.endpoint.stop_token().clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            request = self.taken() => request,
        }
    }

    /// Gives back what was pulled and not shown.
    pub async fn close(mut self) {
        if let Some(copy) = self.copy.take() {
            answered(copy.nak(None).await);
        }
        self.unbind().await;
    }

    async fn taken(&mut self) -> Option<RoleRequest> {
        loop {
            if !self.pulled().await {
                continue;
            }
            let verdict = match (&self.copy, &self.bound) {
                (Some(copy), Some(bound)) => self.judge(copy, &bound.created).await,
                _ => continue,
            };
            let Some(copy) = self.copy.take() else { continue };
            let again =
                std::mem::replace(&mut self.recreated, matches!(verdict, Readiness::Recreated));
            match verdict {
                Readiness::Show(request) => {
                    self.served();
                    let (sender, message) = *request;
                    let created = self.bound.as_ref().map(|bound| bound.created.clone());
                    return Some(self.shown(copy, created.unwrap_or_default(), sender, message));
                }
                Readiness::Garbage(why) => self.refuse(copy, &why).await,
                Readiness::Recreated => {
                    answered(copy.nak(None).await);
                    self.unbind().await;
                    if again {
                        tokio::time::sleep(RETRY_AFTER).await;
                    }
                }
                Readiness::Forget => self.served(),
                Readiness::Wait(why) => {
                    // Some time passes before a holder gets it again, or all would pass it round in
                    // a hot loop.
                    answered(copy.nak(Some(RETRY_AFTER)).await);
                    self.waits(why).await;
                }
                Readiness::Again => {
                    self.copy = Some(copy);
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                Readiness::Stopped => return None,
            }
        }
    }

    /// Makes sure that a copy is at hand; says whether one is.
    async fn pulled(&mut self) -> bool {
        if self.copy.is_some() {
            return true;
        }
        if let Some(bound) = &mut self.bound {
            match bound.pull.next_one(PULL_WAIT).await {
                Ok(copy) => self.copy = copy,
                Err(error) if error.is_fatal() => {
                    self.unbind().await;
                    self.waits(unreadable(error)).await;
                }
                Err(error) => tracing::debug!(%error, "pulling anew"),
            }
        } else if !self.endpoint.connection().is_connected() {
            // The endpoint has told that already.
            tokio::time::sleep(RETRY_AFTER).await;
        } else if let Err(why) = self.bind().await {
            self.waits(why).await;
        }
        self.copy.is_some()
    }

    /// Looks for a daemon first: without one a copy would only be handed round.
    async fn bind(&mut self) -> Result<(), NoTakes> {
        match self.endpoint.liveness().await {
            Ok(Liveness::Bound) => {}
            Ok(Liveness::Unbound | Liveness::Unknown) => return Err(NoTakes::NoDaemon),
            Err(_) => return Err(NoTakes::CredentialPredates),
        }
        if self.told == Some(NoTakes::NoDaemon) {
            self.served();
        }
        let space = self.endpoint.space();
        let (stream, consumer) = (space.task_stream(), space.svc_consumer(&self.role));
        let connection = self.endpoint.connection();
        let created = connection.stream_info(&stream).await.map_err(unreachable)?.created;
        let options = PullOptions { batch: 1, ..PullOptions::default() };
        let pull = PullConsumer::open(connection, &stream, &consumer, options).await;
        self.bound = Some(Bound { pull: pull.map_err(unreadable)?, created });
        Ok(())
    }

    /// Leaves the consumer; what had been pulled and not looked at goes back.
    async fn unbind(&mut self) {
        let Some(bound) = self.bound.take() else { return };
        for copy in bound.pull.end().await {
            answered(copy.nak(None).await);
        }
    }

    /// Asks for the take, then reads the creation time again: also before garbage is removed, which
    /// on a new stream would be a request.
    async fn judge(&self, copy: &Delivery, created: &str) -> Readiness {
        let space = self.endpoint.space();
        let verdict = match copy::request(space, &self.role, &copy.subject, &copy.payload) {
            Ok(request) => Readiness::Show(Box::new(request)),
            Err(why) => Readiness::Garbage(why),
        };
        let args = TakeArgs {
            seq: copy.stream_seq,
            stream_created: created.to_owned(),
            delivery: copy.delivered,
        };
        if matches!(verdict, Readiness::Show(_))
            && let Err(error) = self.endpoint.plane().take(&args).await
        {
            return self.refused(error).await;
        }
        match self.endpoint.connection().stream_info(&space.task_stream()).await {
            Ok(info) if Created::parse(&info.created) == Created::parse(created) => verdict,
            Ok(_) => Readiness::Recreated,
            Err(error) if error.is_absent() => Readiness::Recreated,
            Err(NatsError::Closed) => Readiness::Stopped,
            Err(NatsError::Disconnected { .. }) => Readiness::Again,
            Err(error) => Readiness::Wait(unreachable(error)),
        }
    }

    async fn refused(&self, error: ControlError) -> Readiness {
        match error {
            ControlError::Refused { data: Some(data), code, message } => {
                match serde_json::from_value::<NotTaken>(data) {
                    Ok(NotTaken { reason: TakeRefusal::Recreated }) => Readiness::Recreated,
                    Ok(NotTaken { reason }) => {
                        tracing::debug!(?reason, "a request is not for this holder any more");
                        Readiness::Forget
                    }
                    Err(_) => Readiness::Wait(refusal(code, message)),
                }
            }
            ControlError::Refused { code, message, data: None } => {
                Readiness::Wait(refusal(code, message))
            }
            ControlError::Denied { .. } => Readiness::Wait(NoTakes::CredentialPredates),
            ControlError::NoResponders { .. } => match self.endpoint.liveness().await {
                Ok(Liveness::Bound) => Readiness::Wait(NoTakes::DaemonPredates),
                _ => Readiness::Wait(NoTakes::NoDaemon),
            },
            ControlError::Timeout { .. } => Readiness::Wait(NoTakes::NoDaemon),
            ControlError::ConnectionLost => Readiness::Again,
            ControlError::Stopped => Readiness::Stopped,
            error @ (ControlError::Malformed(_) | ControlError::Nats(_)) => {
                Readiness::Wait(NoTakes::Refused(error.to_string()))
            }
        }
    }

    fn shown(
        &self,
        copy: Delivery,
        created: String,
        sender: Principal,
        message: Message,
    ) -> RoleRequest {
        RoleRequest {
            seq: copy.stream_seq,
            sender,
            role: self.role.clone(),
            delivery: copy.delivered,
            message,
            body: copy.payload.clone(),
            copy,
            created,
            plane: self.endpoint.plane().clone(),
        }
    }

    /// Garbage would come again for ever; it ends here, visibly.
    async fn refuse(&self, copy: Delivery, why: &Rejected) {
        let found_in = self.endpoint.space().svc_consumer(&self.role);
        self.endpoint.sink().notify(Notice::Rejected { found_in, reason: why.to_string() });
        answered(copy.term().await);
    }

    /// Tells what is in the way, once, and lets some time pass. A daemon that went is looked for
    /// anew.
    async fn waits(&mut self, why: NoTakes) {
        if self.told.as_ref() != Some(&why) {
            self.endpoint.sink().notify(Notice::RequestsWait {
                role: self.role.clone(),
                space: self.endpoint.space().clone(),
                why: why.clone(),
            });
            self.told = Some(why);
        }
        self.unbind().await;
        tokio::time::sleep(RETRY_AFTER).await;
    }

    fn served(&mut self) {
        if self.told.take().is_some() {
            self.endpoint.sink().notify(Notice::RequestsServed {
                role: self.role.clone(),
                space: self.endpoint.space().clone(),
            });
        }
    }
}

fn refusal(code: Option<Code>, message: String) -> NoTakes {
    match code {
        Some(Code::UnknownOp) => NoTakes::DaemonPredates,
        _ => NoTakes::Refused(message),
    }
}

/// A credential that may not ask about the task stream was minted before takes.
fn unreachable(error: NatsError) -> NoTakes {
    match error {
        NatsError::Denied { .. } => NoTakes::CredentialPredates,
        error => NoTakes::Refused(error.to_string()),
    }
}

fn unreadable(error: PullError) -> NoTakes {
    match error {
        PullError::Nats(error) => unreachable(error),
        error => NoTakes::Refused(error.to_string()),
    }
}
