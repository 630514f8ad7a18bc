//! Pure: where a job begins, by its facts: at the start, or after a restart behind the last stage whose states were
//! recorded.
//!
//! The recorded plan is kept, so that the states fit it whatever a newer version would plan. Which peer runs a block is
//! chosen when the block begins, so peers that the plan names may be gone.

use std::collections::{BTreeMap, HashMap};

use super::combine::Component;
use super::plan::Plan;
use crate::reservation::journal::{ComponentRecord, JobFact};

/// Where a job begins.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobStart {
    /// None: it is to be planned.
    pub plan: Option<Plan>,
    /// Stages that are complete, and the states behind them.
    pub stages: usize,
    pub components: Vec<Component>,
    /// The peer that ran each block.
    pub ran_on: BTreeMap<String, String>,
    /// Candidates that were tried for each block.
    pub attempts: BTreeMap<String, u32>,
}

impl JobStart {
    /// Where a job with these facts begins.
    pub fn from_facts<'a>(facts: impl IntoIterator<Item = &'a JobFact>) -> JobStart {
        let mut start = JobStart::default();
        for fact in facts {
            match fact {
                JobFact::Planned { plan } => {
                    start = JobStart { plan: with_indexes(plan), ..JobStart::default() };
                }
                JobFact::Attempted { block_id, attempt, .. } => {
                    start.attempts.insert(block_id.clone(), *attempt);
                }
                JobFact::BlockCompleted { block_id, peer_id, .. } => {
                    start.ran_on.insert(block_id.clone(), peer_id.clone());
                }
                JobFact::StageCompleted { stages, components } => {
                    start.stages = *stages;
                    start.components = components.iter().map(component).collect();
                }
                JobFact::Submitted { .. }
                | JobFact::BlockFailed { .. }
                | JobFact::Resumed { .. }
                | JobFact::Completed { .. }
                | JobFact::Failed { .. }
                | JobFact::Cancelled { .. }
                | JobFact::Released => {}
            }
        }
        if start.plan.is_none() {
            return JobStart::default();
        }
        start
    }
}

/// The fact that so many stages are complete; none when it would have more amplitudes than `most`.
pub fn checkpoint(stages: usize, components: &[Component], most: usize) -> Option<JobFact> {
    let amplitudes: usize = components.iter().filter_map(|c| c.amplitudes.as_ref()).map(Vec::len).sum();
    (amplitudes <= most).then(|| {
        let components = components.iter().map(record).collect();
        JobFact::StageCompleted { stages, components }
    })
}

fn record(component: &Component) -> ComponentRecord {
    let Component { qubits, amplitudes, measured, previous_peer_id } = component.clone();
    ComponentRecord { qubits, amplitudes, measured, previous_peer_id }
}

fn component(record: &ComponentRecord) -> Component {
    let ComponentRecord { qubits, amplitudes, measured, previous_peer_id } = record.clone();
    Component { qubits, amplitudes, measured, previous_peer_id }
}

/// A recorded plan with the indexes that are not recorded; none when it names a fragment that it does not have.
fn with_indexes(plan: &Plan) -> Option<Plan> {
    let mut plan = plan.clone();
    let ids = plan.fragments.iter().enumerate().map(|(n, f)| (f.fragment_id.as_str(), n));
    let index: HashMap<&str, usize> = ids.collect();
    for block in plan.stages.iter_mut().flatten() {
        let found: Option<Vec<usize>> =
            block.fragment_ids.iter().map(|id| index.get(id.as_str()).copied()).collect();
        block.fragments = found?;
    }
    Some(plan)
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Candidate, plan};
    use super::*;
    use crate::peers::operation::SERVICES;
    use crate::reservation::job_options::JobOptions;

    fn planned() -> Plan {
        let peer = Candidate {
            peer_id: "a".into(),
            services: SERVICES.iter().map(|s| s.to_string()).collect(),
            ..Candidate::default()
        };
        let source = "OPENQASM 3; include \"stdgates.inc\"; qubit[2] q; h q; cx q[0], q[1];";
        plan("plan-1", &crate::qasm::parse(source).unwrap(), &[peer]).unwrap()
    }

    /// A fact as the log gives it back.
    fn stored(fact: &JobFact) -> JobFact {
        serde_json::from_str(&serde_json::to_string(fact).unwrap()).unwrap()
    }

    #[test]
    fn a_job_goes_on_behind_its_last_recorded_stage_with_its_recorded_plan() {
        let submitted = JobFact::Submitted {
            qasm: "x".into(),
            shots: 1,
            coordinator: "me".into(),
            options: JobOptions::default(),
        };
        assert_eq!(JobStart::from_facts([&submitted]), JobStart::default());
        let planned = stored(&JobFact::Planned { plan: planned() });
        let begun = JobStart::from_facts([&submitted, &planned]);
        let plan = begun.plan.clone().unwrap();
        assert_eq!((begun.stages, &plan), (0, &self::planned()), "with its indexes");
        let half = std::f64::consts::FRAC_1_SQRT_2;
        let components: Vec<Component> = [0, 1]
            .map(|q| Component { amplitudes: Some(vec![[half, 0.0], [half, 0.0]]), ..Component::fresh(q) })
            .to_vec();
        assert_eq!(checkpoint(1, &components, 3), None, "more than may be recorded");
        let stage = stored(&checkpoint(1, &components, 4).unwrap());
        let attempted = JobFact::Attempted {
            block_id: "block-s01-b01".into(),
            attempt: 2,
            peer_id: "a".into(),
            reservation_id: "res-1".into(),
        };
        let completed = JobFact::BlockCompleted {
            block_id: "block-s01-b01".into(),
            attempts: 2,
            peer_id: "a".into(),
            fidelity: None,
            latency_ms: 1.0,
        };
        let start = JobStart::from_facts([&submitted, &planned, &attempted, &completed, &stage]);
        assert_eq!((start.stages, start.components), (1, components));
        assert_eq!((&*start.ran_on["block-s01-b01"], start.attempts["block-s01-b01"]), ("a", 2));
        // A plan that can't be used is made again.
        let mut damaged = plan;
        damaged.fragments.pop();
        assert_eq!(JobStart::from_facts([&JobFact::Planned { plan: damaged }, &stage]), JobStart::default());
    }
}
