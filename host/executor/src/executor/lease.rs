//! The count of slots, and the lease of one.
//!
//! A slot is leased either by a slot thread for the jobs of one call, or for a reservation of the peer network. Both
//! kinds change under one lock, so together they never exceed the slots. A lease ends when it is dropped; it can't be
//! copied, so a slot can't be given back twice, and a moved lease can't be used twice.

use std::sync::Arc;

/// How the slots are used at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotLoad {
    pub slots: usize,
    /// Slots leased for jobs that are in the plugin.
    pub busy: usize,
    /// Slots leased for reservations, whether an execution is in the plugin or not.
    pub reserved: usize,
    /// Jobs that wait for a slot.
    pub waiting: usize,
}

/// What a slot is leased for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeasePurpose {
    Jobs,
    Reservation,
}

/// Why no slot can be leased for a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseRefusal {
    /// Every slot is leased.
    Full,
    /// Jobs wait for a slot: they go first.
    JobsWait,
    /// No call begins now: the device is paused or not available.
    Held,
    /// The executor is stopping.
    Stopping,
}

/// Who counts the slots and hears of the end of a lease.
pub(super) trait LeaseOwner: Send + Sync {
    /// A slot is free again.
    fn end_lease(&self, purpose: LeasePurpose);
}

/// A leased slot of an executor. Dropping it gives the slot back.
#[must_use = "dropping the lease gives the slot back at once"]
pub struct SlotLease {
    owner: Arc<dyn LeaseOwner>,
    purpose: LeasePurpose,
}

impl SlotLease {
    /// The lease of a slot that `owner` has just counted as leased.
    pub(super) fn new(owner: Arc<dyn LeaseOwner>, purpose: LeasePurpose) -> SlotLease {
        SlotLease { owner, purpose }
    }
}

impl std::fmt::Debug for SlotLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotLease").field("purpose", &self.purpose).finish_non_exhaustive()
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        self.owner.end_lease(self.purpose);
    }
}
