//! Pure: amplitudes as texts, as Python writes and reads complex numbers.
//!
//! Read: what `complex()` reads, without nan and inf. Written: each part rounded to 12 decimals, in Python's
//! shortest float form; a part that is 0 is left out.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde::Deserializer as _;
use serde::de::{SeqAccess, Visitor};

/// A complex number: real and imaginary part.
pub type Complex = [f64; 2];

/// How far a state's norm may be from 1.
pub const NORM_TOLERANCE: f64 = 1e-6;
/// More qubits than any state that could be sent.
pub const MAX_QUBITS: usize = 30;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StateError {
    #[error("amplitude {index} is {text:?}, which is not a complex number")]
    Text { index: usize, text: String },
    #[error("amplitude {index} is {text:?}, which is not finite")]
    NotFinite { index: usize, text: String },
    #[error("{found} amplitudes for {qubits} qubits, expected are {expected}")]
    Length { found: usize, qubits: usize, expected: usize },
    #[error("the norm of the state is {0}, expected is 1 within 1e-6")]
    Norm(f64),
    #[error("{0} qubits are more than the {MAX_QUBITS} that a state can be sent of")]
    Qubits(usize),
    #[error("the amplitudes are not a list of texts: {0}")]
    List(String),
}

/// Reads the amplitudes of a state of so many qubits from JSON: a list of texts. Each is decoded where it stands, so
/// that no more memory is used than the state takes. An empty list is not a state.
///
/// # Errors
/// As [`read_state`].
pub fn read_list(json: &str, qubits: usize) -> Result<Option<Vec<Complex>>, StateError> {
    struct List {
        expected: usize,
        state: Vec<Complex>,
        found: usize,
        wrong: Option<StateError>,
    }

    impl<'de> Visitor<'de> for &mut List {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of texts")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<(), A::Error> {
            while let Some(text) = texts.next_element::<Cow<'de, str>>()? {
                let index = self.found;
                self.found += 1;
                // The rest is only counted, for the error.
                if index < self.expected && self.wrong.is_none() {
                    match read_finite(index, &text) {
                        Ok(value) => self.state.push(value),
                        Err(error) => self.wrong = Some(error),
                    }
                }
            }
            Ok(())
        }
    }

    if qubits > MAX_QUBITS {
        return Err(StateError::Qubits(qubits));
    }
    let expected = 1 << qubits;
    // The shortest amplitude is `"0",`.
    let state = Vec::with_capacity(expected.min(json.len() / 4 + 1));
    let mut list = List { expected, state, found: 0, wrong: None };
    let mut source = serde_json::Deserializer::from_str(json);
    let read = source.deserialize_seq(&mut list);
    read.map_err(|e| StateError::List(crate::model::cut(&e.to_string(), 200).into()))?;
    if list.found == 0 {
        return Ok(None);
    }
    if list.found != expected {
        return Err(StateError::Length { found: list.found, qubits, expected });
    }
    if let Some(wrong) = list.wrong {
        return Err(wrong);
    }
    check_norm(&list.state)?;
    Ok(Some(list.state))
}

fn read_finite(index: usize, text: &str) -> Result<Complex, StateError> {
    let shown = || crate::model::cut(text, 40).to_string();
    let value = read(text).ok_or_else(|| StateError::Text { index, text: shown() })?;
    match value[0].is_finite() && value[1].is_finite() {
        true => Ok(value),
        false => Err(StateError::NotFinite { index, text: shown() }),
    }
}

/// Reads the amplitudes of a state of so many qubits, and checks them.
///
/// # Errors
/// When the number of amplitudes is wrong, one of them can't be read or is not finite, or the norm is not 1.
pub fn read_state<S: AsRef<str>>(texts: &[S], qubits: usize) -> Result<Vec<Complex>, StateError> {
    if qubits > MAX_QUBITS {
        return Err(StateError::Qubits(qubits));
    }
    let expected = 1 << qubits;
    if texts.len() != expected {
        return Err(StateError::Length { found: texts.len(), qubits, expected });
    }
    let mut state = Vec::with_capacity(expected);
    for (index, text) in texts.iter().enumerate() {
        state.push(read_finite(index, text.as_ref())?);
    }
    check_norm(&state)?;
    Ok(state)
}

/// Whether a state's norm is 1, near enough.
///
/// # Errors
/// When the norm differs from 1 by more than the tolerance.
pub fn check_norm(state: &[Complex]) -> Result<(), StateError> {
    let norm = norm(state);
    match (norm - 1.0).abs() <= NORM_TOLERANCE {
        true => Ok(()),
        // A norm that is not a number is wrong too.
        false => Err(StateError::Norm(norm)),
    }
}

/// The length of a state's vector.
pub fn norm(state: &[Complex]) -> f64 {
    state.iter().map(|[re, im]| re * re + im * im).sum::<f64>().sqrt()
}

