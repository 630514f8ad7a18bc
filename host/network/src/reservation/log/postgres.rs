//! The log in PostgreSQL, for coordinators that share one: a few connections, each append a separate transaction. Leases
//! are renewed over a connection for this alone, so that they don't wait behind appends.
//!
//! A transaction first takes an advisory lock on its stream (and before that on its idempotency key), so that what it
//! decides on can't change under it, whoever else writes. A lost connection is replaced for the next request, with
//! growing pauses while that fails; an append that was under way is answered as failed, and its transaction is rolled
//! back by the server, unless it was just being committed. A request that gets no answer for long is given up with its
//! connection; and the server ends the connection of a coordinator that has stopped in the middle of a transaction.

mod listener;
mod queue;
mod schema;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, broadcast, mpsc};
use tokio::time::Instant;
use tokio_postgres::{Client, NoTls, Transaction};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::error::{AppendError, LogError};
use super::queue::{QueueChange, QueueRequest};
use super::request::{Append, AppendOutcome, IdempotencyKey, JobRow, OpenStream, ReadRows, StoreRequest};
use super::row::{Row, fact_json};
use crate::backoff::Backoff;
use crate::reservation::event::EventBatch;
use crate::reservation::journal::JobFact;
use crate::reservation::stream::{StreamId, UnknownStream};

/// Questions under way at once.
const CONNECTIONS: usize = 4;
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long one request may take before its connection is given up.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// How the server is to treat a connection: one that stops inside a transaction holds locks that others need.
const SESSION: &str = "SET idle_in_transaction_session_timeout = '5s'";
/// How long connections may take to end.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// Pauses between tries to replace a lost connection; a request that comes in a pause fails at once.
const RECONNECT_FIRST: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// Jobs from the newest to the oldest: position, stream, times of the first and the last fact, shots, kind and error.
///
/// PostgreSQL has no U+0000 in its texts and fails at a body that has one anywhere, so it is read as U+FFFD.
const JOBS: &str = r"
    SELECT b.position, b.stream, b.at, l.at, (b.body->>'shots')::bigint, l.body->>'kind',
        coalesce(l.body->>'error', l.body->>'reason')
    FROM (SELECT position, stream, at, seq, replace(body, '\u0000', '\ufffd')::json AS body FROM coda_events) b
    JOIN (SELECT stream, at, seq, replace(body, '\u0000', '\ufffd')::json AS body FROM coda_events) l
    ON l.stream = b.stream AND l.seq = (
        SELECT seq - (body = $3)::int FROM coda_events WHERE stream = b.stream ORDER BY seq DESC LIMIT 1)
    WHERE b.position < $1 AND b.seq = 1 AND starts_with(b.stream, 'job/')
    ORDER BY b.position DESC LIMIT $2";
const COLUMNS: &str = "position, stream, seq, at, version, body, sum";

/// The handle; clones share the workers.
#[derive(Clone)]
pub struct Postgres {
    messages: mpsc::UnboundedSender<Message>,
    /// Requests about leases.
    lease_messages: mpsc::UnboundedSender<Message>,
    stop_listening: CancellationToken,
    url: Arc<str>,
    changes: broadcast::Sender<QueueChange>,
    /// The workers and the tasks of their connections.
    tasks: TaskTracker,
}

enum Message {
    Request(StoreRequest),
    Stop,
}

impl Postgres {
    pub(super) async fn connect(
        url: &str,
        location: &str,
        writable: Arc<AtomicBool>,
        changes: broadcast::Sender<QueueChange>,
    ) -> Result<Postgres, LogError> {
        let fail = |text: String| LogError::Open { location: location.into(), failure: text.into() };
        let tasks = TaskTracker::new();
        let mut first = open(url, &tasks).await.map_err(fail)?;
        schema::prepare(&mut first, location).await?;
        let mut first = Some(first);
        let reconnect = Arc::new(parking_lot::Mutex::new(Reconnect {
            backoff: Backoff::new(RECONNECT_FIRST, RECONNECT_MAX),
            failed: None,
        }));
        let mut start = |workers: usize| {
            let (messages, inbox) = mpsc::unbounded_channel();
            let inbox = Arc::new(Mutex::new(inbox));
            for _ in 0..workers {
                let worker = Worker {
                    url: url.into(),
                    client: first.take(),
                    reconnect: reconnect.clone(),
                    writable: writable.clone(),
                    tasks: tasks.clone(),
                };
                tasks.spawn(worker.run(inbox.clone()));
            }
            messages
        };
        let (messages, lease_messages) = (start(CONNECTIONS), start(1));
        let stop_listening = CancellationToken::new();
        Ok(Postgres { messages, lease_messages, stop_listening, url: url.into(), changes, tasks })
    }

