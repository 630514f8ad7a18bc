//! The tutorials of docs/plugins.md, as they stand there: every checkpoint is typed and shows what it says.

use std::path::Path;
use std::process::Command;

use coda_host_tests::artifacts::{binary, sdk};
use coda_host_tests::checkpoints::assert_checkpoints;

#[test]
fn every_checkpoint_of_the_tutorial_shows_what_it_says() {
    assert_checkpoints("", None, 5);
}

#[test]
fn every_checkpoint_of_the_tutorial_in_python_shows_what_it_says() {
    // An interpreter with pytest, which is not on every machine.
    let Some(python) = std::env::var_os("CODA_TEST_PYTHON").filter(|python| !python.is_empty()) else {
        eprintln!("SKIPPED: no venv with pytest here; `make python-deps` makes it");
        return;
    };
    assert_checkpoints(" python", Path::new(&python).parent(), 5);
}

#[test]
fn generated_projects_build_offline_and_pass() {
    let dir = tempfile::tempdir().unwrap();
    let programs = binary();
    let path = format!("{}:{}", programs.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let script = "set -eu
        coda-host plugin new my-rust --lang rust
        cd my-rust
        cargo test -q
        cargo build -q --release
        coda-host plugin check target/release/libmy_rust.so --device device.yaml
        cd ..
        coda-host plugin new my-c --lang c
        make -C my-c check
        coda-host plugin new my-cpp --lang cpp
        make -C my-cpp check
        ! coda-host plugin new my-c --lang c
        ! coda-host plugin new 'Bad Name' --lang c";
    let done = Command::new("sh")
        .args(["-c", script])
        .current_dir(dir.path())
        .env("PATH", path)
        .env("CODA_SDK", sdk())
        .env("CODA_STATE_DIR", dir.path().join("state"))
        .env("CARGO_TARGET_DIR", dir.path().join("my-rust/target"))
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
    assert_eq!(out.matches("27 passed, 0 failed, 3 skipped").count(), 3, "{out}\n{err}");
    assert!(err.contains("exists already") && err.contains("can't be a plugin's name"), "{err}");
}
