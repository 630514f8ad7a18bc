//! Pure: a peer's reservations. A request and the time go in; an answer, facts for the log and, for a dispatch,
//! leave to run come out.
//!
//! What always holds:
//! - every reservation that isn't over holds one slot of the executor, taken when it was accepted: held and running
//!   together never exceed the slots;
//! - a hold ends once: at prepare + ttl, at the end of its dispatch, or by its owner's cancel;
//! - only who made a reservation, by the authenticated peer id, may commit, cancel or use it;
//! - an execution id runs at most once for its owner, and its answer is kept.
//!
//! Time is elapsed time: a clock that is set doesn't lengthen a hold.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::operation::BUNDLE;
use super::wire::{
    CancelRequest, CommitRequest, DispatchAnswer, DispatchRequest, MAX_DETAIL, MAX_REASON, PrepareAnswer,
    PrepareRequest, StepAnswer, time, write,
};
use crate::model::cut;
use crate::reservation::event::{EventBatch, Fact, Request, Transition};
use crate::reservation::ledger::{self, Command, State};

/// Shortest time to live.
pub const MIN_TTL: i64 = 5;
/// The contract's text for a peer without a free slot.
pub const FULL: &str = "peer capacity exhausted";
/// The contract's text for a dispatch without a committed reservation.
pub const NOT_COMMITTED: &str = "reservation not committed on target peer";

/// When something happens.
#[derive(Debug, Clone, Copy, Default)]
pub struct Now {
    /// Since the host started. As exact as the clock: a hold that was rounded down to milliseconds would end before its
    /// owner's time is over, and the next one would be a hold too many.
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
pub struct Limits {
    pub peer_id: String,
    pub allow: Allow,
    pub services: Vec<String>,
    pub max_ttl_seconds: i64,
    /// Most slots lent at once, in all and to one peer.
    pub max_slots: usize,
    pub max_per_peer: usize,
    /// Longest execution that is taken on, in seconds: existing coordinators wait no longer.
    pub max_seconds: f64,
}

/// Answers kept for each owner: so many, and so many bytes.
const KEPT_ANSWERS: usize = 1024;
const KEPT_BYTES: usize = 32 << 20;
/// Owners whose answers are kept.
const KEPT_OWNERS: usize = 256;

/// Why there is no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSlot {
    Full,
    /// Cloud jobs wait for one: they go first.
    JobsWait,
    /// The host is stopping.
    Closing,
}

/// The executor's slots, shared with cloud jobs.
pub trait Slots {
    /// Holds a free slot.
    ///
    /// # Errors
    /// When there is none for a reservation.
    fn take(&mut self) -> Result<(), NoSlot>;

    fn give(&mut self);

    /// Most qubits of a state that the executor takes now; none when it can't take over a state at all.
    fn max_qubits(&self) -> Option<u16>;
}

/// A reservation that is not over.
#[derive(Debug)]
struct Held {
    owner: String,
    state: State,
    /// Its name in the log: the reservation's id and a number of ours, since ids come again.
    name: String,
    /// As [`Now::elapsed`].
    ends: Duration,
    /// The execution that uses it.
    running: Option<String>,
    /// What was estimated at prepare, for the pace.
    work: f64,
}

/// The answers that one owner may ask for again.
#[derive(Debug, Default)]
struct Kept {
    order: VecDeque<String>,
    executions: HashMap<String, Execution>,
    bytes: usize,
}

#[derive(Debug)]
enum Execution {
    Running,
    Done(Arc<[u8]>),
}

/// What a dispatch leads to.
#[derive(Debug)]
pub enum Dispatch {
    Answer(Arc<[u8]>),
    /// The execution is running: its answer is this one's too.
    Wait,
    /// It is to be run on the slot that is held for it, and `finished` is to be told.
    Run,
}

/// What was done, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    pub reservations: usize,
    pub executions: usize,
}

/// The peer's table.
#[derive(Debug)]
pub struct Table {
    limits: Limits,
    held: HashMap<String, Held>,
    kept: HashMap<String, Kept>,
    /// Owners with kept answers, the least recent first.
    owners: VecDeque<String>,
    notes: Vec<EventBatch>,
    next: u64,
    /// Seconds for one amplitude and operation, as last measured.
    pace: f64,
}

