//! A running coordinator, as commands ask it: submits a circuit, follows the job event by event, prints its result.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::event_text::{EventText, TextEvent};
use super::histogram;
use super::job_display::JobDisplay;
use super::terminal::{Terminal, one_line};
use crate::cloud::http::{AnswerStream, Bearer, HttpClient, HttpError, Opened, Target};
use crate::coordinator::job_events::BlockEvent;
use crate::coordinator::job_view::{CoordinatorJob, JobStatus, JobSummary};
use crate::error::{Explain, Failure, exit};
use crate::model::{Secret, cut};
use crate::reservation::job_options::JobOptions;

/// Time limit of one request to the coordinator.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// Longest silence of an event stream. A coordinator shows every quarter of a minute that it lives.
const STREAM_LIMIT: Duration = Duration::from_secs(60);
/// Shortest pause between two requests for the job.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The pause between two requests, in multiples of the time that the last answer took: the answer of a large job is
/// work for the coordinator.
const PAUSE_PER_ANSWER: u32 = 9;

/// Follows a job to its end: by its events, and where there are none by asking again and again.
///
/// # Errors
/// When the coordinator no longer answers, or the terminal can't be written.
pub async fn follow(
    client: &CoordinatorClient,
    job_id: &str,
    mut display: JobDisplay<'_>,
) -> Result<CoordinatorJob, Failure> {
    let mut last_id = None;
    loop {
        if let Some(mut events) = client.events(job_id, last_id.as_deref()).await {
            while let Some(event) = events.next().await {
                last_id = event.id.clone().or(last_id);
                if show(&mut display, &event)? == EventOutcome::End {
                    break;
                }
            }
        }
        // The whole job: it has ended, or its events could not be had or broke off.
        let asked = Instant::now();
        let job = client.job(job_id).await.map_err(|failure| lost(job_id, failure))?;
        let took = asked.elapsed();
        display.counts(&job.progress);
        for block in &job.blocks {
            display.block(block, &job.progress)?;
        }
        if job.status.is_final() {
            return Ok(job);
        }
        tokio::time::sleep(POLL_INTERVAL.max(took * PAUSE_PER_ANSWER)).await;
    }
}

/// Whether more events follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventOutcome {
    More,
    End,
}

/// Shows an event. One that can't be read is left out: the whole job is read in the end.
fn show(display: &mut JobDisplay<'_>, event: &TextEvent) -> Result<EventOutcome, Failure> {
    match event.name.as_str() {
        "block" => {
            if let Ok(BlockEvent { block, progress }) = serde_json::from_str(&event.data) {
                display.block(&block, &progress)?;
            }
        }
        "status" => {
            if let Ok(JobSummary { progress: Some(progress), .. }) = serde_json::from_str(&event.data) {
                display.counts(&progress);
            }
        }
        "end" => return Ok(EventOutcome::End),
        _ => {}
    }
    Ok(EventOutcome::More)
}

/// The events of a job, as they come.
pub struct JobEvents {
    stream: AnswerStream,
    text: EventText,
    /// Events that have come and were not taken, in reverse.
    waiting: Vec<TextEvent>,
}

impl JobEvents {
    /// The next event; none when the stream has ended, for whatever reason.
    async fn next(&mut self) -> Option<TextEvent> {
        while self.waiting.is_empty() {
            let bytes = self.stream.next(STREAM_LIMIT).await.ok()??;
            self.waiting = self.text.add(&bytes).ok()?;
            self.waiting.reverse();
        }
        self.waiting.pop()
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
            out.line(&format!("  {}: {}", job.status.name(), one_line(error)))
        }
    }
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
        let JobOptions { inputs, results, observables, bit_order, verify, redundancy } = options;
        let body = json!({
            "qasm": qasm, "shots": shots, "inputs": inputs, "results": results, "observables": observables,
            "bit_order": bit_order, "verify": verify, "redundancy": redundancy,
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

    /// The events of a job behind one of them; none when they can't be had now, or not from this coordinator.
    async fn events(&self, id: &str, after: Option<&str>) -> Option<JobEvents> {
        let target = Target::parse(&format!("{}/api/v1/jobs/{id}/events", self.base)).ok()?;
        let mut extra = HeaderMap::new();
        if let Some(after) = after.and_then(|after| HeaderValue::from_str(after).ok()) {
            extra.insert("last-event-id", after);
        }
        match self.http.open(&target, self.bearer.as_ref(), &extra, ANSWER_LIMIT).await.ok()? {
            Opened::Stream(stream) => {
                Some(JobEvents { stream, text: EventText::default(), waiting: Vec::new() })
            }
            Opened::Refused(_) => None,
        }
    }

    /// Cancels a job. Returns false when it has ended before.
    ///
    /// # Errors
    /// When the coordinator can't be asked, or has no such job.
    pub async fn cancel(&self, id: &str, reason: &str) -> Result<bool, Failure> {
        let query =
            url::form_urlencoded::Serializer::new(String::new()).append_pair("reason", reason).finish();
        let target =
            Target::parse(&format!("{}/api/v1/jobs/{id}?{query}", self.base)).map_err(unreachable)?;
        let answer = self.http.request(Method::DELETE, &target, self.bearer.as_ref(), ANSWER_LIMIT).await;
        let answer = answer.map_err(unreachable)?;
        let body = answer.body.map_err(unreachable)?;
        match answer.status.as_u16() {
            200 | 202 => Ok(true),
            409 => Ok(false),
            status => Err(refused(status, &Problem::read(&body).detail)),
        }
    }

    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let target = Target::parse(&format!("{}/api/v1/{path}", self.base)).map_err(unreachable)?;
        let answer = self.http.request(Method::GET, &target, self.bearer.as_ref(), ANSWER_LIMIT).await;
        let answer = answer.map_err(unreachable)?;
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
    /// The coordinator can't reach it.
    #[serde(default)]
    pub lost: bool,
    pub health: String,
    pub services: Vec<String>,
    pub active_reservations: u64,
    pub active_executions: u64,
    pub heard_seconds_ago: u64,
    /// The coordinator's circuit breaker for it: closed, open or half_open.
    #[serde(default)]
    pub breaker: String,
}

impl ListedPeer {
    /// What it reports of its health, that nothing was heard of it, or that the coordinator can't reach it or leaves it
    /// alone.
    pub fn state(&self) -> &str {
        if self.stale {
            "stale"
        } else if self.lost {
            "lost"
        } else if self.breaker == "open" {
            "breaker open"
        } else {
            &self.health
        }
    }

    /// Whether blocks may be sent to it.
    pub fn is_usable(&self) -> bool {
        !self.stale && !self.lost && self.health == "healthy"
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
