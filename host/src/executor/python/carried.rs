//! Modules that the bridge brings along, for executors that need nothing but the vendor's own packages.
//!
//! Each is a file in `carried/`. One that the interpreter has itself takes precedence.

use std::collections::BTreeMap;

/// Names and texts of the modules.
const MODULES: &[(&str, &str)] = &[];

/// The texts of the modules by their names.
pub fn modules() -> BTreeMap<&'static str, &'static str> {
    MODULES.iter().copied().collect()
}
