//! Pure: which fragments make a block, in which stage it runs, and which peers may run it.
//!
//! Every operation is a fragment that depends on the last earlier one on each of its qubits; a level is all whose
//! predecessors lie in earlier levels. Each qubit starts as a separate component; in a level fragments that share
//! a component, transitively, are one block, whose components are one afterwards. Later fragments on that component
//! alone join the block: a run of gates costs one exchange with a peer, not one for each gate. A stage is all blocks whose
//! predecessors lie in earlier stages.
//!
//! Candidates are ranked by `total = 0.55 (1 - F) + 0.20 move + 0.25 load + penalty`, each rounded to 6 decimals:
//! - F: the lowest fidelity over the block's services, as last reported, else 0.99 (0.90 for unknown ids);
//! - move: min(1, d + min(1, 0.08 (components - 1)) + min(1, 0.03 (qubits - 1))), where d is 0 without predecessor
//!   blocks or when the peer is primary of one of them, else min(1, 0.15 times their distinct primaries);
//! - load: (reservations + executions + blocks planned on it) / (1 + highest reservations + executions);
//! - penalty: for what has happened with the peer (`track_record`), 0 at first.
//!
//! Order: total, load, higher F, peer id. The first is the primary, the next three its fallbacks.

use std::collections::{BTreeMap, BTreeSet};

use crate::peers::operation::{BUNDLE, SERVICES};
use crate::qasm::Circuit;
pub use crate::reservation::plan::{Block, Plan, PlannedFragment, RankedCandidate};

/// The primary and its fallbacks.
pub const MAX_CANDIDATES: usize = 4;
const ASSUMED_FIDELITY: f64 = 0.99;
const UNKNOWN_FIDELITY: f64 = 0.90;

/// A peer that may be planned on: healthy and not stale.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Candidate {
    pub peer_id: String,
    pub services: Vec<String>,
    pub fidelity: BTreeMap<String, f64>,
    /// Reservations and executions that the peer reports.
    pub load: u64,
    /// For what has happened with it.
    pub penalty: f64,
}

/// No peer offers these services together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no healthy peer offers {} (needed by block {block_id}); {known} healthy peers are known", services.join(" and "))]
pub struct NoCandidate {
    pub block_id: String,
    pub services: Vec<String>,
    pub known: usize,
}

/// A block before its candidates are known.
struct BlockDraft {
    /// Number of its stage, from 0.
    stage: usize,
    fragments: Vec<usize>,
    components: Vec<Vec<u32>>,
    qubits: Vec<u32>,
    predecessors: BTreeSet<usize>,
}

/// Plans a circuit on these candidates.
///
/// # Errors
/// When a block has no candidate.
pub fn plan(plan_id: &str, circuit: &Circuit, candidates: &[Candidate]) -> Result<Plan, NoCandidate> {
    let (mut fragments, levels) = fragments(circuit);
    let drafts = drafts(circuit.qubits, &fragments, &levels);
    let mut of_stage: Vec<Vec<usize>> = Vec::new();
    for (n, draft) in drafts.iter().enumerate() {
        if of_stage.len() <= draft.stage {
            of_stage.resize_with(draft.stage + 1, Vec::new);
        }
        of_stage[draft.stage].push(n);
    }
    let mut ids = vec![String::new(); drafts.len()];
    for (stage, here) in of_stage.iter().enumerate() {
        for (n, draft) in here.iter().enumerate() {
            ids[*draft] = format!("block-s{:02}-b{:02}", stage + 1, n + 1);
        }
    }
    let mut primaries: Vec<String> = vec![String::new(); drafts.len()];
    let mut planned: BTreeMap<String, u64> = BTreeMap::new();
    let mut stages = Vec::with_capacity(of_stage.len());
    for here in of_stage {
        let mut blocks = Vec::with_capacity(here.len());
        for n in here {
            let draft = &drafts[n];
            let services: BTreeSet<&str> =
                draft.fragments.iter().map(|f| fragments[*f].service_id.as_str()).collect();
            let mut block = Block {
                service_id: match services.len() {
                    1 => services.iter().next().map_or(BUNDLE, |s| s).to_string(),
                    _ => BUNDLE.into(),
                },
                services: services.into_iter().map(String::from).collect(),
                fragment_ids: draft.fragments.iter().map(|f| fragments[*f].fragment_id.clone()).collect(),
                components: draft.components.clone(),
                predecessors: draft.predecessors.iter().map(|p| ids[*p].clone()).collect(),
                candidates: Vec::new(),
                fragments: draft.fragments.clone(),
                stage: draft.stage + 1,
                block_id: ids[n].clone(),
                qubits: draft.qubits.clone(),
            };
            let before = draft.predecessors.iter().map(|p| primaries[*p].as_str()).collect();
            block.candidates = rank(&block, candidates, &before, &planned, &Ties::by_id());
            let Some(primary) = block.candidates.first().map(|c| c.peer_id.clone()) else {
                let block_id = block.block_id;
                return Err(NoCandidate { block_id, services: block.services, known: candidates.len() });
            };
            *planned.entry(primary.clone()).or_default() += 1;
            primaries[n] = primary;
            draft.fragments.iter().for_each(|f| fragments[*f].block_id.clone_from(&block.block_id));
            blocks.push(block);
        }
        stages.push(blocks);
    }
    Ok(Plan { plan_id: plan_id.into(), qubits: circuit.qubits, fragments, stages })
}

