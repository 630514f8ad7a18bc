//! Runs one job stage by stage. A stage starts when the previous one is complete; its blocks run concurrently.

use std::collections::VecDeque;

use tokio::task::JoinSet;

use super::combine::{Component, combine, counts};
use super::fallback::{Attempt, BlockError, BlockRun, BlockRunner, CompletedBlock, uuid4};
use super::job_view::JobProgress;
use super::plan::{NoCandidate, Plan, plan};
use crate::peers::amplitude;
use crate::qasm::Circuit;
use crate::reservation::journal::{FinalState, JobFact, JobResult};
use crate::reservation::log::{AppendError, Log, LogError};

/// Most blocks of a stage that run at once.
const MAX_CONCURRENT_BLOCKS: usize = 32;
/// Most qubits of a final state that is shown.
const SHOWN_QUBITS: usize = 12;
/// How keys of counts are read, for users.
const BIT_ORDER: &str = "character i of a key is the i-th of measured_qubits";

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
    #[error("a block of the job failed inside the coordinator: {0}; report this as a bug")]
    Task(#[from] tokio::task::JoinError),
}

/// Records the facts of a job: in the log first, then for those who watch the job.
pub trait JobRecorder: Clone + Send + Sync + 'static {
    /// Records a fact.
    fn record(&self, fact: JobFact) -> impl Future<Output = Result<(), LogError>> + Send;
}

/// Runs a job to its end.
///
/// # Errors
/// When a block has no candidate, all candidates of a block failed, or an event can't be recorded. The end of the job
/// is not recorded yet.
pub async fn run(
    runner: &BlockRunner,
    circuit: &Circuit,
    shots: u32,
    job_id: &str,
    record: &impl JobRecorder,
) -> Result<JobResult, JobError> {
    let plan_id = format!("plan-{}", uuid4());
    let (circuit_to_plan, candidates) = (circuit.clone(), runner.directory.candidates());
    // A large circuit on many peers takes seconds: not on a thread that serves others.
    let planning = move || plan(&plan_id, &circuit_to_plan, &candidates);
    let plan = tokio::task::spawn_blocking(planning).await??;
    record.record(JobFact::Planned { plan: plan.clone() }).await?;
    let mut components: Vec<Component> = (0..circuit.qubits).map(Component::fresh).collect();
    let plan = std::sync::Arc::new(plan);
    for number in 0..plan.stages.len() {
        components = stage(runner, &plan, number, job_id, components, record).await?;
    }
    components.sort_by_key(|c| c.qubits.first().copied());
    let state = combine(components);
    Ok(result(circuit, &state, shots))
}

/// A block that is ready to run.
struct WaitingBlock {
    n: usize,
    state: Component,
    /// Number of candidates that were tried so far.
    attempts: u32,
    /// Number of completed blocks of the stage when this block was started last.
    done: usize,
}

/// The result of one attempt to run a block with all its candidates.
enum BlockOutcome {
    Done(CompletedBlock),
    /// Its peers have no slot free. Those may be the slots of this job: it has another turn when one of its blocks
    /// is done.
    Full(WaitingBlock, BlockError),
}

