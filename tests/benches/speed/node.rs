//! The programs that are measured: coda-host with its reference executor, the same with an executor in Python code, and the
//! Python node with that.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use coda_host_tests::artifacts::{binary, project_file};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::bare::{self, Traffic};

/// Which program.
#[derive(Debug, Clone)]
pub enum Kind {
    Host,
    /// coda-host with the interpreter of this virtual environment.
    HostPython(PathBuf),
    /// `coda-node` of a virtual environment.
    Python(PathBuf),
}

impl Kind {
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Host => "coda-host",
            Kind::HostPython(_) => "host+py",
            Kind::Python(_) => "coda-node",
        }
    }
}

/// What its executor does.
#[derive(Debug, Clone, Copy)]
pub struct Executor {
    pub ms: u64,
    pub batch: bool,
}

/// A running node; killed when dropped.
pub struct Node {
    child: Child,
    port: u16,
    pub started: Instant,
}

impl Node {
    /// `token` is for a first start; without one the node reconnects with what it stored in `dir`.
    pub fn start(kind: &Kind, executor: Executor, cloud: &str, token: Option<&str>, dir: &Path) -> Node {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let log = File::options().create(true).append(true).open(dir.join("node.log")).expect("a log file");
        let mut command = match kind {
            Kind::Host => {
                let device = dir.join("device.yaml");
                let Executor { ms, batch } = executor;
                let text = format!(
                    "executor_factory: coda_simulator\ntarget: cz\nnum_qubits: 50\nmode: noop\n\
                     execution_time_ms: {ms}\nbatch: {batch}\n"
                );
                std::fs::write(&device, text).expect("the device config can be written");
                let mut command = Command::new(binary());
                command.env_clear().env("CODA_DEVICE_CONFIG", device);
                command
            }
            Kind::HostPython(venv) => {
                let mut command = Command::new(binary());
                command.env_clear().env("CODA_EXECUTOR_PYTHON", venv).env("CODA_EXECUTOR_USER", own_user());
                python_executor(&mut command, executor);
                command
            }
            Kind::Python(program) => {
                let mut command = Command::new(program);
                command.env_clear().arg("start").env("PYTHONUNBUFFERED", "1");
                python_executor(&mut command, executor);
                command
            }
        };
        command
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", dir)
            .env("TMPDIR", dir)
            .env("CODA_STATE_DIR", dir)
            .env("CODA_WEBAPP_URL", cloud)
            .env("CODA_VPN_REQUIRED", "false")
            .env("CODA_HOST", "127.0.0.1")
            .env("CODA_PORT", port.to_string())
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log file"))
            .stderr(log);
        if let Some(token) = token {
            command.env("CODA_NODE_TOKEN", token);
        }
        let started = Instant::now();
        let child = command.spawn().unwrap_or_else(|e| panic!("{} can't be started: {e}", kind.name()));
        Node { child, port, started }
    }

    /// This very program as a node that only has the traffic of one.
    pub fn start_bare(traffic: &Traffic) -> Node {
        let program = std::env::current_exe().expect("this program's path");
        let started = Instant::now();
        let child = Command::new(program).env(bare::ENV, traffic.to_text()).stdin(Stdio::null()).spawn();
        Node { child: child.expect("this program can be started again"), port: 0, started }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Of its local service.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From the start until `/ready` answers 200.
    pub async fn ready(&mut self) -> Duration {
        let limit = Duration::from_secs(60);
        while self.started.elapsed() < limit {
            if self.is_ready().await {
                return self.started.elapsed();
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the node ended while starting: {status}; its log is node.log of the directory shown");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("the node was not ready within {limit:?}");
    }

    async fn is_ready(&self) -> bool {
        let ask = async {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.ok()?;
            stream.write_all(b"GET /ready HTTP/1.1\r\nhost: l\r\nconnection: close\r\n\r\n").await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            answer.starts_with("HTTP/1.1 200").then_some(())
        };
        tokio::time::timeout(Duration::from_secs(2), ask).await.is_ok_and(|a| a.is_some())
    }
}

/// The executor in Python code that measures zeros.
fn python_executor(command: &mut Command, executor: Executor) {
    command
        .env("PYTHONPATH", project_file("tests/benches/python"))
        .env("CODA_EXECUTOR_FACTORY", "coda_bench_executor:create_executor")
        .env("BENCH_MS", executor.ms.to_string())
        .env("BENCH_BATCH", executor.batch.to_string());
}

/// The account of the interpreter, whatever accounts this machine has: an empty value leaves it to the host.
fn own_user() -> &'static str {
    if coda_host::sys::effective_user() == 0 { "root" } else { "" }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
