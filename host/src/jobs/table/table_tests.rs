//! Single paths through the table, each by name; every combination is the model's.

use coda_plugin_abi::{Outcome, Program, Target};

use super::*;
use crate::jobs::admission::JobRecord;
use crate::jobs::message::{Envelope, Message, Work};
use crate::results::delivery::DeliveryOutcome;
use crate::state::db::{DeadLetter, JobFacts, ResultRow, Status};

/// A table and the effects of its last event.
struct Fixture {
    table: JobTable,
    elapsed: Duration,
    effects: Vec<Effect>,
}

/// One retry after a second.
const RULE: RetryRule = RetryRule {
    max: 1,
    window: Duration::from_secs(60),
    pause: Duration::from_secs(1),
    longest_pause: Duration::from_secs(60),
};

fn id(ms: u64) -> MessageId {
    MessageId { ms, seq: 0 }
}

fn envelope(job: &str) -> Envelope {
    Envelope { job_id: job.into(), callback_url: "http://h/".into(), origin: "http://h".into() }
}

fn work(qubits: u16) -> Work {
    let ir = format!(
        r#"{{"version":"1.0","target":"cz","num_qubits":{qubits},"gates":[],"measurements":[0],
            "metadata":{{"source_hash":"h","compiled_at":"2026-01-01T00:00:00Z"}}}}"#
    );
    Work { program: Arc::new(Program::parse(ir.as_bytes()).unwrap()), shots: 1 }
}

fn device(qubits: u16) -> Arc<Device> {
    Arc::new(Device::new("d", qubits, [Target::Cz]))
}

fn stored(message_id: MessageId, job: &str, status: Status) -> StoredResult {
    let row = ResultRow {
        message_id,
        job_id: job.into(),
        callback_url: "http://h/".into(),
        status,
        error: (status == Status::Failed).then(|| "cold".into()),
        finished_at: "t".into(),
        replaces: None,
        facts: JobFacts::default(),
        body: bytes::Bytes::from_static(b"{}"),
    };
    StoredResult { body_bytes: row.body.len(), row, origin: "http://h".into(), attempts: 0 }
}

fn answer() -> Result<Outcome, coda_plugin_abi::Error> {
    Ok(Outcome::from_counts([("0".to_string(), 1)]))
}

impl Fixture {
    fn new() -> Fixture {
        Fixture::with_deaths(&[])
    }

    fn with_deaths(deaths: &[(MessageId, u32)]) -> Fixture {
        let table = JobTable::new(TableSettings {
            slots: 2,
            max_parked: 2,
            max_held_bytes: 1000,
            retry: Duration::from_secs(1),
            runs_again: RULE,
            device: device(3),
            limits: SiteLimits::default(),
            estimate: RunEstimate::default(),
            deaths: deaths.iter().copied().collect(),
            answered: KeptAnswers::new(),
        });
        Fixture { table, elapsed: Duration::ZERO, effects: Vec::new() }
    }

