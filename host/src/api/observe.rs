//! What watches over a coordinator asks for: whether it can run jobs, and its metrics.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use prometheus_client::registry::Registry;

use super::coordinator::Api;
use super::documents::{NetworkState, PeerNumbers, Ready, StoreState};
use super::http::{RETRY_AFTER, metrics_answer, reply};
use crate::supervise::PanicWatch;
use crate::telemetry;

/// How long the event log may take to answer a probe.
const STORE_LIMIT: Duration = Duration::from_secs(2);

/// 200 when a job would be run, otherwise 503 with every reason.
pub async fn ready(State(api): State<Api>) -> Response {
    let body = readiness(&api).await;
    if body.ready {
        return reply(StatusCode::OK, &body);
    }
    let mut response = reply(StatusCode::SERVICE_UNAVAILABLE, &body);
    response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    response
}

/// Whether a job would be run, and why not.
pub async fn readiness(api: &Api) -> Ready {
    let (runner, mut reasons) = (&api.service.runner, Vec::new());
    if let Some(panic) = PanicWatch::of_process().first() {
        reasons
            .push(format!("the coordinator is ending, because {panic}: report this as a bug with its log"));
    }
    if api.stop.is_cancelled() {
        reasons.push("the coordinator is stopping: start it again".into());
    }
    let read = tokio::time::timeout(STORE_LIMIT, runner.log.check_read()).await;
    let read = read.map_err(|_| format!("the event log did not answer within {STORE_LIMIT:?}"));
    let readable = match read.and_then(|read| read.map_err(|error| error.to_string())) {
        Ok(()) => true,
        Err(error) => {
            reasons.push(format!("jobs can't be looked up: {error}; check the database server or the file"));
            false
        }
    };
    let writable = runner.log.is_writable();
    if !writable {
        let reason = "the event log could not be written, so no job is accepted: free space, or check the database \
                      server; it is tried again by itself";
        reasons.push(reason.into());
    }
    let lost = api.service.lease.lost();
    if let Some(why) = &lost {
        reasons.push(format!(
            "this coordinator runs no job, because it does not hold the lease of its identity: {why}; check the database \
             server, and that no other coordinator has this identity; it is asked for again by itself"
        ));
    }
    let view = runner.network.view();
    let running = view.has_changed().is_ok();
    if !running {
        reasons
            .push("the peer network has stopped: restart the coordinator, and report this as a bug".into());
    }
    let peers = PeerNumbers {
        known: runner.directory.known_peers().len(),
        usable: runner.directory.candidates().len(),
    };
    if peers.usable == 0 {
        let reason = match peers.known {
            0 => "no peer was heard of: start one with CODA_PEER_BOOTSTRAP set to this coordinator's address",
            _ => "none of the known peers is connected and healthy: see GET /api/v1/peers and their logs",
        };
        reasons.push(reason.into());
    }
    let network = view.borrow().clone();
    Ready {
        ready: reasons.is_empty(),
        reasons,
        store: StoreState { readable, writable, lease: lost.is_none() },
        network: NetworkState { running, peer_id: network.peer_id, connected: network.connected },
        peers,
        version: env!("CARGO_PKG_VERSION"),
    }
}

pub async fn metrics(State(api): State<Api>, headers: HeaderMap) -> Response {
    let ready = readiness(&api).await.ready;
    let mut now = Registry::default();
    now.register_collector(Box::new(api.service.levels(ready).await));
    metrics_answer(&headers, telemetry::render_others(&[&api.service.metrics.registry, &now]))
}
