//! The coordinator's composition: identity, event log, network, jobs, HTTP, and their end.
//!
//! It keeps its things in `coordinator/` below the state directory, so that a host on the same machine is another
//! peer than its coordinator.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use libp2p::identity::Keypair;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::peer::network_settings;
use crate::api::accept;
use crate::api::access::Access;
use crate::api::coordinator::{Api, router};
use crate::config::settings::Settings;
use crate::coordinator::directory::Directory;
use crate::coordinator::fallback::{BlockLimits, BlockRunner};
use crate::coordinator::lease_keeper::LeaseKeeper;
use crate::coordinator::role::Listener;
use crate::coordinator::service::{Service, ServiceLimits};
use crate::daemon::instance_lock::InstanceLock;
use crate::error::{Failure, exit};
use crate::peers::identity;
use crate::peers::swarm::Network;
use crate::reservation::log::Log;
use crate::supervise::{PanicWatch, Supervisor, TaskKind};
use crate::sys;

/// Fewer characters than this can be tried one by one.
const SHORT_TOKEN: usize = 16;

/// Where the coordinator keeps its identity, event log and lock.
pub fn dir(settings: &Settings) -> PathBuf {
    dir_in(&settings.dirs.state)
}

/// The same, for a state directory.
/// Files that are open besides the connections of peers: the API's connections, the log, the program itself.
const OTHER_FILES: u64 = 300;

pub fn dir_in(state: &Path) -> PathBuf {
    state.join("coordinator")
}

/// Opens the event log that the settings name.
///
/// # Errors
/// When it can't be used.
pub async fn open_log(settings: &Settings) -> Result<Log, Failure> {
    let default = Log::default_path(&dir(settings)).display().to_string();
    let store = settings.coordinator.store.as_ref().map_or(default.as_str(), |s| s.expose());
    let cwd = std::env::current_dir().unwrap_or_default();
    Ok(Log::open(store, &cwd).await?)
}

/// Runs the coordinator until it is stopped.
///
/// # Errors
/// When another coordinator runs in the same directory, the port, the event log or the identity can't be used, or the
/// network can't be started; afterwards when a task ends that must not.
pub async fn run(settings: Settings) -> Result<ExitCode, Failure> {
    let stop = CancellationToken::new();
    super::watch_signals(stop.clone());
    let dir = dir(&settings);
    let instance_lock = InstanceLock::acquire(&dir, &dir)?;
    let c = &settings.coordinator;
    let files = sys::raise_open_files();
    if files < c.max_connections as u64 + OTHER_FILES {
        tracing::warn!(
            files,
            connections = c.max_connections,
            "fewer files may be open than CODA_COORDINATOR_MAX_CONNECTIONS needs; raise LimitNOFILE, or lower it"
        );
    }
    // Whatever can fail without a trace is done before the network and the jobs begin.
    let listener = bind(&c.http).await?;
    let address = listener.local_addr().map_err(|e| bind_failure(&c.http, &e))?;
    let log = open_log(&settings).await?;
    let events = log.verify().await?;
    let key = identity::load(&dir)?;
    // Two with one identity would confuse their peers, so the lease comes before the network.
    let (peer_id, holder) = (key.public().to_peer_id().to_string(), instance_lock.fingerprint());
    let acquiring = LeaseKeeper::acquire(log.clone(), peer_id, holder, c.lease, &stop).await?;
    let Some(lease) = acquiring else {
        tracing::info!("stopped");
        return Ok(ExitCode::SUCCESS);
    };
    let service = start_service(&settings, key, log.clone(), lease).await?;
    service.begin().await?;

    let access =
        Access { token: c.api_token.clone(), loopback: address.ip().is_loopback(), open_reads: c.open_reads };
    warn_of_weak_access(&access);
    let api = Api {
        service: service.clone(),
        access: Arc::new(access),
        keep_alive: c.keep_alive,
        stop: stop.clone(),
    };
    let router = router(api, settings.api.page_interval);
    let mut tasks = Supervisor::new(stop.clone()).watching(PanicWatch::of_process());
    let api_stop = CancellationToken::new();
    tasks.spawn(
        TaskKind::Api,
        accept::serve(listener, router, settings.api.request_timeout, api_stop.clone()),
    );
    tasks.spawn(TaskKind::ReservationExpiry, service.clone().expire());
    tasks.spawn(TaskKind::Lease, service.clone().keep_lease());
    tasks.spawn(TaskKind::JobQueue, service.clone().take_jobs());
    let network = service.runner.network.clone();
    tracing::info!(
        peer_id = network.peer_id(),
        http = %address,
        store = log.location(),
        events,
        "the coordinator is up"
    );
    let failed = tokio::select! {
        () = stop.cancelled() => None,
        failed = tasks.failed() => Some(Failure::from(failed)),
    };
    // Clients may ask for their jobs until these have ended.
    service.shut_down(settings.shutdown.drain).await;
    api_stop.cancel();
    network.stop().await;
    log.close().await;
    tasks.finish().await;
    match failed {
        Some(failure) => Err(failure),
        None => {
            tracing::info!("stopped");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Starts the network and the service that runs jobs on it.
async fn start_service(
    settings: &Settings,
    key: Keypair,
    log: Log,
    lease: LeaseKeeper,
) -> Result<Service, Failure> {
    let c = &settings.coordinator;
    let directory = Directory::new(c.stale);
    let (listening, sweep) = (directory.clone(), c.sweep);
    let net = network_settings(&settings.peer.network, &c.listen, c.max_connections);
    let network = Network::start(key, net, move || Listener::new(listening, sweep)).await?;
    let limits = BlockLimits {
        call: c.call_limit,
        dispatch: c.dispatch_limit,
        ttl_seconds: c.ttl_seconds,
        slot_wait: c.slot_wait,
        peer_wait: c.peer_wait,
        hedge: c.hedge,
    };
    let runner = BlockRunner { network, log, directory, limits, tasks: TaskTracker::new(), accepted: 0 };
    let limits = ServiceLimits {
        running: c.max_running,
        waiting: c.max_waiting,
        queue_interval: c.queue_interval,
        max_shots: c.max_shots,
        peer_wait: c.peer_wait,
        expiry_interval: c.expiry_interval,
        job_deadline: c.job_deadline,
        checkpoint_interval: c.checkpoint_interval,
        watchers: c.max_watchers,
    };
    Ok(Service::new(runner, limits, lease))
}

fn warn_of_weak_access(access: &Access) {
    if access.token.is_none() && !access.loopback {
        tracing::warn!(
            "without CODA_API_TOKEN jobs are taken on a loopback address only: set one, or use --http 127.0.0.1:8090"
        );
    }
    if access.token.as_ref().is_some_and(|t| t.expose().len() < SHORT_TOKEN) {
        tracing::warn!("CODA_API_TOKEN is short enough to be guessed: take one of `openssl rand -hex 24`");
    }
}

async fn bind(address: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|e| bind_failure(address, &e))
}

fn bind_failure(address: &str, error: &std::io::Error) -> Failure {
    Failure {
        code: "api-bind",
        message: format!("the coordinator's service can't listen on {address}"),
        causes: vec![error.to_string()],
        hint: Some(
            "choose another address with --http or CODA_COORDINATOR_HTTP, such as 127.0.0.1:8090".into(),
        ),
        exit: exit::CONFIG,
    }
}
