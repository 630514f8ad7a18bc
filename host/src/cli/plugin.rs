//! `coda-host plugin`: what a library says of itself, without running any of it; and the device behind it.

mod check;
mod new;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;
use coda_plugin_abi::{Connectivity, version};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::terminal::Terminal;
use crate::app;
use crate::config::load::ProcessEnv;
use crate::error::{Failure, exit};
use crate::executor::locate::{DEFAULT_ENTRY, FactorySource, Located};
use crate::executor::{Executor, elf, loader};
use crate::sys::Dispositions;

#[derive(Debug, Subcommand)]
pub enum PluginCommand {
    /// Show a plugin's descriptor; nothing of the plugin is run
    #[command(after_help = "Example:\n  coda-host plugin inspect /usr/lib/coda-host/libacme.so --json")]
    Inspect {
        /// The library
        #[arg(value_name = "FILE.so", value_hint = clap::ValueHint::FilePath)]
        file: PathBuf,
        /// JSON for machines
        #[arg(long)]
        json: bool,
        /// The JSON schema of the device config, if the plugin exports one; loads the library
        #[arg(long, conflicts_with = "json")]
        schema: bool,
    },
    /// Make a plugin's project that builds and passes its checks
    New(new::Args),
    /// Check a plugin: every case in a process of its own
    Check(check::Args),
    #[command(hide = true)]
    CheckCase(check::CaseArgs),
    /// Start the plugin as a device config says and show what it tells of its device
    #[command(after_help = "\
Examples:
  coda-host plugin device --device site/device.yaml
  coda-host plugin device --device site/device.yaml --json | jq .num_qubits")]
    Device {
        /// The device config (CODA_DEVICE_CONFIG; ./site/device.yaml when it exists)
        #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
        device: Option<PathBuf>,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
}

/// What an executor tells of its device, as `--json` prints it.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeviceView {
    pub name: String,
    pub num_qubits: u16,
    pub targets: Vec<String>,
    pub slots: u16,
    pub max_shots: Option<u32>,
    /// `unknown`, `undirected` or `directed`.
    pub connectivity: String,
    pub edges: Option<Vec<(u16, u16)>>,
    pub batch_run: bool,
    pub cancel: bool,
    pub plugin: String,
    /// `hardware`, `simulator` or `test`.
    pub kind: String,
    pub path: PathBuf,
}

impl DeviceView {
    fn new(executor: &Executor) -> DeviceView {
        let active = executor.active_plugin();
        let (device, info, hooks) = (&active.device, &active.info, active.hooks);
        let connectivity = match &device.connectivity {
            Connectivity::Unknown => "unknown",
            Connectivity::Undirected(_) => "undirected",
            Connectivity::Directed(_) => "directed",
        };
        DeviceView {
            name: device.name.clone(),
            num_qubits: device.num_qubits,
            targets: device.targets.iter().map(|t| t.name().to_string()).collect(),
            slots: device.slots,
            max_shots: device.max_shots,
            connectivity: connectivity.into(),
            edges: device.connectivity.edges().map(<[_]>::to_vec),
            batch_run: hooks.batch_run,
            cancel: hooks.cancel,
            plugin: format!("{} {} by {}", info.name, info.version, info.vendor),
            kind: info.kind.name().into(),
            path: info.path.clone(),
        }
    }

    fn lines(&self) -> String {
        let yes = |b| if b { "yes" } else { "no" };
        let edges = self.edges.as_ref().map_or(String::new(), |e| format!(", {} edges", e.len()));
        [
            line("device", &self.name),
            line("qubits", &self.num_qubits.to_string()),
            line("targets", &self.targets.join(", ")),
            line("slots", &self.slots.to_string()),
            line("max shots", &self.max_shots.map_or("no limit".into(), |n| n.to_string())),
            line("wiring", &format!("{}{edges}", self.connectivity)),
            line("batches", yes(self.batch_run)),
            line("cancels", yes(self.cancel)),
            line("plugin", &format!("{} ({})", self.plugin, self.kind)),
            line("library", &self.path.display().to_string()),
        ]
        .concat()
    }
}

fn line(name: &str, value: &str) -> String {
    format!("{name:<12}{value}\n")
}

