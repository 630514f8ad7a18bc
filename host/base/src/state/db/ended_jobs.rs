//! The record of how jobs ended and of when the device was available: what `coda-host history` and `coda-host usage` tell.
//!
//! One row for each message that ended, by its id, so that a job counts once however often its end is written. The row is
//! written in the transaction that stores the result, drops it or keeps the message; only a cancelled job without a result
//! has a transaction for it. No circuit and no counts are kept, and texts are cut. Rows go by number and age, within the
//! [`HistoryLimits`]; what the `history` table keeps against a second run of a job is not touched by them.

use rusqlite::{Connection, Row, params};

use super::rows::{AvailabilityPeriod, Delivery, EndedJob, JobFacts, RecordedOutcome, ResultRow};
use super::writer::read_failed;
use super::{Database, StoreError};
use crate::model::{JobId, MessageId, cut};

/// Created in the files of earlier versions too. Such a version ignores them, so that the schema's version stays.
pub(super) const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS ended_jobs (
        qpu_id TEXT NOT NULL,
        message_id TEXT NOT NULL,
        job_id TEXT NOT NULL,
        at INTEGER NOT NULL,
        outcome TEXT NOT NULL,
        delivery TEXT NOT NULL,
        qubits INTEGER,
        gates INTEGER,
        shots INTEGER,
        waited_ms INTEGER,
        run_us INTEGER NOT NULL,
        runs INTEGER NOT NULL,
        reason TEXT,
        error TEXT,
        PRIMARY KEY (qpu_id, message_id)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS ended_jobs_age ON ended_jobs (at, message_id);
    CREATE TABLE IF NOT EXISTS availability (
        qpu_id TEXT NOT NULL,
        since INTEGER NOT NULL,
        until INTEGER NOT NULL,
        slots INTEGER NOT NULL,
        hold TEXT,
        note TEXT,
        PRIMARY KEY (qpu_id, since)
    ) WITHOUT ROWID;
";

/// Longest error that is kept, in bytes.
const MAX_ERROR: usize = 300;
const DAY_MS: i64 = 86_400_000;

/// How much of the record is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryLimits {
    pub max_rows: u64,
    pub days: u64,
}

impl Default for HistoryLimits {
    fn default() -> HistoryLimits {
        HistoryLimits { max_rows: 1_000_000, days: 30 }
    }
}

impl HistoryLimits {
    /// Rows that are added before old ones are looked for: one in a hundred.
    pub(super) fn prune_after(self) -> u64 {
        (self.max_rows / 100).clamp(1, 10_000)
    }
}

/// Which jobs are asked for: those that ended from `since` on and before `until`, in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub struct JobFilter {
    pub since: i64,
    pub until: i64,
    pub outcome: Option<RecordedOutcome>,
    pub delivery: Option<Delivery>,
    /// Only the last so many.
    pub last: Option<u64>,
}

struct NewRow<'a> {
    message_id: MessageId,
    job_id: &'a str,
    outcome: RecordedOutcome,
    delivery: Delivery,
    facts: &'a JobFacts,
    error: Option<&'a str>,
}

fn insert(
    tx: &Connection,
    qpu: &str,
    now_ms: i64,
    row: &NewRow<'_>,
    on_conflict: &str,
) -> rusqlite::Result<usize> {
    let facts = row.facts;
    let sql = format!(
        "INSERT INTO ended_jobs (qpu_id, message_id, job_id, at, outcome, delivery, qubits, gates, shots, waited_ms,
             run_us, runs, reason, error) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
         ON CONFLICT (qpu_id, message_id) DO {on_conflict}"
    );
    tx.prepare_cached(&sql)?.execute(params![
        qpu,
        row.message_id.to_string(),
        row.job_id,
        now_ms,
        row.outcome.name(),
        row.delivery.name(),
        facts.qubits,
        facts.gates,
        facts.shots,
        facts.waited_ms.map(as_i64),
        as_i64(facts.run_us),
        facts.runs,
        facts.reason,
        row.error.map(|error| cut(error, MAX_ERROR).to_string()),
    ])
}

