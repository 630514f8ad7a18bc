//! Where the programs and libraries under test lie: beside the running test, in the same target directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// `target/release`: the test program itself lies in its `deps`.
fn target_dir() -> PathBuf {
    let program = std::env::current_exe().expect("the test's own path");
    let deps = program.parent().expect("the test lies in a directory");
    deps.parent().expect("the test lies in <profile>/deps").to_path_buf()
}

fn built(file: &str) -> PathBuf {
    let path = target_dir().join(file);
    let command = if cfg!(debug_assertions) { "cargo build --workspace" } else { "make plugins" };
    assert!(path.is_file(), "{} is missing: run `{command}` first", path.display());
    path
}

/// The binary under test.
pub fn binary() -> PathBuf {
    built("coda-host")
}

/// What a host that is built for crash tests stops at: `<step>:<file>`.
pub const FAILPOINT: &str = "CODA_FAILPOINT";

/// The long-lived task that such a host ends as soon as it begins.
pub const FAILPOINT_TASK: &str = "CODA_FAILPOINT_TASK";

/// The binary with failpoints.
pub fn failpoints_binary() -> PathBuf {
    let path = target_dir().join("coda-host-failpoints");
    assert!(path.is_file(), "{} is missing: run `make failpoints` first", path.display());
    path
}

/// The binary that an environment asks for: the shipped one, unless a failpoint is set.
pub fn binary_for(env: &BTreeMap<String, String>) -> PathBuf {
    let asked = [FAILPOINT, FAILPOINT_TASK].iter().any(|name| env.contains_key(*name));
    if asked { failpoints_binary() } else { binary() }
}

/// A plugin by its library name, such as `coda_simulator`.
pub fn library(name: &str) -> PathBuf {
    built(&format!("lib{name}.so"))
}

/// Another program that was built beside it.
pub fn target_file(name: &str) -> PathBuf {
    built(name)
}

/// What `make sdk` has laid out.
pub fn sdk() -> PathBuf {
    let sdk = target_dir().parent().expect("target/").join("sdk");
    assert!(sdk.join("include").is_dir(), "{} is missing: run `make sdk` first", sdk.display());
    sdk
}

/// A file of the project, by its path from the top.
pub fn project_file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the project").join(path)
}

/// A circuit of `tests/circuits`.
pub fn circuit_file(name: &str) -> PathBuf {
    project_file("tests/circuits").join(name)
}

/// Where pictures of pages are kept, for people to look at.
pub fn screenshots() -> PathBuf {
    let dir = target_dir().parent().expect("target/").join("screenshots");
    std::fs::create_dir_all(&dir).expect("the directory can be created");
    dir
}
