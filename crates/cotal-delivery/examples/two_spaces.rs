//! Two spaces in one process, with secrets that are kept in memory.
//!
//! The program gives the host everything it needs: the broker, the spaces, a store, a runtime. The
//! host takes nothing else from its surroundings: no working directory, signals, environment,
//! process exit or logger. `cotal_delivery` exports every type in the signatures.
//!
//! ```text
//! cargo run -p cotal-delivery --example two_spaces -- nats://127.0.0.1:4222 alpha/ beta/
//! ```
//!
//! Each directory is named like its space and holds `delivery.creds`, `membership-rw.creds` and
//! `membership-observer.creds`, as `cotal host provision` writes them below `.cotal/<space>/`.
#![allow(clippy::print_stdout, reason = "an example talks to a person on a terminal")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use cotal_delivery::{
    Host, HostOptions, LaneState, Secret, SecretKey, SecretKind, SecretStore, Space, StoreError,
    StoreIdentity,
};

/// A platform's own store: a map in this example, a vault in a real platform.
#[derive(Default)]
struct Vault(Mutex<HashMap<SecretKey, Secret>>);

impl Vault {
    fn secrets(&self) -> std::sync::MutexGuard<'_, HashMap<SecretKey, Secret>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SecretStore for Vault {
    fn get(&self, key: &SecretKey) -> Result<Option<Secret>, StoreError> {
        Ok(self.secrets().get(key).cloned())
    }

    fn put(&self, key: &SecretKey, secret: &Secret) -> Result<(), StoreError> {
        self.secrets().insert(key.clone(), secret.clone());
        Ok(())
    }

    fn delete(&self, key: &SecretKey) -> Result<bool, StoreError> {
        Ok(self.secrets().remove(key).is_some())
    }

    fn identity(&self) -> StoreIdentity {
        StoreIdentity::Injected { coordinate: "the vault of the example".to_owned() }
    }
}

/// Moves the credentials of one space from its directory into the vault.
fn fill(vault: &Vault, dir: &Path) -> Result<Space, Box<dyn std::error::Error>> {
    let name =
        dir.file_name().and_then(|name| name.to_str()).ok_or("the path names no directory")?;
    let space = Space::parse(name)?;
    let kinds = [SecretKind::Delivery, SecretKind::MembershipRw, SecretKind::MembershipObserver];
    for kind in kinds {
        let text = std::fs::read_to_string(dir.join(format!("{}.creds", kind.name())))?;
        vault.put(&SecretKey::new(&space, kind), &Secret::new(text))?;
    }
    Ok(space)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let server = args.next().ok_or("usage: two_spaces <broker> <directory of a space>...")?;
    let vault = Arc::new(Vault::default());
    let spaces: Result<Vec<Space>, _> = args.map(|dir| fill(&vault, Path::new(&dir))).collect();
    let spaces = spaces?;
    let wanted = spaces.len();
    let host = Host::start(HostOptions::new(server), vault, spaces);
    let mut changes = host.changes();
    loop {
        let lanes = host.lanes();
        for lane in &lanes {
            let why = lane.reason.as_deref().unwrap_or("no reason given");
            println!("{} {}: {why}", lane.space, lane.state);
        }
        let serving = lanes.iter().filter(|lane| lane.state == LaneState::Serving).count();
        if serving == wanted {
            println!("all {wanted} spaces are served");
            break;
        }
        changes.changed().await?;
    }
    // A real program serves until its platform stops it. Closing finishes the work in progress and
    // releases the leases, so that a successor can serve at once.
    host.close().await;
    println!("closed");
    Ok(())
}
