//! Executors in Python code: the interpreters that the Makefile makes, and the executors of `tests/python/executors`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::artifacts::project_file;
use crate::circuits::{Circuit, Job};
use crate::test_host::{Plan, TestHost};

/// The variables that name the virtual environments.
const VENVS: [&str; 3] = ["CODA_TEST_NODE_VENV", "CODA_TEST_NODE_VENV_OLD", "CODA_TEST_NODE_VENV_NEW"];

/// A virtual environment with coda-node 0.1.1; `None` skips, with a word.
pub fn venv() -> Option<PathBuf> {
    let found = named(VENVS[0]);
    if found.is_none() {
        eprintln!(
            "SKIPPED: no coda-node here; `make python-deps` makes its venv (it needs Debian's python3-venv)"
        );
    }
    found
}

/// Every virtual environment: another coda-node, another Python.
pub fn venvs() -> Vec<PathBuf> {
    VENVS.into_iter().filter_map(named).collect()
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.join("bin/python").is_file())
}

/// The directory of a virtual environment's packages.
pub fn packages(venv: &Path) -> PathBuf {
    let entries = std::fs::read_dir(venv.join("lib")).expect("a virtual environment").flatten();
    let version = entries.map(|e| e.path()).find(|p| p.join("site-packages").is_dir());
    version.expect("a version of Python").join("site-packages")
}

/// The directory of the tests' executors.
pub fn executors() -> PathBuf {
    project_file("tests/python/executors")
}

impl Plan {
    /// An executor in Python code, such as `lab:create_executor`, with these keys besides.
    pub fn python(venv: &Path, factory: &str, keys: &str) -> Plan {
        Plan::device(format!("executor_factory: {factory}\n{keys}")).with_interpreter(venv)
    }

    /// The interpreter of this virtual environment, which finds the tests' executors.
    pub fn with_interpreter(self, venv: &Path) -> Plan {
        self.env("CODA_EXECUTOR_PYTHON", venv.display().to_string())
            .env("PYTHONPATH", executors().display().to_string())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("CODA_EXECUTOR_RESTART_BACKOFF_SEC", "0.02")
            .env("CODA_EXECUTOR_RESTART_BACKOFF_MAX_SEC", "0.2")
            .as_own_user()
    }
}

/// A job whose circuit tells `lab` what to do.
pub fn lab_job(host: &TestHost, id: &str, mode: &str, shots: u32) -> Job {
    let circuit = Circuit::new(2);
    host.job(id, &circuit, shots).field("ir_json", lab_circuit(mode).to_string())
}

/// A circuit of two qubits that tells `lab` what to do.
pub fn lab_circuit(mode: &str) -> Value {
    let mut json = Circuit::new(2).json();
    json["metadata"]["source_hash"] = json!(mode);
    json
}

/// The file in which `lab` notes what it did.
pub fn notes(host: &TestHost) -> Vec<String> {
    let text = std::fs::read_to_string(notes_file(host)).unwrap_or_default();
    text.lines().map(String::from).collect()
}

pub fn notes_file(host: &TestHost) -> PathBuf {
    host.dir().join("notes")
}
