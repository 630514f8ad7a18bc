//! `coda-host start --daemon`: starts the host as a background process, from the same binary.
//!
//! Nothing is forked: the child is the same program with the same settings, in a new session, with its output in the
//! log. Secrets go to it through a pipe, so that neither its arguments nor its environment show them. The command
//! returns when the child reports that it is up, or when it has ended, with the child's reason.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::kit;
use crate::app;
use crate::config::load::ProcessEnv;
use crate::config::source::SECRET_VARIABLES;
use crate::daemon::instance_lock::{self, LOG_FILE};
use crate::daemon::rotate::LOG_VARIABLE;
use crate::error::{Explain, Failure, exit};
use crate::output;
use crate::state::files;
use crate::sys;

/// Tells the child to read its secrets from standard input.
pub const SECRETS_VARIABLE: &str = "CODA_SECRETS_FROM_STDIN";
/// Pause between two looks at the starting child.
const LOOK: Duration = Duration::from_millis(50);
const STILL_STARTING: Duration = Duration::from_secs(10);
/// How many bytes of the log are shown when the start fails.
const TAIL_BYTES: u64 = 4000;

/// Why no daemon could be started.
#[derive(Debug, thiserror::Error)]
pub enum DaemonizeError {
    #[error("the log {} can't be opened", path.display())]
    Log { path: PathBuf, source: io::Error },
    #[error("the socket for the daemon's messages can't be opened")]
    Socket(#[source] io::Error),
    #[error("the daemon could not be started")]
    Start(#[source] io::Error),
}

impl Explain for DaemonizeError {
    fn code(&self) -> &'static str {
        match self {
            DaemonizeError::Log { .. } => "daemon-log",
            DaemonizeError::Socket(_) => "daemon-socket",
            DaemonizeError::Start(_) => "daemon-start",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            DaemonizeError::Log { .. } => "check the directory, or move the file away".into(),
            DaemonizeError::Socket(_) => "check the limit on open files (ulimit -n)".into(),
            DaemonizeError::Start(_) => {
                "check the limits on processes and open files (ulimit -a), or start in the foreground".into()
            }
        })
    }
}

pub fn run(env: &ProcessEnv, flags: HashMap<&'static str, String>) -> Result<ExitCode, Failure> {
    let prepared = app::prepare(env, flags.clone())?;
    let dirs = &prepared.settings.dirs;
    if let Some(holder) = instance_lock::holder(&dirs.state)? {
        output::notice(format!("coda-host is running already (process {})", holder.pid));
        return Ok(ExitCode::from(exit::FAILURE));
    }
    let path = dirs.credentials.join(LOG_FILE);
    let unusable = |source: io::Error| DaemonizeError::Log { path: path.clone(), source };
    let log = open_log(&path).map_err(unusable)?;
    let before = log.metadata().map_err(unusable)?.len();
    // An abstract name, as systemd may give: it needs no directory, whose path could be too long or missing.
    let socket_name = format!("coda-host-notify-{}", uuid::Uuid::new_v4());
    let socket = SocketAddr::from_abstract_name(&socket_name)
        .and_then(|address| UnixDatagram::bind_addr(&address))
        .and_then(|s| s.set_read_timeout(Some(LOOK)).map(|()| s))
        .map_err(DaemonizeError::Socket)?;
    let stop = CancellationToken::new();
    app::watch_signals(stop.clone());
    let mut child = spawn(env, flags, &log, &path, &socket_name).map_err(DaemonizeError::Start)?;
    let mut reported = Instant::now();
    loop {
        if received_ready(&socket) {
            kit::say(format!("coda-host is up (process {}), log in {}", child.id(), path.display()));
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(status) = child.try_wait().map_err(DaemonizeError::Start)? {
            let tail = tail(&path, before);
            output::notice(match status.signal().map(sys::signal_name) {
                Some(signal) => format!(
                    "the daemon died of {signal} while it was starting, perhaps in the plugin; see what becomes of it \
                     with CODA_EXECUTOR_ISOLATION=process:\n{tail}"
                ),
                None => format!("the daemon ended while it was starting:\n{tail}"),
            });
            return Ok(ExitCode::from(
                // It ended, so it is not up, whatever it says of its end.
                status.code().and_then(|c| u8::try_from(c).ok()).filter(|c| *c != 0).unwrap_or(exit::FAILURE),
            ));
        }
        if stop.is_cancelled() {
            sys::ask_to_stop(&mut child).map_err(DaemonizeError::Start)?;
            child.wait().map_err(DaemonizeError::Start)?;
            output::notice("stopped before it was up");
            return Ok(ExitCode::from(exit::FAILURE));
        }
        if reported.elapsed() > STILL_STARTING {
            reported = Instant::now();
            output::notice(format!("still starting (process {}), see {}", child.id(), path.display()));
        }
    }
}

/// Opens the log, readable for this user alone. A symbolic link is refused.
fn open_log(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        files::ensure_dir(dir).map_err(io::Error::other)?;
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file =
        File::options().create(true).append(true).read(true).mode(0o600).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

fn spawn(
    env: &ProcessEnv,
    mut flags: HashMap<&'static str, String>,
    log: &File,
    log_path: &Path,
    socket: &str,
) -> io::Result<Child> {
    let secret = |name: &str| SECRET_VARIABLES.contains(&name.to_ascii_uppercase().as_str());
    let mut secrets: HashMap<String, String> =
        env.environment.iter().filter(|(k, _)| secret(k)).map(|(k, v)| (k.clone(), v.clone())).collect();
    if let Some(token) = flags.remove("CODA_NODE_TOKEN") {
        secrets.insert("CODA_NODE_TOKEN".into(), token);
    }
    let binary: PathBuf = std::env::current_exe()?;
    let mut command = Command::new(binary);
    command
        .arg("start")
        // Flags become variables, which say the same.
        .envs(&flags)
        .env("NOTIFY_SOCKET", format!("@{socket}"))
        .env(SECRETS_VARIABLE, "1")
        .env(LOG_VARIABLE, log_path)
        .stdin(Stdio::piped())
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?);
    let mut child = sys::spawn_detached(command)?;
    if let Some(mut pipe) = child.stdin.take() {
        // A child that ended at once shows it by its exit status.
        pipe.write_all(&serde_json::to_vec(&secrets)?).or_else(|e| match e.kind() {
            io::ErrorKind::BrokenPipe => Ok(()),
            _ => Err(e),
        })?;
    }
    Ok(child)
}

fn received_ready(socket: &UnixDatagram) -> bool {
    let mut buffer = [0; 1024];
    match socket.recv(&mut buffer) {
        Ok(n) => String::from_utf8_lossy(&buffer[..n]).lines().any(|l| l == "READY=1"),
        // The time to look again.
        Err(_) => false,
    }
}

/// The text that was added to the log since it was `before` bytes long.
fn tail(path: &Path, before: u64) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(before.max(end.saturating_sub(TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_string())
    };
    read().unwrap_or_else(|e| format!("(its log {} can't be read: {e})", path.display()))
}
