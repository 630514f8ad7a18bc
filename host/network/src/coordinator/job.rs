//! Runs one job: its blocks as soon as they may, side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::combine::{Component, combine};
use super::fallback::{Attempt, BlockError, BlockRun, BlockRunner, CompletedBlock, uuid4};
use super::job_view::JobProgress;
use super::plan::{NoCandidate, Plan, plan};
use super::result::ResultRequest;
use super::resume::{JobStart, checkpoint};
use super::schedule::{BlockPlace, Schedule};
use super::simulation::{self, SimulationError};
use crate::qasm::Circuit;
use crate::reservation::journal::{JobFact, JobResult};
use crate::reservation::log::{AppendError, Log, LogError};

/// Most blocks of a job that run at once.
const MAX_CONCURRENT_BLOCKS: usize = 32;
/// Lowest fidelity of a verified state: amplitudes are passed on with 12 decimals.
const LEAST_FIDELITY: f64 = 1.0 - 1e-6;
/// Most amplitudes of a stage that are recorded for a restart: about 200 KB of text.
const RECORDED_AMPLITUDES: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error(transparent)]
    NoCandidate(#[from] NoCandidate),
    #[error(transparent)]
    Block(#[from] BlockError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(
        "the final state is not the circuit's: its fidelity with a local simulation is {fidelity:.9}; one of the job's \
         peers is wrong ({peers}); run it with a redundancy of 2 to find out which"
    )]
    Wrong { fidelity: f64, peers: String },
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    #[error("a block of the job failed inside the coordinator: {0}; report this as a bug")]
    Task(#[from] tokio::task::JoinError),
}

impl JobError {
    /// Whether it is the event log that could not be used, which is no fault of the job.
    pub fn is_of_log(&self) -> bool {
        let error = match self {
            JobError::Log(error)
            | JobError::Append(AppendError::Log(error))
            | JobError::Block(BlockError::Log(error)) => error,
            JobError::NoCandidate(_)
            | JobError::Block(BlockError::AllFailed { .. })
            | JobError::Append(_)
            | JobError::Wrong { .. }
            | JobError::Simulation(_)
            | JobError::Task(_) => return false,
        };
        // What is damaged stays so.
        !matches!(error, LogError::Damaged { .. })
    }
}

/// Records the facts of a job: in the log first, then for those who watch the job.
pub trait JobRecorder: Clone + Send + Sync + 'static {
    /// Records a fact.
    fn record(&self, fact: JobFact) -> impl Future<Output = Result<(), LogError>> + Send;
}

/// Runs a job from its start to its end. States are recorded behind a stage, at most once in the interval.
///
/// # Errors
/// When a block has no candidate, all candidates of a block failed, or an event can't be recorded. The end of the job
/// is not recorded yet.
pub async fn run(
    runner: &BlockRunner,
    circuit: &Circuit,
    request: ResultRequest,
    job_id: &str,
    start: JobStart,
    checkpoint_interval: Duration,
    record: &impl JobRecorder,
) -> Result<JobResult, JobError> {
    let JobStart { plan, stages, components, ran_on, attempts } = start;
    let plan = Arc::new(match plan {
        Some(plan) => plan,
        None => plan_job(runner, circuit, record).await?,
    });
    let components = match stages {
        0 => (0..circuit.qubits).map(Component::fresh).collect(),
        _ => components,
    };
    let redundancy = request.redundancy();
    let mut progress = JobRun { ran_on: Arc::new(ran_on), attempts, redundancy };
    let mut schedule = Schedule::new(&plan, stages, components);
    let mut running: JoinSet<Result<(BlockPlace, CompletedBlock), JobError>> = JoinSet::new();
    let (mut recorded, mut recorded_stages) = (Instant::now(), stages);
    loop {
        while running.len() < MAX_CONCURRENT_BLOCKS
            && let Some((place, state)) = schedule.begin_next()
        {
            let (runner, record, plan) = (runner.clone(), record.clone(), plan.clone());
            let (job_id, ran_on) = (job_id.to_string(), progress.ran_on.clone());
            let attempts =
                progress.attempts.get(&plan.stages[place.0][place.1].block_id).copied().unwrap_or(0);
            let start = BlockStart { state, attempts, redundancy: progress.redundancy };
            running.spawn(async move {
                let completed = run_block(&runner, &plan, place, &job_id, start, &ran_on, &record).await?;
                Ok((place, completed))
            });
        }
        // With an error the other blocks are dropped, which cancels their reservations.
        let Some(ended) = running.join_next().await else { break };
        let (place, completed) = ended??;
        let block_id = plan.stages[place.0][place.1].block_id.clone();
        Arc::make_mut(&mut progress.ran_on).insert(block_id, completed.peer_id);
        schedule.complete(place, completed.state);
        let complete = schedule.complete_stages();
        // A job of a moment is run again sooner than its states are written.
        if complete > recorded_stages
            && complete < plan.stages.len()
            && recorded.elapsed() >= checkpoint_interval
            && let Some(fact) = checkpoint(complete, &schedule.states_behind(), RECORDED_AMPLITUDES)
        {
            record.record(fact).await?;
            (recorded, recorded_stages) = (Instant::now(), complete);
        }
    }
    let mut components = schedule.states_behind();
    components.sort_by_key(|c| c.qubits.first().copied());
    let state = combine(components);
    let (circuit, ran_on) = (request.verify().then(|| circuit.clone()), progress.ran_on);
    // A large state takes a while, and its simulation minutes: not on a thread that serves others, and no longer than
    // this job is waited for.
    let stop = CancellationToken::new();
    let _stops_when_dropped = stop.clone().drop_guard();
    let taking = tokio::task::spawn_blocking(move || {
        let check = |circuit| simulation::check(&circuit, &state, || stop.is_cancelled());
        let fidelity = circuit.map(check).transpose()?;
        match fidelity.filter(|fidelity| *fidelity < LEAST_FIDELITY) {
            Some(fidelity) => {
                let peers: BTreeSet<&str> = ran_on.values().map(String::as_str).collect();
                let peers = peers.into_iter().collect::<Vec<_>>().join(", ");
                Err(JobError::Wrong { fidelity, peers })
            }
            None => Ok(request.result(&state, fidelity)),
        }
    });
    taking.await?
}

