//! Redis going away, coming back, forgetting things, and bringing old ones back.

use coda_host_tests::refusing_redis::RefusingRedis;
use coda_host_tests::{Circuit, Exit, LIMIT, Plan, TestHost, eventually, eventually_some, example};
use redis::{Value, cmd};
use serde_json::json;

/// Messages that the host holds at that moment may be left pending in the new group until its next look.
async fn destroy_group(host: &TestHost) {
    host.redis::<u64>(cmd("XGROUP").arg("DESTROY").arg(host.stream()).arg(host.group())).await;
}

/// Claims what is in the stream for the host's consumer, as a host that died would have.
async fn claim_for_worker(host: &TestHost, count: usize) {
    let (stream, group) = (host.stream(), host.group());
    host.redis::<()>(cmd("XGROUP").arg(&["CREATE", &stream, &group, "0"])).await;
    let mut read = cmd("XREADGROUP");
    read.arg(&["GROUP", &group, "worker-0", "COUNT"]).arg(count).arg(&["STREAMS", &stream, ">"]);
    let _: Value = host.redis(&read).await;
    assert_eq!(host.pending().await.len(), count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_in_flight_is_delivered_while_redis_is_away() {
    let mut host = Plan::simulator("execution_time_ms: 200").durable_redis().start().await;
    host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    host.redis.kill().unwrap();
    eventually("not ready", async || host.ready().await.0 == 503).await;
    assert_eq!(host.ready().await.1["redis_healthy"], false);
    assert_eq!(host.delivered("J1").await["counts"], json!({ "10": 100 }));
    host.redis.restart(LIMIT).await.unwrap();
    host.wait_ready().await;
    host.wait_state("J1", "completed").await;
    host.wait_nothing_pending().await;
    host.good_job_goes_through("J2").await;
    assert_eq!((host.attempts("J1"), host.runs().await), ((1, 1), 2));
    assert!(host.metric("coda_host_redis_reconnects_total").await >= 1);
    let unhealthy =
        host.cloud.wait_until(LIMIT, |s| s.heartbeats.iter().any(|h| h.body["redis_healthy"] == false));
    assert!(unhealthy.await, "a heartbeat told it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_was_not_there_at_the_start_is_waited_for() {
    let mut host = Plan::simulator("").prepare().await;
    host.redis.kill().unwrap();
    host.launch();
    eventually("it lives", async || host.try_get("/health").await.is_some_and(|(status, _)| status == 200))
        .await;
    host.wait_log("no connection to Redis").await;
    assert_eq!(host.ready().await.0, 503);
    host.redis.restart(LIMIT).await.unwrap();
    host.wait_ready().await;
    host.good_job_goes_through("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_comes_back_empty_is_used_again() {
    let mut host = Plan::simulator("").start().await;
    host.good_job_goes_through("J1").await;
    host.redis.restart(LIMIT).await.unwrap();
    host.wait_ready().await;
    host.good_job_goes_through("J2").await;
    host.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_hangs_is_noticed_and_used_again() {
    let host = Plan::simulator("").env("CODA_REDIS_TIMEOUT_SEC", "0.3").start().await;
    let signal = |signal| coda_host::sys::signal(host.redis.pid(), signal).unwrap();
    signal(libc::SIGSTOP);
    eventually("not ready", async || host.ready().await.0 == 503).await;
    assert_eq!(host.get("/health").await.0, 200);
    signal(libc::SIGCONT);
    host.good_job_goes_through("J1").await;
    eventually("ready again", async || host.ready().await.0 == 200).await;
}

/// A server that hangs takes connections all the same: `/ready` and heartbeats don't take that for an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_not_up_before_it_has_answered() {
    let mut host = Plan::simulator("").env("CODA_REDIS_TIMEOUT_SEC", "0.3").start().await;
    let signal = |host: &TestHost, signal| coda_host::sys::signal(host.redis.pid(), signal).unwrap();
    signal(&host, libc::SIGSTOP);
    eventually("not ready", async || host.ready().await.0 == 503).await;
    let connected = host.log().matches("connected to Redis").count();
    let attempts = host.log().matches("no connection to Redis").count();
    let mut is_down = true;
    eventually("it was tried several times", async || {
        is_down &= host.ready().await.0 == 503;
        host.log().matches("no connection to Redis").count() > attempts + 4
    })
    .await;
    assert!(is_down, "a connection that answered nothing was taken for a link");
    assert_eq!(host.log().matches("connected to Redis").count(), connected);
    signal(&host, libc::SIGCONT);
    host.wait_ready().await;
    host.good_job_goes_through("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_is_survived() {
    let host = Plan::simulator("").start().await;
    host.good_job_goes_through("J1").await;
    for (n, forget) in ["FLUSHALL", "DEL"].into_iter().enumerate() {
        let mut command = cmd(forget);
        if forget == "DEL" {
            command.arg(host.stream());
        }
        host.redis::<Value>(&command).await;
        host.good_job_goes_through(&format!("after{n}")).await;
        host.wait_nothing_pending().await;
    }
    assert_eq!(host.runs().await, 3);
    let said = host.log().matches("recreating it").count();
    assert!((1..=6).contains(&said), "{said} log lines");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_destroyed_during_a_run_brings_nothing_back_to_the_plugin() {
    let host =
        Plan::simulator("execution_time_ms: 100").env("CODA_RECOVER_INTERVAL_SEC", "0.1").start().await;
    for id in ["A", "B"] {
        host.submit(id, &example(), 100).await;
        host.delivered(id).await;
    }
    host.send(&host.job("C", &example(), 1).field("shots", "x")).await;
    host.failure("C").await;
    host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    destroy_group(&host).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "10": 100 }));
    host.good_job_goes_through("J2").await;
    host.wait_nothing_pending().await;
    for id in ["A", "B", "C", "J1", "J2"] {
        assert_eq!(host.attempts(id), (1, 1), "{id}");
    }
    assert_eq!(host.runs().await, 4);
    assert!(
        !host.log().contains("refused to write"),
        "an acknowledgement that finds nothing is not an error"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_history_keeps_old_jobs_from_running_when_redis_forgot_them() {
    let mut host = Plan::simulator("").env("CODA_RECOVER_INTERVAL_SEC", "0.1").start().await;
    let ids = ["A", "B", "C"];
    for id in ids {
        host.submit(id, &example(), 100).await;
        host.delivered(id).await;
    }
    host.send(&host.job("D", &example(), 1).field("shots", "x")).await;
    let error = host.failure("D").await;
    host.wait_nothing_pending().await;
    for restarted in [false, true] {
        for id in ["A", "B", "C", "D"] {
            host.redis::<u64>(cmd("DEL").arg(format!("qpu:job:{id}:status"))).await;
        }
        if restarted {
            assert_eq!(host.stop().await, Exit::Code(0));
        }
        destroy_group(&host).await;
        if restarted {
            host.start().await;
        }
        for id in ids {
            host.wait_state(id, "completed").await;
        }
        host.wait_state("D", "failed").await;
        assert_eq!(host.status("D").await["error"], error);
        host.wait_nothing_pending().await;
        assert_eq!(host.runs().await, if restarted { 0 } else { 3 });
    }
    for id in ["A", "B", "C", "D"] {
        assert_eq!(host.attempts(id), (1, 1), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pending_message_whose_entry_is_gone_is_acknowledged() {
    let mut host = Plan::simulator("").prepare().await;
    let gone = host.submit("J1", &example(), 100).await;
    host.submit("J2", &example(), 100).await;
    claim_for_worker(&host, 2).await;
    host.redis::<u64>(cmd("XDEL").arg(host.stream()).arg(&gone)).await;
    host.start().await;
    assert_eq!(host.delivered("J2").await["counts"], json!({ "10": 100 }));
    host.wait_nothing_pending().await;
    assert_eq!((host.metric("coda_host_trimmed_messages_total").await, host.attempts("J1")), (1, (0, 0)));
    assert!(host.log().contains(&gone));
    let kept = host.state_file().dead_letters();
    assert!(kept.len() == 1 && kept[0].reason.contains("gone from the stream"), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_pending_message_is_taken_up_once() {
    let mut host = Plan::simulator("batch: true").env("CODA_RECOVER_INTERVAL_SEC", "0.05").prepare().await;
    for n in 1..=25 {
        host.submit(&format!("J{n}"), &example(), n).await;
    }
    claim_for_worker(&host, 25).await;
    host.cloud.on_webhook(|w| (&*w.job_id == "J3").then(|| coda_host::dev::cloud::Answer::status(503)));
    host.start().await;
    for n in (1..=25).filter(|n| *n != 3) {
        assert_eq!(host.delivered(&format!("J{n}")).await["counts"], json!({ "10": n }));
    }
    eventually("J3 alone is pending", async || host.pending().await.len() == 1).await;
    // Looks through the pending list go on meanwhile, and J3 with its retries is not taken again.
    eventually("J3 is tried on", async || host.attempts("J3").0 >= 5).await;
    host.good_job_goes_through("behind").await;
    assert_eq!(host.runs().await, 26);
    host.cloud.clear_hooks();
    host.delivered("J3").await;
    host.wait_nothing_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_pending_messages_than_one_page_are_all_taken_up() {
    const MANY: usize = 620;
    let mut host = Plan::simulator("mode: noop").prepare().await;
    for n in 0..MANY {
        host.submit(&format!("J{n}"), &Circuit::new(1), 1).await;
    }
    claim_for_worker(&host, MANY).await;
    host.start().await;
    let all = host.cloud.wait_until(LIMIT, |s| s.accepted_jobs == MANY as u64).await;
    assert!(all, "{} of {MANY}", host.cloud.state().accepted_jobs);
    host.wait_nothing_pending().await;
    assert_eq!(host.runs().await, MANY as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_with_the_python_nodes_commands_is_enough() {
    let mut host = Plan::simulator("batch: true\nexecution_time_ms: 50")
        .env("CODA_RECOVER_INTERVAL_SEC", "0.1")
        .prepare()
        .await;
    let allowed = "+xgroup +xreadgroup +xpending +xrange +xack +hget +hset +get +select +auth";
    let mut user = cmd("ACL");
    user.arg(&["SETUSER", "node", "on", ">p@ss#w", "~*"]).arg(allowed.split(' ').collect::<Vec<_>>());
    host.redis::<()>(&user).await;
    let url = format!("redis://node:p%40ss%23w@127.0.0.1:{}/0", host.redis.port());
    host.cloud.edit_bundle(move |bundle| bundle["redis_url"] = json!(url));
    host.submit("J1", &example(), 100).await;
    host.submit("J2", &example(), 100).await;
    claim_for_worker(&host, 2).await;
    host.start().await;
    for id in ["J1", "J2"] {
        host.delivered(id).await;
    }
    host.request_cancel("J3").await;
    host.submit("J3", &example(), 100).await;
    host.wait_state("J3", "cancelled").await;
    destroy_group(&host).await;
    host.good_job_goes_through("J4").await;
    host.wait_nothing_pending().await;
    assert!(!host.log().contains("NOPERM"));
    assert!(!host.log().contains("p@ss#w") && !host.log().contains("p%40ss"), "the password is not shown");
}

/// An error of the server is not an absence: nothing is acknowledged, run or lost, and `/ready` has the server's words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_the_account_may_not_use_leaves_the_messages_pending() {
    for denied in ["xrange", "xpending", "hget", "get"] {
        let mut host = Plan::simulator("").env("CODA_RECOVER_INTERVAL_SEC", "0.1").prepare().await;
        let allowed =
            "+xgroup +xreadgroup +xpending +xrange +xack +hget +hset +get +select +auth +info +xlen";
        let mut user = cmd("ACL");
        user.arg(&["SETUSER", "node", "on", ">secret", "~*"]).arg(allowed.split(' ').collect::<Vec<_>>());
        host.redis::<()>(user.arg(format!("-{denied}"))).await;
        let url = format!("redis://node:secret@127.0.0.1:{}/0", host.redis.port());
        host.cloud.edit_bundle(move |bundle| bundle["redis_url"] = json!(url));
        for id in ["J1", "J2", "J3"] {
            host.submit(id, &example(), 100).await;
        }
        claim_for_worker(&host, 3).await;
        host.launch();
        let words = format!("refused {}: NOPERM", denied.to_uppercase());
        eventually(&format!("/ready says {words}"), async || {
            let Some((503, body)) = host.try_get("/ready").await else { return false };
            body.contains(&words)
        })
        .await;
        assert_eq!((host.pending().await.len(), host.runs().await), (3, 0), "{denied}");

        host.redis::<()>(cmd("ACL").arg(&["SETUSER", "node"]).arg(format!("+{denied}"))).await;
        for id in ["J1", "J2", "J3"] {
            host.delivered(id).await;
        }
        host.wait_nothing_pending().await;
        eventually("it is ready again", async || host.ready().await.0 == 200).await;
        assert_eq!(
            (host.runs().await, host.metric("coda_host_trimmed_messages_total").await),
            (3, 0),
            "{denied}"
        );
        let said = host.log().matches(&words).count();
        assert!(said < 50, "{denied} is logged {said} times");
    }
}

/// What a server can say instead of an answer, and a reply of a type that no command of the job path has.
const REFUSALS: [(&str, &str); 12] = [
    ("NOPERM", "-NOPERM User node has no permissions to run the command\r\n"),
    ("BUSY", "-BUSY Redis is busy running a script\r\n"),
    ("LOADING", "-LOADING Redis is loading the dataset in memory\r\n"),
    ("READONLY", "-READONLY You can't write against a read only replica.\r\n"),
    ("MOVED", "-MOVED 3999 127.0.0.1:6381\r\n"),
    ("CLUSTERDOWN", "-CLUSTERDOWN The cluster is down\r\n"),
    ("MISCONF", "-MISCONF Errors writing to the AOF file\r\n"),
    ("OOM", "-OOM command not allowed when used memory > 'maxmemory'\r\n"),
    ("WRONGTYPE", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"),
    ("NOAUTH", "-NOAUTH Authentication required.\r\n"),
    ("ERR", "-ERR something else\r\n"),
    ("a boolean", "#t\r\n"),
];

/// Each command of the job path times each refusal: a job that meets it is neither lost nor run twice, the host says
/// why it stands still, and goes on once the server answers again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_command_costs_no_job() {
    for command in ["XREADGROUP", "XPENDING", "XRANGE", "XACK", "HGET", "HSET", "GET"] {
        let (mut host, server) = start_before_refusing_redis().await;
        for (n, (refusal, answer)) in REFUSALS.iter().enumerate() {
            let id = format!("{command}-{n}");
            server.refuse(command, answer);
            host.submit(&id, &example(), 10).await;
            match (command, *refusal) {
                // Another type is an answer: any value of the cancel key cancels, and a status hash that is none says
                // nothing.
                ("GET", "WRONGTYPE") => host.wait_state(&id, "cancelled").await,
                ("HGET" | "HSET", "WRONGTYPE") => drop(host.delivered(&id).await),
                // Sent only when something was left pending.
                ("XRANGE", _) => {}
                _ => {
                    eventually(&format!("/ready says why {command} stands still: {refusal}"), async || {
                        let (status, body) = host.ready().await;
                        let reasons = body["reasons"].to_string();
                        status == 503 && (reasons.contains(refusal) || reasons.contains("boolean"))
                    })
                    .await;
                    let (_, body) = host.ready().await;
                    assert_eq!(body["redis_healthy"], true, "{command} {refusal}: the link works");
                }
            }
            server.allow_all();
            if (command, *refusal) != ("GET", "WRONGTYPE") {
                host.delivered(&id).await;
            }
            host.wait_nothing_pending().await;
            host.wait_ready().await;
        }
        let cancelled = u64::from(command == "GET");
        assert_eq!(host.runs().await, REFUSALS.len() as u64 - cancelled, "{command}");
        for n in 0..REFUSALS.len() {
            assert!(host.attempts(&format!("{command}-{n}")).1 <= 1, "{command} {n} was delivered twice");
        }
        assert_eq!(host.metric("coda_host_trimmed_messages_total").await, 0);
        let lines = host.log().lines().count();
        assert!(lines < 40 * REFUSALS.len(), "{command}: {lines} lines of log");
        assert_eq!(host.stop().await, Exit::Code(0));
    }
}

/// A host whose Redis can refuse commands.
async fn start_before_refusing_redis() -> (TestHost, RefusingRedis) {
    let mut host = Plan::simulator("")
        .env("CODA_RECOVER_INTERVAL_SEC", "0.05")
        .env("CODA_REDIS_BLOCK_SEC", "0.05")
        .env("CODA_REDIS_BACKOFF_SEC", "0.05")
        .env("CODA_REDIS_BACKOFF_MAX_SEC", "0.2")
        .prepare()
        .await;
    let server = RefusingRedis::start(host.redis.port()).await.unwrap();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    host.cloud.edit_bundle(move |bundle| bundle["redis_url"] = url.clone().into());
    host.start().await;
    (host, server)
}

/// As proxies do it, which number their requests. What else the server accepts meanwhile, such as the states of other
/// jobs, doesn't end the refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_in_ever_new_words_is_logged_once_and_stands_until_the_command_works() {
    for (command, line) in [
        ("XACK", "Redis refuses writes"),
        ("XREADGROUP", "new jobs can't be claimed"),
        ("XPENDING", "pending messages can't be looked at"),
        ("HGET", "claimed messages can't be checked"),
    ] {
        let (mut host, server) = start_before_refusing_redis().await;
        server.refuse(command, "-ERR upstream failure, request {n}\r\n");
        for n in 0..50 {
            host.submit(&format!("{command}-{n}"), &example(), 10).await;
        }
        let reason = async || {
            let (status, body) = host.ready().await;
            let reasons = body["reasons"].to_string();
            (status == 503 && reasons.contains("request ")).then_some(reasons)
        };
        let first = eventually_some(&format!("/ready tells of {command}"), reason).await;
        if command == "XACK" {
            for n in 0..50 {
                host.delivered(&format!("{command}-{n}")).await;
            }
        }
        let mut is_told = true;
        eventually(&format!("{command} was refused again"), async || {
            let now = reason().await;
            is_told &= now.is_some();
            now.is_some_and(|now| now != first)
        })
        .await;
        assert!(is_told, "{command}: it stands");
        server.allow_all();
        for n in 0..50 {
            host.delivered(&format!("{command}-{n}")).await;
        }
        host.wait_nothing_pending().await;
        host.wait_ready().await;
        assert_eq!(host.log().matches(line).count(), 1, "{command}");
        assert_eq!(host.stop().await, Exit::Code(0));
    }
}

/// What is refused for one job is not an answer about another, and not an absence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_refused_concerns_its_own_job_alone() {
    const MOVED: &str = "-MOVED 3999 127.0.0.1:6381\r\n";
    let (mut host, server) = start_before_refusing_redis().await;
    server.refuse_key("HGET", "job:J3:", MOVED);
    for n in 0..20 {
        host.submit(&format!("J{n}"), &example(), 10).await;
    }
    for n in (0..20).filter(|n| *n != 3) {
        host.delivered(&format!("J{n}")).await;
    }
    server.allow_all();
    host.delivered("J3").await;
    host.wait_nothing_pending().await;
    host.wait_ready().await;

    // One that runs, and one that waits for it.
    host.write_device("executor_factory: coda_simulator\nexecution_time_ms: 60000");
    assert_eq!(host.stop().await, Exit::Code(0));
    host.start().await;
    host.submit("running", &example(), 10).await;
    host.wait_state("running", "executing").await;
    host.submit("waiting", &example(), 10).await;
    server.refuse_key("GET", "cancelled:running", MOVED);
    host.request_cancel("running").await;
    eventually("/ready says that cancels can't be read", async || {
        let (status, body) = host.ready().await;
        status == 503 && body["reasons"].to_string().contains("cancels can't be read")
    })
    .await;
    host.request_cancel("waiting").await;
    host.wait_state("waiting", "cancelled").await;
    server.allow_all();
    host.wait_state("running", "cancelled").await;
    host.wait_nothing_pending().await;
    host.wait_ready().await;
    assert_eq!(host.log().matches("cancels can't be read").count(), 1);
}

async fn set_maxmemory(host: &TestHost, bytes: u64) {
    host.redis::<()>(cmd("CONFIG").arg(&["SET", "maxmemory"]).arg(bytes)).await;
}

/// A pipeline is not a transaction: the acknowledgement waits for the state that goes with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_redis_refuses_is_not_acknowledged() {
    let mut host = Plan::simulator("execution_time_ms: 300").start().await;
    host.submit("J1", &example(), 100).await;
    host.wait_state("J1", "executing").await;
    set_maxmemory(&host, 1).await;
    host.delivered("J1").await;
    eventually("/ready has the server's words", async || {
        let (status, body) = host.ready().await;
        status == 503 && body["reasons"].to_string().contains("OOM command not allowed")
    })
    .await;
    assert_eq!((host.pending().await.len(), host.state("J1").await.as_str()), (1, "executing"));
    assert!(host.log().matches("Redis refuses writes").count() < 5, "it is logged once");
    // Killed between the cloud's answer and the note of it, the host would rightly deliver again.
    host.wait_log("delivery finished").await;
    host.kill();
    set_maxmemory(&host, 0).await;
    host.start().await;
    host.wait_nothing_pending().await;
    host.wait_state("J1", "completed").await;
    assert_eq!((host.runs().await, host.attempts("J1")), (0, (1, 1)), "it ran once and was delivered once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_that_redis_refuses_delay_no_delivery() {
    let mut host = Plan::simulator("").start().await;
    for n in 0..300 {
        host.submit(&format!("J{n}"), &example(), 10).await;
    }
    set_maxmemory(&host, 1).await;
    for n in 0..300 {
        host.delivered(&format!("J{n}")).await;
    }
    set_maxmemory(&host, 0).await;
    host.wait_nothing_pending().await;
    for n in 0..300 {
        host.wait_state(&format!("J{n}"), "completed").await;
    }
    assert_eq!(host.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_noticed_within_the_block_time_and_a_margin() {
    use coda_host_tests::proxy::{Link, Proxy};
    let mut host = Plan::simulator("")
        .env("CODA_REDIS_BLOCK_SEC", "0.2")
        .env("CODA_REDIS_TIMEOUT_SEC", "0.3")
        .prepare()
        .await;
    let link = Proxy::start(host.redis.port(), std::time::Duration::ZERO).await.unwrap();
    let url = format!("redis://127.0.0.1:{}/0", link.port());
    host.cloud.edit_bundle(move |bundle| bundle["redis_url"] = url.clone().into());
    host.start().await;
    host.good_job_goes_through("J1").await;
    // Neither a FIN nor an answer, as when a NAT forgets: only a deadline can tell.
    link.set(Link::Freeze);
    eventually("it is noticed", async || host.ready().await.1["redis_healthy"] == false).await;
    host.wait_log("no connection to Redis").await;
    link.set(Link::Pass);
    host.wait_ready().await;
    host.good_job_goes_through("J2").await;
    host.wait_nothing_pending().await;
}
