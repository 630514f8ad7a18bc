//! A tab that is open for 10,000 jobs.

use coda_host_tests::browser::Browser;
use coda_host_tests::{Circuit, Plan, eventually};
use futures::future::join_all;

/// Of the tab, beyond what it had when its lists were full.
const MAX_GROWTH: u64 = 3 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_jobs_leave_the_tab_as_it_was() {
    let Some(browser) = Browser::start().await else { return };
    let device = "num_qubits: 5\nmode: noop\nslots: 4";
    let host = Plan::simulator(device).env("CODA_PAGE_INTERVAL_SEC", "0.05").start().await;
    let origin = host.origin();
    browser.open(&format!("{origin}/")).await;
    let mut sent = 0u64;
    let mut run = async |jobs: u64, last: &str| {
        let circuit = Circuit::new(2);
        for _ in 0..jobs / 100 {
            let ids: Vec<String> = (sent..sent + 100).map(|n| format!("J{n}")).collect();
            join_all(ids.iter().map(|id| host.submit(id, &circuit, 10))).await;
            sent += 100;
        }
        let all = sent;
        eventually("they are done", async || host.counted("completed").await >= all).await;
        // Results may be delivered in another order; this one is the last.
        host.submit(last, &circuit, 10).await;
        sent += 1;
        browser.sees(&format!("#recent tr[data-key={last}]"), "completed").await;
    };
    // Every list is full then.
    run(1000, "full").await;
    let before = browser.size().await;
    run(9000, "end").await;
    let after = browser.size().await;
    println!("before {before:?}, after {after:?}");
    assert!(after.heap_bytes < before.heap_bytes + MAX_GROWTH, "{before:?} -> {after:?}");
    assert!(after.nodes < before.nodes + before.nodes / 10, "{before:?} -> {after:?}");
    let rows: usize = browser.script("return document.querySelectorAll('#recent tbody tr').length").await;
    assert!((100..=120).contains(&rows), "{rows}");
    browser.assert_quiet(&[&origin]).await;
}
