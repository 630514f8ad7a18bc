//! From a library's histogram to the counts of a job.
//!
//! Contract: pure. Whatever the library sends is checked: width, characters, repetitions, sum. Nothing is repaired. Fewer
//! shots than were asked for are legal, since some devices discard shots that failed a check of their own.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::BitOrder;

/// What a job's histogram must fit.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// The circuit's measurements, with repetitions and in its order.
    pub measurements: &'a [u16],
    /// The distinct ones, ascending: qubit `measured[k]` is bit k of the classical register.
    pub measured: &'a [u16],
    pub shots: u32,
    pub bit_order: BitOrder,
}

/// Counts from keys with commas between them, and a value for each.
///
/// # Errors
/// Says what of the histogram can't be true.
pub fn counts(keys: &str, values: &[u64], expected: &Expected<'_>) -> Result<Vec<(String, i64)>, String> {
    let keys: Vec<&str> = split(keys).collect();
    if keys.len() != values.len() {
        return Err(format!("the device library answered {} keys and {} values", keys.len(), values.len()));
    }
    if keys.is_empty() {
        return Err("the device library says that the job is done, and gave no counts".into());
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = keys.iter().find(|key| !seen.insert(**key)) {
        return Err(format!("the device library answered the key {} twice", shown(twice)));
    }
    let sum = values.iter().try_fold(0u64, |sum, value| sum.checked_add(*value));
    let shots = u64::from(expected.shots);
    if sum.is_none_or(|sum| sum > shots) {
        let sum = sum.map_or("more than 2^64".to_string(), |sum| sum.to_string());
        return Err(format!("the device library answered counts of {sum} shots, and {shots} were asked for"));
    }
    let positions = positions(expected);
    let mut counts = Vec::with_capacity(keys.len());
    for (key, value) in keys.iter().zip(values) {
        let outcome = outcome(key, expected, &positions)?;
        if *value > 0 {
            // Bounded by the sum, which is at most the shots.
            counts.push((outcome, i64::try_from(*value).unwrap_or(i64::MAX)));
        }
    }
    if counts.is_empty() {
        return Err("the device library says that the job is done, and its counts are all 0".into());
    }
    Ok(counts)
}

/// Counts from the outcomes of single shots with commas between them.
///
/// # Errors
/// As `counts`.
pub fn counts_of_shots(outcomes: &str, expected: &Expected<'_>) -> Result<Vec<(String, i64)>, String> {
    let mut values = BTreeMap::<&str, u64>::new();
    for outcome in split(outcomes) {
        *values.entry(outcome).or_default() += 1;
    }
    let keys: Vec<&str> = values.keys().copied().collect();
    let numbers: Vec<u64> = values.values().copied().collect();
    counts(&keys.join(","), &numbers, expected)
}

fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(move |_| !list.is_empty())
}

/// For each measurement of the circuit, the character of a key that is its outcome.
fn positions(expected: &Expected<'_>) -> Vec<usize> {
    let width = expected.measured.len();
    let position = |qubit: &u16| {
        let bit = expected.measured.binary_search(qubit).unwrap_or_default();
        match expected.bit_order {
            BitOrder::FirstLeft => bit,
            BitOrder::FirstRight => width - 1 - bit,
        }
    };
    expected.measurements.iter().map(position).collect()
}

fn outcome(key: &str, expected: &Expected<'_>, positions: &[usize]) -> Result<String, String> {
    let width = expected.measured.len();
    let bytes = key.as_bytes();
    if bytes.len() != width {
        let measured = format!("{width} qubit{}", if width == 1 { "" } else { "s" });
        return Err(format!(
            "the device library answered the key {}, and {measured} were measured",
            shown(key)
        ));
    }
    if bytes.iter().any(|byte| !matches!(byte, b'0' | b'1')) {
        return Err(format!("the device library answered the key {}, which is not of 0 and 1", shown(key)));
    }
    Ok(positions.iter().map(|position| char::from(bytes[*position])).collect())
}

