//! The path of a post: CHAT → fan-out → INBOX → reader → DLV.

pub(crate) mod fanout;
pub(crate) mod join_barrier;
pub(crate) mod overflow;
pub(crate) mod parked;
pub(crate) mod progress;
pub(crate) mod reader;
pub(crate) mod recall;
