//! Depolarising noise as random Pauli errors: which gate is followed by which error.
//!
//! Contract: after each gate but `virtual_z` (a change of frame, no pulse), with probability `p`, one of the
//! 3 (15) Pauli errors other than the identity hits the gate's qubits, all equally likely. A job draws
//! `trajectories` such patterns, fewer when it has fewer shots, and divides its shots evenly among them.
//! Mean counts are right for any number; shots of one pattern share its errors, so with more shots than
//! trajectories counts scatter more than those of independent shots.

use std::collections::BTreeMap;

use coda_plugin_abi::Op;
use rand::Rng;

use crate::fuse::{C, PAULI_X, PAULI_Y, Planner};

/// Errors in order: the gate's index, and a Pauli of its first qubit in bits 0 and 1, of its second in
/// bits 2 and 3.
pub type Pattern = Vec<(usize, u8)>;

/// Draws patterns, each with its share of the shots; equal ones are merged.
pub fn patterns<R: Rng>(
    ops: &[Op],
    p: f64,
    trajectories: u32,
    shots: u32,
    rng: &mut R,
) -> Vec<(Pattern, u64)> {
    if p == 0.0 {
        return vec![(Pattern::new(), shots.into())];
    }
    let count = trajectories.min(shots);
    let (share, more) = (shots / count, shots % count);
    let mut found = BTreeMap::<Pattern, u64>::new();
    for i in 0..count {
        *found.entry(draw(ops, p, rng)).or_default() += u64::from(share + u32::from(i < more));
    }
    found.into_iter().collect()
}

fn draw<R: Rng>(ops: &[Op], p: f64, rng: &mut R) -> Pattern {
    let mut pattern = Pattern::new();
    for (index, op) in ops.iter().enumerate() {
        let errors = match op {
            Op::VirtualZ { .. } => continue,
            Op::Cz { .. } | Op::Iswap { .. } | Op::Cp { .. } | Op::Cnot { .. } => 15,
            _ => 3,
        };
        if rng.random_bool(p) {
            pattern.push((index, rng.random_range(1..=errors)));
        }
    }
    pattern
}

/// Adds one error to a plan; `second` is unused for gates on one qubit.
pub fn apply(planner: &mut Planner, first: usize, second: usize, pauli: u8) {
    for (qubit, code) in [(first, pauli & 3), (second, pauli >> 2)] {
        match code {
            1 => planner.unitary(qubit, PAULI_X),
            2 => planner.unitary(qubit, PAULI_Y),
            3 => planner.phase(qubit, C::MINUS_ONE),
            _ => {}
        }
    }
}
