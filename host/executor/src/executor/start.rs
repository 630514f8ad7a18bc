//! How an executor comes to be: the library is checked and opened, in this process or in one of its own, and creates
//! its executor; what can go wrong on the way, and what to do about it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use coda_plugin_abi::descriptor::{Binding, Isolation};
use coda_plugin_abi::{Error, ErrorCode, Target};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::account::RunsAs;
use super::active::PluginInfo;
use super::ffi::{Common, CreateRequest};
use super::loader::{self, LoadError, PreparedLibrary};
use super::locate::{Located, LocatedLibrary, LocatedPython};
use super::plugin::Plugin;
use super::python::device::DeviceBasics;
use super::python::spec::PythonSpec;
use super::python::{carried, files, secrets};
use super::shared::{RunLimits, Shared};
use super::slot::Slot;
use super::worker::{CallLimits, LibrarySpec, MakeError, Remote, Restart, WorkerSpec};
use super::{schema, signals};
use crate::error::{Explain, Failure, exit};
use crate::output;
use crate::sys::{self, Account, Dispositions, KeptCapabilities};

const START_LIMIT_STACK_BYTES: usize = 256 << 10;

/// How to start an executor.
pub struct StartRequest {
    pub located: Located,
    pub state_dir: PathBuf,
    /// Absolute path of the device config; `None` without one.
    pub config_path: Option<PathBuf>,
    /// The text of the device config; empty without one.
    pub config_text: String,
    pub native_gate_set: String,
    pub num_qubits: u16,
    pub control_timeout: Duration,
    /// How often the plugin is asked for its device.
    pub device_refresh: Duration,
    /// How long loading and creation may take.
    pub start_timeout: Duration,
    /// Bytes per second that the plugin may write into the log.
    pub log_bytes_per_second: u64,
    /// Most jobs of one `batch_run`.
    pub batch_max: usize,
    /// The signal dispositions that are restored after each call of the plugin.
    pub dispositions: Arc<Dispositions>,
    /// With a value the plugin runs in a separate process, which is started again when it dies. What
    /// [`Located::needs_process`] always does.
    pub isolation: Option<Restart>,
    /// The account of that process.
    pub runs_as: RunsAs,
    /// The capabilities that it keeps.
    pub capabilities: KeptCapabilities,
    pub limits: RunLimits,
    pub python: PythonRequest,
}

impl StartRequest {
    /// What is started, for messages.
    pub fn subject(&self) -> PathBuf {
        self.located.subject()
    }
}

/// What executors in Python code are told besides.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PythonRequest {
    /// Fields of coda-node's `Settings`, without any credential.
    pub settings: BTreeMap<String, serde_json::Value>,
    /// Whether the executor's keys are in the reverse order.
    pub reverse_bits: bool,
    /// As the QPU is registered, where that is known.
    pub registered_qubits: Option<u16>,
}

/// Why an executor can't be used.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the plugin {} could not create its executor ({}): {}", path.display(), error.code, error.text)]
    Create { path: PathBuf, error: Error },
    #[error("the device config {} does not fit the plugin: {what}", config.display())]
    Config { config: PathBuf, what: String },
    #[error("the Python executor can't be used: {what}")]
    Python { what: String, hint: String },
    #[error("the process of plugin {} could not be used: {what}", path.display())]
    Process { path: PathBuf, what: String },
    #[error("the plugin's process runs as '{}', which may not read {}: {why}", account.name, file.display())]
    Unreadable { account: Box<Account>, file: PathBuf, why: String },
    #[error("the process of plugin {} could not give up its rights, so nothing is run in it: {what}", path.display())]
    Rights { path: PathBuf, what: String },
    #[error("the plugin {} could not describe its device: {}", path.display(), error.text)]
    Describe { path: PathBuf, error: Error },
    #[error("the plugin {} describes an impossible device: {what}", path.display())]
    BadDevice { path: PathBuf, what: String },
    #[error("the plugin {} did not return from its {call} within {limit:?}", path.display())]
    NoReturn { path: PathBuf, call: String, limit: Duration },
    #[error("no thread could be started for the plugin")]
    Thread(#[source] std::io::Error),
    #[error("the thread of plugin {} ended while it was starting", path.display())]
    Died { path: PathBuf },
}

