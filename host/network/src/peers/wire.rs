//! Pure: the documents that peers exchange, as strict as existing peers are and bounded.
//!
//! Unknown keys are refused at every level; what is written has every field, nulls included. Integers may come
//! as `5.0`. What may be missing but never null is a field with a default, what may be both is an `Option`.

mod dispatch;
mod fields;
mod health;
mod transition;

use serde::{Deserialize, Serialize};

pub use dispatch::{
    DispatchAnswer, DispatchHead, DispatchRequest, EmptyObject, Fragment, FragmentOutput, InputPayload,
    QuantumState, RawPart, ReceivedDispatch, ReceivedFragment, ReceivedOutput, ReceivedPayload,
    ReceivedState,
};
pub use fields::UnusedTexts;
pub use health::HealthStatus;
pub use transition::{AnsweredTransition, ExecutionTransition};

use fields::{at_least, maybe_text, number, text, time_text};

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

/// Bytes that are not the document that they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct DocumentError {
    /// What is wrong, with line and column.
    text: String,
}

impl DocumentError {
    fn new(error: &serde_json::Error) -> DocumentError {
        // It may repeat a part of the document, of any length.
        DocumentError { text: crate::model::cut(&error.to_string(), MAX_REASON).to_string() }
    }
}

/// Reads a document. What is decoded is bounded: texts and lists by their types, and large parts are left as the bytes
/// that came ([`RawPart`]).
///
/// # Errors
/// When the bytes are not JSON or not this document.
pub fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DocumentError> {
    serde_json::from_slice(bytes).map_err(|e| DocumentError::new(&e))
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
