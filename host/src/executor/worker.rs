//! A plugin in a process of its own: what happens to that process costs the calls in flight and nothing else.
//!
//! ```text
//! this process                                   the child, this program again (`child`)
//! slot thread k  ── one socket per slot ──────>  slot thread k: create, run ..., destroy
//! control thread ── control ──────────────────>  control thread: device, cancel, shutdown
//! event thread   <── events ───────────────────  log, progress, gauges, from any thread
//! keeper         waits for its end; starts it again, later and later while it never answers anything
//! ```
//!
//! It is made in two steps: first the library is opened and the config checked, then the executor is created. Between
//! them another executor may work on, so that a swap keeps the device idle for no longer than its control stack needs.
//!
//! The child dies with this process; its output goes to the log line by line. A call whose process died is answered
//! with an error that names the signal: whether the hardware ran it nobody can know, so it is not run again.

pub mod child;
mod process;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use coda_plugin_abi::{Amplitude, Error, ErrorCode, Stage};
use serde::{Deserialize, Serialize};

use super::ffi::{Answer, BatchAnswers, CallEvolve, CallJob, Common, DeviceReply, JobContext, OpenError};
use super::turn::lock;
use super::wire::{self, Reader, Writer};
use crate::backoff::BackoffRange;
use crate::sys::Account;
use process::Process;

/// More slots than this no device has.
pub const MAX_SLOTS: usize = 64;

/// Kinds of frames.
pub(super) mod kind {
    pub const JSON: u8 = 1;
    pub const RUN: u8 = 2;
    pub const BATCH: u8 = 3;
    pub const EVOLVE: u8 = 4;
    pub const LOG: u8 = 5;
    pub const PROGRESS: u8 = 6;
    pub const GAUGE: u8 = 7;
    pub const DESTROY: u8 = 8;
    pub const CREATE: u8 = 9;
}

/// What the child needs to make the executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The file to open.
    pub opened: PathBuf,
    /// To be opened as the descriptor that comes along: the account doesn't get to where it lies.
    pub by_descriptor: bool,
    /// Files that the account must be able to read.
    pub reads: Vec<PathBuf>,
    /// Whose rights the process takes on.
    #[serde(skip)]
    pub account: Option<Account>,
    /// Through the C door.
    pub c_door: bool,
    pub api_minor: u16,
    pub plugin: String,
    pub entry: String,
    pub config_path: PathBuf,
    pub config_text: String,
    pub native_gate_set: String,
    pub num_qubits: u16,
    /// The most verbose level that the host logs.
    pub log_level: u32,
}

/// How a step of an executor's making ended in the child.
#[derive(Debug, Serialize, Deserialize)]
pub enum Made {
    /// The library is open, the config fits; its secrets.
    Checked(Vec<String>),
    Created(Box<DeviceReply>),
    /// Not all rights could be given up.
    Rights(String),
    /// The account may not read this file.
    Unreadable {
        path: PathBuf,
        why: String,
    },
    Open(OpenError),
    /// The config doesn't fit the plugin's schema.
    Config(String),
    Create(Error),
    Describe(Error),
}

/// Why there is no executor.
#[derive(Debug)]
pub enum MakeError {
    Rights(String),
    Unreadable {
        account: Box<Account>,
        path: PathBuf,
        why: String,
    },
    Open(OpenError),
    Config(String),
    Create(Error),
    Describe(Error),
    /// The process could not be started, or died.
    Process(String),
}

/// When a process that died is started again.
#[derive(Debug, Clone, Copy)]
pub struct Restart {
    /// Before the second start in a row; the first is at once. Doubles from there.
    pub backoff: Duration,
    pub backoff_max: Duration,
}

/// Shown in `/ready`.
#[derive(Debug, Clone)]
pub struct Trouble {
    /// Deaths since the plugin last answered anything.
    pub in_a_row: u32,
    pub last: String,
}

/// A process with the library open and the config checked, and no executor. Dropped, it ends.
pub struct Standby {
    process: Option<Arc<Process>>,
    ended: Option<Receiver<String>>,
    spec: Spec,
}

