//! How a coordinator and a network grow with the number of peers: the time to plan a job and to choose a peer, and the memory
//! of a known peer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use coda_host::coordinator::directory::{Directory, SlotChoice};
use coda_host::coordinator::plan::{Candidate, plan};
use coda_host::peers::operation::SERVICES;
use coda_host::peers::registry::Topic;
use coda_host::{qasm, sys};
use coda_host_tests::net::{Net, SIMULATOR};
use coda_host_tests::proxy::Proxy;
use serde_json::json;

use super::{crowd, percentile};

/// One way of a link between the machines of a site.
const ONE_WAY: Duration = Duration::from_millis(25);

/// Prints everything about growth.
pub async fn measure() {
    sys::raise_open_files();
    println!("\nA coordinator with two peers, each a process of this machine:");
    jobs(None).await;
    jobs(Some(ONE_WAY)).await;
    measure_planning();
}

/// Prints the time to plan a job and to choose a peer, and the memory of a known peer.
pub fn measure_planning() {
    println!("\nGrowth with the number of peers:");
    for peers in [1000, 300, 100, 10] {
        planning(peers);
    }
}

/// Prints what a thousand peers and a hundred coordinators cost each other.
pub async fn measure_crowds(scale: f64) {
    sys::raise_open_files();
    let sized = |peers: u32| ((f64::from(peers) * scale) as usize).max(5);
    measure_gossip(scale).await;
    println!("\nJobs of several coordinators, {} blocks each, on peers with one slot:", 4);
    for peers in [100, 1000] {
        crowd::jobs(sized(peers), &[1, 10, 100]).await;
    }
}

/// Prints what gossip around one coordinator costs.
pub async fn measure_gossip(scale: f64) {
    sys::raise_open_files();
    println!("\nGossip:");
    let only = std::env::var("CODA_BENCH_PEERS").ok().and_then(|peers| peers.parse::<u32>().ok());
    for peers in [10, 100, 300, 1000].into_iter().filter(|peers| only.is_none_or(|only| only == *peers)) {
        crowd::gossip(((f64::from(peers) * scale) as usize).max(5)).await;
    }
}

fn id(n: usize) -> String {
    format!("12D3KooW{n:044}")
}

pub fn ghz(qubits: usize) -> String {
    let mut source = format!("OPENQASM 3.0; include \"stdgates.inc\"; qubit[{qubits}] q; h q[0];");
    (1..qubits).for_each(|n| source += &format!("cx q[{}], q[{n}];", n - 1));
    source
}

/// Layers of gates on twelve qubits, whose components join early.
fn layers() -> String {
    let mut source = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[12] q;".to_string();
    for layer in 0..40 {
        (0..12).for_each(|q| source += &format!("rx(0.{layer}1) q[{q}];"));
        (layer % 2..11).step_by(2).for_each(|q| source += &format!("cx q[{q}], q[{}];", q + 1));
    }
    source
}

fn gates(count: usize) -> String {
    let gates: String = (0..count).map(|n| ["h q[0];", "t q[0];", "x q[0];"][n % 3]).collect();
    format!("OPENQASM 3.0; include \"stdgates.inc\"; qubit[1] q; {gates}")
}

