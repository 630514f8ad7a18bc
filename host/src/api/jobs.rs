//! Jobs in the coordinator's API: submitted, listed, shown, followed, cancelled.
//!
//! A request that waits for a job holds one of a bounded number of permits, so that waiting leaves connections for
//! others; it ends with the job, at its limit, at a stop of the service, or when the client goes.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response, Sse};

use super::accept::AnswerDeadline;
use super::body::{field_problem, read_body};
use super::coordinator::{Api, append_problem, log_problem};
use super::documents::{JobAccepted, JobRequest, Jobs};
use super::http::{ApiProblem, reply};
use super::openapi;
use super::request::{Parameters, PathId, choose, idempotency_key};
use crate::coordinator::job_events::JobEvent;
use crate::coordinator::job_list::{JobListQuery, ListError};
use crate::coordinator::job_view::{CoordinatorJob, JobProgress, JobStatus};
use crate::coordinator::service::{CancelOutcome, JobOrder, OrderedJob, SubmitError};
use crate::coordinator::watching::{JobFollower, TooManyWatchers};
use crate::peers::wire::MAX_REASON;
use crate::reservation::job_options::{JobOptions, each_once};

/// Longest wait of one request, in seconds.
pub const MAX_WAIT: u64 = 60;
/// Jobs of a page: by default, and at most.
pub const DEFAULT_PAGE: u64 = 50;
pub const MAX_PAGE: u64 = 200;
/// How much of a job is shown.
pub const DETAILS: [&str; 3] = ["summary", "plan", "full"];
const LAST_EVENT_ID: &str = "last-event-id";
/// Why a job is cancelled when no reason is given.
const CANCELLED: &str = "cancelled by a request";

pub async fn submit(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
    Extension(deadline): Extension<AnswerDeadline>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    let query = Parameters::read(query.as_deref(), &["wait"])?;
    let wait = query.whole("wait", 0..=MAX_WAIT)?;
    let request: JobRequest = read_body(&headers, body).await?;
    let JobRequest { qasm, shots, inputs, results, observables, bit_order, verify, redundancy, .. } = request;
    let order = JobOrder {
        qasm,
        // More than fit are more than any limit.
        shots: u32::try_from(shots.0).unwrap_or(u32::MAX),
        options: JobOptions {
            inputs,
            results: each_once(results),
            observables,
            bit_order,
            verify,
            redundancy: u8::try_from(redundancy.0).unwrap_or(u8::MAX),
        },
        idempotency_key: idempotency_key(&headers, request.idempotency_key)?,
    };
    let OrderedJob { job_id, status, is_new } = api.service.submit(order).await.map_err(submit_problem)?;
    let location = format!("{}/{job_id}", openapi::JOBS);
    let mut accepted = JobAccepted { job_id, status, job: None };
    if let Some(seconds) = wait {
        // The job is accepted, so too many that wait are no reason to refuse.
        if let Ok(permit) = api.service.watch_permit() {
            let limit = Duration::from_secs(seconds);
            deadline.extend(limit);
            let waited = api.service.wait_for_end(&accepted.job_id, limit, &permit).await;
            waited.map_err(|e| log_problem(&e))?;
        }
        let job = api.service.show(&accepted.job_id, |job| job.view(&accepted.job_id)).await;
        accepted.job = job.map_err(|e| log_problem(&e))?;
        accepted.status = accepted.job.as_ref().map_or(accepted.status, |job| job.status);
    }
    let status = if is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
    let mut response = reply(status, &accepted);
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
        SubmitError::KeyUsed(_) => field_problem("idempotency_key", &error.to_string()),
        SubmitError::Full(_) | SubmitError::Stopping => {
            ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
        }
        SubmitError::Log(error) => append_problem(error),
        SubmitError::Task(_) => ApiProblem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn no_such_job() -> ApiProblem {
    ApiProblem::new(StatusCode::NOT_FOUND, "there is no such job")
}

fn too_many(error: &TooManyWatchers) -> ApiProblem {
    ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()).close()
}

