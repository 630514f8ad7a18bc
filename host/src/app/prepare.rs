//! What a start reads before anything runs: settings, device config, stored credentials; which plugin, and making its
//! executor.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::python;
use crate::cloud::provision::reconnects;
use crate::config::ConfigError;
use crate::config::device::DeviceConfig;
use crate::config::load::{self, ProcessEnv};
use crate::config::settings::Settings;
use crate::config::source::EffectiveSetting;
use crate::config::suggest;
use crate::error::Failure;
use crate::executor::account::{self, RunsAs};
use crate::executor::locate::{self, DeviceFactory, LocateError, Located, LocatedLibrary};
use crate::executor::python::files::Disk;
use crate::executor::python::interpreter::InterpreterRequest;
use crate::executor::worker::Restart;
use crate::executor::{Executor, RunLimits, SlotReport, StartRequest, WhenStuck};
use crate::model::Secret;
use crate::state::credentials::{self, StoredCredentials};
use crate::sys::{Dispositions, KeptCapabilities};

/// Settings, device config and stored credentials of a start.
pub struct Prepared {
    pub settings: Settings,
    pub device: DeviceConfig,
    pub(super) stored: Option<StoredCredentials>,
    /// Every setting with its origin, secrets masked.
    pub shown: Vec<EffectiveSetting>,
}

impl Prepared {
    /// The QPU of the stored credentials.
    pub fn qpu_id(&self) -> Option<&str> {
        self.stored.as_ref()?.config.qpu_id.as_deref()
    }
}

/// Reads everything that a start is told.
///
/// # Errors
/// When a setting, the device config or a state file can't be used.
pub fn prepare(env: &ProcessEnv, flags: HashMap<&'static str, String>) -> Result<Prepared, Failure> {
    let dirs = load::dirs(env)?;
    let stored = credentials::load(&dirs.credentials)?;
    let flag = flags.get("CODA_NODE_TOKEN").map(String::as_str).filter(|t| !t.is_empty());
    let token = flag.or_else(|| env.ours("CODA_NODE_TOKEN")).map(Secret::new);
    let known = stored.as_ref().filter(|s| reconnects(token.as_ref(), Some(s)));
    let (settings, shown) = load::settings(env, flags, dirs, known)?;
    if settings.executor.isolated {
        runs_as(&settings, true)?;
    }
    let device = DeviceConfig::load(settings.executor.device_config.as_deref())?;
    let names: Vec<&'static str> = shown.iter().map(|s| s.name).collect();
    for (name, meant) in suggest::misspelt_variables(env.environment.keys().map(String::as_str), &names) {
        tracing::warn!("unknown setting {name} is ignored (did you mean {meant}?)");
    }
    if let (Some(key), Some(path)) = (&device.misspelt, &device.path) {
        let path = path.display();
        tracing::warn!("unknown key {key} of {path} is ignored (did you mean executor_factory?)");
    }
    Ok(Prepared { settings, device, stored, shown })
}

/// Whose rights the plugin's process has; `is_isolated` tells whether it has one.
///
/// # Errors
/// When the settings name an account that it can't have.
pub fn runs_as(settings: &Settings, is_isolated: bool) -> Result<RunsAs, Failure> {
    Ok(account::resolve(is_isolated, settings.executor.user.as_deref())?)
}

