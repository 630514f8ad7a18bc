//! The simulator's device config: what a person writes in `device.yaml`, and what it means once checked.
//!
//! Contract: every key is optional; an unknown key, a bad value or two keys that contradict each other is an
//! error that names the key. Nothing here depends on a circuit.

use std::time::Duration;

use coda_plugin_abi::ir::MAX_QUBITS;
use coda_plugin_abi::{Connectivity, Context, Device, Error, ErrorCode, Target};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Deserialize;

const DAY_MS: f64 = 86_400_000.0;

/// Device config of coda-host's simulator
// `device.yaml` as written; these comments are in the schema, for the person who wrote a key wrong.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name that the device reports
    name: Option<String>,
    /// Native gate set: cz, iswap, pcz or cnot; the registered one when it is left out
    target: Option<TargetName>,
    /// Qubits of the device; the registered number when it is left out
    #[schemars(range(min = 1, max = MAX_QUBITS))]
    num_qubits: Option<u16>,
    /// What a run does: exact, noop (all shots measure zeros), hang (until it is cancelled) or raise (fails)
    mode: Mode,
    /// Simulated hardware time of a run, in milliseconds
    #[schemars(range(min = 0.0, max = DAY_MS))]
    execution_time_ms: f64,
    /// Whether several jobs are run in one call
    batch: bool,
    /// Runs at the same time
    #[schemars(range(min = 1))]
    slots: Option<u16>,
    /// Makes each job's counts depend on seed and job id alone
    seed: Option<u64>,
    /// Errors that are simulated
    noise: NoiseConfig,
    /// Pairs of qubits that gates may act on: line, {grid: [rows, columns]}, or a list like [[0, 1], [1, 2]]
    connectivity: Option<Wiring>,
    /// Whether those pairs are [control, target]
    directed: bool,
    /// Memory that one run may take, in MiB
    #[schemars(range(min = 1))]
    max_memory_mb: Option<u64>,
}

/// The JSON schema of the config; of draft 7, which a host has ready sooner than the newest.
pub fn schema() -> String {
    let schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<Config>();
    schema.as_value().to_string()
}

/// What a run does.
// Plain comments on the modes: described ones would be a schema each, and an error would name none of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Mode {
    // Exact statevector.
    #[default]
    Exact,
    // All shots measure zeros, without looking at the gates.
    Noop,
    // Returns only when cancelled.
    Hang,
    // Fails as broken hardware would.
    Raise,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum TargetName {
    Cz,
    Iswap,
    Pcz,
    Cnot,
}

