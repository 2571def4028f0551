//! The broker's side of the protocol, as far as it must be known to find what the client library
//! cannot read.
//!
//! Pure: it is given what has come, and says how much of it may pass.

use super::block::repair;

/// The longest line, that of an `INFO` which lists a large cluster. Of a message's line the broker
/// bounds subject and reply.
const MAX_LINE: usize = 1024 * 1024;
/// The broker takes no larger message, whatever its configuration says.
const MAX_MESSAGE: usize = 64 * 1024 * 1024;
/// Stands in a subject for what the library cannot read there. No id may contain it, so nothing
/// that is made of it names anybody.
const IN_PLACE: char = char::REPLACEMENT_CHARACTER;
/// The reply subject of a message that comes out of a stream.
const ANSWERED: &[u8] = b"$JS.ACK.";

/// What is done with the beginning of what has come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing, until more has come.
    More,
    /// As many bytes pass as they are.
    Pass(usize),
    /// As many bytes are left out, and these sent instead.
    Replace {
        taken: usize,
        with: Vec<u8>,
        /// The subject of the message, for whoever reads the log.
        subject: String,
    },
}

/// What has come is not the protocol.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the broker sent what is no message: {0}")]
pub(super) struct NoProtocol(&'static str);

/// Where in the stream the reader stands.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// How much of a message that may pass has not come yet.
    body: usize,
}

/// The arguments of a message line.
struct Line<'a> {
    subject: &'a [u8],
    sid: &'a [u8],
    reply: Option<&'a [u8]>,
    header: usize,
    total: usize,
}

impl Frames {
    /// What is done with the beginning of `come`.
    pub(super) fn next(&mut self, come: &[u8]) -> Result<Step, NoProtocol> {
        if self.body > 0 && !come.is_empty() {
            let passes = self.body.min(come.len());
            self.body -= passes;
            return Ok(Step::Pass(passes));
        }
        let Some(end) = come.windows(2).take(MAX_LINE).position(|pair| pair == b"\r\n") else {
            return match come.len() {
                0..=MAX_LINE => Ok(Step::More),
                _ => Err(NoProtocol("a line without an end")),
            };
        };
        let (line, rest) = (&come[..end], &come[end + 2..]);
        if let Some(args) = line.strip_prefix(b"MSG ") {
            let line = Line::parse(args, false)?;
            self.body = line.total + 2;
            return Ok(line.step(end + 2, None, None));
        }
        if let Some(args) = line.strip_prefix(b"HMSG ") {
            let line = Line::parse(args, true)?;
            let Some(block) = rest.get(..line.header) else {
                return Ok(Step::More);
            };
            self.body = line.total - line.header + 2;
            let stored = line.reply.is_some_and(|reply| reply.starts_with(ANSWERED));
            return Ok(line.step(end + 2, Some(block), repair(block, stored).as_deref()));
        }
        match std::str::from_utf8(line) {
            Ok(_) => Ok(Step::Pass(end + 2)),
            Err(_) => {
                let text = String::from_utf8_lossy(line);
                let with = format!("{text}\r\n").into_bytes();
                Ok(Step::Replace { taken: end + 2, with, subject: text.into_owned() })
            }
        }
    }
}

impl<'a> Line<'a> {
    fn parse(args: &'a [u8], with_headers: bool) -> Result<Self, NoProtocol> {
        let mut args = args.split(|byte| *byte == b' ').filter(|arg| !arg.is_empty());
        let mut last = || args.next_back().ok_or(NoProtocol("a message line without its sizes"));
        let total = size(last()?)?;
        let header = if with_headers { size(last()?)? } else { 0 };
        if header > total {
            return Err(NoProtocol("a message smaller than its headers"));
        }
        match (args.next(), args.next(), args.next(), args.next()) {
            (Some(subject), Some(sid), reply, None) => {
                Ok(Self { subject, sid, reply, header, total })
            }
            _ => Err(NoProtocol("a message line without a subject and a subscription")),
        }
    }

    /// Lets the line and the block behind it pass, unless one of them must be another.
    fn step(&self, line: usize, block: Option<&[u8]>, repaired: Option<&[u8]>) -> Step {
        let taken = line + self.header;
        let names_are_readable = is_readable(self.subject) && self.reply.is_none_or(is_readable);
        if names_are_readable && repaired.is_none() {
            return Step::Pass(taken);
        }
        let subject = readable(self.subject);
        let sid = String::from_utf8_lossy(self.sid);
        let reply = self.reply.map(|reply| format!("{} ", readable(reply))).unwrap_or_default();
        let body = self.total - self.header;
        let with = match repaired.or(block) {
            None => format!("MSG {subject} {sid} {reply}{body}\r\n").into_bytes(),
            Some(block) => {
                let (header, total) = (block.len(), block.len() + body);
                let line = format!("HMSG {subject} {sid} {reply}{header} {total}\r\n");
                [line.as_bytes(), block].concat()
            }
        };
        Step::Replace { taken, with, subject }
    }
}

