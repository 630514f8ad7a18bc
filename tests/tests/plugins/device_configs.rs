//! The device configs that come with the project, and `coda-host run`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use coda_host_tests::artifacts::{circuit_file, project_file};
use coda_host_tests::output;
use serde_json::Value;

/// `coda-host run` with these arguments: exit status, output, errors.
async fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state").display().to_string();
    let env = BTreeMap::from([("CODA_STATE_DIR".to_string(), state)]);
    let arguments: Vec<&str> = ["run"].iter().chain(arguments).copied().collect();
    let done = output(&arguments, &env, dir.path()).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the output is text");
    (done.status.code(), text(done.stdout), text(done.stderr))
}

fn bell() -> String {
    circuit_file("bell.json").display().to_string()
}

fn configs() -> Vec<PathBuf> {
    let files = std::fs::read_dir(project_file("device-configs")).expect("device-configs is there");
    let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "yaml"));
    files.sort();
    files
}

/// A top-level key of a device config, by its line.
fn key<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.split('#').next().unwrap_or_default().trim())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_config_for_the_simulator_runs_a_bell_pair() {
    let mut tried = 0;
    for path in configs() {
        let text = std::fs::read_to_string(&path).unwrap();
        let simulated = key(&text, "executor_factory").is_some_and(|f| f.contains("coda_simulator"));
        if !simulated || key(&text, "target").is_some_and(|t| t != "cz") {
            continue;
        }
        let path = path.display().to_string();
        let (status, out, errors) = run(&[&bell(), "--device", &path, "--shots", "200", "--json"]).await;
        assert_eq!(status, Some(0), "{path}: {errors}");
        let body: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{path}: {e}: {out}"));
        let counts: BTreeMap<String, u64> = serde_json::from_value(body["counts"].clone()).unwrap();
        let total: u64 = counts.values().sum();
        let alike: u64 = ["00", "11"].iter().filter_map(|k| counts.get(*k)).sum();
        // Simulated noise may spoil some.
        assert!(total == 200 && alike >= 120, "{path}: {counts:?}");
        tried += 1;
    }
    assert!(tried > 0, "device-configs has at least one config for the simulator");
}

fn device(dir: &Path, text: &str) -> String {
    let path = dir.join("device.yaml");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circuit_runs_without_a_cloud() {
    let dir = tempfile::tempdir().unwrap();
    let simulator = device(dir.path(), "executor_factory: coda_simulator\nseed: 1");
    let (status, out, errors) = run(&[&bell(), "--device", &simulator, "--shots", "100"]).await;
    assert_eq!((status, &*errors), (Some(0), ""));
    assert!(out.contains("00") && out.contains("11") && out.contains("100 shots"), "{out}");

    let (status, out, errors) = run(&["nowhere.json", "--device", &simulator]).await;
    assert_eq!((status, &*out), (Some(2), ""));
    assert!(errors.contains("nowhere.json") && errors.contains("to do:"), "{errors}");

    let broken = device(dir.path(), "executor_factory: coda_simulator\nmode: raise");
    let (status, out, errors) = run(&[&bell(), "--device", &broken]).await;
    assert_eq!((status, &*out), (Some(1), ""));
    assert!(errors.contains("the run failed"), "{errors}");

    let small = device(dir.path(), "executor_factory: coda_simulator\nnum_qubits: 1");
    let (status, _, errors) = run(&[&bell(), "--device", &small]).await;
    assert_eq!(status, Some(1));
    assert!(errors.contains("2 qubits, the device coda-simulator has 1"), "{errors}");
}
