//! A manager in this process, and a daemon that answers as a test says.

use std::sync::Arc;
use std::sync::Mutex;

use cotal_manager::{Authority, Manager, ManagerError, ManagerOptions, Sessions};
use cotal_testkit::{God, Mesh};
use cotal_wire::control::{Code, Reply, Request, op};
use cotal_workspace::{FileStore, SecretStore as _};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) fn options(mesh: &Mesh) -> ManagerOptions {
    options_of(mesh, mesh.authority())
}

pub(crate) fn options_of(mesh: &Mesh, authority: Authority) -> ManagerOptions {
    let store = Arc::new(FileStore::new(mesh.root().clone()));
    ManagerOptions::new(authority, store, mesh.address())
}

/// A manager that runs.
pub(crate) struct Running {
    pub(crate) sessions: Sessions,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ManagerError>>,
}

impl Running {
    pub(crate) async fn start(options: ManagerOptions) -> Self {
        let manager = Manager::start(options).await.unwrap();
        let sessions = manager.sessions();
        let stop = CancellationToken::new();
        let task = tokio::spawn(manager.run(stop.clone()));
        Self { sessions, stop, task }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

/// The admin requests of a space that were made so far, by operation.
#[derive(Clone, Default)]
pub(crate) struct Asked(Arc<Mutex<Vec<Request>>>);

impl Asked {
    /// Listens beside whoever answers.
    pub(crate) async fn listen(god: &God) -> Self {
        let asked = Self::default();
        let mut requests =
            god.connection.subscribe(RAIL.to_owned(), None).await.expect("a subscription");
        let noted = asked.clone();
        tokio::spawn(async move {
            while let Ok(message) = requests.next().await {
                noted.note(&message.payload);
            }
        });
        asked
    }

    fn note(&self, payload: &[u8]) -> Option<Request> {
        let request = Request::parse(payload).ok()?;
        self.0.lock().unwrap().push(request.clone());
        Some(request)
    }

    pub(crate) fn count(&self, op: &str) -> usize {
        self.0.lock().unwrap().iter().filter(|request| request.op == op).count()
    }

    /// How many principals each eviction asked about.
    pub(crate) fn batches(&self) -> Vec<usize> {
        let asked = self.0.lock().unwrap();
        let evictions = asked.iter().filter(|request| request.op == op::EVICT_PRINCIPALS);
        let size = |request: &Request| request.args["principals"].as_array().map_or(0, Vec::len);
        evictions.map(size).collect()
    }
}

const RAIL: &str = "cotal.main.ctl.delivery-admin.*.*";

/// What a daemon of a test answers; `None` is silence.
pub(crate) type Answer = fn(&Request) -> Option<Vec<u8>>;

/// A daemon that reads the root's store and else answers as `answer` says.
pub(crate) async fn pretend(mesh: &Mesh, god: &God, answer: Answer) -> Asked {
    let identity = FileStore::new(mesh.root().clone()).identity();
    let identity = serde_json::to_value(identity).unwrap();
    let asked = Asked::default();
    let noted = asked.clone();
    let connection = god.connection.clone();
    let mut requests = connection.subscribe(RAIL.to_owned(), None).await.expect("a subscription");
    tokio::spawn(async move {
        while let Ok(message) = requests.next().await {
            let Some(request) = noted.note(&message.payload) else { continue };
            let body = match answer(&request) {
                Some(body) if body.is_empty() => bytes_of(&Reply::done(identity.clone())),
                Some(body) => body,
                None => continue,
            };
            let to = message.reply.expect("a reply subject");
            connection.publish(to, None, body.into()).await.expect("a reply");
        }
    });
    asked
}

pub(crate) fn bytes_of(reply: &Reply) -> Vec<u8> {
    serde_json::to_vec(reply).unwrap()
}

pub(crate) fn refusal(code: Code) -> Vec<u8> {
    bytes_of(&Reply::refused(code, "not here"))
}

/// The identity of the store, or whatever `other` answers to everything else.
pub(crate) fn identity_or(request: &Request, other: Vec<u8>) -> Option<Vec<u8>> {
    Some(if request.op == op::RELOAD_STORE_IDENTITY { Vec::new() } else { other })
}
