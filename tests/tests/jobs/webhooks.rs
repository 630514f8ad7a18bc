//! Results on their way: what is sent again, what is final, and that one receiver delays no other.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use coda_host::dev::cloud::Answer;
use coda_host_tests::{Exit, LIMIT, Plan, StateFile, TestHost, eventually, example};

/// Answers the first `n` webhooks so, and the others as usual.
fn at_first(host: &TestHost, n: u32, answer: impl Fn() -> Answer + Send + Sync + 'static) {
    let seen = AtomicU32::new(0);
    host.cloud.on_webhook(move |_| (seen.fetch_add(1, Ordering::Relaxed) < n).then(&answer));
}

/// Every attempt of a job had the same body and a good token; returns their number.
fn all_alike(host: &TestHost, id: &str) -> usize {
    let state = host.cloud.state();
    let attempts: Vec<_> = state.attempts(id).collect();
    assert!(attempts.iter().all(|w| w.body == attempts[0].body && w.jwt.is_ok()), "{attempts:?}");
    attempts.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_says_not_now_is_tried_again() {
    for status in [500, 502, 503, 504, 408, 425, 429, 301, 302, 304, 307] {
        let host = Plan::simulator("").start().await;
        at_first(&host, 3, move || Answer::status(status));
        host.submit("J1", &example(), 100).await;
        host.delivered("J1").await;
        host.wait_nothing_pending().await;
        assert_eq!(all_alike(&host, "J1"), 4, "{status}");
        assert_eq!(host.state("J1").await, "completed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_says_never_is_final_and_kept() {
    for status in [400, 403, 404, 410, 422] {
        let mut host = Plan::simulator("").start().await;
        at_first(&host, 1, move || Answer::status(status).body("no such job here"));
        host.submit("J1", &example(), 100).await;
        eventually("it was tried", async || host.attempts("J1").0 == 1).await;
        host.wait_nothing_pending().await;
        assert_eq!(host.state("J1").await, "completed", "the job itself did complete");
        let kept = host.state_file().kept();
        let error = kept[0].last_error.as_deref().unwrap_or_default();
        assert_eq!((kept.len(), &*kept[0].phase), (1, "refused"));
        assert!(error.contains(&format!("HTTP {status}")) && error.contains("no such job here"), "{error}");
        assert_eq!(host.stop().await, Exit::Code(0));
        host.start().await;
        host.good_job_goes_through("J2").await;
        assert_eq!(host.attempts("J1"), (1, 0), "not sent again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_that_is_asked_for_is_kept() {
    let host = Plan::simulator("").start().await;
    at_first(&host, 1, || Answer::status(429).header("retry-after", "1"));
    host.submit("J1", &example(), 100).await;
    host.delivered("J1").await;
    let state = host.cloud.state();
    let times: Vec<_> = state.attempts("J1").map(|w| w.at).collect();
    assert_eq!(times.len(), 2);
    assert!(times[1] - times[0] >= Duration::from_millis(990), "{:?}", times[1] - times[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_token_holds_the_result_until_a_heartbeat_is_accepted() {
    let mut host = Plan::simulator("").env("CODA_HEARTBEAT_INTERVAL_SEC", "0.05").prepare().await;
    host.cloud.on_webhook(|_| Some(Answer::status(401)));
    host.cloud.on_heartbeat(|_| Some(Answer::status(401)));
    host.start().await;
    host.submit("J1", &example(), 100).await;
    eventually("tried, and once more with a fresh token", async || host.attempts("J1").0 == 2).await;
    let beats = host.cloud.state().heartbeats.len();
    let three_more = host.cloud.wait_until(LIMIT, |s| s.heartbeats.len() >= beats + 3).await;
    assert!(three_more, "heartbeats go on");
    assert_eq!((host.attempts("J1"), host.pending().await.len()), ((2, 0), 1), "held");
    host.cloud.clear_hooks();
    host.delivered("J1").await;
    host.wait_nothing_pending().await;
    assert_eq!(all_alike(&host, "J1"), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_is_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let location = format!("http://{}/stolen", elsewhere.local_addr().unwrap());
    let host = Plan::simulator("").start().await;
    at_first(&host, 2, move || Answer::status(307).header("location", &location));
    host.submit("J1", &example(), 100).await;
    host.delivered("J1").await;
    assert_eq!(all_alike(&host, "J1"), 3);
    let error = elsewhere.accept().expect_err("nobody came");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_is_tried_again() {
    let host = Plan::simulator("").start().await;
    at_first(&host, 2, Answer::drop_connection);
    host.submit("J1", &example(), 100).await;
    host.delivered("J1").await;
    assert_eq!(all_alike(&host, "J1"), 3);
    // Taken by the receiver, but its answer was lost: it comes twice, identical.
    at_first(&host, 1, || Answer::drop_connection().having_processed());
    host.submit("J2", &example(), 100).await;
    eventually("it came twice", async || host.attempts("J2") == (2, 2)).await;
    host.wait_nothing_pending().await;
    assert_eq!(all_alike(&host, "J2"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callbacks_that_hang_or_refuse_delay_nobody_else() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let host = Plan::simulator("").start().await;
    for n in 0..40 {
        let hanging = format!("http://{}/cb", silent.local_addr().unwrap());
        let refusing = format!("http://{closed}/cb");
        host.send(&host.job(&format!("hang{n}"), &example(), 1).field("callback_url", hanging)).await;
        host.send(&host.job(&format!("closed{n}"), &example(), 1).field("callback_url", refusing)).await;
    }
    for n in 0..20 {
        host.submit(&format!("J{n}"), &example(), 100).await;
    }
    for n in 0..20 {
        host.delivered(&format!("J{n}")).await;
    }
    host.wait_state("hang39", "completed").await;
    host.wait_state("closed39", "completed").await;
    eventually("80 are left", async || host.pending().await.len() == 80).await;
    assert_eq!(host.ready().await.1["undelivered"], 80);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_does_not_come_is_tried_again() {
    let host = Plan::simulator("").env("CODA_WEBHOOK_TIMEOUT_SEC", "0.2").start().await;
    at_first(&host, 1, Answer::hang);
    host.submit("J1", &example(), 100).await;
    host.delivered("J1").await;
    assert_eq!(all_alike(&host, "J1"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undelivered_results_survive_restarts_of_every_kind() {
    let mut host = Plan::simulator("").start().await;
    host.cloud.on_webhook(|w| (&*w.job_id != "J3").then(|| Answer::status(503)));
    host.submit("J1", &example(), 100).await;
    host.send(&host.job("J2", &example(), 1).field("shots", "x")).await;
    host.submit("J3", &example(), 100).await;
    host.delivered("J3").await;
    eventually("both were tried", async || host.attempts("J1").0 > 0 && host.attempts("J2").0 > 0).await;
    // Until its delivery is noted J3 may come twice.
    eventually("J3 is acknowledged", async || host.pending().await.len() == 2).await;
    host.kill();
    for orderly in [true, false] {
        let tried = host.attempts("J1").0;
        host.start().await;
        eventually("it is tried again", async || host.attempts("J1").0 > tried).await;
        match orderly {
            true => assert_eq!(host.stop().await, Exit::Code(0)),
            false => host.kill(),
        }
    }
    host.cloud.clear_hooks();
    host.start().await;
    assert_eq!(host.delivered("J1").await["counts"]["10"], 100);
    assert!(host.failure("J2").await.contains("shots is"));
    host.wait_nothing_pending().await;
    assert!(all_alike(&host, "J1") >= 4 && all_alike(&host, "J2") >= 2);
    assert_eq!((host.attempts("J3"), host.runs().await), ((1, 1), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloud_that_is_down_gets_its_results_when_it_is_back() {
    let host = Plan::simulator("").start().await;
    host.submit("J1", &example(), 100).await;
    host.delivered("J1").await;
    host.cloud.go_down().await;
    for n in 2..10 {
        host.submit(&format!("J{n}"), &example(), 100).await;
    }
    host.wait_state("J9", "completed").await;
    assert_eq!(host.get("/health").await.0, 200);
    host.cloud.come_up().await.unwrap();
    for n in 2..10 {
        host.delivered(&format!("J{n}")).await;
    }
    host.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_the_operator_drops_ends_without_counting_as_accepted() {
    let host = Plan::simulator("").start().await;
    host.cloud.on_webhook(|_| Some(Answer::status(503)));
    host.submit("J1", &example(), 100).await;
    eventually("it was tried", async || host.attempts("J1").0 > 0).await;
    let said = host.cli(&["results", "drop", "J1"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    host.wait_nothing_pending().await;
    eventually("nothing is left", async || host.ready().await.1["undelivered"] == 0).await;
    assert!(host.ready().await.1["last_job_at"].is_null(), "no success webhook was accepted");
    assert_eq!(host.metric("coda_host_webhook_attempts_total{result=\"accepted\"}").await, 0);
    assert_eq!(host.attempts("J1").1, 0);
    host.cloud.clear_hooks();
    host.good_job_goes_through("J2").await;
}

/// The status `completed` is written before the delivery: without the database it does not show one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_were_lost_with_the_state_database_are_made_again() {
    for loss in ["removed", "emptied", "without bodies"] {
        let mut host = Plan::simulator("").start().await;
        host.good_job_goes_through("delivered").await;
        host.wait_nothing_pending().await;
        host.cloud.on_webhook(|_| Some(Answer::status(503)));
        for id in ["J1", "J2", "J3"] {
            host.submit(id, &example(), 100).await;
        }
        host.send(&host.job("J4", &example(), 1).field("shots", "x")).await;
        for id in ["J1", "J2", "J3", "J4"] {
            eventually("it was tried", async || host.attempts(id).0 > 0).await;
        }
        assert_eq!(host.stop().await, Exit::Code(0));
        let database = host.state_dir().join("coda-host.db");
        match loss {
            "removed" => std::fs::remove_file(&database).unwrap(),
            "emptied" => std::fs::write(&database, b"").unwrap(),
            _ => StateFile::empty_bodies(&host.state_dir()),
        }
        host.cloud.clear_hooks();
        host.start().await;
        for id in ["J1", "J2", "J3"] {
            assert_eq!(host.delivered(id).await["counts"]["10"], 100, "{loss}");
        }
        assert!(host.failure("J4").await.contains("shots is"), "{loss}");
        host.wait_nothing_pending().await;
        // What the executor answered is in a separate journal, so that they need not even run again.
        assert!(host.runs().await <= 3, "{loss}");
        assert_eq!(host.attempts("delivered").1, 1, "{loss}");
    }
}

/// Ended by hand, a result has ended: its job doesn't run again when Redis knows nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_the_operator_ended_by_hand_stays_ended() {
    for command in ["retry", "drop"] {
        let mut host = Plan::simulator("").durable_redis().start().await;
        host.cloud.on_webhook(|_| Some(Answer::status(503)));
        host.submit("J1", &example(), 100).await;
        eventually("it was tried", async || host.attempts("J1").0 > 0).await;
        assert_eq!(host.stop().await, Exit::Code(0));
        host.cloud.clear_hooks();
        let said = host.cli(&["results", command, "J1"]).await;
        assert_eq!(said.code, 0, "{said:?}");
        // What an outage of Redis can cost: the state that was written.
        host.redis::<u64>(redis::cmd("DEL").arg("qpu:job:J1:status")).await;
        host.start().await;
        host.good_job_goes_through("J2").await;
        host.wait_nothing_pending().await;
        let accepted = u32::from(command == "retry");
        assert_eq!((host.runs().await, host.attempts("J1").1), (1, accepted), "{command}");
        assert_eq!(host.state("J1").await, "completed", "{command}");
    }
}

/// An attempt that is in flight when the host stops is heard out: what the cloud accepts is not sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_in_flight_at_a_stop_is_not_made_again() {
    let mut host = Plan::simulator("").start().await;
    at_first(&host, 1, || Answer::status(503));
    host.submit("J1", &example(), 100).await;
    eventually("it was tried", async || host.attempts("J1").0 == 1).await;
    host.cloud.on_webhook(|_| Some(Answer::usual().after(Duration::from_millis(700))));
    eventually("the retry is there", async || host.attempts("J1").0 == 2).await;
    host.process().signal(libc::SIGTERM);
    assert_eq!(host.wait_exit().await, Exit::Code(0));
    host.cloud.clear_hooks();
    host.start().await;
    host.good_job_goes_through("J2").await;
    host.wait_nothing_pending().await;
    assert_eq!(host.attempts("J1"), (2, 1));
}

/// Whoever's write it is: while the database takes none, nothing new runs, and the log does not fill up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_of_deliveries_that_can_not_be_written_close_claiming() {
    let mut host = Plan::simulator("").start().await;
    host.cloud.on_webhook(|_| Some(Answer::status(503)));
    for n in 0..100 {
        host.submit(&format!("J{n}"), &example(), 10).await;
    }
    // Also the last one, whose result is on disk then.
    eventually("all were tried", async || (0..100).all(|n| host.attempts(&format!("J{n}")).0 > 0)).await;
    let lock = StateFile::lock(&host.state_dir());
    host.cloud.clear_hooks();
    eventually("/ready says that nothing can be stored", async || {
        let (status, body) = host.ready().await;
        status == 503 && body["reasons"].to_string().contains("can't be stored")
    })
    .await;
    for n in 0..100 {
        host.delivered(&format!("J{n}")).await;
    }
    host.submit("late", &example(), 10).await;
    let (status, _) = host.ready().await;
    assert_eq!((status, host.runs().await), (503, 100), "nothing runs whose result could not be stored");
    let lines = host.log().matches("could not be recorded").count();
    assert!(lines < 5, "{lines} lines of ends that could not be recorded");
    drop(lock);
    host.delivered("late").await;
    host.wait_nothing_pending().await;
    host.wait_ready().await;
    for n in 0..100 {
        assert_eq!(host.attempts(&format!("J{n}")).1, 1, "J{n} was delivered once");
    }
}