/// Runs the blocks of a stage side by side; the components behind it.
async fn stage(
    runner: &BlockRunner,
    plan: &std::sync::Arc<Plan>,
    number: usize,
    job_id: &str,
    mut components: Vec<Component>,
    record: &impl JobRecorder,
) -> Result<Vec<Component>, JobError> {
    let mut ready = VecDeque::new();
    for (n, block) in plan.stages[number].iter().enumerate() {
        let (mine, others) = components
            .into_iter()
            .partition(|c: &Component| c.qubits.first().is_some_and(|q| block.qubits.contains(q)));
        components = others;
        ready.push_back(WaitingBlock { n, state: combine(mine), attempts: 0, done: 0 });
    }
    let mut running: JoinSet<Result<BlockOutcome, JobError>> = JoinSet::new();
    let mut declined: Vec<(WaitingBlock, BlockError)> = Vec::new();
    let mut done = 0;
    loop {
        while running.len() < MAX_CONCURRENT_BLOCKS
            && let Some(mut next) = ready.pop_front()
        {
            next.done = done;
            let (runner, record) = (runner.clone(), record.clone());
            let (plan, job_id) = (plan.clone(), job_id.to_string());
            running.spawn(
                async move { run_waiting_block(&runner, &plan, number, &job_id, next, &record).await },
            );
        }
        match running.join_next().await {
            Some(ended) => match ended?? {
                BlockOutcome::Done(completed) => {
                    done += 1;
                    components.push(completed.state);
                    ready.extend(declined.drain(..).map(|(waiting, _)| waiting));
                }
                BlockOutcome::Full(waiting, _) if waiting.done < done => ready.push_back(waiting),
                BlockOutcome::Full(waiting, error) => declined.push((waiting, error)),
            },
            None => match declined.pop() {
                // This job holds no slot any more, so waiting for one of its own blocks would not help.
                Some((_, error)) => return Err(failed(record, error).await?),
                None => return Ok(components),
            },
        }
    }
}

async fn run_waiting_block(
    runner: &BlockRunner,
    plan: &Plan,
    stage: usize,
    job_id: &str,
    waiting: WaitingBlock,
    record: &impl JobRecorder,
) -> Result<BlockOutcome, JobError> {
    let WaitingBlock { n, state, attempts, done } = waiting;
    let block = &plan.stages[stage][n];
    let run = BlockRun {
        plan_id: &plan.plan_id,
        workflow_run_id: job_id,
        block,
        fragments: block.fragments.iter().map(|f| &plan.fragments[*f]).collect(),
        state,
        attempts,
    };
    let block_id = &block.block_id;
    let on_attempt = |a: Attempt| {
        let Attempt { attempt, peer_id, reservation_id } = a;
        record.record(JobFact::Attempted { block_id: block_id.clone(), attempt, peer_id, reservation_id })
    };
    match runner.run_block(&run, on_attempt).await {
        Ok(completed) => {
            let fact = JobFact::BlockCompleted {
                block_id: block_id.clone(),
                attempts: completed.attempts,
                peer_id: completed.peer_id.clone(),
                fidelity: completed.fidelity,
                latency_ms: completed.latency_ms,
            };
            record.record(fact).await?;
            Ok(BlockOutcome::Done(completed))
        }
        Err(error @ BlockError::AllFailed { attempts, full: true, .. }) => {
            Ok(BlockOutcome::Full(WaitingBlock { n, state: run.state, attempts, done }, error))
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

/// Samples the final state.
fn result(circuit: &Circuit, state: &Component, shots: u32) -> JobResult {
    let all: Vec<u32> = (0..circuit.qubits).collect();
    // Without a measurement in the source every qubit is looked at.
    let sampled = if circuit.measured.is_empty() { &all } else { &circuit.measured };
    let shown = (state.qubits.len() <= SHOWN_QUBITS).then(|| {
        let amplitudes = state.amplitudes.clone().unwrap_or_else(|| amplitude::zeros(state.qubits.len()));
        FinalState { qubit_ids: state.qubits.clone(), amplitudes: amplitude::write_state(&amplitudes) }
    });
    JobResult {
        counts: counts(state, sampled, shots, &mut rand::random::<f64>),
        measured_qubits: sampled.clone(),
        bit_order: BIT_ORDER.into(),
        state: shown,
    }
}

/// Reads a job from the log.
///
/// # Errors
/// When the log can't be read.
pub async fn from_log(log: &Log, job_id: &str) -> Result<Option<JobProgress>, LogError> {
    let facts = log.job_facts(job_id).await?;
    Ok((!facts.is_empty()).then(|| JobProgress::from_facts(&facts)))
}
