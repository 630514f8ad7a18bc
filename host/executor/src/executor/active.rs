//! The plugin in use: which file it is, which device it drives, and what a device may be.

use std::path::PathBuf;

use coda_plugin_abi::descriptor::{Isolation, Kind};
use coda_plugin_abi::{Device, Hooks};

use super::ffi::DeviceReply;
use super::loader::PreparedLibrary;
use super::locate::{FactorySource, LocatedPython};
use super::python::interpreter::Interpreter;
use super::python::spec::PythonFacts;

/// Most slots of a device. Each slot is a thread, and a socket where the plugin runs in a separate process; more slots
/// than this are a mistake of the plugin.
pub(super) const MAX_SLOTS: usize = 64;
const MAX_QUBITS: u32 = 50;

/// The plugin and device in use. A reload replaces it as a whole.
#[derive(Debug, Clone)]
pub struct ActivePlugin {
    pub device: Device,
    pub hooks: Hooks,
    pub info: PluginInfo,
}

/// What is known of the plugin in use, for logs, metrics and `/ready`.
#[derive(Debug, Clone)]
pub struct PluginInfo {
    pub vendor: String,
    pub name: String,
    pub version: String,
    pub kind: Kind,
    pub api: (u16, u16),
    pub path: PathBuf,
    pub sha256: String,
    pub source: FactorySource,
    /// Whether it runs in a separate process whatever the settings say.
    pub needs_process: bool,
    /// Of an executor in Python code.
    pub python: Option<PythonInfo>,
}

/// What is known of an executor in Python code.
#[derive(Debug, Clone)]
pub struct PythonInfo {
    pub facts: PythonFacts,
    pub interpreter: Interpreter,
}

impl PluginInfo {
    /// Labels for metrics.
    pub fn labels(&self) -> [(&'static str, &str); 5] {
        [
            ("name", &self.name),
            ("version", &self.version),
            ("vendor", &self.vendor),
            ("kind", self.kind.name()),
            ("sha256", &self.sha256),
        ]
    }

    pub(super) fn from_library(prepared: &PreparedLibrary) -> PluginInfo {
        let d = &prepared.descriptor;
        PluginInfo {
            vendor: d.vendor.clone(),
            name: d.name.clone(),
            version: d.version.clone(),
            kind: d.kind,
            api: (d.api_major, d.api_minor),
            path: prepared.path.clone(),
            sha256: prepared.sha256.clone(),
            source: prepared.source.clone(),
            needs_process: d.isolation == Isolation::Required,
            python: None,
        }
    }

    /// Of Python code: the package stands for the plugin, and its interpreter for the file.
    pub(super) fn from_python(located: &LocatedPython, facts: PythonFacts) -> PluginInfo {
        let module = facts.factory.split(':').next().unwrap_or_default();
        PluginInfo {
            vendor: module.split('.').next().unwrap_or_default().into(),
            name: facts.package.clone(),
            version: facts.package_version.clone(),
            kind: Kind::Hardware,
            api: (0, 0),
            path: located.interpreter.path.clone(),
            sha256: String::new(),
            source: located.source.clone(),
            needs_process: true,
            python: Some(PythonInfo { facts, interpreter: located.interpreter.clone() }),
        }
    }

    /// Whether fewer counts than shots may come: Python executors leave out lost shots.
    pub fn may_lose_shots(&self) -> bool {
        self.python.is_some()
    }
}

/// Accepts a device as the plugin described it.
///
/// # Errors
/// What is wrong with it: the number of qubits or slots, the gate sets, or an edge of the connectivity.
pub(crate) fn check_device(reply: DeviceReply) -> Result<(Device, Hooks), String> {
    let DeviceReply { device, hooks, unknown_targets, num_qubits, slots } = reply;
    if num_qubits == 0 || num_qubits > MAX_QUBITS {
        return Err(format!("it has {num_qubits} qubits, allowed are 1 to {MAX_QUBITS}"));
    }
    if slots == 0 || slots as usize > MAX_SLOTS {
        return Err(format!("it has {slots} slots, allowed are 1 to {MAX_SLOTS}"));
    }
    if device.targets.is_empty() {
        return Err(match unknown_targets.is_empty() {
            true => "it names no native gate set".into(),
            false => format!("it names only gate sets unknown here (codes {unknown_targets:?})"),
        });
    }
    let outside = |q: u16| u32::from(q) >= num_qubits;
    for &(a, b) in device.connectivity.edges().unwrap_or_default() {
        if a == b || outside(a) || outside(b) {
            return Err(format!("its connectivity has the edge [{a}, {b}] on {num_qubits} qubits"));
        }
    }
    Ok((device, hooks))
}

#[cfg(test)]
mod tests {
    use coda_plugin_abi::{Connectivity, Target};

    use super::*;

    fn reply() -> DeviceReply {
        DeviceReply {
            device: Device::new("d", 3, [Target::Cz]),
            hooks: Hooks::default(),
            unknown_targets: Vec::new(),
            num_qubits: 3,
            slots: 1,
        }
    }

    #[test]
    fn a_device_has_qubits_slots_a_gate_set_and_edges_between_its_qubits() {
        assert!(check_device(reply()).is_ok());
        assert!(check_device(DeviceReply { slots: MAX_SLOTS as u32, ..reply() }).is_ok());
        let refusal = |reply| check_device(reply).unwrap_err();
        assert!(refusal(DeviceReply { num_qubits: 0, ..reply() }).contains("0 qubits"));
        assert!(refusal(DeviceReply { num_qubits: 51, ..reply() }).contains("51 qubits"));
        assert!(refusal(DeviceReply { slots: 0, ..reply() }).contains("0 slots"));
        assert!(refusal(DeviceReply { slots: u32::MAX, ..reply() }).contains("allowed are 1 to 64"));
        let mut no_targets = reply();
        no_targets.device.targets.clear();
        assert!(refusal(no_targets.clone()).contains("no native gate set"));
        let unknown = DeviceReply { unknown_targets: vec![9], ..no_targets };
        assert!(refusal(unknown).contains("codes [9]"));
        for edge in [(1, 1), (0, 3)] {
            let mut wired = reply();
            wired.device.connectivity = Connectivity::Undirected(vec![edge]);
            assert!(refusal(wired).contains(&format!("[{}, {}]", edge.0, edge.1)));
        }
    }
}
