//! `coda-host dev`: a local Coda sandbox (Redis and a development cloud), with a host connected to it.
//!
//! A child process asks the device first, because the cloud knows the qubits and gate sets of its QPUs before they
//! connect. Then Redis, the cloud and the host start, each ready before the next. They end in the opposite order, so
//! that the host can deliver the results that it still has.

mod demo;
mod network;

use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::dev_session::{self, DevSession};
use super::device_view::DeviceView;
use super::kit;
use super::terminal::{Terminal, one_line};
use crate::app;
use crate::cloud::http::{HttpClient, Target};
use crate::config::load::ProcessEnv;
use crate::dev::client::DevClient;
use crate::dev::cloud::{DevCloud, Options};
use crate::dev::follow::Follower;
use crate::dev::host::{DevHost, HostCommand};
use crate::dev::redis::DevRedis;
use crate::error::{Explain, Failure, exit};
use crate::output;
use crate::state::files;

const QPU: &str = "dev-qpu";
const REDIS_LIMIT: Duration = Duration::from_secs(20);
/// A plugin may take its time to reach its hardware.
const READY_LIMIT: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Limit of one request to a service on this machine.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// Pause after Redis failed while the jobs were followed.
const REDIS_PAUSE: Duration = Duration::from_millis(500);
/// How long the cloud stays up after the host has ended, so that clients receive the last states.
const LAST_NEWS: Duration = Duration::from_millis(250);
const LOG_LINES: usize = 20;
/// Number of records that the cloud keeps, because a sandbox may stay up for weeks.
const KEEP: usize = 10_000;
/// Variables that configure a connection to another cloud, so the sandbox's host must not inherit them.
const REPLACED: [&str; 16] = [
    "CODA_CONNECT_PATH",
    "CODA_HEARTBEAT_PATH",
    "CODA_HOST",
    "CODA_JWT_KEY_ID",
    "CODA_JWT_PRIVATE_KEY",
    "CODA_NODE_CONNECT_HEADERS",
    "CODA_NODE_TOKEN",
    "CODA_NODE_VPN_PROFILE_PATH",
    "CODA_PORT",
    "CODA_QPU_DISPLAY_NAME",
    "CODA_QPU_ID",
    "CODA_REDIS_URL",
    "CODA_SANDBOX_URL",
    "CODA_STATE_DIR",
    "CODA_WEBAPP_URL",
    "CODA_WEBHOOK_PATH",
];

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("demonstration").multiple(true)), after_help = "\
Examples:
  coda-host dev --device site/device.yaml        then, in another terminal:
  coda-host submit bell.json --wait              a job through Redis, plugin and webhook
  coda-host dev --device site/device.yaml --demo three circuits first, each with its states and histogram
  coda-host dev --dir /tmp/mine                  keeps state and log; uses ./site/device.yaml
  coda-host dev --peers 3                        a private peer network: a coordinator and three peers

Jobs may also be written to Redis directly; every job on the stream is shown. Ctrl-C ends everything.")]
pub struct Args {
    /// The device config (CODA_DEVICE_CONFIG; ./site/device.yaml when it exists)
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    device: Option<PathBuf>,
    /// Port of the host's local service, on 127.0.0.1 [default: a free one]
    #[arg(short, long, value_name = "PORT")]
    port: Option<u16>,
    /// Port of the cloud, on 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "PORT")]
    cloud_port: Option<u16>,
    /// Directory of state and log [default: a temporary directory, removed at the end]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: Option<PathBuf>,
    /// First send three circuits and check their results
    #[arg(long, group = "demonstration")]
    demo: bool,
    /// Instead of a cloud: a coordinator and N peers, each with this device, and three circuits over them
    #[arg(long, value_name = "N", group = "demonstration", conflicts_with_all = ["port", "cloud_port"],
          value_parser = clap::value_parser!(u16).range(1..=64))]
    peers: Option<u16>,
    /// End after the demo, with exit status 1 if anything was wrong
    #[arg(long, requires = "demonstration")]
    once: bool,
}

/// The end of the host's log, as a cause.
#[derive(Debug, thiserror::Error)]
#[error("the last lines of its log:\n{0}")]
pub struct LogLines(pub String);

