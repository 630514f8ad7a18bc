//! Provisioning and reconnecting against a scripted cloud on loopback, with real files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::cloud::testing::{self, Reply, Scripted, answer, scripted};
use crate::config::settings::{
    ApiSettings, AvailabilitySettings, CallbackPolicy, Credentials, Dirs, ExecutorSettings, HistorySettings,
    JobSettings, ShutdownSettings, WebhookSettings,
};
use crate::error::Failure;
use crate::state::db::HistoryLimits;

pub(crate) fn settings(url: &str, dir: PathBuf) -> Settings {
    let second = Duration::from_secs(1);
    let mut defaults = crate::config::source::Source::new([], Default::default());
    Settings {
        peer: crate::config::load::peers::peer(&mut defaults).unwrap(),
        coordinator: crate::config::load::peers::coordinator(&mut defaults).unwrap(),
        advertised_provider: "coda".into(),
        identity: Identity {
            qpu_id: String::new(),
            qpu_display_name: String::new(),
            native_gate_set: "cz".into(),
            num_qubits: 5,
            redis_url: Secret::new(""),
        },
        credentials: Credentials::default(),
        cloud: testing::settings(url),
        jobs: JobSettings {
            consumer_name: "worker-0".into(),
            prefetch: 4,
            batch_max: 10,
            block: second,
            cancel_poll: second,
            limits: Default::default(),
            retry_max: 2,
            retry_window: second,
            retry_pause: second,
            retry_pause_max: second,
            recover_interval: second,
            redis_backoff: second,
            redis_backoff_max: second,
            redis_timeout: second,
            max_deaths: 3,
            min_free_bytes: 0,
            max_result_bytes: 1 << 20,
        },
        webhook: WebhookSettings {
            timeout: second,
            backoff: second,
            backoff_max: second,
            max_in_flight: 64,
            max_per_origin: 16,
            callback: CallbackPolicy::Hosts(Vec::new()),
        },
        executor: ExecutorSettings {
            factory: None,
            python: None,
            capabilities: Vec::new(),
            reverse_bits: false,
            device_config: None,
            plugin_path: Vec::new(),
            control_timeout: second,
            device_refresh: second,
            start_timeout: second,
            log_bytes_per_second: 1 << 20,
            isolated: false,
            user: None,
            restart_backoff: Duration::from_millis(1),
            restart_backoff_max: Duration::from_millis(1),
            job_timeout: None,
            cancel_grace: Duration::from_secs(1),
            stuck_exit: false,
            sha256: None,
        },
        availability: AvailabilitySettings { interval: second, calendar: None, lead: second },
        history: HistorySettings { limits: HistoryLimits::default(), sample: second },
        api: ApiSettings {
            host: "127.0.0.1".into(),
            port: 0,
            request_timeout: second,
            sandbox_url: None,
            page_interval: second,
            page_sample: second,
        },
        vpn: testing::vpn(),
        dirs: Dirs { credentials: dir, state: "/nowhere".into() },
        daemon: crate::config::settings::DaemonSettings {
            log_max_bytes: 1 << 20,
            log_check_interval: second,
        },
        shutdown: ShutdownSettings { drain: second, margin: second },
    }
}

fn bundle(url: &str, with_key: bool) -> Value {
    let mut bundle = json!({
        "qpu_id": "q1", "qpu_label": "Lab", "native_gate_set": "cz", "num_qubits": 3,
        "redis_url": "redis://:pw@127.0.0.1:1", "webapp_url": url, "jwt_key_id": "k1",
        "vpn": {"required": false},
    });
    if with_key {
        bundle["jwt_private_key"] = json!(testing::private_pem());
    }
    bundle
}

fn good(with_key: bool) -> Reply {
    answer("200 OK", &bundle("https://coda.example", with_key).to_string())
}

/// What the settings' loader does with stored values.
fn load(settings: &mut Settings) -> Option<StoredCredentials> {
    let stored = credentials::load(&settings.dirs.credentials).unwrap();
    if reconnects(settings.credentials.node_token.as_ref(), stored.as_ref())
        && let Some(stored) = &stored
    {
        settings.credentials.jwt_private_key = stored.private_key.clone();
        settings.credentials.jwt_key_id = stored.config.jwt_key_id.clone();
        settings.identity.qpu_id = stored.config.qpu_id.clone().unwrap();
    }
    stored
}

