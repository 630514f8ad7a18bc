//! `coda-host coordinate`: sends a circuit to a running coordinator, and follows it block by block.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::terminal::{Terminal, one_line};
use super::{circuit_file, histogram, kit};
use crate::app;
use crate::cloud::http::{Bearer, HttpClient, HttpError, Target};
use crate::config::load::{self, ProcessEnv};
use crate::coordinator::job_view::{BlockState, CoordinatorJob, JobStatus};
use crate::error::{Explain, Failure, exit};
use crate::model::{Secret, cut};

/// Time limit of one request to the coordinator.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// Shortest pause between two requests for the job.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The pause between two requests, in multiples of the time that the last answer took: the answer of a large job is
/// work for the coordinator.
const PAUSE_PER_ANSWER: u32 = 9;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host coordinate bell.qasm --shots 1000
  coda-host coordinate - < ghz.qasm
  coda-host coordinate bell.qasm --json | jq .result.counts

The circuit is OpenQASM 2 or 3. In a key of the histogram character i is the i-th measured qubit.
Exit status: 1 when the job failed, 2 when the circuit is wrong, 4 when no coordinator answers.")]
pub struct Args {
    /// OpenQASM 2 or 3; - for standard input
    #[arg(value_name = "CIRCUIT.qasm", value_hint = clap::ValueHint::FilePath)]
    circuit: PathBuf,
    /// How often the final state is sampled
    #[arg(short, long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    shots: u32,
    /// The coordinator (CODA_COORDINATOR_URL, http://127.0.0.1:8090); its token is CODA_API_TOKEN
    #[arg(long, value_name = "URL", value_hint = clap::ValueHint::Url)]
    url: Option<String>,
    /// The whole job as JSON, for machines
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, env: ProcessEnv) -> Result<ExitCode, Failure> {
    let text = circuit_file::read(&args.circuit).map_err(|error| Failure {
        hint: Some(
            "give a file of OpenQASM 2 or 3, such as tests/circuits/bell.qasm, or - for standard input"
                .into(),
        ),
        ..Failure::from(error)
    })?;
    let qasm = String::from_utf8(text)
        .map_err(|_| wrong_circuit(&args.circuit.display().to_string(), "it is not UTF-8 text"))?;
    let flags: HashMap<&'static str, String> =
        args.url.clone().map(|url| ("CODA_COORDINATOR_URL", url)).into_iter().collect();
    let (settings, _) = load::settings(&env, flags, load::dirs(&env)?, None)?;
    let client = Client::new(&settings.coordinator.url, settings.coordinator.api_token.as_ref())?;
    let runtime = kit::runtime()?;
    let result = runtime.block_on(async {
        let stop = CancellationToken::new();
        app::watch_signals(stop.clone());
        tokio::select! {
            done = execute(&args, &qasm, &client, &env) => done,
            () = stop.cancelled() => Err(Failure {
                code: "interrupted",
                message: "no longer waiting; the job goes on".into(),
                causes: Vec::new(),
                hint: None,
                exit: exit::FAILURE,
            }),
        }
    });
    runtime.shutdown_background();
    result
}

async fn execute(args: &Args, qasm: &str, client: &Client, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let mut out = Terminal::new(env);
    let file = args.circuit.display().to_string();
    let job_id = client.submit(&file, qasm, args.shots).await?;
    if !args.json {
        out.line(&job_id)?;
    }
    let mut reported: HashSet<String> = HashSet::new();
    let job = loop {
        let asked = Instant::now();
        let job = client.job(&job_id).await.map_err(|failure| lost(&job_id, failure))?;
        let took = asked.elapsed();
        if !args.json {
            progress(&mut out, &job, &mut reported)?;
        }
        if matches!(job.status, JobStatus::Completed | JobStatus::Failed) {
            break job;
        }
        tokio::time::sleep(POLL_INTERVAL.max(took * PAUSE_PER_ANSWER)).await;
    };
    let completed = job.status == JobStatus::Completed;
    match &job.result {
        _ if args.json => out.line(&serde_json::json!(job).to_string())?,
        Some(result) if completed => {
            let counts: Vec<(String, i64)> =
                result.counts.iter().map(|(key, n)| (key.clone(), i64::from(*n))).collect();
            out.text(&histogram::render(&counts))?;
            let qubits: Vec<String> = result.measured_qubits.iter().map(ToString::to_string).collect();
            out.line(&format!("  {} shots of qubits [{}]", args.shots, qubits.join(",")))?;
        }
        Some(_) | None => {
            let error = job.error.as_deref().unwrap_or("no reason was given");
            out.line(&format!("  failed: {}", one_line(error)))?;
        }
    }
    Ok(if completed { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILURE) })
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

fn wrong_circuit(file: &str, why: &str) -> Failure {
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
            "a restarted coordinator fails the jobs that were running; see GET /api/v1/jobs/{job_id}, and submit it again"
        )),
        ..failure
    }
}

struct Client {
    http: HttpClient,
    base: String,
    bearer: Option<Bearer>,
}

impl Client {
    fn new(url: &str, token: Option<&Secret>) -> Result<Client, Failure> {
        Target::parse(url).map_err(unreachable)?;
        let bearer = token.map(Bearer::new).transpose().map_err(unreachable)?;
        let http = HttpClient::local().map_err(unreachable)?;
        Ok(Client { http, base: url.trim_end_matches('/').into(), bearer })
    }

    async fn submit(&self, file: &str, qasm: &str, shots: u32) -> Result<String, Failure> {
        let target = Target::parse(&format!("{}/api/v1/jobs", self.base)).map_err(unreachable)?;
        let body = Bytes::from(json!({ "qasm": qasm, "shots": shots }).to_string());
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
        let names_the_circuit = problem.errors.first().is_some_and(|error| error.field == "qasm");
        match status == 422 && names_the_circuit {
            true => Err(wrong_circuit(file, &problem.detail)),
            false => Err(refused(status, &problem.detail)),
        }
    }

    async fn job(&self, id: &str) -> Result<CoordinatorJob, Failure> {
        let target = Target::parse(&format!("{}/api/v1/jobs/{id}", self.base)).map_err(unreachable)?;
        let answer = self.http.get(&target, ANSWER_LIMIT).await.map_err(unreachable)?;
        let status = answer.status.as_u16();
        let body = answer.body.map_err(unreachable)?;
        match status {
            200 => parse(status, &body),
            _ => Err(refused(status, &Problem::read(&body).detail)),
        }
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
