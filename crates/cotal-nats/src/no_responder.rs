//! Patience with a broker that answers for nobody for a moment.

use std::time::Duration;

use crate::error::NatsError;

/// How often a call that nobody answers is made again, with a pause that grows up to [`PAUSE`].
const ATTEMPTS: u32 = 30;
/// The longest pause between two such calls.
const PAUSE: Duration = Duration::from_millis(100);
/// The shortest.
const SHORT_PAUSE: Duration = Duration::from_millis(5);

/// Makes a call again while nobody answers it: a push of the account's claims takes its JetStream
/// API away for a moment, and every revocation makes one. It gives up after about 3 s.
///
/// # Errors
/// What the call gives that is not [`NatsError::NoResponders`], or that at the last attempt.
pub async fn retry_without_responder<T, F>(call: impl Fn() -> F) -> Result<T, NatsError>
where
    F: Future<Output = Result<T, NatsError>>,
{
    let mut pause = SHORT_PAUSE;
    for _ in 1..ATTEMPTS {
        match call().await {
            Err(NatsError::NoResponders { .. }) => tokio::time::sleep(pause).await,
            answer => return answer,
        }
        pause = PAUSE.min(pause * 2);
    }
    call().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_that_nobody_answers_for_a_moment_is_made_again() {
        let calls = std::cell::Cell::new(0);
        let silent = || NatsError::NoResponders { subject: "x".to_owned() };
        let call = || async {
            calls.set(calls.get() + 1);
            if calls.get() < 4 { Err(silent()) } else { Ok(calls.get()) }
        };
        assert_eq!(retry_without_responder(call).await.expect("an answer"), 4);
        let other = retry_without_responder(|| async { Err::<(), _>(NatsError::Closed) }).await;
        assert!(matches!(other, Err(NatsError::Closed)));
    }
}
