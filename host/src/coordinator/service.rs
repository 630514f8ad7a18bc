//! The coordinator's jobs: bounded in number, recorded before they are shown, and cleaned up after a crash.
//!
//! After a restart the log says which reservations were open and which jobs had no end. Those reservations are
//! cancelled at their peers, in case they still hold a slot, and in the log; those jobs are failed, with the reason:
//! a state that was under way can't be had again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::fallback::{BlockRunner, uuid4};
use super::job::{self, JobRecorder};
use super::job_view::{CoordinatorJob, JobProgress};
use crate::qasm::{self, Circuit, CircuitError};
use crate::reservation::event::Transition;
use crate::reservation::journal::JobFact;
use crate::reservation::ledger::ReservationCommand;
use crate::reservation::log::{AppendError, Log, LogError, now_micros};

/// Ended jobs that are kept in memory, and how many bytes they may take in all; others are read from the log.
const KEPT_VIEWS: usize = 256;
const KEPT_BYTES: usize = 32 << 20;
/// Circuits that are read at once. Each may take a hundred bytes for each of its source.
const CONCURRENT_PARSERS: usize = 2;
/// Why a restart fails a job.
pub const STOPPED: &str = "the coordinator was stopped in the middle of this job; submit it again";

#[derive(Debug, Clone)]
pub struct ServiceLimits {
    /// Jobs that run at once, and that wait besides.
    pub running: usize,
    pub waiting: usize,
    pub max_shots: u32,
    /// How long a job waits for peers that offer what it needs.
    pub peer_wait: Duration,
    /// How often reservations whose time is over are looked for.
    pub expiry_interval: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    #[error(transparent)]
    Circuit(#[from] CircuitError),
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
        }
    }

    pub fn max_shots(&self) -> u32 {
        self.limits.max_shots
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        // Each change is one statement: a panic elsewhere leaves the list whole.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cleans up what a former process left open. Before the first job.
    ///
    /// # Errors
    /// When the log can't be read or written.
    pub async fn recover(&self) -> Result<(), LogError> {
        let log = &self.runner.log;
        let (mut reservations, mut jobs) = (0, 0);
        let me = self.runner.network.peer_id();
        for job_id in log.open_jobs().await? {
            let facts = log.job_facts(&job_id).await?;
            // Another coordinator on the same log looks after its own.
            let own = |f: &JobFact| matches!(f, JobFact::Submitted { coordinator, .. } if *coordinator == me);
            if !facts.iter().any(|(_, f)| own(f)) {
                continue;
            }
            // Committed reservations are closed in the log, but may hold a slot all the same.
            for (_, fact) in facts {
                let JobFact::Attempted { peer_id, reservation_id, .. } = fact else { continue };
                let Some(state) = log.state(&reservation_id).await? else { continue };
                let over = matches!(&state.execution, Some(e) if e.outcome.is_some());
                let never = matches!(
                    state.transition,
                    Transition::Rejected | Transition::Cancelled | Transition::Expired
                );
                if over || never {
                    continue;
                }
                reservations += 1;
                self.close(&reservation_id, state.execution.map(|e| e.execution_id)).await?;
                self.runner.cancel_insisting(&peer_id, &reservation_id, STOPPED, self.stop.clone());
            }
            match log.record_job(&job_id, JobFact::Failed { error: STOPPED.into() }).await {
                Ok(()) => jobs += 1,
                Err(AppendError::Log(error)) => return Err(error),
                // It has an end by now.
                Err(_) => {}
            }
        }
        if jobs > 0 {
            tracing::warn!(
                jobs,
                reservations,
                "a former coordinator was stopped in the middle of jobs: they are failed, their reservations cancelled"
            );
        }
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
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.stop.cancelled() => return,
            }
            match self.runner.log.open_reservations().await {
                Ok(open) => {
                    let now = now_micros();
                    for open in open.into_iter().take_while(|open| open.until <= now) {
                        let id = open.reservation_id;
                        match self.runner.log.execute(&id, ReservationCommand::Expire).await {
                            Ok(_) => tracing::info!(
                                reservation = id,
                                "it was not committed in time and has expired"
                            ),
                            // It came to its end just now.
                            Err(error) => tracing::debug!(reservation = id, %error, "not expired"),
                        }
                    }
                }
                Err(error) => tracing::warn!(%error, "expired reservations could not be looked for"),
            }
        }
    }

    /// Accepts a job and returns its id.
    ///
    /// # Errors
    /// When the circuit or the number of shots is not allowed, too many jobs wait, or the job can't be recorded.
    pub async fn submit(&self, qasm: &str, shots: u32) -> Result<String, SubmitError> {
        if shots == 0 || shots > self.limits.max_shots {
            return Err(SubmitError::Shots(shots, self.limits.max_shots));
        }
        let circuit = self.parse(qasm).await?;
        {
            let mut jobs = self.jobs();
            if jobs.unfinished >= self.limits.running + self.limits.waiting {
                return Err(SubmitError::Full(self.limits.waiting));
            }
            jobs.unfinished += 1;
        }
        let job_id = format!("job-{}", uuid4());
        let coordinator = self.runner.network.peer_id();
        let fact = JobFact::Submitted { qasm: qasm.into(), shots, coordinator };
        if let Err(error) = self.runner.log.record_job(&job_id, fact.clone()).await {
            self.jobs().unfinished -= 1;
            return Err(error.into());
        }
        let mut view = JobProgress::default();
        view.apply(now_micros(), &fact);
        let view = watch::Sender::new(view);
        self.jobs().live.insert(job_id.clone(), view.clone());
        let (service, id) = (self.clone(), job_id.clone());
        self.tasks.spawn(async move {
            service.run(id.clone(), circuit, shots, view.clone()).await;
            let bytes = view.borrow().weight();
            service.jobs().end(id, bytes);
        });
        Ok(job_id)
    }

    /// Reads a circuit, which may take a second: not on a thread that serves others.
    async fn parse(&self, qasm: &str) -> Result<Circuit, SubmitError> {
        // Never closed.
        let _permit = self.parsers.acquire().await.ok();
        let source = qasm.to_string();
        Ok(tokio::task::spawn_blocking(move || qasm::parse(&source)).await??)
    }

    async fn run(&self, job_id: String, circuit: Circuit, shots: u32, view: watch::Sender<JobProgress>) {
        let Ok(_slot) = self.slots.acquire().await else { return };
        let recorder = LogRecorder { log: self.runner.log.clone(), job_id: job_id.clone(), view };
        self.wait_for_peers(&circuit).await;
        let ran = job::run(&self.runner, &circuit, shots, &job_id, &recorder).await;
        let end = match ran {
            Ok(result) => {
                tracing::info!(job_id, "completed");
                JobFact::Completed { result }
            }
            Err(error) => {
                let mut text = error.to_string();
                if let Some(cause) = std::error::Error::source(&error) {
                    text = format!("{text}: {cause}");
                }
                tracing::warn!(job_id, error = text, "failed");
                JobFact::Failed { error: text }
            }
        };
        if let Err(error) = recorder.record(end.clone()).await {
            tracing::error!(job_id, %error, "the job's end could not be recorded; a restart fails it");
            // Shown all the same: who waits for it must not wait for ever.
            recorder.view.send_modify(|v| v.apply(now_micros(), &end));
        }
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
            tracing::warn!("stopped in the middle of jobs: the next start fails them and frees their peers");
        }
        self.runner.tasks.close();
        if tokio::time::timeout(limit.min(Duration::from_secs(5)), self.runner.tasks.wait()).await.is_err() {
            tracing::debug!("some cancels did not arrive before the end");
        }
    }
}