/// A job whose result is stored. A row that is there is of an end that was lost before it was decided.
pub(super) fn stored(tx: &Connection, qpu: &str, now_ms: i64, result: &ResultRow) -> rusqlite::Result<usize> {
    let row = NewRow {
        message_id: result.message_id,
        job_id: &result.job_id,
        outcome: RecordedOutcome::from_status(result.status),
        delivery: Delivery::Pending,
        facts: &result.facts,
        error: result.error.as_deref(),
    };
    const REPLACE: &str = "UPDATE SET job_id = excluded.job_id, at = excluded.at, outcome = excluded.outcome,
        delivery = excluded.delivery, qubits = excluded.qubits, gates = excluded.gates, shots = excluded.shots,
        waited_ms = excluded.waited_ms, run_us = excluded.run_us, runs = excluded.runs, reason = excluded.reason,
        error = excluded.error";
    insert(tx, qpu, now_ms, &row, REPLACE)
}

/// A cancelled job; its run may end later, and is added then.
pub(super) fn cancelled(
    tx: &Connection,
    qpu: &str,
    now_ms: i64,
    message_id: MessageId,
    job_id: &JobId,
    facts: &JobFacts,
) -> rusqlite::Result<usize> {
    let (outcome, delivery) = (RecordedOutcome::Cancelled, Delivery::None);
    let row = NewRow { message_id, job_id, outcome, delivery, facts, error: None };
    const ADD_RUN: &str = "UPDATE SET run_us = max(run_us, excluded.run_us), runs = max(runs, excluded.runs)
        WHERE outcome = 'cancelled'";
    insert(tx, qpu, now_ms, &row, ADD_RUN)
}

/// A message that can't be answered. One whose job is on record has ended before.
pub(super) fn unanswerable(
    tx: &Connection,
    qpu: &str,
    now_ms: i64,
    message_id: MessageId,
    error: &str,
) -> rusqlite::Result<usize> {
    let (outcome, delivery) = (RecordedOutcome::Unanswerable, Delivery::None);
    let facts = &JobFacts::default();
    let row = NewRow { message_id, job_id: "", outcome, delivery, facts, error: Some(error) };
    insert(tx, qpu, now_ms, &row, "NOTHING")
}

/// The stored result of a job was dropped because the job is cancelled.
pub(super) fn discarded(tx: &Connection, qpu: &str, id: MessageId) -> rusqlite::Result<usize> {
    tx.prepare_cached(
        "UPDATE ended_jobs SET outcome = 'cancelled', delivery = 'none', reason = NULL, error = NULL
         WHERE qpu_id = ?1 AND message_id = ?2",
    )?
    .execute(params![qpu, id.to_string()])
}

/// What became of a result.
pub(super) fn set_delivery(
    tx: &Connection,
    qpu: &str,
    id: MessageId,
    delivery: Delivery,
) -> rusqlite::Result<usize> {
    tx.prepare_cached("UPDATE ended_jobs SET delivery = ?3 WHERE qpu_id = ?1 AND message_id = ?2")?
        .execute(params![qpu, id.to_string(), delivery.name()])
}

/// A period as far as it has come.
pub(super) fn period(tx: &Connection, qpu: &str, period: &AvailabilityPeriod) -> rusqlite::Result<usize> {
    let AvailabilityPeriod { since, until, slots, hold, note } = period;
    tx.prepare_cached(
        "INSERT INTO availability (qpu_id, since, until, slots, hold, note) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (qpu_id, since) DO UPDATE SET until = excluded.until",
    )?
    .execute(params![qpu, since, until, slots, hold, note])
}

