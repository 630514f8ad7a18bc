//! The OpenAPI description of the coordinator's API. Schemas are generated from the types that are read and written;
//! what each route answers is listed here, together with the paths that the router uses.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::body::MAX_TEXT;
use super::documents::{
    CancelBody, CancelReason, Health, JobAccepted, JobRequest, Jobs, Peers, Ready, ReservationBody,
    ReservationView,
};
use super::http::ProblemBody;
use super::jobs::{DEFAULT_PAGE, DETAILS, MAX_PAGE, MAX_WAIT};
use crate::coordinator::job_events::BlockEvent;
use crate::coordinator::job_view::{CoordinatorJob, JobStatus, JobSummary};
use crate::telemetry::exposition::Exposition;

pub const HEALTH: &str = "/health";
pub const READY: &str = "/ready";
pub const METRICS: &str = "/metrics";
pub const OPENAPI: &str = "/api/v1/openapi.json";
pub const JOBS: &str = "/api/v1/jobs";
pub const JOB: &str = "/api/v1/jobs/{id}";
pub const JOB_EVENTS: &str = "/api/v1/jobs/{id}/events";
pub const PEERS: &str = "/api/v1/peers";
pub const RESERVATIONS: &str = "/api/v1/reservations";
pub const RESERVATION: &str = "/api/v1/reservations/{id}";
pub const CANCEL: &str = "/api/v1/reservations/{id}/cancel";

/// Statuses of errors that any request which changes something may have.
const BODY_PROBLEMS: [u16; 6] = [400, 401, 403, 413, 415, 422];

const ABOUT: &str = "Jobs on a network of peers, and the reservations they are made of. Calls need the bearer token \
                     CODA_API_TOKEN, but for /health, /ready and this description; with CODA_API_OPEN_READS=true those \
                     that read need none. Without a configured token calls that change something are served on \
                     loopback only, with application/json and a Host header that names this machine.";

/// The description, with the most shots that this coordinator runs.
pub fn document(max_shots: u32) -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for (path, method, operation) in operations(&mut schemas) {
        let item = paths.entry(path).or_insert_with(|| Value::Object(Map::new()));
        item[method] = operation;
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": { "title": "coda-host coordinator", "version": "1.0.0", "description": ABOUT },
        "paths": paths,
        "security": [{ "token": [] }, {}],
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas.into_definitions(),
        },
    });
    if let Some(max) = document.pointer_mut("/components/schemas/JobRequest/properties/shots/maximum") {
        *max = json!(max_shots);
    }
    document
}

/// The schemas of requests and of answers: what may be left out of a request is always there in an answer.
struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    fn new() -> Schemas {
        let settings = SchemaSettings::draft2020_12().with(|s| {
            s.definitions_path = "/components/schemas".into();
            s.meta_schema = None;
        });
        Schemas {
            requests: settings.clone().for_deserialize().into_generator(),
            answers: settings.for_serialize().into_generator(),
        }
    }

    fn request<T: JsonSchema>(&mut self) -> Value {
        json!({ "application/json": { "schema": self.requests.subschema_for::<T>() } })
    }

    fn answer<T: JsonSchema>(&mut self, description: &str) -> Value {
        let content = json!({ "application/json": { "schema": self.answers.subschema_for::<T>() } });
        json!({ "description": description, "content": content })
    }

    fn problem(&mut self) -> Value {
        let content =
            json!({ "application/problem+json": { "schema": self.answers.subschema_for::<ProblemBody>() } });
        json!({ "description": "What is wrong, and with which field", "content": content })
    }

    fn into_definitions(mut self) -> Map<String, Value> {
        let mut definitions = self.requests.take_definitions(true);
        definitions.extend(self.answers.take_definitions(true));
        definitions
    }

    /// One operation: its answers by status, and the statuses of its errors.
    fn operation(&mut self, id: &str, summary: &str, answers: &[(u16, Value)], problems: &[u16]) -> Value {
        let mut responses = Map::new();
        for (status, answer) in answers {
            responses.insert(status.to_string(), answer.clone());
        }
        for status in problems {
            responses.insert(status.to_string(), self.problem());
        }
        json!({ "operationId": id, "summary": summary, "responses": responses })
    }
}

/// Marks an operation as one that needs no token.
fn open(mut operation: Value) -> Value {
    operation["security"] = json!([]);
    operation
}

