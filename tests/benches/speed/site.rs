//! A Redis, a cloud and a directory for one measurement.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use coda_host::dev::cloud::{DevCloud, Keys, Options};
use coda_host::dev::redis::DevRedis;
use coda_host_tests::proxy::Proxy;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use tempfile::TempDir;

use crate::bare::Traffic;
use crate::node::{Executor, Kind, Node};

const QPU: &str = "bench";
const TOKEN: &str = "one-time-bench";
/// No webhook for so long: the node is stuck.
const STALL: Duration = Duration::from_secs(30);

static KEYS: LazyLock<Arc<Keys>> = LazyLock::new(|| Arc::new(Keys::generate("bench-1").expect("an RSA key")));

pub struct Site {
    pub cloud: DevCloud,
    pub redis: MultiplexedConnection,
    pub url: String,
    dir: TempDir,
    next: usize,
    _server: DevRedis,
    _proxy: Option<Proxy>,
}

impl Site {
    /// `delay` each way between node and Redis.
    pub async fn new(delay: Option<Duration>) -> Site {
        let server = DevRedis::start(&[], STALL).await.expect("redis-server");
        let proxy = match delay {
            Some(delay) => Some(Proxy::start(server.port(), delay).await.expect("a port")),
            None => None,
        };
        let port = proxy.as_ref().map_or(server.port(), Proxy::port);
        let url = format!("redis://127.0.0.1:{port}/0");
        let mut options = Options::new(QPU, &url);
        options.keys = Some(KEYS.clone());
        options.num_qubits = 50;
        options.tokens = vec![TOKEN.into()];
        let cloud = DevCloud::start(options).await.expect("the development cloud");
        let client = redis::Client::open(server.url()).expect("a Redis URL");
        let redis = client.get_multiplexed_async_connection().await.expect("Redis");
        let dir = tempfile::Builder::new().prefix("coda-bench-").tempdir().expect("a directory");
        Site { cloud, redis, url, dir, next: 0, _server: server, _proxy: proxy }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn start(&self, kind: &Kind, executor: Executor, first: bool) -> Node {
        Node::start(kind, executor, self.cloud.url(), first.then_some(TOKEN), self.dir())
    }

    /// A node that only has the traffic of one.
    pub fn start_bare(&self, read_ahead: usize) -> Node {
        let token = KEYS.token(QPU).expect("a token");
        Node::start_bare(&Traffic {
            redis_url: self.url.clone(),
            webhook_url: self.cloud.webhook_url(),
            bearer: format!("Bearer {}", token.expose()),
            read_ahead,
        })
    }

    /// Adds jobs to the stream and returns the first one's number.
    pub async fn submit(&mut self, count: usize, ir: &str) -> usize {
        let first = self.next;
        let callback = self.cloud.webhook_url();
        let group = if ir.len() > 50_000 { 10 } else { 200 };
        let mut left = count;
        while left > 0 {
            let n = left.min(group);
            let mut pipe = redis::pipe();
            for _ in 0..n {
                let id = format!("job-{}", self.next);
                self.next += 1;
                let fields =
                    [("job_id", id.as_str()), ("callback_url", &callback), ("ir_json", ir), ("shots", "100")];
                pipe.cmd("XADD").arg(format!("qpu:{QPU}:jobs")).arg("*").arg(&fields[..]).ignore();
            }
            pipe.query_async::<()>(&mut self.redis).await.expect("XADD");
            left -= n;
        }
        first
    }

    /// Waits for the webhooks of all jobs submitted so far; false when the node is stuck.
    pub async fn wait_all(&self) -> bool {
        let all = self.next as u64;
        loop {
            let before = self.cloud.state().accepted_jobs;
            if self.cloud.wait_until(STALL, |s| s.accepted_jobs >= all).await {
                return true;
            }
            if self.cloud.state().accepted_jobs == before {
                return false;
            }
        }
    }

    /// When each job from number `first` on was accepted.
    pub fn accepted_since(&self, first: usize) -> Vec<(usize, Instant)> {
        let state = self.cloud.state();
        let number = |id: &str| id.strip_prefix("job-").and_then(|n| n.parse::<usize>().ok());
        let accepted = state.webhooks.iter().filter(|w| w.answered == Some(200));
        accepted.filter_map(|w| Some((number(&w.job_id)?, w.at))).filter(|(n, _)| *n >= first).collect()
    }

    /// Messages that are delivered and not acknowledged.
    pub async fn pending(&mut self) -> usize {
        let reply: redis::RedisResult<(usize, Option<String>, Option<String>, redis::Value)> =
            redis::cmd("XPENDING")
                .arg(format!("qpu:{QPU}:jobs"))
                .arg(format!("qpu:{QPU}:workers"))
                .query_async(&mut self.redis)
                .await;
        reply.map_or(0, |r| r.0)
    }
}

/// A circuit for the `cz` gate set: rotations and entanglers in turn, all qubits measured.
pub fn circuit(qubits: usize, gates: usize) -> String {
    let gate = |i: usize| {
        let q = i % qubits;
        match i % 4 {
            0 => json!({ "gate": "rx", "qubits": [q], "params": [0.1 + i as f64 * 0.01] }),
            1 => json!({ "gate": "rz", "qubits": [q], "params": [1.2566370614359172] }),
            2 => json!({ "gate": "cz", "qubits": [q, (q + 1) % qubits] }),
            _ => json!({ "gate": "ry", "qubits": [q], "params": [-0.9424777960769379] }),
        }
    };
    json!({
        "version": "1.0", "target": "cz", "num_qubits": qubits,
        "gates": (0..gates).map(gate).collect::<Vec<_>>(),
        "measurements": (0..qubits).collect::<Vec<_>>(),
        "metadata": { "source_hash": "bench", "compiled_at": "2026-01-01T00:00:00Z" },
    })
    .to_string()
}
