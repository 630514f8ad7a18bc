//! What an operator types: config, doctor, results, reset; and the log of a host that runs for long.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use coda_host::dev::cloud::Answer;
use coda_host_tests::{Exit, LIMIT, Plan, Said, StateFile, TestHost, eventually, example};
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
    let mut host = Plan::simulator("").start().await;
    let device = host.dir().join("other.yaml");
    std::fs::write(&device, "executor_factory: coda_simulator\n").unwrap();
    host.set("CODA_NODE_CONNECT_HEADERS", r#"{"X-Key": "hunter2"}"#);
    let asked = host.cli(&["config", "--json", "--device", &device.display().to_string()]).await;
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
    host.set("CODA_REDIS_URL", "redis://u:hunter2@10.0.0.9:7000/3");
    let text = host.cli(&["config"]).await;
    assert!(text.out.contains("redis://u:***@10.0.0.9:7000/3"), "{text:?}");
    assert!(!text.text().contains("hunter2"), "{text:?}");
    let places = format!("credentials in {}", host.state_dir().display());
    assert!(text.out.contains(&places), "{text:?}");
    let set = settings(&host.cli(&["config", "--set", "--json"]).await);
    assert!(set.len() < shown.len() && set.values().all(|(_, origin)| origin != "default"), "{set:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_value_is_refused_by_the_name_of_its_variable() {
    let mut host = Plan::simulator("").prepare().await;
    for (name, value, allowed) in [
        ("CODA_PORT", "70000", "0 to 65535"),
        ("CODA_NUM_QUBITS", "five", "a whole number"),
        ("CODA_VPN_REQUIRED", "maybe", "true false"),
        ("CODA_NODE_TIMEOUT_SEC", "-1", "a number of seconds"),
        ("CODA_VPN_PROBE_TARGETS", "a,b", "a JSON list"),
        ("coda_prefetch", "0", "1 to 1000"),
        ("CODA_NODE_CONNECT_HEADERS", "{hunter2", "a JSON object"),
    ] {
        host.set(name, value);
        for command in ["config", "start"] {
            let said = host.cli(&[command]).await;
            assert_eq!(said.code, 2, "{name}: {said:?}");
            let upper = name.to_ascii_uppercase();
            assert!(said.err.contains(&upper) && said.err.contains(allowed), "{name}: {said:?}");
            let secret = value.contains("hunter2");
            assert_eq!(said.text().contains(value), !secret, "{name}: {said:?}");
        }
        host.unset(name);
    }
    assert!(host.cloud.state().connects.is_empty(), "nothing was asked of the cloud");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misspelt_name_is_warned_about() {
    let mut host = Plan::device("executor_factroy: coda_simulator\n").prepare().await;
    host.set("CODA_REDIS_ULR", "redis://127.0.0.1:1");
    host.set("CODA_EXECUTOR_FACTORY", "coda_simulator");
    let said = host.cli(&["config"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    for part in ["CODA_REDIS_ULR", "CODA_REDIS_URL", "executor_factroy", "executor_factory"] {
        assert!(said.err.contains(part), "{part}: {said:?}");
    }
    assert!(!said.text().contains("setting CODA_EXECUTOR_FACTORY is ignored"), "{said:?}");
}

// --- doctor

/// The checks that came out so.
fn checks(said: &Said, result: &str) -> Vec<String> {
    let rows = json(said).as_array().unwrap().clone();
    let rows = rows.iter().filter(|r| r["result"] == result);
    rows.map(|r| r["check"].as_str().unwrap().to_string()).collect()
}

async fn fails(host: &TestHost, check: &str, todo: &str) {
    let said = host.cli(&["doctor", "--json"]).await;
    assert_eq!(said.code, 1, "{check}: {said:?}");
    assert!(checks(&said, "fail").iter().any(|c| c == check), "{check}: {said:?}");
    for row in json(&said).as_array().unwrap() {
        let needs = row["result"] == "fail" || row["result"] == "warn";
        assert_eq!(row["to_do"].is_string(), needs, "{row}");
    }
    let said = host.cli(&["doctor"]).await;
    assert_eq!(said.code, 1, "{said:?}");
    let at = said.out.find(&format!("fail  {check}")).unwrap_or_else(|| panic!("{said:?}"));
    assert!(said.out[at..].contains(todo), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_passes_beside_a_running_host_and_without_one() {
    let mut host = Plan::simulator("").prepare().await;
    host.choose_port();
    host.start().await;
    host.good_job_goes_through("J1").await;
    host.wait_nothing_pending().await;
    for running in [true, false] {
        let said = host.cli(&["doctor", "--json"]).await;
        assert_eq!((said.code, checks(&said, "fail")), (0, vec![]), "{said:?}");
        let passed = checks(&said, "pass");
        for check in ["state", "stored", "results", "settings", "plugin", "port", "cloud", "redis"] {
            assert!(passed.iter().any(|c| c == check), "{check}: {said:?}");
        }
        assert_eq!(passed.iter().any(|c| c == "running"), running, "{said:?}");
        assert_eq!(said.out.contains("not opened"), running, "two must not drive one device: {said:?}");
        if running {
            assert_eq!(host.stop().await, Exit::Code(0));
        }
    }
    let said = host.cli(&["doctor"]).await;
    assert!(said.code == 0 && said.out.contains(", 0 failed,"), "{said:?}");
}

/// Doctor and `/ready` never contradict each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_fails_for_each_reason_of_a_running_host() {
    let host = Plan::simulator("execution_time_ms: 300").start().await;
    host.submit("J1", &example(), 10).await;
    host.wait_state("J1", "executing").await;
    let lock = StateFile::lock(&host.state_dir());
    eventually("/ready says that nothing can be stored", async || host.ready().await.0 == 503).await;
    let said = host.cli(&["doctor", "--no-plugin"]).await;
    assert_eq!(said.code, 1, "{}", said.text());
    assert!(
        said.out.contains("fail  running") && said.out.contains("takes no jobs: results can't be stored")
    );
    assert!(said.out.contains("to do: free space or unlock it"), "{}", said.text());
    drop(lock);
    host.delivered("J1").await;

    host.cloud.on_heartbeat(|_| Some(Answer::status(401)));
    eventually("the heartbeat is refused", async || {
        let (_, body) = host.ready().await;
        body["heartbeat"]["error"].is_string()
    })
    .await;
    let said = host.cli(&["doctor", "--no-plugin"]).await;
    assert!(said.out.contains("warn  heartbeat"), "{}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_changes_nothing() {
    let host = Plan::simulator("").prepare().await;
    let said = host.cli(&["doctor"]).await;
    assert!(said.out.contains("can be created") && said.out.contains("opens the device"), "{said:?}");
    assert!(!host.state_dir().exists(), "the state directory was made");
    assert!(host.cloud.state().connects.is_empty(), "the token could have been spent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_says_what_fails_and_what_to_do() {
    let mut host = Plan::simulator("").prepare().await;
    host.choose_port();
    host.start().await;
    host.write_device("executor_factory: ./missing.so");
    fails(&host, "plugin", "check the path").await;
    host.write_device("executor_factory: coda_simulator");

    let config = host.state_dir().join("coda.config");
    let mode = |m| std::fs::set_permissions(&config, std::fs::Permissions::from_mode(m)).unwrap();
    mode(0o644);
    fails(&host, "stored", "chmod 600").await;
    mode(0o600);

    host.redis.kill().unwrap();
    fails(&host, "redis", "check the network").await;
    host.redis.restart(LIMIT).await.unwrap();

    assert_eq!(host.stop().await, Exit::Code(0));
    let taken = TcpListener::bind(("127.0.0.1", host.env["CODA_PORT"].parse().unwrap())).unwrap();
    fails(&host, "port", "CODA_PORT").await;
    drop(taken);

    host.cloud.go_down().await;
    fails(&host, "cloud", "to do:").await;
    host.cloud.come_up().await.unwrap();
    let said = host.cli(&["doctor"]).await;
    assert_eq!(said.code, 0, "{said:?}");
}

// --- results

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_result_is_listed_sent_again_and_gone() {
    let host = Plan::simulator("").start().await;
    let said = host.cli(&["results", "list"]).await;
    assert!(said.code == 0 && said.out.contains("nothing is kept"), "{said:?}");
    host.cloud.on_webhook(|_| Some(Answer::status(404).body("no such job here")));
    let id = host.submit("J1", &example(), 100).await;
    eventually("it was refused", async || host.state_file().kept().iter().any(|k| k.phase == "refused"))
        .await;
    let said = host.cli(&["results", "list"]).await;
    for part in [&*id, "refused", "J1", "1 attempt(s)", "HTTP 404", "no such job here"] {
        assert!(said.out.contains(part), "{part}: {said:?}");
    }
    let rows = json(&host.cli(&["results", "list", "--json"]).await);
    assert_eq!((&rows[0]["job_id"], &rows[0]["kind"]), (&"J1".into(), &"refused".into()));
    let said = host.cli(&["results", "show", "J1"]).await;
    assert!(said.out.contains("\"10\":100") && said.out.contains(&host.cloud.webhook_url()), "{said:?}");

    let said = host.cli(&["results", "retry", &id]).await;
    assert!(said.code == 1 && said.err.contains("HTTP 404"), "{said:?}");
    assert_eq!(host.attempts("J1"), (2, 0));
    host.cloud.clear_hooks();
    let said = host.cli(&["results", "retry", "J1"]).await;
    assert!(said.code == 0 && said.out.contains("accepted"), "{said:?}");
    assert_eq!(host.delivered("J1").await["counts"], serde_json::json!({ "10": 100 }));
    assert!(host.state_file().kept().is_empty(), "it is gone");
    let said = host.cli(&["results", "retry", "J1"]).await;
    assert!(said.code == 1 && said.err.contains("nothing is kept for 'J1'"), "{said:?}");
    host.good_job_goes_through("J2").await;
    assert_eq!(host.attempts("J1"), (3, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_host_sends_by_itself_is_left_to_it() {
    let host = Plan::simulator("").start().await;
    host.cloud.on_webhook(|_| Some(Answer::status(503)));
    host.submit("J1", &example(), 100).await;
    eventually("it is undelivered", async || host.attempts("J1").0 > 0).await;
    let said = host.cli(&["results", "list"]).await;
    assert!(said.out.contains("undelivered"), "{said:?}");
    let said = host.cli(&["results", "retry", "J1"]).await;
    assert!(said.code == 1 && said.err.contains("by itself"), "{said:?}");
    host.cloud.clear_hooks();
    host.delivered("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_shown_and_dropped() {
    let host = Plan::simulator("").start().await;
    let id = host.send(&host.job("J1", &example(), 100).without("callback_url")).await;
    host.good_job_goes_through("J2").await;
    host.wait_nothing_pending().await;
    let said = host.cli(&["results", "list"]).await;
    assert!(said.out.contains(&id) && said.out.contains("dead letter"), "{said:?}");
    let said = host.cli(&["results", "show", &id]).await;
    assert!(said.code == 0 && said.out.contains("J1") && said.out.contains("callback_url"), "{said:?}");
    let said = host.cli(&["results", "retry", &id]).await;
    assert!(said.code == 1 && said.err.contains("is a dead letter"), "{said:?}");
    let said = host.cli(&["results", "drop", &id]).await;
    assert!(said.code == 0 && said.out.contains("dropped the dead letter"), "{said:?}");
    assert!(host.state_file().dead_letters().is_empty());
    assert!(host.cli(&["results", "list"]).await.out.contains("nothing is kept"));
}

// --- reset

/// A host that has run and has stopped with one undelivered result; its key and profile lie elsewhere.
async fn used() -> (TestHost, Vec<PathBuf>) {
    let mut host = Plan::simulator("").prepare().await;
    let profile = host.dir().join("elsewhere/coda-node.ovpn");
    host.set("CODA_NODE_VPN_PROFILE_PATH", profile.display().to_string());
    host.start().await;
    host.cloud.on_webhook(|_| Some(Answer::status(503)));
    host.submit("J1", &example(), 100).await;
    eventually("it was tried", async || host.attempts("J1").0 > 0).await;
    assert_eq!(host.stop().await, Exit::Code(0));
    host.unset("CODA_NODE_VPN_PROFILE_PATH");
    let state = host.state_dir();
    let key = host.dir().join("elsewhere/key");
    std::fs::create_dir(host.dir().join("elsewhere")).unwrap();
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
    (host, files)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_forgets_the_credentials_and_keeps_results() {
    let (mut host, files) = used().await;
    let said = host.cli(&["reset"]).await;
    assert!(said.code == 0 && said.out.contains("kept 1 result"), "{said:?}");
    let left: Vec<_> = files.iter().filter(|f| f.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
    let said = host.cli(&["start"]).await;
    assert!(said.code == 2 && said.err.contains("one-time node token"), "{said:?}");
    host.cloud.add_token("second");
    host.set("CODA_NODE_TOKEN", "second");
    host.cloud.clear_hooks();
    host.start().await;
    host.delivered("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_discards_results_when_asked_and_is_a_flag_too() {
    let (host, files) = used().await;
    let said = host.cli(&["reset", "--discard-results"]).await;
    assert!(said.code == 0 && said.out.contains("dropping 1 result"), "{said:?}");
    assert!(files.iter().all(|f| !f.exists()));
    assert!(host.cli(&["results", "list"]).await.out.contains("nothing is kept"));

    let (host, files) = used().await;
    let said = host.cli(&["--reset"]).await;
    assert!(said.code == 0 && said.out.contains("kept 1 result"), "{said:?}");
    assert!(files.iter().all(|f| !f.exists()));
    let said = host.cli(&["--reset"]).await;
    assert!(said.code == 0 && said.out.contains("removed 0 file(s)"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_stops_what_runs() {
    let mut host = Plan::simulator("").start().await;
    let said = host.cli(&["reset"]).await;
    assert!(said.code == 0 && said.out.contains("stopped (process"), "{said:?}");
    assert_eq!(host.wait_exit().await, Exit::Code(0));
    assert!(!host.state_dir().join("coda.config").exists());
}

// --- under a service manager

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_manager_is_told_ready_alive_and_stopping() {
    let mut host = Plan::simulator("").prepare().await;
    let path = host.dir().join("notify");
    let socket = tokio::net::UnixDatagram::bind(&path).unwrap();
    // As systemd says it for Type=notify, WatchdogSec= and StateDirectory=.
    host.set("NOTIFY_SOCKET", path.display().to_string());
    host.set("WATCHDOG_USEC", "200000");
    host.set("STATE_DIRECTORY", host.state_dir().display().to_string());
    host.unset("CODA_STATE_DIR");
    host.start().await;
    let hear = async || {
        let mut buffer = [0; 1024];
        let n = tokio::time::timeout(LIMIT, socket.recv(&mut buffer)).await.expect("a message").unwrap();
        String::from_utf8_lossy(&buffer[..n]).into_owned()
    };
    let ready = hear().await;
    let main = format!("MAINPID={}", host.process().pid());
    assert!(ready.starts_with("READY=1\n") && ready.contains(&main), "{ready}");
    for _ in 0..3 {
        assert_eq!(hear().await, "WATCHDOG=1");
    }
    assert!(host.state_dir().join("coda.config").exists() && host.state_dir().join("coda-host.db").exists());
    assert_eq!(host.stop().await, Exit::Code(0));
    while !hear().await.starts_with("STOPPING=1") {}
}

// --- the log

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemons_log_is_kept_small_and_goes_on() {
    let mut host = Plan::simulator("").env("CODA_LOG", "trace").prepare().await;
    host.choose_port();
    host.set("CODA_LOG_MAX_MIB", "1");
    host.set("CODA_LOG_CHECK_INTERVAL_SEC", "0.02");
    let said = host.cli(&["start", "--daemon", "--token", "one-time-q1"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    let (log, old) = (host.state_dir().join("coda-host.log"), host.state_dir().join("coda-host.log.1"));
    let mut n = 0;
    eventually("the log was cut", async || {
        for _ in 0..10 {
            n += 1;
            host.submit(&format!("J{n}"), &example(), 10).await;
        }
        host.delivered(&format!("J{n}")).await;
        old.exists()
    })
    .await;
    assert_eq!(std::fs::metadata(&old).unwrap().permissions().mode() & 0o7777, 0o600);
    host.good_job_goes_through("last").await;
    eventually("the log goes on", async || {
        std::fs::read_to_string(&log).unwrap().contains("last")
            || std::fs::read_to_string(&old).unwrap().contains("last")
    })
    .await;
    // Nothing but whole lines: every writer appends, so that cutting leaves no hole of NULs.
    assert!(!std::fs::read(&log).unwrap().contains(&0));
    let said = host.cli(&["logs", "-n", "3"]).await;
    assert!(said.code == 0 && said.out.lines().count() <= 3, "{said:?}");
    let said = host.cli(&["stop"]).await;
    assert_eq!(said.code, 0, "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_for_machines_is_one_object_a_line_to_the_end() {
    let mut host = Plan::simulator("").env("CODA_LOG_FORMAT", "json").start().await;
    host.good_job_goes_through("J1").await;
    assert_eq!(host.stop().await, Exit::Code(0));
    let log = host.log();
    let lines: Vec<Value> =
        log.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect();
    assert!(lines.len() > 5, "{log}");
    for line in &lines {
        for key in ["timestamp", "level", "target", "message"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
    }
    assert!(lines.iter().any(|l| l["job_id"] == "J1"), "{log}");

    host.write_device("executor_factory: ./missing.so");
    host.unset("CODA_LOG_FORMAT");
    let said = host.cli(&["--log-format", "json", "start"]).await;
    assert_eq!(said.code, 3, "{said:?}");
    let misplaced = host.cli(&["--port", "1", "status"]).await;
    assert!(misplaced.code == 2 && misplaced.err.contains("after its name"), "{misplaced:?}");
    let last: Value = serde_json::from_str(said.err.lines().last().unwrap()).unwrap();
    assert_eq!((&last["level"], &last["exit_status"]), (&"ERROR".into(), &3.into()));
    assert!(last["message"].as_str().unwrap().contains("missing.so") && last["hint"].is_string(), "{last}");
}
