//! The wall clock is set while a coordinator runs: what it measures is elapsed time.

use std::path::{Path, PathBuf};

use coda_host_tests::net::Net;
use serde_json::json;

const ONE: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; h q[0];";
const SLOW: &str = "executor_factory: coda_faulty\nevolve: true\nslots: 1\nrun_ms: 1500\n";

/// The library that sets a process's clock; none where it is not installed.
fn faketime() -> Option<PathBuf> {
    let dirs =
        ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib64/faketime"];
    let found = dirs.iter().map(|d| Path::new(d).join("libfaketimeMT.so.1")).find(|p| p.exists());
    if found.is_none() {
        eprintln!("SKIPPED: no libfaketime here (Debian: apt-get install faketime)");
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_forward_ends_no_reservation_and_no_waiting_job() {
    let Some(library) = faketime() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let told = dir.path().join("clock");
    let set = |offset: &str| {
        std::fs::write(dir.path().join("new"), offset).expect("the clock's file");
        std::fs::rename(dir.path().join("new"), &told).expect("the clock's file");
    };
    set("+0");
    let (library, file) = (library.display().to_string(), told.display().to_string());
    let mut net = Net::start(&[
        ("LD_PRELOAD", &library),
        ("FAKETIME_TIMESTAMP_FILE", &file),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("CODA_COORDINATOR_MAX_RUNNING", "1"),
        ("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "60"),
    ])
    .await;
    net.add(SLOW, &[("CODA_PEER_MAX_EXECUTION_SEC", "1000"), ("CODA_PEER_ALLOW", "any")]).await;
    let c = &net.coordinator;
    let ask = json!({"workflow_run_id": "workflow-1", "fragment_id": "frag-0001", "service_id": "qft"});
    let (status, reservation) = c.post("/api/v1/reservations", &ask).await;
    assert_eq!(status, 201, "{reservation}");
    // The second one waits for the first one's place.
    let jobs = [c.submit(ONE, 10).await, c.submit(ONE, 10).await];
    set("+2h");
    let path = format!("/api/v1/reservations/{}", reservation["reservation_id"].as_str().unwrap());
    assert_eq!(c.get(&path).await.1["current_transition"], "requested");
    for job in &jobs {
        let ended = c.ended(job).await;
        assert_eq!(ended["status"], "completed", "{}", ended["error"]);
    }
    assert_eq!(c.get(&path).await.1["current_transition"], "requested");
    // The clock was set indeed.
    let job = c.job(&jobs[0]).await;
    let hour = |field: &str| job[field].as_str().expect("a time")[..13].to_string();
    assert_ne!(hour("submitted_at"), hour("finished_at"));
}
