//! Pure: a delivery as data, what happens to it, and what is to be done for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::model::{JobId, MessageId};
use crate::state::db::Status;

/// A stored result that is to be delivered.
#[derive(Debug)]
pub struct PendingDelivery {
    pub message_id: MessageId,
    pub job_id: JobId,
    pub callback_url: Arc<str>,
    /// Scheme, host and port of the callback: attempts are limited by it.
    pub origin: Arc<str>,
    pub status: Status,
    /// The body for the first attempt; `None` means that it is read from the database.
    pub body: Option<Bytes>,
    /// Its size, wherever it is.
    pub body_bytes: usize,
    pub attempts: u32,
}

/// How the delivery of a result ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The receiver has the result.
    Accepted,
    /// The receiver, or our own policy, refused the result for good; it is kept for the operator.
    Refused,
    /// The operator dropped the result before it could be delivered.
    Dropped,
}

/// A result whose delivery has finished and is recorded on disk: its message can be acknowledged.
#[derive(Debug, PartialEq, Eq)]
pub struct FinishedDelivery {
    pub message_id: MessageId,
    pub status: Status,
    pub outcome: DeliveryOutcome,
}

/// The queue's own name for a delivery, given when it is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId(pub(super) u64);

/// How one attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptEnd {
    Accepted,
    /// Refused permanently.
    Refused {
        why: String,
    },
    /// Our credentials were not accepted.
    Unauthorized {
        why: String,
    },
    /// The origin did not take the result now; `retry_after` is the pause that it asked for.
    Failed {
        retry_after: Option<Duration>,
        why: String,
    },
    /// The host itself failed to send it, which says nothing about the origin.
    NotSent {
        why: String,
    },
    /// The row is gone from the database: the operator dropped the result.
    Dropped,
}

/// What happens to deliveries.
#[derive(Debug)]
pub enum DeliveryEvent {
    /// A stored result is to be delivered.
    Added(PendingDelivery),
    AttemptEnded {
        id: DeliveryId,
        end: AttemptEnd,
    },
    /// The end of a delivery is on disk.
    EndRecorded {
        id: DeliveryId,
    },
    /// The end of a delivery could not be written.
    RecordFailed {
        id: DeliveryId,
    },
    /// So many heartbeats were accepted by now.
    HeartbeatsAccepted(u64),
    /// The host is stopping: every result gets its first attempt now, outage or not.
    DrainBegan,
    /// The time that the queue named as its next wake has come.
    TimePassed,
}

/// What the caller is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum DeliveryEffect {
    /// Post the result once, then feed back [`DeliveryEvent::AttemptEnded`].
    Attempt(DeliveryAttempt),
    /// Log a failed attempt and note it in the database, where it may be lost in a crash.
    NoteFailure(FailedAttempt),
    /// Write the end to the database, then feed back `EndRecorded` or `RecordFailed`.
    RecordEnd(EndRecord),
    /// Tell the owner of the jobs.
    Report(FinishedDelivery),
    /// One result that had never been tried has been tried.
    FirstAttemptEnded,
    /// Log that an origin accepts again.
    OriginRecovered { origin: Arc<str>, woken: usize },
    /// Log a bug: an event that names a delivery which is not where the event says.
    UnknownDelivery { id: DeliveryId, event: &'static str },
}

/// One attempt to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryAttempt {
    pub id: DeliveryId,
    pub message_id: MessageId,
    pub callback_url: Arc<str>,
    /// `None` means that the body is read from the database.
    pub body: Option<Bytes>,
}

/// A failed attempt, as it is logged and noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAttempt {
    pub message_id: MessageId,
    pub job_id: JobId,
    /// Attempts so far, this one included.
    pub attempts: u32,
    pub why: String,
    pub next: NextAttempt,
}

/// When a result is tried again after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextAttempt {
    After(Duration),
    /// Once a heartbeat is accepted.
    AfterHeartbeat,
    Never,
}

/// The end of a delivery, as it is written to the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndRecord {
    pub id: DeliveryId,
    pub message_id: MessageId,
    pub job_id: JobId,
    /// Why the result was refused permanently; `None` for an accepted one.
    pub refused: Option<String>,
}
