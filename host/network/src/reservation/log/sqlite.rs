//! The log in a SQLite file: appends that arrive together share a transaction and its fsync. The write lock is taken
//! before anything is read, so writers of other processes wait.

mod queue;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use tokio::sync::oneshot;

use super::error::{AppendError, LogError, LogFailure};
use super::now_micros;
use super::queue::{JobSelection, QueueRequest, TakenJob};
use super::request::{Append, AppendOutcome, IdempotencyKey, JobRow, OpenStream, ReadRows, StoreRequest};
use super::row::{Row, fact_json};
use crate::reservation::event::EventBatch;
use crate::reservation::journal::JobFact;
use crate::reservation::stream::{StreamId, StreamKind, UnknownStream};
use crate::state::sqlite_actor::{
    self, GroupCommit, OpenError, Schema, SqliteActor, SqliteWorker, TakeOutcome,
};

const TABLES: &str = "
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
const SCHEMA: Schema = Schema {
    sql: TABLES,
    upgrades: &[queue::UPGRADE],
    // A peer's record of an hour is written without reading.
    cache_kib: Some(8192),
};
/// How appends share transactions. Batches wait for company: each transaction writes every page it touches, and holds
/// lie all over the index.
const GROUPS: GroupCommit =
    GroupCommit { most: 1024, deferred_wait: Duration::from_millis(200), gather: None };
/// Batches kept while the disk refuses; more than these are lost, as a peer's log is a record and not the truth.
const MAX_KEPT_BATCHES: usize = 8 * GROUPS.most;
/// A peer's record is kept up to so many events; a coordinator's is never shortened.
const HOLD_ROWS: i64 = 1_000_000;
const PRUNE_EVERY: u64 = 1_000;

/// The handle; clones share the one thread.
#[derive(Clone)]
pub struct Sqlite {
    actor: SqliteActor<StoreRequest>,
}

impl Sqlite {
    pub(super) fn open(path: &Path, writable: Arc<AtomicBool>) -> Result<Sqlite, LogError> {
        let location = path.display().to_string();
        let conn = match sqlite_actor::open(path, &SCHEMA) {
            Ok(conn) => conn,
            Err(OpenError::Unusable(failure)) => {
                return Err(LogError::Open { location, failure: LogFailure::File(failure) });
            }
            Err(OpenError::Newer { found }) => return Err(LogError::Newer { location, found }),
        };
        let writer = Writer {
            conn,
            path: path.into(),
            writable,
            transactions: 0,
            appends: Vec::new(),
            takes: Vec::new(),
            batches: Vec::new(),
            lease: None,
        };
        let actor = SqliteActor::start("event-log", GROUPS, writer)
            .map_err(|e| LogError::Open { location, failure: LogFailure::File(e.into()) })?;
        Ok(Sqlite { actor })
    }

    pub(super) fn submit(&self, request: StoreRequest) -> Result<(), LogError> {
        self.actor.send(request).map_err(|_| LogError::Stopped)
    }

    pub(super) fn close(&self) {
        self.actor.close();
    }
}

type Reply = oneshot::Sender<Result<AppendOutcome, AppendError>>;

/// Jobs to take for the holder of a token.
struct Take {
    token: String,
    which: JobSelection,
}

type TakeReply = oneshot::Sender<Result<Vec<TakenJob>, LogError>>;

struct Writer {
    conn: Connection,
    path: PathBuf,
    writable: Arc<AtomicBool>,
    transactions: u64,
    appends: Vec<(Append, Reply)>,
    takes: Vec<(Take, TakeReply)>,
    batches: Vec<EventBatch>,
    lease: Option<queue::FileLease>,
}

impl SqliteWorker for Writer {
    type Request = StoreRequest;

