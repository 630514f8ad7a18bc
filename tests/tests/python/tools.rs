//! The commands with an executor in Python code: check, inspect, run, dev, reload, doctor, status.

use std::time::Duration;

use coda_host_tests::artifacts::circuit_file;
use coda_host_tests::python::{executors, lab_job, notes, venv};
use coda_host_tests::{Exit, Plan, TestHost, example};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_check_passes_on_a_right_executor_and_names_reversed_bits() {
    let Some(venv) = venv() else { return };
    let mut host = Plan::python(&venv, "statevector:create_executor", "num_qubits: 4\n").prepare().await;
    let device = host.dir().join("device.yaml").display().to_string();
    // Each of some thirty cases starts an interpreter.
    let limit = Duration::from_secs(300);
    let said = host.cli_within(limit, &["plugin", "check", "--device", &device, "--quick", "--json"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    let report: Value = serde_json::from_str(&said.out).unwrap();
    let cases = report["cases"].as_array().unwrap();
    let verdict = |name: &str| cases.iter().find(|c| c["case"] == name).unwrap()["verdict"].clone();
    for case in ["load", "create", "bit-order", "gates-two-qubits", "batch", "cancel-unknown", "hooks"] {
        assert_eq!(verdict(case), "passed", "{case}");
    }
    for case in ["descriptor", "scan-time", "left-behind", "concurrent-runs"] {
        assert_eq!(verdict(case), "skipped", "{case}");
    }
    host.write_device("executor_factory: statevector:backwards\nnum_qubits: 4\n");
    let only = ["plugin", "check", "--device", &device, "--only", "bit-order", "--quick"];
    let said = host.cli(&only).await;
    assert!(said.code == 1 && said.out.contains("CODA_EXECUTOR_BIT_ORDER=reversed"), "{}", said.text());
    host.set("CODA_EXECUTOR_BIT_ORDER", "reversed");
    let said = host.cli(&only).await;
    assert_eq!(said.code, 0, "{}", said.text());
    // A factory that fails ends the check, with its own words.
    host.write_device("executor_factory: lab:raises\n");
    let said = host.cli(&["plugin", "check", "--device", &device, "--quick"]).await;
    assert!(said.code == 1 && said.out.contains("the cryostat is warm"), "{}", said.text());
    assert!(said.out.contains("no executor can be created, see above"), "{}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_tells_versions_and_hooks_without_creating_the_executor() {
    let Some(venv) = venv() else { return };
    let mut host = Plan::python(&venv, "lab:told", "").prepare().await;
    let said = host.cli(&["plugin", "inspect", "lab:Batches", "--json"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    let told: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&told["factory"], &told["hooks"]), (&json!("lab:Batches"), &json!("batch_run")));
    assert_eq!((&told["coda_node"], &told["chosen_by"]), (&json!("0.1.1"), &json!("CODA_EXECUTOR_PYTHON")));
    assert_eq!(told["interpreter"], venv.join("bin/python").display().to_string());
    let said = host.cli(&["plugin", "inspect", "lab:told"]).await;
    assert!(said.code == 0 && said.out.contains("known once it is created"), "{}", said.text());
    assert!(notes(&host).is_empty(), "the factory was not called: {:?}", notes(&host));
    host.unset("CODA_EXECUTOR_PYTHON");
    let python = venv.display().to_string();
    let said = host.cli(&["plugin", "inspect", "missing.package:make", "--python", &python]).await;
    assert!(said.code == 3 && said.err.contains("no package 'missing'"), "{}", said.text());
    let said = host.cli(&["plugin", "inspect", "lab:told", "--python", "/nowhere"]).await;
    assert!(
        said.code == 3 && said.err.contains("'/nowhere', which is neither an interpreter"),
        "{}",
        said.text()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_status_and_doctor_tell_the_interpreter_and_why() {
    let Some(venv) = venv() else { return };
    let mut host = Plan::python(&venv, "lab:create_executor", "").prepare().await;
    let finding = async |host: &TestHost, name: &str| {
        let said = host.cli(&["doctor", "--json"]).await;
        let findings: Vec<Value> =
            serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {}", said.text()));
        findings
            .into_iter()
            .find(|f| f["check"] == name)
            .unwrap_or_else(|| panic!("no {name}: {}", said.text()))
    };
    let plugin = finding(&host, "plugin").await;
    let found = plugin["found"].as_str().unwrap();
    assert!(found.contains("opens the device lab") && found.contains("coda-node 0.1.1"), "{plugin}");
    assert!(found.contains("bits as the executor returns them"), "{plugin}");
    assert!(
        finding(&host, "isolation").await["found"].as_str().unwrap().contains("the plugin's process runs as")
    );

    let said = host.cli(&["config"]).await;
    let line = format!("python is {}, chosen by CODA_EXECUTOR_PYTHON", venv.join("bin/python").display());
    assert!(said.out.contains(&line), "{}", said.text());

    host.start().await;
    let ready = host.ready().await.1;
    let python = &ready["plugin"]["python"];
    assert_eq!(python["factory"], "lab:create_executor", "{ready}");
    assert_eq!(python["interpreter"], venv.join("bin/python").display().to_string());
    let said = host.cli(&["status"]).await;
    assert!(said.out.contains("lab:create_executor of lab"), "{}", said.text());
    assert!(said.out.contains("coda-node 0.1.1, chosen by CODA_EXECUTOR_PYTHON"), "{}", said.text());
    // Beside a running host nothing is created.
    let plugin = finding(&host, "plugin").await;
    assert!(
        plugin["found"].as_str().unwrap().contains("lab:create_executor of lab; not created"),
        "{plugin}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_swaps_python_code_and_plugins_between_two_runs() {
    let Some(venv) = venv() else { return };
    let mut host = Plan::python(&venv, "lab:create_executor", "").start().await;
    let reload = async |host: &TestHost| host.cli(&["reload"]).await;
    host.write_device("executor_factory: lab:batches\n");
    let said = reload(&host).await;
    assert!(said.code == 0 && said.out.contains("reloaded: lab"), "{}", said.text());
    assert_eq!(host.ready().await.1["plugin"]["python"]["factory"], "lab:batches");
    host.send(&lab_job(&host, "J1", "ok", 7)).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "00": 7 }));
    // One that can't be created, and one that is not there: the former one works on.
    for (factory, says) in [("lab:raises", "the cryostat is warm"), ("missing:make", "no package 'missing'")]
    {
        host.write_device(&format!("executor_factory: {factory}\n"));
        let said = reload(&host).await;
        assert!(said.code != 0 && said.text().contains(says), "{factory}: {}", said.text());
        host.send(&lab_job(&host, factory, "ok", 7)).await;
        assert_eq!(host.delivered(factory).await["counts"], json!({ "00": 7 }), "{factory}");
    }
    // To a plugin and back.
    host.write_device("executor_factory: coda_simulator\nslots: 1\nseed: 1\n");
    assert_eq!(reload(&host).await.code, 0, "{}", host.log());
    host.submit("J3", &example(), 20).await;
    assert_eq!(host.delivered("J3").await["counts"], json!({ "10": 20 }));
    assert!(host.ready().await.1["plugin"]["python"].is_null());
    host.write_device("executor_factory: lab:create_executor\n");
    assert_eq!(reload(&host).await.code, 0, "{}", host.log());
    host.send(&lab_job(&host, "J4", "lost", 10)).await;
    assert_eq!(host.delivered("J4").await["shots_completed"], 10);
    assert_eq!(host.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_under_load_loses_no_job_and_runs_none_twice() {
    const JOBS: usize = 60;
    let Some(venv) = venv() else { return };
    let mut host = Plan::python(&venv, "acme_versions:create_executor", "").prepare().await;
    let packages = host.dir().join("packages");
    std::fs::create_dir(&packages).unwrap();
    // Each version tells itself in the time of its results.
    let publish = |version: u32| {
        let text = format!(
            "from lab import Lab, result, zeros\n\n\nclass Version(Lab):\n    async def run(self, ir, shots):\n        \
             await super().run(ir, shots)\n        return result({{zeros(ir): shots}}, {version}.0, shots)\n\n\n\
             create_executor = Version\n"
        );
        std::fs::write(packages.join("acme_versions.py"), text).unwrap();
    };
    publish(1);
    let path = format!("{}:{}", executors().display(), packages.display());
    host.set("PYTHONPATH", path);
    host.start().await;
    let send = async |n: usize| {
        host.send(&lab_job(&host, &format!("J{n}"), "sleep:0.05", 10 + n as u32)).await;
    };
    for n in 0..JOBS {
        send(n).await;
    }
    for version in 2..5 {
        publish(version);
        let said = host.cli(&["reload"]).await;
        assert!(said.code == 0 && said.out.contains("no run for"), "{}", said.text());
    }
    // The others may have ended before the last reload.
    send(JOBS).await;
    let mut versions = Vec::new();
    for n in 0..=JOBS {
        let id = format!("J{n}");
        let body = host.delivered(&id).await;
        assert_eq!(body["counts"], json!({ "00": 10 + n }));
        assert_eq!(host.attempts(&id), (1, 1), "{id}");
        versions.push(body["execution_time_ms"].as_f64().unwrap());
    }
    assert!(versions.is_sorted(), "no job ran on a former version after a later one: {versions:?}");
    assert_eq!(versions.last(), Some(&4.0), "{versions:?}");
    let begun = notes(&host).iter().filter(|n| n.starts_with("begins")).count();
    assert_eq!(begun, JOBS + 1, "each job ran once");
    host.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_and_dev_work_as_with_a_plugin() {
    let Some(venv) = venv() else { return };
    let host =
        Plan::python(&venv, "statevector:create_executor", "num_qubits: 12\nseed: 3\n").prepare().await;
    let bell = circuit_file("bell.json").display().to_string();
    let said = host.cli(&["run", &bell, "--shots", "100", "--json"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    let counts: Value = serde_json::from_str(&said.out).unwrap();
    let counts = counts["counts"].as_object().unwrap();
    assert!(counts.keys().all(|key| key == "00" || key == "11"), "{counts:?}");
    let device = host.dir().join("device.yaml").display().to_string();
    let dir = host.dir().join("dev").display().to_string();
    let said = host.cli(&["dev", "--device", &device, "--dir", &dir, "--demo", "--once"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    assert!(said.out.contains("statevector: 12 qubits"), "{}", said.text());
}
