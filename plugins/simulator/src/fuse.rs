//! Turns a gate list into a plan of as few passes over the state as possible.
//!
//! Contract: [`Plan`] acts on |0...0> like the gates it was made from, up to a global phase and a qubit
//! relabelling that [`Plan::place`] tells. Everything is reduced to two kinds of work:
//! - *rotations*: real (about y) or of the form of rx, one per qubit and stage;
//! - *diagonals*: all phases of a stage, merged, applied in one pass however many there are.
//!
//! A general one-qubit unitary is diagonal, rotation about y, diagonal; an iswap is a diagonal and an
//! exchange of labels; a cnot is a cz between two Hadamards, which merge with their neighbours. Gates on
//! disjoint qubits commute, so each gate goes to the earliest stage that its qubits allow.

use std::f64::consts::FRAC_1_SQRT_2;
use std::ops::Mul;

/// A complex number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct C {
    pub re: f64,
    pub im: f64,
}

impl C {
    pub const ZERO: C = C { re: 0.0, im: 0.0 };
    pub const ONE: C = C { re: 1.0, im: 0.0 };
    pub const MINUS_ONE: C = C { re: -1.0, im: 0.0 };
    pub const I: C = C { re: 0.0, im: 1.0 };

    /// e^(i angle).
    pub fn phase(angle: f64) -> C {
        C { re: angle.cos(), im: angle.sin() }
    }

    fn abs(self) -> f64 {
        self.re.hypot(self.im)
    }

    fn conj(self) -> C {
        C { re: self.re, im: -self.im }
    }

    /// The direction, 1 for zero. Exact for numbers on an axis.
    fn unit(self) -> C {
        let abs = self.abs();
        if abs == 0.0 { C::ONE } else { C { re: self.re / abs, im: self.im / abs } }
    }
}

impl Mul for C {
    type Output = C;

    fn mul(self, o: C) -> C {
        C { re: self.re * o.re - self.im * o.im, im: self.re * o.im + self.im * o.re }
    }
}

/// A 2x2 matrix, row by row.
pub type Matrix = [[C; 2]; 2];

pub const PAULI_X: Matrix = [[C::ZERO, C::ONE], [C::ONE, C::ZERO]];
pub const PAULI_Y: Matrix = [[C::ZERO, C { re: 0.0, im: -1.0 }], [C::I, C::ZERO]];
const H: C = C { re: FRAC_1_SQRT_2, im: 0.0 };
const HADAMARD: Matrix = [[H, H], [H, C { re: -FRAC_1_SQRT_2, im: 0.0 }]];

fn rx(angle: f64) -> Matrix {
    let (s, c) = (angle / 2.0).sin_cos();
    let (c, s) = (C { re: c, im: 0.0 }, C { re: 0.0, im: -s });
    [[c, s], [s, c]]
}

fn ry(angle: f64) -> Matrix {
    let (s, c) = (angle / 2.0).sin_cos();
    let real = |re| C { re, im: 0.0 };
    [[real(c), real(-s)], [real(s), real(c)]]
}

/// `after * before`.
fn product(after: &Matrix, before: &Matrix) -> Matrix {
    let entry = |i: usize, j: usize| {
        let (x, y) = (after[i][0] * before[0][j], after[i][1] * before[1][j]);
        C { re: x.re + y.re, im: x.im + y.im }
    };
    [[entry(0, 0), entry(0, 1)], [entry(1, 0), entry(1, 1)]]
}

/// The rotation of a pair of amplitudes, without the common factor that keeps its length: what is left
/// needs half the multiplications, and sampling doesn't care about the length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rotation {
    /// `[[1, -it], [-it, 1]]`
    XSmall(f64),
    /// `[[k, -i], [-i, k]]`
    XLarge(f64),
    /// `[[1, -t], [t, 1]]`
    YSmall(f64),
    /// `[[k, -1], [1, k]]`
    YLarge(f64),
}

