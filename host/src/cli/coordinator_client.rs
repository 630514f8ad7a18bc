//! A running coordinator, as commands ask it: submits a circuit, follows the job block by block, prints its result.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::histogram;
use super::terminal::{Terminal, one_line};
use crate::cloud::http::{Bearer, HttpClient, HttpError, Target};
use crate::coordinator::job_view::{BlockState, CoordinatorJob, JobStatus};
use crate::error::{Explain, Failure, exit};
use crate::model::{Secret, cut};
use crate::reservation::job_options::JobOptions;

/// Time limit of one request to the coordinator.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// Shortest pause between two requests for the job.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The pause between two requests, in multiples of the time that the last answer took: the answer of a large job is
/// work for the coordinator.
const PAUSE_PER_ANSWER: u32 = 9;

/// Follows a job to its end. With a terminal each block that ends is a line.
///
/// # Errors
/// When the coordinator no longer answers, or the terminal can't be written.
pub async fn follow(
    client: &CoordinatorClient,
    job_id: &str,
    mut out: Option<&mut Terminal>,
) -> Result<CoordinatorJob, Failure> {
    let mut reported: HashSet<String> = HashSet::new();
    loop {
        let asked = Instant::now();
        let job = client.job(job_id).await.map_err(|failure| lost(job_id, failure))?;
        let took = asked.elapsed();
        if let Some(out) = out.as_deref_mut() {
            progress(out, &job, &mut reported)?;
        }
        if matches!(job.status, JobStatus::Completed | JobStatus::Failed) {
            return Ok(job);
        }
        tokio::time::sleep(POLL_INTERVAL.max(took * PAUSE_PER_ANSWER)).await;
    }
}

/// Prints the histogram of a job that has ended, or why it failed.
///
/// # Errors
/// When the terminal can't be written.
pub fn show_result(out: &mut Terminal, job: &CoordinatorJob, shots: u32) -> Result<(), Failure> {
    match &job.result {
        Some(result) if job.status == JobStatus::Completed => {
            let counts: Vec<(String, i64)> =
                result.counts.iter().map(|(key, n)| (key.clone(), i64::from(*n))).collect();
            out.text(&histogram::render(&counts))?;
            let qubits: Vec<String> = result.measured_qubits.iter().map(ToString::to_string).collect();
            out.line(&format!("  {shots} shots of qubits [{}]", qubits.join(",")))
        }
        Some(_) | None => {
            let error = job.error.as_deref().unwrap_or("no reason was given");
            out.line(&format!("  failed: {}", one_line(error)))
        }
    }
}

/// Prints a line for each block that has ended since the last request.
fn progress(out: &mut Terminal, job: &CoordinatorJob, reported: &mut HashSet<String>) -> Result<(), Failure> {
    let all = job.plan.as_ref().map_or(0, |plan| plan.stages.iter().map(Vec::len).sum());
    for block in &job.blocks {
        let state = match block.state {
            BlockState::Completed => "completed",
            BlockState::Failed => "failed",
            BlockState::Abandoned => "abandoned",
            BlockState::Waiting | BlockState::Running => continue,
        };
        let id = &block.block_id;
        if !reported.insert(id.clone()) {
            continue;
        }
        let peer = block.peer_id.as_deref().unwrap_or("-");
        let tail: String = peer.chars().skip(peer.chars().count().saturating_sub(8)).collect();
        let attempts = match block.attempts {
            0 | 1 => String::new(),
            n => format!(", {n} attempts"),
        };
        let latency = block.latency_ms.map_or(String::new(), |ms| {
            let digits = if ms < 10.0 { 3 } else { 1 };
            format!(", {ms:.digits$} ms")
        });
        let error = block.error.as_deref().map_or(String::new(), |e| format!(": {}", one_line(e)));
        let n = reported.len();
        out.line(&format!("  {n:>3}/{all} {id} {state} on ..{tail}{attempts}{latency}{error}"))?;
    }
    Ok(())
}

/// The failure of a circuit that can't be used.
pub fn wrong_circuit(file: &str, why: &str) -> Failure {
    Failure {
        code: "circuit",
        message: format!("the circuit {file} can't be used: {why}"),
        causes: Vec::new(),
        hint: Some("correct the file; what is taken is in docs/peers.md".into()),
        exit: exit::CONFIG,
    }
}

/// The coordinator stopped answering while the job ran.
fn lost(job_id: &str, failure: Failure) -> Failure {
    Failure {
        message: format!("{}; the job {job_id} was submitted before", failure.message),
        hint: Some(format!(
            "start the coordinator again if it has ended: the job goes on then, see GET /api/v1/jobs/{job_id}"
        )),
        ..failure
    }
}

/// A coordinator at a URL.
pub struct CoordinatorClient {
    http: HttpClient,
    base: String,
    bearer: Option<Bearer>,
}

impl CoordinatorClient {
    /// # Errors
    /// When the URL or the token can't be used.
    pub fn new(url: &str, token: Option<&Secret>) -> Result<CoordinatorClient, Failure> {
        Target::parse(url).map_err(unreachable)?;
        let bearer = token.map(Bearer::new).transpose().map_err(unreachable)?;
        let http = HttpClient::local().map_err(unreachable)?;
        Ok(CoordinatorClient { http, base: url.trim_end_matches('/').into(), bearer })
    }

