//! What the database holds, as plain data.

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
