//! The way to the broker: TCP, TLS where it is demanded, and the broker's first line.
//!
//! Invariant: nothing passes before TLS stands where it is demanded, by the caller, by the address
//! or by the broker.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_nats::ServerAddr;
use async_nats::rustls::pki_types::pem::PemObject as _;
use async_nats::rustls::pki_types::{CertificateDer, ServerName};
use async_nats::rustls::{ClientConfig, RootCertStore};
use bytes::BytesMut;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::transport::{HANDSHAKE_TIMEOUT, TlsMode};

/// The broker's first line lists the servers of its cluster; no cluster needs more.
const MAX_INFO: usize = 1024 * 1024;
const INFO: &str = "INFO ";

/// Why the broker could not be reached.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// There is no way to it, or it does not speak the protocol.
    #[error("{0}")]
    Unreachable(String),
    /// TLS did not come about.
    #[error("{0}")]
    Tls(String),
}

/// Where the broker is, and what transport is demanded.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) address: ServerAddr,
    pub(super) tls: TlsMode,
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection to the broker, and what it said first.
pub(super) struct Dialled {
    pub(super) stream: Box<dyn Stream>,
    pub(super) said: BytesMut,
}

impl Target {
    /// Connects to the first of the broker's addresses that answers.
    pub(super) async fn dial(&self) -> Result<Dialled, DialError> {
        let addresses: Vec<_> =
            self.address.socket_addrs().await.map_err(|e| unreachable(&e))?.collect();
        // One that does not answer must leave time for the next.
        let share = HANDSHAKE_TIMEOUT / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        let mut last = DialError::Unreachable(format!("{} has no address", self.address.host()));
        for address in addresses {
            let dialled = async {
                let stream = TcpStream::connect(address).await.map_err(|e| unreachable(&e))?;
                stream.set_nodelay(true).map_err(|e| unreachable(&e))?;
                self.greet(stream).await
            };
            match tokio::time::timeout(share, dialled).await {
                Ok(Ok(dialled)) => return Ok(dialled),
                Ok(Err(error)) => last = error,
                Err(_) => last = DialError::Unreachable(format!("no answer within {share:?}")),
            }
        }
        Err(last)
    }

    /// Hears the broker's first line, and begins TLS where it is demanded.
    async fn greet(&self, mut stream: TcpStream) -> Result<Dialled, DialError> {
        let (mut said, mut info) = hear(&mut stream).await?;
        let demanded = self.tls != TlsMode::Plain
            || self.address.tls_required()
            || info.get("tls_required") == Some(&Value::Bool(true));
        if !demanded {
            return Ok(Dialled { stream: Box::new(stream), said });
        }
        let config = match &self.tls {
            TlsMode::Required { ca: Some(ca) } => config(Some(ca)).await,
            TlsMode::Required { ca: None } | TlsMode::Plain => config(None).await,
        };
        let connector = TlsConnector::from(Arc::new(config?));
        let name = ServerName::try_from(self.address.host().to_owned()).map_err(|e| tls(&e))?;
        let stream = connector.connect(name, stream).await.map_err(|e| tls(&e))?;
        // The library speaks to this process in the clear.
        info.insert("tls_required".to_owned(), Value::Bool(false));
        said.clear();
        said.extend_from_slice(format!("{INFO}{}\r\n", Value::Object(info)).as_bytes());
        Ok(Dialled { stream: Box::new(stream), said })
    }
}

/// Reads up to the end of the broker's first line.
async fn hear(stream: &mut TcpStream) -> Result<(BytesMut, Map<String, Value>), DialError> {
    let mut said = BytesMut::new();
    loop {
        if let Some(end) = said.windows(2).position(|pair| pair == b"\r\n") {
            let info = said[..end].strip_prefix(INFO.as_bytes());
            let info = info.and_then(|info| serde_json::from_slice(info).ok());
            let info = info.ok_or_else(|| {
                DialError::Unreachable("what answers there is no NATS broker".to_owned())
            })?;
            return Ok((said, info));
        }
        if said.len() > MAX_INFO {
            return Err(DialError::Unreachable("the broker's first line has no end".to_owned()));
        }
        if stream.read_buf(&mut said).await.map_err(|e| unreachable(&e))? == 0 {
            return Err(DialError::Unreachable("the broker closed the connection".to_owned()));
        }
    }
}

/// Trusts the certificates in `ca`, or the system's.
async fn config(ca: Option<&Path>) -> Result<ClientConfig, DialError> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = ca {
        let about = |e: &dyn std::fmt::Display| DialError::Tls(format!("{}: {e}", ca.display()));
        let pem = tokio::fs::read(ca).await.map_err(|e| about(&e))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|e| about(&e))?;
            roots.add(certificate).map_err(|e| about(&e))?;
        }
    } else {
        let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
        roots.add_parsable_certificates(found.map_err(|e| tls(&e))?.certs);
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

fn unreachable(error: &io::Error) -> DialError {
    DialError::Unreachable(format!("IO error: {error}"))
}

fn tls(error: &impl std::fmt::Display) -> DialError {
    DialError::Tls(format!("TLS error: {error}"))
}
