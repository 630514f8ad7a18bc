//! The only spawner of long-lived tasks: each has a kind, and the kind says what its end means.
//!
//! A component that starts tasks of its own, such as the webhook dispatcher, owns them: they end with its task.
//!
//! Tasks end by themselves when they are stopped; what they serve decides in which order (see `app`). A task that
//! panics is a failure of the host at any time, whatever its kind. So is a panic of any other thread or task, those of
//! libraries included: a part of the host is gone then, and nothing else would notice ([`PanicWatch`]).

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::error::Explain;
use crate::failpoint;

/// What a long-lived task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskKind {
    /// Serves the local HTTP API.
    Api,
    VpnGuard,
    RedisWriter,
    WebhookDispatcher,
    Heartbeat,
    /// Publishes what the heartbeat reports.
    HeartbeatState,
    /// Claims messages from the stream.
    StreamReader,
    /// Serves requests to reload the plugin.
    Reloads,
    /// Tells the service manager that the host is alive.
    Notifier,
    /// Keeps samples of slots, gauges and connections for the page.
    ActivitySampler,
    /// Looks after the pause.
    Availability,
    /// Records when runs could begin.
    AvailabilityRecord,
    /// Keeps the log file small.
    LogRotation,
    /// Ends the lending to peers once the host is stopped.
    PeerLending,
    /// Expires reservations of a coordinator.
    ReservationExpiry,
    /// Takes a coordinator's jobs from the queue.
    JobQueue,
    /// Renews the lease of a coordinator's identity.
    Lease,
}

/// What the end of a task means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnEnd {
    /// The task serves until the supervisor ends it: without it the host is of no use.
    Fatal,
    /// The task may end by itself at any time, once nothing is left for it to do.
    Expected,
    /// The task may end by itself once the host was asked to stop; before that its end is fatal.
    ExpectedAfterStop,
}

impl TaskKind {
    /// Its name in logs and errors.
    pub fn name(self) -> &'static str {
        match self {
            TaskKind::Api => "api",
            TaskKind::VpnGuard => "vpn-guard",
            TaskKind::RedisWriter => "redis-writer",
            TaskKind::WebhookDispatcher => "webhook-dispatcher",
            TaskKind::Heartbeat => "heartbeat",
            TaskKind::HeartbeatState => "heartbeat-state",
            TaskKind::StreamReader => "stream-reader",
            TaskKind::Reloads => "reloads",
            TaskKind::Notifier => "notifier",
            TaskKind::ActivitySampler => "activity-sampler",
            TaskKind::Availability => "availability",
            TaskKind::AvailabilityRecord => "availability-record",
            TaskKind::LogRotation => "log-rotation",
            TaskKind::PeerLending => "peer-lending",
            TaskKind::ReservationExpiry => "reservation-expiry",
            TaskKind::JobQueue => "job-queue",
            TaskKind::Lease => "lease",
        }
    }

    /// What its end means.
    pub fn on_end(self) -> OnEnd {
        match self {
            // What the drain still needs.
            TaskKind::Api
            | TaskKind::VpnGuard
            | TaskKind::RedisWriter
            | TaskKind::Heartbeat
            | TaskKind::Notifier
            | TaskKind::ActivitySampler
            | TaskKind::Availability
            | TaskKind::LogRotation => OnEnd::Fatal,
            // At a terminal no one can ask for a reload.
            TaskKind::Reloads => OnEnd::Expected,
            TaskKind::StreamReader
            | TaskKind::WebhookDispatcher
            | TaskKind::HeartbeatState
            | TaskKind::AvailabilityRecord
            | TaskKind::PeerLending
            | TaskKind::ReservationExpiry
            | TaskKind::JobQueue
            | TaskKind::Lease => OnEnd::ExpectedAfterStop,
        }
    }
}

impl fmt::Display for TaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A part of the host whose end is a failure of the host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part} {how}")]
pub struct TaskEnded {
    /// A task of ours by its name, or any other thread.
    pub(crate) part: String,
    pub(crate) how: String,
}

impl Explain for TaskEnded {
    fn code(&self) -> &'static str {
        "task-ended"
    }

    fn hint(&self) -> Option<String> {
        Some("restart coda-host, and report this as a bug with the lines above".into())
    }
}

/// One running task.
#[derive(Debug, Clone)]
pub struct TaskHandle {
    ended: CancellationToken,
    abort: AbortHandle,
}

impl TaskHandle {
    /// Waits until the task has ended, in whatever way.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Ends the task at its next await.
    pub fn abort(&self) {
        self.abort.abort();
    }
}

