//! What waits for a slot, and the one count of slots.
//!
//! The driver adds jobs, the slot threads take them in ticket order the moment they are free: between two runs
//! nobody is asked. A start is announced while the queue is locked, so that a job which can't be withdrawn any
//! more has its announcement in the channel already.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use super::pool::RunJob;
use super::turn::lock;

/// The jobs that wait, shared by the handle and the slot threads.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<u64, RunJob>,
    /// Most jobs of one call.
    batch_max: usize,
    /// Threads that wait for a change.
    idle: usize,
    /// Threads that have not ended.
    threads: usize,
    stopping: bool,
}

impl Queue {
    /// Lets jobs be taken, so many in one call.
    pub fn open(&self, batch_max: usize) {
        lock(&self.state).batch_max = batch_max;
    }

    /// A slot thread will take from here until [`Queue::leave`].
    pub fn enter(&self) {
        lock(&self.state).threads += 1;
    }

    pub fn add(&self, jobs: Vec<RunJob>) {
        let mut state = lock(&self.state);
        state.waiting.extend(jobs.into_iter().map(|job| (job.ticket, job)));
        if state.idle > 0 {
            self.changed.notify_one();
        }
    }

    /// Takes a job back; false when a slot has it or it never was here.
    pub fn withdraw(&self, ticket: u64) -> bool {
        lock(&self.state).waiting.remove(&ticket).is_some()
    }

    pub fn withdraw_all(&self) {
        lock(&self.state).waiting.clear();
    }

    /// Waits for the next call's jobs; `announce` sees them before anyone can miss them here. `None` when the
    /// executor stops.
    pub fn take(&self, announce: impl FnOnce(&[RunJob])) -> Option<Vec<RunJob>> {
        let mut state = lock(&self.state);
        while !state.stopping && (state.waiting.is_empty() || state.batch_max == 0) {
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
        if state.stopping {
            return None;
        }
        let mut jobs = Vec::with_capacity(state.batch_max.min(state.waiting.len()));
        while jobs.len() < state.batch_max
            && let Some((_, job)) = state.waiting.pop_first()
        {
            jobs.push(job);
        }
        announce(&jobs);
        if state.idle > 0 && !state.waiting.is_empty() {
            self.changed.notify_one();
        }
        Some(jobs)
    }

    /// No job is taken any more; threads end when their call has come back.
    pub fn stop(&self) {
        lock(&self.state).stopping = true;
        self.changed.notify_all();
    }

    /// A slot thread has ended.
    pub fn leave(&self) {
        lock(&self.state).threads -= 1;
        self.changed.notify_all();
    }

    /// Waits until the caller's thread is the last.
    pub fn wait_alone(&self) {
        let state = lock(&self.state);
        drop(self.changed.wait_while(state, |s| s.threads > 1));
    }
}