/// The blocks of fragments that have these levels, each behind its predecessors.
fn drafts(qubits: u32, fragments: &[PlannedFragment], levels: &[usize]) -> Vec<BlockDraft> {
    let mut of_level: Vec<Vec<usize>> = vec![Vec::new(); levels.iter().max().map_or(0, |l| l + 1)];
    levels.iter().enumerate().for_each(|(fragment, level)| of_level[*level].push(fragment));
    // The component of each qubit, and the block that made it.
    let mut components: Vec<Vec<u32>> = (0..qubits).map(|q| vec![q]).collect();
    let mut component_of: Vec<usize> = (0..components.len()).collect();
    let mut made_by: Vec<Option<usize>> = vec![None; components.len()];
    let mut drafts: Vec<BlockDraft> = Vec::new();
    for here in of_level {
        for group in groups(&here, fragments, &component_of) {
            let touched = group.iter().flat_map(|f| &fragments[*f].qubits);
            let mut inputs: Vec<usize> =
                touched.map(|q| component_of[*q as usize]).collect::<BTreeSet<_>>().into_iter().collect();
            // More gates on what one block has made belong to that block.
            if let [only] = inputs[..]
                && let Some(maker) = made_by[only]
            {
                drafts[maker].fragments.extend(group);
                continue;
            }
            inputs.sort_by_key(|c| components[*c].first().copied());
            let predecessors: BTreeSet<usize> = inputs.iter().filter_map(|c| made_by[*c]).collect();
            let inputs: Vec<Vec<u32>> = inputs.iter().map(|c| components[*c].clone()).collect();
            let mut qubits: Vec<u32> = inputs.concat();
            qubits.sort_unstable();
            qubits.iter().for_each(|q| component_of[*q as usize] = components.len());
            components.push(qubits.clone());
            made_by.push(Some(drafts.len()));
            let stage = predecessors.iter().map(|p| drafts[*p].stage + 1).max().unwrap_or(0);
            drafts.push(BlockDraft { stage, fragments: group, components: inputs, qubits, predecessors });
        }
    }
    drafts
}

/// Fragments with their dependencies, and the level of each: one more than the highest of those it depends on.
fn fragments(circuit: &Circuit) -> (Vec<PlannedFragment>, Vec<usize>) {
    let mut last: Vec<Option<usize>> = vec![None; circuit.qubits as usize];
    let mut found: Vec<PlannedFragment> = Vec::with_capacity(circuit.operations.len());
    let mut levels: Vec<usize> = Vec::with_capacity(circuit.operations.len());
    for (n, operation) in circuit.operations.iter().enumerate() {
        let before: BTreeSet<usize> = operation.qubits.iter().filter_map(|q| last[*q as usize]).collect();
        levels.push(before.iter().map(|b| levels[*b] + 1).max().unwrap_or(0));
        operation.qubits.iter().for_each(|q| last[*q as usize] = Some(n));
        found.push(PlannedFragment {
            fragment_id: format!("frag-{:04}", n + 1),
            operation_id: format!("op-{:04}", n + 1),
            service_id: operation.service.into(),
            qubits: operation.qubits.clone(),
            dependencies: before.iter().map(|b| found[*b].fragment_id.clone()).collect(),
            raw_text: operation.raw_text.clone(),
            block_id: String::new(),
        });
    }
    (found, levels)
}

