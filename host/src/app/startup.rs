//! A start as phases, each of which can end what it and those before it began.
//!
//! ```text
//! Prepared ──> ExecutorStarted ──> Registered ──> Running
//!  settings     plugin, executor    port, database,   tasks, jobs, peers
//!               │ end: shutdown,    cloud, locks
//!               v      drop         │ end: database, then as before
//! ```
//!
//! A step takes its phase by value. When it fails, or the host is asked to stop, the phase ends what there is: most
//! control stacks allow one session, so an executor must be shut down and dropped however the start goes on. A host
//! without a cloud takes the same way and only registers nowhere.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::lifecycle::Lifecycle;
use super::{AppError, Prepared, locate_plugin, registration, runs_as, start_executor};
use crate::api::host_page::{self, PageSettings};
use crate::api::{self, ApiSources};
use crate::cloud::http::{HttpClient, HttpError};
use crate::cloud::provision::{self, Registration};
use crate::config::device::DeviceConfig;
use crate::config::load::ProcessEnv;
use crate::config::settings::{Identity, Settings};
use crate::daemon::conflicts::{self, ConsumerLock};
use crate::daemon::instance_lock::InstanceLock;
use crate::error::Failure;
use crate::executor::account::{self, RunsAs};
use crate::executor::locate::Located;
use crate::executor::{Executor, PythonInfo, SlotReport};
use crate::model::MessageId;
use crate::state::answer_journal::{AnswerJournal, KeptAnswers};
use crate::state::credentials::StoredCredentials;
use crate::state::db::{Database, Store, StoreContents};
use crate::state::run_journal::RunJournal;
use crate::supervise::{PanicWatch, Supervisor, TaskKind};
use crate::vpn::guard::Guard;
use crate::vpn::openvpn::Openvpn;

/// Why a start goes no further.
pub enum Halt {
    Failed(Failure),
    /// The host was asked to stop.
    Stopped,
}

impl<E: Into<Failure>> From<E> for Halt {
    fn from(error: E) -> Halt {
        Halt::Failed(error.into())
    }
}

/// What every phase needs, and only the process ends.
pub struct Host {
    pub env: ProcessEnv,
    pub lifecycle: Lifecycle,
    pub lock: InstanceLock,
    pub openvpn: Openvpn,
}

/// Phase 1: the executor is there.
pub struct ExecutorStarted {
    pub host: Host,
    pub settings: Arc<Settings>,
    pub executor: Executor,
    pub reports: mpsc::UnboundedReceiver<SlotReport>,
    stored: Option<StoredCredentials>,
    client: JoinHandle<Result<HttpClient, HttpError>>,
    device: DeviceConfig,
    located: Located,
}

impl ExecutorStarted {
    /// Loads the plugin and creates its executor.
    ///
    /// # Errors
    /// When no plugin is found, it can't be used, or the host is asked to stop.
    pub async fn start(host: Host, prepared: Prepared) -> Result<ExecutorStarted, Halt> {
        let Prepared { settings, device, stored, .. } = prepared;
        let located = locate_plugin(&settings, &device, &host.env)?;
        // Reading the system's CA certificates takes as long as loading a plugin: both at once.
        let client = {
            let cloud = settings.cloud.clone();
            tokio::task::spawn_blocking(move || HttpClient::new(&cloud))
        };
        let (executor, reports) = create_executor(&host, &settings, &device, located.clone()).await?;
        let settings = Arc::new(settings);
        Ok(ExecutorStarted { host, settings, executor, reports, stored, client, device, located })
    }

