//! One attempt: prepare, commit and dispatch a block, or as much of it as the peer takes at once, with one peer.
//!
//! ```text
//! prepare ─ accepted ─> commit ─ committed ─> dispatch ─ completed ─> done
//!    │ not accepted        │ not committed        │ not completed
//!    v rejected            v cancel, cancelled    v failed
//! ```
//!
//! Every step is on disk before the next message leaves. A peer that can't be reached, is late or sends an invalid
//! answer has failed at that step: a cancel is sent to it in the background, and the claim on its slot ends with that
//! cancel. An attempt that is dropped in the middle, because its job has failed elsewhere, is ended the same way.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::answer::{AnswerError, DispatchOutcome, check_echo, known_transition, read_dispatch_answer};
use super::combine::Component;
use super::directory::SlotClaim;
use super::fallback::{BlockRun, BlockRunner, uuid4};
use super::plan::PlannedFragment;
use super::track_record::PeerFailure;
use crate::peers::amplitude;
use crate::peers::protocol::{FULL, PAUSED};
use crate::peers::swarm::Document;
use crate::peers::wire::{
    CancelRequest, CommitRequest, DispatchRequest, Fragment, InputPayload, PeerStep, PrepareAnswer,
    PrepareRequest, QuantumState, SINGLE_READ_BYTES, StepAnswer, read, time, write,
};
use crate::reservation::event::{ReservationRequest, Transition};
use crate::reservation::ledger::ReservationCommand;
use crate::reservation::log::{AppendError, LogError, now_micros};

/// Pause between two attempts to send a cancel to a peer that is not connected yet.
const RETRY_CANCEL: Duration = Duration::from_millis(500);
/// Why a reservation is cancelled whose attempt was dropped.
const DROPPED: &str = "the job has ended";

/// Most bytes of fragments in one dispatch: thousands of gates.
const MAX_FRAGMENT_BYTES: usize = 1 << 20;
/// Most amplitudes times operations in one dispatch, beyond its first operation: a simulator runs them in about a second,
/// so that no peer has to decline for the time they take, and little is repeated when one goes away.
const MAX_WORK: usize = 1 << 28;

/// What a peer made of a block.
pub struct BlockResult {
    pub state: Component,
    /// How many of the fragments it was given at once.
    pub fragments: usize,
    pub fidelity: Option<f64>,
    pub latency_ms: f64,
}

/// Why one candidate did not complete the block.
pub enum CandidateFailure {
    /// It has no free slot now.
    Full(String),
    /// It could not be reached before it was given the work.
    Gone(String),
    /// It could not be reached any more once it had the work.
    Lost(String),
    /// It did not answer in time, before it had the work.
    Late(String),
    /// It failed.
    Failed(String),
    /// It said that the execution failed.
    Reported(String),
    /// The event log failed. Nothing more may be done, since nothing can be recorded.
    Stop(LogError),
}

impl From<LogError> for CandidateFailure {
    fn from(error: LogError) -> CandidateFailure {
        CandidateFailure::Stop(error)
    }
}

impl From<AppendError> for CandidateFailure {
    fn from(error: AppendError) -> CandidateFailure {
        match error {
            AppendError::Log(error) => CandidateFailure::Stop(error),
            // The reservation was ended meanwhile: by the API, or because it expired.
            other => CandidateFailure::Failed(other.to_string()),
        }
    }
}

/// A reservation at one peer, from before its prepare leaves until it has ended there. Dropped before that, it is
/// cancelled in the background.
pub struct PeerReservation {
    runner: BlockRunner,
    peer: String,
    id: String,
    execution_id: Option<String>,
    /// None when the reservation has ended, or a cancel that is being sent has the claim.
    claim: Option<SlotClaim>,
}

impl Drop for PeerReservation {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            let end = self.end(DROPPED);
            self.cancel_in_background(claim, DROPPED, Some(end));
        }
    }
}

