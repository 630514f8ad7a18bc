//! A coordinator's pages: the token, a job from the form to its counts, a cancel.

use coda_host_tests::browser::{Browser, ENTER};
use coda_host_tests::net::{Net, SIMULATOR};

const TOKEN: &str = "a-token-of-some-length";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_circuit_goes_from_the_form_to_its_counts() {
    let Some(browser) = Browser::start().await else { return };
    let mut net = Net::start(&[("CODA_PAGE_INTERVAL_SEC", "0.05")]).await;
    net.add(SIMULATOR, &[]).await;
    net.add(SIMULATOR, &[]).await;
    let origin = format!("http://{}", net.coordinator.http);
    browser.open(&origin).await;
    browser.sees("#state", "Ready, with 2 peers").await;
    browser.click("#example option:nth-child(3)").await;
    let filled: String = browser.script("return document.getElementById('qasm').value").await;
    assert!(filled.contains("qubit[8]"), "{filled}");
    browser.click("#submit button").await;
    browser.sees("#submit [role=status]", "Accepted").await;
    browser.sees("#jobs tbody", "completed").await;
    browser.click("#jobs tbody a").await;
    browser.sees("#counts", "11111111").await;
    browser.sees("#timeline", "completed").await;
    browser.sees("#reservations", "committed").await;
    browser.click(".top a").await;
    browser.click(".filter a[href='/?status=failed']").await;
    browser.sees("#jobs", "No such job.").await;
    browser.assert_quiet(&[&origin]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_token_one_signs_in_submits_and_cancels() {
    let Some(browser) = Browser::start().await else { return };
    // Without a peer the job waits, until it is cancelled.
    let net = Net::start(&[
        ("CODA_API_TOKEN", TOKEN),
        ("CODA_PAGE_INTERVAL_SEC", "0.05"),
        ("CODA_COORDINATOR_PEER_WAIT_SEC", "600"),
    ])
    .await;
    let origin = format!("http://{}", net.coordinator.http);
    browser.open(&origin).await;
    browser.sees("#connection", "The token is needed").await;
    browser.sees_no("#jobs").await;
    // It has the focus already.
    browser.press(&format!("not-this-one-at-all{ENTER}")).await;
    browser.sees("#connection", "This is not the token").await;
    browser.sees_no("#jobs").await;
    browser.script::<()>("document.getElementById('token').value = ''").await;
    browser.press(&format!("{TOKEN}{ENTER}")).await;
    browser.sees("#state", "Not ready").await;
    browser.sees("#connection", "Live").await;
    // The browser notes each 401.
    browser.console().await;

    browser.click("#example option:nth-child(2)").await;
    browser.click("#submit button").await;
    browser.sees("#submit [role=status]", "Accepted").await;
    browser.click("#jobs tbody a").await;
    browser.sees("#job form", "Cancel the job").await;
    browser.click("#job form button").await;
    browser.sees("#job .headline", "cancelled").await;
    browser.sees_no("#job form").await;
    let said = browser.console().await;
    assert!(said.is_empty(), "{said:?}");
    browser.assert_asked_only(&[&origin]).await;
    // It is not in the page's address, and ends with the tab.
    let kept: Vec<usize> = browser.script("return [localStorage.length, document.cookie.length]").await;
    assert_eq!(kept, [0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_open_reads_the_token_is_asked_for_only_to_change_something() {
    let Some(browser) = Browser::start().await else { return };
    let net = Net::start(&[
        ("CODA_API_TOKEN", TOKEN),
        ("CODA_API_OPEN_READS", "true"),
        ("CODA_PAGE_INTERVAL_SEC", "0.05"),
        ("CODA_COORDINATOR_PEER_WAIT_SEC", "600"),
    ])
    .await;
    browser.open(&format!("http://{}", net.coordinator.http)).await;
    browser.sees("#connection", "Live").await;
    browser.sees("#jobs", "No such job.").await;
    assert_eq!(browser.text("#sign-in").await, "", "it is not asked for");
    browser.click("#example option:nth-child(2)").await;
    browser.click("#submit button").await;
    browser.sees("#sign-in", "Token").await;
    browser.press(&format!("{TOKEN}{ENTER}")).await;
    browser.click("#submit button").await;
    browser.sees("#submit [role=status]", "Accepted").await;
    browser.sees("#jobs tbody", "0").await;
    assert_eq!(browser.text("#sign-in").await, "");
}