impl Explain for StartError {
    fn code(&self) -> &'static str {
        match self {
            StartError::Load(e) => e.code(),
            StartError::Create { .. } => "executor-create",
            StartError::Config { .. } => "executor-config",
            StartError::Python { .. } => "executor-python",
            StartError::Process { .. } => "executor-process",
            StartError::Unreadable { .. } => "executor-unreadable",
            StartError::Rights { .. } => "executor-rights",
            StartError::Describe { .. } => "executor-describe",
            StartError::BadDevice { .. } => "executor-bad-device",
            StartError::NoReturn { .. } => "executor-no-return",
            StartError::Thread(_) | StartError::Died { .. } => "executor-thread",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            StartError::Load(e) => e.hint(),
            StartError::Create { error, .. } if error.code == ErrorCode::Config => {
                Some("correct the device config; its keys are the vendor's".into())
            }
            StartError::Config { .. } => Some(
                "correct the device config; 'coda-host plugin inspect FILE.so --schema' prints what fits"
                    .into(),
            ),
            StartError::Python { hint, .. } => Some(hint.clone()),
            StartError::Process { .. } => Some(
                "try the plugin alone: coda-host plugin check --device FILE; then tell the vendor"
                    .into(),
            ),
            // The units hide both from every process of the host, whatever the modes are.
            StartError::Unreadable { file, .. } if file.starts_with("/home") || file.starts_with("/root") => {
                Some(
                    "move it to a place such as /opt (python3 -m venv /opt/acme); or let the account into that \
                     folder, and under systemd add a drop-in with ProtectHome=read-only"
                        .into(),
                )
            }
            StartError::Unreadable { account, file, .. } => Some(format!(
                "let it: chgrp {} {1} && chmod g+r {1}; its folders must let it through too: namei -l {1}",
                account.gid,
                file.display()
            )),
            StartError::Rights { .. } => Some(
                "give the host CAP_SETUID, CAP_SETGID and CAP_KILL, which it needs for a process of another account; \
                 see docs/operations.md"
                    .into(),
            ),
            StartError::Create { .. } => Some("check the hardware and its control stack".into()),
            StartError::Describe { .. } | StartError::BadDevice { .. } => Some("tell the vendor".into()),
            StartError::NoReturn { .. } => Some(
                "check the hardware and its control stack; set CODA_EXECUTOR_START_TIMEOUT_SEC if they need longer"
                    .into(),
            ),
            StartError::Thread(_) => Some("raise the limit on processes (ulimit -u)".into()),
            StartError::Died { .. } => Some("report this as a bug of coda-host".into()),
        }
    }

    fn exit(&self) -> u8 {
        match self {
            // A restart doesn't help: an operator must change the machine first.
            StartError::Unreadable { .. } | StartError::Rights { .. } => exit::CONFIG,
            _ => exit::PLUGIN,
        }
    }
}

/// The plugin in use, with its executor.
pub(super) struct LoadedPlugin {
    pub info: PluginInfo,
    pub plugin: Plugin,
    pub common: Arc<Common>,
}

