//! The peer role: lends the executor's slots to coordinators.
//!
//! It lives on the network's thread and answers there; an execution runs on a slot's own thread and comes back on a
//! channel, with the lease of its slot. Large documents are read and written on other threads, so that a prepare never
//! waits for one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::amplitude::Complex;
use super::executing::{self, ExecutionError, FragmentJob};
use super::operation::Unitary;
use super::protocol::{self, Dispatch, ExecutionEnd, LentSlot, PeerLoad, PeerTime, ReservationTable, Slots};
use super::registry::{GossipError, Topic};
use super::swarm::{Announcement, Caller, Channel, Document, ReadyAnswer, Role};
use super::wire::{
    Advertisement, AnsweredTransition, CancelRequest, CommitRequest, DispatchHead, DocumentError,
    HealthStatus, PeerHeartbeat, PeerStep, PrepareRequest, ReceivedDispatch, SINGLE_READ_BYTES,
    ServiceSummary, read, time, write,
};
use crate::reservation::event::{EventBatch, Transition};
use crate::reservation::log::{Log, now_micros};

/// Documents from this size on, in bytes, are read and written on another thread than the network's.
const LARGE: usize = 64 << 10;
/// States of more qubits than this are read and written on another thread than the network's.
const LARGE_QUBITS: u16 = 10;
/// Facts are handed to the log when there are so many.
const NOTES_MAX: usize = 256;
/// Facts are handed to the log at the latest after this time.
const NOTES_WAIT: Duration = Duration::from_millis(20);

/// A state for the executor, the slot in which it is evolved, and where the result goes.
pub struct FragmentWork<Lease> {
    /// The host's own number of this execution, unlike that of any other.
    pub key: u64,
    pub lease: Lease,
    /// The owner's name of the execution: a label.
    pub execution_id: String,
    pub num_qubits: u16,
    pub amplitudes: Vec<Complex>,
    pub steps: Vec<Unitary>,
    pub done: Box<dyn FnOnce(FragmentResult<Lease>) + Send>,
}

/// How an execution ended. The slot stays leased until the peer has recorded the end.
pub struct FragmentResult<Lease> {
    pub lease: Lease,
    pub answer: Result<Vec<Complex>, ExecutionError>,
    pub run_time: Duration,
}

/// The executor as the peer sees it: slots that can be leased, and states that are evolved in a leased slot.
pub trait FragmentExecutor: Slots<Lease: Send + 'static> + Send + Sync + 'static {
    /// Evolves a state in the leased slot.
    fn evolve(&self, work: FragmentWork<Self::Lease>);

    /// Asks the execution with this key to end soon.
    fn stop(&self, key: u64);

    /// What a device of this kind reports of its fidelity: 1 for an exact simulator.
    fn fidelity(&self) -> Option<f64>;
}

/// The state of the peer, for `/ready` and metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerView {
    pub load: PeerLoad,
    pub lent: Vec<LentSlot>,
    /// The moment that the ends of reservations count from.
    pub started: Option<Instant>,
    pub accepted: u64,
    pub declined: u64,
    pub completed: u64,
    pub failed: u64,
}

/// A dispatch that runs, and the callers that wait for it.
struct RunningExecution {
    owner: String,
    request: DispatchHead,
    waiting: Vec<(Caller, Channel)>,
    started: Instant,
    /// It took too long, and was asked to end.
    overdue: bool,
}

/// What comes back to the network's thread.
enum ExecutionEvent<Lease> {
    /// A large document was read.
    Read(Caller, Channel, Result<ReceivedDispatch<Document>, DocumentError>),
    /// The executor has answered.
    Evolved(u64, FragmentJob, FragmentResult<Lease>),
    /// A fragment can't be run by the executor, or its answer is written.
    Done(FinishedExecution<Lease>),
}

/// An execution whose answer is written.
struct FinishedExecution<Lease> {
    key: u64,
    lease: Lease,
    outcome: Result<Vec<u8>, ExecutionError>,
    seconds: f64,
    /// Amplitudes times operations.
    work: f64,
}

