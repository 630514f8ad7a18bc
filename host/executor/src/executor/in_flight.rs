//! One job's plugin call, and when the cancel hook may be called for it.
//!
//! ```text
//! Waiting ── enter ──> Running ── leave ──> Ended       entering a cancelled job ends it at once
//!    ^                    │ cancel              ^
//!    └── back_out ────────┤                     │
//!                         v                     │
//!                     Cancelling ─ hook returns ─> Cancelled ── leave
//! ```
//!
//! A run backs out when the plugin's process was gone, or has ended with it: it may enter the next one.
//!
//! The hook is called at most once and only while the run is in the plugin. The run's thread waits for a hook that
//! is still in the plugin, but not for ever.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use coda_plugin_abi::Error;
use parking_lot::{Condvar, Mutex};

use super::JobContext;
use crate::model::JobId;

/// The plugin calls that were announced and have not been answered yet, by ticket.
#[derive(Default)]
pub(super) struct InFlightCalls(Mutex<HashMap<u64, Arc<InFlightCall>>>);

impl InFlightCalls {
    pub fn insert(&self, ticket: u64, job_id: JobId, context: Arc<JobContext>) {
        self.0.lock().insert(ticket, Arc::new(InFlightCall::new(job_id, context)));
    }

    pub fn get(&self, ticket: u64) -> Option<Arc<InFlightCall>> {
        self.0.lock().get(&ticket).cloned()
    }

    pub fn remove(&self, ticket: u64) {
        self.0.lock().remove(&ticket);
    }

    /// A copy of the present calls, so that no one holds the lock while looking at them.
    pub fn snapshot(&self) -> Vec<(u64, Arc<InFlightCall>)> {
        self.0.lock().iter().map(|(ticket, call)| (*ticket, call.clone())).collect()
    }
}

/// The state of one job with respect to its plugin call.
pub(super) struct InFlightCall {
    job_id: JobId,
    context: Arc<JobContext>,
    phase: Mutex<Phase>,
    hook_returned: Condvar,
    /// When the run was asked to end.
    asked_to_end: OnceLock<Instant>,
    timed_out: AtomicBool,
    /// The jobs of one batch, this one among them; empty for a run of one job.
    batch: Mutex<Vec<Weak<InFlightCall>>>,
}

/// Where the run is. A run in the plugin has the time at which it entered.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Waiting,
    Running(Instant),
    /// The cancel hook is being called.
    Cancelling(Instant),
    /// The hook was called and returned; the run may go on.
    Cancelled(Instant),
    Ended,
}

impl InFlightCall {
    pub fn new(job_id: JobId, context: Arc<JobContext>) -> InFlightCall {
        InFlightCall {
            job_id,
            context,
            phase: Mutex::new(Phase::Waiting),
            hook_returned: Condvar::new(),
            asked_to_end: OnceLock::new(),
            timed_out: AtomicBool::new(false),
            batch: Mutex::default(),
        }
    }

    /// Notes that these jobs are in the plugin by one call, which returns for all of them.
    pub fn enter_together(calls: &[&Arc<InFlightCall>]) {
        for call in calls {
            *call.batch.lock() = calls.iter().map(|call| Arc::downgrade(call)).collect();
        }
    }

    /// Notes that this job has a call to itself.
    pub fn enter_alone(&self) {
        self.batch.lock().clear();
    }

    /// What the run shares with the plugin.
    pub fn context(&self) -> Arc<JobContext> {
        self.context.clone()
    }

    pub fn job_id(&self) -> &str {
        &self.job_id
    }

    /// Begins the run; false when the job was cancelled before, and then it must not run.
    pub fn enter(&self) -> bool {
        let mut phase = self.phase.lock();
        let cancelled = self.context.is_cancelled();
        *phase = if cancelled { Phase::Ended } else { Phase::Running(Instant::now()) };
        !cancelled
    }

    /// The run is not in the plugin after all, or no more, and may enter it again.
    pub fn back_out(&self, limit: Duration) {
        let mut phase = self.phase.lock();
        self.hook_returned.wait_while_for(&mut phase, |p| matches!(p, Phase::Cancelling(_)), limit);
        *phase = Phase::Waiting;
    }

    /// When the run entered the plugin; `None` before that and after the run has returned.
    pub fn running_since(&self) -> Option<Instant> {
        match *self.phase.lock() {
            Phase::Running(since) | Phase::Cancelling(since) | Phase::Cancelled(since) => Some(since),
            Phase::Waiting | Phase::Ended => None,
        }
    }

