//! The order of cloud, VPN and storing: a development cloud, real files, scripts for `openvpn` and `ip`.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::cloud::provision::{reconnects, tests as provision_tests};
use crate::dev::cloud::{DevCloud, Options};
use crate::model::Secret;
use crate::state::credentials;
use crate::vpn::guard::VpnState;
use crate::vpn::standin::Standin;

const PROFILE: &str = "client\ndev tun\nremote vpn.example 443\n";

struct Bed {
    cloud: DevCloud,
    standin: Standin,
    settings: Settings,
}

async fn bed(script: &str) -> Bed {
    let cloud = DevCloud::start(Options::new("q1", "redis://127.0.0.1:1")).await.unwrap();
    let standin = Standin::new(script);
    let mut settings = provision_tests::settings(cloud.url(), standin.dir().into());
    settings.vpn = standin.settings();
    settings.vpn.probe_targets = Vec::new();
    settings.vpn.start_timeout = Duration::from_millis(1500);
    give(&cloud, true, Some(PROFILE));
    Bed { cloud, standin, settings }
}

fn give(cloud: &DevCloud, required: bool, profile: Option<&str>) {
    let profile = profile.map(str::to_owned);
    cloud.edit_bundle(move |b| b["vpn"] = json!({"required": required, "client_profile_ovpn": profile}));
}

impl Bed {
    async fn start(&self, token: Option<&str>) -> Result<(Registration, Guard, Openvpn), Failure> {
        let mut settings = self.settings.clone();
        settings.credentials.node_token = token.map(Secret::new);
        let stored = credentials::load(self.standin.dir()).unwrap();
        if reconnects(settings.credentials.node_token.as_ref(), stored.as_ref())
            && let Some(stored) = &stored
        {
            settings.credentials.jwt_private_key = stored.private_key.clone();
            settings.credentials.jwt_key_id = stored.config.jwt_key_id.clone();
            settings.identity.qpu_id = stored.config.qpu_id.clone().unwrap();
            settings.vpn.required = stored.config.vpn_required.unwrap();
        }
        let openvpn = Openvpn::new(&settings.vpn, self.standin.dir(), self.standin.programs());
        let client = HttpClient::new(&settings.cloud).unwrap();
        let connected = connect(&client, &settings, stored.as_ref(), None, &openvpn).await;
        if connected.is_err() {
            leave(&openvpn).await;
        }
        connected.map(|(site, guard)| (site, guard, openvpn))
    }

    fn connects(&self) -> usize {
        self.cloud.state().connects.len()
    }
}

#[tokio::test]
async fn a_first_run_stores_and_a_reconnect_brings_the_tunnel_up_before_it_asks() {
    let bed = bed("").await;
    let (site, guard, openvpn) = bed.start(Some("one-time-q1")).await.unwrap();
    assert!(site.provisioned && site.vpn.required);
    assert_eq!(guard.status().borrow().state, VpnState::Ready);
    let stored = std::fs::read_to_string(bed.standin.profile()).unwrap();
    assert_eq!(stored, format!("{PROFILE}reneg-sec 0\n"));
    assert_eq!(bed.standin.starts().len(), 1);
    leave(&openvpn).await;
    assert!(!bed.standin.tunnel_is_up());

    // The cloud sees the request only while the tunnel is up.
    let tunnel = bed.standin.tunnel_file();
    bed.cloud.on_connect(move |_| {
        assert!(tunnel.exists(), "asked without a tunnel");
        None
    });
    give(&bed.cloud, true, Some(PROFILE));
    let (site, _, openvpn) = bed.start(Some("one-time-q1")).await.unwrap();
    assert!(!site.provisioned);
    assert_eq!((bed.standin.starts().len(), bed.connects()), (2, 2));
    // As after a crash: the tunnel is found and used.
    let (_, _, again) = bed.start(None).await.unwrap();
    assert_eq!(again.running().unwrap(), openvpn.running().unwrap());
    assert_eq!(bed.standin.starts().len(), 2);
    leave(&again).await;

    std::fs::remove_file(bed.standin.profile()).unwrap();
    let failure = bed.start(None).await.err().unwrap();
    assert_eq!(
        failure.message,
        "Persisted VPN profile not found. Re-run node provisioning with a new token."
    );
    assert_eq!(bed.connects(), 3, "nothing was asked");
}

