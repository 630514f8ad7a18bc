//! The embedded database: undelivered results, history, the record of ended jobs, dead letters, deaths.
//!
//! One thread owns the connection. Requests that arrive together share a transaction, so that hundreds of
//! results cost one fsync (group commit); a write is answered only after its transaction is on disk.
//! `Lazy` writes wait for the next durable one, or a short while: losing one costs a repeated question to
//! Redis after a crash, never a result.
//!
//! ```text
//! results  stored -> announced -> (history)      the point of no return is `announced`
//!                 \-> discarded   refused         refused rows are kept for the operator
//! ```

mod ended_jobs;
mod error;
mod rows;
mod sql;
mod view;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _};
use tokio::sync::{oneshot, watch};

use crate::model::{JobId, MessageId};
use crate::state::sqlite_actor::{self, OpenError, SqliteActor, SqliteFailure};

pub use ended_jobs::{HistoryLimits, JobFilter};
pub use error::StoreError;
pub use rows::{
    AvailabilityPeriod, DeadLetter, Delivery, EndedJob, HistoryEntry, JobFacts, Phase, RecordedOutcome,
    ResultRow, Status, StoreContents, StoredRow,
};
use sql::{Op, SCHEMA, add_missing, read_all};
pub use view::{KeptEntry, KeptKind, KeptOverview};
use writer::{GROUPS, OpenFile, Request, Writer};

const FILE: &str = "coda-host.db";
/// How long another process may hold the write lock before a write of the host fails. Short: everybody who asks the
/// thread waits as long, a stop included, and the write is tried again.
const WRITE_BUSY_TIMEOUT: Duration = Duration::from_millis(500);

/// The handle; clones share the one thread.
#[derive(Clone)]
pub struct Store {
    actor: SqliteActor<Request>,
    /// The newest message in history, so that fresh ones need no look-up.
    newest: Arc<NewestInHistory>,
    failure: watch::Receiver<Option<String>>,
}

/// The newest message in history; it only grows. Exact, since a backlog has many messages of one millisecond.
struct NewestInHistory(Mutex<MessageId>);

impl NewestInHistory {
    fn raise(&self, id: MessageId) {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = id.max(*newest);
    }

    fn covers(&self, id: MessageId) -> bool {
        id <= *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open database whose QPU isn't known yet: it is opened before a one-time token is spent.
pub struct Database {
    conn: Connection,
    path: PathBuf,
    limits: HistoryLimits,
}

impl Database {
    /// Whether there is one, so that a mere look makes none.
    pub fn exists(dir: &Path) -> bool {
        dir.join(FILE).is_file()
    }

    /// Opens or makes the database in `dir`.
    ///
    /// # Errors
    /// When the file can't be used.
    pub fn open(dir: &Path) -> Result<Database, StoreError> {
        let path = dir.join(FILE);
        match sqlite_actor::open(&path, &SCHEMA) {
            Ok(conn) => match add_missing(&conn) {
                Ok(()) => Ok(Database { conn, path, limits: HistoryLimits::default() }),
                Err(error) => Err(StoreError::Open { path, failure: error.into() }),
            },
            Err(OpenError::Unusable(failure)) => Err(StoreError::Open { path, failure }),
            Err(OpenError::Newer { found }) => Err(StoreError::Newer { path, found }),
        }
    }

    /// The same database, which is to keep so much of the record of ended jobs.
    pub fn with_limits(self, limits: HistoryLimits) -> Database {
        Database { limits, ..self }
    }

    /// Reads what this QPU left undelivered and starts the writer.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn start(self, qpu_id: &str) -> Result<(Store, StoreContents), StoreError> {
        let Database { conn, path, limits } = self;
        let fail = |failure: SqliteFailure| StoreError::Open { path: path.clone(), failure };
        let opened = read_all(&conn, qpu_id).map_err(|e| fail(e.into()))?;
        let newest = Arc::new(NewestInHistory(Mutex::new(MessageId::ZERO)));
        let last: Option<String> = conn
            .query_row(
                "SELECT message_id FROM history WHERE qpu_id = ?1
                 ORDER BY CAST(substr(message_id, 1, instr(message_id, '-') - 1) AS INTEGER) DESC,
                          CAST(substr(message_id, instr(message_id, '-') + 1) AS INTEGER) DESC LIMIT 1",
                [qpu_id],
                |r| r.get(0),
            )
            .optional()
            .map_err(|e| fail(e.into()))?;
        if let Some(id) = last.and_then(|t| t.parse().ok()) {
            newest.raise(id);
        }
        conn.busy_timeout(WRITE_BUSY_TIMEOUT).map_err(|e| fail(e.into()))?;
        let file = OpenFile::at(path.clone()).map_err(|e| fail(e.into()))?;
        let writer = Writer::new(conn, file, qpu_id, newest.clone(), limits);
        let failure = writer.failure();
        let actor = SqliteActor::start("store", GROUPS, writer).map_err(|e| fail(e.into()))?;
        Ok((Store { actor, newest, failure }, opened))
    }
}

impl Store {
    /// Stores a result; on disk when it returns.
    ///
    /// # Errors
    /// When the database can't be written or has closed; the result is not stored then.
    pub async fn insert(&self, row: ResultRow) -> Result<(), StoreError> {
        self.write(Op::Insert(row)).await
    }

