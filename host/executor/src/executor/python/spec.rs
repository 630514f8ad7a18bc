//! What a Python executor's process is told, and what it tells of itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::device::DeviceBasics;
use super::interpreter::Interpreter;
use crate::sys::{Account, KeptCapabilities};

/// What the process needs to create the executor. What is skipped is the host's own.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PythonSpec {
    #[serde(skip)]
    pub interpreter: Interpreter,
    /// The account whose rights the process takes on.
    #[serde(skip)]
    pub account: Option<Account>,
    /// The capabilities that the process keeps.
    #[serde(skip)]
    pub capabilities: KeptCapabilities,
    #[serde(skip)]
    pub basics: DeviceBasics,
    #[serde(skip)]
    pub secrets: Vec<String>,
    /// `module:attribute`; `None` has the process look through its packages.
    pub factory: Option<String>,
    /// What the factory is given: fields of coda-node's `Settings`.
    pub settings: BTreeMap<String, Value>,
    pub config_path: Option<PathBuf>,
    /// The device config's values, for interpreters without a reader of YAML; null when they are not known.
    pub config: Value,
    /// Modules that the bridge brings along.
    pub modules: BTreeMap<&'static str, &'static str>,
    /// Whether the executor's keys are in the reverse order.
    pub reverse_bits: bool,
    /// How long a failed run's threads may go on before the process is started again.
    pub thread_wait_sec: f64,
    /// The most verbose level that the host logs.
    pub log_level: u32,
    /// Whether the factory is imported at the check, to tell its hooks.
    pub inspect: bool,
}

impl PythonSpec {
    /// The name in the log, before the process has told which package it is.
    pub fn plugin(&self) -> String {
        let module = self.factory.as_deref().and_then(|factory| factory.split(':').next());
        module.unwrap_or("python").to_string()
    }
}

/// What a Python executor's process says of itself once it is checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonFacts {
    pub factory: String,
    /// The distribution that holds the factory's module, or the module itself.
    pub package: String,
    /// Empty when no distribution holds it.
    pub package_version: String,
    /// Version of the installed coda-node; empty without one.
    pub coda_node: String,
    /// Version of Python.
    pub python: String,
    /// Optional methods of the executor, when they were asked for.
    pub hooks: Option<String>,
}

impl PythonFacts {
    /// The package with its version.
    pub fn name(&self) -> String {
        format!("{} {}", self.package, self.package_version).trim_end().to_string()
    }

    /// Whether coda-node is installed, and which version.
    pub fn node(&self) -> String {
        node_text(&self.coda_node)
    }
}

/// A version of coda-node in words; empty is none.
pub fn node_text(version: &str) -> String {
    if version.is_empty() { "without coda-node".into() } else { format!("coda-node {version}") }
}
