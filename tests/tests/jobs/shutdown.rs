//! SIGTERM and SIGKILL around a job in flight.

use coda_host::dev::cloud::Answer;
use coda_host_tests::{Exit, LIMIT, Plan, StateFile, TestHost, eventually, example};

/// Long enough to be seen running, short enough to be waited for.
const BUSY: &str = "execution_time_ms: 300";
const NEVER: &str = "execution_time_ms: 600000";

async fn running(device: &str) -> TestHost {
    let host = Plan::simulator(device).start().await;
    host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    host
}

async fn delivered_once(host: &TestHost, id: &str) {
    assert_eq!(host.delivered(id).await["counts"]["10"], 100);
    host.wait_nothing_pending().await;
    assert_eq!((host.state(id).await.as_str(), host.attempts(id)), ("completed", (1, 1)));
}

/// Two operators, or a package that is removed beside a stop by hand: none of them is impatient.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_stop_command_waits_for_the_first() {
    let mut host = Plan::simulator("execution_time_ms: 1500").start().await;
    host.submit("J1", &example(), 10).await;
    host.wait_state("J1", "executing").await;
    let (first, second) = tokio::join!(host.cli(&["stop"]), async {
        host.wait_log("a signal asks to stop").await;
        host.cli(&["stop"]).await
    });
    assert_eq!((first.code, second.code), (0, 0), "{} {}", first.text(), second.text());
    assert!(second.err.contains("stopping already"), "{}", second.text());
    assert_eq!(host.wait_exit().await, Exit::Code(0));
    assert_eq!(host.attempts("J1").1, 1, "the job was finished");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_killed_in_the_middle_of_a_job_delivers_it_after_the_next_start() {
    let mut host = running(BUSY).await;
    host.kill();
    assert_eq!((host.attempts("J1"), host.pending().await.len()), ((0, 0), 1));
    host.start().await;
    delivered_once(&host, "J1").await;
    assert!(host.state_file().deaths().is_empty(), "a run that comes back clears its count of deaths");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_the_running_job_finish_and_leaves_the_waiting_ones() {
    let mut host = running(BUSY).await;
    let waiting = [host.submit("J2", &example(), 100).await, host.submit("J3", &example(), 100).await];
    eventually("both are read ahead", async || host.pending().await.len() == 3).await;
    assert_eq!(host.stop().await, Exit::Code(0));
    assert_eq!((host.state("J1").await.as_str(), host.attempts("J1")), ("completed", (1, 1)));
    assert_eq!(host.pending().await, waiting);
    for id in ["J2", "J3"] {
        assert!(host.status(id).await.is_empty(), "{id} was never marked");
    }
    host.start().await;
    for id in ["J2", "J3"] {
        delivered_once(&host, id).await;
    }
    assert_eq!(host.attempts("J1"), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigint_is_as_good() {
    let mut host = running(BUSY).await;
    host.process().signal(libc::SIGINT);
    assert_eq!(host.wait_exit().await, Exit::Code(0));
    delivered_once(&host, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_host_stops_at_once() {
    let mut host = Plan::simulator("").start().await;
    assert_eq!(host.stop().await, Exit::Code(0));
    // Also while Redis is away.
    host.start().await;
    host.redis.kill().unwrap();
    eventually("the host notices", async || host.ready().await.0 == 503).await;
    assert_eq!(host.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_outlives_the_drain_is_left_for_the_next_start_and_is_no_death() {
    let mut host = Plan::simulator(NEVER)
        .env("CODA_SHUTDOWN_DRAIN_TIMEOUT_SEC", "0.1")
        .env("CODA_MAX_DEATHS", "1")
        .start()
        .await;
    let message = host.submit("J1", &example(), 100).await;
    for _ in 0..2 {
        host.wait_state("J1", "executing").await;
        eventually("the plugin has it", async || host.ready().await.1["current_job"] == "J1").await;
        assert_eq!(host.stop().await, Exit::Code(5));
        assert_eq!((host.pending().await, host.attempts("J1")), (vec![message.clone()], (0, 0)));
        host.start().await;
    }
    host.wait_log("it runs again after the next start").await;
    eventually("the plugin has it", async || host.ready().await.1["current_job"] == "J1").await;
    assert_eq!(host.stop().await, Exit::Code(5));
    host.write_device("executor_factory: coda_simulator");
    host.start().await;
    delivered_once(&host, "J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_at_once() {
    let mut host = running(NEVER).await;
    host.process().signal(libc::SIGTERM);
    host.wait_log("finishing what runs").await;
    host.process().signal(libc::SIGTERM);
    assert_eq!(host.wait_exit().await, Exit::Code(128 + libc::SIGTERM));
    assert_eq!(host.pending().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_leaves_an_undelivered_result_for_the_next_start() {
    let mut host = running(BUSY).await;
    host.cloud.on_webhook(|_| Some(Answer::status(503)));
    assert_eq!(host.stop().await, Exit::Code(0));
    let (attempts, accepted) = host.attempts("J1");
    assert!(attempts >= 1 && accepted == 0, "it was tried before the end");
    assert_eq!(host.pending().await.len(), 1);
    host.cloud.clear_hooks();
    host.start().await;
    host.delivered("J1").await;
    host.wait_nothing_pending().await;
    assert_eq!((host.attempts("J1").1, host.runs().await), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_without_redis_still_stores_and_sends_the_result() {
    let mut host = Plan::simulator(BUSY).durable_redis().start().await;
    host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    host.redis.kill().unwrap();
    assert_eq!(host.stop().await, Exit::Code(0));
    assert_eq!(host.attempts("J1"), (1, 1));
    host.redis.restart(coda_host_tests::LIMIT).await.unwrap();
    host.start().await;
    host.wait_nothing_pending().await;
    host.wait_state("J1", "completed").await;
    assert_eq!((host.attempts("J1"), host.runs().await), ((1, 1), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_while_connecting_ends_at_once() {
    let mut host = Plan::simulator("").prepare().await;
    host.cloud.on_connect(|_| Some(Answer::hang()));
    host.launch();
    let asked = host.cloud.wait_until(coda_host_tests::LIMIT, |s| !s.connects.is_empty());
    assert!(asked.await, "the request is on its way");
    assert_eq!(host.stop().await, Exit::Code(0));
    host.wait_log("the node token may be used up").await;
    // And while it pauses between two attempts.
    host.cloud.on_connect(|_| Some(Answer::status(503)));
    host.set("CODA_CONNECT_BACKOFF_SEC", "600");
    host.launch();
    let refused = host.cloud.wait_until(coda_host_tests::LIMIT, |s| s.connects.len() >= 2);
    assert!(refused.await, "the request was refused");
    assert_eq!(host.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_a_batch_finish_as_a_whole() {
    let mut host = Plan::simulator("batch: true\nexecution_time_ms: 400").start().await;
    host.submit("first", &example(), 100).await;
    host.wait_state("first", "executing").await;
    for id in ["J1", "J2", "J3"] {
        host.submit(id, &example(), 100).await;
    }
    host.wait_state("J3", "executing").await;
    assert_eq!(host.stop().await, Exit::Code(0));
    for id in ["first", "J1", "J2", "J3"] {
        delivered_once(&host, id).await;
    }
}

/// As in a container: the kernel gives pid 1 no default for signals, and no one else reaps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_pid_1_it_stops_like_any_other() {
    let words = ["unshare", "--pid", "--fork", "--kill-child"];
    let tried = std::process::Command::new(words[0]).args(&words[1..]).arg("true").output();
    if !tried.is_ok_and(|o| o.status.success()) {
        println!("skipped: no process namespace can be made here");
        return;
    }
    let mut host = Plan::simulator(BUSY).within(&words).start().await;
    host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    let parent = host.process().pid();
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let first: u32 = children.trim().parse().expect("one child, which is pid 1 of its own");
    coda_host::sys::signal(first, libc::SIGTERM).unwrap();
    assert_eq!(host.wait_exit().await, Exit::Code(0));
    delivered_once(&host, "J1").await;
}

/// What can't be stored is left over, and the host says so; it does not wait longer than it may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_the_database_is_locked_ends_in_time_and_leaves_the_job() {
    let mut host =
        Plan::simulator("execution_time_ms: 100").env("CODA_SHUTDOWN_DRAIN_TIMEOUT_SEC", "1").start().await;
    host.good_job_goes_through("J1").await;
    let lock = StateFile::lock(&host.state_dir());
    host.submit("J2", &example(), 100).await;
    eventually("nothing can be stored", async || {
        host.ready().await.1["reasons"].to_string().contains("can't be stored")
    })
    .await;
    let start = std::time::Instant::now();
    assert_eq!(host.stop().await, Exit::Code(5));
    assert!(start.elapsed() < LIMIT / 3, "the drain takes a second: {:?}", start.elapsed());
    drop(lock);
    host.start().await;
    assert_eq!(host.delivered("J2").await["counts"]["10"], 100);
    host.wait_nothing_pending().await;
    assert_eq!(host.attempts("J2"), (1, 1));
}
