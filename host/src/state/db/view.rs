//! The database as an operator sees it: what is kept, one row, removing it. Beside a running host.

use rusqlite::{OptionalExtension as _, params};

use super::rows::{Phase, ResultRow};
use super::writer::{read_failed, write_failed};
use super::{Database, StoreError, sql};
use crate::model::MessageId;

/// Why a row is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptKind {
    /// A result that the host still delivers by itself.
    Undelivered,
    /// A result that the cloud refused for good.
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
    /// The body of the webhook, or the fields of a dead letter.
    pub content: String,
}

impl Database {
    /// Everything that is kept, results first.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn list(&self) -> Result<Vec<KeptEntry>, StoreError> {
        let mut results = self
            .conn
            .prepare(
                "SELECT qpu_id, message_id, job_id, phase, attempts, last_error, callback_url, body FROM results",
            )
            .map_err(read_failed)?;
        let results = results.query_map([], |r| {
            let refused = sql::phase(r, 3)? == Phase::Refused;
            Ok(KeptEntry {
                qpu_id: r.get(0)?,
                message_id: r.get(1)?,
                job_id: r.get(2)?,
                kind: if refused { KeptKind::Refused } else { KeptKind::Undelivered },
                attempts: r.get(4)?,
                why: r.get::<_, Option<String>>(5)?.unwrap_or_default(),
                callback_url: r.get(6)?,
                content: String::from_utf8_lossy(&r.get::<_, Vec<u8>>(7)?).into_owned(),
            })
        });
        let mut found =
            results.and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>).map_err(read_failed)?;
        let mut letters = self
            .conn
            .prepare("SELECT qpu_id, message_id, reason, fields FROM dead_letters")
            .map_err(read_failed)?;
        let letters = letters.query_map([], |r| {
            Ok(KeptEntry {
                qpu_id: r.get(0)?,
                message_id: r.get(1)?,
                job_id: String::new(),
                kind: KeptKind::DeadLetter,
                attempts: 0,
                why: r.get(2)?,
                callback_url: String::new(),
                content: r.get(3)?,
            })
        });
        found.extend(letters.and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>).map_err(read_failed)?);
        Ok(found)
    }

    /// A stored result, to be sent once more.
    ///
    /// # Errors
    /// When the database can't be read.
    pub fn result(&self, kept: &KeptEntry) -> Result<Option<ResultRow>, StoreError> {
        let Ok(id) = kept.message_id.parse::<MessageId>() else { return Ok(None) };
        self.conn
            .query_row(
                "SELECT message_id, job_id, callback_url, status, error, finished_at, body FROM results
                 WHERE qpu_id = ?1 AND message_id = ?2",
                params![kept.qpu_id, kept.message_id],
                |r| sql::result_row(r, id),
            )
            .optional()
            .map_err(read_failed)
    }

    /// Removes a row for good.
    ///
    /// # Errors
    /// When the database can't be written.
    pub fn remove(&self, kept: &KeptEntry) -> Result<(), StoreError> {
        let table = kept.kind.table();
        self.conn
            .execute(
                &format!("DELETE FROM {table} WHERE qpu_id = ?1 AND message_id = ?2"),
                params![kept.qpu_id, kept.message_id],
            )
            .map(drop)
            .map_err(write_failed)
    }
}
