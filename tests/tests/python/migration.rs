//! From the Python node to coda-host and back, on one machine: same directory, same environment, same credentials.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use coda_host_tests::python::{executors, venv};
use coda_host_tests::{Exit, Plan, TestHost, eventually, ghz};
use serde_json::Value;

/// The Python node itself, as a site starts it; killed when dropped.
struct PythonNode(Child);

impl PythonNode {
    /// With its credentials in `dir`.
    async fn start(host: &TestHost, venv: &Path, dir: &Path) -> PythonNode {
        let log = File::options().create(true).append(true).open(host.dir().join("node.log")).unwrap();
        let mut command = Command::new(venv.join("bin/coda-node"));
        command.env_clear().arg("start").envs(host.env.iter().filter(|(name, _)| {
            // What a site of the Python node has set; the tests' short times are coda-host's.
            ["CODA_WEBAPP_URL", "CODA_DEVICE_CONFIG", "CODA_PORT", "CODA_HOST", "PYTHONPATH", "LAB_NOTES"]
                .contains(&name.as_str())
        }));
        command
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", host.dir())
            .env("TMPDIR", dir)
            .env("CODA_VPN_REQUIRED", "false")
            .current_dir(host.dir())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        if !dir.join("coda.config").exists() {
            command.env("CODA_NODE_TOKEN", coda_host_tests::TOKEN);
        }
        let node = PythonNode(command.spawn().expect("coda-node can be started"));
        eventually("coda-node is ready", async || {
            host.try_get("/ready").await.is_some_and(|(status, _)| status == 200)
        })
        .await;
        node
    }

    async fn stop(mut self) {
        coda_host::sys::signal(self.0.id(), libc::SIGTERM).unwrap();
        eventually("coda-node has ended", async || self.0.try_wait().unwrap().is_some()).await;
    }
}

impl Drop for PythonNode {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

async fn counts(host: &TestHost, id: &str) -> Value {
    host.submit(id, &ghz(5), 500).await;
    let body = host.delivered(id).await;
    assert_eq!(body["status"], "completed", "{body}");
    body["counts"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_job_runs_under_coda_host_with_the_same_counts_and_the_way_back_is_open() {
    let Some(venv) = venv() else { return };
    let plan = Plan::device("executor_factory: statevector:single\nnum_qubits: 5\nseed: 7\n").as_own_user();
    let plan = plan.qpu("moves");
    let path = format!("{}:{}", venv.join("bin").display(), std::env::var("PATH").unwrap());
    // Nothing is set for coda-host: the interpreter is that of `coda-node` on PATH.
    let plan = plan.env("PATH", path).env("PYTHONPATH", executors().display().to_string());
    let mut host = plan.prepare().await;
    std::fs::create_dir(host.state_dir()).unwrap();
    host.choose_port();

    let node = PythonNode::start(&host, &venv, &host.state_dir()).await;
    let theirs = counts(&host, "J1").await;
    node.stop().await;

    host.start().await;
    let ours = counts(&host, "J2").await;
    assert_eq!(ours, theirs, "the seeded executor's first job, under either");
    let python = host.ready().await.1["plugin"]["python"].clone();
    assert!(python["chosen_by"].as_str().unwrap().contains("bin/coda-node"), "{python}");
    assert_eq!(host.stop().await, Exit::Code(0));

    let node = PythonNode::start(&host, &venv, &host.state_dir()).await;
    assert_eq!(counts(&host, "J3").await, theirs);
    node.stop().await;
    assert!(host.cloud.state().bad_tokens == 0 && host.pending().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_what_a_switch_would_change_and_its_remedies_make_one() {
    let Some(venv) = venv() else { return };
    let plan = Plan::device("executor_factory: statevector:single\nnum_qubits: 5\nseed: 7\n").as_own_user();
    let mut host = plan.qpu("looks").env("PYTHONPATH", executors().display().to_string()).prepare().await;
    std::fs::create_dir(host.state_dir()).unwrap();
    host.choose_port();
    // As where the unit of coda-host has another directory than coda-node, and starts with an empty environment.
    let theirs = host.dir().join("tmp");
    std::fs::create_dir(&theirs).unwrap();
    let node = PythonNode::start(&host, &venv, &theirs).await;
    let before = counts(&host, "J1").await;
    let path = host.env.remove("PYTHONPATH").unwrap();
    // As before the first start under systemd: this host has nothing yet.
    let said = host.cli(&["doctor"]).await;
    for part in ["warn  coda-node", "install -m 600", "set CODA_EXECUTOR_PYTHON="] {
        assert!(said.out.contains(part), "{part}: {}", said.text());
    }
    assert!(!said.out.contains("opens the device"), "{}", said.text());
    // Here the directory tells that it is the same site; with stored credentials the QPU's id would.
    host.set("CODA_STATE_DIR", theirs.display().to_string());
    let said = host.cli(&["doctor"]).await;
    assert!(said.code == 1 && said.out.contains("fail  coda-node"), "{}", said.text());
    let python = venv.join("bin/python");
    for part in [
        format!("PYTHONPATH={path}; here it differs or is not set"),
        format!("set CODA_EXECUTOR_PYTHON={}", python.display()),
    ] {
        assert!(said.out.contains(&part), "{part}: {}", said.text());
    }
    assert!(!said.out.contains(coda_host_tests::TOKEN), "{}", said.text());

    host.env.insert("PYTHONPATH".into(), path);
    host.set("CODA_EXECUTOR_PYTHON", python.display().to_string());
    host.set("CODA_VPN_REQUIRED", "false");
    let said = host.cli(&["doctor"]).await;
    assert!(said.out.contains("pass  switch       coda-host uses what coda-node uses"), "{}", said.text());
    assert!(said.out.contains("in use while coda-node runs"), "{}", said.text());
    assert!(said.out.contains("statevector:single of statevector; not created"), "{}", said.text());
    node.stop().await;

    // Both files elsewhere, as under systemd; the config still names the key by its old path.
    let ours = host.dir().join("state-of-the-unit");
    std::fs::create_dir(&ours).unwrap();
    for name in ["coda.config", "coda-private-key"] {
        let done = Command::new("install").args(["-m", "600"]).arg(theirs.join(name)).arg(&ours).status();
        assert!(done.unwrap().success());
    }
    let kept = host.dir().join("kept");
    std::fs::rename(&theirs, &kept).unwrap();
    host.set("CODA_STATE_DIR", ours.display().to_string());
    host.set("CODA_NODE_TOKEN", "");
    host.start().await;
    assert_eq!(counts(&host, "J2").await, before);
    assert_eq!(host.stop().await, Exit::Code(0));

    // And back: coda-node finds its files as it left them.
    std::fs::rename(&kept, &theirs).unwrap();
    let node = PythonNode::start(&host, &venv, &theirs).await;
    assert_eq!(counts(&host, "J3").await, before);
    node.stop().await;
    assert!(host.pending().await.is_empty());
}
