//! Stands for the hardware: the exact state of at most ten qubits. A real plugin has its control stack's client here.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use coda_plugin_abi::Op;

/// A complex number.
type C = [f64; 2];

fn times(a: C, b: C) -> C {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

pub struct Qubits {
    state: Vec<C>,
}

impl Qubits {
    pub fn zero(count: u16) -> Qubits {
        let mut state = vec![[0.0, 0.0]; 1 << count];
        state[0] = [1.0, 0.0];
        Qubits { state }
    }

    /// Executes one gate of the target `cz`, or says why it can't.
    pub fn apply(&mut self, gate: Option<Op>) -> Result<(), String> {
        let half = |angle: f64| ((angle / 2.0).cos(), (angle / 2.0).sin());
        match gate {
            Some(Op::Rx { q, angle }) => {
                let (c, s) = half(angle);
                self.turn(q, [[c, 0.0], [0.0, -s], [0.0, -s], [c, 0.0]]);
            }
            Some(Op::Ry { q, angle }) => {
                let (c, s) = half(angle);
                self.turn(q, [[c, 0.0], [-s, 0.0], [s, 0.0], [c, 0.0]]);
            }
            Some(Op::Rz { q, angle }) => {
                let (c, s) = half(angle);
                self.turn(q, [[c, -s], [0.0; 2], [0.0; 2], [c, s]]);
            }
            Some(Op::Cz { a, b }) => {
                for (i, amplitude) in self.state.iter_mut().enumerate() {
                    if i >> a & i >> b & 1 == 1 {
                        *amplitude = [-amplitude[0], -amplitude[1]];
                    }
                }
            }
            Some(Op::Id { .. }) => {}
            Some(other) => return Err(format!("this device has no {other:?}")),
            None => return Err("unknown gate".into()),
        }
        Ok(())
    }

    fn turn(&mut self, q: u16, [m00, m01, m10, m11]: [C; 4]) {
        let bit = 1usize << q;
        for i in (0..self.state.len()).filter(|i| i & bit == 0) {
            let (x, y) = (self.state[i], self.state[i | bit]);
            let sum = |a: C, b: C| [a[0] + b[0], a[1] + b[1]];
            self.state[i] = sum(times(m00, x), times(m01, y));
            self.state[i | bit] = sum(times(m10, x), times(m11, y));
        }
    }

    /// Measures all qubits again and again; bit `q` of a result is the outcome of qubit `q`.
    pub fn shots(&self) -> impl Iterator<Item = usize> {
        let sums = self.state.iter().scan(0.0, |sum, a| {
            *sum += a[0] * a[0] + a[1] * a[1];
            Some(*sum)
        });
        let (sums, last): (Vec<f64>, usize) = (sums.collect(), self.state.len() - 1);
        let mut random = RandomState::new().build_hasher().finish() | 1;
        std::iter::from_fn(move || {
            // xorshift64*: enough for an example.
            random ^= random >> 12;
            random ^= random << 25;
            random ^= random >> 27;
            let r = (random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64;
            Some(sums.partition_point(|sum| *sum <= r * sums[last]).min(last))
        })
    }
}
