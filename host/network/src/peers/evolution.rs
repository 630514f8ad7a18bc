//! Pure: how matrices change a state, to check what executors and peers answer.
//!
//! Straightforward on purpose: it shares no code with what it checks.

use super::amplitude::Complex;
use super::operation::Unitary;

/// Applies matrices to a state, one after another.
pub fn apply(state: &mut [Complex], steps: &[Unitary]) {
    for step in steps {
        let (bit, [a, b, c, d]) = (1_usize << step.target, step.matrix);
        let controls = usize::try_from(step.controls).unwrap_or(usize::MAX);
        for zero in 0..state.len() {
            if zero & bit == 0 && zero & controls == controls {
                let (x, y) = (state[zero], state[zero | bit]);
                state[zero] = sum(product(a, x), product(b, y));
                state[zero | bit] = sum(product(c, x), product(d, y));
            }
        }
    }
}

fn product([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a * c - b * d, a * d + b * c]
}

fn sum([a, b]: Complex, [c, d]: Complex) -> Complex {
    [a + c, b + d]
}

/// |<a|b>|^2 of two states of norm 1: 1 for the same state, whatever its global phase; 0 for states of different lengths.
pub fn fidelity(a: &[Complex], b: &[Complex]) -> f64 {
    if a.len() != b.len() {
        return 0.0;
    }
    let [re, im] =
        a.iter().zip(b).fold([0.0, 0.0], |so_far, ([re, im], b)| sum(so_far, product([*re, -*im], *b)));
    re * re + im * im
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fidelity_ignores_a_global_phase_and_nothing_else() {
        let r = std::f64::consts::FRAC_1_SQRT_2;
        let plus = [[r, 0.0], [r, 0.0]];
        assert!((fidelity(&plus, &[[0.0, r], [0.0, r]]) - 1.0).abs() < 1e-12);
        assert!(fidelity(&plus, &[[r, 0.0], [-r, 0.0]]) < 1e-12);
        assert!((fidelity(&plus, &[[1.0, 0.0], [0.0, 0.0]]) - 0.5).abs() < 1e-12);
        assert_eq!(fidelity(&plus, &[[1.0, 0.0]]), 0.0);
    }
}
