//! The one owner of every job: who waits, who runs, who has ended.
//!
//! A single task takes events (claims, verdicts, answers of the plugin, cancels, ends), moves each job's
//! [`Life`] and starts what follows; nothing in it waits for Redis, disk or network, so a slot is never idle
//! for their sake. Checks and ends run as tasks that report back.
//!
//! Two messages with one job id are never in flight together: the later one is parked until the earlier has
//! its terminal state, then checked again.

mod drain;
mod ends;
mod slots;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::check::{Checker, Verdict};
use super::finish::{Finisher, Stored};
use super::lifecycle::{Event, Life};
use super::message::{Envelope, Message, Work};
use super::redis::Redis;
use super::stream::Claim;
use crate::config::settings::JobSettings;
use crate::executor::{Executor, JobContext, RunDone};
use crate::failpoint::{self, Failpoint};
use crate::model::{JobId, MessageId};
use crate::results::dispatcher::{FinishedDelivery, Outbox};
use crate::results::outcome::fail;
use crate::state::answer_journal::KeptAnswers;
use crate::state::db::{ResultRow, Store};
use crate::sys::Dispositions;
use crate::telemetry::{JobOutcome, Metrics};

pub use super::check::CallbackRule;
pub use slots::Notes;

/// What the rest of the host may know of the jobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// The first job in the plugin.
    pub current_job: Option<JobId>,
    /// When a success webhook was last accepted.
    pub last_job_at: Option<String>,
    pub slots: usize,
    pub slots_busy: usize,
    pub waiting: usize,
    /// A control call of the plugin that doesn't come back.
    pub stuck: Option<String>,
    pub running: Running,
}

/// The first job's context, for its progress; equal to itself alone.
#[derive(Clone, Default)]
pub struct Running(pub Option<Arc<JobContext>>);

impl PartialEq for Running {
    fn eq(&self, other: &Running) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Running").field(&self.0.as_ref().map(|c| c.progress())).finish()
    }
}

/// What the driver is built from.
pub struct DriverParts {
    pub settings: JobSettings,
    pub redis: Redis,
    pub store: Store,
    pub notes: Notes,
    /// What a former process got from the plugin and had not stored.
    pub answered: KeptAnswers,
    pub executor: Executor,
    pub outbox: Outbox,
    pub callback: CallbackRule,
    pub metrics: Arc<Metrics>,
    pub dispositions: Arc<Dispositions>,
    pub room: Arc<Semaphore>,
    /// How often the process died while running a message.
    pub deaths: HashMap<MessageId, u32>,
    pub claims: mpsc::Receiver<Claim>,
    pub done: mpsc::UnboundedReceiver<RunDone>,
    pub sent: mpsc::UnboundedReceiver<FinishedDelivery>,
    pub snapshot: watch::Sender<Snapshot>,
    pub stop: CancellationToken,
    /// How long running jobs may take after `stop`.
    pub drain_limit: Duration,
    pub retry: Duration,
}

/// A result that was on disk at the start.
pub struct Recovered {
    pub row: ResultRow,
    pub origin: Arc<str>,
    pub attempts: u32,
    /// Its cancel key needs no more looking at.
    pub announced: bool,
}

/// How it ended.
pub struct Ended {
    pub executor: Executor,
    /// Jobs that were still in the plugin.
    pub left: Vec<JobId>,
    /// Results stored but not yet delivered.
    pub undelivered: usize,
}

/// What tasks report.
enum Report {
    Checked(Vec<MessageId>, Result<Vec<(MessageId, Verdict)>, String>),
    Cancels(Vec<u64>),
    Rechecked(u64, Result<Verdict, String>),
    Stored(u64, Stored),
    /// Every result was tried at least once.
    AllTried,
    /// A job that ended without a result, or whose acknowledgement is confirmed.
    Closed(u64),
    PollDone,
}

struct Entry {
    life: Life,
    message_id: MessageId,
    envelope: Option<Envelope>,
    work: Option<Work>,
    context: Option<Arc<JobContext>>,
    claimed: Instant,
    /// Whether it takes a unit of read-ahead.
    has_room: bool,
    /// The state `cancelled` being written while the plugin still has the job.
    closing: Option<JoinHandle<bool>>,
}

