//! A TCP proxy on loopback that can cut and stall connections.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Open,
    /// Bytes wait; the sockets stay.
    Stalled,
    /// Sockets are closed and new ones refused.
    Cut,
}

/// A proxy to one address.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    line: Arc<watch::Sender<Line>>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and passes everything on to `target` (`host:port`).
    ///
    /// # Panics
    /// When no port can be had.
    pub async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let line = Arc::new(watch::Sender::new(Line::Open));
        let accepting = tokio::spawn(accept(listener, target.to_owned(), Arc::clone(&line)));
        Self { address, line, accepting }
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

async fn accept(listener: TcpListener, target: String, line: Arc<watch::Sender<Line>>) {
    while let Ok((client, _)) = listener.accept().await {
        if *line.borrow() == Line::Cut {
            continue;
        }
        let (target, watched) = (target.clone(), line.subscribe());
        tokio::spawn(async move {
            if let Ok(server) = TcpStream::connect(target).await {
                serve(client, server, watched).await;
            }
        });
    }
}

async fn serve(client: TcpStream, server: TcpStream, mut line: watch::Receiver<Line>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut cut = line.clone();
    tokio::select! {
        () = pass(from_client, to_server, line.clone()) => {}
        () = pass(from_server, to_client, line.clone()) => {}
        _ = cut.wait_for(|line| *line == Line::Cut) => {}
    }
    line.mark_unchanged();
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut line: watch::Receiver<Line>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n) = from.read(&mut buffer).await {
        if n == 0 || line.wait_for(|line| *line != Line::Stalled).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}
