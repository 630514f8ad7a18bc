//! One site: Redis, cloud, directories, a device config, and the host process when it is started.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use coda_host::dev::cloud::{DevCloud, Keys, Options};
use coda_host::dev::redis::DevRedis;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, RedisResult, cmd};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::circuits::{Circuit, Job};
use crate::host_process::{Exit, HostProcess, Said, said, said_within};
use crate::state::StateFile;
use crate::wait::{LIMIT, eventually, eventually_some};

const QPU: &str = "q1";
pub const TOKEN: &str = "one-time-q1";
/// Bytes of the log's end that a failed test shows.
const LOG_TAIL: usize = 20_000;

/// One pair for all tests of the program.
static KEYS: LazyLock<Arc<Keys>> =
    LazyLock::new(|| Arc::new(Keys::generate("q1-key-1").expect("an RSA key")));

/// What a [`TestHost`] is to be.
pub struct Plan {
    device: String,
    env: BTreeMap<String, String>,
    num_qubits: u16,
    native_gate_set: &'static str,
    qpu: &'static str,
    redis_arguments: Vec<&'static str>,
    wrapper: Vec<String>,
}

impl Plan {
    /// A device config as it stands.
    pub fn device(text: impl Into<String>) -> Plan {
        // Everything that can be waited for is shortened, so that a scenario takes a fraction of a second.
        let short = [
            ("CODA_HOST", "127.0.0.1"),
            ("CODA_LOG", "info,coda_host=debug,coda_host::cloud::heartbeat=info"),
            ("CODA_REDIS_BLOCK_SEC", "0.1"),
            ("CODA_REDIS_BACKOFF_SEC", "0.05"),
            ("CODA_REDIS_BACKOFF_MAX_SEC", "0.2"),
            ("CODA_WEBHOOK_BACKOFF_SEC", "0.02"),
            ("CODA_WEBHOOK_BACKOFF_MAX_SEC", "0.2"),
            ("CODA_CONNECT_BACKOFF_SEC", "0.02"),
            ("CODA_CANCEL_POLL_SEC", "0.02"),
            ("CODA_RETRY_PAUSE_SEC", "0.02"),
            ("CODA_RETRY_PAUSE_MAX_SEC", "0.2"),
            ("CODA_HEARTBEAT_INTERVAL_SEC", "0.2"),
            ("CODA_MIN_FREE_MIB", "1"),
        ];
        let env = short.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        Plan {
            device: text.into(),
            env,
            num_qubits: 5,
            native_gate_set: "cz",
            qpu: QPU,
            redis_arguments: Vec::new(),
            wrapper: Vec::new(),
        }
    }

    /// The reference executor with these keys besides.
    pub fn simulator(keys: &str) -> Plan {
        Plan::device(format!("executor_factory: coda_simulator\n{keys}"))
    }

    /// The misbehaving executor.
    pub fn faulty(keys: &str) -> Plan {
        Plan::device(format!("executor_factory: coda_faulty\n{keys}"))
    }

    pub fn env(mut self, name: &str, value: impl Into<String>) -> Plan {
        self.env.insert(name.into(), value.into());
        self
    }

    /// The host lends its QPU to any peer, on a free port of loopback.
    pub fn lends(self) -> Plan {
        self.env("CODA_PEER", "true")
            .env("CODA_PEER_LISTEN", "/ip4/127.0.0.1/tcp/0")
            .env("CODA_PEER_ALLOW", "any")
    }

    /// As the QPU is registered.
    pub fn qubits(mut self, n: u16) -> Plan {
        self.num_qubits = n;
        self
    }

    /// As the QPU is registered.
    pub fn gate_set(mut self, name: &'static str) -> Plan {
        self.native_gate_set = name;
        self
    }

    /// A QPU that no other test has, for one with a coda-node: hosts of the same QPU would not start meanwhile.
    pub fn qpu(mut self, id: &'static str) -> Plan {
        self.qpu = id;
        self
    }

    /// The plugin's process runs as the tests' own user, whatever accounts this machine has.
    pub fn as_own_user(mut self) -> Plan {
        if coda_host::sys::effective_user() == 0 {
            self.env.entry("CODA_EXECUTOR_USER".into()).or_insert_with(|| "root".into());
        }
        self
    }

