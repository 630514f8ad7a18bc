//! Many coordinators on many peers in virtual time: the coordinators' directories, plans and schedules and the peers'
//! reservation tables are the real ones; messages take a fixed time, and nothing else is between them.
//!
//! Jobs of four blocks, in two stages of two, come at random to the coordinators. What an ideal scheduler, which knows every
//! slot, makes of the same jobs is computed beside it.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::watch;

use super::combine::Component;
use super::directory::{Directory, PlaceInLine, SlotChoice, SlotClaim};
use super::plan::{Plan, plan};
use super::probe::StatementKind;
use super::schedule::{BlockPlace, Schedule};
use crate::peers::operation::SERVICES;
use crate::peers::protocol::{
    Allow, Dispatch, ExecutionEnd, NoSlot, PeerLimits, PeerTime, ReservationTable, Slots,
};
use crate::peers::registry::Topic;
use crate::peers::wire::{CommitRequest, DispatchHead, EmptyObject, PrepareRequest};
use crate::qasm::{self, Circuit};
use crate::reservation::event::Transition;

/// One way of a message.
const LATENCY: Duration = Duration::from_millis(10);
/// How long a peer takes for a block.
const RUN: Duration = Duration::from_secs(2);
/// A job alone: two blocks behind each other, each with prepare, commit and dispatch.
const ALONE: Duration = Duration::from_millis(2 * (2000 + 3 * 20));
/// How long a block occupies its slot: until the dispatch is there the peer waits for two round trips.
const OCCUPIED: Duration = Duration::from_millis(2040);
const BLOCKS: u32 = 4;
const HEARTBEAT: Duration = Duration::from_secs(30);
const SLOT_WAIT: Duration = Duration::from_secs(300);
/// The default of `CODA_COORDINATOR_MAX_RUNNING`.
const MAX_RUNNING: usize = 8;

const CIRCUIT: &str = "OPENQASM 3.0; include \"stdgates.inc\"; qubit[6] q; cx q[0], q[1]; cx q[2], q[3]; cx q[1], q[4]; cx q[3], q[5];";

fn random(seed: &mut u64) -> f64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 11) as f64 / (1_u64 << 53) as f64
}

/// A peer id or a coordinator's: their order is not that of their numbers, as with real ids.
fn id(kind: &str, n: usize) -> String {
    let mut seed = n as u64 + 1;
    (0..3).for_each(|_| _ = random(&mut seed));
    format!("12D3KooW{kind}{seed:020}{n:06}")
}

/// A peer's one slot.
#[derive(Default)]
struct OneSlot(Rc<Cell<bool>>);

