//! Pure: the pause before something that failed is tried again, with full jitter.
//!
//! The longest pause doubles with each failure in a row, from `first` up to `max`. The pause itself is drawn evenly
//! between half of `first` and that longest pause: hosts that failed at the same moment do not come back at the same
//! moment, and no retry is immediate. Randomness is an argument, a number in `0.0..1.0`, so that a test decides it.

use std::time::Duration;

/// More doublings than this change nothing: every configured maximum is reached before.
const MAX_DOUBLINGS: u32 = 20;

/// The range that pauses are drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffRange {
    /// The longest pause after the first failure.
    pub first: Duration,
    /// No pause is longer, however many failures there were.
    pub max: Duration,
}

impl BackoffRange {
    /// The longest pause after this many failures in a row; the first failure is number 1.
    pub fn longest(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(MAX_DOUBLINGS);
        self.first.saturating_mul(1 << doublings).min(self.max)
    }

    /// The shortest pause: half of the first one, so that no retry is immediate.
    pub fn shortest(&self) -> Duration {
        (self.first / 2).min(self.max)
    }

    /// The pause after this many failures in a row. `random` is a number in `0.0..1.0`; others count as the nearer end.
    pub fn pause(&self, failures: u32, random: f64) -> Duration {
        let shortest = self.shortest();
        let spread = self.longest(failures).saturating_sub(shortest);
        // NaN is not a number to multiply with.
        let random = if random.is_finite() { random.clamp(0.0, 1.0) } else { 0.0 };
        shortest + spread.mul_f64(random)
    }
}

/// The failures in a row of one thing that is tried again and again.
#[derive(Debug, Clone)]
pub struct Backoff {
    range: BackoffRange,
    failures: u32,
}

impl Backoff {
    pub fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { range: BackoffRange { first, max }, failures: 0 }
    }

    /// Counts a failure and returns the pause before the next try.
    pub fn after_failure(&mut self, random: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.range.pause(self.failures, random)
    }

    /// The longest pause that the next failure can cause.
    pub fn longest_next(&self) -> Duration {
        self.range.longest(self.failures.saturating_add(1))
    }

    /// Forgets the failures, after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_longest_pause_doubles_up_to_the_maximum() {
        let range = BackoffRange { first: SECOND, max: 60 * SECOND };
        let longest: Vec<u64> = (1..=8).map(|n| range.longest(n).as_secs()).collect();
        assert_eq!(longest, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(range.longest(u32::MAX), 60 * SECOND);
    }

    #[test]
    fn the_ends_of_the_range_are_drawn_by_the_ends_of_the_random_numbers() {
        let range = BackoffRange { first: SECOND, max: 60 * SECOND };
        assert_eq!(range.pause(4, 0.0), SECOND / 2);
        assert_eq!(range.pause(4, 1.0), 8 * SECOND);
        assert_eq!(range.pause(1, 1.0), SECOND);
        assert_eq!(range.pause(4, f64::NAN), SECOND / 2);
    }

    #[test]
    fn a_success_begins_a_new_count() {
        let mut backoff = Backoff::new(SECOND, 60 * SECOND);
        assert_eq!(backoff.after_failure(1.0), SECOND);
        assert_eq!(backoff.after_failure(1.0), 2 * SECOND);
        assert_eq!(backoff.longest_next(), 4 * SECOND);
        backoff.reset();
        assert_eq!(backoff.after_failure(1.0), SECOND);
    }

    #[test]
    fn pauses_are_spread_over_the_whole_range() {
        let range = BackoffRange { first: SECOND, max: 60 * SECOND };
        let pauses: Vec<f64> = (0..100).map(|n| range.pause(5, f64::from(n) / 100.0).as_secs_f64()).collect();
        let in_upper_half = pauses.iter().filter(|p| **p > 8.25).count();
        assert_eq!(in_upper_half, 49, "an even spread between 0.5 s and 16 s");
    }

    proptest! {
        #[test]
        fn no_pause_is_immediate_or_longer_than_the_maximum(
            first_ms in 1u64..100_000,
            max_ms in 1u64..1_000_000,
            failures in 0u32..100,
            random in 0.0f64..1.0,
        ) {
            let range = BackoffRange { first: Duration::from_millis(first_ms), max: Duration::from_millis(max_ms) };
            let pause = range.pause(failures, random);
            prop_assert!(pause > Duration::ZERO);
            prop_assert!(pause >= range.shortest());
            prop_assert!(pause <= range.max.max(range.shortest()));
        }
    }
}