fn with_id(operation: Value) -> Value {
    let schema = json!({ "type": "string", "minLength": 1 });
    with_parameter(operation, json!({ "name": "id", "in": "path", "required": true, "schema": schema }))
}

fn with_parameter(mut operation: Value, parameter: Value) -> Value {
    match operation["parameters"].as_array_mut() {
        Some(parameters) => parameters.push(parameter),
        None => operation["parameters"] = json!([parameter]),
    }
    operation
}

/// A parameter that may be left out.
fn optional(name: &str, place: &str, description: &str, schema: Value) -> Value {
    json!({ "name": name, "in": place, "required": false, "description": description, "schema": schema })
}

fn wait() -> Value {
    let schema = json!({ "type": "integer", "minimum": 0, "maximum": MAX_WAIT });
    optional("wait", "query", "Answer when the job has ended, at the latest after so many seconds", schema)
}

fn with_body(mut operation: Value, content: Value) -> Value {
    operation["requestBody"] = json!({ "required": true, "content": content });
    operation
}

/// Says where the id in an answer leads.
fn link(operation_id: &str, field: &str) -> Value {
    json!({ "operationId": operation_id, "parameters": { "id": format!("$response.body#/{field}") } })
}

/// Every operation: path, method, description.
fn operations(s: &mut Schemas) -> Vec<(&'static str, &'static str, Value)> {
    let health = s.answer::<Health>("The service answers");
    let health = s.operation("health", "Whether the service answers", &[(200, health)], &[403]);

    let (is_ready, not_ready) =
        (s.answer::<Ready>("Jobs are run"), s.answer::<Ready>("Why no job would be run"));
    let answers = [(200, is_ready), (503, not_ready)];
    let ready = s.operation("ready", "Whether jobs are run, and why not", &answers, &[403]);

    let text = json!({ "schema": { "type": "string" } });
    let metrics = json!({ "description": "OpenMetrics, or the classic format for those who prefer text/plain", "content": {
        Exposition::OpenMetrics.content_type(): text, Exposition::Classic.content_type(): text
    } });
    let metrics = s.operation("metrics", "Metrics for Prometheus", &[(200, metrics)], &[401, 403]);

    let openapi = json!({
        "description": "OpenAPI 3.1", "content": { "application/json": { "schema": { "type": "object" } } },
    });
    let openapi = s.operation("openapi", "This description", &[(200, openapi)], &[403]);

    let peers = s.answer::<Peers>("All known peers");
    let peers_summary = "The peers that were heard in the network";
    let peers = s.operation("listPeers", peers_summary, &[(200, peers)], &[401, 403]);

    let reservation = s.answer::<ReservationView>("Its state");
    let reservation_summary = "A reservation, rebuilt from its events";
    let problems = [400, 401, 403, 404, 500, 503];
    let reservation = s.operation("showReservation", reservation_summary, &[(200, reservation)], &problems);

    vec![
        (HEALTH, "get", open(health)),
        (READY, "get", open(ready)),
        (METRICS, "get", metrics),
        (OPENAPI, "get", open(openapi)),
        (JOBS, "get", list_jobs(s)),
        (JOBS, "post", submit_job(s)),
        (JOB, "get", show_job(s)),
        (JOB, "delete", cancel_job(s)),
        (JOB_EVENTS, "get", job_events(s)),
        (PEERS, "get", peers),
        (RESERVATIONS, "post", request_reservation(s)),
        (RESERVATION, "get", with_id(reservation)),
        (CANCEL, "post", cancel_reservation(s)),
    ]
}

fn submit_job(s: &mut Schemas) -> Value {
    let answer = |s: &mut Schemas, description: &str| {
        let mut accepted = s.answer::<JobAccepted>(description);
        accepted["headers"] =
            json!({ "Location": { "description": "Path of the job", "schema": { "type": "string" } } });
        accepted["links"] = json!({
            "job": link("showJob", "job_id"), "events": link("followJob", "job_id"), "cancel": link("cancelJob", "job_id"),
        });
        accepted
    };
    let accepted = answer(s, "Accepted; the job is recorded in the event log");
    let known = answer(s, "The first job of this idempotency key");
    let problems = [&BODY_PROBLEMS[..], &[500, 503]].concat();
    let answers = [(202, accepted), (200, known)];
    let operation = s.operation("submitJob", "Run a circuit on the peers", &answers, &problems);
    let key = "When a key is used again, the answer is the first job; another job with it is refused (422)";
    let schema = json!({ "type": "string", "minLength": 1, "maxLength": MAX_TEXT, "pattern": "^[!-~]+$" });
    let operation = with_parameter(operation, optional("Idempotency-Key", "header", key, schema));
    let operation = with_parameter(operation, wait());
    with_body(operation, s.request::<JobRequest>())
}

