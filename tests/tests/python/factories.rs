//! Factories of every form, what they are given, and what they tell of the device.

use coda_host_tests::artifacts::circuit_file;
use coda_host_tests::python::{lab_job, notes, venv};
use coda_host_tests::{Exit, Plan, TestHost};
use serde_json::{Value, json};

/// Runs a circuit directly in the executor of this factory.
async fn run(host: &mut TestHost, factory: &str) -> coda_host_tests::Said {
    host.set("CODA_EXECUTOR_FACTORY", factory);
    let bell = circuit_file("bell.json").display().to_string();
    host.cli(&["run", &bell, "--shots", "10", "--json"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn factories_of_every_form_are_read_as_the_python_node_reads_them() {
    let Some(venv) = venv() else { return };
    let mut host = Plan::python(&venv, "forms:one", "").prepare().await;
    for good in [
        "instance",
        "runs_as_it_is",
        "by_attribute",
        "StaticRun",
        "called",
        "partial",
        "Settled",
        "none",
        "one",
        "default",
        "several",
        "in_main_thread",
        "sync_run",
        "future_run",
    ] {
        let said = run(&mut host, &format!("forms:{good}")).await;
        assert_eq!(said.code, 0, "{good}: {}", said.text());
        assert!(said.out.contains(r#""counts":{"00":10}"#), "{good}: {}", said.text());
    }
    for (bad, says) in [
        ("not_callable", "Executor target 'forms:not_callable' is not callable"),
        ("asynchronous", "Executor factory 'forms:asynchronous' did not return a runner"),
        ("no_runner", "Executor factory 'forms:no_runner' did not return a runner"),
        ("keyword_only", "takes 0 positional arguments"),
        ("two", "missing 1 required positional argument"),
        ("Outer.make", "module 'forms' has no attribute 'Outer.make'"),
        ("a:b", "module 'forms' has no attribute 'a:b'"),
        (" one", "module 'forms' has no attribute ' one'"),
        ("raises", "the cryostat is warm"),
        ("exits", "the executor ended its process: sys.exit('no licence')"),
    ] {
        let said = run(&mut host, &format!("forms:{bad}")).await;
        assert_eq!(said.code, 3, "{bad}: {}", said.text());
        assert!(said.err.contains(says), "{bad}: {}", said.text());
    }
    let said = run(&mut host, "no_such_package.factory:make").await;
    assert!(said.code == 3 && said.err.contains("has no package 'no_such_package'"), "{}", said.text());
    assert!(said.err.contains("pip install"), "{}", said.text());
    let said = run(&mut host, "lab.missing:make").await;
    assert!(said.code == 3 && said.err.contains("No module named 'lab.missing'"), "{}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_factory_is_given_the_settings_of_the_host_and_no_credential() {
    let Some(venv) = venv() else { return };
    let plan = Plan::python(&venv, "lab:told", "").qubits(20).gate_set("cnot");
    // Values that coda-node's own settings would refuse: empty ones, and fractions of seconds.
    let mut host = plan.env("CODA_PORT", "").env("CODA_VPN_PROBE_TARGETS", "").prepare().await;
    host.unset("CODA_PORT");
    host.start().await;
    host.send(&lab_job(&host, "J1", "environment", 10)).await;
    host.delivered("J1").await;
    let notes = notes(&host);
    let told: Vec<&String> = notes.iter().filter(|n| n.starts_with("told")).collect();
    // First with what is known before the connect, then as the QPU is registered.
    assert_eq!(told.len(), 2, "{notes:?}");
    assert!(told[0].contains("qpu_id= ") && told[0].contains("native_gate_set=cz num_qubits=5"), "{told:?}");
    assert!(
        told[1].contains("qpu_id=q1 ") && told[1].contains("native_gate_set=cnot num_qubits=20"),
        "{told:?}"
    );
    for told in told {
        assert!(told.contains("node_token=coda-host redis_url= jwt_private_key= "), "{told}");
        assert!(told.ends_with("device.yaml"), "{told}");
    }
    assert!(notes.contains(&format!("prefix {}", venv.display())), "{notes:?}");
    assert!(notes.contains(&"threads True".to_string()), "{notes:?}");
    assert!(notes.contains(&"secrets []".to_string()), "{notes:?}");
    // Later starts know the QPU from the beginning.
    assert_eq!(host.stop().await, Exit::Code(0));
    host.start().await;
    let notes = coda_host_tests::python::notes(&host);
    assert_eq!(notes.iter().filter(|n| n.starts_with("told")).count(), 3, "{notes:?}");
}

/// What `plugin device --json` prints.
async fn device(host: &mut TestHost, factory: &str) -> Value {
    host.set("CODA_EXECUTOR_FACTORY", factory);
    let said = host.cli(&["plugin", "device", "--json"]).await;
    assert_eq!(said.code, 0, "{factory}: {}", said.text());
    serde_json::from_str(&said.out).expect("JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_device_is_as_wide_as_what_is_known_of_it() {
    let Some(venv) = venv() else { return };
    let mut host = Plan::python(&venv, "forms:one", "").prepare().await;
    let plain = device(&mut host, "forms:one").await;
    assert_eq!((&plain["num_qubits"], &plain["slots"]), (&json!(50), &json!(1)));
    assert_eq!(plain["targets"], json!(["cz", "iswap", "pcz", "cnot"]));
    assert_eq!(
        (&plain["connectivity"], &plain["batch_run"], &plain["cancel"]),
        (&json!("unknown"), &json!(false), &json!(true))
    );
    let wired = device(&mut host, "forms:Wired").await;
    assert_eq!((&wired["connectivity"], &wired["edges"]), (&json!("directed"), &json!([[1, 0], [2, 1]])));
    assert_eq!(wired["num_qubits"], 3);
    let undirected = device(&mut host, "forms:Undirected").await;
    assert_eq!((&undirected["connectivity"], &undirected["edges"]), (&json!("undirected"), &json!([[0, 1]])));
    let edgeless = device(&mut host, "forms:Edgeless").await;
    assert_eq!((&edgeless["connectivity"], &edgeless["edges"]), (&json!("undirected"), &json!([])));
    assert_eq!(device(&mut host, "lab:batches").await["batch_run"], true);
    host.set("CODA_EXECUTOR_FACTORY", "forms:NoEdges");
    let said = host.cli(&["plugin", "device"]).await;
    assert!(said.code == 3 && said.err.contains("logical_edges"), "{}", said.text());
    for (factory, says) in [
        ("endless_edges", "more than 10000 directed_edges"),
        ("fractions", "(0.5, 1) in directed_edges, expected a pair of qubits"),
        ("huge", "in directed_edges, expected a pair of qubits"),
        ("triples", "(0, 1, 2) in directed_edges"),
        ("a_text", "'a' in directed_edges"),
        ("a_number", "directed_edges of type int, expected pairs of qubits"),
    ] {
        host.set("CODA_EXECUTOR_FACTORY", format!("forms:{factory}"));
        let said = host.cli(&["plugin", "device"]).await;
        assert!(said.code == 3 && said.err.contains(says), "{factory}: {}", said.text());
    }
    host.write_device("target: cnot\nnum_qubits: 9\n");
    let config = device(&mut host, "forms:Undirected").await;
    assert_eq!((&config["num_qubits"], &config["targets"][0]), (&json!(9), &json!("cnot")));
}
