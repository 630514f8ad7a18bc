//! Pure: the plan of a coordinator's job as it is recorded and shown.
//!
//! The coordinator computes plans; their form belongs here because a plan is part of a job's facts. Fields that a later
//! version adds need a default, so that plans of earlier versions stay readable.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One operation of the circuit, as a fragment that a peer runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedFragment {
    pub fragment_id: String,
    pub operation_id: String,
    pub service_id: String,
    pub qubits: Vec<u32>,
    /// Ids of the fragments that must be done before this one.
    pub dependencies: Vec<String>,
    /// The operation as a statement of OpenQASM.
    pub raw_text: String,
    pub block_id: String,
}

/// Fragments that run together on one peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Block {
    pub block_id: String,
    /// Number of the block's stage, from 1.
    pub stage: usize,
    /// The one service that the block needs, or the bundle of several.
    pub service_id: String,
    pub services: Vec<String>,
    pub fragment_ids: Vec<String>,
    /// Qubits of the block's state, ascending.
    pub qubits: Vec<u32>,
    /// The states that the block starts from, each by its qubits.
    pub components: Vec<Vec<u32>>,
    pub predecessors: Vec<String>,
    /// Best first: the primary and its fallbacks.
    pub candidates: Vec<RankedCandidate>,
    /// Indexes of the block's fragments in the plan. They are not recorded.
    #[serde(skip)]
    pub fragments: Vec<usize>,
}

impl Block {
    /// Whether a peer with these services may run it.
    pub fn is_offered_by(&self, services: &[String]) -> bool {
        self.services.iter().all(|needed| services.contains(needed))
    }
}

/// A peer that may run a block, with the parts of its rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankedCandidate {
    pub peer_id: String,
    /// The weighted sum of the parts; the lowest is tried first.
    pub total: f64,
    pub fidelity: f64,
    /// Cost of moving the block's state to this peer.
    #[serde(rename = "move")]
    pub movement: f64,
    pub load: f64,
    /// For what has happened with this peer before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub penalty: f64,
}

/// So a plan without penalties is written as earlier versions wrote it.
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// How a circuit is run on the peers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    pub plan_id: String,
    pub qubits: u32,
    pub fragments: Vec<PlannedFragment>,
    /// The blocks of each stage, in order.
    pub stages: Vec<Vec<Block>>,
}
