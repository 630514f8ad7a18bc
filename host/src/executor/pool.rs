//! Drives one executor on threads of its own; the async side only adds jobs and receives reports.
//!
//! ```text
//! slot 0   load, create, run ..., destroy     \  each takes its next jobs from one queue, which
//! slot k   run ...                            /  also keeps count (`queue`, `slot`)
//! control  device, cancel, shutdown              beside the runs
//! ```
//!
//! Starts and answers come on one channel, in order. The cancel hook is called at most once per job and only
//! between entry and return of its run: `turn` decides that under a lock.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coda_plugin_abi::descriptor::{Binding, Kind};
use coda_plugin_abi::{Device, Error, ErrorCode, Hooks, Outcome, Program};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::JobContext;
use super::account::RunsAs;
use super::evolve::SlotLender;
use super::ffi::{Common, CreateRequest, DeviceReply};
use super::in_flight::lock;
use super::loader::{self, LoadError, PreparedLibrary};
use super::locate::{Located, Source};
use super::plugin::Plugin;
use super::queue::Queue;
use super::schema;
use super::slot::{InFlightCalls, RunObserver, Shared, Slot};
use super::status::{ActivePlugin, ExecutorStatus};
use super::watchdog::{self, RunLimits};
use super::worker::{MakeError, Remote, Restart, WorkerSpec};
use crate::error::{Explain, exit};
use crate::model::{JobId, MessageId};
use crate::sys::{Account, Dispositions};

const SLOT_STACK_BYTES: usize = 8 << 20;
const WATCHDOG_STACK_BYTES: usize = 256 << 10;
/// More slots than this is a mistake in the plugin, not a device.
const MAX_SLOTS: u32 = 64;
const MAX_QUBITS: u32 = 50;

