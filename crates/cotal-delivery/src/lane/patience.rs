//! Asking the broker for what a start needs: a connection that drops meanwhile is waited for.

use std::time::Duration;

use cotal_nats::{Connection, NatsError};
use tokio::time::Instant;

/// Between two attempts while the connection stands.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Asks until there is an answer. What a drop took is asked again once the connection is back; how
/// long that is waited for, the lane's watchdog decides. A broker that is there and gives no answer
/// is asked for `within`.
///
/// # Errors
/// What the broker refused, or that it did not answer in time.
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
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

/// Whether a later attempt can succeed without anything else being changed; a broker that restarted
/// refuses with 503 until it has recovered its streams.
fn passes(error: &NatsError) -> bool {
    error.is_transient() || matches!(error, NatsError::Refused { code: 503, .. })
}
