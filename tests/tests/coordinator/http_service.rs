//! The coordinator's HTTP service as its users see it: lists, keys, methods, access, readiness, metrics.

use coda_host_tests::eventually;
use coda_host_tests::net::{Net, SIMULATOR};
use serde_json::{Value, json};

const ONE: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; h q[0];";
const JSON: &str = "Content-Type: application/json\r\n";

fn ids(page: &Value) -> Vec<String> {
    let jobs = page["jobs"].as_array().unwrap_or_else(|| panic!("no jobs in {page}"));
    jobs.iter().map(|job| job["job_id"].as_str().expect("an id").to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_listed_page_by_page() {
    let mut net = Net::start(&[("CODA_COORDINATOR_PEER_WAIT_SEC", "0.01")]).await;
    let mut failed = Vec::new();
    for _ in 0..3 {
        let job = net.coordinator.run(ONE, 10).await;
        assert_eq!(job["status"], "failed", "there is no peer");
        failed.push(job["job_id"].as_str().expect("an id").to_string());
    }
    net.add(SIMULATOR, &[]).await;
    let mut completed = Vec::new();
    for _ in 0..4 {
        completed.push(net.coordinator.run(ONE, 10).await["job_id"].as_str().expect("an id").to_string());
    }
    let newest_first: Vec<String> = failed.iter().chain(&completed).rev().cloned().collect();
    let c = &net.coordinator;
    let (status, all) = c.get("/api/v1/jobs").await;
    assert_eq!((status, ids(&all), &all["next"]), (200, newest_first.clone(), &Value::Null));
    let job = &all["jobs"][0];
    assert_eq!(
        (&job["status"], &job["shots"], &job["progress"]["ratio"]),
        (&json!("completed"), &json!(10), &json!(1.0))
    );

    let mut seen = Vec::new();
    let mut path = "/api/v1/jobs?limit=2".to_string();
    loop {
        let (_, page) = c.get(&path).await;
        seen.extend(ids(&page));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/api/v1/jobs?limit=2&after={next}");
        if seen.len() == 2 {
            // New ones do not move the pages.
            c.run(ONE, 10).await;
        }
    }
    assert_eq!(seen, newest_first);

    let (_, only) = c.get("/api/v1/jobs?status=failed&limit=2").await;
    assert_eq!(ids(&only), [failed[2].clone(), failed[1].clone()]);
    let (_, rest) = c.get(&format!("/api/v1/jobs?status=failed&after={}", failed[1])).await;
    assert_eq!((ids(&rest), &rest["next"]), (vec![failed[0].clone()], &Value::Null));
    let (_, both) = c.get("/api/v1/jobs?status=failed&status=completed").await;
    assert_eq!(ids(&both).len(), 8);
    for (query, field) in [
        ("status=done", "status"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=1&limit=2", "limit"),
        ("after=job-unknown", "after"),
        ("after=%00", "after"),
        ("page=2", "page"),
    ] {
        let (status, problem) = c.get(&format!("/api/v1/jobs?{query}")).await;
        assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!(field)), "{query}: {problem}");
    }
    // From the log alone it is the same list.
    net.coordinator.kill();
    net.coordinator.restart().await;
    let (_, after) = net.coordinator.get("/api/v1/jobs?status=failed").await;
    assert_eq!(ids(&after).len(), 3);
    assert!(after["jobs"][0]["error"].as_str().is_some_and(|e| !e.is_empty()), "{after}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_makes_a_submission_safe_to_repeat() {
    let mut net =
        Net::start(&[("CODA_COORDINATOR_MAX_WAITING", "0"), ("CODA_COORDINATOR_MAX_RUNNING", "2")]).await;
    let c = &net.coordinator;
    let body = json!({ "qasm": ONE, "shots": 10 });
    let keyed = format!("{JSON}Idempotency-Key: key-1\r\n");
    // All at once: one job.
    let posts = (0..10).map(|_| c.post_with("/api/v1/jobs", &body, &keyed));
    let answers = futures::future::join_all(posts).await;
    let id = answers[0].1["job_id"].clone();
    assert!(id.is_string(), "{}", answers[0].1);
    let mut statuses: Vec<u16> = answers.iter().map(|(status, _)| *status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![200; 9], vec![202]].concat());
    assert!(answers.iter().all(|(_, answer)| answer["job_id"] == id), "{answers:?}");

    let in_body = |key: &str, shots: u32| json!({ "qasm": ONE, "shots": shots, "idempotency_key": key });
    let same = |answer: (u16, Value)| assert_eq!((answer.0, &answer.1["job_id"]), (200, &id), "{}", answer.1);
    same(c.post("/api/v1/jobs", &in_body("key-1", 10)).await);
    same(c.post_with("/api/v1/jobs", &in_body("key-1", 10), &keyed).await);
    let (status, problem) = c.post("/api/v1/jobs", &in_body("key-1", 11)).await;
    assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!("idempotency_key")), "{problem}");
    assert!(
        problem["detail"].as_str().is_some_and(|d| d.contains(id.as_str().expect("a text"))),
        "{problem}"
    );
    let (status, problem) = c.post_with("/api/v1/jobs", &in_body("key-2", 10), &keyed).await;
    assert_eq!((status, &problem["errors"][0]["field"]), (400, &json!("Idempotency-Key")), "{problem}");
    for bad in ["", "\u{0}", &"k".repeat(1025)] {
        let (status, problem) = c.post("/api/v1/jobs", &in_body(bad, 10)).await;
        assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!("idempotency_key")), "{bad:?}");
    }
    // A key that was refused names no job.
    let (status, _) =
        c.post("/api/v1/jobs", &json!({ "qasm": "no circuit", "idempotency_key": "key-3" })).await;
    assert_eq!(status, 422);

    // When there is no room, a repeated one is answered all the same, and a new one is told when to come back.
    assert_eq!(c.post("/api/v1/jobs", &in_body("key-3", 10)).await.0, 202);
    let (status, head, problem) = c.request("POST", "/api/v1/jobs", JSON, &body.to_string()).await;
    assert!(status == 503 && head.contains("retry-after: 2"), "{head} {problem}");
    same(c.post("/api/v1/jobs", &in_body("key-1", 10)).await);

    net.coordinator.kill();
    net.coordinator.restart().await;
    same(net.coordinator.post("/api/v1/jobs", &in_body("key-1", 10)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn methods_ids_and_bodies_are_taken_as_http_wants() {
    let net = Net::start(&[]).await;
    let c = &net.coordinator;
    for (path, method, allowed) in [
        ("/api/v1/jobs", "PUT", "allow: get,head,post"),
        ("/api/v1/jobs/job-1", "POST", "allow: get,head,delete"),
        ("/api/v1/jobs/job-1/events", "DELETE", "allow: get,head"),
        ("/api/v1/reservations", "GET", "allow: post"),
        ("/health", "POST", "allow: get,head"),
    ] {
        let (status, head, problem) = c.request(method, path, JSON, "{}").await;
        assert!(status == 405 && head.contains(allowed), "{method} {path}: {head}");
        assert_eq!(problem["status"], 405, "{problem}");
        let (status, head, _) = c.request("OPTIONS", path, "", "").await;
        assert!(status == 204 && head.contains(allowed), "OPTIONS {path}: {head}");
    }
    let (status, head, body) = c.request("HEAD", "/api/v1/jobs", "", "").await;
    assert!(status == 200 && head.contains("content-length: ") && body == "", "{head} {body}");
    assert_eq!(c.request("HEAD", "/api/v1/jobs/job-unknown", "", "").await.0, 404);
    let long = "x".repeat(2000);
    for id in ["%2e%2e", "a%2Fb", "%00", "%0A", "job%20x", &long] {
        for path in [format!("/api/v1/jobs/{id}"), format!("/api/v1/reservations/{id}")] {
            let (status, problem) = c.get(&path).await;
            assert_eq!((status, &problem["status"]), (404, &json!(404)), "{path}: {problem}");
        }
        assert_eq!(c.delete(&format!("/api/v1/jobs/{id}")).await.0, 404, "{id}");
    }
    let (status, problem) = c.get("/api/v1/jobs/%FF").await;
    assert_eq!((status, &problem["status"]), (400, &json!(400)), "{problem}");
    let huge = json!({ "qasm": "x".repeat(2 << 20) }).to_string();
    assert_eq!(c.request("POST", "/api/v1/jobs", JSON, &huge).await.0, 413);
    assert_eq!(c.request("POST", "/api/v1/jobs", "Content-Type: text/plain\r\n", "{}").await.0, 415);
    assert_eq!(c.get("/api/v1/nothing").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_need_the_token_too_unless_they_are_opened() {
    let token = ("CODA_API_TOKEN", "sesame-sesame-sesame");
    let net = Net::start(&[token]).await;
    let c = &net.coordinator;
    let reads =
        ["/api/v1/jobs", "/api/v1/jobs/job-1", "/api/v1/jobs/job-1/events", "/api/v1/peers", "/metrics"];
    for path in reads {
        let (status, head, _) = c.request("GET", path, "", "").await;
        assert!(status == 401 && head.contains("www-authenticate: bearer"), "{path}: {head}");
        let with = "authorization: bEARER sesame-sesame-sesame\r\n";
        assert_ne!(c.request("GET", path, with, "").await.0, 401, "{path}");
    }
    for path in ["/health", "/ready", "/api/v1/openapi.json"] {
        assert_ne!(c.get(path).await.0, 401, "{path}");
    }
    // The commands show it.
    let url = format!("http://{}", c.http);
    let said = c.cli(&["peers", "--url", &url]).await;
    assert_eq!(said.code, 0, "{}", said.text());

    let net = Net::start(&[token, ("CODA_API_OPEN_READS", "true")]).await;
    for path in reads {
        assert_ne!(net.coordinator.get(path).await.0, 401, "{path}");
    }
    assert_eq!(net.coordinator.post("/api/v1/jobs", &json!({ "qasm": ONE })).await.0, 401);
    assert_eq!(net.coordinator.delete("/api/v1/jobs/job-1").await.0, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_and_metrics_tell_how_it_is() {
    let mut net = Net::start(&[]).await;
    let (status, head, ready) = net.coordinator.request("GET", "/ready", "", "").await;
    assert!(status == 503 && head.contains("retry-after: "), "{head}");
    assert_eq!((&ready["ready"], &ready["peers"]["usable"]), (&json!(false), &json!(0)));
    let reasons = ready["reasons"].as_array().expect("reasons");
    assert!(
        reasons.len() == 1 && reasons[0].as_str().is_some_and(|r| r.contains("no peer was heard of")),
        "{ready}"
    );
    net.add(SIMULATOR, &[]).await;
    let (status, ready) = net.coordinator.get("/ready").await;
    assert_eq!(
        (status, &ready["ready"], &ready["network"]["connected"]),
        (200, &json!(true), &json!(1)),
        "{ready}"
    );
    assert_eq!(net.coordinator.run(ONE, 10).await["status"], "completed");
    for (name, value) in [
        ("coda_coordinator_jobs_submitted_total", 1.0),
        ("coda_coordinator_jobs_ended_total{outcome=\"completed\"}", 1.0),
        ("coda_coordinator_job_seconds_count", 1.0),
        ("coda_coordinator_blocks_completed_total", 1.0),
        ("coda_coordinator_peers_usable", 1.0),
        ("coda_coordinator_slots_held", 0.0),
        ("coda_coordinator_reservations_open", 0.0),
        ("coda_coordinator_store_writable", 1.0),
    ] {
        assert_eq!(net.coordinator.metric(name).await, value, "{name}");
    }

    // A log that can't be written, and one that can again without anybody submitting a job.
    let path = net.coordinator.dir().join("state/coordinator/reservations.db");
    let other = rusqlite::Connection::open(path).expect("the log");
    let full = |table: &str| {
        format!(
            "CREATE TRIGGER full_{table} BEFORE INSERT ON {table} BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END;"
        )
    };
    other.execute_batch(&(full("events") + &full("open"))).expect("a trigger");
    let (status, problem) = net.coordinator.post("/api/v1/jobs", &json!({ "qasm": ONE })).await;
    assert_eq!(status, 503, "{problem}");
    let (status, ready) = net.coordinator.get("/ready").await;
    assert_eq!((status, &ready["store"]["writable"]), (503, &json!(false)), "{ready}");
    // The log may be on the same disk.
    assert_eq!(net.coordinator.post("/api/v1/jobs", &json!({ "qasm": ONE })).await.0, 503);
    let said = net.coordinator.log().matches("ERROR coda_host_network::reservation::log::sqlite").count();
    assert_eq!(said, 1, "{}", net.coordinator.log());
    other.execute_batch("DROP TRIGGER full_events; DROP TRIGGER full_open").expect("no trigger");
    eventually("it is ready again", async || net.coordinator.get("/ready").await.0 == 200).await;

    net.peers[0].kill();
    eventually("it knows that the peer is gone", async || net.coordinator.get("/ready").await.0 == 503).await;
}
