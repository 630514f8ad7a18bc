//! Pure: a peer's reservations. A request and the time go in; an answer, facts for the log and, for a dispatch,
//! leave to run come out.
//!
//! What always holds:
//! - every reservation that isn't over has one leased slot of the executor, acquired when it was accepted. The lease
//!   is a value: it is kept in the reservation, moves into the execution, comes back with its end, and is dropped after
//!   the end is recorded. So reservations and executions together never exceed the slots;
//! - a reservation ends once: at prepare + ttl, at the end of its dispatch, or by its owner's cancel;
//! - ids are their owner's: a reservation or execution is known by its owner's authenticated peer id and the id together,
//!   so no one else can commit, cancel, use or occupy it;
//! - a prepare with a key that its owner has used returns the first reservation and takes no slot;
//! - an execution id runs at most once for its owner, and its answer is kept.
//!
//! Time is elapsed time: a clock that is set doesn't lengthen a reservation.

mod lent;
mod slots;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

pub use lent::LentSlot;
pub use slots::{NoSlot, Slots};

use super::executing::ExecutionError;
use super::kept_answers::{Execution, KeptAnswers};
use super::operation::BUNDLE;
use super::pace::Pace;
use super::used_keys::UsedKeys;
use super::wire::{
    CancelRequest, CommitRequest, DispatchAnswer, DispatchHead, EmptyObject, ExecutionTransition, MAX_DETAIL,
    MAX_REASON, PrepareAnswer, PrepareRequest, StepAnswer, UnusedTexts, time, write,
};
use crate::model::cut;
use crate::reservation::event::{EventBatch, Fact, ReservationRequest, Transition};
use crate::reservation::ledger::{self, ReservationCommand, ReservationState};

/// Shortest time to live.
pub const MIN_TTL: i64 = 5;
/// The contract's text for a peer without a free slot.
pub const FULL: &str = "peer capacity exhausted";
/// The reason for a prepare while nothing is begun on this device: it is paused, or not available.
pub const PAUSED: &str = "paused";
/// The contract's text for a dispatch without a committed reservation.
pub const NOT_COMMITTED: &str = "reservation not committed on target peer";

/// When something happens.
#[derive(Debug, Clone, Copy, Default)]
pub struct PeerTime {
    /// Since the host started. As exact as the clock: a reservation that was rounded down to milliseconds would end
    /// before its owner's time is over, and the next one would be one too many.
    pub elapsed: Duration,
    /// Microseconds since 1970, for the record.
    pub at: i64,
}

/// Who may reserve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allow {
    Any,
    Listed(HashSet<String>),
}

impl Allow {
    pub fn admits(&self, peer: &str) -> bool {
        match self {
            Allow::Any => true,
            Allow::Listed(list) => list.contains(peer),
        }
    }
}

/// What this peer lends, and within which bounds.
#[derive(Debug, Clone)]
pub struct PeerLimits {
    pub peer_id: String,
    pub allow: Allow,
    pub services: Vec<String>,
    pub max_ttl_seconds: i64,
    /// Most slots lent at once.
    pub max_slots: usize,
    /// Most slots lent to one peer at once.
    pub max_per_peer: usize,
    /// Longest execution that is taken on, in seconds: existing coordinators wait no longer.
    pub max_seconds: f64,
    /// Most operations of one execution.
    pub max_operations: Option<u64>,
}

/// The reason for a prepare that the ledger does not allow.
const NOT_RECORDED: &str =
    "this peer could not record the reservation; please report this as a bug of the peer";

/// The ledger does not allow what the table asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NotRecorded;

/// Which reservation is meant: its id is the owner's own, so two owners may use the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ReservationKey {
    owner: String,
    id: String,
}

impl ReservationKey {
    fn new(owner: &str, id: &str) -> ReservationKey {
        ReservationKey { owner: owner.into(), id: id.into() }
    }
}

/// A reservation that is not over.
#[derive(Debug)]
struct Reservation<Lease> {
    state: ReservationState,
    /// Its name in the log: the reservation's id and a number of this peer's, since owners may use an id again.
    name: String,
    /// When it ends by itself, as [`PeerTime::elapsed`].
    ends: Duration,
    slot: ReservedSlot<Lease>,
}

/// Where the leased slot of a reservation is.
#[derive(Debug)]
enum ReservedSlot<Lease> {
    /// Nothing runs in it.
    Idle(Lease),
    /// The execution of this id has the lease until it ends.
    InUse { execution_id: String },
}

impl<Lease> ReservedSlot<Lease> {
    fn is_idle(&self) -> bool {
        matches!(self, ReservedSlot::Idle(_))
    }
}

