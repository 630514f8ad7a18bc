//! Cancelling at every stage of a job: the state says so, the message is acknowledged, no result is sent.

use coda_host_tests::{Bed, Circuit, Exit, Plan, example, holds};

/// Ends the host and checks that nothing of the job went out or lies ready to.
async fn nothing_was_sent(mut bed: Bed, id: &str) {
    assert_eq!(bed.stop().await, Exit::Code(0));
    assert_eq!((bed.state(id).await.as_str(), bed.attempts(id)), ("cancelled", (0, 0)));
    assert!(bed.pending().await.is_empty() && bed.state_file().kept().is_empty());
}

async fn is_closed(bed: &Bed, id: &str, message: &str) {
    bed.wait_state(id, "cancelled").await;
    holds("it is acknowledged", async || !bed.pending().await.iter().any(|p| p == message)).await;
    let status = bed.status(id).await;
    assert_eq!((&*status["message_id"], &*status["qpu_id"]), (message, "q1"));
    assert!(status["cancelled_at"].ends_with("+00:00"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_there_before_the_job_keeps_it_from_running() {
    let bed = Plan::simulator("").start().await;
    bed.request_cancel("J1").await;
    let message = bed.submit("J1", &example(), 100).await;
    is_closed(&bed, "J1", &message).await;
    assert!(!bed.status("J1").await.contains_key("started_at"));
    bed.good_job_goes_through("J2").await;
    assert_eq!((bed.runs().await, bed.attempts("J1")), (1, (0, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_was_read_ahead_is_cancelled_behind_a_long_one() {
    let bed = Plan::simulator("mode: hang").start().await;
    let long = bed.submit("long", &example(), 100).await;
    bed.wait_state("long", "executing").await;
    let message = bed.submit("J1", &example(), 100).await;
    holds("J1 waits", async || bed.ready().await.1["waiting"] == 1).await;
    bed.request_cancel("J1").await;
    is_closed(&bed, "J1", &message).await;
    assert!(!bed.status("J1").await.contains_key("started_at"));
    assert_eq!(bed.state("long").await, "executing");
    bed.request_cancel("long").await;
    is_closed(&bed, "long", &long).await;
    holds("only the long one ran", async || bed.runs().await == 1).await;
    nothing_was_sent(bed, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_job_is_ended_by_the_plugins_hook() {
    let bed = Plan::simulator("mode: hang").start().await;
    let message = bed.submit("J1", &example(), 100).await;
    bed.wait_state("J1", "executing").await;
    bed.request_cancel("J1").await;
    is_closed(&bed, "J1", &message).await;
    holds("the plugin came back", async || bed.runs().await == 1).await;
    holds("it is counted", async || bed.counted("cancelled").await == 1).await;
    nothing_was_sent(bed, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_of_a_batch_is_cancelled_and_the_others_complete() {
    let bed = Plan::simulator("batch: true\nexecution_time_ms: 400").start().await;
    bed.submit("first", &example(), 100).await;
    bed.wait_state("first", "executing").await;
    let mut messages = Vec::new();
    for id in ["J1", "J2", "J3"] {
        messages.push(bed.submit(id, &example(), 100).await);
    }
    bed.wait_state("J2", "executing").await;
    bed.request_cancel("J2").await;
    is_closed(&bed, "J2", &messages[1]).await;
    for id in ["first", "J1", "J3"] {
        assert_eq!(bed.delivered(id).await["counts"]["10"], 100);
    }
    bed.wait_nothing_pending().await;
    nothing_was_sent(bed, "J2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_of_a_batch_that_waits_is_cancelled() {
    let bed = Plan::simulator("batch: true\nexecution_time_ms: 400").start().await;
    bed.submit("first", &example(), 100).await;
    bed.wait_state("first", "executing").await;
    for id in ["J1", "J2", "J3"] {
        bed.request_cancel("J2").await;
        bed.submit(id, &example(), 100).await;
    }
    bed.wait_state("J2", "cancelled").await;
    for id in ["J1", "J3"] {
        assert_eq!(bed.delivered(id).await["counts"]["10"], 100);
    }
    bed.wait_nothing_pending().await;
    nothing_was_sent(bed, "J2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_after_the_result_changes_nothing() {
    let bed = Plan::simulator("").start().await;
    bed.submit("J1", &example(), 100).await;
    bed.delivered("J1").await;
    bed.request_cancel("J1").await;
    bed.good_job_goes_through("J2").await;
    bed.wait_nothing_pending().await;
    let status = bed.status("J1").await;
    assert_eq!(status["state"], "completed");
    assert!(!status.contains_key("cancelled_at"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_while_the_result_is_undelivered_changes_nothing() {
    use coda_host::dev::cloud::Answer;
    let bed = Plan::simulator("").start().await;
    bed.cloud.on_webhook(|_| Some(Answer::status(503)));
    bed.submit("J1", &example(), 100).await;
    holds("it was tried", async || bed.attempts("J1").0 >= 1).await;
    bed.request_cancel("J1").await;
    bed.cloud.clear_hooks();
    bed.delivered("J1").await;
    bed.wait_nothing_pending().await;
    assert_eq!(bed.state("J1").await, "completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_without_the_hook_sees_it_in_its_run() {
    let bed = Plan::faulty("fault: no_cancel_hook\nrun_ms: 600000").start().await;
    let message = bed.submit("J1", &example(), 100).await;
    bed.wait_state("J1", "executing").await;
    bed.request_cancel("J1").await;
    is_closed(&bed, "J1", &message).await;
    holds("the run came back", async || bed.runs().await == 1).await;
    nothing_was_sent(bed, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_hangs_costs_readiness_and_not_the_next_job() {
    let bed =
        Plan::faulty("fault: hang_cancel\nrun_ms: 400").env("CODA_CONTROL_TIMEOUT_SEC", "0.2").start().await;
    let message = bed.submit("J1", &example(), 100).await;
    bed.wait_state("J1", "executing").await;
    bed.request_cancel("J1").await;
    is_closed(&bed, "J1", &message).await;
    holds("the executor is told to be stuck", async || bed.ready().await.0 == 503).await;
    let (_, ready) = bed.ready().await;
    assert!(ready["reasons"][0].as_str().is_some_and(|r| r.contains("cancel of job J1")), "{ready}");
    assert_eq!(bed.get("/health").await.0, 200);
    bed.good_job_goes_through("J2").await;
    bed.wait_nothing_pending().await;
    nothing_was_sent(bed, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_panics_ends_the_job_all_the_same() {
    let bed = Plan::faulty("fault: panic_cancel\nrun_ms: 400").start().await;
    let message = bed.submit("J1", &example(), 100).await;
    bed.wait_state("J1", "executing").await;
    bed.request_cancel("J1").await;
    is_closed(&bed, "J1", &message).await;
    holds("the run came back", async || bed.runs().await == 1).await;
    bed.wait_log("the plugin's cancel hook failed").await;
    nothing_was_sent(bed, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_comes_after_the_cancel_is_thrown_away() {
    let bed = Plan::faulty("fault: result_after_cancel").start().await;
    let message = bed.submit("J1", &example(), 100).await;
    bed.wait_state("J1", "executing").await;
    bed.request_cancel("J1").await;
    is_closed(&bed, "J1", &message).await;
    holds("the plugin answered", async || bed.runs().await == 1).await;
    nothing_was_sent(bed, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_stays_taken_until_a_deaf_plugin_comes_back() {
    let bed = Plan::faulty("fault: slow\nrun_ms: 600").start().await;
    let message = bed.submit("J1", &example(), 100).await;
    bed.wait_state("J1", "executing").await;
    bed.submit("J2", &Circuit::new(1), 7).await;
    bed.request_cancel("J1").await;
    is_closed(&bed, "J1", &message).await;
    let (_, ready) = bed.ready().await;
    let still_there = ready["current_job"] == "J1";
    assert!(still_there || bed.runs().await >= 1, "J1 is in the plugin until its run has come back: {ready}");
    assert_eq!(bed.delivered("J2").await["status"], "completed");
    bed.wait_nothing_pending().await;
    nothing_was_sent(bed, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_job_of_a_burst_is_cancelled() {
    let bed = Plan::simulator("mode: hang\nslots: 2").env("CODA_PREFETCH", "20").start().await;
    let ids: Vec<String> = (0..30).map(|n| format!("B{n}")).collect();
    for id in &ids {
        bed.submit(id, &example(), 1).await;
    }
    holds("two of them run", async || bed.ready().await.1["slots_busy"] == 2).await;
    for id in &ids {
        bed.request_cancel(id).await;
    }
    for id in &ids {
        bed.wait_state(id, "cancelled").await;
    }
    bed.wait_nothing_pending().await;
    holds("all are counted", async || bed.counted("cancelled").await == 30).await;
    assert_eq!(bed.cloud.state().webhook_count, 0);
}
