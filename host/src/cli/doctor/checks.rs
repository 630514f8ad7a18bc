//! The checks of `coda-host doctor`, in the order in which a start needs what they look at.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::super::running_host;
use super::{Finding, Verdict, migration, peer};
use crate::app::{self, Prepared};
use crate::cloud::http::{HttpClient, Target};
use crate::config::load::{self, ProcessEnv};
use crate::config::settings::Dirs;
use crate::daemon::conflicts::ConflictError;
use crate::daemon::instance_lock::{self, LockHolder};
use crate::daemon::python_node::{self, PythonNode};
use crate::executor::account::{self, RunsAs};
use crate::executor::elf;
use crate::executor::inspect_python;
use crate::executor::locate::{Located, LocatedPython};
use crate::executor::python::interpreter::Interpreter;
use crate::executor::python::spec::PythonFacts;
use crate::jobs::redis::{Names, Redis, RedisFailure};
use crate::state::credentials;
use crate::state::db::{Database, KeptKind};
use crate::sys::{self, Dispositions};
use crate::vpn::command::Programs;
use crate::vpn::interface;

/// Limit of one request over the network.
const LIMIT: Duration = Duration::from_secs(5);
/// A clock that is off by more makes tokens invalid here or there.
const CLOCK_WARN: Duration = Duration::from_secs(30);
const CLOCK_FAIL: Duration = Duration::from_secs(300);

/// Runs every check. A failed check does not stop the others.
pub async fn run_checks(env: &ProcessEnv, no_plugin: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let dirs = match load::dirs(env) {
        Ok(dirs) => dirs,
        Err(e) => return vec![Finding::failure("directories", &e.into())],
    };
    findings.extend(directories(&dirs));
    let prepared = app::prepare(env, HashMap::new());
    let no_cloud = prepared.as_ref().is_ok_and(|p| p.settings.peer.no_cloud);
    if !no_cloud {
        findings.push(stored(&dirs));
    }
    let holder = match instance_lock::holder(&dirs.state) {
        Ok(holder) => holder,
        Err(e) => {
            findings.push(Finding::failure("running", &e.into()));
            None
        }
    };
    match &holder {
        Some(holder) => findings.extend(running(holder).await),
        None => findings.push(Finding::skip("running", "no coda-host is running here")),
    }
    findings.push(results(&dirs.state));
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => {
            findings.push(Finding::failure("settings", &failure));
            return findings;
        }
    };
    findings.push(Finding::pass("settings", format!("{} read", prepared.shown.len())));
    let of_this_qpu = python_node::find(&dirs.credentials, prepared.qpu_id());
    // Before the first start nothing tells of which QPU this host will be.
    let replaced = || prepared.qpu_id().is_none().then(python_node::find_any).flatten();
    let is_certain = of_this_qpu.is_some();
    let node = of_this_qpu.or_else(replaced);
    findings.extend(match &node {
        None => vec![Finding::pass("coda-node", "no Python node serves this QPU here")],
        Some(node) => migration(node, is_certain, &prepared, env),
    });
    findings.extend(runs_as(&prepared, env));
    // A second process must not open the device.
    let is_in_use = holder.is_some() || node.is_some();
    findings.push(plugin(&prepared, env, is_in_use || no_plugin).await);
    findings.push(port(&prepared, holder.as_ref(), node.is_some()));
    if prepared.settings.peer.enabled {
        findings
            .extend(peer::peer_checks(&prepared.settings.peer, &dirs.state, holder.is_some(), LIMIT).await);
    }
    if no_cloud {
        findings
            .push(Finding::skip("cloud", "not used (CODA_NO_CLOUD), so Redis and VPN are not used either"));
        return findings;
    }
    findings.extend(cloud(&prepared).await);
    findings.extend(redis(&prepared).await);
    findings.push(openvpn(&prepared, env));
    findings.extend(tunnel(&prepared, env, holder.is_some()));
    findings
}

