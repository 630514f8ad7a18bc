//! What the database holds, as plain data.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use crate::model::{JobId, MessageId};

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

    pub(super) fn from_name(name: &str) -> Option<Status> {
        [Status::Completed, Status::Failed].into_iter().find(|status| status.name() == name)
    }
}

/// How far the delivery of a stored result has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A cancel may still win.
    Stored,
    /// A cancel comes too late: the result goes to the cloud.
    Announced,
    /// The cloud refused it permanently.
    Refused,
}

impl Phase {
    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::Stored => "stored",
            Phase::Announced => "announced",
            Phase::Refused => "refused",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Phase> {
        [Phase::Stored, Phase::Announced, Phase::Refused].into_iter().find(|phase| phase.name() == name)
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
    /// The message that the job's status hash named when this one was claimed: one that had ended before.
    pub replaces: Option<MessageId>,
    /// For the record of ended jobs. Empty in a row that was read back.
    pub facts: JobFacts,
    /// The exact bytes of every attempt. Empty in a row that was read without them.
    pub body: Bytes,
}

/// A row read back after a start, without its body.
#[derive(Debug, Clone)]
pub struct StoredRow {
    pub row: ResultRow,
    pub body_bytes: usize,
    pub phase: Phase,
    pub attempts: u32,
    pub last_error: Option<String>,
}

/// What history knows of a message.
#[derive(Debug, Clone)]
pub struct HistoryEntry {
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

/// What the database holds when the host starts.
#[derive(Debug, Default)]
pub struct StoreContents {
    pub rows: Vec<StoredRow>,
    /// How often the process died while running a message.
    pub deaths: Vec<(MessageId, u32)>,
    /// Undelivered results of other QPUs in the same directory.
    pub foreign: u64,
    pub dead_letters: u64,
    /// The last messages of history, the newest first.
    pub recent: Vec<HistoryEntry>,
}

/// How a job ended, in the record of ended jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedOutcome {
    Completed,
    Failed,
    Cancelled,
    /// Its message was kept as a dead letter.
    Unanswerable,
}

impl RecordedOutcome {
    pub fn name(self) -> &'static str {
        match self {
            RecordedOutcome::Completed => "completed",
            RecordedOutcome::Failed => "failed",
            RecordedOutcome::Cancelled => "cancelled",
            RecordedOutcome::Unanswerable => "unanswerable",
        }
    }

    pub(super) fn from_status(status: Status) -> RecordedOutcome {
        match status {
            Status::Completed => RecordedOutcome::Completed,
            Status::Failed => RecordedOutcome::Failed,
        }
    }
}

/// What became of the result of an ended job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is on disk and is sent again.
    Pending,
    /// Its receiver has accepted it.
    Delivered,
    /// Its receiver has refused it.
    Refused,
    /// The operator has removed it.
    Dropped,
    /// There is nothing to deliver.
    None,
}

impl Delivery {
    pub fn name(self) -> &'static str {
        match self {
            Delivery::Pending => "pending",
            Delivery::Delivered => "delivered",
            Delivery::Refused => "refused",
            Delivery::Dropped => "dropped",
            Delivery::None => "none",
        }
    }
}

/// What is recorded of a job beside its end. Sizes are known of jobs whose circuit was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFacts {
    pub qubits: Option<u32>,
    pub gates: Option<u32>,
    pub shots: Option<u32>,
    /// From the claim to the first run.
    pub waited_ms: Option<u64>,
    /// How long the plugin had it, in all its runs; of a batch the job's share.
    pub run_us: u64,
    /// Runs that the plugin has answered.
    pub runs: u32,
    /// Why it failed, as a word for programs.
    pub reason: Option<Cow<'static, str>>,
}

/// A row of the record of ended jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedJob {
    pub qpu_id: String,
    pub message_id: String,
    /// Empty when its message can't be answered.
    pub job_id: String,
    /// In milliseconds since 1970.
    pub at: i64,
    /// As [`RecordedOutcome::name`].
    pub outcome: String,
    /// As [`Delivery::name`].
    pub delivery: String,
    pub facts: JobFacts,
    pub error: Option<String>,
}

/// A time in which the host was up with so many slots, and runs could begin or were held. In milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AvailabilityPeriod {
    pub since: i64,
    pub until: i64,
    pub slots: u32,
    /// Why no run could begin, as a word for programs; `None` when runs could.
    pub hold: Option<String>,
    pub note: Option<String>,
}
