//! Backends, providers and primitives of every form: real ones from PyPI, and ours with their unpleasant properties.

use std::time::Duration;

use coda_host_tests::python::notes;
use coda_host_tests::qiskit::{iqm_venv, plan, venv};
use coda_host_tests::{Circuit, Plan, TestHost, eventually, example};
use serde_json::{Value, json};

/// What `plugin device --json` prints.
async fn device(host: &TestHost) -> Value {
    let said = host.cli(&["plugin", "device", "--json"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    serde_json::from_str(&said.out).expect("JSON")
}

/// The share of shots with this key.
fn share(body: &Value, key: &str) -> f64 {
    let counts = body["counts"].as_object().unwrap_or_else(|| panic!("no counts: {body}"));
    let total: u64 = counts.values().filter_map(Value::as_u64).sum();
    counts.get(key).and_then(Value::as_u64).unwrap_or(0) as f64 / total as f64
}

/// The worked example of the format goes through, up to the noise of the backend.
async fn example_goes_through(plan: Plan) -> TestHost {
    let host = plan.start().await;
    host.submit("J1", &example(), 500).await;
    let body = host.delivered("J1").await;
    assert!(share(&body, "10") > 0.8, "{body}\n{}", host.log());
    host
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_of_every_form_run_the_example_with_its_bits_in_order() {
    let Some(venv) = venv() else { return };
    for keys in [
        "backend: qiskit_aer:AerSimulator\n",
        "backend: qiskit_aer:AerSimulator\nbackend_args: {method: stabilizer}\n",
        "backend: qiskit_aer:AerSimulator\nbackend_args: {method: matrix_product_state}\n",
        "backend: qiskit_aer:AerSimulator\nbackend_args: {method: extended_stabilizer}\n",
        "backend: backends:noisy\noptimization_level: 3\n",
        "provider: qiskit_aqt_provider:AQTProvider\nbackend_name: offline.noisy\n",
        "primitive: qiskit.primitives:StatevectorSampler\nnum_qubits: 5\n",
        "primitive: qiskit.primitives:BackendSamplerV2\nbackend: qiskit_aer:AerSimulator\n",
        "primitive: qiskit_aer.primitives:SamplerV2\nnum_qubits: 5\nprimitive_args: {seed: 3}\n",
    ] {
        example_goes_through(plan(&venv, keys)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_backend_with_more_than_a_hundred_qubits_the_first_are_used_without_routing() {
    let Some(venv) = venv() else { return };
    // One of IBM's with another native gate than any target has: circuits of cnot and cz are translated.
    let keys = "backend: qiskit_ibm_runtime.fake_provider:FakeSherbrooke\nrun_options: {seed_simulator: 5}\n";
    let host = example_goes_through(plan(&venv, keys).qubits(50)).await;
    let device = device(&host).await;
    assert_eq!((&device["num_qubits"], &device["targets"]), (&json!(50), &json!(["cnot", "cz"])), "{device}");
    assert_eq!((&device["max_shots"], &device["connectivity"]), (&json!(100_000), &json!("directed")));
    let edges = device["edges"].as_array().unwrap();
    assert!(
        edges.contains(&json!([1, 0]))
            && edges.iter().flat_map(|e| e.as_array()).flatten().all(|q| q.as_u64() < Some(50))
    );
    host.wait_log("fake_sherbrooke has 127 qubits, of which the first 50 are used").await;
    let circuit = Circuit { gates: vec![json!({ "gate": "cz", "qubits": [0, 2] })], ..Circuit::new(3) };
    host.submit("J2", &circuit, 10).await;
    let error = host.failure("J2").await;
    assert!(error.contains("no coupling between the qubits 0 and 2"), "{error}");
    // Coupled in one direction only: turned around, and on the same two qubits.
    let circuit = Circuit::new(2).rx(0, std::f64::consts::PI).cx(0, 1);
    host.submit("J3", &circuit, 200).await;
    assert!(share(&host.delivered("J3").await, "11") > 0.8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backends_of_iqm_run_also_those_whose_qubits_meet_in_a_resonator() {
    let Some(venv) = iqm_venv() else { return };
    // The import of IQM's client alone takes many seconds, so the executor is created as rarely as can be.
    let limit = Duration::from_secs(120);
    let run = async |keys: &str, circuit: &Circuit| {
        let host = plan(&venv, keys).prepare().await;
        let file = host.dir().join("circuit.json");
        std::fs::write(&file, circuit.json().to_string()).unwrap();
        let file = file.display().to_string();
        let said = host.cli_within(limit, &["run", &file, "--shots", "500", "--json"]).await;
        assert_eq!(said.code, 0, "{}", said.text());
        serde_json::from_str::<Value>(&said.out).expect("JSON")
    };
    let body = run("backend: iqm.qiskit_iqm:IQMFakeApollo\n", &example()).await;
    assert!(share(&body, "10") > 0.8, "{body}");
    let turned = Circuit::new(2).rx(0, std::f64::consts::PI).cx(0, 1);
    let body = run("backend: iqm.qiskit_iqm:IQMFakeDeneb\n", &turned).await;
    assert!(share(&body, "11") > 0.7, "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_with_65535_qubits_is_opened_and_used_at_once() {
    let Some(venv) = venv() else { return };
    let keys = "backend: backends:Line\nbackend_args: {num_qubits: 65535}\n";
    let host = plan(&venv, keys).qubits(50).start().await;
    let told = device(&host).await;
    assert_eq!((&told["num_qubits"], &told["max_shots"]), (&json!(50), &json!(8192)), "{told}");
    assert_eq!(told["edges"].as_array().map(Vec::len), Some(49));
    let start = std::time::Instant::now();
    host.submit("J1", &Circuit::new(50).cx(48, 49).measure(&[49, 3, 49]), 10).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "010": 10 }));
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blanks_are_removed_and_qubits_that_are_measured_twice_are_measured_once() {
    let Some(venv) = venv() else { return };
    let keys = "backend: backends:Line\nbackend_args: {blanks: true}\n";
    let host = plan(&venv, keys).start().await;
    // The device says that the last qubit of its register is 1, which is the third that is measured.
    host.submit("J1", &Circuit::new(3).measure(&[2, 0, 2, 1]), 10).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "0001": 10 }));
    host.submit("J2", &Circuit::new(3).measure(&[]), 10).await;
    assert_eq!(host.delivered("J2").await["counts"], json!({ "": 10 }));
    assert_eq!(notes(&host), ["run 1"], "without measurements the device is not used");
    host.wait_log("the job is job-4711 of line").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gates_come_as_they_are_and_options_are_passed_on() {
    let Some(venv) = venv() else { return };
    let keys = "backend: backends:Recording\nrun_options: {seed_simulator: 3}\n";
    let host = plan(&venv, keys).start().await;
    let mut circuit = Circuit::new(3).rx(0, 0.5).ry(1, 0.5).measure(&[0, 0, 2]);
    circuit.gates.push(json!({ "gate": "cz", "qubits": [0, 1] }));
    host.submit("J1", &circuit, 10).await;
    host.delivered("J1").await;
    let ran = "run 1 of 10 shots, cz+measure+rx+ry, bits {2}, options ['seed_simulator']";
    assert_eq!(notes(&host), [ran]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_one_run_of_a_list_for_each_number_of_shots() {
    let Some(venv) = venv() else { return };
    // The first job keeps the device busy, so that the others are read ahead and come in one batch.
    let keys = "backend: backends:Line\nbackend_args: {wait: 1.0}\n";
    let host = plan(&venv, keys).env("CODA_PREFETCH", "20").start().await;
    host.submit("first", &Circuit::new(3), 10).await;
    eventually("it runs", async || !notes(&host).is_empty()).await;
    for (id, shots) in [("a", 10), ("b", 20), ("c", 10)] {
        host.submit(id, &Circuit::new(3), shots).await;
    }
    let far = Circuit { gates: vec![json!({ "gate": "cz", "qubits": [0, 2] })], ..Circuit::new(3) };
    host.submit("far", &far, 10).await;
    for (id, shots) in [("first", 10), ("a", 10), ("b", 20), ("c", 10)] {
        assert_eq!(host.delivered(id).await["counts"], json!({ "001": shots }), "{id}");
    }
    assert!(host.failure("far").await.contains("no coupling between the qubits 0 and 2"));
    assert_eq!(notes(&host), ["run 1", "run 2", "run 1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_reaches_the_providers_job() {
    let Some(venv) = venv() else { return };
    let keys = "backend: backends:Line\nbackend_args: {wait: 600}\n";
    let mut host = plan(&venv, keys).start().await;
    let pid = host.process().pid();
    for id in ["J1", "J2"] {
        host.submit(id, &Circuit::new(3), 10).await;
        eventually("it runs", async || {
            host.log().matches("the job is job-4711").count() == id[1..].parse::<usize>().unwrap()
        })
        .await;
        host.request_cancel(id).await;
        host.wait_state(id, "cancelled").await;
    }
    host.wait_nothing_pending().await;
    let expected = ["run 1", "cancel", "run 1", "cancel"];
    eventually("both jobs of the provider are cancelled", async || notes(&host) == expected).await;
    assert!(!host.log().contains("its process is killed"), "{}", host.log());
    assert_eq!(host.process().pid(), pid);
    // A provider that can't: told once, and the device is not used before the run has ended.
    let keys = "backend: backends:Uncancellable\nbackend_args: {wait: 1.5}\n";
    let host = plan(&venv, keys).start().await;
    for n in 1..=2 {
        let id = format!("J{n}");
        host.submit(&id, &Circuit::new(3), 10).await;
        eventually("it runs", async || host.log().matches("the job is job-4711").count() == n).await;
        host.request_cancel(&id).await;
        host.wait_state(&id, "cancelled").await;
        host.wait_nothing_pending().await;
    }
    assert_eq!(host.log().matches("line can't cancel its jobs").count(), 1, "{}", host.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_providers_and_mistakes_in_the_config_say_what_to_do() {
    let Some(venv) = venv() else { return };
    let provider = "provider: backends:Provider\nbackend_name: line-5\n";
    let mut host =
        plan(&venv, "").env("ACME_TOKEN", "s3cret-token").env("BAD_TOKEN", "wr0ng-token").prepare().await;
    std::fs::write(host.dir().join("token"), "s3cret-token\n").unwrap();
    let file = host.dir().join("token").display().to_string();
    let write = |host: &TestHost, keys: &str| {
        host.write_device(&format!("executor_factory: coda_qiskit:create_executor\n{keys}"));
    };
    for good in ["token_env: ACME_TOKEN".to_string(), format!("token_file: {file}")] {
        write(&host, &format!("{provider}provider_args: {{url: 'https://qpu.example', {good}}}\n"));
        assert_eq!(device(&host).await["num_qubits"], 5);
    }
    let args = "provider_args: {url: u, token_env: ACME_TOKEN}\n";
    for (keys, says) in [
        ("", "set backend, provider or primitive to <module>:<attribute>"),
        ("backend: qiskit_acme:Backend\n", "there is no module 'qiskit_acme'"),
        ("backend: qiskit_aer:NoSuch\n", "has no attribute 'NoSuch'"),
        ("backend: qiskit_aer\n", "write <module>:<attribute>"),
        ("backend: json:dumps\nbackend_args: {obj: 1}\n", "which is not a Qiskit backend"),
        ("backend: backends:Line\nbackend_args: {colour: red}\n", "backend_args do not fit"),
        ("backend: backends:Line\noptimization_level: 4\n", "set it to 0, 1, 2 or 3"),
        ("backend: backends:Line\nrun_options: {shots: 5}\n", "run_options sets shots"),
        ("primitive: qiskit.primitives:StatevectorSampler\n", "set num_qubits"),
        ("backend: backends:Sizeless\n", "does not tell its number of qubits; set num_qubits"),
        ("backend: backends:Targetless\n", "which is not a Qiskit backend"),
        ("backend: backends:Runless\n", "has no run; set primitive"),
        (&format!("provider: backends:Provider\nbackend_name: line-9\n{args}"), "it has line-3, line-5"),
        (&format!("{provider}provider_args: {{url: u, token: s3cret-token}}\n"), "set token_env to the name"),
        (
            &format!("{provider}provider_args: {{url: u, more: [{{token: s3cret-token}}]}}\n"),
            "set token_env to the name",
        ),
        (&format!("{provider}provider_args: {{url: u, token_file: /dev/null}}\n"), "which is not a file"),
        ("backend: backends:Line\noptimization_level: true\n", "set it to 0, 1, 2 or 3"),
        (
            &format!("{provider}provider_args: {{url: u, token_env: NO_SUCH}}\n"),
            "NO_SUCH, and this environment variable is not set",
        ),
        (
            &format!("{provider}provider_args: {{url: u, token_file: /no/such}}\n"),
            "/no/such, which can't be read",
        ),
        (&format!("{provider}provider_args: {{url: u, token_env: BAD_TOKEN}}\n"), "refused the credentials"),
    ] {
        write(&host, keys);
        let said = host.cli(&["plugin", "device"]).await;
        assert!(said.code == 3 && said.err.contains(says), "{keys}: {}", said.text());
        assert!(!said.text().contains("s3cret-token"), "{}", said.text());
        assert!(!said.text().contains("wr0ng-token"), "{}", said.text());
    }
    write(&host, "backend: backends:queue_timeout\nbackendargs: {}\n");
    host.start().await;
    host.submit("J1", &Circuit::new(3), 10).await;
    let error = host.failure("J1").await;
    assert!(error.contains("line did not answer in time, or its queue is too long: "), "{error}");
    host.wait_log("keys of device.yaml that coda_qiskit does not know have no effect: backendargs").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_of_every_form_are_taken_or_refused_in_words() {
    let Some(venv) = venv() else { return };
    let host = plan(&venv, "").prepare().await;
    let file = host.dir().join("circuit.json");
    std::fs::write(&file, Circuit::new(3).json().to_string()).unwrap();
    let file = file.display().to_string();
    for (keys, expected) in [
        ("Answers\nbackend_args: {form: memory}", Ok(json!({ "000": 1, "001": 9 }))),
        ("Answers\nbackend_args: {form: floats}", Ok(json!({ "001": 10 }))),
        ("Sizeless\nnum_qubits: 3", Ok(json!({ "001": 10 }))),
        ("Answers\nbackend_args: {form: nothing}", Err("No counts for experiment")),
        ("Answers\nbackend_args: {form: empty}", Err("line returned no counts")),
        ("Answers\nbackend_args: {form: zeros}", Err("line returned no counts")),
        (
            "Answers\nbackend_args: {form: half}",
            Err("the count 0.5 for the key '100', expected a whole number"),
        ),
        ("Answers\nbackend_args: {form: hex}", Err("the key '0x4', expected 3 bits")),
        ("Answers\nbackend_args: {form: list}", Err("returned list as counts")),
        ("Answers\nbackend_args: {form: none}", Err("returned NoneType as counts")),
        ("Answers\nbackend_args: {form: no_result}", Err("returned NoneType as its result")),
    ] {
        host.write_device(&format!(
            "executor_factory: coda_qiskit:create_executor\nbackend: backends:{keys}\n"
        ));
        let said = host.cli(&["run", &file, "--shots", "10", "--json"]).await;
        match expected {
            Ok(counts) => {
                let body: Value = serde_json::from_str(&said.out).unwrap_or_default();
                assert_eq!(body["counts"], counts, "{keys}: {}", said.text());
            }
            Err(says) => assert!(said.code == 1 && said.text().contains(says), "{keys}: {}", said.text()),
        }
    }
}

#[test]
fn the_carried_modules_are_typed() {
    let Some(venv) = venv() else { return };
    let carried = coda_host_tests::artifacts::project_file("host/executor/src/executor/python/carried");
    let mut mypy = std::process::Command::new(venv.join("bin/python"));
    mypy.args(["-m", "mypy", "--strict", "--ignore-missing-imports", "--cache-dir=/dev/null", "coda_qiskit"]);
    let done = mypy.arg("coda_executor.py").current_dir(&carried).env("MYPYPATH", &carried).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}
