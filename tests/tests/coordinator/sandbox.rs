//! A private peer network in one command: `coda-host dev --peers`.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use coda_host_tests::artifacts::{binary, project_file};
use coda_host_tests::checkpoints::assert_checkpoints_of;
use coda_host_tests::process::children;
use coda_host_tests::{eventually, said};

#[test]
fn the_page_of_the_peer_network_begins_with_one_that_runs() {
    assert_checkpoints_of("docs/peers.md", " network", None, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_lives_until_ctrl_c_takes_further_circuits_and_leaves_no_process() {
    let device = project_file("device-configs/simulator.yaml");
    let mut command = Command::new(binary());
    command.args(["dev", "--peers", "2", "--device"]).arg(&device).stdout(Stdio::piped());
    // A network of another site must not be joined.
    command
        .env("CODA_PEER_BOOTSTRAP", "/ip4/127.0.0.1/tcp/1")
        .env("CODA_API_TOKEN", "of-another-coordinator");
    let mut dev = command.spawn().unwrap();
    let pid = dev.id().cast_signed();
    let lines = BufReader::new(dev.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut url = None;
    for line in lines {
        if let Some((_, found)) = line.split_once("coordinator  ") {
            url = found.split_whitespace().next().map(String::from);
        }
        if line.starts_with("Peers that come and go") {
            break;
        }
    }
    let members = children(pid);
    assert_eq!(members.len(), 3, "a coordinator and two peers");
    let dir = tempfile::tempdir().unwrap();
    let env = [("CODA_STATE_DIR".to_string(), dir.path().display().to_string())].into();
    let circuit = project_file("tests/circuits/bell.qasm").display().to_string();
    let url = url.expect("the coordinator's address is printed");
    let answer = said(&["coordinate", &circuit, "--url", &url, "--json"], &env, dir.path()).await;
    assert!(answer.code == 0 && answer.out.contains("\"completed\""), "{}", answer.text());

    let listed = said(&["peers", "--url", &url], &env, dir.path()).await;
    assert!(listed.code == 0 && listed.out.matches("healthy").count() == 2, "{}", listed.text());
    let json = said(&["peers", "--url", &url, "--json"], &env, dir.path()).await;
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["peers"].as_array().map(Vec::len), Some(2), "{json}");

    coda_host::sys::signal(dev.id(), libc::SIGINT).unwrap();
    eventually("it has ended", async || dev.try_wait().unwrap().is_some()).await;
    assert!(dev.wait().unwrap().success());
    let left: Vec<i32> =
        members.into_iter().filter(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_can_not_start_is_named_with_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("device.yaml");
    std::fs::write(&device, "executor_factory: coda_simulator\nnum_qubits: none\n").unwrap();
    let device = device.display().to_string();
    let env = [("TMPDIR".to_string(), dir.path().display().to_string())].into();
    let answer = said(&["dev", "--peers", "2", "--device", &device, "--once"], &env, dir.path()).await;
    assert_eq!(answer.code, 1, "{}", answer.text());
    for part in ["peer-", "of the network ended", "num_qubits"] {
        assert!(answer.err.contains(part), "{part}: {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_of_peers_says_when_no_coordinator_answers() {
    let dir = tempfile::tempdir().unwrap();
    let env = [("CODA_STATE_DIR".to_string(), dir.path().display().to_string())].into();
    let answer = said(&["peers", "--url", "http://127.0.0.1:9"], &env, dir.path()).await;
    assert!(answer.code == 4 && answer.err.contains("coda-host coordinator"), "{}", answer.text());
}
