//! An executor linked into a test, driven through the same glue that the host calls.
//!
//! Contract: plays the host's part of the interface and nothing else: lends jobs, copies answers, keeps log
//! lines and progress for the test to look at. It trusts the executor more than the host does, so use it in
//! tests only.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Runner;
use crate::author::{Context, Executor, glue};
use crate::device::{Connectivity, Device, Hooks};
use crate::host_services::LogLevel;
use crate::ir::{Program, Target, slice};
use crate::outcome::{Error, ErrorCode, Outcome, Stage};
use crate::raw::{
    self, Amplitude, Operation, RawCreate, RawDevice, RawError, RawEvolution, RawHost, RawJob, RawOutcome,
    RawReply, RawStr, WHOLE_CALL,
};

/// What the factory is given.
#[derive(Debug, Clone)]
pub struct Setup {
    pub config_path: String,
    pub config_text: String,
    pub native_gate_set: String,
    pub num_qubits: u16,
}

impl Setup {
    /// A device config and what the QPU is registered with.
    pub fn new(config_text: impl Into<String>, native_gate_set: &str, num_qubits: u16) -> Setup {
        Setup {
            config_path: "device.yaml".into(),
            config_text: config_text.into(),
            native_gate_set: native_gate_set.into(),
            num_qubits,
        }
    }
}

/// What a job's host services were told.
#[derive(Debug, Default)]
struct Notes {
    cancelled: AtomicBool,
    lines: Mutex<Vec<(LogLevel, String)>>,
    progress: Mutex<Vec<(u64, u64)>>,
    gauges: Mutex<Vec<(String, f64)>>,
}

/// A running executor.
pub struct Linked {
    this: *mut c_void,
    /// Lives as long as the executor, which holds pointers to it.
    _host: Box<RawHost>,
    notes: Arc<Notes>,
    jobs: Mutex<HashMap<String, Arc<Notes>>>,
    next_job: u64,
}

// SAFETY: executors are Send and Sync by their trait, the rest is only shared behind locks.
unsafe impl Send for Linked {}
// SAFETY: as above.
unsafe impl Sync for Linked {}

