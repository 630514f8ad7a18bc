//! The jobs in this coordinator's memory: those that it runs, with who follows them, and the last ones that have ended.
//! Which jobs it owns by the queue is here too, so that it can be compared with the queue.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::job_events::JobEvent;
use super::job_queue::{OwnershipCheck, check_ownership};
use super::job_view::{JobProgress, JobStatus};
use crate::reservation::journal::JobFact;
use crate::reservation::log::now_micros;

/// Ended jobs that are kept in memory, and how many bytes they may take in all; others are read from the log.
const KEPT_VIEWS: usize = 256;
const KEPT_BYTES: usize = 32 << 20;
/// Events of a job that are kept for those who follow it. Who lags behind reads the log.
const KEPT_EVENTS: usize = 256;

/// The handle; clones share the jobs.
#[derive(Clone)]
pub(super) struct LiveJobs {
    table: Arc<Mutex<Table>>,
    /// Changes whenever a job begins to run here.
    arrivals: watch::Sender<()>,
}

#[derive(Default)]
struct Table {
    live: HashMap<String, LiveJob>,
    /// Ids of ended jobs, the oldest first, and about how many bytes each takes.
    ended: VecDeque<(String, usize)>,
    owned: HashMap<String, OwnedJob>,
    /// Jobs whose ownership has changed since the last comparison with the queue began.
    changed: BTreeSet<String>,
    next_number: u64,
}

struct OwnedJob {
    /// Tells it from an earlier ownership of the same job.
    number: u64,
    token: String,
    /// The queue is known to say so.
    is_recorded: bool,
    interrupt: CancellationToken,
}

/// A job that is in memory.
#[derive(Clone)]
pub(super) struct LiveJob {
    pub(super) view: watch::Sender<JobProgress>,
    pub(super) events: broadcast::Sender<Arc<JobEvent>>,
    /// The job has left this coordinator before its end; what becomes of it is in the log.
    pub(super) left: CancellationToken,
}

impl LiveJob {
    pub(super) fn new(view: JobProgress) -> LiveJob {
        LiveJob {
            view: watch::Sender::new(view),
            events: broadcast::Sender::new(KEPT_EVENTS),
            left: CancellationToken::new(),
        }
    }

    /// Shows a fact that is recorded under this number.
    pub(super) fn show(&self, id: i64, job_id: &str, fact: &JobFact) {
        let mut event = None;
        self.view.send_modify(|view| {
            view.apply(now_micros(), fact);
            event = (self.events.receiver_count() > 0).then(|| JobEvent::new(id, job_id, view, fact));
        });
        // An error means that the last reader has gone just now.
        event.and_then(|event| self.events.send(Arc::new(event)).ok());
    }
}

/// A job that this coordinator has taken from the queue. Dropped when it has done with it.
pub(super) struct JobOwnership {
    pub(super) job_id: String,
    /// Of the lease under which it was taken.
    pub(super) token: String,
    /// Nothing of the job goes on here: it is cancelled, or another coordinator's. The log says which.
    pub(super) interrupt: CancellationToken,
    number: u64,
    jobs: LiveJobs,
}

impl JobOwnership {
    /// The queue says so by now.
    pub(super) fn recorded(&self) {
        let mut table = self.jobs.table();
        table.changed.insert(self.job_id.clone());
        if let Some(owned) = table.owned.get_mut(&self.job_id)
            && owned.number == self.number
        {
            owned.is_recorded = true;
        }
    }
}

impl Drop for JobOwnership {
    fn drop(&mut self) {
        let mut table = self.jobs.table();
        if table.owned.get(&self.job_id).is_some_and(|owned| owned.number == self.number) {
            table.owned.remove(&self.job_id);
            table.changed.insert(self.job_id.clone());
        }
    }
}

