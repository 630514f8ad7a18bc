//! `make faults`: what is lost and what runs twice under each fault, on real processes, as a table.
//!
//! `CODA_FAULTS_SCALE` (0.05) is the length of each fault as a share of its full one: 20 s for the cloud, 10 s for
//! Redis. `CODA_FAULTS_ONLY` picks rows by a part of their name. The program fails when a row has a lost job, or a job
//! that was run twice although no kill fell inside the executor.

#![forbid(unsafe_code)]

mod cloud;
mod host;
mod machine;
mod peers;
mod plugin;
mod redis;

use std::pin::Pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use coda_host_tests::load::Tally;

/// A row's figures, or why it could not be had here.
pub type Row = Result<Tally, String>;
type Case = (&'static str, fn(Scale) -> Pin<Box<dyn Future<Output = Row>>>);

/// How long faults last.
#[derive(Debug, Clone, Copy)]
pub struct Scale(f64);

impl Scale {
    /// So long in full; never too short to be noticed.
    pub fn seconds(self, full: f64) -> Duration {
        Duration::from_secs_f64((full * self.0).max(0.4))
    }

    /// So many in full.
    pub fn times(self, full: usize, least: usize) -> usize {
        ((full as f64 * self.0).round() as usize).max(least)
    }
}

macro_rules! cases {
    ($($name:literal: $case:path,)*) => { [$(($name, |scale| Box::pin($case(scale)))),*] };
}

const CASES: &[Case] = &cases! {
    "webhook answers 503": cloud::says_503,
    "webhook connections refused": cloud::refuses,
    "webhook hangs": cloud::hangs,
    "webhook answers 422, then retried by hand": cloud::says_422,
    "webhook redirects": cloud::redirects,
    "webhook closes in mid-answer": cloud::closes,
    "webhook takes the result and closes": cloud::takes_and_closes,
    "Redis cut and refused": redis::refused,
    "Redis frozen": redis::frozen,
    "Redis restarted": redis::restarted,
    "Redis flushed": redis::flushed,
    "Redis answers with errors": redis::answers_with_errors,
    "host SIGKILLed at random moments": host::killed,
    "host SIGTERMed and started again": host::stopped,
    "message delivered twice": host::duplicates,
    "cancel before, during, at the end, after": host::cancels,
    "plugin never returns, honours cancel": plugin::hangs_until_cancelled,
    "plugin never returns, ignores cancel": plugin::hangs_for_good,
    "Python code crashes, exits, blocks, hangs": plugin::python_fails_at_random,
    "strangers flood the peer port": peers::floods,
    "state disk full": machine::disk_full,
    "state database locked": machine::database_locked,
    "10,000 large undelivered results at a start": machine::large_results,
    "log target gone": machine::log_gone,
    "clock an hour ahead": machine::clock_ahead,
    "clock an hour behind": machine::clock_behind,
};

fn main() -> ExitCode {
    let scale = std::env::var("CODA_FAULTS_SCALE").ok().and_then(|s| s.parse().ok()).unwrap_or(0.05);
    let only = std::env::var("CODA_FAULTS_ONLY").unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    println!(
        "{:<42} {:>9} {:>9} {:>9} {:>4} {:>5} {:>7} {:>8} {:>7}",
        "fault", "submitted", "delivered", "cancelled", "lost", "twice", "cut off", "accepted", "pending"
    );
    println!(
        "{:<42} {:>9} {:>9} {:>9} {:>4} {:>5} {:>7} {:>8}",
        "", "", "", "", "", "run", "in a run", "twice"
    );
    let mut bad = Vec::new();
    for (name, case) in CASES.iter().filter(|(name, _)| name.contains(&only)) {
        let start = Instant::now();
        match runtime.block_on(case(Scale(scale))) {
            Ok(t) => {
                println!(
                    "{name:<42} {:>9} {:>9} {:>9} {:>4} {:>5} {:>7} {:>8} {:>7}   {:.1} s",
                    t.submitted,
                    t.delivered,
                    t.cancelled,
                    t.lost + t.kept,
                    t.run_again,
                    t.cut_off,
                    t.accepted_twice,
                    t.pending,
                    start.elapsed().as_secs_f64()
                );
                if t.lost + t.kept + t.pending > 0 || t.run_again > t.cut_off {
                    bad.push(*name);
                }
            }
            Err(why) => println!("{name:<42} SKIPPED: {why}"),
        }
    }
    if bad.is_empty() {
        println!("no job was lost, and none was run twice except where a kill fell inside the executor");
        return ExitCode::SUCCESS;
    }
    eprintln!("error: jobs were lost, left pending or run twice without reason under: {}", bad.join("; "));
    ExitCode::FAILURE
}
