//! The one owner of the job table: takes events, has the table decide, performs what it asks for.
//!
//! A single task. Nothing in it waits for Redis, disk or network, so a slot is never idle for their sake: effects
//! that take time run as tasks of the driver, which report what came of them (`perform`; those of one moment together,
//! `group`). No job's state is kept here.

mod group;
mod notices;
mod observe;
mod perform;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::check::Checker;
use super::claim_gate::ClaimGate;
use super::job_facts::{CancelledRun, FactsBook};
use super::journal::RunRecorder;
use super::limits::RunEstimate;
use super::redis::Redis;
use super::stream::Claim;
use super::table::{
    Event, Fault, JobTable, Leftover, Now, RecoveredResult, RetryRule, TableSettings, TableStatus, Ticket,
};
use crate::activity::Activity;
use crate::config::settings::JobSettings;
use crate::executor::{Executor, Generation, JobContext, SlotReport};
use crate::model::{JobId, MessageId, iso_time};
use crate::results::dispatcher::{FinishedDelivery, Outbox};
use crate::results::outcome::ShotRule;
use crate::state::answer_journal::KeptAnswers;
use crate::state::db::Store;
use crate::sys::Dispositions;
use crate::telemetry::Metrics;
use group::EffectGroup;

pub use super::check::CallbackRule;

/// Messages that may wait for another one with their job id.
const MAX_PARKED: usize = 256;

/// Bytes of messages that are held before no more are claimed. A circuit takes a few times the size of its message.
const MAX_HELD_BYTES: usize = 64 << 20;

/// Events that are applied before others get their turn: stops, claims, polls.
const EVENTS_AT_ONCE: usize = 256;

/// What the rest of the host may know about the jobs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// The first job in the plugin.
    pub current_job: Option<JobId>,
    /// When a success webhook was last accepted.
    pub last_job_at: Option<String>,
    pub slots: usize,
    pub slots_busy: usize,
    pub waiting: usize,
    /// Which device is in use, so that a change is seen as one.
    pub generation: Generation,
    /// Why results can't be stored now; nothing is claimed then.
    pub store_error: Option<String>,
    /// Why cancels can't be read now.
    pub cancel_error: Option<String>,
    /// Why claimed messages can't be checked now; they stay pending.
    pub check_error: Option<String>,
    /// Events that fitted no job's state.
    pub faults: Vec<Fault>,
    pub running: CurrentRun,
}

/// The first job's context, for its progress; equal to itself alone.
#[derive(Clone, Default)]
pub struct CurrentRun(pub Option<Arc<JobContext>>);

impl PartialEq for CurrentRun {
    fn eq(&self, other: &CurrentRun) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
    }
}

impl std::fmt::Debug for CurrentRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CurrentRun").field(&self.0.as_ref().map(|c| c.progress())).finish()
    }
}

/// What the driver is built from.
pub struct DriverParts {
    pub settings: JobSettings,
    pub redis: Redis,
    pub store: Store,
    pub recorder: RunRecorder,
    /// What a former process got from the plugin and had not stored.
    pub answered: KeptAnswers,
    pub executor: Executor,
    pub outbox: Outbox,
    pub callback: CallbackRule,
    pub metrics: Arc<Metrics>,
    pub activity: Arc<Activity>,
    pub dispositions: Arc<Dispositions>,
    /// Permits of the read-ahead.
    pub prefetch: Arc<Semaphore>,
    /// How often the process died while it ran a message.
    pub deaths: HashMap<MessageId, u32>,
    /// Results that were on disk at the start.
    pub recovered: Vec<RecoveredResult>,
    pub claims: mpsc::Receiver<Claim>,
    pub slot_reports: mpsc::UnboundedReceiver<SlotReport>,
    pub finished: mpsc::UnboundedReceiver<FinishedDelivery>,
    pub snapshot: watch::Sender<Snapshot>,
    pub gate: Arc<ClaimGate>,
    pub stop: CancellationToken,
    /// How long running jobs may take after `stop`.
    pub drain_limit: Duration,
    pub retry: Duration,
}

/// How it ended.
pub struct Ended {
    pub executor: Executor,
    pub left: Leftover,
}

