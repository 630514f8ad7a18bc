//! A private redis-server: a child process on a free port of loopback, keeping nothing on disk, gone when
//! its handle is dropped or this process dies.
//!
//! Its directory is a private temporary one that goes with it. It runs in a process group of its own, so that
//! a Ctrl-C meant for the host doesn't take Redis away while results are still to be delivered.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::error::Explain;
use crate::sys;

const BINARY: &str = "redis-server";
/// A free port may be taken by another process before Redis has it.
const PORT_TRIES: u32 = 5;
const LOOK_AGAIN: Duration = Duration::from_millis(5);

#[derive(Debug, thiserror::Error)]
pub enum DevRedisError {
    #[error("the program {BINARY} is not installed")]
    NotInstalled,
    #[error("{BINARY} could not be started")]
    Spawn(#[source] io::Error),
    #[error("no private directory for {BINARY} could be created")]
    Directory(#[source] io::Error),
    #[error("no free port of 127.0.0.1 could be found")]
    Port(#[source] io::Error),
    #[error("{BINARY} ended at once ({status}): {log}")]
    Ended { status: String, log: String },
    #[error("{BINARY} on port {port} gave no answer to PING within {limit:?}: {log}")]
    Silent { port: u16, limit: Duration, log: String },
}

impl Explain for DevRedisError {
    fn code(&self) -> &'static str {
        "dev-redis"
    }

    fn hint(&self) -> Option<String> {
        match self {
            DevRedisError::NotInstalled => Some(
                "install it: apt-get install redis-server (Debian, Ubuntu), dnf install redis (Fedora), \
                 brew install redis (macOS)"
                    .into(),
            ),
            DevRedisError::Directory(_) => Some("check TMPDIR and the space there (df -h)".into()),
            _ => None,
        }
    }
}

/// A running server.
pub struct DevRedis {
    child: Child,
    dir: TempDir,
    port: u16,
    arguments: Vec<String>,
}

impl DevRedis {
    /// Starts one and waits until it answers. `arguments` go behind our own, such as `--requirepass`.
    pub async fn start(arguments: &[&str], limit: Duration) -> Result<DevRedis, DevRedisError> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_string()).collect();
        let deadline = Instant::now() + limit;
        let mut tries = 1;
        loop {
            let port = free_port().await?;
            let dir = tempfile::Builder::new()
                .prefix("coda-dev-redis-")
                .tempdir()
                .map_err(DevRedisError::Directory)?;
            let child = spawn(port, &dir, &arguments)?;
            let mut redis = DevRedis { child, dir, port, arguments: arguments.clone() };
            match redis.ready(deadline, limit).await {
                Ok(()) => return Ok(redis),
                Err(DevRedisError::Ended { log, .. })
                    if tries < PORT_TRIES && log.contains("Address already in use") =>
                {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL without a password, even if an argument set one.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as a power cut would; everything in it is gone.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(|_| ())
    }

    /// Starts it again, empty, on the same port.
    pub async fn restart(&mut self, limit: Duration) -> Result<(), DevRedisError> {
        self.kill().map_err(DevRedisError::Spawn)?;
        self.child = spawn(self.port, &self.dir, &self.arguments)?;
        self.ready(Instant::now() + limit, limit).await
    }

    async fn ready(&mut self, deadline: Instant, limit: Duration) -> Result<(), DevRedisError> {
        loop {
            if let Some(status) = self.child.try_wait().map_err(DevRedisError::Spawn)? {
                return Err(DevRedisError::Ended { status: status.to_string(), log: self.log() });
            }
            match tokio::time::timeout_at(deadline, ping(self.port)).await {
                Ok(true) => return Ok(()),
                Ok(false) if Instant::now() < deadline => tokio::time::sleep(LOOK_AGAIN).await,
                _ => return Err(DevRedisError::Silent { port: self.port, limit, log: self.log() }),
            }
        }
    }

    /// The last lines of its log.
    fn log(&self) -> String {
        let text = match std::fs::read(self.dir.path().join("log")) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => return format!("its log can't be read: {error}"),
        };
        let lines: Vec<&str> = text.lines().collect();
        match lines.split_at(lines.len().saturating_sub(5)).1 {
            [] => "its log is empty".into(),
            last => last.join(" | "),
        }
    }
}

impl Drop for DevRedis {
    fn drop(&mut self) {
        // It may have ended already; nothing more can be done about an error here.
        self.kill().ok();
    }
}

fn spawn(port: u16, dir: &TempDir, arguments: &[String]) -> Result<Child, DevRedisError> {
    let log = std::fs::File::create(dir.path().join("log")).map_err(DevRedisError::Directory)?;
    let errors = log.try_clone().map_err(DevRedisError::Directory)?;
    let mut command = Command::new(BINARY);
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .args(["--daemonize", "no", "--dir"])
        .arg(dir.path())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .process_group(0);
    sys::spawn_dying_with_parent(command).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => DevRedisError::NotInstalled,
        _ => DevRedisError::Spawn(e),
    })
}

/// A port that no one has, above the range that the kernel takes clients' ports from, and not the last one's: so a
/// server that is away for a moment finds its port free when it comes back.
async fn free_port() -> Result<u16, DevRedisError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const PORTS: std::ops::Range<u32> = 61_000..65_500;
    let own = std::process::id().wrapping_mul(37);
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for _ in PORTS {
        let at = own.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % (PORTS.end - PORTS.start);
        let port = (PORTS.start + at) as u16;
        match TcpListener::bind(("127.0.0.1", port)).await {
            Ok(_) => return Ok(port),
            Err(e) => failed = e,
        }
    }
    Err(DevRedisError::Port(failed))
}

/// Whether the server answers. A server that requires a password answers too.
async fn ping(port: u16) -> bool {
    let talk = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).await?;
        io::Result::Ok(answer)
    };
    talk.await.is_ok_and(|answer| answer.starts_with(b"+PONG") || answer.starts_with(b"-NOAUTH"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::AsyncCommands as _;

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn it_answers_forgets_on_restart_and_goes_with_its_handle() {
        let mut redis = DevRedis::start(&[], LIMIT).await.unwrap();
        let client = redis::Client::open(redis.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let () = connection.set("a", 1).await.unwrap();
        redis.restart(LIMIT).await.unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        assert_eq!(connection.get::<_, Option<i64>>("a").await.unwrap(), None);
        let (pid, dir) = (redis.pid(), redis.dir.path().to_path_buf());
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists() && dir.exists());
        drop(redis);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists() && !dir.exists());
    }

    #[tokio::test]
    async fn a_password_and_a_bad_argument() {
        let redis = DevRedis::start(&["--requirepass", "s3"], LIMIT).await.unwrap();
        let url = format!("redis://:s3@127.0.0.1:{}", redis.port());
        let client = redis::Client::open(url).unwrap();
        assert!(client.get_multiplexed_async_connection().await.is_ok());
        let error = DevRedis::start(&["--no-such-option", "1"], LIMIT).await.err().unwrap();
        assert!(error.to_string().contains("no-such-option"), "{error}");
    }
}
