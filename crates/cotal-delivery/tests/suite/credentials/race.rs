//! Two adoptions at once: the daemon's own at 75 % of the life, and a requested one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use cotal_delivery::Lane;
use cotal_testkit::{Mesh, Supervisor, eventually};
use cotal_workspace::{
    MemoryStore, Secret, SecretKey, SecretKind, SecretStore, StoreError, StoreIdentity,
};

use super::support::{Host, adopted, jwt, reload};

/// A store that reads the delivery key, and once returns it only later.
struct SlowStore {
    inner: Arc<MemoryStore>,
    armed: AtomicBool,
    holds: AtomicBool,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl SecretStore for SlowStore {
    fn get(&self, key: &SecretKey) -> Result<Option<Secret>, StoreError> {
        let read = self.inner.get(key);
        if key.kind == SecretKind::Delivery && self.armed.swap(false, Ordering::SeqCst) {
            self.holds.store(true, Ordering::SeqCst);
            let go_on = self.go_on.lock().expect("no panic holds it");
            go_on.recv_timeout(Duration::from_secs(30)).expect("told to go on");
        }
        read
    }

    fn put(&self, key: &SecretKey, secret: &Secret) -> Result<(), StoreError> {
        self.inner.put(key, secret)
    }

    fn delete(&self, key: &SecretKey) -> Result<bool, StoreError> {
        self.inner.delete(key)
    }

    fn identity(&self) -> StoreIdentity {
        self.inner.identity()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn crd_2_of_two_adoptions_at_once_the_older_credential_never_comes_last() {
    let mesh = Mesh::start().await;
    // The daemon re-reads its key about four seconds after its start.
    let host = Host::with_life(&mesh, 11, 9).await;
    let manager = Supervisor::of(&mesh).await;
    let (go_on, told) = mpsc::channel();
    let store = Arc::new(SlowStore {
        inner: Arc::clone(&host.store),
        armed: AtomicBool::new(false),
        holds: AtomicBool::new(false),
        go_on: Mutex::new(told),
    });
    let mut options = host.options();
    options.store = Arc::clone(&store) as _;
    let _lane = cotal_testkit::serving(Lane::start(options)).await;
    let older = host.mint(0, 900);
    host.put(&older);
    store.armed.store(true, Ordering::SeqCst);
    let holds = || async { store.holds.load(Ordering::SeqCst) };
    eventually("the daemon reads its key by itself", holds, |holds| *holds).await;
    let newer = host.mint(0, 1_800);
    host.put(&newer);
    let mut asked = Box::pin(reload(&manager, Some(&newer)));
    // Either it is answered, or it waits for the read in progress.
    let early = tokio::time::timeout(Duration::from_secs(1), &mut asked).await;
    go_on.send(()).expect("the store waits");
    let reply = match early {
        Ok(reply) => reply,
        Err(_) => asked.await,
    };
    adopted(reply);
    host.runs_on(&newer).await;
    let since = Instant::now();
    let resident = || async { (since.elapsed(), host.resident().await) };
    let (_, last) =
        eventually("a while", resident, |(t, _)| *t > Duration::from_millis(1_500)).await;
    assert_eq!(last.expect("a connection").jwt, jwt(&newer));
}
