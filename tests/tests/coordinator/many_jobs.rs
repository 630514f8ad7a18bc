//! Many jobs of one coordinator at once on few slots, and peers that go while others have slots free.

use std::time::Duration;

use coda_host::peers::wire::PeerStep;
use coda_host_tests::eventually;
use coda_host_tests::net::{Net, Node};
use coda_host_tests::raw::{Raw, Which};
use libp2p::identity::Keypair;
use serde_json::{Value, json};

const ONE_SLOT: &str = "executor_factory: coda_simulator\nnum_qubits: 12\nslots: 1\n";
const ONE: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; h q[0];";

fn ghz(qubits: u32) -> String {
    let mut source =
        format!("OPENQASM 3.0; include \"stdgates.inc\"; qubit[{qubits}] q; bit[{qubits}] c; h q[0];");
    (1..qubits).for_each(|n| source += &format!("cx q[{}], q[{n}];", n - 1));
    source + "c = measure q;"
}

/// A stage of so many blocks side by side.
fn wide(qubits: u32) -> String {
    format!("OPENQASM 2.0; include \"qelib1.inc\"; qreg q[{qubits}]; h q;")
}

async fn network(peers: usize, env: &[(&str, &str)]) -> Net {
    let mut net = Net::start(env).await;
    for _ in 0..peers {
        net.add(ONE_SLOT, &[("CODA_PEER_ALLOW", "any")]).await;
    }
    net
}

/// Submits so many jobs at once and waits for their ends; the jobs that did not complete.
async fn failures(coordinator: &Node, source: &str, jobs: usize) -> Vec<Value> {
    let submitted = (0..jobs).map(|_| coordinator.submit(source, 10));
    let ids = futures::future::join_all(submitted).await;
    let mut failed = Vec::new();
    for id in ids {
        let job = coordinator.ended(&id).await;
        if job["status"] != "completed" {
            failed.push(job["error"].clone());
        }
    }
    failed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_at_once_wait_for_each_others_slots() {
    for peers in 1..=3 {
        let net = network(peers, &[]).await;
        for jobs in [2, 20] {
            let failed = failures(&net.coordinator, &ghz(8), jobs).await;
            assert!(failed.is_empty(), "{} of {jobs} on {peers}: {:?}", failed.len(), failed.first());
        }
        net.all_free().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_another_caller_holds_is_waited_for_until_a_deadline() {
    let net = network(1, &[("CODA_COORDINATOR_SLOT_WAIT_SEC", "2")]).await;
    let prepare = PeerStep::Prepare.protocol("quantum-backend");
    let cancel = PeerStep::Cancel.protocol("quantum-backend");
    let key = Keypair::generate_ed25519();
    let address = net.peers[0].address.clone();
    let mut other = Raw::connect(&key, &address, [&prepare, &cancel], Duration::from_secs(600)).await;
    let held = other.request(Which::First, prepare_of_another()).await.expect("an answer");
    assert!(String::from_utf8_lossy(&held).contains("accepted"));

    let job = net.coordinator.run(ONE, 10).await;
    let error = job["error"].as_str().expect("it fails at the deadline");
    assert!(error.contains("peer capacity exhausted") && error.contains("within 2s"), "{error}");

    let job = net.coordinator.submit(ONE, 10).await;
    eventually("the job was declined once", async || {
        net.coordinator.job(&job).await["blocks"][0]["attempts"].as_u64() >= Some(1)
    })
    .await;
    let release =
        json!({"reservation_id": "reservation-0001", "reason": null, "sent_at": "2026-04-20T00:55:00Z"});
    other.request(Which::Second, release.to_string().into_bytes()).await.expect("an answer");
    let job = net.coordinator.ended(&job).await;
    assert_eq!(job["status"], "completed", "{}", job["error"]);
    net.all_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_peer_fails_no_job_while_others_have_slots() {
    let mut net = network(3, &[]).await;
    net.peers[0].kill();
    for _ in 0..5 {
        let job = net.coordinator.run(&wide(10), 10).await;
        assert_eq!(job["status"], "completed", "{}", job["error"]);
    }
    net.peers.remove(0);
    net.all_free().await;
}

/// Gates on one component cost one exchange, and what a peer takes at once is bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_gates_is_one_reservation() {
    let net = network(1, &[]).await;
    let run = |gates: usize| {
        let gates: String = (0..gates).map(|n| ["h q[0];", "t q[0];", "x q[0];"][n % 3]).collect();
        format!("OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; {gates}")
    };
    for (gates, reservations) in [(2000, 1..=1), (20_000, 2..=4)] {
        let job = net.coordinator.run(&run(gates), 10).await;
        assert_eq!(job["status"], "completed", "{}", job["error"]);
        let [block] = &job["blocks"].as_array().expect("blocks")[..] else { panic!("{}", job["blocks"]) };
        let tried = block["tried"].as_array().expect("a list").len();
        assert!(reservations.contains(&tried), "{gates} gates took {tried} reservations");
        assert_eq!(block["attempts"], 1, "a piece is no further attempt");
        assert_eq!(job["fragments"].as_array().expect("fragments").len(), gates);
    }
    net.all_free().await;
}

fn prepare_of_another() -> Vec<u8> {
    json!({
        "reservation_id": "reservation-0001", "workflow_run_id": "workflow-0001", "fragment_id": "block-s01-b01",
        "requesting_peer_id": "a-client", "service_id": "hadamard", "estimated_qubits": 1, "estimated_depth": 1,
        "priority": 0, "ttl_seconds": 60, "idempotency_key": "0123456789abcdef", "sent_at": "2026-04-20T00:55:00Z",
    })
    .to_string()
    .into_bytes()
}

/// The jobs' numbers by acceptance, in the order in which they were completed.
async fn order_of_completion(net: &Net, source: &str, jobs: usize) -> Vec<usize> {
    let mut ids = Vec::new();
    for _ in 0..jobs {
        ids.push(net.coordinator.submit(source, 10).await);
    }
    for id in &ids {
        assert_eq!(net.coordinator.ended(id).await["status"], "completed");
    }
    let said = net.coordinator.cli(&["reservation", "replay", "--lines"]).await;
    let completed = said.out.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let id = line["stream"].as_str()?.strip_prefix("job/")?.to_string();
        (line["fact"]["kind"] == "completed").then(|| ids.iter().position(|known| *known == id)).flatten()
    });
    completed.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_wait_for_one_slot_are_served_in_the_order_of_their_acceptance() {
    let mut net = Net::start(&[("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "30")]).await;
    let slow = "executor_factory: coda_faulty\nevolve: true\nslots: 1\nrun_ms: 50\nrecord: record.txt\n";
    net.add(slow, &[("CODA_PEER_ALLOW", "any")]).await;
    for source in [ONE.to_string(), ghz(3)] {
        let order = order_of_completion(&net, &source, 20).await;
        // A block that asks for a slot while one comes free is passed by one that looks at that moment.
        let passed_by = |n: usize| order[..n].iter().filter(|other| **other > order[n]).count();
        let most = (0..order.len()).map(passed_by).max().expect("jobs");
        eprintln!("{order:?}: a job is passed by at most {most}");
        assert!(order.len() == 20 && most <= 5, "passed by {most}: {order:?}");
    }
    net.all_free().await;
}
