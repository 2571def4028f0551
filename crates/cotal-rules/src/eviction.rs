//! The census of an account's connections, and what an eviction proves (EVC-3, 4, 6).
//!
//! Invariant: a census is complete only when every server that the mesh shows as active has
//! answered every page, without a gap. A server lists its connections by their number, which only
//! grows: a new connection is added at the end, and one that closes moves all later ones forward.
//! So each page overlaps the one before, and if a page begins after the last connection seen, the
//! census asks again from further back. An incomplete census proves nobody gone.

use std::collections::{BTreeMap, BTreeSet};

use cotal_wire::Principal;
use cotal_wire::control::LiveState;

/// Most connections per page; the broker's own bound.
pub const PAGE: u64 = 1_024;

/// Connections that a page repeats from the one before: this many may close between the two.
const OVERLAP: u64 = 64;
/// How often a server is asked again from further back, before its connections change too fast to
/// be counted.
const MOST_STEPS_BACK: u32 = 16;

/// A live connection, as its server reports it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeenConnection {
    /// The server that reported it; only this server can kick it.
    pub server: String,
    /// Its number on that server.
    pub cid: u64,
    /// Whose it is, if the connection says so.
    pub principal: Option<Principal>,
}

/// The principal of a connection: from its `principal:` tag, else from `authorized_user` in
/// dash-form, else none.
#[must_use]
pub fn attribute(tags: &[String], authorized_user: Option<&str>) -> Option<Principal> {
    let tag = tags.iter().find_map(|tag| tag.strip_prefix("principal:"));
    if let Some(tag) = tag {
        return Principal::parse(tag).ok();
    }
    let (owner, actor) = authorized_user?.split_once('-')?;
    Principal::new(owner, actor).ok()
}

/// One server's answer to one page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The server.
    pub server: String,
    /// The offset of the page.
    pub offset: u64,
    /// How many connections the account has on that server.
    pub total: u64,
    /// The connections of the page.
    pub connections: Vec<SeenConnection>,
}

/// Why a census is incomplete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Incomplete {
    /// Fewer servers answered than the mesh shows as active.
    #[error("{answered} of {active} servers answered")]
    Servers {
        /// How many answered.
        answered: u64,
        /// How many the mesh shows as active.
        active: u64,
    },
    /// A server did not answer a page.
    #[error("server {server} did not answer for its connections from {offset} on")]
    Page {
        /// The server.
        server: String,
        /// The page.
        offset: u64,
    },
    /// Connections closed faster than they could be counted.
    #[error("the connections of server {0} changed too fast to be counted")]
    Changed(String),
}

#[derive(Debug, Default)]
struct Pages {
    /// The offset of the next page.
    offset: u64,
    is_done: bool,
    changed: bool,
    steps_back: u32,
    connections: BTreeMap<u64, Option<Principal>>,
}

impl Pages {
    fn next_offset(&self) -> Option<u64> {
        (!self.is_done && !self.changed).then_some(self.offset)
    }

    fn take(&mut self, page: Page) {
        let first = page.connections.iter().map(|seen| seen.cid).min();
        let highest = self.connections.keys().next_back().copied();
        let touches = match (first, highest) {
            // A page that begins at the start leaves out no connection.
            _ if page.offset == 0 => first.is_some() || page.total == 0,
            (Some(first), Some(highest)) => first <= highest,
            _ => false,
        };
        if !touches {
            return self.step_back(page.offset);
        }
        let count = page.connections.len() as u64;
        let seen = page.connections.into_iter().map(|seen| (seen.cid, seen.principal));
        self.connections.extend(seen);
        let end = page.offset + count;
        self.is_done = end >= page.total;
        self.offset = end - OVERLAP.min(count / 2);
    }

    fn step_back(&mut self, from: u64) {
        self.steps_back += 1;
        self.changed |= from == 0 || self.steps_back > MOST_STEPS_BACK;
        self.offset = from.saturating_sub(OVERLAP << self.steps_back.min(8));
    }
}

/// A census in progress.
#[derive(Debug)]
pub struct Census {
    active: u64,
    servers: BTreeMap<String, Pages>,
}