    fn on(&mut self, event: Event) -> &mut Fixture {
        let now = Now { elapsed: self.elapsed, at: OffsetDateTime::UNIX_EPOCH + self.elapsed };
        self.effects = self.table.on(now, event);
        let faults: Vec<String> = self.table.faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults, [""; 0], "the table met an event that it has no use for");
        self
    }

    fn claim(&mut self, ids: &[u64]) {
        let messages = ids.iter().map(|ms| Message { id: id(*ms), fields: Vec::new() }).collect();
        self.on(Event::Claimed { messages, origin: ClaimOrigin::New });
    }

    fn checked(&mut self, ticket: Ticket, job: &str, verdict: Verdict) -> &mut Fixture {
        let subject = Subject::Parsed(envelope(job), Err("as before".into()));
        self.on(Event::Checked {
            ticket,
            outcome: CheckOutcome::Answerable { envelope: envelope(job), verdict, subject, replaces: None },
        })
    }

    /// Claims message `ms` as the table's next ticket and lets it run in slot 0.
    fn run(&mut self, ms: u64, ticket: Ticket, job: &str) {
        self.claim(&[ms]);
        self.checked(ticket, job, Verdict::Run(work(2)));
        assert_eq!(self.submitted(), [ticket]);
        self.on(Event::Started { slot: 0, tickets: vec![ticket] });
    }

    /// To the point where the result is on disk and the cancel key is being read.
    fn store(&mut self, ms: u64, ticket: Ticket, job: &str, status: Status) -> &mut Fixture {
        self.on(Event::Answered { slot: 0, ticket, answer: answer() });
        assert!(self.has(|e| matches!(e, Effect::Store { .. })));
        self.on(Event::Stored { ticket, result: stored(id(ms), job, status) });
        assert!(self.has(|e| matches!(e, Effect::ReadCancelKey { .. })));
        self
    }

    fn has(&self, is: impl Fn(&Effect) -> bool) -> bool {
        self.effects.iter().any(is)
    }

    fn submitted(&self) -> Vec<Ticket> {
        let jobs = self.effects.iter().filter_map(|e| match e {
            Effect::Submit(jobs) => Some(jobs),
            _ => None,
        });
        jobs.flatten().map(|job| job.ticket).collect()
    }

    /// The statuses that are acknowledged, with `none` for an acknowledgement alone.
    fn acknowledged(&self) -> Vec<&'static str> {
        let status = |effect: &Effect| match effect {
            Effect::Acknowledge { status: None, .. } => Some("none"),
            Effect::Acknowledge { status: Some((_, TerminalStatus::Cancelled { .. })), .. } => {
                Some("cancelled")
            }
            Effect::Acknowledge { status: Some((_, TerminalStatus::Ended(end))), .. } => {
                Some(end.status.name())
            }
            _ => None,
        };
        self.effects.iter().filter_map(status).collect()
    }

    fn permits(&self) -> usize {
        let returned = self.effects.iter().map(|e| match e {
            Effect::ReturnPermits(n) => *n,
            _ => 0,
        });
        returned.sum()
    }

    fn is_empty(&self) -> bool {
        self.table.jobs.is_empty() && self.table.by_message.is_empty()
    }
}

#[test]
fn a_job_goes_its_way_from_the_claim_to_the_acknowledgement() {
    let mut f = Fixture::new();
    f.claim(&[1]);
    f.checked(0, "J", Verdict::Run(work(2)));
    assert_eq!(f.submitted(), [0]);
    f.on(Event::Started { slot: 1, tickets: vec![0] });
    assert_eq!((f.permits(), f.table.status().slots_busy), (1, 1));
    assert_eq!(f.table.status().current, Some((0, "J".into())));
    f.on(Event::Answered { slot: 1, ticket: 0, answer: answer() });
    assert_eq!(f.table.status().slots_busy, 0, "the slot is free the moment the run returns");
    f.on(Event::Stored { ticket: 0, result: stored(id(1), "J", Status::Completed) });
    f.on(Event::CancelKeyRead { ticket: 0, cancelled: Ok(false) });
    assert!(
        f.has(|e| matches!(e, Effect::WriteStatus { .. })) && !f.has(|e| matches!(e, Effect::Deliver(_)))
    );
    f.on(Event::StatusWritten { ticket: 0, written: true });
    assert!(f.has(|e| matches!(e, Effect::Deliver(_))) && f.acknowledged().is_empty());
    f.on(Event::Delivered { message_id: id(1), outcome: DeliveryOutcome::Accepted });
    assert_eq!(f.acknowledged(), ["none"], "acknowledged last");
    f.on(Event::Acknowledged { ticket: 0 });
    assert!(f.is_empty() && f.table.status().last_success.is_some());
}

fn cancelled(cancelled: Vec<Ticket>) -> Event {
    Event::CancelKeysRead { cancelled, error: None }
}

#[test]
fn keys_that_can_not_be_read_are_told_and_hide_no_other_cancel() {
    let mut f = Fixture::new();
    f.run(1, 0, "J");
    for _ in 0..3 {
        f.on(Event::CancelKeysRead { cancelled: Vec::new(), error: Some("MOVED".into()) });
    }
    assert!(!f.has(|e| matches!(e, Effect::CancelRun(0))));
    assert_eq!(f.table.status().cancel_error.as_deref(), Some("MOVED"));
    f.on(Event::CancelKeysRead { cancelled: vec![0], error: Some("MOVED".into()) });
    assert!(f.has(|e| matches!(e, Effect::CancelRun(0))));
    f.on(Event::CancelPoll);
    assert_eq!(f.table.status().cancel_error, None, "nothing is left to ask for");
}

