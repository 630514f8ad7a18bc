//! Example of a vendor's plugin: the control stack of an imaginary "Acme" device.
//!
//! The device only knows bits: it can turn a qubit over (`rx` by a multiple of pi) and wait. Everything else
//! of the interface is real: a config type of its own, a description, log, progress, cancelling, errors.
//! Copy it, replace [`Acme::pulse`] by what reaches your hardware, and set `kind` to `Hardware`.

use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::sync::{Mutex, MutexGuard, PoisonError};

use coda_plugin_abi::{
    Cancel, Connectivity, Context, Device, Error, ErrorCode, Executor, Job, LogLevel, Op, Outcome, Stage,
    Target, export_executor,
};
use serde::Deserialize;

export_executor! { kind: Test, vendor: "Acme", entries: { create_executor => connect } }

/// What `device.yaml` holds for this device.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where the control stack listens.
    host: String,
    port: u16,
    /// Time that one shot takes.
    #[serde(default = "default_shot_us")]
    shot_us: u32,
}

fn default_shot_us() -> u32 {
    200
}

pub struct Acme {
    config: Config,
    num_qubits: u16,
    /// Running jobs, and which of them to end early. A real control stack would be told to abort instead.
    running: Mutex<BTreeMap<String, bool>>,
}

/// The factory that `executor_factory: libcoda_example_rust.so:create_executor` names.
///
/// # Errors
/// When the config can't be used.
pub fn connect(ctx: &Context<'_>) -> Result<Acme, Error> {
    let config: Config = ctx.config()?;
    if config.host.is_empty() {
        let text = format!("{}: `host` is empty; set it to the control stack's address", ctx.config_path());
        return Err(Error::new(ErrorCode::Config, text));
    }
    ctx.host().log(LogLevel::Info, format_args!("connected to {}:{}", config.host, config.port));
    Ok(Acme { config, num_qubits: ctx.num_qubits(), running: Mutex::default() })
}

impl Executor for Acme {
    fn device(&self) -> Device {
        let neighbours: Vec<(u16, u16)> = (1..self.num_qubits).map(|q| (q - 1, q)).collect();
        Device::new("acme-example", self.num_qubits, [Target::Cz])
            .with_connectivity(Connectivity::Undirected(neighbours))
    }

    fn run(&self, job: &Job<'_>) -> Result<Outcome, Error> {
        self.running().insert(job.id().to_string(), false);
        let answer = self.execute(job);
        self.running().remove(job.id());
        answer
    }

    fn canceller(&self) -> Option<&dyn Cancel> {
        Some(self)
    }

    fn shutdown(&self) {
        // A real device would be brought to rest here.
    }
}

impl Cancel for Acme {
    fn cancel(&self, job_id: &str) {
        // An id that isn't running is ignored.
        if let Some(cancelled) = self.running().get_mut(job_id) {
            *cancelled = true;
        }
    }
}

impl Acme {
    fn execute(&self, job: &Job<'_>) -> Result<Outcome, Error> {
        let program = job.program();
        let mut bits = vec![false; usize::from(program.num_qubits())];
        let total = program.gates().len();
        job.host().log(LogLevel::Debug, format_args!("job {}: {total} gates", job.id()));
        for (index, gate) in program.gates().iter().enumerate() {
            if job.is_cancelled() || self.running().get(job.id()) == Some(&true) {
                return Err(Error::new(ErrorCode::Cancelled, format!("ended before gate {index}")));
            }
            self.pulse(&mut bits, gate.op()).map_err(|what| {
                Error::new(ErrorCode::Unsupported, format!("gate {index}: {what}")).at(Stage::Compile)
            })?;
            job.host().progress(index as u64 + 1, total as u64);
        }
        let key: String =
            program.measurements().iter().map(|q| if bits[usize::from(*q)] { '1' } else { '0' }).collect();
        let time_ms = f64::from(job.shots()) * f64::from(self.config.shot_us) / 1e3;
        Ok(Outcome::from_counts([(key, i64::from(job.shots()))]).with_time_ms(time_ms))
    }

    /// Executes one gate, or says why this device can't.
    fn pulse(&self, bits: &mut [bool], op: Option<Op>) -> Result<(), String> {
        match op {
            Some(Op::Rx { q, angle }) => {
                let turns = (angle / PI).round();
                if (angle - turns * PI).abs() > 1e-9 {
                    return Err(format!("this device turns by multiples of pi only, not by {angle}"));
                }
                bits[usize::from(q)] ^= turns.rem_euclid(2.0) == 1.0;
                Ok(())
            }
            Some(Op::Id { .. }) => Ok(()),
            Some(other) => Err(format!("this device has no {other:?}")),
            None => Err("unknown gate".into()),
        }
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
