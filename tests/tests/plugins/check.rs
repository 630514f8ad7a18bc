//! `coda-host plugin check`: it passes the plugins that are right, and each case finds the plugin that is wrong in it.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use coda_host_tests::artifacts::{library, target_file};
use coda_host_tests::said;
use serde_json::Value;

/// What a check of this library came to: exit status, and for each case its verdict and everything it said.
async fn check(
    library: &Path,
    device: &str,
    env: &[(&str, &str)],
    flags: &[&str],
) -> (i32, BTreeMap<String, (String, String)>) {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("device.yaml");
    std::fs::write(&config, device).unwrap();
    let mut all: BTreeMap<String, String> = env.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    all.insert("CODA_STATE_DIR".into(), dir.path().join("state").display().to_string());
    let (library, config) = (library.display().to_string(), config.display().to_string());
    let fixed = ["plugin", "check", &library, "--device", &config, "--json", "--seed", "7"];
    let arguments: Vec<&str> = fixed.iter().chain(flags).copied().collect();
    let done = said(&arguments, &all, dir.path()).await;
    let report: Value = serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {}", done.text()));
    assert_eq!(report["seed"], 7);
    let cases = report["cases"].as_array().unwrap().iter();
    let cases = cases.map(|c| {
        let name = c["case"].as_str().unwrap().to_string();
        (name, (c["verdict"].as_str().unwrap().to_string(), c.to_string()))
    });
    (done.code, cases.collect())
}

