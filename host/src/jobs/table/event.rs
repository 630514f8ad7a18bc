//! What the job table is told, and what it asks for in return.
//!
//! Every effect that names a ticket is answered by exactly one event with that ticket, unless its line says
//! otherwise; an effect that failed is an event too.

use std::sync::Arc;
use std::time::Duration;

use coda_plugin_abi::{Device, Error, Outcome};
use time::OffsetDateTime;

use super::Ticket;
use super::retries::FailedRuns;
use crate::jobs::admission::{JobRecord, PastEnd};
use crate::jobs::message::{Envelope, Message, Work};
use crate::model::{JobId, MessageId};
use crate::results::delivery::DeliveryOutcome;
use crate::state::db::{DeadLetter, ResultRow, Status};

/// When something happens.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Since the host started: monotonic, for waits.
    pub elapsed: Duration,
    /// The wall clock, for the record.
    pub at: OffsetDateTime,
}

/// A job that can run.
#[derive(Debug, Clone)]
pub struct Runnable {
    pub envelope: Envelope,
    pub work: Work,
    /// The process died while it ran this message: it runs alone.
    pub suspect: bool,
    /// Its runs that have failed, and after which it runs again.
    pub failed: FailedRuns,
}

/// What a check looks at.
#[derive(Debug, Clone)]
pub enum Subject {
    /// The message as it came.
    Message(Message),
    /// A message that was read before: who sent it, and its circuit or what is wrong with it.
    Parsed(Envelope, Result<Work, String>),
}

/// One message to be checked.
#[derive(Debug)]
pub struct CheckRequest {
    pub ticket: Ticket,
    pub message_id: MessageId,
    /// Process deaths while this message ran.
    pub deaths: u32,
    /// Whether it had been delivered to this consumer before.
    pub left_pending: bool,
    pub subject: Subject,
}

/// What a check found.
#[derive(Debug)]
pub enum CheckOutcome {
    /// Its sender can be told how it ends. `subject` is for another check, `replaces` the message that the job's record
    /// named.
    Answerable { envelope: Envelope, verdict: Verdict, subject: Subject, replaces: Option<MessageId> },
    /// No result can be sent for it.
    Unanswerable { reason: String, fields: String },
}

/// What to do with a message whose sender can be told.
#[derive(Debug)]
pub enum Verdict {
    Run(Work),
    /// A failure without a run, with what is wrong.
    Fail(String),
    /// The job ended before.
    Duplicate,
    /// This message ended on this host, and Redis does not know.
    Settle(PastEnd),
    /// Cancelled before it ran.
    Cancelled,
}

/// A result on disk, on its way to the cloud.
#[derive(Debug, Clone)]
pub struct StoredResult {
    /// Without its body when that is on disk alone.
    pub row: ResultRow,
    pub body_bytes: usize,
    /// Scheme, host and port of the callback.
    pub origin: Arc<str>,
    pub attempts: u32,
}

/// A result that was on disk at the start.
#[derive(Debug, Clone)]
pub struct RecoveredResult {
    pub result: StoredResult,
    /// The row says that the point of no return was passed.
    pub announced: bool,
}

/// A result that is not on disk yet.
#[derive(Debug)]
pub enum Unstored {
    /// An answer of the executor that must be judged.
    /// `failed_runs` is how many runs have failed, this one included.
    Answer { envelope: Envelope, work: Work, failed_runs: u32, answer: Result<Outcome, Error> },
    /// A job that fails without a run.
    Failure { envelope: Envelope, error: String },
    /// A row that could not be written before.
    Row(StoredResult),
}

/// A terminal state for the status hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminalStatus {
    Ended(PastEnd),
    Cancelled { at: String },
}

