//! The checkpoints of the pages in docs/: commands that are typed, and lines that their output must contain.

use std::path::Path;
use std::process::Command;

use crate::artifacts::{binary, project_file, sdk};

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

/// Types the checkpoints of one kind in docs/plugins.md, at least so many, with the programs of this directory first.
///
/// # Panics
/// When a command fails, or its output lacks what the page says.
pub fn assert_checkpoints(kind: &str, first: Option<&Path>, least: usize) {
    assert_checkpoints_of("docs/plugins.md", kind, first, least);
}

/// As [`assert_checkpoints`], of another page.
///
/// # Panics
/// As there.
pub fn assert_checkpoints_of(page: &str, kind: &str, first: Option<&Path>, least: usize) {
    let text = std::fs::read_to_string(project_file(page)).unwrap();
    let checkpoints = checkpoints(&text, kind);
    assert!(checkpoints.len() >= least, "{} checkpoints", checkpoints.len());
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
