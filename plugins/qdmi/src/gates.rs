//! Which native gates a device serves, by its list of operations, and in which of its operations each is written.
//!
//! Contract: pure. Every sequence equals its gate up to a global phase, measurements of qubits included; only names from
//! the list are used, except where the config states the targets itself.

use std::f64::consts::{FRAC_PI_2, PI};

use coda_plugin_abi::{Gate, Op, Target};

/// How rotations of one qubit are written.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rotations {
    /// `rx` and `ry`.
    Axes,
    /// One gate, by this name, with an angle and the phase of its axis in the plane of x and y.
    Phased(String),
    /// `sx` between rotations about z.
    SqrtX,
}

/// The operations that circuits are written in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dialect {
    rotations: Rotations,
    /// `None`: rotations about z become phases of later ones (a frame for each qubit).
    rz: Option<String>,
    cz: String,
    cx: String,
    cp: Option<String>,
    /// `None`: from `s`, `h` and `cx`.
    iswap: Option<String>,
}

/// One operation of a circuit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step<'a> {
    pub name: &'a str,
    angles: [f64; 2],
    num_angles: usize,
    pub qubits: (u16, Option<u16>),
}

impl<'a> Step<'a> {
    pub fn renamed(self, name: &'a str) -> Step<'a> {
        Step { name, ..self }
    }

    pub fn angles(&self) -> &[f64] {
        &self.angles[..self.num_angles]
    }
}

/// The targets of a device and how circuits for them are written. `stated` are those of the config.
///
/// # Errors
/// When none fits; the text lists the operations.
pub fn choose(operations: &[String], stated: Option<&[Target]>) -> Result<(Vec<Target>, Dialect), String> {
    let listed = |names: &[&str]| {
        names.iter().find(|name| operations.iter().any(|op| op == *name)).map(ToString::to_string)
    };
    let has = |name: &str| operations.iter().any(|op| op == name);
    let rz = listed(&["rz", "p", "u1"]);
    let phased = listed(&["r", "prx"]);
    let rotations = match phased {
        _ if has("rx") && has("ry") && rz.is_some() => Some(Rotations::Axes),
        Some(name) => Some(Rotations::Phased(name)),
        None if has("sx") && rz.is_some() => Some(Rotations::SqrtX),
        None => None,
    };
    let (cz, cx) = (listed(&["cz"]), listed(&["cx", "cnot"]));
    let (cp, iswap) = (listed(&["cp", "cu1"]), listed(&["iswap"]));
    let targets = match stated {
        Some(stated) => stated.to_vec(),
        None if rotations.is_none() => Vec::new(),
        None => {
            // A frame doesn't pass the target of a cx.
            let offered = [
                (Target::Cz, cz.is_some()),
                (Target::Cnot, cx.is_some() && rz.is_some()),
                (Target::Pcz, cp.is_some()),
                (Target::Iswap, iswap.is_some()),
            ];
            offered.into_iter().filter(|(_, fits)| *fits).map(|(target, _)| target).collect()
        }
    };
    if targets.is_empty() {
        return Err(format!(
            "the device's operations make up no native gate set (they are: {}); if it takes more than it lists, set \
             `targets`",
            if operations.is_empty() { "none".into() } else { operations.join(", ") }
        ));
    }
    let needs_rz =
        rotations.is_none() || targets.contains(&Target::Cnot) || decomposes(&targets, iswap.as_ref());
    let dialect = Dialect {
        rz: if needs_rz { Some(rz.unwrap_or_else(|| "rz".into())) } else { rz },
        rotations: rotations.unwrap_or(Rotations::Axes),
        cz: cz.unwrap_or_else(|| "cz".into()),
        cx: cx.unwrap_or_else(|| "cx".into()),
        cp,
        iswap,
    };
    Ok((targets, dialect))
}

fn decomposes(targets: &[Target], iswap: Option<&String>) -> bool {
    targets.contains(&Target::Iswap) && iswap.is_none()
}

impl Dialect {
    /// IQM's own: `prx`, `cz` and frames.
    pub fn iqm() -> Dialect {
        Dialect {
            rotations: Rotations::Phased("prx".into()),
            rz: None,
            cz: "cz".into(),
            cx: "cx".into(),
            cp: None,
            iswap: None,
        }
    }

