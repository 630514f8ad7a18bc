//! The job table: every decision about a claimed message, without I/O.
//!
//! An [`Event`] and the time go in, [`Effect`]s come out. `driver` performs them and reports what came of each as
//! a further event; nothing else knows a job's state. Ends are durable before they are acknowledged, and a job
//! ends once:
//!
//! ```text
//!          ┌─ parked <─┐ its job id is in flight
//!          v           │
//!  ─> checking ────────┴──> queued <──> waiting ──> running ─ answer ─┐
//!      │   │ fails without a run            (executor)                v
//!      │   └─────────────────────────────────────────────────────> storing
//!      │ ended before, cancelled                                      v
//!      │                                  ┌─ cancel key is set ─ deciding <─ resuming (on disk at the start)
//!      │                                  v                           v point of no return
//!      │                              discarding                  announcing ─ Redis is away ─> marking
//!      │                                  v                           v                            v
//!      ├────────────────────────────> acknowledging <────────── delivering <───────────────────────┘
//!      │ can't be answered                ^
//!      └─> burying ───────────────────────┘
//! ```
//!
//! After a retryable error a job goes from running to resting, and from there to queued.
//! A failure that Redis does not have yet goes from delivering through settling: a completed job stays completed.
//!
//! Rules with one home here:
//! - a cancel wins until [`JobState::Announcing`]; later ones are ignored, the result is sent;
//! - a second message with a job id in flight is parked ([`JobIds`]);
//! - jobs run in stream order, a message that the process died on runs alone ([`HandOver`]);
//! - a run that failed and may be made again rests, keeps its place in the order, and is bounded ([`RetryRule`]);
//! - a circuit is judged by the device that will run it, at the moment it goes to the executor;
//! - while results can't be stored nothing new runs;
//! - an event that fits no state is a [`Fault`]: it is reported, and the message stays pending.

mod end;
mod event;
mod hand_over;
mod intake;
mod job_ids;
mod retries;
mod run;
mod state;

#[cfg(test)]
mod table_model;
#[cfg(test)]
mod table_tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use coda_plugin_abi::Device;
use time::OffsetDateTime;

use super::limits::RunEstimate;
use super::standing_error::StandingError;
use crate::config::settings::SiteLimits;
use crate::model::{JobId, MessageId};
use crate::state::answer_journal::KeptAnswers;

pub use event::{
    CheckOutcome, CheckRequest, ClaimOrigin, Effect, Event, Fault, MessageRemoval, Notice, Now,
    RecoveredResult, Runnable, StoredResult, Subject, Submission, TerminalStatus, Unstored, Verdict,
};
use hand_over::HandOver;
use job_ids::JobIds;
pub use retries::{FailedRuns, RetryRule};
use state::{CancelProgress, Claim, Job, JobState, Withdrawal};

/// The table's own number of a claimed message; lower ones were claimed earlier.
pub type Ticket = u64;

/// Faults that are kept for `/ready`.
const MAX_FAULTS: usize = 8;

/// What the table is told at the start.
#[derive(Debug)]
pub struct TableSettings {
    pub slots: usize,
    /// Messages that may wait for another one with their job id.
    pub max_parked: usize,
    /// Bytes of messages from which on no more are to be claimed.
    pub max_held_bytes: usize,
    /// Before something that failed on disk is tried again.
    pub retry: Duration,
    /// When a run that failed is made again.
    pub runs_again: RetryRule,
    pub device: Arc<Device>,
    pub limits: SiteLimits,
    pub estimate: RunEstimate,
    /// How often the process died while it ran a message.
    pub deaths: HashMap<MessageId, u32>,
    /// Answers that a former process got from the executor and had not stored, with their job ids.
    pub answered: KeptAnswers,
}

/// How far a stop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drain {
    NotAsked,
    /// Runs are finished, results are stored.
    Finishing,
    /// Results are being tried once.
    Trying,
    Tried,
}

