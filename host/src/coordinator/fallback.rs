//! Runs one block: prepare, commit and dispatch with the primary candidate, then with each fallback in order.
//!
//! ```text
//! prepare ─ accepted ─> commit ─ committed ─> dispatch ─ completed ─> done
//!    │ not accepted        │ not committed        │ not completed
//!    v rejected            v cancel, cancelled    v failed
//!  next                   next                   next                 no candidate left: the block fails
//! ```
//!
//! Every step is on disk before the next message leaves. A peer that can't be reached, is late or sends an invalid
//! answer has failed at that step: a cancel is sent to it in the background, and the next candidate is tried. An answer
//! is checked before it is used: it must answer this request, with the same qubits, finite amplitudes and norm 1.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::combine::Component;
use super::plan::{Block, PlannedFragment};
use super::role::Directory;
use crate::peers::amplitude::{self, StateError};
use crate::peers::protocol::FULL;
use crate::peers::swarm::{CallError, Document, Network};
use crate::peers::wire::{
    AnsweredTransition, CancelRequest, CommitRequest, DispatchAnswer, DispatchRequest, DocumentError,
    ExecutionTransition, Fragment, InputPayload, PeerStep, PrepareAnswer, PrepareRequest, QuantumState,
    RawPart, ReceivedOutput, StepAnswer, read, time, write,
};
use crate::reservation::event::{ReservationRequest, Transition};
use crate::reservation::ledger::ReservationCommand;
use crate::reservation::log::{AppendError, Log, LogError, now_micros};

/// Pause between two attempts to send a cancel to a peer that is not connected yet.
const RETRY_CANCEL: Duration = Duration::from_millis(500);

/// How long the steps may take.
#[derive(Debug, Clone)]
pub struct BlockLimits {
    pub call: Duration,
    pub dispatch: Duration,
    pub ttl_seconds: u64,
}

/// Runs blocks on peers: the network, the record, and the limits that all blocks share.
#[derive(Clone)]
pub struct BlockRunner {
    pub network: Network,
    pub log: Log,
    pub directory: Directory,
    pub limits: BlockLimits,
    /// Cancels that are being sent.
    pub tasks: TaskTracker,
}

/// One block to run, with the state it starts from.
pub struct BlockRun<'a> {
    pub plan_id: &'a str,
    pub workflow_run_id: &'a str,
    pub block: &'a Block,
    pub fragments: Vec<&'a PlannedFragment>,
    pub state: Component,
    /// Number of candidates that were tried for this block before.
    pub attempts: u32,
}

/// A candidate that is about to be asked. It is reported before the first message leaves.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub attempt: u32,
    pub peer_id: String,
    pub reservation_id: String,
}

/// What a peer made of a block.
struct BlockResult {
    state: Component,
    fidelity: Option<f64>,
    latency_ms: f64,
}

