//! Pure: the executor's slots as a peer takes them.

/// Why there is no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSlot {
    Full,
    /// Cloud jobs wait for one: they go first.
    JobsWait,
    /// Nothing is begun on the device now.
    Paused,
    /// The host is stopping.
    Closing,
}

/// The executor's slots, shared with cloud jobs.
pub trait Slots {
    /// A leased slot. Dropping it gives the slot back.
    type Lease;

    /// Leases a free slot.
    ///
    /// # Errors
    /// When every slot is leased, cloud jobs wait for one, or the host is stopping.
    fn try_acquire(&self) -> Result<Self::Lease, NoSlot>;

    /// The wall clock once a slot was acquired that was asked for at this time, as [`PeerTime::at`](super::PeerTime::at). The log has the
    /// hold from then on: in between, a cloud job may still have had the slot.
    fn acquired_at(&self, asked_at: i64) -> i64 {
        asked_at
    }

    /// Most qubits of a state that the executor takes now; `None` when it can't take over a state at all.
    fn max_qubits(&self) -> Option<u16>;

    /// Whether nothing is begun on the device now.
    fn is_paused(&self) -> bool {
        false
    }
}
