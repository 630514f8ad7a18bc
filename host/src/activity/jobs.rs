//! Pure: when each job took which step: those in flight, and the last ones that ended.
//!
//! A job in flight is known by its id, which no two of them share. While it waits or runs its circuit and progress can be
//! looked at; afterwards only its size is kept.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use coda_plugin_abi::Program;
use time::OffsetDateTime;

use super::minutes::JobEnd;
use crate::executor::JobContext;
use crate::model::{JobId, cut};

/// Ended jobs that are kept.
pub const MAX_ENDED: usize = 100;
/// Jobs in flight that are kept. Of results that wait for their delivery the oldest are forgotten first.
pub const MAX_IN_FLIGHT: usize = 1000;
/// Longest text of an error that is kept, in characters.
const MAX_ERROR: usize = 500;

/// How large a job's circuit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitSize {
    pub qubits: u16,
    pub gates: usize,
    pub shots: u32,
}

/// What can be looked at while a job waits or runs.
#[derive(Clone)]
pub struct LiveJob {
    ticket: u64,
    pub program: Arc<Program>,
    pub context: Arc<JobContext>,
}

impl std::fmt::Debug for LiveJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveJob").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

/// The way of one job.
#[derive(Debug, Clone)]
pub struct JobTrace {
    pub job_id: JobId,
    pub size: Option<CircuitSize>,
    pub claimed: Option<OffsetDateTime>,
    pub slot: Option<usize>,
    pub started: Option<OffsetDateTime>,
    pub answered: Option<OffsetDateTime>,
    pub run_time: Option<Duration>,
    pub stored: Option<OffsetDateTime>,
    /// When it was over: delivered, refused or cancelled.
    pub ended: Option<OffsetDateTime>,
    pub end: Option<JobEnd>,
    /// Why the job failed.
    pub error: Option<String>,
    /// Attempts to deliver its result.
    pub attempts: u32,
    /// What was wrong with the last one.
    pub delivery_error: Option<String>,
    pub live: Option<LiveJob>,
}

impl JobTrace {
    /// A job of which nothing but the id is known.
    pub fn new(job_id: JobId) -> JobTrace {
        JobTrace {
            job_id,
            size: None,
            claimed: None,
            slot: None,
            started: None,
            answered: None,
            run_time: None,
            stored: None,
            ended: None,
            end: None,
            error: None,
            attempts: 0,
            delivery_error: None,
            live: None,
        }
    }

    /// The step at which the job is.
    pub fn step(&self) -> &'static str {
        match self {
            JobTrace { end: Some(end), .. } => end.name(),
            JobTrace { stored: Some(_), .. } => "delivering",
            JobTrace { answered: Some(_), .. } => "storing",
            JobTrace { started: Some(_), .. } => "running",
            _ => "waiting",
        }
    }

    /// From its claim to its start.
    pub fn waited(&self) -> Option<Duration> {
        Duration::try_from(self.started? - self.claimed?).ok()
    }
}

/// The traces of all jobs that are remembered.
#[derive(Debug, Default)]
pub struct JobTraces {
    in_flight: HashMap<JobId, JobTrace>,
    tickets: HashMap<u64, JobId>,
    /// Jobs in the order in which their results were stored, some of which have ended since.
    stored: VecDeque<JobId>,
    /// The newest last.
    ended: VecDeque<JobTrace>,
}

impl JobTraces {
    /// A job waits for a slot: for the first time, or again.
    pub fn queued(
        &mut self,
        ticket: u64,
        job_id: &JobId,
        size: CircuitSize,
        program: Arc<Program>,
        context: Arc<JobContext>,
    ) {
        self.make_room();
        let trace = self.in_flight.entry(job_id.clone()).or_insert_with(|| JobTrace::new(job_id.clone()));
        trace.size = Some(size);
        trace.live = Some(LiveJob { ticket, program, context });
        self.tickets.insert(ticket, job_id.clone());
    }

