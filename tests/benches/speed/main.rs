//! `make bench`: what coda-host costs and does, from one run on one machine.
//!
//! Prints figures and asserts nothing. Everything is private to the run: a redis-server, a development cloud
//! that verifies tokens, a delay proxy where a link is to be long. With `CODA_BENCH_PYTHON=<path of coda-node>`
//! the Python node is measured in the same run, and the ratios are printed. With `CODA_TEST_NODE_VENV=<a venv with
//! coda-node>` the host runs an executor in Python code too. With `CODA_TEST_QDMI=<what make qdmi-deps fetched>` a job on
//! MQT's simulator is measured, bare and through the host. `CODA_BENCH_SCALE` (1) makes loads larger or smaller. Sizes
//! are in the output.

#![forbid(unsafe_code)]

mod bare;
mod crowd;
mod doors;
mod node;
mod page;
mod peers;
mod qdmi;
mod scale;
mod site;
mod streams;
mod swap;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use coda_host::dev::cloud::Answer;
use coda_host_tests::artifacts::{binary, circuit_file};
use coda_host_tests::process::{cpu_seconds, rss_mib};
use tokio::time::sleep;

use node::{Executor, Kind};
use site::{Site, circuit};

const NOOP: Executor = Executor { ms: 0, batch: false };
const NOOP_BATCH: Executor = Executor { ms: 0, batch: true };

/// One line of the result: a value per node, in the order of the nodes.
struct Row {
    name: String,
    unit: &'static str,
    values: Vec<f64>,
}

struct Report {
    nodes: Vec<Kind>,
    rows: Vec<Row>,
}

impl Report {
    fn add(&mut self, name: impl Into<String>, unit: &'static str, node: usize, value: f64) {
        let name = name.into();
        println!("  {:<10} {name:<46} {} {unit}", self.nodes[node].name(), number(value));
        match self.rows.iter_mut().find(|r| r.name == name) {
            Some(row) => row.values.push(value),
            None => self.rows.push(Row { name, unit, values: vec![value] }),
        }
    }

    fn print(&self) {
        if self.nodes.len() < 2 || self.rows.is_empty() {
            return;
        }
        let columns = |cells: Vec<String>| cells.iter().map(|c| format!(" {c:>12}")).collect::<String>();
        let names = self.nodes.iter().map(|node| node.name().to_string()).collect();
        println!("\n{:<48}{} {:>10}", "", columns(names), "ratio");
        for row in self.rows.iter().filter(|row| row.values.len() == self.nodes.len()) {
            // Of the last column to the first.
            let (a, b) = (row.values[0], row.values[row.values.len() - 1]);
            let ratio = if a > b { a / b } else { b / a };
            let values = row.values.iter().map(|value| number(*value)).collect();
            println!("{:<48}{} {ratio:>9.1}x  {}", row.name, columns(values), row.unit);
        }
    }
}

fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 1000.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.3}"),
    }
}

