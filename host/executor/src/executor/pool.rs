//! Drives one executor on threads of its own; the async side only adds jobs and receives reports.
//!
//! ```text
//! slot 0   load, create, run ..., destroy     \  each takes its next jobs from one queue, which
//! slot k   run ...                            /  also keeps count (`queue`, `slot`)
//! control  device, cancel, shutdown              beside the runs
//! ```
//!
//! Starts and answers come on one channel, in order. The cancel hook is called at most once per job and only
//! between entry and return of its run: `in_flight` decides that under a lock.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use coda_plugin_abi::Error;
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::JobContext;
use super::active::{ActivePlugin, check_device};
use super::control::{Canceller, ControlCalls, ControlRequest, ControlThread};
use super::ffi::{Common, DeviceReply};
use super::hold::StartHold;
use super::in_flight::InFlightCalls;
use super::job::{Generation, RunJob, SlotReport};
use super::lender::SlotLender;
use super::plugin::Plugin;
use super::refresh::DeviceRefresh;
use super::reload::ExecutorReloader;
use super::shared::{RunObserver, Shared};
use super::slot::Slot;
use super::start::{LoadedPlugin, StartError, StartRequest, end_process_after, first_slot, spawn};
use super::status::ExecutorStatus;
use super::usage::SlotUsage;
use super::watchdog::Refreshes;
use super::worker::Kill;
use super::{signals, watchdog};
use crate::model::JobId;

const SLOT_STACK_BYTES: usize = 8 << 20;
const WATCHDOG_STACK_BYTES: usize = 256 << 10;

/// The handle to a running executor. [`Executor::shutdown`] ends it; dropping it leaves the threads to end with the
/// process.
pub struct Executor {
    threads: ExecutorThreads,
    common: Arc<Common>,
    status: ExecutorStatus,
    canceller: Canceller,
    reloader: ExecutorReloader,
}

impl Executor {
    /// Loads the plugin, creates its executor and asks for its device. Starts and answers come on `reports`.
    ///
    /// # Errors
    /// When the plugin can't be loaded, its executor can't be created or described, its device is impossible, or a
    /// thread can't be started. An executor that was created is shut down and destroyed then.
    pub async fn start(
        request: StartRequest,
        reports: UnboundedSender<SlotReport>,
    ) -> Result<Executor, StartError> {
        let path = request.subject();
        let (batch_max, start_timeout) = (request.batch_max, request.start_timeout);
        let refresh_interval = request.device_refresh;
        let shared = Arc::new(Shared {
            queue: Arc::default(),
            in_flight: InFlightCalls::default(),
            observer: OnceLock::new(),
            reports,
            dispositions: request.dispositions.clone(),
            control_timeout: request.control_timeout,
            control_calls: ControlCalls::default(),
            swap_lock: Arc::default(),
            stuck_run: Mutex::default(),
            limits: request.limits,
            usage: SlotUsage::default(),
        });
        let (ready, created) = oneshot::channel();
        let last_resort = match request.isolation {
            Some(_) => None,
            None => {
                let limit = start_timeout.saturating_add(request.control_timeout);
                let call = "start".into();
                let error = StartError::NoReturn { path: path.clone(), call, limit: start_timeout };
                Some(end_process_after(limit, error)?)
            }
        };
        let slot_0 = {
            let shared = shared.clone();
            spawn("slot-0", SLOT_STACK_BYTES, move || first_slot(request, ready, shared))?
        };
        let died = || StartError::Died { path: path.clone() };
        let no_return = || {
            let call = shared.control_calls.first().map_or_else(|| "start".into(), |call| call.call);
            StartError::NoReturn { path: path.clone(), call, limit: start_timeout }
        };
        let created = match tokio::time::timeout(start_timeout, created).await {
            Ok(created) => created,
            Err(_) => {
                // It stays armed: nothing else is certain to end this process.
                std::mem::forget(last_resort);
                return Err(no_return());
            }
        };
        drop(last_resort);
        let LoadedPlugin { info, plugin, common } = created.map_err(|_| died())??;
        let (requests, inbox) = channel();
        let mut threads = ExecutorThreads {
            shared: shared.clone(),
            plugin: plugin.clone(),
            common: common.clone(),
            requests: requests.clone(),
            handles: vec![slot_0],
        };

        let described = threads.start_control(inbox);
        let opened = async {
            let reply = tokio::time::timeout(start_timeout, described?).await.map_err(|_| no_return())?;
            let reply = reply.map_err(|_| died())?;
            let reply = reply.map_err(|error| StartError::Describe { path: path.clone(), error })?;
            let (device, hooks) =
                check_device(reply).map_err(|what| StartError::BadDevice { path: path.clone(), what })?;
            threads.start_slots(usize::from(device.slots))?;
            let active = ActivePlugin { device, hooks, info: info.clone() };
            let active = Arc::new(RwLock::new(Arc::new(active)));
            let refresh = DeviceRefresh {
                shared: Arc::downgrade(&shared),
                plugin: plugin.clone(),
                active: active.clone(),
                batch_max,
                refusal: Mutex::default(),
                is_due: AtomicBool::default(),
            };
            threads.start_watchdog(Refreshes { interval: refresh_interval, refresh: Arc::new(refresh) })?;
            Ok(active)
        };
        let active = match opened.await {
            Ok(active) => active,
            Err(error) => {
                // The device may be in use by the executor that was created.
                let limit = shared.control_timeout;
                threads.shutdown(&info.name, limit).await;
                return Err(error);
            }
        };

        let (slots, batch_run) = {
            let active = active.read();
            (usize::from(active.device.slots), active.hooks.batch_run)
        };
        shared.queue.open(slots, if batch_run { batch_max } else { 1 });
        let status = ExecutorStatus::new(shared.clone(), plugin.clone(), common.clone(), active.clone());
        let canceller =
            Canceller { shared: shared.clone(), plugin: plugin.clone(), status: status.clone(), requests };
        let reloader = ExecutorReloader {
            queue: shared.queue.clone(),
            plugin,
            common: common.clone(),
            active,
            batch_max,
            reports: shared.reports.clone(),
            swap_lock: shared.swap_lock.clone(),
        };
        Ok(Executor { threads, common, status, canceller, reloader })
    }

