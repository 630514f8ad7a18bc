//! Pure: sums up ended jobs and periods of availability by hours, days or months of UTC.
//!
//! A job counts in the row in which it ended, with all its runs. Periods are divided where a row ends. Time before the first
//! recorded period and after `now` belongs to nothing.

use std::collections::BTreeMap;

use chrono::{DateTime, Datelike as _, Months, NaiveDate};

use crate::cli::record_window::RecordWindow;
use crate::state::db::{AvailabilityPeriod, EndedJob};

/// What a row stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Unit {
    Hour,
    Day,
    Month,
    /// One row for everything
    Total,
}

const HOUR_MS: i64 = 3_600_000;

impl Unit {
    /// The form of a row's begin for people.
    pub fn form(self) -> &'static str {
        match self {
            Unit::Hour | Unit::Total => "%Y-%m-%d %H:%M",
            Unit::Day => "%Y-%m-%d",
            Unit::Month => "%Y-%m",
        }
    }

    /// The begin of the row with this moment, and of the next one.
    fn bounds(self, at: i64, window: RecordWindow) -> (i64, i64) {
        let whole = |length: i64| {
            let begin = at.div_euclid(length) * length;
            (begin, begin + length)
        };
        match self {
            Unit::Hour => whole(HOUR_MS),
            Unit::Day => whole(24 * HOUR_MS),
            Unit::Month => month(at).unwrap_or((window.since, window.until)),
            Unit::Total => (window.since, window.until),
        }
    }
}

fn month(at: i64) -> Option<(i64, i64)> {
    let day = DateTime::from_timestamp_millis(at)?.date_naive();
    let first = NaiveDate::from_ymd_opt(day.year(), day.month(), 1)?;
    let midnight = |day: NaiveDate| Some(day.and_hms_opt(0, 0, 0)?.and_utc().timestamp_millis());
    Some((midnight(first)?, midnight(first.checked_add_months(Months::new(1))?)?))
}

/// The sums of one row. Times are in milliseconds, those of runs in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageRow {
    pub from: i64,
    pub until: i64,
    pub completed: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub unanswerable: u64,
    /// Of the jobs that were completed.
    pub shots: u64,
    pub runs: u64,
    pub run_us: u64,
    /// In which runs could begin, times the slots.
    pub available_ms: u64,
    /// In which the host was up and could not begin a run, by reason.
    pub held: BTreeMap<String, u64>,
    /// In which the host was not up.
    pub stopped_ms: u64,
    /// Failed jobs by reason.
    pub failures: BTreeMap<String, u64>,
}

impl UsageRow {
    pub fn jobs(&self) -> u64 {
        self.completed + self.failed + self.cancelled + self.unanswerable
    }

    pub fn run_seconds(&self) -> f64 {
        self.run_us as f64 / 1e6
    }

    pub fn available_seconds(&self) -> f64 {
        self.available_ms as f64 / 1e3
    }

    pub fn held_seconds(&self) -> f64 {
        self.held.values().sum::<u64>() as f64 / 1e3
    }

    pub fn stopped_seconds(&self) -> f64 {
        self.stopped_ms as f64 / 1e3
    }

    /// The share of the available time in which the plugin had jobs. What began before a pause is finished in it, so that
    /// it can be more than 1.
    pub fn utilisation(&self) -> Option<f64> {
        (self.available_ms > 0).then(|| self.run_seconds() / self.available_seconds())
    }
}

/// Rows that are being summed up.
#[derive(Debug)]
pub struct Report {
    unit: Unit,
    window: RecordWindow,
    rows: BTreeMap<i64, UsageRow>,
}

impl Report {
    /// A report over this window, from the begin of its first row on.
    pub fn new(unit: Unit, asked: RecordWindow) -> Report {
        let since = unit.bounds(asked.since, asked).0;
        Report { unit, window: RecordWindow { since, ..asked }, rows: BTreeMap::new() }
    }

    pub fn window(&self) -> RecordWindow {
        self.window
    }

    fn row(&mut self, at: i64) -> &mut UsageRow {
        let (from, until) = self.unit.bounds(at, self.window);
        self.rows.entry(from).or_insert_with(|| UsageRow {
            from,
            until: until.min(self.window.until),
            ..UsageRow::default()
        })
    }

    /// Adds a job that ended in the window.
    pub fn add_job(&mut self, job: &EndedJob) {
        let row = self.row(job.at);
        row.runs += u64::from(job.facts.runs);
        row.run_us += job.facts.run_us;
        match job.outcome.as_str() {
            "completed" => {
                row.completed += 1;
                row.shots += u64::from(job.facts.shots.unwrap_or(0));
            }
            "failed" => {
                row.failed += 1;
                let reason = job.facts.reason.as_deref().unwrap_or("unknown");
                *row.failures.entry(reason.to_string()).or_default() += 1;
            }
            "cancelled" => row.cancelled += 1,
            _ => row.unanswerable += 1,
        }
    }

