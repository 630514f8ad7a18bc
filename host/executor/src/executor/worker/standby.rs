//! A process that is ready to create its executor, or was only asked for what it has.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use super::super::ffi::Common;
use super::super::python::spec::PythonFacts;
use super::process::{Kill, Process, RunningJobs};
use super::spec::{MakeError, WorkerSpec};

/// A process with the library open and the config checked, and no executor. Dropped, it ends.
pub struct Standby {
    pub(super) process: Option<Arc<Process>>,
    pub(super) ended: Option<Receiver<String>>,
    pub(super) spec: WorkerSpec,
    pub(super) facts: Option<PythonFacts>,
}

impl Standby {
    /// What a Python executor's process says of itself.
    pub fn facts(&self) -> Option<&PythonFacts> {
        self.facts.as_ref()
    }

    /// The executor's name in the log.
    pub(super) fn plugin(&self) -> String {
        self.facts.as_ref().map_or_else(|| self.spec.plugin(), |facts| facts.package.clone())
    }

    pub(super) fn drop_for(&mut self, why: &'static str) {
        if let Some(process) = self.process.take() {
            process.kill(Kill::NotNeeded(why));
        }
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.drop_for("it is not needed");
    }
}

/// Starts a process that checks Python code, and ends it; returns what it tells.
///
/// # Errors
/// When the process can't be started, or the interpreter can't be used.
pub fn inspect(spec: &WorkerSpec, common: &Arc<Common>, limit: Duration) -> Result<PythonFacts, MakeError> {
    let (process, _ended) = Process::start(spec, common.clone(), Arc::new(NoJobs))
        .map_err(|e| MakeError::Process(e.to_string()))?;
    let checked = process.check(spec, limit);
    process.kill(Kill::NotNeeded("it was only asked"));
    checked?.facts.ok_or_else(|| MakeError::Process("it told nothing of itself".into()))
}

/// A process without an executor runs nothing.
struct NoJobs;

impl RunningJobs for NoJobs {
    fn progress(&self, _: &str, _: u64, _: u64) {}

    fn only_job(&self) -> Option<String> {
        None
    }
}