impl Table {
    /// `first` numbers the holds: larger than in any former run.
    pub fn new(limits: Limits, first: u64) -> Table {
        Table {
            limits,
            held: HashMap::new(),
            kept: HashMap::new(),
            owners: VecDeque::new(),
            notes: Vec::new(),
            next: first,
            pace: 0.0,
        }
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What is to be logged, in order.
    pub fn notes(&mut self) -> Vec<EventBatch> {
        std::mem::take(&mut self.notes)
    }

    pub fn load(&self) -> Load {
        let executions = self.held.values().filter(|h| h.running.is_some()).count();
        Load { reservations: self.held.len() - executions, executions }
    }

    /// When the next hold ends by itself.
    pub fn next_end(&self) -> Option<Duration> {
        self.held.values().filter(|h| h.running.is_none()).map(|h| h.ends).min()
    }

    /// Ends the holds whose time is over. Every request does that first.
    pub fn expire(&mut self, now: Now, slots: &mut dyn Slots) {
        let over = |h: &Held| h.running.is_none() && h.ends <= now.elapsed;
        let ended: Vec<String> =
            self.held.iter().filter(|(_, h)| over(h)).map(|(id, _)| id.clone()).collect();
        for id in ended {
            self.end(&id, &Command::Expire, now, slots);
        }
    }

    /// Records the end of a hold and gives its slot back.
    fn end(&mut self, id: &str, command: &Command, now: Now, slots: &mut dyn Slots) {
        let Some(mut held) = self.held.remove(id) else { return };
        self.record(&mut held, command, now);
        slots.give();
    }

    fn record(&mut self, held: &mut Held, command: &Command, now: Now) {
        // The table asks for nothing that its own states don't allow; the log gets only what the ledger allows.
        let Ok(facts) = ledger::decide(Some(&held.state), command) else { return };
        for fact in &facts {
            if let Ok(state) = ledger::fold(Some(held.state.clone()), now.at, fact) {
                held.state = state;
            }
        }
        self.notes.push(EventBatch { hold: held.name.clone(), at: now.at, facts });
    }

    /// Answers a prepare.
    pub fn prepare(
        &mut self,
        now: Now,
        owner: &str,
        request: &PrepareRequest,
        slots: &mut dyn Slots,
    ) -> PrepareAnswer {
        self.expire(now, slots);
        let answer = |transition: Transition, reason: Option<&str>| PrepareAnswer {
            reservation_id: request.reservation_id.clone(),
            accepting_peer_id: self.limits.peer_id.clone(),
            transition: transition.name().into(),
            reason: reason.map(|r| cut(r, MAX_REASON).to_string()),
            replied_at: time(now.at),
        };
        if let Some(held) = self.held.get(&request.reservation_id) {
            return match held.owner == owner {
                true => answer(held.state.transition, None),
                false => answer(Transition::Rejected, Some("this reservation id is another peer's")),
            };
        }
        if !self.limits.allow.admits(owner) {
            // Nothing is kept of strangers, not even a line in the log.
            return answer(Transition::Rejected, Some("this peer lends nothing to you"));
        }
        let taken = match self.unfit(request, owner, slots.max_qubits()) {
            Some(reason) => Err(reason),
            None => slots.take().map_err(|no| match no {
                NoSlot::Full => FULL.to_string(),
                NoSlot::JobsWait => format!("{FULL}: cloud jobs wait for the next slot"),
                NoSlot::Closing => "this peer is stopping".into(),
            }),
        };
        let asked = Request {
            workflow_run_id: request.workflow_run_id.clone(),
            fragment_id: request.fragment_id.clone(),
            service_id: request.service_id.clone(),
            requesting_peer_id: owner.into(),
            ttl_seconds: u64::try_from(request.ttl_seconds).unwrap_or(0),
            idempotency_key: Some(request.idempotency_key.clone()),
        };
        let name = format!("{}/{}", request.reservation_id, self.next);
        if let Err(reason) = taken {
            let answer = answer(Transition::Rejected, Some(&reason));
            self.next += 1;
            let facts = vec![Fact::Requested(asked), Fact::Rejected { reason }];
            self.notes.push(EventBatch { hold: name, at: now.at, facts });
            return answer;
        }
        let accepted = answer(Transition::Accepted, None);
        let facts = vec![
            Fact::Requested(asked),
            Fact::Accepted { accepting_peer_id: self.limits.peer_id.clone(), held: true },
        ];
        let Ok(Some(state)) = ledger::replay(facts.iter().map(|f| (now.at, f))) else {
            slots.give();
            return accepted;
        };
        self.next += 1;
        self.notes.push(EventBatch { hold: name.clone(), at: now.at, facts });
        let ends = now.elapsed.saturating_add(Duration::from_secs(request.ttl_seconds.unsigned_abs()));
        let held = Held {
            owner: owner.into(),
            state,
            name,
            ends,
            running: None,
            work: work(request.estimated_qubits, request.estimated_depth),
        };
        self.held.insert(request.reservation_id.clone(), held);
        accepted
    }

    /// Why a prepare is declined, whatever the slots.
    fn unfit(&self, request: &PrepareRequest, owner: &str, max_qubits: Option<u16>) -> Option<String> {
        let l = &self.limits;
        let Some(max_qubits) = max_qubits else {
            return Some("this device can't take over a quantum state (no evolve_state)".into());
        };
        let (qubits, ttl) = (request.estimated_qubits, request.ttl_seconds);
        let seconds = self.pace * work(qubits, request.estimated_depth);
        if ttl < MIN_TTL {
            Some(format!("ttl_seconds is {ttl}, at least {MIN_TTL} is needed"))
        } else if ttl > l.max_ttl_seconds {
            Some(format!("ttl_seconds is {ttl}, at most {} is allowed here", l.max_ttl_seconds))
        } else if request.service_id != BUNDLE && !l.services.contains(&request.service_id) {
            Some(format!("the service {} is not offered here", request.service_id))
        } else if qubits > i64::from(max_qubits) {
            Some(format!("{qubits} qubits are asked for, this device takes states of {max_qubits}"))
        } else if seconds > l.max_seconds {
            Some(format!("it would take about {seconds:.0} s, at most {} s are taken on here", l.max_seconds))
        } else if self.held.len() >= l.max_slots {
            Some(FULL.into())
        } else if self.held.values().filter(|h| h.owner == owner).count() >= l.max_per_peer {
            Some("too many open reservations of yours".into())
        } else {
            None
        }
    }

    /// Answers a commit.
    pub fn commit(
        &mut self,
        now: Now,
        owner: &str,
        request: &CommitRequest,
        slots: &mut dyn Slots,
    ) -> StepAnswer {
        self.expire(now, slots);
        let id = &request.reservation_id;
        let own = self.held.remove(id);
        let transition = match own {
            Some(mut held) if held.owner == owner => {
                if held.state.transition == Transition::Accepted {
                    self.record(&mut held, &Command::Commit, now);
                }
                let transition = held.state.transition;
                self.held.insert(id.clone(), held);
                transition
            }
            other => {
                if let Some(foreign) = other {
                    self.held.insert(id.clone(), foreign);
                }
                Transition::Rejected
            }
        };
        StepAnswer {
            reservation_id: id.clone(),
            transition: transition.name().into(),
            replied_at: time(now.at),
        }
    }

    /// Answers a cancel; the execution that is to be stopped, when there is one.
    pub fn cancel(
        &mut self,
        now: Now,
        owner: &str,
        request: &CancelRequest,
        slots: &mut dyn Slots,
    ) -> (StepAnswer, Option<String>) {
        self.expire(now, slots);
        let id = &request.reservation_id;
        let mut stop = None;
        if let Some(held) = self.held.get(id).filter(|h| h.owner == owner) {
            match &held.running {
                // The slot is the plugin's until it returns.
                Some(execution) => stop = Some(execution.clone()),
                None => {
                    let reason = request.reason.clone().unwrap_or_default();
                    self.end(id, &Command::Cancel { reason }, now, slots);
                }
            }
        }
        // Unknown and foreign ones alike: who may not touch it learns nothing.
        let transition = Transition::Cancelled.name().into();
        (StepAnswer { reservation_id: id.clone(), transition, replied_at: time(now.at) }, stop)
    }

    /// Takes a dispatch: its kept answer, the one that is running, or leave to run it.
    pub fn dispatch(
        &mut self,
        now: Now,
        owner: &str,
        request: &DispatchRequest,
        slots: &mut dyn Slots,
    ) -> Dispatch {
        self.expire(now, slots);
        match self.kept.get(owner).and_then(|k| k.executions.get(&request.execution_id)) {
            Some(Execution::Done(answer)) => return Dispatch::Answer(answer.clone()),
            Some(Execution::Running) => return Dispatch::Wait,
            None => {}
        }
        let committed = |h: &&mut Held| {
            h.owner == owner && h.state.transition == Transition::Committed && h.running.is_none()
        };
        if self.held.get_mut(&request.reservation_id).filter(committed).is_none() {
            let refusal: Arc<[u8]> = write(&failed(&self.limits.peer_id, request, NOT_COMMITTED, now)).into();
            if self.limits.allow.admits(owner) {
                self.keep(owner, &request.execution_id, Execution::Done(refusal.clone()));
            }
            return Dispatch::Answer(refusal);
        }
        let Some(mut held) = self.held.remove(&request.reservation_id) else {
            return Dispatch::Wait;
        };
        let execution_id = request.execution_id.clone();
        self.record(&mut held, &Command::Dispatch { execution_id: execution_id.clone() }, now);
        held.running = Some(execution_id.clone());
        self.held.insert(request.reservation_id.clone(), held);
        self.keep(owner, &execution_id, Execution::Running);
        Dispatch::Run
    }

    /// Takes note of an execution's end: its answer is kept, and its slot free.
    pub fn finished(
        &mut self,
        now: Now,
        owner: &str,
        execution_id: &str,
        finish: Finish,
        slots: &mut dyn Slots,
    ) {
        let running = |h: &Held| h.owner == owner && h.running.as_deref() == Some(execution_id);
        let found = self.held.iter().find(|(_, h)| running(h)).map(|(id, h)| (id.clone(), h.work));
        let Some((id, work)) = found else { return };
        if finish.error.is_none() && work > 0.0 {
            // The slowest counts, and is forgotten slowly.
            self.pace = (finish.seconds / work).max(self.pace * 0.9);
        }
        let execution_id = execution_id.to_string();
        let command = match finish.error {
            None => Command::Complete {
                execution_id: execution_id.clone(),
                fidelity: finish.fidelity,
                latency_ms: finish.seconds * 1000.0,
            },
            Some(error) => Command::Fail { execution_id: execution_id.clone(), error },
        };
        self.end(&id, &command, now, slots);
        self.keep(owner, &execution_id, Execution::Done(finish.answer));
    }

    fn keep(&mut self, owner: &str, execution_id: &str, execution: Execution) {
        if !self.kept.contains_key(owner) {
            let oldest = |k: &Kept| !k.executions.values().any(|e| matches!(e, Execution::Running));
            while self.owners.len() >= KEPT_OWNERS {
                let Some(at) = self.owners.iter().position(|o| self.kept.get(o).is_none_or(oldest)) else {
                    break;
                };
                if let Some(gone) = self.owners.remove(at) {
                    self.kept.remove(&gone);
                }
            }
            self.owners.push_back(owner.into());
        }
        let kept = self.kept.entry(owner.into()).or_default();
        if let Execution::Done(answer) = &execution {
            kept.bytes += answer.len();
        }
        if kept.executions.insert(execution_id.into(), execution).is_none() {
            kept.order.push_back(execution_id.into());
        }
        let mut looked = 0;
        while (kept.order.len() > KEPT_ANSWERS || kept.bytes > KEPT_BYTES) && looked < kept.order.len() {
            let Some(oldest) = kept.order.pop_front() else { break };
            match kept.executions.get(&oldest) {
                // The newest is what was just answered.
                Some(Execution::Done(answer)) if oldest != execution_id => {
                    kept.bytes -= answer.len();
                    kept.executions.remove(&oldest);
                }
                _ => {
                    kept.order.push_back(oldest);
                    looked += 1;
                }
            }
        }
    }
}

/// How an execution ended.
#[derive(Debug)]
pub struct Finish {
    pub answer: Arc<[u8]>,
    pub error: Option<String>,
    pub seconds: f64,
    pub fidelity: Option<f64>,
}

/// Amplitudes times operations.
fn work(qubits: i64, depth: i64) -> f64 {
    2_f64.powi(i32::try_from(qubits).unwrap_or(i32::MAX)) * depth as f64
}

/// The answer to a dispatch that failed.
pub fn failed(peer_id: &str, request: &DispatchRequest, error: &str, now: Now) -> DispatchAnswer {
    DispatchAnswer {
        execution_id: request.execution_id.clone(),
        fragment_id: request.fragment_id.clone(),
        executing_peer_id: peer_id.into(),
        transition: "failed".into(),
        output_payload: serde_json::json!({}),
        latency_ms: None,
        fidelity_score: None,
        error_detail: Some(cut(error, MAX_DETAIL).to_string()),
        artifact_refs: Vec::new(),
        completed_at: time(now.at),
    }
}

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
