//! A plugin in a separate process: what happens to that process costs the call that is its cause and nothing else.
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
//! The child dies with this process; its output goes to the log line by line. A call that was alone in the process when
//! it died is answered with an error that names the signal. When several were in it, each of them is lost, and its slot
//! runs it again alone. A call that should return soon and does not costs the process as well.
//!
//! Nothing of the child is believed: each frame has a budget, and one that can't be read ends the process, since the next
//! one could be taken for the answer to another job.

pub mod child;
pub mod frames;
mod launch;
mod process;
mod python_child;
mod spec;
mod standby;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use coda_plugin_abi::{Amplitude, Error, ErrorCode};
use parking_lot::{Condvar, Mutex};

use super::control::{ControlCallGuard, ControlCalls};
use super::ffi::{BatchAnswers, CallAnswer, CallEvolve, CallJob, Common, DeviceReply, JobContext};
use super::job::LostCall;
use super::python::spec::PythonFacts;
use crate::backoff::BackoffRange;
use frames::{CircuitForm, ControlOrder, SlotAnswer, SlotRequest};
use process::{CallFailure, Death, Expected, Process, RunningJobs, unreadable};

pub use process::Kill;
pub use spec::{LibrarySpec, MakeError, WorkerSpec};
pub use standby::{Standby, inspect};

/// How long the news of a process's end may take to reach its keeper after a call has noticed it.
const KEEPER_LIMIT: Duration = Duration::from_secs(5);

/// When a process that died is started again.
#[derive(Debug, Clone, Copy)]
pub struct Restart {
    /// The pause before the second start in a row, doubled for each further one; the first start is at once.
    pub backoff: Duration,
    /// The longest pause.
    pub backoff_max: Duration,
}

/// How long calls may take that should return soon. A process that takes longer is killed.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    /// For loading the library and for `create`.
    pub start: Duration,
    /// For `cancel`, `shutdown` and `destroy`.
    pub control: Duration,
}

/// Told whether calls can be made, whenever that changes. Must not block.
pub type OnAvailable = dyn Fn(bool) + Send + Sync;

/// What `/ready` shows of a plugin's process that dies.
#[derive(Debug, Clone)]
pub struct Trouble {
    /// Deaths since the plugin last answered anything.
    pub in_a_row: u32,
    pub last: String,
}

/// The plugin's process, started again whenever it dies.
pub struct Remote {
    state: Mutex<State>,
    changed: Condvar,
    common: Arc<Common>,
    restart: Restart,
    limits: CallLimits,
    control_calls: ControlCalls,
    on_available: Box<OnAvailable>,
    /// Jobs in a call, for their progress.
    running: Mutex<HashMap<String, Arc<JobContext>>>,
    device_reply: Mutex<DeviceReply>,
    facts: Mutex<Option<PythonFacts>>,
    /// Whether the present process has answered a call.
    answered: AtomicBool,
}

struct State {
    spec: WorkerSpec,
    phase: Phase,
    in_a_row: u32,
    last: String,
}

#[derive(Clone)]
enum Phase {
    Up(Arc<Process>),
    /// Died; to be started again.
    Down,
    /// Being replaced: only the swap starts processes.
    Swapping,
    Stopped,
}

impl Remote {
    /// Starts the process and makes the executor.
    ///
    /// # Errors
    /// When the process can't be started, or can't create the executor; no process is left then.
    pub fn start(
        spec: WorkerSpec,
        common: Arc<Common>,
        restart: Restart,
        limits: CallLimits,
        control_calls: ControlCalls,
        on_available: Box<OnAvailable>,
    ) -> Result<Arc<Remote>, MakeError> {
        let remote = Arc::new(Remote {
            state: Mutex::new(State {
                spec: spec.clone(),
                phase: Phase::Down,
                in_a_row: 0,
                last: String::new(),
            }),
            changed: Condvar::new(),
            common,
            restart,
            limits,
            control_calls,
            on_available,
            running: Mutex::default(),
            device_reply: Mutex::new(DeviceReply::empty()),
            facts: Mutex::default(),
            answered: AtomicBool::new(false),
        });
        let process = Remote::make(&remote, &spec)?;
        let mut state = remote.state.lock();
        Remote::put_up(&remote, &mut state, process);
        drop(state);
        Ok(remote)
    }

