//! The event log: facts appended in one order, read back to states.
//!
//! ```text
//! reservation/<id>   a coordinator's reservations
//! hold/<id>/<n>      a peer's; n tells a used-up id from its next use
//! job/<id>           a coordinator's jobs
//! ```
//!
//! What may be appended is decided inside the transaction that appends it, on the facts that are there by then:
//! two writers, in one process or in several, can't both make a transition that only one may make. An append is
//! answered when it is on disk; one that fails is answered as failed and leaves nothing behind. Each row has a
//! checksum over all of it, so that a damaged one is named instead of believed.
//!
//! A peer notes its facts behind its answers ([`Log::append_in_background`]): nothing that it holds outlives the process, so the
//! log is a record there, not the truth. While batches can't be written [`Log::is_writable`] says so, and the peer
//! takes no reservations.

mod postgres;
mod sqlite;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use super::event::{EventBatch, Fact, Request, VERSION};
use super::journal::{self, JobFact, JobRefused};
use super::ledger::{self, Command, Refused, State};
use crate::error::{Explain, exit};

pub use sqlite::Sqlite;

/// Never: a stream that is open without a time limit.
const NO_DEADLINE: i64 = i64::MAX;

#[derive(Debug, Clone, thiserror::Error)]
pub enum LogError {
    #[error("the event log {location} can't be opened: {text}")]
    Open { location: String, text: String },
    #[error("the event log {location} was written by a newer coda-host (schema {found})")]
    Newer { location: String, found: i64 },
    #[error("the event log {location} is damaged at event {position} ({stream}): {what}")]
    Damaged { location: String, position: i64, stream: String, what: String },
    #[error("the event log could not be written, so nothing was recorded: {0}")]
    Write(String),
    #[error("the event log could not be read: {0}")]
    Read(String),
    #[error("the event log has stopped")]
    Stopped,
}

impl Explain for LogError {
    fn code(&self) -> &'static str {
        match self {
            LogError::Open { .. } => "log-open",
            LogError::Newer { .. } => "log-newer",
            LogError::Damaged { .. } => "log-damaged",
            LogError::Write(_) => "log-write",
            LogError::Read(_) => "log-read",
            LogError::Stopped => "log-stopped",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            LogError::Open { .. } => "check the path or URL of --store, its permissions and free space".into(),
            LogError::Newer { .. } => "use the newer coda-host, or another --store".into(),
            LogError::Damaged { .. } => {
                "see `coda-host reservation verify`; restore the file from a backup, or move it away to begin \
                 a new log"
                    .into()
            }
            LogError::Write(_) => "free space on the disk of the log".into(),
            LogError::Read(_) => "check the disk or the database server of the log".into(),
            LogError::Stopped => "report this as a bug of coda-host".into(),
        })
    }

    fn exit(&self) -> u8 {
        match self {
            LogError::Open { .. } | LogError::Newer { .. } => exit::CONFIG,
            _ => exit::FAILURE,
        }
    }
}

/// Why nothing was appended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error(transparent)]
    Job(#[from] JobRefused),
    #[error(transparent)]
    Log(#[from] LogError),
}

/// One row, as it lies in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub position: i64,
    pub stream: String,
    pub seq: i64,
    /// Microseconds since 1970.
    pub at: i64,
    pub version: i64,
    /// The fact's JSON.
    pub body: String,
    pub sum: String,
}

impl Row {
    pub(super) fn new(position: i64, stream: &str, seq: i64, at: i64, body: String) -> Row {
        let version = i64::from(VERSION);
        let sum = checksum(position, stream, seq, at, version, &body);
        Row { position, stream: stream.into(), seq, at, version, body, sum }
    }

    /// Reads its fact, when it is whole and not newer than this host.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn fact<T: DeserializeOwned>(&self) -> Result<T, String> {
        self.check()?;
        serde_json::from_str(&self.body).map_err(|e| format!("its fact can't be read: {e}"))
    }

    /// Whether it is as it was written.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        let sum = checksum(self.position, &self.stream, self.seq, self.at, self.version, &self.body);
        if sum != self.sum {
            return Err(format!("its checksum is {}, its content has {sum}", self.sum));
        }
        if self.version > i64::from(VERSION) {
            return Err(format!("it has version {}, known is {VERSION}", self.version));
        }
        Ok(())
    }
}

