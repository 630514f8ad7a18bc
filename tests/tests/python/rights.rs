//! The rights of an interpreter's process: its account, what it can read, what root trusts, capabilities.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use coda_host::sys;
use coda_host_tests::account::{NOBODY, is_root, mode};
use coda_host_tests::process::children;
use coda_host_tests::python::{lab_job, packages, venv};
use coda_host_tests::{Exit, Plan, TestHost};
use serde_json::json;

/// A virtual environment that every account can read, with the packages of the tests' own; `None` where this machine has no
/// interpreter of that version outside of a home.
fn readable_venv(dir: &Path, base: &Path) -> Option<PathBuf> {
    let version = packages(base).parent()?.file_name()?.to_str()?.to_string();
    let interpreter = Path::new("/usr/bin").join(version);
    if !interpreter.is_file() {
        println!("SKIPPED: there is no {}", interpreter.display());
        return None;
    }
    let venv = dir.join("venv");
    let made = Command::new(interpreter).args(["-m", "venv", "--without-pip"]).arg(&venv).status();
    assert!(made.unwrap().success());
    std::fs::write(packages(&venv).join("base.pth"), format!("{}\n", packages(base).display())).unwrap();
    Some(venv)
}

async fn host_with(account: &str, python: &Path) -> TestHost {
    let plan = Plan::python(python, "lab:create_executor", "").env("CODA_EXECUTOR_USER", account);
    let host = plan.prepare().await;
    mode(host.dir(), 0o755);
    host
}

fn status(pid: i32) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pairs = text.lines().filter_map(|l| l.split_once(':'));
    pairs.map(|(k, v)| (k.to_string(), v.split_whitespace().collect::<Vec<_>>().join(" "))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_environment_that_the_account_can_read_runs_with_its_rights() {
    let Some(venv) = venv().filter(|_| is_root()) else { return };
    let dir = tempfile::tempdir().unwrap();
    mode(dir.path(), 0o755);
    let Some(readable) = readable_venv(dir.path(), &venv) else { return };
    let mut host = host_with(NOBODY, &readable).await;
    host.start().await;
    host.send(&lab_job(&host, "J1", "ok", 7)).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "00": 7 }));
    let of = status(children(host.process().pid())[0]);
    let account = sys::account(NOBODY).unwrap().unwrap();
    assert_eq!(of["Uid"], [account.uid; 4].map(|id| id.to_string()).join(" "));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(of[set], "0000000000000000", "{set}");
    }
    assert_eq!(of["NoNewPrivs"], "1");
    // What others may change is told, and runs without root's rights.
    mode(&packages(&readable), 0o777);
    assert_eq!(host.stop().await, Exit::Code(0));
    host.start().await;
    assert!(host.log().contains("its process has not root's rights"), "{}", host.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_environment_that_the_account_can_not_read_is_named_with_the_remedy() {
    let Some(venv) = venv().filter(|_| is_root()) else { return };
    let dir = tempfile::tempdir().unwrap();
    mode(dir.path(), 0o755);
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    let Some(readable) = readable_venv(&closed, &venv) else { return };
    mode(&closed, 0o700);
    let mut host = host_with(NOBODY, &readable).await;
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(2), "{}", host.log());
    let log = host.log();
    let says = format!("'nobody', which may not read {}: Permission denied", closed.display());
    assert!(log.contains(&says) && log.contains("chgrp"), "{log}");
    assert!(host.cloud.state().connects.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pin_of_a_library_lets_no_python_code_pass() {
    let Some(venv) = venv() else { return };
    let plan = Plan::python(&venv, "lab:create_executor", "").env("CODA_EXECUTOR_SHA256", "0".repeat(64));
    let mut host = plan.prepare().await;
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(3));
    assert!(
        host.log().contains("the pin in CODA_EXECUTOR_SHA256 is of a library, and executor_factory"),
        "{}",
        host.log()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_runs_no_packages_that_others_may_change_with_its_own_rights() {
    let Some(venv) = venv().filter(|_| is_root()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let Some(readable) = readable_venv(dir.path(), &venv) else { return };
    for path in [packages(&readable), readable.join("pyvenv.cfg")] {
        let before = std::fs::metadata(&path).unwrap().permissions();
        mode(&path, 0o777);
        let mut host = host_with("root", &readable).await;
        host.launch();
        assert_eq!(host.wait_exit().await, Exit::Code(3), "{}", host.log());
        assert!(host.log().contains(&path.display().to_string()), "{}", host.log());
        std::fs::set_permissions(&path, before).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_root_keeps_the_capabilities_that_the_operator_names_and_no_others() {
    let Some(venv) = venv().filter(|_| is_root()) else { return };
    for (names, kept) in [("", "0000000000000000"), ("CAP_NET_RAW, chown", "0000000000002001")] {
        let mut host = host_with("root", &venv).await;
        host.set("CODA_EXECUTOR_CAPABILITIES", names);
        host.start().await;
        host.send(&lab_job(&host, "J1", "ok", 7)).await;
        assert_eq!(host.delivered("J1").await["status"], "completed");
        let of = status(children(host.process().pid())[0]);
        for set in ["CapPrm", "CapEff"] {
            assert_eq!(of[set], kept, "{names}: {set}");
        }
    }
    let mut host = host_with("root", &venv).await;
    host.set("CODA_EXECUTOR_CAPABILITIES", "CAP_EVERYTHING");
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(2));
    assert!(host.log().contains("'CAP_EVERYTHING', which is not a capability"), "{}", host.log());
    let mut host = host_with(NOBODY, &venv).await;
    host.set("CODA_EXECUTOR_CAPABILITIES", "CAP_NET_RAW");
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(2));
    assert!(host.log().contains("has an effect only on a process of root"), "{}", host.log());
}
