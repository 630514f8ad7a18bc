//! The queue under random events, pauses and crashes, against bookkeeping that is written another way.
//!
//! Invariants, by name: `limits_hold`, `retries_take_half`, `one_place`, `nothing_twice`, `nothing_lost`,
//! `recorded_before_reported`, `auth_waits`, `pauses_are_kept`, `one_probe`, `no_origin_starves`, `nothing_startable_waits`,
//! `bodies_within_budget`. `CODA_MODEL_SEED` and `CODA_MODEL_STEPS` repeat and extend a run.

use std::collections::{BTreeMap, HashSet};

use super::*;
use crate::model::MessageId;
use crate::state::db::Status;

/// A small generator: the same numbers for the same seed everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn unit(&mut self) -> f64 {
        self.below(1000) as f64 / 1000.0
    }
}

const ORIGINS: [&str; 4] = ["a", "b", "c", "d"];
const LIMITS: DeliveryLimits = DeliveryLimits {
    max_in_flight: 6,
    max_per_origin: 3,
    backoff: BackoffRange { first: Duration::from_secs(1), max: Duration::from_secs(30) },
    max_body_bytes: 64,
    max_bytes_per_origin: 50,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// To be sent, at the earliest at this time.
    Waiting {
        not_before: Duration,
        asked: bool,
    },
    /// To be sent once more heartbeats than these are accepted.
    Auth {
        accepted: u64,
    },
    InFlight,
    /// Ended; its record is being written.
    Recording(DeliveryOutcome),
    /// Its record failed: to be written again.
    Unrecorded(DeliveryOutcome),
}

#[derive(Debug, Clone)]
struct Known {
    origin: usize,
    attempts: u32,
    id: Option<DeliveryId>,
    expect: Expect,
}

/// What should be, told by lists alone.
struct World {
    queue: DeliveryQueue,
    now: Duration,
    known: BTreeMap<u64, Known>,
    reported: HashSet<u64>,
    /// Failures in a row of each origin, as the queue may know them.
    failures: [u32; ORIGINS.len()],
    passed_over: [usize; ORIGINS.len()],
    heartbeats: u64,
    draining: bool,
    next_message: u64,
}

impl World {
    fn new() -> World {
        World {
            queue: DeliveryQueue::new(LIMITS),
            now: Duration::ZERO,
            known: BTreeMap::new(),
            reported: HashSet::new(),
            failures: [0; ORIGINS.len()],
            passed_over: [0; ORIGINS.len()],
            heartbeats: 0,
            draining: false,
            next_message: 1,
        }
    }

    fn in_flight(&self, of: impl Fn(&Known) -> bool) -> usize {
        self.known.values().filter(|k| k.expect == Expect::InFlight && of(k)).count()
    }

    fn pick(&self, random: &mut Random, of: impl Fn(Expect) -> bool) -> Option<u64> {
        let found: Vec<u64> = self.known.iter().filter(|(_, k)| of(k.expect)).map(|(m, _)| *m).collect();
        (!found.is_empty()).then(|| found[random.below(found.len() as u64) as usize])
    }

    fn pending(&self, message: u64) -> PendingDelivery {
        let known = &self.known[&message];
        PendingDelivery {
            message_id: MessageId { ms: message, seq: 0 },
            job_id: format!("job-{message}").into(),
            callback_url: "url".into(),
            origin: ORIGINS[known.origin].into(),
            status: Status::Completed,
            body_bytes: (message % 40) as usize,
            body: Some(vec![b'x'; (message % 40) as usize].into()),
            attempts: known.attempts,
        }
    }

    fn add(&mut self, message: u64, random: &mut Random) -> Result<(), String> {
        let event = DeliveryEvent::Added(self.pending(message));
        self.apply(event, random)
    }

