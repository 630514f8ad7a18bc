//! `make soak`: 20 jobs a second with random faults for a long time; nothing is lost, and the host does not grow.
//!
//! `CODA_SOAK_SECONDS` (120) is how long, `CODA_SEED` which faults come when; the seed is printed. In the first third
//! the host is killed and stopped, too; then one process has to last. Its memory and its open files are compared
//! between calm moments near the start and near the end of that time.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coda_host::dev::cloud::Answer;
use coda_host_tests::load::Load;
use coda_host_tests::process::{open_files, rss_mib};
use coda_host_tests::proxy::{Link, Proxy};
use coda_host_tests::random::SplitMix;
use coda_host_tests::{Exit, LIMIT, Plan, TestHost};
use tokio::time::sleep;

const PER_SECOND: f64 = 20.0;
/// Between faults.
const CALM: Duration = Duration::from_secs(2);
/// Of a new process, until its caches are warm.
const WARM_UP: Duration = Duration::from_secs(8);
/// What "flat" allows.
const RSS_FACTOR: f64 = 1.25;
const RSS_MIB: f64 = 4.0;
const FILES: usize = 8;

#[derive(Debug, Clone, Copy)]
enum Fault {
    Answers503,
    Hangs,
    Closes,
    RedisRefused,
    RedisFrozen,
    Killed,
    Stopped,
}

/// The last two only while the process needn't last.
const FAULTS: [Fault; 7] = [
    Fault::Answers503,
    Fault::Hangs,
    Fault::Closes,
    Fault::RedisRefused,
    Fault::RedisFrozen,
    Fault::Killed,
    Fault::Stopped,
];

struct Soak {
    host: TestHost,
    link: Proxy,
    load: Load,
    random: SplitMix,
    start: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    rss: f64,
    files: usize,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let time = Duration::from_secs(number("CODA_SOAK_SECONDS").unwrap_or(120));
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.subsec_nanos());
    let seed = number("CODA_SEED").unwrap_or(u64::from(clock));
    println!("CODA_SEED={seed}, {} s at {PER_SECOND} jobs/s", time.as_secs());
    let mut soak = Soak::start(SplitMix(seed)).await;
    soak.until(time / 3, &FAULTS).await;
    soak.calm(WARM_UP).await;
    let before = soak.sample("one process from here on");
    soak.until(time.saturating_sub(CALM), &FAULTS[..5]).await;
    soak.calm(CALM).await;
    let tally = soak.load.settle(&soak.host, LIMIT).await;
    soak.until_idle_connections_are_closed(before.files).await;
    let after = soak.sample("at the end");
    println!("{tally:?}");
    let mut bad = Vec::new();
    if tally.lost + tally.kept + tally.pending > 0 {
        bad.push("jobs were lost or left pending");
    }
    if tally.run_again > tally.cut_off {
        bad.push("jobs were run twice although no kill fell inside the executor");
    }
    if after.rss > before.rss * RSS_FACTOR + RSS_MIB {
        bad.push("the host's memory grew");
    }
    if after.files > before.files + FILES {
        bad.push("the host's open files grew");
    }
    if bad.is_empty() {
        println!("nothing lost, memory and open files flat");
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}; the host's log ends so:", bad.join("; "));
    let log = soak.host.log();
    log.lines().rev().take(40).for_each(|line| eprintln!("{line}"));
    ExitCode::FAILURE
}

impl Soak {
    async fn start(random: SplitMix) -> Soak {
        let load = Load::new();
        let mut host = Plan::faulty(&format!("run_ms: 5\n{}", load.device()))
            .env("CODA_LOG", "warn")
            .env("CODA_MAX_DEATHS", "1000")
            .env("CODA_WEBHOOK_TIMEOUT_SEC", "1")
            .env("CODA_REDIS_TIMEOUT_SEC", "1")
            .env("CODA_HTTP_IDLE_SEC", "1")
            .prepare()
            .await;
        let link = Proxy::start(host.redis.port(), Duration::ZERO).await.expect("a port");
        let url = format!("redis://127.0.0.1:{}/0", link.port());
        host.cloud.edit_bundle(move |bundle| bundle["redis_url"] = url.clone().into());
        host.start().await;
        Soak { host, link, load, random, start: Instant::now() }
    }

    /// Faults with calm between them until so long after the start.
    async fn until(&mut self, end: Duration, faults: &[Fault]) {
        while self.start.elapsed() < end {
            self.calm(CALM).await;
            let fault = faults[self.random.below(faults.len() as u64) as usize];
            let time = Duration::from_millis(200 + self.random.below(1800));
            self.say(&format!("{fault:?} for {} ms", time.as_millis()));
            self.commit(fault, time).await;
        }
    }

    /// Jobs go on for so long.
    async fn calm(&mut self, time: Duration) {
        self.load.send_for(&self.host, PER_SECOND, time).await;
    }

    async fn commit(&mut self, fault: Fault, time: Duration) {
        match fault {
            Fault::Answers503 => self.host.cloud.on_webhook(|_| Some(Answer::status(503))),
            Fault::Hangs => self.host.cloud.on_webhook(|_| Some(Answer::hang())),
            Fault::Closes => self.host.cloud.on_webhook(|_| Some(Answer::drop_connection())),
            Fault::RedisRefused => self.link.set(Link::Refuse),
            Fault::RedisFrozen => self.link.set(Link::Freeze),
            Fault::Killed => {
                sleep(Duration::from_micros(self.random.below(50_000))).await;
                self.host.kill();
                self.host.start().await;
            }
            Fault::Stopped => {
                assert_eq!(self.host.stop().await, Exit::Code(0));
                self.host.start().await;
            }
        }
        self.calm(time).await;
        self.host.cloud.on_webhook(|_| None);
        self.link.set(Link::Pass);
    }

    /// Webhooks that hung were sent side by side, and their connections are kept for CODA_HTTP_IDLE_SEC. Only what is
    /// still open long after that has leaked.
    async fn until_idle_connections_are_closed(&mut self, before: usize) {
        let pid = self.host.process().pid();
        let end = Instant::now() + LIMIT;
        while open_files(pid) > before + FILES && Instant::now() < end {
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn sample(&mut self, when: &str) -> Sample {
        let pid = self.host.process().pid();
        let sample = Sample { rss: rss_mib(pid), files: open_files(pid) };
        self.say(&format!("{when}: RSS {:.1} MiB, {} open files", sample.rss, sample.files));
        sample
    }

    fn say(&self, what: &str) {
        println!("{:>6.1} s {:>6} jobs  {what}", self.start.elapsed().as_secs_f64(), self.load.sent());
    }
}
