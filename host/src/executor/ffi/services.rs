//! What the host lends to a plugin: log, progress, gauges, the cancel flag; and the copying of what it is told.
//!
//! Callbacks come from any thread of the plugin, never block and never unwind into it.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use coda_plugin_abi::LogLevel;
use coda_plugin_abi::raw::{RawHost, RawStr};

use super::super::gauges::Gauges;
use crate::model::JobId;

/// Longest text taken from a plugin; the rest is cut.
const MAX_TEXT: usize = 64 * 1024;
/// Most entries of one list taken from a plugin.
const MAX_LIST: usize = 1 << 26;

/// What a job's run shares with its plugin: the cancel flag, progress, and who logs.
pub struct JobContext {
    plugin: Arc<str>,
    job_id: JobId,
    cancelled: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
    gauges: Arc<Gauges>,
}

impl JobContext {
    /// A context whose gauges nobody reads.
    pub fn new(plugin: Arc<str>, job_id: JobId) -> JobContext {
        JobContext::with_gauges(plugin, job_id, Arc::default())
    }

    pub fn with_gauges(plugin: Arc<str>, job_id: JobId, gauges: Arc<Gauges>) -> JobContext {
        JobContext {
            plugin,
            job_id,
            cancelled: AtomicBool::new(false),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
            gauges,
        }
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

    /// The host services over this context, which stays alive: the pointer owns a reference that is never
    /// given back where the result is leaked, and lives in the caller's Arc otherwise.
    pub(super) fn raw(self: &Arc<Self>) -> RawHost {
        RawHost {
            size: size_of::<RawHost>(),
            ctx: Arc::into_raw(self.clone()).cast_mut().cast(),
            log_enabled,
            log,
            progress,
            is_cancelled,
            gauge,
        }
    }
}

/// Gives back the reference that `JobContext::raw` took.
pub(super) fn release(host: &RawHost) {
    // SAFETY: `ctx` came from Arc::into_raw in `JobContext::raw` and is released once, here.
    drop(unsafe { Arc::from_raw(host.ctx.cast::<JobContext>().cast_const()) });
}

/// # Safety
/// `ctx` must come from `JobContext::raw` and not have been released.
unsafe fn context<'a>(ctx: *mut c_void) -> &'a JobContext {
    // SAFETY: by this function's contract.
    unsafe { &*ctx.cast::<JobContext>() }
}

extern "C" fn log_enabled(_: *mut c_void, level: u32) -> u32 {
    u32::from(match LogLevel::from_code(level) {
        LogLevel::Error => tracing::enabled!(target: "plugin", tracing::Level::ERROR),
        LogLevel::Warn => tracing::enabled!(target: "plugin", tracing::Level::WARN),
        LogLevel::Info => tracing::enabled!(target: "plugin", tracing::Level::INFO),
        LogLevel::Debug => tracing::enabled!(target: "plugin", tracing::Level::DEBUG),
        LogLevel::Trace => tracing::enabled!(target: "plugin", tracing::Level::TRACE),
    })
}

extern "C" fn log(ctx: *mut c_void, level: u32, text: RawStr) {
    quietly(|| {
        // SAFETY: the plugin passes back the ctx it was lent, within its lifetime.
        let context = unsafe { context(ctx) };
        // SAFETY: the plugin lends the text for this call.
        let text = unsafe { copied(text) };
        let (plugin, job_id) = (&*context.plugin, &*context.job_id);
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
    });
}

extern "C" fn progress(ctx: *mut c_void, done: u64, total: u64) {
    // SAFETY: as in `log`.
    let context = unsafe { context(ctx) };
    context.total.store(total, Ordering::Relaxed);
    context.done.store(done, Ordering::Relaxed);
}

extern "C" fn is_cancelled(ctx: *mut c_void) -> u32 {
    // SAFETY: as in `log`.
    u32::from(unsafe { context(ctx) }.is_cancelled())
}

extern "C" fn gauge(ctx: *mut c_void, name: RawStr, value: f64) {
    quietly(|| {
        // SAFETY: as in `log`.
        let (context, name) = unsafe { (context(ctx), copied(name)) };
        if let Err(what) = context.gauges.set(&name, value) {
            tracing::warn!(target: "plugin", plugin = &*context.plugin, gauge = name, "a gauge was dropped: {what}");
        }
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
