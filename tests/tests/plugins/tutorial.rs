//! The tutorials of docs/plugins.md, as they stand there: every checkpoint is typed and shows what it says.

use std::path::Path;
use std::process::Command;

use coda_host_tests::artifacts::{binary, project_file, sdk};

/// A checkpoint's commands and the lines that must be seen. The kind is the end of its first line.
fn checkpoints(text: &str, kind: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, from)) = rest.split_once(&format!("```sh checkpoint{kind}\n")) {
        let (commands, after) = from.split_once("```\n").expect("the block ends");
        let expected = after.strip_prefix("```text\n").expect("what is to be seen follows");
        let (expected, after) = expected.split_once("```").expect("the block ends");
        found.push((commands.to_string(), expected.lines().map(String::from).collect()));
        rest = after;
    }
    found
}

#[test]
fn every_checkpoint_of_the_tutorial_shows_what_it_says() {
    assert_checkpoints("", None);
}

#[test]
fn every_checkpoint_of_the_tutorial_in_python_shows_what_it_says() {
    // An interpreter with pytest, which is not on every machine.
    let Some(python) = std::env::var_os("CODA_TEST_PYTHON").filter(|python| !python.is_empty()) else {
        eprintln!("SKIPPED: no venv with pytest here; `make python-deps` makes it");
        return;
    };
    assert_checkpoints(" python", Path::new(&python).parent());
}

/// Types the checkpoints of one kind, with the programs of this directory first.
fn assert_checkpoints(kind: &str, first: Option<&Path>) {
    let text = std::fs::read_to_string(project_file("docs/plugins.md")).unwrap();
    let checkpoints = checkpoints(&text, kind);
    assert!(checkpoints.len() >= 5, "{} checkpoints", checkpoints.len());
    let dir = tempfile::tempdir().unwrap();
    let mut script = String::from("set -eu\n");
    for (n, (commands, _)) in checkpoints.iter().enumerate() {
        script += &format!("echo '=== {n}'\n{commands}");
    }
    let programs = binary();
    let dirs = first.into_iter().chain(programs.parent()).map(|dir| dir.display().to_string());
    let path = dirs.chain([std::env::var("PATH").unwrap()]).collect::<Vec<_>>().join(":");
    let mut command = Command::new("sh");
    if first.is_some() && coda_host::sys::effective_user() == 0 {
        // Whatever accounts this machine has: the project is the tests' own.
        command.env("CODA_EXECUTOR_USER", "root");
    }
    let done = command
        .args(["-c", &script])
        .current_dir(dir.path())
        .env("PATH", path)
        .env("CODA_SDK", sdk())
        .env("CODA_STATE_DIR", dir.path().join("state"))
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{err}");
    for (n, (commands, expected)) in checkpoints.iter().enumerate() {
        let (_, from) = out.split_once(&format!("=== {n}\n")).expect("the checkpoint was reached");
        let seen = from.split("\n=== ").next().unwrap();
        for line in expected {
            assert!(seen.contains(line.trim()), "after\n{commands}\nthere is no {line:?} in\n{seen}");
        }
    }
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
