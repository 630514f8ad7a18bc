//! One slot's thread: takes the next call, enters the plugin, reports each answer.
//!
//! Each slot's calls come from one OS thread, so a control stack that is bound to a thread works. Nothing here judges
//! counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coda_plugin_abi::{Amplitude, Error, ErrorCode, Stage};

use super::evolve::check_state;
use super::ffi::{CallEvolve, CallJob, Common};
use super::in_flight::InFlightCall;
use super::job::{Answer, EvolveJob, EvolveOutcome, RunJob, SlotReport, cancelled};
use super::plugin::Plugin;
use super::queue::SlotCall;
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
        while self.plugin.wait_up()
            && let Some((call, guard)) = self.shared.queue.take(|call| self.announce(call))
        {
            match call {
                SlotCall::Jobs(lease, jobs) => {
                    let observer = self.shared.observer.get();
                    observer.inspect(|o| o.run_started(self.index, &jobs));
                    self.run_jobs(&jobs);
                    observer.inspect(|o| o.run_finished(self.index));
                    drop(lease);
                }
                SlotCall::Evolve(lease, job) => {
                    let (answer, run_time) = self.evolve(&job);
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

    fn run_jobs(&self, jobs: &[RunJob]) {
        let mut entering = Vec::with_capacity(jobs.len());
        for job in jobs {
            match self.shared.in_flight.get(job.ticket).filter(|call| call.enter()) {
                Some(call) => entering.push((job, call)),
                None => self.finish(job, Err(cancelled()), Duration::ZERO),
            }
        }
        match entering.as_slice() {
            [] => {}
            [(job, call)] => self.run_single(job, call),
            several => self.run_batch(several),
        }
    }

    fn run_single(&self, job: &RunJob, call: &InFlightCall) {
        let start = Instant::now();
        let answer = self.plugin.run(self.index, &call_job(job)).unwrap_or_else(|| Err(no_answer()));
        let answer = self.name_time_limit(self.masked(answer), call);
        let run_time = start.elapsed();
        // The answer is recorded first of all: a crash from here on must not lead to a second run.
        self.record(job, &answer);
        call.leave(self.shared.control_timeout);
        self.restore_signals("run");
        self.finish(job, answer, run_time);
    }

    fn run_batch(&self, jobs: &[(&RunJob, Arc<InFlightCall>)]) {
        let calls: Vec<CallJob<'_>> = jobs.iter().map(|(job, _)| call_job(job)).collect();
        let start = Instant::now();
        let batch = self.plugin.batch_run(self.index, &calls);
        let run_time = start.elapsed();
        self.restore_signals("batch_run");
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
                    self.finish(job, Err(cancelled()), run_time);
                } else {
                    self.run_single(job, call);
                }
            }
            return;
        }
        let given = batch.answers.iter().flatten().count() + batch.surplus;
        // With one answer too few or too many nobody knows which answer is whose.
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
    fn evolve(&self, job: &EvolveJob) -> (Result<Vec<Amplitude>, Error>, Duration) {
        let start = Instant::now();
        let call = self.shared.in_flight.get(job.ticket).filter(|call| call.enter());
        let answer = match call {
            None => Err(cancelled()),
            Some(call) => {
                let answer = self.plugin.evolve_state(
                    self.index,
                    &CallEvolve {
                        job_id: &job.job_id,
                        num_qubits: job.num_qubits,
                        amplitudes: &job.amplitudes,
                        operations: &job.operations,
                        context: &job.context,
                    },
                );
                call.leave(self.shared.control_timeout);
                self.restore_signals("evolve_state");
                let answer = self.masked(answer);
                self.name_time_limit(answer.and_then(|state| check_state(state, job.amplitudes.len())), &call)
            }
        };
        self.shared.in_flight.remove(job.ticket);
        (answer, start.elapsed())
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
