//! Notices to senders: who has taken their request (ANY-3).
//!
//! Invariant: a notice is recorded before it is sent (the unmarked row is that record), and marked
//! afterwards. After a crash in between it is sent again under the same id, so the broker discards
//! the repeat.

use cotal_nats::{NatsError, to_json};
use cotal_rules::anycast::{Notice, Record, marked, owed};
use cotal_wire::anycast::{NoticeData, NoticeKind};
use cotal_wire::envelope::{Message, Part};
use cotal_wire::rows::RequestRow;
use serde_json::json;
use tracing::{info, warn};

use super::RequestKeeper;
use super::records::may_write;
use crate::daemon_message::daemon_message;
use crate::state::view::Feed;

impl RequestKeeper {
    /// Sends the notice that a stored record still needs, and marks it.
    pub(super) async fn settle(&self, record: &Record) -> Result<(), NatsError> {
        let before = self.records.before(record).await?;
        self.tell(record, before.as_ref()).await
    }

    /// The same, if the record that it replaced is known.
    pub(super) async fn tell(
        &self,
        record: &Record,
        before: Option<&RequestRow>,
    ) -> Result<(), NatsError> {
        let Some(notice) = owed(&record.row, before) else { return Ok(()) };
        self.view.fresh(&[Feed::Acl]).await?;
        if self.is_succeeded(&notice.to, notice.seq, &record.row.stream_created) {
            info!(space = %self.space, seq = notice.seq, "the sender of a taken request is retired");
        } else {
            self.send(&notice, record.row.at).await?;
        }
        match self.records.write(&marked(record), None).await {
            Err(error) if !error.is_conflict() => Err(error),
            // Whoever changed the row had to settle the notice first.
            _ => Ok(()),
        }
    }

    /// Notifies the sender after a take. If that fails, the take stays recorded, and the next take
    /// or sweep tries again.
    pub(super) async fn tell_or_leave(&self, record: &Record, before: Option<&RequestRow>) {
        if let Err(error) = self.tell(record, before).await {
            let seq = record.row.seq;
            warn!(space = %self.space, seq, %error, "could not notify the sender of a request yet; retrying later");
        }
    }

    async fn send(&self, notice: &Notice, at: i64) -> Result<(), NatsError> {
        may_write(&self.gate, || format!("the notice {}", notice.id))?;
        let body = to_json(&self.message(notice, at))?;
        let subject = self.space.inst(&notice.to, &self.own);
        let sent = self.connection.publish_confirmed(subject, None, body, Some(&notice.id));
        let ack = sent.await?;
        info!(
            space = %self.space, seq = notice.seq, holder = %notice.holder,
            repeated = ack.duplicate, "the sender of a request was told its holder"
        );
        Ok(())
    }

    fn message(&self, notice: &Notice, at: i64) -> Message {
        let Notice { seq, role, holder, .. } = notice;
        let text = match notice.kind {
            NoticeKind::Taken => format!("{holder} has taken your request {seq} to {role}"),
            NoticeKind::Moved => format!("your request {seq} to {role} moved to {holder}"),
        };
        let data =
            NoticeData { kind: notice.kind, seq: *seq, role: role.clone(), holder: holder.clone() };
        let parts = vec![Part::Text { text }, Part::Data { data: json!(data) }];
        daemon_message(&self.space, &self.own, &notice.to, &notice.id, at, parts)
    }
}
