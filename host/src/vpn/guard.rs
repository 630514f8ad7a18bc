//! The watch over the tunnel: is it there, does the cloud answer through it?
//!
//! A check looks for the interface, resolves the host of every probe and asks each for its head; any answer
//! under 500 is fine. One check at a time. Its outcome moves a small state machine that others read from a
//! watch channel: `booting` until the first one; `ready`; `degraded` once it was ready and no longer is;
//! `vpn_unavailable` when it never was. Without a required VPN it is always ready and nothing is looked at.

use std::time::Duration;

use http::HeaderMap;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::openvpn::Openvpn;
use crate::cloud::http::{HttpClient, HttpError, Target, header_map};
use crate::config::settings::{CloudSettings, VpnSettings};
use crate::error::{Explain, Failure};
use crate::model::cut;

/// Probed when the settings name nothing.
const HEALTH_PATH: &str = "/api/internal/qpu/health";
/// How many characters of a probe's error are shown.
const SHOWN: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VpnState {
    Booting,
    Ready,
    Degraded,
    Unavailable,
}

impl VpnState {
    /// The name of the state in `/ready`.
    pub fn name(self) -> &'static str {
        match self {
            VpnState::Booting => "booting",
            VpnState::Ready => "ready",
            VpnState::Degraded => "degraded",
            VpnState::Unavailable => "vpn_unavailable",
        }
    }

    /// The state after a check.
    fn after(self, fine: bool) -> VpnState {
        match (self, fine) {
            (_, true) => VpnState::Ready,
            (VpnState::Ready | VpnState::Degraded, false) => VpnState::Degraded,
            (VpnState::Booting | VpnState::Unavailable, false) => VpnState::Unavailable,
        }
    }
}

/// The state of the VPN that other modules read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VpnStatus {
    pub state: VpnState,
    /// Why it isn't ready.
    pub reason: Option<String>,
    pub interface: Option<String>,
}

/// Why the first check does not let the host start.
#[derive(Debug, thiserror::Error)]
#[error("VPN preflight failed: {reason}")]
pub struct PreflightError {
    pub reason: String,
}

impl Explain for PreflightError {
    fn code(&self) -> &'static str {
        "vpn-preflight"
    }

    fn hint(&self) -> Option<String> {
        Some(
            "bring the tunnel up (see coda-node-openvpn.log), or allow a degraded start with \
             CODA_ALLOW_DEGRADED_STARTUP=true"
                .into(),
        )
    }
}

/// Checks the tunnel.
pub struct Guard {
    openvpn: Openvpn,
    client: HttpClient,
    required: bool,
    allow_degraded: bool,
    interval: Duration,
    limit: Duration,
    hint: Option<String>,
    probes: Vec<Probe>,
    status: watch::Sender<VpnStatus>,
}

#[derive(Clone)]
struct Probe {
    url: String,
    target: Target,
    headers: HeaderMap,
}

impl Guard {
    /// # Errors
    /// The URL of a probe or a header is not valid.
    pub fn new(
        openvpn: Openvpn,
        client: HttpClient,
        vpn: &VpnSettings,
        cloud: &CloudSettings,
    ) -> Result<Guard, HttpError> {
        let urls = match (vpn.required, vpn.probe_targets.is_empty()) {
            (false, _) => Vec::new(),
            (true, true) => vec![format!("{}{HEALTH_PATH}", cloud.webapp_url)],
            (true, false) => vpn.probe_targets.clone(),
        };
        let ours = Target::parse(&cloud.webapp_url)?.origin().clone();
        let headers = header_map(&cloud.connect_headers)?;
        let probe = |url: String| {
            let target = Target::parse(&url)?;
            // They may hold secrets, which are the webapp's host's alone.
            let known = target.origin().host == ours.host;
            let headers = if known { headers.clone() } else { HeaderMap::new() };
            Ok(Probe { url: crate::model::masked_url(&url), target, headers })
        };
        let state = if vpn.required { VpnState::Booting } else { VpnState::Ready };
        Ok(Guard {
            openvpn,
            client,
            required: vpn.required,
            allow_degraded: vpn.allow_degraded,
            interval: vpn.check_interval,
            limit: vpn.probe_timeout,
            hint: vpn.interface_hint.clone(),
            probes: urls.into_iter().map(probe).collect::<Result<_, HttpError>>()?,
            status: watch::Sender::new(VpnStatus { state, reason: None, interface: None }),
        })
    }

    pub fn status(&self) -> watch::Receiver<VpnStatus> {
        self.status.subscribe()
    }