/// Plans a job and records the plan.
async fn plan_job(
    runner: &BlockRunner,
    circuit: &Circuit,
    record: &impl JobRecorder,
) -> Result<Plan, JobError> {
    let plan_id = format!("plan-{}", uuid4());
    let (circuit_to_plan, candidates) = (circuit.clone(), runner.directory.candidates());
    // A large circuit on many peers takes seconds: not on a thread that serves others.
    let planning = move || plan(&plan_id, &circuit_to_plan, &candidates);
    let plan = tokio::task::spawn_blocking(planning).await??;
    record.record(JobFact::Planned { plan: plan.clone() }).await?;
    Ok(plan)
}

/// What a block needs to know of the job.
struct JobRun {
    /// The peer that ran each block.
    ran_on: Arc<BTreeMap<String, String>>,
    /// Candidates that a former process tried for each block.
    attempts: BTreeMap<String, u32>,
    /// How many peers must agree about each state.
    redundancy: u8,
}

/// What a block starts from.
struct BlockStart {
    state: Component,
    /// Candidates that a former process tried.
    attempts: u32,
    redundancy: u8,
}

/// Runs the block with this stage and number.
async fn run_block(
    runner: &BlockRunner,
    plan: &Plan,
    (stage, n): BlockPlace,
    job_id: &str,
    start: BlockStart,
    ran_on: &BTreeMap<String, String>,
    record: &impl JobRecorder,
) -> Result<CompletedBlock, JobError> {
    let block = &plan.stages[stage][n];
    let run = BlockRun {
        plan_id: &plan.plan_id,
        workflow_run_id: job_id,
        block,
        fragments: block.fragments.iter().map(|f| &plan.fragments[*f]).collect(),
        state: start.state,
        attempts: start.attempts,
        ran_on,
        redundancy: start.redundancy,
    };
    let block_id = &block.block_id;
    let on_attempt = |a: Attempt| {
        let Attempt { attempt, peer_id, reservation_id } = a;
        record.record(JobFact::Attempted { block_id: block_id.clone(), attempt, peer_id, reservation_id })
    };
    match runner.run_block(run, on_attempt).await {
        Ok(completed) => {
            let fact = JobFact::BlockCompleted {
                block_id: block_id.clone(),
                attempts: completed.attempts,
                peer_id: completed.peer_id.clone(),
                fidelity: completed.fidelity,
                latency_ms: completed.latency_ms,
            };
            record.record(fact).await?;
            Ok(completed)
        }
        Err(error) => Err(failed(record, error).await?),
    }
}

/// Records that a block has failed permanently, and turns the reason into the job's error.
async fn failed(record: &impl JobRecorder, error: BlockError) -> Result<JobError, LogError> {
    if let BlockError::AllFailed { block_id, attempts, last, .. } = &error {
        let (block_id, attempts, error) = (block_id.clone(), *attempts, last.clone());
        record.record(JobFact::BlockFailed { block_id, attempts, error }).await?;
    }
    Ok(error.into())
}

/// Reads a job from the log.
///
/// # Errors
/// When the log can't be read.
pub async fn from_log(log: &Log, job_id: &str) -> Result<Option<JobProgress>, LogError> {
    let facts = log.job_facts(job_id).await?;
    Ok((!facts.is_empty()).then(|| JobProgress::from_facts(&facts)))
}
