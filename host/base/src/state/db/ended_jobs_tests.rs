//! The record of ended jobs on real files.

use bytes::Bytes;

use super::*;
use crate::state::db::writer::now_ms;
use crate::state::db::{DeadLetter, Status, Store};

fn open(dir: &tempfile::TempDir, limits: HistoryLimits) -> Store {
    Database::open(dir.path()).unwrap().with_limits(limits).start("q").unwrap().0
}

fn result(n: u64, status: Status, run_us: u64) -> ResultRow {
    ResultRow {
        message_id: MessageId { ms: n, seq: 0 },
        job_id: format!("job-{n}").into(),
        callback_url: "http://127.0.0.1/cb".into(),
        status,
        error: (status == Status::Failed).then(|| "x".repeat(1000)),
        finished_at: "2026-01-01T00:00:00+00:00".into(),
        replaces: None,
        facts: JobFacts { run_us, runs: 1, shots: Some(10), ..JobFacts::default() },
        body: Bytes::from_static(b"{}"),
    }
}

const EVERYTHING: JobFilter =
    JobFilter { since: 0, until: i64::MAX, outcome: None, delivery: None, last: None };

/// Job, outcome, delivery and run time of each row, in the order of the messages.
fn rows(dir: &tempfile::TempDir, filter: &JobFilter) -> Vec<(String, String, String, u64)> {
    let mut rows = Vec::new();
    let database = Database::open(dir.path()).unwrap();
    database
        .ended_jobs(filter, |job| rows.push((job.job_id, job.outcome, job.delivery, job.facts.run_us)))
        .unwrap();
    rows.sort();
    rows
}

fn row(job: &str, outcome: &str, delivery: &str, run_us: u64) -> (String, String, String, u64) {
    (job.into(), outcome.into(), delivery.into(), run_us)
}

#[tokio::test]
async fn each_end_is_one_row_however_often_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, HistoryLimits::default());
    let id = |n| MessageId { ms: n, seq: 0 };
    for n in 1..=4 {
        store.insert(result(n, Status::Completed, n)).await.unwrap();
    }
    // Run again after a crash: the last run counts.
    store.insert(result(1, Status::Failed, 7)).await.unwrap();
    store.record_delivered(id(1)).await.unwrap();
    store.record_refused(id(2), "HTTP 404".into()).await.unwrap();
    store.discard(id(3)).await.unwrap();
    store.record_cancelled(id(3), "job-3".into(), JobFacts::default()).await.unwrap();
    // Cancelled in the plugin, whose answer comes later or first.
    let ran = JobFacts { run_us: 50, runs: 1, ..JobFacts::default() };
    store.record_cancelled(id(5), "job-5".into(), JobFacts::default()).await.unwrap();
    store.record_cancelled(id(5), "job-5".into(), ran.clone()).await.unwrap();
    store.record_cancelled(id(6), "job-6".into(), ran.clone()).await.unwrap();
    store.record_cancelled(id(6), "job-6".into(), JobFacts::default()).await.unwrap();
    // What has ended with a result is not made a cancelled one, nor one that can't be answered.
    store.record_cancelled(id(1), "job-1".into(), ran).await.unwrap();
    for n in [1, 7] {
        let letter = DeadLetter { message_id: id(n), reason: "no callback".into(), fields: "{}".into() };
        store.store_dead_letter(letter).await.unwrap();
    }
    store.close();
    let all = [
        row("", "unanswerable", "none", 0),
        row("job-1", "failed", "delivered", 7),
        row("job-2", "completed", "refused", 2),
        row("job-3", "cancelled", "none", 3),
        row("job-4", "completed", "pending", 4),
        row("job-5", "cancelled", "none", 50),
        row("job-6", "cancelled", "none", 50),
    ];
    assert_eq!(rows(&dir, &EVERYTHING), all);
    let failed = JobFilter { outcome: Some(RecordedOutcome::Failed), ..EVERYTHING };
    assert_eq!(rows(&dir, &failed), [row("job-1", "failed", "delivered", 7)]);
    let refused = JobFilter { delivery: Some(Delivery::Refused), ..EVERYTHING };
    assert_eq!(rows(&dir, &refused), [row("job-2", "completed", "refused", 2)]);
    assert_eq!(rows(&dir, &JobFilter { last: Some(2), ..EVERYTHING }).len(), 2);
    assert_eq!(rows(&dir, &JobFilter { until: 1, ..EVERYTHING }), []);

    let mut database = Database::open(dir.path()).unwrap();
    for kept in database.list().unwrap().iter().filter(|kept| kept.job_id == "job-2") {
        database.end(kept, Delivery::Dropped).unwrap();
    }
    assert_eq!(rows(&dir, &JobFilter { delivery: Some(Delivery::Dropped), ..EVERYTHING }).len(), 1);
    let mut texts = Vec::new();
    database.ended_jobs(&failed, |job| texts.extend(job.error)).unwrap();
    assert_eq!(texts, ["x".repeat(MAX_ERROR)], "texts are cut");
}