    /// What Redis holds survives its restart.
    pub fn durable_redis(mut self) -> Plan {
        self.redis_arguments.extend(["--appendonly", "yes", "--appendfsync", "always"]);
        self
    }

    /// Starts the host by a command that replaces itself by the one that it is given.
    pub fn within(mut self, wrapper: &[&str]) -> Plan {
        self.wrapper = wrapper.iter().map(ToString::to_string).collect();
        self
    }

    /// Prepares everything but the host.
    pub async fn prepare(self) -> TestHost {
        let redis = DevRedis::start(&self.redis_arguments, LIMIT).await.expect("redis-server");
        let mut options = Options::new(self.qpu, &redis.url());
        options.keys = Some(KEYS.clone());
        options.num_qubits = self.num_qubits;
        options.native_gate_set = self.native_gate_set.into();
        options.tokens = vec![TOKEN.into()];
        let cloud = DevCloud::start(options).await.expect("the development cloud");
        let dir = tempfile::Builder::new().prefix("coda-scenario-").tempdir().expect("a directory");
        let device = dir.path().join("device.yaml");
        std::fs::write(&device, self.device).expect("the device config can be written");
        let mut env = self.env;
        env.insert("CODA_STATE_DIR".into(), dir.path().join("state").display().to_string());
        env.insert("CODA_DEVICE_CONFIG".into(), device.display().to_string());
        env.insert("CODA_WEBAPP_URL".into(), cloud.url().into());
        env.insert("LAB_NOTES".into(), dir.path().join("notes").display().to_string());
        // Whatever accounts this machine has: a site's files are for the tests' own user.
        if env.get("CODA_EXECUTOR_ISOLATION").is_some_and(|i| i == "process")
            && coda_host::sys::effective_user() == 0
        {
            env.entry("CODA_EXECUTOR_USER".into()).or_insert_with(|| "root".into());
        }
        let (qpu, wrapper, connection) = (self.qpu, self.wrapper, tokio::sync::Mutex::default());
        TestHost { env, redis, cloud, dir, qpu, wrapper, port: 0, host: None, connection }
    }

    /// Prepares everything and starts the host.
    pub async fn start(self) -> TestHost {
        let mut host = self.prepare().await;
        host.start().await;
        host
    }
}

/// A complete site for one scenario.
pub struct TestHost {
    /// The host's next environment.
    pub env: BTreeMap<String, String>,
    pub redis: DevRedis,
    pub cloud: DevCloud,
    dir: TempDir,
    qpu: &'static str,
    wrapper: Vec<String>,
    port: u16,
    host: Option<HostProcess>,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
}

// --- the process

impl TestHost {
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn state_dir(&self) -> PathBuf {
        self.dir().join("state")
    }

    /// Replaces the device config; it counts from the next start.
    pub fn write_device(&self, text: &str) {
        std::fs::write(self.dir().join("device.yaml"), text).expect("the device config can be written");
    }

    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.env.insert(name.into(), value.into());
    }

    pub fn unset(&mut self, name: &str) {
        self.env.remove(name);
    }

    /// Chooses the port of a host that is started by a command instead of here.
    pub fn choose_port(&mut self) {
        self.port = free_port();
        self.env.insert("CODA_PORT".into(), self.port.to_string());
    }

    /// Starts the process and doesn't wait. The first start has the one-time token.
    pub fn launch(&mut self) {
        assert!(self.host.is_none(), "the host is running already");
        let mut env = self.env.clone();
        match env.get("CODA_PORT").and_then(|port| port.parse().ok()) {
            Some(port) => self.port = port,
            None => {
                self.port = free_port();
                env.insert("CODA_PORT".into(), self.port.to_string());
            }
        }
        if !self.state_dir().join("coda.config").exists() {
            env.entry("CODA_NODE_TOKEN".into()).or_insert_with(|| TOKEN.into());
        }
        self.host = Some(HostProcess::spawn_within(&self.wrapper, &[], &env, self.dir(), &self.log_file()));
    }

    /// Starts the process and waits until it is ready.
    pub async fn start(&mut self) {
        self.launch();
        self.wait_ready().await;
    }

    /// Runs a command in this site's surroundings, as from a terminal in its directory.
    pub async fn cli(&self, arguments: &[&str]) -> Said {
        said(arguments, &self.env, self.dir()).await
    }

    /// As [`TestHost::cli`], for a command that takes longer than most.
    pub async fn cli_within(&self, limit: Duration, arguments: &[&str]) -> Said {
        said_within(limit, arguments, &self.env, self.dir()).await
    }

    /// Scheme, host and port of the local service, for a browser.
    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The port of the local service.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Descriptors that the host's process has open.
    pub fn open_files(&self) -> usize {
        crate::process::open_files(self.host.as_ref().expect("the host was started").pid())
    }

    pub fn process(&mut self) -> &mut HostProcess {
        self.host.as_mut().expect("the host was started")
    }

    pub async fn wait_ready(&mut self) {
        eventually_some("the host is ready", async || {
            if let Some(exit) = self.process().ended() {
                panic!("the host ended at once: {exit:?}");
            }
            self.try_get("/ready").await.filter(|(status, _)| *status == 200)
        })
        .await;
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process().kill();
        self.host = None;
    }

    /// SIGTERM, then waits for the end.
    pub async fn stop(&mut self) -> Exit {
        self.process().signal(libc::SIGTERM);
        self.wait_exit().await
    }

    pub async fn wait_exit(&mut self) -> Exit {
        let exit = self.process().wait_exit().await;
        self.host = None;
        exit
    }

    fn log_file(&self) -> PathBuf {
        self.dir().join("host.log")
    }

    /// What every process of this host has written so far.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub async fn wait_log(&self, text: &str) {
        eventually(&format!("the log says {text:?}"), async || self.log().contains(text)).await;
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let from = (log.len().saturating_sub(LOG_TAIL)..log.len()).find(|i| log.is_char_boundary(*i));
            eprintln!("--- the host's log\n{}\n---", &log[from.unwrap_or(0)..]);
        }
    }
}

