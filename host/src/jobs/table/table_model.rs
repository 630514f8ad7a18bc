//! The job table in a small world of its own: Redis, disk, executor and cloud as lists, under random events,
//! outages, crashes and restarts. What is on disk and in Redis survives a crash, memory does not.
//!
//! Invariants, by name:
//! - `acknowledged_after_its_end`: a message is acknowledged only when its end is durable;
//! - `one_run_unless_cut_off`: a message runs again only when a crash fell into its run;
//! - `never_after_its_end`: a message that has ended does not run;
//! - `one_message_of_a_job`: two messages with one job id are never with the executor together;
//! - `cancel_before_the_decision_wins`, `decision_is_final`: exactly one of result and cancel wins;
//! - `one_delivery_unless_cut_off`: a result is accepted again only when a crash fell between the cloud's answer
//!   and our note of it;
//! - `slots_are_counted`, `permits_are_counted`: never negative, never over-admitted;
//! - `stream_order`: a job goes to the executor after those before it;
//! - `judged_by_its_device`: a job goes to the executor only when its device takes it;
//! - `suspects_run_alone`: a message that the process died on shares the executor with no other;
//! - `nothing_starts_while_the_store_fails`;
//! - `no_faults`: the table meets no event that it has no use for;
//! - `everything_ends`: once everything works again, every message ends, and nothing is held.
//!
//! `CODA_MODEL_SEED` and `CODA_MODEL_EVENTS` repeat and extend a run. That the invariants can fail is shown by
//! tables that are wrong in one way each ([`Defect`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use coda_plugin_abi::{Device, Error, ErrorCode, Outcome, Program, Target};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use time::OffsetDateTime;

use super::*;
use crate::jobs::admission::{Admission, JobRecord, MessageFacts, admit, died_error};
use crate::jobs::message::{Envelope, Message, Work};
use crate::model::JobId;
use crate::results::delivery::DeliveryOutcome;
use crate::state::answer_journal::{KeptAnswer, KeptAnswers};
use crate::state::db::{HistoryEntry, Phase, ResultRow, Status};

const SLOTS: usize = 2;
const BATCH_MAX: usize = 2;
const PERMITS: usize = 6;
const MAX_PARKED: usize = 3;
const MAX_DEATHS: u32 = 3;
const RETRY: Duration = Duration::from_secs(1);
/// Job ids in use at one time: few, so that messages collide.
const JOB_WINDOW: u64 = 4;

fn program(qubits: u16) -> Arc<Program> {
    static PROGRAMS: LazyLock<[Arc<Program>; 2]> = LazyLock::new(|| {
        [2, 3].map(|qubits| {
            let ir = format!(
                r#"{{"version":"1.0","target":"cz","num_qubits":{qubits},"gates":[],"measurements":[0],
                    "metadata":{{"source_hash":"h","compiled_at":"2026-01-01T00:00:00Z"}}}}"#
            );
            Arc::new(Program::parse(ir.as_bytes()).unwrap())
        })
    });
    PROGRAMS[usize::from(qubits - 2)].clone()
}

fn device(qubits: u16) -> Arc<Device> {
    Arc::new(Device::new("d", qubits, [Target::Cz]))
}

/// What a message asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Circuit { qubits: u16 },
    Malformed,
    Unanswerable,
}

#[derive(Debug, Clone)]
struct Entry {
    job_id: JobId,
    content: Content,
}

/// A row of the results table.
#[derive(Debug, Clone)]
struct Row {
    row: ResultRow,
    phase: Phase,
}

/// What no crash takes away.
#[derive(Default)]
struct Durable {
    // Redis
    stream: BTreeMap<MessageId, Entry>,
    undelivered: VecDeque<MessageId>,
    pending: BTreeSet<MessageId>,
    status: HashMap<JobId, (String, MessageId)>,
    cancel_keys: HashSet<JobId>,
    // disk
    rows: BTreeMap<MessageId, Row>,
    history: BTreeMap<MessageId, HistoryEntry>,
    dead_letters: BTreeSet<MessageId>,
    deaths: HashMap<MessageId, u32>,
    answers: KeptAnswers,
}

/// What the test knows of a message beyond what the host knows.
#[derive(Default)]
struct Observed {
    starts: u32,
    /// Runs that a crash or a forced stop cut off.
    cut_runs: u32,
    accepted: u32,
    /// Deliveries that a crash cut off after the cloud's answer.
    cut_deliveries: u32,
    /// Its result was dropped for a cancel.
    cancel_won: bool,
    /// The decision for the result is in Redis or on disk.
    decided: bool,
    trimmed: bool,
}

/// A delivery with the dispatcher.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Fresh,
    Tried,
    /// The cloud has answered; the note on disk is missing.
    Answered(DeliveryOutcome),
}

/// What a crash takes away.
struct Memory {
    table: JobTable,
    /// Effects under way.
    effects: Vec<Effect>,
    queue: BTreeMap<Ticket, Submission>,
    slots: [Vec<Submission>; SLOTS],
    /// What the slots have reported, in order.
    reports: VecDeque<Event>,
    deliveries: BTreeMap<MessageId, Delivery>,
    permits: usize,
    draining: bool,
    /// Reloads that the table has not heard of.
    reloads_under_way: usize,
    /// The last write to disk that was reported failed.
    store_fails: bool,
    /// Messages whose cancel key the last look found set.
    cancel_read: HashSet<MessageId>,
}