    /// One random step; an error names the invariant.
    fn step(&mut self, random: &mut Random) -> Result<(), String> {
        match random.below(100) {
            0..25 => {
                let message = self.next_message;
                self.next_message += 1;
                let attempts = if random.below(5) == 0 { 1 + random.below(3) as u32 } else { 0 };
                let origin = random.below(ORIGINS.len() as u64) as usize;
                let expect = Expect::Waiting { not_before: self.now, asked: false };
                self.known.insert(message, Known { origin, attempts, id: None, expect });
                self.add(message, random)
            }
            25..60 => match self.pick(random, |e| e == Expect::InFlight) {
                Some(message) => self.end_attempt(message, random),
                None => Ok(()),
            },
            60..80 => match self.pick(random, |e| matches!(e, Expect::Recording(_))) {
                Some(message) => self.end_record(message, random.below(4) != 0, random),
                None => Ok(()),
            },
            80..92 => {
                let due = self.queue.next_wake().unwrap_or(self.now).saturating_sub(self.now);
                self.now += if random.below(2) == 0 { due } else { due.mul_f64(random.unit()) };
                self.apply(DeliveryEvent::TimePassed, random)
            }
            92..97 => {
                self.heartbeats += random.below(2);
                self.apply(DeliveryEvent::HeartbeatsAccepted(self.heartbeats), random)
            }
            97 => {
                self.draining = true;
                self.apply(DeliveryEvent::DrainBegan, random)
            }
            _ if random.below(20) == 0 => self.crash(random),
            _ => Ok(()),
        }
    }

    fn end_attempt(&mut self, message: u64, random: &mut Random) -> Result<(), String> {
        let why = String::new();
        let known = self.known.get_mut(&message).unwrap();
        let (origin, id) = (known.origin, known.id.unwrap());
        known.attempts += 1;
        let end = match random.below(10) {
            0..3 => AttemptEnd::Accepted,
            3 => AttemptEnd::Refused { why },
            4 => AttemptEnd::Unauthorized { why },
            5 => AttemptEnd::NotSent { why },
            6 => AttemptEnd::Dropped,
            7 => AttemptEnd::Failed { retry_after: Some(Duration::from_secs(random.below(90))), why },
            _ => AttemptEnd::Failed { retry_after: None, why },
        };
        let shortest = self.now + LIMITS.backoff.shortest();
        known.expect = match &end {
            AttemptEnd::Accepted => Expect::Recording(DeliveryOutcome::Accepted),
            AttemptEnd::Refused { .. } => Expect::Recording(DeliveryOutcome::Refused),
            // Reported at once: there is no row to record it in.
            AttemptEnd::Dropped => Expect::Recording(DeliveryOutcome::Dropped),
            AttemptEnd::Unauthorized { .. } => Expect::Auth { accepted: self.heartbeats },
            AttemptEnd::NotSent { .. } | AttemptEnd::Failed { retry_after: None, .. } => {
                Expect::Waiting { not_before: shortest, asked: false }
            }
            AttemptEnd::Failed { retry_after: Some(pause), .. } => {
                Expect::Waiting { not_before: shortest.max(self.now + *pause), asked: true }
            }
        };
        match &end {
            AttemptEnd::Failed { .. } => self.failures[origin] += 1,
            AttemptEnd::Accepted => {
                if self.failures[origin] >= OUTAGE_FAILURES {
                    for known in self.known.values_mut().filter(|k| k.origin == origin) {
                        if let Expect::Waiting { not_before, asked: false } = &mut known.expect {
                            *not_before = self.now;
                        }
                    }
                }
                self.failures[origin] = 0;
            }
            _ => {}
        }
        self.apply(DeliveryEvent::AttemptEnded { id, end }, random)
    }

    fn end_record(&mut self, message: u64, written: bool, random: &mut Random) -> Result<(), String> {
        let known = self.known.get_mut(&message).unwrap();
        let Expect::Recording(outcome) = known.expect else { unreachable!() };
        let id = known.id.unwrap();
        if written {
            return self.apply(DeliveryEvent::EndRecorded { id }, random);
        }
        known.expect = Expect::Unrecorded(outcome);
        self.apply(DeliveryEvent::RecordFailed { id }, random)
    }

