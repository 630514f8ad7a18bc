//! From the claim to the executor: checks, job ids, order.

use coda_plugin_abi::Error;

use super::event::{
    CheckOutcome, CheckRequest, ClaimOrigin, Effect, Notice, Now, Runnable, Subject, Submission,
};
use super::event::{TerminalStatus, Unstored, Verdict};
use super::job_ids::IdClaim;
use super::retries::FailedRuns;
use super::state::{Claim, EntryOwner, Job, JobState};
use super::{Drain, JobTable, Ticket};
use crate::jobs::limits;
use crate::jobs::message::{self, Envelope, Message, Work};
use crate::model::{JobId, MessageId, iso_time};
use crate::state::answer_journal::KeptAnswer;
use crate::state::db::DeadLetter;

impl JobTable {
    pub(super) fn claimed(&mut self, now: Now, messages: Vec<Message>, origin: ClaimOrigin) {
        if self.drain != Drain::NotAsked {
            // Read while stopping: they stay pending, unmarked, for the next start.
            return;
        }
        let mut requests = Vec::with_capacity(messages.len());
        let mut held = 0;
        for message in messages {
            let message_id = message.id;
            // A consumer group that was created again brings back what is in flight here.
            if let Some(ticket) = self.by_message.get(&message_id).copied() {
                held += 1;
                self.note_id_reuse(ticket, &message);
                continue;
            }
            let left_pending = origin == ClaimOrigin::LeftPending;
            let claim = Claim::of_message(&message, now.elapsed, left_pending);
            let ticket = self.enter(claim, JobState::Checking);
            self.order.check_started(ticket);
            requests.push(self.check_request(ticket, claim, Subject::Message(message)));
        }
        if held > 0 {
            self.effects.push(Effect::ReturnPermits(held));
        }
        if !requests.is_empty() {
            self.effects.push(Effect::Check(requests));
        }
    }

    /// After a FLUSHALL ids can come again: this message is another one than the one held under its id. It stays
    /// pending until that one has left, which must not acknowledge it.
    fn note_id_reuse(&mut self, held: Ticket, message: &Message) {
        let Some(job) = self.jobs.get_mut(&held) else { return };
        if job.claim.is_other(message) {
            if std::mem::replace(&mut job.claim.entry, EntryOwner::Another) != EntryOwner::Another {
                self.notify(Notice::IdReused { message_id: message.id });
            }
        } else if job.claim.entry == EntryOwner::Unknown {
            job.claim.entry = EntryOwner::ThisMessage;
        }
    }

    fn check_request(&self, ticket: Ticket, claim: Claim, subject: Subject) -> CheckRequest {
        let Claim { message_id, left_pending, .. } = claim;
        let deaths = self.deaths.get(&message_id).copied().unwrap_or(0);
        CheckRequest { ticket, message_id, deaths, left_pending, subject }
    }

    pub(super) fn trimmed(&mut self, now: Now, ids: Vec<MessageId>) {
        if self.drain != Drain::NotAsked {
            return;
        }
        for message_id in self.not_held(ids) {
            self.notify(Notice::Trimmed { message_id });
            let claim = Claim::without_entry(message_id, now.elapsed);
            let reason =
                "its entry is gone from the stream, which was trimmed before the message ended".into();
            let letter = DeadLetter { message_id, reason, fields: "{}".into() };
            let ticket = self.enter(claim, JobState::Burying { letter: letter.clone(), retry: None });
            self.effects.push(Effect::Bury { ticket, letter });
        }
    }

    pub(super) fn check_failed(&mut self, now: Now, tickets: &[Ticket], error: String) {
        if self.check_error.fails(now.elapsed, error.clone()) {
            self.notify(Notice::ChecksFail { messages: tickets.len(), error });
        }
        self.check_failed_at = now.elapsed;
        for &ticket in tickets {
            match self.take(ticket, "check failed") {
                // Still pending: the look through the pending list brings it back.
                Some(Job { claim, state: state @ JobState::Checking }) => self.forget(ticket, claim, &state),
                Some(Job { claim, state }) => self.impossible(ticket, claim, state, "check failed"),
                None => {}
            }
        }
    }

