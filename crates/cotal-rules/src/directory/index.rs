//! Small ids for keys that many tables share.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

/// Gives each key a dense id. Ids are never reused: a lifecycle ends with a tombstone that is kept
/// for ever as well, and a channel that once had members keeps their closed rows.
#[derive(Debug)]
pub(super) struct Interner<K> {
    keys: Vec<K>,
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl<K> Default for Interner<K> {
    fn default() -> Self {
        Self { keys: Vec::new(), ids: HashTable::new(), hasher: DefaultHashBuilder::default() }
    }
}

impl<K: Hash + Eq + Clone> Interner<K> {
    /// The id of a key that has one.
    pub(super) fn get(&self, key: &K) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.ids.find(hash, |&id| self.keys[id as usize] == *key).copied()
    }

    /// The id of `key`; a new one if it has none.
    pub(super) fn intern(&mut self, key: &K) -> u32 {
        if let Some(id) = self.get(key) {
            return id;
        }
        let id = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        self.keys.push(key.clone());
        let (keys, hasher) = (&self.keys, &self.hasher);
        self.ids.insert_unique(hasher.hash_one(key), id, |&id| hasher.hash_one(&keys[id as usize]));
        id
    }

    /// The key of an id that this interner gave.
    pub(super) fn key(&self, id: u32) -> &K {
        &self.keys[id as usize]
    }
}

/// The slot of `id` in a table indexed by ids, grown on demand.
pub(super) fn slot<T: Default>(table: &mut Vec<T>, id: u32) -> &mut T {
    let index = id as usize;
    if table.len() <= index {
        table.resize_with(index + 1, T::default);
    }
    &mut table[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_id_for_ever() {
        let mut interner = Interner::default();
        let ids: Vec<u32> = (0..1_000_u64).map(|n| interner.intern(&n)).collect();
        for (n, id) in (0..1_000_u64).zip(ids) {
            assert_eq!(interner.get(&n), Some(id));
            assert_eq!(interner.intern(&n), id);
            assert_eq!(*interner.key(id), n);
        }
        assert_eq!(interner.get(&1_000), None);
    }
}
