//! The development cloud: the endpoints of Coda that a node uses, on loopback, as a library.
//!
//! `coda-host dev` runs it, and so do the project's tests and benchmarks: it answers as the contract says,
//! checks tokens as the cloud does, records everything, and a behaviour hook can make any endpoint slow,
//! refuse, drop the connection or hang. It keeps up with more webhooks per second than a host sends. Beside
//! the cloud's endpoints there are `/dev/jobs` for sending jobs and following them. It knows no users: it
//! listens on loopback only.

mod jobs;
mod record;
mod rsa_key;
mod tokens;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, MutexGuard, RwLock};
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

pub use record::{
    Answer, BundleEdit, DevCloudState, Hook, JobDeliveries, ReceivedConnect, ReceivedHeartbeat,
    ReceivedWebhook, SubmittedJob,
};
pub use tokens::Keys;

use record::{End, Hooks};

use crate::error::Explain;
use crate::model::Secret;
use crate::request_guard;

pub const CONNECT: &str = "/api/internal/qpu/connect";
pub const HEARTBEAT: &str = "/api/internal/qpu/heartbeat";
pub const WEBHOOK: &str = "/api/internal/qpu/webhook";
pub const HEALTH: &str = "/api/internal/qpu/health";

/// Largest body that is read, above the size of every legal circuit or result.
const BODY_LIMIT: usize = 32 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DevCloudError {
    #[error("an RSA key could not be generated")]
    Keys,
    #[error("the development cloud can't listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("the development cloud listens on loopback only, not on {0}")]
    NotLoopback(SocketAddr),
    #[error("the URL of the development cloud's Redis can't be used")]
    RedisUrl(#[source] redis::RedisError),
}

impl Explain for DevCloudError {
    fn code(&self) -> &'static str {
        "dev-cloud"
    }

    fn hint(&self) -> Option<String> {
        match self {
            DevCloudError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                Some("choose another port, or port 0 for a free one".into())
            }
            DevCloudError::NotLoopback(_) => Some("use 127.0.0.1".into()),
            _ => None,
        }
    }
}

/// The QPU of the development cloud, and how the cloud serves.
#[derive(Clone)]
pub struct Options {
    pub qpu_id: String,
    pub qpu_name: String,
    pub native_gate_set: String,
    pub num_qubits: u16,
    pub redis_url: Secret,
    pub listen: SocketAddr,
    /// One-time tokens that may be redeemed.
    pub tokens: Vec<String>,
    /// The signing keys; generated at the start when there are none.
    pub keys: Option<Arc<Keys>>,
    /// Serves https, as `https://localhost:<port>`.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Smallest number of records that are kept.
    pub keep: usize,
    /// How often a waiting `/dev/jobs` request looks at Redis.
    pub poll: Duration,
    /// Takes only what a page of another site can't send: Host and Origin of this machine, and JSON.
    pub guarded: bool,
}

impl Options {
    pub fn new(qpu_id: &str, redis_url: &str) -> Options {
        Options {
            qpu_id: qpu_id.into(),
            qpu_name: "Development QPU".into(),
            native_gate_set: "cz".into(),
            num_qubits: 5,
            redis_url: Secret::new(redis_url),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tokens: vec![format!("one-time-{qpu_id}")],
            keys: None,
            tls: None,
            keep: usize::MAX,
            poll: Duration::from_millis(100),
            guarded: false,
        }
    }
}

/// A running cloud; dropped, it stops listening and closes its connections.
pub struct DevCloud {
    shared: Arc<Shared>,
    listening: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    options: Options,
    address: SocketAddr,
    base: String,
    keys: RwLock<Arc<Keys>>,
    state: Mutex<DevCloudState>,
    tick: watch::Sender<u64>,
    hooks: RwLock<Arc<Hooks>>,
    jobs: jobs::Jobs,
}

