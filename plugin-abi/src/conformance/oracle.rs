//! Exact outcome probabilities, straight from the definitions of the gates.
//!
//! Contract: shares no code with any executor and does nothing clever: each gate is a dense matrix over the
//! whole register, written down as in the format's text and multiplied out. At most [`MAX_QUBITS`] qubits
//! that a circuit uses; those between them, which it doesn't, cost nothing.

use std::ops::{Add, Mul};

use crate::ir::{Op, Program};

pub const MAX_QUBITS: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Complex(f64, f64);

impl Add for Complex {
    type Output = Complex;
    fn add(self, o: Complex) -> Complex {
        Complex(self.0 + o.0, self.1 + o.1)
    }
}

impl Mul for Complex {
    type Output = Complex;
    fn mul(self, o: Complex) -> Complex {
        Complex(self.0 * o.0 - self.1 * o.1, self.0 * o.1 + self.1 * o.0)
    }
}

const ZERO: Complex = Complex(0.0, 0.0);
const ONE: Complex = Complex(1.0, 0.0);
const I: Complex = Complex(0.0, 1.0);

fn exp_i(angle: f64) -> Complex {
    Complex(angle.cos(), angle.sin())
}

fn rx(angle: f64) -> [[Complex; 2]; 2] {
    let (c, s) = ((angle / 2.0).cos(), (angle / 2.0).sin());
    [[Complex(c, 0.0), Complex(0.0, -s)], [Complex(0.0, -s), Complex(c, 0.0)]]
}

fn ry(angle: f64) -> [[Complex; 2]; 2] {
    let (c, s) = ((angle / 2.0).cos(), (angle / 2.0).sin());
    [[Complex(c, 0.0), Complex(-s, 0.0)], [Complex(s, 0.0), Complex(c, 0.0)]]
}

fn rz(angle: f64) -> [[Complex; 2]; 2] {
    [[exp_i(-angle / 2.0), ZERO], [ZERO, exp_i(angle / 2.0)]]
}

/// A gate's matrix element from `(a, b)` to `(c, d)`, the values of its first and second qubit.
type Pair = fn((bool, bool), (bool, bool), f64) -> Complex;

fn cz(from: (bool, bool), to: (bool, bool), _: f64) -> Complex {
    if from != to {
        ZERO
    } else if from == (true, true) {
        Complex(-1.0, 0.0)
    } else {
        ONE
    }
}

fn cp(from: (bool, bool), to: (bool, bool), angle: f64) -> Complex {
    if from != to {
        ZERO
    } else if from == (true, true) {
        exp_i(angle)
    } else {
        ONE
    }
}

fn iswap(from: (bool, bool), to: (bool, bool), _: f64) -> Complex {
    match (from, to) {
        ((true, false), (false, true)) | ((false, true), (true, false)) => I,
        ((false, false), (false, false)) | ((true, true), (true, true)) => ONE,
        _ => ZERO,
    }
}

fn cnot((control, target): (bool, bool), to: (bool, bool), _: f64) -> Complex {
    if to == (control, target != control) { ONE } else { ZERO }
}

/// Probabilities of all keys that can occur; `None` when more than [`MAX_QUBITS`] qubits are used.
pub fn probabilities(program: &Program) -> Option<Vec<(String, f64)>> {
    let mut used: Vec<u16> = program.measurements().to_vec();
    for op in program.gates().iter().filter_map(|g| g.op()) {
        used.extend(qubits(&op));
    }
    used.sort_unstable();
    used.dedup();
    if used.len() > MAX_QUBITS {
        return None;
    }
    let place = |q: u16| used.iter().position(|u| *u == q).unwrap_or(0);
    let size = 1usize << used.len();
    let mut state = vec![ZERO; size];
    state[0] = ONE;
    for op in program.gates().iter().filter_map(|g| g.op()) {
        let element = |from: usize, to: usize| element(&op, &place, from, to);
        state = (0..size)
            .map(|to| (0..size).fold(ZERO, |sum, from| sum + element(from, to) * state[from]))
            .collect();
    }
    let mut keys = std::collections::BTreeMap::<String, f64>::new();
    for (index, amplitude) in state.iter().enumerate() {
        let bit = |q: &u16| if index >> place(*q) & 1 == 1 { '1' } else { '0' };
        let p = amplitude.0 * amplitude.0 + amplitude.1 * amplitude.1;
        *keys.entry(program.measurements().iter().map(bit).collect()).or_default() += p;
    }
    // What is there only by rounding can't occur.
    keys.retain(|_, p| *p > 1e-12);
    Some(keys.into_iter().collect())
}

fn qubits(op: &Op) -> Vec<u16> {
    match *op {
        Op::Rx { q, .. }
        | Op::Ry { q, .. }
        | Op::Rz { q, .. }
        | Op::X90 { q }
        | Op::YMinus90 { q }
        | Op::VirtualZ { q, .. }
        | Op::Id { q, .. } => vec![q],
        Op::Cz { a, b } | Op::Iswap { a, b } | Op::Cp { a, b, .. } => vec![a, b],
        Op::Cnot { control, target } => vec![control, target],
    }
}

/// The element of the gate's matrix over the whole register.
fn element(op: &Op, place: &dyn Fn(u16) -> usize, from: usize, to: usize) -> Complex {
    let bit = |index: usize, q: u16| index >> place(q) & 1;
    let one = |q: u16, m: [[Complex; 2]; 2]| {
        let others = !(1usize << place(q));
        if from & others == to & others { m[bit(to, q)][bit(from, q)] } else { ZERO }
    };
    let two = |a: u16, b: u16, m: Pair, angle: f64| {
        let others = !(1usize << place(a) | 1usize << place(b));
        let values = |index| (bit(index, a) == 1, bit(index, b) == 1);
        if from & others == to & others { m(values(from), values(to), angle) } else { ZERO }
    };
    match *op {
        Op::Rx { q, angle } => one(q, rx(angle)),
        Op::Ry { q, angle } => one(q, ry(angle)),
        Op::Rz { q, angle } | Op::VirtualZ { q, angle } => one(q, rz(angle)),
        Op::X90 { q } => one(q, rx(std::f64::consts::FRAC_PI_2)),
        Op::YMinus90 { q } => one(q, ry(-std::f64::consts::FRAC_PI_2)),
        Op::Id { q, .. } => one(q, [[ONE, ZERO], [ZERO, ONE]]),
        Op::Cz { a, b } => two(a, b, cz, 0.0),
        Op::Cp { a, b, angle } => two(a, b, cp, angle),
        Op::Iswap { a, b } => two(a, b, iswap, 0.0),
        Op::Cnot { control, target } => two(control, target, cnot, 0.0),
    }
}
