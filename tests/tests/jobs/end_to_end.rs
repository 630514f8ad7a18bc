//! The main job: a circuit from the stream through a plugin to a signed webhook, and what is told on the way.

use std::collections::BTreeMap;

use coda_host_tests::{Circuit, Exit, LIMIT, Plan, TestHost, bell, eventually, example, flips, ghz};
use serde_json::{Value, json};

/// A success webhook's counts, after checking everything else about it.
async fn completed(host: &TestHost, id: &str, shots: u64) -> BTreeMap<String, u64> {
    let body = host.delivered(id).await;
    assert_eq!((&body["job_id"], &body["status"]), (&json!(id), &json!("completed")), "{body}");
    assert_eq!(body["shots_completed"], json!(shots), "{body}");
    assert!(body["execution_time_ms"].as_f64().is_some_and(|ms| ms >= 0.0), "{body}");
    assert!(body.get("error").is_none(), "{body}");
    let counts: BTreeMap<String, u64> = serde_json::from_value(body["counts"].clone()).unwrap();
    assert_eq!(counts.values().sum::<u64>(), shots, "{body}");
    counts
}

fn keys(counts: &BTreeMap<String, u64>) -> Vec<&str> {
    counts.keys().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_right_and_webhooks_signed() {
    let host = Plan::simulator("seed: 7").start().await;
    let circuits: [(&str, Circuit, u32); 7] = [
        ("bell", bell(), 1000),
        ("ghz", ghz(5), 1000),
        ("example", example(), 100),
        ("permuted", flips(5, &[1, 4]).measure(&[4, 0, 1, 3]), 50),
        ("twice", flips(3, &[2]).measure(&[2, 1, 2]), 50),
        ("unmeasured", flips(2, &[0]).measure(&[]), 10),
        ("empty", Circuit::new(2), 1),
    ];
    let mut ids = BTreeMap::new();
    for (id, circuit, shots) in &circuits {
        ids.insert(*id, host.submit(id, circuit, *shots).await);
    }
    let mut found = BTreeMap::new();
    for (id, _, shots) in &circuits {
        found.insert(*id, completed(&host, id, u64::from(*shots)).await);
    }
    assert_eq!(keys(&found["bell"]), ["00", "11"]);
    assert_eq!(keys(&found["ghz"]), ["00000", "11111"]);
    // Fair to more than six standard deviations.
    assert!(found["bell"].values().all(|n| (400..=600).contains(n)), "{:?}", found["bell"]);
    assert_eq!(found["example"], BTreeMap::from([("10".into(), 100)]));
    assert_eq!(found["permuted"], BTreeMap::from([("1010".into(), 50)]));
    assert_eq!(found["twice"], BTreeMap::from([("101".into(), 50)]));
    assert_eq!(found["unmeasured"], BTreeMap::from([(String::new(), 10)]));
    assert_eq!(found["empty"], BTreeMap::from([("00".into(), 1)]));

    host.wait_nothing_pending().await;
    for (id, message_id) in &ids {
        let status = host.status(id).await;
        assert_eq!((&*status["state"], &*status["qpu_id"]), ("completed", "q1"), "{status:?}");
        assert_eq!(status["message_id"], *message_id);
        assert!(is_time(&status["started_at"]) && is_time(&status["completed_at"]), "{status:?}");
        assert!(status["started_at"] <= status["completed_at"], "{status:?}");
        assert_eq!(host.attempts(id), (1, 1));
    }
    let state = host.cloud.state();
    assert_eq!(state.bad_tokens, 0);
    assert!(state.webhooks.iter().all(|w| w.jwt.is_ok()), "every webhook is signed by this QPU");
}

/// `2026-04-27T00:00:00.123456+00:00`, or without a fraction.
fn is_time(text: &str) -> bool {
    let (whole, fraction) = text.split_at_checked(19).unwrap_or(("", ""));
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    let plain: String = whole.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    let micros = fraction.strip_suffix("+00:00").unwrap_or("x");
    plain == "0000-00-00T00:00:00"
        && (micros.is_empty() || micros.len() == 7 && micros.starts_with('.') && digits(&micros[1..]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_was_sent_before_the_first_start_runs() {
    let mut host = Plan::simulator("").prepare().await;
    host.submit("early", &example(), 100).await;
    host.start().await;
    assert_eq!(host.delivered("early").await["counts"], json!({ "10": 100 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_run_redeems_the_token_and_later_ones_reconnect() {
    let mut host =
        Plan::simulator("num_qubits: 3\nconnectivity: line\ndirected: true").qubits(3).start().await;
    host.good_job_goes_through("first").await;
    assert_eq!(host.stop().await, Exit::Code(0));
    host.start().await;
    host.good_job_goes_through("second").await;
    assert_eq!(host.stop().await, Exit::Code(0));
    // A token left in a unit file.
    host.set("CODA_NODE_TOKEN", "one-time-q1");
    host.start().await;
    host.good_job_goes_through("third").await;
    host.wait_log("this node token was redeemed before").await;

    let state = host.cloud.state();
    let connects: Vec<_> = state.connects.iter().map(|c| (c.jwt, c.answered)).collect();
    assert_eq!(connects, [(false, Some(200)), (true, Some(200)), (true, Some(200))]);
    let fingerprints: Vec<_> = state.connects.iter().map(|c| c.body["machine_fingerprint"].clone()).collect();
    assert!(fingerprints.iter().all(|f| *f == fingerprints[0] && f.is_string()), "{fingerprints:?}");
    assert_eq!(state.connects[0].body["connectivity"], json!([[0, 1], [1, 2]]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_token_ends_with_the_reason() {
    let mut host = Plan::simulator("").env("CODA_NODE_TOKEN", "WRONG-TOKEN").prepare().await;
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(4));
    let log = host.log();
    assert!(log.contains("Node request failed (401)") && log.contains("unknown node token"), "{log}");
    assert!(!log.contains("WRONG-TOKEN"), "the token is not shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_tell_the_job_and_the_topology() {
    let device = "mode: hang\nnum_qubits: 3\nconnectivity: [[1, 0], [2, 1]]\ndirected: true";
    let host = Plan::simulator(device).qubits(3).start().await;
    host.submit("long", &Circuit::new(1), 1).await;
    let told = host.cloud.wait_until(LIMIT, |s| s.heartbeats.iter().any(|h| h.body["current_job"] == "long"));
    assert!(told.await, "a heartbeat names the job");
    {
        let state = host.cloud.state();
        let first = &state.heartbeats[0].body;
        assert_eq!(first["connectivity"], json!([[1, 0], [2, 1]]));
        assert!(first.get("last_job_at").is_some_and(Value::is_null), "{first}");
        assert!(state.heartbeats.iter().all(|h| h.jwt.is_ok() && h.answered == Some(200)));
    }
    let (status, ready) = host.ready().await;
    assert_eq!((status, &ready["current_job"]), (200, &json!("long")));
    host.request_cancel("long").await;
    let healthy =
        host.cloud.wait_until(LIMIT, |s| s.heartbeats.iter().any(|h| h.body["redis_healthy"] == true));
    assert!(healthy.await, "a heartbeat says that Redis is there");
    eventually("no job is running", async || host.ready().await.1["current_job"].is_null()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_readiness_and_metrics_are_told() {
    let host = Plan::simulator("").start().await;
    assert_eq!(host.get("/health").await, (200, r#"{"status":"ok"}"#.to_string()));
    host.good_job_goes_through("a").await;
    host.send(&host.job("b", &bell(), 10).field("shots", "none")).await;
    host.failure("b").await;
    host.request_cancel("c").await;
    host.submit("c", &bell(), 10).await;
    host.wait_state("c", "cancelled").await;
    host.send(&host.job("d", &bell(), 10).without("job_id")).await;
    for (outcome, n) in
        [("completed", 1), ("failed", 1), ("cancelled", 1), ("dead_letter", 1), ("duplicate", 0)]
    {
        eventually(&format!("{n} {outcome}"), async || host.counted(outcome).await == n).await;
    }
    host.wait_nothing_pending().await;

    let (status, ready) = host.ready().await;
    assert_eq!((status, &ready["ready"]), (200, &json!(true)));
    assert_eq!((&ready["vpn_state"], &ready["redis_healthy"]), (&json!("ready"), &json!(true)));
    assert_eq!((&ready["current_job"], &ready["qpu_id"]), (&Value::Null, &json!("q1")));
    assert_eq!((&ready["slots"], &ready["undelivered"]), (&json!(1), &json!(0)));
    assert_eq!(ready["plugin"]["kind"], "simulator");
    assert_eq!(host.runs().await, 1, "only the good job reached the plugin");
    assert_eq!(host.metric("coda_host_webhook_attempts_total{result=\"accepted\"}").await, 2);
    let (_, text) = host.get("/metrics").await;
    for name in ["coda_host_queue_wait_seconds_bucket", "coda_host_slots 1", "coda_host_build_info{version="]
    {
        assert!(text.contains(name), "{name} is missing in:\n{text}");
    }
    assert_eq!(host.get("/elsewhere").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_ended_is_not_run_again_and_a_failed_one_may_be_resubmitted() {
    let host = Plan::simulator("").start().await;
    host.good_job_goes_through("done").await;
    host.wait_state("done", "completed").await;
    host.submit("done", &bell(), 10).await;
    host.send(&host.job("again", &bell(), 10).field("shots", "0")).await;
    host.failure("again").await;
    host.submit("again", &example(), 10).await;
    eventually("the second try of the failed job is through", async || host.attempts("again").1 == 2).await;
    host.wait_nothing_pending().await;
    assert_eq!(host.state("again").await, "completed");
    assert_eq!(host.attempts("done"), (1, 1));
    assert_eq!((host.runs().await, host.counted("duplicate").await), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_messages_with_one_job_id_are_one_job() {
    let host = Plan::simulator("execution_time_ms: 200").start().await;
    host.submit("twin", &example(), 100).await;
    host.submit("twin", &example(), 100).await;
    host.good_job_goes_through("behind").await;
    host.wait_nothing_pending().await;
    assert_eq!(host.attempts("twin"), (1, 1));
    assert_eq!(host.runs().await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_jobs_run_in_the_order_of_the_stream() {
    let host = Plan::simulator("mode: hang").start().await;
    let in_the_plugin = async |id: &str| {
        eventually(&format!("{id} runs"), async || host.ready().await.1["current_job"] == id).await;
    };
    host.submit("J0", &Circuit::new(1), 1).await;
    in_the_plugin("J0").await;
    // The first one takes longest to be read.
    let large = (0..20_000).fold(Circuit::new(1), |c, _| c.rx(0, std::f64::consts::PI));
    for (n, circuit) in [large, bell(), bell(), bell()].iter().enumerate() {
        host.submit(&format!("J{}", n + 1), circuit, 1).await;
    }
    eventually("all are read ahead", async || host.ready().await.1["waiting"] == 4).await;
    for n in 1..=4 {
        host.request_cancel(&format!("J{}", n - 1)).await;
        in_the_plugin(&format!("J{n}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_run_in_the_streams_order_whichever_is_read_first() {
    let load = coda_host_tests::load::Load::new();
    let host = Plan::faulty(&load.device()).env("CODA_PREFETCH", "8").prepare().await;
    let mut large = coda_host_tests::Circuit::new(2);
    for _ in 0..40_000 {
        large = large.rx(0, 0.5);
    }
    let mut expected = Vec::new();
    for n in 0..12 {
        let (id, circuit) = (format!("J{n}"), if n % 3 == 0 { &large } else { &example() });
        host.submit(&id, circuit, 10).await;
        expected.push(id);
    }
    let mut host = host;
    host.start().await;
    for id in &expected {
        host.delivered(id).await;
    }
    assert_eq!(load.order(), expected);
}
