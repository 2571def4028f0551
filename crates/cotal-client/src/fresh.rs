//! What the machine gives anew each time: random ids and the time.

use std::time::{SystemTime, UNIX_EPOCH};

use cotal_nats::NatsError;

/// 128 random bits in hex: a message's id, or the nonce of a reply subject.
pub(crate) fn random_id() -> Result<String, NatsError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|e| NatsError::Malformed {
        what: "kernel randomness".to_owned(),
        detail: e.to_string(),
    })?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Unix milliseconds.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_128_bits_and_do_not_repeat() {
        let (a, b) = (random_id().unwrap(), random_id().unwrap());
        assert_eq!((a.len(), b.len()), (32, 32));
        assert_ne!(a, b);
    }
}
