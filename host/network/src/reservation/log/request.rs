//! What a store of the event log is asked for, and what it answers.

use tokio::sync::oneshot;

use super::error::{AppendError, LogError};
use super::queue::QueueRequest;
use super::row::Row;
use crate::reservation::event::EventBatch;
use crate::reservation::stream::{StreamId, StreamKind};

/// What a decision appends.
pub struct AppendDecision {
    pub bodies: Vec<String>,
    /// The stream's deadline when it is open afterwards; none when it has ended.
    pub open_until: Option<i64>,
}

/// Decides what to append, from the rows that are there and the time.
pub type Decider = Box<dyn FnOnce(&[Row], i64) -> Result<AppendDecision, AppendError> + Send>;

/// One append.
pub struct Append {
    pub stream: StreamId,
    pub key: Option<IdempotencyKey>,
    pub reads: ReadRows,
    pub decide: Decider,
    pub queue: QueueRule,
}

/// What an append has to do with the queue of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueRule {
    /// The stream is not that of a job.
    None,
    /// A new job: taken with its submission by the holder of this token, or waiting behind at most so many others.
    Enter { owner: Option<String>, most_waiting: usize },
    /// Only the coordinator that has taken the job with this token may append this kind of fact.
    Owned { token: String, kind: &'static str },
    /// Anyone may append it. Whether it cancels the job.
    Open { cancels: bool },
}

/// What a caller names its request by: when it was used before, the stream of that time is the answer and nothing is
/// appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub caller: String,
    pub key: String,
}

/// Which rows of its stream a decision reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadRows {
    All,
    /// A job's facts are many, its plan is large, and what may follow depends on the newest.
    Last,
}

/// The outcome of an append.
pub struct AppendOutcome {
    pub stream: StreamId,
    /// The rows that were read, with the new ones.
    pub rows: Vec<Row>,
    /// Whether this request appended them, not an earlier one with the same key.
    pub is_new: bool,
}

/// A stream that has no end yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenStream {
    pub stream: StreamId,
    /// Its deadline, in microseconds since 1970.
    pub until: i64,
}

/// A job in a list: what can be told of it without reading all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRow {
    /// Its place in the order of all jobs.
    pub position: i64,
    pub job_id: String,
    /// When its first and that last fact were recorded, in microseconds since 1970.
    pub submitted_at: i64,
    pub last_at: i64,
    pub shots: i64,
    /// Kind of its last fact, other than the release of its peers after a cancel.
    pub last_kind: String,
    /// The error or the reason in its last fact.
    pub error: Option<String>,
}

/// What a store is asked for.
pub enum StoreRequest {
    Append(Append, oneshot::Sender<Result<AppendOutcome, AppendError>>),
    /// To be written soon.
    Batches(Vec<EventBatch>),
    Rows {
        stream: StreamId,
        answer: oneshot::Sender<Result<Vec<Row>, LogError>>,
    },
    /// Rows from a position on, at most so many.
    Page {
        from: i64,
        limit: usize,
        answer: oneshot::Sender<Result<Vec<Row>, LogError>>,
    },
    /// Open streams of this kind.
    Open {
        kind: StreamKind,
        answer: oneshot::Sender<Result<Vec<OpenStream>, LogError>>,
    },
    /// The stream that was made with a key.
    Keyed {
        key: IdempotencyKey,
        answer: oneshot::Sender<Result<Option<StreamId>, LogError>>,
    },
    /// Jobs from the newest to the oldest, those that began before a position.
    Jobs {
        before: Option<i64>,
        limit: usize,
        answer: oneshot::Sender<Result<Vec<JobRow>, LogError>>,
    },
    /// The position of a stream's first row.
    Begin {
        stream: StreamId,
        answer: oneshot::Sender<Result<Option<i64>, LogError>>,
    },
    /// Holds whose slot was not released, of streams that a peer has written.
    OpenHolds(oneshot::Sender<Result<Vec<StreamId>, LogError>>),
    Queue(QueueRequest),
    Flush(oneshot::Sender<()>),
}
