//! With the executor: starts, answers, cancels, and jobs that it gives back.

use std::sync::Arc;
use std::time::Duration;

use coda_plugin_abi::{Device, Error, Outcome};

use super::event::{Effect, Notice, Now, Runnable, TerminalStatus, Unstored};
use super::state::{CancelProgress, Claim, Job, JobState, Withdrawal};
use super::{Drain, JobTable, Ticket};
use crate::model::{JobId, iso_time};

impl JobTable {
    pub(super) fn started(&mut self, now: Now, slot: usize, tickets: &[Ticket]) {
        for &ticket in tickets {
            match self.take(ticket, "started") {
                Some(Job { mut claim, state: JobState::Waiting { job, withdrawal } }) => {
                    self.return_permit(&mut claim);
                    let job_id = job.envelope.job_id.clone();
                    let waited = now.elapsed.saturating_sub(claim.at);
                    self.notify(Notice::Started {
                        ticket,
                        job_id: job_id.clone(),
                        slot,
                        waited,
                        shots: job.work.shots,
                    });
                    self.effects.push(Effect::WriteExecuting { message_id: claim.message_id, job_id });
                    self.running.push(ticket);
                    match self.in_slot.get_mut(slot) {
                        Some(jobs) => *jobs += 1,
                        None => self.in_slot.resize(slot + 1, 1),
                    }
                    let cancel = CancelProgress::NotCancelled;
                    self.put(ticket, claim, JobState::Running { job, slot, cancel });
                    // The slot was quicker than the cancel.
                    if withdrawal == Some(Withdrawal::Cancel) {
                        self.cancel(now, ticket);
                    }
                }
                Some(Job { claim, state }) => self.impossible(ticket, claim, state, "started"),
                None => {}
            }
        }
    }

    pub(super) fn answered(&mut self, now: Now, slot: usize, ticket: Ticket, answer: Result<Outcome, Error>) {
        let Some(Job { claim, state }) = self.take(ticket, "answered") else { return };
        let (job, cancel) = match state {
            JobState::Running { job, slot: own, cancel } if own == slot => (job, cancel),
            state => return self.impossible(ticket, claim, state, "answered"),
        };
        self.running.retain(|t| *t != ticket);
        if let Some(jobs) = self.in_slot.get_mut(slot) {
            *jobs = jobs.saturating_sub(1);
        }
        self.order.remove(ticket);
        if self.deaths.remove(&claim.message_id).is_some() {
            self.effects.push(Effect::ForgetDeaths(claim.message_id));
        }

        let job_id = job.envelope.job_id.clone();
        match cancel {
            CancelProgress::NotCancelled => self.conclude(now, ticket, claim, job, answer),
            // The answer of a cancelled run is dropped, whatever it is.
            CancelProgress::Closing => {
                self.put(ticket, claim, JobState::Acknowledging { job_id: Some(job_id), completed: false });
            }
            CancelProgress::Closed => {
                self.forget(
                    ticket,
                    claim,
                    &JobState::Acknowledging { job_id: Some(job_id), completed: false },
                );
            }
        }
    }

    /// Has an answer stored, unless it is an error after which the job runs again.
    fn conclude(
        &mut self,
        now: Now,
        ticket: Ticket,
        claim: Claim,
        mut job: Runnable,
        answer: Result<Outcome, Error>,
    ) {
        if let Err(error) = &answer {
            job.failed.add(now.elapsed, error);
            if let Some(until) = self.runs_again.next_run(now.elapsed, job.failed, error) {
                return self.rest(now, ticket, claim, job, until, error);
            }
        }
        let Runnable { envelope, work, failed, .. } = job;
        let result = Unstored::Answer { envelope, work, failed_runs: failed.count, answer };
        self.store(now, ticket, claim, result);
    }

    fn rest(
        &mut self,
        now: Now,
        ticket: Ticket,
        claim: Claim,
        job: Runnable,
        until: Duration,
        error: &Error,
    ) {
        self.notify(Notice::RunsAgain {
            job_id: job.envelope.job_id.clone(),
            failed_runs: job.failed.count,
            pause: until.saturating_sub(now.elapsed),
            error: error.clone(),
        });
        // Its answer cleared what the process died of.
        let job = Runnable { suspect: false, ..job };
        let state = JobState::Resting { job, until };
        match self.drain {
            Drain::NotAsked => self.put(ticket, claim, state),
            // The kept answer tells the next start how often it has failed.
            _ => self.forget(ticket, claim, &state),
        }
    }

    /// The pause before another run is over: the job is queued where it was in the order.
    pub(super) fn rested(&mut self, ticket: Ticket, claim: Claim, job: Runnable) {
        self.order.queue(ticket, job.suspect);
        self.put(ticket, claim, JobState::Queued(job));
    }

