//! Redis going away, coming back, forgetting things, and bringing old ones back.

use coda_host_tests::{Bed, Circuit, Exit, LIMIT, Plan, example, holds};
use redis::{Value, cmd};
use serde_json::json;

/// Messages that the host holds at that moment may be left pending in the new group until its next look.
async fn destroy_group(bed: &Bed) {
    bed.redis::<u64>(cmd("XGROUP").arg("DESTROY").arg(bed.stream()).arg(bed.group())).await;
}

/// Claims what is in the stream for the host's consumer, as a host that died would have.
async fn claim_for_worker(bed: &Bed, count: usize) {
    let (stream, group) = (bed.stream(), bed.group());
    bed.redis::<()>(cmd("XGROUP").arg(&["CREATE", &stream, &group, "0"])).await;
    let mut read = cmd("XREADGROUP");
    read.arg(&["GROUP", &group, "worker-0", "COUNT"]).arg(count).arg(&["STREAMS", &stream, ">"]);
    let _: Value = bed.redis(&read).await;
    assert_eq!(bed.pending().await.len(), count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_in_flight_is_delivered_while_redis_is_away() {
    let mut bed = Plan::simulator("execution_time_ms: 200").durable_redis().start().await;
    bed.submit("J1", &example(), 100).await;
    bed.wait_state("J1", "executing").await;
    bed.redis.kill().unwrap();
    holds("not ready", async || bed.ready().await.0 == 503).await;
    assert_eq!(bed.ready().await.1["redis_healthy"], false);
    assert_eq!(bed.delivered("J1").await["counts"], json!({ "10": 100 }));
    bed.redis.restart(LIMIT).await.unwrap();
    bed.wait_ready().await;
    bed.wait_state("J1", "completed").await;
    bed.wait_nothing_pending().await;
    bed.good_job_goes_through("J2").await;
    assert_eq!((bed.attempts("J1"), bed.runs().await), ((1, 1), 2));
    assert!(bed.metric("coda_host_redis_reconnects_total").await >= 1);
    let unhealthy =
        bed.cloud.wait_until(LIMIT, |s| s.heartbeats.iter().any(|h| h.body["redis_healthy"] == false));
    assert!(unhealthy.await, "a heartbeat told it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_was_not_there_at_the_start_is_waited_for() {
    let mut bed = Plan::simulator("").lay().await;
    bed.redis.kill().unwrap();
    bed.launch();
    holds("it lives", async || bed.try_get("/health").await.is_some_and(|(status, _)| status == 200)).await;
    bed.wait_log("no connection to Redis").await;
    assert_eq!(bed.ready().await.0, 503);
    bed.redis.restart(LIMIT).await.unwrap();
    bed.wait_ready().await;
    bed.good_job_goes_through("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_comes_back_empty_is_used_again() {
    let mut bed = Plan::simulator("").start().await;
    bed.good_job_goes_through("J1").await;
    bed.redis.restart(LIMIT).await.unwrap();
    bed.wait_ready().await;
    bed.good_job_goes_through("J2").await;
    bed.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_hangs_is_noticed_and_used_again() {
    let bed = Plan::simulator("").env("CODA_REDIS_TIMEOUT_SEC", "0.3").start().await;
    let signal = |signal| coda_host::sys::signal(bed.redis.pid(), signal).unwrap();
    signal(libc::SIGSTOP);
    holds("not ready", async || bed.ready().await.0 == 503).await;
    assert_eq!(bed.get("/health").await.0, 200);
    signal(libc::SIGCONT);
    bed.good_job_goes_through("J1").await;
    holds("ready again", async || bed.ready().await.0 == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_is_survived() {
    let bed = Plan::simulator("").start().await;
    bed.good_job_goes_through("J1").await;
    for (n, forget) in ["FLUSHALL", "DEL"].into_iter().enumerate() {
        let mut command = cmd(forget);
        if forget == "DEL" {
            command.arg(bed.stream());
        }
        bed.redis::<Value>(&command).await;
        bed.good_job_goes_through(&format!("after{n}")).await;
        bed.wait_nothing_pending().await;
    }
    assert_eq!(bed.runs().await, 3);
    let said = bed.log().matches("making it anew").count();
    assert!((1..=6).contains(&said), "{said} log lines");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_destroyed_during_a_run_brings_nothing_back_to_the_plugin() {
    let bed = Plan::simulator("execution_time_ms: 100").env("CODA_RECOVER_INTERVAL_SEC", "0.1").start().await;
    for id in ["A", "B"] {
        bed.submit(id, &example(), 100).await;
        bed.delivered(id).await;
    }
    bed.send(&bed.job("C", &example(), 1).field("shots", "x")).await;
    bed.failure("C").await;
    bed.submit("J1", &example(), 100).await;
    bed.wait_state("J1", "executing").await;
    destroy_group(&bed).await;
    assert_eq!(bed.delivered("J1").await["counts"], json!({ "10": 100 }));
    bed.good_job_goes_through("J2").await;
    bed.wait_nothing_pending().await;
    for id in ["A", "B", "C", "J1", "J2"] {
        assert_eq!(bed.attempts(id), (1, 1), "{id}");
    }
    assert_eq!(bed.runs().await, 4);
    assert!(!bed.log().contains("refused to write"), "an acknowledgement that finds nothing is no error");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_history_keeps_old_jobs_from_running_when_redis_forgot_them() {
    let mut bed = Plan::simulator("").env("CODA_RECOVER_INTERVAL_SEC", "0.1").start().await;
    let ids = ["A", "B", "C"];
    for id in ids {
        bed.submit(id, &example(), 100).await;
        bed.delivered(id).await;
    }
    bed.send(&bed.job("D", &example(), 1).field("shots", "x")).await;
    let error = bed.failure("D").await;
    bed.wait_nothing_pending().await;
    for restarted in [false, true] {
        for id in ["A", "B", "C", "D"] {
            bed.redis::<u64>(cmd("DEL").arg(format!("qpu:job:{id}:status"))).await;
        }
        if restarted {
            assert_eq!(bed.stop().await, Exit::Code(0));
        }
        destroy_group(&bed).await;
        if restarted {
            bed.start().await;
        }
        for id in ids {
            bed.wait_state(id, "completed").await;
        }
        bed.wait_state("D", "failed").await;
        assert_eq!(bed.status("D").await["error"], error);
        bed.wait_nothing_pending().await;
        assert_eq!(bed.runs().await, if restarted { 0 } else { 3 });
    }
    for id in ["A", "B", "C", "D"] {
        assert_eq!(bed.attempts(id), (1, 1), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pending_message_whose_entry_is_gone_is_acknowledged() {
    let mut bed = Plan::simulator("").lay().await;
    let gone = bed.submit("J1", &example(), 100).await;
    bed.submit("J2", &example(), 100).await;
    claim_for_worker(&bed, 2).await;
    bed.redis::<u64>(cmd("XDEL").arg(bed.stream()).arg(&gone)).await;
    bed.start().await;
    assert_eq!(bed.delivered("J2").await["counts"], json!({ "10": 100 }));
    bed.wait_nothing_pending().await;
    assert_eq!((bed.metric("coda_host_trimmed_messages_total").await, bed.attempts("J1")), (1, (0, 0)));
    assert!(bed.log().contains(&gone));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pending_message_is_taken_up_once() {
    let mut bed = Plan::simulator("batch: true").env("CODA_RECOVER_INTERVAL_SEC", "0.05").lay().await;
    for n in 1..=25 {
        bed.submit(&format!("J{n}"), &example(), n).await;
    }
    claim_for_worker(&bed, 25).await;
    bed.cloud.on_webhook(|w| (&*w.job_id == "J3").then(|| coda_host::dev::cloud::Answer::status(503)));
    bed.start().await;
    for n in (1..=25).filter(|n| *n != 3) {
        assert_eq!(bed.delivered(&format!("J{n}")).await["counts"], json!({ "10": n }));
    }
    holds("J3 alone is pending", async || bed.pending().await.len() == 1).await;
    // Looks through the pending list go on meanwhile, and J3 with its retries is not taken again.
    holds("J3 is tried on", async || bed.attempts("J3").0 >= 5).await;
    bed.good_job_goes_through("behind").await;
    assert_eq!(bed.runs().await, 26);
    bed.cloud.clear_hooks();
    bed.delivered("J3").await;
    bed.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_pending_messages_than_one_page_are_all_taken_up() {
    const MANY: usize = 620;
    let mut bed = Plan::simulator("mode: noop").lay().await;
    for n in 0..MANY {
        bed.submit(&format!("J{n}"), &Circuit::new(1), 1).await;
    }
    claim_for_worker(&bed, MANY).await;
    bed.start().await;
    let all = bed.cloud.wait_until(LIMIT, |s| s.accepted_jobs == MANY as u64).await;
    assert!(all, "{} of {MANY}", bed.cloud.state().accepted_jobs);
    bed.wait_nothing_pending().await;
    assert_eq!(bed.runs().await, MANY as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_with_the_python_nodes_commands_is_enough() {
    let mut bed = Plan::simulator("batch: true\nexecution_time_ms: 50")
        .env("CODA_RECOVER_INTERVAL_SEC", "0.1")
        .lay()
        .await;
    let allowed = "+xgroup +xreadgroup +xpending +xrange +xack +hget +hset +get +select +auth";
    let mut user = cmd("ACL");
    user.arg(&["SETUSER", "node", "on", ">p@ss#w", "~*"]).arg(allowed.split(' ').collect::<Vec<_>>());
    bed.redis::<()>(&user).await;
    let url = format!("redis://node:p%40ss%23w@127.0.0.1:{}/0", bed.redis.port());
    bed.cloud.edit_bundle(move |bundle| bundle["redis_url"] = json!(url));
    bed.submit("J1", &example(), 100).await;
    bed.submit("J2", &example(), 100).await;
    claim_for_worker(&bed, 2).await;
    bed.start().await;
    for id in ["J1", "J2"] {
        bed.delivered(id).await;
    }
    bed.request_cancel("J3").await;
    bed.submit("J3", &example(), 100).await;
    bed.wait_state("J3", "cancelled").await;
    destroy_group(&bed).await;
    bed.good_job_goes_through("J4").await;
    bed.wait_nothing_pending().await;
    assert!(!bed.log().contains("NOPERM"));
    assert!(!bed.log().contains("p@ss#w") && !bed.log().contains("p%40ss"), "the password is not shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_noticed_within_the_block_time_and_a_margin() {
    use coda_host_tests::proxy::{Link, Proxy};
    let mut bed = Plan::simulator("")
        .env("CODA_REDIS_BLOCK_SEC", "0.2")
        .env("CODA_REDIS_TIMEOUT_SEC", "0.3")
        .lay()
        .await;
    let link = Proxy::start(bed.redis.port(), std::time::Duration::ZERO).await.unwrap();
    let url = format!("redis://127.0.0.1:{}/0", link.port());
    bed.cloud.edit_bundle(move |bundle| bundle["redis_url"] = url.clone().into());
    bed.start().await;
    bed.good_job_goes_through("J1").await;
    // Neither a FIN nor an answer, as when a NAT forgets: only a deadline can tell.
    link.set(Link::Freeze);
    holds("it is noticed", async || bed.ready().await.1["redis_healthy"] == false).await;
    bed.wait_log("no connection to Redis").await;
    link.set(Link::Pass);
    bed.wait_ready().await;
    bed.good_job_goes_through("J2").await;
    bed.wait_nothing_pending().await;
}
