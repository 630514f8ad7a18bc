//! From a result to the acknowledgement, in the order that leaves an answer wherever the process dies.
//!
//! ```text
//! store (fsync) -> read the cancel key -> not set: write the terminal state -> deliver -> acknowledge
//!                                      -> set:     discard -> write `cancelled` and acknowledge
//! ```
//!
//! The answer to that last look at the cancel key is the point of no return. When Redis can't be asked the result
//! is sent all the same: the decision is noted on disk instead of in the status hash, and the terminal state goes
//! with the acknowledgement.

use super::event::{
    Effect, MessageRemoval, Notice, Now, RecoveredResult, StoredResult, TerminalStatus, Unstored,
};
use super::state::{CancelProgress, Claim, EntryOwner, Job, JobState, Retry};
use super::{Fault, JobTable, Ticket};
use crate::jobs::admission::{Decision, JobRecord, PastEnd};
use crate::model::{JobId, MessageId, iso_time};
use crate::results::delivery::DeliveryOutcome;
use crate::state::db::Status;

impl JobTable {
    /// Takes up a result that was on disk at the start.
    pub(super) fn recovered(&mut self, now: Now, recovered: RecoveredResult) {
        let RecoveredResult { result, announced } = recovered;
        let (message_id, job_id) = (result.row.message_id, result.row.job_id.clone());
        let claim = Claim::recovered(message_id, now.elapsed, &job_id);
        if announced {
            let (status, unwritten) = (result.row.status, Some(result.end()));
            let ticket =
                self.enter(claim, JobState::Delivering { job_id: job_id.clone(), status, unwritten });
            self.ids.own_beside_others(&job_id, ticket);
            self.effects.push(Effect::Deliver(result));
        } else {
            let ticket = self.enter(claim, JobState::Resuming { result });
            self.ids.own_beside_others(&job_id, ticket);
            self.effects.push(Effect::ReadRecord { ticket, job_id });
        }
    }

    /// The status hash says what was decided about this message, unless Redis was away or lost it.
    pub(super) fn record_read(&mut self, now: Now, ticket: Ticket, record: Result<JobRecord, String>) {
        let Some(Job { claim, state }) = self.take(ticket, "record read") else { return };
        let result = match state {
            JobState::Resuming { result } => result,
            JobState::Settling { job_id, end, retry: None } => {
                return self.settle(now, ticket, claim, job_id, end, record);
            }
            state => return self.impossible(ticket, claim, state, "record read"),
        };
        match record.map(|record| record.decision(claim.message_id, result.row.replaces)) {
            Ok(Decision::Announced) => self.deliver(ticket, claim, result, None),
            Ok(Decision::Cancelled) => self.discard(ticket, claim, result.row.job_id),
            Ok(Decision::Open) => self.read_cancel_key(ticket, claim, result),
            // The decision may have been made and can't be read: a cancel must not win over it now.
            Err(_) => self.mark(ticket, claim, result),
        }
    }

    /// Has a result judged and stored.
    pub(super) fn store(&mut self, now: Now, ticket: Ticket, claim: Claim, result: Unstored) {
        let job_id = match &result {
            Unstored::Answer { envelope, .. } | Unstored::Failure { envelope, .. } => &envelope.job_id,
            Unstored::Row(stored) => &stored.row.job_id,
        };
        let state = JobState::Storing { job_id: job_id.clone(), retry: None };
        let (message_id, at, replaces) = (claim.message_id, iso_time(now.at), claim.replaces);
        self.effects.push(Effect::Store { ticket, message_id, result, at, replaces });
        self.put(ticket, claim, state);
    }

    pub(super) fn stored(&mut self, ticket: Ticket, result: StoredResult) {
        let Some(Job { claim, state }) = self.take(ticket, "stored") else { return };
        if !matches!(state, JobState::Storing { retry: None, .. }) {
            return self.impossible(ticket, claim, state, "stored");
        }
        self.store_works();
        self.read_cancel_key(ticket, claim, result);
    }