/// Takes note of the first panic of this process, whichever thread or task it was in. Panics of plugins are not seen
/// here: each plugin has a panic hook of its own.
#[derive(Default)]
pub struct PanicWatch {
    first: Mutex<Option<TaskEnded>>,
    happened: Notify,
    then: Mutex<Option<Box<dyn Fn() + Send>>>,
}

/// How long the supervisor waits for the end of the task that panicked, whose name says more than its thread's.
const TASK_END_LIMIT: Duration = Duration::from_millis(100);

impl PanicWatch {
    /// The watch over this process. The first call installs it; the hook before it still prints the panic.
    pub fn of_process() -> Arc<PanicWatch> {
        static WATCH: OnceLock<Arc<PanicWatch>> = OnceLock::new();
        WATCH.get_or_init(PanicWatch::install).clone()
    }

    fn install() -> Arc<PanicWatch> {
        let watch = Arc::new(PanicWatch::default());
        let (told, before) = (watch.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            let thread = std::thread::current();
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            let text = panic_text(info.payload());
            let part = format!("the thread '{}'", thread.name().unwrap_or("unnamed"));
            told.note(TaskEnded { part, how: format!("panicked at {place}: {text}") });
        }));
        watch
    }

    /// What is done at every panic, in its thread: a panic of the runtime itself may leave no one to hear of it.
    pub fn then(&self, act: impl Fn() + Send + 'static) {
        *self.then.lock() = Some(Box::new(act));
    }

    fn note(&self, panic: TaskEnded) {
        self.first.lock().get_or_insert(panic);
        if let Some(act) = &*self.then.lock() {
            act();
        }
        // Kept for a supervisor that doesn't wait at the moment.
        self.happened.notify_one();
    }

    /// What panicked first.
    pub fn first(&self) -> Option<TaskEnded> {
        self.first.lock().clone()
    }

    async fn panicked(&self) -> TaskEnded {
        loop {
            if let Some(panic) = self.first() {
                return panic;
            }
            self.happened.notified().await;
        }
    }
}

/// The running tasks.
pub struct Supervisor {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    kinds: Vec<(tokio::task::Id, TaskKind)>,
    panics: Option<Arc<PanicWatch>>,
}

impl Supervisor {
    /// `stop` is cancelled when the host is asked to stop.
    pub fn new(stop: CancellationToken) -> Supervisor {
        Supervisor { stop, tasks: JoinSet::new(), kinds: Vec::new(), panics: None }
    }

    /// Takes a panic anywhere in the process as a failure of the host.
    pub fn watching(mut self, panics: Arc<PanicWatch>) -> Supervisor {
        self.panics = Some(panics);
        self
    }

    pub fn spawn(&mut self, kind: TaskKind, task: impl Future<Output = ()> + Send + 'static) -> TaskHandle {
        let ended = CancellationToken::new();
        // Dropped with the task, so a panic and an abort are told as well.
        let guard = ended.clone().drop_guard();
        let abort = self.tasks.spawn(async move {
            let _guard = guard;
            if !failpoint::ends_task(kind.name()) {
                task.await;
            }
        });
        self.kinds.push((abort.id(), kind));
        TaskHandle { ended, abort }
    }

    /// Waits until a task ends in a way that is a failure of the host, or anything else in the process panics.
    pub async fn failed(&mut self) -> TaskEnded {
        let Some(panics) = self.panics.clone() else { return self.task_failed().await };
        let panic = tokio::select! {
            ended = self.task_failed() => return ended,
            panic = panics.panicked() => panic,
        };
        let of_task = tokio::time::timeout(TASK_END_LIMIT, self.task_failed()).await;
        of_task.unwrap_or(panic)
    }

    async fn task_failed(&mut self) -> TaskEnded {
        while let Some(ended) = self.tasks.join_next_with_id().await {
            let (id, failure) = match ended {
                Ok((id, ())) => (id, None),
                Err(error) => (error.id(), Some(failure_text(error))),
            };
            let Some(kind) = self.forget(id) else {
                // Every task is spawned above, where its kind is noted.
                tracing::error!(failure, "a task without a kind ended; report this as a bug");
                continue;
            };
            let may_end = match kind.on_end() {
                OnEnd::Fatal => false,
                OnEnd::Expected => true,
                OnEnd::ExpectedAfterStop => self.stop.is_cancelled(),
            };
            if failure.is_none() && may_end {
                tracing::debug!(task = %kind, "a task ended, as expected");
                continue;
            }
            let how = failure.unwrap_or_else(|| "ended unexpectedly".into());
            return TaskEnded { part: format!("the task '{kind}'"), how };
        }
        std::future::pending().await
    }

