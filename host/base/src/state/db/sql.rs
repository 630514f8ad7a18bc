//! The schema and every statement of the database.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::ended_jobs;
use super::rows::{
    AvailabilityPeriod, DeadLetter, Delivery, HistoryEntry, JobFacts, Phase, ResultRow, Status,
    StoreContents, StoredRow,
};
use crate::model::{JobId, MessageId};
use crate::state::sqlite_actor::Schema;

pub(super) const SCHEMA_VERSION: i64 = SCHEMA.version();

pub(super) const SCHEMA: Schema = Schema { sql: TABLES, upgrades: &[], cache_kib: None };

/// Messages of history that are read at the start, for the page.
const RECENT: i64 = 100;

const TABLES: &str = "
    CREATE TABLE results (
        qpu_id TEXT NOT NULL,
        message_id TEXT NOT NULL,
        job_id TEXT NOT NULL,
        callback_url TEXT NOT NULL,
        status TEXT NOT NULL,
        error TEXT,
        finished_at TEXT NOT NULL,
        body BLOB NOT NULL,
        phase TEXT NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        last_error TEXT,
        replaces TEXT,
        PRIMARY KEY (qpu_id, message_id)
    ) WITHOUT ROWID;
    CREATE TABLE history (
        qpu_id TEXT NOT NULL,
        message_id TEXT NOT NULL,
        job_id TEXT NOT NULL,
        status TEXT NOT NULL,
        error TEXT,
        finished_at TEXT NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (qpu_id, message_id)
    ) WITHOUT ROWID;
    CREATE INDEX history_age ON history (at);
    CREATE TABLE dead_letters (
        qpu_id TEXT NOT NULL,
        message_id TEXT NOT NULL,
        reason TEXT NOT NULL,
        fields TEXT NOT NULL,
        at INTEGER NOT NULL,
        PRIMARY KEY (qpu_id, message_id)
    ) WITHOUT ROWID;
    CREATE TABLE deaths (
        message_id TEXT PRIMARY KEY,
        count INTEGER NOT NULL
    ) WITHOUT ROWID;
";

/// Adds the tables and columns that an earlier coda-host did not have. An earlier one ignores them, so that the schema's
/// version stays.
pub(super) fn add_missing(conn: &Connection) -> rusqlite::Result<()> {
    let mut columns = conn.prepare("SELECT name FROM pragma_table_info('results')")?;
    let columns: Vec<String> = columns.query_map([], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
    if !columns.is_empty() && !columns.iter().any(|name| name == "replaces") {
        conn.execute_batch("ALTER TABLE results ADD COLUMN replaces TEXT")?;
    }
    conn.execute_batch(ended_jobs::TABLES)
}

pub(super) fn read_all(conn: &Connection, qpu_id: &str) -> rusqlite::Result<StoreContents> {
    let mut query = conn.prepare(
        "SELECT message_id, job_id, callback_url, status, error, finished_at, x'', replaces, phase, attempts,
                last_error, length(body) FROM results WHERE qpu_id = ?1",
    )?;
    // Receivers are few: their URLs are kept once.
    let mut callbacks: HashSet<Arc<str>> = HashSet::new();
    let mut rows = query.query([qpu_id])?;
    let mut found = Vec::new();
    while let Some(r) = rows.next()? {
        let id: String = r.get(0)?;
        // A damaged row must not keep the host from delivering the others.
        match stored_row(r, &id) {
            // No result has an empty body. The message is pending: its job runs again, and its row is replaced.
            Ok(stored) if stored.body_bytes == 0 => {
                let job_id = &*stored.row.job_id;
                tracing::error!(message_id = id, job_id, "a stored result has lost its body; it is not sent");
            }
            Ok(mut stored) => {
                let url = &mut stored.row.callback_url;
                match callbacks.get(&**url) {
                    Some(known) => *url = known.clone(),
                    None => drop(callbacks.insert(url.clone())),
                }
                found.push(stored);
            }
            Err(error) => {
                tracing::error!(message_id = id, %error, "a stored result can't be read; it is left where it is");
            }
        }
    }
    found.sort_by_key(|r| r.row.message_id);
    let mut deaths = conn.prepare("SELECT message_id, count FROM deaths")?;
    let mut rows = deaths.query([])?;
    let mut deaths = Vec::new();
    while let Some(r) = rows.next()? {
        let (id, count): (String, u32) = (r.get(0)?, r.get(1)?);
        match id.parse() {
            Ok(id) => deaths.push((id, count)),
            Err(_) => tracing::error!(message_id = id, "a count of deaths has no message id; it is not used"),
        }
    }
    let count = |sql: &str| conn.query_row(sql, [qpu_id], |r| r.get::<_, i64>(0)).map(|n| n.unsigned_abs());
    let mut recent = conn.prepare(
        "SELECT job_id, status, error, finished_at FROM history WHERE qpu_id = ?1 ORDER BY at DESC LIMIT ?2",
    )?;
    let entry = |r: &rusqlite::Row<'_>| {
        Ok(HistoryEntry {
            job_id: r.get::<_, String>(0)?.into(),
            status: status(r, 1)?,
            error: r.get(2)?,
            finished_at: r.get(3)?,
        })
    };
    // It is only shown, so a damaged row is passed over.
    let recent = recent.query_map(params![qpu_id, RECENT], entry)?.filter_map(Result::ok).collect();
    Ok(StoreContents {
        rows: found,
        deaths,
        recent,
        foreign: count("SELECT count(*) FROM results WHERE qpu_id <> ?1")?,
        dead_letters: count("SELECT count(*) FROM dead_letters WHERE qpu_id = ?1")?,
    })
}

