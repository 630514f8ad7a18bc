//! What the job table reports, as log lines and metrics.

use super::super::table::Notice;
use super::Driver;
use crate::state::db::Status;
use crate::telemetry::JobOutcome;

impl Driver {
    pub(super) fn notify(&mut self, notice: Notice) {
        self.observe_notice(&notice);
        let metrics = &self.parts.metrics;
        match notice {
            Notice::Parked { job_id } => tracing::info!(
                job_id = &*job_id,
                "another message with this job id is in flight; waiting for it"
            ),
            // Each look through the pending list brings them again.
            Notice::NotParked { job_id, message_id } => tracing::debug!(
                job_id = &*job_id,
                %message_id,
                "too many messages wait for others with their job id; this one stays pending"
            ),
            Notice::Duplicate { job_id, message_id } => {
                metrics.job(JobOutcome::Duplicate);
                tracing::info!(job_id = &*job_id, %message_id, "the job ended before; acknowledged");
            }
            Notice::Settled { job_id, message_id } => {
                metrics.job(JobOutcome::Duplicate);
                tracing::info!(job_id = &*job_id, %message_id, "the job ended here before; acknowledged");
            }
            Notice::CancelledBeforeRun { job_id } => {
                metrics.job(JobOutcome::Cancelled);
                tracing::info!(job_id = &*job_id, "cancelled before it ran");
            }
            Notice::CancelledRunning { job_id } => {
                metrics.job(JobOutcome::Cancelled);
                tracing::info!(job_id = &*job_id, "cancelled while running; the plugin is told");
            }
            Notice::CancelledAfterRun { job_id } => {
                metrics.job(JobOutcome::Cancelled);
                tracing::info!(
                    job_id = &*job_id,
                    "cancelled before its result was sent; the result is dropped"
                );
            }
            Notice::Unfit { job_id, error } => {
                tracing::warn!(job_id = &*job_id, error, "the job can't be run; its sender is told");
            }
            Notice::RunsAgain { job_id, failed_runs, pause, error } => {
                metrics.job_retry(error.code);
                tracing::warn!(
                    job_id = &*job_id,
                    failed_runs,
                    code = error.code.name(),
                    pause_ms = pause.as_millis() as u64,
                    error = error.text,
                    "a run failed in a way that another one may not; the job runs again"
                );
            }
            Notice::AnsweredBefore { job_id } => tracing::info!(
                job_id = &*job_id,
                "the plugin had answered this before the process died; not run again"
            ),
            Notice::Trimmed { message_id } => {
                metrics.trimmed.inc();
                tracing::warn!(%message_id, "a pending message's entry is gone from the stream; kept as a dead letter and acknowledged");
            }
            Notice::IdReused { message_id } => {
                tracing::warn!(%message_id, "another message has the id of one in flight; it waits for that one's end");
            }
            Notice::DeadLetter { message_id, reason } => {
                metrics.job(JobOutcome::DeadLetter);
                tracing::error!(%message_id, reason, "a message can't be answered; it is kept as a dead letter");
            }
            Notice::Started { job_id, slot, waited, shots, .. } => {
                metrics.queue_wait_seconds.observe(waited.as_secs_f64());
                tracing::debug!(job_id = &*job_id, slot, shots, "running");
            }
            Notice::Ended { job_id, status, outcome } => {
                metrics.job(match status {
                    Status::Completed => JobOutcome::Completed,
                    Status::Failed => JobOutcome::Failed,
                });
                tracing::debug!(job_id = &*job_id, status = status.name(), ?outcome, "delivery finished");
            }
            Notice::CancelsUnread { error } => {
                tracing::error!(error, "cancels can't be read; jobs that were cancelled may run on")
            }
            Notice::ChecksFail { messages, error } => {
                tracing::warn!(messages, error, "claimed messages can't be checked now; they stay pending")
            }
            Notice::StoreFails { error } => tracing::error!(
                error,
                "the state database can't be written; nothing more is run until it can be"
            ),
            Notice::StoreWorks => tracing::info!("the state database can be written again; running jobs"),
            Notice::Draining { running, left_pending } => {
                tracing::info!(running, left_pending, "stopping: claiming no more jobs, finishing what runs")
            }
            Notice::Impossible(fault) => {
                tracing::error!("{fault}; its message stays pending; report this as a bug of coda-host")
            }
        }
    }
}
