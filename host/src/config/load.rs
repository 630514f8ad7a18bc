//! Every setting once: its variable, its default, and its field in [`Settings`].

pub mod peers;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::ConfigError;
use super::settings::{
    ApiSettings, AvailabilitySettings, CallbackPolicy, CloudSettings, Credentials, DEFAULT_QUBITS,
    DaemonSettings, Dirs, ExecutorSettings, HistorySettings, Identity, JobSettings, Settings,
    ShutdownSettings, SiteLimits, VpnSettings, WebhookSettings,
};
use super::source::{EffectiveSetting, Source};
use crate::model::Secret;
use crate::state::credentials::{StoredConfig, StoredCredentials};
use crate::state::db::HistoryLimits;
use crate::state::files;

/// The process environment: its variables and its working directory, read once at the start.
#[derive(Debug, Clone)]
pub struct ProcessEnv {
    pub environment: HashMap<String, String>,
    pub cwd: PathBuf,
}

impl ProcessEnv {
    /// The variables of an environment. A carriage return at the end of a value of ours is what an environment file with
    /// Windows line ends leaves there; it belongs to no value.
    pub fn new(variables: impl IntoIterator<Item = (String, String)>, cwd: PathBuf) -> ProcessEnv {
        let mut env = ProcessEnv { environment: HashMap::new(), cwd };
        env.extend(variables);
        env
    }

    /// Adds variables; those that are there already are replaced.
    pub fn extend(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        self.environment.extend(variables.into_iter().map(|(name, value)| {
            let ours = name.to_ascii_uppercase().starts_with("CODA_");
            let value = if ours { value.trim_end_matches('\r').to_string() } else { value };
            (name, value)
        }));
    }

    /// Returns a variable of the system by its exact name. An empty variable is treated as unset.
    pub fn plain(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|v| !v.is_empty())
    }

    /// Returns a variable of coda-host, by its name in any case. An empty variable is treated as unset.
    pub fn ours(&self, name: &str) -> Option<&str> {
        let mut found =
            self.environment.iter().filter(|(k, v)| k.eq_ignore_ascii_case(name) && !v.is_empty());
        found.next().map(|(_, v)| v.as_str())
    }
}

/// Returns the directories of the host's files. They are known before every other setting, because stored values are
/// read from them.
///
/// # Errors
/// No variable names a directory, and this user has no home.
pub fn dirs(env: &ProcessEnv) -> Result<Dirs, ConfigError> {
    let absolute = |p: &str| env.cwd.join(p);
    let named = env
        .ours("CODA_STATE_DIR")
        .or_else(|| env.plain("STATE_DIRECTORY").and_then(|list| list.split(':').next()));
    if let Some(dir) = named {
        return Ok(Dirs { credentials: absolute(dir), state: absolute(dir) });
    }
    let credentials = absolute(env.plain("TMPDIR").unwrap_or("/tmp"));
    let root = files::effective_user().is_ok_and(|uid| uid == 0);
    let state = if root {
        PathBuf::from("/var/lib/coda-host")
    } else if let Some(dir) = env.plain("XDG_STATE_HOME") {
        absolute(dir).join("coda-host")
    } else if let Some(home) = env.plain("HOME") {
        Path::new(home).join(".local/state/coda-host")
    } else {
        return Err(ConfigError::NoStateDir);
    };
    Ok(Dirs { credentials, state })
}

