//! What libraries tell of their devices, and libraries that are refused: no job runs here.

use std::os::unix::fs::PermissionsExt as _;

use coda_host_tests::qdmi::{ddsim, device, ibm, plan, sc};
use coda_host_tests::{TestHost, bell, eventually};
use serde_json::{Value, json};

/// `plugin device` as JSON.
async fn shown(host: &TestHost) -> Value {
    let said = host.cli(&["plugin", "device", "--json"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    serde_json::from_str(&said.out).expect("JSON")
}

/// The start fails with this text.
async fn refused(host: &TestHost, says: &str) {
    let said = host.cli(&["plugin", "device"]).await;
    assert!(said.code == 3 && said.err.contains(says), "{says}: {}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_described_device_has_its_qubits_and_edges_and_refuses_jobs() {
    let Some(library) = sc() else { return };
    let host = plan(&library, "device: mqt.sc.iqm.garnet\n").qubits(20).start().await;
    let told = shown(&host).await;
    assert_eq!((&told["num_qubits"], &told["targets"]), (&json!(20), &json!(["cz"])), "{told}");
    assert_eq!(told["edges"].as_array().map(Vec::len), Some(30), "one edge for each pair: {told}");
    let carried = || {
        let state = host.cloud.state();
        state
            .heartbeats
            .iter()
            .any(|beat| beat.body["connectivity"].as_array().is_some_and(|e| e.len() == 30))
    };
    eventually("the heartbeat carries the edges", async || carried()).await;
    host.submit("J1", &bell(), 10).await;
    let error = host.failure("J1").await;
    assert!(error.contains("takes no program format that is known here"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bit_order_must_be_known_and_the_wrong_one_is_found() {
    let Some(library) = ddsim() else { return };
    for (order, code) in [("first_right", 0), ("first_left", 1)] {
        let host = plan(&library, &format!("bit_order: {order}\n")).prepare().await;
        let file = host.dir().join("device.yaml").display().to_string();
        let only = ["--only", "bit-order", "--tolerance", "0.1"];
        let check = [&["plugin", "check", "--device", &file][..], &only].concat();
        let said = host.cli(&check).await;
        assert_eq!(said.code, code, "{order}: {}", said.text());
        assert_eq!(said.out.contains("the keys are reversed"), code == 1, "{}", said.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manifest_and_the_file_itself_tell_the_prefix() {
    let (Some(ddsim), Some(sc)) = (ddsim(), sc()) else { return };
    let dir = ddsim.parent().expect("a directory").to_path_buf();
    let host = plan(&dir, "device: mqt.ddsim.default\n").prepare().await;
    assert_eq!(shown(&host).await["num_qubits"], 50);
    host.write_device(&device(&dir, ""));
    refused(&host, "set it to one of").await;
    host.write_device(&device(&ddsim, "device: mqt.sc.iqm.garnet\n"));
    refused(&host, "correct one of them").await;
    host.write_device(&device(&sc, "device: no.such\n"));
    refused(&host, "mqt.sc.iqm.garnet").await;
    host.write_device(&device(&ddsim, "prefix: MQT_SC\n"));
    refused(&host, "lacks what a QDMI library has: MQT_SC_QDMI_device_").await;
    host.write_device(&device(&ddsim, "session: {custom4: x}\n"));
    refused(&host, "`session.custom4`").await;
    host.write_device(&device(&ddsim, "format: iqm_json\n"));
    refused(&host, "takes qasm3, qasm2").await;
    let own = coda_host_tests::artifacts::library("coda_simulator");
    host.write_device(&device(&own, ""));
    refused(&host, "is not a QDMI device library").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_secrets_are_shown_nowhere() {
    let Some(library) = ibm() else { return };
    // No one listens there.
    let keys = "bit_order: first_right\nsession: {token: s3cret-token, custom1: ibm_berlin, \
                base_url: 'http://127.0.0.1:1', auth_url: 'http://127.0.0.1:1'}\n";
    let host = plan(&library, keys).prepare().await;
    let said = host.cli(&["plugin", "device"]).await;
    assert_eq!(said.code, 3, "{}", said.text());
    assert!(said.err.contains("set were auth_url, base_url, custom1, token"), "{}", said.text());
    assert!(!said.text().contains("s3cret-token"), "{}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_root_a_library_that_others_may_change_is_refused() {
    let Some(library) = ddsim() else { return };
    if !coda_host_tests::process::is_root() {
        eprintln!("SKIPPED: only root runs what only root may change");
        return;
    }
    let host = plan(&library, "").prepare().await;
    let copy = host.dir().join("libmqt-core-qdmi-ddsim-device.so");
    std::fs::copy(&library, &copy).expect("a copy");
    host.write_device(&device(&copy, ""));
    for (mode, says) in [(0o757, "has mode 0757, so others could change what runs as root"), (0o755, "")] {
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(mode)).expect("the mode");
        let said = host.cli(&["plugin", "device"]).await;
        // Without the other mode it is opened, wherever its companions are.
        assert!(said.err.contains(says), "{mode:o}: {}", said.text());
        assert_eq!(said.err.contains("has mode"), mode == 0o757, "{}", said.text());
    }
}
