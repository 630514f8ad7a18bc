//! Pure: the documents that peers exchange, as strict as existing peers are and bounded.
//!
//! Unknown keys are refused at every level; what is written has every field, nulls included. Integers may come
//! as `5.0`. What may be missing but never null is a field with a default, what may be both is an `Option`.

mod fields;
mod health;
mod transition;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use health::HealthStatus;
pub use transition::{AnsweredTransition, ExecutionTransition};

use fields::{at_least, list, maybe_text, number, text, time_text};

/// The four protocols of one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PeerStep {
    Prepare,
    Commit,
    Cancel,
    Dispatch,
}

impl PeerStep {
    pub const ALL: [PeerStep; 4] =
        [PeerStep::Prepare, PeerStep::Commit, PeerStep::Cancel, PeerStep::Dispatch];

    pub fn name(self) -> &'static str {
        match self {
            PeerStep::Prepare => "prepare",
            PeerStep::Commit => "commit",
            PeerStep::Cancel => "cancel",
            PeerStep::Dispatch => "dispatch",
        }
    }

    /// Its protocol id.
    pub fn protocol(self, namespace: &str) -> String {
        match self {
            PeerStep::Dispatch => format!("/qb2/{namespace}/execution/fragment-dispatch/1.0.0"),
            other => format!("/qb2/{namespace}/reservation/{}/1.0.0", other.name()),
        }
    }
}

/// What existing peers can read of one document: a single Yamux frame.
pub const SINGLE_READ_BYTES: usize = 16_384;
/// Longest reason and error detail, in characters.
pub const MAX_REASON: usize = 300;
pub const MAX_DETAIL: usize = 600;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrepareRequest {
    #[serde(deserialize_with = "text::<8, _>")]
    pub reservation_id: String,
    #[serde(deserialize_with = "text::<8, _>")]
    pub workflow_run_id: String,
    #[serde(deserialize_with = "text::<3, _>")]
    pub fragment_id: String,
    #[serde(deserialize_with = "text::<3, _>")]
    pub requesting_peer_id: String,
    #[serde(deserialize_with = "text::<2, _>")]
    pub service_id: String,
    #[serde(deserialize_with = "at_least::<1, _>")]
    pub estimated_qubits: i64,
    #[serde(deserialize_with = "at_least::<1, _>")]
    pub estimated_depth: i64,
    #[serde(default, deserialize_with = "fields::between::<0, 100, _>")]
    pub priority: i64,
    /// Whether it may be so short or so long is the protocol's matter: it is declined with a reason.
    #[serde(default = "default_ttl", deserialize_with = "number")]
    pub ttl_seconds: i64,
    #[serde(deserialize_with = "text::<8, _>")]
    pub idempotency_key: String,
    #[serde(default, deserialize_with = "time_text")]
    pub sent_at: String,
}

