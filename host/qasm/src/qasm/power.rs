//! Pure: fractional powers of gates.
//!
//! A unitary on one qubit is e^(i phase) exp(-i angle n.sigma) with a unit vector n, and its eigenvalues are
//! e^(i (phase - angle)) and e^(i (phase + angle)). Its power k has the same n, and k times the arguments of the
//! eigenvalues. Of gates with a name the arguments are those of the name: `pow(0.5) @ x` is `sx`, and
//! `pow(0.5) @ rx(a)` is `rx(a/2)`, whatever a is. Of products, and of `u`, they are the principal ones, in (-pi, pi].
//!
//! With controls the power is that of the part that is controlled, because where a control is 0 the eigenvalue is 1.
//! `swap` is a controlled x between two others.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_PI_2, FRAC_PI_4, FRAC_PI_8, PI, TAU};

use super::expand::Expansion;
use super::gates::Primitive;

/// An eigenvalue as near to -1 as this has the argument pi and not -pi.
const BRANCH_TOLERANCE: f64 = 1e-9;
/// Shorter vectors have no direction.
const NO_DIRECTION: f64 = 1e-12;

/// A unitary on one qubit: e^(i phase) (w - i (x X + y Y + z Z)), where w, x, y, z are a unit quaternion.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Turn {
    phase: f64,
    w: f64,
    v: [f64; 3],
}

/// A phase, an angle and a direction: e^(i phase) exp(-i angle n.sigma).
struct AxisAngle {
    phase: f64,
    angle: f64,
    axis: [f64; 3],
}

const X: [f64; 3] = [1.0, 0.0, 0.0];
const Y: [f64; 3] = [0.0, 1.0, 0.0];
const Z: [f64; 3] = [0.0, 0.0, 1.0];

/// A gate's target part by its name, with the arguments of its eigenvalues that the name stands for; none for `u`, which
/// has no such arguments, and for gates on several targets.
fn named(gate: &Primitive) -> Option<AxisAngle> {
    let [angle, ..] = gate.params;
    let (phase, angle, axis) = match gate.name {
        "id" => (0.0, 0.0, Z),
        "x" => (FRAC_PI_2, FRAC_PI_2, X),
        "y" => (FRAC_PI_2, FRAC_PI_2, Y),
        "z" => (FRAC_PI_2, FRAC_PI_2, Z),
        "h" => (FRAC_PI_2, FRAC_PI_2, [FRAC_1_SQRT_2, 0.0, FRAC_1_SQRT_2]),
        "s" => (FRAC_PI_4, FRAC_PI_4, Z),
        "sdg" => (-FRAC_PI_4, -FRAC_PI_4, Z),
        "t" => (FRAC_PI_8, FRAC_PI_8, Z),
        "tdg" => (-FRAC_PI_8, -FRAC_PI_8, Z),
        "sx" => (FRAC_PI_4, FRAC_PI_4, X),
        "sxdg" => (-FRAC_PI_4, -FRAC_PI_4, X),
        "p" => (angle / 2.0, angle / 2.0, Z),
        "rx" => (0.0, angle / 2.0, X),
        "ry" => (0.0, angle / 2.0, Y),
        "rz" => (0.0, angle / 2.0, Z),
        _ => return None,
    };
    Some(AxisAngle { phase, angle, axis })
}

impl AxisAngle {
    fn power(&self, exponent: f64) -> AxisAngle {
        AxisAngle { phase: self.phase * exponent, angle: self.angle * exponent, axis: self.axis }
    }

    fn turn(&self) -> Turn {
        let (sin, cos) = self.angle.sin_cos();
        Turn { phase: self.phase, w: cos, v: self.axis.map(|part| part * sin) }
    }
}

impl Turn {
    const IDENTITY: Turn = Turn { phase: 0.0, w: 1.0, v: [0.0; 3] };

    /// The target part of a gate on one target.
    fn of(gate: &Primitive) -> Option<Turn> {
        let [theta, phi, lambda] = gate.params;
        if gate.name != "u" {
            return named(gate).map(|gate| gate.turn());
        }
        // e^(i (phi + lambda)/2) rz(phi) ry(theta) rz(lambda)
        let turn = |angle, axis| AxisAngle { phase: 0.0, angle: angle / 2.0, axis }.turn();
        let product = turn(lambda, Z).then(turn(theta, Y)).then(turn(phi, Z));
        Some(Turn { phase: (phi + lambda) / 2.0, ..product })
    }

    /// This one first: the product of `next` and this one, by the product of quaternions.
    fn then(self, next: Turn) -> Turn {
        let ([a, b, c], [d, e, f]) = (next.v, self.v);
        Turn {
            phase: self.phase + next.phase,
            w: next.w * self.w - (a * d + b * e + c * f),
            v: [
                next.w * d + self.w * a + (b * f - c * e),
                next.w * e + self.w * b + (c * d - a * f),
                next.w * f + self.w * c + (a * e - b * d),
            ],
        }
    }