    /// The plugin and device in use: another one after a reload.
    pub fn active_plugin(&self) -> Arc<ActivePlugin> {
        self.status.active_plugin()
    }

    /// What a job's run shares with the plugin.
    pub fn context(&self, job_id: JobId) -> JobContext {
        JobContext::in_executor(self.common.clone(), job_id)
    }

    /// A view for everyone who may look at the executor but not change it.
    pub fn status(&self) -> ExecutorStatus {
        self.status.clone()
    }

    /// The means to replace the executor. For the reload alone.
    pub fn reloader(&self) -> ExecutorReloader {
        self.reloader.clone()
    }

    /// The means to keep calls from beginning.
    pub fn start_hold(&self) -> StartHold {
        StartHold { queue: self.threads.shared.queue.clone() }
    }

    /// The part of the executor that the peer network may use.
    pub fn slot_lender(&self) -> SlotLender {
        SlotLender {
            queue: self.threads.shared.queue.clone(),
            common: self.common.clone(),
            status: self.status.clone(),
            canceller: self.canceller.clone(),
        }
    }

    /// Sets who sees the calls on the slot threads. Once, before the first job.
    pub fn observe(&self, observer: Arc<dyn RunObserver>) {
        if self.threads.shared.observer.set(observer).is_err() {
            tracing::error!("the executor has an observer already; please report this as a bug");
        }
    }

    /// Lets jobs wait for a slot. Slots take them in the order of their tickets: one is run, several are a batch.
    /// Jobs of an earlier generation than that of the executor in use are dropped; see [`SlotReport::DeviceChanged`].
    pub fn submit(&self, generation: Generation, jobs: Vec<RunJob>) {
        self.threads.shared.queue.add(generation, jobs);
    }

    /// Takes back a job that waits; false when a slot has taken it, and then its start is already reported.
    pub fn withdraw(&self, ticket: u64) -> bool {
        self.threads.shared.queue.withdraw(ticket)
    }

    /// The context of a job that a slot has taken and not finished.
    pub fn context_of(&self, ticket: u64) -> Option<Arc<JobContext>> {
        self.threads.shared.in_flight.get(ticket).map(|call| call.context())
    }

