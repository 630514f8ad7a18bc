//! `coda-host config`: prints every effective setting and its origin.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use super::kit;
use crate::app;
use crate::config::load::ProcessEnv;
use crate::error::Failure;
use crate::executor::locate::Located;
use crate::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host config                     every setting with its value and origin; secrets masked
  coda-host config --set               only settings that differ from the default
  coda-host config --json | jq '.[] | select(.name == \"CODA_PORT\")'")]
pub struct Args {
    /// The device config (CODA_DEVICE_CONFIG; ./site/device.yaml when it exists)
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    device: Option<PathBuf>,
    /// Print only settings that differ from their default
    #[arg(long)]
    set: bool,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let mut flags = HashMap::new();
    if let Some(device) = &args.device {
        flags.extend([kit::device_flag(device)?]);
    }
    let prepared = app::prepare(env, flags)?;
    let origin = |s: &&crate::config::source::EffectiveSetting| {
        !args.set || s.origin != crate::config::source::SettingOrigin::Default
    };
    let shown: Vec<_> = prepared.shown.iter().filter(origin).collect();
    let dirs = &prepared.settings.dirs;
    let text = if args.json {
        let rows: Vec<_> = shown
            .iter()
            .map(|s| serde_json::json!({ "name": s.name, "value": s.value, "origin": s.origin.name() }))
            .collect();
        format!("{}\n", serde_json::Value::from(rows))
    } else {
        let width = shown.iter().map(|s| s.name.len()).max().unwrap_or(0);
        let rows: String = shown
            .iter()
            .map(|s| format!("{:<width$}  {:<11}  {}\n", s.name, s.origin.name(), output::inline(&s.value)))
            .collect();
        let directories =
            format!("credentials in {}\nstate in {}\n", dirs.credentials.display(), dirs.state.display());
        rows + &directories + &interpreter(&prepared, env)
    };
    kit::print(text.as_bytes())
}

/// The interpreter of an executor in Python code, which no setting need name. What can't be found is told by the commands
/// that need it.
fn interpreter(prepared: &app::Prepared, env: &ProcessEnv) -> String {
    match app::locate_plugin(&prepared.settings, &prepared.device, env) {
        Ok(Located::Python(python)) => {
            let interpreter = python.interpreter;
            format!("python is {}, chosen by {}\n", interpreter.path.display(), interpreter.chosen_by)
        }
        _ => String::new(),
    }
}
