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

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::oneshot;

use crate::error::{Explain, exit};
use crate::model::{JobId, MessageId};

const FILE: &str = "coda-host.db";
const SCHEMA_VERSION: i64 = 1;
/// Most requests of one transaction.
const GROUP_MAX: usize = 256;
/// How long a lazy write may wait for company.
const LAZY_WAIT: Duration = Duration::from_millis(100);
/// History kept: the younger of a number of rows and an age.
const HISTORY_ROWS: i64 = 1_000_000;
const HISTORY_SECONDS: i64 = 30 * 86_400;
/// Old history is looked for once in so many transactions.
const PRUNE_EVERY: u64 = 10_000;

const SCHEMA: &str = "
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

/// How a job ended for the cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Completed,
    Failed,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Status::Completed => "completed",
            Status::Failed => "failed",
        }
    }

    fn from_name(name: &str) -> Status {
        if name == "completed" { Status::Completed } else { Status::Failed }
    }
}

/// Where a stored result is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A cancel may still win.
    Stored,
    /// It is going to the cloud, whatever comes.
    Announced,
    /// The cloud refused it for good.
    Refused,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Phase::Stored => "stored",
            Phase::Announced => "announced",
            Phase::Refused => "refused",
        }
    }

    fn from_name(name: &str) -> Phase {
        match name {
            "announced" => Phase::Announced,
            "refused" => Phase::Refused,
            _ => Phase::Stored,
        }
    }
}

/// A result as it is stored and sent.
#[derive(Debug, Clone)]
pub struct ResultRow {
    pub message_id: MessageId,
    pub job_id: JobId,
    pub callback_url: Arc<str>,
    pub status: Status,
    /// For a failure, as in the status hash.
    pub error: Option<String>,
    /// As the protocol writes times.
    pub finished_at: String,
    /// The exact bytes of every attempt.
    pub body: Bytes,
}

/// A row read back after a start.
#[derive(Debug, Clone)]
pub struct StoredRow {
    pub row: ResultRow,
    pub phase: Phase,
    pub attempts: u32,
    pub last_error: Option<String>,
}

/// What history knows of a message.
#[derive(Debug, Clone)]
pub struct Past {
    pub job_id: JobId,
    pub status: Status,
    pub error: Option<String>,
    pub finished_at: String,
}

/// A message that can't be answered.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    pub message_id: MessageId,
    pub reason: String,
    /// The message's fields as JSON, long values cut.
    pub fields: String,
}

enum Op {
    Insert(ResultRow),
    Announce(MessageId),
    Discard(MessageId),
    Refuse(MessageId, String),
    Delivered(MessageId),
    Attempt(MessageId, u32, String),
    DeadLetter(DeadLetter),
    Death(MessageId),
    Alive(MessageId),
}

enum Request {
    Write(Op, oneshot::Sender<Result<(), StoreError>>),
    Lazy(Op),
    Known(Vec<MessageId>, oneshot::Sender<Result<Vec<Option<Past>>, StoreError>>),
    Load(MessageId, oneshot::Sender<Result<Option<ResultRow>, StoreError>>),
    Stop,
}

/// What was found at the start.
#[derive(Debug, Default)]
pub struct Opened {
    pub rows: Vec<StoredRow>,
    /// How often the process died while running a message.
    pub deaths: Vec<(MessageId, u32)>,
    /// Undelivered results of other QPUs in the same directory.
    pub foreign: u64,
    pub dead_letters: u64,
}

/// The handle. Clones share the one writer.
#[derive(Clone)]
pub struct Store {
    requests: Sender<Request>,
    /// The newest message in history, so that fresh ones need no look-up.
    newest: Arc<AtomicNewest>,
    thread: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

/// A `MessageId` that only grows.
#[derive(Default)]
struct AtomicNewest {
    ms: AtomicU64,
    seq: AtomicU64,
}

impl AtomicNewest {
    fn raise(&self, id: MessageId) {
        // Readers may see a new `ms` with an old `seq`: `covers` compares by `ms` alone then, which at worst
        // asks the database once more.
        if id.ms > self.ms.load(Ordering::Acquire) {
            self.seq.store(u64::MAX, Ordering::Release);
            self.ms.store(id.ms, Ordering::Release);
        }
    }

