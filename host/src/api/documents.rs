//! The documents of the coordinator's API: what requests carry and what answers show. Jobs are in
//! `coordinator::job_view`.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::body::{BoundedText, MAX_TEXT, WholeNumber};
use crate::coordinator::directory::KnownPeer;
use crate::coordinator::job_view::{CoordinatorJob, JobStatus, JobSummary};
use crate::coordinator::track_record::BreakerState;
use crate::peers::wire::{MAX_REASON, time};
use crate::reservation::event::Transition;
use crate::reservation::job_options::{BitOrder, ResultKind, default_results};
use crate::reservation::ledger::ReservationState;

/// Shortest time to live of a reservation, in seconds.
const MIN_TTL: u64 = 5;
/// Longest time to live of a reservation, in seconds.
const MAX_TTL: u64 = 31_536_000;
/// Shortest id of a reservation, in characters.
const MIN_RESERVATION_ID: usize = 8;

/// The answer of `/health`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Health {
    #[schemars(extend("const" = "ok"))]
    pub status: &'static str,
}

/// A circuit to run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// OpenQASM 2.0 or 3.x. No file is ever read.
    pub qasm: String,
    /// How often the final state is sampled.
    #[serde(default = "default_shots")]
    pub shots: WholeNumber<1, { u32::MAX as u64 }>,
    /// Values of the circuit's `input` declarations, by their names; angles in radians.
    #[serde(default)]
    pub inputs: BTreeMap<String, f64>,
    /// What the result has besides `counts`: a state of up to 12 qubits; probabilities are null of more.
    #[serde(default = "default_results")]
    pub results: Vec<ResultKind>,
    /// Pauli strings whose expectation values the result has: `XIZ`, where letter i stands for qubit i, or `XZ_q0_q2`.
    #[serde(default)]
    pub observables: Vec<String>,
    /// How keys of the result are written.
    #[serde(default)]
    pub bit_order: BitOrder,
    /// Whether the final state is compared with a local simulation; a job with another state fails.
    #[serde(default)]
    pub verify: bool,
    /// How many peers must agree about the state behind each block.
    #[serde(default = "default_redundancy")]
    pub redundancy: WholeNumber<1, 2>,
    /// When a key is used again, the answer is the first job. The header Idempotency-Key does the same.
    #[serde(default)]
    #[schemars(with = "BoundedText<1>")]
    pub idempotency_key: Option<BoundedText<1>>,
}

fn default_redundancy() -> WholeNumber<1, 2> {
    WholeNumber(1)
}

fn default_shots() -> WholeNumber<1, { u32::MAX as u64 }> {
    WholeNumber(1024)
}

/// A job that was accepted.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct JobAccepted {
    pub job_id: String,
    pub status: JobStatus,
    /// The job as it is after the wait that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<CoordinatorJob>,
}

/// Jobs from the newest to the oldest.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Jobs {
    pub jobs: Vec<JobSummary>,
    /// For `after` of the next page; null on the last one. A page may have fewer jobs than `limit` before the last one.
    pub next: Option<String>,
}

/// Whether jobs are run.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Ready {
    pub ready: bool,
    /// Why not, and what to do.
    pub reasons: Vec<String>,
    pub store: StoreState,
    pub network: NetworkState,
    pub peers: PeerNumbers,
    pub version: &'static str,
}

/// Whether events can be recorded and read.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct StoreState {
    pub readable: bool,
    pub writable: bool,
    /// Whether the coordinator holds the lease of its identity. Without it, it runs no job.
    pub lease: bool,
}

/// The coordinator in the peer network.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct NetworkState {
    pub running: bool,
    pub peer_id: String,
    pub connected: usize,
}

/// Peers that were heard, and those of them that blocks may be sent to.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct PeerNumbers {
    pub known: usize,
    pub usable: usize,
}

/// The peers that the coordinator knows.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Peers {
    /// The coordinator's own peer id.
    pub peer_id: String,
    pub peers: Vec<PeerEntry>,
}

/// One peer, as it describes itself in the network.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct PeerEntry {
    pub peer_id: String,
    /// Nothing was heard of the peer for a while.
    pub stale: bool,
    /// It can't be reached: it gets no block until it is connected or heard again.
    pub lost: bool,
    pub health: String,
    pub services: Vec<String>,
    pub addresses: Vec<String>,
    pub trust_tier: Option<String>,
    pub active_reservations: u64,
    pub active_executions: u64,
    pub heard_seconds_ago: u64,
    /// Whether it takes blocks: `closed` yes, `half_open` one that shows what becomes of it, `open` not for a while.
    pub breaker: BreakerState,
    /// By how much its rank is worse for what happened with it.
    pub penalty: f64,
    /// The last fidelity that the peer reported, by service.
    pub fidelity: BTreeMap<String, f64>,
}