/// What a dispatch leads to.
#[derive(Debug)]
pub enum Dispatch<Lease> {
    Answer(Arc<[u8]>),
    /// The execution is running: its answer is this one's too.
    Wait,
    /// The execution is to be run in this slot, and the lease is to be given back to `finished` at its end.
    Run(Lease),
}

/// How much is lent now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerLoad {
    pub reservations: usize,
    pub executions: usize,
}

/// The peer's table.
#[derive(Debug)]
pub struct ReservationTable<Lease> {
    limits: PeerLimits,
    reservations: HashMap<ReservationKey, Reservation<Lease>>,
    kept: KeptAnswers,
    keys: UsedKeys,
    notes: Vec<EventBatch>,
    next: u64,
    pace: Pace,
}

/// How much one execution may ask for.
#[derive(Debug, Clone, Copy)]
pub struct ExecutionLimit {
    pace: Pace,
    pub max_seconds: f64,
    max_operations: Option<u64>,
}

impl ExecutionLimit {
    /// Checks an execution of so many operations and so much work: amplitudes times operations.
    ///
    /// # Errors
    /// When it has too many, or would take longer than allowed, going by the executions before it.
    pub fn check(self, operations: u64, work: f64) -> Result<(), ExecutionError> {
        if let Some(allowed) = self.max_operations.filter(|max| operations > *max) {
            return Err(ExecutionError::TooManyOperations { operations, allowed });
        }
        match self.pace.estimate(work) {
            Some(about) if about > self.max_seconds => {
                Err(ExecutionError::TooLong { about, allowed: self.max_seconds })
            }
            _ => Ok(()),
        }
    }
}

impl<Lease> ReservationTable<Lease> {
    /// `first` numbers the reservations in the log: it must be larger than any number of a former run.
    pub fn new(limits: PeerLimits, first: u64) -> ReservationTable<Lease> {
        ReservationTable {
            limits,
            reservations: HashMap::new(),
            kept: KeptAnswers::default(),
            keys: UsedKeys::default(),
            notes: Vec::new(),
            next: first,
            pace: Pace::default(),
        }
    }

    pub fn limits(&self) -> &PeerLimits {
        &self.limits
    }

    /// What an execution may ask for now. It is checked at prepare by the estimate, and again by the work itself.
    pub fn execution_limit(&self) -> ExecutionLimit {
        let PeerLimits { max_seconds, max_operations, .. } = self.limits;
        ExecutionLimit { pace: self.pace, max_seconds, max_operations }
    }

    /// What is to be logged, in order.
    pub fn notes(&mut self) -> Vec<EventBatch> {
        std::mem::take(&mut self.notes)
    }

    pub fn load(&self) -> PeerLoad {
        let executions = self.reservations.values().filter(|r| !r.slot.is_idle()).count();
        PeerLoad { reservations: self.reservations.len() - executions, executions }
    }

    /// When the next reservation ends by itself.
    pub fn next_end(&self) -> Option<Duration> {
        self.reservations.values().filter(|r| r.slot.is_idle()).map(|r| r.ends).min()
    }

    /// Ends the reservations whose time is over. Every request does that first.
    pub fn expire(&mut self, now: PeerTime) {
        let is_over = |r: &Reservation<Lease>| r.slot.is_idle() && r.ends <= now.elapsed;
        let ended: Vec<ReservationKey> =
            self.reservations.iter().filter(|(_, r)| is_over(r)).map(|(key, _)| key.clone()).collect();
        for key in ended {
            self.end(&key, &ReservationCommand::Expire, now);
        }
    }

    /// Records the end of a reservation, and drops its lease if nothing runs in it.
    fn end(&mut self, key: &ReservationKey, command: &ReservationCommand, now: PeerTime) {
        let Some(mut reservation) = self.reservations.remove(key) else { return };
        let recorded = self.record(&mut reservation, command, now);
        debug_assert!(recorded.is_ok(), "a reservation that is not over can end");
        if let Some(used) = &reservation.state.request.idempotency_key {
            self.keys.ended(&key.owner, used, reservation.state.transition);
        }
        // Dropped here, after the record: whoever gets the slot next is recorded later.
        drop(reservation);
    }

