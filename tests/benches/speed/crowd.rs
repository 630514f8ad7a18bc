//! Networks of a thousand peers, and a hundred coordinators on them, over real libp2p on loopback: gossip around a real
//! coordinator process, and jobs that the coordinators' own code runs against simulated peers in this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use coda_host::coordinator::directory::Directory;
use coda_host::coordinator::fallback::{BlockLimits, BlockRunner};
use coda_host::coordinator::job::{self, JobRecorder};
use coda_host::coordinator::result::ResultRequest;
use coda_host::coordinator::resume::JobStart;
use coda_host::coordinator::role::Listener;
use coda_host::peers::registry::Topic;
use coda_host::peers::swarm::{Network, NetworkSettings};
use coda_host::qasm::{self, Circuit};
use coda_host::reservation::job_options::JobOptions;
use coda_host::reservation::journal::JobFact;
use coda_host::reservation::log::{Log, LogError};
use coda_host_tests::misbehaving_peers::settings;
use coda_host_tests::net::{Node, coordinator};
use coda_host_tests::process::rss_mib;
use coda_host_tests::simulated_peers::SimulatedPeer;
use libp2p::identity::Keypair;
use tokio_util::task::TaskTracker;

use super::percentile;
use super::scale::{cpu_seconds, ghz, loopback_bytes, resident};

/// Every fifth heartbeat comes with an advertisement. A thousand peers are measured for two heartbeats, which have none.
const HEARTBEATS: u32 = 5;
const HEARTBEATS_OF_MANY: u32 = 2;
/// Of the heartbeat's interval for each peer, so that two cores carry what all peers of this process hear. A peer is started
/// after each of these, as peers are by different people: their heartbeats then come evenly and not all at once.
const INTERVAL_PER_PEER: Duration = Duration::from_millis(60);
const INTERVAL_PER_PEER_OF_MANY: Duration = Duration::from_millis(120);
const MANY: usize = 500;
const SHORTEST_INTERVAL: Duration = Duration::from_secs(2);
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// The usual interval of heartbeats.
const USUAL_INTERVAL: f64 = 30.0;

/// How long a peer takes for a block.
const RUN: Duration = Duration::from_secs(2);
/// Jobs that each coordinator runs at once.
const JOBS_AT_ONCE: usize = 4;
const QUBITS: usize = 4;
const WARM_UP: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(30);

fn peer_settings(bootstrap: Option<&str>, heartbeat: Duration) -> NetworkSettings {
    let some =
        bootstrap.unwrap_or("/ip4/127.0.0.1/tcp/1/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp");
    // The redial of the product: that of the tests, 0.1 s, is a storm where a thousand peers do it.
    let mut settings = NetworkSettings { heartbeat, redial: Duration::from_secs(5), ..settings(some) };
    if bootstrap.is_none() {
        settings.bootstrap.clear();
    }
    settings
}