#[test]
fn a_cancel_wins_before_the_decision_and_is_ignored_after_it() {
    let poll = cancelled(vec![0]);
    // Queued behind a message that is still being checked.
    let mut f = Fixture::new();
    f.claim(&[1, 2]);
    f.checked(1, "K", Verdict::Run(work(2)));
    f.on(cancelled(vec![1]));
    assert_eq!((f.acknowledged(), f.permits()), (vec!["cancelled"], 1));

    // With the executor: it gives the job back, or a slot was quicker.
    for withdrawn in [true, false] {
        let mut f = Fixture::new();
        f.claim(&[1]);
        f.checked(0, "J", Verdict::Run(work(2)));
        f.on(cancelled(vec![0]));
        assert!(f.has(|e| matches!(e, Effect::Withdraw(0))));
        f.on(Event::Withdrawn { ticket: 0, withdrawn });
        if !withdrawn {
            f.on(Event::Started { slot: 0, tickets: vec![0] });
            assert!(f.has(|e| matches!(e, Effect::CancelRun(0))));
        }
        assert_eq!(f.acknowledged(), ["cancelled"]);
    }

    // In the plugin: told once, acknowledged at once, the answer is dropped.
    let mut f = Fixture::new();
    f.run(1, 0, "J");
    f.on(cancelled(vec![0]));
    assert!(f.has(|e| matches!(e, Effect::CancelRun(0))));
    assert_eq!(f.acknowledged(), ["cancelled"]);
    f.on(cancelled(vec![0]));
    assert!(f.effects.is_empty(), "the plugin is told once");
    f.on(Event::Acknowledged { ticket: 0 });
    assert_eq!(f.table.status().slots_busy, 1, "the slot stays taken until the run returns");
    f.on(Event::Answered { slot: 0, ticket: 0, answer: answer() });
    assert!(f.is_empty() && !f.has(|e| matches!(e, Effect::Store { .. })));

    // On disk: the last look at the key.
    let mut f = Fixture::new();
    f.run(1, 0, "J");
    f.store(1, 0, "J", Status::Completed).on(Event::CancelKeyRead { ticket: 0, cancelled: Ok(true) });
    assert!(f.has(|e| matches!(e, Effect::Discard { .. })) && f.acknowledged().is_empty());
    f.on(Event::Discarded { ticket: 0, discarded: Ok(()) });
    assert_eq!(f.acknowledged(), ["cancelled"]);

    // Decided: the poll does not ask any more, and a late answer of it changes nothing.
    let mut f = Fixture::new();
    f.run(1, 0, "J");
    f.store(1, 0, "J", Status::Completed).on(Event::CancelKeyRead { ticket: 0, cancelled: Ok(false) });
    f.on(poll);
    assert!(f.effects.is_empty());
    f.on(Event::CancelPoll);
    assert!(!f.has(|e| matches!(e, Effect::ReadCancelKeys(_))));
}

#[test]
fn a_second_message_with_a_job_id_waits_until_the_first_has_its_terminal_state() {
    // Whatever its verdict is: a malformed one must not tell the cloud `failed` while the first one runs.
    for verdict in [Verdict::Run(work(2)), Verdict::Fail("malformed".into()), Verdict::Cancelled] {
        let mut f = Fixture::new();
        f.run(1, 0, "J");
        f.claim(&[2]);
        f.checked(1, "J", verdict);
        assert_eq!((f.permits(), f.submitted(), f.acknowledged()), (1, vec![], vec![]));
        assert!(!f.has(|e| matches!(e, Effect::Store { .. })));
        f.store(1, 0, "J", Status::Completed).on(Event::CancelKeyRead { ticket: 0, cancelled: Ok(false) });
        assert!(!f.has(|e| matches!(e, Effect::Check(_))), "its state is not written yet");
        f.on(Event::StatusWritten { ticket: 0, written: true });
        assert!(f.has(|e| matches!(e, Effect::Check(again) if again[0].ticket == 1)));
        f.checked(1, "J", Verdict::Duplicate);
        assert_eq!(f.acknowledged(), ["none"]);
    }
}