/// A key for an error: short, and without what a terminal would obey.
fn shown(key: &str) -> String {
    const MOST: usize = 60;
    let cut = key.char_indices().nth(MOST).map_or(key.len(), |(at, _)| at);
    format!("{:?}{}", &key[..cut], if cut < key.len() { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::distinct;

    fn run(keys: &str, values: &[u64], measurements: &[u16], bit_order: BitOrder) -> Result<String, String> {
        let measured = distinct(measurements);
        let expected = Expected { measurements, measured: &measured, shots: 100, bit_order };
        let counts = counts(keys, values, &expected)?;
        Ok(counts.iter().map(|(key, n)| format!("{key}:{n}")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn bits_come_to_their_measurements() {
        use BitOrder::*;
        for (keys, values, measurements, bit_order, wants) in [
            // Six qubits, 2 is turned over.
            ("0010", &[100][..], &[2, 5, 0, 3][..], FirstRight, "1000:100"),
            ("0100", &[100], &[2, 5, 0, 3], FirstLeft, "1000:100"),
            // Three qubits, 0 is turned over, and one is measured twice.
            ("01", &[100], &[0, 0, 1], FirstRight, "110:100"),
            ("10", &[100], &[0, 0, 1], FirstLeft, "110:100"),
            ("01,10", &[1, 2], &[0, 1], FirstRight, "10:1 01:2"),
            ("01,10", &[1, 2], &[1, 0], FirstRight, "01:1 10:2"),
            ("01,10", &[1, 2], &[0, 1], FirstLeft, "01:1 10:2"),
            ("01,10", &[1, 2], &[1, 0], FirstLeft, "10:1 01:2"),
            ("001", &[5], &[7, 30, 49], FirstRight, "100:5"),
            ("1", &[99], &[3, 3], FirstRight, "11:99"),
            ("0,1", &[0, 7], &[0], FirstRight, "1:7"),
        ] {
            assert_eq!(run(keys, values, measurements, bit_order).unwrap(), wants, "{keys} {measurements:?}");
        }
    }

    #[test]
    fn histograms_that_can_not_be_true_are_refused() {
        for (keys, values, says) in [
            ("00,01", &[1][..], "answered 2 keys and 1 values"),
            ("", &[], "is done, and gave no counts"),
            ("", &[3], "answered 0 keys and 1 values"),
            ("00,11", &[0, 0], "its counts are all 0"),
            ("00,00", &[1, 2], "the key \"00\" twice"),
            ("000", &[1], "the key \"000\", and 2 qubits were measured"),
            ("0", &[1], "the key \"0\", and 2 qubits"),
            ("00,", &[1, 0], "the key \"\", and 2 qubits"),
            ("0x", &[1], "which is not of 0 and 1"),
            ("é", &[1], "which is not of 0 and 1"),
            ("\u{1b}]", &[1], "the key \"\\u{1b}]\""),
            ("00,11", &[60, 41], "counts of 101 shots, and 100 were asked for"),
            ("00,11", &[u64::MAX, 1], "more than 2^64"),
        ] {
            let error = run(keys, values, &[0, 1], BitOrder::FirstRight).unwrap_err();
            assert!(error.contains(says), "{keys:?}: {error}");
        }
        let long = "0".repeat(10_000);
        let error = run(&long, &[1], &[0, 1], BitOrder::FirstRight).unwrap_err();
        assert!(error.len() < 200, "{error}");
    }

    #[test]
    fn fewer_shots_than_asked_for_are_legal() {
        assert_eq!(run("00", &[7], &[0, 1], BitOrder::FirstRight).unwrap(), "00:7");
    }

    #[test]
    fn single_shots_are_counted() {
        let expected =
            Expected { measurements: &[1, 0], measured: &[0, 1], shots: 4, bit_order: BitOrder::FirstRight };
        let counted = counts_of_shots("01,11,01,01", &expected).unwrap();
        assert_eq!(counted, [("01".to_string(), 3), ("11".to_string(), 1)]);
        assert!(counts_of_shots("", &expected).unwrap_err().contains("gave no counts"));
        assert!(counts_of_shots("01,01,01,01,01", &expected).unwrap_err().contains("5 shots"));
    }
}
