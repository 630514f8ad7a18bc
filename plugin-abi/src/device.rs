//! What an executor tells of its device.

use crate::ir::Target;
use crate::raw::{self, RawDevice, RawEdge, RawStr};

/// Which pairs of qubits can take a two-qubit gate.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Connectivity {
    /// Not reported: nothing is sent to the cloud, any pair is accepted.
    #[default]
    Unknown,
    /// Either order of a pair.
    Undirected(Vec<(u16, u16)>),
    /// `(control, target)`.
    Directed(Vec<(u16, u16)>),
}

impl Connectivity {
    /// The edges as reported, `None` when unknown.
    pub fn edges(&self) -> Option<&[(u16, u16)]> {
        match self {
            Connectivity::Unknown => None,
            Connectivity::Undirected(edges) | Connectivity::Directed(edges) => Some(edges),
        }
    }

    /// Whether a two-qubit gate on `(a, b)`, control first, is possible.
    pub fn allows(&self, a: u16, b: u16) -> bool {
        match self {
            Connectivity::Unknown => true,
            Connectivity::Undirected(edges) => edges.contains(&(a, b)) || edges.contains(&(b, a)),
            Connectivity::Directed(edges) => edges.contains(&(a, b)),
        }
    }
}

/// The optional functions that an executor offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Hooks {
    pub batch_run: bool,
    pub cancel: bool,
    /// Most qubits of an `evolve_state`; `None` without that hook.
    pub evolve_qubits: Option<u16>,
}

/// A device's description. What it says decides which jobs reach the executor.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Device {
    pub name: String,
    /// 1 to 50.
    pub num_qubits: u16,
    /// Native gate sets that the executor takes, the preferred one first.
    pub targets: Vec<Target>,
    pub connectivity: Connectivity,
    /// How many runs the device takes at the same time.
    pub slots: u16,
    /// Most shots per job; `None` for no limit of its own.
    pub max_shots: Option<u32>,
}

impl Device {
    /// A device with one slot, no limit on shots and no reported connectivity.
    pub fn new(name: impl Into<String>, num_qubits: u16, targets: impl Into<Vec<Target>>) -> Device {
        Device {
            name: name.into(),
            num_qubits,
            targets: targets.into(),
            connectivity: Connectivity::Unknown,
            slots: 1,
            max_shots: None,
        }
    }

    pub fn with_connectivity(mut self, connectivity: Connectivity) -> Device {
        self.connectivity = connectivity;
        self
    }

    /// Lends the description to `f` in the form that crosses the boundary.
    pub(crate) fn lend<R>(&self, hooks: Hooks, f: impl FnOnce(&RawDevice) -> R) -> R {
        let targets: Vec<u16> = self.targets.iter().map(|t| t.code()).collect();
        let (kind, edges) = match &self.connectivity {
            Connectivity::Unknown => (raw::connectivity::UNKNOWN, &[][..]),
            Connectivity::Undirected(e) => (raw::connectivity::UNDIRECTED, e.as_slice()),
            Connectivity::Directed(e) => (raw::connectivity::DIRECTED, e.as_slice()),
        };
        let edges: Vec<RawEdge> = edges.iter().map(|&(a, b)| RawEdge { a, b }).collect();
        let mut bits = 0;
        if hooks.batch_run {
            bits |= raw::hook::BATCH_RUN;
        }
        if hooks.cancel {
            bits |= raw::hook::CANCEL;
        }
        if hooks.evolve_qubits.is_some() {
            bits |= raw::hook::EVOLVE_STATE;
        }
        f(&RawDevice {
            size: size_of::<RawDevice>(),
            name: RawStr::new(&self.name),
            num_qubits: u32::from(self.num_qubits),
            slots: u32::from(self.slots),
            max_shots: self.max_shots.unwrap_or(0),
            connectivity: kind,
            hooks: bits,
            reserved: 0,
            targets: targets.as_ptr(),
            targets_len: targets.len(),
            edges: edges.as_ptr(),
            edges_len: edges.len(),
            evolve_qubits: hooks.evolve_qubits.unwrap_or(0).into(),
            reserved2: 0,
        })
    }
}
