//! What the host lends to a plugin: log, progress, gauges, the cancel flag; and the copying of what it is told.
//!
//! Callbacks come from any thread of the plugin, never block and never unwind into it. Those that come after the end of
//! their call do nothing and are logged.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use coda_plugin_abi::raw::{RawHost, RawStr};
use coda_plugin_abi::{Error, LogLevel};
use parking_lot::RwLock;

use super::super::gauges::Gauges;
use super::super::output_budget::{LeftOut, LineVerdict, OutputBudget};
use super::cells::{Cells, Lent};
use super::handles::{ENDED, Handles};
use crate::model::JobId;

/// Longest text taken from a plugin; the rest is cut.
const MAX_TEXT: usize = 64 * 1024;
/// Most entries of one list taken from a plugin.
const MAX_LIST: usize = 1 << 26;

/// Where log lines, progress and gauges go in a process that only runs the plugin for the host.
pub trait Sink: Send + Sync {
    fn log_enabled(&self, level: u32) -> bool;
    fn log(&self, level: u32, job_id: &str, text: &str);
    fn progress(&self, job_id: &str, done: u64, total: u64);
    fn gauge(&self, name: &str, value: f64);
}

/// What all contexts of one executor share.
pub struct Common {
    /// The plugin in use, which a swap may change.
    plugin: RwLock<Arc<str>>,
    pub gauges: Gauges,
    /// How much of what the plugin says is logged.
    pub output: OutputBudget,
    /// Values of the device config that must not be shown.
    secrets: RwLock<Arc<[String]>>,
    pub sink: Option<Box<dyn Sink>>,
}

impl Common {
    pub fn new(plugin: Arc<str>) -> Common {
        Common {
            plugin: RwLock::new(plugin),
            gauges: Gauges::default(),
            output: OutputBudget::default(),
            secrets: RwLock::new([].into()),
            sink: None,
        }
    }

    /// The plugin's name.
    pub fn plugin(&self) -> Arc<str> {
        self.plugin.read().clone()
    }

    /// Another plugin takes the place of the former, whose gauges say nothing any more.
    pub fn rename(&self, plugin: &str) {
        *self.plugin.write() = plugin.into();
        self.gauges.clear();
    }

    /// Hides these values too; those of a former config stay hidden.
    pub fn hide(&self, secrets: &[String]) {
        let mut hidden = self.secrets.write();
        let new = secrets.iter().filter(|s| !hidden.contains(s)).cloned();
        *hidden = hidden.iter().cloned().chain(new.collect::<Vec<_>>()).collect();
    }

    /// The error with its text masked.
    pub fn masked_error(&self, error: Error) -> Error {
        Error { text: self.masked(error.text), ..error }
    }

    /// The text without the secrets of the device config.
    pub fn masked(&self, mut text: String) -> String {
        let secrets = self.secrets.read().clone();
        for secret in secrets.iter() {
            if text.contains(secret.as_str()) {
                text = text.replace(secret.as_str(), "***");
            }
        }
        text
    }

    fn log_enabled(&self, level: u32) -> bool {
        if let Some(sink) = &self.sink {
            return sink.log_enabled(level);
        }
        match LogLevel::from_code(level) {
            LogLevel::Error => tracing::enabled!(target: "plugin", tracing::Level::ERROR),
            LogLevel::Warn => tracing::enabled!(target: "plugin", tracing::Level::WARN),
            LogLevel::Info => tracing::enabled!(target: "plugin", tracing::Level::INFO),
            LogLevel::Debug => tracing::enabled!(target: "plugin", tracing::Level::DEBUG),
            LogLevel::Trace => tracing::enabled!(target: "plugin", tracing::Level::TRACE),
        }
    }

    /// Writes a line of the plugin's into the log, tagged with plugin and job.
    pub fn log(&self, level: u32, job_id: &str, text: String) {
        let text = self.masked(text);
        if let Some(sink) = &self.sink {
            return sink.log(level, job_id, &text);
        }
        let plugin = &*self.plugin();
        match self.output.admit(text.len(), Instant::now()) {
            LineVerdict::Written(LeftOut { lines: 0, .. }) => {}
            LineVerdict::Written(LeftOut { lines, bytes }) => {
                tracing::warn!(plugin, lines, bytes, "lines of the plugin were left out of the log");
            }
            LineVerdict::FirstLeftOut => {
                tracing::warn!(
                    plugin,
                    "the plugin writes more than CODA_PLUGIN_LOG_KIB_PER_SEC into the log; lines are left out"
                );
                return;
            }
            LineVerdict::LeftOut => return,
        }
        macro_rules! emit {
            ($level:ident) => {
                match job_id {
                    "" => tracing::$level!(target: "plugin", plugin, "{text}"),
                    _ => tracing::$level!(target: "plugin", plugin, job_id, "{text}"),
                }
            };
        }
        match LogLevel::from_code(level) {
            LogLevel::Error => emit!(error),
            LogLevel::Warn => emit!(warn),
            LogLevel::Info => emit!(info),
            LogLevel::Debug => emit!(debug),
            LogLevel::Trace => emit!(trace),
        }
    }