    /// Starts a process that opens the library and checks the config. Its executor is made by [`Remote::create`].
    ///
    /// # Errors
    /// When the process can't be started, or the library or config can't be used; no process is left then.
    pub fn prepare(this: &Arc<Remote>, spec: &WorkerSpec) -> Result<Standby, MakeError> {
        let jobs = Arc::new(JobsOf(Arc::downgrade(this)));
        let (process, ended) =
            Process::start(spec, this.common.clone(), jobs).map_err(|e| MakeError::Process(e.to_string()))?;
        let mut standby =
            Standby { process: Some(process.clone()), ended: Some(ended), spec: spec.clone(), facts: None };
        let checked = {
            let _noted = this.note_call("loading", Some(this.limits.start));
            process.check(spec, this.limits.start)
        };
        match checked {
            Ok(checked) => {
                this.common.hide(&checked.secrets);
                standby.facts = checked.facts;
            }
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
        let created = {
            let _noted = this.note_call("create", Some(this.limits.start));
            let name = standby.facts.as_ref().map(PythonFacts::name).unwrap_or_default();
            process.create(&standby.spec, &name, this.limits.start)
        };
        let device = match created {
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
        *this.device_reply.lock() = device;
        *this.facts.lock() = standby.facts.take();
        standby.process = None;
        Ok(process)
    }

    /// Starts a process with an executor in it and a keeper that watches over it.
    fn make(this: &Arc<Remote>, spec: &WorkerSpec) -> Result<Arc<Process>, MakeError> {
        Remote::create(this, Remote::prepare(this, spec)?)
    }

    /// The keeper's work once its process has ended: start another, unless the process was replaced or destroyed.
    fn ended(this: &Arc<Remote>, process: &Arc<Process>, end: &str) {
        let mut state = this.state.lock();
        let ours = matches!(&state.phase, Phase::Up(up) if Arc::ptr_eq(up, process));
        if !ours {
            return;
        }
        this.set_phase(&mut state, Phase::Down);
        drop(state);
        Remote::start_again(this, end.to_string());
    }

    /// Lets calls go to this process; one that has died already, unseen by its keeper, is replaced.
    fn put_up(this: &Arc<Remote>, state: &mut State, process: Arc<Process>) {
        match process.end() {
            None => drop(this.set_phase(state, Phase::Up(process))),
            Some(end) => {
                this.set_phase(state, Phase::Down);
                Remote::start_again_in_background(this, state, end);
            }
        }
    }

    /// Enters a phase and tells everyone who waits for it; returns the phase before. The caller holds the state's lock, so
    /// that the news come in the order of the phases.
    fn set_phase(&self, state: &mut State, phase: Phase) -> Phase {
        (self.on_available)(matches!(phase, Phase::Up(_)));
        let before = std::mem::replace(&mut state.phase, phase);
        self.changed.notify_all();
        before
    }

    /// Makes a call known to those who look for calls that do not return, until the value is dropped.
    fn note_call(&self, call: &str, killed_after: Option<Duration>) -> ControlCallGuard {
        self.control_calls.begin(call.into(), self.common.plugin(), killed_after)
    }

    /// Starts a process in the place of one that is down, again and again if need be, later and later.
    fn start_again(this: &Arc<Remote>, mut end: String) {
        let mut state = this.state.lock();
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
                this.changed.wait_for(&mut state, left);
            }
            if !matches!(state.phase, Phase::Down) {
                return;
            }
            let spec = state.spec.clone();
            drop(state);
            let made = Remote::make(this, &spec);
            state = this.state.lock();
            match made {
                Ok(process) if matches!(state.phase, Phase::Down) => match process.end() {
                    None => return drop(this.set_phase(&mut state, Phase::Up(process))),
                    Some(how) => end = how,
                },
                Ok(process) => return process.kill(Kill::NotNeeded("it is not needed any more")),
                Err(error) => end = format!("could not be started again: {}", error.text()),
            }
        }
    }