/// How to start an executor.
pub struct StartRequest {
    pub located: Located,
    pub state_dir: PathBuf,
    /// Absolute path of the device config and its text; empty when there is none.
    pub config_path: PathBuf,
    pub config_text: String,
    pub native_gate_set: String,
    pub num_qubits: u16,
    pub control_timeout: Duration,
    /// Most jobs of one `batch_run`.
    pub batch_max: usize,
    /// What to put back after the plugin was called.
    pub dispositions: Arc<Dispositions>,
    /// Run the plugin in a process of its own, and when to start it again.
    pub isolation: Option<Restart>,
    /// Whose rights that process has.
    pub runs_as: RunsAs,
    pub limits: RunLimits,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    SlotLoad(#[from] LoadError),
    #[error("the plugin {} could not create its executor ({}): {}", path.display(), error.code, error.text)]
    Create { path: PathBuf, error: Error },
    #[error("the device config {} does not fit the plugin: {what}", config.display())]
    Config { config: PathBuf, what: String },
    #[error("the process of plugin {} could not be used: {what}", path.display())]
    Process { path: PathBuf, what: String },
    #[error("the plugin's process runs as '{}', which may not read {}: {why}", account.name, file.display())]
    Unreadable { account: Box<Account>, file: PathBuf, why: String },
    #[error("the process of plugin {} could not give up its rights, so nothing is run in it: {what}", path.display())]
    Rights { path: PathBuf, what: String },
    #[error("the plugin {} could not describe its device: {}", path.display(), error.text)]
    Describe { path: PathBuf, error: Error },
    #[error("the plugin {} describes a device that can't be: {what}", path.display())]
    BadDevice { path: PathBuf, what: String },
    #[error("no thread could be started for the plugin")]
    Thread(#[source] std::io::Error),
    #[error("the thread of plugin {} ended while it was starting", path.display())]
    Died { path: PathBuf },
}

impl Explain for StartError {
    fn code(&self) -> &'static str {
        match self {
            StartError::SlotLoad(e) => e.code(),
            StartError::Create { .. } => "executor-create",
            StartError::Config { .. } => "executor-config",
            StartError::Process { .. } => "executor-process",
            StartError::Unreadable { .. } => "executor-unreadable",
            StartError::Rights { .. } => "executor-rights",
            StartError::Describe { .. } => "executor-describe",
            StartError::BadDevice { .. } => "executor-bad-device",
            StartError::Thread(_) | StartError::Died { .. } => "executor-thread",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            StartError::SlotLoad(e) => e.hint(),
            StartError::Create { error, .. } if error.code == ErrorCode::Config => {
                Some("correct the device config; its keys are the vendor's".into())
            }
            StartError::Config { .. } => Some(
                "correct the device config; 'coda-host plugin inspect FILE.so --schema' prints what fits"
                    .into(),
            ),
            StartError::Process { .. } => Some(
                "try the plugin alone: coda-host plugin check FILE.so --device FILE; then tell the vendor"
                    .into(),
            ),
            StartError::Unreadable { account, file, .. } => Some(format!(
                "let it: chgrp {} {1} && chmod g+r {1}; its folders must let it through too: namei -l {1}",
                account.gid,
                file.display()
            )),
            StartError::Rights { .. } => Some(
                "the host needs CAP_SETUID, CAP_SETGID and CAP_KILL for another account's process; see                  docs/operations.md"
                    .into(),
            ),
            StartError::Create { .. } => Some("check the hardware and its control stack".into()),
            StartError::Describe { .. } | StartError::BadDevice { .. } => Some("tell the vendor".into()),
            StartError::Thread(_) => Some("raise the limit on processes (ulimit -u)".into()),
            StartError::Died { .. } => Some("report this as a bug of coda-host".into()),
        }
    }

    fn exit(&self) -> u8 {
        match self {
            // It stays so until somebody mends it.
            StartError::Unreadable { .. } | StartError::Rights { .. } => exit::CONFIG,
            _ => exit::PLUGIN,
        }
    }
}

/// What is known of the plugin in use, for logs, metrics and `/ready`.
#[derive(Debug, Clone)]
pub struct PluginInfo {
    pub vendor: String,
    pub name: String,
    pub version: String,
    pub kind: Kind,
    pub api: (u16, u16),
    pub path: PathBuf,
    pub sha256: String,
    pub source: Source,
}

impl PluginInfo {
    /// For metrics.
    pub fn labels(&self) -> [(&'static str, &str); 5] {
        [
            ("name", &self.name),
            ("version", &self.version),
            ("vendor", &self.vendor),
            ("kind", self.kind.name()),
            ("sha256", &self.sha256),
        ]
    }

    pub(super) fn of(prepared: &PreparedLibrary) -> PluginInfo {
        let d = &prepared.descriptor;
        PluginInfo {
            vendor: d.vendor.clone(),
            name: d.name.clone(),
            version: d.version.clone(),
            kind: d.kind,
            api: (d.api_major, d.api_minor),
            path: prepared.path.clone(),
            sha256: prepared.sha256.clone(),
            source: prepared.source.clone(),
        }
    }
}

/// The plugin's answer to one job.
pub type Answer = Result<Outcome, Error>;

/// One job for a slot.
pub struct RunJob {
    /// The caller's own mark, given back with the reports; lower ones run first.
    pub ticket: u64,
    /// The stream's message, when there is one.
    pub message_id: Option<MessageId>,
    pub job_id: JobId,
    pub program: Arc<Program>,
    pub shots: u32,
    pub context: Arc<JobContext>,
}

/// What the slot threads report.
#[derive(Debug)]
pub enum SlotReport {
    /// A slot has taken these jobs: from here on only a cancel ends them.
    Started { slot: usize, tickets: Vec<u64> },
    /// One job's answer; always there, a missing one is an error.
    Answered { slot: usize, ticket: u64, answer: Answer, run_time: Duration },
}

/// A control call that has not come back in time.
#[derive(Debug, Clone)]
pub struct Stuck {
    pub call: String,
    pub since: Instant,
}

/// The handle to a running executor. Dropping it leaves the threads to end with the process.
pub struct Executor {
    shared: Arc<Shared>,
    control: Sender<Control>,
    threads: Vec<JoinHandle<()>>,
    busy_control: Arc<Mutex<Option<Stuck>>>,
    plugin: Plugin,
    common: Arc<Common>,
    status: ExecutorStatus,
}

pub(super) enum Control {
    Cancel { ticket: u64 },
    Shutdown(oneshot::Sender<Option<Error>>),
}

impl Executor {
    /// Loads the plugin, creates its executor and asks for its device. Answers come on `done`.
    ///
    /// # Errors
    /// Whatever keeps the executor from being usable; nothing is left running then but, at worst, an idle
    /// thread.
    pub async fn start(
        request: StartRequest,
        done: UnboundedSender<SlotReport>,
    ) -> Result<Executor, StartError> {
        let (ready, created) = oneshot::channel();
        let (path, batch_max, limits) = (request.located.path.clone(), request.batch_max, request.limits);
        let shared = Arc::new(Shared {
            queue: Queue::default(),
            in_flight: InFlightCalls::default(),
            observer: OnceLock::new(),
            done,
            dispositions: request.dispositions.clone(),
            control_timeout: request.control_timeout,
            stuck_run: Mutex::default(),
            limits: request.limits,
        });
        let first = {
            let shared = shared.clone();
            spawn("slot-0", SLOT_STACK_BYTES, move || first_slot(request, ready, shared))?
        };
        let (prepared, plugin, common) =
            created.await.map_err(|_| StartError::Died { path: path.clone() })??;
        let (describe, answer) = oneshot::channel();
        let busy_control: Arc<Mutex<Option<Stuck>>> = Arc::default();
        let (control, orders) = channel();
        let controller = {
            let (shared, busy, plugin) = (shared.clone(), busy_control.clone(), plugin.clone());
            let name = common.plugin();
            spawn("control", SLOT_STACK_BYTES, move || {
                if describe.send(plugin.device()).is_ok() {
                    report_changes(&shared.dispositions, &name, "device");
                    controller(&plugin, &orders, &shared, &busy, &name);
                }
            })?
        };
        let reply = answer.await.map_err(|_| StartError::Died { path: path.clone() })?;
        let reply = reply.map_err(|error| StartError::Describe { path: path.clone(), error })?;
        let (device, hooks) = check_device(reply).map_err(|what| StartError::BadDevice { path, what })?;
        let mut threads = vec![first, controller];
        for index in 1..usize::from(device.slots) {
            let (plugin, common) = (plugin.clone(), common.clone());
            let slot = Slot { index, plugin, common, shared: shared.clone() };
            threads.push(spawn(&format!("slot-{index}"), SLOT_STACK_BYTES, move || {
                slot.shared.queue.enter();
                slot.serve();
                slot.shared.queue.leave();
            })?);
        }
        shared.queue.open(usize::from(device.slots), if hooks.batch_run { batch_max } else { 1 });
        let info = PluginInfo::of(&prepared);
        {
            let (weak, plugin, control) = (Arc::downgrade(&shared), plugin.clone(), control.clone());
            // It ends by itself.
            spawn("watchdog", WATCHDOG_STACK_BYTES, move || {
                watchdog::watch(&weak, &plugin, &control, limits)
            })?;
        }
        let active = ActivePlugin { device, hooks, info };
        let active = Arc::new(RwLock::new(Arc::new(active)));
        let status = ExecutorStatus {
            shared: shared.clone(),
            plugin: plugin.clone(),
            common: common.clone(),
            active,
            batch_max,
        };
        Ok(Executor { shared, control, threads, busy_control, plugin, common, status })
    }

