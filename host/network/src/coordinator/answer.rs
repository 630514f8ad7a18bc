//! Reads the answers of peers and checks them before they are used: an answer must be one to this request, with the same
//! qubits, finite amplitudes and norm 1.

use super::combine::Component;
use super::track_record::PeerFailure;
use crate::peers::amplitude::{self, StateError};
use crate::peers::swarm::{CallError, Document};
use crate::peers::wire::{
    AnsweredTransition, DispatchAnswer, DocumentError, ExecutionTransition, RawPart, ReceivedOutput, read,
};
use crate::reservation::event::Transition;

/// How a dispatch ended, by the peer's answer.
pub enum DispatchOutcome {
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
pub enum AnswerError {
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

impl AnswerError {
    /// Whether there is no connection to the peer.
    pub fn is_gone(&self) -> bool {
        matches!(self, AnswerError::Call(CallError::Unreachable(_) | CallError::Closed))
    }

    /// What it says about the peer; none when it is not the peer's doing.
    pub fn failure(&self) -> Option<PeerFailure> {
        match self {
            AnswerError::Call(CallError::Timeout(_)) => Some(PeerFailure::Silent),
            AnswerError::Call(CallError::EmptyAnswer | CallError::Stream(_)) => Some(PeerFailure::Reported),
            AnswerError::Call(
                CallError::Unreachable(_)
                | CallError::Closed
                | CallError::TooLarge { .. }
                | CallError::Stopped,
            )
            | AnswerError::Task(_) => None,
            AnswerError::Document(_)
            | AnswerError::Output(_)
            | AnswerError::Echo { .. }
            | AnswerError::UnknownTransition(_)
            | AnswerError::OtherQubits
            | AnswerError::NoAmplitudes
            | AnswerError::State(_)
            | AnswerError::Measured => Some(PeerFailure::Invalid),
        }
    }
}

/// Answers from this size on, in bytes, are read on another thread: this one serves every peer.
const LARGE_ANSWER: usize = 64 << 10;

/// Reads and checks the answer to a dispatch.
///
/// # Errors
/// When the answer breaks the contract or does not fit the request.
pub async fn read_dispatch_answer(
    document: Document,
    execution_id: &str,
    qubits: &[u32],
) -> Result<DispatchOutcome, AnswerError> {
    let (execution_id, qubits) = (execution_id.to_string(), qubits.to_vec());
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

pub fn check_echo(what: &'static str, found: &str, sent: &str) -> Result<(), AnswerError> {
    match found == sent {
        true => Ok(()),
        false => Err(AnswerError::Echo { what, found: crate::model::cut(found, 80).into() }),
    }
}

/// The transition that an answer names.
///
/// # Errors
/// A name that the contract does not have.
pub fn known_transition(transition: &AnsweredTransition) -> Result<Transition, AnswerError> {
    match transition {
        AnsweredTransition::Known(transition) => Ok(*transition),
        AnsweredTransition::Unknown(name) => Err(unknown_transition(name)),
    }
}

fn unknown_transition(name: &str) -> AnswerError {
    AnswerError::UnknownTransition(crate::model::cut(name, 40).into())
}
