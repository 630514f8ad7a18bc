//! The coordinator's jobs: bounded in number, recorded before they are shown, and ended once.
//!
//! What the log says is so: a fact that it refuses, because someone has cancelled the job, ends the job here too. What is
//! recorded goes on whether or not the client waits for the answer.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::fallback::{BlockRunner, uuid4};
use super::job::{self, JobRecorder};
use super::job_events::JobEvent;
use super::job_view::{JobProgress, JobStatus};
use super::metrics::{CoordinatorMetrics, Levels};
use super::result::{OptionError, ResultRequest};
use super::resume::JobStart;
use crate::qasm::{self, Circuit, CircuitError};
use crate::reservation::job_options::JobOptions;
use crate::reservation::journal::{JobFact, JobRefusal, JobResult};
use crate::reservation::log::{AppendError, JobSubmission, KnownJob, Log, LogError, now_micros};

/// Ended jobs that are kept in memory, and how many bytes they may take in all; others are read from the log.
const KEPT_VIEWS: usize = 256;
const KEPT_BYTES: usize = 32 << 20;
/// Circuits that are read at once. Each may take a hundred bytes for each of its source.
const CONCURRENT_PARSERS: usize = 2;
/// Locks that the idempotency keys share.
const KEY_LOCKS: usize = 64;
/// Events of a job that are kept for those who follow it. Who lags behind reads the log.
const KEPT_EVENTS: usize = 256;

#[derive(Debug, Clone)]
pub struct ServiceLimits {
    /// Jobs that run at once, and that wait besides.
    pub running: usize,
    pub waiting: usize,
    pub max_shots: u32,
    /// How long a job waits for peers that offer what it needs.
    pub peer_wait: Duration,
    /// How long a job may take since it was submitted, restarts included.
    pub job_deadline: Duration,
    /// How often the states of a running job are recorded.
    pub checkpoint_interval: Duration,
    /// How often reservations whose time is over are looked for.
    pub expiry_interval: Duration,
    /// Requests that may wait for a job at once: long polls and event streams.
    pub watchers: usize,
}

/// A job as it is submitted.
#[derive(Debug, Clone)]
pub struct JobOrder {
    pub qasm: String,
    pub shots: u32,
    pub options: JobOptions,
    /// A second order with the same key is answered with the first one's job.
    pub idempotency_key: Option<String>,
}

/// The job of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderedJob {
    pub job_id: String,
    pub status: JobStatus,
    /// Whether this order made it.
    pub is_new: bool,
}

/// What became of a request to cancel a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It is cancelled now; its peers are being told.
    Cancelled,
    /// It was cancelled before.
    CancelledBefore,
    /// It has ended otherwise.
    Ended(JobStatus),
    Unknown,
}

