//! The plugin's process: plays the plugin's part towards the host, and the host's towards the plugin.
//!
//! First of all it gives up every right that it doesn't need, while it has but one thread. Then there is one thread per
//! slot, each on a separate socket, and one for control calls, as in the host itself. It ends when
//! the executor was destroyed, when the host asks for no more, and by the kernel when the host dies.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use coda_plugin_abi::Error;
use coda_plugin_abi::descriptor::Binding;
use parking_lot::Mutex;

use super::super::ffi::{
    BatchAnswers, CallEvolve, CallJob, Common, CreateRequest, DeviceReply, Instance, JobContext, Library,
    Sink,
};
use super::super::job::cancelled;
use super::super::loader::descriptor_path;
use super::super::schema;
use super::super::wire::MAX_FRAME;
use super::frames::{
    ControlAnswer, ControlOrder, Frame, ReceivedEvolution, ReceivedJob, ReceivedRequest, SlotAnswer,
    WorkerEvent, write,
};
use super::python_child;
use super::spec::{LibrarySpec, StepOutcome};
use crate::sys::{self, KeptCapabilities};

const STACK_BYTES: usize = 8 << 20;

/// Sends what the plugin tells the host.
struct Events {
    socket: Mutex<UnixStream>,
    log_level: u32,
}

impl Events {
    fn send(&self, event: &WorkerEvent<'_>) {
        // A host that is gone needs no log, and a line that is too long for a frame is lost.
        write(&mut *self.socket.lock(), event.encode()).ok();
    }
}

impl Sink for Events {
    fn log_enabled(&self, level: u32) -> bool {
        level <= self.log_level
    }

    fn log(&self, level: u32, job_id: &str, text: &str) {
        self.send(&WorkerEvent::Log { level, job_id, text });
    }

    fn progress(&self, job_id: &str, done: u64, total: u64) {
        self.send(&WorkerEvent::Progress { job_id, done, total });
    }

    fn gauge(&self, name: &str, value: f64) {
        self.send(&WorkerEvent::Gauge { name, value });
    }
}

/// What the threads share.
struct Worker {
    instance: Instance,
    common: Arc<Common>,
    calls: Mutex<Calls>,
}

/// What is known of calls, by the ids of their jobs. Requests and orders come on separate sockets, so that an order
/// to cancel may overtake the request of its job, and may come when the job has just been answered.
#[derive(Default)]
struct Calls {
    running: HashMap<String, Arc<JobContext>>,
    /// Cancelled before their requests were read.
    early: VecDeque<String>,
    /// Answered last.
    ended: VecDeque<String>,
}

/// How many early cancels and ended calls are remembered: more than there are slots.
const REMEMBERED: usize = 128;

fn remember(list: &mut VecDeque<String>, id: &str) {
    list.push_back(id.to_string());
    if list.len() > REMEMBERED {
        list.pop_front();
    }
}

impl Calls {
    fn begin(&mut self, id: &str, context: &Arc<JobContext>) {
        if let Some(at) = self.early.iter().position(|early| early == id) {
            self.early.remove(at);
            context.set_cancelled();
        }
        self.ended.retain(|ended| ended != id);
        self.running.insert(id.to_string(), context.clone());
    }

    fn end(&mut self, id: &str) {
        self.running.remove(id);
        remember(&mut self.ended, id);
    }

    fn cancel(&mut self, id: &str) {
        match self.running.get(id) {
            Some(context) => context.set_cancelled(),
            // Late: the host has not read the answer yet.
            None if self.ended.iter().any(|ended| ended == id) => {}
            None => remember(&mut self.early, id),
        }
    }
}

/// Runs the process, as `account` when one is named; as a Python interpreter when that is named. For the command
/// `executor-worker`.
///
/// # Errors
/// When the host has not prepared what it must.
pub fn run(
    account: Option<&str>,
    kept: KeptCapabilities,
    python: Option<&Path>,
    descriptors: &[i32],
) -> io::Result<ExitCode> {
    // The kernel ends this process before the host. Where it may not be raised it stays.
    std::fs::write("/proc/self/oom_score_adj", "800").ok();
    let rights = give_up_rights(account, kept);
    if let Some(interpreter) = python {
        return python_child::run(interpreter, descriptors, rights);
    }
    sys::outlive_stop_signals()?;
    let handed: Result<[OwnedFd; 4], _> = sys::inherited(descriptors)?.try_into();
    let [control, events, slot_0, library] =
        handed.map_err(|_| io::Error::other("the host hands over three sockets and the library"))?;
    let (control, events, slot_0) = (control.into(), events.into(), slot_0.into());
    let first = std::thread::Builder::new().name("exec-slot-0".into()).stack_size(STACK_BYTES);
    let ended = first.spawn(move || first_slot(control, events, slot_0, library, rights))?.join();
    match ended {
        Ok(done) => done.map(|()| ExitCode::SUCCESS),
        Err(_) => Err(io::Error::other("the first slot's thread panicked")),
    }
}

