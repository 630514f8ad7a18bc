//! The coordinator's pages: routes, and the models that are gathered for them.
//!
//! Where reads need the token, a page is sent without its content and with a form for the token; the content then comes
//! as events, which the script asks for with it. Otherwise the server renders the content.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use maud::html;
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::Semaphore;

use super::access::guard;
use super::coordinator::Api;
use super::http::{ApiProblem, RETRY_AFTER};
use super::observe;
use super::request::{Parameters, PathId, choose};
use crate::coordinator::job_list::JobListQuery;
use crate::coordinator::job_view::{JobProgress, JobStatus};
use crate::coordinator::track_record::BreakerState;
use crate::page::coordinator::job::JobModel;
use crate::page::coordinator::{CoordinatorModel, PeerModel, TokenUse, sign_in};
use crate::page::live::{LivePage, MAX_STREAMS};
use crate::page::shell::{self, PageDocument, Section};
use crate::request_guard;
use crate::reservation::event::Fact;
use crate::reservation::stream::StreamId;

/// Jobs of the overview.
const JOBS: usize = 50;
/// Reservations of a job whose events are shown.
const RESERVATIONS: usize = 50;

#[derive(Clone)]
struct Pages {
    api: Api,
    interval: Duration,
    started: OffsetDateTime,
    streams: Arc<Semaphore>,
}

/// The routes of the pages.
pub fn routes(api: Api, interval: Duration) -> Router {
    let (access, loopback) = (api.access.clone(), api.access.loopback);
    let streams = Arc::new(Semaphore::new(MAX_STREAMS));
    let pages = Pages { api, interval, started: OffsetDateTime::now_utc(), streams };
    let documents = Router::new()
        .route("/", get(overview))
        .route("/jobs/{id}", get(job))
        .route(shell::STYLE, get(shell::style))
        .route(shell::SCRIPT, get(shell::script))
        .route(shell::ICON, get(shell::icon))
        .layer(from_fn(move |request: Request, next: Next| check_site(loopback, request, next)));
    let events = Router::new()
        .route("/events", get(overview_events))
        .route("/jobs/{id}/events", get(job_events))
        .layer(from_fn_with_state(access, guard));
    documents.merge(events).with_state(pages)
}

/// A page of another site can't read this one under a name that it has bound to loopback.
async fn check_site(loopback: bool, request: Request, next: Next) -> Response {
    match request_guard::check_site(request.headers()) {
        Err(error) if loopback => ApiProblem::new(error.status(), error.to_string()).into_response(),
        _ => next.run(request).await,
    }
}

impl Pages {
    /// Whether what is read needs the token.
    fn is_closed(&self) -> bool {
        self.api.access.token.is_some() && !self.api.access.open_reads
    }

    fn document(&self, title: &str, events: Option<&str>, mut sections: Vec<Section>) -> Response {
        if self.api.access.token.is_some() && self.api.access.open_reads {
            sections.insert(0, sign_in(TokenUse::Change));
        }
        let footer = html! {
            "coda-host " (env!("CARGO_PKG_VERSION")) " · times are in UTC · "
            a href="/api/v1/openapi.json" { "API" } " " a href="/ready" { "/ready" } " " a href="/metrics" { "/metrics" }
        };
        PageDocument { title, subject: "coordinator", events, sections: &sections, footer }.render()
    }

