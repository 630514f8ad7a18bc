//! A process that is ready to create its executor.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::super::python::spec::PythonFacts;
use super::process::{Kill, Process};
use super::spec::WorkerSpec;

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
