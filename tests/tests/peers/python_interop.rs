//! Interoperability with real py-libp2p: `tests/python/node.py` in a venv that the Makefile makes.

use std::process::Stdio;

use coda_host_tests::artifacts::project_file;
use coda_host_tests::net::{Net, SIMULATOR, fidelity, peer, state_of};
use coda_host_tests::{LIMIT, eventually_some};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// The venv's interpreter; `None` skips, with a word.
fn python() -> Option<String> {
    let python = std::env::var("CODA_TEST_PYTHON").ok().filter(|p| !p.is_empty());
    if python.is_none() {
        eprintln!("SKIPPED: no py-libp2p here; `make test` makes the venv (it needs Debian's python3-venv)");
    }
    python
}

struct Python {
    // Killed when dropped.
    _child: Child,
    lines: mpsc::UnboundedReceiver<Value>,
}

impl Python {
    fn start(python: &str, arguments: &[&str]) -> Python {
        let mut child = Command::new(python)
            .arg(project_file("tests/python/node.py"))
            .args(arguments)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the interpreter of CODA_TEST_PYTHON");
        let mut out = BufReader::new(child.stdout.take().expect("its output")).lines();
        let (sender, lines) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(line)) = out.next_line().await {
                if let Ok(value) = serde_json::from_str(&line) {
                    sender.send(value).ok();
                }
            }
        });
        Python { _child: child, lines }
    }

    /// The next line of this kind, and none of the others before it.
    async fn next(&mut self, event: &str) -> Value {
        let wanted = async {
            loop {
                let line: Value = self.lines.recv().await.expect("the Python node lives");
                if line["event"] == event {
                    return line;
                }
            }
        };
        tokio::time::timeout(LIMIT, wanted).await.unwrap_or_else(|_| panic!("no '{event}' in time"))
    }

    async fn answer(&mut self, step: &str) -> Value {
        let line = self.next("answer").await;
        assert_eq!(line["step"], step, "{line}");
        line["document"].clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_peer_answers_our_coordinator() {
    let Some(python) = python() else { return };
    for key in ["ed25519", "rsa"] {
        let mut net = Net::start(&[]).await;
        let bootstrap = net.coordinator.address.clone();
        let mut node = Python::start(&python, &["peer", "--bootstrap", &bootstrap, "--key", key]);
        let id = node.next("listening").await["peer_id"].as_str().unwrap().to_string();
        assert_eq!(id.starts_with("Qm"), key == "rsa", "{id}");
        net.known(&id).await;
        let source = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[2] q; bit[2] c; h q[0]; cx q[0],q[1]; c = measure q;";
        let job = net.coordinator.run_for_state(source, 200).await;
        assert_eq!(job["status"], "completed", "{key}: {}", job["error"]);
        let half = std::f64::consts::FRAC_1_SQRT_2;
        let bell = [[half, 0.0], [0.0, 0.0], [0.0, 0.0], [half, 0.0]];
        assert!((fidelity(&state_of(&job), &bell) - 1.0).abs() < 1e-9);
        assert!(
            job["fragments"].as_array().unwrap().iter().all(|f| f["peer_id"] == *id && f["fidelity"] == 0.97)
        );
        let request = node.next("request").await;
        let keys: Vec<&String> = request["document"].as_object().unwrap().keys().collect();
        assert_eq!(keys.len(), 11, "every field and no other: {keys:?}");

        // What it doesn't know is failed by it and run by the next one.
        net.add(SIMULATOR, &[]).await;
        let limited = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; h q[0]; rx(0.3) q[0];";
        let job = net.coordinator.run(limited, 10).await;
        assert_eq!(job["status"], "completed", "{}", job["error"]);

        // A reservation by hand, cancelled through the API, reaches the peer.
        net.all_free().await;
    }
}

/// It reads only the first part of a longer document, so a long run of gates is cut into pieces for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_run_of_gates_goes_to_a_python_peer_in_pieces() {
    let Some(python) = python() else { return };
    let net = Net::start(&[]).await;
    let mut node = Python::start(&python, &["peer", "--bootstrap", &net.coordinator.address]);
    let id = node.next("listening").await["peer_id"].as_str().unwrap().to_string();
    net.known(&id).await;
    let gates: String = (0..301).map(|n| if n % 2 == 0 { "h q[0];" } else { "cx q[0],q[1];" }).collect();
    let source = format!("OPENQASM 3.0; include \"stdgates.inc\"; qubit[2] q; {gates}");
    let job = net.coordinator.run(&source, 10).await;
    assert_eq!(job["status"], "completed", "{}", job["error"]);
    let (mut sent, mut pieces) = (Vec::new(), 0);
    while sent.len() < 301 {
        let request = node.next("request").await;
        let is_probe =
            request["document"]["workflow_run_id"].as_str().is_some_and(|id| id.starts_with("probe-"));
        if request["step"] != "dispatch" || is_probe {
            continue;
        }
        assert!(request["document"].to_string().len() <= 16_384);
        let fragments = request["document"]["input_payload"]["fragments"].as_array().expect("a list");
        sent.extend(fragments.iter().map(|f| f["fragment_id"].clone()));
        pieces += 1;
    }
    let expected: Vec<Value> = (1..=301).map(|n| format!("frag-{n:04}").into()).collect();
    assert_eq!(sent, expected, "each once, in order");
    assert!((3..30).contains(&pieces), "{pieces} pieces");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_client_drives_our_peer() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let env = [("CODA_PEER_ALLOW", "any")];
    let ours = peer(dir.path(), "peer", SIMULATOR, &env).await;
    for key in ["ed25519", "rsa"] {
        let mut client = Python::start(&python, &["client", "--peer", &ours.address, "--key", key]);
        let me = client.next("listening").await["peer_id"].as_str().unwrap().to_string();
        // One read of each answer; the request to prepare and to dispatch without a half-close.
        assert_eq!(client.answer("prepare").await["transition"], "accepted");
        assert_eq!(client.answer("commit").await["transition"], "committed");
        let first = client.answer("dispatch").await;
        assert_eq!(first["transition"], "completed", "{first}");
        let state = &first["output_payload"]["state"];
        assert_eq!(
            state["amplitudes"],
            serde_json::json!(["0.707106781187", "0.0", "0.0", "0.707106781187"])
        );
        assert_eq!(state["previous_peer_id"], *ours.peer_id);
        assert_eq!(client.answer("again").await, first, "the kept answer");
        assert_eq!(client.answer("cancel").await["transition"], "cancelled");
        assert_eq!(client.answer("commit after cancel").await["transition"], "rejected");
        let large = client.answer("too large").await;
        assert_eq!(large["transition"], "failed");
        assert!(large["error_detail"].as_str().unwrap().contains("16384"), "{large}");
        // It is the authenticated id that owned them.
        let said = eventually_some("the log has them", async || {
            let said = ours.cli(&["reservation", "replay", "--peer", "--lines"]).await;
            said.out.contains(&me).then_some(said)
        })
        .await;
        assert!(said.out.contains("hold_released"));
        // And our gossip is understood there.
        for _ in 0..2 {
            let heard = client.next("gossip").await;
            assert_eq!(heard["document"]["peer_id"], *ours.peer_id);
        }
    }
}