#[test]
fn messages_beyond_the_bound_of_parked_ones_stay_pending() {
    let mut f = Fixture::new();
    f.run(1, 0, "J");
    f.claim(&[2, 3, 4]);
    for ticket in 1..=3 {
        f.checked(ticket, "J", Verdict::Run(work(2)));
    }
    assert_eq!((f.table.status().parked, f.acknowledged().len()), (2, 0));
    assert_eq!(f.table.not_held(vec![id(2), id(3), id(4)]), [id(4)], "the pending list brings it back");
}

#[test]
fn without_redis_the_decision_is_noted_on_disk_and_the_state_goes_with_the_acknowledgement() {
    let mut f = Fixture::new();
    f.run(1, 0, "J");
    f.store(1, 0, "J", Status::Failed).on(Event::CancelKeyRead { ticket: 0, cancelled: Err("down".into()) });
    assert!(f.has(|e| matches!(e, Effect::MarkAnnounced { .. })));
    f.on(Event::Marked { ticket: 0, marked: Ok(()) });
    assert!(f.has(|e| matches!(e, Effect::Deliver(_))));
    f.on(Event::Delivered { message_id: id(1), outcome: DeliveryOutcome::Refused });
    assert!(f.acknowledged().is_empty(), "the status may be another message's by now");
    f.on(Event::RecordRead { ticket: 0, record: Ok(JobRecord::default()) });
    assert_eq!(f.acknowledged(), ["failed"]);
}

/// Found by the model: a failure of another message wrote over `completed`, and the job ran again.
#[test]
fn a_completed_job_stays_completed() {
    let recovered = |f: &mut Fixture, ms, status| {
        let result = stored(id(ms), "J", status);
        f.on(Event::Recovered(RecoveredResult { result, announced: true }));
    };
    let delivered = |ms| Event::Delivered { message_id: id(ms), outcome: DeliveryOutcome::Accepted };

    // Completed by a message whose result is delivered in the same process.
    let mut f = Fixture::new();
    recovered(&mut f, 1, Status::Failed);
    recovered(&mut f, 2, Status::Completed);
    f.claim(&[3]);
    f.checked(2, "J", Verdict::Run(work(2)));
    f.on(delivered(1));
    assert_eq!(f.acknowledged(), ["none"]);
    f.on(Event::Acknowledged { ticket: 0 });
    assert!(!f.has(|e| matches!(e, Effect::Check(_))), "the other result is still to be settled");
    f.on(delivered(2));
    assert_eq!(f.acknowledged(), ["completed"]);
    f.on(Event::Acknowledged { ticket: 1 });
    assert!(f.has(|e| matches!(e, Effect::Check(_))));

    // Completed in an earlier process; Redis is asked, again when it is away.
    let mut f = Fixture::new();
    recovered(&mut f, 1, Status::Failed);
    f.on(delivered(1));
    f.on(Event::RecordRead { ticket: 0, record: Err("down".into()) });
    f.elapsed = f.table.next_wake().unwrap();
    f.on(Event::Tick);
    assert!(f.has(|e| matches!(e, Effect::ReadRecord { .. })));
    let record =
        JobRecord { state: Some("completed".into()), message_id: Some(id(2).to_string()), cancelled: false };
    f.on(Event::RecordRead { ticket: 0, record: Ok(record) });
    assert_eq!(f.acknowledged(), ["none"]);
}

/// Found by the model: the cancel of a resubmission dropped the undelivered failure of the first message.
#[test]
fn after_a_restart_the_cancel_of_a_resubmission_leaves_the_earlier_result() {
    let mut f = Fixture::new();
    let result = stored(id(1), "J", Status::Failed);
    f.on(Event::Recovered(RecoveredResult { result, announced: false }));
    let record =
        JobRecord { state: Some("cancelled".into()), message_id: Some(id(2).to_string()), cancelled: true };
    f.on(Event::RecordRead { ticket: 0, record: Ok(record) });
    assert!(f.has(|e| matches!(e, Effect::Deliver(_))) && !f.has(|e| matches!(e, Effect::Discard { .. })));
}

