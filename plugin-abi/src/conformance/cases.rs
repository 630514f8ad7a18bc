//! The list of cases.
//!
//! Contract: every case fits the device it is made for; what doesn't is listed as skipped. Cases about bit
//! order use one-qubit gates alone, so that a mistake in an entangler can't hide them.

use std::f64::consts::PI;

use super::Case;
use crate::device::Device;
use crate::ir::{Gate, GateKind, Program, Target};

/// What a case asks of the counts.
#[derive(Debug, Clone)]
pub(super) enum Want {
    /// Only what holds for every answer.
    Form,
    /// To be near these probabilities.
    Distribution(Vec<(String, f64)>),
}

/// Shots of a case about probabilities: its bound is then about 0.03.
const SHOTS: u32 = 20_000;

const BIT_ORDER: &str =
    "character i of a key is the outcome of measurements[i]: check the order of qubits and characters";

struct Maker<'a> {
    device: &'a Device,
    target: Target,
    group: &'static str,
    cases: Vec<Case>,
    skipped: Vec<(String, String)>,
}

/// Adds the cases of one group.
type MakeGroup = fn(&mut Maker<'_>);

impl Maker<'_> {
    fn add(
        &mut self,
        name: &str,
        qubits: u16,
        gates: &[Gate],
        measurements: &[u16],
        shots: u32,
        change: &'static str,
    ) {
        let name = format!("{}/{name}", self.target);
        if qubits > self.device.num_qubits {
            let why = format!("needs {qubits} qubits, the device has {}", self.device.num_qubits);
            return self.skipped.push((name, why));
        }
        let shots = self.device.max_shots.filter(|m| *m > 0).map_or(shots, |m| shots.min(m));
        match Program::new(self.target, qubits, gates, measurements) {
            Err(e) => {
                self.skipped.push((name, format!("the device's connectivity makes no legal circuit: {e}")))
            }
            Ok(program) => {
                self.cases.push(Case::exact(self.group, name, change, program, shots));
            }
        }
    }
}

pub(super) fn all(device: &Device) -> (Vec<Case>, Vec<(String, String)>) {
    let (mut cases, mut skipped) = (Vec::new(), Vec::new());
    for &target in &device.targets {
        let mut maker = Maker { device, target, group: "", cases: Vec::new(), skipped: Vec::new() };
        let groups: [(_, MakeGroup); 4] = [
            ("bit order", bit_order),
            ("format", edges_of_the_format),
            ("one-qubit gates", one_qubit_gates),
            ("two-qubit gates", two_qubit_gates),
        ];
        for (group, make) in groups {
            maker.group = group;
            make(&mut maker);
        }
        cases.append(&mut maker.cases);
        skipped.append(&mut maker.skipped);
    }
    (cases, skipped)
}

fn rx(q: u16, angle: f64) -> Gate {
    Gate::one(GateKind::Rx, q, angle)
}

fn ry(q: u16, angle: f64) -> Gate {
    Gate::one(GateKind::Ry, q, angle)
}

fn bit_order(m: &mut Maker<'_>) {
    m.add("bit order: the worked example", 3, &[rx(2, PI)], &[2, 0], 100, BIT_ORDER);
    m.add("bit order: first qubit set", 3, &[rx(0, PI)], &[0, 1, 2], 100, BIT_ORDER);
    m.add("bit order: last qubit set", 3, &[rx(2, PI)], &[0, 1, 2], 100, BIT_ORDER);
    // Each qubit with another probability, so that no two orders give the same distribution.
    let tilted = [ry(0, 0.6), ry(1, 1.3), ry(2, 2.2)];
    m.add("measurements in order", 3, &tilted, &[0, 1, 2], SHOTS, BIT_ORDER);
    m.add("measurements reversed", 3, &tilted, &[2, 1, 0], SHOTS, BIT_ORDER);
    m.add("measurements permuted", 3, &tilted, &[1, 2, 0], SHOTS, BIT_ORDER);
    m.add("measurements permuted the other way", 3, &tilted, &[2, 0, 1], SHOTS, BIT_ORDER);
    m.add("measurements with a gap", 3, &tilted, &[0, 2], SHOTS, BIT_ORDER);
    m.add("one measurement of three qubits", 3, &tilted, &[1], SHOTS, BIT_ORDER);
    let repeated = "repeat the outcome of a qubit that is listed twice";
    m.add("a qubit measured twice", 3, &tilted, &[1, 0, 1], SHOTS, repeated);
    m.add("a qubit measured three times", 1, &tilted[..1], &[0, 0, 0], SHOTS, repeated);
}

