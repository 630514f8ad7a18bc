//! The plugin's process: plays the plugin's part towards the host, and the host's towards the plugin.
//!
//! First of all it gives up every right that it doesn't need, while it has but one thread. Then there is one thread per
//! slot, each on a socket of its own, and one for control calls, as in the host itself. It ends when
//! the executor was destroyed, when the host asks for no more, and by the kernel when the host dies.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use coda_plugin_abi::descriptor::Binding;
use coda_plugin_abi::{Error, Program};
use serde::{Deserialize, Serialize};

use super::super::ffi::{
    CallEvolve, CallJob, Common, CreateRequest, DeviceReply, Instance, JobContext, Library, OpenError, Sink,
};
use super::super::in_flight::lock;
use super::super::schema;
use super::super::wire::{self, Garbled, Reader, Writer};
use super::process::{from_json, json, read_frame};
use super::{MAX_SLOTS, StepOutcome, WorkerSpec, kind};
use crate::sys;

const STACK_BYTES: usize = 8 << 20;

/// A control call.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    Cancel(String),
    Shutdown,
}

/// Sends what the plugin tells the host.
struct Events {
    socket: Mutex<UnixStream>,
    log_level: u32,
}

impl Events {
    fn send(&self, frame: Writer) {
        if let Some(frame) = frame.finish() {
            // A host that is gone needs no log.
            lock(&self.socket).write_all(&frame).ok();
        }
    }
}

impl Sink for Events {
    fn log_enabled(&self, level: u32) -> bool {
        level <= self.log_level
    }

    fn log(&self, level: u32, job_id: &str, text: &str) {
        let mut frame = Writer::new(kind::LOG);
        frame.u32(level);
        frame.text(job_id);
        frame.text(text);
        self.send(frame);
    }

    fn progress(&self, job_id: &str, done: u64, total: u64) {
        let mut frame = Writer::new(kind::PROGRESS);
        frame.text(job_id);
        frame.u64(done);
        frame.u64(total);
        self.send(frame);
    }

    fn gauge(&self, name: &str, value: f64) {
        let mut frame = Writer::new(kind::GAUGE);
        frame.text(name);
        frame.f64(value);
        self.send(frame);
    }
}

/// What the threads share.
struct Home {
    instance: Instance,
    common: Arc<Common>,
    /// Jobs in a call.
    running: Mutex<HashMap<String, Arc<JobContext>>>,
}

/// Runs the process, as `account` when one is named. For the command `executor-worker`.
///
/// # Errors
/// When the host has not prepared what it must.
pub fn run(account: Option<&str>) -> io::Result<ExitCode> {
    // The kernel ends this process before the host. Where it may not be raised it stays.
    std::fs::write("/proc/self/oom_score_adj", "800").ok();
    let rights = give_up_rights(account);
    let mut handed = sys::inherited(MAX_SLOTS + 3)?;
    let library = handed.pop().ok_or_else(|| io::Error::other("the library is missing"))?;
    let mut sockets = handed.into_iter().map(UnixStream::from);
    let missing = || io::Error::other("a socket is missing");
    let (control, events) = (sockets.next().ok_or_else(missing)?, sockets.next().ok_or_else(missing)?);
    let slots: Vec<UnixStream> = sockets.collect();
    let first = std::thread::Builder::new().name("exec-slot-0".into()).stack_size(STACK_BYTES);
    let ended = first.spawn(move || first_slot(control, events, slots, library, rights))?.join();
    match ended {
        Ok(done) => done.map(|()| ExitCode::SUCCESS),
        Err(_) => Err(io::Error::other("the first slot's thread panicked")),
    }
}

/// In words when it can't be done: nothing of the library is run then.
fn give_up_rights(account: Option<&str>) -> Result<(), String> {
    let account = match account {
        None => None,
        Some(name) => Some(
            sys::account(name)
                .map_err(|e| format!("the account {name} can't be looked up: {e}"))?
                .ok_or_else(|| format!("the account {name} is gone"))?,
        ),
    };
    sys::give_up_rights(account.as_ref()).map_err(|e| e.to_string())
}

