//! Pure: how long a run will take, by the last run of a circuit of its kind.
//!
//! Circuits are of one kind when they have as many qubits and, up to a factor of two, as many gates. A run is expected to
//! take as long as the last one, and longer in proportion to its shots when it has more: never too short for want of a
//! fixed share that no one has measured.

use std::collections::HashMap;
use std::time::Duration;

use coda_plugin_abi::Program;

/// Qubits, and the power of two below the number of gates.
type Kind = (u16, u32);

/// The last run of each kind of circuit.
#[derive(Debug, Default)]
pub struct RunPace {
    last: HashMap<Kind, (u32, Duration)>,
}

fn kind(program: &Program) -> Kind {
    (program.num_qubits(), (program.gates().len() + 1).ilog2())
}

impl RunPace {
    /// A run of this circuit has completed.
    pub fn ran(&mut self, program: &Program, shots: u32, run_time: Duration) {
        self.last.insert(kind(program), (shots, run_time));
    }

    /// How long a run of this circuit is expected to take; `None` when none of its kind has completed.
    pub fn expected(&self, program: &Program, shots: u32) -> Option<Duration> {
        let (last_shots, run_time) = self.last.get(&kind(program))?;
        let more = f64::from(shots.max(1)) / f64::from((*last_shots).max(1));
        Some(Duration::try_from_secs_f64(run_time.as_secs_f64() * more.max(1.0)).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circuit(qubits: u16, gates: usize) -> Program {
        let gate = r#"{"gate":"rz","qubits":[0],"params":[0.5]}"#;
        let gates = vec![gate; gates].join(",");
        let ir = format!(
            r#"{{"version":"1.0","target":"cz","num_qubits":{qubits},"gates":[{gates}],"measurements":[0],
                "metadata":{{"source_hash":"h","compiled_at":"2026-01-01T00:00:00Z"}}}}"#
        );
        Program::parse(ir.as_bytes()).unwrap()
    }

    #[test]
    fn a_run_takes_as_long_as_the_last_of_its_kind_and_more_with_more_shots() {
        let mut pace = RunPace::default();
        let second = Duration::from_secs(1);
        assert_eq!(pace.expected(&circuit(2, 10), 100), None);
        pace.ran(&circuit(2, 10), 100, second);
        assert_eq!(pace.expected(&circuit(2, 12), 100), Some(second), "about as many gates");
        assert_eq!(pace.expected(&circuit(2, 10), 1000), Some(second * 10));
        assert_eq!(pace.expected(&circuit(2, 10), 1), Some(second), "never less than measured");
        assert_eq!(pace.expected(&circuit(2, 40), 100), None, "another kind");
        assert_eq!(pace.expected(&circuit(3, 10), 100), None, "another kind");
        pace.ran(&circuit(2, 11), 100, second * 2);
        assert_eq!(pace.expected(&circuit(2, 10), 100), Some(second * 2), "the last one counts");
    }
}
