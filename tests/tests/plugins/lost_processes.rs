//! A plugin's process that is gone: which jobs it costs, and what can be done about those that wait for it.

use coda_host_tests::{Exit, Plan, TestHost, eventually, example};
use serde_json::json;

fn isolated(keys: &str, backoff: &str) -> Plan {
    Plan::faulty(keys)
        .env("CODA_EXECUTOR_ISOLATION", "process")
        .env("CODA_EXECUTOR_RESTART_BACKOFF_SEC", backoff)
        .env("CODA_EXECUTOR_RESTART_BACKOFF_MAX_SEC", backoff)
}

/// How often the plugin began to run each of these jobs.
fn starts(host: &TestHost, ids: &[&str]) -> Vec<usize> {
    let record = std::fs::read_to_string(host.dir().join("record")).unwrap_or_default();
    let count = |id: &&str| record.lines().filter(|line| *line == format!("start {id}")).count();
    ids.iter().map(count).collect()
}

/// A host whose plugin writes down what it runs.
async fn recording(keys: &str, backoff: &str, env: &[(&str, &str)]) -> TestHost {
    let mut host = isolated("", backoff).prepare().await;
    let record = host.dir().join("record");
    host.write_device(&format!("executor_factory: coda_faulty\n{keys}\nrecord: {}", record.display()));
    env.iter().for_each(|(name, value)| host.set(name, *value));
    host.start().await;
    host
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_enters_a_process_that_is_gone() {
    let env = [("CODA_JOB_TIMEOUT_SEC", "0.3"), ("CODA_SHUTDOWN_DRAIN_TIMEOUT_SEC", "5")];
    let mut host = recording("fault: segfault\nwhen: run\nslots: 2", "3600", &env).await;
    for id in ["J1", "J2"] {
        host.submit(id, &example(), 10).await;
        assert!(host.failure(id).await.contains("SIGSEGV"));
    }
    eventually("the process is down for long", async || {
        host.ready().await.1["reasons"].to_string().contains("died 2 times in a row")
    })
    .await;
    // A job that waits for the process can be cancelled, and never runs.
    host.submit("cancelled", &example(), 10).await;
    eventually("it waits for a slot", async || host.ready().await.1["waiting"] == 1).await;
    assert_eq!(host.ready().await.1["slots_busy"], 0, "no slot holds it");
    host.request_cancel("cancelled").await;
    host.wait_state("cancelled", "cancelled").await;
    // Another one is not blamed for the time that the process was away, and a reload is possible.
    host.submit("J3", &example(), 10).await;
    eventually("it waits for a slot", async || host.ready().await.1["waiting"] == 1).await;
    let record = host.dir().join("record");
    host.write_device(&format!("executor_factory: coda_faulty\nslots: 2\nrecord: {}", record.display()));
    let done = host.cli(&["reload"]).await;
    assert_eq!(done.code, 0, "{}", done.text());
    assert_eq!(host.delivered("J3").await["counts"], json!({ "00": 10 }));
    assert_eq!(starts(&host, &["cancelled", "J3"]), [0, 1]);
    host.wait_nothing_pending().await;
    assert_eq!(host.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_a_process_that_is_gone() {
    let mut host = recording("fault: segfault\nwhen: run\nslots: 2", "3600", &[]).await;
    for id in ["J1", "J2"] {
        host.submit(id, &example(), 10).await;
        assert!(host.failure(id).await.contains("SIGSEGV"));
    }
    host.submit("J3", &example(), 10).await;
    eventually("it waits for a slot", async || host.ready().await.1["waiting"] == 1).await;
    assert_eq!(host.stop().await, Exit::Code(0), "nothing is in the plugin");
    assert_eq!(host.pending().await.len(), 1, "it runs after the next start");
    assert_eq!(host.attempts("J3"), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_beside_one_that_kills_the_process_is_run_again_alone() {
    let keys = "fault: segfault\nwhen: run\nonly: killer\nslots: 2\nrun_ms: 300";
    let host = recording(keys, "0.02", &[]).await;
    host.submit("bystander", &example(), 10).await;
    eventually("it runs", async || starts(&host, &["bystander"]) == [1]).await;
    host.submit("killer", &example(), 10).await;
    assert!(host.failure("killer").await.contains("SIGSEGV"));
    assert_eq!(host.delivered("bystander").await["counts"], json!({ "00": 10 }));
    assert_eq!(starts(&host, &["bystander", "killer"]), [2, 2], "each once together and once alone");
    host.good_job_goes_through("after").await;
    host.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_in_a_batch_with_one_that_kills_the_process_is_run_again_alone() {
    let keys = "fault: segfault\nwhen: run\nonly: killer\nbatch: true\nrun_ms: 300";
    let host = recording(keys, "0.02", &[("CODA_BATCH_MAX", "4")]).await;
    host.submit("first", &example(), 10).await;
    eventually("it runs", async || starts(&host, &["first"]) == [1]).await;
    for id in ["J1", "killer", "J2"] {
        host.submit(id, &example(), 10).await;
    }
    assert!(host.failure("killer").await.contains("SIGSEGV"));
    for id in ["first", "J1", "J2"] {
        assert_eq!(host.delivered(id).await["counts"], json!({ "00": 10 }), "{id}");
    }
    host.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_killed_for_its_time_costs_no_job_beside_it() {
    let keys = "fault: slow\nonly: deaf\nslots: 2\nrun_ms: 1500";
    let host = recording(keys, "0.02", &[("CODA_CANCEL_GRACE_SEC", "0.2")]).await;
    host.submit("deaf", &example(), 10).await;
    host.submit("beside", &example(), 10).await;
    eventually("both run", async || starts(&host, &["deaf", "beside"]) == [1, 1]).await;
    host.request_cancel("deaf").await;
    host.wait_log("the run did not end; its process is killed").await;
    host.wait_state("deaf", "cancelled").await;
    assert_eq!(host.delivered("beside").await["counts"], json!({ "00": 10 }));
    assert_eq!(starts(&host, &["deaf", "beside"]), [1, 2]);
    host.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impatient_stops_are_no_deaths() {
    for isolation in ["none", "process"] {
        let plan = Plan::faulty("run_ms: 600000").env("CODA_EXECUTOR_ISOLATION", isolation);
        let mut host = plan.prepare().await;
        host.submit("J1", &example(), 10).await;
        for _ in 0..4 {
            host.start().await;
            eventually("the plugin has it", async || host.ready().await.1["current_job"] == "J1").await;
            host.process().signal(libc::SIGTERM);
            host.wait_log("a second one ends at once").await;
            eventually("it takes the second signal", async || {
                host.process().signal(libc::SIGTERM);
                host.process().ended().is_some()
            })
            .await;
            assert_eq!(host.wait_exit().await, Exit::Code(128 + libc::SIGTERM), "{isolation}");
        }
        host.write_device("executor_factory: coda_faulty");
        host.start().await;
        assert_eq!(host.delivered("J1").await["counts"], json!({ "00": 10 }), "{isolation}");
        assert!(!host.log().contains("died while it ran"), "{isolation}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_beside_one_that_kills_the_host_is_not_blamed() {
    for keys in ["slots: 2", "batch: true"] {
        let mut host = Plan::faulty("").prepare().await;
        let record = host.dir().join("record");
        host.write_device(&format!(
            "executor_factory: coda_faulty\nfault: segfault\nwhen: run\nonly: killer\nrun_ms: 200\n{keys}\nrecord: {}",
            record.display()
        ));
        for id in ["J1", "killer", "J2"] {
            host.submit(id, &example(), 10).await;
        }
        for _ in 0..3 {
            host.launch();
            assert_eq!(host.wait_exit().await, Exit::Signal(libc::SIGSEGV), "{keys}");
        }
        host.start().await;
        assert!(host.failure("killer").await.contains("died"), "{keys}");
        for id in ["J1", "J2"] {
            assert_eq!(host.delivered(id).await["counts"], json!({ "00": 10 }), "{keys} {id}");
        }
        host.wait_nothing_pending().await;
    }
}
