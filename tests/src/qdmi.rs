//! QDMI device libraries: the wheels that `make qdmi-deps` fetches, and hosts with a device of one.

use std::path::{Path, PathBuf};

use crate::test_host::Plan;

const DDSIM: &str = "mqt/core/lib64/libmqt-core-qdmi-ddsim-device.so";
const SC: &str = "mqt/core/lib64/libmqt-core-qdmi-sc-device.so";
const IQM: &str = "iqm/qdmi/data/lib64/libiqm-qdmi-device.so";

/// MQT's simulator in a separate process (interface 1.4); `None` skips, with a message.
pub fn ddsim() -> Option<PathBuf> {
    library("mqt-core-4.1.1", DDSIM)
}

/// The same simulator in the library itself (interface 1.3).
pub fn ddsim_1_3() -> Option<PathBuf> {
    library("mqt-core-3.11.0", DDSIM)
}

/// MQT's library for superconducting devices, which describes and runs nothing.
pub fn sc() -> Option<PathBuf> {
    library("mqt-core-4.1.1", SC)
}

/// IQM's libraries of interface 1.3 and 1.4.
pub fn iqm() -> Option<[PathBuf; 2]> {
    Some([library("iqm-qdmi-1.3.0", IQM)?, library("iqm-qdmi-1.5.0", IQM)?])
}

/// IBM's library.
pub fn ibm() -> Option<PathBuf> {
    library("ibm-qdmi-1.0.0", "ibm/qdmi/data/lib/libibm-qdmi-device.so")
}

fn library(wheel: &str, file: &str) -> Option<PathBuf> {
    let dir = std::env::var_os("CODA_TEST_QDMI").map(|top| Path::new(&top).join(wheel));
    let found = dir.filter(|dir| dir.join("complete").exists()).map(|dir| dir.join(file));
    if found.is_none() {
        eprintln!("SKIPPED: no {wheel} here (CODA_TEST_QDMI); `make test-qdmi` fetches it and runs this");
    }
    found
}

/// The text of a device config for this library, with these keys besides.
pub fn device(library: &Path, keys: &str) -> String {
    format!("executor_factory: coda_qdmi\nlibrary: {}\n{keys}", library.display())
}

/// A host whose device is behind this library, with these keys besides.
pub fn plan(library: &Path, keys: &str) -> Plan {
    Plan::device(device(library, keys)).as_own_user()
}
