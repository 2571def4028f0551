//! One connection: how it is made, watched, moved onto new creds and closed.
//!
//! Invariant: it presents what its [`CredsSource`] holds *now* at every (re)connect, it never falls
//! back from TLS to plaintext, and its reply inboxes all lie below `_INBOX_<connId>`.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{AuthError, ConnectErrorKind, Subject};
use cotal_wire::accounts::parse_api_tag;
use cotal_wire::creds::Claims;
use data_encoding::BASE32_NOPAD;
use tokio::sync::watch;

use crate::broadcast::{Listener, RecvError};
use crate::creds::{Creds, CredsError, CredsSource};
use crate::error::{ConnectError, Denial, NatsError};
use crate::event::{ConnEvent, ConnState, Hub, Phase};
use crate::fence::Fence;
use crate::guard::{DialError, Guard};
use crate::transport::{HANDSHAKE_TIMEOUT, TlsMode};

/// The broker answers this for every credential: with the account's facts, or with a refusal.
pub(crate) const PROBE_SUBJECT: &str = "$JS.API.INFO";
/// The broker is noticed as gone after about three of these, because the client allows two pending
/// pings.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A redial waits at most this long, so that a broker which is back is found at once.
const MAX_REDIAL_DELAY: Duration = Duration::from_millis(500);
/// Where the broker serves the API of the account's own streams.
const API: &str = "$JS.API";
/// Messages a subscription buffers before the client drops them; far above any pull in flight.
const SUBSCRIPTION_CAPACITY: usize = 65_536;
/// Bytes read from the socket at once, where many messages come.
const READ_BUFFER: u16 = u16::MAX;

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The broker, such as `nats://127.0.0.1:4222`.
    pub url: String,
    /// The name the broker lists the connection under.
    pub name: String,
    /// What to present, asked anew at every connect.
    pub creds: CredsSource,
    /// The transport demanded.
    pub tls: TlsMode,
    /// Time between pings.
    pub ping_interval: Duration,
    /// Keep dialling instead of failing when the first attempt fails.
    pub retry_initial: bool,
    /// How long a request waits for its answer unless it says otherwise.
    pub request_timeout: Duration,
    /// What is asked before each write of the connection's handle.
    pub fence: Option<Fence>,
    /// Heartbeats of idle pulls and watches are asked for no more often than this. A watch whose
    /// consumer is gone without a word is found within twice as long.
    pub heartbeat_at_least: Duration,
    /// Bytes that are read from the socket at once, and held for as long as the connection stands.
    pub read_buffer: u16,
}

impl ConnectOptions {
    /// The defaults of infrastructure connections.
    pub fn new(url: impl Into<String>, name: impl Into<String>, creds: CredsSource) -> Self {
        Self {
            url: url.into(),
            name: name.into(),
            creds,
            tls: TlsMode::Plain,
            ping_interval: PING_INTERVAL,
            retry_initial: false,
            request_timeout: REQUEST_TIMEOUT,
            fence: None,
            heartbeat_at_least: Duration::ZERO,
            read_buffer: READ_BUFFER,
        }
    }

    /// Demands this transport.
    #[must_use]
    pub fn tls(mut self, tls: TlsMode) -> Self {
        self.tls = tls;
        self
    }

    /// Dials until it succeeds.
    #[must_use]
    pub fn retry_initial(mut self) -> Self {
        self.retry_initial = true;
        self
    }
}

pub(crate) struct Inner {
    pub(crate) client: async_nats::Client,
    pub(crate) hub: Arc<Hub>,
    /// How many connections the relay has with the broker.
    pipes: watch::Receiver<usize>,
    conn_id: String,
    inbox: String,
    creds: CredsSource,
    presented: Presented,
    /// Streams of another account, and the prefix under which their API is served in this one.
    elsewhere: Vec<(String, String)>,
    pub(crate) request_timeout: Duration,
    pub(crate) heartbeat_at_least: Duration,
    /// Tells this connection's inboxes from those of an earlier one with the same key, whose pulls
    /// the broker may still answer.
    run: String,
    next_token: AtomicU64,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The JWT that was presented is the credential's half, and stays out of logs like the
        // other.
        f.debug_struct("Connection")
            .field("conn_id", &self.conn_id)
            .field("state", &*self.hub.state.borrow())
            .finish_non_exhaustive()
    }
}