/// The peer role.
pub struct Peer<E: FragmentExecutor> {
    table: ReservationTable<E::Lease>,
    executor: Arc<E>,
    log: Log,
    view: watch::Sender<PeerView>,
    started: Instant,
    running: HashMap<u64, RunningExecution>,
    next: u64,
    reports: mpsc::UnboundedSender<ExecutionEvent<E::Lease>>,
    inbox: mpsc::UnboundedReceiver<ExecutionEvent<E::Lease>>,
    ready: Vec<ReadyAnswer>,
    /// Facts that were not handed to the log's thread yet.
    unwritten: Vec<EventBatch>,
    /// When they are to be handed to it.
    write_at: Option<Instant>,
    trust_tier: &'static str,
    protocols: Vec<String>,
}

impl<E: FragmentExecutor> Peer<E> {
    pub fn new(
        table: ReservationTable<E::Lease>,
        executor: Arc<E>,
        log: Log,
        view: watch::Sender<PeerView>,
        namespace: &str,
    ) -> Peer<E> {
        let protocols = PeerStep::ALL.iter().map(|s| s.protocol(namespace)).collect();
        let (reports, inbox) = mpsc::unbounded_channel();
        Peer {
            table,
            executor,
            log,
            view,
            started: Instant::now(),
            running: HashMap::new(),
            next: 0,
            reports,
            inbox,
            ready: Vec::new(),
            unwritten: Vec::new(),
            write_at: None,
            trust_tier: "external",
            protocols,
        }
    }

    fn now(&self) -> PeerTime {
        PeerTime { elapsed: self.started.elapsed(), at: now_micros() }
    }

    /// Records what the table has decided and shows the new load.
    fn settle(&mut self) {
        self.unwritten.extend(self.table.notes());
        if self.unwritten.len() >= NOTES_MAX {
            self.write_notes();
        } else if !self.unwritten.is_empty() {
            self.write_at.get_or_insert_with(|| Instant::now() + NOTES_WAIT);
        }
        let (load, lent) = (self.table.load(), self.table.lent());
        self.view.send_if_modified(|v| {
            let changed = v.load != load || v.lent != lent;
            (v.load, v.lent, v.started) = (load, lent, Some(self.started));
            changed
        });
    }

    /// Hands the record to the log's thread: in one go, since each time wakes it.
    fn write_notes(&mut self) {
        self.write_at = None;
        let notes = std::mem::take(&mut self.unwritten);
        if !notes.is_empty() {
            self.log.append_in_background(notes);
        }
    }

    fn count(&self, field: fn(&mut PeerView) -> &mut u64) {
        self.view.send_modify(|v| *field(v) += 1);
    }

    fn prepare(&mut self, caller: &Caller, request: &PrepareRequest) -> Vec<u8> {
        let now = self.now();
        let answer = match self.log.is_writable() {
            true => self.table.prepare(now, &caller.peer, request, &*self.executor),
            // A reservation that can't be recorded must not be promised.
            false => super::wire::PrepareAnswer {
                reservation_id: request.reservation_id.clone(),
                accepting_peer_id: self.table.limits().peer_id.clone(),
                transition: Transition::Rejected.into(),
                reason: Some("this peer can't write its event log (disk full?)".into()),
                replied_at: time(now.at),
            },
        };
        if answer.transition == AnsweredTransition::Known(Transition::Rejected) {
            tracing::debug!(
                peer = caller.peer,
                reservation = answer.reservation_id,
                reason = answer.reason,
                "declined"
            );
            self.count(|v| &mut v.declined);
        } else {
            self.count(|v| &mut v.accepted);
        }
        write(&answer)
    }

    fn dispatch(
        &mut self,
        caller: Caller,
        channel: Channel,
        received: ReceivedDispatch<Document>,
    ) -> Option<ReadyAnswer> {
        let (now, request) = (self.now(), &received.head);
        let outcome = self.table.dispatch(now, &caller.peer, request);
        self.settle();
        match outcome {
            Dispatch::Answer(bytes) => {
                let bytes = self.readable(&caller, request, bytes.to_vec());
                Some(ReadyAnswer { step: PeerStep::Dispatch, channel, bytes })
            }
            Dispatch::Wait => {
                let same = |r: &&mut RunningExecution| {
                    r.owner == caller.peer && r.request.execution_id == request.execution_id
                };
                if let Some(running) = self.running.values_mut().find(same) {
                    running.waiting.push((caller, channel));
                }
                None
            }
            Dispatch::Run(lease) => {
                self.run(lease, caller, channel, received);
                None
            }
        }
    }

