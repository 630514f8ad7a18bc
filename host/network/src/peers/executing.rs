//! Pure: from a dispatch to what the executor is asked, and from its answer to the document that goes back.

use std::collections::HashSet;

use super::amplitude::{self, Complex, StateError};
use super::operation::{self, MAX_STEPS, OperationError, Unitary};
use super::protocol::PeerTime;
use super::wire::{
    self, DispatchAnswer, DocumentError, ExecutionTransition, FragmentOutput, QuantumState, ReceivedDispatch,
    ReceivedFragment, ReceivedPayload, UnusedTexts, time, write,
};

/// What the executor is to do, and what the answer needs besides.
#[derive(Debug)]
pub struct FragmentJob {
    pub execution_id: String,
    pub fragment_id: String,
    pub num_qubits: u16,
    pub amplitudes: Vec<Complex>,
    pub steps: Vec<Unitary>,
    work: f64,
    block_id: Option<String>,
    fragment_ids: Vec<String>,
    qubit_ids: Vec<i64>,
    measured: Vec<i64>,
    gate_count: usize,
    depth: i64,
}

impl FragmentJob {
    /// Operations on the state.
    pub fn operations(&self) -> u64 {
        u64::try_from(self.steps.len()).unwrap_or(u64::MAX)
    }

    /// Amplitudes times operations.
    pub fn work(&self) -> f64 {
        self.work
    }

    /// Takes out what the executor needs.
    pub fn take_input(&mut self) -> (Vec<Complex>, Vec<Unitary>) {
        (std::mem::take(&mut self.amplitudes), std::mem::take(&mut self.steps))
    }
}

/// The number of qubits that a payload claims, before it is admitted: enough to tell large work from small.
pub fn claimed_qubits<B: AsRef<[u8]>>(request: &ReceivedDispatch<B>) -> i64 {
    #[derive(serde::Deserialize)]
    struct Claim {
        state: ClaimedState,
    }

    #[derive(serde::Deserialize)]
    struct ClaimedState {
        num_qubits: i64,
    }

    // What can't be read is large: another thread finds out what is wrong with it.
    wire::read::<Claim>(request.payload()).map_or(i64::MAX, |claim| claim.state.num_qubits)
}

