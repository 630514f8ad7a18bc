//! The driver's part around the plugin: fill free slots, take answers, pass on cancels.

use coda_plugin_abi::{Error, Outcome};

use super::super::finish::executing;
use super::super::lifecycle::{Event, Phase, Step};
use super::super::message::{Envelope, Work};
use super::super::writes::Write;
use super::{Driver, Report};
use crate::executor::{Keep, RunDone, RunJob};
use crate::model::{JobId, MessageId};
use crate::results::outcome::{conclude, judge};

impl Driver {
    pub(super) fn fill_slots(&mut self) {
        while !self.free.is_empty() {
            let mut tickets = Vec::new();
            while tickets.len() < self.batch_max {
                let Some(ticket) = self.ready.pop_front() else { break };
                // Cancelled ones are left in the queue and passed over here.
                if self.entries.get(&ticket).is_some_and(|e| e.life.phase == Phase::Waiting) {
                    tickets.push(ticket);
                }
            }
            if tickets.is_empty() {
                return;
            }
            if let Some(slot) = self.free.pop() {
                self.start(slot, &tickets);
            }
        }
    }

    pub(super) fn start(&mut self, slot: usize, tickets: &[u64]) {
        let ids = tickets.iter().filter_map(|t| self.entries.get(t)).map(|e| e.message_id);
        self.p.marks.begin(slot, ids);
        let mut jobs = Vec::with_capacity(tickets.len());
        for &ticket in tickets {
            self.step(ticket, Event::Started);
            self.release_room(ticket);
            let Some(entry) = self.entries.get(&ticket) else { continue };
            let (Some(envelope), Some(work), Some(context)) = (&entry.envelope, &entry.work, &entry.context)
            else {
                continue;
            };
            self.p.metrics.queue_wait_seconds.observe(entry.claimed.elapsed().as_secs_f64());
            tracing::debug!(job_id = &*envelope.job_id, slot, shots = work.shots, "running");
            let fields = executing(entry.message_id, &self.p.redis.names().qpu_id);
            self.p.redis.write_soon(Write::status(&envelope.job_id, fields));
            self.running.push(ticket);
            jobs.push(RunJob {
                ticket,
                job_id: envelope.job_id.clone(),
                program: work.program.clone(),
                shots: work.shots,
                context: context.clone(),
                keep: Some(self.keep(entry.message_id, envelope.job_id.clone())),
            });
        }
        if !self.finisher.hold.reached("executing") {
            self.p.executor.run(slot, jobs);
        }
    }

    /// Keeps an answer where a SIGKILL can't take it.
    fn keep(&self, id: MessageId, job_id: JobId) -> Keep {
        let answers = self.p.answers.clone();
        Box::new(move |answer| answers.keep(id, &job_id, answer))
    }

    pub(super) fn done(&mut self, done: RunDone) {
        let (ticket, answer, run_time) = match done {
            RunDone::SlotFree { slot } => {
                self.p.marks.end(slot);
                self.free.push(slot);
                return;
            }
            RunDone::Job { ticket, answer, run_time } => (ticket, answer, run_time),
        };
        self.running.retain(|t| *t != ticket);
        self.p.metrics.run_seconds.observe(run_time.as_secs_f64());
        let step = self.step(ticket, Event::Returned);
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        let id = entry.message_id;
        let (Some(envelope), Some(work)) = (entry.envelope.clone(), entry.work.take()) else { return };
        if self.p.deaths.remove(&id).is_some() {
            self.p.store.alive(id);
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
            finisher.hold.at("returned").await;
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
                let (plugin, signals) = (&*self.plugin, changed.join(" "));
                tracing::warn!(plugin, signals, "the plugin changed signal handling during a run; put back");
            }
        }
        if self.polling {
            return;
        }
        let live = self.running.iter().chain(&self.ready);
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
