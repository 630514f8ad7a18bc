//! The composition root: builds the stages in the order of a job's path, and owns their end.
//!
//! Whatever can fail without the cloud is checked before it is asked, so that a one-time token is spent only
//! by a host that can run: device config, plugin, state directory, port.

mod alone;
pub mod coordinator;
pub mod peer;
mod prepare;
mod reload;
mod site;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::api::{self, PeerSources, Reading, Sources};
use crate::cloud::heartbeat::{Heartbeat, HeartbeatState};
use crate::cloud::http::{HttpClient, HttpError};
use crate::cloud::provision::{self, Site};
use crate::config::load::ProcessEnv;
use crate::config::settings::Settings;
use crate::daemon::conflicts::{self, ConsumerLock};
use crate::daemon::instance_lock::InstanceLock;
use crate::daemon::notify::Notifier;
use crate::daemon::rotate::{LOG_VARIABLE, keep_small};
use crate::error::{Explain, Failure, exit};
use crate::executor::Executor;
use crate::executor::account::{self, RunsAs};
use crate::executor::{ActivePlugin, ExecutorStatus, ReloadReport};
use crate::jobs::driver::{Driver, DriverParts, Ended, Snapshot};
use crate::jobs::journal::RunRecorder;
use crate::jobs::redis::{Names, Redis};
use crate::jobs::stream::{ClaimGate, Reader};
use crate::jobs::table::{RecoveredResult, StoredResult};
use crate::results::dispatcher::WebhookDispatcher;
use crate::results::webhook::WebhookSender;
use crate::state::answer_journal::AnswerJournal;
use crate::state::db::{Database, Phase, StoredRow};
use crate::state::run_journal::RunJournal;
use crate::supervise::{Supervisor, TaskKind};
use crate::sys::{self, Dispositions};
use crate::telemetry::Metrics;
use crate::vpn::command::Programs;
use crate::vpn::openvpn::Openvpn;

use prepare::executor_request;
pub use prepare::{Prepared, locate_plugin, prepare, runs_as, start_executor};