    /// The executor in use: another one after a reload.
    pub fn active_plugin(&self) -> Arc<ActivePlugin> {
        self.status.active_plugin()
    }

    /// What a job's run shares with the plugin.
    pub fn context(&self, job_id: JobId) -> JobContext {
        JobContext::of(self.common.clone(), job_id)
    }

    /// For those who look on.
    pub fn status(&self) -> ExecutorStatus {
        self.status.clone()
    }

    /// Whom the slot threads tell of their calls. Set once, before the first job.
    pub fn observe(&self, observer: Arc<dyn RunObserver>) {
        if self.shared.observer.set(observer).is_err() {
            tracing::error!("the executor has a observer already; please report this as a bug");
        }
    }

    /// Lets jobs wait for a slot. Slots take them in the order of their tickets: one is run, several are a batch.
    pub fn submit(&self, jobs: Vec<RunJob>) {
        self.shared.queue.add(jobs);
    }

    /// Takes back a job that waits; false when a slot has taken it, and then its start is already reported.
    pub fn withdraw(&self, ticket: u64) -> bool {
        self.shared.queue.withdraw(ticket)
    }

    /// Takes back every job that waits.
    pub fn withdraw_all(&self) {
        self.shared.queue.withdraw_all();
    }

    /// What can be lent to others beside the jobs.
    pub fn slot_lender(&self) -> SlotLender {
        SlotLender { control: self.control.clone(), status: self.status.clone() }
    }

    /// Asks for the end of a job whose context was set to cancelled: before its call it is skipped, during
    /// the call the plugin's hook is told, afterwards nothing happens.
    pub fn cancel(&self, ticket: u64) {
        if let Some(call) = lock(&self.shared.in_flight).get(&ticket) {
            call.ask();
        }
        if self.status.takes_cancels() && self.control.send(Control::Cancel { ticket }).is_err() {
            tracing::error!("the executor's control thread is gone; please report this as a bug");
        }
    }

    /// A control call that takes longer than it may.
    pub fn stuck(&self) -> Option<Stuck> {
        lock(&self.busy_control).clone().filter(|s| s.since.elapsed() > self.shared.control_timeout)
    }