    pub(super) fn submit(&self, request: StoreRequest) -> Result<(), LogError> {
        let is_about_lease = matches!(
            &request,
            StoreRequest::Queue(
                QueueRequest::Acquire(..) | QueueRequest::Renew(..) | QueueRequest::Release { .. }
            )
        );
        let messages = if is_about_lease { &self.lease_messages } else { &self.messages };
        messages.send(Message::Request(request)).map_err(|_| LogError::Stopped)
    }

    /// Begins to listen to what others tell about the queue.
    pub(super) fn listen(&self) {
        let stop = self.stop_listening.clone();
        self.tasks.spawn(listener::run(self.url.clone(), self.changes.clone(), stop));
    }

    /// Has everything answered that was asked so far, and waits for the workers and connections to end.
    pub(super) async fn close(&self) {
        self.stop_listening.cancel();
        for messages in [&self.messages, &self.lease_messages] {
            if messages.send(Message::Stop).is_err() {
                tracing::debug!("the event log had stopped before");
            }
        }
        self.tasks.close();
        if tokio::time::timeout(CLOSE_LIMIT, self.tasks.wait()).await.is_err() {
            tracing::warn!("the connections to the event log did not end within {CLOSE_LIMIT:?}");
        }
    }
}

async fn open(url: &str, tasks: &TaskTracker) -> Result<Client, String> {
    let connecting = tokio_postgres::connect(url, NoTls);
    let connected = tokio::time::timeout(CONNECT_LIMIT, connecting).await;
    let (client, connection) = connected
        .map_err(|_| format!("no answer within {CONNECT_LIMIT:?}"))?
        .map_err(|e| server_message(&e))?;
    tasks.spawn(async move {
        if let Err(error) = connection.await {
            tracing::warn!(error = server_message(&error), "a connection to the event log was lost");
        }
    });
    client.batch_execute(SESSION).await.map_err(|e| server_message(&e))?;
    Ok(client)
}

