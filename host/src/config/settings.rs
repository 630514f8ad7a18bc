//! The checked settings, in groups that each stage takes whole. Durations are all here, so that tests can
//! shorten every one of them.

use std::path::PathBuf;
use std::time::Duration;

use libp2p::Multiaddr;

use crate::model::Secret;
use crate::state::db::HistoryLimits;

/// Qubits of a QPU of which nothing is known, as in the Python node.
pub const DEFAULT_QUBITS: u16 = 5;

/// Every setting of a host, before the cloud's bundle replaces some of them.
#[derive(Debug, Clone)]
pub struct Settings {
    pub identity: Identity,
    pub credentials: Credentials,
    pub cloud: CloudSettings,
    pub jobs: JobSettings,
    pub webhook: WebhookSettings,
    pub executor: ExecutorSettings,
    pub api: ApiSettings,
    pub vpn: VpnSettings,
    pub dirs: Dirs,
    pub shutdown: ShutdownSettings,
    pub availability: AvailabilitySettings,
    pub history: HistorySettings,
    pub daemon: DaemonSettings,
    pub peer: PeerSettings,
    pub coordinator: CoordinatorSettings,
    /// Told to executors in Python code, and unused besides, as in the Python node.
    pub advertised_provider: String,
}

/// What a site takes at most, beyond what its device takes; none where nothing is set.
#[derive(Debug, Clone, Copy, Default)]
pub struct SiteLimits {
    pub max_shots: Option<u32>,
    pub max_gates: Option<u64>,
    /// By the pace of the last run of such a circuit; what has never run is taken.
    pub max_run: Option<Duration>,
}

/// When runs may begin.
#[derive(Debug, Clone)]
pub struct AvailabilitySettings {
    /// Between two looks at the pause and the calendar.
    pub interval: Duration,
    /// An iCalendar file with the times of maintenance.
    pub calendar: Option<PathBuf>,
    /// How long a run is expected to take of which nothing is known.
    pub lead: Duration,
}

/// The record of ended jobs and of availability.
#[derive(Debug, Clone)]
pub struct HistorySettings {
    pub limits: HistoryLimits,
    /// How often the record of availability is brought up to date.
    pub sample: Duration,
}

/// The identity of the QPU; the cloud's bundle replaces all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub qpu_id: String,
    pub qpu_display_name: String,
    pub native_gate_set: String,
    pub num_qubits: u16,
    pub redis_url: Secret,
}

/// The credentials of the host: a one-time token, a key, or both.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// One-time token of a first run.
    pub node_token: Option<Secret>,
    /// PEM, PKCS#8 or PKCS#1; from the environment or from the persisted key file.
    pub jwt_private_key: Option<Secret>,
    pub jwt_key_id: Option<String>,
}

/// The cloud's address and how requests to it are made. The cloud's bundle replaces URL and paths.
#[derive(Debug, Clone)]
pub struct CloudSettings {
    /// Without a trailing slash; endpoints are plain concatenations.
    pub webapp_url: String,
    pub connect_path: String,
    pub heartbeat_path: String,
    pub webhook_path: String,
    /// Timeout of one connect request.
    pub timeout: Duration,
    /// Number of connect attempts, the first included.
    pub connect_attempts: u32,
    /// Longest first pause between attempts. It doubles; the pause itself is random.
    pub connect_backoff: Duration,
    /// Headers that are added to the host's own, for requests to the webapp's host only.
    pub connect_headers: Vec<(String, Secret)>,
    pub machine_fingerprint: String,
    /// PEM bundle of certificates that are trusted in addition to the system's roots.
    pub ca_file: Option<PathBuf>,
    pub heartbeat_interval: Duration,
    pub heartbeat_timeout: Duration,
    /// How long an unused connection is kept; below what servers allow (5 s is common), so that they don't
    /// close it under a request.
    pub http_idle: Duration,
    /// How long a signed token is used before a new one is made.
    pub jwt_reuse: Duration,
}