    /// Brings the device to rest and drops the executor, once every run has come back; waits at most `limit` for
    /// the plugin.
    pub async fn shutdown(self, limit: Duration) {
        let (ended, answer) = oneshot::channel();
        let name = self.active_plugin().info.name.clone();
        let ask = async {
            if self.control.send(Control::Shutdown(ended)).is_ok()
                && let Ok(Some(error)) = answer.await
            {
                tracing::warn!(plugin = name, error = error.text, "the plugin's shutdown failed");
            }
            self.shared.queue.stop();
            self.plugin.leave();
            drop(self.control);
            let joined = tokio::task::spawn_blocking(move || {
                self.threads.into_iter().for_each(|t| drop(t.join()));
            });
            drop(joined.await);
        };
        if tokio::time::timeout(limit, ask).await.is_err() {
            tracing::warn!(plugin = name, ?limit, "the plugin did not shut down in time; leaving it");
            if let Some(remote) = self.plugin.remote() {
                remote.kill("it did not shut down in time");
            }
        }
    }
}

fn spawn(
    name: &str,
    stack: usize,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, StartError> {
    std::thread::Builder::new()
        .name(format!("exec-{name}"))
        .stack_size(stack)
        .spawn(body)
        .map_err(StartError::Thread)
}

/// The plugin in use, with its executor.
type LoadedPlugin = (PreparedLibrary, Plugin, Arc<Common>);

/// Slot 0: loads and creates, then serves like any other, and destroys at the end.
fn first_slot(
    request: StartRequest,
    ready: oneshot::Sender<Result<LoadedPlugin, StartError>>,
    shared: Arc<Shared>,
) {
    let started = create(request);
    let (plugin, common) = match &started {
        Ok((_, plugin, common)) => (plugin.clone(), common.clone()),
        Err(_) => return drop(ready.send(started)),
    };
    shared.queue.enter();
    if ready.send(started).is_err() {
        return;
    }
    let slot = Slot { index: 0, plugin, common, shared };
    slot.serve();
    // A run that hasn't come back keeps its executor.
    slot.shared.queue.wait_alone();
    if let Some(error) = slot.plugin.destroy() {
        tracing::warn!(plugin = &*slot.common.plugin(), error = error.text, "dropping the executor failed");
    }
}

fn create(request: StartRequest) -> Result<LoadedPlugin, StartError> {
    let path = request.located.path.clone();
    if !request.config_path.as_os_str().is_empty() {
        loader::trusted(&request.config_path)?;
    }
    let prepared = loader::prepare(&request.located, &request.state_dir, request.isolation.is_some())?;
    let name: Arc<str> = prepared.descriptor.name.as_str().into();
    let common = Arc::new(Common::new(name.clone()));
    if let Some(restart) = request.isolation {
        let spec = WorkerSpec::new(&prepared, &request);
        let remote = Remote::start(spec, common.clone(), restart)
            .map_err(|e| failed_to_make(e, &prepared, &request.config_path, &common))?;
        return Ok((prepared, Plugin::Remote(remote), common));
    }
    let library = prepared.open()?;
    report_changes(&request.dispositions, &name, "loading");
    let secrets = schema::of_plugin(&library, &request.located.entry, &request.config_text)
        .map_err(|what| StartError::Config { config: request.config_path.clone(), what })?;
    common.hide(&secrets);
    let made = library.create(&CreateRequest {
        common: common.clone(),
        entry: request.located.entry,
        config_path: request.config_path,
        config_text: request.config_text,
        native_gate_set: request.native_gate_set,
        num_qubits: request.num_qubits,
    });
    report_changes(&request.dispositions, &name, "create");
    let instance = made.map_err(|error| StartError::Create { path, error: masked(error, &common) })?;
    Ok((prepared, Plugin::Direct(instance), common))
}

fn masked(error: Error, common: &Common) -> Error {
    Error { text: common.masked(error.text), ..error }
}

/// What kept the plugin's process from having an executor, in the terms of a start in this process.
pub(super) fn failed_to_make(
    error: MakeError,
    prepared: &PreparedLibrary,
    config: &std::path::Path,
    common: &Common,
) -> StartError {
    let path = prepared.path.clone();
    match error {
        MakeError::Open(e) => prepared.refused(e).into(),
        MakeError::Config(what) => StartError::Config { config: config.to_path_buf(), what },
        MakeError::Create(error) => StartError::Create { path, error: masked(error, common) },
        MakeError::Describe(error) => StartError::Describe { path, error: masked(error, common) },
        MakeError::Process(what) => StartError::Process { path, what },
        MakeError::Rights(what) => StartError::Rights { path, what },
        MakeError::Unreadable { account, path: file, why } => StartError::Unreadable { account, file, why },
    }
}

impl WorkerSpec {
    /// For a prepared library and what its executor is asked for.
    pub(super) fn new(prepared: &PreparedLibrary, request: &StartRequest) -> WorkerSpec {
        let account = match &request.runs_as {
            RunsAs::Account(account) => Some(account.clone()),
            RunsAs::Host | RunsAs::Root => None,
        };
        let in_place = prepared.opened == prepared.path;
        let mut reads = Vec::new();
        if account.is_some() {
            reads.extend(Some(request.config_path.clone()).filter(|p| !p.as_os_str().is_empty()));
            reads.extend(Some(prepared.opened.clone()).filter(|_| in_place));
            reads.extend(prepared.companions.iter().cloned());
        }
        WorkerSpec {
            opened: prepared.opened.clone(),
            by_descriptor: account.is_some() && !in_place,
            reads,
            account,
            c_binding: prepared.descriptor.binding == Binding::C,
            api_minor: prepared.descriptor.api_minor,
            plugin: prepared.descriptor.name.clone(),
            entry: prepared.entry.clone(),
            config_path: request.config_path.clone(),
            config_text: request.config_text.clone(),
            native_gate_set: request.native_gate_set.clone(),
            num_qubits: request.num_qubits,
            log_level: most_verbose(),
        }
    }
}

/// The most verbose level of a plugin's lines that is logged.
fn most_verbose() -> u32 {
    use coda_plugin_abi::LogLevel;
    let enabled = [
        (tracing::enabled!(target: "plugin", tracing::Level::TRACE), LogLevel::Trace),
        (tracing::enabled!(target: "plugin", tracing::Level::DEBUG), LogLevel::Debug),
        (tracing::enabled!(target: "plugin", tracing::Level::INFO), LogLevel::Info),
        (tracing::enabled!(target: "plugin", tracing::Level::WARN), LogLevel::Warn),
    ];
    enabled.into_iter().find(|(on, _)| *on).map_or(LogLevel::Error, |(_, level)| level).code()
}

/// Puts back signal dispositions that the plugin changed, and says so.
pub(super) fn report_changes(dispositions: &Dispositions, plugin: &str, call: &str) {
    let changed = dispositions.restore();
    if !changed.is_empty() {
        tracing::warn!(
            plugin,
            call,
            signals = changed.join(" "),
            "the plugin changed signal handling; put back"
        );
    }
}

pub(crate) fn check_device(reply: DeviceReply) -> Result<(Device, Hooks), String> {
    let DeviceReply { device, hooks, unknown_targets, num_qubits, slots } = reply;
    if num_qubits == 0 || num_qubits > MAX_QUBITS {
        return Err(format!("it has {num_qubits} qubits, allowed are 1 to {MAX_QUBITS}"));
    }
    if slots == 0 || slots > MAX_SLOTS {
        return Err(format!("it has {slots} slots, allowed are 1 to {MAX_SLOTS}"));
    }
    if device.targets.is_empty() {
        return Err(match unknown_targets.is_empty() {
            true => "it names no native gate set".into(),
            false => format!("it names only gate sets unknown here (codes {unknown_targets:?})"),
        });
    }
    let outside = |q: u16| u32::from(q) >= num_qubits;
    for &(a, b) in device.connectivity.edges().unwrap_or_default() {
        if a == b || outside(a) || outside(b) {
            return Err(format!("its connectivity has the edge [{a}, {b}] on {num_qubits} qubits"));
        }
    }
    Ok((device, hooks))
}

fn controller(
    plugin_calls: &Plugin,
    orders: &Receiver<Control>,
    shared: &Shared,
    busy: &Mutex<Option<Stuck>>,
    plugin: &str,
) {
    let watched = |call: String, body: &mut dyn FnMut() -> Option<Error>| {
        *lock(busy) = Some(Stuck { call: call.clone(), since: Instant::now() });
        let error = body();
        *lock(busy) = None;
        report_changes(&shared.dispositions, plugin, &call);
        error
    };
    while let Ok(order) = orders.recv() {
        match order {
            Control::Cancel { ticket } => {
                let Some(in_flight) = lock(&shared.in_flight).get(&ticket).cloned() else { continue };
                let call = format!("cancel of job {}", in_flight.job_id());
                let error = watched(call, &mut || in_flight.cancel(|id| plugin_calls.cancel(id)));
                if let Some(error) = error {
                    let job_id = in_flight.job_id();
                    tracing::warn!(plugin, job_id, error = error.text, "the plugin's cancel hook failed");
                }
            }
            Control::Shutdown(answer) => {
                let error = watched("shutdown".into(), &mut || plugin_calls.shutdown());
                return drop(answer.send(error));
            }
        }
    }
}
