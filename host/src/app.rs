//! The composition root: builds the stages in the order of a job's path, and owns their end.
//!
//! ```text
//! prepare       settings, device config, stored credentials; the plugin and its executor
//! startup       the phases of a start, each with its end
//! registration  cloud, VPN and credentials, in their order
//! running       the host's tasks, from the last step of a start to the exit status
//! abrupt_end    the end of a process whose stop hangs
//! lifecycle     signals, requests to reload, the service manager
//! reload        another plugin or device config while the host runs
//! peer          slots lent to the peer network
//! coordinator   the composition root of a coordinator
//! ```

mod abrupt_end;
mod availability;
mod availability_record;
pub mod coordinator;
mod lifecycle;
pub mod peer;
mod prepare;
mod python;
mod registration;
mod reload;
mod running;
mod startup;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::cloud::http::HttpError;
use crate::config::load::ProcessEnv;
use crate::daemon::conflicts;
use crate::daemon::instance_lock::InstanceLock;
use crate::error::{Explain, Failure, exit};
use crate::supervise::PanicWatch;
use crate::vpn::command::Programs;
use crate::vpn::openvpn::Openvpn;

use lifecycle::Lifecycle;
use startup::{ExecutorStarted, Halt, Host};

pub use lifecycle::watch_signals;
pub use prepare::{Prepared, executor_request, locate_plugin, prepare, runs_as, start_executor};

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("the state directory {} can't be used", path.display())]
    StateDir { path: PathBuf, source: std::io::Error },
    #[error("the HTTP client could not be set up")]
    Http(#[source] HttpError),
    #[error("the HTTP client could not be set up")]
    Setup(#[source] tokio::task::JoinError),
    #[error("the host has neither a cloud nor a peer network, so there is nothing to do")]
    NothingToDo,
    #[error("the plugin stopped the host: it sent a signal to its own process, which no one asked for")]
    StoppedByPlugin,
}

impl Explain for AppError {
    fn code(&self) -> &'static str {
        match self {
            AppError::StateDir { .. } => "state-dir",
            AppError::Http(_) | AppError::Setup(_) => "http-client",
            AppError::NothingToDo => "nothing-to-do",
            AppError::StoppedByPlugin => "stopped-by-plugin",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            AppError::StateDir { .. } => "make it writable for this user, or set CODA_STATE_DIR".into(),
            AppError::Http(e) => return e.hint(),
            AppError::Setup(_) => "report this as a bug of coda-host".into(),
            AppError::NothingToDo => "start with --peer --no-cloud, or unset CODA_NO_CLOUD".into(),
            AppError::StoppedByPlugin => {
                "tell the vendor; with CODA_EXECUTOR_ISOLATION=process it would end its own process alone"
                    .into()
            }
        })
    }

    fn exit(&self) -> u8 {
        match self {
            AppError::StoppedByPlugin => exit::PLUGIN,
            _ => exit::CONFIG,
        }
    }
}

/// Runs the host until it is stopped.
///
/// # Errors
/// When a start fails, or a task ends that the host can't go on without.
pub async fn run(env: ProcessEnv, flags: HashMap<&'static str, String>) -> Result<ExitCode, Failure> {
    let lifecycle = Lifecycle::begin();
    let stopped_itself = lifecycle.stopped_itself();
    let prepared = prepare(&env, flags)?;
    lifecycle.abrupt_end.set_limit(prepared.settings.shutdown.drain + prepared.settings.shutdown.margin);
    let abrupt_end = lifecycle.abrupt_end.clone();
    PanicWatch::of_process().then(move || abrupt_end.arm("a panic", exit::FAILURE));
    let dirs = prepared.settings.dirs.clone();
    let lock = InstanceLock::acquire(&dirs.state, &dirs.credentials)?;
    conflicts::no_python_node(&dirs.credentials, prepared.qpu_id())?;
    if let Some(hold) = availability::hold_at_start(&dirs.state) {
        tracing::warn!("starting in a pause: {hold}");
    }
    let peer = &prepared.settings.peer;
    if peer.no_cloud && !peer.enabled {
        return Err(AppError::NothingToDo.into());
    }
    let programs = Programs::of_path(env.plain("PATH").unwrap_or_default());
    let openvpn = Openvpn::new(&prepared.settings.vpn, &dirs.credentials, programs);
    let has_cloud = !peer.no_cloud;

    let stop = lifecycle.stop.clone();
    let host = Host { env, lifecycle, lock: lock.clone(), openvpn: openvpn.clone() };
    let ended = {
        let mut running = std::pin::pin!(start(host, prepared));
        tokio::select! {
            ended = &mut running => ended,
            () = stop.cancelled() => {
                if let Err(error) = lock.stops() {
                    tracing::warn!(%error, "a further `coda-host stop` would not wait");
                }
                running.await
            }
        }
    };
    if has_cloud {
        // However the host ended; also the tunnel that a killed host left behind.
        registration::leave(&openvpn).await;
    }
    // Behind the tunnel's end: the next host would use a tunnel that is being taken down.
    drop(lock);
    match ended {
        // A supervisor that starts the host again after failures must not take this end for an orderly one.
        Ok(_) if stopped_itself() => Err(AppError::StoppedByPlugin.into()),
        ended => ended,
    }
}

/// Through the phases of a start to the end of the host.
async fn start(host: Host, prepared: Prepared) -> Result<ExitCode, Failure> {
    let running = async { ExecutorStarted::start(host, prepared).await?.register().await?.run().await };
    match running.await {
        Ok(running) => running.serve().await,
        Err(Halt::Stopped) => Ok(ExitCode::SUCCESS),
        Err(Halt::Failed(failure)) => Err(failure),
    }
}
