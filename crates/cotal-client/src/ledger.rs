//! Which copies are one delivery, and which of them are owed an ack (AGT-3).
//!
//! A pure state machine over copies that have *already* been judged genuine on their own: it can
//! only hold a copy back, never let one through, so a seen id never authorizes a later copy.
//! Invariants:
//!
//! - A key is surfaced once, and again only when the caller let go of it without an ack and a copy
//!   that the broker still wants acked comes back.
//! - Every such copy is acked exactly when the caller acked the delivery, whichever came first.
//! - An empty id is never a key.

use std::collections::{HashMap, VecDeque};

/// What makes two copies one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A post's sender and id, in the bounded form of the wire's deduplication stem.
    Post(String),
    /// A direct message's sender and id. A post is never a copy of one.
    Direct(String),
    /// An id-less copy in the delivery stream: only its own redelivery is the same.
    StoredPost(u64),
    /// An id-less copy in the direct-message stream.
    StoredDirect(u64),
}

/// Names one surfacing of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    key: Key,
    ticket: u64,
}

/// What is to be done with a copy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CopyVerdict<T> {
    /// Show it to the caller, for whom it may be the first time or not.
    Surface { claim: Claim, again: bool },
    /// It is part of what the caller was shown already.
    Hold,
    /// The caller acked it before: ack this copy too.
    Ack(T),
}

/// A copy that the broker wants acked, under its sequence there.
#[derive(Debug)]
pub(crate) struct Owed<T> {
    pub(crate) seq: u64,
    pub(crate) token: T,
}

#[derive(Debug)]
enum State<T> {
    /// Queued for the caller, or in its hands.
    Open(Vec<Owed<T>>),
    /// The caller acked it; `expecting` while no copy that the broker wants acked has come.
    Acked { expecting: bool },
    /// The caller let go of it without an ack.
    Dropped,
}

#[derive(Debug)]
struct Entry<T> {
    ticket: u64,
    state: State<T>,
    /// Whether a copy that the broker wants acked is bound to come.
    backed: bool,
}

/// The ledger of one endpoint; `T` acks a copy.
#[derive(Debug)]
pub(crate) struct Ledger<T> {
    entries: HashMap<Key, Entry<T>>,
    /// Closed entries, oldest first; one that was opened again since has another ticket.
    closed: VecDeque<Claim>,
    remembered: usize,
    next_ticket: u64,
    /// How many acked entries still expect the copy that the broker wants acked.
    expected: usize,
    shut: bool,
    /// What is to be given back once nothing is pulled any more.
    returned: Vec<Owed<T>>,
}

impl<T> Ledger<T> {
    /// A ledger that remembers this many closed entries.
    pub(crate) fn new(remembered: usize) -> Self {
        Self {
            entries: HashMap::new(),
            closed: VecDeque::new(),
            remembered,
            next_ticket: 0,
            expected: 0,
            shut: false,
            returned: Vec::new(),
        }
    }

    /// Judges one copy; `owed` is there when the broker wants an ack for it, and `backed` says of
    /// one without that a copy with is bound to come.
    pub(crate) fn offer(
        &mut self,
        key: Key,
        owed: Option<Owed<T>>,
        backed: bool,
    ) -> CopyVerdict<T> {
        if self.shut {
            self.returned.extend(owed);
            return CopyVerdict::Hold;
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return self.open(key, owed, backed, false);
        };
        match (&mut entry.state, owed) {
            (State::Open(held), Some(owed)) => {
                // The newest delivery of a stored copy is the one whose ack counts.
                held.retain(|other| other.seq != owed.seq);
                held.push(owed);
                CopyVerdict::Hold
            }
            (State::Acked { expecting }, Some(owed)) => {
                self.expected -= usize::from(std::mem::take(expecting));
                CopyVerdict::Ack(owed.token)
            }
            (State::Dropped, Some(owed)) => self.open(key, Some(owed), backed, true),
            (_, None) => CopyVerdict::Hold,
        }
    }

    fn open(
        &mut self,
        key: Key,
        owed: Option<Owed<T>>,
        backed: bool,
        again: bool,
    ) -> CopyVerdict<T> {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let state = State::Open(owed.into_iter().collect());
        let entry = Entry { ticket, state, backed };
        self.entries.insert(key.clone(), entry);
        CopyVerdict::Surface { claim: Claim { key, ticket }, again }
    }

