//! Pure: a fragment as operations on qubits, and operations as the controlled 2x2 matrices that executors take.
//!
//! ```text
//! service, raw_text, qubits ──> FragmentEffect { operations, measured } ──> [Unitary] on bit positions of the state
//! ```
//!
//! Matrices are those of OpenQASM's standard gates; rotations are exp(-i angle/2 P), `u` is
//! [[cos, -e^il sin], [e^ip sin, e^i(p+l) cos]] of angle/2. The quantum Fourier transform takes |j> to the sum over
//! k of e^(2 pi i jk/N)|k>/sqrt N with the fragment's first qubit least significant, swaps included.

use std::collections::HashMap;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

use super::amplitude::{Complex, MAX_QUBITS};
use super::statement::{self, Statement};

pub use crate::model::SERVICES;

/// What is done to target qubits where all controls are 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    Id,
    H,
    X,
    Y,
    Z,
    S,
    Sdg,
    T,
    Tdg,
    Sx,
    Sxdg,
    Rx(f64),
    Ry(f64),
    Rz(f64),
    Phase(f64),
    U(f64, f64, f64),
    Swap,
    Qft,
    Iqft,
}

impl Gate {
    /// How many targets it has; none for any number.
    pub fn targets(self) -> Option<usize> {
        match self {
            Gate::Swap => Some(2),
            Gate::Qft | Gate::Iqft => None,
            _ => Some(1),
        }
    }
}

/// One operation on the qubits with these ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    pub gate: Gate,
    pub controls: Vec<i64>,
    pub targets: Vec<i64>,
}

impl Operation {
    pub fn on(gate: Gate, targets: &[i64]) -> Operation {
        Operation { gate, controls: Vec::new(), targets: targets.to_vec() }
    }

    fn controlled(gate: Gate, controls: &[i64], targets: &[i64]) -> Operation {
        Operation { gate, controls: controls.to_vec(), targets: targets.to_vec() }
    }

    fn qubits(&self) -> impl Iterator<Item = i64> + '_ {
        self.controls.iter().chain(&self.targets).copied()
    }
}

/// What a fragment does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FragmentEffect {
    pub operations: Vec<Operation>,
    /// Qubits that it marks as measured.
    pub measured: Vec<i64>,
}

/// What is wrong with an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    #[error("`{statement}`: {source}")]
    Statement { statement: String, source: Box<OperationError> },
    #[error("service {service}: {source}")]
    Service { service: String, source: Box<OperationError> },
    #[error("it is not known here")]
    UnknownService,
    #[error("'{0}' is not known here")]
    UnknownGate(String),
    #[error("a controlled {0} is not known here")]
    UnknownControlled(String),
    #[error("it takes {needed} qubits, given are {given}")]
    Qubits { needed: usize, given: usize },
    #[error("'{name}' takes {expected} parameters, given are {given}")]
    Parameters { name: String, expected: &'static str, given: usize },
    #[error("qubit {0} is named twice")]
    QubitTwice(i64),
    #[error("qubit {0} is not in the state")]
    NotInState(i64),
    #[error("{0} qubits are more than a state can be sent of")]
    StateQubits(usize),
    #[error("{gate} on {given} qubits")]
    Targets { gate: String, given: usize },
    #[error("more than {MAX_STEPS} operations in one dispatch")]
    TooMany,
}

/// Most operations of one dispatch, after each is taken apart for the executor: a transform of many qubits is one line
/// and hundreds of operations.
pub const MAX_STEPS: usize = 1 << 18;

/// The service id of a block that needs several services. No peer advertises it; a peer that has all parts accepts it.
pub const BUNDLE: &str = "subcircuit_bundle";

/// What a fragment does: its statement decides, else its service's default.
///
/// # Errors
/// When the statement or the service is unknown or does not fit the qubits. The text names it.
pub fn effect(service: &str, raw_text: &str, qubits: &[i64]) -> Result<FragmentEffect, OperationError> {
    let effect = match statement::read(raw_text) {
        Some(parsed) => stated(&parsed, qubits)
            .map_err(|e| OperationError::Statement { statement: parsed.text, source: Box::new(e) })?,
        None => default(service, qubits).map_err(|e| OperationError::Service {
            service: crate::model::cut(service, MAX_SHOWN).into(),
            source: Box::new(e),
        })?,
    };
    for operation in &effect.operations {
        let mut seen: Vec<i64> = operation.qubits().collect();
        seen.sort_unstable();
        if let Some(twice) = seen.windows(2).find(|w| w[0] == w[1]) {
            return Err(OperationError::QubitTwice(twice[0]));
        }
    }
    Ok(effect)
}