/// The driver, ready to run.
pub struct Driver {
    parts: DriverParts,
    table: JobTable,
    checker: Checker,
    store_failure: watch::Receiver<Option<String>>,
    started: Instant,
    /// Which executor the table's device belongs to.
    generation: Generation,
    /// Events of effects that are performed at once.
    immediate: VecDeque<Event>,
    /// What is performed together with others of the same moment.
    group: EffectGroup,
    /// What the record of ended jobs is to say of those in flight.
    facts: FactsBook,
    reports: mpsc::UnboundedSender<Vec<Event>>,
    inbox: mpsc::UnboundedReceiver<Vec<Event>>,
    tasks: TaskTracker,
}

impl Driver {
    pub fn new(mut parts: DriverParts) -> Driver {
        parts.executor.observe(Arc::new(parts.recorder.clone()));
        let (reports, inbox) = mpsc::unbounded_channel();
        let device = &parts.executor.active_plugin().device;
        let slots = usize::from(device.slots);
        parts.metrics.slots.set(slots as i64);
        let table = JobTable::new(TableSettings {
            slots,
            max_parked: MAX_PARKED,
            max_held_bytes: MAX_HELD_BYTES,
            retry: parts.retry,
            runs_again: RetryRule {
                max: parts.settings.retry_max,
                window: parts.settings.retry_window,
                pause: parts.settings.retry_pause,
                longest_pause: parts.settings.retry_pause_max,
            },
            device: Arc::new(device.clone()),
            limits: parts.settings.limits,
            estimate: RunEstimate({
                let status = parts.executor.status();
                Arc::new(move |program, shots| status.expected_run(program, shots))
            }),
            deaths: std::mem::take(&mut parts.deaths),
            answered: std::mem::take(&mut parts.answered),
        });
        let checker = Checker {
            redis: parts.redis.clone(),
            store: parts.store.clone(),
            callback: parts.callback.clone(),
            max_deaths: parts.settings.max_deaths,
        };
        let immediate = std::mem::take(&mut parts.recovered).into_iter().map(Event::Recovered).collect();
        Driver {
            table,
            checker,
            store_failure: parts.store.failure(),
            started: Instant::now(),
            generation: Generation::default(),
            immediate,
            group: EffectGroup {
                max_result_bytes: parts.settings.max_result_bytes,
                ..EffectGroup::default()
            },
            facts: FactsBook::default(),
            reports,
            inbox,
            tasks: TaskTracker::new(),
            parts,
        }
    }

    /// Runs until stopped and drained.
    pub async fn run(mut self) -> Ended {
        let mut poll = interval(self.parts.settings.cancel_poll);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let far = Duration::from_secs(86_400);
        let mut deadline: Option<Instant> = None;
        self.settle();
        loop {
            let wake = self.table.next_wake().map(|at| self.started + at);
            tokio::select! {
                // Answers before new work: what has ended makes room for it.
                biased;
                Some(report) = self.parts.slot_reports.recv() => self.slot_report(report),
                Some(FinishedDelivery { message_id, outcome, .. }) = self.parts.finished.recv() => {
                    self.apply(Event::Delivered { message_id, outcome });
                }
                Some(events) = self.inbox.recv() => events.into_iter().for_each(|event| self.apply(event)),
                Ok(()) = self.store_failure.changed() => {
                    let error = self.store_failure.borrow_and_update().clone();
                    self.apply(Event::StoreChanged { error });
                }
                Some(claim) = self.parts.claims.recv() => self.claim(claim),
                _ = poll.tick() => self.poll(),
                () = sleep_until(wake.unwrap_or(self.started)), if wake.is_some() => self.apply(Event::Tick),
                () = self.parts.stop.cancelled(), if deadline.is_none() => {
                    deadline = Some(Instant::now() + self.parts.drain_limit);
                    self.apply(Event::DrainRequested);
                }
                () = sleep_until(deadline.unwrap_or_else(|| Instant::now() + far)), if deadline.is_some() => break,
            }
            self.settle();
            if deadline.is_some()
                && self
                    .table
                    .is_drained(self.parts.redis.link.is_up() && self.parts.redis.writes.refusal().is_none())
            {
                break;
            }
        }
        self.finish()
    }

