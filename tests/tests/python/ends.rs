//! Processes of executors in Python code that end: by the executor, by a fault, with the host; and what they leave behind.

use std::path::PathBuf;

use coda_host_tests::process::children;
use coda_host_tests::python::{lab_job, notes, venv};
use coda_host_tests::{Exit, Plan, TestHost, eventually, eventually_some};
use serde_json::json;

async fn good_job(host: &TestHost, id: &str) {
    host.send(&lab_job(host, id, "ok", 7)).await;
    assert_eq!(host.delivered(id).await["counts"], json!({ "00": 7 }), "{id}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_ends_the_process_costs_its_job_alone() {
    let Some(venv) = venv() else { return };
    let mut host = Plan::python(&venv, "lab:create_executor", "").start().await;
    let pid = host.process().pid();
    for (mode, says) in [
        ("exit:3", "the executor ended its process: sys.exit(3)"),
        ("task_exit:4", "the executor ended its process: sys.exit(4)"),
        ("interrupt", "the executor ended its process: KeyboardInterrupt"),
        ("os_exit:5", "the plugin's process ended by itself with status 5"),
        ("segfault", "the plugin's process died of SIGSEGV"),
    ] {
        host.send(&lab_job(&host, mode, mode, 10)).await;
        // At once behind it: it must not meet the process that ends.
        host.send(&lab_job(&host, &format!("after {mode}"), "ok", 7)).await;
        let error = host.failure(mode).await;
        assert!(error.contains(says), "{mode}: {error}");
        assert_eq!(host.delivered(&format!("after {mode}")).await["counts"], json!({ "00": 7 }), "{mode}");
    }
    host.wait_nothing_pending().await;
    assert_eq!(host.process().pid(), pid);
    assert_eq!(host.get("/ready").await.0, 200);
    assert_eq!(host.stop().await, Exit::Code(0));
    assert!(
        host.log().contains("Fatal Python error: Segmentation fault"),
        "the trace of the fault is logged"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_ends_its_process_in_each_run_is_shown_as_a_crash_loop() {
    let Some(venv) = venv() else { return };
    for mode in ["exit:1", "segfault"] {
        let host = Plan::python(&venv, "lab:create_executor", "").start().await;
        for n in 0..3 {
            let id = format!("J{n}");
            host.send(&lab_job(&host, &id, mode, 10)).await;
            host.failure(&id).await;
        }
        let reasons = eventually_some("/ready tells of it", async || {
            let (status, ready) = host.ready().await;
            (status == 503).then(|| ready["reasons"].to_string())
        })
        .await;
        assert!(reasons.contains("died 3 times in a row"), "{mode}: {reasons}");
        good_job(&host, "good").await;
        eventually("/ready is good again", async || host.get("/ready").await.0 == 200).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_factory_that_fails_or_does_not_return_is_a_start_that_fails() {
    let Some(venv) = venv() else { return };
    for (factory, says) in [
        ("lab:raises", "the cryostat is warm"),
        ("lab:exits", "the executor ended its process: sys.exit('no licence')"),
        ("lab:endless", "did not return from its create within 2s"),
    ] {
        let plan = Plan::python(&venv, factory, "").env("CODA_EXECUTOR_START_TIMEOUT_SEC", "2");
        let mut host = plan.prepare().await;
        host.launch();
        assert_eq!(host.wait_exit().await, Exit::Code(3), "{factory}: {}", host.log());
        assert!(host.log().contains(says), "{factory}: {}", host.log());
        assert!(host.cloud.state().connects.is_empty(), "{factory}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn helpers_of_every_kind_work_and_none_outlives_the_process() {
    let Some(venv) = venv() else { return };
    let host = Plan::python(&venv, "lab:create_executor", "").start().await;
    for method in ["spawn", "fork", "forkserver"] {
        let mode = format!("multiprocessing:{method}");
        host.send(&lab_job(&host, method, &mode, 10)).await;
        assert_eq!(host.delivered(method).await["status"], "completed", "{method}: {}", host.log());
    }
    host.send(&lab_job(&host, "terminate", "terminate", 10)).await;
    assert_eq!(host.delivered("terminate").await["status"], "completed");
    let noted = notes(&host);
    for line in [
        "spawn 4",
        "fork 4",
        "forkserver 4",
        "terminated -15",
        "spawn terminated -15",
        "fork terminated -15",
        "forkserver terminated -15",
    ] {
        assert!(noted.contains(&line.to_string()), "{line}: {noted:?}");
    }
    host.send(&lab_job(&host, "helper", "helper", 10)).await;
    host.delivered("helper").await;
    let helper = notes(&host).iter().find_map(|n| n.strip_prefix("helper ").map(String::from)).unwrap();
    let there = PathBuf::from(format!("/proc/{helper}"));
    assert!(there.exists());
    host.send(&lab_job(&host, "segfault", "segfault", 10)).await;
    host.failure("segfault").await;
    eventually("the helper has ended with the process", async || !there.exists()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_during_a_job_lets_it_finish_and_a_kill_of_the_host_takes_the_process() {
    let Some(venv) = venv() else { return };
    let mut host = Plan::python(&venv, "lab:create_executor", "").start().await;
    let process = children(host.process().pid())[0];
    host.send(&lab_job(&host, "J1", "sleep:0.5", 10)).await;
    eventually("it runs", async || !notes(&host).is_empty()).await;
    host.process().signal(libc::SIGINT);
    assert_eq!(host.wait_exit().await, Exit::Code(0), "{}", host.log());
    assert_eq!(host.delivered("J1").await["status"], "completed");
    let gone = |pid: i32| !PathBuf::from(format!("/proc/{pid}")).exists();
    eventually("the process has ended", async || gone(process)).await;

    host.start().await;
    let process = children(host.process().pid())[0];
    // Blocked, so that nothing in the interpreter can notice.
    host.send(&lab_job(&host, "J2", "block:2", 10)).await;
    eventually("it runs", async || notes(&host).contains(&"begins".to_string())).await;
    host.kill();
    eventually("the process has gone with the host", async || gone(process)).await;
    host.start().await;
    assert_eq!(host.delivered("J2").await["status"], "completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orderly_end_runs_what_libraries_have_registered_for_it() {
    let Some(venv) = venv() else { return };
    let mut host = Plan::python(&venv, "lab:with_exit_handler", "").start().await;
    let process = children(host.process().pid())[0];
    // In a separate session: a terminal's Ctrl-C is for the host alone.
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let session = stat.rsplit(')').next().unwrap().split_whitespace().nth(3).unwrap();
    assert_eq!(session, process.to_string(), "{stat}");
    good_job(&host, "J1").await;
    assert_eq!(host.stop().await, Exit::Code(0));
    let noted = notes(&host);
    assert!(noted.contains(&"the session is closed".to_string()), "{noted:?}");
    assert!(noted.contains(&"a background task was cancelled".to_string()), "{noted:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_is_answered_by_an_executor_that_fails_at_random() {
    const JOBS: usize = 120;
    let Some(venv) = venv() else { return };
    let plan = Plan::python(&venv, "lab:create_executor", "").env("CODA_PREFETCH", "20");
    let mut host = plan.env("CODA_JOB_TIMEOUT_SEC", "0.5").env("CODA_CANCEL_GRACE_SEC", "0.3").start().await;
    let pid = host.process().pid();
    let modes =
        ["segfault", "exit:1", "block:600", "sleep:600", "os_exit:0", "left_thread:600", "hold_gil:600"];
    let mode = |n: usize| if n % 10 == 3 { modes[n / 10 % modes.len()] } else { "ok" };
    for n in 0..JOBS {
        host.send(&lab_job(&host, &format!("J{n}"), mode(n), 10)).await;
    }
    for n in 0..JOBS {
        let id = format!("J{n}");
        let body = host.delivered(&id).await;
        let expected = if mode(n) == "ok" { "completed" } else { "failed" };
        assert_eq!(body["status"], expected, "{id} ({}): {body}", mode(n));
        assert_eq!(host.attempts(&id), (1, 1), "{id}");
    }
    host.wait_nothing_pending().await;
    assert_eq!(host.process().pid(), pid);
    assert_eq!(children(pid).len(), 1, "one process, and nothing left behind");
}