/// Found by the model: with Redis away for one moment of a restart, a cancel won over an announced result.
#[test]
fn after_a_restart_a_decision_that_can_not_be_read_is_final() {
    let mut f = Fixture::new();
    let result = stored(id(1), "J", Status::Completed);
    f.on(Event::Recovered(RecoveredResult { result, announced: false }));
    f.on(Event::RecordRead { ticket: 0, record: Err("down".into()) });
    assert!(f.has(|e| matches!(e, Effect::MarkAnnounced { .. })));
    assert!(!f.has(|e| matches!(e, Effect::ReadCancelKey { .. })));
}

#[test]
fn while_results_can_not_be_stored_nothing_new_runs() {
    let mut f = Fixture::new();
    f.run(1, 0, "J");
    f.claim(&[2, 3]);
    f.checked(1, "K", Verdict::Run(work(2)));
    f.on(Event::Answered { slot: 0, ticket: 0, answer: answer() });
    let result = stored(id(1), "J", Status::Completed);
    f.on(Event::StoreFailed { ticket: 0, result, error: "disk full".into() });
    assert!(f.has(|e| matches!(e, Effect::Withdraw(1))), "what waits is taken back");
    assert_eq!(f.table.status().store_error.as_deref(), Some("disk full"));
    f.on(Event::Withdrawn { ticket: 1, withdrawn: true });
    f.checked(2, "L", Verdict::Run(work(2)));
    assert_eq!(f.submitted(), [0; 0]);

    f.elapsed = Duration::from_millis(999);
    f.on(Event::Tick);
    assert!(f.effects.is_empty(), "not before its time");
    f.elapsed = f.table.next_wake().unwrap();
    f.on(Event::Tick);
    assert!(f.has(|e| matches!(e, Effect::Store { result: Unstored::Row(_), .. })));
    f.on(Event::Stored { ticket: 0, result: stored(id(1), "J", Status::Completed) });
    assert_eq!(f.submitted(), [1, 2], "in the order of the stream");
    assert_eq!(f.table.status().store_error, None);
}

#[test]
fn nothing_new_runs_while_writes_of_others_to_the_store_fail() {
    let mut f = Fixture::new();
    f.on(Event::StoreChanged { error: Some("database is locked".into()) });
    f.claim(&[1]);
    f.checked(0, "J", Verdict::Run(work(2)));
    assert_eq!(f.table.status().store_error.as_deref(), Some("database is locked"));
    assert_eq!(f.submitted(), [0; 0]);
    f.on(Event::StoreChanged { error: None });
    assert_eq!(f.submitted(), [0]);
    assert_eq!(f.table.status().store_error, None);
}

#[test]
fn what_fails_on_disk_is_tried_again_and_not_acknowledged() {
    let mut f = Fixture::new();
    f.claim(&[1]);
    let outcome = CheckOutcome::Unanswerable { reason: "no callback".into(), fields: "{}".into() };
    f.on(Event::Checked { ticket: 0, outcome });
    f.on(Event::Buried { ticket: 0, buried: Err("disk full".into()) });
    assert!(f.acknowledged().is_empty());
    f.elapsed = f.table.next_wake().unwrap();
    f.on(Event::Tick);
    let again = |e: &Effect| matches!(e, Effect::Bury { letter: DeadLetter { reason, .. }, .. } if reason == "no callback");
    assert!(f.has(again));
    f.on(Event::Buried { ticket: 0, buried: Ok(()) });
    assert_eq!(f.acknowledged(), ["none"]);

    let mut f = Fixture::new();
    f.run(1, 0, "J");
    f.store(1, 0, "J", Status::Completed).on(Event::CancelKeyRead { ticket: 0, cancelled: Ok(true) });
    f.on(Event::Discarded { ticket: 0, discarded: Err("disk full".into()) });
    assert!(f.acknowledged().is_empty(), "its row could be sent after a restart");
}

