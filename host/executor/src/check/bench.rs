//! Loads and drives the plugin under check, in the child: by the same loader and the same calls as the host.
//!
//! The calling thread plays slot 0; cases that need more threads start them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use coda_plugin_abi::conformance::{Case, Failure, Runner, Suite};
use coda_plugin_abi::{Device, Error, ErrorCode, Gate, Hooks, Outcome, Program, Target};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::{CheckOptions, PythonCheck, Stop, failed, skipped};
use crate::error::{Explain, Failure as Shown};
use crate::executor::account;
use crate::executor::ffi::{CallJob, Common, CreateRequest};
use crate::executor::loader::{self, Loaded};
use crate::executor::locate::{FactorySource, Located, LocatedLibrary};
use crate::executor::{DirectExecutor, JobContext, check_device, inspect_python};
use crate::executor::{RunLimits, StartRequest, WhenStuck};
use crate::sys::Dispositions;

pub struct Bench {
    pub options: CheckOptions,
}

/// A created executor.
pub struct Live {
    pub instance: DirectExecutor,
    pub device: Device,
    pub hooks: Hooks,
    next: AtomicU64,
}

/// What the executor of Python code may write; it is shown when a case fails.
const LOG_BYTES_PER_SECOND: u64 = 1 << 20;

/// Expected of a factory with the device config of the check.
pub const AN_EXECUTOR: &str = "an executor";

impl Bench {
    pub fn new(options: CheckOptions) -> Bench {
        Bench { options }
    }

    /// Loads the library under check; a case that needs one does not apply to Python code.
    pub fn load(&self) -> Result<Loaded, Stop> {
        if self.options.python.is_some() {
            return skipped("Python code runs in a separate process, and is not a library");
        }
        let located = LocatedLibrary {
            path: self.options.library.clone(),
            entry: self.options.entry.clone(),
            source: FactorySource::Environment,
            pinned: None,
        };
        loader::load(&located, &self.options.state_dir).or_else(|e| {
            let shown = Shown::from(e);
            failed("a library that loads", shown.line(), shown.hint.unwrap_or_default())
        })
    }

    /// Creates an executor with the device config of the check.
    pub fn start(&self) -> Result<Live, Stop> {
        match &self.options.python {
            Some(python) => self.start_python(python),
            None => self.start_from(&self.load()?),
        }
    }

    /// Starts the interpreter of the Python code under check, and has it look for what it needs.
    pub fn inspect(&self, python: &PythonCheck) -> Result<String, Stop> {
        let located = python.located();
        let inspected = inspect_python(&located, &self.python_request(python)?, true);
        let facts = inspected.or_else(|e| refused("an interpreter with the executor's package", e))?;
        let hooks = facts.hooks.clone().unwrap_or_default();
        let (package, node, python) = (facts.name(), facts.node(), facts.python);
        Ok(format!("{package}, {node}, Python {python}, optional methods: {hooks}"))
    }

    fn start_python(&self, python: &PythonCheck) -> Result<Live, Stop> {
        let started = DirectExecutor::start_python(&python.located(), &self.python_request(python)?);
        let (instance, _) = started.or_else(|e| refused(AN_EXECUTOR, e))?;
        describe(instance)
    }

    fn python_request(&self, python: &PythonCheck) -> Result<StartRequest, Stop> {
        let runs_as = account::resolve(true, python.user.as_deref())
            .or_else(|e| refused("an account for the executor's process", e))?;
        let is_config = !self.options.config_path.as_os_str().is_empty();
        Ok(StartRequest {
            located: Located::Python(python.located()),
            state_dir: self.options.state_dir.clone(),
            config_path: is_config.then(|| self.options.config_path.clone()),
            config_text: self.options.config_text.clone(),
            native_gate_set: self.options.native_gate_set.clone(),
            num_qubits: self.options.num_qubits,
            control_timeout: self.options.time_limit,
            device_refresh: self.options.time_limit,
            start_timeout: self.options.time_limit,
            log_bytes_per_second: LOG_BYTES_PER_SECOND,
            batch_max: 1,
            dispositions: Arc::new(Dispositions::capture()),
            isolation: None,
            capabilities: account::kept_capabilities(&python.capabilities, &runs_as)
                .or_else(|e| refused("capabilities that can be kept", e))?,
            runs_as,
            limits: RunLimits { run: None, grace: self.options.time_limit, when_stuck: WhenStuck::Report },
            python: python.request.clone(),
        })
    }

    pub fn start_from(&self, loaded: &Loaded) -> Result<Live, Stop> {
        let instance = self.create(loaded, &self.options.config_text).or_else(|e| {
            failed(
                AN_EXECUTOR,
                format!("the error '{}' ({})", e.text, e.code),
                "create it from this device config",
            )
        })?;
        describe(instance)
    }