impl DevCloud {
    pub async fn start(options: Options) -> Result<DevCloud, DevCloudError> {
        if !options.listen.ip().is_loopback() {
            return Err(DevCloudError::NotLoopback(options.listen));
        }
        let keys = match &options.keys {
            Some(keys) => keys.clone(),
            None => Arc::new(Keys::generate(&format!("{}-key-1", options.qpu_id))?),
        };
        let failed = |source| DevCloudError::Listen { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let base = match options.tls {
            Some(_) => format!("https://localhost:{}", address.port()),
            None => format!("http://{address}"),
        };
        let state = DevCloudState {
            tokens: options.tokens.iter().map(|t| (t.clone(), false)).collect(),
            ..DevCloudState::default()
        };
        let jobs = jobs::Jobs::new(&options).map_err(DevCloudError::RedisUrl)?;
        let shared = Arc::new(Shared {
            address,
            base,
            keys: RwLock::new(keys),
            state: Mutex::new(state),
            tick: watch::Sender::new(0),
            hooks: RwLock::default(),
            jobs,
            options,
        });
        let listening = Mutex::new(Some(tokio::spawn(listen(listener, shared.clone()))));
        Ok(DevCloud { shared, listening })
    }

    /// `http://127.0.0.1:<port>`.
    pub fn url(&self) -> &str {
        &self.shared.base
    }

    pub fn webhook_url(&self) -> String {
        format!("{}{WEBHOOK}", self.shared.base)
    }

    /// The key as a node would hold it, and its id.
    pub fn private_key(&self) -> (Secret, String) {
        let keys = self.shared.keys();
        (keys.private_pem.clone(), keys.kid.clone())
    }

    pub fn state(&self) -> MutexGuard<'_, DevCloudState> {
        self.shared.state()
    }

    /// A further one-time token.
    pub fn add_token(&self, token: &str) {
        self.state().tokens.insert(token.into(), false);
    }

    /// Replaces the key; nodes receive the new one with their next connect.
    pub fn rotate_keys(&self, keys: Arc<Keys>) {
        *self.shared.keys.write() = keys;
    }

    pub fn on_webhook(&self, hook: impl Fn(&ReceivedWebhook) -> Option<Answer> + Send + Sync + 'static) {
        self.shared.change_hooks(|h| h.webhook = Some(Arc::new(hook)));
    }

    pub fn on_heartbeat(&self, hook: impl Fn(&ReceivedHeartbeat) -> Option<Answer> + Send + Sync + 'static) {
        self.shared.change_hooks(|h| h.heartbeat = Some(Arc::new(hook)));
    }

    pub fn on_connect(&self, hook: impl Fn(&ReceivedConnect) -> Option<Answer> + Send + Sync + 'static) {
        self.shared.change_hooks(|h| h.connect = Some(Arc::new(hook)));
    }

    /// Changes bundles before they are sent.
    pub fn edit_bundle(&self, edit: impl Fn(&mut Value) + Send + Sync + 'static) {
        self.shared.change_hooks(|h| h.bundle = Some(Arc::new(edit)));
    }

    /// Removes every hook.
    pub fn clear_hooks(&self) {
        self.shared.change_hooks(|h| *h = Hooks::default());
    }

    /// Waits until `done` returns true, checked after every recorded request. Returns false when `limit` is over.
    pub async fn wait_until(&self, limit: Duration, mut done: impl FnMut(&DevCloudState) -> bool) -> bool {
        let mut ticks = self.shared.tick.subscribe();
        let waiting = async {
            loop {
                ticks.borrow_and_update();
                if done(&self.state()) {
                    return true;
                }
                if ticks.changed().await.is_err() {
                    return false;
                }
            }
        };
        tokio::time::timeout(limit, waiting).await.unwrap_or(false)
    }

    /// Closes the port and every connection, like a cloud that is down. The records stay.
    pub async fn go_down(&self) {
        let task = self.listening.lock().take();
        if let Some(task) = task {
            task.abort();
            // Ends with "cancelled", as asked.
            task.await.ok();
        }
    }

