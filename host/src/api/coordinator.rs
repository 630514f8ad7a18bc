//! The coordinator's HTTP API: jobs, peers, reservations, and the description of all that.
//!
//! Whatever changes something needs the bearer token `CODA_API_TOKEN`. Without a token such calls are served only when
//! the service is bound to loopback, and then only with `application/json` and Host and Origin headers that name this
//! machine: a page in a browser is on loopback too, but can't send those. Bodies are bounded; errors name the field.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;

use super::body::{field_problem, read_body};
use super::documents::{
    CancelBody, Health, JobAccepted, JobRequest, PeerEntry, Peers, ReservationBody, ReservationView,
};
use super::http::{ApiProblem, reply};
use super::openapi;
use crate::coordinator::fallback::uuid4;
use crate::coordinator::job_view::JobStatus;
use crate::coordinator::service::{Service, SubmitError};
use crate::model::Secret;
use crate::peers::wire::MAX_REASON;
use crate::request_guard;
use crate::reservation::event;
use crate::reservation::job_options::JobOptions;
use crate::reservation::ledger::{Refusal, ReservationCommand};
use crate::reservation::log::{AppendError, LogError, now_micros};

/// Who may change something.
#[derive(Clone)]
pub struct Access {
    pub token: Option<Secret>,
    /// The service is bound to loopback.
    pub loopback: bool,
}

#[derive(Clone)]
pub struct Api {
    pub service: Service,
    pub access: Arc<Access>,
}

