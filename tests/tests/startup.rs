//! A start that fails after the executor was created: the executor is shut down and dropped, once each, and the exit
//! status is the documented one.

use std::net::TcpListener;
use std::path::PathBuf;

use coda_host::dev::cloud::Answer;
use coda_host_tests::artifacts::FAILPOINT_TASK;
use coda_host_tests::{Bed, Exit, Plan, holds};

/// A host whose plugin records its life, prepared and not started.
async fn recorded(keys: &str) -> (Bed, PathBuf) {
    let dir = tempfile::tempdir().unwrap().keep();
    let record = dir.join("life");
    let keys = format!("{keys}\nlife: true\nrecord: {}", record.display());
    (Plan::faulty(&keys).lay().await, record)
}

/// What the plugin lived through, in order.
fn life(record: &PathBuf) -> Vec<String> {
    let text = std::fs::read_to_string(record).unwrap_or_default();
    text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_string).collect()
}

/// Starts the host, which is to fail with this status and these words.
async fn fails(bed: &mut Bed, record: &PathBuf, status: i32, words: &str) {
    bed.launch();
    let exit = bed.wait_exit().await;
    let log = bed.log();
    assert_eq!(exit, Exit::Code(status), "{log}");
    assert!(log.contains(words), "expected {words:?} in: {log}");
    assert_eq!(life(record), ["create", "shutdown", "drop"], "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_port_is_in_use() {
    let (mut bed, record) = recorded("").await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    bed.set("CODA_PORT", taken.local_addr().unwrap().port().to_string());
    fails(&mut bed, &record, 2, "can't listen on").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_can_not_be_read() {
    let (mut bed, record) = recorded("").await;
    std::fs::create_dir_all(bed.state_dir()).unwrap();
    std::fs::write(bed.state_dir().join("coda-host.db"), "this is not a database, at any length".repeat(100))
        .unwrap();
    fails(&mut bed, &record, 2, "coda-host.db").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cloud_refuses() {
    let (mut bed, record) = recorded("").await;
    bed.cloud.on_connect(|_| Some(Answer::status(403)));
    fails(&mut bed, &record, 4, "403").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_host_serves_the_qpu() {
    let first = Plan::simulator("").start().await;
    let (mut bed, record) = recorded("").await;
    // The same Redis and QPU, another state directory.
    first.cloud.add_token("one-time-second");
    for name in ["CODA_WEBAPP_URL", "CODA_CONSUMER_NAME"] {
        if let Some(value) = first.env.get(name) {
            bed.set(name, value.clone());
        }
    }
    bed.set("CODA_NODE_TOKEN", "one-time-second");
    fails(&mut bed, &record, 1, "another coda-host on this machine serves QPU").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_callback_setting_is_wrong() {
    let (mut bed, record) = recorded("").await;
    bed.set("CODA_CALLBACK_ORIGINS", "https://h/path");
    fails(&mut bed, &record, 2, "CODA_CALLBACK_ORIGINS").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_peer_network_can_not_listen() {
    for no_cloud in [false, true] {
        let (mut bed, record) = recorded("evolve: true").await;
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        bed.set("CODA_PEER", "true");
        bed.set("CODA_PEER_LISTEN", format!("/ip4/127.0.0.1/tcp/{port}"));
        if no_cloud {
            bed.set("CODA_NO_CLOUD", "true");
        }
        fails(&mut bed, &record, 2, &port.to_string()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_device_can_not_be() {
    let (mut bed, record) = recorded("fault: device_zero_qubits").await;
    fails(&mut bed, &record, 3, "0 qubits").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_ends() {
    for task in ["heartbeat", "redis-writer", "webhook-dispatcher", "stream-reader", "vpn-guard"] {
        let (mut bed, record) = recorded("").await;
        bed.set(FAILPOINT_TASK, task);
        fails(&mut bed, &record, 1, &format!("the task '{task}' ended unexpectedly")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_connecting_ends_the_executor() {
    let (mut bed, record) = recorded("").await;
    bed.cloud.on_connect(|_| Some(Answer::hang()));
    bed.launch();
    holds("the executor is there", async || life(&record) == ["create"]).await;
    bed.host().wait_signal_thread().await;
    assert_eq!(bed.stop().await, Exit::Code(0), "{}", bed.log());
    assert_eq!(life(&record), ["create", "shutdown", "drop"]);
}