impl Standby {
    fn drop_for(&mut self, why: &str) {
        if let Some(process) = self.process.take() {
            process.kill(why);
        }
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.drop_for("it is not needed");
    }
}

/// The plugin's process, started again whenever it dies.
pub struct Remote {
    state: Mutex<State>,
    changed: Condvar,
    common: Arc<Common>,
    restart: Restart,
    /// Jobs in a call, for their progress.
    running: Mutex<HashMap<String, Arc<JobContext>>>,
    described: Mutex<DeviceReply>,
    /// Whether the present process has answered a call.
    answered: AtomicBool,
}

struct State {
    spec: Spec,
    phase: Phase,
    in_a_row: u32,
    last: String,
    /// Nobody waits for it to come back.
    leaving: bool,
}

#[derive(Clone)]
enum Phase {
    Up(Arc<Process>),
    /// Died; to be started again.
    Down,
    /// Being replaced: nobody but the swap starts anything.
    Swapping,
    Stopped,
}

impl Remote {
    /// Starts the process and makes the executor.
    ///
    /// # Errors
    /// What kept it from being made; no process is left then.
    pub fn start(spec: Spec, common: Arc<Common>, restart: Restart) -> Result<Arc<Remote>, MakeError> {
        let remote = Arc::new(Remote {
            state: Mutex::new(State {
                spec: spec.clone(),
                phase: Phase::Down,
                in_a_row: 0,
                last: String::new(),
                leaving: false,
            }),
            changed: Condvar::new(),
            common,
            restart,
            running: Mutex::default(),
            described: Mutex::new(DeviceReply::none()),
            answered: AtomicBool::new(false),
        });
        let process = Remote::make(&remote, &spec)?;
        let mut state = lock(&remote.state);
        Remote::put_up(&remote, &mut state, process);
        drop(state);
        Ok(remote)
    }

    /// Starts a process that opens the library and checks the config. Its executor is made by [`Remote::create`].
    ///
    /// # Errors
    /// What speaks against using it; no process is left then.
    pub fn prepare(this: &Arc<Remote>, spec: &Spec) -> Result<Standby, MakeError> {
        let weak = Arc::downgrade(this);
        let progress = move |job_id: &str, done, total| {
            if let Some(remote) = weak.upgrade()
                && let Some(context) = lock(&remote.running).get(job_id)
            {
                context.set_progress(done, total);
            }
        };
        let (process, ended) = Process::start(spec, this.common.clone(), Arc::new(progress))
            .map_err(|e| MakeError::Process(e.to_string()))?;
        let mut standby = Standby { process: Some(process.clone()), ended: Some(ended), spec: spec.clone() };
        match process.check(spec) {
            Ok(secrets) => this.common.hide(&secrets),
            Err(error) => {
                standby.drop_for("it can't be used");
                return Err(error);
            }
        }
        Ok(standby)
    }

    /// Has a prepared process create its executor, and sets a keeper to watch over it.
    fn create(this: &Arc<Remote>, mut standby: Standby) -> Result<Arc<Process>, MakeError> {
        let (Some(process), Some(ended)) = (standby.process.clone(), standby.ended.take()) else {
            return Err(MakeError::Process("it is used already".into()));
        };
        this.answered.store(false, Ordering::Release);
        let device = match process.create(&standby.spec) {
            Ok(device) => device,
            Err(error) => {
                standby.drop_for("its executor could not be made");
                return Err(error);
            }
        };
        let (weak, watched) = (Arc::downgrade(this), process.clone());
        let keeper = move || {
            let end = ended.recv().unwrap_or_else(|_| "ended".into());
            if let Some(remote) = weak.upgrade() {
                Remote::ended(&remote, &watched, &end);
            }
        };
        std::thread::Builder::new()
            .name("exec-keeper".into())
            .spawn(keeper)
            .map_err(|e| MakeError::Process(e.to_string()))?;
        *lock(&this.described) = device;
        standby.process = None;
        Ok(process)
    }

    /// A new process with an executor in it, watched by a keeper of its own.
    fn make(this: &Arc<Remote>, spec: &Spec) -> Result<Arc<Process>, MakeError> {
        Remote::create(this, Remote::prepare(this, spec)?)
    }

