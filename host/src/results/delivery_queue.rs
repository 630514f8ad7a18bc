//! Pure: which stored result is sent next, how many at once, when again. Time and randomness are arguments.
//!
//! ```text
//!            Added                    Attempt                RecordEnd                    Report
//! (outside) ───────> fresh / retries ─────────> in flight ─────────────> recording ─────────────> (gone)
//!                        ^     ^                   │ │                     │     ^
//!                        │     └── sleeping <──────┘ │                     v     │
//!                        └──── awaiting auth <───────┘                  unrecorded
//! ```
//!
//! A delivery is owned by exactly one of these places, so it can be neither lost nor sent twice at once. The rules:
//!
//! * Origins take turns. At most `max_in_flight` attempts run at once, `max_per_origin` to one origin, and retries
//!   take at most half of each, so that a callback that hangs or fails delays no other.
//! * After [`OUTAGE_FAILURES`] failures in a row an origin gets one attempt at a time, a probe. The first acceptance
//!   ends the outage and wakes what sleeps for the origin; a pause that the server asked for is kept.
//! * A 401 waits until a heartbeat is accepted after it: our credentials work again then.
//! * A result that the operator dropped ends as [`DeliveryOutcome::Dropped`]: nothing was accepted, so the origin is
//!   not woken.
//! * An end is recorded on disk before it is reported. A record that fails is tried again and again.
//!
//! The caller performs the returned [`DeliveryEffect`]s in their order and feeds what comes of them back as
//! [`DeliveryEvent`]s.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::delivery::{
    AttemptEnd, DeliveryAttempt, DeliveryEffect, DeliveryEvent, DeliveryId, DeliveryOutcome, EndRecord,
    FailedAttempt, FinishedDelivery, NextAttempt, PendingDelivery,
};
use crate::backoff::BackoffRange;

/// So many failures in a row, whatever the job, are an outage of the origin.
pub const OUTAGE_FAILURES: u32 = 3;

/// The longest pause that a server may ask for.
pub const LONGEST_ASKED_PAUSE: Duration = Duration::from_secs(3600);

/// The limits of a [`DeliveryQueue`].
#[derive(Debug, Clone, Copy)]
pub struct DeliveryLimits {
    /// Attempts at once, all origins together.
    pub max_in_flight: usize,
    /// Attempts at once to one origin.
    pub max_per_origin: usize,
    /// Pauses between the attempts of one result, and between the tries to record an end.
    pub backoff: BackoffRange,
    /// Bytes of bodies that are kept in memory for first attempts; bodies beyond them are read from the database.
    pub max_body_bytes: usize,
    /// Bytes of the bodies of attempts at once to one origin. A single larger body goes alone.
    pub max_bytes_per_origin: usize,
}

/// A delivery with its name.
#[derive(Debug)]
struct Entry {
    id: DeliveryId,
    delivery: PendingDelivery,
}

impl Entry {
    fn is_retry(&self) -> bool {
        self.delivery.attempts > 0
    }
}

/// The deliveries to one origin that wait for an attempt, and what counts for its limits.
#[derive(Debug, Default)]
struct OriginQueue {
    fresh: VecDeque<Entry>,
    retries: VecDeque<Entry>,
    in_flight: usize,
    retries_in_flight: usize,
    bytes_in_flight: usize,
    sleeping: usize,
    /// Failures since the last acceptance; kept while anything of the origin is in flight, ready or sleeping.
    failures: u32,
    /// Whether the origin is in `ready_origins`.
    is_listed: bool,
}

impl OriginQueue {
    fn has_ready(&self) -> bool {
        !self.fresh.is_empty() || !self.retries.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.sleeping == 0 && !self.has_ready()
    }

    /// Takes the next delivery that may be tried now.
    fn take_next(&mut self, limits: &DeliveryLimits, retries_allowed: bool, draining: bool) -> Option<Entry> {
        let limit = limits.max_per_origin;
        let below_limit = self.in_flight < limit;
        let (in_flight, bytes_in_flight) = (self.in_flight, self.bytes_in_flight);
        let fits = |entry: &Entry| {
            in_flight == 0 || bytes_in_flight + entry.delivery.body_bytes <= limits.max_bytes_per_origin
        };
        let in_outage = self.failures >= OUTAGE_FAILURES;
        let may_probe = !in_outage || self.in_flight == 0;

        // A stopping host tries every result once, so an outage does not hold back first attempts then.
        let fresh_allowed = below_limit && (may_probe || draining);
        if fresh_allowed && self.fresh.front().is_some_and(fits) {
            return self.fresh.pop_front();
        }

        let below_retry_share = self.retries_in_flight < limit.div_ceil(2);
        let retry_allowed = below_limit && may_probe && retries_allowed && below_retry_share;
        if retry_allowed && self.retries.front().is_some_and(fits) { self.retries.pop_front() } else { None }
    }
}

