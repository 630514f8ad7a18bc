//! `coda-host submit`: sends a circuit to a running `coda-host dev`, and follows its way.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::dev_session::{self, DevSession};
use super::histogram;
use super::run::{parse, read, unusable};
use super::terminal::{Terminal, one_line};
use crate::app;
use crate::config::load::ProcessEnv;
use crate::dev::client::{DevClient, DevJob, JobStep};
use crate::error::{Failure, exit};

/// One request's wait for news.
const WAIT: Duration = Duration::from_secs(20);
/// For the question whether a dev is there at all.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// A webhook may be seen before the status that precedes it; how long and how often to look again.
const LAG: Duration = Duration::from_millis(20);
const LAG_LOOKS: u32 = 50;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host submit bell.json --wait                       one job, its way and its histogram
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
    /// JSON for machines, a line for each job
    #[arg(long)]
    json: bool,
    /// Send the circuit so many times
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Cancel after so many milliseconds whatever isn't over by then
    #[arg(long, value_name = "MS")]
    cancel_after: Option<u64>,
    /// Send the circuit as it is, without checking it first
    #[arg(long)]
    no_check: bool,
    /// The cloud URL that coda-host dev printed, when it isn't the one found by itself
    #[arg(long, value_name = "URL", value_hint = clap::ValueHint::Url)]
    dev_url: Option<String>,
}

pub fn run(args: Args, env: ProcessEnv) -> Result<ExitCode, Failure> {
    let json = read(&args.circuit)?;
    if !args.no_check {
        parse(&args.circuit, &json)?;
    }
    let circuit = String::from_utf8(json)
        .map_err(|_| unusable(&args.circuit, "it isn't UTF-8, which a job's JSON must be"))?;
    let runtime = super::runtime()?;
    let result = runtime.block_on(async {
        let stop = CancellationToken::new();
        app::watch_signals(stop.clone());
        tokio::select! {
            done = execute(&args, &circuit, &env) => done,
            () = stop.cancelled() => Err(Failure {
                code: "interrupted",
                message: "no longer waiting; jobs that were sent go on".into(),
                causes: Vec::new(),
                hint: None,
                exit: exit::FAILURE,
            }),
        }
    });
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
        let view = follow(&client, id, (&mut cancel, &ids[n..]), |step, queued| match steps {
            true => out.line(&format!("  {}", out.step(&step.state, since(step, queued)))),
            false => Ok(()),
        })
        .await?;
        if args.json {
            out.line(&serde_json::json!(view).to_string())?;
        } else if args.count == 1 {
            conclude(&mut out, &view)?;
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
    let absent = |message: String| Failure {
        code: "dev-not-running",
        message,
        causes: Vec::new(),
        hint: Some(
            "start one in another terminal: coda-host dev --device site/device.yaml; or give --dev-url"
                .into(),
        ),
        exit: exit::CLOUD,
    };
    let Some(session) = DevSession::read(&path)? else {
        return Err(absent(format!(
            "no 'coda-host dev' is running: there is no session file {}",
            path.display()
        )));
    };
    let client = DevClient::new(&session.url)?;
    if !session.process_lives() || !client.answers(ASK_LIMIT).await {
        return Err(absent(format!(
            "no 'coda-host dev' is running: {} names process {} at {}, which doesn't answer",
            path.display(),
            session.pid,
            session.url
        )));
    }
    Ok(client)
}

/// Follows a job to its end, telling each new step and the first one. `cancel` holds when to cancel, and what.
///
/// # Errors
/// When the cloud can't be asked, or `tell` fails.
pub async fn follow(
    client: &DevClient,
    id: &str,
    cancel: (&mut Option<Instant>, &[String]),
    mut tell: impl FnMut(&JobStep, &JobStep) -> Result<(), Failure>,
) -> Result<DevJob, Failure> {
    let (cancel_at, ids) = cancel;
    let (mut told, mut looks) = (0, 0);
    // The newest look, when only the status is still missing.
    let mut over: Option<DevJob> = None;
    loop {
        let wait = cancel_at.map_or(WAIT, |at| at.saturating_duration_since(Instant::now()).min(WAIT));
        let view = match (client.job(id, told, wait).await, over.take()) {
            // A dev that ends doesn't take back what was delivered.
            (Err(_), Some(known)) => {
                looks = LAG_LOOKS;
                known
            }
            (view, _) => view?,
        };
        if view.over && !view.ended() && looks < LAG_LOOKS {
            looks += 1;
            over = Some(view);
            tokio::time::sleep(LAG).await;
            continue;
        }
        if let Some(queued) = view.states.first() {
            for step in view.states.get(told..).unwrap_or_default() {
                tell(step, queued)?;
            }
        }
        told = told.max(view.states.len());
        if view.over {
            return Ok(view);
        }
        if cancel_at.take_if(|at| *at <= Instant::now()).is_some() {
            cancel_all(client, ids).await?;
        }
    }
}

async fn cancel_all(client: &DevClient, ids: &[String]) -> Result<(), Failure> {
    for id in ids {
        client.cancel(id).await?;
    }
    Ok(())
}

/// The time between the first step and this one.
pub fn since(step: &JobStep, queued: &JobStep) -> Option<time::Duration> {
    Some((step.time()? - queued.time()?).max(time::Duration::ZERO))
}

/// What came of a job.
pub fn conclude(out: &mut Terminal, view: &DevJob) -> Result<(), Failure> {
    if let Some(counts) = view.counts() {
        let shots: i64 = counts.iter().map(|(_, n)| n).sum();
        let on_device = view.webhook["execution_time_ms"].as_f64();
        let on_device = on_device.map_or(String::new(), |ms| format!(", {ms:.3} ms on the device"));
        out.text(&histogram::render(&counts))?;
        return out.line(&format!("  {shots} shots{on_device}"));
    }
    match error(view) {
        Some(error) => out.line(&format!("  {error}")),
        None => Ok(()),
    }
}

/// Why a job failed.
pub fn error(view: &DevJob) -> Option<String> {
    let text = view.webhook["error"].as_str().or(view.error.as_deref().filter(|_| view.has("failed")))?;
    Some(one_line(text))
}

/// A job's whole way in one line.
fn job_line(out: &Terminal, view: &DevJob) -> String {
    let mut line = format!("{} ", view.job_id);
    if let Some(queued) = view.states.first() {
        for step in &view.states[1..] {
            line += &format!(" {}", out.step(&step.state, since(step, queued)));
        }
    }
    line + &error(view).map_or(String::new(), |e| format!("  {e}"))
}

/// Several jobs summed up.
#[derive(Default)]
struct Total {
    completed: usize,
    failed: usize,
    cancelled: usize,
    counts: std::collections::BTreeMap<String, i64>,
}

impl Total {
    fn add(&mut self, view: DevJob) {
        // What was delivered counts; the status may be late.
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