impl Linked {
    /// Calls a factory, for instance `|ctx| Ok(Box::new(my_crate::create(ctx)?))`.
    ///
    /// # Errors
    /// The factory's.
    pub fn create(
        factory: fn(&Context<'_>) -> Result<Box<dyn Executor>, Error>,
        setup: &Setup,
    ) -> Result<Linked, Error> {
        let notes = Arc::new(Notes::default());
        let host = Box::new(host_of(&notes));
        let request = RawCreate {
            size: size_of::<RawCreate>(),
            entry: RawStr::new("linked"),
            config_path: RawStr::new(&setup.config_path),
            config_text: RawStr::new(&setup.config_text),
            native_gate_set: RawStr::new(&setup.native_gate_set),
            num_qubits: setup.num_qubits.into(),
            reserved: 0,
            host: &*host,
        };
        let mut answers = Answers::default();
        let this = glue::create(&[("linked", factory)], &request, &answers.reply());
        if this.is_null() {
            return Err(answers.whole_error());
        }
        Ok(Linked { this, _host: host, notes, jobs: Mutex::default(), next_job: 0 })
    }

    /// # Errors
    /// The executor's.
    pub fn device(&self) -> Result<(Device, Hooks), Error> {
        let mut answers = Answers::default();
        glue::device(self.this, &answers.reply());
        answers.device.take().ok_or_else(|| answers.whole_error())
    }

    /// # Errors
    /// The executor's.
    pub fn run(&self, job_id: &str, program: &Program, shots: u32) -> Result<Outcome, Error> {
        let notes = self.enter(job_id);
        let (host, program) = (host_of(&notes), program.raw());
        let mut answers = Answers::default();
        glue::run(self.this, &job_of(job_id, &program, shots, &host), &answers.reply());
        self.forget(job_id);
        match answers.jobs.remove(&0) {
            Some(answer) => answer,
            None => Err(answers.whole_error()),
        }
    }

    /// One answer per job, in order.
    ///
    /// # Errors
    /// The executor's for the whole call, or one about a missing answer.
    pub fn batch_run(&self, jobs: &[(&str, &Program, u32)]) -> Result<Vec<Result<Outcome, Error>>, Error> {
        let notes: Vec<_> = jobs.iter().map(|(id, _, _)| self.enter(id)).collect();
        let hosts: Vec<RawHost> = notes.iter().map(host_of).collect();
        let programs: Vec<_> = jobs.iter().map(|(_, program, _)| program.raw()).collect();
        let raw: Vec<RawJob> = (jobs.iter().zip(&programs).zip(&hosts))
            .map(|(((id, _, shots), program), host)| job_of(id, program, *shots, host))
            .collect();
        let mut answers = Answers::default();
        glue::batch_run(self.this, raw.as_ptr(), raw.len(), &answers.reply());
        for (id, _, _) in jobs {
            self.forget(id);
        }
        if answers.whole.is_some() {
            return Err(answers.whole_error());
        }
        let (count, asked) = (answers.jobs.len(), jobs.len());
        let wrong = || contract(format!("{count} answers for {asked} jobs"));
        if count != asked {
            return Err(wrong());
        }
        (0..asked).map(|i| answers.jobs.remove(&i).ok_or_else(wrong)).collect()
    }

    /// Applies operations to a state of `num_qubits` qubits.
    ///
    /// # Errors
    /// The executor's.
    pub fn evolve_state(
        &self,
        job_id: &str,
        num_qubits: u16,
        amplitudes: &[Amplitude],
        operations: &[Operation],
    ) -> Result<Vec<Amplitude>, Error> {
        let notes = self.enter(job_id);
        let host = host_of(&notes);
        let state = RawEvolution {
            size: size_of::<RawEvolution>(),
            job_id: RawStr::new(job_id),
            num_qubits: num_qubits.into(),
            reserved: 0,
            amplitudes: amplitudes.as_ptr(),
            amplitudes_len: amplitudes.len(),
            operations: operations.as_ptr(),
            operations_len: operations.len(),
            host: &host,
        };
        let mut answers = Answers::default();
        glue::evolve_state(self.this, &state, &answers.reply());
        self.forget(job_id);
        answers.amplitudes.take().ok_or_else(|| answers.whole_error())
    }

    /// Calls the cancel hook.
    ///
    /// # Errors
    /// The executor's panic.
    pub fn cancel(&self, job_id: &str) -> Result<(), Error> {
        let mut answers = Answers::default();
        glue::cancel(self.this, &RawStr::new(job_id), &answers.reply());
        if answers.whole.is_some() { Err(answers.whole_error()) } else { Ok(()) }
    }

    /// Makes `is_cancelled` true for a running job, without calling the hook. Whether it was running.
    pub fn mark_cancelled(&self, job_id: &str) -> bool {
        let jobs = lock(&self.jobs);
        let notes = jobs.get(job_id);
        if let Some(notes) = notes {
            notes.cancelled.store(true, Ordering::Release);
        }
        notes.is_some()
    }

    /// Log lines and progress of the running job, or with `None` of the executor itself.
    pub fn log_lines(&self, job_id: Option<&str>) -> Vec<(LogLevel, String)> {
        self.notes_of(job_id).map(|n| lock(&n.lines).clone()).unwrap_or_default()
    }

    /// Progress reports `(done, total)` of the running job.
    pub fn progress(&self, job_id: &str) -> Vec<(u64, u64)> {
        self.notes_of(Some(job_id)).map(|n| lock(&n.progress).clone()).unwrap_or_default()
    }

    /// Gauges that the running job, or with `None` the executor itself, has set.
    pub fn gauges(&self, job_id: Option<&str>) -> Vec<(String, f64)> {
        self.notes_of(job_id).map(|n| lock(&n.gauges).clone()).unwrap_or_default()
    }

    /// Calls `shutdown`.
    ///
    /// # Errors
    /// The executor's panic.
    pub fn shutdown(&self) -> Result<(), Error> {
        let mut answers = Answers::default();
        glue::shutdown(self.this, &answers.reply());
        if answers.whole.is_some() { Err(answers.whole_error()) } else { Ok(()) }
    }

    /// Drops the executor, which `drop` does too, and tells of a panic.
    ///
    /// # Errors
    /// The panic.
    pub fn destroy(mut self) -> Result<(), Error> {
        self.free()
    }

    fn free(&mut self) -> Result<(), Error> {
        let this = std::mem::replace(&mut self.this, std::ptr::null_mut());
        if this.is_null() {
            return Ok(());
        }
        let mut answers = Answers::default();
        glue::destroy(this, &answers.reply());
        if answers.whole.is_some() { Err(answers.whole_error()) } else { Ok(()) }
    }

    fn enter(&self, job_id: &str) -> Arc<Notes> {
        let notes = Arc::new(Notes::default());
        lock(&self.jobs).insert(job_id.to_string(), Arc::clone(&notes));
        notes
    }

    fn forget(&self, job_id: &str) {
        lock(&self.jobs).remove(job_id);
    }

    fn notes_of(&self, job_id: Option<&str>) -> Option<Arc<Notes>> {
        match job_id {
            None => Some(Arc::clone(&self.notes)),
            Some(id) => lock(&self.jobs).get(id).cloned(),
        }
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        // A panic of the executor's drop was caught; `destroy` is for those who want to know.
        drop(self.free());
    }
}

impl Runner for Linked {
    fn run(&mut self, program: &Program, shots: u32) -> Result<Outcome, Error> {
        self.next_job += 1;
        Linked::run(self, &format!("case-{}", self.next_job), program, shots)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn contract(text: String) -> Error {
    Error::new(ErrorCode::Contract, text)
}

fn job_of(id: &str, program: &raw::RawProgram, shots: u32, host: &RawHost) -> RawJob {
    RawJob { size: size_of::<RawJob>(), job_id: RawStr::new(id), program, shots, reserved: 0, host }
}

fn host_of(notes: &Arc<Notes>) -> RawHost {
    RawHost {
        size: size_of::<RawHost>(),
        ctx: Arc::as_ptr(notes).cast_mut().cast(),
        log_enabled,
        log,
        progress,
        is_cancelled,
        gauge,
    }
}

/// # Safety
/// `ctx` must come from [`host_of`], of notes that are still alive.
unsafe fn notes<'a>(ctx: *mut c_void) -> &'a Notes {
    // SAFETY: by this function's contract.
    unsafe { &*ctx.cast::<Notes>().cast_const() }
}

extern "C" fn log_enabled(_: *mut c_void, _: u32) -> u32 {
    1
}

extern "C" fn log(ctx: *mut c_void, level: u32, text: RawStr) {
    // SAFETY: the executor passes back the context of a live host, and text that it lends.
    let (notes, bytes) = unsafe { (notes(ctx), text.bytes()) };
    lock(&notes.lines).push((LogLevel::from_code(level), String::from_utf8_lossy(bytes).into_owned()));
}

extern "C" fn progress(ctx: *mut c_void, done: u64, total: u64) {
    // SAFETY: as in `log`.
    lock(&unsafe { notes(ctx) }.progress).push((done, total));
}

extern "C" fn gauge(ctx: *mut c_void, name: RawStr, value: f64) {
    // SAFETY: as in `log`.
    let (notes, name) = unsafe { (notes(ctx), owned(name)) };
    lock(&notes.gauges).push((name, value));
}

extern "C" fn is_cancelled(ctx: *mut c_void) -> u32 {
    // SAFETY: as in `log`.
    unsafe { notes(ctx) }.cancelled.load(Ordering::Acquire).into()
}

/// What a call replied.
#[derive(Default)]
struct Answers {
    jobs: HashMap<usize, Result<Outcome, Error>>,
    whole: Option<Error>,
    device: Option<(Device, Hooks)>,
    amplitudes: Option<Vec<Amplitude>>,
}

impl Answers {
    fn reply(&mut self) -> RawReply {
        let ctx: *mut Answers = self;
        RawReply { size: size_of::<RawReply>(), ctx: ctx.cast(), outcome, error, device, amplitudes, schema }
    }

    fn whole_error(&mut self) -> Error {
        self.whole.take().unwrap_or_else(|| contract("the call returned without an answer".into()))
    }
}

/// # Safety
/// `ctx` must come from [`Answers::reply`], during the call that it was made for.
unsafe fn answers<'a>(ctx: *mut c_void) -> &'a mut Answers {
    // SAFETY: by this function's contract; the glue replies from one thread.
    unsafe { &mut *ctx.cast::<Answers>() }
}

/// # Safety
/// As for [`RawStr::bytes`].
unsafe fn owned(text: RawStr) -> String {
    // SAFETY: by this function's contract.
    String::from_utf8_lossy(unsafe { text.bytes() }).into_owned()
}

extern "C" fn outcome(ctx: *mut c_void, index: usize, raw: *const RawOutcome) {
    // SAFETY: the glue lends a whole outcome for the length of this call.
    let (answers, raw) = unsafe { (answers(ctx), &*raw) };
    // SAFETY: as above.
    let counts = unsafe { slice(raw.counts, raw.counts_len) };
    let outcome = Outcome {
        // SAFETY: as above.
        counts: counts.iter().map(|c| (unsafe { owned(c.bits) }, c.count)).collect(),
        execution_time_ms: (raw.has_execution_time != 0).then_some(raw.execution_time_ms),
        shots_completed: (raw.has_shots_completed != 0).then_some(raw.shots_completed),
    };
    if answers.jobs.insert(index, Ok(outcome)).is_some() {
        answers.whole = Some(contract(format!("two answers for job {index}")));
    }
}

extern "C" fn error(ctx: *mut c_void, index: usize, raw: *const RawError) {
    // SAFETY: the glue lends a whole error for the length of this call.
    let (answers, raw) = unsafe { (answers(ctx), &*raw) };
    let error = Error {
        code: ErrorCode::from_code(raw.code),
        stage: Stage::from_code(raw.stage),
        retryable: raw.retryable != 0,
        // SAFETY: as above.
        text: unsafe { owned(raw.text) },
    };
    if index == WHOLE_CALL {
        answers.whole = Some(error);
    } else if answers.jobs.insert(index, Err(error)).is_some() {
        answers.whole = Some(contract(format!("two answers for job {index}")));
    }
}

extern "C" fn device(ctx: *mut c_void, raw: *const RawDevice) {
    // SAFETY: the glue lends a whole description for the length of this call.
    let (answers, raw) = unsafe { (answers(ctx), &*raw) };
    // SAFETY: as above.
    let (targets, edges) = unsafe { (slice(raw.targets, raw.targets_len), slice(raw.edges, raw.edges_len)) };
    let edges: Vec<(u16, u16)> = edges.iter().map(|e| (e.a, e.b)).collect();
    let narrow = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
    let device = Device {
        // SAFETY: as above.
        name: unsafe { owned(raw.name) },
        num_qubits: narrow(raw.num_qubits),
        targets: targets.iter().filter_map(|t| Target::from_code(*t)).collect(),
        connectivity: match raw.connectivity {
            raw::connectivity::UNDIRECTED => Connectivity::Undirected(edges),
            raw::connectivity::DIRECTED => Connectivity::Directed(edges),
            _ => Connectivity::Unknown,
        },
        slots: narrow(raw.slots),
        max_shots: (raw.max_shots > 0).then_some(raw.max_shots),
    };
    let has = |bit| raw.hooks & bit != 0;
    let hooks = Hooks {
        batch_run: has(raw::hook::BATCH_RUN),
        cancel: has(raw::hook::CANCEL),
        evolve_qubits: has(raw::hook::EVOLVE_STATE).then(|| narrow(raw.evolve_qubits)),
    };
    answers.device = Some((device, hooks));
}

extern "C" fn amplitudes(ctx: *mut c_void, ptr: *const Amplitude, len: usize) {
    // SAFETY: the glue lends `len` amplitudes for the length of this call.
    let (answers, amplitudes) = unsafe { (answers(ctx), slice(ptr, len)) };
    answers.amplitudes = Some(amplitudes.to_vec());
}

/// No schema is asked for here.
extern "C" fn schema(_: *mut c_void, _: RawStr) {}
