//! The embedded database: undelivered results, history, dead letters, deaths.
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

mod rows;
mod sql;
mod view;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::oneshot;

use crate::error::{Explain, exit};
use crate::model::MessageId;
use crate::state::files;

pub use rows::{DeadLetter, HistoryEntry, Phase, ResultRow, Status, StoreContents, StoredRow};
use sql::{Op, SCHEMA_VERSION, apply, prepare, read_all, result_row};
pub use view::{KeptEntry, KeptKind};

const FILE: &str = "coda-host.db";
/// Most requests of one transaction.
const GROUP_MAX: usize = 256;
/// How long a lazy write may wait for company.
const LAZY_WAIT: Duration = Duration::from_millis(100);
/// Under load a transaction waits so long for company: fewer fsyncs, and fewer wake-ups of this thread.
const GATHER: Duration = Duration::from_millis(1);
/// A transaction of so many writes is a sign of load.
const BUSY: usize = 4;
/// History kept: the younger of a number of rows and an age.
const HISTORY_ROWS: i64 = 1_000_000;
const HISTORY_SECONDS: i64 = 30 * 86_400;
/// Old history is looked for once in so many transactions.
const PRUNE_EVERY: u64 = 10_000;

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("the state database {} can't be opened: {text}", path.display())]
    Open { path: PathBuf, text: String },
    #[error("the state database {} was written by a newer coda-host (schema {found}, known is {SCHEMA_VERSION})", path.display())]
    Newer { path: PathBuf, found: i64 },
    #[error("the state database could not be written: {0}")]
    Write(String),
    #[error("the state database has stopped")]
    Stopped,
}

impl Explain for StoreError {
    fn code(&self) -> &'static str {
        match self {
            StoreError::Open { .. } => "store-open",
            StoreError::Newer { .. } => "store-newer",
            StoreError::Write(_) => "store-write",
            StoreError::Stopped => "store-stopped",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            StoreError::Open { path, .. } => format!(
                "check space and permissions of {}; a damaged file can be moved away, which forgets \
                 undelivered results",
                path.display()
            ),
            StoreError::Newer { .. } => "use the newer coda-host, or another CODA_STATE_DIR".into(),
            StoreError::Write(_) => "free space on the disk of the state directory".into(),
            StoreError::Stopped => "report this as a bug of coda-host".into(),
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

enum Request {
    Write(Op, oneshot::Sender<Result<(), StoreError>>),
    Lazy(Op),
    Known(Vec<MessageId>, oneshot::Sender<Result<Vec<Option<HistoryEntry>>, StoreError>>),
    Load(MessageId, oneshot::Sender<Result<Option<ResultRow>, StoreError>>),
    Stop,
}

/// The handle. Clones share the one writer.
#[derive(Clone)]
pub struct Store {
    requests: Sender<Request>,
    /// The newest message in history, so that fresh ones need no look-up.
    newest: Arc<Newest>,
    thread: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

/// The newest message in history; it only grows. Exact, since a backlog has many messages of one millisecond.
struct Newest(Mutex<MessageId>);

impl Newest {
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
        let fail = |e: &dyn std::fmt::Display| StoreError::Open { path: path.clone(), text: e.to_string() };
        files::ensure_dir(dir).map_err(|e| fail(&e))?;
        // SQLite creates files by the umask; results may be confidential. Its side files take this one's mode.
        files::private(&path).map_err(|e| fail(&e))?;
        let conn = Connection::open(&path).map_err(|e| fail(&e))?;
        prepare(&conn, &path)?;
        Ok(Database { conn, path })
    }

    /// Reads what this QPU left undelivered and starts the writer.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn start(self, qpu_id: &str) -> Result<(Store, StoreContents), StoreError> {
        let Database { conn, path } = self;
        let fail = |e: &dyn std::fmt::Display| StoreError::Open { path: path.clone(), text: e.to_string() };
        let opened = read_all(&conn, qpu_id).map_err(|e| fail(&e))?;
        let newest = Arc::new(Newest(Mutex::new(MessageId::ZERO)));
        let last: Option<String> = conn
            .query_row(
                "SELECT message_id FROM history WHERE qpu_id = ?1
                 ORDER BY CAST(substr(message_id, 1, instr(message_id, '-') - 1) AS INTEGER) DESC,
                          CAST(substr(message_id, instr(message_id, '-') + 1) AS INTEGER) DESC LIMIT 1",
                [qpu_id],
                |r| r.get(0),
            )
            .optional()
            .map_err(|e| fail(&e))?;
        if let Some(id) = last.and_then(|t| t.parse().ok()) {
            newest.raise(id);
        }
        let (requests, inbox) = channel();
        let writer = Writer { conn, qpu_id: qpu_id.to_string(), newest: newest.clone(), transactions: 0 };
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer.run(&inbox))
            .map_err(|e| fail(&e))?;
        Ok((Store { requests, newest, thread: Arc::new(Mutex::new(Some(thread))) }, opened))
    }
}

