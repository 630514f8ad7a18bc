//! Delivers stored results: performs what the [`DeliveryQueue`] decides, and tells it what came of it.
//!
//! ```text
//! select: a new result, an ended task, a heartbeat, the time ──> DeliveryQueue::on ──> perform: post, write, report
//! ```
//!
//! One task owns the queue and every task that it starts: attempts, and writes of ends to the database. The queue keeps
//! each delivery while a task works for it, so a task that panics loses nothing: its attempt becomes a retry, its write
//! is tried again. What the cloud accepts moves to history before it is reported; what it refuses is kept for the
//! operator.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::delivery::{
    AttemptEnd, DeliveryAttempt, DeliveryEffect, DeliveryEvent, DeliveryId, EndRecord, FailedAttempt,
    NextAttempt,
};
use super::delivery_queue::{DeliveryLimits, DeliveryQueue};
use super::webhook::{AttemptOutcome, WebhookSender};
use crate::activity::Activity;
use crate::backoff::BackoffRange;
use crate::cloud::heartbeat::HeartbeatOutcome;
use crate::config::settings::WebhookSettings;
use crate::state::db::{Store, StoreError};
use crate::telemetry::{AttemptResult, Metrics};

pub use super::delivery::{DeliveryOutcome, FinishedDelivery, PendingDelivery};

/// Bytes of bodies that wait in memory for their first attempt; bodies beyond them are read from the database.
const MAX_BODY_BYTES: usize = 16 << 20;
/// Bytes of the bodies that are being sent to one origin.
const MAX_BYTES_PER_ORIGIN: usize = 32 << 20;

/// The dispatcher looks at its queue at least this often; nothing depends on it.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// What the handles tell the dispatcher.
enum OutboxMessage {
    Deliver(PendingDelivery),
    /// Somebody waits for the first attempts of everything: the host is stopping.
    TryAll,
}

/// Puts results on their way.
#[derive(Clone)]
pub struct Outbox {
    messages: mpsc::UnboundedSender<OutboxMessage>,
    /// Results whose first attempt has not ended. They are counted here, before they are sent to the dispatcher, so
    /// that none is overlooked on its way.
    untried: watch::Sender<usize>,
}

impl Outbox {
    pub fn send(&self, delivery: PendingDelivery) {
        let job_id = delivery.job_id.clone();
        if delivery.attempts == 0 {
            self.untried.send_modify(|n| *n += 1);
        }
        if self.messages.send(OutboxMessage::Deliver(delivery)).is_err() {
            tracing::warn!(
                job_id = &*job_id,
                "the host is stopping; the result is delivered after the next start"
            );
        }
    }

    /// Waits until every result that was put in has been tried at least once. For the end of the host: from now on an
    /// outage of a receiver holds back no first attempt.
    pub async fn all_tried(&self) {
        if self.messages.send(OutboxMessage::TryAll).is_err() {
            // The dispatcher has ended, and with it every attempt.
            return;
        }
        let mut untried = self.untried.subscribe();
        tokio::select! {
            _ = untried.wait_for(|n| *n == 0) => {}
            () = self.messages.closed() => {}
        }
    }
}

/// What a task of the dispatcher works for, known although it panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Attempt(DeliveryId),
    Record(DeliveryId),
}

/// How a task of the dispatcher ended.
enum WorkEnd {
    Attempt(DeliveryId, AttemptEnd),
    Recorded(DeliveryId),
    /// The end of a delivery could not be written.
    RecordFailed(DeliveryId),
    /// The database has closed: the host is stopping, and the next start finds the row as it is.
    StoreStopped,
}

/// The task behind [`Outbox`].
pub struct WebhookDispatcher {
    inbox: mpsc::UnboundedReceiver<OutboxMessage>,
    queue: DeliveryQueue,
    /// The moment that the queue's times count from.
    started: Instant,
    tasks: JoinSet<WorkEnd>,
    works: HashMap<tokio::task::Id, Work>,
    untried: watch::Sender<usize>,
    heartbeats: watch::Receiver<HeartbeatOutcome>,
    sender: WebhookSender,
    store: Store,
    metrics: Arc<Metrics>,
    activity: Arc<Activity>,
    finished: mpsc::UnboundedSender<FinishedDelivery>,
    /// Every [`Outbox`] is gone: no more attempts are started.
    is_closing: bool,
}