/// The JWT of the last handshake; it may be older than what the source holds now.
type Presented = Arc<Mutex<Option<String>>>;

impl Drop for Inner {
    fn drop(&mut self) {
        // A client that redials would do so for ever; the flag lets its next attempt end it.
        self.hub.abandon();
    }
}

/// A connection to the broker. Clones share it; it closes when the last one is gone.
#[derive(Clone, Debug)]
pub struct Connection {
    pub(crate) inner: Arc<Inner>,
    pub(crate) fence: Option<Fence>,
}

impl Connection {
    /// Connects. With `retry_initial` it returns at once and [`state`](Self::state) tells the rest.
    pub async fn connect(options: ConnectOptions) -> Result<Self, NatsError> {
        let creds = options.creds.current().map_err(ConnectError::from)?;
        let conn_id = match &creds {
            Some(creds) => {
                creds.check_life().map_err(ConnectError::from)?;
                creds.nkey().to_owned()
            }
            None => random_conn_id()?,
        };
        let hub = Arc::new(Hub::new());
        let events = hub.events.subscribe();
        let inbox = format!("_INBOX_{conn_id}");
        let presented = Presented::default();
        let guard = Arc::new(Guard::to(&options.url, &options.tls).await?);
        let dial = client_options(&options, &conn_id, &inbox, &hub, &presented, &guard)
            .connect(guard.url());
        let client =
            Box::pin(dial).await.map_err(|e| classify_connect(&e, guard.failure(), &options))?;
        let connection = Self {
            inner: Arc::new(Inner {
                client,
                hub,
                pipes: guard.pipes(),
                conn_id,
                inbox,
                creds: options.creds,
                presented,
                elsewhere: creds.as_ref().map(elsewhere).unwrap_or_default(),
                request_timeout: options.request_timeout,
                heartbeat_at_least: options.heartbeat_at_least,
                run: random_run()?,
                next_token: AtomicU64::new(0),
            }),
            fence: options.fence,
        };
        if !options.retry_initial {
            let asks = creds.is_none_or(|creds| may_publish(&creds, PROBE_SUBJECT));
            // Boxed: whoever connects is to stay small.
            Box::pin(connection.accepted(events, asks, options.url)).await?;
        }
        Ok(connection)
    }

    /// Proves that the broker let the connection in. The client takes any line for the answer to
    /// its handshake, also one that a busy broker sent before it had judged the credential.
    async fn accepted(
        &self,
        mut events: Listener<ConnEvent>,
        asks: bool,
        url: String,
    ) -> Result<(), NatsError> {
        let proven = async {
            self.connected(HANDSHAKE_TIMEOUT).await?;
            if asks { self.round_trip().await } else { Ok(()) }
        };
        tokio::select! {
            biased;
            detail = rejection(&mut events) => {
                Err(ConnectError::Rejected { url, detail: detail.to_owned() }.into())
            }
            proven = proven => proven,
        }
    }

    /// A handle to the same connection whose writes into streams, and deletions from them, fail
    /// with [`NatsError::Withheld`] while `fence` says no. Reads, replies and consumers are not
    /// fenced.
    #[must_use]
    pub fn fenced(&self, fence: Fence) -> Self {
        Self { inner: Arc::clone(&self.inner), fence: Some(fence) }
    }

    pub(crate) fn may_write(&self, what: impl FnOnce() -> String) -> Result<(), NatsError> {
        match &self.fence {
            Some(fence) if !fence.is_open() => Err(NatsError::Withheld { what: what() }),
            _ => Ok(()),
        }
    }

    /// Everything that happens from now on.
    pub fn events(&self) -> Listener<ConnEvent> {
        self.inner.hub.events.subscribe()
    }

    /// The permissions violations from now on.
    pub fn denials(&self) -> Listener<Denial> {
        self.inner.hub.denials.subscribe()
    }

    /// The state and its changes.
    pub fn state(&self) -> watch::Receiver<ConnState> {
        self.inner.hub.state.subscribe()
    }

