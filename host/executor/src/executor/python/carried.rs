//! Modules that the bridge brings along, for executors that need nothing but the vendor's own packages.
//!
//! Each is a file in `carried/`. They are of this program's version, so they precede copies that are installed.

use std::collections::BTreeMap;

/// Names and texts of the modules.
const MODULES: &[(&str, &str)] = &[
    ("coda_executor", include_str!("carried/coda_executor.py")),
    ("coda_qiskit", include_str!("carried/coda_qiskit/__init__.py")),
    ("coda_qiskit.circuits", include_str!("carried/coda_qiskit/circuits.py")),
    ("coda_qiskit.config", include_str!("carried/coda_qiskit/config.py")),
    ("coda_qiskit.device", include_str!("carried/coda_qiskit/device.py")),
    ("coda_qiskit.errors", include_str!("carried/coda_qiskit/errors.py")),
    ("coda_qiskit.execution", include_str!("carried/coda_qiskit/execution.py")),
    ("coda_qiskit.opening", include_str!("carried/coda_qiskit/opening.py")),
];

/// The texts of the modules by their names.
pub fn modules() -> BTreeMap<&'static str, &'static str> {
    MODULES.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_beside_is_carried() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/executor/python/carried");
        let names = |dir: &Path| -> Vec<String> {
            let files = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.file_name());
            files.filter_map(|name| Some(name.to_str()?.strip_suffix(".py")?.to_string())).collect()
        };
        let mut expected = names(&dir);
        for name in names(&dir.join("coda_qiskit")) {
            let module = format!("coda_qiskit.{name}");
            expected.push(module.strip_suffix(".__init__").map(String::from).unwrap_or(module));
        }
        expected.sort();
        assert_eq!(modules().keys().copied().collect::<Vec<_>>(), expected);
    }
}
