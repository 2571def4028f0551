//! Asks the broker for what a start needs, and waits while the connection is down.

use std::time::Duration;

use cotal_nats::{Connection, NatsError};
use tokio::time::Instant;

/// Between two attempts while the connection is up.
const ASK_RETRY_AFTER: Duration = Duration::from_millis(200);

/// Asks until there is an answer. After a drop it waits until the connection is back, and asks
/// again; the lane's watchdog decides how long. A connected broker that does not answer is asked
/// for `within` at most.
///
/// # Errors
/// The broker's refusal, or that it did not answer in time.
pub(crate) async fn ask<T, F>(
    connection: &Connection,
    within: Duration,
    call: impl Fn() -> F,
) -> Result<T, NatsError>
where
    F: Future<Output = Result<T, NatsError>>,
{
    let mut state = connection.state();
    let mut since = Instant::now();
    let mut drops = state.borrow().drops;
    loop {
        let error = match call().await {
            Err(error) if passes(&error) => error,
            answer => return answer,
        };
        if state.wait_for(|state| state.is_connected()).await.is_err() {
            return Err(error);
        }
        let dropped = state.borrow().drops;
        if std::mem::replace(&mut drops, dropped) != dropped {
            since = Instant::now();
        } else if since.elapsed() >= within {
            return Err(error);
        }
        tokio::time::sleep(ASK_RETRY_AFTER).await;
    }
}

/// Whether a later attempt can succeed although nothing else changes. A broker that has restarted
/// refuses with 503 until it has recovered its streams.
fn passes(error: &NatsError) -> bool {
    error.is_transient() || matches!(error, NatsError::Refused { code: 503, .. })
}
