//! Alerts that fire on what they are for, and clear. Those that need hours are in `tests/monitoring/rules.test.yml`.

use coda_host::dev::cloud::Answer;
use coda_host_tests::net::{Net, SIMULATOR};
use coda_host_tests::prometheus::{Prometheus, is_here, promtool, rules};
use coda_host_tests::{LIMIT, Plan, bell, example};

#[test]
fn the_rules_are_valid_and_fire_after_the_time_that_they_name() {
    if !is_here() {
        return;
    }
    let rules = rules().display().to_string();
    let checked = promtool(&["check", "rules", &rules], b"");
    assert!(checked.status.success(), "{checked:?}");
    let tests = coda_host_tests::artifacts::project_file("tests/monitoring/rules.test.yml");
    let tested = promtool(&["test", "rules", &tests.display().to_string()], b"");
    let said =
        String::from_utf8_lossy(&tested.stdout).into_owned() + &String::from_utf8_lossy(&tested.stderr);
    assert!(tested.status.success(), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_of_a_host_fire_and_clear() {
    if !is_here() {
        return;
    }
    let plan = Plan::simulator("num_qubits: 5").env("CODA_HEARTBEAT_INTERVAL_SEC", "0.1");
    let mut host = plan.prepare().await;
    host.choose_port();
    host.start().await;
    let address = format!("127.0.0.1:{}", host.port());
    let prometheus = Prometheus::start(&[("coda-host", &address)]).await;
    prometheus.sees("coda_host_ready == 1").await;
    host.good_job_goes_through("before").await;
    prometheus.sees_no("ALERTS{alertstate=\"firing\"}").await;

    // Redis is away.
    host.redis.kill().expect("Redis can be killed");
    prometheus.fires("CodaHostNotReady", "").await;
    prometheus.fires("CodaHostPartDown", ",part=\"redis\"").await;
    host.redis.restart(LIMIT).await.expect("Redis starts again");
    prometheus.clears("CodaHostNotReady").await;
    prometheus.clears("CodaHostPartDown").await;

    // The cloud accepts no heartbeat.
    host.cloud.on_heartbeat(|_| Some(Answer::status(500)));
    prometheus.fires("CodaHostHeartbeatsNotAccepted", "").await;
    prometheus.fires("CodaHostPartDown", ",part=\"cloud_heartbeat\"").await;
    host.cloud.clear_hooks();
    prometheus.clears("CodaHostHeartbeatsNotAccepted").await;

    // The receiver is down; then it refuses.
    host.cloud.on_webhook(|_| Some(Answer::status(503)));
    host.submit("late", &bell(), 10).await;
    prometheus.fires("CodaHostResultsUndelivered", "").await;
    host.cloud.clear_hooks();
    host.delivered("late").await;
    prometheus.clears("CodaHostResultsUndelivered").await;
    host.cloud.on_webhook(|_| Some(Answer::status(422)));
    host.submit("refused", &bell(), 10).await;
    prometheus.fires("CodaHostResultRefused", "").await;
    host.cloud.clear_hooks();
    prometheus.clears("CodaHostResultRefused").await;

    // A message that can't be answered.
    host.send(&host.job("nowhere", &bell(), 10).without("callback_url")).await;
    prometheus.fires("CodaHostDeadLetter", "").await;
    prometheus.clears("CodaHostDeadLetter").await;

    // The host is away.
    host.stop().await;
    prometheus.fires("CodaHostDown", "").await;
    host.start().await;
    prometheus.clears("CodaHostDown").await;
    host.good_job_goes_through("after").await;
    prometheus.sees_no("ALERTS{alertstate=\"firing\"}").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_is_stuck_or_dies_is_alerted_on() {
    if !is_here() {
        return;
    }
    let plan = Plan::faulty("fault: hang").env("CODA_CANCEL_GRACE_SEC", "0.2");
    let mut host = plan.start().await;
    let address = format!("127.0.0.1:{}", host.port());
    let prometheus = Prometheus::start(&[("coda-host", &address)]).await;
    host.submit("endless", &example(), 10).await;
    host.wait_state("endless", "executing").await;
    prometheus.sees("rate(coda_host_slot_busy_seconds_total{slot=\"0\"}[2s]) > 0.9").await;
    prometheus.clears("CodaHostExecutorStuck").await;
    host.request_cancel("endless").await;
    prometheus.fires("CodaHostExecutorStuck", "").await;
    prometheus.fires("CodaHostNotReady", "").await;
    host.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_of_a_coordinator_fire_and_clear() {
    if !is_here() {
        return;
    }
    let mut net = Net::start(&[]).await;
    let prometheus = Prometheus::start(&[("coda-coordinator", &net.coordinator.http)]).await;
    prometheus.fires("CodaCoordinatorNotReady", "").await;
    prometheus.fires("CodaCoordinatorNoPeers", "").await;
    net.add(SIMULATOR, &[]).await;
    prometheus.clears("CodaCoordinatorNotReady").await;
    prometheus.sees_no("ALERTS{alertstate=\"firing\"}").await;
    net.coordinator.stop().await;
    prometheus.fires("CodaCoordinatorDown", "").await;
}