    /// The process dies: memory is gone, the rows are on disk.
    fn crash(&mut self, random: &mut Random) -> Result<(), String> {
        self.queue = DeliveryQueue::new(LIMITS);
        self.failures = [0; ORIGINS.len()];
        self.passed_over = [0; ORIGINS.len()];
        (self.heartbeats, self.draining) = (0, false);
        let left: Vec<u64> = self.known.keys().copied().collect();
        for known in self.known.values_mut() {
            known.expect = Expect::Waiting { not_before: self.now, asked: false };
            known.id = None;
        }
        left.into_iter().try_for_each(|message| self.add(message, random))
    }

    fn apply(&mut self, event: DeliveryEvent, random: &mut Random) -> Result<(), String> {
        let recorded = match &event {
            DeliveryEvent::EndRecorded { id } => Some(*id),
            _ => None,
        };
        let effects = self.queue.on(self.now, event, &mut || random.unit());
        for effect in effects {
            match effect {
                DeliveryEffect::Attempt(attempt) => self.attempted(&attempt)?,
                DeliveryEffect::RecordEnd(record) => {
                    let known = self.known.get_mut(&record.message_id.ms).ok_or("nothing_twice: recorded")?;
                    match known.expect {
                        Expect::Recording(_) => {}
                        Expect::Unrecorded(outcome) => known.expect = Expect::Recording(outcome),
                        other => return Err(format!("nothing_twice: recorded while {other:?}")),
                    }
                }
                DeliveryEffect::Report(finished) => {
                    let message = finished.message_id.ms;
                    let known = self.known.remove(&message).ok_or("nothing_twice: reported")?;
                    if known.expect != Expect::Recording(finished.outcome) {
                        return Err(format!("recorded_before_reported: {:?}", known.expect));
                    }
                    let dropped = finished.outcome == DeliveryOutcome::Dropped;
                    if !dropped && recorded != known.id {
                        return Err("recorded_before_reported: not this one's record".into());
                    }
                    if !self.reported.insert(message) {
                        return Err("nothing_twice: reported again".into());
                    }
                }
                DeliveryEffect::UnknownDelivery { id, event } => {
                    return Err(format!("nothing_lost: {id:?} at '{event}'"));
                }
                _ => {}
            }
        }
        self.forget_failures_of_idle_origins();
        self.check()
    }

    fn attempted(&mut self, attempt: &DeliveryAttempt) -> Result<(), String> {
        let message = attempt.message_id.ms;
        let known = self.known.get(&message).ok_or("nothing_twice: attempted after its report")?;
        let (origin, is_retry) = (known.origin, known.attempts > 0);
        match known.expect {
            Expect::Waiting { not_before, .. } if self.now >= not_before => {}
            Expect::Waiting { .. } => return Err("pauses_are_kept".into()),
            Expect::Auth { accepted } if self.heartbeats > accepted => {}
            Expect::Auth { .. } => return Err("auth_waits".into()),
            _ => return Err(format!("nothing_twice: attempted while {:?}", known.expect)),
        }
        let in_outage = self.failures[origin] >= OUTAGE_FAILURES;
        let others = self.in_flight(|k| k.origin == origin);
        if in_outage && others > 0 && (is_retry || !self.draining) {
            return Err("one_probe".into());
        }
        if is_retry && attempt.body.is_some() {
            return Err("bodies_within_budget: a retry carries a body".into());
        }
        // Who could have been started instead has been passed over; the turn must come within one round.
        for (n, name) in ORIGINS.iter().enumerate() {
            let waits =
                self.queue.origins.get(*name).is_some_and(|q| q.fresh.front().is_some_and(|e| fits(q, e)));
            let in_flight = self.in_flight(|k| k.origin == n);
            let has_room =
                in_flight < LIMITS.max_per_origin && (self.failures[n] < OUTAGE_FAILURES || in_flight == 0);
            let passed = n != origin && waits && has_room;
            self.passed_over[n] = if passed { self.passed_over[n] + 1 } else { 0 };
            if self.passed_over[n] > 2 * ORIGINS.len() {
                return Err(format!("no_origin_starves: {name}"));
            }
        }
        let known = self.known.get_mut(&message).ok_or("nothing_lost")?;
        known.expect = Expect::InFlight;
        known.id = Some(attempt.id);
        Ok(())
    }

