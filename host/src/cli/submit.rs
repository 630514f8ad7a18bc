//! `coda-host submit`: sends a circuit to a running `coda-host dev` and follows the job.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;

use super::circuit_file::{self, CircuitFileError};
use super::dev_session::{self, DevSession};
use super::follow_job::{CancelPlan, cancel_all, error_line, follow, show_outcome, since};
use super::terminal::Terminal;
use super::{histogram, kit};
use crate::config::load::ProcessEnv;
use crate::dev::client::{DevClient, DevJob};
use crate::error::{Explain, Failure, exit};

/// Limit of the request that finds out whether a dev answers.
const ASK_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host submit bell.json --wait                       one job, its states and its histogram
  coda-host submit bell.json --shots 5000 --count 100 --wait
  coda-host submit long.json --wait --cancel-after 500    cancelled after half a second
  coda-host submit broken.json --no-check --wait          how the host refuses a bad circuit
  coda-host submit bell.json --wait --json | jq .webhook.counts

Exit status: 1 when a job failed, or was cancelled without --cancel-after.")]
pub struct Args {
    /// NativeGateIR as JSON; - for standard input
    #[arg(value_name = "CIRCUIT.json", value_hint = clap::ValueHint::FilePath)]
    circuit: PathBuf,
    /// How often to run the circuit
    #[arg(short, long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    shots: u32,
    /// Follow the job until its result has been delivered
    #[arg(short, long)]
    wait: bool,
    /// Print JSON, one line for each job
    #[arg(long)]
    json: bool,
    /// Number of jobs to send
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Cancel jobs that have not ended after this many milliseconds
    #[arg(long, value_name = "MS")]
    cancel_after: Option<u64>,
    /// Send the circuit as it is, without checking it first
    #[arg(long)]
    no_check: bool,
    /// Cloud URL of the sandbox, as coda-host dev prints it [default: that of this user's sandbox]
    #[arg(long, value_name = "URL", value_hint = clap::ValueHint::Url)]
    dev_url: Option<String>,
}

/// Why no running `coda-host dev` was found.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    #[error("no 'coda-host dev' is running: there is no session file {}", path.display())]
    NoSession { path: PathBuf },
    #[error("no 'coda-host dev' is running: {} names process {pid} at {url}, which doesn't answer", path.display())]
    Silent { path: PathBuf, pid: u32, url: String },
}

impl Explain for DiscoveryError {
    fn code(&self) -> &'static str {
        "dev-not-running"
    }

    fn hint(&self) -> Option<String> {
        Some(
            "start one in another terminal: coda-host dev --device site/device.yaml; or give --dev-url"
                .into(),
        )
    }

    fn exit(&self) -> u8 {
        exit::CLOUD
    }
}

pub fn run(args: Args, env: ProcessEnv) -> Result<ExitCode, Failure> {
    let json = circuit_file::read(&args.circuit)?;
    if !args.no_check {
        circuit_file::parse(&args.circuit, &json)?;
    }
    let circuit = String::from_utf8(json)
        .map_err(|_| CircuitFileError::new(&args.circuit, "it isn't UTF-8, which a job's JSON must be"))?;
    let runtime = kit::runtime()?;
    let work = execute(&args, &circuit, &env);
    let result = runtime.block_on(kit::until_signal(work, "no longer waiting; jobs that were sent go on"));
    runtime.shutdown_background();
    result
}

async fn execute(args: &Args, circuit: &str, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let client = match &args.dev_url {
        Some(url) => DevClient::new(url)?,
        None => discover(env).await?,
    };
    let mut out = Terminal::new(env);
    let mut ids = Vec::new();
    for _ in 0..args.count {
        let id = client.submit(circuit, args.shots).await?;
        match (args.json, args.wait) {
            (true, true) => {}
            (true, false) => out.line(&serde_json::json!({ "job_id": id }).to_string())?,
            (false, _) if args.wait && args.count > 1 => {}
            (false, _) => out.line(&id)?,
        }
        ids.push(id);
    }
    let mut cancel = args.cancel_after.map(|ms| Instant::now() + Duration::from_millis(ms));
    if !args.wait {
        if let Some(at) = cancel {
            tokio::time::sleep_until(at).await;
            cancel_all(&client, &ids).await?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut total = Total::default();
    for (n, id) in ids.iter().enumerate() {
        let steps = args.count == 1 && !args.json;
        let plan = CancelPlan { at: &mut cancel, ids: &ids[n..] };
        let view = follow(&client, id, plan, |step, queued| match steps {
            true => out.line(&format!("  {}", out.step(&step.state, since(step, queued)))),
            false => Ok(()),
        })
        .await?;
        if args.json {
            out.line(&serde_json::json!(view).to_string())?;
        } else if args.count == 1 {
            show_outcome(&mut out, &view)?;
        } else {
            out.line(&job_line(&out, &view))?;
        }
        total.add(view);
    }
    if args.count > 1 && !args.json {
        total.show(&mut out)?;
    }
    let wanted = args.cancel_after.is_some();
    let fine = total.failed == 0 && (wanted || total.cancelled == 0);
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILURE) })
}

/// Finds the running dev of this user.
async fn discover(env: &ProcessEnv) -> Result<DevClient, Failure> {
    let path = dev_session::path(env)?;
    let Some(session) = DevSession::read(&path)? else {
        return Err(DiscoveryError::NoSession { path }.into());
    };
    let client = DevClient::new(&session.url)?;
    if !session.process_lives() || !client.answers(ASK_LIMIT).await {
        return Err(DiscoveryError::Silent { path, pid: session.pid, url: session.url }.into());
    }
    Ok(client)
}

/// All states of a job in one line.
fn job_line(out: &Terminal, view: &DevJob) -> String {
    let mut line = format!("{} ", view.job_id);
    if let Some(queued) = view.states.first() {
        for step in &view.states[1..] {
            line += &format!(" {}", out.step(&step.state, since(step, queued)));
        }
    }
    line + &error_line(view).map_or(String::new(), |e| format!("  {e}"))
}

/// The sum of several jobs.
#[derive(Default)]
struct Total {
    completed: usize,
    failed: usize,
    cancelled: usize,
    counts: std::collections::BTreeMap<String, i64>,
}

impl Total {
    fn add(&mut self, view: DevJob) {
        // The delivered result decides, because the status may be late.
        match view.counts() {
            Some(counts) => {
                self.completed += 1;
                for (key, n) in counts {
                    *self.counts.entry(key).or_insert(0) += n;
                }
            }
            None if view.has("cancelled") => self.cancelled += 1,
            None => self.failed += 1,
        }
    }

    fn show(&self, out: &mut Terminal) -> Result<(), Failure> {
        let counts: Vec<(String, i64)> = self.counts.iter().map(|(k, n)| (k.clone(), *n)).collect();
        if !counts.is_empty() {
            out.text(&histogram::render(&counts))?;
        }
        let (c, f, x) = (self.completed, self.failed, self.cancelled);
        out.line(&format!("  {c} completed, {f} failed, {x} cancelled"))
    }
}