impl Census {
    /// A census of the servers that answered a ping; the mesh shows `active` servers.
    #[must_use]
    pub fn new(answered: impl IntoIterator<Item = String>, active: u64) -> Self {
        let servers = answered.into_iter().map(|server| (server, Pages::default())).collect();
        Self { active, servers }
    }

    /// The offset to ask for next, and the servers that have not answered it. All servers get each
    /// request, so the one furthest behind decides.
    #[must_use]
    pub fn wanted(&self) -> Option<(u64, BTreeSet<String>)> {
        let owed = self.servers.iter().filter_map(|(s, pages)| Some((s, pages.next_offset()?)));
        let offset = owed.clone().map(|(_, offset)| offset).min()?;
        let servers = owed.filter(|(_, o)| *o == offset).map(|(s, _)| s.clone()).collect();
        Some((offset, servers))
    }

    /// Applies a page. A page that was not asked for next, such as a late repeat, is ignored.
    pub fn page(&mut self, page: Page) {
        let pages = self.servers.entry(page.server.clone()).or_default();
        if pages.next_offset() != Some(page.offset) {
            return;
        }
        pages.take(page);
    }

    /// The connections, if the census is complete.
    ///
    /// # Errors
    /// What is missing.
    pub fn complete(&self) -> Result<Vec<SeenConnection>, Incomplete> {
        let answered = self.servers.len() as u64;
        if answered < self.active.max(1) {
            return Err(Incomplete::Servers { answered, active: self.active.max(1) });
        }
        for (server, pages) in &self.servers {
            if pages.changed {
                return Err(Incomplete::Changed(server.clone()));
            }
            if let Some(offset) = pages.next_offset() {
                return Err(Incomplete::Page { server: server.clone(), offset });
            }
        }
        Ok(self.seen().collect())
    }

    /// The connections seen so far; they prove presence, never absence.
    pub fn seen(&self) -> impl Iterator<Item = SeenConnection> {
        self.servers.iter().flat_map(|(server, pages)| {
            pages.connections.iter().map(move |(&cid, principal)| SeenConnection {
                server: server.clone(),
                cid,
                principal: principal.clone(),
            })
        })
    }
}

