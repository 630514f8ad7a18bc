//! Plugins whose descriptor says that they need a separate process: every command gives them one. And what such a
//! process has of the host's settings.

use coda_host_tests::account::{NOBODY, is_root};
use coda_host_tests::artifacts::{circuit_file, library};
use coda_host_tests::process::children;
use coda_host_tests::{Exit, Plan, eventually, example, net};

/// Ends its process in its first run.
const DEVICE: &str = "executor_factory: coda_faulty_isolated\nthrow: run\n";
const DEATH: &str = "died of SIGABRT (abort)";
const STATED: &str = "the plugin states that it needs a separate process";

fn quick(device: &str) -> Plan {
    Plan::device(device).env("CODA_EXECUTOR_RESTART_BACKOFF_SEC", "0.02")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_gives_it_one_whatever_is_set_and_survives_its_death() {
    for (isolation, is_overruled) in [("none", true), ("process", false)] {
        let mut host = quick(DEVICE).env("CODA_EXECUTOR_ISOLATION", isolation).start().await;
        let pid = host.process().pid();
        assert_eq!(children(pid).len(), 1, "{isolation}: one process for the plugin");
        for id in ["J1", "J2"] {
            host.submit(id, &example(), 10).await;
            let error = host.failure(id).await;
            assert!(error.contains(DEATH), "{isolation}: {error}");
        }
        assert_eq!(host.process().pid(), pid);
        let log = host.log();
        assert_eq!(log.contains(STATED), is_overruled, "{isolation}: {log}");
        let ready = log.lines().find(|line| line.contains("the plugin is ready")).unwrap_or_default();
        assert!(ready.contains("runs_in=\"a process"), "{isolation}: {ready}");
        assert_eq!(host.stop().await, Exit::Code(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_that_loads_it_gives_it_one() {
    let host = quick(DEVICE).prepare().await;
    let device = host.dir().join("device.yaml").display().to_string();
    let file = library("coda_faulty_isolated").display().to_string();

    let said = host.cli(&["plugin", "inspect", &file]).await;
    assert!(said.out.contains("isolation   required: it runs in a separate process"), "{}", said.text());
    let said = host.cli(&["plugin", "inspect", &file, "--json"]).await;
    assert!(said.out.contains(r#""isolation":"required""#), "{}", said.text());
    let other = library("coda_faulty_cpp").display().to_string();
    let said = host.cli(&["plugin", "inspect", &other]).await;
    assert!(said.out.contains("isolation   as configured"), "{}", said.text());

    let circuit = circuit_file("bell.json").display().to_string();
    let said = host.cli(&["run", &circuit, "--device", &device]).await;
    assert!(said.code == 1 && said.err.contains(DEATH), "{}", said.text());

    let said = host.cli(&["plugin", "check", "--device", &device, "--only", "create", "--quick"]).await;
    assert!(said.out.contains(DEATH) || said.out.contains("died of SIGABRT"), "{}", said.text());

    let dir = host.dir().join("dev").display().to_string();
    let said = host.cli(&["dev", "--device", &device, "--dir", &dir, "--demo", "--once"]).await;
    assert!(said.code == 1 && said.text().contains(DEATH), "{} {}", said.code, said.text());

    // It throws where the host asks for its device: the command lives, and says so.
    host.write_device("executor_factory: coda_faulty_isolated\nthrow: device\n");
    for command in [&["plugin", "device"][..], &["doctor"]] {
        let said = host.cli(command).await;
        assert!(
            said.code > 0 && said.text().contains("SIGABRT"),
            "{command:?}: {} {}",
            said.code,
            said.text()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_reloaded_without_another_setting() {
    let device = "executor_factory: coda_faulty_isolated\n";
    let mut host = quick(device).start().await;
    host.good_job_goes_through("before").await;
    let first = children(host.process().pid());
    let said = host.cli(&["reload"]).await;
    assert!(said.code == 0 && said.out.contains("coda-plugin-faulty-isolated"), "{}", said.text());
    assert_ne!(children(host.process().pid()), first, "another process");
    host.good_job_goes_through("after").await;
    assert_eq!(host.stop().await, Exit::Code(0));

    // A host whose plugin is in its own process can't take it over, and goes on with what it has.
    let mut host = quick("executor_factory: coda_faulty_cpp\n").start().await;
    host.write_device(device);
    let said = host.cli(&["reload"]).await;
    assert!(said.code == 1 && said.err.contains("in the host's own process"), "{}", said.text());
    host.good_job_goes_through("as before").await;
    assert_eq!(host.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_gives_it_one() {
    let dir = tempfile::tempdir().unwrap();
    let peer = net::peer(dir.path(), "one", "executor_factory: coda_faulty_isolated\n", &[]).await;
    assert_eq!(children(peer.host.pid()).len(), 1, "one process for the plugin");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_account_needs_no_other_setting() {
    if !is_root() {
        return;
    }
    let mut host =
        quick("executor_factory: coda_faulty_isolated\n").env("CODA_EXECUTOR_USER", NOBODY).start().await;
    let log = host.log();
    assert!(log.contains("runs_in=\"a process of account nobody\""), "{log}");
    let said = host.cli(&["doctor"]).await;
    assert!(said.out.contains("the plugin's process runs as nobody"), "{}", said.text());
    assert_eq!(host.stop().await, Exit::Code(0));
}

/// Heaps that the C library has made for single threads: mappings of 64 MiB, of which the most is reserved.
fn thread_heaps(pid: i32) -> usize {
    const RESERVED: std::ops::Range<u64> = 32 << 20..(64 << 20) + 1;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let reserved = maps.lines().filter(|line| {
        let mut words = line.split_whitespace();
        let (Some(range), Some("---p")) = (words.next(), words.next()) else { return false };
        let ends = range.split('-').map(|end| u64::from_str_radix(end, 16).unwrap_or_default());
        let [start, end] = ends.collect::<Vec<_>>()[..] else { return false };
        RESERVED.contains(&(end - start)) && end.is_multiple_of(64 << 20)
    });
    reserved.count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugins_process_has_the_c_librarys_own_heaps_and_the_host_a_small_one() {
    let mut host = Plan::simulator("slots: 2").env("CODA_EXECUTOR_ISOLATION", "process").start().await;
    host.good_job_goes_through("J1").await;
    let pid = host.process().pid();
    let plugin = children(pid)[0];
    eventually("the threads of the plugin's process have heaps", async || thread_heaps(plugin) > 0).await;
    assert_eq!(thread_heaps(pid), 0, "the host keeps its heap small");
    assert_eq!(host.stop().await, Exit::Code(0));
}
