//! Several hosts, and a Python node, beside each other.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use coda_host_tests::refusing_redis::RefusingRedis;
use coda_host_tests::{Exit, HostProcess, Plan, TestHost, eventually, example, said};
use redis::{Value, cmd};

/// The environment of a further host of this site, with another state directory and token.
fn second(host: &TestHost, consumer: &str) -> BTreeMap<String, String> {
    host.cloud.add_token("one-time-second");
    let mut env = host.env.clone();
    let state = host.dir().join("state-2");
    env.insert("CODA_STATE_DIR".into(), state.display().to_string());
    env.insert("CODA_NODE_TOKEN".into(), "one-time-second".into());
    env.insert("CODA_CONSUMER_NAME".into(), consumer.into());
    env.insert("CODA_PORT".into(), "0".into());
    env
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_with_names_of_their_own_share_the_stream() {
    let record = tempfile::NamedTempFile::new().unwrap();
    let device = format!("run_ms: 20\nrecord: {}\n", record.path().display());
    let mut host = Plan::faulty(&device).start().await;
    let log = host.dir().join("second.log");
    let mut other = HostProcess::spawn(&[], &second(&host, "worker-1"), host.dir(), &log);
    let says = |text: &'static str| std::fs::read_to_string(&log).is_ok_and(|log| log.contains(text));
    eventually("the second host is connected", async || says("connected to Redis")).await;
    for n in 0..60 {
        host.submit(&format!("J{n}"), &example(), 10).await;
    }
    for n in 0..60 {
        host.delivered(&format!("J{n}")).await;
    }
    host.wait_nothing_pending().await;
    let here = host.counted("completed").await;
    assert!((1..60).contains(&here), "both have worked: {here} of 60 were run by the first");
    let starts = std::fs::read_to_string(record.path()).unwrap();
    assert_eq!(starts.lines().filter(|l| l.starts_with("start")).count(), 60, "each ran once");
    let listed = host.cli(&["jobs", "consumers"]).await;
    assert_eq!(listed.code, 0, "{}", listed.text());
    assert!(listed.out.contains("worker-0") && listed.out.contains("(this host's)"), "{}", listed.out);
    assert!(listed.out.contains("worker-1"), "{}", listed.out);
    other.signal(libc::SIGTERM);
    assert_eq!(other.wait_exit().await, Exit::Code(0));
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_host_under_the_same_name_is_refused() {
    let host = Plan::simulator("").start().await;
    let refused = said(&["start"], &second(&host, "worker-0"), host.dir()).await;
    assert_eq!(refused.code, 1, "{}", refused.text());
    let text = refused.text();
    assert!(text.contains("another coda-host on this machine serves QPU q1 as consumer worker-0"), "{text}");
    assert!(text.contains("CODA_CONSUMER_NAME"), "{text}");
    host.good_job_goes_through("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_host_left_is_adopted_on_request() {
    let host = Plan::simulator("").env("CODA_RECOVER_INTERVAL_SEC", "0.1").start().await;
    for n in 0..150 {
        host.submit(&format!("dead-{n}"), &example(), 10).await;
    }
    // As a host that claims and dies.
    let mut read = cmd("XREADGROUP");
    read.arg(&["GROUP", &host.group(), "worker-9", "COUNT", "150", "STREAMS", &host.stream(), ">"]);
    let got: Value = host.redis(&read).await;
    let pending = host.pending().await;
    // The running host had some of them.
    assert!(matches!(got, Value::Array(_)), "{got:?}");
    let active = host.cli(&["jobs", "adopt", "--consumer", "worker-9"]).await;
    assert_eq!(active.code, 1, "{}", active.text());
    assert!(active.err.contains("worker-9 was active"), "{}", active.err);
    let own = host.cli(&["jobs", "adopt", "--consumer", "worker-0"]).await;
    assert!(own.code == 1 && own.err.contains("own consumer"), "{}", own.text());
    let nobody = host.cli(&["jobs", "adopt", "--consumer", "worker-5"]).await;
    assert!(nobody.code == 1 && nobody.err.contains("no consumer worker-5"), "{}", nobody.text());
    let adopted = host.cli(&["jobs", "adopt", "--consumer", "worker-9", "--force"]).await;
    assert_eq!(adopted.code, 0, "{}", adopted.text());
    assert!(adopted.out.contains("message(s) of worker-9 are now worker-0's"), "{}", adopted.out);
    for n in 0..150 {
        host.delivered(&format!("dead-{n}")).await;
    }
    host.wait_nothing_pending().await;
    assert!(!pending.is_empty(), "there was something to adopt");
}

/// Who was active can't be asked for a moment: that is not a reason to take a living host's messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_adopted_while_the_server_does_not_say_who_is_active() {
    let mut host = Plan::simulator("").start().await;
    host.good_job_goes_through("J1").await;
    let server = RefusingRedis::start(host.redis.port()).await.unwrap();
    // For the commands alone: the host is up already.
    host.set("CODA_REDIS_URL", format!("redis://127.0.0.1:{}/0", server.port()));
    for (answer, says) in [
        ("-BUSY Redis is busy running a script\r\n", "BUSY"),
        ("-LOADING Redis is loading the dataset in memory\r\n", "LOADING"),
        ("$-1\r\n", "expected a list"),
    ] {
        server.refuse("XINFO", answer);
        for command in [&["jobs", "adopt", "--consumer", "worker-9"][..], &["jobs", "consumers"]] {
            let said = host.cli(command).await;
            assert_eq!(said.code, 1, "{answer}: {}", said.text());
            assert!(said.err.contains(says) && !said.err.contains("add --force"), "{}", said.text());
        }
    }
}

/// A process whose command line and environment are those of a coda-node; nothing else of it matters.
struct PythonNode(std::process::Child);

impl PythonNode {
    fn start(host: &TestHost, tmp: &Path) -> PythonNode {
        let script = host.dir().join("coda-node");
        std::fs::write(&script, "read _\n").unwrap();
        let mut command = Command::new("sh");
        command.arg(&script).arg("start").env_clear().env("TMPDIR", tmp).stdin(Stdio::piped());
        PythonNode(command.spawn().unwrap())
    }

    /// The host doesn't start beside it, and says whom it has found.
    async fn is_in_the_way(&self, host: &TestHost) {
        let expected =
            format!("a Python coda-node (process {}) serves this QPU on this machine", self.0.id());
        let refused = host.cli(&["start"]).await;
        assert_eq!(refused.code, 1, "{}", refused.text());
        assert!(refused.err.contains(&expected), "{}", refused.text());
        let doctor = host.cli(&["doctor", "--no-plugin"]).await;
        assert!(doctor.out.contains(&expected), "{}", doctor.text());
    }
}

impl Drop for PythonNode {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_coda_node_of_the_same_place_is_no_neighbour() {
    let mut host = Plan::simulator("").qpu("neighbour").start().await;
    assert_eq!(host.stop().await, Exit::Code(0));
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = PythonNode::start(&host, elsewhere.path());
    host.start().await;
    assert_eq!(host.stop().await, Exit::Code(0));
    // The same QPU, from another directory.
    std::fs::copy(host.state_dir().join("coda.config"), elsewhere.path().join("coda.config")).unwrap();
    stranger.is_in_the_way(&host).await;
    drop(stranger);
    // The same directory.
    PythonNode::start(&host, &host.state_dir()).is_in_the_way(&host).await;
    host.start().await;
    host.good_job_goes_through("J1").await;
}