    /// The keeper's work once its process has ended: start another, unless nobody wants one.
    fn ended(this: &Arc<Remote>, process: &Arc<Process>, end: &str) {
        let mut state = lock(&this.state);
        let ours = matches!(&state.phase, Phase::Up(up) if Arc::ptr_eq(up, process));
        if !ours {
            return;
        }
        state.phase = Phase::Down;
        drop(state);
        this.changed.notify_all();
        Remote::start_again(this, end.to_string());
    }

    /// Lets calls go to this process; one that has died already, unseen by its keeper, is replaced.
    fn put_up(this: &Arc<Remote>, state: &mut State, process: Arc<Process>) {
        match process.end() {
            None => state.phase = Phase::Up(process),
            Some(end) => {
                state.phase = Phase::Down;
                let this = this.clone();
                std::thread::spawn(move || Remote::start_again(&this, end));
            }
        }
        this.changed.notify_all();
    }

    /// Starts a process in the place of one that is down, again and again if need be, later and later.
    fn start_again(this: &Arc<Remote>, mut end: String) {
        let mut state = lock(&this.state);
        while matches!(state.phase, Phase::Down) {
            // One that has answered something since it was started begins a new count.
            state.in_a_row = if this.answered.swap(false, Ordering::AcqRel) { 1 } else { state.in_a_row + 1 };
            state.last.clone_from(&end);
            let wait = match state.in_a_row {
                1 => Duration::ZERO,
                n => {
                    let Restart { backoff: first, backoff_max: max } = this.restart;
                    BackoffRange { first, max }.pause(n - 1, rand::random())
                }
            };
            let (plugin, in_a_row) = (&*this.common.plugin(), state.in_a_row);
            tracing::error!(
                plugin,
                end,
                in_a_row,
                ?wait,
                "the plugin's process is gone; it is started again"
            );
            let until = Instant::now() + wait;
            while matches!(state.phase, Phase::Down) && Instant::now() < until {
                let left = until.saturating_duration_since(Instant::now());
                state = this.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            if !matches!(state.phase, Phase::Down) {
                return;
            }
            let spec = state.spec.clone();
            drop(state);
            let made = Remote::make(this, &spec);
            state = lock(&this.state);
            match made {
                Ok(process) if matches!(state.phase, Phase::Down) => match process.end() {
                    None => {
                        state.phase = Phase::Up(process);
                        this.changed.notify_all();
                        return;
                    }
                    Some(how) => end = how,
                },
                Ok(process) => return process.kill("it is not needed any more"),
                Err(error) => end = format!("could not be started again: {}", error.text()),
            }
        }
    }

    /// Waits until calls can be made; false when they never will be.
    pub fn wait_up(&self) -> bool {
        self.up().is_some()
    }

    /// Lets those go who wait for it to come back.
    pub fn leave(&self) {
        lock(&self.state).leaving = true;
        self.changed.notify_all();
    }

    /// What the executor said of its device when it was made.
    pub fn described(&self) -> DeviceReply {
        lock(&self.described).clone()
    }

    /// The process that takes calls.
    fn up(&self) -> Option<Arc<Process>> {
        let mut state = lock(&self.state);
        loop {
            match &state.phase {
                // Its keeper has yet to hear of its end.
                Phase::Up(process) if process.end().is_none() => return Some(process.clone()),
                Phase::Stopped => return None,
                _ if state.leaving => return None,
                _ => {
                    let waited = self.changed.wait_timeout(state, Duration::from_millis(100));
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// A process that dies again and again, or is away now.
    pub fn trouble(&self) -> Option<Trouble> {
        let state = lock(&self.state);
        let down = matches!(state.phase, Phase::Down);
        // One death is over as soon as the next process is there.
        (down || (state.in_a_row > 1 && !self.answered.load(Ordering::Acquire)))
            .then(|| Trouble { in_a_row: state.in_a_row.max(1), last: state.last.clone() })
    }

    /// One call in a slot: a frame there, a frame back.
    fn call(
        &self,
        slot: usize,
        contexts: &[(&str, &Arc<JobContext>)],
        frame: Writer,
    ) -> Result<Vec<u8>, Error> {
        let too_long = || Error::new(ErrorCode::Resources, "the job is larger than 2 GiB");
        let frame = frame.finish().ok_or_else(too_long)?;
        let stopped = || Error::new(ErrorCode::Other, "the plugin's process is stopped");
        let process = self.up().ok_or_else(stopped)?;
        let mut running = lock(&self.running);
        running.extend(contexts.iter().map(|(id, context)| ((*id).to_string(), (*context).clone())));
        drop(running);
        let answer = process.call(slot, &frame);
        let mut running = lock(&self.running);
        contexts.iter().for_each(|(id, _)| drop(running.remove(*id)));
        drop(running);
        match answer {
            Ok(body) => {
                self.answered.store(true, Ordering::Release);
                Ok(body)
            }
            Err(end) => {
                // Whoever asks next finds it down.
                let mut state = lock(&self.state);
                while matches!(&state.phase, Phase::Up(up) if Arc::ptr_eq(up, &process)) {
                    let waited = self.changed.wait_timeout(state, Duration::from_secs(5));
                    let (next, late) = waited.unwrap_or_else(PoisonError::into_inner);
                    state = next;
                    if late.timed_out() {
                        break;
                    }
                }
                Err(end)
            }
        }
    }

    pub fn run(&self, slot: usize, job: &CallJob<'_>) -> Answer {
        let mut batch = self.jobs(slot, kind::RUN, std::slice::from_ref(job));
        batch.answers.pop().flatten().or(batch.whole.map(Err))
    }

    pub fn batch_run(&self, slot: usize, jobs: &[CallJob<'_>]) -> BatchAnswers {
        let mut batch = self.jobs(slot, kind::BATCH, jobs);
        // None of them is run again: the process may have died in any of them.
        if let Some(error) =
            batch.whole.take_if(|e| e.code == ErrorCode::Panic || e.code == ErrorCode::Timeout)
        {
            batch.answers = jobs.iter().map(|_| Some(Err(error.clone()))).collect();
        }
        batch
    }

    fn jobs(&self, slot: usize, kind: u8, jobs: &[CallJob<'_>]) -> BatchAnswers {
        let mut frame = Writer::new(kind);
        frame.len(jobs.len());
        for job in jobs {
            frame.text(job.job_id);
            frame.u32(job.shots);
            wire::put_program(&mut frame, job.program);
        }
        let contexts: Vec<_> = jobs.iter().map(|job| (job.job_id, job.context)).collect();
        let failed = |error| BatchAnswers {
            answers: jobs.iter().map(|_| None).collect(),
            whole: Some(error),
            surplus: 0,
        };
        match self.call(slot, &contexts, frame) {
            Ok(body) => batch_answers(&body, jobs.len()).unwrap_or_else(|e| failed(garbled(e))),
            Err(error) => failed(error),
        }
    }

    /// # Errors
    /// The plugin's, or what became of its process.
    pub fn evolve_state(&self, slot: usize, call: &CallEvolve<'_>) -> Result<Vec<Amplitude>, Error> {
        let mut frame = Writer::new(kind::EVOLVE);
        frame.text(call.job_id);
        frame.u16(call.num_qubits);
        wire::put_amplitudes(&mut frame, call.amplitudes);
        wire::put_operations(&mut frame, call.operations);
        let body = self.call(slot, &[(call.job_id, call.context)], frame)?;
        let mut r = Reader::new(&body);
        match r.u16().map_err(garbled)? {
            1 => wire::amplitudes(&mut r).map_err(garbled),
            _ => Err(wire::error(&mut r).map_err(garbled)?),
        }
    }

    /// Tells the plugin that a job was cancelled: its flag, and the hook.
    pub fn cancel(&self, job_id: &str) -> Option<Error> {
        let process = match &lock(&self.state).phase {
            Phase::Up(process) => process.clone(),
            // The job has gone with its process.
            _ => return None,
        };
        process.control(&child::Order::Cancel(job_id.into())).unwrap_or_else(Some)
    }

    /// Brings the device to rest.
    pub fn shutdown(&self) -> Option<Error> {
        let process = match &lock(&self.state).phase {
            Phase::Up(process) => process.clone(),
            _ => return None,
        };
        process.control(&child::Order::Shutdown).unwrap_or_else(Some)
    }

    /// Frees the executor and ends the process, which is not started again.
    pub fn destroy(&self) -> Option<Error> {
        let before = std::mem::replace(&mut lock(&self.state).phase, Phase::Stopped);
        self.changed.notify_all();
        match before {
            Phase::Up(process) => process.destroy(),
            _ => None,
        }
    }

    /// Kills the process in its tracks; its calls are answered with an error of this text.
    pub fn kill(&self, why: &str) {
        if let Phase::Up(process) = &lock(&self.state).phase {
            process.kill(why);
        }
    }

    /// Replaces the executor by one in the prepared process. Call it while no call is in the plugin. When the new one
    /// can't be created, or `accept` doesn't want its device, the old one is made again.
    ///
    /// # Errors
    /// Why the new one could not be made; whether the old one could, its keeper's log tells.
    pub fn swap<E>(
        this: &Arc<Remote>,
        standby: Standby,
        accept: &dyn Fn(&DeviceReply) -> Result<(), E>,
        failed: &dyn Fn(MakeError) -> E,
    ) -> Result<DeviceReply, E> {
        let (old, before) = {
            let mut state = lock(&this.state);
            (state.spec.clone(), std::mem::replace(&mut state.phase, Phase::Swapping))
        };
        let plugin = this.common.plugin();
        if let Phase::Up(process) = before {
            // Most control stacks allow one session: the old one ends before the new one begins.
            for error in [process.control(&child::Order::Shutdown).unwrap_or_else(Some), process.destroy()]
                .into_iter()
                .flatten()
            {
                tracing::warn!(plugin = &*plugin, error = error.text, "the former executor's end failed");
            }
        }
        tracing::debug!(plugin = &*plugin, "the former executor has ended");
        let spec = standby.spec.clone();
        this.common.rename(&spec.plugin);
        let made = Remote::create(this, standby).map_err(failed).and_then(|process| {
            accept(&this.described()).map(|()| process.clone()).inspect_err(|_| {
                process.control(&child::Order::Shutdown).ok();
                process.destroy();
            })
        });
        let mut state = lock(&this.state);
        let answer = match made {
            Ok(process) => {
                state.spec = spec;
                state.in_a_row = 0;
                Remote::put_up(this, &mut state, process);
                Ok(this.described())
            }
            Err(error) => {
                drop(state);
                this.common.rename(&old.plugin);
                let again = Remote::make(this, &old);
                state = lock(&this.state);
                match again {
                    Ok(process) => Remote::put_up(this, &mut state, process),
                    Err(e) => {
                        state.phase = Phase::Down;
                        let (this, end) = (this.clone(), format!("could not be started again: {}", e.text()));
                        std::thread::spawn(move || Remote::start_again(&this, end));
                    }
                }
                Err(error)
            }
        };
        this.changed.notify_all();
        answer
    }
}

impl MakeError {
    /// In one line.
    pub fn text(&self) -> String {
        match self {
            MakeError::Open(
                OpenError::Loader(t) | OpenError::NoModule(t) | OpenError::Layout(t) | OpenError::Table(t),
            )
            | MakeError::Config(t)
            | MakeError::Process(t) => t.clone(),
            MakeError::Rights(t) => format!("its rights could not be given up: {t}"),
            MakeError::Unreadable { account, path, why } => {
                format!("the account {} may not read {}: {why}", account.name, path.display())
            }
            MakeError::Create(e) | MakeError::Describe(e) => e.text.clone(),
        }
    }
}

fn batch_answers(body: &[u8], jobs: usize) -> Result<BatchAnswers, wire::Garbled> {
    let mut r = Reader::new(body);
    let whole = match r.u16()? {
        0 => None,
        _ => Some(wire::error(&mut r)?),
    };
    let surplus = r.u64()? as usize;
    let answers = (0..jobs).map(|_| wire::answer(&mut r)).collect::<Result<_, _>>()?;
    Ok(BatchAnswers { answers, whole, surplus })
}

fn garbled(_: wire::Garbled) -> Error {
    Error::new(ErrorCode::Contract, "the plugin's process sent something that can't be read").at(Stage::Run)
}
