//! Pure: the gates that are built in, and how one is written for a peer.
//!
//! Those that peers know are primitive; the others of `qelib1.inc` and `stdgates.inc` are defined by them, in
//! OpenQASM, below. Each definition is exact, global phase included, so that it can be controlled part by part. The
//! matrix of `u`, `U` and `u3` has a real first element, as in Qiskit; that of `rz(a)` is exp(-i a/2 Z).

use std::f64::consts::PI;

use super::{CircuitOperation, MAX_QUBITS};

/// The public dialect's operations. Peers know them by these names.
pub const QFT: &str = "qft";
pub const IQFT: &str = "iqft";
pub const BELL_PAIR: &str = "bell_pair";
pub const TELEPORT: &str = "teleport";

/// The qubits of a gate, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QubitList {
    count: u8,
    ids: [u8; MAX_QUBITS as usize],
}

impl QubitList {
    /// Of these qubits, which are different and lie in the circuit, so that they fit.
    pub fn new(qubits: &[u32]) -> QubitList {
        qubits.iter().fold(QubitList::default(), |list, qubit| list.with(*qubit))
    }

    /// With this qubit as the last one.
    fn with(mut self, qubit: u32) -> QubitList {
        debug_assert!(qubit < MAX_QUBITS && usize::from(self.count) < self.ids.len());
        if let Some(place) = self.ids.get_mut(usize::from(self.count)) {
            *place = u8::try_from(qubit).unwrap_or(u8::MAX);
            self.count += 1;
        }
        self
    }

    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.ids[..self.len()].iter().map(|id| u32::from(*id))
    }
}

/// A primitive gate: controls first, then its targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Primitive {
    pub name: &'static str,
    /// As many as the gate has, then zeros.
    pub params: [f64; 3],
    pub controls: usize,
    pub qubits: QubitList,
}

/// A name of a source: the primitive's name, parameters, controls, targets.
#[derive(Debug, Clone, Copy)]
pub struct NamedGate {
    pub name: &'static str,
    pub params: usize,
    pub controls: usize,
    pub targets: usize,
}

/// The gate of this name, when it is one of the primitives or one with controls.
pub fn named_gate(name: &str) -> Option<NamedGate> {
    let (name, params, controls, targets) = match name {
        "id" => ("id", 0, 0, 1),
        "h" => ("h", 0, 0, 1),
        "x" => ("x", 0, 0, 1),
        "y" => ("y", 0, 0, 1),
        "z" => ("z", 0, 0, 1),
        "s" => ("s", 0, 0, 1),
        "sdg" => ("sdg", 0, 0, 1),
        "t" => ("t", 0, 0, 1),
        "tdg" => ("tdg", 0, 0, 1),
        "sx" => ("sx", 0, 0, 1),
        "sxdg" => ("sxdg", 0, 0, 1),
        "rx" => ("rx", 1, 0, 1),
        "ry" => ("ry", 1, 0, 1),
        "rz" => ("rz", 1, 0, 1),
        "p" | "u1" | "phase" => ("p", 1, 0, 1),
        "u" | "U" | "u3" => ("u", 3, 0, 1),
        "swap" => ("swap", 0, 0, 2),
        "cx" | "CX" | "cnot" => ("x", 0, 1, 1),
        "cy" => ("y", 0, 1, 1),
        "cz" => ("z", 0, 1, 1),
        "ch" => ("h", 0, 1, 1),
        "csx" => ("sx", 0, 1, 1),
        "crx" => ("rx", 1, 1, 1),
        "cry" => ("ry", 1, 1, 1),
        "crz" => ("rz", 1, 1, 1),
        "cp" | "cu1" | "cphase" => ("p", 1, 1, 1),
        "cu3" => ("u", 3, 1, 1),
        "ccx" | "toffoli" => ("x", 0, 2, 1),
        "ccz" => ("z", 0, 2, 1),
        "c3x" => ("x", 0, 3, 1),
        "c3sqrtx" | "c3sx" => ("sx", 0, 3, 1),
        "c4x" => ("x", 0, 4, 1),
        "cswap" | "fredkin" => ("swap", 0, 1, 2),
        "bell_pair" | "bell" => (BELL_PAIR, 0, 0, 2),
        "teleport" | "teleportation" => (TELEPORT, 0, 0, 2),
        _ => return None,
    };
    Some(NamedGate { name, params, controls, targets })
}

/// The rest, by the primitives.
pub const DEFINITIONS: &str = "
gate u2(phi, lambda) q { u(pi/2, phi, lambda) q; }
gate u0(gamma) q { id q; }
gate cu(theta, phi, lambda, gamma) c, t { p(gamma) c; cu3(theta, phi, lambda) c, t; }
gate rzz(theta) a, b { cx a, b; rz(theta) b; cx a, b; }
gate rxx(theta) a, b { h a; h b; rzz(theta) a, b; h a; h b; }
gate ryy(theta) a, b { rx(pi/2) a; rx(pi/2) b; rzz(theta) a, b; rx(-pi/2) a; rx(-pi/2) b; }
gate dcx a, b { cx a, b; cx b, a; }
gate iswap a, b { s a; s b; h a; cx a, b; cx b, a; h b; }
gate rccx a, b, c {
  h c; t c; cx b, c; tdg c; cx a, c; t c; cx b, c; tdg c; h c;
}
gate rc3x a, b, c, d {
  h d; t d; cx c, d; tdg d; h d; cx a, d; t d; cx b, d; tdg d; cx a, d; t d; cx b, d; tdg d;
  h d; t d; cx c, d; tdg d; h d;
}
";

