//! Kept rows.

use serde::{Deserialize, Serialize};

use crate::names::Bucket;

/// The last valid row of another bucket, kept where no garbage reaches it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeptRow {
    bucket: String,
    /// Its key there.
    pub key: String,
    /// Its revision there.
    pub revision: u64,
    /// Its value.
    pub value: serde_json::Value,
}

impl KeptRow {
    /// A row of `bucket`.
    #[must_use]
    pub fn new(bucket: Bucket, key: &str, revision: u64, value: serde_json::Value) -> Self {
        Self { bucket: bucket.short().to_owned(), key: key.to_owned(), revision, value }
    }

    /// Whose row it is; `None` for a bucket that does not exist.
    #[must_use]
    pub fn bucket(&self) -> Option<Bucket> {
        Bucket::ALL.into_iter().find(|bucket| bucket.short() == self.bucket)
    }
}
