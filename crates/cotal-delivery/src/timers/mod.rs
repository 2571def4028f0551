//! The checkpoint timer writer: turns `.schedule` requests into armed broker schedules (TMR-1 to
//! TMR-5).
//!
//! Invariant: a request is acked only after the broker has confirmed its schedule, or shows that
//! the same or a later generation is armed or has fired. A schedule is written only if the broker
//! still holds what the decision was made from, so nothing here depends on the lease or on memory.

mod arm;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cotal_nats::js::ConsumerAction;
use cotal_nats::{
    ConnectOptions, Connection, Delivery, NatsError, PullConsumer, PullError, PullOptions, headers,
};
use cotal_rules::timers::{Refused, Request};
use cotal_rules::waiting::retry_delay;
use cotal_wire::names::TIMER_WRITER;
use cotal_wire::{Space, Timer};
use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::consumer::answers::log_failure;
use crate::counters::{Counters, add};
use crate::lane::context::LaneContext;
use crate::lease::gate::Gate;
use crate::sidecar::{Health, Sidecar, contained};
use arm::ArmOutcome;

/// Requests pulled ahead: few enough to be processed within the consumer's ack wait.
const PULL_REQUESTS: usize = 256;
/// Timers processed at once; each takes one to three round trips to the broker.
const ARM_AT_ONCE: usize = 64;
/// How long one pull waits.
const PULL_FOR: Duration = Duration::from_secs(30);

/// The name of the component, in the log and the status.
const COMPONENT: &str = "the timer writer";

/// Why one run of the writer ended.
#[derive(Debug, thiserror::Error)]
enum TimerFault {
    #[error("it cannot bind its streams and its consumer: {0}")]
    Bind(#[from] NatsError),
    #[error(
        "the stream {0} does not allow message schedules, so nothing would ever fire; run \
         `cotal up` on a broker of 2.12 or newer"
    )]
    NoSchedules(String),
    #[error(transparent)]
    Pull(#[from] PullError),
}

/// What the writer needs of its lane.
#[derive(Clone)]
struct TimerWriter {
    space: Space,
    gate: Gate,
    counters: Arc<Counters>,
}

/// Starts the writer; the result tells whether it runs.
pub(crate) fn spawn(context: &LaneContext) -> Health {
    let (space, health) = (context.space.clone(), Health::new(COMPONENT));
    let writer = TimerWriter {
        space: space.clone(),
        gate: context.gate.clone(),
        counters: Arc::clone(&context.counters),
    };
    let name = format!("cotal-timers {space}");
    let sidecar = Sidecar {
        space,
        connect: ConnectOptions { name, ..context.connect.clone() },
        health: health.clone(),
        meanwhile: "no timer of this space is armed; requests wait in EPT_REQ",
    };
    let (stop, shown) = (context.stop.clone(), health.clone());
    let work = async move {
        let pump = |connection, stop| writer.clone().pump(connection, health.clone(), stop);
        sidecar.run(stop, pump).await;
    };
    let (space, stop) = (context.space.clone(), context.stop.clone());
    context.spawn(COMPONENT, contained(space, shown.clone(), stop, Box::pin(work)));
    shown
}

impl TimerWriter {
    async fn pump(
        mut self,
        connection: Connection,
        health: Health,
        stop: CancellationToken,
    ) -> Result<(), TimerFault> {
        self.bind(&connection).await?;
        let (stream, ahead) = (self.space.ept_req_stream(), PULL_REQUESTS);
        let options = PullOptions { batch: ahead, ..PullOptions::default() };
        let mut pull = PullConsumer::open(&connection, &stream, TIMER_WRITER, options).await?;
        health.runs();
        while !stop.is_cancelled() {
            let taken = async {
                self.gate.open().await;
                pull.next_batch(ahead, PULL_FOR).await
            };
            let Some(batch) = stop.run_until_cancelled(taken).await else { break };
            let batch = batch?;
            // Requests held by a lane that no longer serves are redelivered to the daemon that
            // serves next.
            if self.gate.is_open() {
                self.settle(&connection, batch, &stop).await;
            }
        }
        let gate = self.gate.clone();
        let left = pull.leave(|| gate.is_open()).await;
        let given_back = left.give_back(|| gate.is_open()).await;
        log_failure(&self.space, "return what was left", given_back);
        Ok(())
    }

