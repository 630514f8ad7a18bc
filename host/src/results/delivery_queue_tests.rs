//! Rules of the queue, one by one.

use super::*;
use crate::model::MessageId;
use crate::state::db::Status;

const SECOND: Duration = Duration::from_secs(1);

fn limits() -> DeliveryLimits {
    DeliveryLimits {
        max_in_flight: 8,
        max_per_origin: 4,
        backoff: BackoffRange { first: SECOND, max: 64 * SECOND },
        max_body_bytes: 1000,
        max_bytes_per_origin: 2000,
    }
}

fn delivery(n: u64, origin: &str) -> PendingDelivery {
    PendingDelivery {
        message_id: MessageId { ms: n, seq: 0 },
        job_id: format!("job-{n}").into(),
        callback_url: format!("{origin}/cb").into(),
        origin: origin.into(),
        status: Status::Completed,
        body_bytes: 2,
        body: Some(Bytes::from_static(b"{}")),
        attempts: 0,
    }
}

/// A queue with a clock, whose random numbers are all 1: pauses are the longest ones.
struct Bench {
    queue: DeliveryQueue,
    now: Duration,
}

impl Bench {
    fn new(limits: DeliveryLimits) -> Bench {
        Bench { queue: DeliveryQueue::new(limits), now: Duration::ZERO }
    }

    fn on(&mut self, event: DeliveryEvent) -> Vec<DeliveryEffect> {
        self.queue.on(self.now, event, &mut || 1.0)
    }

    fn add(&mut self, n: u64, origin: &str) -> Vec<DeliveryAttempt> {
        attempts(self.on(DeliveryEvent::Added(delivery(n, origin))))
    }

    fn end(&mut self, attempt: &DeliveryAttempt, end: AttemptEnd) -> Vec<DeliveryEffect> {
        self.on(DeliveryEvent::AttemptEnded { id: attempt.id, end })
    }

    fn pass(&mut self, time: Duration) -> Vec<DeliveryAttempt> {
        self.now += time;
        attempts(self.on(DeliveryEvent::TimePassed))
    }

    /// An origin that has failed so often that it is in an outage, with that many results sleeping for it.
    fn in_outage(origin: &str) -> Bench {
        let mut bench = Bench::new(limits());
        for n in 1..=u64::from(OUTAGE_FAILURES) {
            let attempt = bench.add(n, origin).remove(0);
            bench.end(&attempt, failed(None));
        }
        bench
    }
}

fn failed(retry_after: Option<Duration>) -> AttemptEnd {
    AttemptEnd::Failed { retry_after, why: "HTTP 503".into() }
}

fn attempts(effects: Vec<DeliveryEffect>) -> Vec<DeliveryAttempt> {
    let attempt = |effect| match effect {
        DeliveryEffect::Attempt(attempt) => Some(attempt),
        _ => None,
    };
    effects.into_iter().filter_map(attempt).collect()
}

fn ms(attempts: &[DeliveryAttempt]) -> Vec<u64> {
    attempts.iter().map(|a| a.message_id.ms).collect()
}

fn reported(effects: &[DeliveryEffect]) -> Vec<DeliveryOutcome> {
    let outcome = |effect: &DeliveryEffect| match effect {
        DeliveryEffect::Report(finished) => Some(finished.outcome),
        _ => None,
    };
    effects.iter().filter_map(outcome).collect()
}

#[test]
fn an_accepted_result_is_recorded_before_it_is_reported() {
    let mut bench = Bench::new(limits());
    let attempt = bench.add(1, "a").remove(0);
    assert_eq!(attempt.body.as_deref(), Some(&b"{}"[..]));
    let effects = bench.end(&attempt, AttemptEnd::Accepted);
    let [DeliveryEffect::RecordEnd(record)] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!((record.id, record.refused.as_ref()), (attempt.id, None));
    let effects = bench.on(DeliveryEvent::EndRecorded { id: attempt.id });
    let [DeliveryEffect::Report(finished), DeliveryEffect::FirstAttemptEnded] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((finished.message_id.ms, finished.outcome), (1, DeliveryOutcome::Accepted));
    assert!(bench.queue.origins.is_empty(), "an origin that nothing goes to is forgotten");
}

