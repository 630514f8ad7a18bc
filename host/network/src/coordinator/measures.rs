//! Pure: what a state says about its qubits: probabilities, Bloch vectors, entropies, expectation values.
//!
//! The formulas are those of Nielsen and Chuang, *Quantum Computation and Quantum Information*. Bit k of an amplitude's
//! index belongs to qubit k. A state whose norm is not 1 is taken as if it were divided by its norm.

use std::collections::{BTreeMap, BTreeSet};

use crate::peers::amplitude::Complex;
use crate::reservation::journal::BlochVector;

/// Decimals that results have. What is smaller comes from rounding on the way.
const DECIMALS: f64 = 1e12;
/// Most letters of an observable that an error repeats.
const MAX_SHOWN: usize = 60;

/// A value as results have it.
fn rounded(value: f64) -> f64 {
    // Adding 0 makes a negative zero positive.
    (value * DECIMALS).round() / DECIMALS + 0.0
}

fn squared(amplitude: Complex) -> f64 {
    amplitude[0] * amplitude[0] + amplitude[1] * amplitude[1]
}

fn total(state: &[Complex]) -> f64 {
    state.iter().map(|amplitude| squared(*amplitude)).sum()
}

/// The probability of each outcome of these qubits, without those that are 0: the sum of |amplitude|^2 over the indexes
/// that have these bits (postulate 3, section 2.2.5). Character i of a key is the i-th of the qubits.
pub fn probabilities(state: &[Complex], qubits: &[u32]) -> BTreeMap<String, f64> {
    let total = total(state);
    let mut sums: BTreeMap<usize, f64> = BTreeMap::new();
    for (index, amplitude) in state.iter().enumerate() {
        let probability = squared(*amplitude);
        if probability > 0.0 {
            let outcome = qubits.iter().fold(0, |outcome, qubit| outcome << 1 | index >> qubit & 1);
            *sums.entry(outcome).or_default() += probability;
        }
    }
    let width = qubits.len();
    let shown = |(outcome, sum): (usize, f64)| {
        let key = if width == 0 { String::new() } else { format!("{outcome:0width$b}") };
        (key, rounded(sum / total))
    };
    sums.into_iter().map(shown).filter(|(_, probability)| *probability > 0.0).collect()
}

/// The Bloch vector of a qubit: r = (<X>, <Y>, <Z>) of its reduced density matrix rho = (1 + r.sigma)/2 (equation 2.175),
/// whose elements are the partial trace over the other qubits (section 2.4.3): rho_00 is the sum of |a_i|^2, and rho_01
/// that of a_i conj(a_j), over the indexes i without the qubit's bit, j being i with it.
pub fn bloch_vector(state: &[Complex], qubit: u32) -> BlochVector {
    let [x, y, z] = bloch_components(state, qubit).map(rounded);
    BlochVector { x, y, z }
}

fn bloch_components(state: &[Complex], qubit: u32) -> [f64; 3] {
    let bit = 1_usize << qubit;
    let (mut x, mut y, mut z) = (0.0, 0.0, 0.0);
    for (low, [a, b]) in state.iter().enumerate().filter(|(index, _)| index & bit == 0) {
        let [c, d] = state.get(low | bit).copied().unwrap_or_default();
        // <X> = 2 Re rho_01, <Y> = -2 Im rho_01, <Z> = rho_00 - rho_11.
        x += 2.0 * (a * c + b * d);
        y += 2.0 * (a * d - b * c);
        z += a * a + b * b - c * c - d * d;
    }
    let total = total(state);
    [x / total, y / total, z / total]
}

/// The entropy of entanglement of a qubit with the rest, in bits: S = -tr(rho log2 rho) of its reduced density matrix
/// (section 11.3), whose eigenvalues are (1 + |r|)/2 and (1 - |r|)/2. It is 0 for a product, 1 at most.
pub fn entanglement_entropy(state: &[Complex], qubit: u32) -> f64 {
    let [x, y, z] = bloch_components(state, qubit);
    let length = (x * x + y * y + z * z).sqrt().min(1.0);
    let term = |eigenvalue: f64| if eigenvalue > 0.0 { -eigenvalue * eigenvalue.log2() } else { 0.0 };
    rounded(term((1.0 + length) / 2.0) + term((1.0 - length) / 2.0))
}

