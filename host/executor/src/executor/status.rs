//! What others than the driver see of the executor: its device as it is now, gauges, trouble. Read-only.
//!
//! A status outlives a reload: what it tells is always that of the executor in use.

use std::sync::Arc;
use std::time::Duration;

use coda_plugin_abi::Program;
use parking_lot::RwLock;

use super::active::ActivePlugin;
use super::control::ControlCall;
use super::ffi::Common;
use super::lease::SlotLoad;
use super::plugin::Plugin;
use super::shared::{Shared, StuckRun};
use super::worker::Trouble;

/// A view of the executor for everyone who may look at it but not change it.
#[derive(Clone)]
pub struct ExecutorStatus {
    shared: Arc<Shared>,
    plugin: Plugin,
    common: Arc<Common>,
    active: Arc<RwLock<Arc<ActivePlugin>>>,
}

impl ExecutorStatus {
    pub(super) fn new(
        shared: Arc<Shared>,
        plugin: Plugin,
        common: Arc<Common>,
        active: Arc<RwLock<Arc<ActivePlugin>>>,
    ) -> ExecutorStatus {
        ExecutorStatus { shared, plugin, common, active }
    }

    /// The plugin and device in use: another one after a reload.
    pub fn active_plugin(&self) -> Arc<ActivePlugin> {
        self.active.read().clone()
    }

    /// Gauges of the plugin's own, by name.
    pub fn gauges(&self) -> Vec<(String, f64)> {
        self.common.gauges.values()
    }

    /// How the slots are used now.
    pub fn load(&self) -> SlotLoad {
        self.shared.queue.load()
    }

    /// How long a run of this circuit is expected to take, if one of its kind has completed.
    pub fn expected_run(&self, program: &Program, shots: u32) -> Option<Duration> {
        self.shared.queue.expected(program, shots)
    }

    /// How long each slot has had a call in the plugin, of whatever kind.
    pub fn worked(&self) -> Vec<Duration> {
        self.shared.usage.worked(self.load().slots)
    }

    /// A run in this process that does not end.
    pub fn stuck_run(&self) -> Option<StuckRun> {
        self.shared.stuck_run.lock().clone()
    }

    /// A call of the plugin that should have returned by now.
    pub fn stuck_call(&self) -> Option<ControlCall> {
        self.shared.control_calls.stuck(self.shared.control_timeout)
    }

    /// How the plugin's own process dies, while it does not answer.
    pub fn worker_trouble(&self) -> Option<Trouble> {
        self.plugin.trouble()
    }
}
