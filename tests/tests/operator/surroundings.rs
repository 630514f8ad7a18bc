//! What operators' machines are like: line ends of Windows, limits, odd paths and addresses. Each works, or is named.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use coda_host_tests::artifacts::project_file;
use coda_host_tests::{Exit, Plan, command, process};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn carriage_returns_behind_values_change_nothing() {
    let plan = Plan::simulator("").env("CODA_CONSUMER_NAME", "worker-7\r").env("CODA_LOG_FORMAT", "text\r");
    let mut host = plan.prepare().await;
    host.choose_port();
    let port = format!("{}\r", host.port());
    host.set("CODA_PORT", port);
    let said = host.cli(&["config"]).await;
    assert!(said.code == 0 && said.out.contains("worker-7") && !said.out.contains('\r'), "{said:?}");
    let device = format!("{}\r", host.env["CODA_DEVICE_CONFIG"]);
    host.set("CODA_DEVICE_CONFIG", device);
    let said = host.cli(&["plugin", "device"]).await;
    assert_eq!(said.code, 0, "{}", said.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_format_of_the_log_is_optional_and_named_when_it_is_wrong() {
    let mut host = Plan::simulator("").prepare().await;
    for (value, code) in [("", 0), (" ", 0), ("JSON", 0), ("yaml", 2)] {
        host.set("CODA_LOG_FORMAT", value);
        let said = host.cli(&["config"]).await;
        assert_eq!(said.code, code, "{value:?}: {}", said.text());
        assert_eq!(said.err.contains("CODA_LOG_FORMAT is 'yaml'"), code == 2, "{}", said.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_config_of_another_editor_is_read_and_a_near_miss_is_named() {
    let host = Plan::device("\u{feff}executor_factory: coda_simulator\r\nnum_qubits: 3\r\n").prepare().await;
    let said = host.cli(&["plugin", "device"]).await;
    assert!(said.code == 0 && said.out.contains("qubits      3"), "{}", said.text());
    for key in ["Executor-Factory", "executor-factory", "EXECUTOR_FACTORY"] {
        host.write_device(&format!("{key}: coda_simulator\n"));
        let said = host.cli(&["config"]).await;
        let expected = format!("unknown key {key} of");
        assert!(
            said.err.contains(&expected) && said.err.contains("did you mean executor_factory"),
            "{said:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_may_have_colons_and_must_be_text() {
    let host = Plan::simulator("").prepare().await;
    let dir = host.dir().join("plugins:2");
    std::fs::create_dir(&dir).unwrap();
    std::fs::copy(project_file("target/release/libcoda_simulator.so"), dir.join("libacme:1.so")).unwrap();
    host.write_device("executor_factory: ./plugins:2/libacme:1.so\n");
    let said = host.cli(&["plugin", "device"]).await;
    assert_eq!(said.code, 0, "{}", said.text());

    let wrong = OsStr::from_bytes(b"/etc/\xff.yaml");
    let mut by_variable = command(&["config"], &host.env, host.dir());
    by_variable.env("CODA_DEVICE_CONFIG", wrong);
    let mut by_flag = command(&["config", "--device"], &host.env, host.dir());
    by_flag.arg(wrong);
    for (mut command, name) in [(by_variable, "CODA_DEVICE_CONFIG"), (by_flag, "--device")] {
        let said = command.output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(2), "{text}");
        assert!(text.contains(name) && text.contains("is not UTF-8"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ipv6_address_may_stand_in_brackets() {
    let mut host = Plan::simulator("").env("CODA_HOST", "[::]").start().await;
    host.good_job_goes_through("J1").await;
    assert_eq!(host.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_is_not_this_machines_is_blamed_and_not_the_port() {
    for address in ["127.0.0.1:8080", "http://127.0.0.1", "192.0.2.1"] {
        let mut host = Plan::simulator("").env("CODA_HOST", address).prepare().await;
        host.launch();
        assert_eq!(host.wait_exit().await, Exit::Code(2), "{address}");
        let log = host.log();
        assert!(log.contains("CODA_HOST") && !log.contains("another port"), "{address}: {log}");
    }
    let mut host = Plan::simulator("").env("CODA_HOST", " 127.0.0.1 ").start().await;
    assert_eq!(host.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_needs_no_directory_for_temporary_files() {
    for long in [true, false] {
        let mut host = Plan::simulator("").prepare().await;
        let dir = host.dir().join("x".repeat(120));
        if long {
            std::fs::create_dir(&dir).unwrap();
        }
        host.set("TMPDIR", dir.display().to_string());
        host.choose_port();
        let said = host.cli(&["start", "--daemon", "--token", "one-time-q1"]).await;
        assert_eq!(said.code, 0, "{}", said.text());
        assert_eq!(host.cli(&["stop"]).await.code, 0);
    }
}

/// Whatever could not be opened: a later start may succeed, so the status is not that of a wrong setting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lack_of_descriptors_is_named_whatever_it_prevents() {
    for limit in [10, 12, 14, 16, 18] {
        let wrapper = ["bash", "-c", "ulimit -n $LIMIT && exec \"$@\"", "bash"];
        let plan = Plan::simulator("").env("LIMIT", limit.to_string()).within(&wrapper);
        let mut host = plan.prepare().await;
        host.launch();
        let exit = host.wait_exit().await;
        let log = host.log();
        assert!(log.contains("ulimit -n"), "{limit}: {log}");
        // SQLite does not say why it can't open a file.
        let expected = if log.contains("LimitNOFILE") { 1 } else { 2 };
        assert_eq!(exit, Exit::Code(expected), "{limit}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_descriptors_are_enough() {
    let plan = Plan::simulator("").within(&["bash", "-c", "ulimit -n 64 && exec \"$@\"", "bash"]);
    let mut host = plan.start().await;
    host.good_job_goes_through("J1").await;
    assert_eq!(host.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_directory_may_be_mounted_noexec() {
    if !process::is_root() {
        println!("skipped: a mount needs root");
        return;
    }
    let script =
        "mkdir -p \"$CODA_STATE_DIR\" && mount -t tmpfs -o noexec none \"$CODA_STATE_DIR\" && exec \"$@\"";
    let plan = Plan::simulator("").within(&["unshare", "--mount", "bash", "-c", script, "bash"]);
    let mut host = plan.start().await;
    host.good_job_goes_through("J1").await;
    assert_eq!(host.stop().await, Exit::Code(0));
}