    /// Whether the caller was shown it, or has it queued.
    pub(crate) fn knows(&self, key: &Key) -> bool {
        self.entries.contains_key(key)
    }

    /// How many acked messages are still to be acked at the broker, once its copy has come.
    pub(crate) fn expected(&self) -> usize {
        self.expected
    }

    /// The caller is done with it: the copies to ack, or `None` when the ledger was shut before.
    pub(crate) fn ack(&mut self, claim: &Claim) -> Option<Vec<T>> {
        self.close(claim, true)
    }

    /// The caller lets go of it: the copies that the broker may send again.
    pub(crate) fn release(&mut self, claim: &Claim) -> Option<Vec<T>> {
        self.close(claim, false)
    }

    fn close(&mut self, claim: &Claim, acked: bool) -> Option<Vec<T>> {
        let entry = self.entries.get_mut(&claim.key)?;
        let State::Open(held) = &mut entry.state else {
            return None;
        };
        if entry.ticket != claim.ticket {
            return None;
        }
        let held = std::mem::take(held);
        entry.state = if acked {
            let expecting = entry.backed && held.is_empty();
            self.expected += usize::from(expecting);
            State::Acked { expecting }
        } else {
            State::Dropped
        };
        self.closed.push_back(claim.clone());
        self.forget();
        Some(held.into_iter().map(|owed| owed.token).collect())
    }

    fn forget(&mut self) {
        while self.closed.len() > self.remembered {
            let Some(claim) = self.closed.pop_front() else {
                return;
            };
            let stands = |entry: &Entry<T>| {
                entry.ticket == claim.ticket && !matches!(entry.state, State::Open(_))
            };
            if !self.entries.get(&claim.key).is_some_and(stands) {
                continue;
            }
            let forgotten = self.entries.remove(&claim.key).map(|entry| entry.state);
            if let Some(State::Acked { expecting: true }) = forgotten {
                self.expected -= 1;
            }
        }
    }

    /// Surfaces and acks nothing more: what is unacked, and what is still offered, is given back.
    pub(crate) fn shut(&mut self) {
        self.shut = true;
        self.expected = 0;
        self.closed.clear();
        for entry in std::mem::take(&mut self.entries).into_values() {
            if let State::Open(held) = entry.state {
                self.returned.extend(held);
            }
        }
    }

