//! Why a lane ends because of its streams; a file of its own, because errors elsewhere refer to it.

/// Why a lane cannot continue with its streams.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// It is another stream of the same name.
    #[error(
        "{stream} was deleted and created again while the daemon served it, so the sequences that \
         the daemon knows are void; exiting, the next start uses the stream as it is now"
    )]
    Recreated {
        /// The stream.
        stream: String,
    },
    /// It is gone.
    #[error(
        "{stream} was deleted while the daemon served it; exiting, `cotal up` creates it again"
    )]
    Gone {
        /// The stream.
        stream: String,
    },
    /// It lost its end.
    #[error(
        "{stream} went back from sequence {seen} to {last} while the daemon served it (a restored \
         copy, or a power failure); exiting, the next start corrects rows that name later sequences"
    )]
    WentBack {
        /// The stream.
        stream: String,
        /// The last sequence it had.
        seen: u64,
        /// The last sequence it has.
        last: u64,
    },
}
