//! Lists of requests: a sender's own, and those on the queue.

use cotal_nats::{Get, NatsError};
use cotal_rules::anycast::{Record, is_let_go};
use cotal_wire::Lifecycle;
use cotal_wire::anycast::{ListedRequest, ListedRequests, REQUESTS_PAGE, Standing};
use cotal_wire::rows::{Outcome, RequestRow, RequestState};

use super::{RequestKeeper, is_same};

impl RequestKeeper {
    /// Serves `anycastList`: the requests that the lifecycle sent and that are still known, by
    /// sequence.
    pub(crate) async fn list(
        &self,
        member: &Lifecycle,
        after: u64,
    ) -> Result<ListedRequests, NatsError> {
        let created = self.created().await?;
        let after = after.max(self.frontier(member, &created));
        let own = &member.principal;
        let mut all = self.walk(&self.space.svc_from(own), after, &created).await?;
        let standing: Vec<u64> = all.iter().map(|request| request.seq).collect();
        {
            let known = self.records.known();
            let records = known.range(after.saturating_add(1)..).map(|(_, record)| &record.row);
            let left = records.filter(|row| {
                row.sender == *own
                    && is_same(&row.stream_created, &created)
                    && standing.binary_search(&row.seq).is_err()
            });
            all.extend(left.take(REQUESTS_PAGE + 1).map(left_the_queue));
        }
        all.sort_by_key(|request| request.seq);
        Ok(page(all))
    }

    /// Serves `standingRequests`: the requests on the queue, oldest first.
    pub(crate) async fn standing(&self, after: u64) -> Result<ListedRequests, NatsError> {
        let created = self.created().await?;
        Ok(page(self.walk(&self.space.svc_all(), after, &created).await?))
    }

    /// Reads one request more than fits on a page.
    async fn walk(
        &self,
        filter: &str,
        after: u64,
        created: &str,
    ) -> Result<Vec<ListedRequest>, NatsError> {
        let stream = self.space.task_stream();
        let mut found = Vec::new();
        let mut next = after.saturating_add(1);
        while found.len() <= REQUESTS_PAGE {
            let get = Get::NextBySubject { seq: next, subject: filter };
            let Some(stored) = self.connection.get_message(&stream, get).await? else { break };
            next = stored.seq.saturating_add(1);
            let Some((role, sender)) = self.space.parse_svc(&stored.subject) else { continue };
            let sent = stored.time.unix_timestamp_nanos() / 1_000_000;
            let known = self.records.known();
            let record = known.get(&stored.seq).map(|Record { row, .. }| row);
            let record = record.filter(|row| is_same(&row.stream_created, created));
            let left = |row: &&RequestRow| {
                let is_gone = row.holder.as_ref().is_some_and(|holder| self.is_gone(holder));
                is_gone && is_let_go(row, is_gone)
            };
            let record = record.filter(|row| !left(row));
            found.push(ListedRequest {
                seq: stored.seq,
                role,
                sender,
                state: record.map_or(Standing::Queued, standing),
                holder: record.and_then(|row| row.holder.clone()),
                delivery: record.and_then(|row| row.delivery),
                since: i64::try_from(sent).unwrap_or_default(),
            });
        }
        Ok(found)
    }
}

/// The state of a recorded request while it is on the queue.
fn standing(row: &RequestRow) -> Standing {
    let outcome = row.result.as_ref().map(|result| result.outcome);
    match (row.state, outcome) {
        (RequestState::Cancelled, _) => Standing::Cancelled,
        (RequestState::Taken, Some(Outcome::Done)) => Standing::Done,
        (RequestState::Taken, Some(Outcome::Failed)) => Standing::Failed,
        (RequestState::Taken, Some(Outcome::Returned)) => Standing::Queued,
        (RequestState::Taken, _) => Standing::Taken,
    }
}

fn left_the_queue(row: &RequestRow) -> ListedRequest {
    ListedRequest {
        seq: row.seq,
        role: row.role.clone(),
        sender: row.sender.clone(),
        state: match standing(row) {
            Standing::Taken | Standing::Queued => Standing::Done,
            other => other,
        },
        holder: row.holder.clone(),
        delivery: row.delivery,
        since: row.at,
    }
}

fn page(mut requests: Vec<ListedRequest>) -> ListedRequests {
    let more = requests.len() > REQUESTS_PAGE;
    requests.truncate(REQUESTS_PAGE);
    ListedRequests { requests, more }
}