/// Starts a thread of the executor.
pub(super) fn spawn(
    name: &str,
    stack: usize,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, StartError> {
    std::thread::Builder::new()
        .name(format!("exec-{name}"))
        .stack_size(stack)
        .spawn(body)
        .map_err(StartError::Thread)
}

/// The body of slot 0's thread: loads and creates, then serves like any other slot, and destroys at the end. All of
/// that happens on one thread, as the interface promises to plugins.
pub(super) fn first_slot(
    request: StartRequest,
    ready: oneshot::Sender<Result<LoadedPlugin, StartError>>,
    shared: Arc<Shared>,
) {
    let started = create(request, &shared);
    let (plugin, common) = match &started {
        Ok(loaded) => (loaded.plugin.clone(), loaded.common.clone()),
        Err(_) => return drop(ready.send(started)),
    };
    let thread = shared.queue.register_thread();
    if ready.send(started).is_err() {
        // The start was given up, which ends the process: it takes the executor with it.
        return;
    }
    let slot = Slot { index: 0, plugin, common, shared };
    slot.serve();
    // A run that has not come back keeps its executor.
    slot.shared.queue.wait_for_other_threads();
    if let Some(error) = slot.plugin.destroy() {
        tracing::warn!(plugin = &*slot.common.plugin(), error = error.text, "dropping the executor failed");
    }
    drop(thread);
}

fn create(request: StartRequest, shared: &Arc<Shared>) -> Result<LoadedPlugin, StartError> {
    if let Some(config) = &request.config_path {
        loader::trusted(config)?;
    }
    match request.located.clone() {
        Located::Library(library) => create_from_library(request, &library, shared),
        Located::Python(python) => create_from_python(&request, &python, shared),
    }
}

fn create_from_library(
    request: StartRequest,
    located: &LocatedLibrary,
    shared: &Arc<Shared>,
) -> Result<LoadedPlugin, StartError> {
    let prepared = loader::prepare(located, &request.state_dir, request.isolation.is_some())?;
    if prepared.descriptor.isolation == Isolation::Required && request.isolation.is_none() {
        return Err(LoadError::NeedsProcess { path: prepared.path }.into());
    }
    let common = Arc::new(Common::new(prepared.descriptor.name.as_str().into()));
    common.output.limit(request.log_bytes_per_second);
    let info = PluginInfo::from_library(&prepared);
    let plugin = match request.isolation {
        Some(restart) => {
            let spec = WorkerSpec::Library(library_spec(&prepared, &request));
            let remote = start_worker(spec, &request, &common, restart, shared)
                .map_err(|e| explain_library_error(e, &prepared, request.config_path.as_deref(), &common))?;
            Plugin::Remote(remote)
        }
        None => create_in_process(request, located, &prepared, &common, shared)?,
    };
    Ok(LoadedPlugin { info, plugin, common })
}

fn create_from_python(
    request: &StartRequest,
    located: &LocatedPython,
    shared: &Arc<Shared>,
) -> Result<LoadedPlugin, StartError> {
    trust_interpreter(&located.interpreter.path, request.runs_as.is_root())?;
    let spec = python_spec(located, request);
    let common = Arc::new(Common::new(spec.plugin().into()));
    common.output.limit(request.log_bytes_per_second);
    let Some(restart) = request.isolation else {
        let what = "it needs a separate process, and the request has none".into();
        return Err(StartError::Process { path: located.subject(), what });
    };
    let remote = start_worker(WorkerSpec::Python(spec), request, &common, restart, shared)
        .map_err(|e| explain_make_error(e, &located.subject(), request.config_path.as_deref(), &common))?;
    let Some(facts) = remote.facts() else { return Err(StartError::Died { path: located.subject() }) };
    common.rename(&facts.package);
    let info = PluginInfo::from_python(located, facts);
    Ok(LoadedPlugin { info, plugin: Plugin::Remote(remote), common })
}

fn start_worker(
    spec: WorkerSpec,
    request: &StartRequest,
    common: &Arc<Common>,
    restart: Restart,
    shared: &Shared,
) -> Result<Arc<Remote>, MakeError> {
    let limits = CallLimits { start: request.start_timeout, control: request.control_timeout };
    let (calls, queue) = (shared.control_calls.clone(), shared.queue.clone());
    let on_available = Box::new(move |available: bool| queue.set_away(!available));
    Remote::start(spec, common.clone(), restart, limits, calls, on_available)
}

fn create_in_process(
    request: StartRequest,
    located: &LocatedLibrary,
    prepared: &PreparedLibrary,
    common: &Arc<Common>,
    shared: &Shared,
) -> Result<Plugin, StartError> {
    let name = common.plugin();
    let loading = shared.control_calls.begin("loading".into(), name.clone(), None);
    let library = prepared.open()?;
    signals::restore_after(&request.dispositions, &name, "loading");
    let secrets = schema::of_plugin(&library, &located.entry, &request.config_text).map_err(|what| {
        StartError::Config { config: request.config_path.clone().unwrap_or_default(), what }
    })?;
    common.hide(&secrets);
    drop(loading);
    let creating = shared.control_calls.begin("create".into(), name.clone(), None);
    let created = library.create(&CreateRequest {
        common: common.clone(),
        entry: located.entry.clone(),
        // At the interface an empty path says that there is no device config.
        config_path: request.config_path.unwrap_or_default(),
        config_text: request.config_text,
        native_gate_set: request.native_gate_set,
        num_qubits: request.num_qubits,
    });
    drop(creating);
    signals::restore_after(&request.dispositions, &name, "create");
    let instance = created.map_err(|error| StartError::Create {
        path: located.path.clone(),
        error: common.masked_error(error),
    })?;
    Ok(Plugin::Direct(instance))
}

/// Ends this process if a start in it goes on for longer than `limit`, and says so. While a library's constructor runs the
/// C library creates and ends no thread and no process in an orderly way, so that an error which is returned may never be
/// shown. Armed until the sender is dropped.
pub(super) fn end_process_after(limit: Duration, error: StartError) -> Result<Sender<()>, StartError> {
    let (armed, waiting) = channel::<()>();
    let text = Failure::from(error).render();
    let body = move || {
        // What this thread allocates for itself when it first waits must be there before the library is opened.
        waiting.recv_timeout(Duration::ZERO).ok();
        if waiting.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            output::notice(&text);
            sys::exit_at_once(exit::PLUGIN);
        }
    };
    drop(spawn("start-limit", START_LIMIT_STACK_BYTES, body)?);
    Ok(armed)
}

