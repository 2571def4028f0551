//! A connection whose every operation is judged by what the broker says about it.

use cotal_nats::{Bytes, Connection, Denial, Listener, NatsError};
use tokio::time::{Duration, timeout};

use crate::rows::Operation;

/// How the broker took an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    /// A Permissions Violation for exactly this operation on exactly this subject.
    Denied,
}

/// A user under test.
pub(crate) struct Probe {
    connection: Connection,
    denials: Listener<Denial>,
    marks: u64,
}

impl Probe {
    pub(crate) fn new(connection: Connection) -> Self {
        let denials = connection.denials();
        Self { connection, denials, marks: 0 }
    }

    /// Tries an operation. The broker processes a connection's lines in order, so what it had to
    /// say about this one stands before what it says about the mark that follows, which no profile
    /// may publish.
    pub(crate) async fn tries(&mut self, operation: &Operation) -> Verdict {
        let mut verdict = match operation {
            Operation::Publish(subject) => {
                let reply = format!("{}.nobody", self.connection.inbox_prefix());
                let sent = self
                    .connection
                    .publish_with_reply(subject.as_str(), reply, None, Bytes::new())
                    .await;
                sent.unwrap_or_else(|e| panic!("{subject} cannot be sent: {e}"));
                Verdict::Allowed
            }
            Operation::Subscribe(subject) => {
                match self.connection.subscribe(subject.as_str(), None).await {
                    Ok(_) => Verdict::Allowed,
                    Err(NatsError::Denied { .. }) => Verdict::Denied,
                    Err(error) => panic!("{subject} cannot be subscribed to: {error}"),
                }
            }
        };
        self.marks += 1;
        let mark = format!("nobody.may.publish.this.{}", self.marks);
        self.connection.publish(mark.as_str(), None, Bytes::new()).await.expect("a mark");
        loop {
            let denial = timeout(Duration::from_secs(10), self.denials.recv()).await;
            let denial = denial.expect("no denial of the mark").expect("a denial");
            if denial.subject == mark {
                return verdict;
            }
            if is_of(&denial, operation) {
                verdict = Verdict::Denied;
            }
        }
    }
}

fn is_of(denial: &Denial, operation: &Operation) -> bool {
    match operation {
        Operation::Publish(subject) => {
            denial.operation == cotal_nats::Operation::Publish && denial.subject == *subject
        }
        Operation::Subscribe(subject) => {
            denial.operation == cotal_nats::Operation::Subscribe && denial.subject == *subject
        }
    }
}