impl Primitive {
    /// A gate on these qubits, of which the first are controls.
    pub fn new(name: &'static str, params: &[f64], controls: usize, qubits: &[u32]) -> Primitive {
        let mut gate = Primitive { name, params: [0.0; 3], controls, qubits: QubitList::new(qubits) };
        gate.params.iter_mut().zip(params).for_each(|(place, param)| *place = *param);
        gate
    }

    /// How many parameters it has.
    fn param_count(&self) -> usize {
        match self.name {
            "rx" | "ry" | "rz" | "p" => 1,
            "u" => 3,
            _ => 0,
        }
    }

    /// The gate with one control more, which stands first.
    pub fn controlled(&self, control: u32) -> Primitive {
        let qubits = self.qubits.iter().fold(QubitList::new(&[control]), QubitList::with);
        Primitive { controls: self.controls + 1, qubits, ..*self }
    }

    /// The gate that undoes it, when it is one.
    pub fn inverse(mut self) -> Primitive {
        self.name = match self.name {
            "s" => "sdg",
            "sdg" => "s",
            "t" => "tdg",
            "tdg" => "t",
            "sx" => "sxdg",
            "sxdg" => "sx",
            QFT => IQFT,
            IQFT => QFT,
            other => other,
        };
        let [first, second, third] = self.params;
        match self.name {
            "u" => self.params = [-first, -third, -second],
            "rx" | "ry" | "rz" | "p" => self.params = [-first, 0.0, 0.0],
            _ => {}
        }
        self
    }

    /// What an operation of the public dialect consists of: its name has no meaning under a control. Nothing for other
    /// gates.
    pub fn parts(&self) -> Option<Vec<Primitive>> {
        let qubits: Vec<u32> = self.qubits.iter().collect();
        match (self.name, &qubits[..]) {
            (BELL_PAIR, &[a, b]) => {
                Some(vec![Primitive::new("h", &[], 0, &[a]), Primitive::new("x", &[], 1, &[a, b])])
            }
            (TELEPORT, qubits) => Some(vec![Primitive::new("swap", &[], 0, qubits)]),
            (QFT, qubits) => Some(fourier(qubits)),
            (IQFT, qubits) => Some(fourier(qubits).into_iter().rev().map(Primitive::inverse).collect()),
            _ => None,
        }
    }

    /// The gates that are sent for it. Existing workers take a controlled `u` with three parameters for a controlled
    /// phase, so it is sent as the product e^(i (phi + lambda)/2) rz(phi) ry(theta) rz(lambda), each part controlled.
    pub fn sent(self) -> Vec<Primitive> {
        if self.name != "u" || self.controls == 0 {
            return vec![self];
        }
        let [theta, phi, lambda] = self.params;
        let turn = |name, angle| Primitive { name, params: [angle, 0.0, 0.0], ..self };
        let controls: Vec<u32> = self.qubits.iter().take(self.controls).collect();
        let phase = Primitive::new("p", &[(phi + lambda) / 2.0], self.controls - 1, &controls);
        let parts = [turn("rz", lambda), turn("ry", theta), turn("rz", phi), phase];
        parts.into_iter().filter(|part| part.params[0] != 0.0).collect()
    }

    /// As a peer reads it: a statement of the contract, and the service that it belongs to.
    pub fn operation(&self) -> CircuitOperation {
        let (name, service) = match (self.name, self.controls) {
            ("h", 0) => ("h".to_string(), "hadamard"),
            ("x", 1) => ("cx".into(), "cnot"),
            ("z", 1) => ("cz".into(), "cz"),
            ("y", 1) => ("cy".into(), "controlled_unitary"),
            ("x", 2) => ("ccx".into(), "controlled_unitary"),
            ("swap", 1) => ("cswap".into(), "controlled_unitary"),
            (QFT | IQFT, 0) => (self.name.into(), "qft"),
            (BELL_PAIR, 0) => (self.name.into(), "bell_pair"),
            (TELEPORT, 0) => (self.name.into(), "teleportation"),
            (name, 0) => (name.into(), "programmable_gate"),
            (name, _) => (format!("controlled {name}"), "controlled_unitary"),
        };
        let params = match &self.params[..self.param_count()] {
            [] => String::new(),
            params => format!("({})", params.iter().map(|p| number(*p)).collect::<Vec<_>>().join(",")),
        };
        let operands: Vec<String> = self.qubits.iter().map(|q| format!("q[{q}]")).collect();
        let raw_text = format!("{name}{params} {};", operands.join(","));
        CircuitOperation { service, qubits: self.qubits.iter().collect(), raw_text }
    }
}

/// The quantum Fourier transform on these qubits, the first least significant, swaps included: from the most significant
/// down a Hadamard and the phases of the lower ones, which leaves the qubits in the other order.
fn fourier(qubits: &[u32]) -> Vec<Primitive> {
    let mut gates = Vec::new();
    for (n, &target) in qubits.iter().enumerate().rev() {
        gates.push(Primitive::new("h", &[], 0, &[target]));
        for (k, &control) in qubits[..n].iter().enumerate() {
            let angle = PI / (1_u64 << (n - k).min(62)) as f64;
            gates.push(Primitive::new("p", &[angle], 1, &[control, target]));
        }
    }
    for n in 0..qubits.len() / 2 {
        gates.push(Primitive::new("swap", &[], 0, &[qubits[n], qubits[qubits.len() - 1 - n]]));
    }
    gates
}

/// A parameter with every digit that it has.
fn number(value: f64) -> String {
    match value.fract() == 0.0 && value.abs() < 1e15 {
        true => format!("{value}"),
        false => format!("{value:?}"),
    }
}
