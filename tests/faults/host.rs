//! The host killed and stopped, messages delivered twice, cancels at every moment.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coda_host_tests::load::Load;
use coda_host_tests::{Exit, LIMIT, Plan, eventually, example};

use crate::{Row, Scale};

fn plan(load: &Load, run_ms: u32) -> Plan {
    // A job may be in the plugin at several kills in a row.
    Plan::faulty(&format!("run_ms: {run_ms}\n{}", load.device())).env("CODA_MAX_DEATHS", "1000")
}

/// Moments below a number of milliseconds, different in each run of the program.
fn moment(below: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::from(d.subsec_nanos()));
    Duration::from_micros(now / 1000 % (below * 1000))
}

pub async fn killed(scale: Scale) -> Row {
    let mut load = Load::new();
    let mut host = plan(&load, 5).start().await;
    for _ in 0..scale.times(20, 5) {
        load.send_for(&host, 50.0, Duration::from_millis(300)).await;
        tokio::time::sleep(moment(60)).await;
        host.kill();
        host.start().await;
    }
    Ok(load.settle(&host, LIMIT).await)
}

pub async fn stopped(scale: Scale) -> Row {
    let mut load = Load::new();
    let mut host = plan(&load, 20).start().await;
    for _ in 0..scale.times(20, 5) {
        load.send_all(&host, 10).await;
        tokio::time::sleep(moment(60)).await;
        assert_eq!(host.stop().await, Exit::Code(0));
        host.start().await;
    }
    Ok(load.settle(&host, LIMIT).await)
}

/// Each job's message is on the stream three times.
pub async fn duplicates(scale: Scale) -> Row {
    let mut load = Load::new();
    let host = plan(&load, 5).start().await;
    for _ in 0..scale.times(100, 20) {
        let id = load.send(&host).await;
        for _ in 0..2 {
            host.submit(&id, &example(), 10).await;
        }
    }
    Ok(load.settle(&host, LIMIT).await)
}

pub async fn cancels(scale: Scale) -> Row {
    let mut load = Load::new();
    let host = plan(&load, 100).start().await;
    for _ in 0..scale.times(25, 3) {
        // Waiting behind another one.
        let first = load.send(&host).await;
        let waiting = load.send(&host).await;
        host.wait_state(&first, "executing").await;
        host.request_cancel(&waiting).await;
        // In the plugin.
        host.request_cancel(&first).await;
        host.wait_state(&first, "cancelled").await;
        host.wait_state(&waiting, "cancelled").await;
        // Somewhere about the end: one outcome, whichever.
        let ending = load.send(&host).await;
        host.wait_state(&ending, "executing").await;
        tokio::time::sleep(Duration::from_millis(90) + moment(20)).await;
        host.request_cancel(&ending).await;
        eventually("it has one end", async || {
            matches!(&*host.state(&ending).await, "completed" | "cancelled")
        })
        .await;
        // Too late.
        let after = load.send(&host).await;
        host.delivered(&after).await;
        host.request_cancel(&after).await;
    }
    let tally = load.settle(&host, LIMIT).await;
    assert_eq!(tally.delivered + tally.cancelled, tally.submitted, "each has one end: {tally:?}");
    Ok(tally)
}
