//! Jobs that are in the device when the plugin's process is killed: the next process of the device config cancels them.

use coda_host::sys;
use coda_host_tests::process::children;
use coda_host_tests::{Exit, TestHost, eventually};

use super::faults::{Abi, BOTH, SUBMITTED, device, plan, stuck_job};

/// Kills the plugin's process; `J1` was in it.
async fn kill_plugin(host: &mut TestHost) {
    let plugin = children(host.process().pid())[0];
    sys::signal(plugin.unsigned_abs(), libc::SIGKILL).unwrap();
    let error = host.failure("J1").await;
    assert!(error.contains("died of SIGKILL"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_outlives_its_process_is_found_and_cancelled() {
    for abi in BOTH {
        let mut host = plan(abi, "never@13 life", "").start().await;
        let pid = host.process().pid();
        stuck_job(&host, "J1", SUBMITTED).await;
        kill_plugin(&mut host).await;
        host.good_job_goes_through("after").await;
        let says = match abi {
            // The library can't look a job up.
            Abi::V1_3 => "this library can't look it up to cancel it",
            Abi::V1_4 => "faulty: job cancel",
        };
        host.wait_log(says).await;
        assert_eq!(host.process().pid(), pid);
        assert_eq!(host.stop().await, Exit::Code(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_left_job_whose_library_does_not_return_is_tried_once() {
    for fault in ["hang=retrieve", "hang=cancel"] {
        let faults = format!("never@13 {fault}");
        let plan = plan(Abi::V1_4, &faults, "").env("CODA_EXECUTOR_START_TIMEOUT_SEC", "1");
        let mut host = plan.start().await;
        stuck_job(&host, "J1", SUBMITTED).await;
        kill_plugin(&mut host).await;
        host.wait_log("faulty: the process hangs in").await;
        host.good_job_goes_through("after").await;
        let log = host.log();
        assert_eq!(log.matches("looking up job faulty-").count(), 1, "{fault}: {log}");
        assert_eq!(host.stop().await, Exit::Code(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_found_again_after_a_reload_too() {
    let mut host = plan(Abi::V1_4, "never@13 life", "").start().await;
    let before = children(host.process().pid());
    // The new process opens the device while the old one still has it.
    host.write_device(&device(Abi::V1_4, "never@13 life", "poll_max_ms: 5\n"));
    let said = host.cli(&["reload"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    let pid = host.process().pid();
    eventually("the old process has ended", async || {
        let now = children(pid);
        now.len() == 1 && now != before
    })
    .await;
    stuck_job(&host, "J1", SUBMITTED).await;
    kill_plugin(&mut host).await;
    host.good_job_goes_through("after").await;
    host.wait_log("it is cancelled").await;
    assert_eq!(host.stop().await, Exit::Code(0));
}
