//! An executor that misbehaves on purpose, to test how the host takes it.
//!
//! The key `fault` of `device.yaml` chooses what goes wrong (`config.rs` lists everything); apart from that
//! each job measures zeros. Never use it as an example: `plugins/example-rust` is one.

mod answers;
mod config;
mod exact;
mod process;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write as _;
use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use coda_plugin_abi::{
    Amplitude, BatchRun, Cancel, Connectivity, Context, Device, Error, ErrorCode, Evolution, EvolveState,
    Executor, Job, LogLevel, Operation, Outcome, Stage, Target, export_executor,
};

use config::{Config, Fault, Payload, When};

export_executor! { kind: Test, vendor: "Coda", entries: { create_executor => create }, config_schema: schema }

/// What `CODA_FAULTY_SCHEMA` holds, right or wrong.
fn schema(_entry: &str) -> Option<String> {
    std::env::var("CODA_FAULTY_SCHEMA").ok()
}

/// Whether an executor was made in this process before.
static CREATED: AtomicBool = AtomicBool::new(false);

/// How soon a run notices `is_cancelled`, which no one rings a bell for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How long a run whose flag is set waits for its hook, which is called beside it a moment later.
const HOOK_TIME: Duration = Duration::from_secs(1);

pub struct Faulty {
    config: Config,
    target: Target,
    num_qubits: u16,
    /// Calls of the function that the fault is in.
    calls: AtomicU32,
    /// Running jobs, and which of them were cancelled.
    running: Mutex<BTreeMap<String, bool>>,
    bell: Condvar,
    /// Ids that were ever cancelled.
    cancelled: Mutex<BTreeSet<String>>,
    any_cancelled: AtomicBool,
    failed: AtomicBool,
    /// Runs of each job that were to fail for a moment.
    failures: Mutex<HashMap<String, u32>>,
    inside: AtomicU32,
}

/// # Errors
/// When the config is wrong, or asks for an error.
pub fn create(ctx: &Context<'_>) -> Result<Faulty, Error> {
    // A plugin that takes whatever it is given.
    let lenient = std::env::var_os("CODA_FAULTY_LENIENT").is_some();
    let config: Config = if lenient { ctx.config().unwrap_or_default() } else { ctx.config()? };
    if CREATED.swap(true, Ordering::AcqRel) && config.fault == Fault::CreateOnce {
        return Err(Error::new(ErrorCode::Hardware, "the control stack is in use, as asked for"));
    }
    if config.when == When::Load {
        let name = std::env::var("CODA_FAULTY_AT_LOAD").unwrap_or_default();
        if let Err(e) = Fault::from_name(&name) {
            let text =
                format!("`when: load` takes the fault from CODA_FAULTY_AT_LOAD, which is '{name}': {e}");
            return Err(Error::new(ErrorCode::Config, text));
        }
    }
    match config.fault {
        Fault::PanicCreate => explode(config.payload),
        Fault::ErrorCreate => {
            return Err(Error::new(ErrorCode::Calibration, "the device is out of calibration, as asked for"));
        }
        Fault::HangCreate => hang(),
        fault if config.when == When::Create => process::commit(fault),
        _ => {}
    }
    if let Some(path) = &config.read {
        let came =
            std::fs::read(path).map_or_else(|e| e.to_string(), |bytes| format!("{} bytes", bytes.len()));
        ctx.host().log(LogLevel::Info, format_args!("reading {}: {came}", path.display()));
    }
    let faulty = Faulty {
        config,
        target: Target::from_name(ctx.native_gate_set()).unwrap_or(Target::Cz),
        num_qubits: ctx.num_qubits().max(1),
        calls: AtomicU32::new(0),
        running: Mutex::default(),
        bell: Condvar::new(),
        cancelled: Mutex::default(),
        any_cancelled: AtomicBool::new(false),
        failed: AtomicBool::new(false),
        failures: Mutex::default(),
        inside: AtomicU32::new(0),
    };
    faulty.lives("create")?;
    Ok(faulty)
}

