//! Who claims which name in presence. Principals make the claims themselves; a claim expires
//! without an event.

use cotal_wire::Principal;
use cotal_wire::rows::PresenceRow;
use hashbrown::HashMap;

use super::garbled::Bearers;

/// The presence bucket's time to live, in milliseconds (`wire.md` §4).
const TTL_MS: i64 = 6_000;

#[derive(Debug)]
struct Claim {
    name: String,
    ts: i64,
    revision: u64,
}

impl Claim {
    /// A row from the future is not fresh either, because nobody could tell when it expires.
    fn is_fresh(&self, now_ms: i64) -> bool {
        now_ms.abs_diff(self.ts) < TTL_MS.unsigned_abs()
    }
}

/// Claims by principal and by name.
#[derive(Debug, Default)]
pub(super) struct Presence {
    claims: HashMap<Principal, Claim>,
    names: Bearers<String, Principal>,
}

impl Presence {
    pub(super) fn revision(&self, principal: &Principal) -> Option<u64> {
        self.claims.get(principal).map(|claim| claim.revision)
    }

    pub(super) fn put(&mut self, principal: &Principal, row: &PresenceRow, revision: u64) {
        let (name, ts) = (row.card.name.to_lowercase(), row.ts);
        if self.claims.get(principal).is_none_or(|claim| claim.name != name) {
            self.remove(principal);
            self.names.add(name.clone(), principal.clone());
        }
        let claim = Claim { name, ts, revision };
        self.claims.insert(principal.clone(), claim);
    }

    pub(super) fn remove(&mut self, principal: &Principal) -> bool {
        let claim = self.claims.remove(principal);
        if let Some(claim) = &claim {
            self.names.remove(claim.name.as_str(), principal);
        }
        claim.is_some()
    }

    /// Forgets claims that are no longer fresh.
    pub(super) fn expire(&mut self, now_ms: i64) {
        let names = &mut self.names;
        self.claims.retain(|principal, claim| {
            let keep = claim.is_fresh(now_ms);
            if !keep {
                names.remove(claim.name.as_str(), principal);
            }
            keep
        });
    }

    /// The principals with a fresh claim to the lowercased `name`.
    pub(super) fn fresh<'a>(
        &'a self,
        name: &str,
        now_ms: i64,
    ) -> impl Iterator<Item = &'a Principal> {
        let fresh = move |p: &&Principal| self.claims.get(*p).is_some_and(|c| c.is_fresh(now_ms));
        self.names.of(name).iter().filter(fresh)
    }
}