/// What the running host says of itself: each reason why it takes no jobs is a failure.
async fn running(holder: &LockHolder) -> Vec<Finding> {
    let process = format!("process {}", holder.pid);
    let Some(address) = &holder.address else {
        let wait = "wait until it is up, or see its log";
        return vec![Finding::warn("running", format!("{process} is starting"), wait)];
    };
    let ready = match running_host::fetch_ready(address).await {
        Ok(ready) => ready,
        Err(failure) => {
            let todo = "see its log, and restart it if it does not answer again";
            let found = format!("{process} does not answer on {address}: {}", failure.line());
            return vec![Finding::fail("running", found, todo)];
        }
    };
    let text = |value: &serde_json::Value| value.as_str().map(String::from);
    let reasons: Vec<String> = ready["reasons"].as_array().into_iter().flatten().filter_map(text).collect();
    let mut findings = match reasons.is_empty() {
        true => vec![Finding::pass("running", format!("{process} is ready for jobs"))],
        false => reasons.iter().map(|reason| not_ready(&process, reason)).collect(),
    };
    if let Some(error) = text(&ready["heartbeat"]["error"]) {
        let todo = "correct what it names: results can't be delivered while the cloud refuses this host";
        findings.push(Finding::warn("heartbeat", format!("the last one failed: {error}"), todo));
    }
    findings
}

/// A reason ends with its remedy, behind the last semicolon.
fn not_ready(process: &str, reason: &str) -> Finding {
    let (what, todo) = reason.rsplit_once("; ").unwrap_or((reason, "see `coda-host logs`"));
    Finding::fail("running", format!("{process} takes no jobs: {what}"), todo)
}

fn directories(dirs: &Dirs) -> Vec<Finding> {
    let mut findings = Vec::new();
    let shown = dirs.state.display();
    // A start creates a missing directory, so the nearest existing one above it is checked.
    let there = dirs.state.ancestors().find(|d| d.exists()).unwrap_or(&dirs.state);
    findings.push(match tempfile::tempfile_in(there) {
        Ok(_) => match (in_memory(there), sys::free_bytes(there)) {
            (_, Ok(free)) if free < 64 << 20 => {
                Finding::fail("state", format!("{shown} has {} MiB left", free >> 20), "free space there")
            }
            (true, _) => Finding::warn(
                "state",
                format!("{shown} is in memory (tmpfs)"),
                "set CODA_STATE_DIR to a directory on disk: undelivered results would not survive a reboot",
            ),
            _ if there != dirs.state => Finding::pass("state", format!("{shown} can be created")),
            _ => Finding::pass("state", format!("{shown} is writable")),
        },
        Err(e) => Finding::fail("state", format!("{shown}: {e}"), "make it writable, or set CODA_STATE_DIR"),
    });
    let temp = dirs.credentials == std::env::temp_dir() || in_memory(&dirs.credentials);
    if temp {
        findings.push(Finding::warn(
            "credentials",
            format!("they are kept in {}, which a reboot may empty", dirs.credentials.display()),
            "set CODA_STATE_DIR, or run under systemd with StateDirectory=",
        ));
    }
    findings
}

/// Whether the directory is on a tmpfs, by the longest mount point that contains it.
fn in_memory(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (point, kind) = (words.next()?.to_string(), words.next()?.to_string());
        dir.starts_with(&point).then_some((point.len(), kind))
    };
    mounts.lines().filter_map(mount).max_by_key(|(len, _)| *len).is_some_and(|(_, kind)| kind == "tmpfs")
}

fn stored(dirs: &Dirs) -> Finding {
    match credentials::load(&dirs.credentials) {
        Ok(Some(stored)) if stored.usable() => {
            let qpu = stored.config.qpu_id.as_deref().unwrap_or_default().to_string();
            Finding::pass("stored", format!("credentials of QPU {qpu} in {}", dirs.credentials.display()))
        }
        Ok(Some(_)) => Finding::warn(
            "stored",
            format!("the credentials in {} are incomplete", dirs.credentials.display()),
            "start with a new one-time node token",
        ),
        Ok(None) => Finding::warn(
            "stored",
            format!("no credentials in {}", dirs.credentials.display()),
            "the first start needs the one-time node token that Coda shows for the QPU",
        ),
        Err(e) => Finding::failure("stored", &e.into()),
    }
}

fn results(state: &Path) -> Finding {
    if !Database::exists(state) {
        return Finding::pass("results", "none kept");
    }
    match Database::open(state).and_then(|d| d.list()) {
        Ok(kept) if kept.is_empty() => Finding::pass("results", "every result was delivered"),
        Ok(kept) => {
            let count = |kind: KeptKind| kept.iter().filter(|l| l.kind == kind).count();
            let found = format!(
                "{} undelivered, {} refused, {} dead letter(s)",
                count(KeptKind::Undelivered),
                count(KeptKind::Refused),
                count(KeptKind::DeadLetter)
            );
            Finding::warn("results", found, "coda-host results list")
        }
        Err(e) => Finding::failure("results", &e.into()),
    }
}

