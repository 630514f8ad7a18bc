//! `coda-host coordinate`: sends a circuit to a running coordinator, and follows it block by block. A signal cancels the
//! job.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use tokio_util::sync::CancellationToken;

use super::coordinator_client::{CoordinatorClient, follow, show_result, wrong_circuit};
use super::job_display::JobDisplay;
use super::terminal::Terminal;
use super::{circuit_file, kit};
use crate::app;
use crate::config::load::{self, ProcessEnv};
use crate::coordinator::job_view::{CoordinatorJob, JobStatus};
use crate::error::{Failure, exit};
use crate::output;

/// Why a job is cancelled at a signal.
const INTERRUPTED: &str = "coda-host coordinate was interrupted";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host coordinate bell.qasm --shots 1000
  coda-host coordinate - < ghz.qasm
  coda-host coordinate bell.qasm --json | jq .result.counts

The circuit is OpenQASM 2 or 3. In a key of the histogram character i is the i-th measured qubit.
Ctrl-C cancels the job; a second one leaves it as it is.
Exit status: 1 when the job failed or was cancelled, 2 when the circuit is wrong, 4 when no coordinator answers.")]
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
    let client = CoordinatorClient::new(&settings.coordinator.url, settings.coordinator.api_token.as_ref())?;
    let runtime = kit::runtime()?;
    let result = runtime.block_on(async {
        let stop = CancellationToken::new();
        app::watch_signals(stop.clone());
        execute(&args, &qasm, &client, &env, &stop).await
    });
    runtime.shutdown_background();
    result
}

async fn execute(
    args: &Args,
    qasm: &str,
    client: &CoordinatorClient,
    env: &ProcessEnv,
    stop: &CancellationToken,
) -> Result<ExitCode, Failure> {
    let mut out = Terminal::new(env);
    // Not interrupted: a job that is accepted has to be cancelled by its id.
    let job_id = client.submit(&args.circuit.display().to_string(), qasm, args.shots).await?;
    if !args.json {
        out.line(&job_id)?;
    }
    let display = if args.json { JobDisplay::hidden() } else { JobDisplay::new(&mut out) };
    let job = tokio::select! {
        job = follow(client, &job_id, display) => job?,
        () = stop.cancelled() => cancel(client, &job_id).await?,
    };
    match args.json {
        true => out.line(&serde_json::json!(job).to_string())?,
        false => show_result(&mut out, &job, args.shots)?,
    }
    let is_completed = job.status == JobStatus::Completed;
    Ok(if is_completed { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILURE) })
}

/// Cancels the job, which may have ended just before; the job as it is then. A second signal ends the command at once.
async fn cancel(client: &CoordinatorClient, job_id: &str) -> Result<CoordinatorJob, Failure> {
    output::notice(format!("cancelling {job_id}; press Ctrl-C again to leave it as it is"));
    let not_cancelled = |failure: Failure| Failure {
        message: format!("the job {job_id} could not be cancelled and may go on: {}", failure.message),
        ..failure
    };
    client.cancel(job_id, INTERRUPTED).await.map_err(not_cancelled)?;
    client.job(job_id).await
}
