//! A page of another site.

use coda_host_tests::browser::Browser;
use coda_host_tests::{Plan, TestHost};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// Serves an empty page as another site, and returns its origin.
async fn another_site() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its number").port();
    tokio::spawn(async move {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\nConnection: close\r\n\r\n<!doctype html>";
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            if stream.read(&mut request).await.is_ok() {
                stream.write_all(answer).await.ok();
            }
        }
    });
    format!("http://other.example:{port}")
}

/// A host with the sandbox on its page, which takes jobs over HTTP.
async fn sandbox() -> TestHost {
    let mut host = Plan::simulator("num_qubits: 20").qubits(20).prepare().await;
    host.set("CODA_SANDBOX_URL", host.cloud.url().to_string());
    host.start().await;
    host
}

/// What the page gets for a request with this body: `status 202`, `opaque` or `refused`.
async fn post(browser: &Browser, url: &str, options: &str) -> String {
    let script = format!(
        "return fetch('{url}', {{ method: 'POST', {options}, body: '{{\"circuit\":\"bell\",\"shots\":10}}' }})
           .then((a) => a.type === 'opaque' ? 'opaque' : 'status ' + a.status, () => 'refused')"
    );
    browser.script(&script).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_another_site_can_not_send_a_job_and_does_not_read_the_page() {
    let Some(browser) = Browser::start().await else { return };
    let (host, site) = (sandbox().await, another_site().await);
    let url = format!("{}/sandbox/jobs", host.origin());
    browser.open(&site).await;
    let json = "headers: { 'Content-Type': 'application/json' }";
    assert_eq!(post(&browser, &url, json).await, "refused", "it must be asked for, and is not granted");
    for content_type in ["text/plain", "application/x-www-form-urlencoded"] {
        let options = format!("mode: 'no-cors', headers: {{ 'Content-Type': '{content_type}' }}");
        assert_eq!(post(&browser, &url, &options).await, "opaque", "it is sent, and refused by the host");
    }
    let read = format!("return fetch('{}/').then(() => 'read', () => 'refused')", host.origin());
    assert_eq!(browser.script::<String>(&read).await, "refused");
    // Neither in a frame.
    let framed = format!(
        "const frame = document.createElement('iframe'); frame.src = '{}/'; document.body.append(frame);
         return new Promise((done) => frame.onload = () => {{
           try {{ done(frame.contentDocument === null ? 'closed' : 'open') }} catch {{ done('closed') }} }})",
        host.origin()
    );
    assert_eq!(browser.script::<String>(&framed).await, "closed");
    assert!(browser.console().await.iter().any(|said| said.contains("frame-ancestors")), "it is not framed");

    // The page's own form works, so the request was a good one; and it is the only one that has come.
    browser.open(&host.origin()).await;
    assert_eq!(post(&browser, "/sandbox/jobs", json).await, "status 202");
    browser.sees("#recent tbody", "completed").await;
    let jobs: Value = browser.script("return document.querySelectorAll('#recent tbody tr').length").await;
    assert_eq!(jobs, 1);
}
