//! Jobs that are cancelled: here, at their peers, and after a restart.

use std::time::Duration;

use coda_host::peers::wire::PeerStep;
use coda_host_tests::misbehaving_peers::{Behave, join};
use coda_host_tests::net::Net;
use coda_host_tests::{Exit, HostProcess, eventually, eventually_some};
use serde_json::{Value, json};

const ONE: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; h q[0];";
/// A peer that is not done within any test.
const SLOW: &str =
    "executor_factory: coda_faulty\nevolve: true\nslots: 1\nrun_ms: 600000\nrecord: record.txt\n";
const SLOW_PEER: [(&str, &str); 2] = [("CODA_PEER_MAX_EXECUTION_SEC", "1000"), ("CODA_PEER_ALLOW", "any")];
const PATIENT: (&str, &str) = ("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "60");

/// A coordinator that is found again at its address.
async fn network(env: &[(&str, &str)]) -> Net {
    let mut net = Net::start(env).await;
    let port = net.coordinator.address.split('/').nth(4).expect("a port").to_string();
    net.coordinator.env.insert("CODA_COORDINATOR_LISTEN".into(), format!("/ip4/127.0.0.1/tcp/{port}"));
    net
}

/// Waits until the peer executes.
async fn executes(net: &Net) {
    eventually("the peer executes", async || net.peers[0].get("/ready").await.1["peer"]["executions"] == 1)
        .await;
}

fn path(id: &str) -> String {
    format!("/api/v1/jobs/{id}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_job_is_cancelled_here_and_at_its_peer_for_good() {
    let mut net = network(&[PATIENT]).await;
    net.add(SLOW, &SLOW_PEER).await;
    let id = net.coordinator.submit(ONE, 10).await;
    executes(&net).await;

    // Two at once: one is the first.
    let job = path(&id);
    let (one, other) = tokio::join!(net.coordinator.delete(&job), net.coordinator.delete(&job));
    let mut statuses = [one.0, other.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 202], "{} {}", one.1, other.1);
    assert_eq!((&one.1["status"], &one.1["job_id"]), (&json!("cancelled"), &json!(id)));

    net.all_free().await;
    eventually("the peer has recorded the end of its hold", async || {
        net.peers[0].cli(&["reservation", "replay", "--peer", "--lines"]).await.out.contains("hold_released")
    })
    .await;
    let lines = net.coordinator.cli(&["reservation", "replay", "--lines"]).await.out;
    let ended =
        lines.lines().find(|line| line.contains("\"reservation/") && line.contains(r#""kind":"failed""#));
    assert!(ended.is_some(), "{lines}");
    let job = net.coordinator.job(&id).await;
    assert_eq!((&job["status"], &job["error"]), (&json!("cancelled"), &json!("cancelled by a request")));
    assert_eq!(job["blocks"][0]["state"], "abandoned", "{job}");

    net.coordinator.kill();
    net.coordinator.restart().await;
    assert_eq!(net.coordinator.job(&id).await["status"], "cancelled", "a restart does not run it");
    assert_eq!(net.coordinator.delete(&path(&id)).await.0, 200);
    let said = net.coordinator.cli(&["reservation", "verify"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_job_is_cancelled_and_an_ended_one_is_not() {
    let mut net = network(&[PATIENT, ("CODA_COORDINATOR_MAX_RUNNING", "1")]).await;
    let c = &net.coordinator;
    assert_eq!(c.delete("/api/v1/jobs/job-unknown").await.0, 404);
    let mut silent = join(&c.address, Behave::Silent(PeerStep::Dispatch), &[]).await;
    net.known(&silent.peer_id).await;
    let running = net.coordinator.submit(ONE, 10).await;
    let waiting = net.coordinator.submit(ONE, 10).await;
    eventually("the first one runs", async || net.coordinator.job(&running).await["status"] == "running")
        .await;
    let (status, summary) = net.coordinator.delete(&format!("{}?reason=not%20needed", path(&waiting))).await;
    assert_eq!((status, &summary["error"]), (202, &json!("not needed")), "{summary}");
    let job = net.coordinator.job(&waiting).await;
    assert_eq!((&job["status"], &job["blocks"]), (&json!("cancelled"), &json!([])));

    // Its place is free again, and so is that of the one that runs once it is cancelled.
    eventually_some("the dispatch is under way", async || {
        silent.heard.try_recv().ok().filter(|h| h.step == PeerStep::Dispatch)
    })
    .await;
    assert_eq!(net.coordinator.delete(&path(&running)).await.0, 202);
    let heard = eventually_some("the peer is told", async || {
        silent.heard.try_recv().ok().filter(|h| h.step == PeerStep::Cancel)
    })
    .await;
    assert_eq!(heard.from, net.coordinator.peer_id);
    silent.network.stop().await;
    net.add(coda_host_tests::net::SIMULATOR, &[]).await;
    let done = net.coordinator.run(ONE, 10).await;
    assert_eq!(done["status"], "completed", "{}", done["error"]);
    let id = done["job_id"].as_str().expect("an id");
    let (status, problem) = net.coordinator.delete(&path(id)).await;
    assert_eq!(status, 409, "{problem}");
    assert!(problem["detail"].as_str().is_some_and(|d| d.contains("completed already")), "{problem}");
    let long = "x".repeat(301);
    let (status, problem) = net.coordinator.delete(&format!("{}?reason={long}", path(id))).await;
    assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!("reason")));
    net.all_free().await;
    assert_eq!(net.coordinator.metric("coda_coordinator_jobs_ended_total{outcome=\"cancelled\"}").await, 2.0);
}

/// The cancel is recorded, and the coordinator dies before the peer could hear of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_that_a_kill_cuts_off_is_finished_by_the_next_start() {
    let mut net = network(&[PATIENT]).await;
    net.add(SLOW, &SLOW_PEER).await;
    let id = net.coordinator.submit(ONE, 10).await;
    executes(&net).await;
    net.peers[0].host.signal(libc::SIGSTOP);
    assert_eq!(net.coordinator.delete(&path(&id)).await.0, 202);
    net.coordinator.kill();
    net.coordinator.restart().await;
    assert!(net.coordinator.log().contains("in the middle of jobs"), "{}", net.coordinator.log());
    assert_eq!(net.coordinator.job(&id).await["status"], "cancelled");
    net.peers[0].host.signal(libc::SIGCONT);
    net.all_free().await;
    eventually("it is recorded that the peer was told", async || {
        let lines = net.coordinator.cli(&["reservation", "replay", "--lines"]).await.out;
        lines.contains(r#""kind":"released""#)
    })
    .await;
    net.coordinator.kill();
    let from = net.coordinator.log().len();
    net.coordinator.restart().await;
    assert!(!net.coordinator.log()[from..].contains("in the middle of jobs"), "nothing is left to do");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_command_cancels_its_job() {
    let mut net = network(&[PATIENT]).await;
    net.add(SLOW, &SLOW_PEER).await;
    let c = &net.coordinator;
    std::fs::write(c.dir().join("one.qasm"), ONE).expect("a file");
    let url = format!("http://{}", c.http);
    let output = c.dir().join("coordinate.log");
    let mut command =
        HostProcess::spawn(&["coordinate", "one.qasm", "--url", &url], &c.env, c.dir(), &output);
    executes(&net).await;
    command.signal(libc::SIGINT);
    let ended = command.wait_exit().await;
    let text = std::fs::read_to_string(&output).expect("its output");
    assert_eq!(ended, Exit::Code(1), "{text}");
    assert!(text.contains("cancelled: coda-host coordinate was interrupted"), "{text}");
    let (_, list) = c.get("/api/v1/jobs?status=cancelled").await;
    assert_eq!(list["jobs"].as_array().map(Vec::len), Some(1), "{list}");
    net.all_free().await;
}

/// What was accepted runs, and what was cancelled is cancelled, also when the client goes before the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_leaves_nothing_half_done() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    const CLIENTS: u64 = 40;
    let mut net = network(&[PATIENT]).await;
    net.add(coda_host_tests::net::SIMULATOR, &[]).await;
    let body = json!({ "qasm": ONE, "shots": 1 }).to_string();
    // Each goes at another moment.
    for n in 0..CLIENTS {
        let mut stream = tokio::net::TcpStream::connect(&net.coordinator.http).await.expect("a connection");
        let request = format!(
            "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.expect("the request can be sent");
        let patience = std::time::Duration::from_micros(200 * n);
        tokio::time::timeout(patience, stream.read_u8()).await.ok();
    }
    net.coordinator.submit(ONE, 1).await;
    let recorded = async || -> Vec<Value> {
        net.coordinator.get("/api/v1/jobs?limit=200").await.1["jobs"].as_array().cloned().unwrap_or_default()
    };
    eventually("what was recorded has run", async || {
        let jobs = recorded().await;
        !jobs.is_empty() && jobs.iter().all(|job| job["status"] == "completed")
    })
    .await;
    for status in ["queued", "running"] {
        let name = format!("coda_coordinator_jobs{{status=\"{status}\"}}");
        eventually("nothing is left", async || net.coordinator.metric(&name).await == 0.0).await;
    }
}

/// It takes longer than what the peers did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_the_simulation_of_a_verified_job() {
    let mut net = network(&[PATIENT]).await;
    net.add("executor_factory: coda_simulator\nnum_qubits: 17\n", &SLOW_PEER).await;
    let source = "OPENQASM 3; qubit[17] q; h q[0]; for int i in [0:15] cx q[i], q[i+1];
        for int i in [0:6599] { ry(0.1) q[0]; cx q[0], q[1]; rx(0.2) q[1]; }";
    let id = net.coordinator.submit_with(&json!({ "qasm": source, "verify": true })).await;
    eventually("the peer is done", async || {
        let job = net.coordinator.get(&format!("{}?detail=summary", path(&id))).await.1;
        assert_eq!(job["error"], json!(null));
        job["progress"]["ratio"] == 1.0
    })
    .await;
    assert_eq!(net.coordinator.delete(&path(&id)).await.0, 202);
    let process = net.coordinator.host.pid();
    let begin = ticks(process);
    let end = eventually_some("the coordinator has nothing to do", async || {
        let before = ticks(process);
        tokio::time::sleep(Duration::from_millis(300)).await;
        (ticks(process) - before < 10).then_some(before)
    })
    .await;
    assert!(end - begin < 100, "it worked on for {} hundredths of a second", end - begin);
}

/// The processor time of a process, in hundredths of a second.
fn ticks(process: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("the process");
    let numbers: Vec<u64> =
        stat.split_whitespace().skip(13).take(2).map(|n| n.parse().expect("a number")).collect();
    numbers.iter().sum()
}
