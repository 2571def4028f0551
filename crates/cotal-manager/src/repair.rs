//! What of a stream's configuration the wire demands, and what must change for it to hold.
//!
//! Invariant: a setting that the wire leaves open (replicas, placement, caps that an operator
//! chose) is never touched, so a space that another provisioner made stays as it was made.

use cotal_wire::streams::StreamConfig;
use serde_json::{Map, Value, json};

/// One setting that is not as the wire demands.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingChange {
    /// The setting.
    pub field: &'static str,
    /// What it is.
    pub from: Value,
    /// What it must be.
    pub to: Value,
}

/// Settings that must be exactly the wire's.
const EXACT: [&str; 10] = [
    "subjects",
    "retention",
    "storage",
    "max_msgs_per_subject",
    "max_age",
    "discard",
    "discard_new_per_subject",
    "allow_direct",
    "allow_rollup_hdrs",
    "allow_msg_schedules",
];

/// Settings that the wire demands on some streams and leaves open on the others.
const WHERE_SET: [&str; 5] =
    ["allow_msg_ttl", "subject_delete_marker_ttl", "allow_batched", "allow_atomic", "deny_delete"];

/// The cap of a stream in bytes: a demand that a small broker may not have the room for.
pub(crate) const MAX_BYTES: &str = "max_bytes";

/// What must change so that `have`, the broker's configuration, is what `want` demands.
pub(crate) fn changes(have: &Map<String, Value>, want: &StreamConfig) -> Vec<SettingChange> {
    let schedules = want.allow_msg_schedules;
    let Ok(Value::Object(want)) = serde_json::to_value(want) else {
        return Vec::new();
    };
    let mut changes = Vec::new();
    let mut demand = |field: &'static str, wrong: bool| {
        if wrong {
            changes.push(SettingChange {
                field,
                from: have.get(field).cloned().unwrap_or(Value::Null),
                to: want.get(field).cloned().unwrap_or(Value::Null),
            });
        }
    };
    // The broker itself allows rollups where it schedules messages, whatever it was told.
    let is_open = |field| field == "allow_rollup_hdrs" && schedules;
    for field in EXACT {
        let differs = setting(have, field) != setting(&want, field);
        demand(field, differs && !is_open(field));
    }
    for field in WHERE_SET {
        let wanted = setting(&want, field);
        demand(field, wanted != default_of(field) && setting(have, field) != wanted);
    }
    let number = |map: &Map<String, Value>, field| map.get(field).and_then(Value::as_i64);
    // The broker's own default caps a space at 1,000 members; -1 means that default.
    demand("max_consumers", number(have, "max_consumers").unwrap_or(-1) <= 0);
    // A cap that an operator chose stands, whatever it is; none at all lets agents fill the disk.
    let bytes = |map| number(map, MAX_BYTES).unwrap_or(-1);
    demand(MAX_BYTES, bytes(have) <= 0 && bytes(&want) > 0);
    // Ids must be remembered at least as long as a retry may take.
    let (window, least) = (number(have, "duplicate_window"), number(&want, "duplicate_window"));
    demand("duplicate_window", window.unwrap_or(0) < least.unwrap_or(0));
    // A smaller message limit is as right, a larger one lets in posts that do not fit their entry.
    let (size, most) = (number(have, "max_msg_size"), number(&want, "max_msg_size"));
    let (size, most) = (size.unwrap_or(-1), most.unwrap_or(-1));
    demand("max_msg_size", most > 0 && (size <= 0 || size > most));
    changes
}

/// The configuration to send: the broker's own, with the changes in it.
pub(crate) fn repaired(have: &Map<String, Value>, changes: &[SettingChange]) -> Map<String, Value> {
    let mut repaired = have.clone();
    for change in changes {
        match &change.to {
            Value::Null => drop(repaired.remove(change.field)),
            to => drop(repaired.insert(change.field.to_owned(), to.clone())),
        }
    }
    repaired
}

