//! The coordinator's jobs: bounded in number, recorded before they are shown, and cleaned up after a crash.
//!
//! After a restart the log says which reservations were open and which jobs had no end. Those reservations are
//! cancelled at their peers, in case they still hold a slot, and in the log; those jobs are run within their deadline, from
//! the last stage whose states are in the log or from their start.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::expiry::{OpenTime, ReservationExpiry};
use super::fallback::{BlockRunner, uuid4};
use super::job::{self, JobRecorder};
use super::job_view::{CoordinatorJob, JobProgress};
use super::result::{OptionError, ResultRequest};
use super::resume::JobStart;
use crate::qasm::{self, Circuit, CircuitError};
use crate::reservation::event::Transition;
use crate::reservation::job_options::JobOptions;
use crate::reservation::journal::{JobFact, JobResult};
use crate::reservation::ledger::ReservationCommand;
use crate::reservation::log::{AppendError, Log, LogError, OpenReservation, now_micros};

/// Ended jobs that are kept in memory, and how many bytes they may take in all; others are read from the log.
const KEPT_VIEWS: usize = 256;
const KEPT_BYTES: usize = 32 << 20;
/// Circuits that are read at once. Each may take a hundred bytes for each of its source.
const CONCURRENT_PARSERS: usize = 2;
/// Why a restart cancels a reservation.
pub const STOPPED: &str = "the coordinator was stopped in the middle of the job";

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
    #[error(transparent)]
    Log(#[from] AppendError),
    #[error("the circuit could not be read: {0}; report this as a bug")]
    Task(#[from] tokio::task::JoinError),
}

/// The handle.
#[derive(Clone)]
pub struct Service {
    pub runner: BlockRunner,
    limits: ServiceLimits,
    jobs: Arc<Mutex<Jobs>>,
    slots: Arc<Semaphore>,
    parsers: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Jobs that run are to be dropped.
    abort: CancellationToken,
}

/// A job that is recorded and has no end.
struct AcceptedJob {
    job_id: String,
    source: JobSource,
    shots: u32,
    options: JobOptions,
    submitted_at: i64,
    start: JobStart,
}

/// A circuit that was read when it was submitted, or its text as the log has it.
enum JobSource {
    Circuit(Circuit),
    Text(String),
}

#[derive(Default)]
struct Jobs {
    live: HashMap<String, watch::Sender<JobProgress>>,
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

/// Records a job's facts: log, then view.
#[derive(Clone)]
struct LogRecorder {
    log: Log,
    job_id: String,
    view: watch::Sender<JobProgress>,
}

impl JobRecorder for LogRecorder {
    async fn record(&self, fact: JobFact) -> Result<(), LogError> {
        match self.log.record_job(&self.job_id, fact.clone()).await {
            Ok(()) => {
                self.view.send_modify(|v| v.apply(now_micros(), &fact));
                Ok(())
            }
            Err(AppendError::Log(error)) => Err(error),
            Err(other) => Err(LogError::Write(other.to_string().into())),
        }
    }
}

impl Service {
    pub fn new(runner: BlockRunner, limits: ServiceLimits) -> Service {
        Service {
            runner,
            slots: Arc::new(Semaphore::new(limits.running)),
            limits,
            jobs: Arc::default(),
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

    /// Goes on with the jobs that a former process left open. Before the first new job.
    ///
    /// # Errors
    /// When the log can't be read or written.
    pub async fn recover(&self) -> Result<(), LogError> {
        let log = &self.runner.log;
        let me = self.runner.network.peer_id();
        let mut open = Vec::new();
        for job_id in log.open_jobs().await? {
            let facts = log.job_facts(&job_id).await?;
            // Another coordinator on the same log looks after its own.
            let own = |f: &JobFact| matches!(f, JobFact::Submitted { coordinator, .. } if *coordinator == me);
            if facts.iter().any(|(_, f)| own(f)) {
                open.push((job_id, facts));
            }
        }
        // In the order in which they were accepted.
        open.sort_by_key(|(_, facts)| facts.first().map(|(at, _)| *at));
        let (jobs, mut reservations) = (open.len(), 0);
        for (job_id, facts) in open {
            reservations += self.close_reservations(&facts).await?;
            self.resume(job_id, facts).await?;
        }
        if jobs > 0 {
            tracing::warn!(
                jobs,
                reservations,
                "a former coordinator was stopped in the middle of jobs: their reservations are cancelled, and they go on"
            );
        }
        Ok(())
    }

    /// Cancels what a job left open at peers and in the log; the number of reservations.
    async fn close_reservations(&self, facts: &[(i64, JobFact)]) -> Result<usize, LogError> {
        let mut closed = 0;
        // Committed reservations are closed in the log, but may hold a slot all the same.
        for (_, fact) in facts {
            let JobFact::Attempted { peer_id, reservation_id, .. } = fact else { continue };
            let Some(state) = self.runner.log.state(reservation_id).await? else { continue };
            let over = matches!(&state.execution, Some(e) if e.outcome.is_some());
            let never = matches!(
                state.transition,
                Transition::Rejected | Transition::Cancelled | Transition::Expired
            );
            if over || never {
                continue;
            }
            closed += 1;
            self.close(reservation_id, state.execution.map(|e| e.execution_id)).await?;
            self.runner.cancel_insisting(peer_id, reservation_id, STOPPED, self.stop.clone());
        }
        Ok(closed)
    }

    /// Runs a job of a former process from where it was.
    async fn resume(&self, job_id: String, facts: Vec<(i64, JobFact)>) -> Result<(), LogError> {
        let Some((submitted_at, JobFact::Submitted { qasm, shots, options, .. })) = facts.first().cloned()
        else {
            return Ok(());
        };
        let mut view = JobProgress::from_facts(&facts);
        let start = JobStart::from_facts(facts.iter().map(|(_, fact)| fact));
        let resumed = JobFact::Resumed { stages: start.stages };
        match self.runner.log.record_job(&job_id, resumed.clone()).await {
            Ok(()) => view.apply(now_micros(), &resumed),
            Err(AppendError::Log(error)) => return Err(error),
            // It has an end by now.
            Err(_) => return Ok(()),
        }
        self.jobs().unfinished += 1;
        let source = JobSource::Text(qasm);
        self.spawn(AcceptedJob { job_id, source, shots, options, submitted_at, start }, view);
        Ok(())
    }

    /// Ends a reservation in the log, as far as it isn't.
    async fn close(&self, id: &str, execution: Option<String>) -> Result<(), LogError> {
        let command = match execution {
            Some(execution_id) => ReservationCommand::Fail { execution_id, error: STOPPED.into() },
            None => ReservationCommand::Cancel { reason: STOPPED.into() },
        };
        match self.runner.log.execute(id, command).await {
            Err(AppendError::Log(error)) => Err(error),
            // A committed one is terminal without more.
            _ => Ok(()),
        }
    }

    /// Looks after reservations whose time is over, until stopped.
    pub async fn expire(self) {
        let mut tick = tokio::time::interval(self.limits.expiry_interval);
        let (start, mut expiry) = (Instant::now(), ReservationExpiry::default());
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.stop.cancelled() => return,
            }
            if let Err(error) = self.expire_once(&mut expiry, start.elapsed()).await {
                tracing::warn!(%error, "expired reservations could not be looked for");
            }
        }
    }

    /// Records the end of the reservations whose time is over.
    async fn expire_once(&self, expiry: &mut ReservationExpiry, now: Duration) -> Result<(), LogError> {
        let log = &self.runner.log;
        let (mut open, mut new) = (Vec::new(), Vec::new());
        for OpenReservation { reservation_id, until } in log.open_reservations().await? {
            if !expiry.is_known(&reservation_id)
                && let Some(state) = log.state(&reservation_id).await?
            {
                let left = u64::try_from(until.saturating_sub(now_micros())).unwrap_or(0);
                new.push(OpenTime {
                    reservation_id: reservation_id.clone(),
                    ttl: Duration::from_secs(state.request.ttl_seconds),
                    left: Duration::from_micros(left),
                });
            }
            open.push(reservation_id);
        }
        for id in expiry.look(now, &open, new) {
            match log.execute(&id, ReservationCommand::Expire).await {
                Ok(_) => tracing::info!(reservation = id, "it was not committed in time and has expired"),
                // It came to its end just now.
                Err(error) => tracing::debug!(reservation = id, %error, "not expired"),
            }
        }
        Ok(())
    }

    /// Accepts a job and returns its id.
    ///
    /// # Errors
    /// When the circuit, the number of shots or an option is not allowed, too many jobs wait, or the job can't be recorded.
    pub async fn submit(&self, qasm: &str, shots: u32, options: JobOptions) -> Result<String, SubmitError> {
        if shots == 0 || shots > self.limits.max_shots {
            return Err(SubmitError::Shots(shots, self.limits.max_shots));
        }
        let circuit = self.parse(qasm, &options).await?;
        ResultRequest::new(&circuit, shots, options.clone())?;
        {
            let mut jobs = self.jobs();
            if jobs.unfinished >= self.limits.running + self.limits.waiting {
                return Err(SubmitError::Full(self.limits.waiting));
            }
            jobs.unfinished += 1;
        }
        let job_id = format!("job-{}", uuid4());
        let coordinator = self.runner.network.peer_id();
        let fact = JobFact::Submitted { qasm: qasm.into(), shots, coordinator, options: options.clone() };
        if let Err(error) = self.runner.log.record_job(&job_id, fact.clone()).await {
            self.jobs().unfinished -= 1;
            return Err(error.into());
        }
        let mut view = JobProgress::default();
        let submitted_at = now_micros();
        view.apply(submitted_at, &fact);
        let (source, start) = (JobSource::Circuit(circuit), JobStart::default());
        self.spawn(AcceptedJob { job_id: job_id.clone(), source, shots, options, submitted_at, start }, view);
        Ok(job_id)
    }

    /// Runs a job in the background, when it is its turn.
    fn spawn(&self, job: AcceptedJob, view: JobProgress) {
        let (view, service, id) = (watch::Sender::new(view), self.clone(), job.job_id.clone());
        self.jobs().live.insert(id.clone(), view.clone());
        self.tasks.spawn(async move {
            service.run(job, view.clone()).await;
            let bytes = view.borrow().weight();
            service.jobs().end(id, bytes);
        });
    }

    /// Reads a circuit, which may take a second: not on a thread that serves others.
    async fn parse(&self, qasm: &str, options: &JobOptions) -> Result<Circuit, SubmitError> {
        // Never closed.
        let _permit = self.parsers.acquire().await.ok();
        let (source, inputs) = (qasm.to_string(), options.inputs.clone());
        Ok(tokio::task::spawn_blocking(move || qasm::parse_with_inputs(&source, &inputs)).await??)
    }

    /// Runs a job and records its end. At a stop it is left as it is, and the next start goes on with it.
    async fn run(&self, job: AcceptedJob, view: watch::Sender<JobProgress>) {
        let slot = tokio::select! {
            slot = self.slots.acquire() => slot,
            () = self.stop.cancelled() => return,
        };
        let Ok(_slot) = slot else { return };
        let job_id = job.job_id.clone();
        let recorder = LogRecorder { log: self.runner.log.clone(), job_id: job_id.clone(), view };
        let age = u64::try_from(now_micros().saturating_sub(job.submitted_at)).unwrap_or(0);
        let left = self.limits.job_deadline.saturating_sub(Duration::from_micros(age));
        let ran = tokio::select! {
            ran = tokio::time::timeout(left, self.perform(job, &recorder)) => ran,
            // Dropped, it cancels its reservations.
            () = self.abort.cancelled() => return,
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
        if let Err(error) = recorder.record(end.clone()).await {
            tracing::error!(job_id, %error, "the job's end could not be recorded; a restart runs it again");
            // Shown all the same: who waits for it must not wait for ever.
            recorder.view.send_modify(|v| v.apply(now_micros(), &end));
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

    /// A job's view, and its changes while it runs.
    pub fn watch(&self, job_id: &str) -> Option<watch::Receiver<JobProgress>> {
        self.jobs().live.get(job_id).map(watch::Sender::subscribe)
    }

    /// A job as the API shows it.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn show(&self, job_id: &str) -> Result<Option<CoordinatorJob>, LogError> {
        if let Some(view) = self.watch(job_id) {
            return Ok(Some(view.borrow().view(job_id)));
        }
        Ok(job::from_log(&self.runner.log, job_id).await?.map(|v| v.view(job_id)))
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