    /// Passes the point of no return.
    ///
    /// # Errors
    /// When the database can't be written or has closed; nothing is changed then.
    pub async fn mark_announced(&self, id: MessageId) -> Result<(), StoreError> {
        self.write(Op::Announce(id)).await
    }

    /// Drops the result of a cancelled job.
    ///
    /// # Errors
    /// When the database can't be written or has closed; nothing is changed then.
    pub async fn discard(&self, id: MessageId) -> Result<(), StoreError> {
        self.write(Op::Discard(id)).await
    }

    /// Keeps a result that the cloud refused for the operator, and notes the message in history.
    ///
    /// # Errors
    /// When the database can't be written or has closed; nothing is changed then.
    pub async fn record_refused(&self, id: MessageId, why: String) -> Result<(), StoreError> {
        self.write(Op::Refuse(id, why)).await
    }

    /// Moves an accepted result into history.
    ///
    /// # Errors
    /// When the database can't be written or has closed; nothing is changed then.
    pub async fn record_delivered(&self, id: MessageId) -> Result<(), StoreError> {
        self.write(Op::Delivered(id)).await
    }

    /// Notes a failed attempt; may be lost in a crash.
    pub fn record_attempt(&self, id: MessageId, attempts: u32, error: String) {
        self.lazy(Op::Attempt(id, attempts, error));
    }

    /// Keeps a message that can't be answered.
    ///
    /// # Errors
    /// When the database can't be written or has closed; nothing is changed then.
    pub async fn store_dead_letter(&self, letter: DeadLetter) -> Result<(), StoreError> {
        self.write(Op::DeadLetter(letter)).await
    }

    /// Counts a death of the process while it ran this message.
    ///
    /// # Errors
    /// When the database can't be written or has closed; nothing is changed then.
    pub async fn record_death(&self, id: MessageId) -> Result<(), StoreError> {
        self.write(Op::Death(id)).await
    }

    /// Forgets the deaths of a message that has ended.
    pub fn clear_deaths(&self, id: MessageId) {
        self.lazy(Op::ClearDeaths(id));
    }

    /// Records a cancelled job that has no result, or a run of it that has come to its end since.
    ///
    /// # Errors
    /// When the database can't be written or has closed; nothing is changed then.
    pub async fn record_cancelled(
        &self,
        id: MessageId,
        job_id: JobId,
        facts: JobFacts,
    ) -> Result<(), StoreError> {
        self.write(Op::Cancelled(id, job_id, facts)).await
    }

    /// Adds the run of a cancelled job to the record; may be lost in a crash.
    pub fn add_cancelled_run(&self, id: MessageId, job_id: JobId, facts: JobFacts) {
        self.lazy(Op::Cancelled(id, job_id, facts));
    }

    /// Records since when the host is available or held; may be lost in a crash.
    pub fn record_availability(&self, period: AvailabilityPeriod) {
        self.lazy(Op::Availability(period));
    }

    /// What history knows of these messages.
    ///
    /// # Errors
    /// When the database can't be read.
    pub async fn history_of(&self, ids: Vec<MessageId>) -> Result<Vec<Option<HistoryEntry>>, StoreError> {
        if !ids.iter().any(|id| self.newest.covers(*id)) {
            return Ok(vec![None; ids.len()]);
        }
        let (answer, wait) = oneshot::channel();
        self.send(Request::History(ids, answer))?;
        wait.await.map_err(|_| StoreError::Stopped)?
    }

    /// An undelivered result, for another attempt.
    ///
    /// # Errors
    /// When the database can't be read.
    pub async fn load_result(&self, id: MessageId) -> Result<Option<ResultRow>, StoreError> {
        let (answer, wait) = oneshot::channel();
        self.send(Request::LoadResult(id, answer))?;
        wait.await.map_err(|_| StoreError::Stopped)?
    }

    /// How much is kept for the operator, with at most `limit` entries. Asked of the one connection of this process: a
    /// second one would, when it is closed, end the first one's locks on the file.
    ///
    /// # Errors
    /// When the database can't be read.
    pub async fn kept_overview(&self, limit: usize) -> Result<KeptOverview, StoreError> {
        let (answer, wait) = oneshot::channel();
        self.send(Request::KeptOverview(limit, answer))?;
        wait.await.map_err(|_| StoreError::Stopped)?
    }

    /// Why the last write failed, whoever asked for it; `None` as soon as one succeeds. While it is set, something is
    /// tried again.
    pub fn failure(&self) -> watch::Receiver<Option<String>> {
        self.failure.clone()
    }

    /// Writes what waits, closes the file and waits for the thread.
    pub fn close(&self) {
        self.actor.close();
    }

    async fn write(&self, op: Op) -> Result<(), StoreError> {
        let (answer, wait) = oneshot::channel();
        self.send(Request::Write(op, answer))?;
        wait.await.map_err(|_| StoreError::Stopped)?
    }

    fn lazy(&self, op: Op) {
        if self.send(Request::Lazy(op)).is_err() {
            tracing::debug!("a lazy write came after the state database had closed");
        }
    }

    fn send(&self, request: Request) -> Result<(), StoreError> {
        self.actor.send(request).map_err(|_| StoreError::Stopped)
    }
}

#[cfg(test)]
#[path = "db_tests.rs"]
mod tests;
