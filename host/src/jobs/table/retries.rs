//! Pure: whether a run that failed is made again, and when.
//!
//! Only an error that says that it is retryable leads to another run, with a growing pause, up to a number of failures and
//! within a time since the first one. Errors for want of a calibration wait for the device, and several in a row count as
//! one. Deaths of the process are counted elsewhere.

use std::time::Duration;

use coda_plugin_abi::{Error, ErrorCode};

/// How often, how long and how soon runs are made again.
#[derive(Debug, Clone, Copy)]
pub struct RetryRule {
    /// Failures of a job after which it is run again; 0 turns retries off.
    pub max: u32,
    /// Since the first failure: later ones are final.
    pub window: Duration,
    /// Before the first retry; it doubles with each further one.
    pub pause: Duration,
    pub longest_pause: Duration,
}

/// The runs of a job that have failed so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FailedRuns {
    /// All of them.
    pub count: u32,
    /// Those that count for the limit.
    counted: u32,
    /// When the first one of this process was.
    first: Option<Duration>,
    /// The last one was for want of a calibration.
    was_calibration: bool,
}

impl FailedRuns {
    /// Of a job whose runs a former process has made.
    pub fn of_former_process(count: u32) -> FailedRuns {
        FailedRuns { count, counted: count, ..FailedRuns::default() }
    }

    /// Counts a failure.
    pub fn add(&mut self, at: Duration, error: &Error) {
        let is_calibration = error.code == ErrorCode::Calibration;
        self.count = self.count.saturating_add(1);
        if !(is_calibration && self.was_calibration) {
            self.counted = self.counted.saturating_add(1);
        }
        self.was_calibration = is_calibration;
        self.first.get_or_insert(at);
    }
}

impl RetryRule {
    /// When the job whose last run failed with this error at `now` runs again; `None` when the failure is final.
    pub fn next_run(&self, now: Duration, failed: FailedRuns, error: &Error) -> Option<Duration> {
        let is_too_late = failed.first.is_some_and(|first| now.saturating_sub(first) > self.window);
        if !error.retryable || failed.counted > self.max || is_too_late {
            return None;
        }
        let doublings = failed.count.saturating_sub(1).min(16);
        let pause = self.pause.saturating_mul(1 << doublings).min(self.longest_pause);
        Some(now + pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: RetryRule = RetryRule {
        max: 2,
        window: Duration::from_secs(600),
        pause: Duration::from_secs(1),
        longest_pause: Duration::from_secs(60),
    };

    fn error(code: ErrorCode) -> Error {
        Error::new(code, "cold").retryable()
    }

    /// The pauses before the retries of a job whose runs fail so, one second after each start.
    fn pauses(rule: RetryRule, codes: &[ErrorCode]) -> Vec<Option<u64>> {
        let (mut failed, mut now) = (FailedRuns::default(), Duration::ZERO);
        let mut pause = |code: &ErrorCode| {
            now += Duration::from_secs(1);
            failed.add(now, &error(*code));
            let next = rule.next_run(now, failed, &error(*code))?;
            let pause = next - now;
            now = next;
            Some(pause.as_secs())
        };
        codes.iter().map(&mut pause).collect()
    }

    #[test]
    fn pauses_double_up_to_the_number_of_retries() {
        use ErrorCode::{Calibration, Hardware};
        for (max, codes, expected) in [
            (2, vec![Hardware; 3], vec![Some(1), Some(2), None]),
            (0, vec![Hardware], vec![None]),
            (9, vec![Hardware; 8], vec![1, 2, 4, 8, 16, 32, 60, 60].into_iter().map(Some).collect()),
            // Several in a row count as one.
            (1, vec![Calibration, Calibration, Calibration], vec![Some(1), Some(2), Some(4)]),
            (1, vec![Calibration, Hardware], vec![Some(1), None]),
            (2, vec![Hardware, Calibration, Calibration, Hardware], vec![Some(1), Some(2), Some(4), None]),
        ] {
            assert_eq!(pauses(RetryRule { max, ..RULE }, &codes), expected, "{max} {codes:?}");
        }
    }

    #[test]
    fn what_is_not_retryable_or_too_late_is_final() {
        let mut failed = FailedRuns::default();
        let at = Duration::from_secs(5);
        failed.add(at, &error(ErrorCode::Hardware));
        assert!(RULE.next_run(at, failed, &error(ErrorCode::Hardware)).is_some());
        let fatal = Error::new(ErrorCode::Hardware, "broken");
        assert_eq!(RULE.next_run(at, failed, &fatal), None);
        let late = at + RULE.window + Duration::from_millis(1);
        assert_eq!(RULE.next_run(late, failed, &error(ErrorCode::Calibration)), None);
        assert_eq!(RULE.next_run(at, FailedRuns::of_former_process(3), &error(ErrorCode::Hardware)), None);
    }
}