/// Peers that are connected to one coordinator process, as they are by `CODA_PEER_BOOTSTRAP`.
pub async fn gossip(peers: usize) {
    let (per_peer, heartbeats) = match peers > MANY {
        true => (INTERVAL_PER_PEER_OF_MANY, HEARTBEATS_OF_MANY),
        false => (INTERVAL_PER_PEER, HEARTBEATS),
    };
    let interval = SHORTEST_INTERVAL.max(per_peer * peers as u32);
    let dir = tempfile::tempdir().expect("a directory");
    let connections = (2 * peers + 64).to_string();
    let env = [("CODA_COORDINATOR_MAX_CONNECTIONS", connections.as_str()), ("CODA_LOG", "info")];
    let hub = coordinator(dir.path(), "coordinator", &env).await;
    let hub_before = rss_mib(hub.host.pid());
    let before = resident();
    let mut all: Vec<SimulatedPeer> = Vec::with_capacity(peers);
    let start = Instant::now();
    let mut pace = tokio::time::interval(interval / peers as u32);
    for _ in 0..peers {
        pace.tick().await;
        let settings = peer_settings(Some(&hub.address), interval);
        all.push(SimulatedPeer::start(settings, 1, Duration::ZERO).await);
    }
    for peer in &all {
        let mut view = peer.network.view();
        let connected = view.wait_for(|view| view.connected > 0);
        if !matches!(tokio::time::timeout(CONNECT_LIMIT, connected).await, Ok(Ok(_))) {
            println!("  {} is not connected after {CONNECT_LIMIT:?}", peer.peer_id);
        }
    }
    let connected_in = start.elapsed().as_secs_f64();
    let start = Instant::now();
    while heard_since(&hub, u64::MAX).await < peers && start.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let known_in = start.elapsed().as_secs_f64();
    // The meshes form, and the first advertisements are through.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let heard = || all.iter().map(|peer| peer.counts.heard.load(Ordering::Relaxed)).collect::<Vec<u64>>();
    let (bytes, cpu, hub_cpu, heard_before) =
        (loopback_bytes(), cpu_seconds(), super::cpu_seconds(hub.host.pid()), heard());
    let start = Instant::now();
    tokio::time::sleep(heartbeats * interval).await;
    let seconds = start.elapsed().as_secs_f64();
    // A heartbeat of each peer has arrived within its interval.
    let known = heard_since(&hub, interval.as_secs() + 1).await;
    let connected = all.iter().filter(|peer| peer.network.view().borrow().connected > 0).count();
    let per_heartbeat = (loopback_bytes() - bytes) as f64 / peers as f64 / f64::from(heartbeats);
    let usual = per_heartbeat / USUAL_INTERVAL;
    // Each peer sends so many, and each could hear those of all others.
    let advertisements = u32::from(heartbeats >= HEARTBEATS);
    let each = f64::from(heartbeats + advertisements) * (peers - 1) as f64 / 100.0;
    let (before_all, after_all) = (heard_before, heard());
    let mut shares: Vec<f64> =
        before_all.iter().zip(&after_all).map(|(before, after)| (after - before) as f64 / each).collect();
    shares.sort_by(f64::total_cmp);
    let share = shares.iter().sum::<f64>() / peers as f64;
    let (least, median, most) = (shares[0], percentile(&shares, 0.5), shares[peers - 1]);
    let (cores, hub_cores) =
        ((cpu_seconds() - cpu) / seconds, (super::cpu_seconds(hub.host.pid()) - hub_cpu) / seconds);
    let memory = (rss_mib(hub.host.pid()) - hub_before) * 1024.0 / peers as f64;
    let own = resident().saturating_sub(before) / peers as u64 / 1024;
    println!(
        "  {peers:5} peers ({connected} connected, in {connected_in:.1} s, known {known_in:.1} s later) around a coordinator that heard \
         {known} within a heartbeat's interval, {interval:?}: {:.1} KiB of traffic per peer and heartbeat ({usual:.0} bytes/s at the \
         usual 30 s), {share:.0} % of all messages arrive at a peer ({least:.0} % to {most:.0} %, median {median:.0} %), {memory:.0} KiB of memory per peer in the coordinator, {own} KiB \
         in a peer; the coordinator {hub_cores:.2} cores, the peers together {cores:.2}",
        per_heartbeat / 1024.0
    );
    stop(all).await;
}

/// Healthy peers that the coordinator has heard within so many seconds.
async fn heard_since(hub: &Node, seconds: u64) -> usize {
    let (_, body) = hub.get("/api/v1/peers").await;
    let is_heard = |peer: &&serde_json::Value| {
        peer["health"] == "healthy" && peer["heard_seconds_ago"].as_u64().is_some_and(|ago| ago <= seconds)
    };
    body["peers"].as_array().map_or(0, |peers| peers.iter().filter(is_heard).count())
}

async fn stop(peers: Vec<SimulatedPeer>) {
    let stops = peers.iter().map(|peer| peer.network.stop());
    futures::future::join_all(stops).await;
}

/// Takes every fact.
#[derive(Clone)]
struct Unrecorded;

impl JobRecorder for Unrecorded {
    async fn record(&self, _: JobFact) -> Result<(), LogError> {
        Ok(())
    }
}

/// Jobs of so many coordinators, one group after the other, on so many peers with one slot each.
pub async fn jobs(peers: usize, groups: &[usize]) {
    let mut all = Vec::with_capacity(peers);
    for _ in 0..peers {
        // They are heard by the directories without gossip.
        let settings = peer_settings(None, Duration::from_secs(3600));
        all.push(SimulatedPeer::start(settings, 1, RUN).await);
    }
    let all = Arc::new(all);
    for &coordinators in groups {
        run_group(&all, coordinators).await;
    }
    stop(Arc::into_inner(all).expect("the groups have ended")).await;
}

