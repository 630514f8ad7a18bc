//! Pure: what an executor may answer to `evolve_state`.
//!
//! The answer must be a state of the same size; whether it is the right one is the caller's concern.

use coda_plugin_abi::{Amplitude, Error, ErrorCode, Stage};

/// How far the norm of an answer may be from 1.
const NORM_ERROR: f64 = 1e-6;

/// Passes on a state of `len` amplitudes.
///
/// # Errors
/// When the number of amplitudes is another one, or the norm is not 1.
pub(super) fn check_state(state: Vec<Amplitude>, len: usize) -> Result<Vec<Amplitude>, Error> {
    let contract = |text: String| Err(Error::new(ErrorCode::Contract, text).at(Stage::Run));
    if state.len() != len {
        return contract(format!("the executor returned {} amplitudes for {len}", state.len()));
    }
    let norm: f64 = state.iter().map(|a| a.re * a.re + a.im * a.im).sum();
    // In this form a norm that is not a number is refused too.
    let is_one = (norm - 1.0).abs() <= NORM_ERROR;
    if is_one {
        Ok(state)
    } else {
        contract(format!("the executor returned a state of norm {norm}, expected 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_state_is_refused() {
        let half = Amplitude { re: std::f64::consts::FRAC_1_SQRT_2, im: 0.0 };
        assert!(check_state(vec![half; 2], 2).is_ok());
        let refusal = |state, len| check_state(state, len).unwrap_err().text;
        assert_eq!(refusal(vec![half; 2], 4), "the executor returned 2 amplitudes for 4");
        assert!(refusal(vec![half; 4], 4).contains("norm 2"), "{}", refusal(vec![half; 4], 4));
        assert!(refusal(vec![Amplitude { re: f64::NAN, im: 0.0 }; 2], 2).contains("norm NaN"));
    }
}