/// All qubits in state 0.
pub fn zeros(qubits: usize) -> Vec<Complex> {
    let mut state = vec![[0.0, 0.0]; 1 << qubits];
    state[0] = [1.0, 0.0];
    state
}

/// One amplitude, as `complex()` reads it; nan and infinity come back as such.
pub fn read(text: &str) -> Option<Complex> {
    let mut text = text.trim();
    if let Some(inner) = text.strip_prefix('(') {
        text = inner.strip_suffix(')')?.trim();
    }
    let Some(body) = text.strip_suffix(['j', 'J']) else {
        return number(text).map(|re| [re, 0.0]);
    };
    // The imaginary part begins at the last sign that is not an exponent's.
    let bytes = body.as_bytes();
    let exponent = |i: usize| i > 0 && matches!(bytes[i - 1], b'e' | b'E');
    let split = (0..bytes.len()).rev().find(|&i| matches!(bytes[i], b'+' | b'-') && !exponent(i));
    let (re, im) = match split {
        None | Some(0) => ("", body),
        Some(at) => body.split_at(at),
    };
    let re = if re.is_empty() { 0.0 } else { number(re)? };
    let im = match im {
        "" | "+" => 1.0,
        "-" => -1.0,
        digits => number(digits)?,
    };
    Some([re, im])
}

/// A float as Python reads it: no blanks inside, no hexadecimal, underscores between digits.
fn number(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let named = ["inf", "infinity", "nan"].iter().any(|n| unsigned.eq_ignore_ascii_case(n));
    let digits = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-' | '_');
    if !named && (unsigned.is_empty() || !unsigned.chars().all(digits)) {
        return None;
    }
    if !text.contains('_') {
        return text.parse().ok();
    }
    let bytes = text.as_bytes();
    let between = |i: usize| {
        let digit = |at: Option<&u8>| at.is_some_and(u8::is_ascii_digit);
        digit(i.checked_sub(1).and_then(|i| bytes.get(i))) && digit(bytes.get(i + 1))
    };
    let allowed = (0..bytes.len()).all(|i| bytes[i] != b'_' || between(i));
    allowed.then(|| text.replace('_', "").parse().ok())?
}

/// Writes one amplitude.
pub fn write(value: Complex) -> String {
    let mut out = String::with_capacity(36);
    write_to(&mut out, value);
    out
}

fn write_to(out: &mut String, [re, im]: Complex) {
    let (re, im) = (Part::of(re), Part::of(im));
    match (re.zero, im.zero) {
        (_, true) => re.put(out),
        (true, false) => {
            im.put(out);
            out.push('j');
        }
        (false, false) => {
            re.put(out);
            if !im.text.starts_with('-') {
                out.push('+');
            }
            im.put(out);
            out.push('j');
        }
    }
}

/// All of a state.
pub fn write_state(state: &[Complex]) -> Vec<String> {
    state.iter().map(|a| write(*a)).collect()
}

/// A float rounded to 12 decimals.
struct Part {
    text: String,
    zero: bool,
}

impl Part {
    fn of(value: f64) -> Part {
        let mut text = String::with_capacity(18);
        // Rounds the exact value, as Python's round does. Writing to a String can't fail.
        write!(text, "{value:.12}").ok();
        let zero = !text.bytes().any(|b| matches!(b, b'1'..=b'9'));
        Part { text, zero }
    }

