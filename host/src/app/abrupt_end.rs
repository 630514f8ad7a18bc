//! The end of a process that can't wait for an orderly one: at a second signal, or when a stop takes too long.
//!
//! Everything that ends a host in order runs on the async runtime. A plugin that closes the runtime's descriptors, or a
//! panic inside it, would leave a process that no signal ends; so the limit of a stop is kept by a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::sys;

/// The limit of a stop until the settings are read.
const EARLY_LIMIT: Duration = Duration::from_secs(30);

/// What an abrupt end does first, and when it comes by itself. Clones are one.
#[derive(Clone, Default)]
pub struct AbruptEnd(Arc<State>);

struct State {
    last: Mutex<Option<LastAct>>,
    limit: Mutex<Duration>,
    is_armed: AtomicBool,
}

type LastAct = Box<dyn Fn() + Send>;

impl Default for State {
    fn default() -> State {
        State { last: Mutex::default(), limit: Mutex::new(EARLY_LIMIT), is_armed: AtomicBool::new(false) }
    }
}

impl AbruptEnd {
    /// Sets what must be done before the process ends. It must be quick.
    pub fn prepare(&self, last: impl Fn() + Send + 'static) {
        *self.0.last.lock() = Some(Box::new(last));
    }

    /// Sets how long a stop may take in all.
    pub fn set_limit(&self, limit: Duration) {
        *self.0.limit.lock() = limit;
    }

    pub fn perform(&self) {
        if let Some(last) = &*self.0.last.lock() {
            last();
        }
    }

    /// From now on the process has the limit's time to end; then it is ended with this status. Only the first call
    /// counts.
    pub fn arm(&self, reason: &'static str, status: u8) {
        if self.0.is_armed.swap(true, Ordering::AcqRel) {
            return;
        }
        let end = self.clone();
        let limit = *self.0.limit.lock();
        let wait = move || {
            std::thread::sleep(limit);
            tracing::error!(?limit, "the host did not end in time after {reason}; ending it at once");
            end.perform();
            sys::exit_at_once(status);
        };
        if let Err(error) = std::thread::Builder::new().name("stop-limit".into()).spawn(wait) {
            tracing::warn!(%error, "no thread could be started to limit the time of the stop");
        }
    }
}
