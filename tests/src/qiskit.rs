//! Qiskit backends: the virtual environments that `make qiskit-deps` makes, and the backends of `tests/python/executors`.

use std::path::{Path, PathBuf};

use crate::test_host::Plan;

/// Qiskit with Aer, IBM's fake backends and AQT's provider; `None` skips, with a message.
pub fn venv() -> Option<PathBuf> {
    named("CODA_TEST_QISKIT_VENV")
}

/// IQM's client, which needs an older Qiskit.
pub fn iqm_venv() -> Option<PathBuf> {
    named("CODA_TEST_IQM_VENV")
}

fn named(variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.join("complete").is_file());
    if found.is_none() {
        eprintln!("SKIPPED: no Qiskit here ({variable}); `make test-qiskit` installs it and runs this");
    }
    found
}

/// A host whose executor is `coda_qiskit`, with these keys.
pub fn plan(venv: &Path, keys: &str) -> Plan {
    // Aer's threads would only compete with the tests.
    Plan::python(venv, "coda_qiskit:create_executor", keys).env("OMP_NUM_THREADS", "1")
}