    /// Python's shortest form of it: at most 12 decimals always read back as the same float.
    fn put(&self, out: &mut String) {
        if self.zero {
            return out.push_str("0.0");
        }
        let (sign, digits) = match self.text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", self.text.as_str()),
        };
        out.push_str(sign);
        let (whole, decimals) = digits.split_once('.').unwrap_or((digits, "0"));
        let decimals = decimals.trim_end_matches('0');
        if whole != "0" || !decimals.starts_with("0000") {
            out.push_str(whole);
            out.push('.');
            return out.push_str(if decimals.is_empty() { "0" } else { decimals });
        }
        let significant = decimals.trim_start_matches('0');
        let exponent = decimals.len() - significant.len() + 1;
        out.push_str(&significant[..1]);
        if significant.len() > 1 {
            out.push('.');
            out.push_str(&significant[1..]);
        }
        // Writing to a String can't fail.
        write!(out, "e-{exponent:02}").ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_complex_reads() {
        let cases = [
            ("1", [1.0, 0.0]),
            ("2j", [0.0, 2.0]),
            ("j", [0.0, 1.0]),
            ("-j", [0.0, -1.0]),
            ("+J", [0.0, 1.0]),
            ("1e-5-2E3J", [1e-5, -2e3]),
            ("(0.7071067811865475+0j)", [0.7071067811865475, 0.0]),
            (" ( -0+0j ) ", [0.0, 0.0]),
            ("0j", [0.0, 0.0]),
            ("5e-1J", [0.0, 0.5]),
            ("-.5", [-0.5, 0.0]),
            ("1.", [1.0, 0.0]),
            ("+0.3-4E-1j", [0.3, -0.4]),
            ("1e+2+1e+2j", [100.0, 100.0]),
            ("1_0.5", [10.5, 0.0]),
            ("3+j", [3.0, 1.0]),
        ];
        for (text, value) in cases {
            assert_eq!(read(text), Some(value), "{text}");
        }
        for text in [
            "",
            "one",
            "0.6 + 0.8j",
            "1+2",
            "1j2",
            "(1",
            "1)",
            "((1))",
            "0x1p3",
            "1e",
            "--1",
            "1__0",
            "_1",
            "+",
            "jj",
            "e5",
            "1+e5j",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
        for text in ["nan", "inf", "-Infinity", "1+nanj", "1e999"] {
            assert!(read(text).is_some_and(|[a, b]| !(a.is_finite() && b.is_finite())), "{text}");
        }
    }

    #[test]
    fn writes_as_existing_peers_do() {
        let half = std::f64::consts::FRAC_1_SQRT_2;
        let cases = [
            ([0.5, 0.0], "0.5"),
            ([1.0, 0.0], "1.0"),
            ([0.0, 0.0], "0.0"),
            ([-0.0, 1e-13], "0.0"),
            ([1e-5, 0.0], "1e-05"),
            ([half, 0.0], "0.707106781187"),
            ([0.0, 0.5], "0.5j"),
            ([0.5, -0.5], "0.5-0.5j"),
            ([-0.5, 0.25], "-0.5+0.25j"),
            ([0.0, -1e-12], "-1e-12j"),
            ([0.00012, -0.000012], "0.00012-1.2e-05j"),
            ([1.2345678e-7, 0.0], "1.23457e-07"),
            ([1.0000001, 0.0], "1.0000001"),
            ([0.9999999999999999, 0.0], "1.0"),
        ];
        for (value, text) in cases {
            assert_eq!(write(value), text);
        }
    }

    #[test]
    fn what_is_written_reads_back_within_its_decimals() {
        let mut seed = 1_u64;
        for _ in 0..10_000 {
            let mut random = || {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let scale = 10_f64.powi(-((seed >> 60) as i32));
                ((seed >> 11) as f64 / (1_u64 << 53) as f64 - 0.5) * scale
            };
            let value = [random(), random()];
            let text = write(value);
            let back = read(&text).unwrap();
            for (a, b) in value.iter().zip(back) {
                assert!((a - b).abs() <= 0.500001e-12, "{value:?} {text}");
            }
            assert_eq!(write(back), text, "the form is stable");
        }
    }

    #[test]
    fn states_are_checked() {
        let bad = |texts: &[&str], qubits| read_state(texts, qubits).unwrap_err().to_string();
        assert!(bad(&["1", "0", "0"], 2).contains("3 amplitudes for 2 qubits"));
        assert!(bad(&["1", "1"], 1).contains("norm"));
        assert!(bad(&["0", "0"], 1).contains("norm"));
        assert!(bad(&["nan", "0"], 1).contains("not finite"));
        assert!(bad(&["1e200", "1e200"], 1).contains("norm"));
        assert!(bad(&["", "1"], 1).contains("amplitude 0"));
        assert!(bad(&[], 60).contains("60 qubits"));
        assert!(read_state(&["0.70710685", "0.70710678118"], 1).is_ok(), "within 1e-6");
        let list = |json, qubits| read_list(json, qubits).map_err(|e| e.to_string());
        assert_eq!(list(r#"["0", "1j"]"#, 1), Ok(Some(vec![[0.0, 0.0], [0.0, 1.0]])));
        assert_eq!(list("[]", 29), Ok(None), "nothing is allocated for it");
        for (json, qubits, part) in [
            (r#"["0", "1", "0"]"#, 1, "3 amplitudes for 1 qubits"),
            (r#"["0", "1"]"#, 30, "2 amplitudes for 30 qubits"),
            (r#"["x", "1"]"#, 1, "amplitude 0"),
            (r#"["1", "inf"]"#, 1, "not finite"),
            (r#"["1", "1"]"#, 1, "norm"),
            ("[1, 0]", 1, "not a list of texts"),
            ("{}", 1, "not a list of texts"),
            (r#"["1"]"#, 31, "31 qubits"),
        ] {
            assert!(list(json, qubits).unwrap_err().contains(part), "{json}: {:?}", list(json, qubits));
        }
        assert!(read_state(&["0.70711385", "0.70710678118"], 1).is_err(), "beyond");
    }
}
