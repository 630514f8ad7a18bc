//! Another executor takes the place of the one in use, between two runs.
//!
//! Only who holds an [`ExecutorReloader`] can replace the executor; an [`ExecutorStatus`](super::ExecutorStatus) can't.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc::UnboundedSender;

use super::active::{ActivePlugin, PluginInfo, check_device};
use super::ffi::{Common, DeviceReply};
use super::job::SlotReport;
use super::loader::{self, PreparedLibrary};
use super::locate::{Located, LocatedPython};
use super::plugin::Plugin;
use super::queue::Queue;
use super::start::{
    StartError, StartRequest, explain_library_error, explain_make_error, library_spec, python_spec,
    trust_interpreter,
};
use super::worker::{MakeError, Remote, Standby, WorkerSpec};
use crate::error::{Explain, exit};

/// The reloads since the start, and the result of the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadReport {
    pub count: u64,
    pub ok: bool,
    pub message: String,
}

/// Why the executor was not replaced; the former one is in use, or on its way back.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("a plugin in the host's own process can't be swapped")]
    NotIsolated,
    #[error(transparent)]
    New(#[from] StartError),
    #[error("the new executor has {new} slots, the host was started with {old}")]
    Slots { old: u16, new: u16 },
    #[error("the runs in the plugin did not end within {0:?}")]
    Busy(Duration),
}

impl Explain for ReloadError {
    fn code(&self) -> &'static str {
        match self {
            ReloadError::NotIsolated => "swap-not-isolated",
            ReloadError::New(e) => e.code(),
            ReloadError::Slots { .. } => "swap-slots",
            ReloadError::Busy(_) => "swap-busy",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ReloadError::NotIsolated => {
                Some("set CODA_EXECUTOR_ISOLATION=process, or restart coda-host".into())
            }
            ReloadError::New(e) => e.hint(),
            ReloadError::Slots { .. } => Some("restart coda-host for another number of slots".into()),
            ReloadError::Busy(_) => Some("try again, or set CODA_JOB_TIMEOUT_SEC".into()),
        }
    }

    fn exit(&self) -> u8 {
        match self {
            ReloadError::New(e) => e.exit(),
            _ => exit::PLUGIN,
        }
    }
}

/// A successful reload.
pub struct Reload {
    pub active: Arc<ActivePlugin>,
    /// From the return of the last run, or from the decision when none ran, until runs could begin again.
    pub pause: Duration,
}

/// What is to take the place of the executor in use.
enum Candidate {
    Library(Box<PreparedLibrary>),
    Python(LocatedPython),
}

impl Candidate {
    fn prepare(request: &StartRequest) -> Result<Candidate, StartError> {
        match &request.located {
            Located::Library(library) => {
                Ok(Candidate::Library(Box::new(loader::prepare(library, &request.state_dir, true)?)))
            }
            Located::Python(python) => {
                trust_interpreter(&python.interpreter.path, request.runs_as.is_root())?;
                Ok(Candidate::Python(python.clone()))
            }
        }
    }

    fn spec(&self, request: &StartRequest) -> WorkerSpec {
        match self {
            Candidate::Library(prepared) => WorkerSpec::Library(library_spec(prepared, request)),
            Candidate::Python(python) => WorkerSpec::Python(python_spec(python, request)),
        }
    }
}

/// Replaces the executor in use.
#[derive(Clone)]
pub struct ExecutorReloader {
    pub(super) queue: Arc<Queue>,
    pub(super) plugin: Plugin,
    pub(super) common: Arc<Common>,
    pub(super) active: Arc<RwLock<Arc<ActivePlugin>>>,
    pub(super) batch_max: usize,
    pub(super) reports: UnboundedSender<SlotReport>,
    /// Held while the device in use is replaced.
    pub(super) swap_lock: Arc<Mutex<()>>,
}

impl ExecutorReloader {
    /// Replaces the executor by that of the request, between two runs. Waits at most `limit` for the runs in the
    /// plugin; jobs that wait for a slot go back to their owner, to be judged by the new device. Blocks. The request's limits are ignored: those of the start stay.
    ///
    /// # Errors
    /// When the plugin runs in this process, the new library, config or device can't be used, the number of slots is
    /// another one, or a run does not end in time. The former executor stays in use then.
    pub fn reload(&self, request: &StartRequest, limit: Duration) -> Result<Reload, ReloadError> {
        let Plugin::Remote(remote) = &self.plugin else { return Err(ReloadError::NotIsolated) };
        if let Some(config) = &request.config_path {
            loader::trusted(config).map_err(StartError::Load)?;
        }
        let candidate = Candidate::prepare(request)?;
        // While the former executor works on: only its end and the creation of the next are left for the pause.
        let standby = Remote::prepare(remote, &candidate.spec(request))
            .map_err(|e| self.explain(e, &candidate, request))?;
        tracing::debug!("the new plugin is checked, its process waits");
        if !self.queue.pause(limit) {
            self.queue.resume();
            return Err(ReloadError::Busy(limit));
        }
        let begun = Instant::now();
        let _swap = self.swap_lock.lock();
        tracing::debug!("no run is in the plugin, and none begins");
        let swapped = self.swap_while_paused(remote, standby, &candidate, request);
        self.queue.resume();
        let pause = begun.elapsed();
        tracing::debug!(?pause, "runs may begin again");
        swapped.map(|active| Reload { active, pause })
    }

    fn explain(&self, error: MakeError, candidate: &Candidate, request: &StartRequest) -> ReloadError {
        let config = request.config_path.as_deref();
        ReloadError::New(match candidate {
            Candidate::Library(prepared) => explain_library_error(error, prepared, config, &self.common),
            Candidate::Python(_) => explain_make_error(error, &request.subject(), config, &self.common),
        })
    }

    fn swap_while_paused(
        &self,
        remote: &Arc<Remote>,
        standby: Standby,
        candidate: &Candidate,
        request: &StartRequest,
    ) -> Result<Arc<ActivePlugin>, ReloadError> {
        let bad_device = |what| StartError::BadDevice { path: request.subject(), what };
        let info = match (candidate, standby.facts()) {
            (Candidate::Library(prepared), _) => PluginInfo::from_library(prepared),
            (Candidate::Python(located), Some(facts)) => PluginInfo::from_python(located, facts.clone()),
            (Candidate::Python(_), None) => return Err(StartError::Died { path: request.subject() }.into()),
        };
        let old_slots = self.active.read().device.slots;
        let accept = |reply: &DeviceReply| -> Result<(), ReloadError> {
            let (device, _) = check_device(reply.clone()).map_err(bad_device)?;
            // The slot threads are those of the start.
            match device.slots == old_slots {
                true => Ok(()),
                false => Err(ReloadError::Slots { old: old_slots, new: device.slots }),
            }
        };
        let explain = |error| self.explain(error, candidate, request);
        let reply = Remote::swap(remote, standby, &accept, &explain)?;
        let (device, hooks) = check_device(reply).map_err(bad_device)?;
        self.queue.open(usize::from(device.slots), if hooks.batch_run { self.batch_max } else { 1 });
        let next = Arc::new(ActivePlugin { device, hooks, info });
        *self.active.write() = next.clone();
        // Reported while no run begins, so that none begins that was judged by the former device.
        let generation = self.queue.begin_generation();
        let changed = SlotReport::DeviceChanged { active: next.clone(), generation };
        if self.reports.send(changed).is_err() {
            tracing::debug!("the host stopped listening while the executor was replaced");
        }
        Ok(next)
    }
}
