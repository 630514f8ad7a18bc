//! Pure: the documents of a dispatch, which are as large as a quantum state.
//!
//! They are written from one set of types and read into another one. What is read was sent by a stranger: a part whose
//! decoded form would be larger than its text stays text until it is admitted ([`RawPart`]), lists are bounded, and
//! what is not needed is checked and not kept.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fields::{
    UnusedTexts, at_least, between, bounded, list, maybe_from_zero, maybe_list, maybe_share, maybe_text,
    number, text, time_text,
};
use super::{DocumentError, ExecutionTransition, read};

/// Most fragments of one dispatch.
const MAX_FRAGMENTS: usize = 100_000;

/// A dispatch: what it is about, and the payload in the form that its reader or writer has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "P: Deserialize<'de> + Default"))]
pub struct DispatchRequest<P> {
    #[serde(deserialize_with = "text::<8, _>")]
    pub execution_id: String,
    #[serde(deserialize_with = "text::<8, _>")]
    pub reservation_id: String,
    #[serde(deserialize_with = "text::<8, _>")]
    pub workflow_run_id: String,
    #[serde(deserialize_with = "text::<3, _>")]
    pub fragment_id: String,
    #[serde(deserialize_with = "text::<2, _>")]
    pub service_id: String,
    /// Read by itself: what is wrong in here is the execution's failure, not a bad document.
    #[serde(default)]
    pub input_payload: P,
    #[serde(default = "default_retries", deserialize_with = "between::<0, 10, _>")]
    pub max_retries: i64,
    #[serde(deserialize_with = "text::<8, _>")]
    pub idempotency_key: String,
    #[serde(default, deserialize_with = "time_text")]
    pub dispatched_at: String,
}

fn default_retries() -> i64 {
    2
}

/// A dispatch without its payload.
pub type DispatchHead = DispatchRequest<EmptyObject>;

/// An object without fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmptyObject {}

/// An object inside a document, as the text that came: nothing of it is decoded.
#[derive(Debug, Clone, Copy)]
pub struct RawPart<'a>(&'a str);

impl Default for RawPart<'_> {
    fn default() -> Self {
        RawPart("{}")
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawPart<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<RawPart<'a>, D::Error> {
        let text = <&'de RawValue>::deserialize(deserializer)?.get();
        match text.starts_with('{') {
            true => Ok(RawPart(text)),
            false => Err(serde::de::Error::custom("no object")),
        }
    }
}

impl<'a> RawPart<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// When it does not have the form of the type.
    pub fn read<T: Deserialize<'a>>(self) -> Result<T, DocumentError> {
        read(self.0.as_bytes())
    }
}

/// A dispatch as it came: its head is decoded, its payload is not.
#[derive(Debug)]
pub struct ReceivedDispatch<B> {
    pub head: DispatchHead,
    document: B,
    payload: Option<Range<usize>>,
}

impl<B: AsRef<[u8]>> ReceivedDispatch<B> {
    /// Reads the head of a dispatch.
    ///
    /// # Errors
    /// When the bytes are not a dispatch. The payload must be an object, and is not looked into.
    pub fn read(document: B) -> Result<ReceivedDispatch<B>, DocumentError> {
        let bytes = document.as_ref();
        let request: DispatchRequest<RawPart<'_>> = read(bytes)?;
        let text = request.input_payload.0;
        // The part lies in the document, unless the document has none.
        let start = (text.as_ptr() as usize).wrapping_sub(bytes.as_ptr() as usize);
        let payload = bytes.get(start..start.wrapping_add(text.len())).map(|_| start..start + text.len());
        let head = DispatchRequest {
            execution_id: request.execution_id,
            reservation_id: request.reservation_id,
            workflow_run_id: request.workflow_run_id,
            fragment_id: request.fragment_id,
            service_id: request.service_id,
            input_payload: EmptyObject {},
            max_retries: request.max_retries,
            idempotency_key: request.idempotency_key,
            dispatched_at: request.dispatched_at,
        };
        Ok(ReceivedDispatch { head, document, payload })
    }

    /// The text of the payload.
    pub fn payload(&self) -> &[u8] {
        let range = self.payload.clone();
        range.and_then(|range| self.document.as_ref().get(range)).unwrap_or(b"{}")
    }
}

