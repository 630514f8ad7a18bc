//! From weights to counts.
//!
//! Contract: [`multinomial`] draws exactly as many shots as asked for, each outcome with a probability
//! proportional to its weight; its time grows with the number of distinct outcomes, not with that of shots.
//! [`Tally`] keeps counts within a memory limit.

use coda_plugin_abi::{Error, ErrorCode, Stage};
use rand::Rng;
use rand_distr::{Binomial, Distribution};

/// Up to so many shots are drawn one by one; more are divided between two halves first.
const DIRECT_SHOTS: u64 = 32;

/// Draws `shots` indices; `emit(index, count)` is called with ascending indices and positive counts.
///
/// # Errors
/// What `emit` returns.
pub fn multinomial<R: Rng, E>(
    weights: &[f64],
    shots: u64,
    rng: &mut R,
    emit: &mut impl FnMut(usize, u64) -> Result<(), E>,
) -> Result<(), E> {
    part(weights, 0, shots, rng, emit)
}

/// The number of shots in the left half is binomial, so a range is divided until few shots are left.
fn part<R: Rng, E>(
    weights: &[f64],
    offset: usize,
    shots: u64,
    rng: &mut R,
    emit: &mut impl FnMut(usize, u64) -> Result<(), E>,
) -> Result<(), E> {
    if shots == 0 {
        return Ok(());
    }
    if weights.len() == 1 {
        return emit(offset, shots);
    }
    if shots <= DIRECT_SHOTS {
        return direct(weights, offset, shots, rng, emit);
    }
    let (left, right) = weights.split_at(weights.len() / 2);
    let (left_sum, right_sum) = (sum(left), sum(right));
    let in_left = binomial(shots, left_sum / (left_sum + right_sum), rng);
    part(left, offset, in_left, rng, emit)?;
    part(right, offset + left.len(), shots - in_left, rng, emit)
}

/// Sorted positions on the cumulative distribution.
fn direct<R: Rng, E>(
    weights: &[f64],
    offset: usize,
    shots: u64,
    rng: &mut R,
    emit: &mut impl FnMut(usize, u64) -> Result<(), E>,
) -> Result<(), E> {
    let total = weights.iter().fold(0.0, |sum, w| sum + w);
    let mut positions: Vec<f64> = (0..shots).map(|_| rng.random::<f64>() * total).collect();
    positions.sort_unstable_by(f64::total_cmp);
    let mut rest = positions.as_slice();
    let mut reached = 0.0;
    for (index, weight) in weights.iter().enumerate() {
        if rest.is_empty() {
            return Ok(());
        }
        reached += weight;
        let here = rest.iter().take_while(|p| **p < reached).count();
        if here > 0 {
            emit(offset + index, here as u64)?;
            rest = &rest[here..];
        }
    }
    if rest.is_empty() {
        return Ok(());
    }
    // A position that rounded up to the total belongs to the last outcome that can occur.
    let last = weights.iter().rposition(|w| *w > 0.0).unwrap_or(0);
    emit(offset + last, rest.len() as u64)
}

/// Eight partial sums: accurate, and the compiler can vectorise it.
fn sum(weights: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let chunks = weights.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().sum();
    for chunk in chunks {
        for (s, w) in sums.iter_mut().zip(chunk) {
            *s += w;
        }
    }
    sums.iter().sum::<f64>() + rest
}

/// How many of `n` events of probability `p` occur.
pub fn binomial<R: Rng>(n: u64, p: f64, rng: &mut R) -> u64 {
    match Binomial::new(n, p) {
        Ok(b) => b.sample(rng).min(n),
        // Only for a `p` that is not a probability, which a sum of weights that are all zero would give.
        Err(_) => 0,
    }
}

/// Counts of outcomes, at most `limit` distinct ones.
#[derive(Debug)]
pub struct Tally {
    entries: Vec<(u64, u64)>,
    limit: usize,
}

impl Tally {
    pub fn new(limit: usize) -> Tally {
        Tally { entries: Vec::new(), limit: limit.max(1) }
    }

