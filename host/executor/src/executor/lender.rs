//! The part of an executor that is lent to the peer network: leases of slots, and states evolved in them.

use std::sync::Arc;

use super::JobContext;
use super::active::ActivePlugin;
use super::control::Canceller;
use super::ffi::Common;
use super::job::EvolveJob;
use super::lease::{LeaseRefusal, SlotLease, SlotLoad};
use super::queue::Queue;
use super::status::ExecutorStatus;
use crate::model::JobId;

/// Leases slots of an executor and has states evolved in them.
#[derive(Clone)]
pub struct SlotLender {
    pub(super) queue: Arc<Queue>,
    pub(super) common: Arc<Common>,
    pub(super) status: ExecutorStatus,
    pub(super) canceller: Canceller,
}

impl SlotLender {
    /// Leases a slot.
    ///
    /// # Errors
    /// When every slot is leased, jobs wait for one, starts are held, or the executor is stopping.
    pub fn try_lease(&self) -> Result<SlotLease, LeaseRefusal> {
        self.queue.try_lease()
    }

    /// Whether no call begins now.
    pub fn is_held(&self) -> bool {
        self.queue.is_held()
    }

    /// How the slots are used now.
    pub fn load(&self) -> SlotLoad {
        self.queue.load()
    }

    /// The plugin and device in use: another one after a reload.
    pub fn active_plugin(&self) -> Arc<ActivePlugin> {
        self.status.active_plugin()
    }

    /// What a call shares with the plugin.
    pub fn context(&self, job_id: JobId) -> JobContext {
        JobContext::in_executor(self.common.clone(), job_id)
    }

    /// Has a leased slot evolve a state. The lease comes back with the outcome.
    pub fn evolve_state(&self, lease: SlotLease, job: EvolveJob) {
        self.queue.evolve(lease, Box::new(job));
    }

    /// As [`Executor::cancel`](super::Executor::cancel).
    pub fn cancel(&self, ticket: u64) {
        self.canceller.cancel(ticket);
    }
}
