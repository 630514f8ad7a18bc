//! The unsafe edge: opening a library, calling its functions, copying what it lends.
//!
//! ```text
//! library   dlopen, both bindings, one table of functions; create
//! services  what the host lends: log, progress, gauges, the cancel flag
//! reply     copies of what a call replied
//! handles   numbers for what is lent, and `cells`, its addresses: neither comes to mean another call
//! ```
//!
//! Everything here returns owned values that are merely copied, not believed: text may be anything, counts
//! may be wrong; `results/outcome` judges them. Host callbacks never unwind into the plugin.

mod cells;
mod handles;
mod library;
mod reply;
mod services;

use std::ffi::c_void;
use std::sync::Arc;

use coda_plugin_abi::raw::{RawEvolution, RawJob, RawProgram, RawStr};
use coda_plugin_abi::{Amplitude, Error, ErrorCode, Operation, Outcome, Program, Stage};

use cells::{Cells, Lent};
use library::FunctionTable;
use reply::{OpenReply, Replies};
use services::{ENDED_HOST, LentHost};

pub use library::{CreateRequest, Library, LibraryOpenError};
pub use reply::DeviceReply;
pub use services::{Common, JobContext, Sink};

/// What became of one job of a call: `None` when the plugin gave no answer for it.
pub type CallAnswer = Option<Result<Outcome, Error>>;

/// A job as `run` takes it.
pub struct CallJob<'a> {
    pub job_id: &'a str,
    pub program: &'a Program,
    pub shots: u32,
    pub context: &'a Arc<JobContext>,
}

/// A state as `evolve_state` takes it.
pub struct CallEvolve<'a> {
    pub job_id: &'a str,
    pub num_qubits: u16,
    /// `2^num_qubits`.
    pub amplitudes: &'a [Amplitude],
    pub operations: &'a [Operation],
    pub context: &'a Arc<JobContext>,
}

fn absent(hook: &str) -> Error {
    Error::new(ErrorCode::Contract, format!("this executor has no {hook}"))
}

fn several_answers(answers: usize) -> Error {
    let text = format!("the executor gave {answers} answers to one run");
    Error::new(ErrorCode::Contract, text).at(Stage::Run)
}

/// The jobs that a plugin is lent. What is left of one after its call is an empty circuit.
static JOB_CELLS: Cells<RawJob> = Cells::new(
    RawJob {
        size: size_of::<RawJob>(),
        job_id: NO_TEXT,
        program: &raw const NO_PROGRAM.0,
        shots: 0,
        reserved: 0,
        host: &raw const ENDED_HOST.0,
    },
    |job| RawJob { job_id: NO_TEXT, program: &raw const NO_PROGRAM.0, ..*job },
);

/// The states that a plugin is lent. What is left of one after its call is empty.
static EVOLUTION_CELLS: Cells<RawEvolution> = Cells::new(
    RawEvolution {
        size: size_of::<RawEvolution>(),
        job_id: NO_TEXT,
        num_qubits: 0,
        reserved: 0,
        amplitudes: std::ptr::null(),
        amplitudes_len: 0,
        operations: std::ptr::null(),
        operations_len: 0,
        host: &raw const ENDED_HOST.0,
    },
    |state| RawEvolution { job_id: NO_TEXT, num_qubits: 0, amplitudes_len: 0, operations_len: 0, ..*state },
);

const NO_TEXT: RawStr = RawStr { ptr: std::ptr::null(), len: 0 };

struct EmptyProgram(RawProgram);

// SAFETY: it is constant, and its pointers are null.
unsafe impl Sync for EmptyProgram {}

static NO_PROGRAM: EmptyProgram = EmptyProgram(RawProgram {
    size: size_of::<RawProgram>(),
    target: 0,
    num_qubits: 0,
    optimization_level: 0,
    gates: std::ptr::null(),
    gates_len: 0,
    measurements: std::ptr::null(),
    measurements_len: 0,
    source_hash: NO_TEXT,
    compiled_at: NO_TEXT,
    compiler_version: NO_TEXT,
});

/// The answers to a batch call.
#[derive(Debug)]
pub struct BatchAnswers {
    /// One for each job of the call.
    pub answers: Vec<CallAnswer>,
    /// The failure of the whole call.
    pub whole: Option<Error>,
    /// Answers beyond the jobs of the call.
    pub surplus: usize,
}

/// A live executor. Which function may be called on which thread: `plugin-abi/src/module.rs`.
#[derive(Clone, Copy)]
pub struct Instance {
    table: FunctionTable,
    this: *mut c_void,
}

// SAFETY: the interface demands that an executor can be used from the threads that `module` names; the pool
// keeps to them, and destroys it only after every call has returned.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

impl Instance {
    fn new(table: FunctionTable, this: *mut c_void) -> Instance {
        Instance { table, this }
    }

    /// Runs one job, for as long as it takes.
    pub fn run(&self, job: &CallJob<'_>) -> CallAnswer {
        let mut batch = self.call(std::slice::from_ref(job), |raw, reply| {
            // SAFETY: the executor lives, job and reply are lent for the length of the call.
            unsafe { (self.table.run)(self.this, raw.as_ptr(), reply.as_ptr()) };
        });
        match batch.answers.iter().flatten().count() + batch.surplus {
            0 => batch.whole.map(Err),
            1 if batch.surplus == 0 => batch.answers.pop().flatten(),
            answers => Some(Err(several_answers(answers))),
        }
    }

