//! The binary: parses the command line, runs the command, prints its error with the hint, and exits.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use clap::Parser as _;
use coda_host::cli::daemonize::SECRETS_VARIABLE;
use coda_host::cli::kit::CliError;
use coda_host::cli::{self, Cli};
use coda_host::config::load::ProcessEnv;
use coda_host::config::source::SECRET_VARIABLES;
use coda_host::daemon::notify;
use coda_host::error::{Failure, exit};
use coda_host::model::iso_time;
use coda_host::output;
use coda_host::sys;
use coda_host::telemetry::LogFormat;

fn main() -> ExitCode {
    if sys::is_init() {
        return match sys::run_as_init() {
            Ok(code) => code,
            Err(error) => show(&CliError::Init(error).into(), LogFormat::Text),
        };
    }
    sys::outlive_file_size_limit();
    let env = match process_env() {
        Ok(env) => env,
        Err(failure) => return show(&failure, LogFormat::Text),
    };
    // One provider for every TLS connection; an error means that it is installed already.
    rustls::crypto::ring::default_provider().install_default().ok();
    let cli = match Cli::try_parse().and_then(Cli::with_flags_in_place) {
        Ok(cli) => cli,
        Err(usage) => return show_usage(&usage),
    };
    // A library under a plugin may allocate much and often: its process has the C library's own ways.
    if !cli.is_plugin_process() {
        sys::keep_heap_small();
    }
    // A wrong one is told by the command.
    let format = cli.log_format(&env).unwrap_or(LogFormat::Text);
    sys::allow_exit_guard(exit::PLUGIN);
    let code = match cli::run(cli, env) {
        Ok(code) => code,
        Err(failure) => show(&failure, format),
    };
    let code = match output::take_print_error() {
        // A worse end has been told already.
        Some(error) if code == ExitCode::SUCCESS => show(&CliError::Output(error).into(), format),
        _ => code,
    };
    sys::expect_exit(code)
}

/// Prints what clap has to say: the help, the version, or what is wrong with the arguments.
fn show_usage(usage: &clap::Error) -> ExitCode {
    let code = u8::try_from(usage.exit_code()).unwrap_or(exit::CONFIG);
    match usage.print() {
        Err(e) if !usage.use_stderr() && e.kind() != io::ErrorKind::BrokenPipe => {
            show(&CliError::Output(e).into(), LogFormat::Text)
        }
        Ok(()) | Err(_) => ExitCode::from(code),
    }
}

/// Prints a failure for a person, or as a JSON line where the log has that format.
fn show(failure: &Failure, format: LogFormat) -> ExitCode {
    match format {
        LogFormat::Text => output::notice(failure.render()),
        LogFormat::Json => output::notice(json_line(failure).to_string()),
    }
    ExitCode::from(failure.exit)
}

fn json_line(failure: &Failure) -> serde_json::Value {
    serde_json::json!({
        "timestamp": iso_time(time::OffsetDateTime::now_utc()), "level": "ERROR", "message": failure.line(),
        "code": failure.code, "hint": failure.hint, "exit_status": failure.exit,
    })
}

/// Reads the environment and the working directory, blocks the stop signals, and removes the variables that no child
/// process may inherit: secrets, and the sockets that lead to systemd. Must run while this is the only thread.
fn process_env() -> Result<ProcessEnv, Failure> {
    sys::block_stop_signals().map_err(CliError::BlockSignals)?;
    let mut environment = std::collections::HashMap::new();
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => drop(environment.insert(name, value)),
            // A setting that is left out without a word would mean something else.
            Err(_) if name.to_ascii_uppercase().starts_with("CODA_") => {
                return Err(CliError::NotText { name: format!("the variable {name}") }.into());
            }
            Err(_) => {}
        }
    }
    if environment.remove(SECRETS_VARIABLE).is_some() {
        sys::forget_variable(SECRETS_VARIABLE);
        let secrets: std::collections::HashMap<String, String> =
            serde_json::from_reader(std::io::stdin()).map_err(CliError::Secrets)?;
        environment.extend(secrets);
    }
    let secret = |name: &str| SECRET_VARIABLES.contains(&name.to_ascii_uppercase().as_str());
    for name in environment.keys().filter(|name| secret(name) || notify::VARIABLES.contains(&name.as_str())) {
        sys::forget_variable(name);
    }
    let cwd = std::env::current_dir().map_err(CliError::WorkingDirectory)?;
    Ok(ProcessEnv::new(environment, cwd))
}
