//! Faults of the machine: a full disk, a clock that was set.

use std::path::{Path, PathBuf};
use std::process::Command;

use coda_host_tests::load::Load;
use coda_host_tests::{LIMIT, Plan, eventually};

use crate::{Row, Scale};

const JOBS: usize = 50;

/// Puts a small file system of its own at the state directory, seen by the host alone.
const TMPFS: &str = r#"mkdir -p "$CODA_STATE_DIR" && mount -t tmpfs -o size=6m,mode=700 tmpfs "$CODA_STATE_DIR" && exec "$0" "$@""#;

/// The command that gives a process mounts of its own: as root, or as the root of a namespace.
fn unshare() -> Result<Vec<&'static str>, String> {
    for words in [&["unshare", "--mount"][..], &["unshare", "--user", "--map-root-user", "--mount"]] {
        let tried =
            Command::new(words[0]).args(&words[1..]).args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
        if tried.is_ok_and(|o| o.status.success()) {
            return Ok(words.to_vec());
        }
    }
    Err("a file system of its own can't be had here (unshare --mount is refused)".into())
}

pub async fn disk_full(_: Scale) -> Row {
    let mut words = unshare()?;
    words.extend(["sh", "-c", TMPFS]);
    let mut load = Load::new();
    let device = format!("run_ms: 5\n{}", load.device());
    let mut host = Plan::faulty(&device).env("CODA_MIN_FREE_MIB", "1").within(&words).start().await;
    load.send_all(&host, JOBS).await;
    let inside = PathBuf::from(format!("/proc/{}/root", host.process().pid()));
    let filler = inside.join(host.state_dir().strip_prefix("/").expect("an absolute path")).join("filler");
    fill(&filler);
    load.send_all(&host, JOBS).await;
    eventually("it says that the disk is full", async || {
        let (status, ready) = host.ready().await;
        status == 503 && ready["reasons"].to_string().contains("disk")
    })
    .await;
    std::fs::remove_file(&filler).expect("the filler goes");
    Ok(load.settle(&host, LIMIT).await)
}

/// Writes until nothing fits any more.
fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = std::fs::File::create(path).expect("a file in the host's file system");
    let piece = [0x5a; 4096];
    while file.write_all(&piece).is_ok() {}
}

/// The library that lies to a process about the clock.
fn faketime() -> Result<PathBuf, String> {
    let dirs =
        ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib64/faketime"];
    let found = dirs.iter().map(|d| Path::new(d).join("libfaketimeMT.so.1")).find(|p| p.exists());
    found.ok_or_else(|| "libfaketime is not installed (apt-get install faketime)".into())
}

async fn clock(scale: Scale, offset: &str) -> Row {
    let library = faketime()?;
    let mut load = Load::new();
    let dir = tempfile::tempdir().expect("a directory");
    let told = dir.path().join("clock");
    let set = |offset: &str| {
        std::fs::write(dir.path().join("new"), offset).expect("the clock's file");
        std::fs::rename(dir.path().join("new"), &told).expect("the clock's file");
    };
    set("+0");
    let mut host = Plan::faulty(&format!("run_ms: 5\n{}", load.device()))
        .env("LD_PRELOAD", library.display().to_string())
        .env("FAKETIME_TIMESTAMP_FILE", told.display().to_string())
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env("CODA_JWT_REUSE_SEC", "0.2")
        .start()
        .await;
    load.send_all(&host, JOBS).await;
    set(offset);
    let time = scale.seconds(10.0);
    // The cloud's clock stands still: it refuses what is signed an hour off.
    load.send_for(&host, JOBS as f64 / time.as_secs_f64(), time).await;
    assert!(host.process().ended().is_none(), "the host lives on");
    assert!(host.cloud.state().bad_tokens > 0, "the clock was off");
    set("+0");
    load.send_all(&host, JOBS).await;
    Ok(load.settle(&host, LIMIT).await)
}

pub async fn clock_ahead(scale: Scale) -> Row {
    clock(scale, "+3600").await
}

pub async fn clock_behind(scale: Scale) -> Row {
    clock(scale, "-3600").await
}
