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
    /// The message that the record is about.
    fn recorded_message(&self) -> Option<MessageId> {
        self.message_id.as_deref().and_then(|text| text.parse().ok())
    }

    /// The message that had failed before `id`, whose record the end of `id` is to replace.
    pub fn replaced_by(&self, id: MessageId) -> Option<MessageId> {
        let has_failed = self.state.as_deref() == Some("failed");
        self.recorded_message().filter(|recorded| has_failed && *recorded != id)
    }

    /// Whether the job has ended by another message, whose state an earlier one must not write over.
    pub fn has_ended_otherwise(&self, id: MessageId) -> bool {
        match self.state.as_deref() {
            Some("completed") => true,
            Some("failed" | "cancelled") => self.recorded_message().is_some_and(|recorded| recorded != id),
            _ => false,
        }
    }

    /// What was decided about a message whose result is on disk. `replaces` is the message whose record it found when
    /// it was claimed.
    pub fn decision(&self, id: MessageId, replaces: Option<MessageId>) -> Decision {
        let recorded = self.recorded_message();
        match (recorded, self.state.as_deref()) {
            (Some(recorded), Some("completed" | "failed")) if recorded == id => Decision::Announced,
            (Some(recorded), Some("cancelled")) if recorded == id => Decision::Cancelled,
            // Nothing was written for this message yet: its `executing`, if there was one, was lost.
            (Some(_), Some(_)) if recorded == replaces => Decision::Open,
            // A further message with the job's id is looked at only after the terminal state of this one is written.
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
    /// Its result was announced and is not known to be delivered: run it once more.
    RunAgain,
    /// The job ended before: acknowledge.
    Duplicate,
    /// This message ended on this host, and Redis does not know: write its state again and acknowledge.
    Settle(PastEnd),
    /// Cancelled before it ran: write that state and acknowledge.
    Cancel,
    /// The process died too often while it ran this message: send a failure.
    GiveUp { deaths: u32 },
}

/// What this host knows of a claimed message, beside what Redis records of its job.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessageFacts<'a> {
    /// How it ended here before.
    pub past: Option<&'a HistoryEntry>,
    /// It was delivered to this consumer before and not acknowledged.
    pub left_pending: bool,
    /// How often the process died while it ran this message.
    pub deaths: u32,
}

/// Decides about a claimed message. At `max_deaths` deaths it is given up.
///
/// A terminal state is written before the result is delivered, and history after it. A message that is still pending
/// with a terminal state of its own and without history was therefore not acknowledged by a host that knew of a
/// delivery: its result was lost with the state database. A new message that has ended before comes from a consumer
/// group that was created again, and was acknowledged in the former one.
pub fn admit(
    id: MessageId,
    job_id: &str,
    record: &JobRecord,
    facts: MessageFacts<'_>,
    max_deaths: u32,
) -> Admission {
    let MessageFacts { past, left_pending, deaths } = facts;
    // After a FLUSHALL a message id can come again with another job.
    let past = past.filter(|p| &*p.job_id == job_id);
    let same_message = record.message_id.as_deref() == Some(&id.to_string());
    let was_delivered = past.is_some() || !left_pending;
    let mut runs_again = false;
    match record.state.as_deref() {
        Some("completed" | "failed") if same_message && !was_delivered => runs_again = true,
        Some("completed" | "cancelled") => return Admission::Duplicate,
        // Another message with the id of a failed job is a resubmission.
        Some("failed") if same_message => return Admission::Duplicate,
        _ => {}
    }

    if let Some(past) = past {
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
    } else if runs_again {
        Admission::RunAgain
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
            let facts = MessageFacts { past: past.as_ref(), left_pending: false, deaths };
            let found = admit(ID, "J", &record, facts, 3);
            assert_eq!(found, expected, "{record:?} {past:?} {deaths}");
        }
    }

    #[test]
    fn an_announced_result_that_is_pending_without_history_is_not_known_to_be_delivered() {
        let cases = [
            (record("completed", "7-0"), None, Admission::RunAgain),
            (record("failed", "7-0"), None, Admission::RunAgain),
            // The history of another job under the same message id says nothing.
            (record("completed", "7-0"), Some(past("K")), Admission::RunAgain),
            // Delivered, and the acknowledgement was lost.
            (record("completed", "7-0"), Some(past("J")), Admission::Duplicate),
            // Another message ended the job; the host that ran it delivered its result.
            (record("completed", "1-0"), None, Admission::Duplicate),
            // A cancelled job has no result.
            (record("cancelled", "7-0"), None, Admission::Duplicate),
            (record("executing", "7-0"), None, Admission::Run),
        ];
        for (record, past, expected) in cases {
            let facts = MessageFacts { past: past.as_ref(), left_pending: true, deaths: 0 };
            assert_eq!(admit(ID, "J", &record, facts, 3), expected, "{record:?} {past:?}");
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
        // What it found when it was claimed says nothing about it.
        let before = MessageId { ms: 6, seq: 0 };
        assert_eq!(record("failed", "6-0").replaced_by(ID), Some(before));
        assert_eq!(record("failed", "6-0").decision(ID, Some(before)), Decision::Open);
        assert_eq!(record("failed", "8-0").decision(ID, Some(before)), Decision::Announced);
        assert_eq!(record("failed", "7-0").replaced_by(ID), None);
        assert_eq!(record("executing", "6-0").replaced_by(ID), None);
        for (state, own, other) in
            [("completed", true, true), ("failed", false, true), ("executing", false, false)]
        {
            assert_eq!(record(state, "7-0").has_ended_otherwise(ID), own, "{state}");
            assert_eq!(record(state, "8-0").has_ended_otherwise(ID), other, "{state}");
        }
        for (record, expected) in cases {
            assert_eq!(record.decision(ID, None), expected, "{record:?}");
        }
    }
}
