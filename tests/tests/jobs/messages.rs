//! Messages of every malformed kind: its sender is told or a dead letter is kept, the good job behind runs, and
//! nothing comes back after a restart.

use coda_host::dev::cloud::Answer;
use coda_host_tests::{Circuit, Exit, Job, Plan, TestHost, bytes_of, eventually, example};
use serde_json::{Value, json};

/// What becomes of a bad message.
enum End {
    /// A failure webhook that says this.
    Told(&'static str),
    /// A dead letter whose reason says this.
    Kept(&'static str),
}
use End::{Kept, Told};

type Spoil = Box<dyn Fn(Job) -> Job>;

/// Changes the circuit.
fn ir(change: impl Fn(&mut Value) + 'static) -> Spoil {
    Box::new(move |job| {
        let mut circuit: Value = serde_json::from_slice(bytes_of(&job, "ir_json")).unwrap();
        change(&mut circuit);
        job.field("ir_json", circuit.to_string())
    })
}

/// Sets one key of the circuit.
fn ir_key(key: &'static str, value: Value) -> Spoil {
    ir(move |c| c[key] = value.clone())
}

/// Replaces the gates by one.
fn gate(text: &'static str) -> Spoil {
    ir_text(move |c| c.replace(r#"{"gate":"rx","params":[3.141592653589793],"qubits":[2]}"#, text))
}

/// Changes the circuit's text, for what is not JSON.
fn ir_text(change: impl Fn(String) -> String + 'static) -> Spoil {
    Box::new(move |job| {
        let before = String::from_utf8(bytes_of(&job, "ir_json").to_vec()).unwrap();
        let after = change(before.clone());
        assert_ne!(before, after, "the case changes something");
        job.field("ir_json", after)
    })
}

fn field(name: &'static str, value: impl AsRef<[u8]>) -> Spoil {
    let value = value.as_ref().to_vec();
    Box::new(move |job| job.field(name, &value))
}

fn without(name: &'static str) -> Spoil {
    Box::new(move |job| job.without(name))
}

fn circuits() -> Vec<(Spoil, End)> {
    let long_list = format!("[{}", "[".repeat(200_000));
    vec![
        (without("ir_json"), Told("no field 'ir_json'")),
        (field("ir_json", ""), Told("")),
        (field("ir_json", "{"), Told("")),
        (field("ir_json", "null"), Told("")),
        (field("ir_json", "[]"), Told("")),
        (field("ir_json", b"{\"target\":\"\xff\"}"), Told("")),
        (field("ir_json", long_list), Told("")),
        (ir_text(|c| c.replacen('{', &format!("{{\"deep\":{}", "[".repeat(100_000)), 1)), Told("")),
        (ir_text(|c| format!("{c}x")), Told("")),
        (field("ir_json", vec![b' '; 20 << 20]), Told("20971520 bytes")),
        (ir_key("version", json!("2.0")), Told("2.0")),
        (ir_key("version", Value::Null), Told("version")),
        (ir_key("target", json!("xy")), Told("xy")),
        (ir_key("target", json!("iswap")), Told("target iswap, the device coda-simulator takes cz")),
        (ir_key("target", json!("CZ")), Told("CZ")),
        (ir_key("num_qubits", json!(0)), Told("num_qubits")),
        (ir_key("num_qubits", json!(51)), Told("num_qubits")),
        (ir_key("num_qubits", json!(-3)), Told("num_qubits")),
        (ir_key("num_qubits", json!(3.5)), Told("num_qubits")),
        (ir_key("num_qubits", json!("3")), Told("num_qubits")),
        (ir_key("num_qubits", json!(true)), Told("num_qubits")),
        (ir_key("num_qubits", json!(1e300)), Told("num_qubits")),
        (ir_key("num_qubits", json!(6)), Told("6 qubits, the device coda-simulator has 5")),
        (ir_key("gates", json!({})), Told("gates")),
        (ir_key("measurements", json!([3])), Told("measurement")),
        (ir_key("measurements", json!([-1])), Told("measurement")),
        (ir_key("measurements", Value::Null), Told("measurements")),
        (ir_key("metadata", json!({ "source_hash": "h" })), Told("compiled_at")),
        (gate(r#"{"gate":"h","qubits":[0]}"#), Told("h")),
        (gate(r#"{"gate":"RX","qubits":[0],"params":[1]}"#), Told("RX")),
        (gate(r#"{"gate":"cnot","qubits":[0,1]}"#), Told("cnot")),
        (gate(r#"{"gate":"cz","qubits":[1,1]}"#), Told("gate 0")),
        (gate(r#"{"gate":"cz","qubits":[0]}"#), Told("gate 0")),
        (gate(r#"{"gate":"rx","qubits":[0]}"#), Told("gate 0")),
        (gate(r#"{"gate":"rx","qubits":[0],"params":[1,2]}"#), Told("gate 0")),
        (gate(r#"{"gate":"rx","qubits":[3],"params":[1]}"#), Told("gate 0")),
        (gate(r#"{"gate":"rx","qubits":[-1],"params":[1]}"#), Told("gate 0")),
        (gate(r#"{"gate":"rx","qubits":[0],"params":[1e999]}"#), Told("gate 0")),
        (gate(r#"{"gate":"rx","qubits":[0],"params":[NaN]}"#), Told("")),
        (gate(r#"{"gate":"rx","qubits":[0],"params":[-Infinity]}"#), Told("")),
        (gate(r#"{"gate":"rx","qubits":[0],"params":["1.5"]}"#), Told("gate 0")),
        (gate(r#"{"gate":"rx","qubits":[0],"params":[null]}"#), Told("gate 0")),
    ]
}

fn shots() -> Vec<(Spoil, End)> {
    let mut cases = vec![(without("shots"), Told("no field 'shots'"))];
    for text in
        ["0", "-1", "", "1e3", "100.0", "1_000", "99999999999999999999", "many", "2147483648", "+5", "0x10"]
    {
        cases.push((field("shots", text), Told("shots is")));
    }
    cases.push((field("shots", "9".repeat(5000)), Told("shots is")));
    cases.push((field("shots", b"\xff1"), Told("shots is not UTF-8")));
    cases
}

fn unanswerable() -> Vec<(Spoil, End)> {
    vec![
        (without("job_id"), Kept("no field 'job_id'")),
        (field("job_id", ""), Kept("job_id has 0 bytes")),
        (field("job_id", "x".repeat(257)), Kept("job_id has 257 bytes")),
        (field("job_id", "a\nb"), Kept("control characters")),
        (field("job_id", b"\xffid"), Kept("'job_id' is not UTF-8")),
        (without("callback_url"), Kept("no field 'callback_url'")),
        (field("callback_url", ""), Kept("callback_url")),
        (field("callback_url", "not a url"), Kept("callback_url")),
        (field("callback_url", "ftp://127.0.0.1/cb"), Kept("callback_url")),
        (field("callback_url", "/cb"), Kept("callback_url")),
        (field("callback_url", "http://user:pass@127.0.0.1/cb"), Kept("callback_url")),
        (
            field("callback_url", "https://elsewhere.invalid/cb"),
            Kept("may not be sent to https://elsewhere.invalid"),
        ),
        (field("callback_url", b"http://127.0.0.1/\xff"), Kept("'callback_url' is not UTF-8")),
        (Box::new(|_| Job::default().field("x", "1")), Kept("no field 'job_id'")),
    ]
}

/// Sends each case with a good job behind it and checks what becomes of both.
async fn check(cases: Vec<(Spoil, End)>) -> TestHost {
    let mut host = Plan::simulator("num_qubits: 5").start().await;
    let mut messages = Vec::new();
    for (n, (spoil, _)) in cases.iter().enumerate() {
        messages.push(host.send(&spoil(host.job(&format!("bad{n}"), &example(), 100))).await);
        host.submit(&format!("good{n}"), &example(), 100).await;
    }
    for (n, (_, end)) in cases.iter().enumerate() {
        let good = host.delivered(&format!("good{n}")).await;
        assert_eq!(good["counts"], json!({ "10": 100 }), "the job behind case {n}: {good}");
        if let Told(what) = end {
            let id = format!("bad{n}");
            let error = host.failure(&id).await;
            assert!(
                error.contains(what) && error.chars().count() <= 500,
                "case {n}: {error:?} lacks {what:?}"
            );
            host.wait_state(&id, "failed").await;
            let status = host.status(&id).await;
            assert_eq!((&status["error"], &status["message_id"]), (&error, &messages[n]));
            assert!(
                !status.contains_key("started_at") && status["failed_at"].ends_with("+00:00"),
                "{status:?}"
            );
        }
    }
    host.wait_nothing_pending().await;
    let letters = host.state_file().dead_letters();
    let kept: Vec<_> = cases.iter().enumerate().filter(|(_, (_, end))| matches!(end, Kept(_))).collect();
    assert_eq!(letters.len(), kept.len(), "{letters:?}");
    for (n, (_, end)) in kept {
        let Kept(what) = end else { continue };
        let letter = letters.iter().find(|l| l.message_id == messages[n]).expect("each is kept");
        assert!(letter.reason.contains(what), "case {n}: {letter:?} lacks {what:?}");
    }
    assert_eq!(host.runs().await, cases.len() as u64, "no bad job reached the plugin");

    // Nothing of it poisons the next start.
    assert_eq!(host.stop().await, Exit::Code(0));
    let sent = host.cloud.state().webhook_count;
    host.start().await;
    host.good_job_goes_through("after").await;
    host.wait_nothing_pending().await;
    let runs = host.runs().await;
    assert_eq!((host.cloud.state().webhook_count, runs), (sent + 1, 1));
    assert_eq!(host.state_file().dead_letters().len(), letters.len());
    host
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_circuits_are_told() {
    check(circuits()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_shots_are_told() {
    check(shots()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_answered_is_kept() {
    let host = check(unanswerable()).await;
    let letters = host.state_file().dead_letters();
    assert!(letters.iter().any(|l| l.fields.contains("elsewhere.invalid")), "{letters:?}");
    assert!(letters.iter().all(|l| serde_json::from_str::<Value>(&l.fields).is_ok()), "{letters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_messages_that_are_pending_at_the_start_are_dealt_with_too() {
    let mut host = Plan::simulator("num_qubits: 5").prepare().await;
    let (stream, group) = (host.stream(), host.group());
    host.redis::<()>(redis::cmd("XGROUP").arg(&["CREATE", &stream, &group, "0", "MKSTREAM"])).await;
    host.send(&host.job("bad", &example(), 1).field("shots", "x")).await;
    host.send(&host.job("", &example(), 1)).await;
    host.submit("good", &example(), 100).await;
    let mut read = redis::cmd("XREADGROUP");
    read.arg(&["GROUP", &group, "worker-0", "COUNT", "10", "STREAMS", &stream, ">"]);
    let _: redis::Value = host.redis(&read).await;
    assert_eq!(host.pending().await.len(), 3);
    host.start().await;
    assert_eq!(host.delivered("good").await["counts"], json!({ "10": 100 }));
    assert!(host.failure("bad").await.contains("shots is"));
    host.wait_nothing_pending().await;
    assert_eq!(host.state_file().dead_letters().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_only_odd_runs() {
    let host = Plan::simulator("num_qubits: 5").start().await;
    let cases: Vec<Spoil> = vec![
        field("note", b"\xff\xfe"),
        field("shots", " 100 "),
        field("shots", "0100"),
        ir_key("future", json!({ "a": [1, { "b": null }] })),
        ir_key("num_qubits", json!(3.0)),
        ir(|c| c["gates"][0]["qubits"] = json!([2.0])),
        ir(|c| drop(c.as_object_mut().unwrap().remove("version"))),
        ir_text(|c| c.replace("\"num_qubits\":3", "\"num_qubits\":3e0")),
        ir_text(|c| format!("  {c}\n")),
    ];
    for (n, spoil) in cases.iter().enumerate() {
        host.send(&spoil(host.job(&format!("J{n}"), &example(), 100))).await;
    }
    for n in 0..cases.len() {
        let body = host.delivered(&format!("J{n}")).await;
        assert_eq!(body["counts"], json!({ "10": 100 }), "case {n}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_circuit_runs() {
    let host = Plan::simulator("num_qubits: 2").start().await;
    // An even number of half turns.
    let circuit = (0..200_000).fold(Circuit::new(2), |c, _| c.rx(1, std::f64::consts::PI));
    host.submit("large", &circuit, 10).await;
    host.good_job_goes_through("behind").await;
    assert_eq!(host.delivered("large").await["counts"], json!({ "00": 10 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_ids_are_any_text() {
    let host = Plan::simulator("num_qubits: 5").start().await;
    let long = "x".repeat(256);
    for id in ["a:b", "spaces and \"quotes\"", "é🙏", "{}", "..", &long] {
        host.submit(id, &example(), 100).await;
        assert_eq!(host.delivered(id).await["job_id"], id);
        eventually("its state is there", async || host.state(id).await == "completed").await;
    }
}

/// A sender that repeats itself fills neither the pending list nor the memory, and other jobs go on afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_beyond_those_that_can_be_parked_are_not_claimed() {
    let host =
        Plan::simulator("execution_time_ms: 1500").env("CODA_RECOVER_INTERVAL_SEC", "0.1").start().await;
    host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    let again = host.job("J1", &example(), 100);
    for _ in 0..1500 {
        host.send(&again).await;
    }
    eventually("some are parked", async || host.pending().await.len() > 200).await;
    host.submit("J2", &example(), 100).await;
    assert!(host.pending().await.len() < 400, "{} are claimed", host.pending().await.len());
    host.delivered("J1").await;
    host.delivered("J2").await;
    host.wait_nothing_pending().await;
    assert_eq!((host.runs().await, host.attempts("J1")), (2, (1, 1)));
}

/// Empties the server, and sends a job under the id of a message from before.
async fn flush_and_use_again(host: &TestHost, message: &str, job: &str) {
    host.redis::<()>(redis::cmd("FLUSHALL").arg("SYNC")).await;
    let mut add = redis::cmd("XADD");
    add.arg(host.stream()).arg(message);
    for (name, value) in &host.job(job, &example(), 100).fields {
        add.arg(name).arg(&value[..]);
    }
    assert_eq!(host.redis::<String>(&add).await, message);
}

/// After a FLUSHALL the server gives the same ids again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_id_that_is_used_again_costs_no_job() {
    let host =
        Plan::simulator("execution_time_ms: 700").env("CODA_RECOVER_INTERVAL_SEC", "0.1").start().await;
    let message = host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    flush_and_use_again(&host, &message, "J2").await;
    host.delivered("J1").await;
    host.delivered("J2").await;
    host.wait_nothing_pending().await;
    assert_eq!((host.attempts("J1"), host.attempts("J2"), host.runs().await), ((1, 1), (1, 1), 2));
}

/// The same with a restart between the two: the result on disk says nothing about whose the entry is by now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_id_that_is_used_again_before_a_restart_costs_no_job() {
    let mut host = Plan::simulator("").env("CODA_RECOVER_INTERVAL_SEC", "0.1").start().await;
    host.cloud.on_webhook(|_| Some(Answer::status(503)));
    let message = host.submit("J1", &example(), 100).await;
    eventually("its result was tried", async || host.attempts("J1").0 > 0).await;
    flush_and_use_again(&host, &message, "J2").await;
    eventually("the second message is claimed", async || host.pending().await.len() == 1).await;
    host.kill();
    host.start().await;
    host.cloud.clear_hooks();
    host.delivered("J1").await;
    host.delivered("J2").await;
    host.wait_nothing_pending().await;
    assert_eq!((host.attempts("J1").1, host.attempts("J2").1), (1, 1));
}

/// A result that could not be stored or sent would be tried again for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_too_large_fails_its_job() {
    let host = Plan::simulator("").env("CODA_MAX_RESULT_BYTES", "300").start().await;
    let mut circuit = Circuit::new(5);
    for qubit in 0..5 {
        circuit = circuit.rx(qubit, std::f64::consts::FRAC_PI_2);
    }
    host.submit("J1", &circuit.measure(&[0, 1, 2, 3, 4]), 10_000).await;
    let error = host.failure("J1").await;
    assert!(error.contains("bytes, allowed are 300 (CODA_MAX_RESULT_BYTES)"), "{error}");
    host.good_job_goes_through("J2").await;
    host.wait_nothing_pending().await;
}
