//! Joining and leaving, in two halves that are never confused (AGT-2, MEM-8).
//!
//! The live half is a subscription that the broker grants. The durable half is a membership that
//! the daemon keeps. The first never waits for the second.

use std::fmt;

use cotal_nats::NatsError;
use cotal_wire::Channel;
use cotal_wire::control::{Code, LeaveArgs, Left as LeftReply, MembershipItem, Memberships, op};
use cotal_wire::rows::DeliveryClass;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::backstop::{Backstop, Shortfall};
use crate::control::{ControlError, Liveness};
use crate::endpoint::Endpoint;
use crate::history::{HistoryError, HistoryRead};
use crate::incoming::Incoming;
use crate::live::LivePump;
use crate::pending_joins;
use crate::settings::{self, Replay, Settings};

/// The live half of a join.
#[derive(Debug)]
pub enum Live {
    /// Posts are surfaced as they are made.
    Active,
    /// The broker forbids this credential to read the channel, or the subscription failed
    /// otherwise.
    Refused(NatsError),
}

/// What a join established.
#[derive(Debug)]
pub struct JoinState {
    /// The channel.
    pub channel: Channel,
    /// The live half.
    pub live: Live,
    /// The durable half.
    pub backstop: Backstop,
    /// What the channel's config asks of its members.
    pub instructions: Option<String>,
    /// The history that the channel's config shows to whoever joins. [`Endpoint::next`] hands it
    /// out, or, with [`EndpointOptions::backfill`](crate::EndpointOptions::backfill) off,
    /// [`Endpoint::history`] reads it.
    pub replay: Replay,
}

impl fmt::Display for JoinState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channel = &self.channel;
        match (&self.live, &self.backstop) {
            (Live::Active, Backstop::Durable { generation }) => {
                write!(f, "{channel}: joined durable (generation {generation}) and live")
            }
            (Live::Active, Backstop::Unestablished(why)) => {
                write!(f, "{channel}: joined live with the durable backstop unestablished: {why}")
            }
            (Live::Active, Backstop::NotDurable) => {
                write!(f, "{channel}: joined live; the channel is live, only mentions are kept")
            }
            (Live::Refused(error), Backstop::Durable { generation }) => {
                write!(
                    f,
                    "{channel}: joined durable (generation {generation}), not live: {}",
                    unread(error)
                )
            }
            (Live::Refused(error), Backstop::Unestablished(why)) => {
                write!(f, "{channel}: not joined: {}; nor durable: {why}", unread(error))
            }
            (Live::Refused(error), Backstop::NotDurable) => {
                write!(f, "{channel}: not joined: {}", unread(error))
            }
        }
    }
}

/// Why the live half is missing, without the names of the wire where the reason is plain.
fn unread(error: &NatsError) -> String {
    if error.is_denied() {
        return "the agent may not read it".to_owned();
    }
    error.to_string()
}

/// The durable half of a leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Departure {
    /// Nothing posted from now on is kept.
    Durable {
        /// The generation that was left.
        generation: u64,
    },
    /// There was no durable membership.
    NotMember,
    /// The membership stands, for this reason.
    Standing(Shortfall),
}

/// What a leave ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaveState {
    /// The channel.
    pub channel: Channel,
    /// Whether this endpoint was subscribed; it is not any more.
    pub was_live: bool,
    /// The durable half.
    pub durable: Departure,
}

impl fmt::Display for LeaveState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channel = &self.channel;
        match (&self.durable, self.was_live) {
            (Departure::Durable { generation }, _) => {
                write!(f, "{channel}: left (generation {generation})")
            }
            (Departure::NotMember, true) => write!(f, "{channel}: left; it was joined live only"),
            (Departure::NotMember, false) => write!(f, "{channel}: was not joined"),
            (Departure::Standing(why), _) => {
                write!(f, "{channel}: the durable membership still stands: {why}")
            }
        }
    }
}

