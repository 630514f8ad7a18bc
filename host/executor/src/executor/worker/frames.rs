//! The messages between the host and a plugin's process, one type for each direction of each socket.
//!
//! | socket  | host sends        | process sends   |
//! |---------|-------------------|-----------------|
//! | slot k  | [`SlotRequest`]   | [`SlotAnswer`]  |
//! | control | [`ControlOrder`]  | [`ControlAnswer`] |
//! | events  | nothing           | [`WorkerEvent`] |
//!
//! A message is one frame: four bytes of length, one byte of kind, the body. The kind is known here alone. Jobs,
//! answers and states are laid down byte by byte (`wire`), since a run's delay depends on them; the rest is JSON.
//! Senders lend what they send and receivers own what they get, hence [`ReceivedRequest`].

use std::io::{self, Read, Write};

use coda_plugin_abi::{Amplitude, Error, Operation, Program};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::ffi::{BatchAnswers, CallEvolve, CallJob, DeviceReply};
use super::super::python::circuit;
use super::super::wire::{self, FrameReader, FrameWriter, Garbled, MAX_FRAME};
use super::spec::{LibrarySpec, StepOutcome, WorkerSpec};

/// A message is longer than a frame may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message is larger than 2 GiB")]
pub struct TooLong;

impl From<TooLong> for io::Error {
    fn from(error: TooLong) -> io::Error {
        io::Error::other(error)
    }
}

impl From<Garbled> for io::Error {
    fn from(error: Garbled) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Check = 1,
    Create,
    Run,
    Batch,
    Evolve,
    Destroy,
    Step,
    Jobs,
    Evolved,
    Destroyed,
    Order,
    OrderDone,
    Log,
    Progress,
    Gauge,
    Source,
    Final,
}

impl Kind {
    const ALL: [Kind; 17] = [
        Kind::Check,
        Kind::Create,
        Kind::Run,
        Kind::Batch,
        Kind::Evolve,
        Kind::Destroy,
        Kind::Step,
        Kind::Jobs,
        Kind::Evolved,
        Kind::Destroyed,
        Kind::Order,
        Kind::OrderDone,
        Kind::Log,
        Kind::Progress,
        Kind::Gauge,
        Kind::Source,
        Kind::Final,
    ];

    fn from_code(code: u8) -> Result<Kind, Garbled> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == code).ok_or(Garbled)
    }
}

/// A frame as it was read.
#[derive(Debug)]
pub struct Frame {
    kind: Kind,
    body: Vec<u8>,
}

/// The longest answer to a control call, and the longest event.
pub const SMALL_FRAME: usize = 256 << 10;
/// The longest answer to a step of the creation: a device's description, or the secrets of its config.
pub const STEP_FRAME: usize = 1 << 20;
/// The longest answer to a run, a batch or an evolution, however large the job is.
pub const MAX_ANSWER: usize = 256 << 20;
/// A state's answer may be as long as the state that was sent.
const MAX_STATE: usize = MAX_FRAME;
/// For an error's text, and for what is wrong with an answer that is a little too long.
const ANSWER_MARGIN: usize = 256 << 10;
/// What a frame's body takes before any of it has arrived.
const FIRST_BYTES: usize = 64 << 10;

/// The longest answer to a run of so many shots with so many measurements: each key once, and as much again, so that an
/// answer with wrong keys is judged instead of refused.
pub fn run_budget(shots: u32, measurements: usize) -> usize {
    let keys = match u32::try_from(measurements).ok().and_then(|bits| 1_u32.checked_shl(bits)) {
        Some(keys) => keys.min(shots),
        None => shots,
    };
    let bytes = (keys as usize).saturating_mul(measurements.saturating_add(16)).saturating_mul(2);
    bytes.saturating_add(ANSWER_MARGIN).min(MAX_ANSWER)
}

/// The longest answer to an evolution of so many amplitudes.
pub fn state_budget(amplitudes: usize) -> usize {
    amplitudes.saturating_mul(16).saturating_add(ANSWER_MARGIN).min(MAX_STATE)
}

