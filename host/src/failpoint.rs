//! Named steps at which a crash test stops a job, so that it can kill the process at exactly that moment.
//!
//! Built with the cargo feature `failpoints`, the host reads `CODA_FAILPOINT=<step>:<file>` once: when a job reaches the
//! step, the host creates the file and goes no further with that job. Without the feature, as the host is shipped, the
//! variable is not read and every call here is empty. `CODA_FAILPOINT_TASK=<name>` has the long-lived task of that name
//! end as soon as it begins.

/// The steps of a job, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failpoint {
    /// The message is claimed, and nothing of it has been looked at.
    Claimed,
    /// The job is about to run in the plugin.
    Executing,
    /// The plugin has answered, and the answer is not judged yet.
    Returned,
    /// The result is on disk.
    Stored,
    /// The cancel key has been looked at.
    Decided,
    /// The terminal state is in Redis, or noted on disk.
    Announced,
    /// The delivery is recorded, and the message is not acknowledged yet.
    Delivered,
}

impl Failpoint {
    pub const ALL: [Failpoint; 7] = [
        Failpoint::Claimed,
        Failpoint::Executing,
        Failpoint::Returned,
        Failpoint::Stored,
        Failpoint::Decided,
        Failpoint::Announced,
        Failpoint::Delivered,
    ];

    /// Its name in `CODA_FAILPOINT`.
    pub fn name(self) -> &'static str {
        match self {
            Failpoint::Claimed => "claimed",
            Failpoint::Executing => "executing",
            Failpoint::Returned => "returned",
            Failpoint::Stored => "stored",
            Failpoint::Decided => "decided",
            Failpoint::Announced => "announced",
            Failpoint::Delivered => "delivered",
        }
    }
}

#[cfg(feature = "failpoints")]
pub use enabled::{ends_task, pause_at, pause_thread_at};

/// Waits for ever when `CODA_FAILPOINT` names this step.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub async fn pause_at(_step: Failpoint) {}

/// Blocks the thread for ever when `CODA_FAILPOINT` names this step.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn pause_thread_at(_step: Failpoint) {}

/// Whether `CODA_FAILPOINT_TASK` names this task.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn ends_task(_name: &str) -> bool {
    false
}

#[cfg(feature = "failpoints")]
mod enabled {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    use super::Failpoint;

    const VARIABLE: &str = "CODA_FAILPOINT";

    /// What the variable asks for.
    #[derive(Debug)]
    struct Wanted {
        step: Failpoint,
        file: PathBuf,
    }

    /// Waits for ever when `CODA_FAILPOINT` names this step.
    pub async fn pause_at(step: Failpoint) {
        if is_reached(step) {
            std::future::pending::<()>().await;
        }
    }

    /// Blocks the thread for ever when `CODA_FAILPOINT` names this step.
    pub fn pause_thread_at(step: Failpoint) {
        while is_reached(step) {
            std::thread::park();
        }
    }

    /// Whether `CODA_FAILPOINT_TASK` names this task.
    pub fn ends_task(name: &str) -> bool {
        static WANTED: OnceLock<Option<String>> = OnceLock::new();
        WANTED.get_or_init(|| std::env::var("CODA_FAILPOINT_TASK").ok()).as_deref() == Some(name)
    }

    fn is_reached(step: Failpoint) -> bool {
        static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
        let Some(wanted) = WANTED.get_or_init(read).as_ref().filter(|w| w.step == step) else { return false };
        tracing::warn!(step = step.name(), "pausing at a failpoint, as CODA_FAILPOINT asks");
        if let Err(error) = std::fs::write(&wanted.file, step.name()) {
            tracing::error!(path = %wanted.file.display(), %error, "the file of the failpoint can't be written");
        }
        true
    }

    fn read() -> Option<Wanted> {
        let value = std::env::var(VARIABLE).ok()?;
        let wanted = value.split_once(':').and_then(|(name, file)| {
            let step = Failpoint::ALL.into_iter().find(|step| step.name() == name)?;
            Some(Wanted { step, file: file.into() })
        });
        if wanted.is_none() {
            tracing::error!(value, "CODA_FAILPOINT can't be read; expected <step>:<file>");
        }
        wanted
    }
}