/// Removes what is too old or too much. The last rows stay, also of those that ended in one millisecond.
pub(super) fn prune(conn: &Connection, now_ms: i64, limits: HistoryLimits) -> rusqlite::Result<()> {
    let old = now_ms.saturating_sub(as_i64(limits.days).saturating_mul(DAY_MS));
    let most = as_i64(limits.max_rows);
    conn.execute("DELETE FROM ended_jobs WHERE at < ?1", [old])?;
    conn.execute(
        "DELETE FROM ended_jobs WHERE (at, message_id) <= (
             SELECT at, message_id FROM ended_jobs ORDER BY at DESC, message_id DESC LIMIT 1 OFFSET ?1)",
        [most],
    )?;
    conn.execute("DELETE FROM availability WHERE until < ?1", [old])?;
    conn.execute(
        "DELETE FROM availability WHERE since <= (
             SELECT since FROM availability ORDER BY since DESC LIMIT 1 OFFSET ?1)",
        [most],
    )?;
    Ok(())
}

impl Database {
    /// Gives each job that the filter names to `each`, in the order in which they ended.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn ended_jobs(&self, filter: &JobFilter, mut each: impl FnMut(EndedJob)) -> Result<(), StoreError> {
        const COLUMNS: &str =
            "qpu_id, message_id, job_id, at, outcome, delivery, qubits, gates, shots, waited_ms,
            run_us, runs, reason, error";
        let sql = format!(
            "SELECT * FROM (
                 SELECT {COLUMNS} FROM ended_jobs
                 WHERE at >= ?1 AND at < ?2 AND (?3 IS NULL OR outcome = ?3) AND (?4 IS NULL OR delivery = ?4)
                 ORDER BY at DESC, message_id DESC LIMIT ?5)
             ORDER BY at, message_id"
        );
        let last = filter.last.map_or(-1, as_i64);
        let (outcome, delivery) =
            (filter.outcome.map(RecordedOutcome::name), filter.delivery.map(Delivery::name));
        let mut read = || {
            let mut query = self.conn.prepare(&sql)?;
            let mut rows = query.query(params![filter.since, filter.until, outcome, delivery, last])?;
            while let Some(row) = rows.next()? {
                each(ended_job(row)?);
            }
            Ok(())
        };
        read().map_err(read_failed)
    }

    /// The recorded periods that overlap the time from `since` to `until`, in milliseconds since 1970.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn availability(&self, since: i64, until: i64) -> Result<Vec<AvailabilityPeriod>, StoreError> {
        let read = || {
            let mut query = self.conn.prepare(
                "SELECT since, until, slots, hold, note FROM availability WHERE until > ?1 AND since < ?2
                 ORDER BY since",
            )?;
            let period = |r: &Row<'_>| {
                Ok(AvailabilityPeriod {
                    since: r.get(0)?,
                    until: r.get(1)?,
                    slots: r.get(2)?,
                    hold: r.get(3)?,
                    note: r.get(4)?,
                })
            };
            query.query_map([since, until], period)?.collect::<rusqlite::Result<Vec<_>>>()
        };
        read().map_err(read_failed)
    }

    /// Since when availability is recorded at all.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn recorded_since(&self) -> Result<Option<i64>, StoreError> {
        self.conn.query_row("SELECT min(since) FROM availability", [], |r| r.get(0)).map_err(read_failed)
    }
}

fn ended_job(r: &Row<'_>) -> rusqlite::Result<EndedJob> {
    Ok(EndedJob {
        qpu_id: r.get(0)?,
        message_id: r.get(1)?,
        job_id: r.get::<_, String>(2)?,
        at: r.get(3)?,
        outcome: r.get(4)?,
        delivery: r.get(5)?,
        facts: JobFacts {
            qubits: r.get(6)?,
            gates: r.get(7)?,
            shots: r.get(8)?,
            waited_ms: r.get::<_, Option<i64>>(9)?.map(i64::unsigned_abs),
            run_us: r.get::<_, i64>(10)?.unsigned_abs(),
            runs: r.get(11)?,
            reason: r.get::<_, Option<String>>(12)?.map(Into::into),
        },
        error: r.get(13)?,
    })
}

fn as_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "ended_jobs_tests.rs"]
mod tests;
