//! Peers that are silent or far too slow cost one time-out, not one in each job.

use coda_host::peers::wire::PeerStep;
use coda_host_tests::eventually;
use coda_host_tests::misbehaving_peers::{Behave, Crooked, join};
use coda_host_tests::net::{Net, SIMULATOR};
use futures::future::join_all;

const ONE: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; h q[0];";

/// A good peer, and a misbehaving one that is tried first.
async fn network(env: &[(&str, &str)], behave: Behave) -> (Net, Crooked) {
    let mut net = Net::start(env).await;
    let good = net.add(SIMULATOR, &[]).await.peer_id.clone();
    let misbehaving = join(&net.coordinator.address, behave, &[&good]).await;
    net.known(&misbehaving.peer_id).await;
    (net, misbehaving)
}

fn count(peer: &mut Crooked, step: PeerStep) -> usize {
    std::iter::from_fn(|| peer.heard.try_recv().ok()).filter(|heard| heard.step == step).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_peer_is_asked_once_in_many_jobs() {
    let limits =
        [("CODA_COORDINATOR_CALL_TIMEOUT_SEC", "0.4"), ("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "0.6")];
    for step in [PeerStep::Prepare, PeerStep::Commit, PeerStep::Dispatch] {
        let (net, mut silent) = network(&limits, Behave::Silent(step)).await;
        // At once, and then in turn.
        let ids = join_all((0..6).map(|_| net.coordinator.submit(ONE, 10))).await;
        for id in ids {
            let job = net.coordinator.ended(&id).await;
            assert_eq!(job["status"], "completed", "{step:?}: {}", job["error"]);
        }
        for _ in 0..4 {
            let job = net.coordinator.run(ONE, 10).await;
            assert_eq!(job["status"], "completed", "{step:?}: {}", job["error"]);
            assert_eq!(job["fragments"][0]["attempts"], 1, "{step:?}: it is not asked again");
        }
        assert_eq!(count(&mut silent, PeerStep::Prepare), 1, "{step:?}");
        let (_, peers) = net.coordinator.get("/api/v1/peers").await;
        let entry =
            peers["peers"].as_array().expect("peers").iter().find(|p| p["peer_id"] == *silent.peer_id);
        assert_eq!(entry.expect("it is listed")["breaker"], "open", "{peers}");
        net.all_free().await;
    }
}

/// The time limit of a dispatch is an hour: the job ends because another peer was asked as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_hangs_is_given_to_another_peer_as_well() {
    let env = [("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "3600")];
    let (net, mut silent) = network(&env, Behave::Silent(PeerStep::Dispatch)).await;
    let job = net.coordinator.run(ONE, 10).await;
    assert_eq!(job["status"], "completed", "{}", job["error"]);
    let tried = job["blocks"][0]["tried"].as_array().expect("a list");
    assert_eq!(tried.len(), 2);
    assert_eq!(job["blocks"][0]["peer_id"], *net.peers[0].peer_id);
    let mut cancels = 0;
    eventually("the slower one is cancelled", async || {
        cancels += count(&mut silent, PeerStep::Cancel);
        cancels == 1
    })
    .await;
    let id = tried[0]["reservation_id"].as_str().expect("an id");
    let said = net.coordinator.cli(&["reservation", "show", id]).await;
    assert!(said.out.contains("\"failed\""), "its end is in the log: {}", said.text());
    // It was overtaken, so the next jobs leave it alone.
    let next = net.coordinator.run(ONE, 10).await;
    assert_eq!(next["blocks"][0]["tried"].as_array().map(Vec::len), Some(1));
    net.all_free().await;

    let env = [("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "7"), ("CODA_COORDINATOR_HEDGE", "off")];
    let (net, mut silent) = network(&env, Behave::Silent(PeerStep::Dispatch)).await;
    let job = net.coordinator.run(ONE, 10).await;
    assert_eq!(job["status"], "completed", "{}", job["error"]);
    let id = job["blocks"][0]["tried"][0]["reservation_id"].as_str().expect("an id");
    let said = net.coordinator.cli(&["reservation", "show", id]).await;
    assert!(said.out.contains("did not answer within 7s"), "{}", said.text());
    assert_eq!(count(&mut silent, PeerStep::Dispatch), 1);
}

/// A peer that was left alone takes blocks again when it has completed one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_peer_is_asked_even_when_it_is_left_alone() {
    let net = Net::start(&[("CODA_COORDINATOR_CALL_TIMEOUT_SEC", "0.4")]).await;
    let mut silent = join(&net.coordinator.address, Behave::Silent(PeerStep::Prepare), &[]).await;
    net.known(&silent.peer_id).await;
    for n in 1..=3 {
        let job = net.coordinator.run(ONE, 10).await;
        assert_eq!(job["status"], "failed");
        // Again while no other is there, until it has failed as often as a block may.
        assert_eq!(count(&mut silent, PeerStep::Prepare), 4, "job {n}");
    }
}

/// The time that it is given grows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_of_the_only_peer_costs_no_job() {
    let mut net = Net::start(&[("CODA_COORDINATOR_CALL_TIMEOUT_SEC", "15")]).await;
    net.add(SIMULATOR, &[]).await;
    assert_eq!(net.coordinator.run(ONE, 10).await["status"], "completed");
    net.peers[0].host.signal(libc::SIGSTOP);
    let id = net.coordinator.submit(ONE, 10).await;
    eventually("it was late", async || {
        let job = net.coordinator.job(&id).await;
        assert_ne!(job["status"], "failed", "{}", job["error"]);
        job["blocks"][0]["attempts"].as_u64() == Some(2)
    })
    .await;
    net.peers[0].host.signal(libc::SIGCONT);
    let job = net.coordinator.ended(&id).await;
    assert_eq!(job["status"], "completed", "{}", job["error"]);
    net.all_free().await;
}
