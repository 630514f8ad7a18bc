//! One event log in PostgreSQL, shared by coordinators.

use std::time::{Duration, Instant};

use coda_host::reservation::event::{ReservationRequest, Transition};
use coda_host::reservation::job_options::JobOptions;
use coda_host::reservation::journal::JobFact;
use coda_host::reservation::ledger::ReservationCommand;
use coda_host::reservation::log::Log;
use coda_host_tests::net::{Net, SIMULATOR};
use coda_host_tests::postgres::Postgres;
use coda_host_tests::{eventually, eventually_some};
use serde_json::json;

fn request(key: Option<&str>) -> ReservationRequest {
    ReservationRequest {
        workflow_run_id: "workflow-1".into(),
        fragment_id: "block-s01-b01".into(),
        service_id: "hadamard".into(),
        requesting_peer_id: "12D3KooWcoordinator".into(),
        ttl_seconds: 60,
        idempotency_key: key.map(String::from),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_writers_one_makes_a_transition() {
    let Some(server) = Postgres::start().await else { return };
    let here = std::path::Path::new("/");
    let (a, b) =
        (Log::open(&server.url(), here).await.unwrap(), Log::open(&server.url(), here).await.unwrap());
    for n in 0..40 {
        let id = format!("res-000000{n:02}");
        a.request(&id, "me", request(None)).await.unwrap();
        b.execute(&id, ReservationCommand::Accept { peer: "12D3KooWpeer".into(), held: false })
            .await
            .unwrap();
        let (commit, cancel) = tokio::join!(
            a.execute(&id, ReservationCommand::Commit),
            b.execute(&id, ReservationCommand::Cancel { reason: "enough".into() })
        );
        assert!(commit.is_ok() != cancel.is_ok(), "round {n}: exactly one of commit and cancel");
    }
    // One key, asked for from both sides at once, makes one reservation.
    for n in 0..20 {
        let key = format!("key-{n:04}");
        let (first, second) = (format!("res-key-a{n:02}"), format!("res-key-b{n:02}"));
        let (x, y) = tokio::join!(
            a.request(&first, "me", request(Some(&key))),
            b.request(&second, "me", request(Some(&key)))
        );
        let (x, y) = (x.unwrap(), y.unwrap());
        assert_eq!(x.reservation_id, y.reservation_id);
        assert!(x.created != y.created, "round {n}");
        assert_eq!(x.state.transition, Transition::Requested);
    }
    assert_eq!(a.open_reservations().await.unwrap().len(), 20);
    assert_eq!(b.verify().await.unwrap(), 40 * 3 + 20);
    a.close().await;
    b.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_coordinators_share_a_log() {
    let Some(server) = Postgres::start().await else { return };
    let url = server.url();
    let mut one = Net::start(&[("CODA_COORDINATOR_STORE", &url)]).await;
    let other = Net::start(&[("CODA_COORDINATOR_STORE", &url)]).await;
    one.add(SIMULATOR, &[]).await;
    let job = one.coordinator.submit("OPENQASM 3.0; include \"stdgates.inc\"; qubit q; h q;", 10).await;
    assert_eq!(one.coordinator.ended(&job).await["status"], "completed");
    let (status, seen) = other.coordinator.get(&format!("/api/v1/jobs/{job}")).await;
    assert_eq!((status, &seen["status"]), (200, &json!("completed")));
    let reservation = seen["blocks"][0]["tried"][0]["reservation_id"].as_str().unwrap();
    let (status, state) = other.coordinator.get(&format!("/api/v1/reservations/{reservation}")).await;
    assert_eq!((status, &state["current_transition"]), (200, &json!("committed")));
    let said = other.coordinator.cli(&["reservation", "verify"]).await;
    assert!(said.code == 0 && said.out.contains("all as they were written"), "{}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_log_closes_at_once() {
    let Some(server) = Postgres::start().await else { return };
    let log = Log::open(&server.url(), std::path::Path::new("/")).await.unwrap();
    // Every worker waits for a request.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begin = Instant::now();
    log.close().await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

/// PostgreSQL has no U+0000 in its texts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_text_of_a_job_keeps_others_from_the_list() {
    let Some(server) = Postgres::start().await else { return };
    let log = Log::open(&server.url(), std::path::Path::new("/")).await.unwrap();
    let submitted = |qasm: &str| JobFact::Submitted {
        qasm: qasm.into(),
        shots: 7,
        coordinator: "me".into(),
        options: JobOptions::default(),
    };
    log.record_job("job-comment", submitted("// \0\nqubit q; h q;")).await.unwrap();
    log.record_job("job-cancel", submitted("qubit q; h q;")).await.unwrap();
    log.record_job("job-cancel", JobFact::Cancelled { reason: "a \0 in it".into() }).await.unwrap();
    let jobs = log.jobs(None, 10).await.unwrap();
    let found: Vec<_> =
        jobs.iter().map(|job| (job.job_id.as_str(), job.shots, job.error.as_deref())).collect();
    assert_eq!(found, [("job-cancel", 7, Some("a \u{fffd} in it")), ("job-comment", 7, None)]);
    log.close().await;
}

/// What watches over a coordinator needs its metrics most when the database does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_hangs_keeps_no_metrics_back_and_one_that_refuses_is_for_later() {
    let Some(server) = Postgres::start().await else { return };
    let env = [("CODA_COORDINATOR_STORE", server.url()), ("CODA_REQUEST_TIMEOUT_SEC", "3".into())];
    let net = Net::start(&env.each_ref().map(|(name, value)| (*name, value.as_str()))).await;
    let c = &net.coordinator;
    let server = std::sync::Arc::new(server);
    let locked = server.clone();
    let hanging = tokio::task::spawn_blocking(move || {
        locked.sql("BEGIN; LOCK TABLE coda_open IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(12); COMMIT;")
    });
    eventually("the database hangs", async || {
        server
            .sql("SELECT 1 FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted")
            .unwrap()
            .contains('1')
    })
    .await;
    let begin = Instant::now();
    assert!(c.metric("coda_coordinator_lease_held").await >= 0.0);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    let job = json!({ "qasm": "qubit q; h q;" }).to_string();
    let json_type = "Content-Type: application/json\r\n";
    let (status, head, problem) = c.request("POST", "/api/v1/jobs", json_type, &job).await;
    assert!(status == 503 && head.contains("retry-after:"), "{head} {problem}");
    // It is not the service that is slow.
    let (status, _, problem) =
        c.request("POST", "/api/v1/jobs", &format!("{json_type}Content-Length: 9\r\n"), "").await;
    assert_eq!(status, 408, "{problem}");
    hanging.await.unwrap().unwrap();
    server.sql("ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf();").unwrap();
    let refused = eventually_some("the database refuses", async || {
        let answer = c.request("POST", "/api/v1/jobs", json_type, &job).await;
        (answer.0 != 202).then_some(answer)
    })
    .await;
    assert_eq!(refused.0, 503, "{}", refused.2);
    assert!(refused.1.contains("retry-after:"), "{}", refused.1);
}