/// One way in which a table can be wrong, put between the table and its world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    AcknowledgesBeforeTheStore,
    SubmitsTwice,
    IgnoresTheLastCancel,
    CancelsAfterTheDecision,
    DeliversTwice,
    KeepsPermits,
    GivesTooManyPermits,
    SubmitsInReverse,
    DropsASubmission,
    ForgetsDeaths,
    RunsWhileTheStoreFails,
    ReportsAnAnswerTwice,
    DropsAnAcknowledgement,
    RunsDuplicates,
    KeepsTheFormerDevice,
    ForgetsParking,
}

struct World {
    random: StdRng,
    durable: Durable,
    memory: Memory,
    observed: HashMap<MessageId, Observed>,
    /// Jobs with a completed result that was announced.
    completed: HashSet<JobId>,
    elapsed: Duration,
    redis_up: bool,
    disk_works: bool,
    qubits: u16,
    next_message: u64,
    events: u64,
    crashes: u64,
    ended: u64,
    defect: Option<Defect>,
    trace: Option<VecDeque<String>>,
}

type Broken = String;

impl World {
    fn new(seed: u64, defect: Option<Defect>) -> World {
        World {
            random: StdRng::seed_from_u64(seed),
            durable: Durable::default(),
            memory: Memory::new(HashMap::new(), HashMap::new(), 3),
            observed: HashMap::new(),
            completed: HashSet::new(),
            elapsed: Duration::ZERO,
            redis_up: true,
            disk_works: true,
            qubits: 3,
            next_message: 1,
            events: 0,
            crashes: 0,
            ended: 0,
            defect,
            trace: std::env::var_os("CODA_MODEL_TRACE").map(|_| VecDeque::new()),
        }
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_range(0..one_in) == 0
    }

    fn pick(&mut self, len: usize) -> usize {
        self.random.random_range(0..len)
    }

    /// Keeps the last lines of what happened, when `CODA_MODEL_TRACE` is set.
    fn trace(&mut self, what: &str, value: &dyn std::fmt::Debug) {
        if let Some(trace) = &mut self.trace {
            trace.push_back(format!("{what} {value:?}"));
            if trace.len() > 3_000 {
                trace.pop_front();
            }
        }
    }

