//! Swaps of the plugin under load, and what the plugin's own record and the host's log tell of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::artifacts::library;
use crate::circuits::example;
use crate::test_host::{Plan, TestHost};

/// How long a job runs: as many as come, one after the other, so that a pause is the swap's own.
pub const RUN: Duration = Duration::from_millis(50);
/// Between two jobs that are sent.
const EVERY: Duration = Duration::from_millis(50);

/// A load with swaps in it.
pub struct Swaps {
    pub host: TestHost,
    /// Sent, by the names `J0`, `J1` and so on.
    pub jobs: u64,
    record: NamedTempFile,
}

/// What happened in the plugin from the last run on the former executor to the first on the next.
#[derive(Debug)]
pub struct Gap {
    pub events: Vec<String>,
    pub time: Duration,
}

impl Swaps {
    /// 20 jobs a second, and so often another version by SIGHUP.
    pub async fn run(swaps: u64, every: Duration) -> Swaps {
        let record = NamedTempFile::new().expect("a file");
        let keys = format!("run_ms: {}\nclock: true\nlife: true", RUN.as_millis());
        let device = format!("executor_factory: ./own.so\nrecord: {}\n{keys}", record.path().display());
        let mut host = Plan::device(device).env("CODA_EXECUTOR_ISOLATION", "process").prepare().await;
        let own = host.dir().join("own.so");
        put_version(&own, 0);
        host.start().await;
        let (mut jobs, mut swapped) = (0, 0);
        let (start, mut next_swap) = (Instant::now(), every);
        while swapped < swaps || start.elapsed() < next_swap {
            host.submit(&format!("J{jobs}"), &example(), 10).await;
            jobs += 1;
            if start.elapsed() >= next_swap && swapped < swaps {
                swapped += 1;
                put_version(&own, swapped);
                host.process().signal(libc::SIGHUP);
                next_swap += every;
            }
            tokio::time::sleep_until((start + EVERY * jobs as u32).into()).await;
        }
        Swaps { host, jobs, record }
    }

    fn lines(&self) -> Vec<(String, String, u64)> {
        let text = std::fs::read_to_string(self.record.path()).expect("the record can be read");
        let line = |line: &str| {
            let mut words = line.split(' ');
            let (what, id) = (words.next()?.to_string(), words.next()?.to_string());
            Some((what, id, words.next()?.parse().ok()?))
        };
        text.lines().map(|l| line(l).unwrap_or_else(|| panic!("a line of the record: {l}"))).collect()
    }

    /// How often each job ran.
    pub fn runs(&self) -> BTreeMap<String, u32> {
        let mut runs = BTreeMap::new();
        for (_, id, _) in self.lines().into_iter().filter(|(what, ..)| what == "start") {
            *runs.entry(id).or_default() += 1;
        }
        runs
    }

    /// One for each swap.
    pub fn gaps(&self) -> Vec<Gap> {
        let lines = self.lines();
        let is_run = |what: &str| what == "start" || what == "end";
        let mut gaps = Vec::new();
        let mut events = Vec::new();
        let mut last = None;
        for (what, _, at) in lines {
            if !is_run(&what) {
                events.push(what);
                continue;
            }
            if let Some(before) = last.filter(|_| !events.is_empty()) {
                let time = Duration::from_micros(at.saturating_sub(before));
                gaps.push(Gap { events: std::mem::take(&mut events), time });
            }
            // The very first executor comes before every run.
            events.clear();
            last = Some(at);
        }
        gaps
    }
}

/// The same plugin with another SHA-256: bytes behind the end of the library are nobody's.
fn put_version(own: &PathBuf, version: u64) {
    let mut bytes = std::fs::read(library("coda_faulty")).expect("the plugin");
    bytes.extend(format!("version {version}").bytes());
    let new = own.with_extension("new");
    std::fs::write(&new, bytes).expect("the new version can be written");
    std::fs::rename(new, own).expect("it can be put in place");
}
