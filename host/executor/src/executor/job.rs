//! The executor's vocabulary: what a slot is given to do, and what it reports.
//!
//! Plain data. Everything else in the executor may use these types; they use nothing of the executor but the
//! context that a call shares with the plugin and the lease of the slot in which it runs.

use std::sync::Arc;
use std::time::Duration;

use coda_plugin_abi::{Amplitude, Error, ErrorCode, Operation, Outcome, Program, Stage};

use super::JobContext;
use super::active::ActivePlugin;
use super::lease::SlotLease;
use crate::model::{JobId, MessageId};

/// The plugin's answer to one job.
pub type Answer = Result<Outcome, Error>;

/// One job for a slot.
pub struct RunJob {
    /// The caller's own mark, given back with the reports; lower tickets run first.
    pub ticket: u64,
    /// The message of the stream that brought the job; `None` for a job that did not come from a stream.
    pub message_id: Option<MessageId>,
    pub job_id: JobId,
    pub program: Arc<Program>,
    pub shots: u32,
    /// Which run of the job this is, from 1 on.
    pub attempt: u32,
    pub context: Arc<JobContext>,
}

/// What the slot threads report, in order.
#[derive(Debug)]
pub enum SlotReport {
    /// A slot has taken these jobs: from here on only a cancel ends them.
    Started { slot: usize, tickets: Vec<u64> },
    /// The answer to one job. Each job gets one: a missing answer of the plugin is reported as an error.
    Answered { slot: usize, ticket: u64, answer: Answer, run_time: Duration },
    /// Another executor is in use. Every job that waited for a slot was dropped from the queue: it must be judged by
    /// the new device and submitted again with this generation.
    DeviceChanged { active: Arc<ActivePlugin>, generation: Generation },
}

/// Which executor a job was judged for; a reload begins a new one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Generation(pub(super) u64);

/// A state, what is to be done with it, and where the answer goes.
pub struct EvolveJob {
    /// The caller's own mark, unlike that of any other job in the executor.
    pub ticket: u64,
    pub job_id: JobId,
    /// At most the number of qubits in the executor's hooks.
    pub num_qubits: u16,
    /// `2^num_qubits` amplitudes of norm 1; bit `k` of an index is the value of qubit `k`.
    pub amplitudes: Vec<Amplitude>,
    pub operations: Arc<[Operation]>,
    pub context: Arc<JobContext>,
    /// Called on the slot's thread, which has the next call to do: it is to pass the outcome on and no more.
    pub answer: Box<dyn FnOnce(EvolveOutcome) + Send>,
}

/// How an evolution ended.
#[derive(Debug)]
pub struct EvolveOutcome {
    pub answer: Result<Vec<Amplitude>, Error>,
    pub run_time: Duration,
    /// The slot in which it ran. It stays leased until this is dropped, so that the caller can record the end of the
    /// execution before anyone else uses the slot.
    pub lease: SlotLease,
}

/// Why a call has no answer of the plugin.
#[derive(Debug, Clone, PartialEq)]
pub enum LostCall {
    /// The plugin's process was gone before the call reached it.
    NotEntered,
    /// The process ended during the call, and another call or job may be the cause. What happened, in case that there was
    /// no other.
    Suspect(Error),
    /// The executor is being stopped.
    Stopped,
}

/// The error of a job that a slot had taken when the executor was replaced, and that had not entered the plugin.
pub(super) fn replaced() -> Error {
    let text = "the executor was replaced by another one before the job could run; send the job again";
    Error::new(ErrorCode::Other, text).at(Stage::Run).retryable()
}

/// The error of a job that was cancelled before it entered the plugin.
pub(super) fn cancelled() -> Error {
    Error::new(ErrorCode::Cancelled, "cancelled before it ran").at(Stage::Run)
}

/// The error of a job that still waited when the executor stopped.
pub(super) fn stopped() -> Error {
    Error::new(ErrorCode::Other, "the executor stopped before the job ran").at(Stage::Run)
}

/// The error of an evolution that came while no call begins.
pub(super) fn held(why: &str) -> Error {
    Error::new(ErrorCode::Other, format!("nothing is begun on this device now: {why}"))
        .at(Stage::Run)
        .retryable()
}