/// Fragments of a level that share components, transitively, in the order of their first.
fn groups(here: &[usize], fragments: &[PlannedFragment], component_of: &[usize]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(BTreeSet<usize>, Vec<usize>)> = Vec::new();
    for &fragment in here {
        let mut touched: BTreeSet<usize> =
            fragments[fragment].qubits.iter().map(|q| component_of[*q as usize]).collect();
        let mut members = Vec::new();
        let (shared, apart): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(components, _)| !components.is_disjoint(&touched));
        for (components, others) in shared {
            touched.extend(components);
            members.extend(others);
        }
        members.push(fragment);
        members.sort_unstable();
        groups = apart;
        groups.push((touched, members));
    }
    let mut groups: Vec<Vec<usize>> = groups.into_iter().map(|(_, members)| members).collect();
    groups.sort();
    groups
}

/// How peers of about the same rank are ordered.
#[derive(Debug, Clone, Copy)]
pub struct Ties<P> {
    /// Totals are compared by how many of these they have; exactly when it is 0.
    pub step: f64,
    /// What decides between equals, the lower first, before the peer id does.
    pub preference: P,
}

impl Ties<fn(&str) -> u64> {
    /// The order of the head of this file.
    pub fn by_id() -> Ties<fn(&str) -> u64> {
        Ties { step: 0.0, preference: |_| 0 }
    }
}

/// The peers among these that may run a block, best first. `before` has the peers that the block's state comes from,
/// `planned` the number of blocks that are planned on each and that its load does not have.
pub fn rank(
    block: &Block,
    candidates: &[Candidate],
    before: &BTreeSet<&str>,
    planned: &BTreeMap<String, u64>,
    ties: &Ties<impl Fn(&str) -> u64>,
) -> Vec<RankedCandidate> {
    let able: Vec<&Candidate> = candidates.iter().filter(|c| block.is_offered_by(&c.services)).collect();
    let highest = able.iter().map(|c| c.load).max().unwrap_or(0);
    let ranked: Vec<RankedCandidate> = able
        .into_iter()
        .map(|c| {
            let assumed = |service: &String| match SERVICES.contains(&service.as_str()) {
                true => ASSUMED_FIDELITY,
                false => UNKNOWN_FIDELITY,
            };
            let of = |service| c.fidelity.get(service).copied().unwrap_or_else(|| assumed(service));
            let fidelity = block.services.iter().map(of).fold(1.0, f64::min);
            let far = match before.is_empty() || before.contains(c.peer_id.as_str()) {
                true => 0.0,
                false => (0.15 * before.len() as f64).min(1.0),
            };
            let parts = (0.08 * (block.components.len() as f64 - 1.0)).min(1.0);
            let width = (0.03 * (block.qubits.len() as f64 - 1.0)).min(1.0);
            let movement = round6((far + parts + width).min(1.0));
            let busy = c.load.saturating_add(planned.get(&c.peer_id).copied().unwrap_or(0));
            let load = round6(busy as f64 / (1.0 + highest as f64));
            let fidelity = round6(fidelity);
            let penalty = round6(c.penalty);
            let total = round6(0.55 * (1.0 - fidelity) + 0.20 * movement + 0.25 * load + penalty);
            RankedCandidate { peer_id: c.peer_id.clone(), total, fidelity, movement, load, penalty }
        })
        .collect();
    let is_exact = ties.step <= 0.0;
    let rough = |total: f64| if is_exact { total } else { (total / ties.step).floor() };
    let exact = |value: f64| if is_exact { value } else { 0.0 };
    let preferred: Vec<u64> = ranked.iter().map(|c| (ties.preference)(&c.peer_id)).collect();
    let mut ranked: Vec<(u64, RankedCandidate)> = preferred.into_iter().zip(ranked).collect();
    ranked.sort_by(|(first, a), (second, b)| {
        let order = rough(a.total).total_cmp(&rough(b.total)).then(exact(a.load).total_cmp(&exact(b.load)));
        let order = order.then(exact(b.fidelity).total_cmp(&exact(a.fidelity)));
        order.then(first.cmp(second)).then(a.peer_id.cmp(&b.peer_id))
    });
    ranked.truncate(MAX_CANDIDATES);
    ranked.into_iter().map(|(_, candidate)| candidate).collect()
}

fn round6(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
