//! How an endpoint is made.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use cotal_nats::{Creds, CredsError, CredsSource, TlsMode};

/// A durable join copies what was posted meanwhile, which takes the daemon a while on a busy
/// channel.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(5);
const PREFETCH: usize = 100;

/// Where the credential comes from. Its `Debug` shows no secret.
///
/// A [`Source`](Self::Source) is asked at every connect, so that a credential that is renewed
/// elsewhere is taken up:
///
/// ```
/// use cotal_client::{Creds, CredsError, CredsSource, Credential};
///
/// # fn vault() -> Result<String, std::io::Error> { Ok(String::new()) }
/// let source = CredsSource::from_fn(|| {
///     let text = vault().map_err(|e| CredsError::Source(e.to_string()))?;
///     Creds::parse(&text)
/// });
/// let credential = Credential::Source(source);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Credential {
    /// The text of a creds file.
    Text(String),
    /// A creds file, read anew at every connect, so that a renewed one is taken up.
    File(PathBuf),
    /// A source of the caller's own.
    Source(CredsSource),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Source(source) => f.debug_tuple("Source").field(source).finish(),
        }
    }
}

impl Credential {
    pub(crate) fn into_source(self) -> Result<CredsSource, CredsError> {
        Ok(match self {
            Self::Text(text) => CredsSource::new(Creds::parse(&text)?),
            Self::File(path) => CredsSource::from_fn(move || {
                let text = std::fs::read_to_string(&path)
                    .map_err(|e| CredsError::Source(format!("{}: {e}", path.display())))?;
                Creds::parse(&text)
            }),
            Self::Source(source) => source,
        })
    }
}

/// How to make an [`Endpoint`](crate::Endpoint). Who it is comes from the credential alone.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EndpointOptions {
    /// The broker, such as `nats://127.0.0.1:4222`.
    pub server: String,
    /// What to present there.
    pub credential: Credential,
    /// The name to give in messages and presence; the actor when absent.
    pub name: Option<String>,
    /// The transport demanded.
    pub tls: TlsMode,
    /// Whether the agent's durables are bound and read.
    pub receive: bool,
    /// Whether the agent shows up as present.
    pub presence: bool,
    /// Whether a join hands out the history that the channel shows to whoever joins it.
    pub backfill: bool,
    /// How long a control request waits for its reply.
    pub request_timeout: Duration,
    /// How long closing waits for each thing that must end.
    pub grace: Duration,
    /// Messages asked of each durable ahead of the caller.
    pub prefetch: usize,
}

impl EndpointOptions {
    /// An endpoint that reads, writes and is present.
    pub fn new(server: impl Into<String>, credential: Credential) -> Self {
        Self {
            server: server.into(),
            credential,
            name: None,
            tls: TlsMode::Plain,
            receive: true,
            presence: true,
            backfill: true,
            request_timeout: REQUEST_TIMEOUT,
            grace: GRACE,
            prefetch: PREFETCH,
        }
    }

    /// The same, with a creds file.
    pub fn from_file(server: impl Into<String>, creds: impl Into<PathBuf>) -> Self {
        Self::new(server, Credential::File(creds.into()))
    }

    /// The same, with the text of a creds file.
    pub fn from_text(server: impl Into<String>, creds: impl Into<String>) -> Self {
        Self::new(server, Credential::Text(creds.into()))
    }

    /// Gives itself this name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Demands this transport.
    #[must_use]
    pub fn tls(mut self, tls: TlsMode) -> Self {
        self.tls = tls;
        self
    }

    /// Leaves the agent's durables and its presence alone, so that another endpoint of the agent is
    /// not disturbed: for whoever only posts, joins or leaves.
    #[must_use]
    pub fn send_only(mut self) -> Self {
        self.receive = false;
        self.presence = false;
        self
    }

    /// Hands out no history on a join: for whoever reads it with
    /// [`Endpoint::history`](crate::Endpoint::history).
    #[must_use]
    pub fn without_backfill(mut self) -> Self {
        self.backfill = false;
        self
    }

    /// Shows up as present, also where it reads nothing.
    #[must_use]
    pub fn present(mut self) -> Self {
        self.presence = true;
        self
    }

    /// Asks each durable for this many messages ahead.
    #[must_use]
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// Waits this long for the reply to a control request.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }
}
