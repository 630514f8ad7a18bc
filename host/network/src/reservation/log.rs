//! The event log: facts appended in one order to streams (`stream`), read back to states.
//!
//! What may be appended is decided inside the transaction that appends it, on the facts that are there by then:
//! two writers, in one process or in several, can't both make a transition that only one may make. An append is
//! answered when it is on disk; one that fails is answered as failed and leaves nothing behind. Each row has a
//! checksum over all of it, so that a damaged one is named instead of believed.
//!
//! A peer notes its facts behind its answers ([`Log::append_in_background`]): nothing that it holds outlives the process, so the
//! log is a record there, not the truth. While batches can't be written [`Log::is_writable`] says so, and the peer
//! takes no reservations.

mod error;
mod postgres;
pub mod queue;
mod request;
mod row;
mod sqlite;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, oneshot};

use super::event::{EventBatch, Fact, ReservationRequest};
use super::journal::{self, JobFact};
use super::ledger::{self, Refusal, ReservationCommand, ReservationState};
use super::stream::{StreamId, StreamKind};
use queue::QueueChange;
use request::{
    Append, AppendDecision, AppendOutcome, Decider, IdempotencyKey, OpenStream, QueueRule, ReadRows,
    StoreRequest,
};

pub use error::{AppendError, LogError, LogFailure};
pub use request::JobRow;
pub use row::Row;
pub(super) use row::fact_json;
pub use sqlite::Sqlite;

/// Never: a stream that is open without a time limit.
const NO_DEADLINE: i64 = i64::MAX;
/// How long a question may take: a request to the API asks up to three, and may take ten seconds.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// The handle; clones share the one writer.
#[derive(Clone)]
pub struct Log {
    store: LogStore,
    location: Arc<str>,
    writable: Arc<AtomicBool>,
    changes: broadcast::Sender<QueueChange>,
}

#[derive(Clone)]
enum LogStore {
    Sqlite(Sqlite),
    Postgres(postgres::Postgres),
}

/// A reservation that is requested or accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenReservation {
    pub reservation_id: String,
    /// When its time is over, in microseconds since 1970.
    pub until: i64,
}

/// Whose idempotency keys those of jobs are: shorter than any caller that a reservation may name.
const JOB_KEYS: &str = "@";
/// The job that [`Log::check_write`] opens and closes. It has no facts.
const WRITE_CHECK: &str = "write-check";

/// What became of a job that was to be recorded.
pub enum JobSubmission {
    New,
    /// Its key was used before.
    Known(KnownJob),
}

/// A job that a key names, with its facts and their times.
pub struct KnownJob {
    pub job_id: String,
    pub facts: Vec<(i64, JobFact)>,
}

/// A reservation and whether this request made it.
pub struct RequestOutcome {
    pub reservation_id: String,
    pub state: ReservationState,
    pub created: bool,
}

impl Log {
    /// Opens the log that a path or a URL names.
    ///
    /// # Errors
    /// When the file or the database can't be opened, or a newer coda-host wrote it.
    pub async fn open(store: &str, cwd: &Path) -> Result<Log, LogError> {
        if !(store.starts_with("postgres://") || store.starts_with("postgresql://")) {
            return Log::sqlite(&cwd.join(store));
        }
        let writable = Arc::new(AtomicBool::new(true));
        let location = crate::model::masked_url(store);
        let changes = queue::change_channel();
        let postgres =
            postgres::Postgres::connect(store, &location, writable.clone(), changes.clone()).await?;
        Ok(Log { store: LogStore::Postgres(postgres), location: location.into(), writable, changes })
    }

    /// Opens the log in a file, which is created when it is missing.
    ///
    /// # Errors
    /// When the file can't be opened, or a newer coda-host wrote it.
    pub fn sqlite(path: &Path) -> Result<Log, LogError> {
        let writable = Arc::new(AtomicBool::new(true));
        let store = Sqlite::open(path, writable.clone())?;
        let (location, changes) = (path.display().to_string().into(), queue::change_channel());
        Ok(Log { store: LogStore::Sqlite(store), location, writable, changes })
    }

    /// The default location of a log.
    pub fn default_path(state_dir: &Path) -> PathBuf {
        state_dir.join("reservations.db")
    }

    /// Where it is, for messages.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Whether the last write went well.
    pub fn is_writable(&self) -> bool {
        self.writable.load(Ordering::Acquire)
    }

    fn submit(&self, request: StoreRequest) -> Result<(), LogError> {
        match &self.store {
            LogStore::Sqlite(s) => s.submit(request),
            LogStore::Postgres(s) => s.submit(request),
        }
    }

