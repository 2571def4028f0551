//! Why a lane ends over its streams; apart from them, because whatever may end a lane names it.

/// Why a lane cannot go on with its streams.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// It is another stream of the same name.
    #[error(
        "{stream} was deleted and created again under the daemon, so no sequence it knows means the \
         same any more; exiting, the next start begins with the stream as it is now"
    )]
    Recreated {
        /// Which.
        stream: String,
    },
    /// It is not there.
    #[error("{stream} was deleted under the daemon; exiting, `cotal up` makes it again")]
    Gone {
        /// Which.
        stream: String,
    },
    /// It holds less than it did.
    #[error(
        "{stream} went back from sequence {seen} to {last} under the daemon (a restored copy, or a \
         power failure); exiting, the next start corrects what is stored beyond"
    )]
    WentBack {
        /// Which.
        stream: String,
        /// The last sequence it had.
        seen: u64,
        /// The last sequence it has.
        last: u64,
    },
}