    /// Applies what is there already and what effects led to at once, then performs what was gathered, and shows the
    /// result once for all.
    fn settle(&mut self) {
        for _ in 0..EVENTS_AT_ONCE {
            if let Some(event) = self.immediate.pop_front() {
                self.apply(event);
            } else if let Ok(report) = self.parts.slot_reports.try_recv() {
                self.slot_report(report);
            } else if let Ok(FinishedDelivery { message_id, outcome, .. }) = self.parts.finished.try_recv() {
                self.apply(Event::Delivered { message_id, outcome });
            } else if let Ok(events) = self.inbox.try_recv() {
                events.into_iter().for_each(|event| self.apply(event));
            } else {
                break;
            }
        }
        while let Some(event) = self.immediate.pop_front() {
            self.apply(event);
        }
        if !self.group.stores.is_empty() {
            self.group.shot_rule = match self.parts.executor.active_plugin().info.may_lose_shots() {
                true => ShotRule::AtMost,
                false => ShotRule::Exact,
            };
        }
        self.group.flush(&self.parts.redis, &self.parts.store, &self.tasks, &self.reports);
        self.publish();
    }

    fn apply(&mut self, event: Event) {
        self.observe(&event);
        let now = Now { elapsed: self.started.elapsed(), at: OffsetDateTime::now_utc() };
        for effect in self.table.on(now, event) {
            self.perform(effect);
        }
    }

    fn claim(&mut self, claim: Claim) {
        match claim {
            Claim::Messages(messages, origin) => self.apply(Event::Claimed { messages, origin }),
            Claim::Trimmed(ids) => self.apply(Event::Trimmed(ids)),
            Claim::Unheld(ids, answer) => {
                if answer.send(self.table.not_held(ids)).is_err() {
                    tracing::debug!("the reader ended while it asked about pending messages");
                }
            }
        }
    }

    fn slot_report(&mut self, report: SlotReport) {
        match report {
            SlotReport::Started { slot, tickets } => {
                self.facts.called(&tickets);
                self.apply(Event::Started { slot, tickets });
            }
            SlotReport::DeviceChanged { active, generation } => {
                self.generation = generation;
                tracing::debug!(device = active.device.name, "waiting jobs are judged by the new device");
                self.apply(Event::DeviceChanged { device: Arc::new(active.device.clone()) });
            }
            SlotReport::Answered { slot, ticket, answer, run_time } => {
                self.parts.metrics.run_seconds.observe(run_time.as_secs_f64());
                self.parts.activity.answered(ticket, run_time);
                if let Some(CancelledRun { message_id, job_id, facts }) =
                    self.facts.answered(ticket, run_time)
                {
                    self.parts.store.add_cancelled_run(message_id, job_id, facts);
                }
                self.apply(Event::Answered { slot, ticket, answer });
            }
        }
    }

    fn poll(&mut self) {
        if self.table.status().slots_busy > 0 {
            let changed = self.parts.dispositions.restore();
            if !changed.is_empty() {
                let (described, signals) = (self.parts.executor.active_plugin(), changed.join(" "));
                let plugin = &described.info.name;
                tracing::warn!(plugin, signals, "the plugin changed signal handling during a run; put back");
            }
        }
        self.apply(Event::CancelPoll);
    }

    fn publish(&self) {
        let stale = self.parts.settings.recover_interval * 2 + Duration::from_secs(1);
        let status = self.table.status();
        let TableStatus {
            current,
            slots,
            slots_busy,
            waiting,
            is_full,
            store_error,
            cancel_error,
            faults,
            last_success,
            ..
        } = status;
        self.parts.gate.set_full(is_full);
        self.parts.gate.set_store_failing(store_error.is_some());
        self.parts.metrics.slots_busy.set(slots_busy as i64);
        self.parts.metrics.waiting.set(waiting as i64);
        let run = |(ticket, _): &(Ticket, JobId)| self.parts.executor.context_of(*ticket);
        let next = Snapshot {
            running: CurrentRun(current.as_ref().and_then(run)),
            current_job: current.map(|(_, job_id)| job_id),
            last_job_at: last_success.map(iso_time),
            slots,
            slots_busy,
            waiting,
            generation: self.generation,
            store_error,
            cancel_error,
            // Messages that can't be checked come again with each look through the pending list. An error that did not
            // is over: its messages are gone.
            check_error: status
                .check_error
                .filter(|(at, _)| self.started.elapsed() - *at < stale)
                .map(|(_, e)| e),
            faults,
        };
        self.parts.snapshot.send_if_modified(|now| {
            let changed = *now != next;
            *now = next;
            changed
        });
    }

    fn finish(self) -> Ended {
        let left = self.table.leftover();
        self.parts.recorder.forget_running(self.table.status().slots);
        Ended { executor: self.parts.executor, left }
    }
}