/// What others may know about the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableStatus {
    /// The job that has been in the plugin longest.
    pub current: Option<(Ticket, JobId)>,
    pub slots: usize,
    pub slots_busy: usize,
    /// Admitted jobs that are in no slot.
    pub waiting: usize,
    /// Messages behind another one with their job id.
    pub parked: usize,
    /// As many messages are parked or wait for their acknowledgement, or as many bytes are held, as may be: no more are
    /// to be claimed.
    pub is_full: bool,
    /// Why results can't be stored now.
    pub store_error: Option<String>,
    /// Why cancels can't be read now.
    pub cancel_error: Option<String>,
    /// When messages could not be checked last, and why.
    pub check_error: Option<(Duration, String)>,
    pub faults: Vec<Fault>,
    /// When a success was last accepted by its receiver.
    pub last_success: Option<OffsetDateTime>,
}

/// What is left when the host stops.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leftover {
    /// Jobs that are still in the plugin, and not cancelled.
    pub running: Vec<JobId>,
    /// Jobs that ran and whose results are not on disk.
    pub unstored: Vec<JobId>,
    /// Results on disk that were not delivered.
    pub undelivered: usize,
}

/// Most messages that have ended and that Redis does not acknowledge.
const MAX_UNACKNOWLEDGED: usize = 10_000;

/// Every claimed message, and the effects that the last event led to.
#[derive(Debug)]
pub struct JobTable {
    jobs: BTreeMap<Ticket, Job>,
    by_message: HashMap<MessageId, Ticket>,
    ids: JobIds,
    order: HandOver,
    retries: BTreeSet<(Duration, Ticket)>,
    /// In the plugin, in the order of their starts.
    running: Vec<Ticket>,
    /// How many jobs each slot has.
    in_slot: Vec<usize>,
    waiting: usize,
    /// Jobs that wait for another run.
    resting: usize,
    /// What messages and circuits take in memory.
    held_bytes: usize,
    /// Jobs whose state holds a drain.
    unfinished: usize,
    acknowledging: usize,
    next_ticket: Ticket,
    polling: bool,
    drain: Drain,
    store_error: StandingError,
    cancel_error: StandingError,
    check_error: StandingError,
    check_failed_at: Duration,
    faults: Vec<Fault>,
    last_success: Option<OffsetDateTime>,
    device: Arc<Device>,
    limits: SiteLimits,
    estimate: RunEstimate,
    deaths: HashMap<MessageId, u32>,
    answered: KeptAnswers,
    retry: Duration,
    runs_again: RetryRule,
    max_held_bytes: usize,
    effects: Vec<Effect>,
}

impl JobTable {
    pub fn new(settings: TableSettings) -> JobTable {
        JobTable {
            jobs: BTreeMap::new(),
            by_message: HashMap::new(),
            ids: JobIds::new(settings.max_parked),
            order: HandOver::default(),
            retries: BTreeSet::new(),
            running: Vec::new(),
            in_slot: vec![0; settings.slots],
            waiting: 0,
            resting: 0,
            held_bytes: 0,
            unfinished: 0,
            acknowledging: 0,
            next_ticket: 0,
            polling: false,
            drain: Drain::NotAsked,
            store_error: StandingError::default(),
            cancel_error: StandingError::default(),
            check_error: StandingError::default(),
            check_failed_at: Duration::ZERO,
            faults: Vec::new(),
            last_success: None,
            device: settings.device,
            limits: settings.limits,
            estimate: settings.estimate,
            deaths: settings.deaths,
            answered: settings.answered,
            retry: settings.retry,
            runs_again: settings.runs_again,
            max_held_bytes: settings.max_held_bytes,
            effects: Vec::new(),
        }
    }

