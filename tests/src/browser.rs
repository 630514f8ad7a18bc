//! A real browser without a window, driven over WebDriver: Debian's chromium and chromedriver.
//!
//! Every session notes what the console says and what is requested, so that a scenario can show that a page is silent and
//! asks no one else. `make browser-deps` installs what is needed; without it scenarios are skipped with a message.
//!
//! WebDriver is JSON over HTTP, and eight of its commands are used here, so there is no crate for it: those that were looked
//! at bring up to 19 others, or operators on `String` that other code of the tests no longer compiles with.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::descendants;
use crate::wait::{LIMIT, eventually, eventually_some, in_time};

/// The directory of axe-core, which also says that scenarios with a browser are wanted.
const AXE: &str = "CODA_TEST_AXE";
/// A desk's screen, which most scenarios have.
pub const DESK: (u32, u32) = (1280, 900);
/// A phone's.
pub const PHONE: (u32, u32) = (360, 740);
/// A wall's.
pub const WALL: (u32, u32) = (3840, 2160);

/// Keys that are no characters, as WebDriver names them.
pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";

/// One browser with one tab.
pub struct Browser {
    client: Client<HttpConnector, Full<Bytes>>,
    /// The session's URL.
    session: String,
    server: Child,
    axe: PathBuf,
    profile: TempDir,
}

/// What axe-core has found.
#[derive(Debug, Deserialize)]
pub struct Violation {
    pub id: String,
    pub impact: Option<String>,
    pub help: String,
    /// The elements, as HTML, and what is wrong with each.
    pub nodes: Vec<(String, String)>,
}

/// Memory of the tab after a garbage collection.
#[derive(Debug, Clone, Copy)]
pub struct TabSize {
    pub heap_bytes: u64,
    /// Nodes that live, in the document or not.
    pub nodes: u64,
}

impl Browser {
    /// Starts one; `None` where it is not wanted or not installed, with a message.
    pub async fn start() -> Option<Browser> {
        let axe = std::env::var_os(AXE).map(|dir| PathBuf::from(dir).join("axe.min.js"));
        let Some(axe) = axe.filter(|file| file.is_file()) else {
            eprintln!("SKIPPED: no axe-core here ({AXE}); `make test-browser` fetches it and runs this");
            return None;
        };
        let profile = tempfile::Builder::new().prefix("coda-browser-").tempdir().expect("a directory");
        let log = profile.path().join("chromedriver.log");
        let file = std::fs::File::create(&log).expect("the log can be created");
        let server = Command::new("chromedriver")
            .arg("--port=0")
            .env("HOME", profile.path())
            .env("TMPDIR", profile.path())
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a file can be shared"))
            .stderr(file)
            .spawn();
        let server = match server {
            Ok(server) => server,
            Err(error) => {
                eprintln!(
                    "SKIPPED: chromedriver can't be started ({error}); `make browser-deps` installs it"
                );
                return None;
            }
        };
        let port = eventually_some("chromedriver listens", async || {
            let said = std::fs::read_to_string(&log).ok()?;
            let rest = said.split("successfully on port ").nth(1)?;
            rest.split('.').next()?.parse::<u16>().ok()
        })
        .await;
        let client = Client::builder(TokioExecutor::new()).build_http();
        let session = format!("http://127.0.0.1:{port}/session");
        let mut browser = Browser { client, session, server, axe, profile };
        let wanted = json!({ "capabilities": { "alwaysMatch": capabilities(browser.profile.path()) } });
        let made = browser.post("", wanted).await;
        let id = made["sessionId"].as_str().expect("a session has an id");
        browser.session = format!("{}/{id}", browser.session);
        // Away from the browser's own first page, and what that has asked for.
        browser.open("about:blank").await;
        browser.requests().await;
        browser.resize(DESK).await;
        Some(browser)
    }

    /// Opens a page and waits until it is loaded.
    pub async fn open(&self, url: &str) {
        self.post("/url", json!({ "url": url })).await;
    }

    /// What a script returns that runs in the page.
    pub async fn script<T: DeserializeOwned>(&self, script: &str) -> T {
        let returned = self.post("/execute/sync", json!({ "script": script, "args": [] })).await;
        serde_json::from_value(returned).unwrap_or_else(|error| panic!("{error}\n{script}"))
    }

