//! What the process is told and what it tells: signals, requests to reload, the service manager.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::load::ProcessEnv;
use crate::daemon::notify::Notifier;
use crate::error::exit;
use crate::jobs::redis::Redis;
use crate::sys::{self, Dispositions};

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
}

/// What must be done before a second signal ends the process at once.
#[derive(Clone, Default)]
pub struct AbruptEnd(Arc<Mutex<Option<LastAct>>>);

type LastAct = Box<dyn Fn() + Send>;

impl AbruptEnd {
    /// Sets it. It must be quick.
    pub fn prepare(&self, last: impl Fn() + Send + 'static) {
        *self.0.lock() = Some(Box::new(last));
    }

    fn perform(&self) {
        if let Some(last) = &*self.0.lock() {
            last();
        }
    }
}

impl Lifecycle {
    /// Begins to watch signals.
    pub fn begin() -> Lifecycle {
        let stop = CancellationToken::new();
        let dispositions = Arc::new(Dispositions::capture());
        let (requests, reload_requests) = mpsc::unbounded_channel();
        let abrupt_end = AbruptEnd::default();
        watch(stop.clone(), Some(requests), abrupt_end.clone());
        Lifecycle { stop, reload_requests, dispositions, abrupt_end }
    }
}

/// Cancels `stop` at the first signal that asks to stop; the second one ends the process.
pub fn watch_signals(stop: CancellationToken) {
    watch(stop, None, AbruptEnd::default());
}

/// A SIGHUP asks for a reload where reloads are served, except at a terminal: there it tells that the terminal is gone.
fn watch(stop: CancellationToken, reloads: Option<mpsc::UnboundedSender<()>>, abrupt_end: AbruptEnd) {
    use std::io::IsTerminal as _;
    let reloads = reloads.filter(|_| !std::io::stdin().is_terminal());
    let waiter = move || {
        let mut asked = false;
        loop {
            match sys::wait_stop_signal() {
                Ok(libc::SIGHUP) if reloads.as_ref().is_some_and(|r| r.send(()).is_ok()) => {}
                Ok(signal) if asked || stop.is_cancelled() => {
                    tracing::warn!("a second signal: ending at once");
                    abrupt_end.perform();
                    sys::exit(u8::try_from(128 + signal).unwrap_or(exit::FAILURE));
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