    fn take(&mut self, request: StoreRequest) -> TakeOutcome {
        match request {
            StoreRequest::Append(append, reply) => {
                self.appends.push((append, reply));
                return TakeOutcome::Urgent;
            }
            StoreRequest::Batches(batches) => {
                self.batches.extend(batches);
                return TakeOutcome::Deferred;
            }
            // A reader finds what was written before it asked.
            StoreRequest::Rows { stream, answer } => {
                self.commit();
                drop(answer.send(rows_of(&self.conn, &stream).map_err(read_failed)));
            }
            StoreRequest::Page { from, limit, answer } => {
                self.commit();
                drop(answer.send(page(&self.conn, from, limit).map_err(read_failed)));
            }
            StoreRequest::Open { kind, answer } => {
                self.commit();
                drop(answer.send(open_streams(&self.conn, kind).map_err(read_failed)));
            }
            StoreRequest::Keyed { key, answer } => {
                self.commit();
                drop(answer.send(stream_of_key(&self.conn, &key).map_err(read_failed)));
            }
            StoreRequest::Jobs { before, limit, answer } => {
                self.commit();
                drop(answer.send(jobs(&self.conn, before, limit).map_err(read_failed)));
            }
            StoreRequest::Begin { stream, answer } => {
                self.commit();
                drop(answer.send(begin(&self.conn, &stream).map_err(read_failed)));
            }
            StoreRequest::OpenHolds(answer) => {
                self.commit();
                drop(answer.send(open_holds(&self.conn).map_err(read_failed)));
            }
            StoreRequest::Queue(QueueRequest::Take { token, which, answer }) => {
                self.takes.push((Take { token, which }, answer));
                return TakeOutcome::Urgent;
            }
            StoreRequest::Queue(request) => {
                self.commit();
                self.answer(request);
            }
            StoreRequest::Flush(answer) => {
                self.commit();
                if answer.send(()).is_err() {
                    tracing::debug!("the event log was flushed for a caller that has gone");
                }
            }
        }
        TakeOutcome::Answered
    }

    fn waiting(&self) -> usize {
        self.appends.len() + self.takes.len() + self.batches.len()
    }