    /// Listens again on the same port.
    pub async fn come_up(&self) -> Result<(), DevCloudError> {
        self.go_down().await;
        let address = self.shared.address;
        let listener =
            TcpListener::bind(address).await.map_err(|source| DevCloudError::Listen { address, source })?;
        let task = tokio::spawn(listen(listener, self.shared.clone()));
        *self.listening.lock() = Some(task);
        Ok(())
    }
}

impl Drop for DevCloud {
    fn drop(&mut self) {
        if let Some(task) = self.listening.lock().take() {
            task.abort();
        }
    }
}

/// Accepts connections. They are in a `JoinSet` of this task, so that aborting the task closes them.
async fn listen(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the development cloud could not accept a connection");
                // Out of descriptors, mostly: it passes when connections end.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
        let shared = shared.clone();
        connections.spawn(async move {
            match shared.options.tls.clone() {
                None => serve(TokioIo::new(stream), shared).await,
                Some(tls) => match tokio_rustls::TlsAcceptor::from(tls).accept(stream).await {
                    Ok(stream) => serve(TokioIo::new(stream), shared).await,
                    Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
                },
            }
        });
    }
}

async fn serve<I>(io: I, shared: Arc<Shared>)
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let service = service_fn(|request| shared.handle(request));
    if let Err(error) = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await {
        tracing::debug!(%error, "a connection to the development cloud ended");
    }
}

/// Ends a connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is dropped on purpose")]
struct Dropped;

