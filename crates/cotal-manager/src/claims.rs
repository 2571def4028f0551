//! Account JWTs, pushed to the broker's directory resolver while it runs.

use std::time::Duration;

use cotal_nats::{Bytes, Connection, NatsError};
use cotal_wire::names::SYS_CLAIMS_UPDATE;
use serde::Deserialize;

/// A push takes a millisecond; a broker that is starting up may need longer.
const WITHIN: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct Answer {
    data: Option<ResolverAnswer>,
    error: Option<ResolverAnswer>,
}

#[derive(Deserialize)]
struct ResolverAnswer {
    #[serde(default)]
    code: u16,
    #[serde(default, alias = "description")]
    message: String,
}

/// Pushes a JWT and demands the resolver's own confirmation.
pub(crate) async fn push(connection: &Connection, jwt: &str) -> Result<(), NatsError> {
    let payload = Bytes::from(jwt.to_owned());
    let reply = connection.request(SYS_CLAIMS_UPDATE, None, payload, Some(WITHIN)).await?;
    judge(&reply.payload)
}

fn judge(reply: &[u8]) -> Result<(), NatsError> {
    let answer: Answer = serde_json::from_slice(reply).map_err(|e| NatsError::Malformed {
        what: "the resolver's answer".to_owned(),
        detail: e.to_string(),
    })?;
    match answer {
        Answer { data: Some(done), error: None } if done.code == 200 => Ok(()),
        Answer { data, error } => {
            let verdict = error.or(data);
            let (code, description) =
                verdict.map_or((0, "no verdict".to_owned()), |v| (v.code, v.message));
            Err(NatsError::Refused {
                what: SYS_CLAIMS_UPDATE.to_owned(),
                code,
                err_code: 0,
                description,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_resolvers_own_confirmation_counts() {
        assert!(
            judge(br#"{"server":{},"data":{"account":"A","code":200,"message":"jwt updated"}}"#)
                .is_ok()
        );
        for refused in [
            &br#"{"server":{},"error":{"code":500,"description":"jwt update failed"}}"#[..],
            br#"{"data":{"code":400,"message":"x"}}"#,
            br#"{}"#,
        ] {
            assert!(matches!(judge(refused), Err(NatsError::Refused { .. })));
        }
        assert!(matches!(judge(b"+OK"), Err(NatsError::Malformed { .. })));
    }
}
