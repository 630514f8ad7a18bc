//! The coordinator's jobs: bounded in number, recorded before they are shown, and ended once.
//!
//! What the log says is so: a fact that it refuses, because someone has cancelled the job or another coordinator has taken
//! it, ends the job here too. A job whose facts can't be recorded stops here and goes back to the queue. What is
//! recorded goes on whether or not the client waits for the answer.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::fallback::{BlockRunner, uuid4};
use super::job::{self, JobError, JobRecorder};
use super::job_view::{JobProgress, JobStatus};
use super::lease_keeper::LeaseKeeper;
use super::live_jobs::{JobOwnership, LiveJob, LiveJobs};
use super::metrics::{CoordinatorMetrics, Levels};
use super::result::{OptionError, ResultRequest};
use super::resume::JobStart;
use super::taking::{Place, Places};
use crate::qasm::{self, Circuit, CircuitError};
use crate::reservation::job_options::JobOptions;
use crate::reservation::journal::{JobFact, JobRefusal, JobResult};
use crate::reservation::log::queue::JobSelection;
use crate::reservation::log::{AppendError, JobSubmission, KnownJob, Log, LogError, now_micros};

/// How long the log may take to answer for a metric.
const LEVEL_LIMIT: Duration = Duration::from_secs(2);
/// Circuits that are read at once. Each may take a hundred bytes for each of its source.
const CONCURRENT_PARSERS: usize = 2;
/// Locks that the idempotency keys share.
const KEY_LOCKS: usize = 64;

#[derive(Debug, Clone)]
pub struct ServiceLimits {
    /// Jobs that run at once here.
    pub running: usize,
    /// Jobs that wait, of all coordinators on the log.
    pub waiting: usize,
    /// How often the queue is looked at without a reason.
    pub queue_interval: Duration,
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
    pub lease: LeaseKeeper,
    pub(super) jobs: LiveJobs,
    pub(super) places: Places,
    /// The queue may assign jobs to this coordinator that it does not run.
    stray_jobs: Arc<AtomicBool>,
    parsers: Arc<Semaphore>,
    /// Orders with one key are taken one after the other, so that a twin of the first finds it instead of asking for a
    /// place in the queue. Keys share locks.
    key_locks: Arc<[tokio::sync::Mutex<()>; KEY_LOCKS]>,
    pub(super) watchers: Arc<Semaphore>,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    /// Jobs that run are to be dropped.
    abort: CancellationToken,
}

/// A job that is recorded and has no end.
pub(super) struct AcceptedJob {
    pub(super) source: JobSource,
    pub(super) shots: u32,
    pub(super) options: JobOptions,
    /// How long ago it was submitted when it was taken, and when that was.
    pub(super) age: Duration,
    pub(super) taken_at: Instant,
    pub(super) start: JobStart,
}

/// Why a job that was run has no result.
enum RunError {
    /// The job fails.
    Failed(String),
    /// Its facts can't be recorded.
    Log(JobError),
}

/// A circuit that was read when it was submitted, or its text as the log has it.
pub(super) enum JobSource {
    Circuit(Circuit),
    Text(String),
}

/// Records a job's facts: in the log, then for those who follow it.
#[derive(Clone)]
struct LogRecorder {
    log: Log,
    job_id: String,
    /// Of the lease under which the job was taken.
    token: String,
    /// Nothing of the job goes on here.
    interrupt: CancellationToken,
    live: LiveJob,
    metrics: Arc<CoordinatorMetrics>,
}

impl LogRecorder {
    async fn append(&self, fact: &JobFact) -> Result<(), AppendError> {
        let id = self.log.record_own_job(&self.job_id, &self.token, fact.clone()).await?;
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
                // Someone has cancelled the job, or another coordinator has taken it. It is dropped where it waits, so
                // nothing of it goes on here.
                self.interrupt.cancel();
                std::future::pending().await
            }
            Err(other @ (AppendError::Refused(_) | AppendError::QueueFull(_))) => {
                Err(LogError::Write(other.to_string().into()))
            }
        }
    }
}