impl Frame {
    /// Reads the next frame, which may have `limit` bytes. Memory is taken as the bytes arrive, not as they are announced.
    ///
    /// # Errors
    /// When the other end is gone, or sends something that is not a frame, or too long a frame.
    pub fn read(socket: &mut impl Read, limit: usize) -> io::Result<Frame> {
        let mut head = [0; 5];
        socket.read_exact(&mut head)?;
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if len > limit {
            let text = format!("a message of {len} bytes where at most {limit} are expected");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let rest = len.checked_sub(1).ok_or(Garbled)?;
        let kind = Kind::from_code(head[4])?;
        let mut body = Vec::with_capacity(rest.min(FIRST_BYTES));
        match socket.take(rest as u64).read_to_end(&mut body)? == rest {
            true => Ok(Frame { kind, body }),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

fn encode(kind: Kind, put: impl FnOnce(&mut FrameWriter)) -> Result<Vec<u8>, TooLong> {
    let mut writer = FrameWriter::new(kind as u8);
    put(&mut writer);
    writer.finish().ok_or(TooLong)
}

fn encode_json(kind: Kind, value: &impl Serialize) -> Result<Vec<u8>, TooLong> {
    // Plain data with text keys, whose JSON can't fail.
    let text = serde_json::to_string(value).map_err(|_| TooLong)?;
    encode(kind, |w| w.text(&text))
}

fn decode_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Garbled> {
    serde_json::from_str(FrameReader::new(body).text()?).map_err(|_| Garbled)
}

/// How circuits are written for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CircuitForm {
    /// For this program: byte by byte.
    Binary,
    /// For a Python executor, whose own classes read it.
    Json,
}

/// What the host asks of a slot. The first three steps go to slot 0 alone: check, create, and destroy at the end.
pub enum SlotRequest<'a> {
    /// The text of the program that answers the requests, for an interpreter.
    Source(&'a str),
    /// Open the library and check the config, or make sure that the interpreter can run the executor.
    Check(&'a WorkerSpec),
    /// Create the executor, after the check.
    Create,
    Run(&'a CallJob<'a>),
    Batch(&'a [CallJob<'a>]),
    Evolve(&'a CallEvolve<'a>),
    /// Destroy the executor and end the process.
    Destroy,
}

impl SlotRequest<'_> {
    /// # Errors
    /// When the message is too long.
    pub fn encode(&self, form: CircuitForm) -> Result<Vec<u8>, TooLong> {
        match self {
            SlotRequest::Source(text) => encode(Kind::Source, |w| w.text(text)),
            SlotRequest::Check(WorkerSpec::Library(spec)) => encode_json(Kind::Check, spec),
            SlotRequest::Check(WorkerSpec::Python(spec)) => encode_json(Kind::Check, spec),
            SlotRequest::Create => encode(Kind::Create, |_| ()),
            SlotRequest::Run(job) => encode(Kind::Run, |w| put_job(w, job, form)),
            SlotRequest::Batch(jobs) => encode(Kind::Batch, |w| {
                w.len(jobs.len());
                jobs.iter().for_each(|job| put_job(w, job, form));
            }),
            SlotRequest::Evolve(call) => encode(Kind::Evolve, |w| {
                w.text(call.job_id);
                w.u16(call.num_qubits);
                wire::put_amplitudes(w, call.amplitudes);
                wire::put_operations(w, call.operations);
            }),
            SlotRequest::Destroy => encode(Kind::Destroy, |_| ()),
        }
    }
}

fn put_job(w: &mut FrameWriter, job: &CallJob<'_>, form: CircuitForm) {
    w.text(job.job_id);
    w.u32(job.shots);
    match form {
        CircuitForm::Binary => wire::put_program(w, job.program),
        CircuitForm::Json => w.text(&circuit::to_json(job.program)),
    }
}

/// A job as the plugin's process gets it.
#[derive(Debug, PartialEq)]
pub struct ReceivedJob {
    pub id: String,
    pub shots: u32,
    pub program: Program,
}

/// An evolution as the plugin's process gets it.
#[derive(Debug, PartialEq)]
pub struct ReceivedEvolution {
    pub id: String,
    pub num_qubits: u16,
    pub amplitudes: Vec<Amplitude>,
    pub operations: Vec<Operation>,
}

/// A [`SlotRequest`] as the plugin's process gets it.
#[derive(Debug, PartialEq)]
pub enum ReceivedRequest {
    Check(Box<LibrarySpec>),
    Create,
    Run(ReceivedJob),
    Batch(Vec<ReceivedJob>),
    Evolve(ReceivedEvolution),
    Destroy,
}

impl ReceivedRequest {
    /// # Errors
    /// When the frame holds no request that can be read.
    pub fn decode(frame: &Frame) -> Result<ReceivedRequest, Garbled> {
        let mut r = FrameReader::new(&frame.body);
        Ok(match frame.kind {
            Kind::Check => ReceivedRequest::Check(decode_json(&frame.body)?),
            Kind::Create => ReceivedRequest::Create,
            Kind::Run => ReceivedRequest::Run(received_job(&mut r)?),
            Kind::Batch => {
                let jobs = r.len(1)?;
                ReceivedRequest::Batch((0..jobs).map(|_| received_job(&mut r)).collect::<Result<_, _>>()?)
            }
            Kind::Evolve => ReceivedRequest::Evolve(ReceivedEvolution {
                id: r.text()?.to_string(),
                num_qubits: r.u16()?,
                amplitudes: wire::amplitudes(&mut r)?,
                operations: wire::operations(&mut r)?,
            }),
            Kind::Destroy => ReceivedRequest::Destroy,
            _ => return Err(Garbled),
        })
    }
}

fn received_job(r: &mut FrameReader<'_>) -> Result<ReceivedJob, Garbled> {
    Ok(ReceivedJob { id: r.text()?.to_string(), shots: r.u32()?, program: wire::program(r)? })
}

/// What a slot answers.
#[derive(Debug)]
pub enum SlotAnswer {
    /// To check and create.
    Step(StepOutcome),
    /// To run and batch: one answer for each job.
    Jobs(BatchAnswers),
    /// The same, and the process ends by the executor's doing: it takes no more requests.
    Final(BatchAnswers),
    Evolved(Result<Vec<Amplitude>, Error>),
    Destroyed(Option<Error>),
}

impl SlotAnswer {
    /// # Errors
    /// When the message is too long.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        match self {
            SlotAnswer::Step(outcome) => encode_json(Kind::Step, outcome),
            SlotAnswer::Jobs(batch) => encode(Kind::Jobs, |w| put_batch(w, batch)),
            SlotAnswer::Final(batch) => encode(Kind::Final, |w| put_batch(w, batch)),
            SlotAnswer::Evolved(Ok(state)) => encode(Kind::Evolved, |w| {
                w.u16(1);
                wire::put_amplitudes(w, state);
            }),
            SlotAnswer::Evolved(Err(error)) => encode(Kind::Evolved, |w| {
                w.u16(2);
                wire::put_error(w, error);
            }),
            SlotAnswer::Destroyed(error) => encode_json(Kind::Destroyed, error),
        }
    }