    /// Writes gates one after the other. `cp` is the name of that gate where the device lists neither.
    ///
    /// # Errors
    /// For a gate of a kind that a newer host may know.
    pub fn write<'s>(
        &'s self,
        num_qubits: u16,
        gates: &[Gate],
        cp: &'s str,
        emit: &mut dyn FnMut(Step<'s>),
    ) -> Result<(), String> {
        let mut writer = Writer { dialect: self, cp, frames: vec![0.0; usize::from(num_qubits)], emit };
        for (index, gate) in gates.iter().enumerate() {
            let unknown =
                || format!("gate {index} is of kind {}, which this plugin does not know", gate.kind);
            writer.gate(gate.op().ok_or_else(unknown)?);
        }
        Ok(())
    }
}

struct Writer<'w, 's> {
    dialect: &'s Dialect,
    cp: &'s str,
    /// For each qubit, the rotation about z that is still to be done.
    frames: Vec<f64>,
    emit: &'w mut dyn FnMut(Step<'s>),
}

impl<'s> Writer<'_, 's> {
    fn one(&mut self, name: &'s str, q: u16, angles: &[f64]) {
        self.step(name, (q, None), angles);
    }

    fn two(&mut self, name: &'s str, a: u16, b: u16, angles: &[f64]) {
        self.step(name, (a, Some(b)), angles);
    }

    fn step(&mut self, name: &'s str, qubits: (u16, Option<u16>), angles: &[f64]) {
        let mut padded = [0.0; 2];
        padded[..angles.len()].copy_from_slice(angles);
        (self.emit)(Step { name, angles: padded, num_angles: angles.len(), qubits });
    }

    fn gate(&mut self, op: Op) {
        match op {
            Op::Rx { q, angle } => self.rotate(q, angle, 0.0),
            Op::Ry { q, angle } => self.rotate(q, angle, FRAC_PI_2),
            Op::X90 { q } => self.rotate(q, FRAC_PI_2, 0.0),
            Op::YMinus90 { q } => self.rotate(q, -FRAC_PI_2, FRAC_PI_2),
            Op::Rz { q, angle } | Op::VirtualZ { q, angle } => self.turn(q, angle),
            Op::Id { .. } => {}
            Op::Cz { a, b } => self.two(&self.dialect.cz, a, b, &[]),
            Op::Cnot { control, target } => self.two(&self.dialect.cx, control, target, &[]),
            Op::Cp { a, b, angle } => {
                self.two(self.dialect.cp.as_deref().unwrap_or(self.cp), a, b, &[angle]);
            }
            Op::Iswap { a, b } => self.iswap(a, b),
        }
    }

    /// A rotation about the axis in the plane of x and y at this phase: 0 is x, π/2 is y.
    fn rotate(&mut self, q: u16, angle: f64, phase: f64) {
        match &self.dialect.rotations {
            Rotations::Axes => {
                let name = if phase == 0.0 { "rx" } else { "ry" };
                self.one(name, q, &[angle]);
            }
            Rotations::Phased(name) => {
                let frame = self.frames[usize::from(q)];
                self.one(name, q, &[angle, phase - frame]);
            }
            Rotations::SqrtX => {
                // Euler angles: U(angle, -π/2, π/2) about x, U(angle, 0, 0) about y.
                let (first, last) = if phase == 0.0 { (FRAC_PI_2, -FRAC_PI_2) } else { (0.0, 0.0) };
                self.turn(q, first);
                self.one("sx", q, &[]);
                self.turn(q, angle + PI);
                self.one("sx", q, &[]);
                self.turn(q, last + PI);
            }
        }
    }

    fn turn(&mut self, q: u16, angle: f64) {
        match &self.dialect.rz {
            Some(name) => self.one(name, q, &[angle]),
            None => self.frames[usize::from(q)] += angle,
        }
    }

    fn iswap(&mut self, a: u16, b: u16) {
        let dialect = self.dialect;
        if let Some(name) = &dialect.iswap {
            self.two(name, a, b, &[]);
            // What was to be done to one qubit is now to be done to the other.
            self.frames.swap(usize::from(a), usize::from(b));
            return;
        }
        self.one("s", a, &[]);
        self.one("s", b, &[]);
        self.one("h", a, &[]);
        self.two(&dialect.cx, a, b, &[]);
        self.two(&dialect.cx, b, a, &[]);
        self.one("h", b, &[]);
    }
}

#[cfg(test)]
mod tests {
    use coda_plugin_abi::GateKind;

    use super::*;

    /// A complex number.
    #[derive(Debug, Clone, Copy, PartialEq)]
    struct C(f64, f64);

    impl std::ops::Mul for C {
        type Output = C;
        fn mul(self, o: C) -> C {
            C(self.0 * o.0 - self.1 * o.1, self.0 * o.1 + self.1 * o.0)
        }
    }

    impl std::ops::Add for C {
        type Output = C;
        fn add(self, o: C) -> C {
            C(self.0 + o.0, self.1 + o.1)
        }
    }