impl Executor for Faulty {
    fn device(&self) -> Device {
        self.commit_at(When::Device);
        // A calibration takes qubits away while the executor is in use.
        let calibrated = self.config.qubits_file.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        let num_qubits = calibrated.and_then(|text| text.trim().parse().ok()).unwrap_or(self.num_qubits);
        let mut device = Device::new("faulty", num_qubits, [self.target]);
        device.slots = self.config.slots.max(1);
        match self.config.fault {
            Fault::PanicDevice if self.due() => explode(self.config.payload),
            Fault::HangDevice if self.due() => hang(),
            Fault::DeviceChanges => {
                device.name = format!("faulty-{}", self.calls.fetch_add(1, Ordering::Relaxed))
            }
            Fault::DeviceZeroQubits => device.num_qubits = 0,
            Fault::DeviceTooManyQubits => device.num_qubits = 51,
            Fault::DeviceNoTargets => device.targets.clear(),
            Fault::DeviceZeroSlots => device.slots = 0,
            Fault::DeviceBadEdge => device.connectivity = Connectivity::Undirected(vec![(0, 60_000)]),
            _ => {}
        }
        device
    }

    fn run(&self, job: &Job<'_>) -> Result<Outcome, Error> {
        self.running().insert(job.id().to_string(), false);
        self.record("start", job.id())?;
        let beside = self.inside.fetch_add(1, Ordering::AcqRel) > 0;
        let mut answer = self.answer(job);
        if beside && self.config.fault == Fault::SlotsMix {
            answer = answer.map(|o| answers::spoil(o, Fault::NegativeCount));
        }
        self.inside.fetch_sub(1, Ordering::AcqRel);
        if answer.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        self.record("end", job.id())?;
        self.running().remove(job.id());
        answer
    }

    fn batch(&self) -> Option<&dyn BatchRun> {
        if self.config.fault.is_of_batch() || self.config.batch { Some(self) } else { None }
    }

    fn canceller(&self) -> Option<&dyn Cancel> {
        if self.config.fault == Fault::NoCancelHook { None } else { Some(self) }
    }

    fn evolver(&self) -> Option<&dyn EvolveState> {
        if self.config.evolve || self.config.fault == Fault::EvolveNothing { Some(self) } else { None }
    }

    fn shutdown(&self) {
        self.commit_at(When::Shutdown);
        match self.config.fault {
            Fault::PanicShutdown => explode(self.config.payload),
            Fault::HangShutdown => hang(),
            // A record that can't be written was told by the run before.
            _ => drop(self.lives("shutdown")),
        }
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.commit_at(When::Drop);
        match self.config.fault {
            Fault::PanicDrop => explode(self.config.payload),
            Fault::HangDrop => hang(),
            _ => {}
        }
        drop(self.lives("drop"));
    }
}

impl BatchRun for Faulty {
    fn batch_run(&self, jobs: &[Job<'_>]) -> Result<Vec<Result<Outcome, Error>>, Error> {
        jobs.iter().try_for_each(|job| self.record("start", job.id()))?;
        if self.config.when == When::Run && jobs.iter().any(|job| self.concerns(job)) && self.due() {
            process::commit(self.config.fault);
        }
        let mut answers: Vec<_> = jobs.iter().map(|job| self.counted(job, Fault::None)).collect();
        match self.config.fault {
            fault if !fault.is_of_batch() || !self.due() => {}
            Fault::BatchReversed => answers.reverse(),
            Fault::PanicBatch => explode(self.config.payload),
            Fault::BatchError => return Err(hardware("the batch failed as a whole, as asked for")),
            Fault::BatchTooFew => drop(answers.pop()),
            Fault::BatchTooMany => answers.push(Ok(Outcome::from_counts([(String::new(), 1)]))),
            Fault::BatchMixed => {
                for answer in answers.iter_mut().skip(1).step_by(2) {
                    *answer = Err(hardware("this job of the batch failed, as asked for"));
                }
            }
            _ => {}
        }
        Ok(answers)
    }
}

impl EvolveState for Faulty {
    fn max_qubits(&self) -> u16 {
        self.num_qubits
    }