struct Start {
    token: Option<&'static str>,
    dir: PathBuf,
    connectivity: Option<Vec<(u16, u16)>>,
}

impl Start {
    async fn run(&self, server: &Scripted) -> Result<Registration, Failure> {
        let mut settings = settings(&server.url, self.dir.clone());
        settings.credentials.node_token = self.token.map(Secret::new);
        let stored = load(&mut settings);
        let client = HttpClient::new(&settings.cloud).unwrap();
        let accepted =
            request_credentials(&client, &settings, stored.as_ref(), self.connectivity.as_deref()).await;
        accepted.and_then(AcceptedConnect::store).map_err(Failure::from)
    }
}

fn start(dir: &Path, token: Option<&'static str>) -> Start {
    Start { token, dir: dir.join("credentials"), connectivity: None }
}

async fn next(server: &mut Scripted) -> (String, Value) {
    let (_, request) = server.seen.recv().await.unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let bearer = head.lines().find_map(|l| l.strip_prefix("authorization: Bearer ")).unwrap();
    (bearer.to_owned(), serde_json::from_str(body).unwrap())
}

fn empty(dir: &Path) -> bool {
    fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

#[tokio::test]
async fn a_token_provisions_once_and_then_reconnects_with_or_without_it() {
    let d = tempfile::tempdir().unwrap();
    let mut server = scripted(vec![good(true), good(false)], None).await;
    let site = start(d.path(), Some("one-time")).run(&server).await.unwrap();
    assert!(site.provisioned);
    assert_eq!((&*site.identity.qpu_id, site.identity.num_qubits), ("q1", 3));
    assert_eq!(site.cloud.webapp_url, "https://coda.example");
    let (bearer, body) = next(&mut server).await;
    assert_eq!((&*bearer, body), ("one-time", json!({"machine_fingerprint": "lab-42"})));
    let stored = credentials::load(&d.path().join("credentials")).unwrap().unwrap();
    assert_eq!(stored.private_key.unwrap().expose(), testing::private_pem());
    assert_eq!(stored.config.node_machine_fingerprint.as_deref(), Some("lab-42"));

    for token in [None, Some("one-time")] {
        let site = start(d.path(), token).run(&server).await.unwrap();
        assert!(!site.provisioned);
        let (bearer, _) = next(&mut server).await;
        assert_eq!(bearer.split('.').count(), 3, "a signed token, not '{bearer}'");
    }
}

#[tokio::test]
async fn another_token_provisions_anew_and_must_bring_its_own_key() {
    let d = tempfile::tempdir().unwrap();
    let mut server = scripted(vec![good(true), good(false), good(true)], None).await;
    start(d.path(), Some("first")).run(&server).await.unwrap();
    let failure = start(d.path(), Some("second")).run(&server).await.unwrap_err();
    assert_eq!(failure.message, "Node response missing valid 'jwt_private_key'");
    assert!(failure.hint.unwrap().ends_with("because the node token is used up by this one"));
    assert!(start(d.path(), Some("third")).run(&server).await.unwrap().provisioned);
    for token in ["first", "second", "third"] {
        assert_eq!(next(&mut server).await.0, token);
    }
}

#[tokio::test]
async fn connectivity_is_left_out_or_sent_as_it_is() {
    let d = tempfile::tempdir().unwrap();
    let mut server = scripted(vec![good(true)], None).await;
    for (edges, sent) in [(vec![], json!([])), (vec![(1, 0), (2, 1)], json!([[1, 0], [2, 1]]))] {
        let start = Start { connectivity: Some(edges), ..start(d.path(), Some("one-time")) };
        start.run(&server).await.unwrap();
        assert_eq!(next(&mut server).await.1["connectivity"], sent);
    }
}

#[tokio::test]
async fn server_errors_are_tried_again_with_the_same_request() {
    let d = tempfile::tempdir().unwrap();
    let down = answer("503 Service Unavailable", "later");
    let mut server = scripted(vec![down.clone(), down.clone(), good(true), down], None).await;
    start(d.path(), Some("one-time")).run(&server).await.unwrap();
    let first = next(&mut server).await;
    assert_eq!(next(&mut server).await, first);
    assert_eq!(next(&mut server).await, first);

    let other = tempfile::tempdir().unwrap();
    let failure = start(other.path(), Some("one-time")).run(&server).await.unwrap_err();
    assert_eq!(failure.line(), "Node connect failed after 3 attempts: Node request failed (503): later");
    assert_eq!(failure.exit, exit::CLOUD);
    assert!(empty(&other.path().join("credentials")));
}

#[tokio::test]
async fn a_cloud_that_is_not_there_is_named() {
    let d = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://{free}");
    let gone = Scripted { url: url.clone(), seen: tokio::sync::mpsc::unbounded_channel().1 };
    let failure = start(d.path(), Some("one-time")).run(&gone).await.unwrap_err();
    assert_eq!(
        failure.line(),
        format!(
            "Node connect failed after 3 attempts: no connection to {url} could be made: Connection \
             refused (os error 111)"
        )
    );
    let hint = failure.hint.unwrap();
    assert!(hint.contains("check the address and port") && !hint.contains("token"), "{hint}");
}

#[tokio::test]
async fn a_token_whose_answer_got_lost_is_probably_used_up() {
    let d = tempfile::tempdir().unwrap();
    let cut = Reply::Close("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{\"qpu_id\":".into());
    let server = scripted(vec![cut, answer("409 Conflict", "{\"error\":\"used\"}")], None).await;
    let failure = start(d.path(), Some("one-time")).run(&server).await.unwrap_err();
    assert_eq!(failure.line(), "Node request failed (409): {\"error\":\"used\"}");
    let hint = failure.hint.unwrap();
    assert!(hint.contains("probably used up") && hint.contains("new node token"), "{hint}");
    assert!(empty(&d.path().join("credentials")));
}

#[tokio::test]
async fn a_refused_token_tells_of_stored_credentials() {
    let d = tempfile::tempdir().unwrap();
    let refused = answer("401 Unauthorized", "token SECRET-1 was used");
    let server = scripted(vec![good(true), refused], None).await;
    start(d.path(), Some("first")).run(&server).await.unwrap();
    let failure = start(d.path(), Some("SECRET-1")).run(&server).await.unwrap_err();
    assert_eq!(failure.line(), "Node request failed (401): token *** was used");
    let hint = failure.hint.unwrap();
    assert!(hint.contains("remove CODA_NODE_TOKEN") && hint.contains("stored credentials"), "{hint}");

    let other = tempfile::tempdir().unwrap();
    let failure = start(other.path(), Some("SECRET-1")).run(&server).await.unwrap_err();
    assert!(!failure.hint.unwrap().contains("stored"));
}

#[tokio::test]
async fn every_refusal_comes_with_advice() {
    let d = tempfile::tempdir().unwrap();
    let moved = "HTTP/1.1 308 Moved\r\nLocation: https://new.example/x\r\nContent-Length: 0\r\n\r\n";
    let replies = vec![
        good(true),
        answer("409 Conflict", ""),
        answer("401 Unauthorized", ""),
        answer("404 Not Found", ""),
        answer("400 Bad Request", &"é".repeat(500)),
        Reply::Keep(moved.into()),
    ];
    let server = scripted(replies, None).await;
    start(d.path(), Some("one-time")).run(&server).await.unwrap();
    let advice = ["coda-host reset", "clock", "CODA_CONNECT_PATH", "connectivity", "https://new.example/x"];
    for expected in advice {
        let failure = start(d.path(), None).run(&server).await.unwrap_err();
        let hint = failure.hint.unwrap();
        assert!(hint.contains(expected), "{}: {hint}", failure.message);
        if failure.message.starts_with("Node request failed (400)") {
            assert_eq!(failure.message, format!("Node request failed (400): {}", "é".repeat(400)));
        }
    }
}

#[tokio::test]
async fn a_bundle_that_can_not_be_used_leaves_nothing() {
    let d = tempfile::tempdir().unwrap();
    let bad = |change: &dyn Fn(&mut Value)| {
        let mut bundle = bundle("https://coda.example", true);
        change(&mut bundle);
        answer("200 OK", &bundle.to_string())
    };
    let replies = vec![
        bad(&|b| b["vpn"] = json!({"required": true})),
        bad(&|b| b["vpn"] = Value::Null),
        bad(&|b| {
            b["jwt_private_key"] = json!("-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----")
        }),
        bad(&|b| b["redis_url"] = json!("")),
        answer("200 OK", "<html>"),
    ];
    let server = scripted(replies, None).await;
    let expected = [
        "VPN is required but the node response holds no VPN profile",
        "VPN is required but the node response holds no VPN profile",
        "an elliptic curve key",
        "'redis_url'",
        "not a JSON object",
    ];
    for text in expected {
        let failure = start(d.path(), Some("one-time")).run(&server).await.unwrap_err();
        assert!(failure.line().contains(text), "{} instead of {text}", failure.line());
        assert!(failure.hint.unwrap().contains("the node token is used up"));
        assert!(empty(&d.path().join("credentials")), "{text}");
    }
}

#[tokio::test]
async fn credentials_that_can_not_be_stored_are_told_with_the_token_lost() {
    let d = tempfile::tempdir().unwrap();
    fs::create_dir_all(d.path().join("credentials").join(credentials::KEY_FILE)).unwrap();
    let server = scripted(vec![good(true)], None).await;
    let failure = start(d.path(), Some("one-time")).run(&server).await.unwrap_err();
    assert!(failure.line().contains("could not be stored"), "{}", failure.line());
    assert!(failure.hint.unwrap().contains("move the directory away"));
    assert!(!d.path().join("credentials").join(credentials::CONFIG_FILE).exists());

    let d = tempfile::tempdir().unwrap();
    let dir = d.path().join("credentials");
    fs::create_dir_all(dir.join(credentials::TOKEN_FILE)).unwrap();
    start(d.path(), Some("one-time")).run(&server).await.unwrap_err();
    assert!(!dir.join(credentials::KEY_FILE).exists() && !dir.join(credentials::CONFIG_FILE).exists());
}

#[tokio::test]
async fn a_start_without_anything_says_what_is_missing() {
    let d = tempfile::tempdir().unwrap();
    let server = scripted(vec![good(true)], None).await;
    let failure = start(d.path(), None).run(&server).await.unwrap_err();
    assert!(failure.message.contains("neither a node token nor a private key"), "{}", failure.message);
    assert!(failure.hint.unwrap().contains("CODA_NODE_TOKEN"));
    assert_eq!(failure.exit, exit::CONFIG);
    let failure = start(d.path(), Some("a\nb")).run(&server).await.unwrap_err();
    assert!(failure.message.contains("token can't be sent") && !failure.line().contains("a\nb"));
}

#[tokio::test]
async fn a_key_from_the_environment_connects_without_a_token() {
    let d = tempfile::tempdir().unwrap();
    let mut server = scripted(vec![good(false)], None).await;
    let mut settings = settings(&server.url, d.path().join("credentials"));
    settings.credentials.jwt_private_key = Some(Secret::new(testing::private_pem().replace('\n', "\\n")));
    settings.credentials.jwt_key_id = Some("k9".into());
    settings.identity.qpu_id = "q9".into();
    let client = HttpClient::new(&settings.cloud).unwrap();
    request_credentials(&client, &settings, None, None).await.unwrap().store().unwrap();
    let header = jsonwebtoken::decode_header(next(&mut server).await.0).unwrap();
    assert_eq!(header.kid.as_deref(), Some("k9"));
    assert!(credentials::load(&d.path().join("credentials")).unwrap().unwrap().usable());
}

#[tokio::test]
async fn the_development_cloud_takes_a_site_from_token_to_result() {
    use crate::dev::cloud::{DevCloud, Options};
    use crate::results::webhook::{AttemptOutcome, WebhookSender};
    let d = tempfile::tempdir().unwrap();
    let cloud = DevCloud::start(Options::new("q1", "redis://127.0.0.1:1")).await.unwrap();
    let url = cloud.url().to_owned();
    let server = Scripted { url, seen: tokio::sync::mpsc::unbounded_channel().1 };
    assert!(start(d.path(), Some("one-time-q1")).run(&server).await.unwrap().provisioned);
    let site = start(d.path(), Some("one-time-q1")).run(&server).await.unwrap();
    assert!(!site.provisioned, "the token is known as redeemed");
    let client = HttpClient::new(&site.cloud).unwrap();
    let webhook = settings(cloud.url(), d.path().into()).webhook;
    let sender = WebhookSender::new(client, site.signer, &site.cloud, &webhook).unwrap();
    let body = json!({"job_id": "j1", "status": "failed", "error": "x"}).to_string();
    assert!(matches!(sender.attempt(&cloud.webhook_url(), body.into()).await, AttemptOutcome::Accepted));
    let state = cloud.state();
    assert!(state.accepted("j1") && state.bad_tokens == 0);
    let kinds: Vec<_> = state.connects.iter().map(|c| (c.jwt, c.answered)).collect();
    assert_eq!(kinds, [(false, Some(200)), (true, Some(200))]);
}