/// What kept a library's process from having an executor, in the terms of a start in this process.
pub(super) fn explain_library_error(
    error: MakeError,
    prepared: &PreparedLibrary,
    config: Option<&Path>,
    common: &Common,
) -> StartError {
    match error {
        MakeError::Open(e) => prepared.refused(e).into(),
        other => explain_make_error(other, &prepared.path, config, common),
    }
}

/// What kept a process from having the executor of this path.
pub(super) fn explain_make_error(
    error: MakeError,
    path: &Path,
    config: Option<&Path>,
    common: &Common,
) -> StartError {
    let path = path.to_path_buf();
    match error {
        MakeError::Config(what) => {
            StartError::Config { config: config.unwrap_or(Path::new("")).to_path_buf(), what }
        }
        MakeError::Create(error) => StartError::Create { path, error: common.masked_error(error) },
        MakeError::Describe(error) => StartError::Describe { path, error: common.masked_error(error) },
        MakeError::Python { what, hint } => StartError::Python { what, hint },
        MakeError::Process(what) => StartError::Process { path, what },
        error @ MakeError::Open(_) => StartError::Process { path, what: error.text() },
        MakeError::NoReturn { call, limit } => StartError::NoReturn { path, call: call.into(), limit },
        MakeError::Rights(what) => StartError::Rights { path, what },
        MakeError::Unreadable { account, path: file, why } => StartError::Unreadable { account, file, why },
    }
}

