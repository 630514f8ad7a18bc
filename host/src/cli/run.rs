//! `coda-host run`: runs one circuit directly in the plugin and converts its answer as that of a job.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use coda_plugin_abi::Program;
use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::sync::CancellationToken;

use super::terminal::Terminal;
use super::{circuit_file, histogram, kit};
use crate::app;
use crate::config::load::ProcessEnv;
use crate::error::{Explain, Failure, exit};
use crate::executor::{Executor, Generation, RunJob, SlotReport};
use crate::jobs::message::fits;
use crate::output;
use crate::results::outcome::{Counts, ShotRule, judge};
use crate::sys::Dispositions;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host run bell.json --device site/device.yaml --shots 1000
  coda-host run bell.json --device site/device.yaml --json | jq .counts
  cat bell.json | coda-host run - --device site/device.yaml")]
pub struct Args {
    /// NativeGateIR as JSON; - for standard input
    #[arg(value_name = "CIRCUIT.json", value_hint = clap::ValueHint::FilePath)]
    circuit: PathBuf,
    /// The device config (CODA_DEVICE_CONFIG; ./site/device.yaml when it exists)
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    device: Option<PathBuf>,
    /// The interpreter of Python code, or its virtual environment (CODA_EXECUTOR_PYTHON)
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    python: Option<String>,
    /// How often to run the circuit
    #[arg(short, long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    shots: u32,
    /// Print the result as JSON, in the form of a webhook's body
    #[arg(long)]
    json: bool,
}

/// A run that gave no result.
#[derive(Debug, thiserror::Error)]
#[error("the run failed: {reason}")]
pub struct RunError {
    pub reason: String,
}

impl Explain for RunError {
    fn code(&self) -> &'static str {
        "run-failed"
    }
}

pub fn run(args: Args, env: ProcessEnv) -> Result<ExitCode, Failure> {
    let program = circuit_file::parse(&args.circuit, &circuit_file::read(&args.circuit)?)?;
    let mut flags: HashMap<_, _> = args.python.iter().map(|p| ("CODA_EXECUTOR_PYTHON", p.clone())).collect();
    if let Some(device) = &args.device {
        flags.extend([kit::device_flag(device)?]);
    }
    let runtime = kit::runtime()?;
    let result = runtime.block_on(execute(&args, program, env, flags));
    runtime.shutdown_background();
    result
}

async fn execute(
    args: &Args,
    program: Program,
    env: ProcessEnv,
    flags: HashMap<&'static str, String>,
) -> Result<ExitCode, Failure> {
    let dispositions = Arc::new(Dispositions::capture());
    let stop = CancellationToken::new();
    app::watch_signals(stop.clone());
    let prepared = app::prepare(&env, flags)?;
    let located = app::locate_plugin(&prepared.settings, &prepared.device, &env)?;
    let starting = app::start_executor(&prepared.settings, &prepared.device, located, dispositions);
    let (executor, done) = tokio::select! {
        started = starting => started?,
        () = stop.cancelled() => return Ok(ExitCode::from(exit::FAILURE)),
    };
    let judged = match fits(&program, args.shots, &executor.active_plugin().device) {
        Ok(()) => one_run(&executor, done, program, args, stop).await,
        Err(why) => Err(why),
    };
    executor.shutdown(prepared.settings.executor.control_timeout).await;
    let mut out = Terminal::new(&env);
    match judged {
        Ok(counts) if args.json => {
            let body = crate::results::outcome::conclude("run", Ok(counts)).body;
            out.line(&String::from_utf8_lossy(&body))?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(counts) => {
            out.text(&histogram::render(&counts.counts))?;
            let ms =
                counts.execution_time_ms.map_or(String::new(), |ms| format!(", {ms:.3} ms on the device"));
            let shots: i64 = counts.counts.iter().map(|(_, n)| n).sum();
            out.line(&format!("{shots} shots{ms}"))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(reason) => Err(RunError { reason }.into()),
    }
}

async fn one_run(
    executor: &Executor,
    mut done: tokio::sync::mpsc::UnboundedReceiver<SlotReport>,
    program: Program,
    args: &Args,
    stop: CancellationToken,
) -> Result<Counts, String> {
    let measured = program.measurements().len();
    let context = Arc::new(executor.context("run".into()));
    let job = RunJob {
        ticket: 0,
        message_id: None,
        job_id: "run".into(),
        program: Arc::new(program),
        attempt: 1,
        shots: args.shots,
        context: context.clone(),
    };
    executor.submit(Generation::default(), vec![job]);
    let bar = progress_bar();
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            answer = done.recv() => match answer {
                Some(SlotReport::Answered { answer, .. }) => {
                    bar.finish_and_clear();
                    let is_python = executor.active_plugin().info.may_lose_shots();
                    let rule = if is_python { ShotRule::AtMost } else { ShotRule::Exact };
                    return judge(answer, measured, args.shots, rule);
                }
                Some(SlotReport::Started { .. } | SlotReport::DeviceChanged { .. }) => {}
                None => return Err("the executor's thread ended".into()),
            },
            _ = tick.tick() => {
                let (reached, total) = context.progress();
                bar.set_length(total.max(1));
                bar.set_position(reached);
                if executor.status().stuck_run().is_some() {
                    bar.finish_and_clear();
                    return Err("the run does not end, although it was asked to; the plugin is left as it is".into());
                }
            }
            () = stop.cancelled(), if !context.is_cancelled() => {
                context.set_cancelled();
                executor.cancel(0);
            }
        }
    }
}

/// The progress of the run; hidden where stderr is not a terminal.
fn progress_bar() -> ProgressBar {
    if !output::notices_to_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("running {bar:40} {percent:>3}% {elapsed_precise}") {
        bar.set_style(style);
    }
    bar
}
