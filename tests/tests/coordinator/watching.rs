//! Waiting for jobs: long polls, event streams, and how many there may be.

use std::time::{Duration, Instant};

use coda_host::peers::wire::PeerStep;
use coda_host_tests::eventually;
use coda_host_tests::misbehaving_peers::{Behave, join};
use coda_host_tests::net::{Net, Node, SIMULATOR};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const ONE: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; h q[0];";
const BELL: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[2] q; bit[2] c; h q[0]; h q[1]; cx q[0],q[1]; c = measure q;";
const PATIENT: (&str, &str) = ("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "60");

/// One event of a stream: id, name, data.
fn events(text: &str) -> Vec<(i64, String, Value)> {
    let field = |block: &str, name: &str| {
        block.lines().find_map(|line| line.strip_prefix(name).map(|v| v.trim().to_string()))
    };
    let event = |block: &str| {
        let data = field(block, "data:")?;
        let id = field(block, "id:").expect("an id").parse().expect("a number");
        Some((id, field(block, "event:").expect("a name"), serde_json::from_str(&data).expect("JSON")))
    };
    text.split("\n\n").filter_map(event).collect()
}

/// Opens a request and leaves it open.
async fn open(node: &Node, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&node.http).await.expect("the service is there");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the request can be sent");
    stream
}

