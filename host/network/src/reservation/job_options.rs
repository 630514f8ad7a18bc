//! Pure: what a job is asked for besides its circuit and shots. It is recorded with the job, so that a restart runs the
//! same.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A part of a result, by the name of its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResultKind {
    /// How often each outcome was sampled. It is always there.
    Counts,
    /// `probabilities` and `measured_probabilities`, for up to 12 qubits.
    Probabilities,
    /// The final state, for up to 12 qubits.
    State,
    BlochVectors,
    EntanglementEntropy,
}

/// How characters of keys and qubits belong together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BitOrder {
    /// The first character is the first classical bit, in the order in which the circuit declares its registers.
    #[default]
    Classical,
    /// As existing coordinators do: the last character is the qubit that the circuit measures first.
    Reference,
}

/// What a job is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOptions {
    /// Values of the circuit's inputs, by their names.
    pub inputs: BTreeMap<String, f64>,
    pub results: Vec<ResultKind>,
    /// Pauli strings whose expectation values are asked for.
    pub observables: Vec<String>,
    pub bit_order: BitOrder,
    /// Whether the final state is compared with a local simulation.
    pub verify: bool,
    /// How many peers must agree about each state.
    pub redundancy: u8,
}

impl Default for JobOptions {
    fn default() -> JobOptions {
        JobOptions {
            inputs: BTreeMap::new(),
            results: default_results(),
            observables: Vec::new(),
            bit_order: BitOrder::default(),
            verify: false,
            redundancy: 1,
        }
    }
}

/// What a result has when nothing else is asked for; no state of more than 12 qubits.
pub fn default_results() -> Vec<ResultKind> {
    vec![ResultKind::Counts, ResultKind::Probabilities, ResultKind::State]
}

/// The kinds that are asked for, each once: a list of any length asks for no more, and is recorded as short.
pub fn each_once(mut kinds: Vec<ResultKind>) -> Vec<ResultKind> {
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

impl JobOptions {
    pub fn wants(&self, kind: ResultKind) -> bool {
        self.results.contains(&kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_kinds_is_recorded_as_a_short_one() {
        let kinds = [ResultKind::State, ResultKind::Counts].repeat(50_000);
        assert_eq!(each_once(kinds), [ResultKind::Counts, ResultKind::State]);
        assert_eq!(each_once(default_results()), default_results());
    }
}
