//! A private Prometheus on loopback with the rules of this repository, where one is installed (`make monitoring-deps`).

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::artifacts::project_file;
use crate::wait::{eventually, eventually_some};

/// Says that these scenarios are wanted: they are apart from the others for what they install.
const WANTED: &str = "CODA_TEST_PROMETHEUS";

/// A server that scrapes a few targets many times a second.
pub struct Prometheus {
    child: Child,
    port: u16,
    dir: TempDir,
}

/// The alert rules and the dashboard.
pub fn rules() -> PathBuf {
    project_file("packaging/monitoring/coda-host.rules.yml")
}

pub fn dashboard() -> Value {
    let file = project_file("packaging/monitoring/coda-host.json");
    let text = std::fs::read_to_string(file).expect("the dashboard can be read");
    serde_json::from_str(&text).expect("the dashboard is JSON")
}

/// Whether Prometheus is wanted and here; otherwise a message says that the scenario is skipped.
pub fn is_here() -> bool {
    let found =
        Command::new("promtool").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let here = std::env::var_os(WANTED).is_some() && found.is_ok_and(|status| status.success());
    if !here {
        eprintln!("SKIPPED: no Prometheus here ({WANTED}); `make test-monitoring` installs it and runs this");
    }
    here
}

/// What `promtool` says, with this as its input.
pub fn promtool(arguments: &[&str], input: &[u8]) -> Output {
    let mut file = tempfile::tempfile().expect("a file");
    std::io::Write::write_all(&mut file, input).expect("it can be written");
    std::io::Seek::rewind(&mut file).expect("it can be read again");
    Command::new("promtool").args(arguments).stdin(file).output().expect("promtool can be started")
}

/// The rules with every wait as short as a scenario: alerts fire at once, and rates are those of the last seconds.
fn shortened(rules: &str) -> String {
    let line = |line: &str| match line.trim_start().starts_with("for: ") {
        true => String::new(),
        false => line.replace("[1h]", "[2s]").replace("[15m]", "[2s]").replace("seconds > 90", "seconds > 1"),
    };
    rules.lines().map(line).collect::<Vec<_>>().join("\n")
}

impl Prometheus {
    /// Starts one that scrapes these addresses, each with the name of its job.
    pub async fn start(targets: &[(&str, &str)]) -> Prometheus {
        let dir = tempfile::Builder::new().prefix("coda-prometheus-").tempdir().expect("a directory");
        let own_rules = std::fs::read_to_string(rules()).expect("the rules can be read");
        std::fs::write(dir.path().join("rules.yml"), shortened(&own_rules)).expect("a file can be written");
        let jobs: Vec<Value> = targets
            .iter()
            .map(|(job, address)| json!({ "job_name": job, "static_configs": [{ "targets": [address] }] }))
            .collect();
        let config = json!({
            "global": { "scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms" },
            "rule_files": ["rules.yml"],
            "scrape_configs": jobs,
        });
        // JSON is YAML.
        std::fs::write(dir.path().join("prometheus.yml"), config.to_string()).expect("a file can be written");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its number").port();
        drop(listener);
        let log = std::fs::File::create(dir.path().join("log")).expect("the log can be created");
        let child = Command::new("prometheus")
            .current_dir(dir.path())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn()
            .expect("prometheus can be started");
        let server = Prometheus { child, port, dir };
        eventually("Prometheus is ready", async || server.get("/-/ready").await.is_some()).await;
        server
    }

    /// What it answers to a query in its own language: one value for each series.
    pub async fn query(&self, expression: &str) -> Value {
        let encoded: String =
            expression.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat();
        let answer = self.get(&format!("/api/v1/query?query={encoded}")).await;
        let answer: Value =
            serde_json::from_slice(&answer.unwrap_or_else(|| panic!("no answer to {expression}")))
                .expect("its answer is JSON");
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        answer["data"]["result"].clone()
    }

    /// Waits until an expression has a series.
    pub async fn sees(&self, expression: &str) -> Value {
        eventually_some(expression, async || {
            let found = self.query(expression).await;
            found.as_array().is_some_and(|series| !series.is_empty()).then_some(found)
        })
        .await
    }

    /// Waits until an expression has no series.
    pub async fn sees_no(&self, expression: &str) {
        eventually(&format!("no {expression}"), async || {
            self.query(expression).await.as_array().is_some_and(Vec::is_empty)
        })
        .await;
    }

    /// Waits until this alert fires, with its labels.
    pub async fn fires(&self, alert: &str, labels: &str) {
        self.sees(&firing(alert, labels)).await;
    }

    /// Waits until it does not.
    pub async fn clears(&self, alert: &str) {
        self.sees_no(&firing(alert, "")).await;
    }

    async fn get(&self, path: &str) -> Option<Vec<u8>> {
        let client = Client::builder(TokioExecutor::new()).build_http::<Empty<bytes::Bytes>>();
        let uri = format!("http://127.0.0.1:{}{path}", self.port).parse().expect("a URI");
        let answer = client.get(uri).await.ok()?;
        let fine = answer.status().is_success();
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        fine.then(|| body.to_vec())
    }

    pub fn log(&self) -> String {
        let path: &Path = self.dir.path();
        std::fs::read_to_string(path.join("log")).unwrap_or_default()
    }
}

fn firing(alert: &str, labels: &str) -> String {
    format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"{labels}}}")
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().expect("Prometheus can be waited for");
        if std::thread::panicking() {
            eprintln!("--- the log of Prometheus\n{}\n---", self.log());
        }
    }
}
