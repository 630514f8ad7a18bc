//! The host's page: routes, and the model that is gathered from what each stage publishes.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use maud::html;
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::readiness::Reason;
use super::sandbox::Sandbox;
use super::{ApiSources, HostSources, PeerSources, host_status, peer_only_status};
use crate::activity::parts::{PartName, PartState};
use crate::config::settings::ApiSettings;
use crate::executor::{ActivePlugin, ExecutorStatus};
use crate::model::Secret;
use crate::page::draw::DeviceGraph;
use crate::page::host::{
    ExecutorModel, HostModel, JobPageModel, LentModel, PeersModel, SandboxModel, job_document,
};
use crate::page::live::{LivePage, MAX_STREAMS};
use crate::page::shell::{self, PageDocument};
use crate::state::db::{KeptOverview, Store};
use crate::vpn::guard::VpnState;

/// Kept results that are listed.
const KEPT_SHOWN: usize = 10;
/// How long the database, or the cloud of a sandbox, may take: the page answers whatever hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// How old the list of kept results may be: it is read from the database.
const KEPT_AGE: Duration = Duration::from_secs(5);

/// The routes of the page.
pub fn routes(
    settings: PageSettings,
    up: watch::Receiver<Option<Arc<ApiSources>>>,
    stop: CancellationToken,
) -> Router {
    let sandbox = settings.api.sandbox_url.as_deref().and_then(|url| match Sandbox::new(url) {
        Ok(sandbox) => Some(sandbox),
        Err(error) => {
            tracing::warn!(%error, "CODA_SANDBOX_URL can't be used; the page has no sandbox");
            None
        }
    });
    let page = Arc::new(HostPage {
        settings,
        up,
        started: OffsetDateTime::now_utc(),
        graph: Mutex::default(),
        sandbox,
        kept: Mutex::default(),
    });
    let sandbox = page.sandbox.as_ref().map(|sandbox| sandbox.routes(page.settings.api_token.clone()));
    let (interval, streams) = (page.settings.api.page_interval, Arc::new(Semaphore::new(MAX_STREAMS)));
    let rendering = page.clone();
    let live = LivePage::new(interval, streams, stop, move || {
        let page = rendering.clone();
        async move { page.model().await.sections() }
    });
    let routes = Router::new()
        .route("/", get(overview))
        .route("/events", get(events))
        .route("/jobs/{id}", get(job))
        .route(shell::STYLE, get(shell::style))
        .route(shell::SCRIPT, get(shell::script))
        .route(shell::ICON, get(shell::icon))
        .with_state(PageState { page, live });
    match sandbox {
        Some(sandbox) => routes.merge(sandbox),
        None => routes,
    }
}

/// What the page is made from, beside the sources of `/ready`.
#[derive(Debug, Clone)]
pub struct PageSettings {
    pub api: ApiSettings,
    pub api_token: Option<Secret>,
}

#[derive(Clone)]
struct PageState {
    page: Arc<HostPage>,
    live: LivePage,
}

/// What the database keeps, or why that can't be read.
type KeptResult = Arc<Result<KeptOverview, String>>;

struct HostPage {
    settings: PageSettings,
    up: watch::Receiver<Option<Arc<ApiSources>>>,
    started: OffsetDateTime,
    /// The drawing of the device in use.
    graph: Mutex<Option<(Arc<ActivePlugin>, Arc<DeviceGraph>)>>,
    sandbox: Option<Sandbox>,
    kept: Mutex<Option<(Instant, KeptResult)>>,
}

