//! Names of the NATS headers this project reads or writes, and the wire form of a header block.

use async_nats::{HeaderMap, HeaderName, HeaderValue};

/// Deduplication key of a publish.
pub const MSG_ID: &str = "Nats-Msg-Id";
/// Compare-and-set against the subject's last sequence.
pub const EXPECTED_LAST_SUBJECT_SEQ: &str = "Nats-Expected-Last-Subject-Sequence";
/// Of which subjects [`EXPECTED_LAST_SUBJECT_SEQ`] speaks, when it is more than that of the
/// message.
pub const EXPECTED_LAST_SUBJECT_SEQ_OF: &str = "Nats-Expected-Last-Subject-Sequence-Subject";
/// The stream a publish must land in.
pub const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// Operation of a KV marker.
pub const KV_OPERATION: &str = "KV-Operation";
/// Replaces what the subject (`sub`) or the stream (`all`) holds.
pub const ROLLUP: &str = "Nats-Rollup";
/// Why the broker itself wrote a marker: `MaxAge`, `Purge` or `Remove`.
pub const MARKER_REASON: &str = "Nats-Marker-Reason";
/// Lifetime of a single message.
pub const TTL: &str = "Nats-TTL";
/// Set in this process on a message some of whose header lines could not be read, and were left
/// out.
pub(crate) const UNREADABLE: &str = "Cotal-Unreadable-Headers";
/// Subject of a directly read message.
pub(crate) const SUBJECT: &str = "Nats-Subject";
/// Sequence of a directly read message.
pub(crate) const SEQUENCE: &str = "Nats-Sequence";
/// Instant of a directly read message.
pub(crate) const TIME_STAMP: &str = "Nats-Time-Stamp";
/// How many messages of an ended pull were not delivered.
pub(crate) const PENDING_MESSAGES: &str = "Nats-Pending-Messages";

const PREAMBLE: &str = "NATS/1.0";

/// One header value as text.
pub fn get<'a>(headers: Option<&'a HeaderMap>, name: &'static str) -> Option<&'a str> {
    headers?.get(HeaderName::from_static(name)).map(HeaderValue::as_str)
}

/// The last value of a header that is there more than once.
pub(crate) fn last<'a>(headers: Option<&'a HeaderMap>, name: &'static str) -> Option<&'a str> {
    headers?.get_last(HeaderName::from_static(name)).map(HeaderValue::as_str)
}

/// Whether every header line that the publisher sent is here. The broker passes on whatever bytes a
/// publisher sends for headers.
pub fn are_readable(headers: Option<&HeaderMap>) -> bool {
    get(headers, UNREADABLE).is_none()
}

/// One header value as a number.
pub(crate) fn number(headers: Option<&HeaderMap>, name: &'static str) -> Option<u64> {
    get(headers, name)?.parse().ok()
}

/// Reads a header block as the broker stores it. What the relay would repair is marked as it marks
/// it.
pub(crate) fn parse_block(block: &[u8]) -> Option<HeaderMap> {
    if block.is_empty() {
        return None;
    }
    let text = std::str::from_utf8(block).ok().and_then(|text| text.strip_prefix(PREAMBLE));
    let mut lines = text.unwrap_or_default().lines();
    // A stored message has no status of the broker's.
    let status = lines.next().unwrap_or_default();
    let mut unreadable = text.is_none() || !status.trim().is_empty();
    let mut map = HeaderMap::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let header = line.split_once(':').and_then(|(name, value)| {
            Some((name.parse::<HeaderName>().ok()?, value.trim().parse::<HeaderValue>().ok()?))
        });
        match header {
            Some((name, value)) => map.append(name, value),
            None => unreadable = true,
        }
    }
    if unreadable {
        map.insert(HeaderName::from_static(UNREADABLE), "1");
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_block_is_read() {
        let map = parse_block(b"NATS/1.0\r\nNats-Msg-Id: a:b\r\nX:  y \r\n\r\n").expect("a block");
        assert_eq!(get(Some(&map), MSG_ID), Some("a:b"));
        assert_eq!(get(Some(&map), "X"), Some("y"));
        assert_eq!(get(Some(&map), ROLLUP), None);
        assert!(are_readable(Some(&map)));
        assert!(parse_block(b"").is_none());
    }

    #[test]
    fn a_stored_block_that_no_client_could_have_made_is_read_without_a_panic() {
        let map = parse_block(b"NATS/1.0\r\nX: a\rb\r\n: c\r\nY\r\nZ: z\r\n\r\n").expect("a block");
        assert_eq!(get(Some(&map), "Z"), Some("z"));
        assert_eq!(get(Some(&map), "X"), None);
        assert!(!are_readable(Some(&map)));
        for garbage in [&b"NATS/1.0\r\n\xff: a\r\n\r\n"[..], b"NATS/1.0 503\r\n", b"HTTP", b"\r\n"]
        {
            assert!(!are_readable(parse_block(garbage).as_ref()), "{}", garbage.escape_ascii());
        }
    }
}