fn percentile(sorted: &[f64], p: f64) -> f64 {
    let at = (sorted.len() as f64 * p).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

fn main() {
    if let Ok(how) = std::env::var(streams::ENV) {
        return streams::serve(&how);
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match std::env::var(peers::ONE_CPU) {
        Ok(seconds) => runtime.block_on(peers::on_one_cpu(seconds.parse().expect("seconds"))),
        Err(_) => runtime.block_on(bench()),
    }
}

async fn bench() {
    // The plugin's process is this program again.
    if std::env::args().nth(1).as_deref() == Some("executor-worker") {
        let numbers = std::env::args().skip_while(|a| a != "--descriptors").nth(1).unwrap_or_default();
        let numbers: Vec<i32> = numbers.split(',').filter_map(|n| n.parse().ok()).collect();
        let python = std::env::args().skip_while(|a| a != "--python").nth(1).map(PathBuf::from);
        coda_host::executor::worker::child::run(None, Default::default(), python.as_deref(), &numbers)
            .expect("the plugin's process serves");
        return;
    }
    if let Some(traffic) = bare::Traffic::from_env() {
        return bare::serve(traffic).await;
    }
    // The HTTP client of the development cloud's process and the node's are TLS-capable alike.
    let scale: f64 = std::env::var("CODA_BENCH_SCALE").ok().and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let size = |n: usize| ((n as f64 * scale) as usize).max(10);
    let mut nodes = vec![Kind::Host];
    nodes.extend(coda_host_tests::python::venv().map(Kind::HostPython));
    nodes.extend(
        std::env::var_os("CODA_BENCH_PYTHON").filter(|p| !p.is_empty()).map(|p| Kind::Python(p.into())),
    );
    let mut report = Report { nodes: nodes.clone(), rows: Vec::new() };
    println!("one machine, one run; {} core(s)", std::thread::available_parallelism().map_or(0, usize::from));
    let only = std::env::var("CODA_BENCH_ONLY").ok();
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only.split(',').any(|o| o == part));
    for (i, kind) in nodes.iter().enumerate() {
        // The Python node would take minutes for the host's loads.
        let slow = !matches!(kind, Kind::Host);
        let load = |n: usize| match kind {
            Kind::Host => size(n),
            Kind::HostPython(_) => size(n / 4),
            Kind::Python(_) => size(n / 20),
        };
        if wanted("ready") {
            ready(&mut report, i, kind).await;
        }
        if wanted("throughput") {
            throughput(&mut report, i, kind, load(4000), slow).await;
        }
        if wanted("latency") {
            for rate in [10, 50] {
                latency(&mut report, i, kind, rate, size(if slow { 5 } else { 10 })).await;
            }
        }
        if wanted("big") {
            big(&mut report, i, kind, load(400)).await;
        }
        if wanted("idle") {
            idle(&mut report, i, kind, load(10_000), slow).await;
        }
        if wanted("duty") {
            for batch in [false, true] {
                duty(&mut report, i, kind, batch, load(400)).await;
            }
        }
        if wanted("growth") && !slow {
            growth(&mut report, i, kind, size(2000)).await;
        }
    }
    if wanted("page") {
        page::measure(size(10_000)).await;
    }
    if wanted("doors") {
        doors::overheads(size(2000)).await;
    }
    if wanted("qdmi") {
        qdmi::bells(size(400)).await;
    }
    if wanted("swap") {
        swap::pauses(size(10) as u64).await;
    }
    if wanted("kernel") {
        kernel();
    }
    if wanted("peers") {
        peers::measure(scale).await;
    }
    if wanted("scale") {
        scale::measure().await;
    }
    let asked = |part: &str| only.as_deref().is_some_and(|only| only.split(',').any(|o| o == part));
    if asked("planning") {
        scale::measure_planning();
    }
    if asked("gossip") {
        scale::measure_gossip(scale).await;
    }
    if wanted("crowds") {
        scale::measure_crowds(scale).await;
    }
    report.print();
}

async fn ready(report: &mut Report, i: usize, kind: &Kind) {
    let (mut first, mut again) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let site = Site::new(None).await;
        first.push(site.start(kind, NOOP, true).ready().await.as_secs_f64() * 1e3);
        again.push(site.start(kind, NOOP, false).ready().await.as_secs_f64() * 1e3);
    }
    for (name, mut ms) in [("ready, first start", first), ("ready, reconnect", again)] {
        ms.sort_by(f64::total_cmp);
        report.add(format!("{name} (median of 5)"), "ms", i, percentile(&ms, 0.5));
    }
}

