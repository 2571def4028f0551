//! Header blocks, judged and repaired the way the client library reads them.
//!
//! Invariant: what [`repair`] lets pass or gives back is read by the library without a panic and
//! without a redial. The broker stores and forwards whatever bytes a publisher sent.

use async_nats::{HeaderName, StatusCode};

use crate::headers::UNREADABLE;

const VERSION: &str = "NATS/1.0";
/// What a block may measure: the broker stores headers of up to 64 KiB, and adds a few lines of
/// its own when it is asked for a message directly. A live message could bring as many lines as
/// fit into the largest message, and each costs the library an entry of a table.
pub(super) const MAX_BLOCK: usize = 96 * 1024;
/// A line with which the broker names where a stored message stands.
const OF_STORED: &[u8] = b"\nNats-Stream:";

/// Gives a block that the library can read in place of one that it cannot: without the lines
/// that are no headers, and with a mark that says so. `None` when the block may pass as it is.
///
/// `stored` says that the message comes out of a stream. A status line of such a message was
/// written by its publisher, and would pass for a word of the broker itself.
pub(super) fn repair(block: &[u8], stored: bool) -> Option<Vec<u8>> {
    let stored = stored || block.windows(OF_STORED.len()).any(|window| window == OF_STORED);
    if is_readable(block, stored) {
        return None;
    }
    let mut out = Vec::with_capacity(block.len().min(MAX_BLOCK) + 64);
    let mut lines = block.split(|byte| *byte == b'\n').map(line_of);
    let version = lines.next().flatten().filter(|line| is_version(line, stored));
    out.extend_from_slice(version.unwrap_or(VERSION).as_bytes());
    let mut continues = false;
    for line in lines {
        let kept = line.filter(|line| continues && is_continuation(line) || is_header(line));
        continues = kept.is_some();
        if let Some(line) = kept
            && out.len() + line.len() < MAX_BLOCK
        {
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(line.as_bytes());
        }
    }
    out.extend_from_slice(format!("\r\n{UNREADABLE}: 1\r\n\r\n").as_bytes());
    Some(out)
}

fn is_readable(block: &[u8], stored: bool) -> bool {
    let Some(text) = Some(block)
        .filter(|block| block.len() <= MAX_BLOCK)
        .and_then(|block| std::str::from_utf8(block).ok())
    else {
        return false;
    };
    let mut lines = text.lines();
    let mut continues = false;
    lines.next().is_some_and(|line| is_version(line, stored))
        && lines.all(|line| {
            let fits = line.is_empty() || continues && is_continuation(line) || is_header(line);
            continues = !line.is_empty();
            fits
        })
}

/// A line without its carriage return; `None` when it is no text.
fn line_of(line: &[u8]) -> Option<&str> {
    std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)).ok()
}

fn is_version(line: &str, stored: bool) -> bool {
    let Some(rest) = line.strip_prefix(VERSION).filter(|rest| !rest.contains('\r')) else {
        return false;
    };
    let status = rest.trim().split(' ').next().unwrap_or_default().trim();
    status.is_empty() || !stored && status.parse::<StatusCode>().is_ok()
}

fn is_header(line: &str) -> bool {
    let name = line.split_once(':').map(|(name, _)| name.parse::<HeaderName>());
    matches!(name, Some(Ok(_))) && !line.contains('\r')
}

/// The library appends such a line to the value before it.
fn is_continuation(line: &str) -> bool {
    line.starts_with(char::is_whitespace) && !line.contains('\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repaired(block: &[u8], stored: bool) -> Option<String> {
        repair(block, stored).map(|block| String::from_utf8(block).expect("text"))
    }

    #[test]
    fn what_the_library_can_read_passes_as_it_is() {
        let table: [&[u8]; 9] = [
            b"NATS/1.0\r\n\r\n",
            b"NATS/1.0\r\nA: b\r\n\r\n",
            b"NATS/1.0\r\nA:\r\nA: 2\r\n\r\n",
            b"NATS/1.0\r\nA: b\r\n more\r\n\tand more\r\n\r\n",
            b"NATS/1.0 503\r\n\r\n",
            b"NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 1\r\n\r\n",
            b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n",
            b"NATS/1.0\nA: b\n\n",
            b"NATS/1.0\r\nA: b",
        ];
        for block in table {
            assert_eq!(repaired(block, false), None, "{}", block.escape_ascii());
        }
    }

    #[test]
    fn only_the_lines_that_are_no_headers_are_taken_out() {
        let mark = format!("{UNREADABLE}: 1\r\n\r\n");
        let table: [(&[u8], &str); 12] = [
            (b"NATS/1.0\r\nA: b\rc\r\nB: d\r\n\r\n", "NATS/1.0\r\nB: d\r\n"),
            (b"NATS/1.0\r\nA: \xff\r\nB: d\r\n\r\n", "NATS/1.0\r\nB: d\r\n"),
            (b"NATS/1.0\r\nnothing\r\nB: d\r\n\r\n", "NATS/1.0\r\nB: d\r\n"),
            (b"NATS/1.0\r\n: a\r\nb c: d\r\nB: d\r\n\r\n", "NATS/1.0\r\n: a\r\nB: d\r\n"),
            (b"NATS/1.0\r\n\xc3\xa4: d\r\n\r\n", "NATS/1.0\r\n"),
            (b"NATS/1.0\r\n  A: b\r\n\r\n", "NATS/1.0\r\n"),
            (b"NATS/1.0\r\nA: b\r\n\r\n c\r\n\r\n", "NATS/1.0\r\nA: b\r\n"),
            (b"NATS/1.0\r\nA: b\rc\r\n d\r\nB: e\r\n f\r\n", "NATS/1.0\r\nB: e\r\n f\r\n"),
            (b"NATS/1.0 5x3\r\nA: b\r\n\r\n", "NATS/1.0\r\nA: b\r\n"),
            (b"NATS/1.0x\r\nA: b\r\n\r\n", "NATS/1.0\r\nA: b\r\n"),
            (b"HTTP/1.1\r\n\r\n", "NATS/1.0\r\n"),
            (b"", "NATS/1.0\r\n"),
        ];
        for (block, kept) in table {
            let expected = format!("{kept}{mark}");
            let repaired = repaired(block, false);
            assert_eq!(repaired, Some(expected), "{}", block.escape_ascii());
        }
    }

    #[test]
    fn a_stored_message_speaks_no_word_of_the_broker() {
        let expected = format!("NATS/1.0\r\nA: b\r\n{UNREADABLE}: 1\r\n\r\n");
        assert_eq!(repaired(b"NATS/1.0 503\r\nA: b\r\n\r\n", true), Some(expected));
        let read_directly = b"NATS/1.0 404\r\nNats-Stream: S\r\n\r\n";
        let expected = format!("NATS/1.0\r\nNats-Stream: S\r\n{UNREADABLE}: 1\r\n\r\n");
        assert_eq!(repaired(read_directly, false), Some(expected));
    }

    #[test]
    fn a_block_with_countless_lines_is_cut() {
        let mut block = b"NATS/1.0\r\n".to_vec();
        for _ in 0..100_000 {
            block.extend_from_slice(b"a:\r\n");
        }
        let repaired = repair(&block, false).expect("a cut block");
        assert!(repaired.len() <= MAX_BLOCK + 64, "{}", repaired.len());
        assert_eq!(repair(&repaired[..MAX_BLOCK], false), None);
    }
}
