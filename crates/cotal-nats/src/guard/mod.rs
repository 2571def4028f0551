//! A relay inside this process between the client library and the broker.
//!
//! The broker passes on whatever header bytes and subjects a publisher made, and the library
//! panics on some of them and redials on others, for ever where the message is stored. It lets
//! nobody give it a stream or look at one, so it is given an address of this process instead, and
//! what comes from the broker is repaired before the library reads it. All else passes as it is.
//!
//! Invariant: the address stays taken for as long as the library may dial it, so that no other
//! process can be taken for the broker. Another local process that connects to it gains a way to
//! the broker, and must authenticate there like everybody.

mod block;
mod dial;
mod frames;
#[cfg(test)]
mod hostile;
mod notes;
mod relay;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::ServerAddr;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;

use crate::error::ConnectError;
use crate::transport::TlsMode;
pub(crate) use dial::DialError;
use dial::Target;
use notes::Notes;
use relay::relay;

/// The library has one connection at a time and perhaps one that is closing; another process may
/// take the other places, until the broker closes what does not authenticate.
const MAX_PIPES: usize = 16;
/// The library is gone: how long what it sent last may take to the broker.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// A process without free descriptors can accept nothing for a while.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The relay of one connection. Dropped, it takes no more connections, and those that stand end
/// with the library's side.
#[derive(Debug)]
pub(crate) struct Guard {
    url: String,
    shared: Arc<Shared>,
    pipes: watch::Receiver<usize>,
    _stop: DropGuard,
}

#[derive(Debug)]
struct Shared {
    target: Target,
    notes: Notes,
    /// Why the last attempt to reach the broker failed; the library sees only a connection that
    /// was closed.
    failure: Mutex<Option<DialError>>,
}

impl Guard {
    /// The relay to the broker at `url`.
    pub(crate) async fn to(url: &str, tls: &TlsMode) -> Result<Self, ConnectError> {
        let address = url.parse().map_err(|e: std::io::Error| {
            let detail = e.to_string();
            ConnectError::Address { url: url.to_owned(), detail }
        })?;
        Self::open(address, tls.clone()).await.map_err(|e| {
            let detail = format!("no loopback port for the relay to it: {e}");
            ConnectError::Unreachable { url: url.to_owned(), detail }
        })
    }

    /// Listens for the library.
    async fn open(address: ServerAddr, tls: TlsMode) -> std::io::Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        let url = format!("nats://{}", listener.local_addr()?);
        let target = Target { address, tls };
        let shared = Shared { target, notes: Notes::default(), failure: Mutex::default() };
        let shared = Arc::new(shared);
        let stop = CancellationToken::new();
        let (count, pipes) = watch::channel(0);
        tokio::spawn(accept(listener, Arc::clone(&shared), count, stop.clone()));
        Ok(Self { url, shared, pipes, _stop: stop.drop_guard() })
    }

    /// What the library is to dial.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// How many connections stand.
    pub(crate) fn pipes(&self) -> watch::Receiver<usize> {
        self.pipes.clone()
    }

    /// Why the broker could not be reached when it was last tried, if it could not.
    pub(crate) fn failure(&self) -> Option<DialError> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Takes connections until told to stop, and waits for the end of those that stand.
async fn accept(
    listener: TcpListener,
    shared: Arc<Shared>,
    count: watch::Sender<usize>,
    stop: CancellationToken,
) {
    let mut pipes = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = pipes.join_next(), if !pipes.is_empty() => {}
            taken = listener.accept(), if pipes.len() < MAX_PIPES => match taken {
                Ok((library, _)) => {
                    pipes.spawn(serve(library, Arc::clone(&shared)));
                }
                Err(error) => {
                    debug!(%error, "no connection could be accepted");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            },
        }
        count.send_replace(pipes.len());
    }
    drop(listener);
    let _ = tokio::time::timeout(LAST_WORDS, async {
        while pipes.join_next().await.is_some() {
            count.send_replace(pipes.len());
        }
    })
    .await;
}

/// Serves one connection of the library from its dial to its end.
async fn serve(library: TcpStream, shared: Arc<Shared>) {
    let dialled = match library.set_nodelay(true) {
        Ok(()) => shared.target.dial().await,
        Err(error) => Err(DialError::Unreachable(error.to_string())),
    };
    let keep = |failure| {
        *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    };
    match dialled {
        Ok(dialled) => {
            keep(None);
            // Boxed: an idle relay waits in it for as long as the connection stands.
            Box::pin(relay(library, dialled, &shared.notes)).await;
        }
        Err(error) => {
            debug!(%error, broker = shared.target.address.host(), "the broker could not be reached");
            keep(Some(error));
        }
    }
}