    /// Keeps a gauge's value.
    pub fn gauge(&self, name: &str, value: f64) {
        if let Some(sink) = &self.sink {
            return sink.gauge(name, value);
        }
        if let Err(what) = self.gauges.set(name, value) {
            // By the plugin's own log, which has a budget.
            self.log(LogLevel::Warn.code(), "", format!("the gauge '{name}' was dropped: {what}"));
        }
    }
}

/// What a job's run shares with its plugin: the cancel flag, progress, and who logs.
pub struct JobContext {
    common: Arc<Common>,
    job_id: JobId,
    cancelled: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
}

impl JobContext {
    /// A context apart from every executor's, for tests and tools.
    pub fn new(plugin: Arc<str>, job_id: JobId) -> JobContext {
        JobContext::in_executor(Arc::new(Common::new(plugin)), job_id)
    }

    /// A context of an executor; an empty id stands for the executor itself.
    pub fn in_executor(common: Arc<Common>, job_id: JobId) -> JobContext {
        JobContext {
            common,
            job_id,
            cancelled: AtomicBool::new(false),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
        }
    }

    /// What the plugin says of how far the run is.
    pub fn set_progress(&self, done: u64, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
    }

    /// Makes `is_cancelled` true for the plugin.
    pub fn set_cancelled(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// What the plugin last reported, in its own units; a total of 0 means unknown.
    pub fn progress(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// Lends the host's services for this context, until the value is dropped.
    pub(super) fn lend(self: &Arc<Self>) -> LentHost {
        let handle = HOSTS.open(self.clone());
        LentHost { cell: HOST_CELLS.lend(&[raw_host(handle)]), handle, context: self.clone() }
    }

    /// Logs what the host has to say of this job's plugin.
    pub(super) fn report(&self, text: String) {
        self.common.log(LogLevel::Error.code(), &self.job_id, text);
    }
}

/// The contexts that plugins were lent and that have not ended.
static HOSTS: Handles<JobContext> = Handles::new();
static HOST_CELLS: Cells<RawHost> = Cells::new(raw_host(ENDED), |host| *host);

/// The host's services, lent to the plugin.
pub(super) struct LentHost {
    cell: Lent<RawHost>,
    handle: *mut c_void,
    context: Arc<JobContext>,
}

impl LentHost {
    pub fn as_ptr(&self) -> *const RawHost {
        self.cell.as_ptr()
    }
}

impl Drop for LentHost {
    fn drop(&mut self) {
        HOSTS.close(self.handle, Some(&self.context));
    }
}

pub(super) struct EndedHost(pub RawHost);

// SAFETY: it is constant, and its context is a number.
unsafe impl Sync for EndedHost {}

/// The services of calls that are long over.
pub(super) static ENDED_HOST: EndedHost = EndedHost(raw_host(ENDED));

const fn raw_host(ctx: *mut c_void) -> RawHost {
    RawHost { size: size_of::<RawHost>(), ctx, log_enabled, log, progress, is_cancelled, gauge }
}

/// Serves one call of the plugin's, unless its job's call has ended.
fn serve(ctx: *mut c_void, service: &str, body: impl FnOnce(&JobContext)) {
    quietly(|| match HOSTS.get(ctx) {
        Some(context) => body(&context),
        None => HOSTS.report_late(ctx, &format!("used the service '{service}'")),
    });
}

extern "C" fn log_enabled(ctx: *mut c_void, level: u32) -> u32 {
    // A message of a call that has ended would not be kept.
    HOSTS.get(ctx).map_or(0, |context| context.common.log_enabled(level).into())
}

extern "C" fn log(ctx: *mut c_void, level: u32, text: RawStr) {
    serve(ctx, "log", |context| {
        // SAFETY: the plugin lends the text for this call.
        let text = unsafe { copied(text) };
        context.common.log(level, &context.job_id, text);
    });
}

extern "C" fn progress(ctx: *mut c_void, done: u64, total: u64) {
    serve(ctx, "progress", |context| {
        context.set_progress(done, total);
        if let Some(sink) = &context.common.sink {
            sink.progress(&context.job_id, done, total);
        }
    });
}

extern "C" fn is_cancelled(ctx: *mut c_void) -> u32 {
    // A thread that still works for a call that has ended is to stop.
    HOSTS.get(ctx).is_none_or(|context| context.is_cancelled()).into()
}

extern "C" fn gauge(ctx: *mut c_void, name: RawStr, value: f64) {
    serve(ctx, "gauge", |context| {
        // SAFETY: as in `log`.
        let name = unsafe { copied(name) };
        context.common.gauge(&name, value);
    });
}

/// A host callback's body; a panic in it (out of memory in a formatter, say) must not unwind into the plugin.
pub(super) fn quietly(body: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        tracing::error!("a host service failed while it served a plugin; please report this as a bug");
    }
}

/// # Safety
/// The text must be valid for the length of the call.
pub(super) unsafe fn copied(text: RawStr) -> String {
    // SAFETY: by this function's contract.
    let bytes = unsafe { text.bytes() };
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT)]).into_owned()
}

/// # Safety
/// `ptr` must be valid for `len` values for the length of the call, or `len` be 0.
pub(super) unsafe fn lent<'a, T>(ptr: *const T, len: usize) -> &'a [T] {
    if ptr.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: by this function's contract; the limit only makes it shorter.
    unsafe { std::slice::from_raw_parts(ptr, len.min(MAX_LIST)) }
}