impl PeerEntry {
    pub fn new(peer_id: String, known: KnownPeer) -> PeerEntry {
        let record = known.record;
        PeerEntry {
            peer_id,
            stale: known.stale,
            lost: record.lost,
            health: record.health.map_or_else(|| "unknown".into(), String::from),
            services: record.services,
            addresses: record.addresses,
            trust_tier: record.trust_tier,
            active_reservations: record.reservations,
            active_executions: record.executions,
            heard_seconds_ago: known.heard_seconds_ago,
            breaker: known.breaker,
            penalty: known.penalty,
            fidelity: record.fidelity,
        }
    }
}

/// A reservation to record.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ReservationRequest")]
#[serde(deny_unknown_fields)]
pub struct ReservationBody {
    pub workflow_run_id: BoundedText<8>,
    pub fragment_id: BoundedText<3>,
    pub service_id: BoundedText<2>,
    /// A new id by default.
    #[serde(default)]
    #[schemars(with = "ReservationId")]
    pub reservation_id: Option<ReservationId>,
    /// Who asks; by default the coordinator's own peer id. Idempotency keys belong to it.
    #[serde(default)]
    #[schemars(with = "BoundedText<3>")]
    pub requesting_peer_id: Option<BoundedText<3>>,
    #[serde(default = "default_ttl")]
    pub ttl_seconds: WholeNumber<MIN_TTL, MAX_TTL>,
    /// When the same caller uses a key again, the answer is the existing reservation, whatever else is asked for.
    #[serde(default)]
    #[schemars(with = "BoundedText<1>")]
    pub idempotency_key: Option<BoundedText<1>>,
}

fn default_ttl() -> WholeNumber<MIN_TTL, MAX_TTL> {
    WholeNumber(60)
}

/// The id of a reservation, which is part of URLs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationId(pub String);

impl<'de> Deserialize<'de> for ReservationId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ReservationId, D::Error> {
        let BoundedText(id) = BoundedText::<MIN_RESERVATION_ID>::deserialize(deserializer)?;
        match id.chars().any(|c| c.is_control() || matches!(c, '/' | '?' | '#')) {
            true => Err(D::Error::custom("'/', '?', '#' and control characters are not allowed")),
            false => Ok(ReservationId(id)),
        }
    }
}

impl JsonSchema for ReservationId {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ReservationId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "minLength": MIN_RESERVATION_ID, "maxLength": MAX_TEXT,
            "pattern": "^[^/?#\\x00-\\x1f\\x7f-\\x9f]+$",
        })
    }
}

/// Why a reservation is cancelled.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "CancelRequest")]
#[serde(deny_unknown_fields)]
pub struct CancelBody {
    #[serde(default)]
    #[schemars(with = "CancelReason")]
    pub reason: Option<CancelReason>,
}

/// A text of at most 300 characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelReason(pub String);

impl<'de> Deserialize<'de> for CancelReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CancelReason, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.chars().count() <= MAX_REASON {
            true => Ok(CancelReason(text)),
            false => Err(D::Error::custom(format!("the text has more than {MAX_REASON} characters"))),
        }
    }
}

impl JsonSchema for CancelReason {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CancelReason".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": MAX_REASON })
    }
}

/// A reservation, rebuilt from its events.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Reservation", deny_unknown_fields)]
pub struct ReservationView {
    pub reservation_id: String,
    pub workflow_run_id: String,
    pub fragment_id: String,
    pub service_id: String,
    pub requesting_peer_id: String,
    pub accepting_peer_id: Option<String>,
    pub current_transition: Transition,
    pub ttl_seconds: u64,
    #[schemars(extend("format" = "date-time"))]
    pub last_event_at: String,
    /// No other transition follows.
    pub is_terminal: bool,
    /// The reservation is accepted or committed.
    pub is_active: bool,
}

impl ReservationView {
    pub fn new(id: &str, state: &ReservationState) -> ReservationView {
        let request = state.request.clone();
        ReservationView {
            reservation_id: id.into(),
            workflow_run_id: request.workflow_run_id,
            fragment_id: request.fragment_id,
            service_id: request.service_id,
            requesting_peer_id: request.requesting_peer_id,
            accepting_peer_id: state.accepting_peer_id.clone(),
            current_transition: state.transition,
            ttl_seconds: request.ttl_seconds,
            last_event_at: time(state.last_event_at),
            is_terminal: state.transition.is_terminal(),
            is_active: state.transition.is_active(),
        }
    }
}
