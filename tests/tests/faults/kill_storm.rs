//! SIGKILL at random moments under load: nothing is lost, and a job runs twice only where the kill fell inside the
//! executor.
//!
//! `CODA_KILLS` (6) sets how often, `CODA_SEED` the moments; the seed is printed.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coda_host_tests::random::SplitMix;
use coda_host_tests::{Plan, eventually_some, example};

const JOBS_PER_SECOND: u64 = 50;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_kills_under_load_lose_nothing() {
    let kills = number("CODA_KILLS").unwrap_or(6);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.subsec_nanos());
    let seed = number("CODA_SEED").unwrap_or(u64::from(clock));
    println!("CODA_SEED={seed} CODA_KILLS={kills}");
    let mut moments = SplitMix(seed);
    let record = tempfile::NamedTempFile::new().unwrap();
    let device = format!("run_ms: 5\nrecord: {}\n", record.path().display());
    // A job may be in the plugin at several kills in a row.
    let mut host = Plan::faulty(&device).env("CODA_MAX_DEATHS", "1000").env("CODA_LOG", "warn").start().await;
    let mut sent = 0u64;
    let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 / JOBS_PER_SECOND));
    for _ in 0..kills {
        // Up to half a second of load between two kills.
        for _ in 0..=moments.below(JOBS_PER_SECOND / 2) {
            ticks.tick().await;
            host.submit(&format!("J{sent}"), &example(), 10).await;
            sent += 1;
        }
        // The random moment itself; nothing is waited for.
        tokio::time::sleep(Duration::from_micros(moments.below(20_000))).await;
        host.kill();
        host.start().await;
    }
    eventually_some("every job is delivered", async || {
        let accepted = host.cloud.state().accepted_jobs;
        (accepted >= sent).then_some(())
    })
    .await;
    host.wait_nothing_pending().await;
    let (mut starts, mut ends) = (BTreeMap::<String, u32>::new(), BTreeMap::<String, u32>::new());
    for line in std::fs::read_to_string(record.path()).unwrap().lines() {
        let (what, job) = line.split_once(' ').expect("a line of the record");
        *if what == "start" { &mut starts } else { &mut ends }.entry(job.into()).or_default() += 1;
    }
    let (mut again, mut inside, mut lost, mut twice_accepted) = (0, 0, 0, 0);
    for n in 0..sent {
        let job = format!("J{n}");
        let (attempts, accepted) = host.attempts(&job);
        lost += u32::from(accepted == 0);
        twice_accepted += u32::from(attempts > 1);
        let (started, ended) = (starts.get(&job).copied().unwrap_or(0), ends.get(&job).copied().unwrap_or(0));
        assert!(started >= 1, "{job} was delivered without a run");
        again += started - 1;
        inside += started - ended;
        // A run that came back may be repeated once per kill between its end and the fsync.
        assert!(u64::from(ended) <= 1 + kills, "{job} ran {ended} times");
    }
    let unstored = again - inside;
    println!(
        "{sent} jobs, {kills} kills: {lost} lost, {again} run again ({inside} killed inside the executor, \
         {unstored} between its return and the host), {twice_accepted} posted more than once"
    );
    assert_eq!(lost, 0);
    assert!(u64::from(inside) <= kills, "at most one job is in the plugin at a kill");
}
