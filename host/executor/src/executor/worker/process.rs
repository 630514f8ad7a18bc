//! One process of a plugin: its sockets, its output, its end.
//!
//! Every wait on a socket ends when the process does: the thread that waits for its end shuts the sockets down.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use coda_plugin_abi::{Error, ErrorCode, Stage};
use parking_lot::{Condvar, Mutex, RwLock};

use super::super::active::MAX_SLOTS;
use super::super::ffi::{Common, DeviceReply};
use super::super::python::{self, device};
use super::super::wire::Garbled;
use super::frames::{
    CircuitForm, ControlAnswer, ControlOrder, Frame, SMALL_FRAME, STEP_FRAME, SlotAnswer, SlotRequest,
    TooLong, WorkerEvent,
};
use super::launch;
use super::spec::{CheckedExecutor, MakeError, StepOutcome, WorkerSpec};
use crate::sys;

/// Longest line of output that is logged in one piece.
const MAX_LINE: u64 = 8 << 10;
/// How long a process may take to end once its executor is destroyed.
pub const END_LIMIT: Duration = Duration::from_secs(2);
/// The same for an interpreter, which first runs what libraries of instruments have registered for its end.
const PYTHON_END_LIMIT: Duration = Duration::from_secs(10);
/// How long the news of a death may take after the sockets have told of it.
const NEWS_LIMIT: Duration = Duration::from_secs(5);

/// What a process tells of its jobs while they run, and is told of them.
pub trait RunningJobs: Send + Sync {
    /// How far a job's run is: the work done, and the total.
    fn progress(&self, job_id: &str, done: u64, total: u64);
    /// The one job that is in the process; `None` when there is none, or more than one.
    fn only_job(&self) -> Option<String>;
}

/// A process of a plugin.
pub struct Process {
    /// `None` when the process was gone before it could be opened.
    handle: Option<sys::ProcessHandle>,
    control: Socket,
    events: Arc<UnixStream>,
    /// Slot 0 from the beginning, the others once the device is known.
    slots: RwLock<Vec<Arc<Socket>>>,
    end: Mutex<End>,
    ended: Condvar,
    form: CircuitForm,
}

/// A socket on which one exchange goes on at a time.
struct Socket {
    stream: UnixStream,
    turn: Mutex<()>,
}

impl Socket {
    fn new(stream: UnixStream) -> Socket {
        Socket { stream, turn: Mutex::new(()) }
    }

    /// Writes a request and reads the answer to it, of so many bytes at most.
    fn exchange(&self, message: &[u8], limit: usize) -> io::Result<Frame> {
        let _turn = self.turn.lock();
        (&self.stream).write_all(message)?;
        Frame::read(&mut &self.stream, limit)
    }
}

#[derive(Default)]
struct End {
    /// How it ended, once it has.
    how: Option<String>,
    /// Why it was killed, when the host did it.
    killed: Option<Kill>,
    /// Calls in it now.
    calls: usize,
    /// Calls that were in it when it ended.
    calls_at_end: usize,
}

/// Why the host kills a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kill {
    /// The run of this job does not end. The other jobs in the process are not the cause.
    StuckRun { job_id: String, grace: Duration },
    /// A call that should return soon does not.
    NoReturn { call: &'static str, limit: Duration },
    /// It broke the form of the messages in its answer to this job.
    Unreadable { job_id: String },
    /// The executor ended it, and said so in its last answer.
    ByExecutor { why: String },
    /// The host is stopping.
    Stopping,
    /// It is not needed.
    NotNeeded(&'static str),
}

impl fmt::Display for Kill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kill::StuckRun { job_id, grace } => {
                write!(f, "the run of job {job_id} went on for more than {grace:?} after it was asked to end")
            }
            Kill::NoReturn { call, limit } => write!(f, "its {call} did not return within {limit:?}"),
            Kill::Unreadable { job_id } => {
                write!(f, "it sent something that can't be read in answer to job {job_id}")
            }
            Kill::ByExecutor { why } => f.write_str(why),
            Kill::Stopping => f.write_str("it did not shut down in time"),
            Kill::NotNeeded(why) => f.write_str(why),
        }
    }
}