fn first_slot(
    control: UnixStream,
    events: UnixStream,
    slots: Vec<UnixStream>,
    handed: OwnedFd,
    rights: Result<(), String>,
) -> io::Result<()> {
    let mut slots = slots.into_iter();
    let mut socket = slots.next().ok_or_else(|| io::Error::other("a socket is missing"))?;
    let (_, body) = read_frame(&mut socket)?;
    let spec: WorkerSpec = from_json(&body)?;
    let events = Events { socket: Mutex::new(events), log_level: spec.log_level };
    let mut common = Common::new(spec.plugin.as_str().into());
    common.sink = Some(Box::new(events));
    let common = Arc::new(common);
    let say = |socket: &mut UnixStream, made: &StepOutcome| {
        socket.write_all(&json(made).ok_or_else(|| io::Error::other("the description is too long"))?)
    };
    let checked = rights.map_err(StepOutcome::Rights).and_then(|()| check(&spec, &handed));
    drop(handed);
    let library = match checked {
        Ok((library, secrets)) => {
            common.hide(&secrets);
            say(&mut socket, &StepOutcome::Checked(secrets))?;
            library
        }
        Err(made) => return say(&mut socket, &made),
    };
    // A host that wants no executor after all has ended this process, or itself.
    let Ok((kind::CREATE, _)) = read_frame(&mut socket) else { return Ok(()) };
    let (instance, device) = match create(&spec, &library, &common) {
        Ok(made) => made,
        Err(made) => return say(&mut socket, &made),
    };
    let slots_used = device.slots as usize;
    let home = Arc::new(Home { instance, common, running: Mutex::default() });
    let spawn = |name: String, body: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(body).map(drop)
    };
    let controlled = home.clone();
    spawn("exec-control".into(), Box::new(move || controller(&controlled, control)))?;
    for (index, socket) in (1..slots_used.clamp(1, MAX_SLOTS)).zip(slots) {
        let home = home.clone();
        // A slot ends with its socket.
        spawn(format!("exec-slot-{index}"), Box::new(move || drop(serve(&home, socket))))?;
    }
    say(&mut socket, &StepOutcome::Created(Box::new(device)))?;
    let destroyed = serve(&home, socket.try_clone()?)?;
    if destroyed {
        let error = home.instance.destroy();
        socket.write_all(&json(&error).unwrap_or_default())?;
    }
    Ok(())
}

/// Opens the library and checks the config; returns its secrets.
fn check(spec: &WorkerSpec, handed: &OwnedFd) -> Result<(Library, Vec<String>), StepOutcome> {
    for path in &spec.reads {
        if let Err(e) = std::fs::File::open(path) {
            return Err(StepOutcome::Unreadable { path: path.clone(), why: e.to_string() });
        }
    }
    let binding = if spec.c_binding { Binding::C } else { Binding::Rust };
    let descriptor = format!("/proc/self/fd/{}", handed.as_raw_fd());
    let place = if spec.by_descriptor { Path::new(&descriptor) } else { &spec.opened };
    let library = Library::open(place, binding, spec.api_minor).map_err(|e| {
        StepOutcome::Open(match e {
            OpenError::Loader(text) => {
                OpenError::Loader(text.replace(&descriptor, &spec.opened.display().to_string()))
            }
            other => other,
        })
    })?;
    let secrets = schema::of_plugin(&library, &spec.entry, &spec.config_text).map_err(StepOutcome::Config)?;
    Ok((library, secrets))
}

fn create(
    spec: &WorkerSpec,
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
        .map_err(|e| StepOutcome::Create(Error { text: common.masked(e.text), ..e }))?;
    let device = instance.device().map_err(StepOutcome::Describe)?;
    Ok((instance, device))
}