/// A product of Pauli matrices, one on each qubit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauliString {
    /// Qubits with X or Y, and with Z or Y.
    flips: usize,
    signs: usize,
}

impl PauliString {
    /// Reads `XIZ`, where letter i stands for qubit i, or `XZ_q0_q2`, which names the qubits and leaves out those with
    /// the identity.
    ///
    /// # Errors
    /// In words, when the text is neither, or does not fit so many qubits.
    pub fn parse(text: &str, qubits: u32) -> Result<PauliString, String> {
        let shown = crate::model::cut(text, MAX_SHOWN);
        let mut parts = text.split("_q");
        let letters = parts.next().unwrap_or_default();
        if let Some(letter) = letters.chars().find(|c| !"IXYZ".contains(*c)) {
            return Err(format!(
                "the observable '{shown}' has '{}', its letters are I, X, Y and Z",
                letter.escape_default()
            ));
        }
        let mut places = Vec::new();
        for part in parts {
            let place = part.parse::<u32>().ok().filter(|place| *place < qubits && !part.starts_with('+'));
            places.push(place.ok_or_else(|| {
                format!("the observable '{shown}' names the qubit '{part}', the circuit has {qubits} qubits")
            })?);
        }
        if places.is_empty() {
            places = (0..qubits).collect();
        }
        if letters.len() != places.len() {
            return Err(format!(
                "the observable '{shown}' has {} letters for {} qubits: give a letter for each qubit of the circuit, or \
                 name the qubits, as in ZZ_q0_q1",
                letters.len(),
                places.len()
            ));
        }
        if places.iter().collect::<BTreeSet<_>>().len() < places.len() {
            return Err(format!("the observable '{shown}' names a qubit twice"));
        }
        let mut string = PauliString { flips: 0, signs: 0 };
        for (letter, place) in letters.chars().zip(places) {
            string.flips |= usize::from(matches!(letter, 'X' | 'Y')) << place;
            string.signs |= usize::from(matches!(letter, 'Z' | 'Y')) << place;
        }
        Ok(string)
    }

