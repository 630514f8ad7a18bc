//! One slot's thread: takes the next call, enters the plugin, reports each answer.
//!
//! Each slot's calls come from one OS thread, so a control stack that is bound to a thread works. Nothing here judges
//! counts.

use std::sync::Arc;
use std::time::Duration;

use coda_plugin_abi::{Amplitude, Error, ErrorCode, Stage};

use super::evolve::check_state;
use super::ffi::{BatchAnswers, CallEvolve, CallJob, Common};
use super::in_flight::InFlightCall;
use super::job::{
    Answer, EvolveJob, EvolveOutcome, LostCall, RunJob, SlotReport, cancelled, replaced, stopped,
};
use super::plugin::Plugin;
use super::queue::{CallGuard, Ready, SlotCall};
use super::shared::Shared;
use super::signals;

/// What a slot thread needs.
pub(super) struct Slot {
    pub index: usize,
    pub plugin: Plugin,
    pub common: Arc<Common>,
    pub shared: Arc<Shared>,
}

impl Slot {
    /// Serves calls until told to stop.
    pub fn serve(&self) {
        while let Some((call, guard)) = self.shared.queue.take(|call| self.announce(call)) {
            match call {
                SlotCall::Jobs(lease, jobs) => {
                    match jobs.as_slice() {
                        [job] => self.run_single(job, &guard),
                        several => self.run_batch(several, &guard),
                    }
                    drop(lease);
                }
                SlotCall::Evolve(lease, job) => {
                    let (answer, run_time) = self.evolve(&job, &guard);
                    self.shared.in_flight.remove(job.ticket);
                    // The lease goes with the answer: its receiver decides when the slot is free.
                    (job.answer)(EvolveOutcome { answer, run_time, lease });
                }
            }
            // Last: a reload that waits for the calls may begin from here on.
            drop(guard);
        }
    }

    /// Makes a call known to the control thread and the watchdog, and reports the start of jobs.
    fn announce(&self, call: &SlotCall) {
        let in_flight = &self.shared.in_flight;
        match call {
            SlotCall::Evolve(_, job) => in_flight.insert(job.ticket, job.job_id.clone(), job.context.clone()),
            SlotCall::Jobs(_, jobs) => {
                for job in jobs {
                    in_flight.insert(job.ticket, job.job_id.clone(), job.context.clone());
                }
                let tickets = jobs.iter().map(|job| job.ticket).collect();
                self.report(SlotReport::Started { slot: self.index, tickets });
            }
        }
    }

    fn run_single(&self, job: &RunJob, guard: &CallGuard) {
        let Some(call) = self.enter(job, guard) else { return };
        if let Err(lost) = self.run_entered(job, &call) {
            self.run_lost(job, lost, guard);
        }
    }

    /// Goes on with a job whose call was lost.
    fn run_lost(&self, job: &RunJob, lost: LostCall, guard: &CallGuard) {
        match lost {
            LostCall::NotEntered => self.run_single(job, guard),
            LostCall::Suspect(_) => self.run_alone(job, guard),
            LostCall::Stopped => self.abandon(job),
        }
    }

    /// Runs a job again on which the plugin's process may have died: with nothing beside it, so that a further death has
    /// one cause.
    fn run_alone(&self, job: &RunJob, guard: &CallGuard) {
        tracing::warn!(
            plugin = &*self.common.plugin(),
            job_id = &*job.job_id,
            "the plugin's process ended while this job ran beside others; it runs again, alone"
        );
        let Some(alone) = guard.wait_alone() else { return self.abandon(job) };
        loop {
            let Some(call) = self.enter(job, guard) else { break };
            match self.run_entered(job, &call) {
                Ok(()) => break,
                Err(LostCall::NotEntered) => {}
                Err(LostCall::Suspect(error)) => {
                    self.answered(job, &call, Err(error), Duration::ZERO);
                    break;
                }
                Err(LostCall::Stopped) => {
                    self.abandon(job);
                    break;
                }
            }
        }
        drop(alone);
    }

    /// Begins the call of a job once the plugin can be called; `None` when the job is over instead.
    fn enter(&self, job: &RunJob, guard: &CallGuard) -> Option<Arc<InFlightCall>> {
        match guard.wait_ready() {
            Ready::Yes => {}
            Ready::Stopping => {
                self.abandon(job);
                return None;
            }
            Ready::Replaced => {
                self.finish(job, Err(replaced()), Duration::ZERO);
                return None;
            }
        }
        // Asked only now: a job may have been cancelled while the plugin's process was down.
        match self.shared.in_flight.get(job.ticket) {
            Some(call) if call.enter() => Some(call),
            Some(call) => {
                self.finish(job, self.name_time_limit(Err(cancelled()), &call), Duration::ZERO);
                None
            }
            None => {
                self.finish(job, Err(cancelled()), Duration::ZERO);
                None
            }
        }
    }