fn edges_of_the_format(m: &mut Maker<'_>) {
    let zeros = "qubits start as 0, and a circuit may have no gates";
    m.add("no gates", 1, &[], &[0], 100, zeros);
    m.add("no gates, measurements with a gap", 3, &[], &[2, 0], 100, zeros);
    m.add("no measurements", 1, &[rx(0, PI)], &[], 100, "without measurements the only key is the empty one");
    m.add("no gates, no measurements", 1, &[], &[], 7, "without measurements the only key is the empty one");
    let last = m.device.num_qubits.saturating_sub(1);
    m.add(
        "the last qubit of the device",
        last + 1,
        &[rx(last, PI)],
        &[last],
        100,
        "serve every qubit that `device` reports",
    );
    let all: Vec<u16> = (0..=last).collect();
    m.add("every qubit measured", last + 1, &[], &all, 100, "serve every qubit that `device` reports");
    m.add("a single shot", 1, &[ry(0, 1.0)], &[0], 1, "one shot has one outcome");
    m.add("an odd number of shots", 1, &[ry(0, 1.0)], &[0], 1237, "return every shot that was asked for");
}

/// The gate between two unlike rotations, so that its axis, its sign and its size all show in the counts.
fn one_qubit_gates(m: &mut Maker<'_>) {
    for &kind in m.target.gates().iter().filter(|k| k.num_qubits() == 1) {
        let angles: &[f64] = match (kind, kind.num_params()) {
            (GateKind::Id, _) => &[0.0, 250.0],
            (_, 0) => &[0.0],
            _ => &[0.9, -0.9, PI, 2.5, 7.0, -0.0],
        };
        for &angle in angles {
            let gate = Gate::one(kind, 0, angle);
            let of = if kind.num_params() == 0 { String::new() } else { format!("({angle:.3})") };
            let change = "compare the gate's matrix, angle and sign with the format's definition";
            let first = [ry(0, 0.7), gate, rx(0, 0.8)];
            m.add(&format!("{kind}{of} seen by rx"), 1, &first, &[0], SHOTS, change);
            let second = [rx(0, 0.7), gate, ry(0, 0.8)];
            m.add(&format!("{kind}{of} seen by ry"), 1, &second, &[0], SHOTS, change);
            m.add(&format!("{kind}{of} alone"), 1, &[gate], &[0], SHOTS, change);
        }
    }
    let order = [rx(0, 0.8), Gate::one(GateKind::Rz, 0, 1.1), ry(0, 0.6), rx(0, -1.9)];
    m.add("gates in order", 1, &order, &[0], SHOTS, "execute gates in the order of the list");
    let reversed: Vec<Gate> = order.iter().rev().copied().collect();
    m.add("gates in reverse order", 1, &reversed, &[0], SHOTS, "execute gates in the order of the list");
}

fn two_qubit_gates(m: &mut Maker<'_>) {
    let edge = match m.device.connectivity.edges() {
        None => (m.device.num_qubits >= 2).then_some((0, 1)),
        Some(edges) => edges.first().copied(),
    };
    let Some((a, b)) = edge else {
        let name = format!("{}/two-qubit gates", m.target);
        return m.skipped.push((name, "the device has no pair of connected qubits".into()));
    };
    let mut pairs = vec![(a, b)];
    if m.device.connectivity.allows(b, a) {
        pairs.push((b, a));
    }
    for &kind in m.target.gates().iter().filter(|k| k.num_qubits() == 2) {
        let angles: &[f64] = if kind.num_params() == 0 { &[0.0] } else { &[PI, 0.9, -0.9, 4.0] };
        for &(a, b) in &pairs {
            for &angle in angles {
                let qubits = a.max(b) + 1;
                let gate = Gate::two(kind, a, b, angle);
                let of = if kind.num_params() == 0 { String::new() } else { format!("({angle:.3})") };
                let name = format!("{kind}{of} on {a}, {b}");
                let change =
                    "compare the gate's matrix with the format's definition, and which qubit comes first";
                for (state, flips) in
                    [("01", vec![rx(b, PI)]), ("10", vec![rx(a, PI)]), ("11", vec![rx(a, PI), rx(b, PI)])]
                {
                    let mut gates = flips;
                    gates.push(gate);
                    m.add(&format!("{name}, on |{state}>"), qubits, &gates, &[a, b], 100, change);
                }
                // Phases show when each side is turned before and after.
                let before = [ry(a, 1.1), rx(a, 0.4), ry(b, 0.8), rx(b, -0.6)];
                let after = [rx(a, 0.9), ry(a, -0.7), ry(b, 1.2), rx(b, 0.5)];
                let turned = [&before[..], &[gate], &after[..]].concat();
                m.add(&format!("{name}, turned"), qubits, &turned, &[a, b], SHOTS, change);
                let twice = [&before[..], &[gate], &after[..], &[gate], &before[..]].concat();
                m.add(&format!("{name}, twice"), qubits, &twice, &[b, a], SHOTS, change);
            }
        }
    }
}