    fn phase(angle: f64) -> C {
        C(angle.cos(), angle.sin())
    }

    /// By the definitions in OpenQASM 3's standard library, row by row.
    fn matrix(name: &str, angles: &[f64]) -> Vec<Vec<C>> {
        let (zero, one) = (C(0.0, 0.0), C(1.0, 0.0));
        let r = |t: f64, p: f64| {
            let (c, s) = ((t / 2.0).cos(), (t / 2.0).sin());
            let m = C(0.0, -s);
            vec![vec![C(c, 0.0), m * phase(-p)], vec![m * phase(p), C(c, 0.0)]]
        };
        let half = std::f64::consts::FRAC_1_SQRT_2;
        let diagonal = |d: &[C]| {
            (0..d.len()).map(|i| (0..d.len()).map(|j| if i == j { d[i] } else { zero }).collect()).collect()
        };
        match name {
            "rx" => r(angles[0], 0.0),
            "ry" => r(angles[0], FRAC_PI_2),
            "r" | "prx" => r(angles[0], angles[1]),
            "rz" => diagonal(&[phase(-angles[0] / 2.0), phase(angles[0] / 2.0)]),
            "p" | "u1" => diagonal(&[one, phase(angles[0])]),
            "sx" => vec![vec![C(0.5, 0.5), C(0.5, -0.5)], vec![C(0.5, -0.5), C(0.5, 0.5)]],
            "s" => diagonal(&[one, C(0.0, 1.0)]),
            "h" => vec![vec![C(half, 0.0), C(half, 0.0)], vec![C(half, 0.0), C(-half, 0.0)]],
            "cz" => diagonal(&[one, one, one, C(-1.0, 0.0)]),
            "cp" | "cu1" => diagonal(&[one, one, one, phase(angles[0])]),
            // Index 2a + b for the operands (a, b).
            "cx" | "cnot" => vec![
                vec![one, zero, zero, zero],
                vec![zero, one, zero, zero],
                vec![zero, zero, zero, one],
                vec![zero, zero, one, zero],
            ],
            "iswap" => {
                let i = C(0.0, 1.0);
                vec![
                    vec![one, zero, zero, zero],
                    vec![zero, zero, i, zero],
                    vec![zero, i, zero, zero],
                    vec![zero, zero, zero, one],
                ]
            }
            other => panic!("{other} is not a gate of the standard library"),
        }
    }

    /// A state of two qubits after an operation; bit q of an index is qubit q.
    fn apply(state: &[C], name: &str, angles: &[f64], qubits: (u16, Option<u16>)) -> Vec<C> {
        let m = matrix(name, angles);
        let bits: Vec<u16> = [Some(qubits.0), qubits.1].into_iter().flatten().collect();
        let local = |index: usize| bits.iter().fold(0, |n, q| n << 1 | (index >> q & 1));
        let mask: usize = bits.iter().map(|q| 1 << q).sum();
        (0..state.len())
            .map(|row| {
                let columns = (0..state.len()).filter(|column| column & !mask == row & !mask);
                columns.fold(C(0.0, 0.0), |sum, column| sum + m[local(row)][local(column)] * state[column])
            })
            .collect()
    }

    fn reference(state: Vec<C>, gate: &Gate) -> Vec<C> {
        let (name, angles, qubits): (&str, Vec<f64>, _) = match gate.op().unwrap() {
            Op::Rx { q, angle } => ("rx", vec![angle], (q, None)),
            Op::Ry { q, angle } => ("ry", vec![angle], (q, None)),
            Op::Rz { q, angle } | Op::VirtualZ { q, angle } => ("rz", vec![angle], (q, None)),
            Op::X90 { q } => ("rx", vec![FRAC_PI_2], (q, None)),
            Op::YMinus90 { q } => ("ry", vec![-FRAC_PI_2], (q, None)),
            Op::Id { .. } => return state,
            Op::Cz { a, b } => ("cz", vec![], (a, Some(b))),
            Op::Cnot { control, target } => ("cx", vec![], (control, Some(target))),
            Op::Cp { a, b, angle } => ("cp", vec![angle], (a, Some(b))),
            Op::Iswap { a, b } => ("iswap", vec![], (a, Some(b))),
        };
        apply(&state, name, &angles, qubits)
    }