/// In words when it can't be done: nothing of the library is run then.
fn give_up_rights(account: Option<&str>, kept: KeptCapabilities) -> Result<(), String> {
    let account = match account {
        None => None,
        Some(name) => Some(
            sys::account(name)
                .map_err(|e| format!("the account {name} can't be looked up: {e}"))?
                .ok_or_else(|| format!("the account {name} is gone"))?,
        ),
    };
    sys::give_up_rights(account.as_ref(), kept).map_err(|e| e.to_string())
}

fn first_slot(
    control: UnixStream,
    events: UnixStream,
    mut socket: UnixStream,
    handed: OwnedFd,
    rights: Result<(), String>,
) -> io::Result<()> {
    let ReceivedRequest::Check(spec) = receive(&mut socket)? else {
        return Err(io::Error::other("the first request is not the check"));
    };
    let events = Events { socket: Mutex::new(events), log_level: spec.log_level };
    let mut common = Common::new(spec.plugin.as_str().into());
    common.sink = Some(Box::new(events));
    let common = Arc::new(common);
    let say = |socket: &mut UnixStream, made: StepOutcome| write(socket, SlotAnswer::Step(made).encode());
    let checked = rights.map_err(StepOutcome::Rights).and_then(|()| check(&spec, &handed));
    drop(handed);
    let library = match checked {
        Ok((library, secrets)) => {
            common.hide(&secrets);
            say(&mut socket, StepOutcome::Checked(secrets))?;
            library
        }
        Err(made) => return say(&mut socket, made),
    };
    // A host that wants no executor after all has ended this process, or itself.
    let Ok(ReceivedRequest::Create) = receive(&mut socket) else { return Ok(()) };
    let (instance, device) = match create(&spec, &library, &common) {
        Ok(made) => made,
        Err(made) => return say(&mut socket, made),
    };
    let worker = Arc::new(Worker { instance, common, calls: Mutex::default() });
    let spawn = |name: String, body: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(body).map(drop)
    };
    say(&mut socket, StepOutcome::Created(Box::new(device)))?;
    // The host knows now how many slots there are, and sends a socket for each further one.
    let slots = sys::receive_descriptors(&control)?;
    let controlled = worker.clone();
    spawn("exec-control".into(), Box::new(move || controller(&controlled, control)))?;
    for (index, socket) in (1..).zip(slots.into_iter().map(UnixStream::from)) {
        let worker = worker.clone();
        // A slot ends with its socket.
        spawn(format!("exec-slot-{index}"), Box::new(move || drop(serve(&worker, socket))))?;
    }
    let destroyed = serve(&worker, socket.try_clone()?)?;
    if destroyed {
        let error = worker.instance.destroy();
        write(&mut socket, SlotAnswer::Destroyed(error).encode())?;
    }
    Ok(())
}

/// Opens the library and checks the config; returns its secrets.
fn check(spec: &LibrarySpec, handed: &OwnedFd) -> Result<(Library, Vec<String>), StepOutcome> {
    for path in &spec.reads {
        if let Err(e) = std::fs::File::open(path) {
            return Err(StepOutcome::Unreadable { path: path.clone(), why: e.to_string() });
        }
    }
    let binding = if spec.c_binding { Binding::C } else { Binding::Rust };
    let place = if spec.in_place.is_empty() { descriptor_path(handed) } else { spec.opened.clone() };
    let library = Library::open(&place, binding, spec.api_minor)
        .map_err(|e| StepOutcome::Open(e.of_file(&place, &spec.opened)))?;
    let secrets = schema::of_plugin(&library, &spec.entry, &spec.config_text).map_err(StepOutcome::Config)?;
    Ok((library, secrets))
}

fn create(
    spec: &LibrarySpec,
    library: &Library,
    common: &Arc<Common>,
) -> Result<(Instance, DeviceReply), StepOutcome> {
    let request = CreateRequest {
        common: common.clone(),
        entry: spec.entry.clone(),
        config_path: spec.config_path.clone(),
        config_text: spec.config_text.clone(),
        native_gate_set: spec.native_gate_set.clone(),
        num_qubits: spec.num_qubits,
    };
    let instance = library
        .create(&request)
        // Said without them in either process.
        .map_err(|e| StepOutcome::Create(common.masked_error(e)))?;
    match instance.device() {
        Ok(device) => Ok((instance, device)),
        Err(error) => {
            // The device may be in use by now. What its end says adds nothing to why it is ended.
            instance.shutdown();
            instance.destroy();
            Err(StepOutcome::Describe(error))
        }
    }
}

