use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const ME: &str = "12D3KooWthispeer";

/// Counts leases, and checks that never more are out than there are slots.
struct Counter {
    total: usize,
    out: Rc<Cell<usize>>,
    jobs_wait: bool,
    max_qubits: Option<u16>,
}

/// A slot of the counter, given back when it is dropped.
#[derive(Debug)]
struct CountedLease(Rc<Cell<usize>>);

impl Drop for CountedLease {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Counter {
    fn new(total: usize) -> Counter {
        Counter { total, out: Rc::default(), jobs_wait: false, max_qubits: Some(10) }
    }
}

impl Slots for Counter {
    type Lease = CountedLease;

    fn try_acquire(&self) -> Result<CountedLease, NoSlot> {
        if self.jobs_wait {
            return Err(NoSlot::JobsWait);
        }
        if self.out.get() == self.total {
            return Err(NoSlot::Full);
        }
        self.out.set(self.out.get() + 1);
        Ok(CountedLease(self.out.clone()))
    }

    fn max_qubits(&self) -> Option<u16> {
        self.max_qubits
    }
}

fn limits() -> PeerLimits {
    PeerLimits {
        peer_id: ME.into(),
        allow: Allow::Listed(["a", "b"].map(|p| format!("12D3KooWowner{p}")).into()),
        services: vec!["hadamard".into()],
        max_ttl_seconds: 300,
        max_slots: 4,
        max_per_peer: 4,
        max_seconds: 12.0,
        max_operations: None,
    }
}

fn owner(name: &str) -> String {
    format!("12D3KooWowner{name}")
}

fn at(elapsed_ms: u64) -> PeerTime {
    PeerTime { elapsed: Duration::from_millis(elapsed_ms), at: elapsed_ms as i64 * 1000 }
}

/// Every prepare has its own key.
static KEYS: AtomicU64 = AtomicU64::new(0);

fn ask(id: &str, ttl: i64) -> PrepareRequest {
    PrepareRequest {
        reservation_id: format!("reservation-{id}"),
        workflow_run_id: "workflow-1".into(),
        fragment_id: "block-s01-b01".into(),
        requesting_peer_id: "12D3KooWsomebody".into(),
        service_id: "hadamard".into(),
        estimated_qubits: 2,
        estimated_depth: 3,
        priority: 0,
        ttl_seconds: ttl,
        idempotency_key: format!("key-{:012}", KEYS.fetch_add(1, Ordering::Relaxed)),
        sent_at: String::new(),
    }
}

fn commit(id: &str) -> CommitRequest {
    CommitRequest {
        reservation_id: format!("reservation-{id}"),
        workflow_run_id: "workflow-1".into(),
        fragment_id: "block-s01-b01".into(),
        sent_at: String::new(),
    }
}

fn cancel(id: &str) -> CancelRequest {
    CancelRequest { reservation_id: format!("reservation-{id}"), reason: None, sent_at: String::new() }
}

fn send(id: &str, execution: &str) -> DispatchHead {
    DispatchHead {
        execution_id: format!("execution-{execution}"),
        reservation_id: format!("reservation-{id}"),
        workflow_run_id: "workflow-1".into(),
        fragment_id: "block-s01-b01".into(),
        service_id: "hadamard".into(),
        input_payload: EmptyObject {},
        max_retries: 2,
        idempotency_key: "0123456789abcdef".into(),
        dispatched_at: String::new(),
    }
}

fn done(text: &str) -> ExecutionEnd {
    ExecutionEnd {
        answer: text.as_bytes().into(),
        error: None,
        seconds: 0.001,
        work: 12.0,
        fidelity: Some(1.0),
    }
}

struct TestPeer {
    table: ReservationTable<CountedLease>,
    slots: Counter,
    now: u64,
    /// Leases of executions, by owner and execution.
    executing: HashMap<(String, String), CountedLease>,
}

impl TestPeer {
    fn new(slots: usize) -> TestPeer {
        TestPeer {
            table: ReservationTable::new(limits(), 1),
            slots: Counter::new(slots),
            now: 0,
            executing: HashMap::new(),
        }
    }

    fn prepare(&mut self, who: &str, id: &str) -> (String, String) {
        self.prepare_for(who, ask(id, 60))
    }

    fn prepare_for(&mut self, who: &str, request: PrepareRequest) -> (String, String) {
        let answer = self.table.prepare(at(self.now), &owner(who), &request, &self.slots);
        (answer.transition.name().into(), answer.reason.unwrap_or_default())
    }

    fn commit(&mut self, who: &str, id: &str) -> String {
        self.table.commit(at(self.now), &owner(who), &commit(id)).transition.name().into()
    }

    fn cancel(&mut self, who: &str, id: &str) -> Option<String> {
        let (answer, stop) = self.table.cancel(at(self.now), &owner(who), &cancel(id));
        assert_eq!(answer.transition.name(), "cancelled");
        stop
    }