    /// Opens port, state and journals, and registers with the cloud unless the host has none.
    ///
    /// # Errors
    /// When one of them can't be used, the cloud refuses, another host serves the QPU, or the host is asked to stop;
    /// the executor has ended then.
    pub async fn register(mut self) -> Result<Registered, Halt> {
        let (service, cloud) = match self.try_register().await {
            Ok(done) => done,
            Err(halt) => {
                self.end().await;
                return Err(halt);
            }
        };
        let Some(cloud) = cloud else { return Ok(Registered { started: self, service, cloud }) };
        match self.adopt(&cloud.registration.identity).await {
            Ok(started) => {
                compare(&cloud.registration, &started.executor);
                Ok(Registered { started, service, cloud: Some(cloud) })
            }
            Err(halt) => {
                cloud.store.close();
                Err(halt)
            }
        }
    }

    /// Takes over the identity that the cloud has given. A plugin was told of the QPU when it was created; when that has
    /// become wrong, as on a first start, it is created again. No job has been claimed yet.
    async fn adopt(self, identity: &Identity) -> Result<ExecutorStarted, Halt> {
        let told = &self.settings.identity;
        let is_python = self.executor.active_plugin().info.python.is_some();
        // Only Python code is told the names of the QPU.
        let same_names = told.qpu_id == identity.qpu_id && told.qpu_display_name == identity.qpu_display_name;
        let same = told.num_qubits == identity.num_qubits
            && told.native_gate_set == identity.native_gate_set
            && (same_names || !is_python);
        let settings = Settings { identity: identity.clone(), ..(*self.settings).clone() };
        if same {
            return Ok(ExecutorStarted { settings: Arc::new(settings), ..self });
        }
        tracing::info!(
            told = told.num_qubits,
            registered = identity.num_qubits,
            native_gate_set = identity.native_gate_set,
            "the QPU is registered otherwise than the plugin was told; its executor is created again"
        );
        let ExecutorStarted { host, executor, stored, client, device, located, .. } = self;
        executor.shutdown(settings.executor.control_timeout).await;
        let (executor, reports) = create_executor(&host, &settings, &device, located.clone()).await?;
        let settings = Arc::new(settings);
        let started = ExecutorStarted { host, settings, executor, reports, stored, client, device, located };
        match announce(&started.executor, &started.settings) {
            Ok(()) => Ok(started),
            Err(failure) => {
                started.end().await;
                Err(failure.into())
            }
        }
    }

    async fn try_register(&mut self) -> Result<(LocalService, Option<CloudSide>), Halt> {
        announce(&self.executor, &self.settings)?;
        let service = LocalService::start(&self.settings, &mut self.host).await?;
        let cloud = match self.settings.peer.no_cloud {
            true => None,
            false => Some(self.open_cloud_side().await?),
        };
        Ok((service, cloud))
    }

    /// Whatever can fail without the cloud comes first, so that a one-time token is spent only by a host that can
    /// run.
    async fn open_cloud_side(&mut self) -> Result<CloudSide, Halt> {
        let settings = &self.settings;
        let state_dir = &settings.dirs.state;
        let unusable = |source| AppError::StateDir { path: state_dir.clone(), source };
        let database = Database::open(state_dir)?.with_limits(settings.history.limits);
        let (run_journal, mut died_running) = RunJournal::open(state_dir).map_err(unusable)?;
        let (answer_journal, answered) = AnswerJournal::open(state_dir).map_err(unusable)?;
        // What was answered did not die in the plugin.
        died_running.retain(|id| answered.get(id).is_none_or(|kept| kept.answer.is_none()));
        let client = (&mut self.client).await.map_err(AppError::Setup)?.map_err(AppError::Http)?;

        let (registration, guard) = self.connect(&client).await?;
        let identity = &registration.identity;
        let consumer = &settings.jobs.consumer_name;
        // Asked before the plugin was created too, but a first start knows its QPU only now.
        conflicts::no_python_node(&settings.dirs.credentials, Some(&identity.qpu_id))?;
        let consumer_lock = ConsumerLock::acquire(&identity.redis_url, &identity.qpu_id, consumer)?;

        let (store, contents) = database.start(&identity.qpu_id)?;
        let recorded = record_deaths(&store, &contents, died_running).await;
        // Only now: a start that fails before leaves the journal to the next one.
        let recorded =
            recorded.and_then(|deaths| Ok(run_journal.clear().map(|()| deaths).map_err(unusable)?));
        let deaths = match recorded {
            Ok(deaths) => deaths,
            Err(error) => {
                store.close();
                return Err(error);
            }
        };
        Ok(CloudSide {
            client,
            registration,
            guard,
            store,
            contents,
            deaths,
            run_journal,
            answer_journal,
            answered,
            consumer_lock,
        })
    }

