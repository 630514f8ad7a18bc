//! A peer that answers in the right form with a wrong state: found by a local simulation, or by a second peer.

use coda_host::peers::wire::PeerStep;
use coda_host_tests::misbehaving_peers::{Behave, Crooked, join};
use coda_host_tests::net::{Net, SIMULATOR};
use serde_json::{Value, json};

const SOURCE: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; h q[0]; t q[0];";

/// So many good peers, and a wrong one that is tried first.
async fn network(good: usize) -> (Net, Crooked) {
    let mut net = Net::start(&[("CODA_COORDINATOR_PEER_WAIT_SEC", "0.5")]).await;
    let mut ids = Vec::new();
    for _ in 0..good {
        ids.push(net.add(SIMULATOR, &[]).await.peer_id.clone());
    }
    let state = "/output_payload/state/amplitudes";
    let behave = Behave::Patched(PeerStep::Dispatch, state, json!(["0.6", "0.8"]));
    let before: Vec<&str> = ids.iter().map(String::as_str).collect();
    let wrong = join(&net.coordinator.address, behave, &before).await;
    net.known(&wrong.peer_id).await;
    (net, wrong)
}

async fn run(net: &Net, options: Value) -> Value {
    let mut job = json!({ "qasm": SOURCE, "shots": 10 });
    job.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
    net.coordinator.ended(&net.coordinator.submit_with(&job).await).await
}

fn is_right(job: &Value) -> bool {
    let half = std::f64::consts::FRAC_1_SQRT_2;
    let expected = [[half, 0.0], [0.5, 0.5]];
    (coda_host_tests::net::fidelity(&coda_host_tests::net::state_of(job), &expected) - 1.0).abs() < 1e-9
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verified_job_fails_rather_than_be_wrong() {
    let (mut net, wrong) = network(0).await;
    let job = run(&net, json!({})).await;
    assert!(job["status"] == "completed" && !is_right(&job), "it is not compared: {job}");
    let job = run(&net, json!({ "verify": true })).await;
    let error = job["error"].as_str().expect("it fails");
    assert!(
        error.contains("its fidelity with a local simulation is 0.") && error.contains(&wrong.peer_id),
        "{error}"
    );
    wrong.network.stop().await;
    net.add(SIMULATOR, &[]).await;
    let job = run(&net, json!({ "verify": true })).await;
    assert_eq!(job["status"], "completed", "{}", job["error"]);
    assert!((job["result"]["fidelity"].as_f64().expect("a number") - 1.0).abs() < 1e-9);
    net.all_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_peers_must_agree() {
    let (mut net, _wrong) = network(1).await;
    let job = run(&net, json!({ "redundancy": 2 })).await;
    let error = job["error"].as_str().expect("two that differ, and no third one");
    assert!(error.contains("could agree with the first"), "{error}");
    net.add(SIMULATOR, &[]).await;
    for _ in 0..3 {
        let job = run(&net, json!({ "redundancy": 2 })).await;
        assert_eq!(job["status"], "completed", "{}", job["error"]);
        assert!(is_right(&job), "{job}");
        let tried = job["blocks"][0]["tried"].as_array().expect("a list");
        assert!((2..=3).contains(&tried.len()), "{tried:?}");
    }
    net.all_free().await;
}
