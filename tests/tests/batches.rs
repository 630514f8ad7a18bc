//! Batches: every job has its own answer, and the same one as when it runs alone.

use coda_host_tests::{Bed, Plan, bell, example, flips, holds};
use serde_json::json;

/// A batch of exactly these jobs forms behind a single one that holds the slot meanwhile.
async fn first_runs(plan: Plan) -> Bed {
    let bed = plan.start().await;
    bed.submit("first", &example(), 100).await;
    bed.wait_state("first", "executing").await;
    bed
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
    let bed = first_runs(simulator()).await;
    bed.submit("J1", &example(), 10).await;
    bed.send(&bed.job("J2", &example(), 10).field("shots", "x")).await;
    bed.submit("J3", &flips(5, &[1]).measure(&[1, 0, 1]), 33).await;
    bed.submit("J4", &bell(), 1).await;
    assert_eq!(bed.delivered("J1").await["counts"], json!({ "10": 10 }));
    assert!(bed.failure("J2").await.contains("shots is"));
    assert_eq!(bed.delivered("J3").await["counts"], json!({ "101": 33 }));
    let bell = bed.delivered("J4").await;
    assert!(bell["counts"] == json!({ "00": 1 }) || bell["counts"] == json!({ "11": 1 }), "{bell}");
    bed.wait_nothing_pending().await;
    assert_eq!(bed.runs().await, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_circuit_gives_one_answer_alone_and_in_a_batch() {
    let bed = first_runs(simulator()).await;
    for id in ["J1", "J2", "J3"] {
        bed.submit(id, &example(), 100).await;
    }
    for id in ["first", "J1", "J2", "J3"] {
        assert_eq!(bed.delivered(id).await["counts"], json!({ "10": 100 }), "{id}");
    }
    // The jobs of a batch begin together.
    let started = async |id: &str| bed.status(id).await["started_at"].clone();
    assert!(started("J3").await <= bed.status("J1").await["completed_at"]);
    assert!(started("first").await < started("J1").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_fails_as_a_whole_is_run_job_by_job() {
    for keys in
        ["batch_error", "panic_batch", "panic_batch\npayload: other", "panic_batch\npayload: drop_bomb"]
    {
        let bed = first_runs(faulty(keys)).await;
        for id in ["J1", "J2", "J3"] {
            bed.submit(id, &example(), 100).await;
        }
        for id in ["first", "J1", "J2", "J3"] {
            let body = bed.delivered(id).await;
            assert_eq!(body["counts"], json!({ "00": 100 }), "{keys}: {body}");
            assert_eq!(bed.attempts(id), (1, 1));
        }
        bed.wait_nothing_pending().await;
        bed.wait_log("batch_run failed as a whole; running its jobs one by one").await;
        assert_eq!(bed.get("/health").await.0, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_job_is_left_out_of_the_fallback() {
    // The batch fails at once, then its jobs run one by one for a while each.
    let bed = first_runs(faulty("batch_error")).await;
    for id in ["J1", "J2", "J3"] {
        bed.submit(id, &example(), 100).await;
    }
    bed.wait_log("running its jobs one by one").await;
    bed.request_cancel("J3").await;
    bed.wait_state("J3", "cancelled").await;
    for id in ["J1", "J2"] {
        assert_eq!(bed.delivered(id).await["status"], "completed");
    }
    bed.wait_nothing_pending().await;
    holds("the slot is free", async || bed.ready().await.1["slots_busy"] == 0).await;
    assert_eq!(bed.attempts("J3"), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_number_of_answers_fails_the_batch_and_says_so() {
    for (fault, given) in [("batch_too_few", 2), ("batch_too_many", 4)] {
        let bed = first_runs(faulty(fault)).await;
        for id in ["J1", "J2", "J3"] {
            bed.submit(id, &example(), 100).await;
        }
        for id in ["J1", "J2", "J3"] {
            let error = bed.failure(id).await;
            assert_eq!(error, format!("the executor's batch_run returned {given} results for 3 jobs"));
        }
        bed.wait_nothing_pending().await;
        assert_eq!(bed.delivered("first").await["status"], "completed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_failure_in_a_batch_is_that_jobs_alone() {
    let bed = first_runs(faulty("batch_mixed")).await;
    for id in ["J1", "J2", "J3"] {
        bed.submit(id, &example(), 100).await;
    }
    assert!(bed.failure("J2").await.contains("this job of the batch failed"));
    for id in ["J1", "J3"] {
        assert_eq!(bed.delivered(id).await["counts"], json!({ "00": 100 }));
    }
    bed.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_killed_in_the_middle_runs_again() {
    let mut bed = first_runs(simulator()).await;
    for id in ["J1", "J2", "J3"] {
        bed.submit(id, &example(), 100).await;
    }
    bed.delivered("first").await;
    bed.wait_state("J3", "executing").await;
    bed.kill();
    bed.start().await;
    for id in ["J1", "J2", "J3"] {
        assert_eq!(bed.delivered(id).await["counts"], json!({ "10": 100 }));
        assert_eq!(bed.attempts(id), (1, 1));
    }
    bed.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_jobs_in_batches_all_arrive() {
    let bed = simulator_of(1).start().await;
    for n in 0..1000 {
        bed.submit(&format!("J{n}"), &example(), 10).await;
    }
    for n in 0..1000 {
        assert_eq!(bed.delivered(&format!("J{n}")).await["counts"], json!({ "10": 10 }));
    }
    bed.wait_nothing_pending().await;
    assert_eq!(bed.counted("completed").await, 1000, "none ran twice");
}