    fn evolve_state(&self, state: &Evolution<'_>) -> Result<Vec<Amplitude>, Error> {
        if self.config.fault == Fault::EvolveNothing {
            return Ok(state.amplitudes().to_vec());
        }
        self.record("start", state.id())?;
        let end = Instant::now().checked_add(Duration::from_millis(self.config.run_ms));
        while end.is_none_or(|end| Instant::now() < end) && !state.host().is_cancelled() {
            std::thread::sleep(LOOK_EVERY.min(Duration::from_millis(self.config.run_ms)));
        }
        let mut amplitudes = state.amplitudes().to_vec();
        state.operations().iter().for_each(|operation| apply(&mut amplitudes, operation));
        self.record("end", state.id())?;
        Ok(amplitudes)
    }
}

/// The obvious way.
fn apply(state: &mut [Amplitude], operation: &Operation) {
    let times = |a: Amplitude, b: Amplitude| Amplitude {
        re: a.re * b.re - a.im * b.im,
        im: a.re * b.im + a.im * b.re,
    };
    let row = |a: Amplitude, x: Amplitude, b: Amplitude, y: Amplitude| {
        let (p, q) = (times(a, x), times(b, y));
        Amplitude { re: p.re + q.re, im: p.im + q.im }
    };
    let bit = 1usize << operation.target;
    let [a, b, c, d] = operation.matrix;
    for low in
        (0..state.len()).filter(|i| i & bit == 0 && *i as u64 & operation.controls == operation.controls)
    {
        let (x, y) = (state[low], state[low | bit]);
        state[low] = row(a, x, b, y);
        state[low | bit] = row(c, x, d, y);
    }
}

impl Cancel for Faulty {
    fn cancel(&self, job_id: &str) {
        self.commit_at(When::Cancel);
        self.any_cancelled.store(true, Ordering::Release);
        if self.config.life
            && let Err(error) = self.record("cancel", job_id)
        {
            // The hook has no answer; the test that looks for the line fails then.
            eprintln!("{}", error.text);
        }
        self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).insert(job_id.to_string());
        match self.config.fault {
            Fault::PanicCancel => explode(self.config.payload),
            Fault::HangCancel => hang(),
            Fault::Slow => return,
            _ => {}
        }
        if let Some(cancelled) = self.running().get_mut(job_id) {
            *cancelled = true;
        }
        self.bell.notify_all();
    }
}

impl Faulty {
    /// Whether this run of a job is one of those that fail.
    fn fails_for_a_moment(&self, job_id: &str) -> bool {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(job_id.to_string()).or_insert(0);
        *count += 1;
        self.config.failures == 0 || *count <= self.config.failures
    }

