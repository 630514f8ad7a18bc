//! IQM's device library, in both versions of the interface, against a server of the tests that speaks its HTTP interface.

use std::path::Path;
use std::time::Duration;

use coda_host_tests::iqm_server::{IqmServer, Jobs, TOKEN};
use coda_host_tests::qdmi::{device, iqm, plan};
use coda_host_tests::{Circuit, Plan, bell, eventually, flips};
use serde_json::{Value, json};

/// A host whose device is on this server, with these keys besides.
fn on(server: &IqmServer, library: &Path, keys: &str) -> Plan {
    let session = format!("session: {{base_url: '{}', token_env: LAB_TOKEN}}\n", server.url());
    plan(library, &format!("{session}poll_max_ms: 20\n{keys}")).env("LAB_TOKEN", TOKEN)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_of_the_check_passes_exactly() {
    let Some(libraries) = iqm() else { return };
    for (library, batch) in libraries.iter().zip(["skipped", "passed"]) {
        let server = IqmServer::start().await;
        let host = on(&server, library, "").prepare().await;
        let device = host.dir().join("device.yaml").display().to_string();
        let check = ["plugin", "check", "--device", &device, "--json", "--seed", "7", "--quick"];
        let said = host.cli_within(Duration::from_secs(300), &check).await;
        let report: Value =
            serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {}", said.text()));
        assert_eq!(said.code, 0, "{report}");
        let verdict = |name: &str| {
            let cases = report["cases"].as_array().expect("cases");
            cases.iter().find(|case| case["case"] == name).expect("the case")["verdict"].clone()
        };
        assert_eq!(verdict("batch"), batch, "lists came with 1.4");
        for case in ["bit-order", "bit-order-pairs", "gates-one-qubit", "gates-two-qubits", "random-circuits"]
        {
            assert_eq!(verdict(case), "passed", "{case}: {report}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_one_circuit_with_one_measurement() {
    let Some(libraries) = iqm() else { return };
    for library in libraries {
        let server = IqmServer::start().await;
        let host = on(&server, &library, "").start().await;
        let said = host.cli(&["plugin", "device", "--json"]).await;
        let told: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {}", said.text()));
        assert_eq!((&told["num_qubits"], &told["targets"]), (&json!(5), &json!(["cz"])), "{told}");
        assert_eq!(told["edges"], json!([[0, 1], [1, 2], [2, 3], [3, 4]]), "without the resonator");
        host.submit("J1", &bell(), 1000).await;
        let counts = host.delivered("J1").await["counts"].clone();
        let count = |key: &str| counts[key].as_u64().unwrap_or(0);
        assert_eq!(count("00") + count("11"), 1000, "{counts}");
        // Bits come in the order of the locus, whatever the circuit's order is, and each qubit once.
        host.submit("J2", &flips(5, &[3]).measure(&[4, 3, 0, 3]), 10).await;
        assert_eq!(host.delivered("J2").await["counts"], json!({ "0101": 10 }));
        let payload = server.payload(2);
        assert_eq!(payload["shots"], 10, "{payload}");
        let instructions = payload["circuits"][0]["instructions"].as_array().expect("instructions").clone();
        let measures: Vec<&Value> = instructions.iter().filter(|i| i["name"] == "measure").collect();
        assert_eq!(measures.len(), 1, "{payload}");
        assert_eq!(measures[0]["locus"], json!(["QB1", "QB4", "QB5"]));
        host.wait_log("the job in the device is 00000000-0000-0000-0000-000000000002").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_waits_in_the_queue_is_waited_for() {
    let Some(libraries) = iqm() else { return };
    for library in libraries {
        let server = IqmServer::start().await;
        server.set_jobs(Jobs::Wait(50));
        let host = on(&server, &library, "").start().await;
        host.submit("J1", &Circuit::new(2), 10).await;
        assert_eq!(host.delivered("J1").await["counts"], json!({ "00": 10 }));
        let looks = server.requests().iter().filter(|r| r.starts_with("GET api/v1/jobs/")).count();
        assert!(looks >= 50, "{looks}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_reaches_the_server() {
    let Some(libraries) = iqm() else { return };
    for library in libraries {
        let server = IqmServer::start().await;
        server.set_jobs(Jobs::Run);
        let host = on(&server, &library, "").start().await;
        host.submit("J1", &Circuit::new(2), 10).await;
        host.wait_log("the job in the device is ").await;
        host.request_cancel("J1").await;
        host.wait_state("J1", "cancelled").await;
        eventually("the server's job is cancelled", async || server.job_counts() == (1, 1)).await;
        server.set_jobs(Jobs::Complete);
        host.good_job_goes_through("J2").await;
        assert!(!host.log().contains("its process is killed"), "{}", host.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_a_killed_process_left_is_cancelled_where_the_library_can() {
    let Some([older, newer]) = iqm() else { return };
    for (library, can) in [(older, false), (newer, true)] {
        let server = IqmServer::start().await;
        server.set_jobs(Jobs::Run);
        let mut host = on(&server, &library, "").start().await;
        host.submit("J1", &Circuit::new(2), 10).await;
        host.wait_log("the job in the device is ").await;
        let children = coda_host_tests::process::descendants(host.process().pid());
        assert_eq!(children.len(), 1, "the plugin's process");
        coda_host::sys::signal(children[0].unsigned_abs(), libc::SIGKILL).expect("the signal");
        assert!(host.failure("J1").await.contains("SIGKILL"));
        server.set_jobs(Jobs::Complete);
        host.good_job_goes_through("J2").await;
        let says = if can { "; it is cancelled" } else { "can't look it up to cancel it" };
        host.wait_log(says).await;
        assert_eq!(server.job_counts(), (2, usize::from(can)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_server_reach_the_sender_or_the_operator() {
    let Some(libraries) = iqm() else { return };
    for library in libraries {
        let server = IqmServer::start().await;
        let mut host = on(&server, &library, "check_retry_ms: 100\n").prepare().await;
        host.set("LAB_TOKEN", "wr0ng-token");
        let said = host.cli(&["plugin", "device"]).await;
        assert!(said.code == 3 && said.err.contains("refused the credentials"), "{}", said.text());
        assert!(!said.text().contains("wr0ng-token"), "{}", said.text());
        host.set("LAB_TOKEN", TOKEN);
        server.refuse("quantum-computers", 500, 1);
        let said = host.cli(&["plugin", "device"]).await;
        assert!(said.code == 3 && said.err.contains("no connection to the device"), "{}", said.text());

        host.start().await;
        server.refuse("/circuit", 500, 1);
        host.submit("J1", &Circuit::new(2), 10).await;
        let error = host.failure("J1").await;
        assert!(error.contains("answered -1 (fatal error) to submit"), "{error}");
        server.refuse("/circuit", 401, 1);
        host.submit("J2", &Circuit::new(2), 10).await;
        let error = host.failure("J2").await;
        assert!(error.contains("to submit"), "{error}");
        server.set_jobs(Jobs::Fail);
        host.submit("J3", &Circuit::new(2), 10).await;
        let error = host.failure("J3").await;
        assert!(error.contains("the job failed in the device; its log has the reason"), "{error}");
        server.set_jobs(Jobs::Complete);
        host.good_job_goes_through("J4").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_that_fails_is_repeated_and_given_up_after_a_time() {
    let Some([_, library]) = iqm() else { return };
    let server = IqmServer::start().await;
    let host = on(&server, &library, "").start().await;
    server.set_jobs(Jobs::Wait(1));
    server.refuse("api/v1/jobs/00000000", 502, 5);
    host.submit("J1", &Circuit::new(2), 10).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "00": 10 }));
    host.wait_log("to check; trying again").await;

    let host = on(&server, &library, "check_retry_ms: 100\n").env("CODA_RETRY_MAX", "0").start().await;
    server.set_jobs(Jobs::Run);
    server.refuse("api/v1/jobs/00000000-0000-0000-0000-000000000002", 502, u32::MAX);
    host.submit("J1", &Circuit::new(2), 10).await;
    let error = host.failure("J1").await;
    assert!(error.contains("to check for") && error.contains("the job was given up"), "{error}");
    server.refuse("", 500, 0);
    server.set_jobs(Jobs::Complete);
    host.good_job_goes_through("J2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_in_maintenance_takes_no_job() {
    let Some([_, library]) = iqm() else { return };
    let server = IqmServer::start().await;
    let host = on(&server, &library, "refresh_ms: 100\n").start().await;
    server.set_healthy(false);
    host.submit("J1", &Circuit::new(2), 10).await;
    let error = host.failure("J1").await;
    assert!(error.contains("the device is in maintenance"), "{error}");
    assert_eq!(server.job_counts(), (0, 0));
    let status = r#"coda_plugin_qdmi_status{plugin="coda-plugin-qdmi"}"#;
    eventually("the gauge says so", async || host.metric(status).await == 4).await;
    server.set_healthy(true);
    eventually("the gauge says that it is idle", async || host.metric(status).await == 1).await;
    host.good_job_goes_through("J2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_of_the_manifest_and_the_config_reach_the_library() {
    let Some([older, newer]) = iqm() else { return };
    let server = IqmServer::start().await;
    // The manifest knows the computer's alias, and the config its address.
    let host = on(&server, &newer, "device: iqm.garnet\n").start().await;
    host.good_job_goes_through("J1").await;
    host.write_device(&device(&newer, "device: iqm.emerald\nsession: {base_url: 'http://127.0.0.1:1'}\n"));
    let said = host.cli(&["plugin", "device"]).await;
    assert!(said.code == 3 && said.err.contains("set were base_url, custom2; what"), "{}", said.text());
    for library in [older, newer] {
        let server = IqmServer::start().await;
        let session = |custom: &str| {
            let url = server.url();
            device(&library, &format!("session: {{base_url: '{url}', token_env: LAB_TOKEN, {custom}}}\n"))
        };
        host.write_device(&session("custom2: no-such-computer"));
        let said = host.cli(&["plugin", "device"]).await;
        assert!(said.code == 3 && said.err.contains("set were base_url, custom2, token"), "{}", said.text());
        // The limit of a request is an integer for this library, and a number in a text for others.
        host.write_device(&session("custom3: {u64: 300}"));
        assert_eq!(host.cli(&["plugin", "device"]).await.code, 0);
        server.hang("quantum-computers", 1);
        let said = host.cli(&["plugin", "device"]).await;
        assert!(said.code == 3 && said.err.contains("no connection to the device"), "{}", said.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_can_not_be_read_are_asked_for_again() {
    let Some(libraries) = iqm() else { return };
    for library in libraries {
        let server = IqmServer::start().await;
        let host = on(&server, &library, "check_retry_ms: 5000\n").env("CODA_PREFETCH", "20").start().await;
        server.refuse("measurement_counts", 502, 1);
        host.submit("J1", &Circuit::new(2), 10).await;
        assert_eq!(host.delivered("J1").await["counts"], json!({ "00": 10 }));
        host.wait_log("to get_results of HIST_KEYS; trying again").await;
        // The same for jobs that are one list, where the library has lists.
        server.set_jobs(Jobs::Wait(10));
        host.submit("first", &Circuit::new(2), 10).await;
        eventually("it is in the device", async || server.job_counts().0 == 2).await;
        for id in ["a", "b"] {
            host.submit(id, &Circuit::new(2), 20).await;
        }
        host.delivered("first").await;
        server.refuse("measurement_counts", 502, 1);
        for id in ["a", "b"] {
            assert_eq!(host.delivered(id).await["counts"], json!({ "00": 20 }), "{id}");
        }
    }
}