fn list_jobs(s: &mut Schemas) -> Value {
    let mut jobs = s.answer::<Jobs>("A page of jobs, the newest first");
    let next = json!({ "after": "$response.body#/next" });
    jobs["links"] = json!({ "next": { "operationId": "listJobs", "parameters": next } });
    let problems = [401, 403, 422, 500, 503];
    let operation = s.operation("listJobs", "All jobs, page by page", &[(200, jobs)], &problems);
    let status = json!({ "type": "array", "items": s.requests.subschema_for::<JobStatus>() });
    let mut status = optional("status", "query", "Jobs of this status; may be given several times", status);
    status["explode"] = json!(true);
    let limit = json!({ "type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE });
    let operation = with_parameter(operation, status);
    let operation = with_parameter(operation, optional("limit", "query", "Most jobs of the page", limit));
    let after = "`next` of the page before";
    with_parameter(operation, optional("after", "query", after, json!({ "type": "string" })))
}

fn show_job(s: &mut Schemas) -> Value {
    let schemas = [s.answers.subschema_for::<CoordinatorJob>(), s.answers.subschema_for::<JobSummary>()];
    let content = json!({ "application/json": { "schema": { "anyOf": schemas } } });
    let job = json!({ "description": "The job, as much of it as was asked for", "content": content });
    let summary = "A job: its plan, who ran each fragment, the result";
    let problems = [400, 401, 403, 404, 422, 500, 503];
    let operation = with_id(s.operation("showJob", summary, &[(200, job)], &problems));
    let operation = with_parameter(operation, wait());
    let detail = json!({ "type": "string", "enum": DETAILS, "default": "full" });
    let text = "summary: as in lists; plan: all but the result; full: everything";
    with_parameter(operation, optional("detail", "query", text, detail))
}

fn cancel_job(s: &mut Schemas) -> Value {
    let cancelled = s.answer::<JobSummary>("Cancelled; its peers are being told");
    let before = s.answer::<JobSummary>("It was cancelled before");
    let summary = "Cancel a job, here and at its peers; one that has ended otherwise is 409";
    let problems = [400, 401, 403, 404, 409, 422, 500, 503];
    let operation = s.operation("cancelJob", summary, &[(202, cancelled), (200, before)], &problems);
    let reason = s.requests.subschema_for::<CancelReason>();
    let reason = optional("reason", "query", "Shown as the job's error", json!(reason));
    with_parameter(with_id(operation), reason)
}

fn job_events(s: &mut Schemas) -> Value {
    let status = json!(s.answers.subschema_for::<JobSummary>());
    let block = json!(s.answers.subschema_for::<BlockEvent>());
    let events = json!({
        "description": "Server-sent events until the job has ended: `status` and `end` with the job in short, `block` \
                        with a block. Comments keep the connection alive",
        "content": { "text/event-stream": { "schema": { "type": "string" }, "x-data": { "status": status, "block": block, "end": status } } },
    });
    let known = json!({ "description": "The job has ended, and the client knows its last event" });
    let problems = [400, 401, 403, 404, 500, 503];
    let operation =
        with_id(s.operation("followJob", "What happens to a job", &[(200, events), (204, known)], &problems));
    let id = json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX });
    with_parameter(operation, optional("Last-Event-ID", "header", "Go on behind this event", id))
}

fn request_reservation(s: &mut Schemas) -> Value {
    let mut created = s.answer::<ReservationView>("Recorded");
    created["links"] = json!({
        "show": link("showReservation", "reservation_id"), "cancel": link("cancelReservation", "reservation_id"),
    });
    let existing = s.answer::<ReservationView>("The existing reservation: the key was used before");
    let summary = "Record a request for a reservation; no peer is contacted, it expires by its ttl";
    let problems = [&BODY_PROBLEMS[..], &[409, 500, 503]].concat();
    let operation = s.operation("requestReservation", summary, &[(201, created), (200, existing)], &problems);
    with_body(operation, s.request::<ReservationBody>())
}