    /// Adds the recorded periods, in their order, and the time between them.
    pub fn add_availability(
        &mut self,
        periods: &[AvailabilityPeriod],
        recorded_since: Option<i64>,
        now: i64,
    ) {
        let Some(first) = recorded_since else { return };
        let mut told = self.window.since.max(first);
        let end = self.window.until.min(now);
        for period in periods {
            // What two periods share, after the clock was set back, counts once.
            let (since, until) = (period.since.max(told), period.until.min(end));
            if since >= until {
                continue;
            }
            self.spread(told, since, |row, ms| row.stopped_ms += ms);
            match &period.hold {
                None => {
                    let slots = u64::from(period.slots);
                    self.spread(since, until, |row, ms| row.available_ms += ms * slots);
                }
                Some(why) => {
                    self.spread(since, until, |row, ms| *row.held.entry(why.clone()).or_default() += ms)
                }
            }
            told = until;
        }
        self.spread(told, end, |row, ms| row.stopped_ms += ms);
    }

    /// Divides a time among the rows that it touches.
    fn spread(&mut self, mut since: i64, until: i64, add: impl Fn(&mut UsageRow, u64)) {
        while since < until {
            let end = self.unit.bounds(since, self.window).1.min(until);
            if end <= since {
                return;
            }
            add(self.row(since), (end - since).unsigned_abs());
            since = end;
        }
    }

    /// The rows with something in them, the earliest first.
    pub fn rows(self) -> Vec<UsageRow> {
        self.rows.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::db::JobFacts;

    const DAY: i64 = 24 * HOUR_MS;
    /// Midnight of 2026-11-30.
    const MONDAY: i64 = 1_795_996_800_000;

    fn job(at: i64, outcome: &str, run_us: u64) -> EndedJob {
        EndedJob {
            qpu_id: "q".into(),
            message_id: "1-0".into(),
            job_id: "J".into(),
            at,
            outcome: outcome.into(),
            delivery: "delivered".into(),
            facts: JobFacts {
                shots: Some(100),
                run_us,
                runs: 1,
                reason: (outcome == "failed").then(|| "hardware".into()),
                ..JobFacts::default()
            },
            error: None,
        }
    }

    fn period(since: i64, until: i64, slots: u32, hold: Option<&str>) -> AvailabilityPeriod {
        AvailabilityPeriod { since, until, slots, hold: hold.map(String::from), note: None }
    }

    #[test]
    fn jobs_and_times_fall_into_their_days() {
        let asked = RecordWindow { since: MONDAY + HOUR_MS, until: MONDAY + 2 * DAY };
        let mut report = Report::new(Unit::Day, asked);
        assert_eq!(report.window().since, MONDAY, "the first day is whole");
        report.add_job(&job(MONDAY + DAY - 1, "completed", 2_000_000));
        report.add_job(&job(MONDAY + DAY, "completed", 1_000_000));
        report.add_job(&job(MONDAY + DAY, "failed", 500_000));
        report.add_job(&job(MONDAY + DAY, "cancelled", 0));
        report.add_job(&job(MONDAY + DAY, "unanswerable", 0));
        let hour = HOUR_MS;
        let periods = [
            period(MONDAY + 10 * hour, MONDAY + 20 * hour, 2, None),
            period(MONDAY + 20 * hour, MONDAY + 25 * hour, 2, Some("paused")),
            // The host was stopped for an hour; then the clock was set back.
            period(MONDAY + 26 * hour, MONDAY + 28 * hour, 1, None),
            period(MONDAY + 27 * hour, MONDAY + 29 * hour, 1, None),
        ];
        report.add_availability(&periods, Some(MONDAY + 10 * hour), MONDAY + 30 * hour);
        let rows = report.rows();
        assert_eq!(
            rows.iter().map(|row| (row.from, row.until)).collect::<Vec<_>>(),
            [(MONDAY, MONDAY + DAY), (MONDAY + DAY, MONDAY + 2 * DAY)]
        );
        let (first, second) = (&rows[0], &rows[1]);
        assert_eq!((first.jobs(), first.shots, first.run_seconds()), (1, 100, 2.0));
        assert_eq!((first.available_seconds(), first.held_seconds()), (72_000.0, 14_400.0));
        assert_eq!(first.stopped_ms, 0, "nothing is known of the time before the first period");
        assert_eq!(first.utilisation(), Some(2.0 / 72_000.0));
        assert_eq!((second.completed, second.failed, second.cancelled, second.unanswerable), (1, 1, 1, 1));
        assert_eq!(second.failures, BTreeMap::from([("hardware".to_string(), 1)]));
        assert_eq!((second.held_seconds(), second.available_seconds()), (3600.0, 10_800.0));
        assert_eq!(second.stopped_seconds(), 7200.0, "between two periods, and up to now");
    }

    #[test]
    fn months_hours_and_the_whole_have_their_bounds() {
        let window = RecordWindow { since: MONDAY + 5, until: MONDAY + 40 * DAY };
        let count = |unit| {
            let mut report = Report::new(unit, window);
            report.add_job(&job(MONDAY + 6, "completed", 1));
            report.add_job(&job(MONDAY + DAY, "completed", 1));
            let rows = report.rows();
            rows.iter().map(|row| (row.from, row.jobs())).collect::<Vec<_>>()
        };
        assert_eq!(count(Unit::Month), [(MONDAY - 29 * DAY, 1), (MONDAY + DAY, 1)]);
        assert_eq!(count(Unit::Hour), [(MONDAY, 1), (MONDAY + DAY, 1)]);
        assert_eq!(count(Unit::Total), [(MONDAY + 5, 2)]);
        let empty = Report::new(Unit::Day, window);
        assert!(empty.rows().is_empty());
    }
}
