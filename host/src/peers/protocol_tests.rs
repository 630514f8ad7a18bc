use super::*;

const ME: &str = "12D3KooWthispeer";

struct Counter {
    total: usize,
    taken: usize,
    jobs_wait: bool,
    max_qubits: Option<u16>,
}

impl Counter {
    fn new(total: usize) -> Counter {
        Counter { total, taken: 0, jobs_wait: false, max_qubits: Some(10) }
    }
}

impl Slots for Counter {
    fn take(&mut self) -> Result<(), NoSlot> {
        if self.jobs_wait {
            return Err(NoSlot::JobsWait);
        }
        if self.taken == self.total {
            return Err(NoSlot::Full);
        }
        self.taken += 1;
        Ok(())
    }

    fn give(&mut self) {
        self.taken = self.taken.checked_sub(1).expect("a slot is given back once");
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
    }
}

fn owner(name: &str) -> String {
    format!("12D3KooWowner{name}")
}

fn at(elapsed_ms: u64) -> Now {
    Now { elapsed: Duration::from_millis(elapsed_ms), at: elapsed_ms as i64 * 1000 }
}

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
        idempotency_key: "0123456789abcdef".into(),
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

fn send(id: &str, execution: &str) -> DispatchRequest {
    DispatchRequest {
        execution_id: format!("execution-{execution}"),
        reservation_id: format!("reservation-{id}"),
        workflow_run_id: "workflow-1".into(),
        fragment_id: "block-s01-b01".into(),
        service_id: "hadamard".into(),
        input_payload: serde_json::json!({}),
        max_retries: 2,
        idempotency_key: "0123456789abcdef".into(),
        dispatched_at: String::new(),
    }
}

fn done(text: &str) -> Finish {
    Finish { answer: text.as_bytes().into(), error: None, seconds: 0.001, fidelity: Some(1.0) }
}

struct Bed {
    table: Table,
    slots: Counter,
    now: u64,
}

impl Bed {
    fn new(slots: usize) -> Bed {
        Bed { table: Table::new(limits(), 1), slots: Counter::new(slots), now: 0 }
    }

    fn prepare(&mut self, who: &str, id: &str) -> (String, String) {
        self.prepare_for(who, ask(id, 60))
    }

    fn prepare_for(&mut self, who: &str, request: PrepareRequest) -> (String, String) {
        let answer = self.table.prepare(at(self.now), &owner(who), &request, &mut self.slots);
        (answer.transition, answer.reason.unwrap_or_default())
    }

    fn commit(&mut self, who: &str, id: &str) -> String {
        self.table.commit(at(self.now), &owner(who), &commit(id), &mut self.slots).transition
    }

    fn cancel(&mut self, who: &str, id: &str) -> Option<String> {
        let (answer, stop) = self.table.cancel(at(self.now), &owner(who), &cancel(id), &mut self.slots);
        assert_eq!(answer.transition, "cancelled");
        stop
    }

    fn dispatch(&mut self, who: &str, id: &str, execution: &str) -> Dispatch {
        self.table.dispatch(at(self.now), &owner(who), &send(id, execution), &mut self.slots)
    }

    fn finish(&mut self, who: &str, execution: &str) {
        let execution = format!("execution-{execution}");
        self.table.finished(at(self.now), &owner(who), &execution, done("answer"), &mut self.slots);
    }
}

