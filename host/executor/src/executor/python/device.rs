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
    /// What `coda_executor.Device` says besides.
    pub stated: Option<StatedDevice>,
}

/// What an executor says of its device by the bridge's own class. Nothing of that is guessed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatedDevice {
    /// Empty for the package's name.
    pub name: String,
    pub targets: Vec<String>,
    pub max_shots: Option<i64>,
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
/// When an edge names a qubit that no circuit can have, or a target or number is none.
pub fn describe(name: &str, basics: &DeviceBasics, python: &PythonDevice) -> Result<DeviceReply, String> {
    let edges = python.edges.as_ref().map(|edges| edges.iter().copied().map(edge).collect()).transpose()?;
    let reached = edges.iter().flatten().map(|(a, b): &(u16, u16)| u32::from(*a.max(b)) + 1).max();
    let own = python.num_qubits.and_then(|n| u32::try_from(n).ok());
    if let Some(stated) = &python.stated {
        return describe_stated(name, stated, python, edges, reached);
    }
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
    Ok(reply(name, num_qubits, targets, None, python, edges))
}

/// The device that an executor states in full.
fn describe_stated(
    name: &str,
    stated: &StatedDevice,
    python: &PythonDevice,
    edges: Option<Vec<(u16, u16)>>,
    reached: Option<u32>,
) -> Result<DeviceReply, String> {
    let number = python.num_qubits.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
    let num_qubits = u32::from(number.ok_or("its Device.num_qubits is not a number from 1 to 65,535")?);
    if let Some(reached) = reached.filter(|reached| *reached > num_qubits) {
        return Err(format!("an edge of its Device names qubit {}, and it has {num_qubits}", reached - 1));
    }
    let target = |name: &String| {
        Target::from_name(name).ok_or_else(|| format!("'{name}' in its Device.targets is not a target"))
    };
    let targets = stated.targets.iter().map(target).collect::<Result<Vec<Target>, String>>()?;
    let max_shots = match stated.max_shots {
        None => None,
        Some(shots) => {
            let shots = u32::try_from(shots).ok().filter(|shots| *shots > 0);
            Some(shots.ok_or("its Device.max_shots is not a number of shots")?)
        }
    };
    let name = if stated.name.is_empty() { name } else { &stated.name };
    Ok(reply(name, num_qubits, targets, max_shots, python, edges))
}

fn reply(
    name: &str,
    num_qubits: u32,
    targets: Vec<Target>,
    max_shots: Option<u32>,
    python: &PythonDevice,
    edges: Option<Vec<(u16, u16)>>,
) -> DeviceReply {
    let connectivity = match (edges, python.directed) {
        (None, _) => Connectivity::Unknown,
        (Some(edges), true) => Connectivity::Directed(edges),
        (Some(edges), false) => Connectivity::Undirected(edges),
    };
    let device = Device::new(name, u16::try_from(num_qubits).unwrap_or(u16::MAX), targets);
    DeviceReply {
        device: Device { slots: 1, max_shots, ..device.with_connectivity(connectivity) },
        hooks: Hooks { batch_run: python.batch_run, cancel: true, evolve_qubits: None },
        unknown_targets: Vec::new(),
        num_qubits,
        slots: 1,
    }
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
        PythonDevice { edges: None, directed: false, num_qubits: None, batch_run: false, stated: None }
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
        assert_eq!(qubits(&none, &wired), 50, "edges alone are not a size");
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

    #[test]
    fn a_device_that_is_stated_is_taken_as_it_is() {
        let stated =
            StatedDevice { name: String::new(), targets: vec!["cnot".into()], max_shots: Some(4000) };
        let full =
            PythonDevice { num_qubits: Some(3), edges: Some(vec![(1, 2)]), stated: Some(stated), ..python() };
        let basics = DeviceBasics { registered_qubits: Some(20), ..DeviceBasics::read("target: cz\n") };
        let device = describe("d", &basics, &full).unwrap().device;
        assert_eq!((device.name.as_str(), device.num_qubits, device.max_shots), ("d", 3, Some(4000)));
        assert_eq!(device.targets, [Target::Cnot], "nothing is guessed");
        let error = |change: &dyn Fn(&mut PythonDevice, &mut StatedDevice)| {
            let mut python = full.clone();
            let mut stated = python.stated.take().unwrap();
            change(&mut python, &mut stated);
            python.stated = Some(stated);
            describe("d", &basics, &python).unwrap_err()
        };
        assert!(error(&|python, _| python.num_qubits = None).contains("num_qubits"));
        assert!(error(&|python, _| python.num_qubits = Some(65_536)).contains("65,535"));
        assert!(error(&|python, _| python.num_qubits = Some(2)).contains("names qubit 2"));
        assert!(error(&|_, stated| stated.targets.push("xy".into())).contains("'xy'"));
        assert!(error(&|_, stated| stated.max_shots = Some(0)).contains("max_shots"));
    }
}
