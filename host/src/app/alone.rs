//! A host without a cloud: its plugin, lent to the peer network, and the local service.

use std::process::ExitCode;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::reload::Reloads;
use super::{Prepared, announce, locate_plugin, peer, start_executor};
use crate::api::{self, PeerSources, Reading};
use crate::config::load::ProcessEnv;
use crate::daemon::instance_lock::InstanceLock;
use crate::daemon::notify::Notifier;
use crate::error::{Failure, exit};
use crate::executor::ReloadReport;
use crate::supervise::{Supervisor, TaskKind};
use crate::sys::Dispositions;
use crate::telemetry::Metrics;

/// From the plugin to the end.
pub(super) async fn host(
    env: &ProcessEnv,
    prepared: Prepared,
    mut lock: InstanceLock,
    dispositions: Arc<Dispositions>,
    (stop, wanted): (CancellationToken, mpsc::UnboundedReceiver<()>),
) -> Result<ExitCode, Failure> {
    let Prepared { settings, device, .. } = prepared;
    if !settings.peer.enabled {
        return Err(Failure {
            code: "nothing-to-do",
            message: "without a cloud and without the peer network there is nothing to do".into(),
            causes: Vec::new(),
            hint: Some("start with --peer --no-cloud, or unset CODA_NO_CLOUD".into()),
            exit: exit::CONFIG,
        });
    }
    let located = locate_plugin(&settings, &device, &env.cwd)?;
    let starting = start_executor(&settings, &device, located, dispositions.clone());
    let (executor, mut done) = tokio::select! {
        started = starting => started?,
        () = stop.cancelled() => return Ok(ExitCode::SUCCESS),
    };
    announce(&executor, &settings)?;
    let listener = api::bind(&settings.api).await?;
    if let Ok(address) = listener.local_addr() {
        lock.listens(address.to_string())?;
    }
    let (up, up_seen) = watch::channel(None);
    let mut tasks = Supervisor::new(stop.clone());
    tasks.spawn(
        TaskKind::Api,
        api::serve(listener, up_seen, settings.api.request_timeout, CancellationToken::new()),
    );
    let lent = peer::start(&settings.peer, &executor, &settings.dirs.state).await?;
    let metrics = Arc::new(Metrics::default());
    let (peers, view) = (PeerSources::of(&lent), executor.status());
    let (report, reloads) = watch::channel(ReloadReport::default());
    let settings = Arc::new(settings);
    let serving = Reloads {
        settings: settings.clone(),
        cwd: env.cwd.clone(),
        reloader: executor.reloader(),
        dispositions,
        wanted,
        report,
    };
    tasks.spawn(TaskKind::Reloads, serving.serve());
    up.send_replace(Some(Arc::new(Reading::PeerOnly { peers, metrics, executor: view, reloads })));
    tracing::info!("coda-host is up, without a cloud");
    let variable = |name: &str| env.environment.get(name).map(String::as_str);
    let notifier = Notifier::new(variable("NOTIFY_SOCKET"), variable("WATCHDOG_USEC"));
    notifier.ready("lending slots to the peer network");
    let alive = async {
        match notifier.watchdog_interval() {
            None => std::future::pending::<()>().await,
            Some(pause) => loop {
                tokio::time::sleep(pause).await;
                notifier.alive();
            },
        }
    };
    let failed = tokio::select! {
        () = stop.cancelled() => None,
        () = alive => None,
        failed = tasks.failed() => Some(Failure::from(failed)),
        // Nothing is submitted here, so nothing is reported.
        _ = done.recv() => None,
    };
    notifier.stopping();
    lent.end(settings.shutdown.drain).await;
    executor.shutdown(settings.executor.control_timeout).await;
    tasks.finish().await;
    match failed {
        Some(failure) => Err(failure),
        None => {
            tracing::info!("stopped");
            Ok(ExitCode::SUCCESS)
        }
    }
}
