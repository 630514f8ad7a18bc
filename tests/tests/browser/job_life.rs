//! A job's life on the page.

use coda_host_tests::browser::Browser;
use coda_host_tests::{Plan, bell, eventually, example};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_seen_waiting_running_with_its_progress_and_delivered() {
    let Some(browser) = Browser::start().await else { return };
    let device = "executor_factory: coda_example_rust\nhost: lab\nport: 7";
    let host = Plan::device(device).env("CODA_PAGE_INTERVAL_SEC", "0.05").start().await;
    let origin = host.origin();
    browser.open(&format!("{origin}/")).await;
    browser.sees("#state", "Ready, waiting for jobs").await;
    browser.sees("#connection", "Live").await;
    // A section that comes later has the place that it has from the start on.
    browser.sees("#gauges", "0.012").await;
    let sections = "return [...document.querySelectorAll('main > section')].map((section) => section.id)";
    let grown: Vec<String> = browser.script(sections).await;
    browser.open(&format!("{origin}/")).await;
    assert_eq!(grown, browser.script::<Vec<String>>(sections).await);

    // The first one runs until it is cancelled.
    host.submit("long", &example(), i32::MAX as u32).await;
    host.submit("short", &bell(), 100).await;
    browser.sees("#state", "Running 1 job").await;
    browser.sees("#now .running", "long").await;
    browser.sees("#now .waiting", "short").await;
    let progress = "return document.querySelector('#now progress')?.value ?? 0";
    eventually("its progress is there", async || browser.script::<f64>(progress).await > 0.0).await;
    let before: f64 = browser.script(progress).await;
    eventually("it moves", async || browser.script::<f64>(progress).await > before).await;

    // Its own page follows it, without a stream.
    browser.click("#now .running a").await;
    browser.sees("#job", "running").await;
    host.request_cancel("long").await;
    browser.sees("#job", "cancelled").await;
    host.delivered("short").await;
    browser.click(".top a").await;
    browser.sees("#recent tr[data-key=short]", "completed").await;
    browser.sees("#recent tr[data-key=long]", "cancelled").await;
    browser.click("#recent tr[data-key=short] a").await;
    browser.sees("#job .done:last-child", "Delivered").await;
    browser.assert_quiet(&[&origin]).await;
}
