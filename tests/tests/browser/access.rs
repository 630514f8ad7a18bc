//! What everyone can use: contrast, names, keyboard alone, small screens, no scripts.

use coda_host::dev::cloud::Answer;
use coda_host_tests::browser::{Browser, DESK, ENTER, PHONE, TAB, WALL};
use coda_host_tests::net::{Net, SIMULATOR};
use coda_host_tests::{Plan, TestHost, bell};

const BELL: &str =
    "OPENQASM 3.0; include \"stdgates.inc\"; qubit[2] q; bit[2] c; h q[0]; cx q[0],q[1]; c = measure q;";

/// A host whose page has every section: jobs that ended in each way, and the sandbox.
async fn full_page() -> TestHost {
    let plan = Plan::simulator("num_qubits: 20\nconnectivity: {grid: [4, 5]}").qubits(20).lends();
    let mut host =
        plan.env("CODA_PAGE_INTERVAL_SEC", "0.05").env("CODA_PAGE_SAMPLE_SEC", "0.05").prepare().await;
    host.set("CODA_SANDBOX_URL", host.cloud.url().to_string());
    host.start().await;
    host.cloud.on_webhook(|webhook| (&*webhook.job_id == "refused").then(|| Answer::status(422)));
    host.submit("good", &bell(), 100).await;
    host.delivered("good").await;
    host.submit("refused", &bell(), 100).await;
    host
}

/// Waits until the page has every section of [`full_page`].
async fn sees_all(browser: &Browser) {
    browser.sees("#recent", "good").await;
    browser.sees("#kept", "coda-host results retry refused").await;
    browser.sees("#parts", "Redis").await;
}

/// Fails when axe-core finds something serious on the page, in either scheme.
async fn assert_accessible(browser: &Browser, page: &str) {
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        let found = browser.serious_violations().await;
        assert!(found.is_empty(), "{page}, {scheme}: {found:#?}");
    }
}

