//! A plugin with an executor in it, in this process or in one of its own: the same calls either way.
//!
//! Which call may come from which thread: `plugin-abi/src/module.rs`.

use std::sync::Arc;

use coda_plugin_abi::{Amplitude, Error};

use super::ffi::{BatchAnswers, CallAnswer, CallEvolve, CallJob, DeviceReply, Instance};
use super::job::LostCall;
use super::worker::{Remote, Trouble};

/// A plugin with an executor in it.
#[derive(Clone)]
pub(super) enum Plugin {
    Direct(Instance),
    Remote(Arc<Remote>),
}

impl Plugin {
    /// Runs one job.
    ///
    /// # Errors
    /// When the call came to nothing without a fault of the job's own.
    pub fn run(&self, slot: usize, job: &CallJob<'_>) -> Result<CallAnswer, LostCall> {
        match self {
            Plugin::Direct(instance) => Ok(instance.run(job)),
            Plugin::Remote(remote) => remote.run(slot, job),
        }
    }

    /// Runs several jobs in one call.
    ///
    /// # Errors
    /// When the call came to nothing: any of the jobs may be the cause.
    pub fn batch_run(&self, slot: usize, jobs: &[CallJob<'_>]) -> Result<BatchAnswers, LostCall> {
        match self {
            Plugin::Direct(instance) => Ok(instance.batch_run(jobs)),
            Plugin::Remote(remote) => remote.batch_run(slot, jobs),
        }
    }

    /// Has the plugin evolve a state. The inner error is the plugin's.
    ///
    /// # Errors
    /// When the call came to nothing without a fault of the job's own.
    pub fn evolve_state(
        &self,
        slot: usize,
        call: &CallEvolve<'_>,
    ) -> Result<Result<Vec<Amplitude>, Error>, LostCall> {
        match self {
            Plugin::Direct(instance) => Ok(instance.evolve_state(call)),
            Plugin::Remote(remote) => remote.evolve_state(slot, call),
        }
    }

    /// What the plugin says of its device.
    ///
    /// # Errors
    /// When the plugin can't describe its device.
    pub fn device(&self) -> Result<DeviceReply, Error> {
        match self {
            Plugin::Direct(instance) => instance.device(),
            Plugin::Remote(remote) => Ok(remote.device_reply()),
        }
    }

    /// What the plugin says of its device now; `None` while its process is away.
    pub fn describe_again(&self) -> Option<Result<DeviceReply, Error>> {
        match self {
            Plugin::Direct(instance) => Some(instance.device()),
            Plugin::Remote(remote) => remote.describe(),
        }
    }

    pub fn cancel(&self, job_id: &str) -> Option<Error> {
        match self {
            Plugin::Direct(instance) => instance.cancel(job_id),
            Plugin::Remote(remote) => remote.cancel(job_id),
        }
    }

    pub fn shutdown(&self) -> Option<Error> {
        match self {
            Plugin::Direct(instance) => instance.shutdown(),
            Plugin::Remote(remote) => remote.shutdown(),
        }
    }

    /// After every other call has returned; no clone may be used afterwards.
    pub fn destroy(&self) -> Option<Error> {
        match self {
            Plugin::Direct(instance) => instance.destroy(),
            Plugin::Remote(remote) => remote.destroy(),
        }
    }

    /// The process of its own, when it has one.
    pub fn remote(&self) -> Option<&Arc<Remote>> {
        match self {
            Plugin::Direct(_) => None,
            Plugin::Remote(remote) => Some(remote),
        }
    }

    pub fn trouble(&self) -> Option<Trouble> {
        self.remote().and_then(|r| r.trouble())
    }
}
