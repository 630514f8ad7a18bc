//! Pure: when reservations that are not committed expire, by elapsed time: a clock that is set neither ends them nor
//! keeps them.
//!
//! The wall clock is used once, for a reservation that a former process made, and never gives it more than its ttl.

use std::collections::HashMap;
use std::time::Duration;

/// A reservation that is requested or accepted, as the log shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTime {
    pub reservation_id: String,
    pub ttl: Duration,
    /// What is left of it by the wall clock.
    pub left: Duration,
}

/// When each open reservation ends.
#[derive(Debug, Default)]
pub struct ReservationExpiry {
    ends: HashMap<String, Duration>,
    /// Whether a look at the log was taken.
    looked: bool,
}

impl ReservationExpiry {
    /// Whether this reservation was seen in a former look.
    pub fn is_known(&self, reservation_id: &str) -> bool {
        self.ends.contains_key(reservation_id)
    }

    /// Takes a look at the log at this time since the start: `open` has all ids, `new` those that are not known. Returns
    /// those whose time is over.
    pub fn look(&mut self, now: Duration, open: &[String], new: Vec<OpenTime>) -> Vec<String> {
        for OpenTime { reservation_id, ttl, left } in new {
            // After the first look a new one was made since the look before.
            let left = if self.looked { ttl } else { left.min(ttl) };
            self.ends.insert(reservation_id, now.saturating_add(left));
        }
        self.looked = true;
        let still: std::collections::HashSet<&String> = open.iter().collect();
        self.ends.retain(|id, _| still.contains(id));
        self.ends.iter().filter(|(_, end)| **end <= now).map(|(id, _)| id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(id: &str, ttl: u64, left: u64) -> OpenTime {
        let (ttl, left) = (Duration::from_secs(ttl), Duration::from_secs(left));
        OpenTime { reservation_id: id.into(), ttl, left }
    }

    #[test]
    fn a_clock_that_is_set_neither_ends_a_reservation_nor_keeps_it() {
        let seconds = Duration::from_secs;
        let mut expiry = ReservationExpiry::default();
        let ids = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
        // Of a former process: the rest of its time, and never more than all of it.
        let old = vec![open("old", 60, 10), open("set-back", 60, 3_600)];
        assert!(expiry.look(seconds(0), &ids(&["old", "set-back"]), old).is_empty());
        // Made since: its clock says that it is long over, or has an hour left.
        let new = vec![open("forward", 60, 0), open("back", 60, 3_600)];
        let all = ids(&["old", "set-back", "forward", "back"]);
        assert!(expiry.look(seconds(1), &all, new).is_empty());
        assert!(expiry.is_known("back") && !expiry.is_known("other"));
        assert_eq!(expiry.look(seconds(10), &all, Vec::new()), ["old"]);
        assert_eq!(expiry.look(seconds(60), &all[1..], Vec::new()), ["set-back"]);
        let mut over = expiry.look(seconds(61), &all[2..], Vec::new());
        over.sort();
        assert_eq!(over, ["back", "forward"]);
        assert!(expiry.look(seconds(62), &[], Vec::new()).is_empty() && expiry.ends.is_empty());
    }
}