/// What the answer to a request may be.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// So many jobs are answered.
    pub jobs: usize,
    /// It has at most so many bytes.
    pub bytes: usize,
}

/// What became of a call without an answer.
pub enum CallFailure {
    /// The process had ended before.
    NotEntered,
    /// The process ended during the call.
    Died(Death),
    /// What came is not an answer; why.
    Unreadable(String),
}

/// The end of a process with calls in it.
pub struct Death {
    /// For the job whose fault it is.
    pub error: Error,
    /// How many calls were in the process.
    pub calls: usize,
    /// Why it was killed, when the host did it.
    pub killed: Option<Kill>,
}

/// A call is in the process until this is dropped.
struct InsideGuard<'a>(&'a Process);

impl Drop for InsideGuard<'_> {
    fn drop(&mut self) {
        self.0.end.lock().calls -= 1;
    }
}

impl Process {
    /// Starts a process with nothing in it yet. How it ended comes on the channel.
    pub fn start(
        spec: &WorkerSpec,
        common: Arc<Common>,
        jobs: Arc<dyn RunningJobs>,
    ) -> io::Result<(Arc<Process>, Receiver<String>)> {
        let pair = || UnixStream::pair().map_err(too_many_files);
        let ((control, control_end), (events, events_end), (slot_0, slot_0_end)) =
            (pair()?, pair()?, pair()?);
        let theirs: Vec<OwnedFd> = vec![control_end.into(), events_end.into(), slot_0_end.into()];
        let mut child = launch::spawn(spec, theirs).map_err(too_many_files)?;
        let handle = sys::ProcessHandle::open(child.id()).ok().flatten();
        let events = Arc::new(events);
        for (stream, level, name) in [
            (child.stdout.take().map(|s| Box::new(s) as Box<dyn io::Read + Send>), 3, "stdout"),
            (child.stderr.take().map(|s| Box::new(s) as Box<dyn io::Read + Send>), 2, "stderr"),
        ] {
            let Some(stream) = stream else { continue };
            let (common, jobs) = (common.clone(), jobs.clone());
            thread(format!("exec-{name}"), move || pump(stream, &common, &*jobs, level, name))?;
        }
        let heard = events.clone();
        thread("exec-events".into(), move || listen(&heard, &common, &*jobs))?;
        let process = Arc::new(Process {
            handle,
            control: Socket::new(control),
            events,
            slots: RwLock::new(vec![Arc::new(Socket::new(slot_0))]),
            end: Mutex::default(),
            ended: Condvar::new(),
            form: match spec {
                WorkerSpec::Library(_) => CircuitForm::Binary,
                WorkerSpec::Python(_) => CircuitForm::Json,
            },
        });
        let (tell, ended) = channel();
        let watched = process.clone();
        thread("exec-wait".into(), move || {
            let how = watched.wait(child);
            // A process that was only tried has no keeper.
            tell.send(how).ok();
        })?;
        Ok((process, ended))
    }

    /// Waits for its end, then wakes everyone who waits for it.
    fn wait(&self, mut child: Child) -> String {
        let status = sys::wait_with_group(&mut child);
        let mut end = self.end.lock();
        let how = match (&end.killed, status) {
            (Some(why), _) => format!("was killed: {why}"),
            (None, Ok(status)) => describe_exit(status),
            (None, Err(e)) => format!("ended in an unknown way: {e}"),
        };
        end.how = Some(how.clone());
        end.calls_at_end = end.calls;
        drop(end);
        self.ended.notify_all();
        let slots = self.slots.read();
        let sockets = slots.iter().map(|slot| &slot.stream).chain([&self.control.stream, &*self.events]);
        for socket in sockets {
            // It may be closed already.
            socket.shutdown(std::net::Shutdown::Both).ok();
        }
        how
    }

