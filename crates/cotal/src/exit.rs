//! Exit codes: exhaustive, documented, and decided here alone.

use std::io;
use std::process::ExitCode;

use cotal_broker::{BrokerError, ProbeError};
use cotal_delivery::{CredentialError, LaneError, LeaseError, LeaseFailure};
use cotal_manager::ManagerError;
use cotal_nats::{ConnectError, NatsError};
use cotal_trust::{MintError, TrustError};
use cotal_workspace::lock::LockError;
use cotal_workspace::manifest::ManifestError;
use cotal_workspace::mesh::MeshError;
use cotal_workspace::{FileError, RootError};

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Failed for a reason without a code of its own.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A permission is missing.
    Denied = 3,
    /// What was named does not exist.
    Absent = 4,
    /// No answer in time.
    TimedOut = 5,
    /// The other side answered and refused.
    Refused = 6,
    /// Nothing serves what was asked for.
    NotServing = 7,
    /// Somebody else was first, or holds it.
    Conflict = 8,
    /// The broker cannot be reached.
    Unreachable = 9,
    /// Done in part; what is missing was said.
    Partial = 10,
}

impl Exit {
    /// Every code, in order.
    pub const ALL: [Self; 11] = [
        Self::Ok,
        Self::Failure,
        Self::Usage,
        Self::Denied,
        Self::Absent,
        Self::TimedOut,
        Self::Refused,
        Self::NotServing,
        Self::Conflict,
        Self::Unreachable,
        Self::Partial,
    ];

    /// What the code means, for the table in `--help`.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "done",
            Self::Failure => "failed; the message says why",
            Self::Usage => "the command line is wrong",
            Self::Denied => "a permission is missing",
            Self::Absent => "what was named does not exist",
            Self::TimedOut => "no answer in time",
            Self::Refused => "the broker or the daemon refused",
            Self::NotServing => "no daemon serves what was asked for",
            Self::Conflict => "somebody else did it first, or holds it",
            Self::Unreachable => "the broker cannot be reached",
            Self::Partial => "done in part, such as a join without its durable backstop",
        }
    }

    /// The table for `--help`.
    pub fn table() -> String {
        let line = |exit: Self| format!("  {:>2}  {}\n", exit as u8, exit.meaning());
        Self::ALL.into_iter().map(line).collect()
    }

    /// The code of an error: that of the first cause which has one.
    pub fn of(error: &anyhow::Error) -> Self {
        // A failure that was added as context is found by this look-up only.
        if let Some(failure) = error.downcast_ref::<Failure>() {
            return failure.exit;
        }
        error.chain().find_map(code_of).unwrap_or(Self::Failure)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A failure that the command line itself found, with the code it ends with.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    /// A failure that ends with `exit`; the message says what to do.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }
}

fn code_of(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(error) = cause.downcast_ref::<NatsError>() {
        return Some(of_nats(error));
    }
    if let Some(error) = cause.downcast_ref::<ManagerError>() {
        return of_manager(error);
    }
    if let Some(error) = cause.downcast_ref::<LaneError>() {
        return of_lane(error);
    }
    if let Some(LockError::Held { .. } | LockError::Runs { .. }) = cause.downcast_ref() {
        return Some(Exit::Conflict);
    }
    match cause.downcast_ref() {
        Some(ManifestError::Malformed { .. }) => return Some(Exit::Usage),
        Some(ManifestError::Absent(_)) => return Some(Exit::Absent),
        _ => {}
    }
    if let Some(RootError::NotFound(_) | RootError::NotARoot(_)) = cause.downcast_ref() {
        return Some(Exit::Absent);
    }
    if let Some(error) = cause.downcast_ref::<FileError>() {
        return of_file(error);
    }
    if let Some(RootError::File(error)) = cause.downcast_ref() {
        return of_file(error);
    }
    if let Some(MeshError::File(error)) = cause.downcast_ref() {
        return of_file(error);
    }
    if let Some(error) = cause.downcast_ref::<ProbeError>() {
        return Some(of_probe(error));
    }
    match cause.downcast_ref::<io::Error>()?.kind() {
        // Whoever closes the pipe has seen enough; that is no failure of ours.
        io::ErrorKind::BrokenPipe => Some(Exit::Ok),
        io::ErrorKind::PermissionDenied => Some(Exit::Denied),
        io::ErrorKind::NotFound => Some(Exit::Absent),
        _ => None,
    }
}

/// What another user could change is not used, whatever it says.
fn of_file(error: &FileError) -> Option<Exit> {
    match error {
        FileError::Foreign { .. } | FileError::WritableByOthers(_) | FileError::Symlink(_) => {
            Some(Exit::Denied)
        }
        _ => None,
    }
}