    /// The first check.
    ///
    /// # Errors
    /// A check fails, and the settings don't allow a degraded start.
    pub async fn preflight(&self) -> Result<(), PreflightError> {
        if !self.required {
            return Ok(());
        }
        self.round().await;
        match self.status.borrow().reason.clone() {
            Some(reason) if !self.allow_degraded => Err(PreflightError { reason }),
            _ => Ok(()),
        }
    }

    /// Checks again after every interval until it is stopped.
    pub async fn watch(self, stop: CancellationToken) {
        if !self.required {
            stop.cancelled().await;
            return;
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.interval) => self.round().await,
                () = stop.cancelled() => return,
            }
        }
    }

    /// One check, and what follows from it.
    async fn round(&self) {
        let (interface, outcome) = self.check().await;
        let before = self.status.borrow().clone();
        let reason = outcome.err();
        let state = before.state.after(reason.is_none());
        match (&reason, state == before.state) {
            (Some(reason), false) => {
                tracing::warn!(from = before.state.name(), to = state.name(), reason, "VPN state changed");
            }
            (None, false) => {
                tracing::info!(from = before.state.name(), to = state.name(), interface, "VPN state changed");
            }
            (Some(reason), true) => tracing::debug!(state = state.name(), reason, "the VPN is not back yet"),
            (None, true) => (),
        }
        self.status.send_replace(VpnStatus { state, reason, interface });
    }

    async fn check(&self) -> (Option<String>, Result<(), String>) {
        let interface = match self.openvpn.interface(self.hint.clone()).await {
            Ok(Some(interface)) => interface,
            Ok(None) => return (None, Err("No VPN tunnel interface detected".into())),
            Err(error) => {
                let why = Failure::from(error).line();
                return (None, Err(format!("No VPN tunnel interface detected: {why}")));
            }
        };
        let outcome = match self.resolve().await {
            Ok(()) => self.probe().await,
            Err(reason) => Err(reason),
        };
        (Some(interface), outcome)
    }

    async fn resolve(&self) -> Result<(), String> {
        let mut looking = JoinSet::new();
        for (i, probe) in self.probes.iter().enumerate() {
            let origin = probe.target.origin();
            // Without the brackets of an IPv6 address.
            let host = origin.host.trim_matches(['[', ']']).to_owned();
            let (port, limit) = (origin.port, self.limit);
            looking.spawn(async move {
                let found = tokio::time::timeout(limit, tokio::net::lookup_host((host.as_str(), port))).await;
                let found = found.is_ok_and(|found| found.is_ok_and(|mut all| all.next().is_some()));
                (i, (!found).then_some(host))
            });
        }
        let mut failed = in_order(looking.join_all().await);
        failed.dedup();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!("DNS resolution failed for: {}", failed.join(", "))),
        }
    }

    async fn probe(&self) -> Result<(), String> {
        let mut asking = JoinSet::new();
        for (i, probe) in self.probes.iter().cloned().enumerate() {
            let (client, limit) = (self.client.clone(), self.limit);
            asking.spawn(async move {
                let error = match client.head(&probe.target, &probe.headers, limit).await {
                    Ok(answer) if answer.status.as_u16() < 500 => None,
                    Ok(answer) => Some(format!("HTTP {}", answer.status.as_u16())),
                    Err(error) => Some(error.line()),
                };
                (i, error.map(|e| format!("{}: {}", probe.url, cut(&e, SHOWN))))
            });
        }
        let failed = in_order(asking.join_all().await);
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!("Probe failures: {}", failed.join("; "))),
        }
    }
}

