//! The result of a job: what it is asked for, checked when it is submitted, and taken from the final state.

use std::collections::BTreeMap;

use super::combine::{Component, counts};
use super::measures::{PauliString, bloch_vector, entanglement_entropy, probabilities};
use crate::peers::amplitude;
use crate::qasm::{Circuit, MeasuredBit};
use crate::reservation::job_options::{BitOrder, JobOptions, ResultKind, default_results};
use crate::reservation::journal::{FinalState, JobResult};

/// Most qubits of a state, and of probabilities, that are shown.
pub const SHOWN_QUBITS: usize = 12;
/// Most observables of a job.
pub const MAX_OBSERVABLES: usize = 64;

/// What is wrong with an option of a job: the field, and why in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct OptionError {
    pub field: &'static str,
    pub reason: String,
}

impl OptionError {
    fn new(field: &'static str, reason: impl Into<String>) -> OptionError {
        OptionError { field, reason: reason.into() }
    }
}

/// How a final state becomes a result.
#[derive(Debug, Clone)]
pub struct ResultRequest {
    shots: u32,
    options: JobOptions,
    qubits: u32,
    /// The sampled qubits: character i of a key is the i-th of these, or the last but i.
    sampled: Vec<MeasuredBit>,
    has_measurements: bool,
    observables: Vec<(String, PauliString)>,
}

impl ResultRequest {
    /// Whether the final state is compared with a local simulation.
    pub fn verify(&self) -> bool {
        self.options.verify
    }

    /// How many peers must agree about each state.
    pub fn redundancy(&self) -> u8 {
        self.options.redundancy
    }

    /// Checks the options of a job against its circuit.
    ///
    /// # Errors
    /// When an input is none of the circuit's, the state is too large to be shown, or an observable does not fit.
    pub fn new(circuit: &Circuit, shots: u32, options: JobOptions) -> Result<ResultRequest, OptionError> {
        if let Some(name) = options.inputs.keys().find(|name| !circuit.inputs.contains(name)) {
            let name = crate::model::cut(name, 40);
            let known = match circuit.inputs.is_empty() {
                true => "it has none".into(),
                false => format!("it has {}", circuit.inputs.join(", ")),
            };
            return Err(OptionError::new("inputs", format!("the circuit has no input '{name}'; {known}")));
        }
        let is_asked = options.wants(ResultKind::State) && options.results != default_results();
        if is_asked && circuit.qubits as usize > SHOWN_QUBITS {
            let qubits = circuit.qubits;
            let reason = format!("a state is shown of up to {SHOWN_QUBITS} qubits, the circuit has {qubits}");
            return Err(OptionError::new("results", reason));
        }
        if options.observables.len() > MAX_OBSERVABLES {
            let reason = format!("more than {MAX_OBSERVABLES} observables");
            return Err(OptionError::new("observables", reason));
        }
        let parse = |text: &String| match PauliString::parse(text, circuit.qubits) {
            Ok(string) => Ok((text.clone(), string)),
            Err(reason) => Err(OptionError::new("observables", reason)),
        };
        let observables = options.observables.iter().map(parse).collect::<Result<_, _>>()?;
        let unnamed = |qubit: u32| MeasuredBit { qubit, bit: None };
        let sampled = match options.bit_order {
            // Without a measurement in the source every qubit is looked at.
            _ if circuit.measured.is_empty() => (0..circuit.qubits).map(unnamed).collect(),
            BitOrder::Classical => circuit.bits.clone(),
            BitOrder::Reference => circuit.measured.iter().copied().map(unnamed).collect(),
        };
        let has_measurements = !circuit.measured.is_empty();
        Ok(ResultRequest { shots, options, qubits: circuit.qubits, sampled, has_measurements, observables })
    }

