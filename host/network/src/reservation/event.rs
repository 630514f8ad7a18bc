//! The facts of a reservation's life, versioned: what is appended to the log and never changed.
//!
//! ```text
//! requested ─> accepted ─> committed          cancelled, expired, rejected and committed are terminal
//!      │           ├─────> cancelled
//!      │           └─────> expired            a peer's hold on its slot is separate: it begins with
//!      ├─> rejected                           `accepted { held }` and ends with exactly one `hold_released`,
//!      ├─> cancelled                          whatever the transition is by then
//!      └─> expired
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::stream::StreamId;

/// The version that this host writes. Older ones are read for ever; newer ones are refused.
pub const VERSION: u16 = 1;

/// Where a reservation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    Requested,
    Accepted,
    Committed,
    Cancelled,
    Expired,
    Rejected,
}

impl Transition {
    pub const ALL: [Transition; 6] = [
        Transition::Requested,
        Transition::Accepted,
        Transition::Committed,
        Transition::Cancelled,
        Transition::Expired,
        Transition::Rejected,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Transition::Requested => "requested",
            Transition::Accepted => "accepted",
            Transition::Committed => "committed",
            Transition::Cancelled => "cancelled",
            Transition::Expired => "expired",
            Transition::Rejected => "rejected",
        }
    }

    pub fn from_name(name: &str) -> Option<Transition> {
        Transition::ALL.into_iter().find(|t| t.name() == name)
    }

    /// Nothing follows it.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Transition::Requested | Transition::Accepted)
    }

    /// The peer keeps something for it.
    pub fn is_active(self) -> bool {
        matches!(self, Transition::Accepted | Transition::Committed)
    }

    /// Whether `next` may follow.
    pub fn allows(self, next: Transition) -> bool {
        use Transition::{Accepted, Cancelled, Committed, Expired, Rejected, Requested};
        match self {
            Requested => matches!(next, Accepted | Rejected | Expired | Cancelled),
            Accepted => matches!(next, Committed | Cancelled | Expired),
            Committed | Cancelled | Expired | Rejected => false,
        }
    }
}

/// Why a hold on a slot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldRelease {
    /// Prepare + ttl.
    Expired,
    /// Its dispatch came to an end.
    Dispatched,
    /// Its owner cancelled.
    Cancelled,
    /// The peer's process ended, and the hold with it.
    Lost,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationRequest {
    pub workflow_run_id: String,
    pub fragment_id: String,
    pub service_id: String,
    pub requesting_peer_id: String,
    pub ttl_seconds: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fact {
    Requested(ReservationRequest),
    Accepted {
        accepting_peer_id: String,
        /// A slot of this host is held for it.
        #[serde(default)]
        held: bool,
    },
    Committed,
    Cancelled {
        reason: String,
    },
    Expired,
    Rejected {
        reason: String,
    },
    HoldReleased {
        why: HoldRelease,
    },
    Dispatched {
        execution_id: String,
    },
    Completed {
        execution_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fidelity: Option<f64>,
        latency_ms: f64,
    },
    Failed {
        execution_id: String,
        error: String,
    },
}

impl Fact {
    /// The transition that it makes, if any.
    pub fn transition(&self) -> Option<Transition> {
        Some(match self {
            Fact::Requested(_) => Transition::Requested,
            Fact::Accepted { .. } => Transition::Accepted,
            Fact::Committed => Transition::Committed,
            Fact::Cancelled { .. } => Transition::Cancelled,
            Fact::Expired => Transition::Expired,
            Fact::Rejected { .. } => Transition::Rejected,
            _ => return None,
        })
    }

    /// Its name in the log.
    pub fn kind(&self) -> &'static str {
        match self {
            Fact::HoldReleased { .. } => "hold_released",
            Fact::Dispatched { .. } => "dispatched",
            Fact::Completed { .. } => "completed",
            Fact::Failed { .. } => "failed",
            other => other.transition().map_or("unknown", Transition::name),
        }
    }
}

/// Facts of one hold, and when they happened.
#[derive(Debug, Clone, PartialEq)]
pub struct EventBatch {
    /// The reservation's id and a number of the peer's.
    pub hold: String,
    pub at: i64,
    pub facts: Vec<Fact>,
}

impl EventBatch {
    /// Its stream in the log.
    pub fn stream(&self) -> StreamId {
        StreamId::hold(self.hold.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_transitions_is_the_contract() {
        use Transition::{Accepted, Cancelled, Committed, Expired, Rejected, Requested};
        let allowed = [
            (Requested, Accepted),
            (Requested, Rejected),
            (Requested, Expired),
            (Requested, Cancelled),
            (Accepted, Committed),
            (Accepted, Cancelled),
            (Accepted, Expired),
        ];
        for from in Transition::ALL {
            for to in Transition::ALL {
                assert_eq!(from.allows(to), allowed.contains(&(from, to)), "{from:?} -> {to:?}");
            }
            assert_eq!(from.is_terminal(), Transition::ALL.iter().all(|t| !from.allows(*t)));
            assert_eq!(Transition::from_name(from.name()), Some(from));
        }
    }

    #[test]
    fn facts_keep_their_written_form() {
        let facts = [
            (
                Fact::Accepted { accepting_peer_id: "p".into(), held: true },
                r#"{"kind":"accepted","accepting_peer_id":"p","held":true}"#,
            ),
            (Fact::Expired, r#"{"kind":"expired"}"#),
            (
                Fact::HoldReleased { why: HoldRelease::Dispatched },
                r#"{"kind":"hold_released","why":"dispatched"}"#,
            ),
        ];
        for (fact, text) in facts {
            assert_eq!(serde_json::to_string(&fact).unwrap(), text);
            assert_eq!(serde_json::from_str::<Fact>(text).unwrap(), fact);
        }
    }
}
