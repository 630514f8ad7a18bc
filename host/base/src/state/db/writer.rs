//! The thread behind [`Store`](super::Store): writes in groups, reads at once.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use tokio::sync::{oneshot, watch};

use super::ended_jobs::{self, HistoryLimits};
use super::rows::{HistoryEntry, ResultRow};
use super::sql::{Op, apply, result_row, status};
use super::view::{self, KeptOverview};
use super::{NewestInHistory, StoreError};
use crate::model::MessageId;
use crate::state::sqlite_actor::{Gather, GroupCommit, SqliteFailure, SqliteWorker, TakeOutcome};

/// How writes share transactions.
pub(super) const GROUPS: GroupCommit = GroupCommit {
    most: 256,
    deferred_wait: Duration::from_millis(100),
    gather: Some(Gather { pause: Duration::from_millis(1), from: 4 }),
};
/// What is kept against a second run of a job: the younger of a number of rows and an age.
const HISTORY_ROWS: i64 = 1_000_000;
const HISTORY_SECONDS: i64 = 30 * 86_400;
/// Old history is looked for once in so many transactions.
const PRUNE_EVERY: u64 = 10_000;

/// Gets the answer to a request; no one waits for it when the host stops.
type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the handle asks for.
pub(super) enum Request {
    /// To be on disk before it is answered.
    Write(Op, Reply<()>),
    /// May be lost in a crash.
    Lazy(Op),
    History(Vec<MessageId>, Reply<Vec<Option<HistoryEntry>>>),
    LoadResult(MessageId, Reply<Option<ResultRow>>),
    /// With so many entries.
    KeptOverview(usize, Reply<KeptOverview>),
}

/// A write that waits for the next transaction; lazy ones have no one to answer.
struct WaitingWrite {
    op: Op,
    reply: Option<Reply<()>>,
}

/// Which file a path led to when it was opened. What is written to one that was removed since is lost with the
/// process, although every write succeeds.
pub(super) struct OpenFile {
    path: PathBuf,
    id: (u64, u64),
}

impl OpenFile {
    /// # Errors
    /// When the file is not there.
    pub(super) fn at(path: PathBuf) -> std::io::Result<OpenFile> {
        let metadata = path.metadata()?;
        Ok(OpenFile { path, id: (metadata.dev(), metadata.ino()) })
    }

    fn is_in_place(&self) -> bool {
        self.path.metadata().is_ok_and(|now| (now.dev(), now.ino()) == self.id)
    }
}

pub(super) struct Writer {
    conn: Connection,
    file: OpenFile,
    qpu_id: String,
    newest: Arc<NewestInHistory>,
    waiting: Vec<WaitingWrite>,
    transactions: u64,
    limits: HistoryLimits,
    /// Rows for the record of ended jobs since old ones were removed; `None` before the first time.
    added: Option<u64>,
    /// Why the last transaction failed.
    failure: watch::Sender<Option<String>>,
}

impl SqliteWorker for Writer {
    type Request = Request;