    /// Runs several jobs in one call.
    pub fn batch_run(&self, jobs: &[CallJob<'_>]) -> BatchAnswers {
        self.call(jobs, |raw, reply| match self.table.batch_run {
            // SAFETY: as in `run`, for all jobs.
            Some(hook) => unsafe { hook(self.this, raw.as_ptr(), raw.len(), reply.as_ptr()) },
            None => reply.fail(absent("batch_run")),
        })
    }

    fn call(&self, jobs: &[CallJob<'_>], enter: impl FnOnce(&Lent<RawJob>, &OpenReply<'_>)) -> BatchAnswers {
        let programs: Vec<_> = jobs.iter().map(|j| j.program.raw()).collect();
        let hosts: Vec<LentHost> = jobs.iter().map(|j| j.context.lend()).collect();
        let raw: Vec<RawJob> = jobs
            .iter()
            .zip(programs.iter().zip(&hosts))
            .map(|(job, (program, host))| RawJob {
                size: size_of::<RawJob>(),
                job_id: RawStr::new(job.job_id),
                program,
                shots: job.shots,
                reserved: 0,
                host: host.as_ptr(),
            })
            .collect();
        let raw = JOB_CELLS.lend(&raw);
        let reply = OpenReply::new(jobs.len(), jobs.first().map(|job| job.context));
        enter(&raw, &reply);
        let Replies { answers, whole, mut surplus, .. } = reply.close();
        // An error of the whole call says that no job ran, which an answer contradicts.
        let contradicted = answers.iter().flatten().next().is_some() || surplus > 0;
        if contradicted && whole.is_some() {
            surplus += 1;
        }
        let whole = whole.filter(|_| !contradicted);
        BatchAnswers { answers, whole, surplus }
    }

    /// Applies operations to a state; the answer is as long as the state.
    ///
    /// # Errors
    /// When the plugin has no such hook, refuses, or answers with something that can't be a state.
    pub fn evolve_state(&self, call: &CallEvolve<'_>) -> Result<Vec<Amplitude>, Error> {
        let hook = self.table.evolve_state.ok_or_else(|| absent("evolve_state"))?;
        let host = call.context.lend();
        let raw = EVOLUTION_CELLS.lend(&[RawEvolution {
            size: size_of::<RawEvolution>(),
            job_id: RawStr::new(call.job_id),
            num_qubits: call.num_qubits.into(),
            reserved: 0,
            amplitudes: call.amplitudes.as_ptr(),
            amplitudes_len: call.amplitudes.len(),
            operations: call.operations.as_ptr(),
            operations_len: call.operations.len(),
            host: host.as_ptr(),
        }]);
        let reply = OpenReply::new(0, Some(call.context));
        // SAFETY: the executor lives, state and reply are lent for the length of the call.
        unsafe { hook(self.this, raw.as_ptr(), reply.as_ptr()) };
        let replies = reply.close();
        match (replies.count(), replies.amplitudes, replies.whole) {
            (1, Some(amplitudes), None) => Ok(amplitudes),
            (1, None, Some(error)) => Err(error),
            (0, ..) => {
                let text = "the executor returned neither a state nor an error";
                Err(Error::new(ErrorCode::Contract, text).at(Stage::Run))
            }
            (answers, ..) => Err(several_answers(answers)),
        }
    }

    /// Asks for the device's description.
    ///
    /// # Errors
    /// When the plugin replied an error, or nothing.
    pub fn device(&self) -> Result<DeviceReply, Error> {
        let reply = OpenReply::new(0, None);
        // SAFETY: the executor lives, the reply is lent for the length of the call.
        unsafe { (self.table.device)(self.this, reply.as_ptr()) };
        let replies = reply.close();
        match (replies.device, replies.whole) {
            (_, Some(error)) => Err(error),
            (Some(device), None) => Ok(device),
            (None, None) => {
                Err(Error::new(ErrorCode::Contract, "the plugin did not describe its device")
                    .at(Stage::Describe))
            }
        }
    }

    /// Calls the cancel hook; an error is what the hook replied (a panic, say).
    pub fn cancel(&self, job_id: &str) -> Option<Error> {
        let hook = self.table.cancel?;
        let reply = OpenReply::new(0, None);
        // SAFETY: the executor lives, id and reply are lent for the length of the call.
        unsafe { hook(self.this, &RawStr::new(job_id), reply.as_ptr()) };
        reply.close().whole
    }

    /// Brings the device to rest.
    pub fn shutdown(&self) -> Option<Error> {
        let hook = self.table.shutdown?;
        let reply = OpenReply::new(0, None);
        // SAFETY: the executor lives, the reply is lent for the length of the call.
        unsafe { hook(self.this, reply.as_ptr()) };
        reply.close().whole
    }

    /// Frees the executor. For thread 0, after every other call has returned; no copy may be used afterwards.
    pub fn destroy(self) -> Option<Error> {
        let reply = OpenReply::new(0, None);
        // SAFETY: the executor lives and is given up with this call; the reply is lent for its length.
        unsafe { (self.table.destroy)(self.this, reply.as_ptr()) };
        reply.close().whole
    }
}
