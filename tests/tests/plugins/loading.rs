//! Plugins that can't be loaded: one message with the path and what to do, status 3, and no connect.

use std::path::{Path, PathBuf};

use coda_host_tests::artifacts::library;
use coda_host_tests::{Exit, Plan, TestHost};
use coda_plugin_abi::descriptor::{Kind, MAGIC, RawDescriptor};
use coda_plugin_abi::version;

/// Starts with this device config and expects a refusal; returns the output.
async fn refused(host: &mut TestHost, status: i32) -> String {
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(status), "{}", host.log());
    let log = host.log();
    assert!(host.cloud.state().connects.is_empty(), "no connect was made: {log}");
    let errors = log.lines().filter(|l| l.starts_with("error: ")).count();
    assert_eq!(errors, 1, "one message: {log}");
    assert!(log.contains("\n  to do: "), "it says what to do: {log}");
    log
}

async fn refused_with(device: &str, says: &[&str]) {
    let mut host = Plan::device(device).prepare().await;
    let log = refused(&mut host, 3).await;
    for text in says {
        assert!(log.contains(text), "{device}: {log} lacks {text:?}");
    }
}

/// A spoiled copy of a good plugin.
fn spoiled(dir: &Path, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = std::fs::read(library("coda_faulty")).unwrap();
    change(&mut bytes);
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The C library of this system: a shared library that is not a plugin.
fn some_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|l| l.split_whitespace().nth(5)).find(|p| p.contains("/libc.so"));
    PathBuf::from(path.expect("this program uses the C library"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_no_plugins_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    std::fs::create_dir(dir.path().join("directory.so")).unwrap();
    // Offsets of the ELF header: class at 4, machine at 18.
    let cases: Vec<(PathBuf, &str)> = vec![
        (dir.path().join("missing.so"), "there is no file"),
        (dir.path().join("directory.so"), "a directory, not a plugin library"),
        (write("text.so", b"#!/bin/sh\necho hello\n"), "not a plugin library"),
        (write("empty.so", b""), "not a plugin library"),
        (spoiled(dir.path(), "half.so", |b| b.truncate(b.len() / 2)), "cut off"),
        (spoiled(dir.path(), "head.so", |b| b.truncate(40)), ""),
        (spoiled(dir.path(), "class.so", |b| b[4] = 1), "built for a 32-bit machine"),
        (spoiled(dir.path(), "endian.so", |b| b[5] = 2), "built for a big-endian machine"),
        (spoiled(dir.path(), "machine.so", |b| b[18..20].copy_from_slice(&[8, 0])), "this machine is"),
        (some_library(), "not a coda-host plugin"),
    ];
    for (path, says) in cases {
        let path = path.to_str().unwrap();
        refused_with(&format!("executor_factory: {path}"), &[path, says]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_name_no_plugin_are_explained() {
    let simulator = library("coda_simulator");
    let simulator = simulator.to_str().unwrap();
    for (value, says) in [
        // Whether an interpreter was found or not.
        ("acme_qpu.executor_factory:create_executor", "CODA_EXECUTOR_PYTHON"),
        ("no_such_plugin", "no plugin directory has it"),
        ("libc.so.6", "no plugin directory has it"),
        ("./nowhere.so", "there is no file"),
        ("coda_simulator:not-a-name", "must be an identifier"),
    ] {
        refused_with(&format!("executor_factory: {value}"), &[value, says, "executor_factory"]).await;
    }
    let entry = format!("executor_factory: {simulator}:other_entry");
    refused_with(&entry, &[simulator, "no entry 'other_entry'", "create_executor"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_configured_is_an_error_and_a_simulator_is_never_picked() {
    let says = ["no executor is configured", "never used without being named", "libcoda_simulator.so"];
    refused_with("num_qubits: 3\n", &says).await;
    refused_with("", &says).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_library_that_others_may_write_is_refused_for_root() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = spoiled(dir.path(), "loose.so", |_| ());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let device = format!("executor_factory: {}", path.display());
    if coda_host_tests::process::is_root() {
        refused_with(&device, &["may be changed by other users", path.to_str().unwrap()]).await;
    } else {
        Plan::device(device).start().await.good_job_goes_through("J1").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_environment_goes_before_the_device_config() {
    let host = Plan::simulator("").env("CODA_EXECUTOR_FACTORY", "coda_simulator").start().await;
    assert!(host.log().contains("from=CODA_EXECUTOR_FACTORY"), "{}", host.log());
    let mut host = Plan::simulator("").env("CODA_EXECUTOR_FACTORY", "./here.so").prepare().await;
    // A path of the environment is relative to the working directory.
    let wanted = host.dir().join("here.so");
    let log = refused(&mut host, 3).await;
    assert!(log.contains(wanted.to_str().unwrap()), "{log}");
    std::fs::copy(library("coda_faulty"), &wanted).unwrap();
    host.write_device("fault: none");
    host.start().await;
    host.good_job_goes_through("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_replaced_while_it_runs_goes_on_as_it_was() {
    let mut host = Plan::device("executor_factory: ./own.so").prepare().await;
    let own = host.dir().join("own.so");
    std::fs::copy(library("coda_faulty"), &own).unwrap();
    host.start().await;
    host.good_job_goes_through("J1").await;
    // As `cp` does it: the same file, other content.
    std::fs::write(&own, std::fs::read(library("coda_simulator")).unwrap()).unwrap();
    host.good_job_goes_through("J2").await;
    assert_eq!(host.ready().await.1["plugin"]["name"], "coda-plugin-faulty");
    assert_eq!(host.stop().await, Exit::Code(0));
    host.start().await;
    host.good_job_goes_through("J3").await;
    assert_eq!(host.ready().await.1["plugin"]["name"], "coda-plugin-simulator");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_device_configs_are_named() {
    for (device, status, says) in [
        ("executor_factory: [a]", 2, "executor_factory"),
        ("executor_factory: coda_simulator\nnum_qubits: [1\n", 2, "device.yaml"),
        ("executor_factory: coda_simulator\nnum_qubit: 3", 3, "num_qubit"),
        ("executor_factory: coda_simulator\nnum_qubits: 99", 3, "99"),
    ] {
        let mut host = Plan::device(device).prepare().await;
        let log = refused(&mut host, status).await;
        assert!(log.contains(says) && log.contains("device.yaml"), "{device}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_port_or_state_directory_is_told_before_the_connect() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut host = Plan::simulator("").env("CODA_PORT", port.clone()).prepare().await;
    let log = refused(&mut host, 2).await;
    assert!(log.contains(&format!("127.0.0.1:{port}")), "{log}");

    let first = Plan::simulator("").start().await;
    let mut second = Plan::simulator("").env("CODA_NODE_TOKEN", "one-time-q1").prepare().await;
    second.set("CODA_STATE_DIR", first.env["CODA_STATE_DIR"].clone());
    let log = refused(&mut second, 1).await;
    assert!(log.contains("another coda-host is running with"), "{log}");
    first.good_job_goes_through("J1").await;
}

/// Replaces every occurrence of a text by another of the same length.
fn swap(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let at: Vec<usize> = (0..bytes.len() - from.len()).filter(|i| bytes[*i..].starts_with(from)).collect();
    assert!(!at.is_empty(), "the plugin holds {:?}", String::from_utf8_lossy(from));
    for i in at {
        bytes[i..i + to.len()].copy_from_slice(to);
    }
}

/// Where the descriptor lies in a plugin's file.
fn descriptor(bytes: &[u8]) -> usize {
    let size = (size_of::<RawDescriptor>() as u32).to_le_bytes();
    let start = [&MAGIC[..], &size[..]].concat();
    (0..bytes.len() - start.len()).find(|i| bytes[*i..].starts_with(&start)).expect("a descriptor")
}

/// Sets the interface version that the descriptor states.
fn state_version(bytes: &mut [u8], major: u16, minor: u16) {
    let at = descriptor(bytes);
    bytes[at + 12..at + 14].copy_from_slice(&major.to_le_bytes());
    bytes[at + 14..at + 16].copy_from_slice(&minor.to_le_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugins_for_another_interface_or_system_are_refused_with_who_must_act() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, change: &dyn Fn(&mut Vec<u8>)| spoiled(dir.path(), name, |b| change(b));
    let (major, minor) = (version::MAJOR, version::MINOR);
    let newer = format!("was built for plugin interface {major}.{}", minor + 1);
    let cases: [(PathBuf, [&str; 2]); 6] = [
        (
            make("newer-minor.so", &|b| state_version(b, major, minor + 1)),
            [newer.as_str(), "upgrade coda-host"],
        ),
        (
            make("older-major.so", &|b| state_version(b, major - 1, 7)),
            ["was built for plugin interface 0.7", "ask the vendor to rebuild it"],
        ),
        (
            make("layout.so", &|b| swap(b, b"kind;q0;q1;reserved;param;", b"kind;q0;q1;reserved;phase;")),
            ["differs from this coda-host in the memory layout", "ask the vendor to rebuild it"],
        ),
        (
            make("dependency.so", &|b| swap(b, b"libgcc_s.so.1\0", b"libvendor.so3\0")),
            ["libvendor.so3: cannot open shared object file", "install the library it names"],
        ),
        (
            make("glibc.so", &|b| swap(b, b"GLIBC_2.34\0", b"GLIBC_9.99\0")),
            ["GLIBC_9.99' not found", "built on a newer system than this one"],
        ),
        (
            make("symbol.so", &|b| swap(b, b"\0memmove\0", b"\0memmovx\0")),
            ["undefined symbol: memmovx", "tell the vendor"],
        ),
    ];
    for (path, says) in cases {
        let path = path.to_str().unwrap();
        for isolation in ["none", "process"] {
            let device = format!("executor_factory: {path}");
            let mut host = Plan::device(device).env("CODA_EXECUTOR_ISOLATION", isolation).prepare().await;
            let log = refused(&mut host, 3).await;
            let said = log.rsplit("error: ").next().unwrap();
            for text in [path, says[0], says[1]] {
                assert!(said.contains(text), "{isolation}: {said} lacks {text:?}");
            }
            assert!(!said.contains("/state/plugins/"), "the operator's file is named, not the copy: {said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_hardware_plugin_is_used_and_of_several_none() {
    let dir = tempfile::tempdir().unwrap();
    let of_vendor = |vendor: &[u8; 4], name: &str| {
        spoiled(dir.path(), name, |bytes| {
            let at = descriptor(bytes);
            bytes[at + 17] = Kind::Hardware.code();
            bytes[at + 24..at + 28].copy_from_slice(vendor);
        })
    };
    let hardware = |name: &str| of_vendor(b"Acme", name);
    // The host's own plugins for hardware drive what a device config names, and are not a choice without one.
    of_vendor(b"Coda", "libcoda_bridge.so");
    let first = hardware("libacme_one.so");
    let mut host = Plan::device("").env("CODA_PLUGIN_PATH", dir.path().display().to_string()).prepare().await;
    host.start().await;
    host.good_job_goes_through("J1").await;
    let log = host.log();
    assert!(log.contains("the only plugin found") && log.contains(first.to_str().unwrap()), "{log}");
    host.stop().await;
    let second = hardware("libacme_two.so");
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(3));
    let log = host.log();
    for path in [&first, &second] {
        assert!(log.rsplit("error: ").next().unwrap().contains(path.to_str().unwrap()), "{log}");
    }
    assert!(log.contains("choose one with 'executor_factory: <library>'"), "{log}");
}
