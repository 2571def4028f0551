//! Runs a component beside delivery: on its own connection, restarted with backoff after a fault,
//! and never ending the lane (TMR-2 to TMR-4, FED-2).
//!
//! Invariant: the connection uses the credential that its source holds now. It reconnects when the
//! source's credential is replaced, and is closed when the credential expires, so that nothing
//! dials with an expired one.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cotal_nats::{ConnectOptions, Connection, CredsError, NatsError};
use cotal_wire::Space;
use cotal_wire::control::Down;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// The first wait before a restart; it doubles with each.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// The longest wait before a restart.
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// A run of at least this length counts as working: the backoff starts again.
const STEADY: Duration = Duration::from_secs(60);
/// How long a reconnect with a new credential may take.
const MOVED_WITHIN: Duration = Duration::from_secs(5);
/// How long closing a connection may take.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);

/// Why a component does not run, for status replies. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    component: &'static str,
    reason: Arc<watch::Sender<Option<String>>>,
}

impl Health {
    /// The health of a component that has not started yet.
    pub(crate) fn new(component: &'static str) -> Self {
        let reason = Arc::new(watch::Sender::new(Some("it has not started yet".to_owned())));
        Self { component, reason }
    }

    /// Why it does not run; `None` while it does.
    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.borrow().clone()
    }

    /// The same, in the form that a status shows.
    pub(crate) fn down(&self) -> Option<Down> {
        self.reason().map(|reason| Down { component: self.component.to_owned(), reason })
    }

    /// Reports that the component runs, after it has just shown so.
    pub(crate) fn runs(&self) {
        self.reason.send_if_modified(|reason| reason.take().is_some());
    }

    /// Reports that the component does not do its work, and why.
    pub(crate) fn fails(&self, why: String) {
        self.reason.send_replace(Some(why));
    }
}

/// Why one run of a component ended.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("it cannot connect: {0}")]
    Connect(NatsError),
    #[error("it cannot reconnect with the renewed credential: {0}")]
    Move(NatsError),
    #[error("its credential has expired, and no renewed one was adopted: {0}")]
    Expired(CredsError),
    #[error("{0}")]
    Component(String),
    #[error("it panicked: {0}")]
    Panicked(String),
}

/// What is needed to run a component.
pub(crate) struct Sidecar {
    pub(crate) space: Space,
    /// How to connect, and the source of the credential.
    pub(crate) connect: ConnectOptions,
    pub(crate) health: Health,
    /// What does not work while it is down, for the log.
    pub(crate) meanwhile: &'static str,
}

impl Sidecar {
    /// Runs `component` again and again until `stop` is cancelled. Each run gets a connection of
    /// its own. When `stop` is cancelled the component must end by itself; it is given time to
    /// finish.
    pub(crate) async fn run<F, E>(
        self,
        stop: CancellationToken,
        component: impl Fn(Connection, CancellationToken) -> F,
    ) where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Error + Send + 'static,
    {
        let mut backoff = FIRST_BACKOFF;
        while !stop.is_cancelled() {
            let began = Instant::now();
            let mut replaced = self.connect.creds.replacements();
            let ended = Box::pin(self.run_once(&stop, &component)).await;
            let fault = match ended {
                _ if stop.is_cancelled() => return,
                Ok(()) => Fault::Component("it ended by itself".to_owned()),
                Err(fault) => fault,
            };
            if began.elapsed() >= STEADY {
                backoff = FIRST_BACKOFF;
            }
            self.say_down(&fault, backoff);
            tokio::select! {
                () = stop.cancelled() => return,
                // The failure may have been due to the old credential.
                () = replaced.next() => {}
                () = tokio::time::sleep(backoff) => {}
            }
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
        }
    }

    fn say_down(&self, fault: &Fault, backoff: Duration) {
        let (space, component) = (&self.space, self.health.component);
        let (meanwhile, again) = (self.meanwhile, backoff);
        error!(%space, component, reason = %fault, meanwhile, ?again, "a component is down");
        self.health.fails(fault.to_string());
    }

    async fn run_once<F, E>(
        &self,
        stop: &CancellationToken,
        component: impl Fn(Connection, CancellationToken) -> F,
    ) -> Result<(), Fault>
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Error + Send + 'static,
    {
        let mut replaced = self.connect.creds.replacements();
        let dial = Box::pin(Connection::connect(self.connect.clone()));
        let dialled = stop.run_until_cancelled(dial).await;
        let Some(dialled) = dialled else { return Ok(()) };
        let connection = dialled.map_err(Fault::Connect)?;
        // A task of its own, so that a panic ends only this run.
        let mut running = JoinSet::new();
        running.spawn(Box::pin(component(connection.clone(), stop.clone())));
        let mut state = connection.state();
        let ended = loop {
            tokio::select! {
                ended = running.join_next() => break concluded(ended),
                () = replaced.next() => {
                    let moving = connection.move_on(MOVED_WITHIN);
                    if let Some(Err(error)) = stop.run_until_cancelled(moving).await {
                        break Err(Fault::Move(error));
                    }
                    info!(space = %self.space, component = self.health.component, "reconnected with a renewed credential");
                }
                Ok(()) = state.changed() => {
                    if let Err(expired) = self.while_disconnected(&connection) {
                        break Err(expired);
                    }
                }
            }
        };
        running.shutdown().await;
        connection.close(CLOSED_WITHIN).await;
        ended
    }

    /// The client redials by itself. If the credential that it would use has expired, the run ends.
    fn while_disconnected(&self, connection: &Connection) -> Result<(), Fault> {
        if connection.is_connected() {
            return Ok(());
        }
        warn!(space = %self.space, component = self.health.component, "its connection dropped; redialling");
        let presented = connection.creds().current().map_err(Fault::Expired)?;
        presented.map_or(Ok(()), |creds| creds.check_life()).map_err(Fault::Expired)
    }
}

/// Runs `work` so that a panic in it ends nothing else. The panic is logged and kept as the reason.
pub(crate) async fn contained(
    space: Space,
    health: Health,
    stop: CancellationToken,
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
) {
    let mut task = JoinSet::new();
    task.spawn(work);
    if let Some(Err(panicked)) = task.join_next().await {
        let component = health.component;
        error!(%space, component, %panicked, "a component is down until the daemon restarts");
        health.fails(Fault::Panicked(panicked.to_string()).to_string());
        stop.cancelled().await;
    }
}

fn concluded<E: Error>(
    ended: Option<Result<Result<(), E>, tokio::task::JoinError>>,
) -> Result<(), Fault> {
    match ended {
        None | Some(Ok(Ok(()))) => Ok(()),
        Some(Ok(Err(error))) => Err(Fault::Component(error.to_string())),
        Some(Err(error)) => Err(Fault::Panicked(error.to_string())),
    }
}
