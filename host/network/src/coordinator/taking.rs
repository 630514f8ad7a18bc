//! Takes jobs from the queue that coordinators share, as long as places are free, and gives up those that another one has
//! taken or someone has cancelled.
//!
//! The queue is looked at when a job is submitted here or leaves its place, when another coordinator tells that a job waits,
//! and at an interval, because it may not have told. At that interval a coordinator also frees the jobs of
//! others whose lease is over, and compares its own jobs with the queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;

use super::job_queue::RunningPlaces;
use super::job_view::JobProgress;
use super::live_jobs::JobOwnership;
use super::resume::JobStart;
use super::service::{AcceptedJob, JobSource, Service};
use super::submission_times::SubmissionTimes;
use crate::reservation::journal::JobFact;
use crate::reservation::log::queue::{JobSelection, QueueChange, TakenJob};
use crate::reservation::log::{AppendError, LogError, now_micros};

/// The handle; clones share the places.
#[derive(Clone)]
pub(super) struct Places {
    places: Arc<Mutex<RunningPlaces>>,
    /// When the jobs that wait were submitted here.
    submissions: Arc<Mutex<SubmissionTimes>>,
    /// A place or the queue has changed.
    wake: Arc<Notify>,
    start: Instant,
}

/// One running place, free when it is dropped.
pub(super) struct Place(Places);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.lock().leave();
        self.0.wake.notify_one();
    }
}