    fn answer(&self, job: &Job<'_>) -> Result<Outcome, Error> {
        let fault = self.config.fault;
        // Faults of other functions count the calls of those.
        let elsewhere = fault.is_of_batch() || matches!(fault, Fault::PanicDevice | Fault::HangDevice);
        let due = !elsewhere && self.concerns(job) && self.due();
        let behave = if due { fault } else { Fault::None };
        if self.config.when == When::Run {
            process::commit(behave);
        }
        let was_cancelled =
            || self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).contains(job.id());
        match behave {
            Fault::PanicWhenCancelled if job.is_cancelled() => explode(self.config.payload),
            Fault::CancelSticks if was_cancelled() => {
                return Err(hardware("this job was cancelled, as asked for"));
            }
            Fault::CancelAny if self.any_cancelled.load(Ordering::Acquire) => {
                return Err(hardware("something was cancelled, as asked for"));
            }
            Fault::ErrorSticks if self.failed.load(Ordering::Acquire) => {
                return Err(hardware("nothing works after an error, as asked for"));
            }
            Fault::PanicRun => explode(self.config.payload),
            Fault::ErrorRun => return Err(hardware("the run failed, as asked for")),
            Fault::ErrorRetryable if self.fails_for_a_moment(job.id()) => {
                let code = if self.config.calibration { ErrorCode::Calibration } else { ErrorCode::Hardware };
                return Err(Error::new(code, "the run failed for a moment, as asked for").retryable());
            }
            Fault::Hang => hang(),
            Fault::Gauges10k => (0..10_000).for_each(|n| job.host().gauge(&format!("gauge_{n}"), 1.0)),
            Fault::ResultAfterCancel => {
                self.wait(job, None);
                return Ok(zeros(job));
            }
            _ => {}
        }
        // Far away stands for a time beyond what the clock can count.
        let end = Instant::now().checked_add(Duration::from_millis(self.config.run_ms));
        if self.wait(job, end) {
            return Err(
                Error::new(ErrorCode::Cancelled, "the run ended because it was cancelled").at(Stage::Run)
            );
        }
        Ok(answers::spoil(self.counted(job, behave)?, behave))
    }

    /// Waits until the end, or for ever without one, or a cancel; whether it was the cancel.
    fn wait(&self, job: &Job<'_>, end: Option<Instant>) -> bool {
        let mut running = self.running();
        let mut flag_seen: Option<Instant> = None;
        loop {
            // So that the hook is called while the run is still there.
            let deaf = matches!(self.config.fault, Fault::Slow | Fault::HangCancel | Fault::PanicCancel);
            if job.is_cancelled() {
                flag_seen.get_or_insert_with(Instant::now);
            }
            let patience = if self.config.fault == Fault::NoCancelHook { Duration::ZERO } else { HOOK_TIME };
            let is_flagged = flag_seen.is_some_and(|at| at.elapsed() >= patience);
            if !deaf && (is_flagged || running.get(job.id()) == Some(&true)) {
                return true;
            }
            let left = end.map_or(LOOK_EVERY, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            let guard = self.bell.wait_timeout(running, left.min(LOOK_EVERY));
            running = guard.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What the circuit measures, with a fault of physics if it is to have one.
    fn counted(&self, job: &Job<'_>, fault: Fault) -> Result<Outcome, Error> {
        if !self.config.exact {
            return Ok(zeros(job));
        }
        Ok(Outcome::from_counts(exact::counts(job, fault, self.num_qubits)?).with_time_ms(1.0))
    }

    /// Commits a fault of the process that is to happen at this time.
    fn commit_at(&self, when: When) {
        if self.config.when == when {
            process::commit(self.config.fault);
        }
    }

    /// Whether the fault may happen in the run of this job.
    fn concerns(&self, job: &Job<'_>) -> bool {
        self.config.only.as_deref().is_none_or(|only| only == job.id())
    }

    /// Counts a call; whether the fault is due by now.
    fn due(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) >= self.config.after
    }

    /// An event of the executor's own life, if those are wanted.
    fn lives(&self, what: &str) -> Result<(), Error> {
        if self.config.life { self.record(what, &std::process::id().to_string()) } else { Ok(()) }
    }

    /// One line at the end of the record, in one write, so that a kill leaves no half of it.
    fn record(&self, what: &str, id: &str) -> Result<(), Error> {
        let Some(path) = &self.config.record else { return Ok(()) };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        let line = if self.config.clock { format!("{what} {id} {now}\n") } else { format!("{what} {id}\n") };
        let written = std::fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        written.map_err(|e| hardware(&format!("the record {} can't be written: {e}", path.display())))
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn zeros(job: &Job<'_>) -> Outcome {
    let key = "0".repeat(job.program().measurements().len());
    Outcome::from_counts([(key, i64::from(job.shots()))]).with_time_ms(1.0)
}

fn hardware(text: &str) -> Error {
    Error::new(ErrorCode::Hardware, text)
}

struct DropBomb;

impl Drop for DropBomb {
    fn drop(&mut self) {
        panic_any("the payload of a panic panicked in its drop");
    }
}

fn explode(payload: Payload) -> ! {
    match payload {
        Payload::Str => panic_any("a panic that was asked for"),
        Payload::String => panic_any(String::from("a panic that was asked for")),
        Payload::Other => panic_any(7u8),
        Payload::DropBomb => panic_any(DropBomb),
    }
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}