    pub fn started(&mut self, job_id: &JobId, slot: usize, waited: Duration, now: OffsetDateTime) {
        let Some(trace) = self.in_flight.get_mut(job_id) else { return };
        trace.claimed = Some(now - waited);
        (trace.slot, trace.started) = (Some(slot), Some(now));
    }

    pub fn answered(&mut self, ticket: u64, run_time: Duration, now: OffsetDateTime) {
        let Some(trace) = self.tickets.remove(&ticket).and_then(|job_id| self.in_flight.get_mut(&job_id))
        else {
            return;
        };
        (trace.answered, trace.run_time, trace.live) = (Some(now), Some(run_time), None);
    }

    pub fn stored(&mut self, job_id: &JobId, error: Option<&str>, now: OffsetDateTime) {
        // Jobs that fail without a run are heard of here first.
        if !self.in_flight.contains_key(job_id) {
            self.make_room();
            self.in_flight.insert(job_id.clone(), JobTrace::new(job_id.clone()));
        }
        let Some(trace) = self.in_flight.get_mut(job_id) else { return };
        trace.stored = Some(now);
        trace.error = error.map(kept);
        // Also of a job that was judged again and did not run: its circuit is not needed any more.
        if let Some(live) = trace.live.take() {
            self.tickets.remove(&live.ticket);
        }
        self.stored.push_back(job_id.clone());
    }

    /// Forgets the result that has waited longest for its delivery when there are too many: while the cloud is away, what
    /// waits and runs is still shown.
    fn make_room(&mut self) {
        while self.in_flight.len() >= MAX_IN_FLIGHT {
            let Some(oldest) = self.stored.pop_front() else { return };
            if self.in_flight.get(&oldest).is_some_and(|trace| trace.stored.is_some()) {
                self.in_flight.remove(&oldest);
            }
        }
        // Of jobs that have ended the order is not needed any more.
        if self.stored.len() > 2 * MAX_IN_FLIGHT {
            self.stored.retain(|job_id| self.in_flight.contains_key(job_id));
        }
    }

    pub fn attempts_failed(&mut self, job_id: &JobId, attempts: u32, error: &str) {
        let Some(trace) = self.in_flight.get_mut(job_id) else { return };
        trace.attempts = attempts;
        trace.delivery_error = Some(kept(error));
    }

    pub fn ended(&mut self, job_id: &JobId, end: JobEnd, error: Option<&str>, now: OffsetDateTime) {
        let mut trace = self.in_flight.remove(job_id).unwrap_or_else(|| JobTrace::new(job_id.clone()));
        if let Some(live) = trace.live.take() {
            self.tickets.remove(&live.ticket);
        }
        (trace.ended, trace.end) = (Some(now), Some(end));
        if matches!(end, JobEnd::Completed | JobEnd::Failed) {
            trace.attempts += 1;
            trace.delivery_error = None;
        }
        trace.error = trace.error.or_else(|| error.map(kept));
        if self.ended.len() == MAX_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(trace);
    }

    /// Puts jobs that ended before, the newest first, behind those that are known.
    pub fn remember(&mut self, earlier: Vec<JobTrace>) {
        for trace in earlier.into_iter().take(MAX_ENDED.saturating_sub(self.ended.len())) {
            self.ended.push_front(trace);
        }
    }

    /// The jobs in flight: running ones first, then in the order in which they came.
    pub fn in_flight(&self) -> Vec<JobTrace> {
        let mut all: Vec<JobTrace> = self.in_flight.values().cloned().collect();
        let ticket = |trace: &JobTrace| trace.live.as_ref().map_or(0, |live| live.ticket);
        all.sort_by_key(|trace| (trace.step() == "waiting", trace.started, ticket(trace)));
        all
    }

    /// The jobs that ended, the newest first.
    pub fn ended_jobs(&self) -> Vec<JobTrace> {
        self.ended.iter().rev().cloned().collect()
    }

