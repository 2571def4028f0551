//! A TCP proxy on loopback that can cut and stall connections.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Open,
    /// Bytes wait; the sockets stay.
    Stalled,
    /// What the server says waits; what it is told passes.
    Deaf,
    /// Sockets are closed and new ones refused.
    Cut,
}

/// A proxy to one address.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    line: Arc<watch::Sender<Line>>,
    dialled: watch::Receiver<usize>,
    needle: Needle,
    record: Record,
    held: Arc<watch::Sender<Vec<u8>>>,
    accepting: JoinHandle<()>,
}

/// A text, and what becomes of the line when a client says it.
type Needle = Arc<Mutex<Option<(String, Line)>>>;
/// What clients said since it was asked for.
type Record = Arc<Mutex<Option<Vec<u8>>>>;

impl Proxy {
    /// Listens on a free port and passes everything on to `target` (`host:port`).
    ///
    /// # Panics
    /// When no port can be had.
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let line = Arc::new(watch::Sender::new(Line::Open));
        let (was_dialled, dialled) = watch::channel(0);
        let needle = Needle::default();
        let record = Record::default();
        let held = Arc::new(watch::Sender::new(Vec::new()));
        let between = Between {
            line: Arc::clone(&line),
            needle: Arc::clone(&needle),
            record: Arc::clone(&record),
            held: Arc::clone(&held),
        };
        let accepting = tokio::spawn(accept(listener, target.to_owned(), between, was_dialled));
        Self { address, line, dialled, needle, record, held, accepting }
    }

    /// The URL that clients use.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Closes every connection and refuses new ones.
    pub fn cut(&self) {
        self.line.send_replace(Line::Cut);
    }

    /// Holds every byte back, without closing anything.
    pub fn stall(&self) {
        self.line.send_replace(Line::Stalled);
    }

    /// From the moment that a client says `text`, everything the server answers is held back.
    pub fn deafen_at(&self, text: &str) {
        *self.needle.lock().expect("no panic holds it") = Some((text.to_owned(), Line::Deaf));
    }

    /// When a client says `text`, that and everything after it is held back, in both directions.
    ///
    /// # Panics
    /// Never: no panic holds the lock.
    pub fn stall_at(&self, text: &str) {
        *self.needle.lock().expect("no panic holds it") = Some((text.to_owned(), Line::Stalled));
    }

    /// Waits until the text of [`Self::stall_at`] was said.
    ///
    /// # Panics
    /// Never: the proxy holds the other end itself.
    pub async fn stalled(&self) {
        let mut line = self.line.subscribe();
        line.wait_for(|line| *line == Line::Stalled).await.expect("a proxy that stands");
    }

    /// How many connections were made to it.
    #[must_use]
    pub fn dials(&self) -> usize {
        *self.dialled.borrow()
    }

    /// Waits until the text of [`Self::deafen_at`] was said.
    ///
    /// # Panics
    /// Never: the proxy holds the other end itself.
    pub async fn deafened(&self) {
        let mut line = self.line.subscribe();
        line.wait_for(|line| *line == Line::Deaf).await.expect("a proxy that stands");
    }

    /// Keeps what the one client says from now on.
    ///
    /// # Panics
    /// Never: no panic holds the lock.
    pub fn record(&self) {
        *self.record.lock().expect("no panic holds it") = Some(Vec::new());
    }

    /// What the client published since [`Self::record`]: subjects and bodies.
    ///
    /// # Panics
    /// When nothing was recorded.
    #[must_use]
    pub fn published(&self) -> Vec<(String, String)> {
        let record = self.record.lock().expect("no panic holds it");
        published(record.as_deref().expect("a record"))
    }

    /// Waits until what is held back of the server's answers contains `text`. When the line heals,
    /// it reaches the client at once with all that was held before it.
    ///
    /// # Panics
    /// Never: the proxy holds the other end itself.
    pub async fn holds(&self, text: &str) {
        let mut held = self.held.subscribe();
        held.wait_for(|held| contains(held, text)).await.expect("a proxy that stands");
    }

    /// Waits until somebody has connected.
    ///
    /// # Panics
    /// When the proxy has failed.
    pub async fn dialled(&self) {
        let mut dialled = self.dialled.clone();
        dialled.wait_for(|dials| *dials > 0).await.expect("a proxy that accepts");
    }

    /// Passes everything on again.
    pub fn heal(&self) {
        self.line.send_replace(Line::Open);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.line.send_replace(Line::Cut);
    }
}