fn text(dispatch: Dispatch) -> String {
    match dispatch {
        Dispatch::Answer(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn declines_have_reasons() {
    let mut bed = Bed::new(1);
    let mut declined = |request: PrepareRequest, who: &str, part: &str| {
        let (transition, reason) = bed.prepare_for(who, request);
        assert!(transition == "rejected" && reason.contains(part), "{transition} {reason}");
    };
    declined(ask("1", 4), "a", "at least 5");
    declined(ask("1", i64::MAX), "a", "at most 300");
    declined(PrepareRequest { service_id: "no_such".into(), ..ask("1", 60) }, "a", "no_such");
    declined(PrepareRequest { estimated_qubits: 1000, ..ask("1", 60) }, "a", "1000 qubits");
    declined(ask("1", 60), "stranger", "lends nothing");
    assert_eq!(bed.prepare("a", "1").0, "accepted");
    assert_eq!(bed.prepare("a", "2"), ("rejected".into(), FULL.into()));
    bed.cancel("a", "1");
    bed.slots.jobs_wait = true;
    assert!(bed.prepare("a", "2").1.contains("cloud jobs wait"));
    bed.slots.jobs_wait = false;
    let bundle = PrepareRequest { service_id: BUNDLE.into(), ..ask("3", 60) };
    assert_eq!(bed.prepare_for("a", bundle).0, "accepted");
    let mut no_states = Bed::new(1);
    no_states.slots.max_qubits = None;
    assert!(no_states.prepare("a", "1").1.contains("evolve_state"));
}

#[test]
fn strangers_leave_no_trace() {
    let mut bed = Bed::new(1);
    bed.prepare("stranger", "1");
    bed.dispatch("stranger", "1", "1");
    assert!(bed.table.notes().is_empty() && bed.table.kept.is_empty());
}

#[test]
fn a_hold_lasts_its_whole_ttl_and_not_a_part_of_a_millisecond_less() {
    let mut bed = Bed::new(1);
    let late = |ms: u64| Now { elapsed: Duration::from_micros(ms * 1_000 + 900), ..at(ms) };
    let prepare = |bed: &mut Bed, now: Now, id: &str| {
        bed.table.prepare(now, &owner("a"), &ask(id, 5), &mut bed.slots).transition
    };
    assert_eq!(prepare(&mut bed, late(1_000), "1"), "accepted");
    assert_eq!(prepare(&mut bed, at(6_000), "2"), "rejected");
    assert_eq!(prepare(&mut bed, late(6_000), "3"), "accepted");
}

#[test]
fn a_commit_does_not_extend_the_ttl_and_expiry_has_one_winner() {
    let mut bed = Bed::new(1);
    bed.prepare_for("a", ask("1", 5));
    bed.now = 4_999;
    assert_eq!(bed.commit("a", "1"), "committed");
    bed.now = 5_000;
    assert!(text(bed.dispatch("a", "1", "1")).contains(NOT_COMMITTED));
    assert_eq!(bed.commit("a", "1"), "rejected");
    assert_eq!(bed.prepare("b", "2").0, "accepted", "the slot is free");
    let kinds: Vec<&str> = bed.table.notes().iter().flat_map(|n| &n.facts).map(Fact::kind).collect();
    assert_eq!(kinds, ["requested", "accepted", "committed", "hold_released", "requested", "accepted"]);
}

#[test]
fn a_running_dispatch_keeps_its_slot_until_it_ends() {
    let mut bed = Bed::new(1);
    bed.prepare_for("a", ask("1", 5));
    bed.commit("a", "1");
    assert!(matches!(bed.dispatch("a", "1", "1"), Dispatch::Run));
    assert!(matches!(bed.dispatch("a", "1", "1"), Dispatch::Wait));
    assert!(text(bed.dispatch("a", "1", "2")).contains(NOT_COMMITTED), "it is used up");
    bed.now = 60_000;
    assert_eq!(bed.prepare("b", "2").0, "rejected", "the plugin still has it");
    assert_eq!(bed.cancel("b", "1"), None);
    assert_eq!(bed.cancel("a", "1").as_deref(), Some("execution-1"));
    bed.finish("a", "1");
    assert_eq!(text(bed.dispatch("a", "9", "1")), "answer", "kept, whatever else the request says");
    assert_eq!(bed.prepare("b", "2").0, "accepted");
}

#[test]
fn a_slow_device_declines_what_takes_too_long() {
    let mut bed = Bed::new(1);
    bed.prepare("a", "1");
    bed.commit("a", "1");
    bed.dispatch("a", "1", "1");
    let slow = Finish { seconds: 6.0, ..done("slow") };
    bed.table.finished(at(0), &owner("a"), "execution-1", slow, &mut bed.slots);
    let bigger = PrepareRequest { estimated_qubits: 4, ..ask("2", 60) };
    let (transition, reason) = bed.prepare_for("a", bigger);
    assert!(transition == "rejected" && reason.contains("about 24 s"), "{reason}");
    assert_eq!(bed.prepare("a", "3").0, "accepted", "6 s are fine");
}

#[test]
fn kept_answers_are_bounded() {
    let mut bed = Bed::new(1);
    for n in 0..KEPT_ANSWERS * 2 {
        bed.dispatch("a", "none", &format!("{n:08}"));
    }
    let kept = &bed.table.kept[&owner("a")];
    assert_eq!((kept.order.len(), kept.executions.len()), (KEPT_ANSWERS, KEPT_ANSWERS));
    let bytes: usize = kept
        .executions
        .values()
        .map(|e| match e {
            Execution::Done(a) => a.len(),
            Execution::Running => 0,
        })
        .sum();
    assert_eq!(kept.bytes, bytes);
}

#[path = "protocol_model.rs"]
mod model;
