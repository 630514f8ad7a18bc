//! The driver's part after the plugin: what is stored, sent, closed, acknowledged, forgotten.

use super::super::finish::{Stored, now};
use super::super::lifecycle::{Denied, Event, Step};
use super::super::message::Envelope;
use super::{Driver, Report};
use crate::results::dispatcher::{DeliveryOutcome, FinishedDelivery, UnwrittenStatus};
use crate::state::db::Status;
use crate::telemetry::JobOutcome;

impl Driver {
    pub(super) fn close_cancelled(&mut self, ticket: u64) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        let (id, written) = (entry.message_id, entry.closing.take());
        let job_id = entry.envelope.as_ref().map(|e| e.job_id.clone()).unwrap_or_default();
        let finisher = self.finisher.clone();
        self.p.metrics.job(JobOutcome::Cancelled);
        self.spawn_close(ticket, async move {
            match written {
                Some(task) => task.await.unwrap_or(false),
                None => finisher.close_cancelled(&job_id, id).await,
            }
        });
    }

    /// Ends a claimed job without a result.
    pub(super) fn close(
        &mut self,
        ticket: u64,
        outcome: JobOutcome,
        end: impl Future<Output = bool> + Send + 'static,
    ) {
        self.step(ticket, Event::Rejected);
        self.release_room(ticket);
        self.p.metrics.job(outcome);
        self.spawn_close(ticket, end);
    }

    /// Runs the last step of a job; when Redis has confirmed it the job is forgotten.
    pub(super) fn spawn_close(&mut self, ticket: u64, end: impl Future<Output = bool> + Send + 'static) {
        self.acking += 1;
        let reports = self.reports.clone();
        self.tasks.spawn(async move {
            if end.await {
                reports.send(Report::Closed(ticket)).ok();
            }
        });
    }

    pub(super) fn stored(&mut self, ticket: u64, stored: Stored) {
        match stored {
            Stored::Sending { written } => {
                self.step(ticket, Event::Announced);
                if written {
                    self.release_job(ticket);
                }
            }
            Stored::Cancelled => {
                self.p.metrics.job(JobOutcome::Cancelled);
                self.forget(ticket);
            }
            Stored::Stopped => {}
        }
    }

    pub(super) fn sent(&mut self, sent: FinishedDelivery) {
        let FinishedDelivery { message_id: id, status, outcome, unwritten } = sent;
        if outcome == DeliveryOutcome::Accepted && status == Status::Completed {
            self.last_job_at = Some(now());
        }
        self.p.metrics.job(match status {
            Status::Completed => JobOutcome::Completed,
            Status::Failed => JobOutcome::Failed,
        });
        let Some(&ticket) = self.by_message.get(&id) else { return };
        let Some(entry) = self.entries.get(&ticket) else { return };
        let finisher = self.finisher.clone();
        let job_id = entry.envelope.as_ref().map(|e| e.job_id.clone()).unwrap_or_default();
        tracing::debug!(job_id = &*job_id, status = status.name(), ?outcome, "delivery finished");
        match unwritten {
            Some(UnwrittenStatus { error, finished_at }) => self.spawn_close(ticket, async move {
                finisher.settle(&job_id, id, status, error.as_deref(), &finished_at).await
            }),
            None => self.spawn_close(ticket, async move { finisher.acknowledge(id).await }),
        }
    }

    /// The job's terminal state is in Redis: another message with its id may be looked at.
    pub(super) fn release_job(&mut self, ticket: u64) {
        let job = self.entries.get(&ticket).and_then(|e| e.envelope.as_ref()).map(|e| e.job_id.clone());
        let Some(job) = job else { return };
        if self.by_job.get(&job) != Some(&ticket) {
            return;
        }
        self.by_job.remove(&job);
        for parked in self.parked.remove(&job).unwrap_or_default() {
            let Some(entry) = self.entries.get_mut(&parked) else { continue };
            let (Some(envelope), Some(work)) = (entry.envelope.take(), entry.work.take()) else { continue };
            let (checker, reports, id) = (self.checker.clone(), self.reports.clone(), entry.message_id);
            self.tasks.spawn(async move {
                let verdict = checker.again(id, envelope, work).await;
                reports.send(Report::Rechecked(parked, verdict)).ok();
            });
        }
    }

    pub(super) fn forget(&mut self, ticket: u64) {
        self.release_room(ticket);
        self.release_job(ticket);
        if let Some(entry) = self.entries.remove(&ticket) {
            self.by_message.remove(&entry.message_id);
        }
    }

    pub(super) fn release_room(&mut self, ticket: u64) {
        if let Some(entry) = self.entries.get_mut(&ticket)
            && std::mem::take(&mut entry.has_room)
        {
            self.p.room.add_permits(1);
        }
    }

    pub(super) fn set_envelope(&mut self, ticket: u64, envelope: Envelope) {
        if let Some(entry) = self.entries.get_mut(&ticket) {
            entry.envelope = Some(envelope);
        }
    }

    /// Moves a job on; `None` when the move was too late to matter.
    pub(super) fn step(&mut self, ticket: u64, event: Event) -> Option<Step> {
        let entry = self.entries.get_mut(&ticket)?;
        match entry.life.on(event) {
            Ok(step) => Some(step),
            Err(Denied::Ignored) => None,
            Err(Denied::Illegal { phase, event }) => {
                let message_id = entry.message_id;
                tracing::error!(%message_id, ?phase, ?event, "an illegal move of a job; please report this as a bug");
                None
            }
        }
    }
}
