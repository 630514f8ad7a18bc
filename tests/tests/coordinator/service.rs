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

/// A circuit with inputs and bits in another order, by the API and by the command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_has_inputs_an_order_of_bits_and_the_results_that_it_asks_for() {
    const SOURCE: &str = "OPENQASM 3.0; input float theta; input int n; qubit[3] q; bit[2] c; bit d;
        for int i in [0:n] { rx(theta) q[i]; } bell_pair q[1], q[2]; x q[0]; c[1] = measure q[0]; d = measure q[2];
        c[0] = measure q[1];";
    let mut net = Net::start(&[]).await;
    net.add(SIMULATOR, &[]).await;
    let c = &net.coordinator;
    let mut job = json!({"qasm": SOURCE, "shots": 100, "inputs": {"theta": 0.0, "n": 0}});
    let ended = c.ended(&c.submit_with(&job).await).await;
    assert_eq!(ended["status"], "completed", "{}", ended["error"]);
    let result = &ended["result"];
    assert_eq!(result["measured_qubits"], json!([1, 0, 2]));
    assert_eq!(result["measured_bits"], json!(["c[0]", "c[1]", "d"]));
    assert_eq!(result["measured_probabilities"], json!({"010": 0.5, "111": 0.5}));
    assert_eq!(result["probabilities"], json!({"100": 0.5, "111": 0.5}));
    let counts = result["counts"].as_object().unwrap();
    assert!(counts.keys().all(|key| key == "010" || key == "111"), "{counts:?}");
    assert!(result["state"].is_object() && result["bloch_vectors"].is_null(), "{result}");
    job["results"] = json!(["state", "bloch_vectors", "entanglement_entropy"]);
    job["observables"] = json!(["ZZZ", "XX_q1_q2"]);
    job["bit_order"] = json!("reference");
    let ended = c.ended(&c.submit_with(&job).await).await;
    let result = &ended["result"];
    // In the source q0, q2 and q1 are measured in this order; the last one is leftmost.
    let counts = result["counts"].as_object().unwrap();
    assert!(counts.keys().all(|key| key == "001" || key == "111"), "{counts:?}");
    assert_eq!(result["bloch_vectors"]["q0"], json!({"x": 0.0, "y": 0.0, "z": -1.0}));
    assert_eq!(result["entanglement_entropy"], json!({"q0|rest": 0.0, "q1|rest": 1.0, "q2|rest": 1.0}));
    assert_eq!(result["observable_expectations"], json!({"ZZZ": -1.0, "XX_q1_q2": 1.0}));
    assert_eq!(result["state"]["amplitudes"][1], "0.707106781187");
    for (field, value, expected) in [
        ("inputs", json!({"theta": 0.5}), "the input 'n' has no value"),
        ("inputs", json!({"theta": 0.5, "n": 0.5}), "the input 'n' is 0.5, a whole number"),
        ("inputs", json!({"theta": 0.5, "n": 1, "m": 1}), "no input 'm'; it has theta, n"),
        ("inputs", json!({"theta": "a"}), "inputs: invalid type"),
        ("observables", json!(["ZZ"]), "2 letters for 3 qubits"),
        ("results", json!(["entropies"]), "results: unknown variant"),
        ("bit_order", json!("left"), "bit_order: unknown variant"),
    ] {
        let mut wrong = job.clone();
        wrong[field] = value;
        let (status, problem) = c.post("/api/v1/jobs", &wrong).await;
        assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!(field)), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{problem}");
    }
    // The same on the command line.
    std::fs::write(c.dir().join("inputs.qasm"), SOURCE).unwrap();
    let url = format!("http://{}", c.http);
    let given = ["coordinate", "inputs.qasm", "--url", &url, "--input", "theta=0"];
    let shown = ["--input", "n=0", "--results", "bloch_vectors,state", "--observable", "XX_q1_q2"];
    let said = c.cli(&[&given[..], &shown].concat()).await;
    assert_eq!(said.code, 0, "{}", said.text());
    for part in
        ["q0   x +0.000000  y +0.000000  z -1.000000", "    100  0.707106781187", "XX_q1_q2  +1.000000"]
    {
        assert!(said.out.contains(part), "{}", said.out);
    }
    let said = c.cli(&given).await;
    assert!(said.code == 2 && said.err.contains("the input 'n' has no value"), "{}", said.text());
    assert!(said.err.contains("--input"), "{}", said.err);
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