impl PeerReservation {
    pub fn new(runner: &BlockRunner, claim: SlotClaim, id: String) -> PeerReservation {
        let (runner, peer) = (runner.clone(), claim.peer.clone());
        PeerReservation { runner, peer, id, execution_id: None, claim: Some(claim) }
    }

    /// Runs the block in this reservation.
    ///
    /// # Errors
    /// When the peer has no slot, can't be reached or has failed, or an event can't be recorded.
    pub async fn run(mut self, run: &BlockRun<'_>) -> Result<BlockResult, CandidateFailure> {
        let request = ReservationRequest {
            workflow_run_id: run.workflow_run_id.into(),
            fragment_id: run.block.block_id.clone(),
            service_id: run.block.service_id.clone(),
            requesting_peer_id: self.runner.network.peer_id(),
            ttl_seconds: self.runner.limits.ttl_seconds,
            idempotency_key: None,
        };
        let caller = request.requesting_peer_id.clone();
        if let Err(error) = self.runner.log.request(&self.id, &caller, request).await {
            // Nothing was asked of the peer.
            self.claim = None;
            return Err(error.into());
        }
        let committed = self.prepare(run).await?;
        if !committed {
            self.commit(run).await?;
        }
        self.dispatch(run).await
    }

    /// Asks the peer for a slot. Returns true when the peer has committed it already.
    async fn prepare(&mut self, run: &BlockRun<'_>) -> Result<bool, CandidateFailure> {
        let count = |n: usize| i64::try_from(n.max(1)).unwrap_or(i64::MAX);
        let limits = &self.runner.limits;
        let prepare = PrepareRequest {
            reservation_id: self.id.clone(),
            workflow_run_id: run.workflow_run_id.into(),
            fragment_id: run.block.block_id.clone(),
            requesting_peer_id: self.runner.network.peer_id(),
            service_id: run.block.service_id.clone(),
            estimated_qubits: count(run.state.qubits.len()),
            estimated_depth: count(at_once(run).len()),
            priority: 0,
            ttl_seconds: i64::try_from(limits.ttl_seconds).unwrap_or(i64::MAX),
            idempotency_key: idempotency_key(),
            sent_at: time(now_micros()),
        };
        let answer = self.runner.call(&self.peer, PeerStep::Prepare, write(&prepare), limits.call).await;
        let answer = answer.and_then(|document| {
            let answer: PrepareAnswer = read(&document.bytes)?;
            check_echo("reservation_id", &answer.reservation_id, &self.id)?;
            let transition = known_transition(&answer.transition)?;
            Ok((transition, answer.reason))
        });
        match answer {
            Ok((transition @ (Transition::Accepted | Transition::Committed), _)) => {
                if let Some(claim) = &self.claim {
                    claim.accepted();
                }
                self.record(ReservationCommand::Accept { peer: self.peer.clone(), held: false }).await?;
                let committed = transition == Transition::Committed;
                if committed {
                    self.record(ReservationCommand::Commit).await?;
                }
                Ok(committed)
            }
            Ok((transition, reason)) => {
                let reason = reason.filter(|r| !r.is_empty());
                let reason = reason.unwrap_or_else(|| format!("reservation {}", transition.name()));
                // Neither says anything against the peer: it may have a slot later.
                let full = reason.starts_with(FULL) || reason == PAUSED;
                match self.claim.take() {
                    Some(claim) if full => claim.declined(),
                    claim => drop(claim),
                }
                let reject = ReservationCommand::Reject { reason: reason.clone() };
                self.runner.log.execute(&self.id, reject).await?;
                Err(if full { CandidateFailure::Full(reason) } else { CandidateFailure::Failed(reason) })
            }
            Err(why) => self.give_up(PeerStep::Prepare, why).await,
        }
    }

