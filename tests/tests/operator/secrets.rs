//! No secret in anything that the host writes or answers, at the most talkative level.

use coda_host::dev::cloud::Answer;
use coda_host_tests::{Exit, Plan, TestHost, eventually, example};
use redis::cmd;

const PASSWORD: &str = "pass-hunter2";
const HEADER: &str = "header-hunter2";
const TOKENS: [&str; 2] = ["one-time-q1", "refused-hunter2"];

/// Everything that must not be seen, with its name.
fn secrets(host: &TestHost) -> Vec<(&'static str, String)> {
    let (key, _) = host.cloud.private_key();
    let mut all = vec![("the Redis password", PASSWORD.into()), ("a connect header", HEADER.into())];
    all.extend(TOKENS.map(|token| ("a node token", token.to_string())));
    all.push(("a JWT", "eyJ".into()));
    all.extend(key.expose().lines().filter(|l| !l.is_empty()).map(|l| ("the private key", l.to_string())));
    assert!(all.len() > 10, "the key has lines");
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_output_of_a_full_run_holds_a_secret() {
    let mut host = Plan::simulator("").env("CODA_LOG", "trace").prepare().await;
    host.choose_port();
    host.set("CODA_NODE_CONNECT_HEADERS", format!("{{\"X-Key\": \"{HEADER}\"}}"));
    let mut account = cmd("ACL");
    account.arg("SETUSER").arg("node").arg("on").arg(format!(">{PASSWORD}")).arg("~*").arg("+@all");
    host.redis::<()>(&account).await;
    let url = format!("redis://node:{PASSWORD}@127.0.0.1:{}", host.redis.port());
    host.cloud.edit_bundle(move |bundle| bundle["redis_url"] = url.as_str().into());
    let mut seen = Vec::new();

    // A first start, with everything that can go wrong on the way of a job.
    host.start().await;
    host.good_job_goes_through("good").await;
    host.send(&host.job("bad", &example(), 100).field("ir_json", "{")).await;
    host.delivered("bad").await;
    host.send(&host.job("lost", &example(), 100).without("callback_url")).await;
    host.cloud.on_webhook(|w| Some(Answer::status(if &*w.job_id == "refused" { 404 } else { 503 })));
    host.submit("refused", &example(), 100).await;
    host.submit("waits", &example(), 100).await;
    eventually("both were tried", async || host.attempts("refused").0 > 0 && host.attempts("waits").0 > 0)
        .await;
    host.redis::<()>(cmd("ACL").arg("SETUSER").arg("node").arg("off")).await;
    host.redis::<i64>(cmd("CLIENT").arg("KILL").arg("USER").arg("node")).await;
    eventually("Redis is away", async || host.ready().await.0 == 503).await;
    for path in ["/ready", "/metrics", "/health"] {
        seen.push((path.to_string(), host.get(path).await.1));
    }
    host.redis::<()>(cmd("ACL").arg("SETUSER").arg("node").arg("on")).await;
    host.wait_ready().await;

    let commands: [&[&str]; 11] = [
        &["status"],
        &["status", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["config"],
        &["config", "--json"],
        &["results", "list"],
        &["results", "list", "--json"],
        &["results", "show", "refused"],
        &["results", "retry", "refused"],
        &["start"],
    ];
    for command in commands {
        seen.push((command.join(" "), host.cli(command).await.text()));
    }
    assert_eq!(host.stop().await, Exit::Code(0));
    seen.push(("doctor without a host".into(), host.cli(&["doctor"]).await.text()));

    // A token that is refused, by a cloud that repeats what it was sent.
    host.cloud.on_connect(|_| Some(Answer::status(400).body(format!("not {} {HEADER}", TOKENS[1]))));
    let said = host.cli(&["start", "--token", TOKENS[1]]).await;
    assert_eq!(said.code, 4, "{said:?}");
    assert!(said.err.contains("Node request failed (400)"), "{said:?}");
    seen.push(("a refused start".into(), said.text()));
    let said = host.cli(&["start", "--daemon", "--token", TOKENS[1]]).await;
    assert_eq!(said.code, 4, "{said:?}");
    seen.push(("a refused daemon".into(), said.text()));
    seen.push(("logs".into(), host.cli(&["logs", "-n", "100000"]).await.text()));

    // The background host: neither its arguments nor its environment.
    host.cloud.clear_hooks();
    host.cloud.add_token("third-hunter2");
    let said = host.cli(&["start", "--daemon"]).await;
    assert_eq!(said.code, 0, "{said:?}");
    let pid = std::fs::read_to_string(host.state_dir().join("coda-host.pid")).unwrap();
    for name in ["cmdline", "environ"] {
        let shown = std::fs::read(format!("/proc/{}/{name}", pid.trim())).unwrap();
        seen.push((format!("{name} of the daemon"), String::from_utf8_lossy(&shown).into_owned()));
    }
    host.delivered("waits").await;
    seen.push(("stop".into(), host.cli(&["stop"]).await.text()));
    seen.push(("reset".into(), host.cli(&["reset"]).await.text()));
    seen.push(("the log".into(), host.log()));

    assert!(host.log().contains("TRACE"), "the log is at its most talkative");
    for (what, secret) in secrets(&host) {
        for (place, text) in &seen {
            if let Some(at) = text.find(&secret) {
                let from =
                    (0..=at.saturating_sub(200)).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
                let around: String = text[from..].chars().take(400).collect();
                panic!("{what} is in {place}: ...{around}");
            }
        }
    }
}