    fn take(&mut self, request: Request) -> TakeOutcome {
        match request {
            Request::Write(op, reply) => {
                self.waiting.push(WaitingWrite { op, reply: Some(reply) });
                TakeOutcome::Urgent
            }
            Request::Lazy(op) => {
                self.waiting.push(WaitingWrite { op, reply: None });
                TakeOutcome::Deferred
            }
            Request::History(ids, reply) => {
                drop(reply.send(self.history_of(&ids).map_err(read_failed)));
                TakeOutcome::Answered
            }
            Request::KeptOverview(limit, reply) => {
                let overview = view::overview(&self.conn, &self.qpu_id, limit);
                drop(reply.send(overview.map_err(read_failed)));
                TakeOutcome::Answered
            }
            Request::LoadResult(id, reply) => {
                drop(reply.send(self.load_result(id).map_err(read_failed)));
                TakeOutcome::Answered
            }
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// One transaction for all; each write stands for itself, so that a bad one fails alone. Lazy writes of a transaction
    /// that fails are kept: whatever else is going on, something is then tried again, and its success is noticed.
    fn commit(&mut self) {
        let group = std::mem::take(&mut self.waiting);
        if group.is_empty() {
            return;
        }
        let done = self.transaction(&group);
        // Before any answer: whoever hears of a failed write finds the failure noted.
        self.note(&done);
        let results = match done {
            Ok(each) => each,
            Err(error) => {
                let (lazy, answered) = group.into_iter().partition(|write| write.reply.is_none());
                self.waiting = lazy;
                self.waiting.truncate(GROUPS.most / 2);
                return answer_all(answered, &error);
            }
        };
        let ends = group.iter().filter(|write| write.op.ends_a_job()).count() as u64;
        for (write, result) in group.into_iter().zip(results) {
            if let (Op::Delivered(id) | Op::Refuse(id, _), Ok(())) = (&write.op, &result) {
                self.newest.raise(*id);
            }
            match write.reply {
                Some(reply) => drop(reply.send(result)),
                None => {
                    if let Err(error) = result {
                        tracing::warn!(%error, "a lazy write to the state database failed");
                    }
                }
            }
        }
        self.transactions += 1;
        if self.transactions % PRUNE_EVERY == 1
            && let Err(error) = self.prune()
        {
            tracing::warn!(%error, "old history could not be removed");
        }
        self.prune_ended_jobs(ends);
    }
}

impl Writer {
    pub(super) fn new(
        conn: Connection,
        file: OpenFile,
        qpu_id: &str,
        newest: Arc<NewestInHistory>,
        limits: HistoryLimits,
    ) -> Writer {
        let qpu_id = qpu_id.to_string();
        Writer {
            conn,
            file,
            qpu_id,
            newest,
            waiting: Vec::new(),
            transactions: 0,
            limits,
            added: None,
            failure: watch::Sender::new(None),
        }
    }

    /// Why the last transaction failed; `None` once one succeeds.
    pub(super) fn failure(&self) -> watch::Receiver<Option<String>> {
        self.failure.subscribe()
    }

    fn note(&self, done: &Result<Vec<Result<(), StoreError>>, StoreError>) {
        let failure = done.as_ref().err().map(ToString::to_string);
        self.failure.send_if_modified(|known| {
            let changed = *known != failure;
            *known = failure;
            changed
        });
    }

    /// What became of each write, once their transaction is on disk.
    fn transaction(&mut self, group: &[WaitingWrite]) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        if !self.file.is_in_place() {
            return Err(StoreError::Removed { path: self.file.path.clone() });
        }
        // The lock is asked for once, and not by each write of the group in turn.
        let tx = self.conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(write_failed)?;
        let now = now_ms();
        let write = |w: &WaitingWrite| apply(&tx, &self.qpu_id, now, &w.op).map_err(write_failed);
        let each: Vec<Result<(), StoreError>> = group.iter().map(write).collect();
        // After some errors, such as a full disk, SQLite has rolled back by itself. The commit would then fail for the
        // lack of a transaction, which hides the cause.
        if tx.is_autocommit()
            && let Some(error) = each.iter().find_map(|result| result.as_ref().err())
        {
            return Err(error.clone());
        }
        tx.commit().map_err(write_failed)?;
        Ok(each)
    }

    fn history_of(&self, ids: &[MessageId]) -> rusqlite::Result<Vec<Option<HistoryEntry>>> {
        let mut query = self.conn.prepare_cached(
            "SELECT job_id, status, error, finished_at FROM history
             WHERE qpu_id = ?1 AND message_id = ?2",
        )?;
        let mut entry_of = |id: &MessageId| {
            let row = query.query_row(params![self.qpu_id, id.to_string()], |r| {
                Ok(HistoryEntry {
                    job_id: r.get::<_, String>(0)?.into(),
                    status: status(r, 1)?,
                    error: r.get(2)?,
                    finished_at: r.get(3)?,
                })
            });
            row.optional()
        };
        ids.iter().map(&mut entry_of).collect()
    }

    fn load_result(&self, id: MessageId) -> rusqlite::Result<Option<ResultRow>> {
        let mut query = self.conn.prepare_cached(
            "SELECT message_id, job_id, callback_url, status, error, finished_at, body, replaces FROM results
             WHERE qpu_id = ?1 AND message_id = ?2",
        )?;
        query.query_row(params![self.qpu_id, id.to_string()], |r| result_row(r, id)).optional()
    }

    /// Keeps the record of ended jobs within its limits: now and then, since looking for old rows takes a while.
    fn prune_ended_jobs(&mut self, added: u64) {
        let added = self.added.map_or(u64::MAX, |before| before + added);
        let is_due = added >= self.limits.prune_after();
        self.added = Some(if is_due { 0 } else { added });
        if is_due && let Err(error) = ended_jobs::prune(&self.conn, now_ms(), self.limits) {
            tracing::warn!(%error, "old rows could not be removed from the record of ended jobs");
        }
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

/// The time in milliseconds since 1970.
pub(super) fn now_ms() -> i64 {
    (time::OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000) as i64
}

fn answer_all(writes: Vec<WaitingWrite>, error: &StoreError) {
    for reply in writes.into_iter().filter_map(|write| write.reply) {
        drop(reply.send(Err(error.clone())));
    }
}

pub(super) fn read_failed(error: rusqlite::Error) -> StoreError {
    StoreError::Read(SqliteFailure::from(error))
}

pub(super) fn write_failed(error: rusqlite::Error) -> StoreError {
    StoreError::Write(SqliteFailure::from(error))
}
