//! What every command needs: standard output, a runtime, stopping on a signal, and the failures that no stage has.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use crate::app;
use crate::error::{Explain, Failure, exit};
use crate::output;

/// Most worker threads of a runtime. More of them only wake each other up, because the host's own work is small.
const MAX_WORKERS: usize = 4;

/// Why a command failed for reasons of the process itself.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error("the output could not be written")]
    Output(#[source] io::Error),
    #[error("the manual pages could not be written into {}", dir.display())]
    ManualPages { dir: PathBuf, source: io::Error },
    #[error("the async runtime could not be started")]
    Runtime(#[source] io::Error),
    #[error("no temporary directory could be created")]
    TemporaryDirectory(#[source] io::Error),
    #[error("{task} ended unexpectedly")]
    TaskEnded { task: &'static str, source: JoinError },
    #[error("{effect}")]
    Interrupted { effect: &'static str },
    #[error("the worker process of the plugin failed")]
    Worker(#[source] io::Error),
    #[error("the program could not be run below this first process of a container")]
    Init(#[source] io::Error),
    #[error("stop signals can't be blocked")]
    BlockSignals(#[source] io::Error),
    #[error("the working directory can't be read")]
    WorkingDirectory(#[source] io::Error),
    #[error("{name} is not UTF-8 text")]
    NotText { name: String },
    #[error("CODA_LOG_FORMAT is '{value}', which is not a format of the log")]
    LogFormat { value: String },
    #[error("the account that {} belongs to can't be taken on", dir.display())]
    Owner { dir: PathBuf, source: io::Error },
    #[error("the secrets on standard input can't be read")]
    Secrets(#[source] serde_json::Error),
}

impl Explain for CliError {
    fn code(&self) -> &'static str {
        match self {
            CliError::Output(_) | CliError::ManualPages { .. } => "output",
            CliError::Runtime(_) => "runtime",
            CliError::Init(_) => "container-init",
            CliError::TemporaryDirectory(_) => "temporary-directory",
            CliError::TaskEnded { .. } => "host-ended",
            CliError::Interrupted { .. } => "interrupted",
            CliError::Worker(_) => "executor-worker",
            CliError::BlockSignals(_)
            | CliError::WorkingDirectory(_)
            | CliError::Secrets(_)
            | CliError::NotText { .. } => "process-env",
            CliError::LogFormat { .. } => "log-format",
            CliError::Owner { .. } => "state-dir-owner",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            CliError::Output(_) => "check where standard output goes, and the free space there".into(),
            CliError::ManualPages { dir, .. } => {
                format!("check the permissions of {} and the free space there", dir.display())
            }
            CliError::TemporaryDirectory(_) => "check TMPDIR and the free space there (df -h)".into(),
            CliError::Init(_) => {
                "check the limits on processes (ulimit -u), or start with an init (docker run --init)".into()
            }
            CliError::Runtime(_) => "check the limits on processes and open files (ulimit -a)".into(),
            CliError::TaskEnded { .. } | CliError::BlockSignals(_) => {
                "report this as a bug of coda-host".into()
            }
            CliError::Worker(_) => "see the log of the host that started it".into(),
            CliError::WorkingDirectory(_) => "change to a directory that exists and is readable".into(),
            CliError::Secrets(_) => "use `coda-host start --daemon`, which writes them itself".into(),
            CliError::NotText { .. } => {
                "give it a value in UTF-8; a file's path may be reached by a link with another name".into()
            }
            CliError::Owner { dir, .. } => {
                format!(
                    "run this as the owner of that directory: sudo -u \"$(stat -c %U {})\"",
                    dir.display()
                )
            }
            CliError::LogFormat { .. } => "set it to text or json, or unset it".into(),
            CliError::Interrupted { .. } => return None,
        })
    }

    fn exit(&self) -> u8 {
        match self {
            CliError::NotText { .. } | CliError::LogFormat { .. } => exit::CONFIG,
            _ => exit::FAILURE,
        }
    }
}

/// Writes a command's output to standard output. A reader that has seen enough (`| head`) is not an error.
///
/// # Errors
/// Standard output can't be written.
pub fn print(text: impl AsRef<[u8]>) -> Result<ExitCode, Failure> {
    output::print(text.as_ref());
    match output::take_print_error() {
        Some(error) => Err(CliError::Output(error).into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Writes a line about what a command did to standard output. That it can't be written does not stop the command: the
/// program reports it at the end, if nothing worse happened.
pub fn say(line: impl AsRef<str>) {
    output::print(format!("{}\n", line.as_ref()).as_bytes());
}

/// The device config of a flag, as the setting that it stands for.
///
/// # Errors
/// The path is not text. A setting is, and half a path would name another file.
pub fn device_flag(path: &Path) -> Result<(&'static str, String), CliError> {
    let text =
        path.to_str().ok_or_else(|| CliError::NotText { name: format!("--device {}", path.display()) })?;
    Ok(("CODA_DEVICE_CONFIG", text.into()))
}

/// Starts a runtime for a command.
///
/// # Errors
/// The threads can't be started.
pub fn runtime() -> Result<Runtime, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(cores.min(MAX_WORKERS));
    Ok(builder.enable_all().build().map_err(CliError::Runtime)?)
}

/// Runs a command's work to its end, or until a stop signal. `effect` tells the operator what the signal ended and
/// what goes on.
///
/// # Errors
/// The work fails, or a stop signal came first.
pub async fn until_signal<T>(
    work: impl Future<Output = Result<T, Failure>>,
    effect: &'static str,
) -> Result<T, Failure> {
    let stop = CancellationToken::new();
    app::watch_signals(stop.clone());
    tokio::select! {
        done = work => done,
        () = stop.cancelled() => Err(CliError::Interrupted { effect }.into()),
    }
}
