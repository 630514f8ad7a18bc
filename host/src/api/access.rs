//! Who may do what through the coordinator's API.
//!
//! With a token everything needs it but what a probe asks for; reads can be opened. Without a token what changes
//! something is served only when the service is bound to loopback, and then only with `application/json` and Host and
//! Origin headers that name this machine: a page in a browser is on loopback too, but can't send those.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::http::ApiProblem;
use super::openapi;
use crate::model::Secret;
use crate::request_guard;

/// Paths that need no token: what probes ask for, and the description that says how to use one.
const OPEN_PATHS: [&str; 3] = [openapi::HEALTH, openapi::READY, openapi::OPENAPI];

/// Who may do what.
#[derive(Clone)]
pub struct Access {
    pub token: Option<Secret>,
    /// The service is bound to loopback.
    pub loopback: bool,
    /// What changes nothing needs no token.
    pub open_reads: bool,
}

/// Lets a request through that may do what it asks for.
pub async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    match allowed(&access, request.method(), request.uri().path(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn allowed(access: &Access, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), ApiProblem> {
    if access.loopback {
        request_guard::check_site(headers).map_err(|e| ApiProblem::new(e.status(), e.to_string()))?;
    }
    let is_read = *method == Method::GET || *method == Method::HEAD;
    // What methods a path has is in the description.
    let is_open =
        *method == Method::OPTIONS || (is_read && (access.open_reads || OPEN_PATHS.contains(&path)));
    if is_open {
        return Ok(());
    }
    match &access.token {
        Some(token) => {
            let given = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).and_then(bearer);
            match given.is_some_and(|given| same(given.as_bytes(), token.expose().as_bytes())) {
                true => Ok(()),
                false => {
                    let detail = "this needs the token: Authorization: Bearer <CODA_API_TOKEN>";
                    Err(ApiProblem::new(StatusCode::UNAUTHORIZED, detail))
                }
            }
        }
        None if is_read => Ok(()),
        None if !access.loopback => {
            let detail = "without CODA_API_TOKEN this is served on a loopback address only";
            Err(ApiProblem::new(StatusCode::FORBIDDEN, detail))
        }
        None => Ok(()),
    }
}

/// The token in a header's value. The name of the scheme may be in any case (RFC 9110, 11.1).
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim())
}

/// Compares in constant time.
fn same(a: &[u8], b: &[u8]) -> bool {
    subtle::ConstantTimeEq::ct_eq(a, b).into()
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
        let access = |token: Option<&str>, loopback| Access {
            token: token.map(Secret::new),
            loopback,
            open_reads: false,
        };
        let here = ("host", "127.0.0.1:8090");
        let ask = |access: &Access, method: Method, path: &str, pairs: &[(&str, &str)]| {
            allowed(access, &method, path, &headers(pairs)).is_ok()
        };
        let post = |access: &Access, pairs: &[(&str, &str)]| ask(access, Method::POST, openapi::JOBS, pairs);
        assert!(post(&access(None, true), &[here]));
        assert!(!post(&access(None, true), &[("host", "evil.example:8090")]), "a rebound name");
        assert!(!post(&access(None, true), &[]));
        assert!(
            !post(&access(None, true), &[here, ("origin", "https://evil.example")]),
            "a page of another site"
        );
        assert!(!post(&access(None, false), &[("host", "lab.example")]));
        let guarded = access(Some("secret"), false);
        for right in ["Bearer secret", "bearer secret", "BEARER  secret "] {
            assert!(post(&guarded, &[("authorization", right)]), "{right}");
        }
        for wrong in ["Bearer secre", "Bearer secret2", "secret", "Basic secret", "Bearersecret"] {
            assert!(!post(&guarded, &[("authorization", wrong)]), "{wrong}");
        }
        // Reads are behind the token too, but for probes.
        let get = |access: &Access, path: &str, pairs: &[(&str, &str)]| ask(access, Method::GET, path, pairs);
        let with = [("authorization", "bearer secret")];
        assert!(!get(&guarded, openapi::JOBS, &[]) && get(&guarded, openapi::JOBS, &with));
        assert!(!get(&guarded, openapi::METRICS, &[]) && !ask(&guarded, Method::HEAD, openapi::JOBS, &[]));
        assert!(!ask(&guarded, Method::DELETE, "/api/v1/jobs/job-1", &[]));
        for path in [openapi::HEALTH, openapi::READY, openapi::OPENAPI] {
            assert!(get(&guarded, path, &[]), "{path}");
            assert!(!ask(&guarded, Method::POST, path, &[]), "{path}");
        }
        assert!(ask(&guarded, Method::OPTIONS, openapi::JOBS, &[]));
        let open = Access { open_reads: true, ..guarded };
        assert!(get(&open, openapi::JOBS, &[]) && !post(&open, &[]));
        assert!(get(&access(None, false), openapi::JOBS, &[]), "without a token there is none to show");
    }
}