    fn stream<F, R>(&self, render: F) -> Response
    where
        F: Fn() -> R + Send + Sync + 'static,
        R: Future<Output = Vec<Section>> + Send + 'static,
    {
        let live = LivePage::new(self.interval, self.streams.clone(), self.api.stop.clone(), render);
        let too_many =
            || (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, RETRY_AFTER)]).into_response();
        live.stream().unwrap_or_else(too_many)
    }

    async fn overview(&self, filter: Option<JobStatus>) -> Vec<Section> {
        let (service, now) = (&self.api.service, OffsetDateTime::now_utc());
        let ready = observe::readiness(&self.api).await;
        let query = JobListQuery { statuses: filter.into_iter().collect(), limit: JOBS, after: None };
        let jobs = match ready.store.readable {
            true => service.list(&query).await.map(|page| page.jobs).map_err(|error| error.to_string()),
            false => Err("jobs can't be looked up now".into()),
        };
        let peer = |(peer_id, known): (String, crate::coordinator::directory::KnownPeer)| {
            let record = known.record;
            let (state, class) = match known.breaker {
                _ if record.lost => ("not connected", "bad"),
                _ if known.stale => ("not heard", "off"),
                BreakerState::Open => ("not asked for a while", "bad"),
                BreakerState::HalfOpen => ("on trial", "waits"),
                BreakerState::Closed => ("takes blocks", "good"),
            };
            PeerModel {
                peer_id,
                state,
                class,
                services: record.services,
                reservations: record.reservations,
                executions: record.executions,
                heard: now - Duration::from_secs(known.heard_seconds_ago),
                penalty: known.penalty,
                fidelity: record.fidelity.values().copied().reduce(f64::min),
                trust_tier: record.trust_tier,
            }
        };
        let model = CoordinatorModel {
            now,
            started: self.started,
            peer_id: service.runner.network.peer_id(),
            reasons: ready.reasons,
            connected: ready.network.connected,
            usable: ready.peers.usable,
            peers: service.runner.directory.known_peers().into_iter().map(peer).collect(),
            jobs,
            filter,
        };
        model.sections()
    }

    /// The sections of one job, and whether they stay as they are; `None` when it is unknown.
    async fn job(&self, id: &str) -> Result<Option<(Vec<Section>, bool)>, String> {
        let service = &self.api.service;
        let shown = service.show(id, |job: &JobProgress| job.view(id)).await.map_err(|e| e.to_string())?;
        let Some(job) = shown else { return Ok(None) };
        let log = &service.runner.log;
        let facts = log.job_facts(id).await.map_err(|e| e.to_string())?;
        let tried =
            job.blocks.iter().flat_map(|block| &block.tried).map(|tried| tried.reservation_id.clone());
        let mut reservations = Vec::new();
        for reservation in tried.take(RESERVATIONS) {
            let rows = log.rows(StreamId::reservation(&reservation)).await.map_err(|e| e.to_string())?;
            let event = |row: crate::reservation::log::Row| Some((row.fact::<Fact>().ok()?.kind(), row.at));
            reservations.push((reservation, rows.into_iter().filter_map(event).collect()));
        }
        let is_final = job.status.is_final();
        let model = JobModel { now: OffsetDateTime::now_utc(), job, facts, reservations };
        Ok(Some((model.sections(), is_final)))
    }
}

/// The status that is asked for.
fn filter(query: Option<&str>) -> Result<Option<JobStatus>, ApiProblem> {
    let query = Parameters::read(query, &["status"])?;
    let names = JobStatus::ALL.map(JobStatus::name);
    query.one("status")?.map(|text| choose("status", text, &names).map(|n| JobStatus::ALL[n])).transpose()
}

async fn overview(State(pages): State<Pages>, RawQuery(query): RawQuery) -> Result<Response, ApiProblem> {
    let filter = filter(query.as_deref())?;
    let events =
        filter.map_or_else(|| "/events".into(), |status| format!("/events?status={}", status.name()));
    let sections =
        if pages.is_closed() { vec![sign_in(TokenUse::Read)] } else { pages.overview(filter).await };
    Ok(pages.document("Coordinator - coda-host", Some(&events), sections))
}

async fn overview_events(
    State(pages): State<Pages>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let filter = filter(query.as_deref())?;
    let rendering = pages.clone();
    Ok(pages.stream(move || {
        let pages = rendering.clone();
        async move { pages.overview(filter).await }
    }))
}

async fn job(State(pages): State<Pages>, PathId(id): PathId) -> Response {
    let (sections, is_final) = match pages.is_closed() {
        true => (vec![sign_in(TokenUse::Read)], false),
        false => match pages.job(&id).await {
            Ok(Some(found)) => found,
            Ok(None) => return no_such_job(),
            Err(error) => {
                return shell::notice(StatusCode::SERVICE_UNAVAILABLE, "The job can't be looked up", &error);
            }
        },
    };
    // A job that has ended changes no more, so its page holds no connection.
    let events = (!is_final).then(|| format!("/jobs/{id}/events"));
    pages.document(&format!("Job {id}"), events.as_deref(), sections)
}

fn no_such_job() -> Response {
    shell::notice(StatusCode::NOT_FOUND, "No such job", "The event log has no job with this id.")
}

async fn job_events(State(pages): State<Pages>, PathId(id): PathId) -> Response {
    let last: Arc<Mutex<(Vec<Section>, bool)>> = Arc::default();
    match pages.job(&id).await {
        Ok(Some(first)) => *last.lock() = first,
        Ok(None) => return ApiProblem::new(StatusCode::NOT_FOUND, "there is no such job").into_response(),
        Err(error) => return ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, error).into_response(),
    }
    let rendering = pages.clone();
    pages.stream(move || {
        let (pages, id, last) = (rendering.clone(), id.clone(), last.clone());
        async move {
            let (sections, is_final) = last.lock().clone();
            if is_final {
                return sections;
            }
            // While the log does not answer, the page stays as it was.
            match pages.job(&id).await {
                Ok(Some(now)) => {
                    *last.lock() = now.clone();
                    now.0
                }
                Ok(None) | Err(_) => sections,
            }
        }
    })
}
