//! Another account than that of the tests, for processes with fewer rights.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use coda_host::sys;

/// An account that every machine has, and that may do nothing.
pub const NOBODY: &str = "nobody";

/// Only root can start a process of another account.
pub fn is_root() -> bool {
    let root = sys::effective_user() == 0;
    if !root {
        println!("SKIPPED: only root can start a process of another account");
    }
    root
}

/// Sets the mode of a file or directory.
pub fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("the mode can be set");
}
