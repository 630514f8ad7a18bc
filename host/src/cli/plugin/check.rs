//! `coda-host plugin check`: runs every case in a child process, and reports as lines, JSON or JUnit.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use rand::Rng as _;

use crate::app::{self, Prepared};
use crate::check::{self, CASES, Case, CheckOptions, PythonCheck, report, runner};
use crate::cli::kit;
use crate::cli::terminal::Terminal;
use crate::config::load::ProcessEnv;
use crate::error::{Explain, Failure, exit};
use crate::executor::elf;
use crate::executor::locate::{DEFAULT_ENTRY, Located};
use crate::output;
use crate::sys::Dispositions;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host plugin check ./libacme.so --device site/device.yaml
  coda-host plugin check --device site/device.yaml                                         the executor that it names
  coda-host plugin check ./libacme.so --device site/device.yaml --tolerance 0.1 --quick    real hardware
  coda-host plugin check ./libacme.so --only cancel --only batch
  coda-host plugin check ./libacme.so --junit results.xml                                  in CI

Exit status:
  0 every case passed or was skipped   1 a case failed   2 nothing could be checked")]
pub struct Args {
    /// The library; without one the executor of the device config, which may be Python code
    #[arg(value_name = "FILE.so", value_hint = clap::ValueHint::FilePath, required_unless_present_any = ["list", "device"])]
    file: Option<PathBuf>,
    /// The device config to check it with
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    device: Option<PathBuf>,
    /// The interpreter of Python code, or its virtual environment (CODA_EXECUTOR_PYTHON)
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    python: Option<String>,
    /// List the cases and what each is about
    #[arg(long)]
    list: bool,
    /// Run only the cases whose name begins so (may be given several times)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Use fewer circuits and shots, for devices on which a run is expensive
    #[arg(long)]
    quick: bool,
    /// Tolerated distance in total variation between counts and exact probabilities, in addition to the statistical
    /// error: 0 for exact simulators, the effect of the error rates for a real device
    #[arg(long, value_name = "DISTANCE", default_value_t = 0.0)]
    tolerance: f64,
    /// Seed of the random circuits; drawn and printed when not given
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How long one case may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    time_limit: u64,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Write the results to this file in JUnit format, for CI systems
    #[arg(long, value_name = "FILE.xml", value_hint = clap::ValueHint::FilePath)]
    junit: Option<PathBuf>,
}

/// The arguments of a child process.
#[derive(Debug, clap::Args)]
pub struct CaseArgs {
    case: String,
    order: PathBuf,
    answer: PathBuf,
}