/// What a site that runs coda-node has to know before it switches.
fn migration(node: &PythonNode, is_certain: bool, prepared: &Prepared, env: &ProcessEnv) -> Vec<Finding> {
    let settings = &prepared.settings;
    let located = app::locate_plugin(settings, &prepared.device, env).ok();
    let host = migration::HostSide {
        env,
        credentials: &settings.dirs.credentials,
        device_config: prepared.device.path.as_deref(),
        located: located.as_ref(),
        runs_as: app::runs_as(settings, true).ok(),
        vpn_required: settings.vpn.required,
    };
    let found = match is_certain {
        true => Finding::failure("coda-node", &ConflictError::from(node.clone()).into()),
        false => Finding::warn(
            "coda-node",
            format!(
                "a Python coda-node (process {}, credentials in {}) runs here; this host has none yet, so it is taken \
                 for the one that is replaced",
                node.pid,
                node.dir.display()
            ),
            "stop it before the first start, unless it serves another QPU",
        ),
    };
    let mut findings = vec![found];
    findings.extend(migration::changes(node, &host));
    findings
}

/// The account of the plugin's worker process; `None` when the plugin runs in the host.
fn runs_as(prepared: &Prepared, env: &ProcessEnv) -> Option<Finding> {
    let needs_process = app::locate_plugin(&prepared.settings, &prepared.device, env)
        .is_ok_and(|located| located.needs_process());
    if !prepared.settings.executor.isolated && !needs_process {
        return None;
    }
    let rights = app::runs_as(&prepared.settings, true);
    let names = &prepared.settings.executor.capabilities;
    if let Some(kept) = rights.as_ref().ok().filter(|_| !names.is_empty()) {
        return Some(match account::kept_capabilities(names, kept) {
            Ok(kept) => Finding::warn(
                "isolation",
                format!(
                    "the plugin's process runs as root and keeps {kept}: it can do what these allow on this machine"
                ),
                "unset CODA_EXECUTOR_CAPABILITIES if the executor does not need them",
            ),
            Err(e) => Finding::failure("isolation", &e.into()),
        });
    }
    Some(match rights {
        Ok(RunsAs::Account(account)) => {
            Finding::pass("isolation", format!("the plugin's process runs as {}", account.name))
        }
        Ok(RunsAs::Host) => Finding::pass("isolation", "the plugin's process runs as the host does"),
        Ok(RunsAs::Root) => Finding::warn(
            "isolation",
            format!(
                "the plugin's process runs as root, because the account {} does not exist",
                account::USUAL
            ),
            account::MAKE_USUAL,
        ),
        Err(failure) => Finding::failure("isolation", &failure),
    })
}

async fn plugin(prepared: &Prepared, env: &ProcessEnv, only_file: bool) -> Finding {
    let located = match app::locate_plugin(&prepared.settings, &prepared.device, env) {
        Ok(located) => located,
        Err(failure) => return Finding::failure("plugin", &failure),
    };
    if only_file {
        let located = match located {
            Located::Library(library) => library,
            Located::Python(located) => return python(prepared, located),
        };
        return match elf::inspect(&located.path) {
            Ok(i) => {
                let d = i.descriptor;
                Finding::pass(
                    "plugin",
                    format!("{} {} in {}; not opened", d.name, d.version, located.path.display()),
                )
            }
            Err(e) => Finding::failure("plugin", &e.into()),
        };
    }
    opened(prepared, located).await
}

/// An executor in Python code, as far as it can be looked at without creating it.
fn python(prepared: &Prepared, located: LocatedPython) -> Finding {
    let dispositions = Arc::new(Dispositions::capture());
    let request = Located::Python(located.clone());
    let request = match app::executor_request(&prepared.settings, &prepared.device, request, dispositions) {
        Ok(request) => request,
        Err(failure) => return Finding::failure("plugin", &failure),
    };
    match inspect_python(&located, &request, false) {
        Ok(facts) => {
            let found = format!("{} of {}; not created", facts.factory, facts.name());
            Finding::pass("plugin", format!("{found}; {}", interpreter(&facts, &located.interpreter)))
        }
        Err(e) => Finding::failure("plugin", &e.into()),
    }
}