/// Jobs per second and CPU seconds per 1,000 jobs for a backlog.
async fn backlog(site: &mut Site, pid: i32, jobs: usize, ir: &str) -> (f64, f64) {
    site.submit(20, ir).await;
    assert!(site.wait_all().await, "the warm-up jobs are delivered");
    let cpu = cpu_seconds(pid);
    let start = Instant::now();
    let first = site.submit(jobs, ir).await;
    if !site.wait_all().await {
        println!("  (stuck: not every job was delivered)");
    }
    let accepted = site.accepted_since(first);
    let last = accepted.iter().map(|(_, at)| *at).max().unwrap_or(start);
    // Acknowledgements belong to the work.
    let settled = Instant::now();
    while site.pending().await > 0 && settled.elapsed() < Duration::from_secs(5) {
        sleep(Duration::from_millis(10)).await;
    }
    let cpu = cpu_seconds(pid) - cpu;
    let done = accepted.len() as f64;
    (done / (last - start).as_secs_f64(), cpu * 1000.0 / done)
}

/// A backlog of jobs with an executor at no cost, beside a node that only has the traffic (`bare`): in turns, the
/// best of each counts, so that a busy moment of the machine hits neither.
async fn throughput(report: &mut Report, i: usize, kind: &Kind, jobs: usize, slow: bool) {
    let ir = circuit(5, 20);
    // 4 messages read ahead, or one batch of 10: what the host reads for the two executors.
    for (how, executor, read_ahead) in [("single", NOOP, 4), ("batch", NOOP_BATCH, 10)] {
        let (mut best, mut bare) = ((0.0, f64::NAN), (0.0, f64::NAN));
        for _ in 0..if slow { 1 } else { 5 } {
            let mut site = Site::new(None).await;
            let mut node = site.start(kind, executor, true);
            node.ready().await;
            best = faster(best, backlog(&mut site, node.pid(), jobs, &ir).await);
            if !slow {
                let mut site = Site::new(None).await;
                let node = site.start_bare(read_ahead);
                bare = faster(bare, backlog(&mut site, node.pid(), jobs, &ir).await);
            }
        }
        report.add(format!("jobs/s, {how}, executor at no cost"), "", i, best.0);
        report.add(format!("CPU per 1,000 jobs, {how}"), "s", i, best.1);
        if !slow {
            report.add(format!("jobs/s, {how}, the same traffic without the work"), "", i, bare.0);
            report.add(format!("CPU per 1,000 jobs, {how}, without the work"), "s", i, bare.1);
            report.add(format!("jobs/s, {how}, share of that ceiling"), "%", i, 100.0 * best.0 / bare.0);
        }
    }
}

/// The better of two runs: jobs per second and the CPU time it took.
fn faster(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    if b.0 > a.0 { b } else { a }
}

async fn latency(report: &mut Report, i: usize, kind: &Kind, rate: usize, seconds: usize) {
    let mut site = Site::new(None).await;
    let mut node = site.start(kind, NOOP, true);
    node.ready().await;
    let ir = circuit(5, 20);
    site.submit(5, &ir).await;
    site.wait_all().await;
    let begin = tokio::time::Instant::now() + Duration::from_millis(200);
    let mut sent = Vec::new();
    for n in 0..rate * seconds {
        // Open loop: each job has its time, however long those before it take.
        tokio::time::sleep_until(begin + Duration::from_secs_f64(n as f64 / rate as f64)).await;
        let at = Instant::now();
        sent.push((site.submit(1, &ir).await, at));
    }
    site.wait_all().await;
    let accepted: std::collections::HashMap<usize, Instant> = site.accepted_since(0).into_iter().collect();
    let mut ms: Vec<f64> = sent
        .iter()
        .filter_map(|(n, at)| Some(accepted.get(n)?.saturating_duration_since(*at).as_secs_f64() * 1e3))
        .collect();
    ms.sort_by(f64::total_cmp);
    report.add(format!("XADD to webhook at {rate} jobs/s, p50"), "ms", i, percentile(&ms, 0.5));
    report.add(format!("XADD to webhook at {rate} jobs/s, p99"), "ms", i, percentile(&ms, 0.99));
}

async fn big(report: &mut Report, i: usize, kind: &Kind, jobs: usize) {
    let mut site = Site::new(None).await;
    let mut node = site.start(kind, NOOP, true);
    node.ready().await;
    let (rate, _) = backlog(&mut site, node.pid(), jobs, &circuit(50, 10_000)).await;
    report.add("jobs/s, 50 qubits, 10,000 gates", "", i, rate);
}

