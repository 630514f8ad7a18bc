//! What the process is told and what it tells: signals, requests to reload, the service manager.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::abrupt_end::AbruptEnd;
use crate::config::load::ProcessEnv;
use crate::daemon::notify::Notifier;
use crate::error::exit;
use crate::jobs::redis::Redis;
use crate::sys::{self, Dispositions, StopSignal};

/// The notifier looks at its work at least this often; nothing depends on it.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// The process of a host: when it stops, when it reloads.
pub struct Lifecycle {
    /// Cancelled when the host is to stop.
    pub stop: CancellationToken,
    pub reload_requests: mpsc::UnboundedReceiver<()>,
    /// The signal dispositions before any plugin was loaded.
    pub dispositions: Arc<Dispositions>,
    pub abrupt_end: AbruptEnd,
    /// Set when the process stops because it sent itself a signal.
    stopped_itself: Arc<AtomicBool>,
}

impl Lifecycle {
    /// Begins to watch signals.
    pub fn begin() -> Lifecycle {
        let stop = CancellationToken::new();
        let dispositions = Arc::new(Dispositions::capture());
        let (requests, reload_requests) = mpsc::unbounded_channel();
        let abrupt_end = AbruptEnd::default();
        let stopped_itself = Arc::new(AtomicBool::new(false));
        watch(stop.clone(), Some(requests), abrupt_end.clone(), stopped_itself.clone());
        Lifecycle { stop, reload_requests, dispositions, abrupt_end, stopped_itself }
    }

    /// Whether the process stops because it sent itself a signal, to be asked at its end.
    pub fn stopped_itself(&self) -> impl FnOnce() -> bool + use<> {
        let stopped_itself = self.stopped_itself.clone();
        move || stopped_itself.load(Ordering::Acquire)
    }
}

/// Cancels `stop` at the first signal that asks to stop; the second one ends the process.
pub fn watch_signals(stop: CancellationToken) {
    watch(stop, None, AbruptEnd::default(), Arc::default());
}

/// A SIGHUP asks for a reload where reloads are served, except at a terminal: there it tells that the terminal is gone.
fn watch(
    stop: CancellationToken,
    reloads: Option<mpsc::UnboundedSender<()>>,
    abrupt_end: AbruptEnd,
    stopped_itself: Arc<AtomicBool>,
) {
    use std::io::IsTerminal as _;
    let reloads = reloads.filter(|_| !std::io::stdin().is_terminal());
    let waiter = move || {
        let mut asked = false;
        loop {
            match sys::wait_stop_signal() {
                Ok(StopSignal { signal: libc::SIGHUP, .. })
                    if reloads.as_ref().is_some_and(|r| r.send(()).is_ok()) => {}
                Ok(StopSignal { from_itself: true, .. }) if asked || stop.is_cancelled() => {
                    tracing::warn!(
                        "the plugin sent a signal to the process of coda-host while it stops; ignored"
                    );
                }
                Ok(StopSignal { signal, .. }) if asked || stop.is_cancelled() => {
                    tracing::warn!("a second signal: ending at once");
                    abrupt_end.perform();
                    sys::exit(u8::try_from(128 + signal).unwrap_or(exit::FAILURE));
                }
                Ok(StopSignal { signal, from_itself }) => {
                    if from_itself {
                        stopped_itself.store(true, Ordering::Release);
                        let name = sys::signal_name(signal);
                        tracing::error!("the plugin sent {name} to the process of coda-host; stopping");
                    } else {
                        tracing::info!(signal, "a signal asks to stop; a second one ends at once");
                    }
                    asked = true;
                    stop.cancel();
                    abrupt_end.arm("the signal", exit::JOB_LEFT);
                }
                Err(error) => tracing::error!(%error, "signals can't be waited for"),
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("signals".into()).spawn(waiter) {
        tracing::error!(%error, "no thread for signals could be started: only SIGKILL ends the host");
    }
}

/// What the service manager is told once the host is up.
pub enum Readiness {
    /// The host runs the jobs of a QPU; Redis gets a moment to be connected.
    Jobs { redis: Redis, wait: Duration, qpu_id: String },
    /// The host only lends its slots.
    PeerOnly,
}

impl Readiness {
    async fn status(self) -> String {
        match self {
            Readiness::PeerOnly => "lending slots to the peer network".into(),
            // A host without Redis is up as well, and goes on trying.
            Readiness::Jobs { redis, wait, qpu_id } => match redis.link.wait_up(wait).await {
                true => format!("running jobs of {qpu_id}"),
                false => format!("waiting for the Redis of {qpu_id}"),
            },
        }
    }
}

/// Tells the service manager that the host is up, alive as often as is asked for, and once that it is stopping.
pub async fn notify(env: ProcessEnv, readiness: Readiness, stop: CancellationToken) {
    let variable = |name: &str| env.environment.get(name).map(String::as_str);
    let notifier = Notifier::new(variable("NOTIFY_SOCKET"), variable("WATCHDOG_USEC"));
    notifier.ready(&readiness.status().await);
    let interval = notifier.watchdog_interval();
    let mut stopping = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval.unwrap_or(LONGEST_SLEEP)) => {
                if interval.is_some() {
                    notifier.alive();
                }
            }
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                notifier.stopping();
            }
        }
    }
}
