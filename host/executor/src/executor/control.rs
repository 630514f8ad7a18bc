//! The control thread: cancel, the question for the device, and shutdown reach the plugin beside the runs, one call at
//! a time.
//!
//! A control call may hang in the plugin. It is noted while it lasts, so that one which takes too long is seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use coda_plugin_abi::Error;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::ffi::Common;
use super::plugin::Plugin;
use super::refresh::DeviceRefresh;
use super::shared::Shared;
use super::signals;
use super::status::ExecutorStatus;

/// What the control thread is asked to do.
pub(super) enum ControlRequest {
    Cancel {
        ticket: u64,
    },
    /// Asks the plugin for its device again.
    Refresh(Arc<DeviceRefresh>),
    /// Shuts the plugin down, and ends the thread after the answer.
    Shutdown(oneshot::Sender<Option<Error>>),
}

/// A call in the plugin that should return soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlCall {
    /// What is called, and for which job.
    pub call: String,
    pub plugin: String,
    pub since: Instant,
    /// After which time the plugin's process is killed, where the plugin has one.
    pub killed_after: Option<Duration>,
}

/// The calls in the plugin that should return soon.
#[derive(Clone, Default)]
pub struct ControlCalls(Arc<Mutex<BTreeMap<u64, ControlCall>>>);

/// A control call is in the plugin until this is dropped.
pub struct ControlCallGuard {
    calls: ControlCalls,
    number: u64,
}

impl ControlCalls {
    /// Notes the begin of a call.
    pub fn begin(&self, call: String, plugin: Arc<str>, killed_after: Option<Duration>) -> ControlCallGuard {
        let mut calls = self.0.lock();
        let number = calls.last_key_value().map_or(0, |(last, _)| last + 1);
        let call = ControlCall { call, plugin: plugin.to_string(), since: Instant::now(), killed_after };
        calls.insert(number, call);
        ControlCallGuard { calls: self.clone(), number }
    }

    /// The call that has lasted longest.
    pub fn first(&self) -> Option<ControlCall> {
        self.0.lock().values().next().cloned()
    }

    /// The first call that takes longer than `limit`.
    pub fn stuck(&self, limit: Duration) -> Option<ControlCall> {
        self.0.lock().values().find(|call| call.since.elapsed() > limit).cloned()
    }
}

impl Drop for ControlCallGuard {
    fn drop(&mut self) {
        self.calls.0.lock().remove(&self.number);
    }
}

/// What the control thread needs.
pub(super) struct ControlThread {
    pub plugin: Plugin,
    pub common: Arc<Common>,
    pub shared: Arc<Shared>,
}

impl ControlThread {
    /// Serves requests until a shutdown, or until every sender of requests is gone.
    pub fn serve(&self, requests: &Receiver<ControlRequest>) {
        while let Ok(request) = requests.recv() {
            match request {
                ControlRequest::Cancel { ticket } => self.cancel(ticket),
                ControlRequest::Refresh(refresh) => {
                    self.watched("device".into(), || {
                        refresh.perform();
                        None
                    });
                }
                ControlRequest::Shutdown(answer) => {
                    let error = self.watched("shutdown".into(), || self.plugin.shutdown());
                    if answer.send(error).is_err() {
                        tracing::debug!("the plugin's shutdown returned after its time limit");
                    }
                    return;
                }
            }
        }
    }

    fn cancel(&self, ticket: u64) {
        // A run that has returned meanwhile needs no cancel.
        let Some(in_flight) = self.shared.in_flight.get(ticket) else { return };
        let job_id = in_flight.job_id();
        let error =
            self.watched(format!("cancel of job {job_id}"), || in_flight.cancel(|id| self.plugin.cancel(id)));
        if let Some(error) = error {
            tracing::warn!(
                plugin = &*self.common.plugin(),
                job_id,
                error = error.text,
                "the plugin's cancel hook failed"
            );
        }
    }

    /// Calls the plugin, visibly to those who look for a call that does not return.
    fn watched(&self, call: String, body: impl FnOnce() -> Option<Error>) -> Option<Error> {
        let limit = self.plugin.remote().map(|_| self.shared.control_timeout);
        let noted = self.shared.control_calls.begin(call.clone(), self.common.plugin(), limit);
        let error = body();
        drop(noted);
        signals::restore_after(&self.shared.dispositions, &self.common.plugin(), &call);
        error
    }
}

/// Asks for the end of jobs: the one way to a cancel, for cloud jobs and reservations alike.
#[derive(Clone)]
pub(super) struct Canceller {
    pub shared: Arc<Shared>,
    pub plugin: Plugin,
    pub status: ExecutorStatus,
    pub requests: Sender<ControlRequest>,
}

impl Canceller {
    /// Asks for the end of a job: a job before its call is skipped, during the call the plugin's hook is told, and
    /// afterwards nothing happens.
    pub fn cancel(&self, ticket: u64) {
        if let Some(in_flight) = self.shared.in_flight.get(ticket) {
            in_flight.context().set_cancelled();
            in_flight.ask_to_end();
        }
        if self.plugin_hears_of_cancels() && self.requests.send(ControlRequest::Cancel { ticket }).is_err() {
            tracing::debug!(ticket, "a cancel came after the plugin's shutdown");
        }
    }

    /// Whether the plugin is told of cancels: by its hook, or by the flag in its own process.
    fn plugin_hears_of_cancels(&self) -> bool {
        self.status.active_plugin().hooks.cancel || self.plugin.remote().is_some()
    }
}
