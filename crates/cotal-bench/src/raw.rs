//! The NATS protocol on a bare blocking socket: what a client can do at its very cheapest, so that
//! the limit is the broker's and nobody's library's.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, bail};
use cotal_wire::creds::Creds;
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

/// Nothing that is measured is silent for as long.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes read at once.
const READ: usize = 256 * 1024;
/// Bytes gathered before they are written.
const WRITE: usize = 128 * 1024;

/// A connection.
#[derive(Debug)]
pub(crate) struct Raw {
    socket: TcpStream,
    out: Vec<u8>,
    input: Vec<u8>,
    /// Where the next frame begins in `input`.
    at: usize,
    inbox: String,
    subscriptions: u32,
}

/// Where the parts of a received message lie in the input.
#[derive(Debug, Clone, Copy)]
struct Parts {
    subject: (usize, usize),
    reply: (usize, usize),
    headers: (usize, usize),
    payload: (usize, usize),
    end: usize,
}

/// A received message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) subject: &'a [u8],
    pub(crate) reply: &'a [u8],
    pub(crate) headers: &'a [u8],
    pub(crate) payload: &'a [u8],
}

impl Raw {
    /// Connects and waits until the broker has accepted the credential.
    pub(crate) fn connect(url: &str, creds: &Creds) -> anyhow::Result<Self> {
        let address = url.trim_start_matches("nats://");
        let socket = TcpStream::connect(address).with_context(|| format!("cannot reach {url}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(READ_TIMEOUT))?;
        let mut raw = Self {
            socket,
            out: Vec::with_capacity(2 * WRITE),
            input: Vec::with_capacity(2 * READ),
            at: 0,
            inbox: creds.claims.subject.inbox_prefix(),
            subscriptions: 0,
        };
        let info = raw.line()?;
        let info: Value =
            serde_json::from_str(info.strip_prefix("INFO ").context("no greeting came")?)?;
        let nonce = info["nonce"].as_str().unwrap_or_default();
        let signature = KeyPair::from_seed(&creds.seed)?.sign(nonce.as_bytes())?;
        let connect = json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true,
            "echo": false, "protocol": 1, "lang": "bench", "version": "0", "name": "bench",
            "jwt": creds.jwt, "sig": BASE64URL_NOPAD.encode(&signature),
        });
        raw.push(b"CONNECT ").push(connect.to_string().as_bytes());
        raw.push(b"\r\nPING\r\n").flush()?;
        match raw.line()?.as_str() {
            "PONG" => Ok(raw),
            other => bail!("the broker did not accept the connection: {other}"),
        }
    }

    /// Everything received for this connection lies below it.
    pub(crate) fn inbox(&self) -> &str {
        &self.inbox
    }

    /// Subscribes.
    pub(crate) fn subscribe(&mut self, subject: &str) {
        self.subscriptions += 1;
        let line = format!("SUB {subject} {}\r\n", self.subscriptions);
        self.push(line.as_bytes());
    }

    /// Queues a message without headers.
    pub(crate) fn publish(&mut self, subject: &[u8], reply: &[u8], payload: &[u8]) {
        self.push(b"PUB ").push(subject).push(b" ");
        if !reply.is_empty() {
            self.push(reply).push(b" ");
        }
        self.number(payload.len() as u64);
        self.push(b"\r\n").push(payload).push(b"\r\n");
    }

    /// Queues a message with a header block, which `headers` gives without its first line.
    pub(crate) fn publish_with(
        &mut self,
        subject: &[u8],
        reply: &[u8],
        headers: &[u8],
        payload: &[u8],
    ) {
        const FIRST: &[u8] = b"NATS/1.0\r\n";
        let block = FIRST.len() + headers.len() + 2;
        self.push(b"HPUB ").push(subject).push(b" ");
        if !reply.is_empty() {
            self.push(reply).push(b" ");
        }
        self.number(block as u64);
        self.push(b" ");
        self.number((block + payload.len()) as u64);
        self.push(b"\r\n").push(FIRST).push(headers).push(b"\r\n");
        self.push(payload).push(b"\r\n");
    }

    /// Writes what is queued when it is worth a write.
    pub(crate) fn flush_if_full(&mut self) -> anyhow::Result<()> {
        if self.out.len() >= WRITE { self.flush() } else { Ok(()) }
    }

    /// Writes what is queued.
    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        self.socket.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Gives every message that is in the input to `each`.
    pub(crate) fn drain(
        &mut self,
        mut each: impl FnMut(&mut Out<'_>, Frame<'_>),
    ) -> anyhow::Result<()> {
        loop {
            match parse(&self.input, self.at)? {
                None => return Ok(()),
                Some(Parsed::Control { end, ping }) => {
                    self.at = end;
                    if ping {
                        self.push(b"PONG\r\n");
                    }
                }
                Some(Parsed::Message(parts)) => {
                    let slice = |(from, to): (usize, usize)| &self.input[from..to];
                    let frame = Frame {
                        subject: slice(parts.subject),
                        reply: slice(parts.reply),
                        headers: slice(parts.headers),
                        payload: slice(parts.payload),
                    };
                    each(&mut Out(&mut self.out), frame);
                    self.at = parts.end;
                }
            }
        }
    }

