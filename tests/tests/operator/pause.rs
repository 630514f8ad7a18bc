//! `coda-host pause` and `resume`: what runs is finished, nothing else begins, nothing is lost or moved.

use coda_host_tests::{Plan, TestHost, eventually, eventually_some, example};
use serde_json::Value;

/// Long enough to be seen running.
const BUSY: &str = "execution_time_ms: 400";

/// The body of `/ready` of a host that is paused.
async fn paused(host: &TestHost) -> Value {
    eventually_some("the host is up and paused", async || {
        let (status, body) = host.try_get("/ready").await?;
        let ready: Value = serde_json::from_str(&body).ok()?;
        (status == 503 && ready["hold"]["state"] == "paused").then_some(ready)
    })
    .await
}

/// The jobs in the order in which their results came.
fn delivered_order(host: &TestHost) -> Vec<String> {
    host.cloud.state().webhooks.iter().map(|webhook| webhook.job_id.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_finishes_what_runs_lasts_over_a_restart_and_keeps_the_order() {
    let mut host = Plan::simulator(BUSY).env("CODA_PREFETCH", "2").start().await;
    let ids = ["J1", "J2", "J3", "J4", "J5"];
    for id in ids {
        host.submit(id, &example(), 10).await;
    }
    host.wait_state("J1", "executing").await;

    let said = host.cli(&["pause", "--for", "1h", "--note", "new cables", "--wait"]).await;
    assert_eq!((said.code, said.out.contains("nothing runs")), (0, true), "{}", said.text());
    assert_eq!(host.runs().await, 1, "what ran is finished, and nothing else has begun");
    host.delivered("J1").await;

    let ready = paused(&host).await;
    assert_eq!(ready["hold"]["note"], "new cables", "{ready}");
    assert!(ready["reasons"][0].as_str().is_some_and(|r| r.contains("new cables")), "{ready}");
    assert_eq!(host.metric("coda_host_held{reason=\"paused\"}").await, 1);
    let status = host.cli(&["status"]).await;
    assert!(status.code == 2 && status.out.contains("paused until"), "{}", status.text());
    let (claimed, beats) = (host.pending().await.len(), host.cloud.state().heartbeats.len());
    host.submit("J6", &example(), 10).await;
    eventually("heartbeats go on", async || host.cloud.state().heartbeats.len() > beats + 2).await;
    assert_eq!(host.pending().await.len(), claimed, "nothing is claimed");
    assert_eq!(host.runs().await, 1);

    host.stop().await;
    host.launch();
    host.wait_log("starting in a pause: paused until").await;
    paused(&host).await;
    eventually("Redis is connected", async || host.ready().await.1["redis_healthy"] == true).await;
    let beats = host.cloud.state().heartbeats.len();
    eventually("heartbeats go on", async || host.cloud.state().heartbeats.len() > beats + 2).await;
    assert_eq!(host.runs().await, 0, "still paused");

    let said = host.cli(&["resume"]).await;
    assert_eq!((said.code, said.out.contains("the pause is over")), (0, true), "{}", said.text());
    host.delivered("J6").await;
    host.wait_nothing_pending().await;
    assert_eq!(delivered_order(&host), ["J1", "J2", "J3", "J4", "J5", "J6"]);
    assert_eq!(host.metric("coda_host_held{reason=\"paused\"}").await, 0);
    let said = host.cli(&["resume"]).await;
    assert_eq!((said.code, said.out.contains("there was no pause")), (0, true), "{}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_ends_by_itself_and_a_second_one_takes_the_place_of_the_first() {
    let host = Plan::simulator("").start().await;
    let first = host.cli(&["pause"]).await;
    assert!(first.code == 0 && first.err.contains("ends in 8 h"), "{}", first.text());
    host.submit("J1", &example(), 10).await;
    let second = host.cli(&["pause", "--for", "2s"]).await;
    assert_eq!(second.code, 0, "{}", second.text());
    assert_eq!(host.runs().await, 0);
    host.delivered("J1").await;
    host.wait_log("jobs are claimed and run again").await;
    assert_eq!(host.ready().await.0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_job_can_be_cancelled_in_a_pause() {
    let host = Plan::simulator(BUSY).start().await;
    host.submit("J1", &example(), 10).await;
    host.submit("J2", &example(), 10).await;
    eventually("both are read ahead", async || host.pending().await.len() == 2).await;
    host.wait_state("J1", "executing").await;
    assert_eq!(host.cli(&["pause", "--wait"]).await.code, 0);
    host.request_cancel("J2").await;
    host.wait_state("J2", "cancelled").await;
    host.wait_nothing_pending().await;
    assert_eq!(host.runs().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_begins_without_a_host_and_one_that_can_not_be_read_holds() {
    let mut host = Plan::simulator("").start().await;
    host.stop().await;
    let said = host.cli(&["pause", "--until", "2126-12-24T12:00:00Z"]).await;
    assert!(said.code == 0 && said.out.contains("the next start is paused"), "{}", said.text());
    std::fs::write(host.state_dir().join("pause.json"), "{\"since\"").expect("the file is there");
    host.launch();
    let ready = paused(&host).await;
    let reason = ready["reasons"][0].as_str().expect("a reason");
    assert!(reason.contains("pause.json") && reason.contains("coda-host resume"), "{reason}");
    host.submit("J1", &example(), 10).await;
    assert_eq!(host.cli(&["resume"]).await.code, 0);
    host.delivered("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_arguments_are_refused_and_nothing_is_paused() {
    let host = Plan::simulator("").start().await;
    for arguments in [
        &["pause", "--for", "2"][..],
        &["pause", "--for", "0s"],
        &["pause", "--until", "tomorrow"],
        &["pause", "--until", "2001-01-01 10:00"],
        &["pause", "--for", "1h", "--until", "18:00"],
        &["pause", "--note", "a\nb"],
    ] {
        let said = host.cli(arguments).await;
        assert_eq!(said.code, 2, "{arguments:?}: {}", said.text());
    }
    assert_eq!(host.ready().await.0, 200);
}
