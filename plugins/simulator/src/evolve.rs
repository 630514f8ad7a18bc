//! Operations applied to a state that is handed over, amplitude by amplitude.
//!
//! Contract: exact, one thread, order kept; each operation visits the amplitudes once. `watch` is told the
//! operations done and returns whether to go on, asked about every millisecond.

use coda_plugin_abi::{Amplitude, Operation};

use crate::kernel::Stopped;

/// Amplitudes worked on between two looks at `watch`.
const WATCH_EVERY: usize = 1 << 18;

/// Applies the operations in place.
///
/// # Errors
/// [`Stopped`] when `watch` says so.
pub fn apply(
    state: &mut [Amplitude],
    operations: &[Operation],
    watch: &mut dyn FnMut(usize) -> bool,
) -> Result<(), Stopped> {
    let mut left = 0;
    for (done, operation) in operations.iter().enumerate() {
        let half = 1usize << operation.target;
        for (block, pairs) in state.chunks_exact_mut(2 * half).enumerate() {
            if left < 2 * half {
                if !watch(done) {
                    return Err(Stopped);
                }
                left = WATCH_EVERY.max(2 * half);
            }
            left -= 2 * half;
            let (zeros, ones) = pairs.split_at_mut(half);
            turn(zeros, ones, operation, block * 2 * half);
        }
    }
    Ok(())
}

/// The pairs of one block, whose first index is `base`.
fn turn(zeros: &mut [Amplitude], ones: &mut [Amplitude], operation: &Operation, base: usize) {
    let [m00, m01, m10, m11] = operation.matrix;
    let pairs = zeros.iter_mut().zip(ones).enumerate();
    let controls = operation.controls;
    for (_, (a, b)) in pairs.filter(|(i, _)| (base + i) as u64 & controls == controls) {
        let (x, y) = (*a, *b);
        *a = sum(times(m00, x), times(m01, y));
        *b = sum(times(m10, x), times(m11, y));
    }
}

fn times(a: Amplitude, b: Amplitude) -> Amplitude {
    Amplitude { re: a.re * b.re - a.im * b.im, im: a.re * b.im + a.im * b.re }
}

fn sum(a: Amplitude, b: Amplitude) -> Amplitude {
    Amplitude { re: a.re + b.re, im: a.im + b.im }
}