    /// Reads the answer to a request with so many jobs.
    ///
    /// # Errors
    /// When the frame holds no such answer that can be read.
    pub fn decode(frame: &Frame, jobs: usize) -> Result<SlotAnswer, Garbled> {
        let mut r = FrameReader::new(&frame.body);
        Ok(match frame.kind {
            Kind::Step => SlotAnswer::Step(decode_json(&frame.body)?),
            Kind::Jobs => SlotAnswer::Jobs(batch(&mut r, jobs)?),
            Kind::Final => SlotAnswer::Final(batch(&mut r, jobs)?),
            Kind::Evolved => SlotAnswer::Evolved(match r.u16()? {
                1 => Ok(wire::amplitudes(&mut r)?),
                2 => Err(wire::error(&mut r)?),
                _ => return Err(Garbled),
            }),
            Kind::Destroyed => SlotAnswer::Destroyed(decode_json(&frame.body)?),
            _ => return Err(Garbled),
        })
    }
}

fn put_batch(w: &mut FrameWriter, batch: &BatchAnswers) {
    w.u16(batch.whole.is_some().into());
    if let Some(error) = &batch.whole {
        wire::put_error(w, error);
    }
    w.u64(batch.surplus as u64);
    w.len(batch.answers.len());
    batch.answers.iter().for_each(|answer| wire::put_answer(w, answer.as_ref()));
}

