//! The host's page as the server sends it.

use std::os::unix::fs::MetadataExt as _;

use coda_host::dev::cloud::Answer;
use coda_host_tests::bell;
use coda_host_tests::{Plan, TestHost};
use coda_host_tests::{eventually, eventually_some};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The text of the page's section with this id.
async fn section(host: &TestHost, id: &str) -> String {
    let (status, page) = host.get("/").await;
    assert_eq!(status, 200);
    let from =
        page.find(&format!("<section id=\"{id}\"")).unwrap_or_else(|| panic!("no section {id}: {page}"));
    let length = page[from..].find("</section>").expect("its end");
    page[from..from + length].to_string()
}

fn plan(device: &str) -> Plan {
    Plan::simulator(device).env("CODA_PAGE_INTERVAL_SEC", "0.02").env("CODA_PAGE_SAMPLE_SEC", "0.05")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_followed_on_the_page_from_its_run_to_its_delivery() {
    let host = plan("num_qubits: 5\nexecution_time_ms: 1500").start().await;
    assert!(section(&host, "state").await.contains("Ready, waiting for jobs"));
    host.submit("first", &bell(), 100).await;
    host.submit("second", &bell(), 200).await;
    eventually("the first one runs and the second one waits", async || {
        let now = section(&host, "now").await;
        let (running, waiting) = now.split_once("Waiting").expect("both lists");
        running.contains("/jobs/first") && waiting.contains("/jobs/second") && running.contains("2 qubits")
    })
    .await;
    assert!(section(&host, "state").await.contains("Running 1 job"));
    let device = section(&host, "device").await;
    assert_eq!(device.matches("qubit busy").count(), 2, "the qubits of the running job: {device}");
    let (_, page) = host.get("/jobs/first").await;
    assert!(page.contains("data-poll") && page.contains("running"), "{page}");
    host.delivered("first").await;
    host.delivered("second").await;
    eventually("both are among the last jobs", async || {
        let recent = section(&host, "recent").await;
        recent.matches("completed").count() == 2 && recent.find("/jobs/second") < recent.find("/jobs/first")
    })
    .await;
    let (status, page) = host.get("/jobs/first").await;
    assert_eq!(status, 200);
    for step in ["Claimed", "Executing", "Answered by the plugin", "Stored", "Delivered"] {
        let (_, rest) = page.split_once(step).unwrap_or_else(|| panic!("no {step}"));
        assert!(rest.starts_with("</strong> <time"), "{step} has a time: {rest}");
    }
    assert!(!page.contains("data-poll"), "an ended job does not change");
    let hour = section(&host, "hour").await;
    assert!(hour.contains("2 in the last hour"), "{hour}");
    assert_eq!(host.get("/jobs/unknown").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_shows_no_result_and_no_secret_and_says_what_is_stuck() {
    let host = plan("num_qubits: 5").start().await;
    let callback = format!("{}?key=s3cret-in-the-query", host.cloud.webhook_url());
    let job = host.job("refused", &bell(), 100).field("callback_url", callback);
    host.cloud.on_webhook(|_| Some(Answer::status(422)));
    host.send(&job).await;
    eventually("it waits for the operator", async || {
        section(&host, "kept").await.contains("coda-host results retry refused")
    })
    .await;
    let (_, page) = host.get("/").await;
    let (_, of_job) = host.get("/jobs/refused").await;
    for text in [&page, &of_job] {
        for word in ["s3cret", "&quot;00&quot;", "counts", "Bearer", "PRIVATE KEY"] {
            assert!(!text.contains(word), "{word}: {text}");
        }
    }
    assert!(of_job.contains("Refused by the cloud"), "{of_job}");
    assert!(page.len() < 150 << 10, "{}", page.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_tells_why_a_host_is_not_ready_and_remembers_jobs_over_a_restart() {
    let mut host = plan("num_qubits: 5").start().await;
    host.good_job_goes_through("before").await;
    host.stop().await;
    host.start().await;
    let recent = section(&host, "recent").await;
    assert!(recent.contains("/jobs/before") && recent.contains("completed"), "{recent}");
    eventually("Redis was seen to work", async || {
        section(&host, "parts").await.contains("Redis</dt><dd><span class=\"mark-word good\"")
    })
    .await;
    host.redis.kill().unwrap();
    eventually("the reason of /ready is there", async || {
        let state = section(&host, "state").await;
        state.contains("Not ready") && state.contains("Redis is not reachable")
    })
    .await;
    eventually("and when it last worked", async || {
        let parts = section(&host, "parts").await;
        parts.contains("Redis</dt>") && parts.contains("last worked")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sandbox_is_there_only_in_a_sandbox() {
    let host = plan("num_qubits: 5").start().await;
    let (_, page) = host.get("/").await;
    assert!(!page.contains("id=\"sandbox\""));
    assert_eq!(host.get("/sandbox/jobs").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_with_a_strange_id_has_a_link_that_leads_to_it() {
    let host = plan("num_qubits: 5").start().await;
    let id = "a/../b c?d=<b>#e&\"f\"+é%2F";
    host.submit(id, &bell(), 10).await;
    host.delivered(id).await;
    let href = eventually_some("its link is there", async || {
        let recent = section(&host, "recent").await;
        assert!(!recent.contains("<b>"), "{recent}");
        let (_, rest) = recent.split_once("href=\"")?;
        Some(rest.split_once('"')?.0.to_string())
    })
    .await;
    let href = &href;
    let (status, page) = host.get(href).await;
    assert!(status == 200 && page.contains("Delivered"), "{href}: {page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_viewers_are_told_to_come_back_and_readers_that_leave_make_room() {
    let host = plan("num_qubits: 5").start().await;
    let open = async || {
        let mut stream = TcpStream::connect(("127.0.0.1", host.port())).await.expect("the local service");
        stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("a request");
        let mut head = vec![0; 512];
        let n = stream.read(&mut head).await.expect("an answer");
        (stream, String::from_utf8_lossy(&head[..n]).into_owned())
    };
    let mut viewers = Vec::new();
    loop {
        let (stream, head) = open().await;
        if head.starts_with("HTTP/1.1 503") {
            assert!(head.contains("retry-after"), "{head}");
            break;
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        viewers.push(stream);
        assert!(viewers.len() <= 100, "there is a limit");
    }
    assert_eq!(host.ready().await.0, 200, "others are served");
    viewers.clear();
    eventually("there is room again", async || open().await.1.starts_with("HTTP/1.1 200")).await;
}

/// Whether this machine has a lock on the host's database.
fn is_locked(host: &TestHost) -> bool {
    let file = std::fs::metadata(host.state_dir().join("coda-host.db")).expect("the database");
    let locks = std::fs::read_to_string("/proc/locks").expect("the locks of this machine");
    let inode = format!(":{}", file.ino());
    locks.lines().any(|line| line.split_whitespace().any(|word| word.ends_with(&inode)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_the_page_leaves_the_lock_on_the_database_as_it_is() {
    let host = plan("num_qubits: 5").start().await;
    host.good_job_goes_through("first").await;
    assert!(is_locked(&host), "SQLite holds one while the database is open");
    assert!(section(&host, "kept").await.contains("Nothing is stuck."));
    // A process that closes any descriptor of a file loses every lock that it has on it.
    assert!(is_locked(&host), "the page has closed the file beside SQLite");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_can_not_be_delivered_hide_nothing_and_are_told() {
    let host = plan("num_qubits: 5\nexecution_time_ms: 1").start().await;
    host.cloud.on_webhook(|_| Some(Answer::status(503)));
    for n in 0..1_100 {
        host.submit(&format!("stuck-{n}"), &bell(), 1).await;
    }
    eventually("the part is told to fail", async || {
        let parts = section(&host, "parts").await;
        parts.contains("Cloud (results)</dt><dd><span class=\"mark-word bad\"") && parts.contains("503")
    })
    .await;
    eventually("a thousand results wait", async || {
        host.metric("coda_host_undelivered_results").await >= 1_050
    })
    .await;
    host.submit("newest", &bell(), 1).await;
    eventually("the newest job is known", async || host.get("/jobs/newest").await.0 == 200).await;
}
