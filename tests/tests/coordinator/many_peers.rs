//! Many jobs on many peers, of which one is killed every second and comes back. `CODA_TEST_PEERS` and
//! `CODA_TEST_PEER_JOBS` make it larger.

use std::time::Duration;

use coda_host_tests::net::{Net, Node, fidelity, state_of};
use coda_host_tests::postgres::Postgres;
use futures::StreamExt as _;
use serde_json::Value;
use tokio::sync::oneshot;

/// Jobs that are under way at once.
const AT_ONCE: usize = 40;
const TWO_SLOTS: &str = "executor_factory: coda_simulator\nnum_qubits: 12\nslots: 2\n";

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Entangled, with a run of gates on one component at its end: blocks of several stages and sizes.
fn source(job: usize) -> (String, Vec<[f64; 2]>) {
    let qubits = 2 + job % 5;
    let mut text = format!("OPENQASM 3.0; include \"stdgates.inc\"; qubit[{qubits}] q; h q[0];");
    (1..qubits).for_each(|n| text += &format!("cx q[{}], q[{n}];", n - 1));
    (0..2 * (job % 7)).for_each(|_| text += "h q[0];");
    let half = std::f64::consts::FRAC_1_SQRT_2;
    let mut state = vec![[0.0, 0.0]; 1 << qubits];
    state[0] = [half, 0.0];
    state[(1 << qubits) - 1] = [half, 0.0];
    (text, state)
}

async fn submit(coordinator: &Node, number: usize) -> (usize, String) {
    (number, coordinator.submit(&source(number).0, 10).await)
}

/// Waits for a job's end; what is wrong with it, if anything.
async fn wrong(coordinator: &Node, (number, id): (usize, String)) -> Option<String> {
    let (_, expected) = source(number);
    // A queue of many jobs may take longer than a single wait.
    let mut job = Value::Null;
    for _ in 0..20 {
        (_, job) = coordinator.get(&format!("/api/v1/jobs/{id}?wait=10")).await;
        if matches!(job["status"].as_str(), Some("completed" | "failed" | "cancelled")) {
            break;
        }
    }
    if job["status"] != "completed" {
        return Some(format!("{id} is {}: {}", job["status"], job["error"]));
    }
    let found = fidelity(&state_of(&job), &expected);
    ((found - 1.0).abs() > 1e-9).then(|| format!("{id} has a wrong state: fidelity {found}"))
}

/// Kills one peer every second and starts it again, until it is told to stop; the peers, and how many kills there were.
async fn storm(mut peers: Vec<Node>, mut stopped: oneshot::Receiver<()>) -> (Vec<Node>, usize) {
    let mut kills = 0;
    let mut every = tokio::time::interval(Duration::from_secs(1));
    every.tick().await;
    loop {
        tokio::select! {
            _ = every.tick() => {}
            _ = &mut stopped => return (peers, kills),
        }
        let count = peers.len();
        let victim = &mut peers[(kills * 7) % count];
        victim.kill();
        victim.restart().await;
        kills += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_are_killed_and_come_back_cost_no_job() {
    let (peers, jobs) = (number("CODA_TEST_PEERS", 8), number("CODA_TEST_PEER_JOBS", 200));
    let mut net = Net::start(&[
        ("CODA_COORDINATOR_MAX_RUNNING", "32"),
        ("CODA_COORDINATOR_SLOT_WAIT_SEC", "60"),
        ("CODA_LOG", "info"),
    ])
    .await;
    for _ in 0..peers {
        net.add(TWO_SLOTS, &[("CODA_PEER_ALLOW", "any"), ("CODA_LOG", "info")]).await;
    }
    let (stop, stopped) = oneshot::channel();
    let storm = storm(std::mem::take(&mut net.peers), stopped);
    let coordinator = &net.coordinator;
    let running = async {
        let run = async |n| wrong(coordinator, submit(coordinator, n).await).await;
        let all = futures::stream::iter(0..jobs).map(run).buffer_unordered(AT_ONCE);
        let wrong: Vec<String> = all.filter_map(async |ended| ended).collect().await;
        stop.send(()).expect("the storm goes on");
        wrong
    };
    let ((members, kills), wrong) = tokio::join!(storm, running);
    println!("{jobs} jobs on {peers} peers, {kills} kills: {} failed or wrong", wrong.len());
    assert!(wrong.is_empty(), "{} of {jobs}, {kills} kills: {wrong:#?}", wrong.len());
    assert!(kills > 0, "nothing was killed");
    net.peers = members;
    net.all_free().await;
    let said = net.coordinator.cli(&["reservation", "verify"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
}

/// Two coordinators on one PostgreSQL log, of which one is killed in the middle of its jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_is_killed_besides_costs_no_job_either() {
    let (peers, jobs) = (number("CODA_TEST_PEERS", 6), number("CODA_TEST_PEER_JOBS", 120));
    let Some(server) = Postgres::start().await else { return };
    let url = server.url();
    let env = [
        ("CODA_COORDINATOR_STORE", url.as_str()),
        ("CODA_COORDINATOR_LEASE_SEC", "2"),
        ("CODA_COORDINATOR_TTL_SEC", "5"),
        ("CODA_COORDINATOR_MAX_RUNNING", "16"),
        ("CODA_COORDINATOR_MAX_WAITING", "2000"),
        ("CODA_COORDINATOR_SLOT_WAIT_SEC", "60"),
        ("CODA_LOG", "info"),
    ];
    let mut net = Net::start(&env).await;
    let other = net.another_coordinator("other", &env).await;
    let both = format!("{},{}", net.coordinator.address, other.address);
    for _ in 0..peers {
        let env = [("CODA_PEER_BOOTSTRAP", both.as_str()), ("CODA_PEER_ALLOW", "any"), ("CODA_LOG", "info")];
        net.add(TWO_SLOTS, &env).await;
    }
    let (stop, stopped) = oneshot::channel();
    let storm = storm(std::mem::take(&mut net.peers), stopped);
    let of_the_first = jobs / 3;
    let accepted = futures::stream::iter(0..of_the_first).map(|n| submit(&net.coordinator, n));
    let accepted: Vec<(usize, String)> = accepted.buffer_unordered(AT_ONCE).collect().await;
    net.coordinator.kill();
    let running = async {
        let run = async |n| wrong(&other, submit(&other, n).await).await;
        let later = futures::stream::iter(of_the_first..jobs).map(run).buffer_unordered(AT_ONCE);
        let left = futures::stream::iter(accepted).map(|job| wrong(&other, job)).buffer_unordered(AT_ONCE);
        let all = futures::stream::select(later, left);
        let wrong: Vec<String> = all.filter_map(async |ended| ended).collect().await;
        stop.send(()).expect("the storm goes on");
        wrong
    };
    let ((members, kills), wrong) = tokio::join!(storm, running);
    println!(
        "{jobs} jobs, {of_the_first} of a killed coordinator, {peers} peers, {kills} kills: {} failed or wrong",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{} of {jobs}, {kills} kills: {wrong:#?}", wrong.len());
    net.peers = members;
    net.all_free().await;
    let said = other.cli(&["reservation", "verify"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
    assert_eq!(
        server.sql("SELECT count(*) FROM coda_open").expect("SQL").trim(),
        "0",
        "every job has its end"
    );
}