    async fn commit(&mut self, run: &BlockRun<'_>) -> Result<(), CandidateFailure> {
        let commit = CommitRequest {
            reservation_id: self.id.clone(),
            workflow_run_id: run.workflow_run_id.into(),
            fragment_id: run.block.block_id.clone(),
            sent_at: time(now_micros()),
        };
        let limit = self.runner.limits.call;
        let answer = self.runner.call(&self.peer, PeerStep::Commit, write(&commit), limit).await;
        let answer = answer.and_then(|document| {
            let answer: StepAnswer = read(&document.bytes)?;
            check_echo("reservation_id", &answer.reservation_id, &self.id)?;
            known_transition(&answer.transition)
        });
        match answer {
            Ok(Transition::Committed) => self.record(ReservationCommand::Commit).await,
            Ok(other) => {
                let reason = format!("reservation commit failed with {}", other.name());
                self.cancel_soon(&reason).await?;
                Err(CandidateFailure::Failed(reason))
            }
            Err(why) => self.give_up(PeerStep::Commit, why).await,
        }
    }

    async fn dispatch(&mut self, run: &BlockRun<'_>) -> Result<BlockResult, CandidateFailure> {
        let execution_id = format!("exec-{}", uuid4());
        self.record(ReservationCommand::Dispatch { execution_id: execution_id.clone() }).await?;
        self.execution_id = Some(execution_id.clone());
        let mut dispatch = DispatchRequest {
            execution_id: execution_id.clone(),
            reservation_id: self.id.clone(),
            workflow_run_id: run.workflow_run_id.into(),
            fragment_id: run.block.block_id.clone(),
            service_id: run.block.service_id.clone(),
            input_payload: payload(run),
            max_retries: 2,
            idempotency_key: idempotency_key(),
            dispatched_at: time(now_micros()),
        };
        let single_read = SINGLE_READ_BYTES.saturating_sub(write(&dispatch).len());
        let room = match self.runner.network.reads_whole_documents(&self.peer) {
            // Two answers can be compared only when both are to the same piece.
            true if run.redundancy > 1 && single_read > 0 => single_read,
            true => MAX_FRAGMENT_BYTES,
            false => single_read,
        };
        let fragments = fitting(at_once(run), room);
        dispatch.input_payload.fragments = run.fragments[..fragments].iter().map(|f| fragment(f)).collect();
        let start = Instant::now();
        let limit = self.runner.limits.dispatch;
        let answer = self.runner.call(&self.peer, PeerStep::Dispatch, write(&dispatch), limit).await;
        let answer = match answer {
            Ok(document) => read_dispatch_answer(document, &execution_id, &run.state.qubits).await,
            Err(why) => Err(why),
        };
        match answer {
            Ok(DispatchOutcome::Completed { state, fidelity, latency_ms }) => {
                let work = work(run.state.qubits.len(), fragments);
                self.runner.directory.completed(&self.peer, work, start.elapsed());
                // The peer's slot is free, whatever becomes of the record.
                self.claim = None;
                let latency_ms = latency_ms.unwrap_or_else(|| start.elapsed().as_secs_f64() * 1000.0);
                let complete = ReservationCommand::Complete { execution_id, fidelity, latency_ms };
                self.runner.log.execute(&self.id, complete).await?;
                Ok(BlockResult { state, fragments, fidelity, latency_ms })
            }
            // The peer says that it has ended, and its reservation with it: there is nothing to cancel.
            Ok(DispatchOutcome::Failed(error)) => {
                self.runner.directory.failed(&self.peer, PeerFailure::Reported);
                self.claim = None;
                self.runner.log.execute(&self.id, self.end(&error)).await?;
                Err(CandidateFailure::Reported(error))
            }
            // The execution may still be running.
            Err(why) => self.give_up(PeerStep::Dispatch, why).await,
        }
    }

    /// Records a step. When that fails the peer is sent a cancel, so that it does not keep a slot for nothing.
    async fn record(&mut self, command: ReservationCommand) -> Result<(), CandidateFailure> {
        match self.runner.log.execute(&self.id, command).await {
            Ok(_) => Ok(()),
            Err(error) => {
                if let Some(claim) = self.claim.take() {
                    self.cancel_in_background(claim, "the coordinator could not record the step", None);
                }
                Err(error.into())
            }
        }
    }

