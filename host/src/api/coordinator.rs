//! The coordinator's HTTP API: its router, peers, reservations, and the description of all that. Jobs are in `jobs`, what
//! watches over it is in `observe`, who may do what is in `access`.
//!
//! Bodies are bounded; errors have one form and name the field.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio_util::sync::CancellationToken;

use super::access::{Access, guard};
use super::body::{field_problem, read_body};
use super::documents::{CancelBody, Health, PeerEntry, Peers, ReservationBody, ReservationView};
use super::http::{ApiProblem, reply};
use super::request::{Parameters, PathId};
use super::{coordinator_page, jobs, observe, openapi};
use crate::coordinator::fallback::uuid4;
use crate::coordinator::service::Service;
use crate::peers::wire::MAX_REASON;
use crate::reservation::event;
use crate::reservation::ledger::{Refusal, ReservationCommand};
use crate::reservation::log::{AppendError, LogError};

/// What the handlers need.
#[derive(Clone)]
pub struct Api {
    pub service: Service,
    pub access: Arc<Access>,
    /// How often an event stream shows that it lives.
    pub keep_alive: Duration,
    /// The coordinator is stopping.
    pub stop: CancellationToken,
}

/// The router with every route of the API.
pub fn router(api: Api, page_interval: Duration) -> Router {
    let pages = coordinator_page::routes(api.clone(), page_interval);
    Router::new()
        .route(openapi::HEALTH, get(async || reply(StatusCode::OK, &Health { status: "ok" })))
        .route(openapi::READY, get(observe::ready))
        .route(openapi::METRICS, get(observe::metrics))
        .route(openapi::OPENAPI, get(description))
        .route(openapi::JOBS, get(jobs::list).post(jobs::submit))
        .route(openapi::JOB, get(jobs::show).delete(jobs::cancel))
        .route(openapi::JOB_EVENTS, get(jobs::events))
        .route(openapi::PEERS, get(peers))
        .route(openapi::RESERVATIONS, post(reserve))
        .route(openapi::RESERVATION, get(reservation))
        .route(openapi::CANCEL, post(cancel))
        .fallback(async || {
            ApiProblem::new(StatusCode::NOT_FOUND, "there is no such path; see /api/v1/openapi.json")
        })
        // The router adds which methods the path takes.
        .method_not_allowed_fallback(async |method: Method| match method {
            Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
            _ => {
                let detail = "the path does not take this method; see /api/v1/openapi.json";
                ApiProblem::new(StatusCode::METHOD_NOT_ALLOWED, detail).into_response()
            }
        })
        .layer(from_fn_with_state(api.access.clone(), guard))
        .with_state(api)
        .merge(pages)
}

/// The description of the API, with the limits that are set here.
async fn description(State(api): State<Api>) -> Response {
    reply(StatusCode::OK, &openapi::document(api.service.max_shots()))
}

pub fn log_problem(error: &LogError) -> ApiProblem {
    tracing::error!(%error, "a request could not be answered");
    let status = match error {
        // What is damaged stays so.
        LogError::Damaged { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    ApiProblem::new(status, error.to_string())
}

pub fn append_problem(error: AppendError) -> ApiProblem {
    match error {
        AppendError::Refused(Refusal::Unknown) => {
            ApiProblem::new(StatusCode::NOT_FOUND, "there is no such reservation")
        }
        AppendError::Refused(refused) => ApiProblem::new(StatusCode::CONFLICT, refused.to_string()),
        AppendError::Job(refused) => ApiProblem::new(StatusCode::CONFLICT, refused.to_string()),
        AppendError::QueueFull(_) => ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        AppendError::Log(error) => log_problem(&error),
    }
}

async fn peers(State(api): State<Api>) -> Response {
    let runner = &api.service.runner;
    let known = runner.directory.known_peers().into_iter();
    let peers = known.map(|(id, known)| PeerEntry::new(id, known)).collect();
    reply(StatusCode::OK, &Peers { peer_id: runner.network.peer_id(), peers })
}

async fn reserve(State(api): State<Api>, headers: HeaderMap, body: Body) -> Result<Response, ApiProblem> {
    let body: ReservationBody = read_body(&headers, body).await?;
    let own = api.service.runner.network.peer_id();
    let request = event::ReservationRequest {
        workflow_run_id: body.workflow_run_id.0,
        fragment_id: body.fragment_id.0,
        service_id: body.service_id.0,
        requesting_peer_id: body.requesting_peer_id.map_or(own, |id| id.0),
        ttl_seconds: body.ttl_seconds.0,
        idempotency_key: body.idempotency_key.map(|key| key.0),
    };
    let id = body.reservation_id.map_or_else(|| format!("res-{}", uuid4()), |id| id.0);
    // Idempotency keys belong to whoever asks for the reservation.
    let caller = request.requesting_peer_id.clone();
    let requested = api.service.runner.log.request(&id, &caller, request).await.map_err(append_problem)?;
    let status = if requested.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(reply(status, &ReservationView::new(&requested.reservation_id, &requested.state)))
}

async fn reservation(State(api): State<Api>, PathId(id): PathId) -> Result<Response, ApiProblem> {
    let log = &api.service.runner.log;
    let state = log.state(&id).await.map_err(|e| log_problem(&e))?;
    let state =
        state.ok_or_else(|| ApiProblem::new(StatusCode::NOT_FOUND, "there is no such reservation"))?;
    Ok(reply(StatusCode::OK, &ReservationView::new(&id, &state)))
}

async fn cancel(
    State(api): State<Api>,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    let query = Parameters::read(query.as_deref(), &["reason"])?;
    // Existing clients send nothing but the query. A page in a browser could do that too, so without a token a JSON
    // body is asked for.
    let body: CancelBody = match headers.contains_key(header::CONTENT_TYPE) || api.access.token.is_none() {
        true => read_body(&headers, body).await?,
        false => CancelBody::default(),
    };
    let in_query = query.one("reason")?.map(String::from);
    if in_query.as_ref().is_some_and(|r| r.chars().count() > MAX_REASON) {
        return Err(field_problem("reason", &format!("reason has more than {MAX_REASON} characters")));
    }
    let reason = body.reason.map(|r| r.0).or(in_query);
    let reason = reason.unwrap_or_else(|| "cancelled by the API".into());
    // What is recorded must reach the peer, also when the client goes meanwhile and drops this request.
    let cancelling = tokio::spawn(async move {
        let (runner, command) = (&api.service.runner, ReservationCommand::Cancel { reason: reason.clone() });
        let state = runner.log.execute(&id, command).await?;
        if let Some(peer) = &state.accepting_peer_id {
            runner.cancel_soon(peer, &id, &reason);
        }
        Ok(ReservationView::new(&id, &state))
    });
    let ended = |e: tokio::task::JoinError| {
        let detail = format!("the reservation could not be cancelled: {e}; report this as a bug");
        ApiProblem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    };
    Ok(reply(StatusCode::OK, &cancelling.await.map_err(ended)?.map_err(append_problem)?))
}
