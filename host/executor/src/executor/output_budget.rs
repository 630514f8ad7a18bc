//! How much a plugin may write into the host's log: a number of bytes per second, with a reserve for a burst.
//!
//! What is beyond that is left out and counted, and the log says so: at the first line that is left out, and with the number
//! when lines are taken again. A plugin that writes without end costs neither the disk nor the log of the host itself.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// So many seconds' worth may be written at once.
const BURST_SECONDS: f64 = 16.0;
/// What a line costs beside its text.
const LINE_BYTES: usize = 100;

/// The budget of one plugin.
#[derive(Default)]
pub struct OutputBudget(Mutex<Option<Bucket>>);

struct Bucket {
    bytes_per_second: f64,
    left: f64,
    filled: Option<Instant>,
    left_out: LeftOut,
}

/// Lines that were left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    pub lines: u64,
    pub bytes: u64,
}

/// Whether a line is written.
#[derive(Debug, PartialEq, Eq)]
pub enum LineVerdict {
    /// It is, and so many before it were left out.
    Written(LeftOut),
    /// It is left out, the first one to be.
    FirstLeftOut,
    LeftOut,
}

impl OutputBudget {
    /// Limits what is written from now on. Without a limit everything is.
    pub fn limit(&self, bytes_per_second: u64) {
        let bytes_per_second = bytes_per_second as f64;
        let left = bytes_per_second * BURST_SECONDS;
        let left_out = LeftOut::default();
        *self.0.lock() = Some(Bucket { bytes_per_second, left, filled: None, left_out });
    }

    /// Judges a line of so many bytes.
    pub fn admit(&self, bytes: usize, now: Instant) -> LineVerdict {
        let mut bucket = self.0.lock();
        let Some(bucket) = &mut *bucket else { return LineVerdict::Written(LeftOut::default()) };
        let passed = bucket.filled.map_or(Duration::ZERO, |filled| now.saturating_duration_since(filled));
        bucket.filled = Some(now);
        let most = bucket.bytes_per_second * BURST_SECONDS;
        bucket.left = (bucket.left + passed.as_secs_f64() * bucket.bytes_per_second).min(most);
        let cost = (bytes + LINE_BYTES) as f64;
        // After a flood it must first have a second's worth again, so that lines come in groups and not one at a time.
        let needed = if bucket.left_out.lines > 0 { cost.max(bucket.bytes_per_second) } else { cost };
        if bucket.left >= needed.min(most) {
            bucket.left -= cost;
            return LineVerdict::Written(std::mem::take(&mut bucket.left_out));
        }
        bucket.left_out.lines += 1;
        bucket.left_out.bytes += bytes as u64;
        if bucket.left_out.lines == 1 { LineVerdict::FirstLeftOut } else { LineVerdict::LeftOut }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted_and_quiet_lines_are_never_left_out() {
        let budget = OutputBudget::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(budget.admit(1 << 30, start), LineVerdict::Written(LeftOut::default()), "no limit yet");
        budget.limit(1000);
        let mut written = 0;
        let first = loop {
            match budget.admit(100, start) {
                LineVerdict::Written(_) => written += 200,
                other => break other,
            }
        };
        assert_eq!((written, first), (16_000, LineVerdict::FirstLeftOut));
        for ms in 0..900 {
            assert_eq!(budget.admit(100, at(ms)), LineVerdict::LeftOut, "{ms}");
        }
        let left_out = LeftOut { lines: 901, bytes: 90_100 };
        assert_eq!(budget.admit(100, at(1001)), LineVerdict::Written(left_out));
        // One line of 100 bytes a second is within the budget for ever.
        for second in 2..100 {
            let answer = budget.admit(100, at(second * 1000));
            assert_eq!(answer, LineVerdict::Written(LeftOut::default()), "{second}");
        }
        // A line that is longer than the budget of all time is written once the budget is full.
        assert!(matches!(budget.admit(1 << 20, at(200_000)), LineVerdict::Written(_)));
    }
}