fn batch(r: &mut FrameReader<'_>, jobs: usize) -> Result<BatchAnswers, Garbled> {
    let whole = match r.u16()? {
        0 => None,
        _ => Some(wire::error(r)?),
    };
    let surplus = usize::try_from(r.u64()?).map_err(|_| Garbled)?;
    // An answer takes more memory than the bytes that may stand for it.
    if r.len(2)? != jobs {
        return Err(Garbled);
    }
    let answers = (0..jobs).map(|_| wire::answer(r)).collect::<Result<_, _>>()?;
    Ok(BatchAnswers { answers, whole, surplus })
}

/// What the host asks of the control thread.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum ControlOrder {
    Cancel(String),
    Describe,
    Shutdown,
}

impl ControlOrder {
    /// # Errors
    /// When the message is too long.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        encode_json(Kind::Order, self)
    }

    /// # Errors
    /// When the frame holds no order that can be read.
    pub fn decode(frame: &Frame) -> Result<ControlOrder, Garbled> {
        if frame.kind == Kind::Order { decode_json(&frame.body) } else { Err(Garbled) }
    }
}

/// What came of a control call.
#[derive(Debug, Serialize, Deserialize)]
pub enum ControlAnswer {
    /// The plugin's error, if any.
    Done(Option<Error>),
    /// The device as the plugin describes it now.
    Device(Box<Result<DeviceReply, Error>>),
}

impl ControlAnswer {
    /// # Errors
    /// When the message is too long.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        encode_json(Kind::OrderDone, self)
    }

    /// # Errors
    /// When the frame holds no answer that can be read.
    pub fn decode(frame: &Frame) -> Result<ControlAnswer, Garbled> {
        match frame.kind {
            Kind::OrderDone => decode_json(&frame.body),
            _ => Err(Garbled),
        }
    }
}

/// What the plugin tells the host from any of its threads.
#[derive(Debug, PartialEq)]
pub enum WorkerEvent<'a> {
    Log { level: u32, job_id: &'a str, text: &'a str },
    Progress { job_id: &'a str, done: u64, total: u64 },
    Gauge { name: &'a str, value: f64 },
}

impl<'a> WorkerEvent<'a> {
    /// # Errors
    /// When the message is too long.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        match *self {
            WorkerEvent::Log { level, job_id, text } => encode(Kind::Log, |w| {
                w.u32(level);
                w.text(job_id);
                w.text(text);
            }),
            WorkerEvent::Progress { job_id, done, total } => encode(Kind::Progress, |w| {
                w.text(job_id);
                w.u64(done);
                w.u64(total);
            }),
            WorkerEvent::Gauge { name, value } => encode(Kind::Gauge, |w| {
                w.text(name);
                w.f64(value);
            }),
        }
    }

    /// # Errors
    /// When the frame holds no event that can be read.
    pub fn decode(frame: &'a Frame) -> Result<WorkerEvent<'a>, Garbled> {
        let mut r = FrameReader::new(&frame.body);
        Ok(match frame.kind {
            Kind::Log => WorkerEvent::Log { level: r.u32()?, job_id: r.text()?, text: r.text()? },
            Kind::Progress => WorkerEvent::Progress { job_id: r.text()?, done: r.u64()?, total: r.u64()? },
            Kind::Gauge => WorkerEvent::Gauge { name: r.text()?, value: r.f64()? },
            _ => return Err(Garbled),
        })
    }
}