async fn overview(State(state): State<PageState>) -> Response {
    let frame = state.live.frame().await;
    let footer = html! {
        "coda-host " (env!("CARGO_PKG_VERSION")) " · times are in UTC · "
        a href="/ready" { "/ready" } " " a href="/metrics" { "/metrics" } " " a href="/health" { "/health" }
    };
    let subject = match state.page.up.borrow().as_deref() {
        Some(ApiSources::Host(sources)) => sources.executor.active_plugin().device.name.clone(),
        Some(ApiSources::PeerOnly { executor, .. }) => executor.active_plugin().device.name.clone(),
        None => String::new(),
    };
    let title = if subject.is_empty() { "coda-host".into() } else { format!("{subject} - coda-host") };
    PageDocument { title: &title, subject: &subject, events: Some("/events"), sections: &frame, footer }
        .render()
}

async fn events(State(state): State<PageState>) -> Response {
    let too_many = || {
        (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, super::http::RETRY_AFTER)]).into_response()
    };
    state.live.stream().unwrap_or_else(too_many)
}

async fn job(State(state): State<PageState>, Path(id): Path<String>) -> Response {
    let found = match state.page.up.borrow().as_deref() {
        Some(ApiSources::Host(sources)) => sources.activity.job(&id),
        _ => None,
    };
    match found {
        Some(job) => job_document(&JobPageModel { now: OffsetDateTime::now_utc(), job: &job }),
        None => shell::notice(
            StatusCode::NOT_FOUND,
            "No such job",
            "The last 100 jobs and those in flight are remembered. Older ones are in the log: coda-host logs.",
        ),
    }
}

impl HostPage {
    async fn model(&self) -> HostModel {
        let now = OffsetDateTime::now_utc();
        let sources = self.up.borrow().clone();
        let mut model = HostModel {
            now,
            started: self.started,
            reasons: vec![Reason::Starting.to_string()],
            qpu_id: None,
            executor: None,
            activity: Default::default(),
            waiting: 0,
            kept: None,
            peers: None,
            sandbox: None,
        };
        match sources.as_deref() {
            None => {}
            Some(ApiSources::Host(s)) => {
                model.reasons = host_status(s).1.reasons;
                model.qpu_id = Some(s.qpu_id.clone());
                model.executor = Some(self.executor(&s.executor));
                model.activity = s.activity.view(now);
                model.waiting = s.snapshot.borrow().waiting;
                model.kept = Some(self.kept(&s.store).await);
                if let Some(sandbox) = &self.sandbox {
                    let asked = sandbox.model(&model.activity.ended);
                    let late = |_| SandboxModel {
                        results: Err(format!("the development cloud did not answer within {ANSWER_LIMIT:?}")),
                    };
                    model.sandbox =
                        Some(tokio::time::timeout(ANSWER_LIMIT, asked).await.unwrap_or_else(late));
                }
                model.peers = s.peers.as_ref().map(PeerSources::model);
            }
            Some(ApiSources::PeerOnly { peers, executor, reloads, availability, activity, .. }) => {
                model.reasons = peer_only_status(peers.as_ref(), executor, reloads, availability).1.reasons;
                model.executor = Some(self.executor(executor));
                model.activity = activity.view(now);
                model.peers = peers.as_ref().map(PeerSources::model);
            }
        }
        model
    }

    fn executor(&self, status: &ExecutorStatus) -> ExecutorModel {
        let (active, load) = (status.active_plugin(), status.load());
        let mut drawn = self.graph.lock();
        let graph = match &*drawn {
            Some((of, graph)) if Arc::ptr_eq(of, &active) => graph.clone(),
            _ => {
                let device = &active.device;
                let graph =
                    DeviceGraph::new(device.num_qubits, device.connectivity.edges().unwrap_or_default());
                let graph = Arc::new(graph);
                *drawn = Some((active.clone(), graph.clone()));
                graph
            }
        };
        ExecutorModel { active, graph, slots: load.slots, slots_busy: load.busy + load.reserved }
    }