fn receive(socket: &mut UnixStream) -> io::Result<ReceivedRequest> {
    Ok(ReceivedRequest::decode(&Frame::read(socket, MAX_FRAME)?)?)
}

fn controller(worker: &Worker, mut socket: UnixStream) {
    while let Ok(frame) = Frame::read(&mut socket, MAX_FRAME) {
        let Ok(order) = ControlOrder::decode(&frame) else { return };
        let answer = match order {
            ControlOrder::Cancel(job_id) => {
                worker.calls.lock().cancel(&job_id);
                ControlAnswer::Done(worker.instance.cancel(&job_id))
            }
            ControlOrder::Describe => ControlAnswer::Device(Box::new(worker.instance.device())),
            ControlOrder::Shutdown => ControlAnswer::Done(worker.instance.shutdown()),
        };
        if write(&mut socket, answer.encode()).is_err() {
            return;
        }
    }
}

/// Serves one slot; true when the executor is to be destroyed, false when the host has gone.
fn serve(worker: &Worker, mut socket: UnixStream) -> io::Result<bool> {
    loop {
        let Ok(frame) = Frame::read(&mut socket, MAX_FRAME) else { return Ok(false) };
        let answer = match ReceivedRequest::decode(&frame)? {
            ReceivedRequest::Destroy => return Ok(true),
            ReceivedRequest::Run(job) => SlotAnswer::Jobs(worker.run(&job)),
            ReceivedRequest::Batch(jobs) => SlotAnswer::Jobs(worker.batch_run(&jobs)),
            ReceivedRequest::Evolve(job) => SlotAnswer::Evolved(worker.evolve(&job)),
            ReceivedRequest::Check(_) | ReceivedRequest::Create => {
                return Err(io::Error::other("the executor is created already"));
            }
        };
        write(&mut socket, answer.encode())?;
    }
}

impl Worker {
    /// Makes a call known to the control thread until `end` is told of it.
    fn begin(&self, id: &str) -> Arc<JobContext> {
        let context = Arc::new(JobContext::in_executor(self.common.clone(), id.into()));
        self.calls.lock().begin(id, &context);
        context
    }

    fn end(&self, id: &str) {
        self.calls.lock().end(id);
    }

    fn run(&self, job: &ReceivedJob) -> BatchAnswers {
        let context = self.begin(&job.id);
        // The plugin was told of an early cancel before it knew the job, and can't be told again.
        let answer = match context.is_cancelled() {
            true => Some(Err(cancelled())),
            false => self.instance.run(&call_job(job, &context)),
        };
        self.end(&job.id);
        BatchAnswers { answers: vec![answer], whole: None, surplus: 0 }
    }

    fn batch_run(&self, jobs: &[ReceivedJob]) -> BatchAnswers {
        let contexts: Vec<Arc<JobContext>> = jobs.iter().map(|job| self.begin(&job.id)).collect();
        let calls: Vec<CallJob<'_>> =
            jobs.iter().zip(&contexts).map(|(job, context)| call_job(job, context)).collect();
        let batch = self.instance.batch_run(&calls);
        jobs.iter().for_each(|job| self.end(&job.id));
        batch
    }

    fn evolve(&self, job: &ReceivedEvolution) -> Result<Vec<coda_plugin_abi::Amplitude>, Error> {
        let context = self.begin(&job.id);
        let answer = match context.is_cancelled() {
            true => Err(cancelled()),
            false => self.instance.evolve_state(&CallEvolve {
                job_id: &job.id,
                num_qubits: job.num_qubits,
                amplitudes: &job.amplitudes,
                operations: &job.operations,
                context: &context,
            }),
        };
        self.end(&job.id);
        answer
    }
}

fn call_job<'a>(job: &'a ReceivedJob, context: &'a Arc<JobContext>) -> CallJob<'a> {
    CallJob { job_id: &job.id, program: &job.program, shots: job.shots, context }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(id: &str) -> Arc<JobContext> {
        Arc::new(JobContext::in_executor(Arc::new(Common::new("test".into())), id.into()))
    }

    #[test]
    fn an_order_that_overtakes_its_job_cancels_it_and_a_late_one_nothing() {
        let mut calls = Calls::default();
        calls.cancel("J");
        let first = context("J");
        calls.begin("J", &first);
        assert!(first.is_cancelled(), "it came first");
        calls.end("J");
        calls.cancel("J");
        let second = context("J");
        calls.begin("J", &second);
        assert!(!second.is_cancelled(), "that one was for the run before");
        calls.cancel("J");
        assert!(second.is_cancelled());
        (0..1000).for_each(|n| calls.cancel(&format!("unknown {n}")));
        assert_eq!(calls.early.len(), REMEMBERED);
    }
}
