//! Another library or device config while the host runs: `coda-host reload` and SIGHUP.
//!
//! Device config and plugin are looked up as at the start, and the executor is swapped between two runs. Redis, cloud
//! and the service go on; what came of it is logged and shown in `/ready`.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::{executor_request, locate_plugin};
use crate::config::device::DeviceConfig;
use crate::config::load::ProcessEnv;
use crate::config::settings::Settings;
use crate::error::Failure;
use crate::executor::{ExecutorReloader, Reload, ReloadReport};
use crate::sys::Dispositions;

/// Serves requests to reload.
pub struct Reloads {
    pub settings: Arc<Settings>,
    pub env: ProcessEnv,
    pub reloader: ExecutorReloader,
    pub dispositions: Arc<Dispositions>,
    pub requests: mpsc::UnboundedReceiver<()>,
    pub report: watch::Sender<ReloadReport>,
}

impl Reloads {
    /// Serves one request after the other.
    pub async fn serve(mut self) {
        while let Some(()) = self.requests.recv().await {
            // Requests that came meanwhile are served by the same reload.
            while self.requests.try_recv().is_ok() {}
            tracing::info!("reloading the device config and the plugin");
            let (settings, env) = (self.settings.clone(), self.env.clone());
            let (reloader, dispositions) = (self.reloader.clone(), self.dispositions.clone());
            let swapping =
                tokio::task::spawn_blocking(move || swap(&settings, &env, &reloader, dispositions));
            let (ok, message) = match swapping.await {
                Ok(Ok(message)) => (true, message),
                Ok(Err(failure)) => (false, failure.line()),
                Err(e) => (false, format!("the reload failed unexpectedly; report this as a bug: {e}")),
            };
            match ok {
                true => tracing::info!("{message}"),
                false => tracing::error!("not reloaded, the former executor stays: {message}"),
            }
            self.report.send_modify(|r| *r = ReloadReport { count: r.count + 1, ok, message });
        }
    }
}

fn swap(
    settings: &Settings,
    env: &ProcessEnv,
    reloader: &ExecutorReloader,
    dispositions: Arc<Dispositions>,
) -> Result<String, Failure> {
    let device = DeviceConfig::load(settings.executor.device_config.as_deref())?;
    let located = locate_plugin(settings, &device, env)?;
    // Only an executor in a process can be replaced, and what takes its place gets one too.
    let mut in_process = settings.clone();
    in_process.executor.isolated = true;
    let request = executor_request(&in_process, &device, located, dispositions)?;
    let Reload { active, pause } = reloader.reload(&request, settings.shutdown.drain)?;
    let (info, d) = (&active.info, &active.device);
    Ok(format!(
        "reloaded: {} {} by {}, device {} with {} qubits; no run for {} ms",
        info.name,
        info.version,
        info.vendor,
        d.name,
        d.num_qubits,
        pause.as_millis()
    ))
}