    /// One job by its id.
    pub fn find(&self, job_id: &str) -> Option<JobTrace> {
        let ended = || self.ended.iter().rev().find(|trace| &*trace.job_id == job_id);
        self.in_flight.get(job_id).or_else(ended).cloned()
    }
}

fn kept(error: &str) -> String {
    cut(error, MAX_ERROR).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(millis: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap() + time::Duration::milliseconds(millis)
    }

    fn queue(traces: &mut JobTraces, ticket: u64, job_id: &str) -> JobId {
        let program = Arc::new(Program::new(coda_plugin_abi::Target::Cz, 2, vec![], vec![]).unwrap());
        let job_id = JobId::from(job_id);
        let context = Arc::new(JobContext::new("p".into(), job_id.clone()));
        let size = CircuitSize { qubits: 2, gates: 3, shots: 100 };
        traces.queued(ticket, &job_id, size, program, context);
        job_id
    }

    #[test]
    fn a_job_is_followed_from_its_queue_to_its_end() {
        let mut traces = JobTraces::default();
        let job = queue(&mut traces, 7, "j");
        assert_eq!(traces.find("j").unwrap().step(), "waiting");
        traces.started(&job, 1, Duration::from_millis(40), moment(100));
        let running = &traces.in_flight()[0];
        assert_eq!(
            (running.step(), running.waited(), running.slot),
            ("running", Some(Duration::from_millis(40)), Some(1))
        );
        traces.answered(7, Duration::from_millis(50), moment(150));
        assert!(traces.find("j").unwrap().live.is_none());
        traces.stored(&job, Some("no"), moment(151));
        assert_eq!(traces.find("j").unwrap().step(), "delivering");
        traces.attempts_failed(&job, 1, "HTTP 503");
        assert_eq!(traces.find("j").unwrap().delivery_error.as_deref(), Some("HTTP 503"));
        traces.ended(&job, JobEnd::Failed, None, moment(160));
        let ended = &traces.ended_jobs()[0];
        assert_eq!((ended.step(), ended.attempts, ended.error.as_deref()), ("failed", 2, Some("no")));
        assert_eq!(ended.delivery_error, None);
        assert!(traces.in_flight().is_empty() && traces.tickets.is_empty());
    }

    #[test]
    fn everything_is_bounded_and_results_that_can_not_be_delivered_do_not_hide_what_runs() {
        let mut traces = JobTraces::default();
        let jobs: Vec<JobId> = (0..3000)
            .map(|n| {
                let job = queue(&mut traces, n, &format!("j{n}"));
                traces.answered(n, Duration::ZERO, moment(0));
                traces.stored(&job, Some(&"x".repeat(10_000)), moment(1));
                job
            })
            .collect();
        assert!(traces.in_flight.len() <= MAX_IN_FLIGHT && traces.stored.len() <= 3 * MAX_IN_FLIGHT);
        let running = queue(&mut traces, 3000, "runs");
        traces.started(&running, 0, Duration::ZERO, moment(2));
        assert_eq!(traces.find("runs").unwrap().step(), "running");
        for job in &jobs {
            traces.ended(job, JobEnd::Cancelled, None, moment(2));
        }
        assert_eq!((traces.in_flight.len(), traces.tickets.len(), traces.ended.len()), (1, 1, MAX_ENDED));
        assert_eq!(&*traces.ended_jobs()[0].job_id, "j2999");
        assert!(traces.find("j2999").unwrap().error.unwrap().chars().count() <= MAX_ERROR);
    }

    #[test]
    fn earlier_jobs_come_behind() {
        let mut traces = JobTraces::default();
        traces.ended(&"new".into(), JobEnd::Completed, None, moment(1));
        traces.remember(["last", "first"].map(|id| JobTrace::new(id.into())).into());
        let ids: Vec<JobId> = traces.ended_jobs().into_iter().map(|trace| trace.job_id).collect();
        assert_eq!(ids, ["new".into(), "last".into(), JobId::from("first")]);
    }
}
