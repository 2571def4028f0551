//! The `ctl.delivery-admin` service: requests of the manager to the daemon.
//!
//! Requests are answered one at a time, in the order they arrive. Only an inventory is answered
//! without waiting for the others, so that many retirements do not queue behind evictions (ADM-1,
//! INV-1).

use std::sync::Arc;
use std::time::Duration;

use cotal_nats::{NatsError, Subject, Subscription};
use cotal_rules::directory::Acl;
use cotal_wire::anycast::PageArgs;
use cotal_wire::control::{
    Adoption, Code, Down, Evictions, Inventory, InventoryArgs, PrincipalArgs, PrincipalsArgs,
    ReloadArgs, Reloaded, Reply, Request, WaitingArgs, op,
};
use cotal_wire::limits::MAX_EVICT;
use cotal_wire::names::DELIVERY_ADMIN;
use cotal_wire::{Lifecycle, Principal};
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use tracing::warn;

use crate::census::ScanError;
use crate::control::components::{Components, Sidecars};
use crate::control::rail::{Rail, args, done, unknown};
use crate::counters::Counters;
use crate::credentials::adoption::Proved;
use crate::loop_progress::LoopReporter;
use crate::sidecar::Health;
use crate::state::view::View;

/// Requests that wait for their turn; one beyond this is dropped, and its caller times out and
/// retries.
const MAX_QUEUED_REQUESTS: usize = 1_024;

/// How long a recall may hold up the requests behind it. Copies deleted by then stay deleted.
const RECALL_WITHIN: Duration = Duration::from_secs(4);

/// Everything the service needs.
pub(crate) struct AdminApi {
    pub(crate) rail: Rail,
    pub(crate) view: Arc<View>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) incarnation: String,
    pub(crate) since: i64,
    pub(crate) components: Arc<Components>,
}

/// A request that has been read, or why it is refused, and where the reply goes.
struct AdminCall {
    request: Result<Request, Reply>,
    reply_to: Subject,
}

impl AdminCall {
    fn is_inventory(&self) -> bool {
        self.request.as_ref().is_ok_and(|request| request.op == op::LIFECYCLE_MEMBERSHIPS)
    }
}

impl AdminApi {
    /// Answers until told to stop, then finishes the requests in progress.
    pub(crate) async fn run(
        self,
        mut requests: Subscription,
        mut reporter: LoopReporter,
        stop: CancellationToken,
    ) -> Result<(), NatsError> {
        let service = Arc::new(self);
        let (queue, queued) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let mut working = JoinSet::new();
        working.spawn(Arc::clone(&service).answer_in_order(queued));
        loop {
            let message = tokio::select! {
                () = stop.cancelled() => break,
                () = reporter.answered() => continue,
                Some(_) = working.join_next(), if working.len() > 1 => continue,
                message = requests.next() => message?,
            };
            let Some(call) = service.rail.call(message, DELIVERY_ADMIN) else { continue };
            let asked = AdminCall { request: call.request(), reply_to: call.reply_to };
            if asked.is_inventory() {
                let service = Arc::clone(&service);
                working.spawn(async move { service.answer(asked).await });
            } else if queue.try_send(asked).is_err() {
                warn!(space = %service.rail.space, "too many admin requests wait; dropped one");
            }
        }
        drop(queue);
        while working.join_next().await.is_some() {}
        Ok(())
    }

    async fn answer_in_order(self: Arc<Self>, mut queued: mpsc::Receiver<AdminCall>) {
        while let Some(asked) = queued.recv().await {
            self.answer(asked).await;
        }
    }

    async fn answer(&self, asked: AdminCall) {
        let AdminCall { request, reply_to } = asked;
        let reply = match request.and_then(|request| self.rail.while_serving(request)) {
            Ok(request) if request.op == op::RELOAD_CREDS => {
                return self.reload(&reply_to, request).await;
            }
            Ok(request) => self.perform(request).await,
            Err(refusal) => refusal,
        };
        self.rail.send(&reply_to, &reply).await;
    }

    /// Replies first and reconnects afterwards, because the reconnect drops the connection that
    /// carries the reply.
    async fn reload(&self, reply_to: &str, request: Request) {
        let args = match args::<ReloadArgs>(request.args) {
            Ok(args) => args,
            Err(refusal) => return self.rail.send(reply_to, &refusal).await,
        };
        let expected = args.expected.unwrap_or_default();
        match self.components.renewal.reload(expected.delivery.as_deref()).await {
            Err(why) => self.rail.send(reply_to, &why.reply()).await,
            Ok(Proved { accepted, is_new }) => {
                let feed = &self.components.sidecars.feed.credential;
                let reloaded = Reloaded {
                    delivery: Adoption::BrokerAccepted(accepted),
                    membership: feed.reload(expected.membership.as_deref()).await,
                };
                self.rail.send(reply_to, &done(&reloaded)).await;
                if is_new {
                    self.components.renewal.order_move();
                }
            }
        }
    }

