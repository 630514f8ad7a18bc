//! Pure: a coordinator's job as its facts tell it, and the document that the API shows of it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::peers::wire::time;
use crate::reservation::journal::{JobFact, JobResult};
use crate::reservation::plan::{Block, Plan, PlannedFragment, RankedCandidate};

/// What a text takes besides its characters: its place and what the allocator adds.
const TEXT_BYTES: usize = 40;

/// How far a job is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    #[default]
    Queued,
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl JobStatus {
    pub const ALL: [JobStatus; 5] = [
        JobStatus::Queued,
        JobStatus::Running,
        JobStatus::Completed,
        JobStatus::Failed,
        JobStatus::Cancelled,
    ];

    /// Its name in documents.
    pub fn name(self) -> &'static str {
        match self {
            JobStatus::Queued => "queued",
            JobStatus::Running => "running",
            JobStatus::Completed => "completed",
            JobStatus::Failed => "failed",
            JobStatus::Cancelled => "cancelled",
        }
    }

    /// Whether no other one follows.
    pub fn is_final(self) -> bool {
        match self {
            JobStatus::Completed | JobStatus::Failed | JobStatus::Cancelled => true,
            JobStatus::Queued | JobStatus::Running => false,
        }
    }
}

/// How far a block, or a fragment of it, is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    #[default]
    Waiting,
    Running,
    Completed,
    Failed,
    /// The job failed or was cancelled while the block was running.
    Abandoned,
}

/// A peer that was asked to run a block, and the reservation for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TriedCandidate {
    pub peer_id: String,
    pub reservation_id: String,
}

/// A block as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockView {
    pub block_id: String,
    pub state: BlockState,
    pub peer_id: Option<String>,
    pub attempts: u32,
    pub fidelity: Option<f64>,
    pub latency_ms: Option<f64>,
    pub error: Option<String>,
    pub tried: Vec<TriedCandidate>,
}

/// A fragment as the API shows it: what is known of its block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct FragmentView {
    pub fragment_id: String,
    pub block_id: String,
    pub service_id: String,
    pub peer_id: Option<String>,
    pub attempts: u32,
    pub fidelity: Option<f64>,
    pub latency_ms: Option<f64>,
    pub state: BlockState,
    pub error: Option<String>,
}

/// A job as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Job", deny_unknown_fields)]
pub struct CoordinatorJob {
    pub job_id: String,
    pub status: JobStatus,
    pub shots: u32,
    pub submitted_at: Option<String>,
    pub finished_at: Option<String>,
    /// Why it failed, or was cancelled.
    pub error: Option<String>,
    pub progress: BlockCounts,
    pub plan: Option<Plan>,
    pub blocks: Vec<BlockView>,
    pub fragments: Vec<FragmentView>,
    pub result: Option<JobResult>,
}

/// A job in short, as lists and events show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct JobSummary {
    pub job_id: String,
    pub status: JobStatus,
    pub shots: u32,
    pub submitted_at: Option<String>,
    pub finished_at: Option<String>,
    /// Why it failed, or was cancelled.
    pub error: Option<String>,
    /// Null in a list for a job whose plan is not in memory.
    pub progress: Option<BlockCounts>,
}

/// How many blocks of a job are done. All numbers are zero until it is planned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct BlockCounts {
    /// Completed blocks of all blocks.
    #[schemars(range(min = 0, max = 1))]
    pub ratio: f64,
    pub blocks_completed: usize,
    pub blocks: usize,
    /// The stage in which the newest attempt was, from 1.
    pub stage: usize,
    pub stages: usize,
}

/// The state of a job, folded from its facts.
#[derive(Debug, Clone, Default)]
pub struct JobProgress {
    pub status: JobStatus,
    pub shots: u32,
    submitted_at: Option<i64>,
    finished_at: Option<i64>,
    pub error: Option<String>,
    plan: Option<Plan>,
    blocks: BTreeMap<String, BlockProgress>,
    /// The stage of the newest attempt, from 1.
    stage: usize,
    pub result: Option<JobResult>,
}

#[derive(Debug, Clone, Default)]
struct BlockProgress {
    attempts: u32,
    peer_id: Option<String>,
    state: BlockState,
    fidelity: Option<f64>,
    latency_ms: Option<f64>,
    error: Option<String>,
    tried: Vec<TriedCandidate>,
}

