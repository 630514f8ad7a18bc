//! Pure: a coordinator's jobs as facts. What a restart finds unfinished here is failed with an honest record.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One thing that happened to a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum JobFact {
    Submitted {
        qasm: String,
        shots: u32,
        /// The peer id of the coordinator that runs it: coordinators may share a log.
        #[serde(default)]
        coordinator: String,
    },
    /// The plan as the API shows it.
    Planned {
        plan: Value,
    },
    /// A candidate is tried: its reservation is recorded under this id.
    Attempted {
        block_id: String,
        attempt: u32,
        peer_id: String,
        reservation_id: String,
    },
    BlockCompleted {
        block_id: String,
        attempts: u32,
        peer_id: String,
        #[serde(default)]
        fidelity: Option<f64>,
        latency_ms: f64,
    },
    BlockFailed {
        block_id: String,
        attempts: u32,
        error: String,
    },
    Completed {
        result: Value,
    },
    Failed {
        error: String,
    },
}

impl JobFact {
    pub fn kind(&self) -> &'static str {
        match self {
            JobFact::Submitted { .. } => "submitted",
            JobFact::Planned { .. } => "planned",
            JobFact::Attempted { .. } => "attempted",
            JobFact::BlockCompleted { .. } => "block_completed",
            JobFact::BlockFailed { .. } => "block_failed",
            JobFact::Completed { .. } => "completed",
            JobFact::Failed { .. } => "failed",
        }
    }

    fn is_end(&self) -> bool {
        matches!(self, JobFact::Completed { .. } | JobFact::Failed { .. })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobRefusal {
    #[error("there is no such job")]
    Unknown,
    #[error("there is such a job already")]
    Exists,
    #[error("the job has ended, so '{0}' can't be recorded")]
    Ended(&'static str),
}

/// Whether a fact may follow these.
///
/// # Errors
/// When the job hasn't begun, has begun already, or has ended.
pub fn may_follow<'a>(
    mut before: impl DoubleEndedIterator<Item = &'a JobFact>,
    fact: &JobFact,
) -> Result<(), JobRefusal> {
    match (before.next_back(), fact) {
        (None, JobFact::Submitted { .. }) => Ok(()),
        (None, _) => Err(JobRefusal::Unknown),
        (Some(_), JobFact::Submitted { .. }) => Err(JobRefusal::Exists),
        (Some(last), _) if last.is_end() => Err(JobRefusal::Ended(fact.kind())),
        (Some(_), _) => Ok(()),
    }
}

/// Whether a job with these facts goes on.
pub fn is_open<'a>(mut facts: impl DoubleEndedIterator<Item = &'a JobFact>) -> bool {
    facts.next_back().is_some_and(|f| !f.is_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_begins_once_and_ends_once() {
        let begin = JobFact::Submitted { qasm: "OPENQASM 2.0;".into(), shots: 10, coordinator: "me".into() };
        let end = JobFact::Failed { error: "the coordinator was stopped".into() };
        let none: [JobFact; 0] = [];
        assert_eq!(may_follow(none.iter(), &begin), Ok(()));
        assert_eq!(may_follow(none.iter(), &end), Err(JobRefusal::Unknown));
        assert_eq!(may_follow([begin.clone()].iter(), &end), Ok(()));
        assert_eq!(may_follow([begin.clone()].iter(), &begin), Err(JobRefusal::Exists));
        let ended = [begin.clone(), end.clone()];
        assert_eq!(may_follow(ended.iter(), &end), Err(JobRefusal::Ended("failed")));
        assert!(is_open([begin].iter()) && !is_open(ended.iter()) && !is_open(none.iter()));
    }
}
