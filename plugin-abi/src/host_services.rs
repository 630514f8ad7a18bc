//! What the host lends to a plugin: log, progress, gauges, is_cancelled.

use std::fmt;
use std::marker::PhantomData;

use crate::raw::{RawHost, RawStr};

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    pub const fn code(self) -> u32 {
        match self {
            LogLevel::Error => 1,
            LogLevel::Warn => 2,
            LogLevel::Info => 3,
            LogLevel::Debug => 4,
            LogLevel::Trace => 5,
        }
    }

    /// The level of a code; anything unknown counts as `Trace`.
    pub const fn from_code(code: u32) -> LogLevel {
        match code {
            1 => LogLevel::Error,
            2 => LogLevel::Warn,
            3 => LogLevel::Info,
            4 => LogLevel::Debug,
            _ => LogLevel::Trace,
        }
    }
}

/// The host's services. May be used from any thread while `'a` lasts; no call blocks.
#[derive(Clone, Copy)]
pub struct HostServices<'a> {
    raw: *const RawHost,
    life: PhantomData<&'a RawHost>,
}

// SAFETY: the interface requires all functions of RawHost to be thread-safe.
unsafe impl Send for HostServices<'_> {}
// SAFETY: as above.
unsafe impl Sync for HostServices<'_> {}

impl<'a> HostServices<'a> {
    /// # Safety
    /// `raw` must be null or point to a `RawHost` that is valid for `'a`.
    pub(crate) unsafe fn from_raw(raw: *const RawHost) -> HostServices<'a> {
        HostServices { raw, life: PhantomData }
    }

    fn get(&self) -> Option<&'a RawHost> {
        // SAFETY: by the contract of `from_raw`. A host takes no plugin of a newer interface, so it knows every field.
        unsafe { self.raw.as_ref() }
    }

    /// Logs to the host's log, tagged with plugin and job. Formatting is skipped when no one listens.
    pub fn log(&self, level: LogLevel, message: impl fmt::Display) {
        let Some(host) = self.get() else { return };
        if (host.log_enabled)(host.ctx, level.code()) != 0 {
            let text = message.to_string();
            (host.log)(host.ctx, level.code(), RawStr::new(&text));
        }
    }

    /// Tells how far the run is, in units of your choice; `total` 0 when unknown.
    pub fn progress(&self, done: u64, total: u64) {
        if let Some(host) = self.get() {
            (host.progress)(host.ctx, done, total);
        }
    }

    /// Sets a quantity of your own, for instance `("fridge_kelvin", 0.012)`: the host shows the latest value in its
    /// metrics, as `coda_plugin_<name>`. Letters, digits and `_`; what doesn't fit is dropped with a warning.
    pub fn gauge(&self, name: &str, value: f64) {
        if let Some(host) = self.get() {
            (host.gauge)(host.ctx, RawStr::new(name), value);
        }
    }

    /// Whether the job was cancelled, so that its result will be thrown away.
    pub fn is_cancelled(&self) -> bool {
        self.get().is_some_and(|host| (host.is_cancelled)(host.ctx) != 0)
    }
}