/// How long the last connections and tasks may take to end.
const END_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("the state directory {} can't be used", path.display())]
    StateDir { path: PathBuf, source: std::io::Error },
    #[error("the HTTP client could not be set up")]
    Http(#[source] HttpError),
    #[error("the HTTP client could not be set up")]
    Setup(#[source] tokio::task::JoinError),
}

impl Explain for AppError {
    fn code(&self) -> &'static str {
        match self {
            AppError::StateDir { .. } => "state-dir",
            AppError::Http(_) | AppError::Setup(_) => "http-client",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            AppError::StateDir { .. } => "make it writable for this user, or set CODA_STATE_DIR".into(),
            AppError::Http(e) => return e.hint(),
            AppError::Setup(_) => "report this as a bug of coda-host".into(),
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// Stops: the first signal asks, the second ends.
pub fn watch_signals(stop: CancellationToken) {
    watch_signals_and_reloads(stop, None);
}

/// The same; a SIGHUP asks for a reload, except at a terminal, whose end it tells.
fn watch_signals_and_reloads(stop: CancellationToken, reloads: Option<mpsc::UnboundedSender<()>>) {
    use std::io::IsTerminal as _;
    let reloads = reloads.filter(|_| !std::io::stdin().is_terminal());
    let waiter = move || {
        let mut asked = false;
        loop {
            match sys::wait_stop_signal() {
                Ok(libc::SIGHUP) if reloads.as_ref().is_some_and(|r| r.send(()).is_ok()) => {}
                Ok(signal) if asked || stop.is_cancelled() => {
                    tracing::warn!("a second signal: ending at once");
                    std::process::exit(128 + signal);
                }
                Ok(signal) => {
                    tracing::info!(signal, "a signal asks to stop; a second one ends at once");
                    asked = true;
                    stop.cancel();
                }
                Err(error) => tracing::error!(%error, "signals can't be waited for"),
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("signals".into()).spawn(waiter) {
        tracing::error!(%error, "no thread for signals: the host can only be killed");
    }
}

/// Runs the host until it is stopped.
///
/// # Errors
/// Whatever keeps it from starting, or a failure that it can't go on with.
pub async fn run(env: ProcessEnv, flags: HashMap<&'static str, String>) -> Result<ExitCode, Failure> {
    let stop = CancellationToken::new();
    let dispositions = Arc::new(Dispositions::capture());
    let (reloads, wanted) = mpsc::unbounded_channel();
    watch_signals_and_reloads(stop.clone(), Some(reloads));
    let prepared = prepare(&env, flags)?;
    let dirs = prepared.settings.dirs.clone();
    let lock = InstanceLock::acquire(&dirs.state, &dirs.credentials)?;
    conflicts::no_python_node(&dirs.credentials, prepared.qpu_id())?;
    let programs = Programs::of_path(env.plain("PATH").unwrap_or_default());
    let openvpn = Openvpn::new(&prepared.settings.vpn, &dirs.credentials, programs);
    if prepared.settings.peer.no_cloud {
        return alone::host(&env, prepared, lock, dispositions, (stop, wanted)).await;
    }
    let ended = host(&env, prepared, lock, &openvpn, dispositions, (stop, wanted)).await;
    // However it ended, and also the one that a killed host has left.
    site::leave(&openvpn).await;
    ended
}

/// From the plugin to the end.
async fn host(
    env: &ProcessEnv,
    prepared: Prepared,
    mut lock: InstanceLock,
    openvpn: &Openvpn,
    dispositions: Arc<Dispositions>,
    (stop, wanted): (CancellationToken, mpsc::UnboundedReceiver<()>),
) -> Result<ExitCode, Failure> {
    let Prepared { settings, device, stored, .. } = prepared;
    let state_dir = settings.dirs.state.clone();
    let located = locate_plugin(&settings, &device, &env.cwd)?;
    // Reading the system's roots takes as long as loading a plugin: beside it.
    let client = {
        let cloud = settings.cloud.clone();
        tokio::task::spawn_blocking(move || HttpClient::new(&cloud))
    };
    let starting = start_executor(&settings, &device, located, dispositions.clone());
    let (executor, done) = tokio::select! {
        started = starting => started?,
        // The hardware may take long to become idle.
        () = stop.cancelled() => return Ok(ExitCode::SUCCESS),
    };
    announce(&executor, &settings)?;
    let listener = api::bind(&settings.api).await?;
    if let Ok(address) = listener.local_addr() {
        lock.listens(address.to_string())?;
    }
    let database = Database::open(&state_dir)?;
    let unusable = |source| AppError::StateDir { path: state_dir.clone(), source };
    let (run_journal, mut died_running) = RunJournal::open(&state_dir).map_err(unusable)?;
    let (answer_journal, answered) = AnswerJournal::open(&state_dir).map_err(unusable)?;
    // What was answered did not die in the plugin.
    died_running.retain(|id| !answered.contains_key(id));
    let client = client.await.map_err(AppError::Setup)?.map_err(AppError::Http)?;
    let (up, up_seen) = watch::channel(None);
    let mut tasks = Supervisor::new(stop.clone());
    let api_stop = CancellationToken::new();
    tasks.spawn(TaskKind::Api, api::serve(listener, up_seen, settings.api.request_timeout, api_stop.clone()));

    let edges = executor.active_plugin().device.connectivity.edges().map(<[_]>::to_vec);
    let connecting = site::connect(&client, &settings, stored.as_ref(), edges.as_deref(), openvpn);
    let (site, guard) = tokio::select! {
        // What is done is done: a stop must not undo it.
        biased;
        connected = connecting => connected?,
        () = stop.cancelled() => {
            if provision::redeems(&settings, stored.as_ref()) {
                tracing::warn!("stopped while connecting: the node token may be used up, then get a new one");
            }
            executor.shutdown(settings.executor.control_timeout).await;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let consumer = &settings.jobs.consumer_name;
    let _consumer = match ConsumerLock::acquire(&site.identity.redis_url, &site.identity.qpu_id, consumer) {
        Ok(lock) => lock,
        Err(taken) => {
            executor.shutdown(settings.executor.control_timeout).await;
            return Err(taken.into());
        }
    };
    compare(&site, &executor);
    let (store, opened) = database.start(&site.identity.qpu_id)?;
    let mut deaths: HashMap<_, _> = opened.deaths.iter().copied().collect();
    for id in died_running {
        tracing::warn!(message_id = %id, "the process died while it ran this message");
        store.record_death(id).await?;
        *deaths.entry(id).or_insert(0) += 1;
    }
    if opened.foreign > 0 {
        tracing::warn!(
            results = opened.foreign,
            "undelivered results of another QPU lie in the state directory"
        );
    }

    let vpn = guard.status();
    let metrics = Arc::new(Metrics::default());
    let names = Names::new(&site.identity.qpu_id, &settings.jobs.consumer_name);
    let ca_file = settings.cloud.ca_file.as_deref();
    let (timeout, block) = (settings.jobs.redis_timeout, settings.jobs.block);
    let (redis, writer) = Redis::new(&site.identity.redis_url, names, ca_file, timeout, block)?;
    let sender = WebhookSender::new(client.clone(), site.signer.clone(), &site.cloud, &settings.webhook)?;
    let (beat_state, beat_seen) = watch::channel(HeartbeatState::default());
    let heartbeat =
        Heartbeat::new(client, site.signer.clone(), &site.cloud, beat_seen).map_err(AppError::Http)?;
    let beats = heartbeat.outcome();
    let (sent, sent_seen) = mpsc::unbounded_channel();
    let (outbox, dispatcher) = WebhookDispatcher::new(
        sender.clone(),
        store.clone(),
        settings.webhook.clone(),
        metrics.clone(),
        beats.clone(),
        sent,
    );
    let active = executor.active_plugin();
    let per_slot = if active.hooks.batch_run { settings.jobs.batch_max } else { settings.jobs.prefetch };
    let room = Arc::new(Semaphore::new(per_slot * usize::from(active.device.slots)));
    let gate = Arc::new(ClaimGate::default());
    let (claims, claimed) = mpsc::channel(16);
    let (snapshot, snapshot_seen) = watch::channel(Snapshot::default());
    let reader = Reader {
        redis: redis.clone(),
        url: site.identity.redis_url.clone(),
        settings: settings.jobs.clone(),
        room: room.clone(),
        read_max: room.available_permits(),
        claims,
        stop: stop.clone(),
        gate: gate.clone(),
        state_dir: state_dir.clone(),
        metrics: metrics.clone(),
        executor: executor.status(),
    };
    let (view, reloader) = (executor.status(), executor.reloader());
    let callback = {
        let sender = sender.clone();
        Arc::new(move |url: &str| {
            sender.allowed(url).map(|o| o.to_string().into()).map_err(|e| Failure::from(e).line())
        })
    };
    let reload_dispositions = dispositions.clone();
    let lent = match settings.peer.enabled {
        true => Some(peer::start(&settings.peer, &executor, &state_dir).await?),
        false => None,
    };
    let peers = lent.as_ref().map(PeerSources::of);
    let recovered = opened.rows.into_iter().filter_map(|row| recovered(row, &sender)).collect();
    let driver = Driver::new(DriverParts {
        settings: settings.jobs.clone(),
        redis: redis.clone(),
        store: store.clone(),
        recorder: RunRecorder::new(run_journal, answer_journal),
        recovered,
        answered,
        executor,
        outbox,
        callback,
        metrics: metrics.clone(),
        dispositions,
        prefetch: room,
        deaths,
        claims: claimed,
        done,
        sent: sent_seen,
        snapshot,
        stop: stop.clone(),
        drain_limit: settings.shutdown.drain,
        retry: settings.webhook.backoff,
    });

    let beat_stop = CancellationToken::new();
    tasks.spawn(TaskKind::VpnGuard, guard.watch(beat_stop.clone()));
    tasks.spawn(TaskKind::RedisWriter, writer.run());
    tasks.spawn(TaskKind::WebhookDispatcher, dispatcher.run());
    tasks.spawn(TaskKind::Heartbeat, heartbeat.run(beat_stop.clone()));
    tasks.spawn(
        TaskKind::HeartbeatState,
        tell_heartbeat(snapshot_seen.clone(), redis.clone(), view.clone(), beat_state),
    );
    let reader = tasks.spawn(TaskKind::StreamReader, reader.run());
    let (report, reloaded_seen) = watch::channel(ReloadReport::default());
    let settings = Arc::new(settings);
    let reloads = reload::Reloads {
        settings: settings.clone(),
        cwd: env.cwd.clone(),
        reloader,
        dispositions: reload_dispositions,
        wanted,
        report,
    };
    tasks.spawn(TaskKind::Reloads, reloads.serve());
    // Beside the jobs' own end.
    let lending = lent.map(|lent| {
        let (stop, drain) = (stop.clone(), settings.shutdown.drain);
        tasks.spawn(TaskKind::PeerLending, async move {
            stop.cancelled().await;
            lent.end(drain).await;
        })
    });
    up.send_replace(Some(Arc::new(Reading::Host(Box::new(Sources {
        peers,
        snapshot: snapshot_seen,
        redis: redis.clone(),
        gate,
        heartbeat: beats,
        vpn,
        metrics,
        executor: view.clone(),
        reloads: reloaded_seen,
        qpu_id: site.identity.qpu_id.clone(),
    })))));
    tracing::info!(qpu_id = site.identity.qpu_id, webapp = site.cloud.webapp_url, "coda-host is up");
    let variable = |name: &str| env.environment.get(name).map(String::as_str);
    let notifier = Arc::new(Notifier::new(variable("NOTIFY_SOCKET"), variable("WATCHDOG_USEC")));
    let qpu_id = site.identity.qpu_id.clone();
    let link = (redis.clone(), settings.jobs.redis_timeout);
    tasks.spawn(TaskKind::Notifier, keep_notified(notifier, qpu_id, link, stop.clone()));
    if let Some(log) = variable(LOG_VARIABLE) {
        let daemon = &settings.daemon;
        tasks.spawn(
            TaskKind::LogRotation,
            keep_small(log.into(), daemon.log_max_bytes, daemon.log_check_interval),
        );
    }

    let ended = {
        let driving = driver.run();
        tokio::pin!(driving);
        tokio::select! {
            ended = &mut driving => ended,
            failed = tasks.failed() => {
                // Without one of its tasks the host is of no use; what runs is still finished.
                let failure = Failure::from(failed);
                tracing::error!(error = failure.line(), "stopping");
                stop.cancel();
                driving.await;
                return Err(failure);
            }
        }
    };
    beat_stop.cancel();
    if let Some(lending) = lending {
        lending.ended().await;
    }
    // Its blocking read is short; dropped, it might leave a message behind.
    if tokio::time::timeout(settings.jobs.block + END_LIMIT, reader.ended()).await.is_err() {
        tracing::warn!("the reader did not end in time");
    }
    let code = end(ended, &settings).await;
    store.close();
    api_stop.cancel();
    drop(up);
    tasks.finish().await;
    Ok(code)
}

/// Ends the executor and tells what is left.
async fn end(ended: Ended, settings: &Settings) -> ExitCode {
    let left = ended.left;
    if left.undelivered > 0 {
        tracing::warn!(
            results = left.undelivered,
            "stopped with undelivered results; they are sent after the next start"
        );
    }
    if left.running.is_empty() && left.unstored.is_empty() {
        ended.executor.shutdown(settings.executor.control_timeout).await;
        tracing::info!("stopped");
        return ExitCode::SUCCESS;
    }
    for job_id in &left.unstored {
        tracing::error!(
            job_id = &**job_id,
            "stopped before this job's result could be stored; it runs again after the next start"
        );
    }
    for job_id in &left.running {
        tracing::error!(
            job_id = &**job_id,
            "stopped while the executor still had this job; it runs again after the next start"
        );
    }
    ExitCode::from(exit::JOB_LEFT)
}

fn announce(executor: &Executor, settings: &Settings) -> Result<(), Failure> {
    let active = executor.active_plugin();
    let (info, device) = (&active.info, &active.device);
    let runs_as = match runs_as(settings)? {
        _ if !settings.executor.isolated => "the host's process".into(),
        RunsAs::Host => "a process of its own".into(),
        RunsAs::Account(account) => format!("a process of account {}", account.name),
        RunsAs::Root => {
            tracing::warn!(
                "the plugin's process runs as root, for there is no account {}; to do: {}",
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
        runs_in = runs_as,
        "the plugin is ready"
    );
    Ok(())
}

/// The plugin knows its hardware; the cloud may know something else.
fn compare(site: &Site, executor: &Executor) {
    let device = &executor.active_plugin().device;
    if site.identity.num_qubits != device.num_qubits {
        tracing::warn!(
            registered = site.identity.num_qubits,
            device = device.num_qubits,
            "the QPU is registered with another number of qubits than its device has; the device counts"
        );
    }
    let target = coda_plugin_abi::Target::from_name(&site.identity.native_gate_set);
    if target.is_none_or(|t| !device.targets.contains(&t)) {
        tracing::warn!(
            registered = site.identity.native_gate_set,
            "the QPU is registered with a native gate set that its device does not take; its jobs will fail"
        );
    }
}

/// A row that goes on, unless it was refused for good.
fn recovered(stored: StoredRow, sender: &WebhookSender) -> Option<RecoveredResult> {
    let announced = match stored.phase {
        Phase::Refused => return None,
        phase => phase == Phase::Announced,
    };
    // A policy that has changed meanwhile is told by the attempt itself.
    let origin = sender.allowed(&stored.row.callback_url).map(|o| o.to_string()).unwrap_or_default();
    let result = StoredResult { row: stored.row, origin: origin.into(), attempts: stored.attempts };
    Some(RecoveredResult { result, announced })
}

/// Says that the host is alive as often as is asked for, and once that it is stopping.
async fn keep_notified(
    notifier: Arc<Notifier>,
    qpu_id: String,
    (redis, limit): (Redis, Duration),
    stop: CancellationToken,
) {
    // Redis is just being connected; a host without it is up as well, and goes on trying.
    let status = match redis.wait_up(limit).await {
        true => format!("running jobs of {qpu_id}"),
        false => format!("waiting for the Redis of {qpu_id}"),
    };
    notifier.ready(&status);
    let interval = notifier.watchdog_interval();
    let mut stopping = false;
    loop {
        let pause = interval.unwrap_or(Duration::from_secs(3600));
        tokio::select! {
            () = tokio::time::sleep(pause) => if interval.is_some() { notifier.alive() },
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                notifier.stopping();
            }
        }
    }
}

async fn tell_heartbeat(
    mut snapshot: watch::Receiver<Snapshot>,
    redis: Redis,
    executor: ExecutorStatus,
    state: watch::Sender<HeartbeatState>,
) {
    let mut link = redis.changes();
    let mut active = executor.active_plugin();
    let wiring = |d: &ActivePlugin| d.device.connectivity.edges().map(Arc::<[(u16, u16)]>::from);
    let mut connectivity = wiring(&active);
    loop {
        // Another device may have come by a reload.
        let now = executor.active_plugin();
        if !Arc::ptr_eq(&now, &active) {
            connectivity = wiring(&now);
            active = now;
        }
        let next = {
            let snapshot = snapshot.borrow_and_update();
            HeartbeatState {
                current_job: snapshot.current_job.clone(),
                last_job_at: snapshot.last_job_at.clone(),
                redis_healthy: link.borrow_and_update().is_up(),
                connectivity: connectivity.clone(),
            }
        };
        state.send_replace(next);
        let gone = tokio::select! {
            changed = snapshot.changed() => changed.is_err(),
            changed = link.changed() => changed.is_err(),
        };
        if gone {
            // The driver has ended; the heartbeat goes on until it is stopped.
            return;
        }
    }
}