    fn is(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn observed(&mut self, id: MessageId) -> &mut Observed {
        self.observed.entry(id).or_default()
    }

    // --- steps

    fn step(&mut self) -> Result<(), Broken> {
        match self.random.random_range(0..100) {
            0..12 => self.send(),
            12..22 => self.read()?,
            22..26 => self.sweep()?,
            26..56 => self.complete_one()?,
            56..66 => self.slot_takes(),
            66..76 => self.slot_answers(),
            76..84 => self.take_report()?,
            84..90 => self.deliver_one()?,
            90..92 => self.request_cancel(),
            92..95 => self.apply(Event::CancelPoll)?,
            95 => self.redis_up = !self.redis_up || self.chance(2),
            96 => self.disk_works = !self.disk_works || self.chance(2),
            97 => self.change_device()?,
            98 => self.pass_time()?,
            _ => self.stop_or_crash()?,
        }
        self.check()
    }

    fn send(&mut self) {
        let unread = self.durable.undelivered.len();
        if unread > 10 {
            return;
        }
        let id = MessageId { ms: self.next_message, seq: 0 };
        self.next_message += 1;
        let job = self.next_message / 8 + self.random.random_range(0..JOB_WINDOW);
        let content = match self.random.random_range(0..12) {
            0 => Content::Malformed,
            1 => Content::Unanswerable,
            2..5 => Content::Circuit { qubits: 3 },
            _ => Content::Circuit { qubits: 2 },
        };
        self.durable.stream.insert(id, Entry { job_id: format!("j{job}").into(), content });
        self.durable.undelivered.push_back(id);
    }

    /// New messages of the stream, as many as there are permits for.
    fn read(&mut self) -> Result<(), Broken> {
        if !self.redis_up || self.memory.draining {
            return Ok(());
        }
        let count = self.memory.permits.min(self.durable.undelivered.len());
        let ids: Vec<MessageId> = self.durable.undelivered.drain(..count).collect();
        self.durable.pending.extend(&ids);
        self.claim(ids, ClaimOrigin::New)
    }

    fn claim(&mut self, ids: Vec<MessageId>, origin: ClaimOrigin) -> Result<(), Broken> {
        if ids.is_empty() {
            return Ok(());
        }
        self.memory.permits -= ids.len();
        let messages = ids.into_iter().map(|id| Message { id, fields: Vec::new() }).collect();
        self.apply(Event::Claimed { messages, origin })
    }

    /// The look through the pending list.
    fn sweep(&mut self) -> Result<(), Broken> {
        if !self.redis_up || self.memory.draining {
            return Ok(());
        }
        let pending: Vec<MessageId> = self.durable.pending.iter().copied().collect();
        let mut ids = self.memory.table.not_held(pending);
        if self.chance(40)
            && let Some(id) = ids.pop()
        {
            self.durable.stream.remove(&id);
            self.observed(id).trimmed = true;
        }
        let (there, gone): (Vec<_>, Vec<_>) =
            ids.into_iter().partition(|id| self.durable.stream.contains_key(id));
        if !gone.is_empty() {
            self.apply(Event::Trimmed(gone))?;
        }
        let count = there.len().min(self.memory.permits);
        self.claim(there.into_iter().take(count).collect(), ClaimOrigin::LeftPending)
    }

    fn request_cancel(&mut self) {
        let newest = self.next_message / 8 + JOB_WINDOW;
        let job = newest.saturating_sub(self.random.random_range(0..2 * JOB_WINDOW));
        self.durable.cancel_keys.insert(format!("j{job}").into());
    }

    fn change_device(&mut self) -> Result<(), Broken> {
        self.qubits = 5 - self.qubits;
        self.memory.queue.clear();
        self.memory.reloads_under_way += 1;
        self.memory.reports.push_back(Event::DeviceChanged { device: device(self.qubits) });
        Ok(())
    }

    fn pass_time(&mut self) -> Result<(), Broken> {
        self.elapsed += Duration::from_millis(700);
        match self.memory.table.next_wake() {
            Some(at) if at <= self.elapsed => self.apply(Event::Tick),
            _ => Ok(()),
        }
    }

    fn stop_or_crash(&mut self) -> Result<(), Broken> {
        match self.random.random_range(0..8) {
            0..2 => self.crash(true),
            2 if !self.memory.draining => {
                self.memory.draining = true;
                self.apply(Event::DrainRequested)?;
            }
            // The drain's limit is over.
            3 if self.memory.draining => self.crash(false),
            _ => {}
        }
        Ok(())
    }

    // --- the executor

    fn slot_takes(&mut self) {
        let Some(slot) = self.memory.slots.iter().position(Vec::is_empty) else { return };
        let mut jobs = Vec::new();
        while jobs.len() < BATCH_MAX
            && let Some((_, job)) = self.memory.queue.pop_first()
        {
            jobs.push(job);
        }
        if !jobs.is_empty() {
            let tickets = jobs.iter().map(|job| job.ticket).collect();
            for job in &jobs {
                self.observed(job.message_id).starts += 1;
            }
            self.memory.slots[slot] = jobs;
            self.memory.reports.push_back(Event::Started { slot, tickets });
        }
    }

    fn slot_answers(&mut self) {
        let slot = self.pick(SLOTS);
        for job in std::mem::take(&mut self.memory.slots[slot]) {
            let answer = match self.chance(6) {
                true => Err(Error::new(ErrorCode::Hardware, "cold")),
                false => Ok(Outcome::from_counts([("0".to_string(), 1)])),
            };
            let job_id = job.job.envelope.job_id.to_string();
            self.durable.answers.insert(job.message_id, KeptAnswer { job_id, answer: answer.clone() });
            let times = if self.is(Defect::ReportsAnAnswerTwice) && self.chance(20) { 2 } else { 1 };
            for _ in 0..times {
                let (ticket, answer) = (job.ticket, answer.clone());
                self.memory.reports.push_back(Event::Answered { slot, ticket, answer });
            }
        }
    }

    fn take_report(&mut self) -> Result<(), Broken> {
        let Some(report) = self.memory.reports.pop_front() else { return Ok(()) };
        if matches!(report, Event::DeviceChanged { .. }) {
            self.memory.reloads_under_way -= 1;
        }
        self.apply(report)
    }

    /// Before a slot's call begins: what must hold of each job in it.
    fn may_start(&mut self, submission: &Submission) -> Result<(), Broken> {
        let (id, job_id) = (submission.message_id, &submission.job.envelope.job_id);
        if self.durable.history.contains_key(&id) || !self.durable.pending.contains(&id) {
            return Err(format!("never_after_its_end: {id} of {job_id} goes to the executor"));
        }
        let ended = self.durable.status.get(job_id).filter(|(state, _)| state == "completed");
        if let Some((_, other)) = ended.filter(|(_, other)| *other != id) {
            return Err(format!("never_after_its_end: {job_id} was completed by {other}, {id} runs"));
        }
        let mut others = self.memory.queue.values().chain(self.memory.slots.iter().flatten());
        if others.any(|other| other.job.envelope.job_id == *job_id) {
            return Err(format!("one_message_of_a_job: {job_id} is with the executor twice"));
        }
        let seen = self.observed(id);
        if seen.starts > seen.cut_runs {
            return Err(format!("one_run_unless_cut_off: {id} runs again"));
        }
        let is_suspect = self.durable.deaths.contains_key(&id);
        let others = self.memory.queue.len() + self.memory.slots.iter().flatten().count();
        let other_suspect = self
            .memory
            .queue
            .values()
            .chain(self.memory.slots.iter().flatten())
            .any(|other| self.durable.deaths.contains_key(&other.message_id));
        if (is_suspect && others > 0) || other_suspect {
            return Err(format!("suspects_run_alone: {id} joins {others} others"));
        }
        Ok(())
    }

    // --- effects

    fn apply(&mut self, event: Event) -> Result<(), Broken> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.events += 1;
            let now = Now { elapsed: self.elapsed, at: OffsetDateTime::UNIX_EPOCH + self.elapsed };
            self.trace("event", &event);
            self.memory.watch_store(&event);
            let event = match event {
                Event::DeviceChanged { .. } if self.is(Defect::KeepsTheFormerDevice) => {
                    Event::DeviceChanged { device: device(3) }
                }
                event => event,
            };
            let effects = self.memory.table.on(now, event);
            for effect in self.with_defect(effects) {
                if let Some(immediate) = self.perform(effect)? {
                    events.push_back(immediate);
                }
            }
        }
        Ok(())
    }

    /// Performs what the driver performs at once; everything else is under way from here on.
    fn perform(&mut self, effect: Effect) -> Result<Option<Event>, Broken> {
        self.trace("effect", &effect);
        match effect {
            Effect::ReturnPermits(permits) => self.memory.permits += permits,
            Effect::Submit(submissions) => {
                for submission in submissions {
                    if self.memory.reloads_under_way > 0 {
                        // Judged by the former device: the executor drops it.
                        continue;
                    }
                    self.may_start(&submission)?;
                    self.in_order(submission.ticket)?;
                    let qubits = submission.job.work.program.num_qubits();
                    if qubits > self.qubits {
                        let id = submission.message_id;
                        return Err(format!(
                            "judged_by_its_device: {id} has {qubits} qubits of {}",
                            self.qubits
                        ));
                    }
                    self.memory.queue.insert(submission.ticket, submission);
                }
            }
            Effect::Withdraw(ticket) => {
                let withdrawn = self.memory.queue.remove(&ticket).is_some();
                return Ok(Some(Event::Withdrawn { ticket, withdrawn }));
            }
            Effect::WriteExecuting { message_id, job_id } => {
                // The slot's thread has counted this run already.
                if self.redis_up {
                    self.durable.status.insert(job_id, ("executing".into(), message_id));
                }
            }
            Effect::Deliver(result) => {
                let id = result.row.message_id;
                if self.observed(id).cancel_won || self.memory.cancel_read.contains(&id) {
                    return Err(format!("cancel_before_the_decision_wins: {id} is delivered"));
                }
                self.memory.deliveries.insert(id, Delivery::Fresh);
            }
            Effect::Notify(Notice::Impossible(fault)) => return Err(format!("no_faults: {fault}")),
            Effect::Notify(_) | Effect::CancelRun(_) => {}
            Effect::ForgetDeaths(id) => {
                self.durable.deaths.remove(&id);
            }
            later => self.memory.effects.push(later),
        }
        Ok(None)
    }

    fn in_order(&self, ticket: Ticket) -> Result<(), Broken> {
        let table = &self.memory.table;
        if self.memory.store_fails {
            return Err("nothing_starts_while_the_store_fails: a job is handed over".into());
        }
        if let Some(first) = table.order.first_unchecked().filter(|first| *first < ticket) {
            return Err(format!("stream_order: {ticket} is handed over before {first} is checked"));
        }
        let earlier = table.jobs.range(..ticket).find(|(_, job)| matches!(job.state, JobState::Queued(_)));
        if let Some((earlier, _)) = earlier {
            return Err(format!("stream_order: {ticket} is handed over before {earlier}"));
        }
        match self.memory.queue.last_key_value() {
            Some((last, _)) if self.is(Defect::SubmitsInReverse) && *last > ticket => {
                Err(format!("stream_order: {ticket} is handed over after {last}"))
            }
            _ => Ok(()),
        }
    }

    /// Completes one effect that is under way, whichever.
    fn complete_one(&mut self) -> Result<(), Broken> {
        if self.memory.effects.is_empty() {
            return Ok(());
        }
        let index = self.pick(self.memory.effects.len());
        let effect = self.memory.effects.swap_remove(index);
        match self.complete(effect)? {
            Ok(event) => self.apply(event),
            Err(not_yet) => {
                self.memory.effects.push(not_yet);
                Ok(())
            }
        }
    }

    fn complete(&mut self, effect: Effect) -> Result<Result<Event, Effect>, Broken> {
        self.trace("completes", &effect);
        let (redis, disk) = (self.redis_up, self.disk_works);
        let down = || "connection refused".to_string();
        let full = || "disk full".to_string();
        let on_disk = if disk { Ok(()) } else { Err(full()) };
        Ok(Ok(match effect {
            Effect::Check(requests) if !redis || !disk => {
                let tickets = requests.iter().map(|r| r.ticket).collect();
                Event::CheckFailed { tickets, error: down() }
            }
            Effect::Check(mut requests) => {
                let request = requests.remove(0);
                let ticket = request.ticket;
                let outcome = self.check_message(request);
                if !requests.is_empty() {
                    self.memory.effects.push(Effect::Check(requests));
                }
                Event::Checked { ticket, outcome }
            }
            Effect::ReadCancelKeys(jobs) => {
                let set = |(_, job_id): &&(Ticket, JobId)| redis && self.durable.cancel_keys.contains(job_id);
                Event::CancelKeysRead(jobs.iter().filter(set).map(|(ticket, _)| *ticket).collect())
            }
            Effect::ReadRecord { ticket, job_id } => {
                let record = if redis { Ok(self.record(&job_id)) } else { Err(down()) };
                Event::RecordRead { ticket, record }
            }
            Effect::ReadCancelKey { ticket, job_id } => {
                let set = self.durable.cancel_keys.contains(&job_id);
                let cancelled = if redis { Ok(set) } else { Err(down()) };
                if cancelled == Ok(true)
                    && let Some(job) = self.memory.table.jobs.get(&ticket)
                {
                    self.memory.cancel_read.insert(job.claim.message_id);
                }
                match self.is(Defect::IgnoresTheLastCancel) {
                    true => Event::CancelKeyRead { ticket, cancelled: Ok(false) },
                    false => Event::CancelKeyRead { ticket, cancelled },
                }
            }
            Effect::WriteStatus { ticket, message_id, job_id, end } => {
                if redis {
                    if end.status == Status::Completed {
                        self.completed.insert(job_id.clone());
                    }
                    self.durable.status.insert(job_id, (end.status.name().into(), message_id));
                    self.observed(message_id).decided = true;
                }
                // The reply can be lost although the server has written.
                let written = redis && !self.chance(10);
                Event::StatusWritten { ticket, written }
            }
            Effect::Store { ticket, message_id, result, at } => {
                let result = row_of(message_id, result, at);
                match disk {
                    true => {
                        let row = Row { row: result.row.clone(), phase: Phase::Stored };
                        self.durable.rows.insert(message_id, row);
                        Event::Stored { ticket, result }
                    }
                    false => Event::StoreFailed { ticket, result, error: full() },
                }
            }
            Effect::MarkAnnounced { ticket, message_id } => {
                if disk && let Some(row) = self.durable.rows.get_mut(&message_id) {
                    row.phase = Phase::Announced;
                    self.observed(message_id).decided = true;
                }
                Event::Marked { ticket, marked: on_disk }
            }
            Effect::Discard { ticket, message_id } => {
                if self.observed(message_id).decided {
                    return Err(format!("decision_is_final: {message_id} is discarded"));
                }
                if disk {
                    self.durable.rows.remove(&message_id);
                    self.observed(message_id).cancel_won = true;
                }
                Event::Discarded { ticket, discarded: on_disk }
            }
            Effect::Bury { ticket, letter } => {
                if disk {
                    self.durable.dead_letters.insert(letter.message_id);
                }
                Event::Buried { ticket, buried: on_disk }
            }
            Effect::Acknowledge { ticket, message_id, status, removes_message } => {
                if !redis {
                    return Ok(Err(Effect::Acknowledge { ticket, message_id, status, removes_message }));
                }
                self.may_acknowledge(message_id, status.as_ref())?;
                if let Some((job_id, status)) = status {
                    let state = match status {
                        TerminalStatus::Ended(end) => {
                            if end.status == Status::Completed {
                                self.completed.insert(job_id.clone());
                            }
                            end.status.name()
                        }
                        TerminalStatus::Cancelled { .. } => "cancelled",
                    };
                    self.durable.status.insert(job_id, (state.into(), message_id));
                }
                if removes_message {
                    self.durable.pending.remove(&message_id);
                }
                self.ended += 1;
                Event::Acknowledged { ticket }
            }
            Effect::AwaitFirstAttempts => {
                match self.memory.deliveries.values().any(|d| *d == Delivery::Fresh) {
                    true => return Ok(Err(Effect::AwaitFirstAttempts)),
                    false => Event::AllTried,
                }
            }
            other => return Err(format!("the model does not know the effect {other:?}")),
        }))
    }

    fn record(&self, job_id: &JobId) -> JobRecord {
        let status = self.durable.status.get(job_id);
        JobRecord {
            state: status.map(|(state, _)| state.clone()),
            message_id: status.map(|(_, id)| id.to_string()),
            cancelled: self.durable.cancel_keys.contains(job_id),
        }
    }

    fn check_message(&mut self, request: CheckRequest) -> CheckOutcome {
        let CheckRequest { message_id, deaths, left_pending, subject, .. } = request;
        let entry = self.durable.stream.get(&message_id).cloned();
        let Some(entry) = entry.filter(|e| e.content != Content::Unanswerable) else {
            return CheckOutcome::Unanswerable { reason: "no callback".into(), fields: String::new() };
        };
        let envelope = Envelope {
            job_id: entry.job_id.clone(),
            callback_url: "http://h/".into(),
            origin: "http://h".into(),
        };
        let past = self.durable.history.get(&message_id);
        let record = self.record(&entry.job_id);
        let facts = MessageFacts { past, left_pending, deaths };
        let verdict = match admit(message_id, &entry.job_id, &record, facts, MAX_DEATHS) {
            Admission::Duplicate if !self.is(Defect::RunsDuplicates) => Verdict::Duplicate,
            Admission::Settle(end) => Verdict::Settle(end),
            Admission::Cancel => Verdict::Cancelled,
            Admission::GiveUp { deaths } => Verdict::Fail(died_error(deaths)),
            Admission::Run | Admission::RunAgain | Admission::Duplicate => match entry.content {
                Content::Circuit { qubits } => Verdict::Run(Work { program: program(qubits), shots: 1 }),
                _ => Verdict::Fail("no circuit".into()),
            },
        };
        CheckOutcome::Answerable { envelope, verdict, subject }
    }

    fn may_acknowledge(
        &mut self,
        id: MessageId,
        status: Option<&(JobId, TerminalStatus)>,
    ) -> Result<(), Broken> {
        let entry = self.durable.stream.get(&id).cloned();
        let trimmed = entry.is_none();
        let cancelled = matches!(status, Some((_, TerminalStatus::Cancelled { .. })));
        let key_is_set = entry.as_ref().is_some_and(|e| self.durable.cancel_keys.contains(&e.job_id));
        let ended_before =
            entry.as_ref().and_then(|e| self.durable.status.get(&e.job_id)).is_some_and(|(state, other)| {
                match state.as_str() {
                    "completed" | "cancelled" => {
                        *other != id || state == "cancelled" || self.durable.history.contains_key(&id)
                    }
                    "failed" => *other == id && self.durable.history.contains_key(&id),
                    _ => false,
                }
            });
        // Two messages of a job that both left results can write their states in any order.
        let ended_before = ended_before || entry.as_ref().is_some_and(|e| self.completed.contains(&e.job_id));
        let durable = self.durable.history.contains_key(&id) || self.durable.dead_letters.contains(&id);
        let accepted = self.observed(id).accepted > 0;
        let decided = self.observed(id).decided || self.durable.history.contains_key(&id);
        if cancelled && (accepted || decided) {
            return Err(format!("decision_is_final: {id} was delivered and is cancelled now"));
        }
        if cancelled && self.durable.rows.contains_key(&id) {
            return Err(format!("acknowledged_after_its_end: {id} is cancelled with its result on disk"));
        }
        match trimmed || durable || ended_before || (cancelled && key_is_set) {
            true => Ok(()),
            false => Err(format!("acknowledged_after_its_end: {id} with {status:?}")),
        }
    }

    // --- the cloud

    fn deliver_one(&mut self) -> Result<(), Broken> {
        if self.memory.deliveries.is_empty() {
            return Ok(());
        }
        let index = self.pick(self.memory.deliveries.len());
        let Some((&id, &delivery)) = self.memory.deliveries.iter().nth(index) else { return Ok(()) };
        match delivery {
            Delivery::Fresh | Delivery::Tried => {
                let next = match self.random.random_range(0..10) {
                    0..5 => Delivery::Answered(DeliveryOutcome::Accepted),
                    5 => Delivery::Answered(DeliveryOutcome::Refused),
                    6 => Delivery::Answered(DeliveryOutcome::Dropped),
                    _ => Delivery::Tried,
                };
                if next == Delivery::Answered(DeliveryOutcome::Accepted) {
                    let seen = self.observed(id);
                    seen.accepted += 1;
                    if seen.accepted > 1 + seen.cut_deliveries {
                        return Err(format!("one_delivery_unless_cut_off: {id} is accepted again"));
                    }
                }
                self.memory.deliveries.insert(id, next);
                Ok(())
            }
            Delivery::Answered(_) if !self.disk_works => Ok(()),
            Delivery::Answered(end) => {
                self.memory.deliveries.remove(&id);
                // A refused result is kept for the operator, which is nothing to the host any more.
                let row = self.durable.rows.remove(&id).map(|row| row.row);
                let Some(row) = row else {
                    return Err(format!("one_delivery_unless_cut_off: {id} was delivered from no row"));
                };
                let past = HistoryEntry {
                    job_id: row.job_id,
                    status: row.status,
                    error: row.error,
                    finished_at: row.finished_at,
                };
                self.durable.history.insert(id, past);
                if self.is(Defect::DeliversTwice) && self.chance(10) {
                    self.memory.deliveries.insert(id, Delivery::Tried);
                    return Ok(());
                }
                self.apply(Event::Delivered { message_id: id, outcome: end })
            }
        }
    }

    // --- crashes and restarts

    /// The process ends. In a crash the messages in the plugin are suspects; a forced stop is no death.
    fn crash(&mut self, death: bool) {
        self.crashes += 1;
        self.trace("crash", &death);
        let started: Vec<MessageId> = self.memory.slots.iter().flatten().map(|job| job.message_id).collect();
        for id in started {
            self.observed(id).cut_runs += 1;
            if death && !self.durable.answers.contains_key(&id) {
                *self.durable.deaths.entry(id).or_insert(0) += 1;
            }
        }
        for (id, delivery) in std::mem::take(&mut self.memory.deliveries) {
            if delivery == Delivery::Answered(DeliveryOutcome::Accepted) {
                self.observed(id).cut_deliveries += 1;
            }
        }
        self.restart();
    }

    fn restart(&mut self) {
        let deaths = match self.is(Defect::ForgetsDeaths) {
            true => HashMap::new(),
            false => self.durable.deaths.clone(),
        };
        self.memory = Memory::new(deaths, self.durable.answers.clone(), self.qubits);
        let recovered: Vec<RecoveredResult> = self
            .durable
            .rows
            .values()
            .map(|row| RecoveredResult {
                result: StoredResult {
                    row: row.row.clone(),
                    body_bytes: 2,
                    origin: "http://h".into(),
                    attempts: 0,
                },
                announced: row.phase == Phase::Announced,
            })
            .collect();
        for result in recovered {
            // What it leads to is under way, not performed: nothing can be broken yet.
            let broken = self.apply(Event::Recovered(result));
            debug_assert!(broken.is_ok(), "{broken:?}");
        }
        self.forget_old();
    }

    /// Drops what no message refers to any more, so that long runs stay fast.
    fn forget_old(&mut self) {
        let oldest = self.durable.pending.first().copied();
        let oldest = oldest.or(self.durable.undelivered.front().copied());
        let rows = self.durable.rows.first_key_value().map(|(id, _)| *id);
        let Some(limit) = [oldest, rows].into_iter().flatten().min() else { return };
        let limit = MessageId { ms: limit.ms.saturating_sub(64), seq: 0 };
        self.durable.stream.retain(|id, _| *id >= limit);
        self.durable.history.retain(|id, _| *id >= limit);
        self.durable.dead_letters.retain(|id| *id >= limit);
        self.durable.deaths.retain(|id, _| *id >= limit);
        self.durable.answers.retain(|id, _| *id >= limit);
        self.observed.retain(|id, _| *id >= limit);
        self.durable.status.retain(|_, (_, id)| *id >= limit);
        let first_job = limit.ms / 8;
        let young = |job: &JobId| job[1..].parse::<u64>().is_ok_and(|n| n >= first_job);
        self.durable.cancel_keys.retain(young);
        self.completed.retain(young);
    }

    // --- invariants

    fn check(&mut self) -> Result<(), Broken> {
        let table = &self.memory.table;
        let with_permit = table.jobs.values().filter(|job| job.claim.permit).count();
        if with_permit + self.memory.permits != PERMITS {
            let free = self.memory.permits;
            return Err(format!("permits_are_counted: {with_permit} held and {free} free of {PERMITS}"));
        }
        if table.ids.parked() > MAX_PARKED {
            return Err(format!("permits_are_counted: {} messages are parked", table.ids.parked()));
        }
        let running = table.jobs.values().filter(|j| matches!(j.state, JobState::Running { .. })).count();
        let counted: usize = table.in_slot.iter().sum();
        if running != counted || running != table.running.len() || table.in_slot.len() != SLOTS {
            return Err(format!("slots_are_counted: {running} run, {:?} are counted", table.in_slot));
        }
        if table.is_drained(self.redis_up) && self.memory.draining {
            self.crash(false);
        }
        Ok(())
    }

    /// Everything works again and nothing new comes: then everything ends.
    fn come_to_rest(&mut self) -> Result<(), Broken> {
        (self.redis_up, self.disk_works) = (true, true);
        if self.memory.draining {
            self.crash(false);
        }
        for _ in 0..2_000 {
            self.read()?;
            self.sweep()?;
            while !self.memory.effects.is_empty() {
                self.complete_one()?;
            }
            self.slot_takes();
            (0..4).for_each(|_| self.slot_answers());
            while !self.memory.reports.is_empty() {
                self.take_report()?;
            }
            self.deliver_one()?;
            self.pass_time()?;
            self.check()?;
            if self.durable.pending.is_empty() && self.durable.undelivered.is_empty() {
                let left =
                    (self.memory.table.jobs.len(), self.memory.permits, self.memory.table.ids.parked());
                if left == (0, PERMITS, 0) {
                    return Ok(());
                }
            }
        }
        let states: Vec<_> =
            self.memory.table.jobs.values().map(|job| (job.claim.message_id, job.state.name())).collect();
        Err(format!(
            "everything_ends: pending are {:?}, the table has {states:?}, {} permits are free",
            self.durable.pending, self.memory.permits
        ))
    }

    fn run(&mut self, events: u64) -> Result<(), Broken> {
        while self.events < events {
            for _ in 0..2_000 {
                self.step()?;
            }
            self.come_to_rest()?;
            self.forget_old();
        }
        Ok(())
    }

    // --- defects

    fn with_defect(&mut self, effects: Vec<Effect>) -> Vec<Effect> {
        let Some(defect) = self.defect else { return effects };
        let mut changed = Vec::with_capacity(effects.len());
        for effect in effects {
            match (defect, effect) {
                (Defect::AcknowledgesBeforeTheStore, Effect::Store { ticket, message_id, result, at }) => {
                    self.memory.effects.push(Effect::Acknowledge {
                        ticket,
                        message_id,
                        status: None,
                        removes_message: true,
                    });
                    changed.push(Effect::Store { ticket, message_id, result, at });
                }
                (Defect::SubmitsTwice, Effect::Submit(jobs)) => {
                    let again = jobs.iter().map(|s| Submission {
                        ticket: s.ticket + 1_000_000,
                        message_id: s.message_id,
                        job: s.job.clone(),
                    });
                    let again = again.collect();
                    changed.push(Effect::Submit(jobs));
                    changed.push(Effect::Submit(again));
                }
                (Defect::SubmitsInReverse, Effect::Submit(mut jobs)) => {
                    jobs.reverse();
                    changed.push(Effect::Submit(jobs));
                }
                (Defect::DropsASubmission, Effect::Submit(_)) if self.chance(20) => {}
                (Defect::KeepsPermits, Effect::ReturnPermits(_)) if self.chance(20) => {}
                (Defect::GivesTooManyPermits, Effect::ReturnPermits(n)) => {
                    changed.push(Effect::ReturnPermits(n + 1));
                }
                (Defect::DropsAnAcknowledgement, Effect::Acknowledge { .. }) if self.chance(20) => {}
                (Defect::CancelsAfterTheDecision, Effect::Deliver(result)) if self.chance(5) => {
                    let (message_id, job_id) = (result.row.message_id, result.row.job_id.clone());
                    let status = Some((job_id.clone(), TerminalStatus::Cancelled { at: String::new() }));
                    self.durable.cancel_keys.insert(job_id);
                    self.memory.effects.push(Effect::Acknowledge {
                        ticket: 0,
                        message_id,
                        status,
                        removes_message: true,
                    });
                    changed.push(Effect::Deliver(result));
                }
                (Defect::RunsWhileTheStoreFails, Effect::Notify(Notice::StoreFails { .. })) => {
                    self.memory.table.store_error = None;
                }
                (Defect::ForgetsParking, Effect::Notify(Notice::Parked { job_id })) => {
                    let owner = self.memory.table.ids.owner(&job_id);
                    for parked in owner.map(|t| self.memory.table.ids.release(&job_id, t)).unwrap_or_default()
                    {
                        changed.push(Effect::Notify(Notice::NotParked {
                            job_id: job_id.clone(),
                            message_id: MessageId { ms: parked, seq: 0 },
                        }));
                    }
                }
                (_, effect) => changed.push(effect),
            }
        }
        changed
    }
}

