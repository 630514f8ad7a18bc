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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    #[default]
    Queued,
    Running,
    Completed,
    Failed,
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
    /// The job failed while the block was running.
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
    pub error: Option<String>,
    pub plan: Option<Plan>,
    pub blocks: Vec<BlockView>,
    pub fragments: Vec<FragmentView>,
    pub result: Option<JobResult>,
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
    /// Adds the next fact, recorded at `at` microseconds since 1970.
    pub fn apply(&mut self, at: i64, fact: &JobFact) {
        match fact {
            JobFact::Submitted { shots, .. } => {
                self.status = JobStatus::Queued;
                self.shots = *shots;
                self.submitted_at = Some(at);
            }
            JobFact::Planned { plan } => {
                self.status = JobStatus::Running;
                self.plan = Some(plan.clone());
            }
            JobFact::Attempted { block_id, attempt, peer_id, reservation_id } => {
                self.status = JobStatus::Running;
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
            JobFact::StageCompleted { .. } => {}
            JobFact::Resumed { .. } => {
                self.status = JobStatus::Queued;
                // They are begun again.
                for block in self.blocks.values_mut().filter(|b| b.state == BlockState::Running) {
                    block.state = BlockState::Waiting;
                }
            }
            JobFact::Completed { result } => {
                self.status = JobStatus::Completed;
                self.finished_at = Some(at);
                self.result = Some(result.clone());
            }
            JobFact::Failed { error } => {
                self.status = JobStatus::Failed;
                self.finished_at = Some(at);
                self.error = Some(error.clone());
                // No one follows these blocks any more.
                for block in self.blocks.values_mut().filter(|b| b.state == BlockState::Running) {
                    block.state = BlockState::Abandoned;
                }
            }
        }
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
        let blocks = self.blocks.iter().map(|(id, b)| BlockView {
            block_id: id.clone(),
            state: b.state,
            peer_id: b.peer_id.clone(),
            attempts: b.attempts,
            fidelity: b.fidelity,
            latency_ms: b.latency_ms,
            error: b.error.clone(),
            tried: b.tried.clone(),
        });
        CoordinatorJob {
            job_id: job_id.into(),
            status: self.status,
            shots: self.shots,
            submitted_at: self.submitted_at.map(time),
            finished_at: self.finished_at.map(time),
            error: self.error.clone(),
            plan: self.plan.clone(),
            blocks: blocks.collect(),
            fragments: fragments.collect(),
            result: self.result.clone(),
        }
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
            "finished_at": null, "error": null, "plan": null, "blocks": [], "fragments": [], "result": null,
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
}
