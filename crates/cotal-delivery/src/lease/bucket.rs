//! The operations on the lease bucket, and the translation of its answers for the rules.

use std::time::Duration;

use cotal_nats::{Bucket as Kv, Entry, NatsError, to_json};
use cotal_rules::lease::{Effect, Failure, Found, Input, Reading};
use cotal_wire::Space;
use cotal_wire::names::LEASE_KEY;
use cotal_wire::rows::LeaseRow;
use tracing::error;

/// What is known of the bucket before the claim.
pub(crate) struct LeaseBucket {
    /// How long the gate may be open after a write.
    pub(crate) ttl: Duration,
    /// When it was created.
    pub(crate) created: String,
}

impl LeaseBucket {
    /// Reads how long the broker keeps a row. The shorter of that and `most` is used, because the
    /// row may expire then.
    pub(crate) async fn read(kv: &Kv, most: Duration) -> Result<Self, NatsError> {
        let info = kv.connection().stream_info(kv.stream()).await?;
        let keeps = Duration::from_nanos(info.config.max_age.max(0).unsigned_abs());
        let ttl = if keeps.is_zero() { most } else { keeps.min(most) };
        Ok(Self { ttl, created: info.created })
    }
}

/// Performs one bucket operation; returns its answer for the rules, and the error if it failed.
pub(super) async fn perform(kv: Kv, operation: Effect) -> (Input, Option<NatsError>) {
    let written = match operation {
        Effect::Create(row) => match to_json(&row) {
            Ok(value) => kv.create(LEASE_KEY, value).await,
            Err(error) => Err(error),
        },
        Effect::Update { row, revision } => match to_json(&row) {
            Ok(value) => kv.update(LEASE_KEY, value, revision).await,
            Err(error) => Err(error),
        },
        Effect::Delete { revision } => kv.delete(LEASE_KEY, Some(revision)).await,
        Effect::Read => {
            let (read, failed) = answer(read(&kv).await);
            return (Input::Read(read), failed);
        }
        Effect::Serve | Effect::StopServing | Effect::Exit(_) => return (Input::Tick, None),
    };
    let (written, failed) = answer(written);
    (Input::Written(written), failed)
}

/// Reads the bucket's creation time first. A row that is read afterwards belongs to that bucket, or
/// to a later one, whose row then has a lower revision.
async fn read(kv: &Kv) -> Result<Reading, NatsError> {
    let created = kv.connection().stream_info(kv.stream()).await?.created;
    let entry = kv.get(LEASE_KEY).await?;
    let found = match entry.as_ref().map(|entry| (entry, Entry::live(entry))) {
        None => Found::Absent { revision: 0 },
        Some((entry, None)) => Found::Absent { revision: entry.revision },
        Some((entry, Some(value))) => match LeaseRow::parse(value) {
            Ok(row) => Found::Row { row, revision: entry.revision },
            Err(_) => Found::Garbled { revision: entry.revision },
        },
    };
    Ok(Reading { found, created })
}

/// Parses a value from the watch.
pub(super) fn found(value: &[u8], revision: u64, space: &Space) -> Found {
    match LeaseRow::parse(value) {
        Ok(row) => Found::Row { row, revision },
        Err(why) => {
            error!(%space, revision, %why, "the lease row is garbled: somebody tampered with it");
            Found::Garbled { revision }
        }
    }
}

/// The failure as the rules name it.
pub(crate) fn failure(error: &NatsError) -> Failure {
    match error {
        NatsError::Conflict { .. } => Failure::Conflict,
        NatsError::Denied { .. } => Failure::Denied(error.to_string()),
        NatsError::NoResponders { .. } => Failure::NoResponders(error.to_string()),
        NatsError::Timeout { .. } | NatsError::Disconnected { .. } => Failure::Unanswered,
        other => Failure::Refused(other.to_string()),
    }
}

fn answer<T>(outcome: Result<T, NatsError>) -> (Result<T, Failure>, Option<NatsError>) {
    match outcome {
        Ok(value) => (Ok(value), None),
        Err(error) => (Err(failure(&error)), Some(error)),
    }
}

#[cfg(test)]
mod tests {
    use cotal_nats::Operation;

    use super::*;

    #[test]
    fn lse_4_each_answer_of_the_broker_keeps_its_kind() {
        let text = || "x".to_owned();
        let denied = NatsError::Denied { operation: Operation::Publish, subject: text() };
        let conflict = NatsError::Conflict { what: text(), description: text(), err_code: 10_071 };
        let full = NatsError::Refused {
            what: text(),
            description: "insufficient storage resources available".to_owned(),
            code: 500,
            err_code: 10_047,
        };
        let silent = NatsError::Timeout { what: text(), after: Duration::from_secs(5) };
        let cut = NatsError::Disconnected { what: text() };
        let nobody = NatsError::NoResponders { subject: text() };
        assert_eq!(
            failure(&denied),
            Failure::Denied(
                "denied: the broker forbids this credential to publish to x".to_owned(),
            )
        );
        assert_eq!(failure(&conflict), Failure::Conflict);
        assert!(matches!(failure(&full), Failure::Refused(said) if said.contains("insufficient")));
        assert_eq!(failure(&silent), Failure::Unanswered);
        assert_eq!(failure(&cut), Failure::Unanswered);
        assert_eq!(failure(&nobody), Failure::NoResponders("nobody answers on x".to_owned()));
    }
}