/// Refuses, for a process of root, an interpreter or packages that others may change; says so where the process gives up
/// root's rights.
///
/// # Errors
/// When others may change one of them, and it would run with root's rights.
pub(super) fn trust_interpreter(interpreter: &Path, is_root: bool) -> Result<(), LoadError> {
    for path in files::trusted_paths(interpreter) {
        match loader::trusted(&path) {
            Err(error) if is_root => return Err(error),
            Err(error) => {
                let failure = Failure::from(error);
                tracing::warn!("{}; its process has not root's rights", failure.line());
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// The account that the request's process runs as, when it is another one than the host's.
fn account_of(request: &StartRequest) -> Option<Account> {
    match &request.runs_as {
        RunsAs::Account(account) => Some(account.clone()),
        RunsAs::Host | RunsAs::Root => None,
    }
}

/// What the process needs to create the executor of Python code.
pub(super) fn python_spec(located: &LocatedPython, request: &StartRequest) -> PythonSpec {
    let PythonRequest { settings, reverse_bits, registered_qubits } = request.python.clone();
    PythonSpec {
        interpreter: located.interpreter.clone(),
        account: account_of(request),
        capabilities: request.capabilities,
        basics: DeviceBasics {
            registered_qubits: registered_qubits.map(u32::from),
            registered_target: Target::from_name(&request.native_gate_set),
            ..DeviceBasics::read(&request.config_text)
        },
        secrets: secrets::secrets(&request.config_text),
        factory: located.factory.clone(),
        settings,
        config_path: request.config_path.clone(),
        config: serde_yaml::from_str(&request.config_text).unwrap_or_default(),
        modules: carried::modules(),
        reverse_bits,
        thread_wait_sec: request.limits.grace.as_secs_f64(),
        log_level: most_verbose_level(),
        inspect: false,
    }
}

/// What the plugin's process needs to create the executor of `request` from a prepared library.
pub(super) fn library_spec(prepared: &PreparedLibrary, request: &StartRequest) -> LibrarySpec {
    let account = account_of(request);
    let in_place = prepared.in_place_files();
    let mut reads = Vec::new();
    if account.is_some() {
        reads.extend(request.config_path.clone());
        reads.extend(in_place.iter().map(|file| file.path.clone()));
    }
    LibrarySpec {
        opened: prepared.opened.clone(),
        file: Some(prepared.file.clone()),
        in_place,
        reads,
        account,
        capabilities: request.capabilities,
        c_binding: prepared.descriptor.binding == Binding::C,
        api_minor: prepared.descriptor.api_minor,
        plugin: prepared.descriptor.name.clone(),
        entry: prepared.entry.clone(),
        config_path: request.config_path.clone().unwrap_or_default(),
        config_text: request.config_text.clone(),
        native_gate_set: request.native_gate_set.clone(),
        num_qubits: request.num_qubits,
        log_level: most_verbose_level(),
    }
}

/// The most verbose level of a plugin's lines that is logged.
fn most_verbose_level() -> u32 {
    use coda_plugin_abi::LogLevel;
    let enabled = [
        (tracing::enabled!(target: "plugin", tracing::Level::TRACE), LogLevel::Trace),
        (tracing::enabled!(target: "plugin", tracing::Level::DEBUG), LogLevel::Debug),
        (tracing::enabled!(target: "plugin", tracing::Level::INFO), LogLevel::Info),
        (tracing::enabled!(target: "plugin", tracing::Level::WARN), LogLevel::Warn),
    ];
    enabled.into_iter().find(|(on, _)| *on).map_or(LogLevel::Error, |(_, level)| level).code()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One error of each kind.
    fn every_error() -> Vec<StartError> {
        let path = || PathBuf::from("/plugins/p.so");
        let error = |code| Error::new(code, "text");
        let account = Account { name: "a".into(), uid: 1, gid: 2, groups: vec![2], home: "/".into() };
        let errors = vec![
            StartError::Load(LoadError::PanicAborts { path: path() }),
            StartError::Create { path: path(), error: error(ErrorCode::Config) },
            StartError::Create { path: path(), error: error(ErrorCode::Hardware) },
            StartError::Config { config: path(), what: "what".into() },
            StartError::Python { what: "what".into(), hint: "install it".into() },
            StartError::Process { path: path(), what: "what".into() },
            StartError::Unreadable { account: Box::new(account), file: path(), why: "why".into() },
            StartError::Rights { path: path(), what: "what".into() },
            StartError::Describe { path: path(), error: error(ErrorCode::Other) },
            StartError::BadDevice { path: path(), what: "what".into() },
            StartError::NoReturn { path: path(), call: "create".into(), limit: Duration::from_secs(1) },
            StartError::Thread(std::io::Error::other("cause")),
            StartError::Died { path: path() },
        ];
        // A new kind of error must be added above.
        for error in &errors {
            match error {
                StartError::Load(_)
                | StartError::Create { .. }
                | StartError::Config { .. }
                | StartError::Python { .. }
                | StartError::Process { .. }
                | StartError::Unreadable { .. }
                | StartError::Rights { .. }
                | StartError::Describe { .. }
                | StartError::BadDevice { .. }
                | StartError::NoReturn { .. }
                | StartError::Thread(_)
                | StartError::Died { .. } => {}
            }
        }
        errors
    }

    #[test]
    fn errors_and_hints_are_well_formed() {
        for error in every_error() {
            let hint = error.hint().unwrap_or_else(|| panic!("no hint: {error}"));
            for text in [error.to_string(), hint] {
                assert!(!text.contains("  "), "double blanks: {text}");
                assert!(!text.ends_with('.'), "a final stop: {text}");
                assert!(text.starts_with(|c: char| !c.is_uppercase()), "an upper-case start: {text}");
            }
        }
    }
}