    fn covers(&self, id: MessageId) -> bool {
        id.ms <= self.ms.load(Ordering::Acquire)
    }
}

/// An open database whose QPU isn't known yet: it is opened before a one-time token is spent.
pub struct Database {
    conn: Connection,
    path: PathBuf,
}

impl Database {
    /// Opens or makes the database in `dir`.
    ///
    /// # Errors
    /// When the file can't be used.
    pub fn open(dir: &Path) -> Result<Database, StoreError> {
        let path = dir.join(FILE);
        let fail = |e: &dyn std::fmt::Display| StoreError::Open { path: path.clone(), text: e.to_string() };
        std::fs::create_dir_all(dir).map_err(|e| fail(&e))?;
        let conn = Connection::open(&path).map_err(|e| fail(&e))?;
        private(&path).map_err(|e| fail(&e))?;
        prepare(&conn, &path)?;
        Ok(Database { conn, path })
    }

    /// Reads what this QPU left undelivered and starts the writer.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn start(self, qpu_id: &str) -> Result<(Store, Opened), StoreError> {
        let Database { conn, path } = self;
        let fail = |e: &dyn std::fmt::Display| StoreError::Open { path: path.clone(), text: e.to_string() };
        let opened = read_all(&conn, qpu_id).map_err(|e| fail(&e))?;
        let newest = Arc::new(AtomicNewest::default());
        let last: Option<String> = conn
            .query_row(
                "SELECT message_id FROM history WHERE qpu_id = ?1
                 ORDER BY CAST(substr(message_id, 1, instr(message_id, '-') - 1) AS INTEGER) DESC LIMIT 1",
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
    pub async fn announce(&self, id: MessageId) -> Result<(), StoreError> {
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
    pub async fn refuse(&self, id: MessageId, why: String) -> Result<(), StoreError> {
        self.write(Op::Refuse(id, why)).await
    }

    /// Moves an accepted result into history.
    ///
    /// # Errors
    /// As for `insert`.
    pub async fn delivered(&self, id: MessageId) -> Result<(), StoreError> {
        self.write(Op::Delivered(id)).await
    }

    /// Notes a failed attempt; may be lost in a crash.
    pub fn attempted(&self, id: MessageId, attempts: u32, error: String) {
        self.lazy(Op::Attempt(id, attempts, error));
    }

    /// Keeps a message that can't be answered.
    ///
    /// # Errors
    /// As for `insert`.
    pub async fn dead_letter(&self, letter: DeadLetter) -> Result<(), StoreError> {
        self.write(Op::DeadLetter(letter)).await
    }

    /// Counts a death of the process while it ran this message.
    ///
    /// # Errors
    /// As for `insert`.
    pub async fn death(&self, id: MessageId) -> Result<(), StoreError> {
        self.write(Op::Death(id)).await
    }

    /// Forgets the deaths of a message that has ended.
    pub fn alive(&self, id: MessageId) {
        self.lazy(Op::Alive(id));
    }

    /// What history knows of these messages.
    ///
    /// # Errors
    /// When the database can't be read.
    pub async fn known(&self, ids: Vec<MessageId>) -> Result<Vec<Option<Past>>, StoreError> {
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
    pub async fn load(&self, id: MessageId) -> Result<Option<ResultRow>, StoreError> {
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

/// SQLite creates files by the umask; results may be confidential.
fn private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}

fn prepare(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let fail = |e: rusqlite::Error| StoreError::Open { path: path.to_path_buf(), text: e.to_string() };
    conn.busy_timeout(Duration::from_secs(5)).map_err(fail)?;
    conn.pragma_update(None, "journal_mode", "WAL").map_err(fail)?;
    conn.pragma_update(None, "synchronous", "FULL").map_err(fail)?;
    conn.set_prepared_statement_cache_capacity(32);
    let found: i64 = conn.pragma_query_value(None, "user_version", |r| r.get(0)).map_err(fail)?;
    match found {
        0 => {
            let make = format!("BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;");
            conn.execute_batch(&make).map_err(fail)
        }
        SCHEMA_VERSION => Ok(()),
        found => Err(StoreError::Newer { path: path.to_path_buf(), found }),
    }
}

fn read_all(conn: &Connection, qpu_id: &str) -> rusqlite::Result<Opened> {
    let mut query = conn.prepare(
        "SELECT message_id, job_id, callback_url, status, error, finished_at, body, phase, attempts,
                last_error FROM results WHERE qpu_id = ?1",
    )?;
    let mut rows = query.query([qpu_id])?;
    let mut found = Vec::new();
    while let Some(r) = rows.next()? {
        let Ok(id) = r.get::<_, String>(0)?.parse() else {
            tracing::error!("a stored result has no readable message id; it is left where it is");
            continue;
        };
        found.push(StoredRow {
            row: result_row(r, id)?,
            phase: Phase::from_name(&r.get::<_, String>(7)?),
            attempts: r.get(8)?,
            last_error: r.get(9)?,
        });
    }
    found.sort_by_key(|r| r.row.message_id);
    let mut deaths = conn.prepare("SELECT message_id, count FROM deaths")?;
    let deaths = deaths.query_map([], |r| Ok((r.get::<_, String>(0)?, r.get::<_, u32>(1)?)))?;
    let deaths = deaths.collect::<rusqlite::Result<Vec<_>>>()?;
    let count = |sql: &str| conn.query_row(sql, [qpu_id], |r| r.get::<_, i64>(0)).map(|n| n.unsigned_abs());
    Ok(Opened {
        rows: found,
        deaths: deaths.into_iter().filter_map(|(id, n)| Some((id.parse().ok()?, n))).collect(),
        foreign: count("SELECT count(*) FROM results WHERE qpu_id <> ?1")?,
        dead_letters: count("SELECT count(*) FROM dead_letters WHERE qpu_id = ?1")?,
    })
}

/// Columns 1 to 6 of a `results` row.
fn result_row(r: &rusqlite::Row<'_>, message_id: MessageId) -> rusqlite::Result<ResultRow> {
    Ok(ResultRow {
        message_id,
        job_id: r.get::<_, String>(1)?.into(),
        callback_url: r.get::<_, String>(2)?.into(),
        status: Status::from_name(&r.get::<_, String>(3)?),
        error: r.get(4)?,
        finished_at: r.get(5)?,
        body: r.get::<_, Vec<u8>>(6)?.into(),
    })
}

struct Writer {
    conn: Connection,
    qpu_id: String,
    newest: Arc<AtomicNewest>,
    transactions: u64,
}

type Waiting = Vec<(Op, Option<oneshot::Sender<Result<(), StoreError>>>)>;

impl Writer {
    fn run(mut self, inbox: &Receiver<Request>) {
        let mut group: Waiting = Vec::new();
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
            while durable && !stop && group.len() < GROUP_MAX {
                match inbox.try_recv() {
                    Ok(request) => stop = self.take(request, &mut group, &mut durable),
                    Err(_) => break,
                }
            }
            if durable || stop || group.len() >= GROUP_MAX {
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

    fn known(&self, ids: &[MessageId]) -> Result<Vec<Option<Past>>, StoreError> {
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
                    Ok(Past {
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

fn apply(tx: &Connection, qpu: &str, now: i64, op: &Op) -> rusqlite::Result<()> {
    match op {
        Op::Insert(row) => tx
            .prepare_cached(
                "INSERT OR REPLACE INTO results (qpu_id, message_id, job_id, callback_url, status, error,
                     finished_at, body, phase) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
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
            ])?,
        Op::Announce(id) => set_phase(tx, qpu, *id, Phase::Announced, None)?,
        Op::Discard(id) => remove(tx, qpu, *id)?,
        Op::Refuse(id, why) => {
            set_phase(tx, qpu, *id, Phase::Refused, Some(why))?;
            to_history(tx, qpu, *id, now)?
        }
        Op::Delivered(id) => {
            to_history(tx, qpu, *id, now)?;
            remove(tx, qpu, *id)?
        }
        Op::Attempt(id, attempts, error) => tx
            .prepare_cached(
                "UPDATE results SET attempts = ?3, last_error = ?4 WHERE qpu_id = ?1 AND message_id = ?2",
            )?
            .execute(params![qpu, id.to_string(), attempts, error])?,
        Op::DeadLetter(letter) => tx
            .prepare_cached(
                "INSERT OR REPLACE INTO dead_letters (qpu_id, message_id, reason, fields, at)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![qpu, letter.message_id.to_string(), letter.reason, letter.fields, now])?,
        Op::Death(id) => tx
            .prepare_cached(
                "INSERT INTO deaths (message_id, count) VALUES (?1, 1)
                 ON CONFLICT (message_id) DO UPDATE SET count = count + 1",
            )?
            .execute(params![id.to_string()])?,
        Op::Alive(id) => {
            tx.prepare_cached("DELETE FROM deaths WHERE message_id = ?1")?.execute(params![id.to_string()])?
        }
    };
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

#[cfg(test)]
#[path = "db_tests.rs"]
mod tests;