/// How messages came to this consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimOrigin {
    /// Read from the stream as new.
    New,
    /// Delivered to this consumer before, and not acknowledged.
    LeftPending,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// Messages that this consumer holds now; each took a prefetch permit.
    Claimed {
        messages: Vec<Message>,
        origin: ClaimOrigin,
    },
    /// Pending ids whose stream entries are gone.
    Trimmed(Vec<MessageId>),
    Checked {
        ticket: Ticket,
        outcome: CheckOutcome,
    },
    /// Redis or the database could not be asked about these messages.
    CheckFailed {
        tickets: Vec<Ticket>,
        error: String,
    },
    /// A result found on disk at the start.
    Recovered(RecoveredResult),
    /// What Redis records about a recovered result's job.
    RecordRead {
        ticket: Ticket,
        record: Result<JobRecord, String>,
    },
    /// A slot took these jobs; they can't be withdrawn any more.
    Started {
        slot: usize,
        tickets: Vec<Ticket>,
    },
    Answered {
        slot: usize,
        ticket: Ticket,
        answer: Result<Outcome, Error>,
    },
    /// `withdrawn`: the executor gave the job back; otherwise a slot took it, and `Started` says so.
    Withdrawn {
        ticket: Ticket,
        withdrawn: bool,
    },
    /// It is time to look at the cancel keys.
    CancelPoll,
    /// The keys that were found set.
    CancelKeysRead {
        cancelled: Vec<Ticket>,
        /// Why some keys could not be read.
        error: Option<String>,
    },
    Stored {
        ticket: Ticket,
        result: StoredResult,
    },
    StoreFailed {
        ticket: Ticket,
        result: StoredResult,
        error: String,
    },
    /// The answer to the last look at the cancel key.
    CancelKeyRead {
        ticket: Ticket,
        cancelled: Result<bool, String>,
    },
    StatusWritten {
        ticket: Ticket,
        written: bool,
    },
    Marked {
        ticket: Ticket,
        marked: Result<(), String>,
    },
    Discarded {
        ticket: Ticket,
        discarded: Result<(), String>,
    },
    Buried {
        ticket: Ticket,
        buried: Result<(), String>,
    },
    /// The dispatcher is done with a result; its end is recorded on disk.
    Delivered {
        message_id: MessageId,
        outcome: DeliveryOutcome,
    },
    Acknowledged {
        ticket: Ticket,
    },
    /// What the last write to the state database came to, whoever asked for it.
    StoreChanged {
        error: Option<String>,
    },
    /// Another device is in use. The executor gave back every job that was in no slot.
    DeviceChanged {
        device: Arc<Device>,
    },
    /// Finish what runs, claim nothing more.
    DrainRequested,
    /// Every result was tried at least once.
    AllTried,
    /// Time has passed: see [`JobTable::next_wake`](super::JobTable::next_wake).
    Tick,
}

