//! What to do with a claimed message, given what Redis and the history say about its job. Pure.
//!
//! This is the rule for jobs that ended before. A second message whose job is still in flight is parked by
//! [`JobIds`](super::table::JobIds).

use crate::model::MessageId;
use crate::state::db::{HistoryEntry, Status};

/// What Redis records about a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobRecord {
    /// `state` of the status hash.
    pub state: Option<String>,
    /// `message_id` of the status hash.
    pub message_id: Option<String>,
    /// Whether the cancel key exists.
    pub cancelled: bool,
}

/// What the status hash says about the end of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: a cancel may still win.
    Open,
    /// Its result was announced.
    Announced,
    /// It was cancelled.
    Cancelled,
}

impl JobRecord {
    /// What was decided about a message whose result is on disk.
    pub fn decision(&self, id: MessageId) -> Decision {
        let recorded = self.message_id.as_deref().and_then(|text| text.parse::<MessageId>().ok());
        match (recorded, self.state.as_deref()) {
            (Some(recorded), Some("completed" | "failed")) if recorded == id => Decision::Announced,
            (Some(recorded), Some("cancelled")) if recorded == id => Decision::Cancelled,
            // Another message with the job's id is looked at only after the terminal state of this one is written.
            // Were it an earlier one, this message's `executing` was lost with a Redis that was away, and then
            // results are sent unasked.
            (Some(recorded), Some(_)) if recorded != id => Decision::Announced,
            _ => Decision::Open,
        }
    }
}

/// How a message ended on this host before, for a status hash that lost it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastEnd {
    pub status: Status,
    pub error: Option<String>,
    /// As the protocol writes times.
    pub finished_at: String,
}

/// The decision about a claimed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Run it.
    Run,
    /// The job ended before: acknowledge.
    Duplicate,
    /// This message ended on this host, and Redis does not know: write its state again and acknowledge.
    Settle(PastEnd),
    /// Cancelled before it ran: write that state and acknowledge.
    Cancel,
    /// The process died too often while it ran this message: send a failure.
    GiveUp { deaths: u32 },
}

/// Decides about a claimed message. `deaths` counts the process deaths during its runs; at `max_deaths` it is
/// given up.
pub fn admit(
    id: MessageId,
    job_id: &str,
    record: &JobRecord,
    past: Option<&HistoryEntry>,
    deaths: u32,
    max_deaths: u32,
) -> Admission {
    let same_message = record.message_id.as_deref() == Some(&id.to_string());
    match record.state.as_deref() {
        Some("completed" | "cancelled") => return Admission::Duplicate,
        // Another message with the id of a failed job is a resubmission.
        Some("failed") if same_message => return Admission::Duplicate,
        _ => {}
    }

    // After a FLUSHALL a message id can come again with another job.
    if let Some(past) = past.filter(|p| &*p.job_id == job_id) {
        return Admission::Settle(PastEnd {
            status: past.status,
            error: past.error.clone(),
            finished_at: past.finished_at.clone(),
        });
    }

    if record.cancelled {
        Admission::Cancel
    } else if deaths >= max_deaths {
        Admission::GiveUp { deaths }
    } else {
        Admission::Run
    }
}

/// The error of a job that the process did not survive.
pub fn died_error(deaths: u32) -> String {
    format!("the executor died {deaths} times while running this job")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: MessageId = MessageId { ms: 7, seq: 0 };

    fn record(state: &str, id: &str) -> JobRecord {
        JobRecord { state: Some(state.into()), message_id: Some(id.into()), cancelled: false }
    }

    fn past(job: &str) -> HistoryEntry {
        HistoryEntry {
            job_id: job.into(),
            status: Status::Failed,
            error: Some("e".into()),
            finished_at: "t".into(),
        }
    }

    #[test]
    fn a_job_that_ended_is_not_run_again() {
        let settle = || {
            let finished_at = "t".into();
            Admission::Settle(PastEnd { status: Status::Failed, error: Some("e".into()), finished_at })
        };
        let cancelled = JobRecord { cancelled: true, ..JobRecord::default() };
        let cases = [
            (JobRecord::default(), None, 0, Admission::Run),
            (record("executing", "7-0"), None, 0, Admission::Run),
            (record("completed", "1-0"), None, 0, Admission::Duplicate),
            (record("cancelled", "1-0"), None, 0, Admission::Duplicate),
            (record("failed", "7-0"), None, 0, Admission::Duplicate),
            // A resubmission of a failed job is a new attempt.
            (record("failed", "6-0"), None, 0, Admission::Run),
            (record("executing", "7-0"), Some(past("J")), 0, settle()),
            // The same message id with another job says nothing about this one.
            (JobRecord::default(), Some(past("K")), 0, Admission::Run),
            (cancelled.clone(), None, 0, Admission::Cancel),
            (cancelled, Some(past("J")), 0, settle()),
            (JobRecord::default(), None, 2, Admission::Run),
            (JobRecord::default(), None, 3, Admission::GiveUp { deaths: 3 }),
        ];
        for (record, past, deaths, expected) in cases {
            let found = admit(ID, "J", &record, past.as_ref(), deaths, 3);
            assert_eq!(found, expected, "{record:?} {past:?} {deaths}");
        }
    }

    #[test]
    fn the_record_of_another_message_says_that_this_one_was_decided() {
        let cases = [
            (JobRecord::default(), Decision::Open),
            (record("executing", "7-0"), Decision::Open),
            (record("completed", "7-0"), Decision::Announced),
            (record("failed", "7-0"), Decision::Announced),
            (record("cancelled", "7-0"), Decision::Cancelled),
            // The resubmission of a failed job was cancelled: the failure is still to be delivered.
            (record("cancelled", "8-0"), Decision::Announced),
            (record("executing", "8-0"), Decision::Announced),
            // Message ids say nothing about the order: a message that could not be checked comes again later.
            (record("cancelled", "6-0"), Decision::Announced),
            (record("completed", "not an id"), Decision::Open),
        ];
        for (record, expected) in cases {
            assert_eq!(record.decision(ID), expected, "{record:?}");
        }
    }
}