    /// Has the library opened and the config checked, or the interpreter checked; returns what it tells.
    ///
    /// # Errors
    /// When the library, the config or the interpreter can't be used, or the process ends.
    pub fn check(self: &Arc<Self>, spec: &WorkerSpec, limit: Duration) -> Result<CheckedExecutor, MakeError> {
        let too_long = |_: TooLong| MakeError::Process("the device config is too long".into());
        let mut message = Vec::new();
        if let WorkerSpec::Python(_) = spec {
            message.extend(SlotRequest::Source(python::BRIDGE).encode(self.form).map_err(too_long)?);
        }
        message.extend(SlotRequest::Check(spec).encode(self.form).map_err(too_long)?);
        let checked = self.within(limit, "loading", || self.step(spec, &message));
        match (checked.map_err(|error| of_interpreter(error, spec))?, spec) {
            (StepOutcome::Checked(secrets), WorkerSpec::Library(_)) => {
                Ok(CheckedExecutor { secrets, facts: None })
            }
            (StepOutcome::PythonChecked(facts), WorkerSpec::Python(spec)) => {
                Ok(CheckedExecutor { secrets: spec.secrets.clone(), facts: Some(*facts) })
            }
            (other, _) => {
                Err(MakeError::Process(format!("it was to check its executor, and answered {other:?}")))
            }
        }
    }

    /// Has the executor created, after the check. A Python executor's device gets this name.
    ///
    /// # Errors
    /// When the plugin can't create or describe it, or the process ends.
    pub fn create(
        self: &Arc<Self>,
        spec: &WorkerSpec,
        name: &str,
        limit: Duration,
    ) -> Result<DeviceReply, MakeError> {
        let too_long = |e: TooLong| MakeError::Process(e.to_string());
        let message = SlotRequest::Create.encode(self.form).map_err(too_long)?;
        let device = match (self.within(limit, "create", || self.step(spec, &message))?, spec) {
            (StepOutcome::Created(device), WorkerSpec::Library(_)) => *device,
            (StepOutcome::PythonCreated(python), WorkerSpec::Python(spec)) => {
                let described = device::describe(name, &spec.basics, &python);
                described.map_err(|what| {
                    let text = format!("the executor describes an impossible device: {what}");
                    MakeError::Describe(Error::new(ErrorCode::Contract, text).at(Stage::Describe))
                })?
            }
            (other, _) => {
                let text = format!("it was to create its executor, and answered {other:?}");
                return Err(MakeError::Process(text));
            }
        };
        self.open_slots(device.slots as usize).map_err(|e| MakeError::Process(e.to_string()))?;
        Ok(device)
    }

    /// How long it may take to end once its executor is destroyed.
    pub fn end_limit(&self) -> Duration {
        match self.form {
            CircuitForm::Binary => END_LIMIT,
            CircuitForm::Json => PYTHON_END_LIMIT,
        }
    }

    /// How circuits are written for it.
    pub fn form(&self) -> CircuitForm {
        self.form
    }

    /// Opens the slots other than slot 0.
    fn open_slots(&self, count: usize) -> io::Result<()> {
        let mut theirs = Vec::new();
        for _ in 1..count.min(MAX_SLOTS) {
            let (here, there) = UnixStream::pair().map_err(too_many_files)?;
            self.slots.write().push(Arc::new(Socket::new(here)));
            theirs.push(OwnedFd::from(there));
        }
        sys::send_descriptors(&self.control.stream, &theirs)
    }

