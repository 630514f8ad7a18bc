//! What is run with the host's rights: the file that was checked, in folders that no other user can change, with every
//! library that it brings along.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use coda_host_tests::artifacts::{library, project_file};
use coda_host_tests::process::{children, is_root};
use coda_host_tests::{Exit, Plan, TestHost, example};
use serde_json::json;

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn cc(arguments: &[&str]) {
    let include = format!("-I{}", project_file("plugin-abi/include").display());
    let done = Command::new("cc").args(["-shared", "-fPIC", &include]).args(arguments).status().unwrap();
    assert!(done.success());
}

fn helper(folder: &Path, name: &str, answer: i32) -> PathBuf {
    let (source, file) = (folder.join("helper.c"), folder.join(name));
    std::fs::write(&source, format!("int help(void) {{ return {answer}; }}\n")).unwrap();
    cc(&[source.to_str().unwrap(), "-o", file.to_str().unwrap(), "-Wl,-soname,libhelper.so"]);
    file
}

/// A host whose plugin needs a library in the folder `lib` beside it; that library.
async fn with_companion(plan: Plan) -> (TestHost, PathBuf) {
    let host = plan.prepare().await;
    let vendor = host.dir().join("vendor");
    std::fs::create_dir_all(vendor.join("lib")).unwrap();
    let companion = helper(&vendor.join("lib"), "libhelper.so", 1);
    let (source, plugin) = (project_file("plugins/example-c/acme.c"), vendor.join("libacme.so"));
    cc(&[
        source.to_str().unwrap(),
        "-o",
        plugin.to_str().unwrap(),
        "-lm",
        "-lpthread",
        "-Wl,--no-as-needed",
        &format!("-L{}", vendor.join("lib").display()),
        "-lhelper",
        "-Wl,-rpath,$ORIGIN/lib",
    ]);
    host.write_device("executor_factory: ./vendor/libacme.so\nhost: lab\nport: 7");
    (host, companion)
}

/// The start fails with these words.
async fn refused(host: &mut TestHost, says: &[&str]) -> String {
    let before = host.log().len();
    host.launch();
    let exit = host.wait_exit().await;
    let log = host.log().split_off(before);
    assert_eq!(exit, Exit::Code(3), "{log}");
    assert!(says.iter().all(|part| log.contains(part)), "{says:?}: {log}");
    assert!(host.cloud.state().connects.is_empty(), "nothing was spent");
    log
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_or_link_that_others_can_change_is_refused_for_root() {
    if !is_root() {
        println!("SKIPPED: the host is not root");
        return;
    }
    let mut host = Plan::device("executor_factory: ./way/plugin.so").prepare().await;
    let top = host.dir().canonicalize().unwrap();
    for folder in ["good", "bad"] {
        std::fs::create_dir(top.join(folder)).unwrap();
        std::fs::copy(library("coda_faulty"), top.join(folder).join("plugin.so")).unwrap();
    }
    mode(&top.join("bad"), 0o777);
    // A user who can exchange a link wins every race against a check of where it leads.
    for target in ["bad", "bad/link"] {
        symlink("../good", top.join("bad/link")).ok();
        symlink(target, top.join("way")).unwrap();
        for _ in 0..5 {
            let bad = top.join("bad").display().to_string();
            refused(&mut host, &[&bad, "may be changed by other users (mode 0777)", "chmod go-w"]).await;
        }
        std::fs::remove_file(top.join("way")).unwrap();
    }
    symlink("good", top.join("way")).unwrap();
    host.start().await;
    host.good_job_goes_through("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_library_beside_the_plugin_is_judged_as_the_plugin_is() {
    if !is_root() {
        println!("SKIPPED: the host is not root");
        return;
    }
    let (mut host, companion) = with_companion(Plan::simulator("")).await;
    mode(&companion, 0o666);
    refused(&mut host, &["libhelper.so", "may be changed by other users"]).await;
    mode(&companion, 0o755);
    mode(companion.parent().unwrap(), 0o777);
    refused(&mut host, &["vendor/lib ", "may be changed by other users"]).await;
    mode(companion.parent().unwrap(), 0o755);
    host.start().await;
    host.submit("J1", &example(), 50).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "10": 50 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pin_holds_for_the_libraries_beside_the_plugin_too() {
    let plan = Plan::simulator("").env("CODA_EXECUTOR_ISOLATION", "process");
    let (mut host, companion) = with_companion(plan).await;
    let plugin = host.dir().join("vendor/libacme.so");
    let done = host.cli(&["plugin", "inspect", plugin.to_str().unwrap()]).await;
    let sum =
        done.out.lines().find_map(|line| line.strip_prefix("sha256")).expect("a checksum").trim().to_string();
    host.set("CODA_EXECUTOR_SHA256", &sum);
    let log = refused(&mut host, &["needs", "libhelper.so", "does not pin"]).await;
    let pins =
        log.split("CODA_EXECUTOR_SHA256=").nth(1).expect("what to set").split_whitespace().next().unwrap();
    host.set("CODA_EXECUTOR_SHA256", pins);
    host.start().await;
    host.submit("J1", &example(), 50).await;
    assert_eq!(host.delivered("J1").await["counts"], json!({ "10": 50 }));
    // Another library comes to lie there: neither a restart of the process nor one of the host takes it.
    let other = helper(companion.parent().unwrap(), "other.so", 2);
    std::fs::rename(other, &companion).unwrap();
    let process = children(host.process().pid())[0];
    coda_host::sys::signal(process as u32, libc::SIGKILL).unwrap();
    host.wait_log("libhelper.so has changed since it was checked").await;
    host.kill();
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(3));
    host.wait_log("does not pin").await;
}
