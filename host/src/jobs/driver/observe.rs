//! What the job path tells the activity record of the page.

use super::super::table::{Event, Notice};
use super::Driver;
use crate::activity::QueuedJob;
use crate::activity::minutes::JobEnd;
use crate::executor::RunJob;
use crate::results::dispatcher::DeliveryOutcome;
use crate::state::db::Status;

impl Driver {
    /// Tells of a job that goes to the executor.
    pub(super) fn observe_queued(&self, job: &RunJob) {
        let RunJob { ticket, job_id, program, context, shots, .. } = job;
        self.parts.activity.queued(&QueuedJob { ticket: *ticket, job_id, program, context, shots: *shots });
    }

    /// Tells of an event that is a step of a job.
    pub(super) fn observe(&self, event: &Event) {
        if let Event::Stored { result, .. } = event {
            self.parts.activity.stored(&result.row.job_id, result.row.error.as_deref());
        }
    }

    /// Tells of what the table has decided.
    pub(super) fn observe_notice(&mut self, notice: &Notice) {
        if let Notice::Started { ticket, waited, .. } = notice {
            self.facts.waited(*ticket, *waited);
        }
        let activity = &self.parts.activity;
        match notice {
            Notice::Started { job_id, slot, waited, .. } => activity.started(job_id, *slot, *waited),
            Notice::CancelledBeforeRun { job_id }
            | Notice::CancelledRunning { job_id }
            | Notice::CancelledAfterRun { job_id } => activity.ended(job_id, JobEnd::Cancelled, None),
            Notice::Ended { job_id, status, outcome } => {
                let end = match (outcome, status) {
                    (DeliveryOutcome::Refused, _) => JobEnd::Undeliverable,
                    (_, Status::Completed) => JobEnd::Completed,
                    (_, Status::Failed) => JobEnd::Failed,
                };
                activity.ended(job_id, end, None);
            }
            _ => {}
        }
    }
}
