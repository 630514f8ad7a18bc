//! The units of `packaging/systemd` under a real systemd, and the host behind a real OpenVPN server. Skipped with a
//! message where there is no systemd, or no right to make namespaces.

use coda_host::executor::account;
use coda_host_tests::systemd::Systemd;
use coda_host_tests::tunnel::{FAR_END, Tunnel, own_network};
use coda_host_tests::{Plan, TestHost, eventually, example};
use serde_json::json;

const UNIT: &str = "coda-host.service";
/// As in the unit, and sooner.
const SOON: &str = "[Service]\nRestartSec=100ms\n";

/// A system and a site whose host the unit starts.
async fn system(plan: Plan) -> Option<(Systemd, TestHost)> {
    let system = Systemd::boot().await?;
    let mut host = plan.prepare().await;
    host.choose_port();
    // As an operator has it: the account that the package makes, or none.
    host.unset("CODA_EXECUTOR_USER");
    system.configure(&host, "coda-host");
    system.edit(UNIT, SOON).await;
    Some((system, host))
}

async fn active(system: &Systemd, unit: &str) -> String {
    system.property(unit, "ActiveState").await
}

async fn main_pid(system: &Systemd, unit: &str) -> u32 {
    system.property(unit, "MainPID").await.parse().expect("a number")
}

async fn restarts(system: &Systemd, unit: &str) -> u32 {
    system.property(unit, "NRestarts").await.parse().expect("a number")
}

