//! The state of one claimed message, with the data that the state needs and no other.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use super::event::{Runnable, StoredResult, Subject};
use crate::jobs::admission::PastEnd;
use crate::jobs::message::Message;
use crate::model::{JobId, MessageId};
use crate::state::db::{DeadLetter, Status};

/// What is known of a message from its claim on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub message_id: MessageId,
    /// When it was claimed.
    pub at: Duration,
    /// Whether it holds a prefetch permit.
    pub permit: bool,
    /// Whether it had been delivered to this consumer before.
    pub left_pending: bool,
    /// Which job it is of, as far as it says, hashed.
    pub job: Option<u64>,
    /// What the message takes in memory while it is needed, in bytes.
    pub bytes: usize,
    /// The message that its job's record named when this one was checked.
    pub replaces: Option<MessageId>,
    pub entry: EntryOwner,
}

/// Whose entry the stream has under the message's id. After a FLUSHALL it can be another message's, which an
/// acknowledgement would take away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryOwner {
    ThisMessage,
    Another,
    /// Not looked at: the message was taken up by its result on disk.
    Unknown,
}

impl Claim {
    /// A message that was claimed just now and holds a permit.
    pub fn of_message(message: &Message, at: Duration, left_pending: bool) -> Claim {
        Claim {
            message_id: message.id,
            at,
            permit: true,
            left_pending,
            job: message.job_id().map(hashed),
            bytes: message.size(),
            replaces: None,
            entry: EntryOwner::ThisMessage,
        }
    }

    /// A message whose entry is gone.
    pub fn without_entry(message_id: MessageId, at: Duration) -> Claim {
        Claim {
            message_id,
            at,
            permit: false,
            left_pending: true,
            job: None,
            bytes: 0,
            replaces: None,
            entry: EntryOwner::ThisMessage,
        }
    }

    /// A message whose result was on disk at the start.
    pub fn recovered(message_id: MessageId, at: Duration, job_id: &JobId) -> Claim {
        let job = Some(hashed(job_id.as_bytes()));
        Claim { job, entry: EntryOwner::Unknown, ..Claim::without_entry(message_id, at) }
    }

    /// Whether this message is another one, which has the same id after a FLUSHALL.
    pub fn is_other(&self, message: &Message) -> bool {
        let job = message.job_id().map(hashed);
        self.job.is_some() && job.is_some() && self.job != job
    }
}

fn hashed(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// A claimed message.
#[derive(Debug)]
pub(super) struct Job {
    pub claim: Claim,
    pub state: JobState,
}

/// Where a message is on its way.
#[derive(Debug)]
pub(super) enum JobState {
    /// Being looked up and parsed.
    Checking,
    /// Another message owns its job id.
    Parked { job_id: JobId, subject: Subject },
    /// Admitted, not with the executor.
    Queued(Runnable),
    /// With the executor, in no slot.
    Waiting { job: Runnable, withdrawal: Option<Withdrawal> },
    /// Its last run failed, and it runs again when the pause is over.
    Resting { job: Runnable, until: Duration },
    /// In the plugin.
    Running { job: Runnable, slot: usize, cancel: CancelProgress },
    /// Its result is being judged and stored; nothing is on disk for certain.
    Storing { job_id: JobId, retry: Option<Retry<StoredResult>> },
    /// On disk since an earlier start; Redis is asked what was decided.
    Resuming { result: StoredResult },
    /// On disk; the cancel key is being read for the last time.
    Deciding { result: StoredResult },
    /// Past the point of no return; its terminal state is being written to Redis.
    Announcing { result: StoredResult },
    /// Past the point of no return; Redis is away, so the decision is being noted on disk.
    Marking { result: StoredResult, retry: Option<Duration> },
    /// Cancelled with a result on disk, which is being removed.
    Discarding { job_id: JobId, retry: Option<Duration> },
    /// With the dispatcher. `unwritten` is the terminal state that Redis does not have.
    Delivering { job_id: JobId, status: Status, unwritten: Option<PastEnd> },
    /// It can't be answered and is being kept for the operator.
    Burying { letter: DeadLetter, retry: Option<Duration> },
    /// Delivered with a failure that Redis does not have; whether the job was completed by another message is read.
    Settling { job_id: JobId, end: PastEnd, retry: Option<Duration> },
    /// The last write to Redis is being confirmed. `completed`: the job has a completed result.
    Acknowledging { job_id: Option<JobId>, completed: bool },
}

/// Something to be tried again, and when.
#[derive(Debug)]
pub(super) struct Retry<T> {
    pub at: Duration,
    pub value: T,
}

/// Why a job is taken back from the executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Withdrawal {
    /// It was cancelled.
    Cancel,
    /// Nothing may start now; it is queued again.
    Hold,
    /// The host stops; the message stays pending.
    Drain,
}