#[test]
fn a_message_that_the_process_died_on_runs_alone() {
    let mut f = Fixture::with_deaths(&[(id(2), 1)]);
    f.claim(&[1, 2, 3]);
    assert!(f.has(|e| matches!(e, Effect::Check(requests) if requests[1].deaths == 1)));
    for (ticket, job) in [(0, "J"), (1, "K"), (2, "L")] {
        f.checked(ticket, job, Verdict::Run(work(2)));
    }
    assert_eq!(f.submitted(), [0; 0], "0 went before, the suspect waits for it");
    f.on(Event::Started { slot: 0, tickets: vec![0] });
    f.on(Event::Answered { slot: 0, ticket: 0, answer: answer() });
    assert_eq!(f.submitted(), [1], "alone");
    f.on(Event::Started { slot: 0, tickets: vec![1] });
    f.on(Event::Answered { slot: 0, ticket: 1, answer: answer() });
    assert!(f.has(|e| matches!(e, Effect::ForgetDeaths(_))), "it survived");
    assert_eq!(f.submitted(), [2]);
}

#[test]
fn waiting_jobs_are_judged_by_the_device_that_will_run_them() {
    let mut f = Fixture::new();
    f.claim(&[1, 2]);
    f.checked(0, "J", Verdict::Run(work(3)));
    f.checked(1, "K", Verdict::Run(work(2)));
    f.on(Event::DeviceChanged { device: device(2) });
    assert_eq!(f.submitted(), [1]);
    let told = |e: &Effect| matches!(e, Effect::Store { ticket: 0, result: Unstored::Failure { error, .. }, .. } if error.contains("3 qubits"));
    assert!(f.has(told), "{:?}", f.effects);
}

#[test]
fn a_stop_leaves_what_did_not_start_and_finishes_what_runs() {
    let mut f = Fixture::new();
    f.run(1, 0, "J");
    f.claim(&[2, 3]);
    f.checked(1, "K", Verdict::Run(work(2)));
    f.on(Event::DrainRequested);
    assert!(f.has(|e| matches!(e, Effect::Withdraw(1))) && f.acknowledged().is_empty());
    f.on(Event::Withdrawn { ticket: 1, withdrawn: true });
    f.checked(2, "L", Verdict::Run(work(2)));
    f.claim(&[4]);
    assert!(f.submitted().is_empty() && !f.has(|e| matches!(e, Effect::Check(_))));
    assert_eq!(f.table.leftover().running, [JobId::from("J")]);
    f.store(1, 0, "J", Status::Completed).on(Event::CancelKeyRead { ticket: 0, cancelled: Ok(false) });
    assert!(!f.has(|e| matches!(e, Effect::AwaitFirstAttempts)));
    f.on(Event::StatusWritten { ticket: 0, written: true });
    assert!(f.has(|e| matches!(e, Effect::AwaitFirstAttempts)), "{:?}", f.effects);
    assert_eq!(f.table.leftover().undelivered, 1);
    f.on(Event::AllTried);
    assert!(f.table.is_drained(true));
    f.on(Event::Delivered { message_id: id(1), outcome: DeliveryOutcome::Accepted });
    assert!(
        !f.table.is_drained(true) && f.table.is_drained(false),
        "without Redis nothing more is confirmed"
    );
}

#[test]
fn an_event_that_fits_no_state_is_reported_and_changes_nothing() {
    let mut f = Fixture::new();
    f.run(1, 0, "J");
    let impossible = [
        Event::Started { slot: 0, tickets: vec![0] },
        Event::Stored { ticket: 0, result: stored(id(1), "J", Status::Completed) },
        Event::Acknowledged { ticket: 0 },
        Event::CancelKeyRead { ticket: 0, cancelled: Ok(false) },
        Event::Answered { slot: 1, ticket: 0, answer: answer() },
        Event::Discarded { ticket: 7, discarded: Ok(()) },
        Event::Delivered { message_id: id(9), outcome: DeliveryOutcome::Accepted },
    ];
    for (n, event) in impossible.into_iter().enumerate() {
        let now = Now { elapsed: Duration::ZERO, at: OffsetDateTime::UNIX_EPOCH };
        let shown = format!("{event:?}");
        let effects = f.table.on(now, event);
        assert!(
            matches!(effects.as_slice(), [Effect::Notify(Notice::Impossible(_))]),
            "{shown}: {effects:?}"
        );
        assert_eq!(f.table.status().faults.len(), n + 1, "{shown}");
    }
    assert_eq!(f.table.leftover().running, [JobId::from("J")], "it goes on");
    let text = f.table.status().faults[0].to_string();
    assert_eq!(text, "job J got the event started in the state running");
}

