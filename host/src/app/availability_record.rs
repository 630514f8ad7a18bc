//! Records when runs could begin and when they were held, for `coda-host usage`.
//!
//! A period has one state. Its row is written when it begins and brought up to date now and then, so that a crash costs at
//! most one interval; the time after it, until the next start, is told as stopped.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::availability::{Availability, Hold};
use crate::executor::ExecutorStatus;
use crate::state::db::{AvailabilityPeriod, Store};

/// Records the periods of a host until it stops.
pub struct AvailabilityRecorder {
    pub store: Store,
    pub availability: watch::Receiver<Availability>,
    pub executor: ExecutorStatus,
    pub interval: Duration,
    pub stop: CancellationToken,
}

impl AvailabilityRecorder {
    pub async fn run(mut self) {
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut current = None;
        loop {
            let is_over = tokio::select! {
                () = self.stop.cancelled() => true,
                // Without its sender the host is ending.
                changed = self.availability.changed() => changed.is_err(),
                _ = ticks.tick() => false,
            };
            let now = (OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000) as i64;
            let slots = self.executor.active_plugin().device.slots.into();
            let state = describe(self.availability.borrow_and_update().hold.as_ref());
            let periods = advance(current.take(), now, slots, state);
            for period in &periods {
                self.store.record_availability(period.clone());
            }
            if is_over {
                return;
            }
            current = periods.into_iter().next_back();
        }
    }
}

fn describe(hold: Option<&Hold>) -> (Option<String>, Option<String>) {
    (hold.map(|hold| hold.name().to_string()), hold.and_then(Hold::note).map(str::to_string))
}

/// The period so far, up to `now`, and the one that begins now when something is different.
fn advance(
    current: Option<AvailabilityPeriod>,
    now: i64,
    slots: u32,
    (hold, note): (Option<String>, Option<String>),
) -> Vec<AvailabilityPeriod> {
    let next = AvailabilityPeriod { since: now, until: now, slots, hold, note };
    let Some(current) = current else { return vec![next] };
    // The clock was set back: what follows is a period of its own.
    if now < current.until {
        return vec![next];
    }
    let is_same = (current.slots, &current.hold, &current.note) == (next.slots, &next.hold, &next.note);
    let current = AvailabilityPeriod { until: now, ..current };
    if is_same { vec![current] } else { vec![current, next] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_grows_until_something_is_different() {
        let paused = || (Some("paused".to_string()), Some("cables".to_string()));
        let first = advance(None, 100, 2, (None, None)).remove(0);
        assert_eq!((first.since, first.until), (100, 100));
        let grown = advance(Some(first), 160, 2, (None, None));
        assert_eq!(grown.iter().map(|p| (p.since, p.until)).collect::<Vec<_>>(), [(100, 160)]);
        let both = advance(grown.into_iter().next(), 170, 2, paused());
        let spans: Vec<_> = both.iter().map(|p| (p.since, p.until, p.hold.as_deref())).collect();
        assert_eq!(spans, [(100, 170, None), (170, 170, Some("paused"))]);
        let other_slots = advance(both.into_iter().next_back(), 180, 1, paused());
        assert_eq!(other_slots.iter().map(|p| (p.since, p.slots)).collect::<Vec<_>>(), [(170, 2), (180, 1)]);
        let set_back = advance(other_slots.into_iter().next_back(), 50, 1, paused());
        assert_eq!(set_back.iter().map(|p| (p.since, p.until)).collect::<Vec<_>>(), [(50, 50)]);
    }
}
