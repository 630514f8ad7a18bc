//! Coordinators that share the jobs of one event log in PostgreSQL: leases, load, and what they take over.

use std::collections::{BTreeMap, BTreeSet};

use coda_host_tests::net::{Net, Node, SIMULATOR};
use coda_host_tests::postgres::Postgres;
use coda_host_tests::said;
use coda_host_tests::{eventually, eventually_some};
use serde_json::{Value, json};

const ONE: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; h q[0];";
const BELL: &str =
    "OPENQASM 3.0; include \"stdgates.inc\"; qubit[2] q; h q[0]; h q[1]; cx q[0], q[1]; x q[0];";
const PATIENT: (&str, &str) = ("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "60");
const SHORT_LEASE: (&str, &str) = ("CODA_COORDINATOR_LEASE_SEC", "1");
/// How long the service may take while the database answers nothing.
const ANSWERED: std::time::Duration = std::time::Duration::from_secs(12);
const SLOW_PEER: [(&str, &str); 2] = [("CODA_PEER_MAX_EXECUTION_SEC", "1000"), ("CODA_PEER_ALLOW", "any")];

/// A peer that takes so long for each block.
fn slow(slots: usize, run_ms: u64) -> String {
    format!(
        "executor_factory: coda_faulty\nevolve: true\nslots: {slots}\nrun_ms: {run_ms}\nrecord: record.txt\n"
    )
}

/// Two coordinators on one database.
struct Shared {
    server: Postgres,
    net: Net,
    other: Node,
}

impl Shared {
    /// None where there is no PostgreSQL.
    async fn start(env: &[(&str, &str)]) -> Option<Shared> {
        let server = Postgres::start().await?;
        let url = server.url();
        let common = [
            ("CODA_COORDINATOR_STORE", url.as_str()),
            ("CODA_COORDINATOR_QUEUE_SEC", "0.2"),
            // Holds of a killed coordinator end by their ttl.
            ("CODA_COORDINATOR_TTL_SEC", "5"),
            PATIENT,
        ];
        let env: Vec<(&str, &str)> = common.iter().chain(env).copied().collect();
        let net = Net::start(&env).await;
        let other = net.another_coordinator("other", &env).await;
        Some(Shared { server, net, other })
    }

    /// Adds a peer that both coordinators may plan on.
    async fn add(&mut self, device: &str, env: &[(&str, &str)]) {
        let both = format!("{},{}", self.net.coordinator.address, self.other.address);
        let env: Vec<(&str, &str)> =
            [("CODA_PEER_BOOTSTRAP", both.as_str())].iter().chain(env).copied().collect();
        let peer = self.net.add(device, &env).await.peer_id.clone();
        self.other.knows(&peer).await;
    }

    /// Submits so many jobs to the first coordinator.
    async fn submit(&self, source: &str, jobs: usize) -> Vec<String> {
        let mut ids = Vec::new();
        while ids.len() < jobs {
            let some = (0..20.min(jobs - ids.len())).map(|_| self.net.coordinator.submit(source, 10));
            ids.extend(futures::future::join_all(some).await);
        }
        ids
    }

    /// Waits until all jobs are completed, asking this coordinator.
    async fn completed(&self, coordinator: &Node, ids: &[String]) {
        for id in ids {
            let job = coordinator.ended(id).await;
            assert_eq!(job["status"], "completed", "{id}: {}", job["error"]);
        }
    }

    /// The events of the log.
    async fn lines(&self) -> Vec<Value> {
        let said = self.other.cli(&["reservation", "replay", "--lines"]).await;
        assert_eq!(said.code, 0, "{}", said.text());
        said.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Every event is as it was written, every job has completed once, and no reservation or hold is left.
    async fn settled(&self, ids: &[String]) {
        let said = self.other.cli(&["reservation", "verify"]).await;
        assert!(said.code == 0 && said.out.contains("all as they were written"), "{}", said.text());
        let mut ends: BTreeMap<String, usize> = BTreeMap::new();
        for line in self.lines().await {
            let stream = line["stream"].as_str().expect("a stream").to_string();
            if let Some(id) = stream.strip_prefix("job/")
                && line["fact"]["kind"] == "completed"
            {
                *ends.entry(id.into()).or_default() += 1;
            }
        }
        let expected: BTreeMap<String, usize> = ids.iter().map(|id| (id.clone(), 1)).collect();
        assert_eq!(ends, expected);
        assert_eq!(self.server.sql("SELECT count(*) FROM coda_open").expect("SQL").trim(), "0");
    }

    /// The coordinators that made reservations.
    async fn runners(&self) -> BTreeSet<String> {
        let lines = self.lines().await;
        let requested = lines.iter().filter_map(|line| line["fact"]["requesting_peer_id"].as_str());
        requested.map(String::from).collect()
    }
}

async fn is_ready(node: &Node) -> bool {
    node.get("/ready").await.0 == 200
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_identity_twice_is_refused_until_its_lease_is_over() {
    let Some(server) = Postgres::start().await else { return };
    let url = server.url();
    let env = [("CODA_COORDINATOR_STORE", url.as_str()), ("CODA_COORDINATOR_LEASE_SEC", "2")];
    let mut net = Net::start(&env).await;
    let copy = net.coordinator.dir().parent().expect("a parent").join("copy");
    let (from, to) = (net.coordinator.dir().join("state/coordinator"), copy.join("state/coordinator"));
    std::fs::create_dir_all(&to).expect("a directory");
    std::fs::copy(from.join("peer-identity.key"), to.join("peer-identity.key")).expect("a copied identity");
    let mut of_copy = net.coordinator.env.clone();
    of_copy.insert("CODA_STATE_DIR".into(), copy.join("state").display().to_string());
    let refused = said(&["coordinator"], &of_copy, &copy).await;
    let names_it = refused.err.contains("another coordinator with the identity")
        && refused.err.contains(&net.coordinator.peer_id);
    assert!(refused.code == 1 && names_it, "{}", refused.text());
    assert!(is_up(&net.coordinator).await, "the first one goes on");

    // In its own directory a killed one is back at once; elsewhere it waits for the end of the lease.
    net.coordinator.kill();
    net.coordinator.restart().await;
    assert!(!net.coordinator.log().contains("waiting for its end"));
    net.coordinator.kill();
    let other = net.another_coordinator("copy", &env).await;
    assert_eq!(other.peer_id, net.coordinator.peer_id);
    assert!(other.log().contains("waiting for its end"), "{}", other.log());
}

async fn is_up(node: &Node) -> bool {
    node.get("/health").await.0 == 200
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_sqlite_file_has_one_coordinator() {
    let mut net = Net::start(&[]).await;
    let store = net.coordinator.dir().join("state/coordinator/reservations.db").display().to_string();
    let second = net.coordinator.dir().parent().expect("a parent").join("second");
    std::fs::create_dir_all(&second).expect("a directory");
    let mut env = net.coordinator.env.clone();
    env.insert("CODA_STATE_DIR".into(), second.join("state").display().to_string());
    env.insert("CODA_COORDINATOR_STORE".into(), store.clone());
    let refused = said(&["coordinator"], &env, &second).await;
    let names_it =
        refused.err.contains("another coordinator uses the event log") && refused.err.contains(&store);
    assert!(refused.code == 1 && names_it, "{}", refused.text());
    // The lock goes with its process.
    net.coordinator.kill();
    let other = net.another_coordinator("third", &[("CODA_COORDINATOR_STORE", &store)]).await;
    assert!(is_up(&other).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_one_coordinator_are_run_by_all() {
    let few = [("CODA_COORDINATOR_MAX_RUNNING", "2")];
    let Some(mut shared) = Shared::start(&few).await else { return };
    shared.add(SIMULATOR, &[]).await;
    let ids = shared.submit(BELL, 200).await;
    shared.completed(&shared.net.coordinator, &ids).await;
    shared.settled(&ids).await;
    let both = BTreeSet::from([shared.net.coordinator.peer_id.clone(), shared.other.peer_id.clone()]);
    assert_eq!(shared.runners().await, both);
    shared.net.all_free().await;
}

/// One that could only let them fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_without_peers_leaves_jobs_to_the_others() {
    let env = [("CODA_COORDINATOR_MAX_RUNNING", "1"), ("CODA_COORDINATOR_PEER_WAIT_SEC", "0.3")];
    let Some(mut shared) = Shared::start(&env).await else { return };
    // It is told of one coordinator.
    shared.net.add(&slow(1, 300), &SLOW_PEER).await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(shared.other.submit(ONE, 10).await);
    }
    shared.completed(&shared.other, &ids).await;
    assert_eq!(shared.runners().await, BTreeSet::from([shared.net.coordinator.peer_id.clone()]));
    // Alone, it says what is wrong.
    shared.net.coordinator.stop().await;
    let job = shared.other.run(ONE, 10).await;
    assert!(job["error"].as_str().unwrap().contains("no healthy peer offers hadamard"), "{job}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_jobs_of_a_killed_coordinator_are_taken_over() {
    let Some(mut shared) = Shared::start(&[SHORT_LEASE]).await else {
        return;
    };
    shared.add(&slow(4, 30), &SLOW_PEER).await;
    let ids = shared.submit(BELL, 60).await;
    eventually("some are done", async || shared.other.job(&ids[5]).await["status"] == "completed").await;
    shared.net.coordinator.kill();
    shared.completed(&shared.other, &ids).await;
    shared.settled(&ids).await;
    let taken = shared.other.log();
    assert!(taken.contains("its jobs are taken over"), "{taken}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_coordinator_records_nothing_about_jobs_that_were_taken_over() {
    let Some(mut shared) = Shared::start(&[SHORT_LEASE]).await else {
        return;
    };
    shared.add(&slow(4, 1_000), &SLOW_PEER).await;
    let ids = shared.submit(ONE, 3).await;
    let peer = &shared.net.peers[0];
    eventually("the peer executes", async || peer.get("/ready").await.1["peer"]["executions"] != 0).await;
    shared.net.coordinator.host.signal(libc::SIGSTOP);
    // The peer's answers come while it is paused.
    shared.completed(&shared.other, &ids).await;
    shared.net.coordinator.host.signal(libc::SIGCONT);
    eventually("it has found out", async || shared.net.coordinator.log().contains("has its lease again"))
        .await;
    for id in &ids {
        assert_eq!(shared.net.coordinator.ended(id).await["status"], "completed");
    }
    assert!(is_ready(&shared.net.coordinator).await);
    let more = shared.submit(ONE, 1).await;
    shared.completed(&shared.net.coordinator, &more).await;
    shared.settled(&[ids, more].concat()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_followed_waited_for_and_cancelled_through_another_coordinator() {
    let Some(mut shared) = Shared::start(&[]).await else { return };
    shared.add(&slow(1, 600_000), &SLOW_PEER).await;
    let id = shared.submit(ONE, 1).await.remove(0);
    let peer = &shared.net.peers[0];
    eventually("the peer executes", async || peer.get("/ready").await.1["peer"]["executions"] == 1).await;
    let path = format!("/api/v1/jobs/{id}");
    let (events, wait) = (format!("{path}/events"), format!("{path}?wait=30"));
    let streaming = shared.other.request("GET", &events, "", "");
    let waiting = shared.other.get(&wait);
    let cancelling = async {
        let listed = shared.other.get("/api/v1/jobs?status=running").await.1;
        assert_eq!(listed["jobs"][0]["job_id"], json!(id), "{listed}");
        shared.other.delete(&path).await
    };
    let (streamed, waited, cancelled) = tokio::join!(streaming, waiting, cancelling);
    assert_eq!(cancelled.0, 202, "{}", cancelled.1);
    assert_eq!(waited.1["status"], "cancelled", "{}", waited.1);
    let text = streamed.2.as_str().expect("a text").to_string();
    assert!(text.contains("event: block") && text.contains("event: end"), "{text}");
    // Its owner is told without asking: the peer's slot is free long before any limit of time.
    shared.net.all_free().await;
    eventually("its peers are released", async || {
        shared.server.sql("SELECT count(*) FROM coda_open").expect("SQL").trim() == "0"
    })
    .await;
    assert_eq!(shared.net.coordinator.job(&id).await["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_database_loses_no_job() {
    let Some(mut shared) = Shared::start(&[SHORT_LEASE]).await else {
        return;
    };
    shared.add(&slow(4, 30), &SLOW_PEER).await;
    let ids = shared.submit(BELL, 60).await;
    eventually("some are done", async || shared.other.job(&ids[5]).await["status"] == "completed").await;
    shared.server.stop();
    let reasons = eventually_some("it is not ready", async || {
        let (status, ready) = shared.other.get("/ready").await;
        let reasons = ready["reasons"].to_string();
        (status == 503 && reasons.contains("lease")).then_some(reasons)
    })
    .await;
    assert!(reasons.contains("database server"), "{reasons}");
    // An error is no absence.
    assert_eq!(shared.other.get("/api/v1/jobs/job-unknown").await.0, 503);
    shared.server.restart().await;
    eventually("both are ready", async || {
        is_ready(&shared.other).await && is_ready(&shared.net.coordinator).await
    })
    .await;
    shared.completed(&shared.other, &ids).await;
    shared.settled(&ids).await;
    shared.net.all_free().await;
}

/// A server that takes connections and answers nothing: the coordinators answer, say why they do nothing, and go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_hangs_loses_no_job() {
    let Some(mut shared) = Shared::start(&[SHORT_LEASE]).await else {
        return;
    };
    shared.add(&slow(4, 30), &SLOW_PEER).await;
    let ids = shared.submit(BELL, 60).await;
    eventually("some are done", async || shared.other.job(&ids[5]).await["status"] == "completed").await;
    shared.server.pause();
    for node in [&shared.other, &shared.net.coordinator] {
        let reasons = eventually_some("it is not ready, and says so", async || {
            let asked = std::time::Instant::now();
            let (status, ready) = node.get("/ready").await;
            assert!(asked.elapsed() < ANSWERED, "/ready took {:?}", asked.elapsed());
            let reasons = ready["reasons"].to_string();
            (status == 503 && ready["store"]["lease"] == false).then_some(reasons)
        })
        .await;
        assert!(reasons.contains("event log") || reasons.contains("database"), "{reasons}");
        let asked = std::time::Instant::now();
        assert_eq!(node.request("GET", "/metrics", "", "").await.0, 200);
        // An error is no absence.
        assert_eq!(node.get("/api/v1/jobs/job-unknown").await.0, 503);
        let refused = node.post("/api/v1/jobs", &json!({ "qasm": ONE })).await;
        assert_eq!(refused.0, 503, "{}", refused.1);
        assert!(asked.elapsed() < 3 * ANSWERED, "the service took {:?}", asked.elapsed());
    }
    shared.server.resume();
    eventually("both are ready", async || {
        is_ready(&shared.other).await && is_ready(&shared.net.coordinator).await
    })
    .await;
    shared.completed(&shared.other, &ids).await;
    shared.settled(&ids).await;
    shared.net.all_free().await;
}
