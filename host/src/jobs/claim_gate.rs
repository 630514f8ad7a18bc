//! Why the reader claims nothing although the link to Redis is up: what it publishes, and what others tell it.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::standing_error::StandingError;

/// What the reader asks the server for, and may be refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimStep {
    /// New messages.
    Read,
    /// The messages that were left pending.
    Pending,
}

/// The present reasons.
#[derive(Debug)]
pub struct ClaimGate {
    disk_full: AtomicBool,
    store_failing: AtomicBool,
    /// As much is held as may be.
    full: watch::Sender<bool>,
    /// Nothing is begun on the device now.
    held: watch::Sender<bool>,
    errors: Mutex<Errors>,
    /// The moment that the errors' times count from.
    started: Instant,
}

impl Default for ClaimGate {
    fn default() -> ClaimGate {
        ClaimGate {
            disk_full: AtomicBool::default(),
            store_failing: AtomicBool::default(),
            full: watch::Sender::default(),
            held: watch::Sender::default(),
            errors: Mutex::default(),
            started: Instant::now(),
        }
    }
}

#[derive(Debug, Default)]
struct Errors {
    read: StandingError,
    pending: StandingError,
}

impl Errors {
    fn of(&mut self, step: ClaimStep) -> &mut StandingError {
        match step {
            ClaimStep::Read => &mut self.read,
            ClaimStep::Pending => &mut self.pending,
        }
    }
}

impl ClaimGate {
    /// Whether claiming has stopped for want of disk space.
    pub fn disk_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    /// Notes whether there is too little disk space; true when that is a change.
    pub(super) fn set_disk_full(&self, full: bool) -> bool {
        self.disk_full.swap(full, Ordering::Relaxed) != full
    }

    /// Whether results can't be stored now.
    pub(super) fn store_failing(&self) -> bool {
        self.store_failing.load(Ordering::Relaxed)
    }

    /// Results can't be stored, or can be again: nothing is claimed that could not be finished.
    pub fn set_store_failing(&self, failing: bool) {
        self.store_failing.store(failing, Ordering::Relaxed);
    }

    /// Notes whether as much is held as may be.
    pub fn set_full(&self, full: bool) {
        self.full.send_if_modified(|now| std::mem::replace(now, full) != full);
    }

    /// Whether as much is held as may be.
    pub(super) fn is_full(&self) -> bool {
        *self.full.borrow()
    }

    /// Waits until there is room for more messages.
    pub(super) async fn wait_not_full(&self) {
        // The sender is this value's own, so that the wait ends in no other way.
        self.full.subscribe().wait_for(|full| !full).await.ok();
    }

    /// Notes whether nothing is begun on the device now: jobs wait in the stream then.
    pub fn set_held(&self, held: bool) {
        self.held.send_if_modified(|now| std::mem::replace(now, held) != held);
    }

    /// Whether nothing is begun on the device now.
    pub(super) fn is_held(&self) -> bool {
        *self.held.borrow()
    }

    /// Waits until something may be begun.
    pub(super) async fn wait_not_held(&self) {
        // The sender is this value's own, so that the wait ends in no other way.
        self.held.subscribe().wait_for(|held| !held).await.ok();
    }

    /// Why a step is refused now.
    pub fn error(&self, step: ClaimStep) -> Option<String> {
        self.errors.lock().of(step).text().map(str::to_string)
    }

    /// Notes why a step is refused, or that it no longer is.
    pub(super) fn set_error(&self, step: ClaimStep, error: Option<String>) {
        let mut errors = self.errors.lock();
        let known = errors.of(step);
        let is_told = match &error {
            Some(error) => known.fails(self.started.elapsed(), error.clone()),
            None => known.works(),
        };
        if !is_told {
            return;
        }
        match (&error, step) {
            (Some(error), ClaimStep::Read) => {
                tracing::error!(error, "new jobs can't be claimed; jobs in flight go on");
            }
            (Some(error), ClaimStep::Pending) => {
                tracing::error!(error, "pending messages can't be looked at; they stay pending");
            }
            (None, ClaimStep::Read) => tracing::info!("new jobs can be claimed again"),
            (None, ClaimStep::Pending) => tracing::info!("pending messages can be looked at again"),
        }
    }
}