    /// The text of the first such element, as it is seen; empty where none is.
    pub async fn text(&self, selector: &str) -> String {
        let found = format!("const found = document.querySelector({});", json!(selector));
        self.script(&(found + "return found?.checkVisibility() ? found.innerText : ''")).await
    }

    /// Waits until such an element has this text in it.
    pub async fn sees(&self, selector: &str, text: &str) {
        let mut last = String::new();
        let found = in_time(async || {
            last = self.text(selector).await;
            last.contains(text).then_some(())
        });
        if found.await.is_none() {
            panic!("{selector} does not come to say {text:?}: {last}");
        }
    }

    /// Waits until no such element is there.
    pub async fn sees_no(&self, selector: &str) {
        let script = format!("return document.querySelector({}) === null", json!(selector));
        eventually(&format!("{selector} is gone"), async || self.script(&script).await).await;
    }

    /// Clicks where a mouse would, as soon as the element is there.
    pub async fn click(&self, selector: &str) {
        let using = json!({ "using": "css selector", "value": selector });
        let mut why = String::new();
        let clicked = in_time(async || {
            let click = async {
                let found = self.try_post("/element", using.clone()).await?;
                let id = found.as_object().and_then(|element| element.values().next()?.as_str());
                let path = format!("/element/{}/click", id.unwrap_or_default());
                // It may have been replaced meanwhile.
                self.try_post(&path, json!({})).await
            };
            click.await.map_err(|error| why = error).ok()
        });
        if clicked.await.is_none() {
            panic!("{selector} can't be clicked: {why}");
        }
    }