    /// Waits for more input.
    pub(crate) fn read(&mut self) -> anyhow::Result<()> {
        self.input.drain(..self.at);
        self.at = 0;
        let len = self.input.len();
        self.input.resize(len + READ, 0);
        let got = self.socket.read(&mut self.input[len..]);
        let got = got.context("the broker is silent")?;
        self.input.truncate(len + got);
        if got == 0 {
            bail!("the broker closed the connection");
        }
        Ok(())
    }

    fn line(&mut self) -> anyhow::Result<String> {
        loop {
            if let Some(end) = find_line(&self.input, self.at) {
                let line = String::from_utf8_lossy(&self.input[self.at..end]).into_owned();
                self.at = end + 2;
                return Ok(line);
            }
            self.read()?;
        }
    }

    fn push(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    fn number(&mut self, number: u64) {
        push_number(&mut self.out, number);
    }
}

/// The output of a connection whose input is being looked at.
pub(crate) struct Out<'a>(&'a mut Vec<u8>);

impl Out<'_> {
    /// Queues a message whose header block and payload are given whole.
    pub(crate) fn publish_parts(
        &mut self,
        subject: &[&[u8]],
        reply: &[u8],
        headers: &[&[u8]],
        payload: &[u8],
    ) {
        let out = &mut *self.0;
        out.extend_from_slice(b"HPUB ");
        for part in subject {
            out.extend_from_slice(part);
        }
        out.push(b' ');
        out.extend_from_slice(reply);
        out.push(b' ');
        let block: usize = 12 + headers.iter().map(|part| part.len()).sum::<usize>();
        push_number(out, block as u64);
        out.push(b' ');
        push_number(out, (block + payload.len()) as u64);
        out.extend_from_slice(b"\r\nNATS/1.0\r\n");
        for part in headers {
            out.extend_from_slice(part);
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(payload);
        out.extend_from_slice(b"\r\n");
    }
}

enum Parsed {
    Control { end: usize, ping: bool },
    Message(Parts),
}

/// The frame at `at`, if it is all there.
fn parse(input: &[u8], at: usize) -> anyhow::Result<Option<Parsed>> {
    let Some(end) = find_line(input, at) else {
        return Ok(None);
    };
    let line = &input[at..end];
    let headed = line.starts_with(b"HMSG ");
    if !headed && !line.starts_with(b"MSG ") {
        if line.starts_with(b"-ERR") {
            bail!("the broker says {}", String::from_utf8_lossy(line));
        }
        let ping = line == b"PING";
        return Ok(Some(Parsed::Control { end: end + 2, ping }));
    }
    let mut words = [(0, 0); 6];
    let mut count = 0;
    let mut from = at;
    for word in line.split(|b| *b == b' ') {
        if count < words.len() {
            words[count] = (from, from + word.len());
            count += 1;
        }
        from += word.len() + 1;
    }
    // The reply is optional: with it, a line has one word more.
    let sizes = if headed { 2 } else { 1 };
    let has_reply = count == 4 + sizes;
    let number = |word: (usize, usize)| parse_number(&input[word.0..word.1]);
    let total = number(words[count - 1]).context("a message without a size")?;
    let block = if headed { number(words[count - 2]).unwrap_or(0) } else { 0 };
    let body = end + 2;
    let (block, total) = (usize::try_from(block)?, usize::try_from(total)?);
    if input.len() < body + total + 2 {
        return Ok(None);
    }
    Ok(Some(Parsed::Message(Parts {
        subject: words[1],
        reply: if has_reply { words[3] } else { (0, 0) },
        headers: (body, body + block),
        payload: (body + block, body + total),
        end: body + total + 2,
    })))
}

fn find_line(input: &[u8], at: usize) -> Option<usize> {
    let line = input.get(at..)?;
    let feed = line.iter().position(|b| *b == b'\n')?;
    Some(at + feed - 1)
}

/// The leading digits of `text`.
pub(crate) fn parse_number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|b| b.is_ascii_digit());
    let mut any = false;
    let number = digits.fold(0_u64, |number, digit| {
        any = true;
        number * 10 + u64::from(digit - b'0')
    });
    any.then_some(number)
}

/// Appends a number.
pub(crate) fn push_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0_u8; 20];
    let (mut rest, mut start) = (number, digits.len());
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Where `needle` ends in `hay`.
pub(crate) fn after(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|window| window == needle).map(|at| at + needle.len())
}
