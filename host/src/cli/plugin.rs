//! `coda-host plugin`: prints a plugin's metadata without running any of it, and the device behind it.

pub(crate) mod check;
pub(crate) mod new;
mod python;
mod python_names;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;
use coda_plugin_abi::descriptor::Isolation;
use coda_plugin_abi::version;

use super::device_view::{DeviceView, line};
use super::kit::{self, CliError};
use super::terminal::Terminal;
use crate::app;
use crate::config::load::ProcessEnv;
use crate::error::{Explain, Failure, exit};
use crate::executor::locate::{DEFAULT_ENTRY, FactorySource, LocatedLibrary};
use crate::executor::{elf, loader};
use crate::sys::Dispositions;

#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Print a plugin's descriptor without running the plugin, or what an interpreter has of a Python executor
    #[command(after_help = "\
Examples:
  coda-host plugin inspect /usr/lib/coda-host/libacme.so --json
  coda-host plugin inspect acme_qpu.executor_factory:create_executor --python /opt/acme")]
    Inspect {
        /// The library, or the factory of a Python executor, whose module is imported
        #[arg(value_name = "FILE.so|MODULE:ATTRIBUTE", value_hint = clap::ValueHint::FilePath)]
        file: PathBuf,
        /// The interpreter of Python code, or its virtual environment (CODA_EXECUTOR_PYTHON)
        #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
        python: Option<String>,

        /// JSON for machines
        #[arg(long)]
        json: bool,
        /// Print the JSON schema of the device config, if the plugin exports one; this loads the library
        #[arg(long, conflicts_with = "json")]
        schema: bool,
    },
    /// Create the project of a plugin, which builds and passes its checks
    New(new::Args),
    /// Check a plugin: every case in a separate process
    Check(check::Args),
    #[command(hide = true)]
    CheckCase(check::CaseArgs),
    /// Start the plugin of a device config and print what it reports about its device
    #[command(after_help = "\
Examples:
  coda-host plugin device --device site/device.yaml
  coda-host plugin device --device site/device.yaml --json | jq .num_qubits")]
    Device {
        /// The device config (CODA_DEVICE_CONFIG; ./site/device.yaml when it exists)
        #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        device: Option<PathBuf>,
        /// The interpreter of Python code, or its virtual environment (CODA_EXECUTOR_PYTHON)
        #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
        python: Option<String>,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
}

/// Why a plugin can't be shown.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    #[error("the path {} can't be resolved", path.display())]
    Path { path: PathBuf, source: std::io::Error },
    #[error("the plugin {} can't report its schema: {reason}", path.display())]
    SchemaFailed { path: PathBuf, reason: String },
    #[error("{} exports no schema of its device config", path.display())]
    NoSchema { path: PathBuf },
    #[error("the schema of the plugin {} is not valid JSON", path.display())]
    SchemaSyntax { path: PathBuf, source: serde_json::Error },
}

impl Explain for PluginError {
    fn code(&self) -> &'static str {
        "plugin-schema"
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            PluginError::Path { .. } => "give the path of the plugin's library".into(),
            _ => "ask the vendor which keys its device config takes".into(),
        })
    }

    fn exit(&self) -> u8 {
        exit::PLUGIN
    }
}

impl PluginCommand {
    /// Whether it has something to do when a signal asks it to end. A case's process has the host's way with signals.
    pub fn takes_signals(&self) -> bool {
        match self {
            PluginCommand::Device { .. } | PluginCommand::CheckCase(_) => true,
            PluginCommand::Inspect { .. } | PluginCommand::New(_) | PluginCommand::Check(_) => false,
        }
    }
}