/// Reads every setting. `stored` holds the values of a former connect, when this start reconnects with them.
///
/// # Errors
/// A value is not allowed. The error names the variable and what is allowed.
pub fn settings(
    env: &ProcessEnv,
    flags: HashMap<&'static str, String>,
    dirs: Dirs,
    stored: Option<&StoredCredentials>,
) -> Result<(Settings, Vec<EffectiveSetting>), ConfigError> {
    let mut s = Source::new(env.environment.clone(), flags);
    let empty = StoredConfig::default();
    let config = stored.map_or(&empty, |s| &s.config);
    // `coda-host config` prints the settings in this order.
    let identity = identity(&mut s, config)?;
    let credentials = Credentials {
        node_token: s.optional("CODA_NODE_TOKEN", None).map(Secret::new),
        jwt_private_key: s
            .optional("CODA_JWT_PRIVATE_KEY", None)
            .map(Secret::new)
            .or_else(|| stored.and_then(|s| s.private_key.clone())),
        jwt_key_id: s.optional("CODA_JWT_KEY_ID", config.jwt_key_id.clone()),
    };
    let ca_file = s.optional("CODA_CA_FILE", None).map(|p| env.cwd.join(p));
    let cloud = cloud(&mut s, config, ca_file)?;
    let jobs = jobs(&mut s)?;
    let webhook = webhook(&mut s)?;
    let executor = executor(&mut s, env)?;
    let api = ApiSettings {
        host: s.text("CODA_HOST", None, "0.0.0.0"),
        port: s.integer("CODA_PORT", None, 8080, 0..=65535)? as u16,
        request_timeout: s.seconds("CODA_REQUEST_TIMEOUT_SEC", None, 5.0)?,
        sandbox_url: s.optional("CODA_SANDBOX_URL", None),
        page_interval: s.seconds("CODA_PAGE_INTERVAL_SEC", None, 1.0)?,
        page_sample: s.seconds("CODA_PAGE_SAMPLE_SEC", None, 10.0)?,
    };
    let vpn = vpn(&mut s, env, config, &dirs)?;
    let advertised_provider = s.text("CODA_ADVERTISED_PROVIDER", None, "coda");
    let shutdown = ShutdownSettings {
        drain: s.seconds("CODA_SHUTDOWN_DRAIN_TIMEOUT_SEC", None, 30.0)?,
        margin: s.seconds("CODA_SHUTDOWN_MARGIN_SEC", None, 25.0)?,
    };
    let availability = AvailabilitySettings {
        interval: s.seconds("CODA_AVAILABILITY_INTERVAL_SEC", None, 0.2)?,
        calendar: s.optional("CODA_MAINTENANCE_CALENDAR", None).map(|path| env.cwd.join(path)),
        lead: s.seconds("CODA_MAINTENANCE_LEAD_SEC", None, 60.0)?,
    };
    let history = HistorySettings {
        limits: HistoryLimits {
            max_rows: s.integer("CODA_HISTORY_MAX_ROWS", None, 1_000_000, 1..=100_000_000)?,
            days: s.integer("CODA_HISTORY_DAYS", None, 30, 1..=3650)?,
        },
        sample: s.seconds("CODA_HISTORY_SAMPLE_SEC", None, 60.0)?,
    };
    let daemon = DaemonSettings {
        log_max_bytes: s.integer("CODA_LOG_MAX_MIB", None, 20, 1..=1 << 20)? << 20,
        log_check_interval: s.seconds("CODA_LOG_CHECK_INTERVAL_SEC", None, 5.0)?,
    };
    let peer = peers::peer(&mut s)?;
    let coordinator = peers::coordinator(&mut s)?;
    let settings = Settings {
        identity,
        credentials,
        cloud,
        jobs,
        webhook,
        executor,
        api,
        vpn,
        dirs,
        shutdown,
        availability,
        history,
        daemon,
        peer,
        coordinator,
        advertised_provider,
    };
    Ok((settings, s.shown()))
}

fn identity(s: &mut Source, config: &StoredConfig) -> Result<Identity, ConfigError> {
    let redis_url = config.redis_url.as_ref().map(|u| u.expose().to_string());
    Ok(Identity {
        qpu_id: s.text("CODA_QPU_ID", config.qpu_id.clone(), ""),
        qpu_display_name: s.text("CODA_QPU_DISPLAY_NAME", config.qpu_display_name.clone(), ""),
        native_gate_set: s.text("CODA_NATIVE_GATE_SET", config.native_gate_set.clone(), "cz"),
        num_qubits: s.integer(
            "CODA_NUM_QUBITS",
            config.num_qubits.map(u64::from),
            u64::from(DEFAULT_QUBITS),
            1..=50,
        )? as u16,
        redis_url: Secret::new(s.text("CODA_REDIS_URL", redis_url, "")),
    })
}

fn vpn(
    s: &mut Source,
    env: &ProcessEnv,
    config: &StoredConfig,
    dirs: &Dirs,
) -> Result<VpnSettings, ConfigError> {
    let profile = config.node_vpn_profile_path.as_ref().map(|p| p.display().to_string());
    let default_profile = dirs.credentials.join("coda-node.ovpn").display().to_string();
    Ok(VpnSettings {
        required: s.boolean("CODA_VPN_REQUIRED", config.vpn_required, true)?,
        check_interval: s.seconds("CODA_VPN_CHECK_INTERVAL_SEC", config.vpn_check_interval_sec, 10.0)?,
        interface_hint: s.optional("CODA_VPN_INTERFACE_HINT", config.vpn_interface_hint.clone()),
        probe_targets: s.json_list("CODA_VPN_PROBE_TARGETS", config.vpn_probe_targets.clone())?,
        allow_degraded: s.boolean("CODA_ALLOW_DEGRADED_STARTUP", None, false)?,
        auto: s.boolean("CODA_NODE_AUTO_VPN", config.node_auto_vpn, true)?,
        profile_path: env.cwd.join(s.text("CODA_NODE_VPN_PROFILE_PATH", profile, &default_profile)),
        start_timeout: s.seconds("CODA_VPN_START_TIMEOUT_SEC", None, 30.0)?,
        stop_timeout: s.seconds("CODA_VPN_STOP_TIMEOUT_SEC", None, 5.0)?,
        command_timeout: s.seconds("CODA_VPN_COMMAND_TIMEOUT_SEC", None, 10.0)?,
        probe_timeout: s.seconds("CODA_VPN_PROBE_TIMEOUT_SEC", None, 5.0)?,
    })
}