    fn step(&self, spec: &WorkerSpec, message: &[u8]) -> Result<StepOutcome, MakeError> {
        let answer =
            self.call(0, message, Expected { jobs: 0, bytes: STEP_FRAME }).map_err(
                |failure| match failure {
                    CallFailure::Died(Death { killed: Some(Kill::NoReturn { call, limit }), .. }) => {
                        MakeError::NoReturn { call, limit }
                    }
                    CallFailure::Died(death) => MakeError::Process(death.error.text),
                    CallFailure::NotEntered => MakeError::Process(self.death(Stage::Create).text),
                    CallFailure::Unreadable(why) => MakeError::Process(unreadable(&why).text),
                },
            )?;
        let SlotAnswer::Step(outcome) = answer else {
            return Err(MakeError::Process(unreadable("an answer to another request").text));
        };
        match outcome {
            StepOutcome::Rights(text) => Err(MakeError::Rights(text)),
            StepOutcome::PythonRefused { what, hint } => Err(MakeError::Python { what, hint }),
            StepOutcome::Unreadable { path, why } => match spec.account().cloned().map(Box::new) {
                Some(account) => Err(MakeError::Unreadable { account, path, why }),
                None => Err(MakeError::Process(format!("{} can't be read: {why}", path.display()))),
            },
            StepOutcome::Open(e) => Err(MakeError::Open(e)),
            StepOutcome::Config(text) => Err(MakeError::Config(text)),
            StepOutcome::Create(e) => Err(MakeError::Create(e)),
            StepOutcome::Describe(e) => Err(MakeError::Describe(e)),
            done @ (StepOutcome::Checked(_)
            | StepOutcome::Created(_)
            | StepOutcome::PythonChecked(_)
            | StepOutcome::PythonCreated(_)) => Ok(done),
        }
    }