/// The driver, ready to run.
pub struct Driver {
    p: DriverParts,
    checker: Checker,
    finisher: Finisher,
    entries: HashMap<u64, Entry>,
    by_message: HashMap<MessageId, u64>,
    /// The ticket that a job id is in flight under, until its terminal state is written.
    by_job: HashMap<JobId, u64>,
    parked: HashMap<JobId, Vec<u64>>,
    /// Being checked: what came later waits for them, so that jobs run in the stream's order.
    checking: BTreeSet<u64>,
    /// Admitted, to be handed to the executor.
    admitted: BTreeSet<u64>,
    /// With the executor, in no slot yet.
    waiting: BTreeSet<u64>,
    running: Vec<u64>,
    /// How many jobs each slot has.
    in_slot: Vec<usize>,
    next_ticket: u64,
    polling: bool,
    last_job_at: Option<String>,
    reports: mpsc::UnboundedSender<Report>,
    inbox: mpsc::UnboundedReceiver<Report>,
    tasks: TaskTracker,
    /// Acknowledgements that Redis has not confirmed.
    acking: usize,
    drain: Drain,
}

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drain {
    No,
    /// Runs go on, results are stored.
    Running,
    /// Results are being tried once.
    Trying,
    Tried,
}

impl Driver {
    pub fn new(parts: DriverParts) -> Driver {
        parts.executor.watch(Arc::new(parts.notes.clone()));
        let (reports, inbox) = mpsc::unbounded_channel();
        let described = parts.executor.described();
        let slots = usize::from(described.device.slots);
        let checker = Checker {
            redis: parts.redis.clone(),
            store: parts.store.clone(),
            executor: parts.executor.view(),
            callback: parts.callback.clone(),
            max_deaths: parts.settings.max_deaths,
        };
        let finisher = Finisher {
            redis: parts.redis.clone(),
            store: parts.store.clone(),
            outbox: parts.outbox.clone(),
            retry: parts.retry,
        };
        parts.metrics.slots.set(slots as i64);
        Driver {
            checker,
            finisher,
            entries: HashMap::new(),
            by_message: HashMap::new(),
            by_job: HashMap::new(),
            parked: HashMap::new(),
            checking: BTreeSet::new(),
            admitted: BTreeSet::new(),
            waiting: BTreeSet::new(),
            running: Vec::new(),
            in_slot: vec![0; slots],
            next_ticket: 0,
            polling: false,
            last_job_at: None,
            reports,
            inbox,
            tasks: TaskTracker::new(),
            acking: 0,
            drain: Drain::No,
            p: parts,
        }
    }

    /// Takes up a result that was on disk at the start.
    pub fn recover(&mut self, recovered: Recovered) {
        let Recovered { row, origin, attempts, announced } = recovered;
        let ticket = self.enter(row.message_id, Life::stored(), false);
        let envelope = Envelope {
            job_id: row.job_id.clone(),
            callback_url: row.callback_url.clone(),
            origin: origin.clone(),
        };
        if let Some(entry) = self.entries.get_mut(&ticket) {
            entry.envelope = Some(envelope);
        }
        self.by_job.insert(row.job_id.clone(), ticket);
        let (finisher, reports) = (self.finisher.clone(), self.reports.clone());
        let wait = self.p.settings.redis_timeout;
        self.tasks.spawn(async move {
            let stored = if announced {
                finisher.outbox.send(super::finish::pending_delivery(row, origin, attempts, false));
                Stored::Sending { written: false }
            } else {
                // The link is just being made; give it a moment before the result goes out unasked.
                finisher.redis.wait_up(wait).await;
                finisher.resume(row, origin, attempts).await
            };
            reports.send(Report::Stored(ticket, stored)).ok();
        });
    }

    /// Runs until stopped and drained.
    pub async fn run(mut self) -> Ended {
        let mut tick = interval(self.p.settings.cancel_poll);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut deadline: Option<Instant> = None;
        self.publish();
        loop {
            let far = Instant::now() + Duration::from_secs(86_400);
            tokio::select! {
                biased;
                Some(done) = self.p.done.recv() => self.done(done),
                Some(sent) = self.p.sent.recv() => self.sent(sent),
                Some(report) = self.inbox.recv() => self.report(report),
                Some(claim) = self.p.claims.recv() => self.claim(claim),
                _ = tick.tick() => self.poll_cancels(),
                () = self.p.stop.cancelled(), if deadline.is_none() => {
                    deadline = Some(Instant::now() + self.p.drain_limit);
                    self.begin_drain();
                }
                () = sleep_until(deadline.unwrap_or(far)), if deadline.is_some() => break,
            }
            if deadline.is_none() {
                self.hand_over();
            }
            self.publish();
            if deadline.is_some() && self.is_drained() {
                break;
            }
        }
        self.finish()
    }