fn message_of(ms: u64, job: &str, size: usize) -> Message {
    let fields = [("job_id", job.as_bytes().to_vec()), ("ir_json", vec![b' '; size])];
    Message { id: id(ms), fields: fields.map(|(name, value)| (name.as_bytes().to_vec(), value)).into() }
}

/// After a FLUSHALL the server may give an id again that is in flight here.
#[test]
fn a_message_with_the_id_of_one_in_flight_is_not_acknowledged_with_it() {
    for (second, removal) in [("J", MessageRemoval::Remove), ("K", MessageRemoval::Leave)] {
        let mut f = Fixture::new();
        let origin = ClaimOrigin::New;
        f.on(Event::Claimed { messages: vec![message_of(1, "J", 0)], origin });
        f.checked(0, "J", Verdict::Run(work(2)));
        f.on(Event::Started { slot: 0, tickets: vec![0] });
        f.on(Event::Claimed { messages: vec![message_of(1, second, 0)], origin });
        assert!(f.has(|e| matches!(e, Effect::ReturnPermits(1))), "{second}");
        f.store(1, 0, "J", Status::Completed);
        f.on(Event::CancelKeyRead { ticket: 0, cancelled: Ok(false) });
        f.on(Event::StatusWritten { ticket: 0, written: true });
        f.on(Event::Delivered { message_id: id(1), outcome: DeliveryOutcome::Accepted });
        assert!(
            f.has(|e| matches!(e, Effect::Acknowledge { removal: r, .. } if *r == removal)),
            "{second}: {:?}",
            f.effects
        );
        f.on(Event::Acknowledged { ticket: 0 });
        assert_eq!(f.table.not_held(vec![id(1)]), [id(1)], "the next look takes it up");
    }
}

/// The same across a restart: what the stream has under the id of a result that was on disk is not known before it was
/// read.
#[test]
fn a_recovered_result_takes_only_its_own_message_off_the_list() {
    let own = || MessageRemoval::RemoveIfOf("J".into());
    for (seen, removal) in
        [(None, own()), (Some("J"), MessageRemoval::Remove), (Some("K"), MessageRemoval::Leave)]
    {
        let mut f = Fixture::new();
        let result = stored(id(1), "J", Status::Completed);
        f.on(Event::Recovered(RecoveredResult { result, announced: true }));
        if let Some(job) = seen {
            f.on(Event::Claimed { messages: vec![message_of(1, job, 0)], origin: ClaimOrigin::New });
        }
        f.on(Event::Delivered { message_id: id(1), outcome: DeliveryOutcome::Accepted });
        assert!(
            f.has(|e| matches!(e, Effect::Acknowledge { removal: r, .. } if *r == removal)),
            "{seen:?}: {:?}",
            f.effects
        );
    }
}

#[test]
fn no_more_is_claimed_while_as_much_is_held_as_may_be() {
    let mut f = Fixture::new();
    let origin = ClaimOrigin::New;
    f.on(Event::Claimed { messages: vec![message_of(1, "J", 600), message_of(2, "K", 300)], origin });
    assert!(!f.table.status().is_full);
    f.on(Event::Claimed { messages: vec![message_of(3, "J", 300)], origin });
    assert!(f.table.status().is_full, "1,200 bytes of 1,000");
    f.checked(0, "J", Verdict::Run(work(2)));
    f.on(Event::Started { slot: 0, tickets: vec![0] });
    f.checked(2, "J", Verdict::Run(work(2)));
    assert!(f.table.status().is_full, "a running and a parked one are held too");
    f.store(1, 0, "J", Status::Completed);
    assert!(!f.table.status().is_full, "a result is not a message");
}

