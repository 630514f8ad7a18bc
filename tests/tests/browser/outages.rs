//! What is away and comes back: Redis, the host itself, and the network between.

use coda_host_tests::browser::Browser;
use coda_host_tests::{LIMIT, Plan};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_says_why_the_host_is_not_ready_and_when_it_is_again() {
    let Some(browser) = Browser::start().await else { return };
    let plan = Plan::simulator("num_qubits: 5");
    let mut host =
        plan.env("CODA_PAGE_INTERVAL_SEC", "0.05").env("CODA_PAGE_SAMPLE_SEC", "0.05").start().await;
    let origin = host.origin();
    browser.open(&format!("{origin}/")).await;
    browser.sees("#state", "Ready, waiting for jobs").await;
    host.redis.kill().expect("Redis can be killed");
    browser.sees("#state", "Not ready").await;
    browser.sees("#state .reasons", "Redis is not reachable").await;
    browser.sees("#parts", "last worked").await;
    host.redis.restart(LIMIT).await.expect("Redis starts again");
    browser.sees("#state", "Ready, waiting for jobs").await;
    browser.sees_no("#state .reasons").await;
    browser.assert_quiet(&[&origin]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_out_of_date_while_the_host_is_away_and_goes_on_by_itself() {
    let Some(browser) = Browser::start().await else { return };
    let mut host = Plan::simulator("num_qubits: 5").env("CODA_PAGE_INTERVAL_SEC", "0.05").prepare().await;
    host.choose_port();
    host.start().await;
    let origin = host.origin();
    browser.open(&format!("{origin}/")).await;
    browser.sees("#connection", "Live").await;
    browser.assert_quiet(&[&origin]).await;
    // What is in the page stays, with a word that it is old.
    host.stop().await;
    browser.sees("#connection", "Out of date").await;
    browser.sees("#state", "waiting for jobs").await;
    host.start().await;
    host.good_job_goes_through("after").await;
    browser.sees("#connection", "Live").await;
    browser.sees("#recent tr[data-key=after]", "completed").await;
    // The console notes each failed request; that is the browser's word, not the page's.
    browser.assert_asked_only(&[&origin]).await;
}

/// Passes connections on to a port until they are abandoned: then they stay open, and nothing comes through them.
async fn passing(to: u16) -> (u16, watch::Sender<u64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let (abandon, abandoned) = watch::channel(0u64);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut abandoned = abandoned.clone();
            let mine = *abandoned.borrow_and_update();
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(("127.0.0.1", to)).await else { return };
                let is_abandoned = async {
                    while *abandoned.borrow_and_update() <= mine && abandoned.changed().await.is_ok() {}
                };
                tokio::select! {
                    _ = copy_bidirectional(&mut near, &mut far) => return,
                    () = is_abandoned => {}
                }
                // Both ends stay open.
                std::future::pending::<()>().await;
            });
        }
    });
    (port, abandon)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_went_silent_is_replaced_by_another_one() {
    let Some(browser) = Browser::start().await else { return };
    let host = Plan::simulator("num_qubits: 5").env("CODA_PAGE_INTERVAL_SEC", "0.05").start().await;
    let (port, abandon) = passing(host.port()).await;
    browser.open(&format!("http://127.0.0.1:{port}/")).await;
    browser.sees("#connection", "Live").await;
    abandon.send_modify(|n| *n += 1);
    browser.sees("#connection", "Out of date").await;
    host.good_job_goes_through("after").await;
    browser.sees("#connection", "Live").await;
    browser.sees("#recent tr[data-key=after]", "completed").await;
}
