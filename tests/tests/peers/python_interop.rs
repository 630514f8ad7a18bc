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