pub fn run(command: PluginCommand, env: ProcessEnv) -> Result<ExitCode, Failure> {
    let mut out = Terminal::new(&env);
    match command {
        PluginCommand::New(args) => return new::run(&args, &env),
        PluginCommand::Check(args) => return check::run(args, &env),
        PluginCommand::CheckCase(args) => return check::run_case(&args),
        PluginCommand::Inspect { file, schema: true, .. } => out.text(&schema(&file)?)?,
        PluginCommand::Inspect { file, python: interpreter, json, .. } => {
            out.text(&match python::factory(&file) {
                Some(factory) => python::inspect(factory, interpreter, &env, json)?,
                None => inspect(file, json)?,
            })?;
        }
        PluginCommand::Device { device, python, json } => {
            let runtime = kit::runtime()?;
            let view = runtime.block_on(describe(device, python, env));
            runtime.shutdown_background();
            match json {
                true => out.line(&serde_json::json!(view?).to_string())?,
                false => out.text(&view?.lines())?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the plugin, asks for its device, and shuts it down again.
async fn describe(
    device: Option<PathBuf>,
    python: Option<String>,
    env: ProcessEnv,
) -> Result<DeviceView, Failure> {
    let dispositions = Arc::new(Dispositions::capture());
    let device = device.map(|d| kit::device_flag(&d)).transpose()?;
    let flags = device.into_iter().chain(python.map(|path| ("CODA_EXECUTOR_PYTHON", path))).collect();
    let prepared = app::prepare(&env, flags)?;
    let located = app::locate_plugin(&prepared.settings, &prepared.device, &env)?;
    let starting = app::start_executor(&prepared.settings, &prepared.device, located, dispositions);
    let (executor, _done) = kit::until_signal(starting, "stopped while the plugin was starting").await?;
    let view = DeviceView::new(&executor);
    executor.shutdown(prepared.settings.executor.control_timeout).await;
    Ok(view)
}

/// The schema that the library exports for its default entry, indented.
fn schema(file: &std::path::Path) -> Result<String, Failure> {
    let found = elf::inspect(file)?;
    let scratch = tempfile::tempdir().map_err(CliError::TemporaryDirectory)?;
    let path =
        file.canonicalize().map_err(|source| PluginError::Path { path: file.to_path_buf(), source })?;
    let usual = |e: &&String| e.as_str() == DEFAULT_ENTRY;
    let entry = found.descriptor.entries.iter().find(usual).or(found.descriptor.entries.first());
    let entry = entry.cloned().unwrap_or_else(|| DEFAULT_ENTRY.into());
    let located = LocatedLibrary {
        path: path.clone(),
        entry: entry.clone(),
        source: FactorySource::Environment,
        pinned: None,
    };
    let library = loader::load(&located, scratch.path())?.library;
    let text = match library.config_schema(&entry) {
        Ok(Some(text)) => text,
        Ok(None) => return Err(PluginError::NoSchema { path: file.to_path_buf() }.into()),
        Err(e) => return Err(PluginError::SchemaFailed { path, reason: e.text }.into()),
    };
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|source| PluginError::SchemaSyntax { path, source })?;
    Ok(format!("{value:#}\n"))
}

fn inspect(file: PathBuf, json: bool) -> Result<String, Failure> {
    let opened = elf::open(&file)?;
    let found = elf::inspect_file(&file, &opened)?;
    let d = &found.descriptor;
    let sha256 = loader::sha256(&file, &opened)?;
    if json {
        let value = serde_json::json!({
            "file": file, "vendor": d.vendor, "name": d.name, "version": d.version,
            "kind": d.kind.name(), "interface": format!("{}.{}", d.api_major, d.api_minor),
            "door": format!("{:?}", d.binding).to_lowercase(), "entries": d.entries, "rustc": d.rustc,
            "target": d.target, "panics_unwind": d.unwinds,
            "isolation": d.isolation.name(), "needs": found.links.needed, "sha256": sha256,
            "bytes": found.bytes,
        });
        return Ok(format!("{value}\n"));
    }
    let ours = format!("{}.{}", version::MAJOR, version::MINOR);
    Ok([
        line("plugin", &format!("{} {} by {}", d.name, d.version, d.vendor)),
        line("kind", d.kind.name()),
        line(
            "interface",
            &format!("{}.{} ({:?}); this coda-host offers {ours}", d.api_major, d.api_minor, d.binding),
        ),
        line("entries", &d.entries.join(", ")),
        line("built by", &d.rustc),
        line("built for", &d.target),
        line("on panic", if d.unwinds { "unwinds" } else { "aborts" }),
        line(
            "isolation",
            match d.isolation {
                Isolation::Configured => "as configured",
                Isolation::Required => "required: it runs in a separate process",
            },
        ),
        line("needs", &found.links.needed.join(", ")),
        line("sha256", &sha256),
    ]
    .concat())
}
