//! The host in the background: start, status, logs, stop, as an operator types them.

use std::process::{Command, Stdio};

use coda_host_tests::{Exit, Plan, TestHost, eventually, example, net, process};

const SECRET: &str = "one-time-q1";

/// Runs a command of this host's host, as from a terminal in its directory.
async fn cli(host: &TestHost, arguments: &[&str]) -> (i32, String) {
    let said = host.cli(arguments).await;
    (said.code, said.text())
}

/// Stops whatever daemon a failed test leaves behind.
struct Stopped<'a>(&'a TestHost);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let stop =
            coda_host_tests::command(&["stop"], &self.0.env, self.0.dir()).stderr(Stdio::null()).status();
        drop(stop);
    }
}

async fn lay(device: &str) -> TestHost {
    let mut host = Plan::simulator(device).prepare().await;
    host.choose_port();
    host
}

fn pid(text: &str) -> u32 {
    let rest = text.split("process ").nth(1).unwrap_or_else(|| panic!("no process in {text:?}"));
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_is_started_watched_and_stopped() {
    let host = lay("").await;
    let _stopped = Stopped(&host);
    assert_eq!(cli(&host, &["status"]).await.0, 1);
    assert_eq!(cli(&host, &["stop"]).await.0, 1);
    assert_eq!(cli(&host, &["logs"]).await.0, 1);
    let (code, text) = cli(&host, &["start", "--daemon", "--token", SECRET]).await;
    assert_eq!(code, 0, "{text}");
    let pid = pid(&text);
    // It is up when the command returns; Redis may come a moment later.
    let (_, ready) = host.ready().await;
    assert_eq!(ready["qpu_id"], "q1", "{ready}");
    eventually("it is ready", async || host.ready().await.0 == 200).await;
    let file = std::fs::read_to_string(host.state_dir().join("coda-host.pid")).unwrap();
    assert_eq!(file.trim(), pid.to_string());
    for name in ["cmdline", "environ"] {
        let shown = std::fs::read(format!("/proc/{pid}/{name}")).unwrap();
        assert!(!String::from_utf8_lossy(&shown).contains(SECRET), "the token is in {name}");
    }
    host.submit("J1", &example(), 100).await;
    host.delivered("J1").await;
    let (code, text) = cli(&host, &["status"]).await;
    assert_eq!(code, 0, "{text}");
    for part in [format!("process {pid}"), "coda-plugin-simulator".into(), "0 of 1 busy".into()] {
        assert!(text.contains(&part), "{text} lacks {part}");
    }
    let (code, text) = cli(&host, &["status", "--json"]).await;
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["pid"], &json["ready"]), (0, &pid.into(), &true.into()));
    let (code, text) = cli(&host, &["start", "--daemon"]).await;
    assert!(code == 1 && text.contains(&format!("running already (process {pid})")), "{code}: {text}");
    let (code, text) = cli(&host, &["start"]).await;
    assert!(code == 1 && text.contains("coda-host stop"), "{code}: {text}");
    let (code, text) = cli(&host, &["logs", "-n", "1000"]).await;
    assert!(code == 0 && text.contains("coda-host is up") && !text.contains(SECRET), "{text}");
    assert_eq!(cli(&host, &["logs", "-n", "1"]).await.1.lines().count(), 1);
    let (code, text) = cli(&host, &["stop"]).await;
    assert!(code == 0 && text.contains(&format!("stopped (process {pid})")), "{code}: {text}");
    assert!(!std::path::Path::new(&format!("/proc/{pid}/exe")).exists(), "the process is gone");
    assert_eq!(cli(&host, &["status"]).await.0, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_cannot_start_says_why_on_the_terminal() {
    let host = lay("").await;
    let _stopped = Stopped(&host);
    host.write_device("executor_factory: ./missing.so");
    let (code, text) = cli(&host, &["start", "--daemon"]).await;
    assert!(code == 3 && text.contains("missing.so") && text.contains("to do:"), "{code}: {text}");
    host.write_device("executor_factory: coda_simulator");
    let (code, text) = cli(&host, &["start", "--daemon", "--token", "never-given"]).await;
    assert!(code == 4 && text.contains("to do:") && !text.contains("never-given"), "{code}: {text}");
    // Of two at once exactly one wins.
    let (one, two) =
        tokio::join!(cli(&host, &["start", "-d", "-t", SECRET]), cli(&host, &["start", "-d", "-t", SECRET]));
    let mut codes = [one.0, two.0];
    codes.sort_unstable();
    assert_eq!(codes, [0, 1], "{one:?} {two:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_pid_file_hurts_nobody() {
    let host = lay("").await;
    let mut bystander = Command::new("sleep").arg("600").spawn().unwrap();
    std::fs::create_dir_all(host.state_dir()).unwrap();
    for content in ["0", "-1", "1", "", "abc", "99999999999", &bystander.id().to_string()] {
        std::fs::write(host.state_dir().join("coda-host.pid"), content).unwrap();
        let holder = format!(r#"{{"pid":{},"started":5,"address":null}}"#, bystander.id());
        std::fs::write(host.state_dir().join("coda-host.lock"), holder).unwrap();
        for command in ["stop", "status"] {
            let (code, text) = cli(&host, &[command]).await;
            assert_eq!(code, 1, "{command} with {content:?}: {text}");
        }
    }
    assert!(bystander.try_wait().unwrap().is_none(), "nobody was signalled");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    let _stopped = Stopped(&host);
    let (code, text) = cli(&host, &["start", "-d", "-t", SECRET]).await;
    assert_eq!(code, 0, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_without_a_cloud_reloads_and_tells_of_itself() {
    let dir = tempfile::tempdir().unwrap();
    let device = "executor_factory: coda_simulator\n";
    let mut peer = net::peer(dir.path(), "one", device, &[("CODA_EXECUTOR_ISOLATION", "process")]).await;
    std::fs::write(peer.dir().join("device.yaml"), format!("{device}num_qubits: 9\n")).unwrap();
    let done = peer.cli(&["reload"]).await;
    assert!(done.code == 0 && done.out.contains("9 qubits"), "{}", done.text());
    std::fs::write(peer.dir().join("device.yaml"), "executor_factory: coda_nothing\n").unwrap();
    let done = peer.cli(&["reload"]).await;
    assert!(done.code == 1 && done.err.contains("coda_nothing"), "{}", done.text());
    let status = peer.cli(&["status"]).await;
    assert_eq!(status.code, 0, "{}", status.text());
    for says in ["coda-plugin-simulator", "0 of 1 busy", &peer.peer_id, "0 peer(s) connected"] {
        assert!(status.out.contains(says), "{says}: {}", status.out);
    }
    assert!(!status.out.contains("heartbeat"), "{}", status.out);
    peer.env.insert("CODA_DEVICE_CONFIG".into(), "device.yaml".into());
    std::fs::write(peer.dir().join("device.yaml"), device).unwrap();
    for name in ["CODA_PEER", "CODA_NO_CLOUD"] {
        peer.env.insert(name.into(), "true".into());
    }
    let doctor = peer.cli(&["doctor"]).await;
    assert_eq!(doctor.code, 0, "{}", doctor.text());
    for says in ["pass  plugin", &format!("known as {}", peer.peer_id), "no peer may reserve", "skip  cloud"]
    {
        assert!(doctor.out.contains(says), "{says}: {}", doctor.out);
    }
    let nobody = format!("/ip4/127.0.0.1/tcp/9/p2p/{}", peer.peer_id);
    peer.env.insert("CODA_PEER_BOOTSTRAP".into(), nobody.clone());
    let doctor = peer.cli(&["doctor"]).await;
    assert!(
        doctor.code == 1 && doctor.out.contains(&format!("fail  bootstrap    {nobody}")),
        "{}",
        doctor.text()
    );
    assert_eq!(peer.stop().await, Exit::Code(0));
    // Opened, now that no one else has it.
    std::fs::write(
        peer.dir().join("device.yaml"),
        "executor_factory: libcoda_example_c.so\nhost: here\nport: 1\n",
    )
    .unwrap();
    let doctor = peer.cli(&["doctor"]).await;
    assert!(doctor.out.contains("it can't evolve a quantum state"), "{}", doctor.text());
}

/// Below the process with this number: those that have ended and were not waited for.
fn zombies(pid: i32) -> Vec<i32> {
    let children = process::children(pid);
    let state = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let is_zombie =
        |pid: &i32| state(pid).rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('Z'));
    let below = children.iter().flat_map(|child| zombies(*child)).collect::<Vec<_>>();
    children.into_iter().filter(is_zombie).chain(below).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_the_first_process_of_a_container_it_reaps_orphans_and_is_stopped_by_a_signal() {
    if !process::is_root() {
        println!("skipped: a process namespace needs root");
        return;
    }
    let within = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c"];
    // The orphan's parent is gone at once; its end is the first process's to notice.
    let mut host = Plan::simulator("")
        .within(&[&within[..], &["(sleep 0.5 & sleep 0.6 &); exec \"$@\"", "bash"]].concat())
        .start()
        .await;
    let pid = host.process().pid();
    let init = process::children(pid)[0];
    let ends = |name: &str| {
        let comm = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        process::children(init).iter().all(|child| comm(child).trim() != name) && zombies(pid).is_empty()
    };
    eventually("the orphans are gone, and nothing is left of them", async || ends("sleep")).await;
    host.good_job_goes_through("J1").await;
    coda_host::sys::signal(init as u32, libc::SIGTERM).unwrap();
    assert_eq!(host.wait_exit().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_looks_after_a_host_with_an_account_of_its_own() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    const USER: u32 = 65_534;
    if !process::is_root() {
        println!("skipped: another account needs root");
        return;
    }
    let id = USER.to_string();
    let within = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"];
    let mut host = Plan::simulator("").within(&within).prepare().await;
    std::fs::set_permissions(host.dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(host.state_dir()).unwrap();
    chown(host.state_dir(), Some(USER), Some(USER)).unwrap();
    host.choose_port();
    host.start().await;
    host.good_job_goes_through("J1").await;
    for (arguments, expected) in [
        (&["status"][..], 0),
        (&["doctor", "--no-plugin"], 0),
        (&["results", "list"], 0),
        (&["jobs", "consumers"], 0),
        (&["config"], 0),
        (&["logs"], 1),
        (&["stop"], 0),
        (&["results", "list"], 0),
        (&["doctor", "--no-plugin"], 0),
        (&["status"], 1),
    ] {
        let said = host.cli(arguments).await;
        assert_eq!(said.code, expected, "{arguments:?}: {}", said.text());
        assert!(!said.text().contains("chown"), "{arguments:?}: {}", said.text());
    }
    assert_eq!(host.wait_exit().await, Exit::Code(0));
    for entry in std::fs::read_dir(host.state_dir()).unwrap().flatten() {
        assert_eq!(entry.metadata().unwrap().uid(), USER, "{} is not the host's", entry.path().display());
    }
    // A host of root's would act on what another user may write.
    let mut env = host.env.clone();
    env.remove("CODA_NODE_TOKEN");
    let said = coda_host_tests::said(&["start"], &env, host.dir()).await;
    assert_eq!(said.code, 2, "{}", said.text());
    assert!(said.err.contains("run this as the user that it belongs to"), "{}", said.text());
}
