//! Whether an agent that stays connected may still do so.
//!
//! A broker that refuses a credential does so for good when the agent is retired, and for a moment
//! when its credential is being replaced. The credential's file tells which.

use std::future::pending;
use std::path::PathBuf;
use std::time::Duration;

use cotal_client::{Creds, Notice};
use tokio::time::{Instant, sleep};

use crate::commands::as_agent::Seat;
use crate::exit::{Exit, Failure};

/// A narrowing replaces the file once the daemon has taken back what was taken away.
const REPLACED_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks at the file.
const FILE_POLL_EVERY: Duration = Duration::from_millis(250);

/// What follows on a refused credential.
#[derive(Debug)]
pub enum Lost {
    /// The file holds another key: the agent connects anew.
    Replaced,
    /// The agent is over, for this reason.
    Over(anyhow::Error),
}

/// Watches one connection of an agent.
#[derive(Debug)]
pub struct CredentialWatch {
    file: PathBuf,
    /// The text with which it connected.
    used: Option<String>,
    refused: Option<(Instant, String)>,
}

impl CredentialWatch {
    /// Begins before the agent connects.
    pub fn of(seat: &Seat) -> Self {
        let used = std::fs::read_to_string(&seat.file).ok();
        Self { file: seat.file.clone(), used, refused: None }
    }

    /// Takes note of what the endpoint tells.
    pub fn heard(&mut self, notice: &Notice) {
        match notice {
            Notice::CredentialRefused { reason } => {
                self.refused.get_or_insert_with(|| (Instant::now(), reason.clone()));
            }
            Notice::Reconnected => self.refused = None,
            _ => {}
        }
    }

    /// Waits until it is known what follows on a refusal; for ever where nothing was refused.
    /// Cancel-safe.
    pub async fn lost(&self) -> Lost {
        let Some((since, reason)) = &self.refused else { return pending().await };
        loop {
            match std::fs::read_to_string(&self.file) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Lost::Over(self.over(reason, "its file is gone: the agent is retired"));
                }
                Ok(text) if self.is_of_another_key(&text) => return Lost::Replaced,
                _ if since.elapsed() > REPLACED_WITHIN => {
                    let still = "and its file holds no other: `cotal agent list` shows whether the \
                                 agent is retired or being narrowed";
                    return Lost::Over(self.over(reason, still));
                }
                _ => sleep(FILE_POLL_EVERY).await,
            }
        }
    }

    /// The endpoint itself takes up another credential of its own key.
    fn is_of_another_key(&self, text: &str) -> bool {
        let key = |text: &str| Creds::parse(text).ok().map(|creds| creds.nkey().to_owned());
        let found = key(text);
        found.is_some() && found != self.used.as_deref().and_then(key)
    }

    fn over(&self, reason: &str, what: &str) -> anyhow::Error {
        let file = self.file.display();
        let message =
            format!("the broker does not accept the credential {file} any more ({reason}), {what}");
        Failure::new(Exit::Denied, message).into()
    }
}