fn cancel_reservation(s: &mut Schemas) -> Value {
    let cancelled = s.answer::<ReservationView>("Cancelled");
    let summary = "Cancel a reservation, here and at its peer";
    let problems = [&BODY_PROBLEMS[..], &[404, 409, 500, 503]].concat();
    let operation = with_id(s.operation("cancelReservation", summary, &[(200, cancelled)], &problems));
    let reason = json!(s.requests.subschema_for::<CancelReason>());
    let mut operation = with_parameter(operation, optional("reason", "query", "Why", reason));
    operation["requestBody"] = json!({
        "required": false,
        "description": "May be left out where the token is given; without a token the header \
                        Content-Type: application/json is needed all the same",
        "content": s.request::<CancelBody>(),
    });
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every route, with the statuses that it may answer.
    #[test]
    fn every_route_and_status_is_described() {
        let document = document(1000);
        let expected: [(&str, &str, &[&str]); 13] = [
            (HEALTH, "get", &["200", "403"]),
            (READY, "get", &["200", "403", "503"]),
            (METRICS, "get", &["200", "401", "403"]),
            (OPENAPI, "get", &["200", "403"]),
            (JOBS, "get", &["200", "401", "403", "422", "500", "503"]),
            (JOBS, "post", &["200", "202", "400", "401", "403", "413", "415", "422", "500", "503"]),
            (JOB, "get", &["200", "400", "401", "403", "404", "422", "500", "503"]),
            (JOB, "delete", &["200", "202", "400", "401", "403", "404", "409", "422", "500", "503"]),
            (JOB_EVENTS, "get", &["200", "204", "400", "401", "403", "404", "500", "503"]),
            (PEERS, "get", &["200", "401", "403"]),
            (
                RESERVATIONS,
                "post",
                &["200", "201", "400", "401", "403", "409", "413", "415", "422", "500", "503"],
            ),
            (RESERVATION, "get", &["200", "400", "401", "403", "404", "500", "503"]),
            (CANCEL, "post", &["200", "400", "401", "403", "404", "409", "413", "415", "422", "500", "503"]),
        ];
        let described = document["paths"].as_object().unwrap().values();
        assert_eq!(described.map(|path| path.as_object().unwrap().len()).sum::<usize>(), expected.len());
        for (path, method, statuses) in expected {
            let responses = document["paths"][path][method]["responses"].as_object();
            let mut found: Vec<&String> =
                responses.unwrap_or_else(|| panic!("{method} {path}")).keys().collect();
            found.sort();
            assert_eq!(found, statuses, "{method} {path}");
        }
    }

    #[test]
    fn requests_have_their_bounds_and_answers_all_their_fields() {
        let document = document(1000);
        let schemas = &document["components"]["schemas"];
        let job = &schemas["JobRequest"];
        assert_eq!(job["required"], json!(["qasm"]));
        assert_eq!(job["additionalProperties"], false);
        let shots = &job["properties"]["shots"];
        assert_eq!(
            (&shots["minimum"], &shots["maximum"], &shots["default"]),
            (&json!(1), &json!(1000), &json!(1024))
        );
        let reservation = &schemas["ReservationRequest"];
        assert_eq!(reservation["required"], json!(["workflow_run_id", "fragment_id", "service_id"]));
        let id = &reservation["properties"]["reservation_id"];
        assert_eq!((&id["type"], &id["minLength"]), (&json!("string"), &json!(8)));
        assert!(id.get("default").is_none(), "{id}");
        let ttl = &reservation["properties"]["ttl_seconds"];
        assert_eq!(
            (&ttl["minimum"], &ttl["maximum"], &ttl["default"]),
            (&json!(5), &json!(31_536_000), &json!(60))
        );
        let shown = schemas["Job"]["required"].as_array().unwrap();
        assert_eq!(shown.len(), 11, "{shown:?}");
        assert_eq!(schemas["Problem"]["required"], json!(["type", "title", "status", "detail"]));
    }

    /// A reference without its schema makes the description useless.
    #[test]
    fn every_reference_leads_to_a_schema() {
        let document = document(1000);
        let text = document.to_string();
        let mut references = 0;
        for part in text.split("\"$ref\":\"#").skip(1) {
            let pointer = part.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
            references += 1;
        }
        assert!(references > 20, "{references}");
    }
}
