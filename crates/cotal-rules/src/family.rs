//! The manager's credential family: who holds the credentials that an earlier run was issued, and
//! how a restart proves them gone (ADM-6, ADM-7).
//!
//! Invariant: a holder is in the ledger before its credential exists, and leaves it only after it
//! was verified gone. Within one sweep a verified holder stays verified, because nothing is issued
//! while the gate is frozen, and every key is revoked before the first eviction. So an interrupted
//! sweep continues where it stopped.

use cotal_wire::control::Eviction;
use cotal_wire::limits::MAX_EVICT;
use cotal_wire::{ConnId, Principal};
use serde::{Deserialize, Serialize};

/// What a holder's credential is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The manager's own connection: its rails and its leases.
    Serve,
    /// The writer of goals.
    GoalWriter,
    /// The writer of the session ledger.
    SessionLedger,
    /// One attach session.
    Attach,
}

impl Role {
    /// The roles whose identity outlives a restart (ADM-7).
    pub const KEPT: [Self; 3] = [Self::Serve, Self::GoalWriter, Self::SessionLedger];
}

/// One identity that a credential was issued to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Holder {
    /// Its nkey.
    pub nkey: ConnId,
    /// Its principal.
    pub principal: Principal,
    /// What it is for.
    pub role: Role,
    /// When its newest credential was issued, Unix seconds.
    pub issued_at: i64,
    /// Whether the current sweep has verified that none of its connections is left.
    #[serde(default)]
    pub gone: bool,
}

/// Every holder of a credential that an earlier run was issued.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    holders: Vec<Holder>,
    /// Whether a sweep has begun and is not complete.
    #[serde(default)]
    sweeping: bool,
}

impl Ledger {
    /// Notes that a credential is about to be issued; for a known identity no holder is added.
    pub fn issue(&mut self, nkey: ConnId, principal: Principal, role: Role, at: i64) {
        match self.holders.iter_mut().find(|holder| holder.nkey == nkey) {
            Some(known) => known.issued_at = known.issued_at.max(at),
            None => self.holders.push(Holder { nkey, principal, role, issued_at: at, gone: false }),
        }
    }

    /// The holders.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Whether a sweep has begun and is not complete.
    #[must_use]
    pub fn is_sweeping(&self) -> bool {
        self.sweeping
    }

    /// When the newest credential of an identity was issued, if any.
    #[must_use]
    pub fn issued_at(&self, nkey: &ConnId) -> Option<i64> {
        self.holders.iter().find(|holder| holder.nkey == *nkey).map(|holder| holder.issued_at)
    }

    /// Begins a sweep, or continues one that was interrupted.
    pub fn sweep(&mut self) {
        if !std::mem::replace(&mut self.sweeping, true) {
            for holder in &mut self.holders {
                holder.gone = false;
            }
        }
    }

    /// The principals that are not verified gone, in batches of at most 256, the size of one
    /// request.
    #[must_use]
    pub fn batches(&self) -> Vec<Vec<Principal>> {
        let left = self.holders.iter().filter(|holder| !holder.gone);
        let left: Vec<Principal> = left.map(|holder| holder.principal.clone()).collect();
        left.chunks(MAX_EVICT).map(<[Principal]>::to_vec).collect()
    }

    /// Records what the reply to one request verified.
    pub fn verified(&mut self, results: &[Eviction]) {
        for holder in &mut self.holders {
            let proven = |result: &Eviction| result.proves_gone(&holder.principal) == Ok(true);
            holder.gone |= results.iter().any(proven);
        }
    }

    /// Ends the sweep if every holder is verified gone; returns whether it did. An attach session
    /// that is gone never comes back, so it leaves the ledger.
    pub fn finish(&mut self) -> bool {
        if self.holders.iter().any(|holder| !holder.gone) {
            return false;
        }
        self.sweeping = false;
        self.holders.retain(|holder| holder.role != Role::Attach);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nkey(n: usize) -> ConnId {
        let digit = |n: usize| char::from(b'A' + u8::try_from(n % 26).unwrap());
        let head: String = [n / 676, n / 26, n].map(digit).iter().collect();
        ConnId::parse(&format!("U{head}{}", "A".repeat(52))).unwrap()
    }

    fn principal(n: usize) -> Principal {
        Principal::new("local", nkey(n).as_str()).unwrap()
    }

    fn ledger(attached: usize) -> Ledger {
        let mut ledger = Ledger::default();
        for (n, role) in Role::KEPT.into_iter().enumerate() {
            ledger.issue(nkey(n), principal(n), role, 100);
        }
        for n in 3..3 + attached {
            ledger.issue(nkey(n), principal(n), Role::Attach, 100);
        }
        ledger
    }

    fn results(batch: &[Principal], gone: impl Fn(&Principal) -> bool) -> Vec<Eviction> {
        let result = |principal: &Principal| Eviction {
            principal: principal.clone(),
            kicked: 0,
            remaining: u64::from(!gone(principal)),
            verified_gone: gone(principal),
            scan_complete: true,
            note: None,
        };
        batch.iter().map(result).collect()
    }

    #[test]
    fn adm_6_a_sweep_asks_for_256_at_a_time_and_goes_on_where_it_was_cut() {
        let mut ledger = ledger(510);
        ledger.sweep();
        let batches = ledger.batches();
        assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [256, 256, 1]);
        ledger.verified(&results(&batches[0], |_| true));

        let text = serde_json::to_string(&ledger).unwrap();
        let mut ledger: Ledger = serde_json::from_str(&text).unwrap();
        ledger.sweep();
        assert_eq!(ledger.batches(), batches[1..], "the first batch is not asked again");
        assert!(!ledger.finish(), "the rest is not verified");
        for batch in &batches[1..] {
            ledger.verified(&results(batch, |_| true));
        }
        assert!(ledger.finish());
        assert_eq!(ledger.holders().len(), 3, "attach sessions that are gone are forgotten");
    }

    #[test]
    fn adm_6_one_holder_that_stays_keeps_the_sweep_open() {
        let mut ledger = ledger(1);
        ledger.sweep();
        let stays = principal(1);
        ledger.verified(&results(&ledger.batches()[0], |who| *who != stays));
        assert!(!ledger.finish());
        assert!(ledger.is_sweeping());
        assert_eq!(ledger.batches(), [vec![stays]]);
    }

    #[test]
    fn adm_6_the_next_restart_verifies_everyone_anew() {
        let mut ledger = ledger(0);
        ledger.sweep();
        ledger.verified(&results(&ledger.batches()[0], |_| true));
        assert!(ledger.finish());
        ledger.sweep();
        assert_eq!(ledger.batches().concat().len(), 3);
    }

    #[test]
    fn adm_7_an_identity_that_is_kept_adds_no_holder_and_an_attach_session_one() {
        let mut ledger = ledger(0);
        for at in [150, 120] {
            ledger.issue(nkey(0), principal(0), Role::Serve, at);
            assert_eq!((ledger.holders().len(), ledger.issued_at(&nkey(0))), (3, Some(150)));
        }
        ledger.issue(nkey(9), principal(9), Role::Attach, 150);
        assert_eq!(ledger.holders().len(), 4);
    }
}