    /// Applies a command to a reservation and notes the facts for the log.
    fn record(
        &mut self,
        reservation: &mut Reservation<Lease>,
        command: &ReservationCommand,
        now: PeerTime,
    ) -> Result<(), NotRecorded> {
        // The table asks for nothing that its own states don't allow; the log gets only what the ledger allows.
        let facts = ledger::decide(Some(&reservation.state), command).map_err(|_| NotRecorded)?;
        let mut state = reservation.state.clone();
        for fact in &facts {
            state = ledger::fold(Some(state), now.at, fact).map_err(|_| NotRecorded)?;
        }
        reservation.state = state;
        self.notes.push(EventBatch { hold: reservation.name.clone(), at: now.at, facts });
        Ok(())
    }

    /// Answers a prepare.
    pub fn prepare(
        &mut self,
        now: PeerTime,
        owner: &str,
        request: &PrepareRequest,
        slots: &impl Slots<Lease = Lease>,
    ) -> PrepareAnswer {
        self.expire(now);
        if let Some(known) = self.reservations.get(&ReservationKey::new(owner, &request.reservation_id)) {
            return self.prepare_answer(now, request, known.state.transition, None);
        }
        if !self.limits.allow.admits(owner) {
            // Nothing is kept of strangers, not even a line in the log.
            let reason = "this peer lends nothing to you";
            return self.prepare_answer(now, request, Transition::Rejected, Some(reason));
        }
        if let Some(answer) = self.answer_of_used_key(now, owner, request) {
            return answer;
        }
        let acquired = match self.unfit(request, owner, slots.max_qubits()) {
            Some(reason) => Err(reason),
            None => slots.try_acquire().map_err(|no| match no {
                NoSlot::Full => FULL.to_string(),
                NoSlot::JobsWait => format!("{FULL}: cloud jobs wait for the next slot"),
                NoSlot::Paused => PAUSED.into(),
                NoSlot::Closing => "this peer is stopping".into(),
            }),
        };
        match acquired {
            Ok(lease) => {
                let now = PeerTime { at: slots.acquired_at(now.at), ..now };
                self.accept(now, owner, request, lease)
            }
            Err(reason) => self.decline(now, owner, request, reason),
        }
    }

    /// The answer to a prepare whose key its owner has used before: the first reservation, as it is now.
    fn answer_of_used_key(
        &self,
        now: PeerTime,
        owner: &str,
        request: &PrepareRequest,
    ) -> Option<PrepareAnswer> {
        let first = self.keys.get(owner, &request.idempotency_key)?;
        let live = || {
            let key = ReservationKey::new(owner, &first.reservation_id);
            self.reservations.get(&key).map(|r| r.state.transition)
        };
        let transition = first.ended.or_else(live)?;
        let answer = self.prepare_answer(now, request, transition, None);
        Some(PrepareAnswer { reservation_id: first.reservation_id.clone(), ..answer })
    }

    fn prepare_answer(
        &self,
        now: PeerTime,
        request: &PrepareRequest,
        transition: Transition,
        reason: Option<&str>,
    ) -> PrepareAnswer {
        PrepareAnswer {
            reservation_id: request.reservation_id.clone(),
            accepting_peer_id: self.limits.peer_id.clone(),
            transition: transition.into(),
            reason: reason.map(|r| cut(r, MAX_REASON).to_string()),
            replied_at: time(now.at),
        }
    }

    /// The name of the next reservation in the log. It is used up once something is noted under it.
    fn next_name(&self, request: &PrepareRequest) -> String {
        format!("{}/{}", request.reservation_id, self.next)
    }

    /// Notes a request that is not accepted.
    fn decline(
        &mut self,
        now: PeerTime,
        owner: &str,
        request: &PrepareRequest,
        reason: String,
    ) -> PrepareAnswer {
        let answer = self.prepare_answer(now, request, Transition::Rejected, Some(&reason));
        let facts = vec![Fact::Requested(requested(owner, request)), Fact::Rejected { reason }];
        self.notes.push(EventBatch { hold: self.next_name(request), at: now.at, facts });
        self.next += 1;
        answer
    }

    /// Keeps a reservation with its leased slot.
    fn accept(
        &mut self,
        now: PeerTime,
        owner: &str,
        request: &PrepareRequest,
        lease: Lease,
    ) -> PrepareAnswer {
        let name = self.next_name(request);
        let accepting_peer_id = self.limits.peer_id.clone();
        let facts = vec![
            Fact::Requested(requested(owner, request)),
            Fact::Accepted { accepting_peer_id, held: true },
        ];
        let Ok(Some(state)) = ledger::replay(facts.iter().map(|f| (now.at, f))) else {
            // What can't be recorded is not promised; the lease ends here.
            return self.prepare_answer(now, request, Transition::Rejected, Some(NOT_RECORDED));
        };
        self.next += 1;
        self.notes.push(EventBatch { hold: name.clone(), at: now.at, facts });
        let ttl = Duration::from_secs(request.ttl_seconds.unsigned_abs());
        let reservation = Reservation {
            state,
            name,
            ends: now.elapsed.saturating_add(ttl),
            slot: ReservedSlot::Idle(lease),
        };
        self.reservations.insert(ReservationKey::new(owner, &request.reservation_id), reservation);
        self.keys.insert(owner, &request.idempotency_key, &request.reservation_id);
        self.prepare_answer(now, request, Transition::Accepted, None)
    }