type Reply = Response<Full<Bytes>>;

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow, default)]
    job_id: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    status: std::borrow::Cow<'a, str>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, DevCloudState> {
        self.state.lock()
    }

    fn keys(&self) -> Arc<Keys> {
        self.keys.read().clone()
    }

    fn hooks(&self) -> Arc<Hooks> {
        self.hooks.read().clone()
    }

    fn change_hooks(&self, change: impl FnOnce(&mut Hooks)) {
        let mut hooks = self.hooks.write();
        change(Arc::make_mut(&mut hooks));
    }

    fn notify_waiters(&self) {
        self.tick.send_modify(|n| *n += 1);
    }

    async fn handle(self: &Arc<Self>, request: Request<Incoming>) -> Result<Reply, Dropped> {
        let (head, body) = request.into_parts();
        if self.options.guarded {
            let allowed = request_guard::check_site(&head.headers)
                .and_then(|()| request_guard::check_content_type(&head.method, &head.headers));
            if let Err(refusal) = allowed {
                return Ok(error(refusal.status().as_u16(), &refusal.to_string()));
            }
        }
        let body = match Limited::new(body, BODY_LIMIT).collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => return Ok(error(413, "the body is too large or broke off")),
        };
        let bearer = head
            .headers
            .get(AUTHORIZATION)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.strip_prefix("Bearer "))
            .unwrap_or_default();
        let path = head.uri.path();
        match (&head.method, path) {
            (&Method::POST, WEBHOOK) => self.webhook(bearer, body).await,
            (&Method::POST, HEARTBEAT) => self.heartbeat(bearer, &body).await,
            (&Method::POST, CONNECT) => self.connect(bearer, &body).await,
            (&Method::GET | &Method::HEAD, HEALTH) => Ok(reply(200, &json!({ "status": "ok" }))),
            _ => match path
                .strip_prefix("/dev/jobs")
                .filter(|rest| matches!(rest.chars().next(), None | Some('/')))
            {
                Some(rest) => Ok(self.dev_jobs(&head.method, rest, head.uri.query(), &body).await),
                None => Ok(error(404, "no such endpoint")),
            },
        }
    }

    async fn webhook(&self, bearer: &str, body: Bytes) -> Result<Reply, Dropped> {
        let named: Named<'_> =
            serde_json::from_slice(&body).unwrap_or_else(|_| Named { job_id: "".into(), status: "".into() });
        let (job_id, status) = (Arc::<str>::from(&*named.job_id), Arc::<str>::from(&*named.status));
        let jwt = self.keys().check(bearer, &self.options.qpu_id);
        let attempt = {
            let mut state = self.state();
            let job = state.jobs.entry(job_id.clone()).or_default();
            job.attempts += 1;
            job.attempts
        };
        let mut seen = ReceivedWebhook {
            at: Instant::now(),
            time: OffsetDateTime::now_utc(),
            job_id,
            status,
            body,
            jwt,
            attempt,
            answered: None,
        };
        let answer = self.hooks().webhook.as_ref().and_then(|hook| hook(&seen)).unwrap_or_else(Answer::usual);
        let usual = || match seen.jwt {
            Ok(()) => (200, json!({ "ok": true })),
            Err(why) => (401, json!({ "error": why })),
        };
        let (answered, reply) = decide(&answer, usual);
        seen.answered = answered;
        let accepted = answer.processed || answered.is_some_and(|s| (200..300).contains(&s));
        {
            let mut state = self.state();
            state.webhook_count += 1;
            state.bad_tokens += u64::from(seen.jwt.is_err());
            let job = state.jobs.entry(seen.job_id.clone()).or_default();
            if accepted {
                job.accepted += 1;
                if job.accepted == 1 {
                    job.accepted_at = Some(seen.time);
                    job.body = seen.body.clone();
                    state.accepted_jobs += 1;
                }
            }
            state.webhooks.push(seen);
            state.trim(self.options.keep);
        }
        self.notify_waiters();
        finish(&answer, reply).await
    }

    async fn heartbeat(&self, bearer: &str, body: &[u8]) -> Result<Reply, Dropped> {
        let jwt = self.keys().check(bearer, &self.options.qpu_id);
        let body = serde_json::from_slice(body).unwrap_or(Value::Null);
        let mut seen = ReceivedHeartbeat { at: Instant::now(), body, jwt, answered: None };
        let answer =
            self.hooks().heartbeat.as_ref().and_then(|hook| hook(&seen)).unwrap_or_else(Answer::usual);
        let usual = || match seen.jwt {
            Err(why) => (401, json!({ "error": why })),
            Ok(()) => match self.bad_topology(seen.body.get("connectivity")) {
                Some(why) => (400, json!({ "error": why })),
                None => (200, json!({ "ok": true })),
            },
        };
        let (answered, reply) = decide(&answer, usual);
        seen.answered = answered;
        {
            let mut state = self.state();
            state.heartbeats.push(seen);
            state.trim(self.options.keep);
        }
        self.notify_waiters();
        finish(&answer, reply).await
    }

    async fn connect(&self, bearer: &str, body: &[u8]) -> Result<Reply, Dropped> {
        let body = serde_json::from_slice(body).unwrap_or(Value::Null);
        let jwt = bearer.split('.').count() == 3;
        let mut seen = ReceivedConnect { at: Instant::now(), jwt, body, answered: None };
        let hooks = self.hooks();
        let answer = hooks.connect.as_ref().and_then(|hook| hook(&seen)).unwrap_or_else(Answer::usual);
        let process = answer.processed || matches!(answer.end, End::Usual);
        let usual = if process {
            self.grant(bearer, jwt, &seen.body, &hooks)
        } else {
            (500, json!({ "error": "not processed" }))
        };
        let (answered, reply) = decide(&answer, || usual);
        seen.answered = answered;
        {
            let mut state = self.state();
            state.connects.push(seen);
            state.trim(self.options.keep);
        }
        self.notify_waiters();
        finish(&answer, reply).await
    }

    fn grant(&self, bearer: &str, jwt: bool, body: &Value, hooks: &Hooks) -> (u16, Value) {
        let refuse = |status, why: &str| (status, json!({ "error": why }));
        if body["machine_fingerprint"].as_str().is_none_or(str::is_empty) {
            return refuse(400, "machine_fingerprint is missing");
        }
        if let Some(why) = self.bad_topology(body.get("connectivity")) {
            return refuse(400, why);
        }
        let keys = self.keys();
        if jwt {
            if let Err(why) = keys.check(bearer, &self.options.qpu_id) {
                return refuse(401, why);
            }
        } else {
            match self.state().tokens.get_mut(bearer) {
                None => return refuse(401, "unknown node token"),
                Some(true) => return refuse(401, "this node token has already been used"),
                Some(used) => *used = true,
            }
        }
        let o = &self.options;
        let mut bundle = json!({
            "qpu_id": o.qpu_id, "qpu_display_name": o.qpu_name, "qpu_label": o.qpu_name,
            "native_gate_set": o.native_gate_set, "num_qubits": o.num_qubits, "jwt_key_id": keys.kid,
            "redis_url": o.redis_url.expose(), "webapp_url": self.base, "cloud_base_url": self.base,
            "connect_path": CONNECT, "register_path": "/api/internal/qpu/register",
            "heartbeat_path": HEARTBEAT, "webhook_path": WEBHOOK,
            "stream_key": format!("qpu:{}:jobs", o.qpu_id), "webhook_url": format!("{}{WEBHOOK}", self.base),
            "vpn": { "required": false, "interface_hint": null, "check_interval_sec": null,
                     "probe_targets": [], "client_profile_ovpn": null },
            "connection_mode": "https", "issued_at": crate::model::iso_time(OffsetDateTime::now_utc()),
            "connect_id": "dev",
        });
        // A reconnecting node gets the key only when it has been changed, which it can't know by itself.
        if !jwt {
            bundle["jwt_private_key"] = json!(keys.private_pem.expose());
        }
        if let Some(edit) = &hooks.bundle {
            edit(&mut bundle);
        }
        (200, bundle)
    }

    /// Returns what is wrong with the reported edges.
    fn bad_topology(&self, edges: Option<&Value>) -> Option<&'static str> {
        let edges = edges.filter(|e| !e.is_null())?;
        let Some(edges) = edges.as_array() else { return Some("connectivity is not a list") };
        for edge in edges {
            let ends: Option<Vec<u64>> = edge.as_array().and_then(|e| e.iter().map(Value::as_u64).collect());
            match ends.as_deref() {
                Some([a, b]) if a == b => return Some("connectivity holds an edge from a qubit to itself"),
                Some([a, b]) if (*a).max(*b) < u64::from(self.options.num_qubits) => (),
                Some([_, _]) => return Some("connectivity names a qubit that the QPU does not have"),
                _ => return Some("connectivity holds something that is not a pair of qubits"),
            }
        }
        None
    }
}

