//! `evolve_state` in a slot: a state goes in, operations are applied, a state comes out.
//!
//! It uses a slot that is held for it, can be cancelled by its ticket as a run can, and answers on a channel of its
//! own. What comes back is checked for being a state of the same size; that it
//! is the right one is the caller's matter.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use coda_plugin_abi::{Amplitude, Error, ErrorCode, Operation, Stage};

use super::JobContext;
use super::ffi::CallEvolve;
use super::in_flight::lock;
use super::pool::{Control, report_changes};
use super::queue::{Queue, SlotLease, SlotLoad};
use super::slot::{Slot, cancelled};
use super::status::{ActivePlugin, ExecutorStatus};
use crate::model::JobId;

/// How far the norm of an answer may be from 1.
const NORM_ERROR: f64 = 1e-6;

/// A state, what is to be done with it, and where the answer goes.
pub struct EvolveJob {
    /// The caller's own mark, unlike that of any other job in the pool.
    pub ticket: u64,
    pub job_id: JobId,
    /// At most what the executor's hooks say.
    pub num_qubits: u16,
    /// `2^num_qubits`, of norm 1; bit `k` of an index is the value of qubit `k`.
    pub amplitudes: Vec<Amplitude>,
    pub operations: Arc<[Operation]>,
    pub context: Arc<JobContext>,
    /// Called on the slot's thread: it is to pass the answer on, no more.
    pub answer: Box<dyn FnOnce(EvolveDone) + Send>,
}

/// What came of it.
#[derive(Debug)]
pub struct EvolveDone {
    pub answer: Result<Vec<Amplitude>, Error>,
    pub run_time: Duration,
}

/// The part of an executor that is lent to others: holds on slots, and states evolved in them.
#[derive(Clone)]
pub struct SlotLender {
    pub(super) control: Sender<Control>,
    pub(super) status: ExecutorStatus,
}

impl SlotLender {
    /// Keeps a slot for somebody; `None` while every slot is taken or jobs wait for one.
    pub fn try_lease(&self) -> Option<SlotLease> {
        Queue::try_lease(&self.status.shared)
    }

    /// How the slots are used now.
    pub fn load(&self) -> SlotLoad {
        self.status.shared.queue.load()
    }

    /// The executor in use: another one after a reload.
    pub fn active_plugin(&self) -> Arc<ActivePlugin> {
        self.status.active_plugin()
    }

    /// What a call shares with the plugin.
    pub fn context(&self, job_id: JobId) -> JobContext {
        JobContext::of(self.status.common.clone(), job_id)
    }

    /// Has a held slot evolve a state. The slot stays held until `hold` is dropped, too.
    pub fn evolve_state(&self, lease: &SlotLease, job: EvolveJob) {
        lease.enter(Box::new(job));
    }

    /// As [`Executor::cancel`](super::Executor::cancel).
    pub fn cancel(&self, ticket: u64) {
        if let Some(call) = lock(&self.status.shared.in_flight).get(&ticket) {
            call.ask();
        }
        if self.status.takes_cancels() && self.control.send(Control::Cancel { ticket }).is_err() {
            tracing::debug!("the executor's control thread has ended");
        }
    }
}

impl Slot {
    /// Runs one call.
    pub(super) fn evolve(&self, job: &EvolveJob) -> EvolveDone {
        let call = lock(&self.shared.in_flight).get(&job.ticket).cloned();
        let start = Instant::now();
        let answer = match call.filter(|t| t.enter()) {
            None => Err(cancelled()),
            Some(call) => {
                let answer = self.plugin.evolve_state(
                    self.index,
                    &CallEvolve {
                        job_id: &job.job_id,
                        num_qubits: job.num_qubits,
                        amplitudes: &job.amplitudes,
                        operations: &job.operations,
                        context: &job.context,
                    },
                );
                call.leave(self.shared.control_timeout);
                report_changes(&self.shared.dispositions, &self.common.plugin(), "evolve_state");
                let answer = answer.map_err(|e| Error { text: self.common.masked(e.text), ..e });
                self.told(answer.and_then(|state| check(state, job.amplitudes.len())), &call)
            }
        };
        lock(&self.shared.in_flight).remove(&job.ticket);
        EvolveDone { answer, run_time: start.elapsed() }
    }
}

fn check(state: Vec<Amplitude>, len: usize) -> Result<Vec<Amplitude>, Error> {
    let contract = |text: String| Err(Error::new(ErrorCode::Contract, text).at(Stage::Run));
    if state.len() != len {
        return contract(format!("the executor returned {} amplitudes for {len}", state.len()));
    }
    let norm: f64 = state.iter().map(|a| a.re * a.re + a.im * a.im).sum();
    // Also when it is no number.
    if (norm - 1.0).abs() <= NORM_ERROR {
        return Ok(state);
    }
    contract(format!("the executor returned a state of norm {norm}, expected 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_state_is_refused() {
        let half = Amplitude { re: std::f64::consts::FRAC_1_SQRT_2, im: 0.0 };
        assert!(check(vec![half; 2], 2).is_ok());
        let says = |state, len| check(state, len).unwrap_err().text;
        assert_eq!(says(vec![half; 2], 4), "the executor returned 2 amplitudes for 4");
        assert!(says(vec![half; 4], 4).contains("norm 2"), "{}", says(vec![half; 4], 4));
        assert!(says(vec![Amplitude { re: f64::NAN, im: 0.0 }; 2], 2).contains("norm NaN"));
    }
}
