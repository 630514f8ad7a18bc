//! Pure: which blocks of a job may run, and which states are behind its stages.
//!
//! A block may run as soon as the blocks whose states it takes are complete, whatever becomes of others of their stage: so
//! the rounds of one chain of blocks overlap with those of another. A stage is complete when all of its blocks and all
//! stages before it are; the states behind it are kept until the next one is, because a restart goes on from them.

use std::collections::{BTreeMap, BTreeSet};

use super::combine::{Component, combine};
use super::plan::{Block, Plan};

/// A block by its stage, from 0, and its number in it.
pub type BlockPlace = (usize, usize);

/// A component: one that the job starts from, or what a block makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Start(usize),
    Made(BlockPlace),
}

#[derive(Debug)]
pub struct Schedule {
    /// What each block that is not complete takes.
    inputs: BTreeMap<BlockPlace, Vec<Source>>,
    /// Blocks that may run, and those that do.
    ready: BTreeSet<BlockPlace>,
    running: BTreeSet<BlockPlace>,
    states: BTreeMap<Source, Component>,
    /// The block that takes a component.
    consumers: BTreeMap<Source, BlockPlace>,
    /// Blocks of each stage that are not complete.
    left: Vec<usize>,
}

impl Schedule {
    /// A job of which so many stages are complete, with the states behind them.
    pub fn new(plan: &Plan, stages: usize, components: Vec<Component>) -> Schedule {
        // Who has each qubit, as the blocks pass them on.
        let mut owners: BTreeMap<u32, Source> = BTreeMap::new();
        let mut states = BTreeMap::new();
        for (n, component) in components.into_iter().enumerate() {
            owners.extend(component.qubits.iter().map(|q| (*q, Source::Start(n))));
            states.insert(Source::Start(n), component);
        }
        let (mut inputs, mut consumers) = (BTreeMap::new(), BTreeMap::new());
        let places = |stage: usize| (0..plan.stages[stage].len()).map(move |n| (stage, n));
        for place in (stages..plan.stages.len()).flat_map(places) {
            let block: &Block = &plan.stages[place.0][place.1];
            let taken: BTreeSet<Source> =
                block.qubits.iter().filter_map(|q| owners.get(q)).copied().collect();
            consumers.extend(taken.iter().map(|source| (*source, place)));
            owners.extend(block.qubits.iter().map(|q| (*q, Source::Made(place))));
            inputs.insert(place, taken.into_iter().collect());
        }
        let left =
            plan.stages.iter().enumerate().map(|(n, s)| if n < stages { 0 } else { s.len() }).collect();
        let (ready, running) = (BTreeSet::new(), BTreeSet::new());
        let mut schedule = Schedule { inputs, ready, running, states, consumers, left };
        schedule.ready = schedule.inputs.keys().copied().filter(|place| schedule.has_inputs(place)).collect();
        schedule
    }

    fn has_inputs(&self, place: &BlockPlace) -> bool {
        self.inputs.get(place).is_some_and(|taken| taken.iter().all(|s| self.states.contains_key(s)))
    }

    /// The next block that may run, of the earliest stage, with the state it starts from.
    pub fn begin_next(&mut self) -> Option<(BlockPlace, Component)> {
        let place = self.ready.pop_first()?;
        self.running.insert(place);
        let taken = self.inputs.get(&place).into_iter().flatten();
        let parts = taken.filter_map(|source| self.states.get(source)).cloned().collect();
        Some((place, combine(parts)))
    }

    /// A block is complete, with this state behind it.
    pub fn complete(&mut self, place: BlockPlace, state: Component) {
        if !self.running.remove(&place) {
            return;
        }
        self.inputs.remove(&place);
        self.left[place.0] -= 1;
        let made = Source::Made(place);
        self.states.insert(made, state);
        if let Some(consumer) = self.consumers.get(&made)
            && self.has_inputs(consumer)
        {
            self.ready.insert(*consumer);
        }
        let complete = self.complete_stages();
        let is_needed =
            |source: &Source| self.consumers.get(source).is_none_or(|(stage, _)| *stage >= complete);
        self.states.retain(|source, _| is_needed(source));
    }

    /// How many stages are complete, from the first on.
    pub fn complete_stages(&self) -> usize {
        self.left.iter().take_while(|left| **left == 0).count()
    }