/// What a dispatch asks for, as it is written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InputPayload {
    pub plan_id: String,
    pub block_id: Option<String>,
    pub fragment: Option<Fragment>,
    pub fragments: Vec<Fragment>,
    pub state: QuantumState,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fragment {
    pub fragment_id: String,
    pub service_id: String,
    pub qubits: Vec<i64>,
    pub operation_ids: Vec<String>,
    pub dependencies: Vec<String>,
    pub raw_text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuantumState {
    pub num_qubits: i64,
    pub qubit_ids: Option<Vec<i64>>,
    pub amplitudes: Option<Vec<String>>,
    pub measured_qubits: Vec<i64>,
    pub previous_peer_id: Option<String>,
}

/// What a dispatch asks for, as it is read.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceivedPayload<'a> {
    #[serde(deserialize_with = "text::<8, _>")]
    pub plan_id: String,
    #[serde(default, deserialize_with = "maybe_text::<3, 1024, _>")]
    pub block_id: Option<String>,
    #[serde(default)]
    pub fragment: Option<ReceivedFragment>,
    #[serde(default, deserialize_with = "bounded::<MAX_FRAGMENTS, _, _>")]
    pub fragments: Vec<ReceivedFragment>,
    #[serde(borrow)]
    pub state: ReceivedState<'a>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceivedFragment {
    #[serde(deserialize_with = "text::<3, _>")]
    pub fragment_id: String,
    #[serde(deserialize_with = "text::<2, _>")]
    pub service_id: String,
    #[serde(default, deserialize_with = "list")]
    pub qubits: Vec<i64>,
    #[serde(default)]
    pub operation_ids: UnusedTexts,
    #[serde(default)]
    pub dependencies: UnusedTexts,
    #[serde(default)]
    pub raw_text: String,
}

/// A state whose amplitudes are not decoded: [`amplitude::read_list`](crate::peers::amplitude::read_list) does it,
/// when their number is admitted.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceivedState<'a> {
    #[serde(deserialize_with = "at_least::<1, _>")]
    pub num_qubits: i64,
    #[serde(default, deserialize_with = "maybe_list")]
    pub qubit_ids: Option<Vec<i64>>,
    #[serde(default, borrow)]
    amplitudes: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "list")]
    pub measured_qubits: Vec<i64>,
    #[serde(default, deserialize_with = "maybe_text::<3, 1024, _>")]
    pub previous_peer_id: Option<String>,
}

impl<'a> ReceivedState<'a> {
    /// The amplitudes as JSON, if there are some.
    pub fn amplitudes(&self) -> Option<&'a str> {
        self.amplitudes.map(RawValue::get)
    }
}

/// The answer to a dispatch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "P: Deserialize<'de> + Default"))]
pub struct DispatchAnswer<P> {
    #[serde(deserialize_with = "text::<8, _>")]
    pub execution_id: String,
    #[serde(deserialize_with = "text::<3, _>")]
    pub fragment_id: String,
    #[serde(deserialize_with = "text::<3, _>")]
    pub executing_peer_id: String,
    pub transition: ExecutionTransition,
    #[serde(default)]
    pub output_payload: P,
    #[serde(default, deserialize_with = "maybe_from_zero")]
    pub latency_ms: Option<f64>,
    #[serde(default, deserialize_with = "maybe_share")]
    pub fidelity_score: Option<f64>,
    #[serde(default, deserialize_with = "maybe_text::<0, 600, _>")]
    pub error_detail: Option<String>,
    #[serde(default)]
    pub artifact_refs: UnusedTexts,
    #[serde(default, deserialize_with = "time_text")]
    pub completed_at: String,
}

/// `output_payload` of a completed dispatch, as it is written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FragmentOutput {
    pub state: QuantumState,
    pub block_id: Option<String>,
    pub fragment_ids: Vec<String>,
    pub component_qubits: Vec<i64>,
    pub gate_count: i64,
    pub circuit_depth: i64,
    pub state_transfer_bytes: i64,
}

/// `output_payload` of a completed dispatch, as it is read.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceivedOutput<'a> {
    #[serde(borrow)]
    pub state: ReceivedState<'a>,
    #[serde(default, deserialize_with = "maybe_text::<3, 1024, _>")]
    pub block_id: Option<String>,
    #[serde(default)]
    pub fragment_ids: UnusedTexts,
    #[serde(default, deserialize_with = "list")]
    pub component_qubits: Vec<i64>,
    #[serde(default, deserialize_with = "number")]
    pub gate_count: i64,
    #[serde(default, deserialize_with = "number")]
    pub circuit_depth: i64,
    #[serde(default, deserialize_with = "number")]
    pub state_transfer_bytes: i64,
}
