//! A SQLite file behind one thread: opened with the same care, written by group commit, closed in order.
//!
//! ```text
//! handles ── requests ──> thread: take, take, take ... commit      one transaction, one fsync, for all that was taken
//! ```
//!
//! An urgent request is committed at once, together with whatever has arrived by then. A deferred one waits a short
//! while for an urgent one to share its fsync with. Under load a transaction waits a moment for company: fewer fsyncs,
//! and fewer wake-ups of the thread. What a request means is the [`SqliteWorker`]'s concern.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use super::files::{self, FileError};
use crate::error::{Failure, exit};

/// How long another process may hold the write lock before a write fails as busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Pages of the write-ahead log before they are moved into the file. Moving them costs two fsyncs, and a page that
/// was written several times is moved once; 16 MiB of log is read quickly at the next start.
const CHECKPOINT_PAGES: i64 = 4096;
const CACHED_STATEMENTS: usize = 32;

/// What kind of failure the database or its disk reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqliteCause {
    /// Another process holds the lock.
    Busy,
    DiskFull,
    ReadOnly,
    /// The disk reports an error.
    InputOutput,
    /// The content of the file is not a sound database.
    Damaged,
    Other,
}

/// A read or write that SQLite refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqliteFailure {
    pub cause: SqliteCause,
    text: String,
}

impl fmt::Display for SqliteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<rusqlite::Error> for SqliteFailure {
    fn from(error: rusqlite::Error) -> SqliteFailure {
        let cause = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => SqliteCause::Busy,
            Some(ErrorCode::DiskFull) => SqliteCause::DiskFull,
            Some(ErrorCode::ReadOnly) => SqliteCause::ReadOnly,
            Some(ErrorCode::SystemIoFailure) => SqliteCause::InputOutput,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => SqliteCause::Damaged,
            _ => SqliteCause::Other,
        };
        SqliteFailure { cause, text: error.to_string() }
    }
}

/// A disk that reports a failure before SQLite comes to use it.
impl From<FileError> for SqliteFailure {
    fn from(error: FileError) -> SqliteFailure {
        let cause = match &error {
            FileError::Io { source, .. } => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => SqliteCause::DiskFull,
                io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => SqliteCause::ReadOnly,
                _ if files::is_passing(source) => SqliteCause::InputOutput,
                _ => SqliteCause::Other,
            },
            _ => SqliteCause::Other,
        };
        SqliteFailure { cause, text: Failure::from(error).line() }
    }
}

impl From<io::Error> for SqliteFailure {
    fn from(error: io::Error) -> SqliteFailure {
        let cause = if files::is_passing(&error) { SqliteCause::InputOutput } else { SqliteCause::Other };
        SqliteFailure { cause, text: error.to_string() }
    }
}

impl SqliteFailure {
    /// Whether it can pass without anything being corrected in the settings: a later start may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(self.cause, SqliteCause::Busy | SqliteCause::DiskFull | SqliteCause::InputOutput)
    }

    /// Whether the content of the file is not a sound database.
    pub fn is_damaged(&self) -> bool {
        self.cause == SqliteCause::Damaged
    }

    /// The exit status of a process that it ends.
    pub fn exit(&self) -> u8 {
        if self.is_passing() { exit::FAILURE } else { exit::CONFIG }
    }

    /// What to do when a write failed for this reason; `what` names the database, as in "the event log".
    pub fn write_hint(&self, what: &str) -> String {
        match self.cause {
            SqliteCause::DiskFull | SqliteCause::Other => format!("free space on the disk of {what}"),
            SqliteCause::ReadOnly => {
                format!("make the file and the directory of {what} writable for this user")
            }
            SqliteCause::Busy | SqliteCause::InputOutput | SqliteCause::Damaged => self.read_hint(what),
        }
    }

    /// What to do when a read failed for this reason; `what` names the database, as in "the event log".
    pub fn read_hint(&self, what: &str) -> String {
        match self.cause {
            SqliteCause::Busy => {
                format!("stop the other program that holds {what} open, such as a backup or an sqlite3 shell")
            }
            SqliteCause::Damaged => {
                format!("restore the file of {what} from a backup, or move it away to begin a new one")
            }
            SqliteCause::DiskFull => format!("free space on the disk of {what}"),
            SqliteCause::ReadOnly => {
                format!("make the file and the directory of {what} writable for this user")
            }
            _ => format!(
                "check the disk of {what} (dmesg, smartctl), that this user may read the file, and the limit on open \
                 files (ulimit -n)"
            ),
        }
    }
}

/// What is in a database file.
pub struct Schema {
    /// The statements that make the tables of version 1.
    pub sql: &'static str,
    /// The statements that lead from each version to the next one; a new file goes through all of them.
    pub upgrades: &'static [&'static str],
    /// KiB of pages kept in memory; `None` leaves SQLite's own choice.
    pub cache_kib: Option<i64>,
}

impl Schema {
    /// The version that this host writes and reads.
    pub const fn version(&self) -> i64 {
        // Upgrades are few.
        1 + self.upgrades.len() as i64
    }
}

/// Why a file could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenError {
    Unusable(SqliteFailure),
    /// The file was written by a newer coda-host.
    Newer {
        found: i64,
    },
}

impl<E: Into<SqliteFailure>> From<E> for OpenError {
    fn from(error: E) -> OpenError {
        OpenError::Unusable(error.into())
    }
}