fn interpreter(facts: &PythonFacts, interpreter: &Interpreter) -> String {
    format!(
        "Python {}, {}, {}, chosen by {}",
        facts.python,
        facts.node(),
        interpreter.path.display(),
        interpreter.chosen_by
    )
}

async fn opened(prepared: &Prepared, located: Located) -> Finding {
    let dispositions = Arc::new(Dispositions::capture());
    // The library's copy is removed with this directory, which is inside the state directory as in a start.
    let state = &prepared.settings.dirs.state;
    let scratch = match tempfile::tempdir_in(state).or_else(|_| tempfile::tempdir()) {
        Ok(scratch) => scratch,
        Err(e) => return Finding::fail("plugin", format!("no directory for a copy: {e}"), "free some space"),
    };
    let mut settings = prepared.settings.clone();
    settings.dirs.state = scratch.path().to_path_buf();
    match app::start_executor(&settings, &prepared.device, located, dispositions).await {
        Ok((executor, _)) => {
            let active = executor.active_plugin();
            let (info, device) = (&active.info, &active.device);
            executor.shutdown(prepared.settings.executor.control_timeout).await;
            let targets: Vec<&str> = device.targets.iter().map(|t| t.name()).collect();
            let found = format!(
                "{} {} opens the device {}: {} qubits, {}, {} slot(s)",
                info.name,
                info.version,
                device.name,
                device.num_qubits,
                targets.join(" "),
                device.slots
            );
            let found = match &info.python {
                Some(python) => {
                    let order = match prepared.settings.executor.reverse_bits {
                        true => "reversed by the host (CODA_EXECUTOR_BIT_ORDER)",
                        false => "as the executor returns them",
                    };
                    let by = interpreter(&python.facts, &python.interpreter);
                    format!("{found}; bits {order}; {by}")
                }
                None => found,
            };
            let registered = &prepared.settings.identity;
            if !registered.qpu_id.is_empty() && registered.num_qubits != device.num_qubits {
                let todo = format!("register the QPU with {} qubits in Coda", device.num_qubits);
                return Finding::warn(
                    "plugin",
                    format!("{found}; registered with {}", registered.num_qubits),
                    todo,
                );
            }
            if prepared.settings.peer.enabled && active.hooks.evolve_qubits.is_none() {
                return Finding::warn(
                    "plugin",
                    format!("{found}; it can't evolve a quantum state, so every reservation is declined"),
                    "use a plugin with evolve_state (interface 1.1), or unset CODA_PEER",
                );
            }
            Finding::pass("plugin", found)
        }
        Err(failure) => Finding::failure("plugin", &failure),
    }
}

fn port(prepared: &Prepared, holder: Option<&LockHolder>, has_python_node: bool) -> Finding {
    let api = &prepared.settings.api;
    let address = format!("{}:{}", api.host, api.port);
    if let Some(held) = holder.and_then(|h| h.address.as_ref()) {
        return Finding::pass("port", format!("the running host listens on {held}"));
    }
    match std::net::TcpListener::bind((api.host.as_str(), api.port)) {
        Ok(_) => Finding::pass("port", format!("{address} is free")),
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse && has_python_node => {
            Finding::skip("port", format!("{address} is in use while coda-node runs"))
        }
        Err(e) => Finding::fail("port", format!("{address}: {e}"), "choose another with CODA_PORT"),
    }
}

async fn cloud(prepared: &Prepared) -> Vec<Finding> {
    let url = &prepared.settings.cloud.webapp_url;
    let client = match HttpClient::new(&prepared.settings.cloud) {
        Ok(client) => client,
        Err(e) => return vec![Finding::failure("cloud", &e.into())],
    };
    let asked = async { client.head(&Target::parse(url)?, &http::HeaderMap::new(), LIMIT).await };
    let answer = match asked.await {
        Ok(answer) => answer,
        Err(e) => return vec![Finding::failure("cloud", &e.into())],
    };
    let mut findings = vec![Finding::pass("cloud", format!("{url} answers ({})", answer.status))];
    let date = answer.headers.get(http::header::DATE).and_then(|d| d.to_str().ok());
    if let Some(theirs) = date.and_then(|d| httpdate::parse_http_date(d).ok()) {
        let ours = SystemTime::now();
        let off = ours.duration_since(theirs).or_else(|_| theirs.duration_since(ours)).unwrap_or_default();
        let found = format!("{} s from the cloud's", off.as_secs());
        let todo = "set the clock (timedatectl set-ntp true): signed tokens carry the time";
        findings.push(match off {
            o if o >= CLOCK_FAIL => Finding::fail("clock", found, todo),
            o if o >= CLOCK_WARN => Finding::warn("clock", found, todo),
            _ => Finding::pass("clock", found),
        });
    }
    findings
}

