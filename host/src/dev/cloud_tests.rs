//! The development cloud against the host's own client, and with a real Redis.

use std::sync::LazyLock;

use http::HeaderMap;

use super::*;
use crate::cloud::http::{Bearer, HttpClient, HttpError, Target};
use crate::cloud::jwt::{PrivateKey, Signer};
use crate::cloud::testing;
use crate::dev::redis::DevRedis;

const LIMIT: Duration = Duration::from_secs(20);

/// One pair for all tests.
static KEYS: LazyLock<Arc<Keys>> = LazyLock::new(|| Arc::new(Keys::generate("k1").unwrap()));

struct Bed {
    cloud: DevCloud,
    client: HttpClient,
}

impl Bed {
    async fn new(change: impl FnOnce(&mut Options)) -> Bed {
        let mut options = Options::new("q1", "redis://127.0.0.1:1");
        options.keys = Some(KEYS.clone());
        change(&mut options);
        let cloud = DevCloud::start(options).await.unwrap();
        let client = HttpClient::new(&testing::settings(cloud.url())).unwrap();
        Bed { cloud, client }
    }

    fn signer(&self, qpu: &str, kid: &str) -> Signer {
        let key = PrivateKey::parse(&self.cloud.private_key().0).unwrap();
        Signer::new(key, qpu, Some(kid), Duration::from_secs(60))
    }

    fn bearer(&self) -> Bearer {
        self.signer("q1", "k1").bearer().unwrap()
    }

    async fn send(
        &self,
        path: &str,
        bearer: &Bearer,
        body: &Value,
        limit: Duration,
    ) -> Result<(u16, Value), HttpError> {
        let target = Target::parse(&format!("{}{path}", self.cloud.url())).unwrap();
        let body = Bytes::from(body.to_string());
        let r = self.client.post_json(&target, bearer, &HeaderMap::new(), body, limit).await?;
        Ok((r.status.as_u16(), serde_json::from_slice(&r.body?).unwrap()))
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(path, &self.bearer(), &body, LIMIT).await.unwrap()
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let host = self.cloud.url().strip_prefix("http://").unwrap();
        let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap())
    }
}

fn token(text: &str) -> Bearer {
    Bearer::new(&Secret::new(text)).unwrap()
}

#[tokio::test]
async fn a_one_time_token_works_once_and_then_a_signed_one() {
    let bed = Bed::new(|_| ()).await;
    let body = json!({ "machine_fingerprint": "f" });
    let connect = async |bearer: &Bearer| bed.send(CONNECT, bearer, &body, LIMIT).await.unwrap();
    let (status, bundle) = connect(&token("one-time-q1")).await;
    assert_eq!((status, &bundle["qpu_id"]), (200, &json!("q1")));
    assert_eq!(bundle["jwt_private_key"], json!(bed.cloud.private_key().0.expose()));
    assert_eq!(connect(&token("one-time-q1")).await.0, 401);
    assert_eq!(connect(&token("another")).await.0, 401);
    bed.cloud.add_token("another");
    assert_eq!(connect(&token("another")).await.0, 200);
    let (status, bundle) = connect(&bed.bearer()).await;
    assert_eq!((status, bundle.get("jwt_private_key")), (200, None));
    let kinds: Vec<_> = bed.cloud.state().connects.iter().map(|c| (c.jwt, c.answered.unwrap())).collect();
    assert_eq!(kinds, [(false, 200), (false, 401), (false, 401), (false, 200), (true, 200)]);
}

#[tokio::test]
async fn signed_tokens_are_checked_as_the_cloud_does() {
    let bed = Bed::new(|_| ()).await;
    let body = json!({ "machine_fingerprint": "f" });
    let stranger = {
        let key = PrivateKey::parse(&Secret::new(testing::private_pem())).unwrap();
        Signer::new(key, "q1", Some("k1"), Duration::ZERO).bearer().unwrap()
    };
    let good = bed.bearer();
    let text = testing::token(&good);
    let cut = token(&text[..text.len() - 2]);
    let cases = [
        (bed.signer("q2", "k1").bearer().unwrap(), "the JWT's sub is not this QPU"),
        (bed.signer("q1", "k2").bearer().unwrap(), "the JWT's kid is unknown"),
        (stranger, "the JWT's signature is wrong"),
        (cut, "the JWT's signature is wrong"),
        (token("a.b.c"), "not a usable JWT"),
    ];
    for (bearer, why) in cases {
        for path in [CONNECT, HEARTBEAT, WEBHOOK] {
            let (status, answer) = bed.send(path, &bearer, &body, LIMIT).await.unwrap();
            assert_eq!((status, &answer["error"]), (401, &json!(why)), "{path}");
        }
    }
    for _ in 0..2 {
        assert_eq!(bed.send(HEARTBEAT, &good, &json!({}), LIMIT).await.unwrap().0, 200);
    }
    bed.cloud.rotate_keys(Arc::new(Keys::generate("k2").unwrap()));
    assert_eq!(bed.send(HEARTBEAT, &good, &json!({}), LIMIT).await.unwrap().0, 401);
}

