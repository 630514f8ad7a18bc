//! The database as an operator sees it: what is kept, one row, removing it. Beside a running host.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::rows::{Delivery, Phase, ResultRow};
use super::writer::{now_ms, read_failed, write_failed};
use super::{Database, StoreError, ended_jobs, sql};
use crate::model::MessageId;

/// Why a row is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptKind {
    /// A result that the host still delivers by itself.
    Undelivered,
    /// A result that the cloud refused permanently.
    Refused,
    /// A message that could not be answered.
    DeadLetter,
}

impl KeptKind {
    /// The name that the command line and its JSON show.
    pub fn name(self) -> &'static str {
        match self {
            KeptKind::Undelivered => "undelivered",
            KeptKind::Refused => "refused",
            KeptKind::DeadLetter => "dead letter",
        }
    }

    fn table(self) -> &'static str {
        match self {
            KeptKind::Undelivered | KeptKind::Refused => "results",
            KeptKind::DeadLetter => "dead_letters",
        }
    }
}

/// A row of `coda-host results list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptEntry {
    pub qpu_id: String,
    pub message_id: String,
    /// Empty for a dead letter, which may have none.
    pub job_id: String,
    pub kind: KeptKind,
    pub attempts: u32,
    /// Why it was not delivered, as far as known.
    pub why: String,
    /// Where it was to go.
    pub callback_url: String,
    /// Size of the webhook's body, or of the fields of a dead letter, in bytes.
    pub bytes: u64,
}

/// How much is kept for the operator, with the first entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptOverview {
    /// Results that were tried and not accepted yet.
    pub undelivered: u64,
    pub refused: u64,
    pub dead_letters: u64,
    /// Refused results first, then dead letters, then undelivered results.
    pub first: Vec<KeptEntry>,
}

/// Undelivered results as columns of [`result_entry`].
const RESULTS: &str = "SELECT qpu_id, message_id, job_id, phase, attempts, last_error, callback_url,
                              length(body) FROM results";
/// Dead letters as columns of [`letter_entry`].
const LETTERS: &str = "SELECT qpu_id, message_id, reason, length(CAST(fields AS BLOB)) FROM dead_letters";

fn result_entry(r: &Row<'_>) -> rusqlite::Result<KeptEntry> {
    let refused = sql::phase(r, 3)? == Phase::Refused;
    Ok(KeptEntry {
        qpu_id: r.get(0)?,
        message_id: r.get(1)?,
        job_id: r.get(2)?,
        kind: if refused { KeptKind::Refused } else { KeptKind::Undelivered },
        attempts: r.get(4)?,
        why: r.get::<_, Option<String>>(5)?.unwrap_or_default(),
        callback_url: r.get(6)?,
        bytes: r.get::<_, i64>(7)?.unsigned_abs(),
    })
}

fn letter_entry(r: &Row<'_>) -> rusqlite::Result<KeptEntry> {
    Ok(KeptEntry {
        qpu_id: r.get(0)?,
        message_id: r.get(1)?,
        job_id: String::new(),
        kind: KeptKind::DeadLetter,
        attempts: 0,
        why: r.get(2)?,
        callback_url: String::new(),
        bytes: r.get::<_, i64>(3)?.unsigned_abs(),
    })
}