impl WebhookDispatcher {
    pub fn new(
        sender: WebhookSender,
        store: Store,
        settings: WebhookSettings,
        metrics: Arc<Metrics>,
        activity: Arc<Activity>,
        heartbeats: watch::Receiver<HeartbeatOutcome>,
        finished: mpsc::UnboundedSender<FinishedDelivery>,
    ) -> (Outbox, WebhookDispatcher) {
        let (messages, inbox) = mpsc::unbounded_channel();
        let untried = watch::Sender::new(0);
        let outbox = Outbox { messages, untried: untried.clone() };
        let limits = DeliveryLimits {
            max_in_flight: settings.max_in_flight,
            max_per_origin: settings.max_per_origin,
            backoff: BackoffRange { first: settings.backoff, max: settings.backoff_max },
            max_body_bytes: MAX_BODY_BYTES,
            max_bytes_per_origin: MAX_BYTES_PER_ORIGIN,
        };
        let dispatcher = WebhookDispatcher {
            inbox,
            queue: DeliveryQueue::new(limits),
            started: Instant::now(),
            tasks: JoinSet::new(),
            works: HashMap::new(),
            untried,
            heartbeats,
            sender,
            store,
            metrics,
            activity,
            finished,
            is_closing: false,
        };
        (outbox, dispatcher)
    }

    /// Runs until every [`Outbox`] is gone. Attempts in flight and ends that are being written are then waited for: a
    /// result whose acceptance went unheard would be delivered again after the next start.
    pub async fn run(mut self) {
        loop {
            let wake = self.queue.next_wake().map_or(Instant::now() + LONGEST_SLEEP, |at| self.started + at);
            let event = tokio::select! {
                message = self.inbox.recv() => match message {
                    Some(OutboxMessage::Deliver(delivery)) => {
                        self.metrics.undelivered.inc();
                        DeliveryEvent::Added(delivery)
                    }
                    Some(OutboxMessage::TryAll) => DeliveryEvent::DrainBegan,
                    None => return self.finish_works().await,
                },
                Some(ended) = self.tasks.join_next_with_id() => match self.event_of(ended) {
                    Some(event) => event,
                    None => continue,
                },
                Ok(()) = self.heartbeats.changed() => DeliveryEvent::TimePassed,
                () = sleep_until(wake) => DeliveryEvent::TimePassed,
            };
            self.apply(event);
        }
    }

    /// Feeds an event to the queue and performs what it asks for.
    fn apply(&mut self, event: DeliveryEvent) {
        let now = self.started.elapsed();
        // First: a heartbeat that was accepted before an attempt ended must not count as one after it.
        let accepted = self.heartbeats.borrow_and_update().accepted;
        let heartbeats = DeliveryEvent::HeartbeatsAccepted(accepted);
        for event in [heartbeats, event] {
            for effect in self.queue.on(now, event, &mut rand::random::<f64>) {
                self.perform(effect);
            }
        }
    }

    fn perform(&mut self, effect: DeliveryEffect) {
        match effect {
            DeliveryEffect::Attempt(_) if self.is_closing => {}
            DeliveryEffect::Attempt(attempt) => self.attempt(attempt),
            DeliveryEffect::NoteFailure(failure) => self.note_failure(failure),
            DeliveryEffect::RecordEnd(record) => self.record(record),
            DeliveryEffect::Report(finished) => {
                self.metrics.undelivered.dec();
                if self.finished.send(finished).is_err() {
                    tracing::debug!("a delivery finished while the host was stopping");
                }
            }
            DeliveryEffect::FirstAttemptEnded => self.untried.send_modify(|n| *n = n.saturating_sub(1)),
            DeliveryEffect::OriginRecovered { origin, woken } => {
                tracing::info!(origin = &*origin, results = woken, "the callback's host accepts again");
            }
            DeliveryEffect::UnknownDelivery { id, event } => {
                tracing::error!(?id, event, "unexpected event of a delivery; report this as a bug");
            }
        }
    }

    /// Starts a task that posts a result once.
    fn attempt(&mut self, attempt: DeliveryAttempt) {
        let DeliveryAttempt { id, message_id, callback_url, body } = attempt;
        let (sender, store) = (self.sender.clone(), self.store.clone());
        let (metrics, activity) = (self.metrics.clone(), self.activity.clone());
        self.spawn(Work::Attempt(id), async move {
            let body = match body {
                Some(body) => body,
                None => match store.load_result(message_id).await {
                    Ok(Some(row)) if row.body.is_empty() => {
                        let why = "the stored result has lost its body".into();
                        return WorkEnd::Attempt(id, AttemptEnd::Refused { why });
                    }
                    Ok(Some(row)) => row.body,
                    Ok(None) => return WorkEnd::Attempt(id, AttemptEnd::Dropped),
                    Err(error) => {
                        return WorkEnd::Attempt(id, AttemptEnd::NotSent { why: error.to_string() });
                    }
                },
            };
            let start = Instant::now();
            let outcome = sender.attempt(&callback_url, body).await;
            let took = start.elapsed();
            metrics.webhook_seconds.observe(took.as_secs_f64());
            activity.attempted(took, matches!(outcome, AttemptOutcome::Accepted));
            WorkEnd::Attempt(id, attempt_end(outcome))
        });
    }