#[tokio::test]
async fn tokens_with_other_times_or_claims_are_refused() {
    let now = jsonwebtoken::get_current_timestamp();
    let sign = |claims: Value, kid: &str| {
        let mut header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::RS256);
        header.kid = Some(kid.into());
        let key = jsonwebtoken::EncodingKey::from_rsa_pem(KEYS.private_pem.expose().as_bytes()).unwrap();
        jsonwebtoken::encode(&header, &claims, &key).unwrap()
    };
    let check = |claims: Value| KEYS.check(&sign(claims, "k1"), "q1");
    assert_eq!(check(json!({"sub":"q1","iss":"coda","iat":now,"exp":now+3600})), Ok(()));
    assert_eq!(
        check(json!({"sub":"q1","iss":"coda","iat":now-3601,"exp":now-1})),
        Err("the JWT has expired")
    );
    assert_eq!(
        check(json!({"sub":"q1","iss":"me","iat":now,"exp":now+3600})),
        Err("the JWT's iss is not 'coda'")
    );
    assert_eq!(
        check(json!({"sub":"q1","iss":"coda","iat":now,"exp":now+60})),
        Err("the JWT doesn't last an hour")
    );
    assert!(check(json!({"sub":"q1","iss":"coda","exp":now+3600})).is_err());
    assert!(check(json!({"iss":"coda","iat":now,"exp":now+3600})).is_err());
    assert!(check(json!({"sub":"q1","iss":"coda","iat":now+600,"exp":now+4200})).is_err());
}

#[tokio::test]
async fn a_topology_that_the_qpu_does_not_have_is_refused() {
    let bed = Bed::new(|o| o.num_qubits = 3).await;
    for (edges, status) in [
        (json!([[0, 1], [2, 1]]), 200),
        (json!([]), 200),
        (Value::Null, 200),
        (json!([[0, 3]]), 400),
        (json!([[1, 1]]), 400),
        (json!([[0, 1, 2]]), 400),
        (json!([[0, -1]]), 400),
        (json!("all"), 400),
    ] {
        assert_eq!(bed.post(HEARTBEAT, json!({ "connectivity": edges })).await.0, status, "{edges}");
        let body = json!({ "machine_fingerprint": "f", "connectivity": edges });
        assert_eq!(bed.post(CONNECT, body).await.0, status, "{edges}");
    }
    assert_eq!(bed.post(CONNECT, json!({})).await.0, 400);
}

#[tokio::test]
async fn webhooks_are_recorded_and_hooks_change_the_answer() {
    let bed = Bed::new(|_| ()).await;
    bed.cloud.on_webhook(|seen| match seen.attempt {
        1 => Some(Answer::status(503).header("retry-after", "7").body("busy")),
        2 => Some(Answer::drop_connection()),
        3 => Some(Answer::hang()),
        4 => Some(Answer::drop_connection().having_processed()),
        _ => None,
    });
    let body = json!({ "job_id": "j1", "status": "completed", "counts": { "0": 1 } });
    let target = Target::parse(&bed.cloud.webhook_url()).unwrap();
    let raw = Bytes::from(body.to_string());
    let none = HeaderMap::new();
    let first = bed.client.post_json(&target, &bed.bearer(), &none, raw, LIMIT).await.unwrap();
    assert_eq!((first.status.as_u16(), &first.headers["retry-after"]), (503, &"7".parse().unwrap()));
    assert_eq!(first.body.unwrap(), "busy");
    let send = async |limit| bed.send(WEBHOOK, &bed.bearer(), &body, limit).await;
    assert!(matches!(send(LIMIT).await, Err(HttpError::Closed { .. })));
    assert!(matches!(send(Duration::from_millis(400)).await, Err(HttpError::Timeout { .. })));
    assert!(!bed.cloud.state().accepted("j1"));
    assert!(matches!(send(LIMIT).await, Err(HttpError::Closed { .. })));
    assert!(bed.cloud.state().accepted("j1"), "only its answer was lost");
    assert_eq!(send(LIMIT).await.unwrap().0, 200);
    let state = bed.cloud.state();
    let answered: Vec<_> = state.attempts("j1").map(|w| w.answered).collect();
    assert_eq!(answered, [Some(503), None, None, None, Some(200)]);
    assert_eq!((state.jobs["j1"].accepted, state.accepted_jobs, state.bad_tokens), (2, 1, 0));
    assert_eq!(state.webhooks[0].json(), body);
    assert_eq!(&*state.webhooks[0].status, "completed");
}

