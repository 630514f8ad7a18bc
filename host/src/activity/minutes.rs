//! Pure: how many jobs ended in each of the last sixty minutes and how, and how long their steps took.

use std::collections::VecDeque;
use std::time::Duration;

use time::OffsetDateTime;

/// Minutes that are kept.
pub const KEPT: usize = 60;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEnd {
    Completed,
    Failed,
    Cancelled,
    /// The cloud refused its result permanently, or it was a message that can't be answered.
    Undeliverable,
}

impl JobEnd {
    pub const ALL: [JobEnd; 4] =
        [JobEnd::Completed, JobEnd::Failed, JobEnd::Cancelled, JobEnd::Undeliverable];

    pub fn name(self) -> &'static str {
        match self {
            JobEnd::Completed => "completed",
            JobEnd::Failed => "failed",
            JobEnd::Cancelled => "cancelled",
            JobEnd::Undeliverable => "undeliverable",
        }
    }
}

/// Times in buckets whose bounds grow by a quarter of an octave, from 10 us to two days: a quantile is right to 19 %.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times([u32; Times::BUCKETS]);

impl Default for Times {
    fn default() -> Times {
        Times([0; Times::BUCKETS])
    }
}

impl Times {
    const BUCKETS: usize = 136;
    const FIRST: f64 = 1e-5;

    pub fn record(&mut self, time: Duration) {
        let octaves = (time.as_secs_f64() / Times::FIRST).max(1.0).log2();
        let bucket = ((octaves * 4.0) as usize).min(Times::BUCKETS - 1);
        self.0[bucket] = self.0[bucket].saturating_add(1);
    }

    fn add(&mut self, other: &Times) {
        for (sum, count) in self.0.iter_mut().zip(&other.0) {
            *sum = sum.saturating_add(*count);
        }
    }

    /// The time that a share of all were within, in seconds; `None` when there are none.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let all: u64 = self.0.iter().map(|n| u64::from(*n)).sum();
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.0.iter().position(|n| {
            seen += u64::from(*n);
            seen >= wanted
        })?;
        // The geometric middle of the bucket.
        Some(Times::FIRST * 2f64.powf((bucket as f64 + 0.5) / 4.0))
    }
}

/// One minute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Minute {
    /// Minutes since the epoch.
    pub number: i64,
    ended: [u32; JobEnd::ALL.len()],
    pub wait: Times,
    pub run: Times,
    pub webhook: Times,
}

impl Minute {
    pub fn count(&mut self, end: JobEnd) {
        let count = &mut self.ended[end as usize];
        *count = count.saturating_add(1);
    }

    /// How many jobs ended so.
    pub fn ended(&self, end: JobEnd) -> u32 {
        self.ended[end as usize]
    }
}

/// The last minutes, the oldest first. Minutes without an event are not kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Minutes {
    kept: VecDeque<Minute>,
    /// Of the latest event or look.
    now: i64,
}

impl Minutes {
    /// The minute of this moment. A clock that was set back counts into the newest one.
    pub fn at(&mut self, now: OffsetDateTime) -> &mut Minute {
        let number = now.unix_timestamp().div_euclid(60).max(self.now);
        self.now = number;
        while self.kept.front().is_some_and(|m| m.number <= number - KEPT as i64) {
            self.kept.pop_front();
        }
        if self.kept.back().is_none_or(|m| m.number < number) {
            self.kept.push_back(Minute { number, ..Minute::default() });
        }
        let newest = self.kept.len() - 1;
        &mut self.kept[newest]
    }

    /// For each of the last sixty minutes, the oldest first: how many jobs ended in each way.
    pub fn ends(&self) -> Vec<[u32; JobEnd::ALL.len()]> {
        let mut all = vec![[0; JobEnd::ALL.len()]; KEPT];
        for minute in &self.kept {
            let age = usize::try_from(self.now - minute.number).unwrap_or(KEPT);
            if let Some(place) = (KEPT - 1).checked_sub(age) {
                all[place] = minute.ended;
            }
        }
        all
    }

    /// The times of one step over all minutes.
    pub fn times(&self, step: impl Fn(&Minute) -> &Times) -> Times {
        let mut all = Times::default();
        self.kept.iter().for_each(|minute| all.add(step(minute)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(1_800_000_000 + seconds).unwrap()
    }

    #[test]
    fn an_hour_is_kept_and_the_gaps_are_zeros() {
        let mut minutes = Minutes::default();
        for minute in 0..200 {
            minutes.at(moment(minute * 60)).count(JobEnd::Completed);
        }
        assert_eq!(minutes.kept.len(), KEPT);
        minutes.at(moment(205 * 60)).count(JobEnd::Failed);
        let ends = minutes.ends();
        assert_eq!(ends.len(), KEPT);
        assert_eq!((ends[59][1], ends[58][0], ends[54][0], ends[53][0]), (1, 0, 0, 1));
        minutes.at(moment(100_000));
        assert!(minutes.ends().iter().flatten().all(|n| *n == 0));
    }

    #[test]
    fn a_clock_that_is_set_back_counts_into_the_newest_minute() {
        let mut minutes = Minutes::default();
        minutes.at(moment(6_000)).count(JobEnd::Completed);
        minutes.at(moment(0)).count(JobEnd::Completed);
        assert_eq!(minutes.ends()[59][0], 2);
    }

    #[test]
    fn quantiles_are_right_to_a_fifth() {
        let mut times = Times::default();
        assert_eq!(times.quantile(0.5), None);
        for millis in 1..=1000 {
            times.record(Duration::from_millis(millis));
        }
        for (share, right) in [(0.5, 0.5), (0.99, 0.99), (0.0, 0.001), (1.0, 1.0)] {
            let found = times.quantile(share).unwrap();
            assert!((found / right - 1.0).abs() < 0.19, "{share}: {found}");
        }
        for extreme in [Duration::ZERO, Duration::MAX] {
            times.record(extreme);
        }
    }
}
