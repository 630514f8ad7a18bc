//! What lies below the documents: connections that come and go, and gossip that is not what it says.

use std::time::Duration;

use coda_host_tests::artifacts::project_file;
use coda_host_tests::eventually_some;
use coda_host_tests::net::{Net, SIMULATOR, peer};
use coda_host_tests::raw::{Flaw, Raw, Which, gossip};
use libp2p::identity::Keypair;
use serde_json::{Value, json};

const PREPARE: &str = "/qb2/quantum-backend/reservation/prepare/1.0.0";
const COMMIT: &str = "/qb2/quantum-backend/reservation/commit/1.0.0";
const GOSSIP: &str = "/meshsub/1.1.0";
const ADVERTISEMENT: &str = "quantum-backend.peer-advertisement.v1";
const HEARTBEAT: &str = "quantum-backend.peer-heartbeat.v1";
const NOW: &str = "2026-04-20T00:55:00Z";

fn prepare() -> Vec<u8> {
    json!({
        "reservation_id": "reservation-0001", "workflow_run_id": "workflow-0001", "fragment_id": "block-s01-b01",
        "requesting_peer_id": "a-client", "service_id": "hadamard", "estimated_qubits": 1, "estimated_depth": 1,
        "priority": 0, "ttl_seconds": 60, "idempotency_key": coda_host::coordinator::fallback::uuid4(), "sent_at": NOW,
    })
    .to_string()
    .into_bytes()
}

fn commit() -> Vec<u8> {
    json!({
        "reservation_id": "reservation-0001", "workflow_run_id": "workflow-0001",
        "fragment_id": "block-s01-b01", "sent_at": NOW,
    })
    .to_string()
    .into_bytes()
}

async fn transition(client: &mut Raw, which: Which, document: Vec<u8>) -> Value {
    let answer = client.request(which, document).await.expect("an answer");
    serde_json::from_slice::<Value>(&answer).expect("JSON")["transition"].clone()
}

/// A connection that ends between prepare and commit, for idleness or otherwise: the hold is the client's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_outlives_the_connection_it_came_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let ours = peer(dir.path(), "peer", SIMULATOR, &[("CODA_PEER_ALLOW", "any")]).await;
    let long = Duration::from_secs(600);
    let key = Keypair::generate_ed25519();
    let mut client = Raw::connect(&key, &ours.address, [PREPARE, COMMIT], long).await;
    assert_eq!(transition(&mut client, Which::First, prepare()).await, "accepted");
    client.leave().await;
    eventually_some("the peer has seen it go", async || {
        (ours.get("/ready").await.1["peer"]["connected"] == 0).then_some(())
    })
    .await;
    assert_eq!(ours.get("/ready").await.1["peer"]["reservations"], 1);
    // Somebody else's connection is somebody else.
    let stranger = Keypair::generate_ed25519();
    let mut stranger = Raw::connect(&stranger, &ours.address, [PREPARE, COMMIT], long).await;
    assert_eq!(transition(&mut stranger, Which::Second, commit()).await, "rejected");
    assert_eq!(transition(&mut client, Which::Second, commit()).await, "committed");
    assert_eq!((client.made, client.lost), (2, 1), "on a new connection");
}

/// `CODA_TEST_PAUSE_SEC=45`: so long between prepare and commit, with the settings as they come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_think_between_prepare_and_commit() {
    let pause = std::env::var("CODA_TEST_PAUSE_SEC").ok().and_then(|s| s.parse().ok()).unwrap_or(0.0);
    let dir = tempfile::tempdir().expect("a directory");
    let ours = peer(dir.path(), "peer", SIMULATOR, &[("CODA_PEER_ALLOW", "any")]).await;
    let key = Keypair::generate_ed25519();
    let mut client = Raw::connect(&key, &ours.address, [PREPARE, COMMIT], Duration::from_secs(600)).await;
    assert_eq!(transition(&mut client, Which::First, prepare()).await, "accepted");
    client.rest(Duration::from_secs_f64(pause)).await;
    assert_eq!(transition(&mut client, Which::Second, commit()).await, "committed");
    assert_eq!((client.made, client.lost), (1, 0), "on the same connection");
}

fn advertisement(peer_id: &str) -> Vec<u8> {
    json!({
        "peer_id": peer_id, "trust_tier": "external", "network_addresses": [], "supported_protocols": [],
        "service_summaries": [{"service_id": "hadamard", "version": "1.0.0",
                               "quantum_capability": "hadamard", "benchmark_mode": "sim"}],
        "peer_log_position": 0, "emitted_at": NOW,
    })
    .to_string()
    .into_bytes()
}

fn heartbeat(peer_id: &str, health: &str) -> Vec<u8> {
    json!({
        "peer_id": peer_id, "health_status": health, "active_reservations": 7, "active_executions": 0,
        "peer_log_position": 0, "emitted_at": NOW,
    })
    .to_string()
    .into_bytes()
}