    /// Existing peers read one frame: what exceeds it would be lost, so they are told instead.
    fn readable(&self, caller: &Caller, request: &DispatchHead, bytes: Vec<u8>) -> Vec<u8> {
        if caller.ours || bytes.len() <= SINGLE_READ_BYTES {
            return bytes;
        }
        let error = format!(
            "the answer has {} bytes, and peers of your kind read at most {SINGLE_READ_BYTES} of one answer: \
             send fewer qubits, or reserve by a coda-host",
            bytes.len()
        );
        let peer_id = &self.table.limits().peer_id;
        write(&protocol::failed(peer_id, request, &error, self.now()))
    }

    /// Runs an admitted dispatch: only now is its payload decoded.
    fn run(
        &mut self,
        lease: E::Lease,
        caller: Caller,
        channel: Channel,
        received: ReceivedDispatch<Document>,
    ) {
        self.next += 1;
        let (key, reports, executor) = (self.next, self.reports.clone(), self.executor.clone());
        let is_large = received.payload().len() > LARGE
            || executing::claimed_qubits(&received) > i64::from(LARGE_QUBITS);
        let running = RunningExecution {
            owner: caller.peer.clone(),
            request: received.head.clone(),
            waiting: vec![(caller, channel)],
            started: Instant::now(),
            overdue: false,
        };
        self.running.insert(key, running);
        let max_qubits = self.executor.max_qubits().unwrap_or(0);
        let limit = self.table.execution_limit();
        let admitted = move |received: ReceivedDispatch<Document>| {
            let job = executing::read(&received, max_qubits)?;
            limit.check(job.operations(), job.work())?;
            Ok(job)
        };
        let work = move || match admitted(received) {
            Ok(job) => evolve(job, lease, &*executor, key, reports),
            Err(error) => {
                let done = FinishedExecution { key, lease, outcome: Err(error), seconds: 0.0, work: 0.0 };
                if reports.send(ExecutionEvent::Done(done)).is_err() {
                    tracing::debug!("a fragment was refused after the network had stopped");
                }
            }
        };
        match is_large {
            true => drop(tokio::task::spawn_blocking(work)),
            false => work(),
        }
    }

    /// Asks an execution of this owner to end.
    fn stop(&self, owner: &str, execution_id: &str) {
        // Two owners may give their executions the same id.
        let is_it = |r: &RunningExecution| r.owner == owner && r.request.execution_id == execution_id;
        if let Some((key, _)) = self.running.iter().find(|(_, running)| is_it(running)) {
            self.executor.stop(*key);
        }
    }

    /// The longest that an execution may run.
    fn longest(&self) -> Duration {
        Duration::try_from_secs_f64(self.table.limits().max_seconds).unwrap_or(Duration::MAX)
    }

    /// When the next execution has run for too long.
    fn next_overdue(&self) -> Option<Instant> {
        let running = self.running.values().filter(|r| !r.overdue);
        running.map(|r| r.started).min()?.checked_add(self.longest())
    }

    /// Asks executions to end that run for too long, whatever was estimated.
    fn stop_overdue(&mut self) {
        let longest = self.longest();
        for (key, running) in self.running.iter_mut().filter(|(_, r)| !r.overdue) {
            if running.started.elapsed() >= longest {
                running.overdue = true;
                let execution = &running.request.execution_id;
                tracing::warn!(peer = running.owner, execution, limit = ?longest, "an execution takes too long; ending it");
                self.executor.stop(*key);
            }
        }
    }

    fn apply(&mut self, report: ExecutionEvent<E::Lease>) {
        match report {
            ExecutionEvent::Read(caller, channel, Ok(received)) => {
                let ready = self.dispatch(caller, channel, received);
                self.ready.extend(ready);
            }
            ExecutionEvent::Read(caller, _, Err(why)) => refuse(&caller, PeerStep::Dispatch, &why),
            ExecutionEvent::Evolved(key, job, result) => self.evolved(key, job, result),
            ExecutionEvent::Done(done) => self.done(done),
        }
    }

