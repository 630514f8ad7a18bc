//! What every local HTTP service here has in common: JSON answers, and errors in the form of RFC 9457 that name the
//! field.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use crate::model::cut;
use crate::telemetry::exposition::Exposition;

/// After how many seconds a request that found no room may be sent again.
pub const RETRY_AFTER: HeaderValue = HeaderValue::from_static("2");

/// Metrics, given as OpenMetrics, in the format that a request's headers prefer.
pub fn metrics_answer(headers: &HeaderMap, open_metrics: String) -> Response {
    // What is no text prefers nothing.
    let accept = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let format = Exposition::preferred(accept);
    ([(header::CONTENT_TYPE, format.content_type())], format.convert(open_metrics)).into_response()
}

/// The body of an error, in the form of RFC 9457.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Problem", deny_unknown_fields)]
pub struct ProblemBody {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub title: &'static str,
    pub status: u16,
    pub detail: String,
    /// The field of the request that is wrong, when it is one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldProblem>,
    /// Where in the circuit the error is, when it is in a circuit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<CircuitPosition>,
}

/// What is wrong with one field of a request.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct FieldProblem {
    pub field: String,
    pub message: String,
}

/// A position in a circuit's source, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct CircuitPosition {
    pub line: u32,
    pub column: u32,
}

/// An answer that says what is wrong, and with which field.
#[derive(Debug)]
pub struct ApiProblem {
    status: StatusCode,
    body: ProblemBody,
    closes: bool,
}

/// Longest detail of a problem, in characters.
const MAX_DETAIL: usize = 2000;

impl ApiProblem {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> ApiProblem {
        let body = ProblemBody {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            // It may repeat what the request said.
            detail: cut(&detail.into(), MAX_DETAIL).into(),
            errors: Vec::new(),
            place: None,
        };
        ApiProblem { status, body, closes: false }
    }

    /// The body of the answer.
    pub fn body(&self) -> &ProblemBody {
        &self.body
    }

    /// Names the field of the request that is wrong.
    pub fn field(mut self, name: impl Into<String>) -> ApiProblem {
        self.body.errors.push(FieldProblem { field: name.into(), message: self.body.detail.clone() });
        self
    }

    /// Closes the connection behind the answer: there are too many that wait.
    pub fn close(mut self) -> ApiProblem {
        self.closes = true;
        self
    }

    /// Names the position in the circuit that is wrong.
    pub fn place(mut self, line: u32, column: u32) -> ApiProblem {
        self.body.place = Some(CircuitPosition { line, column });
        self
    }
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, "application/problem+json", &self.body);
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        if self.closes {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A JSON answer.
pub fn reply<T: Serialize>(status: StatusCode, body: &T) -> Response {
    json_response(status, "application/json", body)
}

fn json_response<T: Serialize>(status: StatusCode, content_type: &'static str, body: &T) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, content_type)], bytes).into_response(),
        Err(error) => {
            tracing::error!(%error, "an answer of the local service could not be written as JSON");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_problem_names_its_field_and_place_only_when_it_has_them() {
        let plain = ApiProblem::new(StatusCode::NOT_FOUND, "there is no such job").body;
        let expected = json!({
            "type": "about:blank", "title": "Not Found", "status": 404, "detail": "there is no such job",
        });
        assert_eq!(serde_json::to_value(&plain).unwrap(), expected);
        let circuit = ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, "bad").field("qasm").place(3, 7).body;
        let body = serde_json::to_value(&circuit).unwrap();
        assert_eq!(body["errors"], json!([{ "field": "qasm", "message": "bad" }]));
        assert_eq!(body["place"], json!({ "line": 3, "column": 7 }));
    }

    #[test]
    fn a_missing_token_is_asked_for() {
        let response = ApiProblem::new(StatusCode::UNAUTHORIZED, "no token").into_response();
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
        let response = ApiProblem::new(StatusCode::FORBIDDEN, "no").into_response();
        assert!(!response.headers().contains_key(header::WWW_AUTHENTICATE));
        assert!(!response.headers().contains_key(header::RETRY_AFTER));
    }

    #[test]
    fn who_found_no_room_is_told_when_to_come_back() {
        let response = ApiProblem::new(StatusCode::SERVICE_UNAVAILABLE, "full").close().into_response();
        assert_eq!(
            (&response.headers()["retry-after"], &response.headers()["connection"]),
            (&RETRY_AFTER, &"close".parse().unwrap())
        );
    }
}