    /// Keeps the lease of an execution that is to be run.
    fn dispatch(&mut self, who: &str, id: &str, execution: &str) -> Dispatch<()> {
        match self.table.dispatch(at(self.now), &owner(who), &send(id, execution)) {
            Dispatch::Run(lease) => {
                let key = (owner(who), format!("execution-{execution}"));
                assert!(self.executing.insert(key, lease).is_none(), "an execution runs once");
                Dispatch::Run(())
            }
            Dispatch::Answer(answer) => Dispatch::Answer(answer),
            Dispatch::Wait => Dispatch::Wait,
        }
    }

    fn finish(&mut self, who: &str, execution: &str) {
        self.finish_with(who, execution, done("answer"));
    }

    fn finish_with(&mut self, who: &str, execution: &str, finish: ExecutionEnd) {
        let execution = format!("execution-{execution}");
        let lease = self.executing.remove(&(owner(who), execution.clone())).expect("it runs");
        self.table.finished(at(self.now), &owner(who), &execution, finish, lease);
    }
}

fn text(dispatch: Dispatch<()>) -> String {
    match dispatch {
        Dispatch::Answer(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn declines_have_reasons() {
    let mut peer = TestPeer::new(1);
    let mut declined = |request: PrepareRequest, who: &str, part: &str| {
        let (transition, reason) = peer.prepare_for(who, request);
        assert!(transition == "rejected" && reason.contains(part), "{transition} {reason}");
    };
    declined(ask("1", 4), "a", "at least 5");
    declined(ask("1", i64::MAX), "a", "at most 300");
    declined(PrepareRequest { service_id: "no_such".into(), ..ask("1", 60) }, "a", "no_such");
    declined(PrepareRequest { estimated_qubits: 1000, ..ask("1", 60) }, "a", "1000 qubits");
    declined(ask("1", 60), "stranger", "lends nothing");
    assert_eq!(peer.prepare("a", "1").0, "accepted");
    assert_eq!(peer.prepare("a", "2"), ("rejected".into(), FULL.into()));
    peer.cancel("a", "1");
    peer.slots.jobs_wait = true;
    assert!(peer.prepare("a", "2").1.contains("cloud jobs wait"));
    peer.slots.jobs_wait = false;
    let bundle = PrepareRequest { service_id: BUNDLE.into(), ..ask("3", 60) };
    assert_eq!(peer.prepare_for("a", bundle).0, "accepted");
    let mut no_states = TestPeer::new(1);
    no_states.slots.max_qubits = None;
    assert!(no_states.prepare("a", "1").1.contains("evolve_state"));
}

#[test]
fn strangers_leave_no_trace() {
    let mut peer = TestPeer::new(1);
    peer.prepare("stranger", "1");
    peer.dispatch("stranger", "1", "1");
    assert!(peer.table.notes().is_empty() && peer.table.kept.is_empty());
}

#[test]
fn a_reservation_lasts_its_whole_ttl_and_not_a_part_of_a_millisecond_less() {
    let mut peer = TestPeer::new(1);
    let late = |ms: u64| PeerTime { elapsed: Duration::from_micros(ms * 1_000 + 900), ..at(ms) };
    let prepare = |peer: &mut TestPeer, now: PeerTime, id: &str| {
        peer.table.prepare(now, &owner("a"), &ask(id, 5), &peer.slots).transition.name().to_string()
    };
    assert_eq!(prepare(&mut peer, late(1_000), "1"), "accepted");
    assert_eq!(prepare(&mut peer, at(6_000), "2"), "rejected");
    assert_eq!(prepare(&mut peer, late(6_000), "3"), "accepted");
}

#[test]
fn a_commit_does_not_extend_the_ttl_and_expiry_has_one_winner() {
    let mut peer = TestPeer::new(1);
    peer.prepare_for("a", ask("1", 5));
    peer.now = 4_999;
    assert_eq!(peer.commit("a", "1"), "committed");
    peer.now = 5_000;
    assert!(text(peer.dispatch("a", "1", "1")).contains(NOT_COMMITTED));
    assert_eq!(peer.commit("a", "1"), "rejected");
    assert_eq!(peer.prepare("b", "2").0, "accepted", "the slot is free");
    let kinds: Vec<&str> = peer.table.notes().iter().flat_map(|n| &n.facts).map(Fact::kind).collect();
    assert_eq!(kinds, ["requested", "accepted", "committed", "hold_released", "requested", "accepted"]);
}

#[test]
fn a_running_dispatch_keeps_its_slot_until_it_ends() {
    let mut peer = TestPeer::new(1);
    peer.prepare_for("a", ask("1", 5));
    peer.commit("a", "1");
    assert!(matches!(peer.dispatch("a", "1", "1"), Dispatch::Run(())));
    assert!(matches!(peer.dispatch("a", "1", "1"), Dispatch::Wait));
    assert!(text(peer.dispatch("a", "1", "2")).contains(NOT_COMMITTED), "it is used up");
    peer.now = 60_000;
    assert_eq!(peer.prepare("b", "2").0, "rejected", "the plugin still has it");
    assert_eq!(peer.cancel("b", "1"), None);
    assert_eq!(peer.cancel("a", "1").as_deref(), Some("execution-1"));
    peer.finish("a", "1");
    assert_eq!(text(peer.dispatch("a", "9", "1")), "answer", "kept, whatever else the request says");
    assert_eq!(peer.prepare("b", "2").0, "accepted");
}

#[test]
fn a_slow_device_declines_what_takes_too_long() {
    let mut peer = TestPeer::new(1);
    peer.prepare("a", "1");
    peer.commit("a", "1");
    peer.dispatch("a", "1", "1");
    let slow = ExecutionEnd { seconds: 6.0, ..done("slow") };
    peer.finish_with("a", "1", slow);
    let bigger = PrepareRequest { estimated_qubits: 4, ..ask("2", 60) };
    let (transition, reason) = peer.prepare_for("a", bigger);
    assert!(transition == "rejected" && reason.contains("about 24 s"), "{reason}");
    assert_eq!(peer.prepare("a", "3").0, "accepted", "6 s are fine");
}

#[test]
fn two_owners_may_use_the_same_ids() {
    let mut peer = TestPeer::new(2);
    for who in ["a", "b"] {
        assert_eq!(peer.prepare(who, "1").0, "accepted", "{who}");
        assert_eq!(peer.commit(who, "1"), "committed", "{who}");
        assert!(matches!(peer.dispatch(who, "1", "1"), Dispatch::Run(())), "{who}");
    }
    assert_eq!(peer.slots.out.get(), 2, "each has its own slot");
    assert_eq!(peer.cancel("a", "1").as_deref(), Some("execution-1"));
    peer.finish_with("a", "1", done("of a"));
    assert_eq!(peer.slots.out.get(), 1, "the other one goes on");
    assert!(matches!(peer.dispatch("b", "1", "1"), Dispatch::Wait));
    peer.finish_with("b", "1", done("of b"));
    assert_eq!(text(peer.dispatch("a", "1", "1")), "of a");
    assert_eq!(text(peer.dispatch("b", "1", "1")), "of b");
}

#[test]
fn an_execution_may_not_be_larger_than_its_estimate_could_be() {
    let mut peer = TestPeer::new(1);
    assert!(peer.table.execution_limit().check(1, 1e12).is_ok(), "nothing was measured yet");
    peer.prepare("a", "1");
    peer.commit("a", "1");
    peer.dispatch("a", "1", "1");
    // Half a second for each amplitude and operation, whatever was estimated.
    peer.finish_with("a", "1", ExecutionEnd { seconds: 6.0, work: 12.0, ..done("slow") });
    let limit = peer.table.execution_limit();
    assert!(limit.check(1, 24.0).is_ok());
    assert!(limit.check(1, 25.0).unwrap_err().to_string().contains("at most 12 s"));
}

#[test]
fn a_slot_is_free_only_after_the_end_of_its_execution_is_recorded() {
    let mut peer = TestPeer::new(1);
    peer.prepare("a", "1");
    peer.commit("a", "1");
    peer.dispatch("a", "1", "1");
    assert_eq!(peer.slots.out.get(), 1, "the execution has the lease, not a second one");
    assert_eq!(peer.table.load(), PeerLoad { reservations: 0, executions: 1 });
    peer.table.notes();
    peer.finish("a", "1");
    assert_eq!(peer.slots.out.get(), 0);
    let kinds: Vec<&str> = peer.table.notes().iter().flat_map(|n| &n.facts).map(Fact::kind).collect();
    assert!(kinds.contains(&"hold_released"), "{kinds:?}");
}

#[test]
fn a_peer_that_goes_gives_every_slot_back() {
    let mut peer = TestPeer::new(2);
    peer.prepare("a", "1");
    peer.prepare("b", "2");
    let TestPeer { table, slots, .. } = peer;
    assert_eq!(slots.out.get(), 2);
    drop(table);
    assert_eq!(slots.out.get(), 0);
}

#[path = "protocol_model.rs"]
mod model;

#[test]
fn a_used_key_returns_the_first_reservation_and_takes_no_slot() {
    let mut peer = TestPeer::new(2);
    let mut first = ask("01", 5);
    first.idempotency_key = "the-same-key".into();
    let again = PrepareRequest { reservation_id: "reservation-02".into(), ..first.clone() };
    assert_eq!(peer.prepare_for("a", first.clone()).0, "accepted");
    let (owner, now) = (format!("12D3KooWowner{}", "a"), at(peer.now));
    let answer = peer.table.prepare(now, &owner, &again, &peer.slots);
    assert_eq!(answer.reservation_id, first.reservation_id);
    assert_eq!((answer.transition, peer.table.load().reservations), (Transition::Accepted.into(), 1));
    // Keys of different owners don't meet.
    assert_eq!(peer.prepare_for("b", again.clone()).0, "accepted");
    peer.now += 6_000;
    let answer = peer.table.prepare(at(peer.now), &owner, &again, &peer.slots);
    assert_eq!((answer.transition, peer.table.load().reservations), (Transition::Expired.into(), 0));
}