    /// The executor gave a job back that was in no slot.
    pub(super) fn withdrawn(&mut self, now: Now, ticket: Ticket) {
        match self.take(ticket, "withdrawn") {
            Some(Job { claim, state: JobState::Waiting { job, withdrawal } }) => match withdrawal {
                Some(Withdrawal::Cancel) => self.close_cancelled(now, ticket, claim, job.envelope.job_id),
                Some(Withdrawal::Drain) => self.forget(ticket, claim, &JobState::Queued(job)),
                Some(Withdrawal::Hold) | None => {
                    self.order.queue(ticket, job.suspect);
                    self.put(ticket, claim, JobState::Queued(job));
                }
            },
            Some(Job { claim, state }) => self.impossible(ticket, claim, state, "withdrawn"),
            None => {}
        }
    }

    /// Another device is in use: the jobs that waited for the former one are judged again.
    pub(super) fn device_changed(&mut self, now: Now, device: Arc<Device>) {
        self.device = device;
        let is_waiting = |job: &Job| matches!(job.state, JobState::Waiting { .. });
        let waiting: Vec<Ticket> =
            self.jobs.iter().filter(|(_, job)| is_waiting(job)).map(|(ticket, _)| *ticket).collect();
        waiting.into_iter().for_each(|ticket| self.withdrawn(now, ticket));
    }

    /// Takes back every job that is in no slot: nothing may start now.
    pub(super) fn hold_waiting(&mut self) {
        let waiting = |(ticket, job): (&Ticket, &mut Job)| match &mut job.state {
            JobState::Waiting { withdrawal: withdrawal @ None, .. } => {
                *withdrawal = Some(Withdrawal::Hold);
                Some(Effect::Withdraw(*ticket))
            }
            _ => None,
        };
        self.effects.extend(self.jobs.iter_mut().filter_map(waiting));
    }

    pub(super) fn cancel_poll(&mut self) {
        if self.polling {
            return;
        }
        let candidate = |(ticket, job): (&Ticket, &Job)| Some((*ticket, job.state.cancellable()?.clone()));
        let candidates: Vec<(Ticket, JobId)> = self.jobs.iter().filter_map(candidate).collect();
        if candidates.is_empty() {
            self.cancel_error.works();
        } else {
            self.polling = true;
            self.effects.push(Effect::ReadCancelKeys(candidates));
        }
    }

    pub(super) fn cancel_keys_read(&mut self, now: Now, cancelled: &[Ticket], error: Option<String>) {
        self.polling = false;
        match error {
            Some(error) if self.cancel_error.fails(now.elapsed, error.clone()) => {
                self.notify(Notice::CancelsUnread { error });
            }
            Some(_) => {}
            None => drop(self.cancel_error.works()),
        }
        cancelled.iter().for_each(|ticket| self.cancel(now, *ticket));
    }

    /// Cancels a job, unless it is too late: a job that ended meanwhile, or whose result is being stored, is not
    /// concerned. The last look at the key, after the result is stored, is [`JobTable::decide`].
    fn cancel(&mut self, now: Now, ticket: Ticket) {
        // It may have ended since the keys were asked for.
        let Some(Job { claim, state }) =
            self.jobs.contains_key(&ticket).then(|| self.take(ticket, "cancel")).flatten()
        else {
            return;
        };
        match state {
            JobState::Queued(job) | JobState::Resting { job, .. } => {
                self.close_cancelled(now, ticket, claim, job.envelope.job_id)
            }
            JobState::Waiting { job, withdrawal: None | Some(Withdrawal::Hold) } => {
                self.effects.push(Effect::Withdraw(ticket));
                let withdrawal = Some(Withdrawal::Cancel);
                self.put(ticket, claim, JobState::Waiting { job, withdrawal });
            }
            JobState::Running { job, slot, cancel: CancelProgress::NotCancelled } => {
                let job_id = job.envelope.job_id.clone();
                self.notify(Notice::CancelledRunning { job_id: job_id.clone() });
                self.effects.push(Effect::CancelRun(ticket));
                // The state is written and the message acknowledged now: the answer is dropped whenever it comes,
                // and the slot stays taken until then.
                let status = Some((job_id.clone(), TerminalStatus::Cancelled { at: iso_time(now.at) }));
                self.push_acknowledge(ticket, claim, Some(&job_id), status);
                let cancel = CancelProgress::Closing;
                self.put(ticket, claim, JobState::Running { job, slot, cancel });
            }
            state => self.put(ticket, claim, state),
        }
    }

    fn close_cancelled(&mut self, now: Now, ticket: Ticket, mut claim: Claim, job_id: JobId) {
        self.order.remove(ticket);
        self.return_permit(&mut claim);
        self.notify(Notice::CancelledBeforeRun { job_id: job_id.clone() });
        let at = iso_time(now.at);
        self.acknowledge(ticket, claim, job_id, Some(TerminalStatus::Cancelled { at }));
    }
}
