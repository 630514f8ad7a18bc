//! The coordinator itself: its API, its command line, its log, and what a kill leaves.

use coda_host::peers::wire::PeerStep;
use coda_host_tests::artifacts::project_file;
use coda_host_tests::misbehaving_peers::{Behave, join};
use coda_host_tests::net::{Net, SIMULATOR};
use coda_host_tests::{eventually, eventually_some};
use serde_json::json;

const BELL: &str =
    "OPENQASM 3.0; include \"stdgates.inc\"; qubit[2] q; bit[2] c; h q[0]; cx q[0],q[1]; c = measure q;";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_a_job_it_cleans_up_after_a_restart() {
    let mut net = Net::start(&[("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "30")]).await;
    let mut misbehaving_peers = join(&net.coordinator.address, Behave::Silent(PeerStep::Dispatch), &[]).await;
    net.known(&misbehaving_peers.peer_id).await;
    let job = net.coordinator.submit(BELL, 10).await;
    eventually_some("the dispatch is under way", async || {
        misbehaving_peers.heard.try_recv().ok().filter(|h| h.step == PeerStep::Dispatch)
    })
    .await;
    net.coordinator.kill();
    // Its network is gone; the same one at the same place would be found again.
    let port = net.coordinator.address.split('/').nth(4).unwrap().to_string();
    net.coordinator.env.insert("CODA_COORDINATOR_LISTEN".into(), format!("/ip4/127.0.0.1/tcp/{port}"));
    let before = net.coordinator.peer_id.clone();
    net.coordinator.restart().await;
    assert_eq!(net.coordinator.peer_id, before, "the same peer");
    let resumed = net.coordinator.job(&job).await;
    assert!(matches!(resumed["status"].as_str(), Some("queued" | "running")), "{resumed}");
    let reservation = resumed["blocks"][0]["tried"][0]["reservation_id"].as_str().unwrap().to_string();
    let heard = eventually_some("the peer is told", async || {
        misbehaving_peers.heard.try_recv().ok().filter(|h| h.step == PeerStep::Cancel)
    })
    .await;
    assert_eq!(heard.document["reservation_id"], *reservation);
    // And it goes on where it was.
    net.add(SIMULATOR, &[]).await;
    misbehaving_peers.network.stop().await;
    let ended = net.coordinator.ended(&job).await;
    assert_eq!(ended["status"], "completed", "{}", ended["error"]);
    net.all_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_by_the_api() {
    let net = Net::start(&[]).await;
    let c = &net.coordinator;
    let ask = json!({"workflow_run_id": "workflow-1", "fragment_id": "frag-0001", "service_id": "qft", "ttl_seconds": 60});
    let (status, made) = c.post("/api/v1/reservations", &ask).await;
    assert_eq!((status, &made["current_transition"]), (201, &json!("requested")));
    assert_eq!(made["requesting_peer_id"], *c.peer_id);
    let id = made["reservation_id"].as_str().unwrap();
    assert_eq!(c.get(&format!("/api/v1/reservations/{id}")).await, (200, made.clone()));
    let (status, cancelled) =
        c.post(&format!("/api/v1/reservations/{id}/cancel?reason=enough"), &json!({})).await;
    assert_eq!(
        (status, &cancelled["current_transition"], &cancelled["is_terminal"]),
        (200, &json!("cancelled"), &json!(true))
    );
    assert_eq!(c.post(&format!("/api/v1/reservations/{id}/cancel"), &json!({})).await.0, 409);
    assert_eq!(c.post("/api/v1/reservations/res-unknown-1/cancel", &json!({})).await.0, 404);
    assert_eq!(c.get("/api/v1/reservations/res-unknown-1").await.0, 404);
    // Keys belong to their callers.
    let keyed = |who: &str, service: &str| {
        json!({"workflow_run_id": "workflow-1", "fragment_id": "frag-0001", "service_id": service,
               "requesting_peer_id": who, "idempotency_key": "key-1"})
    };
    let (status, first) = c.post("/api/v1/reservations", &keyed("alice", "qft")).await;
    assert_eq!(status, 201);
    assert_eq!(c.post("/api/v1/reservations", &keyed("alice", "cnot")).await, (200, first.clone()));
    let (status, other) = c.post("/api/v1/reservations", &keyed("bob", "qft")).await;
    assert!(status == 201 && other["reservation_id"] != first["reservation_id"]);
    // By its ttl.
    let mut short = keyed("carol", "qft");
    short["ttl_seconds"] = json!(5);
    let (_, made) = c.post("/api/v1/reservations", &short).await;
    let path = format!("/api/v1/reservations/{}", made["reservation_id"].as_str().unwrap());
    eventually("it expires", async || c.get(&path).await.1["current_transition"] == "expired").await;
    for (field, value) in [
        ("workflow_run_id", json!("short")),
        ("fragment_id", json!(7)),
        ("service_id", json!("x")),
        ("ttl_seconds", json!(4)),
        ("ttl_seconds", json!(5.5)),
        ("reservation_id", json!("short")),
        ("requesting_peer_id", json!("ab")),
    ] {
        let mut bad = ask.clone();
        bad[field] = value.clone();
        let (status, problem) = c.post("/api/v1/reservations", &bad).await;
        assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!(field)), "{value}: {problem}");
    }
    let mut unknown = ask.clone();
    unknown["surprise"] = json!(1);
    let (status, problem) = c.post("/api/v1/reservations", &unknown).await;
    assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!("surprise")), "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_page_can_change_nothing() {
    let net = Net::start(&[]).await;
    let c = &net.coordinator;
    let job = json!({"qasm": BELL, "shots": 1});
    // What a page can send without asking: no JSON type, or a name that was bound to loopback.
    assert_eq!(c.post_with("/api/v1/jobs", &job, "Content-Type: text/plain\r\n").await.0, 415);
    assert_eq!(
        c.post_with("/api/v1/reservations/res-unknown-1/cancel?reason=x", &json!(null), "").await.0,
        415
    );
    let (head, rest) = ("GET", "/api/v1/peers");
    let rebound = tokio_get(&c.http, head, rest, "evil.example").await;
    assert!(rebound.starts_with("HTTP/1.1 403"), "{rebound}");
    // With a token it is the token that counts.
    let net = Net::start(&[("CODA_API_TOKEN", "sesame-sesame")]).await;
    let c = &net.coordinator;
    assert_eq!(c.post("/api/v1/jobs", &job).await.0, 401);
    let with = "Content-Type: application/json\r\nAuthorization: Bearer sesame-sesame\r\n";
    assert_eq!(c.post_with("/api/v1/jobs", &job, with).await.0, 202);
    assert_eq!(c.get("/api/v1/peers").await.0, 401, "reads too");
    assert!(!c.log().contains("sesame-sesame"), "the token is in no log");
    assert!(c.log().contains("CODA_API_TOKEN is short"), "{}", c.log());
}

async fn tokio_get(address: &str, method: &str, path: &str, host: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_the_command_line() {
    let mut net = Net::start(&[]).await;
    net.add(SIMULATOR, &[]).await;
    let url = format!("http://{}", net.coordinator.http);
    let c = &net.coordinator;
    std::fs::write(c.dir().join("bell.qasm"), BELL).unwrap();
    std::fs::write(c.dir().join("wrong.qasm"), "OPENQASM 3.0;\nqubit q;\n  foo q;\n").unwrap();
    let said = c.cli(&["coordinate", "bell.qasm", "--shots", "100", "--url", &url]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    assert!(said.out.contains("block-s02-b01 completed") && said.out.contains("100 shots"), "{}", said.out);
    assert!(said.out.contains("  11  ") || said.out.contains("  00  "), "{}", said.out);
    let said = c.cli(&["coordinate", "bell.qasm", "--json", "--url", &url]).await;
    let job: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(job["status"], "completed");
    let said = c.cli(&["coordinate", "wrong.qasm", "--url", &url]).await;
    assert_eq!(said.code, 2);
    assert!(
        said.err.contains("wrong.qasm") && said.err.contains("line 3, column 3: the gate 'foo'"),
        "{}",
        said.err
    );
    let said = c.cli(&["coordinate", "bell.qasm", "--url", "http://127.0.0.1:1"]).await;
    assert!(said.code == 4 && said.err.contains("coda-host coordinator"), "{}", said.text());
    // The log, as text and back.
    let lines = c.cli(&["reservation", "replay", "--lines"]).await.out;
    let torn = c.dir().join("torn.jsonl");
    std::fs::write(&torn, &lines[..lines.len() - 40]).unwrap();
    let said = c.cli(&["reservation", "verify", torn.to_str().unwrap()]).await;
    assert!(said.code == 0 && said.err.contains("is incomplete"), "{}", said.text());
    let flipped = lines.replacen("accepting_peer_id", "accepting_peer_iD", 1);
    std::fs::write(&torn, flipped).unwrap();
    let said = c.cli(&["reservation", "replay", torn.to_str().unwrap()]).await;
    assert!(said.code == 1 && said.err.contains("damaged at line"), "{}", said.text());
    let said = c.cli(&["reservation", "show", "res-unknown-1"]).await;
    assert!(said.code == 1 && said.err.contains("res-unknown-1"), "{}", said.text());
    // Two coordinators in one place would answer for each other.
    let said = c.cli(&["coordinator"]).await;
    assert!(said.code == 1 && said.err.contains("another coda-host"), "{}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_is_told_and_nothing_is_built_on_it() {
    let mut net = Net::start(&[]).await;
    let ask = json!({"workflow_run_id": "workflow-damaged", "fragment_id": "frag-0001", "service_id": "qft"});
    let (_, made) = net.coordinator.post("/api/v1/reservations", &ask).await;
    assert_eq!(made["current_transition"], "requested");
    net.coordinator.stop().await;
    let path = net.coordinator.dir().join("state/coordinator/reservations.db");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(16).position(|w| w == b"workflow-damaged").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let said = net.coordinator.cli(&["coordinator"]).await;
    assert!(said.code == 1 && said.err.contains("damaged at event 1"), "{}", said.text());
    assert!(said.err.contains("reservation verify"), "{}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_description_is_true_to_the_code() {
    let schemathesis = std::env::var("CODA_TEST_SCHEMATHESIS").unwrap_or_default();
    if schemathesis.is_empty() {
        eprintln!("SKIPPED: no schemathesis here; `make test` installs it (it needs Debian's python3-venv)");
        return;
    }
    let net =
        Net::start(&[("CODA_API_TOKEN", "sesame-sesame"), ("CODA_COORDINATOR_PEER_WAIT_SEC", "0.01")]).await;
    let url = format!("http://{}/api/v1/openapi.json", net.coordinator.http);
    let report = tokio::process::Command::new(&schemathesis)
        .arg("--config-file")
        .arg(project_file("tests/python/schemathesis.toml"))
        .args(["run", &url, "--checks", "all", "--max-examples", "40", "--no-color"])
        .args(["--header", "Authorization: Bearer sesame-sesame"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(net.coordinator.dir())
        .output()
        .await
        .expect("schemathesis runs");
    let text = String::from_utf8_lossy(&report.stdout);
    assert!(report.status.success(), "{text}\n{}", String::from_utf8_lossy(&report.stderr));
}