/// Whole jobs, from the submission to the end, with links of so much delay each way to the peers.
async fn jobs(one_way: Option<Duration>) {
    let mut net = Net::start(&[("CODA_LOG", "info"), ("CODA_COORDINATOR_CALL_TIMEOUT_SEC", "15")]).await;
    let mut address = net.coordinator.address.clone();
    let port = address.split('/').nth(4).and_then(|port| port.parse().ok()).expect("a port");
    let _link = match one_way {
        Some(delay) => {
            let link = Proxy::start(port, delay).await.expect("a port");
            address = address.replace(&format!("/tcp/{port}/"), &format!("/tcp/{}/", link.port()));
            Some(link)
        }
        None => None,
    };
    for _ in 0..2 {
        net.add(
            SIMULATOR,
            &[("CODA_PEER_BOOTSTRAP", &address), ("CODA_PEER_ALLOW", "any"), ("CODA_LOG", "info")],
        )
        .await;
    }
    let link = one_way.map_or("loopback".into(), |delay| format!("{:?} there and back", 2 * delay));
    for (name, source) in
        [("8-qubit GHZ", ghz(8)), ("2,000 gates on a qubit", gates(2000)), ("20,000 gates", gates(20_000))]
    {
        let mut times = Vec::new();
        let mut stages = 1;
        for _ in 0..8 {
            let (start, job) = (Instant::now(), json!({ "qasm": source, "shots": 10 }));
            let (_, answer) = net.coordinator.post("/api/v1/jobs?wait=60", &job).await;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            assert_eq!(answer["status"], "completed", "{answer}");
            stages = answer["job"]["plan"]["stages"].as_array().map_or(1, Vec::len).max(1);
        }
        times.sort_by(f64::total_cmp);
        let (median, per_stage) = (percentile(&times, 0.5), percentile(&times, 0.5) / stages as f64);
        let trips = one_way.map(|delay| per_stage / 1e3 / (2 * delay).as_secs_f64());
        let trips = trips.map_or(String::new(), |trips| format!(", {trips:.1} round trips"));
        println!("  {link}: {name}, {stages} stages: {median:.1} ms, {per_stage:.1} ms a stage{trips}");
    }
}

/// The median time of many calls and that of the slowest in a hundred, in milliseconds.
fn times(mut call: impl FnMut()) -> String {
    let mut times: Vec<f64> = (0..500)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    format!("{:.3} ms (99 %: {:.3} ms)", percentile(&times, 0.5), percentile(&times, 0.99))
}

fn planning(peers: usize) {
    let services: Vec<String> = SERVICES.iter().map(ToString::to_string).collect();
    let candidate = |n| Candidate { peer_id: id(n), services: services.clone(), ..Candidate::default() };
    let candidates: Vec<Candidate> = (0..peers).map(candidate).collect();
    let before = resident();
    let directory = Directory::new(Duration::from_secs(300));
    for n in 0..peers {
        let peer = id(n);
        let address = format!("/ip4/127.0.0.1/tcp/4001/p2p/{peer}");
        let summaries: Vec<_> = SERVICES
            .iter()
            .map(|s| json!({"service_id": s, "version": "1.0.0", "quantum_capability": s, "benchmark_mode": "sim"}))
            .collect();
        let advertisement = json!({
            "peer_id": peer, "trust_tier": "external", "network_addresses": [address], "supported_protocols": [],
            "service_summaries": summaries, "peer_log_position": 0, "emitted_at": "2026-04-20T00:55:00Z",
        });
        let heartbeat = json!({
            "peer_id": peer, "health_status": "healthy", "active_reservations": 0, "active_executions": 0,
            "peer_log_position": 0, "emitted_at": "2026-04-20T00:55:00Z",
        });
        for (topic, message) in [(Topic::Advertisement, advertisement), (Topic::Heartbeat, heartbeat)] {
            directory.hear(&peer, topic, message.to_string().as_bytes()).expect("good gossip");
        }
    }
    let memory = resident().saturating_sub(before) / peers as u64;
    let circuits = [("8-qubit GHZ", qasm::parse(&ghz(8))), ("12 qubits, 700 gates", qasm::parse(&layers()))];
    let [(_, small), _] = &circuits;
    let small = small.as_ref().expect("a circuit");
    let block = plan("plan-1", small, &candidates).expect("a plan").stages[0][0].clone();
    let none = BTreeSet::new();
    let choosing = times(|| match directory.claim(None, &block, &BTreeSet::new(), &none, &none) {
        SlotChoice::Peer(claim) => drop(claim),
        _ => panic!("a peer is free"),
    });
    println!("  {peers:5} peers: choosing one for a block {choosing}; {memory} bytes each in the directory");
    for (name, circuit) in &circuits {
        let circuit = circuit.as_ref().expect("a circuit");
        let planning = times(|| drop(plan("plan-1", circuit, &candidates).expect("a plan")));
        println!("  {peers:5} peers: planning {name} {planning}");
    }
}

/// Bytes of memory of this process.
pub fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Bytes that were sent over the loopback interface.
pub fn loopback_bytes() -> u64 {
    let table = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let line = table.lines().find_map(|line| line.trim().strip_prefix("lo:")).unwrap_or_default().to_string();
    line.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

pub fn cpu_seconds() -> f64 {
    super::cpu_seconds(std::process::id() as i32)
}