/// Longest name that an error repeats, in characters.
const MAX_SHOWN: usize = 80;

fn first<const N: usize>(qubits: &[i64]) -> Result<[i64; N], OperationError> {
    let found = qubits.get(..N).and_then(|q| q.try_into().ok());
    found.ok_or(OperationError::Qubits { needed: N, given: qubits.len() })
}

fn default(service: &str, qubits: &[i64]) -> Result<FragmentEffect, OperationError> {
    let does = |operations| Ok(FragmentEffect { operations, measured: Vec::new() });
    match service {
        "hadamard" => {
            first::<1>(qubits)?;
            does(qubits.iter().map(|q| Operation::on(Gate::H, &[*q])).collect())
        }
        "bell_pair" => does(bell_pair(qubits)?),
        "cnot" | "cz" => {
            let [a, b] = first(qubits)?;
            let gate = if service == "cnot" { Gate::X } else { Gate::Z };
            does(vec![Operation::controlled(gate, &[a], &[b])])
        }
        "controlled_unitary" => {
            let [control, _] = first(qubits)?;
            let x = |q: &i64| Operation::controlled(Gate::X, &[control], &[*q]);
            does(qubits[1..].iter().map(x).collect())
        }
        "qft" => {
            first::<1>(qubits)?;
            does(vec![Operation::on(Gate::Qft, qubits)])
        }
        "teleportation" => {
            let [a, b] = first(qubits)?;
            does(vec![Operation::on(Gate::Swap, &[a, b])])
        }
        "measurement_feedforward" => Ok(FragmentEffect { operations: Vec::new(), measured: qubits.to_vec() }),
        "programmable_gate" => {
            let [q] = first(qubits)?;
            does(vec![Operation::on(Gate::U(0.12, 0.34, 0.56), &[q])])
        }
        "syndrome_extraction" | "distillation" => does(Vec::new()),
        _ => Err(OperationError::UnknownService),
    }
}

fn bell_pair(qubits: &[i64]) -> Result<Vec<Operation>, OperationError> {
    let [a, b] = first(qubits)?;
    Ok(vec![Operation::on(Gate::H, &[a]), Operation::controlled(Gate::X, &[a], &[b])])
}

fn stated(s: &Statement, qubits: &[i64]) -> Result<FragmentEffect, OperationError> {
    let does = |operations| Ok(FragmentEffect { operations, measured: Vec::new() });
    let none = || match s.params.is_empty() {
        true => Ok(()),
        false => Err(wrong_parameters(s, "no")),
    };
    if !s.controlled {
        match s.name.as_str() {
            "measure" => {
                none()?;
                return Ok(FragmentEffect { operations: Vec::new(), measured: qubits.to_vec() });
            }
            "bell_pair" => {
                none()?;
                return does(bell_pair(qubits)?);
            }
            _ => {}
        }
    }
    let (gate, own_controls) = gate(s)?;
    if s.controlled && s.name == "u" && s.params.len() <= 1 {
        let [a, b] = first(qubits)?;
        let gate = if s.params.is_empty() { Gate::X } else { gate };
        return does(vec![Operation::controlled(gate, &[a], &[b])]);
    }
    let (controls, targets) = match (gate.targets(), s.controlled) {
        (None, true) => return Err(OperationError::UnknownControlled(shown_name(s))),
        (None, false) => {
            first::<1>(qubits)?;
            (&qubits[..0], qubits)
        }
        (Some(targets), _) => {
            let needed = own_controls + targets + usize::from(s.controlled);
            if qubits.len() < needed {
                return Err(OperationError::Qubits { needed, given: qubits.len() });
            }
            let end = if s.controlled { qubits.len() } else { needed };
            qubits[..end].split_at(end - targets)
        }
    };
    does(vec![Operation::controlled(gate, controls, targets)])
}