impl Service {
    pub fn new(runner: BlockRunner, limits: ServiceLimits, lease: LeaseKeeper) -> Service {
        Service {
            runner,
            lease,
            jobs: LiveJobs::new(),
            places: Places::new(limits.running, limits.waiting),
            stray_jobs: Arc::default(),
            watchers: Arc::new(Semaphore::new(limits.watchers)),
            limits,
            metrics: Arc::default(),
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

    /// Renews the lease until stopped.
    pub async fn keep_lease(self) {
        self.lease.clone().keep(self.jobs.clone(), self.stop.clone()).await;
    }

    /// The queue may assign a job to this coordinator that it does not run: it is to be looked for.
    pub(super) fn stray_job(&self) {
        self.stray_jobs.store(true, Ordering::Release);
    }

    pub(super) fn has_stray_jobs(&self) -> bool {
        self.stray_jobs.load(Ordering::Acquire)
    }

    /// They are looked for now.
    pub(super) fn no_stray_jobs(&self) {
        self.stray_jobs.store(false, Ordering::Release);
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
        let job_id = format!("job-{}", uuid4());
        // With a place free the job is taken with its submission. Before that is recorded it is known to be this
        // coordinator's, so that a look at the queue does not find it unknown.
        let token = self.lease.token().filter(|_| !self.leaves_jobs_to_others());
        let taken = token.and_then(|token| {
            let place = self.places.take_submitted()?;
            Some((place, self.jobs.own(&job_id, &token, false)))
        });
        let owner = taken.as_ref().map(|(_, ownership)| ownership.token.clone());
        let (log, taken_at) = (&self.runner.log, Instant::now());
        match log.submit_job(&job_id, key, fact.clone(), owner, self.limits.waiting).await {
            Ok(JobSubmission::New) => {}
            Ok(JobSubmission::Known(known)) => return known_job(known, &fact),
            Err(AppendError::QueueFull(_)) => return Err(SubmitError::Full(self.limits.waiting)),
            Err(error) => {
                // It may be recorded all the same, with the answer lost.
                self.stray_job();
                return Err(error.into());
            }
        }
        self.metrics.count(&fact);
        let Some((place, ownership)) = taken else {
            self.places.submitted_job_waits(&job_id);
            return Ok(OrderedJob { job_id, status: JobStatus::Queued, is_new: true });
        };
        ownership.recorded();
        let mut view = JobProgress::default();
        view.apply(now_micros(), &fact);
        let (source, start, age) = (JobSource::Circuit(circuit), JobStart::default(), Duration::ZERO);
        let job = AcceptedJob { source, shots, options, age, taken_at, start };
        // Shown at once, so that who asks for it finds it here.
        let live = LiveJob::new(view);
        self.jobs.arrive(&job_id, live.clone());
        let service = self.clone();
        self.tasks.spawn(async move { service.run_live(job, live, ownership, place).await });
        Ok(OrderedJob { job_id, status: JobStatus::Queued, is_new: true })
    }

    /// Runs a job from the queue in its place.
    pub(super) async fn run_to_end(
        &self,
        job: AcceptedJob,
        view: JobProgress,
        ownership: JobOwnership,
        place: Place,
    ) {
        let live = LiveJob::new(view);
        self.jobs.arrive(&ownership.job_id, live.clone());
        self.run_live(job, live, ownership, place).await;
    }

    async fn run_live(&self, job: AcceptedJob, live: LiveJob, ownership: JobOwnership, place: Place) {
        let job_id = ownership.job_id.clone();
        let has_ended = self.run(job, &live, ownership).await;
        match has_ended {
            true => self.jobs.end(&job_id),
            false => self.jobs.leave(&job_id),
        }
        drop(place);
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
                if let Some(live) = self.jobs.get(job_id) {
                    live.show(id, job_id, &fact);
                }
                self.stop_cancelled(job_id).await;
                Ok(CancelOutcome::Cancelled)
            }
            Err(AppendError::Job(JobRefusal::Unknown)) => Ok(CancelOutcome::Unknown),
            Err(AppendError::Log(error)) => Err(error),
            Err(AppendError::Job(_) | AppendError::Refused(_) | AppendError::QueueFull(_)) => {
                let job = job::from_log(&self.runner.log, job_id).await?;
                Ok(match job.map(|job| job.status) {
                    None => CancelOutcome::Unknown,
                    Some(JobStatus::Cancelled) => CancelOutcome::CancelledBefore,
                    Some(status) => CancelOutcome::Ended(status),
                })
            }
        }
    }

    /// Has a job that was just cancelled stop where it runs. One that no one has taken is settled here.
    async fn stop_cancelled(&self, job_id: &str) {
        if self.jobs.owns(job_id) {
            return self.jobs.interrupt(job_id);
        }
        let Some(token) = self.lease.token() else { return };
        let only = JobSelection::Only(job_id.into());
        let settled = async {
            // The log tells the owner of a job that is taken.
            if self.runner.log.take_jobs(&token, only).await?.is_empty() {
                return Ok(());
            }
            let ownership = self.jobs.own(job_id, &token, true);
            let facts = self.runner.log.job_facts(job_id).await?;
            self.release(ownership, &facts).await.map(|_| ())
        };
        let settled: Result<(), LogError> = settled.await;
        if let Err(error) = settled {
            tracing::warn!(job_id, %error, "the cancelled job is settled by the next one who takes it");
            self.stray_job();
        }
    }

    /// Reads a circuit, which may take a second: not on a thread that serves others.
    async fn parse(&self, qasm: &str, options: &JobOptions) -> Result<Circuit, SubmitError> {
        // Never closed.
        let _permit = self.parsers.acquire().await.ok();
        let (source, inputs) = (qasm.to_string(), options.inputs.clone());
        Ok(tokio::task::spawn_blocking(move || qasm::parse_with_inputs(&source, &inputs)).await??)
    }

