//! The coordinator's HTTP API: jobs, peers, reservations, and the description of all that.
//!
//! Whatever changes something needs the bearer token `CODA_API_TOKEN`. Without a token such calls are served only when
//! the service is bound to loopback, and then only with `application/json` and a Host header that names this machine:
//! a page in a browser is on loopback too, but can't send those. Bodies are bounded; errors name the field.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::http::{ApiProblem, reply};
use crate::coordinator::fallback::uuid4;
use crate::coordinator::service::{Service, SubmitError};
use crate::model::{Secret, cut};
use crate::peers::wire::{MAX_REASON, time};
use crate::reservation::event;
use crate::reservation::ledger::{Refusal, ReservationCommand, ReservationState};
use crate::reservation::log::{AppendError, LogError, now_micros};

/// The description, which the tests hold against the code.
const OPENAPI: &str = include_str!("openapi.json");
/// Longest body: a circuit is bounded by the parser.
const MAX_BODY: usize = (1 << 20) + (64 << 10);
/// Longest text of a field.
const MAX_TEXT: usize = 1024;
const DEFAULT_TTL: u64 = 60;
const MAX_TTL: u64 = 31_536_000;

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

/// All routes.
pub fn router(api: Api) -> Router {
    Router::new()
        .route("/health", get(async || reply(StatusCode::OK, &json!({ "status": "ok" }))))
        .route("/api/v1/openapi.json", get(openapi))
        .route("/api/v1/jobs", post(submit))
        .route("/api/v1/jobs/{id}", get(job))
        .route("/api/v1/peers", get(peers))
        .route("/api/v1/reservations", post(reserve))
        .route("/api/v1/reservations/{id}", get(reservation))
        .route("/api/v1/reservations/{id}/cancel", post(cancel))
        .fallback(async || {
            ApiProblem::new(StatusCode::NOT_FOUND, "there is nothing here; see /api/v1/openapi.json")
        })
        .method_not_allowed_fallback(async || {
            ApiProblem::new(StatusCode::METHOD_NOT_ALLOWED, "this is not done here; see /api/v1/openapi.json")
        })
        .layer(from_fn_with_state(api.access.clone(), guard))
        .with_state(api)
}

/// As it is in the source, with the limits that are set here.
async fn openapi(State(api): State<Api>) -> Response {
    let mut description: Value = serde_json::from_str(OPENAPI).unwrap_or_default();
    if let Some(max) = description.pointer_mut("/components/schemas/JobRequest/properties/shots/maximum") {
        *max = json!(api.service.max_shots());
    }
    reply(StatusCode::OK, &description)
}