/// Claiming and cancelling jobs.
#[derive(Debug, Clone)]
pub struct JobSettings {
    pub consumer_name: String,
    /// Messages read ahead for each slot.
    pub prefetch: usize,
    /// Largest number of jobs in one batch call.
    pub batch_max: usize,
    /// How long a blocking read waits.
    pub block: Duration,
    pub cancel_poll: Duration,
    pub limits: SiteLimits,
    /// Runs of a job that are made again after a retryable error; 0 for none.
    pub retry_max: u32,
    /// Time since the first failure of a job within which it is run again.
    pub retry_window: Duration,
    /// Before the first further run; it doubles each time.
    pub retry_pause: Duration,
    pub retry_pause_max: Duration,
    /// How often this consumer's own pending messages are looked through.
    pub recover_interval: Duration,
    /// First pause after Redis was lost, and the longest.
    pub redis_backoff: Duration,
    pub redis_backoff_max: Duration,
    /// Answers of Redis, beyond the block time for blocking reads.
    pub redis_timeout: Duration,
    /// Runs of a job during which the process may die before it is given up.
    pub max_deaths: u32,
    /// Free bytes on the state disk below which nothing is claimed.
    pub min_free_bytes: u64,
    /// Largest result, as the bytes of its webhook's body.
    pub max_result_bytes: usize,
}

/// Delivering results.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// Timeout of one attempt, connecting included.
    pub timeout: Duration,
    /// Longest first pause after a failed attempt. It doubles up to `backoff_max`; the pause itself is random.
    pub backoff: Duration,
    pub backoff_max: Duration,
    pub max_in_flight: usize,
    pub max_per_origin: usize,
    pub callback: CallbackPolicy,
}

/// Which hosts a result may be sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallbackPolicy {
    /// The webapp's host, and these.
    Hosts(Vec<String>),
    Any,
}

/// Finding and driving the plugin.
#[derive(Debug, Clone)]
pub struct ExecutorSettings {
    /// `CODA_EXECUTOR_FACTORY`, which takes precedence over `executor_factory` in device.yaml.
    pub factory: Option<String>,
    /// Absolute path of the device config.
    pub device_config: Option<PathBuf>,
    /// `CODA_EXECUTOR_PYTHON`: the interpreter of an executor in Python code, or its virtual environment.
    pub python: Option<String>,
    /// Whether the keys of an executor in Python code are in the reverse order of `measurements`.
    pub reverse_bits: bool,
    /// Directories of `CODA_PLUGIN_PATH`.
    pub plugin_path: Vec<PathBuf>,
    /// A control call that takes longer marks the executor stuck.
    pub control_timeout: Duration,
    /// How often the plugin is asked for its device.
    pub device_refresh: Duration,
    /// How long a plugin may take to load and to create its executor.
    pub start_timeout: Duration,
    /// Whether the plugin runs in a separate process.
    pub isolated: bool,
    /// The account that such a process runs as, when one is named.
    pub user: Option<String>,
    /// `CODA_EXECUTOR_CAPABILITIES`: what a process of root keeps of root's capabilities.
    pub capabilities: Vec<String>,
    /// Longest pause before a plugin's process that died twice in a row is started again. It doubles from there; the
    /// pause itself is random.
    pub restart_backoff: Duration,
    pub restart_backoff_max: Duration,
    /// Bytes per second that the plugin may write into the log.
    pub log_bytes_per_second: u64,
    /// Longest run; `None` for no limit.
    pub job_timeout: Option<Duration>,
    /// How long a run may go on after its cancel or timeout.
    pub cancel_grace: Duration,
    /// Whether the host ends, for its supervisor to start it again, when a run is stuck in this process.
    pub stuck_exit: bool,
    /// The SHA-256 that the plugin's file must have, and after commas those of the libraries beside it.
    pub sha256: Option<String>,
}

/// The local HTTP service.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    pub host: String,
    pub port: u16,
    pub request_timeout: Duration,
    /// The development cloud of the sandbox that this host is a part of.
    pub sandbox_url: Option<String>,
    /// How often the page is rendered while somebody looks.
    pub page_interval: Duration,
    /// How often slots and gauges are sampled for the page.
    pub page_sample: Duration,
}

#[derive(Debug, Clone)]
pub struct VpnSettings {
    pub required: bool,
    pub check_interval: Duration,
    pub interface_hint: Option<String>,
    pub probe_targets: Vec<String>,
    pub allow_degraded: bool,
    /// Whether the host starts OpenVPN itself.
    pub auto: bool,
    /// Absolute path of the profile.
    pub profile_path: PathBuf,
    /// How long the tunnel may take to come up.
    pub start_timeout: Duration,
    /// How long OpenVPN may take to end before it is killed.
    pub stop_timeout: Duration,
    /// Timeout of one command (`ip`, the start of `openvpn`).
    pub command_timeout: Duration,
    /// Timeout of one probe request.
    pub probe_timeout: Duration,
}