/// The server's own words, which the error's text leaves out.
fn server_message(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(db), _) => db.message().to_string(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

struct Worker {
    url: String,
    client: Option<Client>,
    reconnect: Arc<parking_lot::Mutex<Reconnect>>,
    writable: Arc<AtomicBool>,
    tasks: TaskTracker,
}

/// How the attempts to replace a lost connection stand. Workers share it: when one has reached the server again, the others
/// don't wait any more.
struct Reconnect {
    backoff: Backoff,
    failed: Option<FailedConnect>,
}

/// A connection that could not be made.
struct FailedConnect {
    why: String,
    /// Until then requests fail at once.
    retry_at: Instant,
}

impl Worker {
    async fn run(mut self, inbox: Arc<Mutex<mpsc::UnboundedReceiver<Message>>>) {
        loop {
            let message = {
                let mut inbox = inbox.lock().await;
                let message = inbox.recv().await;
                // With the lock still held: the next worker would wait in it for a message that never comes. The others
                // find the inbox closed once they have answered what is left in it.
                if matches!(message, Some(Message::Stop)) {
                    inbox.close();
                }
                message
            };
            match message {
                None | Some(Message::Stop) => return,
                Some(Message::Request(request)) => self.answer_in_time(request).await,
            }
        }
    }

    /// Answers a request. One that takes too long is given up with its connection: its transaction is rolled back, or
    /// was committed.
    async fn answer_in_time(&mut self, request: StoreRequest) {
        let limit = REQUEST_LIMIT;
        if tokio::time::timeout(limit, self.answer(request)).await.is_err() {
            tracing::warn!(
                "the event log's server did not answer within {limit:?}; the connection is given up"
            );
            self.client = None;
            self.writable.store(false, Ordering::Release);
        }
    }

    async fn client(&mut self) -> Result<&mut Client, String> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            if let Some(failed) = &self.reconnect.lock().failed
                && Instant::now() < failed.retry_at
            {
                return Err(failed.why.clone());
            }
            let opened = open(&self.url, &self.tasks).await;
            let mut reconnect = self.reconnect.lock();
            match opened {
                Ok(client) => {
                    reconnect.backoff.reset();
                    reconnect.failed = None;
                    self.client = Some(client);
                }
                Err(why) => {
                    let retry_at = Instant::now() + reconnect.backoff.after_failure(rand::random());
                    reconnect.failed = Some(FailedConnect { why: why.clone(), retry_at });
                    return Err(why);
                }
            }
        }
        self.client.as_mut().ok_or_else(|| "no connection".into())
    }

    async fn answer(&mut self, request: StoreRequest) {
        match request {
            StoreRequest::Append(append, answer) => {
                let appended = self.append(append).await;
                let failed = matches!(appended, Err(AppendError::Log(LogError::Write(_))));
                self.writable.store(!failed, Ordering::Release);
                drop(answer.send(appended));
            }
            StoreRequest::Batches(batches) => {
                // A peer's log is a separate file; here for completeness, each at once.
                for batch in batches {
                    if let Err(error) = self.append_batch(&batch).await {
                        self.writable.store(false, Ordering::Release);
                        tracing::error!(error, hold = batch.hold, "events could not be recorded");
                    }
                }
            }
            StoreRequest::Rows { stream, answer } => {
                let sql = format!("SELECT {COLUMNS} FROM coda_events WHERE stream = $1 ORDER BY seq");
                let rows = self.query(&sql, &[&stream.to_string()]).await;
                drop(answer.send(rows.map(|rows| rows.iter().map(row).collect())));
            }
            StoreRequest::Page { from, limit, answer } => {
                let limit = i64::try_from(limit).unwrap_or(i64::MAX);
                let sql = format!(
                    "SELECT {COLUMNS} FROM coda_events WHERE position >= $1 ORDER BY position LIMIT $2"
                );
                let rows = self.query(&sql, &[&from, &limit]).await;
                drop(answer.send(rows.map(|rows| rows.iter().map(row).collect())));
            }
            StoreRequest::Open { kind, answer } => {
                let sql = "SELECT stream, until FROM coda_open WHERE starts_with(stream, $1) ORDER BY until, stream";
                let rows = self.query(sql, &[&kind.prefix()]).await;
                let open = |r: &tokio_postgres::Row| {
                    let stream = stream_named(r.get(0)).map_err(read_failed)?;
                    Ok(OpenStream { stream, until: r.get(1) })
                };
                drop(answer.send(rows.and_then(|rows| rows.iter().map(open).collect())));
            }
            StoreRequest::Keyed { key, answer } => {
                let sql = "SELECT stream FROM coda_keys WHERE caller = $1 AND key = $2";
                let rows = self.query(sql, &[&key.caller, &key.key]).await;
                let stream = |r: &tokio_postgres::Row| stream_named(r.get(0)).map_err(read_failed);
                drop(answer.send(rows.and_then(|rows| rows.first().map(stream).transpose())));
            }
            StoreRequest::Jobs { before, limit, answer } => {
                let limit = i64::try_from(limit).unwrap_or(i64::MAX);
                let released = fact_json(&JobFact::Released);
                let rows = self.query(JOBS, &[&before.unwrap_or(i64::MAX), &limit, &released]).await;
                drop(answer.send(rows.and_then(|rows| rows.iter().map(job_row).collect())));
            }
            StoreRequest::Begin { stream, answer } => {
                let sql = "SELECT position FROM coda_events WHERE stream = $1 AND seq = 1";
                let rows = self.query(sql, &[&stream.to_string()]).await;
                drop(answer.send(rows.map(|rows| rows.first().map(|r| r.get(0)))));
            }
            StoreRequest::Queue(request) => self.answer_queue(request).await,
            // A peer's log is a file.
            StoreRequest::OpenHolds(answer) => drop(answer.send(Ok(Vec::new()))),
            StoreRequest::Flush(answer) => {
                if answer.send(()).is_err() {
                    tracing::debug!("the event log was flushed for a caller that has gone");
                }
            }
        }
    }

    async fn query(
        &mut self,
        sql: &str,
        values: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, LogError> {
        let client = self.client().await.map_err(read_failed)?;
        match client.query(sql, values).await {
            Ok(rows) => Ok(rows),
            // Connections that were idle when the server was restarted are found out only now.
            Err(_) if client.is_closed() => {
                let client = self.client().await.map_err(read_failed)?;
                client.query(sql, values).await.map_err(|e| read_failed(server_message(&e)))
            }
            Err(error) => Err(read_failed(server_message(&error))),
        }
    }

    async fn answer_queue(&mut self, request: QueueRequest) {
        let written = |e: tokio_postgres::Error| LogError::Write(server_message(&e).into());
        let read = |e: tokio_postgres::Error| read_failed(server_message(&e));
        let client = match self.client().await {
            Ok(client) => client,
            Err(why) => return request.fail(LogError::Write(why.into())),
        };
        match request {
            QueueRequest::Acquire(claimant, answer) => {
                drop(answer.send(queue::acquire(client, &claimant).await.map_err(written)));
            }
            QueueRequest::Renew(claimant, answer) => {
                drop(answer.send(queue::renew(client, &claimant).await.map_err(written)));
            }
            QueueRequest::Release { peer_id, token, answer } => {
                drop(answer.send(queue::release(client, &peer_id, &token).await.map_err(written)));
            }
            QueueRequest::Take { token, which, answer } => {
                drop(answer.send(queue::take(client, &token, &which).await.map_err(written)));
            }
            QueueRequest::FreeAbandoned(answer) => {
                drop(answer.send(queue::free_abandoned(client).await.map_err(written)));
            }
            QueueRequest::GiveBack { token, job_ids, answer } => {
                drop(answer.send(queue::give_back(client, &token, &job_ids).await.map_err(written)));
            }
            QueueRequest::Assigned { token, answer } => {
                drop(answer.send(queue::assigned(client, &token).await.map_err(read)));
            }
            QueueRequest::Waiting(answer) => {
                drop(answer.send(queue::waiting(client).await.map_err(read)));
            }
        }
    }

    async fn append(&mut self, append: Append) -> Result<AppendOutcome, AppendError> {
        let client = self.client().await.map_err(|text| LogError::Write(text.into()))?;
        let error = match client.transaction().await {
            Ok(tx) => return append_in(tx, append).await,
            Err(error) => error,
        };
        if !client.is_closed() {
            return Err(write_failed(&error).into());
        }
        // A connection that was idle when the server was restarted is found out only when it is used.
        let client = self.client().await.map_err(|text| LogError::Write(text.into()))?;
        let tx = client.transaction().await.map_err(|e| write_failed(&e))?;
        append_in(tx, append).await
    }

    async fn append_batch(&mut self, batch: &EventBatch) -> Result<(), String> {
        let stream = batch.stream();
        let client = self.client().await?;
        let tx = client.transaction().await.map_err(|e| server_message(&e))?;
        lock(&tx, &stream.to_string()).await.map_err(|e| server_message(&e))?;
        let mut seq = rows_of(&tx, &stream, ReadRows::Last)
            .await
            .map_err(|e| server_message(&e))?
            .last()
            .map_or(0, |r| r.seq);
        for fact in &batch.facts {
            seq += 1;
            insert(&tx, &stream, seq, batch.at, fact_json(fact)).await.map_err(|e| server_message(&e))?;
        }
        tx.commit().await.map_err(|e| server_message(&e))
    }
}

