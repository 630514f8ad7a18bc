//! Logs and metrics, made once at the start.

use std::fmt::{self, Write as _};
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobOutcome {
    Completed,
    Failed,
    Cancelled,
    Duplicate,
    DeadLetter,
}

impl EncodeLabelValue for JobOutcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(match self {
            JobOutcome::Completed => "completed",
            JobOutcome::Failed => "failed",
            JobOutcome::Cancelled => "cancelled",
            JobOutcome::Duplicate => "duplicate",
            JobOutcome::DeadLetter => "dead_letter",
        })
    }
}

/// How a webhook attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptResult {
    Accepted,
    Retry,
    Unauthorized,
    Refused,
}

impl EncodeLabelValue for AttemptResult {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(match self {
            AttemptResult::Accepted => "accepted",
            AttemptResult::Retry => "retry",
            AttemptResult::Unauthorized => "unauthorized",
            AttemptResult::Refused => "refused",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabel {
    pub outcome: JobOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResultLabel {
    pub result: AttemptResult,
}

/// Everything that `/metrics` shows. Counters are lock-free; the histograms take a short lock.
pub struct Metrics {
    registry: Registry,
    jobs: Family<OutcomeLabel, Counter>,
    webhook_attempts: Family<ResultLabel, Counter>,
    /// From claim to the start of the run.
    pub queue_wait_seconds: Histogram,
    pub run_seconds: Histogram,
    pub webhook_seconds: Histogram,
    pub undelivered: Gauge,
    pub waiting: Gauge,
    pub slots: Gauge,
    pub slots_busy: Gauge,
    pub trimmed: Counter<u64, AtomicU64>,
    pub redis_reconnects: Counter,
}

/// A histogram from a tenth of a millisecond to about 28 minutes.
fn seconds() -> Histogram {
    Histogram::new(prometheus_client::metrics::histogram::exponential_buckets(0.0001, 4.0, 13))
}

impl Default for Metrics {
    /// The metrics of one host, all at zero.
    fn default() -> Metrics {
        let mut r = Registry::with_prefix("coda_host");
        let mut m = Metrics {
            registry: Registry::default(),
            jobs: Family::default(),
            webhook_attempts: Family::default(),
            queue_wait_seconds: seconds(),
            run_seconds: seconds(),
            webhook_seconds: seconds(),
            undelivered: Gauge::default(),
            waiting: Gauge::default(),
            slots: Gauge::default(),
            slots_busy: Gauge::default(),
            trimmed: Counter::default(),
            redis_reconnects: Counter::default(),
        };
        r.register("jobs", "Jobs by how they ended", m.jobs.clone());
        r.register("webhook_attempts", "Webhook attempts by what came of them", m.webhook_attempts.clone());
        let s = Unit::Seconds;
        r.register_with_unit("queue_wait", "From claim to run", s.clone(), m.queue_wait_seconds.clone());
        r.register_with_unit("run", "In the plugin", s.clone(), m.run_seconds.clone());
        r.register_with_unit("webhook", "One webhook attempt", s, m.webhook_seconds.clone());
        r.register("undelivered_results", "Results stored and not yet delivered", m.undelivered.clone());
        r.register("waiting_jobs", "Jobs read ahead", m.waiting.clone());
        r.register("slots", "Runs that the device takes at once", m.slots.clone());
        r.register("slots_busy", "Runs in the plugin", m.slots_busy.clone());
        r.register("trimmed_messages", "Pending messages whose entry was gone", m.trimmed.clone());
        r.register("redis_reconnects", "Connections to Redis after the first", m.redis_reconnects.clone());
        let build = vec![("version", env!("CARGO_PKG_VERSION").to_string())];
        r.register("build", "This coda-host", Info::new(build));
        m.registry = r;
        // Shown from the start, so that a rate or an alert has a zero to begin with.
        use {AttemptResult as A, JobOutcome as J};
        for outcome in [J::Completed, J::Failed, J::Cancelled, J::Duplicate, J::DeadLetter] {
            drop(m.jobs.get_or_create(&OutcomeLabel { outcome }));
        }
        for result in [A::Accepted, A::Retry, A::Unauthorized, A::Refused] {
            drop(m.webhook_attempts.get_or_create(&ResultLabel { result }));
        }
        m
    }
}

impl Metrics {
    pub fn job(&self, outcome: JobOutcome) {
        self.jobs.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub fn attempt(&self, result: AttemptResult) {
        self.webhook_attempts.get_or_create(&ResultLabel { result }).inc();
    }

    /// The text that Prometheus reads, with labels of the plugin in use and the gauges that the plugin sets.
    pub fn render_with(&self, plugin: &[(&'static str, &str)], gauges: &[(String, f64)]) -> String {
        const END: &str = "# EOF\n";
        let mut text = self.render();
        let end = text.ends_with(END);
        text.truncate(text.len() - if end { END.len() } else { 0 });
        let tame = |text: &str| text.replace(['\\', '"', '\n'], "_");
        let labels: Vec<String> = plugin.iter().map(|(k, v)| format!("{k}=\"{}\"", tame(v))).collect();
        text += "# HELP coda_host_plugin The plugin in use.\n# TYPE coda_host_plugin info\n";
        text += &format!("coda_host_plugin_info{{{}}} 1\n", labels.join(","));
        let plugin = tame(plugin.iter().find(|(k, _)| *k == "name").map_or("", |(_, v)| v));
        for (name, value) in gauges {
            // Writing to a String can't fail; the names were checked when they were set.
            write!(
                text,
                "# TYPE coda_plugin_{name} gauge\ncoda_plugin_{name}{{plugin=\"{plugin}\"}} {value:?}\n"
            )
            .ok();
        }
        text + END
    }

    /// The text that Prometheus reads.
    pub fn render(&self) -> String {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            Ok(()) => text,
            // Only a failing writer could cause it, and a String doesn't fail.
            Err(_) => String::new(),
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Installs the log on stderr; `filter` is CODA_LOG, for instance `debug` or `info,coda_host::jobs=trace`.
pub fn start_log(filter: Option<&str>, level: &str, format: LogFormat) {
    use std::io::IsTerminal as _;
    use tracing_subscriber::EnvFilter;
    let wanted = filter.filter(|f| !f.trim().is_empty()).unwrap_or(level);
    let (filter, bad) = match EnvFilter::try_new(wanted) {
        Ok(filter) => (filter, None),
        Err(e) => (EnvFilter::new(level), Some(e.to_string())),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let installed = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    if let Err(error) = installed {
        eprintln!("warning: the log could not be installed: {error}");
    }
    if let Some(error) = bad {
        tracing::warn!(
            error,
            "CODA_LOG can't be read; using '{level}'. Expected for instance: info,plugin=debug"
        );
    }
}