/// The status that will be answered, and the answer.
fn decide(answer: &Answer, usual: impl FnOnce() -> (u16, Value)) -> (Option<u16>, Option<Reply>) {
    let (status, body) = match answer.end {
        End::Drop | End::Hang => return (None, None),
        End::Usual => usual(),
        End::Status(status) => (status, json!({ "error": "answered so on purpose" })),
    };
    let mut reply = match &answer.body {
        Some(text) => text_reply(status, text.clone()),
        None => reply(status, &body),
    };
    for (name, value) in &answer.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            reply.headers_mut().insert(name, value);
        }
    }
    (Some(reply.status().as_u16()), Some(reply))
}

async fn finish(answer: &Answer, reply: Option<Reply>) -> Result<Reply, Dropped> {
    if !answer.latency.is_zero() {
        tokio::time::sleep(answer.latency).await;
    }
    match (reply, answer.end) {
        (Some(reply), _) => Ok(reply),
        (None, End::Hang) => match std::future::pending::<Infallible>().await {},
        (None, _) => Err(Dropped),
    }
}

fn reply(status: u16, body: &Value) -> Reply {
    text_reply(status, body.to_string())
}

fn error(status: u16, why: &str) -> Reply {
    reply(status, &json!({ "error": why }))
}

fn text_reply(status: u16, body: String) -> Reply {
    const JSON: HeaderValue = HeaderValue::from_static("application/json");
    let mut reply = Response::new(Full::new(Bytes::from(body)));
    // A hook's number may be none.
    *reply.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    reply.headers_mut().insert(CONTENT_TYPE, JSON);
    reply
}

#[cfg(test)]
#[path = "cloud_tests.rs"]
mod tests;
