//! How long each slot has worked: the time in which it had a call in the plugin, of whatever kind.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The slots' working times. A slot that works counts up to the moment of the look.
#[derive(Debug, Default)]
pub(super) struct SlotUsage(Mutex<Vec<Slot>>);

#[derive(Debug, Default, Clone)]
struct Slot {
    worked: Duration,
    since: Option<Instant>,
}

impl SlotUsage {
    /// Makes a call of a slot, and counts its time.
    pub fn count<R>(&self, slot: usize, call: impl FnOnce() -> R) -> (R, Duration) {
        let start = Instant::now();
        self.change(slot, |usage| usage.since = Some(start));
        let result = call();
        let took = start.elapsed();
        self.change(slot, |usage| {
            usage.since = None;
            usage.worked += took;
        });
        (result, took)
    }

    /// How long each of the first slots has worked altogether.
    pub fn worked(&self, slots: usize) -> Vec<Duration> {
        let usage = self.0.lock();
        let total = |slot: &Slot| slot.worked + slot.since.map_or(Duration::ZERO, |since| since.elapsed());
        (0..slots).map(|slot| usage.get(slot).map_or(Duration::ZERO, total)).collect()
    }

    fn change(&self, slot: usize, how: impl FnOnce(&mut Slot)) {
        let mut usage = self.0.lock();
        if usage.len() <= slot {
            usage.resize(slot + 1, Slot::default());
        }
        how(&mut usage[slot]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_counts_while_it_runs_and_afterwards() {
        let usage = SlotUsage::default();
        let (seen, took) = usage.count(1, || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(2) {}
            usage.worked(2)
        });
        assert!(seen[0] == Duration::ZERO && seen[1] >= Duration::from_millis(2), "{seen:?}");
        assert_eq!(usage.worked(3), [Duration::ZERO, took, Duration::ZERO]);
    }
}