async fn run_group(peers: &Arc<Vec<SimulatedPeer>>, coordinators: usize) {
    let memory_backed = std::path::Path::new("/dev/shm");
    let dir = match memory_backed.is_dir() {
        true => tempfile::tempdir_in(memory_backed),
        false => tempfile::tempdir(),
    }
    .expect("a directory");
    let circuit = Arc::new(qasm::parse(&ghz(QUBITS)).expect("a circuit"));
    let mut runners = Vec::new();
    for n in 0..coordinators {
        let directory = Directory::new(Duration::from_secs(300));
        let settings =
            NetworkSettings { idle: Duration::from_secs(2), ..peer_settings(None, Duration::from_secs(30)) };
        let listening = directory.clone();
        let role = move || Listener::new(listening, Duration::from_secs(30));
        let network = Network::start(Keypair::generate_ed25519(), settings, role).await.expect("a network");
        let log = Log::sqlite(&dir.path().join(format!("{n}.db"))).expect("a log");
        let limits = BlockLimits {
            call: Duration::from_secs(15),
            dispatch: Duration::from_secs(60),
            ttl_seconds: 60,
            slot_wait: Duration::from_secs(300),
            peer_wait: Duration::from_secs(30),
            hedge: true,
        };
        runners.push(BlockRunner { network, log, directory, limits, tasks: TaskTracker::new(), accepted: 0 });
    }
    let start = Instant::now();
    let (from, end) = (start + WARM_UP, start + WARM_UP + MEASURED);
    peers.iter().for_each(|peer| tell(&runners, peer, true));
    let mut loops = tokio::task::JoinSet::new();
    for runner in &runners {
        for _ in 0..JOBS_AT_ONCE {
            loops.spawn(run_jobs(runner.clone(), circuit.clone(), from, end));
        }
    }
    let declined = || peers.iter().map(|peer| peer.counts.declined.load(Ordering::Relaxed)).sum::<u64>();
    let (mut told, mut at_start) = (0, (0, 0.0));
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let (mut is_measured, mut at_end) = (false, (0, 0.0));
    while Instant::now() < end {
        tick.tick().await;
        // Each peer's heartbeat in its turn.
        let due = (start.elapsed().as_secs_f64() / USUAL_INTERVAL * peers.len() as f64) as usize;
        (told..due).for_each(|n| tell(&runners, &peers[n % peers.len()], false));
        told = due;
        if !is_measured && Instant::now() >= from {
            (is_measured, at_start) = (true, (declined(), cpu_seconds()));
        }
        at_end = (declined(), cpu_seconds());
    }
    let (mut waits, mut failures): (Vec<f64>, BTreeMap<String, usize>) = (Vec::new(), BTreeMap::new());
    while let Some(ended) = loops.join_next().await {
        for job in ended.expect("the loop ends") {
            match job {
                Ok(wait) => waits.push(wait),
                Err(error) => *failures.entry(error).or_default() += 1,
            }
        }
    }
    waits.sort_by(f64::total_cmp);
    let (jobs, seconds) = (waits.len() as f64, MEASURED.as_secs_f64());
    println!(
        "  {:5} peers, {coordinators:3} coordinators, {} jobs at once: {:.1} jobs/s, {:.2} declined prepares per job, beyond its blocks \
         a job takes {:.2} s (median), {:.2} s (99 %); {:.2} cores; failed: {failures:?}",
        peers.len(),
        coordinators * JOBS_AT_ONCE,
        jobs / seconds,
        (at_end.0 - at_start.0) as f64 / jobs,
        percentile(&waits, 0.5),
        percentile(&waits, 0.99),
        (at_end.1 - at_start.1) / seconds,
    );
    for runner in runners {
        runner.tasks.close();
        runner.tasks.wait().await;
        runner.network.stop().await;
        runner.log.close().await;
    }
}

/// Brings what a peer says to every coordinator.
fn tell(runners: &[BlockRunner], peer: &SimulatedPeer, with_advertisement: bool) {
    let said = peer.announcement();
    for runner in runners {
        if with_advertisement {
            runner
                .directory
                .hear(&peer.peer_id, Topic::Advertisement, &said.advertisement)
                .expect("good gossip");
        }
        runner.directory.hear(&peer.peer_id, Topic::Heartbeat, &said.heartbeat).expect("good gossip");
    }
}

/// Runs job after job; of those that begin and end in the time, the seconds beyond what their blocks take.
async fn run_jobs(
    runner: BlockRunner,
    circuit: Arc<Circuit>,
    from: Instant,
    end: Instant,
) -> Vec<Result<f64, String>> {
    let mut ended = Vec::new();
    for n in 0_u64.. {
        let start = Instant::now();
        let request = ResultRequest::new(&circuit, 10, JobOptions::default()).expect("good options");
        let id = format!("job-bench-{n:04}");
        let runner = BlockRunner { accepted: runner.directory.accepted_at(Duration::ZERO), ..runner.clone() };
        let run = job::run(&runner, &circuit, request, &id, JobStart::default(), RUN, &Unrecorded);
        let outcome = tokio::select! {
            outcome = run => outcome,
            () = tokio::time::sleep_until(end.into()) => break,
        };
        if Instant::now() < from {
            continue;
        }
        let wait = start.elapsed().as_secs_f64() - RUN.as_secs_f64() * QUBITS as f64;
        ended.push(outcome.map(|_| wait).map_err(|error| error.to_string()));
    }
    ended
}