    /// Takes an event and returns what is to be done, in order.
    pub fn on(&mut self, now: Now, event: Event) -> Vec<Effect> {
        match event {
            Event::Claimed { messages, origin } => self.claimed(now, messages, origin),
            Event::Trimmed(ids) => self.trimmed(now, ids),
            Event::Checked { ticket, outcome } => self.checked(now, ticket, outcome),
            Event::CheckFailed { tickets, error } => self.check_failed(now, &tickets, error),
            Event::Recovered(recovered) => self.recovered(now, recovered),
            Event::RecordRead { ticket, record } => self.record_read(now, ticket, record),
            Event::Started { slot, tickets } => self.started(now, slot, &tickets),
            Event::Answered { slot, ticket, answer } => self.answered(now, slot, ticket, answer),
            Event::Withdrawn { ticket, withdrawn: true } => self.withdrawn(now, ticket),
            // A slot was quicker; its start decides what happens.
            Event::Withdrawn { withdrawn: false, .. } => {}
            Event::CancelPoll => self.cancel_poll(),
            Event::CancelKeysRead { cancelled, error } => self.cancel_keys_read(now, &cancelled, error),
            Event::Stored { ticket, result } => self.stored(ticket, result),
            Event::StoreFailed { ticket, result, error } => self.store_failed(now, ticket, result, error),
            Event::CancelKeyRead { ticket, cancelled } => self.decide(ticket, cancelled),
            Event::StatusWritten { ticket, written } => self.status_written(ticket, written),
            Event::Marked { ticket, marked } => self.marked(now, ticket, marked),
            Event::Discarded { ticket, discarded } => self.discarded(now, ticket, discarded),
            Event::Buried { ticket, buried } => self.buried(now, ticket, buried),
            Event::Delivered { message_id, outcome } => self.delivered(now, message_id, outcome),
            Event::Acknowledged { ticket } => self.acknowledged(ticket),
            Event::StoreChanged { error: Some(error) } => self.store_fails(now, error),
            Event::StoreChanged { error: None } => self.store_works(),
            Event::DeviceChanged { device } => self.device_changed(now, device),
            Event::DrainRequested => self.begin_drain(),
            Event::AllTried => self.drain = Drain::Tried,
            Event::Tick => self.retry_due(now),
        }

        self.hand_over(now);
        self.advance_drain();
        std::mem::take(&mut self.effects)
    }

    /// When [`Event::Tick`] is due; never when nothing waits for the time.
    pub fn next_wake(&self) -> Option<Duration> {
        self.retries.first().map(|(at, _)| *at)
    }

    /// Those of these messages that the table does not hold.
    pub fn not_held(&self, ids: Vec<MessageId>) -> Vec<MessageId> {
        ids.into_iter().filter(|id| !self.by_message.contains_key(id)).collect()
    }

    /// Whether a stop is complete. Without Redis nothing more can be acknowledged.
    pub fn is_drained(&self, redis_is_up: bool) -> bool {
        self.drain == Drain::Tried && (self.acknowledging == 0 || !redis_is_up)
    }

    pub fn status(&self) -> TableStatus {
        let first = self.running.first().copied();
        let current = first.and_then(|t| Some((t, self.jobs.get(&t)?.state.job_id()?.clone())));
        TableStatus {
            current,
            slots: self.in_slot.len(),
            slots_busy: self.in_slot.iter().filter(|jobs| **jobs > 0).count(),
            waiting: self.order.queued() + self.waiting + self.resting,
            parked: self.ids.parked(),
            is_full: self.ids.is_full()
                || self.held_bytes >= self.max_held_bytes
                || self.acknowledging >= MAX_UNACKNOWLEDGED,
            store_error: self.store_error.text().map(str::to_string),
            cancel_error: self.cancel_error.text().map(str::to_string),
            check_error: self.check_error.text().map(|text| (self.check_failed_at, text.to_string())),
            faults: self.faults.clone(),
            last_success: self.last_success,
        }
    }

    /// What a host that stops now leaves behind.
    pub fn leftover(&self) -> Leftover {
        let mut left = Leftover::default();
        for job in self.jobs.values() {
            match &job.state {
                JobState::Running { job, cancel: CancelProgress::NotCancelled, .. } => {
                    left.running.push(job.envelope.job_id.clone());
                }
                JobState::Storing { job_id, .. } => left.unstored.push(job_id.clone()),
                state => left.undelivered += usize::from(state.is_undelivered()),
            }
        }
        left
    }

    // --- stopping