    /// Why a request has no answer: a server that hangs is given up with its request.
    fn unanswered(&self) -> LogError {
        match self.store {
            LogStore::Sqlite(_) => LogError::Stopped,
            LogStore::Postgres(_) => LogError::Unanswered,
        }
    }

    /// Waits for the answer to a question, not for as long as a server may hang: the one who asked is to hear of it.
    async fn in_time<T>(&self, wait: oneshot::Receiver<Result<T, LogError>>) -> Result<T, LogError> {
        match tokio::time::timeout(READ_LIMIT, wait).await {
            Ok(answer) => answer.map_err(|_| self.unanswered())?,
            Err(_) => Err(LogError::Read(format!("there was no answer within {READ_LIMIT:?}").into())),
        }
    }

    async fn append(&self, append: Append) -> Result<AppendOutcome, AppendError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Append(append, answer))?;
        wait.await.map_err(|_| self.unanswered())?
    }

    fn damaged(&self, row: &Row, what: String) -> LogError {
        let (location, stream) = (self.location.to_string(), row.stream.clone());
        LogError::Damaged { location, position: row.position, stream, what }
    }

    /// Records a request under its id, or finds the one that the same caller made with the same key.
    ///
    /// # Errors
    /// When the id is in use, or the log can't be written.
    pub async fn request(
        &self,
        reservation_id: &str,
        caller: &str,
        request: ReservationRequest,
    ) -> Result<RequestOutcome, AppendError> {
        let key = request.idempotency_key.clone();
        let key = key.map(|key| IdempotencyKey { caller: caller.to_string(), key });
        let decide = reservation_decision(self.location.clone(), ReservationCommand::Request(request));
        let stream = StreamId::reservation(reservation_id);
        let (reads, queue) = (ReadRows::All, QueueRule::None);
        let appended = self.append(Append { stream, key, reads, decide, queue }).await?;
        let state = self.folded(&appended.rows)?.ok_or(Refusal::Unknown)?;
        Ok(RequestOutcome { reservation_id: appended.stream.id, state, created: appended.is_new })
    }

    /// Records what happened to a reservation; on disk when it returns.
    ///
    /// # Errors
    /// When the reservation's state does not allow the command, or the log can't be written.
    pub async fn execute(
        &self,
        reservation_id: &str,
        command: ReservationCommand,
    ) -> Result<ReservationState, AppendError> {
        let stream = StreamId::reservation(reservation_id);
        let decide = reservation_decision(self.location.clone(), command);
        let (key, reads, queue) = (None, ReadRows::All, QueueRule::None);
        let appended = self.append(Append { stream, key, reads, decide, queue }).await?;
        Ok(self.folded(&appended.rows)?.ok_or(Refusal::Unknown)?)
    }

    /// A reservation's state.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn state(&self, reservation_id: &str) -> Result<Option<ReservationState>, LogError> {
        let rows = self.rows(StreamId::reservation(reservation_id)).await?;
        self.folded(&rows)
    }

    /// The rows of one stream.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn rows(&self, stream: StreamId) -> Result<Vec<Row>, LogError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Rows { stream, answer })?;
        self.in_time(wait).await
    }

    /// The next rows of all streams from a position on.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn page(&self, from: i64, limit: usize) -> Result<Vec<Row>, LogError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Page { from, limit, answer })?;
        wait.await.map_err(|_| self.unanswered())?
    }

    /// Reservations that are requested or accepted.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn open_reservations(&self) -> Result<Vec<OpenReservation>, LogError> {
        let open = self.open_streams(StreamKind::Reservation).await?;
        let reservation = |o: OpenStream| OpenReservation { reservation_id: o.stream.id, until: o.until };
        Ok(open.into_iter().map(reservation).collect())
    }

    /// Jobs that have no end.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn open_jobs(&self) -> Result<Vec<String>, LogError> {
        Ok(self.open_streams(StreamKind::Job).await?.into_iter().map(|open| open.stream.id).collect())
    }

    async fn open_streams(&self, kind: StreamKind) -> Result<Vec<OpenStream>, LogError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Open { kind, answer })?;
        self.in_time(wait).await
    }

    /// Records what happened to a job, by the coordinator that has taken it; on disk when it returns. Returns the fact's number in the
    /// job, from 1.
    ///
    /// # Errors
    /// When the job has ended, or the log can't be written.
    pub async fn record_job(&self, job_id: &str, fact: JobFact) -> Result<i64, AppendError> {
        let rule = match &fact {
            JobFact::Submitted { .. } => QueueRule::Enter { owner: None, most_waiting: usize::MAX },
            other => QueueRule::Open { cancels: matches!(other, JobFact::Cancelled { .. }) },
        };
        let appended = self.append_to_job(job_id, None, fact, rule).await?;
        Ok(appended.rows.last().map_or(0, |row| row.seq))
    }

    /// Records what happened to a job that was taken under this token; otherwise as [`Log::record_job`].
    ///
    /// # Errors
    /// When the job has ended or belongs to another coordinator, or the log can't be written.
    pub async fn record_own_job(&self, job_id: &str, token: &str, fact: JobFact) -> Result<i64, AppendError> {
        let rule = QueueRule::Owned { token: token.into(), kind: fact.kind() };
        let appended = self.append_to_job(job_id, None, fact, rule).await?;
        Ok(appended.rows.last().map_or(0, |row| row.seq))
    }

    /// Records a job under its id, or finds the one that was recorded with the same key. It is taken at once by the holder
    /// of a token, or waits when less than so many others do.
    ///
    /// # Errors
    /// When the id is in use, too many jobs wait, or the log can't be written.
    pub async fn submit_job(
        &self,
        job_id: &str,
        key: Option<String>,
        fact: JobFact,
        owner: Option<String>,
        most_waiting: usize,
    ) -> Result<JobSubmission, AppendError> {
        let key = key.map(|key| IdempotencyKey { caller: JOB_KEYS.into(), key });
        let rule = QueueRule::Enter { owner, most_waiting };
        let appended = self.append_to_job(job_id, key, fact, rule).await?;
        match appended.is_new {
            true => Ok(JobSubmission::New),
            false => Ok(JobSubmission::Known(self.known_job(appended.stream, &appended.rows)?)),
        }
    }

    /// The job that was recorded with this key.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn job_of_key(&self, key: &str) -> Result<Option<KnownJob>, LogError> {
        let key = IdempotencyKey { caller: JOB_KEYS.into(), key: key.into() };
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Keyed { key, answer })?;
        let Some(stream) = self.in_time(wait).await? else { return Ok(None) };
        let rows = self.rows(stream.clone()).await?;
        self.known_job(stream, &rows).map(Some)
    }

    fn known_job(&self, stream: StreamId, rows: &[Row]) -> Result<KnownJob, LogError> {
        let facts = facts::<JobFact>(&self.location, rows)?;
        Ok(KnownJob { job_id: stream.id, facts: rows.iter().map(|r| r.at).zip(facts).collect() })
    }

    async fn append_to_job(
        &self,
        job_id: &str,
        key: Option<IdempotencyKey>,
        fact: JobFact,
        queue: QueueRule,
    ) -> Result<AppendOutcome, AppendError> {
        let location = self.location.clone();
        let decide = move |rows: &[Row], _now: i64| {
            let before = facts::<JobFact>(&location, rows)?;
            journal::may_follow(before.iter(), &fact)?;
            let open_until = (!fact.is_settled()).then_some(NO_DEADLINE);
            Ok(AppendDecision { bodies: vec![fact_json(&fact)], open_until })
        };
        let stream = StreamId::job(job_id);
        let (reads, decide) = (ReadRows::Last, Box::new(decide));
        self.append(Append { stream, key, reads, decide, queue }).await
    }

    /// Jobs from the newest to the oldest, at most so many, beginning behind `after`.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn jobs(&self, after: Option<i64>, limit: usize) -> Result<Vec<JobRow>, LogError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Jobs { before: after, limit, answer })?;
        self.in_time(wait).await
    }

    /// The place of a job in the order of all, for [`Log::jobs`].
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn job_position(&self, job_id: &str) -> Result<Option<i64>, LogError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Begin { stream: StreamId::job(job_id), answer })?;
        self.in_time(wait).await
    }

    /// Whether the log can be read now.
    ///
    /// # Errors
    /// When it can't.
    pub async fn check_read(&self) -> Result<(), LogError> {
        self.page(0, 1).await.map(|_| ())
    }

    /// Writes something that changes nothing, so that a log that could not be written is known to be writable again.
    ///
    /// # Errors
    /// When it can't be written.
    pub async fn check_write(&self) -> Result<(), AppendError> {
        for open_until in [Some(NO_DEADLINE), None] {
            let decide = move |_: &[Row], _: i64| Ok(AppendDecision { bodies: Vec::new(), open_until });
            let (stream, reads, queue) = (StreamId::job(WRITE_CHECK), ReadRows::Last, QueueRule::None);
            self.append(Append { stream, key: None, reads, decide: Box::new(decide), queue }).await?;
        }
        Ok(())
    }

    /// A job's facts with their times.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn job_facts(&self, job_id: &str) -> Result<Vec<(i64, JobFact)>, LogError> {
        let rows = self.rows(StreamId::job(job_id)).await?;
        let facts = facts::<JobFact>(&self.location, &rows)?;
        Ok(rows.iter().map(|r| r.at).zip(facts).collect())
    }

    /// Writes a peer's facts soon, without being waited for; many in one go, since each time wakes the writer.
    pub fn append_in_background(&self, batches: Vec<EventBatch>) {
        if self.submit(StoreRequest::Batches(batches)).is_err() {
            tracing::debug!("an event batch came after the event log had closed");
        }
    }

    /// Records the end of the holds that a former process of this peer had; their number. Before the first new hold.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn release_lost_holds(&self, reason: &str) -> Result<usize, LogError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::OpenHolds(answer))?;
        let streams = wait.await.map_err(|_| self.unanswered())??;
        let mut batches = Vec::new();
        for stream in streams {
            // The beginning of an old one may have been removed.
            let Ok(Some(state)) = self.folded(&self.rows(stream.clone()).await?) else { continue };
            let command = ReservationCommand::Lose { reason: reason.into() };
            match ledger::decide(Some(&state), &command) {
                Ok(facts) if !facts.is_empty() => {
                    batches.push(EventBatch { hold: stream.id, at: now_micros(), facts });
                }
                _ => {}
            }
        }
        let lost = batches.len();
        self.append_in_background(batches);
        Ok(lost)
    }

    /// Returns when everything recorded so far is written.
    pub async fn flush(&self) {
        let (answer, wait) = oneshot::channel();
        if self.submit(StoreRequest::Flush(answer)).is_ok() && wait.await.is_err() {
            tracing::debug!("the event log closed while it was flushed");
        }
    }

    /// Writes what waits and closes.
    pub async fn close(&self) {
        self.flush().await;
        match &self.store {
            LogStore::Sqlite(store) => store.close(),
            LogStore::Postgres(store) => store.close().await,
        }
    }

    fn folded(&self, rows: &[Row]) -> Result<Option<ReservationState>, LogError> {
        let facts = facts::<Fact>(&self.location, rows)?;
        let replayed = ledger::replay(rows.iter().map(|r| r.at).zip(&facts));
        replayed.map_err(|(n, e)| self.damaged(&rows[n], e.to_string()))
    }

    /// Reads all of it and folds every stream; the number of rows.
    ///
    /// # Errors
    /// When a row is damaged or can't be where it is; the first one is named.
    pub async fn verify(&self) -> Result<u64, LogError> {
        let mut streams = super::export::Verifier::default();
        let mut from = 0;
        loop {
            let rows = self.page(from, 10_000).await?;
            let Some(last) = rows.last() else { return Ok(streams.rows) };
            from = last.position + 1;
            for row in &rows {
                streams.take(row).map_err(|what| self.damaged(row, what))?;
            }
        }
    }
}

