//! `coda-host coordinate`: sends a circuit to a running coordinator, and follows it block by block. A signal cancels the
//! job.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use tokio_util::sync::CancellationToken;

use super::coordinator_client::{CoordinatorClient, follow, show_result, wrong_circuit};
use super::job_display::JobDisplay;
use super::terminal::Terminal;
use super::{circuit_file, kit, measures};
use crate::app;
use crate::config::load::{self, ProcessEnv};
use crate::coordinator::job_view::{CoordinatorJob, JobStatus};
use crate::error::{Failure, exit};
use crate::model::cut;
use crate::output;
use crate::reservation::job_options::{BitOrder, JobOptions, ResultKind, default_results};

/// Why a job is cancelled at a signal.
const INTERRUPTED: &str = "coda-host coordinate was interrupted";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host coordinate bell.qasm --shots 1000
  coda-host coordinate - < ghz.qasm
  coda-host coordinate bell.qasm --json | jq .result.counts
  coda-host coordinate ansatz.qasm --input theta=0.5 --observable ZZ --observable X_q0
  coda-host coordinate bell.qasm --results bloch_vectors,entanglement_entropy

The circuit is OpenQASM 2 or 3. In a key of the histogram character i is the i-th measured bit, in
the order of the circuit's classical registers. Letter i of an observable stands for qubit i.
Ctrl-C cancels the job; a second one leaves it as it is.
Exit status: 1 when the job failed or was cancelled, 2 when the circuit is wrong, 4 when no
coordinator answers.")]
pub struct Args {
    /// OpenQASM 2 or 3; - for standard input
    #[arg(value_name = "CIRCUIT.qasm", value_hint = clap::ValueHint::FilePath)]
    circuit: PathBuf,
    /// How often the final state is sampled
    #[arg(short, long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    shots: u32,
    /// The value of an `input` of the circuit; angles in radians
    #[arg(long = "input", value_name = "NAME=NUMBER", value_parser = input)]
    inputs: Vec<(String, f64)>,
    /// What to show besides the counts, separated by commas; the state is that of up to 12 qubits
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_enum)]
    results: Vec<ShownResult>,
    /// A Pauli string whose expectation value is shown: XIZ, where letter i stands for qubit i, or XZ_q0_q2
    #[arg(long = "observable", value_name = "PAULIS")]
    observables: Vec<String>,
    /// The order of characters in keys: by the classical bits, or as existing coordinators write them
    #[arg(long, value_name = "ORDER", value_enum, default_value_t = KeyOrder::Classical)]
    bit_order: KeyOrder,
    /// Compare the final state with a local simulation; the job fails if it is another
    #[arg(long)]
    verify: bool,
    /// How many peers must agree about the state behind each block: 1 or 2
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    redundancy: u8,
    /// The coordinator (CODA_COORDINATOR_URL, http://127.0.0.1:8090); its token is CODA_API_TOKEN
    #[arg(long, value_name = "URL", value_hint = clap::ValueHint::Url)]
    url: Option<String>,
    /// The whole job as JSON, for machines
    #[arg(long)]
    json: bool,
}

/// A part of a result that can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum ShownResult {
    Probabilities,
    State,
    BlochVectors,
    EntanglementEntropy,
}

impl ShownResult {
    fn kind(self) -> ResultKind {
        match self {
            ShownResult::Probabilities => ResultKind::Probabilities,
            ShownResult::State => ResultKind::State,
            ShownResult::BlochVectors => ResultKind::BlochVectors,
            ShownResult::EntanglementEntropy => ResultKind::EntanglementEntropy,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum KeyOrder {
    Classical,
    Reference,
}

/// `name=number`
fn input(text: &str) -> Result<(String, f64), String> {
    let (name, number) =
        text.split_once('=').ok_or("give the name of the input and its value, as in theta=0.5")?;
    let value = number.trim().parse::<f64>().ok().filter(|value| value.is_finite());
    let value = value.ok_or_else(|| format!("'{}' is not a number", cut(number, 40)))?;
    Ok((name.trim().into(), value))
}

impl Args {
    fn options(&self) -> JobOptions {
        let results = self.results.iter().map(|shown| shown.kind()).chain([ResultKind::Counts]).collect();
        let bit_order = match self.bit_order {
            KeyOrder::Classical => BitOrder::Classical,
            KeyOrder::Reference => BitOrder::Reference,
        };
        JobOptions {
            inputs: self.inputs.iter().cloned().collect(),
            // What is not shown is still in the JSON.
            results: if self.results.is_empty() { default_results() } else { results },
            observables: self.observables.clone(),
            bit_order,
            verify: self.verify,
            redundancy: self.redundancy,
        }
    }
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
    let file = args.circuit.display().to_string();
    let job_id = client.submit(&file, qasm, args.shots, &args.options()).await?;
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
        false => {
            show_result(&mut out, &job, args.shots)?;
            if let Some(result) = &job.result {
                let shown: Vec<ResultKind> = args.results.iter().map(|shown| shown.kind()).collect();
                out.text(&measures::render(result, &shown))?;
            }
        }
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