/// A crash between a result on disk and its decision: the record that the claim had found does not show one.
#[test]
fn a_resubmission_that_was_not_decided_before_a_crash_is_decided_after_it() {
    for (replaces, recorded, is_open) in [(Some(1), 1, true), (None, 1, false), (Some(1), 3, false)] {
        let mut f = Fixture::new();
        let mut result = stored(id(2), "J", Status::Failed);
        result.row.replaces = replaces.map(id);
        f.on(Event::Recovered(RecoveredResult { result, announced: false }));
        let state = Some("failed".to_string());
        let record = JobRecord { state, message_id: Some(id(recorded).to_string()), cancelled: true };
        f.on(Event::RecordRead { ticket: 0, record: Ok(record) });
        assert_eq!(f.has(|e| matches!(e, Effect::ReadCancelKey { .. })), is_open, "{replaces:?} {recorded}");
        assert_eq!(f.has(|e| matches!(e, Effect::Deliver(_))), !is_open, "{replaces:?} {recorded}");
    }
}

fn cold() -> coda_plugin_abi::Error {
    coda_plugin_abi::Error::new(coda_plugin_abi::ErrorCode::Hardware, "cold")
}

#[test]
fn a_retryable_error_leads_to_another_run_in_the_jobs_place_and_the_last_one_is_told() {
    let mut f = Fixture::new();
    f.run(1, 0, "J1");
    f.claim(&[2, 3]);
    f.checked(1, "J2", Verdict::Run(work(2)));
    f.checked(2, "J3", Verdict::Run(work(9)));
    f.on(Event::Answered { slot: 0, ticket: 0, answer: Err(cold().retryable()) });
    assert!(
        f.has(|e| matches!(e, Effect::Notify(Notice::RunsAgain { failed_runs: 1, .. }))),
        "{:?}",
        f.effects
    );
    assert!(!f.has(|e| matches!(e, Effect::Store { .. })), "nothing has ended");
    assert_eq!(f.table.next_wake(), Some(Duration::from_secs(1)));
    assert_eq!(f.table.status().waiting, 2, "it waits like the other one");
    f.elapsed = Duration::from_secs(1);
    f.on(Event::Tick);
    assert_eq!(f.submitted(), [0]);
    f.on(Event::Started { slot: 0, tickets: vec![0] });
    f.on(Event::Answered { slot: 0, ticket: 0, answer: Err(cold().retryable()) });
    let is_told = |e: &Effect| {
        matches!(e, Effect::Store { result: Unstored::Answer { failed_runs: 2, answer: Err(_), .. }, .. })
    };
    assert!(f.has(is_told), "{:?}", f.effects);
}

#[test]
fn an_error_that_is_not_retryable_ends_the_job() {
    let mut f = Fixture::new();
    f.run(1, 0, "J1");
    f.on(Event::Answered { slot: 0, ticket: 0, answer: Err(cold()) });
    assert!(f.has(|e| matches!(e, Effect::Store { .. })));
}

#[test]
fn a_job_that_rests_can_be_cancelled_and_is_left_pending_by_a_stop() {
    let mut f = Fixture::new();
    f.run(1, 0, "J1");
    f.on(Event::Answered { slot: 0, ticket: 0, answer: Err(cold().retryable()) });
    f.on(Event::CancelPoll);
    assert!(f.has(|e| matches!(e, Effect::ReadCancelKeys(_))), "its key is looked at");
    f.on(Event::CancelKeysRead { cancelled: vec![0], error: None });
    let is_cancelled = |e: &Effect| {
        matches!(e, Effect::Acknowledge { status: Some((_, TerminalStatus::Cancelled { .. })), .. })
    };
    assert!(f.has(is_cancelled), "{:?}", f.effects);

    let mut f = Fixture::new();
    f.run(1, 0, "J1");
    f.on(Event::Answered { slot: 0, ticket: 0, answer: Err(cold().retryable()) });
    f.on(Event::DrainRequested);
    assert!(
        f.has(|e| matches!(e, Effect::Notify(Notice::Draining { left_pending: 1, .. }))),
        "{:?}",
        f.effects
    );
    assert!(f.has(|e| matches!(e, Effect::AwaitFirstAttempts)), "the stop does not wait for it");

    let mut f = Fixture::new();
    f.run(1, 0, "J1");
    f.on(Event::DrainRequested);
    f.on(Event::Answered { slot: 0, ticket: 0, answer: Err(cold().retryable()) });
    assert!(!f.has(|e| matches!(e, Effect::Store { .. })), "it runs again after the next start");
    assert!(f.table.jobs.is_empty());
}