impl Rotation {
    /// From cosine and sine of half the angle; the parameter never exceeds 1.
    fn x(cos: f64, sin: f64) -> Rotation {
        if cos.abs() >= sin.abs() { Rotation::XSmall(sin / cos) } else { Rotation::XLarge(cos / sin) }
    }

    fn y(cos: f64, sin: f64) -> Rotation {
        if cos.abs() >= sin.abs() { Rotation::YSmall(sin / cos) } else { Rotation::YLarge(cos / sin) }
    }

    fn is_identity(self) -> bool {
        matches!(self, Rotation::XSmall(0.0) | Rotation::YSmall(0.0))
    }

    /// The binary logarithm of the factor by which it lengthens the state.
    pub fn growth_bits(self) -> f64 {
        let (Rotation::XSmall(t) | Rotation::XLarge(t) | Rotation::YSmall(t) | Rotation::YLarge(t)) = self;
        0.5 * (1.0 + t * t).log2()
    }
}

/// Rotations on distinct qubits, then diagonals.
#[derive(Debug, Default)]
pub struct Stage {
    pub rotations: Vec<(usize, Rotation)>,
    /// Phases of a set bit.
    pub one: Vec<(usize, C)>,
    /// Phases of two set bits, the lower one first.
    pub two: Vec<(usize, usize, C)>,
}

/// What [`crate::kernel::State`] executes.
#[derive(Debug)]
pub struct Plan {
    pub num_qubits: usize,
    pub stages: Vec<Stage>,
    place: Vec<usize>,
}

impl Plan {
    /// The bit of the state that holds `qubit` in the end.
    pub fn place(&self, qubit: usize) -> usize {
        self.place[qubit]
    }
}

#[derive(Debug, Clone, Copy)]
enum Single {
    /// Kept apart from other unitaries because it needs no phases.
    Rx(f64),
    Any(Matrix),
}

impl Single {
    fn matrix(self) -> Matrix {
        match self {
            Single::Rx(angle) => rx(angle),
            Single::Any(m) => m,
        }
    }
}

#[derive(Debug, Default)]
struct Draft {
    singles: Vec<(usize, Single)>,
    one: Vec<(usize, C)>,
    two: Vec<(usize, usize, C)>,
}

/// How far the gates of a qubit have got.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Front {
    stage: usize,
    /// A diagonal of this stage acts on the qubit, so that its rotations belong to the next one.
    diagonal: bool,
}

/// Takes gates in order and puts each where it costs least.
#[derive(Debug)]
pub struct Planner {
    drafts: Vec<Draft>,
    fronts: Vec<Front>,
    place: Vec<usize>,
}

impl Planner {
    pub fn new(num_qubits: usize) -> Planner {
        Planner {
            drafts: Vec::new(),
            fronts: vec![Front::default(); num_qubits],
            place: (0..num_qubits).collect(),
        }
    }

    fn draft(&mut self, stage: usize) -> &mut Draft {
        if self.drafts.len() <= stage {
            self.drafts.resize_with(stage + 1, Draft::default);
        }
        &mut self.drafts[stage]
    }

    pub fn rx(&mut self, qubit: usize, angle: f64) {
        self.single(qubit, Single::Rx(angle));
    }

    pub fn ry(&mut self, qubit: usize, angle: f64) {
        self.unitary(qubit, ry(angle));
    }

    pub fn unitary(&mut self, qubit: usize, matrix: Matrix) {
        self.single(qubit, Single::Any(matrix));
    }

    fn single(&mut self, qubit: usize, gate: Single) {
        let bit = self.place[qubit];
        let front = &mut self.fronts[bit];
        if front.diagonal {
            *front = Front { stage: front.stage + 1, diagonal: false };
        }
        let stage = front.stage;
        let singles = &mut self.draft(stage).singles;
        match singles.iter_mut().find(|(b, _)| *b == bit) {
            None => singles.push((bit, gate)),
            Some((_, before)) => {
                *before = match (*before, gate) {
                    (Single::Rx(a), Single::Rx(b)) => Single::Rx(a + b),
                    (before, gate) => Single::Any(product(&gate.matrix(), &before.matrix())),
                }
            }
        }
    }

