//! Cancelling at every stage of a job: the state says so, the message is acknowledged, no result is sent.

use coda_host_tests::{Circuit, Exit, Plan, TestHost, eventually, example};

/// Ends the host and checks that nothing of the job went out or lies ready to.
async fn nothing_was_sent(mut host: TestHost, id: &str) {
    assert_eq!(host.stop().await, Exit::Code(0));
    assert_eq!((host.state(id).await.as_str(), host.attempts(id)), ("cancelled", (0, 0)));
    assert!(host.pending().await.is_empty() && host.state_file().kept().is_empty());
}

async fn is_closed(host: &TestHost, id: &str, message: &str) {
    host.wait_state(id, "cancelled").await;
    eventually("it is acknowledged", async || !host.pending().await.iter().any(|p| p == message)).await;
    let status = host.status(id).await;
    assert_eq!((&*status["message_id"], &*status["qpu_id"]), (message, "q1"));
    assert!(status["cancelled_at"].ends_with("+00:00"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_there_before_the_job_keeps_it_from_running() {
    let host = Plan::simulator("").start().await;
    host.request_cancel("J1").await;
    let message = host.submit("J1", &example(), 100).await;
    is_closed(&host, "J1", &message).await;
    assert!(!host.status("J1").await.contains_key("started_at"));
    host.good_job_goes_through("J2").await;
    assert_eq!((host.runs().await, host.attempts("J1")), (1, (0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_was_read_ahead_is_cancelled_behind_a_long_one() {
    let host = Plan::simulator("mode: hang").start().await;
    let long = host.submit("long", &example(), 100).await;
    host.wait_state("long", "executing").await;
    let message = host.submit("J1", &example(), 100).await;
    eventually("J1 waits", async || host.ready().await.1["waiting"] == 1).await;
    host.request_cancel("J1").await;
    is_closed(&host, "J1", &message).await;
    assert!(!host.status("J1").await.contains_key("started_at"));
    assert_eq!(host.state("long").await, "executing");
    host.request_cancel("long").await;
    is_closed(&host, "long", &long).await;
    eventually("only the long one ran", async || host.runs().await == 1).await;
    nothing_was_sent(host, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_job_is_ended_by_the_plugins_hook() {
    let record = tempfile::NamedTempFile::new().unwrap();
    let keys = format!("run_ms: 60000\nlife: true\nrecord: {}", record.path().display());
    let host = Plan::faulty(&keys).start().await;
    let message = host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    host.request_cancel("J1").await;
    is_closed(&host, "J1", &message).await;
    eventually("the plugin came back", async || host.runs().await == 1).await;
    let hooks = || {
        let record = std::fs::read_to_string(record.path()).unwrap();
        record.lines().filter(|line| line.starts_with("cancel J1")).count()
    };
    eventually("the hook was called", async || hooks() > 0).await;
    assert_eq!(hooks(), 1, "once");
    eventually("it is counted", async || host.counted("cancelled").await == 1).await;
    nothing_was_sent(host, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_of_a_batch_is_cancelled_and_the_others_complete() {
    let host = Plan::simulator("batch: true\nexecution_time_ms: 400").start().await;
    host.submit("first", &example(), 100).await;
    host.wait_state("first", "executing").await;
    let mut messages = Vec::new();
    for id in ["J1", "J2", "J3"] {
        messages.push(host.submit(id, &example(), 100).await);
    }
    host.wait_state("J2", "executing").await;
    host.request_cancel("J2").await;
    is_closed(&host, "J2", &messages[1]).await;
    for id in ["first", "J1", "J3"] {
        assert_eq!(host.delivered(id).await["counts"]["10"], 100);
    }
    host.wait_nothing_pending().await;
    nothing_was_sent(host, "J2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_of_a_batch_that_waits_is_cancelled() {
    let host = Plan::simulator("batch: true\nexecution_time_ms: 1500").start().await;
    host.submit("first", &example(), 100).await;
    host.wait_state("first", "executing").await;
    for id in ["J1", "J2", "J3"] {
        host.submit(id, &example(), 100).await;
    }
    eventually("all three wait", async || host.ready().await.1["waiting"] == 3).await;
    host.request_cancel("J2").await;
    host.wait_state("J2", "cancelled").await;
    assert_eq!(host.state("first").await, "executing", "it was cancelled while it waited");
    assert!(!host.status("J2").await.contains_key("started_at"));
    for id in ["J1", "J3"] {
        assert_eq!(host.delivered(id).await["counts"]["10"], 100);
    }
    host.wait_nothing_pending().await;
    nothing_was_sent(host, "J2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_after_the_result_changes_nothing() {
    let host = Plan::simulator("").start().await;
    host.submit("J1", &example(), 100).await;
    host.delivered("J1").await;
    host.request_cancel("J1").await;
    host.good_job_goes_through("J2").await;
    host.wait_nothing_pending().await;
    let status = host.status("J1").await;
    assert_eq!(status["state"], "completed");
    assert!(!status.contains_key("cancelled_at"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_while_the_result_is_undelivered_changes_nothing() {
    use coda_host::dev::cloud::Answer;
    let host = Plan::simulator("").start().await;
    host.cloud.on_webhook(|_| Some(Answer::status(503)));
    host.submit("J1", &example(), 100).await;
    eventually("it was tried", async || host.attempts("J1").0 >= 1).await;
    host.request_cancel("J1").await;
    host.cloud.clear_hooks();
    host.delivered("J1").await;
    host.wait_nothing_pending().await;
    assert_eq!(host.state("J1").await, "completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_without_the_hook_sees_it_in_its_run() {
    let host = Plan::faulty("fault: no_cancel_hook\nrun_ms: 600000").start().await;
    let message = host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    host.request_cancel("J1").await;
    is_closed(&host, "J1", &message).await;
    eventually("the run came back", async || host.runs().await == 1).await;
    nothing_was_sent(host, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_hangs_costs_readiness_and_not_the_next_job() {
    let host =
        Plan::faulty("fault: hang_cancel\nrun_ms: 400").env("CODA_CONTROL_TIMEOUT_SEC", "0.2").start().await;
    let message = host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    host.request_cancel("J1").await;
    is_closed(&host, "J1", &message).await;
    eventually("the executor is told to be stuck", async || host.ready().await.0 == 503).await;
    let (_, ready) = host.ready().await;
    assert!(ready["reasons"][0].as_str().is_some_and(|r| r.contains("cancel of job J1")), "{ready}");
    assert_eq!(host.get("/health").await.0, 200);
    host.good_job_goes_through("J2").await;
    host.wait_nothing_pending().await;
    nothing_was_sent(host, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_panics_ends_the_job_all_the_same() {
    let host = Plan::faulty("fault: panic_cancel\nrun_ms: 400").start().await;
    let message = host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    host.request_cancel("J1").await;
    is_closed(&host, "J1", &message).await;
    eventually("the run came back", async || host.runs().await == 1).await;
    host.wait_log("the plugin's cancel hook failed").await;
    nothing_was_sent(host, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_comes_after_the_cancel_is_thrown_away() {
    let host = Plan::faulty("fault: result_after_cancel").start().await;
    let message = host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    host.request_cancel("J1").await;
    is_closed(&host, "J1", &message).await;
    eventually("the plugin answered", async || host.runs().await == 1).await;
    nothing_was_sent(host, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_stays_taken_until_a_deaf_plugin_comes_back() {
    let host = Plan::faulty("fault: slow\nrun_ms: 600").start().await;
    let message = host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    host.submit("J2", &Circuit::new(1), 7).await;
    host.request_cancel("J1").await;
    is_closed(&host, "J1", &message).await;
    let (_, ready) = host.ready().await;
    let still_there = ready["current_job"] == "J1";
    assert!(
        still_there || host.runs().await >= 1,
        "J1 is in the plugin until its run has come back: {ready}"
    );
    assert_eq!(host.delivered("J2").await["status"], "completed");
    host.wait_nothing_pending().await;
    nothing_was_sent(host, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_of_a_burst_is_cancelled() {
    let host = Plan::simulator("mode: hang\nslots: 2").env("CODA_PREFETCH", "20").start().await;
    let ids: Vec<String> = (0..30).map(|n| format!("B{n}")).collect();
    for id in &ids {
        host.submit(id, &example(), 1).await;
    }
    eventually("two of them run", async || host.ready().await.1["slots_busy"] == 2).await;
    for id in &ids {
        host.request_cancel(id).await;
    }
    for id in &ids {
        host.wait_state(id, "cancelled").await;
    }
    host.wait_nothing_pending().await;
    eventually("all are counted", async || host.counted("cancelled").await == 30).await;
    assert_eq!(host.cloud.state().webhook_count, 0);
}