async fn idle(report: &mut Report, i: usize, kind: &Kind, jobs: usize, slow: bool) {
    let mut site = Site::new(None).await;
    let mut node = site.start(kind, NOOP, true);
    node.ready().await;
    sleep(Duration::from_secs(1)).await;
    let cpu = cpu_seconds(node.pid());
    sleep(Duration::from_secs(20)).await;
    report.add("CPU in 20 idle seconds", "s", i, cpu_seconds(node.pid()) - cpu);
    site.submit(jobs, &circuit(5, 20)).await;
    site.wait_all().await;
    let name = if slow { "RSS after a load" } else { "RSS after 10,000 jobs" };
    // One row for both, so that they stand side by side.
    report.add(
        if i == 0 { name.to_string() } else { report.rows_name("RSS after") },
        "MiB",
        i,
        rss_mib(node.pid()),
    );
}

impl Report {
    fn rows_name(&self, start: &str) -> String {
        let row = self.rows.iter().find(|r| r.name.starts_with(start));
        row.map_or_else(|| start.to_string(), |r| r.name.clone())
    }
}

/// 20 ms of hardware a job, 100 ms webhook latency, 10 ms each way to Redis: how busy is the device?
async fn duty(report: &mut Report, i: usize, kind: &Kind, batch: bool, jobs: usize) {
    let mut site = Site::new(Some(Duration::from_millis(10))).await;
    site.cloud.on_webhook(|_| Some(Answer::usual().after(Duration::from_millis(100))));
    let mut node = site.start(kind, Executor { ms: 20, batch }, true);
    node.ready().await;
    let ir = circuit(5, 20);
    site.submit(20, &ir).await;
    site.wait_all().await;
    let first = site.submit(jobs, &ir).await;
    site.wait_all().await;
    let mut at: Vec<Instant> = site.accepted_since(first).into_iter().map(|(_, at)| at).collect();
    at.sort();
    let (Some(start), Some(end)) = (at.first(), at.last()) else { return };
    // Between the first and the last result, so that the fixed way of one job is not counted as idleness.
    let rate = (at.len() - 1) as f64 / (*end - *start).as_secs_f64();
    let how = if batch { "batch (a batch costs one run)" } else { "single" };
    if batch {
        report.add(format!("jobs/s at 20 ms a run, long links, {how}"), "", i, rate);
    } else {
        report.add(format!("duty cycle at 20 ms a job, long links, {how}"), "%", i, rate * 0.020 * 100.0);
    }
}

async fn growth(report: &mut Report, i: usize, kind: &Kind, jobs: usize) {
    for kilobytes in [1, 10, 100] {
        // About 55 bytes a gate.
        let ir = circuit(50, kilobytes * 1000 / 55);
        let mut site = Site::new(None).await;
        let mut node = site.start(kind, NOOP, true);
        node.ready().await;
        let (rate, cpu) = backlog(&mut site, node.pid(), jobs, &ir).await;
        report.add(format!("jobs/s with {kilobytes} kB of IR"), "", i, rate);
        report.add(format!("CPU per 1,000 jobs with {kilobytes} kB of IR"), "s", i, cpu);
    }
}

/// The reference simulator's own speed, through `coda-host run`.
fn kernel() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = dir.path().join("device.yaml");
    std::fs::write(&device, "executor_factory: coda_simulator\nnum_qubits: 20\n").expect("a device config");
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let mut command = std::process::Command::new(binary());
        command
            .arg("run")
            .arg(circuit_file("layers20.json"))
            .arg("--device")
            .arg(&device)
            .args(["--json", "--shots", "1"]);
        command.env("CODA_STATE_DIR", dir.path());
        let output = command.output().expect("coda-host run");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        best = best.min(answer["execution_time_ms"].as_f64().unwrap_or(f64::INFINITY));
    }
    println!("simulator: 20 qubits, 20 layers of rx and cz, one thread, best of 5: {} s", number(best / 1e3));
}