pub fn run(command: PluginCommand, env: ProcessEnv) -> Result<ExitCode, Failure> {
    let mut out = Terminal::new(&env);
    match command {
        PluginCommand::New(args) => return new::run(&args, &env),
        PluginCommand::Check(args) => return check::run(args, &env),
        PluginCommand::CheckCase(args) => return check::run_case(&args),
        PluginCommand::Inspect { file, schema: true, .. } => out.text(&schema(&file)?)?,
        PluginCommand::Inspect { file, json, .. } => out.text(&inspect(file, json)?)?,
        PluginCommand::Device { device, json } => {
            let runtime = super::runtime()?;
            let view = runtime.block_on(describe(device, env));
            runtime.shutdown_background();
            match json {
                true => out.line(&serde_json::json!(view?).to_string())?,
                false => out.text(&view?.lines())?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn describe(device: Option<PathBuf>, env: ProcessEnv) -> Result<DeviceView, Failure> {
    let dispositions = Arc::new(Dispositions::capture());
    let stop = CancellationToken::new();
    app::watch_signals(stop.clone());
    let flags = device.map(|d| ("CODA_DEVICE_CONFIG", d.display().to_string())).into_iter().collect();
    let prepared = app::prepare(&env, flags)?;
    let located = app::locate_plugin(&prepared.settings, &prepared.device, &env.cwd)?;
    let starting = app::start_executor(&prepared.settings, &prepared.device, located, dispositions);
    let (executor, _done) = tokio::select! {
        started = starting => started?,
        () = stop.cancelled() => return Err(Failure {
            code: "interrupted",
            message: "stopped while the plugin was starting".into(),
            causes: Vec::new(),
            hint: None,
            exit: exit::FAILURE,
        }),
    };
    let view = DeviceView::new(&executor);
    executor.shutdown(prepared.settings.executor.control_timeout).await;
    Ok(view)
}

/// The schema that the library exports for its usual entry, laid out for reading.
fn schema(file: &std::path::Path) -> Result<String, Failure> {
    let found = elf::inspect(file)?;
    let scratch =
        tempfile::tempdir().map_err(|e| super::failed("plugin-schema", "no temporary directory", &e))?;
    let path =
        file.canonicalize().map_err(|e| super::failed("plugin-schema", "the path can't be read", &e))?;
    let usual = |e: &&String| e.as_str() == DEFAULT_ENTRY;
    let entry = found.descriptor.entries.iter().find(usual).or(found.descriptor.entries.first());
    let entry = entry.cloned().unwrap_or_else(|| DEFAULT_ENTRY.into());
    let located = Located { path, entry: entry.clone(), source: FactorySource::Environment, pinned: None };
    let library = loader::load(&located, scratch.path())?.library;
    let none = |message: String| Failure {
        code: "plugin-schema",
        message,
        causes: Vec::new(),
        hint: Some("ask the vendor which keys its device config takes".into()),
        exit: exit::PLUGIN,
    };
    let text = library
        .config_schema(&entry)
        .map_err(|e| none(format!("the plugin could not tell its schema: {}", e.text)))?;
    let text =
        text.ok_or_else(|| none(format!("{} exports no schema of its device config", file.display())))?;
    let value: serde_json::Value =
        serde_json::from_str(&text).map_err(|e| none(format!("the plugin's schema is no JSON: {e}")))?;
    Ok(format!("{value:#}\n"))
}

fn inspect(file: PathBuf, json: bool) -> Result<String, Failure> {
    let found = elf::inspect(&file)?;
    let d = &found.descriptor;
    let sha256 = hex::encode(Sha256::digest(&found.bytes));
    if json {
        let value = serde_json::json!({
            "file": file, "vendor": d.vendor, "name": d.name, "version": d.version,
            "kind": d.kind.name(), "interface": format!("{}.{}", d.api_major, d.api_minor),
            "door": format!("{:?}", d.binding).to_lowercase(), "entries": d.entries, "rustc": d.rustc,
            "target": d.target, "panics_unwind": d.unwinds, "needs": found.needed, "sha256": sha256,
            "bytes": found.bytes.len(),
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
        line("needs", &found.needed.join(", ")),
        line("sha256", &sha256),
    ]
    .concat())
}
