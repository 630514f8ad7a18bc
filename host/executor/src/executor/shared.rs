//! What the slot threads, the control thread, the watchdog and the handle of an executor share.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use super::control::ControlCalls;
use super::in_flight::InFlightCalls;
use super::job::{Answer, RunJob, SlotReport};
use super::queue::Queue;
use super::usage::SlotUsage;
use crate::sys::Dispositions;

/// Sees a slot's calls on the slot's own thread, before anything else happens with them.
pub trait RunObserver: Send + Sync {
    /// The jobs are about to enter the plugin.
    fn run_started(&self, slot: usize, jobs: &[&RunJob]);
    /// The plugin has answered one job.
    fn run_answered(&self, job: &RunJob, answer: &Answer);
    /// The call is over.
    fn run_finished(&self, slot: usize);
}

/// How long runs and their ends may take.
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    /// Longest run; `None` for no limit.
    pub run: Option<Duration>,
    /// How long a run may go on after its cancel.
    pub grace: Duration,
    pub when_stuck: WhenStuck,
}

/// What the watchdog does about a run in this process that does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenStuck {
    /// Report it: no more jobs are claimed, and `/ready` tells why.
    Report,
    /// Report it and end the process, so that a supervisor starts a new host.
    ExitProcess,
}

/// A run in this process that does not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckRun {
    pub job_id: String,
    /// When it was asked to end.
    pub since: Instant,
}

/// See the module's head.
pub(super) struct Shared {
    pub queue: Arc<Queue>,
    pub in_flight: InFlightCalls,
    /// Set once, before the first job.
    pub observer: OnceLock<Arc<dyn RunObserver>>,
    pub reports: UnboundedSender<SlotReport>,
    pub dispositions: Arc<Dispositions>,
    pub control_timeout: Duration,
    pub control_calls: ControlCalls,
    /// Held while the device in use is replaced.
    pub swap_lock: Arc<Mutex<()>>,
    pub stuck_run: Mutex<Option<StuckRun>>,
    pub limits: RunLimits,
    pub usage: SlotUsage,
}
