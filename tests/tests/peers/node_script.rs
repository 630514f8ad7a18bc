//! The public node script against our coordinator, where its path is given: `CODA_TEST_NODE_SCRIPT=<path>`, with an
//! interpreter that has what the script imports: `CODA_TEST_NODE_SCRIPT_PYTHON` (py-libp2p, Qiskit with Aer, pydantic).
//!
//! Whatever the script makes of a statement, no job ends as completed with a wrong result, and every job completes where a
//! right peer has room.
//!
//! As published the script fails at every dispatch (`asyncio` is not imported; imported, it does not run under trio). With
//! `trio.to_thread.run_sync` in its place it runs `h`, `cx`, `cz` and `measure` right, and defaults for what it does not know.

use std::process::Stdio;

use coda_host::coordinator::simulation;
use coda_host::qasm;
use coda_host_tests::net::{Net, SIMULATOR, fidelity, state_of};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// What a peer may advertise.
const SERVICES: &str = "hadamard,cnot,cz,controlled_unitary,programmable_gate,qft,teleportation,bell_pair,syndrome_extraction,\
                        distillation,measurement_feedforward";
/// Statements of every service, and gates that the script takes for the default of their service.
const CIRCUITS: [&str; 16] = [
    "h q[0]; cx q[0], q[1];",
    "h q[0]; h q[1]; h q[2]; cz q[0], q[2]; cx q[2], q[1];",
    "x q[0]; cx q[0], q[1]; x q[1];",
    "rx(0.3) q[0]; ry(1.1) q[1]; rz(0.4) q[2];",
    "h q[0]; s q[0]; t q[0]; sdg q[0]; tdg q[0]; sx q[0];",
    "y q[0]; z q[0]; id q[1]; p(0.7) q[0];",
    "U(0.12, 0.34, 0.56) q[0]; U(0.5, 0.1, 0.2) q[1];",
    "h q[0]; ch q[0], q[1]; crx(0.9) q[1], q[2];",
    "h q[0]; cp(0.7) q[0], q[1]; cy q[0], q[2]; crz(0.2) q[2], q[1];",
    "x q[0]; swap q[0], q[2]; cswap q[2], q[0], q[1];",
    "x q[0]; x q[1]; ccx q[0], q[1], q[2]; ccz_like q[0], q[1], q[2];",
    "x q[1]; qft q[0], q[1], q[2]; iqft q[0], q[1], q[2]; h q[0];",
    "bell_pair q[0], q[1]; teleport q[1], q[2];",
    "h q[0]; cx q[0], q[1]; c[0] = measure q[0]; c[1] = measure q[1];",
    "rx(0.3) q[0]; c[0] = measure q[0]; h q[1]; c[1] = measure q[1];",
    "h q; for int i in [0:40] { cx q[0], q[1]; h q[1]; }",
];

fn source(statements: &str) -> String {
    format!(
        "OPENQASM 3.0; include \"stdgates.inc\"; gate ccz_like a, b, c {{ h c; ccx a, b, c; h c; }} qubit[3] q; bit[2] c; \
         {statements}"
    )
}

struct NodeScript {
    // Killed when dropped.
    _child: Child,
    /// With its identity.
    _home: TempDir,
    peer_id: String,
}

impl NodeScript {
    /// Starts the script as a peer of this coordinator; `None` where there is none, with a word.
    async fn start(coordinator: &str) -> Option<NodeScript> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (script, python) = (variable("CODA_TEST_NODE_SCRIPT"), variable("CODA_TEST_NODE_SCRIPT_PYTHON"));
        let (Some(script), Some(python)) = (script, python) else {
            eprintln!(
                "SKIPPED: no public node script here (CODA_TEST_NODE_SCRIPT, CODA_TEST_NODE_SCRIPT_PYTHON)"
            );
            return None;
        };
        let home = tempfile::tempdir().expect("a directory");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its number").port().to_string();
        drop(listener);
        let mut child = Command::new(python)
            .args([&script, "--coordinator", coordinator, "--port", &port, "--label", "script"])
            .args(["--services", SERVICES, "--heartbeat-interval", "1"])
            .envs([("PYTHONUNBUFFERED", "1"), ("PYTHONDONTWRITEBYTECODE", "1")])
            .env("HOME", home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the interpreter of CODA_TEST_NODE_SCRIPT_PYTHON");
        let mut out = BufReader::new(child.stdout.take().expect("its output")).lines();
        let peer_id = loop {
            let line = out.next_line().await.expect("text").expect("the script lives");
            if let Some((_, id)) = line.split_once("Peer ID   : ") {
                break id.trim().to_string();
            }
        };
        tokio::spawn(async move { while let Ok(Some(_)) = out.next_line().await {} });
        Some(NodeScript { _child: child, _home: home, peer_id })
    }
}

/// Runs every circuit with these options, all at once. What is completed is right; returns how many are, and the errors
/// of the others.
async fn run_all(net: &Net, options: &Value) -> (usize, Vec<String>) {
    let mut ids = Vec::new();
    for circuit in CIRCUITS {
        let mut job = json!({ "qasm": source(circuit), "shots": 50, "results": ["counts", "state"] });
        job.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
        ids.push((circuit, net.coordinator.submit_with(&job).await));
    }
    let (mut completed, mut errors) = (0, Vec::new());
    for (circuit, id) in ids {
        let job = net.coordinator.ended(&id).await;
        if job["status"] != "completed" {
            errors.push(format!("{circuit}: {}", job["error"]));
            continue;
        }
        completed += 1;
        let expected =
            simulation::run(&qasm::parse(&source(circuit)).expect("a circuit"), || false).expect("a state");
        let found = fidelity(&state_of(&job), &expected);
        assert!(
            (found - 1.0).abs() < 1e-9,
            "a wrong result is completed ({options}): {circuit}: {found}\n{job}"
        );
    }
    (completed, errors)
}

/// A job is right or it fails, with the script alone; beside right peers every job completes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wrong_result_of_the_public_script_is_completed() {
    let env = [
        ("CODA_COORDINATOR_PEER_WAIT_SEC", "2"),
        ("CODA_COORDINATOR_CALL_TIMEOUT_SEC", "10"),
        ("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "15"),
    ];
    let mut net = Net::start(&env).await;
    let Some(first) = NodeScript::start(&net.coordinator.address).await else { return };
    net.known(&first.peer_id).await;
    let ways = [json!({}), json!({ "verify": true }), json!({ "redundancy": 2 })];
    for options in &ways {
        let (completed, _) = run_all(&net, options).await;
        eprintln!("the script alone, {options}: {completed} of {} completed", CIRCUITS.len());
    }
    // Two of them agree about a default that both apply, which is no proof.
    let second = NodeScript::start(&net.coordinator.address).await.expect("another one");
    net.known(&second.peer_id).await;
    let (completed, _) = run_all(&net, &ways[2]).await;
    eprintln!("two scripts, {}: {completed} of {} completed", ways[2], CIRCUITS.len());
    net.add(SIMULATOR, &[]).await;
    for options in &ways[..2] {
        let (completed, errors) = run_all(&net, options).await;
        assert_eq!(completed, CIRCUITS.len(), "{options}: {errors:#?}");
    }
    net.add(SIMULATOR, &[]).await;
    for options in &ways {
        let (completed, errors) = run_all(&net, options).await;
        assert_eq!(completed, CIRCUITS.len(), "{options}: {errors:#?}");
    }
    net.all_free().await;
}
