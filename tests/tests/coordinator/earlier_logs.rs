//! Event logs that an earlier version has written, and those of a later one.

use std::path::PathBuf;

use coda_host_tests::net::{Net, Node, SIMULATOR};
use coda_host_tests::postgres::Postgres;
use coda_host_tests::said;
use serde_json::json;

/// The jobs of the stored log: one has completed, one was running, one waited, one was cancelled.
const COMPLETED: &str = "job-70f55d4f-0d9b-42b1-b60f-b4c54abe5fbe";
const RUNNING: &str = "job-afa4a848-fa54-43bc-a244-c2e879976b83";
const WAITING: &str = "job-28c8c97b-15e8-439e-a00a-ff9e4abeed0f";
const CANCELLED: &str = "job-6ec80926-1179-4fe1-a85b-dc21887c939d";
/// The log is old, and its jobs are not to end for that while it is less than a year.
const PATIENT: (&str, &str) = ("CODA_COORDINATOR_JOB_DEADLINE_SEC", "31536000");

fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/event-log-1").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Goes on with the stored log.
async fn goes_on(store: &str) -> Net {
    let mut net = Net::start(&[("CODA_COORDINATOR_STORE", store), PATIENT]).await;
    net.add(SIMULATOR, &[]).await;
    let c = &net.coordinator;
    for id in [COMPLETED, RUNNING, WAITING] {
        let job = c.ended(id).await;
        let is_too_old = job["error"].as_str().is_some_and(|error| error.contains("was not done within"));
        assert!(job["status"] == "completed" || is_too_old, "{id}: {}", job["error"]);
    }
    assert_eq!(c.job(CANCELLED).await["status"], "cancelled");
    let again = json!({
        "qasm": "OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; h q[0];", "shots": 10, "idempotency_key": "first",
    });
    let (status, known) = c.post("/api/v1/jobs", &again).await;
    assert_eq!((status, &known["job_id"]), (200, &json!(COMPLETED)), "{known}");
    let new = c.run("OPENQASM 3.0; include \"stdgates.inc\"; qubit[2] q; h q;", 10).await;
    assert_eq!(new["status"], "completed", "{}", new["error"]);
    let said = c.cli(&["reservation", "verify"]).await;
    assert!(said.code == 0 && said.out.contains("all as they were written"), "{}", said.text());
    net.all_free().await;
    net
}

async fn is_refused(coordinator: &mut Node) {
    coordinator.stop().await;
    let refused = said(&["coordinator"], &coordinator.env, coordinator.dir()).await;
    let names_it = refused.err.contains("was written by a newer coda-host (schema 99)");
    assert!(refused.code == 2 && names_it, "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_sqlite_log_of_an_earlier_version_goes_on_and_one_of_a_later_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.db");
    let file = rusqlite::Connection::open(&path).expect("a file");
    file.execute_batch(&(fixture("sqlite.sql") + &fixture("rows.sql"))).expect("the stored log");
    drop(file);
    let mut net = goes_on(&path.display().to_string()).await;
    let file = rusqlite::Connection::open(&path).expect("a file");
    file.pragma_update(None, "user_version", 99).expect("a later version");
    drop(file);
    is_refused(&mut net.coordinator).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_log_of_an_earlier_version_goes_on_and_one_of_a_later_is_refused() {
    let Some(server) = Postgres::start().await else { return };
    let rows = fixture("rows.sql").replace("INSERT INTO ", "INSERT INTO coda_");
    server.sql(&(fixture("postgres.sql") + &rows)).expect("the stored log");
    let mut net = goes_on(&server.url()).await;
    server.sql("UPDATE coda_meta SET version = 99").expect("a later version");
    is_refused(&mut net.coordinator).await;
}
