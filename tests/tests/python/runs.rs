//! Runs of an executor in Python code: every kind of result and error, batches, and what is printed.

use coda_host_tests::python::{lab_job, notes, venv, venvs};
use coda_host_tests::{Exit, Plan, TestHost, eventually};
use serde_json::{Value, json};

/// Sends one job for each mode, and returns the bodies of their webhooks.
async fn bodies(host: &TestHost, modes: &[&str], shots: u32) -> Vec<Value> {
    for mode in modes {
        host.send(&lab_job(host, mode, mode, shots)).await;
    }
    let mut bodies = Vec::new();
    for mode in modes {
        bodies.push(host.delivered(mode).await);
    }
    bodies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_goes_through_a_python_executor_on_every_interpreter() {
    for venv in venvs() {
        let mut host = Plan::python(&venv, "lab:create_executor", "").start().await;
        host.send(&lab_job(&host, "J1", "ok", 100)).await;
        let body = host.delivered("J1").await;
        let expected = json!({ "job_id": "J1", "status": "completed", "counts": { "00": 100 },
                               "execution_time_ms": 1.5, "shots_completed": 100 });
        assert_eq!(body, expected);
        let log = host.log();
        let line =
            log.lines().find(|l| l.contains("the executor is Python code")).expect("the start says so");
        assert!(line.contains("lab:create_executor") && line.contains("CODA_EXECUTOR_PYTHON"), "{line}");
        assert!(line.contains("coda_node=\"0.1."), "{line}");
        assert_eq!(host.stop().await, Exit::Code(0));
        assert!(!host.log().contains("ERROR"), "{}", host.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_are_taken_by_their_attributes_whatever_their_numbers_are() {
    let Some(venv) = venv() else { return };
    let host = Plan::python(&venv, "lab:create_executor", "").start().await;
    let good = [
        ("numpy", json!({ "counts": { "00": 40 }, "execution_time_ms": 2.5, "shots_completed": 40 })),
        ("counter", json!({ "counts": { "00": 40 }, "execution_time_ms": 3.0, "shots_completed": 40 })),
        ("whole_floats", json!({ "counts": { "00": 40 }, "execution_time_ms": 1.0, "shots_completed": 40 })),
        ("bools", json!({ "counts": { "00": 1, "11": 0 }, "execution_time_ms": 1.0, "shots_completed": 1 })),
        ("namedtuple", json!({ "counts": { "00": 40 }, "execution_time_ms": 1.0, "shots_completed": 40 })),
        ("namespace", json!({ "counts": { "00": 40 } })),
        ("lost", json!({ "counts": { "00": 37 }, "execution_time_ms": 1.0, "shots_completed": 40 })),
        ("empty", json!({ "counts": {}, "execution_time_ms": 1.0, "shots_completed": 40 })),
    ];
    let modes: Vec<&str> = good.iter().map(|(mode, _)| *mode).collect();
    for ((mode, expected), mut body) in good.iter().zip(bodies(&host, &modes, 40).await) {
        assert_eq!(body["status"], "completed", "{mode}: {body}");
        let body = body.as_object_mut().unwrap();
        body.retain(|key, _| key != "job_id" && key != "status");
        assert_eq!(json!(body), *expected, "{mode}");
    }
    assert_eq!(host.log().matches("which is delivered; told once").count(), 1, "lost shots are told once");
    let bad = [
        ("fraction", "count 2.5 of type float, expected a whole number"),
        ("text_count", "count '7' of type str"),
        ("huge", "the count 1180591620717411303424, which is too large"),
        ("digits", "the count of 16610 bits, which is too large"),
        ("huge_time", "execution_time_ms of 1329 bits, expected a number"),
        ("endless", "counts of more than 256 MiB"),
        ("exiting", "the executor ended its process: sys.exit(4)"),
        ("int_keys", "the key 0 of type int, expected text of 0 and 1"),
        ("bytes_keys", "of type bytes"),
        ("list_counts", "counts of type list, expected a mapping"),
        ("dict_result", "returned dict, which has no counts"),
        ("none_result", "returned NoneType, which has no counts"),
        ("nan_time", "execution_time_ms NaN"),
        ("text_time", "execution_time_ms 'soon', expected a number"),
        ("wrong_width", "of length 3, expected 2"),
        ("blank_key", "of length 3"),
        ("negative", "the count -1"),
        ("too_many", "41 counts in all for 40 shots"),
        ("above_completed", "shots_completed 39, but its counts sum to 40"),
    ];
    let modes: Vec<&str> = bad.iter().map(|(mode, _)| *mode).collect();
    for ((mode, says), body) in bad.iter().zip(bodies(&host, &modes, 40).await) {
        let error = body["error"].as_str().unwrap_or_else(|| panic!("{mode}: {body}"));
        assert!(error.contains(says), "{mode}: {error}");
    }
    host.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_can_open_no_file_any_more_keeps_its_results() {
    for venv in venvs() {
        let host = Plan::python(&venv, "lab:create_executor", "").start().await;
        // The first run, so that nothing of the bridge has been needed before.
        for body in bodies(&host, &["no_files", "ok"], 40).await {
            assert_eq!(body["counts"], json!({ "00": 40 }), "{body}");
        }
        assert!(!host.log().contains("ERROR"), "{}", host.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_reach_the_sender_as_text_and_the_log_with_a_traceback() {
    let Some(venv) = venv() else { return };
    let host = Plan::python(&venv, "lab:create_executor", "login: {password: hunter22}\n").start().await;
    let errors = [
        ("value_error", "qubit 7 is out of calibration"),
        ("timeout", "no answer of the AWG"),
        ("blank_timeout", "TimeoutError"),
        ("memory", "too large"),
        ("not_implemented", "no cp here"),
        ("config", "no site"),
        ("key", "KeyError: 'q7'"),
        ("group", "unhandled errors in a TaskGroup (1 sub-exception): ValueError: the innermost"),
        ("bad_group", "two (2 sub-exceptions): Odd: "),
        ("surrogate", "a \\udcff b"),
        ("odd", "Odd"),
        ("self_cancel", "the executor cancelled its own run"),
        ("secret", "login with *** failed"),
    ];
    let modes: Vec<&str> = errors.iter().map(|(mode, _)| *mode).collect();
    for ((mode, text), body) in errors.iter().zip(bodies(&host, &modes, 10).await) {
        assert_eq!(body["error"], *text, "{mode}: {body}");
    }
    let long = bodies(&host, &["long"], 10).await.remove(0);
    assert_eq!(long["error"].as_str().unwrap().len(), 500);
    host.send(&lab_job(&host, "after", "ok", 7)).await;
    assert_eq!(host.delivered("after").await["counts"], json!({ "00": 7 }));
    let log = host.log();
    let traceback = log.split("the run failed").nth(1).expect("a traceback");
    assert!(traceback.contains("lab.py") && traceback.contains("raise error"), "{traceback}");
    assert!(
        log.lines().any(|l| l.contains("the run failed") && l.contains("value_error")),
        "with the job's id"
    );
    assert!(!log.contains("hunter22"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bits_are_reversed_when_the_operator_says_so() {
    let Some(venv) = venv() else { return };
    for (order, key) in [("measurements", "10"), ("reversed", "01")] {
        let plan = Plan::python(&venv, "statevector:create_executor", "num_qubits: 3\nseed: 1\n");
        let host = plan.env("CODA_EXECUTOR_BIT_ORDER", order).start().await;
        host.submit("J1", &coda_host_tests::example(), 20).await;
        assert_eq!(host.delivered("J1").await["counts"], json!({ key: 20 }), "{order}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_run_prints_and_logs_is_in_the_log_with_its_job() {
    let Some(venv) = venv() else { return };
    let host = Plan::python(&venv, "lab:create_executor", "").start().await;
    for n in 0..5 {
        let id = format!("job-{n}");
        host.send(&lab_job(&host, &id, &format!("print:word{n}"), 10)).await;
    }
    for n in 0..5 {
        assert_eq!(host.delivered(&format!("job-{n}")).await["counts"], json!({ "00": 10 }));
    }
    let says = ["printed", "written", "from a child", "on stderr", "logged", "warned", "from a thread"];
    for n in 0..5 {
        for what in says {
            let (text, job) = (format!("word{n} {what}"), format!("job_id=\"job-{n}\""));
            let found = || host.log().lines().any(|l| l.contains(&text) && l.contains(&job));
            eventually(&format!("{text} is logged with {job}"), async || found()).await;
        }
    }
    // Six bytes for each character: it is cut, and the lines behind it arrive.
    host.send(&lab_job(&host, "long", "long_line", 10)).await;
    assert_eq!(host.delivered("long").await["counts"], json!({ "00": 10 }));
    host.wait_log("the line behind it").await;
    // Last, for it fills the log's limit: a handler that logs in the middle of a line of the run.
    host.send(&lab_job(&host, "handler", "log_in_handler:0.5", 10)).await;
    assert_eq!(host.delivered("handler").await["counts"], json!({ "00": 10 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_answered_in_order_and_wrong_ones_one_by_one() {
    let Some(venv) = venv() else { return };
    let host = Plan::python(&venv, "lab:batches", "").env("CODA_PREFETCH", "20").start().await;
    // The first job keeps the executor busy until the others wait together.
    let batch = async |name: &str, modes: &[&str]| {
        let begun = || notes(&host).iter().filter(|n| n.starts_with("begins")).count();
        let before = begun();
        host.send(&lab_job(&host, &format!("{name}-first"), "sleep:0.3", 1)).await;
        eventually("the first runs", async || begun() > before).await;
        for (n, mode) in modes.iter().enumerate() {
            host.send(&lab_job(&host, &format!("{name}-{n}"), mode, 10 + n as u32)).await;
        }
        let mut bodies = Vec::new();
        for n in 0..modes.len() {
            bodies.push(host.delivered(&format!("{name}-{n}")).await);
        }
        bodies
    };
    for (n, body) in batch("good", &["ok"; 4]).await.iter().enumerate() {
        assert_eq!(body["counts"], json!({ "00": 10 + n }), "{body}");
    }
    assert!(notes(&host).contains(&"batch of 4".to_string()), "{:?}", notes(&host));
    let mixed = batch("mixed", &["mixed"; 4]).await;
    let said: Vec<_> = mixed.iter().map(|body| body["error"].as_str().unwrap_or("none")).collect();
    assert!(said[0].contains("the first") && said[1].contains("NoneType"), "{said:?}");
    assert_eq!(said[2..], ["the readout was lost", "none"]);
    assert!(!host.log().contains("batch_run failed as a whole"), "no job of it runs again");
    for body in batch("short", &["short", "ok", "ok"]).await {
        assert!(body["error"].as_str().unwrap().contains("2 results for 3 jobs"), "{body}");
    }
    for body in batch("surplus", &["surplus", "ok"]).await {
        assert!(body["error"].as_str().unwrap().contains("3 results for 2 jobs"), "{body}");
    }
    for body in batch("endless", &["endless", "ok"]).await {
        assert!(body["error"].as_str().unwrap().contains("1002 results for 2 jobs"), "{body}");
    }
    for body in batch("whole", &["whole", "ok"]).await {
        assert_eq!(body["status"], "completed", "{body}");
    }
    host.wait_log("batch_run failed as a whole").await;
}
