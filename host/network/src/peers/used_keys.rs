//! Pure: the idempotency keys of accepted prepares, so that a prepare that is sent again takes no second slot. Bounded for
//! each owner and in the number of owners: the oldest are forgotten.

use std::collections::{HashMap, VecDeque};

use crate::reservation::event::Transition;

/// Most keys that are kept for one owner.
const KEPT_KEYS: usize = 1024;
/// Most owners whose keys are kept.
const KEPT_OWNERS: usize = 256;

/// The reservation that was made with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FirstReservation {
    pub(super) reservation_id: String,
    /// Its last state, when it is over.
    pub(super) ended: Option<Transition>,
}

#[derive(Debug, Default)]
struct KeysOfOwner {
    order: VecDeque<String>,
    keys: HashMap<String, FirstReservation>,
}

/// The keys of all owners.
#[derive(Debug, Default)]
pub(super) struct UsedKeys {
    owners: HashMap<String, KeysOfOwner>,
    /// The first to come is the first to go.
    order: VecDeque<String>,
}

impl UsedKeys {
    /// The reservation that this owner made with a key.
    pub(super) fn get(&self, owner: &str, key: &str) -> Option<&FirstReservation> {
        self.owners.get(owner)?.keys.get(key)
    }

    /// A reservation was made with a key.
    pub(super) fn insert(&mut self, owner: &str, key: &str, reservation_id: &str) {
        if !self.owners.contains_key(owner) {
            if self.order.len() >= KEPT_OWNERS
                && let Some(oldest) = self.order.pop_front()
            {
                self.owners.remove(&oldest);
            }
            self.order.push_back(owner.into());
        }
        let used = self.owners.entry(owner.into()).or_default();
        let first = FirstReservation { reservation_id: reservation_id.into(), ended: None };
        if used.keys.insert(key.into(), first).is_none() {
            used.order.push_back(key.into());
        }
        if used.order.len() > KEPT_KEYS
            && let Some(oldest) = used.order.pop_front()
        {
            used.keys.remove(&oldest);
        }
    }

    /// The reservation that was made with a key is over.
    pub(super) fn ended(&mut self, owner: &str, key: &str, transition: Transition) {
        if let Some(first) = self.owners.get_mut(owner).and_then(|used| used.keys.get_mut(key)) {
            first.ended = Some(transition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_belong_to_their_owners_and_are_bounded() {
        let mut used = UsedKeys::default();
        used.insert("a", "key-0", "res-0");
        used.ended("a", "key-0", Transition::Expired);
        let first = FirstReservation { reservation_id: "res-0".into(), ended: Some(Transition::Expired) };
        assert_eq!((used.get("a", "key-0"), used.get("b", "key-0")), (Some(&first), None));
        for n in 1..=KEPT_KEYS {
            used.insert("a", &format!("key-{n}"), "res");
        }
        assert_eq!((used.get("a", "key-0"), used.owners["a"].order.len()), (None, KEPT_KEYS));
        for n in 0..KEPT_OWNERS {
            used.insert(&format!("owner-{n}"), "key-0", "res");
        }
        assert!(used.get("a", "key-1").is_none() && used.owners.len() == KEPT_OWNERS);
    }
}
