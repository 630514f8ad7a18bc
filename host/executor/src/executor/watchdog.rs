//! Runs that take too long: first they are asked to end, then nothing waits for them any more.
//!
//! A run beyond the time limit is cancelled, as a user would cancel it. A run that goes on for longer than the grace
//! period after its cancel is killed with its process where the plugin runs in a separate one; in a batch, after the cancel of
//! the last of its jobs, since it works on for the others. In this process nothing can
//! end it: the host says so, claims nothing more, and ends for its supervisor to start it again if it is told to. In
//! either case nothing runs on the hardware beside a run that has not come back.
//!
//! It also has the device asked for from time to time (`refresh`).

use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::control::ControlCall;
use super::control::ControlRequest;
use super::in_flight::InFlightCall;
use super::plugin::Plugin;
use super::refresh::DeviceRefresh;
use super::shared::{RunLimits, Shared, StuckRun, WhenStuck};
use super::worker::Kill;
use crate::error::exit;
use crate::sys;

/// Looks at the runs until the executor is gone, which it notices by itself. Runs on a separate thread.
pub(super) fn watch(
    shared: &Weak<Shared>,
    plugin: &Plugin,
    control: &Sender<ControlRequest>,
    limits: RunLimits,
    refresh: &Refreshes,
) {
    let mut told = None;
    let mut next_refresh = Instant::now() + refresh.interval;
    while let Some(shared) = shared.upgrade() {
        let pause = pause_between_looks(limits, shared.control_timeout);
        let stuck_call = shared.control_calls.stuck(shared.control_timeout);
        tell_stuck_call(&mut told, stuck_call);
        if Instant::now() >= next_refresh {
            next_refresh = Instant::now() + refresh.interval;
            refresh.ask(control);
        }
        let stuck = look_at_runs(&shared, plugin, control, limits);
        report_stuck_run(&shared, stuck, limits.when_stuck);
        // Nothing is kept of the executor while sleeping, so that it can go.
        drop(shared);
        std::thread::sleep(pause);
    }
}

/// The device is asked for so often.
pub(super) struct Refreshes {
    pub interval: Duration,
    pub refresh: Arc<DeviceRefresh>,
}

impl Refreshes {
    /// Beside a call that does not return no further one is asked for.
    fn ask(&self, control: &Sender<ControlRequest>) {
        if self.refresh.request() && control.send(ControlRequest::Refresh(self.refresh.clone())).is_err() {
            tracing::debug!("the device was to be described after the plugin's shutdown");
        }
    }
}

/// An eighth of the shortest limit: late enough not to matter, early enough for short limits.
fn pause_between_looks(limits: RunLimits, control: Duration) -> Duration {
    let shortest = limits.run.map_or(limits.grace, |run| run.min(limits.grace));
    (shortest.min(control) / 8).clamp(Duration::from_millis(5), Duration::from_secs(1))
}

/// Cancels and kills what takes too long; a run that can't be ended is returned.
fn look_at_runs(
    shared: &Shared,
    plugin: &Plugin,
    control: &Sender<ControlRequest>,
    limits: RunLimits,
) -> Option<StuckRun> {
    let mut stuck = None;
    for (ticket, call) in shared.in_flight.snapshot() {
        match next_step(&call, limits) {
            Step::Wait => {}
            Step::AskToEnd => {
                let job_id = call.job_id();
                tracing::warn!(job_id, limit = ?limits.run, "the run takes too long and is asked to end");
                call.time_out();
                if control.send(ControlRequest::Cancel { ticket }).is_err() {
                    tracing::debug!(job_id, "a run exceeded its time limit after the plugin's shutdown");
                }
            }
            Step::End(run) => match plugin.remote() {
                Some(remote) => {
                    let (job_id, grace) = (run.job_id, limits.grace);
                    tracing::error!(job_id, ?grace, "the run did not end; its process is killed");
                    remote.kill(Kill::StuckRun { job_id, grace });
                }
                None => stuck = Some(run),
            },
        }
    }
    stuck
}

/// What is due for one run.
enum Step {
    Wait,
    AskToEnd,
    End(StuckRun),
}

fn next_step(call: &Arc<InFlightCall>, limits: RunLimits) -> Step {
    let Some(running_since) = call.running_since() else { return Step::Wait };
    if call.asked_to_end().is_none() && limits.run.is_some_and(|limit| running_since.elapsed() > limit) {
        return Step::AskToEnd;
    }
    match call.expected_to_return() {
        Some(since) if since.elapsed() > limits.grace => {
            Step::End(StuckRun { job_id: call.job_id().to_string(), since })
        }
        _ => Step::Wait,
    }
}

/// Logs the control call that does not return, once, and its return.
fn tell_stuck_call(told: &mut Option<ControlCall>, stuck: Option<ControlCall>) {
    if *told == stuck {
        return;
    }
    match (&stuck, &told) {
        (Some(ControlCall { call, plugin, killed_after: None, .. }), _) => tracing::error!(
            plugin,
            call,
            "a call of the plugin does not return; restart coda-host, and tell the vendor if it happens again"
        ),
        (Some(ControlCall { call, plugin, killed_after: Some(limit), .. }), _) => {
            tracing::warn!(
                plugin,
                call,
                ?limit,
                "a call of the plugin takes long; its process is killed at the limit"
            );
        }
        (None, Some(ControlCall { call, plugin, .. })) => {
            tracing::info!(plugin, call, "the call of the plugin has ended");
        }
        (None, None) => {}
    }
    *told = stuck;
}

/// Publishes the stuck run, and logs it when it changes.
fn report_stuck_run(shared: &Shared, stuck: Option<StuckRun>, when_stuck: WhenStuck) {
    let mut published = shared.stuck_run.lock();
    if *published == stuck {
        return;
    }
    published.clone_from(&stuck);
    // Dropped early: a request for the status must not wait for the log.
    drop(published);
    let Some(run) = stuck else {
        tracing::info!("the stuck run has come back");
        return;
    };
    tracing::error!(job_id = run.job_id, "the executor is stuck in this job: no more jobs are claimed");
    if when_stuck == WhenStuck::ExitProcess {
        exit_for_supervisor();
    }
}

/// Ends the host without waiting for anything: the one place where the executor does so. An orderly end would wait for
/// the run that never returns, and what must survive an abrupt end is on disk (see the crash table in the
/// architecture's page).
fn exit_for_supervisor() -> ! {
    tracing::error!("ending for the supervisor to start a new host, as CODA_EXECUTOR_STUCK_EXIT asks for");
    sys::exit(exit::JOB_LEFT);
}
