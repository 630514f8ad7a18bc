//! What the host did in the last hour, and its jobs of late: in memory, bounded, for the page.
//!
//! The job path reports each step as it happens, in one short lock; nothing here is read back by it. What is kept: sixty
//! minutes of counts and times, one sample of slots and gauges in each interval, the jobs in flight (the first
//! [`jobs::MAX_IN_FLIGHT`]) and the last [`jobs::MAX_ENDED`] that ended. No counts of measurements and no circuit are kept.

pub mod jobs;
pub mod minutes;
pub mod parts;
pub mod samples;

use std::sync::Arc;
use std::time::Duration;

use coda_plugin_abi::Program;
use parking_lot::Mutex;
use time::OffsetDateTime;

use self::jobs::{CircuitSize, JobTrace, JobTraces};
use self::minutes::{JobEnd, Minutes};
use self::parts::{PartName, PartState, Parts};
use self::samples::Samples;
use crate::executor::JobContext;
use crate::model::{JobId, cut};

/// A job that waits for a slot, as its submitter knows it.
pub struct QueuedJob<'a> {
    pub ticket: u64,
    pub job_id: &'a JobId,
    pub program: &'a Arc<Program>,
    pub context: &'a Arc<JobContext>,
    pub shots: u32,
}

/// The record; shared by those who report and those who look.
#[derive(Default)]
pub struct Activity(Mutex<State>);

/// A copy of what is kept, for one rendering.
#[derive(Debug, Clone, Default)]
pub struct ActivityView {
    pub minutes: Minutes,
    pub samples: Samples,
    pub parts: Parts,
    /// The jobs in flight, the oldest first.
    pub in_flight: Vec<JobTrace>,
    /// The jobs that ended, the newest first.
    pub ended: Vec<JobTrace>,
}

#[derive(Default)]
struct State {
    minutes: Minutes,
    samples: Samples,
    parts: Parts,
    jobs: JobTraces,
    delivery_error: Option<String>,
}

impl Activity {
    /// A job waits for a slot.
    pub fn queued(&self, job: &QueuedJob<'_>) {
        let size = CircuitSize {
            qubits: job.program.num_qubits(),
            gates: job.program.gates().len(),
            shots: job.shots,
        };
        let (program, context) = (job.program.clone(), job.context.clone());
        self.0.lock().jobs.queued(job.ticket, job.job_id, size, program, context);
    }

    /// A slot has taken it, so long after it was claimed.
    pub fn started(&self, job_id: &JobId, slot: usize, waited: Duration) {
        let now = OffsetDateTime::now_utc();
        let mut state = self.0.lock();
        state.minutes.at(now).wait.record(waited);
        state.jobs.started(job_id, slot, waited, now);
    }

    /// The plugin has answered.
    pub fn answered(&self, ticket: u64, run_time: Duration) {
        let now = OffsetDateTime::now_utc();
        let mut state = self.0.lock();
        state.minutes.at(now).run.record(run_time);
        state.jobs.answered(ticket, run_time, now);
    }

    /// Its result is on disk.
    pub fn stored(&self, job_id: &JobId, error: Option<&str>) {
        self.0.lock().jobs.stored(job_id, error, OffsetDateTime::now_utc());
    }

    /// An attempt to deliver some result has ended.
    pub fn attempted(&self, took: Duration, accepted: bool) {
        let mut state = self.0.lock();
        state.minutes.at(OffsetDateTime::now_utc()).webhook.record(took);
        if accepted {
            state.delivery_error = None;
        }
    }

    /// Why results can't be delivered: the last attempt that is to be repeated, when none was accepted since.
    pub fn delivery_error(&self) -> Option<String> {
        self.0.lock().delivery_error.clone()
    }

    /// So many attempts to deliver a result have failed, the last one for this reason.
    pub fn attempts_failed(&self, job_id: &JobId, attempts: u32, error: &str, is_repeated: bool) {
        let mut state = self.0.lock();
        state.jobs.attempts_failed(job_id, attempts, error);
        if is_repeated {
            state.delivery_error = Some(cut(error, 500).to_string());
        }
    }

    /// It is over.
    pub fn ended(&self, job_id: &JobId, end: JobEnd, error: Option<&str>) {
        let now = OffsetDateTime::now_utc();
        let mut state = self.0.lock();
        state.minutes.at(now).count(end);
        state.jobs.ended(job_id, end, error, now);
    }

    /// Jobs that ended before this process started, the newest first.
    pub fn remember(&self, earlier: Vec<JobTrace>) {
        self.0.lock().jobs.remember(earlier);
    }

    /// Keeps one sample: how long each slot has worked altogether, the plugin's gauges, and the state of each part.
    pub fn sample(
        &self,
        since_last: Duration,
        worked: &[Duration],
        gauges: &[(String, f64)],
        parts: Vec<(PartName, PartState)>,
    ) {
        let now = OffsetDateTime::now_utc();
        let mut state = self.0.lock();
        state.samples.add(since_last, worked, gauges);
        state.parts.see(now, parts);
    }

    /// A copy of everything.
    pub fn view(&self, now: OffsetDateTime) -> ActivityView {
        let mut state = self.0.lock();
        state.minutes.at(now);
        ActivityView {
            minutes: state.minutes.clone(),
            samples: state.samples.clone(),
            parts: state.parts.clone(),
            in_flight: state.jobs.in_flight(),
            ended: state.jobs.ended_jobs(),
        }
    }

    /// One job, as far as it is remembered.
    pub fn job(&self, job_id: &str) -> Option<JobTrace> {
        self.0.lock().jobs.find(job_id)
    }
}
