//! The rights of a plugin's own process: whose account, no capability, nothing inherited.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use coda_host::sys;
use coda_host_tests::account::{NOBODY, is_root, mode};
use coda_host_tests::artifacts::{library, project_file};
use coda_host_tests::process::children;
use coda_host_tests::run_record::RunRecord;
use coda_host_tests::{Exit, Plan, TestHost, eventually, example};
use serde_json::json;

/// A host whose device config everybody may read, as under /etc, with its plugin in a process of this account.
async fn host_with_account(account: &str, plan: Plan) -> TestHost {
    let host =
        plan.env("CODA_EXECUTOR_ISOLATION", "process").env("CODA_EXECUTOR_USER", account).prepare().await;
    mode(host.dir(), 0o755);
    host
}

/// The lines of `/proc/PID/status`.
fn status(pid: i32) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pairs = text.lines().filter_map(|l| l.split_once(':'));
    pairs.map(|(k, v)| (k.to_string(), v.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

/// A process without any capability that can get none.
fn assert_no_capabilities(status: &BTreeMap<String, String>) {
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }
    assert_eq!(status["NoNewPrivs"], "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_has_the_rights_of_its_account_and_nothing_of_the_host() {
    if !is_root() {
        return;
    }
    let secret = "sesame-open";
    // The host is given an open file that it knows nothing of.
    let file = ["sh", "-c", "exec 9</etc/passwd; exec \"$@\"", "sh"];
    let mut host = host_with_account(NOBODY, Plan::simulator("seed: 3").within(&file)).await;
    let proxy = format!("http://user:{secret}@127.0.0.1:9");
    host.set("HTTPS_PROXY", proxy);
    host.set("NO_PROXY", "127.0.0.1");
    host.set("NOTIFY_SOCKET", host.dir().join("notify").display().to_string());
    host.set("CODA_NODE_CONNECT_HEADERS", format!("{{\"X-Key\": \"{secret}\"}}"));
    host.set("CODA_JWT_PRIVATE_KEY", host.cloud.private_key().0.expose().to_string());
    host.set("CODA_REDIS_URL", format!("redis://:{secret}@127.0.0.1:1"));
    host.set("CODA_API_TOKEN", secret);
    host.start().await;
    let pid = host.process().pid();
    let plugin = children(pid)[0];

    let of = status(plugin);
    let account = sys::account(NOBODY).unwrap().unwrap();
    let four = |id: u32| [id; 4].map(|id| id.to_string()).join(" ");
    assert_eq!((of["Uid"].clone(), of["Gid"].clone()), (four(account.uid), four(account.gid)));
    let mut groups: Vec<u32> = of["Groups"].split_whitespace().map(|g| g.parse().unwrap()).collect();
    let mut wanted = account.groups.clone();
    [&mut groups, &mut wanted].into_iter().for_each(|g| g.sort_unstable());
    assert_eq!(groups, wanted);
    assert_no_capabilities(&of);
    // Where this may be done: root with CAP_SETPCAP.
    let bounding = u64::from_str_radix(&status(pid)["CapBnd"], 16).unwrap();
    if bounding & (1 << 8) != 0 {
        assert_eq!(of["CapBnd"], "0000000000000000");
    }
    assert_eq!(status(pid)["Uid"], four(0), "the host stays what it is");

    let environment = std::fs::read(format!("/proc/{plugin}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment).replace('\0', "\n");
    assert!(!environment.contains(secret) && !environment.contains("PRIVATE KEY"), "{environment}");
    assert!(!environment.contains("one-time-q1") && !environment.contains("NOTIFY_SOCKET"), "{environment}");
    assert!(
        environment.contains("USER=nobody\n") && environment.contains("HOME=/nonexistent\n"),
        "{environment}"
    );

    let to = |pid: i32, fd: u32| std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok();
    assert_eq!(to(pid, 9), Some(PathBuf::from("/etc/passwd")));
    let mut sockets = 0;
    for entry in std::fs::read_dir(format!("/proc/{plugin}/fd")).unwrap().flatten() {
        let number: u32 = entry.file_name().to_str().unwrap().parse().unwrap();
        let to = std::fs::read_link(entry.path()).unwrap().display().to_string();
        let needed = match number {
            0 => to == "/dev/null",
            1 | 2 => to.starts_with("pipe:"),
            _ => to.starts_with("socket:"),
        };
        assert!(needed, "descriptor {number} is {to}");
        sockets += u32::from(to.starts_with("socket:"));
    }
    // Control, events, and the one slot's with its copy.
    assert!(sockets <= 4, "{sockets} sockets");

    host.submit("J1", &example(), 50).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "10": 50 }));
    assert_eq!((host.process().pid(), children(pid)), (pid, vec![plugin]));
    // It dies with the host, though it is another's.
    host.kill();
    eventually("the plugin's process is gone", async || !PathBuf::from(format!("/proc/{plugin}")).exists())
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_account_can_not_read_the_state_and_its_death_is_told_as_any() {
    if !is_root() {
        return;
    }
    let mut host = host_with_account(NOBODY, Plan::faulty("")).await;
    let key = host.state_dir().join("coda-private-key");
    host.write_device(&format!(
        "executor_factory: coda_faulty\nread: {}\nfault: segfault\nwhen: run\nafter: 1",
        key.display()
    ));
    host.start().await;
    assert_eq!(host.stop().await, Exit::Code(0));
    assert!(key.is_file());
    host.start().await;
    host.wait_log(&format!("reading {}: Permission denied", key.display())).await;
    host.good_job_goes_through("before").await;
    host.submit("J1", &example(), 100).await;
    let error = host.failure("J1").await;
    assert!(error.contains("died of SIGSEGV"), "{error}");
    host.good_job_goes_through("after").await;
    // A new version gets the same rights.
    host.write_device("executor_factory: coda_simulator\nnum_qubits: 5");
    let done = host.cli(&["reload"]).await;
    assert_eq!(done.code, 0, "{}", done.text());
    let plugin = children(host.process().pid());
    assert_eq!(plugin.len(), 1);
    assert!(status(plugin[0])["Uid"].starts_with("65534 65534"), "{:?}", status(plugin[0]));
    assert_eq!(host.stop().await, Exit::Code(0), "it is asked to end, and ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_the_account_may_not_read_is_named_with_it() {
    if !is_root() {
        return;
    }
    let refused = async |host: &mut TestHost, file: &Path| {
        host.launch();
        assert_eq!(host.wait_exit().await, Exit::Code(2), "{}", host.log());
        let says = format!("runs as 'nobody', which may not read {}: Permission denied", file.display());
        assert!(host.log().contains(&says), "{}", host.log());
        assert!(host.log().contains("chgrp 65534"), "{}", host.log());
        assert!(host.cloud.state().connects.is_empty(), "nothing was spent");
    };
    let mut host = host_with_account(NOBODY, Plan::simulator("")).await;
    let device = host.dir().join("device.yaml");
    mode(&device, 0o600);
    refused(&mut host, &device).await;
    // A copy is handed over; a library that looks beside itself is opened where it lies, with what it needs.
    mode(&device, 0o644);
    let own = host.dir().join("vendor");
    std::fs::create_dir(&own).unwrap();
    let cc = |arguments: &[&str]| {
        let include = format!("-I{}", project_file("plugin-abi/include").display());
        let done = Command::new("cc").args(["-shared", "-fPIC", &include]).args(arguments).status().unwrap();
        assert!(done.success());
    };
    let (helper, plugin) = (own.join("libhelper.so"), own.join("libacme.so"));
    std::fs::write(own.join("helper.c"), "int help(void) { return 1; }\n").unwrap();
    cc(&[own.join("helper.c").to_str().unwrap(), "-o", helper.to_str().unwrap()]);
    let source = project_file("plugins/example-c/acme.c");
    cc(&[
        source.to_str().unwrap(),
        "-o",
        plugin.to_str().unwrap(),
        "-lm",
        "-lpthread",
        "-Wl,--no-as-needed",
        &format!("-L{}", own.display()),
        "-lhelper",
        "-Wl,-rpath,$ORIGIN",
    ]);
    host.write_device("executor_factory: ./vendor/libacme.so\nhost: lab\nport: 7");
    mode(&plugin, 0o700);
    refused(&mut host, &plugin).await;
    mode(&plugin, 0o755);
    mode(&helper, 0o700);
    refused(&mut host, &helper).await;
    mode(&helper, 0o755);
    mode(&own, 0o700);
    refused(&mut host, &plugin).await;
    mode(&own, 0o755);
    host.start().await;
    host.submit("J1", &example(), 50).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "10": 50 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_shares_its_account_keeps_no_capability_in_it_either() {
    let mut host = Plan::simulator("").env("CODA_EXECUTOR_ISOLATION", "process").start().await;
    let of = status(children(host.process().pid())[0]);
    let own = sys::effective_user();
    assert!(of["Uid"].starts_with(&format!("{own} {own}")), "{of:?}");
    assert_no_capabilities(&of);
    host.submit("J1", &example(), 50).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "10": 50 }));
    if !is_root() {
        return;
    }
    // Started as an ordinary user with capabilities that it keeps across what it executes, as a unit gives them.
    let mut host = Plan::simulator("")
        .within(&[
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=+net_admin,+kill",
            "--ambient-caps=+net_admin,+kill",
        ])
        .prepare()
        .await;
    host.set("CODA_EXECUTOR_ISOLATION", "process");
    std::fs::create_dir(host.state_dir()).unwrap();
    std::os::unix::fs::chown(host.state_dir(), Some(65534), Some(65534)).unwrap();
    mode(host.dir(), 0o755);
    host.start().await;
    let pid = host.process().pid();
    assert_ne!(status(pid)["CapEff"], "0000000000000000", "the host has what it was given");
    let of = status(children(pid)[0]);
    assert!(of["Uid"].starts_with("65534 65534"), "{of:?}");
    assert_no_capabilities(&of);
    host.submit("J1", &example(), 50).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "10": 50 }));
    // It can't start a process of another account.
    assert_eq!(host.stop().await, Exit::Code(0));
    host.set("CODA_EXECUTOR_USER", "daemon");
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(2), "{}", host.log());
    assert!(
        host.log().contains("'daemon', but only root can start a process of another account"),
        "{}",
        host.log()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_the_same_with_the_few_capabilities_of_the_unit() {
    if !is_root() {
        return;
    }
    let unit = std::fs::read_to_string(project_file("packaging/systemd/coda-host.service")).unwrap();
    let set = unit.lines().find_map(|l| l.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let set: Vec<String> = set.split(' ').map(|c| c.replace("CAP_", "+").to_ascii_lowercase()).collect();
    let bounding = format!("--bounding-set=-all,{}", set.join(","));
    let record = RunRecord::new();
    let keys = record.keys("fault: slow\nrun_ms: 600000\nwhen: run\nafter: 1");
    let plan = Plan::faulty(&keys).within(&["setpriv", "--no-new-privs", &bounding, "--inh-caps=-all"]);
    let mut host = host_with_account(NOBODY, plan.env("CODA_CANCEL_GRACE_SEC", "0.2")).await;
    host.start().await;
    let pid = host.process().pid();
    assert_eq!(status(pid)["CapBnd"], status(pid)["CapEff"], "the host has these and no more");
    let plugin = children(pid)[0];
    assert!(status(plugin)["Uid"].starts_with("65534 65534"));
    assert_no_capabilities(&status(plugin));
    // It can be killed, and another one started.
    host.submit("J1", &example(), 10).await;
    record.wait_begun("J1").await;
    host.request_cancel("J1").await;
    host.wait_state("J1", "cancelled").await;
    host.wait_log("the run did not end; its process is killed").await;
    eventually("another process is there", async || {
        let now = children(pid);
        now.len() == 1 && now != [plugin]
    })
    .await;
    let plugin = children(pid)[0];
    host.kill();
    eventually("it dies with the host", async || !PathBuf::from(format!("/proc/{plugin}")).exists()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_that_is_not_there_is_told_before_anything_is_spent() {
    for (isolation, user, says) in [
        ("process", "no-such-account", "this machine has no such account"),
        ("none", NOBODY, "has no effect on a plugin in the host's own process"),
    ] {
        let plan = Plan::faulty("").env("CODA_EXECUTOR_ISOLATION", isolation).env("CODA_EXECUTOR_USER", user);
        let mut host = plan.prepare().await;
        host.launch();
        assert_eq!(host.wait_exit().await, Exit::Code(2), "{}", host.log());
        assert!(host.log().contains("CODA_EXECUTOR_USER") && host.log().contains(says), "{}", host.log());
        assert!(host.cloud.state().connects.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_account_root_is_warned() {
    if !is_root() || sys::account("coda-executor").unwrap().is_some() {
        println!("SKIPPED: this machine has the account");
        return;
    }
    let mut host = Plan::faulty("").prepare().await;
    host.set("CODA_EXECUTOR_ISOLATION", "process");
    host.start().await;
    assert_no_capabilities(&status(children(host.process().pid())[0]));
    let useradd = "useradd --system --user-group --no-create-home --shell /usr/sbin/nologin coda-executor";
    assert!(host.log().contains("runs as root") && host.log().contains(useradd), "{}", host.log());
    let done = host.cli(&["doctor"]).await;
    assert!(done.out.contains("warn  isolation") && done.out.contains(useradd), "{}", done.text());
    drop(host);
    let host = host_with_account(NOBODY, Plan::faulty("")).await;
    let done = host.cli(&["doctor"]).await;
    assert!(done.out.contains("pass  isolation    the plugin's process runs as nobody"), "{}", done.text());
    assert!(library("coda_faulty").is_file());
}