    /// Whether the connection is usable now.
    pub fn is_connected(&self) -> bool {
        self.inner.client.connection_state() == State::Connected
            && self.inner.hub.state.borrow().is_connected()
    }

    /// Waits until the connection is usable.
    pub async fn connected(&self, within: Duration) -> Result<(), NatsError> {
        let mut state = self.state();
        let settled = state.wait_for(|s| matches!(s.phase, Phase::Connected | Phase::Closed));
        match tokio::time::timeout(within, settled).await {
            Ok(Ok(state)) if state.is_connected() => Ok(()),
            Ok(_) => Err(NatsError::Closed),
            Err(_) => Err(NatsError::Timeout { what: "the connection".into(), after: within }),
        }
    }

    /// Drops the transport and dials again with the current creds.
    pub async fn force_reconnect(&self) -> Result<(), NatsError> {
        self.inner.client.force_reconnect().await.map_err(|_| NatsError::Closed)
    }

    /// Moves the connection onto other creds of the same nkey and waits until it is back; it stays
    /// as it is when it presented the very same ones.
    pub async fn adopt(&self, creds: Creds, within: Duration) -> Result<(), NatsError> {
        if creds.nkey() != self.conn_id() {
            return Err(ConnectError::Creds(CredsError::Identity {
                expected: self.conn_id().to_owned(),
                found: creds.nkey().to_owned(),
            })
            .into());
        }
        self.inner.creds.replace(creds);
        self.move_on(within).await
    }

    /// Redials until the handshake presented what the source holds now. A redial that was under way
    /// may still have presented what it held before.
    pub async fn move_on(&self, within: Duration) -> Result<(), NatsError> {
        let mut state = self.state();
        let moved = async {
            loop {
                let settled = state.wait_for(|s| s.is_connected() || s.phase == Phase::Closed);
                let now = *settled.await.map_err(|_| NatsError::Closed)?;
                if now.phase == Phase::Closed {
                    return Err(NatsError::Closed);
                }
                if self.presented_current() {
                    return Ok(());
                }
                self.force_reconnect().await?;
                let dropped = state.wait_for(|s| s.drops > now.drops || s.phase == Phase::Closed);
                dropped.await.map_err(|_| NatsError::Closed)?;
            }
        };
        match tokio::time::timeout(within, moved).await {
            Ok(outcome) => outcome,
            Err(_) => Err(NatsError::Timeout { what: "the reconnect".into(), after: within }),
        }
    }

    fn presented_current(&self) -> bool {
        let presented = self.inner.presented.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.inner.creds.current().ok().flatten();
        presented.as_deref() == current.as_ref().map(Creds::jwt)
    }

    /// Sends what is queued, then closes. A connection that is down is given up at once.
    pub async fn close(&self, within: Duration) {
        if self.is_connected() {
            let (mut state, mut pipes) = (self.state(), self.inner.pipes.clone());
            if self.inner.client.drain().await.is_ok() {
                let sent = async {
                    let closed = state.wait_for(|s| s.phase == Phase::Closed).await.is_ok();
                    closed && pipes.wait_for(|pipes| *pipes == 0).await.is_ok()
                };
                let _ = tokio::time::timeout(within, sent).await;
            }
        }
        self.inner.hub.abandon();
    }

    /// Sends on its way what is queued so far; [`close`](Self::close) waits until the broker has
    /// it.
    pub async fn flush(&self) -> Result<(), NatsError> {
        self.inner.client.flush().await.map_err(|_| NatsError::Closed)
    }

    /// The largest message the broker accepts, headers included.
    pub fn max_payload(&self) -> usize {
        self.inner.client.max_payload()
    }

    /// The broker's version, such as `2.15.1`.
    pub fn server_version(&self) -> String {
        self.inner.client.server_info().version
    }

    /// Whether the broker is at least of this version.
    pub fn server_at_least(&self, major: i64, minor: i64, patch: i64) -> bool {
        self.inner.client.is_server_compatible(major, minor, patch)
    }

    /// The broker's id.
    pub fn server_id(&self) -> String {
        self.inner.client.server_info().server_id
    }

    /// The broker's name.
    pub fn server_name(&self) -> String {
        self.inner.client.server_info().server_name
    }