    /// Why a prepare is declined, whatever the slots.
    fn unfit(&self, request: &PrepareRequest, owner: &str, max_qubits: Option<u16>) -> Option<String> {
        let l = &self.limits;
        let Some(max_qubits) = max_qubits else {
            return Some("this device can't take over a quantum state (no evolve_state)".into());
        };
        let (qubits, ttl) = (request.estimated_qubits, request.ttl_seconds);
        let depth = request.estimated_depth;
        let operations = u64::try_from(depth).unwrap_or(0);
        let estimate = self.execution_limit().check(operations, work(qubits, depth));
        if ttl < MIN_TTL {
            Some(format!("ttl_seconds is {ttl}, at least {MIN_TTL} is needed"))
        } else if ttl > l.max_ttl_seconds {
            Some(format!("ttl_seconds is {ttl}, at most {} is allowed here", l.max_ttl_seconds))
        } else if request.service_id != BUNDLE && !l.services.contains(&request.service_id) {
            Some(format!("the service {} is not offered here", request.service_id))
        } else if qubits > i64::from(max_qubits) {
            Some(format!("{qubits} qubits are asked for, this device takes states of {max_qubits}"))
        } else if let Err(too_long) = estimate {
            Some(too_long.to_string())
        } else if self.reservations.len() >= l.max_slots {
            Some(FULL.into())
        } else if self.reservations.keys().filter(|key| key.owner == owner).count() >= l.max_per_peer {
            Some("too many open reservations of yours".into())
        } else {
            None
        }
    }

    /// Answers a commit.
    pub fn commit(&mut self, now: PeerTime, owner: &str, request: &CommitRequest) -> StepAnswer {
        self.expire(now);
        let id = &request.reservation_id;
        let transition = match self.reservations.remove_entry(&ReservationKey::new(owner, id)) {
            Some((key, mut reservation)) => {
                let is_recorded = match reservation.state.transition {
                    Transition::Accepted => {
                        self.record(&mut reservation, &ReservationCommand::Commit, now).is_ok()
                    }
                    _ => true,
                };
                let transition =
                    if is_recorded { reservation.state.transition } else { Transition::Rejected };
                self.reservations.insert(key, reservation);
                transition
            }
            None => Transition::Rejected,
        };
        StepAnswer { reservation_id: id.clone(), transition: transition.into(), replied_at: time(now.at) }
    }

    /// Answers a cancel; with the execution that is to be stopped, when there is one.
    pub fn cancel(
        &mut self,
        now: PeerTime,
        owner: &str,
        request: &CancelRequest,
    ) -> (StepAnswer, Option<String>) {
        self.expire(now);
        let id = &request.reservation_id;
        let key = ReservationKey::new(owner, id);
        let mut stop = None;
        if let Some(own) = self.reservations.get(&key) {
            match &own.slot {
                // The slot is the plugin's until it returns.
                ReservedSlot::InUse { execution_id } => stop = Some(execution_id.clone()),
                ReservedSlot::Idle(_) => {
                    let reason = request.reason.clone().unwrap_or_default();
                    self.end(&key, &ReservationCommand::Cancel { reason }, now);
                }
            }
        }
        // Unknown and foreign ones alike: who may not touch it learns nothing.
        let transition = Transition::Cancelled.into();
        (StepAnswer { reservation_id: id.clone(), transition, replied_at: time(now.at) }, stop)
    }

    /// Takes a dispatch: its kept answer, the execution that is running, or leave to run it.
    pub fn dispatch(&mut self, now: PeerTime, owner: &str, request: &DispatchHead) -> Dispatch<Lease> {
        self.expire(now);
        match self.kept.get(owner, &request.execution_id) {
            Some(Execution::Done(answer)) => return Dispatch::Answer(answer.clone()),
            Some(Execution::Running) => return Dispatch::Wait,
            None => {}
        }
        if let Some(lease) = self.begin_execution(now, owner, request) {
            self.kept.keep(owner, &request.execution_id, Execution::Running);
            return Dispatch::Run(lease);
        }
        let refusal: Arc<[u8]> = write(&failed(&self.limits.peer_id, request, NOT_COMMITTED, now)).into();
        if self.limits.allow.admits(owner) {
            self.kept.keep(owner, &request.execution_id, Execution::Done(refusal.clone()));
        }
        Dispatch::Answer(refusal)
    }

