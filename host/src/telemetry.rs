//! Logs and metrics, made once at the start.

pub mod exposition;
pub mod levels;

use std::fmt::{self, Write as _};
use std::sync::atomic::AtomicU64;

use coda_plugin_abi::ErrorCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric as _, LabelValueEncoder, text,
};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use self::levels::HostLevels;
use crate::output::{self, LogStream};

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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CodeLabel {
    /// The name of an [`ErrorCode`].
    pub code: &'static str,
}

/// Everything that `/metrics` shows. Counters are lock-free; the histograms take a short lock.
pub struct Metrics {
    registry: Registry,
    jobs: Family<OutcomeLabel, Counter>,
    job_retries: Family<CodeLabel, Counter>,
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
            job_retries: Family::default(),
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
        r.register("job_retries", "Runs made again by the error before", m.job_retries.clone());
        r.register("webhook_attempts", "Webhook attempts by their result", m.webhook_attempts.clone());
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
        m.registry.register_collector(Box::new(LostLogLines));
        // Shown from the start, so that a rate or an alert has a zero to begin with.
        use {AttemptResult as A, JobOutcome as J};
        for outcome in [J::Completed, J::Failed, J::Cancelled, J::Duplicate, J::DeadLetter] {
            drop(m.jobs.get_or_create(&OutcomeLabel { outcome }));
        }
        for code in [ErrorCode::Other, ErrorCode::Hardware, ErrorCode::Calibration, ErrorCode::Timeout] {
            drop(m.job_retries.get_or_create(&CodeLabel { code: code.name() }));
        }
        for result in [A::Accepted, A::Retry, A::Unauthorized, A::Refused] {
            drop(m.webhook_attempts.get_or_create(&ResultLabel { result }));
        }
        m
    }
}

impl Metrics {
    /// Counts a run that is made again after an error of this code.
    pub fn job_retry(&self, code: ErrorCode) {
        self.job_retries.get_or_create(&CodeLabel { code: code.name() }).inc();
    }

    pub fn job(&self, outcome: JobOutcome) {
        self.jobs.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    pub fn attempt(&self, result: AttemptResult) {
        self.webhook_attempts.get_or_create(&ResultLabel { result }).inc();
    }

    /// The text that Prometheus reads, with what is true now and the metrics of the plugin in use.
    pub fn render_with(&self, levels: HostLevels, plugin: PluginMetrics) -> String {
        // The plugin may be replaced at any time, so its metrics are registered for one scrape only.
        let mut now = Registry::default();
        now.register_collector(Box::new(levels));
        now.register_collector(Box::new(plugin));
        render(&[&self.registry, &now])
    }

    /// The text that Prometheus reads.
    pub fn render(&self) -> String {
        render(&[&self.registry])
    }
}

/// The text that Prometheus reads, of another program than a host: its own metrics, and those that every one has.
pub fn render_others(registries: &[&Registry]) -> String {
    let mut of_process = Registry::default();
    of_process.register_collector(Box::new(LostLogLines));
    let registries: Vec<&Registry> = registries.iter().copied().chain([&of_process]).collect();
    render(&registries)
}

fn render(registries: &[&Registry]) -> String {
    let mut text = String::new();
    let encoded = registries.iter().try_for_each(|registry| text::encode_registry(&mut text, registry));
    match encoded.and_then(|()| text::encode_eof(&mut text)) {
        Ok(()) => text,
        // Only a failing writer could cause it, and a String doesn't fail.
        Err(_) => String::new(),
    }
}

/// How many lines of the log could not be written.
#[derive(Debug)]
struct LostLogLines;

impl Collector for LostLogLines {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let lost = ConstCounter::new(output::lost_lines());
        let help = "Lines of the log that could not be written.";
        lost.encode(encoder.encode_descriptor("lost_log_lines", help, None, lost.metric_type())?)
    }
}

