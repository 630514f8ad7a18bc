//! The log in a SQLite file: one thread owns the connection, appends that arrive together share a transaction
//! and its fsync. The write lock is taken before anything is read, so writers of other processes wait.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use tokio::sync::oneshot;

use crate::reservation::event::EventBatch;

use super::{Append, AppendError, Appended, LogError, LooksAt, Row, StoreRequest, fact_json, now_micros};
use crate::state::files;

const SCHEMA_VERSION: i64 = 1;
const SCHEMA: &str = "
    CREATE TABLE events (
        position INTEGER PRIMARY KEY,
        stream TEXT NOT NULL,
        seq INTEGER NOT NULL,
        at INTEGER NOT NULL,
        version INTEGER NOT NULL,
        body TEXT NOT NULL,
        sum TEXT NOT NULL,
        UNIQUE (stream, seq)
    );
    CREATE TABLE keys (
        caller TEXT NOT NULL,
        key TEXT NOT NULL,
        stream TEXT NOT NULL,
        PRIMARY KEY (caller, key)
    ) WITHOUT ROWID;
    -- Streams without an end, found again at a start; follows from the events.
    CREATE TABLE open (stream TEXT PRIMARY KEY, until INTEGER NOT NULL) WITHOUT ROWID;
";
/// Most requests of one transaction.
const GROUP_MAX: usize = 1024;
/// How long batches wait for company: each transaction writes every page it touches, and holds lie all over the index.
const BATCH_WAIT: Duration = Duration::from_millis(200);
/// Pages of the log before they are moved to the file, in which the same page is moved once.
const CHECKPOINT_PAGES: i64 = 4096;
/// KiB of pages kept in memory, so that a peer's record of an hour is written without reading.
const CACHE_KIB: i64 = 8192;
/// A peer's record is kept up to so many events; a coordinator's is never shortened.
const HOLD_ROWS: i64 = 1_000_000;
const PRUNE_EVERY: u64 = 1_000;
/// How long another process may hold the write lock.
const BUSY: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct Sqlite {
    requests: Sender<StoreRequest>,
    thread: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

impl Sqlite {
    pub(super) fn open(path: &Path, writable: Arc<AtomicBool>) -> Result<Sqlite, LogError> {
        let location = path.display().to_string();
        let fail =
            |e: &dyn std::fmt::Display| LogError::Open { location: location.clone(), text: e.to_string() };
        if let Some(dir) = path.parent() {
            files::ensure_dir(dir).map_err(|e| fail(&e))?;
        }
        files::private(path).map_err(|e| fail(&e))?;
        let conn = Connection::open(path).map_err(|e| fail(&e))?;
        prepare(&conn, &location)?;
        let (requests, inbox) = channel();
        let writer = Writer {
            conn,
            path: path.into(),
            writable,
            transactions: 0,
            batches: Vec::new(),
            oldest_batch: None,
        };
        let thread = std::thread::Builder::new()
            .name("event-log".into())
            .spawn(move || writer.run(&inbox))
            .map_err(|e| fail(&e))?;
        Ok(Sqlite { requests, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    pub(super) fn submit(&self, request: StoreRequest) -> Result<(), LogError> {
        self.requests.send(request).map_err(|_| LogError::Stopped)
    }

    pub(super) fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|t| t.join().is_err()) {
            tracing::error!("the event log's thread ended badly; please report this as a bug");
        }
    }
}

fn prepare(conn: &Connection, location: &str) -> Result<(), LogError> {
    let fail = |e: rusqlite::Error| LogError::Open { location: location.into(), text: e.to_string() };
    conn.busy_timeout(BUSY).map_err(fail)?;
    conn.pragma_update(None, "journal_mode", "WAL").map_err(fail)?;
    conn.pragma_update(None, "synchronous", "FULL").map_err(fail)?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES).map_err(fail)?;
    conn.pragma_update(None, "cache_size", -CACHE_KIB).map_err(fail)?;
    conn.set_prepared_statement_cache_capacity(32);
    let version = || conn.pragma_query_value(None, "user_version", |r| r.get::<_, i64>(0));
    if version().map_err(fail)? == 0 {
        // Two processes may come at once: who gets the lock second finds it made.
        conn.execute_batch("BEGIN IMMEDIATE").map_err(fail)?;
        if version().map_err(fail)? == 0 {
            let make = format!("{SCHEMA} PRAGMA user_version = {SCHEMA_VERSION};");
            conn.execute_batch(&make).map_err(fail)?;
        }
        conn.execute_batch("COMMIT").map_err(fail)?;
    }
    match version().map_err(fail)? {
        SCHEMA_VERSION => Ok(()),
        found => Err(LogError::Newer { location: location.into(), found }),
    }
}

struct Writer {
    conn: Connection,
    path: PathBuf,
    writable: Arc<AtomicBool>,
    transactions: u64,
    batches: Vec<EventBatch>,
    /// When the oldest waiting batch came.
    oldest_batch: Option<Instant>,
}

type Answer = oneshot::Sender<Result<Appended, AppendError>>;

impl Writer {
    fn run(mut self, inbox: &Receiver<StoreRequest>) {
        let mut group: Vec<(Append, Answer)> = Vec::new();
        loop {
            let next = match self.oldest_batch {
                Some(since) => inbox.recv_timeout(BATCH_WAIT.saturating_sub(since.elapsed())),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let mut now = false;
            let mut stop = false;
            match next {
                Ok(request) => self.take(request, &mut group, &mut now, &mut stop),
                Err(RecvTimeoutError::Timeout) => now = true,
                Err(RecvTimeoutError::Disconnected) => stop = true,
            }
            while now && !stop && group.len() < GROUP_MAX {
                let Ok(request) = inbox.try_recv() else { break };
                self.take(request, &mut group, &mut now, &mut stop);
            }
            if now || stop || self.batches.len() >= GROUP_MAX {
                self.commit(std::mem::take(&mut group));
            }
            if stop {
                return;
            }
        }
    }

    fn take(
        &mut self,
        request: StoreRequest,
        group: &mut Vec<(Append, Answer)>,
        now: &mut bool,
        stop: &mut bool,
    ) {
        match request {
            StoreRequest::Append(append, answer) => {
                group.push((append, answer));
                *now = true;
            }
            StoreRequest::Batches(batches) => {
                self.batches.extend(batches);
                self.oldest_batch.get_or_insert_with(Instant::now);
            }
            StoreRequest::Rows { stream, answer } => {
                self.commit(std::mem::take(group));
                drop(answer.send(rows_of(&self.conn, &stream).map_err(read_failed)));
            }
            StoreRequest::Page { from, limit, answer } => {
                self.commit(std::mem::take(group));
                drop(answer.send(page(&self.conn, from, limit).map_err(read_failed)));
            }
            StoreRequest::Open { prefix, answer } => {
                self.commit(std::mem::take(group));
                drop(answer.send(open_streams(&self.conn, prefix).map_err(read_failed)));
            }
            StoreRequest::Flush(answer) => {
                self.commit(std::mem::take(group));
                answer.send(()).ok();
            }
            StoreRequest::Stop => *stop = true,
        }
    }

    fn commit(&mut self, group: Vec<(Append, Answer)>) {
        if group.is_empty() && self.batches.is_empty() {
            return;
        }
        self.oldest_batch = None;
        let batches = std::mem::take(&mut self.batches);
        let mut answers = Vec::with_capacity(group.len());
        let mut appends = Vec::with_capacity(group.len());
        for (append, answer) in group {
            appends.push(append);
            answers.push(answer);
        }
        let outcome = self.transaction(appends, &batches);
        match outcome {
            Ok(each) => {
                self.writable.store(true, Ordering::Release);
                for (answer, result) in answers.into_iter().zip(each) {
                    drop(answer.send(result));
                }
            }
            Err(error) => {
                let error = LogError::Write(error.to_string());
                self.writable.store(false, Ordering::Release);
                tracing::error!(%error, path = %self.path.display(), "events could not be recorded");
                for answer in answers {
                    drop(answer.send(Err(error.clone().into())));
                }
                // Kept, within bounds, for when the disk has room again.
                if batches.len() < 8 * GROUP_MAX {
                    self.batches = batches;
                    self.oldest_batch = Some(Instant::now());
                }
            }
        }
        self.transactions += 1;
        if self.transactions.is_multiple_of(PRUNE_EVERY)
            && let Err(error) = prune(&self.conn)
        {
            tracing::warn!(%error, "old events could not be removed");
        }
    }

    fn transaction(
        &mut self,
        appends: Vec<Append>,
        batches: &[EventBatch],
    ) -> rusqlite::Result<Vec<Result<Appended, AppendError>>> {
        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut position: i64 =
            tx.query_row("SELECT coalesce(max(position), 0) FROM events", [], |r| r.get(0))?;
        for batch in batches {
            let stream = batch.stream();
            let mut seq = last_seq(&tx, &stream)?;
            for fact in &batch.facts {
                position += 1;
                seq += 1;
                insert(&tx, &Row::new(position, &stream, seq, batch.at, fact_json(fact)))?;
            }
        }
        let mut each = Vec::with_capacity(appends.len());
        for append in appends {
            each.push(apply(&tx, &mut position, append)?);
        }
        tx.commit()?;
        Ok(each)
    }
}

/// One append; only the database's own errors end the transaction.
fn apply(
    tx: &Transaction<'_>,
    position: &mut i64,
    append: Append,
) -> rusqlite::Result<Result<Appended, AppendError>> {
    if let Some((caller, key)) = &append.key {
        let known: Option<String> = tx
            .prepare_cached("SELECT stream FROM keys WHERE caller = ?1 AND key = ?2")?
            .query_row([caller, key], |r| r.get(0))
            .optional()?;
        if let Some(stream) = known {
            let rows = rows_of(tx, &stream)?;
            return Ok(Ok(Appended { stream, rows, fresh: false }));
        }
    }
    let mut rows = match append.looks_at {
        LooksAt::All => rows_of(tx, &append.stream)?,
        LooksAt::Last => last_of(tx, &append.stream)?,
    };
    let now = now_micros();
    let decided = match (append.decide)(&rows, now) {
        Ok(decided) => decided,
        Err(error) => return Ok(Err(error)),
    };
    let mut seq = rows.last().map_or(0, |r| r.seq);
    for body in decided.bodies {
        *position += 1;
        seq += 1;
        let row = Row::new(*position, &append.stream, seq, now, body);
        insert(tx, &row)?;
        rows.push(row);
    }
    match decided.open_until {
        Some(until) => tx
            .prepare_cached("INSERT OR REPLACE INTO open (stream, until) VALUES (?1, ?2)")?
            .execute(params![append.stream, until])?,
        None => tx.prepare_cached("DELETE FROM open WHERE stream = ?1")?.execute(params![append.stream])?,
    };
    if let Some((caller, key)) = append.key {
        tx.prepare_cached("INSERT INTO keys (caller, key, stream) VALUES (?1, ?2, ?3)")?.execute(params![
            caller,
            key,
            append.stream
        ])?;
    }
    Ok(Ok(Appended { stream: append.stream, rows, fresh: true }))
}

fn insert(conn: &Connection, row: &Row) -> rusqlite::Result<usize> {
    conn.prepare_cached(
        "INSERT INTO events (position, stream, seq, at, version, body, sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![row.position, row.stream, row.seq, row.at, row.version, row.body, row.sum])
}

fn last_seq(conn: &Connection, stream: &str) -> rusqlite::Result<i64> {
    conn.prepare_cached("SELECT coalesce(max(seq), 0) FROM events WHERE stream = ?1")?
        .query_row([stream], |r| r.get(0))
}

fn row(r: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    Ok(Row {
        position: r.get(0)?,
        stream: r.get(1)?,
        seq: r.get(2)?,
        at: r.get(3)?,
        version: r.get(4)?,
        body: r.get(5)?,
        sum: r.get(6)?,
    })
}

fn rows_of(conn: &Connection, stream: &str) -> rusqlite::Result<Vec<Row>> {
    let mut query = conn.prepare_cached(
        "SELECT position, stream, seq, at, version, body, sum FROM events WHERE stream = ?1 ORDER BY seq",
    )?;
    let rows = query.query_map([stream], row)?;
    rows.collect()
}

fn last_of(conn: &Connection, stream: &str) -> rusqlite::Result<Vec<Row>> {
    let mut query = conn.prepare_cached(
        "SELECT position, stream, seq, at, version, body, sum FROM events WHERE stream = ?1
         ORDER BY seq DESC LIMIT 1",
    )?;
    let rows = query.query_map([stream], row)?;
    rows.collect()
}

fn page(conn: &Connection, from: i64, limit: usize) -> rusqlite::Result<Vec<Row>> {
    let mut query = conn.prepare_cached(
        "SELECT position, stream, seq, at, version, body, sum FROM events WHERE position >= ?1
         ORDER BY position LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = query.query_map([from, limit], row)?;
    rows.collect()
}

fn open_streams(conn: &Connection, prefix: &str) -> rusqlite::Result<Vec<(String, i64)>> {
    let mut query = conn.prepare_cached(
        "SELECT stream, until FROM open WHERE substr(stream, 1, length(?1)) = ?1 ORDER BY until, stream",
    )?;
    let rows = query.query_map([prefix], |r| Ok((r.get(0)?, r.get(1)?)))?;
    rows.collect()
}

fn prune(conn: &Connection) -> rusqlite::Result<()> {
    let newest: i64 = conn.query_row("SELECT coalesce(max(position), 0) FROM events", [], |r| r.get(0))?;
    conn.prepare_cached("DELETE FROM events WHERE position < ?1 AND substr(stream, 1, 5) = 'hold/'")?
        .execute([newest - HOLD_ROWS])?;
    Ok(())
}

fn read_failed(e: rusqlite::Error) -> LogError {
    LogError::Read(e.to_string())
}