async fn redis(prepared: &Prepared) -> Vec<Finding> {
    let (identity, jobs) = (&prepared.settings.identity, &prepared.settings.jobs);
    if identity.redis_url.expose().is_empty() || identity.qpu_id.is_empty() {
        return vec![Finding::skip("redis", "its address comes with the first connect")];
    }
    let names = Names::new(&identity.qpu_id, &jobs.consumer_name);
    let ca_file = prepared.settings.cloud.ca_file.as_deref();
    let made = Redis::new(&identity.redis_url, names, ca_file, LIMIT, Duration::from_secs(1));
    let redis = match made {
        Ok((redis, _)) => redis,
        Err(e) => return vec![Finding::failure("redis", &e.into())],
    };
    let asked = async { Ok::<_, RedisFailure>((redis.view().await?, redis.refused_commands().await?)) };
    match asked.await {
        Ok((_, refused)) if !refused.is_empty() => {
            let refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
            vec![Finding::fail(
                "redis",
                refused.join("; "),
                "allow these commands on the keys qpu:* for this account, or wait until the server takes them",
            )]
        }
        Ok((view, _)) => {
            let version = view.version.unwrap_or_else(|| "unknown version".into());
            let stream = match (view.length, view.pending) {
                (Some(length), Some(pending)) => {
                    format!("; {length} message(s) in the stream, {pending} pending")
                }
                (Some(length), None) => format!("; {length} message(s) in the stream, no group yet"),
                _ => "; this account may not read the stream's length".into(),
            };
            vec![Finding::pass("redis", format!("reachable, {version}{stream}"))]
        }
        Err(why) => vec![Finding::fail(
            "redis",
            why.to_string(),
            "check the network (and the VPN) to it; the address comes from the cloud's bundle",
        )],
    }
}

fn openvpn(prepared: &Prepared, env: &ProcessEnv) -> Finding {
    if !prepared.settings.vpn.required {
        return Finding::skip("vpn", "not required");
    }
    let path = env.plain("PATH").unwrap_or_default();
    let found = Programs::of_path(path).find("openvpn");
    match found {
        Some(binary) => Finding::pass("vpn", format!("{} is there", binary.display())),
        None if prepared.settings.identity.qpu_id.is_empty() => Finding {
            name: "vpn",
            verdict: Verdict::Warn,
            found: "openvpn is not installed".into(),
            todo: Some("install it if Coda sets this QPU up with a VPN: apt-get install openvpn".into()),
        },
        None => {
            Finding::fail("vpn", "openvpn is not installed, but a VPN is required", "apt-get install openvpn")
        }
    }
}

/// The tunnel's interface, and whether it has taken over the default route.
fn tunnel(prepared: &Prepared, env: &ProcessEnv, running: bool) -> Vec<Finding> {
    let vpn = &prepared.settings.vpn;
    if !vpn.required {
        return Vec::new();
    }
    let programs = Programs::of_path(env.plain("PATH").unwrap_or_default());
    let up = match interface::detect(&programs, vpn.interface_hint.as_deref(), vpn.command_timeout) {
        Ok(Some(up)) => up,
        Ok(None) if running => {
            let todo = "see coda-node-openvpn.log in the directory of the credentials";
            return vec![Finding::fail("tunnel", "no VPN tunnel interface is up", todo)];
        }
        Ok(None) => return vec![Finding::skip("tunnel", "the host brings it up when it starts")],
        Err(e) => return vec![Finding::failure("tunnel", &e.into())],
    };
    let mut findings = vec![Finding::pass("tunnel", format!("{up} is up"))];
    if interface::has_default_route(&programs, &up, vpn.command_timeout).unwrap_or(false) {
        findings.push(Finding {
            name: "routes",
            verdict: Verdict::Warn,
            found: format!("the VPN has taken over the default route ({up}): a control system in another network may be cut off"),
            todo: Some(
                "add a route to that network (ip route add NETWORK via GATEWAY), or have the VPN's server \
                 push routes instead of redirect-gateway"
                    .into(),
            ),
        });
    }
    findings
}