/// Lets a request through that may do what it asks for.
async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    match allowed(&access, request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn allowed(access: &Access, method: &Method, headers: &HeaderMap) -> Result<(), ApiProblem> {
    if access.loopback && !host_is_here(headers) {
        let detail = "the Host header does not name this machine: use 127.0.0.1 or localhost";
        return Err(ApiProblem::new(StatusCode::FORBIDDEN, detail));
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

/// In a time that doesn't tell where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    subtle::ConstantTimeEq::ct_eq(a, b).into()
}

fn host_is_here(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|h| h.to_str().ok()) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The fields of a JSON body, and nothing else.
struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body; a missing one is an empty object where that is allowed.
    async fn read(headers: &HeaderMap, body: Body, known: &[&'static str]) -> Result<Fields, ApiProblem> {
        let bytes = to_bytes(body, MAX_BODY).await.map_err(|_| {
            ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {MAX_BODY} bytes"))
        })?;
        let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            let detail = "the Content-Type must be application/json";
            return Err(ApiProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        if bytes.is_empty() {
            return Ok(Fields(Map::new()));
        }
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|e| ApiProblem::new(StatusCode::BAD_REQUEST, format!("the body is no JSON: {e}")))?;
        let Value::Object(fields) = value else {
            return Err(unprocessable("body", "the body must be a JSON object"));
        };
        match fields.keys().find(|k| !known.contains(&k.as_str())) {
            Some(unknown) => {
                let detail =
                    format!("the field '{}' is unknown; known are {}", cut(unknown, 80), known.join(", "));
                Err(unprocessable(cut(unknown, 80), &detail))
            }
            None => Ok(Fields(fields)),
        }
    }

    /// A text of at least `min` characters, if it is there.
    fn text(&self, name: &'static str, min: usize) -> Result<Option<String>, ApiProblem> {
        let value = match self.0.get(name) {
            None => return Ok(None),
            Some(value) => value,
        };
        let text = value.as_str().ok_or_else(|| unprocessable(name, &format!("{name} must be a text")))?;
        let length = text.chars().count();
        match (min..=MAX_TEXT).contains(&length) {
            true => Ok(Some(text.into())),
            false => Err(unprocessable(
                name,
                &format!("{name} has {length} characters, {min} to {MAX_TEXT} are allowed"),
            )),
        }
    }

    fn needed(&self, name: &'static str, min: usize) -> Result<String, ApiProblem> {
        self.text(name, min)?.ok_or_else(|| unprocessable(name, &format!("{name} is missing")))
    }

    /// A whole number within bounds, if it is there.
    fn whole(&self, name: &'static str, min: u64, max: u64) -> Result<Option<u64>, ApiProblem> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        // In range or refused: the cast saturates.
        let whole = |f: f64| (f.fract() == 0.0 && f >= 0.0).then_some(f as u64);
        let n = value.as_u64().or_else(|| value.as_f64().and_then(whole));
        match n.filter(|n| (min..=max).contains(n)) {
            Some(n) => Ok(Some(n)),
            None => {
                let shown = cut(&value.to_string(), 40).to_string();
                Err(unprocessable(
                    name,
                    &format!("{name} is {shown}, a whole number from {min} to {max} is needed"),
                ))
            }
        }
    }
}

fn unprocessable(field: &str, detail: &str) -> ApiProblem {
    ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).field(field)
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
    let fields = Fields::read(&headers, body, &["qasm", "shots"]).await?;
    let qasm = match fields.0.get("qasm") {
        Some(Value::String(text)) => text.clone(),
        Some(_) => return Err(unprocessable("qasm", "qasm must be a text")),
        None => return Err(unprocessable("qasm", "qasm is missing")),
    };
    let shots = fields.whole("shots", 1, api.service.max_shots().into())?.unwrap_or(1024);
    // In range by the line before.
    let shots = u32::try_from(shots).unwrap_or(u32::MAX);
    match api.service.submit(&qasm, shots).await {
        Ok(job_id) => {
            let location = format!("/api/v1/jobs/{job_id}");
            let body = json!({ "job_id": job_id, "status": "queued" });
            let mut response = reply(StatusCode::ACCEPTED, &body);
            if let Ok(location) = location.parse() {
                response.headers_mut().insert(header::LOCATION, location);
            }
            Ok(response)
        }
        Err(SubmitError::Circuit(e)) => Err(unprocessable("qasm", &e.to_string()).place(e.line, e.column)),
        Err(error @ SubmitError::Shots(..)) => Err(unprocessable("shots", &error.to_string())),
        Err(error @ SubmitError::Full(_)) => {
            Err(ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
        }
        Err(SubmitError::Log(error)) => Err(append_problem(error)),
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
    let known = api.service.runner.directory.known_peers();
    let peers: Vec<Value> = known
        .into_iter()
        .map(|(id, known)| {
            let r = known.record;
            json!({
                "peer_id": id,
                "stale": known.stale,
                "health": r.health.as_deref().unwrap_or("unknown"),
                "services": r.services,
                "addresses": r.addresses,
                "trust_tier": r.trust_tier,
                "active_reservations": r.reservations,
                "active_executions": r.executions,
                "heard_seconds_ago": known.heard_seconds_ago,
                "fidelity": r.fidelity,
            })
        })
        .collect();
    reply(StatusCode::OK, &json!({ "peer_id": api.service.runner.network.peer_id(), "peers": peers }))
}

const RESERVE: [&str; 7] = [
    "workflow_run_id",
    "fragment_id",
    "service_id",
    "reservation_id",
    "requesting_peer_id",
    "ttl_seconds",
    "idempotency_key",
];

async fn reserve(State(api): State<Api>, headers: HeaderMap, body: Body) -> Result<Response, ApiProblem> {
    let fields = Fields::read(&headers, body, &RESERVE).await?;
    let own = api.service.runner.network.peer_id();
    let request = event::ReservationRequest {
        workflow_run_id: fields.needed("workflow_run_id", 8)?,
        fragment_id: fields.needed("fragment_id", 3)?,
        service_id: fields.needed("service_id", 2)?,
        requesting_peer_id: fields.text("requesting_peer_id", 3)?.unwrap_or(own),
        ttl_seconds: fields.whole("ttl_seconds", 5, MAX_TTL)?.unwrap_or(DEFAULT_TTL),
        idempotency_key: fields.text("idempotency_key", 1)?,
    };
    let id = fields.text("reservation_id", 8)?.unwrap_or_else(|| format!("res-{}", uuid4()));
    if id.chars().any(|c| c.is_control() || matches!(c, '/' | '?' | '#')) {
        return Err(unprocessable(
            "reservation_id",
            "reservation_id can't have '/', '?', '#' or control characters",
        ));
    }
    // The caller of a key is who asks for the reservation.
    let caller = request.requesting_peer_id.clone();
    let requested = api.service.runner.log.request(&id, &caller, request).await.map_err(append_problem)?;
    let status = if requested.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(reply(status, &reservation_view(&requested.reservation_id, &requested.state)))
}

async fn reservation(State(api): State<Api>, Path(id): Path<String>) -> Result<Response, ApiProblem> {
    let log = &api.service.runner.log;
    let state = log.state(&id).await.map_err(|e| log_problem(&e))?;
    let state =
        state.ok_or_else(|| ApiProblem::new(StatusCode::NOT_FOUND, "there is no such reservation"))?;
    let until = state.requested_at.saturating_add(micros(state.request.ttl_seconds));
    // Its time is over, and nobody has looked yet.
    let state = match !state.transition.is_terminal() && until <= now_micros() {
        true => log.execute(&id, ReservationCommand::Expire).await.unwrap_or(state),
        false => state,
    };
    Ok(reply(StatusCode::OK, &reservation_view(&id, &state)))
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
    // Existing clients send nothing but the query; a page in a browser could do that as well.
    let fields = match headers.contains_key(header::CONTENT_TYPE) || api.access.token.is_none() {
        true => Fields::read(&headers, body, &["reason"]).await?,
        false => Fields(Map::new()),
    };
    let reasons = [fields.text("reason", 0)?, query.reason];
    if reasons.iter().flatten().any(|r| r.chars().count() > MAX_REASON) {
        return Err(unprocessable("reason", &format!("reason has more than {MAX_REASON} characters")));
    }
    let reason = reasons.into_iter().flatten().next().unwrap_or_else(|| "cancelled by the API".into());
    let log = &api.service.runner.log;
    let state = log
        .execute(&id, ReservationCommand::Cancel { reason: reason.clone() })
        .await
        .map_err(append_problem)?;
    if let Some(peer) = &state.accepting_peer_id {
        api.service.runner.cancel_soon(peer, &id, &reason);
    }
    Ok(reply(StatusCode::OK, &reservation_view(&id, &state)))
}

/// A reservation as the contract shows it.
fn reservation_view(id: &str, state: &ReservationState) -> Value {
    json!({
        "reservation_id": id,
        "workflow_run_id": state.request.workflow_run_id,
        "fragment_id": state.request.fragment_id,
        "service_id": state.request.service_id,
        "requesting_peer_id": state.request.requesting_peer_id,
        "accepting_peer_id": state.accepting_peer_id,
        "current_transition": state.transition.name(),
        "ttl_seconds": state.request.ttl_seconds,
        "last_event_at": time(state.last_event_at),
        "is_terminal": state.transition.is_terminal(),
        "is_active": state.transition.is_active(),
    })
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
        assert!(!post(&access(None, false), &[("host", "lab.example")]));
        let guarded = access(Some("secret"), false);
        assert!(post(&guarded, &[("authorization", "Bearer secret")]));
        for wrong in ["Bearer secre", "Bearer secret2", "secret", "Basic secret"] {
            assert!(!post(&guarded, &[("authorization", wrong)]), "{wrong}");
        }
        assert!(allowed(&guarded, &Method::GET, &headers(&[])).is_ok());
        for name in ["localhost", "LOCALHOST:1", "[::1]:80", "[::1]", "127.0.0.2"] {
            assert!(host_is_here(&headers(&[("host", name)])), "{name}");
        }
        for name in ["localhost.evil.example", "192.0.2.1", "127.0.0.1.evil.example", ""] {
            assert!(!host_is_here(&headers(&[("host", name)])), "{name}");
        }
    }
}