    /// The states behind the complete stages.
    pub fn states_behind(&self) -> Vec<Component> {
        let complete = self.complete_stages();
        let is_behind = |source: &Source| match source {
            Source::Start(_) => true,
            Source::Made((stage, _)) => *stage < complete,
        };
        self.states.iter().filter(|(source, _)| is_behind(source)).map(|(_, state)| state.clone()).collect()
    }

    /// Whether every block is complete.
    pub fn is_complete(&self) -> bool {
        self.inputs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::plan::{Candidate, plan};
    use crate::peers::operation::SERVICES;
    use crate::qasm::parse;

    fn planned(source: &str) -> Plan {
        let peer = Candidate {
            peer_id: "a".into(),
            services: SERVICES.iter().map(ToString::to_string).collect(),
            ..Candidate::default()
        };
        let source = format!("OPENQASM 3.0; include \"stdgates.inc\"; {source}");
        plan("plan-1", &parse(&source).unwrap(), &[peer]).unwrap()
    }

    fn fresh(plan: &Plan) -> Vec<Component> {
        (0..plan.qubits).map(Component::fresh).collect()
    }

    /// What a block makes, marked with its id.
    fn made(plan: &Plan, (stage, n): BlockPlace, state: Component) -> Component {
        Component { previous_peer_id: Some(plan.stages[stage][n].block_id.clone()), ..state }
    }

    #[test]
    fn a_chain_does_not_wait_for_another_one() {
        // Two chains; the second block of each is ready when its own first one is complete.
        let plan = planned(
            "qubit[6] q; h q[0]; h q[3]; cx q[0], q[1]; cx q[3], q[4]; cx q[1], q[2]; cx q[4], q[5];",
        );
        let mut schedule = Schedule::new(&plan, 0, fresh(&plan));
        let (first, state) = schedule.begin_next().unwrap();
        let (other, _) = schedule.begin_next().unwrap();
        assert_eq!((first, other), ((0, 0), (0, 1)));
        assert!(schedule.begin_next().is_none());
        for stage in 0..3 {
            schedule.complete((stage, 0), made(&plan, (stage, 0), state.clone()));
            assert_eq!(schedule.complete_stages(), 0, "the other chain has not moved");
            let next = schedule.begin_next().map(|(place, _)| place);
            assert_eq!(next, (stage < 2).then_some((stage + 1, 0)));
        }
        assert_eq!(schedule.states_behind().len(), 6, "a restart would begin where it began");
    }

    /// Circuits and orders at random: each block runs once and takes what those before it made, and a restart behind the
    /// complete stages runs exactly the others.
    #[test]
    fn any_order_gives_each_block_its_inputs_and_each_stage_its_states() {
        let mut seed = 11_u64;
        let mut random = move |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for round in 0..200 {
            let qubits = 2 + random(7);
            let mut source = format!("qubit[{qubits}] q;");
            for _ in 0..1 + random(25) {
                let (a, b) = (random(qubits), random(qubits));
                source += &match a == b {
                    true => format!("h q[{a}];"),
                    false => format!("cx q[{a}], q[{b}];"),
                };
            }
            let plan = planned(&source);
            let total: usize = plan.stages.iter().map(Vec::len).sum();
            let mut schedule = Schedule::new(&plan, 0, fresh(&plan));
            let (mut running, mut done) = (Vec::new(), BTreeSet::new());
            while !schedule.is_complete() {
                while let Some((place, state)) = schedule.begin_next() {
                    let block = &plan.stages[place.0][place.1];
                    assert_eq!(state.qubits, block.qubits, "round {round}: {source}");
                    for before in &block.predecessors {
                        assert!(done.contains(before), "round {round}: {before} is not complete");
                    }
                    running.push((place, state));
                }
                let (place, state) = running.swap_remove(random(running.len()));
                schedule.complete(place, made(&plan, place, state));
                assert!(done.insert(plan.stages[place.0][place.1].block_id.clone()), "round {round}: once");
                let (stages, states) = (schedule.complete_stages(), schedule.states_behind());
                let mut all: Vec<u32> = states.iter().flat_map(|s| s.qubits.clone()).collect();
                all.sort_unstable();
                assert_eq!(
                    all,
                    (0..plan.qubits).collect::<Vec<u32>>(),
                    "round {round}: behind stage {stages}"
                );
                let again = Schedule::new(&plan, stages, states);
                let left: usize = plan.stages[stages..].iter().map(Vec::len).sum();
                assert_eq!(again.inputs.len(), left, "round {round}");
                assert!(left == 0 || !again.ready.is_empty(), "round {round}: a restart has something to do");
            }
            assert_eq!(done.len(), total);
        }
    }
}