fn checksum(position: i64, stream: &str, seq: i64, at: i64, version: i64, body: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{position}|{stream}|{seq}|{at}|{version}|"));
    hash.update(body);
    hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// What a decision appends.
struct Decided {
    bodies: Vec<String>,
    /// The stream's deadline when it is open afterwards; none when it has ended.
    open_until: Option<i64>,
}

/// Looks at what is there and the time, and says what follows.
type Decide = Box<dyn FnOnce(&[Row], i64) -> Result<Decided, AppendError> + Send>;

/// One append.
struct Append {
    stream: String,
    /// Caller and key: used before, the stream of then is the answer and nothing is appended.
    key: Option<(String, String)>,
    /// What of the stream is looked at.
    looks_at: LooksAt,
    decide: Decide,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LooksAt {
    All,
    /// A job's facts are many, its plan is large, and what may follow depends on the newest.
    Last,
}

/// An append's outcome: the rows that were looked at with the new ones of the stream, and whether it was this one.
struct Appended {
    stream: String,
    rows: Vec<Row>,
    fresh: bool,
}

/// What a store is asked.
enum StoreRequest {
    Append(Append, oneshot::Sender<Result<Appended, AppendError>>),
    /// To be written soon.
    Batches(Vec<EventBatch>),
    Rows {
        stream: String,
        answer: oneshot::Sender<Result<Vec<Row>, LogError>>,
    },
    /// Rows from a position on, at most so many.
    Page {
        from: i64,
        limit: usize,
        answer: oneshot::Sender<Result<Vec<Row>, LogError>>,
    },
    /// Open streams with this prefix and their deadlines.
    Open {
        prefix: &'static str,
        answer: oneshot::Sender<Result<Vec<(String, i64)>, LogError>>,
    },
    Flush(oneshot::Sender<()>),
    Stop,
}

/// The handle; clones share the one writer.
#[derive(Clone)]
pub struct Log {
    store: Store,
    location: Arc<str>,
    writable: Arc<AtomicBool>,
}

#[derive(Clone)]
enum Store {
    Sqlite(Sqlite),
    Postgres(postgres::Postgres),
}

/// A reservation and whether this request made it.
pub struct Requested {
    pub reservation_id: String,
    pub state: State,
    pub created: bool,
}

impl Log {
    /// Opens the log that a path or a URL names.
    ///
    /// # Errors
    /// When it can't be used.
    pub async fn open(store: &str, cwd: &Path) -> Result<Log, LogError> {
        if !(store.starts_with("postgres://") || store.starts_with("postgresql://")) {
            return Log::sqlite(&cwd.join(store));
        }
        let writable = Arc::new(AtomicBool::new(true));
        let location = crate::model::masked_url(store);
        let postgres = postgres::Postgres::connect(store, &location, writable.clone()).await?;
        Ok(Log { store: Store::Postgres(postgres), location: location.into(), writable })
    }

    /// Opens or makes a log in a file.
    ///
    /// # Errors
    /// When it can't be used.
    pub fn sqlite(path: &Path) -> Result<Log, LogError> {
        let writable = Arc::new(AtomicBool::new(true));
        let store = Sqlite::open(path, writable.clone())?;
        Ok(Log { store: Store::Sqlite(store), location: path.display().to_string().into(), writable })
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
            Store::Sqlite(s) => s.submit(request),
            Store::Postgres(s) => s.submit(request),
        }
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Append(append, answer))?;
        wait.await.map_err(|_| LogError::Stopped)?
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
        request: Request,
    ) -> Result<Requested, AppendError> {
        let key = request.idempotency_key.clone().map(|key| (caller.to_string(), key));
        let decide = reservation_decision(self.location.clone(), Command::Request(request));
        let stream = format!("reservation/{reservation_id}");
        let appended = self.append(Append { stream, key, looks_at: LooksAt::All, decide }).await?;
        let id = appended.stream.trim_start_matches("reservation/").to_string();
        let state = self.folded(&appended.rows)?.ok_or(Refused::Unknown)?;
        Ok(Requested { reservation_id: id, state, created: appended.fresh })
    }

    /// Records what happened to a reservation; on disk when it returns.
    ///
    /// # Errors
    /// When it may not happen to it, or the log can't be written.
    pub async fn execute(&self, reservation_id: &str, command: Command) -> Result<State, AppendError> {
        let stream = format!("reservation/{reservation_id}");
        let decide = reservation_decision(self.location.clone(), command);
        let appended = self.append(Append { stream, key: None, looks_at: LooksAt::All, decide }).await?;
        Ok(self.folded(&appended.rows)?.ok_or(Refused::Unknown)?)
    }

    /// A reservation's state.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn state(&self, reservation_id: &str) -> Result<Option<State>, LogError> {
        let rows = self.rows(format!("reservation/{reservation_id}")).await?;
        self.folded(&rows)
    }

    /// The rows of one stream.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn rows(&self, stream: String) -> Result<Vec<Row>, LogError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Rows { stream, answer })?;
        wait.await.map_err(|_| LogError::Stopped)?
    }

    /// The next rows of all streams from a position on.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn page(&self, from: i64, limit: usize) -> Result<Vec<Row>, LogError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Page { from, limit, answer })?;
        wait.await.map_err(|_| LogError::Stopped)?
    }

    /// Reservations that are requested or accepted, and when their time is over (microseconds since 1970).
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn open_reservations(&self) -> Result<Vec<(String, i64)>, LogError> {
        self.open_streams("reservation/").await
    }

    /// Jobs that have no end.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn open_jobs(&self) -> Result<Vec<String>, LogError> {
        Ok(self.open_streams("job/").await?.into_iter().map(|(id, _)| id).collect())
    }

    async fn open_streams(&self, prefix: &'static str) -> Result<Vec<(String, i64)>, LogError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Open { prefix, answer })?;
        let open = wait.await.map_err(|_| LogError::Stopped)??;
        Ok(open.into_iter().map(|(s, until)| (s.trim_start_matches(prefix).to_string(), until)).collect())
    }

    /// Records what happened to a job; on disk when it returns.
    ///
    /// # Errors
    /// When it has ended, or the log can't be written.
    pub async fn record_job(&self, job_id: &str, fact: JobFact) -> Result<(), AppendError> {
        let location = self.location.clone();
        let decide = move |rows: &[Row], _now: i64| {
            let before = facts::<JobFact>(&location, rows)?;
            journal::may_follow(before.iter(), &fact)?;
            let ends = matches!(fact, JobFact::Completed { .. } | JobFact::Failed { .. });
            let open_until = (!ends).then_some(NO_DEADLINE);
            Ok(Decided { bodies: vec![fact_json(&fact)], open_until })
        };
        let stream = format!("job/{job_id}");
        let looks_at = LooksAt::Last;
        self.append(Append { stream, key: None, looks_at, decide: Box::new(decide) }).await.map(|_| ())
    }

    /// A job's facts with their times.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn job_facts(&self, job_id: &str) -> Result<Vec<(i64, JobFact)>, LogError> {
        let rows = self.rows(format!("job/{job_id}")).await?;
        let facts = facts::<JobFact>(&self.location, &rows)?;
        Ok(rows.iter().map(|r| r.at).zip(facts).collect())
    }

    /// Writes a peer's facts soon, without being waited for; many in one go, since each time wakes the writer.
    pub fn append_in_background(&self, batches: Vec<EventBatch>) {
        if self.submit(StoreRequest::Batches(batches)).is_err() {
            tracing::debug!("an event batch came after the event log had closed");
        }
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
        if self.submit(StoreRequest::Stop).is_err() {
            tracing::debug!("the event log had stopped before");
        }
        if let Store::Sqlite(store) = &self.store {
            store.join();
        }
    }

    fn folded(&self, rows: &[Row]) -> Result<Option<State>, LogError> {
        let facts = facts::<Fact>(&self.location, rows)?;
        let replayed = ledger::replay(rows.iter().map(|r| r.at).zip(&facts));
        replayed.map_err(|(n, e)| self.damaged(&rows[n], e.to_string()))
    }

    /// Reads all of it and folds every stream; the number of rows.
    ///
    /// # Errors
    /// The first row that is not as it was written, or can't be where it is.
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

/// Facts are plain data, whose JSON can't fail.
pub(super) fn fact_json<T: Serialize>(fact: &T) -> String {
    serde_json::to_string(fact).unwrap_or_default()
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

fn reservation_decision(location: Arc<str>, command: Command) -> Decide {
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
            after = Some(folded.map_err(|e| LogError::Write(format!("a decided fact does not fold: {e}")))?);
        }
        let open = after.filter(|s| !s.transition.is_terminal());
        let until = |s: State| s.requested_at.saturating_add(micros(s.request.ttl_seconds));
        Ok(Decided { bodies: new.iter().map(fact_json).collect(), open_until: open.map(until) })
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
#[path = "log_tests.rs"]
mod tests;
