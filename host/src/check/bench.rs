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

use super::{CheckOptions, Stop, failed};
use crate::error::Failure as Shown;
use crate::executor::JobContext;
use crate::executor::check_device;
use crate::executor::ffi::{CallJob, Common, CreateRequest, Instance};
use crate::executor::loader::{self, Loaded};
use crate::executor::locate::{FactorySource, LocatedLibrary};

pub struct Bench {
    pub options: CheckOptions,
}

/// A created executor.
pub struct Live {
    pub instance: Instance,
    pub device: Device,
    pub hooks: Hooks,
    next: AtomicU64,
}

/// Expected of a factory with the device config of the check.
pub const AN_EXECUTOR: &str = "an executor";

impl Bench {
    pub fn new(options: CheckOptions) -> Bench {
        Bench { options }
    }

    pub fn load(&self) -> Result<Loaded, Stop> {
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
        let loaded = self.load()?;
        self.start_from(&loaded)
    }

    pub fn start_from(&self, loaded: &Loaded) -> Result<Live, Stop> {
        let instance = self.create(loaded, &self.options.config_text).or_else(|e| {
            failed(
                AN_EXECUTOR,
                format!("the error '{}' ({})", e.text, e.code),
                "create it from this device config",
            )
        })?;
        let described = instance.device().or_else(|e| {
            failed("a description of the device", format!("the error '{}'", e.text), "answer `device`")
        })?;
        let (device, hooks) = check_device(described)
            .or_else(|what| failed("a device that can be", what, "correct what `device` replies"))?;
        Ok(Live { instance, device, hooks, next: AtomicU64::new(0) })
    }

    pub fn create(&self, loaded: &Loaded, config: &str) -> Result<Instance, Error> {
        loaded.library.create(&CreateRequest {
            common: Arc::new(Common::new(loaded.descriptor.name.as_str().into())),
            entry: self.options.entry.clone(),
            config_path: match self.options.config_path.as_os_str().is_empty() {
                true => PathBuf::new(),
                false => self.options.config_path.clone(),
            },
            config_text: config.into(),
            native_gate_set: self.options.native_gate_set.clone(),
            num_qubits: self.options.num_qubits,
        })
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