/// Waiting for the time that it is filed under.
#[derive(Debug)]
struct SleepingDelivery {
    entry: Entry,
    /// The server asked for the pause, so an origin that accepts again does not end it.
    asked_by_server: bool,
}

/// Waiting for a heartbeat that is accepted after this many.
#[derive(Debug)]
struct DeliveryAwaitingAuth {
    entry: Entry,
    accepted_before: u64,
}

/// A delivery that has ended and is not on disk yet.
#[derive(Debug)]
struct EndedDelivery {
    entry: Entry,
    outcome: DeliveryOutcome,
    refused: Option<String>,
    was_first_attempt: bool,
    record_failures: u32,
}

/// The queue.
#[derive(Debug)]
pub struct DeliveryQueue {
    limits: DeliveryLimits,
    next_id: u64,
    origins: HashMap<Arc<str>, OriginQueue>,
    /// Origins with something ready, in turn.
    ready_origins: VecDeque<Arc<str>>,
    in_flight: HashMap<DeliveryId, Entry>,
    retries_in_flight: usize,
    sleeping: BTreeMap<(Duration, DeliveryId), SleepingDelivery>,
    awaiting_auth: Vec<DeliveryAwaitingAuth>,
    recording: HashMap<DeliveryId, EndedDelivery>,
    /// Ends that could not be written, by the time of the next try.
    unrecorded: BTreeMap<(Duration, DeliveryId), EndedDelivery>,
    heartbeats_accepted: u64,
    body_bytes: usize,
    draining: bool,
}

impl DeliveryQueue {
    pub fn new(limits: DeliveryLimits) -> DeliveryQueue {
        DeliveryQueue {
            limits,
            next_id: 0,
            origins: HashMap::new(),
            ready_origins: VecDeque::new(),
            in_flight: HashMap::new(),
            retries_in_flight: 0,
            sleeping: BTreeMap::new(),
            awaiting_auth: Vec::new(),
            recording: HashMap::new(),
            unrecorded: BTreeMap::new(),
            heartbeats_accepted: 0,
            body_bytes: 0,
            draining: false,
        }
    }

    /// Takes an event and returns what is to be done, in this order. `now` is the time since any fixed moment, and
    /// never goes back; `random` gives numbers in `0.0..1.0`.
    pub fn on(
        &mut self,
        now: Duration,
        event: DeliveryEvent,
        random: &mut dyn FnMut() -> f64,
    ) -> Vec<DeliveryEffect> {
        let mut effects = Vec::new();
        match event {
            DeliveryEvent::Added(delivery) => {
                let id = DeliveryId(self.next_id);
                self.next_id += 1;
                self.make_ready(Entry { id, delivery });
            }
            DeliveryEvent::AttemptEnded { id, end } => match self.in_flight.remove(&id) {
                Some(entry) => self.attempt_ended(now, entry, end, random, &mut effects),
                None => effects.push(DeliveryEffect::UnknownDelivery { id, event: "attempt ended" }),
            },
            DeliveryEvent::EndRecorded { id } => match self.recording.remove(&id) {
                Some(ended) => report(ended, &mut effects),
                None => effects.push(DeliveryEffect::UnknownDelivery { id, event: "end recorded" }),
            },
            DeliveryEvent::RecordFailed { id } => match self.recording.remove(&id) {
                Some(mut ended) => {
                    ended.record_failures = ended.record_failures.saturating_add(1);
                    let pause = self.limits.backoff.pause(ended.record_failures, random());
                    self.unrecorded.insert((now + pause, id), ended);
                }
                None => effects.push(DeliveryEffect::UnknownDelivery { id, event: "record failed" }),
            },
            DeliveryEvent::HeartbeatsAccepted(accepted) => self.heartbeats_accepted(accepted),
            DeliveryEvent::DrainBegan => self.draining = true,
            DeliveryEvent::TimePassed => {}
        }
        self.wake(now, &mut effects);
        self.start_attempts(&mut effects);
        effects
    }

    /// When the queue wants [`DeliveryEvent::TimePassed`], if nothing happens before.
    pub fn next_wake(&self) -> Option<Duration> {
        let sleeping = self.sleeping.first_key_value().map(|((at, _), _)| *at);
        let unrecorded = self.unrecorded.first_key_value().map(|((at, _), _)| *at);
        sleeping.into_iter().chain(unrecorded).min()
    }