fn stored_row(r: &rusqlite::Row<'_>, id: &str) -> rusqlite::Result<StoredRow> {
    let id = id.parse().map_err(|_| unknown(0, "message id", id))?;
    let body_bytes = usize::try_from(r.get::<_, i64>(11)?).unwrap_or(0);
    Ok(StoredRow {
        row: result_row(r, id)?,
        body_bytes,
        phase: phase(r, 8)?,
        attempts: r.get(9)?,
        last_error: r.get(10)?,
    })
}

/// The phase in a column.
pub(super) fn phase(r: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Phase> {
    let name: String = r.get(column)?;
    Phase::from_name(&name).ok_or_else(|| unknown(column, "phase", &name))
}

/// The status in a column.
pub(super) fn status(r: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Status> {
    let name: String = r.get(column)?;
    Status::from_name(&name).ok_or_else(|| unknown(column, "status", &name))
}

/// The error of a value that is none of those that are written.
fn unknown(column: usize, what: &str, value: &str) -> rusqlite::Error {
    let error = format!("'{value}' is not a {what}");
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error.into())
}

/// Columns 1 to 7 of a `results` row.
pub(super) fn result_row(r: &rusqlite::Row<'_>, message_id: MessageId) -> rusqlite::Result<ResultRow> {
    Ok(ResultRow {
        message_id,
        job_id: r.get::<_, String>(1)?.into(),
        callback_url: r.get::<_, String>(2)?.into(),
        status: status(r, 3)?,
        error: r.get(4)?,
        finished_at: r.get(5)?,
        body: r.get::<_, Vec<u8>>(6)?.into(),
        replaces: r.get::<_, Option<String>>(7)?.and_then(|id| id.parse().ok()),
        facts: JobFacts::default(),
    })
}

pub(super) enum Op {
    Insert(ResultRow),
    Announce(MessageId),
    Discard(MessageId),
    Refuse(MessageId, String),
    Delivered(MessageId),
    Attempt(MessageId, u32, String),
    DeadLetter(DeadLetter),
    Death(MessageId),
    ClearDeaths(MessageId),
    /// A cancelled job without a result.
    Cancelled(MessageId, JobId, JobFacts),
    Availability(AvailabilityPeriod),
}

impl Op {
    /// Whether it adds to the record of ended jobs.
    pub(super) fn ends_a_job(&self) -> bool {
        matches!(self, Op::Insert(_) | Op::DeadLetter(_) | Op::Cancelled(..) | Op::Availability(_))
    }
}

/// `now_ms` is in milliseconds since 1970.
pub(super) fn apply(tx: &Connection, qpu: &str, now_ms: i64, op: &Op) -> rusqlite::Result<()> {
    let now = now_ms / 1000;
    match op {
        Op::Insert(row) => {
            keep_beside(tx, "ended_jobs", "job_id", qpu, row.message_id, &row.job_id)?;
            ended_jobs::stored(tx, qpu, now_ms, row)?;
            keep_beside(tx, "results", "job_id", qpu, row.message_id, &row.job_id)?;
            tx.prepare_cached(
                "INSERT OR REPLACE INTO results (qpu_id, message_id, job_id, callback_url, status, error,
                     finished_at, body, phase, replaces) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?
            .execute(params![
                qpu,
                row.message_id.to_string(),
                &*row.job_id,
                &*row.callback_url,
                row.status.name(),
                row.error,
                row.finished_at,
                &row.body[..],
                Phase::Stored.name(),
                row.replaces.map(|id| id.to_string()),
            ])?
        }
        Op::Announce(id) => set_phase(tx, qpu, *id, Phase::Announced, None)?,
        Op::Discard(id) => {
            ended_jobs::discarded(tx, qpu, *id)?;
            remove(tx, qpu, *id)?
        }
        Op::Refuse(id, why) => {
            ended_jobs::set_delivery(tx, qpu, *id, Delivery::Refused)?;
            set_phase(tx, qpu, *id, Phase::Refused, Some(why))?;
            to_history(tx, qpu, *id, now)?
        }
        Op::Delivered(id) => {
            ended_jobs::set_delivery(tx, qpu, *id, Delivery::Delivered)?;
            to_history(tx, qpu, *id, now)?;
            remove(tx, qpu, *id)?
        }
        Op::Attempt(id, attempts, error) => tx
            .prepare_cached(
                "UPDATE results SET attempts = ?3, last_error = ?4 WHERE qpu_id = ?1 AND message_id = ?2",
            )?
            .execute(params![qpu, id.to_string(), attempts, error])?,
        Op::DeadLetter(letter) => {
            ended_jobs::unanswerable(tx, qpu, now_ms, letter.message_id, &letter.reason)?;
            keep_beside(tx, "dead_letters", "fields", qpu, letter.message_id, &letter.fields)?;
            tx.prepare_cached(
                "INSERT OR REPLACE INTO dead_letters (qpu_id, message_id, reason, fields, at)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                qpu,
                letter.message_id.to_string(),
                letter.reason,
                letter.fields,
                now
            ])?
        }
        Op::Death(id) => tx
            .prepare_cached(
                "INSERT INTO deaths (message_id, count) VALUES (?1, 1)
                 ON CONFLICT (message_id) DO UPDATE SET count = count + 1",
            )?
            .execute(params![id.to_string()])?,
        Op::ClearDeaths(id) => {
            tx.prepare_cached("DELETE FROM deaths WHERE message_id = ?1")?.execute(params![id.to_string()])?
        }
        Op::Cancelled(id, job_id, facts) => ended_jobs::cancelled(tx, qpu, now_ms, *id, job_id, facts)?,
        Op::Availability(period) => ended_jobs::period(tx, qpu, period)?,
    };
    Ok(())
}

