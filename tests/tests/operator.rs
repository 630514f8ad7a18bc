//! What an operator types: config, doctor, results, reset; and the log of a host that runs for long.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use coda_host::dev::cloud::Answer;
use coda_host_tests::{Bed, Exit, LIMIT, Plan, Said, example, holds};
use serde_json::Value;

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"))
}

// --- config

/// Name to value and origin.
fn settings(said: &Said) -> HashMap<String, (String, String)> {
    let text = |v: &Value| v.as_str().unwrap().to_string();
    let rows = json(said).as_array().unwrap().clone();
    rows.iter().map(|r| (text(&r["name"]), (text(&r["value"]), text(&r["origin"])))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn config_shows_every_setting_with_its_origin_and_no_secret() {
    let mut bed = Plan::simulator("").start().await;
    let device = bed.dir().join("other.yaml");
    std::fs::write(&device, "executor_factory: coda_simulator\n").unwrap();
    bed.set("CODA_NODE_CONNECT_HEADERS", r#"{"X-Key": "hunter2"}"#);
    let asked = bed.cli(&["config", "--json", "--device", &device.display().to_string()]).await;
    assert_eq!(asked.code, 0, "{asked:?}");
    let shown = settings(&asked);
    for (name, value, origin) in [
        ("CODA_DEVICE_CONFIG", &*device.display().to_string(), "flag"),
        ("CODA_HOST", "127.0.0.1", "environment"),
        ("CODA_NODE_CONNECT_HEADERS", "***", "environment"),
        ("CODA_JWT_PRIVATE_KEY", "", "default"),
        ("CODA_QPU_ID", "q1", "stored"),
        ("CODA_VPN_REQUIRED", "false", "stored"),
        ("CODA_PREFETCH", "4", "default"),
    ] {
        assert_eq!(shown[name], (value.into(), origin.into()), "{name}");
    }
    bed.set("CODA_REDIS_URL", "redis://u:hunter2@10.0.0.9:7000/3");
    let text = bed.cli(&["config"]).await;
    assert!(text.out.contains("redis://u:***@10.0.0.9:7000/3"), "{text:?}");
    assert!(!text.text().contains("hunter2"), "{text:?}");
    let places = format!("credentials in {}", bed.state_dir().display());
    assert!(text.out.contains(&places), "{text:?}");
    let set = settings(&bed.cli(&["config", "--set", "--json"]).await);
    assert!(set.len() < shown.len() && set.values().all(|(_, origin)| origin != "default"), "{set:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_value_is_refused_by_the_name_of_its_variable() {
    let mut bed = Plan::simulator("").lay().await;
    for (name, value, allowed) in [
        ("CODA_PORT", "70000", "0 to 65535"),
        ("CODA_NUM_QUBITS", "five", "a whole number"),
        ("CODA_VPN_REQUIRED", "maybe", "true false"),
        ("CODA_NODE_TIMEOUT_SEC", "-1", "a number of seconds"),
        ("CODA_VPN_PROBE_TARGETS", "a,b", "a JSON list"),
        ("coda_prefetch", "0", "1 to 1000"),
        ("CODA_NODE_CONNECT_HEADERS", "{hunter2", "a JSON object"),
    ] {
        bed.set(name, value);
        for command in ["config", "start"] {
            let said = bed.cli(&[command]).await;
            assert_eq!(said.code, 2, "{name}: {said:?}");
            let upper = name.to_ascii_uppercase();
            assert!(said.err.contains(&upper) && said.err.contains(allowed), "{name}: {said:?}");
            let secret = value.contains("hunter2");
            assert_eq!(said.text().contains(value), !secret, "{name}: {said:?}");
        }
        bed.unset(name);
    }
    assert!(bed.cloud.state().connects.is_empty(), "nothing was asked of the cloud");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misspelt_name_is_warned_about() {
    let mut bed = Plan::device("executor_factroy: coda_simulator\n").lay().await;
    bed.set("CODA_REDIS_ULR", "redis://127.0.0.1:1");
    bed.set("CODA_EXECUTOR_FACTORY", "coda_simulator");
    let said = bed.cli(&["config"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    for part in ["CODA_REDIS_ULR", "CODA_REDIS_URL", "executor_factroy", "executor_factory"] {
        assert!(said.err.contains(part), "{part}: {said:?}");
    }
    assert!(!said.text().contains("CODA_EXECUTOR_FACTORY is no setting"), "{said:?}");
}

// --- doctor

/// The checks that came out so.
fn checks(said: &Said, result: &str) -> Vec<String> {
    let rows = json(said).as_array().unwrap().clone();
    let rows = rows.iter().filter(|r| r["result"] == result);
    rows.map(|r| r["check"].as_str().unwrap().to_string()).collect()
}

async fn fails(bed: &Bed, check: &str, todo: &str) {
    let said = bed.cli(&["doctor", "--json"]).await;
    assert_eq!(said.code, 1, "{check}: {said:?}");
    assert!(checks(&said, "fail").iter().any(|c| c == check), "{check}: {said:?}");
    for row in json(&said).as_array().unwrap() {
        let needs = row["result"] == "fail" || row["result"] == "warn";
        assert_eq!(row["to_do"].is_string(), needs, "{row}");
    }
    let said = bed.cli(&["doctor"]).await;
    assert_eq!(said.code, 1, "{said:?}");
    let at = said.out.find(&format!("fail  {check}")).unwrap_or_else(|| panic!("{said:?}"));
    assert!(said.out[at..].contains(todo), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_passes_beside_a_running_host_and_without_one() {
    let mut bed = Plan::simulator("").lay().await;
    bed.choose_port();
    bed.start().await;
    bed.good_job_goes_through("J1").await;
    bed.wait_nothing_pending().await;
    for running in [true, false] {
        let said = bed.cli(&["doctor", "--json"]).await;
        assert_eq!((said.code, checks(&said, "fail")), (0, vec![]), "{said:?}");
        let passed = checks(&said, "pass");
        for check in ["state", "stored", "results", "settings", "plugin", "port", "cloud", "redis"] {
            assert!(passed.iter().any(|c| c == check), "{check}: {said:?}");
        }
        assert_eq!(passed.iter().any(|c| c == "running"), running, "{said:?}");
        assert_eq!(said.out.contains("not opened"), running, "two must not drive one device: {said:?}");
        if running {
            assert_eq!(bed.stop().await, Exit::Code(0));
        }
    }
    let said = bed.cli(&["doctor"]).await;
    assert!(said.code == 0 && said.out.contains(", 0 failed,"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_changes_nothing() {
    let bed = Plan::simulator("").lay().await;
    let said = bed.cli(&["doctor"]).await;
    assert!(said.out.contains("can be created") && said.out.contains("opens the device"), "{said:?}");
    assert!(!bed.state_dir().exists(), "the state directory was made");
    assert!(bed.cloud.state().connects.is_empty(), "the token could have been spent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_says_what_fails_and_what_to_do() {
    let mut bed = Plan::simulator("").lay().await;
    bed.choose_port();
    bed.start().await;
    bed.write_device("executor_factory: ./missing.so");
    fails(&bed, "plugin", "check the path").await;
    bed.write_device("executor_factory: coda_simulator");

    let config = bed.state_dir().join("coda.config");
    let mode = |m| std::fs::set_permissions(&config, std::fs::Permissions::from_mode(m)).unwrap();
    mode(0o644);
    fails(&bed, "stored", "chmod 600").await;
    mode(0o600);

    bed.redis.kill().unwrap();
    fails(&bed, "redis", "check the network").await;
    bed.redis.restart(LIMIT).await.unwrap();

    assert_eq!(bed.stop().await, Exit::Code(0));
    let taken = TcpListener::bind(("127.0.0.1", bed.env["CODA_PORT"].parse().unwrap())).unwrap();
    fails(&bed, "port", "CODA_PORT").await;
    drop(taken);

    bed.cloud.go_down().await;
    fails(&bed, "cloud", "to do:").await;
    bed.cloud.come_up().await.unwrap();
    let said = bed.cli(&["doctor"]).await;
    assert_eq!(said.code, 0, "{said:?}");
}

// --- results

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_result_is_listed_sent_again_and_gone() {
    let bed = Plan::simulator("").start().await;
    let said = bed.cli(&["results", "list"]).await;
    assert!(said.code == 0 && said.out.contains("nothing is kept"), "{said:?}");
    bed.cloud.on_webhook(|_| Some(Answer::status(404).body("no such job here")));
    let id = bed.submit("J1", &example(), 100).await;
    holds("it was refused", async || bed.state_file().kept().iter().any(|k| k.phase == "refused")).await;
    let said = bed.cli(&["results", "list"]).await;
    for part in [&*id, "refused", "J1", "1 attempt(s)", "HTTP 404", "no such job here"] {
        assert!(said.out.contains(part), "{part}: {said:?}");
    }
    let rows = json(&bed.cli(&["results", "list", "--json"]).await);
    assert_eq!((&rows[0]["job_id"], &rows[0]["kind"]), (&"J1".into(), &"refused".into()));
    let said = bed.cli(&["results", "show", "J1"]).await;
    assert!(said.out.contains("\"10\":100") && said.out.contains(&bed.cloud.webhook_url()), "{said:?}");

    let said = bed.cli(&["results", "retry", &id]).await;
    assert!(said.code == 1 && said.err.contains("HTTP 404"), "{said:?}");
    assert_eq!(bed.attempts("J1"), (2, 0));
    bed.cloud.clear_hooks();
    let said = bed.cli(&["results", "retry", "J1"]).await;
    assert!(said.code == 0 && said.out.contains("accepted"), "{said:?}");
    assert_eq!(bed.delivered("J1").await["counts"], serde_json::json!({ "10": 100 }));
    assert!(bed.state_file().kept().is_empty(), "it is gone");
    let said = bed.cli(&["results", "retry", "J1"]).await;
    assert!(said.code == 1 && said.err.contains("nothing is kept for 'J1'"), "{said:?}");
    bed.good_job_goes_through("J2").await;
    assert_eq!(bed.attempts("J1"), (3, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_host_sends_by_itself_is_left_to_it() {
    let bed = Plan::simulator("").start().await;
    bed.cloud.on_webhook(|_| Some(Answer::status(503)));
    bed.submit("J1", &example(), 100).await;
    holds("it is undelivered", async || bed.attempts("J1").0 > 0).await;
    let said = bed.cli(&["results", "list"]).await;
    assert!(said.out.contains("undelivered"), "{said:?}");
    let said = bed.cli(&["results", "retry", "J1"]).await;
    assert!(said.code == 1 && said.err.contains("by itself"), "{said:?}");
    bed.cloud.clear_hooks();
    bed.delivered("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_shown_and_dropped() {
    let bed = Plan::simulator("").start().await;
    let id = bed.send(&bed.job("J1", &example(), 100).without("callback_url")).await;
    bed.good_job_goes_through("J2").await;
    bed.wait_nothing_pending().await;
    let said = bed.cli(&["results", "list"]).await;
    assert!(said.out.contains(&id) && said.out.contains("dead letter"), "{said:?}");
    let said = bed.cli(&["results", "show", &id]).await;
    assert!(said.code == 0 && said.out.contains("J1") && said.out.contains("callback_url"), "{said:?}");
    let said = bed.cli(&["results", "retry", &id]).await;
    assert!(said.code == 1 && said.err.contains("is a dead letter"), "{said:?}");
    let said = bed.cli(&["results", "drop", &id]).await;
    assert!(said.code == 0 && said.out.contains("dropped the dead letter"), "{said:?}");
    assert!(bed.state_file().dead_letters().is_empty());
    assert!(bed.cli(&["results", "list"]).await.out.contains("nothing is kept"));
}

// --- reset

/// A host that has run and has stopped with one undelivered result; its key and profile lie elsewhere.
async fn used() -> (Bed, Vec<PathBuf>) {
    let mut bed = Plan::simulator("").lay().await;
    let profile = bed.dir().join("elsewhere/coda-node.ovpn");
    bed.set("CODA_NODE_VPN_PROFILE_PATH", profile.display().to_string());
    bed.start().await;
    bed.cloud.on_webhook(|_| Some(Answer::status(503)));
    bed.submit("J1", &example(), 100).await;
    holds("it was tried", async || bed.attempts("J1").0 > 0).await;
    assert_eq!(bed.stop().await, Exit::Code(0));
    bed.unset("CODA_NODE_VPN_PROFILE_PATH");
    let state = bed.state_dir();
    let key = bed.dir().join("elsewhere/key");
    std::fs::create_dir(bed.dir().join("elsewhere")).unwrap();
    std::fs::rename(state.join("coda-private-key"), &key).unwrap();
    let config = std::fs::read_to_string(state.join("coda.config")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["node_vpn_profile_path"], profile.display().to_string());
    config["jwt_private_key_path"] = key.display().to_string().into();
    std::fs::write(state.join("coda.config"), config.to_string()).unwrap();
    std::fs::write(&profile, "client\n").unwrap();
    std::fs::write(state.join("coda-host.log.1"), "older\n").unwrap();
    let names = ["coda.config", "coda-host.token", "coda-host.log.1"];
    let mut files: Vec<PathBuf> = names.iter().map(|name| state.join(name)).collect();
    files.extend([key, profile]);
    assert!(files.iter().all(|f| f.exists()), "{files:?}");
    (bed, files)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_forgets_the_credentials_and_keeps_results() {
    let (mut bed, files) = used().await;
    let said = bed.cli(&["reset"]).await;
    assert!(said.code == 0 && said.out.contains("kept 1 result"), "{said:?}");
    let left: Vec<_> = files.iter().filter(|f| f.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
    let said = bed.cli(&["start"]).await;
    assert!(said.code == 2 && said.err.contains("one-time node token"), "{said:?}");
    bed.cloud.add_token("second");
    bed.set("CODA_NODE_TOKEN", "second");
    bed.cloud.clear_hooks();
    bed.start().await;
    bed.delivered("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_discards_results_when_asked_and_is_a_flag_too() {
    let (bed, files) = used().await;
    let said = bed.cli(&["reset", "--discard-results"]).await;
    assert!(said.code == 0 && said.out.contains("dropping 1 result"), "{said:?}");
    assert!(files.iter().all(|f| !f.exists()));
    assert!(bed.cli(&["results", "list"]).await.out.contains("nothing is kept"));

    let (bed, files) = used().await;
    let said = bed.cli(&["--reset"]).await;
    assert!(said.code == 0 && said.out.contains("kept 1 result"), "{said:?}");
    assert!(files.iter().all(|f| !f.exists()));
    let said = bed.cli(&["--reset"]).await;
    assert!(said.code == 0 && said.out.contains("removed 0 file(s)"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_stops_what_runs() {
    let mut bed = Plan::simulator("").start().await;
    let said = bed.cli(&["reset"]).await;
    assert!(said.code == 0 && said.out.contains("stopped (process"), "{said:?}");
    assert_eq!(bed.wait_exit().await, Exit::Code(0));
    assert!(!bed.state_dir().join("coda.config").exists());
}

// --- under a service manager

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_manager_is_told_ready_alive_and_stopping() {
    let mut bed = Plan::simulator("").lay().await;
    let path = bed.dir().join("notify");
    let socket = tokio::net::UnixDatagram::bind(&path).unwrap();
    // As systemd says it for Type=notify, WatchdogSec= and StateDirectory=.
    bed.set("NOTIFY_SOCKET", path.display().to_string());
    bed.set("WATCHDOG_USEC", "200000");
    bed.set("STATE_DIRECTORY", bed.state_dir().display().to_string());
    bed.unset("CODA_STATE_DIR");
    bed.start().await;
    let hear = async || {
        let mut buffer = [0; 1024];
        let n = tokio::time::timeout(LIMIT, socket.recv(&mut buffer)).await.expect("a message").unwrap();
        String::from_utf8_lossy(&buffer[..n]).into_owned()
    };
    let ready = hear().await;
    let main = format!("MAINPID={}", bed.host().pid());
    assert!(ready.starts_with("READY=1\n") && ready.contains(&main), "{ready}");
    for _ in 0..3 {
        assert_eq!(hear().await, "WATCHDOG=1");
    }
    assert!(bed.state_dir().join("coda.config").exists() && bed.state_dir().join("coda-host.db").exists());
    assert_eq!(bed.stop().await, Exit::Code(0));
    while !hear().await.starts_with("STOPPING=1") {}
}

// --- the log

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemons_log_is_kept_small_and_goes_on() {
    let mut bed = Plan::simulator("").env("CODA_LOG", "trace").lay().await;
    bed.choose_port();
    bed.set("CODA_LOG_MAX_MIB", "1");
    bed.set("CODA_LOG_CHECK_INTERVAL_SEC", "0.02");
    let said = bed.cli(&["start", "--daemon", "--token", "one-time-q1"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    let (log, old) = (bed.state_dir().join("coda-host.log"), bed.state_dir().join("coda-host.log.1"));
    let mut n = 0;
    holds("the log was cut", async || {
        for _ in 0..10 {
            n += 1;
            bed.submit(&format!("J{n}"), &example(), 10).await;
        }
        bed.delivered(&format!("J{n}")).await;
        old.exists()
    })
    .await;
    assert_eq!(std::fs::metadata(&old).unwrap().permissions().mode() & 0o7777, 0o600);
    bed.good_job_goes_through("last").await;
    holds("the log goes on", async || {
        std::fs::read_to_string(&log).unwrap().contains("last")
            || std::fs::read_to_string(&old).unwrap().contains("last")
    })
    .await;
    // Nothing but whole lines: every writer appends, so that cutting leaves no hole of NULs.
    assert!(!std::fs::read(&log).unwrap().contains(&0));
    let said = bed.cli(&["logs", "-n", "3"]).await;
    assert!(said.code == 0 && said.out.lines().count() <= 3, "{said:?}");
    let said = bed.cli(&["stop"]).await;
    assert_eq!(said.code, 0, "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_for_machines_is_one_object_a_line_to_the_end() {
    let mut bed = Plan::simulator("").env("CODA_LOG_FORMAT", "json").start().await;
    bed.good_job_goes_through("J1").await;
    assert_eq!(bed.stop().await, Exit::Code(0));
    let log = bed.log();
    let lines: Vec<Value> =
        log.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect();
    assert!(lines.len() > 5, "{log}");
    for line in &lines {
        for key in ["timestamp", "level", "target", "message"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
    }
    assert!(lines.iter().any(|l| l["job_id"] == "J1"), "{log}");

    bed.write_device("executor_factory: ./missing.so");
    bed.unset("CODA_LOG_FORMAT");
    let said = bed.cli(&["--log-format", "json", "start"]).await;
    assert_eq!(said.code, 3, "{said:?}");
    let misplaced = bed.cli(&["--port", "1", "status"]).await;
    assert!(misplaced.code == 2 && misplaced.err.contains("after its name"), "{misplaced:?}");
    let last: Value = serde_json::from_str(said.err.lines().last().unwrap()).unwrap();
    assert_eq!((&last["level"], &last["exit_status"]), (&"ERROR".into(), &3.into()));
    assert!(last["message"].as_str().unwrap().contains("missing.so") && last["hint"].is_string(), "{last}");
}