pub async fn list(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Response, ApiProblem> {
    let query = Parameters::read(query.as_deref(), &["status", "limit", "after"])?;
    let names = JobStatus::ALL.map(JobStatus::name);
    let statuses = query.all("status").map(|text| choose("status", text, &names).map(|n| JobStatus::ALL[n]));
    let limit = query.whole("limit", 1..=MAX_PAGE)?.unwrap_or(DEFAULT_PAGE);
    let after = query.one("after")?.map(String::from);
    let unknown = |id: &str| {
        field_problem("after", &format!("there is no job '{}' to go on behind", crate::model::cut(id, 80)))
    };
    // No job has such an id, and not every log takes it.
    if let Some(id) = after.as_ref().filter(|id| id.chars().any(char::is_control)) {
        return Err(unknown(id));
    }
    let asked = JobListQuery {
        statuses: statuses.collect::<Result<_, _>>()?,
        // At most MAX_PAGE.
        limit: limit as usize,
        after,
    };
    match api.service.list(&asked).await {
        Ok(page) => Ok(reply(StatusCode::OK, &Jobs { jobs: page.jobs, next: page.next })),
        Err(ListError::UnknownCursor(id)) => Err(unknown(&id)),
        Err(ListError::Log(error)) => Err(log_problem(&error)),
    }
}

pub async fn show(
    State(api): State<Api>,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
    Extension(deadline): Extension<AnswerDeadline>,
) -> Result<Response, ApiProblem> {
    let query = Parameters::read(query.as_deref(), &["wait", "detail"])?;
    let wait = query.whole("wait", 0..=MAX_WAIT)?.unwrap_or(0);
    let detail = query.choice("detail", &DETAILS)?.map_or("full", |n| DETAILS[n]);
    let has_ended = api.service.show(&id, JobProgress::has_ended).await.map_err(|e| log_problem(&e))?;
    let must_wait = wait > 0 && has_ended == Some(false);
    if must_wait {
        let permit = api.service.watch_permit().map_err(|e| too_many(&e))?;
        let limit = Duration::from_secs(wait);
        deadline.extend(limit);
        api.service.wait_for_end(&id, limit, &permit).await.map_err(|e| log_problem(&e))?;
    }
    let read = |job: &JobProgress| match detail {
        "summary" => reply(StatusCode::OK, &job.summary(&id)),
        "plan" => reply(StatusCode::OK, &CoordinatorJob { result: None, ..job.view(&id) }),
        _ => reply(StatusCode::OK, &job.view(&id)),
    };
    let shown = api.service.show(&id, read).await.map_err(|e| log_problem(&e))?;
    shown.ok_or_else(no_such_job)
}

pub async fn cancel(
    State(api): State<Api>,
    PathId(id): PathId,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiProblem> {
    let query = Parameters::read(query.as_deref(), &["reason"])?;
    let reason = query.one("reason")?.filter(|reason| !reason.is_empty()).unwrap_or(CANCELLED);
    if reason.chars().count() > MAX_REASON {
        return Err(field_problem("reason", &format!("reason has more than {MAX_REASON} characters")));
    }
    let status = match api.service.cancel(&id, reason).await.map_err(|e| log_problem(&e))? {
        CancelOutcome::Cancelled => StatusCode::ACCEPTED,
        CancelOutcome::CancelledBefore => StatusCode::OK,
        CancelOutcome::Ended(status) => {
            let detail = format!("the job has {} already, so it can't be cancelled", status.name());
            return Err(ApiProblem::new(StatusCode::CONFLICT, detail));
        }
        CancelOutcome::Unknown => return Err(no_such_job()),
    };
    let shown = api.service.show(&id, |job| reply(status, &job.summary(&id))).await;
    shown.map_err(|e| log_problem(&e))?.ok_or_else(no_such_job)
}

/// The events of a job, as a browser's `EventSource` reads them.
pub async fn events(
    State(api): State<Api>,
    PathId(id): PathId,
    headers: HeaderMap,
) -> Result<Response, ApiProblem> {
    let after = last_event_id(&headers)?;
    let permit = api.service.watch_permit().map_err(|e| too_many(&e))?;
    let followed = api.service.follow(&id, after.unwrap_or(0), permit).await.map_err(|e| log_problem(&e))?;
    let follower = followed.ok_or_else(no_such_job)?;
    if after.is_some() && follower.is_over() {
        // The client knows the end. With this status an EventSource does not ask again.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let keep_alive = api.keep_alive;
    let stream = futures::stream::unfold(follower, move |mut follower: JobFollower| async move {
        let event = match tokio::time::timeout(keep_alive, follower.next()).await {
            Ok(event) => sse_event(&*event?),
            Err(_) => Event::default().comment("keep-alive"),
        };
        Some((Ok::<_, Infallible>(event), follower))
    });
    let mut response = Sse::new(stream).into_response();
    // Proxies that collect answers would hold events back.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// The id after which a client goes on.
fn last_event_id(headers: &HeaderMap) -> Result<Option<i64>, ApiProblem> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.trim().parse().ok()).filter(|id| *id >= 0);
    id.map(Some).ok_or_else(|| {
        let detail = "the header Last-Event-ID is not an id of an event: a whole number from 0";
        ApiProblem::new(StatusCode::BAD_REQUEST, detail).field("Last-Event-ID")
    })
}

fn sse_event(event: &JobEvent) -> Event {
    let shown = Event::default().id(event.id.to_string());
    let Some(content) = &event.content else { return shown };
    match shown.event(content.name()).json_data(content) {
        Ok(shown) => shown,
        Err(error) => {
            tracing::error!(%error, "an event could not be written as JSON");
            Event::default().comment("an event could not be written")
        }
    }
}
