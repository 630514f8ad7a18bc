//! What this machine could do at best: the same traffic without the work.
//!
//! The same Redis commands in the same groups (read 4, ask 3 per message, write at the start, ask once,
//! write at the end, acknowledge) and the same posts, as many in flight, but nothing is parsed, signed or
//! stored on disk and no executor is called.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::Semaphore;

use crate::site::Site;

const READ_AHEAD: usize = 4;
const POSTS: usize = 16;

type Http = Client<HttpConnector, Full<Bytes>>;

struct Shared {
    redis: MultiplexedConnection,
    http: Http,
    url: String,
    posts: Semaphore,
}

/// Jobs per second through the bare traffic.
pub async fn jobs_per_second(jobs: usize, ir: &str) -> f64 {
    let mut site = Site::new(None).await;
    let client = redis::Client::open(site.url.as_str()).expect("a Redis URL");
    let mut reader = client.get_multiplexed_async_connection().await.expect("Redis");
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let shared = Arc::new(Shared {
        redis: client.get_multiplexed_async_connection().await.expect("Redis"),
        http: Client::builder(TokioExecutor::new()).build(connector),
        url: site.cloud.webhook_url(),
        posts: Semaphore::new(POSTS),
    });
    let (stream, group) = ("qpu:bench:jobs", "qpu:bench:workers");
    let mut make = redis::cmd("XGROUP");
    make.arg("CREATE").arg(stream).arg(group).arg("0").arg("MKSTREAM");
    make.query_async::<()>(&mut reader).await.expect("XGROUP");
    site.submit(jobs, ir).await;
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    let mut taken = 0;
    while taken < jobs {
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP")
            .arg(group)
            .arg("worker-0")
            .arg("COUNT")
            .arg(READ_AHEAD)
            .arg("STREAMS")
            .arg(stream)
            .arg(">");
        let reply: Value = read.query_async(&mut reader).await.expect("XREADGROUP");
        let ids = ids(reply);
        let (mut redis, mut ask) = (shared.redis.clone(), redis::pipe());
        for n in taken..taken + ids.len() {
            let status = format!("qpu:job:job-{n}:status");
            ask.cmd("HGET").arg(&status).arg("state").cmd("HGET").arg(&status).arg("message_id");
            ask.cmd("GET").arg(format!("qpu:job:cancelled:job-{n}"));
        }
        let count = ask.len();
        redis.send_packed_commands(&ask, 0, count).await.expect("HGET");
        for id in ids {
            let (shared, n) = (shared.clone(), taken);
            taken += 1;
            tasks.spawn(async move { one(&shared, n, id).await });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("a job");
    }
    jobs as f64 / start.elapsed().as_secs_f64()
}

async fn one(shared: &Shared, n: usize, id: String) {
    let mut redis = shared.redis.clone();
    let status = format!("qpu:job:job-{n}:status");
    let at = "2026-01-01T00:00:00.000000+00:00";
    let mut start = redis::cmd("HSET");
    start.arg(&status).arg(&[
        ("state", "executing"),
        ("started_at", at),
        ("message_id", &id),
        ("qpu_id", "bench"),
    ]);
    start.query_async::<()>(&mut redis).await.expect("HSET");
    let cancel: Value = redis::cmd("GET")
        .arg(format!("qpu:job:cancelled:job-{n}"))
        .query_async(&mut redis)
        .await
        .expect("GET");
    assert!(matches!(cancel, Value::Nil));
    let mut end = redis::cmd("HSET");
    end.arg(&status).arg(&[
        ("state", "completed"),
        ("completed_at", at),
        ("message_id", &id),
        ("qpu_id", "bench"),
    ]);
    end.query_async::<()>(&mut redis).await.expect("HSET");
    let body = format!(
        r#"{{"job_id":"job-{n}","status":"completed","counts":{{"00000":100}},"shots_completed":100}}"#
    );
    let permit = shared.posts.acquire().await.expect("never closed");
    let request = Request::post(&shared.url)
        .header("authorization", "Bearer a.b.c")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .expect("a request");
    let answer = shared.http.request(request).await.expect("the cloud answers");
    answer.into_body().collect().await.expect("the answer's body");
    drop(permit);
    let mut ack = redis::cmd("XACK");
    ack.arg("qpu:bench:jobs").arg("qpu:bench:workers").arg(&id);
    ack.query_async::<()>(&mut redis).await.expect("XACK");
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
