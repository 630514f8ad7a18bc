//! The OpenAPI description of the coordinator's API. Schemas are generated from the types that are read and written;
//! what each route answers is listed here, together with the paths that the router uses.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::documents::{
    CancelBody, CancelReason, Health, JobAccepted, JobRequest, Peers, ReservationBody, ReservationView,
};
use super::http::ProblemBody;
use crate::coordinator::job_view::CoordinatorJob;

pub const HEALTH: &str = "/health";
pub const OPENAPI: &str = "/api/v1/openapi.json";
pub const JOBS: &str = "/api/v1/jobs";
pub const JOB: &str = "/api/v1/jobs/{id}";
pub const PEERS: &str = "/api/v1/peers";
pub const RESERVATIONS: &str = "/api/v1/reservations";
pub const RESERVATION: &str = "/api/v1/reservations/{id}";
pub const CANCEL: &str = "/api/v1/reservations/{id}/cancel";

/// Statuses of errors that any request which changes something may have.
const BODY_PROBLEMS: [u16; 6] = [400, 401, 403, 413, 415, 422];

const ABOUT: &str = "Jobs on a network of peers, and the reservations they are made of. Calls that change something \
                     need the bearer token CODA_API_TOKEN. Without a configured token they are served on loopback \
                     only, with application/json and a Host header that names this machine.";

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

fn with_id(mut operation: Value) -> Value {
    let id = json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "string", "minLength": 1 } });
    operation["parameters"] = json!([id]);
    operation
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

    let openapi = json!({
        "description": "OpenAPI 3.1", "content": { "application/json": { "schema": { "type": "object" } } },
    });
    let openapi = s.operation("openapi", "This description", &[(200, openapi)], &[403]);

    let job = s.answer::<CoordinatorJob>("The job");
    let job_summary = "A job: its plan, who ran each fragment, the result";
    let job = s.operation("showJob", job_summary, &[(200, job)], &[400, 403, 404, 500]);

    let peers = s.answer::<Peers>("All known peers");
    let peers = s.operation("listPeers", "The peers that were heard in the network", &[(200, peers)], &[403]);

    let reservation = s.answer::<ReservationView>("Its state");
    let reservation_summary = "A reservation, rebuilt from its events";
    let reservation =
        s.operation("showReservation", reservation_summary, &[(200, reservation)], &[400, 403, 404, 500]);

    vec![
        (HEALTH, "get", open(health)),
        (OPENAPI, "get", open(openapi)),
        (JOBS, "post", submit_job(s)),
        (JOB, "get", open(with_id(job))),
        (PEERS, "get", open(peers)),
        (RESERVATIONS, "post", request_reservation(s)),
        (RESERVATION, "get", open(with_id(reservation))),
        (CANCEL, "post", cancel_reservation(s)),
    ]
}

fn submit_job(s: &mut Schemas) -> Value {
    let mut accepted = s.answer::<JobAccepted>("Accepted; the job is recorded in the event log");
    accepted["headers"] =
        json!({ "Location": { "description": "Path of the job", "schema": { "type": "string" } } });
    accepted["links"] = json!({ "job": link("showJob", "job_id") });
    let problems = [&BODY_PROBLEMS[..], &[500, 503]].concat();
    let operation = s.operation("submitJob", "Run a circuit on the peers", &[(202, accepted)], &problems);
    with_body(operation, s.request::<JobRequest>())
}

fn request_reservation(s: &mut Schemas) -> Value {
    let mut created = s.answer::<ReservationView>("Recorded");
    created["links"] = json!({
        "show": link("showReservation", "reservation_id"), "cancel": link("cancelReservation", "reservation_id"),
    });
    let existing = s.answer::<ReservationView>("The existing reservation: the key was used before");
    let summary = "Record a request for a reservation; no peer is contacted, it expires by its ttl";
    let problems = [&BODY_PROBLEMS[..], &[409, 500]].concat();
    let operation = s.operation("requestReservation", summary, &[(201, created), (200, existing)], &problems);
    with_body(operation, s.request::<ReservationBody>())
}

fn cancel_reservation(s: &mut Schemas) -> Value {
    let cancelled = s.answer::<ReservationView>("Cancelled");
    let summary = "Cancel a reservation, here and at its peer";
    let problems = [&BODY_PROBLEMS[..], &[404, 409, 500]].concat();
    let mut operation = with_id(s.operation("cancelReservation", summary, &[(200, cancelled)], &problems));
    let reason = s.requests.subschema_for::<CancelReason>();
    if let Some(parameters) = operation["parameters"].as_array_mut() {
        parameters.push(json!({ "name": "reason", "in": "query", "required": false, "schema": reason }));
    }
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
        let expected: [(&str, &str, &[&str]); 8] = [
            (HEALTH, "get", &["200", "403"]),
            (OPENAPI, "get", &["200", "403"]),
            (JOBS, "post", &["202", "400", "401", "403", "413", "415", "422", "500", "503"]),
            (JOB, "get", &["200", "400", "403", "404", "500"]),
            (PEERS, "get", &["200", "403"]),
            (RESERVATIONS, "post", &["200", "201", "400", "401", "403", "409", "413", "415", "422", "500"]),
            (RESERVATION, "get", &["200", "400", "403", "404", "500"]),
            (CANCEL, "post", &["200", "400", "401", "403", "404", "409", "413", "415", "422", "500"]),
        ];
        assert_eq!(document["paths"].as_object().unwrap().len(), expected.len());
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
        assert_eq!(shown.len(), 10, "{shown:?}");
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