    /// Starts a process in the place of one that is down, while the caller goes on. The caller holds the state's lock.
    ///
    /// No one joins the thread. It ends by itself as soon as the phase is another one than `Down`: when the process is
    /// up, and at the latest when `destroy` sets `Stopped`.
    fn start_again_in_background(this: &Arc<Remote>, state: &mut State, end: String) {
        let remote = this.clone();
        let thread = std::thread::Builder::new().name("exec-restart".into());
        if let Err(error) = thread.spawn(move || Remote::start_again(&remote, end)) {
            // It stays down, and `/ready` tells: calls wait for a stop or a reload.
            state.last = format!("could not be started again: {error}");
            tracing::error!(%error, "no thread could be started to start the plugin's process again; restart coda-host");
        }
    }

    /// What the executor said of its device when it was made.
    pub fn device_reply(&self) -> DeviceReply {
        self.device_reply.lock().clone()
    }

    /// What a Python executor's process said of itself when it was made.
    pub fn facts(&self) -> Option<PythonFacts> {
        self.facts.lock().clone()
    }

    /// How much longer than a library's its process may take to end once the executor is destroyed.
    pub fn end_allowance(&self) -> Duration {
        match &self.state.lock().phase {
            Phase::Up(process) => process.end_limit().saturating_sub(process::END_LIMIT),
            _ => Duration::ZERO,
        }
    }

    /// The process that takes calls.
    fn up(&self) -> Result<Arc<Process>, LostCall> {
        match &self.state.lock().phase {
            Phase::Up(process) => Ok(process.clone()),
            Phase::Stopped => Err(LostCall::Stopped),
            Phase::Down | Phase::Swapping => Err(LostCall::NotEntered),
        }
    }

    /// A process that dies again and again, or is away now.
    pub fn trouble(&self) -> Option<Trouble> {
        let state = self.state.lock();
        let down = matches!(state.phase, Phase::Down);
        // One death is over as soon as the next process is there.
        (down || (state.in_a_row > 1 && !self.answered.load(Ordering::Acquire)))
            .then(|| Trouble { in_a_row: state.in_a_row.max(1), last: state.last.clone() })
    }

    /// One call in a slot: a request there, an answer back. The inner error is the answer to this very call.
    fn call(
        &self,
        slot: usize,
        contexts: &[(&str, &Arc<JobContext>)],
        request: &SlotRequest<'_>,
        expected: Expected,
    ) -> Result<Result<SlotAnswer, Error>, LostCall> {
        let process = self.up()?;
        let Ok(message) = request.encode(process.form()) else {
            return Ok(Err(Error::new(ErrorCode::Resources, "the job is larger than 2 GiB")));
        };
        let entered = contexts.iter().map(|(id, context)| ((*id).to_string(), (*context).clone()));
        self.running.lock().extend(entered);
        let answer = process.call(slot, &message, expected);
        let mut running = self.running.lock();
        contexts.iter().for_each(|(id, _)| drop(running.remove(*id)));
        drop(running);
        let job_id = contexts.first().map_or("", |(id, _)| *id);
        let answer = match answer {
            // Not counted as an answer: an executor that ends its process in each run is in a crash loop.
            Ok(SlotAnswer::Final(batch)) => {
                let why = batch.answers.iter().flatten().find_map(|answer| answer.as_ref().err());
                let why = why.map_or_else(|| "the executor ended it".into(), |error| error.text.clone());
                process.kill(Kill::ByExecutor { why });
                Ok(Ok(SlotAnswer::Jobs(batch)))
            }
            Ok(answer) => {
                self.answered.store(true, Ordering::Release);
                return Ok(Ok(answer));
            }
            Err(CallFailure::NotEntered) => Err(LostCall::NotEntered),
            Err(CallFailure::Died(death)) => self.judge_death(death, contexts),
            Err(CallFailure::Unreadable(why)) => {
                // What comes next on this socket could be taken for the answer to another job.
                process.kill(Kill::Unreadable { job_id: job_id.into() });
                Ok(Err(unreadable(&why)))
            }
        };
        // The next call must find it down.
        self.wait_for_keeper(&process);
        answer
    }

    /// Whether a call is the cause of the process's end.
    fn judge_death(
        &self,
        death: Death,
        contexts: &[(&str, &Arc<JobContext>)],
    ) -> Result<Result<SlotAnswer, Error>, LostCall> {
        let caused_by = |job_id: &String| contexts.iter().any(|(id, _)| id == job_id);
        match death.killed {
            Some(Kill::Stopping) => Err(LostCall::Stopped),
            Some(Kill::StuckRun { job_id, .. } | Kill::Unreadable { job_id })
                if caused_by(&job_id) && contexts.len() == 1 =>
            {
                Ok(Err(death.error))
            }
            None if death.calls <= 1 && contexts.len() == 1 => Ok(Err(death.error)),
            _ => Err(LostCall::Suspect(death.error)),
        }
    }

