//! What can go wrong while a mesh is provisioned.

use std::path::PathBuf;

use cotal_nats::NatsError;
use cotal_trust::{MintError, TrustError};
use cotal_wire::control::{Code, op};
use cotal_wire::creds::CredsError;
use cotal_wire::{ChannelPattern, Principal, Space};
use cotal_workspace::lock::LockError;
use cotal_workspace::record::RecordError;
use cotal_workspace::{FileError, StoreError};

/// Why a space, an agent or a credential could not be provisioned.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The broker did not do what it was asked.
    #[error("cannot {doing}")]
    Broker {
        /// What was tried, on what.
        doing: String,
        /// What the broker answered, or that it did not.
        source: NatsError,
    },
    /// Trust material is missing or unusable.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// Keys of a mesh that exists are gone.
    #[error(
        "{} missing, although {witness} shows that this root is an authenticated mesh. Without the \
         keys nobody can sign for it: its agents' credentials and all that it stores belong to \
         them. Restore {auth} from a backup. If there is none, `cotal up --new-trust` begins a new \
         mesh: every agent is to be added again, and what the old spaces hold can no longer be read",
        are_missing(missing),
        witness = witness.display(),
        auth = auth.display()
    )]
    TrustLost {
        /// The files.
        missing: Vec<PathBuf>,
        /// What shows that they were there.
        witness: PathBuf,
        /// The directory that a backup would hold.
        auth: PathBuf,
    },
    /// A credential could not be minted.
    #[error(transparent)]
    Mint(#[from] MintError),
    /// A credential that was just minted cannot be parsed; the product is at fault.
    #[error("a freshly minted credential cannot be parsed: {0}")]
    Minted(#[from] cotal_nats::CredsError),
    /// A stored credential could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A stored credential cannot be parsed.
    #[error(
        "the credential of {principal} is damaged: {source}; retire the agent and add it again"
    )]
    DamagedCreds {
        /// Whose.
        principal: Principal,
        /// What is wrong with it.
        source: CredsError,
    },
    /// A file of the root could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another process works on the same thing.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A process record could not be used.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The name cannot become a principal.
    #[error("{0:?} cannot be an agent's name: use letters, digits and _, at most 128 of them")]
    Name(String),
    /// Another agent is called the same.
    #[error("the name {name:?} is already taken by {holder}: choose another")]
    NameTaken {
        /// The name asked for.
        name: String,
        /// Who bears it.
        holder: Principal,
    },
    /// The agent lives, but its credential is lost.
    #[error(
        "{0} is provisioned, but its credential is not on this root: retire it with `cotal agent \
         retire`, then add it again"
    )]
    CredentialLost(Principal),
    /// Several incarnations of one principal live.
    #[error(
        "there are {count} live agents {principal}: `cotal agent retire` ends them, then add it again"
    )]
    Ambiguous {
        /// Who.
        principal: Principal,
        /// How many.
        count: usize,
    },
    /// An ACL row is damaged beyond its history.
    #[error(
        "an ACL row of {0} is damaged and its history holds no valid one: retire the agent before \
         it is provisioned again"
    )]
    GarbledRow(Principal),
    /// The record of an interrupted provisioning cannot be parsed.
    #[error(
        "{path} cannot be parsed: {problem}; remove it, and provisioning starts over",
        path = path.display()
    )]
    PendingRecord {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The kernel gave no randomness.
    #[error("the kernel returned no random bytes: {0}")]
    Randomness(String),
    /// A row could not be encoded.
    #[error("cannot encode a row: {0}")]
    Encode(#[from] serde_json::Error),
    /// A certificate could not be made or taken.
    #[error("the broker's certificate: {0}")]
    Certificate(String),
    /// The broker did not start.
    #[error(transparent)]
    Start(Box<cotal_broker::BrokerError>),
    /// A process that this root does not know uses the broker's store.
    #[error(
        "process {pid} has files of {store} open, and two brokers on one store lose messages: end it \
         first",
        store = store.display()
    )]
    StoreHeld {
        /// The store.
        store: PathBuf,
        /// The process.
        pid: u32,
    },
    /// A program could not be started.
    #[error("cannot start {program}: {source}", program = program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A process could not be signalled or waited for.
    #[error("cannot {operation} process {pid}: {source}")]
    Process {
        /// What was tried.
        operation: &'static str,
        /// Its number.
        pid: u32,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A process outlived SIGKILL.
    #[error("process {pid} did not end although it was killed; it may hang in the kernel")]
    Immortal {
        /// Its number.
        pid: u32,
    },
    /// No live agent has this name.
    #[error("{0} is not a live agent of this space: `cotal agent list` shows who is")]
    NoSuchAgent(Principal),
    /// A narrowing would have widened.
    #[error("{principal} may not read {pattern} now: narrowing only takes channels away")]
    Wider {
        /// Who.
        principal: Principal,
        /// What it does not have.
        pattern: ChannelPattern,
    },
    /// A retirement has begun and is not complete.
    #[error("{0} is being retired: finish it with `cotal agent retire` first")]
    Retiring(Principal),
    /// The agent's key is needed to revoke it, and this root knows neither it nor its credential.
    #[error(
        "this root has neither the credential of {0} nor a note of its key, so it cannot be \
         revoked: retire it on the root that provisioned it; where its key was revoked before, or \
         nobody has it, run `cotal agent retire {actor} --key-unknown`",
        actor = .0.actor()
    )]
    KeyUnknown(Principal),
    /// Somebody else keeps changing a row.
    #[error("the ACL row of {0} keeps changing under this command; try again")]
    Busy(Principal),
    /// An eviction could not be proven.
    #[error(
        "{principal} is not proven gone: {remaining} connections remain{}; the name stays held, \
         run it again",
        if note.is_empty() { String::new() } else { format!(" ({note})") }
    )]
    NotGone {
        /// Who.
        principal: Principal,
        /// What the last scan saw.
        remaining: u64,
        /// Why the scan proves nothing, if it was incomplete.
        note: String,
    },
    /// An agent is narrowed, and the daemon has not proven that it took back what it handed off.
    #[error(
        "{principal} may read less now and its old credential is revoked, but the daemon has not \
         recalled what it had handed off. No new credential is published yet: run the same command \
         again, it finishes this"
    )]
    NotRecalled {
        /// Who.
        principal: Principal,
        /// What asking met.
        source: Box<ManagerError>,
    },
    /// The registration gate is shut.
    #[error(
        "the registration gate of space {space} is frozen: {reason}. No agent is provisioned until \
         the manager has reopened it; `cotal up` starts one that goes on"
    )]
    GateFrozen {
        /// The space.
        space: Space,
        /// Why, as whoever froze it said.
        reason: String,
    },
    /// The daemon reads another store than this manager writes.
    #[error(
        "the daemon of space {space} reads {theirs}, this manager writes {own}: it never renews \
         another store's credentials. Run it where the daemon's store is"
    )]
    OtherStore {
        /// The space.
        space: Space,
        /// The daemon's store.
        theirs: String,
        /// This manager's.
        own: String,
    },
    /// A manager renews the space.
    #[error("a manager renews the credentials of space {0}, and does so at half of their life")]
    Renewed(Space),
    /// The broker stayed away.
    #[error("the broker at {0} has not answered for a minute; `cotal up` starts both again")]
    BrokerGone(String),
    /// The daemon did not answer for the whole wait.
    #[error(
        "the delivery daemon of space {space} did not answer when it was asked {} ({last}): \
         `cotal status` tells whether it runs",
        in_words(op)
    )]
    RailSilent {
        /// The space.
        space: Space,
        /// The operation.
        op: String,
        /// What the last attempt met.
        last: String,
        /// Whether the last attempt ran out of time, so that somebody may listen.
        timed_out: bool,
    },
    /// The daemon answered with a refusal.
    #[error("the daemon of space {space} refused {}: {reason}", in_words(op))]
    Refused {
        /// The space.
        space: Space,
        /// The operation.
        op: String,
        /// Its sentence.
        reason: String,
        /// What kind of refusal it is.
        code: Option<Code>,
    },
}

