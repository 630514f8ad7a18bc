//! Pure: states of components put together, and counts out of a state.
//!
//! The product's qubits ascend; the first is the least significant bit. In a count's key character i is the i-th
//! measured qubit, as in NativeGateIR (existing coordinators put the last one leftmost).

use std::collections::BTreeMap;

use crate::peers::amplitude::{Complex, zeros};

/// The state of some qubits.
#[derive(Debug, Clone, PartialEq)]
pub struct Component {
    /// Bit k of an index is the k-th of these.
    pub qubits: Vec<u32>,
    /// None: all zeros, never touched.
    pub amplitudes: Option<Vec<Complex>>,
    pub measured: Vec<u32>,
    pub previous_peer_id: Option<String>,
}

impl Component {
    /// A qubit that no one has touched.
    pub fn fresh(qubit: u32) -> Component {
        Component { qubits: vec![qubit], amplitudes: None, measured: Vec::new(), previous_peer_id: None }
    }
}

/// The tensor product; a single one passes untouched.
pub fn combine(mut parts: Vec<Component>) -> Component {
    if parts.len() == 1
        && let Some(only) = parts.pop()
    {
        return only;
    }
    let mut qubits: Vec<u32> = parts.iter().flat_map(|p| p.qubits.iter().copied()).collect();
    qubits.sort_unstable();
    let mut measured: Vec<u32> = parts.iter().flat_map(|p| p.measured.iter().copied()).collect();
    measured.sort_unstable();
    measured.dedup();
    let previous_peer_id = parts.iter().rev().find_map(|p| p.previous_peer_id.clone());
    if parts.iter().all(|p| p.amplitudes.is_none()) {
        return Component { qubits, amplitudes: None, measured, previous_peer_id };
    }
    let mut product = vec![[1.0, 0.0]; 1 << qubits.len()];
    for part in &parts {
        let own = part.amplitudes.clone().unwrap_or_else(|| zeros(part.qubits.len()));
        let bits: Vec<usize> =
            part.qubits.iter().map(|q| qubits.binary_search(q).unwrap_or_default()).collect();
        for (index, amplitude) in product.iter_mut().enumerate() {
            let inner = bits.iter().enumerate().fold(0, |sum, (k, bit)| sum | (index >> bit & 1) << k);
            let ([a, b], [c, d]) = (*amplitude, own[inner]);
            *amplitude = [a * c - b * d, a * d + b * c];
        }
    }
    Component { qubits, amplitudes: Some(product), measured, previous_peer_id }
}

/// Draws so many shots of these qubits; `random` gives numbers from 0 up to 1.
pub fn counts(
    state: &Component,
    sampled: &[u32],
    shots: u32,
    random: &mut dyn FnMut() -> f64,
) -> BTreeMap<String, u32> {
    let amplitudes = state.amplitudes.clone().unwrap_or_else(|| zeros(state.qubits.len()));
    let mut sum = 0.0;
    let cumulative: Vec<f64> = amplitudes
        .iter()
        .map(|[re, im]| {
            sum += re * re + im * im;
            sum
        })
        .collect();
    let bits: Vec<Option<usize>> =
        sampled.iter().map(|q| state.qubits.iter().position(|own| own == q)).collect();
    let mut found = BTreeMap::new();
    for _ in 0..shots {
        let at = random() * sum;
        let index = cumulative.partition_point(|c| *c <= at).min(amplitudes.len() - 1);
        let key = bits.iter().map(|bit| match bit {
            Some(bit) if index >> bit & 1 == 1 => '1',
            _ => '0',
        });
        *found.entry(key.collect()).or_default() += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(qubits: &[u32], amplitudes: &[f64], measured: &[u32], peer: Option<&str>) -> Component {
        Component {
            qubits: qubits.to_vec(),
            amplitudes: Some(amplitudes.iter().map(|a| [*a, 0.0]).collect()),
            measured: measured.to_vec(),
            previous_peer_id: peer.map(String::from),
        }
    }

    #[test]
    fn the_product_ascends_and_remembers() {
        // |1> on qubit 2, and 0.6|0> + 0.8|1> on qubit 0.
        let product = combine(vec![
            part(&[2], &[0.0, 1.0], &[2], Some("p1")),
            part(&[0], &[0.6, 0.8], &[], None),
            Component::fresh(1),
        ]);
        assert_eq!((product.qubits, product.measured), (vec![0, 1, 2], vec![2]));
        assert_eq!(product.previous_peer_id.as_deref(), Some("p1"));
        let amplitudes: Vec<f64> = product.amplitudes.unwrap().iter().map(|a| a[0]).collect();
        assert_eq!(amplitudes, [0.0, 0.0, 0.0, 0.0, 0.6, 0.8, 0.0, 0.0]);
        let untouched = part(&[3, 1], &[0.0, 1.0, 0.0, 0.0], &[3], Some("p"));
        assert_eq!(combine(vec![untouched.clone()]), untouched);
        assert_eq!(combine(vec![Component::fresh(1), Component::fresh(0)]).amplitudes, None);
    }

    #[test]
    fn character_i_is_the_i_th_measured_qubit() {
        let state = part(&[0, 1], &[0.0, 1.0, 0.0, 0.0], &[], None);
        let count = |sampled: &[u32]| counts(&state, sampled, 5, &mut || 0.5);
        assert_eq!(count(&[0, 1]), BTreeMap::from([("10".to_string(), 5)]));
        assert_eq!(count(&[1, 0]), BTreeMap::from([("01".to_string(), 5)]));
        assert_eq!(count(&[]), BTreeMap::from([(String::new(), 5)]));
    }

    #[test]
    fn shots_follow_the_weights() {
        let state = part(&[0], &[0.6, 0.8], &[], None);
        let mut n = 0.0;
        let mut random = || {
            n += 1.0;
            (n - 0.5) / 100.0
        };
        let found = counts(&state, &[0], 100, &mut random);
        assert_eq!(found, BTreeMap::from([("0".to_string(), 36), ("1".to_string(), 64)]));
    }
}
