//! `plugin check` on Qiskit backends: exact on a simulator, within a tolerance on a noisy one, and it finds wrong keys.

use std::time::Duration;

use coda_host_tests::qiskit::{plan, venv};
use coda_host_tests::{Plan, TestHost};
use serde_json::Value;

/// Each case is a process that imports Qiskit.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs the check with these arguments; the verdicts by case, and all that was said.
async fn check(host: &TestHost, arguments: &[&str]) -> (i32, Value, String) {
    let device = host.dir().join("device.yaml").display().to_string();
    let mut command = vec!["plugin", "check", "--device", &device, "--json", "--seed", "7"];
    command.extend(arguments);
    let said = host.cli_within(LIMIT, &command).await;
    let report = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {}", said.text()));
    (said.code, report, said.text())
}

fn verdict<'a>(report: &'a Value, name: &str) -> &'a Value {
    let cases = report["cases"].as_array().expect("cases");
    &cases.iter().find(|case| case["case"] == name).unwrap_or_else(|| panic!("no case {name}"))["verdict"]
}

/// Cases that a backend in Python code runs.
const RUN: &[&str] = &[
    "load",
    "create",
    "device",
    "bit-order",
    "bit-order-pairs",
    "counts",
    "shots",
    "gates-one-qubit",
    "gates-two-qubits",
    "random-circuits",
    "largest-qubit",
    "batch",
    "cancel-before",
    "cancel-after",
    "cancel-unknown",
    "error-then-good",
    "hooks",
    "shutdown-during-run",
];

async fn passes(plan: Plan, arguments: &[&str]) {
    let host = plan.prepare().await;
    let (code, report, text) = check(&host, arguments).await;
    assert_eq!(code, 0, "{text}");
    for case in RUN {
        assert_eq!(verdict(&report, case), "passed", "{case}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_passes_on_the_simulator_of_aer() {
    let Some(venv) = venv() else { return };
    passes(
        plan(
            &venv,
            "backend: qiskit_aer:AerSimulator\nbackend_args: {method: statevector}\nnum_qubits: 16\n",
        ),
        &[],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_passes_for_each_gate_set_and_method() {
    let Some(venv) = venv() else { return };
    for (method, target) in [("density_matrix", "iswap"), ("statevector", "pcz"), ("automatic", "cnot")] {
        let keys = format!(
            "backend: qiskit_aer:AerSimulator\nbackend_args: {{method: {method}}}\ntarget: {target}\nnum_qubits: 6\n"
        );
        passes(plan(&venv, &keys), &["--quick"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noisy_backends_pass_with_a_tolerance() {
    let Some(venv) = venv() else { return };
    let generic = "backend: qiskit.providers.fake_provider:GenericBackendV2\n\
                   backend_args: {num_qubits: 5, coupling_map: [[0, 1], [1, 2], [2, 3], [3, 4]], seed: 3}\n";
    passes(plan(&venv, generic), &["--quick", "--tolerance", "0.15"]).await;
    passes(plan(&venv, "backend: backends:noisy\nnum_qubits: 6\n"), &["--quick", "--tolerance", "0.2"]).await;
    // The noise is there: without a tolerance the check finds it.
    let host = plan(&venv, "backend: backends:noisy\nnum_qubits: 6\n").prepare().await;
    let (code, report, text) = check(&host, &["--quick", "--only", "gates-one-qubit"]).await;
    assert_eq!((code, verdict(&report, "gates-one-qubit")), (1, &Value::from("failed")), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_with_reversed_keys_is_found_by_the_check() {
    let Some(venv) = venv() else { return };
    let mut host = plan(&venv, "backend: backends:Reversed\n").prepare().await;
    let only = ["--quick", "--only", "bit-order"];
    let (code, report, text) = check(&host, &only).await;
    assert_eq!((code, verdict(&report, "bit-order")), (1, &Value::from("failed")), "{text}");
    assert!(text.contains("CODA_EXECUTOR_BIT_ORDER=reversed"), "{text}");
    // The setting turns every key around, and so this one, as long as no qubit is measured twice.
    host.set("CODA_EXECUTOR_BIT_ORDER", "reversed");
    let (code, report, text) = check(&host, &["--quick", "--only", "bit-order-pairs"]).await;
    assert_eq!((code, verdict(&report, "bit-order-pairs")), (0, &Value::from("passed")), "{text}");
}
