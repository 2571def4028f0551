//! Keys whose latest value cannot be parsed (`wire.md` §4).

use std::collections::BTreeMap;

use hashbrown::HashMap;

/// The garbled keys of one bucket, each with the revision that a write-back must replace.
#[derive(Debug, Default)]
pub(super) struct Garbled {
    latest: BTreeMap<String, u64>,
    met: u64,
}

impl Garbled {
    /// Notes a garbled value.
    pub(super) fn note(&mut self, key: &str, revision: u64) {
        self.latest.insert(key.to_owned(), revision);
        self.met += 1;
    }

    /// Counts a value that can be parsed and still does not count, such as a row after a tombstone.
    pub(super) fn count(&mut self) {
        self.met += 1;
    }

    /// Notes that the key's latest value is a row or a deletion again.
    pub(super) fn clear(&mut self, key: &str) {
        self.latest.remove(key);
    }

    /// The revision of the key's garbled latest value.
    pub(super) fn revision(&self, key: &str) -> Option<u64> {
        self.latest.get(key).copied()
    }

    /// The keys, in order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.latest.keys().map(String::as_str)
    }

    /// Garbled values seen so far.
    pub(super) fn met(&self) -> u64 {
        self.met
    }
}

/// A multimap with few values per key, such as the principals that have a name.
#[derive(Debug)]
pub(super) struct Bearers<K, V> {
    by_key: HashMap<K, Vec<V>>,
}

impl<K, V> Default for Bearers<K, V> {
    fn default() -> Self {
        Self { by_key: HashMap::new() }
    }
}

impl<K: std::hash::Hash + Eq, V: PartialEq> Bearers<K, V> {
    pub(super) fn add(&mut self, key: K, value: V) {
        let values = self.by_key.entry(key).or_default();
        if !values.contains(&value) {
            values.push(value);
        }
    }

    pub(super) fn remove<Q>(&mut self, key: &Q, value: &V)
    where
        Q: std::hash::Hash + hashbrown::Equivalent<K> + ?Sized,
    {
        if let Some(values) = self.by_key.get_mut(key) {
            values.retain(|held| held != value);
            if values.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    pub(super) fn of<Q>(&self, key: &Q) -> &[V]
    where
        Q: std::hash::Hash + hashbrown::Equivalent<K> + ?Sized,
    {
        self.by_key.get(key).map_or(&[], Vec::as_slice)
    }
}
