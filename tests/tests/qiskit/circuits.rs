//! Random circuits in OpenQASM 3 against Qiskit: what peers are sent makes the state that Qiskit computes, and what a
//! result says about it is what `qiskit.quantum_info` says.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use coda_host::coordinator::measures::{PauliString, bloch_vector, entanglement_entropy, probabilities};
use coda_host::peers::amplitude::{Complex, zeros};
use coda_host::peers::operation;
use coda_host::qasm;
use coda_host::reservation::journal::BlochVector;
use coda_host_tests::artifacts::project_file;
use coda_host_tests::qiskit::venv;
use serde::Deserialize;

const CIRCUITS: u64 = 200;
const TOLERANCE: f64 = 1e-9;

/// A circuit, and what Qiskit says about it.
#[derive(Deserialize)]
struct Expected {
    seed: u64,
    qasm: String,
    inputs: BTreeMap<String, f64>,
    state: Vec<Complex>,
    bloch_vectors: Vec<[f64; 3]>,
    entanglement_entropy: Vec<f64>,
    observable_expectations: BTreeMap<String, f64>,
    probabilities: BTreeMap<String, f64>,
}

#[test]
fn random_circuits_are_what_qiskit_makes_of_them() {
    let Some(venv) = venv() else { return };
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_secs());
    let seed = std::env::var("CODA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(clock);
    println!("CODA_SEED={seed}");
    let said = Command::new(venv.join("bin/python"))
        .arg(project_file("tests/python/random_circuits.py"))
        .args([seed.to_string(), CIRCUITS.to_string()])
        .env("OMP_NUM_THREADS", "1")
        .output()
        .expect("Python starts");
    assert!(said.status.success(), "CODA_SEED={seed}: {}", String::from_utf8_lossy(&said.stderr));
    let text = String::from_utf8(said.stdout).expect("UTF-8");
    let mut checked = 0;
    for line in text.lines() {
        let expected: Expected = serde_json::from_str(line).expect("a circuit");
        let wrong = differences(&expected);
        let inputs = &expected.inputs;
        assert!(wrong.is_empty(), "CODA_SEED={}: {wrong:?}\n{inputs:?}\n{}", expected.seed, expected.qasm);
        checked += 1;
    }
    assert_eq!(checked, CIRCUITS);
}

/// What is not as Qiskit says, in words.
fn differences(expected: &Expected) -> Vec<String> {
    let circuit = match qasm::parse_with_inputs(&expected.qasm, &expected.inputs) {
        Ok(circuit) => circuit,
        Err(error) => return vec![error.to_string()],
    };
    let mut wrong = Vec::new();
    let state = run(&circuit);
    let distance = distance(&state, &expected.state);
    if distance > TOLERANCE {
        wrong.push(format!("the states differ by {distance:e}"));
    }
    let mut compare = |what: String, found: f64, expected: f64| {
        if (found - expected).abs() > TOLERANCE {
            wrong.push(format!("{what} is {found}, expected is {expected}"));
        }
    };
    let all: Vec<u32> = (0..circuit.qubits).collect();
    let found = probabilities(&state, &all);
    for (key, probability) in &expected.probabilities {
        compare(format!("the probability of {key}"), found.get(key).copied().unwrap_or(0.0), *probability);
    }
    compare("the sum of probabilities".into(), found.values().sum(), 1.0);
    for qubit in all {
        let BlochVector { x, y, z } = bloch_vector(&state, qubit);
        let of_qiskit = expected.bloch_vectors[qubit as usize];
        for (found, expected) in [x, y, z].into_iter().zip(of_qiskit) {
            compare(format!("the Bloch vector of qubit {qubit}"), found, expected);
        }
        let found = entanglement_entropy(&state, qubit);
        compare(
            format!("the entropy of qubit {qubit}"),
            found,
            expected.entanglement_entropy[qubit as usize],
        );
    }
    for (text, value) in &expected.observable_expectations {
        let observable = PauliString::parse(text, circuit.qubits).expect("an observable");
        compare(format!("<{text}>"), observable.expectation(&state), *value);
    }
    wrong
}

/// The state behind a circuit, as peers run its statements.
fn run(circuit: &qasm::Circuit) -> Vec<Complex> {
    let ids: Vec<i64> = (0..i64::from(circuit.qubits)).collect();
    let mut state = zeros(ids.len());
    for operation in &circuit.operations {
        let qubits: Vec<i64> = operation.qubits.iter().map(|q| i64::from(*q)).collect();
        let effect = operation::effect(operation.service, &operation.raw_text, &qubits);
        let effect = effect.unwrap_or_else(|e| panic!("{e}"));
        for step in operation::lower(&effect.operations, &ids).unwrap_or_else(|e| panic!("{e}")) {
            let bit = 1 << step.target;
            for low in 0..state.len() {
                if low & bit == 0 && low as u64 & step.controls == step.controls {
                    let (a, b, m) = (state[low], state[low | bit], step.matrix);
                    state[low] = plus(times(m[0], a), times(m[1], b));
                    state[low | bit] = plus(times(m[2], a), times(m[3], b));
                }
            }
        }
    }
    state
}

fn times([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a * c - b * d, a * d + b * c]
}

fn plus([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a + c, b + d]
}

/// The largest difference of two amplitudes, with the phase of the whole state made equal.
fn distance(found: &[Complex], expected: &[Complex]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let overlap =
        found.iter().zip(expected).fold([0.0, 0.0], |sum, ([a, b], e)| plus(sum, times([*a, -b], *e)));
    let length = overlap[0].hypot(overlap[1]);
    let turned = found.iter().map(|a| times(*a, [overlap[0] / length, overlap[1] / length]));
    turned.zip(expected).map(|([a, b], [c, d])| (a - c).hypot(b - d)).fold(0.0, f64::max)
}
