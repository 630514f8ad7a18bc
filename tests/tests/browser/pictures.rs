//! Pictures at three sizes, light and dark, for people to look at: `target/screenshots`.

use coda_host_tests::browser::{Browser, DESK, PHONE, WALL};
use coda_host_tests::net::Net;
use coda_host_tests::{Plan, TestHost, bell, eventually, example, ghz};

const GHZ8: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[8] q; bit[8] c; h q[0];
    for int i in [0:6] { cx q[i], q[i + 1]; } c = measure q;";

/// The couplings of 27 qubits in two heavy hexagons.
const HEAVY_HEX: &str = "[[0,1],[1,2],[2,3],[3,5],[5,8],[8,9],[8,11],[11,14],[14,13],[13,12],[12,10],[10,7],[7,6],[7,4],[4,1],\
    [12,15],[15,18],[18,17],[18,21],[21,23],[23,24],[24,25],[25,22],[22,19],[19,20],[19,16],[16,14],[25,26]]";

/// Keeps pictures of the page as it is, at every size, light and dark.
async fn take(browser: &Browser, name: &str) {
    for (size, on) in [(PHONE, "phone"), (DESK, "desk"), (WALL, "wall")] {
        browser.resize(size).await;
        for scheme in ["light", "dark"] {
            browser.prefer(scheme).await;
            browser.screenshot(&format!("{name}-{on}-{scheme}")).await;
        }
    }
    browser.resize(DESK).await;
}

async fn start(plan: Plan) -> TestHost {
    plan.env("CODA_PAGE_INTERVAL_SEC", "0.05").env("CODA_PAGE_SAMPLE_SEC", "0.1").start().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_host_that_is_idle_busy_and_not_ready() {
    let Some(browser) = Browser::start().await else { return };
    let device = format!("num_qubits: 27\nslots: 2\nexecution_time_ms: 20\nconnectivity: {HEAVY_HEX}");
    let mut host = start(Plan::simulator(&device).qubits(27)).await;
    browser.open(&host.origin()).await;
    for n in 0..24 {
        host.submit(&format!("calibration-{n}"), &bell(), 1000 + n).await;
    }
    host.send(&host.job("wide", &ghz(29), 100)).await;
    browser.sees("#recent", "wide").await;
    eventually("all are done", async || host.counted("completed").await == 24).await;
    browser.sees("#state", "Ready, waiting for jobs").await;
    take(&browser, "idle").await;
    host.redis.kill().expect("Redis can be killed");
    browser.sees("#state", "Not ready").await;
    browser.sees("#parts", "last worked").await;
    take(&browser, "not-ready").await;
    host.stop().await;
    browser.sees("#connection", "Out of date").await;
    take(&browser, "out-of-date").await;

    let host = start(Plan::device("executor_factory: coda_example_rust\nhost: lab\nport: 7")).await;
    browser.open(&host.origin()).await;
    for n in 0..8 {
        host.submit(&format!("short-{n}"), &bell(), 4096).await;
    }
    host.submit("tomography-17", &example(), i32::MAX as u32).await;
    host.submit("ramsey-3", &bell(), 4096).await;
    host.submit("ramsey-4", &bell(), 4096).await;
    browser.sees("#now .waiting", "ramsey-4").await;
    let progress = "return document.querySelector('#now progress')?.value ?? 0";
    eventually("some progress", async || browser.script::<f64>(progress).await > 1e8).await;
    take(&browser, "busy").await;
    browser.open(&format!("{}/jobs/tomography-17", host.origin())).await;
    take(&browser, "job").await;
    host.request_cancel("tomography-17").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_coordinator_with_a_job_of_eight_qubits_in_flight() {
    let Some(browser) = Browser::start().await else { return };
    let mut net = Net::start(&[
        ("CODA_PAGE_INTERVAL_SEC", "0.05"),
        ("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", "600"),
        ("CODA_COORDINATOR_HEDGE", "off"),
    ])
    .await;
    let device =
        |run_ms: u32| format!("executor_factory: coda_faulty\nevolve: true\nslots: 2\nrun_ms: {run_ms}\n");
    for run_ms in [150, 300, 1500] {
        net.add(&device(run_ms), &[("CODA_NUM_QUBITS", "8")]).await;
    }
    let c = &net.coordinator;
    let earlier = c.run(GHZ8, 1000).await;
    assert_eq!(earlier["status"], "completed", "{earlier}");
    let id = c.submit(GHZ8, 1000).await;
    eventually("some blocks are done", async || {
        c.job(&id).await["progress"]["blocks_completed"].as_u64() >= Some(2)
    })
    .await;
    let origin = format!("http://{}", c.http);
    browser.open(&format!("{origin}/jobs/{id}")).await;
    browser.sees("#blocks", "completed").await;
    take(&browser, "coordinator-job").await;
    browser.open(&origin).await;
    browser.sees("#peers", "takes blocks").await;
    take(&browser, "coordinator").await;
    browser.open(&format!("{origin}/jobs/{}", earlier["job_id"].as_str().expect("an id"))).await;
    browser.sees("#counts", "%").await;
    take(&browser, "coordinator-done").await;
}
