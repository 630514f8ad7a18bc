//! The main job: a circuit from the stream through a plugin to a signed webhook, and what is told on the way.

use std::collections::BTreeMap;

use coda_host_tests::{Bed, Circuit, Exit, LIMIT, Plan, bell, example, flips, ghz, holds};
use serde_json::{Value, json};

/// A success webhook's counts, after checking everything else about it.
async fn completed(bed: &Bed, id: &str, shots: u64) -> BTreeMap<String, u64> {
    let body = bed.delivered(id).await;
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
    let bed = Plan::simulator("seed: 7").start().await;
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
        ids.insert(*id, bed.submit(id, circuit, *shots).await);
    }
    let mut found = BTreeMap::new();
    for (id, _, shots) in &circuits {
        found.insert(*id, completed(&bed, id, u64::from(*shots)).await);
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

    bed.wait_nothing_pending().await;
    for (id, message_id) in &ids {
        let status = bed.status(id).await;
        assert_eq!((&*status["state"], &*status["qpu_id"]), ("completed", "q1"), "{status:?}");
        assert_eq!(status["message_id"], *message_id);
        assert!(is_time(&status["started_at"]) && is_time(&status["completed_at"]), "{status:?}");
        assert!(status["started_at"] <= status["completed_at"], "{status:?}");
        assert_eq!(bed.attempts(id), (1, 1));
    }
    let state = bed.cloud.state();
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
    let mut bed = Plan::simulator("").lay().await;
    bed.submit("early", &example(), 100).await;
    bed.start().await;
    assert_eq!(bed.delivered("early").await["counts"], json!({ "10": 100 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_run_redeems_the_token_and_later_ones_reconnect() {
    let mut bed =
        Plan::simulator("num_qubits: 3\nconnectivity: line\ndirected: true").qubits(3).start().await;
    bed.good_job_goes_through("first").await;
    assert_eq!(bed.stop().await, Exit::Code(0));
    bed.start().await;
    bed.good_job_goes_through("second").await;
    assert_eq!(bed.stop().await, Exit::Code(0));
    // A token left in a unit file.
    bed.set("CODA_NODE_TOKEN", "one-time-q1");
    bed.start().await;
    bed.good_job_goes_through("third").await;
    bed.wait_log("this node token was redeemed before").await;

    let state = bed.cloud.state();
    let connects: Vec<_> = state.connects.iter().map(|c| (c.jwt, c.answered)).collect();
    assert_eq!(connects, [(false, Some(200)), (true, Some(200)), (true, Some(200))]);
    let fingerprints: Vec<_> = state.connects.iter().map(|c| c.body["machine_fingerprint"].clone()).collect();
    assert!(fingerprints.iter().all(|f| *f == fingerprints[0] && f.is_string()), "{fingerprints:?}");
    assert_eq!(state.connects[0].body["connectivity"], json!([[0, 1], [1, 2]]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_token_ends_with_the_reason() {
    let mut bed = Plan::simulator("").env("CODA_NODE_TOKEN", "WRONG-TOKEN").lay().await;
    bed.launch();
    assert_eq!(bed.wait_exit().await, Exit::Code(4));
    let log = bed.log();
    assert!(log.contains("Node request failed (401)") && log.contains("unknown node token"), "{log}");
    assert!(!log.contains("WRONG-TOKEN"), "the token is not shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_tell_the_job_and_the_topology() {
    let device = "mode: hang\nnum_qubits: 3\nconnectivity: [[1, 0], [2, 1]]\ndirected: true";
    let bed = Plan::simulator(device).qubits(3).start().await;
    bed.submit("long", &Circuit::new(1), 1).await;
    let told = bed.cloud.wait_until(LIMIT, |s| s.heartbeats.iter().any(|h| h.body["current_job"] == "long"));
    assert!(told.await, "a heartbeat names the job");
    {
        let state = bed.cloud.state();
        let first = &state.heartbeats[0].body;
        assert_eq!(first["connectivity"], json!([[1, 0], [2, 1]]));
        assert!(first.get("last_job_at").is_some_and(Value::is_null), "{first}");
        assert!(state.heartbeats.iter().all(|h| h.jwt.is_ok() && h.answered == Some(200)));
    }
    let (status, ready) = bed.ready().await;
    assert_eq!((status, &ready["current_job"]), (200, &json!("long")));
    bed.request_cancel("long").await;
    let healthy =
        bed.cloud.wait_until(LIMIT, |s| s.heartbeats.iter().any(|h| h.body["redis_healthy"] == true));
    assert!(healthy.await, "a heartbeat says that Redis is there");
    holds("no job is running", async || bed.ready().await.1["current_job"].is_null()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_readiness_and_metrics_are_told() {
    let bed = Plan::simulator("").start().await;
    assert_eq!(bed.get("/health").await, (200, r#"{"status":"ok"}"#.to_string()));
    bed.good_job_goes_through("a").await;
    bed.send(&bed.job("b", &bell(), 10).field("shots", "none")).await;
    bed.failure("b").await;
    bed.request_cancel("c").await;
    bed.submit("c", &bell(), 10).await;
    bed.wait_state("c", "cancelled").await;
    bed.send(&bed.job("d", &bell(), 10).without("job_id")).await;
    for (outcome, n) in
        [("completed", 1), ("failed", 1), ("cancelled", 1), ("dead_letter", 1), ("duplicate", 0)]
    {
        holds(&format!("{n} {outcome}"), async || bed.counted(outcome).await == n).await;
    }
    bed.wait_nothing_pending().await;

    let (status, ready) = bed.ready().await;
    assert_eq!((status, &ready["ready"]), (200, &json!(true)));
    assert_eq!((&ready["vpn_state"], &ready["redis_healthy"]), (&json!("ready"), &json!(true)));
    assert_eq!((&ready["current_job"], &ready["qpu_id"]), (&Value::Null, &json!("q1")));
    assert_eq!((&ready["slots"], &ready["undelivered"]), (&json!(1), &json!(0)));
    assert_eq!(ready["plugin"]["kind"], "simulator");
    assert_eq!(bed.runs().await, 1, "only the good job reached the plugin");
    assert_eq!(bed.metric("coda_host_webhook_attempts_total{result=\"accepted\"}").await, 2);
    let (_, text) = bed.get("/metrics").await;
    for name in ["coda_host_queue_wait_seconds_bucket", "coda_host_slots 1", "coda_host_build_info{version="]
    {
        assert!(text.contains(name), "{name} is missing in:\n{text}");
    }
    assert_eq!(bed.get("/elsewhere").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_ended_is_not_run_again_and_a_failed_one_may_be_resubmitted() {
    let bed = Plan::simulator("").start().await;
    bed.good_job_goes_through("done").await;
    bed.wait_state("done", "completed").await;
    bed.submit("done", &bell(), 10).await;
    bed.send(&bed.job("again", &bell(), 10).field("shots", "0")).await;
    bed.failure("again").await;
    bed.submit("again", &example(), 10).await;
    holds("the second try of the failed job is through", async || bed.attempts("again").1 == 2).await;
    bed.wait_nothing_pending().await;
    assert_eq!(bed.state("again").await, "completed");
    assert_eq!(bed.attempts("done"), (1, 1));
    assert_eq!((bed.runs().await, bed.counted("duplicate").await), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_messages_with_one_job_id_are_one_job() {
    let bed = Plan::simulator("execution_time_ms: 200").start().await;
    bed.submit("twin", &example(), 100).await;
    bed.submit("twin", &example(), 100).await;
    bed.good_job_goes_through("behind").await;
    bed.wait_nothing_pending().await;
    assert_eq!(bed.attempts("twin"), (1, 1));
    assert_eq!(bed.runs().await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_jobs_run_in_the_order_of_the_stream() {
    let bed = Plan::simulator("mode: hang").start().await;
    let in_the_plugin = async |id: &str| {
        holds(&format!("{id} runs"), async || bed.ready().await.1["current_job"] == id).await;
    };
    bed.submit("J0", &Circuit::new(1), 1).await;
    in_the_plugin("J0").await;
    // The first one takes longest to be read.
    let large = (0..20_000).fold(Circuit::new(1), |c, _| c.rx(0, std::f64::consts::PI));
    for (n, circuit) in [large, bell(), bell(), bell()].iter().enumerate() {
        bed.submit(&format!("J{}", n + 1), circuit, 1).await;
    }
    holds("all are read ahead", async || bed.ready().await.1["waiting"] == 4).await;
    for n in 1..=4 {
        bed.request_cancel(&format!("J{}", n - 1)).await;
        in_the_plugin(&format!("J{n}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_run_in_the_streams_order_whichever_is_read_first() {
    let load = coda_host_tests::load::Load::new();
    let bed = Plan::faulty(&load.device()).env("CODA_PREFETCH", "8").lay().await;
    let mut large = coda_host_tests::Circuit::new(2);
    for _ in 0..40_000 {
        large = large.rx(0, 0.5);
    }
    let mut expected = Vec::new();
    for n in 0..12 {
        let (id, circuit) = (format!("J{n}"), if n % 3 == 0 { &large } else { &example() });
        bed.submit(&id, circuit, 10).await;
        expected.push(id);
    }
    let mut bed = bed;
    bed.start().await;
    for id in &expected {
        bed.delivered(id).await;
    }
    assert_eq!(load.order(), expected);
}
