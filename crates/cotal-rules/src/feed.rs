//! The derived membership feed: who reads which channels (FED-1).
//!
//! For display only: nothing is decided by it. A row is for an agent, or for any other principal
//! that reads channels. It lists the channels that the principal's connections are subscribed to
//! and those that it is a durable member of.

use std::collections::{BTreeMap, BTreeSet};

use cotal_wire::rows::FeedRow;
use cotal_wire::{Channel, ChannelPattern, Principal};

/// Live subscriptions shown in one row; a client can make as many as it likes.
pub const MOST_LIVE: usize = 256;

/// Every connected principal and every member, as one census and the member rows show them.
#[derive(Debug, Default)]
pub struct Picture {
    rows: BTreeMap<Principal, Reads>,
}

#[derive(Debug, Default)]
struct Reads {
    live: BTreeSet<ChannelPattern>,
    durable: BTreeSet<Channel>,
}

/// One write that makes the bucket show a picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowChange {
    /// This row differs from the one held.
    Put(Principal, FeedRow),
    /// No principal of the picture has this key.
    Remove(String),
}

impl Picture {
    /// Whether the picture shows nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds one connection. An agent (`is_agent`) is shown even while it is subscribed to nothing.
    pub fn connected(
        &mut self,
        principal: Principal,
        is_agent: bool,
        live: impl IntoIterator<Item = ChannelPattern>,
    ) {
        let mut live = live.into_iter().peekable();
        if principal.has_real_owner() && (is_agent || live.peek().is_some()) {
            self.rows.entry(principal).or_default().live.extend(live);
        }
    }

    /// Adds one durable membership.
    pub fn member(&mut self, principal: Principal, channel: Channel) {
        self.rows.entry(principal).or_default().durable.insert(channel);
    }

    /// The differences from `held`, the rows of the bucket; `None` for a value that cannot be
    /// parsed.
    #[must_use]
    pub fn changes(&self, held: &BTreeMap<String, Option<FeedRow>>, now_ms: i64) -> Vec<RowChange> {
        let is_shown = |key: &str| {
            Principal::parse(key).is_ok_and(|principal| self.rows.contains_key(&principal))
        };
        let gone = held.keys().filter(|key| !is_shown(key)).cloned().map(RowChange::Remove);
        let rows = self.rows.iter().map(|(principal, reads)| (principal, reads.row(now_ms)));
        let changed = rows.filter(|(principal, row)| {
            let held = held.get(principal.as_str()).and_then(Option::as_ref);
            held.is_none_or(|held| !shows_the_same(held, row))
        });
        changed.map(|(principal, row)| RowChange::Put(principal.clone(), row)).chain(gone).collect()
    }
}

impl Reads {
    fn row(&self, observed_at: i64) -> FeedRow {
        FeedRow {
            live: self.live.iter().take(MOST_LIVE).cloned().collect(),
            more: self.live.len().saturating_sub(MOST_LIVE) as u64,
            durable: self.durable.iter().cloned().collect(),
            observed_at,
        }
    }
}

fn shows_the_same(a: &FeedRow, b: &FeedRow) -> bool {
    (&a.live, a.more, &a.durable) == (&b.live, b.more, &b.durable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(text: &str) -> Principal {
        Principal::parse(text).unwrap()
    }

    fn pattern(text: &str) -> ChannelPattern {
        ChannelPattern::parse(text).unwrap()
    }

    /// The rows of the bucket once every change is written.
    fn written(picture: &Picture, now: i64) -> BTreeMap<String, Option<FeedRow>> {
        let put = |change| match change {
            RowChange::Put(principal, row) => (principal.to_string(), Some(row)),
            RowChange::Remove(key) => panic!("{key} was never there"),
        };
        picture.changes(&BTreeMap::new(), now).into_iter().map(put).collect()
    }

    fn picture() -> Picture {
        let mut picture = Picture::default();
        picture.connected(who("local.alice"), true, [pattern("team.backend")]);
        picture.connected(who("local.alice"), true, [pattern("team.>")]);
        picture.connected(who("local.idle"), true, []);
        picture.connected(who("local.DAEMON"), false, []);
        picture.connected(who("local.OBSERVER"), false, [pattern(">")]);
        picture.connected(who("made_up.eve"), true, [pattern(">")]);
        picture.member(who("local.bob"), Channel::parse("ops").unwrap());
        picture.member(who("local.alice"), Channel::parse("ops").unwrap());
        picture
    }

    #[test]
    fn fed_1_a_row_is_the_union_of_live_subscriptions_and_durable_memberships() {
        let rows = written(&picture(), 7);
        let shown: Vec<_> = rows.keys().map(String::as_str).collect();
        assert_eq!(shown, ["local.OBSERVER", "local.alice", "local.bob", "local.idle"]);
        let row = |key: &str| rows[key].clone().unwrap();
        assert_eq!(row("local.alice").live, [pattern("team.>"), pattern("team.backend")]);
        assert_eq!(row("local.alice").durable, [Channel::parse("ops").unwrap()]);
        assert_eq!(row("local.OBSERVER").live, [pattern(">")]);
        assert_eq!((row("local.bob").live, row("local.bob").observed_at), (vec![], 7));
        assert_eq!(row("local.idle"), FeedRow { observed_at: 7, ..FeedRow::default() });
    }

    #[test]
    fn fed_1_only_what_changed_is_written_and_who_departed_is_removed() {
        let mut held = written(&picture(), 7);
        assert_eq!(picture().changes(&held, 8), [], "nothing changed");
        held.insert("local.gone".to_owned(), Some(FeedRow::default()));
        held.insert("no principal".to_owned(), None);
        held.insert("local.bob".to_owned(), None);
        let changes = picture().changes(&held, 9);
        let removed: Vec<_> =
            changes.iter().filter(|c| matches!(c, RowChange::Remove(_))).collect();
        assert_eq!(removed.len(), 2, "{changes:?}");
        let is_bob = |c: &RowChange| matches!(c, RowChange::Put(p, row) if *p == who("local.bob") && row.observed_at == 9);
        assert!(
            changes.iter().any(is_bob) && changes.len() == 3,
            "garbage is written over: {changes:?}"
        );
    }

    #[test]
    fn what_one_row_shows_is_bounded() {
        let mut picture = Picture::default();
        let many = (0..MOST_LIVE + 3).map(|n| pattern(&format!("c{n}")));
        picture.connected(who("local.a"), true, many);
        let row = written(&picture, 1)["local.a"].clone().unwrap();
        assert_eq!((row.live.len(), row.more), (MOST_LIVE, 3));
    }
}
