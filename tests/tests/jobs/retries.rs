//! Errors that the plugin calls retryable: the job runs again, a bounded number of times, and its sender hears one end.

use coda_host_tests::{Exit, Plan, TestHost, eventually, example};

/// How often the plugin has begun to run this job.
fn starts(host: &TestHost, id: &str) -> usize {
    let record = std::fs::read_to_string(host.dir().join("record")).unwrap_or_default();
    record.lines().filter(|line| *line == format!("start {id}")).count()
}

/// A plan whose plugin fails so, and records its runs.
fn failing(keys: &str) -> Plan {
    Plan::faulty(&format!("fault: error_retryable\nrecord: record\n{keys}"))
}

async fn retries(host: &TestHost, code: &str) -> u64 {
    host.metric(&format!("coda_host_job_retries_total{{code=\"{code}\"}}")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_fails_for_a_moment_completes_and_is_answered_once() {
    for (keys, code) in [("failures: 2", "hardware"), ("failures: 2\ncalibration: true", "calibration")] {
        let host = failing(keys).start().await;
        host.submit("J1", &example(), 10).await;
        assert_eq!(host.delivered("J1").await["status"], "completed");
        host.wait_nothing_pending().await;
        assert_eq!((starts(&host, "J1"), host.attempts("J1"), retries(&host, code).await), (3, (1, 1), 2));
        host.wait_log("the job runs again").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_error_is_told_with_the_number_of_runs() {
    for (max, runs) in [("2", 3), ("0", 1)] {
        let host = failing("").env("CODA_RETRY_MAX", max).start().await;
        host.submit("J1", &example(), 10).await;
        let error = host.failure("J1").await;
        assert!(error.contains("the run failed for a moment"), "{error}");
        assert_eq!(error.contains(&format!("(the last error of {runs} runs)")), runs > 1, "{error}");
        assert_eq!(starts(&host, "J1"), runs);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_run_while_a_job_rests_and_in_a_batch_only_what_failed_runs_again() {
    for keys in ["", "batch: true\nrun_ms: 20"] {
        let keys = format!("{keys}\nonly: J1\nfailures: 1");
        let host = failing(&keys).env("CODA_RETRY_PAUSE_SEC", "0.5").start().await;
        for id in ["J1", "J2", "J3"] {
            host.submit(id, &example(), 10).await;
        }
        for id in ["J2", "J3", "J1"] {
            assert_eq!(host.delivered(id).await["status"], "completed", "{id}");
        }
        assert_eq!(["J1", "J2", "J3"].map(|id| starts(&host, id)), [2, 1, 1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_runs_holds_over_a_kill_and_a_stop() {
    let mut host =
        failing("").env("CODA_RETRY_PAUSE_SEC", "60").env("CODA_RETRY_PAUSE_MAX_SEC", "60").start().await;
    host.submit("J1", &example(), 10).await;
    host.wait_log("the job runs again").await;
    host.kill();
    host.start().await;
    eventually("the second run has failed", async || {
        starts(&host, "J1") == 2 && host.log().matches("the job runs again").count() == 2
    })
    .await;
    assert_eq!(host.stop().await, Exit::Code(0));
    host.start().await;
    let error = host.failure("J1").await;
    assert!(error.contains("(the last error of 3 runs)"), "{error}");
    assert_eq!((starts(&host, "J1"), host.attempts("J1")), (3, (1, 1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_rests_is_cancelled_at_once() {
    let host =
        failing("").env("CODA_RETRY_PAUSE_SEC", "60").env("CODA_RETRY_PAUSE_MAX_SEC", "60").start().await;
    host.submit("J1", &example(), 10).await;
    host.wait_log("the job runs again").await;
    host.request_cancel("J1").await;
    host.wait_state("J1", "cancelled").await;
    host.wait_nothing_pending().await;
    assert_eq!((starts(&host, "J1"), host.attempts("J1")), (1, (0, 0)));
}
