//! Plugins that misbehave: each costs at most its job, and the host says what happened.

use std::os::unix::fs::PermissionsExt as _;

use coda_host_tests::{Exit, Plan, TestHost, eventually, example};
use serde_json::json;

const PAYLOADS: [(&str, &str); 4] = [
    ("str", "a panic that was asked for"),
    ("string", "a panic that was asked for"),
    ("other", ""),
    ("drop_bomb", ""),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_run_fails_that_job() {
    for (payload, text) in PAYLOADS {
        let host = Plan::faulty(&format!("fault: panic_run\npayload: {payload}\nafter: 1")).start().await;
        host.good_job_goes_through("before").await;
        for id in ["J1", "J2"] {
            host.submit(id, &example(), 100).await;
            let error = host.failure(id).await;
            assert!(!error.is_empty() && error.contains(text), "{payload}: {error}");
        }
        host.wait_nothing_pending().await;
        assert_eq!((host.get("/health").await.0, host.ready().await.0), (200, 200));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panics_at_the_end_are_survived() {
    for fault in ["panic_shutdown", "panic_drop"] {
        for (payload, _) in PAYLOADS {
            let mut host = Plan::faulty(&format!("fault: {fault}\npayload: {payload}")).start().await;
            host.good_job_goes_through("J1").await;
            assert_eq!(host.stop().await, Exit::Code(0), "{fault} {payload}");
            host.wait_log("failed plugin=").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_hangs_is_not_waited_for() {
    let mut host = Plan::faulty("fault: hang_shutdown").env("CODA_CONTROL_TIMEOUT_SEC", "0.2").start().await;
    host.good_job_goes_through("J1").await;
    assert_eq!(host.stop().await, Exit::Code(0));
    host.wait_log("did not shut down in time").await;
}

/// What fails in the plugin before the cloud is asked: status 3, the reason, and the token unspent.
async fn refused_start(device: &str, says: &str) {
    let mut host = Plan::faulty(device).prepare().await;
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(3), "{device}: {}", host.log());
    let log = host.log();
    assert!(
        log.contains("libcoda_faulty.so") && log.contains(says) && log.contains("to do:"),
        "{device}: {log}"
    );
    assert!(host.cloud.state().connects.is_empty(), "{device}: no connect was made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_before_the_connect_spends_no_token() {
    for (payload, text) in PAYLOADS {
        refused_start(&format!("fault: panic_create\npayload: {payload}"), text).await;
        refused_start(&format!("fault: panic_device\npayload: {payload}"), text).await;
    }
    for (device, says) in [
        ("fault: error_create", "out of calibration"),
        ("fault: device_zero_qubits", "it has 0 qubits"),
        ("fault: device_too_many_qubits", "it has 51 qubits"),
        ("fault: device_no_targets", "no native gate set"),
        ("fault: device_zero_slots", "it has 0 slots"),
        ("fault: device_bad_edge", "60000"),
        ("fault: no_such_fault", "no_such_fault"),
        ("surplus: 1", "surplus"),
    ] {
        refused_start(device, says).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_hangs_in_the_plugin_can_be_stopped() {
    for fault in ["hang_create", "hang_device"] {
        let mut host = Plan::faulty(&format!("fault: {fault}")).prepare().await;
        host.launch();
        host.process().wait_signal_thread().await;
        let exit = host.stop().await;
        assert!(matches!(exit, Exit::Code(_)), "{fault}: {exit:?}");
        assert!(host.cloud.state().connects.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_answers_fail_their_job_and_name_what_was_wrong() {
    // BASE: two measured qubits, 100 shots.
    for (fault, says) in [
        ("key_too_long", "key \"000\" of length 3, expected 2"),
        ("key_too_short", "key \"0\" of length 1, expected 2"),
        ("key_hex", "key \"0x2\" of length 3, expected 2"),
        ("key_space", "key \"1 0\" of length 3, expected 2"),
        ("key_empty", "key \"\" of length 0, expected 2"),
        ("negative_count", "count -1"),
        ("too_many_shots", "101 counts in all for 100 shots"),
        ("sum_mismatch", "shots_completed 101, but its counts sum to 100"),
        ("duplicate_key", "key \"00\" twice"),
        ("nan_time", "execution_time_ms NaN"),
        ("negative_time", "execution_time_ms -1"),
        ("infinite_time", "execution_time_ms inf"),
        ("error_run", "the run failed, as asked for"),
        ("error_retryable", "the run failed for a moment, as asked for"),
    ] {
        let host = Plan::faulty(&format!("fault: {fault}\nafter: 1")).start().await;
        host.good_job_goes_through("before").await;
        host.submit("J1", &example(), 100).await;
        let error = host.failure("J1").await;
        assert!(error.contains(says), "{fault}: {error:?} lacks {says:?}");
        host.wait_nothing_pending().await;
        assert_eq!(host.status("J1").await["error"], error);
        assert_eq!(host.get("/health").await.0, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_answers_that_are_legal_are_passed_on() {
    for (fault, expected) in [
        ("zero_count", json!({ "counts": { "00": 100, "11": 0 }, "shots_completed": 100 })),
        ("fewer_shots", json!({ "counts": { "00": 50 }, "shots_completed": 50 })),
        ("no_shots_completed", json!({ "counts": { "00": 100 } })),
        ("no_counts", json!({ "counts": {}, "shots_completed": 0 })),
    ] {
        let host = Plan::faulty(&format!("fault: {fault}")).start().await;
        host.submit("J1", &example(), 100).await;
        let mut body = host.delivered("J1").await;
        let object = body.as_object_mut().unwrap();
        assert_eq!(object.remove("status"), Some(json!("completed")), "{fault}");
        object.retain(|key, _| key != "job_id" && key != "execution_time_ms");
        assert_eq!(body, expected, "{fault}");
    }
}

/// SIGTERM in the middle of a job still drains it.
async fn drains(mut host: TestHost, fault: &str) {
    host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    eventually("the plugin has it", async || host.ready().await.1["current_job"] == "J1").await;
    if ["sigterm_ignore\nwhen: run", "sigterm_handler\nwhen: run"].iter().any(|f| fault.contains(f)) {
        // A signal that is ignored in the moment between its arrival and its taking is lost in the kernel.
        host.wait_log("changed signal handling during a run; put back").await;
    }
    assert_eq!(host.stop().await, Exit::Code(0), "{fault}");
    assert_eq!(host.attempts("J1"), (1, 1), "{fault}");
    assert!(host.pending().await.is_empty(), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_takes_the_signals_does_not_get_them() {
    for fault in ["sigterm_ignore", "sigterm_handler", "sigchld_ignore", "block_signals"] {
        for when in ["create", "run"] {
            let device = format!("fault: {fault}\nwhen: {when}\nrun_ms: 300");
            let host = Plan::faulty(&device).start().await;
            if fault != "block_signals" && when == "create" {
                host.wait_log("the plugin changed signal handling; put back").await;
            }
            drains(host, &device).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_takes_the_signals_when_it_is_loaded_does_not_get_them() {
    for fault in ["sigterm_ignore", "sigterm_handler", "sigchld_ignore"] {
        let host = Plan::faulty("when: load\nrun_ms: 300").env("CODA_FAULTY_AT_LOAD", fault).start().await;
        host.wait_log("call=\"loading\"").await;
        drains(host, fault).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_plugin_does_to_the_process_costs_no_job() {
    for fault in ["leave_threads", "setlocale", "chdir", "umask", "close_stdio", "print_10mb"] {
        for when in ["create", "run"] {
            let mut host = Plan::faulty(&format!("fault: {fault}\nwhen: {when}\nrun_ms: 1")).start().await;
            for id in ["J1", "J2"] {
                host.submit(id, &example(), 100).await;
                let body = host.delivered(id).await;
                assert_eq!(body["counts"], json!({ "00": 100 }), "{fault} {when}");
                assert_eq!(body["execution_time_ms"], json!(1.0), "{fault} {when}");
            }
            host.send(&host.job("", &example(), 1)).await;
            host.wait_nothing_pending().await;
            assert_eq!(host.get("/health").await.0, 200, "{fault} {when}");
            assert_eq!(host.stop().await, Exit::Code(0), "{fault} {when}");
            only_the_owner_may_read(&host, fault);
            if fault == "print_10mb" {
                assert!(host.log().len() > 20_000_000, "what the plugin prints is in the log");
            }
        }
    }
}

/// Whatever the plugin did to umask and working directory: the files are where they belong, as they must be.
fn only_the_owner_may_read(host: &TestHost, fault: &str) {
    for name in ["coda.config", "coda-private-key", "coda-host.db"] {
        let path = host.state_dir().join(name);
        let mode =
            std::fs::metadata(&path).unwrap_or_else(|e| panic!("{name}: {e}")).permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{fault}: {name} has mode {mode:o}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_never_becomes_that_of_the_next_job() {
    for isolation in ["none", "process"] {
        let plan = Plan::device("executor_factory: coda_faulty_cpp\nlate: run");
        let mut host = plan.env("CODA_EXECUTOR_ISOLATION", isolation).start().await;
        host.submit("J1", &example(), 10).await;
        eventually("the plugin has it", async || host.ready().await.1["current_job"] == "J1").await;
        host.request_cancel("J1").await;
        host.wait_state("J1", "cancelled").await;
        for id in ["J2", "J3"] {
            host.submit(id, &example(), 10).await;
            assert_eq!(host.delivered(id).await["counts"], json!({ "00": 10 }), "{isolation} {id}");
        }
        host.wait_log("all was said too late: 0 qubits, cancelled 1").await;
        host.wait_log("of a call that has ended, which has no effect").await;
        let log = host.log();
        let line = log.lines().find(|line| line.contains("of a call that has ended")).expect("the line");
        assert!(line.contains("ERROR") && line.contains("J1"), "{isolation}: {line}");
        assert!(!host.get("/metrics").await.1.contains("too_late"), "{isolation}");
        assert_eq!(host.stop().await, Exit::Code(0), "{isolation}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_answer_fails_its_run() {
    for isolation in ["none", "process"] {
        for twice in ["outcome", "error"] {
            let plan = Plan::device(format!("executor_factory: coda_faulty_cpp\ntwice: {twice}"));
            let host = plan.env("CODA_EXECUTOR_ISOLATION", isolation).start().await;
            host.submit("J1", &example(), 10).await;
            let error = host.failure("J1").await;
            assert!(error.contains("gave 2 answers to one run"), "{isolation} {twice}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_nobody_asked_for_is_never_status_0() {
    let ends = [
        ("exit", Exit::Code(3)),
        ("exit_zero", Exit::Code(3)),
        ("exit_at_once", Exit::Code(3)),
        ("abort", Exit::Signal(libc::SIGABRT)),
    ];
    for (fault, exit) in ends {
        for when in ["load", "create", "device", "run", "cancel", "shutdown", "drop"] {
            let at_load = if when == "load" { fault } else { "" };
            let mut host = Plan::faulty("").env("CODA_FAULTY_AT_LOAD", at_load).prepare().await;
            let record = host.dir().join("record");
            host.write_device(&format!(
                "executor_factory: coda_faulty\nfault: {fault}\nwhen: {when}\nrun_ms: 60000\nrecord: {}",
                record.display()
            ));
            if ["run", "cancel", "shutdown", "drop"].contains(&when) {
                host.start().await;
                if ["run", "cancel"].contains(&when) {
                    host.submit("J1", &example(), 10).await;
                }
                if when == "cancel" {
                    // Before that there is nothing for the hook to do.
                    eventually("the run is in the plugin", async || record.exists()).await;
                    host.request_cancel("J1").await;
                }
                if ["shutdown", "drop"].contains(&when) {
                    host.process().signal(libc::SIGTERM);
                }
            } else {
                host.launch();
            }
            assert_eq!(host.wait_exit().await, exit, "{fault} {when}: {}", host.log());
            if fault != "abort" {
                assert!(host.log().contains("ended the process of coda-host by exit"), "{fault} {when}");
            }
        }
    }
}

/// Such as `os.kill(os.getpid(), SIGTERM)`: a supervisor has to start the host again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_signals_its_own_process_ends_it_as_a_failure() {
    for when in ["create", "device", "run", "shutdown", "drop"] {
        let mut host = Plan::faulty(&format!("fault: signal_itself\nwhen: {when}")).prepare().await;
        host.launch();
        if when == "run" {
            host.submit("J1", &example(), 10).await;
            host.delivered("J1").await;
        }
        // Once a stop was asked for, one more signal changes nothing.
        let expected = if ["shutdown", "drop"].contains(&when) {
            host.wait_ready().await;
            host.process().signal(libc::SIGTERM);
            Exit::Code(0)
        } else {
            Exit::Code(3)
        };
        assert_eq!(host.wait_exit().await, expected, "{when}: {}", host.log());
        assert!(host.log().contains("the plugin s"), "{when}: {}", host.log());
    }
}

/// Without its descriptors the host can't go on and can't end in order: it must end all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_whose_descriptors_a_plugin_closes_ends_for_its_supervisor() {
    let mut host = Plan::faulty("fault: close_descriptors\nwhen: run")
        .env("CODA_SHUTDOWN_DRAIN_TIMEOUT_SEC", "0.1")
        .env("CODA_SHUTDOWN_MARGIN_SEC", "0.5")
        .start()
        .await;
    host.submit("J1", &example(), 10).await;
    assert_ne!(host.wait_exit().await, Exit::Code(0), "{}", host.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_that_are_dropped_do_not_fill_the_log() {
    for isolation in ["none", "process"] {
        let plan = Plan::faulty("fault: gauges_10k").env("CODA_PLUGIN_LOG_KIB_PER_SEC", "4");
        let host = plan.env("CODA_EXECUTOR_ISOLATION", isolation).start().await;
        for n in 0..3 {
            host.good_job_goes_through(&format!("J{n}")).await;
        }
        host.wait_log("lines are left out").await;
        let lines = host.log().lines().count();
        assert!(lines < 2_000, "{isolation}: {lines} lines");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_a_plugin_ends_while_it_starts_is_a_failure() {
    for fault in ["exit_zero", "exit_at_once", "abort"] {
        let mut host = Plan::faulty(&format!("fault: {fault}")).prepare().await;
        host.choose_port();
        let done = host.cli(&["start", "--daemon", "--token", "one-time-q1"]).await;
        assert_ne!(done.code, 0, "{fault}: {}", done.text());
        assert!(done.err.contains("while it was starting"), "{fault}: {}", done.text());
    }
}