/// Appends in a transaction, which is rolled back when it is dropped.
async fn append_in(tx: Transaction<'_>, append: Append) -> Result<AppendOutcome, AppendError> {
    let write = |e: tokio_postgres::Error| write_failed(&e);
    if let Some(IdempotencyKey { caller, key }) = &append.key {
        lock(&tx, &format!("key|{caller}|{key}")).await.map_err(write)?;
        let sql = "SELECT stream FROM coda_keys WHERE caller = $1 AND key = $2";
        if let Some(known) = tx.query_opt(sql, &[caller, key]).await.map_err(write)? {
            let stream = stream_named(known.get(0)).map_err(read_failed)?;
            let rows = rows_of(&tx, &stream, ReadRows::All).await.map_err(write)?;
            return Ok(AppendOutcome { stream, rows, is_new: false });
        }
    }
    let name = append.stream.to_string();
    // The times of facts are those of the one clock that all writers share.
    let now = lock(&tx, &name).await.map_err(write)?;
    let mut rows = rows_of(&tx, &append.stream, append.reads).await.map_err(write)?;
    // A refusal drops the transaction, which rolls it back.
    let decided = (append.decide)(&rows, now)?;
    queue::check(&tx, &name, &append.queue).await.map_err(write)??;
    let mut seq = rows.last().map_or(0, |r| r.seq);
    let read = rows.len();
    for body in decided.bodies {
        seq += 1;
        rows.push(insert(&tx, &append.stream, seq, now, body).await.map_err(write)?);
    }
    let position = rows.get(read).map_or(0, |row| row.position);
    let until = decided.open_until;
    queue::update(&tx, &append.stream, &append.queue, until, position).await.map_err(write)?;
    if let Some(IdempotencyKey { caller, key }) = &append.key {
        let sql = "INSERT INTO coda_keys (caller, key, stream) VALUES ($1, $2, $3)";
        tx.execute(sql, &[caller, key, &name]).await.map_err(write)?;
    }
    tx.commit().await.map_err(write)?;
    Ok(AppendOutcome { stream: append.stream, rows, is_new: true })
}