/// A port that no one has. Outside of the range that the kernel takes clients' ports from, so that it stays so.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let base = std::process::id() * 101;
    loop {
        let port = 10_000 + (base + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        if TcpListener::bind(("127.0.0.1", port as u16)).is_ok() {
            return port as u16;
        }
    }
}

// --- the local service

impl TestHost {
    /// Status and body of a request to the local service; `None` when it isn't there.
    pub async fn try_get(&self, path: &str) -> Option<(u16, String)> {
        let talk = async {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        let answer = tokio::time::timeout(LIMIT, talk).await.ok()?.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.into()))
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        self.try_get(path).await.unwrap_or_else(|| panic!("the local service does not answer {path}"))
    }

    pub async fn ready(&self) -> (u16, Value) {
        let (status, body) = self.get("/ready").await;
        (status, serde_json::from_str(&body).expect("/ready answers JSON"))
    }

    /// The address and the id of the peer, once it is up.
    pub async fn peer(&self) -> (String, String) {
        eventually_some("the peer is up", async || {
            let (_, body) = self.try_get("/ready").await?;
            let ready: Value = serde_json::from_str(&body).ok()?;
            let address = ready["peer"]["addresses"][0].as_str()?.to_string();
            Some((address, ready["peer"]["peer_id"].as_str()?.to_string()))
        })
        .await
    }

    /// A metric's value by its full name with labels; 0 when it was never counted.
    pub async fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.get("/metrics").await;
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |n| n.parse::<f64>().expect("a metric is a number") as u64)
    }

    /// Jobs of this process that ended so.
    pub async fn counted(&self, outcome: &str) -> u64 {
        self.metric(&format!("coda_host_jobs_total{{outcome=\"{outcome}\"}}")).await
    }

    /// Runs in the plugin that have come back, in this process.
    pub async fn runs(&self) -> u64 {
        self.metric("coda_host_run_seconds_count").await
    }
}

// --- Redis