/// A state is never wrong, whatever the peers of another kind make of statements that they don't know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_python_peer_does_wrong_is_not_sent_to_it() {
    let Some(python) = python() else { return };
    let header = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[2] q;";
    let r = std::f64::consts::FRAC_1_SQRT_2;
    let (s, c) = 0.15_f64.sin_cos();
    let bell = ("h q[0]; cx q[0],q[1];", vec![[r, 0.0], [0.0, 0.0], [0.0, 0.0], [r, 0.0]]);
    let turned = ("rx(0.3) q[0]; x q[1];", vec![[0.0, 0.0], [0.0, 0.0], [c, 0.0], [0.0, -s]]);
    for behaviour in ["defaults", "wrong"] {
        let mut net = Net::start(&[("CODA_COORDINATOR_PEER_WAIT_SEC", "0.5")]).await;
        let bootstrap = net.coordinator.address.clone();
        let mut node = Python::start(&python, &["peer", "--bootstrap", &bootstrap, "--behaviour", behaviour]);
        let id = node.next("listening").await["peer_id"].as_str().unwrap().to_string();
        net.known(&id).await;
        // Alone: right, or an error that says what it can't be used for.
        let job = net.coordinator.run(&format!("{header}{}", bell.0), 10).await;
        match behaviour {
            "defaults" => {
                assert_eq!(job["status"], "completed", "{}", job["error"]);
                assert!((fidelity(&state_of(&job), &bell.1) - 1.0).abs() < 1e-9);
            }
            _ => assert!(
                job["error"].as_str().unwrap().contains("does h on 1 qubit wrong"),
                "{}",
                job["error"]
            ),
        }
        let job = net.coordinator.run(&format!("{header}{}", turned.0), 10).await;
        assert_eq!(job["status"], "failed", "{behaviour}");
        let error = job["error"].as_str().unwrap();
        assert!(error.contains("rx on 1 qubit") || error.contains("x on 1 qubit"), "{error}");
        // Beside another one: every job completes, and right.
        net.add(SIMULATOR, &[]).await;
        for (statements, state) in [&bell, &turned, &bell, &turned] {
            let job = net.coordinator.run(&format!("{header}{statements}"), 10).await;
            assert_eq!(job["status"], "completed", "{behaviour}: {}", job["error"]);
            let found = fidelity(&state_of(&job), state);
            assert!((found - 1.0).abs() < 1e-9, "{behaviour} {statements}: {found}");
        }
        net.all_free().await;
    }
}

/// Each statement alone is right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_statements_are_not_sent_to_a_python_peer_that_does_the_first_alone() {
    let Some(python) = python() else { return };
    let mut net = Net::start(&[("CODA_COORDINATOR_PEER_WAIT_SEC", "0.5")]).await;
    let bootstrap = net.coordinator.address.clone();
    let mut node = Python::start(&python, &["peer", "--bootstrap", &bootstrap, "--behaviour", "first"]);
    let id = node.next("listening").await["peer_id"].as_str().unwrap().to_string();
    net.known(&id).await;
    let run = async |net: &Net, statements: &str| {
        net.coordinator.run_for_state(&format!("OPENQASM 3; qubit[2] q; {statements}"), 10).await
    };
    let one = run(&net, "h q[0];").await;
    assert_eq!(one["status"], "completed", "{}", one["error"]);
    let statements = "h q[0]; cx q[0],q[1]; h q[1]; h q[0]; cx q[0],q[1];";
    let alone = run(&net, statements).await;
    let error = alone["error"].as_str().unwrap_or_else(|| panic!("it did: {alone}"));
    assert!(error.contains("several statements wrong"), "{error}");
    net.add(SIMULATOR, &[]).await;
    let job = run(&net, statements).await;
    assert_eq!(job["status"], "completed", "{}", job["error"]);
    let r = std::f64::consts::FRAC_1_SQRT_2;
    let expected = [[r, 0.0], [r, 0.0], [0.0, 0.0], [0.0, 0.0]];
    let found = fidelity(&state_of(&job), &expected);
    assert!((found - 1.0).abs() < 1e-9, "{found}: {:?}", state_of(&job));
    net.all_free().await;
}
