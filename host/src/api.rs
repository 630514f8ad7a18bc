//! The local HTTP service: `/health`, `/ready`, `/metrics`.
//!
//! It only reads what others publish, so it answers whatever hangs. Connections have limits on headers and
//! time; axum only routes.

pub mod coordinator;
pub mod http;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::http::reply;
use crate::cloud::heartbeat::HeartbeatOutcome;
use crate::config::settings::ApiSettings;
use crate::error::{Explain, exit};
use crate::executor::PluginInfo;
use crate::executor::{ExecutorStatus, ReloadReport};
use crate::jobs::driver::Snapshot;
use crate::jobs::redis::Redis;
use crate::jobs::stream::ClaimGate;
use crate::peers::peer::PeerView;
use crate::peers::swarm::NetworkView;
use crate::telemetry::Metrics;
use crate::vpn::guard::{VpnState, VpnStatus};

#[derive(Debug, thiserror::Error)]
#[error("the local service can't listen on {host}:{port}")]
pub struct BindError {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) source: std::io::Error,
}

impl Explain for BindError {
    fn code(&self) -> &'static str {
        "api-bind"
    }

    fn hint(&self) -> Option<String> {
        Some("choose another port with --port or CODA_PORT, or stop what uses it".into())
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// What the service reads, once the host is up.
pub enum Reading {
    Host(Box<Sources>),
    /// A host without a cloud.
    PeerOnly {
        peers: Option<PeerSources>,
        metrics: Arc<Metrics>,
        executor: ExecutorStatus,
        reloads: watch::Receiver<ReloadReport>,
    },
}

/// What is read of the peer network.
pub struct PeerSources {
    pub network: watch::Receiver<NetworkView>,
    pub peer: watch::Receiver<PeerView>,
}

impl PeerSources {
    fn json(&self) -> Value {
        let (network, peer) = (self.network.borrow().clone(), *self.peer.borrow());
        json!({
            "peer_id": network.peer_id,
            "addresses": network.addresses,
            "connected": network.connected,
            "reservations": peer.load.reservations,
            "executions": peer.load.executions,
            "accepted": peer.accepted,
            "declined": peer.declined,
            "completed": peer.completed,
            "failed": peer.failed,
        })
    }
}

/// What the service reads of a host that is connected to a cloud.
pub struct Sources {
    /// Where slots are lent.
    pub peers: Option<PeerSources>,
    pub snapshot: watch::Receiver<Snapshot>,
    pub redis: Redis,
    pub gate: Arc<ClaimGate>,
    pub heartbeat: watch::Receiver<HeartbeatOutcome>,
    pub vpn: watch::Receiver<VpnStatus>,
    pub metrics: Arc<Metrics>,
    pub executor: ExecutorStatus,
    pub reloads: watch::Receiver<ReloadReport>,
    pub qpu_id: String,
}

type Up = watch::Receiver<Option<Arc<Reading>>>;

/// Takes the port.
///
/// # Errors
/// When it can't be had.
pub async fn bind(settings: &ApiSettings) -> Result<TcpListener, BindError> {
    let (host, port) = (settings.host.clone(), settings.port);
    TcpListener::bind((host.as_str(), port)).await.map_err(|source| BindError { host, port, source })
}

/// Serves until stopped. Before the host is up `/health` is fine and `/ready` isn't.
pub async fn serve(listener: TcpListener, up: Up, request_timeout: Duration, stop: CancellationToken) {
    let router = Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .with_state(up);
    http::serve(listener, router, request_timeout, stop).await;
}

async fn health() -> Response {
    reply(StatusCode::OK, &json!({ "status": "ok" }))
}

async fn ready(State(up): State<Up>) -> Response {
    let reading = up.borrow().clone();
    let (ready, body) = match reading.as_deref() {
        Some(Reading::Host(sources)) => readiness(sources),
        Some(Reading::PeerOnly { peers, executor, reloads, .. }) => {
            let (reasons, load) = (executor.trouble(), executor.load());
            let body = json!({
                "ready": reasons.is_empty(), "vpn_state": null, "redis_healthy": null, "current_job": null,
                "reasons": reasons, "slots": load.slots, "slots_busy": load.busy + load.reserved,
                "plugin": about(&executor.active_plugin().info), "reloads": reload(reloads), "peer": peers.as_ref().map(PeerSources::json),
                "version": env!("CARGO_PKG_VERSION"),
            });
            (reasons.is_empty(), body)
        }
        None => (
            false,
            json!({ "ready": false, "vpn_state": "booting", "redis_healthy": false, "current_job": null,
                    "reasons": ["starting: not connected to the cloud yet"] }),
        ),
    };
    reply(if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &body)
}

fn readiness(s: &Sources) -> (bool, Value) {
    let snapshot = s.snapshot.borrow().clone();
    let redis_healthy = s.redis.is_up();
    let mut reasons = Vec::new();
    if !redis_healthy {
        reasons.push("Redis is not reachable: no new jobs; see the log for its error".to_string());
    }
    if let Some(call) = &snapshot.stuck {
        reasons.push(format!("the executor is stuck in its {call}: restart coda-host"));
    }
    reasons.extend(s.executor.trouble());
    if let Some(error) = &snapshot.store_error {
        reasons.push(format!(
            "results can't be stored, so nothing more is run: {error}; free space or unlock it"
        ));
    }
    reasons
        .extend(snapshot.faults.iter().map(|fault| format!("{fault}: report this as a bug, then restart")));
    if s.gate.disk_full() {
        reasons.push("the state disk is nearly full: free space, no jobs are claimed until then".into());
    }
    let vpn = s.vpn.borrow().clone();
    if vpn.state != VpnState::Ready {
        let why = vpn.reason.as_deref().unwrap_or("not checked yet");
        reasons.push(format!("the VPN to Coda is not usable: {why}; see the log and coda-node-openvpn.log"));
    }
    let ready = reasons.is_empty();
    let heartbeat = s.heartbeat.borrow().clone();
    let active = s.executor.active_plugin();
    let progress = snapshot.running.0.as_ref().map(|c| c.progress()).filter(|(_, total)| *total > 0);
    let body = json!({
        "ready": ready,
        "vpn_state": vpn.state.name(),
        "redis_healthy": redis_healthy,
        "current_job": snapshot.current_job.as_deref(),
        "progress": progress.map(|(done, total)| json!({ "done": done, "total": total })),
        "reasons": reasons,
        "vpn_interface": vpn.interface,
        "qpu_id": s.qpu_id,
        "last_job_at": snapshot.last_job_at,
        "slots": snapshot.slots,
        "slots_busy": snapshot.slots_busy,
        "waiting": snapshot.waiting,
        "undelivered": s.metrics.undelivered.get(),
        "heartbeat": {
            "accepted": heartbeat.accepted,
            "last_accepted_seconds_ago": heartbeat.accepted_at.map(|at| at.elapsed().as_secs()),
            "error": heartbeat.error,
        },
        "plugin": about(&active.info),
        "reloads": reload(&s.reloads),
        "peer": s.peers.as_ref().map(PeerSources::json),
        "version": env!("CARGO_PKG_VERSION"),
    });
    (ready, body)
}

fn reload(last: &watch::Receiver<ReloadReport>) -> Value {
    let last = last.borrow();
    json!({ "count": last.count, "ok": last.ok, "message": last.message })
}

fn about(p: &PluginInfo) -> Value {
    json!({
        "vendor": p.vendor, "name": p.name, "version": p.version, "kind": p.kind.name(),
        "path": p.path, "sha256": p.sha256,
    })
}

async fn metrics(State(up): State<Up>) -> Response {
    let reading = up.borrow().clone();
    let sources = reading.as_deref().map(|reading| match reading {
        Reading::Host(sources) => (&sources.metrics, &sources.executor),
        Reading::PeerOnly { metrics, executor, .. } => (metrics, executor),
    });
    match sources {
        Some((metrics, executor)) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            let text = metrics.render_with(&executor.active_plugin().info.labels(), &executor.gauges());
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