    async fn connect(&self, client: &HttpClient) -> Result<(Registration, Guard), Halt> {
        let (settings, stored) = (&self.settings, self.stored.as_ref());
        let edges = self.executor.active_plugin().device.connectivity.edges().map(<[_]>::to_vec);
        let connecting =
            registration::connect(client, settings, stored, edges.as_deref(), &self.host.openvpn);
        tokio::select! {
            // A registration that is complete is kept: a stop must not undo it.
            biased;
            connected = connecting => Ok(connected?),
            () = self.host.lifecycle.stop.cancelled() => {
                if provision::redeems(settings, stored) {
                    tracing::warn!(
                        "stopped while connecting: the node token may be used up; get a new one if the next start \
                         is refused"
                    );
                }
                Err(Halt::Stopped)
            }
        }
    }

    /// Brings the device to rest and drops the executor.
    pub async fn end(self) {
        self.executor.shutdown(self.settings.executor.control_timeout).await;
    }
}

/// Loads the plugin and creates its executor, unless the host is asked to stop meanwhile.
async fn create_executor(
    host: &Host,
    settings: &Settings,
    device: &DeviceConfig,
    located: Located,
) -> Result<(Executor, mpsc::UnboundedReceiver<SlotReport>), Halt> {
    let starting = start_executor(settings, device, located, host.lifecycle.dispositions.clone());
    tokio::pin!(starting);
    tokio::select! {
        started = &mut starting => Ok(started?),
        () = host.lifecycle.stop.cancelled() => {
            // The plugin may be opening its session at this moment: then it must be closed again. Hardware that takes
            // longer than a control call may is left to the end of the process.
            let limit = settings.executor.control_timeout;
            match tokio::time::timeout(limit, starting).await {
                Ok(Ok((executor, _))) => executor.shutdown(limit).await,
                Ok(Err(failure)) => {
                    tracing::debug!(error = failure.line(), "the start failed while stopping");
                }
                Err(_) => {
                    tracing::warn!(?limit, "stopped while the plugin was still creating its executor");
                }
            }
            Err(Halt::Stopped)
        }
    }
}

/// Adds the deaths that the last process left behind to those that are known.
async fn record_deaths(
    store: &Store,
    contents: &StoreContents,
    died_running: Vec<MessageId>,
) -> Result<HashMap<MessageId, u32>, Halt> {
    let mut deaths: HashMap<MessageId, u32> = contents.deaths.iter().copied().collect();
    for id in died_running {
        tracing::warn!(message_id = %id, "the process died while it ran this message");
        store.record_death(id).await?;
        *deaths.entry(id).or_insert(0) += 1;
    }
    if contents.foreign > 0 {
        tracing::warn!(
            results = contents.foreign,
            "undelivered results of another QPU are in the state directory; start a host for that QPU to send them"
        );
    }
    Ok(deaths)
}

/// The HTTP service and the tasks of the host.
pub struct LocalService {
    pub tasks: Supervisor,
    /// What the service reads, once the host is up.
    pub up: watch::Sender<Option<Arc<ApiSources>>>,
    pub stop: CancellationToken,
}