    /// Writes an answer: here, or on another thread when it is large.
    fn evolved(&mut self, key: u64, job: FragmentJob, result: FragmentResult<E::Lease>) {
        let FragmentResult { lease, answer, run_time } = result;
        let (seconds, work) = (run_time.as_secs_f64(), job.work());
        let (fidelity, now) = (self.executor.fidelity(), self.now());
        let (peer_id, is_large) = (self.table.limits().peer_id.clone(), job.num_qubits > LARGE_QUBITS);
        let write_answer = move || {
            let state = answer?;
            executing::check(&state, job.num_qubits)?;
            Ok(executing::answer(job, &state, &peer_id, seconds * 1000.0, fidelity, now))
        };
        if !is_large {
            return self.done(FinishedExecution { key, lease, outcome: write_answer(), seconds, work });
        }
        let reports = self.reports.clone();
        tokio::task::spawn_blocking(move || {
            let done = FinishedExecution { key, lease, outcome: write_answer(), seconds, work };
            if reports.send(ExecutionEvent::Done(done)).is_err() {
                tracing::debug!("an answer was written after the network had stopped");
            }
        });
    }

    fn done(&mut self, done: FinishedExecution<E::Lease>) {
        let FinishedExecution { key, lease, outcome, seconds, work } = done;
        let Some(running) = self.running.remove(&key) else {
            tracing::error!(key, "an execution ended that is not known to run; please report this as a bug");
            return;
        };
        let now = self.now();
        let (bytes, error) = match outcome {
            Ok(bytes) => (bytes, None),
            Err(error) => {
                let allowed = self.table.limits().max_seconds;
                let error = if running.overdue { ExecutionError::Ended { allowed } } else { error };
                let error = error.to_string();
                let peer_id = &self.table.limits().peer_id;
                (write(&protocol::failed(peer_id, &running.request, &error, now)), Some(error))
            }
        };
        let execution = &running.request.execution_id;
        match &error {
            Some(error) => {
                tracing::info!(peer = running.owner, execution, error, "a fragment failed");
                self.count(|v| &mut v.failed);
            }
            None => {
                tracing::debug!(peer = running.owner, execution, took = ?running.started.elapsed(), "a fragment ran");
                self.count(|v| &mut v.completed);
            }
        }
        let fidelity = if error.is_none() { self.executor.fidelity() } else { None };
        let answer: Arc<[u8]> = bytes.into();
        let finish = ExecutionEnd { answer: answer.clone(), error, seconds, work, fidelity };
        self.table.finished(now, &running.owner, execution, finish, lease);
        self.settle();
        for (caller, channel) in running.waiting {
            let bytes = self.readable(&caller, &running.request, answer.to_vec());
            self.ready.push(ReadyAnswer { step: PeerStep::Dispatch, channel, bytes });
        }
    }
}

/// Hands a job to the executor, whose result comes back as a report.
fn evolve<E: FragmentExecutor>(
    mut job: FragmentJob,
    lease: E::Lease,
    executor: &E,
    key: u64,
    reports: mpsc::UnboundedSender<ExecutionEvent<E::Lease>>,
) {
    let (num_qubits, execution_id) = (job.num_qubits, job.execution_id.clone());
    let (amplitudes, steps) = job.take_input();
    // On the slot's thread, which has the next call to do.
    let done = move |result: FragmentResult<E::Lease>| {
        if reports.send(ExecutionEvent::Evolved(key, job, result)).is_err() {
            tracing::debug!("an execution ended after the network had stopped");
        }
    };
    let done = Box::new(done);
    executor.evolve(FragmentWork { key, lease, execution_id, num_qubits, amplitudes, steps, done });
}

fn refuse(caller: &Caller, step: PeerStep, why: &DocumentError) {
    tracing::debug!(peer = caller.peer, step = step.name(), %why, "a request breaks the contract's form");
}

impl<E: FragmentExecutor> Drop for Peer<E> {
    fn drop(&mut self) {
        self.write_notes();
    }
}

