//! What a plugin's process needs to create its executor, and what can become of that.

use std::path::PathBuf;
use std::time::Duration;

use coda_plugin_abi::Error;
use serde::{Deserialize, Serialize};

use super::super::ffi::{DeviceReply, LibraryOpenError};
use super::super::loader::{HashedFile, OpenLibrary};
use super::super::python::device::PythonDevice;
use super::super::python::spec::{PythonFacts, PythonSpec};
use crate::sys::{Account, KeptCapabilities};

/// What a process needs to create its executor, by binding.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkerSpec {
    Library(LibrarySpec),
    Python(PythonSpec),
}

impl WorkerSpec {
    /// The executor's name in the log.
    pub fn plugin(&self) -> String {
        match self {
            WorkerSpec::Library(spec) => spec.plugin.clone(),
            WorkerSpec::Python(spec) => spec.plugin(),
        }
    }

    /// The capabilities that the process keeps.
    pub fn capabilities(&self) -> KeptCapabilities {
        match self {
            WorkerSpec::Library(spec) => spec.capabilities,
            WorkerSpec::Python(spec) => spec.capabilities,
        }
    }

    /// The account whose rights the process takes on.
    pub fn account(&self) -> Option<&Account> {
        match self {
            WorkerSpec::Library(spec) => spec.account.as_ref(),
            WorkerSpec::Python(spec) => spec.account.as_ref(),
        }
    }
}

/// What a process needs to create the executor of a library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LibrarySpec {
    /// The file to open.
    pub opened: PathBuf,
    /// The very file that was checked, which is opened unless it must be opened in place.
    #[serde(skip)]
    pub file: Option<OpenLibrary>,
    /// Files that are opened in place; none when the library is opened through its descriptor.
    pub in_place: Vec<HashedFile>,
    /// Files that the account must be able to read.
    pub reads: Vec<PathBuf>,
    /// The account whose rights the process takes on.
    #[serde(skip)]
    pub account: Option<Account>,
    /// The capabilities that the process keeps.
    #[serde(skip)]
    pub capabilities: KeptCapabilities,
    /// The library has the C binding, otherwise the Rust binding.
    pub c_binding: bool,
    pub api_minor: u16,
    pub plugin: String,
    pub entry: String,
    pub config_path: PathBuf,
    pub config_text: String,
    pub native_gate_set: String,
    pub num_qubits: u16,
    /// The most verbose level that the host logs.
    pub log_level: u32,
}

/// How a step of the creation ended in the child.
#[derive(Debug, Serialize, Deserialize)]
pub enum StepOutcome {
    /// The library is open and the config fits; with the config's secrets.
    Checked(Vec<String>),
    Created(Box<DeviceReply>),
    /// The interpreter has what the executor needs.
    PythonChecked(Box<PythonFacts>),
    PythonCreated(PythonDevice),
    /// The interpreter can't be used for this executor, and what to do about it.
    PythonRefused {
        what: String,
        hint: String,
    },
    /// The process could not give up its rights.
    Rights(String),
    /// The account may not read this file.
    Unreadable {
        path: PathBuf,
        why: String,
    },
    Open(LibraryOpenError),
    /// The config doesn't fit the plugin's schema.
    Config(String),
    Create(Error),
    Describe(Error),
}

/// What a process tells once it has made sure that its executor can be created.
#[derive(Debug, Clone, Default)]
pub struct CheckedExecutor {
    /// Values of the device config that must not be shown.
    pub secrets: Vec<String>,
    /// What a Python executor's process says of itself.
    pub facts: Option<PythonFacts>,
}

/// Why there is no executor.
#[derive(Debug)]
pub enum MakeError {
    Rights(String),
    Unreadable {
        account: Box<Account>,
        path: PathBuf,
        why: String,
    },
    Open(LibraryOpenError),
    Config(String),
    Create(Error),
    Describe(Error),
    /// The interpreter can't be used for this executor, and what to do about it.
    Python {
        what: String,
        hint: String,
    },
    /// The process could not be started, or died.
    Process(String),
    /// A call did not return in time, and the process was killed.
    NoReturn {
        call: &'static str,
        limit: Duration,
    },
}

impl MakeError {
    /// In one line.
    pub fn text(&self) -> String {
        match self {
            MakeError::Open(
                LibraryOpenError::Loader(t)
                | LibraryOpenError::NoModule(t)
                | LibraryOpenError::Layout(t)
                | LibraryOpenError::Table(t),
            )
            | MakeError::Config(t)
            | MakeError::Process(t) => t.clone(),
            MakeError::NoReturn { call, limit } => format!("its {call} did not return within {limit:?}"),
            MakeError::Rights(t) => format!("its rights could not be given up: {t}"),
            MakeError::Unreadable { account, path, why } => {
                format!("the account {} may not read {}: {why}", account.name, path.display())
            }
            MakeError::Create(e) | MakeError::Describe(e) => e.text.clone(),
            MakeError::Python { what, .. } => what.clone(),
        }
    }
}
