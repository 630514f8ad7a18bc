//! What a kill of the coordinator leaves of its jobs: all of them go on.

use coda_host::peers::wire::PeerStep;
use coda_host_tests::eventually;
use coda_host_tests::net::{Net, fidelity, state_of};
use coda_host_tests::raw::{Raw, Which};
use libp2p::identity::Keypair;

const ONE_SLOT: &str = "executor_factory: coda_simulator\nnum_qubits: 12\nslots: 1\n";

/// A coordinator that is found again at its address, and peers with one slot each.
async fn network(peers: usize, env: &[(&str, &str)]) -> Net {
    let mut net = Net::start(env).await;
    for _ in 0..peers {
        net.add(ONE_SLOT, &[]).await;
    }
    let port = net.coordinator.address.split('/').nth(4).expect("a port").to_string();
    net.coordinator.env.insert("CODA_COORDINATOR_LISTEN".into(), format!("/ip4/127.0.0.1/tcp/{port}"));
    net
}

fn ghz(qubits: u32) -> String {
    let mut source = format!("OPENQASM 3.0; include \"stdgates.inc\"; qubit[{qubits}] q; h q[0];");
    (1..qubits).for_each(|n| source += &format!("cx q[{}], q[{n}];", n - 1));
    source
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_accepted_job_survives_a_kill() {
    const JOBS: usize = 300;
    let mut net = network(2, &[("CODA_COORDINATOR_MAX_WAITING", "400")]).await;
    let source = ghz(4);
    let mut ids = Vec::new();
    while ids.len() < JOBS {
        ids.extend(futures::future::join_all((0..20).map(|_| net.coordinator.submit(&source, 10))).await);
    }
    eventually("one of them is done", async || net.coordinator.job(&ids[0]).await["status"] == "completed")
        .await;
    net.coordinator.kill();
    net.coordinator.restart().await;
    assert!(net.coordinator.log().contains("in the middle of jobs"), "jobs were under way");
    for id in &ids {
        let job = net.coordinator.ended(id).await;
        assert_eq!(job["status"], "completed", "{}", job["error"]);
    }
    net.all_free().await;
}

/// The states of finished stages are kept: their blocks are not run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_job_goes_on_behind_its_last_finished_stage() {
    let mut net = network(1, &[("CODA_COORDINATOR_CHECKPOINT_SEC", "0.001")]).await;
    // The last block is long enough to be killed in.
    let mut source = ghz(11);
    (0..8000).for_each(|_| source += "h q[3];");
    let job = serde_json::json!({ "qasm": source, "shots": 10, "results": ["state"] });
    let id = net.coordinator.submit_with(&job).await;
    // The whole job is megabytes, and takes a while to be shown.
    eventually("all but the last block is done", async || {
        let (_, job) = net.coordinator.get(&format!("/api/v1/jobs/{id}?detail=summary")).await;
        job["progress"]["blocks_completed"].as_u64() >= Some(10)
    })
    .await;
    net.coordinator.kill();
    net.coordinator.restart().await;
    let (_, job) = net.coordinator.get(&format!("/api/v1/jobs/{id}?wait=60")).await;
    assert_eq!(job["status"], "completed", "{}", job["error"]);
    let mut expected = vec![[0.0, 0.0]; 2048];
    expected[0] = [std::f64::consts::FRAC_1_SQRT_2, 0.0];
    expected[2047] = expected[0];
    let found = fidelity(&state_of(&job), &expected);
    assert!((found - 1.0).abs() < 1e-9, "fidelity {found}");
    let blocks = job["blocks"].as_array().expect("blocks");
    let again = blocks.iter().filter(|b| b["tried"].as_array().expect("a list").len() > 1).count();
    assert!(again <= 2, "{again} blocks were run again");
    net.all_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_peer_records_the_end_of_the_holds_that_it_lost() {
    let mut net = Net::start(&[]).await;
    net.add(ONE_SLOT, &[("CODA_PEER_ALLOW", "any")]).await;
    let prepare = PeerStep::Prepare.protocol("quantum-backend");
    let (key, address) = (Keypair::generate_ed25519(), net.peers[0].address.clone());
    let mut other =
        Raw::connect(&key, &address, [&prepare, "/none"], std::time::Duration::from_secs(600)).await;
    let request = serde_json::json!({
        "reservation_id": "reservation-0001", "workflow_run_id": "workflow-0001", "fragment_id": "block-s01-b01",
        "requesting_peer_id": "a-client", "service_id": "hadamard", "estimated_qubits": 1, "estimated_depth": 1,
        "priority": 0, "ttl_seconds": 60, "idempotency_key": "0123456789abcdef", "sent_at": "2026-04-20T00:55:00Z",
    });
    let held = other.request(Which::First, request.to_string().into_bytes()).await.expect("an answer");
    assert!(String::from_utf8_lossy(&held).contains("accepted"));
    eventually("the hold is in the log", async || {
        net.peers[0].cli(&["reservation", "replay", "--peer", "--lines"]).await.out.contains("accepted")
    })
    .await;
    net.peers[0].kill();
    net.peers[0].restart().await;
    eventually("its end is in the log", async || {
        let lines = net.peers[0].cli(&["reservation", "replay", "--peer", "--lines"]).await.out;
        lines.contains("hold_released") && lines.contains("lost")
    })
    .await;
    let said = net.peers[0].cli(&["reservation", "verify", "--peer"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
}