/// Whether `principal` is connected.
#[must_use]
pub fn liveness(principal: &Principal, seen: &[SeenConnection], complete: bool) -> LiveState {
    if seen.iter().any(|seen| seen.principal.as_ref() == Some(principal)) {
        LiveState::Live
    } else if complete {
        LiveState::Gone
    } else {
        LiveState::Unknown
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn alice() -> Principal {
        Principal::parse("local.alice").unwrap()
    }

    fn page(server: &str, offset: u64, total: u64, cids: &[u64]) -> Page {
        let seen =
            |&cid: &u64| SeenConnection { server: server.into(), cid, principal: Some(alice()) };
        let connections = cids.iter().map(seen).collect();
        Page { server: server.into(), offset, total, connections }
    }

    fn census(servers: &[&str], active: u64) -> Census {
        Census::new(servers.iter().map(|&s| s.to_owned()), active)
    }

    #[test]
    fn attribution_is_by_tag_then_by_user_then_not_at_all() {
        let tags = ["owner:local".to_owned(), "principal:local.Alice".to_owned()];
        assert_eq!(attribute(&tags, Some("local-bob")).unwrap().as_str(), "local.Alice");
        assert_eq!(attribute(&[], Some("local-bob")).unwrap().as_str(), "local.bob");
        assert_eq!(attribute(&["principal:x".to_owned()], Some("local-bob")), None);
        assert_eq!(attribute(&[], Some("UABC")), None);
        assert_eq!(attribute(&[], None), None);
    }

    #[test]
    fn evc_3_every_server_and_every_page_must_have_answered() {
        let mut all = census(&["a", "b"], 2);
        all.page(page("a", 0, 3, &[1, 2]));
        assert!(matches!(all.complete(), Err(Incomplete::Page { .. })), "b owes its first page");
        all.page(page("b", 0, 0, &[]));
        assert_eq!(all.wanted(), Some((1, BTreeSet::from(["a".to_owned()]))));
        assert!(matches!(all.complete(), Err(Incomplete::Page { offset: 1, .. })));
        all.page(page("a", 1, 3, &[2, 3]));
        assert_eq!(all.complete().unwrap().len(), 3);
        assert_eq!(all.wanted(), None);
    }

    #[test]
    fn a_server_that_the_mesh_shows_and_that_is_silent_makes_it_incomplete() {
        let mut cut = census(&["a"], 2);
        cut.page(page("a", 0, 0, &[]));
        assert_eq!(cut.complete(), Err(Incomplete::Servers { answered: 1, active: 2 }));
        assert!(census(&[], 0).complete().is_err(), "no server at all");
    }

    /// One connection closes and one opens between two pages, so the count stays the same.
    #[test]
    fn evc_3_whoever_moves_onto_the_page_before_is_not_skipped() {
        let mut moving = census(&["a"], 1);
        moving.page(page("a", 0, 4, &[1, 2]));
        assert_eq!(moving.wanted().unwrap().0, 1);
        moving.page(page("a", 1, 4, &[4, 5]));
        assert!(moving.complete().is_err(), "3 stands on no page");
        assert_eq!(moving.wanted().unwrap().0, 0, "it is asked again from further back");
        moving.page(page("a", 0, 4, &[2, 3]));
        moving.page(page("a", 1, 4, &[3, 4]));
        moving.page(page("a", 2, 4, &[4, 5]));
        let seen = moving.complete().unwrap().into_iter().map(|seen| seen.cid);
        assert!(seen.eq(1..=5));
    }

    #[test]
    fn a_server_that_shows_nothing_of_what_it_counts_is_not_asked_for_ever() {
        let mut short = census(&["a"], 1);
        short.page(page("a", 0, 3, &[]));
        assert_eq!(short.complete(), Err(Incomplete::Changed("a".into())));
        assert_eq!(short.wanted(), None);
        let mut gone = census(&["a"], 1);
        gone.page(page("a", 0, 9, &[1, 2]));
        for _ in 0..=MOST_STEPS_BACK {
            let Some((offset, _)) = gone.wanted() else { break };
            gone.page(page("a", offset, 9, &[7]));
        }
        assert!(gone.wanted().is_none() || gone.complete().is_err());
    }

    proptest! {
        /// Connections open and close between the pages: one that stayed open is seen, or the
        /// census is incomplete.
        #[test]
        fn evc_3_a_complete_census_under_churn_shows_everyone_who_was_there(
            there in 1_u64..400,
            changes in prop::collection::vec(prop::collection::vec(any::<u16>(), 0..60), 0..40),
        ) {
            const LIMIT: usize = 100;
            let mut connections: Vec<u64> = (1..=there).collect();
            let mut stayed: BTreeSet<u64> = connections.iter().copied().collect();
            let mut next = there + 1;
            let mut census = census(&["a"], 1);
            let mut changes = changes.into_iter();
            while let Some((offset, _)) = census.wanted() {
                let from = usize::try_from(offset).unwrap().min(connections.len());
                let shown = &connections[from..(from + LIMIT).min(connections.len())];
                census.page(page("a", offset, connections.len() as u64, shown));
                for change in changes.next().unwrap_or_default() {
                    if change % 3 == 0 || connections.is_empty() {
                        connections.push(next);
                        next += 1;
                    } else {
                        let gone = connections.remove(usize::from(change) % connections.len());
                        stayed.remove(&gone);
                    }
                }
            }
            if let Ok(seen) = census.complete() {
                let seen: BTreeSet<u64> = seen.into_iter().map(|seen| seen.cid).collect();
                prop_assert!(stayed.is_subset(&seen));
            }
        }
    }

    #[test]
    fn evc_6_gone_needs_a_complete_census_and_live_does_not() {
        let seen = page("a", 0, 1, &[1]).connections;
        let bob = Principal::parse("local.bob").unwrap();
        assert_eq!(liveness(&alice(), &seen, false), LiveState::Live);
        assert_eq!(liveness(&bob, &seen, true), LiveState::Gone);
        assert_eq!(liveness(&bob, &seen, false), LiveState::Unknown);
    }

    #[test]
    fn a_repeated_page_changes_nothing() {
        let mut twice = census(&["a"], 1);
        twice.page(page("a", 0, 1, &[1]));
        twice.page(page("a", 0, 9, &[7]));
        assert_eq!(twice.complete().unwrap().len(), 1);
    }
}