impl LiveJobs {
    pub(super) fn new() -> LiveJobs {
        LiveJobs { table: Arc::default(), arrivals: watch::Sender::new(()) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change is complete before anything that may panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the ownership of a job; whether the queue is known to say so.
    pub(super) fn own(&self, job_id: &str, token: &str, is_recorded: bool) -> JobOwnership {
        let interrupt = CancellationToken::new();
        let mut table = self.table();
        table.next_number += 1;
        let number = table.next_number;
        let owned = OwnedJob { number, token: token.into(), is_recorded, interrupt: interrupt.clone() };
        table.owned.insert(job_id.into(), owned);
        table.changed.insert(job_id.into());
        let (job_id, token) = (job_id.to_string(), token.to_string());
        JobOwnership { job_id, token, interrupt, number, jobs: self.clone() }
    }

    pub(super) fn owns(&self, job_id: &str) -> bool {
        self.table().owned.contains_key(job_id)
    }

    /// Has nothing of a job go on here.
    pub(super) fn interrupt(&self, job_id: &str) {
        if let Some(owned) = self.table().owned.get(job_id) {
            owned.interrupt.cancel();
        }
    }

    /// Has nothing of any job go on here; their number.
    pub(super) fn interrupt_all(&self) -> usize {
        let table = self.table();
        table.owned.values().for_each(|owned| owned.interrupt.cancel());
        table.owned.len()
    }

    /// Begins a comparison with the queue, before that is read.
    pub(super) fn begin_check(&self) {
        self.table().changed.clear();
    }

    /// Compares the jobs that were taken under a token with those that the queue says were.
    pub(super) fn check(&self, token: &str, queue: &BTreeMap<String, bool>) -> OwnershipCheck {
        let table = self.table();
        let recorded = table.owned.iter().filter(|(_, owned)| owned.is_recorded && owned.token == token);
        let local = recorded.map(|(id, _)| id.clone()).collect();
        let pending = table.owned.iter().filter(|(_, owned)| !owned.is_recorded);
        let changed = table.changed.iter().chain(pending.map(|(id, _)| id)).cloned().collect();
        check_ownership(&local, &changed, queue)
    }

    /// A job that is in memory.
    pub(super) fn get(&self, job_id: &str) -> Option<LiveJob> {
        self.table().live.get(job_id).cloned()
    }

    /// A job begins to run here.
    pub(super) fn arrive(&self, job_id: &str, live: LiveJob) {
        let mut table = self.table();
        table.ended.retain(|(id, _)| id != job_id);
        table.live.insert(job_id.into(), live);
        drop(table);
        self.arrivals.send_replace(());
    }

    /// Tells of every job that begins to run here.
    pub(super) fn arrivals(&self) -> watch::Receiver<()> {
        self.arrivals.subscribe()
    }

    /// A job has ended here: it is kept as long as there is room for it.
    pub(super) fn end(&self, job_id: &str) {
        let mut table = self.table();
        let Some(live) = table.live.get(job_id) else { return };
        let bytes = live.view.borrow().weight();
        table.ended.push_back((job_id.into(), bytes));
        let mut total: usize = table.ended.iter().map(|(_, bytes)| bytes).sum();
        while table.ended.len() > KEPT_VIEWS || total > KEPT_BYTES {
            let Some((oldest, bytes)) = table.ended.pop_front() else { break };
            total -= bytes;
            table.live.remove(&oldest);
        }
    }

    /// A job has left this coordinator before its end.
    pub(super) fn leave(&self, job_id: &str) {
        if let Some(live) = self.table().live.remove(job_id) {
            live.left.cancel();
        }
    }

    /// How many jobs in memory have not ended.
    pub(super) fn unfinished(&self) -> usize {
        let is_final = |status: JobStatus| status.is_final();
        self.table().live.values().filter(|live| !is_final(live.view.borrow().status)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ownership_ends_once_and_not_for_the_next_one() {
        let jobs = LiveJobs::new();
        let first = jobs.own("job-1", "a", true);
        let second = jobs.own("job-1", "b", true);
        drop(first);
        assert!(jobs.owns("job-1"));
        jobs.interrupt("job-1");
        assert!(second.interrupt.is_cancelled());
        drop(second);
        assert!(!jobs.owns("job-1"));
    }

    #[test]
    fn jobs_that_are_just_being_recorded_are_not_compared_with_the_queue() {
        let jobs = LiveJobs::new();
        let (pending, recorded) = (jobs.own("job-1", "a", false), jobs.own("job-2", "a", true));
        let _other = jobs.own("job-3", "former", true);
        jobs.begin_check();
        let found = jobs.check("a", &BTreeMap::new());
        assert_eq!(found.interrupted, ["job-2"], "the others are not this lease's, or not recorded yet");
        jobs.begin_check();
        pending.recorded();
        drop(recorded);
        let queue = BTreeMap::from([("job-2".to_string(), false)]);
        assert_eq!(jobs.check("a", &queue), OwnershipCheck::default(), "both changed in between");
        jobs.begin_check();
        let found = jobs.check("a", &queue);
        assert_eq!(
            (found.interrupted.as_slice(), found.unknown.as_slice()),
            (&["job-1".into()][..], &["job-2".into()][..])
        );
    }
}
