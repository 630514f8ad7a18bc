//! Sudden death at each step of a job: nothing is lost, and what was decided stays decided.

use std::path::PathBuf;

use coda_host_tests::artifacts::{FAILPOINT, binary, failpoints_binary};
use coda_host_tests::{Circuit, Exit, LIMIT, Plan, TestHost, eventually, eventually_some, example};
use serde_json::json;

const STEPS: [&str; 7] = ["claimed", "executing", "returned", "stored", "decided", "announced", "delivered"];
/// Those before the plugin has answered.
const RUNS_AGAIN: [&str; 2] = ["claimed", "executing"];

/// Brings J1 to a step and kills the host there.
async fn killed_at(step: &str, device: &str) -> TestHost {
    let mut host = Plan::simulator(device).prepare().await;
    let reached = hold(&mut host, step);
    host.start().await;
    host.submit("J1", &example(), 100).await;
    eventually(&format!("J1 is {step}"), async || reached.exists()).await;
    host.kill();
    host.unset(FAILPOINT);
    host
}

fn hold(host: &mut TestHost, step: &str) -> PathBuf {
    let reached = host.dir().join(format!("reached-{step}"));
    host.set(FAILPOINT, format!("{step}:{}", reached.display()));
    reached
}

/// The variable's name is nowhere in the shipped binary, so nothing in it reads the variable.
#[test]
fn the_shipped_binary_has_no_failpoints() {
    let names = |path: PathBuf| {
        let content = std::fs::read(&path).unwrap();
        content.windows(FAILPOINT.len()).any(|window| window == FAILPOINT.as_bytes())
    };
    assert!(!names(binary()));
    assert!(names(failpoints_binary()), "the search can find it");
}

async fn once_and_at_rest(host: &TestHost, state: &str) {
    host.wait_nothing_pending().await;
    host.wait_state("J1", state).await;
    assert_eq!(host.attempts("J1"), (1, 1), "exactly one delivery");
    eventually("no result is kept", async || host.state_file().kept().is_empty()).await;
}