    /// When the run was asked to end.
    pub fn asked_to_end(&self) -> Option<Instant> {
        self.asked_to_end.get().copied()
    }

    /// Since when the call is expected to return. A batch works on for the jobs that were not asked to end, so it is
    /// expected to return only when all of them were.
    pub fn expected_to_return(&self) -> Option<Instant> {
        let batch: Vec<Arc<InFlightCall>> = self.batch.lock().iter().filter_map(Weak::upgrade).collect();
        let asked = batch.iter().map(|call| call.asked_to_end());
        asked.fold(self.asked_to_end(), |last, asked| Some(last?.max(asked?)))
    }

    /// Notes that the run is asked to end.
    pub fn ask_to_end(&self) {
        self.asked_to_end.get_or_init(Instant::now);
    }

    /// Notes that the run exceeds its time limit. From here on it is cancelled for the plugin.
    pub fn time_out(&self) {
        self.timed_out.store(true, Ordering::Release);
        self.context.set_cancelled();
        self.ask_to_end();
    }

    pub fn is_timed_out(&self) -> bool {
        self.timed_out.load(Ordering::Acquire)
    }

    /// Ends the run, after waiting at most `limit` for a hook that is still in the plugin.
    pub fn leave(&self, limit: Duration) {
        let mut phase = self.phase.lock();
        // The result is the same whether the hook has returned or the time is over: the run is no longer there.
        self.hook_returned.wait_while_for(&mut phase, |p| matches!(p, Phase::Cancelling(_)), limit);
        *phase = Phase::Ended;
    }

    /// Calls `hook` if the run is in the plugin and no hook was called for it before.
    pub fn cancel(&self, hook: impl FnOnce(&str) -> Option<Error>) -> Option<Error> {
        let since = {
            let mut phase = self.phase.lock();
            let Phase::Running(since) = *phase else { return None };
            *phase = Phase::Cancelling(since);
            since
        };
        // Without the lock: the hook may take seconds, and the run must be able to return meanwhile.
        let error = hook(&self.job_id);
        let mut phase = self.phase.lock();
        if *phase == Phase::Cancelling(since) {
            *phase = Phase::Cancelled(since);
        }
        self.hook_returned.notify_all();
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn new_call() -> (InFlightCall, Arc<JobContext>) {
        let context = Arc::new(JobContext::new("p".into(), "J".into()));
        (InFlightCall::new("J".into(), context.clone()), context)
    }

    /// How often the hook was called by so many cancels.
    fn cancels(call: &InFlightCall, times: u32) -> u32 {
        let mut called = 0;
        for _ in 0..times {
            call.cancel(|_| {
                called += 1;
                None
            });
        }
        called
    }

    #[test]
    fn the_hook_is_called_once_and_only_while_the_run_is_in_the_plugin() {
        let (call, _) = new_call();
        assert_eq!(cancels(&call, 2), 0, "not before");
        assert!(call.enter());
        assert_eq!(cancels(&call, 3), 1);
        call.leave(LIMIT);
        assert_eq!(cancels(&call, 2), 0, "not after");
    }

    #[test]
    fn a_batch_is_expected_to_return_when_all_of_its_jobs_were_asked_to_end() {
        let [first, second, single] = [new_call().0, new_call().0, new_call().0].map(Arc::new);
        InFlightCall::enter_together(&[&first, &second]);
        first.ask_to_end();
        single.ask_to_end();
        assert_eq!(first.expected_to_return(), None, "the other job is worked on");
        assert_eq!(single.expected_to_return(), single.asked_to_end());
        second.ask_to_end();
        for call in [&first, &second] {
            assert_eq!(call.expected_to_return(), second.asked_to_end(), "since the last of them was asked");
        }
        first.enter_alone();
        assert_eq!(first.expected_to_return(), first.asked_to_end());
    }

    #[test]
    fn a_job_cancelled_before_does_not_enter() {
        let (call, context) = new_call();
        context.set_cancelled();
        assert!(!call.enter());
        assert_eq!(cancels(&call, 1), 0);
    }

    #[test]
    fn a_run_leaves_only_after_the_hook_that_is_in_the_plugin() {
        let (call, _) = new_call();
        assert!(call.enter());
        std::thread::scope(|threads| {
            call.cancel(|_| {
                let leaving = threads.spawn(|| call.leave(LIMIT));
                assert!(!leaving.is_finished(), "the hook is still in the plugin");
                assert!(call.running_since().is_some());
                None
            });
        });
        assert!(call.running_since().is_none());
    }
}