fn write_failed(error: &tokio_postgres::Error) -> LogError {
    LogError::Write(server_message(error).into())
}

fn read_failed(text: String) -> LogError {
    LogError::Read(text.into())
}

/// A stream's name as it is read from the database.
fn stream_named(name: &str) -> Result<StreamId, String> {
    name.parse().map_err(|e: UnknownStream| e.to_string())
}

fn job_row(r: &tokio_postgres::Row) -> Result<JobRow, LogError> {
    Ok(JobRow {
        position: r.get(0),
        job_id: stream_named(r.get(1)).map_err(read_failed)?.id,
        submitted_at: r.get(2),
        last_at: r.get(3),
        shots: r.get(4),
        last_kind: r.get(5),
        error: r.get(6),
    })
}

/// Waits until no other transaction has the lock of this name; then the time, in microseconds since 1970.
async fn lock(tx: &Transaction<'_>, name: &str) -> Result<i64, tokio_postgres::Error> {
    let sql = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0)),
                   (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    Ok(tx.query_one(sql, &[&name]).await?.get(1))
}

async fn rows_of(
    tx: &Transaction<'_>,
    stream: &StreamId,
    reads: ReadRows,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let order = match reads {
        ReadRows::All => "seq",
        ReadRows::Last => "seq DESC LIMIT 1",
    };
    let sql = format!("SELECT {COLUMNS} FROM coda_events WHERE stream = $1 ORDER BY {order}");
    Ok(tx.query(&sql, &[&stream.to_string()]).await?.iter().map(row).collect())
}

async fn insert(
    tx: &Transaction<'_>,
    stream: &StreamId,
    seq: i64,
    at: i64,
    body: String,
) -> Result<Row, tokio_postgres::Error> {
    let position: i64 = tx.query_one("SELECT nextval('coda_positions')", &[]).await?.get(0);
    let row = Row::new(position, stream, seq, at, body);
    let sql = format!("INSERT INTO coda_events ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7)");
    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
        [&row.position, &row.stream, &row.seq, &row.at, &row.version, &row.body, &row.sum];
    tx.execute(&sql, &values).await?;
    Ok(row)
}

fn row(r: &tokio_postgres::Row) -> Row {
    Row {
        position: r.get(0),
        stream: r.get(1),
        seq: r.get(2),
        at: r.get(3),
        version: r.get(4),
        body: r.get(5),
        sum: r.get(6),
    }
}