    /// Waits until the keeper of a process that broke off knows of its end, but not for ever.
    fn wait_for_keeper(&self, process: &Arc<Process>) {
        let is_up = |state: &mut State| matches!(&state.phase, Phase::Up(up) if Arc::ptr_eq(up, process));
        self.changed.wait_while_for(&mut self.state.lock(), is_up, KEEPER_LIMIT);
    }

    /// Runs one job.
    ///
    /// # Errors
    /// When the call came to nothing without a fault of the job's own.
    pub fn run(&self, slot: usize, job: &CallJob<'_>) -> Result<CallAnswer, LostCall> {
        let contexts = [(job.job_id, job.context)];
        let expected = Expected { jobs: 1, bytes: answer_budget(std::slice::from_ref(job)) };
        let mut batch = jobs_answer(self.call(slot, &contexts, &SlotRequest::Run(job), expected)?, 1);
        Ok(batch.answers.pop().flatten().or(batch.whole.map(Err)))
    }

    /// Runs several jobs in one call.
    ///
    /// # Errors
    /// When the call came to nothing: any of the jobs may be the cause.
    pub fn batch_run(&self, slot: usize, jobs: &[CallJob<'_>]) -> Result<BatchAnswers, LostCall> {
        let contexts: Vec<_> = jobs.iter().map(|job| (job.job_id, job.context)).collect();
        let expected = Expected { jobs: jobs.len(), bytes: answer_budget(jobs) };
        let answer = self.call(slot, &contexts, &SlotRequest::Batch(jobs), expected)?;
        Ok(jobs_answer(answer, jobs.len()))
    }

    /// Has the plugin evolve a state. The inner error is the plugin's.
    ///
    /// # Errors
    /// When the call came to nothing without a fault of the job's own.
    pub fn evolve_state(
        &self,
        slot: usize,
        call: &CallEvolve<'_>,
    ) -> Result<Result<Vec<Amplitude>, Error>, LostCall> {
        let contexts = [(call.job_id, call.context)];
        let expected = Expected { jobs: 0, bytes: frames::state_budget(call.amplitudes.len()) };
        Ok(match self.call(slot, &contexts, &SlotRequest::Evolve(call), expected)? {
            Ok(SlotAnswer::Evolved(answer)) => answer,
            Ok(_) => Err(unreadable("an answer to another request")),
            Err(error) => Err(error),
        })
    }

    /// The device as the plugin describes it now; `None` while no process takes calls.
    pub fn describe(&self) -> Option<Result<DeviceReply, Error>> {
        let process = match &self.state.lock().phase {
            Phase::Up(process) => process.clone(),
            _ => return None,
        };
        // A Python executor is asked once, as by the Python node.
        if process.form() == CircuitForm::Json {
            return Some(Ok(self.device_reply()));
        }
        Some(process.describe(self.limits.control))
    }

    /// Tells the plugin that a job was cancelled: its flag, and the hook.
    pub fn cancel(&self, job_id: &str) -> Option<Error> {
        let process = match &self.state.lock().phase {
            Phase::Up(process) => process.clone(),
            // The job has gone with its process.
            _ => return None,
        };
        let order = ControlOrder::Cancel(job_id.into());
        match process.form() {
            CircuitForm::Binary => process.control(&order, self.limits.control).unwrap_or_else(Some),
            CircuitForm::Json => process.tell(&order).err(),
        }
    }

    /// Brings the device to rest.
    pub fn shutdown(&self) -> Option<Error> {
        let process = match &self.state.lock().phase {
            Phase::Up(process) => process.clone(),
            _ => return None,
        };
        self.shut_down(&process)
    }

    fn shut_down(&self, process: &Arc<Process>) -> Option<Error> {
        let _noted = self.note_call("shutdown", Some(self.limits.control));
        process.control(&ControlOrder::Shutdown, self.limits.control).unwrap_or_else(Some)
    }

    fn destroy_in(&self, process: &Arc<Process>) -> Option<Error> {
        let _noted = self.note_call("destroy", Some(self.limits.control));
        process.destroy(self.limits.control)
    }

    /// Frees the executor and ends the process, which is not started again.
    pub fn destroy(&self) -> Option<Error> {
        let before = self.set_phase(&mut self.state.lock(), Phase::Stopped);
        match before {
            Phase::Up(process) => self.destroy_in(&process),
            _ => None,
        }
    }

    /// Kills the process in its tracks.
    pub fn kill(&self, why: Kill) {
        if let Phase::Up(process) = &self.state.lock().phase {
            process.kill(why);
        }
    }

    /// Replaces the executor by one in the prepared process. Call it while no call is in the plugin. When the new one
    /// can't be created, or `accept` doesn't want its device, the old one is made again.
    ///
    /// # Errors
    /// When the new executor can't be created or is not accepted. Whether the old one could be created again is in the
    /// log.
    pub fn swap<E>(
        this: &Arc<Remote>,
        standby: Standby,
        accept: &dyn Fn(&DeviceReply) -> Result<(), E>,
        failed: &dyn Fn(MakeError) -> E,
    ) -> Result<DeviceReply, E> {
        let (old, before) = {
            let mut state = this.state.lock();
            (state.spec.clone(), this.set_phase(&mut state, Phase::Swapping))
        };
        let plugin = this.common.plugin();
        if let Phase::Up(process) = before {
            // Most control stacks allow one session: the old one ends before the new one begins.
            for error in [this.shut_down(&process), this.destroy_in(&process)].into_iter().flatten() {
                tracing::warn!(plugin = &*plugin, error = error.text, "the former executor's end failed");
            }
        }
        let former = plugin.to_string();
        tracing::debug!(plugin = &*plugin, "the former executor has ended");
        let spec = standby.spec.clone();
        this.common.rename(&standby.plugin());
        let made = Remote::create(this, standby).map_err(failed).and_then(|process| {
            accept(&this.device_reply()).map(|()| process.clone()).inspect_err(|_| {
                // Why it is ended is told; how it ends adds nothing to that.
                this.shut_down(&process);
                this.destroy_in(&process);
            })
        });
        let mut state = this.state.lock();
        match made {
            Ok(process) => {
                state.spec = spec;
                state.in_a_row = 0;
                Remote::put_up(this, &mut state, process);
                Ok(this.device_reply())
            }
            Err(error) => {
                drop(state);
                this.common.rename(&former);
                let again = Remote::make(this, &old);
                state = this.state.lock();
                match again {
                    Ok(process) => Remote::put_up(this, &mut state, process),
                    Err(e) => {
                        this.set_phase(&mut state, Phase::Down);
                        let end = format!("could not be started again: {}", e.text());
                        Remote::start_again_in_background(this, &mut state, end);
                    }
                }
                Err(error)
            }
        }
    }
}

/// The jobs of a remote, for its processes, which must not keep it.
struct JobsOf(Weak<Remote>);

impl RunningJobs for JobsOf {
    fn progress(&self, job_id: &str, done: u64, total: u64) {
        if let Some(remote) = self.0.upgrade()
            && let Some(context) = remote.running.lock().get(job_id)
        {
            context.set_progress(done, total);
        }
    }

    fn only_job(&self) -> Option<String> {
        let remote = self.0.upgrade()?;
        let running = remote.running.lock();
        let mut ids = running.keys();
        ids.next().filter(|_| running.len() == 1).cloned()
    }
}

/// The longest answer to these jobs.
fn answer_budget(jobs: &[CallJob<'_>]) -> usize {
    let budget = |job: &CallJob<'_>| frames::run_budget(job.shots, job.program.measurements().len());
    jobs.iter().fold(0_usize, |sum, job| sum.saturating_add(budget(job))).min(frames::MAX_ANSWER)
}

/// The answers to a run or batch of so many jobs.
fn jobs_answer(answer: Result<SlotAnswer, Error>, jobs: usize) -> BatchAnswers {
    let error = match answer {
        Ok(SlotAnswer::Jobs(batch)) if batch.answers.len() == jobs => return batch,
        Ok(_) => unreadable("an answer to another request"),
        Err(error) => error,
    };
    BatchAnswers { answers: (0..jobs).map(|_| None).collect(), whole: Some(error), surplus: 0 }
}