/// Reads until the text has come.
async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut answer = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&answer).contains(text) {
            let mut piece = [0; 4096];
            let n = stream.read(&mut piece).await.expect("the stream can be read");
            assert!(n > 0, "it has ended: {}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&piece[..n]);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reading).await.unwrap_or_else(|_| panic!("no {text}"));
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_waits_for_the_end_of_a_job_and_no_longer() {
    let mut net = Net::start(&[PATIENT, ("CODA_REQUEST_TIMEOUT_SEC", "1")]).await;
    // Nothing happens while no peer can run it, for longer than a request may take otherwise.
    let silent = join(&net.coordinator.address, Behave::Silent(PeerStep::Dispatch), &[]).await;
    net.known(&silent.peer_id).await;
    let id = net.coordinator.submit(ONE, 10).await;
    let path = format!("/api/v1/jobs/{id}");
    let start = Instant::now();
    let (status, job) = net.coordinator.get(&format!("{path}?wait=2&detail=summary")).await;
    assert_eq!((status, &job["status"]), (200, &json!("running")), "{job}");
    assert!(start.elapsed() >= Duration::from_secs(2), "{:?}", start.elapsed());
    assert!(job["plan"].is_null() && job["progress"]["blocks"] == 1, "{job}");

    // It ends at once with the job.
    let start = Instant::now();
    let long = format!("{path}?wait=30");
    let waiting = net.coordinator.get(&long);
    let cancelling = async {
        eventually("it waits", async || net.coordinator.metric("coda_coordinator_watchers").await == 1.0)
            .await;
        net.coordinator.delete(&path).await
    };
    let ((status, job), _) = tokio::join!(waiting, cancelling);
    assert_eq!((status, &job["status"]), (200, &json!("cancelled")));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    silent.network.stop().await;

    // A submission waits too, and is accepted whatever comes of it.
    net.add(SIMULATOR, &[]).await;
    let body = json!({ "qasm": BELL, "shots": 10 });
    let (status, accepted) = net.coordinator.post("/api/v1/jobs?wait=30", &body).await;
    assert_eq!(
        (status, &accepted["status"], &accepted["job"]["status"]),
        (202, &json!("completed"), &json!("completed"))
    );
    assert_eq!(accepted["job"]["progress"]["ratio"], 1.0, "{accepted}");
    let done = format!("/api/v1/jobs/{}", accepted["job_id"].as_str().expect("an id"));
    let start = Instant::now();
    let (_, plan) = net.coordinator.get(&format!("{done}?wait=60&detail=plan")).await;
    assert!(plan["result"].is_null() && plan["plan"]["stages"].is_array(), "{plan}");
    assert!(start.elapsed() < Duration::from_secs(20), "it has ended already");
    for (query, field) in
        [("wait=61", "wait"), ("wait=x", "wait"), ("detail=all", "detail"), ("surprise=1", "surprise")]
    {
        let (status, problem) = net.coordinator.get(&format!("{done}?{query}")).await;
        assert_eq!((status, &problem["errors"][0]["field"]), (422, &json!(field)), "{query}");
    }
    assert_eq!(net.coordinator.metric("coda_coordinator_watchers").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_and_a_client_that_goes_end_the_wait() {
    let net = Net::start(&[PATIENT]).await;
    let silent = join(&net.coordinator.address, Behave::Silent(PeerStep::Dispatch), &[]).await;
    net.known(&silent.peer_id).await;
    let id = net.coordinator.submit(ONE, 10).await;
    let watchers = async || net.coordinator.metric("coda_coordinator_watchers").await;
    let paths = [format!("/api/v1/jobs/{id}?wait=60"), format!("/api/v1/jobs/{id}/events")];
    for path in &paths {
        let stream = open(&net.coordinator, path).await;
        eventually("it waits", async || watchers().await == 1.0).await;
        drop(stream);
        eventually("nothing of it is left", async || watchers().await == 0.0).await;
    }
    let mut poll = open(&net.coordinator, &paths[0]).await;
    let mut events = open(&net.coordinator, &paths[1]).await;
    eventually("both wait", async || watchers().await == 2.0).await;
    net.coordinator.host.signal(libc::SIGTERM);
    let answer = read_until(&mut poll, "\"status\":\"running\"").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mut rest = String::new();
    tokio::time::timeout(Duration::from_secs(20), events.read_to_string(&mut rest))
        .await
        .expect("the stream ends")
        .expect("text");
    assert!(rest.ends_with("0\r\n\r\n"), "in order: {rest}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_everything_once_in_order_and_go_on_where_a_client_was() {
    let mut net =
        Net::start(&[("CODA_COORDINATOR_KEEP_ALIVE_SEC", "0.2"), ("CODA_COORDINATOR_PEER_WAIT_SEC", "60")])
            .await;
    // Without a peer it waits, and the stream shows that it lives.
    let id = net.coordinator.submit(BELL, 10).await;
    let path = format!("/api/v1/jobs/{id}/events");
    let mut stream = open(&net.coordinator, &path).await;
    let head = read_until(&mut stream, ": keep-alive").await.to_ascii_lowercase();
    assert!(
        head.contains("content-type: text/event-stream") && head.contains("cache-control: no-cache"),
        "{head}"
    );
    net.add(SIMULATOR, &[]).await;
    let live = read_until(&mut stream, "event: end").await;
    net.coordinator.ended(&id).await;

    let (_, _, all) = net.coordinator.request("GET", &path, "", "").await;
    let all = events(all.as_str().expect("text"));
    let ids: Vec<i64> = all.iter().map(|(id, ..)| *id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b) && ids[0] == 1, "{ids:?}");
    let (_, name, first) = &all[0];
    assert_eq!((name.as_str(), &first["status"]), ("status", &json!("queued")));
    let (last, name, end) = all.last().expect("an end");
    assert_eq!(
        (name.as_str(), &end["status"], &end["progress"]["ratio"]),
        ("end", &json!("completed"), &json!(1.0))
    );
    let completed =
        all.iter().filter(|(_, name, data)| name == "block" && data["block"]["state"] == "completed");
    let job = net.coordinator.job(&id).await;
    assert_eq!(completed.count(), job["blocks"].as_array().expect("blocks").len());
    for (id, ..) in all.iter().filter(|(id, ..)| *id > 1) {
        assert_eq!(live.matches(&format!("id: {id}\n")).count(), 1, "{id} was told once: {live}");
    }

    // A broken connection goes on behind what it knows, also after a restart.
    net.coordinator.kill();
    net.coordinator.restart().await;
    let middle = ids[ids.len() / 2];
    let header = format!("Last-Event-ID: {middle}\r\n");
    let (status, _, rest) = net.coordinator.request("GET", &path, &header, "").await;
    let rest = events(rest.as_str().expect("text"));
    assert_eq!(status, 200);
    assert_eq!(rest, all[ids.len() / 2 + 1..], "the same events with the same ids");
    let header = format!("Last-Event-ID: {last}\r\n");
    assert_eq!(net.coordinator.request("GET", &path, &header, "").await.0, 204);
    assert_eq!(net.coordinator.request("GET", &path, "Last-Event-ID: x\r\n", "").await.0, 400);
    assert_eq!(net.coordinator.get("/api/v1/jobs/job-unknown/events").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_event_streams_leaves_the_service_to_others() {
    const CROWD: usize = 1000;
    let net = Net::start(&[PATIENT]).await;
    let silent = join(&net.coordinator.address, Behave::Silent(PeerStep::Dispatch), &[]).await;
    net.known(&silent.peer_id).await;
    let id = net.coordinator.submit(ONE, 10).await;
    let path = format!("/api/v1/jobs/{id}/events");
    let mut streams = Vec::new();
    for _ in 0..CROWD {
        streams.push(open(&net.coordinator, &path).await);
    }
    let start = Instant::now();
    assert_eq!(net.coordinator.get("/health").await.0, 200);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(net.coordinator.metric("coda_coordinator_watchers").await, 128.0);
    // The first ones are served, the last ones are told when to come back.
    read_until(&mut streams[0], "event: status").await;
    let refused =
        read_until(&mut streams[CROWD - 1], "requests wait for jobs already").await.to_ascii_lowercase();
    assert!(refused.starts_with("http/1.1 503") && refused.contains("retry-after: 2"), "{refused}");
    let (status, job) = net.coordinator.get(&format!("/api/v1/jobs/{id}?wait=1")).await;
    assert_eq!(status, 503, "{job}");
    drop(streams);
    eventually("all are gone", async || net.coordinator.metric("coda_coordinator_watchers").await == 0.0)
        .await;
}