/// Why a dispatch is not executed, or its execution failed. The text goes into the answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ExecutionError {
    #[error("input_payload: {0}")]
    Payload(#[from] DocumentError),
    #[error("input_payload: neither fragments nor fragment")]
    NoFragments,
    #[error("a state of {found} qubits, this device takes {allowed}")]
    Qubits { found: i64, allowed: u16 },
    #[error("state: {0}")]
    State(#[from] StateError),
    #[error("state: {found} qubit_ids for {qubits} qubits")]
    QubitIds { found: usize, qubits: i64 },
    #[error("state: qubit_ids names {0} twice")]
    QubitIdTwice(i64),
    #[error("fragment {fragment_id}: {source}")]
    Fragment { fragment_id: String, source: OperationError },
    #[error(transparent)]
    Operation(#[from] OperationError),
    #[error("it has {operations} operations, this site takes at most {allowed}")]
    TooManyOperations { operations: u64, allowed: u64 },
    #[error("it would take about {about:.0} s, at most {allowed} s are taken on here")]
    TooLong { about: f64, allowed: f64 },
    #[error("it took longer than {allowed} s and was ended")]
    Ended { allowed: f64 },
    #[error("{0}")]
    Executor(String),
    #[error("the executor returned {found} amplitudes, expected are {expected}")]
    AnswerLength { found: usize, expected: usize },
    #[error("the executor returned an amplitude that is not finite")]
    AnswerNotFinite,
    #[error("the executor's answer: {0}")]
    Answer(StateError),
}

/// Reads what a dispatch asks for.
///
/// # Errors
/// When the payload breaks the contract's form, or asks for more than the executor takes.
pub fn read<B: AsRef<[u8]>>(
    request: &ReceivedDispatch<B>,
    max_qubits: u16,
) -> Result<FragmentJob, ExecutionError> {
    let payload: ReceivedPayload<'_> = wire::read(request.payload())?;
    let ReceivedPayload { plan_id: _, block_id, fragment, fragments, state } = payload;
    let fragments: Vec<ReceivedFragment> =
        if fragments.is_empty() { fragment.into_iter().collect() } else { fragments };
    if fragments.is_empty() {
        return Err(ExecutionError::NoFragments);
    }
    let qubits = state.num_qubits;
    let num_qubits = u16::try_from(qubits).ok().filter(|n| *n <= max_qubits);
    let num_qubits = num_qubits.ok_or(ExecutionError::Qubits { found: qubits, allowed: max_qubits })?;
    let amplitudes = state.amplitudes();
    let qubit_ids = state.qubit_ids.unwrap_or_else(|| (0..qubits).collect());
    check_ids(&qubit_ids, qubits)?;

    let mut operations = Vec::new();
    let mut measured = state.measured_qubits;
    let known: HashSet<i64> = qubit_ids.iter().copied().collect();
    let mut marked: HashSet<i64> = measured.iter().copied().collect();
    for fragment in &fragments {
        let wrong = |source| {
            let fragment_id = fragment.fragment_id.clone();
            ExecutionError::Fragment { fragment_id, source }
        };
        let effect =
            operation::effect(&fragment.service_id, &fragment.raw_text, &fragment.qubits).map_err(wrong)?;
        operations.extend(effect.operations);
        if operations.len() > MAX_STEPS {
            return Err(OperationError::TooMany.into());
        }
        for qubit in effect.measured {
            if !known.contains(&qubit) {
                return Err(wrong(OperationError::NotInState(qubit)));
            }
            if marked.insert(qubit) {
                measured.push(qubit);
            }
        }
    }
    let steps = operation::lower(&operations, &qubit_ids)?;

    // Last: the state is the largest part, and everything else is admitted by now.
    let amplitudes = match amplitudes {
        Some(list) => amplitude::read_list(list, num_qubits.into())?,
        None => None,
    };
    let amplitudes = match amplitudes {
        Some(amplitudes) => amplitudes,
        None if usize::from(num_qubits) > amplitude::MAX_QUBITS => {
            return Err(StateError::Qubits(num_qubits.into()).into());
        }
        None => amplitude::zeros(num_qubits.into()),
    };
    let work = amplitudes.len() as f64 * steps.len() as f64;
    Ok(FragmentJob {
        work,
        execution_id: request.head.execution_id.clone(),
        fragment_id: request.head.fragment_id.clone(),
        num_qubits,
        amplitudes,
        steps,
        block_id,
        fragment_ids: fragments.into_iter().map(|f| f.fragment_id).collect(),
        qubit_ids,
        measured,
        gate_count: operations.len(),
        depth: operation::depth(&operations),
    })
}

fn check_ids(ids: &[i64], qubits: i64) -> Result<(), ExecutionError> {
    if i64::try_from(ids.len()) != Ok(qubits) {
        return Err(ExecutionError::QubitIds { found: ids.len(), qubits });
    }
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|w| w[0] == w[1]) {
        Some(twice) => Err(ExecutionError::QubitIdTwice(twice[0])),
        None => Ok(()),
    }
}

/// Checks what an executor gave back: a bad state must not travel on.
///
/// # Errors
/// When the number of amplitudes is another one, an amplitude is not finite, or the norm is not 1.
pub fn check(state: &[Complex], num_qubits: u16) -> Result<(), ExecutionError> {
    let expected = 1_usize << num_qubits;
    if state.len() != expected {
        return Err(ExecutionError::AnswerLength { found: state.len(), expected });
    }
    if state.iter().any(|[re, im]| !(re.is_finite() && im.is_finite())) {
        return Err(ExecutionError::AnswerNotFinite);
    }
    amplitude::check_norm(state).map_err(ExecutionError::Answer)
}

/// The answer for a state that the executor has made.
pub fn answer(
    job: FragmentJob,
    state: &[Complex],
    peer_id: &str,
    latency_ms: f64,
    fidelity: Option<f64>,
    now: PeerTime,
) -> Vec<u8> {
    let state = QuantumState {
        num_qubits: job.num_qubits.into(),
        qubit_ids: Some(job.qubit_ids.clone()),
        amplitudes: Some(amplitude::write_state(state)),
        measured_qubits: job.measured,
        previous_peer_id: Some(peer_id.into()),
    };
    let bytes = write(&state).len();
    let output = FragmentOutput {
        state,
        block_id: job.block_id,
        fragment_ids: job.fragment_ids,
        component_qubits: job.qubit_ids,
        gate_count: i64::try_from(job.gate_count).unwrap_or(i64::MAX),
        circuit_depth: job.depth,
        state_transfer_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
    };
    write(&DispatchAnswer {
        execution_id: job.execution_id,
        fragment_id: job.fragment_id,
        executing_peer_id: peer_id.into(),
        transition: ExecutionTransition::Completed,
        output_payload: output,
        latency_ms: Some(latency_ms),
        fidelity_score: fidelity,
        error_detail: None,
        artifact_refs: UnusedTexts,
        completed_at: time(now.at),
    })
}
