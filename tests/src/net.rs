//! A peer network of real processes on loopback: one coordinator, peers with a plugin each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use coda_host::peers::amplitude;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::host_process::{Exit, HostProcess, Said, said};
use crate::wait::eventually_some;

/// Four slots of the exact simulator.
pub const SIMULATOR: &str = "executor_factory: coda_simulator\nnum_qubits: 12\nslots: 4\n";
/// Bytes of each log's end that a failed test shows.
const LOG_TAIL: usize = 10_000;

/// One process of a network.
pub struct Node {
    pub host: HostProcess,
    pub env: BTreeMap<String, String>,
    dir: PathBuf,
    arguments: Vec<&'static str>,
    /// With `/p2p/<id>`.
    pub address: String,
    pub peer_id: String,
    /// Of its local service.
    pub http: String,
}

impl Node {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.join("node.log")).unwrap_or_default()).into_owned()
    }

    /// Starts it again with the same state; its addresses may be others.
    pub async fn restart(&mut self) {
        let from = self.log().len();
        self.host = HostProcess::spawn(&self.arguments, &self.env, &self.dir, &self.dir.join("node.log"));
        self.find(from).await;
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.host.kill();
    }

    pub async fn stop(&mut self) -> Exit {
        self.host.signal(libc::SIGTERM);
        self.host.wait_exit().await
    }

    /// Waits until it is up and reads from its log where it listens.
    async fn find(&mut self, from: usize) {
        let log = eventually_some("the node is up", async || {
            let log = self.log().split_off(from);
            if let Some(exit) = self.host.ended() {
                panic!("the node ended at once: {exit:?}\n{log}");
            }
            (log.contains("the coordinator is up") || log.contains("coda-host is up")).then_some(log)
        })
        .await;
        let word = |mark: &str| {
            let rest = log.split(mark).nth(1).unwrap_or_else(|| panic!("no {mark} in\n{log}"));
            rest.split([' ', '"', '\n']).next().expect("a first part").to_string()
        };
        self.address = word("the peer network listens address=\"");
        self.peer_id = self.address.rsplit('/').next().expect("a last part").into();
        self.http = match log.contains(" http=") {
            true => word(" http="),
            false => {
                let lock = std::fs::read(self.dir.join("state/coda-host.lock")).expect("the host's lock");
                let holder: Value = serde_json::from_slice(&lock).expect("its JSON");
                holder["address"].as_str().expect("its address").into()
            }
        };
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        exchange(&self.http, request).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_with(path, body, "Content-Type: application/json\r\n").await
    }

    pub async fn post_with(&self, path: &str, body: &Value, headers: &str) -> (u16, Value) {
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        exchange(&self.http, request).await
    }

    pub async fn delete(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.request("DELETE", path, "", "").await;
        (status, body)
    }

    /// The status, the headers in lower case, and the body of any request; of a body that is not JSON the text.
    pub async fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String, Value) {
        let length =
            if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}{length}\r\n{body}"
        );
        let answer = exchange_text(&self.http, request).await;
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        let body = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.into()));
        (status, head.to_ascii_lowercase(), body)
    }

    /// A metric's value, by its name with labels.
    pub async fn metric(&self, name: &str) -> f64 {
        let (status, _, text) = self.request("GET", "/metrics", "", "").await;
        assert_eq!(status, 200);
        let text = text.as_str().expect("text").to_string();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }

    pub async fn submit(&self, qasm: &str, shots: u32) -> String {
        self.submit_with(&json!({ "qasm": qasm, "shots": shots })).await
    }

    /// Submits a job with these fields.
    pub async fn submit_with(&self, job: &Value) -> String {
        let (status, body) = self.post("/api/v1/jobs", job).await;
        assert_eq!(status, 202, "{body}");
        body["job_id"].as_str().expect("an id").into()
    }

    /// Runs a circuit and asks for its final state too.
    pub async fn run_for_state(&self, qasm: &str, shots: u32) -> Value {
        let job = json!({ "qasm": qasm, "shots": shots, "results": ["counts", "state"] });
        self.ended(&self.submit_with(&job).await).await
    }

    pub async fn job(&self, id: &str) -> Value {
        let (status, job) = self.get(&format!("/api/v1/jobs/{id}")).await;
        assert_eq!(status, 200, "{job}");
        job
    }

    /// Waits for a job's end.
    pub async fn ended(&self, id: &str) -> Value {
        eventually_some("the job ends", async || {
            let job = self.job(id).await;
            matches!(job["status"].as_str(), Some("completed" | "failed" | "cancelled")).then_some(job)
        })
        .await
    }

    pub async fn run(&self, qasm: &str, shots: u32) -> Value {
        self.ended(&self.submit(qasm, shots).await).await
    }

    /// Waits until this coordinator may plan on a peer.
    pub async fn knows(&self, peer_id: &str) {
        eventually_some("the coordinator knows the peer", async || {
            let (_, body) = self.get("/api/v1/peers").await;
            let peers = body["peers"].as_array()?.clone();
            let peer = peers.into_iter().find(|p| p["peer_id"] == peer_id)?;
            (peer["health"] == "healthy" && peer["services"].as_array().is_some_and(|s| !s.is_empty()))
                .then_some(())
        })
        .await;
    }

    /// A command in this node's surroundings.
    pub async fn cli(&self, arguments: &[&str]) -> Said {
        said(arguments, &self.env, &self.dir).await
    }
}

async fn exchange_text(address: &str, request: String) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the service is there");
    stream.write_all(request.as_bytes()).await.expect("the request can be sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("the answer can be read");
    String::from_utf8(answer).expect("text")
}

