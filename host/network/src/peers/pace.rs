//! Pure: how long an execution may take on this device, by the executions before it.
//!
//! A short execution says little about a long one: most of its time is the way to the executor and back. So times are kept
//! by the size of the work, in powers of two, and only a work of a similar size is estimated by them. What is not
//! estimated is taken on, and ended at the peer's limit like every other.

/// Powers of two of work.
const CLASSES: usize = 64;
/// An execution says something about works of up to so many classes above its own.
const REACH: usize = 2;
/// What is left of a slow execution's weight with each further one of its size.
const FORGET: f64 = 0.9;

/// Seconds for one amplitude and operation: of each size of work the slowest, which is forgotten slowly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace([Option<f64>; CLASSES]);

impl Default for Pace {
    fn default() -> Pace {
        Pace([None; CLASSES])
    }
}

impl Pace {
    /// An execution of so much work, amplitudes times operations, took so long.
    pub fn observe(&mut self, work: f64, seconds: f64) {
        if work > 0.0 {
            let slowest = &mut self.0[class(work)];
            let pace = seconds / work;
            *slowest = Some(slowest.map_or(pace, |before| pace.max(before * FORGET)));
        }
    }

    /// About how many seconds so much work takes; none when nothing of a similar size was seen.
    pub fn estimate(&self, work: f64) -> Option<f64> {
        let class = class(work);
        let near = self.0[class.saturating_sub(REACH)..=class].iter().rev();
        near.flatten().next().map(|pace| pace * work)
    }
}

fn class(work: f64) -> usize {
    // A float as an index saturates at 0.
    (work.log2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_execution_says_nothing_about_a_long_one() {
        let mut pace = Pace::default();
        assert_eq!(pace.estimate(2.0), None);
        // A gate on one qubit, and most of a millisecond is the way there.
        pace.observe(2.0, 1e-3);
        assert_eq!(pace.estimate(2.0), Some(1e-3));
        assert_eq!(pace.estimate(8.0), Some(4e-3));
        assert_eq!(pace.estimate(2_f64.powi(20)), None, "not half of a million milliseconds");
        pace.observe(2_f64.powi(18), 6.0);
        assert_eq!(pace.estimate(2_f64.powi(20)), Some(24.0));
        assert_eq!(pace.estimate(2.0), Some(1e-3));
        assert_eq!(pace.estimate(2_f64.powi(16)), None, "less than that at least");
    }

    #[test]
    fn the_slowest_counts_and_is_forgotten() {
        let mut pace = Pace::default();
        pace.observe(1024.0, 10.0);
        pace.observe(1024.0, 1.0);
        assert_eq!(pace.estimate(1024.0), Some(9.0));
        (0..50).for_each(|_| pace.observe(1024.0, 1.0));
        assert_eq!(pace.estimate(1024.0), Some(1.0));
    }

    #[test]
    fn any_number_is_a_size() {
        let mut pace = Pace::default();
        for work in [0.0, -1.0, 0.5, 1e300, f64::INFINITY, f64::NAN] {
            pace.observe(work, 1.0);
            pace.estimate(work);
        }
        assert_eq!(pace.estimate(1e300).map(f64::is_finite), Some(true));
    }
}