fn shown_name(s: &Statement) -> String {
    crate::model::cut(&s.name, MAX_SHOWN).into()
}

fn wrong_parameters(s: &Statement, expected: &'static str) -> OperationError {
    OperationError::Parameters { name: shown_name(s), expected, given: s.params.len() }
}

/// The gate of a name, and how many controls are in the name itself.
fn gate(s: &Statement) -> Result<(Gate, usize), OperationError> {
    let params = |n: usize| match s.params.len() == n {
        true => Ok(()),
        false => Err(wrong_parameters(s, if n == 0 { "no" } else { "1" })),
    };
    let plain = |gate, controls| params(0).map(|()| (gate, controls));
    match s.name.as_str() {
        "id" | "identity" => plain(Gate::Id, 0),
        "h" => plain(Gate::H, 0),
        "x" => plain(Gate::X, 0),
        "y" => plain(Gate::Y, 0),
        "z" => plain(Gate::Z, 0),
        "s" => plain(Gate::S, 0),
        "sdg" => plain(Gate::Sdg, 0),
        "t" => plain(Gate::T, 0),
        "tdg" => plain(Gate::Tdg, 0),
        "sx" => plain(Gate::Sx, 0),
        "sxdg" => plain(Gate::Sxdg, 0),
        "cx" | "cnot" => plain(Gate::X, 1),
        "cy" => plain(Gate::Y, 1),
        "cz" => plain(Gate::Z, 1),
        "ccx" | "ccnot" => plain(Gate::X, 2),
        "swap" | "teleport" | "teleportation" => plain(Gate::Swap, 0),
        "cswap" => plain(Gate::Swap, 1),
        "qft" => plain(Gate::Qft, 0),
        "iqft" => plain(Gate::Iqft, 0),
        "rx" => params(1).map(|()| (Gate::Rx(s.params[0]), 0)),
        "ry" => params(1).map(|()| (Gate::Ry(s.params[0]), 0)),
        "rz" => params(1).map(|()| (Gate::Rz(s.params[0]), 0)),
        "p" | "phase" => params(1).map(|()| (Gate::Phase(s.params[0]), 0)),
        "u" => match s.params[..] {
            [a] => Ok((Gate::Phase(a), 0)),
            [a, b, c] => Ok((Gate::U(a, b, c), 0)),
            // `controlled u` alone is a CX.
            [] if s.controlled => Ok((Gate::X, 0)),
            _ => Err(wrong_parameters(s, "1 or 3")),
        },
        _ => Err(OperationError::UnknownGate(shown_name(s))),
    }
}

/// How many layers the operations make when each starts as soon as its qubits are free.
pub fn depth(operations: &[Operation]) -> i64 {
    let mut layers: HashMap<i64, i64> = HashMap::new();
    let mut depth = 0;
    for operation in operations {
        let layer = operation.qubits().filter_map(|q| layers.get(&q)).max().unwrap_or(&0) + 1;
        operation.qubits().for_each(|q| {
            layers.insert(q, layer);
        });
        depth = depth.max(layer);
    }
    depth
}

/// A 2x2 matrix on one bit of the state's index, where all control bits are 1. Row by row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unitary {
    pub controls: u64,
    pub target: u32,
    pub matrix: [Complex; 4],
}

/// Operations as matrices on the bits that `qubit_ids` gives them.
///
/// # Errors
/// When an operation uses a qubit that the state does not have, or the state has too many qubits.
pub fn lower(operations: &[Operation], qubit_ids: &[i64]) -> Result<Vec<Unitary>, OperationError> {
    if qubit_ids.len() > MAX_QUBITS {
        return Err(OperationError::StateQubits(qubit_ids.len()));
    }
    let bits: HashMap<i64, u32> = qubit_ids.iter().copied().zip(0..).collect();
    let bit = |q: &i64| bits.get(q).copied().ok_or(OperationError::NotInState(*q));
    let mut steps = Vec::with_capacity(operations.len());
    for operation in operations {
        let mut controls = 0;
        for q in &operation.controls {
            controls |= 1 << bit(q)?;
        }
        let targets = operation.targets.iter().map(bit).collect::<Result<Vec<_>, _>>()?;
        match (operation.gate, &targets[..]) {
            (Gate::Swap, [a, b]) => swap(&mut steps, controls, *a, *b),
            (Gate::Qft, all) => fourier(&mut steps, all, 1.0),
            (Gate::Iqft, all) => fourier(&mut steps, all, -1.0),
            (gate, [target]) => steps.push(Unitary { controls, target: *target, matrix: matrix(gate) }),
            (gate, other) => {
                return Err(OperationError::Targets { gate: format!("{gate:?}"), given: other.len() });
            }
        }
        if steps.len() > MAX_STEPS {
            return Err(OperationError::TooMany);
        }
    }
    Ok(steps)
}

