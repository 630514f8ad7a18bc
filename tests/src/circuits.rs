//! Circuits and messages as the cloud sends them.

use std::f64::consts::{FRAC_PI_2, PI};

use serde_json::{Value, json};

/// NativeGateIR in the making.
#[derive(Debug, Clone)]
pub struct Circuit {
    pub target: &'static str,
    pub num_qubits: u16,
    pub gates: Vec<Value>,
    pub measurements: Vec<u16>,
}

impl Circuit {
    /// No gates; every qubit is measured.
    pub fn new(num_qubits: u16) -> Circuit {
        Circuit { target: "cz", num_qubits, gates: Vec::new(), measurements: (0..num_qubits).collect() }
    }

    pub fn rx(mut self, q: u16, angle: f64) -> Circuit {
        self.gates.push(json!({ "gate": "rx", "qubits": [q], "params": [angle] }));
        self
    }

    pub fn ry(mut self, q: u16, angle: f64) -> Circuit {
        self.gates.push(json!({ "gate": "ry", "qubits": [q], "params": [angle] }));
        self
    }

    /// Controlled-X of a `cz` device.
    pub fn cx(mut self, control: u16, target: u16) -> Circuit {
        self = self.ry(target, -FRAC_PI_2);
        self.gates.push(json!({ "gate": "cz", "qubits": [control, target] }));
        self.ry(target, FRAC_PI_2)
    }

    pub fn measure(mut self, qubits: &[u16]) -> Circuit {
        self.measurements = qubits.to_vec();
        self
    }

    pub fn json(&self) -> Value {
        json!({
            "version": "1.0", "target": self.target, "num_qubits": self.num_qubits, "gates": self.gates,
            "measurements": self.measurements,
            "metadata": { "source_hash": "h1", "compiled_at": "2025-01-01T00:00:00Z" },
        })
    }
}

/// `n` qubits in one superposition of all zeros and all ones.
pub fn ghz(n: u16) -> Circuit {
    (1..n).fold(Circuit::new(n).ry(0, FRAC_PI_2), |c, q| c.cx(q - 1, q))
}

pub fn bell() -> Circuit {
    ghz(2)
}

/// `n` qubits of which these are turned over; all are measured.
pub fn flips(n: u16, turned: &[u16]) -> Circuit {
    turned.iter().fold(Circuit::new(n), |c, &q| c.rx(q, PI))
}

/// The worked example of the IR: qubit 2 of 3 is turned over and `[2, 0]` measured, so that every shot gives `10`.
pub fn example() -> Circuit {
    flips(3, &[2]).measure(&[2, 0])
}

/// A message of the stream.
#[derive(Debug, Clone, Default)]
pub struct Job {
    pub fields: Vec<(String, Vec<u8>)>,
}

impl Job {
    pub fn new(id: &str, callback: &str, circuit: &Circuit, shots: u32) -> Job {
        Job::default()
            .field("job_id", id)
            .field("callback_url", callback)
            .field("ir_json", circuit.json().to_string())
            .field("shots", shots.to_string())
    }

    /// Sets a field, in place of what it had.
    pub fn field(mut self, name: &str, value: impl AsRef<[u8]>) -> Job {
        let value = value.as_ref().to_vec();
        match self.fields.iter_mut().find(|(n, _)| n == name) {
            Some((_, old)) => *old = value,
            None => self.fields.push((name.into(), value)),
        }
        self
    }

    pub fn without(mut self, name: &str) -> Job {
        self.fields.retain(|(n, _)| n != name);
        self
    }
}

/// The bytes of a field.
pub fn bytes_of<'a>(job: &'a Job, name: &str) -> &'a [u8] {
    job.fields.iter().find(|(n, _)| n == name).map_or(&[], |(_, v)| v)
}
