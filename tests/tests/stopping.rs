//! SIGTERM and SIGKILL around a job in flight.

use coda_host::dev::cloud::Answer;
use coda_host_tests::{Bed, Exit, Plan, example, holds};

/// Long enough to be seen running, short enough to be waited for.
const BUSY: &str = "execution_time_ms: 300";
const NEVER: &str = "execution_time_ms: 600000";

async fn running(device: &str) -> Bed {
    let bed = Plan::simulator(device).start().await;
    bed.submit("J1", &example(), 100).await;
    bed.wait_state("J1", "executing").await;
    bed
}

async fn delivered_once(bed: &Bed, id: &str) {
    assert_eq!(bed.delivered(id).await["counts"]["10"], 100);
    bed.wait_nothing_pending().await;
    assert_eq!((bed.state(id).await.as_str(), bed.attempts(id)), ("completed", (1, 1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_killed_in_the_middle_of_a_job_delivers_it_after_the_next_start() {
    let mut bed = running(BUSY).await;
    bed.kill();
    assert_eq!((bed.attempts("J1"), bed.pending().await.len()), ((0, 0), 1));
    bed.start().await;
    delivered_once(&bed, "J1").await;
    assert!(bed.state_file().deaths().is_empty(), "a run that comes back clears its count of deaths");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_the_running_job_finish_and_leaves_the_waiting_ones() {
    let mut bed = running(BUSY).await;
    let waiting = [bed.submit("J2", &example(), 100).await, bed.submit("J3", &example(), 100).await];
    holds("both are read ahead", async || bed.pending().await.len() == 3).await;
    assert_eq!(bed.stop().await, Exit::Code(0));
    assert_eq!((bed.state("J1").await.as_str(), bed.attempts("J1")), ("completed", (1, 1)));
    assert_eq!(bed.pending().await, waiting);
    for id in ["J2", "J3"] {
        assert!(bed.status(id).await.is_empty(), "{id} was never marked");
    }
    bed.start().await;
    for id in ["J2", "J3"] {
        delivered_once(&bed, id).await;
    }
    assert_eq!(bed.attempts("J1"), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigint_is_as_good() {
    let mut bed = running(BUSY).await;
    bed.host().signal(libc::SIGINT);
    assert_eq!(bed.wait_exit().await, Exit::Code(0));
    delivered_once(&bed, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_host_stops_at_once() {
    let mut bed = Plan::simulator("").start().await;
    assert_eq!(bed.stop().await, Exit::Code(0));
    // Also while Redis is away.
    bed.start().await;
    bed.redis.kill().unwrap();
    holds("the host notices", async || bed.ready().await.0 == 503).await;
    assert_eq!(bed.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_outlives_the_drain_is_left_for_the_next_start_and_is_no_death() {
    let mut bed = Plan::simulator(NEVER)
        .env("CODA_SHUTDOWN_DRAIN_TIMEOUT_SEC", "0.1")
        .env("CODA_MAX_DEATHS", "1")
        .start()
        .await;
    let message = bed.submit("J1", &example(), 100).await;
    for _ in 0..2 {
        bed.wait_state("J1", "executing").await;
        holds("the plugin has it", async || bed.ready().await.1["current_job"] == "J1").await;
        assert_eq!(bed.stop().await, Exit::Code(5));
        assert_eq!((bed.pending().await, bed.attempts("J1")), (vec![message.clone()], (0, 0)));
        bed.start().await;
    }
    bed.wait_log("it runs again after the next start").await;
    holds("the plugin has it", async || bed.ready().await.1["current_job"] == "J1").await;
    assert_eq!(bed.stop().await, Exit::Code(5));
    bed.write_device("executor_factory: coda_simulator");
    bed.start().await;
    delivered_once(&bed, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_at_once() {
    let mut bed = running(NEVER).await;
    bed.host().signal(libc::SIGTERM);
    bed.wait_log("finishing what runs").await;
    bed.host().signal(libc::SIGTERM);
    assert_eq!(bed.wait_exit().await, Exit::Code(128 + libc::SIGTERM));
    assert_eq!(bed.pending().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_leaves_an_undelivered_result_for_the_next_start() {
    let mut bed = running(BUSY).await;
    bed.cloud.on_webhook(|_| Some(Answer::status(503)));
    assert_eq!(bed.stop().await, Exit::Code(0));
    let (attempts, accepted) = bed.attempts("J1");
    assert!(attempts >= 1 && accepted == 0, "it was tried before the end");
    assert_eq!(bed.pending().await.len(), 1);
    bed.cloud.clear_hooks();
    bed.start().await;
    bed.delivered("J1").await;
    bed.wait_nothing_pending().await;
    assert_eq!((bed.attempts("J1").1, bed.runs().await), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_without_redis_still_stores_and_sends_the_result() {
    let mut bed = Plan::simulator(BUSY).durable_redis().start().await;
    bed.submit("J1", &example(), 100).await;
    bed.wait_state("J1", "executing").await;
    bed.redis.kill().unwrap();
    assert_eq!(bed.stop().await, Exit::Code(0));
    assert_eq!(bed.attempts("J1"), (1, 1));
    bed.redis.restart(coda_host_tests::LIMIT).await.unwrap();
    bed.start().await;
    bed.wait_nothing_pending().await;
    bed.wait_state("J1", "completed").await;
    assert_eq!((bed.attempts("J1"), bed.runs().await), ((1, 1), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_while_connecting_ends_at_once() {
    let mut bed = Plan::simulator("").lay().await;
    bed.cloud.on_connect(|_| Some(Answer::hang()));
    bed.launch();
    let asked = bed.cloud.wait_until(coda_host_tests::LIMIT, |s| !s.connects.is_empty());
    assert!(asked.await, "the request is on its way");
    assert_eq!(bed.stop().await, Exit::Code(0));
    bed.wait_log("the node token may be used up").await;
    // And while it pauses between two attempts.
    bed.cloud.on_connect(|_| Some(Answer::status(503)));
    bed.set("CODA_CONNECT_BACKOFF_SEC", "600");
    bed.launch();
    let refused = bed.cloud.wait_until(coda_host_tests::LIMIT, |s| s.connects.len() >= 2);
    assert!(refused.await, "the request was refused");
    assert_eq!(bed.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_a_batch_finish_as_a_whole() {
    let mut bed = Plan::simulator("batch: true\nexecution_time_ms: 400").start().await;
    bed.submit("first", &example(), 100).await;
    bed.wait_state("first", "executing").await;
    for id in ["J1", "J2", "J3"] {
        bed.submit(id, &example(), 100).await;
    }
    bed.wait_state("J3", "executing").await;
    assert_eq!(bed.stop().await, Exit::Code(0));
    for id in ["first", "J1", "J2", "J3"] {
        delivered_once(&bed, id).await;
    }
}

/// As in a container: the kernel gives pid 1 no default for signals, and nobody else reaps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_pid_1_it_stops_like_any_other() {
    let words = ["unshare", "--pid", "--fork", "--kill-child"];
    let tried = std::process::Command::new(words[0]).args(&words[1..]).arg("true").output();
    if !tried.is_ok_and(|o| o.status.success()) {
        println!("skipped: no process namespace can be made here");
        return;
    }
    let mut bed = Plan::simulator(BUSY).within(&words).start().await;
    bed.submit("J1", &example(), 100).await;
    bed.wait_state("J1", "executing").await;
    let parent = bed.host().pid();
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let first: u32 = children.trim().parse().expect("one child, which is pid 1 of its own");
    coda_host::sys::signal(first, libc::SIGTERM).unwrap();
    assert_eq!(bed.wait_exit().await, Exit::Code(0));
    delivered_once(&bed, "J1").await;
}