    /// Puts a delivery into its origin's queue.
    fn make_ready(&mut self, mut entry: Entry) {
        let origin = entry.delivery.origin.clone();
        let queue = self.origins.entry(origin.clone()).or_default();

        if entry.is_retry() {
            entry.delivery.body = None;
            queue.retries.push_back(entry);
        } else {
            let size = entry.delivery.body.as_ref().map_or(0, Bytes::len);
            if self.body_bytes + size > self.limits.max_body_bytes {
                entry.delivery.body = None;
            } else {
                self.body_bytes += size;
            }
            queue.fresh.push_back(entry);
        }

        if !std::mem::replace(&mut queue.is_listed, true) {
            self.ready_origins.push_back(origin);
        }
    }

    /// Starts as many attempts as the limits allow, origin by origin.
    fn start_attempts(&mut self, effects: &mut Vec<DeliveryEffect>) {
        let total = self.limits.max_in_flight;
        let mut idle_turns = 0;
        while self.in_flight.len() < total && idle_turns < self.ready_origins.len() {
            let Some(origin) = self.ready_origins.pop_front() else { return };
            let Some(queue) = self.origins.get_mut(&origin) else {
                debug_assert!(false, "a listed origin has a queue");
                continue;
            };
            let retries_allowed = self.retries_in_flight < total.div_ceil(2);
            let next = queue.take_next(&self.limits, retries_allowed, self.draining);

            // To the end of the line, whether it could start something or not: origins take turns.
            queue.is_listed = queue.has_ready();
            if queue.is_listed {
                self.ready_origins.push_back(origin);
            }
            match next {
                Some(entry) => {
                    idle_turns = 0;
                    self.start(entry, effects);
                }
                None => idle_turns += 1,
            }
        }
    }

    fn start(&mut self, mut entry: Entry, effects: &mut Vec<DeliveryEffect>) {
        let is_retry = entry.is_retry();
        if let Some(queue) = self.origins.get_mut(&entry.delivery.origin) {
            queue.in_flight += 1;
            queue.bytes_in_flight += entry.delivery.body_bytes;
            queue.retries_in_flight += usize::from(is_retry);
        }
        self.retries_in_flight += usize::from(is_retry);

        // The body leaves memory with its first attempt; another one reads it from the database.
        let body = entry.delivery.body.take();
        self.body_bytes -= body.as_ref().map_or(0, Bytes::len);
        effects.push(DeliveryEffect::Attempt(DeliveryAttempt {
            id: entry.id,
            message_id: entry.delivery.message_id,
            callback_url: entry.delivery.callback_url.clone(),
            body,
        }));
        self.in_flight.insert(entry.id, entry);
    }

    fn attempt_ended(
        &mut self,
        now: Duration,
        mut entry: Entry,
        end: AttemptEnd,
        random: &mut dyn FnMut() -> f64,
        effects: &mut Vec<DeliveryEffect>,
    ) {
        let origin = entry.delivery.origin.clone();
        let was_first_attempt = !entry.is_retry();
        if let Some(queue) = self.origins.get_mut(&origin) {
            queue.in_flight -= 1;
            queue.bytes_in_flight -= entry.delivery.body_bytes;
            queue.retries_in_flight -= usize::from(!was_first_attempt);
        }
        self.retries_in_flight -= usize::from(!was_first_attempt);
        entry.delivery.attempts = entry.delivery.attempts.saturating_add(1);

        let ended = |entry, outcome, refused| EndedDelivery {
            entry,
            outcome,
            refused,
            was_first_attempt,
            record_failures: 0,
        };
        match end {
            AttemptEnd::Accepted => {
                self.origin_accepted(&origin, effects);
                self.record(ended(entry, DeliveryOutcome::Accepted, None), effects);
            }
            AttemptEnd::Refused { why } => {
                effects.push(failure(&entry, why.clone(), NextAttempt::Never));
                self.record(ended(entry, DeliveryOutcome::Refused, Some(why)), effects);
            }
            // There is no row that the end could be recorded in.
            AttemptEnd::Dropped => report(ended(entry, DeliveryOutcome::Dropped, None), effects),
            AttemptEnd::Unauthorized { why } => {
                effects.push(failure(&entry, why, NextAttempt::AfterHeartbeat));
                self.awaiting_auth
                    .push(DeliveryAwaitingAuth { entry, accepted_before: self.heartbeats_accepted });
                first_attempt_ended(was_first_attempt, effects);
            }
            AttemptEnd::Failed { retry_after, why } => {
                if let Some(queue) = self.origins.get_mut(&origin) {
                    queue.failures = queue.failures.saturating_add(1);
                }
                self.sleep(now, entry, retry_after, why, random, effects);
                first_attempt_ended(was_first_attempt, effects);
            }
            AttemptEnd::NotSent { why } => {
                self.sleep(now, entry, None, why, random, effects);
                first_attempt_ended(was_first_attempt, effects);
            }
        }
        self.forget_if_idle(&origin);
    }

