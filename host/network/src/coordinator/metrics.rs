//! The coordinator's metrics: counters and durations that its jobs add to. What is true at one moment is read at each
//! scrape ([`Levels`]).

use std::fmt::{self, Write as _};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric as _, LabelValueEncoder,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::job_view::JobStatus;
use crate::reservation::journal::JobFact;

impl EncodeLabelValue for JobStatus {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(self.name())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    outcome: JobStatus,
}

/// Counters and durations of one coordinator since its start.
pub struct CoordinatorMetrics {
    pub registry: Registry,
    jobs_submitted: Counter,
    jobs_ended: Family<EndLabel, Counter>,
    job_seconds: Histogram,
    block_attempts: Counter,
    blocks_completed: Counter,
    blocks_failed: Counter,
}

impl Default for CoordinatorMetrics {
    fn default() -> CoordinatorMetrics {
        let mut r = Registry::with_prefix("coda_coordinator");
        let mut m = CoordinatorMetrics {
            registry: Registry::default(),
            jobs_submitted: Counter::default(),
            jobs_ended: Family::default(),
            // From a millisecond to about 70 minutes.
            job_seconds: Histogram::new(exponential_buckets(0.001, 4.0, 12)),
            block_attempts: Counter::default(),
            blocks_completed: Counter::default(),
            blocks_failed: Counter::default(),
        };
        r.register("jobs_submitted", "Jobs that were accepted", m.jobs_submitted.clone());
        r.register("jobs_ended", "Jobs by how they ended", m.jobs_ended.clone());
        r.register_with_unit("job", "From submission to end", Unit::Seconds, m.job_seconds.clone());
        r.register("block_attempts", "Candidates that were asked to run a block", m.block_attempts.clone());
        r.register("blocks_completed", "Blocks that a peer completed", m.blocks_completed.clone());
        r.register("blocks_failed", "Blocks that no candidate completed", m.blocks_failed.clone());
        r.register("build", "This coda-host", Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]));
        m.registry = r;
        // Shown from the start, so that a rate or an alert has a zero to begin with.
        for outcome in JobStatus::ALL.into_iter().filter(|status| status.is_final()) {
            drop(m.jobs_ended.get_or_create(&EndLabel { outcome }));
        }
        m
    }
}

impl CoordinatorMetrics {
    /// Counts a fact that was recorded.
    pub fn count(&self, fact: &JobFact) {
        let ended = |outcome| self.jobs_ended.get_or_create(&EndLabel { outcome }).clone();
        let counter = match fact {
            JobFact::Submitted { .. } => self.jobs_submitted.clone(),
            JobFact::Attempted { .. } => self.block_attempts.clone(),
            JobFact::BlockCompleted { .. } => self.blocks_completed.clone(),
            JobFact::BlockFailed { .. } => self.blocks_failed.clone(),
            JobFact::Completed { .. } => ended(JobStatus::Completed),
            JobFact::Failed { .. } => ended(JobStatus::Failed),
            JobFact::Cancelled { .. } => ended(JobStatus::Cancelled),
            JobFact::Planned { .. }
            | JobFact::StageCompleted { .. }
            | JobFact::Resumed { .. }
            | JobFact::Released => return,
        };
        counter.inc();
    }

    /// Notes how long a job took from its submission to its end.
    pub fn note_duration(&self, seconds: f64) {
        self.job_seconds.observe(seconds);
    }
}

/// What is true at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Levels {
    /// Whether jobs would be run, as in `/ready`.
    pub ready: bool,
    /// Jobs that no coordinator on the log has taken; none when it can't be read.
    pub jobs_queued: Option<usize>,
    pub jobs_running: usize,
    /// Blocks that look for a peer with a free slot.
    pub blocks_waiting: usize,
    /// Slots of peers that are held or asked for.
    pub slots_held: u64,
    /// Peers that were heard, and those of them that may be planned on.
    pub peers_known: usize,
    pub peers_usable: usize,
    /// Reservations in the log that are requested or accepted; none when it can't be read.
    pub reservations_open: Option<usize>,
    /// Requests that wait for a job: long polls and event streams.
    pub watchers: usize,
    pub store_writable: bool,
    pub lease_held: bool,
}

impl Collector for Levels {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let whole = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let name = "coda_coordinator_jobs";
        let kind = ConstGauge::new(0_i64).metric_type();
        let mut family =
            encoder.encode_descriptor(name, "Jobs that have not ended, by status.", None, kind)?;
        for (status, number) in
            [(JobStatus::Queued, self.jobs_queued), (JobStatus::Running, Some(self.jobs_running))]
        {
            let Some(number) = number else { continue };
            ConstGauge::new(whole(number)).encode(family.encode_family(&[("status", status.name())])?)?;
        }
        let reservations = self.reservations_open.map(whole);
        let gauges = [
            ("ready", "Whether jobs would be run, as in /ready.", Some(i64::from(self.ready))),
            (
                "blocks_waiting",
                "Blocks that look for a peer with a free slot.",
                Some(whole(self.blocks_waiting)),
            ),
            ("slots_held", "Slots of peers that are held or asked for.", i64::try_from(self.slots_held).ok()),
            ("peers_known", "Peers that were heard.", Some(whole(self.peers_known))),
            ("peers_usable", "Peers that may be planned on.", Some(whole(self.peers_usable))),
            ("reservations_open", "Reservations that are requested or accepted.", reservations),
            ("watchers", "Requests that wait for a job, and event streams.", Some(whole(self.watchers))),
            ("store_writable", "Whether the event log can be written.", Some(i64::from(self.store_writable))),
            (
                "lease_held",
                "Whether this coordinator holds the lease of its identity.",
                Some(i64::from(self.lease_held)),
            ),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value.map(ConstGauge::new) else { continue };
            let kind = value.metric_type();
            let name = format!("coda_coordinator_{name}");
            value.encode(encoder.encode_descriptor(&name, help, None, kind)?)?;
        }
        Ok(())
    }
}
