//! The check of a plugin before a customer does it: `coda-host plugin check`.
//!
//! ```text
//! runner    each case in a child process with a time limit: exit status and signal are answers too
//! bench     loads and drives the plugin in the child, as the host would
//! circuits  what counts must say
//! life      files, descriptor, create, device, config; what a plugin leaves behind
//! calls     cancel, batches, slots, errors, shutdown
//! report    text, JSON, JUnit
//! ```
//!
//! A case that fails says what was expected, what came and what to change. The plugin runs only in children.

mod bench;
mod calls;
mod circuits;
mod life;
pub mod report;
pub mod runner;

use std::path::PathBuf;
use std::time::Duration;

use coda_plugin_abi::conformance::Failure;
use serde::{Deserialize, Serialize};

use crate::executor::PythonRequest;
use crate::executor::locate::{FactorySource, LocatedPython};
use crate::executor::python::interpreter::Interpreter;
pub use bench::Bench;

/// What a case says of the plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum CaseVerdict {
    Passed {
        /// What is worth knowing all the same.
        note: Option<String>,
    },
    Failed {
        expected: String,
        got: String,
        change: String,
    },
    /// Not applicable to this plugin, and why.
    Skipped {
        why: String,
    },
}

/// Ends a case early.
#[derive(Debug)]
pub enum Stop {
    Failed(Failure),
    Skipped(String),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

/// What a case returns: a note, or why it ended.
pub type Done = Result<Option<String>, Stop>;

pub fn failed<T>(
    expected: impl Into<String>,
    got: impl Into<String>,
    change: impl Into<String>,
) -> Result<T, Stop> {
    Err(Stop::Failed(Failure { expected: expected.into(), got: got.into(), change: change.into() }))
}

pub fn skipped<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Skipped(why.into()))
}

/// One check.
pub struct Case {
    /// Stable, kebab-case.
    pub name: &'static str,
    /// In one line, for `--list`.
    pub about: &'static str,
    run: fn(&Bench) -> Done,
}

/// Everything that is checked, in order.
pub const CASES: &[Case] = &[
    Case {
        name: "descriptor",
        about: "what the file says of itself: interface, binding, vendor, name, version, target",
        run: life::descriptor,
    },
    Case { name: "load", about: "loads with all symbols bound and offers the entry", run: life::load },
    Case { name: "scan-time", about: "loading takes less than a second", run: life::scan_time },
    Case {
        name: "config-schema",
        about: "an exported JSON schema is one, and the device config fits",
        run: life::config_schema,
    },
    Case { name: "create", about: "creates its executor, comes to rest and is destroyed", run: life::create },
    Case {
        name: "create-twice",
        about: "can be created again in the same process, and works",
        run: life::create_twice,
    },
    Case {
        name: "malformed-config",
        about: "a device config that can't be read is an error that says so",
        run: life::malformed_config,
    },
    Case { name: "device", about: "describes a device that can be, the same each time", run: life::device },
    Case {
        name: "bit-order",
        about: "keys follow `measurements`: permuted, gapped, repeated",
        run: circuits::bit_order,
    },
    Case {
        name: "bit-order-pairs",
        about: "keys follow `measurements` on pairs of all qubits",
        run: circuits::pairs,
    },
    Case {
        name: "counts",
        about: "keys and sums; circuits without gates or measurements",
        run: circuits::format,
    },
    Case { name: "shots", about: "one shot, and many", run: circuits::shots },
    Case {
        name: "gates-one-qubit",
        about: "each one-qubit gate against the exact kernel",
        run: circuits::one_qubit,
    },
    Case {
        name: "gates-two-qubits",
        about: "each two-qubit gate against the exact kernel",
        run: circuits::two_qubit,
    },
    Case {
        name: "random-circuits",
        about: "random circuits against the exact kernel",
        run: circuits::random,
    },
    Case {
        name: "largest-qubit",
        about: "the last qubit, with and without the first",
        run: circuits::largest_qubit,
    },
    Case {
        name: "refusals",
        about: "targets, gates and sizes that the device lacks are refused",
        run: circuits::refusals,
    },
    Case {
        name: "batch",
        about: "batches keep order and length and agree with single runs",
        run: calls::batch,
    },
    Case {
        name: "evolve-state",
        about: "operations on a given state, against the exact kernel",
        run: circuits::evolve,
    },
    Case {
        name: "cancel-before",
        about: "a job that is cancelled already comes back",
        run: calls::cancel_before,
    },
    Case {
        name: "cancel-during",
        about: "a running job ends soon after its cancel, and the next is right",
        run: calls::cancel_during,
    },
    Case {
        name: "cancel-after",
        about: "a cancel that comes too late changes nothing",
        run: calls::cancel_after,
    },
    Case {
        name: "cancel-unknown",
        about: "a cancel of an unknown job changes nothing",
        run: calls::cancel_unknown,
    },
    Case { name: "concurrent-runs", about: "as many runs at once as it has slots", run: calls::concurrent },
    Case {
        name: "error-then-good",
        about: "a refused job leaves the next one unharmed",
        run: calls::error_then_good,
    },
    Case { name: "hooks", about: "no hook panics, throws or keeps silent", run: calls::hooks },
    Case {
        name: "shutdown-during-run",
        about: "shutdown beside a run: both come back",
        run: calls::shutdown_during_run,
    },
    Case {
        name: "left-behind",
        about: "no threads and file descriptors are left behind",
        run: life::left_behind,
    },
    Case {
        name: "process-state",
        about: "signals, locale, working directory and umask are left alone",
        run: life::process_state,
    },
    Case { name: "memory", about: "memory does not grow over 1,000 runs (simulators)", run: life::memory },
];

/// Python code under check, in the place of a library.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PythonCheck {
    /// `module:attribute`; `None` has the interpreter's packages looked through.
    pub factory: Option<String>,
    pub interpreter: Interpreter,
    pub request: PythonRequest,
    /// The account of the executor's process, when one is named, and the capabilities that it keeps.
    pub user: Option<String>,
    pub capabilities: Vec<String>,
}

impl PythonCheck {
    /// As the host would have found it.
    pub fn located(&self) -> LocatedPython {
        let source = FactorySource::Environment;
        LocatedPython { factory: self.factory.clone(), source, interpreter: self.interpreter.clone() }
    }
}

/// How to check.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckOptions {
    /// The library, or the factory of Python code.
    pub library: PathBuf,
    pub python: Option<PythonCheck>,
    pub entry: String,
    /// Absolute; empty without a device config.
    pub config_path: PathBuf,
    pub config_text: String,
    pub native_gate_set: String,
    pub num_qubits: u16,
    /// Where the library is copied to, as the host does it.
    pub state_dir: PathBuf,
    /// Fewer circuits and shots.
    pub quick: bool,
    /// Distance in total variation that is forgiven.
    pub tolerance: f64,
    pub seed: u64,
    /// Of one case.
    pub time_limit: Duration,
}

/// Runs one case in this process; for a child.
pub fn run_here(case: &Case, options: &CheckOptions) -> CaseVerdict {
    match (case.run)(&Bench::new(options.clone())) {
        Ok(note) => CaseVerdict::Passed { note },
        Err(Stop::Skipped(why)) => CaseVerdict::Skipped { why },
        Err(Stop::Failed(Failure { expected, got, change })) => CaseVerdict::Failed { expected, got, change },
    }
}

/// The case of this name.
pub fn case(name: &str) -> Option<&'static Case> {
    CASES.iter().find(|c| c.name == name)
}
