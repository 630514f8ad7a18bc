//! Faults of Redis, or of the way to it. Jobs are sent before, and after; while it is away nobody can send any.

use std::collections::BTreeMap;
use std::time::Duration;

use coda_host_tests::load::Load;
use coda_host_tests::proxy::{Link, Proxy};
use coda_host_tests::{Bed, LIMIT, Plan, holds};
use redis::cmd;

use crate::{Row, Scale};

const JOBS: usize = 50;
const FULL: f64 = 10.0;

fn plan(load: &Load) -> Plan {
    Plan::faulty(&format!("run_ms: 20\n{}", load.device())).env("CODA_REDIS_TIMEOUT_SEC", "1")
}

/// A bed whose host reaches Redis through a proxy.
async fn behind(load: &Load) -> (Bed, Proxy) {
    let mut bed = plan(load).lay().await;
    let proxy = Proxy::start(bed.redis.port(), Duration::ZERO).await.expect("a port");
    let url = format!("redis://127.0.0.1:{}/0", proxy.port());
    bed.cloud.edit_bundle(move |bundle| bundle["redis_url"] = url.clone().into());
    bed.start().await;
    (bed, proxy)
}

async fn broken(scale: Scale, link: Link) -> Row {
    let mut load = Load::new();
    let (bed, proxy) = behind(&load).await;
    load.send_all(&bed, JOBS).await;
    holds("the host is at work", async || load.ran().len() > 2).await;
    proxy.set(link);
    tokio::time::sleep(scale.seconds(FULL)).await;
    proxy.set(Link::Pass);
    load.send_all(&bed, JOBS).await;
    Ok(load.settle(&bed, LIMIT).await)
}

pub async fn refused(scale: Scale) -> Row {
    broken(scale, Link::Refuse).await
}

pub async fn frozen(scale: Scale) -> Row {
    broken(scale, Link::Freeze).await
}

pub async fn restarted(scale: Scale) -> Row {
    let mut load = Load::new();
    let mut bed = plan(&load).durable_redis().start().await;
    for _ in 0..scale.times(10, 2) {
        load.send_all(&bed, JOBS / 5).await;
        holds("the host is at work", async || load.ran().len() + 8 > load.sent()).await;
        bed.redis.restart(LIMIT).await.expect("redis-server");
    }
    load.send_all(&bed, JOBS).await;
    Ok(load.settle(&bed, LIMIT).await)
}

/// What nobody had claimed is gone with Redis, and no node's to save; what the host had claimed is delivered.
pub async fn flushed(scale: Scale) -> Row {
    let mut load = Load::new();
    let bed = plan(&load).start().await;
    for _ in 0..scale.times(20, 3) {
        load.send_all(&bed, 4).await;
        let groups = cmd("XINFO").arg("GROUPS").arg(bed.stream()).clone();
        holds("all are claimed", async || {
            let found: redis::RedisResult<Vec<BTreeMap<String, redis::Value>>> = bed.try_redis(&groups).await;
            found.is_ok_and(|g| g.first().is_some_and(|g| g.get("lag") == Some(&redis::Value::Int(0))))
        })
        .await;
        bed.redis::<()>(&cmd("FLUSHALL")).await;
        // A new stream of the same millisecond would give ids that are in flight.
        let flushed = now_ms(&bed).await;
        holds("the next millisecond", async || now_ms(&bed).await > flushed).await;
    }
    load.send_all(&bed, JOBS).await;
    Ok(load.settle(&bed, LIMIT).await)
}

/// Redis' own clock, which ids are made of.
async fn now_ms(bed: &Bed) -> u64 {
    let (seconds, micros): (u64, u64) = bed.redis(&cmd("TIME")).await;
    seconds * 1000 + micros / 1000
}
