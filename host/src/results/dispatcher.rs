//! Delivers stored results: which one next, how many at once, when again.
//!
//! One task owns the queue. Up to `max_in_flight` posts run at once, `max_per_origin` to one origin, and
//! retries take at most half of each, so that a callback that hangs or fails delays nobody else. Bodies are
//! kept in memory for the first attempt only; the database has them. A 401 is awaiting_auth until the cloud accepts
//! our credentials again, seen by a heartbeat. What the cloud accepts moves to history before it is reported;
//! what it refuses is kept for the operator.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::webhook::{AttemptOutcome, WebhookSender};
use crate::cloud::heartbeat::HeartbeatOutcome;
use crate::config::settings::WebhookSettings;
use crate::model::{JobId, MessageId};
use crate::state::db::{Status, Store, StoreError};
use crate::telemetry::{AttemptResult, Metrics};

/// Fresh results waiting beyond this number leave their body on disk.
const BODIES_IN_MEMORY: usize = 1000;

/// So many failures in a row, whatever the job, are an outage of the origin.
const OUTAGE_FAILURES: u32 = 3;

/// A server may ask for a pause of at most this.
const LONGEST_ASKED_PAUSE: Duration = Duration::from_secs(3600);

/// A stored result on its way.
#[derive(Debug)]
pub struct PendingDelivery {
    pub message_id: MessageId,
    pub job_id: JobId,
    pub callback_url: Arc<str>,
    /// Scheme, host and port of the callback: posts are limited by it.
    pub origin: Arc<str>,
    pub status: Status,
    /// `None`: read from the database when its turn comes.
    pub body: Option<Bytes>,
    pub attempts: u32,
    pub unwritten: Option<UnwrittenStatus>,
}

/// A terminal state that the status hash doesn't have, since Redis was away: it goes with the acknowledgement.
#[derive(Debug)]
pub struct UnwrittenStatus {
    pub error: Option<String>,
    pub finished_at: String,
}

/// How the delivery of a result ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The receiver has the result.
    Accepted,
    /// The receiver, or our own policy, refused the result for good; it is kept for the operator.
    Refused,
    /// The operator dropped the result before it could be delivered.
    Dropped,
}

/// A result whose delivery has finished and is recorded on disk: its message can be acknowledged.
#[derive(Debug)]
pub struct FinishedDelivery {
    pub message_id: MessageId,
    pub status: Status,
    pub outcome: DeliveryOutcome,
    pub unwritten: Option<UnwrittenStatus>,
}

/// Puts results on their way.
#[derive(Clone)]
pub struct Outbox {
    entries: mpsc::UnboundedSender<PendingDelivery>,
    /// Results whose first attempt has not ended; counted here, so that none is overlooked on its way.
    fresh: watch::Sender<usize>,
}

impl Outbox {
    pub fn send(&self, pending: PendingDelivery) {
        let job_id = pending.job_id.clone();
        if pending.attempts == 0 {
            self.fresh.send_modify(|n| *n += 1);
        }
        if self.entries.send(pending).is_err() {
            tracing::warn!(
                job_id = &*job_id,
                "the host is stopping; the result is delivered after the next start"
            );
        }
    }

    /// Waits until every result that was put in has been tried at least once.
    pub async fn all_tried(&self) {
        let mut fresh = self.fresh.subscribe();
        tokio::select! {
            _ = fresh.wait_for(|n| *n == 0) => {}
            // The dispatcher has ended, and with it every attempt.
            () = self.entries.closed() => {}
        }
    }
}

/// The task behind [`Outbox`].
pub struct WebhookDispatcher {
    inbox: mpsc::UnboundedReceiver<PendingDelivery>,
    origins: HashMap<Arc<str>, OriginQueue>,
    /// Origins with something to send, in turn.
    turn: VecDeque<Arc<str>>,
    later: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Waiting for their time, with whether the server asked for the pause.
    sleeping: HashMap<u64, (PendingDelivery, bool)>,
    next_key: u64,
    /// Held for a 401, with the number of accepted heartbeats at that moment.
    awaiting_auth: Vec<(u64, PendingDelivery)>,
    posts: JoinSet<(PendingDelivery, AttemptOutcome)>,
    in_flight: usize,
    retries_in_flight: usize,
    waiting: usize,
    fresh: watch::Sender<usize>,
    heartbeats: watch::Receiver<HeartbeatOutcome>,
    sender: WebhookSender,
    store: Store,
    settings: WebhookSettings,
    metrics: Arc<Metrics>,
    sent: mpsc::UnboundedSender<FinishedDelivery>,
}