#[tokio::test]
async fn connect_and_heartbeat_obey_their_hooks_too() {
    let bed = Bed::new(|_| ()).await;
    bed.cloud.on_connect(|seen| (!seen.jwt).then(|| Answer::status(409).having_processed()));
    bed.cloud.on_heartbeat(|_| Some(Answer::status(500)));
    bed.cloud.edit_bundle(|bundle| bundle["vpn"]["required"] = json!(true));
    let body = json!({ "machine_fingerprint": "f" });
    let connect = async |bearer: &Bearer| bed.send(CONNECT, bearer, &body, LIMIT).await.unwrap();
    assert_eq!(connect(&token("one-time-q1")).await.0, 409);
    assert_eq!(connect(&bed.bearer()).await.1["vpn"]["required"], json!(true));
    assert_eq!(bed.post(HEARTBEAT, json!({})).await.0, 500);
    bed.cloud.clear_hooks();
    assert_eq!(connect(&token("one-time-q1")).await.0, 401, "it was used up behind the 409");
    assert_eq!(bed.post(HEARTBEAT, json!({})).await.0, 200);
}

#[tokio::test]
async fn waiting_sees_what_comes_and_gives_up() {
    let bed = Bed::new(|_| ()).await;
    assert!(!bed.cloud.wait_until(Duration::from_millis(20), |s| s.webhook_count > 0).await);
    let (waited, _) = tokio::join!(
        bed.cloud.wait_until(LIMIT, |s| s.accepted("j2")),
        bed.post(WEBHOOK, json!({ "job_id": "j2", "status": "failed", "error": "x" })),
    );
    assert!(waited);
}

#[tokio::test]
async fn a_cloud_that_went_down_comes_back_on_its_port() {
    let bed = Bed::new(|_| ()).await;
    assert_eq!(bed.post(HEARTBEAT, json!({})).await.0, 200);
    bed.cloud.go_down().await;
    let error = bed.send(HEARTBEAT, &bed.bearer(), &json!({}), LIMIT).await.unwrap_err();
    assert!(matches!(error, HttpError::Connect { .. } | HttpError::Closed { .. }), "{error:?}");
    bed.cloud.come_up().await.unwrap();
    assert_eq!(bed.post(HEARTBEAT, json!({})).await.0, 200);
    assert_eq!(bed.cloud.state().heartbeats.len(), 2);
}

#[tokio::test]
async fn old_records_go_when_only_some_are_kept() {
    let bed = Bed::new(|o| o.keep = 2).await;
    for n in 0..6 {
        bed.post(WEBHOOK, json!({ "job_id": format!("j{n}"), "status": "completed" })).await;
    }
    let state = bed.cloud.state();
    assert!(state.webhooks.len() <= 4 && state.jobs.len() == state.webhooks.len());
    assert!(state.accepted("j5") && !state.jobs.contains_key("j0"));
    assert_eq!((state.webhook_count, state.accepted_jobs), (6, 6));
}

#[tokio::test]
async fn https_is_served_with_the_given_certificate() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let mut bed = Bed::new(|o| o.tls = Some(Arc::new(tls))).await;
    let d = tempfile::tempdir().unwrap();
    let ca = d.path().join("ca.pem");
    std::fs::write(&ca, made.cert.pem()).unwrap();
    let mut settings = testing::settings(bed.cloud.url());
    settings.ca_file = Some(ca);
    bed.client = HttpClient::new(&settings).unwrap();
    assert!(bed.cloud.url().starts_with("https://localhost:"));
    assert_eq!(bed.post(HEARTBEAT, json!({})).await.0, 200);
}

#[tokio::test]
async fn only_loopback_is_listened_on() {
    let mut options = Options::new("q", "redis://127.0.0.1:1");
    options.listen = "0.0.0.0:0".parse().unwrap();
    assert!(matches!(DevCloud::start(options).await, Err(DevCloudError::NotLoopback(_))));
}

