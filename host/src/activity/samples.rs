//! Pure: samples of what is a level and not an event: how much of the time each slot worked, and the plugin's gauges.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Samples that are kept of each level: an hour of the usual interval.
pub const KEPT: usize = 360;

/// The latest values of one level, the oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series(VecDeque<f32>);

impl Series {
    fn add(&mut self, value: f64) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(value as f32);
    }

    pub fn values(&self) -> impl Iterator<Item = f32> {
        self.0.iter().copied()
    }

    pub fn last(&self) -> Option<f32> {
        self.0.back().copied()
    }

    /// The mean of all finite values.
    pub fn mean(&self) -> Option<f64> {
        let finite: Vec<f64> = self.values().filter(|v| v.is_finite()).map(f64::from).collect();
        (!finite.is_empty()).then(|| finite.iter().sum::<f64>() / finite.len() as f64)
    }
}

/// Every level.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    /// The share of the time in which each slot worked, 0 to 1.
    pub slots: Vec<Series>,
    pub gauges: BTreeMap<String, Series>,
    worked: Vec<Duration>,
}

impl Samples {
    /// Adds a sample. Gauges that the plugin no longer has are forgotten.
    pub fn add(&mut self, since_last: Duration, worked: &[Duration], gauges: &[(String, f64)]) {
        self.slots.resize_with(worked.len(), Series::default);
        self.worked.resize(worked.len(), Duration::ZERO);
        for ((series, before), now) in self.slots.iter_mut().zip(&mut self.worked).zip(worked) {
            let share = now.saturating_sub(*before).as_secs_f64() / since_last.as_secs_f64().max(1e-9);
            series.add(share.clamp(0.0, 1.0));
            *before = *now;
        }
        self.gauges.retain(|name, _| gauges.iter().any(|(known, _)| known == name));
        for (name, value) in gauges {
            self.gauges.entry(name.clone()).or_default().add(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_time_is_that_since_the_last_sample() {
        let (mut samples, ten) = (Samples::default(), Duration::from_secs(10));
        samples.add(ten, &[Duration::from_secs(5)], &[]);
        samples.add(ten, &[Duration::from_secs(7)], &[]);
        samples.add(ten, &[Duration::from_secs(60)], &[]);
        let shares: Vec<f32> = samples.slots[0].values().collect();
        assert_eq!(shares, [0.5, 0.2, 1.0]);
        // A reload may bring another number of slots.
        samples.add(ten, &[Duration::from_secs(60), Duration::from_secs(1)], &[]);
        assert_eq!((samples.slots.len(), samples.slots[1].last()), (2, Some(0.1)));
    }

    #[test]
    fn series_are_bounded_and_those_of_gone_gauges_are_forgotten() {
        let mut samples = Samples::default();
        for value in 0..1000 {
            samples.add(Duration::from_secs(1), &[], &[("kelvin".into(), f64::from(value))]);
        }
        assert_eq!(samples.gauges["kelvin"].values().count(), KEPT);
        assert_eq!(samples.gauges["kelvin"].last(), Some(999.0));
        samples.add(Duration::from_secs(1), &[], &[("other".into(), f64::NAN)]);
        assert_eq!(samples.gauges.keys().collect::<Vec<_>>(), ["other"]);
        assert_eq!(samples.gauges["other"].mean(), None);
    }
}