impl<E: FragmentExecutor> Role for Peer<E> {
    fn serves(&self) -> bool {
        true
    }

    fn request(
        &mut self,
        caller: Caller,
        step: PeerStep,
        document: Document,
        channel: Channel,
    ) -> Option<ReadyAnswer> {
        if step == PeerStep::Dispatch && document.bytes.len() > LARGE {
            let reports = self.reports.clone();
            tokio::task::spawn_blocking(move || {
                let received = ReceivedDispatch::read(document);
                if reports.send(ExecutionEvent::Read(caller, channel, received)).is_err() {
                    tracing::debug!("a request was read after the network had stopped");
                }
            });
            return None;
        }
        if step == PeerStep::Dispatch {
            return match ReceivedDispatch::read(document) {
                Ok(received) => self.dispatch(caller, channel, received),
                Err(why) => {
                    refuse(&caller, step, &why);
                    None
                }
            };
        }
        let bytes = &document.bytes;
        let answered = match step {
            PeerStep::Prepare => read(bytes).map(|r| self.prepare(&caller, &r)),
            PeerStep::Commit => {
                read::<CommitRequest>(bytes).map(|r| write(&self.table.commit(self.now(), &caller.peer, &r)))
            }
            PeerStep::Cancel => read::<CancelRequest>(bytes).map(|r| {
                let (answer, stop) = self.table.cancel(self.now(), &caller.peer, &r);
                if let Some(execution) = stop {
                    self.stop(&caller.peer, &execution);
                }
                write(&answer)
            }),
            // Answered above, because its document is kept.
            PeerStep::Dispatch => return None,
        };
        self.settle();
        match answered {
            Ok(bytes) => Some(ReadyAnswer { step, channel, bytes }),
            Err(why) => {
                refuse(&caller, step, &why);
                None
            }
        }
    }

    async fn work(&mut self) {
        let end = self.table.next_end().map(|end| self.started + end);
        let end = end.into_iter().chain(self.write_at).chain(self.next_overdue()).min();
        let expiry = async {
            match end {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            report = self.inbox.recv() => {
                if let Some(report) = report {
                    self.apply(report);
                }
            }
            () = expiry => {
                self.table.expire(self.now());
                self.settle();
                self.stop_overdue();
                if self.write_at.is_some_and(|at| at <= Instant::now()) {
                    self.write_notes();
                }
            }
        }
    }

    fn answers(&mut self) -> Vec<ReadyAnswer> {
        std::mem::take(&mut self.ready)
    }

    fn hear(&mut self, author: &str, topic: Topic, bytes: &[u8]) -> Result<(), GossipError> {
        // A peer needs nobody's news, but passes on what is genuine.
        super::registry::Registry::new(0).hear(0, author, topic, bytes)
    }

    fn announcement(&self, addresses: &[String]) -> Option<Announcement> {
        let limits = self.table.limits();
        let emitted_at = time(now_micros());
        let load = self.table.load();
        let advertisement = Advertisement {
            peer_id: limits.peer_id.clone(),
            trust_tier: self.trust_tier.into(),
            network_addresses: addresses.to_vec(),
            supported_protocols: self.protocols.clone(),
            service_summaries: limits
                .services
                .iter()
                .map(|service| ServiceSummary {
                    service_id: service.clone(),
                    version: "1.0.0".into(),
                    quantum_capability: service.clone(),
                    benchmark_mode: "sim".into(),
                })
                .collect(),
            peer_log_position: 0,
            emitted_at: emitted_at.clone(),
        };
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let heartbeat = PeerHeartbeat {
            peer_id: limits.peer_id.clone(),
            // Coordinators plan on healthy peers alone.
            health_status: match self.executor.max_qubits() {
                Some(_) if !self.executor.is_paused() => HealthStatus::Healthy,
                _ => HealthStatus::Degraded,
            },
            active_reservations: count(load.reservations),
            active_executions: count(load.executions),
            peer_log_position: 0,
            emitted_at,
        };
        Some(Announcement { advertisement: write(&advertisement), heartbeat: write(&heartbeat) })
    }
}
