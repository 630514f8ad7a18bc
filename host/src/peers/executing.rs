//! Pure: from a dispatch to what the executor is asked, and from its answer to the document that goes back.

use super::amplitude::{self, Complex};
use super::operation::{self, Unitary};
use super::protocol::PeerTime;
use super::wire::{
    DispatchAnswer, DispatchRequest, ExecutionTransition, Fragment, FragmentOutput, InputPayload,
    QuantumState, part, time, write,
};

/// What the executor is to do, and what the answer needs besides.
#[derive(Debug)]
pub struct FragmentJob {
    pub execution_id: String,
    pub fragment_id: String,
    pub num_qubits: u16,
    pub amplitudes: Vec<Complex>,
    pub steps: Vec<Unitary>,
    block_id: Option<String>,
    fragment_ids: Vec<String>,
    qubit_ids: Vec<i64>,
    measured: Vec<i64>,
    gate_count: usize,
    depth: i64,
}

/// Reads what a dispatch asks for.
///
/// # Errors
/// When the payload breaks the contract's form, or asks for more than the executor takes. The text
/// goes into the answer.
pub fn read(request: DispatchRequest, max_qubits: u16) -> Result<FragmentJob, String> {
    let payload: InputPayload = part(request.input_payload).map_err(|e| format!("input_payload: {e}"))?;
    let InputPayload { plan_id: _, block_id, fragment, fragments, state } = payload;
    let fragments: Vec<Fragment> =
        if fragments.is_empty() { fragment.into_iter().collect() } else { fragments };
    if fragments.is_empty() {
        return Err("input_payload: neither fragments nor fragment".into());
    }
    let qubits = state.num_qubits;
    if qubits > i64::from(max_qubits) {
        return Err(format!("a state of {qubits} qubits, this device takes {max_qubits}"));
    }
    // At most 65535 by the line before.
    let num_qubits = u16::try_from(qubits).unwrap_or(max_qubits);
    let qubit_ids = state.qubit_ids.unwrap_or_else(|| (0..qubits).collect());
    check_ids(&qubit_ids, qubits)?;
    let amplitudes = match state.amplitudes {
        Some(texts) if !texts.is_empty() => {
            amplitude::read_state(&texts, num_qubits.into()).map_err(|e| format!("state: {e}"))?
        }
        _ if usize::from(num_qubits) > amplitude::MAX_QUBITS => {
            return Err(format!("state: {qubits} qubits are more than a state can be sent of"));
        }
        _ => amplitude::zeros(num_qubits.into()),
    };
    let mut operations = Vec::new();
    let mut measured = state.measured_qubits;
    for fragment in &fragments {
        let effect = operation::effect(&fragment.service_id, &fragment.raw_text, &fragment.qubits)
            .map_err(|e| format!("fragment {}: {e}", fragment.fragment_id))?;
        operations.extend(effect.operations);
        for qubit in effect.measured {
            if !qubit_ids.contains(&qubit) {
                let id = &fragment.fragment_id;
                return Err(format!("fragment {id}: qubit {qubit} is not in the state"));
            }
            if !measured.contains(&qubit) {
                measured.push(qubit);
            }
        }
    }
    let steps = operation::lower(&operations, &qubit_ids)?;
    Ok(FragmentJob {
        execution_id: request.execution_id,
        fragment_id: request.fragment_id,
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

fn check_ids(ids: &[i64], qubits: i64) -> Result<(), String> {
    if i64::try_from(ids.len()) != Ok(qubits) {
        return Err(format!("state: {} qubit_ids for {qubits} qubits", ids.len()));
    }
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|w| w[0] == w[1]) {
        Some(twice) => Err(format!("state: qubit_ids names {} twice", twice[0])),
        None => Ok(()),
    }
}

/// Checks what an executor gave back: a bad state must not travel on.
///
/// # Errors
/// When the number of amplitudes is another one, an amplitude is not finite, or the norm is not 1.
pub fn check(state: &[Complex], num_qubits: u16) -> Result<(), String> {
    let expected = 1_usize << num_qubits;
    if state.len() != expected {
        return Err(format!("the executor returned {} amplitudes, expected are {expected}", state.len()));
    }
    if state.iter().any(|[re, im]| !(re.is_finite() && im.is_finite())) {
        return Err("the executor returned an amplitude that is not finite".into());
    }
    amplitude::check_norm(state).map_err(|e| format!("the executor's answer: {e}"))
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
        // Plain data, whose JSON can't fail.
        output_payload: serde_json::to_value(&output).unwrap_or_default(),
        latency_ms: Some(latency_ms),
        fidelity_score: fidelity,
        error_detail: None,
        artifact_refs: Vec::new(),
        completed_at: time(now.at),
    })
}
