//! One slot's thread: takes the next call's jobs, enters the plugin, reports each answer.
//!
//! Each slot's calls come from one OS thread, so a control stack bound to a thread works. Nothing here judges
//! counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use coda_plugin_abi::{Error, ErrorCode, Stage};
use tokio::sync::mpsc::UnboundedSender;

use super::JobContext;
use super::ffi::{CallJob, Common};
use super::in_flight::{InFlightCall, lock};
use super::plugin::Plugin;
use super::pool::{Answer, RunJob, SlotReport, report_changes};
use super::queue::{Call, Queue};
use super::watchdog::{RunLimits, StuckRun};
use crate::model::JobId;
use crate::sys::Dispositions;

/// Sees a slot's calls on the slot's own thread, before anything else happens with them.
pub trait RunObserver: Send + Sync {
    /// The jobs are about to enter the plugin.
    fn run_started(&self, slot: usize, jobs: &[RunJob]);
    /// The plugin has answered.
    fn run_answered(&self, job: &RunJob, answer: &Answer);
    /// The call is over.
    fn run_finished(&self, slot: usize);
}

/// The jobs that are in a call, for the control thread.
pub(super) type InFlightCalls = Mutex<HashMap<u64, Arc<InFlightCall>>>;

/// What the slot threads and the handle share.
pub(super) struct Shared {
    pub queue: Queue,
    pub in_flight: InFlightCalls,
    pub observer: OnceLock<Arc<dyn RunObserver>>,
    pub done: UnboundedSender<SlotReport>,
    pub dispositions: Arc<Dispositions>,
    pub control_timeout: Duration,
    pub stuck_run: Mutex<Option<StuckRun>>,
    pub limits: RunLimits,
}

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
        let shared = &*self.shared;
        while self.plugin.wait_up()
            && let Some(call) = shared.queue.take(|call| self.announce(call))
        {
            match call {
                Call::Jobs(jobs) => {
                    let observer = shared.observer.get();
                    observer.inspect(|w| w.run_started(self.index, &jobs));
                    self.call(&jobs);
                    observer.inspect(|w| w.run_finished(self.index));
                    shared.queue.give_back();
                }
                Call::Evolve(lease, job) => {
                    let done = self.evolve(&job);
                    // Before the answer: who has it may give the slot back and ask for it again at once.
                    drop(lease);
                    (job.answer)(done);
                }
            }
            shared.queue.come_back();
        }
    }

    fn announce(&self, call: &Call) {
        let mut in_flight = lock(&self.shared.in_flight);
        let mut enter = |ticket, job_id: &JobId, context: &Arc<JobContext>| {
            in_flight.insert(ticket, Arc::new(InFlightCall::new(job_id.clone(), context.clone())))
        };
        match call {
            Call::Evolve(_, job) => drop(enter(job.ticket, &job.job_id, &job.context)),
            Call::Jobs(jobs) => {
                for job in jobs {
                    enter(job.ticket, &job.job_id, &job.context);
                }
                let tickets = jobs.iter().map(|job| job.ticket).collect();
                self.report(SlotReport::Started { slot: self.index, tickets });
            }
        }
    }

    fn call(&self, jobs: &[RunJob]) {
        let in_flight: Vec<Option<Arc<InFlightCall>>> = {
            let in_flight = lock(&self.shared.in_flight);
            jobs.iter().map(|job| in_flight.get(&job.ticket).cloned()).collect()
        };
        let mut entering = Vec::with_capacity(jobs.len());
        for (job, call) in jobs.iter().zip(in_flight) {
            match call.filter(|t| t.enter()) {
                Some(call) => entering.push((job, call)),
                None => self.finish(job, Err(cancelled()), Duration::ZERO),
            }
        }
        match entering.as_slice() {
            [] => {}
            [(job, call)] => self.single(job, call),
            several => self.batch(several),
        }
    }

    fn single(&self, job: &RunJob, call: &InFlightCall) {
        let start = Instant::now();
        let answer = self.plugin.run(self.index, &call_job(job)).unwrap_or_else(|| Err(no_answer()));
        let answer = self.told(self.masked(answer), call);
        let run_time = start.elapsed();
        self.keep(job, &answer);
        call.leave(self.shared.control_timeout);
        report_changes(&self.shared.dispositions, &self.common.plugin(), "run");
        self.finish(job, answer, run_time);
    }

    fn batch(&self, jobs: &[(&RunJob, Arc<InFlightCall>)]) {
        let calls: Vec<CallJob<'_>> = jobs.iter().map(|(job, _)| call_job(job)).collect();
        let start = Instant::now();
        let batch = self.plugin.batch_run(self.index, &calls);
        let run_time = start.elapsed();
        report_changes(&self.shared.dispositions, &self.common.plugin(), "batch_run");
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
                    self.single(job, call);
                }
            }
            return;
        }
        let given = batch.answers.iter().flatten().count() + batch.surplus;
        let complete = batch.surplus == 0 && given == jobs.len();
        let answer =
            |a: Option<_>| a.filter(|_| complete).unwrap_or_else(|| Err(wrong_number(given, jobs.len())));
        let answers: Vec<_> = batch.answers.into_iter().map(|a| self.masked(answer(a))).collect();
        jobs.iter().zip(&answers).for_each(|((job, _), answer)| self.keep(job, answer));
        for ((job, call), answer) in jobs.iter().zip(answers) {
            call.leave(self.shared.control_timeout);
            self.finish(job, self.told(answer, call), run_time);
        }
    }

    /// Without the secrets of the device config.
    fn masked(&self, answer: Answer) -> Answer {
        answer.map_err(|e| Error { text: self.common.masked(e.text), ..e })
    }

    /// A failure after a time limit is that of the limit.
    pub(super) fn told<T>(&self, answer: Result<T, Error>, call: &InFlightCall) -> Result<T, Error> {
        let Some(limit) = self.shared.limits.run.filter(|_| call.is_timed_out()) else { return answer };
        answer.map_err(|e| {
            let text =
                format!("the run took longer than {} s and was ended: {}", limit.as_secs_f64(), e.text);
            Error::new(ErrorCode::Timeout, text).at(Stage::Run)
        })
    }

    fn keep(&self, job: &RunJob, answer: &Answer) {
        self.shared.observer.get().inspect(|w| w.run_answered(job, answer));
    }

    fn finish(&self, job: &RunJob, answer: Answer, run_time: Duration) {
        lock(&self.shared.in_flight).remove(&job.ticket);
        self.report(SlotReport::Answered { slot: self.index, ticket: job.ticket, answer, run_time });
    }

    fn report(&self, done: SlotReport) {
        if self.shared.done.send(done).is_err() {
            tracing::warn!(slot = self.index, "a slot went on after the host had stopped listening");
        }
    }
}

fn call_job(job: &RunJob) -> CallJob<'_> {
    CallJob { job_id: &job.job_id, program: &job.program, shots: job.shots, context: &job.context }
}

pub(super) fn cancelled() -> Error {
    Error::new(ErrorCode::Cancelled, "cancelled before it ran").at(Stage::Run)
}

fn no_answer() -> Error {
    Error::new(ErrorCode::Contract, "the executor returned neither a result nor an error").at(Stage::Run)
}

fn wrong_number(given: usize, jobs: usize) -> Error {
    let text = format!("the executor's batch_run returned {given} results for {jobs} jobs");
    Error::new(ErrorCode::Contract, text).at(Stage::Run)
}