impl From<TargetName> for Target {
    fn from(name: TargetName) -> Target {
        match name {
            TargetName::Cz => Target::Cz,
            TargetName::Iswap => Target::Iswap,
            TargetName::Pcz => Target::Pcz,
            TargetName::Cnot => Target::Cnot,
        }
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
struct NoiseConfig {
    /// Probability that a gate is followed by a random Pauli error on its qubits
    #[schemars(range(min = 0.0, max = 1.0))]
    depolarizing: f64,
    /// Probability that a measured qubit is read wrong
    #[schemars(range(min = 0.0, max = 1.0))]
    readout: f64,
    /// Most error patterns that are drawn for one job
    #[schemars(range(min = 1))]
    trajectories: Option<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(inline)]
#[serde(
    untagged,
    expecting = "expected `line`, `{grid: [rows, columns]}` or a list of pairs like `[[0, 1]]`"
)]
enum Wiring {
    Named(NamedWiring),
    // Before the grid, since serde would take a list for a struct's fields in order.
    Pairs(Vec<(u16, u16)>),
    Grid(Grid),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum NamedWiring {
    Line,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct Grid {
    grid: (u16, u16),
}

/// Noise, checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// Probability that a gate is followed by a random Pauli error on its qubits.
    pub depolarizing: f64,
    /// Probability that a measured bit is read wrong.
    pub readout: f64,
    /// Most error patterns drawn for a job with depolarising noise.
    pub trajectories: u32,
}

/// A checked config.
#[derive(Debug, Clone)]
pub struct Settings {
    pub device: Device,
    pub target: Target,
    pub mode: Mode,
    pub execution_time: Duration,
    pub batch: bool,
    pub seed: Option<u64>,
    pub noise: Noise,
    pub max_memory_bytes: u64,
}

impl Settings {
    /// Reads the device config of `ctx`.
    ///
    /// # Errors
    /// Names file and key of what can't be used.
    pub fn from_context(ctx: &Context<'_>) -> Result<Settings, Error> {
        let config: Config = ctx.config()?;
        let file = if ctx.config_path().is_empty() { "(no device config)" } else { ctx.config_path() };
        config
            .check(ctx.native_gate_set(), ctx.num_qubits())
            .map_err(|what| Error::new(ErrorCode::Config, format!("{file}: {what}")))
    }
}

impl Config {
    fn check(self, registered_target: &str, registered_qubits: u16) -> Result<Settings, String> {
        let target = match self.target {
            Some(target) => target.into(),
            None => Target::from_name(registered_target).ok_or_else(|| {
                format!(
                    "the QPU is registered with gate set '{registered_target}', which the simulator doesn't \
                     have; set `target` to cz, iswap, pcz or cnot"
                )
            })?,
        };
        let num_qubits = self.num_qubits.unwrap_or(registered_qubits);
        if !(1..=MAX_QUBITS).contains(&num_qubits) {
            return Err(format!("`num_qubits` is {num_qubits}; set it to 1 to {MAX_QUBITS}"));
        }
        if !(0.0..=DAY_MS).contains(&self.execution_time_ms) {
            return Err(format!(
                "`execution_time_ms` is {}; set it to 0 to {DAY_MS}, in milliseconds",
                self.execution_time_ms
            ));
        }
        for (key, p) in [("depolarizing", self.noise.depolarizing), ("readout", self.noise.readout)] {
            if !(0.0..=1.0).contains(&p) {
                return Err(format!("`noise.{key}` is {p}; it is a probability, 0 to 1"));
            }
        }
        let at_least_one = |key: &str, n: u64| {
            if n == 0 { Err(format!("`{key}` is 0; set it to 1 or more, or leave it out")) } else { Ok(n) }
        };
        let slots = self.slots.unwrap_or(1);
        at_least_one("slots", slots.into())?;
        let trajectories = self.noise.trajectories.unwrap_or(1000);
        at_least_one("noise.trajectories", trajectories.into())?;
        let max_memory_mb = at_least_one("max_memory_mb", self.max_memory_mb.unwrap_or(1024))?;
        if self.directed && self.connectivity.is_none() {
            return Err("`directed` says nothing without `connectivity`; set both or neither".into());
        }
        let edges = self.connectivity.map(|wiring| wiring.edges(num_qubits)).transpose()?;
        let mut device =
            Device::new(self.name.unwrap_or_else(|| "coda-simulator".into()), num_qubits, [target]);
        device.slots = slots;
        device.connectivity = match (edges, self.directed) {
            (None, _) => Connectivity::Unknown,
            (Some(edges), false) => Connectivity::Undirected(edges),
            (Some(edges), true) => Connectivity::Directed(edges),
        };
        Ok(Settings {
            device,
            target,
            mode: self.mode,
            execution_time: Duration::from_secs_f64(self.execution_time_ms / 1e3),
            batch: self.batch,
            seed: self.seed,
            noise: Noise { depolarizing: self.noise.depolarizing, readout: self.noise.readout, trajectories },
            max_memory_bytes: max_memory_mb.saturating_mul(1 << 20),
        })
    }
}

impl Wiring {
    fn edges(self, num_qubits: u16) -> Result<Vec<(u16, u16)>, String> {
        match self {
            Wiring::Named(NamedWiring::Line) => Ok((1..num_qubits).map(|q| (q - 1, q)).collect()),
            Wiring::Grid(Grid { grid: (rows, columns) }) => {
                if u32::from(rows) * u32::from(columns) != u32::from(num_qubits) {
                    return Err(format!(
                        "`connectivity` is a grid of {rows} x {columns}, but the device has {num_qubits} qubits"
                    ));
                }
                let mut edges = Vec::new();
                for q in 0..num_qubits {
                    if (q + 1) % columns != 0 {
                        edges.push((q, q + 1));
                    }
                    if q + columns < num_qubits {
                        edges.push((q, q + columns));
                    }
                }
                Ok(edges)
            }
            Wiring::Pairs(pairs) => {
                match pairs.iter().find(|(a, b)| a == b || *a >= num_qubits || *b >= num_qubits) {
                    None => Ok(pairs),
                    Some((a, b)) => Err(format!(
                        "`connectivity` has the pair [{a}, {b}]; a pair is two different qubits below {num_qubits}"
                    )),
                }
            }
        }
    }
}