    /// # Errors
    /// When the distinct outcomes are more than the limit.
    pub fn add(&mut self, outcome: u64, count: u64) -> Result<(), Error> {
        // Entries of the same outcome are merged only when there are many, but always before refusing.
        if self.entries.len() >= self.limit {
            self.merge();
            if self.entries.len() >= self.limit && self.entries.iter().all(|e| e.0 != outcome) {
                let limit = self.limit;
                let text = format!(
                    "the job has more than {limit} distinct outcomes, whose keys would not fit `max_memory_mb`; \
                     measure fewer qubits or ask for fewer shots"
                );
                return Err(Error::new(ErrorCode::Resources, text).at(Stage::Readout));
            }
        }
        self.entries.push((outcome, count));
        Ok(())
    }

    fn merge(&mut self) {
        self.entries.sort_unstable_by_key(|e| e.0);
        self.entries.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 += later.1;
            }
            same
        });
    }

    /// Reads each of the `bits` wrong with probability `p`.
    ///
    /// # Errors
    /// When that makes more outcomes than the limit.
    pub fn flip<R: Rng>(self, bits: usize, p: f64, rng: &mut R) -> Result<Tally, Error> {
        let mut now = self;
        for bit in 0..bits {
            now.merge();
            let mut next = Tally::new(now.limit);
            for (outcome, count) in now.entries {
                let wrong = binomial(count, p, rng);
                if wrong > 0 {
                    next.add(outcome ^ 1 << bit, wrong)?;
                }
                if wrong < count {
                    next.add(outcome, count - wrong)?;
                }
            }
            now = next;
        }
        Ok(now)
    }

    /// Distinct outcomes in ascending order.
    pub fn into_counts(mut self) -> Vec<(u64, u64)> {
        self.merge();
        self.entries
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn draw(weights: &[f64], shots: u64, seed: u64) -> Vec<u64> {
        let mut counts = vec![0; weights.len()];
        let mut last = None;
        multinomial(weights, shots, &mut StdRng::seed_from_u64(seed), &mut |i, n| {
            assert!(n > 0 && last < Some(i), "ascending indices, positive counts");
            last = Some(i);
            counts[i] += n;
            Ok::<(), ()>(())
        })
        .unwrap();
        counts
    }

    #[test]
    fn counts_follow_the_weights_for_few_and_for_many_shots() {
        let weights: Vec<f64> = (0..64).map(|i| f64::from(i % 7) * 0.3).collect();
        let total: f64 = weights.iter().sum();
        for shots in [20_000, (1 << 31) - 1] {
            let counts = draw(&weights, shots, 7);
            assert_eq!(counts.iter().sum::<u64>(), shots);
            let mut chi_square = 0.0;
            for (n, w) in counts.iter().zip(&weights) {
                let expected = w / total * shots as f64;
                if expected == 0.0 {
                    assert_eq!(*n, 0, "an outcome of weight 0 never occurs");
                } else {
                    chi_square += (*n as f64 - expected).powi(2) / expected;
                }
            }
            // 53 degrees of freedom: 110 is exceeded with probability 7e-6; the seed is fixed.
            assert!(chi_square < 110.0, "chi square {chi_square} at {shots} shots");
        }
    }

    #[test]
    fn shots_drawn_one_by_one_follow_the_weights() {
        let mut ones = 0;
        for seed in 0..4000 {
            ones += draw(&[3.0, 1.0, 0.0], 8, seed)[1];
        }
        // 32,000 draws at 1/4: mean 8000, standard deviation 77.
        assert!((7600..8400).contains(&ones), "{ones}");
    }

    #[test]
    fn flips_are_exact_at_the_ends_and_binomial_between() {
        let mut rng = StdRng::seed_from_u64(1);
        let tally = |n| {
            let mut t = Tally::new(100);
            t.add(0b01, n).unwrap();
            t
        };
        assert_eq!(tally(10).flip(2, 0.0, &mut rng).unwrap().into_counts(), [(0b01, 10)]);
        assert_eq!(tally(10).flip(2, 1.0, &mut rng).unwrap().into_counts(), [(0b10, 10)]);
        let half = tally(1 << 20).flip(1, 0.5, &mut rng).unwrap().into_counts();
        assert!(half.iter().all(|(_, n)| n.abs_diff(1 << 19) < 4000), "{half:?}");
    }

    #[test]
    fn distinct_outcomes_are_limited_and_repeated_ones_are_not() {
        let mut t = Tally::new(3);
        for i in 0..100 {
            t.add(i % 3, 1).unwrap();
        }
        let error = t.add(3, 1).unwrap_err();
        assert_eq!(error.code, ErrorCode::Resources);
        assert_eq!(t.into_counts(), [(0, 34), (1, 33), (2, 33)]);
    }
}