#[derive(Debug, Clone)]
pub struct Dirs {
    /// Directory of `coda.config` and `coda-private-key`; by default that of the Python node.
    pub credentials: PathBuf,
    /// Results, history and other things that must survive a reboot.
    pub state: PathBuf,
}

#[derive(Debug, Clone)]
pub struct ShutdownSettings {
    /// How long a job in flight may take to finish after SIGTERM.
    pub drain: Duration,
    /// How long everything else of a stop may take before the process is ended at once.
    pub margin: Duration,
}

/// The log of `start --daemon`.
#[derive(Debug, Clone)]
pub struct DaemonSettings {
    /// Size at which the log is rotated; one older file is kept.
    pub log_max_bytes: u64,
    pub log_check_interval: Duration,
}

/// The peer network, and what is lent to it.
#[derive(Debug, Clone)]
pub struct PeerSettings {
    pub enabled: bool,
    /// Whether the host joins only the peer network, without cloud and Redis.
    pub no_cloud: bool,
    pub listen: Vec<Multiaddr>,
    pub network: NetworkBasics,
    /// Services that are offered.
    pub services: Vec<String>,
    pub allow: AllowSetting,
    pub max_ttl_seconds: i64,
    /// Most connections that others have made.
    pub max_connections: usize,
    /// Largest number of slots that are lent at once: in total, and to one peer.
    pub max_slots: usize,
    pub max_per_peer: usize,
    /// Longest execution that is accepted.
    pub max_execution: Duration,
}

/// What peers and coordinators have in common.
#[derive(Debug, Clone)]
pub struct NetworkBasics {
    pub namespace: String,
    pub bootstrap: Vec<Multiaddr>,
    pub advertise: Vec<Multiaddr>,
    /// Time within which a request must have arrived completely.
    pub read_limit: Duration,
    /// The longest exchange on one stream.
    pub exchange_limit: Duration,
    /// How long an unused connection is kept.
    pub idle: Duration,
    pub redial: Duration,
    pub heartbeat: Duration,
    pub max_document_bytes: usize,
    /// Memory budget of all documents that are being read or written.
    pub max_memory_bytes: usize,
}

/// Which peers may reserve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowSetting {
    /// The bootstrap peers.
    Bootstrap,
    Any,
    Listed(Vec<String>),
}

#[derive(Debug, Clone)]
pub struct CoordinatorSettings {
    pub listen: Vec<Multiaddr>,
    /// Address of the HTTP service, `host:port`.
    pub http: String,
    /// A path or a `postgres://` URL; none: in the state directory.
    pub store: Option<Secret>,
    pub api_token: Option<Secret>,
    /// Where `coda-host coordinate` finds a coordinator.
    pub url: String,
    /// Timeouts: of one prepare, commit or cancel, and of one dispatch.
    pub call_limit: Duration,
    pub dispatch_limit: Duration,
    pub ttl_seconds: u64,
    /// After so much silence a peer is stale; looked at so often.
    pub stale: Duration,
    pub sweep: Duration,
    /// How long a job waits for peers that offer what it needs.
    pub peer_wait: Duration,
    /// How long a block waits for a slot of a peer.
    pub slot_wait: Duration,
    /// Whether a block that takes far too long is given to another peer as well.
    pub hedge: bool,
    /// How often reservations whose time is over are looked for.
    pub expiry_interval: Duration,
    /// How long a job may take since it was submitted.
    pub job_deadline: Duration,
    /// How often the states of a running job are recorded.
    pub checkpoint_interval: Duration,
    /// Most connections that others have made.
    pub max_connections: usize,
    /// How long the lease of a coordinator's identity lasts without being renewed.
    pub lease: Duration,
    /// How often the queue of jobs is looked at without a reason.
    pub queue_interval: Duration,
    pub max_running: usize,
    pub max_waiting: usize,
    pub max_shots: u32,
    /// Long polls and event streams at once.
    pub max_watchers: usize,
    /// How often an event stream shows that it lives.
    pub keep_alive: Duration,
    /// Reads need no token.
    pub open_reads: bool,
}