    /// What is not on disk has not ended: it is neither announced nor acknowledged, and nothing new runs.
    pub(super) fn store_failed(&mut self, now: Now, ticket: Ticket, result: StoredResult, error: String) {
        let Some(Job { claim, state }) = self.take(ticket, "store failed") else { return };
        let JobState::Storing { job_id, retry: None } = state else {
            return self.impossible(ticket, claim, state, "store failed");
        };
        self.store_fails(now, error);
        let retry = Some(Retry { at: now.elapsed + self.retry, value: result });
        self.put(ticket, claim, JobState::Storing { job_id, retry });
    }

    fn read_cancel_key(&mut self, ticket: Ticket, claim: Claim, result: StoredResult) {
        let job_id = result.row.job_id.clone();
        self.effects.push(Effect::ReadCancelKey { ticket, job_id });
        self.put(ticket, claim, JobState::Deciding { result });
    }

    /// The point of no return: from here on a cancel is ignored.
    pub(super) fn decide(&mut self, ticket: Ticket, cancelled: Result<bool, String>) {
        let Some(Job { claim, state }) = self.take(ticket, "cancel key read") else { return };
        let JobState::Deciding { result } = state else {
            return self.impossible(ticket, claim, state, "cancel key read");
        };
        match cancelled {
            Ok(true) => {
                self.notify(Notice::CancelledAfterRun { job_id: result.row.job_id.clone() });
                self.discard(ticket, claim, result.row.job_id);
            }
            Ok(false) => {
                let (message_id, job_id, end) = (claim.message_id, result.row.job_id.clone(), result.end());
                self.effects.push(Effect::WriteStatus { ticket, message_id, job_id, end });
                self.put(ticket, claim, JobState::Announcing { result });
            }
            Err(_) => self.mark(ticket, claim, result),
        }
    }

    pub(super) fn status_written(&mut self, ticket: Ticket, written: bool) {
        let Some(Job { claim, state }) = self.take(ticket, "status written") else { return };
        match state {
            JobState::Announcing { result } if written => self.deliver(ticket, claim, result, None),
            JobState::Announcing { result } => self.mark(ticket, claim, result),
            state => self.impossible(ticket, claim, state, "status written"),
        }
    }

    fn mark(&mut self, ticket: Ticket, claim: Claim, result: StoredResult) {
        self.effects.push(Effect::MarkAnnounced { ticket, message_id: claim.message_id });
        self.put(ticket, claim, JobState::Marking { result, retry: None });
    }

    pub(super) fn marked(&mut self, now: Now, ticket: Ticket, marked: Result<(), String>) {
        let Some(Job { claim, state }) = self.take(ticket, "marked") else { return };
        match (state, marked) {
            (JobState::Marking { result, retry: None }, Ok(())) => {
                self.store_works();
                let unwritten = Some(result.end());
                self.deliver(ticket, claim, result, unwritten);
            }
            // Sent without the mark, a cancel after a crash could win over a result that the cloud has.
            (JobState::Marking { result, retry: None }, Err(error)) => {
                self.store_fails(now, error);
                let retry = Some(now.elapsed + self.retry);
                self.put(ticket, claim, JobState::Marking { result, retry });
            }
            (state, _) => self.impossible(ticket, claim, state, "marked"),
        }
    }

    fn deliver(&mut self, ticket: Ticket, claim: Claim, result: StoredResult, unwritten: Option<PastEnd>) {
        let (job_id, status) = (result.row.job_id.clone(), result.row.status);
        // With its terminal state in Redis, another message with the job's id can be checked.
        let written = unwritten.is_none();
        self.put(ticket, claim, JobState::Delivering { job_id: job_id.clone(), status, unwritten });
        self.effects.push(Effect::Deliver(result));
        if written {
            self.release_id(&job_id, ticket);
        }
    }

