//! Example of a vendor's plugin: the control stack of an imaginary "Acme" device with up to ten qubits.
//!
//! `device` stands for the hardware; everything else is what a real plugin has: a config type of its own with a
//! schema, a description, log, progress, gauges, cancelling, errors. Copy it, replace `device` by what reaches
//! your hardware, and set `kind` to `Hardware`. The same device in C and C++: `example-c`, `example-cpp`.

mod device;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use coda_plugin_abi::{
    Cancel, Connectivity, Context, Device, Error, ErrorCode, Executor, Job, LogLevel, Outcome, Stage, Target,
    export_executor,
};
use schemars::JsonSchema;
use serde::Deserialize;

use device::Qubits;

export_executor! { kind: Test, vendor: "Acme", entries: { create_executor => connect }, config_schema: schema }

const MAX_QUBITS: u16 = 10;

/// What `device.yaml` holds for this device. These comments are what a person reads when a key is wrong.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where the control stack listens: a host name or address.
    #[schemars(length(min = 1))]
    host: String,
    /// The control stack's TCP port.
    #[schemars(range(min = 1))]
    port: u16,
    /// Time that one shot takes, in microseconds.
    #[serde(default = "default_shot_us")]
    shot_us: u32,
    /// The control stack's access token.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    token: Option<String>,
}

fn default_shot_us() -> u32 {
    200
}

fn schema(_entry: &str) -> Option<String> {
    Some(schemars::schema_for!(Config).as_value().to_string())
}

pub struct Acme {
    config: Config,
    num_qubits: u16,
    /// Running jobs, and which of them to end early.
    running: Mutex<BTreeMap<String, bool>>,
}

/// The factory that `executor_factory: libcoda_example_rust.so:create_executor` names.
///
/// # Errors
/// When the config can't be used.
pub fn connect(ctx: &Context<'_>) -> Result<Acme, Error> {
    let config: Config = ctx.config()?;
    let wrong = |what: String| Error::new(ErrorCode::Config, format!("{}: {what}", ctx.config_path()));
    if config.host.is_empty() {
        return Err(wrong("`host` is empty; set it to the control stack's address".into()));
    }
    let num_qubits = ctx.num_qubits();
    if !(1..=MAX_QUBITS).contains(&num_qubits) {
        return Err(wrong(format!(
            "the QPU is registered with {num_qubits} qubits, this device has 1 to {MAX_QUBITS}"
        )));
    }
    let with = if config.token.is_some() { " with a token" } else { "" };
    ctx.host().log(LogLevel::Info, format_args!("connected to {}:{}{with}", config.host, config.port));
    ctx.host().gauge("fridge_kelvin", 0.012);
    Ok(Acme { config, num_qubits, running: Mutex::default() })
}

impl Executor for Acme {
    fn device(&self) -> Device {
        let neighbours: Vec<(u16, u16)> = (1..self.num_qubits).map(|q| (q - 1, q)).collect();
        Device::new("acme-example", self.num_qubits, [Target::Cz])
            .with_connectivity(Connectivity::Undirected(neighbours))
    }

    fn run(&self, job: &Job<'_>) -> Result<Outcome, Error> {
        self.running().insert(job.id().to_string(), false);
        let answer = self.measure(job);
        self.running().remove(job.id());
        answer
    }

    fn canceller(&self) -> Option<&dyn Cancel> {
        Some(self)
    }

    // `shutdown` would bring a real device to rest here.
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
    fn measure(&self, job: &Job<'_>) -> Result<Outcome, Error> {
        let (program, shots) = (job.program(), job.shots());
        job.host().log(LogLevel::Debug, format_args!("{} gates, {shots} shots", program.gates().len()));
        if program.num_qubits() > self.num_qubits {
            return Err(unsupported(format!("{} qubits are too many", program.num_qubits())));
        }
        let mut qubits = Qubits::zero(program.num_qubits());
        for (index, gate) in program.gates().iter().enumerate() {
            qubits.apply(gate.op()).map_err(|what| unsupported(format!("gate {index}: {what}")))?;
        }
        let mut seen = BTreeMap::<usize, i64>::new();
        for (shot, result) in (0..shots).zip(qubits.shots()) {
            if shot % 4096 == 0 {
                job.host().progress(shot.into(), shots.into());
                if job.is_cancelled() || self.running().get(job.id()) == Some(&true) {
                    return Err(Error::new(ErrorCode::Cancelled, "ended before its last shot").at(Stage::Run));
                }
            }
            *seen.entry(result).or_default() += 1;
        }
        // Results that differ in qubits which aren't measured share a key.
        let mut counts = BTreeMap::<String, i64>::new();
        for (result, n) in seen {
            let bit = |q: &u16| if result >> q & 1 == 1 { '1' } else { '0' };
            *counts.entry(program.measurements().iter().map(bit).collect()).or_default() += n;
        }
        let time_ms = f64::from(shots) * f64::from(self.config.shot_us) / 1e3;
        Ok(Outcome::from_counts(counts).with_time_ms(time_ms))
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unsupported(text: String) -> Error {
    Error::new(ErrorCode::Unsupported, text).at(Stage::Compile)
}
