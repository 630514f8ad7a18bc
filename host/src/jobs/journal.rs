//! What slots do, kept where a SIGKILL can't take it: which messages are in the plugin, and what it answered.
//!
//! Written on the slot's own thread, before anything else happens with the call.

use std::sync::Arc;

use super::hold::HoldAt;
use crate::executor::{Answer, RunJob, RunObserver};
use crate::state::answers::Answers;
use crate::state::marks::RunMarks;

/// Both journals, as the observer of every run.
#[derive(Clone)]
pub struct RunRecorder {
    running: Arc<RunMarks>,
    answers: Arc<Answers>,
    hold: Arc<HoldAt>,
}

impl RunRecorder {
    pub fn new(running: RunMarks, answers: Answers) -> RunRecorder {
        RunRecorder {
            running: Arc::new(running),
            answers: Arc::new(answers),
            hold: Arc::new(HoldAt::from_env()),
        }
    }

    /// An orderly stop is no death of the executor.
    pub fn forget_running(&self, slots: usize) {
        (0..slots).for_each(|slot| self.running.end(slot));
    }
}

impl RunObserver for RunRecorder {
    fn run_started(&self, slot: usize, jobs: &[RunJob]) {
        self.running.begin(slot, jobs.iter().filter_map(|job| job.message_id));
        self.hold.block_at("executing");
    }

    fn run_answered(&self, job: &RunJob, answer: &Answer) {
        if let Some(id) = job.message_id {
            self.answers.keep(id, &job.job_id, answer);
        }
    }

    fn run_finished(&self, slot: usize) {
        self.running.end(slot);
    }
}