    /// The number the broker lists this connection under; it changes with every reconnect.
    pub fn client_id(&self) -> u64 {
        self.inner.client.server_info().client_id
    }

    /// The connection's nkey, or a random stand-in when it is anonymous.
    pub fn conn_id(&self) -> &str {
        &self.inner.conn_id
    }

    /// The prefix of every reply inbox, without a trailing dot.
    pub fn inbox_prefix(&self) -> &str {
        &self.inner.inbox
    }

    /// Where this connection gets its creds.
    pub fn creds(&self) -> &CredsSource {
        &self.inner.creds
    }

    /// The prefix under which the API of `stream` is served: the broker's own, unless the
    /// credential says that the stream stands in another account.
    pub(crate) fn api_of(&self, stream: &str) -> &str {
        let elsewhere = self.inner.elsewhere.iter().find(|(other, _)| other == stream);
        elsewhere.map_or(API, |(_, prefix)| prefix)
    }

    /// A reply inbox of exactly two tokens that no one else on this connection uses.
    pub(crate) fn new_inbox(&self) -> String {
        let n = self.inner.next_token.fetch_add(1, Ordering::Relaxed);
        let Inner { inbox, run, .. } = &*self.inner;
        format!("{inbox}.{run}{n:x}")
    }

    pub(crate) fn client(&self) -> &async_nats::Client {
        &self.inner.client
    }

    pub(crate) fn drops(&self) -> u64 {
        self.inner.hub.state.borrow().drops
    }

    /// Refuses what the broker would refuse silently.
    pub(crate) fn check_size(&self, what: &Subject, size: usize) -> Result<(), NatsError> {
        let max = self.max_payload();
        if size > max {
            return Err(NatsError::TooLarge { what: format!("a message to {what}"), size, max });
        }
        Ok(())
    }
}

/// Whether `subject` is allowed in so many words; an empty list allows everything.
fn may_publish(creds: &Creds, subject: &str) -> bool {
    let allowed = &creds.claims().pub_allow;
    allowed.is_empty() || allowed.iter().any(|it| it == subject)
}

fn elsewhere(creds: &Creds) -> Vec<(String, String)> {
    let tags = creds.claims().tags.iter();
    let named = |(stream, prefix): (&str, &str)| (stream.to_owned(), prefix.to_owned());
    tags.filter_map(|tag| parse_api_tag(tag).map(named)).collect()
}

fn client_options(
    options: &ConnectOptions,
    conn_id: &str,
    inbox: &str,
    hub: &Arc<Hub>,
    presented: &Presented,
    guard: &Arc<Guard>,
) -> async_nats::ConnectOptions {
    let base = auth_options(options.creds.clone(), conn_id.to_owned(), Arc::clone(presented));
    let events = Arc::clone(hub);
    let redials = Arc::clone(hub);
    // Held by what the library asks before each dial, so that nobody else gets its address while it
    // may dial.
    let guard = Arc::clone(guard);
    let base = base
        .name(&options.name)
        .custom_inbox_prefix(inbox)
        .ping_interval(options.ping_interval)
        .connection_timeout(HANDSHAKE_TIMEOUT)
        .request_timeout(Some(options.request_timeout))
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .read_buffer_capacity(options.read_buffer)
        .ignore_discovered_servers()
        .max_reconnects(None)
        .reconnect_delay_callback(move |attempts| {
            let _address_stays_taken = &guard;
            redial_delay(&redials, attempts)
        })
        .event_callback(move |event| {
            events.on_client_event(event);
            std::future::ready(())
        });
    if options.retry_initial { base.retry_on_initial_connect() } else { base }
}

fn auth_options(
    source: CredsSource,
    conn_id: String,
    presented: Presented,
) -> async_nats::ConnectOptions {
    if matches!(source.current(), Ok(None)) {
        return async_nats::ConnectOptions::new();
    }
    async_nats::ConnectOptions::with_auth_callback(move |nonce| {
        let auth = present(&source, &conn_id, &nonce);
        if let Ok(auth) = &auth {
            *presented.lock().unwrap_or_else(PoisonError::into_inner) = auth.jwt.clone();
        }
        std::future::ready(auth.map_err(AuthError::new))
    })
}

