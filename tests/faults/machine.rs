//! Faults of the machine: a full disk, a clock that was set.

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use coda_host_tests::load::Load;
use coda_host_tests::process::peak_mib;
use coda_host_tests::{LIMIT, Plan, StateFile, eventually};

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

/// Another process holds the write lock: what ran is kept, nothing more runs, and all goes on afterwards.
pub async fn database_locked(scale: Scale) -> Row {
    let mut load = Load::new();
    let host = Plan::faulty(&format!("run_ms: 5\n{}", load.device())).start().await;
    load.send_all(&host, JOBS).await;
    eventually("the host is at work", async || load.ran().len() > 2).await;
    let lock = StateFile::lock(&host.state_dir());
    load.send_for(&host, 20.0, scale.seconds(30.0)).await;
    eventually("it says that nothing can be stored", async || {
        let (status, ready) = host.ready().await;
        status == 503 && ready["reasons"].to_string().contains("can't be stored")
    })
    .await;
    let ran = load.ran().len();
    load.send_all(&host, JOBS).await;
    assert!(load.ran().len() <= ran + 1, "jobs run although nothing can be stored");
    drop(lock);
    Ok(load.settle(&host, LIMIT).await)
}

/// Most memory that a start with so much on disk may take, in MiB, beyond what the host takes without it.
const LARGE_RESULTS_MIB: f64 = 80.0;

/// Ten thousand results wait for a receiver that never answers: their bodies stay on disk.
pub async fn large_results(scale: Scale) -> Row {
    const BODY: usize = 100_000;
    let mut load = Load::new();
    let mut host = Plan::faulty(&format!("run_ms: 5\n{}", load.device())).start().await;
    load.send_all(&host, 5).await;
    load.settle(&host, LIMIT).await;
    let before = peak_mib(host.process().pid());
    host.stop().await;

    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", silent.local_addr().expect("it is bound"));
    let count = scale.times(10_000, 1_000) as u64;
    StateFile::add_results(&host.state_dir(), host.qpu_id(), &url, count, BODY);
    host.start().await;
    load.send_all(&host, JOBS).await;
    let tally = load.settle(&host, LIMIT).await;
    let grown = peak_mib(host.process().pid()) - before;
    assert!(grown < LARGE_RESULTS_MIB, "{count} results of {BODY} bytes took {grown:.0} MiB");
    Ok(tally)
}

/// The reader of the host's log has gone: its lines are lost, and nothing else.
pub async fn log_gone(_: Scale) -> Row {
    let mut load = Load::new();
    let dir = tempfile::tempdir().expect("a directory");
    let pipe = dir.path().join("log");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    let reader = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe);
    let reader = reader.expect("the pipe can be read");
    let words = ["sh", "-c", r#"exec "$0" "$@" >"$LOG_PIPE" 2>&1"#];
    let device = format!("run_ms: 5\n{}", load.device());
    let plan = Plan::faulty(&device).env("LOG_PIPE", pipe.display().to_string()).within(&words);
    let mut host = plan.start().await;
    load.send_all(&host, JOBS).await;
    drop(reader);
    load.send_all(&host, JOBS).await;
    let tally = load.settle(&host, LIMIT).await;
    assert_eq!(host.stop().await, coda_host_tests::Exit::Code(0));
    Ok(tally)
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
