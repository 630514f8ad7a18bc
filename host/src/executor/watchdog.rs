//! Runs that take too long: first they are asked to end, then nothing waits for them any more.
//!
//! A run beyond the time limit is cancelled, as a user would. One that goes on for longer than the grace after its
//! cancel is killed with its process where the plugin has one of its own. In this process nothing can end it: the
//! host says so, claims nothing more, and ends for its supervisor to start it again if it is told to. In either case
//! nothing runs on the hardware beside a run that hasn't come back.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::in_flight::{InFlightCall, lock};
use super::plugin::Plugin;
use super::pool::Control;
use super::slot::Shared;
use crate::error::exit;

/// How long runs and their ends may take.
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    /// Of a run; `None` for no limit.
    pub run: Option<Duration>,
    /// After its cancel.
    pub grace: Duration,
    /// Whether the host ends when a run in this process doesn't.
    pub exit: bool,
}

/// A run in this process that doesn't end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckRun {
    pub job_id: String,
    /// When it was asked to end.
    pub since: Instant,
}

impl RunLimits {
    fn look_every(&self) -> Duration {
        let shortest = self.run.map_or(self.grace, |run| run.min(self.grace));
        (shortest / 8).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }
}

/// Looks at the runs until the executor is gone. For a thread of its own.
pub(super) fn watch(shared: &Weak<Shared>, plugin: &Plugin, control: &Sender<Control>, limits: RunLimits) {
    let pause = limits.look_every();
    while let Some(shared) = shared.upgrade() {
        look(&shared, plugin, control, limits);
        drop(shared);
        std::thread::sleep(pause);
    }
}

fn look(shared: &Shared, plugin: &Plugin, control: &Sender<Control>, limits: RunLimits) {
    let in_flight: Vec<(u64, Arc<InFlightCall>)> =
        lock(&shared.in_flight).iter().map(|(t, call)| (*t, call.clone())).collect();
    let mut stuck = None;
    for (ticket, call) in in_flight {
        let Some(since) = call.running_since() else { continue };
        let job_id = call.job_id();
        match call.asked_to_end() {
            None if limits.run.is_some_and(|limit| since.elapsed() > limit) => {
                tracing::warn!(job_id, limit = ?limits.run, "the run takes too long and is asked to end");
                call.time_out();
                // A control thread that is gone has an executor that is going.
                control.send(Control::Cancel { ticket }).ok();
            }
            Some(asked) if asked.elapsed() > limits.grace => match plugin.remote() {
                Some(remote) => {
                    let why = format!(
                        "the run of job {job_id} went on for more than {:?} after it was asked to end",
                        limits.grace
                    );
                    tracing::error!(job_id, grace = ?limits.grace, "the run did not end; its process is killed");
                    remote.kill(&why);
                }
                None => stuck = Some(StuckRun { job_id: job_id.to_string(), since: asked }),
            },
            _ => {}
        }
    }
    let mut known = lock(&shared.stuck_run);
    if *known == stuck {
        return;
    }
    known.clone_from(&stuck);
    match stuck {
        Some(run) => {
            tracing::error!(
                job_id = run.job_id,
                "the executor is stuck in this job: no more jobs are claimed"
            );
            if limits.exit {
                tracing::error!(
                    "ending for the supervisor to start a new host, as CODA_EXECUTOR_STUCK_EXIT asks for"
                );
                std::process::exit(exit::JOB_LEFT.into());
            }
        }
        None => tracing::info!("the stuck run has come back"),
    }
}