impl Endpoint {
    /// Joins a channel: subscribes live, shows the history its config asks for, and asks the daemon
    /// for the durable backstop. Never fails as a whole: each half says how far it came.
    ///
    /// A backstop that is missing for a reason that passes ([`Shortfall::is_retried`]) is asked for
    /// again until it stands, the channel is left, or the endpoint is closed; a
    /// [`Notice`](crate::Notice) says what came of it. What was posted until then has come live
    /// only.
    pub async fn join(&self, channel: &Channel) -> JoinState {
        let live = self.listen(channel).await;
        let settings = settings::read(self.connection(), self.space(), channel).await;
        let (instructions, replay) = settings.as_ref().map_or_else(
            |_| (None, Replay::Off),
            |settings| (settings.instructions.clone(), settings.replay.clone()),
        );
        if matches!(live, Live::Active) && self.backfills() {
            self.backfill(channel, replay.clone()).await;
        }
        let backstop = match settings {
            Ok(Settings { class: DeliveryClass::Live, .. }) => self.unless_live(channel).await,
            // Without the config the daemon decides: it resolves the class itself.
            _ => self.unless_refused_as_live(channel).await,
        };
        match &backstop {
            Backstop::Unestablished(why) if why.is_retried() => {
                self.pending_joins().insert(channel);
            }
            _ => self.pending_joins().remove(channel),
        }
        JoinState { channel: channel.clone(), live, backstop, instructions, replay }
    }

    /// The durable half where the config that was read says *live*. A mirror of the configs lags by
    /// milliseconds, so a daemon that serves is asked: it reads them at their source.
    async fn unless_live(&self, channel: &Channel) -> Backstop {
        if !matches!(self.plane().liveness().await, Ok(Liveness::Bound)) {
            return Backstop::NotDurable;
        }
        match pending_joins::establish(self.plane(), self.sink(), channel).await {
            Backstop::Durable { generation } => Backstop::Durable { generation },
            Backstop::Unestablished(_) | Backstop::NotDurable => Backstop::NotDurable,
        }
    }

    /// The durable half where the config that was read says *durable*. The daemon may know better,
    /// and then the mirror does a moment later.
    async fn unless_refused_as_live(&self, channel: &Channel) -> Backstop {
        let backstop = pending_joins::establish(self.plane(), self.sink(), channel).await;
        let invalid = Some(Code::Invalid);
        match &backstop {
            Backstop::Unestablished(Shortfall::Refused { code, .. }) if *code == invalid => {
                let now = settings::read(self.connection(), self.space(), channel).await;
                match now {
                    Ok(Settings { class: DeliveryClass::Live, .. }) => Backstop::NotDurable,
                    _ => backstop,
                }
            }
            _ => backstop,
        }
    }

    /// The live half of a join alone. A subscription that stands already is left as it is.
    pub async fn listen(&self, channel: &Channel) -> Live {
        let mut live = self.live().lock().await;
        if live.get(channel).is_some_and(|token| !token.is_cancelled()) {
            return Live::Active;
        }
        let subject = self.space().chat_channel(&channel.into());
        let subscription = match self.connection().subscribe(subject, None).await {
            Ok(subscription) => subscription,
            Err(error) => return Live::Refused(error),
        };
        let token = self.stop_token().child_token();
        let pump = LivePump {
            channel: channel.clone(),
            space: self.space().clone(),
            subscription,
            sink: self.sink().clone(),
            token: token.clone(),
        };
        self.tasks().spawn(pump.run());
        live.insert(channel.clone(), token);
        Live::Active
    }

    /// The history is read beside everything else: a join does not wait for it.
    async fn backfill(&self, channel: &Channel, replay: Replay) {
        if replay == Replay::Off {
            return;
        }
        let token = match self.live().lock().await.get(channel) {
            Some(token) => token.child_token(),
            None => CancellationToken::new(),
        };
        self.tasks().spawn(self.history_read(channel, replay, token).run());
    }

    /// Hands what `replay` asks for of a channel's history to `each`, the oldest post first, also
    /// the agent's own. Nothing of it is to be acked.
    ///
    /// # Errors
    /// When the broker denies it, is not reached, or stops answering; what was read until then has
    /// been handed over.
    pub async fn history(
        &self,
        channel: &Channel,
        replay: Replay,
        each: impl FnMut(Incoming),
    ) -> Result<(), HistoryError> {
        self.history_read(channel, replay, CancellationToken::new()).tell(each).await
    }