fn controller(home: &Home, mut socket: UnixStream) {
    while let Ok((_, body)) = read_frame(&mut socket) {
        let Ok(order) = from_json(&body) else { return };
        let error: Option<Error> = match order {
            Order::Cancel(job_id) => {
                if let Some(context) = lock(&home.running).get(&job_id) {
                    context.set_cancelled();
                }
                home.instance.cancel(&job_id)
            }
            Order::Shutdown => home.instance.shutdown(),
        };
        if socket.write_all(&json(&error).unwrap_or_default()).is_err() {
            return;
        }
    }
}

/// Serves one slot; true when the executor is to be destroyed, false when the host has gone.
fn serve(home: &Home, mut socket: UnixStream) -> io::Result<bool> {
    loop {
        let Ok((kind, body)) = read_frame(&mut socket) else { return Ok(false) };
        let answer = match kind {
            kind::DESTROY => return Ok(true),
            kind::RUN | kind::BATCH => jobs(home, kind, &body),
            kind::EVOLVE => evolve(home, &body),
            _ => Err(Garbled),
        };
        let frame = answer.map_err(io::Error::other)?.finish();
        socket.write_all(&frame.ok_or_else(|| io::Error::other("the answer is larger than 2 GiB"))?)?;
    }
}

struct Job {
    id: String,
    shots: u32,
    program: Program,
    context: Arc<JobContext>,
}

fn jobs(home: &Home, kind: u8, body: &[u8]) -> Result<Writer, Garbled> {
    let mut r = Reader::new(body);
    let mut jobs = Vec::new();
    for _ in 0..r.len(1)? {
        let (id, shots) = (r.text()?.to_string(), r.u32()?);
        let context = Arc::new(JobContext::of(home.common.clone(), id.as_str().into()));
        jobs.push(Job { id, shots, program: wire::program(&mut r)?, context });
    }
    lock(&home.running).extend(jobs.iter().map(|job| (job.id.clone(), job.context.clone())));
    let calls: Vec<CallJob<'_>> = jobs
        .iter()
        .map(|Job { id, shots, program, context }| CallJob { job_id: id, program, shots: *shots, context })
        .collect();
    let mut frame = Writer::new(kind);
    match calls.as_slice() {
        [one] if kind == kind::RUN => {
            let answer = home.instance.run(one);
            frame.u16(0);
            frame.u64(0);
            wire::put_answer(&mut frame, answer.as_ref());
        }
        several => {
            let batch = home.instance.batch_run(several);
            frame.u16(batch.whole.is_some().into());
            if let Some(error) = &batch.whole {
                wire::put_error(&mut frame, error);
            }
            frame.u64(batch.surplus as u64);
            batch.answers.iter().for_each(|a| wire::put_answer(&mut frame, a.as_ref()));
        }
    }
    let mut running = lock(&home.running);
    jobs.iter().for_each(|job| drop(running.remove(&job.id)));
    Ok(frame)
}

fn evolve(home: &Home, body: &[u8]) -> Result<Writer, Garbled> {
    let mut r = Reader::new(body);
    let (id, num_qubits) = (r.text()?.to_string(), r.u16()?);
    let (amplitudes, operations) = (wire::amplitudes(&mut r)?, wire::operations(&mut r)?);
    let context = Arc::new(JobContext::of(home.common.clone(), id.as_str().into()));
    lock(&home.running).insert(id.clone(), context.clone());
    let answer = home.instance.evolve_state(&CallEvolve {
        job_id: &id,
        num_qubits,
        amplitudes: &amplitudes,
        operations: &operations,
        context: &context,
    });
    lock(&home.running).remove(&id);
    let mut frame = Writer::new(kind::EVOLVE);
    match answer {
        Ok(state) => {
            frame.u16(1);
            wire::put_amplitudes(&mut frame, &state);
        }
        Err(error) => {
            frame.u16(2);
            wire::put_error(&mut frame, &error);
        }
    }
    Ok(frame)
}