async fn exchange(address: &str, request: String) -> (u16, Value) {
    let answer = exchange_text(address, request).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

/// A coordinator and its peers.
pub struct Net {
    dir: TempDir,
    pub coordinator: Node,
    pub peers: Vec<Node>,
}

impl Net {
    /// Starts a coordinator with these variables besides.
    pub async fn start(env: &[(&str, &str)]) -> Net {
        let dir = tempfile::Builder::new().prefix("coda-network-").tempdir().expect("a directory");
        let coordinator = node(dir.path(), "coordinator", &["coordinator"], env).await;
        Net { dir, coordinator, peers: Vec::new() }
    }

    /// Adds a peer with this device and these variables besides, and waits until the coordinator knows it.
    pub async fn add(&mut self, device: &str, env: &[(&str, &str)]) -> &Node {
        let name = format!("peer{}", self.peers.len());
        let bootstrap = [("CODA_PEER_BOOTSTRAP", self.coordinator.address.as_str())];
        let env: Vec<(&str, &str)> = bootstrap.iter().chain(env).copied().collect();
        let peer = peer(self.dir.path(), &name, device, &env).await;
        self.known(&peer.peer_id).await;
        self.peers.push(peer);
        self.peers.last().expect("it was added")
    }

    /// Waits until the coordinator may plan on a peer.
    pub async fn known(&self, peer_id: &str) {
        self.coordinator.knows(peer_id).await;
    }

    /// Starts another coordinator, with these variables besides.
    pub async fn another_coordinator(&self, name: &str, env: &[(&str, &str)]) -> Node {
        coordinator(self.dir.path(), name, env).await
    }

    /// Every slot of every peer is free, and every reservation of the coordinator's log terminal.
    pub async fn all_free(&self) {
        for peer in &self.peers {
            eventually_some("every slot is free", async || {
                let (_, ready) = peer.get("/ready").await;
                let peer = &ready["peer"];
                (peer["reservations"] == 0 && peer["executions"] == 0).then_some(())
            })
            .await;
        }
        let said = self.coordinator.cli(&["reservation", "replay"]).await;
        assert_eq!(said.code, 0, "{}", said.text());
        for line in said.out.lines().filter(|l| l.starts_with("reservation/")) {
            let state = line.split_whitespace().nth(1).expect("a state");
            assert!(!matches!(state, "requested" | "accepted"), "{line}");
            assert!(!line.contains("has no end"), "{line}");
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in std::iter::once(&self.coordinator).chain(&self.peers) {
                let log = node.log();
                let from = (log.len().saturating_sub(LOG_TAIL)..log.len()).find(|i| log.is_char_boundary(*i));
                eprintln!("--- {}\n{}\n---", node.dir.display(), &log[from.unwrap_or(0)..]);
            }
        }
    }
}

/// A coordinator by itself, in a directory below this one that may have its state already.
pub async fn coordinator(dir: &Path, name: &str, env: &[(&str, &str)]) -> Node {
    node(dir, name, &["coordinator"], env).await
}

/// A peer by itself.
pub async fn peer(dir: &Path, name: &str, device: &str, env: &[(&str, &str)]) -> Node {
    let own = dir.join(name);
    std::fs::create_dir_all(&own).expect("a directory");
    std::fs::write(own.join("device.yaml"), device).expect("the device config can be written");
    node(dir, name, &["start", "--peer", "--no-cloud", "--device", "device.yaml"], env).await
}

async fn node(dir: &Path, name: &str, arguments: &[&'static str], env: &[(&str, &str)]) -> Node {
    let dir = dir.join(name);
    std::fs::create_dir_all(&dir).expect("a directory");
    let state = dir.join("state").display().to_string();
    let common = [
        ("CODA_STATE_DIR", state.as_str()),
        ("CODA_HOST", "127.0.0.1"),
        ("CODA_PORT", "0"),
        ("CODA_LOG", "info,coda_host=debug"),
        ("CODA_PEER_LISTEN", "/ip4/127.0.0.1/tcp/0"),
        ("CODA_PEER_REDIAL_SEC", "0.1"),
        ("CODA_PEER_HEARTBEAT_SEC", "0.2"),
        ("CODA_COORDINATOR_LISTEN", "/ip4/127.0.0.1/tcp/0"),
        ("CODA_COORDINATOR_HTTP", "127.0.0.1:0"),
        ("CODA_COORDINATOR_EXPIRY_SEC", "0.05"),
        ("CODA_COORDINATOR_CALL_TIMEOUT_SEC", "1"),
        ("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "1"),
    ];
    let env = common.iter().chain(env).map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let host = HostProcess::spawn(arguments, &env, &dir, &dir.join("node.log"));
    let (address, peer_id, http) = (String::new(), String::new(), String::new());
    let mut node = Node { host, env, dir, arguments: arguments.to_vec(), address, peer_id, http };
    node.find(0).await;
    node
}

/// The final state of a completed job.
pub fn state_of(job: &Value) -> Vec<[f64; 2]> {
    let texts =
        job["result"]["state"]["amplitudes"].as_array().unwrap_or_else(|| panic!("no state in {job}"));
    texts.iter().map(|t| amplitude::read(t.as_str().expect("a text")).expect("an amplitude")).collect()
}

/// |<a|b>|^2.
pub fn fidelity(a: &[[f64; 2]], b: &[[f64; 2]]) -> f64 {
    assert_eq!(a.len(), b.len());
    let (re, im) = a
        .iter()
        .zip(b)
        .fold((0.0, 0.0), |(re, im), ([a, b], [c, d])| (re + a * c + b * d, im + a * d - b * c));
    re * re + im * im
}
