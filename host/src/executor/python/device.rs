//! The host's device, from what a Python executor knows of it: only edges, and those not always.
//!
//! Circuits that the cloud compiled must reach the executor, which refuses what it does not take, as under the Python node.
//! So everything that is not known is as wide as the format allows, except the slots: executors rely on one run at a time.

use coda_plugin_abi::{Connectivity, Device, Hooks, Target};
use serde::{Deserialize, Serialize};
use serde_yaml::Value;

use super::super::ffi::DeviceReply;

/// Qubits of a device of which no number is known: the most that a circuit may have.
const MAX_QUBITS: u32 = coda_plugin_abi::ir::MAX_QUBITS as u32;

/// What the process says of a created executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PythonDevice {
    /// Pairs of qubits; for a directed device control first.
    pub edges: Option<Vec<(i64, i64)>>,
    pub directed: bool,
    pub num_qubits: Option<i64>,
    pub batch_run: bool,
}

/// What is known of the device beside the executor.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceBasics {
    /// As the device config has it.
    pub config_qubits: Option<u32>,
    pub config_target: Option<Target>,
    /// As the QPU is registered, where that is known.
    pub registered_qubits: Option<u32>,
    pub registered_target: Option<Target>,
}

impl DeviceBasics {
    /// From the text of a device config; nothing where it is not YAML.
    pub fn read(config: &str) -> DeviceBasics {
        let value: Value = serde_yaml::from_str(config).unwrap_or_default();
        let number = value.get("num_qubits").and_then(Value::as_u64);
        DeviceBasics {
            config_qubits: number.and_then(|n| u32::try_from(n).ok()),
            config_target: value.get("target").and_then(Value::as_str).and_then(Target::from_name),
            ..DeviceBasics::default()
        }
    }
}

/// The device in the terms of a plugin's description, under this name.
///
/// # Errors
/// When an edge names a qubit that no circuit can have.
pub fn describe(name: &str, basics: &DeviceBasics, python: &PythonDevice) -> Result<DeviceReply, String> {
    let edges = python.edges.as_ref().map(|edges| edges.iter().copied().map(edge).collect()).transpose()?;
    let reached = edges.iter().flatten().map(|(a, b): &(u16, u16)| u32::from(*a.max(b)) + 1).max();
    let own = python.num_qubits.and_then(|n| u32::try_from(n).ok());
    let known = [own, basics.config_qubits, basics.registered_qubits, reached];
    // A device without any edge may be given as an empty list, which says nothing of its size.
    let stated = known[..3].iter().flatten().copied().max();
    let num_qubits = match stated {
        Some(stated) => stated.max(reached.unwrap_or(0)),
        None => MAX_QUBITS,
    };
    let mut targets: Vec<Target> =
        [basics.config_target, basics.registered_target].into_iter().flatten().collect();
    targets.extend(Target::ALL);
    let mut seen = Vec::new();
    targets.retain(|target| !seen.contains(target) && (seen.push(*target), true).1);
    let connectivity = match (edges, python.directed) {
        (None, _) => Connectivity::Unknown,
        (Some(edges), true) => Connectivity::Directed(edges),
        (Some(edges), false) => Connectivity::Undirected(edges),
    };
    let device = Device::new(name, u16::try_from(num_qubits).unwrap_or(u16::MAX), targets);
    Ok(DeviceReply {
        device: Device { slots: 1, max_shots: None, ..device.with_connectivity(connectivity) },
        hooks: Hooks { batch_run: python.batch_run, cancel: true, evolve_qubits: None },
        unknown_targets: Vec::new(),
        num_qubits,
        slots: 1,
    })
}

fn edge((a, b): (i64, i64)) -> Result<(u16, u16), String> {
    let qubit = |q: i64| u16::try_from(q).ok().filter(|q| u32::from(*q) < MAX_QUBITS);
    qubit(a)
        .zip(qubit(b))
        .ok_or_else(|| format!("its edge [{a}, {b}] names a qubit outside of 0 to {}", MAX_QUBITS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python() -> PythonDevice {
        PythonDevice { edges: None, directed: false, num_qubits: None, batch_run: false }
    }

    fn qubits(basics: &DeviceBasics, python: &PythonDevice) -> u32 {
        describe("d", basics, python).unwrap().num_qubits
    }

    #[test]
    fn the_largest_known_number_of_qubits_applies_and_50_when_none_is() {
        let none = DeviceBasics::default();
        assert_eq!(qubits(&none, &python()), 50);
        assert_eq!(qubits(&none, &PythonDevice { num_qubits: Some(7), ..python() }), 7);
        assert_eq!(qubits(&none, &PythonDevice { num_qubits: Some(-1), ..python() }), 50);
        let config = DeviceBasics::read("num_qubits: 9\ntarget: cnot\n");
        assert_eq!(qubits(&config, &PythonDevice { num_qubits: Some(7), ..python() }), 9);
        let registered = DeviceBasics { registered_qubits: Some(20), ..config.clone() };
        assert_eq!(qubits(&registered, &python()), 20);
        let wired = PythonDevice { edges: Some(vec![(0, 24)]), ..python() };
        assert_eq!(qubits(&registered, &wired), 25, "an edge is on the device");
        assert_eq!(qubits(&none, &wired), 50, "edges alone are no size");
        assert_eq!(DeviceBasics::read("num_qubits: many\n\t: ["), none);
    }

    #[test]
    fn all_targets_are_taken_and_the_known_ones_come_first() {
        let basics =
            DeviceBasics { registered_target: Some(Target::Pcz), ..DeviceBasics::read("target: cnot\n") };
        let reply = describe("d", &basics, &python()).unwrap();
        assert_eq!(reply.device.targets, [Target::Cnot, Target::Pcz, Target::Cz, Target::Iswap]);
        assert_eq!((reply.slots, reply.device.slots, reply.device.max_shots), (1, 1, None));
        assert!(reply.hooks.cancel && !reply.hooks.batch_run);
    }

    #[test]
    fn edges_are_reported_as_the_executor_has_them() {
        let reply = |python| describe("d", &DeviceBasics::default(), &python).map(|r| r.device.connectivity);
        let edges = Some(vec![(1, 0), (2, 1)]);
        let undirected = PythonDevice { edges: edges.clone(), ..python() };
        assert_eq!(reply(undirected), Ok(Connectivity::Undirected(vec![(1, 0), (2, 1)])));
        let directed = PythonDevice { edges, directed: true, ..python() };
        assert_eq!(reply(directed), Ok(Connectivity::Directed(vec![(1, 0), (2, 1)])));
        let empty = PythonDevice { edges: Some(vec![]), ..python() };
        assert_eq!(reply(empty), Ok(Connectivity::Undirected(vec![])));
        assert_eq!(reply(python()), Ok(Connectivity::Unknown));
        let outside = PythonDevice { edges: Some(vec![(0, 50)]), ..python() };
        assert!(reply(outside).unwrap_err().contains("[0, 50]"));
    }
}