    pub(super) fn checked(&mut self, now: Now, ticket: Ticket, outcome: CheckOutcome) {
        let Some(Job { mut claim, state }) = self.take(ticket, "checked") else { return };
        if !matches!(state, JobState::Checking) {
            return self.impossible(ticket, claim, state, "checked");
        }
        self.check_error.works();
        self.order.check_ended(ticket);
        if self.drain != Drain::NotAsked {
            return self.forget(ticket, claim, &state);
        }
        let message_id = claim.message_id;

        let (envelope, verdict, subject) = match outcome {
            CheckOutcome::Answerable { envelope, verdict, subject, replaces } => {
                claim.replaces = replaces;
                (envelope, verdict, subject)
            }
            CheckOutcome::Unanswerable { reason, fields } => {
                self.return_permit(&mut claim);
                self.notify(Notice::DeadLetter { message_id, reason: reason.clone() });
                let letter = DeadLetter { message_id, reason, fields };
                self.effects.push(Effect::Bury { ticket, letter: letter.clone() });
                return self.put(ticket, claim, JobState::Burying { letter, retry: None });
            }
        };
        let job_id = envelope.job_id.clone();

        // The rule for a second message: whatever its verdict, it waits until the first one has its terminal
        // state. Only then is it known whether the job has ended.
        match self.ids.claim(&job_id, ticket) {
            IdClaim::Owned => {}
            IdClaim::Parked => {
                self.return_permit(&mut claim);
                self.notify(Notice::Parked { job_id: job_id.clone() });
                return self.put(ticket, claim, JobState::Parked { job_id, subject });
            }
            IdClaim::TooMany => {
                self.notify(Notice::NotParked { job_id, message_id });
                return self.forget(ticket, claim, &state);
            }
        }

        match verdict {
            Verdict::Run(work) => self.admit(now, ticket, claim, envelope, work),
            Verdict::Fail(error) => self.fail(now, ticket, claim, envelope, error),
            Verdict::Duplicate => {
                self.notify(Notice::Duplicate { job_id: job_id.clone(), message_id });
                self.acknowledge(ticket, claim, job_id, None);
            }
            Verdict::Settle(end) => {
                self.notify(Notice::Settled { job_id: job_id.clone(), message_id });
                self.acknowledge(ticket, claim, job_id, Some(TerminalStatus::Ended(end)));
            }
            Verdict::Cancelled => {
                self.notify(Notice::CancelledBeforeRun { job_id: job_id.clone() });
                let at = iso_time(now.at);
                self.acknowledge(ticket, claim, job_id, Some(TerminalStatus::Cancelled { at }));
            }
        }
    }

    fn admit(&mut self, now: Now, ticket: Ticket, mut claim: Claim, envelope: Envelope, work: Work) {
        let message_id = claim.message_id;
        let answered = self.answered.remove(&message_id).filter(|kept| *kept.job_id == *envelope.job_id);
        let mut failed = FailedRuns::default();
        if let Some(KeptAnswer { answer, attempt, .. }) = answered {
            failed = FailedRuns::of_former_process(attempt);
            let is_final = |error: &Error| self.runs_again.next_run(now.elapsed, failed, error).is_none();
            if let Some(answer) = answer.filter(|answer| answer.as_ref().err().is_none_or(is_final)) {
                // A former process died between the answer and the result on disk: the job is not run again.
                self.notify(Notice::AnsweredBefore { job_id: envelope.job_id.clone() });
                self.return_permit(&mut claim);
                let result = Unstored::Answer { envelope, work, failed_runs: attempt, answer };
                return self.store(now, ticket, claim, result);
            }
        }
        let suspect = self.deaths.contains_key(&message_id);
        self.order.queue(ticket, suspect);
        self.put(ticket, claim, JobState::Queued(Runnable { envelope, work, suspect, failed }));
    }

    /// Sends a failure for a job that does not run.
    fn fail(&mut self, now: Now, ticket: Ticket, mut claim: Claim, envelope: Envelope, error: String) {
        self.return_permit(&mut claim);
        self.notify(Notice::Unfit { job_id: envelope.job_id.clone(), error: error.clone() });
        self.store(now, ticket, claim, Unstored::Failure { envelope, error });
    }

    /// Lets the jobs that are next wait for a slot, if anything may start.
    pub(super) fn hand_over(&mut self, now: Now) {
        if self.drain != Drain::NotAsked || self.store_error.text().is_some() {
            return;
        }
        let mut submissions = Vec::new();
        for ticket in self.order.take_ready() {
            match self.take(ticket, "hand over") {
                Some(Job { claim, state: JobState::Queued(job) }) => {
                    submissions.extend(self.submission(now, ticket, claim, job));
                }
                Some(Job { claim, state }) => self.impossible(ticket, claim, state, "hand over"),
                None => {}
            }
        }
        if !submissions.is_empty() {
            self.effects.push(Effect::Submit(submissions));
        }
    }

    fn submission(&mut self, now: Now, ticket: Ticket, claim: Claim, job: Runnable) -> Option<Submission> {
        // Judged here and not at the check: the device may be another one by now.
        let (program, shots) = (&job.work.program, job.work.shots);
        let judged = message::fits(program, shots, &self.device)
            .and_then(|()| limits::check(&self.limits, program, shots, &self.estimate));
        if let Err(error) = judged {
            self.order.remove(ticket);
            self.fail(now, ticket, claim, job.envelope, error);
            return None;
        }
        self.put(ticket, claim, JobState::Waiting { job: job.clone(), withdrawal: None });
        Some(Submission { ticket, message_id: claim.message_id, job })
    }

    /// The job's terminal state is in Redis, or it has left: messages parked behind it are checked again.
    pub(super) fn release_id(&mut self, job_id: &JobId, ticket: Ticket) {
        let mut requests = Vec::new();
        for parked in self.ids.release(job_id, ticket) {
            match self.take(parked, "unpark") {
                Some(Job { claim, state: JobState::Parked { subject, .. } }) => {
                    requests.push(self.check_request(parked, claim, subject));
                    self.put(parked, claim, JobState::Checking);
                }
                Some(Job { claim, state }) => self.impossible(parked, claim, state, "unpark"),
                None => {}
            }
        }
        if !requests.is_empty() {
            self.effects.push(Effect::Check(requests));
        }
    }
}
