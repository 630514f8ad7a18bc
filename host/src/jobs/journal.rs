//! What slots do, kept where a SIGKILL can't take it: which messages are in the plugin, and what it answered.
//!
//! Written on the slot's own thread, before anything else happens with the call.

use std::sync::Arc;

use crate::executor::{Answer, RunJob, RunObserver};
use crate::failpoint::{Failpoint, pause_thread_at};
use crate::state::answer_journal::AnswerJournal;
use crate::state::run_journal::RunJournal;

/// Both journals, as the observer of every run.
#[derive(Clone)]
pub struct RunRecorder {
    running: Arc<RunJournal>,
    answers: Arc<AnswerJournal>,
}

impl RunRecorder {
    pub fn new(running: RunJournal, answers: AnswerJournal) -> RunRecorder {
        RunRecorder { running: Arc::new(running), answers: Arc::new(answers) }
    }

    /// An orderly stop is not a death of the executor.
    pub fn forget_running(&self, slots: usize) {
        (0..slots).for_each(|slot| self.running.end(slot));
    }
}

impl RunObserver for RunRecorder {
    fn run_started(&self, slot: usize, jobs: &[&RunJob]) {
        self.running.begin(slot, jobs.iter().filter_map(|job| job.message_id));
        for job in jobs.iter().filter(|job| job.attempt > 1) {
            if let Some(id) = job.message_id {
                self.answers.supersede(id, &job.job_id, job.attempt - 1);
            }
        }
        pause_thread_at(Failpoint::Executing);
    }

    fn run_answered(&self, job: &RunJob, answer: &Answer) {
        if let Some(id) = job.message_id {
            self.answers.keep(id, &job.job_id, job.attempt, answer);
        }
    }

    fn run_finished(&self, slot: usize) {
        self.running.end(slot);
    }
}
