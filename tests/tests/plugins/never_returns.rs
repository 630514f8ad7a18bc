//! Calls of a plugin that never return, at the start, during a reload, while it runs and at the stop.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use coda_host_tests::run_record::RunRecord;
use coda_host_tests::{Exit, Plan, command, eventually, eventually_some, example};

fn isolated(keys: &str) -> Plan {
    Plan::faulty(keys)
        .env("CODA_EXECUTOR_ISOLATION", "process")
        .env("CODA_EXECUTOR_RESTART_BACKOFF_SEC", "0.02")
        .env("CODA_EXECUTOR_RESTART_BACKOFF_MAX_SEC", "0.2")
        .env("CODA_CONTROL_TIMEOUT_SEC", "0.3")
        .env("CODA_EXECUTOR_START_TIMEOUT_SEC", "1")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_never_returns_fails_and_names_the_call() {
    for (keys, at_load, call) in [
        ("fault: hang_create", "", "create"),
        ("fault: hang_device", "", "device"),
        ("when: load", "hang_load", ""),
    ] {
        for isolation in ["none", "process"] {
            let plan = isolated(keys).env("CODA_EXECUTOR_ISOLATION", isolation);
            let mut host = plan.env("CODA_FAULTY_AT_LOAD", at_load).prepare().await;
            host.launch();
            assert_eq!(host.wait_exit().await, Exit::Code(3), "{keys} {isolation}: {}", host.log());
            let log = host.log();
            // Under isolation the device is asked for in the same step.
            let call = if isolation == "process" && call == "device" { "create" } else { call };
            let says = format!("libcoda_faulty.so did not return from its {call}");
            assert!(log.contains(&says) && log.contains("within 1s"), "{keys} {isolation}: {log}");
            assert!(log.contains("CODA_EXECUTOR_START_TIMEOUT_SEC"), "{keys} {isolation}: {log}");
            assert!(host.cloud.state().connects.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_to_an_executor_that_never_comes_up_leaves_the_former_in_use() {
    let host = isolated("").env("CODA_EXECUTOR_START_TIMEOUT_SEC", "2").start().await;
    for (fault, call) in [("hang_create", "create"), ("hang_device", "create")] {
        host.write_device(&format!("executor_factory: coda_faulty\nfault: {fault}"));
        let reloading = host.cli(&["reload"]);
        let shown = eventually_some("/ready tells of it", async || {
            let (status, ready) = host.ready().await;
            (status == 503).then(|| ready["reasons"].to_string())
        });
        let (done, reasons) = tokio::join!(reloading, shown);
        assert!(reasons.contains(&format!("not returned from its {call}")), "{fault}: {reasons}");
        assert_eq!(done.code, 1, "{fault}: {}", done.text());
        assert!(done.err.contains(&format!("{call} within 2s")), "{fault}: {}", done.text());
        host.good_job_goes_through(fault).await;
        assert_eq!(host.ready().await.0, 200, "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_waits_for_a_reload_ends_at_a_signal_and_the_host_goes_on() {
    let host = isolated("").env("CODA_EXECUTOR_START_TIMEOUT_SEC", "3").start().await;
    host.write_device("executor_factory: coda_faulty\nfault: hang_create");
    let mut reload = command(&["reload"], &host.env, host.dir()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the reload has begun", async || host.ready().await.0 == 503).await;
    coda_host::sys::signal(reload.id(), libc::SIGTERM).unwrap();
    eventually("the command has ended", async || reload.try_wait().unwrap().is_some()).await;
    let done = reload.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && said.contains("the reload goes on in the host"), "{said}");
    host.good_job_goes_through("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_does_not_wait_for_a_former_executor_that_never_ends() {
    for fault in ["hang_shutdown", "hang_drop"] {
        let mut host = isolated(&format!("fault: {fault}")).start().await;
        host.good_job_goes_through("J1").await;
        host.write_device("executor_factory: coda_faulty");
        let done = host.cli(&["reload"]).await;
        assert_eq!(done.code, 0, "{fault}: {}", done.text());
        host.wait_log("did not return within 300ms").await;
        host.good_job_goes_through("J2").await;
        assert_eq!(host.ready().await.0, 200, "{fault}");
        assert_eq!(host.stop().await, Exit::Code(0), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_never_returns_costs_its_process_under_isolation() {
    let record = RunRecord::new();
    let host = isolated(&record.keys("fault: hang_cancel\nrun_ms: 600000")).start().await;
    host.submit("J1", &example(), 10).await;
    record.wait_begun("J1").await;
    host.request_cancel("J1").await;
    host.wait_log("its process is killed").await;
    host.wait_state("J1", "cancelled").await;
    host.wait_nothing_pending().await;
    eventually("the host is ready again", async || host.ready().await.0 == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_never_returns_in_the_host_is_shown_with_what_to_do() {
    let plan = Plan::faulty("fault: hang_cancel\nrun_ms: 400").env("CODA_CONTROL_TIMEOUT_SEC", "0.2");
    let host = plan.start().await;
    host.submit("J1", &example(), 10).await;
    host.wait_state("J1", "executing").await;
    host.request_cancel("J1").await;
    let reasons = eventually_some("/ready tells of it", async || {
        let (status, ready) = host.ready().await;
        (status == 503).then(|| ready["reasons"].to_string())
    })
    .await;
    let says = "the plugin coda-plugin-faulty has not returned from its cancel of job J1 for";
    assert!(reasons.contains(says) && reasons.contains("restart coda-host"), "{reasons}");
    host.wait_log("a call of the plugin does not return; restart coda-host").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_an_end_that_never_comes() {
    for fault in ["hang_shutdown", "hang_drop"] {
        for isolation in ["none", "process"] {
            let plan = isolated(&format!("fault: {fault}")).env("CODA_EXECUTOR_ISOLATION", isolation);
            let mut host = plan.start().await;
            host.good_job_goes_through("J1").await;
            assert_eq!(host.stop().await, Exit::Code(0), "{fault} {isolation}");
        }
    }
}

/// Commands that wait for others and have nothing to undo: the first signal ends them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_waits_ends_at_the_first_signal() {
    let record = RunRecord::new();
    let host = isolated(&record.keys("run_ms: 600000")).start().await;
    host.submit("J1", &example(), 10).await;
    record.wait_begun("J1").await;
    let hangs = host.dir().join("hangs.yaml");
    std::fs::write(&hangs, "executor_factory: coda_faulty\nfault: hang_create").unwrap();
    let check = ["plugin", "check", "--quick", "--device", hangs.to_str().unwrap()];
    for (arguments, begun) in [(&check[..], "create"), (&["stop"], "J1")] {
        // Not SIGINT, which a shell has its background jobs ignore.
        let signal = libc::SIGTERM;
        let mut child = command(arguments, &host.env, host.dir())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It has a child process, or the host logs its stop.
        eventually("the command waits", async || match begun {
            "J1" => host.log().contains("stopping"),
            _ => children(child.id()) > 0,
        })
        .await;
        coda_host::sys::signal(child.id(), signal).unwrap();
        let ended = eventually_some("the command ends", async || child.try_wait().unwrap()).await;
        assert_eq!(ended.signal(), Some(signal), "{arguments:?}");
    }
    assert!(host.log().contains("stopping"), "the host goes on with its stop");
}

/// Processes that any thread of a process has started.
fn children(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of =
        |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    tasks.map(|task| of(task).split_whitespace().count()).sum()
}