    /// Runs one job whose call has begun, and reports its answer.
    fn run_entered(&self, job: &RunJob, call: &InFlightCall) -> Result<(), LostCall> {
        let observer = self.shared.observer.get();
        observer.inspect(|o| o.run_started(self.index, &[job]));
        call.enter_alone();
        let run = || self.plugin.run(self.index, &call_job(job));
        let (came, run_time) = self.shared.usage.count(self.index, run);
        self.restore_signals("run");
        let ended = match came {
            Ok(answer) => {
                self.answered(job, call, answer.unwrap_or_else(|| Err(no_answer())), run_time);
                Ok(())
            }
            Err(lost) => {
                call.back_out(self.shared.control_timeout);
                Err(lost)
            }
        };
        observer.inspect(|o| o.run_finished(self.index));
        ended
    }

    /// Records and reports what the plugin answered.
    fn answered(&self, job: &RunJob, call: &InFlightCall, answer: Answer, run_time: Duration) {
        let answer = self.name_time_limit(self.masked(answer), call);
        // The answer is recorded first of all: a crash from here on must not lead to a second run.
        self.record(job, &answer);
        if answer.is_ok() {
            self.shared.queue.ran(job, run_time);
        }
        call.leave(self.shared.control_timeout);
        self.finish(job, answer, run_time);
    }

    fn run_batch(&self, jobs: &[RunJob], guard: &CallGuard) {
        let mut waiting: Vec<&RunJob> = jobs.iter().collect();
        loop {
            let entering = waiting.into_iter().filter_map(|job| Some((job, self.enter(job, guard)?)));
            let entered: Vec<(&RunJob, Arc<InFlightCall>)> = entering.collect();
            match self.run_entered_batch(&entered, guard) {
                Ok(()) => return,
                Err(LostCall::NotEntered) => waiting = entered.into_iter().map(|(job, _)| job).collect(),
                Err(lost @ (LostCall::Suspect(_) | LostCall::Stopped)) => {
                    return entered.iter().for_each(|(job, _)| self.run_lost(job, lost.clone(), guard));
                }
            }
        }
    }

    fn run_entered_batch(
        &self,
        entered: &[(&RunJob, Arc<InFlightCall>)],
        guard: &CallGuard,
    ) -> Result<(), LostCall> {
        match entered {
            [] => return Ok(()),
            [(job, call)] => return self.run_entered(job, call),
            _ => {}
        }
        let observer = self.shared.observer.get();
        let running: Vec<&RunJob> = entered.iter().map(|(job, _)| *job).collect();
        observer.inspect(|o| o.run_started(self.index, &running));
        let calls: Vec<CallJob<'_>> = running.iter().map(|job| call_job(job)).collect();
        InFlightCall::enter_together(&entered.iter().map(|(_, call)| call).collect::<Vec<_>>());
        let run = || self.plugin.batch_run(self.index, &calls);
        let (came, run_time) = self.shared.usage.count(self.index, run);
        self.restore_signals("batch_run");
        let ended = match came {
            Ok(batch) => {
                self.answered_batch(entered, batch, run_time, guard);
                Ok(())
            }
            Err(lost) => {
                entered.iter().for_each(|(_, call)| call.back_out(self.shared.control_timeout));
                Err(lost)
            }
        };
        observer.inspect(|o| o.run_finished(self.index));
        ended
    }

    fn answered_batch(
        &self,
        jobs: &[(&RunJob, Arc<InFlightCall>)],
        batch: BatchAnswers,
        run_time: Duration,
        guard: &CallGuard,
    ) {
        if let Some(error) = batch.whole {
            tracing::warn!(
                plugin = &*self.common.plugin(),
                jobs = jobs.len(),
                error = error.text,
                "batch_run failed as a whole; running its jobs one by one"
            );
            for (job, call) in jobs {
                // The hook may have been called during the batch; it is not called twice.
                if job.context.is_cancelled() {
                    call.leave(self.shared.control_timeout);
                    self.finish(job, self.name_time_limit(Err(cancelled()), call), run_time);
                } else if let Err(lost) = self.run_entered(job, call) {
                    self.run_lost(job, lost, guard);
                }
            }
            return;
        }
        let given = batch.answers.iter().flatten().count() + batch.surplus;
        // With one answer too few or too many it is not known which answer is whose.
        let complete = batch.surplus == 0 && given == jobs.len();
        let answers: Vec<Answer> = batch
            .answers
            .into_iter()
            .map(|answer| answer.filter(|_| complete).unwrap_or_else(|| Err(wrong_number(given, jobs.len()))))
            .map(|answer| self.masked(answer))
            .collect();
        jobs.iter().zip(&answers).for_each(|((job, _), answer)| self.record(job, answer));
        for ((job, call), answer) in jobs.iter().zip(answers) {
            call.leave(self.shared.control_timeout);
            self.finish(job, self.name_time_limit(answer, call), run_time);
        }
    }