    /// Ends an attempt whose answer to this step is of no use.
    async fn give_up<T>(&mut self, step: PeerStep, why: AnswerError) -> Result<T, CandidateFailure> {
        let (reason, gone) = (format!("{}: {why}", step.name()), why.is_gone());
        if gone {
            self.runner.directory.lost(&self.peer);
        }
        let failure = why.failure();
        if let Some(failure) = failure {
            self.runner.directory.failed(&self.peer, failure);
        }
        self.cancel_soon(&reason).await?;
        // A peer that went in a dispatch may have taken the work with it: the block goes on elsewhere.
        Err(match (gone, step) {
            (true, PeerStep::Dispatch) => CandidateFailure::Lost(reason),
            (true, _) => CandidateFailure::Gone(reason),
            (false, PeerStep::Prepare | PeerStep::Commit) if failure == Some(PeerFailure::Silent) => {
                CandidateFailure::Late(reason)
            }
            (false, _) => CandidateFailure::Failed(reason),
        })
    }

    /// Cancels at the peer, without waiting for it, and in the log.
    async fn cancel_soon(&mut self, reason: &str) -> Result<(), CandidateFailure> {
        if let Some(claim) = self.claim.take() {
            self.cancel_in_background(claim, reason, None);
        }
        self.runner.log.execute(&self.id, self.end(reason)).await?;
        Ok(())
    }

    /// The command that ends the reservation in the log.
    fn end(&self, reason: &str) -> ReservationCommand {
        match self.execution_id.clone() {
            Some(execution_id) => ReservationCommand::Fail { execution_id, error: reason.into() },
            None => ReservationCommand::Cancel { reason: reason.into() },
        }
    }

    /// Sends a cancel, and then gives the claim back. When the cancel does not arrive, the peer's hold ends by its ttl.
    fn cancel_in_background(&self, claim: SlotClaim, reason: &str, end: Option<ReservationCommand>) {
        // At the end of the process there is no runtime, and the next start cancels what is open.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (runner, id) = (self.runner.clone(), self.id.clone());
        let reason = crate::model::cut(reason, 300).to_string();
        let send = async move {
            if let Some(end) = end
                && let Err(error) = runner.log.execute(&id, end).await
            {
                tracing::debug!(reservation = id, %error, "it has an end already");
            }
            runner.cancel(&claim.peer, &id, reason).await;
            drop(claim);
        };
        self.runner.tasks.spawn_on(send, &runtime);
    }
}

impl BlockRunner {
    /// Sends a cancel without waiting for it. When it does not arrive, the peer's hold ends by its ttl.
    pub fn cancel_soon(&self, peer: &str, id: &str, reason: &str) {
        let (runner, peer, id) = (self.clone(), peer.to_string(), id.to_string());
        let reason = crate::model::cut(reason, 300).to_string();
        self.tasks.spawn(async move { runner.cancel(&peer, &id, reason).await });
    }

    /// Sends a cancel until it arrives, for as long as the peer may hold a slot for it: after a restart peers are only
    /// just coming back. Returns false when it was stopped before.
    pub async fn cancel_insisting(
        &self,
        peer: &str,
        id: &str,
        reason: &str,
        stop: &CancellationToken,
    ) -> bool {
        let end = Instant::now() + Duration::from_secs(self.limits.ttl_seconds);
        while !self.cancel(peer, id, reason.to_string()).await && Instant::now() < end {
            tokio::select! {
                () = tokio::time::sleep(RETRY_CANCEL) => {}
                () = stop.cancelled() => return false,
            }
        }
        true
    }

    /// Sends a cancel. Returns whether it arrived.
    async fn cancel(&self, peer: &str, id: &str, reason: String) -> bool {
        let cancel =
            CancelRequest { reservation_id: id.into(), reason: Some(reason), sent_at: time(now_micros()) };
        match self.call(peer, PeerStep::Cancel, write(&cancel), self.limits.call).await {
            Ok(_) => true,
            Err(why) => {
                tracing::info!(peer, reservation = id, %why, "a cancel did not arrive");
                false
            }
        }
    }

