//! Pure: which slots are lent now, to whom and until when: for those who look.

use std::time::Duration;

use super::{Reservation, ReservationKey, ReservationTable};

/// A slot that is lent, and to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LentSlot {
    pub owner: String,
    pub reservation_id: String,
    /// Something runs in it.
    pub executes: bool,
    /// When the reservation ends by itself, as [`PeerTime::elapsed`].
    pub ends: Duration,
}

impl<Lease> ReservationTable<Lease> {
    /// The slots that are lent, the one that ends first at the front.
    pub fn lent(&self) -> Vec<LentSlot> {
        let lent = |(key, reservation): (&ReservationKey, &Reservation<Lease>)| LentSlot {
            owner: key.owner.clone(),
            reservation_id: key.id.clone(),
            executes: !reservation.slot.is_idle(),
            ends: reservation.ends,
        };
        let mut all: Vec<LentSlot> = self.reservations.iter().map(lent).collect();
        all.sort_by(|a, b| (a.ends, &a.reservation_id).cmp(&(b.ends, &b.reservation_id)));
        all
    }
}