#[tokio::test]
async fn the_record_stays_within_its_limits_and_the_last_rows_stay() {
    let dir = tempfile::tempdir().unwrap();
    let limits = HistoryLimits { max_rows: 3, ..HistoryLimits::default() };
    let store = open(&dir, limits);
    for n in 1..=8 {
        store.insert(result(n, Status::Completed, 0)).await.unwrap();
        store.record_availability(AvailabilityPeriod {
            since: now_ms() + n as i64,
            until: now_ms() + n as i64,
            slots: 1,
            hold: None,
            note: None,
        });
    }
    store.close();
    let left = rows(&dir, &EVERYTHING);
    assert_eq!(left.iter().map(|row| row.0.as_str()).collect::<Vec<_>>(), ["job-6", "job-7", "job-8"]);

    let database = Database::open(dir.path()).unwrap();
    prune(&database.conn, now_ms() + 29 * DAY_MS, limits).unwrap();
    assert_eq!(rows(&dir, &EVERYTHING).len(), 3);
    assert!(database.recorded_since().unwrap().is_some());
    prune(&database.conn, now_ms() + 31 * DAY_MS, limits).unwrap();
    assert_eq!(rows(&dir, &EVERYTHING), []);
    assert_eq!(database.recorded_since().unwrap(), None);
    assert_eq!(database.list().unwrap().len(), 8, "results are not touched");
}

#[tokio::test]
async fn a_file_of_an_earlier_version_gets_the_record_and_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, HistoryLimits::default());
    for n in [1, 2] {
        store.insert(result(n, Status::Completed, 5)).await.unwrap();
    }
    store.close();
    let earlier = Database::open(dir.path()).unwrap();
    earlier.conn.execute_batch("DROP TABLE ended_jobs; DROP TABLE availability").unwrap();
    drop(earlier);

    let store = open(&dir, HistoryLimits::default());
    store.record_delivered(MessageId { ms: 1, seq: 0 }).await.unwrap();
    store.discard(MessageId { ms: 2, seq: 0 }).await.unwrap();
    store.insert(result(3, Status::Completed, 5)).await.unwrap();
    store.close();
    assert_eq!(rows(&dir, &EVERYTHING), [row("job-3", "completed", "pending", 5)]);
}

#[tokio::test]
async fn a_period_is_one_row_that_grows() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, HistoryLimits { days: 1000, ..HistoryLimits::default() });
    let now = now_ms();
    let period = |since: i64, until: i64, hold: Option<&str>| AvailabilityPeriod {
        since: now + since,
        until: now + until,
        slots: 2,
        hold: hold.map(String::from),
        note: None,
    };
    for written in [
        period(0, 0, None),
        period(0, 60, None),
        period(60, 60, Some("paused")),
        period(60, 90, Some("paused")),
    ] {
        store.record_availability(written);
    }
    store.close();
    let database = Database::open(dir.path()).unwrap();
    let both = [period(0, 60, None), period(60, 90, Some("paused"))];
    assert_eq!(database.availability(now, now + 100).unwrap(), both);
    assert_eq!(database.availability(now + 60, now + 70).unwrap(), both[1..]);
    assert_eq!(database.recorded_since().unwrap(), Some(now));
}
