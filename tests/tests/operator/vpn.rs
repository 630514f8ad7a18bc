//! The host behind a VPN that it manages. OpenVPN and `ip` are stood in for by scripts, so that no network of the
//! machine is touched; the real ones are driven by `vpn::openvpn`'s own tests.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use coda_host_tests::{Exit, Plan, TestHost, eventually, example};
use serde_json::json;

/// A daemon that makes its tunnel, a file, and takes it away at its end.
const OPENVPN: &str = r#"#!/bin/sh
here=@dir@
echo "$*" >>"$here/starts"
env >"$here/environment"
while [ $# -gt 0 ]; do
  case "$1" in
    --config) config="$2"; shift ;;
    --writepid) pidfile="$2"; shift ;;
    --log) log="$2"; shift ;;
  esac
  shift
done
cp "$config" "$here/profile"
echo "Initialization Sequence Completed" >"$log"
# A copy of this shell, whose name and arguments are OpenVPN's.
(
  trap '[ ! -e "$here/slow-end" ] || sleep 1; rm -f "$here/tunnel"; exit 0' TERM
  [ -e "$here/no-tunnel" ] || : >"$here/tunnel"
  while [ -d "$here" ]; do sleep 0.05; done
) >/dev/null 2>&1 &
[ -e "$here/no-pid" ] || echo $! >"$pidfile"
"#;

const IP: &str = r#"#!/bin/sh
[ -e @dir@/tunnel ] || exit 0
case "$*" in
  "-o link show type tun" | "link show tun7")
    echo "7: tun7: <POINTOPOINT,MULTICAST,NOARP,UP,LOWER_UP> mtu 1500 qdisc fq state UNKNOWN mode DEFAULT" ;;
  "-4 route show") cat @dir@/routes 2>/dev/null ;;
  *) exit 1 ;;
esac
"#;

const PROFILE: &str = "client\ndev tun\nproto udp\nremote vpn.example 1194\nremote-cert-tls server\n\
                       <ca>\n-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n</ca>\n";

struct Standin(tempfile::TempDir);

