//! Pure: the final state of a circuit computed here, to check what peers made of it. It takes 2^qubits times operations.

use super::combine::Component;
use crate::peers::amplitude::{Complex, zeros};
use crate::peers::evolution::{apply, fidelity};
use crate::peers::operation::{self, OperationError};
use crate::qasm::Circuit;

/// Why a circuit was not simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    #[error("the circuit can't be simulated here: {0}")]
    Operation(#[from] OperationError),
    #[error("the simulation was stopped with its job")]
    Stopped,
}

/// The state that a circuit makes of all zeros; bit k of an index is qubit k. Whether to stop is asked before each
/// operation.
///
/// # Errors
/// When an operation is not one that peers are sent, or it is to stop.
pub fn run(circuit: &Circuit, must_stop: impl Fn() -> bool) -> Result<Vec<Complex>, SimulationError> {
    let ids: Vec<i64> = (0..i64::from(circuit.qubits)).collect();
    let mut state = zeros(ids.len());
    for operation in &circuit.operations {
        if must_stop() {
            return Err(SimulationError::Stopped);
        }
        let qubits: Vec<i64> = operation.qubits.iter().map(|q| i64::from(*q)).collect();
        let effect = operation::effect(operation.service, &operation.raw_text, &qubits)?;
        apply(&mut state, &operation::lower(&effect.operations, &ids)?);
    }
    Ok(state)
}

/// How much the state that peers made of a circuit is the one that it makes: their fidelity.
///
/// # Errors
/// When an operation is not one that peers are sent, or it is to stop.
pub fn check(
    circuit: &Circuit,
    state: &Component,
    must_stop: impl Fn() -> bool,
) -> Result<f64, SimulationError> {
    let expected = run(circuit, must_stop)?;
    Ok(match &state.amplitudes {
        Some(found) => fidelity(&expected, found),
        None => fidelity(&expected, &zeros(state.qubits.len())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qasm::parse;

    #[test]
    fn a_bell_state_is_itself_and_no_other() {
        let bell = parse("OPENQASM 3; include \"stdgates.inc\"; qubit[2] q; h q[1]; cx q[1], q[0];").unwrap();
        let r = std::f64::consts::FRAC_1_SQRT_2;
        let state = |amplitudes: [Complex; 4]| Component {
            qubits: vec![0, 1],
            amplitudes: Some(amplitudes.to_vec()),
            measured: Vec::new(),
            previous_peer_id: None,
        };
        let of = |amplitudes| check(&bell, &state(amplitudes), || false).unwrap();
        assert!((of([[r, 0.0], [0.0, 0.0], [0.0, 0.0], [r, 0.0]]) - 1.0).abs() < 1e-12);
        assert!((of([[0.0, r], [0.0, 0.0], [0.0, 0.0], [0.0, r]]) - 1.0).abs() < 1e-12, "a global phase");
        assert!(of([[r, 0.0], [0.0, 0.0], [0.0, 0.0], [-r, 0.0]]).abs() < 1e-12, "another Bell state");
        assert!((of([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn it_stops_between_two_operations() {
        use std::cell::Cell;
        let circuit = parse("qubit[2] q; h q; cx q[0], q[1];").unwrap();
        let asked = Cell::new(0);
        let must_stop = || asked.replace(asked.get() + 1) == 2;
        assert!(matches!(run(&circuit, must_stop), Err(SimulationError::Stopped)));
        assert_eq!(asked.get(), 3, "two operations were applied");
    }
}
