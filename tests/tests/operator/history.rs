//! `coda-host history` and `usage`: each job once, with the executor's own times, over cancels, kills, pauses and restarts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use coda_host::dev::cloud::Answer;
use coda_host_tests::{Exit, Plan, TestHost, eventually, eventually_some, example};
use serde_json::{Value, json};

/// How much longer a run may look from the host than from within the executor, on a busy machine.
const SLACK: f64 = 0.5;

/// The rows of `coda-host history --json`.
async fn history(host: &TestHost, arguments: &[&str]) -> Vec<Value> {
    let said = host.cli(&[&["history", "--json"], arguments].concat()).await;
    assert_eq!(said.code, 0, "{}", said.text());
    said.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The one row of `coda-host usage --by total`.
async fn usage(host: &TestHost) -> Value {
    let said = host.cli(&["usage", "--since", "1h", "--by", "total", "--json"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    let mut rows: Vec<Value> = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(rows.len(), 1, "{}", said.out);
    rows.remove(0)
}

/// Seconds and number of the runs of each job that came to an end, as the executor has recorded them.
fn recorded(host: &TestHost) -> BTreeMap<String, (f64, u64)> {
    let (mut began, mut runs) = (BTreeMap::new(), BTreeMap::<String, (f64, u64)>::new());
    for line in std::fs::read_to_string(host.dir().join("record")).expect("the record").lines() {
        let mut words = line.split(' ');
        let (what, id, at) = (words.next(), words.next().expect("an id"), words.next().expect("a time"));
        let at: f64 = at.parse().expect("microseconds");
        if what == Some("start") {
            began.insert(id.to_string(), at);
        } else {
            let entry = runs.entry(id.to_string()).or_default();
            *entry = (entry.0 + (at - began[id]) / 1e6, entry.1 + 1);
        }
    }
    runs
}

async fn begun(host: &TestHost, id: &str) {
    let line = format!("start {id} ");
    eventually("the run has begun", async || {
        std::fs::read_to_string(host.dir().join("record")).is_ok_and(|record| record.contains(&line))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_job_is_there_once_and_the_sums_are_the_executors() {
    let keys = "fault: error_retryable\nfailures: 1\nonly: RETRIED\nrecord: record\nclock: true\nrun_ms: 300";
    let mut host = Plan::faulty(keys)
        .env("CODA_RETRY_PAUSE_SEC", "0.05")
        .env("CODA_HISTORY_SAMPLE_SEC", "0.1")
        .start()
        .await;
    let is_away = Arc::new(AtomicBool::new(true));
    let away = is_away.clone();
    host.cloud.on_webhook(move |webhook| match &*webhook.job_id {
        "REFUSED" => Some(Answer::status(404)),
        "LATE" if away.load(Ordering::Acquire) => Some(Answer::status(503)),
        _ => None,
    });

    for id in ["GOOD", "RETRIED", "REFUSED"] {
        host.submit(id, &example(), 100).await;
    }
    let mut unanswerable = host.job("DEAD", &example(), 100);
    unanswerable.fields.retain(|(name, _)| name != "callback_url");
    let dead_message = host.send(&unanswerable).await;
    let mut unfit = host.job("UNFIT", &example(), 100);
    unfit.fields.iter_mut().filter(|(name, _)| name == "shots").for_each(|(_, value)| *value = "none".into());
    host.send(&unfit).await;
    host.submit("CANCELLED", &example(), 100).await;
    begun(&host, "CANCELLED").await;
    host.request_cancel("CANCELLED").await;
    host.wait_state("CANCELLED", "cancelled").await;
    host.wait_nothing_pending().await;

    // A cancel in a pause, of a job that has not run.
    assert_eq!(host.cli(&["pause", "--wait"]).await.code, 0);
    host.submit("WAITED", &example(), 100).await;
    eventually("the pause is recorded", async || usage(&host).await["held_seconds"].as_f64() > Some(0.3))
        .await;
    host.request_cancel("WAITED").await;
    assert_eq!(host.cli(&["resume"]).await.code, 0);
    host.wait_state("WAITED", "cancelled").await;

    // Killed in a run, and killed with a result that was not delivered.
    host.submit("LATE", &example(), 100).await;
    eventually("it was tried", async || host.attempts("LATE").0 > 0).await;
    host.submit("KILLED", &example(), 100).await;
    begun(&host, "KILLED").await;
    host.kill();
    assert_eq!(history(&host, &["--state", "undelivered"]).await.len(), 1);
    is_away.store(false, Ordering::Release);
    host.start().await;
    for id in ["LATE", "KILLED"] {
        host.delivered(id).await;
    }
    host.wait_nothing_pending().await;
    assert_eq!(host.stop().await, Exit::Code(0));
    host.start().await;

    let rows = eventually_some("everything is recorded", async || {
        let rows = history(&host, &[]).await;
        let run = rows.iter().find(|row| row["job_id"] == "CANCELLED")?["runs"].as_u64();
        (run == Some(1)).then_some(rows)
    })
    .await;
    let mut found: Vec<_> = rows
        .iter()
        .map(|row| {
            let text = |name: &str| row[name].as_str().unwrap_or_default().to_string();
            (text("job_id"), text("outcome"), text("delivery"), row["runs"].as_u64().unwrap_or_default())
        })
        .collect();
    found.sort();
    let expected = [
        ("", "unanswerable", "none", 0),
        ("CANCELLED", "cancelled", "none", 1),
        ("GOOD", "completed", "delivered", 1),
        ("KILLED", "completed", "delivered", 1),
        ("LATE", "completed", "delivered", 1),
        ("REFUSED", "completed", "refused", 1),
        ("RETRIED", "completed", "delivered", 2),
        ("UNFIT", "failed", "delivered", 0),
        ("WAITED", "cancelled", "none", 0),
    ];
    let expected =
        expected.map(|(id, outcome, delivery, runs)| (id.into(), outcome.into(), delivery.into(), runs));
    assert_eq!(found, expected);
    assert!(rows.iter().any(|row| row["message_id"] == dead_message.as_str()), "{rows:?}");
    let times: Vec<_> = rows.iter().map(|row| row["ended_at"].as_str().expect("a time")).collect();
    assert!(times.is_sorted(), "{times:?}");

    let record = recorded(&host);
    for row in &rows {
        let id = row["job_id"].as_str().unwrap_or_default();
        let (seconds, runs) = record.get(id).copied().unwrap_or_default();
        let told = row["run_seconds"].as_f64().expect("a number");
        assert_eq!(row["runs"].as_u64(), Some(runs), "{id}");
        assert!(seconds <= told && told <= seconds + SLACK, "{id}: {told} s, in the executor {seconds} s");
        if runs > 0 {
            let size = (&row["qubits"], &row["shots"], row["waited_seconds"].is_f64());
            assert_eq!(size, (&json!(example().num_qubits), &json!(100), true), "{row}");
        }
    }

    let sums = usage(&host).await;
    let count = |outcome: &str| rows.iter().filter(|row| row["outcome"] == outcome).count();
    for outcome in ["completed", "failed", "cancelled", "unanswerable"] {
        assert_eq!(sums[outcome], count(outcome), "{sums}");
    }
    let runs: u64 = record.values().map(|(_, runs)| runs).sum();
    assert_eq!((&sums["runs"], &sums["shots"]), (&json!(runs), &json!(500)), "{sums}");
    assert_eq!(sums["failures"], json!({ "not_run": 1 }));
    let seconds: f64 = rows.iter().filter_map(|row| row["run_seconds"].as_f64()).sum();
    assert!((sums["run_seconds"].as_f64().unwrap_or_default() - seconds).abs() < 1e-6, "{sums} {seconds}");
    assert!(
        sums["held"]["paused"].as_f64() > Some(0.3) && sums["stopped_seconds"].as_f64() > Some(0.0),
        "{sums}"
    );
    let used = seconds / sums["available_seconds"].as_f64().expect("a number");
    assert!((sums["utilisation"].as_f64().unwrap_or_default() - used).abs() < 1e-6, "{sums}");

    // For people and for tables.
    let table = host.cli(&["history", "--state", "failed"]).await;
    assert!(table.out.contains("UNFIT") && table.out.contains("not_run: "), "{}", table.text());
    assert!(!table.out.contains("GOOD"), "{}", table.text());
    assert_eq!(history(&host, &["-n", "2"]).await, rows[rows.len() - 2..]);
    let csv = host.cli(&["usage", "--csv", "--by", "month"]).await.out;
    let widths: Vec<_> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(widths.len() >= 2 && widths.iter().all(|width| *width == widths[0]), "{csv}");
    assert!(csv.contains("not_run=1"), "{csv}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_not_counted_for_each_of_its_jobs() {
    let host = Plan::simulator("batch: true\nexecution_time_ms: 500").start().await;
    let start = Instant::now();
    // They come together in one batch while this one runs.
    host.submit("FIRST", &example(), 10).await;
    host.wait_state("FIRST", "executing").await;
    for id in ["B1", "B2", "B3"] {
        host.submit(id, &example(), 10).await;
    }
    for id in ["FIRST", "B1", "B2", "B3"] {
        host.delivered(id).await;
    }
    let took = start.elapsed().as_secs_f64();
    host.wait_nothing_pending().await;
    assert_eq!(host.metric("coda_host_run_seconds_count").await, 4);
    let told = usage(&host).await["run_seconds"].as_f64().expect("a number");
    assert!(told >= 0.9 && told <= took, "{told} s of one slot in {took} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_so_many_rows_are_kept() {
    let host = Plan::simulator("").env("CODA_HISTORY_MAX_ROWS", "3").start().await;
    for n in 1..=8 {
        let id = format!("J{n}");
        host.submit(&id, &example(), 10).await;
        host.delivered(&id).await;
    }
    host.wait_nothing_pending().await;
    let rows = history(&host, &[]).await;
    let ids: Vec<_> = rows.iter().map(|row| row["job_id"].as_str().unwrap_or_default()).collect();
    assert_eq!(ids, ["J6", "J7", "J8"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_makes_nothing_and_wrong_times_are_refused() {
    let host = Plan::simulator("").prepare().await;
    for command in ["history", "usage"] {
        let said = host.cli(&[command]).await;
        assert_eq!(said.code, 0, "{}", said.text());
        for wrong in [&["--since", "yesterday"][..], &["--since", "1h", "--until", "2h"]] {
            let said = host.cli(&[&[command], wrong].concat()).await;
            assert_eq!(said.code, 2, "{}", said.text());
        }
    }
    assert!(!host.state_dir().join("coda-host.db").exists());
}