fn facts<T: DeserializeOwned>(location: &str, rows: &[Row]) -> Result<Vec<T>, LogError> {
    rows.iter()
        .map(|row| {
            row.fact().map_err(|what| LogError::Damaged {
                location: location.to_string(),
                position: row.position,
                stream: row.stream.clone(),
                what,
            })
        })
        .collect()
}

fn reservation_decision(location: Arc<str>, command: ReservationCommand) -> Decider {
    Box::new(move |rows, now| {
        let before = facts::<Fact>(&location, rows)?;
        let state = ledger::replay(rows.iter().map(|r| r.at).zip(&before));
        let state = state.map_err(|(n, e)| LogError::Damaged {
            location: location.to_string(),
            position: rows[n].position,
            stream: rows[n].stream.clone(),
            what: e.to_string(),
        })?;
        let new = ledger::decide(state.as_ref(), &command)?;
        let mut after = state;
        for fact in &new {
            let folded = ledger::fold(after, now, fact);
            after = Some(
                folded.map_err(|e| LogError::Write(format!("a decided fact does not fold: {e}").into()))?,
            );
        }
        let open = after.filter(|s| !s.transition.is_terminal());
        let until = |s: ReservationState| s.requested_at.saturating_add(micros(s.request.ttl_seconds));
        Ok(AppendDecision { bodies: new.iter().map(fact_json).collect(), open_until: open.map(until) })
    })
}

fn micros(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000)
}

/// Now, as the log writes it.
pub fn now_micros() -> i64 {
    let now = time::OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000;
    i64::try_from(now).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod queue_tests;
#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
