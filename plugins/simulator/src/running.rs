//! The jobs that are running, and how to wake one.
//!
//! Contract: a [`Ticket`] exists for the length of a run; [`Running::cancel`] marks every ticket of an id and
//! wakes whoever waits; an id that isn't running is ignored.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How soon a waiting run notices a host that sets `is_cancelled` without calling `cancel`.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub struct Running {
    jobs: Mutex<Vec<(String, Arc<AtomicBool>)>>,
    bell: Condvar,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, Vec<(String, Arc<AtomicBool>)>> {
        // The list is whole between any two statements, so a panic elsewhere does not spoil it.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self, job_id: &str) -> Ticket<'_> {
        let cancelled = Arc::new(AtomicBool::new(false));
        self.lock().push((job_id.to_string(), Arc::clone(&cancelled)));
        Ticket { running: self, cancelled }
    }

    pub fn cancel(&self, job_id: &str) {
        self.mark(|id| id == job_id);
    }

    pub fn cancel_all(&self) {
        self.mark(|_| true);
    }

    fn mark(&self, which: impl Fn(&str) -> bool) {
        for (id, cancelled) in self.lock().iter() {
            if which(id) {
                cancelled.store(true, Ordering::Release);
            }
        }
        self.bell.notify_all();
    }

    /// Waits until `deadline` (for ever without one) or until `done`, which is asked after every cancel.
    pub fn wait(&self, deadline: Option<Instant>, mut done: impl FnMut() -> bool) {
        let mut jobs = self.lock();
        while !done() {
            let left = match deadline {
                None => LOOK_EVERY,
                Some(at) => at.saturating_duration_since(Instant::now()).min(LOOK_EVERY),
            };
            if left.is_zero() {
                return;
            }
            jobs = self.bell.wait_timeout(jobs, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[derive(Debug)]
pub struct Ticket<'a> {
    running: &'a Running,
    cancelled: Arc<AtomicBool>,
}

impl Ticket<'_> {
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.running.lock().retain(|(_, c)| !Arc::ptr_eq(c, &self.cancelled));
    }
}
