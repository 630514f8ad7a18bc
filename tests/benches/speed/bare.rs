//! What this machine could do at best: a node that only has the traffic of one.
//!
//! The same Redis commands in the same groups (as much read as there is read-ahead for, three questions per message
//! in one group, the writes of one moment in one pipeline, one question before the end) and the same posts, as many
//! messages and posts in flight, in a separate process; but nothing is parsed, signed or stored on disk and no
//! executor is called.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// The variable that makes this program such a node: a [`Traffic`].
pub const ENV: &str = "CODA_BENCH_BARE";
/// Posts to one origin at once, as the host has it.
const POSTS: usize = 16;
/// Most writes of one pipeline, as the host has it.
const GROUP_MAX: usize = 128;
const STREAM: &str = "qpu:bench:jobs";
const GROUP: &str = "qpu:bench:workers";

type Http = Client<HttpConnector, Full<Bytes>>;
type Write = (redis::Cmd, Option<oneshot::Sender<()>>);

struct Shared {
    redis: MultiplexedConnection,
    writes: mpsc::UnboundedSender<Write>,
    http: Http,
    traffic: Traffic,
    posts: Semaphore,
}

/// Where the traffic goes; handed to the process in its environment.
pub struct Traffic {
    pub redis_url: String,
    pub webhook_url: String,
    pub bearer: String,
    pub read_ahead: usize,
}

impl Traffic {
    /// As it stands in the environment: one field a line.
    pub fn to_text(&self) -> String {
        format!("{}\n{}\n{}\n{}", self.redis_url, self.webhook_url, self.bearer, self.read_ahead)
    }

    /// Reads what [`Traffic::to_text`] wrote.
    pub fn from_env() -> Option<Traffic> {
        let text = std::env::var(ENV).ok()?;
        let mut lines = text.lines().map(str::to_string);
        let mut next = || lines.next().expect("four lines");
        Some(Traffic {
            redis_url: next(),
            webhook_url: next(),
            bearer: next(),
            read_ahead: next().parse().expect("a number"),
        })
    }
}

/// Serves the stream until the process is killed.
pub async fn serve(traffic: Traffic) {
    let client = redis::Client::open(traffic.redis_url.as_str()).expect("a Redis URL");
    let mut reader = client.get_multiplexed_async_connection().await.expect("Redis");
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let (writes, queue) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared {
        redis: client.get_multiplexed_async_connection().await.expect("Redis"),
        writes,
        http: Client::builder(TokioExecutor::new()).build(connector),
        traffic,
        posts: Semaphore::new(POSTS),
    });
    tokio::spawn(write(shared.redis.clone(), queue));
    let mut make = redis::cmd("XGROUP");
    make.arg("CREATE").arg(STREAM).arg(GROUP).arg("0").arg("MKSTREAM");
    make.query_async::<()>(&mut reader).await.expect("XGROUP");
    let room = Arc::new(Semaphore::new(shared.traffic.read_ahead));
    let mut taken = 0;
    loop {
        let mut permit = room.clone().acquire_owned().await.expect("never closed");
        if let Ok(more) = room.clone().try_acquire_many_owned(room.available_permits() as u32) {
            permit.merge(more);
        }
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg(GROUP).arg("worker-0").arg("COUNT").arg(permit.num_permits());
        read.arg("BLOCK").arg(100).arg("STREAMS").arg(STREAM).arg(">");
        let reply: Value = read.query_async(&mut reader).await.expect("XREADGROUP");
        let ids = ids(reply);
        let first = taken;
        taken += ids.len();
        if !ids.is_empty() {
            tokio::spawn(several(shared.clone(), first, ids, permit));
        }
    }
}

/// One group of messages, from the check to the last acknowledgement.
async fn several(shared: Arc<Shared>, first: usize, ids: Vec<String>, room: OwnedSemaphorePermit) {
    let mut ask = redis::pipe();
    for n in first..first + ids.len() {
        let status = format!("qpu:job:job-{n}:status");
        ask.cmd("HGET").arg(&status).arg("state").cmd("HGET").arg(&status).arg("message_id");
        ask.cmd("GET").arg(format!("qpu:job:cancelled:job-{n}"));
    }
    let count = ask.len();
    shared.redis.clone().send_packed_commands(&ask, 0, count).await.expect("HGET");
    for (n, id) in (first..).zip(ids) {
        let write = hset(n, "executing", "started_at", &id);
        shared.writes.send((write, None)).expect("the writer lives");
        tokio::spawn(end(shared.clone(), n, id));
    }
    drop(room);
}

async fn end(shared: Arc<Shared>, n: usize, id: String) {
    let mut ask = redis::cmd("GET");
    ask.arg(format!("qpu:job:cancelled:job-{n}"));
    let cancel: Value = ask.query_async(&mut shared.redis.clone()).await.expect("GET");
    assert!(matches!(cancel, Value::Nil));
    shared.written(hset(n, "completed", "completed_at", &id)).await;
    let body = format!(
        r#"{{"job_id":"job-{n}","status":"completed","counts":{{"00000":100}},"shots_completed":100}}"#
    );
    let permit = shared.posts.acquire().await.expect("never closed");
    let request = Request::post(&shared.traffic.webhook_url)
        .header("authorization", &shared.traffic.bearer)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .expect("a request");
    let answer = shared.http.request(request).await.expect("the cloud answers");
    answer.into_body().collect().await.expect("the answer's body");
    drop(permit);
    let mut ack = redis::cmd("XACK");
    ack.arg(STREAM).arg(GROUP).arg(&id);
    shared.written(ack).await;
}

impl Shared {
    async fn written(&self, write: redis::Cmd) {
        let (done, seen) = oneshot::channel();
        self.writes.send((write, Some(done))).expect("the writer lives");
        seen.await.expect("written");
    }
}

/// Sends what was written in one moment as one pipeline.
async fn write(mut redis: MultiplexedConnection, mut queue: mpsc::UnboundedReceiver<Write>) {
    let mut group = Vec::new();
    while queue.recv_many(&mut group, GROUP_MAX).await > 0 {
        let mut pipe = redis::pipe();
        for (write, _) in &group {
            pipe.add_command(write.clone());
        }
        redis.send_packed_commands(&pipe, 0, group.len()).await.expect("HSET, XACK");
        for (_, done) in group.drain(..) {
            done.map(|done| done.send(()));
        }
    }
}

fn hset(n: usize, state: &str, at: &str, id: &str) -> redis::Cmd {
    let mut hset = redis::cmd("HSET");
    hset.arg(format!("qpu:job:job-{n}:status")).arg(&[
        ("state", state),
        (at, "2026-01-01T00:00:00.000000+00:00"),
        ("message_id", id),
        ("qpu_id", "bench"),
    ]);
    hset
}

fn ids(reply: Value) -> Vec<String> {
    let nested = |v: Value, i: usize| match v {
        Value::Array(list) => list.into_iter().nth(i).unwrap_or(Value::Nil),
        _ => Value::Nil,
    };
    let Value::Array(entries) = nested(nested(reply, 0), 1) else { return Vec::new() };
    let id = |entry: Value| match nested(entry, 0) {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        _ => None,
    };
    entries.into_iter().filter_map(id).collect()
}