impl Standin {
    fn new() -> Standin {
        let standin = Standin(tempfile::tempdir().unwrap());
        for (name, text) in [("openvpn", OPENVPN), ("ip", IP)] {
            let text = text.replace("@dir@", standin.0.path().to_str().unwrap());
            // By a separate process: no descriptor for writing is open here when the script is run.
            let mut install = Command::new("install")
                .args(["-m", "755", "/dev/stdin"])
                .arg(standin.0.path().join(name))
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            install.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            assert!(install.wait().unwrap().success());
        }
        standin
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn starts(&self) -> usize {
        fs::read_to_string(self.path("starts")).unwrap_or_default().lines().count()
    }

    fn tunnel_is_up(&self) -> bool {
        self.path("tunnel").exists()
    }

    /// A site whose bundle asks for the VPN.
    async fn host(&self) -> TestHost {
        let path = format!("{}:{}", self.0.path().display(), std::env::var("PATH").unwrap());
        let host = Plan::simulator("execution_time_ms: 300").env("PATH", path).prepare().await;
        let probe = format!("{}/api/internal/qpu/health", host.cloud.url());
        host.cloud.edit_bundle(move |bundle| {
            bundle["vpn"] = json!({
                "required": true, "interface_hint": "tun7", "check_interval_sec": 1,
                "probe_targets": [&probe], "client_profile_ovpn": PROFILE,
            });
        });
        host
    }
}

fn daemon(host: &TestHost) -> Option<i32> {
    fs::read_to_string(host.state_dir().join("coda-node-openvpn.pid")).ok()?.trim().parse().ok()
}

/// Whether it does anything any more: where no one reaps it, an ended process is still listed.
fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_is_brought_up_watched_adopted_after_a_crash_and_taken_down() {
    let standin = Standin::new();
    let mut host = standin.host().await;
    host.set("NOTIFY_SOCKET", host.dir().join("nobody").display().to_string());
    host.start().await;
    assert!(standin.tunnel_is_up() && standin.starts() == 1);
    // It would take systemd for its parent, and stay in the foreground.
    let environment = fs::read_to_string(standin.path("environment")).unwrap();
    assert!(!environment.contains("NOTIFY_SOCKET") && !environment.contains("one-time"), "{environment}");
    let profile = fs::read_to_string(standin.path("profile")).unwrap();
    assert!(profile.contains("reneg-sec 0"), "{profile}");
    assert_eq!(host.ready().await.1["vpn_state"], "ready");
    host.submit("J1", &example(), 10).await;
    host.delivered("J1").await;
    let pid = daemon(&host).expect("the daemon's pid");
    // The tunnel goes and comes back; a job that runs meanwhile is delivered all the same.
    fs::rename(standin.path("tunnel"), standin.path("away")).unwrap();
    host.submit("J2", &example(), 10).await;
    eventually("it is told", async || host.ready().await.0 == 503).await;
    let (_, ready) = host.ready().await;
    assert_eq!(ready["vpn_state"], "degraded", "{ready}");
    assert!(ready["reasons"].to_string().contains("No VPN tunnel interface"), "{ready}");
    host.delivered("J2").await;
    fs::rename(standin.path("away"), standin.path("tunnel")).unwrap();
    host.wait_ready().await;
    // Killed, the host leaves its daemon, and the next one takes it over.
    host.kill();
    assert!(lives(pid) && standin.tunnel_is_up());
    host.start().await;
    assert_eq!((standin.starts(), daemon(&host)), (1, Some(pid)));
    host.good_job_goes_through("J3").await;
    assert_eq!(host.stop().await, Exit::Code(0));
    assert!(!standin.tunnel_is_up() && !lives(pid) && daemon(&host).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_leaves_a_tunnel_that_stop_vpn_takes_down() {
    let standin = Standin::new();
    let mut host = standin.host().await;
    host.start().await;
    let pid = daemon(&host).expect("the daemon's pid");
    fs::write(standin.path("routes"), "0.0.0.0/1 via 10.8.0.1 dev tun7\n128.0.0.0/1 via 10.8.0.1 dev tun7\n")
        .unwrap();
    let doctor = host.cli(&["doctor", "--no-plugin"]).await;
    assert!(doctor.out.contains("tun7 is up"), "{}", doctor.text());
    assert!(doctor.out.contains("taken over the default route"), "{}", doctor.text());
    host.kill();
    let stopped = host.cli(&["stop-vpn"]).await;
    assert_eq!(stopped.code, 0, "{}", stopped.text());
    assert!(!standin.tunnel_is_up() && !lives(pid));
    let nothing = host.cli(&["stop-vpn"]).await;
    assert_eq!(nothing.code, 1, "{}", nothing.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_profile_that_could_run_programs_is_refused_before_anything_is_stored() {
    let standin = Standin::new();
    let mut host = standin.host().await;
    host.cloud.edit_bundle(|bundle| {
        bundle["vpn"] = json!({ "required": true, "client_profile_ovpn": format!("{PROFILE}up /tmp/x\n") });
    });
    host.launch();
    let exit = host.wait_exit().await;
    assert_eq!(exit, Exit::Code(4), "{}", host.log());
    assert!(host.log().contains("line 11") || host.log().contains("'up'"), "{}", host.log());
    assert!(standin.starts() == 0 && !host.state_dir().join("coda.config").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_while_the_tunnel_comes_up_leaves_nothing() {
    let standin = Standin::new();
    fs::write(standin.path("no-tunnel"), "").unwrap();
    let mut host = standin.host().await;
    host.launch();
    eventually("OpenVPN was started", async || daemon(&host).is_some_and(lives)).await;
    let pid = daemon(&host).expect("the daemon's pid");
    assert_eq!(host.stop().await, Exit::Code(0));
    assert!(!lives(pid) && daemon(&host).is_none());
    let stored = host.state_dir().join("coda.config").exists();
    assert!(!stored, "the tunnel never came up, so nothing is stored");
}

/// Processes that run this host's profile.
fn daemons(host: &TestHost) -> usize {
    let profile = host.state_dir().join("coda-node.ovpn").display().to_string();
    let lines = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|e| fs::read(e.path().join("cmdline")).unwrap_or_default());
    lines.filter(|line| String::from_utf8_lossy(line).contains(&format!("--config\0{profile}\0"))).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_before_openvpn_has_written_its_pid_file_ends_it_too() {
    let standin = Standin::new();
    for flag in ["no-tunnel", "no-pid"] {
        fs::write(standin.path(flag), "").unwrap();
    }
    let mut host = standin.host().await;
    host.launch();
    eventually("OpenVPN runs", async || standin.path("profile").exists() && daemons(&host) > 0).await;
    assert_eq!(host.stop().await, Exit::Code(0));
    assert_eq!(daemons(&host), 0, "{}", host.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_stopped_has_ended_its_vpn_so_that_the_next_one_keeps_its_own() {
    let standin = Standin::new();
    let mut host = standin.host().await;
    host.choose_port();
    host.start().await;
    let pid = daemon(&host).expect("the daemon's pid");
    fs::write(standin.path("slow-end"), "").unwrap();
    let stopped = host.cli(&["stop"]).await;
    assert_eq!(stopped.code, 0, "{}", stopped.text());
    assert!(!lives(pid), "the next start would take over a tunnel that is being taken down");
    assert_eq!(host.wait_exit().await, Exit::Code(0));
    host.start().await;
    assert!(standin.tunnel_is_up() && standin.starts() == 2);
    host.good_job_goes_through("J1").await;
    assert_eq!(host.stop().await, Exit::Code(0));
}