impl Store {
    /// Stores a result; on disk when it returns.
    ///
    /// # Errors
    /// When the disk refuses; the result is not stored then.
    pub async fn insert(&self, row: ResultRow) -> Result<(), StoreError> {
        self.write(Op::Insert(row)).await
    }

    /// Passes the point of no return.
    ///
    /// # Errors
    /// As for `insert`.
    pub async fn mark_announced(&self, id: MessageId) -> Result<(), StoreError> {
        self.write(Op::Announce(id)).await
    }

    /// Drops the result of a cancelled job.
    ///
    /// # Errors
    /// As for `insert`.
    pub async fn discard(&self, id: MessageId) -> Result<(), StoreError> {
        self.write(Op::Discard(id)).await
    }

    /// Keeps a result that the cloud refused for the operator, and notes the message in history.
    ///
    /// # Errors
    /// As for `insert`.
    pub async fn record_refused(&self, id: MessageId, why: String) -> Result<(), StoreError> {
        self.write(Op::Refuse(id, why)).await
    }

    /// Moves an accepted result into history.
    ///
    /// # Errors
    /// As for `insert`.
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
    /// As for `insert`.
    pub async fn store_dead_letter(&self, letter: DeadLetter) -> Result<(), StoreError> {
        self.write(Op::DeadLetter(letter)).await
    }

    /// Counts a death of the process while it ran this message.
    ///
    /// # Errors
    /// As for `insert`.
    pub async fn record_death(&self, id: MessageId) -> Result<(), StoreError> {
        self.write(Op::Death(id)).await
    }

    /// Forgets the deaths of a message that has ended.
    pub fn clear_deaths(&self, id: MessageId) {
        self.lazy(Op::Alive(id));
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
        self.send(Request::Known(ids, answer))?;
        wait.await.map_err(|_| StoreError::Stopped)?
    }

    /// An undelivered result, for another attempt.
    ///
    /// # Errors
    /// When the database can't be read.
    pub async fn load_result(&self, id: MessageId) -> Result<Option<ResultRow>, StoreError> {
        let (answer, wait) = oneshot::channel();
        self.send(Request::Load(id, answer))?;
        wait.await.map_err(|_| StoreError::Stopped)?
    }

    /// Writes what waits and closes the file.
    pub fn close(&self) {
        if self.requests.send(Request::Stop).is_err() {
            return;
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|t| t.join().is_err()) {
            tracing::error!("the state database's thread ended badly; please report this as a bug");
        }
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
        self.requests.send(request).map_err(|_| StoreError::Stopped)
    }
}

struct Writer {
    conn: Connection,
    qpu_id: String,
    newest: Arc<Newest>,
    transactions: u64,
}

type Waiting = Vec<(Op, Option<oneshot::Sender<Result<(), StoreError>>>)>;