struct Lease(Rc<Cell<bool>>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Slots for OneSlot {
    type Lease = Lease;

    fn try_acquire(&self) -> Result<Lease, NoSlot> {
        match self.0.replace(true) {
            true => Err(NoSlot::Full),
            false => Ok(Lease(self.0.clone())),
        }
    }

    fn max_qubits(&self) -> Option<u16> {
        Some(20)
    }
}

struct SimulatedPeer {
    id: String,
    table: ReservationTable<Lease>,
    slot: OneSlot,
}

/// A job that runs.
struct Job {
    number: usize,
    submitted: Duration,
    plan: Rc<Plan>,
    schedule: Schedule,
    ran_on: BTreeMap<String, String>,
}

/// A block that looks for a peer or is at one.
struct BlockAtWork {
    job: usize,
    place: BlockPlace,
    state: Component,
    kinds: BTreeSet<StatementKind>,
    in_line: PlaceInLine,
    claim: Option<SlotClaim>,
    sent: Duration,
    deadline: Duration,
    is_waiting: bool,
    /// The event at which it looks again: an earlier one is of a look that something else has ended.
    next_look: u64,
}

struct SimulatedCoordinator {
    id: String,
    directory: Directory,
    changes: watch::Receiver<()>,
    queue: VecDeque<usize>,
    jobs: BTreeMap<usize, Job>,
    blocks: BTreeMap<u64, BlockAtWork>,
}

/// What happens next, at a coordinator with this number.
enum Event {
    Submit { coordinator: usize, job: usize },
    Look { coordinator: usize, block: u64 },
    AtPeer { coordinator: usize, block: u64, peer: usize, step: Step },
    Ended { coordinator: usize, block: u64, peer: usize, lease: Lease },
    Answer { coordinator: usize, block: u64, step: Step, transition: Transition },
    Heartbeat { peer: usize },
    Heard { peer: usize, load: usize },
}

#[derive(Clone, Copy)]
enum Step {
    Prepare,
    Commit,
    Dispatch,
}

/// What came of a network of this size.
#[derive(Debug, Default)]
struct Figures {
    jobs: usize,
    declined: u64,
    /// Blocks that found no slot within the limit.
    starved: usize,
    /// Jobs that ended while jobs came, and how many an ideal scheduler ends.
    ended: usize,
    ended_ideally: usize,
    /// Seconds that a job took longer than it takes alone, in order, and with the ideal scheduler.
    waits: Vec<f64>,
    ideal_waits: Vec<f64>,
    /// Seconds that a job took longer than with the ideal scheduler, in order.
    beyond: Vec<f64>,
    /// The mean of these of each coordinator, in order.
    by_coordinator: Vec<f64>,
    looks: u64,
    choosing: Duration,
    planning: Vec<f64>,
}

struct World {
    now: Arc<AtomicU64>,
    next: u64,
    events: BTreeMap<u64, Event>,
    order: BinaryHeap<Reverse<(Duration, u64)>>,
    peers: Vec<SimulatedPeer>,
    numbers: BTreeMap<String, usize>,
    coordinators: Vec<SimulatedCoordinator>,
    circuit: Circuit,
    max_running: usize,
    submissions: Vec<Duration>,
    ends: Vec<Option<(usize, Duration)>>,
    ended: usize,
    figures: Figures,
}

impl World {
    fn new(peers: usize, coordinators: usize, max_running: usize) -> World {
        let now = Arc::new(AtomicU64::new(0));
        let limits = |id: &str| PeerLimits {
            peer_id: id.into(),
            allow: Allow::Any,
            services: SERVICES.iter().map(ToString::to_string).collect(),
            max_ttl_seconds: 300,
            max_slots: 1,
            max_per_peer: 1,
            max_seconds: 1e6,
            max_operations: None,
        };
        let peer = |n| {
            let id = id("p", n);
            SimulatedPeer { table: ReservationTable::new(limits(&id), 1), id, slot: OneSlot::default() }
        };
        let peers: Vec<SimulatedPeer> = (0..peers).map(peer).collect();
        let coordinator = |n| {
            let clock = now.clone();
            let nanos = move || Duration::from_nanos(clock.load(Ordering::Relaxed));
            let directory = Directory::with_clock(10 * HEARTBEAT, n as u128, nanos);
            SimulatedCoordinator {
                id: id("c", n),
                changes: directory.changes(),
                directory,
                queue: VecDeque::new(),
                jobs: BTreeMap::new(),
                blocks: BTreeMap::new(),
            }
        };
        let mut world = World {
            coordinators: (0..coordinators).map(coordinator).collect(),
            now,
            next: 0,
            events: BTreeMap::new(),
            order: BinaryHeap::new(),
            numbers: peers.iter().enumerate().map(|(n, p)| (p.id.clone(), n)).collect(),
            peers,
            circuit: qasm::parse(CIRCUIT).expect("a circuit"),
            max_running,
            submissions: Vec::new(),
            ends: Vec::new(),
            ended: 0,
            figures: Figures::default(),
        };
        let mut seed = 3;
        for n in 0..world.peers.len() {
            world.advertise(n);
            world.heard(n, 0);
            let first = HEARTBEAT.mul_f64(random(&mut seed));
            world.after(first, Event::Heartbeat { peer: n });
        }
        world
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn after(&mut self, time: Duration, event: Event) {
        self.order.push(Reverse((self.now() + time, self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    fn advertise(&mut self, peer: usize) {
        let id = &self.peers[peer].id;
        let summary = |s: &&str| json!({"service_id": s, "version": "1.0.0", "quantum_capability": s, "benchmark_mode": "sim"});
        let said = json!({
            "peer_id": id, "trust_tier": "external", "network_addresses": [], "supported_protocols": [],
            "service_summaries": SERVICES.iter().map(summary).collect::<Vec<_>>(), "peer_log_position": 0,
            "emitted_at": "2026-04-20T00:55:00Z",
        })
        .to_string();
        for coordinator in &self.coordinators {
            let heard = coordinator.directory.hear(id, Topic::Advertisement, said.as_bytes());
            heard.expect("good gossip");
        }
    }

    fn heard(&mut self, peer: usize, load: usize) {
        let id = &self.peers[peer].id;
        let said = json!({
            "peer_id": id, "health_status": "healthy", "active_reservations": 0, "active_executions": load,
            "peer_log_position": 0, "emitted_at": "2026-04-20T00:55:00Z",
        })
        .to_string();
        for coordinator in &self.coordinators {
            coordinator.directory.hear(id, Topic::Heartbeat, said.as_bytes()).expect("good gossip");
        }
        (0..self.coordinators.len()).for_each(|n| self.wake(n));
    }

    /// Has the blocks look again that wait, as long as something has changed for them.
    fn wake(&mut self, c: usize) {
        while self.coordinators[c].changes.has_changed().expect("the directory lives") {
            self.coordinators[c].changes.mark_unchanged();
            let waiting = self.coordinators[c].blocks.iter().filter(|(_, block)| block.is_waiting);
            for block in waiting.map(|(n, _)| *n).collect::<Vec<_>>() {
                self.look(c, block);
            }
        }
    }

    fn begin_jobs(&mut self, c: usize) {
        while self.coordinators[c].jobs.len() < self.max_running
            && let Some(number) = self.coordinators[c].queue.pop_front()
        {
            let candidates = self.coordinators[c].directory.candidates();
            let start = Instant::now();
            let plan =
                plan(&format!("plan-{number:08}"), &self.circuit, &candidates).expect("there are peers");
            self.figures.planning.push(start.elapsed().as_secs_f64());
            let components = (0..self.circuit.qubits).map(Component::fresh).collect();
            let schedule = Schedule::new(&plan, 0, components);
            let (submitted, plan) = (self.submissions[number], Rc::new(plan));
            let job = Job { number, submitted, plan, schedule, ran_on: BTreeMap::new() };
            self.coordinators[c].jobs.insert(number, job);
            self.begin_blocks(c, number);
        }
    }

    fn begin_blocks(&mut self, c: usize, number: usize) {
        let (now, coordinator) = (self.now(), &mut self.coordinators[c]);
        let job = coordinator.jobs.get_mut(&number).expect("the job runs");
        let mut begun = Vec::new();
        while let Some((place, state)) = job.schedule.begin_next() {
            let fragments: Vec<_> =
                job.plan.stages[place.0][place.1].fragments.iter().map(|f| &job.plan.fragments[*f]).collect();
            let in_line = coordinator.directory.place_in_line(job.submitted.as_millis() as i64);
            let kinds = StatementKind::of_block(&fragments);
            let (deadline, claim) = (now + SLOT_WAIT, None);
            let block = BlockAtWork {
                job: number,
                place,
                state,
                kinds,
                in_line,
                claim,
                sent: now,
                deadline,
                is_waiting: true,
                next_look: 0,
            };
            coordinator.blocks.insert(self.next, block);
            begun.push(self.next);
            self.next += 1;
        }
        begun.into_iter().for_each(|block| self.look(c, block));
    }

    /// As a block looks for a peer in `fallback`.
    fn look(&mut self, c: usize, number: u64) {
        let (now, coordinator) = (self.now(), &mut self.coordinators[c]);
        let Some(block) = coordinator.blocks.get_mut(&number).filter(|block| block.is_waiting) else {
            return;
        };
        let job = &coordinator.jobs[&block.job];
        let planned = &job.plan.stages[block.place.0][block.place.1];
        let ran_on = planned.predecessors.iter().filter_map(|b| job.ran_on.get(b)).cloned().collect();
        let start = Instant::now();
        let (in_line, none) = (Some(&block.in_line), BTreeSet::new());
        let choice = coordinator.directory.claim(in_line, planned, &block.kinds, &none, &ran_on);
        self.figures.choosing += start.elapsed();
        self.figures.looks += 1;
        match choice {
            SlotChoice::Peer(claim) => {
                let peer = self.numbers[&claim.peer];
                (block.claim, block.is_waiting, block.sent) = (Some(claim), false, now);
                self.after(
                    LATENCY,
                    Event::AtPeer { coordinator: c, block: number, peer, step: Step::Prepare },
                );
            }
            SlotChoice::Full(again) => {
                if now >= block.deadline {
                    self.figures.starved += 1;
                    block.deadline = Duration::MAX;
                }
                // Nothing has changed: a block that looked again at once would look for ever.
                assert!(!again.is_zero(), "block {number} of coordinator {c} looks again at once");
                block.next_look = self.next;
                self.after(again, Event::Look { coordinator: c, block: number });
            }
            SlotChoice::None => panic!("all peers are healthy"),
        }
    }

    fn at_peer(&mut self, c: usize, number: u64, p: usize, step: Step) {
        let now = PeerTime { elapsed: self.now(), at: self.now().as_micros() as i64 };
        let (peer, owner) = (&mut self.peers[p], &self.coordinators[c].id);
        let (reservation_id, block_id) = (format!("res-{c:04}-{number:010}"), "block-s01-b01".to_string());
        let workflow_run_id = format!("job-{number:010}");
        let transition = match step {
            Step::Prepare => {
                let request = PrepareRequest {
                    reservation_id,
                    workflow_run_id,
                    fragment_id: block_id,
                    requesting_peer_id: owner.clone(),
                    service_id: "cnot".into(),
                    estimated_qubits: 2,
                    estimated_depth: 1,
                    priority: 0,
                    ttl_seconds: 60,
                    idempotency_key: format!("key-{:012}", self.next),
                    sent_at: String::new(),
                };
                let answer = peer.table.prepare(now, owner, &request, &peer.slot);
                match answer.transition.name() {
                    "accepted" => Transition::Accepted,
                    "rejected" => Transition::Rejected,
                    other => panic!("{other}"),
                }
            }
            Step::Commit => {
                let request = CommitRequest {
                    reservation_id,
                    workflow_run_id,
                    fragment_id: block_id,
                    sent_at: String::new(),
                };
                let answer = peer.table.commit(now, owner, &request);
                assert_eq!(answer.transition.name(), "committed");
                Transition::Committed
            }
            Step::Dispatch => {
                let request = DispatchHead {
                    execution_id: format!("exec-{c:04}-{number:010}"),
                    reservation_id,
                    workflow_run_id,
                    fragment_id: block_id,
                    service_id: "cnot".into(),
                    input_payload: EmptyObject {},
                    max_retries: 2,
                    idempotency_key: format!("key-{:012}", self.next),
                    dispatched_at: String::new(),
                };
                let Dispatch::Run(lease) = peer.table.dispatch(now, owner, &request) else {
                    panic!("a committed reservation is run");
                };
                return self.after(RUN, Event::Ended { coordinator: c, block: number, peer: p, lease });
            }
        };
        peer.table.notes();
        self.after(LATENCY, Event::Answer { coordinator: c, block: number, step, transition });
    }

    fn answer(&mut self, c: usize, number: u64, step: Step, transition: Transition) {
        let (now, coordinator) = (self.now(), &mut self.coordinators[c]);
        let block = coordinator.blocks.get_mut(&number).expect("a block that waits for an answer");
        let claim = block.claim.as_ref().expect("it has a claim");
        let (id, took) = (claim.peer.clone(), now - block.sent);
        let peer = self.numbers[&id];
        let next = match (step, transition) {
            (Step::Prepare, Transition::Accepted) => {
                claim.accepted();
                coordinator.directory.answered(&id, took);
                Step::Commit
            }
            (Step::Prepare, _) => {
                coordinator.directory.answered(&id, took);
                self.figures.declined += 1;
                block.is_waiting = true;
                block.claim.take().expect("it has a claim").declined();
                return self.look(c, number);
            }
            (Step::Commit, _) => {
                coordinator.directory.answered(&id, took);
                Step::Dispatch
            }
            (Step::Dispatch, _) => {
                coordinator.directory.completed(&id, 4.0, took);
                return self.completed(c, number, id);
            }
        };
        block.sent = now;
        self.after(LATENCY, Event::AtPeer { coordinator: c, block: number, peer, step: next });
    }

    fn completed(&mut self, c: usize, number: u64, peer: String) {
        let (now, coordinator) = (self.now(), &mut self.coordinators[c]);
        let block = coordinator.blocks.remove(&number).expect("the block is at a peer");
        let job = coordinator.jobs.get_mut(&block.job).expect("the job runs");
        job.ran_on.insert(job.plan.stages[block.place.0][block.place.1].block_id.clone(), peer);
        job.schedule.complete(block.place, block.state.clone());
        let (number, is_over) = (job.number, job.schedule.complete_stages() == job.plan.stages.len());
        drop(block);
        match is_over {
            true => {
                coordinator.jobs.remove(&number);
                self.ends[number] = Some((c, now));
                self.ended += 1;
                self.begin_jobs(c);
            }
            false => self.begin_blocks(c, number),
        }
    }

    /// Runs until every job has ended.
    fn run(&mut self) {
        let mut left = self.submissions.len();
        while left > 0 {
            let Some(Reverse((time, number))) = self.order.pop() else { panic!("{left} jobs are stuck") };
            self.now.store(time.as_nanos() as u64, Ordering::Relaxed);
            let at = match self.events.remove(&number).expect("each event happens once") {
                Event::Submit { coordinator, job } => {
                    self.coordinators[coordinator].queue.push_back(job);
                    self.begin_jobs(coordinator);
                    coordinator
                }
                Event::Look { coordinator, block } => {
                    let looks = self.coordinators[coordinator].blocks.get(&block);
                    if looks.is_some_and(|block| block.next_look == number) {
                        self.look(coordinator, block);
                    }
                    coordinator
                }
                Event::AtPeer { coordinator, block, peer, step } => {
                    self.at_peer(coordinator, block, peer, step);
                    coordinator
                }
                Event::Ended { coordinator, block, peer, lease } => {
                    let now = PeerTime { elapsed: self.now(), at: self.now().as_micros() as i64 };
                    let (owner, execution) =
                        (&self.coordinators[coordinator].id, format!("exec-{coordinator:04}-{block:010}"));
                    let (answer, error, seconds) = (Arc::from([]), None, RUN.as_secs_f64());
                    let end = ExecutionEnd { answer, error, seconds, work: 4.0, fidelity: None };
                    self.peers[peer].table.finished(now, owner, &execution, end, lease);
                    self.peers[peer].table.notes();
                    let (step, transition) = (Step::Dispatch, Transition::Committed);
                    self.after(LATENCY, Event::Answer { coordinator, block, step, transition });
                    coordinator
                }
                Event::Answer { coordinator, block, step, transition } => {
                    self.answer(coordinator, block, step, transition);
                    coordinator
                }
                Event::Heartbeat { peer } => {
                    let load = usize::from(self.peers[peer].slot.0.get());
                    self.after(LATENCY, Event::Heard { peer, load });
                    self.after(HEARTBEAT, Event::Heartbeat { peer });
                    continue;
                }
                Event::Heard { peer, load } => {
                    self.heard(peer, load);
                    continue;
                }
            };
            self.wake(at);
            left = self.submissions.len() - self.ended;
        }
    }
}

/// When each job ends if a scheduler that knows every slot gives it to the job that came first.
fn ideal_ends(submissions: &[Duration], slots: usize) -> Vec<Duration> {
    // Before others at the same time come the ends of blocks.
    const ENDED: u8 = 0;
    const READY: u8 = 1;
    let mut events = BinaryHeap::new();
    for (job, submitted) in submissions.iter().enumerate() {
        (0..2).for_each(|chain| events.push(Reverse((*submitted + LATENCY, READY, job, chain, 1))));
    }
    let (mut free, mut waiting, mut ends) = (slots, BTreeSet::new(), vec![Duration::ZERO; submissions.len()]);
    while let Some(Reverse((now, kind, job, chain, stage))) = events.pop() {
        match kind {
            ENDED => {
                free += 1;
                match stage {
                    1 => events.push(Reverse((now + 2 * LATENCY, READY, job, chain, 2))),
                    _ => ends[job] = ends[job].max(now + LATENCY),
                }
            }
            _ => _ = waiting.insert((job, chain, stage)),
        }
        while free > 0
            && let Some((job, chain, stage)) = waiting.pop_first()
        {
            free -= 1;
            events.push(Reverse((now + OCCUPIED, ENDED, job, chain, stage)));
        }
    }
    ends
}

/// Jobs that come at random for so long and ask for this share of the slots.
fn simulate(peers: usize, coordinators: usize, load: f64, time: Duration) -> Figures {
    // An operator lets a coordinator run what the network can take.
    let max_running = MAX_RUNNING.max(peers / coordinators);
    let mut world = World::new(peers, coordinators, max_running);
    let per_second = load * peers as f64 / (f64::from(BLOCKS) * OCCUPIED.as_secs_f64());
    let (mut seed, mut at) = (5, Duration::ZERO);
    loop {
        at += Duration::from_secs_f64(-(1.0 - random(&mut seed)).ln() / per_second);
        if at > time {
            break;
        }
        let coordinator = (random(&mut seed) * coordinators as f64) as usize;
        world.after(at, Event::Submit { coordinator, job: world.submissions.len() });
        world.submissions.push(at);
        world.ends.push(None);
    }
    world.run();
    let ideal = ideal_ends(&world.submissions, peers);
    let mut figures = std::mem::take(&mut world.figures);
    figures.jobs = world.submissions.len();
    let mut of_coordinators: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for ((end, ideal), submitted) in world.ends.iter().zip(&ideal).zip(&world.submissions) {
        let (coordinator, end) = end.expect("every job has ended");
        figures.ended += usize::from(end <= time);
        figures.ended_ideally += usize::from(*ideal <= time);
        figures.waits.push((end - *submitted).as_secs_f64() - ALONE.as_secs_f64());
        figures.ideal_waits.push((*ideal - *submitted).as_secs_f64() - ALONE.as_secs_f64());
        let beyond = end.as_secs_f64() - ideal.as_secs_f64();
        figures.beyond.push(beyond);
        of_coordinators.entry(coordinator).or_default().push(beyond);
    }
    figures.by_coordinator =
        of_coordinators.values().map(|b| b.iter().sum::<f64>() / b.len() as f64).collect();
    let lists = [
        &mut figures.waits,
        &mut figures.ideal_waits,
        &mut figures.beyond,
        &mut figures.by_coordinator,
        &mut figures.planning,
    ];
    lists.into_iter().for_each(|list| list.sort_by(f64::total_cmp));
    for coordinator in &world.coordinators {
        assert_eq!(coordinator.directory.held_slots(), 0, "every slot is given back");
    }
    assert!(world.peers.iter().all(|peer| !peer.slot.0.get()), "every slot is free at the end");
    figures
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    sorted.get(((sorted.len() - 1) as f64 * share).round() as usize).copied().unwrap_or(0.0)
}

impl Figures {
    fn declined_per_job(&self) -> f64 {
        self.declined as f64 / self.jobs as f64
    }
}

#[test]
#[ignore = "prints figures for docs/performance.md; takes minutes"]
fn figures_of_many_coordinators_on_many_peers() {
    let list = |name: &str, or: &[f64]| -> Vec<f64> {
        let given = std::env::var(name).ok();
        given.map_or(or.to_vec(), |t| t.split(',').map(|n| n.parse().expect("numbers")).collect())
    };
    let seconds = list("CODA_TEST_GROWTH_SECONDS", &[60.0])[0];
    println!(
        "peers | coordinators | load | jobs | jobs/s (ideal) | declined/job | wait p50 p99 (ideal p50 p99) | beyond p50 p99 | coordinators best..worst | starved | choosing ms/job, looks/job | planning p50 p99 ms | took"
    );
    for peers in list("CODA_TEST_GROWTH_PEERS", &[10.0, 100.0, 300.0, 1000.0]) {
        for coordinators in list("CODA_TEST_GROWTH_COORDINATORS", &[1.0, 10.0, 100.0]) {
            for load in list("CODA_TEST_GROWTH_LOADS", &[0.5, 1.0, 2.0]) {
                let start = Instant::now();
                let f =
                    simulate(peers as usize, coordinators as usize, load, Duration::from_secs_f64(seconds));
                println!(
                    "{peers} | {coordinators} | {:.0} % | {} | {:.2} ({:.2}) | {:.2} | {:.2} {:.2} ({:.2} {:.2}) | {:.2} {:.2} | {:.2}..{:.2} | {} | {:.2} {:.1} | {:.3} {:.3} | {:.1} s",
                    load * 100.0,
                    f.jobs,
                    f.ended as f64 / seconds,
                    f.ended_ideally as f64 / seconds,
                    f.declined_per_job(),
                    percentile(&f.waits, 0.5),
                    percentile(&f.waits, 0.99),
                    percentile(&f.ideal_waits, 0.5),
                    percentile(&f.ideal_waits, 0.99),
                    percentile(&f.beyond, 0.5),
                    percentile(&f.beyond, 0.99),
                    f.by_coordinator[0],
                    f.by_coordinator[f.by_coordinator.len() - 1],
                    f.starved,
                    f.choosing.as_secs_f64() * 1e3 / f.jobs as f64,
                    f.looks as f64 / f.jobs as f64,
                    percentile(&f.planning, 0.5) * 1e3,
                    percentile(&f.planning, 0.99) * 1e3,
                    start.elapsed().as_secs_f64(),
                );
            }
        }
    }
}

#[test]
fn one_coordinator_is_nearly_ideal() {
    for (load, limit) in [(0.5, 2.5), (1.0, 2.5)] {
        let figures = simulate(10, 1, load, Duration::from_secs(60));
        assert!(figures.declined_per_job() < 10.0 && figures.starved == 0, "{figures:?}");
        assert!(percentile(&figures.beyond, 0.99) < limit, "{figures:?}");
    }
}

/// A block whose only candidates were being tried looked again without a pause, until the trial was over.
#[test]
fn a_block_that_finds_no_slot_waits_before_it_looks_again() {
    let figures = simulate(10, 10, 2.0, Duration::from_secs(30));
    assert_eq!(figures.starved, 0, "{figures:?}");
}

/// Every coordinator thought the same peer the best: at half of the load a job was declined 15 times.
#[test]
fn coordinators_do_not_all_ask_the_same_peers() {
    let figures = simulate(40, 20, 0.5, Duration::from_secs(30));
    assert!(figures.declined_per_job() < 4.0 && figures.starved == 0, "{figures:?}");
    assert!(percentile(&figures.beyond, 0.99) < 1.0, "{figures:?}");
}
