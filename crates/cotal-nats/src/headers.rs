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

/// Reads a header block as the broker stores it; a line that is no header is skipped.
pub(crate) fn parse_block(block: &[u8]) -> Option<HeaderMap> {
    let text = std::str::from_utf8(block).ok()?;
    let mut map = HeaderMap::new();
    for line in text.strip_prefix(PREAMBLE)?.lines().skip(1) {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        // The broker stores whatever bytes a publisher sent; a value with a bare carriage return is
        // one that the map panics on.
        if let (Ok(name), Ok(value)) = (name.trim().parse::<HeaderName>(), value.trim().parse()) {
            map.append::<_, HeaderValue>(name, value);
        }
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
        assert!(parse_block(b"HTTP/1.1\r\n\r\n").is_none());
    }

    #[test]
    fn a_stored_block_that_no_client_could_have_made_is_read_without_a_panic() {
        let map = parse_block(b"NATS/1.0\r\nX: a\rb\r\n: c\r\nY\r\nZ: z\r\n\r\n").expect("a block");
        assert_eq!(get(Some(&map), "Z"), Some("z"));
        assert_eq!(get(Some(&map), "X"), None);
        for garbage in [&b"NATS/1.0\r\n\xff: a\r\n\r\n"[..], b"NATS/1.0", b"", b"\r\n"] {
            let _ = parse_block(garbage);
        }
    }
}