/// Finds the plugin that the settings name.
///
/// # Errors
/// When there is none, or several.
pub fn locate_plugin(
    settings: &Settings,
    device: &DeviceConfig,
    env: &ProcessEnv,
) -> Result<Located, Failure> {
    let binary = std::env::current_exe().ok();
    let dirs = locate::plugin_dirs(&settings.executor.plugin_path, binary.as_deref());
    let config = device.path.as_deref().map(|path| DeviceFactory {
        path,
        line: device.factory_line.as_deref(),
        yaml: device.executor_factory.as_deref(),
    });
    let request = locate::LocateRequest {
        environment: settings.executor.factory.as_deref(),
        device_config: config,
        dirs: &dirs,
        cwd: &env.cwd,
        interpreter: InterpreterRequest {
            setting: settings.executor.python.as_deref(),
            program: binary.as_deref(),
            virtual_env: env.plain("VIRTUAL_ENV"),
            conda_prefix: env.plain("CONDA_PREFIX"),
            device_config: device.path.as_deref(),
            search_path: env.plain("PATH").unwrap_or_default(),
            cwd: &env.cwd,
        },
        files: &Disk,
    };
    match (locate::locate(&request)?, &device.yaml_error, &device.path) {
        (Located::Python(python), ..) if settings.executor.sha256.is_some() => {
            Err(LocateError::Unpinnable { origin: python.source }.into())
        }
        (Located::Library(_), Some(what), Some(path)) => {
            Err(ConfigError::Device { path: path.clone(), what: what.clone() }.into())
        }
        (Located::Library(library), ..) => {
            Ok(Located::Library(LocatedLibrary { pinned: settings.executor.sha256.clone(), ..library }))
        }
        (python, Some(what), Some(path)) => {
            let path = path.display();
            tracing::warn!(
                "the device config {path} is not YAML, which may be right for this executor: {what}"
            );
            Ok(python)
        }
        (python, ..) => Ok(python),
    }
}

/// Loads the plugin and makes its executor.
///
/// # Errors
/// Whatever keeps it from being usable.
pub async fn start_executor(
    settings: &Settings,
    device: &DeviceConfig,
    located: Located,
    dispositions: Arc<Dispositions>,
) -> Result<(Executor, mpsc::UnboundedReceiver<SlotReport>), Failure> {
    let (done, answers) = mpsc::unbounded_channel();
    let request = executor_request(settings, device, located, dispositions)?;
    Ok((Executor::start(request, done).await?, answers))
}

/// The request that [`start_executor`] makes.
///
/// # Errors
/// When the settings name an account that the plugin's process can't have.
pub fn executor_request(
    settings: &Settings,
    device: &DeviceConfig,
    located: Located,
    dispositions: Arc<Dispositions>,
) -> Result<StartRequest, Failure> {
    let needs_process = located.needs_process();
    if needs_process && !settings.executor.isolated && matches!(located, Located::Library(_)) {
        tracing::info!(
            plugin = %located.subject().display(),
            "the plugin states that it needs a separate process, and gets one; CODA_EXECUTOR_ISOLATION=none has no \
             effect on it"
        );
    }
    let is_isolated = settings.executor.isolated || needs_process;
    let rights = runs_as(settings, is_isolated)?;
    Ok(StartRequest {
        python: python::request(settings, device, &located),
        located,
        state_dir: settings.dirs.state.clone(),
        config_path: device.path.clone(),
        config_text: device.text.clone(),
        native_gate_set: settings.identity.native_gate_set.clone(),
        num_qubits: settings.identity.num_qubits,
        control_timeout: settings.executor.control_timeout,
        device_refresh: settings.executor.device_refresh,
        start_timeout: settings.executor.start_timeout,
        log_bytes_per_second: settings.executor.log_bytes_per_second,
        batch_max: settings.jobs.batch_max,
        dispositions,
        isolation: is_isolated.then_some(Restart {
            backoff: settings.executor.restart_backoff,
            backoff_max: settings.executor.restart_backoff_max,
        }),
        limits: RunLimits {
            run: settings.executor.job_timeout,
            grace: settings.executor.cancel_grace,
            when_stuck: match settings.executor.stuck_exit {
                true => WhenStuck::ExitProcess,
                false => WhenStuck::Report,
            },
        },
        capabilities: match is_isolated {
            true => account::kept_capabilities(&settings.executor.capabilities, &rights)?,
            false => KeptCapabilities::default(),
        },
        runs_as: rights,
    })
}