/// Why the sandbox can't be started or watched.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    #[error("what the plugin reports about its device can't be read")]
    Device(#[source] serde_json::Error),
    #[error("the host was not ready within {} s", READY_LIMIT.as_secs())]
    NotReady { source: LogLines },
    #[error("{name} of the network ended ({status})")]
    MemberEnded { name: String, status: ExitStatus, source: LogLines },
    #[error("the sandbox's Redis doesn't answer")]
    Redis(#[source] redis::RedisError),
    #[error("no temporary directory could be created")]
    Directory(#[source] std::io::Error),
    #[error("no free port of 127.0.0.1 could be found")]
    Port(#[source] std::io::Error),
}

impl Explain for DevError {
    fn code(&self) -> &'static str {
        match self {
            DevError::Device(_) => "dev-device",
            DevError::NotReady { .. } => "dev-not-ready",
            DevError::MemberEnded { .. } => "dev-member-ended",
            DevError::Redis(_) => "dev-redis",
            DevError::Directory(_) => "dev-dir",
            DevError::Port(_) => "dev-port",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            DevError::Device(_) => {
                "check that the plugin writes nothing to standard output; it should use the host's log".into()
            }
            DevError::NotReady { .. } => "check whether the plugin waits for its hardware".into(),
            DevError::MemberEnded { .. } => "correct what its log names".into(),
            DevError::Redis(_) => "start `coda-host dev` again".into(),
            DevError::Directory(_) => "check TMPDIR and the space there (df -h), or give --dir".into(),
            DevError::Port(_) => "give one with --port".into(),
        })
    }

    fn exit(&self) -> u8 {
        match self {
            DevError::Device(_) => exit::PLUGIN,
            _ => exit::FAILURE,
        }
    }
}

pub fn run(args: Args, env: ProcessEnv) -> Result<ExitCode, Failure> {
    let runtime = kit::runtime()?;
    let result = runtime.block_on(async {
        match args.peers {
            Some(count) => network::run(count, &args, &env).await,
            None => execute(&args, &env).await,
        }
    });
    runtime.shutdown_background();
    result
}

async fn execute(args: &Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let stop = CancellationToken::new();
    app::watch_signals(stop.clone());
    tokio::select! {
        // Stopped before everything is up: the parts that run end when their handles are dropped.
        () = stop.cancelled() => Ok(ExitCode::SUCCESS),
        started = start(args, env) => match started? {
            Started::Running(dev) => dev.live(args, env, &stop).await,
            Started::Ended(code) => Ok(code),
        },
    }
}

/// The running sandbox. Its fields are dropped in this order.
struct Dev {
    host: DevHost,
    cloud: DevCloud,
    _redis: DevRedis,
    device: DeviceView,
    session: DevSession,
    out: Terminal,
    _dir: Option<TempDir>,
}

/// How a start ended.
enum Started {
    Running(Box<Dev>),
    /// A child process failed and has printed why; its exit status is this command's.
    Ended(ExitCode),
}

/// Starts every part of the sandbox, each ready before the next.
async fn start(args: &Args, env: &ProcessEnv) -> Result<Started, Failure> {
    let (dir, temporary) = work_directory(args, env)?;
    files::ensure_dir(&dir.join("state"))?;
    let device_flag: Vec<String> =
        args.device.iter().flat_map(|d| ["--device".to_string(), d.display().to_string()]).collect();
    let mut command = HostCommand {
        arguments: vec!["plugin".into(), "device".into(), "--json".into()],
        without: env.environment.keys().filter(|name| replaced(name)).cloned().collect(),
        with: vec![("CODA_STATE_DIR", dir.join("state").display().to_string())],
    };
    command.arguments.extend(device_flag.clone());
    let (status, text) = command.output(&dir.join("device.json")).await?;
    if !status.success() {
        return Ok(Started::Ended(exit_code(status)));
    }
    let device: DeviceView = serde_json::from_slice(&text).map_err(DevError::Device)?;

    let redis = DevRedis::start(&[], REDIS_LIMIT).await?;
    let token = format!("dev-{:032x}", rand::random::<u128>());
    let cloud = DevCloud::start(cloud_options(args, env, &device, &redis, &token)).await?;

    let log = dir.join("host.log");
    let port = match args.port {
        Some(port) if port != 0 => port,
        _ => free_port().await?,
    };
    command.arguments = vec!["start".into()];
    command.arguments.extend(device_flag);
    command.with.extend([
        ("CODA_WEBAPP_URL", cloud.url().to_string()),
        ("CODA_NODE_TOKEN", token),
        ("CODA_VPN_REQUIRED", "false".into()),
        ("CODA_SANDBOX_URL", cloud.url().to_string()),
        ("CODA_HOST", "127.0.0.1".into()),
        ("CODA_PORT", port.to_string()),
    ]);
    let host = command.start(&log)?;
    let session = DevSession {
        pid: std::process::id(),
        url: cloud.url().to_string(),
        redis_url: redis.url(),
        host_url: format!("http://127.0.0.1:{port}"),
        qpu_id: QPU.into(),
        log,
    };
    let out = Terminal::new(env);
    let mut dev = Box::new(Dev { host, cloud, _redis: redis, device, session, out, _dir: temporary });
    match dev.ready().await? {
        Some(status) => {
            show_end(&dev.host, status);
            Ok(Started::Ended(exit_code(status)))
        }
        None => Ok(Started::Running(dev)),
    }
}

/// The options of the development cloud for this device.
fn cloud_options(
    args: &Args,
    env: &ProcessEnv,
    device: &DeviceView,
    redis: &DevRedis,
    token: &str,
) -> Options {
    let mut options = Options::new(QPU, &redis.url());
    options.num_qubits = device.num_qubits;
    options.native_gate_set = gate_set(device, env);
    options.tokens = vec![token.to_string()];
    options.listen.set_port(args.cloud_port.unwrap_or(0));
    options.keep = KEEP;
    options.guarded = true;
    options
}

impl Dev {
    /// Waits until the host is ready. Returns its exit status if it ends first.
    async fn ready(&mut self) -> Result<Option<ExitStatus>, Failure> {
        let http = HttpClient::local()?;
        let target = Target::parse(&format!("{}/ready", self.session.host_url))?;
        let asking = async {
            while !http.get(&target, ASK_LIMIT).await.is_ok_and(|r| r.status.is_success()) {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::select! {
            ended = self.host.ended() => Ok(Some(ended?)),
            asked = tokio::time::timeout(READY_LIMIT, asking) => match asked {
                Ok(()) => Ok(None),
                Err(_) => Err(DevError::NotReady { source: LogLines(self.host.last_lines(LOG_LINES)) }.into()),
            },
        }
    }

    /// Shows the addresses, then the jobs, until the demo or the host ends or a signal comes.
    async fn live(
        mut self: Box<Self>,
        args: &Args,
        env: &ProcessEnv,
        stop: &CancellationToken,
    ) -> Result<ExitCode, Failure> {
        let path = dev_session::path(env)?;
        let ours = self.save_session(&path).await?;
        self.banner(ours)?;
        // Dropped from the last to the first, as the fields are.
        let Dev { _dir, mut out, session, _redis, cloud, mut host, .. } = *self;
        let work = show_jobs(args, &cloud, &session, &mut out);
        tokio::pin!(work);
        let ended = tokio::select! {
            done = &mut work => End::Done(done),
            status = host.ended() => End::Host(status?),
            () = stop.cancelled() => End::Stopped,
        };
        if ours {
            session.remove(&path)?;
        }
        let (status, result) = match ended {
            End::Host(status) => {
                show_end(&host, status);
                return Ok(exit_code(status));
            }
            End::Done(result) => (host.stop().await?, result),
            End::Stopped => {
                output::notice("\nending: the host finishes its jobs (Ctrl-C again ends at once)");
                let stopping = async {
                    let status = host.stop().await;
                    // Clients that wait for a job still receive its last state.
                    tokio::time::sleep(LAST_NEWS).await;
                    status
                };
                tokio::pin!(stopping);
                // Jobs are shown to their end; a demo that is over, or can't go on, no longer matters.
                let status = tokio::select! {
                    status = &mut stopping => status,
                    _ = &mut work => stopping.await,
                };
                (status?, Ok(ExitCode::SUCCESS))
            }
        };
        if !status.success() {
            show_end(&host, status);
            return result.map(|_| exit_code(status));
        }
        result
    }

    /// Writes the session file, unless that of another running sandbox exists. Returns whether it did.
    async fn save_session(&self, path: &Path) -> Result<bool, Failure> {
        let other = DevSession::read(path)?.filter(|n| n.process_lives() && n.pid != self.session.pid);
        if let Some(other) = other
            && let Ok(client) = DevClient::new(&other.url)
            && client.answers(ASK_LIMIT).await
        {
            return Ok(false);
        }
        self.session.write(path)?;
        Ok(true)
    }

    fn banner(&mut self, ours: bool) -> Result<(), Failure> {
        let (d, n) = (&self.device, &self.session);
        let url = if ours { String::new() } else { format!(" --dev-url {}", n.url) };
        let text = format!(
            "{title}\n\n\
             \x20 page    {host}/\n\
             \x20 device  {name}: {qubits} qubits, {targets}, {slots} at a time\n\
             \x20 plugin  {plugin}, {kind}\n\
             \x20 cloud   {cloud}\n\
             \x20 redis   {redis}  stream qpu:{qpu}:jobs\n\
             \x20 host    {host}  /health /ready /metrics  process {pid}\n\
             \x20 log     {log}\n\n\
             Send a job from another terminal:\n\
             \x20 {program} submit CIRCUIT.json --shots 1000 --wait{url}\n",
            title = self.out.bold("A local Coda sandbox"),
            name = d.name,
            qubits = d.num_qubits,
            targets = d.targets.join(" "),
            slots = d.slots,
            plugin = d.plugin,
            kind = d.kind,
            cloud = n.url,
            redis = n.redis_url,
            qpu = n.qpu_id,
            host = n.host_url,
            pid = self.host.pid(),
            log = n.log.display(),
            program = program(),
        );
        self.out.line(&text)
    }
}

/// Prints why the host ended, with the last lines of its log.
fn show_end(host: &DevHost, status: ExitStatus) {
    output::notice(format!(
        "the host ended ({status}); the last lines of its log:\n{}",
        host.last_lines(LOG_LINES)
    ));
}

/// Why the sandbox ends.
enum End {
    Done(Result<ExitCode, Failure>),
    Host(ExitStatus),
    Stopped,
}

/// Runs the demo if it is asked for, then shows every change of a job's state.
async fn show_jobs(
    args: &Args,
    cloud: &DevCloud,
    session: &DevSession,
    out: &mut Terminal,
) -> Result<ExitCode, Failure> {
    if args.demo {
        let fine = demo::run(cloud, session, out).await?;
        if args.once {
            return Ok(if fine { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILURE) });
        }
    }
    out.line("Jobs, with the time since each was queued (Ctrl-C ends):")?;
    let mut follower = Follower::new(&session.redis_url, &session.qpu_id).await.map_err(DevError::Redis)?;
    loop {
        match follower.next(cloud).await {
            Ok(moved) => {
                for m in moved {
                    let error = m.error.map_or(String::new(), |e| format!("  {}", one_line(&e)));
                    out.line(&format!("  {}  {}{error}", m.job_id, out.step(m.state, m.after)))?;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the sandbox's Redis doesn't answer; no jobs are shown");
                tokio::time::sleep(REDIS_PAUSE).await;
            }
        }
    }
}

/// The directory for state and log, and its handle when it is a temporary one.
fn work_directory(args: &Args, env: &ProcessEnv) -> Result<(PathBuf, Option<TempDir>), Failure> {
    if let Some(dir) = &args.dir {
        let dir = env.cwd.join(dir);
        files::ensure_dir(&dir)?;
        return Ok((dir, None));
    }
    let made = tempfile::Builder::new().prefix("coda-host-dev-").tempdir().map_err(DevError::Directory)?;
    Ok((made.path().to_path_buf(), Some(made)))
}

fn replaced(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    name.starts_with("CODA_VPN_") || REPLACED.contains(&name.as_str())
}

/// The gate set that the cloud compiles for: the one asked for if the device takes it, else its first.
fn gate_set(device: &DeviceView, env: &ProcessEnv) -> String {
    let asked = env.environment.iter().find(|(k, _)| k.eq_ignore_ascii_case("CODA_NATIVE_GATE_SET"));
    let asked = asked.map(|(_, v)| v).filter(|v| device.targets.contains(v));
    asked.or(device.targets.first()).cloned().unwrap_or_else(|| "cz".into())
}

async fn free_port() -> Result<u16, Failure> {
    let bound = async { tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr() };
    Ok(bound.await.map_err(DevError::Port)?.port())
}

/// The name by which this program was called, so that the printed command can be copied.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "coda-host".into())
}

/// A child's exit status as this process's; a child that a signal killed has failed.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(exit::FAILURE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_another_connection_are_not_inherited() {
        for name in ["CODA_VPN_PROBE_TARGETS", "coda_qpu_id", "CODA_STATE_DIR", "CODA_JWT_KEY_ID"] {
            assert!(replaced(name), "{name}");
        }
        for name in ["PATH", "CODA_PREFETCH", "CODA_DEVICE_CONFIG", "CODA_LOG", "CODA_PLUGIN_PATH"] {
            assert!(!replaced(name), "{name}");
        }
    }
}