impl LocalService {
    async fn start(settings: &Settings, host: &mut Host) -> Result<LocalService, Halt> {
        let listener = api::bind(&settings.api).await?;
        if let Ok(address) = listener.local_addr() {
            host.lock.listens(address.to_string())?;
        }
        let (up, up_seen) = watch::channel(None);
        let stop = CancellationToken::new();
        let mut tasks = Supervisor::new(host.lifecycle.stop.clone()).watching(PanicWatch::of_process());
        let page =
            PageSettings { api: settings.api.clone(), api_token: settings.coordinator.api_token.clone() };
        let sampling = host_page::sample(up_seen.clone(), page.api.page_sample);
        tasks.spawn(TaskKind::ActivitySampler, sampling);
        tasks.spawn(TaskKind::Api, api::serve(listener, up_seen, page, stop.clone()));
        Ok(LocalService { tasks, up, stop })
    }
}

/// What a host has of its cloud before it runs jobs.
pub struct CloudSide {
    pub client: HttpClient,
    pub registration: Registration,
    pub guard: Guard,
    pub store: Store,
    pub contents: StoreContents,
    /// How often the process died while it ran a message.
    pub deaths: HashMap<MessageId, u32>,
    pub run_journal: RunJournal,
    pub answer_journal: AnswerJournal,
    /// Answers that a former process got and had not stored.
    pub answered: KeptAnswers,
    /// Held until the host has ended.
    pub consumer_lock: Option<ConsumerLock>,
}

/// Phase 2: the host has its port, its state, and its QPU.
pub struct Registered {
    pub started: ExecutorStarted,
    pub service: LocalService,
    /// `None` for a host without a cloud.
    pub cloud: Option<CloudSide>,
}

/// Logs which plugin runs where.
fn announce(executor: &Executor, settings: &Settings) -> Result<(), Failure> {
    let active = executor.active_plugin();
    let (info, device) = (&active.info, &active.device);
    let is_isolated = settings.executor.isolated || info.needs_process;
    let runs_in = match runs_as(settings, is_isolated)? {
        _ if !is_isolated => "the host's process".into(),
        RunsAs::Host => "a separate process".into(),
        RunsAs::Account(account) => format!("a process of account {}", account.name),
        RunsAs::Root => {
            tracing::warn!(
                "the plugin's process runs as root, because there is no account {}; create it with: {}",
                account::USUAL,
                account::MAKE_USUAL
            );
            "a process of root".into()
        }
    };
    let targets: Vec<&str> = device.targets.iter().map(|t| t.name()).collect();
    tracing::info!(
        plugin = info.name,
        version = info.version,
        vendor = info.vendor,
        kind = info.kind.name(),
        path = %info.path.display(),
        from = %info.source,
        device = device.name,
        qubits = device.num_qubits,
        targets = targets.join(" "),
        slots = device.slots,
        batch = active.hooks.batch_run,
        cancel = active.hooks.cancel,
        runs_in,
        "the plugin is ready"
    );
    if let Some(PythonInfo { facts, interpreter }) = &info.python {
        tracing::info!(
            factory = facts.factory,
            package = facts.name(),
            coda_node = facts.coda_node,
            python = facts.python,
            interpreter = %interpreter.path.display(),
            chosen_by = %interpreter.chosen_by,
            "the executor is Python code"
        );
    }
    Ok(())
}

/// The plugin knows its hardware; the cloud may know something else.
fn compare(registration: &Registration, executor: &Executor) {
    let device = &executor.active_plugin().device;
    let identity = &registration.identity;
    if identity.num_qubits != device.num_qubits {
        tracing::warn!(
            registered = identity.num_qubits,
            device = device.num_qubits,
            "the QPU is registered with another number of qubits than its device has; the device's number applies"
        );
    }
    let target = coda_plugin_abi::Target::from_name(&identity.native_gate_set);
    if target.is_none_or(|t| !device.targets.contains(&t)) {
        tracing::warn!(
            registered = identity.native_gate_set,
            "the QPU is registered with a native gate set that its device does not take; its jobs will fail"
        );
    }
}