    fn commit(&mut self) {
        if self.waiting() == 0 {
            return;
        }
        let batches = std::mem::take(&mut self.batches);
        let (appends, replies): (Vec<Append>, Vec<Reply>) =
            std::mem::take(&mut self.appends).into_iter().unzip();
        let (takes, take_replies): (Vec<Take>, Vec<TakeReply>) =
            std::mem::take(&mut self.takes).into_iter().unzip();
        match self.transaction(appends, &takes, &batches) {
            Ok((each, taken)) => {
                // A look at an empty queue writes nothing, and shows nothing.
                let has_written =
                    !replies.is_empty() || !batches.is_empty() || !taken.iter().all(Vec::is_empty);
                if has_written {
                    self.writable.store(true, Ordering::Release);
                }
                for (reply, result) in replies.into_iter().zip(each) {
                    drop(reply.send(result));
                }
                for (reply, jobs) in take_replies.into_iter().zip(taken) {
                    drop(reply.send(Ok(jobs)));
                }
            }
            Err(error) => {
                let error = LogError::Write(error.into());
                // Once for as long as it is so: the log may be on the same full disk.
                let path = self.path.display();
                match self.writable.swap(false, Ordering::AcqRel) {
                    true => {
                        tracing::error!(%error, %path, "events could not be recorded; said once until they can")
                    }
                    false => tracing::debug!(%error, %path, "events could not be recorded"),
                }
                for reply in replies {
                    drop(reply.send(Err(error.clone().into())));
                }
                for reply in take_replies {
                    drop(reply.send(Err(error.clone())));
                }
                // Kept, within bounds, for when the disk has room again.
                if batches.len() < MAX_KEPT_BATCHES {
                    self.batches = batches;
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
}

impl Writer {
    fn transaction(
        &mut self,
        appends: Vec<Append>,
        takes: &[Take],
        batches: &[EventBatch],
    ) -> rusqlite::Result<(Vec<AppendResult>, Vec<Vec<TakenJob>>)> {
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
        let mut taken = Vec::with_capacity(takes.len());
        for Take { token, which } in takes {
            taken.push(match queue::holds(self.lease.as_ref(), token) {
                true => queue::take(&tx, token, which)?,
                false => Vec::new(),
            });
        }
        tx.commit()?;
        Ok((each, taken))
    }

    /// Answers a question about the queue, in a separate transaction where it changes something.
    fn answer(&mut self, request: QueueRequest) {
        let (conn, lease) = (&self.conn, self.lease.as_ref());
        match request {
            // With the others of its transaction.
            QueueRequest::Take { .. } => debug_assert!(false, "taken by the caller"),
            QueueRequest::Acquire(claimant, answer) => {
                drop(answer.send(queue::acquire(&self.path, &mut self.lease, &claimant)));
            }
            QueueRequest::Renew(claimant, answer) => {
                drop(answer.send(Ok(queue::holds(lease, &claimant.token))));
            }
            QueueRequest::Release { token, answer, .. } => {
                if queue::holds(lease, &token) {
                    self.lease = None;
                }
                drop(answer.send(Ok(())));
            }
            QueueRequest::FreeAbandoned(answer) => {
                drop(answer.send(queue::free_abandoned(conn, lease).map_err(write_failed)));
            }
            QueueRequest::GiveBack { token, job_ids, answer } => {
                drop(answer.send(queue::give_back(conn, &token, &job_ids).map_err(write_failed)));
            }
            QueueRequest::Assigned { token, answer } => {
                drop(answer.send(queue::assigned(conn, &token).map_err(read_failed)));
            }
            QueueRequest::Waiting(answer) => {
                drop(answer.send(queue::waiting(conn).map_err(read_failed)));
            }
        }
    }
}

type AppendResult = Result<AppendOutcome, AppendError>;

/// One append; only the database's own errors end the transaction.
fn apply(tx: &Transaction<'_>, position: &mut i64, append: Append) -> rusqlite::Result<AppendResult> {
    if let Some(key) = &append.key
        && let Some(stream) = stream_of_key(tx, key)?
    {
        let rows = rows_of(tx, &stream)?;
        return Ok(Ok(AppendOutcome { stream, rows, is_new: false }));
    }
    let mut rows = match append.reads {
        ReadRows::All => rows_of(tx, &append.stream)?,
        ReadRows::Last => last_of(tx, &append.stream)?,
    };
    let now = now_micros();
    let decided = match (append.decide)(&rows, now) {
        Ok(decided) => decided,
        Err(error) => return Ok(Err(error)),
    };
    let stream = append.stream.to_string();
    if let Err(error) = queue::check(tx, &stream, &append.queue)? {
        return Ok(Err(error));
    }
    queue::update(tx, &stream, &append.queue, &decided, *position + 1)?;
    let mut seq = rows.last().map_or(0, |r| r.seq);
    for body in decided.bodies {
        *position += 1;
        seq += 1;
        let row = Row::new(*position, &append.stream, seq, now, body);
        insert(tx, &row)?;
        rows.push(row);
    }
    if let Some(IdempotencyKey { caller, key }) = append.key {
        tx.prepare_cached("INSERT INTO keys (caller, key, stream) VALUES (?1, ?2, ?3)")?
            .execute(params![caller, key, stream])?;
    }
    Ok(Ok(AppendOutcome { stream: append.stream, rows, is_new: true }))
}

/// A stream's name as it is read from the file; one that is none is damage of that row.
fn stream_named(name: &str) -> rusqlite::Result<StreamId> {
    let damaged = |e: UnknownStream| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(e))
    };
    name.parse().map_err(damaged)
}

fn stream_of_key(conn: &Connection, key: &IdempotencyKey) -> rusqlite::Result<Option<StreamId>> {
    let name: Option<String> = conn
        .prepare_cached("SELECT stream FROM keys WHERE caller = ?1 AND key = ?2")?
        .query_row([&key.caller, &key.key], |r| r.get(0))
        .optional()?;
    name.map(|name| stream_named(&name)).transpose()
}

fn begin(conn: &Connection, stream: &StreamId) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT position FROM events WHERE stream = ?1 AND seq = 1")?
        .query_row([stream.to_string()], |r| r.get(0))
        .optional()
}

/// From the newest row backwards, because the newest jobs are asked for most. The plus keeps the index of the streams
/// out, which has another order.
fn jobs(conn: &Connection, before: Option<i64>, limit: usize) -> rusqlite::Result<Vec<JobRow>> {
    let mut query = conn.prepare_cached(
        "SELECT b.position, b.stream, b.at, l.at, json_extract(b.body, '$.shots'), json_extract(l.body, '$.kind'),
             coalesce(json_extract(l.body, '$.error'), json_extract(l.body, '$.reason'))
         FROM events b JOIN events l ON l.stream = b.stream AND l.seq = (
             SELECT seq - (body = ?3) FROM events WHERE stream = b.stream ORDER BY seq DESC LIMIT 1)
         WHERE b.position < ?1 AND +b.seq = 1 AND +b.stream >= 'job/' AND +b.stream < 'job0'
         ORDER BY b.position DESC LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let released = fact_json(&JobFact::Released);
    let rows = query.query_map(params![before.unwrap_or(i64::MAX), limit, released], |r| {
        Ok(JobRow {
            position: r.get(0)?,
            job_id: stream_named(&r.get::<_, String>(1)?)?.id,
            submitted_at: r.get(2)?,
            last_at: r.get(3)?,
            shots: r.get(4)?,
            last_kind: r.get(5)?,
            error: r.get(6)?,
        })
    })?;
    rows.collect()
}

fn insert(conn: &Connection, row: &Row) -> rusqlite::Result<usize> {
    conn.prepare_cached(
        "INSERT INTO events (position, stream, seq, at, version, body, sum) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![row.position, row.stream, row.seq, row.at, row.version, row.body, row.sum])
}

fn last_seq(conn: &Connection, stream: &StreamId) -> rusqlite::Result<i64> {
    conn.prepare_cached("SELECT coalesce(max(seq), 0) FROM events WHERE stream = ?1")?
        .query_row([stream.to_string()], |r| r.get(0))
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

fn rows_of(conn: &Connection, stream: &StreamId) -> rusqlite::Result<Vec<Row>> {
    let mut query = conn.prepare_cached(
        "SELECT position, stream, seq, at, version, body, sum FROM events WHERE stream = ?1 ORDER BY seq",
    )?;
    let rows = query.query_map([stream.to_string()], row)?;
    rows.collect()
}

fn last_of(conn: &Connection, stream: &StreamId) -> rusqlite::Result<Vec<Row>> {
    let mut query = conn.prepare_cached(
        "SELECT position, stream, seq, at, version, body, sum FROM events WHERE stream = ?1
         ORDER BY seq DESC LIMIT 1",
    )?;
    let rows = query.query_map([stream.to_string()], row)?;
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

fn open_streams(conn: &Connection, kind: StreamKind) -> rusqlite::Result<Vec<OpenStream>> {
    let mut query = conn.prepare_cached(
        "SELECT stream, until FROM open WHERE substr(stream, 1, length(?1)) = ?1 ORDER BY until, stream",
    )?;
    let open = query.query_map([kind.prefix()], |r| {
        Ok(OpenStream { stream: stream_named(&r.get::<_, String>(0)?)?, until: r.get(1)? })
    })?;
    open.collect()
}

/// By the form in which facts are written, which is fixed: to read each of a million events takes seconds.
fn open_holds(conn: &Connection) -> rusqlite::Result<Vec<StreamId>> {
    let mut query = conn.prepare(
        r#"SELECT stream FROM events WHERE stream >= 'hold/' AND stream < 'hold0' GROUP BY stream
           HAVING sum(body LIKE '{"kind":"accepted",%"held":true}') > sum(body LIKE '{"kind":"hold_released",%')"#,
    )?;
    let streams = query.query_map([], |r| stream_named(&r.get::<_, String>(0)?))?;
    streams.collect()
}

fn prune(conn: &Connection) -> rusqlite::Result<()> {
    let newest: i64 = conn.query_row("SELECT coalesce(max(position), 0) FROM events", [], |r| r.get(0))?;
    conn.prepare_cached("DELETE FROM events WHERE position < ?1 AND substr(stream, 1, 5) = 'hold/'")?
        .execute([newest - HOLD_ROWS])?;
    Ok(())
}

fn write_failed(e: rusqlite::Error) -> LogError {
    LogError::Write(e.into())
}

fn read_failed(e: rusqlite::Error) -> LogError {
    LogError::Read(e.into())
}
