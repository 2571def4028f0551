//! Whether a space's deliveries go on, asked of the daemon's consumers.
//!
//! Invariant: nothing is concluded from a daemon's own word. What waits and is given to nobody, a
//! pull that is nobody's of this space, a consumer that is gone or is not as the wire has it: each
//! is what the broker says. A consumer is looked at twice before it is said to give nothing.

use std::time::Duration;

use cotal_nats::js::ConsumerInfo;
use cotal_nats::{Connection, NatsError};
use cotal_wire::Space;
use cotal_wire::streams::ConsumerConfig;

/// Between two looks at a consumer on which something waits.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
/// A setting of a consumer that is pushed to somebody.
const DELIVER_SUBJECT: &str = "deliver_subject";
/// A setting of a consumer that gives no bodies.
const HEADERS_ONLY: &str = "headers_only";

/// What is wrong with the deliveries of a space; empty when nothing is. `is_served` is whether a
/// daemon says that it serves.
///
/// # Errors
/// When the broker does not say. The connection is an operator's.
pub async fn stalled(
    connection: &Connection,
    space: &Space,
    is_served: bool,
) -> Result<Vec<String>, NatsError> {
    let mut wrong = Vec::new();
    for (stream, want) in [
        (space.chat_stream(), space.fanout_config(None)),
        (space.inbox_stream(), space.reader_config()),
    ] {
        let name = format!("{} of {stream}", want.name);
        let first = match connection.consumer_info(&stream, &want.name).await {
            Ok(info) => info,
            Err(NatsError::Absent { .. }) => {
                wrong.push(format!("the consumer {name} is gone"));
                continue;
            }
            Err(error) => return Err(error),
        };
        wrong.extend(foreign(&first, &want).map(|how| format!("the consumer {name} {how}")));
        if !is_served && first.num_waiting > 0 {
            let pulls = first.num_waiting;
            wrong.push(format!(
                "{pulls} pulls wait at {name}, and no daemon serves: whose are they?"
            ));
        }
        if is_served && gives_nothing(&first) {
            tokio::time::sleep(LOOK_AGAIN).await;
            let second = connection.consumer_info(&stream, &want.name).await?;
            if gives_nothing(&second) && second.delivered == first.delivered {
                let waits = second.num_pending;
                wrong.push(format!("{waits} messages wait at {name}, and none is delivered"));
            }
        }
    }
    Ok(wrong)
}

/// Whether something waits and nothing is under way.
fn gives_nothing(info: &ConsumerInfo) -> bool {
    info.num_pending > 0 && info.num_ack_pending == 0
}

/// How a consumer differs from what the wire has, in what decides who gets what.
fn foreign(info: &ConsumerInfo, want: &ConsumerConfig) -> Option<String> {
    let have = &info.config;
    let pushed = have.rest.get(DELIVER_SUBJECT).and_then(|subject| subject.as_str());
    if let Some(to) = pushed.filter(|to| !to.is_empty()) {
        return Some(format!("is pushed to {to}, and not pulled by the daemon"));
    }
    if have.filter_subject != want.filter_subject {
        let has = have.filter_subject.as_deref().unwrap_or("nothing");
        return Some(format!("is filtered by {has}"));
    }
    if have.ack_policy != want.ack_policy {
        return Some(format!("has the ack policy {}", have.ack_policy));
    }
    if want.max_deliver.is_some_and(|most| most != have.max_deliver) {
        return Some(format!("gives a message up after {} deliveries", have.max_deliver));
    }
    let bodiless = have.rest.get(HEADERS_ONLY).and_then(|set| set.as_bool());
    (bodiless == Some(true)).then(|| "gives headers and no bodies".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn info(config: &Value, pending: u64, unanswered: u64) -> ConsumerInfo {
        let info = json!({
            "stream_name": "CHAT_main", "name": "fanout", "config": config,
            "delivered": {"consumer_seq": 1, "stream_seq": 1},
            "ack_floor": {"consumer_seq": 1, "stream_seq": 1},
            "num_pending": pending, "num_ack_pending": unanswered,
        });
        serde_json::from_value(info).unwrap()
    }

    #[test]
    fn each_foreign_setting_is_named_and_the_wires_own_is_none() {
        let space = Space::parse("main").unwrap();
        let want = space.fanout_config(None);
        let mut own = serde_json::to_value(&want).unwrap();
        own["ack_wait"] = json!(1_000_000_000);
        assert_eq!(
            foreign(&info(&own, 0, 0), &want),
            None,
            "a shorter ack wait is the daemon's own"
        );
        for (field, value, said) in [
            ("deliver_subject", json!("_INBOX.mallory"), "pushed to _INBOX.mallory"),
            ("filter_subject", json!("cotal.main.chat.*.*.team"), "filtered by"),
            ("ack_policy", json!("none"), "ack policy none"),
            ("max_deliver", json!(1), "after 1 deliveries"),
            ("headers_only", json!(true), "no bodies"),
        ] {
            let mut changed = own.clone();
            changed[field] = value;
            let found = foreign(&info(&changed, 0, 0), &want).unwrap_or_default();
            assert!(found.contains(said), "{field}: {found}");
        }
    }

    #[test]
    fn what_is_under_way_is_no_stall() {
        let config = json!({});
        assert!(gives_nothing(&info(&config, 3, 0)));
        assert!(!gives_nothing(&info(&config, 3, 1)) && !gives_nothing(&info(&config, 0, 0)));
    }
}