fn entries(
    conn: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
    entry: fn(&Row<'_>) -> rusqlite::Result<KeptEntry>,
) -> rusqlite::Result<Vec<KeptEntry>> {
    let mut rows = conn.prepare_cached(sql)?;
    rows.query_map(parameters, entry)?.collect()
}

/// How much is kept of a QPU, with at most `limit` entries: for looking at it again and again.
pub(super) fn overview(conn: &Connection, qpu_id: &str, limit: usize) -> rusqlite::Result<KeptOverview> {
    const REFUSED: &str = "qpu_id = ?1 AND phase = 'refused'";
    const TRIED: &str = "qpu_id = ?1 AND phase <> 'refused' AND attempts > 0";
    let count = |table: &str, rows: &str| {
        let sql = format!("SELECT count(*) FROM {table} WHERE {rows}");
        conn.prepare_cached(&sql)?.query_row([qpu_id], |r| r.get::<_, i64>(0)).map(i64::unsigned_abs)
    };
    let (refused, undelivered) = (count("results", REFUSED)?, count("results", TRIED)?);
    let dead_letters = count("dead_letters", "qpu_id = ?1")?;
    let mut first = Vec::new();
    for (sql, entry) in [
        (format!("{RESULTS} WHERE {REFUSED}"), result_entry as fn(&Row<'_>) -> _),
        (format!("{LETTERS} WHERE qpu_id = ?1"), letter_entry),
        (format!("{RESULTS} WHERE {TRIED}"), result_entry),
    ] {
        let left = limit.saturating_sub(first.len()) as i64;
        first.extend(entries(conn, &format!("{sql} LIMIT ?2"), params![qpu_id, left], entry)?);
    }
    Ok(KeptOverview { undelivered, refused, dead_letters, first })
}

impl Database {
    /// Everything that is kept, results first, without the contents.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn list(&self) -> Result<Vec<KeptEntry>, StoreError> {
        let mut found = entries(&self.conn, RESULTS, [], result_entry).map_err(read_failed)?;
        found.extend(entries(&self.conn, LETTERS, [], letter_entry).map_err(read_failed)?);
        Ok(found)
    }

    /// The body of a result's webhook, or the fields of a dead letter; `None` when it is gone meanwhile.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn content(&self, kept: &KeptEntry) -> Result<Option<String>, StoreError> {
        let (table, column) = match kept.kind {
            KeptKind::Undelivered | KeptKind::Refused => ("results", "body"),
            KeptKind::DeadLetter => ("dead_letters", "CAST(fields AS BLOB)"),
        };
        let sql = format!("SELECT {column} FROM {table} WHERE qpu_id = ?1 AND message_id = ?2");
        self.conn
            .query_row(&sql, params![kept.qpu_id, kept.message_id], |r| r.get::<_, Vec<u8>>(0))
            .optional()
            .map(|content| content.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
            .map_err(read_failed)
    }

    /// A stored result, to be sent once more.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn result(&self, kept: &KeptEntry) -> Result<Option<ResultRow>, StoreError> {
        let Ok(id) = kept.message_id.parse::<MessageId>() else { return Ok(None) };
        self.conn
            .query_row(
                "SELECT message_id, job_id, callback_url, status, error, finished_at, body, replaces FROM results
                 WHERE qpu_id = ?1 AND message_id = ?2",
                params![kept.qpu_id, kept.message_id],
                |r| sql::result_row(r, id),
            )
            .optional()
            .map_err(read_failed)
    }

    /// Ends a kept entry: delivered by hand, or given up by the operator. A result's end is recorded in history as the
    /// host records it, so that the job does not run again when Redis does not know of it.
    ///
    /// # Errors
    /// When the database can't be written; nothing is changed then.
    pub fn end(&mut self, kept: &KeptEntry, delivery: Delivery) -> Result<(), StoreError> {
        let id = kept.message_id.parse::<MessageId>().ok();
        let tx = self.conn.transaction().map_err(write_failed)?;
        if let (KeptKind::Undelivered | KeptKind::Refused, Some(id)) = (kept.kind, id) {
            sql::apply(&tx, &kept.qpu_id, now_ms(), &sql::Op::Delivered(id)).map_err(write_failed)?;
            ended_jobs::set_delivery(&tx, &kept.qpu_id, id, delivery).map_err(write_failed)?;
        }
        // Also an entry whose message id can't be read.
        let table = kept.kind.table();
        let row = params![kept.qpu_id, kept.message_id];
        tx.execute(&format!("DELETE FROM {table} WHERE qpu_id = ?1 AND message_id = ?2"), row)
            .map_err(write_failed)?;
        tx.commit().map_err(write_failed)
    }
}
