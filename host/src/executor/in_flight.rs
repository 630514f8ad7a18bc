//! One job's way through its plugin call, and when the cancel hook may be called for it.
//!
//! ```text
//! Waiting ── enter ──> Running ── leave ──> Ended       entering a cancelled job ends it at once
//!                         │ cancel              ^
//!                         v                     │
//!                     Cancelling ─ hook returns ─> Cancelled ── leave
//! ```
//!
//! The hook is called at most once, only while the run is in the plugin, and the run's thread waits for a hook that
//! is still in there, though not for ever.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use coda_plugin_abi::Error;

use super::JobContext;
use crate::model::JobId;

/// A panic elsewhere leaves these locks' data whole, so it is no reason to stop.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where one job is with respect to its plugin call.
pub(super) struct InFlightCall {
    job_id: JobId,
    context: Arc<JobContext>,
    phase: Mutex<Phase>,
    hook_returned: Condvar,
    /// When the run entered the plugin.
    entered: OnceLock<Instant>,
    /// When it was asked to end.
    asked: OnceLock<Instant>,
    timed_out: AtomicBool,
}

#[derive(PartialEq)]
enum Phase {
    Waiting,
    Running,
    /// The cancel hook is being called.
    Cancelling,
    /// The hook was called and returned; the run may go on.
    Cancelled,
    Ended,
}

impl InFlightCall {
    pub fn new(job_id: JobId, context: Arc<JobContext>) -> InFlightCall {
        InFlightCall {
            job_id,
            context,
            phase: Mutex::new(Phase::Waiting),
            hook_returned: Condvar::new(),
            entered: OnceLock::new(),
            asked: OnceLock::new(),
            timed_out: AtomicBool::new(false),
        }
    }

    pub fn job_id(&self) -> &str {
        &self.job_id
    }

    /// The run may begin, unless it was cancelled before.
    pub fn enter(&self) -> bool {
        let mut phase = lock(&self.phase);
        *phase = if self.context.is_cancelled() { Phase::Ended } else { Phase::Running };
        self.entered.get_or_init(Instant::now);
        *phase == Phase::Running
    }

    /// When the run entered the plugin, while it is there.
    pub fn running_since(&self) -> Option<Instant> {
        self.entered.get().copied().filter(|_| *lock(&self.phase) != Phase::Ended)
    }

    /// When the run was asked to end.
    pub fn asked_to_end(&self) -> Option<Instant> {
        self.asked.get().copied()
    }

    /// Notes that the run is asked to end.
    pub fn ask(&self) {
        self.asked.get_or_init(Instant::now);
    }

    /// The run takes too long: from here on it counts as cancelled for the plugin.
    pub fn time_out(&self) {
        self.timed_out.store(true, Ordering::Release);
        self.context.set_cancelled();
        self.ask();
    }

    pub fn is_timed_out(&self) -> bool {
        self.timed_out.load(Ordering::Acquire)
    }

    /// The run has returned; waits for a hook that is still in the plugin, but not for ever.
    pub fn leave(&self, limit: Duration) {
        let phase = lock(&self.phase);
        let waited = self.hook_returned.wait_timeout_while(phase, limit, |p| *p == Phase::Cancelling);
        let (mut phase, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *phase = Phase::Ended;
    }

    /// Calls `hook` if the run is in the plugin and was not told before.
    pub fn cancel(&self, hook: impl FnOnce(&str) -> Option<Error>) -> Option<Error> {
        {
            let mut phase = lock(&self.phase);
            if *phase != Phase::Running {
                return None;
            }
            *phase = Phase::Cancelling;
        }
        let error = hook(&self.job_id);
        let mut phase = lock(&self.phase);
        if *phase == Phase::Cancelling {
            *phase = Phase::Cancelled;
        }
        self.hook_returned.notify_all();
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn call() -> (InFlightCall, Arc<JobContext>) {
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
        let (call, _) = call();
        assert_eq!(cancels(&call, 2), 0, "not before");
        assert!(call.enter());
        assert_eq!(cancels(&call, 3), 1);
        call.leave(LIMIT);
        assert_eq!(cancels(&call, 2), 0, "not after");
    }

    #[test]
    fn a_job_cancelled_before_does_not_enter() {
        let (call, context) = call();
        context.set_cancelled();
        assert!(!call.enter());
        assert_eq!(cancels(&call, 1), 0);
    }
}