/// What an operation on the admin rail asks for, in the words of whoever waits for it.
fn in_words(operation: &str) -> &str {
    match operation {
        op::RELOAD_STORE_IDENTITY => "which store it reads",
        op::RELOAD_CREDS => "to take up a renewed credential",
        op::EVICT_PRINCIPAL | op::EVICT_PRINCIPALS => "to end the agent's connections",
        op::PRINCIPAL_LIVENESS => "whether an agent is connected",
        op::LIFECYCLE_MEMBERSHIPS => "for the agent's memberships",
        op::RECALL_NARROWED => "to take back what the agent may no longer read",
        op::DELIVERY_STATUS => "for its counters",
        op::WAITING_ENTRIES => "for what waits",
        op::STANDING_REQUESTS => "for the role requests that wait",
        other => other,
    }
}

fn are_missing(files: &[PathBuf]) -> String {
    let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}

/// Names what was tried when the broker fails.
pub(crate) trait Doing<T> {
    /// Adds what was tried.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, ManagerError>;
}

impl<T> Doing<T> for Result<T, NatsError> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, ManagerError> {
        self.map_err(|source| ManagerError::Broker { doing: what(), source })
    }
}

impl ManagerError {
    /// Whether no answer came in time.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Broker { source: NatsError::Timeout { .. }, .. })
    }

    /// Whether there was no connection to ask on, which a client that redials has again soon.
    pub(crate) fn is_disconnected(&self) -> bool {
        matches!(self, Self::Broker { source: NatsError::Disconnected { .. }, .. })
    }

    /// Whether nobody answered: the one thing that is asked again (ADM-4). A daemon that binds, or
    /// re-checks who owns its lease, says that it is not ready, which is no answer yet.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::Broker { source: NatsError::Timeout { .. } | NatsError::NoResponders { .. }, .. }
                | Self::Refused { code: Some(Code::NotReady), .. }
        )
    }
}