fn default_ttl() -> i64 {
    60
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitRequest {
    #[serde(deserialize_with = "text::<8, _>")]
    pub reservation_id: String,
    #[serde(deserialize_with = "text::<8, _>")]
    pub workflow_run_id: String,
    #[serde(deserialize_with = "text::<3, _>")]
    pub fragment_id: String,
    #[serde(default, deserialize_with = "time_text")]
    pub sent_at: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    #[serde(deserialize_with = "text::<8, _>")]
    pub reservation_id: String,
    #[serde(default, deserialize_with = "maybe_text::<0, 300, _>")]
    pub reason: Option<String>,
    #[serde(default, deserialize_with = "time_text")]
    pub sent_at: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DispatchRequest {
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
    #[serde(default = "empty_object", deserialize_with = "fields::object")]
    pub input_payload: Value,
    #[serde(default = "default_retries", deserialize_with = "fields::between::<0, 10, _>")]
    pub max_retries: i64,
    #[serde(deserialize_with = "text::<8, _>")]
    pub idempotency_key: String,
    #[serde(default, deserialize_with = "time_text")]
    pub dispatched_at: String,
}

impl DispatchRequest {
    /// The number of qubits that the payload claims, before the payload is read: enough to tell large work from small.
    pub fn claimed_qubits(&self) -> Option<f64> {
        self.input_payload["state"]["num_qubits"].as_f64()
    }
}

fn empty_object() -> Value {
    Value::Object(serde_json::Map::new())
}

fn default_retries() -> i64 {
    2
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputPayload {
    #[serde(deserialize_with = "text::<8, _>")]
    pub plan_id: String,
    #[serde(default, deserialize_with = "maybe_text::<3, 1024, _>")]
    pub block_id: Option<String>,
    #[serde(default)]
    pub fragment: Option<Fragment>,
    #[serde(default)]
    pub fragments: Vec<Fragment>,
    pub state: QuantumState,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fragment {
    #[serde(deserialize_with = "text::<3, _>")]
    pub fragment_id: String,
    #[serde(deserialize_with = "text::<2, _>")]
    pub service_id: String,
    #[serde(default, deserialize_with = "list")]
    pub qubits: Vec<i64>,
    #[serde(default)]
    pub operation_ids: Vec<String>,
    #[serde(default)]
    pub dependencies: Vec<String>,
    #[serde(default)]
    pub raw_text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantumState {
    #[serde(deserialize_with = "at_least::<1, _>")]
    pub num_qubits: i64,
    #[serde(default, deserialize_with = "fields::maybe_list")]
    pub qubit_ids: Option<Vec<i64>>,
    #[serde(default)]
    pub amplitudes: Option<Vec<String>>,
    #[serde(default, deserialize_with = "list")]
    pub measured_qubits: Vec<i64>,
    #[serde(default, deserialize_with = "maybe_text::<3, 1024, _>")]
    pub previous_peer_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrepareAnswer {
    #[serde(deserialize_with = "text::<8, _>")]
    pub reservation_id: String,
    #[serde(deserialize_with = "text::<3, _>")]
    pub accepting_peer_id: String,
    pub transition: AnsweredTransition,
    #[serde(default, deserialize_with = "maybe_text::<0, 300, _>")]
    pub reason: Option<String>,
    #[serde(default, deserialize_with = "time_text")]
    pub replied_at: String,
}

/// The answer to a commit and to a cancel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepAnswer {
    #[serde(deserialize_with = "text::<8, _>")]
    pub reservation_id: String,
    pub transition: AnsweredTransition,
    #[serde(default, deserialize_with = "time_text")]
    pub replied_at: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DispatchAnswer {
    #[serde(deserialize_with = "text::<8, _>")]
    pub execution_id: String,
    #[serde(deserialize_with = "text::<3, _>")]
    pub fragment_id: String,
    #[serde(deserialize_with = "text::<3, _>")]
    pub executing_peer_id: String,
    pub transition: ExecutionTransition,
    #[serde(default = "empty_object", deserialize_with = "fields::object")]
    pub output_payload: Value,
    #[serde(default, deserialize_with = "fields::maybe_from_zero")]
    pub latency_ms: Option<f64>,
    #[serde(default, deserialize_with = "fields::maybe_share")]
    pub fidelity_score: Option<f64>,
    #[serde(default, deserialize_with = "maybe_text::<0, 600, _>")]
    pub error_detail: Option<String>,
    #[serde(default)]
    pub artifact_refs: Vec<String>,
    #[serde(default, deserialize_with = "time_text")]
    pub completed_at: String,
}

/// `output_payload` of a completed dispatch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FragmentOutput {
    pub state: QuantumState,
    #[serde(default, deserialize_with = "maybe_text::<3, 1024, _>")]
    pub block_id: Option<String>,
    #[serde(default)]
    pub fragment_ids: Vec<String>,
    #[serde(default, deserialize_with = "list")]
    pub component_qubits: Vec<i64>,
    #[serde(default, deserialize_with = "number")]
    pub gate_count: i64,
    #[serde(default, deserialize_with = "number")]
    pub circuit_depth: i64,
    #[serde(default, deserialize_with = "number")]
    pub state_transfer_bytes: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Advertisement {
    #[serde(deserialize_with = "text::<3, _>")]
    pub peer_id: String,
    #[serde(deserialize_with = "fields::trust_tier")]
    pub trust_tier: String,
    #[serde(default)]
    pub network_addresses: Vec<String>,
    #[serde(default)]
    pub supported_protocols: Vec<String>,
    #[serde(default)]
    pub service_summaries: Vec<ServiceSummary>,
    #[serde(default, deserialize_with = "number")]
    pub peer_log_position: i64,
    #[serde(deserialize_with = "fields::zoned_time")]
    pub emitted_at: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSummary {
    #[serde(deserialize_with = "text::<2, _>")]
    pub service_id: String,
    pub version: String,
    pub quantum_capability: String,
    pub benchmark_mode: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerHeartbeat {
    #[serde(deserialize_with = "text::<3, _>")]
    pub peer_id: String,
    pub health_status: HealthStatus,
    #[serde(default, deserialize_with = "at_least::<0, _>")]
    pub active_reservations: i64,
    #[serde(default, deserialize_with = "at_least::<0, _>")]
    pub active_executions: i64,
    #[serde(default, deserialize_with = "number")]
    pub peer_log_position: i64,
    #[serde(deserialize_with = "fields::zoned_time")]
    pub emitted_at: String,
}

/// Reads a document.
///
/// # Errors
/// When the bytes are not JSON or not this document. The text says what is wrong, with line and column.
pub fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|e| e.to_string())
}

/// Reads a part of a document.
///
/// # Errors
/// When the value does not have the form of the type. The text says what is wrong.
pub fn part<T: for<'a> Deserialize<'a>>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|e| e.to_string())
}

/// Writes a document. Documents are plain data, whose JSON can't fail.
pub fn write<T: Serialize>(document: &T) -> Vec<u8> {
    serde_json::to_vec(document).unwrap_or_default()
}

/// Microseconds since 1970 as the documents write it: `2026-04-20T00:55:00.123456Z`.
pub fn time(micros: i64) -> String {
    let (days, of_day) = (micros.div_euclid(86_400_000_000), micros.rem_euclid(86_400_000_000));
    let (year, month, day) = date(days);
    let (seconds, micros) = (of_day / 1_000_000, of_day % 1_000_000);
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{micros:06}Z")
}

/// The date of a day counted from 1970-01-01 (the proleptic Gregorian calendar in eras of 400 years).
fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
