//! The chapter on QDMI libraries in docs/plugins.md: from a download to jobs in a local Coda sandbox.

use std::path::{Path, PathBuf};
use std::process::Command;

use coda_host_tests::checkpoints::assert_checkpoints;
use coda_host_tests::qdmi::{ddsim, plan};

/// The directory of a Python with pip, whose name is `python3`.
fn python() -> Option<PathBuf> {
    let venv = std::env::var_os("CODA_TEST_QDMI").map(|top| Path::new(&top).join("venv/bin"));
    let given =
        std::env::var_os("CODA_TEST_PYTHON").and_then(|p| Path::new(&p).parent().map(Path::to_path_buf));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has_pip = |dir: &PathBuf| {
        let pip = Command::new(dir.join("python3")).args(["-m", "pip", "--version"]).output();
        pip.is_ok_and(|done| done.status.success())
    };
    venv.into_iter().chain(given).chain(std::env::split_paths(&path)).find(has_pip)
}

#[test]
fn five_commands_lead_from_a_download_to_jobs() {
    if ddsim().is_none() {
        return;
    }
    let Some(python) = python() else {
        eprintln!("SKIPPED: no Python with pip here");
        return;
    };
    assert_checkpoints(" qdmi", Some(&python), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_runs_on_a_device_behind_a_library() {
    let Some(library) = ddsim() else { return };
    let host = plan(&library, "").prepare().await;
    let device = host.dir().join("device.yaml").display().to_string();
    let said = host.cli(&["dev", "--device", &device, "--demo", "--once"]).await;
    assert!(said.code == 0 && said.out.contains("all three delivered"), "{}", said.text());
}