    /// Asks for the end of a job: a job before its call is skipped, during the call the plugin's hook is told, and
    /// afterwards nothing happens.
    pub fn cancel(&self, ticket: u64) {
        self.canceller.cancel(ticket);
    }

    /// Brings the device to rest and drops the executor, once every run has come back; waits at most `limit` for
    /// the plugin.
    pub async fn shutdown(self, limit: Duration) {
        let name = self.active_plugin().info.name.clone();
        // Each holds a sender of requests and the plugin.
        let Executor { threads, common, status, canceller, reloader } = self;
        drop((common, status, canceller, reloader));
        threads.shutdown(&name, limit).await;
    }
}

/// The threads of one executor, and what it takes to start and to end them.
struct ExecutorThreads {
    shared: Arc<Shared>,
    plugin: Plugin,
    common: Arc<Common>,
    requests: Sender<ControlRequest>,
    handles: Vec<JoinHandle<()>>,
}

impl ExecutorThreads {
    /// Starts the control thread. First of all it asks the plugin for its device; the answer comes on the channel.
    fn start_control(
        &mut self,
        inbox: std::sync::mpsc::Receiver<ControlRequest>,
    ) -> Result<oneshot::Receiver<Result<DeviceReply, Error>>, StartError> {
        let (describe, described) = oneshot::channel();
        let control = ControlThread {
            plugin: self.plugin.clone(),
            common: self.common.clone(),
            shared: self.shared.clone(),
        };
        self.handles.push(spawn("control", SLOT_STACK_BYTES, move || {
            let plugin = control.common.plugin();
            let asking = control.shared.control_calls.begin("device".into(), plugin, None);
            let reply = control.plugin.device();
            drop(asking);
            signals::restore_after(&control.shared.dispositions, &control.common.plugin(), "device");
            // Also when no one waits for the description any more: the thread is needed for the shutdown.
            drop(describe.send(reply));
            control.serve(&inbox);
        })?);
        Ok(described)
    }

    /// Starts the slots other than slot 0.
    fn start_slots(&mut self, slots: usize) -> Result<(), StartError> {
        for index in 1..slots {
            let (plugin, common) = (self.plugin.clone(), self.common.clone());
            let slot = Slot { index, plugin, common, shared: self.shared.clone() };
            // Counted before it runs, so that slot 0 waits for it in any case.
            let thread = self.shared.queue.register_thread();
            self.handles.push(spawn(&format!("slot-{index}"), SLOT_STACK_BYTES, move || {
                slot.serve();
                drop(thread);
            })?);
        }
        Ok(())
    }

    /// Starts the watchdog, which ends by itself when nothing but it knows the executor.
    fn start_watchdog(&self, refreshes: Refreshes) -> Result<(), StartError> {
        let (shared, plugin, requests) =
            (Arc::downgrade(&self.shared), self.plugin.clone(), self.requests.clone());
        let limits = self.shared.limits;
        spawn("watchdog", WATCHDOG_STACK_BYTES, move || {
            watchdog::watch(&shared, &plugin, &requests, limits, &refreshes);
        })
        .map(drop)
    }

    async fn shutdown(self, name: &str, limit: Duration) {
        let ExecutorThreads { shared, plugin, requests, handles, .. } = self;
        let limit = limit + plugin.remote().map_or(Duration::ZERO, |remote| remote.end_allowance());
        let orderly = async {
            let (answer, answered) = oneshot::channel();
            let asked = requests.send(ControlRequest::Shutdown(answer)).is_ok();
            if asked && let Ok(Some(error)) = answered.await {
                tracing::warn!(plugin = name, error = error.text, "the plugin's shutdown failed");
            }
            shared.queue.stop();
            drop(requests);
            let joined = tokio::task::spawn_blocking(move || {
                handles.into_iter().for_each(|handle| {
                    if handle.join().is_err() {
                        tracing::error!("a thread of the executor panicked; please report this as a bug");
                    }
                });
            });
            drop(joined.await);
        };
        if tokio::time::timeout(limit, orderly).await.is_err() {
            tracing::warn!(plugin = name, ?limit, "the plugin did not shut down in time; leaving it");
            if let Some(remote) = plugin.remote() {
                remote.kill(Kill::Stopping);
            }
        }
    }
}