    pub(super) fn delivered(&mut self, now: Now, message_id: MessageId, outcome: DeliveryOutcome) {
        let Some(&ticket) = self.by_message.get(&message_id) else {
            let job = format!("of message {message_id}");
            return self.fault(Fault { job, state: "unknown", event: "delivered" });
        };
        let Some(Job { claim, state }) = self.take(ticket, "delivered") else { return };
        match state {
            JobState::Delivering { job_id, status, unwritten } => {
                if outcome == DeliveryOutcome::Accepted && status == Status::Completed {
                    self.last_success = Some(now.at);
                }
                self.notify(Notice::Ended { job_id: job_id.clone(), status, outcome });
                match unwritten {
                    // A completed job stays completed: a failure of another message must not write over it.
                    Some(end) if end.status == Status::Failed => {
                        self.read_before_settling(ticket, claim, job_id, end)
                    }
                    unwritten => {
                        let completed = status == Status::Completed;
                        let unwritten = unwritten.map(TerminalStatus::Ended);
                        self.acknowledge_end(ticket, claim, job_id, unwritten, completed);
                    }
                }
            }
            state => self.impossible(ticket, claim, state, "delivered"),
        }
    }

    fn read_before_settling(&mut self, ticket: Ticket, claim: Claim, job_id: JobId, end: PastEnd) {
        let other_completes = |job: &Job| {
            job.state.job_id() == Some(&job_id)
                && matches!(
                    job.state,
                    JobState::Delivering { status: Status::Completed, .. }
                        | JobState::Acknowledging { completed: true, .. }
                )
        };
        if self.jobs.values().any(other_completes) {
            return self.acknowledge(ticket, claim, job_id, None);
        }
        self.effects.push(Effect::ReadRecord { ticket, job_id: job_id.clone() });
        self.put(ticket, claim, JobState::Settling { job_id, end, retry: None });
    }

    fn settle(
        &mut self,
        now: Now,
        ticket: Ticket,
        claim: Claim,
        job_id: JobId,
        end: PastEnd,
        record: Result<JobRecord, String>,
    ) {
        match record {
            Ok(record) if record.has_ended_otherwise(claim.message_id) => {
                self.acknowledge(ticket, claim, job_id, None);
            }
            Ok(_) => self.acknowledge(ticket, claim, job_id, Some(TerminalStatus::Ended(end))),
            // Without Redis it could not be acknowledged either.
            Err(_) => {
                let retry = Some(now.elapsed + self.retry);
                self.put(ticket, claim, JobState::Settling { job_id, end, retry });
            }
        }
    }

    fn discard(&mut self, ticket: Ticket, claim: Claim, job_id: JobId) {
        self.effects.push(Effect::Discard { ticket, message_id: claim.message_id });
        self.put(ticket, claim, JobState::Discarding { job_id, retry: None });
    }

    pub(super) fn discarded(&mut self, now: Now, ticket: Ticket, discarded: Result<(), String>) {
        let Some(Job { claim, state }) = self.take(ticket, "discarded") else { return };
        match (state, discarded) {
            (JobState::Discarding { job_id, retry: None }, Ok(())) => {
                self.store_works();
                let at = iso_time(now.at);
                self.acknowledge(ticket, claim, job_id, Some(TerminalStatus::Cancelled { at }));
            }
            // Acknowledged with its row left on disk, a cancelled job's result could be sent after a restart.
            (JobState::Discarding { job_id, retry: None }, Err(error)) => {
                self.store_fails(now, error);
                let retry = Some(now.elapsed + self.retry);
                self.put(ticket, claim, JobState::Discarding { job_id, retry });
            }
            (state, _) => self.impossible(ticket, claim, state, "discarded"),
        }
    }

    pub(super) fn buried(&mut self, now: Now, ticket: Ticket, buried: Result<(), String>) {
        let Some(Job { claim, state }) = self.take(ticket, "buried") else { return };
        match (state, buried) {
            (JobState::Burying { retry: None, .. }, Ok(())) => {
                self.store_works();
                self.push_acknowledge(ticket, claim, None, None);
                self.put(ticket, claim, JobState::Acknowledging { job_id: None, completed: false });
            }
            (JobState::Burying { letter, retry: None }, Err(error)) => {
                self.store_fails(now, error);
                let retry = Some(now.elapsed + self.retry);
                self.put(ticket, claim, JobState::Burying { letter, retry });
            }
            (state, _) => self.impossible(ticket, claim, state, "buried"),
        }
    }