#[derive(Default)]
struct OriginQueue {
    in_flight: usize,
    retries_in_flight: usize,
    fresh: VecDeque<PendingDelivery>,
    again: VecDeque<PendingDelivery>,
    /// Whether it stands in `turn`.
    listed: bool,
    /// Attempts since the last acceptance; kept while anything of the origin is around.
    failures: u32,
    sleepers: usize,
}

impl WebhookDispatcher {
    pub fn new(
        sender: WebhookSender,
        store: Store,
        settings: WebhookSettings,
        metrics: Arc<Metrics>,
        heartbeats: watch::Receiver<HeartbeatOutcome>,
        sent: mpsc::UnboundedSender<FinishedDelivery>,
    ) -> (Outbox, WebhookDispatcher) {
        let (entries, inbox) = mpsc::unbounded_channel();
        let fresh = watch::Sender::new(0);
        let outbox = Outbox { entries, fresh: fresh.clone() };
        let dispatcher = WebhookDispatcher {
            inbox,
            origins: HashMap::new(),
            turn: VecDeque::new(),
            later: BinaryHeap::new(),
            sleeping: HashMap::new(),
            next_key: 0,
            awaiting_auth: Vec::new(),
            posts: JoinSet::new(),
            in_flight: 0,
            retries_in_flight: 0,
            waiting: 0,
            fresh,
            heartbeats,
            sender,
            store,
            settings,
            metrics,
            sent,
        };
        (outbox, dispatcher)
    }