    /// Messages that did not start stay pending, unmarked; what runs goes on.
    fn begin_drain(&mut self) {
        if self.drain != Drain::NotAsked {
            return;
        }
        self.drain = Drain::Finishing;
        let mut left_pending = 0;
        let tickets: Vec<Ticket> = self.jobs.keys().copied().collect();
        for ticket in tickets {
            let Some(Job { claim, state }) = self.take(ticket, "drain") else { continue };
            match state {
                JobState::Parked { .. } | JobState::Queued(_) | JobState::Resting { .. } => {
                    left_pending += 1;
                    self.forget(ticket, claim, &state);
                }
                // A cancel that is on its way is finished.
                JobState::Waiting { job, withdrawal: None | Some(Withdrawal::Hold) } => {
                    left_pending += 1;
                    self.effects.push(Effect::Withdraw(ticket));
                    let withdrawal = Some(Withdrawal::Drain);
                    self.put(ticket, claim, JobState::Waiting { job, withdrawal });
                }
                state => {
                    left_pending += usize::from(matches!(state, JobState::Checking));
                    self.put(ticket, claim, state);
                }
            }
        }
        self.notify(Notice::Draining { running: self.running.len(), left_pending });
    }

    /// Once nothing runs and every result is on disk, each is to be tried once.
    fn advance_drain(&mut self) {
        if self.drain == Drain::Finishing && self.unfinished == 0 {
            self.drain = Drain::Trying;
            self.effects.push(Effect::AwaitFirstAttempts);
        }
    }

    // --- jobs and their states

    fn enter(&mut self, claim: Claim, state: JobState) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.by_message.insert(claim.message_id, ticket);
        self.put(ticket, claim, state);
        ticket
    }

    /// Takes a job out, to be put back with its next state or forgotten. A ticket that is not there is a fault.
    fn take(&mut self, ticket: Ticket, event: &'static str) -> Option<Job> {
        let Some(job) = self.jobs.remove(&ticket) else {
            self.fault(Fault { job: format!("with ticket {ticket}"), state: "unknown", event });
            return None;
        };
        self.count(&job, false);
        if let Some(at) = job.state.retry_at() {
            self.retries.remove(&(at, ticket));
        }
        Some(job)
    }

    fn put(&mut self, ticket: Ticket, claim: Claim, state: JobState) {
        let job = Job { claim, state };
        self.count(&job, true);
        if let Some(at) = job.state.retry_at() {
            self.retries.insert((at, ticket));
        }
        let before = self.jobs.insert(ticket, job);
        debug_assert!(before.is_none(), "ticket {ticket} was put twice");
    }

    fn count(&mut self, job: &Job, added: bool) {
        let Job { claim, state } = job;
        if state.holds_message() {
            match added {
                true => self.held_bytes += claim.bytes,
                false => self.held_bytes -= claim.bytes,
            }
        }
        let counts = [
            (&mut self.waiting, matches!(state, JobState::Waiting { .. })),
            (&mut self.resting, matches!(state, JobState::Resting { .. })),
            (&mut self.unfinished, state.holds_drain()),
            (
                &mut self.acknowledging,
                matches!(state, JobState::Acknowledging { .. } | JobState::Settling { .. }),
            ),
        ];
        for (count, concerned) in counts {
            match (concerned, added) {
                (true, true) => *count += 1,
                (true, false) => *count -= 1,
                (false, _) => {}
            }
        }
    }

    /// Lets go of a job that was taken out. Without an acknowledgement its message is still pending.
    fn forget(&mut self, ticket: Ticket, mut claim: Claim, state: &JobState) {
        self.return_permit(&mut claim);
        self.by_message.remove(&claim.message_id);
        self.order.check_ended(ticket);
        self.order.remove(ticket);
        if let Some(job_id) = state.job_id().cloned() {
            self.ids.unpark(&job_id, ticket);
            self.release_id(&job_id, ticket);
        }
    }

    fn return_permit(&mut self, claim: &mut Claim) {
        if std::mem::take(&mut claim.permit) {
            self.effects.push(Effect::ReturnPermits(1));
        }
    }

    fn notify(&mut self, notice: Notice) {
        self.effects.push(Effect::Notify(notice));
    }

    /// An event that its state has no use for. The state stays as it is, and with it the message stays pending.
    fn impossible(&mut self, ticket: Ticket, claim: Claim, state: JobState, event: &'static str) {
        let job = match state.job_id() {
            Some(job_id) => job_id.to_string(),
            None => format!("of message {}", claim.message_id),
        };
        self.fault(Fault { job, state: state.name(), event });
        self.put(ticket, claim, state);
    }

    fn fault(&mut self, fault: Fault) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(fault.clone());
        }
        self.notify(Notice::Impossible(fault));
    }
}