    /// The expectation value <psi|P|psi> (equation 2.113). With y letters Y, P takes |i> to
    /// i^y (-1)^(number of bits that i and the qubits with Z or Y share) |i xor flips>, because Y = iXZ.
    pub fn expectation(&self, state: &[Complex]) -> f64 {
        let mut sum = [0.0, 0.0];
        for (index, [a, b]) in state.iter().enumerate() {
            let [c, d] = state.get(index ^ self.flips).copied().unwrap_or_default();
            let sign = if (index & self.signs).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            sum = [sum[0] + sign * (c * a + d * b), sum[1] + sign * (c * b - d * a)];
        }
        // The value is real: of i^y times the sum only that part is left.
        let real = match (self.flips & self.signs).count_ones() % 4 {
            0 => sum[0],
            1 => -sum[1],
            2 => -sum[0],
            _ => sum[1],
        };
        rounded(real / total(state))
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::FRAC_1_SQRT_2 as R;

    use super::*;

    const ZERO: Complex = [0.0, 0.0];

    /// (|00> + |11>)/sqrt 2.
    fn bell() -> Vec<Complex> {
        vec![[R, 0.0], ZERO, ZERO, [R, 0.0]]
    }

    fn ghz3() -> Vec<Complex> {
        let mut state = vec![ZERO; 8];
        (state[0], state[7]) = ([R, 0.0], [0.0, R]);
        state
    }

    /// Qubit 0 in |+>, qubit 1 in (|0> + i|1>)/sqrt 2, qubit 2 in 0.6|0> + 0.8|1>.
    fn product() -> Vec<Complex> {
        let amplitude = |index: usize| {
            let size = 0.5 * if index & 4 == 0 { 0.6 } else { 0.8 };
            if index & 2 == 0 { [size, 0.0] } else { [0.0, size] }
        };
        (0..8).map(amplitude).collect()
    }

    fn expectation(state: &[Complex], text: &str) -> f64 {
        PauliString::parse(text, state.len().trailing_zeros()).unwrap().expectation(state)
    }

    #[test]
    fn probabilities_have_one_character_for_each_qubit_in_their_order() {
        let found = probabilities(&product(), &[2, 0]);
        let expected = [("00", 0.18), ("01", 0.18), ("10", 0.32), ("11", 0.32)];
        assert_eq!(found, expected.map(|(key, p)| (key.to_string(), p)).into());
        assert_eq!(
            probabilities(&bell(), &[0, 1]),
            [("00".to_string(), 0.5), ("11".to_string(), 0.5)].into()
        );
        assert_eq!(probabilities(&bell(), &[1]), [("0".to_string(), 0.5), ("1".to_string(), 0.5)].into());
        assert_eq!(probabilities(&[ZERO, [2.0, 0.0]], &[0]), [("1".to_string(), 1.0)].into(), "any norm");
    }

    #[test]
    fn bloch_vectors_of_products_are_long_and_of_entangled_qubits_zero() {
        let product = product();
        let of = |qubit| bloch_vector(&product, qubit);
        assert_eq!(of(0), BlochVector { x: 1.0, y: 0.0, z: 0.0 });
        assert_eq!(of(1), BlochVector { x: 0.0, y: 1.0, z: 0.0 });
        assert_eq!(of(2), BlochVector { x: 0.96, y: 0.0, z: -0.28 });
        let none = BlochVector { x: 0.0, y: 0.0, z: 0.0 };
        assert!((0..2).all(|qubit| bloch_vector(&bell(), qubit) == none));
        assert!((0..3).all(|qubit| bloch_vector(&ghz3(), qubit) == none));
    }

    #[test]
    fn entropies_are_bits_of_entanglement() {
        assert!((0..3).all(|qubit| entanglement_entropy(&product(), qubit) == 0.0));
        assert!((0..2).all(|qubit| entanglement_entropy(&bell(), qubit) == 1.0));
        assert!((0..3).all(|qubit| entanglement_entropy(&ghz3(), qubit) == 1.0));
        // 0.6|00> + 0.8|11>: the binary entropy of 0.36.
        let partly = [[0.6, 0.0], ZERO, ZERO, [0.8, 0.0]];
        let expected = -(0.36_f64 * 0.36_f64.log2() + 0.64 * 0.64_f64.log2());
        assert!((entanglement_entropy(&partly, 1) - expected).abs() < 1e-12);
    }

    #[test]
    fn expectation_values_of_known_states() {
        for (text, value) in [("ZZ", 1.0), ("XX", 1.0), ("YY", -1.0), ("ZI", 0.0), ("XZ", 0.0), ("II", 1.0)] {
            assert_eq!(expectation(&bell(), text), value, "{text}");
        }
        // i|111>: the correlations have the Y on an odd number of qubits.
        for (text, value) in
            [("ZZI", 1.0), ("ZZZ", 0.0), ("XXX", 0.0), ("YXX", 1.0), ("YYY", -1.0), ("ZZ_q0_q2", 1.0)]
        {
            assert_eq!(expectation(&ghz3(), text), value, "{text}");
        }
        for (text, value) in
            [("XII", 1.0), ("IYI", 1.0), ("IIZ", -0.28), ("XYX", 0.96), ("X_q0", 1.0), ("ZY_q2_q1", -0.28)]
        {
            assert_eq!(expectation(&product(), text), value, "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_observables_are_refused_in_words() {
        for (text, expected) in [
            ("ZQ", "has 'Q', its letters are I, X, Y and Z"),
            ("zz", "has 'z'"),
            ("ZZZ", "has 3 letters for 2 qubits"),
            ("", "has 0 letters for 2 qubits"),
            ("ZZ_q0", "has 2 letters for 1 qubits"),
            ("ZZ_q0_q2", "names the qubit '2', the circuit has 2 qubits"),
            ("ZZ_q0_q+1", "names the qubit '+1'"),
            ("ZZ_q1_q1", "names a qubit twice"),
        ] {
            let error = PauliString::parse(text, 2).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
