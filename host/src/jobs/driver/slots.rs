//! The driver's part around the plugin: hand jobs to the executor, take its reports, pass on cancels.

use std::sync::Arc;

use coda_plugin_abi::{Error, Outcome};

use super::super::finish::executing;
use super::super::lifecycle::{Event, Phase, Step};
use super::super::message::{Envelope, Work};
use super::super::writes::Write;
use super::{Driver, Report};
use crate::executor::{Answer, RunDone, RunJob, Witness};
use crate::failpoint::{self, Failpoint};
use crate::model::{JobId, MessageId};
use crate::results::outcome::{conclude, judge};
use crate::state::answer_journal::AnswerJournal;
use crate::state::run_journal::RunJournal;

/// Notes what slots do where a SIGKILL can't take it.
#[derive(Clone)]
pub struct Notes {
    runs: Arc<RunJournal>,
    answers: Arc<AnswerJournal>,
}

impl Notes {
    pub fn new(runs: RunJournal, answers: AnswerJournal) -> Notes {
        Notes { runs: Arc::new(runs), answers: Arc::new(answers) }
    }

    /// An orderly stop is no death of the executor.
    pub(super) fn all_end(&self, slots: usize) {
        (0..slots).for_each(|slot| self.runs.end(slot));
    }
}

impl Witness for Notes {
    fn begins(&self, slot: usize, jobs: &[RunJob]) {
        self.runs.begin(slot, jobs.iter().filter_map(|job| job.message_id));
        failpoint::pause_thread_at(Failpoint::Executing);
    }

    fn answered(&self, job: &RunJob, answer: &Answer) {
        if let Some(id) = job.message_id {
            self.answers.keep(id, &job.job_id, answer);
        }
    }

    fn ends(&self, slot: usize) {
        self.runs.end(slot);
    }
}

impl Driver {
    /// Lets the jobs that were just admitted wait for a slot.
    pub(super) fn hand_over(&mut self) {
        let first_unchecked = self.checking.first().copied().unwrap_or(u64::MAX);
        let mut jobs = Vec::new();
        while let Some(ticket) = self.admitted.first().copied().filter(|t| *t < first_unchecked) {
            self.admitted.remove(&ticket);
            // Cancelled ones are passed over.
            let entry = self.entries.get(&ticket).filter(|e| e.life.phase == Phase::Waiting);
            let Some(entry) = entry else { continue };
            let (Some(envelope), Some(work), Some(context)) = (&entry.envelope, &entry.work, &entry.context)
            else {
                continue;
            };
            jobs.push(RunJob {
                ticket,
                message_id: Some(entry.message_id),
                job_id: envelope.job_id.clone(),
                program: work.program.clone(),
                shots: work.shots,
                context: context.clone(),
            });
        }
        if !jobs.is_empty() {
            self.p.executor.submit(jobs);
        }
    }

    /// A slot has taken these jobs.
    fn started(&mut self, slot: usize, tickets: &[u64]) {
        for &ticket in tickets {
            self.waiting.remove(&ticket);
            self.step(ticket, Event::Started);
            self.release_room(ticket);
            let Some(entry) = self.entries.get(&ticket) else { continue };
            let (Some(envelope), Some(work)) = (&entry.envelope, &entry.work) else { continue };
            self.p.metrics.queue_wait_seconds.observe(entry.claimed.elapsed().as_secs_f64());
            tracing::debug!(job_id = &*envelope.job_id, slot, shots = work.shots, "running");
            let fields = executing(entry.message_id, &self.p.redis.names().qpu_id);
            self.p.redis.write_best_effort(Write::status(&envelope.job_id, fields));
            self.running.push(ticket);
            if let Some(jobs) = self.in_slot.get_mut(slot) {
                *jobs += 1;
            }
        }
    }

    /// Takes what the slots have reported so far.
    pub(super) fn catch_up(&mut self) {
        while let Ok(done) = self.p.done.try_recv() {
            self.done(done);
        }
    }

