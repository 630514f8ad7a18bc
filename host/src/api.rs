//! The local HTTP service: `/health`, `/ready`, `/metrics`, and the page.
//!
//! It only reads what others publish, so it answers whatever hangs. Connections have limits on headers and
//! time; axum only routes.

pub mod accept;
pub mod access;
pub mod body;
pub mod coordinator;
pub mod coordinator_page;
pub mod documents;
pub mod host_page;
pub mod http;
pub mod jobs;
pub mod observe;
pub mod openapi;
pub mod readiness;
pub mod ready_body;
mod received_body;
pub mod request;
pub mod sandbox;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::documents::Health;
use self::host_page::PageSettings;
use self::http::{metrics_answer, reply};
use self::readiness::{
    CloudHealth, ExecutorHealth, ReadinessInputs, Reason, StuckControlCall, StuckJob, VpnHealth, WorkerDeaths,
};
use self::ready_body::{
    CloudBody, ExecutorBody, HeartbeatBody, HoldBody, PeerBody, PluginBody, ProgressBody, PythonBody,
    ReadyBody, ReloadsBody, WindowBody,
};
use crate::activity::Activity;
use crate::activity::parts::{PartName, PartState};
use crate::availability::calendar::Window;
use crate::availability::{Availability, Hold};
use crate::cloud::heartbeat::HeartbeatOutcome;
use crate::config::settings::ApiSettings;
use crate::error::{Explain, exit};
use crate::executor::worker::Trouble;
use crate::executor::{ControlCall, ExecutorStatus, PluginInfo, PythonInfo, ReloadReport, StuckRun};
use crate::jobs::claim_gate::{ClaimGate, ClaimStep};
use crate::jobs::driver::Snapshot;
use crate::jobs::redis::Redis;
use crate::model::iso_time;
use crate::peers::peer::PeerView;
use crate::peers::swarm::NetworkView;
use crate::state::db::Store;
use crate::supervise::PanicWatch;
use crate::telemetry::levels::HostLevels;
use crate::telemetry::{Metrics, PluginMetrics};
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
        use std::io::ErrorKind::{AddrInUse, PermissionDenied};
        Some(match self.source.kind() {
            AddrInUse => "choose another port with --port or CODA_PORT, or stop what uses it".into(),
            PermissionDenied => "choose a port from 1024 on with --port or CODA_PORT".into(),
            _ => "set --host or CODA_HOST to an address of this machine, without port and scheme".into(),
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// What the service reads, once the host is up.
pub enum ApiSources {
    Host(Box<HostSources>),
    /// A host without a cloud.
    PeerOnly {
        peers: Option<PeerSources>,
        metrics: Arc<Metrics>,
        activity: Arc<Activity>,
        executor: ExecutorStatus,
        reloads: watch::Receiver<ReloadReport>,
        availability: watch::Receiver<Availability>,
    },
}

/// What is read of the peer network.
pub struct PeerSources {
    pub network: watch::Receiver<NetworkView>,
    pub peer: watch::Receiver<PeerView>,
}

impl PeerSources {
    fn body(&self) -> PeerBody {
        let (network, peer) = (self.network.borrow().clone(), self.peer.borrow().clone());
        PeerBody {
            peer_id: network.peer_id,
            addresses: network.addresses,
            connected: network.connected,
            reservations: peer.load.reservations,
            executions: peer.load.executions,
            accepted: peer.accepted,
            declined: peer.declined,
            completed: peer.completed,
            failed: peer.failed,
        }
    }
}

/// What the service reads of a host that is connected to a cloud.
pub struct HostSources {
    /// Where slots are lent.
    pub peers: Option<PeerSources>,
    pub snapshot: watch::Receiver<Snapshot>,
    pub redis: Redis,
    pub store: Store,
    pub gate: Arc<ClaimGate>,
    pub heartbeat: watch::Receiver<HeartbeatOutcome>,
    pub vpn: watch::Receiver<VpnStatus>,
    pub metrics: Arc<Metrics>,
    pub activity: Arc<Activity>,
    pub executor: ExecutorStatus,
    pub reloads: watch::Receiver<ReloadReport>,
    pub availability: watch::Receiver<Availability>,
    pub qpu_id: String,
}

type SourcesReceiver = watch::Receiver<Option<Arc<ApiSources>>>;

/// Takes the port.
///
/// # Errors
/// When it can't be had.
pub async fn bind(settings: &ApiSettings) -> Result<TcpListener, BindError> {
    let (host, port) = (settings.host.trim().to_string(), settings.port);
    // As in a URL: an IPv6 address may stand in brackets.
    let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
    TcpListener::bind((name, port)).await.map_err(|source| BindError { host, port, source })
}

/// Serves until stopped. Before the host is up `/health` is fine and `/ready` isn't.
pub async fn serve(listener: TcpListener, up: SourcesReceiver, page: PageSettings, stop: CancellationToken) {
    let request_timeout = page.api.request_timeout;
    let router = Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .with_state(up.clone())
        .merge(host_page::routes(page, up, stop.clone()));
    accept::serve(listener, router, request_timeout, stop).await;
}

async fn health() -> Response {
    reply(StatusCode::OK, &Health { status: "ok" })
}

async fn ready(State(up): State<SourcesReceiver>) -> Response {
    let sources = up.borrow().clone();
    let (reasons, body) = match sources.as_deref() {
        Some(ApiSources::Host(sources)) => host_status(sources),
        Some(ApiSources::PeerOnly { peers, executor, reloads, availability, .. }) => {
            peer_only_status(peers.as_ref(), executor, reloads, availability)
        }
        None => {
            let reasons = vec![Reason::Starting];
            let body = ReadyBody {
                ready: false,
                reasons: texts(&reasons),
                vpn_state: Some("booting"),
                redis_healthy: Some(false),
                current_job: None,
                executor: None,
                cloud: None,
            };
            (reasons, body)
        }
    };
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    reply(status, &body)
}

fn texts(reasons: &[Reason]) -> Vec<String> {
    reasons.iter().map(Reason::to_string).collect()
}

fn executor_health(executor: &ExecutorStatus) -> ExecutorHealth {
    let stuck = |run: StuckRun| StuckJob { job_id: run.job_id, seconds: run.since.elapsed().as_secs() };
    let stuck_call = |call: ControlCall| StuckControlCall {
        seconds: call.since.elapsed().as_secs(),
        call: call.call,
        plugin: call.plugin,
        killed_after: call.killed_after,
    };
    let deaths = |t: Trouble| WorkerDeaths { in_a_row: t.in_a_row, last: t.last };
    ExecutorHealth {
        stuck_call: executor.stuck_call().map(stuck_call),
        stuck_run: executor.stuck_run().map(stuck),
        worker: executor.worker_trouble().map(deaths),
    }
}

/// The status of a host without a cloud.
fn peer_only_status(
    peers: Option<&PeerSources>,
    executor: &ExecutorStatus,
    reloads: &watch::Receiver<ReloadReport>,
    availability: &watch::Receiver<Availability>,
) -> (Vec<Reason>, ReadyBody) {
    let Availability { hold, next_window } = availability.borrow().clone();
    let panic = PanicWatch::of_process().first().map(|panic| panic.to_string());
    let inputs =
        ReadinessInputs { panic, executor: executor_health(executor), hold: hold.clone(), cloud: None };
    let (reasons, load) = (readiness::reasons(&inputs), executor.load());
    let body = ReadyBody {
        ready: reasons.is_empty(),
        reasons: texts(&reasons),
        vpn_state: None,
        redis_healthy: None,
        current_job: None,
        executor: Some(ExecutorBody {
            slots: load.slots,
            slots_busy: load.busy + load.reserved,
            hold: hold.as_ref().map(hold_body),
            next_maintenance: next_window.as_ref().map(window_body),
            plugin: plugin_body(&executor.active_plugin().info),
            reloads: reloads_body(reloads),
            peer: peers.map(PeerSources::body),
            version: env!("CARGO_PKG_VERSION"),
        }),
        cloud: None,
    };
    (reasons, body)
}

/// The status of a host that takes jobs from a cloud.
fn host_status(s: &HostSources) -> (Vec<Reason>, ReadyBody) {
    let snapshot = s.snapshot.borrow().clone();
    let vpn = s.vpn.borrow().clone();
    let Availability { hold, next_window } = s.availability.borrow().clone();
    let redis_error = s.redis.link.error();
    let is_redis_up = redis_error.is_none();
    let cloud = CloudHealth {
        redis_error,
        store_error: snapshot.store_error.clone(),
        write_refusal: s.redis.writes.refusal(),
        cancel_error: snapshot.cancel_error.clone(),
        check_error: snapshot.check_error.clone(),
        read_error: s.gate.error(ClaimStep::Read),
        pending_error: s.gate.error(ClaimStep::Pending),
        faults: snapshot.faults.iter().map(ToString::to_string).collect(),
        is_state_disk_full: s.gate.disk_full(),
        vpn: match vpn.state {
            VpnState::Ready => VpnHealth::Usable,
            _ => VpnHealth::Unusable(vpn.reason.clone()),
        },
    };
    let panic = PanicWatch::of_process().first().map(|panic| panic.to_string());
    let inputs = ReadinessInputs {
        panic,
        executor: executor_health(&s.executor),
        hold: hold.clone(),
        cloud: Some(cloud),
    };
    let reasons = readiness::reasons(&inputs);
    let heartbeat = s.heartbeat.borrow().clone();
    let active = s.executor.active_plugin();
    let progress = snapshot.running.0.as_ref().map(|c| c.progress()).filter(|(_, total)| *total > 0);
    let body = ReadyBody {
        ready: reasons.is_empty(),
        reasons: texts(&reasons),
        vpn_state: Some(vpn.state.name()),
        redis_healthy: Some(is_redis_up),
        current_job: snapshot.current_job.as_deref().map(String::from),
        executor: Some(ExecutorBody {
            slots: snapshot.slots,
            slots_busy: snapshot.slots_busy,
            hold: hold.as_ref().map(hold_body),
            next_maintenance: next_window.as_ref().map(window_body),
            plugin: plugin_body(&active.info),
            reloads: reloads_body(&s.reloads),
            peer: s.peers.as_ref().map(PeerSources::body),
            version: env!("CARGO_PKG_VERSION"),
        }),
        cloud: Some(CloudBody {
            qpu_id: s.qpu_id.clone(),
            progress: progress.map(|(done, total)| ProgressBody { done, total }),
            vpn_interface: vpn.interface,
            last_job_at: snapshot.last_job_at.clone(),
            waiting: snapshot.waiting,
            undelivered: s.metrics.undelivered.get(),
            heartbeat: HeartbeatBody {
                accepted: heartbeat.accepted,
                last_accepted_seconds_ago: heartbeat.accepted_at.map(|at| at.elapsed().as_secs()),
                error: heartbeat.error,
            },
        }),
    };
    (reasons, body)
}

fn window_body(window: &Window) -> WindowBody {
    WindowBody { begin: iso_time(window.begin), end: iso_time(window.end), summary: window.summary.clone() }
}

fn hold_body(hold: &Hold) -> HoldBody {
    HoldBody { state: hold.name(), note: hold.note().map(String::from), until: hold.until().map(iso_time) }
}

fn reloads_body(last: &watch::Receiver<ReloadReport>) -> ReloadsBody {
    let ReloadReport { count, ok, message } = last.borrow().clone();
    ReloadsBody { count, ok, message }
}

fn plugin_body(p: &PluginInfo) -> PluginBody {
    PluginBody {
        vendor: p.vendor.clone(),
        name: p.name.clone(),
        version: p.version.clone(),
        kind: p.kind.name(),
        path: p.path.display().to_string(),
        sha256: p.sha256.clone(),
        python: p.python.as_ref().map(|PythonInfo { facts, interpreter }| PythonBody {
            factory: facts.factory.clone(),
            package: facts.name(),
            coda_node: facts.coda_node.clone(),
            python: facts.python.clone(),
            interpreter: interpreter.path.display().to_string(),
            chosen_by: interpreter.chosen_by.to_string(),
        }),
    }
}

/// What is true now, for `/metrics`.
fn levels(sources: &ApiSources) -> HostLevels {
    let (executor, ready) = match sources {
        ApiSources::Host(host) => (&host.executor, host_status(host).0.is_empty()),
        ApiSources::PeerOnly { peers, executor, reloads, availability, .. } => {
            (executor, peer_only_status(peers.as_ref(), executor, reloads, availability).0.is_empty())
        }
    };
    let (parts, heartbeat_age) = match sources {
        ApiSources::Host(host) => {
            let accepted_at = host.heartbeat.borrow().accepted_at;
            (host_page::parts(host), accepted_at.map(|at| at.elapsed()))
        }
        ApiSources::PeerOnly { .. } => (Vec::new(), None),
    };
    let up = |(name, state): (PartName, PartState)| match state {
        PartState::Works(_) => Some((name.label().to_string(), true)),
        PartState::Fails(_) => Some((name.label().to_string(), false)),
        PartState::Unused(_) => None,
    };
    let availability = match sources {
        ApiSources::Host(host) => &host.availability,
        ApiSources::PeerOnly { availability, .. } => availability,
    };
    HostLevels {
        ready,
        held: availability.borrow().hold.as_ref().map(Hold::name),
        executor_stuck: executor.stuck_run().is_some() || executor.stuck_call().is_some(),
        executor_deaths: executor.worker_trouble().map_or(0, |trouble| trouble.in_a_row),
        worked: executor.worked(),
        parts: parts.into_iter().filter_map(up).collect(),
        heartbeat_age,
    }
}

async fn metrics(State(up): State<SourcesReceiver>, headers: HeaderMap) -> Response {
    let reading = up.borrow().clone();
    let Some(sources) = reading.as_deref() else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let (metrics, executor) = match sources {
        ApiSources::Host(host) => (&host.metrics, &host.executor),
        ApiSources::PeerOnly { metrics, executor, .. } => (metrics, executor),
    };
    let active = executor.active_plugin();
    let plugin = PluginMetrics::new(&active.info.labels(), executor.gauges());
    metrics_answer(&headers, metrics.render_with(levels(sources), plugin))
}