/// How far the cancel of a running job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CancelProgress {
    NotCancelled,
    /// The plugin is told, the state `cancelled` and the acknowledgement are being written.
    Closing,
    /// Redis has confirmed both; only the run is to come back.
    Closed,
}

impl JobState {
    pub fn name(&self) -> &'static str {
        match self {
            JobState::Checking => "checking",
            JobState::Parked { .. } => "parked",
            JobState::Queued(_) => "queued",
            JobState::Waiting { .. } => "waiting",
            JobState::Resting { .. } => "resting",
            JobState::Running { .. } => "running",
            JobState::Storing { .. } => "storing",
            JobState::Resuming { .. } => "resuming",
            JobState::Deciding { .. } => "deciding",
            JobState::Announcing { .. } => "announcing",
            JobState::Marking { .. } => "marking",
            JobState::Discarding { .. } => "discarding",
            JobState::Delivering { .. } => "delivering",
            JobState::Burying { .. } => "burying",
            JobState::Settling { .. } => "settling",
            JobState::Acknowledging { .. } => "acknowledging",
        }
    }

    pub fn job_id(&self) -> Option<&JobId> {
        match self {
            JobState::Checking | JobState::Burying { .. } => None,
            JobState::Queued(job)
            | JobState::Waiting { job, .. }
            | JobState::Resting { job, .. }
            | JobState::Running { job, .. } => Some(&job.envelope.job_id),
            JobState::Resuming { result }
            | JobState::Deciding { result }
            | JobState::Announcing { result }
            | JobState::Marking { result, .. } => Some(&result.row.job_id),
            JobState::Parked { job_id, .. }
            | JobState::Storing { job_id, .. }
            | JobState::Discarding { job_id, .. }
            | JobState::Settling { job_id, .. }
            | JobState::Delivering { job_id, .. } => Some(job_id),
            JobState::Acknowledging { job_id, .. } => job_id.as_ref(),
        }
    }

    /// The job's id when its cancel key still matters and is not known to be set.
    pub fn cancellable(&self) -> Option<&JobId> {
        match self {
            JobState::Queued(job)
            | JobState::Resting { job, .. }
            | JobState::Waiting { job, withdrawal: None | Some(Withdrawal::Hold) }
            | JobState::Running { job, cancel: CancelProgress::NotCancelled, .. } => {
                Some(&job.envelope.job_id)
            }
            _ => None,
        }
    }

    /// Whether its message or its circuit is in memory.
    pub fn holds_message(&self) -> bool {
        matches!(
            self,
            JobState::Checking
                | JobState::Parked { .. }
                | JobState::Queued(_)
                | JobState::Waiting { .. }
                | JobState::Resting { .. }
                | JobState::Running { .. }
        )
    }

    /// Whether a stop has to wait for it before results are tried.
    pub fn holds_drain(&self) -> bool {
        matches!(
            self,
            JobState::Waiting { .. }
                | JobState::Running { .. }
                | JobState::Storing { .. }
                | JobState::Resuming { .. }
                | JobState::Deciding { .. }
                | JobState::Announcing { .. }
                | JobState::Marking { .. }
                | JobState::Discarding { .. }
                | JobState::Burying { .. }
        )
    }

    /// Whether its result is on disk and not known to be delivered.
    pub fn is_undelivered(&self) -> bool {
        matches!(
            self,
            JobState::Resuming { .. }
                | JobState::Deciding { .. }
                | JobState::Announcing { .. }
                | JobState::Marking { .. }
                | JobState::Delivering { .. }
        )
    }

    /// When it is to be tried again.
    pub fn retry_at(&self) -> Option<Duration> {
        match self {
            JobState::Resting { until, .. } => Some(*until),
            JobState::Storing { retry, .. } => retry.as_ref().map(|r| r.at),
            JobState::Marking { retry, .. }
            | JobState::Discarding { retry, .. }
            | JobState::Settling { retry, .. }
            | JobState::Burying { retry, .. } => *retry,
            _ => None,
        }
    }
}