    /// What the database keeps for the operator.
    async fn kept(&self, store: &Store) -> KeptResult {
        if let Some((at, kept)) = &*self.kept.lock()
            && at.elapsed() < KEPT_AGE
        {
            return kept.clone();
        }
        let read = tokio::time::timeout(ANSWER_LIMIT, store.kept_overview(KEPT_SHOWN)).await;
        let kept = Arc::new(match read {
            Ok(kept) => kept.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the state database did not answer within {ANSWER_LIMIT:?}")),
        });
        *self.kept.lock() = Some((Instant::now(), kept.clone()));
        kept
    }
}

impl PeerSources {
    fn model(&self) -> PeersModel {
        let (network, peer) = (self.network.borrow().clone(), self.peer.borrow().clone());
        let now = OffsetDateTime::now_utc();
        let elapsed = peer.started.map(|started| started.elapsed()).unwrap_or_default();
        let lent = |slot: crate::peers::protocol::LentSlot| LentModel {
            owner: slot.owner,
            reservation_id: slot.reservation_id,
            executes: slot.executes,
            // The owner has chosen how long, within the limits of this peer.
            until: slot.ends.saturating_sub(elapsed).try_into().ok().and_then(|left| now.checked_add(left)),
        };
        PeersModel {
            peer_id: network.peer_id,
            addresses: network.addresses,
            connected: network.connected,
            accepted: peer.accepted,
            declined: peer.declined,
            completed: peer.completed,
            failed: peer.failed,
            lent: peer.lent.into_iter().map(lent).collect(),
        }
    }
}

/// How the parts are that a host depends on, for the samples of the activity record.
pub fn parts(sources: &HostSources) -> Vec<(PartName, PartState)> {
    let snapshot = sources.snapshot.borrow();
    let (heartbeat, vpn) = (sources.heartbeat.borrow(), sources.vpn.borrow());
    let or_works = |error: Option<String>| error.map_or(PartState::Works(None), PartState::Fails);
    let accepted = heartbeat.accepted_at.map(|at| OffsetDateTime::from(SystemTime::now() - at.elapsed()));
    let webhooks = snapshot
        .last_job_at
        .as_ref()
        .and_then(|at| OffsetDateTime::parse(at, &time::format_description::well_known::Rfc3339).ok());
    vec![
        (
            PartName::CloudHeartbeat,
            match (&heartbeat.error, accepted) {
                (Some(error), _) => PartState::Fails(error.clone()),
                (None, Some(at)) => PartState::Works(Some(at)),
                (None, None) => PartState::Unused("no heartbeat yet"),
            },
        ),
        (
            PartName::CloudResults,
            match (sources.activity.delivery_error(), webhooks) {
                (Some(error), _) => PartState::Fails(error),
                (None, Some(at)) => PartState::Works(Some(at)),
                (None, None) => PartState::Unused("no result delivered yet"),
            },
        ),
        (PartName::Redis, or_works(sources.redis.link.error().or_else(|| sources.redis.writes.refusal()))),
        (PartName::StateDatabase, or_works(snapshot.store_error.clone())),
        (
            PartName::Vpn,
            match vpn.state {
                VpnState::Ready => match &vpn.interface {
                    Some(_) => PartState::Works(None),
                    None => PartState::Unused("not needed"),
                },
                state => PartState::Fails(vpn.reason.clone().unwrap_or_else(|| state.name().into())),
            },
        ),
    ]
}

/// Keeps samples of slots, gauges and parts until the host ends.
pub async fn sample(up: watch::Receiver<Option<Arc<ApiSources>>>, interval: Duration) {
    let (mut ticks, mut last) = (tokio::time::interval(interval), Instant::now());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let sources = up.borrow().clone();
        let (activity, executor, parts) = match sources.as_deref() {
            Some(ApiSources::Host(s)) => (&s.activity, &s.executor, parts(s)),
            Some(ApiSources::PeerOnly { activity, executor, .. }) => (activity, executor, Vec::new()),
            None => continue,
        };
        let since_last = std::mem::replace(&mut last, Instant::now()).elapsed();
        activity.sample(since_last, &executor.worked(), &executor.gauges(), parts);
    }
}