    /// The principal power.
    fn power(self, exponent: f64) -> AxisAngle {
        let length = self.v.iter().map(|part| part * part).sum::<f64>().sqrt();
        let angle = length.atan2(self.w);
        let (low, high) = (principal(self.phase - angle), principal(self.phase + angle));
        let (phase, angle, axis) = match length < NO_DIRECTION {
            true => (low, 0.0, Z),
            false => ((low + high) / 2.0, (high - low) / 2.0, self.v.map(|part| part / length)),
        };
        AxisAngle { phase, angle, axis }.power(exponent)
    }
}

/// The same angle in (-pi, pi].
fn principal(angle: f64) -> f64 {
    let turned = angle - TAU * (angle / TAU).round();
    if turned < BRANCH_TOLERANCE - PI { turned + TAU } else { turned }
}

/// A unitary on one qubit as a gate on this target of that gate, and the phase that is left.
fn gate_of(power: &AxisAngle, pattern: &Primitive) -> (Primitive, f64) {
    let with = |name, params| Primitive { name, params, ..*pattern };
    let angle = 2.0 * power.angle;
    match power.axis {
        X => (with("rx", [angle, 0.0, 0.0]), power.phase),
        Y => (with("ry", [angle, 0.0, 0.0]), power.phase),
        // A phase gate says the same with less: its first eigenvalue is 1.
        Z if power.phase == power.angle => (with("p", [angle, 0.0, 0.0]), 0.0),
        Z => (with("rz", [angle, 0.0, 0.0]), power.phase),
        _ => {
            // Its first column is (w - iz, y - ix) and its first row ends with -y - ix; in `u` the first element is
            // real, and the others are e^(i phi) sin and -e^(i lambda) sin.
            let Turn { w, v: [x, y, z], .. } = power.turn();
            let theta = 2.0 * x.hypot(y).atan2(w.hypot(z));
            let first = (-z).atan2(w);
            let (phi, lambda) = ((-x).atan2(y) - first, x.atan2(y) - first);
            (with("u", [theta, phi, lambda]), power.phase + first)
        }
    }
}

/// The power of what was expanded; none when its eigenvalues aren't known here: it acts on several qubits in a way that
/// is no controlled gate on one.
pub(super) fn power(base: &Expansion, exponent: f64) -> Option<Expansion> {
    let mut result = Expansion { gates: Vec::new(), phase: base.phase * exponent };
    let (first, others) = match &base.gates[..] {
        [] => return Some(result),
        [first, others @ ..] => (first, others),
    };
    if first.name == "swap" {
        if !others.is_empty() || base.phase != 0.0 {
            return None;
        }
        let qubits: Vec<u32> = first.qubits.iter().collect();
        let (controls, targets) = qubits.split_at(first.controls);
        let &[a, b] = targets else { return None };
        let outer = Primitive::new("x", &[], 1, &[b, a]);
        let inner_qubits = [controls, &[a, b]].concat();
        let x = Primitive::new("x", &[], first.controls + 1, &inner_qubits);
        result.gates.push(outer);
        add(&mut result, &named(&x)?.power(exponent), &x);
        result.gates.push(outer);
        return Some(result);
    }
    if others.is_empty()
        && base.phase == 0.0
        && let Some(gate) = named(first)
    {
        add(&mut result, &gate.power(exponent), first);
        return Some(result);
    }
    // Phases on the same qubits count as phases of the controlled part, whichever qubit is their target.
    let pattern = base.gates.iter().find(|gate| gate.name != "p").unwrap_or(first);
    let mut product = Turn::IDENTITY;
    for gate in &base.gates {
        let is_same =
            gate.controls == pattern.controls && gate.qubits.iter().last() == pattern.qubits.iter().last();
        let controls = |gate: &Primitive| same_qubits(gate.qubits.iter().take(gate.controls));
        let on_controls = gate.name == "p" && same_qubits(gate.qubits.iter()) == controls(pattern);
        if is_same && controls(gate) == controls(pattern) {
            product = product.then(Turn::of(gate)?);
        } else if on_controls {
            product.phase += gate.params[0];
        } else {
            return None;
        }
    }
    // Where a control is 0, the eigenvalue is that of the phase alone.
    let outside = if pattern.controls == 0 { 0.0 } else { principal(base.phase) };
    product.phase += base.phase;
    result.phase = outside * exponent;
    let mut inside = product.power(exponent);
    inside.phase -= outside * exponent;
    add(&mut result, &inside, pattern);
    Some(result)
}

/// A set of qubits.
fn same_qubits(qubits: impl Iterator<Item = u32>) -> u32 {
    qubits.fold(0, |set, qubit| set | 1 << qubit)
}

/// Adds a unitary on the target of a gate, with its controls.
fn add(to: &mut Expansion, unitary: &AxisAngle, pattern: &Primitive) {
    let (gate, phase) = gate_of(unitary, pattern);
    to.gates.push(gate);
    let controls: Vec<u32> = pattern.qubits.iter().take(pattern.controls).collect();
    match pattern.controls {
        0 => to.phase += phase,
        _ if phase == 0.0 => {}
        count => to.gates.push(Primitive::new("p", &[phase], count - 1, &controls)),
    }
}