/// A block that a peer has completed.
#[derive(Debug)]
pub struct CompletedBlock {
    pub state: Component,
    pub peer_id: String,
    pub attempts: u32,
    pub fidelity: Option<f64>,
    pub latency_ms: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    #[error("Execution block {block_id} failed across all assigned peers: {last}")]
    AllFailed {
        block_id: String,
        attempts: u32,
        last: String,
        /// Whether the only reason was that no candidate had a free slot.
        full: bool,
    },
    #[error("the job was stopped because its event could not be recorded")]
    Log(#[from] LogError),
}

/// Why one candidate did not complete the block.
enum CandidateFailure {
    /// The candidate has no free slot; the next one is tried.
    Full(String),
    /// The candidate failed; the next one is tried.
    Failed(String),
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

impl BlockRunner {
    /// Runs a block on the first candidate that completes it. `on_attempt` is called before each attempt and stops the
    /// run with an error.
    ///
    /// # Errors
    /// When every candidate has failed, or an event can't be recorded.
    pub async fn run_block<F, T>(
        &self,
        run: &BlockRun<'_>,
        on_attempt: F,
    ) -> Result<CompletedBlock, BlockError>
    where
        F: Fn(Attempt) -> T,
        T: Future<Output = Result<(), LogError>>,
    {
        let mut last = String::from("no candidate");
        let (mut attempts, mut full) = (run.attempts, true);
        for candidate in &run.block.candidates {
            attempts += 1;
            let reservation_id = format!("res-{}", uuid4());
            let peer_id = candidate.peer_id.clone();
            let attempt = Attempt {
                attempt: attempts,
                peer_id: peer_id.clone(),
                reservation_id: reservation_id.clone(),
            };
            on_attempt(attempt).await?;
            match self.try_candidate(run, &peer_id, &reservation_id).await {
                Ok(BlockResult { state, fidelity, latency_ms }) => {
                    if let Some(fidelity) = fidelity {
                        self.directory.report_fidelity(&peer_id, &run.block.services, fidelity);
                    }
                    return Ok(CompletedBlock { state, peer_id, attempts, fidelity, latency_ms });
                }
                Err(CandidateFailure::Full(why)) => last = why,
                Err(CandidateFailure::Failed(why)) => {
                    full = false;
                    let block = &run.block.block_id;
                    tracing::warn!(block, peer = peer_id, why, "the peer failed; trying the next one");
                    last = why;
                }
                Err(CandidateFailure::Stop(error)) => return Err(error.into()),
            }
        }
        Err(BlockError::AllFailed { block_id: run.block.block_id.clone(), attempts, last, full })
    }

    async fn try_candidate(
        &self,
        run: &BlockRun<'_>,
        peer: &str,
        reservation_id: &str,
    ) -> Result<BlockResult, CandidateFailure> {
        let block = run.block;
        let request = ReservationRequest {
            workflow_run_id: run.workflow_run_id.into(),
            fragment_id: block.block_id.clone(),
            service_id: block.service_id.clone(),
            requesting_peer_id: self.network.peer_id(),
            ttl_seconds: self.limits.ttl_seconds,
            idempotency_key: None,
        };
        self.log.request(reservation_id, &request.requesting_peer_id.clone(), request).await?;
        let committed = self.prepare(run, peer, reservation_id).await?;
        if !committed {
            self.commit(run, peer, reservation_id).await?;
        }
        self.dispatch(run, peer, reservation_id).await
    }

    /// Asks the peer for a slot. Returns true when the peer has committed it already.
    async fn prepare(&self, run: &BlockRun<'_>, peer: &str, id: &str) -> Result<bool, CandidateFailure> {
        let count = |n: usize| i64::try_from(n.max(1)).unwrap_or(i64::MAX);
        let prepare = PrepareRequest {
            reservation_id: id.into(),
            workflow_run_id: run.workflow_run_id.into(),
            fragment_id: run.block.block_id.clone(),
            requesting_peer_id: self.network.peer_id(),
            service_id: run.block.service_id.clone(),
            estimated_qubits: count(run.state.qubits.len()),
            estimated_depth: count(run.fragments.len()),
            priority: 0,
            ttl_seconds: i64::try_from(self.limits.ttl_seconds).unwrap_or(i64::MAX),
            idempotency_key: idempotency_key(),
            sent_at: time(now_micros()),
        };
        let answer = self.call(peer, PeerStep::Prepare, write(&prepare), self.limits.call).await;
        let answer = answer.and_then(|document| {
            let answer: PrepareAnswer = read(&document.bytes)?;
            check_echo("reservation_id", &answer.reservation_id, id)?;
            let transition = known_transition(&answer.transition)?;
            Ok((transition, answer.reason))
        });
        match answer {
            Ok((transition @ (Transition::Accepted | Transition::Committed), _)) => {
                let accept = ReservationCommand::Accept { peer: peer.into(), held: false };
                self.record_or_cancel(peer, id, accept).await?;
                let committed = transition == Transition::Committed;
                if committed {
                    self.record_or_cancel(peer, id, ReservationCommand::Commit).await?;
                }
                Ok(committed)
            }
            Ok((transition, reason)) => {
                let reason = reason.filter(|r| !r.is_empty());
                let reason = reason.unwrap_or_else(|| format!("reservation {}", transition.name()));
                self.log.execute(id, ReservationCommand::Reject { reason: reason.clone() }).await?;
                Err(if reason.starts_with(FULL) {
                    CandidateFailure::Full(reason)
                } else {
                    CandidateFailure::Failed(reason)
                })
            }
            Err(why) => self.give_up(peer, id, format!("prepare: {why}")).await,
        }
    }

