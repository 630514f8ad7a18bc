//! What every local HTTP service here has in common: connections with limits on headers and time, and errors in the
//! form of RFC 9457 that name the field.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Connections served at once; more wait.
const MAX_CONNECTIONS: usize = 256;

/// Serves a router until stopped.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    request_timeout: Duration,
    stop: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, say: others may free some.
                tracing::warn!(%error, "a connection to the local service could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let service = TowerToHyperService::new(router.clone());
        let stop = stop.clone();
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(request_timeout)
                .max_buf_size(16 << 10)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the local service ended badly");
                },
                () = stop.cancelled() => {}
            }
            drop(permit);
        });
    }
}

/// An answer that says what is wrong, and with which field.
pub struct ApiProblem {
    status: StatusCode,
    detail: String,
    field: Option<String>,
    extra: Option<(&'static str, Value)>,
}

impl ApiProblem {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> ApiProblem {
        ApiProblem { status, detail: detail.into(), field: None, extra: None }
    }

    /// What is wrong lies in this field of the body.
    pub fn field(mut self, name: impl Into<String>) -> ApiProblem {
        self.field = Some(name.into());
        self
    }

    pub fn with(mut self, key: &'static str, value: Value) -> ApiProblem {
        self.extra = Some((key, value));
        self
    }
}

impl IntoResponse for ApiProblem {
    fn into_response(self) -> Response {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if let Some(field) = self.field {
            body["errors"] = json!([{ "field": field, "message": self.detail }]);
        }
        if let Some((key, value)) = self.extra {
            body[key] = value;
        }
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        (self.status, kind, body.to_string()).into_response()
    }
}

/// A JSON answer.
pub fn reply(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