    /// As the queue does: what nothing is in flight, ready or asleep for is as good as new.
    fn forget_failures_of_idle_origins(&mut self) {
        for (n, name) in ORIGINS.iter().enumerate() {
            if !self.queue.origins.contains_key(*name) {
                self.failures[n] = 0;
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        let retries = |k: &Known| k.attempts > 0;
        if self.in_flight(|_| true) > LIMITS.max_in_flight {
            return Err("limits_hold: in all".into());
        }
        if self.in_flight(retries) > LIMITS.max_in_flight.div_ceil(2) {
            return Err("retries_take_half: in all".into());
        }
        for n in 0..ORIGINS.len() {
            if self.in_flight(|k| k.origin == n) > LIMITS.max_per_origin {
                return Err("limits_hold: of one origin".into());
            }
            if self.in_flight(|k| k.origin == n && retries(k)) > LIMITS.max_per_origin.div_ceil(2) {
                return Err("retries_take_half: of one origin".into());
            }
        }
        self.one_place()?;
        self.nothing_startable_waits()
    }

    /// Every known delivery is in exactly one of the queue's places, and nothing else is.
    fn one_place(&self) -> Result<(), String> {
        let q = &self.queue;
        let ready = q.origins.values().flat_map(|o| o.fresh.iter().chain(&o.retries));
        let places: Vec<&Entry> = ready
            .chain(q.in_flight.values())
            .chain(q.sleeping.values().map(|s| &s.entry))
            .chain(q.awaiting_auth.iter().map(|a| &a.entry))
            .chain(q.recording.values().map(|e| &e.entry))
            .chain(q.unrecorded.values().map(|e| &e.entry))
            .collect();
        let messages: HashSet<u64> = places.iter().map(|e| e.delivery.message_id.ms).collect();
        let ids: HashSet<DeliveryId> = places.iter().map(|e| e.id).collect();
        if places.len() != messages.len() || ids.len() != places.len() {
            return Err("one_place: twice".into());
        }
        // While a crash is being recovered from, the rest is still to be added.
        if messages.iter().any(|m| !self.known.contains_key(m)) {
            return Err("one_place: a stranger".into());
        }
        let gone = self.known.iter().find(|(m, k)| k.id.is_some() && !messages.contains(m));
        if let Some((m, known)) = gone {
            return Err(format!("nothing_lost: {m} {known:?}"));
        }
        let counted: usize = q.origins.values().flat_map(|o| &o.fresh).map(body_len).sum();
        if counted != q.body_bytes || counted > LIMITS.max_body_bytes {
            return Err("bodies_within_budget".into());
        }
        for (name, origin) in &q.origins {
            let in_flight = q.in_flight.values().filter(|e| e.delivery.origin == *name);
            let bytes: usize = in_flight.map(|e| e.delivery.body_bytes).sum();
            let is_within = origin.in_flight <= 1 || bytes <= LIMITS.max_bytes_per_origin;
            if bytes != origin.bytes_in_flight || !is_within {
                return Err(format!("bodies_within_budget: {bytes} bytes to {name}"));
            }
        }
        let listed: HashSet<_> = q.ready_origins.iter().collect();
        let should = q.origins.iter().filter(|(_, o)| o.has_ready()).map(|(n, _)| n).collect::<HashSet<_>>();
        if listed != should || listed.len() != q.ready_origins.len() {
            return Err("one_place: the list of ready origins".into());
        }
        Ok(())
    }

    /// The limits alone keep ready deliveries waiting.
    fn nothing_startable_waits(&self) -> Result<(), String> {
        if self.in_flight(|_| true) >= LIMITS.max_in_flight {
            return Ok(());
        }
        for (n, name) in ORIGINS.iter().enumerate() {
            let Some(queue) = self.queue.origins.get(*name) else { continue };
            let in_flight = self.in_flight(|k| k.origin == n);
            let in_outage = self.failures[n] >= OUTAGE_FAILURES;
            let has_room = in_flight < LIMITS.max_per_origin && (!in_outage || in_flight == 0);
            if has_room && queue.fresh.front().is_some_and(|e| fits(queue, e)) {
                return Err(format!("nothing_startable_waits: fresh of {name}"));
            }
            let retries = self.in_flight(|k| k.attempts > 0);
            let own_retries = self.in_flight(|k| k.origin == n && k.attempts > 0);
            let has_share =
                retries < LIMITS.max_in_flight.div_ceil(2) && own_retries < LIMITS.max_per_origin.div_ceil(2);
            if has_room && has_share && queue.retries.front().is_some_and(|e| fits(queue, e)) {
                return Err(format!("nothing_startable_waits: retries of {name}"));
            }
        }
        Ok(())
    }

    /// From now on everything goes well: each delivery must end.
    fn finish(&mut self, random: &mut Random) -> Result<(), String> {
        for _ in 0..100_000 {
            if self.known.is_empty() {
                return Ok(());
            }
            if let Some(message) = self.pick(random, |e| e == Expect::InFlight) {
                let known = self.known.get_mut(&message).ok_or("nothing_lost")?;
                known.attempts += 1;
                known.expect = Expect::Recording(DeliveryOutcome::Accepted);
                let (id, origin) = (known.id.ok_or("nothing_lost")?, known.origin);
                self.failures[origin] = 0;
                for known in self.known.values_mut().filter(|k| k.origin == origin) {
                    if let Expect::Waiting { not_before, asked: false } = &mut known.expect {
                        *not_before = self.now;
                    }
                }
                self.apply(DeliveryEvent::AttemptEnded { id, end: AttemptEnd::Accepted }, random)?;
            } else if let Some(message) = self.pick(random, |e| matches!(e, Expect::Recording(_))) {
                self.end_record(message, true, random)?;
            } else if let Some(at) = self.queue.next_wake() {
                self.now = self.now.max(at);
                self.apply(DeliveryEvent::TimePassed, random)?;
            } else {
                self.heartbeats += 1;
                self.apply(DeliveryEvent::HeartbeatsAccepted(self.heartbeats), random)?;
            }
        }
        Err(format!("nothing_lost: {} never end", self.known.len()))
    }
}

/// Whether an entry may go beside what is in flight to its origin.
fn fits(queue: &OriginQueue, entry: &Entry) -> bool {
    queue.in_flight == 0 || queue.bytes_in_flight + entry.delivery.body_bytes <= LIMITS.max_bytes_per_origin
}

fn body_len(entry: &Entry) -> usize {
    entry.delivery.body.as_ref().map_or(0, Bytes::len)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn the_queue_keeps_its_invariants_under_random_events_and_crashes() {
    let first_seed = setting("CODA_MODEL_SEED", 1);
    let steps = setting("CODA_MODEL_STEPS", 60_000);
    let steps_of_a_run = 500;
    for run in 0..steps.div_ceil(steps_of_a_run) {
        let seed = first_seed + run;
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut world = World::new();
        for step in 0..steps_of_a_run {
            if let Err(invariant) = world.step(&mut random) {
                panic!("seed {seed}, step {step}: {invariant}");
            }
        }
        if let Err(invariant) = world.finish(&mut random) {
            panic!("seed {seed}, at the end: {invariant}");
        }
    }
}