    /// Samples the final state, whose qubits ascend from 0, and measures what is asked for. A large state takes a
    /// while.
    pub fn result(&self, state: &Component, fidelity: Option<f64>) -> JobResult {
        let wants = |kind| self.options.wants(kind);
        let amplitudes = state.amplitudes.clone().unwrap_or_else(|| amplitude::zeros(state.qubits.len()));
        let measured: Vec<u32> = self.sampled.iter().map(|bit| bit.qubit).collect();
        let all: Vec<u32> = (0..self.qubits).collect();
        // Keys are written from left to right.
        let (is_reversed, bit_order) = match self.options.bit_order {
            BitOrder::Classical => (false, "character i of a key is the i-th of measured_qubits"),
            BitOrder::Reference => (true, "the last character of a key is the first of measured_qubits"),
        };
        let in_order = |qubits: &[u32]| -> Vec<u32> {
            if is_reversed { qubits.iter().rev().copied().collect() } else { qubits.to_vec() }
        };
        let shown_probabilities = |qubits: &[u32], is_wanted: bool| {
            let is_shown = is_wanted && qubits.len() <= SHOWN_QUBITS && wants(ResultKind::Probabilities);
            is_shown.then(|| probabilities(&amplitudes, &in_order(qubits)))
        };
        let each = |kind: ResultKind| all.iter().copied().filter(move |_| wants(kind));
        let bloch_vectors: BTreeMap<_, _> = each(ResultKind::BlochVectors)
            .map(|qubit| (format!("q{qubit}"), bloch_vector(&amplitudes, qubit)))
            .collect();
        let entropies: BTreeMap<_, _> = each(ResultKind::EntanglementEntropy)
            .map(|qubit| (format!("q{qubit}|rest"), entanglement_entropy(&amplitudes, qubit)))
            .collect();
        let expectations: BTreeMap<_, _> = self
            .observables
            .iter()
            .map(|(text, string)| (text.clone(), string.expectation(&amplitudes)))
            .collect();
        let has_state = wants(ResultKind::State) && all.len() <= SHOWN_QUBITS;
        let final_state = has_state.then(|| FinalState {
            qubit_ids: state.qubits.clone(),
            amplitudes: amplitude::write_state(&amplitudes),
        });
        JobResult {
            counts: counts(state, &in_order(&measured), self.shots, &mut rand::random::<f64>),
            measured_probabilities: shown_probabilities(&measured, self.has_measurements),
            probabilities: shown_probabilities(&all, true),
            measured_qubits: measured,
            measured_bits: self.sampled.iter().map(|bit| bit.bit.clone()).collect(),
            bit_order: bit_order.into(),
            state: final_state,
            bloch_vectors: wants(ResultKind::BlochVectors).then_some(bloch_vectors),
            entanglement_entropy: wants(ResultKind::EntanglementEntropy).then_some(entropies),
            fidelity,
            observable_expectations: (!self.observables.is_empty()).then_some(expectations),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qasm;

    const SOURCE: &str = "qubit[3] q; bit[2] c; x q[0]; h q[2]; c[1] = measure q[0]; c[0] = measure q[1];";

    fn options(bit_order: BitOrder) -> JobOptions {
        JobOptions { bit_order, ..JobOptions::default() }
    }

    fn result(options: JobOptions) -> JobResult {
        let half = std::f64::consts::FRAC_1_SQRT_2;
        let mut amplitudes = vec![[0.0, 0.0]; 8];
        (amplitudes[0b001], amplitudes[0b101]) = ([half, 0.0], [half, 0.0]);
        let state = Component { amplitudes: Some(amplitudes), qubits: vec![0, 1, 2], ..Component::fresh(0) };
        ResultRequest::new(&qasm::parse(SOURCE).unwrap(), 10, options).unwrap().result(&state, None)
    }

    fn keys<T>(map: &BTreeMap<String, T>) -> Vec<&str> {
        map.keys().map(String::as_str).collect()
    }

    #[test]
    fn keys_follow_the_classical_bits_or_the_reference() {
        let classical = result(options(BitOrder::Classical));
        assert_eq!(keys(&classical.counts), ["01"]);
        assert_eq!(classical.measured_qubits, [1, 0]);
        assert_eq!(classical.measured_bits, [Some("c[0]".to_string()), Some("c[1]".to_string())]);
        assert_eq!(keys(classical.measured_probabilities.as_ref().unwrap()), ["01"]);
        assert_eq!(keys(classical.probabilities.as_ref().unwrap()), ["100", "101"]);
        // The last measured qubit leftmost, and in `probabilities` the last qubit.
        let reference = result(options(BitOrder::Reference));
        assert_eq!(keys(&reference.counts), ["01"]);
        assert_eq!((reference.measured_qubits, reference.measured_bits), (vec![0, 1], vec![None, None]));
        assert_eq!(keys(reference.probabilities.as_ref().unwrap()), ["001", "101"]);
    }

    #[test]
    fn a_result_has_what_was_asked_for() {
        let plain = result(JobOptions::default());
        assert!(plain.state.is_some(), "three qubits");
        assert!(plain.bloch_vectors.is_none() && plain.observable_expectations.is_none());
        let counts = result(JobOptions { results: vec![ResultKind::Counts], ..JobOptions::default() });
        assert!(counts.state.is_none() && counts.probabilities.is_none());
        let asked = JobOptions {
            results: vec![ResultKind::State, ResultKind::BlochVectors, ResultKind::EntanglementEntropy],
            observables: vec!["ZII".into(), "X_q2".into()],
            ..JobOptions::default()
        };
        let all = result(asked);
        assert!(all.probabilities.is_none() && all.measured_probabilities.is_none());
        assert_eq!(all.state.unwrap().amplitudes.len(), 8);
        assert_eq!(all.bloch_vectors.as_ref().unwrap()["q0"].z, -1.0);
        assert_eq!(keys(all.entanglement_entropy.as_ref().unwrap()), ["q0|rest", "q1|rest", "q2|rest"]);
        let expectations = all.observable_expectations.unwrap();
        assert_eq!((expectations["ZII"], expectations["X_q2"]), (-1.0, 1.0));
    }

    #[test]
    fn what_can_not_be_given_is_refused_with_its_field() {
        let circuit = qasm::parse("qubit[13] q; h q;").unwrap();
        let new = |options: JobOptions| ResultRequest::new(&circuit, 1, options).unwrap_err();
        let state = new(JobOptions { results: vec![ResultKind::State], ..JobOptions::default() });
        assert_eq!(
            (state.field, &*state.reason),
            ("results", "a state is shown of up to 12 qubits, the circuit has 13")
        );
        let observable = new(JobOptions { observables: vec!["ZZ".into()], ..JobOptions::default() });
        assert!(observable.field == "observables" && observable.reason.contains("2 letters for 13 qubits"));
        let input = new(JobOptions { inputs: [("a".to_string(), 1.0)].into(), ..JobOptions::default() });
        assert_eq!((input.field, &*input.reason), ("inputs", "the circuit has no input 'a'; it has none"));
        let large = ResultRequest::new(&circuit, 1, JobOptions::default()).unwrap();
        let state = Component { qubits: (0..13).collect(), ..Component::fresh(0) };
        assert!(large.result(&state, None).probabilities.is_none(), "of more than 12 qubits");
    }
}