/// Writes an encoded message.
///
/// # Errors
/// When the other end is gone, or the message is too long.
pub fn write(socket: &mut impl Write, message: Result<Vec<u8>, TooLong>) -> io::Result<()> {
    socket.write_all(&message?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use coda_plugin_abi::{ErrorCode, Gate, GateKind, Outcome, Target};

    use super::super::super::JobContext;
    use super::*;

    fn frame(message: Result<Vec<u8>, TooLong>) -> Frame {
        Frame::read(&mut message.unwrap().as_slice(), MAX_FRAME).unwrap()
    }

    fn request(request: SlotRequest<'_>) -> ReceivedRequest {
        ReceivedRequest::decode(&frame(request.encode(CircuitForm::Binary))).unwrap()
    }

    #[test]
    fn requests_arrive_as_they_were_sent() {
        let program = Program::new(Target::Cz, 2, [Gate::two(GateKind::Cz, 0, 1, 0.0)], [1]).unwrap();
        let context = Arc::new(JobContext::new("p".into(), "J".into()));
        let job = |job_id| CallJob { job_id, program: &program, shots: 7, context: &context };
        let received = |id: &str| ReceivedJob { id: id.into(), shots: 7, program: program.clone() };
        assert_eq!(request(SlotRequest::Run(&job("a"))), ReceivedRequest::Run(received("a")));
        let batch = [job("a"), job("b")];
        let expected = vec![received("a"), received("b")];
        assert_eq!(request(SlotRequest::Batch(&batch)), ReceivedRequest::Batch(expected));
        assert_eq!(request(SlotRequest::Create), ReceivedRequest::Create);
        assert_eq!(request(SlotRequest::Destroy), ReceivedRequest::Destroy);
        let amplitudes = [Amplitude { re: 1.0, im: -0.5 }];
        let evolve = CallEvolve {
            job_id: "e",
            num_qubits: 0,
            amplitudes: &amplitudes,
            operations: &[],
            context: &context,
        };
        let expected = ReceivedEvolution {
            id: "e".into(),
            num_qubits: 0,
            amplitudes: amplitudes.to_vec(),
            operations: Vec::new(),
        };
        assert_eq!(request(SlotRequest::Evolve(&evolve)), ReceivedRequest::Evolve(expected));
    }

    #[test]
    fn answers_arrive_as_they_were_sent() {
        let outcome =
            Outcome { counts: vec![("1".into(), 3)], execution_time_ms: None, shots_completed: None };
        let error = Error::new(ErrorCode::Hardware, "cold");
        let batch = BatchAnswers {
            answers: vec![Some(Ok(outcome.clone())), None, Some(Err(error.clone()))],
            whole: Some(error.clone()),
            surplus: 2,
        };
        match SlotAnswer::decode(&frame(SlotAnswer::Jobs(batch).encode()), 3).unwrap() {
            SlotAnswer::Jobs(got) => {
                assert_eq!(got.answers, [Some(Ok(outcome)), None, Some(Err(error.clone()))]);
                assert_eq!((got.whole, got.surplus), (Some(error.clone()), 2));
            }
            other => panic!("{other:?}"),
        }
        let evolved = SlotAnswer::Evolved(Err(error.clone())).encode();
        assert!(
            matches!(SlotAnswer::decode(&frame(evolved), 0), Ok(SlotAnswer::Evolved(Err(e))) if e == error)
        );
        let ordered = frame(ControlAnswer::Done(Some(error.clone())).encode());
        assert!(matches!(ControlAnswer::decode(&ordered), Ok(ControlAnswer::Done(Some(e))) if e == error));
    }

    #[test]
    fn a_message_on_the_wrong_socket_is_refused() {
        let order = frame(ControlOrder::Shutdown.encode());
        assert_eq!(ControlOrder::decode(&order), Ok(ControlOrder::Shutdown));
        assert_eq!(ReceivedRequest::decode(&order), Err(Garbled));
        assert!(SlotAnswer::decode(&order, 0).is_err());
        assert_eq!(WorkerEvent::decode(&order), Err(Garbled));
        let event = frame(WorkerEvent::Gauge { name: "g", value: 0.5 }.encode());
        assert_eq!(WorkerEvent::decode(&event), Ok(WorkerEvent::Gauge { name: "g", value: 0.5 }));
        assert_eq!(ControlOrder::decode(&event), Err(Garbled));
    }

    /// The value of a constant of the bridge: `A, B = 1, 2`.
    fn bridge_constant(name: &str) -> u32 {
        let mut lines = super::super::super::python::BRIDGE.lines().filter_map(|line| line.split_once(" = "));
        let found = lines.find_map(|(names, values)| {
            let at = names.split(", ").position(|known| known == name)?;
            values.split(", ").nth(at)?.parse().ok()
        });
        found.unwrap_or_else(|| panic!("the bridge has no {name}"))
    }

    #[test]
    fn the_bridge_has_the_same_numbers() {
        for (name, kind) in [
            ("CHECK", Kind::Check),
            ("CREATE", Kind::Create),
            ("RUN", Kind::Run),
            ("BATCH", Kind::Batch),
            ("DESTROY", Kind::Destroy),
            ("STEP", Kind::Step),
            ("JOBS", Kind::Jobs),
            ("DESTROYED", Kind::Destroyed),
            ("ORDER", Kind::Order),
            ("ORDER_DONE", Kind::OrderDone),
            ("LOG", Kind::Log),
            ("FINAL", Kind::Final),
        ] {
            assert_eq!(bridge_constant(name), kind as u32, "{name}");
        }
        for code in [
            ErrorCode::Other,
            ErrorCode::Config,
            ErrorCode::Unsupported,
            ErrorCode::Resources,
            ErrorCode::Timeout,
            ErrorCode::Cancelled,
            ErrorCode::Panic,
            ErrorCode::Contract,
        ] {
            assert_eq!(bridge_constant(&code.name().to_uppercase()), code.code(), "{code}");
        }
        assert_eq!(bridge_constant("STAGE_RUN"), coda_plugin_abi::Stage::Run.code());
        for (name, level) in [("ERROR", 1), ("WARN", 2), ("INFO", 3), ("DEBUG", 4), ("TRACE", 5)] {
            assert_eq!(bridge_constant(name), level, "{name}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        for bytes in [&[0, 0, 0, 0, 1][..], &[1, 0, 0, 0, 99], &[255, 255, 255, 255, 1], &[2, 0, 0, 0, 2]] {
            assert!(Frame::read(&mut &*bytes, MAX_FRAME).is_err(), "{bytes:?}");
        }
        assert!(Kind::ALL.into_iter().all(|kind| Kind::from_code(kind as u8) == Ok(kind)));
    }

    #[test]
    fn a_frame_beyond_its_budget_is_refused_and_takes_no_memory_before_it_arrives() {
        let head = |len: u32| [&len.to_le_bytes()[..], &[Kind::Jobs as u8]].concat();
        let error = Frame::read(&mut head(1001).as_slice(), 1000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("1001 bytes where at most 1000"), "{error}");
        let error = Frame::read(&mut head(1 << 31).as_slice(), MAX_FRAME).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "of the two gigabytes nothing has come");
        let mut claims = vec![0, 0];
        claims.extend(0_u64.to_le_bytes());
        claims.extend(1000_u64.to_le_bytes());
        claims.extend([0; 2000]);
        let frame = Frame { kind: Kind::Jobs, body: claims };
        assert!(SlotAnswer::decode(&frame, 1).is_err(), "a thousand answers to one job");
        assert!(SlotAnswer::decode(&frame, 1000).is_ok());
    }

    #[test]
    fn budgets_have_room_for_every_right_answer() {
        assert!(run_budget(1, 1) > 1000);
        assert!(run_budget(u32::MAX, 10) > 1024 * (10 + 16) && run_budget(u32::MAX, 10) < 1 << 20);
        assert_eq!(run_budget(u32::MAX, 50), MAX_ANSWER);
        assert!(run_budget(10_000, 50) > 10_000 * (50 + 16) && run_budget(10_000, 50) < 4 << 20);
        assert!(run_budget(7, 100_000) > 7 * 100_000);
        assert!(state_budget(1 << 20) > 16 << 20);
    }
}