/// After a FLUSHALL the server may give an id again whose former message is kept for the operator. That one then takes
/// an id that no message has: the last free one of its millisecond.
fn keep_beside(
    tx: &Connection,
    table: &'static str,
    told_by: &'static str,
    qpu: &str,
    id: MessageId,
    new: &str,
) -> rusqlite::Result<()> {
    let is_other = format!("SELECT {told_by} <> ?3 FROM {table} WHERE qpu_id = ?1 AND message_id = ?2");
    let found = tx.prepare_cached(&is_other)?.query_row(params![qpu, id.to_string(), new], |r| r.get(0));
    if !found.optional()?.unwrap_or(false) {
        return Ok(());
    }
    let rename =
        format!("UPDATE OR IGNORE {table} SET message_id = ?3 WHERE qpu_id = ?1 AND message_id = ?2");
    for seq in (0..u64::MAX).rev() {
        let free = MessageId { ms: id.ms, seq }.to_string();
        if tx.prepare_cached(&rename)?.execute(params![qpu, id.to_string(), free])? > 0 {
            let kept_as = &*free;
            tracing::warn!(message_id = %id, kept_as, "another message has the id of one that is kept");
            break;
        }
    }
    Ok(())
}

fn set_phase(
    tx: &Connection,
    qpu: &str,
    id: MessageId,
    phase: Phase,
    why: Option<&str>,
) -> rusqlite::Result<usize> {
    tx.prepare_cached(
        "UPDATE results SET phase = ?3, last_error = coalesce(?4, last_error)
         WHERE qpu_id = ?1 AND message_id = ?2",
    )?
    .execute(params![qpu, id.to_string(), phase.name(), why])
}

fn to_history(tx: &Connection, qpu: &str, id: MessageId, now: i64) -> rusqlite::Result<usize> {
    tx.prepare_cached(
        "INSERT OR REPLACE INTO history (qpu_id, message_id, job_id, status, error, finished_at, at)
         SELECT qpu_id, message_id, job_id, status, error, finished_at, ?3 FROM results
         WHERE qpu_id = ?1 AND message_id = ?2",
    )?
    .execute(params![qpu, id.to_string(), now])
}

fn remove(tx: &Connection, qpu: &str, id: MessageId) -> rusqlite::Result<usize> {
    tx.prepare_cached("DELETE FROM results WHERE qpu_id = ?1 AND message_id = ?2")?
        .execute(params![qpu, id.to_string()])
}
