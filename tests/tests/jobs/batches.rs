//! Batches: every job has its own answer, and the same one as when it runs alone.

use coda_host_tests::{Plan, TestHost, bell, eventually, example, flips};
use serde_json::json;

/// A batch of exactly these jobs forms behind a single one that holds the slot meanwhile.
async fn first_runs(plan: Plan) -> TestHost {
    let host = plan.start().await;
    host.submit("first", &example(), 100).await;
    host.wait_state("first", "executing").await;
    host
}

fn simulator() -> Plan {
    simulator_of(500)
}

fn simulator_of(run_ms: u32) -> Plan {
    Plan::simulator(&format!("batch: true\nexecution_time_ms: {run_ms}"))
}

fn faulty(fault: &str) -> Plan {
    Plan::faulty(&format!("fault: {fault}\nrun_ms: 500"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_a_batch_keep_their_shots_and_circuits() {
    let host = first_runs(simulator()).await;
    host.submit("J1", &example(), 10).await;
    host.send(&host.job("J2", &example(), 10).field("shots", "x")).await;
    host.submit("J3", &flips(5, &[1]).measure(&[1, 0, 1]), 33).await;
    host.submit("J4", &bell(), 1).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "10": 10 }));
    assert!(host.failure("J2").await.contains("shots is"));
    assert_eq!(host.delivered("J3").await["counts"], json!({ "101": 33 }));
    let bell = host.delivered("J4").await;
    assert!(bell["counts"] == json!({ "00": 1 }) || bell["counts"] == json!({ "11": 1 }), "{bell}");
    host.wait_nothing_pending().await;
    assert_eq!(host.runs().await, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_circuit_gives_one_answer_alone_and_in_a_batch() {
    let host = first_runs(simulator()).await;
    for id in ["J1", "J2", "J3"] {
        host.submit(id, &example(), 100).await;
    }
    for id in ["first", "J1", "J2", "J3"] {
        assert_eq!(host.delivered(id).await["counts"], json!({ "10": 100 }), "{id}");
    }
    // The jobs of a batch begin together.
    let started = async |id: &str| host.status(id).await["started_at"].clone();
    assert!(started("J3").await <= host.status("J1").await["completed_at"]);
    assert!(started("first").await < started("J1").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_fails_as_a_whole_is_run_job_by_job() {
    for keys in
        ["batch_error", "panic_batch", "panic_batch\npayload: other", "panic_batch\npayload: drop_bomb"]
    {
        let host = first_runs(faulty(keys)).await;
        for id in ["J1", "J2", "J3"] {
            host.submit(id, &example(), 100).await;
        }
        for id in ["first", "J1", "J2", "J3"] {
            let body = host.delivered(id).await;
            assert_eq!(body["counts"], json!({ "00": 100 }), "{keys}: {body}");
            assert_eq!(host.attempts(id), (1, 1));
        }
        host.wait_nothing_pending().await;
        host.wait_log("batch_run failed as a whole; running its jobs one by one").await;
        assert_eq!(host.get("/health").await.0, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_job_is_left_out_of_the_fallback() {
    // The batch fails at once, then its jobs run one by one for a while each.
    let host = first_runs(faulty("batch_error")).await;
    for id in ["J1", "J2", "J3"] {
        host.submit(id, &example(), 100).await;
    }
    host.wait_log("running its jobs one by one").await;
    host.request_cancel("J3").await;
    host.wait_state("J3", "cancelled").await;
    for id in ["J1", "J2"] {
        assert_eq!(host.delivered(id).await["status"], "completed");
    }
    host.wait_nothing_pending().await;
    eventually("the slot is free", async || host.ready().await.1["slots_busy"] == 0).await;
    assert_eq!(host.attempts("J3"), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_number_of_answers_fails_the_batch_and_says_so() {
    for (fault, given) in [("batch_too_few", 2), ("batch_too_many", 4)] {
        let host = first_runs(faulty(fault)).await;
        for id in ["J1", "J2", "J3"] {
            host.submit(id, &example(), 100).await;
        }
        for id in ["J1", "J2", "J3"] {
            let error = host.failure(id).await;
            assert_eq!(error, format!("the executor's batch_run returned {given} results for 3 jobs"));
        }
        host.wait_nothing_pending().await;
        assert_eq!(host.delivered("first").await["status"], "completed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_failure_in_a_batch_is_that_jobs_alone() {
    let host = first_runs(faulty("batch_mixed")).await;
    for id in ["J1", "J2", "J3"] {
        host.submit(id, &example(), 100).await;
    }
    assert!(host.failure("J2").await.contains("this job of the batch failed"));
    for id in ["J1", "J3"] {
        assert_eq!(host.delivered(id).await["counts"], json!({ "00": 100 }));
    }
    host.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_killed_in_the_middle_runs_again() {
    let mut host = first_runs(simulator()).await;
    for id in ["J1", "J2", "J3"] {
        host.submit(id, &example(), 100).await;
    }
    host.delivered("first").await;
    host.wait_state("J3", "executing").await;
    host.kill();
    host.start().await;
    for id in ["J1", "J2", "J3"] {
        assert_eq!(host.delivered(id).await["counts"], json!({ "10": 100 }));
        assert_eq!(host.attempts(id), (1, 1));
    }
    host.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_jobs_in_batches_all_arrive() {
    let host = simulator_of(1).start().await;
    for n in 0..1000 {
        host.submit(&format!("J{n}"), &example(), 10).await;
    }
    for n in 0..1000 {
        assert_eq!(host.delivered(&format!("J{n}")).await["counts"], json!({ "10": 10 }));
    }
    host.wait_nothing_pending().await;
    assert_eq!(host.counted("completed").await, 1000, "none ran twice");
}