#[tokio::test]
async fn a_job_is_sent_followed_and_cancelled() {
    use redis::AsyncCommands as _;
    let redis = DevRedis::start(&[], LIMIT).await.unwrap();
    let bed = Bed::new(|o| {
        o.redis_url = Secret::new(redis.url());
        o.poll = Duration::from_millis(5);
    })
    .await;
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let ir = json!({ "version": "1.0", "gates": [] });
    let (status, answer) = bed.post("/dev/jobs", json!({ "ir": ir, "shots": 7 })).await;
    assert_eq!(status, 200, "{answer}");
    let id = answer["job_id"].as_str().unwrap().to_owned();
    let stream: redis::streams::StreamRangeReply = connection.xrange_all("qpu:q1:jobs").await.unwrap();
    let field = |name: &str| stream.ids[0].get::<String>(name).unwrap();
    assert_eq!((field("job_id"), field("shots")), (id.clone(), "7".to_string()));
    assert_eq!(field("callback_url"), bed.cloud.webhook_url());
    assert_eq!(serde_json::from_str::<Value>(&field("ir_json")).unwrap(), ir);

    let names = |view: &Value| -> Vec<String> {
        view["states"].as_array().unwrap().iter().map(|s| s["state"].as_str().unwrap().into()).collect()
    };
    let (_, view) = bed.get(&format!("/dev/jobs/{id}")).await;
    assert_eq!((names(&view), &view["over"]), (vec!["queued".into()], &json!(false)));
    assert_eq!(view["message_id"], json!(stream.ids[0].id));
    // What a node writes, while somebody waits for it.
    let key = format!("qpu:job:{id}:status");
    let now = || crate::model::iso_time(OffsetDateTime::now_utc());
    let old = [("completed_at", "2020-01-01T00:00:00+00:00".to_string())];
    let () = connection.hset_multiple(&key, &old).await.unwrap();
    let path = format!("/dev/jobs/{id}?wait=20&states=1");
    let fields = [("state", "executing".into()), ("started_at", now())];
    let write = async { connection.hset_multiple::<_, _, _, ()>(&key, &fields).await.unwrap() };
    let ((_, view), ()) = tokio::join!(bed.get(&path), write);
    assert_eq!(names(&view), ["queued", "executing"], "an earlier run's time is not this one's");
    let () = connection.hset(&key, "completed_at", now()).await.unwrap();
    let result = json!({ "job_id": id, "status": "completed", "counts": {}, "shots_completed": 0 });
    let path = format!("/dev/jobs/{id}?wait=20");
    let ((_, view), _) = tokio::join!(bed.get(&path), bed.post(WEBHOOK, result.clone()));
    assert_eq!(names(&view), ["queued", "executing", "completed", "delivered"]);
    assert_eq!((&view["webhook"], &view["attempts"], &view["over"]), (&result, &json!(1), &json!(true)));

    let body = json!({ "ir": "not json", "shots": "x", "job_id": "mine" });
    assert_eq!(bed.post("/dev/jobs", body).await.1["job_id"], json!("mine"));
    assert_eq!(bed.post("/dev/jobs/mine/cancel", json!({})).await.0, 200);
    assert!(connection.exists::<_, bool>("qpu:job:cancelled:mine").await.unwrap());
    assert_eq!(bed.post("/dev/jobs/other/cancel", json!({})).await.0, 404);
    assert_eq!(bed.get("/dev/jobs/other").await.0, 404);
    assert_eq!(bed.get("/dev/jobs/mine?wait=soon").await.0, 400);
    assert_eq!(bed.post("/dev/jobs", json!({ "shots": 1 })).await.0, 400);
    drop(redis);
    assert_eq!(bed.post("/dev/jobs", json!({ "ir": {}, "shots": 1 })).await.0, 503);
}

#[tokio::test]
async fn a_guarded_cloud_takes_nothing_that_a_page_of_another_site_can_send() {
    let bed = Bed::new(|options| options.guarded = true).await;
    let authority = bed.cloud.url().trim_start_matches("http://").to_string();
    let send = async |request: String| {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(&authority).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    let post = |headers: &str| {
        let body = r#"{"ir": {}, "shots": 1}"#;
        let length = body.len();
        format!(
            "POST /dev/jobs HTTP/1.1\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"
        )
    };
    let json = "Content-Type: application/json\r\n";
    let here = format!("Host: {authority}\r\n");
    // Past the guard: the Redis of this cloud is not there.
    assert_eq!(send(post(&format!("{here}{json}"))).await, 503);
    assert_eq!(send(post(&format!("{here}{json}Origin: http://localhost:3000\r\n"))).await, 503);
    assert_eq!(send(post(&format!("{here}Content-Type: text/plain\r\n"))).await, 415);
    assert_eq!(send(post(&here)).await, 415);
    assert_eq!(send(post(&format!("Host: evil.example\r\n{json}"))).await, 403);
    assert_eq!(send(post(&format!("{here}{json}Origin: https://evil.example\r\n"))).await, 403);
    let get = |host: &str| format!("GET /dev/jobs/1 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    assert_eq!(send(get("evil.example")).await, 403, "what is known of a job is not told either");
    // The host itself and the commands are let through.
    assert!(
        bed.client.get(&Target::parse(&format!("{}{HEALTH}", bed.cloud.url())).unwrap(), LIMIT).await.is_ok()
    );
}
