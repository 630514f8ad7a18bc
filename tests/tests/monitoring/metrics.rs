//! Both formats of `/metrics`, and what dashboard and rules ask for.

use std::collections::BTreeSet;

use coda_host_tests::net::{Net, SIMULATOR};
use coda_host_tests::prometheus::{Prometheus, dashboard, is_here, promtool, rules};
use coda_host_tests::{Plan, bell};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Content type and text of the metrics for this Accept header.
async fn scrape(address: &str, accept: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.expect("the service is there");
    let request =
        format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the request can be sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let head = head.to_ascii_lowercase();
    let content_type = head.lines().find_map(|line| line.strip_prefix("content-type: ")).expect("a type");
    (content_type.into(), body.into())
}

/// Names of the samples of a text.
fn names(text: &str) -> BTreeSet<String> {
    let name = |line: &str| line.split(['{', ' ']).next().unwrap_or_default().to_string();
    text.lines().filter(|line| !line.starts_with('#')).map(name).collect()
}

/// Every expression of the dashboard.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(String::from));
            fields.values().for_each(|value| expressions(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

/// The metrics that an expression names.
fn named(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = |word: &&str| word.starts_with("coda_host_") || word.starts_with("coda_coordinator_");
    words.filter(ours).map(String::from).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_formats_have_the_same_samples_and_promtool_takes_them() {
    if !is_here() {
        return;
    }
    let host = Plan::device("executor_factory: coda_example_rust\nhost: lab\nport: 7").start().await;
    host.good_job_goes_through("J1").await;
    let mut net = Net::start(&[]).await;
    net.add(SIMULATOR, &[]).await;
    for address in [&format!("127.0.0.1:{}", host.port()), &net.coordinator.http, &net.peers[0].http] {
        let (kind, open_metrics) = scrape(address, "*/*").await;
        assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        assert!(open_metrics.ends_with("# EOF\n"));
        let (kind, classic) = scrape(address, "text/plain;version=0.0.4").await;
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
        assert!(!classic.contains("# EOF") && !classic.contains("# UNIT"));
        assert_eq!(names(&open_metrics), names(&classic));
        let checked = promtool(&["check", "metrics"], classic.as_bytes());
        assert!(checked.status.success(), "{}\n{classic}", String::from_utf8_lossy(&checked.stderr));
        // A test of the test: what is wrong is found.
        let wrong = classic.replace(" counter\n", " info\n");
        assert!(!promtool(&["check", "metrics"], wrong.as_bytes()).status.success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_reads_every_metric_and_answers_every_query_of_dashboard_and_rules() {
    let mut asked = Vec::new();
    expressions(&dashboard(), &mut asked);
    assert!(asked.len() > 40, "{asked:?}");
    let rules = std::fs::read_to_string(rules()).expect("the rules can be read");

    let host = Plan::simulator("num_qubits: 5").start().await;
    host.submit("J1", &bell(), 10).await;
    host.delivered("J1").await;
    let mut net = Net::start(&[]).await;
    net.add(SIMULATOR, &[]).await;
    let address = format!("127.0.0.1:{}", host.port());
    let mut known = names(&scrape(&address, "*/*").await.1);
    known.extend(names(&scrape(&net.coordinator.http, "*/*").await.1));
    for text in asked.iter().chain([&rules]) {
        let missing: Vec<String> = named(text).difference(&known).cloned().collect();
        assert!(missing.is_empty(), "{missing:?} in {text}");
    }
    // What is shown nowhere would be forgotten.
    let shown: BTreeSet<String> = asked.iter().flat_map(|text| named(text)).collect();
    let parts = ["_sum", "_count"];
    let unseen: Vec<&String> = known
        .iter()
        .filter(|name| named(name).len() == 1 && !parts.iter().any(|part| name.ends_with(part)))
        .filter(|name| !shown.contains(*name))
        .collect();
    assert!(unseen.is_empty(), "not on the dashboard: {unseen:?}");

    if !is_here() {
        return;
    }
    let targets = [("coda-host", address.as_str()), ("coda-coordinator", net.coordinator.http.as_str())];
    let prometheus = Prometheus::start(&targets).await;
    prometheus.sees("coda_host_ready == 1").await;
    prometheus.sees("coda_coordinator_ready == 1").await;
    for name in &known {
        // A name of the plugin's has its own labels; all others are read as they are written.
        prometheus.sees(name).await;
    }
    for expression in &asked {
        let expression = expression.replace("$__rate_interval", "2s").replace("$instance", ".*");
        prometheus.query(&expression).await;
    }
}