    /// Ends the tasks, each at its next await; one that panics meanwhile is reported.
    pub async fn finish(mut self) {
        self.tasks.abort_all();
        while let Some(ended) = self.tasks.join_next_with_id().await {
            if let Err(error) = ended
                && error.is_panic()
            {
                let kind = self.forget(error.id());
                let how = failure_text(error);
                tracing::error!(
                    task = kind.map_or("unknown", TaskKind::name),
                    how,
                    "a task failed while it was ended"
                );
            }
        }
    }

    fn forget(&mut self, id: tokio::task::Id) -> Option<TaskKind> {
        let position = self.kinds.iter().position(|(of, _)| *of == id)?;
        Some(self.kinds.swap_remove(position).1)
    }
}

/// How a task ended that did not return.
fn failure_text(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Err(_) => "was ended from outside".into(),
        Ok(payload) => format!("panicked: {}", panic_text(&*payload)),
    }
}

/// What a panic carries.
fn panic_text(payload: &dyn Any) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supervisor() -> (Supervisor, CancellationToken) {
        let stop = CancellationToken::new();
        (Supervisor::new(stop.clone()), stop)
    }

    #[tokio::test]
    async fn the_end_of_a_task_before_the_stop_is_a_failure_of_its_kind() {
        for kind in [TaskKind::Api, TaskKind::StreamReader] {
            let (mut tasks, _stop) = supervisor();
            tasks.spawn(TaskKind::Heartbeat, std::future::pending());
            tasks.spawn(kind, async {});
            let failed = tasks.failed().await;
            assert_eq!(failed.to_string(), format!("the task '{kind}' ended unexpectedly"));
        }
    }

    #[tokio::test]
    async fn after_the_stop_only_those_that_may_end_do_so_in_silence() {
        let (mut tasks, stop) = supervisor();
        let reader = {
            let stop = stop.clone();
            tasks.spawn(TaskKind::StreamReader, async move { stop.cancelled().await })
        };
        stop.cancel();
        reader.ended().await;
        tasks.spawn(TaskKind::RedisWriter, async {});
        assert_eq!(tasks.failed().await.part, "the task 'redis-writer'");
    }

    #[tokio::test]
    async fn a_task_that_may_end_at_any_time_does_so_in_silence() {
        let (mut tasks, _stop) = supervisor();
        tasks.spawn(TaskKind::Reloads, async {}).ended().await;
        tasks.spawn(TaskKind::VpnGuard, async {});
        assert_eq!(tasks.failed().await.part, "the task 'vpn-guard'");
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_at_any_time_and_is_told_with_its_kind_and_text() {
        let (mut tasks, stop) = supervisor();
        stop.cancel();
        let handle = tasks.spawn(TaskKind::PeerLending, async { panic!("no {}", "luck") });
        let failed = tasks.failed().await;
        assert_eq!(failed.to_string(), "the task 'peer-lending' panicked: no luck");
        handle.ended().await;
    }

    #[tokio::test]
    async fn a_panic_that_no_task_of_ours_ends_by_is_a_failure_too() {
        let panics = PanicWatch::of_process();
        // The watch is the process's own, so another test may have panicked on purpose before.
        let (tasks, _stop) = supervisor();
        let mut tasks = tasks.watching(panics.clone());
        tasks.spawn(TaskKind::Heartbeat, std::future::pending());
        // A task of a library: its end is not waited for.
        drop(tokio::spawn(async { panic!("a library has a bug") }));
        let failed = tasks.failed().await;
        assert!(
            failed.part.starts_with("the thread '") && failed.how.starts_with("panicked at "),
            "{failed}"
        );
        assert_eq!(panics.first(), Some(failed), "it stays known, for /ready");
    }

    #[tokio::test]
    async fn finishing_ends_what_never_ends_by_itself() {
        let (mut tasks, _stop) = supervisor();
        let handle = tasks.spawn(TaskKind::Heartbeat, std::future::pending());
        tasks.finish().await;
        handle.ended().await;
    }

    #[tokio::test]
    async fn an_aborted_task_is_told_as_ended_from_outside() {
        let (mut tasks, _stop) = supervisor();
        let handle = tasks.spawn(TaskKind::Notifier, std::future::pending());
        handle.abort();
        let failed = tasks.failed().await;
        assert_eq!(failed.to_string(), "the task 'notifier' was ended from outside");
    }
}