#[tokio::test]
async fn a_bad_profile_is_refused_before_anything_is_written_or_started() {
    let bed = bed("").await;
    give(&bed.cloud, true, Some("client\nremote h\n\"up\" /bin/sh\n"));
    let failure = bed.start(Some("one-time-q1")).await.err().unwrap();
    assert_eq!(failure.message, "line 3 of the VPN profile has the directive 'up', which is not allowed");
    assert!(failure.hint.unwrap().contains("the node token is used up"));
    assert!(bed.standin.starts().is_empty() && bed.standin.is_clean(), "{:?}", bed.standin.leftovers());
}

#[tokio::test]
async fn a_tunnel_that_does_not_come_up_leaves_nothing_of_a_first_run() {
    let bed = bed("NOTUN=1\necho why >>\"$log\"\n").await;
    let failure = bed.start(Some("one-time-q1")).await.err().unwrap();
    assert!(failure.line().contains("No VPN tunnel interface detected"), "{}", failure.line());
    assert!(failure.line().contains("why"), "the log is shown: {}", failure.line());
    assert!(failure.hint.unwrap().contains("the node token is used up"));
    assert!(bed.standin.is_clean(), "{:?}", bed.standin.leftovers());
}

#[tokio::test]
async fn credentials_that_can_not_be_stored_take_the_tunnel_back() {
    let bed = bed("").await;
    let in_the_way = bed.standin.dir().join(credentials::CONFIG_FILE);
    // Laid there after the stored state was read.
    let before = in_the_way.clone();
    bed.cloud.on_connect(move |_| {
        std::fs::create_dir(&before).ok();
        None
    });
    give(&bed.cloud, true, Some(PROFILE));
    let failure = bed.start(Some("one-time-q1")).await.err().unwrap();
    assert!(failure.line().contains("could not be stored"), "{}", failure.line());
    assert_eq!(bed.standin.starts().len(), 1, "the tunnel had been up");
    std::fs::remove_dir(in_the_way).unwrap();
    assert!(bed.standin.is_clean(), "{:?}", bed.standin.leftovers());
}

#[tokio::test]
async fn a_failed_preflight_leaves_what_was_stored_and_may_be_allowed() {
    let mut bed = bed("").await;
    bed.settings.vpn.probe_targets = vec!["http://127.0.0.1:1/".into()];
    let failure = bed.start(Some("one-time-q1")).await.err().unwrap();
    assert!(
        failure.message.starts_with("VPN preflight failed: Probe failures: http://127.0.0.1:1"),
        "{failure:?}"
    );
    assert!(credentials::load(bed.standin.dir()).unwrap().unwrap().usable());
    assert!(!bed.standin.tunnel_is_up());
    bed.settings.vpn.allow_degraded = true;
    let (_, guard, openvpn) = bed.start(None).await.unwrap();
    assert_eq!(guard.status().borrow().state, VpnState::Unavailable);
    leave(&openvpn).await;
}

#[tokio::test]
async fn a_required_vpn_needs_a_profile_also_when_it_is_not_started() {
    let mut bed = bed("").await;
    bed.settings.vpn.auto = false;
    give(&bed.cloud, true, None);
    let failure = bed.start(Some("one-time-q1")).await.err().unwrap();
    assert_eq!(failure.message, "VPN is required but the node response holds no VPN profile");
    // With one, the tunnel is the operator's.
    bed.cloud.add_token("second");
    give(&bed.cloud, true, Some(PROFILE));
    let failure = bed.start(Some("second")).await.err().unwrap();
    assert_eq!(failure.message, "VPN preflight failed: No VPN tunnel interface detected");
    bed.standin.set_tunnel(true);
    let (_, guard, openvpn) = bed.start(None).await.unwrap();
    assert_eq!(guard.status().borrow().state, VpnState::Ready);
    leave(&openvpn).await;
    assert!(bed.standin.starts().is_empty() && bed.standin.tunnel_is_up(), "it was left alone");
}

#[tokio::test]
async fn https_mode_does_without_any_of_it() {
    let bed = bed("").await;
    give(&bed.cloud, false, None);
    for token in [Some("one-time-q1"), None] {
        let (_, guard, openvpn) = bed.start(token).await.unwrap();
        assert_eq!(guard.status().borrow().state, VpnState::Ready);
        assert_eq!(openvpn.running().unwrap(), None);
    }
    assert!(bed.standin.starts().is_empty());
}
