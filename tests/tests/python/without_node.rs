//! Executors where coda-node is not installed: the host brings the module that they need.

use std::path::{Path, PathBuf};

use coda_host_tests::python::venv;
use coda_host_tests::{Circuit, Plan, TestHost};
use serde_json::{Value, json};

/// A virtual environment without any package, in this directory.
fn bare_venv(dir: &Path) -> Option<PathBuf> {
    let python = venv()?.join("bin/python");
    let made = dir.join("bare");
    let done = std::process::Command::new(python).args(["-m", "venv", "--without-pip"]).arg(&made).output();
    let done = done.expect("the interpreter starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(made)
}

async fn prepared(dir: &Path) -> Option<TestHost> {
    let venv = bare_venv(dir)?;
    Some(Plan::python(&venv, "plain:create_executor", "flip: 1\npair: [a, {b: 2}]\n").prepare().await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_needs_nothing_but_the_module_that_the_host_brings() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut host) = prepared(dir.path()).await else { return };
    host.start().await;
    let circuit =
        Circuit::new(3).rx(0, std::f64::consts::PI).rx(1, std::f64::consts::PI).measure(&[2, 0, 1, 0]);
    host.submit("J1", &circuit, 10).await;
    // Qubit 1 is not turned: the key `flip` of the device config has been read, without a reader of YAML.
    assert_eq!(host.delivered("J1").await["counts"], json!({ "0101": 10 }));
    let said = host.cli(&["status"]).await;
    assert!(said.out.contains("without coda-node, chosen by CODA_EXECUTOR_PYTHON"), "{}", said.text());
    // What the executor has declared to be secret reaches neither the sender nor the log.
    host.submit("J2", &Circuit::new(1).ry(0, 1.0).measure(&[0]), 10).await;
    assert_eq!(host.failure("J2").await, "the login with *** failed");
    assert!(host.log().contains("plain: the login with *** failed"), "{}", host.log());
    assert!(!host.log().contains("hunter22"), "{}", host.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_of_the_hosts_own_class_is_the_device_that_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut host) = prepared(dir.path()).await else { return };
    let said = host.cli(&["plugin", "device", "--json"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    let device: Value = serde_json::from_str(&said.out).unwrap();
    for (key, value) in [
        ("name", json!("Plain 1")),
        ("num_qubits", json!(3)),
        ("targets", json!(["cnot", "cz"])),
        ("max_shots", json!(5000)),
        ("connectivity", json!("directed")),
        ("edges", json!([[1, 0], [1, 2]])),
    ] {
        assert_eq!(device[key], value, "{key} of {device}");
    }
    // An error of the config is one of the operator's, and a declared secret is not shown.
    host.write_device("executor_factory: plain:create_executor\nflip: hunter22\n");
    let said = host.cli(&["plugin", "device"]).await;
    assert!(said.code == 3 && said.err.contains("flip: *** is not a qubit"), "{}", said.text());
    assert!(said.err.contains("correct the device config"), "{}", said.text());
    // The same executor under an interpreter with coda-node gets that one's circuits.
    let venv = venv().unwrap();
    host.set("CODA_EXECUTOR_PYTHON", venv.display().to_string());
    host.write_device("executor_factory: plain:create_executor\nflip: 0\n");
    host.start().await;
    host.submit("J1", &Circuit::new(2).rx(0, std::f64::consts::PI).measure(&[0, 1]), 10).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "00": 10 }));
    let said = host.cli(&["status"]).await;
    assert!(said.out.contains("coda-node 0.1.1"), "{}", said.text());
}