/// What the two directions of a connection share.
#[derive(Clone)]
struct Between {
    line: Arc<watch::Sender<Line>>,
    needle: Needle,
    record: Record,
    held: Arc<watch::Sender<Vec<u8>>>,
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

impl Between {
    /// The line must have changed before the text is passed on, so this comes first.
    fn hear(&self, said: &[u8]) {
        if let Some(record) = &mut *self.record.lock().expect("no panic holds it") {
            record.extend_from_slice(said);
        }
        let mut needle = self.needle.lock().expect("no panic holds it");
        let heard = needle.take_if(|(text, _)| contains(said, text));
        if let Some((_, line)) = heard {
            self.line.send_replace(line);
        }
    }
}

async fn accept(
    listener: TcpListener,
    target: String,
    between: Between,
    dialled: watch::Sender<usize>,
) {
    while let Ok((client, _)) = listener.accept().await {
        dialled.send_modify(|dials| *dials += 1);
        if *between.line.borrow() == Line::Cut {
            continue;
        }
        let (target, between) = (target.clone(), between.clone());
        tokio::spawn(async move {
            if let Ok(server) = TcpStream::connect(target).await {
                serve(client, server, &between).await;
            }
        });
    }
}

async fn serve(client: TcpStream, server: TcpStream, between: &Between) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut cut = between.line.subscribe();
    let listen = |said: &[u8]| between.hear(said);
    tokio::select! {
        () = pass(from_client, to_server, between, &[Line::Stalled], listen) => {}
        () = pass(from_server, to_client, between, &[Line::Stalled, Line::Deaf], |_| ()) => {}
        _ = cut.wait_for(|line| *line == Line::Cut) => {}
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    between: &Between,
    held: &[Line],
    hear: impl Fn(&[u8]),
) {
    let mut line = between.line.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n) = from.read(&mut buffer).await {
        if n == 0 {
            return;
        }
        hear(&buffer[..n]);
        let mut bytes = buffer[..n].to_vec();
        // What is held is gathered, so that it passes as one piece once the line is open again.
        let mut ended = false;
        while held.contains(&*line.borrow_and_update()) {
            between.held.send_replace(bytes.clone());
            tokio::select! {
                changed = line.changed() => if changed.is_err() {
                    return;
                },
                read = from.read(&mut buffer), if !ended => {
                    let n = read.unwrap_or_default();
                    ended = n == 0;
                    hear(&buffer[..n]);
                    bytes.extend_from_slice(&buffer[..n]);
                }
            }
        }
        // What was held when the line was cut never arrives.
        if *line.borrow() == Line::Cut || to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// The `PUB` and `HPUB` of a client's side of the protocol.
fn published(mut said: &[u8]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while let Some(end) = said.windows(2).position(|two| two == b"\r\n") {
        let line = String::from_utf8_lossy(&said[..end]).into_owned();
        said = &said[end + 2..];
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (Some(&("PUB" | "HPUB")), Some(subject)) = (words.first(), words.get(1)) else {
            continue;
        };
        let size = words.last().and_then(|size| size.parse().ok()).unwrap_or(0);
        let (body, rest) = said.split_at(said.len().min(size));
        found.push(((*subject).to_owned(), String::from_utf8_lossy(body).into_owned()));
        said = rest;
    }
    found
}
