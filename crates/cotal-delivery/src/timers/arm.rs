//! Arms one timer: a write on the condition that the broker still holds what the decision was made
//! from.

use std::time::Duration;

use cotal_nats::{
    Connection, Get, HeaderMap, HeaderName, HeaderValue, NatsError, StoredMessage, headers,
};
use cotal_rules::timers::{Arm, Decision, Record, Request};
use cotal_wire::timers::{Held, SCHEDULE_HEADER, SCHEDULE_TARGET_HEADER};
use cotal_wire::{Space, Timer};
use tokio_util::sync::CancellationToken;

use crate::lease::gate::Gate;

/// Attempts in a row, if the timer changes in between or the broker does not answer.
const WRITE_ATTEMPTS: usize = 8;
/// How long each further attempt waits for the connection or a restarting broker.
const BACK_WITHIN: Duration = Duration::from_millis(500);
/// Most messages of one timer that are read if the newest is not the timer writer's. More than a
/// few can only be somebody else's garbage.
const MAX_HELD_REQUESTS: usize = 1_000;

/// The outcome of a request that may arm a timer.
#[derive(Debug)]
pub(super) enum ArmOutcome {
    /// The broker has confirmed its schedule.
    Armed,
    /// The same generation is armed, or has fired.
    Stands,
    /// A later generation is armed, or has fired.
    Superseded,
}

/// Arms the timer of `request`, unless the broker shows that this is not needed.
pub(super) async fn arm(
    space: &Space,
    connection: &Connection,
    gate: &Gate,
    request: &Request,
    stop: &CancellationToken,
) -> Result<ArmOutcome, NatsError> {
    // Most timers are new, and the conditional write itself proves that.
    let mut record = Ok(Record::default());
    let mut attempts = 0;
    loop {
        attempts += 1;
        let outcome = match &record {
            Ok(record) => match request.decide(space, record) {
                Decision::Stands => return Ok(ArmOutcome::Stands),
                Decision::Superseded(_) => return Ok(ArmOutcome::Superseded),
                Decision::Arm(_) if !gate.is_open() => {
                    return Err(NatsError::Withheld { what: "a schedule".to_owned() });
                }
                Decision::Arm(arm) => publish(connection, request, &arm).await,
            },
            Err(error) => Err(NatsError::clone(error)),
        };
        let error = match outcome {
            Ok(()) => return Ok(ArmOutcome::Armed),
            Err(error) => error,
        };
        let may_pass = error.is_transient() || error.is_conflict();
        if !may_pass || attempts == WRITE_ATTEMPTS || stop.is_cancelled() {
            return Err(error);
        }
        if !error.is_conflict() {
            tokio::time::sleep(BACK_WITHIN).await;
            // The next attempt shows whether it is back.
            let _ = connection.connected(BACK_WITHIN).await;
        }
        // An unanswered write may have been stored, so the timer is read in either case.
        record = read(space, connection, &request.timer).await;
    }
}

async fn publish(connection: &Connection, request: &Request, arm: &Arm) -> Result<(), NatsError> {
    let mut map = HeaderMap::new();
    let mut set = |name, value: HeaderValue| map.insert(HeaderName::from_static(name), value);
    set(SCHEDULE_HEADER, arm.schedule.as_str().into());
    set(SCHEDULE_TARGET_HEADER, arm.target.as_str().into());
    set(headers::EXPECTED_LAST_SUBJECT_SEQ, arm.last_seq.into());
    set(headers::EXPECTED_LAST_SUBJECT_SEQ_OF, arm.guarded.as_str().into());
    let body = serde_json::to_vec(&request.body)
        .map_err(|e| NatsError::Malformed { what: "timer".to_owned(), detail: e.to_string() })?;
    connection.publish_confirmed(arm.subject.clone(), Some(map), body.into(), None).await?;
    Ok(())
}

/// What the broker holds of a timer, read from the leader.
async fn read(space: &Space, connection: &Connection, timer: &Timer) -> Result<Record, NatsError> {
    let (stream, all) = (space.ept_stream(), space.ept_of(timer));
    let mut record = Record::default();
    let Some(last) = connection.get_message(&stream, Get::LastBySubject(&all)).await? else {
        return Ok(record);
    };
    if record.note(space, timer, &held(&last)) {
        return Ok(record);
    }
    let mut record = Record::default();
    let mut next = 1;
    for _ in 0..MAX_HELD_REQUESTS {
        let get = Get::NextBySubject { seq: next, subject: &all };
        let Some(message) = connection.get_message(&stream, get).await? else { break };
        next = message.seq + 1;
        record.note(space, timer, &held(&message));
    }
    Ok(record)
}

fn held(message: &StoredMessage) -> Held<'_> {
    let header = |name| headers::get(message.headers.as_ref(), name);
    Held::new(&message.subject, message.seq, header, &message.payload)
}
