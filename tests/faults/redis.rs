//! Faults of Redis, or of the way to it. Jobs are sent before, and after; while it is away no one can send any.

use std::collections::BTreeMap;
use std::time::Duration;

use coda_host_tests::load::Load;
use coda_host_tests::proxy::{Link, Proxy};
use coda_host_tests::refusing_redis::RefusingRedis;
use coda_host_tests::{LIMIT, Plan, TestHost, eventually};
use redis::cmd;

use crate::{Row, Scale};

const JOBS: usize = 50;
const FULL: f64 = 10.0;

fn plan(load: &Load) -> Plan {
    Plan::faulty(&format!("run_ms: 20\n{}", load.device())).env("CODA_REDIS_TIMEOUT_SEC", "1")
}

/// A host whose host reaches Redis through a proxy.
async fn behind(load: &Load) -> (TestHost, Proxy) {
    let mut host = plan(load).prepare().await;
    let proxy = Proxy::start(host.redis.port(), Duration::ZERO).await.expect("a port");
    let url = format!("redis://127.0.0.1:{}/0", proxy.port());
    host.cloud.edit_bundle(move |bundle| bundle["redis_url"] = url.clone().into());
    host.start().await;
    (host, proxy)
}

async fn broken(scale: Scale, link: Link) -> Row {
    let mut load = Load::new();
    let (host, proxy) = behind(&load).await;
    load.send_all(&host, JOBS).await;
    eventually("the host is at work", async || load.ran().len() > 2).await;
    proxy.set(link);
    tokio::time::sleep(scale.seconds(FULL)).await;
    proxy.set(Link::Pass);
    load.send_all(&host, JOBS).await;
    Ok(load.settle(&host, LIMIT).await)
}

pub async fn refused(scale: Scale) -> Row {
    broken(scale, Link::Refuse).await
}

pub async fn frozen(scale: Scale) -> Row {
    broken(scale, Link::Freeze).await
}

pub async fn restarted(scale: Scale) -> Row {
    let mut load = Load::new();
    let mut host = plan(&load).durable_redis().start().await;
    for _ in 0..scale.times(10, 2) {
        load.send_all(&host, JOBS / 5).await;
        eventually("the host is at work", async || load.ran().len() + 8 > load.sent()).await;
        host.redis.restart(LIMIT).await.expect("redis-server");
    }
    load.send_all(&host, JOBS).await;
    Ok(load.settle(&host, LIMIT).await)
}

/// Each command in turn is refused while jobs come: what stays and answers with an error.
pub async fn answers_with_errors(scale: Scale) -> Row {
    let mut load = Load::new();
    let mut host = plan(&load)
        .env("CODA_RECOVER_INTERVAL_SEC", "0.2")
        .env("CODA_REDIS_BACKOFF_SEC", "0.1")
        .env("CODA_REDIS_BACKOFF_MAX_SEC", "0.5")
        .prepare()
        .await;
    let server = RefusingRedis::start(host.redis.port()).await.expect("a port");
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    host.cloud.edit_bundle(move |bundle| bundle["redis_url"] = url.clone().into());
    host.start().await;
    for command in ["XREADGROUP", "XPENDING", "XRANGE", "XACK", "HGET", "HSET", "GET"] {
        for answer in ["-BUSY a script\r\n", "-OOM no memory\r\n", "-READONLY a replica\r\n", "#t\r\n"] {
            server.refuse(command, answer);
            load.send_for(&host, 20.0, scale.seconds(2.0)).await;
        }
    }
    server.allow_all();
    Ok(load.settle(&host, LIMIT).await)
}

/// What nobody had claimed is gone with Redis, and no node's to save; what the host had claimed is delivered.
pub async fn flushed(scale: Scale) -> Row {
    let mut load = Load::new();
    let host = plan(&load).start().await;
    for _ in 0..scale.times(20, 3) {
        load.send_all(&host, 4).await;
        let groups = cmd("XINFO").arg("GROUPS").arg(host.stream()).clone();
        eventually("all are claimed", async || {
            let found: redis::RedisResult<Vec<BTreeMap<String, redis::Value>>> =
                host.try_redis(&groups).await;
            found.is_ok_and(|g| g.first().is_some_and(|g| g.get("lag") == Some(&redis::Value::Int(0))))
        })
        .await;
        host.redis::<()>(&cmd("FLUSHALL")).await;
        // A new stream of the same millisecond would give ids that are in flight.
        let flushed = now_ms(&host).await;
        eventually("the next millisecond", async || now_ms(&host).await > flushed).await;
    }
    load.send_all(&host, JOBS).await;
    Ok(load.settle(&host, LIMIT).await)
}

/// Redis' own clock, which ids are made of.
async fn now_ms(host: &TestHost) -> u64 {
    let (seconds, micros): (u64, u64) = host.redis(&cmd("TIME")).await;
    seconds * 1000 + micros / 1000
}