/// A real peer of the network signs what it says for others, signs nothing, and changes what it has signed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gossip_counts_only_for_who_has_signed_it() {
    let mut net = Net::start(&[]).await;
    let honest = net.add(SIMULATOR, &[]).await.peer_id.clone();
    let key = Keypair::generate_ed25519();
    let me = key.public().to_peer_id().to_string();
    let nobody = Keypair::generate_ed25519().public().to_peer_id().to_string();
    let long = Duration::from_secs(600);
    let mut forger = Raw::connect(&key, &net.coordinator.address, [GOSSIP, PREPARE], long).await;
    let messages = [
        // One that isn't there, and a good one that is to look ill.
        (ADVERTISEMENT, advertisement(&nobody), Flaw::None),
        (HEARTBEAT, heartbeat(&honest, "degraded"), Flaw::None),
        // Its own, which would be right if they were signed.
        (ADVERTISEMENT, advertisement(&me), Flaw::Unsigned),
        (ADVERTISEMENT, advertisement(&me), Flaw::Tampered),
    ];
    // On one stream: so many may a peer not open for gossip.
    let message =
        |(n, (topic, data, flaw)): (usize, (&str, Vec<u8>, Flaw))| gossip(&key, n as u64, topic, &data, flaw);
    let all = messages.into_iter().enumerate().flat_map(message).collect();
    forger.request(Which::First, all).await.expect("the stream is read to its end");
    for part in [
        &format!("it speaks for {nobody}, its author is {me}"),
        &format!("it speaks for {honest}, its author is {me}"),
    ] {
        eventually_some("the log says why", async || net.coordinator.log().contains(part).then_some(()))
            .await;
    }
    eventually_some("both unsigned messages are in the log", async || {
        let log = net.coordinator.log();
        (log.matches("Invalid signature for received message").count() == 2).then_some(())
    })
    .await;
    let listed = async || net.coordinator.get("/api/v1/peers").await.1["peers"].clone();
    let peers = listed().await;
    let ids: Vec<&str> = peers.as_array().unwrap().iter().map(|p| p["peer_id"].as_str().unwrap()).collect();
    assert_eq!(ids, [&honest], "{peers}");
    assert_eq!((&peers[0]["health"], &peers[0]["stale"]), (&json!("healthy"), &json!(false)));
    assert_ne!(peers[0]["active_reservations"], 7, "{peers}");
    // The same hand writes a genuine message, and that counts.
    let message = gossip(&key, 9, ADVERTISEMENT, &advertisement(&me), Flaw::None);
    forger.request(Which::First, message).await.expect("the stream is read to its end");
    eventually_some("what is genuine is listed", async || {
        listed().await.as_array()?.iter().any(|p| p["peer_id"] == *me).then_some(())
    })
    .await;
    // The plan goes to the honest one, which is healthy; the other never said that it is.
    let job = net.coordinator.run("OPENQASM 2.0; include \"qelib1.inc\"; qreg q[1]; h q[0];", 10).await;
    assert_eq!((&job["status"], &job["fragments"][0]["peer_id"]), (&json!("completed"), &json!(honest)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operator_sees_the_network() {
    let mut net = Net::start(&[]).await;
    let role = [("CODA_PEER", "true"), ("CODA_NO_CLOUD", "true"), ("CODA_DEVICE_CONFIG", "device.yaml")];
    net.add(SIMULATOR, &role).await;
    let peer = &net.peers[0];
    let said = peer.cli(&["doctor"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    for part in ["skip  cloud", &peer.peer_id, "is reachable", "the bootstrap peers may reserve"] {
        assert!(said.out.contains(part), "no {part} in\n{}", said.out);
    }
    let said = peer.cli(&["status"]).await;
    assert!(said.out.contains("1 peer(s) connected, 0 reservation(s) held"), "{}", said.out);
    // The circuits of the documentation, as a user gives them.
    let url = format!("http://{}", net.coordinator.http);
    for (name, keys) in [("bell", Some("11")), ("ghz8", Some("11111111")), ("qft10", None)] {
        let file = project_file(&format!("tests/circuits/{name}.qasm")).display().to_string();
        let said = net.coordinator.cli(&["coordinate", &file, "--shots", "200", "--url", &url]).await;
        assert_eq!(said.code, 0, "{}", said.text());
        assert!(keys.is_none_or(|k| said.out.contains(&format!("  {k}  "))), "{}", said.out);
    }
    let said = net.coordinator.cli(&["coordinate", "nowhere.qasm", "--url", &url]).await;
    assert!(said.code == 2 && said.text().contains("OpenQASM 2 or 3"), "{}", said.text());
    net.coordinator.kill();
    eventually_some("the bootstrap peer is missed", async || {
        let said = net.peers[0].cli(&["doctor"]).await;
        (said.code == 1 && said.out.contains("fail  bootstrap")).then_some(())
    })
    .await;
}