    /// Moves the lease out of the owner's committed reservation; `None` when there is no such reservation whose slot is
    /// idle, or the begin can't be recorded.
    fn begin_execution(&mut self, now: PeerTime, owner: &str, request: &DispatchHead) -> Option<Lease> {
        let key = ReservationKey::new(owner, &request.reservation_id);
        let (key, mut reservation) = self.reservations.remove_entry(&key)?;
        let may_run = reservation.state.transition == Transition::Committed && reservation.slot.is_idle();
        let command = ReservationCommand::Dispatch { execution_id: request.execution_id.clone() };
        let begins = may_run && self.record(&mut reservation, &command, now).is_ok();
        let in_use = ReservedSlot::InUse { execution_id: request.execution_id.clone() };
        let lease = match begins.then(|| std::mem::replace(&mut reservation.slot, in_use)) {
            Some(ReservedSlot::Idle(lease)) => Some(lease),
            Some(ReservedSlot::InUse { .. }) | None => None,
        };
        self.reservations.insert(key, reservation);
        lease
    }

    /// Takes note of an execution's end: its answer is kept, and its slot is free once the end is recorded.
    pub fn finished(
        &mut self,
        now: PeerTime,
        owner: &str,
        execution_id: &str,
        finish: ExecutionEnd,
        lease: Lease,
    ) {
        let is_running = |key: &ReservationKey, r: &Reservation<Lease>| {
            let uses =
                matches!(&r.slot, ReservedSlot::InUse { execution_id: running } if running == execution_id);
            key.owner == owner && uses
        };
        let found = self.reservations.iter().find(|(key, r)| is_running(key, r)).map(|(key, _)| key.clone());
        let Some(key) = found else {
            // Its owner may still ask for the answer.
            self.kept.keep(owner, execution_id, Execution::Done(finish.answer));
            return;
        };
        if finish.error.is_none() {
            self.pace.observe(finish.work, finish.seconds);
        }
        let execution_id = execution_id.to_string();
        let command = match finish.error {
            None => ReservationCommand::Complete {
                execution_id: execution_id.clone(),
                fidelity: finish.fidelity,
                latency_ms: finish.seconds * 1000.0,
            },
            Some(error) => ReservationCommand::Fail { execution_id: execution_id.clone(), error },
        };
        self.end(&key, &command, now);
        // After the record, as for a reservation that ends without an execution.
        drop(lease);
        self.kept.keep(owner, &execution_id, Execution::Done(finish.answer));
    }
}

/// How an execution ended.
#[derive(Debug)]
pub struct ExecutionEnd {
    pub answer: Arc<[u8]>,
    pub error: Option<String>,
    pub seconds: f64,
    /// What it really was: amplitudes times operations. An estimate is the owner's word.
    pub work: f64,
    pub fidelity: Option<f64>,
}

/// A prepare as the request that the log records.
fn requested(owner: &str, request: &PrepareRequest) -> ReservationRequest {
    ReservationRequest {
        workflow_run_id: request.workflow_run_id.clone(),
        fragment_id: request.fragment_id.clone(),
        service_id: request.service_id.clone(),
        requesting_peer_id: owner.into(),
        ttl_seconds: u64::try_from(request.ttl_seconds).unwrap_or(0),
        idempotency_key: Some(request.idempotency_key.clone()),
    }
}

/// Amplitudes times operations.
fn work(qubits: i64, depth: i64) -> f64 {
    2_f64.powi(i32::try_from(qubits).unwrap_or(i32::MAX)) * depth as f64
}

/// The answer to a dispatch that failed.
pub fn failed(
    peer_id: &str,
    request: &DispatchHead,
    error: &str,
    now: PeerTime,
) -> DispatchAnswer<EmptyObject> {
    DispatchAnswer {
        execution_id: request.execution_id.clone(),
        fragment_id: request.fragment_id.clone(),
        executing_peer_id: peer_id.into(),
        transition: ExecutionTransition::Failed,
        output_payload: EmptyObject {},
        latency_ms: None,
        fidelity_score: None,
        error_detail: Some(cut(error, MAX_DETAIL).to_string()),
        artifact_refs: UnusedTexts,
        completed_at: time(now.at),
    }
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
