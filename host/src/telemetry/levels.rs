//! What is true of a host at one moment, read at each scrape: whether it is ready, each part that it depends on, how long
//! each slot has worked.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Reasons for which no run begins, because of a person or the device itself.
pub const HOLDS: [&str; 2] = ["paused", "maintenance"];

/// The levels of one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostLevels {
    pub ready: bool,
    /// Why no run begins, as a word of [`HOLDS`].
    pub held: Option<&'static str>,
    /// A run or a control call of the plugin does not return.
    pub executor_stuck: bool,
    /// Deaths of the plugin's process since it last answered.
    pub executor_deaths: u32,
    /// How long each slot has had a call in the plugin.
    pub worked: Vec<Duration>,
    /// Each part that is used, and whether it works.
    pub parts: Vec<(String, bool)>,
    /// Since the cloud has accepted a heartbeat; none when it never has.
    pub heartbeat_age: Option<Duration>,
}

impl Collector for HostLevels {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let yes = |is: bool| Some(f64::from(u8::from(is)));
        let deaths = f64::from(self.executor_deaths);
        let age = self.heartbeat_age.map(|age| age.as_secs_f64());
        let gauges = [
            ("ready", "Whether jobs are taken, as in /ready.", yes(self.ready)),
            ("executor_stuck", "Whether a call of the plugin does not return.", yes(self.executor_stuck)),
            ("executor_deaths_in_a_row", "Deaths of the plugin's process.", Some(deaths)),
            ("heartbeat_age_seconds", "Time since the cloud accepted a heartbeat.", age),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value.map(ConstGauge::new) else { continue };
            let kind = value.metric_type();
            value.encode(encoder.encode_descriptor(&format!("coda_host_{name}"), help, None, kind)?)?;
        }
        self.encode_holds(&mut encoder)?;
        self.encode_parts(&mut encoder)?;
        self.encode_slots(&mut encoder)
    }
}

impl HostLevels {
    fn encode_holds(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = ("coda_host_held", "Whether no run begins because of a pause or the device.");
        let kind = ConstGauge::new(0_i64).metric_type();
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for reason in HOLDS {
            let is_held = ConstGauge::new(i64::from(self.held == Some(reason)));
            is_held.encode(family.encode_family(&[("reason", reason)])?)?;
        }
        Ok(())
    }

    fn encode_parts(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = ("coda_host_part_up", "Whether a part that the host depends on works.");
        let kind = ConstGauge::new(0_i64).metric_type();
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (part, works) in &self.parts {
            ConstGauge::new(i64::from(*works)).encode(family.encode_family(&[("part", part.as_str())])?)?;
        }
        Ok(())
    }

    fn encode_slots(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = ("coda_host_slot_busy_seconds", "How long a slot has had a call in the plugin.");
        let kind = ConstCounter::new(0.0).metric_type();
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (slot, worked) in self.worked.iter().enumerate() {
            let slot = slot.to_string();
            let worked = ConstCounter::new(worked.as_secs_f64());
            worked.encode(family.encode_family(&[("slot", slot.as_str())])?)?;
        }
        Ok(())
    }
}