    async fn call(
        &self,
        peer: &str,
        step: PeerStep,
        bytes: Vec<u8>,
        limit: Duration,
    ) -> Result<Document, AnswerError> {
        let addresses = self.directory.addresses(peer);
        let (limit, start) = match step {
            PeerStep::Dispatch => (limit, None),
            _ => (self.directory.call_limit(peer, limit), Some(Instant::now())),
        };
        let document = self.network.call(peer, &addresses, step, bytes, limit).await?;
        if let Some(start) = start {
            self.directory.answered(peer, start.elapsed());
        }
        Ok(document)
    }
}

/// Amplitudes times operations.
pub fn work(qubits: usize, operations: usize) -> f64 {
    2_f64.powi(i32::try_from(qubits).unwrap_or(i32::MAX)) * operations as f64
}

/// An idempotency key: 32 hexadecimal digits.
fn idempotency_key() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The fragments, from the first on, that are no more work than one dispatch may be; at least one.
pub fn at_once<'r, 'p>(run: &'r BlockRun<'p>) -> &'r [&'p PlannedFragment] {
    let qubits = u32::try_from(run.state.qubits.len()).unwrap_or(u32::MAX);
    let most = MAX_WORK.checked_shr(qubits).unwrap_or(0).max(1);
    &run.fragments[..most.min(run.fragments.len())]
}

/// How many of these fragments, from the first on, fit in so many bytes of a document; at least one.
fn fitting(fragments: &[&PlannedFragment], room: usize) -> usize {
    let mut bytes = 0;
    let fits = |f: &&&PlannedFragment| {
        bytes += write(&fragment(f)).len() + ",".len();
        bytes <= room
    };
    fragments.iter().take_while(fits).count().max(1).min(fragments.len())
}

fn qubit_ids(qubits: &[u32]) -> Vec<i64> {
    qubits.iter().map(|q| i64::from(*q)).collect()
}

fn fragment(planned: &PlannedFragment) -> Fragment {
    Fragment {
        fragment_id: planned.fragment_id.clone(),
        service_id: planned.service_id.clone(),
        qubits: qubit_ids(&planned.qubits),
        operation_ids: vec![planned.operation_id.clone()],
        dependencies: planned.dependencies.clone(),
        raw_text: planned.raw_text.clone(),
    }
}

/// The payload without its fragments.
fn payload(run: &BlockRun<'_>) -> InputPayload {
    InputPayload {
        plan_id: run.plan_id.into(),
        block_id: Some(run.block.block_id.clone()),
        fragment: None,
        fragments: Vec::new(),
        state: QuantumState {
            num_qubits: i64::try_from(run.state.qubits.len()).unwrap_or(i64::MAX),
            qubit_ids: Some(qubit_ids(&run.state.qubits)),
            amplitudes: run.state.amplitudes.as_deref().map(amplitude::write_state),
            measured_qubits: qubit_ids(&run.state.measured),
            previous_peer_id: run.state.previous_peer_id.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idempotency_keys_have_their_form() {
        assert_eq!(idempotency_key().len(), 32);
        assert_ne!(idempotency_key(), idempotency_key());
    }

    #[test]
    fn as_many_fragments_are_sent_as_fit() {
        let planned = PlannedFragment {
            fragment_id: "frag-0001".into(),
            operation_id: "op-0001".into(),
            service_id: "hadamard".into(),
            qubits: vec![0],
            dependencies: Vec::new(),
            raw_text: "h q[0]".into(),
            block_id: "block-s01-b01".into(),
        };
        let (all, one) = (vec![&planned; 10], write(&fragment(&planned)).len());
        let text = |n: usize| write(&all[..n].iter().map(|f| fragment(f)).collect::<Vec<_>>()).len();
        for (room, count) in [(0, 1), (one, 1), (one + 1, 1), (3 * (one + 1), 3), (1 << 20, 10)] {
            assert_eq!(fitting(&all, room), count, "{room}");
            assert!(count == 1 || text(count) - "[]".len() <= room, "{room}");
        }
        assert_eq!(fitting(&[], 100), 0);
    }
}
