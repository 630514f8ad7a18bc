//! A load of jobs on a host with the faulty executor, and what became of each.
//!
//! The executor's own record tells how often a job ran and whether a run was cut off by the process's end; the cloud
//! tells what was delivered. Lost is what neither was delivered nor is kept for the operator nor was cancelled.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tempfile::NamedTempFile;
use tokio::time::{MissedTickBehavior, interval};

use crate::circuits::{Job, example};
use crate::test_host::TestHost;
use crate::wait::LIMIT;

/// The jobs sent so far.
pub struct Load {
    record: NamedTempFile,
    callback: Option<String>,
    sent: Vec<String>,
}

/// What became of a load.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    pub submitted: usize,
    pub delivered: usize,
    pub cancelled: usize,
    /// Refused by the cloud for good, and kept for the operator.
    pub kept: usize,
    pub lost: usize,
    /// Jobs that were run more than once.
    pub run_again: usize,
    /// Of these runs too many, those that the process did not survive.
    pub cut_off: usize,
    /// Jobs whose result the cloud accepted more than once.
    pub accepted_twice: usize,
    pub pending: usize,
}

impl Load {
    pub fn new() -> Load {
        Load { record: NamedTempFile::new().expect("a file"), callback: None, sent: Vec::new() }
    }

    /// Keys of the faulty executor's config that have it write the record.
    pub fn device(&self) -> String {
        format!("record: {}\n", self.record())
    }

    /// The file of the record, for other executors that write it.
    pub fn record(&self) -> String {
        self.record.path().display().to_string()
    }

    /// Where results are to go, instead of straight to the cloud.
    pub fn call_back_at(&mut self, url: String) {
        self.callback = Some(url);
    }

    pub fn sent(&self) -> usize {
        self.sent.len()
    }

    /// Sends the next job and returns its id. Redis may be away for a while.
    pub async fn send(&mut self, host: &TestHost) -> String {
        let id = format!("J{}", self.sent.len());
        let callback = self.callback.clone().unwrap_or_else(|| host.cloud.webhook_url());
        // For executors that aren't told which job a circuit is of.
        let mut circuit = example().json();
        circuit["metadata"]["source_hash"] = json!(id);
        host.send(&Job::new(&id, &callback, &example(), 10).field("ir_json", circuit.to_string())).await;
        self.sent.push(id.clone());
        id
    }

    pub async fn send_all(&mut self, host: &TestHost, count: usize) {
        for _ in 0..count {
            self.send(host).await;
        }
    }

    /// Sends jobs evenly for so long.
    pub async fn send_for(&mut self, host: &TestHost, per_second: f64, time: Duration) {
        let mut tick = interval(Duration::from_secs_f64(1.0 / per_second));
        tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for _ in 0..(per_second * time.as_secs_f64()).ceil() as usize {
            tick.tick().await;
            self.send(host).await;
        }
    }

    /// Waits until every job has ended and nothing is pending, or `limit` has passed, and counts.
    pub async fn settle(&self, host: &TestHost, limit: Duration) -> Tally {
        let start = tokio::time::Instant::now();
        loop {
            let tally = self.count(host).await;
            if tally.lost == 0 && tally.pending == 0 || start.elapsed() > limit.max(LIMIT) {
                return tally;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn count(&self, host: &TestHost) -> Tally {
        let mut tally = Tally { submitted: self.sent.len(), ..Tally::default() };
        let ran = self.ran();
        let kept: Vec<String> = match host.state_dir().join("coda-host.db").exists() {
            true => host.state_file().kept(),
            false => Vec::new(),
        }
        .into_iter()
        .filter(|k| k.phase == "refused")
        .map(|k| k.job_id)
        .collect();
        for id in &self.sent {
            let (_, accepted) = host.attempts(id);
            tally.accepted_twice += usize::from(accepted > 1);
            if accepted > 0 {
                tally.delivered += 1;
            } else if kept.contains(id) {
                tally.kept += 1;
            } else if host.state(id).await == "cancelled" {
                tally.cancelled += 1;
            } else {
                tally.lost += 1;
            }
            if let Some(&(starts, ends)) = ran.get(id).filter(|(starts, _)| *starts > 1) {
                tally.run_again += 1;
                tally.cut_off += (starts - ends).min(starts - 1) as usize;
            }
        }
        tally.pending = host.pending().await.len();
        tally
    }

    /// How often each job entered the executor, and came back from it.
    pub fn ran(&self) -> BTreeMap<String, (u32, u32)> {
        let mut ran = BTreeMap::<String, (u32, u32)>::new();
        let text = std::fs::read_to_string(self.record_path()).expect("the record can be read");
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("start", id)) => ran.entry(id.into()).or_default().0 += 1,
                Some(("end", id)) => ran.entry(id.into()).or_default().1 += 1,
                _ => panic!("a line of the record: {line}"),
            }
        }
        ran
    }

    /// The jobs in the order in which they entered the executor.
    pub fn order(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.record_path()).expect("the record can be read");
        text.lines().filter_map(|line| line.strip_prefix("start ")).map(String::from).collect()
    }

    fn record_path(&self) -> PathBuf {
        self.record.path().to_path_buf()
    }
}

impl Default for Load {
    fn default() -> Self {
        Load::new()
    }
}