    /// Evolves one state in this slot.
    fn evolve(&self, job: &EvolveJob, guard: &CallGuard) -> (Result<Vec<Amplitude>, Error>, Duration) {
        loop {
            match guard.wait_ready() {
                Ready::Yes => {}
                Ready::Stopping => return (Err(stopped()), Duration::ZERO),
                Ready::Replaced => return (Err(replaced()), Duration::ZERO),
            }
            let Some(call) = self.shared.in_flight.get(job.ticket).filter(|call| call.enter()) else {
                return (Err(cancelled()), Duration::ZERO);
            };
            let evolution = CallEvolve {
                job_id: &job.job_id,
                num_qubits: job.num_qubits,
                amplitudes: &job.amplitudes,
                operations: &job.operations,
                context: &job.context,
            };
            let run = || self.plugin.evolve_state(self.index, &evolution);
            let (came, run_time) = self.shared.usage.count(self.index, run);
            self.restore_signals("evolve_state");
            let answer = match came {
                Ok(answer) => answer,
                Err(LostCall::NotEntered) => {
                    call.back_out(self.shared.control_timeout);
                    continue;
                }
                // Not run again: the coordinator that asked for it has other peers.
                Err(LostCall::Suspect(error)) => Err(error),
                Err(LostCall::Stopped) => Err(stopped()),
            };
            call.leave(self.shared.control_timeout);
            let answer = self.masked(answer).and_then(|state| check_state(state, job.amplitudes.len()));
            return (self.name_time_limit(answer, &call), run_time);
        }
    }

    /// The answer without the secrets of the device config.
    fn masked<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        answer.map_err(|error| self.common.masked_error(error))
    }

    /// A failure after a time limit is that of the limit.
    fn name_time_limit<T>(&self, answer: Result<T, Error>, call: &InFlightCall) -> Result<T, Error> {
        let Some(limit) = self.shared.limits.run.filter(|_| call.is_timed_out()) else { return answer };
        answer.map_err(|e| {
            let text =
                format!("the run took longer than {} s and was ended: {}", limit.as_secs_f64(), e.text);
            Error::new(ErrorCode::Timeout, text).at(Stage::Run)
        })
    }

    fn restore_signals(&self, call: &str) {
        signals::restore_after(&self.shared.dispositions, &self.common.plugin(), call);
    }

    fn record(&self, job: &RunJob, answer: &Answer) {
        self.shared.observer.get().inspect(|o| o.run_answered(job, answer));
    }

    /// Gives a job up that the executor's stop has overtaken. It has no answer: it runs again after the next start.
    fn abandon(&self, job: &RunJob) {
        self.shared.in_flight.remove(job.ticket);
        tracing::debug!(job_id = &*job.job_id, "the executor stopped before the job had an answer");
    }

    fn finish(&self, job: &RunJob, answer: Answer, run_time: Duration) {
        self.shared.in_flight.remove(job.ticket);
        self.report(SlotReport::Answered { slot: self.index, ticket: job.ticket, answer, run_time });
    }

    fn report(&self, report: SlotReport) {
        if self.shared.reports.send(report).is_err() {
            tracing::warn!(slot = self.index, "a slot went on after the host had stopped listening");
        }
    }
}

fn call_job(job: &RunJob) -> CallJob<'_> {
    CallJob { job_id: &job.job_id, program: &job.program, shots: job.shots, context: &job.context }
}

fn no_answer() -> Error {
    Error::new(ErrorCode::Contract, "the executor returned neither a result nor an error").at(Stage::Run)
}

fn wrong_number(given: usize, jobs: usize) -> Error {
    let text = format!("the executor's batch_run returned {given} results for {jobs} jobs");
    Error::new(ErrorCode::Contract, text).at(Stage::Run)
}
