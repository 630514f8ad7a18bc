//! The coordinator's walk on real processes: what works, and a peer that fails at each step.

use coda_host::peers::wire::PeerStep;
use coda_host_tests::misbehaving_peers::{Behave, Crooked, join};
use coda_host_tests::net::{Net, SIMULATOR, fidelity, state_of};
use coda_host_tests::{eventually, eventually_some};
use serde_json::{Value, json};

const ONE: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; h q[0];";

/// Amplitudes of the discrete Fourier transform of |j>.
fn fourier(qubits: u32, j: usize) -> Vec<[f64; 2]> {
    let size = 1_usize << qubits;
    let scale = 1.0 / (size as f64).sqrt();
    (0..size)
        .map(|k| {
            let angle = std::f64::consts::TAU * ((j * k) % size) as f64 / size as f64;
            [angle.cos() * scale, angle.sin() * scale]
        })
        .collect()
}

fn qft(qubits: u32, j: usize) -> String {
    let mut source = format!("OPENQASM 2.0; include \"qelib1.inc\"; qreg q[{qubits}];\n");
    for k in (0..qubits).filter(|k| j >> k & 1 == 1) {
        source += &format!("x q[{k}];");
    }
    for n in (0..qubits).rev() {
        source += &format!("h q[{n}];");
        for k in (0..n).rev() {
            source += &format!("cu1(pi/{}) q[{k}],q[{n}];", 1_u64 << (n - k));
        }
    }
    for n in 0..qubits / 2 {
        source += &format!("swap q[{n}],q[{}];", qubits - 1 - n);
    }
    source
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_peers_run_bell_ghz_and_fourier() {
    let mut net = Net::start(&[]).await;
    for _ in 0..3 {
        net.add(SIMULATOR, &[]).await;
    }
    let half = std::f64::consts::FRAC_1_SQRT_2;
    let mut bell = vec![[0.0, 0.0]; 4];
    bell[0] = [half, 0.0];
    bell[3] = [half, 0.0];
    let mut ghz = vec![[0.0, 0.0]; 256];
    ghz[0] = [half, 0.0];
    ghz[255] = [half, 0.0];
    let mut ghz_source =
        String::from("OPENQASM 3.0; include \"stdgates.inc\"; qubit[8] q; bit[8] c; h q[0];");
    (1..8).for_each(|n| ghz_source += &format!("cx q[{}], q[{n}];", n - 1));
    ghz_source += "c = measure q;";
    let bell_source =
        "OPENQASM 2.0; include \"qelib1.inc\"; qreg q[2]; creg c[2]; h q[0]; cx q[0],q[1]; measure q -> c;";
    for (source, expected, keys) in [
        (bell_source.to_string(), bell, vec!["00", "11"]),
        (ghz_source, ghz, vec!["00000000", "11111111"]),
        (qft(10, 677), fourier(10, 677), Vec::new()),
    ] {
        let job = net.coordinator.run_for_state(&source, 500).await;
        assert_eq!(job["status"], "completed", "{}", job["error"]);
        let found = fidelity(&state_of(&job), &expected);
        assert!((found - 1.0).abs() < 1e-9, "fidelity {found}");
        let counts = job["result"]["counts"].as_object().unwrap();
        assert_eq!(counts.values().map(|n| n.as_u64().unwrap()).sum::<u64>(), 500);
        assert!(keys.is_empty() || counts.keys().all(|k| keys.contains(&k.as_str())), "{counts:?}");
        let fragments = job["fragments"].as_array().unwrap();
        assert!(
            fragments.iter().all(|f| f["state"] == "completed" && f["attempts"] == 1 && f["fidelity"] == 1.0)
        );
        let ranked = &job["plan"]["stages"][0][0]["candidates"];
        assert_eq!(ranked.as_array().unwrap().len(), 3);
        for part in ["total", "fidelity", "move", "load"] {
            assert!(ranked[0][part].is_number(), "{ranked}");
        }
    }
    // Work is spread.
    for peer in &net.peers {
        assert!(peer.get("/ready").await.1["peer"]["completed"].as_u64().unwrap() > 0);
    }
    net.all_free().await;
}

/// A misbehaving_peers peer that is tried first, then a good one.
async fn with_one(behave: Behave) -> (Net, Crooked, Value) {
    let mut net = Net::start(&[
        ("CODA_COORDINATOR_CALL_TIMEOUT_SEC", "0.4"),
        ("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "0.6"),
    ])
    .await;
    let good = net.add(SIMULATOR, &[]).await.peer_id.clone();
    let misbehaving_peers = join(&net.coordinator.address, behave, &[&good]).await;
    net.known(&misbehaving_peers.peer_id).await;
    let job = net.coordinator.run(ONE, 10).await;
    (net, misbehaving_peers, job)
}

fn steps(misbehaving_peers: &mut Crooked) -> Vec<PeerStep> {
    std::iter::from_fn(|| misbehaving_peers.heard.try_recv().ok()).map(|h| h.step).collect()
}

/// What the log has of the first attempt.
async fn first_attempt(net: &Net, job: &Value) -> String {
    let id = job["blocks"][0]["tried"][0]["reservation_id"].as_str().expect("a first attempt");
    let said = net.coordinator.cli(&["reservation", "show", id]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    said.out
}

async fn falls_back(behave: Behave, expected: &[&str]) -> (Net, Crooked) {
    let (net, misbehaving_peers, job) = with_one(behave.clone()).await;
    assert_eq!(job["status"], "completed", "{behave:?}: {}", job["error"]);
    let fragment = &job["fragments"][0];
    assert_eq!(
        (fragment["attempts"].as_u64(), fragment["peer_id"].as_str()),
        (Some(2), Some(&*net.peers[0].peer_id))
    );
    assert_eq!(job["blocks"][0]["tried"][0]["peer_id"], *misbehaving_peers.peer_id, "{behave:?}");
    let record = first_attempt(&net, &job).await;
    for part in expected {
        assert!(record.contains(part), "{behave:?}: no {part} in\n{record}");
    }
    net.all_free().await;
    (net, misbehaving_peers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_declines() {
    let (_net, mut misbehaving_peers) = falls_back(Behave::Decline, &["\"rejected\"", "not today"]).await;
    assert_eq!(steps(&mut misbehaving_peers), [PeerStep::Prepare]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_never_answers_commit() {
    let (_net, mut misbehaving_peers) =
        falls_back(Behave::Silent(PeerStep::Commit), &["\"cancelled\"", "commit: it did not answer"]).await;
    eventually_some("a cancel is sent", async || {
        steps(&mut misbehaving_peers).contains(&PeerStep::Cancel).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_never_answers_prepare() {
    let (_net, mut misbehaving_peers) =
        falls_back(Behave::Silent(PeerStep::Prepare), &["\"cancelled\"", "prepare: it did not answer"]).await;
    eventually_some("a cancel is sent", async || {
        steps(&mut misbehaving_peers).contains(&PeerStep::Cancel).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_dies_between_commit_and_dispatch() {
    falls_back(Behave::DieAfterCommit, &["\"committed\"", "\"dispatched\"", "\"failed\"", "dispatch: "])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_dies_during_dispatch() {
    falls_back(Behave::DieInDispatch, &["\"committed\"", "\"failed\"", "dispatch: "]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_answers_after_the_time_limit() {
    falls_back(
        Behave::Silent(PeerStep::Dispatch),
        &["\"failed\"", "dispatch: it did not answer within 600ms"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_answers_failed() {
    falls_back(Behave::Failed, &["\"failed\"", "the cryostat is warm"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_answers_rubbish() {
    let state = "/output_payload/state/amplitudes";
    let cases = [
        (Behave::Rubbish(PeerStep::Prepare, "{]".into()), "prepare: "),
        (
            Behave::Rubbish(PeerStep::Prepare, String::new()),
            "prepare: it closed the stream without an answer",
        ),
        (Behave::Patched(PeerStep::Prepare, "/surprise", json!(1)), "unknown field"),
        (
            Behave::Patched(PeerStep::Prepare, "/reservation_id", json!("res-of-another")),
            "another reservation_id",
        ),
        (Behave::Patched(PeerStep::Prepare, "/transition", json!("expired")), "reservation expired"),
        (Behave::Rubbish(PeerStep::Commit, "null".into()), "commit: "),
        (
            Behave::Patched(PeerStep::Commit, "/transition", json!("expired")),
            "reservation commit failed with expired",
        ),
        (
            Behave::Patched(PeerStep::Dispatch, "/execution_id", json!("exec-of-another")),
            "another execution_id",
        ),
        (Behave::Patched(PeerStep::Dispatch, state, json!(["nan", "0"])), "not finite"),
        (Behave::Patched(PeerStep::Dispatch, state, json!(["1"])), "1 amplitudes"),
        (Behave::Patched(PeerStep::Dispatch, state, json!(["1", "1"])), "norm"),
        (Behave::Patched(PeerStep::Dispatch, "/output_payload/state/qubit_ids", json!([7])), "other qubits"),
        (Behave::Patched(PeerStep::Dispatch, "/transition", json!("retrying")), "block execution failed"),
    ];
    for (behave, part) in cases {
        falls_back(behave, &[part]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_four_fail() {
    let net = Net::start(&[("CODA_COORDINATOR_CALL_TIMEOUT_SEC", "0.4")]).await;
    let mut ids = Vec::new();
    let mut misbehaving_peers = Vec::new();
    // Each before those that are there: the last to join is tried first.
    for behave in [
        Behave::Failed,
        Behave::Rubbish(PeerStep::Commit, "?".into()),
        Behave::Silent(PeerStep::Prepare),
        Behave::Decline,
    ] {
        let before: Vec<&str> = ids.iter().map(String::as_str).collect();
        let peer = join(&net.coordinator.address, behave, &before).await;
        ids.push(peer.peer_id.clone());
        net.known(&peer.peer_id).await;
        misbehaving_peers.push(peer);
    }
    let job = net.coordinator.run(ONE, 10).await;
    assert_eq!(job["status"], "failed");
    let expected = "Execution block block-s01-b01 failed across all assigned peers: the cryostat is warm";
    assert_eq!(job["error"], expected);
    assert_eq!(job["fragments"][0]["attempts"], 4);
    assert_eq!(job["blocks"][0]["tried"].as_array().unwrap().len(), 4);
    net.all_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gossip_of_another_is_dropped_and_a_silent_peer_goes_stale() {
    let mut net =
        Net::start(&[("CODA_COORDINATOR_STALE_SEC", "0.5"), ("CODA_COORDINATOR_PEER_WAIT_SEC", "0.1")]).await;
    let peer = net.add(SIMULATOR, &[]).await.peer_id.clone();
    net.peers[0].kill();
    eventually_some("the peer is stale", async || {
        let (_, body) = net.coordinator.get("/api/v1/peers").await;
        let known = body["peers"].as_array()?.iter().find(|p| p["peer_id"] == *peer)?.clone();
        (known["stale"] == true).then_some(())
    })
    .await;
    let job = net.coordinator.run(ONE, 10).await;
    assert_eq!(
        job["error"],
        "no healthy peer offers hadamard (needed by block block-s01-b01); 0 healthy peers are known"
    );
    net.peers.clear();
}

/// Blocks side by side may be more than the peers have slots: those that are declined for it wait for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_wider_than_the_slots_takes_turns() {
    let mut net = Net::start(&[]).await;
    let one_slot = "executor_factory: coda_simulator\nnum_qubits: 12\nslots: 1\n";
    net.add(one_slot, &[]).await;
    let wide = "OPENQASM 2.0; include \"qelib1.inc\"; qreg q[5]; h q;";
    let job = net.coordinator.run(wide, 10).await;
    assert_eq!(job["status"], "completed", "{}", job["error"]);
    let blocks = job["blocks"].as_array().unwrap();
    assert!(blocks.len() == 5 && blocks.iter().all(|b| b["state"] == "completed"), "{blocks:?}");
    for block in blocks {
        assert_eq!(block["attempts"].as_u64(), Some(block["tried"].as_array().unwrap().len() as u64));
    }
    net.all_free().await;
}

/// It was not the peer that was wrong: it is given the block again when it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_peer_that_restarts_in_a_dispatch_gets_the_block_again() {
    let mut net = Net::start(&[("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "60")]).await;
    let device = "executor_factory: coda_faulty\nevolve: true\nslots: 1\nrun_ms: 700\n";
    net.add(device, &[("CODA_PEER_MAX_EXECUTION_SEC", "1000"), ("CODA_PEER_ALLOW", "any")]).await;
    let id = net.coordinator.submit(ONE, 10).await;
    eventually("the peer executes", async || net.peers[0].get("/ready").await.1["peer"]["executions"] == 1)
        .await;
    net.peers[0].kill();
    eventually("it is listed as lost", async || {
        net.coordinator.get("/api/v1/peers").await.1["peers"][0]["lost"] == true
    })
    .await;
    let said = net.coordinator.cli(&["peers", "--url", &format!("http://{}", net.coordinator.http)]).await;
    assert!(said.out.contains(" lost "), "{}", said.text());
    net.peers[0].restart().await;
    let job = net.coordinator.ended(&id).await;
    assert_eq!(job["status"], "completed", "{}", job["error"]);
    assert_eq!(job["fragments"][0]["attempts"], 2);
    assert_eq!(net.coordinator.get("/api/v1/peers").await.1["peers"][0]["lost"], false);
    net.all_free().await;
}