/// A setting, where an absent one has its default.
fn setting(map: &Map<String, Value>, field: &str) -> Value {
    map.get(field).cloned().unwrap_or_else(|| default_of(field))
}

fn default_of(field: &str) -> Value {
    match field {
        "subjects" => json!([]),
        "max_msgs_per_subject" => json!(-1),
        "max_age" | "subject_delete_marker_ttl" => json!(0),
        "allow_direct"
        | "discard_new_per_subject"
        | "allow_rollup_hdrs"
        | "allow_msg_schedules"
        | "allow_msg_ttl"
        | "allow_batched"
        | "allow_atomic"
        | "deny_delete" => json!(false),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use cotal_wire::Space;
    use cotal_wire::names::Bucket;

    use super::*;

    fn object(config: &StreamConfig) -> Map<String, Value> {
        match serde_json::to_value(config).unwrap() {
            Value::Object(map) => map,
            other => panic!("{other}"),
        }
    }

    fn all() -> Vec<StreamConfig> {
        let space = Space::parse("s").unwrap();
        let mut all = space.stream_configs(1024 * 1024, true);
        all.extend(Bucket::ALL.map(|bucket| space.bucket_config(bucket)));
        all.extend(Bucket::MIRRORED.map(|bucket| space.mirror_config(bucket)));
        all.push(space.chat_mirror_config());
        all
    }

    #[test]
    fn what_was_provisioned_needs_no_change_also_as_the_broker_spells_it() {
        for want in all() {
            let mut have = object(&want);
            assert_eq!(changes(&have, &want), [], "{}", want.name);
            have.retain(|_, value| ![json!(false), json!(0), json!([])].contains(value));
            have.insert("placement".to_owned(), json!({}));
            assert_eq!(changes(&have, &want), [], "{}", want.name);
        }
    }

    #[test]
    fn each_demand_of_the_wire_is_seen_and_repaired_and_nothing_else_is_touched() {
        let space = Space::parse("s").unwrap();
        let configs = space.stream_configs(1024 * 1024, true);
        let (chat, inbox) = (&configs[0], &configs[3]);
        for (want, field, wrong) in [
            (chat, "subjects", json!(["x"])),
            (chat, "max_msgs_per_subject", json!(-1)),
            (chat, "allow_direct", json!(false)),
            (chat, "max_msg_size", json!(-1)),
            (chat, "max_msg_size", json!(1024 * 1024)),
            (chat, "max_consumers", json!(-1)),
            (inbox, "allow_direct", json!(true)),
            (inbox, "duplicate_window", json!(120_000_000_000_i64)),
            (inbox, "discard", json!("new")),
            (inbox, "allow_batched", json!(false)),
        ] {
            let mut have = object(want);
            have.insert(field.to_owned(), wrong);
            have.insert("num_replicas".to_owned(), json!(3));
            let changes = changes(&have, want);
            let fields: Vec<_> = changes.iter().map(|change| change.field).collect();
            assert_eq!(fields, [field]);
            let mut wanted = object(want);
            wanted.insert("num_replicas".to_owned(), json!(3));
            assert_eq!(repaired(&have, &changes), wanted);
        }
    }

    #[test]
    fn what_the_wire_leaves_open_is_left_alone() {
        let space = Space::parse("s").unwrap();
        let want = &space.stream_configs(1024 * 1024, false)[0];
        for (field, other) in [
            ("num_replicas", json!(3)),
            ("max_bytes", json!(1_000_000)),
            ("max_consumers", json!(500)),
            ("max_msg_size", json!(1000)),
            ("duplicate_window", json!(7_200_000_000_000_i64)),
            ("allow_batched", json!(true)),
            ("allow_msg_ttl", json!(true)),
            ("deny_delete", json!(true)),
            ("metadata", json!({"a": "b"})),
        ] {
            let mut have = object(want);
            have.insert(field.to_owned(), other);
            assert_eq!(changes(&have, want), [], "{field}");
        }
    }
}