/// Where the broker's answer is the cause, the answer decides.
fn of_manager(error: &ManagerError) -> Option<Exit> {
    match error {
        ManagerError::Name(_) | ManagerError::Wider { .. } => Some(Exit::Usage),
        ManagerError::NoSuchAgent(_) | ManagerError::KeyUnknown(_) => Some(Exit::Absent),
        ManagerError::RailSilent { timed_out: true, .. } => Some(Exit::TimedOut),
        ManagerError::RailSilent { .. } => Some(Exit::NotServing),
        ManagerError::NotRecalled { source, .. } => of_manager(source),
        ManagerError::BrokerGone(_) => Some(Exit::Unreachable),
        ManagerError::Retiring(_)
        | ManagerError::Busy(_)
        | ManagerError::NameTaken { .. }
        | ManagerError::GateFrozen { .. }
        | ManagerError::OtherStore { .. }
        | ManagerError::Renewed(_)
        | ManagerError::Ambiguous { .. }
        | ManagerError::StoreHeld { .. }
        | ManagerError::Lock(LockError::Held { .. } | LockError::Runs { .. }) => {
            Some(Exit::Conflict)
        }
        ManagerError::Mint(MintError::TooLarge { .. }) | ManagerError::Refused { .. } => {
            Some(Exit::Refused)
        }
        ManagerError::File(error) | ManagerError::Trust(TrustError::File(error)) => of_file(error),
        ManagerError::TrustLost { .. }
        | ManagerError::Trust(TrustError::NoOperator(_) | TrustError::NoAccount(_)) => {
            Some(Exit::Absent)
        }
        ManagerError::Start(error) => match **error {
            BrokerError::PortInUse { .. } => Some(Exit::Conflict),
            _ => None,
        },
        _ => None,
    }
}

fn of_lane(error: &LaneError) -> Option<Exit> {
    match error {
        LaneError::Credential(CredentialError::Missing(_)) => Some(Exit::Absent),
        LaneError::Credential(
            CredentialError::Malformed { .. }
            | CredentialError::Foreign { .. }
            | CredentialError::Torn(_),
        ) => Some(Exit::Denied),
        LaneError::Lease(LeaseError::Held { .. } | LeaseError::Taken { .. }) => {
            Some(Exit::Conflict)
        }
        LaneError::Lease(
            LeaseError::Refused { source, .. } | LeaseError::NotReacquired { source, .. },
        ) => Some(of_lease(source)),
        LaneError::Broker { source, .. } => Some(of_nats(source)),
        LaneError::BrokerGone | LaneError::BrokerGonePastBackstop => Some(Exit::Unreachable),
        _ => None,
    }
}

fn of_lease(failure: &LeaseFailure) -> Exit {
    match failure {
        LeaseFailure::Conflict => Exit::Conflict,
        LeaseFailure::Denied(_) => Exit::Denied,
        LeaseFailure::Refused(_) => Exit::Refused,
        LeaseFailure::Unanswered => Exit::TimedOut,
        LeaseFailure::NoResponders(_) => Exit::NotServing,
    }
}

fn of_probe(error: &ProbeError) -> Exit {
    match error {
        ProbeError::BadUrl { .. } => Exit::Usage,
        ProbeError::Unreachable { .. } | ProbeError::NotNats { .. } => Exit::Unreachable,
        ProbeError::Silent { .. } => Exit::TimedOut,
    }
}

/// The broker's answers keep their kind; an answer that did not come is never a refusal.
fn of_nats(error: &NatsError) -> Exit {
    match error {
        NatsError::Denied { .. } => Exit::Denied,
        NatsError::Conflict { .. } => Exit::Conflict,
        NatsError::Absent { .. } => Exit::Absent,
        NatsError::Timeout { .. } => Exit::TimedOut,
        NatsError::NoResponders { .. } | NatsError::Withheld { .. } => Exit::NotServing,
        NatsError::Refused { .. } | NatsError::TooLarge { .. } => Exit::Refused,
        NatsError::Disconnected { .. } | NatsError::Closed => Exit::Unreachable,
        NatsError::Malformed { .. } => Exit::Failure,
        NatsError::Connect(error) => of_connect(error),
    }
}

fn of_connect(error: &ConnectError) -> Exit {
    match error {
        ConnectError::Address { .. } => Exit::Usage,
        ConnectError::Unreachable { .. } | ConnectError::Tls { .. } => Exit::Unreachable,
        ConnectError::Timeout { .. } => Exit::TimedOut,
        ConnectError::Rejected { .. } | ConnectError::Creds(_) => Exit::Denied,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn the_first_cause_with_a_code_decides() {
        let inner = NatsError::NoResponders { subject: "x".to_owned() };
        let error = anyhow::Error::from(inner).context("while probing");
        assert_eq!(Exit::of(&error), Exit::NotServing);
        let outer =
            Err::<(), _>(error).context(Failure::new(Exit::Partial, "joined live")).unwrap_err();
        assert_eq!(Exit::of(&outer), Exit::Partial);
        assert_eq!(Exit::of(&anyhow::anyhow!("other")), Exit::Failure);
    }

    #[test]
    fn a_file_that_may_not_be_read_is_no_absent_one() {
        let error = |kind| anyhow::Error::from(io::Error::from(kind)).context("cannot open x");
        assert_eq!(Exit::of(&error(io::ErrorKind::PermissionDenied)), Exit::Denied);
        assert_eq!(Exit::of(&error(io::ErrorKind::NotFound)), Exit::Absent);
        assert_eq!(Exit::of(&error(io::ErrorKind::IsADirectory)), Exit::Failure);
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let error = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(Exit::of(&error), Exit::Ok);
    }
}
