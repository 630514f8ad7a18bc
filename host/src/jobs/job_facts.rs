//! Pure: what the record of ended jobs says of a job beside its end: sizes, waits, runs.
//!
//! Kept from the moment a job goes to the executor until its end is written. The table decides and needs none of it.

use std::collections::HashMap;
use std::time::Duration;

use super::table::{Submission, Ticket};
use crate::model::{JobId, MessageId};
use crate::state::db::JobFacts;

/// The facts of the jobs in flight.
#[derive(Debug, Default)]
pub struct FactsBook(HashMap<Ticket, Entry>);

#[derive(Debug)]
struct Entry {
    message_id: MessageId,
    job_id: JobId,
    facts: JobFacts,
    /// Which run is the next, or the present one.
    attempt: u32,
    /// How many jobs share the call that it is in; `None` in no call.
    in_call: Option<u32>,
    /// Its end is written, and only its run is to come back.
    is_cancelled: bool,
}

/// The end of the run of a cancelled job.
#[derive(Debug, PartialEq, Eq)]
pub struct CancelledRun {
    pub message_id: MessageId,
    pub job_id: JobId,
    pub facts: JobFacts,
}

impl FactsBook {
    /// A job goes to the executor, perhaps not for the first time.
    pub fn submitted(&mut self, submission: &Submission) {
        let Submission { ticket, message_id, job } = submission;
        let entry = self.0.entry(*ticket).or_insert_with(|| Entry {
            message_id: *message_id,
            job_id: job.envelope.job_id.clone(),
            facts: JobFacts {
                qubits: Some(job.work.program.num_qubits().into()),
                gates: u32::try_from(job.work.program.gates().len()).ok(),
                shots: Some(job.work.shots),
                ..JobFacts::default()
            },
            attempt: 1,
            in_call: None,
            is_cancelled: false,
        });
        entry.attempt = job.failed.count.saturating_add(1);
    }

    /// One call of the plugin has begun with these jobs.
    pub fn called(&mut self, tickets: &[Ticket]) {
        let together = u32::try_from(tickets.len()).unwrap_or(u32::MAX);
        for ticket in tickets {
            if let Some(entry) = self.0.get_mut(ticket) {
                entry.in_call = Some(together);
            }
        }
    }

    /// So long after its claim a job was in a slot. The first time counts.
    pub fn waited(&mut self, ticket: Ticket, waited: Duration) {
        if let Some(entry) = self.0.get_mut(&ticket) {
            entry.facts.waited_ms.get_or_insert(waited.as_millis() as u64);
        }
    }

    /// The plugin has answered a job after a call that took so long. Says what the record of a cancelled job lacks.
    pub fn answered(&mut self, ticket: Ticket, run_time: Duration) -> Option<CancelledRun> {
        let entry = self.0.get_mut(&ticket)?;
        let share = run_time / entry.in_call.take().unwrap_or(1).max(1);
        entry.facts.run_us = entry.facts.run_us.saturating_add(share.as_micros() as u64);
        entry.facts.runs = entry.attempt;
        if !entry.is_cancelled {
            return None;
        }
        let Entry { message_id, job_id, facts, .. } = self.0.remove(&ticket)?;
        Some(CancelledRun { message_id, job_id, facts })
    }

    /// A job ends with a result.
    pub fn take(&mut self, ticket: Ticket) -> Option<JobFacts> {
        self.0.remove(&ticket).map(|entry| entry.facts)
    }

    /// A job ends without a result. One that is in the plugin is remembered until its run has come back.
    pub fn cancelled(&mut self, ticket: Ticket) -> JobFacts {
        let Some(entry) = self.0.get_mut(&ticket) else { return JobFacts::default() };
        entry.is_cancelled = true;
        let facts = entry.facts.clone();
        if entry.in_call.is_none() {
            self.0.remove(&ticket);
        }
        facts
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coda_plugin_abi::{Error, ErrorCode, Program};

    use super::*;
    use crate::jobs::message::{Envelope, Work};
    use crate::jobs::table::{FailedRuns, Runnable};

    fn submission(ticket: Ticket, failed_runs: u32) -> Submission {
        let json = br#"{"version":"1.0","target":"cz","num_qubits":2,
            "gates":[{"gate":"rx","qubits":[0],"params":[0.5]}],"measurements":[0,1],"metadata":{"source_hash":"h","compiled_at":"2026-01-01T00:00:00Z"}}"#;
        let program = Arc::new(Program::parse(json).expect("a circuit"));
        let envelope = Envelope { job_id: "J1".into(), callback_url: "".into(), origin: "".into() };
        let mut failed = FailedRuns::default();
        for _ in 0..failed_runs {
            failed.add(Duration::ZERO, &Error::new(ErrorCode::Hardware, "cold"));
        }
        let work = Work { program, shots: 100 };
        let job = Runnable { envelope, work, suspect: false, failed };
        Submission { ticket, message_id: MessageId { ms: ticket, seq: 0 }, job }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn runs_add_up_and_a_job_has_its_share_of_a_batch() {
        let mut book = FactsBook::default();
        book.submitted(&submission(1, 0));
        book.submitted(&submission(2, 0));
        book.called(&[1, 2]);
        book.waited(1, SECOND * 3);
        assert_eq!(book.answered(1, SECOND * 4), None);
        // It runs again, alone.
        book.submitted(&submission(1, 1));
        book.called(&[1]);
        book.waited(1, SECOND * 9);
        book.answered(1, SECOND);
        let facts = book.take(1).expect("facts");
        assert_eq!((facts.run_us, facts.runs, facts.waited_ms), (3_000_000, 2, Some(3000)));
        assert_eq!((facts.qubits, facts.gates, facts.shots), (Some(2), Some(1), Some(100)));
        book.answered(2, SECOND * 4);
        assert_eq!(book.take(2).map(|facts| facts.run_us), Some(2_000_000));
        assert!(book.0.is_empty());
        assert_eq!(book.take(1), None);
    }

    #[test]
    fn a_cancelled_job_that_runs_is_told_of_when_its_run_is_back_and_no_entry_stays() {
        let mut book = FactsBook::default();
        book.submitted(&submission(1, 0));
        book.called(&[1]);
        assert_eq!(book.cancelled(1).runs, 0);
        let run = book.answered(1, SECOND).expect("a run");
        assert_eq!((run.facts.run_us, run.facts.runs, &*run.job_id), (1_000_000, 1, "J1"));
        // One that waits has none to come.
        book.submitted(&submission(2, 0));
        assert_eq!(book.cancelled(2).shots, Some(100));
        assert_eq!(book.cancelled(3), JobFacts::default());
        assert!(book.0.is_empty());
    }
}