/// Metrics of the plugin in use: its labels, and the gauges that it sets.
#[derive(Debug)]
pub struct PluginMetrics {
    labels: Vec<(&'static str, String)>,
    gauges: Vec<(String, f64)>,
}

impl PluginMetrics {
    /// Names of gauges must be ones that Prometheus takes.
    pub fn new(labels: &[(&'static str, &str)], gauges: Vec<(String, f64)>) -> PluginMetrics {
        let labels = labels.iter().map(|(key, value)| (*key, (*value).to_string())).collect();
        PluginMetrics { labels, gauges }
    }
}

impl Collector for PluginMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let info = Info::new(self.labels.clone());
        let kind = info.metric_type();
        info.encode(encoder.encode_descriptor("coda_host_plugin", "The plugin in use.", None, kind)?)?;

        let name = self.labels.iter().find(|(key, _)| *key == "name").map_or("", |(_, name)| name);
        for (gauge, value) in &self.gauges {
            let (metric, value) = (format!("coda_plugin_{gauge}"), ConstGauge::new(*value));
            let kind = value.metric_type();
            let mut family = encoder.encode_descriptor(&metric, "A gauge of the plugin.", None, kind)?;
            value.encode(family.encode_family(&[("plugin", name)])?)?;
        }
        Ok(())
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// The modules of a filter that are in a crate of their own, which the log names in their place.
const MODULES_OF_CRATES: &[(&str, &[&str])] = &[
    ("coda_host_base", &["state", "sys"]),
    ("coda_host_executor", &["check", "executor"]),
    ("coda_host_network", &["coordinator", "peers", "reservation"]),
    ("coda_host_qasm", &["qasm"]),
];

/// A filter in which modules have the names that the log knows: people need not know which module is in which crate.
fn with_crate_names(filter: &str) -> String {
    let directives = filter.split(',').map(|directive| {
        let Some(path) = directive.trim().strip_prefix("coda_host::") else { return directive.to_string() };
        let module = path.split([':', '=', '[']).next().unwrap_or(path);
        let found = MODULES_OF_CRATES.iter().find(|(_, modules)| modules.contains(&module));
        found.map_or_else(|| directive.to_string(), |(name, _)| format!("{name}::{path}"))
    });
    directives.collect::<Vec<_>>().join(",")
}

/// Installs the log on stderr; `filter` is CODA_LOG, for instance `debug` or `info,coda_host::jobs=trace`.
pub fn start_log(filter: Option<&str>, level: &str, format: LogFormat) {
    use tracing_subscriber::EnvFilter;
    let colour = output::notices_to_terminal() && format == LogFormat::Text;
    let wanted = filter.filter(|f| !f.trim().is_empty()).unwrap_or(level);
    let (filter, bad) = match EnvFilter::try_new(with_crate_names(wanted)) {
        Ok(filter) => (filter, None),
        Err(e) => (EnvFilter::new(level), Some(e.to_string())),
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || LogStream::new(colour))
        // It would write to standard error by itself, and panic where that fails.
        .log_internal_errors(false)
        .with_ansi(colour);
    let installed = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    if let Err(error) = installed {
        output::notice(format!("warning: the log could not be installed: {error}"));
    }
    if let Some(error) = bad {
        tracing::warn!(
            error,
            "CODA_LOG can't be read; using '{level}'. Expected for instance: info,plugin=debug"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_names_modules_and_not_crates() {
        for (filter, expected) in [
            ("debug", "debug"),
            ("info,coda_host=debug", "info,coda_host=debug"),
            ("info,coda_host::jobs=trace", "info,coda_host::jobs=trace"),
            ("warn, coda_host::peers::swarm=info", "warn,coda_host_network::peers::swarm=info"),
            ("coda_host::executor,plugin=debug", "coda_host_executor::executor,plugin=debug"),
            ("coda_host::state[db]=debug", "coda_host_base::state[db]=debug"),
        ] {
            assert_eq!(with_crate_names(filter), expected);
        }
    }

    #[test]
    fn modules_are_in_the_crates_that_the_filter_names() {
        use std::any::type_name;
        for (module, path) in [
            ("state", type_name::<crate::state::files::FileError>()),
            ("executor", type_name::<crate::executor::ExecutorStatus>()),
            ("peers", type_name::<crate::peers::wire::PeerStep>()),
            ("qasm", type_name::<crate::qasm::CircuitError>()),
        ] {
            let named = with_crate_names(&format!("coda_host::{module}"));
            assert!(path.starts_with(&format!("{named}::")), "{path} is not below {named}");
        }
    }

    #[test]
    fn the_plugins_metrics_come_before_the_end_and_are_escaped() {
        let labels = [("vendor", "acme"), ("name", "a \"b\"\nc")];
        let gauges = vec![("fridge_kelvin".to_string(), 0.015), ("age".to_string(), 3.0)];
        let text = Metrics::default().render_with(HostLevels::default(), PluginMetrics::new(&labels, gauges));
        assert!(text.ends_with("\n# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
        for line in [
            "# TYPE coda_host_plugin info",
            r#"coda_host_plugin_info{vendor="acme",name="a \"b\"\nc"} 1"#,
            "# TYPE coda_plugin_fridge_kelvin gauge",
            r#"coda_plugin_fridge_kelvin{plugin="a \"b\"\nc"} 0.015"#,
            r#"coda_plugin_age{plugin="a \"b\"\nc"} 3.0"#,
            r#"coda_host_jobs_total{outcome="completed"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
