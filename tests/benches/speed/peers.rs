//! Peers over real libp2p on loopback: whole loops of prepare, commit, cancel and of prepare, commit, dispatch against
//! one peer, and events per second of the log. With `CODA_TEST_PYTHON=<a venv's python with libp2p>` a py-libp2p peer
//! is measured in the same run by the same client.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coda_host::peers::swarm::Network;
use coda_host::peers::wire::{self, CancelRequest, CommitRequest, PeerStep, PrepareRequest};
use coda_host::reservation::event::{EventBatch, Fact, ReservationRequest};
use coda_host::reservation::ledger::ReservationCommand;
use coda_host::reservation::log::Log;
use coda_host_tests::artifacts::project_file;
use coda_host_tests::misbehaving_peers::{Behave, join};
use coda_host_tests::net::peer;
use coda_host_tests::postgres::Postgres;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{number, percentile};

const DEVICE: &str = "executor_factory: coda_simulator\nnum_qubits: 12\nslots: 16\n";

/// Has this program measure [`on_one_cpu`], each loop for so many seconds.
pub const ONE_CPU: &str = "CODA_BENCH_PEERS_ONE_CPU";

/// The ceilings and our peer; the rates of the peer.
async fn ours(seconds: f64) -> Vec<f64> {
    let dir = tempfile::tempdir().expect("a directory");
    let ours = peer(
        dir.path(),
        "peer",
        DEVICE,
        &[("CODA_PEER_ALLOW", "any"), ("CODA_LOG", "warn,coda_host::app=info,coda_host::peers::swarm=info")],
    )
    .await;
    super::streams::measure(seconds).await;
    loops("coda-host", &ours.address, &ours.peer_id, seconds).await
}

/// Client and peer where `taskset` has put this program.
pub async fn on_one_cpu(seconds: f64) {
    println!("The same, client and peer on one CPU, so that neither is woken from another:");
    drop(ours(seconds).await);
}

/// Prints everything about peers.
pub async fn measure(scale: f64) {
    let seconds = (4.0 * scale).clamp(0.5, 60.0);
    println!("\nPeers, {seconds:.0} s each; p50 and p99 from prepare to committed, in milliseconds:");
    let mut rates = vec![ours(seconds).await];
    if let Some(python) = std::env::var("CODA_TEST_PYTHON").ok().filter(|p| !p.is_empty()) {
        let mut child = tokio::process::Command::new(python)
            .arg(project_file("tests/python/node.py"))
            .args(["peer", "--quiet"])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the interpreter of CODA_TEST_PYTHON");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let line = lines.next_line().await.expect("a line").expect("the node starts");
        let said: Value = serde_json::from_str(&line).expect("JSON");
        let (address, id) =
            (said["addresses"][0].as_str().unwrap_or_default(), said["peer_id"].as_str().unwrap_or_default());
        rates.push(loops("py-libp2p", address, id, seconds).await);
        let ratios: Vec<String> =
            rates[0].iter().zip(&rates[1]).map(|(a, b)| format!("{:.1}x", a / b)).collect();
        println!("  {:<10} ratios, in this order: {}", "", ratios.join(" "));
    }
    let pinned = tokio::process::Command::new("taskset")
        .args(["-c", "0"])
        .arg(std::env::current_exe().expect("this program"))
        .env(ONE_CPU, seconds.to_string())
        .status()
        .await;
    if !pinned.is_ok_and(|status| status.success()) {
        println!("  on one CPU: not measured, taskset (util-linux) failed");
    }
    println!("Events of the log, SQLite, each transition on disk before it is answered:");
    for writers in [1, 64] {
        let dir = tempfile::tempdir_in(".").expect("a directory on the disk");
        let log = Log::sqlite(&dir.path().join("log.db")).expect("a log");
        println!(
            "  {:<46} {} /s",
            format!("{writers} at a time"),
            number(events(log, writers, seconds).await)
        );
    }
    println!("  {:<46} {} /s", "a peer's, written behind", number(notes().await));
    if let Some(server) = Postgres::start().await {
        println!("The same in PostgreSQL:");
        for writers in [1, 64] {
            let log = Log::open(&server.url(), std::path::Path::new("/")).await.expect("a log");
            println!(
                "  {:<46} {} /s",
                format!("{writers} at a time"),
                number(events(log, writers, seconds).await)
            );
        }
    }
}

/// Loops per second of each kind, in the order of printing.
async fn loops(name: &str, address: &str, id: &str, seconds: f64) -> Vec<f64> {
    let mut rates = Vec::new();
    for last in [PeerStep::Cancel, PeerStep::Dispatch] {
        for concurrency in [1, 8] {
            let client = join(address, Behave::Idle, &[]).await.network;
            let mut view = client.view();
            view.wait_for(|v| v.connected > 0).await.expect("the network lives");
            let end = Instant::now() + Duration::from_secs_f64(seconds);
            let failed = Arc::new(AtomicUsize::new(0));
            let start = Instant::now();
            let tasks: Vec<_> = (0..concurrency)
                .map(|n| {
                    let (client, id, failed) = (client.clone(), id.to_string(), failed.clone());
                    // The client's own changes of threads are not what is measured.
                    client.runtime().clone().spawn(async move {
                        let mut took = Vec::new();
                        let mut k = 0;
                        while Instant::now() < end {
                            k += 1;
                            match one(&client, &id, &format!("{last:?}-{concurrency}-{n}-{k}"), last).await {
                                Some(committed) => took.push(committed),
                                None => drop(failed.fetch_add(1, Ordering::Relaxed)),
                            }
                        }
                        took
                    })
                })
                .collect();
            let mut took = Vec::new();
            for task in tasks {
                took.extend(task.await.expect("a loop"));
            }
            took.sort_by(f64::total_cmp);
            let rate = took.len() as f64 / start.elapsed().as_secs_f64();
            println!(
                "  {name:<10} {:<46} {} loops/s, p50 {:.2}, p99 {:.2}, failed {}",
                format!("prepare, commit, {}, {concurrency} at a time", last.name()),
                number(rate),
                percentile(&took, 0.5),
                percentile(&took, 0.99),
                failed.load(Ordering::Relaxed)
            );
            rates.push(rate);
            client.stop().await;
        }
    }
    rates
}

