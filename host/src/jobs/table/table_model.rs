//! The job table in a small world of its own: Redis, disk, executor and cloud as lists, under random events,
//! outages, crashes and restarts. What is on disk and in Redis survives a crash, memory does not.
//!
//! Invariants, by name:
//! - `acknowledged_after_its_end`: a message is acknowledged only when its end is durable;
//! - `one_run_unless_cut_off`: a message runs again only when a crash fell into its run, or its run failed in a way that
//!   another one may not;
//! - `attempts_are_bounded`: a message runs again after a retryable error at most so many times, over crashes too;
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

mod defects;
mod effects;
mod faults;
mod invariants;
mod steps;

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
use crate::state::db::{HistoryEntry, JobFacts, Phase, ResultRow, Status};

const SLOTS: usize = 2;
const BATCH_MAX: usize = 2;
const PERMITS: usize = 6;
const MAX_PARKED: usize = 3;
const MAX_DEATHS: u32 = 3;
/// Runs that are made again after a retryable error.
const MAX_RETRIES: u32 = 2;
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
    /// Runs that ended with a retryable error.
    retryable: u32,
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
    RetriesForEver,
    RetriesWhatIsFinal,
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
}

impl Memory {
    fn new(deaths: HashMap<MessageId, u32>, answered: KeptAnswers, qubits: u16) -> Memory {
        let settings = TableSettings {
            slots: SLOTS,
            max_parked: MAX_PARKED,
            max_held_bytes: usize::MAX,
            retry: RETRY,
            runs_again: RetryRule {
                max: MAX_RETRIES,
                window: Duration::from_secs(3600),
                pause: RETRY,
                longest_pause: RETRY * 4,
            },
            device: device(qubits),
            limits: SiteLimits::default(),
            estimate: RunEstimate::default(),
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
            Event::StoreChanged { error } => self.store_fails = error.is_some(),
            _ => {}
        }
    }
}

fn row_of(
    message_id: MessageId,
    result: Unstored,
    finished_at: String,
    replaces: Option<MessageId>,
) -> StoredResult {
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
        replaces,
        facts: JobFacts::default(),
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
        (Defect::RetriesForEver, "attempts_are_bounded"),
        (Defect::RetriesWhatIsFinal, "one_run_unless_cut_off"),
    ];
    for (defect, invariant) in cases {
        let found = (0..3).find_map(|seed| World::new(seed, Some(defect)).run(100_000).err());
        let found = found.unwrap_or_else(|| panic!("{defect:?} was not found"));
        assert!(found.starts_with(invariant), "{defect:?} should break {invariant}: {found}");
    }
}