    pub(super) fn done(&mut self, done: RunDone) {
        let (slot, ticket, answer, run_time) = match done {
            RunDone::Started { slot, tickets } => return self.started(slot, &tickets),
            RunDone::Job { slot, ticket, answer, run_time } => (slot, ticket, answer, run_time),
        };
        if let Some(jobs) = self.in_slot.get_mut(slot) {
            *jobs = jobs.saturating_sub(1);
        }
        self.running.retain(|t| *t != ticket);
        self.p.metrics.run_seconds.observe(run_time.as_secs_f64());
        let step = self.step(ticket, Event::Returned);
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        let id = entry.message_id;
        let (Some(envelope), Some(work)) = (entry.envelope.clone(), entry.work.take()) else { return };
        if self.p.deaths.remove(&id).is_some() {
            self.p.store.clear_deaths(id);
        }
        if step == Some(Step::CloseCancelled) {
            self.close_cancelled(ticket);
            return;
        }
        if step.is_none() {
            return;
        }
        self.conclude(ticket, id, envelope, work, answer);
    }

    /// Judges an answer and sends its result on its way.
    pub(super) fn conclude(
        &self,
        ticket: u64,
        id: MessageId,
        envelope: Envelope,
        work: Work,
        answer: Result<Outcome, Error>,
    ) {
        let (finisher, reports) = (self.finisher.clone(), self.reports.clone());
        self.tasks.spawn(async move {
            failpoint::pause_at(Failpoint::Returned).await;
            let judged = judge(answer, work.program.measurements().len(), work.shots);
            if let Err(error) = &judged {
                tracing::warn!(job_id = &*envelope.job_id, error, "the job failed");
            }
            let conclusion = conclude(&envelope.job_id, judged);
            let stored = finisher.conclude(id, &envelope, conclusion).await;
            reports.send(Report::Stored(ticket, stored)).ok();
        });
    }

    pub(super) fn poll_cancels(&mut self) {
        if !self.running.is_empty() {
            let changed = self.p.dispositions.restore();
            if !changed.is_empty() {
                let (described, signals) = (self.p.executor.described(), changed.join(" "));
                let plugin = &described.info.name;
                tracing::warn!(plugin, signals, "the plugin changed signal handling during a run; put back");
            }
        }
        if self.polling {
            return;
        }
        let live = self.running.iter().chain(&self.waiting);
        let live = live.filter_map(|t| Some((*t, self.entries.get(t).filter(|e| e.life.heeds_cancel())?)));
        let live: Vec<(u64, JobId)> =
            live.filter_map(|(t, e)| Some((t, e.envelope.as_ref()?.job_id.clone()))).collect();
        if live.is_empty() {
            return;
        }
        self.polling = true;
        let (redis, reports) = (self.p.redis.clone(), self.reports.clone());
        self.tasks.spawn(async move {
            let jobs: Vec<JobId> = live.iter().map(|(_, j)| j.clone()).collect();
            if let Ok(cancelled) = redis.cancelled(&jobs).await {
                let hit = live.iter().zip(cancelled).filter(|(_, c)| *c).map(|((t, _), _)| *t);
                let hit: Vec<u64> = hit.collect();
                if !hit.is_empty() {
                    reports.send(Report::Cancels(hit)).ok();
                }
            }
            reports.send(Report::PollDone).ok();
        });
    }

    pub(super) fn cancel(&mut self, ticket: u64) {
        if self.waiting.remove(&ticket) && !self.p.executor.withdraw(ticket) {
            // A slot was quicker, and has reported it.
            self.catch_up();
        }
        let Some(step) = self.step(ticket, Event::Cancel) else { return };
        let Some(entry) = self.entries.get(&ticket) else { return };
        let job_id = entry.envelope.as_ref().map(|e| e.job_id.clone()).unwrap_or_default();
        if let Some(context) = &entry.context {
            context.set_cancelled();
        }
        match step {
            Step::TellPlugin => {
                tracing::info!(job_id = &*job_id, "cancelled while running; the plugin is told");
                self.p.executor.cancel(ticket);
                // The state is written and the message acknowledged now: the answer is thrown away whenever
                // it comes, and the slot stays taken until then.
                let (finisher, id) = (self.finisher.clone(), entry.message_id);
                let task = self.tasks.spawn(async move { finisher.close_cancelled(&job_id, id).await });
                if let Some(entry) = self.entries.get_mut(&ticket) {
                    entry.closing = Some(task);
                }
            }
            Step::CloseCancelled => {
                tracing::info!(job_id = &*job_id, "cancelled while waiting");
                self.release_room(ticket);
                self.close_cancelled(ticket);
            }
            Step::Go => {}
        }
    }
}
