//! Pure: the gates that are built in, and how one is written for a peer.
//!
//! Those that peers know are primitive; the others of `qelib1.inc` and `stdgates.inc` are defined by them, in
//! OpenQASM, below. Each definition is exact, global phase included, so that it can be controlled part by part.

use super::CircuitOperation;

/// A primitive gate: controls first, then its targets.
#[derive(Debug, Clone, PartialEq)]
pub struct Primitive {
    pub name: &'static str,
    pub params: Vec<f64>,
    pub controls: usize,
    pub qubits: Vec<u32>,
}

/// A name of a source: the primitive's name, parameters, controls, targets.
pub struct NamedGate {
    pub name: &'static str,
    pub params: usize,
    pub controls: usize,
    pub targets: usize,
}

/// The gate of this name, when it is one of the primitives or one with controls.
pub fn named_gate(name: &str) -> Option<NamedGate> {
    let (name, params, controls, targets) = match name {
        "id" | "u0" => ("id", 0, 0, 1),
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
        "ccx" | "toffoli" => ("x", 0, 2, 1),
        "ccz" => ("z", 0, 2, 1),
        "c3x" => ("x", 0, 3, 1),
        "c3sqrtx" | "c3sx" => ("sx", 0, 3, 1),
        "c4x" => ("x", 0, 4, 1),
        "cswap" | "fredkin" => ("swap", 0, 1, 2),
        _ => return None,
    };
    Some(NamedGate { name, params, controls, targets })
}

/// The rest, by the primitives.
pub const DEFINITIONS: &str = "
gate u2(phi, lambda) q { u(pi/2, phi, lambda) q; }
gate cu3(theta, phi, lambda) c, t {
  p((lambda + phi)/2) c; p((lambda - phi)/2) t; cx c, t;
  u(-theta/2, 0, -(phi + lambda)/2) t; cx c, t; u(theta/2, phi, 0) t;
}
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
    /// The gate that undoes it.
    pub fn inverse(mut self) -> Primitive {
        let swapped = match self.name {
            "s" => "sdg",
            "sdg" => "s",
            "t" => "tdg",
            "tdg" => "t",
            "sx" => "sxdg",
            "sxdg" => "sx",
            other => other,
        };
        self.name = swapped;
        match (self.name, &self.params[..]) {
            ("u", &[theta, phi, lambda]) => self.params = vec![-theta, -lambda, -phi],
            ("rx" | "ry" | "rz" | "p", &[angle]) => self.params = vec![-angle],
            _ => {}
        }
        self
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
            (name, 0) => (name.into(), "programmable_gate"),
            (name, _) => (format!("controlled {name}"), "controlled_unitary"),
        };
        let params = match self.params.is_empty() {
            true => String::new(),
            false => format!("({})", self.params.iter().map(|p| number(*p)).collect::<Vec<_>>().join(",")),
        };
        let operands: Vec<String> = self.qubits.iter().map(|q| format!("q[{q}]")).collect();
        let raw_text = format!("{name}{params} {};", operands.join(","));
        CircuitOperation { service, qubits: self.qubits.clone(), raw_text }
    }
}

/// A parameter with every digit that it has.
fn number(value: f64) -> String {
    match value.fract() == 0.0 && value.abs() < 1e15 {
        true => format!("{value}"),
        false => format!("{value:?}"),
    }
}