    async fn perform(&self, request: Request) -> Reply {
        match request.op.as_str() {
            op::DELIVERY_STATUS => self.status(),
            op::LIFECYCLE_MEMBERSHIPS => match args::<InventoryArgs>(request.args) {
                Ok(InventoryArgs { principal, lifecycle_uid, after }) => {
                    self.inventory(&Lifecycle::new(principal, lifecycle_uid), after).await
                }
                Err(refusal) => refusal,
            },
            op::RECALL_NARROWED => match args::<InventoryArgs>(request.args) {
                Ok(a) => self.recall(&Lifecycle::new(a.principal, a.lifecycle_uid)).await,
                Err(refusal) => refusal,
            },
            op::EVICT_PRINCIPAL => match args::<PrincipalArgs>(request.args) {
                Ok(a) => self.evict_one(a.principal).await,
                Err(refusal) => refusal,
            },
            op::EVICT_PRINCIPALS => match args::<PrincipalsArgs>(request.args) {
                Ok(a) => self.evict_all(&a.principals).await,
                Err(refusal) => refusal,
            },
            op::PRINCIPAL_LIVENESS => match args::<PrincipalArgs>(request.args) {
                Ok(a) => scanned(self.components.scanner.liveness(&a.principal).await),
                Err(refusal) => refusal,
            },
            op::WAITING_ENTRIES => match args::<WaitingArgs>(request.args) {
                Ok(a) => done(&self.components.pipeline.waiting.page(&a)),
                Err(refusal) => refusal,
            },
            op::STANDING_REQUESTS => match args::<PageArgs>(request.args) {
                Ok(a) => self.standing(a.after).await,
                Err(refusal) => refusal,
            },
            op::RELOAD_STORE_IDENTITY => done(&self.components.scanner.store().identity()),
            other => unknown(other, DELIVERY_ADMIN),
        }
    }

    async fn evict_one(&self, principal: Principal) -> Reply {
        match self.components.scanner.evict(&[principal]).await {
            Ok(mut results) => match results.pop() {
                Some(result) => done(&result),
                None => Reply::refused(Code::Unavailable, "the census gave no result; try again"),
            },
            Err(error) => refused(&error),
        }
    }

    async fn evict_all(&self, principals: &[Principal]) -> Reply {
        if principals.len() > MAX_EVICT {
            let why = format!("one request may name at most {MAX_EVICT} principals");
            return Reply::refused(Code::Invalid, why);
        }
        scanned(
            self.components.scanner.evict(principals).await.map(|results| Evictions { results }),
        )
    }

    /// Answers once no copy that the lifecycle's ACL row forbids can be delivered any more. A
    /// daemon that no longer serves cannot confirm that, because the daemon that serves now hands
    /// off too.
    async fn recall(&self, member: &Lifecycle) -> Reply {
        let recalled = tokio::time::timeout(
            RECALL_WITHIN,
            self.components.pipeline.recaller.recall_current(member),
        );
        match recalled.await {
            Ok(Ok(())) if matches!(self.view.directory().acl(member), Acl::Absent) => {
                Reply::refused(Code::NotProvisioned, "this lifecycle has no ACL row")
            }
            Ok(Ok(())) if self.rail.gate.is_open() => Reply::done(json!({})),
            Ok(Err(error)) if !error.is_transient() => {
                Reply::refused(Code::Unavailable, format!("the recall is not complete: {error}"))
            }
            Ok(_) | Err(_) => {
                Reply::refused(Code::NotReady, "the recall is not complete yet; try again")
            }
        }
    }

    fn status(&self) -> Reply {
        let garbled = self.view.directory().garbled() + self.components.requests.garbled();
        let mut status = self.counters.status(&self.incarnation, self.since, garbled);
        status.waiting = self.components.pipeline.waiting.len();
        let Components { pipeline, sidecars, .. } = &*self.components;
        let Sidecars { timers, feed, lease } = sidecars;
        let parts = [lease, timers, &feed.health].into_iter().filter_map(Health::down);
        // The broker's answer to each writer's last write: only a write shows whether it stores.
        let stores =
            [("the copies into INBOX", &pipeline.inbox), ("the hand-off into DLV", &pipeline.dlv)];
        let stores = stores.into_iter().filter_map(|(what, writer)| {
            let reason = writer.refusal()?.to_string();
            Some(Down { component: what.to_owned(), reason })
        });
        status.down = parts.chain(stores).collect();
        done(&status)
    }

    async fn standing(&self, after: u64) -> Reply {
        match self.components.requests.standing(after).await {
            Ok(requests) => done(&requests),
            Err(error) => {
                Reply::refused(Code::Unavailable, format!("TASK cannot be read: {error}"))
            }
        }
    }

    /// A page is read like a whole inventory, after the same fence. It takes half of the broker's
    /// maximum payload, so that the name where the next page begins fits as well.
    async fn inventory(&self, member: &Lifecycle, after: Option<String>) -> Reply {
        match (self.components.registry.inventory(member).await, after) {
            (Ok(channels), None) => done(&Inventory { channels, next: None }),
            (Ok(channels), Some(after)) => {
                let room = self.rail.connection.max_payload() / 2;
                done(&Inventory::page(channels, &after, room))
            }
            (Err(error), _) => error.reply(),
        }
    }
}

fn scanned<T: Serialize>(outcome: Result<T, ScanError>) -> Reply {
    match outcome {
        Ok(result) => done(&result),
        Err(error) => refused(&error),
    }
}

/// Missing authority and a broker that does not answer both mean that there is no result; the
/// message says which.
fn refused(error: &ScanError) -> Reply {
    Reply::refused(Code::Unavailable, error.to_string())
}