    /// Checks that armed schedules will fire, and binds the consumer. A missing consumer is
    /// created, and logged as an error. Then every request that the stream holds is processed
    /// again, which changes nothing.
    async fn bind(&self, connection: &Connection) -> Result<(), TimerFault> {
        let schedules = connection.stream_info(&self.space.ept_stream()).await?.config;
        if schedules.rest.get("allow_msg_schedules") != Some(&true.into()) {
            return Err(TimerFault::NoSchedules(schedules.name));
        }
        let (stream, wanted) = (self.space.ept_req_stream(), self.space.timer_writer_config());
        let action = match connection.consumer_info(&stream, TIMER_WRITER).await {
            Ok(info) if wanted.ack_wait.map(u64::cast_signed) == Some(info.config.ack_wait) => {
                return Ok(());
            }
            Ok(_) => ConsumerAction::CreateOrUpdate,
            Err(error) if error.is_absent() => {
                error!(space = %self.space, stream, consumer = TIMER_WRITER, "a consumer is missing; it is re-created");
                ConsumerAction::Create
            }
            Err(error) => return Err(error.into()),
        };
        let filter = wanted.filter_subject.as_deref();
        connection.create_consumer(&stream, TIMER_WRITER, filter, &wanted, action).await?;
        Ok(())
    }

    /// Answers every request of a batch. Requests for one timer are settled together, because only
    /// the newest of them matters. Different timers do not wait for each other.
    async fn settle(
        &self,
        connection: &Connection,
        batch: Vec<Delivery>,
        stop: &CancellationToken,
    ) {
        let mut timers: HashMap<Timer, TimerBatch> = HashMap::new();
        for delivery in batch {
            match self.read(&delivery) {
                Ok(request) => TimerBatch::add(&mut timers, request, delivery),
                Err(why) => self.refuse(delivery, &why).await,
            }
        }
        let all = futures_util::stream::iter(timers.into_values());
        all.for_each_concurrent(ARM_AT_ONCE, |asked| self.settle_one(connection, asked, stop))
            .await;
    }

    fn read(&self, delivery: &Delivery) -> Result<Request, Refused> {
        if !headers::are_readable(delivery.headers.as_ref()) {
            return Err(Refused::Unreadable);
        }
        let headers = delivery.headers.iter().flat_map(|headers| headers.iter());
        let names = headers.map(|(name, _)| name.as_ref());
        Request::read(&self.space, &delivery.subject, names, &delivery.payload)
    }

    async fn refuse(&self, delivery: Delivery, why: &Refused) {
        add(&self.counters.refused_timers, 1);
        let (space, subject, seq) = (&self.space, &delivery.subject, delivery.stream_seq);
        warn!(%space, %subject, seq, %why, "a timer request arms nothing");
        log_failure(space, "terminate a timer request", delivery.term().await);
    }

    async fn settle_one(
        &self,
        connection: &Connection,
        asked: TimerBatch,
        stop: &CancellationToken,
    ) {
        let TimerBatch { request, deliveries } = asked;
        let (space, timer) = (&self.space, &request.timer);
        let generation = request.body.generation;
        let armed = arm::arm(space, connection, &self.gate, &request, stop).await;
        match &armed {
            Ok(ArmOutcome::Armed) => add(&self.counters.armed_timers, 1),
            Ok(outcome) => {
                debug!(%space, %timer, generation, ?outcome, "a timer request needs no new schedule");
            }
            Err(error) => {
                warn!(%space, %timer, generation, %error, "a timer could not be armed yet; retrying");
            }
        }
        for delivery in deliveries {
            let answered = match &armed {
                Ok(_) => delivery.ack().await,
                Err(_) if !self.gate.is_open() => Ok(()),
                Err(_) => {
                    let delay = retry_delay(delivery.delivered);
                    delivery.nak(Some(delay)).await
                }
            };
            log_failure(space, "answer a timer request", answered);
        }
    }
}

/// The requests of a batch for one timer.
struct TimerBatch {
    /// The newest request.
    request: Request,
    /// The deliveries of the newest request and of those that it supersedes.
    deliveries: Vec<Delivery>,
}

impl TimerBatch {
    fn add(timers: &mut HashMap<Timer, Self>, request: Request, delivery: Delivery) {
        match timers.get_mut(&request.timer) {
            None => {
                let deliveries = vec![delivery];
                timers.insert(request.timer.clone(), Self { request, deliveries });
            }
            Some(asked) => {
                asked.deliveries.push(delivery);
                if request.supersedes(&asked.request) {
                    asked.request = request;
                }
            }
        }
    }
}