/// The router with every route of the API.
pub fn router(api: Api) -> Router {
    Router::new()
        .route(openapi::HEALTH, get(async || reply(StatusCode::OK, &Health { status: "ok" })))
        .route(openapi::OPENAPI, get(description))
        .route(openapi::JOBS, post(submit))
        .route(openapi::JOB, get(job))
        .route(openapi::PEERS, get(peers))
        .route(openapi::RESERVATIONS, post(reserve))
        .route(openapi::RESERVATION, get(reservation))
        .route(openapi::CANCEL, post(cancel))
        .fallback(async || {
            ApiProblem::new(StatusCode::NOT_FOUND, "there is no such path; see /api/v1/openapi.json")
        })
        .method_not_allowed_fallback(async || {
            let detail = "the path does not take this method; see /api/v1/openapi.json";
            ApiProblem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .layer(from_fn_with_state(api.access.clone(), guard))
        .with_state(api)
}

/// The description of the API, with the limits that are set here.
async fn description(State(api): State<Api>) -> Response {
    reply(StatusCode::OK, &openapi::document(api.service.max_shots()))
}

/// Lets a request through that may do what it asks for.
async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    match allowed(&access, request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn allowed(access: &Access, method: &Method, headers: &HeaderMap) -> Result<(), ApiProblem> {
    if access.loopback {
        request_guard::check_site(headers).map_err(|e| ApiProblem::new(e.status(), e.to_string()))?;
    }
    if *method == Method::GET || *method == Method::HEAD {
        return Ok(());
    }
    match &access.token {
        Some(token) => {
            let given = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
            let given = given.and_then(|v| v.strip_prefix("Bearer ")).map(str::trim);
            match given.is_some_and(|given| same(given.as_bytes(), token.expose().as_bytes())) {
                true => Ok(()),
                false => {
                    let detail = "this needs the token: Authorization: Bearer <CODA_API_TOKEN>";
                    Err(ApiProblem::new(StatusCode::UNAUTHORIZED, detail))
                }
            }
        }
        None if !access.loopback => {
            let detail = "without CODA_API_TOKEN this is served on a loopback address only";
            Err(ApiProblem::new(StatusCode::FORBIDDEN, detail))
        }
        None => Ok(()),
    }
}

/// Compares in constant time.
fn same(a: &[u8], b: &[u8]) -> bool {
    subtle::ConstantTimeEq::ct_eq(a, b).into()
}

fn log_problem(error: &LogError) -> ApiProblem {
    tracing::error!(%error, "a request could not be answered");
    ApiProblem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

fn append_problem(error: AppendError) -> ApiProblem {
    match error {
        AppendError::Refused(Refusal::Unknown) => {
            ApiProblem::new(StatusCode::NOT_FOUND, "there is no such reservation")
        }
        AppendError::Refused(refused) => ApiProblem::new(StatusCode::CONFLICT, refused.to_string()),
        AppendError::Job(refused) => ApiProblem::new(StatusCode::CONFLICT, refused.to_string()),
        AppendError::Log(error) => log_problem(&error),
    }
}

async fn submit(State(api): State<Api>, headers: HeaderMap, body: Body) -> Result<Response, ApiProblem> {
    let JobRequest { qasm, shots, inputs, results, observables, bit_order } =
        read_body(&headers, body).await?;
    let options = JobOptions { inputs, results, observables, bit_order };
    // More than fit are more than any limit.
    let shots = u32::try_from(shots.0).unwrap_or(u32::MAX);
    let job_id = api.service.submit(&qasm, shots, options).await.map_err(submit_problem)?;
    let location = format!("{}/{job_id}", openapi::JOBS);
    let mut response = reply(StatusCode::ACCEPTED, &JobAccepted { job_id, status: JobStatus::Queued });
    if let Ok(location) = location.parse() {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

fn submit_problem(error: SubmitError) -> ApiProblem {
    match error {
        SubmitError::Circuit(e) => {
            let field = if e.is_input { "inputs" } else { "qasm" };
            field_problem(field, &e.to_string()).place(e.line, e.column)
        }
        SubmitError::Option(e) => field_problem(e.field, &e.reason),
        SubmitError::Shots(..) => field_problem("shots", &error.to_string()),
        SubmitError::Full(_) => ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        SubmitError::Log(error) => append_problem(error),
        SubmitError::Task(_) => ApiProblem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

async fn job(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, ApiProblem> {
    match api.service.show(&id).await {
        Ok(Some(job)) => Ok(reply(StatusCode::OK, &job)),
        Ok(None) => Err(ApiProblem::new(StatusCode::NOT_FOUND, "there is no such job")),
        Err(error) => Err(log_problem(&error)),
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

async fn reservation(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, ApiProblem> {
    let log = &api.service.runner.log;
    let state = log.state(&id).await.map_err(|e| log_problem(&e))?;
    let state =
        state.ok_or_else(|| ApiProblem::new(StatusCode::NOT_FOUND, "there is no such reservation"))?;
    let until = state.requested_at.saturating_add(micros(state.request.ttl_seconds));
    // Its time is over, and no one has looked yet.
    let state = match !state.transition.is_terminal() && until <= now_micros() {
        true => log.execute(&id, ReservationCommand::Expire).await.unwrap_or(state),
        false => state,
    };
    Ok(reply(StatusCode::OK, &ReservationView::new(&id, &state)))
}

fn micros(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000)
}

#[derive(Deserialize)]
struct CancelQuery {
    reason: Option<String>,
}

async fn cancel(
    State(api): State<Api>,
    Path(id): Path<String>,
    Query(query): Query<CancelQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    // Existing clients send nothing but the query. A page in a browser could do that too, so without a token a JSON
    // body is asked for.
    let body: CancelBody = match headers.contains_key(header::CONTENT_TYPE) || api.access.token.is_none() {
        true => read_body(&headers, body).await?,
        false => CancelBody::default(),
    };
    if query.reason.as_ref().is_some_and(|r| r.chars().count() > MAX_REASON) {
        return Err(field_problem("reason", &format!("reason has more than {MAX_REASON} characters")));
    }
    let reason = body.reason.map(|r| r.0).or(query.reason);
    let reason = reason.unwrap_or_else(|| "cancelled by the API".into());
    let log = &api.service.runner.log;
    let state = log
        .execute(&id, ReservationCommand::Cancel { reason: reason.clone() })
        .await
        .map_err(append_problem)?;
    if let Some(peer) = &state.accepting_peer_id {
        api.service.runner.cancel_soon(peer, &id, &reason);
    }
    Ok(reply(StatusCode::OK, &ReservationView::new(&id, &state)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.insert(header::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        map
    }

    #[test]
    fn who_may_change_something() {
        let access = |token: Option<&str>, loopback| Access { token: token.map(Secret::new), loopback };
        let here = ("host", "127.0.0.1:8090");
        let post =
            |access: &Access, pairs: &[(&str, &str)]| allowed(access, &Method::POST, &headers(pairs)).is_ok();
        assert!(post(&access(None, true), &[here]));
        assert!(!post(&access(None, true), &[("host", "evil.example:8090")]), "a rebound name");
        assert!(!post(&access(None, true), &[]));
        assert!(
            !post(&access(None, true), &[here, ("origin", "https://evil.example")]),
            "a page of another site"
        );
        assert!(!post(&access(None, false), &[("host", "lab.example")]));
        let guarded = access(Some("secret"), false);
        assert!(post(&guarded, &[("authorization", "Bearer secret")]));
        for wrong in ["Bearer secre", "Bearer secret2", "secret", "Basic secret"] {
            assert!(!post(&guarded, &[("authorization", wrong)]), "{wrong}");
        }
        assert!(allowed(&guarded, &Method::GET, &headers(&[])).is_ok());
    }
}
