//! How long the device stands still when the plugin is replaced under load.

use std::time::Duration;

use coda_host_tests::swaps::{RUN, Swaps};

/// Prints the pauses of so many swaps, two seconds apart.
pub async fn pauses(swaps: u64) {
    let load = Swaps::run(swaps, Duration::from_secs(2)).await;
    for n in 0..load.jobs {
        load.host.delivered(&format!("J{n}")).await;
    }
    let mut ms: Vec<f64> = load.gaps().iter().map(|g| g.time.as_secs_f64() * 1e3).collect();
    ms.sort_by(f64::total_cmp);
    println!(
        "swap: longest pause p50 {} ms, max {} ms, in {} swaps; a job takes {} ms ({} jobs, each run once: {})",
        super::number(super::percentile(&ms, 0.5)),
        super::number(super::percentile(&ms, 1.0)),
        ms.len(),
        RUN.as_millis(),
        load.jobs,
        load.runs().len() as u64 == load.jobs && load.runs().values().all(|n| *n == 1),
    );
}
