//! Effects of the job table, performed: each becomes a call, or a task that reports an event.

use std::borrow::Cow;
use std::sync::Arc;

use coda_plugin_abi::{Error, Outcome};
use time::OffsetDateTime;

use super::super::admission::JobRecord;
use super::super::message::Work;
use super::super::redis::Write;
use super::super::status;
use super::super::table::{Effect, Event, StoredResult, Submission, TerminalStatus, Unstored};
use super::Driver;
use super::group::{Acknowledgement, StoreRequest};
use crate::executor::RunJob;
use crate::failpoint::{Failpoint, pause_at};
use crate::model::{MessageId, iso_time};
use crate::results::dispatcher::PendingDelivery;
use crate::results::outcome::{ShotRule, conclude, fail, judge, limit_size};
use crate::state::db::{JobFacts, ResultRow, Status, StoreError};

impl Driver {
    pub(super) fn perform(&mut self, effect: Effect) {
        let redis = self.parts.redis.clone();
        let store = self.parts.store.clone();
        match effect {
            Effect::ReturnPermits(permits) => self.parts.prefetch.add_permits(permits),
            Effect::Check(requests) => {
                let (checker, reports) = (self.checker.clone(), self.reports.clone());
                self.tasks.spawn(async move {
                    pause_at(Failpoint::Claimed).await;
                    // A driver that has ended takes no more events.
                    reports.send(checker.check(requests).await).ok();
                });
            }
            Effect::Submit(submissions) => {
                submissions.iter().for_each(|submission| self.facts.submitted(submission));
                let jobs = submissions.into_iter().map(|submission| self.run_job(submission)).collect();
                self.parts.executor.submit(self.generation, jobs);
            }
            Effect::Withdraw(ticket) => {
                let withdrawn = self.parts.executor.withdraw(ticket);
                self.immediate.push_back(Event::Withdrawn { ticket, withdrawn });
            }
            Effect::CancelRun(ticket) => self.parts.executor.cancel(ticket),
            Effect::ReadCancelKeys(jobs) => self.report(async move {
                let ids: Vec<_> = jobs.iter().map(|(_, job_id)| job_id.clone()).collect();
                // Asked again at the next poll; that the link is down is told by itself.
                let answers = redis.status.cancelled(&ids).await.unwrap_or_default();
                let (mut cancelled, mut error) = (Vec::new(), None);
                for ((ticket, _), answer) in jobs.iter().zip(answers) {
                    match answer {
                        Ok(true) => cancelled.push(*ticket),
                        Ok(false) => {}
                        Err(refused) => error = Some(refused.to_string()),
                    }
                }
                Event::CancelKeysRead { cancelled, error }
            }),
            Effect::ReadRecord { ticket, job_id } => {
                let limit = self.parts.settings.redis_timeout;
                self.report(async move {
                    // At the start the link is just being made: give it a moment before the result is sent
                    // unasked.
                    redis.link.wait_up(limit).await;
                    let record = match redis.status.records(std::slice::from_ref(&job_id)).await {
                        Ok(mut records) => records
                            .pop()
                            .unwrap_or_else(|| Ok(JobRecord::default()))
                            .map_err(|e| e.to_string()),
                        Err(failure) => Err(failure.to_string()),
                    };
                    Event::RecordRead { ticket, record }
                });
            }
            Effect::ReadCancelKey { ticket, job_id } => self.group.cancel_keys.push((ticket, job_id)),
            Effect::WriteExecuting { message_id, job_id } => {
                let fields = status::executing(message_id, &redis.names.qpu_id, timestamp());
                redis.writes.best_effort(Write::status(&job_id, fields));
            }
            Effect::WriteStatus { ticket, message_id, job_id, end } => {
                let fields = status::terminal(message_id, &redis.names.qpu_id, TerminalStatus::Ended(end));
                self.group.statuses.push((ticket, Write::status(&job_id, fields)));
            }
            Effect::Store { ticket, message_id, result, at, replaces } => {
                let facts = self.facts.take(ticket).unwrap_or_default();
                self.group.stores.push(StoreRequest { ticket, message_id, result, at, replaces, facts });
            }
            Effect::MarkAnnounced { ticket, message_id } => self.on_disk(async move {
                let marked = store.mark_announced(message_id).await;
                if marked.is_ok() {
                    pause_at(Failpoint::Announced).await;
                }
                (marked, move |marked| Event::Marked { ticket, marked })
            }),
            Effect::Discard { ticket, message_id } => self.on_disk(async move {
                (store.discard(message_id).await, move |discarded| Event::Discarded { ticket, discarded })
            }),
            Effect::Bury { ticket, letter } => self.on_disk(async move {
                (store.store_dead_letter(letter).await, move |buried| Event::Buried { ticket, buried })
            }),
            Effect::Deliver(result) => self.parts.outbox.send(pending_delivery(result)),
            Effect::Acknowledge { ticket, message_id, status, removal } => {
                let cancelled = match &status {
                    Some((job_id, TerminalStatus::Cancelled { .. })) => {
                        Some((job_id.clone(), self.facts.cancelled(ticket)))
                    }
                    _ => None,
                };
                let write = match status {
                    Some((job_id, end)) => {
                        let fields = status::terminal(message_id, &redis.names.qpu_id, end);
                        Write::status(&job_id, fields)
                    }
                    None => Write::default(),
                };
                let end = Acknowledgement { ticket, message_id, write, removal, cancelled };
                self.group.acknowledgements.push(end);
            }
            Effect::ForgetDeaths(message_id) => store.clear_deaths(message_id),
            Effect::AwaitFirstAttempts => {
                let outbox = self.parts.outbox.clone();
                self.report(async move {
                    outbox.all_tried().await;
                    Event::AllTried
                });
            }
            Effect::Notify(notice) => self.notify(notice),
        }
    }