    /// Starts a task that writes the end of a delivery. Until it is on disk the message stays unacknowledged.
    fn record(&mut self, record: EndRecord) {
        let EndRecord { id, message_id, job_id, refused } = record;
        let store = self.store.clone();
        self.spawn(Work::Record(id), async move {
            let written = match refused {
                None => store.record_delivered(message_id).await,
                Some(why) => store.record_refused(message_id, why).await,
            };
            match written {
                Ok(()) => WorkEnd::Recorded(id),
                Err(StoreError::Stopped) => WorkEnd::StoreStopped,
                Err(error) => {
                    // A database that takes no writes at all is said once, by the job table.
                    if store.failure().borrow().is_none() {
                        tracing::error!(
                            job_id = &*job_id,
                            %error,
                            "the end of a delivery could not be recorded; trying again"
                        );
                    }
                    WorkEnd::RecordFailed(id)
                }
            }
        });
    }

    fn spawn(&mut self, work: Work, task: impl Future<Output = WorkEnd> + Send + 'static) {
        let task = self.tasks.spawn(task);
        self.works.insert(task.id(), work);
    }

    /// What the end of a task means for the queue.
    fn event_of(
        &mut self,
        ended: Result<(tokio::task::Id, WorkEnd), tokio::task::JoinError>,
    ) -> Option<DeliveryEvent> {
        let end = match ended {
            Ok((task, end)) => {
                self.works.remove(&task);
                end
            }
            Err(error) => {
                let work = self.works.remove(&error.id());
                tracing::error!(%error, ?work, "a delivery task failed; report this as a bug");
                match work? {
                    Work::Attempt(id) => {
                        let why = format!("the delivery task failed: {error}");
                        WorkEnd::Attempt(id, AttemptEnd::NotSent { why })
                    }
                    Work::Record(id) => WorkEnd::RecordFailed(id),
                }
            }
        };
        Some(match end {
            WorkEnd::Attempt(id, end) => {
                if let Some(result) = attempt_result(&end) {
                    self.metrics.attempt(result);
                }
                DeliveryEvent::AttemptEnded { id, end }
            }
            WorkEnd::Recorded(id) => DeliveryEvent::EndRecorded { id },
            WorkEnd::RecordFailed(id) => DeliveryEvent::RecordFailed { id },
            WorkEnd::StoreStopped => {
                tracing::debug!("the end of a delivery was not recorded: the state database has closed");
                return None;
            }
        })
    }

    /// Logs a failed attempt and notes it in the row.
    fn note_failure(&self, failure: FailedAttempt) {
        let FailedAttempt { message_id, job_id, attempts, why, next } = failure;
        let is_repeated = !matches!(next, NextAttempt::Never);
        self.activity.attempts_failed(&job_id, attempts, &why, is_repeated);
        let job_id = &*job_id;
        match next {
            NextAttempt::After(pause) => {
                let retry_in_ms = pause.as_millis() as u64;
                tracing::warn!(
                    job_id,
                    attempts,
                    retry_in_ms,
                    error = why,
                    "the result was not delivered; trying again"
                );
            }
            NextAttempt::AfterHeartbeat => tracing::warn!(
                job_id,
                attempts,
                error = why,
                "our credentials are not accepted; the result is held until a heartbeat is"
            ),
            NextAttempt::Never => tracing::error!(
                job_id,
                attempts,
                error = why,
                "the result was refused permanently; it is kept on disk"
            ),
        }
        self.store.record_attempt(message_id, attempts, why);
    }

    /// Waits for the attempts in flight, each of which has its time limit, and for the ends that are being written. Starts
    /// no further attempt.
    async fn finish_works(mut self) {
        self.is_closing = true;
        while let Some(ended) = self.tasks.join_next_with_id().await {
            match self.event_of(ended) {
                // A write that failed is not tried again: the next start finds the row and sends the result once more.
                None | Some(DeliveryEvent::RecordFailed { .. }) => {}
                Some(event) => self.apply(event),
            }
        }
    }
}

fn attempt_end(outcome: AttemptOutcome) -> AttemptEnd {
    match outcome {
        AttemptOutcome::Accepted => AttemptEnd::Accepted,
        AttemptOutcome::Retry { after, why } => AttemptEnd::Failed { retry_after: after, why },
        AttemptOutcome::Unauthorized { why } => AttemptEnd::Unauthorized { why },
        AttemptOutcome::Refused { status, excerpt } => {
            AttemptEnd::Refused { why: format!("HTTP {status}: {excerpt}") }
        }
        AttemptOutcome::Forbidden(error) => AttemptEnd::Refused { why: error.to_string() },
    }
}

/// How the metrics count an attempt; a dropped result was not attempted.
fn attempt_result(end: &AttemptEnd) -> Option<AttemptResult> {
    match end {
        AttemptEnd::Accepted => Some(AttemptResult::Accepted),
        AttemptEnd::Refused { .. } => Some(AttemptResult::Refused),
        AttemptEnd::Unauthorized { .. } => Some(AttemptResult::Unauthorized),
        AttemptEnd::Failed { .. } | AttemptEnd::NotSent { .. } => Some(AttemptResult::Retry),
        AttemptEnd::Dropped => None,
    }
}

#[cfg(test)]
#[path = "dispatcher_tests.rs"]
mod tests;