    pub fn create(&self, loaded: &Loaded, config: &str) -> Result<DirectExecutor, Error> {
        let created = loaded.library.create(&CreateRequest {
            common: Arc::new(Common::new(loaded.descriptor.name.as_str().into())),
            entry: self.options.entry.clone(),
            config_path: match self.options.config_path.as_os_str().is_empty() {
                true => PathBuf::new(),
                false => self.options.config_path.clone(),
            },
            config_text: config.into(),
            native_gate_set: self.options.native_gate_set.clone(),
            num_qubits: self.options.num_qubits,
        });
        created.map(DirectExecutor::from)
    }

    /// Random numbers of this check, other ones for each case.
    pub fn random(&self, case: &str) -> StdRng {
        let mix = |seed: u64, byte: u8| (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        StdRng::seed_from_u64(case.bytes().fold(self.options.seed, mix))
    }

    /// So many shots, or less for a device where a run is dear.
    pub fn shots(&self, live: &Live, wanted: u32) -> u32 {
        let quick = if self.options.quick { wanted.min(1_000) } else { wanted };
        live.device.max_shots.map_or(quick, |most| quick.min(most)).max(1)
    }

    /// Checks cases one by one; a failure names the first three.
    pub fn check_all(&self, live: &Live, cases: &[Case]) -> Result<usize, Stop> {
        let suite = Suite { cases: Vec::new(), skipped: Vec::new(), allowed_error: self.options.tolerance };
        let mut found: Vec<(String, Failure)> = Vec::new();
        for case in cases {
            let mut case = case.clone();
            case.shots = self.shots(live, case.shots);
            if let Err(failure) = suite.check(&case, &mut &*live) {
                found.push((case.name, failure));
            }
        }
        let Some((name, first)) = found.first() else { return Ok(cases.len()) };
        let more: Vec<&str> = found.iter().skip(1).take(2).map(|f| f.0.as_str()).collect();
        let more = match found.len() {
            1 => String::new(),
            n => format!(" (and {} more of {}, as {})", n - 1, cases.len(), more.join(", ")),
        };
        failed(
            format!("in '{name}': {}", first.expected),
            format!("{}{more}", first.got),
            first.change.clone(),
        )
    }
}

/// An executor that is ready for runs.
fn describe(instance: DirectExecutor) -> Result<Live, Stop> {
    let described = instance.device().or_else(|e| {
        failed("a description of the device", format!("the error '{}'", e.text), "answer `device`")
    })?;
    let (device, hooks) = check_device(described)
        .or_else(|what| failed("a device that can be", what, "correct what `device` replies"))?;
    Ok(Live { instance, device, hooks, next: AtomicU64::new(0) })
}

fn refused<T>(expected: &str, error: impl Explain) -> Result<T, Stop> {
    let shown = Shown::from(error);
    failed(expected, shown.line(), shown.hint.unwrap_or_default())
}

impl Live {
    pub fn job_id(&self) -> String {
        format!("check-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// One run by the calling thread, under an id of its own.
    pub fn run(&self, program: &Program, shots: u32) -> Result<Outcome, Error> {
        let id = self.job_id();
        let context = Arc::new(JobContext::new("check".into(), id.as_str().into()));
        self.run_as(&id, program, shots, &context)
    }

    pub fn run_as(
        &self,
        id: &str,
        program: &Program,
        shots: u32,
        context: &Arc<JobContext>,
    ) -> Result<Outcome, Error> {
        let silent = || Err(Error::new(ErrorCode::Contract, "neither a result nor an error"));
        self.instance.run(&CallJob { job_id: id, program, shots, context }).unwrap_or_else(silent)
    }

    /// Ends it as the host does.
    pub fn end(self) -> Result<(), Stop> {
        for (hook, error) in [("shutdown", self.instance.shutdown()), ("destroy", self.instance.destroy())] {
            if let Some(error) = error {
                return failed(
                    format!("{hook} without an error"),
                    format!("'{}'", error.text),
                    format!("correct {hook}"),
                );
            }
        }
        Ok(())
    }

    /// A target that the device takes.
    pub fn target(&self) -> Target {
        self.device.targets.first().copied().unwrap_or(Target::Cz)
    }

    /// A circuit that the device takes: one qubit turned to be measured as 1 with probability 0.84.
    pub fn plain(&self) -> Result<Program, Stop> {
        self.program(1, &[turn(0)], &[0])
    }

    pub fn program(&self, qubits: u16, gates: &[Gate], measurements: &[u16]) -> Result<Program, Stop> {
        Program::new(self.target(), qubits, gates, measurements)
            .map_err(|e| Stop::Skipped(format!("no legal circuit for this device: {e}")))
    }

    /// That a plain job is answered rightly now.
    pub fn good_job(&self, bench: &Bench, when: &str) -> Result<(), Stop> {
        let shots = bench.shots(self, 2_000);
        let case =
            Case::exact("good", format!("a plain job {when}"), "leave no state behind", self.plain()?, shots);
        bench.check_all(self, &[case]).map(drop)
    }
}

impl Runner for &Live {
    fn run(&mut self, program: &Program, shots: u32) -> Result<Outcome, Error> {
        Live::run(self, program, shots)
    }
}

/// `ry`, which every target has.
pub fn turn(q: u16) -> Gate {
    Gate::one(coda_plugin_abi::GateKind::Ry, q, 2.3)
}
