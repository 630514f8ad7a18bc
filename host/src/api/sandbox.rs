//! The sandbox of `coda-host dev` on the host's page: example circuits to send, and the counts of the last jobs.
//!
//! Only a host that a sandbox has started has these routes. The jobs go the way of all jobs, through the development
//! cloud and Redis; the counts are asked of that cloud, so the host keeps none.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::post;
use serde::Deserialize;
use serde_json::json;

use super::access::{Access, guard};
use super::body::{WholeNumber, read_body};
use super::http::{ApiProblem, reply};
use crate::activity::jobs::JobTrace;
use crate::activity::minutes::JobEnd;
use crate::dev::client::{DevClient, DevClientError};
use crate::error::Failure;
use crate::model::Secret;
use crate::page::host::{SandboxModel, SandboxResult};

/// Jobs whose counts are shown.
const RESULTS: usize = 3;

/// The circuits that can be sent, with the name that the page gives them.
const EXAMPLES: [(&str, &str); 3] = [
    ("bell", include_str!("../../../tests/circuits/bell.json")),
    ("ghz5", include_str!("../../../tests/circuits/ghz5.json")),
    ("random12", include_str!("../../../tests/circuits/random12.json")),
];

/// The development cloud of a sandbox.
#[derive(Clone)]
pub struct Sandbox(Arc<DevClient>);

impl Sandbox {
    /// # Errors
    /// When this is not a URL.
    pub fn new(url: &str) -> Result<Sandbox, DevClientError> {
        Ok(Sandbox(Arc::new(DevClient::new(url)?)))
    }

    /// The route that sends an example.
    pub fn routes(&self, token: Option<Secret>) -> Router {
        // A sandbox is bound to loopback.
        let access = Arc::new(Access { token, loopback: true, open_reads: true });
        Router::new()
            .route("/sandbox/jobs", post(send))
            .layer(from_fn_with_state(access, guard))
            .with_state(self.clone())
    }

    /// The counts of the last jobs that completed.
    pub async fn model(&self, ended: &[JobTrace]) -> SandboxModel {
        let completed = ended.iter().filter(|job| job.end == Some(JobEnd::Completed)).take(RESULTS);
        let mut results = Vec::new();
        for job in completed {
            match self.0.job(&job.job_id, 0, Duration::ZERO).await {
                Ok(known) => {
                    let mut counts: Vec<(String, u64)> = known
                        .counts()
                        .unwrap_or_default()
                        .into_iter()
                        .map(|(outcome, n)| (outcome, n.unsigned_abs()))
                        .collect();
                    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
                    results.push(SandboxResult { job_id: job.job_id.to_string(), counts });
                }
                // Written to the stream by other means: the cloud does not know it.
                Err(DevClientError::Refused { status: 404, .. }) => {}
                Err(error) => return SandboxModel { results: Err(Failure::from(error).line()) },
            }
        }
        SandboxModel { results: Ok(results) }
    }
}

/// An example to be sent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExampleJob {
    circuit: String,
    shots: WholeNumber<1, 100_000>,
}

async fn send(
    State(sandbox): State<Sandbox>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiProblem> {
    let asked: ExampleJob = read_body(&headers, body).await?;
    let Some((_, circuit)) = EXAMPLES.iter().find(|(name, _)| *name == asked.circuit) else {
        let names = EXAMPLES.map(|(name, _)| name).join(", ");
        let detail = format!("circuit is none of {names}");
        return Err(ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).field("circuit"));
    };
    let sent = sandbox.0.submit(circuit, asked.shots.0 as u32).await;
    let job_id =
        sent.map_err(|error| ApiProblem::new(StatusCode::BAD_GATEWAY, Failure::from(error).line()))?;
    Ok(reply(StatusCode::ACCEPTED, &json!({ "job_id": job_id })))
}