    /// Presses one key after another, in whatever has the focus: characters, [`TAB`] and [`ENTER`].
    pub async fn press(&self, keys: &str) {
        let both =
            |key: char| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }));
        let strokes: Vec<Value> = keys.chars().flat_map(both).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes });
        self.post("/actions", json!({ "actions": [keyboard] })).await;
    }

    /// A command of the browser's own protocol.
    pub async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("/goog/cdp/execute", json!({ "cmd": command, "params": parameters })).await
    }

    /// Gives the page a screen of this size, in CSS pixels.
    pub async fn resize(&self, (width, height): (u32, u32)) {
        let screen =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", screen).await;
    }

    /// What the user prefers: light or dark.
    pub async fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Turns scripts of pages off, or on again.
    pub async fn run_scripts(&self, run: bool) {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({ "value": !run })).await;
    }

    /// Keeps the whole page as `target/screenshots/<name>.png`.
    pub async fn screenshot(&self, name: &str) {
        let sizes = self.devtools("Page.getLayoutMetrics", json!({})).await;
        let (width, height) = (&sizes["cssContentSize"]["width"], &sizes["cssContentSize"]["height"]);
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let whole = json!({ "captureBeyondViewport": true, "clip": clip });
        let taken = self.devtools("Page.captureScreenshot", whole).await;
        let png = base64(taken["data"].as_str().expect("a picture"));
        let file = crate::artifacts::screenshots().join(format!("{name}.png"));
        std::fs::write(file, png).expect("a screenshot can be written");
    }

    /// Errors and warnings of the console since the last call.
    pub async fn console(&self) -> Vec<String> {
        let worth = |entry: &LogEntry| matches!(entry.level.as_str(), "SEVERE" | "WARNING");
        self.log("browser").await.into_iter().filter(worth).map(|entry| entry.message).collect()
    }

    async fn log(&self, kind: &str) -> Vec<LogEntry> {
        let entries = self.post("/se/log", json!({ "type": kind })).await;
        serde_json::from_value(entries).expect("a list of entries")
    }

    /// Fails when the console has said anything, or when a page has asked anyone but these origins, since the last call.
    pub async fn assert_quiet(&self, origins: &[&str]) {
        let said = self.console().await;
        assert!(said.is_empty(), "the console says {said:?}");
        self.assert_asked_only(origins).await;
    }

    /// Fails when a page has asked anyone but these origins since the last call.
    pub async fn assert_asked_only(&self, origins: &[&str]) {
        let asked = self.requests().await;
        assert!(!asked.is_empty(), "requests are noted");
        let elsewhere: Vec<&String> =
            asked.iter().filter(|url| !origins.iter().any(|origin| url.starts_with(origin))).collect();
        assert!(elsewhere.is_empty(), "requests to others: {elsewhere:?}");
    }

    /// The URLs that pages have asked for since the last call.
    async fn requests(&self) -> Vec<String> {
        let entries = self.log("performance").await;
        let url = |text: &str| -> Option<String> {
            let event: Value = serde_json::from_str(text).ok()?;
            let message = &event["message"];
            let asked = message["method"] == "Network.requestWillBeSent";
            asked.then(|| message["params"]["request"]["url"].as_str().map(String::from))?
        };
        entries.iter().filter_map(|entry| url(&entry.message)).collect()
    }

    /// The memory of the tab, once what is not used any more is gone.
    pub async fn size(&self) -> TabSize {
        self.devtools("Performance.enable", json!({})).await;
        // The second one takes what the first one has made free.
        for _ in 0..2 {
            self.devtools("HeapProfiler.collectGarbage", json!({})).await;
        }
        let metrics = self.devtools("Performance.getMetrics", json!({})).await;
        let value = |name: &str| {
            let all = metrics["metrics"].as_array().expect("a list of metrics");
            let metric = all.iter().find(|metric| metric["name"] == name);
            metric.and_then(|metric| metric["value"].as_f64()).expect("a number") as u64
        };
        TabSize { heap_bytes: value("JSHeapUsedSize"), nodes: value("Nodes") }
    }

    /// What axe-core calls serious or critical.
    pub async fn serious_violations(&self) -> Vec<Violation> {
        let axe = std::fs::read_to_string(&self.axe).expect("axe-core can be read");
        self.script::<Value>(&format!("{axe}; return null")).await;
        let run = "const done = arguments[arguments.length - 1];
            axe.run({ resultTypes: ['violations'] }).then((found) => done(found.violations.map((v) => ({
              id: v.id, impact: v.impact, help: v.help,
              nodes: v.nodes.map((n) => [n.html.slice(0, 300), n.failureSummary || '']),
            }))), (error) => done([{ id: String(error), impact: 'critical', help: '', nodes: [] }]));";
        let found = self.post("/execute/async", json!({ "script": run, "args": [] })).await;
        let found: Vec<Violation> = serde_json::from_value(found).expect("axe-core's findings");
        let serious = |v: &Violation| matches!(v.impact.as_deref(), Some("serious" | "critical"));
        found.into_iter().filter(serious).collect()
    }

    /// The value that a command of the session answers with.
    async fn post(&self, path: &str, body: Value) -> Value {
        self.try_post(path, body).await.unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// As [`Browser::post`]; an error is what the driver says.
    async fn try_post(&self, path: &str, body: Value) -> Result<Value, String> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{path}", self.session))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .expect("a request");
        let answered = async {
            let answer = self.client.request(request).await.expect("chromedriver answers");
            let failed = !answer.status().is_success();
            (failed, answer.into_body().collect().await.expect("its answer can be read").to_bytes())
        };
        let (failed, bytes) = tokio::time::timeout(4 * LIMIT, answered).await.expect("an answer in time");
        let mut answer: Value = serde_json::from_slice(&bytes).expect("its answer is JSON");
        let value = answer["value"].take();
        if failed { Err(value["message"].to_string()) } else { Ok(value) }
    }
}

/// A line of one of the browser's logs.
#[derive(Debug, Deserialize)]
struct LogEntry {
    level: String,
    message: String,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser and its processes first, while their parent still tells which they are.
        for pid in descendants(self.server.id() as i32) {
            // It may have ended with another one.
            coda_host::sys::signal(pid as u32, libc::SIGKILL).ok();
        }
        self.server.kill().ok();
        self.server.wait().expect("chromedriver can be waited for");
    }
}

fn capabilities(profile: &Path) -> Value {
    let arguments = [
        "--headless=new".to_string(),
        // Tests run as root in containers, where the browser's own sandbox can't be made.
        "--no-sandbox".into(),
        "--disable-dev-shm-usage".into(),
        "--disable-gpu".into(),
        "--no-first-run".into(),
        "--disable-background-networking".into(),
        "--disable-component-update".into(),
        "--hide-scrollbars".into(),
        // Another site, for scenarios with one: its names are this machine too.
        "--host-resolver-rules=MAP *.example 127.0.0.1".into(),
        format!("--user-data-dir={}", profile.join("profile").display()),
    ];
    json!({
        "browserName": "chrome",
        "goog:chromeOptions": { "args": arguments },
        "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        // axe-core looks at every element of a long page.
        "timeouts": { "script": 60_000 },
    })
}

/// The bytes behind a Base64 text.
fn base64(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).expect("the browser's Base64")
}