async fn success_survives(step: &str) {
    let mut host = killed_at(step, "").await;
    assert_eq!(host.pending().await.len(), 1, "not acknowledged");
    host.start().await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "10": 100 }));
    once_and_at_rest(&host, "completed").await;
    let expected = u64::from(RUNS_AGAIN.contains(&step));
    assert_eq!(host.runs().await, expected, "only what was not answered runs again");
    host.good_job_goes_through("J2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_delivered_once_wherever_the_host_dies() {
    for step in STEPS {
        success_survives(step).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_is_delivered_once_wherever_the_host_dies() {
    for step in STEPS {
        let mut host = killed_at(step, "mode: raise").await;
        host.start().await;
        let error = host.failure("J1").await;
        once_and_at_rest(&host, "failed").await;
        assert_eq!(host.status("J1").await["error"], error, "{step}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_after_the_crash_counts_until_the_decision() {
    for step in STEPS {
        let mut host = killed_at(step, "").await;
        host.request_cancel("J1").await;
        host.start().await;
        host.wait_nothing_pending().await;
        // `decided` has looked at the key, but the crash took its knowledge: it looks again.
        let in_time = RUNS_AGAIN.contains(&step) || matches!(step, "returned" | "stored" | "decided");
        host.good_job_goes_through("J2").await;
        let expected = if in_time { ("cancelled", (0, 0)) } else { ("completed", (1, 1)) };
        assert_eq!((host.state("J1").await.as_str(), host.attempts("J1")), expected, "{step}");
        eventually("no result is kept", async || host.state_file().kept().is_empty()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_that_redis_never_heard_of_is_not_repeated() {
    let mut host = killed_at("delivered", "").await;
    // As after a failover to a replica that was behind.
    host.redis::<()>(redis::cmd("DEL").arg("qpu:job:J1:status")).await;
    host.start().await;
    once_and_at_rest(&host, "completed").await;
    assert_eq!(host.runs().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_kept_once() {
    let mut host = Plan::simulator("").prepare().await;
    let reached = hold(&mut host, "delivered");
    host.start().await;
    host.send(&host.job("", &example(), 1)).await;
    eventually("the dead letter is stored", async || reached.exists()).await;
    host.kill();
    host.unset(FAILPOINT);
    host.start().await;
    host.wait_nothing_pending().await;
    assert_eq!(host.state_file().dead_letters().len(), 1);
}

/// The plugin takes the process down with it; after three times the job is given up.
async fn deaths(fault: &str, end: &[Exit]) {
    let mut host = Plan::faulty(&format!("fault: {fault}\nwhen: run")).prepare().await;
    host.submit("J1", &example(), 100).await;
    host.submit("behind", &example(), 100).await;
    for _ in 0..3 {
        host.launch();
        let exit = host.wait_exit().await;
        assert!(end.contains(&exit), "{fault}: {exit:?}");
        assert_eq!((host.attempts("J1"), host.pending().await.len()), ((0, 0), 2));
    }
    host.write_device("executor_factory: coda_faulty");
    host.start().await;
    assert_eq!(host.failure("J1").await, "the executor died 3 times while running this job");
    assert_eq!(host.delivered("behind").await["counts"], json!({ "00": 100 }), "it never ran before");
    host.wait_nothing_pending().await;
    assert_eq!((host.attempts("J1"), host.state("J1").await.as_str()), ((1, 1), "failed"));
    assert_eq!(host.runs().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_aborts_the_process_is_given_up() {
    deaths("abort", &[Exit::Signal(libc::SIGABRT)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_exits_the_process_is_given_up() {
    deaths("exit", &[Exit::Code(3)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_breaks_memory_is_given_up() {
    deaths("segfault", &[Exit::Signal(libc::SIGSEGV)]).await;
    // The runtime of Rust turns the fault on the guard page into an abort where it recognises it.
    deaths("stack_overflow", &[Exit::Signal(libc::SIGSEGV), Exit::Signal(libc::SIGABRT)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_deaths_are_forgiven() {
    let mut host = Plan::faulty("fault: abort\nwhen: run").prepare().await;
    host.submit("J1", &example(), 100).await;
    for _ in 0..2 {
        host.launch();
        assert_eq!(host.wait_exit().await, Exit::Signal(libc::SIGABRT));
    }
    host.write_device("executor_factory: coda_faulty");
    host.start().await;
    assert_eq!(host.delivered("J1").await["status"], "completed");
    host.wait_nothing_pending().await;
    eventually("the deaths are forgotten", async || host.state_file().deaths().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_under_load_lose_nothing() {
    const JOBS: usize = 240;
    const KILLS: usize = 8;
    let mut host = Plan::simulator("execution_time_ms: 2\nslots: 2").prepare().await;
    let circuit = Circuit::new(1);
    for n in 0..JOBS {
        host.submit(&format!("L{n}"), &circuit, 10).await;
    }
    for kill in 1..=KILLS {
        host.launch();
        let wanted = (kill * JOBS / (KILLS + 1)) as u64;
        let reached = host.cloud.wait_until(LIMIT, |s| s.accepted_jobs >= wanted).await;
        assert!(reached, "{wanted} results within {LIMIT:?}");
        host.kill();
    }
    host.start().await;
    eventually_some("all are delivered", async || {
        (host.cloud.state().accepted_jobs == JOBS as u64).then_some(())
    })
    .await;
    host.wait_nothing_pending().await;
    let state = host.cloud.state();
    for (id, _) in state.jobs.iter() {
        let bodies: Vec<_> = state.attempts(id).map(|w| w.json()["counts"].clone()).collect();
        assert!(bodies.iter().all(|b| *b == json!({ "0": 10 })), "{id}: {bodies:?}");
    }
    // At most what was in the plugin, or just sent, at each kill may come twice.
    let surplus = state.webhook_count - JOBS as u64;
    assert!(surplus <= (KILLS * 64) as u64, "{surplus} repeated posts");
}
