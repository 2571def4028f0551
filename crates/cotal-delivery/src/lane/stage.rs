//! The stages of a lane, for whoever runs it.

/// How far a lane has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is claimed yet.
    Starting,
    /// The lease is held; this is the space's daemon now.
    Claimed,
    /// The rails are bound and the row says `ready`.
    Ready,
    /// The lane has ended.
    Ended {
        /// Whether it provably left no lease row of its own; otherwise one may stay until it
        /// expires.
        released: bool,
    },
}