    /// Submits a circuit, whose file is named in errors, and returns the job's id.
    ///
    /// # Errors
    /// When the coordinator can't be asked, or refuses.
    pub async fn submit(
        &self,
        file: &str,
        qasm: &str,
        shots: u32,
        options: &JobOptions,
    ) -> Result<String, Failure> {
        let target = Target::parse(&format!("{}/api/v1/jobs", self.base)).map_err(unreachable)?;
        let JobOptions { inputs, results, observables, bit_order } = options;
        let body = json!({
            "qasm": qasm, "shots": shots, "inputs": inputs, "results": results, "observables": observables,
            "bit_order": bit_order,
        });
        let body = Bytes::from(body.to_string());
        let answer = match &self.bearer {
            Some(bearer) => {
                self.http.post_json(&target, bearer, &http::HeaderMap::new(), body, ANSWER_LIMIT).await
            }
            None => self.http.post_plain(&target, body, ANSWER_LIMIT).await,
        };
        let answer = answer.map_err(unreachable)?;
        let status = answer.status.as_u16();
        let body = answer.body.map_err(unreachable)?;
        if status == 202 {
            return Ok(parse::<Accepted>(status, &body)?.job_id);
        }
        let problem = Problem::read(&body);
        let is_of_the_circuit = |field: &str| matches!(field, "qasm" | "inputs" | "results" | "observables");
        let names_the_circuit = problem.errors.first().is_some_and(|error| is_of_the_circuit(&error.field));
        match status == 422 && names_the_circuit {
            true => Err(wrong_circuit(file, &problem.detail)),
            false => Err(refused(status, &problem.detail)),
        }
    }

    /// # Errors
    /// When the coordinator can't be asked.
    pub async fn peers(&self) -> Result<PeerList, Failure> {
        self.read("peers").await
    }

    /// # Errors
    /// When the coordinator can't be asked, or has no such job.
    pub async fn job(&self, id: &str) -> Result<CoordinatorJob, Failure> {
        self.read(&format!("jobs/{id}")).await
    }

    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let target = Target::parse(&format!("{}/api/v1/{path}", self.base)).map_err(unreachable)?;
        let answer = self.http.get(&target, ANSWER_LIMIT).await.map_err(unreachable)?;
        let status = answer.status.as_u16();
        let body = answer.body.map_err(unreachable)?;
        match status {
            200 => parse(status, &body),
            _ => Err(refused(status, &Problem::read(&body).detail)),
        }
    }
}

/// The peers of the network, as far as they are shown here.
#[derive(Debug, Serialize, Deserialize)]
pub struct PeerList {
    pub peers: Vec<ListedPeer>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedPeer {
    pub peer_id: String,
    /// Nothing was heard of it for a while.
    pub stale: bool,
    pub health: String,
    pub services: Vec<String>,
    pub active_reservations: u64,
    pub active_executions: u64,
    pub heard_seconds_ago: u64,
}

impl ListedPeer {
    /// What it reports of its health, or that nothing was heard of it.
    pub fn state(&self) -> &str {
        if self.stale { "stale" } else { &self.health }
    }

    /// Whether blocks may be sent to it.
    pub fn is_usable(&self) -> bool {
        !self.stale && self.health == "healthy"
    }
}

/// The answer to a job that was accepted.
#[derive(Deserialize)]
struct Accepted {
    job_id: String,
}

/// The answer to a request that was refused.
#[derive(Deserialize)]
struct Problem {
    detail: String,
    #[serde(default)]
    errors: Vec<WrongField>,
}

#[derive(Deserialize)]
struct WrongField {
    field: String,
}

impl Problem {
    /// Something else may listen there, and answer with anything.
    fn read(body: &[u8]) -> Problem {
        serde_json::from_slice(body).unwrap_or_else(|_| Problem {
            detail: cut(String::from_utf8_lossy(body).trim(), 200).to_string(),
            errors: Vec::new(),
        })
    }
}

fn parse<T: DeserializeOwned>(status: u16, body: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| {
        let text = cut(String::from_utf8_lossy(body).trim(), 200).to_string();
        refused(status, &format!("its answer can't be read ({error}): {text}"))
    })
}

fn unreachable(error: HttpError) -> Failure {
    Failure {
        code: error.code(),
        message: "the coordinator could not be asked".into(),
        causes: vec![Failure::from(error).line()],
        hint: Some(
            "start one with `coda-host coordinator`, or give its address with --url or CODA_COORDINATOR_URL"
                .into(),
        ),
        exit: exit::CLOUD,
    }
}

fn refused(status: u16, detail: &str) -> Failure {
    let detail = if detail.is_empty() { "no reason was given" } else { detail };
    Failure {
        code: "coordinator-refused",
        message: format!("the coordinator refused ({status}): {detail}"),
        causes: Vec::new(),
        hint: (status == 401 || status == 403)
            .then(|| "set CODA_API_TOKEN to the coordinator's token".into()),
        exit: exit::FAILURE,
    }
}
