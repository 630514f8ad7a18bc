//! Faults of the endpoint that takes results. Fifty jobs are sent while the fault lasts.

use std::time::Duration;

use coda_host::dev::cloud::Answer;
use coda_host_tests::load::Load;
use coda_host_tests::proxy::{Link, Proxy};
use coda_host_tests::{LIMIT, Plan};

use crate::{Row, Scale};

const JOBS: f64 = 50.0;
const FULL: f64 = 20.0;

fn plan(load: &Load) -> Plan {
    Plan::faulty(&format!("run_ms: 5\n{}", load.device())).env("CODA_WEBHOOK_TIMEOUT_SEC", "1")
}

/// Every webhook is answered so for as long as the fault lasts.
async fn says(scale: Scale, answer: fn() -> Answer) -> Row {
    let mut load = Load::new();
    let host = plan(&load).start().await;
    let time = scale.seconds(FULL);
    host.cloud.on_webhook(move |_| Some(answer()));
    load.send_for(&host, JOBS / time.as_secs_f64(), time).await;
    host.cloud.clear_hooks();
    Ok(load.settle(&host, LIMIT).await)
}

pub async fn says_503(scale: Scale) -> Row {
    says(scale, || Answer::status(503)).await
}

pub async fn hangs(scale: Scale) -> Row {
    says(scale, Answer::hang).await
}

pub async fn redirects(scale: Scale) -> Row {
    says(scale, || Answer::status(302).header("location", "http://127.0.0.1:9/elsewhere")).await
}

pub async fn closes(scale: Scale) -> Row {
    says(scale, Answer::drop_connection).await
}

/// The worst case for "once": the cloud has the result, and the host can't know.
pub async fn takes_and_closes(scale: Scale) -> Row {
    says(scale, || Answer::drop_connection().having_processed()).await
}

pub async fn refuses(scale: Scale) -> Row {
    let mut load = Load::new();
    let mut host = plan(&load).prepare().await;
    let port = host.cloud.url().rsplit(':').next().and_then(|p| p.parse().ok()).expect("a port");
    let proxy = Proxy::start(port, Duration::ZERO).await.expect("a port");
    let direct = host.cloud.webhook_url();
    let path = direct.strip_prefix(host.cloud.url()).expect("the cloud's path");
    let url = format!("http://127.0.0.1:{}", proxy.port());
    load.call_back_at(format!("{url}{path}"));
    host.set("CODA_WEBAPP_URL", url);
    host.start().await;
    let time = scale.seconds(FULL);
    proxy.set(Link::Refuse);
    load.send_for(&host, JOBS / time.as_secs_f64(), time).await;
    proxy.set(Link::Pass);
    Ok(load.settle(&host, LIMIT).await)
}

/// Refused permanently: kept, until an operator sends them again.
pub async fn says_422(scale: Scale) -> Row {
    let mut load = Load::new();
    let host = plan(&load).start().await;
    let time = scale.seconds(FULL);
    host.cloud.on_webhook(|_| Some(Answer::status(422)));
    load.send_for(&host, JOBS / time.as_secs_f64(), time).await;
    let kept = load.settle(&host, LIMIT).await;
    if kept.kept != kept.submitted {
        return Ok(kept);
    }
    host.cloud.clear_hooks();
    for n in 0..load.sent() {
        let said = host.cli(&["results", "retry", &format!("J{n}")]).await;
        if said.code != 0 {
            eprintln!("results retry J{n}: {}", said.text());
        }
    }
    Ok(load.settle(&host, LIMIT).await)
}