    /// diag(1, phase).
    pub fn phase(&mut self, qubit: usize, phase: C) {
        let bit = self.place[qubit];
        let front = self.fronts[bit];
        if front.diagonal {
            one(&mut self.draft(front.stage).one, bit, phase);
        } else {
            self.unitary(qubit, [[C::ONE, C::ZERO], [C::ZERO, phase]]);
        }
    }

    /// diag(1, 1, 1, phase).
    pub fn controlled_phase(&mut self, a: usize, b: usize, phase: C) {
        let (a, b) = (self.place[a], self.place[b]);
        let stage = self.fronts[a].max(self.fronts[b]).stage;
        let (low, high) = (a.min(b), a.max(b));
        let two = &mut self.draft(stage).two;
        match two.iter_mut().find(|t| (t.0, t.1) == (low, high)) {
            None => two.push((low, high, phase)),
            Some((_, _, before)) => *before = *before * phase,
        }
        let front = Front { stage, diagonal: true };
        (self.fronts[a], self.fronts[b]) = (front, front);
    }

    pub fn cnot(&mut self, control: usize, target: usize) {
        self.unitary(target, HADAMARD);
        self.controlled_phase(control, target, C::MINUS_ONE);
        self.unitary(target, HADAMARD);
    }

    pub fn iswap(&mut self, a: usize, b: usize) {
        // diag(1, i, i, 1), then an exchange.
        self.phase(a, C::I);
        self.phase(b, C::I);
        self.controlled_phase(a, b, C::MINUS_ONE);
        self.place.swap(a, b);
    }

    pub fn finish(self) -> Plan {
        let mut stages: Vec<Stage> = Vec::with_capacity(self.drafts.len());
        for draft in self.drafts {
            let mut stage = Stage { rotations: Vec::new(), one: draft.one, two: draft.two };
            for (bit, single) in draft.singles {
                let (before, rotation, after) = match single {
                    Single::Rx(angle) => {
                        let (sin, cos) = (angle / 2.0).sin_cos();
                        (C::ONE, Rotation::x(cos, sin), C::ONE)
                    }
                    Single::Any(m) => split(&m),
                };
                // What precedes the rotation belongs to the diagonals of the stage before; in the first
                // stage the qubit is |0>, on which a phase of |1> does nothing.
                if let Some(previous) = stages.last_mut() {
                    one(&mut previous.one, bit, before);
                }
                one(&mut stage.one, bit, after);
                if !rotation.is_identity() {
                    stage.rotations.push((bit, rotation));
                }
            }
            stages.push(stage);
        }
        for stage in &mut stages {
            stage.one.retain(|(_, phase)| *phase != C::ONE);
            stage.two.retain(|(_, _, phase)| *phase != C::ONE);
        }
        Plan { num_qubits: self.fronts.len(), stages, place: self.place }
    }
}

/// Merges a phase of |1> into a list of them.
fn one(list: &mut Vec<(usize, C)>, bit: usize, phase: C) {
    match list.iter_mut().find(|(b, _)| *b == bit) {
        None => list.push((bit, phase)),
        Some((_, before)) => *before = *before * phase,
    }
}