fn size(arg: &[u8]) -> Result<usize, NoProtocol> {
    let number = std::str::from_utf8(arg).ok().and_then(|arg| arg.parse().ok());
    number
        .filter(|size| *size <= MAX_MESSAGE)
        .ok_or(NoProtocol("a message line with a size that is none"))
}

/// The library splits a message line at every kind of space, the broker at the plain one.
fn is_readable(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| !name.contains(char::is_whitespace))
}

fn readable(name: &[u8]) -> String {
    String::from_utf8_lossy(name).replace(char::is_whitespace, IN_PLACE.encode_utf8(&mut [0; 4]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::UNREADABLE;

    /// What passes when the stream comes in pieces of this size.
    fn passed(stream: &[u8], piece: usize) -> Result<String, NoProtocol> {
        let (mut frames, mut come, mut out) = (Frames::default(), Vec::new(), Vec::new());
        for piece in stream.chunks(piece) {
            come.extend_from_slice(piece);
            loop {
                match frames.next(&come)? {
                    Step::More => break,
                    Step::Pass(bytes) => out.extend(come.drain(..bytes)),
                    Step::Replace { taken, with, .. } => {
                        come.drain(..taken);
                        out.extend(with);
                    }
                }
            }
        }
        Ok(String::from_utf8(out).expect("text"))
    }

    fn repaired(stream: &[u8]) -> String {
        let whole = passed(stream, stream.len()).expect("the protocol");
        for piece in 1..stream.len() {
            assert_eq!(passed(stream, piece).expect("the protocol"), whole, "in {piece}s");
        }
        whole
    }

    #[test]
    fn what_can_be_read_passes_as_it_is_however_it_is_cut() {
        let stream = b"INFO {\"a\":1}\r\n+OK\r\nPING\r\nPONG\r\n-ERR 'Stale Connection'\r\n\
            MSG a.b 1 5\r\nHMSG \r\nMSG a.b 1 r.s 0\r\n\r\n\
            HMSG a 7 19 21\r\nNATS/1.0\r\nA: bc\r\n\r\n\xc3\xa4\r\n\
            HMSG a 7 $JS.ACK.S.c.1.2.3.4.5 12 12\r\nNATS/1.0\r\n\r\n\r\nMSG a 1 1\r\n\n\r\n";
        assert_eq!(repaired(stream).as_bytes(), stream);
    }

    #[test]
    fn a_message_behind_one_that_cannot_be_read_is_read() {
        let stream = b"HMSG a 7 r 20 22\r\nNATS/1.0\r\nA: b\rc\r\n\r\nxy\r\nMSG b 1 1\r\nz\r\n";
        let block = format!("NATS/1.0\r\n{UNREADABLE}: 1\r\n\r\n");
        let (header, total) = (block.len(), block.len() + 2);
        let expected = format!("HMSG a 7 r {header} {total}\r\n{block}xy\r\nMSG b 1 1\r\nz\r\n");
        assert_eq!(repaired(stream), expected);
    }

    #[test]
    fn a_name_that_cannot_be_read_is_no_other_name() {
        let stream = b"MSG a.\xff 1 2\r\nxy\r\nMSG a \xe2\x80\x83 1 0\r\n\r\n";
        let expected = "MSG a.\u{fffd} 1 2\r\nxy\r\n";
        assert!(repaired(&stream[..17]).starts_with(expected), "{}", repaired(&stream[..17]));
        let stream = b"HMSG a.\xc2\xa0 1 \xff 12 13\r\nNATS/1.0\r\n\r\nx\r\nPING\r\n";
        let expected = "HMSG a.\u{fffd} 1 \u{fffd} 12 13\r\nNATS/1.0\r\n\r\nx\r\nPING\r\n";
        assert_eq!(repaired(stream), expected);
    }

    #[test]
    fn what_is_no_protocol_is_said_to_be_none() {
        let long = vec![b'x'; MAX_LINE + 2];
        let table: [&[u8]; 7] = [
            b"MSG a\r\n",
            b"MSG a 1 x\r\n",
            b"MSG a 1 r s 5\r\n",
            b"MSG a 1 99999999999\r\n",
            b"HMSG a 1 5\r\n",
            b"HMSG a 1 6 5\r\n",
            &long,
        ];
        for stream in table {
            assert!(passed(stream, stream.len()).is_err(), "{}", stream[..9].escape_ascii());
        }
    }
}