fn swap(steps: &mut Vec<Unitary>, controls: u64, a: u32, b: u32) {
    let x = |control: u64, target| Unitary { controls: control, target, matrix: matrix(Gate::X) };
    // Only the middle one needs the controls: without it the outer two undo each other.
    steps.extend([x(1 << a, b), x(controls | 1 << b, a), x(1 << a, b)]);
}

/// The transform on these bits, least significant first; `sign` -1 for the inverse.
fn fourier(steps: &mut Vec<Unitary>, bits: &[u32], sign: f64) {
    // From the most significant down: a Hadamard, then the phases of the lower ones. What comes out has its bits
    // in the other order.
    for (n, &target) in bits.iter().enumerate().rev() {
        steps.push(Unitary { controls: 0, target, matrix: matrix(Gate::H) });
        for (k, &control) in bits[..n].iter().enumerate() {
            let angle = sign * PI / (1_u64 << (n - k).min(62)) as f64;
            steps.push(Unitary { controls: 1 << control, target, matrix: matrix(Gate::Phase(angle)) });
        }
    }
    for n in 0..bits.len() / 2 {
        swap(steps, 0, bits[n], bits[bits.len() - 1 - n]);
    }
}

fn polar(angle: f64) -> Complex {
    [angle.cos(), angle.sin()]
}

/// The matrix of a gate on one qubit; the identity for others.
pub fn matrix(gate: Gate) -> [Complex; 4] {
    const O: Complex = [0.0, 0.0];
    const I: Complex = [1.0, 0.0];
    let diagonal = |a, d| [a, O, O, d];
    let r = FRAC_1_SQRT_2;
    match gate {
        Gate::Id | Gate::Swap | Gate::Qft | Gate::Iqft => diagonal(I, I),
        Gate::H => [[r, 0.0], [r, 0.0], [r, 0.0], [-r, 0.0]],
        Gate::X => [O, I, I, O],
        Gate::Y => [O, [0.0, -1.0], [0.0, 1.0], O],
        Gate::Z => diagonal(I, [-1.0, 0.0]),
        Gate::S => diagonal(I, [0.0, 1.0]),
        Gate::Sdg => diagonal(I, [0.0, -1.0]),
        Gate::T => diagonal(I, [r, r]),
        Gate::Tdg => diagonal(I, [r, -r]),
        Gate::Sx => [[0.5, 0.5], [0.5, -0.5], [0.5, -0.5], [0.5, 0.5]],
        Gate::Sxdg => [[0.5, -0.5], [0.5, 0.5], [0.5, 0.5], [0.5, -0.5]],
        Gate::Rx(a) => {
            let (s, c) = (a / 2.0).sin_cos();
            [[c, 0.0], [0.0, -s], [0.0, -s], [c, 0.0]]
        }
        Gate::Ry(a) => {
            let (s, c) = (a / 2.0).sin_cos();
            [[c, 0.0], [-s, 0.0], [s, 0.0], [c, 0.0]]
        }
        Gate::Rz(a) => diagonal(polar(-a / 2.0), polar(a / 2.0)),
        Gate::Phase(a) => diagonal(I, polar(a)),
        Gate::U(theta, phi, lambda) => {
            let (s, c) = (theta / 2.0).sin_cos();
            let times = |[re, im]: Complex, f: f64| [re * f, im * f];
            [[c, 0.0], times(polar(lambda), -s), times(polar(phi), s), times(polar(phi + lambda), c)]
        }
    }
}

#[cfg(test)]
#[path = "operation_tests.rs"]
pub(crate) mod tests;
