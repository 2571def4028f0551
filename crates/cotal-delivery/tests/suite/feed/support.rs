//! The feed's bucket, for its readers.

use std::collections::BTreeMap;

use cotal_manager::clock::unix_millis;
use cotal_manager::rows::read_all;
use cotal_nats::{Bucket as Kv, Bytes};
use cotal_testkit::{Mesh, eventually};
use cotal_wire::names::{Bucket, FEED_KEY};
use cotal_wire::rows::{FeedBeat, FeedRow};

/// Rows by key.
pub(crate) type Rows = BTreeMap<String, FeedRow>;

/// A reader of the feed.
pub(crate) struct Feed(Kv);

impl Feed {
    pub(crate) async fn of(mesh: &Mesh) -> Self {
        Self(Kv::new(&mesh.operator().await, &mesh.space().bucket(Bucket::Membership)))
    }

    /// The rows; none while the bucket is being re-created.
    pub(crate) async fn rows(&self) -> Rows {
        let all = read_all(&self.0).await.unwrap_or_default().into_iter();
        let rows = all.filter(|(key, _)| key != FEED_KEY);
        rows.filter_map(|(key, raw)| Some((key, FeedRow::parse(&raw.value).ok()?))).collect()
    }

    pub(crate) async fn shows(&self, what: &str, enough: impl Fn(&Rows) -> bool) -> Rows {
        eventually(what, || self.rows(), enough).await
    }

    /// The value under a key, row or not.
    pub(crate) async fn raw(&self, key: &str) -> Option<Bytes> {
        self.0.get(key).await.expect("the bucket")?.live().cloned()
    }

    pub(crate) async fn revision(&self, key: &str) -> u64 {
        self.0.get(key).await.expect("the bucket").expect("a row").revision
    }

    /// The last heartbeat, Unix milliseconds; 0 before the first.
    pub(crate) async fn beat(&self) -> i64 {
        let Ok(Some(entry)) = self.0.get(FEED_KEY).await else { return 0 };
        entry.live().map_or(0, |value| FeedBeat::parse(value).expect("a heartbeat").observed_at)
    }

    /// Waits for a heartbeat that is newer than now.
    pub(crate) async fn is_live(&self) {
        let now = unix_millis();
        eventually("a heartbeat", || self.beat(), |&beat| beat >= now).await;
    }
}