/// The failures of the probes, in their order.
fn in_order(mut all: Vec<(usize, Option<String>)>) -> Vec<String> {
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().filter_map(|(_, failed)| failed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::testing::{self, Reply, answer, scripted};
    use crate::model::Secret;
    use crate::vpn::standin::Standin;

    const FINE: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

    fn guard(standin: &Standin, webapp: &str, change: impl FnOnce(&mut VpnSettings)) -> Guard {
        let mut vpn = standin.settings();
        vpn.probe_targets = Vec::new();
        vpn.check_interval = Duration::from_millis(20);
        change(&mut vpn);
        let mut cloud = testing::settings(webapp);
        cloud.connect_headers = vec![("x-bypass".into(), Secret::new("letmein"))];
        let openvpn = Openvpn::new(&vpn, standin.dir(), standin.programs());
        Guard::new(openvpn, HttpClient::new(&cloud).unwrap(), &vpn, &cloud).unwrap()
    }

    #[tokio::test]
    async fn states_follow_the_checks() {
        let standin = Standin::new("");
        let busy = answer("503 Service Unavailable", "");
        let fine = Reply::Keep(FINE.into());
        let mut server = scripted(vec![fine.clone(), busy.clone(), busy, fine], None).await;
        let guard = guard(&standin, &server.url, |v| v.allow_degraded = true);
        let mut status = guard.status();
        assert_eq!(status.borrow().state, VpnState::Booting);
        guard.preflight().await.unwrap();
        assert_eq!(status.borrow_and_update().state, VpnState::Unavailable, "never was ready");
        assert_eq!(status.borrow().reason.as_deref(), Some("No VPN tunnel interface detected"));
        standin.set_tunnel(true);
        guard.round().await;
        assert_eq!(status.borrow_and_update().state, VpnState::Ready);
        assert_eq!(status.borrow().interface.as_deref(), Some("tun7"));
        let (_, request) = server.seen.recv().await.unwrap();
        assert!(request.starts_with("HEAD /api/internal/qpu/health "), "{request}");
        assert!(request.contains("x-bypass: letmein"), "{request}");
        for _ in 0..2 {
            guard.round().await;
            assert_eq!(status.borrow_and_update().state, VpnState::Degraded, "it stays so");
            let expected = format!("Probe failures: {}/api/internal/qpu/health: HTTP 503", server.url);
            assert_eq!(status.borrow().reason.as_deref(), Some(&*expected));
        }
        let stop = CancellationToken::new();
        let watching = tokio::spawn(guard.watch(stop.clone()));
        let wait = |state| {
            let mut status = status.clone();
            let until = async move { status.wait_for(|s| s.state == state).await.map(|_| ()) };
            tokio::time::timeout(Duration::from_secs(20), until)
        };
        wait(VpnState::Ready).await.unwrap().unwrap();
        standin.set_tunnel(false);
        wait(VpnState::Degraded).await.unwrap().unwrap();
        stop.cancel();
        watching.await.unwrap();
    }

    #[tokio::test]
    async fn each_failure_of_the_preflight_is_told() {
        let standin = Standin::new("");
        let error = guard(&standin, "http://127.0.0.1:1", |_| ()).preflight().await.unwrap_err();
        assert_eq!(error.to_string(), "VPN preflight failed: No VPN tunnel interface detected");
        assert!(error.hint().unwrap().contains("CODA_ALLOW_DEGRADED_STARTUP"));
        standin.set_tunnel(true);
        let names = vec!["https://no-such-host.invalid/x".to_owned(), "https://127.0.0.1:1/".to_owned()];
        let error = guard(&standin, "http://127.0.0.1:1", |v| v.probe_targets = names).preflight().await;
        assert_eq!(
            error.unwrap_err().to_string(),
            "VPN preflight failed: DNS resolution failed for: no-such-host.invalid"
        );
        let moved = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
        let server = scripted(vec![Reply::Keep(moved.into()), Reply::Hang], None).await;
        let targets = || vec![server.url.clone()];
        guard(&standin, &server.url, |v| v.probe_targets = targets()).preflight().await.unwrap();
        let slow = guard(&standin, &server.url, |v| {
            v.probe_targets = vec![server.url.clone(), "http://127.0.0.1:1/".into()];
            v.probe_timeout = Duration::from_millis(100);
        });
        let error = slow.preflight().await.unwrap_err().to_string();
        assert!(
            error.contains("Probe failures: http://localhost") && error.contains("; http://127"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn headers_go_to_the_webapps_host_alone() {
        let standin = Standin::new("");
        standin.set_tunnel(true);
        let mut other = scripted(vec![Reply::Keep(FINE.into())], None).await;
        let urls = vec![other.url.clone()];
        guard(&standin, "http://127.0.0.1:1", |v| v.probe_targets = urls).preflight().await.unwrap();
        assert!(!other.seen.recv().await.unwrap().1.contains("letmein"));
    }

    #[tokio::test]
    async fn without_a_required_vpn_nothing_is_looked_at() {
        let standin = Standin::new("");
        let guard = guard(&standin, "http://127.0.0.1:1", |v| {
            v.required = false;
            v.probe_targets = vec!["http://127.0.0.1:1".into()];
        });
        assert_eq!(guard.status().borrow().state, VpnState::Ready);
        guard.preflight().await.unwrap();
        let (status, stop) = (guard.status(), CancellationToken::new());
        let watching = tokio::spawn(guard.watch(stop.clone()));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!status.has_changed().unwrap());
        stop.cancel();
        watching.await.unwrap();
    }
}
