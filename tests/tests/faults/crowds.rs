//! Hundreds of silent connections, to the local service and to the peer port: everybody else is served as before.

use std::time::{Duration, Instant};

use coda_host_tests::misbehaving_peers::{Behave, join};
use coda_host_tests::{Plan, TestHost, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// More than any limit on connections.
const CROWD: usize = 400;
/// How long an answer may take on a busy machine. A time limit of the service is far longer.
const SOON: Duration = Duration::from_secs(3);

async fn crowd(port: u16, first_bytes: &[u8]) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it is accepted");
        // Refused when the connection was closed in favour of a later one.
        stream.write_all(first_bytes).await.ok();
        crowd.push(stream);
    }
    crowd
}

async fn served_soon(host: &TestHost, what: &str) {
    let start = Instant::now();
    for path in ["/health", "/ready", "/metrics"] {
        let (status, body) = host.get(path).await;
        assert_eq!(status, 200, "{what}: {path}: {body}");
    }
    let said = host.cli(&["status"]).await;
    assert_eq!(said.code, 0, "{what}: {said:?}");
    assert!(start.elapsed() < SOON, "{what}: {:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_and_slow_clients_do_not_shut_out_health_and_status() {
    // So long that no one is served by the end of a time limit.
    let host = Plan::simulator("").env("CODA_REQUEST_TIMEOUT_SEC", "600").start().await;
    let port = host.port();
    for (what, first_bytes) in [
        ("silent", &b""[..]),
        ("in the middle of a header", b"GET /ready HTTP/1.1\r\nHost: loc"),
        ("in the middle of a body", b"POST /ready HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"),
    ] {
        let crowd = crowd(port, first_bytes).await;
        served_soon(&host, what).await;
        drop(crowd);
    }
    let log = host.log();
    assert_eq!(
        log.matches("too many connections to the local service").count(),
        1,
        "one warning per address"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_its_answer_is_cut_off() {
    let host = Plan::simulator("").env("CODA_REQUEST_TIMEOUT_SEC", "0.3").start().await;
    let before = host.open_files();
    let mut stream = TcpStream::connect(("127.0.0.1", host.port())).await.unwrap();
    // More than the buffers between the two take; the rest is not read.
    stream.write_all("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(5000).as_bytes()).await.ok();
    // A first byte, so that it is served.
    stream.read_u8().await.expect("it is served");
    eventually("the service gives the connection up", async || host.open_files() <= before).await;
    drop(stream);
    served_soon(&host, "afterwards").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_strangers_do_not_shut_out_a_peer() {
    let host = Plan::simulator("").lends().start().await;
    let (address, _) = host.peer().await;
    let port = address.split('/').nth(4).and_then(|port| port.parse().ok()).expect("a port");
    for (what, first_bytes) in [("silent", &b""[..]), ("half a greeting", b"\x13/multistream/1.")] {
        let crowd = crowd(port, first_bytes).await;
        let start = Instant::now();
        let peer = join(&address, Behave::Idle, &[]).await.network;
        let view = peer.view();
        eventually("the peer is connected", async || view.borrow().connected > 0).await;
        assert!(start.elapsed() < SOON, "{what}: {:?}", start.elapsed());
        peer.stop().await;
        drop(crowd);
    }
    let log = host.log();
    assert_eq!(
        log.matches("too many connections that don't become one").count(),
        1,
        "one warning per address"
    );
    assert!(log.matches(" WARN ").count() < 20, "the log stays small");
    served_soon(&host, "afterwards").await;
}