    async fn commit(&self, run: &BlockRun<'_>, peer: &str, id: &str) -> Result<(), CandidateFailure> {
        let commit = CommitRequest {
            reservation_id: id.into(),
            workflow_run_id: run.workflow_run_id.into(),
            fragment_id: run.block.block_id.clone(),
            sent_at: time(now_micros()),
        };
        let answer = self.call(peer, PeerStep::Commit, write(&commit), self.limits.call).await;
        let answer = answer.and_then(|document| {
            let answer: StepAnswer = read(&document.bytes)?;
            check_echo("reservation_id", &answer.reservation_id, id)?;
            known_transition(&answer.transition)
        });
        match answer {
            Ok(Transition::Committed) => self.record_or_cancel(peer, id, ReservationCommand::Commit).await,
            Ok(other) => {
                self.give_up(peer, id, format!("reservation commit failed with {}", other.name())).await
            }
            Err(why) => self.give_up(peer, id, format!("commit: {why}")).await,
        }
    }

    async fn dispatch(
        &self,
        run: &BlockRun<'_>,
        peer: &str,
        id: &str,
    ) -> Result<BlockResult, CandidateFailure> {
        let execution_id = format!("exec-{}", uuid4());
        self.record_or_cancel(peer, id, ReservationCommand::Dispatch { execution_id: execution_id.clone() })
            .await?;
        let dispatch = DispatchRequest {
            execution_id: execution_id.clone(),
            reservation_id: id.into(),
            workflow_run_id: run.workflow_run_id.into(),
            fragment_id: run.block.block_id.clone(),
            service_id: run.block.service_id.clone(),
            input_payload: payload(run),
            max_retries: 2,
            idempotency_key: idempotency_key(),
            dispatched_at: time(now_micros()),
        };
        let start = Instant::now();
        let answer = self.call(peer, PeerStep::Dispatch, write(&dispatch), self.limits.dispatch).await;
        let answer = match answer {
            Ok(document) => read_dispatch_answer(document, &execution_id, run).await,
            Err(why) => Err(why),
        };
        let fail = |error: String| ReservationCommand::Fail { execution_id: execution_id.clone(), error };
        match answer {
            Ok(DispatchOutcome::Completed { state, fidelity, latency_ms }) => {
                let latency_ms = latency_ms.unwrap_or_else(|| start.elapsed().as_secs_f64() * 1000.0);
                let execution_id = execution_id.clone();
                self.log
                    .execute(id, ReservationCommand::Complete { execution_id, fidelity, latency_ms })
                    .await?;
                Ok(BlockResult { state, fidelity, latency_ms })
            }
            // The peer says that it has ended, and its reservation with it: there is nothing to cancel.
            Ok(DispatchOutcome::Failed(error)) => {
                self.log.execute(id, fail(error.clone())).await?;
                Err(CandidateFailure::Failed(error))
            }
            // The execution may still be running.
            Err(why) => {
                let why = format!("dispatch: {why}");
                self.cancel_soon(peer, id, &why);
                self.log.execute(id, fail(why.clone())).await?;
                Err(CandidateFailure::Failed(why))
            }
        }
    }

    /// Records a step. When that fails the peer is sent a cancel, so that it does not keep a slot for nothing.
    async fn record_or_cancel(
        &self,
        peer: &str,
        id: &str,
        command: ReservationCommand,
    ) -> Result<(), CandidateFailure> {
        match self.log.execute(id, command).await {
            Ok(_) => Ok(()),
            Err(error) => {
                self.cancel_soon(peer, id, "the coordinator could not record the step");
                Err(error.into())
            }
        }
    }

