//! The tasks of a lane: a task that ends by itself ends the lane, and all end with the lane.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tracing::warn;

use super::error::LaneError;

/// The tasks, owned by the lane: they are aborted when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Tasks(Arc<Shared>);

/// Starts tasks for a lane; cheap to clone. It does not own them, so a task may hold it.
#[derive(Debug, Clone)]
pub(super) struct Spawner(Weak<Shared>);

#[derive(Debug, Default)]
struct Shared {
    set: Mutex<Set>,
    /// Notified of each new task, because an empty set wakes nobody.
    spawned: Notify,
}

type Set = JoinSet<(&'static str, Result<(), LaneError>)>;
type Ended = Result<(&'static str, Result<(), LaneError>), JoinError>;

/// The result of a component's task: nothing if it can only be told to stop, or an error.
pub(crate) trait Outcome {
    fn outcome(self) -> Result<(), LaneError>;
}

impl Outcome for () {
    fn outcome(self) -> Result<(), LaneError> {
        Ok(())
    }
}

impl<E: Into<LaneError>> Outcome for Result<(), E> {
    fn outcome(self) -> Result<(), LaneError> {
        self.map_err(Into::into)
    }
}

impl Shared {
    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spawner {
    /// Starts a task. After the lane has ended, it starts none.
    pub(super) fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        let Some(shared) = self.0.upgrade() else { return };
        // Boxed: whoever awaits a future that it was given holds it twice.
        let task = Box::pin(task);
        shared.set().spawn(async move { (name, task.await.outcome()) });
        shared.spawned.notify_one();
    }
}

impl Tasks {
    /// The handle that starts tasks.
    pub(super) fn spawner(&self) -> Spawner {
        Spawner(Arc::downgrade(&self.0))
    }

    /// Waits for the first task that ends by itself, which ends the lane. Cancel-safe.
    pub(super) async fn first_end(&self) -> LaneError {
        loop {
            match self.next().await {
                None => self.0.spawned.notified().await,
                Some(Ok((name, Ok(())))) => {
                    return LaneError::Defect(format!("{name} ended without a reason"));
                }
                Some(Ok((_, Err(error)))) => return error,
                Some(Err(panic)) => return LaneError::Defect(panic.to_string()),
            }
        }
    }

    /// Waits until every task has ended.
    pub(super) async fn drained(&self) {
        while let Some(ended) = self.next().await {
            match ended {
                Ok((_, Ok(()))) => {}
                Ok((component, Err(error))) => {
                    warn!(component, %error, "a component failed while it finished");
                }
                Err(error) => warn!(%error, "a component failed while it finished"),
            }
        }
    }

    /// The next task that ended; `None` while there are no tasks.
    async fn next(&self) -> Option<Ended> {
        std::future::poll_fn(|cx| self.0.set().poll_join_next(cx)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_component_that_is_started_late_ends_the_lane_as_well() {
        let tasks = Tasks::default();
        let spawner = tasks.spawner();
        let ended = tokio::spawn(async move { tasks.first_end().await });
        tokio::task::yield_now().await;
        spawner.spawn("the late one", async {});
        let error = ended.await.unwrap();
        assert_eq!(
            error.to_string(),
            "a part of the lane failed: the late one ended without a reason"
        );
    }

    #[tokio::test]
    async fn a_task_that_may_start_others_does_not_outlive_its_lane() {
        let tasks = Tasks::default();
        let spawner = tasks.spawner();
        let (alive, gone) = tokio::sync::oneshot::channel::<()>();
        let held = spawner.clone();
        spawner.spawn("one", async move {
            let _held = (held, alive);
            std::future::pending::<()>().await;
        });
        drop(tasks);
        assert!(gone.await.is_err(), "dropped, never sent");
    }
}