/// One loop: milliseconds to committed, when all went well.
async fn one(client: &Network, peer: &str, id: &str, last: PeerStep) -> Option<f64> {
    let reservation_id = format!("reservation-{id}");
    let (workflow_run_id, fragment_id) = ("workflow-1".to_string(), "block-s01-b01".to_string());
    let prepare = PrepareRequest {
        reservation_id: reservation_id.clone(),
        workflow_run_id: workflow_run_id.clone(),
        fragment_id: fragment_id.clone(),
        requesting_peer_id: "bench".into(),
        service_id: "hadamard".into(),
        estimated_qubits: 2,
        estimated_depth: 1,
        priority: 0,
        ttl_seconds: 60,
        idempotency_key: coda_host::coordinator::fallback::uuid4(),
        sent_at: wire::time(0),
    };
    let start = Instant::now();
    if call(client, peer, PeerStep::Prepare, wire::write(&prepare)).await?["transition"] != "accepted" {
        return None;
    }
    let commit = CommitRequest {
        reservation_id: reservation_id.clone(),
        workflow_run_id,
        fragment_id,
        sent_at: wire::time(0),
    };
    if call(client, peer, PeerStep::Commit, wire::write(&commit)).await?["transition"] != "committed" {
        return None;
    }
    let committed = start.elapsed().as_secs_f64() * 1000.0;
    let bytes = match last {
        PeerStep::Cancel => {
            wire::write(&CancelRequest { reservation_id, reason: None, sent_at: wire::time(0) })
        }
        _ => json!({
            "execution_id": format!("execution-{id}"), "reservation_id": reservation_id,
            "workflow_run_id": "workflow-1", "fragment_id": "block-s01-b01", "service_id": "hadamard",
            "max_retries": 2, "idempotency_key": "0123456789abcdef", "dispatched_at": wire::time(0),
            "input_payload": {
                "plan_id": "plan-0001", "block_id": "block-s01-b01", "fragment": null,
                "fragments": [{"fragment_id": "frag-0001", "service_id": "hadamard", "qubits": [0],
                               "operation_ids": [], "dependencies": [], "raw_text": "h q[0];"}],
                "state": {"num_qubits": 2, "qubit_ids": [0, 1], "amplitudes": null, "measured_qubits": [],
                          "previous_peer_id": null},
            },
        })
        .to_string()
        .into_bytes(),
    };
    let answer = call(client, peer, last, bytes).await?;
    (answer["transition"] != "failed").then_some(committed)
}

async fn call(client: &Network, peer: &str, step: PeerStep, bytes: Vec<u8>) -> Option<Value> {
    let answer = client.call(peer, &[], step, bytes, Duration::from_secs(10)).await.ok()?;
    serde_json::from_slice(&answer.bytes).ok()
}

fn request() -> ReservationRequest {
    ReservationRequest {
        workflow_run_id: "workflow-1".into(),
        fragment_id: "block-s01-b01".into(),
        service_id: "hadamard".into(),
        requesting_peer_id: "12D3KooWcoordinator".into(),
        ttl_seconds: 60,
        idempotency_key: None,
    }
}

/// Appended by so many at once, three for each reservation.
async fn events(log: Log, writers: usize, seconds: f64) -> f64 {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let start = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|n| {
            let log = log.clone();
            tokio::spawn(async move {
                let mut count = 0;
                while Instant::now() < end {
                    let id = format!("res-{writers}-{n}-{count}");
                    let accept = ReservationCommand::Accept { peer: "12D3KooWpeer".into(), held: false };
                    log.request(&id, "bench", request()).await.map(drop).expect("appended");
                    log.execute(&id, accept).await.expect("appended");
                    log.execute(&id, ReservationCommand::Commit).await.expect("appended");
                    count += 3;
                }
                count
            })
        })
        .collect();
    let mut total = 0;
    for task in tasks {
        total += task.await.expect("a writer");
    }
    let rate = f64::from(total) / start.elapsed().as_secs_f64();
    log.close().await;
    rate
}

async fn notes() -> f64 {
    let dir = tempfile::tempdir_in(".").expect("a directory on the disk");
    let log = Log::sqlite(&dir.path().join("log.db")).expect("a log");
    let facts = [
        Fact::Requested(request()),
        Fact::Accepted { accepting_peer_id: "12D3KooWpeer".into(), held: true },
        Fact::Committed,
    ];
    let start = Instant::now();
    let holds = 20_000;
    let note = |n: usize| EventBatch { hold: format!("res-{n}/1"), at: 0, facts: facts.to_vec() };
    (0..holds).for_each(|n| log.append_in_background(vec![note(n)]));
    log.flush().await;
    let rate = (holds * facts.len()) as f64 / start.elapsed().as_secs_f64();
    log.close().await;
    rate
}
