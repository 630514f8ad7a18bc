//! A start that fails after the executor was created: the executor is shut down and dropped, once each, and the exit
//! status is the documented one.

use std::net::TcpListener;
use std::path::PathBuf;

use coda_host::dev::cloud::Answer;
use coda_host_tests::artifacts::FAILPOINT_TASK;
use coda_host_tests::{Circuit, Exit, Plan, TestHost, eventually};
use serde_json::json;

/// A host whose plugin records its life, prepared and not started.
async fn recorded(keys: &str) -> (TestHost, PathBuf) {
    let dir = tempfile::tempdir().unwrap().keep();
    let record = dir.join("life");
    let keys = format!("{keys}\nlife: true\nrecord: {}", record.display());
    (Plan::faulty(&keys).prepare().await, record)
}

/// What the plugin lived through, in order.
fn life(record: &PathBuf) -> Vec<String> {
    let text = std::fs::read_to_string(record).unwrap_or_default();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_string).collect()
}

/// Starts the host, which is to fail with this status and these words.
async fn fails(host: &mut TestHost, record: &PathBuf, status: i32, words: &str) {
    host.launch();
    let exit = host.wait_exit().await;
    let log = host.log();
    assert_eq!(exit, Exit::Code(status), "{log}");
    assert!(log.contains(words), "expected {words:?} in: {log}");
    assert_eq!(life(record), ["create", "shutdown", "drop"], "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_is_in_use() {
    let (mut host, record) = recorded("").await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    host.set("CODA_PORT", taken.local_addr().unwrap().port().to_string());
    fails(&mut host, &record, 2, "can't listen on").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_can_not_be_read() {
    let (mut host, record) = recorded("").await;
    std::fs::create_dir_all(host.state_dir()).unwrap();
    std::fs::write(
        host.state_dir().join("coda-host.db"),
        "this is not a database, at any length".repeat(100),
    )
    .unwrap();
    fails(&mut host, &record, 2, "coda-host.db").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cloud_refuses() {
    let (mut host, record) = recorded("").await;
    host.cloud.on_connect(|_| Some(Answer::status(403)));
    fails(&mut host, &record, 4, "403").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_host_serves_the_qpu() {
    let first = Plan::simulator("").start().await;
    let (mut host, record) = recorded("").await;
    // The same Redis and QPU, another state directory.
    first.cloud.add_token("one-time-second");
    for name in ["CODA_WEBAPP_URL", "CODA_CONSUMER_NAME"] {
        if let Some(value) = first.env.get(name) {
            host.set(name, value.clone());
        }
    }
    host.set("CODA_NODE_TOKEN", "one-time-second");
    fails(&mut host, &record, 1, "another coda-host on this machine serves QPU").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_callback_setting_is_wrong() {
    let (mut host, record) = recorded("").await;
    host.set("CODA_CALLBACK_ORIGINS", "https://h/path");
    fails(&mut host, &record, 2, "CODA_CALLBACK_ORIGINS").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_peer_network_can_not_listen() {
    for no_cloud in [false, true] {
        let (mut host, record) = recorded("evolve: true").await;
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        host.set("CODA_PEER", "true");
        host.set("CODA_PEER_LISTEN", format!("/ip4/127.0.0.1/tcp/{port}"));
        if no_cloud {
            host.set("CODA_NO_CLOUD", "true");
        }
        fails(&mut host, &record, 2, &port.to_string()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_device_can_not_be() {
    let (mut host, record) = recorded("fault: device_zero_qubits").await;
    fails(&mut host, &record, 3, "0 qubits").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_ends() {
    for task in ["heartbeat", "redis-writer", "webhook-dispatcher", "stream-reader", "vpn-guard"] {
        let (mut host, record) = recorded("").await;
        host.set(FAILPOINT_TASK, task);
        fails(&mut host, &record, 1, &format!("the task '{task}' ended unexpectedly")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_connecting_ends_the_executor() {
    let (mut host, record) = recorded("").await;
    host.cloud.on_connect(|_| Some(Answer::hang()));
    host.launch();
    eventually("the executor is there", async || life(&record) == ["create"]).await;
    host.process().wait_signal_thread().await;
    assert_eq!(host.stop().await, Exit::Code(0), "{}", host.log());
    assert_eq!(life(&record), ["create", "shutdown", "drop"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plugin_is_told_what_the_cloud_says_before_the_first_job() {
    for isolation in ["none", "process"] {
        let plan = Plan::faulty("").qubits(7).env("CODA_EXECUTOR_ISOLATION", isolation);
        let mut host = plan.prepare().await;
        let record = host.dir().join("record");
        host.write_device(&format!(
            "executor_factory: coda_faulty\nlife: true\nrecord: {}",
            record.display()
        ));
        let lived =
            || life(&record).into_iter().filter(|word| word != "start" && word != "end").collect::<Vec<_>>();
        host.submit("J1", &Circuit::new(7), 10).await;
        host.start().await;
        assert_eq!(host.delivered("J1").await["counts"], json!({ "0000000": 10 }), "{isolation}");
        assert_eq!(lived(), ["create", "shutdown", "drop", "create"], "{isolation}");
        assert_eq!(host.stop().await, Exit::Code(0));
        // From then on it is known.
        std::fs::write(&record, "").unwrap();
        host.start().await;
        assert_eq!(lived(), ["create"], "{isolation}");
    }
}