impl Writer {
    fn run(mut self, inbox: &Receiver<Request>) {
        let mut group: Waiting = Vec::new();
        let mut busy = false;
        loop {
            // Lazy writes alone wait a little for a durable one to share its fsync with.
            let lazy_only = !group.is_empty();
            let next = match lazy_only {
                true => inbox.recv_timeout(LAZY_WAIT),
                false => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let mut stop = false;
            let mut durable = false;
            match next {
                Ok(request) => stop = self.take(request, &mut group, &mut durable),
                Err(RecvTimeoutError::Timeout) => durable = true,
                Err(RecvTimeoutError::Disconnected) => stop = true,
            }
            if durable && busy && !stop {
                std::thread::sleep(GATHER);
            }
            while durable && !stop && group.len() < GROUP_MAX {
                match inbox.try_recv() {
                    Ok(request) => stop = self.take(request, &mut group, &mut durable),
                    Err(_) => break,
                }
            }
            if durable || stop || group.len() >= GROUP_MAX {
                busy = group.len() >= BUSY;
                self.commit(std::mem::take(&mut group));
            }
            if stop {
                return;
            }
        }
    }

    /// Puts a write into the group or answers a question; true for the end.
    fn take(&self, request: Request, group: &mut Waiting, durable: &mut bool) -> bool {
        match request {
            Request::Write(op, answer) => {
                group.push((op, Some(answer)));
                *durable = true;
            }
            Request::Lazy(op) => group.push((op, None)),
            Request::Known(ids, answer) => drop(answer.send(self.known(&ids))),
            Request::Load(id, answer) => drop(answer.send(self.load(id))),
            Request::Stop => return true,
        }
        false
    }

    /// One transaction for all; each write stands for itself, so that a bad one fails alone.
    fn commit(&mut self, group: Waiting) {
        if group.is_empty() {
            return;
        }
        let size = group.len();
        let outcome = self.transaction(&group);
        for ((op, answer), result) in group.into_iter().zip(match &outcome {
            Ok(each) => each.clone(),
            Err(e) => vec![Err(e.clone()); size],
        }) {
            if let (Op::Delivered(id) | Op::Refuse(id, _), Ok(())) = (&op, &result) {
                self.newest.raise(*id);
            }
            match answer {
                Some(answer) => drop(answer.send(result)),
                None if result.is_err() => {
                    tracing::warn!(?result, "a lazy write to the state database failed")
                }
                None => {}
            }
        }
        self.transactions += 1;
        if self.transactions % PRUNE_EVERY == 1
            && let Err(error) = self.prune()
        {
            tracing::warn!(%error, "old history could not be removed");
        }
    }

    fn transaction(&mut self, group: &Waiting) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let fail = |e: rusqlite::Error| StoreError::Write(e.to_string());
        let tx = self.conn.transaction().map_err(fail)?;
        let now = time::OffsetDateTime::now_utc().unix_timestamp();
        let each = group.iter().map(|(op, _)| apply(&tx, &self.qpu_id, now, op).map_err(fail)).collect();
        tx.commit().map_err(fail)?;
        Ok(each)
    }

    fn known(&self, ids: &[MessageId]) -> Result<Vec<Option<HistoryEntry>>, StoreError> {
        let fail = |e: rusqlite::Error| StoreError::Write(e.to_string());
        let mut query = self
            .conn
            .prepare_cached(
                "SELECT job_id, status, error, finished_at FROM history
                 WHERE qpu_id = ?1 AND message_id = ?2",
            )
            .map_err(fail)?;
        ids.iter()
            .map(|id| {
                let row = query.query_row(params![self.qpu_id, id.to_string()], |r| {
                    Ok(HistoryEntry {
                        job_id: r.get::<_, String>(0)?.into(),
                        status: Status::from_name(&r.get::<_, String>(1)?),
                        error: r.get(2)?,
                        finished_at: r.get(3)?,
                    })
                });
                row.optional().map_err(fail)
            })
            .collect()
    }

    fn load(&self, id: MessageId) -> Result<Option<ResultRow>, StoreError> {
        let fail = |e: rusqlite::Error| StoreError::Write(e.to_string());
        self.conn
            .prepare_cached(
                "SELECT message_id, job_id, callback_url, status, error, finished_at, body FROM results
                 WHERE qpu_id = ?1 AND message_id = ?2",
            )
            .and_then(|mut q| {
                q.query_row(params![self.qpu_id, id.to_string()], |r| result_row(r, id)).optional()
            })
            .map_err(fail)
    }

    fn prune(&self) -> rusqlite::Result<()> {
        let old = time::OffsetDateTime::now_utc().unix_timestamp() - HISTORY_SECONDS;
        self.conn.execute("DELETE FROM history WHERE at < ?1", [old])?;
        self.conn.execute(
            "DELETE FROM history WHERE at < (SELECT at FROM history ORDER BY at DESC LIMIT 1 OFFSET ?1)",
            [HISTORY_ROWS],
        )?;
        Ok(())
    }
}

#[cfg(test)]
#[path = "db_tests.rs"]
mod tests;