impl Memory {
    fn new(deaths: HashMap<MessageId, u32>, answered: KeptAnswers, qubits: u16) -> Memory {
        let settings = TableSettings {
            slots: SLOTS,
            max_parked: MAX_PARKED,
            max_held_bytes: usize::MAX,
            retry: RETRY,
            device: device(qubits),
            deaths,
            answered,
        };
        Memory {
            table: JobTable::new(settings),
            effects: Vec::new(),
            queue: BTreeMap::new(),
            slots: Default::default(),
            reports: VecDeque::new(),
            deliveries: BTreeMap::new(),
            permits: PERMITS,
            draining: false,
            reloads_under_way: 0,
            store_fails: false,
            cancel_read: HashSet::new(),
        }
    }

    fn watch_store(&mut self, event: &Event) {
        match event {
            Event::Stored { .. }
            | Event::Marked { marked: Ok(()), .. }
            | Event::Discarded { discarded: Ok(()), .. }
            | Event::Buried { buried: Ok(()), .. } => self.store_fails = false,
            Event::StoreFailed { .. }
            | Event::Marked { .. }
            | Event::Discarded { .. }
            | Event::Buried { .. } => self.store_fails = true,
            _ => {}
        }
    }
}

fn row_of(message_id: MessageId, result: Unstored, finished_at: String) -> StoredResult {
    let (envelope, status, error) = match result {
        Unstored::Row(result) => return result,
        Unstored::Failure { envelope, error } => (envelope, Status::Failed, Some(error)),
        Unstored::Answer { envelope, answer: Ok(_), .. } => (envelope, Status::Completed, None),
        Unstored::Answer { envelope, answer: Err(e), .. } => (envelope, Status::Failed, Some(e.text)),
    };
    let row = ResultRow {
        message_id,
        job_id: envelope.job_id,
        callback_url: envelope.callback_url,
        status,
        error,
        finished_at,
        body: bytes::Bytes::new(),
    };
    StoredResult { row, body_bytes: 2, origin: envelope.origin, attempts: 0 }
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |v| v.parse().expect("a whole number"))
}