fn present(
    source: &CredsSource,
    conn_id: &str,
    nonce: &[u8],
) -> Result<async_nats::Auth, CredsError> {
    let mut auth = async_nats::Auth::new();
    let Some(creds) = source.current()? else {
        return Ok(auth);
    };
    if creds.nkey() != conn_id {
        return Err(CredsError::Identity {
            expected: conn_id.to_owned(),
            found: creds.nkey().to_owned(),
        });
    }
    creds.check_life()?;
    auth.jwt = Some(creds.jwt().to_owned());
    auth.signature = Some(creds.sign(nonce)?);
    Ok(auth)
}

fn redial_delay(hub: &Hub, attempts: usize) -> Duration {
    if hub.is_abandoned() {
        // The client redials for as long as it has no limit of attempts, also when every handle is
        // gone, and offers no other way to end it than to unwind its task.
        std::panic::resume_unwind(Box::new("the connection was closed while it redialled"));
    }
    if attempts <= 1 {
        return Duration::ZERO;
    }
    let exponent = u32::try_from(attempts.min(16)).unwrap_or(16);
    Duration::from_millis(2_u64.saturating_pow(exponent)).min(MAX_REDIAL_DELAY)
}

/// 128 random bits in hex.
pub(crate) fn random_hex() -> Result<String, NatsError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| NatsError::malformed("kernel randomness", e.to_string()))?;
    Ok(data_encoding::HEXLOWER.encode(&bytes))
}

/// As long as an nkey, so that nothing downstream meets two kinds of ids.
fn random_run() -> Result<String, NatsError> {
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes)
        .map_err(|e| NatsError::malformed("kernel randomness", e.to_string()))?;
    Ok(data_encoding::HEXLOWER.encode(&bytes) + "-")
}

fn random_conn_id() -> Result<String, NatsError> {
    let mut bytes = [0_u8; 34];
    getrandom::fill(&mut bytes).map_err(|e| NatsError::malformed("kernel randomness", e))?;
    let mut id = String::from("U");
    id.push_str(&BASE32_NOPAD.encode(&bytes));
    Ok(id)
}

/// Waits until the broker rejects the credential.
async fn rejection(events: &mut Listener<ConnEvent>) -> &'static str {
    loop {
        match events.recv().await {
            Ok(ConnEvent::AuthViolation) => return "authorization violation",
            Ok(ConnEvent::AuthExpired) => return "it has expired",
            Ok(ConnEvent::AuthRevoked) => return "it was revoked",
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return std::future::pending().await,
        }
    }
}

fn classify_connect(
    error: &async_nats::ConnectError,
    failure: Option<DialError>,
    options: &ConnectOptions,
) -> ConnectError {
    let url = options.url.clone();
    let detail = error.to_string();
    match error.kind() {
        ConnectErrorKind::ServerParse => ConnectError::Address { url, detail },
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            ConnectError::Rejected { url, detail }
        }
        ConnectErrorKind::TimedOut => ConnectError::Timeout { url, after: HANDSHAKE_TIMEOUT },
        ConnectErrorKind::Io if detail.to_ascii_lowercase().contains("authentication") => {
            ConnectError::Rejected { url, detail }
        }
        ConnectErrorKind::Tls
        | ConnectErrorKind::Dns
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => match failure {
            Some(DialError::Tls(detail)) => ConnectError::Tls { url, detail },
            Some(DialError::Unreachable(detail)) => ConnectError::Unreachable { url, detail },
            None => ConnectError::Unreachable { url, detail },
        },
    }
}

/// What a proof connection showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The claims of the accepted JWT.
    pub claims: Claims,
    /// The broker that accepted it.
    pub server_id: String,
}

/// Shows on a short connection of its own that the broker accepts `creds`.
pub async fn prove(options: &ConnectOptions, creds: Creds) -> Result<Proof, NatsError> {
    let claims = creds.claims().clone();
    let mut options = options.clone();
    options.creds = CredsSource::new(creds);
    options.retry_initial = false;
    let connection = Connection::connect(options).await?;
    let server_id = connection.server_id();
    connection.close(Duration::from_secs(1)).await;
    Ok(Proof { claims, server_id })
}