    // --- claims and checks

    fn claim(&mut self, claim: Claim) {
        match claim {
            Claim::Unheld(ids, answer) => {
                let unheld = ids.into_iter().filter(|id| !self.by_message.contains_key(id)).collect();
                answer.send(unheld).ok();
            }
            // Read while stopping: they stay pending, unmarked, for the next start.
            Claim::Messages(_) | Claim::Trimmed(_) if self.drain != Drain::No => {}
            Claim::Trimmed(ids) => {
                for id in ids {
                    tracing::warn!(message_id = %id, "a pending message's entry is gone from the stream; acknowledged");
                    self.p.metrics.trimmed.inc();
                    let finisher = self.finisher.clone();
                    self.tasks.spawn(async move { finisher.acknowledge(id).await });
                }
            }
            Claim::Messages(messages) => {
                let mut fresh = Vec::with_capacity(messages.len());
                for m in messages {
                    // A group made anew brings back what is in flight here.
                    if self.by_message.contains_key(&m.id) {
                        self.p.room.add_permits(1);
                        continue;
                    }
                    let ticket = self.enter(m.id, Life::new(), true);
                    self.checking.insert(ticket);
                    fresh.push(m);
                }
                self.check(fresh);
            }
        }
    }

    fn enter(&mut self, message_id: MessageId, life: Life, has_room: bool) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let entry = Entry {
            life,
            message_id,
            envelope: None,
            work: None,
            context: None,
            claimed: Instant::now(),
            has_room,
            closing: None,
        };
        self.entries.insert(ticket, entry);
        self.by_message.insert(message_id, ticket);
        ticket
    }

    fn check(&self, messages: Vec<Message>) {
        if messages.is_empty() {
            return;
        }
        let ids: Vec<MessageId> = messages.iter().map(|m| m.id).collect();
        let deaths = ids.iter().filter_map(|id| Some((*id, *self.p.deaths.get(id)?))).collect();
        let (checker, reports) = (self.checker.clone(), self.reports.clone());
        self.tasks.spawn(async move {
            failpoint::pause_at(Failpoint::Claimed).await;
            let verdicts = checker.check(messages, deaths).await;
            reports.send(Report::Checked(ids, verdicts)).ok();
        });
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Checked(ids, Ok(verdicts)) => {
                debug_assert_eq!(ids.len(), verdicts.len());
                for (id, verdict) in verdicts {
                    if let Some(ticket) = self.by_message.get(&id) {
                        self.checking.remove(ticket);
                    }
                    self.verdict(id, verdict);
                }
            }
            Report::Checked(ids, Err(error)) => {
                // They stay pending; the look through the pending list brings them back.
                tracing::warn!(
                    messages = ids.len(),
                    error,
                    "claimed messages can't be checked now; they stay pending"
                );
                for id in ids {
                    if let Some(&ticket) = self.by_message.get(&id) {
                        self.checking.remove(&ticket);
                        self.forget(ticket);
                    }
                }
            }
            Report::Rechecked(ticket, Ok(verdict)) => {
                if let Some(id) = self.entries.get(&ticket).map(|e| e.message_id) {
                    self.verdict(id, verdict);
                }
            }
            Report::Rechecked(ticket, Err(_)) => self.forget(ticket),
            Report::AllTried => self.drain = Drain::Tried,
            Report::Cancels(tickets) => tickets.into_iter().for_each(|t| self.cancel(t)),
            Report::PollDone => self.polling = false,
            Report::Stored(ticket, stored) => self.stored(ticket, stored),
            Report::Closed(ticket) => {
                self.acking = self.acking.saturating_sub(1);
                self.forget(ticket);
            }
        }
    }

    fn verdict(&mut self, id: MessageId, verdict: Verdict) {
        let Some(&ticket) = self.by_message.get(&id) else { return };
        let finisher = self.finisher.clone();
        match verdict {
            Verdict::Run(envelope, work) => self.admit(ticket, envelope, work),
            Verdict::Unfit(envelope, error) => {
                self.step(ticket, Event::Unfit);
                self.release_room(ticket);
                tracing::warn!(job_id = &*envelope.job_id, error, "the job can't be run; its sender is told");
                self.by_job.entry(envelope.job_id.clone()).or_insert(ticket);
                self.set_envelope(ticket, envelope.clone());
                let reports = self.reports.clone();
                self.tasks.spawn(async move {
                    let conclusion = fail(&envelope.job_id, &error);
                    let stored = finisher.conclude(id, &envelope, conclusion).await;
                    reports.send(Report::Stored(ticket, stored)).ok();
                });
            }
            Verdict::Duplicate(envelope) => {
                tracing::info!(job_id = &*envelope.job_id, message_id = %id, "the job ended before; acknowledged");
                self.close(ticket, JobOutcome::Duplicate, async move { finisher.acknowledge(id).await });
            }
            Verdict::Settle(envelope, status, error, at) => {
                let job = envelope.job_id;
                tracing::info!(job_id = &*job, message_id = %id, "the job ended here before; acknowledged");
                self.close(ticket, JobOutcome::Duplicate, async move {
                    finisher.settle(&job, id, status, error.as_deref(), &at).await
                });
            }
            Verdict::Cancelled(envelope) => {
                let job = envelope.job_id;
                tracing::info!(job_id = &*job, "cancelled before it ran");
                self.close(
                    ticket,
                    JobOutcome::Cancelled,
                    async move { finisher.close_cancelled(&job, id).await },
                );
            }
            Verdict::DeadLetter { reason, fields } => {
                self.close(ticket, JobOutcome::DeadLetter, async move {
                    finisher.dead_letter(id, reason, fields).await
                });
            }
        }
    }

    /// Lets a job wait for a slot, unless another message with its id is in flight.
    fn admit(&mut self, ticket: u64, envelope: Envelope, work: Work) {
        let job_id = envelope.job_id.clone();
        match self.by_job.get(&job_id) {
            Some(other) if *other != ticket => {
                tracing::info!(
                    job_id = &*job_id,
                    "another message with this job id is in flight; waiting for it"
                );
                self.release_room(ticket);
                if let Some(entry) = self.entries.get_mut(&ticket) {
                    (entry.envelope, entry.work) = (Some(envelope), Some(work));
                }
                self.parked.entry(job_id).or_default().push(ticket);
                return;
            }
            _ => self.by_job.insert(job_id.clone(), ticket),
        };
        let id = self.entries.get(&ticket).map(|e| e.message_id).unwrap_or(MessageId::ZERO);
        if let Some(kept) = self.p.answered.remove(&id).filter(|kept| *kept.job_id == *job_id) {
            tracing::info!(
                job_id = &*job_id,
                "the plugin had answered this before the process died; not run again"
            );
            self.step(ticket, Event::Unfit);
            self.release_room(ticket);
            self.set_envelope(ticket, envelope.clone());
            self.conclude(ticket, id, envelope, work, kept.answer);
            return;
        }
        self.step(ticket, Event::Admitted);
        if let Some(entry) = self.entries.get_mut(&ticket) {
            entry.envelope = Some(envelope);
            entry.work = Some(work);
            entry.context = Some(Arc::new(self.p.executor.context(job_id)));
            self.admitted.insert(ticket);
            self.waiting.insert(ticket);
        }
    }

    fn publish(&self) {
        let (slots, busy) = (self.in_slot.len(), self.in_slot.iter().filter(|n| **n > 0).count());
        self.p.metrics.slots_busy.set(busy as i64);
        self.p.metrics.waiting.set(self.waiting.len() as i64);
        let first = self.running.first().and_then(|t| self.entries.get(t));
        let current = first.and_then(|e| e.envelope.as_ref());
        let next = Snapshot {
            current_job: current.map(|e| e.job_id.clone()),
            last_job_at: self.last_job_at.clone(),
            slots,
            slots_busy: busy,
            waiting: self.waiting.len(),
            stuck: self.p.executor.stuck().map(|s| s.call),
            running: Running(first.and_then(|e| e.context.clone())),
        };
        self.p.snapshot.send_if_modified(|now| {
            let changed = *now != next;
            *now = next;
            changed
        });
    }
}