    /// Sends a request to a slot and waits for the answer.
    ///
    /// # Errors
    /// When the process has ended or ends meanwhile; when its answer can't be read.
    pub fn call(&self, slot: usize, message: &[u8], expected: Expected) -> Result<SlotAnswer, CallFailure> {
        let Some(socket) = self.slots.read().get(slot).cloned() else { return Err(CallFailure::NotEntered) };
        let inside = {
            let mut end = self.end.lock();
            if end.how.is_some() || end.killed.is_some() {
                return Err(CallFailure::NotEntered);
            }
            end.calls += 1;
            InsideGuard(self)
        };
        let frame = socket.exchange(message, expected.bytes);
        let answer = match frame {
            Ok(frame) => SlotAnswer::decode(&frame, expected.jobs)
                .map_err(|garbled| CallFailure::Unreadable(garbled.to_string())),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(CallFailure::Unreadable(error.to_string()))
            }
            Err(_) => {
                let error = self.death(Stage::Run);
                let end = self.end.lock();
                Err(CallFailure::Died(Death { error, calls: end.calls_at_end, killed: end.killed.clone() }))
            }
        };
        drop(inside);
        answer
    }

    /// One control call: the inner error is the plugin's. A process that takes longer than the limit is killed.
    ///
    /// # Errors
    /// When the process ends meanwhile, with how it ended; when its answer can't be read.
    pub fn control(self: &Arc<Self>, order: &ControlOrder, limit: Duration) -> Result<Option<Error>, Error> {
        match self.exchange_control(order, limit, SMALL_FRAME)? {
            ControlAnswer::Done(error) => Ok(error),
            ControlAnswer::Device(_) => Err(unreadable("an answer to another request")),
        }
    }

    /// Tells a Python executor's process of an order that it does not answer: it may be in code that lets no other thread run,
    /// and has the grace of its run to come back from it.
    ///
    /// # Errors
    /// When the process ends meanwhile, with how it ended.
    pub fn tell(&self, order: &ControlOrder) -> Result<(), Error> {
        let message = order.encode().map_err(|e| Error::new(ErrorCode::Resources, e.to_string()))?;
        let _turn = self.control.turn.lock();
        (&self.control.stream).write_all(&message).map_err(|_| self.death(Stage::Cancel))
    }

    /// The device as the plugin describes it now. A process that takes longer than the limit is killed.
    ///
    /// # Errors
    /// When the plugin fails, its process ends meanwhile, or its answer can't be read.
    pub fn describe(self: &Arc<Self>, limit: Duration) -> Result<DeviceReply, Error> {
        match self.exchange_control(&ControlOrder::Describe, limit, STEP_FRAME)? {
            ControlAnswer::Device(reply) => *reply,
            ControlAnswer::Done(_) => Err(unreadable("an answer to another request")),
        }
    }

    fn exchange_control(
        self: &Arc<Self>,
        order: &ControlOrder,
        limit: Duration,
        max_bytes: usize,
    ) -> Result<ControlAnswer, Error> {
        let message = order.encode().map_err(|e| Error::new(ErrorCode::Resources, e.to_string()))?;
        let (call, stage) = match order {
            ControlOrder::Cancel(_) => ("cancel", Stage::Cancel),
            ControlOrder::Describe => ("device", Stage::Describe),
            ControlOrder::Shutdown => ("shutdown", Stage::Shutdown),
        };
        let frame = self.within(limit, call, || self.control.exchange(&message, max_bytes));
        let frame = frame.map_err(|error| match error.kind() {
            // The process lives, but does not keep to the form: what comes next would be taken for another answer.
            io::ErrorKind::InvalidData => {
                self.kill(Kill::NotNeeded("it sent a control answer that can't be read"));
                unreadable(&error.to_string())
            }
            _ => self.death(stage),
        })?;
        ControlAnswer::decode(&frame).map_err(|garbled| unreadable(&garbled.to_string()))
    }

    /// Destroys the executor; the process ends by itself, or is ended.
    pub fn destroy(self: &Arc<Self>, limit: Duration) -> Option<Error> {
        let asked = match SlotRequest::Destroy.encode(self.form) {
            Ok(message) => {
                let expected = Expected { jobs: 0, bytes: SMALL_FRAME };
                self.within(limit, "destroy", || self.call(0, &message, expected))
            }
            Err(error) => return Some(Error::new(ErrorCode::Resources, error.to_string())),
        };
        let error = match asked {
            Ok(SlotAnswer::Destroyed(error)) => error,
            Ok(_) => Some(unreadable("an answer to another request")),
            Err(CallFailure::Unreadable(why)) => Some(unreadable(&why)),
            Err(CallFailure::Died(death)) => Some(death.error),
            Err(CallFailure::NotEntered) => Some(self.death(Stage::Shutdown)),
        };
        if !self.wait_ended(self.end_limit()) {
            self.kill(Kill::NotNeeded("it did not end after destroy"));
        }
        error
    }

    /// Kills the process when `body`, which waits for it, takes longer than the limit.
    fn within<T>(self: &Arc<Self>, limit: Duration, call: &'static str, body: impl FnOnce() -> T) -> T {
        let (returned, waiting) = channel::<()>();
        let process = self.clone();
        let timer = thread("exec-limit".into(), move || {
            if waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                tracing::error!(call, ?limit, "a call of the plugin does not return: its process is killed");
                process.kill(Kill::NoReturn { call, limit });
            }
        });
        if let Err(error) = timer {
            tracing::warn!(call, %error, "no thread could be started to limit the time of this call");
        }
        let value = body();
        drop(returned);
        value
    }

    /// How it ended, once it has.
    pub fn end(&self) -> Option<String> {
        self.end.lock().how.clone()
    }

    fn wait_ended(&self, limit: Duration) -> bool {
        let mut end = self.end.lock();
        self.ended.wait_while_for(&mut end, |e| e.how.is_none(), limit);
        end.how.is_some()
    }

    /// Ends it at once.
    pub fn kill(&self, why: Kill) {
        let mut end = self.end.lock();
        if end.how.is_some() {
            return;
        }
        end.killed.get_or_insert(why);
        drop(end);
        if let Some(Err(error)) = self.handle.as_ref().map(|p| p.signal(libc::SIGKILL)) {
            tracing::error!(%error, "the plugin's process can't be killed");
        }
    }

    /// The error of a call that the process did not outlive.
    fn death(&self, stage: Stage) -> Error {
        self.wait_ended(NEWS_LIMIT);
        let end = self.end.lock();
        let how = end.how.clone().unwrap_or_else(|| "broke off the connection".into());
        let code = match end.killed {
            None => ErrorCode::Panic,
            Some(Kill::Unreadable { .. }) => ErrorCode::Contract,
            // For taking too long.
            Some(_) => ErrorCode::Timeout,
        };
        Error::new(code, format!("the plugin's process {how}")).at(stage)
    }
}