impl JobProgress {
    /// Adds a fact, recorded at `at` microseconds since 1970.
    ///
    /// Facts of blocks that run side by side may come in another order than that of the log, also behind the job's end:
    /// the end stays then.
    pub fn apply(&mut self, at: i64, fact: &JobFact) {
        match fact {
            JobFact::Submitted { shots, .. } => {
                self.status = JobStatus::Queued;
                self.shots = *shots;
                self.submitted_at = Some(at);
            }
            JobFact::Planned { plan } => {
                self.go_on(JobStatus::Running);
                self.plan = Some(plan.clone());
            }
            JobFact::Attempted { block_id, attempt, peer_id, reservation_id } => {
                self.go_on(JobStatus::Running);
                self.stage = self.stage_of(block_id);
                let block = self.blocks.entry(block_id.clone()).or_default();
                block.attempts = *attempt;
                block.state = BlockState::Running;
                block.peer_id = Some(peer_id.clone());
                let (peer_id, reservation_id) = (peer_id.clone(), reservation_id.clone());
                block.tried.push(TriedCandidate { peer_id, reservation_id });
            }
            JobFact::BlockCompleted { block_id, attempts, peer_id, fidelity, latency_ms } => {
                let block = self.blocks.entry(block_id.clone()).or_default();
                block.attempts = *attempts;
                block.state = BlockState::Completed;
                block.peer_id = Some(peer_id.clone());
                block.fidelity = *fidelity;
                block.latency_ms = Some(*latency_ms);
            }
            JobFact::BlockFailed { block_id, attempts, error } => {
                let block = self.blocks.entry(block_id.clone()).or_default();
                block.attempts = *attempts;
                block.state = BlockState::Failed;
                block.error = Some(error.clone());
            }
            JobFact::StageCompleted { .. } | JobFact::Released => {}
            JobFact::Resumed { .. } => {
                self.go_on(JobStatus::Queued);
                // They are begun again.
                for block in self.blocks.values_mut().filter(|b| b.state == BlockState::Running) {
                    block.state = BlockState::Waiting;
                }
            }
            JobFact::Completed { result } => {
                self.end(JobStatus::Completed, at);
                self.result = Some(result.clone());
            }
            JobFact::Failed { error } => {
                self.end(JobStatus::Failed, at);
                self.error = Some(error.clone());
            }
            JobFact::Cancelled { reason } => {
                self.end(JobStatus::Cancelled, at);
                self.error = Some(reason.clone());
            }
        }
        if matches!(self.status, JobStatus::Failed | JobStatus::Cancelled) {
            // No one follows these blocks any more.
            for block in self.blocks.values_mut().filter(|b| b.state == BlockState::Running) {
                block.state = BlockState::Abandoned;
            }
        }
    }

    fn go_on(&mut self, status: JobStatus) {
        if !self.has_ended() {
            self.status = status;
        }
    }

    fn end(&mut self, status: JobStatus, at: i64) {
        self.status = status;
        self.finished_at = Some(at);
    }

    /// The number of a block's stage, from 1; 0 when the plan does not have it.
    fn stage_of(&self, block_id: &str) -> usize {
        let stages = self.plan.as_ref().map(|plan| plan.stages.as_slice()).unwrap_or_default();
        let has = |stage: &Vec<Block>| stage.iter().any(|b| b.block_id == block_id);
        // Blocks begin stage by stage, so most are in the one where the last one was, or in the next.
        let near = self.stage.saturating_sub(1)..stages.len();
        let found =
            near.clone().find(|n| has(&stages[*n])).or_else(|| (0..near.start).find(|n| has(&stages[*n])));
        found.map_or(0, |n| n + 1)
    }

    /// How many blocks are done.
    pub fn counts(&self) -> BlockCounts {
        let stages = self.plan.as_ref().map(|plan| plan.stages.as_slice()).unwrap_or_default();
        let blocks: usize = stages.iter().map(Vec::len).sum();
        let completed = self.blocks.values().filter(|b| b.state == BlockState::Completed).count();
        let ratio = match (self.status, blocks) {
            // A circuit without a gate has no block.
            (JobStatus::Completed, _) => 1.0,
            (_, 0) => 0.0,
            // Numbers of blocks are far below 2^52.
            (_, _) => completed as f64 / blocks as f64,
        };
        BlockCounts { ratio, blocks_completed: completed, blocks, stage: self.stage, stages: stages.len() }
    }