/// Fails when the page is wider than the screen, at any size.
async fn assert_fits(browser: &Browser, page: &str) {
    for size in [PHONE, DESK, WALL] {
        browser.resize(size).await;
        let wide: Vec<String> = browser
            .script(
                "const width = document.documentElement.clientWidth;
                 if (document.documentElement.scrollWidth <= width) return [];
                 return [...document.querySelectorAll('body *')]
                   .filter((e) => e.getBoundingClientRect().right > width + 1 && !e.closest('.table'))
                   .map((e) => e.outerHTML.slice(0, 120));",
            )
            .await;
        let scrolls: bool = browser
            .script("return document.documentElement.scrollWidth > document.documentElement.clientWidth")
            .await;
        assert!(!scrolls, "{page} is wider than {size:?}: {wide:#?}");
    }
    browser.resize(DESK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axe_finds_nothing_serious_and_every_size_fits_on_the_hosts_pages() {
    let Some(browser) = Browser::start().await else { return };
    let mut host = full_page().await;
    let origin = host.origin();
    browser.open(&origin).await;
    sees_all(&browser).await;
    assert_fits(&browser, "overview").await;
    assert_accessible(&browser, "overview").await;
    for (path, text) in
        [("/jobs/good", "Delivered"), ("/jobs/refused", "Refused"), ("/jobs/none", "No such job")]
    {
        browser.open(&format!("{origin}{path}")).await;
        browser.sees("main", text).await;
        assert_fits(&browser, path).await;
        assert_accessible(&browser, path).await;
    }
    browser.console().await;
    browser.assert_asked_only(&[&origin]).await;
    browser.open(&origin).await;
    host.redis.kill().expect("Redis can be killed");
    browser.sees("#state .reasons", "Redis is not reachable").await;
    browser.sees("#parts", "last worked").await;
    assert_fits(&browser, "not ready").await;
    assert_accessible(&browser, "not ready").await;
    host.stop().await;
    browser.sees("#connection", "Out of date").await;
    assert_fits(&browser, "out of date").await;
    assert_accessible(&browser, "out of date").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn axe_finds_nothing_serious_and_every_size_fits_on_the_coordinators_pages() {
    let Some(browser) = Browser::start().await else { return };
    let mut net = Net::start(&[("CODA_PAGE_INTERVAL_SEC", "0.05")]).await;
    net.add(SIMULATOR, &[]).await;
    let origin = format!("http://{}", net.coordinator.http);
    let job = net.coordinator.run(BELL, 100).await;
    let path = format!("/jobs/{}", job["job_id"].as_str().expect("an id"));
    for (path, text) in [("/", "completed"), (path.as_str(), "committed"), ("/jobs/none", "No such job")] {
        browser.open(&format!("{origin}{path}")).await;
        browser.sees("main", text).await;
        assert_fits(&browser, path).await;
        assert_accessible(&browser, path).await;
    }
    browser.console().await;
    browser.assert_asked_only(&[&origin]).await;

    let closed = Net::start(&[("CODA_API_TOKEN", "a-token-of-some-length")]).await;
    browser.open(&format!("http://{}", closed.coordinator.http)).await;
    browser.sees("#sign-in", "Token").await;
    assert_fits(&browser, "sign-in").await;
    assert_accessible(&browser, "sign-in").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keyboard_alone_reaches_the_forms_and_the_tables_and_sends_a_job() {
    let Some(browser) = Browser::start().await else { return };
    let host = full_page().await;
    browser.open(&host.origin()).await;
    sees_all(&browser).await;
    browser.sees("#connection", "Live").await;
    // What has the focus after each Tab, until it is at the beginning again.
    let focused = "const e = document.activeElement;
                   return e === document.body ? '' : e.id || e.getAttribute('aria-label') || e.textContent.trim()";
    let mut reached = Vec::new();
    loop {
        browser.press(TAB).await;
        let now: String = browser.script(focused).await;
        if now.is_empty() || reached.first() == Some(&now) || reached.len() > 100 {
            break;
        }
        let visible: bool = browser
            .script(
                "const e = document.activeElement, s = getComputedStyle(e);
                 return e.matches(':focus-visible') && s.outlineStyle !== 'none'",
            )
            .await;
        assert!(visible, "the focus is not seen on {now}");
        reached.push(now);
    }
    assert_eq!(reached.first().map(String::as_str), Some("Skip to the content"), "{reached:?}");
    for wanted in
        ["circuit", "shots", "Run it", "Times of the last hour", "The last jobs", "What is kept", "good"]
    {
        assert!(reached.iter().any(|name| name == wanted), "{wanted}: {reached:?}");
    }

    // The link to the content leads there; the form works without a mouse, and changes of the page don't take the focus.
    browser.open(&host.origin()).await;
    browser.press(TAB).await;
    browser.press(ENTER).await;
    assert_eq!(browser.script::<String>(focused).await, "content");
    while browser.script::<String>(focused).await != "shots" {
        browser.press(TAB).await;
    }
    // What is in a field is selected by the Tab that leads there.
    browser.press(&format!("77{ENTER}")).await;
    browser.sees("#sandbox [role=status]", "Sent").await;
    browser.sees("#recent", "77").await;
    assert_eq!(browser.script::<String>(focused).await, "shots");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_scripts_the_same_content_is_there() {
    let Some(browser) = Browser::start().await else { return };
    let host = full_page().await;
    let mut net = Net::start(&[]).await;
    net.add(SIMULATOR, &[]).await;
    let job = net.coordinator.run(BELL, 100).await;
    let coordinator = format!("http://{}", net.coordinator.http);
    let of_job = format!("{coordinator}/jobs/{}", job["job_id"].as_str().expect("an id"));
    let pages = [
        (host.origin(), "coda-host results retry refused"),
        (format!("{}/jobs/good", host.origin()), "Delivered"),
        (coordinator.clone(), "completed"),
        (of_job, "committed"),
    ];
    // Sections, names of what is in them, and rows; not times, which go on.
    let content =
        "return [...document.querySelectorAll('main section, h2, h3, dt, th, tr[data-key], .headline')]
                     .map((e) => e.dataset.key || (e.matches('section') ? e.id : e.textContent))";
    for (page, text) in &pages {
        browser.run_scripts(true).await;
        browser.open(page).await;
        browser.sees("main", text).await;
        let with: Vec<String> = browser.script(content).await;
        browser.run_scripts(false).await;
        browser.open(page).await;
        browser.sees("main", text).await;
        let without: Vec<String> = browser.script(content).await;
        assert_eq!(with, without, "{page}");
        assert!(with.len() > 5, "{with:?}");
        assert!(!browser.script::<bool>("return document.body.classList.contains('scripted')").await);
    }
    browser.open(&host.origin()).await;
    browser.sees("#sandbox", "coda-host submit").await;
}
