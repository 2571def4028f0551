//! The disk of a root: whether it takes writes, how much more, and where the broker stops.

use cotal_manager::launch::store_limit;
use cotal_workspace::{Root, disk};
use serde::Serialize;

use crate::context::Context;

/// With less than this free, a broker that is busy can fill the disk before anybody looks again.
const LOW_SPACE_BYTES: u64 = 256 * 1024 * 1024;

/// What was found of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::commands) struct Disk {
    /// Why it takes no writes; absent while it takes them.
    pub(in crate::commands) problem: Option<String>,
    /// What may still be written.
    free_bytes: Option<u64>,
    /// What the broker stores.
    store_bytes: u64,
    /// The most that it may store.
    store_limit: Option<u64>,
}

impl Disk {
    /// Writes to the root and beside the broker's store: what lies in the store is the broker's
    /// alone.
    pub(in crate::commands) fn of(root: &Root) -> Self {
        let [own, broker, store] = [root.dot_dir(), root.broker_dir(), root.broker_jetstream()];
        let problem = [&own, &broker].into_iter().filter(|dir| dir.is_dir()).find_map(|dir| {
            let error = disk::prove_writable(dir).err()?;
            Some(format!("{} takes no writes: {error}", dir.display()))
        });
        let rooms = [own, broker, store].into_iter().filter_map(|dir| disk::room(&dir).ok());
        Self {
            problem,
            free_bytes: rooms.map(|room| room.free).min(),
            store_bytes: disk::used_below(&root.broker_jetstream()),
            store_limit: store_limit(root),
        }
    }

    /// Why writes fail, or will soon.
    pub(in crate::commands) fn warning(&self) -> Option<String> {
        if let Some(problem) = &self.problem {
            return Some(format!("{problem}; nothing is stored until it does: free some room"));
        }
        let left = self.store_limit.map(|limit| limit.saturating_sub(self.store_bytes));
        if left.is_some_and(|left| left < LOW_SPACE_BYTES) {
            return Some(format!("the broker's store is nearly full ({self})"));
        }
        let is_little = self.free_bytes.is_some_and(|free| free < LOW_SPACE_BYTES);
        is_little.then(|| format!("the disk is nearly full ({self})"))
    }
}

/// Why nothing can be stored on the root that a command ran on, if that is so.
pub fn problem(ctx: &Context) -> Option<String> {
    let disk = Disk::of(&ctx.root().ok()?);
    disk.problem.as_ref()?;
    disk.warning()
}

impl std::fmt::Display for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the broker stores {}", shown(self.store_bytes))?;
        if let Some(limit) = self.store_limit {
            write!(f, " of at most {}", shown(limit))?;
        }
        match self.free_bytes {
            Some(free) => write!(f, ", {} free", shown(free)),
            None => Ok(()),
        }
    }
}

fn shown(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut left = bytes;
    while left >= 10 * 1024 && unit + 1 < UNITS.len() {
        left /= 1024;
        unit += 1;
    }
    format!("{left} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_room_is_told_before_writes_fail() {
        let disk = |free: u64, stored: u64, limit| Disk {
            problem: None,
            free_bytes: Some(free),
            store_bytes: stored,
            store_limit: limit,
        };
        const GIB: u64 = 1 << 30;
        assert_eq!(disk(GIB, 5, Some(GIB)).warning(), None);
        assert!(
            disk(LOW_SPACE_BYTES - 1, 5, Some(GIB))
                .warning()
                .unwrap()
                .contains("disk is nearly full")
        );
        assert!(disk(GIB, GIB, Some(GIB)).warning().unwrap().contains("store is nearly full"));
        assert_eq!(disk(GIB, 20_000, None).to_string(), "the broker stores 19 KiB, 1024 MiB free");
    }
}
