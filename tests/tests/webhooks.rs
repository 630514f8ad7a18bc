//! Results on their way: what is sent again, what is final, and that one receiver delays no other.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use coda_host::dev::cloud::Answer;
use coda_host_tests::{Bed, Exit, LIMIT, Plan, example, holds};

/// Answers the first `n` webhooks so, and the others as usual.
fn at_first(bed: &Bed, n: u32, answer: impl Fn() -> Answer + Send + Sync + 'static) {
    let seen = AtomicU32::new(0);
    bed.cloud.on_webhook(move |_| (seen.fetch_add(1, Ordering::Relaxed) < n).then(&answer));
}

/// Every attempt of a job had the same body and a good token; returns their number.
fn all_alike(bed: &Bed, id: &str) -> usize {
    let state = bed.cloud.state();
    let attempts: Vec<_> = state.attempts(id).collect();
    assert!(attempts.iter().all(|w| w.body == attempts[0].body && w.jwt.is_ok()), "{attempts:?}");
    attempts.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_says_not_now_is_tried_again() {
    for status in [500, 502, 503, 504, 408, 425, 429, 301, 302, 304, 307] {
        let bed = Plan::simulator("").start().await;
        at_first(&bed, 3, move || Answer::status(status));
        bed.submit("J1", &example(), 100).await;
        bed.delivered("J1").await;
        bed.wait_nothing_pending().await;
        assert_eq!(all_alike(&bed, "J1"), 4, "{status}");
        assert_eq!(bed.state("J1").await, "completed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_says_never_is_final_and_kept() {
    for status in [400, 403, 404, 410, 422] {
        let mut bed = Plan::simulator("").start().await;
        at_first(&bed, 1, move || Answer::status(status).body("no such job here"));
        bed.submit("J1", &example(), 100).await;
        holds("it was tried", async || bed.attempts("J1").0 == 1).await;
        bed.wait_nothing_pending().await;
        assert_eq!(bed.state("J1").await, "completed", "the job itself did complete");
        let kept = bed.state_file().kept();
        let error = kept[0].last_error.as_deref().unwrap_or_default();
        assert_eq!((kept.len(), &*kept[0].phase), (1, "refused"));
        assert!(error.contains(&format!("HTTP {status}")) && error.contains("no such job here"), "{error}");
        assert_eq!(bed.stop().await, Exit::Code(0));
        bed.start().await;
        bed.good_job_goes_through("J2").await;
        assert_eq!(bed.attempts("J1"), (1, 0), "not sent again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_is_asked_for_is_kept() {
    let bed = Plan::simulator("").start().await;
    at_first(&bed, 1, || Answer::status(429).header("retry-after", "1"));
    bed.submit("J1", &example(), 100).await;
    bed.delivered("J1").await;
    let state = bed.cloud.state();
    let times: Vec<_> = state.attempts("J1").map(|w| w.at).collect();
    assert_eq!(times.len(), 2);
    assert!(times[1] - times[0] >= Duration::from_millis(990), "{:?}", times[1] - times[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_token_holds_the_result_until_a_heartbeat_is_accepted() {
    let mut bed = Plan::simulator("").env("CODA_HEARTBEAT_INTERVAL_SEC", "0.05").lay().await;
    bed.cloud.on_webhook(|_| Some(Answer::status(401)));
    bed.cloud.on_heartbeat(|_| Some(Answer::status(401)));
    bed.start().await;
    bed.submit("J1", &example(), 100).await;
    holds("tried, and once more with a fresh token", async || bed.attempts("J1").0 == 2).await;
    let beats = bed.cloud.state().heartbeats.len();
    let three_more = bed.cloud.wait_until(LIMIT, |s| s.heartbeats.len() >= beats + 3).await;
    assert!(three_more, "heartbeats go on");
    assert_eq!((bed.attempts("J1"), bed.pending().await.len()), ((2, 0), 1), "held");
    bed.cloud.clear_hooks();
    bed.delivered("J1").await;
    bed.wait_nothing_pending().await;
    assert_eq!(all_alike(&bed, "J1"), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_is_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let location = format!("http://{}/stolen", elsewhere.local_addr().unwrap());
    let bed = Plan::simulator("").start().await;
    at_first(&bed, 2, move || Answer::status(307).header("location", &location));
    bed.submit("J1", &example(), 100).await;
    bed.delivered("J1").await;
    assert_eq!(all_alike(&bed, "J1"), 3);
    let error = elsewhere.accept().expect_err("nobody came");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_is_tried_again() {
    let bed = Plan::simulator("").start().await;
    at_first(&bed, 2, Answer::drop_connection);
    bed.submit("J1", &example(), 100).await;
    bed.delivered("J1").await;
    assert_eq!(all_alike(&bed, "J1"), 3);
    // Taken by the receiver, but its answer was lost: it comes twice, identical.
    at_first(&bed, 1, || Answer::drop_connection().having_processed());
    bed.submit("J2", &example(), 100).await;
    holds("it came twice", async || bed.attempts("J2") == (2, 2)).await;
    bed.wait_nothing_pending().await;
    assert_eq!(all_alike(&bed, "J2"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callbacks_that_hang_or_refuse_delay_nobody_else() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let bed = Plan::simulator("").start().await;
    for n in 0..40 {
        let hanging = format!("http://{}/cb", silent.local_addr().unwrap());
        let refusing = format!("http://{closed}/cb");
        bed.send(&bed.job(&format!("hang{n}"), &example(), 1).field("callback_url", hanging)).await;
        bed.send(&bed.job(&format!("closed{n}"), &example(), 1).field("callback_url", refusing)).await;
    }
    for n in 0..20 {
        bed.submit(&format!("J{n}"), &example(), 100).await;
    }
    for n in 0..20 {
        bed.delivered(&format!("J{n}")).await;
    }
    bed.wait_state("hang39", "completed").await;
    bed.wait_state("closed39", "completed").await;
    holds("80 are left", async || bed.pending().await.len() == 80).await;
    assert_eq!(bed.ready().await.1["undelivered"], 80);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_does_not_come_is_tried_again() {
    let bed = Plan::simulator("").env("CODA_WEBHOOK_TIMEOUT_SEC", "0.2").start().await;
    at_first(&bed, 1, Answer::hang);
    bed.submit("J1", &example(), 100).await;
    bed.delivered("J1").await;
    assert_eq!(all_alike(&bed, "J1"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undelivered_results_survive_restarts_of_every_kind() {
    let mut bed = Plan::simulator("").start().await;
    bed.cloud.on_webhook(|w| (&*w.job_id != "J3").then(|| Answer::status(503)));
    bed.submit("J1", &example(), 100).await;
    bed.send(&bed.job("J2", &example(), 1).field("shots", "x")).await;
    bed.submit("J3", &example(), 100).await;
    bed.delivered("J3").await;
    holds("both were tried", async || bed.attempts("J1").0 > 0 && bed.attempts("J2").0 > 0).await;
    // Until its delivery is noted J3 may come twice.
    holds("J3 is acknowledged", async || bed.pending().await.len() == 2).await;
    bed.kill();
    for orderly in [true, false] {
        let tried = bed.attempts("J1").0;
        bed.start().await;
        holds("it is tried again", async || bed.attempts("J1").0 > tried).await;
        match orderly {
            true => assert_eq!(bed.stop().await, Exit::Code(0)),
            false => bed.kill(),
        }
    }
    bed.cloud.clear_hooks();
    bed.start().await;
    assert_eq!(bed.delivered("J1").await["counts"]["10"], 100);
    assert!(bed.failure("J2").await.contains("shots is"));
    bed.wait_nothing_pending().await;
    assert!(all_alike(&bed, "J1") >= 4 && all_alike(&bed, "J2") >= 2);
    assert_eq!((bed.attempts("J3"), bed.runs().await), ((1, 1), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_that_is_down_gets_its_results_when_it_is_back() {
    let bed = Plan::simulator("").start().await;
    bed.submit("J1", &example(), 100).await;
    bed.delivered("J1").await;
    bed.cloud.go_down().await;
    for n in 2..10 {
        bed.submit(&format!("J{n}"), &example(), 100).await;
    }
    bed.wait_state("J9", "completed").await;
    assert_eq!(bed.get("/health").await.0, 200);
    bed.cloud.come_up().await.unwrap();
    for n in 2..10 {
        bed.delivered(&format!("J{n}")).await;
    }
    bed.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_the_operator_drops_ends_without_counting_as_accepted() {
    let bed = Plan::simulator("").start().await;
    bed.cloud.on_webhook(|_| Some(Answer::status(503)));
    bed.submit("J1", &example(), 100).await;
    holds("it was tried", async || bed.attempts("J1").0 > 0).await;
    let said = bed.cli(&["results", "drop", "J1"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    bed.wait_nothing_pending().await;
    holds("nothing is left", async || bed.ready().await.1["undelivered"] == 0).await;
    assert!(bed.ready().await.1["last_job_at"].is_null(), "no success webhook was accepted");
    assert_eq!(bed.metric("coda_host_webhook_attempts_total{result=\"accepted\"}").await, 0);
    assert_eq!(bed.attempts("J1").1, 0);
    bed.cloud.clear_hooks();
    bed.good_job_goes_through("J2").await;
}