/// Opens or makes the database at `path`, and its directory. A file of an earlier version is upgraded.
///
/// # Errors
/// When the directory or the file can't be made or used, or has a newer schema.
pub fn open(path: &Path, schema: &Schema) -> Result<Connection, OpenError> {
    if let Some(dir) = path.parent() {
        files::ensure_dir(dir)?;
    }
    // SQLite creates files by the umask; the content may be confidential. Its side files take this one's mode.
    files::private(path)?;
    let conn = Connection::open(path)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    if let Some(kib) = schema.cache_kib {
        // A negative number is a size in KiB, a positive one a number of pages.
        conn.pragma_update(None, "cache_size", -kib)?;
    }
    conn.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);

    let version = || conn.pragma_query_value(None, "user_version", |r| r.get::<_, i64>(0));
    if version()? < schema.version() {
        // Two processes may come at once: the one that gets the lock second finds the tables made. Dropped without a
        // commit, after an error, the transaction is rolled back.
        let tx = rusqlite::Transaction::new_unchecked(&conn, TransactionBehavior::Immediate)?;
        let found = version()?;
        if found == 0 {
            tx.execute_batch(schema.sql)?;
        }
        // Each upgrade is behind the version that it leads from.
        for (from, upgrade) in (1..).zip(schema.upgrades) {
            if found <= from {
                tx.execute_batch(upgrade)?;
            }
        }
        tx.pragma_update(None, "user_version", found.max(schema.version()))?;
        tx.commit()?;
    }
    let found = version()?;
    if found == schema.version() { Ok(conn) } else { Err(OpenError::Newer { found }) }
}

/// What became of a request that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOutcome {
    /// It is answered; nothing of it waits for a transaction.
    Answered,
    /// It waits for the next transaction, which it does not cause at once.
    Deferred,
    /// It waits for the next transaction, which is to come at once.
    Urgent,
}

/// What the thread does with requests: one kind of database.
pub trait SqliteWorker: Send + 'static {
    type Request: Send + 'static;

    /// Answers a request, or keeps it for the next transaction.
    fn take(&mut self, request: Self::Request) -> TakeOutcome;

    /// How many requests wait for the next transaction.
    fn waiting(&self) -> usize;

    /// Performs what waits in one transaction and answers it.
    fn commit(&mut self);
}

/// How requests share transactions.
#[derive(Debug, Clone, Copy)]
pub struct GroupCommit {
    /// Most requests of one transaction.
    pub most: usize,
    /// How long a deferred request may wait.
    pub deferred_wait: Duration,
    /// What a transaction waits for company under load.
    pub gather: Option<Gather>,
}

/// How long a transaction waits for company, once one has had so many requests.
#[derive(Debug, Clone, Copy)]
pub struct Gather {
    pub pause: Duration,
    pub from: usize,
}

enum Message<R> {
    Request(R),
    Stop,
}

/// The thread has ended, so the request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActorStopped;

/// The handle; clones share the one thread.
pub struct SqliteActor<R> {
    messages: Sender<Message<R>>,
    thread: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

impl<R> Clone for SqliteActor<R> {
    fn clone(&self) -> SqliteActor<R> {
        SqliteActor { messages: self.messages.clone(), thread: self.thread.clone() }
    }
}

impl<R: Send + 'static> SqliteActor<R> {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system starts no more threads.
    pub fn start(
        name: &'static str,
        groups: GroupCommit,
        worker: impl SqliteWorker<Request = R>,
    ) -> std::io::Result<SqliteActor<R>> {
        let (messages, inbox) = channel();
        let run = move || run(worker, &inbox, groups);
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(SqliteActor { messages, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Hands a request to the thread.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn send(&self, request: R) -> Result<(), ActorStopped> {
        self.messages.send(Message::Request(request)).map_err(|_| ActorStopped)
    }

    /// Has everything written that was sent so far, closes the file and waits for the thread.
    pub fn close(&self) {
        if self.messages.send(Message::Stop).is_err() {
            tracing::debug!("the database thread had ended before");
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        let name = thread.thread().name().unwrap_or("unnamed").to_string();
        if thread.join().is_err() {
            tracing::error!(thread = name, "a database thread panicked; report this as a bug");
        }
    }
}

fn run<W: SqliteWorker>(mut worker: W, inbox: &Receiver<Message<W::Request>>, groups: GroupCommit) {
    let mut deferred_since: Option<Instant> = None;
    let mut is_under_load = false;
    loop {
        let next = match deferred_since {
            Some(since) => inbox.recv_timeout(groups.deferred_wait.saturating_sub(since.elapsed())),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let mut is_urgent = false;
        let mut stops = false;
        let mut take = |message, is_urgent: &mut bool, stops: &mut bool| match message {
            Message::Stop => *stops = true,
            Message::Request(request) => match worker.take(request) {
                TakeOutcome::Answered => {}
                TakeOutcome::Deferred => drop(deferred_since.get_or_insert_with(Instant::now)),
                TakeOutcome::Urgent => *is_urgent = true,
            },
        };
        match next {
            Ok(message) => take(message, &mut is_urgent, &mut stops),
            Err(RecvTimeoutError::Timeout) => is_urgent = true,
            // Every handle is gone.
            Err(RecvTimeoutError::Disconnected) => stops = true,
        }

        if is_urgent && !stops {
            if is_under_load && let Some(gather) = groups.gather {
                std::thread::sleep(gather.pause);
            }
            // The count of what is taken here, answered requests included, bounds the time to the commit.
            for _ in 0..groups.most {
                let Ok(message) = inbox.try_recv() else { break };
                take(message, &mut is_urgent, &mut stops);
                if stops {
                    break;
                }
            }
        }

        let waiting = worker.waiting();
        if is_urgent || stops || waiting >= groups.most {
            is_under_load = groups.gather.is_some_and(|gather| waiting >= gather.from);
            worker.commit();
            // What could not be written and is kept waits like a deferred request.
            deferred_since = (worker.waiting() > 0).then(Instant::now);
        }
        if stops {
            return;
        }
    }
}

#[cfg(test)]
#[path = "sqlite_actor_tests.rs"]
mod tests;
