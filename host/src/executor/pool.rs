//! Drives one executor on threads of its own; the async side only sends and receives.
//!
//! ```text
//! slot 0   load, create, run ..., destroy     \  each slot's calls come from one OS thread, so a control
//! slot k   run ...                            /  stack bound to a thread works
//! control  device, cancel, shutdown              beside the runs
//! ```
//!
//! A slot thread waits for work, enters the plugin, and reports each job's answer and then the free slot on
//! one channel. The cancel hook is called at most once per job and only between entry and return of its run:
//! `turn` decides that under a lock. Nothing here judges counts.

mod evolve;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coda_plugin_abi::descriptor::Kind;
use coda_plugin_abi::{Device, Error, ErrorCode, Hooks, Program, Stage};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::JobContext;
use super::ffi::{CallJob, CreateRequest, DeviceReply, Instance};
use super::loader::{self, LoadError, Loaded};
use super::locate::{Located, Source};
use super::turn::{Turn, lock};
use crate::error::{Explain, exit};
use crate::model::JobId;
use crate::sys::Dispositions;

pub use evolve::{EvolveDone, EvolveJob};

const SLOT_STACK_BYTES: usize = 8 << 20;
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
    /// What to put back after the plugin was called.
    pub dispositions: Arc<Dispositions>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the plugin {} could not create its executor ({}): {}", path.display(), error.code, error.text)]
    Create { path: PathBuf, error: Error },
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
            StartError::Load(e) => e.code(),
            StartError::Create { .. } => "executor-create",
            StartError::Describe { .. } => "executor-describe",
            StartError::BadDevice { .. } => "executor-bad-device",
            StartError::Thread(_) | StartError::Died { .. } => "executor-thread",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            StartError::Load(e) => e.hint(),
            StartError::Create { error, .. } if error.code == ErrorCode::Config => {
                Some("correct the device config; its keys are the vendor's".into())
            }
            StartError::Create { .. } => Some("check the hardware and its control stack".into()),
            StartError::Describe { .. } | StartError::BadDevice { .. } => Some("tell the vendor".into()),
            StartError::Thread(_) => Some("raise the limit on processes (ulimit -u)".into()),
            StartError::Died { .. } => Some("report this as a bug of coda-host".into()),
        }
    }

    fn exit(&self) -> u8 {
        exit::PLUGIN
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

/// One job for a slot.
pub struct RunJob {
    /// The caller's own mark, given back with the answer.
    pub ticket: u64,
    pub job_id: JobId,
    pub program: Arc<Program>,
    pub shots: u32,
    pub context: Arc<JobContext>,
    /// Called on the slot's thread with the answer of a run, before anything else happens with it.
    pub keep: Option<Keep>,
}

/// Sees an answer first.
pub type Keep = Box<dyn Fn(&Result<coda_plugin_abi::Outcome, Error>) + Send>;

/// What the slot threads report.
#[derive(Debug)]
pub enum RunDone {
    /// One job's answer; always there, a missing one is an error.
    Job { ticket: u64, answer: Result<coda_plugin_abi::Outcome, Error>, run_time: Duration },
    /// The slot can take the next call.
    SlotFree { slot: usize },
}

/// A control call that has not come back in time.
#[derive(Debug, Clone)]
pub struct Stuck {
    pub call: String,
    pub since: Instant,
}

/// The handle to a running executor. Dropping it leaves the threads to end with the process.
pub struct Executor {
    slots: Vec<Sender<Work>>,
    control: Sender<Control>,
    threads: Vec<JoinHandle<()>>,
    turns: Arc<Turns>,
    busy_control: Arc<Mutex<Option<Stuck>>>,
    control_timeout: Duration,
    device: Device,
    hooks: Hooks,
    info: PluginInfo,
}

enum Work {
    Run(Vec<RunJob>),
    Evolve(Box<EvolveJob>),
    /// Destroy the executor and end (slot 0), or end.
    Stop,
}

enum Control {
    Cancel { ticket: u64 },
    Shutdown(oneshot::Sender<Option<Error>>),
}

type Turns = Mutex<HashMap<u64, Arc<Turn>>>;

/// What a slot thread needs.
struct Slot {
    index: usize,
    instance: Instance,
    turns: Arc<Turns>,
    done: UnboundedSender<RunDone>,
    dispositions: Arc<Dispositions>,
    plugin: Arc<str>,
    control_timeout: Duration,
}

impl Executor {
    /// Loads the plugin, creates its executor and asks for its device. Answers come on `done`.
    ///
    /// # Errors
    /// Whatever keeps the executor from being usable; nothing is left running then but, at worst, an idle
    /// thread.
    pub async fn start(
        request: StartRequest,
        done: UnboundedSender<RunDone>,
    ) -> Result<Executor, StartError> {
        let (work, inbox) = channel();
        let (ready, created) = oneshot::channel();
        let path = request.located.path.clone();
        let (control_timeout, dispositions) = (request.control_timeout, request.dispositions.clone());
        let turns: Arc<Turns> = Arc::default();
        let first = {
            let (turns, done) = (turns.clone(), done.clone());
            spawn("slot-0", SLOT_STACK_BYTES, move || first_slot(request, ready, inbox, turns, done))?
        };
        let (loaded, instance) = created.await.map_err(|_| StartError::Died { path: path.clone() })??;
        let plugin: Arc<str> = loaded.descriptor.name.as_str().into();
        let (described, answer) = oneshot::channel();
        let busy_control: Arc<Mutex<Option<Stuck>>> = Arc::default();
        let (control, orders) = channel();
        let controller = {
            let (turns, busy, dispositions) = (turns.clone(), busy_control.clone(), dispositions.clone());
            let plugin = plugin.clone();
            spawn("control", SLOT_STACK_BYTES, move || {
                if described.send(instance.device()).is_ok() {
                    report_changes(&dispositions, &plugin, "device");
                    controller(instance, &orders, &turns, &busy, &dispositions, &plugin);
                }
            })?
        };
        let reply = answer.await.map_err(|_| StartError::Died { path: path.clone() })?;
        let reply = reply.map_err(|error| StartError::Describe { path: path.clone(), error })?;
        let (device, hooks) = check_device(reply).map_err(|what| StartError::BadDevice { path, what })?;
        let (mut slots, mut threads) = (vec![work], vec![first, controller]);
        for index in 1..usize::from(device.slots) {
            let (work, inbox) = channel();
            let slot = Slot {
                index,
                instance,
                turns: turns.clone(),
                done: done.clone(),
                dispositions: dispositions.clone(),
                plugin: plugin.clone(),
                control_timeout,
            };
            threads.push(spawn(&format!("slot-{index}"), SLOT_STACK_BYTES, move || {
                slot.serve(&inbox);
            })?);
            slots.push(work);
        }
        let d = &loaded.descriptor;
        let info = PluginInfo {
            vendor: d.vendor.clone(),
            name: d.name.clone(),
            version: d.version.clone(),
            kind: d.kind,
            api: (d.api_major, d.api_minor),
            path: loaded.path.clone(),
            sha256: loaded.sha256.clone(),
            source: loaded.source.clone(),
        };
        Ok(Executor { slots, control, threads, turns, busy_control, control_timeout, device, hooks, info })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn hooks(&self) -> Hooks {
        self.hooks
    }

    pub fn info(&self) -> &PluginInfo {
        &self.info
    }

    /// Gives a free slot its next call: one job is run, several are a batch. The caller keeps count of
    /// free slots.
    pub fn run(&self, slot: usize, jobs: Vec<RunJob>) {
        for job in &jobs {
            lock(&self.turns).insert(job.ticket, Arc::new(Turn::new(job.job_id.clone())));
        }
        if self.slots.get(slot).is_none_or(|s| s.send(Work::Run(jobs)).is_err()) {
            tracing::error!(slot, "the executor's slot thread is gone; please report this as a bug");
        }
    }

    /// Asks for the end of a job whose context was set to cancelled: before its call it is skipped, during
    /// the call the plugin's hook is told, afterwards nothing happens.
    pub fn cancel(&self, ticket: u64) {
        if self.hooks.cancel && self.control.send(Control::Cancel { ticket }).is_err() {
            tracing::error!("the executor's control thread is gone; please report this as a bug");
        }
    }

    /// A control call that takes longer than it may.
    pub fn stuck(&self) -> Option<Stuck> {
        lock(&self.busy_control).clone().filter(|s| s.since.elapsed() > self.control_timeout)
    }

    /// Brings the device to rest and drops the executor. Call it when every slot is free; waits at most
    /// `limit` for the plugin.
    pub async fn shutdown(self, limit: Duration) {
        let (ended, answer) = oneshot::channel();
        let name = self.info.name.clone();
        let ask = async {
            if self.control.send(Control::Shutdown(ended)).is_ok()
                && let Ok(Some(error)) = answer.await
            {
                tracing::warn!(plugin = name, error = error.text, "the plugin's shutdown failed");
            }
            // Slot 0 destroys the executor, so the others must have ended.
            for slot in self.slots.into_iter().rev() {
                if slot.send(Work::Stop).is_err() {
                    tracing::debug!("a slot thread had ended before");
                }
            }
            drop(self.control);
            let joined = tokio::task::spawn_blocking(move || {
                self.threads.into_iter().for_each(|t| drop(t.join()));
            });
            drop(joined.await);
        };
        if tokio::time::timeout(limit, ask).await.is_err() {
            tracing::warn!(plugin = name, ?limit, "the plugin did not shut down in time; leaving it");
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

/// Slot 0: loads and creates, then serves like any other, and destroys at the end.
fn first_slot(
    request: StartRequest,
    ready: oneshot::Sender<Result<(Loaded, Instance), StartError>>,
    inbox: Receiver<Work>,
    turns: Arc<Turns>,
    done: UnboundedSender<RunDone>,
) {
    let (dispositions, control_timeout) = (request.dispositions.clone(), request.control_timeout);
    let started = create(request);
    let (instance, plugin) = match &started {
        Ok((loaded, instance)) => (*instance, Arc::from(loaded.descriptor.name.as_str())),
        Err(_) => return drop(ready.send(started)),
    };
    if ready.send(started).is_err() {
        return;
    }
    let slot = Slot { index: 0, instance, turns, done, dispositions, plugin, control_timeout };
    if slot.serve(&inbox) {
        // The others end before slot 0 is told to stop; a run that hasn't come back keeps its executor.
        if let Some(error) = instance.destroy() {
            tracing::warn!(plugin = &*slot.plugin, error = error.text, "dropping the executor failed");
        }
    }
}

fn create(request: StartRequest) -> Result<(Loaded, Instance), StartError> {
    let path = request.located.path.clone();
    if !request.config_path.as_os_str().is_empty() {
        loader::trusted(&request.config_path)?;
    }
    let loaded = loader::load(&request.located, &request.state_dir)?;
    let plugin: Arc<str> = loaded.descriptor.name.as_str().into();
    report_changes(&request.dispositions, &plugin, "loading");
    let made = loaded.library.create(&CreateRequest {
        plugin: plugin.clone(),
        entry: request.located.entry,
        config_path: request.config_path,
        config_text: request.config_text,
        native_gate_set: request.native_gate_set,
        num_qubits: request.num_qubits,
        gauges: Arc::default(),
    });
    report_changes(&request.dispositions, &plugin, "create");
    let instance = made.map_err(|error| StartError::Create { path, error })?;
    Ok((loaded, instance))
}

/// Puts back signal dispositions that the plugin changed, and says so.
fn report_changes(dispositions: &Dispositions, plugin: &str, call: &str) {
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

fn check_device(reply: DeviceReply) -> Result<(Device, Hooks), String> {
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
    instance: Instance,
    orders: &Receiver<Control>,
    turns: &Turns,
    busy: &Mutex<Option<Stuck>>,
    dispositions: &Dispositions,
    plugin: &str,
) {
    let watched = |call: String, body: &mut dyn FnMut() -> Option<Error>| {
        *lock(busy) = Some(Stuck { call: call.clone(), since: Instant::now() });
        let error = body();
        *lock(busy) = None;
        report_changes(dispositions, plugin, &call);
        error
    };
    while let Ok(order) = orders.recv() {
        match order {
            Control::Cancel { ticket } => {
                let Some(turn) = lock(turns).get(&ticket).cloned() else { continue };
                let call = format!("cancel of job {}", turn.job_id());
                let error = watched(call, &mut || turn.cancel(|id| instance.cancel(id)));
                if let Some(error) = error {
                    let job_id = turn.job_id();
                    tracing::warn!(plugin, job_id, error = error.text, "the plugin's cancel hook failed");
                }
            }
            Control::Shutdown(answer) => {
                let error = watched("shutdown".into(), &mut || instance.shutdown());
                return drop(answer.send(error));
            }
        }
    }
}

impl Slot {
    /// Serves calls until told to stop (true) or forgotten (false).
    fn serve(&self, inbox: &Receiver<Work>) -> bool {
        loop {
            match inbox.recv() {
                Ok(Work::Run(jobs)) => {
                    self.call(jobs);
                    if self.done.send(RunDone::SlotFree { slot: self.index }).is_err() {
                        return false;
                    }
                }
                Ok(Work::Evolve(job)) => {
                    self.evolve(*job);
                    if !self.report_free() {
                        return false;
                    }
                }
                Ok(Work::Stop) => return true,
                Err(_) => return false,
            }
        }
    }

    fn call(&self, jobs: Vec<RunJob>) {
        let turns: Vec<Option<Arc<Turn>>> =
            jobs.iter().map(|j| lock(&self.turns).get(&j.ticket).cloned()).collect();
        let mut entering = Vec::with_capacity(jobs.len());
        for (job, turn) in jobs.iter().zip(turns) {
            match turn.filter(|t| t.enter(&job.context)) {
                Some(turn) => entering.push((job, turn)),
                None => self.finish(job, Err(cancelled()), Duration::ZERO),
            }
        }
        match entering.as_slice() {
            [] => {}
            [(job, turn)] => self.single(job, turn),
            several => self.batch(several),
        }
    }

    fn single(&self, job: &RunJob, turn: &Turn) {
        let start = Instant::now();
        let answer = self.instance.run(&call_job(job)).unwrap_or_else(|| Err(no_answer()));
        let run_time = start.elapsed();
        keep(job, &answer);
        turn.leave(self.control_timeout);
        report_changes(&self.dispositions, &self.plugin, "run");
        self.finish(job, answer, run_time);
    }

    fn batch(&self, jobs: &[(&RunJob, Arc<Turn>)]) {
        let calls: Vec<CallJob<'_>> = jobs.iter().map(|(job, _)| call_job(job)).collect();
        let start = Instant::now();
        let batch = self.instance.batch_run(&calls);
        let run_time = start.elapsed();
        report_changes(&self.dispositions, &self.plugin, "batch_run");
        if let Some(error) = batch.whole {
            tracing::warn!(
                plugin = &*self.plugin,
                jobs = jobs.len(),
                error = error.text,
                "batch_run failed as a whole; running its jobs one by one"
            );
            for (job, turn) in jobs {
                // The hook may have been called during the batch; it is not called twice.
                if job.context.is_cancelled() {
                    turn.leave(self.control_timeout);
                    self.finish(job, Err(cancelled()), run_time);
                } else {
                    self.single(job, turn);
                }
            }
            return;
        }
        let given = batch.answers.iter().flatten().count() + batch.surplus;
        let complete = batch.surplus == 0 && given == jobs.len();
        let answer =
            |a: Option<_>| a.filter(|_| complete).unwrap_or_else(|| Err(wrong_number(given, jobs.len())));
        let answers: Vec<_> = batch.answers.into_iter().map(answer).collect();
        jobs.iter().zip(&answers).for_each(|((job, _), answer)| keep(job, answer));
        for ((job, turn), answer) in jobs.iter().zip(answers) {
            turn.leave(self.control_timeout);
            self.finish(job, answer, run_time);
        }
    }

    fn finish(&self, job: &RunJob, answer: Result<coda_plugin_abi::Outcome, Error>, run_time: Duration) {
        lock(&self.turns).remove(&job.ticket);
        if self.done.send(RunDone::Job { ticket: job.ticket, answer, run_time }).is_err() {
            tracing::warn!(job_id = &*job.job_id, "a job ended after the host had stopped listening");
        }
    }
}

fn keep(job: &RunJob, answer: &Result<coda_plugin_abi::Outcome, Error>) {
    if let Some(keep) = &job.keep {
        keep(answer);
    }
}

fn call_job(job: &RunJob) -> CallJob<'_> {
    CallJob { job_id: &job.job_id, program: &job.program, shots: job.shots, context: &job.context }
}

fn cancelled() -> Error {
    Error::new(ErrorCode::Cancelled, "cancelled before it ran").at(Stage::Run)
}

fn no_answer() -> Error {
    Error::new(ErrorCode::Contract, "the executor returned neither a result nor an error").at(Stage::Run)
}

fn wrong_number(given: usize, jobs: usize) -> Error {
    let text = format!("the executor's batch_run returned {given} results for {jobs} jobs");
    Error::new(ErrorCode::Contract, text).at(Stage::Run)
}
