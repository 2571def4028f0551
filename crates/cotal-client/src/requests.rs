//! A sender's own role requests: where they stand, and taking them back (ANY-4, ANY-5).

use std::fmt;

use cotal_wire::Principal;
use cotal_wire::anycast::{
    Cancelled, HeldBy, ListedRequest, ListedRequests, PageArgs, SeqArgs, StatusReply, Unrecorded,
};
use cotal_wire::control::{Code, op};
use cotal_wire::rows::{self, Outcome, RequestRow};

use crate::control::ControlError;
use crate::endpoint::Endpoint;

/// Where a request of this agent stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestState {
    /// Nobody has it yet.
    Queued,
    /// A holder took it; it is done once the record says that it left the queue.
    Taken(Box<RequestRow>),
    /// It was taken back.
    Cancelled(Box<RequestRow>),
    /// This agent has no such request.
    Unknown,
}

impl fmt::Display for RequestState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queued => f.write_str("queued: nobody has it yet"),
            Self::Cancelled(_) => f.write_str("cancelled"),
            Self::Unknown => f.write_str("unknown: this agent has no such request"),
            Self::Taken(row) => match &row.holder {
                Some(holder) if row.result.is_some() => match outcome(row) {
                    Some(Outcome::Failed) => write!(f, "failed at {holder}"),
                    Some(Outcome::Returned) if row.gone == 0 => {
                        write!(f, "given back by {holder}: some holder gets it again")
                    }
                    _ => write!(f, "done by {holder}"),
                },
                Some(holder) if row.gone > 0 => write!(f, "done by {holder}"),
                Some(holder) => write!(f, "taken by {holder}"),
                None => f.write_str("taken"),
            },
        }
    }
}

fn outcome(row: &RequestRow) -> Option<Outcome> {
    row.result.as_ref().map(|result| result.outcome)
}

/// What became of an attempt to take a request back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancel {
    /// It is taken back: no holder shows it any more.
    Cancelled,
    /// A holder has it already.
    Held(Principal),
    /// This agent has no such request.
    Unknown,
}

impl Endpoint {
    /// Where a request stands.
    ///
    /// # Errors
    /// When the daemon does not answer, or refuses.
    pub async fn request_status(&self, seq: u64) -> Result<RequestState, ControlError> {
        let reply = self.control(op::ANYCAST_STATUS, &SeqArgs { seq }).await?;
        Ok(match reply {
            StatusReply::Recorded(row) => match row.state {
                rows::RequestState::Taken => RequestState::Taken(row),
                rows::RequestState::Cancelled => RequestState::Cancelled(row),
            },
            StatusReply::Unrecorded { state: Unrecorded::Queued } => RequestState::Queued,
            StatusReply::Unrecorded { state: Unrecorded::Unknown } => RequestState::Unknown,
        })
    }

    /// Takes a request back, while no holder has it.
    ///
    /// # Errors
    /// When the daemon does not answer, or refuses for another reason; the request may be cancelled
    /// then.
    pub async fn cancel_request(&self, seq: u64) -> Result<Cancel, ControlError> {
        let asked = self.control::<Cancelled>(op::ANYCAST_CANCEL, &SeqArgs { seq }).await;
        let (code, message, data) = match asked {
            Ok(_) => return Ok(Cancel::Cancelled),
            Err(ControlError::Refused { code, message, data }) => (code, message, data),
            Err(error) => return Err(error),
        };
        let details = data.clone().unwrap_or_default();
        if code == Some(Code::Conflict)
            && let Ok(HeldBy { holder }) = serde_json::from_value(details.clone())
        {
            return Ok(Cancel::Held(holder));
        }
        let unknown = StatusReply::Unrecorded { state: Unrecorded::Unknown };
        if serde_json::from_value::<StatusReply>(details).is_ok_and(|reply| reply == unknown) {
            return Ok(Cancel::Unknown);
        }
        Err(ControlError::Refused { code, message, data })
    }

    /// This agent's requests that the daemon still knows, oldest first: those on the queue, and
    /// those that left it within the last day.
    ///
    /// # Errors
    /// When the daemon does not answer, or refuses.
    pub async fn requests(&self) -> Result<Vec<ListedRequest>, ControlError> {
        let mut all = Vec::new();
        let mut after = 0;
        loop {
            let page: ListedRequests = self.control(op::ANYCAST_LIST, &PageArgs { after }).await?;
            let last = page.requests.last().map(|request| request.seq);
            all.extend(page.requests);
            match last {
                Some(last) if page.more && last > after => after = last,
                _ => return Ok(all),
            }
        }
    }
}