    /// Lets a delivery wait for its next attempt.
    fn sleep(
        &mut self,
        now: Duration,
        entry: Entry,
        retry_after: Option<Duration>,
        why: String,
        random: &mut dyn FnMut() -> f64,
        effects: &mut Vec<DeliveryEffect>,
    ) {
        let asked = retry_after.unwrap_or_default().min(LONGEST_ASKED_PAUSE);
        let pause = asked.max(self.limits.backoff.pause(entry.delivery.attempts, random()));
        effects.push(failure(&entry, why, NextAttempt::After(pause)));

        if let Some(queue) = self.origins.get_mut(&entry.delivery.origin) {
            queue.sleeping += 1;
        }
        let key = (now + pause, entry.id);
        self.sleeping.insert(key, SleepingDelivery { entry, asked_by_server: retry_after.is_some() });
    }

    /// Has the end of a delivery written to disk; it is reported once it is there.
    fn record(&mut self, ended: EndedDelivery, effects: &mut Vec<DeliveryEffect>) {
        let Entry { id, delivery } = &ended.entry;
        effects.push(DeliveryEffect::RecordEnd(EndRecord {
            id: *id,
            message_id: delivery.message_id,
            job_id: delivery.job_id.clone(),
            refused: ended.refused.clone(),
        }));
        self.recording.insert(*id, ended);
    }

    /// Readies what has slept long enough, and records again what could not be recorded.
    fn wake(&mut self, now: Duration, effects: &mut Vec<DeliveryEffect>) {
        while let Some(first) = self.sleeping.first_entry()
            && first.key().0 <= now
        {
            let sleeping = first.remove();
            self.rise(sleeping.entry);
        }
        while let Some(first) = self.unrecorded.first_entry()
            && first.key().0 <= now
        {
            let ended = first.remove();
            self.record(ended, effects);
        }
    }

    /// Readies a delivery that was taken out of `sleeping`.
    fn rise(&mut self, entry: Entry) {
        if let Some(queue) = self.origins.get_mut(&entry.delivery.origin) {
            queue.sleeping -= 1;
        }
        self.make_ready(entry);
    }

    /// Ends the outage of an origin, if there was one: what sleeps for it is tried now.
    fn origin_accepted(&mut self, origin: &Arc<str>, effects: &mut Vec<DeliveryEffect>) {
        let Some(queue) = self.origins.get_mut(origin) else { return };
        let failures = std::mem::take(&mut queue.failures);
        if failures < OUTAGE_FAILURES || queue.sleeping == 0 {
            return;
        }
        let may_wake = |s: &SleepingDelivery| !s.asked_by_server && s.entry.delivery.origin == *origin;
        let keys: Vec<_> = self.sleeping.iter().filter(|(_, s)| may_wake(s)).map(|(key, _)| *key).collect();
        effects.push(DeliveryEffect::OriginRecovered { origin: origin.clone(), woken: keys.len() });
        for key in keys {
            if let Some(sleeping) = self.sleeping.remove(&key) {
                self.rise(sleeping.entry);
            }
        }
    }

    /// Readies what waited for credentials, if a heartbeat was accepted since.
    fn heartbeats_accepted(&mut self, accepted: u64) {
        self.heartbeats_accepted = self.heartbeats_accepted.max(accepted);
        let now_accepted = self.heartbeats_accepted;
        for waiting in std::mem::take(&mut self.awaiting_auth) {
            if waiting.accepted_before < now_accepted {
                self.make_ready(waiting.entry);
            } else {
                self.awaiting_auth.push(waiting);
            }
        }
    }

    fn forget_if_idle(&mut self, origin: &Arc<str>) {
        if self.origins.get(origin).is_some_and(OriginQueue::is_idle) {
            self.origins.remove(origin);
        }
    }
}

fn failure(entry: &Entry, why: String, next: NextAttempt) -> DeliveryEffect {
    DeliveryEffect::NoteFailure(FailedAttempt {
        message_id: entry.delivery.message_id,
        job_id: entry.delivery.job_id.clone(),
        attempts: entry.delivery.attempts,
        why,
        next,
    })
}

fn report(ended: EndedDelivery, effects: &mut Vec<DeliveryEffect>) {
    let PendingDelivery { message_id, status, .. } = ended.entry.delivery;
    effects.push(DeliveryEffect::Report(FinishedDelivery { message_id, status, outcome: ended.outcome }));
    // After the report: who waits for first attempts then has heard of every end.
    first_attempt_ended(ended.was_first_attempt, effects);
}

fn first_attempt_ended(was_first_attempt: bool, effects: &mut Vec<DeliveryEffect>) {
    if was_first_attempt {
        effects.push(DeliveryEffect::FirstAttemptEnded);
    }
}

#[cfg(test)]
#[path = "delivery_queue_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "delivery_queue_model.rs"]
mod model;