/// SIGKILL or SIGSTOP, as the system's root would send it.
async fn signal(system: &Systemd, name: &str) {
    let pid = main_pid(system, UNIT).await.to_string();
    let said = system.run(&["/bin/sh", "-c", r#"kill -s "$0" "$1""#, name, &pid]).await;
    assert_eq!(said.code, 0, "{}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_units_are_what_systemd_understands() {
    if !own_network("operator::systemd_units::the_units_are_what_systemd_understands") {
        return;
    }
    let Some(system) = Systemd::boot().await else { return };
    for unit in [UNIT, "coda-host@acme.service"] {
        let said = system.run(&["systemd-analyze", "verify", "--man=no", unit]).await;
        assert!(said.code == 0 && said.text().is_empty(), "{unit}: {}", said.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_comes_up_reloads_outlives_a_crash_and_a_hang_and_drains() {
    if !own_network("operator::systemd_units::a_unit_comes_up_reloads_outlives_a_crash_and_a_hang_and_drains")
    {
        return;
    }
    let plan = Plan::simulator("execution_time_ms: 300").env("CODA_EXECUTOR_ISOLATION", "process");
    let Some((system, host)) = system(plan).await else { return };
    system.edit(UNIT, &format!("{SOON}WatchdogSec=2\n")).await;
    let made: Vec<&str> = account::MAKE_USUAL.split(' ').collect();
    assert_eq!(system.run(&made).await.code, 0);
    // Returns when the host says that it is up.
    system.systemctl(&["start", UNIT]).await;
    // What the unit takes from the host still lets it give the plugin's process an account of its own.
    let all = "cat /sys/fs/cgroup/system.slice/coda-host.service/cgroup.procs | while read -r pid; do \
               echo $(cat /proc/$pid/comm) $(grep ^Uid: /proc/$pid/status); done; id -u coda-executor";
    let processes = system.run(&["sh", "-c", all]).await.out;
    let id = processes.lines().last().expect("an id").trim();
    let uids = |line: &str| {
        line.split("Uid:").nth(1).map(|ids| ids.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let of: Vec<String> = processes.lines().filter_map(uids).collect();
    let journal = system.journal(UNIT).await;
    assert_eq!(of, ["0 0 0 0".to_string(), [id; 4].join(" ")], "{processes}\n{journal}");
    assert_eq!(active(&system, UNIT).await, "active");
    let status = system.property(UNIT, "StatusText").await;
    assert_eq!(status, "running jobs of q1");
    host.good_job_goes_through("J1").await;
    // An operator's commands find it by its state directory, or by its name.
    for by in
        [["env", "CODA_STATE_DIR=/var/lib/coda-host", "coda-host"], ["coda-host", "--unit", "coda-host"]]
    {
        let said = system.run(&[&by[..], &["status"]].concat()).await;
        assert!(said.code == 0 && said.out.contains("coda-plugin-simulator"), "{by:?}: {}", said.text());
    }

    let device = "executor_factory: coda_simulator\nexecution_time_ms: 300\nnum_qubits: 7\n";
    std::fs::write(system.site().join("coda-host.yaml"), device).unwrap();
    let pid = main_pid(&system, UNIT).await;
    system.systemctl(&["reload", UNIT]).await;
    let (_, ready) = host.ready().await;
    assert!(ready["reloads"]["message"].as_str().unwrap().contains("7 qubits"), "{ready}");
    std::fs::write(system.site().join("coda-host.yaml"), "executor_factory: coda_nothing\n").unwrap();
    let refused = system.run(&["systemctl", "reload", UNIT]).await;
    assert_ne!(refused.code, 0, "{}", refused.text());
    assert!(system.journal(UNIT).await.contains("not reloaded"), "the reason is in the journal");
    assert_eq!((active(&system, UNIT).await.as_str(), main_pid(&system, UNIT).await), ("active", pid));
    std::fs::write(system.site().join("coda-host.yaml"), device).unwrap();

    for (n, way) in ["KILL", "STOP"].into_iter().enumerate() {
        let id = format!("J{}", 2 + n);
        host.submit(&id, &example(), 100).await;
        host.wait_state(&id, "executing").await;
        signal(&system, way).await;
        // Killed it is started again; a hang is found by the watchdog, which ends it first.
        assert_eq!(host.delivered(&id).await["counts"]["10"], 100);
        host.wait_nothing_pending().await;
        assert_eq!(restarts(&system, UNIT).await, 1 + n as u32);
    }
    assert!(system.journal(UNIT).await.contains("J3"), "the log is in the journal");

    host.submit("J4", &example(), 100).await;
    host.wait_state("J4", "executing").await;
    system.systemctl(&["stop", UNIT]).await;
    assert_eq!(system.property(UNIT, "Result").await, "success");
    assert_eq!((host.state("J4").await.as_str(), host.attempts("J4")), ("completed", (1, 1)));
    host.wait_nothing_pending().await;
    let state = std::fs::metadata(system.state()).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&state.permissions()) & 0o777, 0o700);
}

/// `--unit` reads what systemd itself gives to the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_sees_the_settings_that_the_unit_sees() {
    if !own_network("operator::systemd_units::a_command_sees_the_settings_that_the_unit_sees") {
        return;
    }
    let Some((system, host)) = system(Plan::simulator("")).await else { return };
    let file = system.site().join("coda-host.env");
    let tricky = "\n# CODA_QPU_ID=no\nCODA_QPU_DISPLAY_NAME=\"a \\\"b\\\" $HOME\"\n  CODA_QPU_ID = it\\'s \t\n\
                  CODA_VPN_INTERFACE_HINT='x\\y'\nCODA_CONSUMER_NAME=one\\\n-two\nCODA_NATIVE_GATE_SET=c\\z\n";
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + tricky).unwrap();
    let drop_in =
        format!("{SOON}Environment=CODA_LOG=warn \"CODA_ADVERTISED_PROVIDER=a b\" CODA_NUM_QUBITS=3\n");
    system.edit(UNIT, &drop_in).await;
    system.systemctl(&["start", UNIT]).await;
    let pid = main_pid(&system, UNIT).await.to_string();
    let real = system.run(&["cat", &format!("/proc/{pid}/environ")]).await.out;
    let said = system.run(&["coda-host", "--unit", "coda-host", "config", "--json"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    let shown: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    for name in [
        "CODA_QPU_DISPLAY_NAME",
        "CODA_QPU_ID",
        "CODA_VPN_INTERFACE_HINT",
        "CODA_CONSUMER_NAME",
        "CODA_NATIVE_GATE_SET",
        "CODA_ADVERTISED_PROVIDER",
        "CODA_NUM_QUBITS",
        "CODA_PORT",
        "CODA_DEVICE_CONFIG",
    ] {
        let given = real.split('\0').filter_map(|pair| pair.split_once('=')).find(|(k, _)| *k == name);
        let (_, given) = given.unwrap_or_else(|| panic!("systemd gives {name}: {real}"));
        let read = shown.as_array().unwrap().iter().find(|s| s["name"] == name).unwrap();
        assert_eq!(read["value"], given, "{name}");
    }
    let unknown = system.run(&["coda-host", "--unit", "coda-nothing", "status"]).await;
    assert!(unknown.code == 2 && unknown.err.contains("there is no unit coda-nothing"), "{}", unknown.text());
    host.good_job_goes_through("J1").await;
    system.systemctl(&["stop", UNIT]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_setting_is_not_tried_again_and_a_cloud_that_is_away_is() {
    if !own_network("operator::systemd_units::a_wrong_setting_is_not_tried_again_and_a_cloud_that_is_away_is")
    {
        return;
    }
    let plan = Plan::simulator("").env("CODA_NODE_CONNECT_RETRIES", "1").env("CODA_PREFETCH", "many");
    let Some((system, mut host)) = system(plan).await else { return };
    let refused = system.run(&["systemctl", "start", UNIT]).await;
    assert_ne!(refused.code, 0);
    assert_eq!((active(&system, UNIT).await.as_str(), restarts(&system, UNIT).await), ("failed", 0));
    let journal = system.journal(UNIT).await;
    assert!(journal.contains("CODA_PREFETCH") && journal.contains("many"), "{journal}");

    // The cloud is away, then it is back.
    host.unset("CODA_PREFETCH");
    let there = host.env["CODA_WEBAPP_URL"].clone();
    host.set("CODA_WEBAPP_URL", "http://127.0.0.1:9");
    system.configure(&host, "coda-host");
    system.systemctl(&["reset-failed", UNIT]).await;
    system.systemctl(&["start", "--no-block", UNIT]).await;
    eventually("it is tried again", async || restarts(&system, UNIT).await >= 2).await;
    host.set("CODA_WEBAPP_URL", there);
    system.configure(&host, "coda-host");
    eventually("it is up", async || active(&system, UNIT).await == "active").await;
    host.good_job_goes_through("J1").await;
    system.systemctl(&["stop", UNIT]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_run_side_by_side_with_what_is_theirs() {
    if !own_network("operator::systemd_units::instances_run_side_by_side_with_what_is_theirs") {
        return;
    }
    let Some(system) = Systemd::boot().await else { return };
    let mut beds = Vec::new();
    for name in ["north", "south"] {
        let mut host = Plan::simulator("execution_time_ms: 20").prepare().await;
        host.choose_port();
        system.configure(&host, name);
        system.systemctl(&["start", &format!("coda-host@{name}")]).await;
        beds.push(host);
    }
    for (host, id) in beds.iter().zip(["J1", "J2"]) {
        host.good_job_goes_through(id).await;
    }
    for name in ["north", "south"] {
        assert!(system.state().join(name).join("coda-private-key").exists());
    }
    system.systemctl(&["stop", "coda-host@north"]).await;
    beds[1].good_job_goes_through("J3").await;
    system.systemctl(&["stop", "coda-host@south"]).await;
}

/// All that the unit takes from the host still lets OpenVPN make its tunnel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_brings_a_real_tunnel_up_watches_it_and_takes_it_down() {
    if !own_network("operator::systemd_units::a_unit_brings_a_real_tunnel_up_watches_it_and_takes_it_down") {
        return;
    }
    let Some(mut tunnel) = Tunnel::lay().await else { return };
    let Some((system, host)) = system(Plan::simulator("execution_time_ms: 20")).await else { return };
    behind(&host, &tunnel);
    tunnel.serve();
    // Something that answers through the tunnel alone.
    let site = tempfile::tempdir().unwrap();
    let mut far = far_service(&tunnel, site.path());

    system.systemctl(&["start", UNIT]).await;
    assert_eq!(host.ready().await.1["vpn_state"], "ready", "{}", host.ready().await.1);
    host.good_job_goes_through("J1").await;
    let doctor =
        system.run(&["env", "CODA_STATE_DIR=/var/lib/coda-host", "coda-host", "doctor", "--no-plugin"]).await;
    assert!(doctor.out.contains("tun0 is up"), "{}", doctor.text());

    // The server goes without a word: the probe tells, jobs go on, and a new one is found.
    tunnel.stop_serving();
    eventually("it is told", async || host.ready().await.1["vpn_state"] == "degraded").await;
    host.good_job_goes_through("J2").await;
    tunnel.serve();
    eventually("the tunnel is back", async || host.ready().await.1["vpn_state"] == "ready").await;

    // A host that is killed takes nothing along: the unit's processes are ended by systemd, and it starts again.
    signal(&system, "KILL").await;
    eventually("it is restarted", async || restarts(&system, UNIT).await == 1).await;
    eventually("it is up", async || active(&system, UNIT).await == "active").await;
    host.good_job_goes_through("J3").await;
    assert_eq!(host.ready().await.1["vpn_state"], "ready");
    system.systemctl(&["stop", UNIT]).await;
    let links = std::process::Command::new("ip").args(["-o", "link"]).output().unwrap();
    let links = String::from_utf8_lossy(&links.stdout).into_owned();
    assert!(!links.contains("tun0"), "{links}");
    far.kill().unwrap();
    far.wait().unwrap();
}

/// Has the cloud send a profile for this tunnel.
fn behind(host: &TestHost, tunnel: &Tunnel) {
    let profile = tunnel.profile().to_string();
    host.cloud.edit_bundle(move |bundle| {
        bundle["vpn"] = json!({
            "required": true, "interface_hint": "tun0", "check_interval_sec": 1,
            "probe_targets": [format!("http://{FAR_END}:8089/health")], "client_profile_ovpn": profile,
        });
    });
}

/// A service at the far end: a host without a cloud has one.
fn far_service(tunnel: &Tunnel, dir: &std::path::Path) -> std::process::Child {
    let device = dir.join("device.yaml");
    std::fs::write(&device, "executor_factory: coda_simulator\n").unwrap();
    let (binary, state) = (coda_host_tests::artifacts::binary(), dir.join("state"));
    tunnel.beyond(
        &[
            "env",
            &format!("CODA_STATE_DIR={}", state.display()),
            "CODA_PEER_LISTEN=/ip4/127.0.0.1/tcp/0",
            binary.to_str().unwrap(),
            "start",
            "--peer",
            "--no-cloud",
            "--port",
            "8089",
            "--device",
            device.to_str().unwrap(),
        ],
        "far.log",
    )
}