impl TestHost {
    /// One command; the connection is made again after an error.
    pub async fn try_redis<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let mut held = self.connection.lock().await;
        let mut connection = match held.take() {
            Some(connection) => connection,
            None => {
                let config = AsyncConnectionConfig::new().set_response_timeout(Some(LIMIT));
                let client = redis::Client::open(self.redis.url())?;
                client.get_multiplexed_async_connection_with_config(&config).await?
            }
        };
        let answer = command.query_async(&mut connection).await?;
        *held = Some(connection);
        Ok(answer)
    }

    pub async fn redis<T: FromRedisValue>(&self, command: &Cmd) -> T {
        let answered = async || match self.try_redis(command).await {
            // A connection from before a restart.
            Err(e) if e.is_io_error() || e.is_connection_dropped() => None,
            answer => Some(answer),
        };
        eventually_some("Redis answers", answered).await.expect("Redis accepts the command")
    }

    pub fn qpu_id(&self) -> &'static str {
        self.qpu
    }

    pub fn stream(&self) -> String {
        format!("qpu:{}:jobs", self.qpu)
    }

    pub fn group(&self) -> String {
        format!("qpu:{}:workers", self.qpu)
    }

    /// A good message; its answer goes to the development cloud.
    pub fn job(&self, id: &str, circuit: &Circuit, shots: u32) -> Job {
        Job::new(id, &self.cloud.webhook_url(), circuit, shots)
    }

    /// Puts a message on the stream and returns its id there.
    pub async fn send(&self, job: &Job) -> String {
        let mut xadd = cmd("XADD");
        xadd.arg(self.stream()).arg("*");
        for (name, value) in &job.fields {
            xadd.arg(name).arg(value);
        }
        self.redis(&xadd).await
    }

    /// Sends a good message.
    pub async fn submit(&self, id: &str, circuit: &Circuit, shots: u32) -> String {
        self.send(&self.job(id, circuit, shots)).await
    }

    pub async fn request_cancel(&self, id: &str) {
        self.redis::<()>(cmd("SET").arg(format!("qpu:job:cancelled:{id}")).arg("1")).await;
    }

    /// The status hash.
    pub async fn status(&self, id: &str) -> BTreeMap<String, String> {
        self.redis(cmd("HGETALL").arg(format!("qpu:job:{id}:status"))).await
    }

    pub async fn state(&self, id: &str) -> String {
        self.status(id).await.remove("state").unwrap_or_default()
    }

    pub async fn wait_state(&self, id: &str, state: &str) {
        eventually(&format!("{id} becomes {state}"), async || self.state(id).await == state).await;
    }

    /// Ids of claimed and unacknowledged messages, whoever holds them.
    pub async fn pending(&self) -> Vec<String> {
        let mut xpending = cmd("XPENDING");
        xpending.arg(self.stream()).arg(self.group()).arg("-").arg("+").arg(10_000);
        let rows: RedisResult<Vec<(String, String, u64, u64)>> =
            eventually_some("Redis answers", async || {
                match self.try_redis(&xpending).await {
                    // A connection from before a restart.
                    Err(e) if e.is_io_error() || e.is_connection_dropped() => None,
                    // A group that isn't there holds nothing.
                    Err(e) if e.code() == Some("NOGROUP") => Some(Ok(Vec::new())),
                    answer => Some(answer),
                }
            })
            .await;
        rows.expect("Redis accepts the command").into_iter().map(|(id, ..)| id).collect()
    }

    pub async fn wait_nothing_pending(&self) {
        eventually("nothing is pending", async || self.pending().await.is_empty()).await;
    }
}

// --- the cloud

impl TestHost {
    /// Waits for an accepted webhook of this job and returns its body.
    pub async fn delivered(&self, id: &str) -> Value {
        let there = self.cloud.wait_until(LIMIT, |state| state.accepted(id)).await;
        assert!(there, "no webhook of {id} within {LIMIT:?}");
        let body = self.cloud.state().jobs[id].body.clone();
        serde_json::from_slice(&body).expect("a webhook is JSON")
    }

    /// Waits for a failure webhook and returns its error.
    pub async fn failure(&self, id: &str) -> String {
        let body = self.delivered(id).await;
        assert_eq!(body["status"], "failed", "{body}");
        body["error"].as_str().expect("a failure has an error").to_string()
    }

    /// Webhook attempts for this job, and how many of them were accepted.
    pub fn attempts(&self, id: &str) -> (u32, u32) {
        self.cloud.state().jobs.get(id).map_or((0, 0), |job| (job.attempts, job.accepted))
    }

    /// Sends a good job and waits until it is through: whatever came before it in its way has happened.
    pub async fn good_job_goes_through(&self, id: &str) {
        self.submit(id, &Circuit::new(1), 7).await;
        let body = self.delivered(id).await;
        assert_eq!(body["status"], "completed", "{body}");
        assert_eq!(body["counts"], serde_json::json!({ "0": 7 }));
    }
}

// --- the state directory

impl TestHost {
    pub fn state_file(&self) -> StateFile {
        StateFile::open(&self.state_dir())
    }
}
