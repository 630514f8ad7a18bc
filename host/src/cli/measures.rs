//! Renders what a job's result has besides its counts, for a terminal.

use crate::reservation::job_options::ResultKind;
use crate::reservation::journal::JobResult;

/// How many rows of a list are shown.
const ROWS: usize = 16;

/// Renders the parts of a result that are asked for; expectation values and the fidelity where there are any.
pub fn render(result: &JobResult, asked: &[ResultKind]) -> String {
    let mut out = String::new();
    let mut section = |title: &str, rows: Vec<String>| {
        out += &format!("  {title}\n");
        rows.iter().take(ROWS).for_each(|row| out += &format!("    {row}\n"));
        if rows.len() > ROWS {
            out += &format!("    ... {} more, see --json\n", rows.len() - ROWS);
        }
    };
    let likeliest = result.measured_probabilities.as_ref().or(result.probabilities.as_ref());
    if let Some(probabilities) = likeliest.filter(|_| asked.contains(&ResultKind::Probabilities)) {
        let mut sorted: Vec<_> = probabilities.iter().collect();
        sorted.sort_by(|a, b| b.1.total_cmp(a.1).then_with(|| a.0.cmp(b.0)));
        section("probabilities", sorted.iter().map(|(key, p)| format!("{key}  {p:.6}")).collect());
    }
    if let Some(state) = result.state.as_ref().filter(|_| asked.contains(&ResultKind::State)) {
        let ids: Vec<String> = state.qubit_ids.iter().map(ToString::to_string).collect();
        let width = ids.len();
        // As the keys of counts: the first character is the first qubit, which is the lowest bit of the index.
        let key = |index: usize| {
            (0..width).map(|bit| if index >> bit & 1 == 1 { '1' } else { '0' }).collect::<String>()
        };
        let rows = state.amplitudes.iter().enumerate().filter(|(_, amplitude)| *amplitude != "0.0");
        let rows = rows.map(|(index, amplitude)| format!("{}  {amplitude}", key(index)));
        section(&format!("state of qubits [{}]", ids.join(",")), rows.collect());
    }
    if let Some(vectors) = &result.bloch_vectors {
        let mut rows: Vec<_> = vectors.iter().collect();
        rows.sort_by_key(|(qubit, _)| (qubit.len(), *qubit));
        let row = |(qubit, r): &(&String, &crate::reservation::journal::BlochVector)| {
            format!("{qubit:<4} x {:+.6}  y {:+.6}  z {:+.6}", r.x, r.y, r.z)
        };
        section("Bloch vectors", rows.iter().map(row).collect());
    }
    if let Some(entropies) = &result.entanglement_entropy {
        let mut rows: Vec<_> = entropies.iter().collect();
        rows.sort_by_key(|(qubit, _)| (qubit.len(), *qubit));
        section(
            "entropy of entanglement, in bits",
            rows.iter().map(|(q, s)| format!("{q:<9} {s:.6}")).collect(),
        );
    }
    if let Some(expectations) = &result.observable_expectations {
        section(
            "expectation values",
            expectations.iter().map(|(o, value)| format!("{o}  {value:+.6}")).collect(),
        );
    }
    if let Some(fidelity) = result.fidelity {
        section("fidelity with a local simulation", vec![format!("{fidelity:.9}")]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reservation::journal::{BlochVector, FinalState};

    #[test]
    fn each_part_that_is_there_has_its_section() {
        let plain = JobResult {
            counts: [("00".to_string(), 1)].into(),
            measured_qubits: vec![0, 1],
            measured_bits: vec![None, None],
            bit_order: "x".into(),
            probabilities: Some([("00".to_string(), 0.25), ("11".to_string(), 0.75)].into()),
            measured_probabilities: None,
            state: None,
            bloch_vectors: None,
            entanglement_entropy: None,
            observable_expectations: None,
            fidelity: None,
        };
        assert_eq!(render(&plain, &[]), "");
        assert_eq!(
            render(&plain, &[ResultKind::Probabilities]),
            "  probabilities\n    11  0.750000\n    00  0.250000\n"
        );
        let amplitudes = vec!["0.0".into(), "0.6".into(), "0.0".into(), "0.8j".into()];
        let all = JobResult {
            state: Some(FinalState { qubit_ids: vec![0, 1], amplitudes }),
            bloch_vectors: Some([("q0".to_string(), BlochVector { x: 0.0, y: 0.0, z: -1.0 })].into()),
            entanglement_entropy: Some([("q0|rest".to_string(), 0.0)].into()),
            observable_expectations: Some([("ZI".to_string(), -1.0)].into()),
            fidelity: Some(0.25),
            ..plain
        };
        assert!(!render(&all, &[]).contains("state of"), "it is not asked for");
        let text = render(&all, &[ResultKind::State]);
        for row in [
            "  state of qubits [0,1]\n    10  0.6\n    11  0.8j\n",
            "  Bloch vectors\n    q0   x +0.000000  y +0.000000  z -1.000000\n",
            "  entropy of entanglement, in bits\n    q0|rest   0.000000\n",
            "  expectation values\n    ZI  -1.000000\n",
            "  fidelity with a local simulation\n    0.250000000\n",
        ] {
            assert!(text.contains(row), "{text}");
        }
    }
}