    /// The last step of every message: acknowledged together with the terminal state that Redis does not have.
    pub(super) fn acknowledge(
        &mut self,
        ticket: Ticket,
        claim: Claim,
        job_id: JobId,
        status: Option<TerminalStatus>,
    ) {
        self.acknowledge_end(ticket, claim, job_id, status, false);
    }

    fn acknowledge_end(
        &mut self,
        ticket: Ticket,
        mut claim: Claim,
        job_id: JobId,
        status: Option<TerminalStatus>,
        completed: bool,
    ) {
        self.return_permit(&mut claim);
        let status = status.map(|status| (job_id.clone(), status));
        self.push_acknowledge(ticket, claim, Some(&job_id), status);
        self.put(ticket, claim, JobState::Acknowledging { job_id: Some(job_id), completed });
    }

    pub(super) fn push_acknowledge(
        &mut self,
        ticket: Ticket,
        claim: Claim,
        job_id: Option<&JobId>,
        status: Option<(JobId, TerminalStatus)>,
    ) {
        let removal = match (claim.entry, job_id) {
            (EntryOwner::Another, _) => MessageRemoval::Leave,
            (EntryOwner::Unknown, Some(job_id)) => MessageRemoval::RemoveIfOf(job_id.clone()),
            (EntryOwner::ThisMessage, _) | (EntryOwner::Unknown, None) => MessageRemoval::Remove,
        };
        self.effects.push(Effect::Acknowledge { ticket, message_id: claim.message_id, status, removal });
    }

    pub(super) fn acknowledged(&mut self, ticket: Ticket) {
        let Some(Job { claim, state }) = self.take(ticket, "acknowledged") else { return };
        match state {
            state @ JobState::Acknowledging { .. } => self.forget(ticket, claim, &state),
            JobState::Running { job, slot, cancel: CancelProgress::Closing } => {
                let cancel = CancelProgress::Closed;
                self.put(ticket, claim, JobState::Running { job, slot, cancel });
            }
            state => self.impossible(ticket, claim, state, "acknowledged"),
        }
    }

    // --- the state database

    pub(super) fn store_fails(&mut self, now: Now, error: String) {
        let worked = self.store_error.text().is_none();
        if self.store_error.fails(now.elapsed, error.clone()) {
            self.notify(Notice::StoreFails { error });
        }
        if worked {
            self.hold_waiting();
        }
    }

    pub(super) fn store_works(&mut self) {
        if self.store_error.works() {
            self.notify(Notice::StoreWorks);
        }
    }

    /// Tries again what failed, on disk or in the plugin, and is due.
    pub(super) fn retry_due(&mut self, now: Now) {
        while let Some(&(at, ticket)) = self.retries.first()
            && at <= now.elapsed
        {
            let Some(Job { claim, state }) = self.take(ticket, "retry") else { return };
            match state {
                JobState::Storing { retry: Some(retry), .. } => {
                    self.store(now, ticket, claim, Unstored::Row(retry.value));
                }
                JobState::Resting { job, .. } => self.rested(ticket, claim, job),
                JobState::Marking { result, .. } => self.mark(ticket, claim, result),
                JobState::Discarding { job_id, .. } => self.discard(ticket, claim, job_id),
                JobState::Settling { job_id, end, .. } => {
                    self.read_before_settling(ticket, claim, job_id, end)
                }
                JobState::Burying { letter, .. } => {
                    self.effects.push(Effect::Bury { ticket, letter: letter.clone() });
                    self.put(ticket, claim, JobState::Burying { letter, retry: None });
                }
                state => return self.impossible(ticket, claim, state, "retry"),
            }
        }
    }
}
