//! The coordinator's pages as the server sends them.

use std::time::Duration;

use coda_host_tests::net::{Net, Node, SIMULATOR};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const BELL: &str =
    "OPENQASM 3.0; include \"stdgates.inc\"; qubit[2] q; bit[2] c; h q[0]; cx q[0],q[1]; c = measure q;";

/// The head and the text of a page.
async fn page(node: &Node, path: &str, headers: &str) -> (u16, String) {
    let (status, text) = fetch(node, path, headers, None).await;
    (status, text)
}

/// Reads an answer to its end, or until it has a text.
async fn fetch(node: &Node, path: &str, headers: &str, until: Option<&str>) -> (u16, String) {
    let mut stream = TcpStream::connect(&node.http).await.expect("the service is there");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.expect("the request can be sent");
    let mut answer = Vec::new();
    let reading = async {
        let mut piece = [0; 8192];
        loop {
            let n = stream.read(&mut piece).await.expect("the answer can be read");
            answer.extend_from_slice(&piece[..n]);
            let found = until.is_some_and(|text| String::from_utf8_lossy(&answer).contains(text));
            if n == 0 || found {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reading).await.expect("an answer in time");
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
    (status, text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_and_peers_are_on_the_page_and_a_job_has_its_plan_and_counts() {
    let mut net = Net::start(&[("CODA_PAGE_INTERVAL_SEC", "0.05")]).await;
    net.add(SIMULATOR, &[]).await;
    let c = &net.coordinator;
    let job = c.run(BELL, 100).await;
    let id = job["job_id"].as_str().expect("an id");
    let (status, overview) = page(c, "/", "").await;
    assert_eq!(status, 200);
    assert!(
        overview.contains("Ready, with 1 peer") && overview.contains(&format!("/jobs/{id}")),
        "{overview}"
    );
    assert!(overview.contains("content-security-policy: default-src 'none'"), "{overview}");
    let (_, failed) = page(c, "/?status=failed", "").await;
    assert!(!failed.contains(id) && failed.contains("No such job."), "{failed}");
    assert_eq!(page(c, "/?status=done", "").await.0, 422);

    let (status, shown) = page(c, &format!("/jobs/{id}"), "").await;
    assert_eq!(status, 200);
    for text in ["Counts", "Blocks over time", "block completed", "Reservations", "committed"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    assert!(!shown.contains("data-events"), "the page of an ended job holds no connection: {shown}");
    assert_eq!(page(c, "/jobs/unknown", "").await.0, 404);

    let (_, events) = fetch(c, "/events", "", Some("id=\"peers\"")).await;
    assert!(events.contains("event: section") && events.contains("text/event-stream"), "{events}");
    // Events of one job end up with the same content.
    let (_, events) = fetch(c, &format!("/jobs/{id}/events"), "", Some("id=\"reservations\"")).await;
    assert!(events.contains("committed"), "{events}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_token_the_content_comes_only_with_it() {
    let net = Net::start(&[
        ("CODA_API_TOKEN", "a-token-of-some-length"),
        ("CODA_PAGE_INTERVAL_SEC", "0.05"),
        ("CODA_COORDINATOR_PEER_WAIT_SEC", "0.01"),
    ])
    .await;
    let c = &net.coordinator;
    let bearer = "Authorization: Bearer a-token-of-some-length\r\n";
    let (status, _, job) = c
        .request(
            "POST",
            "/api/v1/jobs?wait=20",
            &format!("{bearer}Content-Type: application/json\r\n"),
            &json!({ "qasm": BELL }).to_string(),
        )
        .await;
    assert_eq!(status, 202, "{job}");
    let id = job["job_id"].as_str().expect("an id");
    for path in ["/".to_string(), format!("/jobs/{id}"), "/jobs/unknown".into()] {
        let (status, text) = page(c, &path, "").await;
        assert!(status == 200 && text.contains("id=\"sign-in\""), "{path}: {text}");
        assert!(!text.contains("no healthy peer") && !text.contains("id=\"peers\""), "{path}: {text}");
    }
    for path in ["/events".to_string(), format!("/jobs/{id}/events")] {
        assert_eq!(page(c, &path, "").await.0, 401, "{path}");
        let (status, text) = fetch(c, &path, bearer, Some("event: section")).await;
        assert!(status == 200, "{path}: {text}");
    }
    // A name that was bound to loopback.
    let mut stream = TcpStream::connect(&c.http).await.expect("the service is there");
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        .await
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}