    fn history_read(
        &self,
        channel: &Channel,
        replay: Replay,
        token: CancellationToken,
    ) -> HistoryRead {
        HistoryRead {
            channel: channel.clone(),
            replay,
            connection: self.connection().clone(),
            space: self.space().clone(),
            own: self.identity().lifecycle.clone(),
            sink: self.sink().clone(),
            token,
            turn: self.history_turn(),
        }
    }

    /// Leaves a channel: ends the live subscription, and the durable membership if there is one.
    pub async fn leave(&self, channel: &Channel) -> LeaveState {
        self.pending_joins().remove(channel);
        let token = self.live().lock().await.remove(channel);
        let was_live = token.is_some_and(|token| {
            let running = !token.is_cancelled();
            token.cancel();
            running
        });
        let durable = match self.leave_durable(channel).await {
            Ok(left) => left,
            Err(error) => Departure::Standing(error.into()),
        };
        LeaveState { channel: channel.clone(), was_live, durable }
    }

    async fn leave_durable(&self, channel: &Channel) -> Result<Departure, ControlError> {
        let memberships = self.memberships().await?;
        let Some(item) = memberships.iter().find(|item| item.channel == *channel) else {
            return Ok(Departure::NotMember);
        };
        let generation = item.generation;
        let args = LeaveArgs {
            channel: channel.clone(),
            generation,
            lifecycle_uid: Some(self.identity().lifecycle.uid),
        };
        let left: LeftReply = self.control(op::DURABLE_LEAVE, &args).await?;
        self.sink().backed().remove(channel);
        Ok(match left.already_left {
            Some(true) => Departure::NotMember,
            _ => Departure::Durable { generation },
        })
    }

    /// The agent's durable memberships.
    ///
    /// # Errors
    /// As any control request.
    pub async fn memberships(&self) -> Result<Vec<MembershipItem>, ControlError> {
        let listed: Memberships = self.control(op::LIST_MEMBERSHIPS, &json!({})).await?;
        let backed = listed.memberships.iter().filter(|item| item.activated);
        *self.sink().backed() = backed.map(|item| item.channel.clone()).collect();
        Ok(listed.memberships)
    }

    /// Whether a delivery daemon serves the space, as its own responder says.
    ///
    /// # Errors
    /// Only when the broker forbids the probe; everything else is an answer.
    pub async fn liveness(&self) -> Result<Liveness, ControlError> {
        self.plane().liveness().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cotal_nats::Operation;
    use cotal_wire::control::Code;

    use super::*;

    fn state(live: Live, backstop: Backstop) -> String {
        let channel = Channel::parse("team.backend").unwrap();
        let (instructions, replay) = (None, Replay::Off);
        JoinState { channel, live, backstop, instructions, replay }.to_string()
    }

    #[test]
    fn mem_8_a_missing_backstop_is_never_reported_as_joined_durable() {
        let shortfalls = [
            Shortfall::NoDaemon,
            Shortfall::Silent { after: Duration::from_secs(20) },
            Shortfall::Denied { operation: Operation::Publish, subject: "s".into() },
            Shortfall::Evicted,
            Shortfall::Superseded,
            Shortfall::Refused { code: Some(Code::Retired), message: "ended".into() },
            Shortfall::ConnectionLost,
            Shortfall::Stopped,
            Shortfall::Failed("x".into()),
        ];
        for shortfall in shortfalls {
            let why = shortfall.to_string();
            let said = state(Live::Active, Backstop::Unestablished(shortfall));
            assert!(said.contains("joined live with the durable backstop unestablished"), "{said}");
            assert!(said.ends_with(&why) && !said.contains("joined durable"), "{said}");
        }
        let said = state(Live::Active, Backstop::Durable { generation: 2 });
        assert!(said.contains("joined durable (generation 2)"), "{said}");
        let said = state(Live::Active, Backstop::NotDurable);
        assert!(!said.contains("joined durable") && !said.contains("unestablished"), "{said}");
    }
}
