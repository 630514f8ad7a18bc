//! The rows of one reservation's life, for the unit tests of this module.

use super::event::{Fact, ReservationRequest};
use super::log::{Row, fact_json};
use super::stream::StreamId;

/// The five facts of a reservation that was requested, accepted, committed, dispatched and completed.
pub fn five_rows() -> Vec<Row> {
    let request = ReservationRequest {
        workflow_run_id: "workflow-1".into(),
        fragment_id: "frag-0001".into(),
        service_id: "hadamard".into(),
        requesting_peer_id: "12D3KooWcoordinator".into(),
        ttl_seconds: 60,
        idempotency_key: None,
    };
    let accepted = Fact::Accepted { accepting_peer_id: "12D3KooWpeer".into(), held: false };
    let done = Fact::Completed { execution_id: "exec-1".into(), fidelity: None, latency_ms: 1.0 };
    let dispatched = Fact::Dispatched { execution_id: "exec-1".into() };
    let facts = [Fact::Requested(request), accepted, Fact::Committed, dispatched, done];
    let row = |(n, f): (usize, &Fact)| {
        let n = n as i64 + 1;
        Row::new(n, &StreamId::reservation("res-00000001"), n, 1_000 * n, fact_json(f))
    };
    facts.iter().enumerate().map(row).collect()
}