    /// Runs a task whose event goes to the table.
    fn report(&self, task: impl Future<Output = Event> + Send + 'static) {
        let reports = self.reports.clone();
        self.tasks.spawn(async move {
            let event = task.await;
            // A driver that has ended takes no more events.
            reports.send(vec![event]).ok();
        });
    }

    /// Runs a write to the state database; a database that has closed says nothing more.
    fn on_disk<E>(&self, write: impl Future<Output = (Result<(), StoreError>, E)> + Send + 'static)
    where
        E: FnOnce(Result<(), String>) -> Event + Send + 'static,
    {
        let reports = self.reports.clone();
        self.tasks.spawn(async move {
            let event = match write.await {
                (Err(StoreError::Stopped), _) => return,
                (result, event) => event(result.map_err(|e| e.to_string())),
            };
            reports.send(vec![event]).ok();
        });
    }

    fn run_job(&self, submission: Submission) -> RunJob {
        let Submission { ticket, message_id, job } = submission;
        let attempt = job.failed.count.saturating_add(1);
        let job_id = job.envelope.job_id;
        let job = RunJob {
            ticket,
            message_id: Some(message_id),
            context: Arc::new(self.parts.executor.context(job_id.clone())),
            job_id,
            program: job.work.program,
            shots: job.work.shots,
            attempt,
        };
        self.observe_queued(&job);
        job
    }
}

/// The row of a result; an answer of the executor is judged on the way.
pub(super) fn row_of(
    message_id: MessageId,
    result: Unstored,
    finished_at: String,
    replaces: Option<MessageId>,
    mut facts: JobFacts,
    max_bytes: usize,
    rule: ShotRule,
) -> StoredResult {
    let (envelope, conclusion) = match result {
        Unstored::Row(result) => return result,
        Unstored::Failure { envelope, error } => {
            let conclusion = fail(&envelope.job_id, &error);
            facts.reason = Some(Cow::Borrowed("not_run"));
            (envelope, conclusion)
        }
        Unstored::Answer { envelope, work, failed_runs, mut answer } => {
            let failure = answer.as_ref().err().map_or("invalid_result", |error| error.code.name());
            complete(&mut facts, &work, failed_runs, &answer);
            // The sender hears the last error, and that it was not the only one.
            if let Err(error) = &mut answer
                && failed_runs > 1
            {
                error.text = format!("{} (the last error of {failed_runs} runs)", error.text);
            }
            let judged = judge(answer, work.program.measurements().len(), work.shots, rule);
            if let Err(error) = &judged {
                tracing::warn!(job_id = &*envelope.job_id, error, "the job failed");
            }
            let conclusion = conclude(&envelope.job_id, judged);
            let conclusion = limit_size(&envelope.job_id, conclusion, max_bytes);
            if conclusion.status == Status::Failed {
                facts.reason = Some(Cow::Borrowed(failure));
            }
            (envelope, conclusion)
        }
    };
    let row = ResultRow {
        message_id,
        job_id: envelope.job_id,
        callback_url: envelope.callback_url,
        status: conclusion.status,
        error: conclusion.error,
        finished_at,
        replaces,
        facts,
        body: conclusion.body,
    };
    StoredResult { body_bytes: row.body.len(), row, origin: envelope.origin, attempts: 0 }
}

/// Adds what a former process knew of a job whose answer it has left behind.
fn complete(facts: &mut JobFacts, work: &Work, failed_runs: u32, answer: &Result<Outcome, Error>) {
    if facts.runs > 0 {
        return;
    }
    facts.qubits = Some(work.program.num_qubits().into());
    facts.gates = u32::try_from(work.program.gates().len()).ok();
    facts.shots = Some(work.shots);
    facts.runs = failed_runs;
    // How long the run took is known from the plugin alone.
    if let Ok(Some(ms)) = answer.as_ref().map(|outcome| outcome.execution_time_ms)
        && ms.is_finite()
        && ms > 0.0
    {
        facts.run_us = (ms * 1000.0) as u64;
    }
}

fn pending_delivery(result: StoredResult) -> PendingDelivery {
    let StoredResult { row, body_bytes, origin, attempts } = result;
    PendingDelivery {
        message_id: row.message_id,
        job_id: row.job_id,
        callback_url: row.callback_url,
        origin,
        status: row.status,
        body: (!row.body.is_empty()).then_some(row.body),
        body_bytes,
        attempts,
    }
}

fn timestamp() -> String {
    iso_time(OffsetDateTime::now_utc())
}
