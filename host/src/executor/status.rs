//! What others than the driver see of the executor: its device as it is now, gauges, trouble; and the swap.
//!
//! A view outlives a swap: what it tells is that of the executor in use.

use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use coda_plugin_abi::{Device, Hooks};

use super::ffi::Common;
use super::in_flight::lock;
use super::loader;
use super::plugin::Plugin;
use super::pool::{PluginInfo, StartError, StartRequest, check_device, failed_to_make};
use super::queue::SlotLoad;
use super::slot::Shared;
use super::watchdog::StuckRun;
use super::worker::{Remote, Standby, WorkerSpec};

/// The executor in use.
#[derive(Debug, Clone)]
pub struct ActivePlugin {
    pub device: Device,
    pub hooks: Hooks,
    pub info: PluginInfo,
}

/// See the module.
#[derive(Clone)]
pub struct ExecutorStatus {
    pub(super) shared: Arc<Shared>,
    pub(super) plugin: Plugin,
    pub(super) common: Arc<Common>,
    pub(super) active: Arc<RwLock<Arc<ActivePlugin>>>,
    pub(super) batch_max: usize,
}

/// The reloads since the start, and what came of the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reloaded {
    pub count: u64,
    pub ok: bool,
    pub message: String,
}

/// Why there was no swap; the former executor is in use, or on its way back.
#[derive(Debug, thiserror::Error)]
pub enum SwapError {
    #[error("a plugin in the host's own process can't be swapped")]
    NotIsolated,
    #[error(transparent)]
    New(#[from] StartError),
    #[error("the new executor has {new} slots, the host was started with {old}")]
    Slots { old: u16, new: u16 },
    #[error("the runs in the plugin did not end within {0:?}")]
    Busy(Duration),
}

impl crate::error::Explain for SwapError {
    fn code(&self) -> &'static str {
        match self {
            SwapError::NotIsolated => "swap-not-isolated",
            SwapError::New(e) => e.code(),
            SwapError::Slots { .. } => "swap-slots",
            SwapError::Busy(_) => "swap-busy",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            SwapError::NotIsolated => {
                Some("set CODA_EXECUTOR_ISOLATION=process, or restart coda-host".into())
            }
            SwapError::New(e) => e.hint(),
            SwapError::Slots { .. } => Some("restart coda-host for another number of slots".into()),
            SwapError::Busy(_) => Some("try again, or set CODA_JOB_TIMEOUT_SEC".into()),
        }
    }

    fn exit(&self) -> u8 {
        match self {
            SwapError::New(e) => e.exit(),
            _ => crate::error::exit::PLUGIN,
        }
    }
}

/// What came of a swap.
pub struct Swapped {
    pub now: Arc<ActivePlugin>,
    /// From the return of the last run, or the decision when none ran, until runs could begin again.
    pub pause: Duration,
}

impl ExecutorStatus {
    /// Whether the plugin is told of cancels: by its hook, or by the flag in its process.
    pub(super) fn takes_cancels(&self) -> bool {
        self.active_plugin().hooks.cancel || self.plugin.remote().is_some()
    }

    pub fn active_plugin(&self) -> Arc<ActivePlugin> {
        self.active.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Gauges of the plugin's own, by name.
    pub fn gauges(&self) -> Vec<(String, f64)> {
        self.common.gauges.all()
    }

    /// How the slots are used now.
    pub fn load(&self) -> SlotLoad {
        self.shared.queue.load()
    }

    /// A run in this process that doesn't end.
    pub fn stuck_run(&self) -> Option<StuckRun> {
        lock(&self.shared.stuck_run).clone()
    }

    /// What is wrong with the executor, in words for an operator.
    pub fn trouble(&self) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(run) = self.stuck_run() {
            found.push(format!(
                "the executor is stuck in job {} for {} s: restart coda-host (with CODA_EXECUTOR_ISOLATION=process it \
                 would be ended by itself)",
                run.job_id,
                run.since.elapsed().as_secs()
            ));
        }
        if let Some(t) = self.plugin.trouble() {
            found.push(match t.in_a_row {
                1 => format!("the plugin's process {}; it is started again", t.last),
                n => format!("the plugin's process has died {n} times in a row, the last time it {}; it is started again", t.last),
            });
        }
        found
    }

    /// Replaces the executor by that of the request, between two runs. Waits at most `limit` for the runs in the
    /// plugin; jobs that wait go on waiting. Blocks; the request's waits and limits are ignored.
    ///
    /// # Errors
    /// Why the former executor stays in use.
    pub fn swap(&self, request: &StartRequest, limit: Duration) -> Result<Swapped, SwapError> {
        let Plugin::Remote(remote) = &self.plugin else { return Err(SwapError::NotIsolated) };
        if !request.config_path.as_os_str().is_empty() {
            loader::trusted(&request.config_path).map_err(StartError::SlotLoad)?;
        }
        let prepared =
            loader::prepare(&request.located, &request.state_dir, true).map_err(StartError::SlotLoad)?;
        let spec = WorkerSpec::new(&prepared, request);
        let failed = |e| SwapError::New(failed_to_make(e, &prepared, &request.config_path, &self.common));
        // While the former one works on: only its end and the creation of the next are left for the pause.
        let standby = Remote::prepare(remote, &spec).map_err(failed)?;
        tracing::debug!(sha256 = prepared.sha256, "the new plugin is checked, its process waits");
        if !self.shared.queue.pause(limit) {
            self.shared.queue.resume();
            return Err(SwapError::Busy(limit));
        }
        let begun = Instant::now();
        tracing::debug!("no run is in the plugin, and none begins");
        let swapped = self.swap_paused(remote, standby, &prepared, request);
        self.shared.queue.resume();
        let pause = begun.elapsed();
        tracing::debug!(?pause, "runs may begin again");
        swapped.map(|now| Swapped { now, pause })
    }

    fn swap_paused(
        &self,
        remote: &Arc<Remote>,
        standby: Standby,
        prepared: &loader::PreparedLibrary,
        request: &StartRequest,
    ) -> Result<Arc<ActivePlugin>, SwapError> {
        let before = self.active_plugin();
        let accept = |reply: &super::ffi::DeviceReply| -> Result<(), SwapError> {
            let bad = |what| StartError::BadDevice { path: prepared.path.clone(), what };
            let (device, _) = check_device(reply.clone()).map_err(bad)?;
            match (before.device.slots, device.slots) {
                (old, new) if old != new => Err(SwapError::Slots { old, new }),
                _ => Ok(()),
            }
        };
        let failed = |e| SwapError::New(failed_to_make(e, prepared, &request.config_path, &self.common));
        let reply = Remote::swap(remote, standby, &accept, &failed)?;
        let bad = |what| StartError::BadDevice { path: prepared.path.clone(), what };
        let (device, hooks) = check_device(reply).map_err(bad)?;
        self.shared.queue.open(usize::from(device.slots), if hooks.batch_run { self.batch_max } else { 1 });
        let next = Arc::new(ActivePlugin { device, hooks, info: PluginInfo::of(prepared) });
        *self.active.write().unwrap_or_else(std::sync::PoisonError::into_inner) = next.clone();
        Ok(next)
    }
}