async fn passes(name: &str, device: &str, env: &[(&str, &str)], skipped: &[&str]) {
    let (code, cases) = check(&library(name), device, env, &[]).await;
    assert!(cases.len() >= 29, "{} cases", cases.len());
    for (case, (verdict, said)) in &cases {
        let expected = if skipped.contains(&case.as_str()) { "skipped" } else { "passed" };
        assert_eq!(verdict, expected, "{name}, {case}: {said}");
    }
    assert_eq!(code, 0, "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_simulator_passes_in_every_form() {
    let short = ["batch", "concurrent-runs", "cancel-during"];
    passes("coda_simulator", "", &[], &short).await;
    let batch = "batch: true\nslots: 3\nnum_qubits: 4\n";
    passes("coda_simulator", batch, &[], &["cancel-during"]).await;
    for target in ["iswap", "pcz", "cnot"] {
        passes("coda_simulator", &format!("target: {target}\nnum_qubits: 4"), &[], &short).await;
    }
}

const ACME: &str = "host: lab\nport: 7\ntoken: sesame-open";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_in_all_languages_pass() {
    for name in ["coda_example_rust", "coda_example_c", "coda_example_cpp"] {
        passes(name, ACME, &[], &["batch", "evolve-state", "concurrent-runs"]).await;
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn instrument() -> (Server, String) {
    let mut child =
        Command::new(target_file("coda-example-instrument")).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (host, port) = line.trim().rsplit_once(':').unwrap();
    (Server(child), format!("host: {host}\nport: {port}\ntimeout_ms: 2000"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_behind_an_instrument_server_passes() {
    let (server, device) = instrument();
    let skipped = ["batch", "evolve-state", "concurrent-runs", "cancel-unknown", "cancel-after"];
    passes("coda_example_instrument", &device, &[], &skipped).await;
    drop(server);
    let (code, cases) = check(&library("coda_example_instrument"), &device, &[], &["--only", "create"]).await;
    assert_eq!(code, 1);
    assert!(cases["create"].1.contains("can't be reached"), "{}", cases["create"].1);
}

/// A case that finds a fault: its name, the device config, variables, the verdict, and what it says.
type Finding<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str, &'a str);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_case_finds_the_plugin_that_is_wrong_in_it() {
    let at_load = |fault| [("CODA_FAULTY_AT_LOAD", fault)];
    let (slow, bad_schema, strict) = (
        at_load("slow_load"),
        [("CODA_FAULTY_SCHEMA", "{\"type\": 7}")],
        [("CODA_FAULTY_SCHEMA", "{\"properties\": {\"exact\": {\"type\": \"string\"}}}")],
    );
    let lenient = [("CODA_FAULTY_LENIENT", "1")];
    let findings: &[Finding<'_>] = &[
        ("scan-time", "when: load", &slow, "failed", "connect in `create`"),
        ("config-schema", "exact: true", &bad_schema, "failed", "correct what config_schema replies"),
        ("config-schema", "exact: true", &strict, "failed", "line 1: `exact`"),
        ("create", "exact: true\nfault: error_create", &[], "failed", "out of calibration"),
        ("create", "exact: true\nfault: panic_create", &[], "failed", "panicked"),
        ("create", "exact: true\nfault: hang_create", &[], "timed_out", "no answer within"),
        ("create", "exact: true\nfault: segfault", &[], "died", "SIGSEGV"),
        ("create", "exact: true\nfault: abort\nwhen: run", &[], "died", "SIGABRT"),
        ("create", "exact: true\nfault: exit\nwhen: run", &[], "exited", "status 3"),
        ("create-twice", "exact: true\nfault: create_once", &[], "failed", "control stack is in use"),
        ("malformed-config", "exact: true", &lenient, "failed", "a typo would go unnoticed"),
        ("device", "exact: true\nfault: device_changes", &[], "failed", "the same description each time"),
        ("device", "exact: true\nfault: device_zero_qubits", &[], "failed", "it has 0 qubits"),
        ("bit-order", "exact: true\nfault: keys_reversed", &[], "failed", "the keys are reversed"),
        ("bit-order-pairs", "exact: true\nfault: keys_sorted", &[], "failed", "character i of a key"),
        ("counts", "exact: true\nfault: duplicate_key", &[], "failed", "each key once"),
        ("counts", "exact: true\nfault: key_too_long", &[], "failed", "keys of"),
        ("shots", "exact: true\nfault: shots_capped", &[], "failed", "return every shot"),
        ("gates-one-qubit", "exact: true\nfault: rx_sign", &[], "failed", "angle and sign"),
        ("gates-two-qubits", "exact: true\nfault: no_cz", &[], "failed", "compare the gate's matrix"),
        ("random-circuits", "exact: true\nfault: gates_reversed", &[], "failed", "compare the gates"),
        ("largest-qubit", "exact: true\nfault: last_qubit_dead", &[], "failed", "serve every qubit"),
        ("refusals", "", &[], "failed", "check target, gates"),
        ("batch", "exact: true\nfault: batch_reversed", &[], "failed", "in the order of the jobs"),
        ("batch", "exact: true\nfault: batch_too_few", &[], "failed", "once for each index"),
        ("batch", "exact: true\nfault: panic_batch", &[], "failed", "panicked"),
        ("evolve-state", "exact: true\nfault: evolve_nothing", &[], "failed", "bit k of an index"),
        ("cancel-before", "exact: true\nfault: panic_when_cancelled", &[], "failed", "error code cancelled"),
        ("cancel-during", "fault: slow\nrun_ms: 6000", &[], "failed", "have the run look for its cancel"),
        ("cancel-during", "fault: hang", &[], "timed_out", "no answer"),
        ("cancel-during", "fault: panic_cancel\nrun_ms: 400", &[], "failed", "correct the cancel hook"),
        ("cancel-after", "exact: true\nfault: cancel_sticks", &[], "failed", "forget a job"),
        ("cancel-unknown", "exact: true\nfault: cancel_any", &[], "failed", "something was cancelled"),
        (
            "concurrent-runs",
            "exact: true\nslots: 2\nrun_ms: 30\nfault: slots_mix",
            &[],
            "failed",
            "counts of 0 or more",
        ),
        (
            "error-then-good",
            "exact: true\nfault: error_sticks",
            &[],
            "failed",
            "nothing works after an error",
        ),
        ("hooks", "exact: true\nfault: panic_shutdown", &[], "failed", "catch what shutdown throws"),
        ("hooks", "exact: true\nfault: panic_drop", &[], "failed", "catch what destroy throws"),
        ("hooks", "exact: true\nfault: panic_run", &[], "failed", "catch what run throws"),
        ("hooks", "exact: true\nfault: panic_device\nafter: 1", &[], "failed", "catch what device throws"),
        ("shutdown-during-run", "exact: true\nfault: hang_shutdown", &[], "timed_out", "no answer"),
        ("left-behind", "exact: true\nfault: leave_threads\nwhen: run", &[], "failed", "join every thread"),
        (
            "process-state",
            "exact: true\nfault: chdir\nwhen: run",
            &[],
            "failed",
            "working directory left as they were",
        ),
        ("process-state", "exact: true\nfault: umask\nwhen: run", &[], "failed", "umask"),
        ("process-state", "exact: true\nfault: sigterm_handler\nwhen: run", &[], "failed", "handled signals"),
        ("process-state", "exact: true\nfault: sigchld_ignore\nwhen: run", &[], "failed", "ignored signals"),
        ("process-state", "exact: true\nfault: block_signals\nwhen: run", &[], "failed", "blocked signals"),
        ("memory", "exact: true\nfault: leak\nwhen: run", &[], "failed", "free what a run allocates"),
    ];
    for (case, device, env, verdict, says) in findings {
        let limit = if *verdict == "timed_out" { "1" } else { "60" };
        let flags = ["--only", case, "--time-limit", limit];
        let (code, cases) = check(&library("coda_faulty"), device, env, &flags).await;
        let (got, said) = &cases[*case];
        assert_eq!((code, got.as_str()), (1, *verdict), "{case} with {device:?}: {said}");
        assert!(said.contains(says), "{case} with {device:?}: {said} lacks {says:?}");
    }
    // And without a fault the same plugin passes all of them but those that it has nothing for.
    passes("coda_faulty", "exact: true", &[], &["config-schema", "batch", "evolve-state", "concurrent-runs"])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_the_file_and_of_the_c_binding_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let spoiled = |name: &str, from: &[u8], to: &[u8]| {
        let mut bytes = std::fs::read(library("coda_faulty")).unwrap();
        let at: Vec<usize> =
            (0..bytes.len() - from.len()).filter(|i| bytes[*i..].starts_with(from)).collect();
        assert!(!at.is_empty());
        at.into_iter().for_each(|i| bytes[i..i + to.len()].copy_from_slice(to));
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let finds =
        async |path: &Path, device: &str, env: &[(&str, &str)], case: &str, verdict: &str, says: &str| {
            let (code, cases) = check(path, device, env, &["--only", case]).await;
            let (got, said) = &cases[case];
            assert_eq!((code, got.as_str()), (1, verdict), "{case}: {said}");
            assert!(said.contains(says), "{case}: {said} lacks {says:?}");
        };
    let text = dir.path().join("text.so");
    std::fs::write(&text, "hello").unwrap();
    finds(&text, "", &[], "descriptor", "failed", "no ELF file").await;
    let unbound = spoiled("unbound.so", b"\0memmove\0", b"\0memmovx\0");
    finds(&unbound, "", &[], "load", "failed", "undefined symbol").await;
    let cpp = library("coda_faulty_cpp");
    for (table, says) in [
        ("null", "returned null"),
        ("small", "size is 16"),
        ("major", "states interface 9"),
        ("no_run", "has no 'run'"),
    ] {
        finds(&cpp, "", &[("CODA_FAULTY_TABLE", table)], "load", "failed", says).await;
    }
    finds(&cpp, "silent: run", &[], "hooks", "failed", "reply exactly once").await;
    for function in ["create", "device", "run", "cancel", "shutdown", "destroy"] {
        finds(&cpp, &format!("throw: {function}"), &[], "hooks", "died", "SIGABRT").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_own_manners() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state").display().to_string();
    let env = BTreeMap::from([("CODA_STATE_DIR".to_string(), state)]);
    let simulator = library("coda_simulator").display().to_string();
    let run =
        async |arguments: &[&str]| said(&[&["plugin", "check"], arguments].concat(), &env, dir.path()).await;
    let listed = run(&["--list"]).await;
    assert!(listed.code == 0 && listed.out.lines().count() >= 29, "{}", listed.text());
    let quick = run(&[&simulator, "--quick", "--only", "gates", "--junit", "out.xml"]).await;
    assert_eq!(quick.code, 0, "{}", quick.text());
    assert!(quick.out.contains("seed ") && quick.out.contains("2 passed, 0 failed"), "{}", quick.text());
    let junit = std::fs::read_to_string(dir.path().join("out.xml")).unwrap();
    assert!(junit.contains("tests=\"2\" failures=\"0\"") && junit.contains("gates-two-qubits"), "{junit}");
    for (arguments, says) in [
        (vec!["nowhere.so"], "nowhere.so"),
        (vec![simulator.as_str(), "--only", "no-such-case"], "no case is named"),
        (vec![simulator.as_str(), "--tolerance", "2"], "expected 0 to 1"),
        (vec![simulator.as_str(), "--device", "nowhere.yaml"], "nowhere.yaml"),
    ] {
        let done = run(&arguments).await;
        assert_eq!(done.code, 2, "{arguments:?}: {}", done.text());
        assert!(done.err.contains(says), "{arguments:?}: {}", done.err);
    }
    // One reason is told once.
    std::fs::write(dir.path().join("text.so"), "hello").unwrap();
    let text = run(&["text.so"]).await;
    assert_eq!(text.code, 1, "{}", text.text());
    assert!(text.out.contains("0 passed, 2 failed, 28 skipped"), "{}", text.text());
    std::fs::write(dir.path().join("wrong.yaml"), "connectivity: {grid: [2, 2]}").unwrap();
    let wrong = run(&[&simulator, "--device", "wrong.yaml"]).await;
    assert!(wrong.out.contains("no executor can be created, see above"), "{}", wrong.text());
    assert!(wrong.out.contains("4 passed, 1 failed, 25 skipped"), "{}", wrong.text());
    // What its errors explain is forgiven, and no more.
    std::fs::write(dir.path().join("noisy.yaml"), "noise: {readout: 0.02}\nseed: 3").unwrap();
    let noisy = ["--device", "noisy.yaml", "--only", "gates-two-qubits"];
    let strict = run(&[&[simulator.as_str()], &noisy[..]].concat()).await;
    assert_eq!(strict.code, 1, "{}", strict.text());
    let forgiving = run(&[&[simulator.as_str()], &noisy[..], &["--tolerance", "0.1"]].concat()).await;
    assert_eq!(forgiving.code, 0, "{}", forgiving.text());
}