fn cloud(
    s: &mut Source,
    config: &StoredConfig,
    ca_file: Option<PathBuf>,
) -> Result<CloudSettings, ConfigError> {
    let url = s.text("CODA_WEBAPP_URL", config.webapp_url.clone(), "https://coda.conductorquantum.com");
    let path = |s: &mut Source, name, stored: &Option<String>, last: &str| {
        s.text(name, stored.clone(), &format!("/api/internal/qpu/{last}"))
    };
    let headers = s.json_object("CODA_NODE_CONNECT_HEADERS")?;
    Ok(CloudSettings {
        webapp_url: url.trim_end_matches('/').into(),
        connect_path: path(s, "CODA_CONNECT_PATH", &config.connect_path, "connect"),
        heartbeat_path: path(s, "CODA_HEARTBEAT_PATH", &config.heartbeat_path, "heartbeat"),
        webhook_path: path(s, "CODA_WEBHOOK_PATH", &config.webhook_path, "webhook"),
        timeout: s.seconds("CODA_NODE_TIMEOUT_SEC", None, 15.0)?,
        connect_attempts: s.integer("CODA_NODE_CONNECT_RETRIES", None, 3, 1..=1000)? as u32,
        connect_backoff: s.seconds("CODA_CONNECT_BACKOFF_SEC", None, 1.0)?,
        connect_headers: headers.into_iter().map(|(k, v)| (k, Secret::new(v))).collect(),
        machine_fingerprint: s.text(
            "CODA_NODE_MACHINE_FINGERPRINT",
            config.node_machine_fingerprint.clone(),
            "",
        ),
        ca_file,
        heartbeat_interval: s.seconds("CODA_HEARTBEAT_INTERVAL_SEC", None, 30.0)?,
        heartbeat_timeout: s.seconds("CODA_HEARTBEAT_TIMEOUT_SEC", None, 10.0)?,
        http_idle: s.seconds("CODA_HTTP_IDLE_SEC", None, 4.0)?,
        jwt_reuse: s.seconds("CODA_JWT_REUSE_SEC", None, 60.0)?,
    })
}

fn jobs(s: &mut Source) -> Result<JobSettings, ConfigError> {
    Ok(JobSettings {
        consumer_name: s.text("CODA_CONSUMER_NAME", None, "worker-0"),
        prefetch: s.integer("CODA_PREFETCH", None, 4, 1..=1000)? as usize,
        batch_max: s.integer("CODA_BATCH_MAX", None, 10, 1..=100)? as usize,
        block: s.seconds("CODA_REDIS_BLOCK_SEC", None, 1.0)?,
        cancel_poll: s.seconds("CODA_CANCEL_POLL_SEC", None, 0.1)?,
        limits: SiteLimits {
            max_shots: s.optional_integer("CODA_MAX_SHOTS", i32::MAX as u64)?.map(|n| n as u32),
            max_gates: s.optional_integer("CODA_MAX_GATES", u64::from(u32::MAX))?,
            max_run: s.optional_seconds("CODA_MAX_RUN_SEC")?,
        },
        retry_max: s.integer("CODA_RETRY_MAX", None, 2, 0..=100)? as u32,
        retry_window: s.seconds("CODA_RETRY_WINDOW_SEC", None, 600.0)?,
        retry_pause: s.seconds("CODA_RETRY_PAUSE_SEC", None, 1.0)?,
        retry_pause_max: s.seconds("CODA_RETRY_PAUSE_MAX_SEC", None, 60.0)?,
        recover_interval: s.seconds("CODA_RECOVER_INTERVAL_SEC", None, 60.0)?,
        redis_backoff: s.seconds("CODA_REDIS_BACKOFF_SEC", None, 1.0)?,
        redis_backoff_max: s.seconds("CODA_REDIS_BACKOFF_MAX_SEC", None, 60.0)?,
        redis_timeout: s.seconds("CODA_REDIS_TIMEOUT_SEC", None, 5.0)?,
        max_deaths: s.integer("CODA_MAX_DEATHS", None, 3, 1..=1000)? as u32,
        min_free_bytes: s.integer("CODA_MIN_FREE_MIB", None, 64, 0..=1 << 30)? << 20,
        max_result_bytes: s.integer("CODA_MAX_RESULT_BYTES", None, 64 << 20, 1..=900_000_000)? as usize,
    })
}

