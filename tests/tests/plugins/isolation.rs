//! Plugins in separate processes: their deaths, their ends in time, their replacement; and what they tell.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use coda_host_tests::artifacts::library;
use coda_host_tests::process::children;
use coda_host_tests::run_record::RunRecord;
use coda_host_tests::swaps::{RUN, Swaps};
use coda_host_tests::{Exit, Plan, TestHost, eventually, eventually_some, example};
use serde_json::json;

fn isolated(keys: &str) -> Plan {
    quick(Plan::faulty(keys))
}

fn quick(plan: Plan) -> Plan {
    plan.env("CODA_EXECUTOR_ISOLATION", "process")
        .env("CODA_EXECUTOR_RESTART_BACKOFF_SEC", "0.02")
        .env("CODA_EXECUTOR_RESTART_BACKOFF_MAX_SEC", "0.2")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_run_in_a_process_of_the_plugin_as_they_do_in_the_host() {
    let mut host = quick(Plan::simulator("batch: true\nslots: 2\nseed: 3")).start().await;
    let pid = host.process().pid();
    assert_eq!(children(pid).len(), 1, "one process for the plugin");
    for n in 0..20 {
        host.submit(&format!("J{n}"), &example(), 50).await;
    }
    for n in 0..20 {
        assert_eq!(host.delivered(&format!("J{n}")).await["counts"], json!({ "10": 50 }));
    }
    let plugin = children(pid)[0];
    assert_eq!(host.stop().await, Exit::Code(0));
    eventually("the plugin's process has ended", async || !PathBuf::from(format!("/proc/{plugin}")).exists())
        .await;
    assert!(!host.log().contains("process died"), "{}", host.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_kills_the_plugin_costs_its_job_alone() {
    for (fault, says) in [
        ("segfault", "died of SIGSEGV (segmentation fault)"),
        ("abort", "died of SIGABRT (abort)"),
        ("exit", "ended by itself with status 3"),
        ("stack_overflow", "died of SIGABRT"),
    ] {
        // `after` counts the runs of each process.
        let mut host = isolated(&format!("fault: {fault}\nwhen: run\nafter: 1")).start().await;
        let pid = host.process().pid();
        host.good_job_goes_through("before").await;
        host.submit("J1", &example(), 100).await;
        let error = host.failure("J1").await;
        assert!(error.contains(says), "{fault}: {error}");
        host.good_job_goes_through("after").await;
        host.wait_nothing_pending().await;
        assert_eq!(host.process().pid(), pid);
        assert_eq!(host.get("/ready").await.0, 200);
        assert_eq!(host.stop().await, Exit::Code(0), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_jobs_against_a_plugin_that_dies_on_one_run_in_ten() {
    const JOBS: usize = 1000;
    let mut host = isolated("fault: segfault_sometimes\nwhen: run").start().await;
    let pid = host.process().pid();
    for n in 0..JOBS {
        host.submit(&format!("J{n}"), &example(), 10).await;
    }
    let (mut completed, mut failed) = (0, 0);
    for n in 0..JOBS {
        let id = format!("J{n}");
        eventually_some(&format!("{id} is answered"), async || (host.attempts(&id).1 > 0).then_some(()))
            .await;
        let body = host.delivered(&id).await;
        match body["status"].as_str() {
            Some("completed") => completed += 1,
            _ => {
                let error = body["error"].as_str().unwrap_or_default();
                assert!(error.contains("SIGSEGV"), "{id}: {body}");
                failed += 1;
            }
        }
        assert_eq!(host.attempts(&id).1, 1, "{id} is delivered once");
    }
    host.wait_nothing_pending().await;
    assert_eq!(completed + failed, JOBS);
    // One in ten: below 40 or above 180 would be no chance.
    assert!((40..180).contains(&failed), "{failed} failed");
    assert_eq!(host.process().pid(), pid);
    assert!(PathBuf::from(format!("/proc/{pid}")).exists(), "the host is the one that was started");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loop_is_shown_until_it_is_over() {
    let host = isolated("fault: segfault\nwhen: run").start().await;
    for n in 0..3 {
        let id = format!("J{n}");
        host.submit(&id, &example(), 10).await;
        assert!(host.failure(&id).await.contains("SIGSEGV"));
    }
    let reasons = eventually_some("/ready tells of it", async || {
        let (status, ready) = host.ready().await;
        (status == 503).then(|| ready["reasons"].to_string())
    })
    .await;
    assert!(reasons.contains("died 3 times in a row") && reasons.contains("SIGSEGV"), "{reasons}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_dies_while_it_is_created_is_refused_with_the_signal() {
    for (device, says) in [
        ("fault: segfault", "died of SIGSEGV"),
        ("fault: exit", "ended by itself with status 3"),
        ("fault: error_create", "out of calibration"),
        ("surplus: 1", "surplus"),
    ] {
        let mut host = isolated(device).prepare().await;
        host.launch();
        assert_eq!(host.wait_exit().await, Exit::Code(3), "{}", host.log());
        assert!(host.log().contains(says), "{device}: {}", host.log());
        assert!(host.cloud.state().connects.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plugin_dies_with_the_host_and_what_it_ran_runs_again() {
    let mut host = isolated("run_ms: 300").start().await;
    let plugin = children(host.process().pid())[0];
    host.submit("J1", &example(), 10).await;
    eventually("the plugin has it", async || host.ready().await.1["current_job"] == "J1").await;
    host.kill();
    eventually("the plugin's process is gone", async || !PathBuf::from(format!("/proc/{plugin}")).exists())
        .await;
    host.start().await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "00": 10 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_plugin_prints_and_logs_is_in_the_log_with_its_name() {
    let host = isolated("fault: panic_run").start().await;
    host.submit("J1", &example(), 10).await;
    assert!(host.failure("J1").await.contains("panicked"));
    host.wait_log("stderr: thread '").await;
    let host = quick(Plan::device("executor_factory: coda_example_rust\nhost: lab\nport: 7")).start().await;
    let log = host.log();
    let line = log.lines().find(|l| l.contains("connected to lab:7")).expect("the plugin's own line");
    assert!(line.contains("coda-plugin-example-rust"), "{line}");
}

/// A run that goes on whatever it is told.
const DEAF: &str = "fault: slow\nrun_ms: 600000";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugins_process_outlives_stop_signals_and_hands_no_blocked_one_to_its_helpers() {
    let mut host = isolated("").start().await;
    let plugin = children(host.process().pid())[0];
    // What a helper of the plugin inherits is the mask of the thread that starts it.
    for task in std::fs::read_dir(format!("/proc/{plugin}/task")).unwrap().flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        let of = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells it");
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            let bit = 1 << (signal - 1);
            assert!(of("SigBlk:") & bit == 0 && of("SigIgn:") & bit == 0, "signal {signal}: {status}");
        }
    }
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        coda_host::sys::signal(plugin.cast_unsigned(), signal).unwrap();
    }
    host.submit("J1", &example(), 10).await;
    assert_eq!(host.delivered("J1").await["status"], "completed");
    assert_eq!(children(host.process().pid()), [plugin], "the same process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ignores_its_cancel_is_killed_after_the_grace() {
    let record = RunRecord::new();
    let host = isolated(&record.keys(DEAF)).env("CODA_CANCEL_GRACE_SEC", "0.2").start().await;
    host.submit("J1", &example(), 10).await;
    // A cancel that comes earlier ends the job before it begins.
    record.wait_begun("J1").await;
    host.request_cancel("J1").await;
    host.wait_state("J1", "cancelled").await;
    host.wait_log("the run did not end; its process is killed").await;
    host.write_device("fault: none");
    // The job after it is taken by the next process, which is as deaf: the device config is read at the start.
    host.wait_nothing_pending().await;
    eventually("no job is in the plugin", async || host.ready().await.1["slots_busy"] == 0).await;
    assert_eq!(host.attempts("J1"), (0, 0), "no result of a cancelled job");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_beyond_the_time_limit_is_ended_and_fails_with_the_limit() {
    // One that ends when it is asked to, in either place.
    for plan in [Plan::faulty("run_ms: 600000"), isolated("run_ms: 600000")] {
        let host = plan.env("CODA_JOB_TIMEOUT_SEC", "0.2").start().await;
        host.submit("J1", &example(), 10).await;
        let error = host.failure("J1").await;
        assert!(error.contains("took longer than 0.2 s"), "{error}");
        host.wait_nothing_pending().await;
    }
    // One that doesn't.
    let host =
        isolated(DEAF).env("CODA_JOB_TIMEOUT_SEC", "0.2").env("CODA_CANCEL_GRACE_SEC", "0.2").start().await;
    for id in ["J1", "J2"] {
        host.submit(id, &example(), 10).await;
        let error = host.failure(id).await;
        assert!(error.contains("took longer than 0.2 s") && error.contains("was killed"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_run_in_the_host_stops_the_claiming_and_ends_the_host_if_it_is_told_to() {
    let stuck = |exit: &str| {
        Plan::faulty(DEAF).env("CODA_CANCEL_GRACE_SEC", "0.2").env("CODA_EXECUTOR_STUCK_EXIT", exit)
    };
    let mut host = stuck("0").start().await;
    host.submit("J1", &example(), 10).await;
    eventually("the plugin has it", async || host.ready().await.1["current_job"] == "J1").await;
    host.request_cancel("J1").await;
    let reasons = eventually_some("/ready tells of it", async || {
        let (status, ready) = host.ready().await;
        (status == 503).then(|| ready["reasons"].to_string())
    })
    .await;
    assert!(reasons.contains("the executor is stuck in job J1"), "{reasons}");
    host.kill();

    let mut host = stuck("1").start().await;
    host.submit("J1", &example(), 10).await;
    eventually("the plugin has it", async || host.ready().await.1["current_job"] == "J1").await;
    host.request_cancel("J1").await;
    assert_eq!(host.wait_exit().await, Exit::Code(5), "{}", host.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_and_progress_are_shown() {
    let acme = "executor_factory: coda_example_rust\nhost: lab\nport: 7";
    for plan in [Plan::device(acme), quick(Plan::device(acme))] {
        let host = plan.start().await;
        eventually_some("the gauge", async || {
            let text = host.get("/metrics").await.1;
            text.contains("coda_plugin_fridge_kelvin{plugin=\"coda-plugin-example-rust\"} 0.012\n# EOF")
                .then_some(())
        })
        .await;
        // Long enough to be looked at.
        host.submit("J1", &example(), i32::MAX as u32).await;
        let (done, total) = eventually_some("progress of the run", async || {
            let ready = host.ready().await.1;
            Some((ready["progress"]["done"].as_u64()?, ready["progress"]["total"].as_u64()?))
        })
        .await;
        assert!(done < total && total == u64::from(i32::MAX as u32), "{done} of {total}");
        host.request_cancel("J1").await;
        host.wait_state("J1", "cancelled").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_config_that_does_not_fit_the_schema_is_refused_with_line_and_key_and_secrets_stay_hidden() {
    let start = async |device: &str, isolation: &str| {
        let mut host = Plan::device(device).env("CODA_EXECUTOR_ISOLATION", isolation).prepare().await;
        host.launch();
        assert_eq!(host.wait_exit().await, Exit::Code(3), "{}", host.log());
        host.log()
    };
    for isolation in ["none", "process"] {
        let log =
            start("executor_factory: coda_example_c\nhost: lab\nport: 70000\ntoken: sesame-open", isolation)
                .await;
        assert!(log.contains("device.yaml") && log.contains("line 3: `port`: 70000"), "{log}");
        let log = start("executor_factory: coda_example_rust\nport: 7", isolation).await;
        assert!(log.contains("`host`: it is missing (Where the control stack listens"), "{log}");
        let log =
            start("executor_factory: coda_example_cpp\nhost: lab\nport: 7\ntoken: [sesame-open]", isolation)
                .await;
        assert!(log.contains("`token`") && !log.contains("sesame-open"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pinned_plugin_is_that_or_none() {
    use sha2::{Digest as _, Sha256};
    let bytes = std::fs::read(library("coda_faulty")).unwrap();
    let digest: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02X}")).collect();
    Plan::faulty("").env("CODA_EXECUTOR_SHA256", digest).start().await.good_job_goes_through("J1").await;
    let mut host = Plan::faulty("").env("CODA_EXECUTOR_SHA256", "0".repeat(64)).prepare().await;
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(3));
    assert!(host.log().contains("CODA_EXECUTOR_SHA256 pins 0000"), "{}", host.log());
}

/// A host whose plugin is a separate file, which can be replaced.
async fn replaceable(first: &str, keys: &str) -> (TestHost, PathBuf) {
    let mut host = quick(Plan::device(format!("executor_factory: ./own.so\n{keys}"))).prepare().await;
    let own = host.dir().join("own.so");
    std::fs::copy(library(first), &own).unwrap();
    host.start().await;
    (host, own)
}

fn replace(own: &PathBuf, with: &str) {
    let new = own.with_extension("new");
    std::fs::copy(library(with), &new).unwrap();
    std::fs::rename(new, own).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_takes_the_new_plugin_and_refuses_a_bad_one() {
    let (mut host, own) = replaceable("coda_faulty", "").await;
    let pid = host.process().pid();
    host.good_job_goes_through("J1").await;
    // Not one that doesn't load, nor one that can't be created: the former stays.
    std::fs::write(own.with_extension("bad"), "no library").unwrap();
    std::fs::rename(own.with_extension("bad"), &own).unwrap();
    let done = host.cli(&["reload"]).await;
    assert_eq!(done.code, 1, "{}", done.text());
    assert!(done.err.contains("no ELF file"), "{}", done.text());
    host.good_job_goes_through("J2").await;
    replace(&own, "coda_faulty");
    host.write_device("executor_factory: ./own.so\nfault: error_create");
    let done = host.cli(&["reload"]).await;
    assert!(done.code == 1 && done.err.contains("out of calibration"), "{}", done.text());
    host.good_job_goes_through("J3").await;
    host.write_device("executor_factory: ./own.so\nslots: 2");
    let done = host.cli(&["reload"]).await;
    assert!(done.code == 1 && done.err.contains("2 slots"), "{}", done.text());
    host.good_job_goes_through("J4").await;
    // Another library with another device.
    replace(&own, "coda_simulator");
    host.write_device("executor_factory: ./own.so\nnum_qubits: 7");
    let done = host.cli(&["reload"]).await;
    assert_eq!(done.code, 0, "{}", done.text());
    assert!(done.out.contains("coda-plugin-simulator") && done.out.contains("7 qubits"), "{}", done.out);
    host.submit("J5", &example(), 10).await;
    assert_eq!(host.delivered("J5").await["counts"], json!({ "10": 10 }));
    let (status, ready) = host.ready().await;
    assert_eq!((status, ready["plugin"]["name"].as_str()), (200, Some("coda-plugin-simulator")));
    assert_eq!(
        (host.process().pid(), host.cloud.state().connects.len()),
        (pid, 1),
        "the same host, connected once"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_jobs_are_judged_by_the_device_that_runs_them() {
    let (host, own) = replaceable("coda_faulty", "run_ms: 1500").await;
    host.submit("running", &example(), 10).await;
    host.wait_state("running", "executing").await;
    host.submit("waiting", &example(), 10).await;
    eventually("a job waits", async || host.ready().await.1["waiting"] == 1).await;
    replace(&own, "coda_simulator");
    host.write_device("executor_factory: ./own.so\nnum_qubits: 2");
    let done = host.cli(&["reload"]).await;
    assert_eq!(done.code, 0, "{}", done.text());
    host.delivered("running").await;
    let error = host.failure("waiting").await;
    assert!(error.starts_with("the circuit has 3 qubits, the device"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_in_the_host_itself_says_what_it_needs() {
    let host = Plan::faulty("").start().await;
    let done = host.cli(&["reload"]).await;
    assert!(done.code == 1 && done.err.contains("can't be swapped"), "{}", done.text());
    host.good_job_goes_through("J1").await;
}

/// How many reloads under load; `CODA_SWAPS=12` with `CODA_SWAP_EVERY_MS=10000` is two minutes.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swaps_under_load_lose_no_job_run_none_twice_and_only_end_and_create_while_none_runs() {
    let (swaps, every) = (number("CODA_SWAPS", 4), Duration::from_millis(number("CODA_SWAP_EVERY_MS", 500)));
    let start = Instant::now();
    let mut load = Swaps::run(swaps, every).await;
    let pid = load.host.process().pid();
    let host = &load.host;
    for n in 0..load.jobs {
        assert_eq!(host.delivered(&format!("J{n}")).await["counts"], json!({ "00": 10 }), "J{n}");
        assert_eq!(host.attempts(&format!("J{n}")), (1, 1), "J{n}");
    }
    host.wait_nothing_pending().await;
    let (_, ready) = host.ready().await;
    assert_eq!(
        (ready["reloads"]["count"].as_u64(), &ready["reloads"]["ok"]),
        (Some(swaps), &json!(true)),
        "{ready}"
    );
    assert!(PathBuf::from(format!("/proc/{pid}")).exists(), "the host is the one that was started");
    let runs = load.runs();
    assert_eq!(runs.len() as u64, load.jobs);
    assert!(runs.values().all(|n| *n == 1), "{runs:?}");
    // The next library is opened and checked while the former executor works; only its end and the creation are left.
    let gaps = load.gaps();
    assert_eq!(gaps.len() as u64, swaps, "{gaps:?}");
    assert!(gaps.iter().all(|g| g.events == ["shutdown", "drop", "create"]), "{gaps:?}");
    let steps = [
        "the new plugin is checked, its process waits",
        "no run is in the plugin, and none begins",
        "the former executor has ended",
        "runs may begin again",
    ];
    let log = host.log();
    let seen: Vec<usize> =
        log.lines().filter_map(|line| steps.iter().position(|step| line.contains(step))).collect();
    assert_eq!(seen, [0, 1, 2, 3].repeat(swaps as usize), "in this order, once for each swap");
    let longest = gaps.iter().map(|g| g.time).max().unwrap_or_default();
    println!(
        "{} jobs, {swaps} swaps in {:?}; longest pause {longest:?}, a job takes {RUN:?}",
        load.jobs,
        start.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_is_started_whatever_descriptors_are_open_and_with_a_low_limit() {
    for wrapper in [
        &["bash", "-c", "for n in {10..450}; do eval \"exec $n</dev/null\"; done; exec \"$@\"", "bash"][..],
        &["bash", "-c", "ulimit -Sn 100; exec \"$@\"", "bash"],
    ] {
        let mut host = isolated("slots: 3").within(wrapper).start().await;
        let plugin = children(host.process().pid())[0];
        let open = std::fs::read_dir(format!("/proc/{plugin}/fd")).unwrap().count();
        assert!(open < 24, "the plugin's process has {open} descriptors");
        for n in 0..3 {
            host.good_job_goes_through(&format!("J{n}")).await;
        }
        assert_eq!(host.stop().await, Exit::Code(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_on_descriptors_that_is_too_low_is_named() {
    let wrapper = ["bash", "-c", "ulimit -n 17; exec \"$@\"", "bash"];
    let mut host = isolated("slots: 3").within(&wrapper).prepare().await;
    host.launch();
    assert_ne!(host.wait_exit().await, Exit::Code(0));
    let log = host.log();
    assert!(log.contains("Too many open files") && log.contains("ulimit -n"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_prints_without_end_does_not_fill_the_log() {
    let plan = isolated("fault: print_10mb\nwhen: run").env("CODA_PLUGIN_LOG_KIB_PER_SEC", "16");
    let mut host = plan.start().await;
    for n in 0..3 {
        host.good_job_goes_through(&format!("J{n}")).await;
    }
    host.wait_log("lines are left out").await;
    assert_eq!(host.stop().await, Exit::Code(0));
    let bytes = host.log().len();
    assert!(bytes < 2 << 20, "{bytes} bytes of log for 60 MB of output");
}