#[test]
fn a_refused_result_is_noted_and_recorded_with_its_reason() {
    let mut bench = Bench::new(limits());
    let attempt = bench.add(1, "a").remove(0);
    let effects = bench.end(&attempt, AttemptEnd::Refused { why: "HTTP 404".into() });
    let [DeliveryEffect::NoteFailure(failure), DeliveryEffect::RecordEnd(record)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((failure.attempts, failure.next), (1, NextAttempt::Never));
    assert_eq!(record.refused.as_deref(), Some("HTTP 404"));
    let effects = bench.on(DeliveryEvent::EndRecorded { id: attempt.id });
    assert_eq!(reported(&effects), [DeliveryOutcome::Refused]);
}

#[test]
fn an_end_that_cannot_be_recorded_is_recorded_later_and_not_reported_before() {
    let mut bench = Bench::new(limits());
    let attempt = bench.add(1, "a").remove(0);
    bench.end(&attempt, AttemptEnd::Accepted);
    for longest in [SECOND, 2 * SECOND, 4 * SECOND] {
        let effects = bench.on(DeliveryEvent::RecordFailed { id: attempt.id });
        assert!(effects.is_empty(), "{effects:?}");
        assert_eq!(bench.queue.next_wake(), Some(bench.now + longest));
        bench.now += longest;
        let effects = bench.on(DeliveryEvent::TimePassed);
        assert!(matches!(&effects[..], [DeliveryEffect::RecordEnd(_)]), "{effects:?}");
    }
    let effects = bench.on(DeliveryEvent::EndRecorded { id: attempt.id });
    assert_eq!(reported(&effects), [DeliveryOutcome::Accepted]);
}

/// Defect D of the review: it counted as accepted, set `last_job_at`, and woke its origin.
#[test]
fn a_result_that_the_operator_dropped_is_neither_accepted_nor_recorded_and_wakes_nothing() {
    let mut bench = Bench::in_outage("a");
    let probe = bench.pass(SECOND).remove(0);
    let effects = bench.end(&probe, AttemptEnd::Dropped);
    assert_eq!(reported(&effects), [DeliveryOutcome::Dropped]);
    let woken = effects.iter().any(|e| matches!(e, DeliveryEffect::OriginRecovered { .. }));
    let recorded = effects.iter().any(|e| matches!(e, DeliveryEffect::RecordEnd(_)));
    assert!(!woken && !recorded, "{effects:?}");
    assert_eq!(bench.queue.origins["a"].failures, OUTAGE_FAILURES, "the outage goes on");
}

#[test]
fn pauses_grow_and_a_pause_that_the_server_asks_for_is_the_shortest() {
    let mut bench = Bench::new(limits());
    let mut attempt = bench.add(1, "a").remove(0);
    for longest in [1, 2, 4, 8] {
        bench.end(&attempt, failed(None));
        assert!(bench.pass(longest * SECOND - Duration::from_millis(1)).is_empty());
        attempt = bench.pass(Duration::from_millis(1)).remove(0);
        assert_eq!(attempt.body, None, "a retry reads its body from the database");
    }
    bench.end(&attempt, failed(Some(100 * SECOND)));
    assert_eq!(bench.queue.next_wake(), Some(bench.now + 100 * SECOND));
    attempt = bench.pass(100 * SECOND).remove(0);
    bench.end(&attempt, failed(Some(Duration::from_secs(1_000_000))));
    assert_eq!(bench.queue.next_wake(), Some(bench.now + LONGEST_ASKED_PAUSE));
}

#[test]
fn pauses_are_jittered_but_never_immediate() {
    for (random, expected) in [(0.0, SECOND / 2), (0.5, Duration::from_millis(750)), (1.0, SECOND)] {
        let mut queue = DeliveryQueue::new(limits());
        let zero = Duration::ZERO;
        let added = queue.on(zero, DeliveryEvent::Added(delivery(1, "a")), &mut || random);
        let id = attempts(added)[0].id;
        queue.on(zero, DeliveryEvent::AttemptEnded { id, end: failed(None) }, &mut || random);
        assert_eq!(queue.next_wake(), Some(expected));
    }
}

#[test]
fn origins_take_turns() {
    let mut bench = Bench::new(DeliveryLimits { max_in_flight: 2, ..limits() });
    let mut running = Vec::new();
    for n in 0..6 {
        running.extend(bench.add(n, "busy"));
    }
    running.extend(bench.add(6, "other"));
    assert_eq!(ms(&running), [0, 1]);
    let next = attempts(bench.end(&running[0], AttemptEnd::Accepted));
    let then = attempts(bench.end(&running[1], AttemptEnd::Accepted));
    assert!(ms(&next).contains(&6) || ms(&then).contains(&6), "{next:?} {then:?}");
}

#[test]
fn an_origin_that_hangs_takes_its_own_limit_and_no_more() {
    let mut bench = Bench::new(limits());
    let hanging: Vec<_> = (0..20).flat_map(|n| bench.add(n, "hangs")).collect();
    assert_eq!(hanging.len(), 4);
    let other: Vec<_> = (20..40).flat_map(|n| bench.add(n, "works")).collect();
    assert_eq!(other.len(), 4, "the rest of the total is for the others");
}

#[test]
fn retries_take_at_most_half() {
    let mut bench = Bench::new(limits());
    for origin in ["a", "b", "c"] {
        for n in 0..4 {
            let mut retry = delivery(n, origin);
            retry.attempts = 1;
            bench.on(DeliveryEvent::Added(retry));
        }
    }
    let mut by_origin: Vec<_> = bench.queue.origins.values().map(|q| q.retries_in_flight).collect();
    by_origin.sort_unstable();
    assert_eq!((bench.queue.in_flight.len(), bench.queue.retries_in_flight), (4, 4));
    assert!(by_origin.iter().all(|n| *n <= 2), "{by_origin:?}");
    let fresh: Vec<_> = (10..20).flat_map(|n| bench.add(n, "a")).collect();
    assert!(fresh.len() >= 2, "there is room for fresh results: {fresh:?}");
}

#[test]
fn an_origin_in_an_outage_gets_one_probe_at_a_time() {
    let mut bench = Bench::in_outage("a");
    let probe: Vec<_> = (10..15).flat_map(|n| bench.add(n, "a")).collect();
    assert_eq!(ms(&probe), [10]);
    assert!(bench.pass(SECOND).is_empty(), "what has slept enough waits for the probe as well");
    let next = attempts(bench.end(&probe[0], failed(None)));
    assert_eq!(ms(&next), [11]);
    let elsewhere = bench.add(20, "b");
    assert_eq!(ms(&elsewhere), [20], "another origin is not affected");
}

#[test]
fn the_first_acceptance_ends_the_outage_and_wakes_what_sleeps() {
    let mut bench = Bench::in_outage("a");
    let probe = bench.add(10, "a").remove(0);
    let effects = bench.end(&probe, AttemptEnd::Accepted);
    let recovered = DeliveryEffect::OriginRecovered { origin: "a".into(), woken: 3 };
    assert!(effects.contains(&recovered), "{effects:?}");
    assert_eq!(ms(&attempts(effects)), [1, 2], "as many as the retries' share of the origin allows");
    assert!(bench.queue.sleeping.is_empty());
}

#[test]
fn a_pause_that_the_server_asked_for_outlasts_the_outage() {
    let mut bench = Bench::in_outage("a");
    let probe = bench.add(10, "a").remove(0);
    bench.end(&probe, failed(Some(50 * SECOND)));
    let probe = bench.add(11, "a").remove(0);
    bench.end(&probe, AttemptEnd::Accepted);
    assert_eq!(bench.queue.sleeping.len(), 1);
    assert_eq!(bench.queue.next_wake(), Some(50 * SECOND));
}

#[test]
fn a_failure_of_the_host_itself_is_no_failure_of_the_origin() {
    let mut bench = Bench::new(limits());
    for n in 0..4 {
        let attempt = bench.add(n, "a").remove(0);
        let effects = bench.end(&attempt, AttemptEnd::NotSent { why: "the task panicked".into() });
        let [DeliveryEffect::NoteFailure(f), DeliveryEffect::FirstAttemptEnded] = &effects[..] else {
            panic!("{effects:?}")
        };
        assert_eq!((f.attempts, f.next), (1, NextAttempt::After(SECOND)));
    }
    assert_eq!(bench.queue.origins["a"].failures, 0);
    assert_eq!(bench.queue.sleeping.len(), 4, "none is lost");
}

#[test]
fn a_401_waits_for_a_heartbeat_that_is_accepted_after_it() {
    let mut bench = Bench::new(limits());
    bench.on(DeliveryEvent::HeartbeatsAccepted(7));
    let attempt = bench.add(1, "a").remove(0);
    let effects = bench.end(&attempt, AttemptEnd::Unauthorized { why: "HTTP 401".into() });
    let [DeliveryEffect::NoteFailure(f), DeliveryEffect::FirstAttemptEnded] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(f.next, NextAttempt::AfterHeartbeat);
    assert!(bench.pass(1000 * SECOND).is_empty(), "time alone changes nothing");
    assert!(attempts(bench.on(DeliveryEvent::HeartbeatsAccepted(7))).is_empty());
    assert_eq!(ms(&attempts(bench.on(DeliveryEvent::HeartbeatsAccepted(8)))), [1]);
}

#[test]
fn bodies_are_kept_up_to_a_number_of_bytes() {
    let mut bench = Bench::new(DeliveryLimits { max_in_flight: 1, ..limits() });
    let with_body = |n, size: usize| {
        let mut d = delivery(n, "a");
        d.body = Some(vec![b' '; size].into());
        d
    };
    let first = attempts(bench.on(DeliveryEvent::Added(with_body(0, 900)))).remove(0);
    assert_eq!(first.body.as_ref().map(Bytes::len), Some(900), "one in flight is not counted");
    for (n, size) in [(1, 600), (2, 600), (3, 400)] {
        bench.on(DeliveryEvent::Added(with_body(n, size)));
    }
    assert_eq!(bench.queue.body_bytes, 1000);
    let mut sizes = Vec::new();
    let mut running = first;
    for _ in 0..3 {
        running = attempts(bench.end(&running, AttemptEnd::Accepted)).remove(0);
        sizes.push(running.body.as_ref().map(Bytes::len));
    }
    assert_eq!(sizes, [Some(600), None, Some(400)]);
    assert_eq!(bench.queue.body_bytes, 0);
}

#[test]
fn a_stopping_host_tries_every_fresh_result_once_even_in_an_outage() {
    let mut bench = Bench::in_outage("a");
    let probe: Vec<_> = (10..14).flat_map(|n| bench.add(n, "a")).collect();
    assert_eq!(ms(&probe), [10]);
    let effects = bench.on(DeliveryEvent::DrainBegan);
    assert_eq!(ms(&attempts(effects)), [11, 12, 13]);
    assert!(bench.pass(SECOND).is_empty(), "retries still wait for the probe");
}

#[test]
fn first_attempts_are_counted_once() {
    let mut bench = Bench::new(limits());
    let attempt = bench.add(1, "a").remove(0);
    let count = |effects: &[DeliveryEffect]| {
        effects.iter().filter(|e| matches!(e, DeliveryEffect::FirstAttemptEnded)).count()
    };
    assert_eq!(count(&bench.end(&attempt, failed(None))), 1);
    let attempt = bench.pass(SECOND).remove(0);
    assert_eq!(count(&bench.end(&attempt, AttemptEnd::Accepted)), 0);
    assert_eq!(count(&bench.on(DeliveryEvent::EndRecorded { id: attempt.id })), 0);
}

#[test]
fn an_event_for_a_delivery_that_is_elsewhere_is_named_as_a_bug() {
    let mut bench = Bench::new(limits());
    let attempt = bench.add(1, "a").remove(0);
    let effects = bench.on(DeliveryEvent::EndRecorded { id: attempt.id });
    let expected = DeliveryEffect::UnknownDelivery { id: attempt.id, event: "end recorded" };
    assert_eq!(effects, [expected]);
    assert_eq!(bench.queue.in_flight.len(), 1, "it stays where it is");
}