/// Why nothing could be checked.
#[derive(Debug, thiserror::Error)]
pub enum PluginCheckError {
    #[error("no case is named '{only}'")]
    NoCase { only: String, known: String },
    #[error("--tolerance is {0}, expected 0 to 1")]
    Tolerance(f64),
    #[error("no temporary directory could be created")]
    TemporaryDirectory(#[source] io::Error),
    #[error("no process could be started for a case")]
    Spawn(#[source] io::Error),
    #[error("the report {} can't be written", path.display())]
    Report { path: PathBuf, source: io::Error },
    #[error("the library {} can't be read", path.display())]
    Library { path: PathBuf, source: io::Error },
    #[error("this command is for `plugin check` itself: {reason}")]
    CaseProcess { reason: String },
}

impl Explain for PluginCheckError {
    fn code(&self) -> &'static str {
        "plugin-check"
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            PluginCheckError::NoCase { known, .. } => format!("choose among the cases: {known}"),
            PluginCheckError::Tolerance(_) => "give a distance such as 0.1".into(),
            PluginCheckError::TemporaryDirectory(_) => "check TMPDIR and the free space there (df -h)".into(),
            PluginCheckError::Spawn(_) => "check the limits on processes and open files (ulimit -a)".into(),
            PluginCheckError::Report { .. } => "give --junit a file in a directory that is writable".into(),
            PluginCheckError::Library { .. } => "give the path of the plugin's library".into(),
            PluginCheckError::CaseProcess { .. } => "run `coda-host plugin check` instead".into(),
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

pub fn run(args: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let mut out = Terminal::new(env);
    if args.list {
        for case in CASES {
            out.line(&format!("{:<22}{}", case.name, case.about))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let chosen: Vec<&Case> = CASES
        .iter()
        .filter(|c| args.only.is_empty() || args.only.iter().any(|name| c.name.starts_with(name.as_str())))
        .collect();
    if chosen.is_empty() {
        let known: Vec<&str> = CASES.iter().map(|c| c.name).collect();
        let only = args.only.join("' or '");
        return Err(PluginCheckError::NoCase { only, known: known.join(", ") }.into());
    }
    if !(0.0..1.0).contains(&args.tolerance) {
        return Err(PluginCheckError::Tolerance(args.tolerance).into());
    }
    let scratch = tempfile::tempdir().map_err(PluginCheckError::TemporaryDirectory)?;
    let options = options(&args, env, scratch.path())?;
    let program = std::env::current_exe().map_err(PluginCheckError::Spawn)?;
    if !args.json {
        out.line(&format!("checking {} (seed {})", options.library.display(), options.seed))?;
    }
    let mut results = Vec::new();
    for case in chosen {
        let bar = match output::notices_to_terminal() {
            true => ProgressBar::new_spinner().with_message(case.name),
            false => ProgressBar::hidden(),
        };
        let result = match results.iter().find_map(runner::CaseResult::is_the_end) {
            Some(why) => runner::CaseResult::not_run(case, why),
            None => {
                runner::run(case, &options, &program, &mut || bar.tick()).map_err(PluginCheckError::Spawn)?
            }
        };
        bar.finish_and_clear();
        if !args.json {
            out.line(&report::line(&result))?;
        }
        results.push(result);
    }
    if let Some(path) = &args.junit {
        std::fs::write(path, report::junit(&results, &options))
            .map_err(|source| PluginCheckError::Report { path: path.clone(), source })?;
    }
    match args.json {
        true => out.line(&report::json(&results, &options).to_string())?,
        false => out.line(&report::summary(&results, &options))?,
    }
    let failed = results.iter().any(runner::CaseResult::is_failure);
    Ok(if failed { ExitCode::from(exit::FAILURE) } else { ExitCode::SUCCESS })
}

fn options(args: &Args, env: &ProcessEnv, scratch: &Path) -> Result<CheckOptions, Failure> {
    let mut flags: HashMap<_, _> = args.python.iter().map(|p| ("CODA_EXECUTOR_PYTHON", p.clone())).collect();
    if let Some(device) = &args.device {
        flags.extend([kit::device_flag(device)?]);
    }
    let prepared = app::prepare(env, flags)?;
    let subject = match &args.file {
        Some(file) => named_library(&env.cwd.join(file), &prepared)?,
        None => configured(&prepared, env)?,
    };
    Ok(CheckOptions {
        library: subject.name,
        entry: subject.entry,
        python: subject.python,
        config_path: prepared.device.path.unwrap_or_default(),
        config_text: prepared.device.text,
        native_gate_set: prepared.settings.identity.native_gate_set,
        num_qubits: prepared.settings.identity.num_qubits,
        state_dir: scratch.to_path_buf(),
        quick: args.quick,
        tolerance: args.tolerance,
        seed: args.seed.unwrap_or_else(|| rand::rng().random_range(1..1_000_000)),
        time_limit: Duration::from_secs(args.time_limit),
    })
}

/// What is checked: a library with its entry, or Python code.
struct Subject {
    name: PathBuf,
    entry: String,
    python: Option<PythonCheck>,
}

fn named_library(file: &Path, prepared: &Prepared) -> Result<Subject, Failure> {
    let unreadable = |source| PluginCheckError::Library { path: file.to_path_buf(), source };
    let name = file.canonicalize().map_err(unreadable)?;
    let named = prepared.device.executor_factory.as_deref().and_then(|f| f.rsplit_once(':'));
    // A file that is not a plugin has no entries; the case about the descriptor reports why.
    let entries = elf::inspect(&name).map(|found| found.descriptor.entries).unwrap_or_default();
    let usual = || match entries.iter().any(|e| e == DEFAULT_ENTRY) {
        true => DEFAULT_ENTRY.to_string(),
        false => entries.first().cloned().unwrap_or_else(|| DEFAULT_ENTRY.into()),
    };
    let entry = named.map_or_else(usual, |(_, entry)| entry.to_string());
    Ok(Subject { name, entry, python: None })
}

/// The executor that the device config or the environment names.
fn configured(prepared: &Prepared, env: &ProcessEnv) -> Result<Subject, Failure> {
    let settings = &prepared.settings;
    let python = match app::locate_plugin(settings, &prepared.device, env)? {
        Located::Library(library) => {
            return Ok(Subject { name: library.path, entry: library.entry, python: None });
        }
        Located::Python(python) => python,
    };
    let dispositions = Arc::new(Dispositions::capture());
    let located = Located::Python(python.clone());
    let request = app::executor_request(settings, &prepared.device, located, dispositions)?;
    Ok(Subject {
        name: request.subject(),
        entry: String::new(),
        python: Some(PythonCheck {
            factory: python.factory,
            interpreter: python.interpreter,
            request: request.python,
            user: settings.executor.user.clone(),
            capabilities: settings.executor.capabilities.clone(),
        }),
    })
}

/// Runs one case in the child process, by the order in a file, and writes the verdict into another file.
pub fn run_case(args: &CaseArgs) -> Result<ExitCode, Failure> {
    let unusable = |reason: String| PluginCheckError::CaseProcess { reason };
    let case = check::case(&args.case).ok_or_else(|| unusable(format!("no case '{}'", args.case)))?;
    let order = std::fs::read(&args.order).map_err(|e| unusable(e.to_string()))?;
    let options: CheckOptions = serde_json::from_slice(&order).map_err(|e| unusable(e.to_string()))?;
    let verdict = check::run_here(case, &options);
    let answer = serde_json::to_vec(&verdict).map_err(|e| unusable(e.to_string()))?;
    std::fs::write(&args.answer, answer).map_err(|e| unusable(e.to_string()))?;
    Ok(ExitCode::SUCCESS)
}