    /// The state after these facts of the log, oldest first, each with the time of its record.
    pub fn from_facts(facts: &[(i64, JobFact)]) -> JobProgress {
        let mut progress = JobProgress::default();
        facts.iter().for_each(|(at, fact)| progress.apply(*at, fact));
        progress
    }

    /// About how many bytes of memory it takes.
    pub fn weight(&self) -> usize {
        let texts = |texts: &[String]| texts.iter().map(|text| text.len() + TEXT_BYTES).sum::<usize>();
        let fragment = |f: &PlannedFragment| {
            let own = f.raw_text.len() + f.fragment_id.len() + f.operation_id.len() + f.service_id.len();
            size_of::<PlannedFragment>() + 5 * TEXT_BYTES + own + 4 * f.qubits.len() + texts(&f.dependencies)
        };
        let block = |b: &Block| {
            let lists = texts(&b.fragment_ids) + texts(&b.services) + texts(&b.predecessors);
            let components = b.components.iter().map(|c| TEXT_BYTES + 4 * c.len()).sum::<usize>();
            let candidates = b.candidates.len() * (size_of::<RankedCandidate>() + 2 * TEXT_BYTES);
            size_of::<Block>() + 2 * TEXT_BYTES + lists + components + candidates + 8 * b.fragments.len()
        };
        let plan = self.plan.as_ref().map_or(0, |plan| {
            let blocks = plan.stages.iter().flatten().map(block).sum::<usize>();
            plan.fragments.iter().map(fragment).sum::<usize>() + blocks
        });
        let progress = |b: &BlockProgress| {
            let tried = b.tried.len() * (size_of::<TriedCandidate>() + 4 * TEXT_BYTES);
            size_of::<BlockProgress>() + 4 * TEXT_BYTES + tried + b.error.as_ref().map_or(0, String::len)
        };
        let blocks = self.blocks.values().map(progress).sum::<usize>();
        let result = self.result.as_ref().map_or(0, |result| {
            let key = |key: &String| key.len() + 2 * TEXT_BYTES;
            let numbers = [&result.probabilities, &result.measured_probabilities];
            let numbers = numbers.into_iter().flatten().flat_map(BTreeMap::keys).map(key).sum::<usize>();
            let counts = result.counts.keys().map(key).sum::<usize>();
            counts + numbers + result.state.as_ref().map_or(0, |state| texts(&state.amplitudes))
        });
        size_of::<JobProgress>() + plan + blocks + result + self.error.as_ref().map_or(0, String::len)
    }

    pub fn has_ended(&self) -> bool {
        self.finished_at.is_some()
    }

    /// The job as the API shows it.
    pub fn view(&self, job_id: &str) -> CoordinatorJob {
        let planned = self.plan.as_ref().map(|p| p.fragments.as_slice()).unwrap_or_default();
        let fragments = planned.iter().map(|f| {
            let block = self.blocks.get(&f.block_id);
            FragmentView {
                fragment_id: f.fragment_id.clone(),
                block_id: f.block_id.clone(),
                service_id: f.service_id.clone(),
                peer_id: block.and_then(|b| b.peer_id.clone()),
                attempts: block.map_or(0, |b| b.attempts),
                fidelity: block.and_then(|b| b.fidelity),
                latency_ms: block.and_then(|b| b.latency_ms),
                state: block.map_or(BlockState::Waiting, |b| b.state),
                error: block.and_then(|b| b.error.clone()),
            }
        });
        let blocks = self.blocks.iter().map(|(id, b)| b.view(id));
        CoordinatorJob {
            job_id: job_id.into(),
            status: self.status,
            shots: self.shots,
            submitted_at: self.submitted_at.map(time),
            finished_at: self.finished_at.map(time),
            error: self.error.clone(),
            progress: self.counts(),
            plan: self.plan.clone(),
            blocks: blocks.collect(),
            fragments: fragments.collect(),
            result: self.result.clone(),
        }
    }

    /// The job in short.
    pub fn summary(&self, job_id: &str) -> JobSummary {
        JobSummary {
            job_id: job_id.into(),
            status: self.status,
            shots: self.shots,
            submitted_at: self.submitted_at.map(time),
            finished_at: self.finished_at.map(time),
            error: self.error.clone(),
            progress: Some(self.counts()),
        }
    }

