//! Modules that the bridge brings along, for executors that need nothing but the vendor's own packages.
//!
//! Each is a file in `carried/`. They are of this program's version, so they precede copies that are installed.

use std::collections::BTreeMap;

/// Names and texts of the modules.
const MODULES: &[(&str, &str)] = &[("coda_executor", include_str!("carried/coda_executor.py"))];

/// The texts of the modules by their names.
pub fn modules() -> BTreeMap<&'static str, &'static str> {
    MODULES.iter().copied().collect()
}
