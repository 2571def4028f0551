//! The memory that the directory takes: for the daemon's memory goal it must stay well under 60
//! MiB.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a measurement that cannot be made has failed")]

use std::fmt::Write;

use cotal_rules::Directory;

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn a_hundred_thousand_member_rows_fit() {
    let before = resident();
    let mut dir = Directory::default();
    let (mut key, mut value) = (String::new(), String::new());
    for n in 0..110_000_u64 {
        // The worst case: every row is another lifecycle's.
        let (channel, who) = (format!("team.channel-{}", n % 1_000), format!("agent_{n}"));
        let uid = format!("{n:026}");
        key.clear();
        value.clear();
        if n < 100_000 {
            write!(key, "{channel}/local.{who}.{uid}").unwrap();
            write!(
                value,
                r#"{{"channel":"{channel}","owner":"local.{who}","lifecycleUid":"{uid}",
                "state":"durable-active","joinCursor":{n},"generation":1,"activated":true,
                "writerIdentity":"0123456789abcdef0123456789abcdef","updatedAt":1764437000000}}"#
            )
            .unwrap();
            dir.apply_member(&key, Some(value.as_bytes()), n + 1);
        } else {
            write!(key, "local.{who}.{uid}").unwrap();
            write!(
                value,
                r#"{{"allowSubscribe":["team.>","lab.*","ops.alerts"],"revision":1,
                "updatedAt":1764437000000,"name":"Agent {n}",
                "activated":{{"chat":1,"dm":2,"task":3}}}}"#
            )
            .unwrap();
            dir.apply_acl(&key, Some(value.as_bytes()), n + 1);
        }
    }
    assert_eq!(dir.counts(), (100_000, 10_000));
    let mib = resident().saturating_sub(before) / 1024 / 1024;
    println!("100,000 member rows of as many lifecycles and 10,000 ACL rows take {mib} MiB");
    assert!(mib < 45, "{mib} MiB");
}