#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    #[error(transparent)]
    Circuit(#[from] CircuitError),
    #[error(transparent)]
    Option(#[from] OptionError),
    #[error("shots is {0}, allowed are 1 to {1}")]
    Shots(u32, u32),
    #[error("{0} jobs wait already; try again later")]
    Full(usize),
    #[error("the coordinator is stopping; try again later")]
    Stopping,
    #[error("the idempotency key was used for another job, {0}; use a new key")]
    KeyUsed(String),
    #[error(transparent)]
    Log(#[from] AppendError),
    #[error("the job could not be read or recorded: {0}; report this as a bug")]
    Task(#[from] tokio::task::JoinError),
}

/// The handle.
#[derive(Clone)]
pub struct Service {
    pub runner: BlockRunner,
    pub(super) limits: ServiceLimits,
    pub metrics: Arc<CoordinatorMetrics>,
    jobs: Arc<Mutex<Jobs>>,
    slots: Arc<Semaphore>,
    parsers: Arc<Semaphore>,
    /// Orders with one key are taken one after the other, so that a twin of the first finds it instead of asking for a
    /// place in the queue. Keys share locks.
    key_locks: Arc<[tokio::sync::Mutex<()>; KEY_LOCKS]>,
    pub(super) watchers: Arc<Semaphore>,
    tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    /// Jobs that run are to be dropped.
    abort: CancellationToken,
}

/// A job that is recorded and has no end.
pub(super) struct AcceptedJob {
    pub(super) job_id: String,
    pub(super) source: JobSource,
    pub(super) shots: u32,
    pub(super) options: JobOptions,
    pub(super) submitted_at: i64,
    pub(super) start: JobStart,
}

/// A circuit that was read when it was submitted, or its text as the log has it.
pub(super) enum JobSource {
    Circuit(Circuit),
    Text(String),
}

#[derive(Default)]
struct Jobs {
    live: HashMap<String, LiveJob>,
    /// Ids of ended jobs, the oldest first, and about how many bytes each takes.
    ended: VecDeque<(String, usize)>,
    unfinished: usize,
}

impl Jobs {
    /// Keeps an ended job as long as there is room for it.
    fn end(&mut self, id: String, bytes: usize) {
        self.unfinished -= 1;
        self.ended.push_back((id, bytes));
        let mut total: usize = self.ended.iter().map(|(_, bytes)| bytes).sum();
        while self.ended.len() > KEPT_VIEWS || total > KEPT_BYTES {
            let Some((oldest, bytes)) = self.ended.pop_front() else { break };
            total -= bytes;
            self.live.remove(&oldest);
        }
    }
}

/// A job that is in memory.
#[derive(Clone)]
pub(super) struct LiveJob {
    pub(super) view: watch::Sender<JobProgress>,
    pub(super) events: broadcast::Sender<Arc<JobEvent>>,
    /// The job is cancelled: nothing of it goes on.
    cancel: CancellationToken,
}

impl LiveJob {
    fn new(view: JobProgress) -> LiveJob {
        LiveJob {
            view: watch::Sender::new(view),
            events: broadcast::Sender::new(KEPT_EVENTS),
            cancel: CancellationToken::new(),
        }
    }

    /// Shows a fact that is recorded under this number.
    fn show(&self, id: i64, job_id: &str, fact: &JobFact) {
        let mut event = None;
        self.view.send_modify(|view| {
            view.apply(now_micros(), fact);
            event = (self.events.receiver_count() > 0).then(|| JobEvent::new(id, job_id, view, fact));
        });
        // An error means that the last reader has gone just now.
        event.and_then(|event| self.events.send(Arc::new(event)).ok());
    }
}

/// Records a job's facts: in the log, then for those who follow it.
#[derive(Clone)]
struct LogRecorder {
    log: Log,
    job_id: String,
    live: LiveJob,
    metrics: Arc<CoordinatorMetrics>,
}

impl LogRecorder {
    async fn append(&self, fact: &JobFact) -> Result<(), AppendError> {
        let id = self.log.record_job(&self.job_id, fact.clone()).await?;
        self.live.show(id, &self.job_id, fact);
        self.metrics.count(fact);
        Ok(())
    }
}

impl JobRecorder for LogRecorder {
    async fn record(&self, fact: JobFact) -> Result<(), LogError> {
        match self.append(&fact).await {
            Ok(()) => Ok(()),
            Err(AppendError::Log(error)) => Err(error),
            Err(AppendError::Job(_)) => {
                // Someone has cancelled the job, perhaps through another coordinator on this log. It is dropped where
                // it waits, so nothing of it goes on here.
                self.live.cancel.cancel();
                std::future::pending().await
            }
            Err(other @ AppendError::Refused(_)) => Err(LogError::Write(other.to_string().into())),
        }
    }
}

impl Service {
    pub fn new(runner: BlockRunner, limits: ServiceLimits) -> Service {
        Service {
            runner,
            slots: Arc::new(Semaphore::new(limits.running)),
            watchers: Arc::new(Semaphore::new(limits.watchers)),
            limits,
            metrics: Arc::default(),
            jobs: Arc::default(),
            key_locks: Arc::new(std::array::from_fn(|_| tokio::sync::Mutex::default())),
            parsers: Arc::new(Semaphore::new(CONCURRENT_PARSERS)),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
        }
    }

    pub fn max_shots(&self) -> u32 {
        self.limits.max_shots
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        // Each change is one statement: a panic elsewhere leaves the list whole.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a job, or finds the one that was ordered with the same key.
    ///
    /// # Errors
    /// When the circuit, the number of shots or an option is not allowed, the key was used for another job, too many jobs wait, the
    /// coordinator is stopping, or the job can't be recorded.
    pub async fn submit(&self, order: JobOrder) -> Result<OrderedJob, SubmitError> {
        let JobOrder { qasm, shots, options, idempotency_key: key } = order;
        let coordinator = self.runner.network.peer_id();
        let fact = JobFact::Submitted { qasm: qasm.clone(), shots, coordinator, options: options.clone() };
        if let Some(known) = self.known_order(key.as_deref(), &fact).await? {
            return Ok(known);
        }
        if shots == 0 || shots > self.limits.max_shots {
            return Err(SubmitError::Shots(shots, self.limits.max_shots));
        }
        let circuit = self.parse(&qasm, &options).await?;
        ResultRequest::new(&circuit, shots, options.clone())?;
        // A job that is recorded must run, also when the client goes meanwhile and drops this request.
        let service = self.clone();
        let accepting = async move { service.accept(circuit, shots, options, key, fact).await };
        self.tasks.spawn(accepting).await?
    }

    /// The job that was ordered with this key.
    async fn known_order(
        &self,
        key: Option<&str>,
        fact: &JobFact,
    ) -> Result<Option<OrderedJob>, SubmitError> {
        let Some(key) = key else { return Ok(None) };
        let known = self.runner.log.job_of_key(key).await.map_err(AppendError::from)?;
        known.map(|known| known_job(known, fact)).transpose()
    }

    /// Records a job and begins it.
    async fn accept(
        &self,
        circuit: Circuit,
        shots: u32,
        options: JobOptions,
        key: Option<String>,
        fact: JobFact,
    ) -> Result<OrderedJob, SubmitError> {
        if self.stop.is_cancelled() {
            return Err(SubmitError::Stopping);
        }
        let lock = key.as_ref().map(|key| {
            let mut hash = DefaultHasher::new();
            key.hash(&mut hash);
            // The remainder is below the number of locks.
            &self.key_locks[(hash.finish() % KEY_LOCKS as u64) as usize]
        });
        let _turn = match lock {
            Some(lock) => Some(lock.lock().await),
            None => None,
        };
        if let Some(known) = self.known_order(key.as_deref(), &fact).await? {
            return Ok(known);
        }
        {
            let mut jobs = self.jobs();
            if jobs.unfinished >= self.limits.running + self.limits.waiting {
                return Err(SubmitError::Full(self.limits.waiting));
            }
            jobs.unfinished += 1;
        }
        let job_id = format!("job-{}", uuid4());
        match self.runner.log.submit_job(&job_id, key, fact.clone()).await {
            Ok(JobSubmission::New) => {}
            Ok(JobSubmission::Known(known)) => {
                self.jobs().unfinished -= 1;
                return known_job(known, &fact);
            }
            Err(error) => {
                self.jobs().unfinished -= 1;
                return Err(error.into());
            }
        }
        self.metrics.count(&fact);
        let mut view = JobProgress::default();
        let submitted_at = now_micros();
        view.apply(submitted_at, &fact);
        let (source, start) = (JobSource::Circuit(circuit), JobStart::default());
        self.spawn(AcceptedJob { job_id: job_id.clone(), source, shots, options, submitted_at, start }, view);
        Ok(OrderedJob { job_id, status: JobStatus::Queued, is_new: true })
    }

    /// Begins a job that a former process has recorded.
    pub(super) fn spawn_resumed(&self, job: AcceptedJob, view: JobProgress) {
        self.jobs().unfinished += 1;
        self.spawn(job, view);
    }

    /// Runs a job in the background, when it is its turn.
    fn spawn(&self, job: AcceptedJob, view: JobProgress) {
        let (live, service, id) = (LiveJob::new(view), self.clone(), job.job_id.clone());
        self.jobs().live.insert(id.clone(), live.clone());
        self.tasks.spawn(async move {
            service.run(job, live.clone()).await;
            let bytes = live.view.borrow().weight();
            service.jobs().end(id, bytes);
        });
    }

    /// Cancels a job: nothing of it is run any more, here or after a restart, and its peers are told.
    ///
    /// # Errors
    /// When the log can't be read or written.
    pub async fn cancel(&self, job_id: &str, reason: &str) -> Result<CancelOutcome, LogError> {
        let (service, job_id, reason) = (self.clone(), job_id.to_string(), reason.to_string());
        // What is recorded must be done, also when the client goes meanwhile and drops this request.
        let cancelling = async move { service.record_cancel(&job_id, reason).await };
        self.tasks.spawn(cancelling).await.map_err(|e| LogError::Write(e.to_string().into()))?
    }

    async fn record_cancel(&self, job_id: &str, reason: String) -> Result<CancelOutcome, LogError> {
        let fact = JobFact::Cancelled { reason };
        match self.runner.log.record_job(job_id, fact.clone()).await {
            Ok(id) => {
                tracing::info!(job_id, "cancelled");
                self.metrics.count(&fact);
                if let Some(live) = self.live(job_id) {
                    live.show(id, job_id, &fact);
                    live.cancel.cancel();
                }
                Ok(CancelOutcome::Cancelled)
            }
            Err(AppendError::Job(JobRefusal::Unknown)) => Ok(CancelOutcome::Unknown),
            Err(AppendError::Log(error)) => Err(error),
            Err(AppendError::Job(_) | AppendError::Refused(_)) => {
                let job = job::from_log(&self.runner.log, job_id).await?;
                Ok(match job.map(|job| job.status) {
                    None => CancelOutcome::Unknown,
                    Some(JobStatus::Cancelled) => CancelOutcome::CancelledBefore,
                    Some(status) => CancelOutcome::Ended(status),
                })
            }
        }
    }

    /// Reads a circuit, which may take a second: not on a thread that serves others.
    async fn parse(&self, qasm: &str, options: &JobOptions) -> Result<Circuit, SubmitError> {
        // Never closed.
        let _permit = self.parsers.acquire().await.ok();
        let (source, inputs) = (qasm.to_string(), options.inputs.clone());
        Ok(tokio::task::spawn_blocking(move || qasm::parse_with_inputs(&source, &inputs)).await??)
    }

    /// Runs a job and records its end. At a stop it is left as it is, and the next start goes on with it.
    async fn run(&self, job: AcceptedJob, live: LiveJob) {
        let (job_id, cancelled) = (job.job_id.clone(), live.cancel.clone());
        let slot = tokio::select! {
            slot = self.slots.acquire() => slot,
            () = self.stop.cancelled() => return,
            () = cancelled.cancelled() => return self.end_cancelled(&job_id, &live).await,
        };
        let Ok(_slot) = slot else { return };
        let submitted_at = job.submitted_at;
        let recorder = LogRecorder {
            log: self.runner.log.clone(),
            job_id: job_id.clone(),
            live: live.clone(),
            metrics: self.metrics.clone(),
        };
        let age =
            || Duration::from_micros(u64::try_from(now_micros().saturating_sub(submitted_at)).unwrap_or(0));
        let left = self.limits.job_deadline.saturating_sub(age());
        let ran = tokio::select! {
            ran = tokio::time::timeout(left, self.perform(job, &recorder)) => ran,
            // Dropped, it cancels its reservations.
            () = self.abort.cancelled() => return,
            () = cancelled.cancelled() => return self.end_cancelled(&job_id, &live).await,
        };
        let end = match ran {
            Ok(Ok(result)) => {
                tracing::info!(job_id, "completed");
                JobFact::Completed { result }
            }
            Ok(Err(error)) => {
                tracing::warn!(job_id, error, "failed");
                JobFact::Failed { error }
            }
            Err(_) => {
                let limit = self.limits.job_deadline;
                let error = format!("the job was not done within {limit:?} after it was submitted");
                tracing::warn!(job_id, error, "failed");
                JobFact::Failed { error }
            }
        };
        match recorder.append(&end).await {
            Ok(()) => self.metrics.note_duration(age().as_secs_f64()),
            // A cancel was recorded first, and counts.
            Err(AppendError::Job(_)) => self.end_cancelled(&job_id, &live).await,
            Err(error) => {
                tracing::error!(job_id, %error, "the job's end could not be recorded; a restart runs it again");
                // Shown all the same: who waits for it must not wait for ever.
                live.view.send_modify(|v| v.apply(now_micros(), &end));
            }
        }
    }

    /// Runs a job; its result, or the error in words.
    async fn perform(&self, job: AcceptedJob, recorder: &LogRecorder) -> Result<JobResult, String> {
        let AcceptedJob { job_id, source, shots, options, start, .. } = job;
        let circuit = match source {
            JobSource::Circuit(circuit) => circuit,
            JobSource::Text(qasm) => self.parse(&qasm, &options).await.map_err(|e| e.to_string())?,
        };
        let request = ResultRequest::new(&circuit, shots, options).map_err(|e| e.to_string())?;
        self.wait_for_peers(&circuit).await;
        let interval = self.limits.checkpoint_interval;
        let ran = job::run(&self.runner, &circuit, request, &job_id, start, interval, recorder).await;
        ran.map_err(|error| match std::error::Error::source(&error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        })
    }

    /// Waits until the known peers offer every service of the circuit, at most for the configured time: peers announce
    /// themselves as soon as they connect, and a job may arrive earlier.
    async fn wait_for_peers(&self, circuit: &Circuit) {
        let needed: std::collections::BTreeSet<&str> = circuit.operations.iter().map(|o| o.service).collect();
        let offered = || {
            let candidates = self.runner.directory.candidates();
            candidates.iter().any(|c| needed.iter().all(|s| c.services.iter().any(|own| own == s)))
        };
        let until = tokio::time::Instant::now() + self.limits.peer_wait;
        while !offered() && tokio::time::Instant::now() < until && !self.stop.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A job that is in memory.
    pub(super) fn live(&self, job_id: &str) -> Option<LiveJob> {
        self.jobs().live.get(job_id).cloned()
    }

    /// Reads a job as far as it is known.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn show<T>(
        &self,
        job_id: &str,
        read: impl FnOnce(&JobProgress) -> T,
    ) -> Result<Option<T>, LogError> {
        match self.live(job_id) {
            Some(live) => Ok(Some(read(&live.view.borrow()))),
            None => Ok(job::from_log(&self.runner.log, job_id).await?.map(|progress| read(&progress))),
        }
    }

    /// What is true at this moment, for the metrics.
    pub async fn levels(&self) -> Levels {
        let of_status = |jobs: &Jobs, status| {
            jobs.live.values().filter(|live| live.view.borrow().status == status).count()
        };
        let (jobs_queued, jobs_running) = {
            let jobs = self.jobs();
            (of_status(&jobs, JobStatus::Queued), of_status(&jobs, JobStatus::Running))
        };
        let directory = &self.runner.directory;
        Levels {
            jobs_queued,
            jobs_running,
            blocks_waiting: directory.waiting_blocks(),
            slots_held: directory.held_slots(),
            peers_known: directory.known_peers().len(),
            peers_usable: directory.candidates().len(),
            reservations_open: self.runner.log.open_reservations().await.ok().map(|open| open.len()),
            watchers: self.limits.watchers.saturating_sub(self.watchers.available_permits()),
            store_writable: self.runner.log.is_writable(),
        }
    }

    /// No more waiting; jobs that run may end within the limit, then cancels go out.
    pub async fn shut_down(&self, limit: Duration) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(limit, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                "stopped in the middle of jobs: their peers are freed, and the next start goes on with them"
            );
            self.abort.cancel();
            self.tasks.wait().await;
        }
        self.runner.tasks.close();
        if tokio::time::timeout(limit.min(Duration::from_secs(5)), self.runner.tasks.wait()).await.is_err() {
            tracing::debug!("some cancels did not arrive before the end");
        }
    }
}

/// The answer to an order whose key is known, which must be the same order.
fn known_job(known: KnownJob, asked: &JobFact) -> Result<OrderedJob, SubmitError> {
    let KnownJob { job_id, facts } = known;
    let mut first = facts.first().map(|(_, fact)| fact.clone());
    if let (
        Some(JobFact::Submitted { coordinator, .. }),
        JobFact::Submitted { coordinator: asked_coordinator, .. },
    ) = (&mut first, asked)
    {
        // Another coordinator on the same log may have taken it.
        coordinator.clone_from(asked_coordinator);
    }
    match first.as_ref() == Some(asked) {
        true => {
            let status = JobProgress::from_facts(&facts).status;
            Ok(OrderedJob { job_id, status, is_new: false })
        }
        false => Err(SubmitError::KeyUsed(job_id)),
    }
}