impl Places {
    /// So many places, for a queue in which at most so many jobs wait.
    pub(super) fn new(places: usize, waiting: usize) -> Places {
        let (places, submissions) = (RunningPlaces::new(places), SubmissionTimes::new(waiting));
        Places {
            places: Arc::new(Mutex::new(places)),
            submissions: Arc::new(Mutex::new(submissions)),
            wake: Arc::default(),
            start: Instant::now(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunningPlaces> {
        // Each change is complete before anything that may panic.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a job that is being submitted, if none waits longer.
    pub(super) fn take_submitted(&self) -> Option<Place> {
        let is_taken = self.lock().take_submitted();
        is_taken.then(|| Place(self.clone()))
    }

    /// A job that was submitted here waits in the queue.
    pub(super) fn submitted_job_waits(&self, job_id: &str) {
        self.submissions().submitted(job_id, self.start.elapsed());
        self.lock().job_waits();
        self.wake.notify_one();
    }

    /// How long a job has waited by this process's own reckoning; none when it was not submitted here.
    fn waited(&self, job_id: &str) -> Option<Duration> {
        self.submissions().age(job_id, self.start.elapsed())
    }

    fn submissions(&self) -> MutexGuard<'_, SubmissionTimes> {
        // Each change is one call.
        self.submissions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a look at the queue is to begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Jobs may wait.
    Queue,
    /// Own jobs are compared with the queue before.
    Everything,
}

impl Service {
    /// Frees the jobs that former processes left, and takes the first ones. Before the first new job.
    ///
    /// # Errors
    /// When the log can't be written.
    pub async fn begin(&self) -> Result<(), LogError> {
        let jobs = self.runner.log.free_abandoned_jobs().await?;
        if jobs > 0 {
            tracing::warn!(
                jobs,
                "a former coordinator was stopped in the middle of jobs: their reservations are cancelled, and those \
                 that are not cancelled go on"
            );
        }
        match self.lease.token() {
            Some(token) => self.fill_places(&token).await,
            None => Ok(()),
        }
    }

    /// Takes jobs until stopped.
    pub async fn take_jobs(self) {
        let log = &self.runner.log;
        let (mut changes, mut lease) = (log.queue_changes(), self.lease.changes());
        let mut tick = tokio::time::interval(self.limits.queue_interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let look = tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.places.wake.notified() => Look::Queue,
                change = changes.recv() => match change {
                    Ok(QueueChange::Waiting) => {
                        self.places.lock().job_waits();
                        Look::Queue
                    }
                    Ok(QueueChange::Cancelled(job_id)) => {
                        self.jobs.interrupt(&job_id);
                        continue;
                    }
                    Ok(QueueChange::Unknown) | Err(RecvError::Lagged(_)) => Look::Everything,
                    // The log holds the sender.
                    Err(RecvError::Closed) => return,
                },
                // A lease that was granted again has jobs to take.
                Ok(()) = lease.changed() => {
                    self.places.lock().job_waits();
                    Look::Queue
                }
                _ = tick.tick(), if log.is_shared() || self.has_stray_jobs() => Look::Everything,
            };
            let Some(token) = self.lease.token() else { continue };
            let looked = match look {
                Look::Queue => self.fill_places(&token).await,
                Look::Everything => match self.compare_with_queue(&token).await {
                    Ok(()) => self.fill_places(&token).await,
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = looked {
                tracing::debug!(%error, "jobs could not be taken; trying again");
                self.stray_job();
            }
        }
    }

    /// Whether others are to take the jobs, if there are any: without a peer this coordinator can only let them fail.
    pub(super) fn leaves_jobs_to_others(&self) -> bool {
        self.runner.log.is_shared() && self.runner.directory.candidates().is_empty()
    }

    /// Takes jobs from the queue while places are free.
    async fn fill_places(&self, token: &str) -> Result<(), LogError> {
        loop {
            // The guard must not live across the wait.
            let places = self.places.lock().begin_look();
            let Some(places) = places else { return Ok(()) };
            let which = match self.leaves_jobs_to_others() {
                true => JobSelection::FirstIfAlone(places),
                false => JobSelection::First(places),
            };
            let taken = match self.runner.log.take_jobs(token, which).await {
                Ok(taken) => taken,
                Err(error) => {
                    self.places.lock().look_failed();
                    return Err(error);
                }
            };
            let number = taken.len();
            for job in taken {
                let ownership = self.jobs.own(&job.job_id, token, true);
                self.start(job, ownership, Place(self.places.clone()));
            }
            self.places.lock().end_look(number);
        }
    }

    /// Frees jobs whose owner's lease is over, and compares this coordinator's jobs with the queue.
    async fn compare_with_queue(&self, token: &str) -> Result<(), LogError> {
        let log = &self.runner.log;
        self.no_stray_jobs();
        let freed = log.free_abandoned_jobs().await?;
        if freed > 0 {
            tracing::warn!(jobs = freed, "the lease of a coordinator is over: its jobs are taken over");
        }
        self.jobs.begin_check();
        let assigned = log.assigned_jobs(token).await?;
        let queue: BTreeMap<String, bool> =
            assigned.into_iter().map(|job| (job.job_id, job.is_cancelled)).collect();
        let check = self.jobs.check(token, &queue);
        for job_id in &check.interrupted {
            self.jobs.interrupt(job_id);
        }
        if !check.unknown.is_empty() {
            tracing::info!(
                jobs = check.unknown.len(),
                "jobs that could not go on here are back in the queue"
            );
            log.give_back_jobs(token, check.unknown).await?;
        }
        self.places.lock().job_waits();
        Ok(())
    }

    /// Begins a job that was taken from the queue.
    fn start(&self, job: TakenJob, ownership: JobOwnership, place: Place) {
        let service = self.clone();
        self.tasks.spawn(async move {
            let job_id = job.job_id.clone();
            if let Err(error) = service.start_taken(job, ownership, place).await {
                tracing::warn!(job_id, %error, "a job could not be begun; it goes back to the queue");
                service.stray_job();
            }
        });
    }

    async fn start_taken(
        &self,
        job: TakenJob,
        ownership: JobOwnership,
        place: Place,
    ) -> Result<(), LogError> {
        let taken_at = Instant::now();
        let TakenJob { job_id, at, .. } = job;
        let facts = self.runner.log.job_facts(&job_id).await?;
        let is_cancelled = facts.iter().any(|(_, fact)| matches!(fact, JobFact::Cancelled { .. }));
        if is_cancelled {
            drop(place);
            self.release(ownership, &facts).await?;
            return Ok(());
        }
        let Some((submitted_at, JobFact::Submitted { qasm, shots, options, .. })) = facts.first().cloned()
        else {
            return Ok(());
        };
        let mut view = JobProgress::from_facts(&facts);
        let start = JobStart::from_facts(facts.iter().map(|(_, fact)| fact));
        // One that no one has begun has nothing to resume.
        if facts.len() > 1 {
            self.free_peers(&facts).await?;
            let resumed = JobFact::Resumed { stages: start.stages };
            match self.runner.log.record_own_job(&job_id, &ownership.token, resumed.clone()).await {
                Ok(_) => view.apply(now_micros(), &resumed),
                Err(AppendError::Log(error)) => return Err(error),
                // It was cancelled or taken over meanwhile.
                Err(error) => {
                    tracing::debug!(job_id, %error, "the job does not go on here");
                    self.stray_job();
                    return Ok(());
                }
            }
        }
        let by_the_log = Duration::from_micros(u64::try_from(at.saturating_sub(submitted_at)).unwrap_or(0));
        let age = self.places.waited(&job_id).unwrap_or(by_the_log);
        let source = JobSource::Text(qasm);
        let job = AcceptedJob { source, shots, options, age, taken_at, start };
        self.run_to_end(job, view, ownership, place).await;
        Ok(())
    }
}
