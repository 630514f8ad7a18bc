//! MQT's simulator DDSIM, a real foreign device library, in both versions of the interface.

use std::path::Path;
use std::time::Duration;

use coda_host_tests::qdmi::{ddsim, ddsim_1_3, device, plan};
use coda_host_tests::{Circuit, TestHost, bell, eventually, eventually_some, example, ghz};
use serde_json::{Value, json};

/// A check runs about twenty cases with jobs, one after the other.
const CHECK_LIMIT: Duration = Duration::from_secs(300);

/// Verdicts of `plugin check` with tolerance 0.
async fn check(host: &TestHost, arguments: &[&str]) -> (i32, Value) {
    let device = host.dir().join("device.yaml").display().to_string();
    let mut command = vec!["plugin", "check", "--device", &device, "--json", "--seed", "7"];
    command.extend(arguments);
    let said = host.cli_within(CHECK_LIMIT, &command).await;
    let report = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {}", said.text()));
    (said.code, report)
}

/// Cases that there is nothing for: DDSIM takes every circuit that a host may send, and has one slot.
const NOTHING_TO_TRY: &[&str] = &["refusals", "evolve-state", "concurrent-runs", "error-then-good", "memory"];

fn assert_passed(report: &Value, excepted: &[&str]) {
    let cases = report["cases"].as_array().expect("cases");
    assert!(cases.len() >= 29, "{} cases", cases.len());
    for case in cases {
        let name = case["case"].as_str().expect("a name");
        if excepted.contains(&name) {
            continue;
        }
        let wants = if NOTHING_TO_TRY.contains(&name) { "skipped" } else { "passed" };
        assert_eq!(case["verdict"], wants, "{case}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_of_the_check_passes_exactly() {
    let Some(library) = ddsim() else { return };
    let host = plan(&library, "").prepare().await;
    let (code, report) = check(&host, &[]).await;
    assert_passed(&report, &[]);
    assert_eq!(code, 0, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_passes_in_openqasm_2_and_by_registers() {
    let Some(library) = ddsim() else { return };
    for keys in ["format: qasm2\n", "addressing: register\n", "slots: 3\ntargets: [iswap]\n"] {
        let host = plan(&library, keys).prepare().await;
        let (code, report) = check(&host, &["--quick"]).await;
        assert_eq!(code, 0, "{keys}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_passes_with_the_older_interface_but_a_cancel_that_it_can_not_do() {
    let Some(library) = ddsim_1_3() else { return };
    let host = plan(&library, "").prepare().await;
    let (_, report) = check(&host, &[]).await;
    // Whether its cancel returns in time depends on the memory of the machine: the long job may fail before.
    assert_passed(&report, &["cancel-during", "batch", "shutdown-during-run"]);
    let batch = report["cases"].as_array().unwrap().iter().find(|case| case["case"] == "batch").unwrap();
    assert_eq!(batch["verdict"], "skipped", "lists came with 1.4");
}

/// Of a wide superposition, whose shots take a second for every few hundred thousand.
fn long() -> Circuit {
    (0..20).fold(Circuit::new(20), |circuit, q| circuit.ry(q, 1.0 + f64::from(q) / 10.0))
}

fn assert_bell(body: &Value, shots: u64) {
    assert_eq!(body["status"], "completed", "{body}");
    let count = |key: &str| body["counts"][key].as_u64().unwrap_or(0);
    assert_eq!(count("00") + count("11"), shots, "{body}");
    assert!(count("00") > shots / 3 && count("11") > shots / 3, "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_go_through_in_both_versions() {
    for library in [ddsim(), ddsim_1_3()] {
        let Some(library) = library else { return };
        let host = plan(&library, "").qubits(50).start().await;
        host.submit("J1", &bell(), 1000).await;
        assert_bell(&host.delivered("J1").await, 1000);
        host.submit("J2", &example(), 10).await;
        assert_eq!(host.delivered("J2").await["counts"], json!({ "10": 10 }));
        let repeated = Circuit::new(6).rx(2, std::f64::consts::PI).measure(&[2, 5, 0, 3, 2]);
        host.submit("J3", &repeated, 10).await;
        assert_eq!(host.delivered("J3").await["counts"], json!({ "10001": 10 }));
        host.submit("J4", &Circuit::new(3).measure(&[]), 10).await;
        assert_eq!(host.delivered("J4").await["counts"], json!({ "": 10 }));
        host.wait_log("the job in the device is ").await;
        let status = r#"coda_plugin_qdmi_status{plugin="coda-plugin-qdmi"}"#;
        assert_eq!(host.metric(status).await, 1, "idle");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_wait_are_one_list_for_each_number_of_shots() {
    let Some(library) = ddsim() else { return };
    let host = plan(&library, "").env("CODA_PREFETCH", "20").start().await;
    // It keeps the device busy, so that the others are read ahead.
    host.submit("first", &long(), 300_000).await;
    host.wait_log("the job in the device is ").await;
    for n in 0..10 {
        host.submit(&format!("J{n}"), &ghz(3), 100 + n % 2).await;
    }
    for n in 0..10 {
        let body = host.delivered(&format!("J{n}")).await;
        let sum: u64 = body["counts"].as_object().expect("counts").values().filter_map(Value::as_u64).sum();
        assert_eq!(sum, 100 + n % 2, "{body}");
    }
    let ids: std::collections::BTreeSet<String> = host
        .log()
        .lines()
        .filter_map(|line| {
            line.split("the job in the device is ").nth(1)?.split('"').next().map(String::from)
        })
        .map(|rest| rest.split_whitespace().next().unwrap_or_default().to_string())
        .collect();
    assert_eq!(ids.len(), 3, "one job first, then a list for each number of shots: {ids:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_the_job_and_the_next_one_is_right() {
    let Some(library) = ddsim() else { return };
    let host = plan(&library, "").qubits(20).start().await;
    for id in ["J1", "J2"] {
        host.submit(id, &long(), 200_000_000).await;
        let jobs = id[1..].parse::<usize>().unwrap();
        eventually("it is in the device", async || {
            host.log().matches("the job in the device is ").count() == jobs
        })
        .await;
        host.request_cancel(id).await;
        host.wait_state(id, "cancelled").await;
    }
    host.wait_nothing_pending().await;
    host.submit("J3", &bell(), 1000).await;
    assert_bell(&host.delivered("J3").await, 1000);
    assert!(!host.log().contains("its process is killed"), "{}", host.log());
}

/// The plugin's process, by its device library among what it has mapped.
fn plugin_process(host_pid: i32, library: &Path) -> Option<i32> {
    let name = library.display().to_string();
    let children = coda_host_tests::process::descendants(host_pid);
    children.into_iter().find(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(&name))
    })
}

/// DDSIM's own processes below this one.
fn workers(pid: i32) -> Vec<i32> {
    let is_worker = |pid: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        name.contains("mqt-core-ddsim-worker")
    };
    coda_host_tests::process::descendants(pid).into_iter().filter(is_worker).collect()
}

/// The same, once there are any.
async fn worker_of(pid: i32) -> Vec<i32> {
    eventually_some("DDSIM works in a separate process", async || {
        Some(workers(pid)).filter(|found| !found.is_empty())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_the_process_costs_its_job_and_leaves_no_worker() {
    let Some(library) = ddsim() else { return };
    let mut host = plan(&library, "").qubits(20).start().await;
    host.submit("J1", &long(), 200_000_000).await;
    host.wait_log("the job in the device is ").await;
    let pid = host.process().pid();
    let plugin = eventually_some("the plugin's process", async || plugin_process(pid, &library)).await;
    let helpers = worker_of(plugin).await;
    coda_host::sys::signal(plugin.unsigned_abs(), libc::SIGKILL).expect("the signal");
    let error = host.failure("J1").await;
    assert!(error.contains("SIGKILL"), "{error}");
    eventually("no worker is left", async || {
        helpers.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    })
    .await;
    host.submit("J2", &bell(), 1000).await;
    assert_bell(&host.delivered("J2").await, 1000);
    // The job that was in the device is told, whether or not this library can look it up.
    host.wait_log("was in the device when this plugin's process ended before").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_that_the_library_can_not_do_ends_with_its_process() {
    let Some(library) = ddsim_1_3() else { return };
    let host = plan(&library, "").qubits(20).env("CODA_CANCEL_GRACE_SEC", "0.3").start().await;
    host.submit("J1", &long(), 20_000_000).await;
    host.wait_log("the job in the device is ").await;
    host.request_cancel("J1").await;
    host.wait_log("its process is killed").await;
    host.wait_state("J1", "cancelled").await;
    host.submit("J2", &bell(), 1000).await;
    assert_bell(&host.delivered("J2").await, 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_the_librarys_own_helper_costs_its_job() {
    let Some(library) = ddsim() else { return };
    let mut host = plan(&library, "").qubits(20).start().await;
    host.submit("J1", &long(), 200_000_000).await;
    host.wait_log("the job in the device is ").await;
    let pid = host.process().pid();
    let helpers = worker_of(pid).await;
    coda_host::sys::signal(helpers[0].unsigned_abs(), libc::SIGKILL).expect("the signal");
    let error = host.failure("J1").await;
    assert!(error.contains("the device library") || error.contains("failed in the device"), "{error}");
    host.submit("J2", &bell(), 1000).await;
    assert_bell(&host.delivered("J2").await, 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_exchanges_the_library() {
    let (Some(newer), Some(older)) = (ddsim(), ddsim_1_3()) else { return };
    let host = plan(&newer, "").start().await;
    host.submit("J1", &bell(), 1000).await;
    assert_bell(&host.delivered("J1").await, 1000);
    host.write_device(&device(&older, "format: qasm2\n"));
    let said = host.cli(&["reload"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    host.wait_log("QDMI 1.3, qasm2").await;
    host.submit("J2", &bell(), 1000).await;
    assert_bell(&host.delivered("J2").await, 1000);
    // One that can't be used leaves the device as it is.
    host.write_device(&device(&older, "format: iqm_json\n"));
    assert_ne!(host.cli(&["reload"]).await.code, 0);
    host.submit("J3", &bell(), 1000).await;
    assert_bell(&host.delivered("J3").await, 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_of_one_job_of_a_list_leaves_the_others() {
    let Some(library) = ddsim() else { return };
    let host = plan(&library, "")
        .qubits(20)
        .env("CODA_PREFETCH", "20")
        .env("CODA_CANCEL_GRACE_SEC", "0.1")
        .start()
        .await;
    let in_device = |id: &str| {
        let mark = format!("job_id=\"{id}\"");
        host.log().lines().any(|line| line.contains("the job in the device is ") && line.contains(&mark))
    };
    host.submit("first", &long(), 200_000).await;
    eventually("the first is in the device", async || in_device("first")).await;
    for id in ["a", "b", "c"] {
        host.submit(id, &long(), 200_000).await;
    }
    eventually("the list is in the device", async || in_device("c")).await;
    host.request_cancel("b").await;
    for id in ["first", "a", "c"] {
        let body = host.delivered(id).await;
        assert_eq!(body["status"], "completed", "{id}: {body}");
    }
    host.wait_state("b", "cancelled").await;
    assert_eq!(host.attempts("b").0, 0, "no one is told of a cancelled job");
    // The device works on for the others, however long that takes.
    assert!(!host.log().contains("its process is killed"), "{}", host.log());
}