    fn names(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    /// Every gate of the target in a circuit that shows phases: each state's measurement probabilities are compared.
    fn circuit(target: Target) -> Vec<Gate> {
        let mut gates = Vec::new();
        for round in 0..3 {
            let t = 0.3 + 0.7 * f64::from(round);
            for kind in target.gates() {
                if kind.num_qubits() == 2 {
                    // What turns the qubits in between shows the phases that each leaves.
                    for (a, b, angle) in [(0, 1, t), (1, 0, -0.4 * t)] {
                        gates.push(Gate::two(*kind, a, b, angle));
                        gates.push(Gate::one(GateKind::Ry, 0, 0.9));
                        gates.push(Gate::one(GateKind::Rx, 1, -0.8));
                    }
                } else {
                    gates.push(Gate::one(*kind, 0, t));
                    gates.push(Gate::one(*kind, 1, 1.1 - t));
                }
            }
        }
        gates
    }

    #[test]
    fn every_dialect_gives_the_gates_of_every_target() {
        let tables = [
            ("rx ry rz cz", None),
            ("rx ry p cx", None),
            ("rx ry rz cx cz cp iswap h s", None),
            ("r cz", None),
            ("prx rz cnot cz", None),
            ("r iswap", None),
            ("r rz cu1", None),
            ("rz sx x cz", None),
            ("rz sx cx", None),
            ("u1 sx ecr cp", None),
            ("rx ry rz cx", Some(&Target::ALL[..])),
            ("r h s cx", Some(&[Target::Iswap][..])),
            ("gpi gpi2 ms", Some(&Target::ALL[..])),
        ];
        let mut tried = 0;
        for (operations, stated) in tables {
            let operations = names(operations);
            let (targets, dialect) = choose(&operations, stated).unwrap();
            let iqm = (operations == ["r", "cz"]).then(Dialect::iqm);
            for dialect in [Some(dialect), iqm].into_iter().flatten() {
                for target in &targets {
                    let gates = circuit(*target);
                    let mut start = vec![C(0.0, 0.0); 4];
                    start[0] = C(1.0, 0.0);
                    // After each gate: a phase that is lost in one place shows in a later probability.
                    for len in 1..=gates.len() {
                        let wants = gates[..len].iter().fold(start.clone(), reference);
                        let mut got = start.clone();
                        let mut steps = 0;
                        dialect
                            .write(2, &gates[..len], "cp", &mut |step| {
                                steps += 1;
                                got = apply(&got, step.name, step.angles(), step.qubits);
                                if stated.is_none() && iqm_names(&operations) {
                                    assert!(operations.iter().any(|op| op == step.name), "{}", step.name);
                                }
                            })
                            .unwrap();
                        let probability = |c: &C| c.0 * c.0 + c.1 * c.1;
                        for (want, got) in wants.iter().zip(&got) {
                            let apart = (probability(want) - probability(got)).abs();
                            assert!(apart < 1e-9, "{operations:?}, {target}, {len} gates");
                        }
                        tried += usize::from(steps > 0);
                    }
                }
            }
        }
        assert!(tried > 500, "{tried}");
    }

    fn iqm_names(operations: &[String]) -> bool {
        operations != ["r", "cz"]
    }

    #[test]
    fn targets_follow_from_the_operations() {
        use Target::*;
        let table: &[(&str, &[Target])] = &[
            ("rx ry rz cz measure", &[Cz]),
            ("r cz measure", &[Cz]),
            ("prx cz move", &[Cz]),
            ("rx ry rz cx", &[Cnot]),
            ("rx ry rz cnot", &[Cnot]),
            ("rx ry rz cp", &[Pcz]),
            ("rx ry rz cu1", &[Pcz]),
            ("iswap rx ry rz", &[Iswap]),
            ("iswap cp cx cz rx ry rz", &[Cz, Cnot, Pcz, Iswap]),
            ("rz sx x id cz", &[Cz]),
            ("r cx cz", &[Cz]),
        ];
        for (operations, targets) in table {
            assert_eq!(choose(&names(operations), None).unwrap().0, *targets, "{operations}");
        }
        for operations in ["gpi gpi2 ms", "rx ry cz", "sx cz", "rx ry rz", "r cx", ""] {
            let error = choose(&names(operations), None).unwrap_err();
            let listed = if operations.is_empty() { "none".into() } else { names(operations).join(", ") };
            assert!(error.contains(&listed) && error.contains("set `targets`"), "{error}");
        }
        let stated = choose(&names("gpi gpi2 ms"), Some(&[Cnot])).unwrap();
        assert_eq!(stated.0, [Cnot]);
    }

    #[test]
    fn a_gate_of_a_newer_host_is_refused() {
        let (_, dialect) = choose(&names("rx ry rz cz"), None).unwrap();
        let mut gate = Gate::one(GateKind::Rx, 0, 1.0);
        gate.kind = 999;
        let error = dialect.write(1, &[gate], "cp", &mut |_| panic!("nothing is written")).unwrap_err();
        assert!(error.contains("gate 0 is of kind 999"), "{error}");
    }
}