/// A unitary as phase of |1>, rotation about y, phase of |1>, up to a global phase.
fn split(m: &Matrix) -> (C, Rotation, C) {
    let [[a, b], [c, d]] = *m;
    let (cos, sin) = (a.abs(), c.abs());
    let minus_b = C { re: -b.re, im: -b.im };
    let global = a.unit().conj();
    // The larger pair of entries fixes the sum or difference of the two phases, so that nothing is derived
    // from the direction of an entry that is zero but for rounding.
    let (before, after) = if cos >= sin {
        let sum = d.unit() * global;
        let after = if sin == 0.0 { C::ONE } else { c.unit() * global };
        (sum * after.conj(), after)
    } else {
        (minus_b.unit() * global, c.unit() * global)
    };
    (before, Rotation::y(cos, sin), after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_matrix(rotation: Rotation) -> Matrix {
        let real = |re| C { re, im: 0.0 };
        match rotation {
            Rotation::YSmall(t) => [[C::ONE, real(-t)], [real(t), C::ONE]],
            Rotation::YLarge(k) => [[real(k), C::MINUS_ONE], [C::ONE, real(k)]],
            Rotation::XSmall(_) | Rotation::XLarge(_) => unreachable!("split makes rotations about y"),
        }
    }

    /// |<m|n>| = |m| |n| exactly when they differ by a factor only.
    fn proportional(m: &Matrix, n: &Matrix) -> bool {
        let (mut dot, mut mm, mut nn) = (C::ZERO, 0.0, 0.0);
        for (x, y) in m.iter().flatten().zip(n.iter().flatten()) {
            let p = x.conj() * *y;
            dot = C { re: dot.re + p.re, im: dot.im + p.im };
            mm += x.abs() * x.abs();
            nn += y.abs() * y.abs();
        }
        (dot.abs() - f64::sqrt(mm * nn)).abs() < 1e-14 * f64::sqrt(mm * nn)
    }

    #[test]
    fn every_unitary_is_phase_rotation_phase() {
        let z = |p: C| [[C::ONE, C::ZERO], [C::ZERO, p]];
        let mut cases =
            vec![PAULI_X, PAULI_Y, z(C::MINUS_ONE), HADAMARD, rx(0.3), ry(-0.3), rx(3.0), rx(1e-9)];
        for i in 0..40 {
            let a = f64::from(i) * 0.7;
            cases.push(product(&rx(a), &product(&z(C::phase(1.3 * a)), &ry(2.1 * a))));
        }
        for m in &cases {
            let (before, rotation, after) = split(m);
            let back = product(&z(after), &product(&as_matrix(rotation), &z(before)));
            assert!(proportional(m, &back), "{m:?} became {back:?}");
        }
    }

    #[test]
    fn a_layer_of_rx_and_a_layer_of_cz_are_one_stage() {
        let mut p = Planner::new(4);
        for layer in 0..3 {
            for q in 0..4 {
                p.rx(q, 0.1 + f64::from(layer));
            }
            for q in 0..3 {
                p.controlled_phase(q, q + 1, C::MINUS_ONE);
            }
        }
        let plan = p.finish();
        assert_eq!(plan.stages.len(), 3);
        assert!(plan.stages.iter().all(|s| s.rotations.len() == 4 && s.two.len() == 3 && s.one.is_empty()));
    }

    #[test]
    fn gates_that_undo_each_other_leave_no_work() {
        let mut p = Planner::new(2);
        p.cnot(0, 1);
        p.rx(0, 0.4);
        p.rx(0, -0.4);
        let twice = p.finish();
        assert!(twice.stages[1].rotations.iter().all(|(bit, _)| *bit == 1));
        let mut p = Planner::new(2);
        p.controlled_phase(0, 1, C::MINUS_ONE);
        p.controlled_phase(1, 0, C::MINUS_ONE);
        assert!(p.finish().stages.iter().all(|s| s.two.is_empty()));
    }

    #[test]
    fn iswap_costs_no_pass_of_its_own() {
        let mut p = Planner::new(3);
        p.iswap(0, 2);
        let plan = p.finish();
        assert_eq!((plan.place(0), plan.place(1), plan.place(2)), (2, 1, 0));
        assert!(plan.stages.iter().all(|s| s.rotations.is_empty()));
    }
}