    /// Runs a job and records its end. Returns false when it leaves this coordinator without an end: at a stop, because
    /// another one has taken it, or because its facts can't be recorded.
    async fn run(&self, job: AcceptedJob, live: &LiveJob, ownership: JobOwnership) -> bool {
        let (job_id, interrupt) = (ownership.job_id.clone(), ownership.interrupt.clone());
        let recorder = LogRecorder {
            log: self.runner.log.clone(),
            job_id: job_id.clone(),
            token: ownership.token.clone(),
            interrupt: interrupt.clone(),
            live: live.clone(),
            metrics: self.metrics.clone(),
        };
        let (age, taken_at) = (job.age, job.taken_at);
        let age = || age + taken_at.elapsed();
        let left = self.limits.job_deadline.saturating_sub(age());
        let ran = tokio::select! {
            ran = tokio::time::timeout(left, self.perform(job, &recorder)) => ran,
            // Dropped, it cancels its reservations.
            () = self.abort.cancelled() => return false,
            () = interrupt.cancelled() => return self.end_interrupted(live, ownership).await,
        };
        let end = match ran {
            Ok(Ok(result)) => JobFact::Completed { result },
            Ok(Err(RunError::Failed(error))) => JobFact::Failed { error },
            Ok(Err(RunError::Log(error))) => {
                let why = describe(&error);
                tracing::warn!(job_id, why, "the job stops here and goes back to the queue");
                self.stray_job();
                return false;
            }
            Err(_) => {
                let limit = self.limits.job_deadline;
                JobFact::Failed {
                    error: format!("the job was not done within {limit:?} after it was submitted"),
                }
            }
        };
        match recorder.append(&end).await {
            Ok(()) => {
                match &end {
                    JobFact::Failed { error } => tracing::warn!(job_id, error, "failed"),
                    _ => tracing::info!(job_id, "completed"),
                }
                self.metrics.note_duration(age().as_secs_f64());
                true
            }
            // A cancel was recorded first, or another coordinator has taken it.
            Err(AppendError::Job(_)) => self.end_interrupted(live, ownership).await,
            Err(error) => {
                tracing::error!(job_id, %error, "the job's end could not be recorded; it goes back to the queue");
                self.stray_job();
                false
            }
        }
    }

    /// Runs a job; its result.
    async fn perform(&self, job: AcceptedJob, recorder: &LogRecorder) -> Result<JobResult, RunError> {
        let AcceptedJob { source, shots, options, age, taken_at, start } = job;
        let accepted = self.runner.directory.accepted_at(age + taken_at.elapsed());
        let circuit = match source {
            JobSource::Circuit(circuit) => circuit,
            JobSource::Text(qasm) => {
                self.parse(&qasm, &options).await.map_err(|e| RunError::Failed(e.to_string()))?
            }
        };
        let request = ResultRequest::new(&circuit, shots, options);
        let request = request.map_err(|e| RunError::Failed(e.to_string()))?;
        self.wait_for_peers(&circuit).await;
        let (job_id, interval) = (&recorder.job_id, self.limits.checkpoint_interval);
        let runner = BlockRunner { accepted, ..self.runner.clone() };
        let ran = job::run(&runner, &circuit, request, job_id, start, interval, recorder).await;
        ran.map_err(|error| match error.is_of_log() {
            true => RunError::Log(error),
            false => RunError::Failed(describe(&error)),
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

    /// Reads a job as far as it is known.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn show<T>(
        &self,
        job_id: &str,
        read: impl FnOnce(&JobProgress) -> T,
    ) -> Result<Option<T>, LogError> {
        match self.jobs.get(job_id) {
            Some(live) => Ok(Some(read(&live.view.borrow()))),
            None => Ok(job::from_log(&self.runner.log, job_id).await?.map(|progress| read(&progress))),
        }
    }

    /// What is true at this moment, for the metrics; who asks knows whether the coordinator is ready.
    pub async fn levels(&self, ready: bool) -> Levels {
        let (directory, log) = (&self.runner.directory, &self.runner.log);
        // A log that does not answer keeps no other number from those who watch.
        let (queued, open) = tokio::join!(
            tokio::time::timeout(LEVEL_LIMIT, log.waiting_jobs()),
            tokio::time::timeout(LEVEL_LIMIT, log.open_reservations()),
        );
        let (queued, open) = (queued.ok(), open.ok());
        Levels {
            ready,
            jobs_queued: queued.and_then(Result::ok),
            jobs_running: self.jobs.unfinished(),
            blocks_waiting: directory.waiting_blocks(),
            slots_held: directory.held_slots(),
            peers_known: directory.known_peers().len(),
            peers_usable: directory.candidates().len(),
            reservations_open: open.and_then(Result::ok).map(|open| open.len()),
            watchers: self.limits.watchers.saturating_sub(self.watchers.available_permits()),
            store_writable: self.runner.log.is_writable(),
            lease_held: self.lease.token().is_some(),
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
        // Behind everything that is recorded under it.
        self.lease.release(limit.min(Duration::from_secs(5))).await;
    }
}

/// A job's error with its cause.
fn describe(error: &JobError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
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