/// Whether an acknowledgement takes the message off the pending list. After a FLUSHALL an id may be another message's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageRemoval {
    Remove,
    /// Its entry was not looked at since the start: only if that is of this job, or is gone.
    RemoveIfOf(JobId),
    /// Another message has the id; it stays pending.
    Leave,
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Give so many prefetch permits back. Answered by nothing.
    ReturnPermits(usize),
    /// Look up and parse: [`Event::Checked`] for each, or [`Event::CheckFailed`].
    Check(Vec<CheckRequest>),
    /// Let jobs wait for a slot, lower tickets first: [`Event::Started`], then [`Event::Answered`] for each.
    Submit(Vec<Submission>),
    /// Take a job back that waits: [`Event::Withdrawn`].
    Withdraw(Ticket),
    /// Tell the plugin to end a run. Answered by nothing; the run's answer comes all the same.
    CancelRun(Ticket),
    /// Which of these jobs have a cancel key? [`Event::CancelKeysRead`].
    ReadCancelKeys(Vec<(Ticket, JobId)>),
    /// [`Event::RecordRead`].
    ReadRecord { ticket: Ticket, job_id: JobId },
    /// The last look at a cancel key: [`Event::CancelKeyRead`].
    ReadCancelKey { ticket: Ticket, job_id: JobId },
    /// The state `executing`, best effort. Answered by nothing.
    WriteExecuting { message_id: MessageId, job_id: JobId },
    /// The terminal state, tried once: [`Event::StatusWritten`].
    WriteStatus { ticket: Ticket, message_id: MessageId, job_id: JobId, end: PastEnd },
    /// Judge and store durably: [`Event::Stored`] or [`Event::StoreFailed`].
    Store { ticket: Ticket, message_id: MessageId, result: Unstored, at: String, replaces: Option<MessageId> },
    /// Note on disk that the point of no return is passed: [`Event::Marked`].
    MarkAnnounced { ticket: Ticket, message_id: MessageId },
    /// Remove a cancelled job's result from disk: [`Event::Discarded`].
    Discard { ticket: Ticket, message_id: MessageId },
    /// Keep a message that can't be answered: [`Event::Buried`].
    Bury { ticket: Ticket, letter: DeadLetter },
    /// Deliver: [`Event::Delivered`].
    Deliver(StoredResult),
    /// Write a terminal state if there is one, and acknowledge, until Redis has confirmed it:
    /// [`Event::Acknowledged`].
    Acknowledge {
        ticket: Ticket,
        message_id: MessageId,
        status: Option<(JobId, TerminalStatus)>,
        removal: MessageRemoval,
    },
    /// A message with deaths has ended. Answered by nothing.
    ForgetDeaths(MessageId),
    /// Wait until every result was tried once: [`Event::AllTried`].
    AwaitFirstAttempts,
    /// For log and metrics. Answered by nothing.
    Notify(Notice),
}

/// A job for the executor.
#[derive(Debug)]
pub struct Submission {
    pub ticket: Ticket,
    pub message_id: MessageId,
    pub job: Runnable,
}

/// What the log and the metrics are told.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice {
    /// Another message with this job id is in flight.
    Parked {
        job_id: JobId,
    },
    /// Too many messages are parked; this one stays pending.
    NotParked {
        job_id: JobId,
        message_id: MessageId,
    },
    Duplicate {
        job_id: JobId,
        message_id: MessageId,
    },
    Settled {
        job_id: JobId,
        message_id: MessageId,
    },
    CancelledBeforeRun {
        job_id: JobId,
    },
    CancelledRunning {
        job_id: JobId,
    },
    /// Cancelled after its result was stored, before the point of no return.
    CancelledAfterRun {
        job_id: JobId,
    },
    Unfit {
        job_id: JobId,
        error: String,
    },
    /// A run failed in a way that another one may not: it is made again after the pause.
    RunsAgain {
        job_id: JobId,
        failed_runs: u32,
        pause: Duration,
        error: Error,
    },
    /// The executor had answered this message before the process died.
    AnsweredBefore {
        job_id: JobId,
    },
    Trimmed {
        message_id: MessageId,
    },
    /// Another message came with the id of one that is in flight.
    IdReused {
        message_id: MessageId,
    },
    DeadLetter {
        message_id: MessageId,
        reason: String,
    },
    Started {
        ticket: Ticket,
        job_id: JobId,
        slot: usize,
        waited: Duration,
        shots: u32,
    },
    Ended {
        job_id: JobId,
        status: Status,
        outcome: DeliveryOutcome,
    },
    /// Cancel keys can't be read: jobs that were cancelled may run on.
    CancelsUnread {
        error: String,
    },
    ChecksFail {
        messages: usize,
        error: String,
    },
    StoreFails {
        error: String,
    },
    StoreWorks,
    Draining {
        running: usize,
        left_pending: usize,
    },
    Impossible(Fault),
}

/// An event that the table has no use for: a bug. The job's message stays pending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub job: String,
    pub state: &'static str,
    pub event: &'static str,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {} got the event {} in the state {}", self.job, self.event, self.state)
    }
}

impl StoredResult {
    /// How the job ended, for the status hash.
    pub fn end(&self) -> PastEnd {
        PastEnd {
            status: self.row.status,
            error: self.row.error.clone(),
            finished_at: self.row.finished_at.clone(),
        }
    }
}
