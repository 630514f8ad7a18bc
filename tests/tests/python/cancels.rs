//! Cancels of runs in Python code: whatever the run does with it, the job is cancelled, and two calls never overlap.

use coda_host_tests::artifacts::project_file;
use coda_host_tests::python::{executors, lab_job, notes, venv};
use coda_host_tests::{LIMIT, Plan, TestHost, eventually};
use serde_json::json;

/// Sends a job and waits until it is in the executor.
async fn begin(host: &TestHost, id: &str, mode: &str) {
    let before = notes(host).iter().filter(|n| n.starts_with("begins")).count();
    host.send(&lab_job(host, id, mode, 10)).await;
    let begun = || notes(host).iter().filter(|n| n.starts_with("begins")).count() > before;
    eventually(&format!("{mode} begins"), async || begun()).await;
}

async fn assert_cancelled(host: &TestHost, id: &str) {
    host.request_cancel(id).await;
    host.wait_state(id, "cancelled").await;
    host.wait_nothing_pending().await;
    assert_eq!(host.attempts(id), (0, 0), "{id}: no webhook of a cancelled job");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_is_cancelled_whatever_it_does_with_the_cancel() {
    let Some(venv) = venv() else { return };
    for factory in ["lab:create_executor", "lab:Hooked", "lab:SyncHook", "lab:BadHook"] {
        let mut host = Plan::python(&venv, factory, "").start().await;
        let pid = host.process().pid();
        for mode in ["sleep:600", "swallow:600", "turn:600"] {
            let id = mode.split(':').next().unwrap();
            begin(&host, id, mode).await;
            assert_cancelled(&host, id).await;
        }
        host.send(&lab_job(&host, "after", "ok", 7)).await;
        assert_eq!(host.delivered("after").await["counts"], json!({ "00": 7 }));
        assert_eq!(host.process().pid(), pid);
        let hooks = notes(&host).iter().filter(|n| *n == "hook").count();
        assert_eq!(hooks, if factory == "lab:create_executor" { 0 } else { 3 }, "{factory}");
        assert_eq!(host.log().contains("the cancel hook failed"), factory == "lab:BadHook");
        assert!(!host.log().contains("process is killed"), "{}", host.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_blocks_the_loop_is_named_in_the_log_and_killed_after_the_grace() {
    let Some(venv) = venv() else { return };
    let host = Plan::python(&venv, "lab:Hooked", "").env("CODA_CANCEL_GRACE_SEC", "1.5").start().await;
    begin(&host, "blocked", "block:600").await;
    assert_cancelled(&host, "blocked").await;
    host.wait_log("the run did not end; its process is killed").await;
    let log = host.log();
    let told =
        log.split("the executor blocks its event loop, so the cancel waits").nth(1).expect("it is named");
    assert!(told.contains("in do_block") && told.contains("time.sleep"), "{told}");
    // C code that keeps the interpreter's lock: not even the control thread runs.
    begin(&host, "gil", "hold_gil:600").await;
    assert_cancelled(&host, "gil").await;
    eventually("it is killed after the grace too", async || {
        host.log().matches("the run did not end; its process is killed").count() == 2
    })
    .await;
    host.send(&lab_job(&host, "after", "ok", 7)).await;
    assert_eq!(host.delivered("after").await["counts"], json!({ "00": 7 }));
}

/// The calls that were noted, as pairs of times.
fn calls(host: &TestHost) -> Vec<(f64, f64)> {
    let notes = notes(host);
    let times = |word: &str| -> Vec<f64> {
        notes.iter().filter_map(|n| n.strip_prefix(word)?.trim().parse().ok()).collect()
    };
    times("begins").into_iter().zip(times("ends")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_calls_of_the_hardware_never_overlap() {
    let Some(venv) = venv() else { return };
    let host = Plan::python(&venv, "lab:Flagged", "").start().await;
    begin(&host, "J1", "thread:1.0").await;
    host.request_cancel("J1").await;
    host.send(&lab_job(&host, "J2", "thread:0.1", 10)).await;
    host.wait_state("J1", "cancelled").await;
    assert_eq!(host.delivered("J2").await["counts"], json!({ "00": 10 }));
    let calls = calls(&host);
    assert_eq!(calls.len(), 2, "{:?}", notes(&host));
    assert!(calls[0].1 <= calls[1].0, "the second began while the first went on: {calls:?}");
    // A call that outlasts the grace costs the process.
    let host = Plan::python(&venv, "lab:Flagged", "").env("CODA_CANCEL_GRACE_SEC", "0.3").start().await;
    begin(&host, "J1", "thread:600").await;
    assert_cancelled(&host, "J1").await;
    host.wait_log("the run did not end; its process is killed").await;
    host.send(&lab_job(&host, "J2", "thread:0", 10)).await;
    assert_eq!(host.delivered("J2").await["counts"], json!({ "00": 10 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_run_whose_thread_goes_on_is_answered_and_the_process_started_again() {
    let Some(venv) = venv() else { return };
    let host =
        Plan::python(&venv, "lab:create_executor", "").env("CODA_CANCEL_GRACE_SEC", "0.3").start().await;
    host.send(&lab_job(&host, "J1", "left_thread:600", 10)).await;
    host.send(&lab_job(&host, "J2", "ok", 10)).await;
    assert_eq!(host.failure("J1").await, "failed beside its thread");
    assert_eq!(host.delivered("J2").await["counts"], json!({ "00": 10 }));
    host.wait_log("a thread of the failed run does not end; the process is started again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_of_a_batch_overlaps_with_a_later_one() {
    let Some(venv) = venv() else { return };
    for (mode, is_cancelled) in [("thread:1.0", true), ("fail:0.6", false)] {
        let host = Plan::python(&venv, "lab:FlaggedBatches", "").env("CODA_PREFETCH", "20").start().await;
        begin(&host, "first", "thread:0.3").await;
        for id in ["a", "b"] {
            host.send(&lab_job(&host, id, mode, 10)).await;
        }
        eventually("both are in one batch", async || notes(&host).contains(&"batch of 2".to_string())).await;
        if is_cancelled {
            eventually("the batch is in a call", async || calls_begun(&host) == 2).await;
            host.request_cancel("a").await;
            host.request_cancel("b").await;
        }
        host.send(&lab_job(&host, "after", "thread:0.1", 7)).await;
        assert_eq!(host.delivered("after").await["counts"], json!({ "00": 7 }), "{mode}");
        let calls = calls(&host);
        assert!(calls.len() >= 3, "{mode}: {calls:?}");
        assert!(calls.is_sorted_by(|one, next| one.1 <= next.0), "{mode}: {calls:?}");
    }
}

fn calls_begun(host: &TestHost) -> usize {
    notes(host).iter().filter(|note| note.starts_with("begins")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_ends_when_all_of_its_jobs_are_cancelled() {
    let Some(venv) = venv() else { return };
    let host = Plan::python(&venv, "lab:batches", "").env("CODA_PREFETCH", "20").start().await;
    begin(&host, "first", "sleep:0.3").await;
    for id in ["a", "b"] {
        host.send(&lab_job(&host, id, "sleep:600", 10)).await;
    }
    eventually("both are in one batch", async || notes(&host).contains(&"batch of 2".to_string())).await;
    host.request_cancel("a").await;
    host.request_cancel("b").await;
    for id in ["a", "b"] {
        host.wait_state(id, "cancelled").await;
        assert_eq!(host.attempts(id), (0, 0));
    }
    host.wait_nothing_pending().await;
    host.send(&lab_job(&host, "after", "ok", 7)).await;
    assert_eq!(host.delivered("after").await["counts"], json!({ "00": 7 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_beyond_the_time_limit_fails_with_the_limit() {
    let Some(venv) = venv() else { return };
    let host =
        Plan::python(&venv, "lab:create_executor", "").env("CODA_JOB_TIMEOUT_SEC", "0.3").start().await;
    host.send(&lab_job(&host, "J1", "sleep:600", 10)).await;
    let error = host.failure("J1").await;
    assert!(error.contains("took longer than 0.3 s"), "{error}");
    host.send(&lab_job(&host, "J2", "ok", 10)).await;
    assert_eq!(host.delivered("J2").await["status"], "completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_overtakes_its_job_cancels_it_and_a_late_one_nothing() {
    let Some(venv) = venv() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut script = tokio::process::Command::new(venv.join("bin/python"));
    script
        .arg(project_file("tests/python/early_cancel.py"))
        .arg(project_file("host/executor/src/executor/python"));
    script.env("PYTHONPATH", executors()).env("LAB_NOTES", dir.path().join("notes")).kill_on_drop(true);
    let output = tokio::time::timeout(LIMIT, script.output()).await.expect("it ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(lines, ["early: error 7", "late: result", "unknown: result", "ended: 0"], "{errors}");
}