/// An error of opening something, with what to do when this process may not open more.
fn too_many_files(error: io::Error) -> io::Error {
    let full = error.raw_os_error().is_some_and(|code| code == libc::EMFILE || code == libc::ENFILE);
    if full {
        io::Error::other(format!("{error}; raise the limit on open files (ulimit -n, LimitNOFILE)"))
    } else {
        error
    }
}

/// The error of an answer that breaks the form.
pub fn unreadable(why: &str) -> Error {
    let text = format!("the plugin's process sent something that can't be read: {why}");
    Error::new(ErrorCode::Contract, text).at(Stage::Run)
}

fn describe_exit(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("died of {}", sys::signal_name(signal)),
        (None, Some(code)) => format!("ended by itself with status {code}"),
        (None, None) => "ended".into(),
    }
}

/// A process that ends before it has answered anything may never have been Python.
fn of_interpreter(error: MakeError, spec: &WorkerSpec) -> MakeError {
    match (error, spec) {
        (MakeError::Process(text), WorkerSpec::Python(spec)) => {
            let program = spec.interpreter.path.display();
            MakeError::Python {
                what: format!("{text}, before it told what it has; it was started as {program}"),
                hint: format!("check that it is Python: {program} --version; what it printed is in the log"),
            }
        }
        (other, _) => other,
    }
}

fn thread(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name).spawn(body).map(drop)
}

/// Logs what the plugin prints, as its only job's when it has one.
fn pump(stream: Box<dyn io::Read + Send>, common: &Common, jobs: &dyn RunningJobs, level: u32, name: &str) {
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match (&mut lines).take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                if !text.trim().is_empty() {
                    let job_id = jobs.only_job().unwrap_or_default();
                    common.log(level, &job_id, format!("{name}: {}", text.trim_end()));
                }
            }
        }
    }
}

/// Reads what comes until the process ends: one that found the socket full would wait in the middle of a run.
fn discard(mut events: &UnixStream) {
    // It ends with the process, which is noticed elsewhere.
    io::copy(&mut events, &mut io::sink()).ok();
}

fn next_event(mut events: &UnixStream) -> Option<Frame> {
    match Frame::read(&mut events, SMALL_FRAME) {
        Ok(frame) => Some(frame),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::error!(%error, "the plugin's process sent an event that can't be read; no more are taken");
            discard(events);
            None
        }
        // The process has ended.
        Err(_) => None,
    }
}

/// Takes log lines, progress and gauges until the process ends.
fn listen(events: &UnixStream, common: &Common, jobs: &dyn RunningJobs) {
    while let Some(frame) = next_event(events) {
        let taken = WorkerEvent::decode(&frame).map(|event| match event {
            WorkerEvent::Log { level, job_id, text } => common.log(level, job_id, text.to_string()),
            WorkerEvent::Progress { job_id, done, total } => jobs.progress(job_id, done, total),
            WorkerEvent::Gauge { name, value } => common.gauge(name, value),
        });
        if let Err(Garbled) = taken {
            tracing::error!("the plugin's process sent an event that can't be read; no more are taken");
            discard(events);
            return;
        }
    }
}