    /// Runs until every [`Outbox`] is gone; posts in flight are then abandoned, their results stay stored.
    pub async fn run(mut self) {
        loop {
            self.dispatch();
            let wake = self.later.peek().map(|Reverse((at, _))| *at);
            let wake = wake.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                pending = self.inbox.recv() => match pending {
                    Some(pending) => {
                        self.metrics.undelivered.inc();
                        self.enqueue(pending);
                    }
                    None => return,
                },
                Some(done) = self.posts.join_next() => match done {
                    Ok((pending, delivery)) => {
                        let origin = pending.origin.clone();
                        self.done(pending, delivery);
                        self.tidy(&origin);
                    }
                    Err(error) => tracing::error!(%error, "a delivery task failed; its result stays stored"),
                },
                () = sleep_until(wake) => self.wake(),
                Ok(()) = self.heartbeats.changed(), if !self.awaiting_auth.is_empty() => self.release_awaiting_auth(),
            }
        }
    }

    fn enqueue(&mut self, mut pending: PendingDelivery) {
        let origin = pending.origin.clone();
        let origin_queue = self.origins.entry(origin.clone()).or_default();
        self.waiting += 1;
        if pending.attempts == 0 {
            if self.waiting > BODIES_IN_MEMORY {
                pending.body = None;
            }
            origin_queue.fresh.push_back(pending);
        } else {
            pending.body = None;
            origin_queue.again.push_back(pending);
        }
        if !std::mem::replace(&mut origin_queue.listed, true) {
            self.turn.push_back(origin);
        }
    }

    /// Starts as many posts as the limits allow, origin by origin.
    fn dispatch(&mut self) {
        let (all, each) = (self.settings.max_in_flight, self.settings.max_per_origin);
        let mut idle_turns = 0;
        while self.in_flight < all && idle_turns < self.turn.len() {
            let Some(origin) = self.turn.pop_front() else { return };
            let Some(origin_queue) = self.origins.get_mut(&origin) else { continue };
            let retry_room =
                self.retries_in_flight < all.div_ceil(2) && origin_queue.retries_in_flight < each.div_ceil(2);
            let next = match origin_queue.in_flight < each {
                true if retry_room => {
                    origin_queue.fresh.pop_front().or_else(|| origin_queue.again.pop_front())
                }
                true => origin_queue.fresh.pop_front(),
                false => None,
            };
            if origin_queue.fresh.is_empty() && origin_queue.again.is_empty() {
                origin_queue.listed = false;
            } else {
                self.turn.push_back(origin);
            }
            match next {
                Some(pending) => {
                    idle_turns = 0;
                    self.start(pending);
                }
                None => idle_turns += 1,
            }
        }
    }

    fn start(&mut self, mut pending: PendingDelivery) {
        self.waiting -= 1;
        self.count(&pending, 1);
        let (sender, store, metrics) = (self.sender.clone(), self.store.clone(), self.metrics.clone());
        self.posts.spawn(async move {
            let body = match pending.body.take() {
                Some(body) => body,
                None => match store.load_result(pending.message_id).await {
                    Ok(Some(row)) => row.body,
                    // Dropped by the operator meanwhile.
                    Ok(None) => return (pending, AttemptOutcome::Accepted),
                    Err(e) => return (pending, AttemptOutcome::Retry { after: None, why: e.to_string() }),
                },
            };
            let start = Instant::now();
            let delivery = sender.attempt(&pending.callback_url, body).await;
            metrics.webhook_seconds.observe(start.elapsed().as_secs_f64());
            (pending, delivery)
        });
    }

    fn count(&mut self, pending: &PendingDelivery, by: isize) {
        let origin = &pending.origin;
        let retry = pending.attempts > 0;
        let add = |n: &mut usize| *n = n.saturating_add_signed(by);
        add(&mut self.in_flight);
        if retry {
            add(&mut self.retries_in_flight);
        }
        if let Some(origin_queue) = self.origins.get_mut(origin) {
            add(&mut origin_queue.in_flight);
            if retry {
                add(&mut origin_queue.retries_in_flight);
            }
        }
    }

    fn done(&mut self, mut pending: PendingDelivery, delivery: AttemptOutcome) {
        self.count(&pending, -1);
        let first = pending.attempts == 0;
        if first && matches!(delivery, AttemptOutcome::Retry { .. } | AttemptOutcome::Unauthorized { .. }) {
            self.fresh.send_modify(|n| *n = n.saturating_sub(1));
        }
        pending.attempts += 1;
        let (job_id, attempts) = (pending.job_id.clone(), pending.attempts);
        let job_id = &*job_id;
        match delivery {
            AttemptOutcome::Accepted => {
                self.metrics.attempt(AttemptResult::Accepted);
                self.origin_is_back(&pending.origin.clone());
                self.end(pending, None, first);
            }
            AttemptOutcome::Refused { status, excerpt } => {
                let why = format!("HTTP {status}: {excerpt}");
                self.store.record_attempt(pending.message_id, attempts, why.clone());
                self.refused(pending, why, first)
            }
            AttemptOutcome::Forbidden(error) => self.refused(pending, error.to_string(), first),
            AttemptOutcome::Unauthorized { why } => {
                self.metrics.attempt(AttemptResult::Unauthorized);
                tracing::warn!(
                    job_id,
                    error = why,
                    "our credentials are not accepted; the result is awaiting_auth until a heartbeat is"
                );
                self.store.record_attempt(pending.message_id, attempts, why);
                let accepted = self.heartbeats.borrow().accepted;
                self.awaiting_auth.push((accepted, pending));
            }
            AttemptOutcome::Retry { after, why } => {
                self.metrics.attempt(AttemptResult::Retry);
                let asked = after.is_some();
                if let Some(origin_queue) = self.origins.get_mut(&pending.origin) {
                    origin_queue.failures = origin_queue.failures.saturating_add(1);
                    origin_queue.sleepers += 1;
                }
                let pause = after.unwrap_or_default().min(LONGEST_ASKED_PAUSE).max(self.pause(attempts));
                let retry_in_ms = pause.as_millis() as u64;
                tracing::warn!(
                    job_id,
                    attempts,
                    retry_in_ms,
                    error = why,
                    "the result was not delivered; trying again"
                );
                self.store.record_attempt(pending.message_id, attempts, why);
                self.next_key += 1;
                self.later.push(Reverse((Instant::now() + pause, self.next_key)));
                self.sleeping.insert(self.next_key, (pending, asked));
            }
        }
    }

    fn refused(&self, pending: PendingDelivery, why: String, first: bool) {
        self.metrics.attempt(AttemptResult::Refused);
        let job_id = &*pending.job_id;
        tracing::error!(job_id, error = why, "the result was refused for good; it is kept on disk");
        self.end(pending, Some(why), first);
    }

    /// 1 s, 2 s, 4 s ... up to the longest pause.
    fn pause(&self, attempts: u32) -> Duration {
        let doubled = 2u32.saturating_pow(attempts.saturating_sub(1).min(20));
        self.settings.backoff.saturating_mul(doubled).min(self.settings.backoff_max)
    }

    /// Notes the end on disk, then tells the driver.
    fn end(&self, pending: PendingDelivery, refused: Option<String>, first: bool) {
        let (store, sent, metrics) = (self.store.clone(), self.sent.clone(), self.metrics.clone());
        let (pause, fresh) = (self.settings.backoff, self.fresh.clone());
        tokio::spawn(async move {
            loop {
                let noted = match &refused {
                    None => store.record_delivered(pending.message_id).await,
                    Some(why) => store.record_refused(pending.message_id, why.clone()).await,
                };
                match noted {
                    Ok(()) => break,
                    Err(StoreError::Stopped) => return,
                    // Until it is noted the message stays unacknowledged.
                    Err(error) => {
                        tracing::error!(job_id = &*pending.job_id, %error, "a delivery can't be noted on disk; trying again");
                        tokio::time::sleep(pause).await;
                    }
                }
            }
            metrics.undelivered.dec();
            let outcome = match refused {
                None => DeliveryOutcome::Accepted,
                Some(_) => DeliveryOutcome::Refused,
            };
            let PendingDelivery { message_id, status, unwritten, .. } = pending;
            if sent.send(FinishedDelivery { message_id, status, outcome, unwritten }).is_err() {
                tracing::debug!("a result was delivered while the host was stopping");
            }
            if first {
                fresh.send_modify(|n| *n = n.saturating_sub(1));
            }
        });
    }

    /// Sends again what was awaiting_auth, once the cloud has accepted our credentials since.
    fn release_awaiting_auth(&mut self) {
        let accepted = self.heartbeats.borrow_and_update().accepted;
        for (before, pending) in std::mem::take(&mut self.awaiting_auth) {
            match before < accepted {
                true => self.enqueue(pending),
                false => self.awaiting_auth.push((before, pending)),
            }
        }
    }

    fn wake(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, key))) = self.later.peek().copied() {
            if at > now {
                return;
            }
            self.later.pop();
            // Those that were woken earlier are gone from the map.
            if let Some((pending, _)) = self.sleeping.remove(&key) {
                self.rise(pending);
            }
        }
    }

    fn rise(&mut self, pending: PendingDelivery) {
        if let Some(origin_queue) = self.origins.get_mut(&pending.origin) {
            origin_queue.sleepers = origin_queue.sleepers.saturating_sub(1);
        }
        self.enqueue(pending);
    }

    /// The first acceptance after an outage: what waits for this origin is tried now, not when its pause is
    /// over. A pause that the server asked for is kept.
    fn origin_is_back(&mut self, origin: &Arc<str>) {
        let Some(origin_queue) = self.origins.get_mut(origin) else { return };
        let failures = std::mem::take(&mut origin_queue.failures);
        if failures >= OUTAGE_FAILURES && origin_queue.sleepers > 0 {
            let due = |(_, (p, asked)): &(&u64, &(PendingDelivery, bool))| !asked && p.origin == *origin;
            let keys: Vec<u64> = self.sleeping.iter().filter(due).map(|(k, _)| *k).collect();
            tracing::info!(origin = &**origin, results = keys.len(), "the callback's host accepts again");
            for key in keys {
                if let Some((pending, _)) = self.sleeping.remove(&key) {
                    self.rise(pending);
                }
            }
        }
    }

    /// Forgets an origin that nothing is going to.
    fn tidy(&mut self, origin: &Arc<str>) {
        let idle = |l: &OriginQueue| l.in_flight == 0 && !l.listed && l.sleepers == 0;
        if self.origins.get(origin).is_some_and(idle) {
            self.origins.remove(origin);
        }
    }
}