#[test]
fn random_events_outages_and_crashes_keep_every_invariant() {
    let seed = variable("CODA_MODEL_SEED", 0x2026_1130);
    let events = variable("CODA_MODEL_EVENTS", 10_000_000);
    let half = |seed| {
        std::thread::spawn(move || {
            let mut world = World::new(seed, None);
            let run = world.run(events / 2);
            let World { events, crashes, ended, trace, .. } = world;
            trace.iter().flatten().filter(|_| run.is_err()).for_each(|line| println!("{line}"));
            println!("seed {seed}: {events} events, {crashes} crashes and restarts, {ended} messages ended");
            run.map_err(|broken| format!("CODA_MODEL_SEED={seed}, after {events} events: {broken}"))
                .map(|()| crashes)
        })
    };
    for world in [half(seed), half(seed + 1)] {
        match world.join().expect("the model does not panic") {
            Ok(crashes) => assert!(crashes > 0, "crashes happened"),
            Err(broken) => panic!("{broken}"),
        }
    }
}

#[test]
fn each_invariant_catches_a_table_that_is_wrong() {
    let cases = [
        (Defect::AcknowledgesBeforeTheStore, "acknowledged_after_its_end"),
        (Defect::SubmitsTwice, "one_message_of_a_job"),
        (Defect::IgnoresTheLastCancel, "cancel_before_the_decision_wins"),
        (Defect::CancelsAfterTheDecision, "decision_is_final"),
        (Defect::DeliversTwice, "one_delivery_unless_cut_off"),
        (Defect::KeepsPermits, "permits_are_counted"),
        (Defect::GivesTooManyPermits, "permits_are_counted"),
        (Defect::SubmitsInReverse, "stream_order"),
        (Defect::DropsASubmission, "everything_ends"),
        (Defect::ForgetsDeaths, "suspects_run_alone"),
        (Defect::RunsWhileTheStoreFails, "nothing_starts_while_the_store_fails"),
        (Defect::ReportsAnAnswerTwice, "no_faults"),
        (Defect::DropsAnAcknowledgement, "everything_ends"),
        (Defect::KeepsTheFormerDevice, "judged_by_its_device"),
        (Defect::RunsDuplicates, "never_after_its_end"),
        (Defect::ForgetsParking, "one_message_of_a_job"),
    ];
    for (defect, invariant) in cases {
        let found = (0..3).find_map(|seed| World::new(seed, Some(defect)).run(100_000).err());
        let found = found.unwrap_or_else(|| panic!("{defect:?} was not found"));
        assert!(found.starts_with(invariant), "{defect:?} should break {invariant}: {found}");
    }
}