    /// Every copy that the broker may send to somebody else now, in the order in which it has them.
    pub(crate) fn take_returned(&mut self) -> Vec<T> {
        let mut returned = std::mem::take(&mut self.returned);
        returned.sort_by_key(|owed| owed.seq);
        returned.into_iter().map(|owed| owed.token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Tokens = Ledger<&'static str>;

    fn key(id: &str) -> Key {
        Key::Post(id.to_owned())
    }

    fn owed(seq: u64, token: &'static str) -> Option<Owed<&'static str>> {
        Some(Owed { seq, token })
    }

    fn surfaced(verdict: CopyVerdict<&'static str>) -> Claim {
        match verdict {
            CopyVerdict::Surface { claim, .. } => claim,
            other => panic!("not surfaced: {other:?}"),
        }
    }

    #[test]
    fn agt_3_a_durable_copy_after_a_live_one_is_acked_with_it() {
        let mut ledger = Tokens::new(8);
        let claim = surfaced(ledger.offer(key("a"), None, false));
        assert_eq!(ledger.offer(key("a"), owed(1, "dlv"), false), CopyVerdict::Hold);
        assert_eq!(ledger.ack(&claim), Some(vec!["dlv"]));
    }

    #[test]
    fn agt_3_a_durable_copy_after_the_ack_is_acked_and_not_shown() {
        let mut ledger = Tokens::new(8);
        let claim = surfaced(ledger.offer(key("a"), None, false));
        assert_eq!(ledger.ack(&claim), Some(vec![]));
        assert_eq!(ledger.offer(key("a"), owed(1, "dlv"), false), CopyVerdict::Ack("dlv"));
        assert_eq!(ledger.offer(key("a"), None, false), CopyVerdict::Hold);
    }

    #[test]
    fn agt_3_a_live_or_backfilled_copy_after_the_durable_one_is_held() {
        let mut ledger = Tokens::new(8);
        let claim = surfaced(ledger.offer(key("a"), owed(1, "dlv"), false));
        assert_eq!(ledger.offer(key("a"), None, false), CopyVerdict::Hold);
        assert_eq!(ledger.ack(&claim), Some(vec!["dlv"]));
    }

    #[test]
    fn agt_3_an_unacked_live_copy_leaves_the_durable_one_to_be_shown() {
        let mut ledger = Tokens::new(8);
        let claim = surfaced(ledger.offer(key("a"), None, false));
        assert_eq!(ledger.release(&claim), Some(vec![]));
        assert_eq!(ledger.offer(key("a"), None, false), CopyVerdict::Hold);
        let verdict = ledger.offer(key("a"), owed(1, "dlv"), false);
        assert!(matches!(verdict, CopyVerdict::Surface { again: true, .. }));
        assert_eq!(ledger.ack(&claim), None, "the old claim is void");
        assert_eq!(ledger.ack(&surfaced(verdict)), Some(vec!["dlv"]));
    }

    #[test]
    fn agt_3_a_redelivery_replaces_its_own_copy_and_another_copy_is_added() {
        let mut ledger = Tokens::new(8);
        let claim = surfaced(ledger.offer(key("a"), owed(1, "first"), false));
        assert_eq!(ledger.offer(key("a"), owed(1, "again"), false), CopyVerdict::Hold);
        assert_eq!(ledger.offer(key("a"), owed(2, "other"), false), CopyVerdict::Hold);
        assert_eq!(ledger.ack(&claim), Some(vec!["again", "other"]));
    }

    #[test]
    fn posts_directs_and_stored_copies_never_share_a_key() {
        let mut ledger = Tokens::new(8);
        let keys =
            [key("1"), Key::Direct("1".to_owned()), Key::StoredPost(1), Key::StoredDirect(1)];
        for key in keys {
            surfaced(ledger.offer(key, None, false));
        }
    }

    #[test]
    fn only_closed_entries_are_forgotten() {
        let mut ledger = Tokens::new(2);
        let open = surfaced(ledger.offer(key("open"), owed(9, "open"), false));
        for id in ["a", "b", "c"] {
            let claim = surfaced(ledger.offer(key(id), None, false));
            ledger.ack(&claim);
        }
        surfaced(ledger.offer(key("a"), None, false));
        assert_eq!(ledger.offer(key("b"), None, false), CopyVerdict::Hold);
        assert_eq!(ledger.ack(&open), Some(vec!["open"]));
    }

    #[test]
    fn an_entry_that_was_opened_again_is_not_forgotten_for_its_past() {
        let mut ledger = Tokens::new(1);
        let claim = surfaced(ledger.offer(key("a"), owed(1, "x"), false));
        ledger.release(&claim);
        let claim = surfaced(ledger.offer(key("a"), owed(1, "y"), false));
        for id in ["b", "c"] {
            let other = surfaced(ledger.offer(key(id), None, false));
            ledger.ack(&other);
        }
        assert_eq!(ledger.ack(&claim), Some(vec!["y"]));
    }

    #[test]
    fn agt_3_a_message_acked_before_its_durable_copy_came_expects_it() {
        let mut ledger = Tokens::new(1);
        let backed = surfaced(ledger.offer(key("a"), None, true));
        let unbacked = surfaced(ledger.offer(key("b"), None, false));
        ledger.ack(&backed);
        assert_eq!(ledger.expected(), 1);
        ledger.ack(&unbacked);
        assert_eq!(ledger.expected(), 0, "what is forgotten is not expected");
        let backed = surfaced(ledger.offer(key("c"), None, true));
        ledger.ack(&backed);
        assert_eq!(ledger.expected(), 1);
        assert_eq!(ledger.offer(key("c"), owed(1, "x"), true), CopyVerdict::Ack("x"));
        assert_eq!(ledger.offer(key("c"), owed(1, "y"), true), CopyVerdict::Ack("y"));
        assert_eq!(ledger.expected(), 0);
    }

    #[test]
    fn a_shut_ledger_gives_everything_back() {
        let mut ledger = Tokens::new(8);
        let claim = surfaced(ledger.offer(key("a"), owed(2, "y"), false));
        surfaced(ledger.offer(key("z"), owed(1, "x"), false));
        ledger.shut();
        assert_eq!(ledger.ack(&claim), None);
        assert_eq!(ledger.offer(key("b"), owed(3, "z"), false), CopyVerdict::Hold);
        assert_eq!(ledger.offer(key("c"), None, false), CopyVerdict::Hold);
        assert_eq!(ledger.take_returned(), ["x", "y", "z"]);
    }
}
