//! What an executor reports about its device, as `coda-host plugin device` prints it and `coda-host dev` reads it.

use std::path::PathBuf;

use coda_plugin_abi::Connectivity;
use serde::{Deserialize, Serialize};

use crate::executor::Executor;
use crate::executor::python::interpreter::Interpreter;
use crate::executor::python::spec::{PythonFacts, node_text};
use crate::output;

/// A device and the plugin that drives it, in the form of `--json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeviceView {
    pub name: String,
    pub num_qubits: u16,
    pub targets: Vec<String>,
    pub slots: u16,
    pub max_shots: Option<u32>,
    /// `unknown`, `undirected` or `directed`.
    pub connectivity: String,
    pub edges: Option<Vec<(u16, u16)>>,
    pub batch_run: bool,
    pub cancel: bool,
    pub plugin: String,
    /// `hardware`, `simulator` or `test`.
    pub kind: String,
    pub path: PathBuf,
    /// Factory, versions, and why the interpreter was chosen, for an executor in Python code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonView>,
}

/// An executor in Python code.
#[derive(Debug, Serialize, Deserialize)]
pub struct PythonView {
    pub factory: String,
    pub package: String,
    pub coda_node: String,
    pub python: String,
    pub chosen_by: String,
}

impl PythonView {
    pub fn new(facts: &PythonFacts, interpreter: &Interpreter) -> PythonView {
        PythonView {
            factory: facts.factory.clone(),
            package: facts.name(),
            coda_node: facts.coda_node.clone(),
            python: facts.python.clone(),
            chosen_by: interpreter.chosen_by.to_string(),
        }
    }

    /// The lines for a terminal.
    pub fn lines(&self) -> String {
        [
            line("factory", &self.factory),
            line("package", &self.package),
            line("python", &format!("{}, {}", self.python, node_text(&self.coda_node))),
            line("chosen by", &self.chosen_by),
        ]
        .concat()
    }
}

impl DeviceView {
    pub fn new(executor: &Executor) -> DeviceView {
        let active = executor.active_plugin();
        let (device, info, hooks) = (&active.device, &active.info, active.hooks);
        let connectivity = match &device.connectivity {
            Connectivity::Unknown => "unknown",
            Connectivity::Undirected(_) => "undirected",
            Connectivity::Directed(_) => "directed",
        };
        DeviceView {
            name: device.name.clone(),
            num_qubits: device.num_qubits,
            targets: device.targets.iter().map(|t| t.name().to_string()).collect(),
            slots: device.slots,
            max_shots: device.max_shots,
            connectivity: connectivity.into(),
            edges: device.connectivity.edges().map(<[_]>::to_vec),
            batch_run: hooks.batch_run,
            cancel: hooks.cancel,
            plugin: match &info.python {
                Some(python) => python.facts.name(),
                None => format!("{} {} by {}", info.name, info.version, info.vendor),
            },
            kind: info.kind.name().into(),
            path: info.path.clone(),
            python: info.python.as_ref().map(|python| PythonView::new(&python.facts, &python.interpreter)),
        }
    }

    /// The lines for a terminal.
    pub fn lines(&self) -> String {
        let yes = |b| if b { "yes" } else { "no" };
        let edges = self.edges.as_ref().map_or(String::new(), |e| format!(", {} edges", e.len()));
        [
            line("device", &self.name),
            line("qubits", &self.num_qubits.to_string()),
            line("targets", &self.targets.join(", ")),
            line("slots", &self.slots.to_string()),
            line("max shots", &self.max_shots.map_or("no limit".into(), |n| n.to_string())),
            line("wiring", &format!("{}{edges}", self.connectivity)),
            line("batches", yes(self.batch_run)),
            line("cancels", yes(self.cancel)),
            line("plugin", &format!("{} ({})", self.plugin, self.kind)),
            line(
                if self.python.is_some() { "interpreter" } else { "library" },
                &self.path.display().to_string(),
            ),
            self.python.as_ref().map(PythonView::lines).unwrap_or_default(),
        ]
        .concat()
    }
}

/// A name and its value in two columns.
pub fn line(name: &str, value: &str) -> String {
    format!("{name:<12}{}\n", output::inline(value))
}