    /// Cancels at the peer and in the log.
    async fn give_up<T>(&self, peer: &str, id: &str, reason: String) -> Result<T, CandidateFailure> {
        self.cancel_soon(peer, id, &reason);
        self.log.execute(id, ReservationCommand::Cancel { reason: reason.clone() }).await?;
        Err(CandidateFailure::Failed(reason))
    }

    /// Sends a cancel without waiting for it: a dead peer would hold up the run.
    pub fn cancel_soon(&self, peer: &str, id: &str, reason: &str) {
        let (runner, peer, id) = (self.clone(), peer.to_string(), id.to_string());
        let reason = crate::model::cut(reason, 300).to_string();
        self.tasks.spawn(async move {
            // When this fails, the peer's hold ends by its ttl.
            runner.cancel(&peer, &id, reason).await;
        });
    }

    /// Sends a cancel until it arrives, for as long as the peer may hold a slot for it: after a restart peers are only
    /// just coming back.
    pub fn cancel_insisting(&self, peer: &str, id: &str, reason: &str, stop: CancellationToken) {
        let (runner, peer, id, reason) = (self.clone(), peer.to_string(), id.to_string(), reason.to_string());
        let end = Instant::now() + Duration::from_secs(self.limits.ttl_seconds);
        self.tasks.spawn(async move {
            while !runner.cancel(&peer, &id, reason.clone()).await && Instant::now() < end {
                tokio::select! {
                    () = tokio::time::sleep(RETRY_CANCEL) => {}
                    () = stop.cancelled() => return,
                }
            }
        });
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
        Ok(self.network.call(peer, &addresses, step, bytes, limit).await?)
    }
}

fn payload(run: &BlockRun<'_>) -> InputPayload {
    let ids = |qubits: &[u32]| qubits.iter().map(|q| i64::from(*q)).collect::<Vec<i64>>();
    let fragments = run.fragments.iter().map(|f| Fragment {
        fragment_id: f.fragment_id.clone(),
        service_id: f.service_id.clone(),
        qubits: ids(&f.qubits),
        operation_ids: vec![f.operation_id.clone()],
        dependencies: f.dependencies.clone(),
        raw_text: f.raw_text.clone(),
    });
    InputPayload {
        plan_id: run.plan_id.into(),
        block_id: Some(run.block.block_id.clone()),
        fragment: None,
        fragments: fragments.collect(),
        state: QuantumState {
            num_qubits: i64::try_from(run.state.qubits.len()).unwrap_or(i64::MAX),
            qubit_ids: Some(ids(&run.state.qubits)),
            amplitudes: run.state.amplitudes.as_deref().map(amplitude::write_state),
            measured_qubits: ids(&run.state.measured),
            previous_peer_id: run.state.previous_peer_id.clone(),
        },
    }
}

/// How a dispatch ended, by the peer's answer.
enum DispatchOutcome {
    Completed {
        state: Component,
        fidelity: Option<f64>,
        latency_ms: Option<f64>,
    },
    /// The peer's own error.
    Failed(String),
}

/// Why a peer's answer is of no use.
#[derive(Debug, thiserror::Error)]
enum AnswerError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("output_payload: {0}")]
    Output(DocumentError),
    #[error("it answers to another {what}: {found:?}")]
    Echo { what: &'static str, found: String },
    #[error("the transition {0:?} is unknown")]
    UnknownTransition(String),
    #[error("its state has other qubits than it was given")]
    OtherQubits,
    #[error("its state has no amplitudes")]
    NoAmplitudes,
    #[error(transparent)]
    State(#[from] StateError),
    #[error("it measured qubits that it was not given")]
    Measured,
    #[error("its answer could not be read: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Answers from this size on, in bytes, are read on another thread: this one serves every peer.
const LARGE_ANSWER: usize = 64 << 10;

/// Reads and checks the answer to a dispatch.
///
/// # Errors
/// When the answer breaks the contract or does not fit the request.
async fn read_dispatch_answer(
    document: Document,
    execution_id: &str,
    run: &BlockRun<'_>,
) -> Result<DispatchOutcome, AnswerError> {
    let (execution_id, qubits) = (execution_id.to_string(), run.state.qubits.clone());
    if document.bytes.len() < LARGE_ANSWER {
        return parse_dispatch_answer(&document.bytes, &execution_id, &qubits);
    }
    let parse = move || parse_dispatch_answer(&document.bytes, &execution_id, &qubits);
    tokio::task::spawn_blocking(parse).await?
}

fn parse_dispatch_answer(
    bytes: &[u8],
    execution_id: &str,
    qubits: &[u32],
) -> Result<DispatchOutcome, AnswerError> {
    let answer: DispatchAnswer<RawPart<'_>> = read(bytes)?;
    check_echo("execution_id", &answer.execution_id, execution_id)?;
    match &answer.transition {
        ExecutionTransition::Completed => {}
        ExecutionTransition::Unknown(name) => return Err(unknown_transition(name)),
        ExecutionTransition::Dispatched
        | ExecutionTransition::Running
        | ExecutionTransition::Checkpointed
        | ExecutionTransition::Failed
        | ExecutionTransition::Retrying
        | ExecutionTransition::Cancelled => {
            let detail = answer.error_detail.filter(|d| !d.is_empty());
            return Ok(DispatchOutcome::Failed(detail.unwrap_or_else(|| "block execution failed".into())));
        }
    }
    let output: ReceivedOutput<'_> = answer.output_payload.read().map_err(AnswerError::Output)?;
    let state = output.state;
    let expected: Vec<i64> = qubits.iter().map(|q| i64::from(*q)).collect();
    // Before the amplitudes are decoded: their number is what was sent to the peer.
    let amplitudes = state.amplitudes();
    if usize::try_from(state.num_qubits) != Ok(expected.len())
        || state.qubit_ids.is_some_and(|ids| ids != expected)
    {
        return Err(AnswerError::OtherQubits);
    }
    let list = amplitudes.ok_or(AnswerError::NoAmplitudes)?;
    let amplitudes = amplitude::read_list(list, expected.len())?.ok_or(AnswerError::NoAmplitudes)?;
    let own = |q: i64| u32::try_from(q).ok().filter(|q| qubits.contains(q));
    let measured: Option<Vec<u32>> = state.measured_qubits.iter().map(|q| own(*q)).collect();
    let state = Component {
        qubits: qubits.to_vec(),
        amplitudes: Some(amplitudes),
        measured: measured.ok_or(AnswerError::Measured)?,
        previous_peer_id: state.previous_peer_id,
    };
    let (fidelity, latency_ms) = (answer.fidelity_score, answer.latency_ms);
    Ok(DispatchOutcome::Completed { state, fidelity, latency_ms })
}

fn check_echo(what: &'static str, found: &str, sent: &str) -> Result<(), AnswerError> {
    match found == sent {
        true => Ok(()),
        false => Err(AnswerError::Echo { what, found: crate::model::cut(found, 80).into() }),
    }
}

/// The transition that an answer names.
///
/// # Errors
/// A name that the contract does not have.
fn known_transition(transition: &AnsweredTransition) -> Result<Transition, AnswerError> {
    match transition {
        AnsweredTransition::Known(transition) => Ok(*transition),
        AnsweredTransition::Unknown(name) => Err(unknown_transition(name)),
    }
}

fn unknown_transition(name: &str) -> AnswerError {
    AnswerError::UnknownTransition(crate::model::cut(name, 40).into())
}

/// An idempotency key: 32 hexadecimal digits.
fn idempotency_key() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// A random id in the form of RFC 9562, version 4.
pub fn uuid4() -> String {
    uuid::Uuid::new_v4().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_their_form() {
        let id = uuid4();
        let bytes = id.as_bytes();
        assert_eq!((id.len(), bytes[8], bytes[13], bytes[18], bytes[23]), (36, b'-', b'-', b'-', b'-'));
        assert!(bytes[14] == b'4' && b"89ab".contains(&bytes[19]), "{id}");
        assert_ne!(uuid4(), uuid4());
        assert_eq!(idempotency_key().len(), 32);
    }
}