fn webhook(s: &mut Source) -> Result<WebhookSettings, ConfigError> {
    let callback = s.text("CODA_CALLBACK_ORIGINS", None, "");
    let callback = match callback.trim() {
        "any" => CallbackPolicy::Any,
        list => CallbackPolicy::Hosts(
            list.split(',').map(str::trim).filter(|h| !h.is_empty()).map(String::from).collect(),
        ),
    };
    Ok(WebhookSettings {
        timeout: s.seconds("CODA_WEBHOOK_TIMEOUT_SEC", None, 30.0)?,
        backoff: s.seconds("CODA_WEBHOOK_BACKOFF_SEC", None, 1.0)?,
        backoff_max: s.seconds("CODA_WEBHOOK_BACKOFF_MAX_SEC", None, 300.0)?,
        max_in_flight: s.integer("CODA_WEBHOOK_MAX_IN_FLIGHT", None, 64, 1..=10_000)? as usize,
        max_per_origin: s.integer("CODA_WEBHOOK_MAX_PER_ORIGIN", None, 16, 1..=10_000)? as usize,
        callback,
    })
}

fn executor(s: &mut Source, env: &ProcessEnv) -> Result<ExecutorSettings, ConfigError> {
    let device = s.optional("CODA_DEVICE_CONFIG", None);
    let fallback = env.cwd.join("site/device.yaml");
    let device_config = match device {
        Some(path) => Some(env.cwd.join(path)),
        None => fallback.is_file().then_some(fallback),
    };
    let plugin_path = s.text("CODA_PLUGIN_PATH", None, "");
    Ok(ExecutorSettings {
        factory: s.optional("CODA_EXECUTOR_FACTORY", None),
        device_config,
        python: s.optional("CODA_EXECUTOR_PYTHON", None),
        reverse_bits: reverse_bits(s)?,
        plugin_path: plugin_path.split(':').filter(|p| !p.is_empty()).map(|p| env.cwd.join(p)).collect(),
        control_timeout: s.seconds("CODA_CONTROL_TIMEOUT_SEC", None, 5.0)?,
        device_refresh: s.seconds("CODA_DEVICE_REFRESH_SEC", None, 60.0)?,
        start_timeout: s.seconds("CODA_EXECUTOR_START_TIMEOUT_SEC", None, 600.0)?,
        log_bytes_per_second: s.integer("CODA_PLUGIN_LOG_KIB_PER_SEC", None, 128, 1..=1 << 20)? << 10,
        isolated: isolated(s)?,
        user: s.optional("CODA_EXECUTOR_USER", None),
        capabilities: s.list("CODA_EXECUTOR_CAPABILITIES", "", CAPABILITY_NAMES, capability)?,
        restart_backoff: s.seconds("CODA_EXECUTOR_RESTART_BACKOFF_SEC", None, 0.5)?,
        restart_backoff_max: s.seconds("CODA_EXECUTOR_RESTART_BACKOFF_MAX_SEC", None, 30.0)?,
        job_timeout: s.optional_seconds("CODA_JOB_TIMEOUT_SEC")?,
        cancel_grace: s.seconds("CODA_CANCEL_GRACE_SEC", None, 30.0)?,
        stuck_exit: s.boolean("CODA_EXECUTOR_STUCK_EXIT", None, false)?,
        sha256: sha256(s)?,
    })
}

fn isolated(s: &mut Source) -> Result<bool, ConfigError> {
    let read = |text: &str| match text.to_ascii_lowercase().as_str() {
        "none" => Some(false),
        "process" => Some(true),
        _ => None,
    };
    let write = |on: &bool| if *on { "process" } else { "none" }.to_string();
    s.parsed("CODA_EXECUTOR_ISOLATION", None, false, "none or process", read, write)
}

fn reverse_bits(s: &mut Source) -> Result<bool, ConfigError> {
    let read = |text: &str| match text.to_ascii_lowercase().as_str() {
        "measurements" => Some(false),
        "reversed" => Some(true),
        _ => None,
    };
    let write = |reversed: &bool| if *reversed { "reversed" } else { "measurements" }.to_string();
    s.parsed("CODA_EXECUTOR_BIT_ORDER", None, false, "measurements or reversed", read, write)
}

const CAPABILITY_NAMES: &str = "names of capabilities such as CAP_SYS_RAWIO, or keep";

/// Whether there is such a capability says the start.
fn capability(text: &str) -> Option<String> {
    let is_name = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then(|| text.to_string())
}

fn sha256(s: &mut Source) -> Result<Option<String>, ConfigError> {
    let allowed = "64 hexadecimal digits, as sha256sum prints them; several with commas between them";
    let one = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let good = |text: &str| text.split(',').all(one);
    let read = |text: &str| good(text).then(|| Some(text.to_ascii_lowercase()));
    s.parsed("CODA_EXECUTOR_SHA256", None, None, allowed, read, |pin: &Option<String>| {
        pin.clone().unwrap_or_default()
    })
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