    /// A block that was begun.
    pub fn block(&self, block_id: &str) -> Option<BlockView> {
        self.blocks.get(block_id).map(|block| block.view(block_id))
    }
}

impl BlockProgress {
    fn view(&self, block_id: &str) -> BlockView {
        BlockView {
            block_id: block_id.into(),
            state: self.state,
            peer_id: self.peer_id.clone(),
            attempts: self.attempts,
            fidelity: self.fidelity,
            latency_ms: self.latency_ms,
            error: self.error.clone(),
            tried: self.tried.clone(),
        }
    }
}

/// The status of a job whose last fact has this kind.
pub fn status_of_kind(kind: &str) -> JobStatus {
    match kind {
        "submitted" | "resumed" => JobStatus::Queued,
        "completed" => JobStatus::Completed,
        "failed" => JobStatus::Failed,
        "cancelled" | "released" => JobStatus::Cancelled,
        _ => JobStatus::Running,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::reservation::job_options::JobOptions;

    fn attempted(peer_id: &str) -> JobFact {
        let (peer_id, reservation_id) = (peer_id.into(), format!("res-{peer_id}"));
        JobFact::Attempted { block_id: "block-1".into(), attempt: 1, peer_id, reservation_id }
    }

    #[test]
    fn a_job_is_shown_with_every_field_even_before_it_is_planned() {
        let submitted = JobFact::Submitted {
            qasm: "x".into(),
            shots: 7,
            coordinator: "me".into(),
            options: JobOptions::default(),
        };
        let shown = serde_json::to_value(JobProgress::from_facts(&[(0, submitted)]).view("job-1")).unwrap();
        let expected = json!({
            "job_id": "job-1", "status": "queued", "shots": 7, "submitted_at": "1970-01-01T00:00:00.000000Z",
            "finished_at": null, "error": null,
            "progress": { "ratio": 0.0, "blocks_completed": 0, "blocks": 0, "stage": 0, "stages": 0 }, "plan": null, "blocks": [], "fragments": [], "result": null,
        });
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_failed_job_abandons_the_blocks_that_were_running() {
        let facts = [(1, attempted("a")), (2, JobFact::Failed { error: "stopped".into() })];
        let progress = JobProgress::from_facts(&facts);
        let job = progress.view("job-1");
        assert!(progress.has_ended() && job.status == JobStatus::Failed);
        assert_eq!(job.blocks[0].state, BlockState::Abandoned);
        let tried = TriedCandidate { peer_id: "a".into(), reservation_id: "res-a".into() };
        assert_eq!(job.blocks[0].tried, [tried]);
    }

    /// What a block recorded just before a cancel may be seen just after it.
    #[test]
    fn a_fact_that_comes_behind_the_end_does_not_undo_it() {
        let cancelled = (2, JobFact::Cancelled { reason: "enough".into() });
        let progress = JobProgress::from_facts(&[cancelled, (1, attempted("a")), (3, JobFact::Released)]);
        let job = progress.view("job-1");
        assert_eq!((job.status, job.error.as_deref()), (JobStatus::Cancelled, Some("enough")));
        assert_eq!(job.blocks[0].state, BlockState::Abandoned);
        assert_eq!(job.finished_at.as_deref(), Some("1970-01-01T00:00:00.000002Z"));
    }

    #[test]
    fn the_kind_of_the_last_fact_tells_the_status() {
        let end = |fact: JobFact| (1, fact);
        let result = serde_json::from_value(
            serde_json::json!({ "counts": {}, "measured_qubits": [], "bit_order": "", "state": null }),
        )
        .unwrap();
        let submitted = JobFact::Submitted {
            qasm: "x".into(),
            shots: 7,
            coordinator: "me".into(),
            options: JobOptions::default(),
        };
        for fact in [
            submitted,
            attempted("a"),
            JobFact::Resumed { stages: 0 },
            JobFact::Completed { result },
            JobFact::Failed { error: "no".into() },
            JobFact::Cancelled { reason: "enough".into() },
        ] {
            let folded = JobProgress::from_facts(&[end(fact.clone())]).status;
            assert_eq!(status_of_kind(fact.kind()), folded, "{fact:?}");
        }
    }
}
